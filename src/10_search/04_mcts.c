/* ==========================================================================
 * >>10.04 MCTS: Monte Carlo tree search
 * ==========================================================================
 * Each lane goes from the root down to a node that is to grow by one child. At
 * each node it weighs the children that are there against one that is not yet
 * (10.02): PUCT weighs the next proposal by its probability, so that a node with
 * one certain continuation grows one child, and one with many grows many. UCT
 * knows no probabilities: it grows while progressive widening allows.
 *
 *     select    down by score, past what cannot grow
 *     grow      one child (10.03)
 *     back up   its value, to the root
 *
 * Values are backed up once a child, not once a visit: nothing is simulated
 * unless DEND_VALUE_ROLLOUT asks for it, since the value of a step is that of a
 * judge or of the model.
 *
 * A node below which nothing can ever grow is CLOSED, its sequences given up; one
 * below which nothing can grow until a lane ends is marked for this round. Either
 * way the walk goes up a level and looks again, so it ends at a node that can
 * grow if there is one.  Cost: O(depth * children) a selection.
 * ======================================================================== */
#ifndef DEND_NO_SEARCH

/* The child to go down to, or `node` itself when it is to grow, or NONE; *waits when a lane may change that. */
static uint32_t dendp_mcts_step_down(const dend_search *s, uint32_t node, bool *waits) {
    const dendp_search_node *n = &s->nodes[node];
    double visits = dendp_score_visits(s, n), best_score = 0.0;
    uint32_t id, best = DENDP_NONE;
    bool uct = s->desc.mcts.uct, grows, narrow = false;
    float logprob;
    *waits = false;
    grows = dendp_snode_can_grow(s, n, &logprob);
    if (grows && n->n_children >= dendp_score_width(s, visits)) {
        grows = false;
        narrow = true; /* for now */
    }
    for (id = dendp_snode_first_child(s, n); id != DENDP_NONE; id = dendp_snode_next_child(s, n, id)) {
        const dendp_search_node *c = &s->nodes[id];
        double score;
        if (c->state == DEND_NODE_GROWING || (c->state == DEND_NODE_OPEN && c->mark == s->state.round)) {
            *waits = true;
            continue;
        }
        if (c->state != DEND_NODE_OPEN) {
            continue;
        }
        score = uct ? dendp_score_uct(s, visits, c) : dendp_score_puct(s, visits, c);
        if (best == DENDP_NONE || score > best_score) {
            best = id;
            best_score = score;
        }
    }
    if (grows && (best == DENDP_NONE || uct || dendp_score_puct_new(s, visits, n, logprob) >= best_score)) {
        return node;
    }
    return best == DENDP_NONE && narrow && !*waits ? node : best; /* nothing else can raise the visits */
}

/* Nothing will ever grow below a node. */
static void dendp_mcts_close(dend_search *s, uint32_t node) {
    dendp_search_node *n = &s->nodes[node];
    uint32_t id;
    dendp_lane_set_state(s, node, DEND_NODE_CLOSED);
    dendp_snode_drop_others(s, n);
    for (id = dendp_snode_first_child(s, n); id != DENDP_NONE; id = dendp_snode_next_child(s, n, id)) {
        dendp_snode_drop_seq(s, &s->nodes[id]);
    }
}

static uint32_t dendp_mcts_select(dend_search *s) {
    uint32_t node = 0;
    s->state.round++;
    for (;;) {
        bool waits;
        uint32_t down = dendp_mcts_step_down(s, node, &waits);
        if (down == node) {
            return node;
        }
        if (down != DENDP_NONE) {
            node = down;
            continue;
        }
        if (waits) {
            s->nodes[node].mark = s->state.round;
        } else if (node != 0) {
            dendp_mcts_close(s, node);
        }
        if (node == 0) {
            return DENDP_NONE;
        }
        node = s->nodes[node].parent;
    }
}

static const dendp_method dendp_mcts = {dendp_mcts_select, NULL, NULL, NULL};

#endif /* DEND_NO_SEARCH */
