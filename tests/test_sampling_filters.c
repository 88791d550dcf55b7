/* The stages of choosing a token against oracles that sort everything in double precision: what each leaves of
 * random logits, alone and in random orders; the law of whole chains by chi-square; hostile parameters. */

#define FLT_MOST 80u /* tokens of a case */
#define FLT_PAST 60u /* tokens before it */

/* A case as the oracle sees it. x is rounded to single precision wherever a stage changes it, as documented. */
typedef struct flt_oracle {
    uint32_t n;
    double x[FLT_MOST];
    bool alive[FLT_MOST];
    bool clear; /* no token is so near a threshold that rounding may decide */
} flt_oracle;

static double flt_round(double x) {
    x = x > 3.0e38 ? (double)3.0e38f : x < -3.0e38 ? (double)-3.0e38f : x;
    return (double)(float)x;
}

static bool flt_near(double a, double b) {
    return fabs(a - b) <= 2e-5 * (fabs(a) + fabs(b)) + 1e-9;
}

/* p[i] over what is alive; the tokens in `order`, best first; returns how many are alive. */
static uint32_t flt_softmax(const flt_oracle *o, double *p, uint32_t *order) {
    uint32_t i, j, n = 0;
    double max, sum = 0.0;
    for (i = 0; i < o->n; i++) {
        if (o->alive[i]) {
            for (j = n++; j > 0 && o->x[order[j - 1]] < o->x[i]; j--) {
                order[j] = order[j - 1];
            }
            order[j] = i;
        }
    }
    max = o->x[order[0]];
    for (i = 0; i < o->n; i++) {
        p[i] = o->alive[i] ? exp(o->x[i] - max) : 0.0;
        sum += p[i];
    }
    for (i = 0; i < o->n; i++) {
        p[i] /= sum;
    }
    return n;
}

/* Keeps order[0 .. n) until their mass reaches `want`. */
static void flt_keep_mass(flt_oracle *o, const double *p, const uint32_t *order, uint32_t n, double want) {
    double mass = 0.0;
    uint32_t i, k;
    for (k = 0; k < n && (k == 0 || mass < want); k++) {
        mass += p[order[k]];
        o->clear = o->clear && !flt_near(mass, want);
    }
    for (i = k; i < n; i++) {
        o->alive[order[i]] = false;
    }
}

/* Keeps x >= least. */
static void flt_keep_from(flt_oracle *o, double least) {
    uint32_t i;
    for (i = 0; i < o->n; i++) {
        if (o->alive[i]) {
            o->clear = o->clear && fabs(o->x[i] - least) > 2e-5 * (1.0 + fabs(least));
            o->alive[i] = o->x[i] >= least;
        }
    }
}

/* How long the end of past [n] repeats before place k, at most `most` tokens. */
static uint32_t flt_repeats(const int32_t *past, uint32_t n, uint32_t k, uint32_t most) {
    uint32_t len = 0;
    while (len < most && len < k && past[k - 1 - len] == past[n - 1 - len]) {
        len++;
    }
    return len;
}

static void flt_stage(flt_oracle *o, uint32_t stage, const dend_sample_params *p, const int32_t *past,
                      uint32_t n_past, double mu, bool coin) {
    double prob[FLT_MOST], sum = 0.0, mean, var = 0.0;
    uint32_t order[FLT_MOST] = {0}, i, j, k, n = flt_softmax(o, prob, order), count = 0;
    bool possible = o->x[order[0]] > -2.9e38;
    if (!possible && stage >= DEND_SAMPLE_TOP_N_SIGMA) {
        return;
    }
    switch (stage) {
    case DEND_SAMPLE_BIAS:
        for (j = 0; j < p->n_bias; j++) {
            i = (uint32_t)p->bias[j].token;
            if (o->alive[i] && o->x[i] > -2.9e38 && p->bias[j].bias > -1e29f) {
                o->x[i] = flt_round(o->x[i] + (double)p->bias[j].bias);
            }
        }
        break;
    case DEND_SAMPLE_PENALTIES:
        for (i = 0; i < o->n; i++) {
            uint32_t last = p->penalty_last_n ? p->penalty_last_n : 64;
            for (k = 0, count = 0; k < n_past; k++) {
                count += k + last >= n_past && past[k] == (int32_t)i;
            }
            if (count && o->alive[i] && o->x[i] > -2.9e38) {
                double r = p->repeat_penalty > 0.0f ? (double)p->repeat_penalty : 1.0;
                double x = o->x[i] > 0.0 ? o->x[i] / r : o->x[i] * r;
                o->x[i] = flt_round(x - (double)p->frequency_penalty * count - (double)p->presence_penalty);
            }
        }
        break;
    case DEND_SAMPLE_DRY: {
        uint32_t window = p->dry_last_n && p->dry_last_n < n_past ? p->dry_last_n : n_past;
        uint32_t allowed = p->dry_allowed_length ? p->dry_allowed_length : 2;
        double base = p->dry_base > 0.0f ? (double)p->dry_base : 1.75;
        past += n_past - window;
        for (i = 0; i < o->n; i++) {
            for (k = 1, count = 0; k < window; k++) {
                j = past[k] == (int32_t)i ? flt_repeats(past, window, k, window) : 0;
                count = j > count ? j : count;
            }
            if (count >= allowed && o->alive[i] && o->x[i] > -2.9e38) {
                o->x[i] = flt_round(o->x[i] - (double)p->dry_multiplier * pow(base, count - allowed));
            }
        }
        break;
    }
    case DEND_SAMPLE_TOP_N_SIGMA:
        for (i = 0; i < o->n; i++) {
            if (o->alive[i] && o->x[i] > -2.9e38) {
                sum += o->x[i];
                count++;
            }
        }
        mean = sum / count;
        for (i = 0; i < o->n; i++) {
            if (o->alive[i] && o->x[i] > -2.9e38) {
                var += (o->x[i] - mean) * (o->x[i] - mean) / count;
            }
        }
        if (var < 1e-9) { /* all equal: all stay, and rounding has no say in that */
            for (i = 0; i < o->n; i++) {
                o->alive[i] = o->alive[i] && o->x[i] > -2.9e38;
            }
            break;
        }
        flt_keep_from(o, o->x[order[0]] - (double)p->top_n_sigma * sqrt(var));
        break;
    case DEND_SAMPLE_TOP_K:
        for (k = p->top_k; k < n; k++) {
            o->alive[order[k]] = false;
        }
        break;
    case DEND_SAMPLE_TYPICAL: {
        double way[FLT_MOST], entropy = 0.0;
        for (i = 0; i < n; i++) {
            entropy -= prob[order[i]] > 0.0 ? prob[order[i]] * log(prob[order[i]]) : 0.0;
        }
        for (i = 0; i < o->n; i++) {
            way[i] = !o->alive[i] || o->x[i] < -2.9e38
                         ? 1e300
                         : fabs((o->x[order[0]] - o->x[i]) - log(prob[order[0]]) - entropy);
        }
        for (i = 0, k = 0; i < o->n; i++) {
            if (o->alive[i]) {
                for (j = k++; j > 0 && way[order[j - 1]] > way[i]; j--) {
                    order[j] = order[j - 1];
                }
                order[j] = i;
            }
        }
        flt_keep_mass(o, prob, order, n, (double)p->typical_p);
        for (i = 1; i < n; i++) { /* of two that are as far, on different sides, rounding decides */
            bool equal = o->x[order[i]] <= o->x[order[i - 1]] && o->x[order[i]] >= o->x[order[i - 1]];
            o->clear = o->clear && (equal || way[order[i]] - way[order[i - 1]] > 1e-4);
        }
        break;
    }
    case DEND_SAMPLE_TOP_P:
        flt_keep_mass(o, prob, order, n, (double)p->top_p);
        break;
    case DEND_SAMPLE_MIN_P:
        flt_keep_from(o, o->x[order[0]] + log((double)p->min_p));
        break;
    case DEND_SAMPLE_XTC:
        for (i = 0; coin && i < n; i++) {
            double t = p->xtc_threshold > 0.0f ? (double)p->xtc_threshold : 0.1;
            o->clear = o->clear && !flt_near(prob[order[i]], t);
            count += prob[order[i]] >= t;
        }
        for (i = 0; i + 1 < count; i++) {
            o->alive[order[i]] = false;
        }
        break;
    case DEND_SAMPLE_MIROSTAT: {
        double least = o->x[order[0]] - log(prob[order[0]]) * 1.0 - mu * log(2.0);
        least = o->x[order[0]] - log(prob[order[0]]) - mu * log(2.0);
        if (least < o->x[order[0]]) {
            flt_keep_from(o, least);
        } else {
            o->clear = o->clear && least - o->x[order[0]] > 1e-4;
            flt_keep_from(o, o->x[order[0]] - 1e-3);
            for (i = 0; i < o->n; i++) { /* the best and its equals */
                o->alive[i] = o->alive[i] && o->x[i] >= o->x[order[0]];
            }
        }
        break;
    }
    default: /* temperature */
        for (i = 0; i < o->n; i++) {
            if (o->alive[i] && o->x[i] > -2.9e38) {
                o->x[i] = flt_round(o->x[i] / (double)p->temperature);
            }
        }
        break;
    }
}

static bool flt_on(const dend_sample_params *p, uint32_t stage) {
    bool hot = p->temperature > 0.0f;
    switch (stage) {
    case DEND_SAMPLE_BIAS:
        return p->n_bias > 0;
    case DEND_SAMPLE_PENALTIES:
        return true; /* does nothing when it is off */
    case DEND_SAMPLE_DRY:
        return p->dry_multiplier > 0.0f;
    case DEND_SAMPLE_TOP_N_SIGMA:
        return hot && p->top_n_sigma > 0.0f;
    case DEND_SAMPLE_TOP_K:
        return hot && p->top_k > 0;
    case DEND_SAMPLE_TYPICAL:
        return hot && p->typical_p > 0.0f && p->typical_p < 1.0f;
    case DEND_SAMPLE_TOP_P:
        return hot && p->top_p > 0.0f && p->top_p < 1.0f;
    case DEND_SAMPLE_MIN_P:
        return hot && p->min_p > 0.0f;
    case DEND_SAMPLE_XTC:
        return hot && p->xtc_probability > 0.0f;
    case DEND_SAMPLE_MIROSTAT:
        return hot && p->mirostat_tau > 0.0f;
    default:
        return hot;
    }
}

/* Runs the oracle; *inverse is what is left of the temperature for the draw. False when all are banned. */
static bool flt_run(flt_oracle *o, const float *logits, uint32_t n, const dend_sample_params *p,
                    const dend_sample_past *past, bool coin, double *inverse) {
    static const uint8_t usual[12] = {DEND_SAMPLE_BIAS,        DEND_SAMPLE_PENALTIES,  DEND_SAMPLE_DRY,
                                      DEND_SAMPLE_TOP_N_SIGMA, DEND_SAMPLE_TOP_K,      DEND_SAMPLE_TYPICAL,
                                      DEND_SAMPLE_TOP_P,       DEND_SAMPLE_MIN_P,      DEND_SAMPLE_XTC,
                                      DEND_SAMPLE_MIROSTAT,    DEND_SAMPLE_TEMPERATURE};
    const uint8_t *order = p->order[0] ? p->order : usual;
    double eta = p->mirostat_eta > 0.0f ? (double)p->mirostat_eta : (double)0.1,
           mu = 2.0 * (double)p->mirostat_tau;
    uint32_t i, left = 0;
    mu -= eta * (past->surprise - (double)past->n_surprises * (double)p->mirostat_tau);
    memset(o, 0, sizeof *o);
    o->n = n;
    o->clear = true;
    for (i = 0; i < n; i++) {
        bool bad = !sam_is_finite(logits[i]) && logits[i] != sam_inf();
        o->x[i] = bad ? (double)-3.0e38f : flt_round((double)logits[i] > 3e38 ? 3e38 : (double)logits[i]);
        o->alive[i] = true;
    }
    for (i = 0; i < p->n_bias; i++) {
        if (p->bias[i].bias <= -1e30f) {
            o->alive[p->bias[i].token] = false;
        }
    }
    for (i = 0; i < n; i++) {
        left += o->alive[i];
    }
    *inverse = p->temperature > 0.0f ? 1.0 / (double)p->temperature : 0.0;
    if (left == 0) {
        return false;
    }
    for (i = 0; i < 12 && order[i]; i++) {
        bool last = order[i + 1] == 0;
        if (flt_on(p, order[i]) && !(last && order[i] == DEND_SAMPLE_TEMPERATURE)) {
            flt_stage(o, order[i], p, past->tokens, past->n_tokens, mu, coin);
            *inverse = order[i] == DEND_SAMPLE_TEMPERATURE ? 1.0 : *inverse;
        }
    }
    return true;
}

/* Whether XTC acts at this place. */
static bool flt_coin(const dend_sample_params *p, uint64_t stream, uint64_t position) {
    return dendp_uniform(dendp_hash2(stream, p->salt), position, 0x100000000u) < (double)p->xtc_probability;
}

/* The token that must be drawn. */
static int32_t flt_draw(flt_oracle *o, double inverse, uint64_t stream, uint64_t position) {
    double best = -1e308;
    int32_t token = -1;
    uint32_t i;
    bool possible = false;
    for (i = 0; i < o->n; i++) {
        possible = possible || (o->alive[i] && o->x[i] > -2.9e38);
    }
    for (i = 0; i < o->n; i++) {
        double value = o->x[i];
        if (!o->alive[i] || (possible && o->x[i] < -2.9e38)) {
            continue;
        }
        if (inverse > 0.0) {
            value = value * inverse + dendp_gumbel(stream, position, i);
        }
        if (token < 0 || value > best) {
            o->clear = o->clear && (token < 0 || inverse <= 0.0 || value - best > 1e-5);
            best = value;
            token = (int32_t)i;
        } else {
            o->clear = o->clear && (inverse <= 0.0 || best - value > 1e-5);
        }
    }
    return token;
}

/* -- random cases --------------------------------------------------------------- */

static void flt_logits(test_rng *rng, float *x, uint32_t n) {
    uint32_t i, kind = test_below(rng, 6);
    for (i = 0; i < n; i++) {
        float v = (float)((double)test_below(rng, 20001) / 1000.0 - 10.0);
        x[i] = kind == 0 ? 1.5f : kind == 1 ? (float)(int)(v / 3.0f) : v; /* all equal; many ties; else any */
        if (kind == 2 && test_below(rng, 3) == 0) {
            x[i] = test_below(rng, 2) ? -sam_inf() : sam_nan();
        }
    }
    if (kind == 3) {
        x[test_below(rng, n)] = 25.0f;
    }
    if (kind == 4 && test_below(rng, 8) == 0) {
        for (i = 0; i < n; i++) {
            x[i] = -sam_inf();
        }
    }
}

/* Sets what a stage needs; the stage is then on. */
static void flt_turn_on(test_rng *rng, dend_sample_params *p, uint32_t stage, uint32_t n,
                        dend_logit_bias *bias) {
    uint32_t i;
    switch (stage) {
    case DEND_SAMPLE_BIAS:
        p->n_bias = 1 + test_below(rng, 6);
        p->bias = bias;
        for (i = 0; i < p->n_bias; i++) {
            bias[i].token = (int32_t)test_below(rng, n);
            bias[i].bias = test_below(rng, 3) ? (float)test_below(rng, 200) / 10.0f - 10.0f : DEND_BAN;
            if (test_below(rng, 8) == 0) {
                bias[i].bias = -sam_inf();
            }
        }
        break;
    case DEND_SAMPLE_PENALTIES:
        p->repeat_penalty = test_below(rng, 2) ? 0.5f + (float)test_below(rng, 20) / 10.0f : 0.0f;
        p->frequency_penalty = (float)test_below(rng, 40) / 10.0f - 1.0f;
        p->presence_penalty = test_below(rng, 2) ? (float)test_below(rng, 30) / 10.0f : 0.0f;
        p->penalty_last_n = test_below(rng, 2) ? test_below(rng, 30) : 0;
        break;
    case DEND_SAMPLE_DRY:
        p->dry_multiplier = 0.1f + (float)test_below(rng, 20) / 10.0f;
        p->dry_base = test_below(rng, 2) ? 1.0f + (float)test_below(rng, 20) / 10.0f : 0.0f;
        p->dry_allowed_length = test_below(rng, 4);
        p->dry_last_n = test_below(rng, 2) ? test_below(rng, FLT_PAST + 5) : 0;
        break;
    case DEND_SAMPLE_TOP_N_SIGMA:
        p->top_n_sigma = 0.05f + (float)test_below(rng, 300) / 100.0f;
        break;
    case DEND_SAMPLE_TOP_K:
        p->top_k = 1 + test_below(rng, n + 3);
        break;
    case DEND_SAMPLE_TYPICAL:
        p->typical_p = (float)(1 + test_below(rng, 998)) / 1000.0f;
        break;
    case DEND_SAMPLE_TOP_P:
        p->top_p = (float)(1 + test_below(rng, 998)) / 1000.0f;
        break;
    case DEND_SAMPLE_MIN_P:
        p->min_p = (float)(1 + test_below(rng, 500)) / 1000.0f;
        break;
    case DEND_SAMPLE_XTC:
        p->xtc_probability = test_below(rng, 2) ? 1.0f : 0.5f;
        p->xtc_threshold = test_below(rng, 3) ? (float)(1 + test_below(rng, 600)) / 1000.0f : 0.0f;
        break;
    case DEND_SAMPLE_MIROSTAT:
        p->mirostat_tau = 0.2f + (float)test_below(rng, 400) / 100.0f;
        p->mirostat_eta = test_below(rng, 2) ? (float)test_below(rng, 100) / 100.0f : 0.0f;
        break;
    default:
        p->temperature = 0.2f + (float)test_below(rng, 30) / 10.0f;
        break;
    }
}

typedef struct flt_count {
    uint32_t clear, all, removed, none;
} flt_count;

/* One case: what is left of it and what is drawn must be the oracle's. */
static void flt_check(const float *logits, uint32_t n, const dend_sample_params *p,
                      const dend_sample_past *past, uint64_t stream, uint64_t position, flt_count *count) {
    void *scratch = malloc(dend_sample_scratch(n, past->n_tokens));
    const float *x = (const float *)scratch;
    flt_oracle o;
    double inverse;
    dend_sampled out = {-7, 1.0f}, again = {-8, 1.0f};
    dend_status status;
    uint32_t i;
    const uint32_t plain = 1u << DEND_SAMPLE_TOP_K | 1u << DEND_SAMPLE_TOP_P | 1u << DEND_SAMPLE_MIN_P |
                           1u << DEND_SAMPLE_TEMPERATURE;
    bool by_chain, possible = false,
                   some = flt_run(&o, logits, n, p, past, flt_coin(p, stream, position), &inverse);
    int32_t token;
    assert_non_null(scratch);
    status = dend_sample_after(logits, n, p, stream, position, past, scratch, &out);
    count->all++;
    if (!some) {
        ASSERT_STATUS(DEND_ERR_NO_TOKENS, status);
        assert_int_equal(out.token, -7);
        count->none++;
        free(scratch);
        return;
    }
    ASSERT_STATUS(DEND_OK, status);
    assert_true(out.token >= 0 && (uint32_t)out.token < n && dendp_finite(out.logprob));
    for (i = 0; i < n; i++) {
        possible = possible || (o.alive[i] && o.x[i] > -2.9e38);
    }
    by_chain = p->order[0] || (dendp_chain_on(p) & ~plain);
    for (i = 0; o.clear && i < n; i++) {
        /* What the model holds impossible may stay or go, as long as there is something else. */
        bool kept = x[i] > (possible ? -3.0e38f : -FLT_MAX),
             keeps = o.alive[i] && (!possible || o.x[i] > -2.9e38);
        if (by_chain && kept != keeps) {
            fail_msg("token %u of %u: %s, but the oracle says otherwise (logit %g)", i, n,
                     kept ? "kept" : "removed", (double)logits[i]);
        }
        count->removed += !o.alive[i];
    }
    token = flt_draw(&o, inverse, dendp_hash2(stream, p->salt), position);
    if (o.clear) {
        assert_int_equal(token, out.token);
        count->clear++;
    }
    memset(scratch, 0xa5, dend_sample_scratch(n, past->n_tokens)); /* what scratch held does not matter */
    ASSERT_STATUS(DEND_OK, dend_sample_after(logits, n, p, stream, position, past, scratch, &again));
    assert_int_equal(out.token, again.token);
    assert_int_equal(dendp_f32_bits(out.logprob), dendp_f32_bits(again.logprob));
    free(scratch);
}

static void flt_past(test_rng *rng, int32_t *tokens, uint32_t n_vocab, dend_sample_past *past) {
    uint32_t i, few = test_below(rng, 2) ? 3 : n_vocab;
    few = few < n_vocab ? few : n_vocab;
    past->tokens = tokens;
    past->n_tokens = test_below(rng, FLT_PAST + 1);
    for (i = 0; i < past->n_tokens; i++) { /* few different ones, and copies of what was before */
        tokens[i] = (int32_t)test_below(rng, few);
        if (i > 10 && test_below(rng, 4)) {
            tokens[i] = tokens[i - 7];
        }
    }
    past->n_surprises = test_below(rng, 30);
    past->surprise = (double)past->n_surprises * (double)test_below(rng, 500) / 100.0;
}

/* Each stage alone. */
static void test_filters_single(void **state) {
    test_rng rng;
    uint32_t stage, round;
    (void)state;
    rng.state = 4711;
    for (stage = 1; stage <= DEND_SAMPLE_TEMPERATURE; stage++) {
        flt_count count = {0, 0, 0, 0};
        for (round = 0; round < 3000; round++) {
            float x[FLT_MOST];
            dend_logit_bias bias[8];
            int32_t tokens[FLT_PAST];
            dend_sample_past past;
            dend_sample_params p;
            uint32_t n = test_below(&rng, 10) ? 1 + test_below(&rng, FLT_MOST) : 1;
            memset(&p, 0, sizeof p);
            p.temperature = 1.0f;
            flt_logits(&rng, x, n);
            flt_past(&rng, tokens, n, &past);
            flt_turn_on(&rng, &p, stage, n, bias);
            if (stage <= DEND_SAMPLE_DRY && test_below(&rng, 3) == 0) {
                p.temperature = 0.0f;
            }
            p.salt = test_below(&rng, 3);
            flt_check(x, n, &p, &past, rng.state, round, &count);
        }
        if (count.clear < count.all / 2) {
            fail_msg("stage %u: only %u of %u cases are clear", stage, count.clear, count.all);
        }
        if (stage > DEND_SAMPLE_DRY && stage < DEND_SAMPLE_TEMPERATURE) {
            assert_in_range(count.removed, 1000, UINT32_MAX);
        }
        assert_true(stage != DEND_SAMPLE_BIAS || count.none > 10);
    }
}

/* Any of them together, in the usual order and in any other. */
static void test_filters_orders(void **state) {
    test_rng rng;
    uint32_t round, i;
    flt_count count = {0, 0, 0, 0};
    (void)state;
    rng.state = 815;
    for (round = 0; round < 30000; round++) {
        float x[FLT_MOST];
        dend_logit_bias bias[8];
        int32_t tokens[FLT_PAST];
        dend_sample_past past;
        dend_sample_params p;
        uint32_t n = 2 + test_below(&rng, FLT_MOST - 2), n_stages = 0;
        uint8_t order[16] = {0};
        memset(&p, 0, sizeof p);
        flt_logits(&rng, x, n);
        flt_past(&rng, tokens, n, &past);
        for (i = 1; i <= DEND_SAMPLE_TEMPERATURE; i++) {
            bool on = i == DEND_SAMPLE_TEMPERATURE || test_below(&rng, 3) == 0;
            if (on) {
                flt_turn_on(&rng, &p, i, n, bias);
            }
            if (on || test_below(&rng, 2)) { /* one that is off may stand there */
                uint32_t at = test_below(&rng, n_stages + 1);
                memmove(order + at + 1, order + at, n_stages - at);
                order[at] = (uint8_t)i;
                n_stages++;
            }
        }
        if (round % 3) {
            memcpy(p.order, order, sizeof order);
        }
        flt_check(x, n, &p, &past, rng.state, round, &count);
    }
    printf("orders: %u of %u cases are clear, %u ban everything\n", count.clear, count.all, count.none);
    assert_true(count.clear > count.all / 3);
}

/* The usual order written out gives what the room of 06.01 gives without one. */
static void test_filters_plain(void **state) {
    static const uint8_t usual[16] = {DEND_SAMPLE_TOP_K, DEND_SAMPLE_TOP_P, DEND_SAMPLE_MIN_P,
                                      DEND_SAMPLE_TEMPERATURE};
    enum { N = 3000 };
    float *x = (float *)malloc(N * sizeof *x);
    void *scratch = malloc(dend_sample_scratch(N, 0));
    uint32_t *ids = (uint32_t *)malloc(N * sizeof *ids), round, i, differ = 0;
    test_rng rng;
    (void)state;
    rng.state = 99;
    assert_true(x && scratch && ids);
    for (round = 0; round < 600; round++) {
        dend_sample_params p;
        dend_sampled a, b;
        memset(&p, 0, sizeof p);
        for (i = 0; i < N; i++) {
            x[i] = (float)test_below(&rng, 100000) / 5000.0f;
        }
        p.temperature = 0.3f + (float)test_below(&rng, 20) / 10.0f;
        p.top_k = test_below(&rng, 2) ? 1 + test_below(&rng, 200) : 0;
        p.top_p = test_below(&rng, 2) ? (float)test_below(&rng, 100) / 100.0f : 0.0f;
        p.min_p = test_below(&rng, 2) ? (float)test_below(&rng, 30) / 100.0f : 0.0f;
        ASSERT_STATUS(DEND_OK, dend_sample_logits(x, N, &p, 3, round, ids, &a));
        memcpy(p.order, usual, sizeof usual);
        ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_sample_logits(x, N, &p, 3, round, ids, &b));
        ASSERT_STATUS(DEND_OK, dend_sample_after(x, N, &p, 3, round, NULL, scratch, &b));
        differ += a.token != b.token;
        if (a.token == b.token) {
            assert_int_equal(dendp_f32_bits(a.logprob), dendp_f32_bits(b.logprob));
        }
    }
    /* A sum of top_p in another order may put one token on the other side of the threshold. */
    assert_true(differ <= 1);
    free(ids);
    free(scratch);
    free(x);
}

/* -- the law of chains ------------------------------------------------------------- */

static void flt_law(dend_sample_params p, const dend_sample_past *past, uint64_t stream) {
    enum { N = 24, DRAWS = 60000 };
    static const dend_sample_past none;
    float x[N];
    double expected[N] = {0}, chi = 0.0;
    uint32_t seen[N] = {0}, i, k, cells = 0, scratch_bytes;
    void *scratch;
    past = past ? past : &none;
    scratch_bytes = (uint32_t)dend_sample_scratch(N, past->n_tokens);
    scratch = malloc(scratch_bytes);
    assert_non_null(scratch);
    for (i = 0; i < N; i++) {
        x[i] = 6.0f * (float)sin(1.7 * (double)i + (double)stream) + 0.13f * (float)i;
    }
    for (k = 0; k < 2; k++) { /* with XTC's coin and without */
        double inverse, sum = 0.0, weight = k ? (double)p.xtc_probability : 1.0 - (double)p.xtc_probability,
                        max = -1e300;
        flt_oracle o;
        assert_true(flt_run(&o, x, N, &p, past, k == 1, &inverse));
        assert_true(weight <= 0.0 || o.clear);
        for (i = 0; i < N; i++) {
            max = o.alive[i] && o.x[i] > max ? o.x[i] : max;
        }
        for (i = 0; i < N; i++) {
            sum += o.alive[i] ? exp((o.x[i] - max) * inverse) : 0.0;
        }
        for (i = 0; i < N; i++) {
            expected[i] += o.alive[i] ? weight * exp((o.x[i] - max) * inverse) / sum : 0.0;
        }
    }
    for (k = 0; k < DRAWS; k++) {
        dend_sampled out;
        ASSERT_STATUS(DEND_OK, dend_sample_after(x, N, &p, stream, k, past, scratch, &out));
        seen[out.token]++;
    }
    for (i = 0; i < N; i++) {
        double want = expected[i] * DRAWS;
        if (want <= 0.0) {
            assert_int_equal(seen[i], 0);
        } else if (want >= 5.0) {
            chi += (seen[i] - want) * (seen[i] - want) / want;
            cells++;
        }
    }
    assert_true(cells >= 2);
    /* The mean is cells - 1, the variance twice that: five deviations are for 1 in a million at this size. */
    if (!(chi < cells - 1 + 5.0 * sqrt(2.0 * (cells - 1)) + 5.0)) {
        fail_msg("chi-square %g over %u cells", chi, cells);
    }
    free(scratch);
}

static void test_filters_law(void **state) {
    static const int32_t tokens[] = {3, 5, 3, 7, 9, 3, 5, 3, 7, 11, 3, 5, 3};
    static const dend_logit_bias bias[] = {{4, 2.0f}, {8, -1.0f}, {0, DEND_BAN}};
    static const uint8_t hot_first[16] = {DEND_SAMPLE_TEMPERATURE, DEND_SAMPLE_TOP_P, DEND_SAMPLE_XTC,
                                          DEND_SAMPLE_MIN_P};
    dend_sample_past past = {NULL, 0, 4, 9.5};
    dend_sample_params p, q;
    (void)state;
    past.tokens = tokens;
    past.n_tokens = 13;
    memset(&p, 0, sizeof p);
    p.temperature = 1.3f;
    q = p;
    q.typical_p = 0.8f;
    flt_law(q, NULL, 1);
    q = p;
    q.top_n_sigma = 0.7f;
    flt_law(q, NULL, 2);
    q = p;
    q.xtc_probability = 0.4f, q.xtc_threshold = 0.07f;
    flt_law(q, NULL, 3);
    q = p;
    q.mirostat_tau = 2.0f, q.mirostat_eta = 0.2f;
    flt_law(q, &past, 4);
    q = p;
    q.repeat_penalty = 1.4f, q.frequency_penalty = 0.3f, q.presence_penalty = 0.2f, q.dry_multiplier = 0.8f;
    q.bias = bias, q.n_bias = 3;
    flt_law(q, &past, 5);
    q.top_n_sigma = 1.5f, q.top_k = 15, q.typical_p = 0.95f, q.top_p = 0.9f, q.min_p = 0.02f;
    q.xtc_probability = 0.5f;
    flt_law(q, &past, 6);
    q = p;
    memcpy(q.order, hot_first, sizeof hot_first);
    q.top_p = 0.93f, q.xtc_probability = 0.6f, q.xtc_threshold = 0.11f, q.min_p = 0.03f;
    flt_law(q, NULL, 7);
}

/* -- llama.cpp's samplers: tests/golden/samplers.bin -------------------------------- */

/* The next n bytes of a golden file, copied to dst. */
static void flt_take(const unsigned char **at, const unsigned char *end, void *dst, size_t n) {
    assert_true((size_t)(end - *at) >= n);
    memcpy(dst, *at, n);
    *at += n;
}

static void flt_golden_case(const unsigned char **at, const unsigned char *end, uint32_t number) {
    uint32_t V, n_past, ints[4], i;
    float logits[64], f[13], expected[64];
    unsigned char kept[64];
    int32_t tokens[64];
    dend_sample_past past = {tokens, 0, 0, 0.0};
    dend_sample_params p;
    dend_sampled out;
    void *scratch = malloc(dend_sample_scratch(64, 64));
    const float *x = (const float *)scratch;
    flt_take(at, end, &V, 4);
    assert_int_equal(V, 64);
    flt_take(at, end, logits, sizeof logits);
    flt_take(at, end, &n_past, 4);
    assert_true(n_past <= 64);
    flt_take(at, end, tokens, n_past * 4);
    past.n_tokens = n_past;
    flt_take(at, end, f, sizeof f);
    flt_take(at, end, ints, sizeof ints);
    memset(&p, 0, sizeof p);
    p.temperature = f[0], p.top_p = f[1], p.min_p = f[2], p.typical_p = f[3], p.top_n_sigma = f[4];
    p.xtc_threshold = f[5], p.xtc_probability = f[5] > 0.0f ? 1.0f : 0.0f, p.mirostat_tau = f[6];
    p.repeat_penalty = f[7], p.frequency_penalty = f[8], p.presence_penalty = f[9];
    p.dry_multiplier = f[10], p.dry_base = f[11];
    p.top_k = ints[0], p.penalty_last_n = ints[1], p.dry_allowed_length = ints[2], p.dry_last_n = ints[3];
    flt_take(at, end, p.order, sizeof p.order);
    flt_take(at, end, kept, sizeof kept);
    flt_take(at, end, expected, sizeof expected);
    ASSERT_STATUS(DEND_OK, dend_sample_after(logits, V, &p, 1, number, &past, scratch, &out));
    for (i = 0; i < V; i++) {
        if ((x[i] > -FLT_MAX) != (kept[i] != 0)) {
            fail_msg("case %u, token %u: llama.cpp has it %s", number, i, kept[i] ? "kept" : "removed");
        }
        if (kept[i]) { /* both round to single precision, llama.cpp after each operation */
            ASSERT_NEAR(expected[i], x[i], 4e-6, 1e-6);
        }
    }
    free(scratch);
}

static void flt_golden_dry(const unsigned char **at, const unsigned char *end, const dend_text_rules *rules,
                           uint32_t V) {
    int32_t tokens[60];
    uint32_t n, i;
    float *zeros = (float *)calloc(V, sizeof *zeros), *expected = (float *)calloc(V, sizeof *expected);
    void *scratch = malloc(dend_sample_scratch(V, 60));
    const float *x = (const float *)scratch;
    dend_sample_past past = {tokens, 60, 0, 0.0};
    dend_sample_params p;
    dend_sampled out;
    memset(&p, 0, sizeof p);
    flt_take(at, end, &n, 4);
    assert_int_equal(n, 60);
    flt_take(at, end, tokens, sizeof tokens);
    flt_take(at, end, &p.dry_multiplier, 4);
    flt_take(at, end, &p.dry_base, 4);
    flt_take(at, end, &p.dry_allowed_length, 4);
    flt_take(at, end, &n, 4);
    for (i = 0; i < n; i++) {
        int32_t token;
        flt_take(at, end, &token, 4);
        assert_true(token >= 0 && (uint32_t)token < V);
        flt_take(at, end, &expected[token], 4);
    }
    p.rules = rules;
    ASSERT_STATUS(DEND_OK, dend_sample_after(zeros, V, &p, 1, 1, &past, scratch, &out));
    for (i = 0; i < V; i++) {
        ASSERT_NEAR(-expected[i], x[i], 1e-6, 4e-6);
    }
    free(scratch);
    free(expected);
    free(zeros);
}

static void test_filters_goldens(void **state) {
    size_t size;
    unsigned char *file = test_read_file("tests/golden/samplers.bin", &size);
    const unsigned char *at = file + 4, *end = file + size;
    char text[4][32];
    const char *breakers[4];
    uint32_t n, i;
    dend_model_desc md;
    dend_model *model = NULL;
    dend_model_info info;
    dend_text_rules_desc rd;
    dend_text_rules *rules = NULL;
    (void)state;
    assert_true(file && size > 8 && memcmp(file, "DSG1", 4) == 0);
    flt_take(&at, end, &n, 4);
    assert_true(n > 80);
    for (i = 0; i < n; i++) {
        flt_golden_case(&at, end, i);
    }
    memset(text, 0, sizeof text);
    memset(&md, 0, sizeof md);
    memset(&rd, 0, sizeof rd);
    md.path = "tests/golden/vocab_qwen2.gguf";
    md.vocab_only = true;
    ASSERT_STATUS(DEND_OK, dend_model_load(&md, &model, NULL));
    dend_model_get_info(model, &info);
    flt_take(&at, end, &rd.n_breakers, 4);
    assert_int_equal(rd.n_breakers, 4);
    for (i = 0; i < 4; i++) {
        flt_take(&at, end, &n, 4);
        assert_true(n < 32);
        flt_take(&at, end, text[i], n);
        breakers[i] = text[i];
    }
    rd.model = model, rd.breakers = breakers;
    ASSERT_STATUS(DEND_OK, dend_text_rules_create(&rd, &rules, NULL));
    flt_take(&at, end, &n, 4);
    for (i = 0; i < n; i++) {
        flt_golden_dry(&at, end, rules, info.n_vocab);
    }
    assert_true(at == end);
    dend_text_rules_free(rules);
    dend_model_free(model);
    free(file);
}

/* -- parameters ---------------------------------------------------------------------- */

static void test_filters_refused(void **state) {
    const float bad[3] = {sam_nan(), sam_inf(), -sam_inf()};
    float x[4] = {0.0f, 1.0f, 2.0f, 3.0f};
    uint32_t scratch_words[64], i, field;
    void *scratch = malloc(dend_sample_scratch(4, 2));
    const int32_t tokens[2] = {1, 2};
    dend_sample_past past = {NULL, 0, 0, 0.0};
    dend_logit_bias bias[1];
    dend_sample_params p;
    dend_sampled out = {-5, 0.5f};
    (void)state;
    for (field = 0; field < 11; field++) {
        for (i = 0; i < 4; i++) {
            float *f[11];
            memset(&p, 0, sizeof p);
            p.temperature = 1.0f;
            f[0] = &p.typical_p, f[1] = &p.top_n_sigma, f[2] = &p.xtc_probability, f[3] = &p.xtc_threshold;
            f[4] = &p.mirostat_tau, f[5] = &p.mirostat_eta, f[6] = &p.repeat_penalty,
            f[7] = &p.dry_multiplier;
            f[8] = &p.dry_base, f[9] = &p.frequency_penalty, f[10] = &p.presence_penalty;
            *f[field] = i < 3 ? bad[i] : -0.5f;
            ASSERT_STATUS(i == 3 && field > 8 ? DEND_OK : DEND_ERR_ARGUMENT,
                          dend_sample_after(x, 4, &p, 1, 1, NULL, scratch, &out));
            if (i < 3 || field <= 8) { /* what is off is checked too, at any temperature */
                p.temperature = 0.0f;
                ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_sample_after(x, 4, &p, 1, 1, NULL, scratch, &out));
            }
        }
    }
#define FLT_REFUSED(expected, set)                                                                           \
    memset(&p, 0, sizeof p);                                                                                 \
    p.temperature = 1.0f;                                                                                    \
    set;                                                                                                     \
    ASSERT_STATUS(expected, dend_sample_after(x, 4, &p, 1, 1, NULL, scratch, &out))
    FLT_REFUSED(DEND_ERR_ARGUMENT, p.xtc_probability = 1.5f);
    FLT_REFUSED(DEND_ERR_ARGUMENT, p.xtc_threshold = 1.5f);
    FLT_REFUSED(DEND_ERR_ARGUMENT, p.dry_base = 0.9f);
    FLT_REFUSED(DEND_ERR_ARGUMENT, p.n_bias = 1);
    bias[0].token = 4, bias[0].bias = 1.0f;
    FLT_REFUSED(DEND_ERR_TOKEN, (p.n_bias = 1, p.bias = bias));
    bias[0].token = -1;
    FLT_REFUSED(DEND_ERR_TOKEN, (p.n_bias = 1, p.bias = bias));
    bias[0].token = 1, bias[0].bias = sam_inf();
    FLT_REFUSED(DEND_ERR_ARGUMENT, (p.n_bias = 1, p.bias = bias));
    bias[0].bias = sam_nan();
    FLT_REFUSED(DEND_ERR_ARGUMENT, (p.n_bias = 1, p.bias = bias));
    FLT_REFUSED(DEND_ERR_ARGUMENT, (p.order[0] = DEND_SAMPLE_TEMPERATURE + 1));
    FLT_REFUSED(DEND_ERR_ARGUMENT, (p.order[0] = 255));
    FLT_REFUSED(DEND_ERR_ARGUMENT, (p.order[0] = p.order[1] = DEND_SAMPLE_TEMPERATURE));
    FLT_REFUSED(DEND_ERR_ARGUMENT, (p.order[0] = DEND_SAMPLE_TOP_P));       /* no temperature */
    FLT_REFUSED(DEND_ERR_ARGUMENT, (p.order[1] = DEND_SAMPLE_TEMPERATURE)); /* something behind the end */
    FLT_REFUSED(DEND_ERR_ARGUMENT, (p.order[0] = DEND_SAMPLE_TEMPERATURE, p.order[15] = 1));
    FLT_REFUSED(DEND_ERR_ARGUMENT,
                (p.order[0] = DEND_SAMPLE_TEMPERATURE, p.top_k = 2)); /* on, and not there */
    FLT_REFUSED(DEND_ERR_ARGUMENT, (p.order[0] = DEND_SAMPLE_TEMPERATURE, p.dry_multiplier = 2.0f));
    FLT_REFUSED(DEND_OK, (p.order[0] = DEND_SAMPLE_TOP_P, p.order[1] = DEND_SAMPLE_TEMPERATURE));
    FLT_REFUSED(DEND_OK, (p.order[0] = DEND_SAMPLE_TOP_P, p.temperature = 0.0f)); /* greedy needs none */
    out.token = -5;
    memset(&p, 0, sizeof p);
    p.typical_p = 0.5f, p.temperature = 1.0f;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_sample_after(NULL, 4, &p, 1, 1, NULL, scratch, &out));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_sample_after(x, 0, &p, 1, 1, NULL, scratch, &out));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_sample_after(x, 4, &p, 1, 1, NULL, NULL, &out));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_sample_after(x, 4, &p, 1, 1, NULL, scratch, NULL));
    past.n_tokens = 2;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_sample_after(x, 4, &p, 1, 1, &past, scratch, &out));
    past.tokens = tokens;
    past.surprise = -1.0;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_sample_after(x, 4, &p, 1, 1, &past, scratch, &out));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_sample_logits(x, 4, &p, 1, 1, scratch_words, &out));
    assert_int_equal(out.token, -5);
    free(scratch);
}

/* The widest parameters and logits that are allowed: a token comes out, whatever they are, and penalties that
 * overflow do not bring back what is banned. */
static void test_filters_extremes(void **state) {
    const float values[] = {0.0f,  1e-45f, 1e-38f, 1e-6f,  0.5f,  1.0f,    2.0f,
                            1e10f, 3e38f,  -1.0f,  -3e38f, 1e30f, FLT_MAX, -FLT_MAX};
    test_rng rng;
    uint32_t round, i;
    (void)state;
    rng.state = 31337;
    for (round = 0; round < 60000; round++) {
        float x[20], v[16];
        int32_t tokens[10];
        uint32_t n = 1 + test_below(&rng, 20), drawn_banned = 0;
        uint8_t *scratch = (uint8_t *)malloc(dend_sample_scratch(n, 10));
        dend_sample_past past = {NULL, 10, 0, 0.0};
        dend_logit_bias bias[2];
        dend_sample_params p;
        dend_sampled out;
        dend_status status;
        memset(&p, 0, sizeof p);
        for (i = 0; i < 16; i++) {
            v[i] = fabsf(values[test_below(&rng, 14)]);
        }
        for (i = 0; i < n; i++) {
            x[i] = test_below(&rng, 4) ? values[test_below(&rng, 14)]
                                       : (test_below(&rng, 2) ? sam_nan() : -sam_inf());
        }
        for (i = 0; i < 10; i++) {
            tokens[i] = (int32_t)test_below(&rng, n + 2) - 1; /* also none, and one too large */
        }
        past.tokens = tokens;
        past.n_surprises = test_below(&rng, 2) ? UINT32_MAX : 3;
        past.surprise = test_below(&rng, 2) ? 1e30 : 7.0;
        p.temperature = v[0], p.top_k = test_below(&rng, 3), p.top_p = v[1],
        p.min_p = v[2] > 1.0f ? 1.0f : v[2];
        p.typical_p = v[3], p.top_n_sigma = v[4], p.xtc_probability = v[5] > 1.0f ? 1.0f : v[5];
        p.xtc_threshold = v[6] > 1.0f ? 1.0f : v[6], p.mirostat_tau = v[7], p.mirostat_eta = v[8];
        p.repeat_penalty = v[9], p.frequency_penalty = values[test_below(&rng, 14)];
        p.presence_penalty = values[test_below(&rng, 14)],
        p.penalty_last_n = test_below(&rng, 2) ? UINT32_MAX : 1;
        p.dry_multiplier = v[10], p.dry_base = v[11] > 0.0f && v[11] < 1.0f ? 1.0f : v[11];
        p.dry_allowed_length = test_below(&rng, 2) ? UINT32_MAX : 1,
        p.dry_last_n = test_below(&rng, 2) ? UINT32_MAX : 3;
        bias[0].token = (int32_t)test_below(&rng, n), bias[0].bias = DEND_BAN;
        bias[1].token = bias[0].token, bias[1].bias = 3e38f; /* a ban is a ban */
        p.bias = bias, p.n_bias = 2;
        if (round % 2) {
            for (i = 0; i < DEND_SAMPLE_TEMPERATURE; i++) {
                p.order[i] = (uint8_t)(DEND_SAMPLE_TEMPERATURE - i);
            }
        }
        status = dend_sample_after(x, n, &p, 9, round, &past, scratch, &out);
        ASSERT_STATUS(n == 1 ? DEND_ERR_NO_TOKENS : DEND_OK, status);
        if (status == DEND_OK) {
            drawn_banned += out.token == bias[0].token;
            assert_true(out.token >= 0 && (uint32_t)out.token < n && dendp_finite(out.logprob));
        }
        assert_int_equal(drawn_banned, 0);
        free(scratch);
    }
}

static const struct CMUnitTest tests_sampling_filters[] = {
    cmocka_unit_test(test_filters_single),  cmocka_unit_test(test_filters_orders),
    cmocka_unit_test(test_filters_plain),   cmocka_unit_test(test_filters_law),
    cmocka_unit_test(test_filters_goldens), cmocka_unit_test(test_filters_refused),
    cmocka_unit_test(test_filters_extremes)};
