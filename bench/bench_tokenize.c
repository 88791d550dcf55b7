/* How fast does text become tokens?
 *
 *     build/bench_tokenize [-n samples] [-o text.txt] [model.gguf ...]
 *
 * One megabyte, made of files of this repository: 2/5 English (bench/data, docs), 2/5 code (dendrite.h), 1/5 text
 * in many scripts (the valid strings of tests/golden/tok_strings.bin), in slices of 4 KB. One thread,
 * processor time. Prints the
 * median and the best of the samples in MB/s for each model, and for loading the vocabulary in ms. -o writes the
 * text, for other programs: bench/tokenize_peer.py. */
#define DENDRITE_IMPLEMENTATION
#define DEND_STATIC
#include "dendrite.h"

#include <stdio.h>
#include <time.h>

enum { BENCH_BYTES = 1000000, BENCH_SLICE = 4096, BENCH_MOST = 999 };

static int bench_compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

typedef struct bench_text {
    char *s;
    size_t n, at;
} bench_text;

static void bench_add(bench_text *t, const char *path) {
    FILE *f = fopen(path, "rb");
    long n = f && fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    if (n < 0 || fseek(f, 0, SEEK_SET) != 0 || !(t->s = (char *)realloc(t->s, t->n + (size_t)n)) ||
        fread(t->s + t->n, 1, (size_t)n, f) != (size_t)n) {
        fprintf(stderr, "%s: run this in the repository's root\n", path);
        exit(1);
    }
    t->n += (size_t)n;
    fclose(f);
}

/* Keeps the strings that are UTF-8, a line each. */
static void bench_strings(bench_text *t) {
    size_t at = 8, out = 0;
    while (at + 4 <= t->n) {
        size_t len = dendp_load32((unsigned char *)t->s + at), i, step;
        bool valid = true;
        at += 4;
        for (i = 0; i < len; i += step) {
            (void)dendp_uni_next((unsigned char *)t->s + at + i, len - i, &step);
            valid = valid && (step > 1 || (unsigned char)t->s[at + i] < 0x80) &&
                    !(step == 3 && (unsigned char)t->s[at + i] == 0xed &&
                      (unsigned char)t->s[at + i + 1] >= 0xa0);
        }
        if (valid && len < 2000) {
            memmove(t->s + out, t->s + at, len);
            out += len;
            t->s[out++] = '\n';
        }
        at += len;
    }
    t->n = out;
}

/* The next slice of a text, which begins anew at its end, cut at whole characters. */
static size_t bench_slice(bench_text *t, char *out, size_t most) {
    size_t n = t->n - t->at < most ? t->n - t->at : most;
    while (n > 0 && t->at + n < t->n && ((unsigned char)t->s[t->at + n] & 0xc0) == 0x80) n--;
    memcpy(out, t->s + t->at, n);
    t->at += n;
    if (t->at == t->n) t->at = 0;
    return n;
}

int main(int argc, char **argv) {
    static const char *const known[] = {"models/SmolLM2-135M-Instruct.Q4_1.gguf",
                                        "models/Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
                                        "models/gemma-3-270m-Q4_K_M.gguf"};
    static double mbs[BENCH_MOST];
    uint32_t samples = 15, i, k, n_models = 0;
    const char *models[16], *to = NULL;
    bench_text english = {NULL, 0, 0}, code = {NULL, 0, 0}, scripts = {NULL, 0, 0};
    char *text = (char *)malloc(BENCH_BYTES);
    int32_t *tokens = (int32_t *)malloc((2 * BENCH_BYTES + 16) * sizeof *tokens);
    size_t n = 0;
    int a;
    for (a = 1; a < argc; a++) {
        if (a + 1 < argc && strcmp(argv[a], "-n") == 0) {
            samples = (uint32_t)strtoul(argv[++a], NULL, 10);
        } else if (a + 1 < argc && strcmp(argv[a], "-o") == 0) {
            to = argv[++a];
        } else if (n_models < 16) {
            models[n_models++] = argv[a];
        }
    }
    samples = samples < 1 ? 1 : samples > BENCH_MOST ? BENCH_MOST : samples;
    if (n_models == 0) {
        for (; n_models < 3; n_models++) models[n_models] = known[n_models];
    }
    if (!text || !tokens) return 1;
    bench_add(&english, "bench/data/gsm8k.jsonl");
    bench_add(&english, "docs/search.md");
    bench_add(&english, "docs/performance.md");
    bench_add(&english, "tests/golden/ppl_text.txt");
    bench_add(&code, "dendrite.h");
    bench_add(&scripts, "tests/golden/tok_strings.bin");
    bench_strings(&scripts);
    for (i = 0; n < BENCH_BYTES; i++) {
        bench_text *from = i % 5 == 4 ? &scripts : i % 5 % 2 ? &code : &english;
        size_t got =
            bench_slice(from, text + n, BENCH_BYTES - n < BENCH_SLICE ? BENCH_BYTES - n : BENCH_SLICE);
        if (got == 0) break; /* less is left than a character */
        n += got;
    }
    if (to) {
        FILE *f = fopen(to, "wb");
        if (!f || fwrite(text, 1, n, f) != n || fclose(f) != 0) return 1;
    }
    for (k = 0; k < n_models; k++) {
        dend_model_desc desc;
        dend_model *model;
        dend_error err;
        size_t n_tokens = 0;
        uint64_t start = dendp_now_ns(), loaded;
        memset(&desc, 0, sizeof desc);
        desc.path = models[k];
        desc.vocab_only = true;
        if (dend_model_load(&desc, &model, &err) != DEND_OK) {
            printf("%-50s %s\n", models[k], err.msg);
            continue;
        }
        loaded = dendp_now_ns();
        for (i = 0; i < samples; i++) {
            clock_t begin = clock(); /* of the processor: the rest of the machine may be busy */
            if (dend_tokenize(model, text, n, 0, tokens, 2 * BENCH_BYTES + 16, &n_tokens) != DEND_OK)
                return 1;
            mbs[i] = (double)n * 1e-6 * CLOCKS_PER_SEC / ((double)(clock() - begin) + 1);
        }
        qsort(mbs, samples, sizeof *mbs, bench_compare);
        printf("%-50s %7lu tokens  %6.1f MB/s median, %6.1f best; vocabulary loaded in %.0f ms\n", models[k],
               (unsigned long)n_tokens, mbs[samples / 2], mbs[samples - 1], (double)(loaded - start) * 1e-6);
        dend_model_free(model);
    }
    free(text);
    free(tokens);
    free(english.s);
    free(code.s);
    free(scripts.s);
    return 0;
}
