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

DEND_IMPL dend_status dend_tree_accept(dend_engine *engine, uint32_t tree, uint32_t row) {
    const dendp_config *c;
    dendp_tree_state *state;
    dendp_slot *slot;
    dendp_record *r;
    int32_t tokens[DENDP_MAX_TREE];
    uint32_t slots[DENDP_MAX_TREE], n = 0, i, layer;
    const dendp_row *last;
    dend_status status;
    if (!engine || tree >= engine->n_trees || row >= engine->trees[tree].n_rows ||
        engine->trees[tree].accepted) {
        return DEND_ERR_ARGUMENT;
    }
    c = &engine->model->config;
    state = &engine->trees[tree];
    slot = dendp_cache_slot(&engine->cache, state->seq);
    if (!slot) {
        return DEND_ERR_STALE;
    }
    r = &engine->cache.records[slot->record];
    if (r->len != state->len || r->hash != state->hash || r->n_ready != r->len) {
        return DEND_ERR_ARGUMENT;
    }
    last = &engine->tree_rows[state->first + row];
    for (i = 0; i <= row; i++) {
        if (last->ancestors[i / 64] >> (i % 64) & 1u) {
            slots[n] = state->first + i;
            tokens[n++] = engine->tree_rows[state->first + i].token;
        }
    }
    status = dendp_cache_append(&engine->cache, slot, tokens, n);
    if (status != DEND_OK) {
        return status;
    }
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
    state->accepted = true;
    return DEND_OK;
}
