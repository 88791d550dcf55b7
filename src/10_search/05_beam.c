/* ==========================================================================
 * >>10.05 BEAM: level by level, the best few go on
 * ==========================================================================
 *     level 0     the prompt
 *     level 1     its children; the best `width` go on
 *     level 2     theirs, `n_children` each; the best `width` of all go on
 *     ...         until a result is better than all that is open
 *
 * With steps of one token this is beam search as translation systems have it.
 * Scores are log-probabilities with a length penalty (10.02). In DIVERSE groups
 * each group chooses after the ones before it, and pays for steps that they have
 * chosen (Hamming diversity, on steps), so that beams do not differ in their
 * last comma alone (Vijayakumar et al., arXiv 1610.02424).
 *
 * ANYTIME  A pass is cheap when the beam is narrow. When it has ended without a
 * solution and there is budget, another begins at the root with twice the width
 * and the tree as it is: nodes that are there cost nothing (complete anytime
 * beam search: Zhang, AAAI 1998). A pass that grows nothing new is the last.
 *
 * The breadth-first tree of thought (10.06) is the same walk with other scores.
 * Cost: O(width * n_children * width) comparisons a level.
 * ======================================================================== */
#ifndef DEND_NO_SEARCH

static void dendp_levels_begin_pass(dend_search *s) {
    s->level[0] = 0;
    s->state.n_level = 1;
    s->state.next = 0;
    s->state.round++;
}

static void dendp_levels_begin(dend_search *s, uint32_t width, uint32_t n_children) {
    s->state.width = dendp_min_u32(width, s->desc.n_nodes);
    s->state.n_children = dendp_min_u32(n_children, s->desc.n_children);
    dendp_levels_begin_pass(s);
}

/* A node of the level that lacks children and can have one. The level is served in turn: first children first. */
static uint32_t dendp_levels_grow(dend_search *s) {
    uint32_t i, best = DENDP_NONE;
    float logprob;
    for (i = 0; i < s->state.n_level; i++) {
        const dendp_search_node *n = &s->nodes[s->level[i]];
        if (n->n_children < s->state.n_children && dendp_snode_can_grow(s, n, &logprob) &&
            (best == DENDP_NONE || n->n_children < s->nodes[best].n_children)) {
            best = s->level[i];
        }
    }
    return best;
}

/* All children of the level that may go on, to next_level; returns how many. */
static uint32_t dendp_levels_gather(dend_search *s) {
    uint32_t i, id, n_found = 0;
    for (i = 0; i < s->state.n_level; i++) {
        const dendp_search_node *n = &s->nodes[s->level[i]];
        for (id = dendp_snode_first_child(s, n); id != DENDP_NONE; id = dendp_snode_next_child(s, n, id)) {
            if (s->nodes[id].state == DEND_NODE_OPEN) {
                s->next_level[n_found++] = id;
            }
        }
    }
    return n_found;
}

/* Moves the best of next_level[n], by scores, to level; one group after the other. */
static void dendp_levels_choose(dend_search *s, uint32_t n, uint32_t n_groups, float diversity) {
    uint32_t want = dendp_min_u32(n, s->state.width), i, k, chosen, group = 0, first = 0;
    for (chosen = 0; chosen < want; chosen++) {
        uint32_t best = DENDP_NONE;
        float best_score = 0.0f;
        while (chosen >= (uint64_t)(group + 1) * s->state.width / n_groups) {
            group++;
            first = chosen;
        }
        for (i = 0; i < n; i++) {
            float score = s->scores[i];
            if (s->next_level[i] == DENDP_NONE) {
                continue;
            }
            for (k = 0; k < first && diversity > 0.0f; k++) {
                score -= dendp_snode_same_step(s, s->level[k], s->next_level[i]) ? diversity : 0.0f;
            }
            if (best == DENDP_NONE || score > best_score) {
                best = i;
                best_score = score;
            }
        }
        s->level[chosen] = s->next_level[best];
        s->next_level[best] = DENDP_NONE;
    }
    s->state.n_level = want;
}

/* Goes on to a wider pass; false when the last one has grown nothing, or nothing can be wider. */
static bool dendp_levels_widen(dend_search *s, bool once) {
    bool widest = s->state.width >= s->desc.n_nodes && s->state.n_children >= s->desc.n_children;
    if (once || widest || s->n_grown == s->state.next) {
        return false;
    }
    s->state.width = dendp_min_u32(2 * s->state.width, s->desc.n_nodes);
    s->state.n_children = dendp_min_u32(2 * s->state.n_children, s->desc.n_children);
    dendp_levels_begin_pass(s);
    s->state.next = s->n_grown; /* to compare with */
    return true;
}

/* The walk of all methods that go level by level.
 * Params: rate sets scores[i] of next_level[i] for i < n; is_settled may be NULL. */
static uint32_t dendp_levels_select(dend_search *s, void (*rate)(dend_search *s, uint32_t n),
                                    bool (*is_settled)(const dend_search *s), uint32_t n_groups,
                                    float diversity, bool once) {
    for (;;) {
        uint32_t node = dendp_levels_grow(s), n;
        if (node != DENDP_NONE || s->n_busy > 0) {
            return node;
        }
        n = dendp_levels_gather(s);
        rate(s, n);
        dendp_levels_choose(s, n, n_groups, diversity);
        if ((n == 0 || (is_settled && is_settled(s))) && !dendp_levels_widen(s, once)) {
            s->state.n_level = 0;
            return DENDP_NONE;
        }
    }
}

static void dendp_beam_begin(dend_search *s) {
    dendp_levels_begin(s, s->desc.beam.width, s->desc.beam.n_children);
}

/* Whether a result is better than whatever the level can become: its log-probability can only fall, and what the
 * length penalty may still give back is known where no step can be longer than the context. */
static bool dendp_beam_is_settled(const dend_search *s) {
    const dendp_search_node *best = &s->nodes[s->best];
    dendp_search_node bound;
    uint32_t i;
    if (s->desc.beam.keep_going || (best->state != DEND_NODE_ENDED && best->state != DEND_NODE_SOLVED)) {
        return false;
    }
    for (i = 0; i < s->state.n_level; i++) {
        bound = s->nodes[s->level[i]];
        bound.len_tokens = s->engine->desc.n_ctx;
        if (dendp_score_beam(s, s->desc.beam.length_penalty > 0.0f ? &bound : &s->nodes[s->level[i]]) >=
            dendp_score_beam(s, best)) {
            return false;
        }
    }
    return true;
}

static void dendp_beam_rate(dend_search *s, uint32_t n) {
    uint32_t i;
    for (i = 0; i < n; i++) {
        s->scores[i] = dendp_score_beam(s, &s->nodes[s->next_level[i]]);
    }
}

static uint32_t dendp_beam_select(dend_search *s) {
    const dend_beam_params *p = &s->desc.beam;
    return dendp_levels_select(s, dendp_beam_rate, dendp_beam_is_settled, p->n_groups, p->diversity, p->once);
}

static const dendp_method dendp_beam = {dendp_beam_select, dendp_beam_begin, NULL, NULL};

#endif /* DEND_NO_SEARCH */
