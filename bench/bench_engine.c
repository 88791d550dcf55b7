/* Measures the engine on one model. Reads commands from stdin, so that a driver
 * can interleave it with other engines; each answer is one line.
 *
 *     build/bench_engine model.gguf [-t threads] [-k f32|f16|q8_0] [-c context] [-l 0|1]
 *
 * -l 1: weights stay as the file has them (dend_model_desc.keep_file_layout).
 *
 *     decode N           N greedy tokens after an empty context        -> tokens/s
 *     prefill N          a prompt of N tokens                          -> tokens/s
 *     deep CTX N         N tokens behind a context of CTX              -> tokens/s
 *     branches B CTX N   N tokens on each of B branches of CTX tokens  -> tokens/s, all together
 *     rows R N           N steps of R rows (R branches, short context) -> milliseconds a step
 *     memory             the most that this process has had in memory  -> MB
 *     probe              read bandwidth of all threads                 -> GB/s
 *     peak               products of bytes from registers, all threads -> GMAC/s
 *     region N           N empty parallel loops                        -> microseconds a loop
 *
 * The first line says what a step has to do: the bytes of weights that it reads, multiply-adds a row (layers,
 * head), and the bytes of K and V of one position (of all layers, though sliding ones see no further than their window).
 */
#define DENDRITE_IMPLEMENTATION
#include "dendrite.h"

#include <stdio.h>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/resource.h>
#endif

typedef struct bench {
    dend_model *model;
    dend_engine *engine;
    dend_model_info info;
    dend_seq deep; /* a context that is kept between commands */
    uint32_t deep_len;
    uint64_t random;
    unsigned char *probe;
    uint64_t probe_sum;
} bench;

#define PROBE_BYTES (320u << 20)

/* An ordinary token id: the same sequence every run. */
static int32_t bench_token(bench *b) {
    b->random = b->random * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((b->random >> 33) % (b->info.n_vocab < 10000 ? b->info.n_vocab : 10000));
}

static bool bench_append(bench *b, dend_seq seq, uint32_t n) {
    while (n > 0) {
        int32_t tokens[256];
        uint32_t i, part = n < 256 ? n : 256;
        for (i = 0; i < part; i++) {
            tokens[i] = bench_token(b);
        }
        if (dend_seq_append(b->engine, seq, tokens, part) != DEND_OK) {
            return false;
        }
        n -= part;
    }
    return true;
}

static double bench_seconds(uint64_t start) {
    return (double)(dendp_now_ns() - start) * 1e-9;
}

/* n steps of one greedy token on each of n_seqs sequences; returns seconds, < 0 on error. */
static double bench_steps(bench *b, const dend_seq *seqs, uint32_t n_seqs, uint32_t n) {
    uint64_t start;
    uint32_t i, s;
    if (dend_step(b->engine, 0) != DEND_OK) {
        return -1;
    }
    start = dendp_now_ns();
    for (i = 0; i < n; i++) {
        for (s = 0; s < n_seqs; s++) {
            dend_sampled sampled;
            if (dend_sample(b->engine, seqs[s], NULL, &sampled) != DEND_OK ||
                dend_seq_append(b->engine, seqs[s], &sampled.token, 1) != DEND_OK) {
                return -1;
            }
        }
        if (dend_step(b->engine, 0) != DEND_OK) {
            return -1;
        }
    }
    return bench_seconds(start);
}

static double bench_decode(bench *b, uint32_t n) {
    dend_seq seq;
    double seconds = -1;
    if (dend_seq_create(b->engine, &seq) == DEND_OK) {
        if (bench_append(b, seq, 1)) {
            seconds = bench_steps(b, &seq, 1, n);
        }
        dend_seq_drop(b->engine, seq);
    }
    return seconds > 0 ? n / seconds : -1;
}

static double bench_prefill(bench *b, uint32_t n) {
    dend_seq seq;
    double seconds = -1;
    if (dend_seq_create(b->engine, &seq) == DEND_OK) {
        if (bench_append(b, seq, n)) {
            uint64_t start = dendp_now_ns();
            seconds = dend_step(b->engine, 0) == DEND_OK ? bench_seconds(start) : -1;
        }
        dend_seq_drop(b->engine, seq);
    }
    return seconds > 0 ? n / seconds : -1;
}

/* Makes sure that the kept context has `len` tokens. */
static bool bench_deepen(bench *b, uint32_t len) {
    if (b->deep_len > len && dend_seq_rewind(b->engine, b->deep, len) != DEND_OK) {
        return false;
    }
    if (b->deep_len < len && !bench_append(b, b->deep, len - b->deep_len)) {
        return false;
    }
    b->deep_len = len;
    return dend_seq_want_logits(b->engine, b->deep) == DEND_OK && dend_step(b->engine, 0) == DEND_OK;
}

/* Tokens a second of n tokens on each of `n_seqs` forks of a context. */
static double bench_branches(bench *b, uint32_t n_seqs, uint32_t ctx, uint32_t n) {
    dend_seq seqs[64];
    uint32_t made = 0, i;
    double seconds = -1;
    memset(seqs, 0, sizeof seqs);
    if (n_seqs > 64 || !bench_deepen(b, ctx)) {
        return -1;
    }
    while (made < n_seqs && dend_seq_fork(b->engine, b->deep, 0, &seqs[made]) == DEND_OK) {
        made++;
    }
    if (made == n_seqs) {
        for (i = 0; i < made; i++) { /* branches differ from their first token on */
            if (!bench_append(b, seqs[i], 1)) {
                return -1;
            }
        }
        seconds = bench_steps(b, seqs, made, n);
    }
    for (i = 0; i < made; i++) {
        dend_seq_drop(b->engine, seqs[i]);
    }
    return seconds > 0 ? (double)n * n_seqs / seconds : -1;
}

#define PROBE_TASKS 64u

#if DENDP_X86
DENDP_TARGET_AVX2 static uint64_t bench_read(const unsigned char *p, size_t n) {
    __m256i a = _mm256_setzero_si256(), b = a;
    size_t i;
    for (i = 0; i + 128 <= n; i += 128) {
        _mm_prefetch((const char *)p + i + DENDP_PREFETCH, _MM_HINT_T0);
        _mm_prefetch((const char *)p + i + DENDP_PREFETCH + 64, _MM_HINT_T0);
        a = _mm256_add_epi64(a, _mm256_add_epi64(dendp_load256(p + i), dendp_load256(p + i + 32)));
        b = _mm256_add_epi64(b, _mm256_add_epi64(dendp_load256(p + i + 64), dendp_load256(p + i + 96)));
    }
    a = _mm256_add_epi64(a, b);
    return (uint64_t)_mm256_extract_epi64(a, 0) + (uint64_t)_mm256_extract_epi64(a, 3);
}
#else
static uint64_t bench_read(const unsigned char *p, size_t n) {
    uint64_t s[8] = {0};
    size_t i, k;
    for (i = 0; i + 512 <= n; i += 512) {
        for (k = 0; k < 8; k++) { /* one word of every cache line: the lines are what is read */
            s[k] += p[i + k * 64];
        }
    }
    return s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}
#endif

static void bench_probe_task(void *ctx, uint32_t index) {
    bench *b = (bench *)ctx;
    size_t n = PROBE_BYTES / PROBE_TASKS;
    __atomic_fetch_add(&b->probe_sum, bench_read(b->probe + index * n, n), __ATOMIC_RELAXED);
}

/* -- products of bytes from registers, with the instruction that the kernels use -- */

#define PEAK_LOOPS 100000u

/* Eight sums that a compiler cannot know to be equal. */
#define PEAK_EIGHT(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7)

#if DENDP_X86
DENDP_TARGET_AVX2 static uint64_t bench_products_avx2(void) {
    __m256i x = _mm256_set1_epi8(1), s0 = x, s1 = x, s2 = x, s3 = x, s4 = x, s5 = x, s6 = x, s7 = x;
    uint32_t i;
    for (i = 0; i < PEAK_LOOPS; i++) {
#define PEAK_STEP(k) s##k = _mm256_maddubs_epi16(s##k, x);
        PEAK_EIGHT(PEAK_STEP)
#undef PEAK_STEP
        __asm__ volatile("" : "+x"(s0), "+x"(s1), "+x"(s2), "+x"(s3), "+x"(s4), "+x"(s5), "+x"(s6), "+x"(s7));
    }
    s0 = _mm256_add_epi8(_mm256_add_epi8(s0, s1), _mm256_add_epi8(s2, s3));
    s4 = _mm256_add_epi8(_mm256_add_epi8(s4, s5), _mm256_add_epi8(s6, s7));
    return (uint64_t)_mm256_extract_epi64(_mm256_add_epi8(s0, s4), 0);
}

DENDP_TARGET_AVX512 static uint64_t bench_products_avx512(void) {
    __m512i x = _mm512_set1_epi8(1), s0 = x, s1 = x, s2 = x, s3 = x, s4 = x, s5 = x, s6 = x, s7 = x;
    uint32_t i;
    for (i = 0; i < PEAK_LOOPS; i++) {
#define PEAK_STEP(k) s##k = _mm512_dpbusd_epi32(s##k, x, x);
        PEAK_EIGHT(PEAK_STEP)
#undef PEAK_STEP
        __asm__ volatile("" : "+v"(s0), "+v"(s1), "+v"(s2), "+v"(s3), "+v"(s4), "+v"(s5), "+v"(s6), "+v"(s7));
    }
    s0 = _mm512_add_epi32(_mm512_add_epi32(s0, s1), _mm512_add_epi32(s2, s3));
    s4 = _mm512_add_epi32(_mm512_add_epi32(s4, s5), _mm512_add_epi32(s6, s7));
    return (uint64_t)_mm_cvtsi128_si64(_mm512_castsi512_si128(_mm512_add_epi32(s0, s4)));
}
#endif

static void bench_peak_task(void *ctx, uint32_t index) {
    bench *b = (bench *)ctx;
    uint64_t sum = index;
#if DENDP_X86
    if (b->engine->cpu.kernels->isa == DEND_ISA_AVX512) {
        sum += bench_products_avx512();
    } else if (b->engine->cpu.kernels->isa != DEND_ISA_SCALAR) {
        sum += bench_products_avx2();
    }
#endif
    __atomic_fetch_add(&b->probe_sum, sum, __ATOMIC_RELAXED);
}

/* 0 where this program knows no such instruction. */
static double bench_peak(bench *b) {
    dend_isa isa = b->engine->cpu.kernels->isa;
    double lanes = isa == DEND_ISA_AVX512 ? 64 : isa == DEND_ISA_AVX2 || isa == DEND_ISA_AVX_VNNI ? 32 : 0;
    uint32_t tasks = b->engine->pool.n_threads * 4;
    uint64_t start = dendp_now_ns();
    dendp_pool_run(&b->engine->pool, bench_peak_task, b, tasks);
    return 8.0 * PEAK_LOOPS * lanes * tasks / bench_seconds(start) * 1e-9;
}

static void bench_empty_task(void *ctx, uint32_t index) {
    (void)ctx;
    (void)index;
}

static double bench_region(bench *b, uint32_t n) {
    uint64_t start;
    uint32_t i;
    dendp_pool_run(&b->engine->pool, bench_empty_task, b, b->engine->pool.n_threads); /* wakes them */
    start = dendp_now_ns();
    for (i = 0; i < n; i++) {
        dendp_pool_run(&b->engine->pool, bench_empty_task, b, b->engine->pool.n_threads);
    }
    return bench_seconds(start) * 1e6 / n;
}

/* What a step has to do, for the first line. */
static void bench_sizes(const bench *b, double *bytes, double *macs, double *head_macs, double *kv_bytes) {
    const dend_model *m = b->model;
    uint32_t i, k;
    *macs = *bytes = 0;
    for (i = 0; i < m->config.n_layers; i++) {
        const dendp_layer *l = &m->layers[i];
        const dendp_panels *all[7];
        all[0] = &l->q, all[1] = &l->k, all[2] = &l->v, all[3] = &l->o;
        all[4] = &l->gate, all[5] = &l->up, all[6] = &l->down;
        for (k = 0; k < 7; k++) {
            *macs += (double)all[k]->n_rows * all[k]->k;
            *bytes += (double)all[k]->n_panels * (double)all[k]->panel_bytes;
        }
    }
    *head_macs = (double)m->head.n_rows * m->head.k;
    *bytes += (double)m->head.n_panels * (double)m->head.panel_bytes;
    *kv_bytes = (double)b->engine->cache.groups[0].tile_bytes / DENDP_TILE * m->config.n_kv_heads *
                m->config.n_layers;
}

static double bench_probe(bench *b) {
    uint64_t start;
    if (!b->probe) { /* now, so that it does not count as the engine's memory before */
        b->probe = (unsigned char *)dendp_default_alloc(NULL, PROBE_BYTES, 64);
        if (!b->probe) {
            return -1;
        }
        memset(b->probe, 1, PROBE_BYTES);
    }
    start = dendp_now_ns();
    dendp_pool_run(&b->engine->pool, bench_probe_task, b, PROBE_TASKS);
    return PROBE_BYTES / bench_seconds(start) * 1e-9;
}

/* Most resident memory so far, with the pages of mapped files. */
static double bench_memory(void) {
#if defined(__unix__) || defined(__APPLE__)
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) == 0) {
#if defined(__APPLE__)
        return (double)usage.ru_maxrss * 1e-6;
#else
        return (double)usage.ru_maxrss * 1024e-6;
#endif
    }
#endif
    return -1;
}

static void bench_command(bench *b, const char *line) {
    unsigned x, y, z;
    double result = -1;
    if (sscanf(line, "decode %u", &x) == 1) {
        result = bench_decode(b, x);
    } else if (sscanf(line, "prefill %u", &x) == 1) {
        result = bench_prefill(b, x);
    } else if (sscanf(line, "deep %u %u", &x, &y) == 2) {
        result = bench_branches(b, 1, x, y);
    } else if (sscanf(line, "branches %u %u %u", &x, &y, &z) == 3) {
        result = bench_branches(b, x, y, z);
    } else if (sscanf(line, "rows %u %u", &x, &y) == 2) {
        result = bench_branches(b, x, 16, y);
        result = result > 0 ? 1e3 * x / result : -1;
    } else if (strncmp(line, "memory", 6) == 0) {
        result = bench_memory();
    } else if (strncmp(line, "probe", 5) == 0) {
        result = bench_probe(b);
    } else if (strncmp(line, "peak", 4) == 0) {
        result = bench_peak(b);
    } else if (sscanf(line, "region %u", &x) == 1) {
        result = bench_region(b, x);
    }
    printf("%.4f\n", result);
    fflush(stdout);
}

int main(int argc, char **argv) {
    bench b;
    dend_model_desc md;
    dend_engine_desc ed;
    dend_error error;
    char line[256];
    double bytes, macs, head_macs, kv_bytes;
    int i;
    memset(&b, 0, sizeof b);
    memset(&md, 0, sizeof md);
    memset(&ed, 0, sizeof ed);
    memset(&error, 0, sizeof error);
    md.path = argc > 1 ? argv[1] : "models/SmolLM2-135M-Instruct.Q4_1.gguf";
    ed.n_ctx = 8192 + 512;
    ed.n_batch = 512;
    ed.n_seqs = 80;
    for (i = 2; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "-t") == 0) {
            ed.n_threads = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "-c") == 0) {
            ed.n_ctx = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "-l") == 0) {
            md.keep_file_layout = strtoul(argv[i + 1], NULL, 10) != 0;
        } else if (strcmp(argv[i], "-k") == 0) {
            ed.kv_type = strcmp(argv[i + 1], "f32") == 0    ? DEND_KV_F32
                         : strcmp(argv[i + 1], "q8_0") == 0 ? DEND_KV_Q8_0
                                                            : DEND_KV_F16;
        }
    }
    if (dend_model_load(&md, &b.model, &error) == DEND_OK) {
        ed.model = b.model;
        dend_engine_create(&ed, &b.engine, &error);
    }
    if (!b.engine || dend_seq_create(b.engine, &b.deep) != DEND_OK) {
        fprintf(stderr, "%s: %s\n", md.path, error.msg ? error.msg : "out of memory");
        return 1;
    }
    dend_model_get_info(b.model, &b.info);
    bench_sizes(&b, &bytes, &macs, &head_macs, &kv_bytes);
    printf("ready %s %u threads bytes %.0f macs %.0f head_macs %.0f kv_bytes %.0f\n",
           b.engine->cpu.kernels->name, b.engine->pool.n_threads, bytes, macs, head_macs, kv_bytes);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        bench_command(&b, line);
    }
    dend_engine_free(b.engine);
    dend_model_free(b.model);
    if (b.probe) {
        dendp_default_free(NULL, b.probe, PROBE_BYTES);
    }
    return 0;
}
