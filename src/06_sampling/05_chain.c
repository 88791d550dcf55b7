/* ==========================================================================
 * >>06.05 CHAIN: the stages in their order, and mirostat's control
 * ==========================================================================
 * Choosing a token is a function: of the logits, the tokens before, the
 * parameters, the stream, the position, and for mirostat of two numbers that
 * belong to the sequence. It keeps nothing, so it can be asked at any place of
 * any branch in any order: a search that rewinds, or a verifier that looks at the
 * rows of a token tree, gets what plain decoding gets.
 *
 *     bans         banned strings, biases of DEND_BAN and less     always first
 *     bias, penalties, DRY                                         change logits
 *     top_n_sigma, top_k, typical, top_p, min_p, xtc, mirostat     remove tokens
 *     temperature                                                  1/T, then the draw
 *
 * That is the order unless the caller gives one. It is the one that llama.cpp
 * has, too, but for mirostat, which there stands alone behind the temperature. A
 * temperature that is not last divides the logits at its place, so that what
 * follows sees the tempered distribution; the draw is then at 1.
 *
 * MIROSTAT steers the surprise of the text. In the paper mu is a state that each
 * token changes, mu := mu - eta (S - tau), from 2 tau on, where S = -log2 of the
 * token's probability. Summed up,
 *
 *     mu  =  2 tau - eta (S_1 + ... + S_n - n tau)
 *
 * and so mu need not be kept. What a sequence keeps (06.06) is n and the sum, in
 * which neither tau nor eta occurs: parameters can change in the middle, or be
 * tried side by side, and each sees the mu that it would have had from the
 * beginning. S is measured, as in the paper, under the model's own distribution,
 * and not under what the filters have left of it.
 *
 * At temperature 0 the stages that remove tokens do nothing. They could only take
 * away the token that greedy decoding asks for.
 * ======================================================================== */

#ifndef DEND_NO_SAMPLERS

/* The stages that are on, a bit each. */
static uint32_t dendp_chain_on(const dend_sample_params *p) {
    uint32_t on = 0;
    on |= p->n_bias ? 1u << DEND_SAMPLE_BIAS : 0;
    on |= dendp_penalty_window(p) ? 1u << DEND_SAMPLE_PENALTIES : 0;
    on |= dendp_dry_window(p) ? 1u << DEND_SAMPLE_DRY : 0;
    if (p->temperature > 0.0f) {
        on |= 1u << DEND_SAMPLE_TEMPERATURE;
        on |= p->top_n_sigma > 0.0f ? 1u << DEND_SAMPLE_TOP_N_SIGMA : 0;
        on |= p->top_k ? 1u << DEND_SAMPLE_TOP_K : 0;
        on |= p->typical_p > 0.0f && p->typical_p < 1.0f ? 1u << DEND_SAMPLE_TYPICAL : 0;
        on |= p->top_p > 0.0f && p->top_p < 1.0f ? 1u << DEND_SAMPLE_TOP_P : 0;
        on |= p->min_p > 0.0f ? 1u << DEND_SAMPLE_MIN_P : 0;
        on |= p->xtc_probability > 0.0f ? 1u << DEND_SAMPLE_XTC : 0;
        on |= p->mirostat_tau > 0.0f ? 1u << DEND_SAMPLE_MIROSTAT : 0;
    }
    return on;
}

/* Writes the stages in the order of the parameters, 0 behind the last. False for a bad order. */
static bool dendp_chain_order(const dend_sample_params *p, uint8_t *stages) {
    uint32_t i, seen = 0;
    memset(stages, 0, sizeof p->order);
    if (p->order[0] == DEND_SAMPLE_END) {
        for (i = 1; i <= DEND_SAMPLE_TEMPERATURE; i++) {
            stages[i - 1] = (uint8_t)i;
        }
        seen = UINT32_MAX;
    }
    for (i = 0; i < sizeof p->order; i++) {
        uint32_t stage = p->order[i];
        if (stage == DEND_SAMPLE_END) {
            break;
        }
        if (stage > DEND_SAMPLE_TEMPERATURE || (seen >> stage & 1u)) {
            return false;
        }
        stages[i] = p->order[i];
        seen |= 1u << stage;
    }
    for (; i < sizeof p->order; i++) { /* nothing may follow the end */
        if (p->order[i] != DEND_SAMPLE_END) {
            return false;
        }
    }
    return (dendp_chain_on(p) & ~seen) == 0;
}

/* Whether a parameter is a finite number between least and most. */
static bool dendp_param_ok(float x, float least, float most) {
    return dendp_finite(x) && x >= least && x <= most;
}

/* All that may be wrong with parameters for logits [n]: ARGUMENT, TOKEN. */
static dend_status dendp_chain_check(const dend_sample_params *p, uint32_t n) {
    uint8_t stages[sizeof p->order];
    uint32_t i;
    if (dendp_sample_check(p) != DEND_OK || !dendp_param_ok(p->typical_p, 0.0f, FLT_MAX) ||
        !dendp_param_ok(p->top_n_sigma, 0.0f, FLT_MAX) || !dendp_param_ok(p->xtc_probability, 0.0f, 1.0f) ||
        !dendp_param_ok(p->xtc_threshold, 0.0f, 1.0f) || !dendp_param_ok(p->mirostat_tau, 0.0f, FLT_MAX) ||
        !dendp_param_ok(p->mirostat_eta, 0.0f, FLT_MAX) ||
        !dendp_param_ok(p->repeat_penalty, 0.0f, FLT_MAX) ||
        !dendp_param_ok(p->frequency_penalty, -FLT_MAX, FLT_MAX) ||
        !dendp_param_ok(p->presence_penalty, -FLT_MAX, FLT_MAX) ||
        !dendp_param_ok(p->dry_multiplier, 0.0f, FLT_MAX) || !dendp_param_ok(p->dry_base, 0.0f, FLT_MAX) ||
        (p->dry_base > 0.0f && p->dry_base < 1.0f) || (p->n_bias && !p->bias) ||
        !dendp_chain_order(p, stages)) {
        return DEND_ERR_ARGUMENT;
    }
    for (i = 0; i < p->n_bias; i++) {
        if (!dendp_finite(p->bias[i].bias) && !dendp_bias_bans(p->bias[i].bias)) {
            return DEND_ERR_ARGUMENT;
        }
        if (p->bias[i].token < 0 || (uint32_t)p->bias[i].token >= n) {
            return DEND_ERR_TOKEN;
        }
    }
    return DEND_OK;
}

static void dendp_chain_stage(dendp_choice *c, uint32_t stage) {
    switch (stage) {
    case DEND_SAMPLE_BIAS:
        dendp_stage_bias(c);
        break;
    case DEND_SAMPLE_PENALTIES:
        dendp_stage_penalties(c);
        break;
    case DEND_SAMPLE_DRY:
        dendp_stage_dry(c);
        break;
    case DEND_SAMPLE_TOP_N_SIGMA:
        dendp_stage_top_n_sigma(c);
        break;
    case DEND_SAMPLE_TOP_K:
        dendp_stage_top_k(c);
        break;
    case DEND_SAMPLE_TYPICAL:
        dendp_stage_typical(c);
        break;
    case DEND_SAMPLE_TOP_P:
        dendp_stage_top_p(c);
        break;
    case DEND_SAMPLE_MIN_P:
        dendp_stage_min_p(c);
        break;
    case DEND_SAMPLE_XTC:
        dendp_stage_xtc(c);
        break;
    case DEND_SAMPLE_MIROSTAT:
        dendp_stage_mirostat(c);
        break;
    case DEND_SAMPLE_TEMPERATURE:
        dendp_stage_temperature(c);
        break;
    default:
        break;
    }
}

/* Chooses a token of logits [n]; see dend_sample_after. ids [n], x [n] and z [past->n_tokens] are scratch. */
static dend_status dendp_chain_run(const dendp_vector_ops *ops, const float *logits, uint32_t n,
                                   const dend_sample_params *p, uint64_t stream, uint64_t position,
                                   const dend_sample_past *past, uint32_t *ids, float *x, uint32_t *z,
                                   dend_sampled *out) {
    uint8_t stages[sizeof p->order];
    dendp_choice c;
    uint32_t i, best, on = dendp_chain_on(p);
    double inverse = p->temperature > 0.0f ? 1.0 / (double)p->temperature : 0.0, total;
    float max, raw_max;
    dend_status status = dendp_chain_check(p, n);
    if (status != DEND_OK || !dendp_chain_order(p, stages)) {
        return status;
    }
    best = ops->max_index(logits, n);
    raw_max = dendp_logit(logits, best);
    total = dendp_sample_total(ops, logits, n, raw_max);
    c.ops = ops;
    c.p = p;
    c.stream = dendp_hash2(stream, p->salt);
    c.position = position;
    c.x = x;
    c.n = n;
    c.ids = ids;
    c.z = z;
    c.past = past->tokens;
    c.n_past = past->n_tokens;
    c.mu = (double)p->mirostat_tau *
               (2.0 + (p->mirostat_eta > 0.0f ? (double)p->mirostat_eta : 0.1) * (double)past->n_surprises) -
           (p->mirostat_eta > 0.0f ? (double)p->mirostat_eta : 0.1) * past->surprise;
    dendp_choice_copy(logits, n, x);
    dendp_stage_bans(&c);
    if (!(x[ops->max_index(x, n)] >= DENDP_LEAST)) {
        return DEND_ERR_NO_TOKENS;
    }
    for (i = 0; i < sizeof stages && stages[i]; i++) {
        bool last = i + 1 == sizeof stages || stages[i + 1] == 0;
        /* Where the model holds all that is left impossible, there is nothing to shape or to choose from. */
        if ((on >> stages[i] & 1u) && dendp_alive(x[ops->max_index(x, n)])) {
            if (stages[i] == DEND_SAMPLE_TEMPERATURE && last) {
                break; /* the draw does it, in double precision */
            }
            dendp_chain_stage(&c, stages[i]);
            inverse = stages[i] == DEND_SAMPLE_TEMPERATURE ? 1.0 : inverse;
        }
    }
    best = ops->max_index(x, n);
    max = x[best];
    if (inverse > 0.0) {
        double floor_logit = (double)DENDP_LEAST * (max > DENDP_LEAST ? 1.0 - 1e-9 : 1.0);
        best = dendp_sample_draw(ops, x, n, NULL, n, best, max, inverse, floor_logit, c.stream, position);
    }
    dendp_sample_report(logits, best, raw_max, total, out);
    return DEND_OK;
}

/* Tokens of the past that the parameters look at; banned strings apart, which look at bytes. */
static uint32_t dendp_chain_window(const dend_sample_params *p) {
    return dendp_max_u32(dendp_penalty_window(p), dendp_dry_window(p));
}

/* Bytes of the past that they look at. */
static size_t dendp_chain_bytes(const dend_sample_params *p) {
    return p->rules && p->rules->banned.n_words ? p->rules->banned.longest - 1 : 0;
}

/* Chooses a token, the short way where that does. x and z may be NULL when the parameters are plain. */
static dend_status dendp_choose(const dendp_vector_ops *ops, const float *logits, uint32_t n,
                                const dend_sample_params *p, uint64_t stream, uint64_t position,
                                const dend_sample_past *past, uint32_t *ids, float *x, uint32_t *z,
                                dend_sampled *out) {
    const uint32_t plain = 1u << DEND_SAMPLE_TOP_K | 1u << DEND_SAMPLE_TOP_P | 1u << DEND_SAMPLE_MIN_P |
                           1u << DEND_SAMPLE_TEMPERATURE;
    if (!p || dendp_sample_is_plain(p) ||
        (p->order[0] == DEND_SAMPLE_END && (dendp_chain_on(p) & ~plain) == 0 &&
         !(p->rules && p->rules->banned.n_words) && dendp_chain_check(p, n) == DEND_OK)) {
        return dendp_sample(ops, logits, n, p, stream, position, ids, out);
    }
    return dendp_chain_run(ops, logits, n, p, stream, position, past, ids, x, z, out);
}

/* Whether a sum of surprises is zero or more, and below 2^100: its bits tell, also under -ffast-math. */
static bool dendp_surprise_ok(double sum) {
    uint64_t bits = dendp_load64(&sum);
    return bits << 1 == 0 || bits < 0x4630000000000000u;
}

DEND_IMPL size_t dend_sample_scratch(uint32_t n, uint32_t n_tokens) {
    return (2 * (size_t)n + n_tokens) * sizeof(uint32_t);
}

DEND_IMPL dend_status dend_sample_after(const float *logits, uint32_t n, const dend_sample_params *params,
                                        uint64_t stream, uint64_t position, const dend_sample_past *past,
                                        void *scratch, dend_sampled *out) {
    float *x = (float *)scratch; /* [n], then ids [n], then DRY's numbers */
    uint32_t *ids;
    const dend_sample_past none = {NULL, 0, 0, 0.0};
    past = past ? past : &none;
    if (!logits || n == 0 || !scratch || !out || (!past->tokens && past->n_tokens) ||
        !dendp_surprise_ok(past->surprise)) {
        return DEND_ERR_ARGUMENT;
    }
    ids = (uint32_t *)(void *)(x + n);
    return dendp_choose(dendp_vector_ops_get(DEND_ISA_DEFAULT), logits, n, params, stream, position, past,
                        ids, x, ids + n, out);
}

#else

static dend_status dendp_chain_check(const dend_sample_params *p, uint32_t n) {
    dend_status status = dendp_sample_check(p);
    (void)n;
    return status != DEND_OK || dendp_sample_is_plain(p) ? status : DEND_ERR_UNSUPPORTED;
}

static dend_status dendp_choose(const dendp_vector_ops *ops, const float *logits, uint32_t n,
                                const dend_sample_params *p, uint64_t stream, uint64_t position,
                                uint32_t *ids, dend_sampled *out) {
    dend_status status = p ? dendp_chain_check(p, n) : DEND_OK;
    return status == DEND_OK ? dendp_sample(ops, logits, n, p, stream, position, ids, out) : status;
}

#endif /* DEND_NO_SAMPLERS */
