/* ==========================================================================
 * >>10.06 TREE OF THOUGHT: steps judged before they are followed
 * ==========================================================================
 * After Yao et al., "Tree of thoughts", NeurIPS 2023 (arXiv 2305.10601). Each
 * node is a thought. A node is given `n_children` children, and then
 *
 * BREADTH FIRST  of all children of the level the `width` best go on, by value, or
 *                by the caller's vote over all of them: the walk of 10.05.
 * DEPTH FIRST    the best child whose value is at least the threshold is visited;
 *                where there is none the walk goes back to the parent, which gives
 *                its next best.
 *
 *         0.9  A            order of visits: A, C, D (0.2: not visited), E, B
 *            /   \
 *       0.8 C     E 0.4     threshold 0.3
 *          /
 *     0.2 D
 *     0.5  B
 *
 * ANYTIME  as in 10.05: another pass with twice the width and twice the children
 * follows. Depth first lowers its threshold first, to the best value that it has
 * kept out, until there is none.
 * ======================================================================== */
#ifndef DEND_NO_SEARCH

static void dendp_thought_begin(dend_search *s) {
    dendp_levels_begin(s, s->desc.thought.width, s->desc.thought.n_children);
    s->state.threshold = s->desc.thought.threshold;
}

/* By value, or by the caller's vote. */
static void dendp_thought_rate(dend_search *s, uint32_t n) {
    uint64_t start;
    uint32_t i;
    for (i = 0; i < n; i++) {
        s->scores[i] = s->nodes[s->next_level[i]].value;
    }
    if (!s->desc.thought.vote || n == 0) {
        return;
    }
    start = dendp_now_ns();
    s->desc.thought.vote(s->desc.user, s, s->next_level, n, s->scores);
    s->judge_ns += dendp_now_ns() - start;
    for (i = 0; i < n; i++) {
        if (!dendp_finite(s->scores[i])) {
            s->scores[i] = -FLT_MAX;
            s->bad_value = true;
            s->info.n_bad_values++;
        }
    }
}

static uint32_t dendp_thought_select(dend_search *s) {
    return dendp_levels_select(s, dendp_thought_rate, NULL, 1, 0.0f, s->desc.thought.once);
}

/* -- depth first ------------------------------------------------------------------- */

/* The node that the walk is at is level[0]; nodes visited in this pass carry its round. */
static void dendp_depth_begin(dend_search *s) {
    dendp_thought_begin(s);
    s->nodes[0].mark = s->state.round;
}

/* Lets the next pass visit the best of the nodes that the threshold has kept out; false when there is none. */
static bool dendp_depth_lower(dend_search *s) {
    float best = -FLT_MAX;
    uint32_t id;
    for (id = 1; id < s->n_slots && !s->desc.thought.once; id++) {
        const dendp_search_node *n = &s->nodes[id];
        if (n->state == DEND_NODE_OPEN && n->value < s->state.threshold && n->value > best) {
            best = n->value;
        }
    }
    if (best <= -FLT_MAX) {
        return false;
    }
    s->state.threshold = best;
    dendp_levels_begin_pass(s);
    return true;
}

static uint32_t dendp_depth_select(dend_search *s) {
    for (;;) {
        const dendp_search_node *n = &s->nodes[s->level[0]];
        uint32_t id, best = DENDP_NONE;
        float logprob;
        if (n->n_children < s->state.n_children && dendp_snode_can_grow(s, n, &logprob)) {
            return s->level[0];
        }
        if (s->n_busy > 0) {
            return DENDP_NONE;
        }
        for (id = dendp_snode_first_child(s, n); id != DENDP_NONE; id = dendp_snode_next_child(s, n, id)) {
            const dendp_search_node *c = &s->nodes[id];
            if (c->state == DEND_NODE_OPEN && c->mark != s->state.round && c->value >= s->state.threshold &&
                (best == DENDP_NONE || c->value > s->nodes[best].value)) {
                best = id;
            }
        }
        if (best == DENDP_NONE && s->level[0] != 0) {
            best = n->parent;
        } else if (best == DENDP_NONE) {
            if (!dendp_depth_lower(s) && !dendp_levels_widen(s, s->desc.thought.once)) {
                return DENDP_NONE;
            }
            best = 0;
        }
        s->nodes[best].mark = s->state.round;
        s->level[0] = best;
    }
}

static const dendp_method dendp_thought = {dendp_thought_select, dendp_thought_begin, NULL, NULL};
static const dendp_method dendp_depth = {dendp_depth_select, dendp_depth_begin, NULL, NULL};

#endif /* DEND_NO_SEARCH */
