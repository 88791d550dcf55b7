/* What does it cost to choose a token, in microseconds?
 *
 *     build/bench_sample [samples] [out.json]
 *
 * Logits are normal numbers of deviation 3 with a dozen larger ones, up to 8 above the rest, as a model gives
 * that knows what it wants to say but not in which words; "flat" are the same without the dozen. Every sample
 * is a draw at another position. The median and the least of the samples are printed. */
#define DENDRITE_IMPLEMENTATION
#define DEND_STATIC
#include "dendrite.h"

#include <stdio.h>

#define BENCH_MOST 9999u
#define BENCH_VOCAB 151936u
#define BENCH_HIGH 12u

typedef struct bench_kind {
    const char *name;
    float temperature;
    uint32_t top_k;
    float top_p, min_p;
} bench_kind;

static int bench_compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Normal numbers, two at a time (Box and Muller, 1958). */
static void bench_logits(float *x, uint32_t n, uint32_t n_high) {
    float top = 0.0f;
    uint32_t i;
    for (i = 0; i < n; i++) {
        double r = 3.0 * sqrt(-2.0 * log(dendp_uniform(1, 0, i / 2))),
               angle = 6.283185307 * dendp_uniform(1, 1, i / 2);
        x[i] = (float)(r * (i % 2 ? sin(angle) : cos(angle)));
        top = x[i] > top ? x[i] : top;
    }
    for (i = 0; i < n_high; i++) {
        x[dendp_hash2(2, i) % n] = top + 8.0f * (float)(i + 1) / (float)n_high;
    }
}

int main(int argc, char **argv) {
    static const bench_kind kinds[] = {{"greedy", 0.0f, 0, 0.0f, 0.0f},    {"t0.8", 0.8f, 0, 0.0f, 0.0f},
                                       {"t0.2", 0.2f, 0, 0.0f, 0.0f},      {"top_k40", 0.8f, 40, 0.0f, 0.0f},
                                       {"top_p0.9", 0.8f, 0, 0.9f, 0.0f},  {"k40_p0.9", 0.8f, 40, 0.9f, 0.0f},
                                       {"min_p0.05", 0.8f, 0, 0.0f, 0.05f}};
    static const uint32_t sizes[] = {49152, BENCH_VOCAB};
    static double us[BENCH_MOST];
    uint32_t samples = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 101, s, k, i, high;
    FILE *out = argc > 2 ? fopen(argv[2], "w") : NULL;
    float *x = (float *)malloc(BENCH_VOCAB * sizeof *x);
    uint32_t *scratch = (uint32_t *)malloc(BENCH_VOCAB * sizeof *scratch);
    const dendp_vector_ops *ops = dendp_vector_ops_get(DEND_ISA_DEFAULT);
    uint64_t sum = 0;
    samples = samples < 1 ? 1 : samples > BENCH_MOST ? BENCH_MOST : samples;
    if (!x || !scratch) {
        fprintf(stderr, "no memory\n");
        return 1;
    }
    printf("microseconds for one token\n%-20s%10s%10s\n", "", "median", "least");
    for (s = 0; s < 4; s++) {
        uint32_t n = sizes[s / 2];
        high = s % 2 ? 0 : BENCH_HIGH;
        bench_logits(x, n, high);
        for (k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            dend_sample_params params;
            memset(&params, 0, sizeof params);
            params.temperature = kinds[k].temperature, params.top_k = kinds[k].top_k;
            params.top_p = kinds[k].top_p, params.min_p = kinds[k].min_p;
            for (i = 0; i < samples; i++) {
                dend_sampled got;
                uint64_t start = dendp_now_ns();
                if (dendp_sample(ops, x, n, &params, 5, i, scratch, &got) != DEND_OK) {
                    return 1;
                }
                us[i] = (double)(dendp_now_ns() - start) * 1e-3;
                sum = dendp_hash2(sum, (uint64_t)got.token << 32 | dendp_f32_bits(got.logprob));
            }
            qsort(us, samples, sizeof *us, bench_compare);
            printf("%-10s%6u%s%10.1f%10.1f\n", kinds[k].name, n, high ? "    " : "flat", us[samples / 2],
                   us[0]);
            if (out) {
                fprintf(out, "%s\"%s_%u%s_us\": %.1f", s + k ? ", " : "{", kinds[k].name, n,
                        high ? "" : "_flat", us[samples / 2]);
            }
        }
    }
    printf("hash of all choices: %016llx\n", (unsigned long long)sum); /* equal numbers, equal choices */
    if (out) {
        fprintf(out, "}\n");
        fclose(out);
    }
    free(scratch);
    free(x);
    return 0;
}
