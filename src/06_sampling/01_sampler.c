/* ==========================================================================
 * >>06.01 SAMPLER: keyed Gumbel sampling
 * ==========================================================================
 * Drawing a token from softmax(logits / T) is the same as
 *
 *     argmax over i of   logit_i / T + g_i,      g_i = -log(-log u_i)
 *
 * with independent uniform u_i (the Gumbel-max trick; Maddison et al., "A*
 * sampling", NeurIPS 2014). Here u_i is a hash of (stream, position, i), so
 * the draw is a function of the logits and of that key: repeatable, in any
 * order, on any thread, with or without speculation (drafter-invariant
 * decoding: arXiv 2408.07978). T = 0 is the same rule with g = 0.
 *
 * FILTERS act on the distribution at T = 1, one after the other, each on what
 * the ones before have left:
 *
 *     top_k   the k largest
 *     top_p   the smallest prefix of the sorted rest whose mass reaches p
 *     min_p   no token below min_p times the largest probability
 *
 * Equal logits count as ordered by token id, lower first. A logit that is NaN
 * counts as minus infinity.
 *
 * THE WORK. There are some 150,000 tokens, and nearly all lose. The rules above
 * are never bent for speed: each shortcut only passes over tokens of which it is
 * proved that they change nothing.
 *
 * Noise. With the best sum so far as the mark, token i wins only if
 *
 *     g_i > mark - logit_i / T,   that is   -log u_i < w_i = e^(logit_i / T - mark)
 *
 * Since 1 - u <= -log u, it cannot win unless 1 - u_i < w_i, or
 *
 *     log2(1 - u_i) < (logit_i / T - mark) * log2 e
 *
 * On the left no logarithm is needed: the bits of a float 2^e (1 + m), read as
 * an integer, are 2^23 (e + 127 + m), and e + m <= e + log2(1 + m) (Mitchell,
 * "Computer multiplication and division using binary logarithms", 1962). So a
 * hash, a difference, a product and a comparison decide for each token (next_lift
 * in 03.09). The two real logarithms are for the few that pass: about as many as
 * the weights w_i, each at most 1, sum to, and fewer with every new mark. Where not
 * even the largest noise (37.5) would do, or min_p forbids, there is no hash either.
 *
 * top_k keeps a heap of the k best, worst first. A token that is not above the
 * worst is passed over, 32 at a time (next_above): of n tokens in random order
 * about k ln(n/k) enter.
 *
 * top_p keeps the best tokens whose mass reaches p, which asks for no order among
 * them. Those within 4 of the best are picked out; if all of them are not enough,
 * those within 5 follow, then 6.25, and so on; beyond 16 all that are left. Where a
 * model has something to say the first band holds a few tokens. Where it has not,
 * thousands: then a pivot divides them into nearer and farther ones, the mass of
 * the nearer ones tells in which part the last token is, and that part is divided
 * again ("Find": Hoare, CACM 1961, with masses for counts). On average that reads
 * each token about three times. Pivots that keep missing, as for logits made for
 * that, end in sorting, so that the worst case is O(n log n).
 * ======================================================================== */

#define DENDP_NOISE_MOST 37.5 /* above any dendp_gumbel */
#define DENDP_BAND 4.0        /* top_p first takes the logits within this of the best, */
#define DENDP_BAND_GROWS 1.25 /* then those within so many times as much, */
#define DENDP_BAND_MOST 16.0  /* and all, once it is beyond this */
#define DENDP_FEW 16u         /* tokens that are sorted, not divided */
#define DENDP_PIVOTS 64u      /* most divisions */

/* The logit that the rules see. */
static float dendp_logit(const float *logits, uint32_t i) {
    float x = logits[i];
    return dendp_finite(x) ? x : (dendp_f32_bits(x) == 0x7f800000u ? FLT_MAX : -FLT_MAX);
}

/* The place of a token among all: larger for a larger logit, then for a lower id. */
static int64_t dendp_rank(const float *logits, uint32_t id) {
    return (int64_t)dendp_order(logits[id]) * 4294967296 - (int64_t)id;
}

/* Sinks heap[i] in a heap of n ids whose first is the worst of all. Which child is the worse no processor can
 * guess, so that comparison is a sum, not a branch. */
static void dendp_heap_sink(const float *logits, uint32_t *heap, uint32_t n, uint32_t i) {
    const uint32_t id = heap[i];
    const int64_t rank = dendp_rank(logits, id);
    for (;;) {
        uint32_t child = 2 * i + 1;
        int64_t left, right;
        if (child >= n) {
            break;
        }
        left = dendp_rank(logits, heap[child]);
        if (child + 1 < n) {
            right = dendp_rank(logits, heap[child + 1]);
            child += (uint32_t)(right < left);
            left = right < left ? right : left;
        }
        if (rank < left) {
            break;
        }
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = id;
}

static void dendp_heap_make(const float *logits, uint32_t *heap, uint32_t n) {
    uint32_t i;
    for (i = n / 2; i-- > 0;) {
        dendp_heap_sink(logits, heap, n, i);
    }
}

/* e^(logit - max): the mass of a token, that of the best being 1. */
static double dendp_mass(const float *logits, uint32_t i, float max) {
    return exp((double)dendp_logit(logits, i) - (double)max);
}

/* Writes the k best of logits [n] to ids [k], as a heap with the worst first. 0 < k <= n. */
static void dendp_sample_top_k(const dendp_vector_ops *ops, const float *logits, uint32_t n, uint32_t k,
                               uint32_t *ids) {
    uint32_t i;
    for (i = 0; i < k; i++) {
        ids[i] = i;
    }
    dendp_heap_make(logits, ids, k);
    /* Of equal logits the later has the higher id and stands behind. */
    while ((i = ops->next_above(logits, i, n, dendp_order(logits[ids[0]]))) < n) {
        ids[0] = i++;
        dendp_heap_sink(logits, ids, k, 0);
    }
}

/* Sorts ids [k], a heap with the worst first, best first; returns how many it takes to reach the share p of
 * the mass of all k. */
static uint32_t dendp_sample_top_p_of_k(const float *logits, uint32_t k, double p, float max, uint32_t *ids) {
    double mass = 0.0, want;
    uint32_t i;
    for (i = k; i-- > 1;) {
        uint32_t worst = ids[0];
        ids[0] = ids[i];
        ids[i] = worst;
        dendp_heap_sink(logits, ids, i, 0);
    }
    for (i = 0; i < k; i++) {
        mass += dendp_mass(logits, ids[i], max);
    }
    want = p * mass;
    mass = 0.0;
    for (i = 0; i < k && (mass < want || i == 0); i++) {
        mass += dendp_mass(logits, ids[i], max);
    }
    return i;
}

/* How far a logit is from a place among the logits. */
static double dendp_way(const float *logits, uint32_t id, double center) {
    return fabs((double)dendp_logit(logits, id) - center);
}

/* Logits, and the place from which they are ranked by their ways. */
typedef struct dendp_around {
    const float *logits;
    double center;
} dendp_around;

static int dendp_around_compare(const void *ctx, uint32_t a, uint32_t b) {
    const dendp_around *around = (const dendp_around *)ctx;
    double x = dendp_way(around->logits, a, around->center), y = dendp_way(around->logits, b, around->center);
    return x < y ? -1 : x > y ? 1 : a < b ? -1 : a > b;
}

/* The middle one of three of ids [n]. */
static uint32_t dendp_pivot(const float *logits, const uint32_t *ids, uint32_t n, double center,
                            uint32_t turn) {
    uint32_t id[3], i;
    double way[3];
    for (i = 0; i < 3; i++) {
        id[i] = ids[dendp_hash2(turn, i) % n];
        way[i] = dendp_way(logits, id[i], center);
    }
    i = (way[0] < way[1]) == (way[1] < way[2]) ? 1 : (way[1] < way[0]) == (way[0] < way[2]) ? 0 : 2;
    return id[i];
}

/* Of ids [n] those nearest to the center, of equal ones the lowest, whose masses add up from *mass to `want` come
 * to the front, one at least; returns their number, n where all are not enough. */
static uint32_t dendp_nearest(const float *logits, uint32_t *ids, uint32_t n, double center, float max,
                              double want, double *mass) {
    uint32_t done = 0, end = n, turn, i; /* ids [done] are taken, those from `end` on are not */
    dendp_around around;
    around.logits = logits;
    around.center = center;
    for (turn = 0; end - done > DENDP_FEW && turn < DENDP_PIVOTS; turn++) {
        uint32_t pivot = dendp_pivot(logits, ids + done, end - done, center, turn), in = done;
        double way = dendp_way(logits, pivot, center), nearer = 0.0;
        for (i = done; i < end; i++) { /* without a branch, for none could guess it */
            uint32_t id = ids[i];
            double w = dendp_way(logits, id, center);
            ids[i] = ids[in];
            ids[in] = id;
            in += (uint32_t)(w < way) | ((uint32_t)(w <= way) & (uint32_t)(id <= pivot));
        }
        for (i = done; i < in; i++) {
            nearer += dendp_mass(logits, ids[i], max);
        }
        if (*mass + nearer >= want) {
            end = in;
        } else {
            *mass += nearer;
            done = in;
        }
    }
    dendp_heap_sort(ids + done, end - done, dendp_around_compare, &around);
    for (; done < end && (*mass < want || done == 0); done++) {
        *mass += dendp_mass(logits, ids[done], max);
    }
    return done;
}

/* Writes the best tokens whose mass reaches `want` to ids [n], in no order, and returns their number. */
static uint32_t dendp_sample_top_p(const dendp_vector_ops *ops, const float *logits, uint32_t n, double want,
                                   float max, uint32_t *ids) {
    int32_t above = INT32_MAX, upto; /* the band: orders above `above`, up to `upto` */
    uint32_t done = 0, i;
    double mass = 0.0, width = DENDP_BAND;
    while (done < n && (mass < want || done == 0)) {
        uint32_t *band = ids + done, held = 0;
        double edge = (double)max - width;
        upto = above;
        if (width < DENDP_BAND_MOST && edge > -(double)FLT_MAX) {
            above = dendp_order((float)edge);
            for (i = 0; (i = ops->next_above(logits, i, n, above)) < n; i++) {
                if (dendp_order(logits[i]) <= upto) {
                    band[held++] = i;
                }
            }
        } else { /* all that is left */
            for (i = 0; i < n; i++) {
                if (dendp_order(logits[i]) <= upto) {
                    band[held++] = i;
                }
            }
        }
        done += dendp_nearest(logits, band, held, (double)max, max, want, &mass);
        width *= DENDP_BAND_GROWS;
    }
    return done;
}

/* Sum of e^(logit - max) over logits [n]. Where the best is infinite, only those that equal it count. */
static double dendp_sample_total(const dendp_vector_ops *ops, const float *logits, uint32_t n, float max) {
    uint32_t i, equal = 0;
    if (max > -FLT_MAX && max < FLT_MAX) {
        return ops->sum_exp(logits, n, max);
    }
    for (i = 0; i < n; i++) {
        equal += dendp_logit(logits, i) >= max ? 1u : 0u;
    }
    return (double)equal;
}

static dend_status dendp_sample_check(const dend_sample_params *p) {
    if (!dendp_finite(p->temperature) || p->temperature < 0.0f || !dendp_finite(p->top_p) ||
        p->top_p < 0.0f || !dendp_finite(p->min_p) || p->min_p < 0.0f || p->min_p > 1.0f) {
        return DEND_ERR_ARGUMENT;
    }
    return DEND_OK;
}

/* True when nothing behind salt is set: all there is to do is in this room. */
static bool dendp_sample_is_plain(const dend_sample_params *p) {
    const float f[] = {p->typical_p,        p->top_n_sigma,    p->xtc_probability, p->xtc_threshold,
                       p->mirostat_tau,     p->mirostat_eta,   p->repeat_penalty,  p->frequency_penalty,
                       p->presence_penalty, p->dry_multiplier, p->dry_base};
    uint32_t bits = p->n_bias | p->order[0], i;
    for (i = 0; i < sizeof f / sizeof f[0]; i++) {
        bits |= dendp_f32_bits(f[i]) & 0x7fffffffu;
    }
    for (i = 1; i < sizeof p->order; i++) {
        bits |= p->order[i];
    }
    return bits == 0 && !p->rules;
}

/* Where single precision can say which tokens noise may lift: no logit, divided by the temperature, is so
 * large that its rounding would show. */
static bool dendp_lift_can(float max, double inverse) {
    double size = fabs((double)max) * inverse;
    return size < 65536.0 && inverse > 1e-20 && inverse < 1e20;
}

/* Sets what next_lift looks for: a sum that may reach the mark, of a logit not below floor_logit. Wherever
 * numbers are rounded the margin is larger: a 64th of an octave of noise, 0.1 of a sum, 1e-6 of a logit. */
static void dendp_lift_set(dendp_lift *l, float max, double inverse, double mark, double floor_logit) {
    const double octave = 8388608.0, log2e = 1.4426950408889634;
    double least = (mark - DENDP_NOISE_MOST - 0.1) / inverse;
    least = least > floor_logit ? least : floor_logit;
    l->max = max;
    l->least = (float)(least - 1e-6 * (1.0 + fabs(least)));
    l->scale = (float)(inverse * log2e * octave);
    /* 2^-31 is the unit of the 31 bits of 1 - u; 127 is the bias of a float's exponent. */
    l->offset = (float)((((double)max * inverse - mark) * log2e + 31.0 + 127.0 + 1.0 / 64.0) * octave);
}

/* The winner of logits [n], or of ids [count] of them where ids is given: argmax of logit * inverse + noise over
 * logits of floor_logit and more. `best` has the largest logit, max, and is among them. */
static uint32_t dendp_sample_draw(const dendp_vector_ops *ops, const float *logits, uint32_t n,
                                  const uint32_t *ids, uint32_t count, uint32_t best, float max,
                                  double inverse, double floor_logit, uint64_t stream, uint64_t position) {
    /* The best token survives every filter, so it sets the mark first. */
    double best_value = (double)max * inverse + dendp_gumbel(stream, position, best);
    bool lifting = !ids && dendp_lift_can(max, inverse);
    dendp_lift lift;
    uint32_t i;
    lift.key = dendp_hash_key(dendp_hash2(stream, position));
    for (i = 0; i < count; i++) {
        uint32_t id = ids ? ids[i] : i;
        double value;
        if (lifting) {
            dendp_lift_set(&lift, max, inverse, best_value, floor_logit);
            id = i = ops->next_lift(&lift, logits, i, n);
            if (id >= n) {
                break;
            }
        }
        value = (double)dendp_logit(logits, id);
        if (value < floor_logit || value * inverse + DENDP_NOISE_MOST < best_value) {
            continue;
        }
        value = value * inverse + dendp_gumbel(stream, position, id);
        if (value > best_value || (value >= best_value && id < best)) {
            best_value = value;
            best = id;
        }
    }
    return best;
}

/* Reports a token of logits [n], whose largest is max. */
static void dendp_sample_report(const float *logits, uint32_t token, float max, double total,
                                dend_sampled *out) {
    double logprob = (double)dendp_logit(logits, token) - (double)max - log(total);
    out->token = (int32_t)token;
    out->logprob = logprob > -(double)FLT_MAX ? (float)logprob : -FLT_MAX;
}

/* Chooses a token of logits [n] by the parameters up to salt; see dend_sample_logits. */
static dend_status dendp_sample(const dendp_vector_ops *ops, const float *logits, uint32_t n,
                                const dend_sample_params *params, uint64_t stream, uint64_t position,
                                uint32_t *scratch, dend_sampled *out) {
    const uint32_t *ids = NULL; /* what top_k and top_p leave; NULL = all */
    uint32_t count = n, best;
    double total, floor_logit;
    float max, temperature = params ? params->temperature : 0.0f;
    if (!logits || !out || n == 0 || (params && dendp_sample_check(params) != DEND_OK)) {
        return DEND_ERR_ARGUMENT;
    }
    best = ops->max_index(logits, n);
    max = dendp_logit(logits, best);
    total = dendp_sample_total(ops, logits, n, max);
    if (temperature > 0.0f) {
        const dend_sample_params *p = params;
        bool nucleus = p->top_p > 0.0f && p->top_p < 1.0f;
        if ((p->top_k || nucleus) && !scratch) {
            return DEND_ERR_ARGUMENT;
        }
        if (p->top_k && (p->top_k < n || nucleus)) {
            count = dendp_min_u32(p->top_k, n);
            dendp_sample_top_k(ops, logits, n, count, scratch);
            if (nucleus) {
                count = dendp_sample_top_p_of_k(logits, count, (double)p->top_p, max, scratch);
            }
            ids = scratch;
        } else if (nucleus) {
            count = dendp_sample_top_p(ops, logits, n, (double)p->top_p * total, max, scratch);
            ids = scratch;
        }
        /* What counts as minus infinity is not drawn, at any temperature, unless there is nothing else. */
        floor_logit = max > -FLT_MAX ? -(double)FLT_MAX * (1.0 - 1e-9) : -(double)FLT_MAX;
        if (p->min_p > 0.0f) {
            floor_logit = (double)max + log((double)p->min_p);
        }
        best = dendp_sample_draw(ops, logits, n, ids, count, best, max, 1.0 / (double)temperature,
                                 floor_logit, dendp_hash2(stream, p->salt), position);
    }
    dendp_sample_report(logits, best, max, total, out);
    return DEND_OK;
}

DEND_IMPL dend_status dend_sample_logits(const float *logits, uint32_t n, const dend_sample_params *params,
                                         uint64_t stream, uint64_t position, uint32_t *scratch,
                                         dend_sampled *out) {
    if (params && !dendp_sample_is_plain(params)) {
        return DEND_ERR_ARGUMENT;
    }
    return dendp_sample(dendp_vector_ops_get(DEND_ISA_DEFAULT), logits, n, params, stream, position, scratch,
                        out);
}
