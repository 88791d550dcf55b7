/* The sampler against what it claims: the law of its draws against softmax by
 * chi-square, its filters against a reference that sorts everything, and its
 * answers to values that no model should produce. */

#define SAM_MOST 300u /* tokens of the small cases */

static dend_sample_params sam_params(float temperature, uint32_t top_k, float top_p, float min_p) {
    dend_sample_params p;
    memset(&p, 0, sizeof p);
    p.temperature = temperature;
    p.top_k = top_k;
    p.top_p = top_p;
    p.min_p = min_p;
    return p;
}

static float sam_nan(void) {
    return dendp_bits_f32(0x7fc00000u);
}

static float sam_inf(void) {
    return dendp_bits_f32(0x7f800000u);
}

/* NaN and infinity have all exponent bits set. */
static bool sam_is_finite(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (bits & 0x7f800000u) != 0x7f800000u;
}

/* Draws one token; every call must succeed. */
static dend_sampled sam_draw(const float *logits, uint32_t n, const dend_sample_params *p, uint64_t stream,
                             uint64_t position, uint32_t *scratch) {
    dend_sampled out;
    out.token = -1;
    out.logprob = 1.0f;
    ASSERT_STATUS(DEND_OK, dend_sample_logits(logits, n, p, stream, position, scratch, &out));
    if (out.token < 0 || (uint32_t)out.token >= n) {
        fail_msg("token %d of %u", out.token, n);
    }
    return out;
}

/* -- the reference --------------------------------------------------------- */

/* What survives top_k, top_p and min_p, in that order: everything is sorted
 * and renormalised at each stage. alive[n]. False when a threshold is so close
 * that single precision may decide otherwise. */
static bool sam_survivors(const float *logits, uint32_t n, const dend_sample_params *p, bool *alive) {
    uint32_t order[SAM_MOST], i, j, kept = n;
    double prob[SAM_MOST], sum = 0.0, mass = 0.0, best;
    bool clear = true;
    for (i = 0; i < n; i++) { /* insertion: larger first, equal ones by id */
        for (j = i; j > 0 && logits[order[j - 1]] < logits[i]; j--) {
            order[j] = order[j - 1];
        }
        order[j] = i;
    }
    best = (double)logits[order[0]];
    for (i = 0; i < n; i++) {
        prob[i] = exp((double)logits[order[i]] - best);
    }
    if (p->top_k > 0 && p->top_k < kept) {
        kept = p->top_k;
    }
    if (p->top_p > 0.0f && p->top_p < 1.0f) {
        for (i = 0; i < kept; i++) {
            sum += prob[i];
        }
        for (i = 0; i < kept; i++) {
            double gap;
            mass += prob[i] / sum;
            gap = mass - (double)p->top_p;
            clear = clear && (gap > 1e-6 || gap < -1e-6);
            if (gap >= 0.0) {
                kept = i + 1;
            }
        }
    }
    for (i = 0; i < n; i++) {
        double ratio = prob[i] / prob[0], low = (double)p->min_p;
        alive[order[i]] = i < kept && ratio >= low;
        clear = clear && (ratio >= low * (1.0 + 1e-12) || ratio <= low * (1.0 - 1e-12) || i == 0 ||
                          logits[order[i]] == logits[order[0]]);
    }
    return clear;
}

/* The token that the rules ask for, given what survives. */
static int32_t sam_choice(const float *logits, uint32_t n, const dend_sample_params *p, const bool *alive,
                          uint64_t stream, uint64_t position) {
    double best_value = 0.0;
    int32_t best = -1;
    uint32_t i;
    for (i = 0; i < n; i++) {
        double value = (double)logits[i];
        if (p->temperature > 0.0f) {
            value = value / (double)p->temperature + dendp_gumbel(dendp_hash2(stream, p->salt), position, i);
        }
        if ((p->temperature <= 0.0f || alive[i]) && (best < 0 || value > best_value)) {
            best = (int32_t)i;
            best_value = value;
        }
    }
    return best;
}

/* -- the law --------------------------------------------------------------- */

/* The value that chi-square with df degrees of freedom exceeds with the
 * probability that a normal exceeds z (Wilson and Hilferty, 1931). */
static double sam_critical(uint32_t df, double z) {
    double a = 2.0 / (9.0 * (double)df), root = 1.0 - a + z * sqrt(a);
    return (double)df * root * root * root;
}

#define SAM_Z 3.719 /* a normal exceeds it with probability 1e-4 */

/* Chi-square of counts [n] against n_draws * prob [n]. Cells of fewer than 5
 * expected are taken together. *df gets the degrees of freedom. */
static double sam_chi_square(const uint32_t *count, const double *prob, uint32_t n, uint32_t n_draws,
                             uint32_t *df) {
    double chi = 0.0, rest_expected = 0.0, rest_count = 0.0, d;
    uint32_t i, cells = 0;
    for (i = 0; i < n; i++) {
        double expected = prob[i] * (double)n_draws;
        if (expected < 5.0) {
            rest_expected += expected;
            rest_count += (double)count[i];
        } else {
            d = (double)count[i] - expected;
            chi += d * d / expected;
            cells++;
        }
    }
    if (rest_expected >= 5.0) {
        d = rest_count - rest_expected;
        chi += d * d / rest_expected;
        cells++;
    } else {
        assert_true(rest_count < 30.0); /* fewer than 5 expected: 30 happen once in 1e14 */
    }
    assert_true(cells >= 2);
    *df = cells - 1;
    return chi;
}

/* Ten seeds with n_draws draws each, positions 0, 1, ... as keys. Each seed
 * must pass, and so must the sum over all seeds, from above and from below. */
static void sam_law(uint32_t n, const dend_sample_params *p, uint32_t n_draws) {
    double chi_sum = 0.0, chi;
    uint32_t df_sum = 0, seed, i, df;
    for (seed = 1; seed <= 10; seed++) {
        float logits[SAM_MOST];
        double prob[SAM_MOST], sum = 0.0;
        uint32_t count[SAM_MOST], scratch[SAM_MOST];
        bool alive[SAM_MOST];
        test_rng rng;
        rng.state = seed * 7919u + n;
        do {
            for (i = 0; i < n; i++) {
                logits[i] = 2.0f * test_float(&rng);
            }
        } while (!sam_survivors(logits, n, p, alive));
        memset(count, 0, sizeof count);
        for (i = 0; i < n; i++) {
            prob[i] = alive[i] ? exp((double)logits[i] / (double)p->temperature) : 0.0;
            sum += prob[i];
        }
        for (i = 0; i < n; i++) {
            prob[i] /= sum;
        }
        for (i = 0; i < n_draws; i++) {
            count[sam_draw(logits, n, p, seed, i, scratch).token]++;
        }
        for (i = 0; i < n; i++) {
            assert_true(alive[i] || count[i] == 0);
        }
        chi = sam_chi_square(count, prob, n, n_draws, &df);
        if (!(chi < sam_critical(df, SAM_Z))) {
            fail_msg("n %u, T %g, seed %u: chi-square %g with %u degrees", n, (double)p->temperature, seed,
                     chi, df);
        }
        chi_sum += chi;
        df_sum += df;
    }
    if (!(chi_sum < sam_critical(df_sum, SAM_Z) && chi_sum > sam_critical(df_sum, -SAM_Z))) {
        fail_msg("n %u, T %g: chi-square of ten seeds %g with %u degrees", n, (double)p->temperature, chi_sum,
                 df_sum);
    }
}

static void test_sampling_law(void **state) {
    static const float temperatures[3] = {0.3f, 1.0f, 1.5f};
    uint32_t i;
    (void)state;
    for (i = 0; i < 3; i++) {
        dend_sample_params p = sam_params(temperatures[i], 0, 0.0f, 0.0f);
        sam_law(5, &p, 200000);
        sam_law(50, &p, 20000);
    }
}

/* The temperature shapes what survives the filters at temperature 1. */
static void test_sampling_law_filtered(void **state) {
    dend_sample_params p = sam_params(0.3f, 10, 0.8f, 0.0f);
    (void)state;
    sam_law(50, &p, 20000);
    p = sam_params(1.5f, 20, 0.9f, 0.1f);
    sam_law(50, &p, 20000);
    p = sam_params(1.5f, 0, 0.7f, 0.0f);
    sam_law(50, &p, 20000);
}

/* Draws at neighbouring positions, and at one position of neighbouring streams
 * and salts, are independent: all 25 pairs of 5 equal tokens are equally frequent. */
static void test_sampling_independence(void **state) {
    const uint32_t n_draws = 100000;
    float logits[5] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    dend_sample_params p = sam_params(1.0f, 0, 0.0f, 0.0f), salted = p;
    double prob[25];
    uint32_t pairs[3][25], i, df, a, b;
    (void)state;
    salted.salt = 1;
    memset(pairs, 0, sizeof pairs);
    for (i = 0; i < n_draws; i++) {
        a = (uint32_t)sam_draw(logits, 5, &p, 1, 2 * i, NULL).token;
        b = (uint32_t)sam_draw(logits, 5, &p, 1, 2 * i + 1, NULL).token;
        pairs[0][a * 5 + b]++;
        pairs[1][a * 5 + (uint32_t)sam_draw(logits, 5, &p, 2, 2 * i, NULL).token]++;
        pairs[2][a * 5 + (uint32_t)sam_draw(logits, 5, &salted, 1, 2 * i, NULL).token]++;
    }
    for (i = 0; i < 25; i++) {
        prob[i] = 1.0 / 25.0;
    }
    for (i = 0; i < 3; i++) {
        double chi = sam_chi_square(pairs[i], prob, 25, n_draws, &df);
        if (!(chi < sam_critical(df, SAM_Z) && chi > sam_critical(df, -SAM_Z))) {
            fail_msg("pairs of kind %u: chi-square %g with %u degrees", i, chi, df);
        }
    }
}

/* -- the plain sampler -------------------------------------------------------
 * The rules without any shortcut but one: a heap of all tokens, and noise for every token that the
 * largest noise could lift. The sampler must make the same choices, bit for bit. */

/* The logit that the rules see. */
static float sam_plain_logit(const float *logits, uint32_t i) {
    float x = logits[i];
    return dendp_finite(x) ? x : (dendp_f32_bits(x) == 0x7f800000u ? FLT_MAX : -FLT_MAX);
}

/* True when token a stands before token b: larger logit, then lower id. */
static bool sam_plain_logit_before(const float *logits, uint32_t a, uint32_t b) {
    float x = sam_plain_logit(logits, a), y = sam_plain_logit(logits, b);
    return x > y || (x >= y && a < b);
}

/* Sinks heap[i] in a heap of n ids whose first stands before all others. */
static void sam_plain_heap_sink(const float *logits, uint32_t *heap, uint32_t n, uint32_t i) {
    uint32_t id = heap[i];
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= n) {
            break;
        }
        if (child + 1 < n && sam_plain_logit_before(logits, heap[child + 1], heap[child])) {
            child++;
        }
        if (!sam_plain_logit_before(logits, heap[child], id)) {
            break;
        }
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = id;
}

/* Writes the survivors of top_k and top_p, best first, to the end of ids [n]
 * and returns their number; ids + n - result is the first. */
static uint32_t sam_plain_sample_filter(const float *logits, uint32_t n, const dend_sample_params *p,
                                        double total, float max, uint32_t *ids) {
    uint32_t i, left = n, k = p->top_k ? dendp_min_u32(p->top_k, n) : n;
    double mass = 0.0, want;
    bool nucleus = p->top_p > 0.0f && p->top_p < 1.0f;
    for (i = 0; i < n; i++) {
        ids[i] = i;
    }
    for (i = n / 2; i-- > 0;) {
        sam_plain_heap_sink(logits, ids, n, i);
    }
    /* A popped id moves behind the shrinking heap: best at the very end. */
    while (left > n - k) {
        uint32_t best = ids[0];
        if (nucleus && !p->top_k && mass >= (double)p->top_p * total && left < n) {
            break; /* without top_k the total is known, so popping can stop early */
        }
        left--;
        ids[0] = ids[left];
        ids[left] = best;
        if (left > 0) {
            sam_plain_heap_sink(logits, ids, left, 0);
        }
        mass += exp((double)sam_plain_logit(logits, best) - (double)max);
    }
    if (nucleus && p->top_k) {
        want = (double)p->top_p * mass;
        mass = 0.0;
        for (i = n; i > left && (mass < want || i == n); i--) {
            mass += exp((double)sam_plain_logit(logits, ids[i - 1]) - (double)max);
        }
        left = i;
    }
    for (i = 0; i < (n - left) / 2; i++) { /* the popped run stands worst first: turn it round */
        uint32_t swap = ids[left + i];
        ids[left + i] = ids[n - 1 - i];
        ids[n - 1 - i] = swap;
    }
    return n - left;
}

/* What dendp_sample must choose. */
static dend_status sam_plain_sample(const dendp_vector_ops *ops, const float *logits, uint32_t n,
                                    const dend_sample_params *params, uint64_t stream, uint64_t position,
                                    uint32_t *scratch, dend_sampled *out) {
    const dend_sample_params zero = sam_params(0.0f, 0, 0.0f, 0.0f);
    const dend_sample_params *p = params ? params : &zero;
    const uint32_t *ids = NULL;
    uint32_t i, count = n, best = 0;
    double logprob, total, best_value = 0.0, floor_logit, inverse;
    float max;
    if (!logits || !out || n == 0 || dendp_sample_check(p) != DEND_OK) {
        return DEND_ERR_ARGUMENT;
    }
    for (i = 1; i < n; i++) {
        best = sam_plain_logit(logits, i) > sam_plain_logit(logits, best) ? i : best;
    }
    max = sam_plain_logit(logits, best);
    total = dendp_sample_total(ops, logits, n, max);
    if (p->temperature > 0.0f) {
        bool sorted = p->top_k || (p->top_p > 0.0f && p->top_p < 1.0f);
        if (sorted && !scratch) {
            return DEND_ERR_ARGUMENT;
        }
        stream = dendp_hash2(stream, p->salt);
        inverse = 1.0 / (double)p->temperature;
        if (sorted) {
            count = sam_plain_sample_filter(logits, n, p, total, max, scratch);
            ids = scratch + (n - count);
        }
        /* What counts as minus infinity is not drawn, at any temperature, unless there is nothing else. */
        floor_logit = max > -FLT_MAX ? -(double)FLT_MAX * (1.0 - 1e-9) : -(double)FLT_MAX;
        if (p->min_p > 0.0f) {
            floor_logit = (double)max + log((double)p->min_p);
        }
        /* The best token survives every filter, so it sets the mark first. */
        best_value = (double)max * inverse + dendp_gumbel(stream, position, best);
        for (i = 0; i < count; i++) {
            uint32_t id = ids ? ids[i] : i;
            double value = (double)sam_plain_logit(logits, id);
            if (value < floor_logit || value * inverse + 37.5 < best_value) {
                continue;
            }
            value = value * inverse + dendp_gumbel(stream, position, id);
            if (value > best_value || (value >= best_value && id < best)) {
                best_value = value;
                best = id;
            }
        }
    }
    out->token = (int32_t)best;
    logprob = (double)sam_plain_logit(logits, best) - (double)max - log(total);
    out->logprob = logprob > -(double)FLT_MAX ? (float)logprob : -FLT_MAX;
    return DEND_OK;
}

/* Values that need care, or ordinary ones. */
static float sam_any(test_rng *rng) {
    volatile float tiny = dendp_bits_f32(1); /* taken for 0 by a processor that was told so: -ffast-math */
    switch (test_below(rng, 8)) {
    case 0:
        return sam_nan();
    case 1:
        return dendp_bits_f32(0xff800000u);
    case 2:
        return dendp_bits_f32(0xffc00001u + test_below(rng, 1000)); /* negative NaN */
    case 3:
        return dendp_bits_f32(0x80000000u); /* -0 */
    case 4:
        return tiny > 0.0f ? dendp_bits_f32(test_below(rng, 4)) : 0.0f; /* next to 0 */
    case 5:
        return -FLT_MAX;
    default:
        return 6.0f * test_float(rng);
    }
}

/* Logits of one of many shapes. */
static void sam_shape(test_rng *rng, float *x, uint32_t n) {
    uint32_t i, j, kind = test_below(rng, 12);
    float spread = kind == 0 ? 0.01f : kind == 1 ? 40.0f : kind == 2 ? 1000.0f : 6.0f;
    for (i = 0; i < n; i++) {
        float sum = 0.0f;
        for (j = 0; j < 4; j++) {
            sum += test_float(rng);
        }
        x[i] = spread * sum;
        x[i] = kind == 3 ? (float)(int32_t)x[i] : x[i];                     /* many ties */
        x[i] = kind == 4 ? (float)i * 1e-4f - 3.0f : x[i];                  /* ever larger */
        x[i] = kind == 5 ? 3.0f - (float)i * 1e-4f : x[i];                  /* ever smaller */
        x[i] = kind == 6 && test_below(rng, 3) == 0 ? sam_any(rng) : x[i];  /* strange */
        x[i] = kind == 7 && test_below(rng, 50) == 0 ? sam_any(rng) : x[i]; /* less so */
        x[i] = kind == 8 ? 2.5f : x[i];                                     /* all equal */
    }
    if (kind >= 9) { /* as a model gives them: a few stand out */
        for (i = 0; i < 10; i++) {
            x[test_below(rng, n)] = 12.0f + 8.0f * test_float(rng);
        }
    }
    if (test_below(rng, 40) == 0) { /* no larger number, or none larger than another */
        float most = test_below(rng, 2) ? FLT_MAX : sam_inf();
        x[test_below(rng, n)] = most;
        x[test_below(rng, n)] = test_below(rng, 2) ? FLT_MAX : most;
    }
    if (test_below(rng, 60) == 0) {
        for (i = 0; i < n; i++) {
            x[i] = test_below(rng, 2)   ? sam_nan()
                   : test_below(rng, 2) ? -FLT_MAX
                                        : dendp_bits_f32(0xff800000u);
        }
    }
}

/* The same bits; with -ffast-math sums may be grouped in other ways. */
static bool sam_same(float a, float b) {
#ifdef __FAST_MATH__
    return a - b < 1e-5f && b - a < 1e-5f;
#else
    return memcmp(&a, &b, sizeof a) == 0;
#endif
}

#define SAM_LARGEST 200000u

/* Thousands of cases of all sizes: the same token and the same bits of its probability. */
static void test_sampling_plain(void **state) {
    static const float some_p[8] = {0.0f, 0.0f, 1e-9f, 0.1f, 0.5f, 0.9f, 0.999f, 0.9999999f};
    static const float some_min[7] = {0.0f, 0.0f, 0.0f, 1.0f, 1e-30f, 0.05f, 0.9f};
    static const float some_t[12] = {0.0f, 1e-44f, 1e-6f, 0.05f, 0.2f, 0.8f,
                                     0.8f, 1.0f,   1.5f,  5.0f,  1e6f, 1e36f};
    const dendp_vector_ops *ops[2];
    float *x = (float *)malloc(SAM_LARGEST * sizeof *x);
    uint32_t *scratch = (uint32_t *)malloc((SAM_LARGEST + 1) * sizeof *scratch), done;
    uint32_t *plain = (uint32_t *)malloc(SAM_LARGEST * sizeof *plain), n_other = 0;
    test_rng rng;
    (void)state;
    ops[0] = dendp_vector_ops_get(DEND_ISA_DEFAULT);
    ops[1] = dendp_vector_ops_get(DEND_ISA_SCALAR);
    assert_true(x && scratch && plain);
    rng.state = 2718;
    for (done = 0; done < 12000; done++) {
        uint32_t most = done % 300 == 0 ? SAM_LARGEST : done % 10 == 0 ? 5000 : done % 2 ? 600 : 40;
        uint32_t n = 1 + test_below(&rng, most), i;
        uint64_t stream = test_next(&rng), position = test_below(&rng, 1000);
        dend_sample_params p = sam_params(some_t[test_below(&rng, 12)], 0, some_p[test_below(&rng, 8)],
                                          some_min[test_below(&rng, 7)]);
        dend_sampled want = {-1, 1.0f}, got = {-1, 1.0f};
        p.salt = test_below(&rng, 3);
        if (test_below(&rng, 2)) {
            p.top_k = test_below(&rng, 6) == 0   ? 0xffffffffu
                      : test_below(&rng, 2) == 0 ? 1 + test_below(&rng, n + 3)
                                                 : 1 + test_below(&rng, 100);
        }
        if (test_below(&rng, 4) == 0) {
            p.top_p = 0.5f + 0.5f * test_float(&rng);
        }
        sam_shape(&rng, x, n);
        ASSERT_STATUS(DEND_OK, sam_plain_sample(ops[1], x, n, &p, stream, position, plain, &want));
        for (i = 0; i < 2; i++) {
            scratch[n] = 0xabcdef01u;
            ASSERT_STATUS(DEND_OK, dendp_sample(ops[i], x, n, &p, stream, position, scratch, &got));
            if (got.token != want.token || !sam_same(got.logprob, want.logprob)) {
                fail_msg("case %u: token %d (%g), plain %d (%g), n %u, T %g, k %u, p %g, min %g", done,
                         got.token, (double)got.logprob, want.token, (double)want.logprob, n,
                         (double)p.temperature, p.top_k, (double)p.top_p, (double)p.min_p);
            }
            assert_true(scratch[n] == 0xabcdef01u);
        }
        n_other += (uint32_t)want.token != ops[1]->max_index(x, n);
    }
    assert_in_range(n_other, 3000,
                    11000); /* draws that greedy would not make, or else the cases would say little */
    free(plain);
    free(scratch);
    free(x);
}

/* next_lift passes over no token that reaches the mark, whatever the mark, and over most that do not. */
static void test_sampling_lift(void **state) {
    static const float some_t[6] = {0.002f, 0.1f, 0.8f, 1.0f, 3.0f, 1e5f};
    const dendp_vector_ops *fast = dendp_vector_ops_get(DEND_ISA_DEFAULT);
    const dendp_vector_ops *scalar = dendp_vector_ops_get(DEND_ISA_SCALAR);
    uint32_t round, n_reach = 0, n_passed = 0;
    test_rng rng;
    (void)state;
    rng.state = 3141;
    for (round = 0; round < 3000; round++) {
        float x[1000], max;
        uint32_t n = 1 + test_below(&rng, 1000), i, next = 0;
        uint64_t stream = test_next(&rng), position = test_next(&rng);
        double inverse = 1.0 / (double)some_t[test_below(&rng, 6)], mark, floor_logit;
        dendp_lift lift;
        for (i = 0; i < n; i++) {
            x[i] = round % 5 == 0 && test_below(&rng, 5) == 0 ? sam_any(&rng) : 8.0f * test_float(&rng);
        }
        i = scalar->max_index(x, n);
        max = dendp_logit(x, i);
        if (!dendp_lift_can(max, inverse)) {
            continue;
        }
        mark = (double)max * inverse + dendp_gumbel(stream, position, i) + 8.0 * (double)test_float(&rng);
        floor_logit = round % 3 ? -1e38 : (double)(8.0f * test_float(&rng));
        lift.key = dendp_hash_key(dendp_hash2(stream, position));
        dendp_lift_set(&lift, max, inverse, mark, floor_logit);
        for (i = 0; i < n; i++) {
            double value = (double)dendp_logit(x, i);
            bool reach = value >= floor_logit && value * inverse + dendp_gumbel(stream, position, i) >= mark;
            if (i == next) {
                next = scalar->next_lift(&lift, x, i, n);
                assert_int_equal(next, fast->next_lift(&lift, x, i, n));
                assert_true(next >= i && next <= n);
            }
            if (reach && i != next) {
                fail_msg("round %u: token %u of %u is passed over, the next is %u", round, i, n, next);
            }
            n_reach += reach;
            n_passed += i == next;
            next += i == next;
        }
    }
    assert_true(n_reach > 20000);
    print_message("noise: %u tokens reach the mark, %u are tried\n", n_reach, n_passed);
    assert_true(4 * n_passed < 5 * n_reach);
}

/* max_index and next_above against a plain loop, over all kinds of numbers and sizes. */
static void test_sampling_searches(void **state) {
    const dendp_vector_ops *ops[2];
    uint32_t round, isa;
    test_rng rng;
    (void)state;
    ops[0] = dendp_vector_ops_get(DEND_ISA_DEFAULT);
    ops[1] = dendp_vector_ops_get(DEND_ISA_SCALAR);
    rng.state = 161;
    for (round = 0; round < 6000; round++) {
        static float x[1600];
        uint32_t n = 1 + test_below(&rng, round % 4 ? 60 : 1600), i, best = 0, start = test_below(&rng, n),
                 next = n;
        sam_shape(&rng, x, n);
        for (i = 1; i < n; i++) {
            best = sam_plain_logit(x, i) > sam_plain_logit(x, best) ? i : best;
        }
        i = test_below(&rng, 3) ? test_below(&rng, n) : best;
        for (next = start; next < n && sam_plain_logit(x, next) <= sam_plain_logit(x, i); next++) {
        }
        for (isa = 0; isa < 2; isa++) {
            assert_int_equal(best, ops[isa]->max_index(x, n));
            assert_int_equal(next, ops[isa]->next_above(x, start, n, dendp_order(x[i])));
        }
    }
}

/* -- filters --------------------------------------------------------------- */

/* 20,000 random cases: logits on a coarse grid (many ties) or a fine one, any
 * combination of filters. The token must be the reference's. */
static void test_sampling_filters(void **state) {
    static const float some_p[8] = {0.0f, 1.0f, 1e-9f, 0.1f, 0.5f, 0.9f, 0.999f, 7.0f};
    static const float some_min[6] = {0.0f, 1.0f, 1e-30f, 0.02f, 0.3f, 0.9f};
    static const float some_t[6] = {0.0f, 1e-6f, 0.4f, 1.0f, 2.0f, 50.0f};
    uint32_t n_unclear = 0, n_filtered = 0, done;
    test_rng rng;
    (void)state;
    rng.state = 606;
    for (done = 0; done < 20000; done++) {
        float logits[SAM_MOST];
        bool alive[SAM_MOST];
        uint32_t scratch[SAM_MOST + 1], i, n = 1 + test_below(&rng, done % 50 == 0 ? SAM_MOST : 40),
                                           n_alive = 0;
        uint32_t kind = test_below(&rng, 3);
        uint64_t stream = test_next(&rng), position = test_next(&rng);
        dend_sample_params p = sam_params(some_t[test_below(&rng, 6)], 0, some_p[test_below(&rng, 8)],
                                          some_min[test_below(&rng, 6)]);
        if (test_below(&rng, 3) > 0) {
            p.top_k = test_below(&rng, 8) == 0 ? 0xffffffffu : 1 + test_below(&rng, n + 3);
        }
        if (test_below(&rng, 3) == 0) {
            p.top_p = 0.5f + 0.5f * test_float(&rng);
        }
        p.salt = test_below(&rng, 3);
        for (i = 0; i < n; i++) {
            float x = 6.0f * test_float(&rng);
            logits[i] = kind == 0 ? x : kind == 1 ? (float)(int32_t)x : (float)(int32_t)(4.0f * x) * 0.25f;
        }
        if (!sam_survivors(logits, n, &p, alive)) {
            n_unclear++;
            continue;
        }
        for (i = 0; i < n; i++) {
            n_alive += alive[i];
        }
        n_filtered += n_alive > 1 && n_alive < n;
        scratch[n] = 0xabcdef01u;
        i = (uint32_t)sam_draw(logits, n, &p, stream, position, scratch).token;
        if ((int32_t)i != sam_choice(logits, n, &p, alive, stream, position)) {
            fail_msg("case %u: token %u, reference %d (n %u, T %g, k %u, p %g, min %g)", done, i,
                     sam_choice(logits, n, &p, alive, stream, position), n, (double)p.temperature, p.top_k,
                     (double)p.top_p, (double)p.min_p);
        }
        assert_true(scratch[n] == 0xabcdef01u);
    }
    assert_true(n_unclear < 600);   /* 3% */
    assert_true(n_filtered > 5000); /* or else the cases would say nothing */
}

/* Where thresholds are met exactly: equal logits, so that sums are exact too. */
static void test_sampling_edges(void **state) {
    float logits[8];
    uint32_t scratch[8], i, seen;
    dend_sample_params p;
    (void)state;
    for (i = 0; i < 8; i++) {
        logits[i] = 1.5f;
    }
    for (seen = 0, i = 0; i < 2000; i++) { /* the smallest prefix whose mass reaches 1/2: ids 0 to 3 */
        p = sam_params(1.0f, 0, 0.5f, 0.0f);
        seen |= 1u << sam_draw(logits, 8, &p, 1, i, scratch).token;
    }
    assert_int_equal(seen, 0x0f);
    for (seen = 0, i = 0; i < 2000; i++) { /* the same after top_k: 6 of 8, then 3 of 6 */
        p = sam_params(1.0f, 6, 0.5f, 0.0f);
        seen |= 1u << sam_draw(logits, 8, &p, 1, i, scratch).token;
    }
    assert_int_equal(seen, 0x07);
    for (seen = 0, i = 0; i < 2000; i++) { /* min_p = 1 keeps all that equal the best */
        p = sam_params(1.0f, 0, 0.0f, 1.0f);
        logits[2] = logits[5] = 1.25f;
        seen |= 1u << sam_draw(logits, 8, &p, 1, i, scratch).token;
    }
    assert_int_equal(seen, 0xdb);
    for (i = 0; i < 100; i++) { /* one token is left: it does not matter which noise it gets */
        p = sam_params(2.0f, 1, 0.0f, 0.0f);
        assert_int_equal(sam_draw(logits, 8, &p, 1, i, scratch).token, 0);
        p = sam_params(2.0f, 0, 1e-9f, 0.0f);
        assert_int_equal(sam_draw(logits, 8, &p, 1, i, scratch).token, 0);
        p = sam_params(2.0f, 3, 1e-9f, 0.0f);
        assert_int_equal(sam_draw(logits, 8, &p, 1, i, scratch).token, 0);
    }
}

/* Greedy is the lowest id of the largest logits, filters or not, and so is a
 * temperature at which noise no longer shows. */
static void test_sampling_ties(void **state) {
    test_rng rng;
    uint32_t round, i;
    (void)state;
    rng.state = 11;
    for (round = 0; round < 2000; round++) {
        float logits[SAM_MOST];
        uint32_t scratch[SAM_MOST], n = 1 + test_below(&rng, 60), best = 0;
        dend_sample_params p = sam_params(0.0f, test_below(&rng, 4), 0.5f, 0.5f);
        for (i = 0; i < n; i++) {
            logits[i] = (float)test_below(&rng, 4) + 1.0f;
            best = logits[i] > logits[best] ? i : best;
        }
        assert_int_equal(sam_draw(logits, n, NULL, round, round, NULL).token, best);
        assert_int_equal(sam_draw(logits, n, &p, round, round, NULL).token,
                         best); /* greedy needs no scratch */
        p = sam_params(1e-30f, 0, 0.0f, 0.0f);
        assert_int_equal(sam_draw(logits, n, &p, round, round, NULL).token, best);
        p = sam_params(1e-30f, 1 + test_below(&rng, 50), 0.0f, 0.0f);
        assert_int_equal(sam_draw(logits, n, &p, round, round, scratch).token, best);
    }
}

/* -- values that no model should produce ----------------------------------- */

/* Runs every kind of parameters on the logits. The token must lie in `allowed`
 * (bits), the log probability be what `allowed` tokens share. */
static void sam_strange(const float *logits, uint32_t n, uint32_t allowed, double logprob) {
    static const float some_t[7] = {0.0f, 1e-44f, 1e-30f, 1.0f, 1e6f, 1e36f, 3.4e38f};
    uint32_t t, f, i, scratch[32];
    for (t = 0; t < 7; t++) {
        for (f = 0; f < 8; f++) {
            for (i = 0; i < 20; i++) {
                dend_sample_params p =
                    sam_params(some_t[t], f & 1u ? 30 : 0, f & 2u ? 0.9999f : 0.0f, f & 4u ? 1e-6f : 0.0f);
                dend_sampled got = sam_draw(logits, n, &p, 3, i, scratch);
                assert_true(sam_is_finite(got.logprob));
                if (!(allowed >> got.token & 1u)) {
                    fail_msg("token %d of T %g, filters %u", got.token, (double)some_t[t], f);
                }
                ASSERT_NEAR(logprob, got.logprob, 1e-5, 0.0);
            }
        }
    }
}

static void test_sampling_strange(void **state) {
    float x[20], nan = sam_nan(), inf = sam_inf();
    uint32_t i, all = (1u << 20) - 1;
    (void)state;
    for (i = 0; i < 20; i++) {
        x[i] = nan;
    }
    sam_strange(x, 20, all, -log(20.0)); /* nothing is known: all alike */
    for (i = 0; i < 20; i++) {
        x[i] = -inf;
    }
    sam_strange(x, 20, all, -log(20.0));
    for (i = 0; i < 20; i++) {
        x[i] = inf;
    }
    sam_strange(x, 20, all, -log(20.0));
    for (i = 0; i < 20; i++) {
        x[i] = 2.5f;
    }
    sam_strange(x, 20, all, -log(20.0));
    for (i = 0; i < 20; i++) { /* whatever counts as minus infinity is never drawn, at no temperature */
        x[i] = i % 3 == 0 ? nan : i % 3 == 1 ? -inf : 1.0f;
    }
    sam_strange(x, 20, all & 0x24924u, -log(6.0));
    x[0] = nan; /* V = 1 */
    sam_strange(x, 1, 1, 0.0);
    x[0] = inf;
    sam_strange(x, 1, 1, 0.0);
    x[0] = -FLT_MAX;
    sam_strange(x, 1, 1, 0.0);
    x[0] = 0.0f;
    sam_strange(x, 1, 1, 0.0);
    x[0] = -0.0f; /* the same number as 0: one of two */
    x[1] = 0.0f;
    sam_strange(x, 2, 3, -log(2.0));
    x[0] = FLT_MAX;
    x[1] = FLT_MAX;
    sam_strange(x, 2, 3, -log(2.0));
}

/* One infinite logit among ordinary ones is certain, up to temperatures of its own size. */
static void test_sampling_infinite(void **state) {
    float x[20];
    uint32_t i, f, scratch[20];
    (void)state;
    for (i = 0; i < 20; i++) {
        x[i] = (float)i;
    }
    x[7] = sam_inf();
    x[9] = sam_nan();
    for (f = 0; f < 8; f++) {
        for (i = 0; i < 200; i++) {
            dend_sample_params p =
                sam_params(i % 2 ? 1.0f : 1e20f, f & 1u ? 5 : 0, f & 2u ? 0.9f : 0.0f, f & 4u ? 0.1f : 0.0f);
            dend_sampled got = sam_draw(x, 20, &p, 1, i, scratch);
            assert_int_equal(got.token, 7);
            ASSERT_NEAR(0.0, got.logprob, 0.0, 0.0);
        }
    }
    x[7] = 3e38f; /* large, but a number */
    x[9] = -3e38f;
    assert_int_equal(sam_draw(x, 20, NULL, 1, 1, NULL).token, 7);
    ASSERT_NEAR(0.0, sam_draw(x, 20, NULL, 1, 1, NULL).logprob, 0.0, 0.0);
}

static void test_sampling_arguments(void **state) {
    const float nan = sam_nan(), inf = sam_inf(), logits[4] = {1.0f, 2.0f, 3.0f, 4.0f};
    const struct {
        float temperature, top_p, min_p;
    } bad[] = {{nan, 0.0f, 0.0f},   {-1.0f, 0.0f, 0.0f}, {inf, 0.0f, 0.0f}, {-inf, 0.0f, 0.0f},
               {1.0f, nan, 0.0f},   {1.0f, -0.1f, 0.0f}, {1.0f, inf, 0.0f}, {1.0f, 0.0f, nan},
               {1.0f, 0.0f, -0.1f}, {1.0f, 0.0f, 1.5f},  {1.0f, 0.0f, inf}, {0.0f, nan, 0.0f}};
    dend_sample_params p;
    dend_sampled out;
    uint32_t scratch[4], i;
    (void)state;
    out.token = 77;
    out.logprob = 5.0f;
    for (i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        p = sam_params(bad[i].temperature, 0, bad[i].top_p, bad[i].min_p);
        ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_sample_logits(logits, 4, &p, 1, 1, scratch, &out));
    }
    p = sam_params(1.0f, 2, 0.0f, 0.0f);
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_sample_logits(logits, 4, &p, 1, 1, NULL, &out));
    p = sam_params(1.0f, 0, 0.5f, 0.0f);
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_sample_logits(logits, 4, &p, 1, 1, NULL, &out));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_sample_logits(NULL, 4, NULL, 1, 1, scratch, &out));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_sample_logits(logits, 0, NULL, 1, 1, scratch, &out));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_sample_logits(logits, 4, NULL, 1, 1, scratch, NULL));
    assert_int_equal(out.token, 77); /* nothing was written */
    ASSERT_NEAR(5.0, out.logprob, 0.0, 0.0);
    p = sam_params(1.0f, 0, 0.0f, 0.5f); /* min_p needs no scratch, nor do filters that are off */
    ASSERT_STATUS(DEND_OK, dend_sample_logits(logits, 4, &p, 1, 1, NULL, &out));
    p = sam_params(1.0f, 0, 1.0f, 0.0f);
    ASSERT_STATUS(DEND_OK, dend_sample_logits(logits, 4, &p, 1, 1, NULL, &out));
    p = sam_params(-0.0f, 3, 0.5f, 0.5f);
    ASSERT_STATUS(DEND_OK, dend_sample_logits(logits, 4, &p, 1, 1, NULL, &out));
    assert_int_equal(out.token, 3);
}

/* -- probabilities of a large vocabulary ----------------------------------- */

#define SAM_VOCAB 151936u

static float *sam_large(uint64_t seed, float scale) {
    float *x = (float *)malloc(SAM_VOCAB * sizeof *x);
    test_rng rng;
    uint32_t i, j;
    assert_non_null(x);
    rng.state = seed;
    for (i = 0; i < SAM_VOCAB; i++) { /* about normal */
        float sum = 0.0f;
        for (j = 0; j < 4; j++) {
            sum += test_float(&rng);
        }
        x[i] = scale * sum;
    }
    return x;
}

/* The bound on log p = (x - max) - log S, S = sum of e^(x - max) in parts of 512.
 * In units of u = 2^-24: an exponent is off by 3 |x - max| u in nats (one
 * difference, a rounded constant, one product), which weighs in with its
 * probability; 2^f is off by 2 u and its polynomial by 2e-8; a lane sums 32
 * terms and 16 lanes are summed in 4 steps: 36 u; the result is rounded once. */
static void test_sampling_logprob(void **state) {
    static const float scales[4] = {0.5f, 2.0f, 8.0f, 30.0f};
    const double u = 1.0 / 16777216.0;
    uint32_t *scratch = (uint32_t *)malloc(SAM_VOCAB * sizeof *scratch), s, i;
    (void)state;
    assert_non_null(scratch);
    for (s = 0; s < 4; s++) {
        float *x = sam_large(s + 1, scales[s]);
        double max = -1e30, sum = 0.0, spread = 0.0, bound;
        for (i = 0; i < SAM_VOCAB; i++) {
            max = (double)x[i] > max ? (double)x[i] : max;
        }
        for (i = 0; i < SAM_VOCAB; i++) {
            double e = exp((double)x[i] - max);
            sum += e;
            spread += e * (max - (double)x[i]);
        }
        bound = (3.0 * spread / sum + 38.0) * u + 2e-8;
        for (i = 0; i < 5; i++) {
            dend_sample_params p = sam_params((float)i, 0, 0.0f, 0.0f);
            dend_sampled got = sam_draw(x, SAM_VOCAB, &p, 9, i, scratch), scalar;
            ASSERT_NEAR((double)x[got.token] - max - log(sum), got.logprob, bound, u);
            ASSERT_STATUS(DEND_OK, dendp_sample(dendp_vector_ops_get(DEND_ISA_SCALAR), x, SAM_VOCAB, &p, 9, i,
                                                scratch, &scalar));
            assert_int_equal(scalar.token, got.token);
            assert_memory_equal(&scalar.logprob, &got.logprob, sizeof got.logprob);
        }
        free(x);
    }
    free(scratch);
}

/* -- keys ------------------------------------------------------------------ */

/* The draw is a function of (logits, stream, salt, position): repeated in
 * another order it is the same, with another key it is another. */
static void test_sampling_keys(void **state) {
    enum { N = 1000, DRAWS = 400 };
    static float logits[N];
    int32_t first[DRAWS];
    uint32_t i, n_same[4] = {0, 0, 0, 0};
    test_rng rng;
    (void)state;
    rng.state = 4;
    for (i = 0; i < N; i++) {
        logits[i] = 0.5f * test_float(&rng);
    }
    for (i = 0; i < DRAWS; i++) {
        dend_sample_params p = sam_params(1.0f, 0, 0.0f, 0.0f);
        first[i] = sam_draw(logits, N, &p, 100 + i % 4, i / 4, NULL).token;
    }
    for (i = DRAWS; i-- > 0;) {
        uint32_t j = i * 273 % DRAWS; /* 273 and 400 have no common factor */
        dend_sample_params p = sam_params(1.0f, 0, 0.0f, 0.0f), salted = p, flat = p;
        uint64_t stream = 100 + j % 4, position = j / 4;
        flat.top_k = N; /* a filter that keeps everything changes nothing */
        salted.salt = 5;
        assert_int_equal(first[j], sam_draw(logits, N, &p, stream, position, NULL).token);
        {
            uint32_t scratch[N];
            assert_int_equal(first[j], sam_draw(logits, N, &flat, stream, position, scratch).token);
        }
        n_same[0] += first[j] == sam_draw(logits, N, &salted, stream, position, NULL).token;
        n_same[1] += first[j] == sam_draw(logits, N, &p, stream + 4, position, NULL).token;
        n_same[2] += first[j] == sam_draw(logits, N, &p, stream, position + 100, NULL).token;
        n_same[3] += first[j] == sam_draw(logits, N, &p, position, stream, NULL).token;
    }
    for (i = 0; i < 4; i++) { /* chance makes about 0.4 of 400 the same */
        assert_in_range(n_same[i], 0, 6);
    }
}

/* -- a note on speed ------------------------------------------------------- */

static void test_sampling_speed(void **state) {
    static const char *const names[4] = {"greedy", "T 0.8", "T 0.8 top_k 40", "T 0.8 top_p 0.95"};
    float *x = sam_large(7, 4.0f);
    uint32_t *scratch = (uint32_t *)malloc(SAM_VOCAB * sizeof *scratch), i, kind;
    (void)state;
    assert_non_null(scratch);
    for (kind = 0; kind < 4; kind++) {
        dend_sample_params p =
            sam_params(kind > 0 ? 0.8f : 0.0f, kind == 2 ? 40 : 0, kind == 3 ? 0.95f : 0.0f, 0.0f);
        uint64_t start = dendp_now_ns(), ns;
        for (i = 0; i < 5; i++) {
            sam_draw(x, SAM_VOCAB, &p, 1, i, scratch);
        }
        ns = dendp_now_ns() - start;
        print_message("sampling %s of %u tokens: %u us\n", names[kind], SAM_VOCAB, (unsigned)(ns / 5000u));
    }
    free(scratch);
    free(x);
}

/* -- selection by mass ------------------------------------------------------------------ */

#define SAM_NEAR 20000u

typedef struct sam_near {
    double way;
    uint32_t id;
} sam_near;

static int sam_near_compare(const void *a, const void *b) {
    const sam_near *x = (const sam_near *)a, *y = (const sam_near *)b;
    return x->way < y->way ? -1 : x->way > y->way ? 1 : x->id < y->id ? -1 : x->id > y->id;
}

/* ids [n] in any order: what is taken for the mass between k and k + 1 of them are the k + 1 nearest. */
static void sam_check_nearest(const float *x, const uint32_t *ids, uint32_t n, double center, uint32_t k) {
    static sam_near sorted[SAM_NEAR];
    static uint32_t work[SAM_NEAR];
    static bool taken[SAM_NEAR];
    double want = 0.0, mass = 0.0, max = -1e30;
    uint32_t i, kept;
    for (i = 0; i < n; i++) {
        sorted[i].way = fabs((double)x[ids[i]] - center);
        sorted[i].id = ids[i];
        max = (double)x[ids[i]] > max ? (double)x[ids[i]] : max;
    }
    qsort(sorted, n, sizeof *sorted, sam_near_compare);
    for (i = 0; i < k; i++) {
        want += exp((double)x[sorted[i].id] - max);
    }
    want += k < n ? 0.5 * exp((double)x[sorted[k].id] - max) : 1.0;
    memcpy(work, ids, n * sizeof *ids);
    kept = dendp_nearest(x, work, n, center, (float)max, want, &mass);
    assert_int_equal(kept, k < n ? k + 1 : n);
    assert_true(k < n ? mass >= want : mass < want);
    memset(taken, 0, sizeof taken);
    for (i = 0; i < kept; i++) {
        assert_false(taken[work[i]]);
        taken[work[i]] = true;
    }
    for (i = 0; i < kept; i++) {
        assert_true(taken[sorted[i].id]);
    }
}

/* Against sorting: random logits, few different ones, all equal, in order and backwards; and an order in which
 * every pivot is nearly the farthest, so that the heap has to do it. */
static void test_sampling_nearest(void **state) {
    static const uint32_t sizes[] = {1, 2, 3, 15, 16, 17, 18, 33, 100, 1000, SAM_NEAR};
    static float x[SAM_NEAR];
    static uint32_t ids[SAM_NEAR], list[SAM_NEAR];
    uint32_t s, kind, i, k, n, turn, left, rank = 0;
    test_rng rng;
    (void)state;
    rng.state = 311;
    for (s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        n = sizes[s];
        for (kind = 0; kind < 6; kind++) {
            for (i = 0; i < n; i++) {
                x[i] = kind == 0   ? 6.0f * test_float(&rng)
                       : kind == 1 ? (float)test_below(&rng, 5)
                       : kind == 2 ? 1.0f
                       : kind == 3 ? 10.0f * (float)i / (float)n
                       : kind == 4 ? -10.0f * (float)i / (float)n
                                   : (i == n / 2 ? 15.0f : -test_float(&rng));
                ids[i] = i;
            }
            sam_check_nearest(x, ids, n, 1.0, 0);
            sam_check_nearest(x, ids, n, (double)x[n / 2], n / 2);
            sam_check_nearest(x, ids, n, 0.3, n - 1);
            sam_check_nearest(x, ids, n, 0.3, n);
            sam_check_nearest(x, ids, n, -2.0, test_below(&rng, n));
        }
    }
    n = SAM_NEAR;
    for (i = 0; i < n; i++) {
        list[i] = i;
        x[i] = 2.0f; /* those that no pivot meets */
    }
    for (turn = 0, left = n; turn < DENDP_PIVOTS; turn++) {
        float met[3], middle;
        for (i = 0; i < 3;
             i++) { /* that this turn looks at, and makes the farthest but for those before them */
            uint32_t id = list[dendp_hash2(turn, i) % left];
            x[id] = x[id] < 2.0f ? x[id] : -8.0f + 0.01f * (float)rank++;
            met[i] = x[id];
        }
        middle = met[0] + met[1] + met[2] - fmaxf(fmaxf(met[0], met[1]), met[2]) -
                 fminf(fminf(met[0], met[1]), met[2]);
        for (k = 0, i = 0; i < left; i++) {
            list[k] = list[i];
            k += x[list[i]] > middle - 0.005f ? 1u : 0u;
        }
        left = k;
    }
    assert_true(left > n - 4 * DENDP_PIVOTS); /* so little have they divided */
    for (i = 0; i < n; i++) {
        ids[i] = i;
    }
    sam_check_nearest(x, ids, n, 2.5, n / 2);
    sam_check_nearest(x, ids, n, 2.5, n - 200);
}

static const struct CMUnitTest tests_sampling_sampler[] = {
    cmocka_unit_test(test_sampling_law),          cmocka_unit_test(test_sampling_law_filtered),
    cmocka_unit_test(test_sampling_independence), cmocka_unit_test(test_sampling_filters),
    cmocka_unit_test(test_sampling_edges),        cmocka_unit_test(test_sampling_ties),
    cmocka_unit_test(test_sampling_strange),      cmocka_unit_test(test_sampling_infinite),
    cmocka_unit_test(test_sampling_arguments),    cmocka_unit_test(test_sampling_logprob),
    cmocka_unit_test(test_sampling_plain),        cmocka_unit_test(test_sampling_lift),
    cmocka_unit_test(test_sampling_searches),     cmocka_unit_test(test_sampling_keys),
    cmocka_unit_test(test_sampling_nearest),      cmocka_unit_test(test_sampling_speed),
};
