/* What an engine's manners cost: does a step keep to its budget, is the plan
 * right, how fast are texts split and models opened.
 *
 *     make bench-doors [OUT=file.json]
 *
 * Only public calls are used. Slices: a prompt of 2,048 tokens is computed while
 * eight branches decode, all by dend_step with a budget of 1, 2, 4 or 8 ms; every
 * further tokens that a branch is given waits for a step of the same kind. A
 * slice's overrun is its time beyond the budget. The drop of the sole owner of
 * 131,072 tokens counts as a slice as well, and so do the steps that release
 * the rest of it; so do appends of 512 tokens to a full pool, of which some have
 * to evict what the prefix tree holds. The figure of a budget is the larger of
 * both models' 99th percentiles, in microseconds.
 *
 * The plan is made before the model is loaded, and held against allocators that
 * count. The prompt is then given to a new sequence: how many rows does it cost,
 * now that it has been seen? Loading is timed with the
 * file in the system's cache, mapped, with its layout kept; the median of five.
 * Text is the tests' English prose, repeated to a megabyte; the slower of the
 * two models' tokenizers counts, each at its best of five.
 *
 * -t BYTES and -s SECONDS are the size of the core profile's code and the time
 * that it took to compile, which the Makefile knows. A figure whose model is not
 * there is null.
 */
#define DENDRITE_IMPLEMENTATION
#include "dendrite.h"

#include <stdio.h>

#define SMOLLM2 "models/SmolLM2-135M-Instruct.Q4_1.gguf"
#define QWEN05 "models/Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf"
#define QWEN15 "models/Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf"
#define PROSE "tests/golden/ppl_text.txt"

#define N_PROMPT 2048u
#define N_BRANCHES 8u
#define N_OWNER 131072u
#define MAX_SLICES 65536u
#define TEXT_BYTES 1000000u

static const uint32_t budgets_ms[4] = {1, 2, 4, 8};

/* Counts what it has given out; the memory is the C library's. */
typedef struct heap {
    uint64_t live, most;
} heap;

static void *heap_alloc(void *user, size_t size, size_t align) {
    heap *h = (heap *)user;
    void *p = dendp_default_alloc(NULL, size, align);
    h->live += p ? size : 0;
    h->most = h->live > h->most ? h->live : h->most;
    return p;
}

static void heap_free(void *user, void *p, size_t size) {
    ((heap *)user)->live -= size;
    dendp_default_free(NULL, p, size);
}

static dend_allocator heap_allocator(heap *h) {
    dend_allocator a;
    memset(h, 0, sizeof *h);
    a.alloc = heap_alloc;
    a.free = heap_free;
    a.user = h;
    return a;
}

static bool say(const char *what, dend_status status) {
    if (status < 0) {
        fprintf(stderr, "bench_doors: %s: %s\n", what, dend_status_text(status));
        return false;
    }
    return true;
}

static int compare_doubles(const void *a, const void *b) {
    double x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x < y ? -1 : x > y ? 1 : 0;
}

/* The p-th percentile of samples, which are sorted here. */
static double percentile(double *samples, uint32_t n, uint32_t p) {
    uint32_t at = n * p / 100;
    qsort(samples, n, sizeof samples[0], compare_doubles);
    return n ? samples[at < n ? at : n - 1] : 0.0;
}

/* -- slices --------------------------------------------------------------------- */

typedef struct slices {
    double over_us[MAX_SLICES];
    uint32_t n;
    uint64_t budget_us, n_tokens;
} slices;

static void slice_end(slices *s, uint64_t began_ns) {
    double us = (double)(dendp_now_ns() - began_ns) / 1000.0 - (double)s->budget_us;
    if (s->n < MAX_SLICES) {
        s->over_us[s->n++] = us > 0.0 ? us : 0.0;
    }
}

static dend_status timed_step(slices *s, dend_engine *engine) {
    uint64_t began = dendp_now_ns();
    dend_status status = dend_step(engine, s->budget_us);
    slice_end(s, began);
    return status;
}

/* Gives each branch that waits for nothing its next token. */
static bool feed(dend_engine *engine, dend_seq *branches, slices *s) {
    uint32_t i;
    for (i = 0; i < N_BRANCHES; i++) {
        dend_seq_info info;
        dend_sample_params p;
        dend_sampled got;
        if (!say("info", dend_seq_get_info(engine, branches[i], &info))) {
            return false;
        }
        if (info.n_waiting || !info.has_logits) {
            continue;
        }
        memset(&p, 0, sizeof p);
        p.temperature = 1.0f;
        if (!say("sample", dend_sample(engine, branches[i], &p, &got)) ||
            !say("append", dend_seq_append(engine, branches[i], &got.token, 1))) {
            return false;
        }
        s->n_tokens++;
    }
    return true;
}

/* The prompt beside the branches, then the drop of the long owner, in slices of one budget. */
static bool run_slices(dend_engine *engine, uint32_t n_vocab, slices *s) {
    static int32_t tokens[N_OWNER];
    dend_seq trunk, prompt, owner, branches[N_BRANCHES];
    dend_seq_info info;
    uint64_t began;
    uint32_t i;
    bool ok;
    for (i = 0; i < N_OWNER; i++) {
        tokens[i] = (int32_t)(1000 + (i * 7919u) % (n_vocab - 2000));
    }
    ok = say("create", dend_seq_create(engine, &trunk)) &&
         say("append", dend_seq_append(engine, trunk, tokens, 64)) && say("step", dend_step(engine, 0)) &&
         say("create", dend_seq_create(engine, &prompt));
    for (i = 0; i < N_BRANCHES && ok; i++) {
        ok = say("fork", dend_seq_fork(engine, trunk, 0, &branches[i]));
    }
    ok = ok && feed(engine, branches, s) && say("append", dend_seq_append(engine, prompt, tokens, N_PROMPT));
    do {
        ok = ok && say("step", timed_step(s, engine)) && feed(engine, branches, s) &&
             say("info", dend_seq_get_info(engine, prompt, &info));
    } while (ok && info.n_waiting);
    ok = ok && say("drop", dend_seq_drop(engine, prompt)); /* its blocks are the prefix tree's from now on */
    /* A sequence that takes what is left of the pool, and what the tree has to give. */
    ok = ok && say("create", dend_seq_create(engine, &owner));
    for (i = 0; i + 512 <= N_OWNER && ok; i += 512) {
        began = dendp_now_ns();
        if (dend_seq_append(engine, owner, tokens + i, 512) != DEND_OK) {
            break;
        }
        slice_end(s, began);
    }
    ok = ok && say("drop", dend_seq_drop(engine, owner));
    for (i = 0; i < 8 && ok; i++) { /* all of it comes back */
        ok = say("step", timed_step(s, engine)) && feed(engine, branches, s);
    }
    /* 64 slices of decoding alone, in the middle of which the owner goes. */
    ok = ok && say("create", dend_seq_create(engine, &owner)) &&
         say("append", dend_seq_append(engine, owner, tokens, N_OWNER));
    began = dendp_now_ns();
    ok = ok && say("drop", dend_seq_drop(engine, owner));
    slice_end(s, began);
    for (i = 0; i < 64 && ok; i++) {
        ok = say("step", timed_step(s, engine)) && feed(engine, branches, s);
    }
    if (ok) {
        for (i = 0; i < N_BRANCHES; i++) {
            (void)dend_seq_drop(engine, branches[i]);
        }
        (void)dend_seq_drop(engine, trunk);
        dend_prefix_clear(engine);
        ok = say("step", dend_step(engine, 0));
    }
    return ok;
}

/* -- the figures ------------------------------------------------------------------ */

typedef struct figures {
    double slice_p99[4], plan_error, prefix_rows, tokenize_mb_s, load_ms, text_bytes,
        compile_s; /* below 0 = not there */
} figures;

static bool there(const char *path) {
    FILE *f = fopen(path, "rb");
    if (f) {
        fclose(f);
        return true;
    }
    fprintf(stderr, "bench_doors: %s is not here (make models)\n", path);
    return false;
}

/* Rows that a prompt of N_PROMPT tokens costs the second time. */
static bool second_prompt(dend_engine *engine, uint32_t n_vocab, double *rows) {
    static int32_t tokens[N_PROMPT];
    dend_engine_stats before, after;
    dend_seq seq;
    uint32_t i, round;
    for (i = 0; i < N_PROMPT; i++) {
        tokens[i] = (int32_t)(500 + (i * 104729u) % (n_vocab - 2000));
    }
    for (round = 0; round < 2; round++) {
        dend_engine_get_stats(engine, &before);
        if (!say("create", dend_seq_create(engine, &seq)) ||
            !say("append", dend_seq_append(engine, seq, tokens, N_PROMPT)) ||
            !say("step", dend_step(engine, 0)) || !say("drop", dend_seq_drop(engine, seq))) {
            return false;
        }
        dend_engine_get_stats(engine, &after);
    }
    *rows = (double)(after.n_rows - before.n_rows);
    return true;
}

/* One model: slices of all budgets, the plan, its tokenizer. */
static bool measure_model(const char *path, const char *text, figures *out) {
    static slices s;
    static int32_t ids[TEXT_BYTES + 1];
    heap model_heap, engine_heap;
    dend_model_desc md;
    dend_engine_desc ed;
    dend_model *model = NULL;
    dend_engine *engine = NULL;
    dend_model_info info;
    dend_plan_info plan;
    double error, rows, best = 0.0;
    uint32_t i;
    bool ok;
    memset(&md, 0, sizeof md);
    memset(&ed, 0, sizeof ed);
    md.path = path;
    md.allocator = heap_allocator(&model_heap);
    ed.n_ctx = N_OWNER;
    ed.n_seqs = 16;
    ed.n_blocks = (N_OWNER + 2 * N_PROMPT) / 16 + 1024;
    ed.kv_type = DEND_KV_Q8_0;
    ed.n_prefixes = 16;
    ed.allocator = heap_allocator(&engine_heap);
    if (!say("plan", dend_plan_file(&md, &ed, &plan, NULL)) ||
        !say(path, dend_model_load(&md, &model, NULL))) {
        return false;
    }
    dend_model_get_info(model, &info);
    ed.model = model;
    ok = say("engine", dend_engine_create(&ed, &engine, NULL));
    for (i = 0; i < 4 && ok; i++) {
        double p99;
        s.n = 0;
        s.n_tokens = 0;
        s.budget_us = 1000 * budgets_ms[i];
        ok = run_slices(engine, info.n_vocab, &s);
        p99 = percentile(s.over_us, s.n, 99);
        printf("  %u ms: %u slices, %u tokens of branches, overrun p50 %.0f us, p99 %.0f us, most %.0f us\n",
               budgets_ms[i], s.n, (unsigned)s.n_tokens, s.over_us[s.n / 2], p99,
               s.over_us[s.n ? s.n - 1 : 0]);
        out->slice_p99[i] = p99 > out->slice_p99[i] ? p99 : out->slice_p99[i];
    }
    error = fabs((double)plan.total_bytes - (double)engine_heap.most) +
            fabs((double)plan.model_bytes - (double)model_heap.live);
    out->plan_error = error > out->plan_error ? error : out->plan_error;
    printf("  plan: %llu bytes for the engine, %llu asked for; %llu for the model, it holds %llu\n",
           (unsigned long long)plan.total_bytes, (unsigned long long)engine_heap.most,
           (unsigned long long)plan.model_bytes, (unsigned long long)model_heap.live);
    ok = ok && second_prompt(engine, info.n_vocab, &rows);
    if (ok) {
        printf("  a prompt of %u tokens seen before: %.0f rows\n", N_PROMPT, rows);
        out->prefix_rows = rows > out->prefix_rows ? rows : out->prefix_rows;
    }
    dend_engine_free(engine);
    for (i = 0; i < 5 && ok; i++) {
        size_t n = 0;
        uint64_t began = dendp_now_ns();
        double mb_s;
        ok = say("tokenize", dend_tokenize(model, text, TEXT_BYTES, 0, ids, TEXT_BYTES + 1, &n));
        mb_s = TEXT_BYTES / 1e6 / ((double)(dendp_now_ns() - began) / 1e9);
        best = mb_s > best ? mb_s : best;
    }
    printf("  tokenizer: %.1f MB/s\n", best);
    out->tokenize_mb_s = out->tokenize_mb_s < 0 || best < out->tokenize_mb_s ? best : out->tokenize_mb_s;
    dend_model_free(model);
    return ok;
}

static bool measure_load(figures *out) {
    double ms[6];
    uint32_t i;
    for (i = 0; i < 6; i++) { /* the first one brings the file into the cache */
        dend_model_desc md;
        dend_model *model = NULL;
        uint64_t began;
        memset(&md, 0, sizeof md);
        md.path = QWEN15;
        md.keep_file_layout = true;
        began = dendp_now_ns();
        if (!say(QWEN15, dend_model_load(&md, &model, NULL))) {
            return false;
        }
        ms[i] = (double)(dendp_now_ns() - began) / 1e6;
        dend_model_free(model);
    }
    out->load_ms = percentile(ms + 1, 5, 50);
    printf("load of the 1.5B model, mapped: %.0f ms\n", out->load_ms);
    return true;
}

static void put(FILE *f, const char *key, double v, const char *end) {
    if (v < 0) {
        fprintf(f, "  \"%s\": null%s\n", key, end);
    } else {
        fprintf(f, "  \"%s\": %.6g%s\n", key, v, end);
    }
}

static bool write_json(const char *path, const figures *v) {
    FILE *f = fopen(path, "w");
    uint32_t i;
    bool ok;
    if (!f) {
        return false;
    }
    fprintf(f, "{\n");
    for (i = 0; i < 4; i++) {
        char key[40];
        snprintf(key, sizeof key, "slice_p99_over_us_%ums", budgets_ms[i]);
        put(f, key, v->slice_p99[i], ",");
    }
    put(f, "plan_error_bytes", v->plan_error, ",");
    put(f, "prefix_hit_prefill_tokens", v->prefix_rows, ",");
    put(f, "tokenize_mb_s", v->tokenize_mb_s, ",");
    put(f, "load_ms_15b", v->load_ms, ",");
    put(f, "core_text_bytes", v->text_bytes, ",");
    put(f, "core_compile_s", v->compile_s, "");
    fprintf(f, "}\n");
    ok = !ferror(f);
    return fclose(f) == 0 && ok;
}

int main(int argc, char **argv) {
    static char text[TEXT_BYTES];
    figures v = {{-1, -1, -1, -1}, -1, -1, -1, -1, -1, -1};
    const char *out = NULL;
    FILE *prose = fopen(PROSE, "rb");
    size_t n = 0, i;
    int a;
    for (a = 1; a + 1 < argc; a += 2) {
        if (strcmp(argv[a], "-o") == 0) {
            out = argv[a + 1];
        } else if (strcmp(argv[a], "-t") == 0) {
            v.text_bytes = atof(argv[a + 1]);
        } else if (strcmp(argv[a], "-s") == 0) {
            v.compile_s = atof(argv[a + 1]);
        } else {
            break;
        }
    }
    if (a != argc) {
        fprintf(stderr, "usage: bench_doors [-o file.json] [-t bytes] [-s seconds]\n");
        return 2;
    }
    if (prose) {
        n = fread(text, 1, sizeof text, prose);
        fclose(prose);
    }
    if (n == 0) {
        fprintf(stderr, "bench_doors: %s is not here\n", PROSE);
        return 1;
    }
    for (i = n; i < sizeof text; i++) {
        text[i] = text[i - n];
    }
    if (there(SMOLLM2)) {
        printf("SmolLM2\n");
        if (!measure_model(SMOLLM2, text, &v)) {
            return 1;
        }
    }
    if (there(QWEN05)) {
        printf("Qwen 0.5B\n");
        if (!measure_model(QWEN05, text, &v)) {
            return 1;
        }
    }
    if (there(QWEN15) && !measure_load(&v)) {
        return 1;
    }
    if (out && !write_json(out, &v)) {
        fprintf(stderr, "bench_doors: cannot write %s\n", out);
        return 1;
    }
    return 0;
}
