/* libFuzzer target: any bytes as a JSON text.
 *
 * What is read is written again, compactly, from the decoded tokens; reading
 * that must give the same tokens, and writing those the same text. An error
 * must lie inside the text, and must be the same when the text is skipped over
 * instead of read.
 *
 *     make fuzz && build/fuzz_json fuzz/corpus/json
 */
#ifndef DENDRITE_IMPLEMENTATION
#define DENDRITE_IMPLEMENTATION
#include "dendrite.h"
#endif

#include <stdio.h>
#include <stdlib.h>

typedef struct fuzz_json_text {
    char *data;
    size_t n, cap;
} fuzz_json_text;

static void fuzz_json_put(fuzz_json_text *t, const void *p, size_t n) {
    if (n > t->cap - t->n) abort(); /* the room was computed below */
    memcpy(t->data + t->n, p, n);
    t->n += n;
}

/* A string of any bytes with as few escapes as can be. */
static void fuzz_json_put_string(fuzz_json_text *t, const char *s, size_t n) {
    size_t i;
    fuzz_json_put(t, "\"", 1);
    for (i = 0; i < n; i++) {
        char escape[8];
        if ((unsigned char)s[i] < 0x20) {
            snprintf(escape, sizeof escape, "\\u%04x", (unsigned)s[i]);
            fuzz_json_put(t, escape, 6);
        } else {
            if (s[i] == '"' || s[i] == '\\') fuzz_json_put(t, "\\", 1);
            fuzz_json_put(t, s + i, 1);
        }
    }
    fuzz_json_put(t, "\"", 1);
}

/* Reads a text and writes it to *out. The status and error of reading; *wrong what must not be. */
static dend_status fuzz_json_rewrite(const void *data, size_t size, fuzz_json_text *out, dend_error *err,
                                     const char **wrong) {
    dendp_json j;
    dendp_json_kind before = DENDP_JSON_END;
    dend_status status;
    uint64_t last = 0;
    dendp_json_open(&j, data, size, 0);
    while ((status = dendp_json_next(&j, err)) == DEND_OK && j.kind != DENDP_JSON_END) {
        bool opened = before == DENDP_JSON_END || before == DENDP_JSON_KEY || before == DENDP_JSON_ARRAY ||
                      before == DENDP_JSON_OBJECT;
        if (j.begin < last || j.end <= j.begin || j.end > size || j.at < j.end || j.depth > 64) {
            *wrong = "a token out of place";
            return status;
        }
        last = j.end;
        if (!opened && j.kind != DENDP_JSON_ARRAY_END && j.kind != DENDP_JSON_OBJECT_END) {
            fuzz_json_put(out, ",", 1);
        }
        before = j.kind;
        if (j.kind == DENDP_JSON_STRING || j.kind == DENDP_JSON_KEY) {
            char *s = (char *)malloc(j.len + 1);
            if (!s) abort();
            if (j.len > j.end - j.begin - 2 || !dendp_json_copy(&j, s, j.len + 1) || s[j.len] != 0 ||
                dendp_json_copy(&j, s, j.len)) {
                *wrong = "a string is not as long as it says";
            } else {
                (void)dendp_json_copy(&j, s, j.len + 1);
                if (!memchr(s, 0, j.len) && !dendp_json_is(&j, s)) *wrong = "a string that is not itself";
                fuzz_json_put_string(out, s, (size_t)j.len);
            }
            free(s);
            if (j.kind == DENDP_JSON_KEY) fuzz_json_put(out, ":", 1);
        } else {
            double d = 0;
            int64_t i = 0;
            uint64_t u = 0;
            bool is_f64 = dendp_json_f64(&j, &d), is_i64 = dendp_json_i64(&j, &i),
                 is_u64 = dendp_json_u64(&j, &u);
            if ((is_i64 || is_u64) && !is_f64) *wrong = "an integer that is no number";
            if (is_i64 && (double)i != d) *wrong = "an integer and a number that differ";
            if (is_u64 && (double)u != d) *wrong = "an integer and a number that differ";
            if (is_f64 && !(d - d == 0)) *wrong = "a number that is none";
            if (j.kind == DENDP_JSON_NUMBER && size < 1000) { /* beside the C library */
                char text[1024];
                double want;
                memcpy(text, j.data + j.begin, (size_t)(j.end - j.begin));
                text[j.end - j.begin] = 0;
                want = strtod(text, NULL);
                if (is_f64 ? memcmp(&want, &d, sizeof d) != 0 : want - want == 0)
                    *wrong = "a number read wrongly";
            }
            fuzz_json_put(out, j.data + j.begin, (size_t)(j.end - j.begin));
        }
        if (*wrong) return status;
    }
    return status;
}

/* One input. Returns what is wrong, or NULL. */
static const char *fuzz_json_one(const unsigned char *data, size_t size) {
    fuzz_json_text once, twice;
    const char *wrong = NULL;
    dend_error err = {DEND_OK, NULL, 0, 0, NULL}, skipped = {DEND_OK, NULL, 0, 0, NULL};
    dend_status status;
    dendp_json j;
    once.cap = twice.cap = 3 * size + 16; /* an escape of two bytes may become one of six */
    once.n = twice.n = 0;
    once.data = (char *)malloc(once.cap);
    twice.data = (char *)malloc(twice.cap);
    if (!once.data || !twice.data) abort();
    status = fuzz_json_rewrite(data, size, &once, &err, &wrong);
    if (!wrong && status == DEND_OK) {
        if (fuzz_json_rewrite(once.data, once.n, &twice, NULL, &wrong) != DEND_OK) {
            wrong = "what was read cannot be read again";
        } else if (!wrong && (once.n != twice.n || memcmp(once.data, twice.data, once.n) != 0)) {
            wrong = "the second reading differs";
        }
    } else if (!wrong) {
        dendp_json_open(&j, data, size, 0);
        while (dendp_json_next(&j, &skipped) == DEND_OK && dendp_json_skip(&j, &skipped) == DEND_OK &&
               j.kind != DENDP_JSON_END) {
        }
        if (!err.msg || err.where > size || (status != DEND_ERR_FORMAT && status != DEND_ERR_UNSUPPORTED)) {
            wrong = "an error without its place";
        } else if (skipped.status != status || skipped.where != err.where) {
            wrong = "skipping fails otherwise than reading";
        }
    }
    free(once.data);
    free(twice.data);
    return wrong;
}

#ifndef DEND_TEST_H
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *wrong = fuzz_json_one(data, size);
    if (wrong) {
        fprintf(stderr, "%s\n", wrong);
        abort();
    }
    return 0;
}
#endif
