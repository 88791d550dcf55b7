/* ==========================================================================
 * >>10.02 SCORE: how good a node is, and how good it may be
 * ==========================================================================
 * Three uses of a number a node.
 *
 * WHAT IT IS WORTH.  The value of a step is set once, when it is written: by the
 * judge, by the model itself, or e^(log-probability / tokens), a number in
 * (0, 1] that does not punish length. Its mean is that of all values that were
 * backed up through it, its own the first.
 *
 * WHERE TO LOOK NEXT.  A child is worth a visit for its mean Q, or because it
 * was visited rarely (N of its parent's M visits; P is the probability that the
 * model gives to its step):
 *
 *     UCT    Q + c sqrt(ln M / N)               Kocsis and Szepesvari, ECML 2006
 *     PUCT   Q + c P sqrt(M) / (1 + N)          as in Silver et al., Nature 2017
 *
 * The next child that has not been grown takes part in PUCT as one with N = 0
 * and its parent's mean. A lane below a node counts as visits that were lost
 * (virtual loss), so that lanes spread instead of crowding on one path.
 *
 * WHAT TO GIVE UP FIRST.  When blocks run out: sequences of nodes that will not
 * grow, then those of the least mean, the latest first.
 * ======================================================================== */
#ifndef DEND_NO_SEARCH

static float dendp_score_logprob_value(const dend_search *s, const dendp_search_node *n) {
    uint32_t len = n->len_tokens - s->nodes[0].len_tokens;
    return len ? (float)exp((double)n->path_logprob / len) : 1.0f;
}

/* P(yes) / (P(yes) + P(no)). */
static float dendp_score_self(const dend_search *s, const float *logits) {
    double x = (double)dendp_logit(logits, (uint32_t)s->desc.no) -
               (double)dendp_logit(logits, (uint32_t)s->desc.yes);
    return (float)(1.0 / (1.0 + exp(x)));
}

static double dendp_score_mean(const dendp_search_node *n) {
    return n->visits ? n->value_sum / n->visits : (double)n->value;
}

/* Visits and mean with those lost that lanes below count for. */
static double dendp_score_visits(const dend_search *s, const dendp_search_node *n) {
    return n->visits + (double)s->desc.mcts.virtual_loss * n->in_flight;
}

static double dendp_score_mean_in_flight(const dend_search *s, const dendp_search_node *n) {
    double visits = dendp_score_visits(s, n);
    return visits > 0.0 ? n->value_sum / visits : 0.0;
}

static double dendp_score_uct(const dend_search *s, double parent_visits, const dendp_search_node *child) {
    double n = dendp_score_visits(s, child);
    return dendp_score_mean_in_flight(s, child) +
           (double)s->desc.mcts.explore * sqrt(log(parent_visits + 1.0) / (n > 0.0 ? n : 1.0));
}

static double dendp_score_puct(const dend_search *s, double parent_visits, const dendp_search_node *child) {
    return dendp_score_mean_in_flight(s, child) + (double)s->desc.mcts.explore * exp((double)child->logprob) *
                                                      sqrt(parent_visits) /
                                                      (1.0 + dendp_score_visits(s, child));
}

/* Of a child that is not there yet. */
static double dendp_score_puct_new(const dend_search *s, double parent_visits,
                                   const dendp_search_node *parent, float logprob) {
    return dendp_score_mean(parent) - (double)s->desc.mcts.fpu +
           (double)s->desc.mcts.explore * exp((double)logprob) * sqrt(parent_visits);
}

/* Children that a node may have by now: progressive widening (Coulom, CG 2007; Couetoux et al., LION 2011). */
static uint32_t dendp_score_width(const dend_search *s, double visits) {
    double most = ceil((double)s->desc.mcts.widen * pow(visits, (double)s->desc.mcts.widen_power));
    if (s->desc.mcts.widen <= 0.0f) {
        return UINT32_MAX;
    }
    return most < 1.0 ? 1 : most < 65535.0 ? (uint32_t)most : 65535u;
}

/* Log-probability with the length penalty of Wu et al., arXiv 1609.08144, equation 14. */
static float dendp_score_beam(const dend_search *s, const dendp_search_node *n) {
    double len = n->len_tokens - s->nodes[0].len_tokens;
    return (float)((double)n->path_logprob / pow((5.0 + len) / 6.0, (double)s->desc.beam.length_penalty));
}

/* What giving up a node's sequence costs: the least goes first. */
static double dendp_score_keep(const dendp_search_node *n) {
    return n->state == DEND_NODE_OPEN     ? dendp_score_mean(n)
           : n->state == DEND_NODE_SOLVED ? DBL_MAX
                                          : -DBL_MAX;
}

static void dendp_score_visit(dendp_search_node *n, float value) {
    n->visits++;
    n->value_sum += (double)value;
}

/* The value of a finished node goes to it and to all above it. */
static void dendp_score_backup(dend_search *s, uint32_t node, float value) {
    for (; node != DENDP_NONE; node = s->nodes[node].parent) {
        dendp_score_visit(&s->nodes[node], value);
    }
}

DEND_IMPL void dend_search_visit(dend_search *search, uint32_t node, float value) {
    if (search && dendp_snode_get(search, node) && dendp_finite(value)) {
        dendp_score_visit(&search->nodes[node], value);
    }
}

/* Whether a is a better result than b: solved, ended, open; then value; then the earlier. */
static bool dendp_score_better(const dend_search *s, uint32_t a, uint32_t b) {
    const dendp_search_node *x = &s->nodes[a], *y = &s->nodes[b];
    int rank_x = x->state == DEND_NODE_SOLVED ? 3 : x->state == DEND_NODE_ENDED ? 2 : a ? 1 : 0;
    int rank_y = y->state == DEND_NODE_SOLVED ? 3 : y->state == DEND_NODE_ENDED ? 2 : b ? 1 : 0;
    return rank_x != rank_y ? rank_x > rank_y : x->value > y->value;
}

DEND_IMPL uint32_t dend_search_best(const dend_search *search) {
    uint32_t a, b, best = DENDP_NONE, most = 0;
    if (!search) {
        return DEND_NODE_NONE;
    }
    if (search->desc.method != DEND_SEARCH_BEST_OF_N || !search->desc.best_of_n.majority) {
        return search->best;
    }
    for (a = 0; a < search->n_slots; a++) {
        const dendp_search_node *x = &search->nodes[a];
        uint32_t votes = 0;
        if (x->state != DEND_NODE_ENDED && x->state != DEND_NODE_SOLVED) {
            continue;
        }
        for (b = 0; b < search->n_slots; b++) {
            const dendp_search_node *y = &search->nodes[b];
            votes += (y->state == DEND_NODE_ENDED || y->state == DEND_NODE_SOLVED) && y->key == x->key
                         ? y->n_copies
                         : 0u;
        }
        if (votes > most || (votes == most && x->value > search->nodes[best].value)) {
            most = votes;
            best = a;
        }
    }
    return best == DENDP_NONE ? search->best : best;
}

/* Whether child x is a better move than y: not dead, then visits or mean, then the other of the two. */
static bool dendp_score_better_move(const dendp_search_node *x, const dendp_search_node *y, bool by_visits) {
    bool x_dead = x->state == DEND_NODE_DEAD, y_dead = y->state == DEND_NODE_DEAD;
    double mean_x = dendp_score_mean(x), mean_y = dendp_score_mean(y);
    if (x_dead != y_dead) {
        return y_dead;
    }
    if (by_visits && x->visits != y->visits) {
        return x->visits > y->visits;
    }
    return mean_x > mean_y || (!(mean_x < mean_y) && x->visits > y->visits);
}

DEND_IMPL uint32_t dend_search_best_child(const dend_search *search, uint32_t node, bool by_visits) {
    const dendp_search_node *n = search ? dendp_snode_get(search, node) : NULL;
    uint32_t id, best = DEND_NODE_NONE;
    if (!n) {
        return DEND_NODE_NONE;
    }
    for (id = dendp_snode_first_child(search, n); id != DENDP_NONE;
         id = dendp_snode_next_child(search, n, id)) {
        if (best == DEND_NODE_NONE ||
            dendp_score_better_move(&search->nodes[id], &search->nodes[best], by_visits)) {
            best = id;
        }
    }
    return best;
}

#endif /* DEND_NO_SEARCH */
