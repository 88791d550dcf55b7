/* ==========================================================================
 * >>07.07 TREE: draft rows beside the cache, and their acceptance
 * ==========================================================================
 * A token tree asks: what would the model say after each of these short
 * continuations? Its rows run in one pass, each seeing the committed tokens,
 * its ancestors and itself (SpecInfer: Miao et al., ASPLOS 2024). K and V of
 * the rows go to the overlay, so no sequence changes and nothing has to be
 * undone. A row's place among the keys is its logical position, so its logits
 * have the very bits that appending and stepping would give (07.02).
 *
 *     committed ... 41 42 | row 0 (pos 43) -- row 1 (44) -- row 3 (45)
 *                                          \- row 2 (44)
 *
 * Accepting a row appends its path as ordinary tokens and copies their K, V
 * and logits over: the state of plain decoding, without computing it again.
 * ======================================================================== */

/* Checks one tree and fills its rows from `first` on. */
static dend_status dendp_tree_fill(dend_engine *e, const dend_tree *tree, uint32_t first) {
    const dendp_slot *slot = dendp_cache_slot(&e->cache, tree->seq);
    const dendp_record *r;
    uint32_t i;
    if (!slot) {
        return DEND_ERR_STALE;
    }
    r = &e->cache.records[slot->record];
    if (r->n_ready < r->len) {
        return DEND_ERR_WAITING;
    }
    if (!tree->tokens || !tree->parents || tree->n_rows == 0 || tree->n_rows > e->desc.n_tree_rows - first) {
        return DEND_ERR_ARGUMENT;
    }
    for (i = 0; i < tree->n_rows; i++) {
        dendp_row *row = &e->rows[first + i];
        int32_t parent = tree->parents[i];
        if (parent < -1 || parent >= (int32_t)i) {
            return DEND_ERR_ARGUMENT;
        }
        if (tree->tokens[i] < 0 || (uint32_t)tree->tokens[i] >= e->model->config.n_vocab) {
            return DEND_ERR_TOKEN;
        }
        memset(row, 0, sizeof *row);
        if (parent >= 0) {
            memcpy(row->ancestors, e->rows[first + (uint32_t)parent].ancestors, sizeof row->ancestors);
        }
        row->ancestors[i / 64] |= (uint64_t)1 << (i % 64);
        row->token = tree->tokens[i];
        row->pos = parent < 0 ? r->len : e->rows[first + (uint32_t)parent].pos + 1;
        row->record = slot->record;
        row->n_past = r->len;
        row->tree_first = first;
        row->tree_row = i;
        row->logits_row = first + i;
        row->write_kv = true;
        if (row->pos >= e->desc.n_ctx) {
            return DEND_ERR_CONTEXT_FULL;
        }
    }
    return DEND_OK;
}

/* Notes a tree whose rows have been filled: what its acceptance has to know. */
static void dendp_tree_note(const dend_engine *e, const dend_tree *tree, dendp_tree_state *state,
                            uint32_t first) {
    const dendp_slot *slot = dendp_cache_slot(&e->cache, tree->seq);
    state->seq = tree->seq;
    state->record = slot->record;
    state->len = e->cache.records[slot->record].len;
    state->hash = e->cache.records[slot->record].hash;
    state->first = first;
    state->n_rows = tree->n_rows;
    state->accepted = false;
}

DEND_IMPL dend_status dend_tree_eval(dend_engine *engine, const dend_tree *trees, uint32_t n_trees) {
    uint32_t i, j, n = 0;
    dend_status status;
    if (!engine || !trees || n_trees == 0 || n_trees > engine->desc.n_tree_rows) {
        return DEND_ERR_ARGUMENT;
    }
    for (i = 0; i < n_trees; i++) {
        for (j = 0; j < i; j++) {
            if (trees[i].seq.slot == trees[j].seq.slot) {
                return DEND_ERR_ARGUMENT;
            }
        }
    }
    status = dendp_step_finish(engine); /* rows and activations are in its hands */
    if (status != DEND_OK) {
        return status;
    }
    for (i = 0; i < n_trees; i++) {
        status = dendp_tree_fill(engine, &trees[i], n);
        if (status != DEND_OK) {
            return status;
        }
        n += trees[i].n_rows;
    }
    for (i = 0, n = 0; i < n_trees; n += trees[i++].n_rows) { /* results of the last call end here */
        dendp_tree_note(engine, &trees[i], &engine->trees[i], n);
    }
    engine->n_trees = 0;
    dendp_forward_begin(&engine->forward, engine->rows, n, engine->tree_logits, false);
    if (!dendp_forward_go(&engine->forward, 0, false)) {
        return dendp_step_unless_cancelled(engine, DEND_ERR_CANCELLED);
    }
    memcpy(engine->tree_rows, engine->rows, n * sizeof *engine->rows);
#ifndef DEND_NO_SAMPLERS
    for (i = 0; i < n; i++) {
        engine->sampling.tree_drawn[i].token = -1;
    }
#endif
    engine->n_rows += n;
    engine->n_trees = n_trees;
    return DEND_OK;
}

DEND_IMPL const float *dend_tree_logits(const dend_engine *engine, uint32_t tree, uint32_t row) {
    if (!engine || tree >= engine->n_trees || row >= engine->trees[tree].n_rows) {
        return NULL;
    }
    return engine->tree_logits + (size_t)(engine->trees[tree].first + row) * engine->model->config.n_vocab;
}

/* The live slot of a tree that can still be accepted, and that has the row. */
static dend_status dendp_tree_open(const dend_engine *e, uint32_t tree, uint32_t row, dendp_slot **slot) {
    const dendp_tree_state *state;
    const dendp_record *r;
    if (!e || tree >= e->n_trees || row >= e->trees[tree].n_rows || e->trees[tree].accepted) {
        return DEND_ERR_ARGUMENT;
    }
    state = &e->trees[tree];
    *slot = dendp_cache_slot(&e->cache, state->seq);
    if (!*slot) {
        return DEND_ERR_STALE;
    }
    r = &e->cache.records[(*slot)->record];
    return r->len != state->len || r->hash != state->hash || r->n_ready != r->len ? DEND_ERR_ARGUMENT
                                                                                  : DEND_OK;
}

/* The path to a row: its rows among all trees', and their tokens. Returns its length. */
static uint32_t dendp_tree_path(const dend_engine *e, const dendp_tree_state *state, uint32_t row,
                                uint32_t *slots, int32_t *tokens) {
    const dendp_row *last = &e->tree_rows[state->first + row];
    uint32_t i, n = 0;
    for (i = 0; i <= row; i++) {
        if (last->ancestors[i / 64] >> (i % 64) & 1u) {
            slots[n] = state->first + i;
            tokens[n++] = e->tree_rows[state->first + i].token;
        }
    }
    return n;
}

#ifndef DEND_NO_SAMPLERS

/* What the tokens of a path count for mirostat: bits [n], -1 where a token was not drawn behind its parent.
 * Returns how many count, and their sum. */
static uint32_t dendp_tree_surprises(const dend_engine *e, const dendp_tree_state *state,
                                     const dendp_slot *slot, const uint32_t *slots, const int32_t *tokens,
                                     uint32_t n, float *bits, double *sum) {
    uint32_t i, count = 0;
    *sum = 0.0;
    for (i = 0; i < n; i++) {
        const dendp_drawn *drawn = i ? &e->sampling.tree_drawn[slots[i - 1]] : NULL;
        bool counts =
            drawn ? drawn->token == tokens[i]
                  : dendp_sampling_counts(&e->sampling, &e->cache, state->seq, slot, tokens[0], &bits[0]);
        bits[i] = !counts ? -1.0f : drawn ? drawn->bits : bits[i];
        *sum += counts ? (double)bits[i] : 0.0;
        count += counts;
    }
    return count;
}

DEND_IMPL dend_status dend_tree_sample(dend_engine *engine, uint32_t tree, uint32_t row,
                                       const dend_sample_params *params, dend_sampled *out) {
    int32_t tokens[DENDP_MAX_TREE];
    uint32_t slots[DENDP_MAX_TREE], n, count;
    float bits[DENDP_MAX_TREE];
    double sum;
    dendp_tree_state *state;
    dendp_slot *slot;
    dend_status status = out ? dendp_tree_open(engine, tree, row, &slot) : DEND_ERR_ARGUMENT;
    if (status != DEND_OK) {
        return status;
    }
    state = &engine->trees[tree];
    n = dendp_tree_path(engine, state, row, slots, tokens);
    count = dendp_tree_surprises(engine, state, slot, slots, tokens, n, bits, &sum);
    status = dendp_sampling_choose(&engine->sampling, engine->cpu.ops, dend_tree_logits(engine, tree, row),
                                   engine->model->config.n_vocab, &engine->model->tokenizer, params,
                                   &engine->cache, slot, tokens, n, count, sum, engine->sample_ids, out);
    if (status == DEND_OK && dendp_sampling_is_mirostat(params)) {
        engine->sampling.tree_drawn[state->first + row].token = out->token;
        engine->sampling.tree_drawn[state->first + row].bits = dendp_sampling_bits(out);
    }
    return status;
}

DEND_IMPL dend_status dend_text_rules_create(const dend_text_rules_desc *desc, dend_text_rules **out,
                                             dend_error *err) {
    if (!desc || !out) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "desc and out must be given", 0);
    }
    *out = NULL;
    if (desc->canary_begin_ || desc->canary_end_) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "canary set: the description is not initialised", 0);
    }
    if (!desc->model) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "a model must be given", 0);
    }
    if (!desc->model->has_tokenizer) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "the model has no tokenizer", 0);
    }
    return dendp_rules_create(desc, &desc->model->tokenizer, out, err);
}

#endif /* DEND_NO_SAMPLERS */

DEND_IMPL dend_status dend_tree_accept(dend_engine *engine, uint32_t tree, uint32_t row) {
    const dendp_config *c;
    dendp_tree_state *state;
    dendp_slot *slot;
    dendp_record *r;
    int32_t tokens[DENDP_MAX_TREE];
    uint32_t slots[DENDP_MAX_TREE], n, layer;
#ifndef DEND_NO_SAMPLERS
    float bits[DENDP_MAX_TREE];
    double sum;
    uint32_t i;
#endif
    dend_status status = dendp_tree_open(engine, tree, row, &slot);
    if (status != DEND_OK) {
        return status;
    }
    c = &engine->model->config;
    state = &engine->trees[tree];
    n = dendp_tree_path(engine, state, row, slots, tokens);
#ifndef DEND_NO_SAMPLERS
    if (dendp_tree_surprises(engine, state, slot, slots, tokens, n, bits, &sum) > engine->sampling.n_free) {
        return DEND_ERR_NO_BLOCKS;
    }
#endif
    status = dendp_cache_append(&engine->cache, slot, tokens, n);
    if (status != DEND_OK) {
        return status;
    }
#ifndef DEND_NO_SAMPLERS
    for (i = 0; i < n; i++) {
        if (bits[i] >= 0.0f) {
            dendp_sampling_count(&engine->sampling, &engine->cache, slot, state->len + i, bits[i]);
        }
    }
#endif
    r = &engine->cache.records[slot->record];
    for (layer = 0; layer < c->n_layers; layer++) {
        dendp_layer_view view = dendp_forward_view(&engine->forward, layer);
        engine->backend.copy_tree(engine->backend.self, &view, &engine->cache, &engine->overlay, slot->record,
                                  state->len, slots, n);
    }
    r->logits_row = dendp_logits_take(&engine->cache);
    if (r->logits_row != DENDP_NONE) { /* else they stay wanted, and the next step computes them */
        memcpy(engine->logits + (size_t)r->logits_row * c->n_vocab, dend_tree_logits(engine, tree, row),
               c->n_vocab * sizeof(float));
        r->want_logits = false;
    }
    dendp_record_commit(&engine->cache, slot->record, r->len);
    dendp_step_trim(engine, slot->record);
    state->accepted = true;
    return DEND_OK;
}
