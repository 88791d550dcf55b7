/* ==========================================================================
 * >>10.08 SEARCH: create, budgets, and the loop
 * ==========================================================================
 *     until a budget is spent, the tree is solved, or nothing can grow:
 *         fill      idle lanes with what the method selects
 *         flush     each lane's last token to its sequence
 *         dend_step one batch for all lanes
 *         advance   each lane by a token; finished steps are judged and backed up
 *
 * All memory is one allocation, made with the search. Every decision is taken
 * between batches, on the caller's thread and in the order of lanes, from logits
 * that do not depend on threads (07.02): the tree is a function of the model, the
 * prompt, the description and the seed. (What depends on time is when a time
 * budget ends it; what depends on others is whether blocks run out.)
 *
 * BUDGETS are hard. A token is charged when it is chosen, whichever branch it is
 * in, and none is chosen beyond max_tokens. Steps that are unfinished when a
 * search ends are given up; their tokens stay charged.
 * ======================================================================== */
#ifndef DEND_NO_SEARCH

#define DENDP_SEARCH_RANGE "a number of the description is out of range"

static bool dendp_search_numbers_ok(const dend_search_desc *d) {
    const float positive[] = {d->temperature,         d->min_prob,         d->mcts.explore,
                              d->mcts.widen,          d->mcts.widen_power, d->mcts.virtual_loss,
                              d->beam.length_penalty, d->beam.diversity};
    uint32_t i;
    for (i = 0; i < sizeof positive / sizeof positive[0]; i++) {
        if (!dendp_finite(positive[i]) || positive[i] < 0.0f) {
            return false;
        }
    }
    return dendp_finite(d->mcts.fpu) && dendp_finite(d->thought.threshold) && d->min_prob < 1.0f;
}

static void dendp_search_defaults(dend_search_desc *d) {
    d->method = d->method ? d->method : DEND_SEARCH_MCTS;
    d->step_end = d->step_end ? d->step_end : DEND_STEP_LINE;
    d->max_step_tokens = d->max_step_tokens ? d->max_step_tokens : 64;
    d->max_depth = d->max_depth ? d->max_depth : 32;
    if (!d->propose) {
        d->propose = d->method == DEND_SEARCH_BEST_OF_N ? DEND_PROPOSE_SAMPLE : DEND_PROPOSE_LIKELIEST;
    }
    d->temperature = d->temperature > 0.0f ? d->temperature : 0.8f;
    d->min_prob = d->min_prob > 0.0f ? d->min_prob : 0.01f;
    d->n_children = d->n_children ? d->n_children : 32;
    d->value = d->value ? d->value : DEND_VALUE_LOGPROB;
    d->mcts.explore = d->mcts.explore > 0.0f ? d->mcts.explore : 1.0f;
    if (d->mcts.uct && d->mcts.widen <= 0.0f) {
        d->mcts.widen = 1.0f;
    }
    if (d->mcts.widen > 0.0f && d->mcts.widen_power <= 0.0f) {
        d->mcts.widen_power = 0.5f;
    }
    d->mcts.virtual_loss = d->mcts.virtual_loss > 0.0f ? d->mcts.virtual_loss : 1.0f;
    d->n_nodes = d->n_nodes ? d->n_nodes : 4096;
    d->beam.width = d->beam.width ? d->beam.width : dendp_min_u32(4, d->n_nodes);
    d->beam.n_children = d->beam.n_children ? d->beam.n_children : d->beam.width;
    d->beam.n_groups = d->beam.n_groups ? d->beam.n_groups : 1;
    d->thought.width = d->thought.width ? d->thought.width : dendp_min_u32(5, d->n_nodes);
    d->thought.n_children = d->thought.n_children ? d->thought.n_children : 5;
    d->max_tokens = d->max_tokens ? d->max_tokens : 1024;
    if (!d->n_tokens) {
        uint64_t most = (uint64_t)DENDP_SEARCH_TOKENS * d->n_nodes;
        d->n_tokens = (uint32_t)(d->max_tokens < most ? d->max_tokens : most);
    }
    d->n_lanes = d->n_lanes ? d->n_lanes : 8;
    if (d->value != DEND_VALUE_SELF) {
        d->n_value_prompt = 0;
        d->value_prompt = NULL;
    }
}

DEND_IMPL dend_status dend_search_resolve(dend_search_desc *desc, dend_error *err) {
    dend_search_desc d;
    dend_seq_info prompt;
    dend_status status;
    uint32_t i, V;
    if (!desc) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "desc must be given", 0);
    }
    d = *desc;
    status = dendp_user_resolve(d.engine, d.canary_begin_ | d.canary_end_, &d.allocator, err);
    if (status != DEND_OK) {
        return status;
    }
    if (dend_seq_get_info(d.engine, d.prompt, &prompt) != DEND_OK) {
        return DENDP_FAIL(err, DEND_ERR_STALE, "the prompt's sequence is not there", 0);
    }
    if (prompt.len_tokens >= d.engine->desc.n_ctx) {
        return DENDP_FAIL(err, DEND_ERR_CONTEXT_FULL, "the prompt fills the context", 0);
    }
    if (prompt.len_tokens == 0) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "the prompt is empty", 0);
    }
    if (!dendp_search_numbers_ok(&d)) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, DENDP_SEARCH_RANGE, 0);
    }
    dendp_search_defaults(&d);
    V = d.engine->model->config.n_vocab;
    if ((uint32_t)d.method > DEND_SEARCH_BEST_OF_N || (uint32_t)d.step_end > DEND_STEP_CALLBACK ||
        (uint32_t)d.propose > DEND_PROPOSE_SAMPLE || (uint32_t)d.value > DEND_VALUE_ROLLOUT ||
        d.max_step_tokens > DENDP_SEARCH_MAX_STEP || d.max_depth > UINT16_MAX || d.n_children > UINT16_MAX ||
        d.n_value_prompt > 1024 || d.n_nodes < 2 || d.n_nodes > (1u << 24) || d.n_tokens > (1u << 30) ||
        d.n_lanes > DENDP_SEARCH_MAX_LANES || d.beam.width > d.n_nodes || d.thought.width > d.n_nodes ||
        d.beam.n_groups > d.beam.width) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, DENDP_SEARCH_RANGE, 0);
    }
    if ((d.step_end == DEND_STEP_DELIMITER && (!d.delimiters || !d.delimiters[0])) ||
        (d.step_end == DEND_STEP_CALLBACK && !d.step_ends)) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "what ends a step must be given", 0);
    }
    if (d.method == DEND_SEARCH_BEST_OF_N && d.propose != DEND_PROPOSE_SAMPLE) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "best of N takes samples", 0);
    }
    if (d.value == DEND_VALUE_SELF) {
        if ((uint32_t)d.yes >= V || (uint32_t)d.no >= V || (d.n_value_prompt && !d.value_prompt)) {
            return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "a self-evaluation needs the tokens of yes and no", 0);
        }
        for (i = 0; i < d.n_value_prompt; i++) {
            if ((uint32_t)d.value_prompt[i] >= V) {
                return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "a token of value_prompt is outside the vocabulary",
                                  i);
            }
        }
    }
    *desc = d;
    return DEND_OK;
}

/* Places a search; with carver->base NULL it only measures. */
static void dendp_search_carve(dend_search *s, const dend_search_desc *d, dendp_carver *carver) {
    uint32_t n_table = 4, n_level = dendp_max_u32(d->n_nodes, d->n_lanes);
    while (n_table < d->n_nodes + d->n_nodes / 2) {
        n_table *= 2;
    }
    s->table_mask = n_table - 1;
    dendp_carve(carver, 1, sizeof *s);
    s->nodes = (dendp_search_node *)dendp_carve(carver, d->n_nodes, sizeof *s->nodes);
    s->tokens = (int32_t *)dendp_carve(carver, d->n_tokens + (uint64_t)d->n_lanes * d->max_step_tokens,
                                       sizeof *s->tokens);
    s->others =
        (dendp_other *)dendp_carve(carver, (uint64_t)DENDP_SEARCH_OTHERS * d->n_nodes, sizeof *s->others);
    s->table = (uint32_t *)dendp_carve(carver, n_table, sizeof *s->table);
    s->lanes = (dendp_lane *)dendp_carve(carver, d->n_lanes, sizeof *s->lanes);
    s->ends = (int32_t *)dendp_carve(carver, d->max_step_tokens, sizeof *s->ends);
    s->step = (int32_t *)dendp_carve(carver, d->max_step_tokens, sizeof *s->step);
    s->value_prompt = (int32_t *)dendp_carve(carver, d->n_value_prompt, sizeof *s->value_prompt);
    s->level = (uint32_t *)dendp_carve(carver, n_level, sizeof *s->level);
    s->next_level = (uint32_t *)dendp_carve(carver, n_level, sizeof *s->next_level);
    s->scores = (float *)dendp_carve(carver, n_level, sizeof *s->scores);
}

DEND_IMPL dend_status dend_search_plan(const dend_search_desc *desc, uint64_t *n_bytes, dend_error *err) {
    dend_search_desc d;
    dend_search probe;
    dendp_carver carver;
    dend_status status;
    if (!desc || !n_bytes) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "desc and n_bytes must be given", 0);
    }
    d = *desc;
    status = dend_search_resolve(&d, err);
    if (status != DEND_OK) {
        return status;
    }
    memset(&carver, 0, sizeof carver);
    dendp_search_carve(&probe, &d, &carver);
    if (carver.overflow) {
        return DENDP_FAIL(err, DEND_ERR_MEMORY, "the search is too large for this system", 0);
    }
    *n_bytes = carver.used;
    return DEND_OK;
}

/* Gives all sequences back, the root's included. */
static void dendp_search_drop_all(dend_search *s) {
    uint32_t i;
    for (i = 0; i < s->desc.n_lanes; i++) {
        if (s->lanes[i].state != DENDP_LANE_IDLE) {
            dendp_search_drop(s, &s->lanes[i].seq);
        }
    }
    for (i = 0; i < s->n_slots; i++) {
        if (s->nodes[i].state != DENDP_NODE_FREE) {
            dendp_search_drop(s, &s->nodes[i].seq);
        }
    }
}

/* An empty tree whose root holds `root`. */
static void dendp_search_begin(dend_search *s, dend_seq root, uint32_t len, uint64_t seed) {
    uint32_t i;
    s->desc.seed = seed;
    s->n_slots = s->n_live = 0;
    s->first_free = s->first_other = DENDP_NONE;
    s->n_tokens_used = s->n_tokens_written = s->n_others_used = s->n_busy = 0;
    s->best = 0;
    s->time_ns = s->model_ns = s->choose_ns = s->judge_ns = s->fork_ns = 0;
    s->stop_asked = s->bad_value = false;
    s->next_lane = 0;
    s->n_blocks = 0;
    s->n_grown = 0;
    memset(&s->info, 0, sizeof s->info);
    memset(&s->state, 0, sizeof s->state);
    for (i = 0; i <= s->table_mask; i++) {
        s->table[i] = DENDP_NONE;
    }
    memset(s->lanes, 0, s->desc.n_lanes * sizeof *s->lanes);
    memset(s->next_level, 0, dendp_max_u32(s->desc.n_nodes, s->desc.n_lanes) * sizeof *s->next_level);
    (void)dendp_snode_take(s, DENDP_NONE);
    s->nodes[0].seq = root;
    s->nodes[0].len_tokens = len;
    s->nodes[0].value = 1.0f;
    s->nodes[0].key = dendp_snode_prefix_key(s, 0);
    (void)dendp_snode_find_or_add(s, s->nodes[0].key, 0);
    if (s->method->begin) {
        s->method->begin(s);
    }
}

/* The root's own sequence: a fork of the prompt that holds no logits. */
static dend_status dendp_search_root(dend_engine *engine, dend_seq prompt, dend_seq *root, uint32_t *len) {
    dend_seq_info info;
    dend_status status = dend_seq_get_info(engine, prompt, &info);
    if (status == DEND_OK && (info.len_tokens == 0 || info.len_tokens >= engine->desc.n_ctx)) {
        return info.len_tokens ? DEND_ERR_CONTEXT_FULL : DEND_ERR_ARGUMENT;
    }
    if (status == DEND_OK) {
        status = dend_seq_fork(engine, prompt, 0, root);
    }
    if (status == DEND_OK) {
        *len = info.len_tokens;
        status = dend_seq_release_logits(engine, *root);
    }
    return status;
}

DEND_IMPL dend_status dend_search_create(const dend_search_desc *desc, dend_search **out, dend_error *err) {
    static const dendp_method *const methods[] = {&dendp_mcts,    &dendp_mcts,  &dendp_beam,
                                                  &dendp_thought, &dendp_depth, &dendp_chains};
    dend_search_desc d;
    dend_search *s;
    dendp_carver carver;
    dend_seq root;
    uint64_t bytes = 0;
    uint32_t len = 0, i;
    dend_status status;
    if (!desc || !out) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "desc and out must be given", 0);
    }
    *out = NULL;
    d = *desc;
    status = dend_search_resolve(&d, err);
    if (status == DEND_OK) {
        status = dend_search_plan(&d, &bytes, err);
    }
    if (status != DEND_OK) {
        return status;
    }
    s = (dend_search *)dendp_alloc(&d.allocator, bytes);
    if (!s) {
        return DENDP_FAIL(err, DEND_ERR_MEMORY, "no memory for the search", 0);
    }
    status = dendp_search_root(d.engine, d.prompt, &root, &len);
    if (status != DEND_OK) {
        dendp_free(&d.allocator, s, bytes);
        return DENDP_FAIL(err, status, "no sequence slot is free for the root", 0);
    }
    memset(s, 0, (size_t)bytes);
    memset(&carver, 0, sizeof carver);
    carver.base = (unsigned char *)s;
    dendp_search_carve(s, &d, &carver);
    s->desc = d;
    s->engine = d.engine;
    s->method = methods[d.method];
    s->bytes = bytes;
    if (d.n_value_prompt) {
        memcpy(s->value_prompt, d.value_prompt, d.n_value_prompt * sizeof *s->value_prompt);
    }
    if (d.step_end == DEND_STEP_LINE || d.step_end == DEND_STEP_DELIMITER) {
        const char *ends = d.step_end == DEND_STEP_LINE ? "\n" : d.delimiters;
        for (i = 0; ends[i]; i++) {
            unsigned char c = (unsigned char)ends[i];
            s->delimiters[c >> 3] = (unsigned char)(s->delimiters[c >> 3] | 1u << (c & 7u));
        }
    }
    s->desc.delimiters = NULL; /* the caller's again */
    s->desc.value_prompt = NULL;
    dendp_search_begin(s, root, len, d.seed);
    *out = s;
    return DEND_OK;
}

DEND_IMPL void dend_search_free(dend_search *search) {
    dend_allocator allocator;
    if (!search) {
        return;
    }
    if (search->running) {
        search->free_asked = true;
        return;
    }
    allocator = search->desc.allocator;
    dendp_search_drop_all(search);
    dendp_free(&allocator, search, search->bytes);
}

DEND_IMPL dend_status dend_search_restart(dend_search *search, dend_seq prompt, uint64_t seed) {
    dend_seq root;
    uint32_t len = 0;
    dend_status status;
    if (!search || search->running) {
        return DEND_ERR_ARGUMENT;
    }
    status = dendp_search_root(search->engine, prompt, &root, &len);
    if (status == DEND_OK) {
        dendp_search_drop_all(search);
        search->desc.prompt = prompt;
        dendp_search_begin(search, root, len, seed);
    }
    return status;
}

/* -- the loop ----------------------------------------------------------------------- */

/* Ends the search; unfinished steps go, as CLOSED nodes where others share their tokens. */
static void dendp_search_end(dend_search *s, dend_search_end end) {
    uint32_t i;
    for (i = s->desc.n_lanes; i-- > 0;) {
        if (s->lanes[i].state != DENDP_LANE_IDLE) {
            uint64_t charged = s->info.n_tokens;
            dendp_lane_abandon(s, &s->lanes[i]);
            s->info.n_tokens = charged;
        }
    }
    s->info.end = end;
}

static uint64_t dendp_search_elapsed(const dend_search *s) {
    return s->time_ns + (dendp_now_ns() - s->started_ns);
}

/* Whether a limit has been met, and the search has ended with it. */
static bool dendp_search_is_over(dend_search *s) {
    if (s->info.end != DEND_SEARCH_RUNNING) {
        return true;
    }
    if (s->info.n_solved > 0 && !s->desc.keep_going) {
        dendp_search_end(s, DEND_SEARCH_SOLVED);
    } else if (s->stop_asked) {
        dendp_search_end(s, DEND_SEARCH_STOPPED);
    } else if (s->info.n_tokens >= s->desc.max_tokens) {
        dendp_search_end(s, DEND_SEARCH_TOKENS);
    } else if (s->n_tokens_used + s->n_tokens_written >= s->desc.n_tokens) {
        dendp_search_end(s, DEND_SEARCH_NODES);
    } else if (s->desc.max_time_us && dendp_search_elapsed(s) / 1000u >= s->desc.max_time_us) {
        dendp_search_end(s, DEND_SEARCH_TIME);
    }
    return s->info.end != DEND_SEARCH_RUNNING;
}

/* Whether this call of step has had its time. */
static bool dendp_search_is_late(const dend_search *s) {
    return s->deadline_ns && dendp_now_ns() >= s->deadline_ns;
}

/* Goes on below the node that a lane has finished, where its value is that of a rollout, until the lane has something
 * to write. A node below which nothing can be begun is worth what it is worth itself. */
static void dendp_search_roll_out(dend_search *s, dendp_lane *lane) {
    while (lane->state == DENDP_LANE_IDLE && lane->rollout && !s->free_asked && !dendp_search_is_over(s)) {
        uint64_t before = s->info.n_tokens;
        uint32_t node = lane->node;
        dend_status status;
        memset(lane, 0, sizeof *lane);
        status = dendp_lane_start(s, lane, node, true);
        if (status != DEND_OK || (lane->state == DENDP_LANE_IDLE && s->info.n_tokens == before)) {
            dendp_lane_backup(s, node, s->nodes[node].value);
        }
    }
}

/* Gives idle lanes something to write.  Returns: OK, STALE; NO_BLOCKS, NO_SEQUENCES when a child found no room;
 * PENDING when the time is up, after one at least: then again, before anything else, for the tree must not depend on
 * the time. */
static dend_status dendp_search_fill(dend_search *s) {
    uint32_t i, n_vain = 0;
    bool worked = false;
    for (i = 0; i < s->desc.n_lanes; i++) { /* before anything is selected: their values are missing */
        dendp_lane *lane = &s->lanes[i];
        if (lane->state == DENDP_LANE_IDLE && lane->rollout) {
            if (worked && dendp_search_is_late(s)) {
                return DEND_PENDING;
            }
            worked = true;
            dendp_search_roll_out(s, lane);
        }
    }
    for (i = 0; i < s->desc.n_lanes; i++) {
        dendp_lane *lane = &s->lanes[i];
        while (lane->state == DENDP_LANE_IDLE && !lane->rollout) {
            uint64_t before = s->info.n_tokens;
            uint32_t node;
            dend_status status;
            if (dendp_search_is_over(s) || s->free_asked ||
                (s->n_busy > 0 && dendp_search_is_crowded(s, 1))) {
                return DEND_OK;
            }
            if (worked && dendp_search_is_late(s)) {
                return DEND_PENDING;
            }
            worked = true;
            node =
                s->desc.policy.select ? s->desc.policy.select(s->desc.policy.user, s) : s->method->select(s);
            if (!dendp_snode_get(s, node) || s->nodes[node].state != DEND_NODE_OPEN) {
                return DEND_OK;
            }
            status = dendp_lane_start(s, lane, node, false);
            if (status != DEND_OK) {
                dendp_lane_tell_gave_up(s, node);
                return status;
            }
            dendp_search_roll_out(s, lane); /* a step that was over at once may want one */
            if (lane->state == DENDP_LANE_IDLE && s->info.n_tokens == before) {
                dendp_lane_tell_gave_up(s, node); /* no room, or nothing to propose */
                if (s->n_slots >= s->desc.n_nodes && s->first_free == DENDP_NONE) {
                    if (s->n_busy == 0) {
                        dendp_search_end(s, DEND_SEARCH_NODES);
                    }
                    return DEND_OK;
                }
                if (++n_vain > s->n_slots + 8) { /* a policy that selects the same node again and again */
                    return DEND_OK;
                }
            }
        }
    }
    return DEND_OK;
}

/* Sends what lanes have written. Where the engine is full, sequences of nodes go, and then the last lanes.
 * Returns: OK; NO_BLOCKS or NO_SEQUENCES when the only lane left has no room. */
static dend_status dendp_search_flush(dend_search *s) {
    uint32_t i, k;
    for (i = 0; i < s->desc.n_lanes; i++) {
        dendp_lane *lane = &s->lanes[i];
        while (lane->state != DENDP_LANE_IDLE) {
            dend_status status = dendp_lane_flush(s, lane);
            bool crowded = dendp_search_is_crowded(s, 0);
            if (status == DEND_OK && !crowded) {
                break;
            }
            if (status == DEND_OK || dendp_lane_is_short(status)) {
                if (dendp_lane_evict(s, lane->state == DENDP_LANE_ASKING ? lane->node : DENDP_NONE)) {
                    continue;
                }
                for (k = s->desc.n_lanes; k-- > 0 && s->lanes[k].state == DENDP_LANE_IDLE;) {
                }
                if (k > i || (k == i && s->n_busy > 1) || lane->state == DENDP_LANE_ASKING) {
                    dendp_lane_abandon(s, &s->lanes[k]);
                    continue;
                }
                return status != DEND_OK ? status : DEND_ERR_NO_BLOCKS;
            }
            /* No room for a question in the context, or somebody dropped the sequence. */
            dendp_lane_abandon(s, lane);
        }
    }
    return DEND_OK;
}

/* Takes all lanes one token further.  Returns: OK; NO_LOGITS when not one of them was served; PENDING when the
 * time is up before all of them: then again. */
static dend_status dendp_search_advance(dend_search *s) {
    if (s->next_lane == 0) {
        s->moved = s->n_busy == 0;
    }
    while (s->next_lane < s->desc.n_lanes && !s->free_asked && !dendp_search_is_over(s)) {
        dendp_lane *lane = &s->lanes[s->next_lane++];
        dend_status status;
        if (lane->state == DENDP_LANE_IDLE || !lane->ready) {
            continue;
        }
        status = dendp_lane_advance(s, lane);
        if (status != DEND_OK && status != DEND_ERR_NO_LOGITS) {
            dendp_lane_abandon(s, lane);
        }
        s->moved |= status != DEND_ERR_NO_LOGITS;
        if (s->next_lane < s->desc.n_lanes && dendp_search_is_late(s)) {
            return DEND_PENDING;
        }
    }
    s->next_lane = 0;
    return s->moved || s->info.end != DEND_SEARCH_RUNNING ? DEND_OK : DEND_ERR_NO_LOGITS;
}

/* Frees every row of logits that a node's sequence holds; false when there was none. */
static bool dendp_search_release_logits(dend_search *s) {
    uint32_t id, before = s->engine->cache.n_free_logits;
    for (id = 0; id < s->n_slots; id++) {
        if (s->nodes[id].state != DENDP_NODE_FREE && !dendp_seq_none(s->nodes[id].seq)) {
            (void)dend_seq_release_logits(s->engine, s->nodes[id].seq);
        }
    }
    return s->engine->cache.n_free_logits > before;
}

/* Lanes begin, and one batch for all that wait. PENDING: the time is up before it is through. */
static dend_status dendp_search_batch(dend_search *s) {
    uint64_t start;
    dend_status status = dendp_search_fill(s);
    if (status == DEND_ERR_STALE || status == DEND_PENDING || s->info.end != DEND_SEARCH_RUNNING ||
        s->free_asked) {
        return status == DEND_ERR_STALE ? status : DEND_PENDING;
    }
    if (s->n_busy == 0) {
        if (dendp_lane_is_short(status)) {
            return status;
        }
        if (!dendp_search_is_over(s)) {
            dendp_search_end(s, DEND_SEARCH_EXHAUSTED);
        }
        return DEND_PENDING;
    }
    status = dendp_search_flush(s);
    if (status != DEND_OK || s->n_busy == 0) {
        return status == DEND_OK ? DEND_PENDING : status;
    }
    start = dendp_now_ns();
    status = dendp_step_run(s->engine, s->deadline_ns);
    s->model_ns += dendp_now_ns() - start;
    s->info.n_batches += status != DEND_PENDING && status != DEND_ERR_CANCELLED ? 1u : 0u;
    return status == DEND_PENDING || status == DEND_ERR_CANCELLED ? status : DEND_OK;
}

static dend_status dendp_search_turn(dend_search *s) {
    dend_status status = s->next_lane > 0 ? DEND_OK : dendp_search_batch(s);
    if (status == DEND_OK) {
        status = dendp_search_advance(s);
        if (status == DEND_ERR_NO_LOGITS && dendp_search_release_logits(s)) {
            status = dendp_step_run(s->engine, s->deadline_ns);
            if (status != DEND_PENDING && status != DEND_ERR_CANCELLED) {
                status = dendp_search_advance(s); /* lanes that still lack logits say so themselves */
            }
        }
    }
    return status == DEND_PENDING ? DEND_OK : status; /* the rest comes with the next call */
}

DEND_IMPL dend_status dend_search_step(dend_search *search, uint64_t budget_us) {
    dend_search *s = search;
    dend_status status = DEND_OK;
    if (!s || s->running) {
        return DEND_ERR_ARGUMENT;
    }
    if (s->info.end != DEND_SEARCH_RUNNING) {
        return DEND_OK;
    }
    s->running = true;
    s->started_ns = dendp_now_ns();
    s->deadline_ns = budget_us && budget_us < UINT64_MAX / 2000u ? s->started_ns + budget_us * 1000u : 0;
    s->bad_value = false;
    do {
        status = dendp_search_turn(s);
        if (status == DEND_OK && s->bad_value) {
            status = DEND_ERR_CALLBACK;
        }
        if (s->free_asked || status != DEND_OK || dendp_search_is_over(s)) {
            break;
        }
        if (dendp_search_is_late(s)) {
            status = DEND_PENDING;
        }
    } while (status == DEND_OK);
    s->time_ns += dendp_now_ns() - s->started_ns;
    s->running = false;
    if (s->free_asked) {
        dend_search_free(s);
        return DEND_ERR_CANCELLED;
    }
    return status;
}

DEND_IMPL void dend_search_get_info(const dend_search *search, dend_search_info *out) {
    if (!out) {
        return;
    }
    memset(out, 0, sizeof *out);
    if (!search) {
        return;
    }
    *out = search->info;
    out->best = dend_search_best(search);
    out->n_nodes = search->n_live;
    out->n_slots = search->n_slots;
    out->n_lanes = search->n_busy;
    out->time_us = (search->running ? dendp_search_elapsed(search) : search->time_ns) / 1000u;
    out->model_us = search->model_ns / 1000u;
    out->choose_us = search->choose_ns / 1000u;
    out->judge_us = search->judge_ns / 1000u;
    out->fork_ns = search->fork_ns;
}

DEND_IMPL dend_status dend_search_take(dend_search *search, uint32_t node, dend_seq *out) {
    if (!search || !out || !dendp_snode_get(search, node) || search->nodes[node].state == DEND_NODE_GROWING) {
        return DEND_ERR_ARGUMENT;
    }
    return dendp_lane_seq_of_node(search, node, out);
}

#endif /* DEND_NO_SEARCH */
