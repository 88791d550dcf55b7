/* ==========================================================================
 * >>01.05 JSON: a strict reader that hands out one token at a time
 * ==========================================================================
 * Model folders describe themselves in JSON (RFC 8259): config.json, the head
 * of a safetensors file, a tokenizer.json of 30 MB with a vocabulary of 250,000
 * members. A tree of it would cost several times the text; the rooms that read
 * these files want each value once, in order. So this is a cursor over bytes
 * in memory. dendp_json_next moves to the next token, and says what it is:
 *
 *     {"a": [1, "x"]}     OBJECT  KEY a  ARRAY  NUMBER 1  STRING x  ARRAY_END  OBJECT_END  END
 *
 *     dendp_json_open(&j, bytes, n, 0);
 *     status = dendp_json_next(&j, err);                   expect OBJECT
 *     while ((status = dendp_json_next(&j, err)) == DEND_OK && j.kind == DENDP_JSON_KEY) {
 *         if (dendp_json_is(&j, "name")) ...               then the value: dendp_json_next
 *         else status = dendp_json_skip(&j, err);          the value of a key that is not wanted
 *     }
 *
 * Memory: the cursor itself and nothing else. No recursion: a bit for each
 * open bracket says whether it is an object, so 64 levels is all there is, and
 * a text nested deeper is refused. The cursor is a plain struct: a copy of it
 * is a bookmark, from which the text can be read a second time.
 *
 * What is checked: the grammar to the letter, UTF-8 (shortest forms, no
 * surrogates), that escaped surrogates come in pairs, that nothing follows the
 * value. Not that keys are unique: only who keeps them can know.
 *
 * Strings are handed out as they stand, decoded when asked for: `len` is the
 * number of bytes that dendp_json_copy needs. Numbers too: any that the grammar
 * allows is a number, whatever its size. dendp_json_f64 rounds it correctly, by
 * exact integers: M * 10^e is a fraction N / D of two whole numbers, and 53
 * steps of long division give the digits, the rest the direction of rounding.
 * When M < 2^53 and |e| <= 22 both parts are exact doubles, and one operation
 * rounds the same (W. D. Clinger, "How to read floating point numbers
 * accurately", PLDI 1990). strtod is not used: it asks the locale.
 *
 * Errors name the offset of the byte that is wrong, counted from `base`.
 * Cost: O(n) for the whole text, and O(1) memory.
 * ======================================================================== */
#ifndef DEND_NO_FOLDERS

#define DENDP_JSON_MAX_DEPTH 64u

typedef enum dendp_json_kind {
    DENDP_JSON_END = 0, /* the text is over */
    DENDP_JSON_NULL,
    DENDP_JSON_FALSE,
    DENDP_JSON_TRUE,
    DENDP_JSON_NUMBER,
    DENDP_JSON_STRING,
    DENDP_JSON_KEY, /* a string before a colon */
    DENDP_JSON_ARRAY,
    DENDP_JSON_ARRAY_END,
    DENDP_JSON_OBJECT,
    DENDP_JSON_OBJECT_END
} dendp_json_kind;

/* What may come next. */
typedef enum dendp_json_state {
    DENDP_JSON_WANT_VALUE = 0,
    DENDP_JSON_WANT_FIRST, /* a value, or the end of an array that has none */
    DENDP_JSON_WANT_KEY,
    DENDP_JSON_WANT_FIRST_KEY, /* a key, or the end of an object that has none */
    DENDP_JSON_WANT_MORE /* a comma or the end of the bracket; outside of brackets the end of the text */
} dendp_json_state;

typedef struct dendp_json {
    const unsigned char *data; /* [size] */
    uint64_t size, base;
    uint64_t at;      /* of the next byte to look at */
    uint64_t objects; /* bit i: the bracket at depth i is an object */
    uint32_t depth;   /* brackets that are open */
    dendp_json_state state;
    /* the token */
    dendp_json_kind kind;
    bool escaped;        /* strings: there are escapes */
    uint64_t begin, end; /* [begin, end) of data; strings with their quotes */
    uint64_t len;        /* strings: bytes when decoded */
} dendp_json;

/* Begins a text of `size` bytes. Offsets in errors are `base` more than those in data. */
static void dendp_json_open(dendp_json *j, const void *data, uint64_t size, uint64_t base) {
    memset(j, 0, sizeof *j);
    j->data = (const unsigned char *)data;
    j->size = size;
    j->base = base;
}

/* Where the token begins, for errors. */
static uint64_t dendp_json_where(const dendp_json *j) {
    return j->base + j->begin;
}

/* Fails at data[at]. A text that ends there has ended too early, whatever was looked for. */
static dend_status dendp_json_fail(const dendp_json *j, uint64_t at, const char *msg, dend_error *err) {
    return DENDP_FAIL(err, DEND_ERR_FORMAT, at < j->size ? msg : "JSON text ends too early", j->base + at);
}

/* The byte at `at`, or 0 behind the end: no JSON token has a zero byte in it. */
static unsigned char dendp_json_byte(const dendp_json *j, uint64_t at) {
    return at < j->size ? j->data[at] : 0;
}

static int dendp_json_hex(unsigned char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* -- strings -------------------------------------------------------------------- */

/* The four digits of a \u at data[*at]; moves behind them. -1 and *at at the bad byte when they are none. */
static int32_t dendp_json_hex4(const dendp_json *j, uint64_t *at) {
    int32_t v = 0;
    int i;
    for (i = 0; i < 4; i++, (*at)++) {
        int digit = dendp_json_hex(dendp_json_byte(j, *at));
        if (digit < 0) {
            return -1;
        }
        v = v * 16 + digit;
    }
    return v;
}

/* One escape whose backslash is at data[*at]: its code point; moves behind it.
 * -1 and *at at the byte that is wrong, *msg why. */
static int32_t dendp_json_escape(const dendp_json *j, uint64_t *at, const char **msg) {
    static const char letters[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    unsigned char c = dendp_json_byte(j, *at + 1);
    const char *known = c ? strchr(letters, c) : NULL;
    uint64_t start = *at;
    int32_t high, low;
    int i;
    *at += 1;
    if (known) {
        *at += 1;
        return (unsigned char)values[known - letters];
    }
    *msg = "unknown escape in a JSON string";
    if (c != 'u') {
        return -1;
    }
    *at += 1;
    *msg = "escape in a JSON string without four hexadecimal digits";
    high = dendp_json_hex4(j, at);
    if (high < 0xd800 || high > 0xdfff) {
        return high;
    }
    *msg = "half of a surrogate pair in a JSON string";
    if (high > 0xdbff) {
        *at = start;
        return -1;
    }
    for (i = 0; i < 2; i++, *at += 1) {
        if (dendp_json_byte(j, *at) != (unsigned char)"\\u"[i]) {
            *at = *at < j->size ? start : *at;
            return -1;
        }
    }
    *msg = "escape in a JSON string without four hexadecimal digits";
    low = dendp_json_hex4(j, at);
    if (low >= 0 && (low < 0xdc00 || low > 0xdfff)) {
        *msg = "half of a surrogate pair in a JSON string";
        *at = start;
        return -1;
    }
    return low < 0 ? -1 : 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
}

/* Bytes of a code point in UTF-8. */
static uint32_t dendp_json_utf8_len(int32_t c) {
    return c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
}

/* Bytes of the UTF-8 character that begins with the byte >= 0x80 at data[at]; 0 when it is none. */
static uint32_t dendp_json_utf8_at(const dendp_json *j, uint64_t at) {
    unsigned char a = j->data[at], b = dendp_json_byte(j, at + 1);
    uint32_t n = a < 0xc2 ? 0 : a < 0xe0 ? 2 : a < 0xf0 ? 3 : a < 0xf5 ? 4 : 0, i;
    unsigned char least = a == 0xe0 ? 0xa0 : a == 0xf0 ? 0x90 : 0x80; /* shortest forms only */
    unsigned char most = a == 0xed ? 0x9f : a == 0xf4 ? 0x8f : 0xbf;  /* no surrogates; up to U+10FFFF */
    if (n == 0 || b < least || b > most) {
        return 0;
    }
    for (i = 2; i < n; i++) {
        if ((dendp_json_byte(j, at + i) & 0xc0) != 0x80) {
            return 0;
        }
    }
    return n;
}

/* The string whose opening quote is at j->at. */
static dend_status dendp_json_take_string(dendp_json *j, dend_error *err) {
    uint64_t at = j->at + 1, len = 0;
    j->escaped = false;
    for (;;) {
        unsigned char c;
        const uint64_t plain = at;
        while (at < j->size && j->data[at] >= 0x20 && j->data[at] < 0x80 && j->data[at] != '"' &&
               j->data[at] != '\\') {
            at++;
        }
        len += at - plain;
        if (at == j->size) {
            return dendp_json_fail(j, at, "", err);
        }
        c = j->data[at];
        if (c == '"') {
            break;
        }
        if (c == '\\') {
            const char *msg = "";
            int32_t code = dendp_json_escape(j, &at, &msg);
            if (code < 0) {
                return dendp_json_fail(j, at, msg, err);
            }
            len += dendp_json_utf8_len(code);
            j->escaped = true;
        } else if (c < 0x20) {
            return dendp_json_fail(j, at, "control character in a JSON string", err);
        } else {
            uint32_t n = dendp_json_utf8_at(j, at);
            if (n == 0) {
                return dendp_json_fail(j, at, "invalid UTF-8 in a JSON string", err);
            }
            len += n;
            at += n;
        }
    }
    j->begin = j->at;
    j->end = j->at = at + 1;
    j->len = len;
    return DEND_OK;
}

/* Walks a decoded string: the next run of bytes. *at starts at j->begin + 1; buf holds an escape's bytes.
 * Returns the number of bytes at *p, 0 at the end. */
static uint64_t dendp_json_run(const dendp_json *j, uint64_t *at, const unsigned char **p,
                               unsigned char buf[4]) {
    uint64_t last = j->end - 1, start = *at; /* the closing quote */
    const char *msg;
    int32_t c;
    uint32_t n, i;
    if (start >= last) {
        return 0;
    }
    if (!j->escaped || j->data[start] != '\\') {
        while (*at < last && (!j->escaped || j->data[*at] != '\\')) {
            *at = j->escaped ? *at + 1 : last;
        }
        *p = j->data + start;
        return *at - start;
    }
    c = dendp_json_escape(j, at, &msg);
    c = c < 0 ? 0xfffd : c; /* only when somebody has written to a mapped file since */
    n = dendp_json_utf8_len(c);
    for (i = n; i-- > 1; c >>= 6) {
        buf[i] = (unsigned char)(0x80 | (c & 0x3f));
    }
    buf[0] = (unsigned char)(n == 1 ? c : (0xf00 >> n & 0xff) | c);
    *p = buf;
    *at = *at > start ? *at : last;
    return n;
}

/* Decodes a string or key into out[cap], and puts a zero behind it. It may hold zeros itself.
 * False, with nothing of use in out, when its len + 1 bytes do not fit. */
static bool dendp_json_copy(const dendp_json *j, char *out, uint64_t cap) {
    uint64_t at = j->begin + 1, used = 0, n;
    const unsigned char *p = NULL;
    unsigned char buf[4];
    while ((n = dendp_json_run(j, &at, &p, buf)) != 0) {
        if (n >= cap - used || used >= cap) {
            return false;
        }
        memcpy(out + used, p, (size_t)n);
        used += n;
    }
    if (used >= cap) {
        return false;
    }
    out[used] = 0;
    return true;
}

/* Whether a string or key is `text`. */
static bool dendp_json_is(const dendp_json *j, const char *text) {
    uint64_t at = j->begin + 1, used = 0, n, len = strlen(text);
    const unsigned char *p = NULL;
    unsigned char buf[4];
    if (j->len != len) {
        return false;
    }
    while ((n = dendp_json_run(j, &at, &p, buf)) != 0) {
        if (n > len - used || memcmp(text + used, p, (size_t)n) != 0) {
            return false;
        }
        used += n;
    }
    return used == len;
}

/* -- numbers -------------------------------------------------------------------- */

static bool dendp_json_is_digit(unsigned char c) {
    return c >= '0' && c <= '9';
}

/* The number that begins at j->at: -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)? */
static dend_status dendp_json_take_number(dendp_json *j, dend_error *err) {
    static const char msg[] = "malformed JSON number";
    uint64_t at = j->at;
    at += j->data[at] == '-' ? 1u : 0u;
    if (dendp_json_byte(j, at) == '0') {
        at++;
    } else if (dendp_json_is_digit(dendp_json_byte(j, at))) {
        while (dendp_json_is_digit(dendp_json_byte(j, at))) at++;
    } else {
        return dendp_json_fail(j, at, msg, err);
    }
    if (dendp_json_byte(j, at) == '.') {
        at++;
        if (!dendp_json_is_digit(dendp_json_byte(j, at))) {
            return dendp_json_fail(j, at, msg, err);
        }
        while (dendp_json_is_digit(dendp_json_byte(j, at))) at++;
    }
    if ((dendp_json_byte(j, at) | 0x20) == 'e') {
        at++;
        at += dendp_json_byte(j, at) == '+' || dendp_json_byte(j, at) == '-' ? 1u : 0u;
        if (!dendp_json_is_digit(dendp_json_byte(j, at))) {
            return dendp_json_fail(j, at, msg, err);
        }
        while (dendp_json_is_digit(dendp_json_byte(j, at))) at++;
    }
    j->begin = j->at;
    j->end = j->at = at;
    return DEND_OK;
}

/* The value of a number that is written as an integer, without point or
 * exponent, and lies in [-2^63, 2^63); else false. */
static DENDP_UNUSED bool dendp_json_i64(const dendp_json *j, int64_t *out) {
    uint64_t v = 0, at = j->begin, most = INT64_MAX;
    bool negative;
    if (j->kind != DENDP_JSON_NUMBER) {
        return false;
    }
    negative = j->data[at] == '-';
    most += negative ? 1u : 0u;
    for (at += negative ? 1u : 0u; at < j->end; at++) {
        uint64_t digit = (uint64_t)j->data[at] - '0';
        if (digit > 9 || v > (most - digit) / 10) {
            return false;
        }
        v = v * 10 + digit;
    }
    /* the most negative number has no positive counterpart */
    *out = !negative ? (int64_t)v : v == 0 ? 0 : -(int64_t)(v - 1) - 1;
    return true;
}

/* As dendp_json_i64, for [0, 2^64); "-0" is refused. */
static bool dendp_json_u64(const dendp_json *j, uint64_t *out) {
    uint64_t v = 0, at;
    if (j->kind != DENDP_JSON_NUMBER) {
        return false;
    }
    for (at = j->begin; at < j->end; at++) {
        uint64_t digit = (uint64_t)j->data[at] - '0';
        if (digit > 9 || v > (UINT64_MAX - digit) / 10) {
            return false;
        }
        v = v * 10 + digit;
    }
    *out = v;
    return true;
}

/* Whole numbers of up to 160 words, the least first; w[n-1] is not 0. The
 * largest here is a divisor 10^1100, shifted by a bit or two: 115 words. */
typedef struct dendp_big {
    uint32_t w[160];
    uint32_t n;
} dendp_big;

/* b = b * factor + add */
static void dendp_big_mul_add(dendp_big *b, uint32_t factor, uint32_t add) {
    uint64_t carry = add;
    uint32_t i;
    for (i = 0; i < b->n; i++) {
        carry += (uint64_t)b->w[i] * factor;
        b->w[i] = (uint32_t)carry;
        carry >>= 32;
    }
    if (carry) {
        b->w[b->n++] = (uint32_t)carry;
    }
}

static void dendp_big_shift(dendp_big *b, uint32_t bits) {
    uint32_t words = bits / 32, i;
    if (b->n == 0) {
        return;
    }
    if (words) {
        for (i = b->n; i-- > 0;) b->w[i + words] = b->w[i];
        memset(b->w, 0, words * sizeof b->w[0]);
        b->n += words;
    }
    dendp_big_mul_add(b, (uint32_t)1 << bits % 32, 0);
}

static uint32_t dendp_big_bits(const dendp_big *b) {
    uint32_t top = b->n ? b->w[b->n - 1] : 0, bits = b->n ? 32 * (b->n - 1) : 0;
    for (; top; top >>= 1) bits++;
    return bits;
}

static int dendp_big_compare(const dendp_big *a, const dendp_big *b) {
    uint32_t i;
    if (a->n != b->n) {
        return a->n < b->n ? -1 : 1;
    }
    for (i = a->n; i-- > 0;) {
        if (a->w[i] != b->w[i]) {
            return a->w[i] < b->w[i] ? -1 : 1;
        }
    }
    return 0;
}

/* a -= b, which is not greater */
static void dendp_big_subtract(dendp_big *a, const dendp_big *b) {
    uint64_t borrow = 0;
    uint32_t i;
    for (i = 0; i < a->n; i++) {
        uint64_t d = (uint64_t)a->w[i] - (i < b->n ? b->w[i] : 0) - borrow;
        a->w[i] = (uint32_t)d;
        borrow = d >> 63;
    }
    while (a->n && a->w[a->n - 1] == 0) a->n--;
}

/* *out = num / den, a little more when `sticky`, rounded to the nearest double,
 * ties to even; false when it is too large. Neither may be 0. */
static bool dendp_big_divide(dendp_big *num, dendp_big *den, bool sticky, double *out) {
    int32_t k = (int32_t)dendp_big_bits(num) - (int32_t)dendp_big_bits(den), precision, i;
    uint64_t q = 0;
    dendp_big_shift(k < 0 ? num : den, (uint32_t)(k < 0 ? -k : k));
    if (dendp_big_compare(num, den) < 0) {
        dendp_big_shift(num, 1);
        k--;
    } /* num / den lies in [1, 2), the value is 2^k times that */
    precision = k >= -1022 ? 53 : 53 + 1022 + k;
    for (i = 0; i < precision; i++) {
        q <<= 1;
        if (dendp_big_compare(num, den) >= 0) {
            dendp_big_subtract(num, den);
            q |= 1;
        }
        dendp_big_shift(num, 1);
    } /* num / den is now what is left, in halves of q's last bit */
    if (precision >= 0) {
        i = dendp_big_compare(num, den);
        q += i > 0 || (i == 0 && (sticky || (q & 1))) ? 1u : 0u;
    }
    *out = ldexp((double)q, k - precision + 1);
    return k < 1023 || (k == 1023 && q < (uint64_t)1 << 53);
}

/* b *= 10^n */
static void dendp_big_mul_tens(dendp_big *b, uint64_t n) {
    for (; n >= 9; n -= 9) dendp_big_mul_add(b, 1000000000u, 0);
    for (; n > 0; n--) dendp_big_mul_add(b, 10, 0);
}

/* The value of a number, correctly rounded. False when it is none, or too large for a double. */
static bool dendp_json_f64(const dendp_json *j, double *out) {
    enum { MAX_DIGITS = 770 }; /* beyond that many, what follows can only break a tie */
    static const double tens[23] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    uint64_t at, m = 0, written = 0;
    int64_t e = 0, exponent = 0;
    uint32_t n_digits = 0;
    bool point = false, sticky = false, negative;
    double v;
    dendp_big num, den;
    if (j->kind != DENDP_JSON_NUMBER) {
        return false;
    }
    negative = j->data[j->begin] == '-';
    num.n = 0;
    for (at = j->begin + (negative ? 1u : 0u); at < j->end && (j->data[at] | 0x20) != 'e'; at++) {
        uint32_t digit = (uint32_t)j->data[at] - '0';
        if (j->data[at] == '.') {
            point = true;
            continue;
        }
        digit = digit > 9 ? 0 : digit;
        if (n_digits == 0 && digit == 0) { /* leading zeros only move the point */
            e -= point ? 1 : 0;
            continue;
        }
        if (n_digits < MAX_DIGITS) {
            dendp_big_mul_add(&num, 10, digit);
            m = n_digits < 19 ? m * 10 + digit : m;
            n_digits++;
            e -= point ? 1 : 0;
        } else {
            sticky = sticky || digit != 0;
            e += point ? 0 : 1;
        }
    }
    if (at < j->end) {
        unsigned char sign = dendp_json_byte(j, at + 1);
        for (at += sign == '-' || sign == '+' ? 2u : 1u; at < j->end; at++) {
            written = written < (UINT64_MAX >> 4) / 10 ? written * 10 + (j->data[at] & 15u) : written;
        }
        exponent = sign == '-' ? -(int64_t)written : (int64_t)written;
    }
    e += exponent; /* each at most 2^60, and no text has 2^60 digits */
    if (n_digits == 0 || e + n_digits < -330) {
        v = 0.0;
    } else if (e + n_digits > 310) {
        return false;
    } else if (n_digits <= 19 && m <= (uint64_t)1 << 53 && e >= -22 && e <= 22) {
        v = e < 0 ? (double)m / tens[-e] : (double)m * tens[e];
    } else {
        den.n = 1;
        den.w[0] = 1;
        dendp_big_mul_tens(e > 0 ? &num : &den, (uint64_t)(e > 0 ? e : -e));
        if (!dendp_big_divide(&num, &den, sticky, &v)) {
            return false;
        }
    }
    *out = negative ? -v : v;
    return true;
}

/* -- the cursor ------------------------------------------------------------------- */

static bool dendp_json_in_object(const dendp_json *j) {
    return j->depth > 0 && (j->objects >> (j->depth - 1) & 1u) != 0;
}

static void dendp_json_space(dendp_json *j) {
    while (j->at < j->size && (j->data[j->at] == ' ' || j->data[j->at] == '\n' || j->data[j->at] == '\r' ||
                               j->data[j->at] == '\t')) {
        j->at++;
    }
}

/* A bracket or brace at j->at opens. */
static dend_status dendp_json_enter(dendp_json *j, bool object, dend_error *err) {
    uint64_t bit = (uint64_t)1 << (j->depth & 63);
    if (j->depth == DENDP_JSON_MAX_DEPTH) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "JSON text is nested more than 64 deep",
                          j->base + j->at);
    }
    j->objects = object ? j->objects | bit : j->objects & ~bit;
    j->depth++;
    j->kind = object ? DENDP_JSON_OBJECT : DENDP_JSON_ARRAY;
    j->state = object ? DENDP_JSON_WANT_FIRST_KEY : DENDP_JSON_WANT_FIRST;
    j->begin = j->at++;
    j->end = j->at;
    return DEND_OK;
}

/* The bracket or brace at j->at closes the one that is open. */
static dend_status dendp_json_leave(dendp_json *j) {
    j->kind = dendp_json_in_object(j) ? DENDP_JSON_OBJECT_END : DENDP_JSON_ARRAY_END;
    j->depth--;
    j->state = DENDP_JSON_WANT_MORE;
    j->begin = j->at++;
    j->end = j->at;
    return DEND_OK;
}

/* true, false or null at j->at. */
static dend_status dendp_json_take_word(dendp_json *j, const char *word, dendp_json_kind kind,
                                        dend_error *err) {
    uint64_t n = 0;
    for (; word[n]; n++) {
        if (dendp_json_byte(j, j->at + n) != (unsigned char)word[n]) {
            return dendp_json_fail(j, j->at + n, "malformed JSON value", err);
        }
    }
    j->kind = kind;
    j->begin = j->at;
    j->end = j->at = j->at + n;
    return DEND_OK;
}

static dend_status dendp_json_take_value(dendp_json *j, dend_error *err) {
    unsigned char c = dendp_json_byte(j, j->at);
    dend_status status;
    switch (c) {
    case '{':
    case '[':
        return dendp_json_enter(j, c == '{', err);
    case '"':
        status = dendp_json_take_string(j, err);
        j->kind = DENDP_JSON_STRING;
        break;
    case 't':
        status = dendp_json_take_word(j, "true", DENDP_JSON_TRUE, err);
        break;
    case 'f':
        status = dendp_json_take_word(j, "false", DENDP_JSON_FALSE, err);
        break;
    case 'n':
        status = dendp_json_take_word(j, "null", DENDP_JSON_NULL, err);
        break;
    default:
        if (c != '-' && !dendp_json_is_digit(c)) {
            return dendp_json_fail(j, j->at, "no JSON value where one must be", err);
        }
        status = dendp_json_take_number(j, err);
        j->kind = DENDP_JSON_NUMBER;
        break;
    }
    j->state = DENDP_JSON_WANT_MORE;
    return status;
}

/* Moves to the next token. After the last one the kind is END, as often as asked.
 * Returns: OK; FORMAT where the text is not JSON, UNSUPPORTED below depth 64;
 * after an error the cursor is of no further use. */
static dend_status dendp_json_next(dendp_json *j, dend_error *err) {
    unsigned char c;
    dend_status status;
    dendp_json_space(j);
    c = dendp_json_byte(j, j->at);
    if (j->state == DENDP_JSON_WANT_MORE) {
        if (j->depth == 0) {
            if (j->at < j->size) {
                return dendp_json_fail(j, j->at, "something follows the JSON value", err);
            }
            j->kind = DENDP_JSON_END;
            j->begin = j->end = j->at;
            return DEND_OK;
        }
        if (c == (dendp_json_in_object(j) ? '}' : ']')) {
            return dendp_json_leave(j);
        }
        if (c != ',') {
            return dendp_json_fail(j, j->at, "no comma where one must be in a JSON text", err);
        }
        j->at++;
        j->state = dendp_json_in_object(j) ? DENDP_JSON_WANT_KEY : DENDP_JSON_WANT_VALUE;
        dendp_json_space(j);
        c = dendp_json_byte(j, j->at);
    } else if ((j->state == DENDP_JSON_WANT_FIRST && c == ']') ||
               (j->state == DENDP_JSON_WANT_FIRST_KEY && c == '}')) {
        return dendp_json_leave(j);
    }
    if (j->state == DENDP_JSON_WANT_VALUE || j->state == DENDP_JSON_WANT_FIRST) {
        return dendp_json_take_value(j, err);
    }
    if (c != '"') {
        return dendp_json_fail(j, j->at, "no key where one must be in a JSON object", err);
    }
    status = dendp_json_take_string(j, err);
    if (status != DEND_OK) {
        return status;
    }
    dendp_json_space(j);
    if (dendp_json_byte(j, j->at) != ':') {
        return dendp_json_fail(j, j->at, "no colon behind a JSON key", err);
    }
    j->at++;
    j->kind = DENDP_JSON_KEY;
    j->state = DENDP_JSON_WANT_VALUE;
    return DEND_OK;
}

/* At a key: reads its whole value. At the beginning of an object or array: reads
 * to its end. Else nothing. The token is then the last one that was read. */
static dend_status dendp_json_skip(dendp_json *j, dend_error *err) {
    dend_status status = DEND_OK;
    uint32_t depth;
    if (j->kind == DENDP_JSON_KEY) {
        status = dendp_json_next(j, err);
    }
    depth = j->depth - (j->kind == DENDP_JSON_OBJECT || j->kind == DENDP_JSON_ARRAY ? 1u : 0u);
    while (status == DEND_OK && j->depth > depth) {
        status = dendp_json_next(j, err);
    }
    return status;
}

/* -- objects ----------------------------------------------------------------------- */

/* Moves to the next member of the object that j is in: its key is the token.
 * *more = false at the object's end. */
static dend_status dendp_json_next_key(dendp_json *j, bool *more, dend_error *err) {
    dend_status status = dendp_json_next(j, err);
    *more = status == DEND_OK && j->kind == DENDP_JSON_KEY;
    return status;
}

/* Finds a member of an object, of which `object` is a bookmark at its opening
 * brace: *value is then a cursor at the value. Absent: the value's kind is END.
 * FORMAT when the key stands there twice. */
static dend_status dendp_json_member(const dendp_json *object, const char *key, dendp_json *value,
                                     dend_error *err) {
    dendp_json j = *object;
    bool more = true, found = false;
    dend_status status;
    while ((status = dendp_json_next_key(&j, &more, err)) == DEND_OK && more) {
        if (dendp_json_is(&j, key)) {
            if (found) {
                return DENDP_FAIL(err, DEND_ERR_FORMAT, "duplicate key", dendp_json_where(&j));
            }
            found = true;
            status = dendp_json_next(&j, err);
            if (status != DEND_OK) {
                return status;
            }
            *value = j;
        }
        status = dendp_json_skip(&j, err);
        if (status != DEND_OK) {
            return status;
        }
    }
    if (!found) {
        *value = *object;
        value->kind = DENDP_JSON_END;
    }
    return status;
}

/* Copies the string or key at j into the chain. */
static dend_status dendp_json_text(const dendp_json *j, dendp_chain *chain, const char **out,
                                   dend_error *err) {
    char *s = (char *)dendp_chain_alloc(chain, j->len + 1);
    if (!s) {
        return DENDP_FAIL(err, DEND_ERR_MEMORY, "no memory for the metadata", dendp_json_where(j));
    }
    (void)dendp_json_copy(j, s, j->len + 1);
    s[j->len] = 0;
    *out = s;
    return DEND_OK;
}

#endif /* DEND_NO_FOLDERS */
