/* What does attention cost, in cycles for 16 keys and one query head?
 *
 *     build/bench_attention [samples] [rows of a cascade] [out.json]
 *
 * Tiles of one layer and KV head lie in a pool larger than any cache. "alone": each task attends with the
 * query heads of one row to tiles that nobody else wants, which therefore come from memory. "shared": many rows
 * attend to the same 512 positions one after another, as branches of one prefix do (cascade): the tiles
 * come from memory once and then from the second-level cache. Cycles are time multiplied by the clock, which a
 * chain of dependent additions measures right before each sample. The median of the samples is printed. */
#define DENDRITE_IMPLEMENTATION
#define DEND_STATIC
#include "dendrite.h"

#include <stdio.h>

#define BENCH_BYTES ((uint64_t)192 << 20)
#define BENCH_MOST 999u
#define BENCH_MOST_ROWS 256u

typedef struct bench_shape {
    const char *name;
    uint32_t d, g; /* head width, query heads of a KV head */
} bench_shape;

typedef struct bench_work {
    dendp_codec codec;
    const dendp_vector_ops *ops;
    uint32_t d, g, n_segments, n_rows, first;
    uint64_t k_bytes, tile_bytes;
    unsigned char *pool;
    const float *q; /* [rows][g][d] */
    uint64_t sum;   /* so that no result is for nothing */
} bench_work;

/* One row, one segment, as 07.02 does it. */
static float bench_attend(const bench_work *b, uint32_t row, uint32_t segment) {
    uint32_t d = b->d, tile, i, n, n_tiles = DENDP_SEGMENT / DENDP_TILE;
    const unsigned char *tiles = b->pool + (uint64_t)segment * n_tiles * b->tile_bytes;
    float s[DENDP_ATTENTION_QUERIES * DENDP_SEGMENT], max;
    dendp_q8_query queries[DENDP_ATTENTION_QUERIES * DENDP_MAX_HEAD_DIM / 32];
    const float *floats = b->q + (size_t)row * b->g * d;
    float o[DENDP_ATTENTION_QUERIES * DENDP_MAX_HEAD_DIM]; /* each task's own */
    const void *q = floats;
    memset(o, 0, (size_t)b->g * d * sizeof *o);
    if (b->codec.put_query) {
        for (i = 0; i < b->g; i++) {
            b->codec.put_query(b->codec.act_row, floats + (size_t)i * d, d,
                               (unsigned char *)queries + i * b->codec.query_bytes(d));
        }
        q = queries;
    }
    for (tile = 0; tile < n_tiles; tile++) {
        uint32_t later = tile + DENDP_TILES_AHEAD;
        const unsigned char *ahead = later < n_tiles ? tiles + later * b->tile_bytes
                                                     : tiles + (later - n_tiles) * b->tile_bytes + b->k_bytes;
        b->codec.score_tile(tiles + tile * b->tile_bytes, ahead, d, q, b->g, s + tile * DENDP_TILE,
                            DENDP_SEGMENT);
    }
    for (i = 0; i < b->g; i++) {
        b->ops->softmax(s + (size_t)i * DENDP_SEGMENT, DENDP_SEGMENT, &max);
    }
    for (tile = 0; tile < n_tiles; tile += DENDP_CHUNK_TILES) {
        static const uint16_t all[DENDP_CHUNK_TILES] = {0xffff, 0xffff, 0xffff, 0xffff};
        const void *v[DENDP_CHUNK_TILES], *ahead[DENDP_CHUNK_TILES];
        for (n = 0; n < DENDP_CHUNK_TILES; n++) {
            const unsigned char *t = tiles + (tile + n) * b->tile_bytes + b->k_bytes;
            v[n] = t;
            ahead[n] = tile + n + DENDP_TILES_AHEAD < n_tiles ? t + DENDP_TILES_AHEAD * b->tile_bytes : t;
        }
        b->codec.add_v_tiles(v, ahead, all, n, d, s + tile * DENDP_TILE, DENDP_SEGMENT, b->g, o);
    }
    return o[0];
}

/* Task: one segment and all rows. */
static void bench_task(void *ctx, uint32_t i) {
    bench_work *b = (bench_work *)ctx;
    float sum = 0;
    uint32_t row;
    for (row = 0; row < b->n_rows; row++) {
        sum += bench_attend(b, row, (b->first + i) % b->n_segments);
    }
    __atomic_fetch_add(&b->sum, dendp_f32_bits(sum), __ATOMIC_RELAXED);
}

/* Hertz of this core now. */
static double bench_clock(void) {
    uint64_t start = dendp_now_ns(), x = 1, i;
    for (i = 0; i < 20000; i++) { /* additions of which each waits for the one before */
        __asm__ volatile("" : "+r"(x));
        x += i;
        __asm__ volatile("" : "+r"(x));
        x += i;
        __asm__ volatile("" : "+r"(x));
        x += i;
        __asm__ volatile("" : "+r"(x));
        x += i;
    }
    return 80000.0 / ((double)(dendp_now_ns() - start) * 1e-9);
}

static int bench_compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Cycles for 16 keys and one query head, on every thread: the median. */
static double bench_cycles(bench_work *b, dendp_pool *pool, uint32_t n_rows, uint32_t samples) {
    static double cycles[BENCH_MOST];
    uint32_t i, tasks = pool->n_threads * (n_rows == 1 ? 8 : 1);
    b->n_rows = n_rows;
    for (i = 0; i < samples; i++) {
        double clock = bench_clock(), seconds;
        uint64_t start = dendp_now_ns();
        dendp_pool_run(pool, bench_task, b, tasks);
        seconds = (double)(dendp_now_ns() - start) * 1e-9;
        cycles[i] = seconds * clock * pool->n_threads /
                    ((double)tasks * n_rows * b->g * (DENDP_SEGMENT / DENDP_TILE));
        b->first = (b->first + tasks) % b->n_segments;
    }
    qsort(cycles, samples, sizeof *cycles, bench_compare);
    return cycles[samples / 2];
}

int main(int argc, char **argv) {
    static const bench_shape shapes[] = {{"g7", 64, 7}, {"g3", 64, 3}, {"d128_g6", 128, 6}};
    static const dend_kv_type types[] = {DEND_KV_F16, DEND_KV_Q8_0, DEND_KV_F32};
    uint32_t samples = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 31;
    uint32_t n_rows = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 64, s, t, i;
    FILE *out = argc > 3 ? fopen(argv[3], "w") : NULL;
    dendp_pool *pool = (dendp_pool *)calloc(1, sizeof *pool);
    unsigned char *memory = (unsigned char *)dendp_default_alloc(NULL, BENCH_BYTES + 64, 64);
    float *floats = (float *)calloc((size_t)BENCH_MOST_ROWS * 8 * 128, sizeof *floats);
    dend_jobs no_jobs;
    dend_error error;
    memset(&no_jobs, 0, sizeof no_jobs);
    samples = samples < 1 ? 1 : samples > BENCH_MOST ? BENCH_MOST : samples;
    n_rows = n_rows < 1 ? 1 : n_rows > BENCH_MOST_ROWS ? BENCH_MOST_ROWS : n_rows;
    if (!pool || !memory || !floats ||
        dendp_pool_open(pool, dendp_cpu_count(), &no_jobs, &error) != DEND_OK) {
        fprintf(stderr, "no memory, or no threads\n");
        return 1;
    }
    printf("%s, %u threads, cycles for 16 keys and a query head\n",
           dendp_tile_ops_get(DEND_ISA_DEFAULT)->name, pool->n_threads);
    printf("%-18s%10s%10s%8s\n", "", "alone", "shared", "gain");
    for (s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        for (t = 0; t < sizeof types / sizeof types[0]; t++) {
            bench_work b;
            double alone, shared;
            float token[128];
            memset(&b, 0, sizeof b);
            dendp_codec_get(types[t], DEND_ISA_DEFAULT, &b.codec);
            b.ops = dendp_vector_ops_get(DEND_ISA_DEFAULT);
            b.d = shapes[s].d;
            b.g = shapes[s].g;
            b.k_bytes = b.codec.k_bytes(b.d);
            b.tile_bytes = b.k_bytes + b.codec.v_bytes(b.d);
            b.n_segments = (uint32_t)(BENCH_BYTES / (b.tile_bytes * (DENDP_SEGMENT / DENDP_TILE)));
            b.pool = memory + (64 - (uintptr_t)memory % 64) % 64;
            b.q = floats;
            for (i = 0; i < BENCH_MOST_ROWS * 8 * 128; i++) {
                floats[i] = (float)(i * 7919 % 1000) * 0.002f - 1.0f;
            }
            for (i = 0; i < 16; i++) { /* one tile of tokens, repeated */
                uint32_t j;
                for (j = 0; j < b.d; j++) {
                    token[j] = (float)((i * 131 + j * 31) % 97) * 0.02f - 1.0f;
                }
                b.codec.put_token(b.pool, b.pool + b.k_bytes, b.d, i, token, token);
            }
            for (i = 1; i < b.n_segments * (DENDP_SEGMENT / DENDP_TILE); i++) {
                memcpy(b.pool + i * b.tile_bytes, b.pool, b.tile_bytes);
            }
            (void)bench_cycles(&b, pool, 1, 3);
            alone = bench_cycles(&b, pool, 1, samples);
            shared = bench_cycles(&b, pool, n_rows, samples);
            printf("%-10s%-8s%10.1f%10.1f%8.2f\n", shapes[s].name, b.codec.name, alone, shared,
                   alone / shared);
            if (out && t == 1) {
                fprintf(out, "%s\"cascade_cycles_%s\": %.1f, \"cascade_gain_%s\": %.3f", s ? ", " : "{",
                        shapes[s].name, shared, shapes[s].name, alone / shared);
            }
        }
    }
    if (out) {
        fprintf(out, "}\n");
        fclose(out);
    }
    dendp_pool_close(pool);
    free(floats);
    dendp_default_free(NULL, memory, BENCH_BYTES + 64);
    free(pool);
    return 0;
}
