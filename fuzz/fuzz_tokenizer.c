/* Fuzz target of the tokenizer's room. An input is one of two things:
 *
 *     byte 0 = 0..3   the rest is flags (one byte) and text for the small
 *                     vocabulary of that number
 *     else            the rest is a GGUF file with a vocabulary; if it loads,
 *                     texts are made from its own bytes
 *
 * What must hold besides the absence of crashes: the tokens of a text have the
 * bytes of the text, all but those bytes that have no token. Run it from the
 * repository's root, where the vocabularies are found. */
#ifndef DENDRITE_IMPLEMENTATION
#define DENDRITE_IMPLEMENTATION
#include "dendrite.h"
#endif

#include <stdio.h>

static unsigned char *fuzz_tok_read(const char *path, size_t *size) {
    FILE *f = fopen(path, "rb");
    unsigned char *data = NULL;
    long n;
    if (f && fseek(f, 0, SEEK_END) == 0 && (n = ftell(f)) > 0 && fseek(f, 0, SEEK_SET) == 0) {
        data = (unsigned char *)malloc((size_t)n);
        *size = data ? fread(data, 1, (size_t)n, f) : 0;
    }
    if (f) fclose(f);
    return data;
}

/* Loads a vocabulary from memory. */
static dend_status fuzz_tok_load(dendp_tokenizer *t, const void *data, size_t size) {
    dend_model_desc desc;
    dendp_gguf g;
    dend_error err;
    dend_status status;
    memset(&desc, 0, sizeof desc);
    desc.data = data;
    desc.data_size = size;
    (void)dendp_allocator_resolve(&desc.allocator, NULL);
    memset(t, 0, sizeof *t);
    status = dendp_gguf_open(&g, &desc, &err);
    if (status == DEND_OK) {
        status = dendp_tokenizer_load(t, &g, &desc.allocator, &err);
        dendp_gguf_close(&g);
    }
    return status;
}

/* Encodes text[n] and compares what comes back. Returns what is wrong, or NULL. */
static const char *fuzz_tok_round_trip(const dendp_tokenizer *t, const unsigned char *text, size_t n,
                                       uint32_t flags) {
    const char *wrong = NULL;
    size_t n_tokens = 0, again = 0, i, k, at = 0, len;
    dend_status status = dendp_tokenizer_encode(t, (const char *)text, n, flags, NULL, 0, &n_tokens);
    int32_t *tokens;
    if (t->n_vocab == 0) return status == DEND_ERR_UNSUPPORTED ? NULL : "encoded without a vocabulary";
    if (status != (n_tokens ? DEND_ERR_BUFFER : DEND_OK)) return "counting failed";
    if (n_tokens > n + 1) return "more tokens than bytes";
    tokens = (int32_t *)malloc((n_tokens + 1) * sizeof *tokens);
    if (!tokens) return NULL;
    tokens[n_tokens] = 12345;
    status = dendp_tokenizer_encode(t, (const char *)text, n, flags, tokens, n_tokens, &again);
    if (status != DEND_OK || again != n_tokens || tokens[n_tokens] != 12345) wrong = "encoding failed";
    i = 0;
    if (!wrong && (flags & DEND_TOKENIZE_ADD_BOS) && t->add_bos) {
        if (n_tokens == 0 || tokens[i++] != t->bos) wrong = "no bos";
    }
    for (; !wrong && i < n_tokens; i++) {
        const char *s = flags & DEND_TOKENIZE_SPECIAL ? dendp_tokenizer_text(t, tokens[i], &len)
                                                      : dendp_tokenizer_bytes(t, tokens[i], &len);
        if (!s || len == 0 || s[len] != 0) {
            wrong = "token without bytes";
            break;
        }
        for (k = 0; k < len; k++, at++) {
            while (at < n && text[at] != (unsigned char)s[k] && t->byte_ids[text[at]] == DENDP_TOK_NONE) at++;
            if (at == n || text[at] != (unsigned char)s[k]) {
                wrong = "other bytes came back";
                break;
            }
        }
    }
    while (at < n && t->byte_ids[text[at]] == DENDP_TOK_NONE) at++;
    if (!wrong && at != n) wrong = "bytes are missing";
    free(tokens);
    return wrong;
}

/* One input. Returns what is wrong, or NULL. */
static const char *fuzz_tokenizer_one(const unsigned char *data, size_t size) {
    static const char *const paths[4] = {"tests/golden/vocab_gpt2.gguf", "tests/golden/vocab_smollm.gguf",
                                         "tests/golden/vocab_qwen2.gguf",
                                         "tests/golden/vocab_llama-bpe.gguf"};
    static dendp_tokenizer vocabs[4];
    static int ready = 0;
    dendp_tokenizer t;
    const char *wrong = NULL;
    uint32_t i;
    if (!ready) {
        for (i = 0; i < 4; i++) {
            size_t n = 0;
            unsigned char *file = fuzz_tok_read(paths[i], &n);
            dend_status status = file ? fuzz_tok_load(&vocabs[i], file, n) : DEND_ERR_IO;
            free(file);
            if (status != DEND_OK) return "vocabulary of the goldens does not load";
        }
        ready = 1;
    }
    if (size < 2) return NULL;
    if (data[0] < 4) {
        return fuzz_tok_round_trip(&vocabs[data[0]], data + 2, size - 2, data[1] & 3u);
    }
    if (fuzz_tok_load(&t, data + 1, size - 1) == DEND_OK) {
        for (i = 0; i < 4 && !wrong; i++) wrong = fuzz_tok_round_trip(&t, data, size, i);
        for (i = 0; i < 256 && !wrong; i++) {
            size_t n;
            const char *s = dendp_tokenizer_bytes(&t, (int32_t)i - 3, &n);
            if (s && s[n] != 0) wrong = "no zero behind a token";
            if (!s && dendp_tokenizer_is_end(&t, (int32_t)i - 3)) wrong = "an end token that is none";
        }
        dendp_tokenizer_free(&t);
    }
    return wrong;
}

#ifndef DEND_TEST_H
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *wrong = fuzz_tokenizer_one(data, size);
    if (wrong) {
        fprintf(stderr, "%s\n", wrong);
        abort();
    }
    return 0;
}
#endif
