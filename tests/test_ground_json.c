/* Room 01.05: tokens, strings, numbers and refusals of the JSON reader. */

#include "../fuzz/fuzz_json.c"

static void json_begin(dendp_json *j, const char *text) {
    dendp_json_open(j, text, strlen(text), 0);
}

/* The first token of a text that must have one. */
static void json_first(dendp_json *j, const char *text) {
    json_begin(j, text);
    ASSERT_STATUS(DEND_OK, dendp_json_next(j, NULL));
}

/* Reads to the end; the status, and where it failed. */
static dend_status json_read(const void *data, size_t n, uint64_t *where, const char **msg) {
    dendp_json j;
    dend_error err = {DEND_OK, NULL, 0, 0, NULL};
    dend_status status;
    dendp_json_open(&j, data, n, 1000);
    do {
        status = dendp_json_next(&j, &err);
    } while (status == DEND_OK && j.kind != DENDP_JSON_END);
    *where = status == DEND_OK ? 0 : err.where - 1000;
    *msg = err.msg;
    if (status != DEND_OK) {
        assert_int_equal(err.status, status);
        assert_true(err.where >= 1000 && err.where <= 1000 + n);
    }
    return status;
}

/* One letter a token: what a text is made of. */
static void json_tokens(void **state) {
    static const struct {
        const char *text, *kinds;
    } cases[] = {
        {"null", "n"},
        {" true ", "t"},
        {"\t\r\nfalse", "f"},
        {"0", "1"},
        {"\"\"", "s"},
        {"[]", "[]"},
        {"{}", "{}"},
        {"[ ]", "[]"},
        {"{ }", "{}"},
        {"[1,2]", "[11]"},
        {"[[],{}]", "[[]{}]"},
        {"{\"a\":1}", "{k1}"},
        {" { \"a\" : [ 1 , \"x\" ] , \"b\" : { \"c\" : null } } ", "{k[1s]k{kn}}"},
        {"[true,false,null,-1.5e+3,\"\\u00e9\"]", "[tfn1s]"},
    };
    static const char letters[] = ".nft1sk[]{}";
    size_t i;
    (void)state;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char got[64];
        size_t n = 0;
        dendp_json j;
        json_begin(&j, cases[i].text);
        do {
            ASSERT_STATUS(DEND_OK, dendp_json_next(&j, NULL));
            got[n++] = letters[j.kind];
        } while (j.kind != DENDP_JSON_END);
        got[n - 1] = 0;
        assert_string_equal(got, cases[i].kinds);
        ASSERT_STATUS(DEND_OK, dendp_json_next(&j, NULL)); /* the end stays the end */
        assert_int_equal(j.kind, DENDP_JSON_END);
        assert_int_equal(j.at, strlen(cases[i].text));
    }
}

/* What is no JSON, and the byte from which on it is none. */
static void json_refused(void **state) {
    static const struct {
        const char *text;
        uint64_t where;
        const char *msg;
    } cases[] = {
        {"", 0, "JSON text ends too early"},
        {"  ", 2, "JSON text ends too early"},
        {"[", 1, "JSON text ends too early"},
        {"[1", 2, "JSON text ends too early"},
        {"[1,", 3, "JSON text ends too early"},
        {"{", 1, "JSON text ends too early"},
        {"{\"a\"", 4, "JSON text ends too early"},
        {"{\"a\":", 5, "JSON text ends too early"},
        {"{\"a\":1", 6, "JSON text ends too early"},
        {"{\"a\":1,", 7, "JSON text ends too early"},
        {"tru", 3, "JSON text ends too early"},
        {"nul", 3, "JSON text ends too early"},
        {"\"abc", 4, "JSON text ends too early"},
        {"\"abc\\", 5, "JSON text ends too early"},
        {"\"\\u12", 5, "JSON text ends too early"},
        {"\"\\ud83d", 7, "JSON text ends too early"},
        {"-", 1, "JSON text ends too early"},
        {"1.", 2, "JSON text ends too early"},
        {"1e", 2, "JSON text ends too early"},
        {"1e+", 3, "JSON text ends too early"},
        {"\xef\xbb\xbf[]", 0, "no JSON value where one must be"}, /* a byte order mark */
        {"x", 0, "no JSON value where one must be"},
        {"[,1]", 1, "no JSON value where one must be"},
        {"[1,]", 3, "no JSON value where one must be"},
        {"[1,,2]", 3, "no JSON value where one must be"},
        {"{\"a\":}", 5, "no JSON value where one must be"},
        {"+1", 0, "no JSON value where one must be"},
        {".5", 0, "no JSON value where one must be"},
        {"NaN", 0, "no JSON value where one must be"},
        {"Infinity", 0, "no JSON value where one must be"},
        {"'a'", 0, "no JSON value where one must be"},
        {"[1 2]", 3, "no comma where one must be in a JSON text"},
        {"[1}", 2, "no comma where one must be in a JSON text"},
        {"{\"a\":1]", 6, "no comma where one must be in a JSON text"},
        {"{\"a\" 1}", 5, "no colon behind a JSON key"},
        {"{\"a\",1}", 4, "no colon behind a JSON key"},
        {"{a:1}", 1, "no key where one must be in a JSON object"},
        {"{1:1}", 1, "no key where one must be in a JSON object"},
        {"{\"a\":1,}", 7, "no key where one must be in a JSON object"},
        {"]", 0, "no JSON value where one must be"},
        {"}", 0, "no JSON value where one must be"},
        {"[] []", 3, "something follows the JSON value"},
        {"1 2", 2, "something follows the JSON value"},
        {"{}}", 2, "something follows the JSON value"},
        {"01", 1, "something follows the JSON value"},
        {"-01", 2, "something follows the JSON value"},
        {"1.5.5", 3, "something follows the JSON value"},
        {"nulls", 4, "something follows the JSON value"},
        {"[] // comment", 3, "something follows the JSON value"},
        {"-x", 1, "malformed JSON number"},
        {"1.x", 2, "malformed JSON number"},
        {"1ex", 2, "malformed JSON number"},
        {"1e-x", 3, "malformed JSON number"},
        {"truE", 3, "malformed JSON value"},
        {"nan ", 1, "malformed JSON value"},
        {"\"\n\"", 1, "control character in a JSON string"},
        {"\"a\x01\"", 2, "control character in a JSON string"},
        {"\"\\x41\"", 2, "unknown escape in a JSON string"},
        {"\"\\'\"", 2, "unknown escape in a JSON string"},
        {"\"\\U0041\"", 2, "unknown escape in a JSON string"},
        {"\"\\u00g0\"", 5, "escape in a JSON string without four hexadecimal digits"},
        {"\"\\u\"", 3, "escape in a JSON string without four hexadecimal digits"},
        {"\"\\ud83d\\u12x4\"", 11, "escape in a JSON string without four hexadecimal digits"},
        {"\"\\ud83d\"", 1, "half of a surrogate pair in a JSON string"},
        {"\"a\\ud83dx\"", 2, "half of a surrogate pair in a JSON string"},
        {"\"\\ude00\"", 1, "half of a surrogate pair in a JSON string"},
        {"\"\\ud83d\\ud83d\"", 1, "half of a surrogate pair in a JSON string"},
        {"\"\\ud83dude00\"", 1, "half of a surrogate pair in a JSON string"},
        {"\"\\ud83d\\n\"", 1, "half of a surrogate pair in a JSON string"},
        {"\"\x80\"", 1, "invalid UTF-8 in a JSON string"},
        {"\"\xc0\x80\"", 1, "invalid UTF-8 in a JSON string"},
        {"\"\xc1\xbf\"", 1, "invalid UTF-8 in a JSON string"},
        {"\"\xc3\"", 1, "invalid UTF-8 in a JSON string"},
        {"\"\xe0\x9f\xbf\"", 1, "invalid UTF-8 in a JSON string"},
        {"\"\xed\xa0\x80\"", 1, "invalid UTF-8 in a JSON string"}, /* a surrogate */
        {"\"\xe2\x82\"", 1, "invalid UTF-8 in a JSON string"},
        {"\"\xf0\x8f\xbf\xbf\"", 1, "invalid UTF-8 in a JSON string"},
        {"\"\xf4\x90\x80\x80\"", 1, "invalid UTF-8 in a JSON string"}, /* above U+10FFFF */
        {"\"\xf5\x80\x80\x80\"", 1, "invalid UTF-8 in a JSON string"},
        {"\"\xff\"", 1, "invalid UTF-8 in a JSON string"},
    };
    size_t i;
    (void)state;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t where;
        const char *msg;
        dend_status status = json_read(cases[i].text, strlen(cases[i].text), &where, &msg);
        if (status != DEND_ERR_FORMAT || where != cases[i].where || strcmp(msg, cases[i].msg) != 0) {
            fail_msg("%s: %s, at %u: %s", cases[i].text, dend_status_name(status), (unsigned)where,
                     msg ? msg : "");
        }
    }
    { /* zero bytes are no space and no part of any token */
        uint64_t where;
        const char *msg;
        ASSERT_STATUS(DEND_ERR_FORMAT, json_read("[]\0", 3, &where, &msg));
        assert_int_equal(where, 2);
        ASSERT_STATUS(DEND_ERR_FORMAT, json_read("\"\0\"", 3, &where, &msg));
        assert_int_equal(where, 1);
        ASSERT_STATUS(DEND_ERR_FORMAT, json_read("\"\\\0\"", 4, &where, &msg));
        assert_int_equal(where, 2);
    }
}

static void json_strings(void **state) {
    static const struct {
        const char *text, *want;
        size_t len;
    } cases[] = {
        {"\"\"", "", 0},
        {"\"plain\"", "plain", 5},
        {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t", 8},
        {"\"a\\u0041b\"", "aAb", 3},
        {"\"\\u00e9\\u00E9\"", "\xc3\xa9\xc3\xa9", 4},
        {"\"\xc3\xa9\"", "\xc3\xa9", 2},
        {"\"\\u07ff\\u0800\\uffff\"", "\xdf\xbf\xe0\xa0\x80\xef\xbf\xbf", 8},
        {"\"\\ud83d\\ude00\"", "\xf0\x9f\x98\x80", 4},
        {"\"\\ud800\\udc00\\udbff\\udfff\"", "\xf0\x90\x80\x80\xf4\x8f\xbf\xbf", 8},
        {"\"\xf0\x9f\x98\x80\xed\x9f\xbf\xee\x80\x80\x7f\"", "\xf0\x9f\x98\x80\xed\x9f\xbf\xee\x80\x80\x7f",
         11},
        {"\"a\\u0000b\"", "a\0b", 3},
        {"\"\\\\\"", "\\", 1},
        {"\"\\\\u0041\"", "\\u0041", 6},
    };
    size_t i, cap;
    (void)state;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dendp_json j;
        char out[32];
        json_first(&j, cases[i].text);
        assert_int_equal(j.kind, DENDP_JSON_STRING);
        assert_int_equal(j.len, cases[i].len);
        for (cap = 0; cap <= cases[i].len; cap++) { /* what does not fit is not written */
            memset(out, 77, sizeof out);
            assert_false(dendp_json_copy(&j, out, cap));
            assert_int_equal(out[cap], 77);
        }
        assert_true(dendp_json_copy(&j, out, cases[i].len + 1));
        assert_memory_equal(out, cases[i].want, cases[i].len + 1);
        assert_int_equal(out[cases[i].len + 1], 77);
        if (strlen(cases[i].want) == cases[i].len) {
            assert_true(dendp_json_is(&j, cases[i].want));
            assert_false(dendp_json_is(&j, "plainer"));
            if (cases[i].len > 0) {
                out[cases[i].len - 1] ^= 1;
                assert_false(dendp_json_is(&j, out));
            }
        }
    }
}

static void json_integers(void **state) {
    static const struct {
        const char *text;
        bool is_i64, is_u64;
        int64_t i;
        uint64_t u;
    } cases[] = {
        {"0", true, true, 0, 0},
        {"-0", true, false, 0, 0},
        {"1", true, true, 1, 1},
        {"-1", true, false, -1, 0},
        {"9223372036854775807", true, true, INT64_MAX, INT64_MAX},
        {"-9223372036854775808", true, false, INT64_MIN, 0},
        {"9223372036854775808", false, true, 0, (uint64_t)1 << 63},
        {"-9223372036854775809", false, false, 0, 0},
        {"18446744073709551615", false, true, 0, UINT64_MAX},
        {"18446744073709551616", false, false, 0, 0},
        {"18446744073709551620", false, false, 0, 0},
        {"100000000000000000000", false, false, 0, 0},
        {"1000000000000000019884624838656", false, false, 0, 0},
        {"1.0", false, false, 0, 0},
        {"1e3", false, false, 0, 0},
        {"\"1\"", false, false, 0, 0},
        {"true", false, false, 0, 0},
    };
    size_t k;
    (void)state;
    for (k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        dendp_json j;
        int64_t i = 77;
        uint64_t u = 77;
        double d;
        json_first(&j, cases[k].text);
        assert_int_equal(dendp_json_i64(&j, &i), cases[k].is_i64);
        assert_true(i == (cases[k].is_i64 ? cases[k].i : 77));
        assert_int_equal(dendp_json_u64(&j, &u), cases[k].is_u64);
        assert_true(u == (cases[k].is_u64 ? cases[k].u : 77));
        assert_int_equal(dendp_json_f64(&j, &d), j.kind == DENDP_JSON_NUMBER);
    }
}

static void json_assert_double(const char *text) {
    dendp_json j;
    double got = 7.0, want = strtod(text, NULL);
    json_first(&j, text);
    assert_int_equal(j.kind, DENDP_JSON_NUMBER);
    assert_int_equal(dendp_json_f64(&j, &got), want <= DBL_MAX && want >= -DBL_MAX);
    if (want <= DBL_MAX && want >= -DBL_MAX && memcmp(&got, &want, sizeof got) != 0) {
        fail_msg("%s is %.17g, not %.17g", text, want, got);
    }
}

/* Every double beside the C library's, bit for bit: cases that are hard by
 * construction, and random ones. */
static void json_doubles(void **state) {
    static const char *const texts[] = {
        "0",
        "-0",
        "0.0",
        "-0.000e5",
        "0e999999999999999999999",
        "1",
        "-1.5",
        "0.1",
        "1e-05",
        "1e-06",
        "10000.0",
        "1000000.0",
        "5e5",
        "1E22",
        "1e23",
        "1e+2",
        "123456789012345678",
        "9007199254740993",
        "9007199254740992.5",
        "9007199254740993.0000000000000000000000000000000000001",
        "-8.76543210987654321",
        "2.2250738585072011e-308",
        "2.2250738585072014e-308",
        "4.9406564584124654e-324",
        "2.4703282292062327208e-324",
        "2.47032822920623272088284396434110686182e-324",
        "2.4703282292062327209e-324",
        "1e-323",
        "1e-324",
        "1e-400",
        "1e-99999999999999999999",
        "1.7976931348623157e308",
        "1.7976931348623158e308",
        "1.797693134862315807e308",
        "1.797693134862315808e308",
        "1.8e308",
        "1e309",
        "1e310",
        "1e311",
        "1e99999999999999999999",
        "-1e400",
        "1000000000000000019884624838656",
        "0.00000000000000000000000000000000000000000001e44",
        "100000000000000000000000000000000000000000000000e-46",
        "6.62607015e-34",
        "-9.123456789012345",
        "1797693134862315807937289714053034150799341327100378269361737789804449682927647509466490179775872070"
        "96330286"
        "4166928879109465555478519404026306574886715058206819089020007083836762738548458177115317644757302700"
        "69855571"
        "366959622842914819860834936475292719074168444365510704342711559699508093042880",
        "0."
        "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
        "00000000"
        "1e105",
    };
    test_rng rng = {20261};
    char text[1200];
    size_t i, k, n;
    (void)state;
    for (i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        json_assert_double(texts[i]);
    }
    for (i = 0; i < 40000;
         i++) { /* random bits, written short enough to need rounding and long enough not to */
        uint64_t bits = test_next(&rng);
        double d;
        memcpy(&d, &bits, 8);
        if (d - d == 0) {
            snprintf(text, sizeof text, "%.*e", (int)(i % 20), d);
            json_assert_double(text);
        }
        d = (double)(int64_t)test_next(&rng) / 9.3e17; /* as scores of a vocabulary are */
        snprintf(text, sizeof text, "%.*f", (int)(i % 20), d);
        json_assert_double(text);
    }
    for (i = 0; i < 300;
         i++) { /* halfway between two doubles, exactly, and with a last digit up to 900 places on */
        uint64_t bits = test_next(&rng) & 0x7fffffffffffffffu;
        double d, next;
        long double half;
        if (i % 3 == 0) {
            bits &= 0x001fffffffffffffu; /* subnormal and its neighbours: the longest there are */
        } else {
            bits = (bits & 0x000fffffffffffffu) | (uint64_t)(1023 + i) << 52;
        }
        memcpy(&d, &bits, 8);
        bits++;
        memcpy(&next, &bits, 8);
        half = ((long double)d + (long double)next) / 2;
        snprintf(text, sizeof text, "%.*Le", 780, half);
        json_assert_double(text);
        n = (size_t)(strchr(text, 'e') - text);
        for (k = n; k > n - 20; k -= 5) {
            char tail[16];
            snprintf(tail, sizeof tail, "%s", text + n);
            text[k - 1] = '1';
            json_assert_double(text);
            text[k - 1] = '0';
            snprintf(text + n, sizeof text - n, "000000000000000000000001%s", tail);
            json_assert_double(text);
            snprintf(text + n, sizeof text - n, "%s", tail);
        }
    }
}

/* 64 levels are read, of any mixture of brackets; no more, however many there are. */
static void json_depth(void **state) {
    size_t n = 100000, i;
    char *text = (char *)malloc(8 * n);
    uint64_t where;
    const char *msg;
    int kind;
    (void)state;
    assert_non_null(text);
    for (kind = 0; kind < 2; kind++) {
        const char *open = kind ? "{\"\":" : "[";
        size_t width = strlen(open);
        for (i = 0; i < n; i++) memcpy(text + i * width, open, width);
        ASSERT_STATUS(DEND_ERR_UNSUPPORTED, json_read(text, n * width, &where, &msg));
        assert_int_equal(where, 64 * width);
        assert_string_equal(msg, "JSON text is nested more than 64 deep");
        text[64 * width] = '1';
        memset(text + 64 * width + 1, kind ? '}' : ']', 64);
        ASSERT_STATUS(DEND_OK, json_read(text, 64 * width + 65, &where, &msg));
        ASSERT_STATUS(DEND_ERR_FORMAT, json_read(text, 64 * width + 64, &where, &msg));
        assert_int_equal(where, 64 * width + 64);
        text[64 * width + 30] = kind ? ']' : '}'; /* closes what is not open */
        ASSERT_STATUS(DEND_ERR_FORMAT, json_read(text, 64 * width + 65, &where, &msg));
        assert_int_equal(where, 64 * width + 30);
    }
    free(text);
}

/* Deeper brackets of the other kind that have been closed leave no trace. */
static void json_levels_are_apart(void **state) {
    uint64_t where;
    const char *msg, *text = "[[{\"a\":[{}]},[[]],{\"b\":{}}],[{\"c\":[]}]]";
    (void)state;
    ASSERT_STATUS(DEND_OK, json_read(text, strlen(text), &where, &msg));
}

/* Every beginning of a text is refused at its end, and at no other place. */
static void json_cut(void **state) {
    static const char text[] =
        "{\"k\\n\\ud83d\\ude00\": [1, -2.5e+10, 0.25, true, false, null, \"\xc3\xa9\xf0\x9f\x98\x80\"],"
        " \"o\": {\"\": [[], {}]}, \"last\": \"\\u00e9\"}";
    size_t n;
    (void)state;
    for (n = 0; n < sizeof text; n++) {
        uint64_t where;
        const char *msg;
        unsigned char *copy = (unsigned char *)malloc(n ? n : 1); /* so that a sanitizer sees the end */
        dend_status status;
        assert_non_null(copy);
        memcpy(copy, text, n);
        status = json_read(copy, n, &where, &msg);
        if (n == sizeof text - 1) {
            assert_int_equal(status, DEND_OK);
        } else {
            assert_int_equal(status, DEND_ERR_FORMAT);
            /* a cut UTF-8 character is invalid where it begins */
            assert_true(where == n || (n - where < 4 && copy[where] >= 0xc0));
        }
        free(copy);
    }
}

/* Skipping takes exactly one value, and a copy of the cursor reads it again. */
static void json_skips(void **state) {
    static const char text[] = "{\"a\":{\"x\":[1,{}]},\"b\":[[2],3],\"c\":\"s\",\"d\":4}";
    static const char *const keys[] = {"a", "b", "c", "d"};
    dendp_json j, mark;
    uint64_t v = 0;
    size_t i;
    (void)state;
    json_first(&j, text);
    mark = j;
    for (i = 0; i < 4; i++) {
        ASSERT_STATUS(DEND_OK, dendp_json_next(&j, NULL));
        assert_int_equal(j.kind, DENDP_JSON_KEY);
        assert_true(dendp_json_is(&j, keys[i]));
        assert_int_equal(dendp_json_where(&j), strstr(text, keys[i]) - text - 1);
        ASSERT_STATUS(DEND_OK, dendp_json_skip(&j, NULL));
        assert_int_equal(j.depth, 1);
    }
    ASSERT_STATUS(DEND_OK, dendp_json_next(&j, NULL));
    assert_int_equal(j.kind, DENDP_JSON_OBJECT_END);
    ASSERT_STATUS(DEND_OK, dendp_json_skip(&j, NULL)); /* there is nothing to skip */
    assert_int_equal(j.kind, DENDP_JSON_OBJECT_END);
    j = mark; /* the whole object, from within */
    ASSERT_STATUS(DEND_OK, dendp_json_skip(&j, NULL));
    assert_int_equal(j.depth, 0);
    ASSERT_STATUS(DEND_OK, dendp_json_next(&j, NULL));
    assert_int_equal(j.kind, DENDP_JSON_END);
    for (j = mark; j.kind != DENDP_JSON_NUMBER;) {
        ASSERT_STATUS(DEND_OK, dendp_json_next(&j, NULL));
    }
    assert_true(dendp_json_u64(&j, &v) && v == 1);
}

/* A skipped value is checked like any other. */
static void json_skip_refuses(void **state) {
    dendp_json j;
    dend_error err;
    (void)state;
    json_first(&j, "{\"a\":[1,tru]}");
    ASSERT_STATUS(DEND_OK, dendp_json_next(&j, NULL));
    ASSERT_STATUS(DEND_ERR_FORMAT, dendp_json_skip(&j, &err));
    assert_int_equal(err.where, 11);
}

/* A vocabulary of 200,000 members and its merges, in one pass. */
static void json_large(void **state) {
    size_t cap = 12u << 20, n = 0, i, n_vocab = 200000;
    char *text = (char *)malloc(cap), name[32], want[32];
    dendp_json j;
    uint64_t id;
    (void)state;
    assert_non_null(text);
    n += (size_t)snprintf(text + n, cap - n, "{\"vocab\":{");
    for (i = 0; i < n_vocab; i++) {
        n += (size_t)snprintf(text + n, cap - n, "%s\"\\u0120t%u\":%u", i ? "," : "", (unsigned)i,
                              (unsigned)i);
    }
    n += (size_t)snprintf(text + n, cap - n, "},\"merges\":[");
    for (i = 0; i < n_vocab; i++) {
        n += (size_t)snprintf(text + n, cap - n, "%s[\"a%u\",\"b\"]", i ? "," : "", (unsigned)i);
    }
    n += (size_t)snprintf(text + n, cap - n, "]}");
    dendp_json_open(&j, text, n, 0);
    ASSERT_STATUS(DEND_OK, dendp_json_next(&j, NULL));
    ASSERT_STATUS(DEND_OK, dendp_json_next(&j, NULL));
    ASSERT_STATUS(DEND_OK, dendp_json_next(&j, NULL));
    for (i = 0; i < n_vocab; i++) {
        ASSERT_STATUS(DEND_OK, dendp_json_next(&j, NULL));
        assert_int_equal(j.kind, DENDP_JSON_KEY);
        assert_true(dendp_json_copy(&j, name, sizeof name));
        snprintf(want, sizeof want, "\xc4\xa0t%u", (unsigned)i);
        assert_string_equal(name, want);
        ASSERT_STATUS(DEND_OK, dendp_json_next(&j, NULL));
        assert_true(dendp_json_u64(&j, &id) && id == i);
    }
    ASSERT_STATUS(DEND_OK, dendp_json_next(&j, NULL));
    assert_int_equal(j.kind, DENDP_JSON_OBJECT_END);
    ASSERT_STATUS(DEND_OK, dendp_json_next(&j, NULL));
    ASSERT_STATUS(DEND_OK, dendp_json_skip(&j, NULL));
    ASSERT_STATUS(DEND_OK, dendp_json_next(&j, NULL));
    ASSERT_STATUS(DEND_OK, dendp_json_next(&j, NULL));
    assert_int_equal(j.kind, DENDP_JSON_END);
    free(text);
}

/* Changed bytes of a good text, through the checks of the fuzz target. */
static void json_mutations(void **state) {
    static const char text[] =
        "{\"a\\u00e9\\ud83d\\ude00\":[1,-0.5e-7,\"x\xc3\xa9\"],\"b\":{\"c\":[true,null,[[]]]}}";
    test_rng rng = {7};
    unsigned char copy[sizeof text - 1];
    int i, k;
    (void)state;
    for (i = 0; i < 20000; i++) {
        const char *wrong;
        memcpy(copy, text, sizeof copy);
        for (k = 0; k <= i % 3; k++) {
            uint32_t at = test_below(&rng, sizeof copy);
            copy[at] = i % 2 ? (unsigned char)test_next(&rng) : copy[test_below(&rng, sizeof copy)];
        }
        wrong = fuzz_json_one(copy, sizeof copy);
        if (wrong) {
            fail_msg("%s: %.*s", wrong, (int)sizeof copy, (const char *)copy);
        }
    }
}

static const struct CMUnitTest tests_ground_json[] = {
    cmocka_unit_test(json_tokens),           cmocka_unit_test(json_refused), cmocka_unit_test(json_strings),
    cmocka_unit_test(json_integers),         cmocka_unit_test(json_doubles), cmocka_unit_test(json_depth),
    cmocka_unit_test(json_levels_are_apart), cmocka_unit_test(json_cut),     cmocka_unit_test(json_skips),
    cmocka_unit_test(json_skip_refuses),     cmocka_unit_test(json_large),   cmocka_unit_test(json_mutations),
};
