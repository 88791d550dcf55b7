/* ==========================================================================
 * >>09.01 SCHEDULER: many requests, one pass of the weights a batch
 * ==========================================================================
 * A pass reads all weights whether it serves one row or forty, so requests
 * that come and go share passes: each batch is put together anew (continuous
 * batching; Orca: Yu et al., OSDI 2022) and mixes single tokens of requests
 * that generate with chunks of the prompts of others (SARATHI: Agrawal et al.,
 * arXiv 2308.16369). A batch goes through three steps.
 *
 *     settle    sample what has logits, append, tell the caller; end requests
 *     gather    rows in order of rank, up to the rows that the time left allows
 *     run       one forward pass, timed
 *
 * ORDER.  rank = priority + batches waited / 16. Higher ranks go first; then
 * single rows before prompts; then, among single rows, whoever has waited
 * longest, and among prompts, whoever came first. A prompt takes no more than
 * its share of a batch in which single rows ask too; when single rows have
 * filled four batches, the fifth has a row for the first prompt of their rank.
 * So nobody starves: if the others' priorities lie at most d above a request's,
 * and n requests are live, it has a row after at most 16 (d + 1) + n batches,
 * unless it lacks a KV block, or sequences without a request hold all logits
 * rows. (By then it outranks each of the others from that one's next row on, and
 * their waiting counts no faster.)
 *
 * TIME.  The cost of a batch of n rows is taken to be pass + n * row. Both come
 * from a least-squares line through past batches, of which each weighs a tenth
 * less than its successor. While all batches were of one size there is no line:
 * then cost is in proportion, and a batch of twice the size is tried, or else a
 * machine on which the second row is almost free would never be found out. A
 * batch that does not end in time stays under way (07.06); the next step begins
 * with the rest of it.
 *
 * RESULTS.  Rows do not see each other (07.04) and sampling is keyed (06.01),
 * so order, time, priorities and company change when a token comes and never
 * which. A request ends with what dend_next alone would have said, or earlier.
 *
 * WANT.  Logits rows go from hand to hand: after settling no request holds one,
 * and where rows are short, no fork that a request shares its state with. A
 * token that finds no KV block is held by its request and tried again before
 * each batch. The quota counts generated tokens, not rows: who computes a shared
 * prefix is chance, and must not be billed.
 *
 * Requests are in a list without order; each batch ranks and heap-sorts them.
 * Between gathering and the end of a pass no callback runs, and every walk that
 * calls back walks a copy of the list and looks again at whom it finds.
 * ======================================================================== */

#ifndef DEND_NO_SERVE

#define DENDP_SERVE_AGING 16   /* batches of waiting that are worth one level of priority */
#define DENDP_SERVE_PATIENCE 4 /* batches without a prompt's row, while one waits */
#define DENDP_SERVE_MOST_PRIORITY 100
#define DENDP_SERVE_FIRST_ROWS 8 /* of a batch with a time limit before anything was timed */

/* Decayed sums over batches of n rows in t nanoseconds. */
typedef struct dendp_pace {
    double w, n, nn, t, nt;
} dendp_pace;

typedef struct dendp_request {
    dend_request desc;
    uint32_t generation, next_free;
    uint32_t live_at; /* its place in live; DENDP_NONE = free or done */
    bool used;
    dend_request_state state;
    dend_status status;
    uint32_t n_prompt, n_generated;
    uint64_t number;      /* of its submission */
    uint64_t last_served; /* batch that served it last, or that was over when it came */
    uint64_t submit_ns, serve_ns, first_ns, last_ns, end_ns;
    dend_stop_state stop; /* of the generated text */
    /* a sampled token that waits for a block, and the sequence that it follows */
    bool holds;
    int32_t held;
    uint32_t held_len;
    uint64_t held_hash, held_stream;
    /* where it stands in the batch that is being gathered */
    int64_t rank;
    bool single; /* one row is all it needs */
} dendp_request;

struct dend_scheduler {
    dend_scheduler_desc desc; /* resolved */
    dend_engine *engine;
    uint64_t bytes;
    dendp_request *requests; /* [n_requests] */
    uint32_t *live;          /* [n_requests] requests that are not done */
    uint32_t *order;         /* [n_requests] the same, sorted */
    uint32_t *owner;         /* [n_seqs] request that drives a sequence slot, or DENDP_NONE */
    uint64_t *stamps;        /* [n_records] batch that has taken rows of a record last */
    uint64_t *quota;         /* [n_users] */
    uint32_t n_live, first_free;
    uint64_t n_submitted, n_batches;
    uint64_t last_prompt; /* batch that took rows of a prompt last, or that was over when none waited */
    dendp_pace pace;
    uint64_t flight; /* number of its batch that is under way (07.06); 0 = there is none */
    uint32_t flight_rows;
    bool running, unsettled; /* requests may still take what its last batch has computed */
};

/* -- create ------------------------------------------------------------------- */

DEND_IMPL dend_status dend_scheduler_resolve(dend_scheduler_desc *desc, dend_error *err) {
    dend_scheduler_desc d;
    dend_status status;
    if (!desc) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "desc must be given", 0);
    }
    d = *desc;
    status = dendp_user_resolve(d.engine, d.canary_begin_ | d.canary_end_, &d.allocator, err);
    if (status != DEND_OK) {
        return status;
    }
    d.n_requests = d.n_requests ? d.n_requests : 64;
    d.n_users = d.n_users ? d.n_users : 1;
    d.prefill_share = d.prefill_share ? d.prefill_share : 50;
    if (d.n_requests > (1u << 24) || d.n_users > (1u << 24) || d.prefill_share > 100) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "a limit of the description is out of range", 0);
    }
    *desc = d;
    return DEND_OK;
}

/* Places a scheduler; with carver->base NULL it only measures. */
static void dendp_serve_carve(dend_scheduler *s, const dend_scheduler_desc *d, dendp_carver *carver) {
    uint32_t n_seqs = d->engine->desc.n_seqs;
    dendp_carve(carver, 1, sizeof *s);
    s->requests = (dendp_request *)dendp_carve(carver, d->n_requests, sizeof *s->requests);
    s->live = (uint32_t *)dendp_carve(carver, d->n_requests, sizeof *s->live);
    s->order = (uint32_t *)dendp_carve(carver, d->n_requests, sizeof *s->order);
    s->owner = (uint32_t *)dendp_carve(carver, n_seqs, sizeof *s->owner);
    s->stamps = (uint64_t *)dendp_carve(carver, d->engine->cache.n_records, sizeof *s->stamps);
    s->quota = (uint64_t *)dendp_carve(carver, d->n_users, sizeof *s->quota);
}

DEND_IMPL dend_status dend_scheduler_plan(const dend_scheduler_desc *desc, uint64_t *n_bytes,
                                          dend_error *err) {
    dend_scheduler_desc d;
    dend_scheduler probe;
    dendp_carver carver;
    dend_status status;
    if (!desc || !n_bytes) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "desc and n_bytes must be given", 0);
    }
    d = *desc;
    status = dend_scheduler_resolve(&d, err);
    if (status != DEND_OK) {
        return status;
    }
    memset(&carver, 0, sizeof carver);
    dendp_serve_carve(&probe, &d, &carver);
    if (carver.overflow) {
        return DENDP_FAIL(err, DEND_ERR_MEMORY, "the scheduler is too large for this system", 0);
    }
    *n_bytes = carver.used;
    return DEND_OK;
}

DEND_IMPL dend_status dend_scheduler_create(const dend_scheduler_desc *desc, dend_scheduler **out,
                                            dend_error *err) {
    dend_scheduler_desc d;
    dend_scheduler *s;
    dendp_carver carver;
    uint64_t bytes = 0;
    uint32_t i;
    dend_status status;
    if (!desc || !out) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "desc and out must be given", 0);
    }
    *out = NULL;
    d = *desc;
    status = dend_scheduler_resolve(&d, err);
    if (status == DEND_OK) {
        status = dend_scheduler_plan(&d, &bytes, err);
    }
    if (status != DEND_OK) {
        return status;
    }
    s = (dend_scheduler *)dendp_alloc(&d.allocator, bytes);
    if (!s) {
        return DENDP_FAIL(err, DEND_ERR_MEMORY, "no memory for the scheduler", 0);
    }
    memset(s, 0, (size_t)bytes);
    memset(&carver, 0, sizeof carver);
    carver.base = (unsigned char *)s;
    dendp_serve_carve(s, &d, &carver);
    s->desc = d;
    s->engine = d.engine;
    s->bytes = bytes;
    for (i = 0; i < d.n_requests; i++) {
        s->requests[i].generation = 1;
        s->requests[i].live_at = DENDP_NONE;
        s->requests[i].next_free = i + 1 < d.n_requests ? i + 1 : DENDP_NONE;
    }
    for (i = 0; i < d.engine->desc.n_seqs; i++) {
        s->owner[i] = DENDP_NONE;
    }
    for (i = 0; i < d.n_users; i++) {
        s->quota[i] = UINT64_MAX;
    }
    *out = s;
    return DEND_OK;
}

DEND_IMPL void dend_scheduler_free(dend_scheduler *scheduler) {
    if (scheduler) {
        dend_allocator allocator = scheduler->desc.allocator;
        dendp_free(&allocator, scheduler, scheduler->bytes);
    }
}

/* -- requests ------------------------------------------------------------------ */

/* The request of a handle, or NULL. */
static dendp_request *dendp_serve_request(const dend_scheduler *s, dend_request_id id) {
    dendp_request *q;
    if (id.slot >= s->desc.n_requests) {
        return NULL;
    }
    q = &s->requests[id.slot];
    return q->used && q->generation == id.generation ? q : NULL;
}

static dend_request_id dendp_serve_id(const dend_scheduler *s, const dendp_request *q) {
    dend_request_id id;
    id.slot = (uint32_t)(q - s->requests);
    id.generation = q->generation;
    return id;
}

/* Ends a live request. Its logits row goes back, or else those who are done would dry out those who are not. */
static void dendp_serve_end(dend_scheduler *s, dendp_request *q, dend_status status) {
    const dendp_slot *slot = dendp_cache_slot(&s->engine->cache, q->desc.seq);
    uint32_t id = (uint32_t)(q - s->requests), last = s->live[--s->n_live];
    s->live[q->live_at] = last;
    s->requests[last].live_at = q->live_at;
    q->live_at = DENDP_NONE;
    q->state = DEND_REQUEST_DONE;
    q->status = status;
    if (!q->stop.stopped) {
        q->stop.n_release = q->stop.n_bytes; /* no stop string will take it back any more */
    }
    q->holds = false;
    q->end_ns = dendp_now_ns();
    if (s->owner[q->desc.seq.slot] == id) {
        s->owner[q->desc.seq.slot] = DENDP_NONE;
    }
    if (slot && s->engine->cache.records[slot->record].logits_row != DENDP_NONE) {
        dend_seq_release_logits(s->engine, q->desc.seq);
    }
}

DEND_IMPL dend_status dend_scheduler_submit(dend_scheduler *scheduler, const dend_request *request,
                                            dend_request_id *out) {
    dend_scheduler *s = scheduler;
    const dendp_slot *slot;
    const dendp_request *other;
    dendp_request *q;
    uint32_t id, generation;
    dend_status checked;
    if (!s || !request || !out || request->user >= s->desc.n_users ||
        request->priority < -DENDP_SERVE_MOST_PRIORITY || request->priority > DENDP_SERVE_MOST_PRIORITY) {
        return DEND_ERR_ARGUMENT;
    }
    checked = dendp_chain_check(&request->params, s->engine->model->config.n_vocab);
#ifndef DEND_NO_SAMPLERS
    if (request->params.rules && request->params.rules->tokenizer != &s->engine->model->tokenizer) {
        checked = DEND_ERR_ARGUMENT;
    }
#endif
    if (checked != DEND_OK) {
        return checked;
    }
    slot = dendp_cache_slot(&s->engine->cache, request->seq);
    if (!slot) {
        return DEND_ERR_STALE;
    }
    id = s->owner[request->seq.slot];
    other = id != DENDP_NONE ? &s->requests[id] : NULL;
    if (s->engine->cache.records[slot->record].len == 0 ||
        (other && other->desc.seq.generation == request->seq.generation)) {
        return DEND_ERR_ARGUMENT;
    }
    id = s->first_free;
    if (id == DENDP_NONE) {
        return DEND_ERR_NO_REQUESTS;
    }
    q = &s->requests[id];
    s->first_free = q->next_free;
    generation = q->generation;
    memset(q, 0, sizeof *q);
    q->generation = generation;
    q->desc = *request;
    q->used = true;
    q->status = DEND_PENDING;
    q->n_prompt = s->engine->cache.records[slot->record].len;
    q->number = ++s->n_submitted;
    q->last_served = s->n_batches;
    q->submit_ns = dendp_now_ns();
    q->live_at = s->n_live;
    s->live[s->n_live++] = id;
    s->owner[request->seq.slot] = id;
    *out = dendp_serve_id(s, q);
    return DEND_OK;
}

DEND_IMPL dend_status dend_scheduler_cancel(dend_scheduler *scheduler, dend_request_id id) {
    dendp_request *q = scheduler ? dendp_serve_request(scheduler, id) : NULL;
    if (!q) {
        return scheduler ? DEND_ERR_STALE : DEND_ERR_ARGUMENT;
    }
    if (q->state != DEND_REQUEST_DONE) {
        dendp_serve_end(scheduler, q, DEND_ERR_CANCELLED);
    }
    return DEND_OK;
}

DEND_IMPL dend_status dend_scheduler_collect(dend_scheduler *scheduler, dend_request_id id) {
    dendp_request *q = scheduler ? dendp_serve_request(scheduler, id) : NULL;
    if (!q) {
        return scheduler ? DEND_ERR_STALE : DEND_ERR_ARGUMENT;
    }
    if (q->state != DEND_REQUEST_DONE) {
        return DEND_ERR_ARGUMENT;
    }
    q->used = false;
    q->generation = q->generation == UINT32_MAX ? 1 : q->generation + 1;
    q->next_free = scheduler->first_free;
    scheduler->first_free = id.slot;
    return DEND_OK;
}

DEND_IMPL dend_status dend_scheduler_request_info(const dend_scheduler *scheduler, dend_request_id id,
                                                  dend_request_info *out) {
    const dendp_request *q;
    uint64_t now;
    if (!scheduler || !out) {
        return DEND_ERR_ARGUMENT;
    }
    q = dendp_serve_request(scheduler, id);
    if (!q) {
        return DEND_ERR_STALE;
    }
    now = q->state == DEND_REQUEST_DONE ? q->end_ns : dendp_now_ns();
    memset(out, 0, sizeof *out);
    out->state = q->state;
    out->status = q->status;
    out->seq = q->desc.seq;
    out->n_prompt = q->n_prompt;
    out->n_generated = q->n_generated;
    out->n_text = q->stop.n_release;
    out->stopped = q->stop.stopped;
    out->queue_us = ((q->serve_ns ? q->serve_ns : now) - q->submit_ns) / 1000u;
    out->total_us = (now - q->submit_ns) / 1000u;
    if (q->n_generated > 0) {
        out->first_token_us = (q->first_ns - q->submit_ns) / 1000u;
        out->first_token_us += out->first_token_us == 0;
    }
    if (q->n_generated > 1 && q->last_ns > q->first_ns) {
        out->tokens_per_s = (float)((double)(q->n_generated - 1) * 1e9 / (double)(q->last_ns - q->first_ns));
    }
    return DEND_OK;
}

DEND_IMPL dend_status dend_scheduler_set_quota(dend_scheduler *scheduler, uint32_t user, uint64_t n_tokens) {
    if (!scheduler || user >= scheduler->desc.n_users) {
        return DEND_ERR_ARGUMENT;
    }
    scheduler->quota[user] = n_tokens;
    return DEND_OK;
}

DEND_IMPL uint64_t dend_scheduler_quota(const dend_scheduler *scheduler, uint32_t user) {
    return scheduler && user < scheduler->desc.n_users ? scheduler->quota[user] : 0;
}

/* -- time ------------------------------------------------------------------------ */

/* A batch of n rows has taken ns nanoseconds. */
static void dendp_pace_learn(dendp_pace *p, uint32_t n, uint64_t ns) {
    double keep = 0.9, x = (double)n, t = (double)ns;
    p->w = p->w * keep + 1.0;
    p->n = p->n * keep + x;
    p->nn = p->nn * keep + x * x;
    p->t = p->t * keep + t;
    p->nt = p->nt * keep + x * t;
}

/* Rows of a batch that should be over in ns nanoseconds, 0 ... most. */
static uint32_t dendp_pace_rows(const dendp_pace *p, uint64_t ns, uint32_t most) {
    double det = p->w * p->nn - p->n * p->n, row = 0.0, pass = 0.0, rows;
    if (!(p->w > 0.0)) {
        return dendp_min_u32(most, DENDP_SERVE_FIRST_ROWS);
    }
    if (det > 1e-3 * p->w * p->nn) {
        row = (p->w * p->nt - p->n * p->t) / det;
        pass = (p->t - row * p->n) / p->w;
    }
    if (row > 0.0 && pass >= 0.0) {
        rows = ((double)ns - pass) / row;
    } else if (p->t > 0.0) { /* no line, or a senseless one */
        double twice = (double)ns * p->w >= p->t ? 2.0 * p->n / p->w : 0.0;
        rows = (double)ns * p->n / p->t;
        rows = rows > twice ? rows : twice;
    } else {
        rows = (double)most; /* too fast for the clock */
    }
    return rows < 1.0 ? 0 : rows < (double)most ? (uint32_t)rows : most;
}

/* -- order ----------------------------------------------------------------------- */

/* True when request a goes before request b. A strict total order. */
static bool dendp_serve_before(const dend_scheduler *s, uint32_t a, uint32_t b) {
    const dendp_request *x = &s->requests[a], *y = &s->requests[b];
    if (x->rank != y->rank) {
        return x->rank > y->rank;
    }
    if (x->single != y->single) {
        return x->single;
    }
    if (x->single && x->last_served != y->last_served) {
        return x->last_served < y->last_served;
    }
    return x->number < y->number;
}

/* Sinks order[i] in a heap of n whose first goes after all others. */
static void dendp_serve_sink(dend_scheduler *s, uint32_t n, uint32_t i) {
    uint32_t id = s->order[i];
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= n) {
            break;
        }
        if (child + 1 < n && dendp_serve_before(s, s->order[child], s->order[child + 1])) {
            child++;
        }
        if (!dendp_serve_before(s, id, s->order[child])) {
            break;
        }
        s->order[i] = s->order[child];
        i = child;
    }
    s->order[i] = id;
}

/* Fills order with the live requests, first one first; returns their number. */
static uint32_t dendp_serve_sort(dend_scheduler *s) {
    const dendp_cache *c = &s->engine->cache;
    uint32_t i, n = s->n_live;
    for (i = 0; i < n; i++) {
        dendp_request *q = &s->requests[s->live[i]];
        const dendp_slot *slot = dendp_cache_slot(c, q->desc.seq);
        const dendp_record *r = slot ? &c->records[slot->record] : NULL;
        q->rank = q->desc.priority + (int64_t)((s->n_batches - q->last_served) / DENDP_SERVE_AGING);
        q->single = !r || r->len - r->n_ready <= 1;
        s->order[i] = s->live[i];
    }
    for (i = n / 2; i-- > 0;) {
        dendp_serve_sink(s, n, i);
    }
    for (i = n; i-- > 1;) {
        uint32_t last = s->order[0];
        s->order[0] = s->order[i];
        s->order[i] = last;
        dendp_serve_sink(s, i, 0);
    }
    return n;
}

/* -- settle ---------------------------------------------------------------------- */

/* True while the token that q holds is still the next of its sequence. */
static bool dendp_serve_holds(const dendp_request *q, const dendp_slot *slot, const dendp_record *r) {
    return q->holds && q->held_len == r->len && q->held_hash == r->hash && q->held_stream == slot->stream;
}

/* Adds a token to the generated text, as far as stop strings have let it come. */
static void dendp_serve_text(const dend_scheduler *s, dendp_request *q, int32_t token) {
    size_t n;
    const char *bytes = dend_token_bytes(s->engine->model, token, &n);
#ifndef DEND_NO_SAMPLERS
    if (q->desc.params.rules) {
        (void)dend_stop_feed(q->desc.params.rules, &q->stop, bytes, n, DEND_STOP_UTF8);
        return;
    }
#endif
    (void)bytes;
    q->stop.n_bytes += n;
    q->stop.n_release = q->stop.n_bytes;
}

/* The next token of a request, if its logits are there: sampled and appended.
 * True when there is one to tell the caller of: q->held. */
static bool dendp_serve_advance(dend_scheduler *s, dendp_request *q, const dendp_slot *slot) {
    dend_engine *e = s->engine;
    const dendp_record *r = &e->cache.records[slot->record];
    int32_t token = q->held;
    uint64_t number = q->number;
    dend_status status;
    if (!dendp_serve_holds(q, slot, r)) {
        dend_sampled sampled;
        q->holds = false;
        if (r->n_ready < r->len || r->logits_row == DENDP_NONE) {
            return false;
        }
        status = dend_sample(e, q->desc.seq, &q->desc.params, &sampled);
        if (status == DEND_OK && dend_token_is_end(e->model, sampled.token)) {
            status = DEND_END;
        }
        if (status != DEND_OK) {
            dendp_serve_end(s, q, status);
            return false;
        }
        token = sampled.token;
    }
    q->held = token;
    q->held_len = r->len;
    q->held_hash = r->hash;
    q->held_stream = slot->stream;
    status = dend_seq_append(e, q->desc.seq, &token, 1);
    if (q->number != number || q->live_at == DENDP_NONE) { /* on_context_full has ended it */
        return false;
    }
    q->holds = status == DEND_ERR_NO_BLOCKS;
    if (q->holds) {
        dend_seq_release_logits(e, q->desc.seq);
        return false;
    }
    if (status != DEND_OK) {
        dendp_serve_end(s, q, status);
        return false;
    }
    dendp_serve_text(s, q, token);
    q->state = DEND_REQUEST_DECODE;
    q->last_ns = dendp_now_ns();
    if (q->n_generated++ == 0) {
        q->first_ns = q->last_ns;
        q->serve_ns = q->serve_ns ? q->serve_ns : q->last_ns;
    }
    if (s->quota[q->desc.user] != UINT64_MAX) {
        s->quota[q->desc.user]--;
    }
    return true;
}

/* Tells the caller of the token that q has got. The caller may do anything meanwhile. */
static void dendp_serve_tell(dend_scheduler *s, dendp_request *q) {
    uint64_t number = q->number;
    bool go_on = !q->desc.on_token || q->desc.on_token(q->desc.user_data, dendp_serve_id(s, q), q->held);
    if (q->number == number && q->live_at != DENDP_NONE && /* it may be gone, and another in its place */
        (!go_on || q->stop.stopped || q->n_generated == q->desc.max_tokens)) {
        dendp_serve_end(s, q, q->stop.stopped ? DEND_END : DEND_OK);
    }
}

/* Takes the logits row back from a record that the last batch computed for a
 * request and that others still name, should rows be short: they never asked
 * for it, and a trunk whose forks are served must not dry out the pool. */
static void dendp_serve_take_back(dend_scheduler *s, uint32_t record) {
    dendp_cache *c = &s->engine->cache;
    dendp_record *r = &c->records[record];
    if (s->stamps[record] == s->n_batches && r->count > 0 && r->logits_row != DENDP_NONE &&
        c->n_free_logits == 0) {
        dendp_logits_drop(c, r);
        r->want_logits = true;
        dendp_queue_update(c, record);
    }
}

/* Ends what has to end, and takes every other request as far as it goes
 * without a batch. False when the time is up before all of that: then again, and
 * who has got a token is passed over. after_batch: a batch is the last thing
 * that has run. */
static bool dendp_serve_settle(dend_scheduler *s, bool after_batch, uint64_t deadline_ns) {
    const dendp_cache *c = &s->engine->cache;
    uint32_t i, n = dendp_serve_sort(s);
    uint64_t now = dendp_now_ns();
    for (i = 0; i < n; i++) {
        dendp_request *q = &s->requests[s->order[i]];
        const dendp_slot *slot = dendp_cache_slot(c, q->desc.seq);
        if (q->live_at == DENDP_NONE) {
            continue;
        }
        if (!slot) {
            dendp_serve_end(s, q, DEND_ERR_STALE);
        } else if (q->desc.deadline_us && now > q->submit_ns &&
                   (now - q->submit_ns) / 1000u >= q->desc.deadline_us) {
            dendp_serve_end(s, q, DEND_ERR_DEADLINE);
        } else if (s->quota[q->desc.user] == 0) {
            dendp_serve_end(s, q, DEND_ERR_QUOTA);
        } else if (c->records[slot->record].len == 0) {
            dendp_serve_end(s, q, DEND_ERR_NO_LOGITS);
        } else {
            uint32_t record = slot->record;
            bool tell = dendp_serve_advance(s, q, slot);
            if (after_batch) { /* before the caller can give the record to somebody else */
                dendp_serve_take_back(s, record);
            }
            if (tell) {
                dendp_serve_tell(s, q);
                if (deadline_ns && i + 1 < n && dendp_now_ns() >= deadline_ns) {
                    return false;
                }
            }
        }
    }
    return true;
}

/* -- gather and run ---------------------------------------------------------------- */

/* What gathering met. */
typedef struct dendp_serve_batch {
    uint32_t n;       /* rows */
    bool starved;     /* a request only lacks a logits row */
    bool unsettled;   /* a callback has done something that settling has to see */
    uint32_t n_order; /* of order */
} dendp_serve_batch;

static void dendp_serve_served(dend_scheduler *s, dendp_request *q) {
    q->last_served = s->n_batches + 1;
    if (q->state == DEND_REQUEST_QUEUED) {
        q->state = DEND_REQUEST_PREFILL;
        q->serve_ns = dendp_now_ns();
    }
}

/* Fills the engine's rows with up to T rows of live requests. */
static void dendp_serve_gather(dend_scheduler *s, uint32_t T, dendp_serve_batch *b) {
    dend_engine *e = s->engine;
    dendp_cache *c = &e->cache;
    const dendp_request *prompt = NULL;       /* the first one */
    uint32_t i, kept, n_single = 0, room = T; /* rows kept for it; rows that prompts may take */
    memset(b, 0, sizeof *b);
    b->n_order = dendp_serve_sort(s);
    for (i = 0; i < b->n_order; i++) {
        const dendp_request *q = &s->requests[s->order[i]];
        n_single += q->single && !q->holds;
        if (!q->single && !q->holds && !prompt) {
            prompt = q;
        }
    }
    if (n_single > 0) {
        room = dendp_max_u32(1, (uint32_t)((uint64_t)T * s->desc.prefill_share / 100));
    }
    if (!prompt) {
        s->last_prompt = s->n_batches;
    }
    kept = prompt && s->n_batches - s->last_prompt >= DENDP_SERVE_PATIENCE ? 1 : 0;
    for (i = 0; i < b->n_order && b->n < T; i++) {
        dendp_request *q = &s->requests[s->order[i]];
        const dendp_slot *slot = dendp_cache_slot(c, q->desc.seq);
        dendp_record *r = slot ? &c->records[slot->record] : NULL;
        uint32_t before = b->n, most = q->single ? 1 : dendp_min_u32(room, T - b->n);
        if (!slot || r->len == 0) {
            b->unsettled = true;
            continue;
        }
        if (dendp_serve_holds(q, slot, r)) {
            continue;
        }
        if (s->stamps[slot->record] == s->n_batches + 1) { /* a fork that shares even its record */
            dendp_serve_served(s, q);
            continue;
        }
        if (r->n_ready == r->len && r->logits_row != DENDP_NONE) {
            b->unsettled = true;
            continue;
        }
        if (most == 0 || (q->single && kept && q->rank == prompt->rank && b->n + kept >= T)) {
            continue;
        }
        r->want_logits = true;
        dendp_queue_update(c, slot->record);
        if (!dendp_step_take(e, slot->record, most, &b->n)) {
            b->starved = true;
        }
        if (b->n > before) {
            s->stamps[slot->record] = s->n_batches + 1;
            dendp_serve_served(s, q);
            if (!q->single) {
                room -= b->n - before;
                kept = 0;
                s->last_prompt = s->n_batches + 1;
            }
        }
    }
}

/* Goes on with the batch that is under way, whoever began it.
 * Returns: PENDING when it is through; OK when the time is up; CANCELLED. */
static dend_status dendp_serve_fly(dend_scheduler *s, uint64_t deadline_ns) {
    dend_engine *e = s->engine;
    if (e->flight.n > 0 && !dendp_flight_go(e, deadline_ns)) {
        return dendp_step_unless_cancelled(e, DEND_OK);
    }
    if (s->flight) { /* its own, if somebody's dend_step has not ended it */
        if (s->flight == e->flight.number) {
            dendp_pace_learn(&s->pace, s->flight_rows, e->flight.ns);
        }
        s->flight = 0;
        s->n_batches++;
    }
    return DEND_PENDING;
}

/* One batch of up to T rows. PENDING: go on; all else ends the step. */
static dend_status dendp_serve_turn(dend_scheduler *s, uint32_t T, uint64_t deadline_ns) {
    dendp_serve_batch b;
    if (s->engine->flight.n > 0) { /* that a callback's dend_step has left */
        return dendp_serve_fly(s, deadline_ns);
    }
    dendp_serve_gather(s, T, &b);
    if (b.n > 0) {
        dendp_flight_begin(s->engine, b.n, deadline_ns != 0);
        s->flight = s->engine->flight.number;
        s->flight_rows = b.n;
        return dendp_serve_fly(s, deadline_ns);
    }
    if (b.unsettled) {
        return DEND_PENDING;
    }
    if (b.starved) {
        return DEND_ERR_NO_LOGITS;
    }
    dendp_serve_end(s, &s->requests[s->order[b.n_order - 1]], DEND_ERR_NO_BLOCKS); /* all wait for a block */
    return DEND_ERR_NO_BLOCKS;
}

/* Rows of the next batch. One that cannot end in time runs over several steps,
 * and takes everybody's single row and a few of a prompt: passes of one row
 * each would waste most of their time. */
static uint32_t dendp_serve_rows(const dend_scheduler *s, uint64_t deadline_ns) {
    uint32_t most = s->engine->desc.n_batch, n;
    uint64_t now = deadline_ns ? dendp_now_ns() : 0;
    if (!deadline_ns) {
        return most;
    }
    n = now < deadline_ns ? dendp_pace_rows(&s->pace, deadline_ns - now, most) : 0;
    n = dendp_min_u32(n, dendp_step_fine_rows(s->engine));
    return dendp_min_u32(most, dendp_max_u32(n, s->n_live + DENDP_SERVE_FIRST_ROWS));
}

/* dend_scheduler_step until a moment; 0 = no limit. */
static dend_status dendp_serve_step(dend_scheduler *s, uint64_t deadline_ns) {
    uint64_t settled = s->n_batches;
    bool worked = s->engine->flight.n > 0 || s->unsettled;
    dend_status status = dendp_step_unless_cancelled(s->engine, DEND_PENDING);
    if (status != DEND_PENDING) {
        return status;
    }
    s->running = true;
    dendp_node_reclaim(&s->engine->cache.nodes, s->engine->desc.release_budget);
    status = dendp_serve_fly(s, deadline_ns);
    while (status == DEND_PENDING) {
        s->unsettled = !dendp_serve_settle(s, s->unsettled || s->n_batches != settled, deadline_ns);
        settled = s->n_batches;
        if (s->n_live == 0 || s->unsettled || (worked && deadline_ns && dendp_now_ns() >= deadline_ns)) {
            break;
        }
        status = dendp_serve_turn(s, dendp_serve_rows(s, deadline_ns), deadline_ns);
        worked = true;
    }
    s->running = false;
    if (status == DEND_ERR_CANCELLED) {
        return status;
    }
    return s->n_live == 0                                      ? DEND_OK
           : status == DEND_ERR_NO_BLOCKS || status == DEND_OK ? DEND_PENDING
                                                               : status;
}

DEND_IMPL dend_status dend_scheduler_step(dend_scheduler *scheduler, uint64_t budget_us) {
    return !scheduler || scheduler->running ? DEND_ERR_ARGUMENT
                                            : dendp_serve_step(scheduler, dendp_deadline(budget_us));
}

#endif /* DEND_NO_SERVE */
