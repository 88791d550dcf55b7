/* ==========================================================================
 * >>06.03 PENALTIES: biases, repetition, frequency, presence, DRY
 * ==========================================================================
 * From here to 06.05 logits are changed, so all work is done on a copy in which
 * each logit is a finite number: what the model says, between -3e38 and 3e38;
 * -3e38 for what the model holds impossible (minus infinity, NaN), which is not
 * drawn unless there is nothing else and which no penalty touches; and -FLT_MAX
 * for what has been removed, which is never drawn. Infinities do not occur, so
 * that results are the same under -ffast-math.
 *
 * PENALTIES look at how often c_i a token stands among the last n:
 *
 *     x_i  :=  x_i / r  if x_i > 0, else  x_i * r      where c_i > 0
 *     x_i  :=  x_i - frequency * c_i - presence        where c_i > 0
 *
 * The first is from CTRL (Keskar et al., arXiv 1909.05858, section 4.1), which
 * only divides, and so would reward tokens of negative logit; multiplying those
 * is how everybody does it since. The second is that of OpenAI's API.
 *
 * DRY ("don't repeat yourself"; p-e-w, text-generation-webui pull request 5677)
 * punishes what would lengthen a repetition: if the last L tokens also stood
 * somewhere before, then the token that followed them there would make it L + 1.
 * For a token that may lengthen several, the longest counts:
 *
 *     x_i  :=  x_i - multiplier * base^(L_i - allowed)      where L_i >= allowed
 *
 * L for every place at once is the Z-function of the reversed tokens (Main and
 * Lorentz, 1984; Gusfield, "Algorithms on strings", 1997, section 1.4): z[k] is
 * how far the tokens before the k-th from the end agree with the last ones.
 *
 *     ... a b c x a b c      a b c agree: z[4] = 3, so x may be the next of four
 *               ^
 * A repetition does not reach across a breaker, and a token in which a breaker
 * lies is not punished.
 *
 * Costs are O(window), and no more than the tokens of the window are touched.
 * ======================================================================== */

#ifndef DEND_NO_SAMPLERS

#define DENDP_LEAST (-3.0e38f) /* the model's minus infinity */
#define DENDP_GONE (-FLT_MAX)  /* removed */

/* One token that is being chosen, from 06.03 to 06.05. */
typedef struct dendp_choice {
    const dendp_vector_ops *ops;
    const dend_sample_params *p;
    uint64_t stream, position; /* stream with the salt */
    float *x;                  /* [n] logits, changed as the stages go */
    uint32_t n;
    uint32_t *ids;       /* [n] scratch; within a stage */
    uint32_t *z;         /* [n_past] scratch of DRY */
    const int32_t *past; /* [n_past] tokens, the newest last */
    uint32_t n_past;
    double mu; /* mirostat: bits of surprise that are allowed */
} dendp_choice;

static bool dendp_alive(float x) {
    return x > DENDP_LEAST;
}

static double dendp_clamp_logit(double x) {
    return x > -(double)DENDP_LEAST  ? -(double)DENDP_LEAST
           : x < (double)DENDP_LEAST ? (double)DENDP_LEAST
                                     : x;
}

/* The copy of logits [n] that the stages work on. */
static void dendp_choice_copy(const float *logits, uint32_t n, float *x) {
    uint32_t i;
    for (i = 0; i < n; i++) {
        float v = dendp_logit(logits, i);
        v = v < DENDP_LEAST ? DENDP_LEAST : v;
        x[i] = v > -DENDP_LEAST ? -DENDP_LEAST : v;
    }
}

/* Token number k from the end of the past, if it is one that has a logit; else n. */
static uint32_t dendp_past_token(const dendp_choice *c, uint32_t k) {
    int32_t token = c->past[c->n_past - 1 - k];
    return token >= 0 && (uint32_t)token < c->n ? (uint32_t)token : c->n;
}

static bool dendp_bias_bans(float bias) {
    return dendp_finite(bias) ? bias <= DEND_BAN : dendp_f32_bits(bias) == 0xff800000u;
}

static void dendp_choice_ban(void *ctx, uint32_t token) {
    dendp_choice *c = (dendp_choice *)ctx;
    if (token < c->n) {
        c->x[token] = DENDP_GONE;
    }
}

/* What must not be drawn, whatever the order of the stages. */
static void dendp_stage_bans(dendp_choice *c) {
    uint32_t i;
    for (i = 0; i < c->p->n_bias; i++) {
        if (dendp_bias_bans(c->p->bias[i].bias)) {
            dendp_choice_ban(c, (uint32_t)c->p->bias[i].token);
        }
    }
    if (c->p->rules) {
        dendp_rules_ban(c->p->rules, c->past, c->n_past, dendp_choice_ban, c);
    }
}

static void dendp_stage_bias(dendp_choice *c) {
    uint32_t i;
    for (i = 0; i < c->p->n_bias; i++) {
        const dend_logit_bias *b = &c->p->bias[i];
        float *x = &c->x[b->token];
        if (dendp_alive(*x)) {
            *x = (float)dendp_clamp_logit((double)*x + (double)b->bias);
        }
    }
}

/* The windows of the two kinds of penalty. */
static uint32_t dendp_penalty_window(const dend_sample_params *p) {
    bool on = (p->repeat_penalty > 0.0f && (p->repeat_penalty < 1.0f || p->repeat_penalty > 1.0f)) ||
              p->frequency_penalty < 0.0f || p->frequency_penalty > 0.0f || p->presence_penalty < 0.0f ||
              p->presence_penalty > 0.0f;
    return !on ? 0 : p->penalty_last_n ? p->penalty_last_n : 64;
}

static uint32_t dendp_dry_window(const dend_sample_params *p) {
    return !(p->dry_multiplier > 0.0f) ? 0 : p->dry_last_n ? p->dry_last_n : UINT32_MAX;
}

static void dendp_stage_penalties(dendp_choice *c) {
    uint32_t k, n = dendp_min_u32(dendp_penalty_window(c->p), c->n_past), token, *counts = c->ids;
    double repeat = c->p->repeat_penalty > 0.0f ? (double)c->p->repeat_penalty : 1.0;
    for (k = 0; k < n; k++) {
        if ((token = dendp_past_token(c, k)) < c->n) {
            counts[token] = 0;
        }
    }
    for (k = 0; k < n; k++) {
        if ((token = dendp_past_token(c, k)) < c->n) {
            counts[token]++;
        }
    }
    for (k = 0; k < n; k++) {
        token = dendp_past_token(c, k);
        if (token < c->n && counts[token] > 0 && dendp_alive(c->x[token])) {
            double x = (double)c->x[token];
            x = x > 0.0 ? x / repeat : x * repeat;
            x -= (double)c->p->frequency_penalty * (double)counts[token] + (double)c->p->presence_penalty;
            c->x[token] = (float)dendp_clamp_logit(x);
            counts[token] = 0; /* done */
        }
    }
}

/* z[k], 0 < k < n: how many tokens agree, going back from the k-th from the end and from the last. Each token is
 * compared once as long as the last agreement, [left, right) behind the end, reaches over k. */
static void dendp_dry_agreements(const dendp_choice *c, uint32_t n, uint32_t *z) {
    const int32_t *end = c->past + c->n_past - 1;
    uint32_t k, left = 0, right = 0;
    for (k = 1; k < n; k++) {
        uint32_t len = k < right ? dendp_min_u32(z[k - left], right - k) : 0;
        if (k + len >= right) {
            while (k + len < n && end[-(int64_t)len] == end[-(int64_t)(k + len)] && end[-(int64_t)len] >= 0) {
                len++;
            }
            left = k;
            right = k + len;
        }
        z[k] = len;
    }
}

static void dendp_stage_dry(dendp_choice *c) {
    const dend_sample_params *p = c->p;
    uint32_t n = dendp_min_u32(dendp_dry_window(p), c->n_past), most = n, k, token, *longest = c->ids;
    uint32_t allowed = p->dry_allowed_length ? p->dry_allowed_length : 2;
    double base = p->dry_base > 0.0f ? (double)p->dry_base : 1.75;
    if (n <= allowed) {
        return;
    }
    if (p->rules) {
        most = dendp_rules_unbroken(p->rules, c->past + (c->n_past - n), n);
    }
    if (most < allowed) {
        return;
    }
    dendp_dry_agreements(c, n, c->z);
    for (k = 1; k < n; k++) {
        if ((token = dendp_past_token(c, k - 1)) < c->n) {
            longest[token] = 0;
        }
    }
    for (k = 1; k < n; k++) { /* the token before the k-th from the end, in time behind it */
        uint32_t len = dendp_min_u32(c->z[k], most);
        token = dendp_past_token(c, k - 1);
        if (token < c->n && len >= allowed) {
            longest[token] = dendp_max_u32(longest[token], len);
        }
    }
    for (k = 1; k < n; k++) {
        token = dendp_past_token(c, k - 1);
        if (token < c->n && longest[token] > 0 && dendp_alive(c->x[token]) &&
            !(p->rules && dendp_rules_breaks(p->rules, token))) {
            /* Beyond e^300 the logit is at its least anyway. */
            double power = (double)(longest[token] - allowed) * log(base);
            double loss = (double)p->dry_multiplier * exp(power < 300.0 ? power : 300.0);
            c->x[token] = (float)dendp_clamp_logit((double)c->x[token] - loss);
            longest[token] = 0; /* done */
        }
    }
}

#endif /* DEND_NO_SAMPLERS */
