/* Fuzz target of the tokenizer's rooms. An input is one of three things:
 *
 *     byte 0 = 0..5   the rest is flags (one byte) and text for the small
 *                     vocabulary of that number
 *     byte 0 = '{'    all of it is a tokenizer.json
 *     else            the rest is a GGUF file with a vocabulary
 *
 * From a file that loads, texts are made of its own bytes.
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

/* What must hold for pieces: the text comes back whole, but that a U+2581 is a
 * space, unless something of it has no token. */
static const char *fuzz_tok_pieces_back(const dendp_tokenizer *t, const int32_t *tokens, size_t n_tokens,
                                        const unsigned char *text, size_t n, uint32_t flags) {
    const char *wrong = NULL;
    size_t n_out = 0, i, at = 0;
    unsigned char *out;
    for (i = 0; i < 256; i++) {
        if (t->byte_ids[i] == DENDP_TOK_NONE) return NULL;
    }
    if (dendp_tokenizer_decode(t, tokens, n_tokens, flags & 1u, NULL, 0, &n_out) < DEND_ERR_BUFFER)
        return "not decoded";
    out = (unsigned char *)malloc(n_out + 1);
    if (!out) return NULL;
    if (dendp_tokenizer_decode(t, tokens, n_tokens, flags & 1u, (char *)out, n_out, &i) != DEND_OK ||
        i != n_out) {
        wrong = "decoding failed";
    }
    for (i = 0; i < n_out && !wrong; i++, at++) {
        if (at < n && out[i] == text[at]) continue;
        if (n - at < 3 || memcmp(text + at, "\342\226\201", 3) != 0 || out[i] != ' ')
            wrong = "other text came back";
        at += 2;
    }
    free(out);
    return wrong ? wrong : at == n ? NULL : "text is missing";
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
    if (n_tokens > (t->prefix ? 2 * n + 3 : n + 2)) return "more tokens than bytes";
    tokens = (int32_t *)malloc((n_tokens + 1) * sizeof *tokens);
    if (!tokens) return NULL;
    tokens[n_tokens] = 12345;
    status = dendp_tokenizer_encode(t, (const char *)text, n, flags, tokens, n_tokens, &again);
    if (status != DEND_OK || again != n_tokens || tokens[n_tokens] != 12345) wrong = "encoding failed";
    i = 0;
    if (!wrong && (flags & DEND_TOKENIZE_ADD_BOS) && t->add_bos) {
        if (n_tokens == 0 || tokens[i++] != t->bos) wrong = "no bos";
    }
    if (!wrong && (flags & DEND_TOKENIZE_ADD_EOS) && t->add_eos) {
        if (n_tokens == 0 || tokens[--n_tokens] != t->eos) wrong = "no eos";
    }
    if (!wrong && t->spelling == DENDP_SPELL_PIECES) {
        wrong = fuzz_tok_pieces_back(t, tokens + i, n_tokens - i, text, n, flags);
        free(tokens);
        return wrong;
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

/* Loads a tokenizer.json, which serves as all the other files of a model's folder too. */
static dend_status fuzz_tok_load_json(dendp_tokenizer *t, const void *data, size_t size) {
    dendp_tok_json_files files;
    dend_allocator a;
    dend_error err;
    memset(&a, 0, sizeof a);
    (void)dendp_allocator_resolve(&a, NULL);
    files.tokenizer = files.config = files.special = files.generation = files.model = (const char *)data;
    files.n_tokenizer = files.n_config = files.n_special = files.n_generation = files.n_model = size;
    return dendp_tokenizer_load_json(t, &files, &a, &err);
}

#define FUZZ_TOK_VOCABS 6

/* One input. Returns what is wrong, or NULL. */
static const char *fuzz_tokenizer_one(const unsigned char *data, size_t size) {
    static const char *const paths[FUZZ_TOK_VOCABS] = {
        "tests/golden/vocab_gpt2.gguf",      "tests/golden/vocab_smollm.gguf",
        "tests/golden/vocab_qwen2.gguf",     "tests/golden/vocab_llama-bpe.gguf",
        "tests/golden/vocab_sp_prefix.gguf", "tests/golden/vocab_sp_plain.gguf"};
    static dendp_tokenizer vocabs[FUZZ_TOK_VOCABS];
    static int ready = 0;
    dendp_tokenizer t;
    const char *wrong = NULL;
    dend_status status;
    uint32_t i;
    if (!ready) {
        for (i = 0; i < FUZZ_TOK_VOCABS; i++) {
            size_t n = 0;
            unsigned char *file = fuzz_tok_read(paths[i], &n);
            status = file ? fuzz_tok_load(&vocabs[i], file, n) : DEND_ERR_IO;
            free(file);
            if (status != DEND_OK) return "vocabulary of the goldens does not load";
        }
        ready = 1;
    }
    if (size < 2) return NULL;
    if (data[0] < FUZZ_TOK_VOCABS) {
        return fuzz_tok_round_trip(&vocabs[data[0]], data + 2, size - 2, data[1] & 7u);
    }
    status = data[0] == '{' ? fuzz_tok_load_json(&t, data, size) : fuzz_tok_load(&t, data + 1, size - 1);
    if (status == DEND_OK) {
        for (i = 0; i < 8 && !wrong; i++) {
            if (t.prefix < DENDP_PREFIX_EACH_WORD || data[0] != '{')
                wrong = fuzz_tok_round_trip(&t, data, size, i);
        }
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
