/* ==========================================================================
 * >>10.03 LANES: steps being written, all of them one token a batch
 * ==========================================================================
 * A lane writes one child of one node. All lanes advance together: one batch
 * of the engine gives each of them its next logits, so eight leaves cost little
 * more than one.
 *
 *     start    fork a sequence, append what the child begins with
 *     flush    append the token chosen last
 *     (batch)  dend_step
 *     advance  choose a token; at the end of the step: judge, value, back up
 *
 * TWO WAYS to make a child differ from its siblings.
 *
 * LIKELIEST  enumerates steps, best first. The first child takes the likeliest
 * token at each place, and notes what else was likely there (10.01, others). The
 * next child takes the best of these: it leaves its sibling's step there, so all
 * that it costs is the rest of the step, since a fork of the sibling's sequence,
 * rewound to that place, has everything before it.
 *
 *     8 / 4 = 2 2 11 11 .        first child; "*" was likely too, at the second token
 *       \ * 4 = 32 11 11 32 .    second child: eight tokens are charged, not nine
 *
 * No step comes twice. Tails are greedy, so the order is exactly best first
 * where tails are certain, and nearly so elsewhere.
 *
 * SAMPLE  forks the node and draws tokens, each lane from the stream that the
 * seed, the node and the number of the child give. Equal steps become one, with
 * a count. A node whose children repeat themselves eight times in a row is left.
 *
 * VALUES  of LOGPROB and SELF without a prompt cost nothing: all is known when
 * the step ends. SELF with a prompt asks: the lane goes on as ASKING, with the
 * step's last token and the prompt appended, for one batch. ROLLOUT goes on
 * writing children below the new node until the text ends.
 *
 * MEMORY  Whoever finds no block, slot or node of the block table gives up the
 * sequence whose loss costs least (10.02), and tries again. What was given up is
 * built again from the nearest ancestor that has a sequence; those tokens are
 * counted apart, because no model wrote them. Where nothing is left to give up
 * lanes end in the middle of a step, the last first; what they have written stays
 * in the tree, and can be taken up later. The last lane of all waits for the caller.
 * ======================================================================== */
#ifndef DEND_NO_SEARCH

static bool dendp_seq_none(dend_seq seq) {
    return seq.generation == 0;
}

static uint32_t dendp_search_free_blocks(const dend_search *s) {
    return dendp_cache_blocks_free(&s->engine->cache);
}

static void dendp_search_drop(dend_search *s, dend_seq *seq) {
    if (!dendp_seq_none(*seq)) {
        uint32_t before = dendp_search_free_blocks(s);
        (void)dend_seq_drop(s->engine, *seq); /* a stale one is gone already */
        s->n_blocks -= (int64_t)dendp_search_free_blocks(s) - before;
        memset(seq, 0, sizeof *seq);
    }
}

static dend_status dendp_search_append(dend_search *s, dend_seq seq, const int32_t *tokens, uint32_t n) {
    uint32_t before = dendp_search_free_blocks(s);
    const dendp_slot *slot = dendp_cache_slot(&s->engine->cache, seq);
    dend_status status;
    if (slot && n > s->engine->desc.n_ctx - s->engine->cache.records[slot->record].len) {
        return DEND_ERR_CONTEXT_FULL; /* whatever the engine's policy: a node's text must stay what it is */
    }
    status = dend_seq_append(s->engine, seq, tokens, n);
    s->n_blocks += (int64_t)before - dendp_search_free_blocks(s);
    return status;
}

static void dendp_snode_drop_seq(dend_search *s, dendp_search_node *n) {
    if (!dendp_seq_none(n->seq)) {
        dendp_search_drop(s, &n->seq);
        s->info.n_seqs--;
    }
}

/* Gives up the sequence that costs least; false when no node but the root and `keep` has one. */
static bool dendp_lane_evict(dend_search *s, uint32_t keep) {
    uint32_t id, worst = DENDP_NONE;
    for (id = 1; id < s->n_slots && s->info.n_seqs > 0; id++) {
        const dendp_search_node *n = &s->nodes[id];
        if (n->state == DENDP_NODE_FREE || dendp_seq_none(n->seq) || id == keep) {
            continue;
        }
        if (worst == DENDP_NONE || dendp_score_keep(n) <= dendp_score_keep(&s->nodes[worst])) {
            worst = id;
        }
    }
    if (worst == DENDP_NONE) {
        return false;
    }
    dendp_snode_drop_seq(s, &s->nodes[worst]);
    s->info.n_evicted++;
    return true;
}

static bool dendp_lane_is_short(dend_status status) {
    return status == DEND_ERR_NO_BLOCKS || status == DEND_ERR_NO_SEQUENCES;
}

/* Whether the search holds more blocks than the description lets it. */
static bool dendp_search_is_crowded(const dend_search *s, uint32_t more) {
    return s->desc.max_blocks && s->n_blocks + more > (int64_t)s->desc.max_blocks;
}

static dend_status dendp_lane_fork(dend_search *s, dend_seq from, dend_seq *out) {
    uint64_t start = dendp_now_ns();
    dend_status status = dend_seq_fork(s->engine, from, 0, out);
    s->fork_ns += dendp_now_ns() - start;
    s->info.n_forks++;
    return status;
}

/* Appends tokens of a node's step to a sequence that holds everything before them, up to `end` of the step. */
static dend_status dendp_lane_append_step(dend_search *s, dend_seq seq, uint32_t node, uint32_t from,
                                          uint32_t end) {
    uint32_t i;
    for (i = from; i < end; i++) {
        s->step[i - from] = dendp_snode_token(s, node, i);
    }
    return dendp_search_append(s, seq, s->step, end - from);
}

static dend_status dendp_seq_len(const dend_search *s, dend_seq seq, uint32_t *len) {
    dend_seq_info info;
    dend_status status = dend_seq_get_info(s->engine, seq, &info);
    *len = status == DEND_OK ? info.len_tokens : 0;
    return status;
}

/* Gives a node a sequence, if it has none, that holds its whole text. Builds it from the nearest ancestor that
 * has one. On failure the node is as it was.  Cost: O(depth), and the tokens that are missing. */
static dend_status dendp_lane_restore(dend_search *s, uint32_t node) {
    dendp_search_node *n = &s->nodes[node];
    uint32_t base = node, len, had;
    dend_seq seq;
    dend_status status = DEND_ERR_STALE;
    for (;;) {
        if (!dendp_seq_none(s->nodes[base].seq)) {
            status = dendp_seq_len(s, s->nodes[base].seq, &len);
            if (status == DEND_OK && len >= s->nodes[base].len_tokens - s->nodes[base].n_tokens) {
                break;
            }
            if (base != 0) { /* somebody dropped it, or cut it */
                dendp_snode_drop_seq(s, &s->nodes[base]);
            }
        }
        if (base == 0) {
            return DEND_ERR_STALE;
        }
        base = s->nodes[base].parent;
    }
    if (base == node) {
        uint32_t start = n->len_tokens - n->n_tokens;
        if (len < n->len_tokens) {
            status = dendp_lane_append_step(s, n->seq, node, len - start, n->n_tokens);
            (void)dend_seq_release_logits(s->engine, n->seq); /* whoever grows the node asks for them */
        }
        return status;
    }
    had = len;
    status = dendp_lane_fork(s, s->nodes[base].seq, &seq);
    if (status != DEND_OK) {
        return status;
    }
    while (status == DEND_OK &&
           len < n->len_tokens) { /* the step that comes next: the highest not yet whole */
        uint32_t next = node, start;
        while (s->nodes[next].parent != DENDP_NONE && s->nodes[s->nodes[next].parent].len_tokens > len) {
            next = s->nodes[next].parent;
        }
        start = s->nodes[next].len_tokens - s->nodes[next].n_tokens;
        status = dendp_lane_append_step(s, seq, next, len - start, s->nodes[next].n_tokens);
        len = s->nodes[next].len_tokens;
    }
    if (status != DEND_OK) {
        dendp_search_drop(s, &seq);
        return status;
    }
    (void)dend_seq_release_logits(s->engine, seq);
    s->info.n_rebuilt +=
        n->len_tokens > had ? n->len_tokens - had - 1 : 0; /* the last one was never computed */
    s->info.n_seqs++;
    n->seq = seq;
    return DEND_OK;
}

/* A fork of a node's whole text for a lane; evicts where that is needed. Where no slot is left, the node gives its
 * own sequence, and has none. */
static dend_status dendp_lane_seq_of_node(dend_search *s, uint32_t node, dend_seq *out) {
    dendp_search_node *n = &s->nodes[node];
    memset(out, 0, sizeof *out);
    for (;;) {
        dend_status status = dendp_lane_restore(s, node);
        bool whole = status == DEND_OK;
        if (whole) {
            status = dendp_lane_fork(s, n->seq, out);
        }
        if (dendp_lane_is_short(status)) {
            if (dendp_lane_evict(s, node)) {
                continue;
            }
            if (whole && node != 0) {
                *out = n->seq;
                memset(&n->seq, 0, sizeof n->seq);
                s->info.n_seqs--;
                return DEND_OK;
            }
        }
        return status;
    }
}

/* A sequence with a node's text and the first `shared` tokens of the step of its child `source`. */
static dend_status dendp_lane_seq_of_other(dend_search *s, uint32_t node, const dendp_other *from,
                                           dend_seq *out) {
    dend_seq seq = s->nodes[from->source].seq;
    uint32_t len, want = s->nodes[node].len_tokens + from->shared, i;
    dend_status status;
    for (i = 0; i < s->desc.n_lanes && dendp_seq_none(seq); i++) { /* still being written */
        if (s->lanes[i].state != DENDP_LANE_IDLE && s->lanes[i].node == from->source) {
            seq = s->lanes[i].seq;
        }
    }
    if (!dendp_seq_none(seq) && dendp_seq_len(s, seq, &len) == DEND_OK && len >= want) {
        status = dendp_lane_fork(s, seq, out);
        if (status == DEND_OK) {
            uint32_t before = dendp_search_free_blocks(s);
            status = dend_seq_rewind(s->engine, *out, want);
            s->n_blocks += (int64_t)before - dendp_search_free_blocks(s);
            if (status == DEND_OK) {
                return DEND_OK;
            }
            dendp_search_drop(s, out);
        }
    }
    status = dendp_lane_seq_of_node(s, node, out);
    while (status == DEND_OK) {
        status = dendp_lane_append_step(s, *out, from->source, 0, from->shared);
        if (status == DEND_OK) {
            s->info.n_rebuilt += from->shared;
            return DEND_OK;
        }
        if (dendp_lane_is_short(status) && dendp_lane_evict(s, node)) {
            status = DEND_OK;
        }
    }
    dendp_search_drop(s, out);
    return status;
}

static void dendp_lane_count_in_flight(dend_search *s, uint32_t node, bool up) {
    for (; node != DENDP_NONE; node = s->nodes[node].parent) {
        s->nodes[node].in_flight = (uint16_t)(s->nodes[node].in_flight + (up ? 1 : -1));
    }
}

static int32_t *dendp_lane_own(const dend_search *s, const dendp_lane *lane) {
    return s->tokens + s->desc.n_tokens + (size_t)(lane - s->lanes) * s->desc.max_step_tokens;
}

static void dendp_lane_idle(dend_search *s, dendp_lane *lane) {
    s->n_tokens_written -= lane->n_own;
    s->n_busy--;
    memset(lane, 0, sizeof *lane);
}

/* Moves what a lane has written to its node's place in the tree. */
static void dendp_lane_keep_tokens(dend_search *s, dendp_lane *lane) {
    memcpy(s->tokens + s->n_tokens_used, dendp_lane_own(s, lane), lane->n_own * sizeof *s->tokens);
    s->nodes[lane->node].tokens = s->n_tokens_used;
    s->n_tokens_used += lane->n_own;
    s->n_tokens_written -= lane->n_own;
    lane->n_own = 0;
}

/* Room for one more token, in the tree and in the budget. */
static bool dendp_lane_may_write(const dend_search *s) {
    return s->info.n_tokens < s->desc.max_tokens && s->n_tokens_used + s->n_tokens_written < s->desc.n_tokens;
}

/* Adds a generated token to the step; whoever calls has asked may_write. */
static void dendp_lane_write(dend_search *s, dendp_lane *lane, int32_t token, float logprob) {
    dendp_search_node *n = &s->nodes[lane->node];
    dendp_lane_own(s, lane)[lane->n_own++] = token;
    n->n_tokens++;
    n->len_tokens++;
    n->logprob += logprob;
    s->n_tokens_written++;
    s->info.n_tokens++;
}

/* Whether the step is over with its last token; sets lane->ended where the text is. */
static bool dendp_lane_step_is_over(dend_search *s, dendp_lane *lane) {
    const dendp_search_node *n = &s->nodes[lane->node];
    int32_t token = dendp_snode_token(s, lane->node, n->n_tokens - 1u);
    size_t n_bytes, i;
    const unsigned char *bytes = (const unsigned char *)dend_token_bytes(s->engine->model, token, &n_bytes);
    uint32_t k;
    bool over = n->n_tokens >= s->desc.max_step_tokens;
    lane->ended = dend_token_is_end(s->engine->model, token) || n->len_tokens >= s->engine->desc.n_ctx;
    switch (s->desc.step_end) {
    case DEND_STEP_TOKEN:
        over = true;
        break;
    case DEND_STEP_CALLBACK:
        for (k = 0; k < n->n_tokens; k++) {
            s->ends[k] = dendp_snode_token(s, lane->node, k);
        }
        over |= s->desc.step_ends(s->desc.user, s->ends, n->n_tokens);
        break;
    default:
        for (i = 0; i < n_bytes; i++) {
            over |= (s->delimiters[bytes[i] >> 3] >> (bytes[i] & 7u) & 1u) != 0;
        }
        break;
    }
    over |= lane->ended;
    lane->ended |= over && n->depth >= s->desc.max_depth;
    return over;
}

/* -- the end of a step ------------------------------------------------------------ */

static float dendp_lane_number(dend_search *s, float value, bool *bad) {
    if (dendp_finite(value)) {
        return value;
    }
    *bad = true;
    s->bad_value = true;
    s->info.n_bad_values++;
    return 0.0f;
}

static void dendp_lane_set_state(dend_search *s, uint32_t node, dend_node_state state) {
    s->nodes[node].state = (uint8_t)state;
    switch (state) {
    case DEND_NODE_SOLVED:
        s->info.n_solved++;
        break;
    case DEND_NODE_ENDED:
        s->info.n_ended++;
        break;
    case DEND_NODE_DEAD:
        s->info.n_dead++;
        break;
    case DEND_NODE_MERGED:
        s->info.n_merged++;
        break;
    default:
        break;
    }
}

/* Asks value, judge and policy about a written step, and sets the node's state. */
static void dendp_lane_judge(dend_search *s, const dendp_lane *lane, float value) {
    dendp_search_node *n = &s->nodes[lane->node];
    dend_verdict verdict;
    bool bad = false;
    uint64_t start = dendp_now_ns();
    n->key = dendp_snode_prefix_key(s, lane->node);
    memset(&verdict, 0, sizeof verdict);
    verdict.value = value;
    verdict.key = n->key;
    if (s->desc.judge) {
        s->desc.judge(s->desc.user, s, lane->node, &verdict);
        verdict.value = dendp_lane_number(s, verdict.value, &bad);
    }
    if (s->desc.policy.evaluate && !s->free_asked) {
        verdict.value = dendp_lane_number(
            s, s->desc.policy.evaluate(s->desc.policy.user, s, lane->node, verdict.value), &bad);
    }
    s->judge_ns += dendp_now_ns() - start;
    n->value = verdict.value;
    n->key = verdict.key;
    if (verdict.kind == DEND_VERDICT_STOP) {
        s->stop_asked = true;
    }
    if (bad || verdict.kind == DEND_VERDICT_DEAD) {
        dendp_lane_set_state(s, lane->node, DEND_NODE_DEAD);
    } else if (verdict.kind == DEND_VERDICT_SOLVED) {
        dendp_lane_set_state(s, lane->node, DEND_NODE_SOLVED);
    } else if (lane->ended) {
        dendp_lane_set_state(s, lane->node, DEND_NODE_ENDED);
    } else {
        uint32_t twin = dendp_snode_find_or_add(s, n->key, lane->node);
        dendp_lane_set_state(s, lane->node, twin == lane->node ? DEND_NODE_OPEN : DEND_NODE_MERGED);
        n->others = twin == lane->node ? DENDP_NONE : twin;
    }
}

/* A finished sibling whose step has the same tokens, or NONE. */
static uint32_t dendp_lane_equal_sibling(const dend_search *s, uint32_t node) {
    const dendp_search_node *n = &s->nodes[node], *p = &s->nodes[n->parent];
    uint32_t id;
    for (id = dendp_snode_first_child(s, p); id != DENDP_NONE; id = dendp_snode_next_child(s, p, id)) {
        if (id != node && s->nodes[id].state != DEND_NODE_GROWING && dendp_snode_same_step(s, id, node)) {
            return id;
        }
    }
    return DENDP_NONE;
}

static void dendp_lane_tell_finished(dend_search *s, uint32_t node) {
    if (s->method->finished) {
        s->method->finished(s, node);
    }
}

static void dendp_lane_tell_gave_up(dend_search *s, uint32_t node) {
    if (s->method->gave_up) {
        s->method->gave_up(s, node);
    }
}

static void dendp_lane_backup(dend_search *s, uint32_t node, float value) {
    if (s->desc.policy.backup && !s->free_asked) {
        s->desc.policy.backup(s->desc.policy.user, s, node, value);
    } else {
        dendp_score_backup(s, node, value);
    }
}

/* The value of a step is known: judges it, backs it up, and frees the lane or sends it on. */
static void dendp_lane_close(dend_search *s, dendp_lane *lane, float value) {
    uint32_t node = lane->node;
    dendp_search_node *n = &s->nodes[node];
    bool on = lane->rollout || s->desc.value == DEND_VALUE_ROLLOUT;
    dendp_lane_judge(s, lane, value);
    dendp_lane_count_in_flight(s, n->parent, false);
    if (n->state != DEND_NODE_DEAD && n->state != DEND_NODE_MERGED && dendp_score_better(s, node, s->best)) {
        s->best = node;
    }
    dendp_lane_idle(s, lane);
    dendp_lane_tell_finished(s, node);
    if (on && n->state == DEND_NODE_OPEN) {
        lane->rollout = true; /* the value comes from further down: whoever fills lanes starts there */
        lane->node = node;
        return;
    }
    if (n->state == DEND_NODE_MERGED) {
        value = (float)dendp_score_mean(&s->nodes[n->others]);
    } else {
        value = n->state == DEND_NODE_DEAD ? 0.0f : n->value;
    }
    dendp_lane_backup(s, node, value);
}

/* The step's last token is chosen. */
static void dendp_lane_finish(dend_search *s, dendp_lane *lane) {
    dendp_search_node *n = &s->nodes[lane->node];
    uint32_t twin = lane->sample ? dendp_lane_equal_sibling(s, lane->node) : DENDP_NONE;
    if (twin != DENDP_NONE) {
        dendp_search_node *p = &s->nodes[n->parent];
        s->nodes[twin].n_copies++;
        p->n_misses = (uint8_t)(p->n_misses < 255 ? p->n_misses + 1 : 255);
        dendp_lane_count_in_flight(s, n->parent, false);
        dendp_search_drop(s, &lane->seq);
        dendp_snode_free(s, lane->node);
        dendp_lane_idle(s, lane);
        dendp_lane_tell_finished(s, twin);
        return;
    }
    s->nodes[n->parent].n_misses = 0;
    dendp_lane_keep_tokens(s, lane);
    n->path_logprob = s->nodes[n->parent].path_logprob + n->logprob;
    /* A fork of the same length may have come with logits. */
    (void)dend_seq_release_logits(s->engine, lane->seq);
    n->seq = lane->seq;
    s->info.n_seqs++;
    if (s->desc.value == DEND_VALUE_SELF && s->desc.n_value_prompt && !lane->ended) {
        lane->state = DENDP_LANE_ASKING; /* flush appends the question */
        memset(&lane->seq, 0, sizeof lane->seq);
        lane->ready = false;
        return;
    }
    dendp_lane_close(s, lane,
                     s->desc.value == DEND_VALUE_SELF && n->self_value >= 0.0f
                         ? n->self_value
                         : dendp_score_logprob_value(s, n));
}

/* -- start, flush, advance ---------------------------------------------------------- */

/* Begins a child of `node` in an idle lane; OK, with the lane idle still, when there is no room for it, or nothing
 * to propose.  Returns: OK; STALE (the root is gone), NO_BLOCKS, NO_SEQUENCES; nothing has changed then. */
static dend_status dendp_lane_start(dend_search *s, dendp_lane *lane, uint32_t node, bool rollout) {
    dendp_search_node *p = &s->nodes[node], *n;
    dend_proposal proposal;
    dendp_other from;
    dend_seq seq;
    uint32_t id, other = DENDP_NONE;
    bool sample;
    dend_status status;
    if (!dendp_lane_may_write(s) || p->n_children == UINT16_MAX) {
        return DEND_OK;
    }
    proposal.kind = s->desc.propose;
    proposal.temperature = s->desc.temperature;
    if (s->desc.policy.expand) {
        s->desc.policy.expand(s->desc.policy.user, s, node, &proposal);
        if (!dendp_finite(proposal.temperature) || proposal.temperature < 0.0f) {
            proposal.temperature = s->desc.temperature;
        }
    }
    sample = proposal.kind == DEND_PROPOSE_SAMPLE;
    memset(&from, 0, sizeof from);
    from.source = DENDP_NONE;
    if (!sample && p->started) {
        other = dendp_snode_best_other(s, p);
        if (other == DENDP_NONE) {
            if (p->in_flight == 0) { /* nothing to propose, and nobody at work who may find some */
                p->n_misses = DENDP_SEARCH_MISSES;
            }
            return DEND_OK;
        }
        from = s->others[other];
    }
    status = from.source == DENDP_NONE ? dendp_lane_seq_of_node(s, node, &seq)
                                       : dendp_lane_seq_of_other(s, node, &from, &seq);
    if (status != DEND_OK) {
        return status;
    }
    id = dendp_snode_take(s, node);
    if (id == DENDP_NONE) {
        dendp_search_drop(s, &seq);
        return DEND_OK;
    }
    n = &s->nodes[id];
    n->len_tokens = p->len_tokens + from.shared;
    n->n_tokens = n->n_shared = (uint16_t)from.shared;
    n->source = from.source;
    (void)dend_seq_set_stream(s->engine, seq, dendp_hash2(dendp_hash2(s->desc.seed, p->key), p->n_begun++));
    if (!sample) {
        p->started = true;
    }
    dendp_snode_link(s, id);
    dendp_lane_count_in_flight(s, node, true);
    s->n_busy++;
    s->n_grown++;
    memset(lane, 0, sizeof *lane);
    lane->from = from;
    lane->state = DENDP_LANE_WRITING;
    lane->node = id;
    lane->seq = seq;
    lane->sample = sample;
    lane->rollout = rollout;
    lane->temperature = proposal.temperature;
    n->tokens = (uint32_t)(dendp_lane_own(s, lane) - s->tokens);
    if (other != DENDP_NONE) {
        dendp_snode_take_other(s, p, other, &from);
        dendp_lane_write(s, lane, from.token, from.logprob);
        n->self_value = from.self_value;
        if (dendp_lane_step_is_over(s, lane)) {
            dendp_lane_finish(s, lane);
        }
    }
    return DEND_OK;
}

/* Gives up a lane in the middle of its step. What it has written stays, as a closed node from which the step can
 * be taken up again: its last token becomes a way not taken. A step that is written but not valued goes without. */
static void dendp_lane_abandon(dend_search *s, dendp_lane *lane) {
    uint32_t node = lane->node, parent = s->nodes[node].parent;
    dendp_search_node *n = &s->nodes[node], *p = &s->nodes[parent];
    dendp_search_drop(s, &lane->seq);
    if (lane->state == DENDP_LANE_ASKING) {
        dendp_lane_close(s, lane, dendp_score_logprob_value(s, n));
        return;
    }
    (void)dend_seq_release_logits(s->engine, p->seq); /* that this lane would have read */
    dendp_lane_count_in_flight(s, parent, false);
    if (lane->n_own == 0 || lane->sample) { /* nobody shares its tokens */
        p->started = p->started && lane->sample;
        dendp_snode_free(s, node);
    } else if (lane->n_own == 1 && lane->from.source != DENDP_NONE) { /* nor here: the way is as it was */
        s->info.n_tokens--;
        dendp_snode_free(s, node);
        dendp_snode_note(s, parent, &lane->from);
    } else {
        dendp_other other;
        dendp_lane_keep_tokens(s, lane);
        n->n_tokens--;
        n->len_tokens--;
        s->n_tokens_used--;
        s->info.n_tokens--; /* it will be charged again */
        other.source = node;
        other.shared = n->n_tokens;
        other.token = s->tokens[n->tokens + n->n_tokens - n->n_shared];
        other.logprob = n->logprob;
        other.self_value = n->self_value;
        dendp_lane_set_state(s, node, DEND_NODE_CLOSED);
        p->n_cut++;
        dendp_snode_note(s, parent, &other);
    }
    dendp_lane_idle(s, lane);
    dendp_lane_tell_gave_up(s, parent);
}

/* Sends what a lane has written to its sequence, and asks for logits.
 * Returns: OK; NO_BLOCKS, NO_SEQUENCES: nothing has changed; STALE. */
static dend_status dendp_lane_flush(dend_search *s, dendp_lane *lane) {
    dend_status status = DEND_OK;
    if (lane->ready) {
        return DEND_OK;
    }
    if (lane->state == DENDP_LANE_ASKING) {
        if (dendp_seq_none(lane->seq)) {
            status = dendp_lane_seq_of_node(s, lane->node, &lane->seq);
        }
        if (status == DEND_OK) {
            status = dendp_search_append(s, lane->seq, s->value_prompt, s->desc.n_value_prompt);
        }
    } else {
        status = dendp_search_append(s, lane->seq, dendp_lane_own(s, lane) + lane->n_sent,
                                     lane->n_own - lane->n_sent);
    }
    if (status == DEND_OK) {
        lane->n_sent = lane->n_own;
        status = dend_seq_want_logits(s->engine, lane->seq);
        lane->ready = status == DEND_OK;
    }
    return status;
}

/* Notes the likely tokens that a greedy step does not take: those of at least min_prob, or the best RIVALS of
 * them. Under a value of SELF without a prompt a "no" is not noted, since it leads nowhere. */
static void dendp_lane_note_rivals(dend_search *s, const dendp_lane *lane, const float *logits, int32_t taken,
                                   double log_total, float self_value) {
    const dendp_search_node *n = &s->nodes[lane->node];
    const dendp_vector_ops *ops = s->engine->cpu.ops;
    uint32_t ids[DENDP_SEARCH_RIVALS + 1], V = s->engine->model->config.n_vocab, i, k = 0;
    double max = (double)dendp_logit(logits, (uint32_t)taken), least = log((double)s->desc.min_prob);
    /* A little too low: each is looked at again below. */
    int32_t limit = dendp_order((float)(max + log_total + least - 1e-6));
    dendp_other other;
    for (i = ops->next_above(logits, 0, V, limit); i < V && k <= DENDP_SEARCH_RIVALS;
         i = ops->next_above(logits, i + 1, V, limit)) {
        ids[k++] = i;
    }
    if (k > DENDP_SEARCH_RIVALS) { /* more than there is room for: the best of all */
        k = dendp_min_u32(DENDP_SEARCH_RIVALS + 1, V);
        dendp_sample_top_k(ops, logits, V, k, ids);
    }
    other.source = lane->node;
    other.shared = n->n_tokens;
    other.self_value = self_value;
    for (i = 0; i < k; i++) {
        double logprob = (double)dendp_logit(logits, ids[i]) - max - log_total;
        if ((int32_t)ids[i] != taken && logprob >= least &&
            (self_value < 0.0f || (int32_t)ids[i] != s->desc.no)) {
            other.token = (int32_t)ids[i];
            other.logprob = n->logprob + (float)logprob;
            dendp_snode_note(s, n->parent, &other);
        }
    }
}

/* Takes a lane one token further.  Returns: OK; NO_LOGITS, when the batch had none for it; STALE. */
static dend_status dendp_lane_advance(dend_search *s, dendp_lane *lane) {
    dendp_search_node *n = &s->nodes[lane->node];
    const float *logits;
    dend_sample_params params;
    dend_sampled sampled;
    uint64_t start = dendp_now_ns();
    dend_status status = dend_seq_logits(s->engine, lane->seq, &logits);
    if (status != DEND_OK) {
        return status == DEND_ERR_WAITING ? DEND_ERR_NO_LOGITS : status;
    }
    lane->ready = false;
    if (lane->state == DENDP_LANE_ASKING) {
        float value = dendp_score_self(s, logits);
        dendp_search_drop(s, &lane->seq);
        dendp_lane_close(s, lane, value);
        return DEND_OK;
    }
    if (s->desc.value == DEND_VALUE_SELF && s->desc.n_value_prompt == 0) {
        n->self_value = dendp_score_self(s, logits);
    }
    memset(&params, 0, sizeof params);
    params.temperature = lane->sample ? lane->temperature : 0.0f;
    status = dend_sample(s->engine, lane->seq, &params, &sampled);
    if (status != DEND_OK) {
        return status;
    }
    if (!lane->sample) { /* the likeliest token's logprob is minus the log of the total */
        dendp_lane_note_rivals(s, lane, logits, sampled.token, -(double)sampled.logprob, n->self_value);
    }
    s->choose_ns += dendp_now_ns() - start;
    if (lane->n_own == 0) { /* the parent's sequence shares this record; it must not keep the row of logits */
        (void)dend_seq_release_logits(s->engine, s->nodes[n->parent].seq);
    }
    dendp_lane_write(s, lane, sampled.token, sampled.logprob);
    if (dendp_lane_step_is_over(s, lane)) {
        dendp_lane_finish(s, lane);
    }
    return DEND_OK;
}

#endif /* DEND_NO_SEARCH */
