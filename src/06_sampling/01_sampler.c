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
 * Equal logits count as ordered by token id, lower first. Sorting is lazy: a
 * heap gives up its largest elements one at a time, so top_k = 40 of 150,000
 * costs one pass and 40 pops. Without top_k and top_p nothing is sorted, and
 * noise is computed only for tokens that it could still lift to the top
 * (g < 37.5). A logit that is NaN counts as minus infinity.
 * ======================================================================== */

/* The logit that the rules see. */
static float dendp_logit(const float *logits, uint32_t i) {
    float x = logits[i];
    return dendp_finite(x) ? x : (dendp_f32_bits(x) == 0x7f800000u ? FLT_MAX : -FLT_MAX);
}

/* True when token a stands before token b: larger logit, then lower id. */
static bool dendp_logit_before(const float *logits, uint32_t a, uint32_t b) {
    float x = dendp_logit(logits, a), y = dendp_logit(logits, b);
    return x > y || (x >= y && a < b);
}

/* Sinks heap[i] in a heap of n ids whose first stands before all others. */
static void dendp_heap_sink(const float *logits, uint32_t *heap, uint32_t n, uint32_t i) {
    uint32_t id = heap[i];
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= n) {
            break;
        }
        if (child + 1 < n && dendp_logit_before(logits, heap[child + 1], heap[child])) {
            child++;
        }
        if (!dendp_logit_before(logits, heap[child], id)) {
            break;
        }
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = id;
}

/* Writes the survivors of top_k and top_p, best first, to the end of ids [n]
 * and returns their number; ids + n - result is the first. */
static uint32_t dendp_sample_filter(const float *logits, uint32_t n, const dend_sample_params *p,
                                    double total, float max, uint32_t *ids) {
    uint32_t i, left = n, k = p->top_k ? dendp_min_u32(p->top_k, n) : n;
    double mass = 0.0, want;
    bool nucleus = p->top_p > 0.0f && p->top_p < 1.0f;
    for (i = 0; i < n; i++) {
        ids[i] = i;
    }
    for (i = n / 2; i-- > 0;) {
        dendp_heap_sink(logits, ids, n, i);
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
            dendp_heap_sink(logits, ids, left, 0);
        }
        mass += exp((double)dendp_logit(logits, best) - (double)max);
    }
    if (nucleus && p->top_k) {
        want = (double)p->top_p * mass;
        mass = 0.0;
        for (i = n; i > left && (mass < want || i == n); i--) {
            mass += exp((double)dendp_logit(logits, ids[i - 1]) - (double)max);
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

/* Chooses a token of logits [n]; see dend_sample_logits. */
static dend_status dendp_sample(const dendp_vector_ops *ops, const float *logits, uint32_t n,
                                const dend_sample_params *params, uint64_t stream, uint64_t position,
                                uint32_t *scratch, dend_sampled *out) {
    const dend_sample_params zero = {0.0f, 0, 0.0f, 0.0f, 0};
    const dend_sample_params *p = params ? params : &zero;
    const uint32_t *ids = NULL;
    uint32_t i, count = n, best = 0;
    double logprob, total, best_value = 0.0, floor_logit, inverse;
    float max;
    if (!logits || !out || n == 0 || dendp_sample_check(p) != DEND_OK) {
        return DEND_ERR_ARGUMENT;
    }
    for (i = 1; i < n; i++) {
        best = dendp_logit(logits, i) > dendp_logit(logits, best) ? i : best;
    }
    max = dendp_logit(logits, best);
    total = dendp_sample_total(ops, logits, n, max);
    if (p->temperature > 0.0f) {
        bool sorted = p->top_k || (p->top_p > 0.0f && p->top_p < 1.0f);
        if (sorted && !scratch) {
            return DEND_ERR_ARGUMENT;
        }
        stream = dendp_hash2(stream, p->salt);
        inverse = 1.0 / (double)p->temperature;
        if (sorted) {
            count = dendp_sample_filter(logits, n, p, total, max, scratch);
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
            double value = (double)dendp_logit(logits, id);
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
    logprob = (double)dendp_logit(logits, best) - (double)max - log(total);
    out->logprob = logprob > -(double)FLT_MAX ? (float)logprob : -FLT_MAX;
    return DEND_OK;
}

DEND_IMPL dend_status dend_sample_logits(const float *logits, uint32_t n, const dend_sample_params *params,
                                         uint64_t stream, uint64_t position, uint32_t *scratch,
                                         dend_sampled *out) {
    return dendp_sample(dendp_vector_ops_get(DEND_ISA_DEFAULT), logits, n, params, stream, position, scratch,
                        out);
}
