/* What does it cost to choose a token, in microseconds?
 *
 *     build/bench_sample [samples] [out.json]
 *
 * Logits are normal numbers of deviation 3 with a dozen larger ones, up to 8 above the rest, as a model gives
 * that knows what it wants to say but not in which words; "flat" are the same without the dozen. Behind 4,096
 * tokens of a text that repeats itself now and then. Every sample is a draw at another position. The median and
 * the least of the samples are printed. */
#define DENDRITE_IMPLEMENTATION
#define DEND_STATIC
#include "dendrite.h"

#include <stdio.h>

#define BENCH_MOST 9999u
#define BENCH_VOCAB 262144u
#define BENCH_HIGH 12u
#define BENCH_PAST 4096u

typedef struct bench_kind {
    const char *name;
    dend_sample_params params;
} bench_kind;

static const bench_kind kinds[] = {
    {"greedy", {.temperature = 0.0f}},
    {"t0.8", {.temperature = 0.8f}},
    {"t0.2", {.temperature = 0.2f}},
    {"top_k40", {.temperature = 0.8f, .top_k = 40}},
    {"top_p0.9", {.temperature = 0.8f, .top_p = 0.9f}},
    {"k40_p0.9", {.temperature = 0.8f, .top_k = 40, .top_p = 0.9f}},
    {"min_p0.05", {.temperature = 0.8f, .min_p = 0.05f}},
    {"sigma1", {.temperature = 0.8f, .top_n_sigma = 1.0f}},
    {"typical0.9", {.temperature = 0.8f, .typical_p = 0.9f}},
    {"xtc", {.temperature = 0.8f, .min_p = 0.05f, .xtc_probability = 0.5f}},
    {"mirostat5", {.temperature = 0.8f, .mirostat_tau = 5.0f}},
    {"penalties", {.temperature = 0.8f, .repeat_penalty = 1.1f, .frequency_penalty = 0.1f}},
    {"dry", {.temperature = 0.8f, .dry_multiplier = 0.8f}},
    {"all", /* what a careful chat program turns on */
     {.temperature = 0.8f,
      .top_k = 40,
      .top_p = 0.95f,
      .min_p = 0.05f,
      .repeat_penalty = 1.1f,
      .dry_multiplier = 0.8f}},
};

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
    static const uint32_t sizes[] = {49152, 151936, BENCH_VOCAB};
    static int32_t past_tokens[BENCH_PAST];
    static double us[BENCH_MOST];
    uint32_t samples = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 101, s, k, i, high;
    FILE *out = argc > 2 ? fopen(argv[2], "w") : NULL;
    float *x = (float *)malloc(BENCH_VOCAB * sizeof *x);
    void *scratch = malloc(dend_sample_scratch(BENCH_VOCAB, BENCH_PAST));
    dend_sample_past past = {past_tokens, BENCH_PAST, 0, 0.0};
    uint64_t sum = 0;
    samples = samples < 1 ? 1 : samples > BENCH_MOST ? BENCH_MOST : samples;
    if (!x || !scratch) {
        fprintf(stderr, "no memory\n");
        return 1;
    }
    for (i = 0; i < BENCH_PAST; i++) { /* 200 words, and a phrase of eight again every hundred */
        past_tokens[i] = i % 100 < 8 ? (int32_t)(i % 100) : (int32_t)(dendp_hash2(3, i) % 200);
    }
    printf("microseconds for one token\n%-20s%10s%10s\n", "", "median", "least");
    for (s = 0; s < 6; s++) {
        uint32_t n = sizes[s / 2];
        high = s % 2 ? 0 : BENCH_HIGH;
        bench_logits(x, n, high);
        for (k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            for (i = 0; i < samples; i++) {
                dend_sampled got = {0, 0.0f};
                uint64_t start = dendp_now_ns();
                if (dend_sample_after(x, n, &kinds[k].params, 5, i, &past, scratch, &got) != DEND_OK) {
                    return 1;
                }
                us[i] = (double)(dendp_now_ns() - start) * 1e-3;
                sum = dendp_hash2(sum, (uint64_t)got.token << 32 | dendp_f32_bits(got.logprob));
            }
            qsort(us, samples, sizeof *us, bench_compare);
            printf("%-11s%6u%s%9.1f%10.1f\n", kinds[k].name, n, high ? "    " : "flat", us[samples / 2],
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
