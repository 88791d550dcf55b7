/* ==========================================================================
 * >>10.07 BEST OF N: independent samples, what all searches are measured against
 * ==========================================================================
 * Each chain samples step after step from the root until its text ends or the
 * judge calls it dead; then the lane begins another. Chains that happen to have
 * written the same steps share nodes, which count how often (n_copies), and each
 * chain pays for its own tokens. What wins is the best value, or the answer that
 * most chains came to (self-consistency: Wang et al., ICLR 2023).
 * ======================================================================== */
#ifndef DEND_NO_SEARCH

/* level[i] is the last node of chain i, next_level[i] is 1 while its next step is being written; next counts the
 * chains begun. */

static bool dendp_chains_is_over(const dend_search *s, uint32_t node) {
    return s->nodes[node].state != DEND_NODE_OPEN;
}

static uint32_t dendp_chains_select(dend_search *s) {
    uint32_t i;
    for (i = 0; i < s->state.n_level; i++) {
        if (!s->next_level[i] && !dendp_chains_is_over(s, s->level[i])) {
            s->next_level[i] = 1;
            return s->level[i];
        }
    }
    if (s->desc.best_of_n.n && s->state.next >= s->desc.best_of_n.n) {
        return DENDP_NONE;
    }
    for (i = 0; i < s->state.n_level && (s->next_level[i] || !dendp_chains_is_over(s, s->level[i])); i++) {
    }
    if (i == s->desc.n_lanes) {
        return DENDP_NONE;
    }
    s->state.n_level = dendp_max_u32(s->state.n_level, i + 1);
    s->state.next++;
    s->level[i] = 0;
    s->next_level[i] = 1;
    return 0;
}

/* The chain whose next step behind `node` was being written goes on at `to`. */
static void dendp_chains_go_on(dend_search *s, uint32_t node, uint32_t to) {
    uint32_t i;
    for (i = 0; i < s->state.n_level; i++) {
        if (s->next_level[i] && s->level[i] == node) {
            s->next_level[i] = 0;
            s->level[i] = to;
            return;
        }
    }
}

static void dendp_chains_finished(dend_search *s, uint32_t node) {
    const dendp_search_node *n = &s->nodes[node];
    dendp_chains_go_on(s, n->parent, n->state == DEND_NODE_MERGED ? n->others : node);
}

static void dendp_chains_gave_up(dend_search *s, uint32_t node) {
    dendp_chains_go_on(s, node, node);
}

static const dendp_method dendp_chains = {dendp_chains_select, NULL, dendp_chains_finished,
                                          dendp_chains_gave_up};

#endif /* DEND_NO_SEARCH */
