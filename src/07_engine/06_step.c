/* ==========================================================================
 * >>07.06 STEP: batches, and the time that they may take
 * ==========================================================================
 * A STEP gathers waiting tokens into batches until none is left or the time is
 * up. The queue is served round robin, in the order in which sequences began
 * to wait: first one token each for those that wait for just one (a branch
 * that decodes must not stand behind a long prompt), then prompt tokens until
 * the batch is full.
 *
 *     gather --> begin --> go  go  go ... --> commit
 *                            \   \
 *                             the caller forks, appends, rewinds, drops
 *
 * A batch takes as long as it takes; a caller with little time goes through it
 * in slices, and may do what it likes between two of them. There is one batch
 * under way at a time. What it is about must hold still meanwhile, so it HOLDS
 * its records: one more count each, which makes everybody else a sharer. Whoever
 * changes a sequence then changes a clone (04.04), and the batch goes on with
 * what it had. Nothing is told to anybody before the commit: until then n_ready
 * is what it was, logits rows are the batch's own, and a fork that is made
 * between two slices shares the record and learns the results with it.
 *
 * K and V go to the blocks that the record named when the batch began. If a
 * sequence has cloned its record since and has kept those blocks, it finds its
 * tokens computed when it is gathered next; if it has copied a block, it
 * computes what the copy lacks. Either gives the same bits (row-invariance).
 *
 * ORPHANS.  Records that only the batch holds are looked at between two layers:
 * of their rows those go whose blocks nobody else has, from the last one on.
 *
 * Cost of a slice beside the model's work: a clock reading a task, and O(rows).
 * What is late is late by one task of some 100 us for each thread.
 * ======================================================================== */

/* A moment budget_us from now; 0 where there is no limit. */
static uint64_t dendp_deadline(uint64_t budget_us) {
    return budget_us && budget_us < UINT64_MAX / 4000u ? dendp_now_ns() + budget_us * 1000u : 0;
}

#define DENDP_FINE_PRODUCTS                                                                                  \
    (8u << 20) /* multiply-adds of a task that may not be late by much: 100 us of a slow core */

/* Rows of prompts in a batch that runs in slices: few enough that a panel of the widest matrix, times all rows, is a
 * short task. */
static uint32_t dendp_step_fine_rows(const dend_engine *e) {
    const dendp_config *c = &e->model->config;
    uint32_t widest = dendp_max_u32(dendp_max_u32(c->n_embd, c->n_ff), c->n_heads * c->head_dim);
    uint32_t n = DENDP_FINE_PRODUCTS / DENDP_LANES / widest / DENDP_TILE_ROWS * DENDP_TILE_ROWS;
    return dendp_min_u32(e->desc.n_batch, dendp_max_u32(n, DENDP_TILE_ROWS));
}

/* -- gather ----------------------------------------------------------------------- */

/* Adds up to `most` waiting rows of a record to the batch, once a batch. Tokens
 * that end the waiting run ask for logits; false when all that it lacks is a
 * logits row, and none can be had. No batch is under way. */
static bool dendp_step_take(dend_engine *e, uint32_t id, uint32_t most, uint32_t *n) {
    dendp_cache *c = &e->cache;
    dendp_record *r = &c->records[id];
    uint32_t pos, end, logits_row = DENDP_NONE;
    dendp_record_skip_ready(c, id);
    pos = r->n_ready;
    while (pos < r->len &&
           dendp_record_slot_ready(c, id, pos, true)) { /* this batch computes it for a sharer */
        pos++;
    }
    if (pos == r->len) { /* nothing left to compute but perhaps the logits of the last token */
        if (!r->want_logits) {
            return true;
        }
        pos = r->len - 1;
    }
    end = pos + dendp_min_u32(r->len - pos, most);
    if (end == r->len && r->want_logits) {
        logits_row = dendp_logits_take(c);
        if (logits_row == DENDP_NONE) {
            end--; /* the last token stays behind until a row is free */
            if (end <= pos) {
                return false;
            }
        }
    }
    for (; pos < end; pos++) {
        dendp_row *row = &e->rows[(*n)++];
        memset(row, 0, sizeof *row);
        row->token = dendp_record_token(c, id, pos);
        row->pos = pos;
        row->record = id;
        row->n_past = pos + 1;
        row->tree_first = DENDP_NONE;
        row->logits_row = pos + 1 == r->len ? logits_row : DENDP_NONE;
        row->write_kv = !dendp_record_slot_ready(c, id, pos, true);
        dendp_record_claim(c, id, pos);
    }
    return true;
}

/* Fills e->rows from the queue; *starved when a record only lacks a logits row. */
static uint32_t dendp_step_gather(dend_engine *e, bool fine, bool *starved) {
    dendp_cache *c = &e->cache;
    uint32_t id, next, n = 0, pass, T = e->desc.n_batch;
    for (pass = 0; pass < 2; pass++) { /* single tokens first, then prompts */
        if (pass == 1 && fine) {
            T = dendp_max_u32(dendp_step_fine_rows(e), dendp_min_u32(T, n));
        }
        for (id = c->first_waiting; id != DENDP_NONE && n < T; id = next) {
            dendp_record *r = &c->records[id];
            bool single = r->len - r->n_ready <= 1;
            next = r->next; /* taking may end the waiting */
            if (single == (pass == 0) && !dendp_step_take(e, id, T - n, &n)) {
                *starved = true;
            }
        }
    }
    return n;
}

/* -- flight ------------------------------------------------------------------------- */

/* First row behind `first` that is of another record. */
static uint32_t dendp_flight_record_end(const dend_engine *e, uint32_t first) {
    uint32_t end = first + 1;
    while (end < e->flight.n && e->rows[end].record == e->rows[first].record) {
        end++;
    }
    return end;
}

/* Begins a batch: the first n > 0 of e->rows, as dendp_step_take has filled them in. */
static void dendp_flight_begin(dend_engine *e, uint32_t n, bool fine) {
    uint32_t r;
    e->flight.n = n;
    e->flight.number++;
    e->flight.ns = 0;
    for (r = 0; r < n; r = dendp_flight_record_end(e, r)) {
        dendp_record_hold(&e->cache, e->rows[r].record);
    }
    dendp_forward_begin(&e->forward, e->rows, n, e->logits, fine);
}

/* True when the batch holds a record that no sequence has any more. */
static bool dendp_flight_has_orphans(const dend_engine *e) {
    uint32_t r;
    for (r = 0; r < e->flight.n; r = dendp_flight_record_end(e, r)) {
        if (dendp_record_orphaned(&e->cache, e->rows[r].record)) {
            return true;
        }
    }
    return false;
}

/* Takes rows out that no sequence can see the results of. The pass stands between two layers. */
static void dendp_flight_drop_orphans(dend_engine *e) {
    dendp_cache *c = &e->cache;
    uint32_t first, end, n = 0;
    for (first = 0; first < e->flight.n; first = end) {
        uint32_t id = e->rows[first].record, r, keep;
        keep = end = dendp_flight_record_end(e, first);
        while (keep > first && dendp_record_orphaned(c, id) &&
               dendp_record_alone_at(c, id, e->rows[keep - 1].pos)) {
            dendp_logits_release(c, e->rows[--keep].logits_row);
        }
        if (keep == first) {
            dendp_record_let_go(c, id);
        }
        for (r = first; r < keep; r++, n++) {
            if (n < r) {
                dendp_forward_move_row(&e->forward, r, n);
            }
        }
    }
    e->flight.n = n;
    dendp_forward_shrink(&e->forward, n);
    dendp_node_reclaim(&c->nodes, e->desc.release_budget);
}

/* With fewer blocks for sliding layers than for the others: gives up those that no later token will see. What
 * cannot be given up now, for want of table nodes, is given up later. */
static void dendp_step_trim(dend_engine *e, uint32_t record) {
    uint32_t n_ready = e->cache.records[record].n_ready, window = e->model->config.window;
    if (e->desc.n_window_blocks < e->desc.n_blocks && window != 0 && n_ready > window) {
        dendp_record_trim(&e->cache, record, 1,
                          n_ready - window); /* the last token's logits may be wanted again */
    }
}

/* The batch is through: everything up to each row's position is ready. */
static void dendp_flight_commit(dend_engine *e) {
    dendp_cache *c = &e->cache;
    uint32_t first, end;
    for (first = 0; first < e->flight.n; first = end) {
        const dendp_row *last;
        dendp_record *r = &c->records[e->rows[first].record];
        end = dendp_flight_record_end(e, first);
        last = &e->rows[end - 1];
        if (last->logits_row != DENDP_NONE) {
            if (r->len == last->pos + 1 && r->logits_row == DENDP_NONE &&
                !dendp_record_orphaned(c, last->record)) {
                r->logits_row = last->logits_row;
                r->want_logits = false;
            } else {
                dendp_logits_release(c, last->logits_row);
            }
        }
        dendp_record_commit(c, last->record, last->pos + 1);
        dendp_prefix_committed(&e->prefixes, last->record);
        dendp_step_trim(e, last->record);
        dendp_record_let_go(c, last->record);
    }
    dendp_node_reclaim(&c->nodes, e->desc.release_budget);
    e->n_rows += e->flight.n;
    e->flight.n = 0;
}

/* Goes on with the batch that is under way. True: it is through, its results are
 * there. False: the deadline has passed, or there was a cancel. */
static bool dendp_flight_go(dend_engine *e, uint64_t deadline_ns) {
    uint64_t start = dendp_now_ns();
    bool orphans = dendp_flight_has_orphans(e);
    bool on = !orphans || dendp_forward_between_layers(&e->forward) ||
              dendp_forward_go(&e->forward, deadline_ns, true);
    if (on && orphans && dendp_forward_between_layers(&e->forward)) {
        dendp_flight_drop_orphans(e);
    }
    on = on && (e->flight.n == 0 || dendp_forward_go(&e->forward, deadline_ns, false));
    if (on) {
        dendp_flight_commit(e);
    }
    e->flight.ns += dendp_now_ns() - start;
    return on;
}

/* -- step ----------------------------------------------------------------------------- */

/* CANCELLED, once, after a dend_cancel; else `status`. */
static dend_status dendp_step_unless_cancelled(dend_engine *e, dend_status status) {
    if (!e->backend.cancelled(e->backend.self)) {
        return status;
    }
    e->backend.cancel(e->backend.self, false);
    return DEND_ERR_CANCELLED;
}

/* Ends the batch that is under way, if there is one.  Returns: OK, CANCELLED. */
static dend_status dendp_step_finish(dend_engine *e) {
    return e->flight.n == 0 || dendp_flight_go(e, 0) ? DEND_OK
                                                     : dendp_step_unless_cancelled(e, DEND_ERR_CANCELLED);
}

/* dend_step until a moment; 0 = no limit. */
static dend_status dendp_step_run(dend_engine *e, uint64_t deadline_ns) {
    dendp_node_reclaim(&e->cache.nodes, e->desc.release_budget);
    for (;;) {
        bool starved = false;
        uint32_t n;
        if (e->backend.cancelled(e->backend.self)) {
            return dendp_step_unless_cancelled(e, DEND_ERR_CANCELLED);
        }
        if (e->flight.n == 0) {
            n = dendp_step_gather(e, deadline_ns != 0, &starved);
            if (n == 0) {
                return starved ? DEND_ERR_NO_LOGITS : DEND_OK;
            }
            dendp_flight_begin(e, n, deadline_ns != 0);
        }
        if (!dendp_flight_go(e, deadline_ns)) {
            return dendp_step_unless_cancelled(e, DEND_PENDING);
        }
        if (deadline_ns && e->cache.first_waiting != DENDP_NONE && dendp_now_ns() >= deadline_ns) {
            return DEND_PENDING;
        }
    }
}

DEND_IMPL dend_status dend_step(dend_engine *engine, uint64_t budget_us) {
    return engine && !engine->cache.closed ? dendp_step_run(engine, dendp_deadline(budget_us))
                                           : DEND_ERR_ARGUMENT;
}

DEND_IMPL void dend_cancel(dend_engine *engine) {
    if (engine) {
        engine->backend.cancel(engine->backend.self, true);
    }
}

DEND_IMPL dend_status dend_next(dend_engine *engine, dend_seq seq, const dend_sample_params *params,
                                int32_t *token) {
    dend_sampled sampled;
    dend_status status;
    if (!engine || !token) {
        return DEND_ERR_ARGUMENT;
    }
    status = dend_seq_want_logits(engine, seq);
    if (status == DEND_OK) {
        status = dend_step(engine, 0);
    }
    if (status == DEND_OK || status == DEND_ERR_NO_LOGITS) { /* which others may lack, and not this one */
        status = dend_sample(engine, seq, params, &sampled);
    }
    if (status != DEND_OK) {
        return status == DEND_ERR_WAITING ? DEND_ERR_NO_LOGITS : status;
    }
    *token = sampled.token;
    return dend_token_is_end(engine->model, sampled.token) ? DEND_END
                                                           : dend_seq_append(engine, seq, token, 1);
}
