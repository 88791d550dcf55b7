/* ==========================================================================
 * >>10.01 SEARCH TREE: nodes, their steps, and what could grow beside them
 * ==========================================================================
 * A search thinks in steps: lines of a proof, clauses of a sum, moves. A node
 * is one step of text behind its parent's; the root is the prompt.
 *
 *                       prompt                         node 0
 *               /          |           \
 *          8/4=2 ...    11*4=44 ...   8+4=12 ...       steps
 *           /    \          |
 *        ...      ...      ...
 *
 * A node keeps the sequence that wrote it, a fork of its parent's: they share
 * all blocks but the last. Where memory is short the sequence is given up, and
 * built again from the tokens when the node is grown.
 *
 * STEPS SHARE TOKENS.  Most children of a node are written by leaving a sibling's
 * step at some token (10.03), so a node stores only what differs:
 *
 *     source   8/4=2 2 11 11.        n_shared 0, own tokens: all
 *     node     8+4=12 11 11 12.      n_shared 1, own tokens: +4=12 11 11 12.
 *
 * Whoever wants token i of a step follows `source` until i is an own token. A
 * step that is being written keeps its tokens in its lane's part of the same
 * array, and moves them when it is done.
 *
 * OTHERS  are the ways not taken: while a step is written greedily, the likely
 * tokens that it did not take are noted with the step's log-probability up to
 * and including them. The best of these is the node's next child. They hang at
 * the parent, in a list without order: lists are short.
 *
 * KEYS    Two nodes of one key are one state (a transposition): the later one is
 * MERGED. Unless the judge says better, the key is a hash of all tokens.
 *
 * Children stand in a ring: a node knows its last child, whose next sibling is
 * the first. Everything lies in arrays that are made once. Cost of a node: about
 * 196 bytes by default, tokens, others and key included.
 * ======================================================================== */
#ifndef DEND_NO_SEARCH

#define DENDP_SEARCH_MAX_STEP 4096u
#define DENDP_SEARCH_MAX_LANES 256u
#define DENDP_SEARCH_OTHERS 2u  /* proposals that there is room for, a node */
#define DENDP_SEARCH_TOKENS 6u  /* tokens likewise */
#define DENDP_SEARCH_MISSES 8u  /* equal samples in a row after which a node does not grow any more */
#define DENDP_SEARCH_RIVALS 64u /* tokens noted at a place of a step, at most */

typedef struct dendp_search_node {
    uint32_t parent, last_child, next_sibling; /* next_sibling: also the next free node */
    uint32_t source;                           /* sibling whose first n_shared tokens begin this step */
    uint32_t tokens;                           /* where its own n_tokens - n_shared ones are */
    uint32_t others;                           /* first of the list, or the twin of a merged node */
    uint32_t len_tokens;                       /* of its text with the prompt */
    uint32_t visits, created;
    uint32_t mark;    /* of select: the round in which nothing could be grown below it */
    uint32_t n_begun; /* children, given up ones and equal ones included */
    uint32_t n_copies;
    uint16_t n_tokens, n_shared, depth, n_children;
    uint16_t n_cut;     /* of its children: what is left of steps that were given up */
    uint16_t in_flight; /* lanes below it */
    uint8_t state;      /* dend_node_state, or DENDP_NODE_FREE */
    uint8_t n_misses;   /* samples in a row that were there already */
    bool started;       /* its first child has been begun */
    float logprob, path_logprob;
    float value;      /* of its step */
    float self_value; /* P(yes) where its step ended */
    dend_seq seq;     /* holds its text, or all but the last tokens of its step; zero = given up */
    uint64_t key;
    double value_sum;
} dendp_search_node;

enum { DENDP_NODE_FREE = 255 };

/* A way not taken. */
typedef struct dendp_other {
    uint32_t next;
    uint32_t source; /* the child whose step it leaves ... */
    uint32_t shared; /* ... after so many tokens */
    int32_t token;
    float logprob;    /* of the step, this token included */
    float self_value; /* P(yes) at its place */
} dendp_other;

typedef enum dendp_lane_state { DENDP_LANE_IDLE = 0, DENDP_LANE_WRITING, DENDP_LANE_ASKING } dendp_lane_state;

/* A step being written. Its tokens are own[n_own]; the first n_sent of them are in the sequence. */
typedef struct dendp_lane {
    dendp_lane_state state;
    uint32_t node;
    dend_seq seq;
    uint32_t n_own, n_sent;
    bool sample;  /* tokens are drawn, not the likeliest */
    bool rollout; /* goes on behind the step, until the text ends */
    bool ended;   /* by an end token, depth or context */
    bool ready;   /* its logits are asked for: all is sent */
    float temperature;
    dendp_other from; /* how it began, when it leaves another step */
} dendp_lane;

typedef struct dendp_method {
    uint32_t (*select)(dend_search *s); /* the node that grows next, or NONE */
    /* May be NULL: a new tree, whose method state is zero; a child has been finished (or node is the sibling that it
     * turned out to equal); a child of the node was begun and is no more. */
    void (*begin)(dend_search *s);
    void (*finished)(dend_search *s, uint32_t node);
    void (*gave_up)(dend_search *s, uint32_t node);
} dendp_method;

/* What a method remembers between two selections. */
typedef struct dendp_method_state {
    uint32_t round; /* of selection, or pass */
    uint32_t width, n_children;
    uint32_t n_level; /* nodes of the level, or chains */
    uint32_t next;
    float threshold;
} dendp_method_state;

struct dend_search {
    dend_search_desc desc; /* resolved */
    dend_engine *engine;
    const dendp_method *method;
    uint64_t bytes;
    unsigned char delimiters[32]; /* a bit a byte */
    int32_t *value_prompt;        /* [n_value_prompt] */
    dendp_search_node *nodes;     /* [n_nodes] */
    int32_t *tokens;              /* [n_tokens + n_lanes * max_step_tokens] */
    dendp_other *others;          /* [OTHERS * n_nodes] */
    uint32_t *table;              /* [table_mask + 1] nodes by key */
    dendp_lane *lanes;            /* [n_lanes] */
    int32_t *step;                /* [max_step_tokens] a step in one piece */
    int32_t *ends;                /* [max_step_tokens] the same, for step_ends, which may call us */
    uint32_t *level, *next_level; /* [n_nodes] of the method */
    float *scores;                /* [n_nodes] of the method */
    uint32_t table_mask;
    uint32_t n_slots, n_live, first_free;
    uint32_t n_tokens_used, n_tokens_written; /* in the tree, and in lanes */
    uint32_t n_others_used, first_other;
    uint32_t n_busy;  /* lanes that are not idle */
    int64_t n_blocks; /* taken from the pool by calls of the search, less those given back */
    uint32_t best;
    uint32_t n_grown;    /* children begun, in all */
    uint64_t started_ns; /* of this call of step */
    uint64_t time_ns, model_ns, choose_ns, judge_ns, fork_ns;
    dend_search_info info;
    dendp_method_state state;
    uint64_t deadline_ns; /* of this call of step; 0 = none */
    bool running, free_asked, stop_asked, bad_value;
    uint32_t next_lane; /* > 0: lanes from this on are still to take what the last batch has computed */
    bool moved;         /* one of those before has got on */
};

static dendp_search_node *dendp_snode_get(const dend_search *s, uint32_t node) {
    return node < s->n_slots && s->nodes[node].state != DENDP_NODE_FREE ? &s->nodes[node] : NULL;
}

static uint32_t dendp_snode_first_child(const dend_search *s, const dendp_search_node *n) {
    return n->last_child == DENDP_NONE ? DENDP_NONE : s->nodes[n->last_child].next_sibling;
}

/* The child after `child`, or NONE: the ring has been walked. */
static uint32_t dendp_snode_next_child(const dend_search *s, const dendp_search_node *parent,
                                       uint32_t child) {
    return child == parent->last_child ? DENDP_NONE : s->nodes[child].next_sibling;
}

/* Token i of a node's step. */
static int32_t dendp_snode_token(const dend_search *s, uint32_t node, uint32_t i) {
    while (i < s->nodes[node].n_shared) {
        node = s->nodes[node].source;
    }
    return s->tokens[s->nodes[node].tokens + i - s->nodes[node].n_shared];
}

/* Whether the steps of two nodes have the same tokens. */
static bool dendp_snode_same_step(const dend_search *s, uint32_t a, uint32_t b) {
    uint32_t i, n = s->nodes[a].n_tokens;
    if (n != s->nodes[b].n_tokens) {
        return false;
    }
    for (i = 0; i < n && dendp_snode_token(s, a, i) == dendp_snode_token(s, b, i); i++) {
    }
    return i == n;
}

/* A new node behind parent, or NONE. It is not among the parent's children yet. */
static uint32_t dendp_snode_take(dend_search *s, uint32_t parent) {
    uint32_t id = s->first_free;
    dendp_search_node *n;
    if (id != DENDP_NONE) {
        s->first_free = s->nodes[id].next_sibling;
    } else if (s->n_slots < s->desc.n_nodes) {
        id = s->n_slots++;
    } else {
        return DENDP_NONE;
    }
    n = &s->nodes[id];
    memset(n, 0, sizeof *n);
    n->parent = parent;
    n->last_child = n->next_sibling = n->source = n->others = DENDP_NONE;
    n->n_copies = 1;
    n->self_value = -1.0f;
    n->created = (uint32_t)s->info.n_batches;
    if (parent != DENDP_NONE) {
        n->depth = (uint16_t)(s->nodes[parent].depth + 1);
        n->state = DEND_NODE_GROWING;
    }
    s->n_live++;
    return id;
}

static void dendp_snode_link(dend_search *s, uint32_t id) {
    dendp_search_node *n = &s->nodes[id], *p = &s->nodes[n->parent];
    n->next_sibling = p->last_child == DENDP_NONE ? id : s->nodes[p->last_child].next_sibling;
    if (p->last_child != DENDP_NONE) {
        s->nodes[p->last_child].next_sibling = id;
    }
    p->last_child = id;
    p->n_children++;
}

static void dendp_snode_unlink(dend_search *s, uint32_t id) {
    dendp_search_node *n = &s->nodes[id], *p = &s->nodes[n->parent];
    uint32_t before = p->last_child;
    while (s->nodes[before].next_sibling != id) {
        before = s->nodes[before].next_sibling;
    }
    s->nodes[before].next_sibling = n->next_sibling;
    if (p->last_child == id) {
        p->last_child = before == id ? DENDP_NONE : before;
    }
    p->n_children--;
}

/* Gives up a node that nothing refers to. */
static void dendp_snode_free(dend_search *s, uint32_t id) {
    dendp_snode_unlink(s, id);
    s->nodes[id].state = DENDP_NODE_FREE;
    s->nodes[id].next_sibling = s->first_free;
    s->first_free = id;
    s->n_live--;
}

/* -- ways not taken ------------------------------------------------------------ */

/* Notes a way not taken at `parent`. Without room the worst of the parent's own gives way, if it is worse. */
static void dendp_snode_note(dend_search *s, uint32_t parent, const dendp_other *other) {
    dendp_search_node *n = &s->nodes[parent];
    uint32_t id = s->first_other, i, worst = DENDP_NONE, next;
    if (id != DENDP_NONE) {
        s->first_other = s->others[id].next;
    } else if (s->n_others_used < DENDP_SEARCH_OTHERS * s->desc.n_nodes) {
        id = s->n_others_used++;
    } else {
        for (i = n->others; i != DENDP_NONE; i = s->others[i].next) {
            if (worst == DENDP_NONE || s->others[i].logprob < s->others[worst].logprob) {
                worst = i;
            }
        }
        s->info.n_forgotten++;
        if (worst != DENDP_NONE && s->others[worst].logprob < other->logprob) {
            next = s->others[worst].next;
            s->others[worst] = *other;
            s->others[worst].next = next;
        }
        return;
    }
    s->others[id] = *other;
    s->others[id].next = n->others;
    n->others = id;
}

/* The best way not taken at a node, or NONE; the earliest of equals. */
static uint32_t dendp_snode_best_other(const dend_search *s, const dendp_search_node *n) {
    uint32_t i, best = DENDP_NONE;
    for (i = n->others; i != DENDP_NONE; i = s->others[i].next) {
        if (best == DENDP_NONE || s->others[i].logprob >= s->others[best].logprob) {
            best = i;
        }
    }
    return best;
}

/* Takes a way out of a node's list. */
static void dendp_snode_take_other(dend_search *s, dendp_search_node *n, uint32_t id, dendp_other *out) {
    uint32_t *link = &n->others;
    while (*link != id) {
        link = &s->others[*link].next;
    }
    *link = s->others[id].next;
    *out = s->others[id];
    s->others[id].next = s->first_other;
    s->first_other = id;
}

static void dendp_snode_drop_others(dend_search *s, dendp_search_node *n) {
    dendp_other unused;
    while (n->others != DENDP_NONE) {
        dendp_snode_take_other(s, n, n->others, &unused);
    }
}

/* Whether a node can be given another child, and the log-probability of what is known of it. A policy that expands
 * may propose what the description does not: then only trying tells. */
static bool dendp_snode_can_grow(const dend_search *s, const dendp_search_node *n, float *logprob) {
    uint32_t other;
    *logprob = -FLT_MAX;
    if (n->state != DEND_NODE_OPEN || (uint32_t)(n->n_children - n->n_cut) >= s->desc.n_children ||
        n->n_children == UINT16_MAX || n->depth >= s->desc.max_depth || n->n_misses >= DENDP_SEARCH_MISSES) {
        return false;
    }
    if (s->desc.propose == DEND_PROPOSE_SAMPLE || !n->started) {
        *logprob = 0.0f;
        return true;
    }
    other = dendp_snode_best_other(s, n);
    if (other != DENDP_NONE) {
        *logprob = s->others[other].logprob;
    } else if (s->desc.policy.expand) {
        *logprob = 0.0f;
    }
    return *logprob > -FLT_MAX;
}

/* -- keys ------------------------------------------------------------------------- */

/* The node of a key; if there is none, `id` becomes it. */
static uint32_t dendp_snode_find_or_add(dend_search *s, uint64_t key, uint32_t id) {
    uint32_t at = (uint32_t)dendp_mix64(key) & s->table_mask;
    while (s->table[at] != DENDP_NONE) {
        if (s->nodes[s->table[at]].key == key) {
            return s->table[at];
        }
        at = (at + 1) & s->table_mask;
    }
    s->table[at] = id;
    return id;
}

/* A hash of all tokens up to and including a node's step. */
static uint64_t dendp_snode_prefix_key(const dend_search *s, uint32_t id) {
    const dendp_search_node *n = &s->nodes[id];
    uint64_t key = n->parent == DENDP_NONE ? 0 : s->nodes[n->parent].key;
    uint32_t i;
    for (i = 0; i < n->n_tokens; i++) {
        key = dendp_hash2(key, (uint64_t)(uint32_t)dendp_snode_token(s, id, i));
    }
    return dendp_hash2(key, n->n_tokens ? n->len_tokens : 0);
}

/* -- reading ------------------------------------------------------------------------ */

DEND_IMPL dend_status dend_search_node(const dend_search *search, uint32_t node, dend_node_info *out) {
    const dendp_search_node *n = search ? dendp_snode_get(search, node) : NULL;
    if (!n || !out) {
        return DEND_ERR_ARGUMENT;
    }
    memset(out, 0, sizeof *out);
    out->state = (dend_node_state)n->state;
    out->parent = n->parent;
    out->first_child = dendp_snode_first_child(search, n);
    out->next_sibling = n->parent == DENDP_NONE
                            ? DEND_NODE_NONE
                            : dendp_snode_next_child(search, &search->nodes[n->parent], node);
    out->twin = n->state == DEND_NODE_MERGED ? n->others : DEND_NODE_NONE;
    out->n_children = n->n_children;
    out->depth = n->depth;
    out->n_tokens = n->n_tokens;
    out->len_tokens = n->len_tokens;
    out->visits = n->visits;
    out->n_copies = n->n_copies;
    out->created = n->created;
    out->logprob = n->logprob;
    out->path_logprob = n->path_logprob;
    out->value = n->value;
    out->mean = n->visits ? (float)(n->value_sum / n->visits) : n->value;
    (void)dendp_snode_can_grow(search, n, &out->next_logprob);
    out->key = n->key;
    out->seq = n->seq;
    return DEND_OK;
}

/* Copies as much of the end of a text as belongs below cap: the text's bytes [at, at + n). */
static void dendp_snode_put(char *out, size_t cap, size_t at, const char *text, size_t n) {
    size_t i;
    for (i = 0; i < n && at + i < cap; i++) {
        out[at + i] = text[i];
    }
}

/* The text of the steps from below `above` (NONE = the root's parent) down to a node, written from its end. */
static size_t dendp_snode_text(const dend_search *s, uint32_t node, uint32_t above, char *out, size_t cap) {
    size_t total = 0, at, n_bytes;
    uint32_t id, i;
    for (id = node; id != above; id = s->nodes[id].parent) {
        for (i = 0; i < s->nodes[id].n_tokens; i++) {
            (void)dend_token_bytes(s->engine->model, dendp_snode_token(s, id, i), &n_bytes);
            total += n_bytes;
        }
    }
    if (!out || cap == 0) {
        return total;
    }
    at = total;
    for (id = node; id != above; id = s->nodes[id].parent) {
        for (i = s->nodes[id].n_tokens; i-- > 0;) {
            const char *bytes = dend_token_bytes(s->engine->model, dendp_snode_token(s, id, i), &n_bytes);
            at -= n_bytes;
            dendp_snode_put(out, cap, at, bytes, n_bytes);
        }
    }
    out[total < cap ? total : cap - 1] = 0;
    return total;
}

DEND_IMPL size_t dend_search_text(const dend_search *search, uint32_t node, char *out, size_t cap) {
    if (!search || !dendp_snode_get(search, node)) {
        return 0;
    }
    return dendp_snode_text(search, node, DENDP_NONE, out, cap);
}

DEND_IMPL size_t dend_search_step_text(const dend_search *search, uint32_t node, char *out, size_t cap) {
    if (!search || !dendp_snode_get(search, node)) {
        return 0;
    }
    return dendp_snode_text(search, node, search->nodes[node].parent, out, cap);
}

DEND_IMPL size_t dend_search_tokens(const dend_search *search, uint32_t node, int32_t *out, size_t cap) {
    size_t total, at;
    uint32_t id, i;
    if (!search || !dendp_snode_get(search, node) || (!out && cap)) {
        return 0;
    }
    total = at = search->nodes[node].len_tokens - search->nodes[0].len_tokens;
    for (id = node; id != DENDP_NONE; id = search->nodes[id].parent) {
        for (i = search->nodes[id].n_tokens; i-- > 0;) {
            if (--at < cap) {
                out[at] = dendp_snode_token(search, id, i);
            }
        }
    }
    return total;
}

#endif /* DEND_NO_SEARCH */
