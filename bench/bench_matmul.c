/* How fast is a matmul, beside what the machine can do?
 *
 *     gcc -O2 -I. bench/bench_matmul.c -o build/bench_matmul -lm -lpthread
 *     build/bench_matmul [samples] [form or "all"] [instruction set, as dend_engine_stats names it]
 *
 * For each form a matrix is copied until its copies fill 160 MB, more than any
 * cache. A sample multiplies one copy; right before it the same threads read
 * another copy and run byte products from registers, the two things that bound
 * a matmul: with one row it waits for memory, with many it computes.
 * Columns: the best sample, the best probe, and the median of the samples'
 * shares of their own probes. Machines that others use are uneven from second
 * to second; shares of a probe in the same millisecond are less so. */
#define DENDRITE_IMPLEMENTATION
#define DEND_STATIC
#include "dendrite.h"

#include <stdio.h>

#define BENCH_BYTES ((uint64_t)160 << 20)
#define BENCH_MOST_SAMPLES 2000

typedef struct bench_case {
    const char *name;
    uint32_t type, n_rows, k;
} bench_case;

/* Shapes of small models: Qwen 0.5B's up (4864 x 896), 1.5B's up and down. */
static const bench_case bench_cases[] = {
    {"Q4_0", DENDP_TYPE_Q4_0, 4864, 896},  {"Q4_1", DENDP_TYPE_Q4_1, 4864, 896},
    {"Q5_0", DENDP_TYPE_Q5_0, 4864, 896},  {"Q5_1", DENDP_TYPE_Q5_1, 4864, 896},
    {"Q8_0", DENDP_TYPE_Q8_0, 4864, 896},  {"Q4_K", DENDP_TYPE_Q4_K, 8960, 1536},
    {"Q5_K", DENDP_TYPE_Q5_K, 8960, 1536}, {"Q6_K", DENDP_TYPE_Q6_K, 1536, 8960},
    {"F16", DENDP_TYPE_F16, 4864, 896},    {"F32", DENDP_TYPE_F32, 4864, 896},
};

typedef struct bench_work {
    const dendp_kernels *kn;
    dendp_panels w;
    unsigned char *copies;
    uint32_t n_copies, n_rows, tasks;
    uint32_t n_panels;        /* of a sample: all, or the first ones where rows are many */
    uint32_t copy, read_copy; /* of this sample */
    const void *act;
    const float *x;
    float *y;
    uint64_t probe_sum[DENDP_MAX_THREADS * 16]; /* one line a task */
} bench_work;

/* Task i of a sample: a range of panels. */
static void bench_matmul_task(void *ctx, uint32_t i) {
    bench_work *b = (bench_work *)ctx;
    dendp_panels w = b->w;
    uint32_t part = dendp_div_up(b->n_panels, b->tasks), first = i * part;
    w.data = b->copies + (uint64_t)b->copy * w.panel_bytes * w.n_panels;
    if (first < b->n_panels) {
        dendp_matmul(b->kn, &w, b->act, b->x, w.k, b->n_rows, first, dendp_min_u32(part, b->n_panels - first),
                     b->y, w.n_rows);
    }
}

#if DENDP_X86
DENDP_TARGET_AVX2 static uint64_t bench_read(const unsigned char *p, uint64_t n) {
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
    uint64_t i;
    for (i = 0; i + 128 <= n; i += 128) {
        _mm_prefetch((const char *)p + i + DENDP_PREFETCH, _MM_HINT_T0);
        _mm_prefetch((const char *)p + i + DENDP_PREFETCH + 64, _MM_HINT_T0);
        a = _mm256_add_epi64(a, dendp_load256(p + i));
        b = _mm256_add_epi64(b, dendp_load256(p + i + 32));
        c = _mm256_add_epi64(c, dendp_load256(p + i + 64));
        d = _mm256_add_epi64(d, dendp_load256(p + i + 96));
    }
    a = _mm256_add_epi64(_mm256_add_epi64(a, b), _mm256_add_epi64(c, d));
    return (uint64_t)_mm256_extract_epi64(a, 0) + (uint64_t)_mm256_extract_epi64(a, 3);
}

#define BENCH_PRODUCTS 2560000

/* So many multiply-adds of bytes, the way AVX2 does them, from registers. */
DENDP_TARGET_AVX2 static uint64_t bench_products(void) {
    __m256i a = _mm256_set1_epi8(1), b = a, c = a, d = a, e = a, f = a, g = a, h = a, x = a;
    uint32_t i;
    for (i = 0; i < 10000; i++) {
        a = _mm256_maddubs_epi16(a, x), b = _mm256_maddubs_epi16(b, x);
        c = _mm256_maddubs_epi16(c, x), d = _mm256_maddubs_epi16(d, x);
        e = _mm256_maddubs_epi16(e, x), f = _mm256_maddubs_epi16(f, x);
        g = _mm256_maddubs_epi16(g, x), h = _mm256_maddubs_epi16(h, x);
        /* eight sums that a compiler cannot know to be equal */
        __asm__ volatile("" : "+x"(a), "+x"(b), "+x"(c), "+x"(d), "+x"(e), "+x"(f), "+x"(g), "+x"(h));
    }
    a = _mm256_add_epi8(_mm256_add_epi8(_mm256_add_epi8(a, b), _mm256_add_epi8(c, d)),
                        _mm256_add_epi8(_mm256_add_epi8(e, f), _mm256_add_epi8(g, h)));
    return (uint64_t)_mm256_extract_epi64(a, 0);
}
#else
#define BENCH_PRODUCTS 1

static uint64_t bench_read(const unsigned char *p, uint64_t n) {
    uint64_t sum = 0, i;
    for (i = 0; i + 8 <= n; i += 8) {
        sum += dendp_load64(p + i);
    }
    return sum;
}

static uint64_t bench_products(void) {
    return 0;
}
#endif

static void bench_read_task(void *ctx, uint32_t i) {
    bench_work *b = (bench_work *)ctx;
    uint64_t bytes = b->w.panel_bytes * b->w.n_panels, part = bytes / b->tasks;
    b->probe_sum[i * 16] += bench_read(b->copies + b->read_copy * bytes + i * part, part);
}

static void bench_products_task(void *ctx, uint32_t i) {
    bench_work *b = (bench_work *)ctx;
    b->probe_sum[i * 16] += bench_products();
}

static double bench_time(dendp_pool *pool, dendp_task task, bench_work *b, uint32_t n) {
    uint64_t start = dendp_now_ns();
    dendp_pool_run(pool, task, b, n);
    return (double)(dendp_now_ns() - start) * 1e-9;
}

static int bench_compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void bench_one(const bench_case *c, const dendp_kernels *kn, uint32_t samples) {
    static const uint32_t ns[] = {1, 2, 4, 8, 64};
    static double read_share[BENCH_MOST_SAMPLES], products_share[BENCH_MOST_SAMPLES];
    bench_work *b = (bench_work *)calloc(1, sizeof *b);
    dend_allocator heap;
    dend_jobs no_jobs;
    uint64_t bytes, i, file_bytes, rng = 1;
    unsigned char *file;
    float *x;
    void *act;
    uint32_t threads, a;
    memset(&heap, 0, sizeof heap);
    memset(&no_jobs, 0, sizeof no_jobs);
    if (!b || dendp_allocator_resolve(&heap, NULL) != DEND_OK ||
        dendp_panels_plan(&b->w, c->type, c->n_rows, c->k, &bytes) != DEND_OK) {
        exit(1);
    }
    b->kn = kn;
    b->n_copies = (uint32_t)(BENCH_BYTES / bytes + 1);
    file_bytes = b->w.file_row_bytes * c->n_rows;
    file = (unsigned char *)malloc((size_t)file_bytes);
    b->copies = (unsigned char *)dendp_alloc(&heap, bytes * b->n_copies);
    x = (float *)malloc((size_t)64 * c->k * sizeof(float));
    act = dendp_alloc(&heap, dendp_act_bytes(64, c->k));
    b->y = (float *)malloc((size_t)64 * c->n_rows * sizeof(float));
    if (!file || !b->copies || !x || !act || !b->y) {
        exit(1);
    }
    for (i = 0; i < file_bytes; i++) { /* bytes below 64: halves of at most 1.9, no infinities */
        rng = dendp_mix64(rng + i);
        file[i] = (unsigned char)(rng & 63);
    }
    for (i = 0; i < (uint64_t)64 * c->k; i++) {
        x[i] = (float)dendp_uniform(1, 2, i) - 0.5f;
    }
    {
        uint64_t start = dendp_now_ns();
        double s;
        dendp_panels_pack(&b->w, b->copies, file, 0, b->w.n_panels);
        s = (double)(dendp_now_ns() - start);
        printf("%-5s %u x %u, %.2f bits a weight, packed at %.2f ns a weight\n", c->name, c->n_rows, c->k,
               (double)bytes * 8 / ((double)c->n_rows * c->k), s / ((double)c->n_rows * c->k));
    }
    for (a = 1; a < b->n_copies; a++) {
        memcpy(b->copies + a * bytes, b->copies, (size_t)bytes);
    }
    for (threads = 1; threads <= dendp_min_u32(2, dendp_cpu_count()); threads++) {
        dendp_pool pool;
        if (dendp_pool_open(&pool, threads, &no_jobs, NULL) != DEND_OK) {
            exit(1);
        }
        for (a = 0; a < sizeof ns / sizeof ns[0]; a++) {
            double best = 1e9, best_read = 1e9, best_products = 1e9, macs, part;
            uint32_t r, n_samples = samples;
            b->n_rows = ns[a];
            b->tasks = threads * 2;
            b->n_panels =
                ns[a] > 8 ? dendp_div_up(b->w.n_panels, 8) : b->w.n_panels; /* about a millisecond */
            part = (double)b->n_panels / b->w.n_panels;
            macs = part * c->n_rows * c->k * ns[a];
            dendp_act_quantise(kn, x, c->k, ns[a], c->k, act, 0, dendp_div_up(ns[a], 8));
            b->act = act;
            b->x = x;
            for (r = 0; r < n_samples + b->n_copies / 8; r++) { /* the first samples are thrown away */
                double read, products, t;
                b->copy = r % b->n_copies;
                b->read_copy = (r + b->n_copies / 2) % b->n_copies;
                read = bench_time(&pool, bench_read_task, b, b->tasks);
                products =
                    bench_time(&pool, bench_products_task, b, b->tasks) / (b->tasks * (double)BENCH_PRODUCTS);
                t = bench_time(&pool, bench_matmul_task, b, b->tasks);
                if (r >= b->n_copies / 8) {
                    read_share[r - b->n_copies / 8] = read * part / t;
                    products_share[r - b->n_copies / 8] = products * macs / t;
                    best = t < best ? t : best;
                    best_read = read < best_read ? read : best_read;
                    best_products = products < best_products ? products : best_products;
                }
            }
            qsort(read_share, n_samples, sizeof(double), bench_compare);
            qsort(products_share, n_samples, sizeof(double), bench_compare);
            printf("  %u thread%s n=%-3u %8.3f ms  %6.2f GB/s (probe %5.1f, median %3.0f%%)  %7.1f GMAC/s "
                   "(probe %5.0f, "
                   "median %3.0f%%)\n",
                   threads, threads == 1 ? " " : "s", ns[a], best / part * 1e3,
                   (double)bytes * part / best * 1e-9, (double)bytes / best_read * 1e-9,
                   read_share[n_samples / 2] * 100, macs / best * 1e-9, 1e-9 / best_products,
                   products_share[n_samples / 2] * 100);
            fflush(stdout);
        }
        dendp_pool_close(&pool);
    }
    free(file);
    free(x);
    free(b->y);
    dendp_free(&heap, act, dendp_act_bytes(64, c->k));
    dendp_free(&heap, b->copies, bytes * b->n_copies);
    free(b);
}

int main(int argc, char **argv) {
    static const dend_isa isas[] = {DEND_ISA_SCALAR, DEND_ISA_AVX2, DEND_ISA_AVX_VNNI, DEND_ISA_AVX512,
                                    DEND_ISA_NEON};
    uint32_t samples = argc > 1 ? (uint32_t)atoi(argv[1]) : 200;
    const dendp_kernels *kn = dendp_kernels_get(DEND_ISA_DEFAULT);
    size_t i;
    for (i = 0; i < sizeof isas / sizeof isas[0] && argc > 3; i++) {
        const dendp_kernels *other = dendp_kernels_get(isas[i]);
        if (other && strcmp(other->name, argv[3]) == 0) {
            kn = other;
        }
    }
    samples = samples < 8 ? 8 : dendp_min_u32(samples, BENCH_MOST_SAMPLES);
    printf("kernels: %s, %u samples, %u MB of weights\n", kn->name, samples, (unsigned)(BENCH_BYTES >> 20));
    for (i = 0; i < sizeof bench_cases / sizeof bench_cases[0]; i++) {
        if (argc <= 2 || strcmp(argv[2], bench_cases[i].name) == 0 || strcmp(argv[2], "all") == 0) {
            bench_one(&bench_cases[i], kn, samples);
        }
    }
    return 0;
}
