/* ==========================================================================
 * >>06.04 FILTERS: which tokens may be drawn
 * ==========================================================================
 * Each filter looks at the distribution p over what the ones before have left,
 * takes some tokens out, and never the last one. With Z = sum of e^x_i:
 *
 *     top_n_sigma  keeps  x_i >= max - n sigma,  sigma over all that is left. The
 *                  logits, not the probabilities, have a scale of their own, so a
 *                  temperature does not change what is kept (Tang et al., "Top-n
 *                  sigma: not all logits are you need", arXiv 2411.07641)
 *     top_k        keeps the k largest
 *     typical_p    keeps the tokens whose surprise is nearest to the mean surprise,
 *                  until their mass reaches p (Meister et al., "Locally typical
 *                  sampling", TACL 2023). Since -log p_i = log Z - x_i, that is the
 *                  logits nearest to their own mean under p, sum of p_i x_i
 *     top_p        keeps the largest until their mass reaches p
 *     min_p        keeps  p_i >= min_p max p
 *     xtc          sometimes, of the tokens with p_i >= threshold removes all but
 *                  the least (p-e-w, text-generation-webui pull request 6335)
 *     mirostat     keeps  -log2 p_i <= mu  and the best (Basu et al., "Mirostat",
 *                  ICLR 2021; the second version of the authors' code); mu is the
 *                  matter of 06.05
 *
 * Nearly all of them keep what is not below some logit, so one pass over the
 * logits does, and none of them sorts. top_k has the heap of 06.01; top_p and
 * typical_p its selection of the tokens nearest to a logit, the best or the mean.
 *
 * XTC's coin is a hash of (stream, position) and of a number that is no token.
 * ======================================================================== */

#ifndef DEND_NO_SAMPLERS

#define DENDP_XTC_COIN 0x100000000u /* above all token ids */

/* The best of what is left, and the sum of e^(x - max). */
typedef struct dendp_peak {
    uint32_t best;
    float max;
    double total;
} dendp_peak;

static dendp_peak dendp_choice_peak(const dendp_choice *c) {
    dendp_peak peak;
    peak.best = c->ops->max_index(c->x, c->n);
    peak.max = c->x[peak.best];
    peak.total = c->ops->sum_exp(c->x, c->n, peak.max);
    return peak;
}

/* Removes what is below a logit. */
static void dendp_keep_from(dendp_choice *c, double least) {
    uint32_t i;
    for (i = 0; i < c->n; i++) {
        c->x[i] = (double)c->x[i] < least ? DENDP_GONE : c->x[i];
    }
}

/* Removes what comes after a token: lower logits, and equal ones of higher id. */
static void dendp_keep_upto(dendp_choice *c, uint32_t last) {
    float least = c->x[last];
    uint32_t i;
    for (i = 0; i < c->n; i++) {
        c->x[i] = c->x[i] < least || (c->x[i] <= least && i > last) ? DENDP_GONE : c->x[i];
    }
}

static void dendp_stage_top_n_sigma(dendp_choice *c) {
    double max = (double)c->x[c->ops->max_index(c->x, c->n)], sum = 0.0, squares = 0.0, n = 0.0, mean,
           variance;
    uint32_t i;
    for (i = 0; i < c->n; i++) {
        double d = dendp_alive(c->x[i]) ? (double)c->x[i] - max : 0.0;
        sum += d;
        squares += d * d;
        n += dendp_alive(c->x[i]) ? 1.0 : 0.0;
    }
    mean = sum / n;
    variance = squares / n - mean * mean;
    dendp_keep_from(c, max - (double)c->p->top_n_sigma * sqrt(variance > 0.0 ? variance : 0.0));
}

static void dendp_stage_top_k(dendp_choice *c) {
    if (c->p->top_k < c->n) {
        dendp_sample_top_k(c->ops, c->x, c->n, c->p->top_k, c->ids);
        dendp_keep_upto(c, c->ids[0]);
    }
}

static void dendp_stage_top_p(dendp_choice *c) {
    dendp_peak peak = dendp_choice_peak(c);
    uint32_t i, last,
        kept = dendp_sample_top_p(c->ops, c->x, c->n, (double)c->p->top_p * peak.total, peak.max, c->ids);
    for (i = 1, last = c->ids[0]; i < kept; i++) {
        last = dendp_rank(c->x, c->ids[i]) < dendp_rank(c->x, last) ? c->ids[i] : last;
    }
    dendp_keep_upto(c, last);
}

static void dendp_stage_min_p(dendp_choice *c) {
    dendp_keep_from(c, (double)c->x[c->ops->max_index(c->x, c->n)] + log((double)c->p->min_p));
}

static void dendp_stage_typical(dendp_choice *c) {
    dendp_peak peak = dendp_choice_peak(c);
    double mean = 0.0, mass = 0.0, most = 0.0;
    uint32_t i, n = 0, kept, last = 0;
    for (i = 0; i < c->n; i++) {
        double d = (double)c->x[i] - (double)peak.max;
        mean += d > -80.0 ? exp(d) * d : 0.0;
        c->ids[n] = i;
        n += dendp_alive(c->x[i]) ? 1u : 0u;
    }
    mean = (double)peak.max + mean / peak.total;
    kept = dendp_nearest(c->x, c->ids, n, mean, peak.max, (double)c->p->typical_p * peak.total, &mass);
    for (i = 0; i < kept; i++) { /* the last one to be kept says which are */
        double way = dendp_way(c->x, c->ids[i], mean);
        if (way > most || (way >= most && c->ids[i] > last)) {
            most = way;
            last = c->ids[i];
        }
    }
    for (i = 0; i < c->n; i++) {
        double way = dendp_way(c->x, i, mean);
        c->x[i] = way > most || (way >= most && i > last) ? DENDP_GONE : c->x[i];
    }
}

static void dendp_stage_xtc(dendp_choice *c) {
    double threshold = c->p->xtc_threshold > 0.0f ? (double)c->p->xtc_threshold : (double)0.1f, least;
    dendp_peak peak;
    uint32_t i, last, n = 0;
    if (dendp_uniform(c->stream, c->position, DENDP_XTC_COIN) >= (double)c->p->xtc_probability) {
        return;
    }
    peak = dendp_choice_peak(c);
    least = (double)peak.max + log(threshold * peak.total);
    for (i = 0, last = peak.best; i < c->n; i++) {
        if ((double)c->x[i] >= least) {
            last = dendp_rank(c->x, i) < dendp_rank(c->x, last) ? i : last;
            n++;
        }
    }
    if (n > 1) {
        int64_t rank = dendp_rank(c->x, last);
        for (i = 0; i < c->n; i++) {
            c->x[i] = dendp_rank(c->x, i) > rank ? DENDP_GONE : c->x[i];
        }
    }
}

static void dendp_stage_mirostat(dendp_choice *c) {
    dendp_peak peak = dendp_choice_peak(c);
    double least = (double)peak.max + log(peak.total) - c->mu * 0.6931471805599453;
    dendp_keep_from(c, least < (double)peak.max ? least : (double)peak.max);
}

/* Divides by the temperature, where later stages are to see that. A logit that would leave the range has the
 * largest moved to 0 first, which changes no probability. */
static void dendp_stage_temperature(dendp_choice *c) {
    double inverse = 1.0 / (double)c->p->temperature, max = (double)c->x[c->ops->max_index(c->x, c->n)];
    double shift = fabs(max) * inverse > 1e37 ? max : 0.0;
    uint32_t i;
    for (i = 0; i < c->n; i++) {
        if (dendp_alive(c->x[i])) {
            c->x[i] = (float)dendp_clamp_logit(((double)c->x[i] - shift) * inverse);
        }
    }
}

#endif /* DEND_NO_SAMPLERS */
