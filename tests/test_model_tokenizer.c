/* Tests of 02.10 to 02.14, the tokenizer: the goldens of llama.cpp, round trips, oracles for
 * each step (classes, splits, merges, special tokens), hostile vocabularies. */

#include "../fuzz/fuzz_tokenizer.c"

#include <dirent.h>

/* Time limits are for optimised code without sanitizers; others get more. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TOK_SLOW 30
#endif
#endif
#if !defined(TOK_SLOW) && (defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__))
#define TOK_SLOW 30
#elif !defined(TOK_SLOW) && !defined(__OPTIMIZE__)
#define TOK_SLOW 10
#elif !defined(TOK_SLOW)
#define TOK_SLOW 1
#endif

static const char *const tok_tiny_names[4] = {"gpt2", "smollm", "qwen2", "llama-bpe"};

/* -- files ------------------------------------------------------------------------- */

static void tok_open(dendp_tokenizer *t, const char *path) {
    dend_model_desc desc;
    dendp_gguf g;
    dend_error err;
    memset(&desc, 0, sizeof desc);
    memset(&err, 0, sizeof err);
    desc.path = path;
    ASSERT_STATUS(DEND_OK, dendp_allocator_resolve(&desc.allocator, &err));
    ASSERT_STATUS(DEND_OK, dendp_gguf_open(&g, &desc, &err));
    if (dendp_tokenizer_load(t, &g, &desc.allocator, &err) != DEND_OK) {
        fail_msg("%s: %s at %lu", path, err.msg, (unsigned long)err.where);
    }
    dendp_gguf_close(&g);
}

static void tok_open_tiny(dendp_tokenizer *t, uint32_t i) {
    char path[64];
    snprintf(path, sizeof path, "tests/golden/vocab_%s.gguf", tok_tiny_names[i]);
    tok_open(t, path);
}

/* The strings of the goldens. */
typedef struct tok_strings {
    unsigned char *file;
    const unsigned char *s[4096];
    size_t len[4096];
    uint32_t n;
} tok_strings;

static void tok_strings_open(tok_strings *all) {
    size_t size, at = 8;
    uint32_t i;
    all->file = test_read_file("tests/golden/tok_strings.bin", &size);
    assert_non_null(all->file);
    assert_memory_equal(all->file, "DTS1", 4);
    all->n = dendp_load32(all->file + 4);
    assert_in_range(all->n, 1, 4096);
    for (i = 0; i < all->n; i++) {
        all->len[i] = dendp_load32(all->file + at);
        all->s[i] = all->file + at + 4;
        at += 4 + all->len[i];
    }
    assert_int_equal(at, size);
}

/* Tokens in a buffer that the next call overwrites. */
static size_t tok_encode(const dendp_tokenizer *t, const void *text, size_t n, uint32_t flags,
                         const int32_t **out) {
    static int32_t tokens[1 << 17];
    size_t n_tokens = 0;
    ASSERT_STATUS(DEND_OK, dendp_tokenizer_encode(t, (const char *)text, n, flags, tokens,
                                                  sizeof tokens / sizeof tokens[0], &n_tokens));
    *out = tokens;
    return n_tokens;
}

/* -- goldens ------------------------------------------------------------------------- */

static size_t tok_put_utf8(unsigned char *out, uint32_t c) {
    if (c < 0x80) {
        out[0] = (unsigned char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (unsigned char)(0xc0 | c >> 6);
        out[1] = (unsigned char)(0x80 | (c & 63));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (unsigned char)(0xe0 | c >> 12);
        out[1] = (unsigned char)(0x80 | (c >> 6 & 63));
        out[2] = (unsigned char)(0x80 | (c & 63));
        return 3;
    }
    out[0] = (unsigned char)(0xf0 | c >> 18);
    out[1] = (unsigned char)(0x80 | (c >> 12 & 63));
    out[2] = (unsigned char)(0x80 | (c >> 6 & 63));
    out[3] = (unsigned char)(0x80 | (c & 63));
    return 4;
}

/* What llama.cpp makes of invalid UTF-8 before it splits: its decoder takes
 * overlong forms at their word and turns every other byte that it cannot use
 * into U+FFFD. We keep such bytes, so the goldens of strings with invalid
 * UTF-8 are compared on the text that llama.cpp really split. Writes at most
 * 3n bytes. */
static size_t tok_as_reference(const unsigned char *s, size_t n, unsigned char *out) {
    size_t at = 0, made = 0;
    while (at < n) {
        uint32_t b = s[at],
                 more = b < 0x80   ? 0
                        : b < 0xc0 ? 9
                        : b < 0xe0 ? 1
                        : b < 0xf0 ? 2
                        : b < 0xf8 ? 3
                                   : 9,
                 i, c;
        c = more == 0 ? b : b & (0x3fu >> more);
        for (i = 1; i <= more && more < 9 && at + i < n && (s[at + i] & 0xc0) == 0x80; i++) {
            c = c << 6 | (s[at + i] & 63u);
        }
        if (more < 9 && i == more + 1) {
            assert_true(c <= 0x10ffff); /* the goldens have no answer beyond */
            made += tok_put_utf8(out + made, c);
            at += more + 1;
        } else {
            made += tok_put_utf8(out + made, 0xfffd);
            at++;
        }
    }
    return made;
}

static uint32_t tok_compare_golden(const dendp_tokenizer *t, const tok_strings *all, uint32_t i,
                                   uint32_t flags, const unsigned char *golden, uint32_t n_golden,
                                   const char *name) {
    static unsigned char text[3 * 65536];
    const int32_t *got;
    size_t n_text = tok_as_reference(all->s[i], all->len[i], text), n, k;
    n = tok_encode(t, text, n_text, flags, &got);
    for (k = 0; k < n && k < n_golden; k++) {
        if (got[k] != (int32_t)dendp_load32(golden + 4 * k)) break;
    }
    if (k == n && n == n_golden) return 0;
    print_error("%s, string %u, flags %u: token %lu is not that of the golden (%lu tokens, expected %u)\n",
                name, i, flags, (unsigned long)k, (unsigned long)n, n_golden);
    return 1;
}

/* Every string, token for token, plain and with special tokens. No waivers. */
static void tok_check_golden(const char *vocab, const char *golden) {
    dendp_tokenizer t;
    static tok_strings all;
    size_t size, at = 8;
    uint32_t i, wrong = 0, absent = 0, with_special = 0;
    unsigned char *file = test_read_file(golden, &size);
    assert_non_null(file);
    tok_strings_open(&all);
    tok_open(&t, vocab);
    assert_memory_equal(file, "DTG1", 4);
    assert_int_equal(dendp_load32(file + 4), all.n);
    for (i = 0; i < all.n; i++) {
        uint32_t n_plain = dendp_load32(file + at), n_special;
        const unsigned char *plain = file + at + 4;
        at += 4;
        if (n_plain == 0xffffffffu) { /* code points above U+10FFFF, at which llama.cpp throws */
            absent++;
            continue;
        }
        at += 4 * (size_t)n_plain;
        wrong += tok_compare_golden(&t, &all, i, 0, plain, n_plain, golden);
        n_special = dendp_load32(file + at);
        at += 4;
        if (n_special == 0xffffffffu) { /* as plain */
            wrong += tok_compare_golden(&t, &all, i, DEND_TOKENIZE_SPECIAL, plain, n_plain, golden);
        } else {
            with_special++;
            wrong += tok_compare_golden(&t, &all, i, DEND_TOKENIZE_SPECIAL, file + at, n_special, golden);
            at += 4 * (size_t)n_special;
        }
    }
    assert_int_equal(at, size);
    assert_int_equal(wrong, 0);
    assert_in_range(absent, 0, 20);
    assert_true(with_special > 10);
    dendp_tokenizer_free(&t);
    free(all.file);
    free(file);
}

static void tok_golden_tiny(void **state) {
    uint32_t i;
    (void)state;
    for (i = 0; i < 4; i++) {
        char vocab[64], golden[64];
        snprintf(vocab, sizeof vocab, "tests/golden/vocab_%s.gguf", tok_tiny_names[i]);
        snprintf(golden, sizeof golden, "tests/golden/tok_tiny_%s.bin", tok_tiny_names[i]);
        tok_check_golden(vocab, golden);
    }
}

static void tok_golden_smollm(void **state) {
    (void)state;
    test_need_file("models/SmolLM2-135M-Instruct.Q4_1.gguf", "make models");
    tok_check_golden("models/SmolLM2-135M-Instruct.Q4_1.gguf", "tests/golden/tok_real_smollm.bin");
}

static void tok_golden_qwen2(void **state) {
    (void)state;
    test_need_file("models/Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf", "make models");
    tok_check_golden("models/Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf", "tests/golden/tok_real_qwen2.bin");
}

/* -- round trips ----------------------------------------------------------------------- */

static void tok_round_trip(const dendp_tokenizer *t, const void *s, size_t n) {
    uint32_t flags;
    for (flags = 0; flags < 4; flags++) {
        const char *wrong = fuzz_tok_round_trip(t, (const unsigned char *)s, n, flags);
        if (wrong)
            fail_msg("%s, flags %u, text of %lu bytes: %.40s", wrong, flags, (unsigned long)n,
                     (const char *)s);
    }
}

static void tok_round_trips(void **state) {
    static tok_strings all;
    test_rng rng = {7};
    uint32_t v, i, k;
    (void)state;
    tok_strings_open(&all);
    for (v = 0; v < 4; v++) {
        dendp_tokenizer t;
        uint32_t missing = 0;
        tok_open_tiny(&t, v);
        for (i = 0; i < 256; i++) missing += t.byte_ids[i] == DENDP_TOK_NONE;
        assert_int_equal(missing, v == 1 ? 21 : 0); /* for the others the round trip is exact */
        for (i = 0; i < all.n; i++) tok_round_trip(&t, all.s[i], all.len[i]);
        for (i = 0; i < 2000; i++) {
            unsigned char s[300];
            uint32_t n = i % 20 == 0 ? test_below(&rng, 300) : test_below(&rng, 30),
                     span = 1 + test_below(&rng, 256);
            for (k = 0; k < n; k++) {
                s[k] = (unsigned char)(i % 2 ? test_below(&rng, 256) : 0x20 + test_below(&rng, span) % 0xe0);
            }
            tok_round_trip(&t, s, n);
        }
        dendp_tokenizer_free(&t);
    }
    free(all.file);
}

/* -- the contract of encode --------------------------------------------------------------- */

static void tok_buffers(void **state) {
    static const char text[] = "The quick brown fox <|im_end|> jumps over 1234 lazy dogs\n\n  don't";
    dendp_tokenizer t;
    const int32_t *whole;
    int32_t copy[128], out[130];
    size_t n, cap, k, n_out = 99;
    (void)state;
    tok_open_tiny(&t, 3);
    n = tok_encode(&t, text, sizeof text - 1, 3, &whole);
    assert_in_range(n, 10, 100);
    memcpy(copy, whole, n * sizeof *copy);
    ASSERT_STATUS(DEND_ERR_BUFFER, dendp_tokenizer_encode(&t, text, sizeof text - 1, 3, NULL, 0, &n_out));
    assert_int_equal(n_out, n);
    for (cap = 0; cap <= n + 1; cap++) {
        memset(out, 0x5a, sizeof out);
        n_out = 99;
        ASSERT_STATUS(cap < n ? DEND_ERR_BUFFER : DEND_OK,
                      dendp_tokenizer_encode(&t, text, sizeof text - 1, 3, out, cap, &n_out));
        assert_int_equal(n_out, n);
        for (k = cap < n ? cap : n; k < 130; k++) assert_int_equal(out[k], 0x5a5a5a5a);
        if (cap >= n) assert_memory_equal(out, copy, n * sizeof *copy);
    }
    /* nothing to do */
    ASSERT_STATUS(DEND_OK, dendp_tokenizer_encode(&t, NULL, 0, 0, NULL, 0, &n_out));
    assert_int_equal(n_out, 0);
    ASSERT_STATUS(DEND_ERR_BUFFER, dendp_tokenizer_encode(&t, "", 0, DEND_TOKENIZE_ADD_BOS, NULL, 0, &n_out));
    assert_int_equal(n_out, 1);
    /* nonsense */
    n_out = 99;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dendp_tokenizer_encode(&t, NULL, 1, 0, out, 1, &n_out));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dendp_tokenizer_encode(&t, "a", 1, 0, NULL, 1, &n_out));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dendp_tokenizer_encode(&t, "a", 1, 8, out, 1, &n_out));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dendp_tokenizer_encode(&t, "a", 1, 0, out, 1, NULL));
    assert_int_equal(n_out, 99);
    dendp_tokenizer_free(&t);
}

/* A megabyte of one character, and of other monotony, within a second. */
static void tok_long_words(void **state) {
    static const char *const units[] = {
        " ", "a", "\n",          "7",  "!",   "ab",  "\xc3\xa9", "\xe4\xbd\xa0", "\xff", " \n",
        "'", "<", "<|im_start|", "\t", "\t ", "the", "\xc2\xa0", "\xcc\x81",     "\x04"};
    static char text[1 << 20];
    static int32_t out[1 << 20];
    uint32_t v, u;
    (void)state;
    for (v = 0; v < 4; v++) {
        dendp_tokenizer t;
        tok_open_tiny(&t, v);
        for (u = 0; u < sizeof units / sizeof units[0]; u++) {
            size_t k, n = strlen(units[u]), n_out = 0;
            clock_t start; /* the process's own time: other load on the machine does not count */
            double seconds;
            for (k = 0; k < sizeof text; k++) text[k] = units[u][k % n];
            start = clock();
            ASSERT_STATUS(DEND_OK, dendp_tokenizer_encode(&t, text, sizeof text, 1, out,
                                                          sizeof out / sizeof out[0], &n_out));
            seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
            if (seconds > 1.0 * TOK_SLOW)
                fail_msg("%s: 1 MB of unit %u took %.1f s", tok_tiny_names[v], u, seconds);
        }
        dendp_tokenizer_free(&t);
    }
}

/* -- character classes ---------------------------------------------------------------------- */

static void tok_classes(void **state) {
    uint32_t cp, i, counts[4] = {0, 0, 0, 0};
    unsigned char s[8];
    size_t len;
    (void)state;
    for (cp = 0; cp <= 0x10ffff; cp++) {
        size_t n = tok_put_utf8(s, cp);
        uint32_t c = dendp_uni_next(s, n, &len);
        assert_int_equal(len, n);
        assert_int_equal(c, dendp_uni_class(cp));
        counts[c]++;
        for (i = 1; n > 1 && i < n; i++) { /* cut short, its first byte stands alone */
            assert_int_equal(dendp_uni_next(s, i, &len), DENDP_UNI_OTHER);
            assert_int_equal(len, 1);
        }
    }
    assert_int_equal(counts[DENDP_UNI_LETTER], 136726); /* Unicode 15.1 */
    assert_int_equal(counts[DENDP_UNI_NUMBER], 1831);
    assert_int_equal(counts[DENDP_UNI_SPACE], 25);
    assert_int_equal(dendp_uni_class(0x85), DENDP_UNI_SPACE);
    assert_int_equal(dendp_uni_class(0xa0), DENDP_UNI_SPACE);
    assert_int_equal(dendp_uni_class(0x3000), DENDP_UNI_SPACE);
    assert_int_equal(dendp_uni_class(0x200b), DENDP_UNI_OTHER);
    assert_int_equal(dendp_uni_class(0xbd), DENDP_UNI_NUMBER);
    assert_int_equal(dendp_uni_class(0x2163), DENDP_UNI_NUMBER);
    assert_int_equal(dendp_uni_class(0x301), DENDP_UNI_OTHER);
    assert_int_equal(dendp_uni_class(0x2ebf0), DENDP_UNI_LETTER); /* new in 15.1 */
    assert_int_equal(dendp_uni_class(0x10ffff), DENDP_UNI_OTHER);
    assert_int_equal(dendp_uni_next(s, 0, &len), DENDP_UNI_END);
    assert_int_equal(len, 0);
}

/* Everything that is no code point is one byte long. */
static void tok_invalid_utf8(void **state) {
    static const char *const bad[] = {"\x80\x80",         "\xc0\xaf",  "\xc1\xbf",         "\xc3(",
                                      "\xe0\x9f\xbf",     "\xe2\x82(", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80", "\xff\xff"};
    size_t len;
    uint32_t i;
    (void)state;
    for (i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(dendp_uni_next((const unsigned char *)bad[i], strlen(bad[i]), &len),
                         DENDP_UNI_OTHER);
        assert_int_equal(len, 1);
    }
    assert_int_equal(dendp_uni_next((const unsigned char *)"\xed\xa0\x80", 3, &len),
                     DENDP_UNI_OTHER); /* surrogate */
    assert_int_equal(len, 3);
}

/* -- splits against a matcher of regular expressions --------------------------------------------- */

/* One item of an alternative: a set of characters, greedy from min to max of
 * them. ' ' matches a space, 'e' a line end, 'c' a contraction, '!' nothing,
 * but only at the end or before white space. */
typedef struct tok_item {
    char set;
    uint32_t min, max;
} tok_item;

typedef struct tok_char {
    size_t at, len;
    uint32_t class_, code; /* code: of one-byte characters, else 256 */
} tok_char;

static bool tok_in_set(char set, const tok_char *c) {
    bool eol = c->code == '\r' || c->code == '\n';
    switch (set) {
    case ' ':
        return c->code == ' ';
    case 'e':
        return eol;
    case 's':
        return c->class_ == DENDP_UNI_SPACE;
    case 'L':
        return c->class_ == DENDP_UNI_LETTER;
    case 'N':
        return c->class_ == DENDP_UNI_NUMBER;
    case 'o':
        return c->class_ == DENDP_UNI_OTHER;
    default: /* 'p': [^\r\n\p{L}\p{N}] */
        return !eol && c->class_ != DENDP_UNI_LETTER && c->class_ != DENDP_UNI_NUMBER;
    }
}

/* Characters that items[n_items] match from c[0] on, or -1: greedy with backtracking. */
static int tok_match(const tok_item *items, uint32_t n_items, const tok_char *c, uint32_t n) {
    uint32_t most = 0, k;
    if (n_items == 0) return 0;
    if (items->set == '!') return n == 0 || c->class_ == DENDP_UNI_SPACE ? 0 : -1;
    while (most < items->max && most < n && tok_in_set(items->set, &c[most])) most++;
    for (k = most + 1; k-- > items->min;) {
        int rest = tok_match(items + 1, n_items - 1, c + k, n - k);
        if (rest >= 0) return (int)k + rest;
    }
    return -1;
}

static int tok_match_contraction(const tok_char *c, uint32_t n, bool any_case) {
    static const char *const forms[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    uint32_t f, k;
    if (n == 0 || c->code != '\'') return -1;
    for (f = 0; f < 7; f++) {
        for (k = 0; forms[f][k]; k++) {
            uint32_t want = (unsigned char)forms[f][k];
            if (k + 1 >= n || !(c[k + 1].code == want || (any_case && c[k + 1].code == want - 32))) break;
        }
        if (!forms[f][k]) return (int)k + 1;
    }
    return -1;
}

/* Length in characters of the first word of c[n]: the first alternative that matches. */
static uint32_t tok_oracle(dendp_split_kind kind, const tok_char *c, uint32_t n) {
    static const tok_item gpt2[5][3] = {{{' ', 0, 1}, {'L', 1, ~0u}, {0, 0, 0}},
                                        {{' ', 0, 1}, {'N', 1, ~0u}, {0, 0, 0}},
                                        {{' ', 0, 1}, {'o', 1, ~0u}, {0, 0, 0}},
                                        {{'s', 1, ~0u}, {'!', 0, 0}, {0, 0, 0}},
                                        {{'s', 1, ~0u}, {0, 0, 0}, {0, 0, 0}}};
    static const tok_item llama3[6][3] = {
        {{'p', 0, 1}, {'L', 1, ~0u}, {0, 0, 0}},     {{'N', 1, 3}, {0, 0, 0}, {0, 0, 0}},
        {{' ', 0, 1}, {'o', 1, ~0u}, {'e', 0, ~0u}}, {{'s', 0, ~0u}, {'e', 1, ~0u}, {0, 0, 0}},
        {{'s', 1, ~0u}, {'!', 0, 0}, {0, 0, 0}},     {{'s', 1, ~0u}, {0, 0, 0}, {0, 0, 0}}};
    bool old = kind == DENDP_SPLIT_GPT2 || kind == DENDP_SPLIT_SMOLLM;
    int len;
    uint32_t i;
    if (kind == DENDP_SPLIT_SMOLLM) { /* first the numbers are cut out */
        if (c->class_ == DENDP_UNI_NUMBER) return 1;
        for (i = 0; i < n && c[i].class_ != DENDP_UNI_NUMBER; i++) {
        }
        n = i;
    }
    len = tok_match_contraction(c, n, !old);
    for (i = 0; len < 0 && i < (old ? 5u : 6u); i++) {
        const tok_item *items = old ? gpt2[i] : llama3[i];
        tok_item copy[3];
        uint32_t n_items = 0;
        for (; n_items < 3 && items[n_items].set; n_items++) copy[n_items] = items[n_items];
        if (kind == DENDP_SPLIT_QWEN2 && copy[0].set == 'N') copy[0].max = 1;
        len = tok_match(copy, n_items, c, n);
    }
    assert_true(len > 0);
    return (uint32_t)len;
}

static void tok_check_split(const unsigned char *s, size_t n) {
    static tok_char c[65536];
    uint32_t n_chars = 0, kind, i;
    size_t at;
    for (at = 0; at < n && n_chars < 65536; n_chars++) {
        c[n_chars].at = at;
        c[n_chars].class_ = dendp_uni_next(s + at, n - at, &c[n_chars].len);
        c[n_chars].code = c[n_chars].len == 1 ? s[at] : 256;
        at += c[n_chars].len;
    }
    for (kind = 0; kind < 4; kind++) {
        for (at = 0, i = 0; i < n_chars;) {
            uint32_t k = tok_oracle((dendp_split_kind)kind, c + i, n_chars - i);
            size_t want = (i + k < n_chars ? c[i + k].at : n) - at;
            size_t got = dendp_split((dendp_split_kind)kind, s + at, n - at);
            if (got != want) {
                fail_msg("split %u of '%.*s' at %lu: %lu bytes, expected %lu", kind, (int)n, (const char *)s,
                         (unsigned long)at, (unsigned long)got, (unsigned long)want);
            }
            at += got;
            i += k;
        }
    }
}

static void tok_splits(void **state) {
    /* whatever the patterns tell apart */
    static const char *const parts[] = {"a",
                                        "S",
                                        "'",
                                        "s",
                                        "re",
                                        "LL",
                                        " ",
                                        " ",
                                        "\n",
                                        "\r",
                                        "\t",
                                        "1",
                                        "2",
                                        "!",
                                        ".",
                                        "\xff",
                                        "\xc3",
                                        "\xc3\xa9",
                                        "\xce\xb2",
                                        "\xc2\xa0",
                                        "\xe3\x80\x80",
                                        "\xcc\x81",
                                        "\xd9\xa3",
                                        "\xe2\x85\xa3",
                                        "\xed\xa0\x80",
                                        "D",
                                        "ve"};
    static tok_strings all;
    test_rng rng = {99};
    uint32_t i, k;
    (void)state;
    tok_strings_open(&all);
    for (i = 0; i + 1 < all.n; i++)
        tok_check_split(all.s[i], all.len[i]); /* the last is long: the matcher recurses */
    for (i = 0; i < 40000; i++) {
        unsigned char s[64];
        size_t n = 0;
        uint32_t n_parts = 1 + test_below(&rng, 12);
        for (k = 0; k < n_parts; k++) {
            const char *part = parts[test_below(&rng, (uint32_t)(sizeof parts / sizeof parts[0]))];
            memcpy(s + n, part, strlen(part));
            n += strlen(part);
        }
        tok_check_split(s, n);
    }
    free(all.file);
}

/* -- merges against the definition ------------------------------------------------------------------ */

/* Merges the lowest-ranked pair, the leftmost of equals, until there is none. */
static uint32_t tok_merge_slowly(const dendp_tokenizer *t, const unsigned char *s, uint32_t n,
                                 uint32_t *ids) {
    uint32_t i, k = n;
    for (i = 0; i < n; i++) ids[i] = t->byte_ids[s[i]];
    for (;;) {
        uint32_t rank = DENDP_TOK_NONE, at = 0;
        for (i = 0; i + 1 < k; i++) {
            const dendp_merge *m = dendp_tok_merge(t, ids[i], ids[i + 1]);
            if (m->rank < rank) {
                rank = m->rank;
                at = i;
            }
        }
        if (rank == DENDP_TOK_NONE) break;
        ids[at] = dendp_tok_merge(t, ids[at], ids[at + 1])->made;
        memmove(ids + at + 1, ids + at + 2, (k - at - 2) * sizeof *ids);
        k--;
    }
    for (i = n = 0; i < k; i++) {
        if (ids[i] != DENDP_TOK_NONE) ids[n++] = ids[i];
    }
    return n;
}

static void tok_merges(void **state) {
    test_rng rng = {5};
    uint32_t v, i, k;
    (void)state;
    for (v = 0; v < 4; v++) {
        dendp_tokenizer t;
        uint32_t n_long = 0;
        tok_open_tiny(&t, v);
        t.whole_words = false;
        for (i = 0; i < 3000; i++) {
            unsigned char s[700];
            uint32_t ids[700];
            int32_t out[700];
            uint32_t n = 1 + test_below(&rng, i % 10 == 0   ? 700
                                              : i % 10 == 1 ? 60
                                                            : 30),
                     letters = 1 + test_below(&rng, 12), want;
            dendp_tok_run run;
            for (k = 0; k < n;
                 k++) { /* English letters and spaces, common ones, so that pairs are known; and rubbish */
                s[k] = (unsigned char)"e tao inshrd"[test_below(&rng, letters)];
                if (letters == 12) s[k] = (unsigned char)test_below(&rng, 256);
            }
            memset(&run, 0, sizeof run);
            run.t = &t;
            run.out = out;
            run.cap = 700;
            ASSERT_STATUS(DEND_OK, dendp_tok_encode_word(&run, s, n));
            dendp_free(&t.allocator, run.scratch[0], run.scratch_bytes[0]);
            want = tok_merge_slowly(&t, s, n, ids);
            n_long += n > DENDP_TOK_MEDIUM;
            assert_int_equal(run.n, want);
            if (n <= 700) assert_memory_equal(out, ids, want * sizeof *out);
        }
        assert_true(n_long > 100);
        dendp_tokenizer_free(&t);
    }
}

/* -- vocabularies made here -------------------------------------------------------------------------- */

typedef struct tok_file {
    unsigned char data[1 << 17];
    size_t n;
    size_t value;     /* offset of the last key's value */
    size_t elem[256]; /* of the elements of the last string array */
} tok_file;

static void tok_put(tok_file *f, const void *p, size_t n) {
    assert_true(f->n + n <= sizeof f->data);
    memcpy(f->data + f->n, p, n);
    f->n += n;
}

static void tok_put_int(tok_file *f, uint64_t v, uint32_t n_bytes) {
    while (n_bytes-- > 0) {
        unsigned char b = (unsigned char)v;
        tok_put(f, &b, 1);
        v >>= 8;
    }
}

static void tok_put_string(tok_file *f, const char *s, size_t n) {
    tok_put_int(f, n, 8);
    tok_put(f, s, n);
}

/* Begins a file; keys are counted by tok_key. */
static void tok_begin(tok_file *f) {
    f->n = 0;
    tok_put(f, "GGUF", 4);
    tok_put_int(f, 3, 4);
    tok_put_int(f, 0, 8);
    tok_put_int(f, 0, 8);
}

static void tok_key(tok_file *f, const char *key, uint32_t type) {
    f->data[16]++;
    tok_put_string(f, key, strlen(key));
    tok_put_int(f, type, 4);
    f->value = f->n;
}

static void tok_key_string(tok_file *f, const char *key, const char *s) {
    tok_key(f, key, DENDP_GGUF_STRING);
    tok_put_string(f, s, strlen(s));
}

/* list: strings divided by '|'; a leading '@' puts all 256 bytes of the alphabet first. */
static void tok_key_strings(tok_file *f, const char *key, const char *list) {
    uint32_t count = 0, all = *list == '@' ? 256 : 0, b;
    size_t at;
    tok_key(f, key, DENDP_GGUF_ARRAY);
    tok_put_int(f, DENDP_GGUF_STRING, 4);
    at = f->n;
    tok_put_int(f, 0, 8);
    for (b = 0; b < all; b++) {
        unsigned char text[4];
        size_t n = tok_put_utf8(text, dendp_alphabet_of(b));
        tok_put_string(f, (const char *)text, n);
        count++;
    }
    if (all) list++;
    while (*list) {
        const char *end = strchr(list, '|');
        size_t n = end ? (size_t)(end - list) : strlen(list);
        assert_true(count - all < 256);
        f->elem[count - all] = f->n;
        tok_put_string(f, list, n);
        count++;
        list += n + (end ? 1 : 0);
    }
    b = (uint32_t)f->n;
    f->n = at;
    tok_put_int(f, count, 8);
    f->n = b;
}

/* types: one digit each; a leading '@' puts 256 ones first. */
static void tok_key_types(tok_file *f, const char *types) {
    uint32_t all = *types == '@' ? 256 : 0, i;
    types += all ? 1 : 0;
    tok_key(f, "tokenizer.ggml.token_type", DENDP_GGUF_ARRAY);
    tok_put_int(f, DENDP_GGUF_I32, 4);
    tok_put_int(f, all + strlen(types), 8);
    for (i = 0; i < all; i++) tok_put_int(f, 1, 4);
    for (; *types; types++) tok_put_int(f, (uint64_t)(*types - '0'), 4);
}

static void tok_key_id(tok_file *f, const char *key, uint32_t id) {
    tok_key(f, key, DENDP_GGUF_U32);
    tok_put_int(f, id, 4);
}

static dend_status tok_load(dendp_tokenizer *t, const tok_file *f, const dend_allocator *a, dend_error *err) {
    dend_model_desc desc;
    dendp_gguf g;
    dend_status status;
    unsigned char *exact = (unsigned char *)malloc(f->n); /* so that a sanitizer sees the file's end */
    memset(&desc, 0, sizeof desc);
    memset(err, 0, sizeof *err);
    memcpy(exact, f->data, f->n);
    desc.data = exact;
    desc.data_size = f->n;
    (void)dendp_allocator_resolve(&desc.allocator, NULL);
    ASSERT_STATUS(DEND_OK, dendp_gguf_open(&g, &desc, err));
    status = dendp_tokenizer_load(t, &g, a ? a : &desc.allocator, err);
    dendp_gguf_close(&g);
    free(exact);
    return status;
}

/* A vocabulary from its lists, with the given split. */
static void tok_make(tok_file *f, const char *pre, const char *tokens, const char *types,
                     const char *merges) {
    tok_begin(f);
    tok_key_string(f, "tokenizer.ggml.model", "gpt2");
    tok_key_string(f, "tokenizer.ggml.pre", pre);
    tok_key_strings(f, "tokenizer.ggml.tokens", tokens);
    if (types) tok_key_types(f, types);
    tok_key_strings(f, "tokenizer.ggml.merges", merges);
}

/* Loading must fail so, at this offset. */
static void tok_refused(const tok_file *f, dend_status status, size_t where) {
    dendp_tokenizer t;
    dend_error err;
    test_heap heap;
    dend_allocator a = test_heap_allocator(&heap);
    dend_status got = tok_load(&t, f, &a, &err);
    if (got != status || err.status != status || !err.msg || err.where != where) {
        fail_msg("expected %s at %lu, got %s (%s) at %lu", dend_status_name(status), (unsigned long)where,
                 dend_status_name(got), err.msg ? err.msg : "", (unsigned long)err.where);
    }
    assert_int_equal(heap.n_allocs, heap.n_frees);
    assert_null(t.block);
    assert_int_equal(t.n_vocab, 0);
}

/* Encodes text and compares with ids written in decimal, divided by spaces. */
static void tok_expect(const dendp_tokenizer *t, const char *text, uint32_t flags, const char *ids) {
    const int32_t *got;
    size_t n = tok_encode(t, text, strlen(text), flags, &got), i, at = 0;
    char line[512];
    line[0] = 0;
    for (i = 0; i < n && at < 480; i++) at += (size_t)snprintf(line + at, 16, i ? " %d" : "%d", got[i]);
    assert_string_equal(line, ids);
    tok_round_trip(t, text, strlen(text));
}

#define TOK_E "tokenizer.ggml."

static void tok_refusals(void **state) {
    static tok_file f;
    (void)state;
    tok_begin(&f);
    tok_key_string(&f, TOK_E "model", "t5");
    tok_refused(&f, DEND_ERR_UNSUPPORTED, f.value);
    tok_begin(&f);
    tok_key_string(&f, TOK_E "model", "bert");
    tok_refused(&f, DEND_ERR_UNSUPPORTED, f.value);
    tok_begin(&f);
    tok_key_id(&f, TOK_E "model", 1);
    tok_refused(&f, DEND_ERR_FORMAT, f.value);
    tok_begin(&f);
    tok_key_string(&f, TOK_E "model", "gpt2"); /* no split */
    tok_refused(&f, DEND_ERR_UNSUPPORTED, f.value);
    tok_key_id(&f, TOK_E "pre", 1);
    tok_refused(&f, DEND_ERR_FORMAT, f.value);
    tok_begin(&f);
    tok_key_string(&f, TOK_E "model", "gpt2");
    tok_key_string(&f, TOK_E "pre", "tekken");
    tok_refused(&f, DEND_ERR_UNSUPPORTED, f.value);
    tok_begin(&f);
    tok_key_string(&f, TOK_E "model", "gpt2");
    tok_key_string(&f, TOK_E "pre", "gpt-2");
    tok_refused(&f, DEND_ERR_FORMAT, 24 + 8 + 20 + 4); /* no tokens: where the model is named */
    tok_key_strings(&f, TOK_E "tokens", "a|b");
    tok_refused(&f, DEND_ERR_FORMAT, 24 + 8 + 20 + 4); /* no merges */
    tok_key_id(&f, TOK_E "merges", 1);
    tok_refused(&f, DEND_ERR_FORMAT, f.value);
    tok_begin(&f);
    tok_key_string(&f, TOK_E "model", "gpt2");
    tok_key_string(&f, TOK_E "pre", "gpt-2");
    tok_key_strings(&f, TOK_E "merges", "");
    tok_key_id(&f, TOK_E "tokens", 1);
    tok_refused(&f, DEND_ERR_FORMAT, f.value);
    tok_begin(&f);
    tok_key_string(&f, TOK_E "model", "gpt2");
    tok_key_string(&f, TOK_E "pre", "gpt-2");
    tok_key_strings(&f, TOK_E "merges", "");
    tok_key_strings(&f, TOK_E "tokens", "");
    tok_refused(&f, DEND_ERR_FORMAT, f.value);
    /* types */
    tok_make(&f, "gpt-2", "a|b", NULL, "");
    tok_key_types(&f, "111");
    tok_refused(&f, DEND_ERR_FORMAT, f.value);
    tok_make(&f, "gpt-2", "a|b", NULL, "");
    tok_key_types(&f, "1");
    tok_refused(&f, DEND_ERR_FORMAT, f.value);
    tok_make(&f, "gpt-2", "a|b", NULL, "");
    tok_key_types(&f, "17");
    tok_refused(&f, DEND_ERR_FORMAT, f.value + 12 + 4);
    tok_make(&f, "gpt-2", "a|b", NULL, "");
    tok_key_strings(&f, TOK_E "token_type", "1|1");
    tok_refused(&f, DEND_ERR_FORMAT, f.value);
    /* twins: the second is at fault */
    tok_begin(&f);
    tok_key_string(&f, TOK_E "model", "gpt2");
    tok_key_string(&f, TOK_E "pre", "gpt-2");
    tok_key_strings(&f, TOK_E "merges", "");
    tok_key_strings(&f, TOK_E "tokens", "a|b|ab|\xc4\xa0|c|ab|d");
    tok_refused(&f, DEND_ERR_FORMAT, f.elem[5]);
    tok_key_types(&f, "1113131"); /* of whatever kinds */
    tok_refused(&f, DEND_ERR_FORMAT, f.elem[5]);
    /* merges */
    tok_make(&f, "gpt-2", "a|b|ab", NULL, "a b|ab");
    tok_refused(&f, DEND_ERR_FORMAT, f.elem[1]);
    tok_make(&f, "gpt-2", "a|b|ab", NULL, "a |a b");
    tok_refused(&f, DEND_ERR_FORMAT, f.elem[0]);
    tok_make(&f, "gpt-2", "a|b|ab", NULL, " a|a b");
    tok_refused(&f, DEND_ERR_FORMAT, f.elem[0]);
    tok_make(&f, "gpt-2", "a|b|ab", NULL, " |a b");
    tok_refused(&f, DEND_ERR_FORMAT, f.elem[0]);
    tok_make(&f, "gpt-2", "a|b|ab", NULL, "a b||a b");
    tok_refused(&f, DEND_ERR_FORMAT, f.elem[1]);
    tok_make(&f, "gpt-2", "a|b|ab", NULL, "a b|x b");
    tok_refused(&f, DEND_ERR_FORMAT, f.elem[1]);
    tok_make(&f, "gpt-2", "a|b|ab", NULL, "a b|a x");
    tok_refused(&f, DEND_ERR_FORMAT, f.elem[1]);
    tok_make(&f, "gpt-2", "a|b|ab", NULL, "a b|b a");
    tok_refused(&f, DEND_ERR_FORMAT, f.elem[1]);
    tok_make(&f, "gpt-2", "a|b|ab", NULL, "a b|a b b");
    tok_refused(&f, DEND_ERR_FORMAT, f.elem[1]);
    tok_make(&f, "gpt-2", "a|b|ab|\xc4\xa0", NULL, "\xc4 \xa0");
    tok_refused(&f, DEND_ERR_FORMAT, f.elem[0]);
    /* ids */
    tok_make(&f, "gpt-2", "a|b|ab", NULL, "a b");
    tok_key_id(&f, TOK_E "eos_token_id", 3);
    tok_refused(&f, DEND_ERR_FORMAT, f.value);
    tok_make(&f, "gpt-2", "a|b|ab", NULL, "a b");
    tok_key(&f, TOK_E "bos_token_id", DENDP_GGUF_I64);
    tok_put_int(&f, (uint64_t)-2, 8);
    tok_refused(&f, DEND_ERR_FORMAT, f.value);
    tok_make(&f, "gpt-2", "a|b|ab", NULL, "a b");
    tok_key_string(&f, TOK_E "eot_token_id", "ab");
    tok_refused(&f, DEND_ERR_FORMAT, f.value);
    tok_make(&f, "gpt-2", "a|b|ab", NULL, "a b");
    tok_key(&f, TOK_E "add_bos_token", DENDP_GGUF_BOOL);
    tok_put_int(&f, 1, 1);
    tok_refused(&f, DEND_ERR_FORMAT, f.value);
    tok_make(&f, "gpt-2", "a|b|ab", NULL, "a b");
    tok_key_id(&f, TOK_E "bos_token_id", 2);
    tok_key_id(&f, TOK_E "add_bos_token", 1);
    tok_refused(&f, DEND_ERR_FORMAT, f.value);
}

/* An array of n strings, which are to follow. */
static void tok_key_array(tok_file *f, const char *key, uint32_t n) {
    tok_key(f, key, DENDP_GGUF_ARRAY);
    tok_put_int(f, DENDP_GGUF_STRING, 4);
    tok_put_int(f, n, 8);
}

/* A vocabulary of byte-level BPE, whose n tokens are to follow. */
static void tok_begin_tokens(tok_file *f, uint32_t n) {
    tok_begin(f);
    tok_key_string(f, TOK_E "model", "gpt2");
    tok_key_string(f, TOK_E "pre", "gpt-2");
    tok_key_array(f, TOK_E "tokens", n);
}

/* Tokens that all want the same few places of the table: as many as a look-up looks at are taken, and found; of
 * more, the first that lies too far is refused. */
static void tok_colliding_tokens(void **state) {
    enum { MOST = 600, FEW = 400 };
    static tok_file f;
    static char text[MOST][8];
    static size_t elem[MOST];
    dendp_tokenizer t;
    dend_error err;
    test_heap heap;
    dend_allocator a = test_heap_allocator(&heap);
    uint32_t i, n = 0, x, pass;
    (void)state;
    for (x = 0; n < MOST; x++) {
        uint64_t h;
        snprintf(text[n], sizeof text[n], "%c%c%c%c%c", 'a' + (int)(x % 26), 'a' + (int)(x / 26 % 26),
                 'a' + (int)(x / 676 % 26), 'a' + (int)(x / 17576 % 26), 'a' + (int)(x / 456976 % 26));
        h = dendp_mix64(dendp_tok_hash(DENDP_TOK_HASH, text[n], 5));
        n += (h & 0x7ffu) < 4 ? 1u : 0u; /* the smallest table that holds them has 2^11 places */
    }
    for (pass = 0; pass < 2; pass++) {
        n = pass ? MOST : FEW;
        tok_begin_tokens(&f, n);
        for (i = 0; i < n; i++) {
            elem[i] = f.n;
            tok_put_string(&f, text[i], 5);
        }
        tok_key_strings(&f, TOK_E "merges", "");
        if (pass == 0) {
            ASSERT_STATUS(DEND_OK, tok_load(&t, &f, &a, &err));
            for (i = 0; i < MOST; i++) {
                assert_int_equal(dendp_tok_word(&t, (const unsigned char *)text[i], 5),
                                 i < FEW ? i : DENDP_TOK_NONE);
                assert_int_equal(dendp_tok_find(&t, text[i], 5), i < FEW ? i : DENDP_TOK_NONE);
            }
            dendp_tokenizer_free(&t);
        } else {
            ASSERT_STATUS(DEND_ERR_FORMAT, tok_load(&t, &f, &a, &err));
            assert_string_equal(err.msg, "tokens are made to collide");
            for (i = 0; i < n && elem[i] != err.where; i++) {
            }
            assert_in_range(i, DENDP_TOK_WAY, DENDP_TOK_WAY + 4);
        }
        assert_int_equal(heap.n_allocs, heap.n_frees);
    }
}

/* Merges whose pairs all want the same places of the table, which would make it a list: refused,
 * at the merge where it has been too much. */
static void tok_colliding_merges(void **state) {
    enum { BASE = 2704, MERGES = 1600 }; /* all pairs of letters, and pairs of them */
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    static tok_file f;
    static uint32_t pairs[MERGES][2];
    static size_t elem[MERGES];
    dendp_tokenizer t;
    dend_error err;
    test_heap heap;
    dend_allocator a = test_heap_allocator(&heap);
    uint32_t i, k, n = 0, collide;
    char text[8];
    (void)state;
    for (collide = 0; collide < 2; collide++) {
        memset(&t, 0, sizeof t);
        t.merge_shift = 64 - 12; /* MERGES pairs have at least that many places */
        for (n = 0, i = 0; i < BASE && n < MERGES; i++) {
            for (k = 0; k < BASE && n < MERGES; k++) {
                if (collide ? dendp_tok_merge_home(&t, i, k) == 0 : (i * BASE + k) % 4507 == 0) {
                    pairs[n][0] = i;
                    pairs[n++][1] = k;
                }
            }
        }
        assert_int_equal(n, MERGES);
        tok_begin_tokens(&f, BASE + MERGES);
        for (i = 0; i < BASE; i++) {
            snprintf(text, sizeof text, "%c%c", letters[i / 52], letters[i % 52]);
            tok_put_string(&f, text, 2);
        }
        for (i = 0; i < 2 * MERGES; i++) { /* what the pairs make, and then the merges themselves */
            const uint32_t *p = pairs[i % MERGES];
            if (i == MERGES) {
                tok_key_array(&f, TOK_E "merges", MERGES);
            }
            elem[i % MERGES] = f.n;
            snprintf(text, sizeof text, i < MERGES ? "%c%c%c%c" : "%c%c %c%c", letters[p[0] / 52],
                     letters[p[0] % 52], letters[p[1] / 52], letters[p[1] % 52]);
            tok_put_string(&f, text, strlen(text));
        }
        if (!collide) {
            ASSERT_STATUS(DEND_OK, tok_load(&t, &f, &a, &err));
            dendp_tokenizer_free(&t);
        } else {
            ASSERT_STATUS(DEND_ERR_FORMAT, tok_load(&t, &f, &a, &err));
            assert_string_equal(err.msg, "merges are made to collide");
            for (i = 0; i < MERGES && elem[i] != err.where; i++) {
            }
            assert_in_range(i, DENDP_TOK_WAY, DENDP_TOK_WAY + 4);
        }
        assert_int_equal(heap.n_allocs, heap.n_frees);
    }
}

/* A file without a vocabulary is no error; its tokenizer just does nothing. */
static void tok_none(void **state) {
    static tok_file f;
    dendp_tokenizer t;
    dend_error err;
    size_t n;
    uint32_t i;
    (void)state;
    for (i = 0; i < 2; i++) {
        n = 99;
        tok_begin(&f);
        if (i == 1) tok_key_string(&f, TOK_E "model", "none");
        ASSERT_STATUS(DEND_OK, tok_load(&t, &f, NULL, &err));
        assert_int_equal(t.n_vocab, 0);
        assert_int_equal(t.bos & t.eos & t.eot, -1);
        ASSERT_STATUS(DEND_ERR_UNSUPPORTED, dendp_tokenizer_encode(&t, "a", 1, 0, NULL, 0, &n));
        assert_int_equal(n, 99);
        assert_null(dendp_tokenizer_bytes(&t, 0, &n));
        assert_int_equal(n, 0);
        assert_false(dendp_tokenizer_is_end(&t, 0));
        dendp_tokenizer_free(&t);
    }
}

/* Every name of a split loads, with the defaults of its family. */
static void tok_pre_names(void **state) {
    static tok_file f;
    uint32_t i, n = (uint32_t)(sizeof dendp_pres / sizeof dendp_pres[0]);
    (void)state;
    for (i = 0; i < n; i++) {
        dendp_tokenizer t;
        dend_error err;
        tok_make(&f, dendp_pres[i].name, "@ab|<s>", "@13", "a b");
        tok_key_id(&f, TOK_E "bos_token_id", 257);
        ASSERT_STATUS(DEND_OK, tok_load(&t, &f, NULL, &err));
        assert_int_equal(t.add_bos, dendp_pres[i].split == DENDP_SPLIT_LLAMA3 && dendp_pres[i].whole_words);
        tok_expect(&t, "abc", 0, "256 99");
        tok_expect(&t, "abc", DEND_TOKENIZE_ADD_BOS, t.add_bos ? "257 256 99" : "256 99");
        dendp_tokenizer_free(&t);
    }
}

/* What text can become and what it cannot. */
static void tok_kinds(void **state) {
    static tok_file f;
    dendp_tokenizer t;
    dend_error err;
    size_t n;
    (void)state;
    /* 256 ab, 257 abc (control, so no text becomes it), 258 user-defined in plain letters, 259 user-defined with a
     * space, 260 unused, 261 normal with a character outside the alphabet, 262 empty, 263 a byte in the SPM spelling,
     * 264 unknown, 265 control, 266 user-defined that begins another one */
    tok_make(&f, "gpt-2", "@ab|abc|xy|x y|ef|a\xe2\x82\xac||<0x41>|<unk>|<c>|xyz!|\xc4\xa0q", "@134451162344",
             "a b|ab c|x y|e f");
    ASSERT_STATUS(DEND_OK, tok_load(&t, &f, NULL, &err));
    assert_int_equal(t.n_vocab, 268);
    tok_expect(&t, "abc", 0, "256 99");
    tok_expect(&t, "abc", DEND_TOKENIZE_SPECIAL, "257"); /* its own text, as a control token */
    tok_expect(&t, "xy", 0, "258");
    tok_expect(&t, "wxyz", 0, "119 258 122");
    tok_expect(&t, "xyz!", 0, "266");
    tok_expect(&t, "xyzxyz!", 0, "258 122 266");
    tok_expect(&t, "x y", 0, "259");
    tok_expect(&t, "ef", 0, "101 102"); /* unused: the merge would lose the text */
    tok_expect(&t, "a\xe2\x82\xac", 0, "97 226 130 172");
    tok_expect(&t, "<0x41>A", 0, "60 48 120 52 49 62 65");
    tok_expect(&t, "<unk><c>", 0, "60 117 110 107 62 60 99 62");
    tok_expect(&t, "<unk><c>", DEND_TOKENIZE_SPECIAL, "264 265");
    tok_expect(&t, " q", 0, "32 113"); /* user-defined ones are spelled as they are, not in the alphabet */
    tok_expect(&t, "\xc4\xa0q", 0, "267");
    /* texts and bytes */
    assert_string_equal(dendp_tokenizer_bytes(&t, 32, &n), " ");
    assert_int_equal(n, 1);
    assert_string_equal(dendp_tokenizer_text(&t, 257, &n), "abc");
    assert_int_equal(n, 3);
    assert_string_equal(dendp_tokenizer_bytes(&t, 257, &n), "");
    assert_int_equal(n, 0);
    assert_string_equal(dendp_tokenizer_text(&t, 260, NULL), "ef");
    assert_string_equal(dendp_tokenizer_bytes(&t, 260, NULL), "");
    assert_string_equal(dendp_tokenizer_bytes(&t, 261, NULL), "a\xe2\x82\xac");
    assert_string_equal(dendp_tokenizer_text(&t, 262, &n), "");
    assert_int_equal(n, 0);
    assert_memory_equal(dendp_tokenizer_bytes(&t, 0, &n), "\0", 2); /* the byte 0, and the 0 behind it */
    assert_int_equal(n, 1);
    assert_null(dendp_tokenizer_bytes(&t, -1, &n));
    assert_int_equal(n, 0);
    assert_null(dendp_tokenizer_text(&t, 268, &n));
    assert_null(dendp_tokenizer_bytes(&t, INT32_MAX, NULL));
    assert_null(dendp_tokenizer_bytes(&t, INT32_MIN, NULL));
    dendp_tokenizer_free(&t);
    /* whole words: taken where they are text, even out of reach of merges; never when control */
    tok_make(&f, "llama-bpe", "@abc|bcd|xyz", "@134", "");
    ASSERT_STATUS(DEND_OK, tok_load(&t, &f, NULL, &err));
    tok_expect(&t, "abc", 0, "256");
    tok_expect(&t, "bcd", 0, "98 99 100");
    tok_expect(&t, "abcd", 0, "97 98 99 100");
    tok_expect(&t, " abc", 0, "32 97 98 99");
    dendp_tokenizer_free(&t);
    /* the same without that rule */
    tok_make(&f, "qwen2", "@abc", "@1", "");
    ASSERT_STATUS(DEND_OK, tok_load(&t, &f, NULL, &err));
    tok_expect(&t, "abc", 0, "97 98 99");
    dendp_tokenizer_free(&t);
    /* equal merges: the first counts */
    tok_make(&f, "gpt-2", "@ab|bc", NULL, "a b|b c|a b");
    ASSERT_STATUS(DEND_OK, tok_load(&t, &f, NULL, &err));
    tok_expect(&t, "abc", 0, "256 99");
    dendp_tokenizer_free(&t);
    /* rank goes before place, and the left before the right */
    tok_make(&f, "gpt-2", "@ab|bc|aa|aaa", NULL, "b c|a b|a a|aa a");
    ASSERT_STATUS(DEND_OK, tok_load(&t, &f, NULL, &err));
    tok_expect(&t, "abc", 0, "97 257");
    tok_expect(&t, "aaa", 0, "259");
    tok_expect(&t, "aaaa", 0, "258 258");
    tok_expect(&t, "aaaaa", 0, "258 259");
    dendp_tokenizer_free(&t);
}

/* Vocabularies without bytes: what has no token is left out, and nothing is merged across it. */
static void tok_missing_bytes(void **state) {
    static tok_file f;
    dendp_tokenizer t;
    dend_error err;
    (void)state;
    tok_make(&f, "gpt-2", "a|b|ab", "111", "a b");
    ASSERT_STATUS(DEND_OK, tok_load(&t, &f, NULL, &err));
    tok_expect(&t, "abcab", 0, "2 2");
    tok_expect(&t, "acb", 0, "0 1");
    tok_expect(&t, "cde", 0, "");
    tok_expect(&t, "c", 0, "");
    tok_expect(&t, "ccccccccccccccccccccccccccccccccccccccab", 0, "2");
    dendp_tokenizer_free(&t);
    tok_make(&f, "gpt-2", "<only>", "3", "");
    ASSERT_STATUS(DEND_OK, tok_load(&t, &f, NULL, &err));
    tok_expect(&t, "x<only>y", DEND_TOKENIZE_SPECIAL, "0");
    tok_expect(&t, "x<only>y", 0, "");
    dendp_tokenizer_free(&t);
    /* a byte whose token has other bytes, or none, has no token */
    tok_make(&f, "gpt-2", "a|\xc4\xa0|b", "143", "");
    ASSERT_STATUS(DEND_OK, tok_load(&t, &f, NULL, &err));
    tok_expect(&t, "a b", 0, "0");
    dendp_tokenizer_free(&t);
}

/* End tokens: by id, by name; words that look like one are not. */
static void tok_ends(void **state) {
    static tok_file f;
    dendp_tokenizer t;
    dend_error err;
    int32_t id, n_ends = 0;
    (void)state;
    tok_make(&f, "gpt-2", "@</|s>|</s>|<EOT>|[EOS]|zz|<eos>|<fim-prefix>|<end_of_turn>", "@111341144",
             "< /|s >|</ s>");
    tok_key_id(&f, TOK_E "eos_token_id", 261);
    tok_key_id(&f, TOK_E "bos_token_id", 0xffffffffu);
    ASSERT_STATUS(DEND_OK, tok_load(&t, &f, NULL, &err));
    assert_int_equal(t.bos, -1);
    assert_int_equal(t.eos, 261);
    assert_int_equal(t.eot, 264); /* <end_of_turn> is named before <EOT> */
    for (id = -2; id < 300; id++) n_ends += dendp_tokenizer_is_end(&t, id);
    assert_int_equal(n_ends, 6);
    assert_true(dendp_tokenizer_is_end(&t, 258));
    assert_true(dendp_tokenizer_is_end(&t, 259));
    assert_true(dendp_tokenizer_is_end(&t, 260));
    assert_true(dendp_tokenizer_is_end(&t, 261));
    assert_true(dendp_tokenizer_is_end(&t, 262));
    assert_true(dendp_tokenizer_is_end(&t, 264));
    tok_expect(&t, "</s>", 0, "256 115 62");
    tok_expect(&t, "</s>", DEND_TOKENIZE_SPECIAL, "258");
    assert_string_equal(dendp_tokenizer_bytes(&t, 258, NULL), "</s>"); /* merges make it: a word as well */
    tok_expect(&t, "[EOS]<eos>", DEND_TOKENIZE_SPECIAL,
               "260 262"); /* control tokens, whatever the file calls them */
    tok_expect(&t, "[EOS]", 0, "91 69 79 83 93");
    assert_string_equal(dendp_tokenizer_bytes(&t, 260, NULL), "");
    tok_expect(&t, "<fim-prefix>", DEND_TOKENIZE_SPECIAL, "263");
    tok_expect(&t, "zz", DEND_TOKENIZE_SPECIAL, "122 122"); /* eos, but a word that is out of reach */
    assert_string_equal(dendp_tokenizer_bytes(&t, 261, NULL), "zz");
    dendp_tokenizer_free(&t);
    /* -1 in any type says that there is none */
    tok_make(&f, "gpt-2", "a|b", NULL, "");
    tok_key(&f, TOK_E "eos_token_id", DENDP_GGUF_I32);
    tok_put_int(&f, 0xffffffffu, 4);
    tok_key(&f, TOK_E "eot_token_id", DENDP_GGUF_I8);
    tok_put_int(&f, 0xff, 1);
    tok_key(&f, TOK_E "bos_token_id", DENDP_GGUF_U64);
    tok_put_int(&f, 1, 8);
    ASSERT_STATUS(DEND_OK, tok_load(&t, &f, NULL, &err));
    assert_int_equal(t.eos, -1);
    assert_int_equal(t.eot, -1);
    assert_int_equal(t.bos, 1);
    dendp_tokenizer_free(&t);
    /* the goldens' vocabularies */
    tok_open_tiny(&t, 3);
    assert_int_equal(t.bos, 1614);
    assert_int_equal(t.eos, 1616);
    assert_int_equal(t.eot, 1616); /* <|eot_id|>, by name */
    assert_true(t.add_bos);
    assert_true(dendp_tokenizer_is_end(&t, 1615) && dendp_tokenizer_is_end(&t, 1617) &&
                dendp_tokenizer_is_end(&t, 1619));
    assert_false(dendp_tokenizer_is_end(&t, 1614) || dendp_tokenizer_is_end(&t, 1618));
    dendp_tokenizer_free(&t);
}

/* Special tokens against the definition: of all that match here, the longest. */
static void tok_specials(void **state) {
    static tok_file f;
    dendp_tokenizer t;
    dend_error err;
    char list[2048], types[201];
    test_rng rng = {11};
    uint32_t round, i, k;
    (void)state;
    for (round = 0; round < 50; round++) {
        uint32_t n = 0, at = 0;
        char words[200][8];
        for (i = 0; i < 200; i++) {
            uint32_t len = 1 + test_below(&rng, 6);
            for (k = 0; k < len; k++) words[n][k] = "<ab>"[test_below(&rng, 4)];
            words[n][len] = 0;
            for (k = 0; k < n && strcmp(words[k], words[n]) != 0; k++) {
            }
            if (k < n) continue; /* twins are refused */
            at += (uint32_t)snprintf(list + at, sizeof list - at, n ? "|%s" : "%s", words[n]);
            types[n] = "34"[test_below(&rng, 2)];
            n++;
        }
        types[n] = 0;
        tok_make(&f, "gpt-2", list, types, "");
        ASSERT_STATUS(DEND_OK, tok_load(&t, &f, NULL, &err));
        assert_int_equal(t.n_specials, n);
        for (i = 0; i < 500; i++) {
            unsigned char s[10];
            uint32_t len = test_below(&rng, 10), which, best[2] = {DENDP_TOK_NONE, DENDP_TOK_NONE};
            for (k = 0; k < len; k++) s[k] = (unsigned char)"<ab>c"[test_below(&rng, 5)];
            for (which = 0; which < 2; which++) {
                size_t longest = 0;
                for (k = 0; k < n; k++) {
                    size_t m = strlen(words[k]);
                    if (which == 0 && types[k] == '3') continue;
                    if (m <= len && m > longest && memcmp(words[k], s, m) == 0) {
                        longest = m;
                        best[which] = k;
                    }
                }
            }
            assert_int_equal(dendp_tok_special(&t, s, len, DENDP_TOK_USER), best[0]);
            assert_int_equal(dendp_tok_special(&t, s, len, DENDP_TOK_USER | DENDP_TOK_CONTROL), best[1]);
        }
        dendp_tokenizer_free(&t);
    }
}

/* -- memory ------------------------------------------------------------------------------------------- */

static bool tok_read_callback(void *user, uint64_t offset, void *dst, size_t n) {
    memcpy(dst, (const unsigned char *)user + offset, n);
    return true;
}

static void tok_allocations(void **state) {
    dend_model_desc desc;
    dendp_tokenizer t;
    dendp_gguf g;
    dend_error err;
    test_heap heap;
    uint64_t n_bytes;
    char text[4000];
    int32_t out[4000];
    size_t n = 77, size;
    uint32_t i;
    unsigned char *file = test_read_file("tests/golden/vocab_gpt2.gguf", &size);
    (void)state;
    assert_non_null(file);
    memset(&desc, 0, sizeof desc);
    desc.reader.read = tok_read_callback; /* so that all the metadata lies in the gguf's memory */
    desc.reader.user = file;
    desc.reader.size = size;
    desc.allocator = test_heap_allocator(&heap);
    ASSERT_STATUS(DEND_OK, dendp_gguf_open(&g, &desc, &err));
    n_bytes = heap.n_live_bytes;
    for (i = 1;; i++) { /* the i-th allocation of loading fails */
        heap.n_allocs = 0;
        heap.fail_at = i;
        if (dendp_tokenizer_load(&t, &g, &desc.allocator, &err) == DEND_OK) break;
        assert_int_equal(err.status, DEND_ERR_MEMORY);
        assert_int_equal(heap.n_live_bytes, n_bytes);
    }
    assert_true(i > 1);
    assert_true(heap.n_live_bytes - n_bytes < 8 * (uint64_t)size);
    dendp_gguf_close(&g); /* and the file with it */
    memset(file, 0xee, size);
    free(file);
    n_bytes = heap.n_live_bytes;
    heap.fail_at = 0;
    heap.n_allocs = 0;
    /* ordinary words ask for nothing */
    ASSERT_STATUS(DEND_OK, dendp_tokenizer_encode(&t, "Hello there, world", 18, 0, out, 4000, &n));
    assert_int_equal(heap.n_allocs, 0);
    /* words that do not fit the stack: of growing length, so that the scratch grows */
    memset(text, 'a', sizeof text);
    text[300] = text[1000] = text[3000] = ' ';
    for (i = 1;; i++) {
        heap.n_allocs = 0;
        heap.fail_at = i;
        n = 77;
        if (dendp_tokenizer_encode(&t, text, sizeof text, 0, out, 4000, &n) == DEND_OK) break;
        assert_int_equal(n, 77);
        assert_int_equal(heap.n_live_bytes, n_bytes);
    }
    assert_in_range(i, 3, 4);
    assert_int_equal(heap.n_live_bytes, n_bytes);
    dendp_tokenizer_free(&t);
    assert_int_equal(heap.n_live_bytes, 0);
}

/* -- threads ------------------------------------------------------------------------------------------- */

typedef struct tok_share {
    const dendp_tokenizer *t;
    const tok_strings *all;
    uint64_t hash[4];
} tok_share;

static void tok_thread_task(void *ctx, uint32_t index) {
    tok_share *share = (tok_share *)ctx;
    int32_t *out = (int32_t *)malloc(65536 * sizeof *out);
    uint64_t h = 0;
    uint32_t i;
    size_t n, k;
    for (i = 0; i < share->all->n && out; i++) {
        n = 0;
        (void)dendp_tokenizer_encode(share->t, (const char *)share->all->s[i], share->all->len[i], 1, out,
                                     65536, &n);
        for (k = 0; k < n; k++) h = dendp_hash2(h, (uint64_t)out[k]);
    }
    free(out);
    share->hash[index] = h;
}

static void tok_threads(void **state) {
    static tok_strings all;
    dendp_tokenizer t;
    dendp_pool pool;
    dend_jobs jobs;
    dend_error err;
    tok_share share;
    (void)state;
    memset(&jobs, 0, sizeof jobs);
    memset(&share, 0, sizeof share);
    tok_strings_open(&all);
    tok_open_tiny(&t, 2);
    share.t = &t;
    share.all = &all;
    ASSERT_STATUS(DEND_OK, dendp_pool_open(&pool, 3, &jobs, &err));
    dendp_pool_run(&pool, tok_thread_task, &share, 4);
    dendp_pool_close(&pool);
    assert_true(share.hash[0] != 0);
    assert_true(share.hash[0] == share.hash[1] && share.hash[1] == share.hash[2] &&
                share.hash[2] == share.hash[3]);
    dendp_tokenizer_free(&t);
    free(all.file);
}

/* -- the fuzzer's corpus ------------------------------------------------------------------------------------ */

static void tok_corpus(void **state) {
    DIR *dir = opendir("fuzz/corpus/tokenizer");
    struct dirent *entry;
    uint32_t n = 0;
    (void)state;
    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL) {
        char path[512];
        size_t size;
        unsigned char *data;
        const char *wrong;
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "fuzz/corpus/tokenizer/%.200s", entry->d_name);
        data = test_read_file(path, &size);
        assert_non_null(data);
        wrong = fuzz_tokenizer_one(data, size);
        if (wrong) fail_msg("%s: %s", path, wrong);
        free(data);
        n++;
    }
    closedir(dir);
    assert_true(n >= 20);
}

static const struct CMUnitTest tests_model_tokenizer[] = {
    cmocka_unit_test(tok_golden_tiny),      cmocka_unit_test(tok_golden_smollm),
    cmocka_unit_test(tok_golden_qwen2),     cmocka_unit_test(tok_round_trips),
    cmocka_unit_test(tok_buffers),          cmocka_unit_test(tok_long_words),
    cmocka_unit_test(tok_classes),          cmocka_unit_test(tok_invalid_utf8),
    cmocka_unit_test(tok_splits),           cmocka_unit_test(tok_merges),
    cmocka_unit_test(tok_refusals),         cmocka_unit_test(tok_colliding_tokens),
    cmocka_unit_test(tok_colliding_merges), cmocka_unit_test(tok_none),
    cmocka_unit_test(tok_pre_names),        cmocka_unit_test(tok_kinds),
    cmocka_unit_test(tok_missing_bytes),    cmocka_unit_test(tok_ends),
    cmocka_unit_test(tok_specials),         cmocka_unit_test(tok_allocations),
    cmocka_unit_test(tok_threads),          cmocka_unit_test(tok_corpus),
};
