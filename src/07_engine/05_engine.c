/* ==========================================================================
 * >>07.05 ENGINE: create, plan, step, and the public calls
 * ==========================================================================
 * An engine is one block of memory: cache, scratch, logits, threads. Creating
 * it is the last allocation; dend_plan runs the same layout without a base and
 * so predicts the bytes exactly.
 *
 * A STEP gathers waiting tokens into batches until none is left or the time is
 * up. The queue is served round robin, in the order in which sequences began
 * to wait: first one token each for those that wait for just one (a branch
 * that decodes must not stand behind a long prompt), then prompt tokens until
 * the batch is full. A batch is committed as a whole when it is through.
 *
 * Every public call checks its arguments and handles, then does all that can
 * fail, then changes the engine.
 * ======================================================================== */

struct dend_engine {
    dend_engine_desc desc; /* resolved */
    const dend_model *model;
    uint64_t bytes; /* of this block */
    dendp_cache cache;
    dendp_prefix_tree prefixes;
    dendp_snapshot snapshot;
    dendp_pool pool;
    dendp_cpu cpu;
    dendp_backend backend;
    dendp_forward forward;
    dendp_overlay overlay;
    dendp_row *rows;      /* [max(n_batch, n_tree_rows)] */
    float *logits;        /* [n_logits][V] */
    uint32_t *sample_ids; /* [V] scratch of the sampler */
    int32_t *text_tokens; /* [n_ctx] scratch of append_text */
    uint64_t n_rows;      /* rows computed since creation */
    /* the last dend_tree_eval */
    float *tree_logits; /* [n_tree_rows][V] */
    uint32_t n_trees;
    struct dendp_tree_state *trees; /* [n_tree_rows] */
    dendp_row *tree_rows;           /* [n_tree_rows] */
};

/* One evaluated token tree. */
typedef struct dendp_tree_state {
    dend_seq seq;
    uint32_t record, len; /* of the sequence when it was evaluated */
    uint64_t hash;
    uint32_t first, n_rows; /* its rows in tree_rows and the overlay */
    bool accepted;
} dendp_tree_state;

/* -- description -------------------------------------------------------------- */

DEND_IMPL dend_status dend_engine_resolve(dend_engine_desc *desc, dend_error *err) {
    const dendp_config *c;
    dend_engine_desc copy, *d = &copy; /* what is refused stays as it was */
    uint64_t blocks;
    dend_status status;
    if (!desc) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "desc must be given", 0);
    }
    copy = *desc;
    if (d->canary_begin_ || d->canary_end_) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "canary set: the description is not initialised", 0);
    }
    if (!d->model || !d->model->has_weights) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "a model with weights must be given", 0);
    }
    c = &d->model->config;
    status = dendp_allocator_resolve(&d->allocator, err);
    if (status != DEND_OK) {
        return status;
    }
    d->n_ctx = d->n_ctx ? d->n_ctx : dendp_min_u32(4096, dendp_max_u32(16, c->n_ctx_train));
    d->n_seqs = d->n_seqs ? d->n_seqs : 64;
    d->block_tokens = d->block_tokens ? d->block_tokens : DENDP_TILE;
    d->n_batch = d->n_batch ? d->n_batch : 256;
    d->n_logits = d->n_logits ? d->n_logits : dendp_min_u32(d->n_seqs, 64);
    d->n_tree_rows = d->n_tree_rows ? d->n_tree_rows : 64;
    d->n_threads = d->n_threads ? d->n_threads : dendp_cpu_count();
    d->kv_type = d->kv_type == DEND_KV_DEFAULT ? DEND_KV_F16 : d->kv_type;
    d->release_budget = d->release_budget ? d->release_budget : 64;
    if (d->isa == DEND_ISA_DEFAULT) {
        d->isa = dendp_kernels_get(DEND_ISA_DEFAULT)->isa;
    }
    if (d->n_ctx > (1u << 24) || d->n_seqs > (1u << 24) || d->n_batch > 65536 ||
        d->n_threads > DENDP_MAX_THREADS || d->n_logits > (1u << 20) || d->n_prefixes > (1u << 20)) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "a limit of the description is out of range", 0);
    }
    if (d->n_tree_rows > DENDP_MAX_TREE) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "n_tree_rows is above 256", 0);
    }
    if (d->block_tokens % DENDP_TILE != 0 || d->block_tokens > 4096) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "block_tokens is no multiple of 16, or above 4096", 0);
    }
    if (d->kv_type < DEND_KV_F32 || d->kv_type > DEND_KV_Q8_0) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "unknown kv_type", 0);
    }
    if (d->isa < DEND_ISA_SCALAR || d->isa > DEND_ISA_NEON) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "unknown isa", 0);
    }
    if (!dendp_kernels_get(d->isa)) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "this processor or build lacks the isa asked for", 0);
    }
    if (c->head_dim > DENDP_MAX_HEAD_DIM) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "heads are wider than 512", 0);
    }
    if (d->n_blocks == 0) {
        blocks = 2 * (uint64_t)dendp_div_up(d->n_ctx, d->block_tokens) + d->n_seqs;
        d->n_blocks = (uint32_t)blocks;
    }
    if (d->n_blocks > (1u << 28)) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "n_blocks is out of range", 0);
    }
    *desc = copy;
    return DEND_OK;
}

/* -- layout ------------------------------------------------------------------- */

/* Places an engine; with carver->base NULL it only measures. */
static void dendp_engine_carve(dend_engine *e, const dend_engine_desc *d, dendp_carver *carver,
                               dend_plan_info *plan) {
    const dendp_config *c = &d->model->config;
    uint32_t *layer_group, *layer_index, i, max_segments = dendp_div_up(d->n_ctx, DENDP_SEGMENT);
    uint64_t before, act, kv_bytes, widest, batch = dendp_max_u32(d->n_batch, d->n_tree_rows), V = c->n_vocab;
    dendp_group_desc *groups = (dendp_group_desc *)dendp_carve(carver, 1, sizeof *groups);
    dendp_group_desc group;
    dendp_cache_desc cd;
    memset(plan, 0, sizeof *plan);
    memset(&group, 0, sizeof group);
    memset(&cd, 0, sizeof cd);
    group.n_layers = c->n_layers;
    group.n_kv_heads = c->n_kv_heads;
    group.head_dim = c->head_dim;
    cd.n_groups = 1;
    cd.groups = &group;
    cd.n_blocks = d->n_blocks;
    cd.block_tokens = d->block_tokens;
    cd.n_seqs = d->n_seqs;
    cd.n_ctx = d->n_ctx;
    cd.n_logits = d->n_logits;
    cd.n_prefixes = d->n_prefixes;
    cd.release_budget = d->release_budget;
    cd.seed = d->seed;
    dendp_codec_get(d->kv_type, d->isa, &cd.codec);
    before = carver->used;
    dendp_cache_carve(&e->cache, &cd, carver, &kv_bytes);
    dendp_prefix_carve(&e->prefixes, &cd, carver);
    if (groups) { /* the description points at memory of its own from now on */
        *groups = group;
        e->cache.desc.groups = groups;
    }
    plan->kv_bytes = kv_bytes;
    plan->table_bytes = carver->used - before - kv_bytes;
    plan->block_bytes = (uint64_t)c->n_layers * c->n_kv_heads * (d->block_tokens / DENDP_TILE) *
                        (cd.codec.k_bytes(c->head_dim) + cd.codec.v_bytes(c->head_dim));
    plan->n_blocks = d->n_blocks;
    plan->block_tokens = d->block_tokens;

    dendp_scratch_carve(&e->forward.scratch, c, (uint32_t)batch, carver);
    layer_group = (uint32_t *)dendp_carve(carver, c->n_layers, sizeof(uint32_t));
    layer_index = (uint32_t *)dendp_carve(carver, c->n_layers, sizeof(uint32_t));
    for (i = 0; layer_group && i < c->n_layers; i++) {
        layer_group[i] = 0;
        layer_index[i] = i;
    }
    e->forward.layer_group = layer_group;
    e->forward.layer_index = layer_index;
    widest = dendp_max_u32(dendp_max_u32(c->n_embd, c->n_ff), c->n_heads * c->head_dim);
    act = dendp_act_bytes((uint32_t)batch, (uint32_t)widest);
    e->cpu.act = dendp_carve(carver, act, 1);
    if (d->model->file_layout) { /* as many as tasks can run at once; more than that gains nothing */
        uint32_t workers = d->jobs.run ? d->jobs.n_workers : 0;
        e->cpu.n_buffers = dendp_min_u32(DENDP_MAX_THREADS, dendp_max_u32(d->n_threads, workers));
        e->cpu.buffer_bytes = DENDP_ALIGN + d->model->panel_bytes;
        e->cpu.buffers = (unsigned char *)dendp_carve(carver, e->cpu.n_buffers, e->cpu.buffer_bytes);
        for (i = 0; e->cpu.buffers && i < e->cpu.n_buffers; i++) {
            memset(e->cpu.buffers + i * e->cpu.buffer_bytes, 0, DENDP_ALIGN);
        }
    }
    /* Partials for a whole batch of short rows, and for a few rows of full length. */
    e->cpu.cap_segments = dendp_max_u32((uint32_t)batch, dendp_min_u32(8, (uint32_t)batch) * max_segments);
    e->cpu.partials = (float *)dendp_carve(carver, (uint64_t)e->cpu.cap_segments * c->n_heads,
                                           (c->head_dim + 2) * sizeof(float));
    e->cpu.first_segment = (uint32_t *)dendp_carve(carver, batch + 1, sizeof(uint32_t));
    e->overlay.data = (unsigned char *)dendp_carve(
        carver,
        dendp_overlay_layout(&e->overlay, cd.codec.k_bytes(c->head_dim) + cd.codec.v_bytes(c->head_dim),
                             c->n_kv_heads, c->n_layers, d->n_tree_rows),
        1);
    e->rows = (dendp_row *)dendp_carve(carver, batch, sizeof *e->rows);
    e->logits = (float *)dendp_carve(carver, d->n_logits * V, sizeof(float));
    e->sample_ids = (uint32_t *)dendp_carve(carver, V, sizeof(uint32_t));
    e->text_tokens = (int32_t *)dendp_carve(carver, d->n_ctx, sizeof(int32_t));
    dendp_snapshot_carve(&e->snapshot, &e->cache, carver);
    e->tree_logits = (float *)dendp_carve(carver, d->n_tree_rows * V, sizeof(float));
    e->trees = (dendp_tree_state *)dendp_carve(carver, d->n_tree_rows, sizeof *e->trees);
    e->tree_rows = (dendp_row *)dendp_carve(carver, d->n_tree_rows, sizeof *e->tree_rows);
    plan->weight_bytes = dendp_model_bytes(d->model);
    plan->total_bytes = carver->used;
    plan->scratch_bytes = plan->total_bytes - plan->kv_bytes - plan->table_bytes;
}

/* Measures an engine of a resolved description. */
static dend_status dendp_engine_measure(const dend_engine_desc *d, dend_plan_info *out, dend_error *err) {
    dend_engine probe; /* a few kilobytes; asking the allocator would be an allocation that no plan counts */
    dend_plan_info plan;
    dendp_carver carver;
    memset(&probe, 0, sizeof probe);
    memset(&carver, 0, sizeof carver);
    dendp_carve(&carver, 1, sizeof probe);
    dendp_engine_carve(&probe, d, &carver, &plan);
    if (carver.overflow) {
        return DENDP_FAIL(err, DEND_ERR_MEMORY, "the engine is too large for this system", 0);
    }
    *out = plan;
    return DEND_OK;
}

DEND_IMPL dend_status dend_plan(const dend_engine_desc *desc, dend_plan_info *out, dend_error *err) {
    dend_engine_desc d;
    dend_status status;
    if (!desc || !out) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "desc and out must be given", 0);
    }
    d = *desc;
    status = dend_engine_resolve(&d, err);
    return status == DEND_OK ? dendp_engine_measure(&d, out, err) : status;
}

DEND_IMPL void dend_engine_free(dend_engine *engine) {
    if (engine) {
        dend_allocator allocator = engine->desc.allocator;
        dendp_pool_close(&engine->pool);
        dendp_free(&allocator, engine, engine->bytes);
    }
}

DEND_IMPL dend_status dend_engine_create(const dend_engine_desc *desc, dend_engine **out, dend_error *err) {
    dend_engine_desc d;
    dend_plan_info plan;
    dendp_carver carver;
    dend_engine *e;
    dend_status status;
    if (!desc || !out) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "desc and out must be given", 0);
    }
    *out = NULL;
    d = *desc;
    status = dend_engine_resolve(&d, err);
    if (status == DEND_OK) {
        status = dendp_engine_measure(&d, &plan, err);
    }
    if (status != DEND_OK) {
        return status;
    }
    e = (dend_engine *)dendp_alloc(&d.allocator, plan.total_bytes);
    if (!e) {
        return DENDP_FAIL(err, DEND_ERR_MEMORY, "no memory for the engine", 0);
    }
    memset(e, 0, sizeof *e);
    status = dendp_pool_open(&e->pool, d.n_threads, &d.jobs, err);
    if (status != DEND_OK) {
        dendp_free(&d.allocator, e, plan.total_bytes);
        return status;
    }
    memset(&carver, 0, sizeof carver);
    carver.base = (unsigned char *)e;
    dendp_carve(&carver, 1, sizeof *e);
    dendp_engine_carve(e, &d, &carver, &plan);
    e->desc = d;
    e->model = d.model;
    e->bytes = plan.total_bytes;
    dendp_cache_reset(&e->cache);
    dendp_prefix_open(&e->prefixes, &e->cache);
    e->snapshot.cache = &e->cache;
    e->cpu.pool = &e->pool;
    e->cpu.kernels = dendp_kernels_get(d.isa);
    e->cpu.ops = dendp_vector_ops_get(d.isa);
    dendp_cpu_backend(&e->cpu, &e->backend);
    e->forward.model = d.model;
    e->forward.backend = &e->backend;
    e->forward.cache = &e->cache;
    e->forward.overlay = &e->overlay;
    dendp_rope_freqs(d.model, e->forward.scratch.freqs);
    *out = e;
    return DEND_OK;
}

/* What all descriptions begin with that are of an engine's user: canaries, the engine, and an allocator, which is the
 * engine's unless one is given. */
static dend_status dendp_user_resolve(const dend_engine *engine, uint32_t canaries, dend_allocator *allocator,
                                      dend_error *err) {
    if (canaries) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "canary set: the description is not initialised", 0);
    }
    if (!engine) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "an engine must be given", 0);
    }
    if (!allocator->alloc && !allocator->free) {
        *allocator = engine->desc.allocator;
    }
    return dendp_allocator_resolve(allocator, err);
}

DEND_IMPL void dend_engine_get_stats(const dend_engine *engine, dend_engine_stats *out) {
    const dendp_cache *c;
    uint32_t r;
    if (!out) {
        return;
    }
    memset(out, 0, sizeof *out);
    if (!engine) {
        return;
    }
    c = &engine->cache;
    out->n_blocks = c->pools[0].n_blocks;
    out->n_blocks_free = c->pools[0].n_free;
    out->n_seqs = c->desc.n_seqs;
    out->n_seqs_free = c->n_free_slots;
    out->n_logits = c->desc.n_logits;
    out->n_logits_free = c->n_free_logits;
    for (r = c->first_waiting; r != DENDP_NONE; r = c->records[r].next) {
        out->n_waiting += c->records[r].len - c->records[r].n_ready;
    }
    out->n_forks = c->n_forks;
    out->n_rows = engine->n_rows;
    out->n_block_copies = c->n_block_copies;
    out->isa = engine->cpu.kernels->name;
    out->n_threads = engine->pool.n_threads;
    out->n_prefixes = engine->prefixes.n_entries;
    out->n_prefixes_free = engine->prefixes.n_free;
    out->n_prefixes_pinned = engine->prefixes.n_pinned;
    out->n_prefix_blocks = (uint32_t)(engine->prefixes.n_tokens / c->desc.block_tokens);
    out->n_prefix_lookups = engine->prefixes.n_lookups;
    out->n_prefix_hits = engine->prefixes.n_hits;
    out->n_prefix_tokens = engine->prefixes.n_reused;
    out->n_prefix_evictions = engine->prefixes.n_evictions;
}

/* -- sequences ------------------------------------------------------------------ */

DEND_IMPL dend_status dend_seq_create(dend_engine *engine, dend_seq *out) {
    return engine && out ? dendp_cache_seq_create(&engine->cache, out) : DEND_ERR_ARGUMENT;
}

DEND_IMPL dend_status dend_seq_fork(dend_engine *engine, dend_seq parent, uint32_t flags, dend_seq *child) {
    return engine && child ? dendp_cache_seq_fork(&engine->cache, parent, flags, child) : DEND_ERR_ARGUMENT;
}

DEND_IMPL dend_status dend_seq_drop(dend_engine *engine, dend_seq seq) {
    const dendp_slot *slot = engine ? dendp_cache_slot(&engine->cache, seq) : NULL;
    if (!slot) {
        return engine ? DEND_ERR_STALE : DEND_ERR_ARGUMENT;
    }
    dendp_prefix_dropping(&engine->prefixes, slot);
    return dendp_cache_seq_drop(&engine->cache, seq);
}

DEND_IMPL dend_status dend_seq_append(dend_engine *engine, dend_seq seq, const int32_t *tokens, size_t n) {
    dendp_slot *slot;
    dend_status status;
    bool empty;
    uint32_t reused;
    size_t i;
    if (!engine || (!tokens && n)) {
        return DEND_ERR_ARGUMENT;
    }
    slot = dendp_cache_slot(&engine->cache, seq);
    if (!slot) {
        return DEND_ERR_STALE;
    }
    for (i = 0; i < n; i++) {
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= engine->model->config.n_vocab) {
            return DEND_ERR_TOKEN;
        }
    }
    empty = engine->cache.records[slot->record].len == 0;
    if (empty) {
        dendp_prefix_adopt(&engine->prefixes, slot, tokens, n);
    }
    reused = empty ? engine->cache.records[slot->record].len : 0;
    status = dendp_cache_append(&engine->cache, slot, reused ? tokens + reused : tokens, n - reused);
    if (status != DEND_OK && empty) {
        dendp_prefix_return(&engine->prefixes, slot);
    }
    if (status == DEND_OK && slot->reuse && n > 1) {
        engine->cache.records[slot->record].list = true; /* a prompt, or a turn of a chat */
    }
    return status;
}

DEND_IMPL dend_status dend_seq_append_text(dend_engine *engine, dend_seq seq, const char *text,
                                           size_t n_bytes, uint32_t flags) {
    dendp_slot *slot;
    size_t n = 0;
    dend_status status;
    if (!engine || !text) {
        return DEND_ERR_ARGUMENT;
    }
    slot = dendp_cache_slot(&engine->cache, seq);
    if (!slot) {
        return DEND_ERR_STALE;
    }
    flags |= DEND_TOKENIZE_SPECIAL;
    if (engine->cache.records[slot->record].len == 0) {
        flags |= DEND_TOKENIZE_ADD_BOS;
    }
    status = dend_tokenize(engine->model, text, n_bytes, flags, engine->text_tokens, engine->desc.n_ctx, &n);
    if (status == DEND_ERR_BUFFER) {
        return DEND_ERR_CONTEXT_FULL;
    }
    return status == DEND_OK ? dend_seq_append(engine, seq, engine->text_tokens, n) : status;
}

DEND_IMPL dend_status dend_seq_rewind(dend_engine *engine, dend_seq seq, uint32_t len_tokens) {
    dendp_slot *slot = engine ? dendp_cache_slot(&engine->cache, seq) : NULL;
    return !engine ? DEND_ERR_ARGUMENT
           : !slot ? DEND_ERR_STALE
                   : dendp_cache_rewind(&engine->cache, slot, len_tokens);
}

DEND_IMPL dend_status dend_seq_get_info(const dend_engine *engine, dend_seq seq, dend_seq_info *out) {
    const dendp_slot *slot;
    const dendp_record *r;
    if (!engine || !out) {
        return DEND_ERR_ARGUMENT;
    }
    slot = dendp_cache_slot(&engine->cache, seq);
    if (!slot) {
        return DEND_ERR_STALE;
    }
    r = &engine->cache.records[slot->record];
    memset(out, 0, sizeof *out);
    out->len_tokens = r->len;
    out->n_waiting = r->len - r->n_ready;
    out->n_blocks = dendp_cache_table(&engine->cache, slot->record, 0)->n_blocks;
    out->rewind_min = dendp_record_rewind_min(&engine->cache, slot->record);
    out->prefix_hash = r->hash;
    out->stream = slot->stream;
    out->n_reused = r->n_reused;
    out->has_logits = r->logits_row != DENDP_NONE;
    return DEND_OK;
}

DEND_IMPL dend_status dend_seq_tokens(const dend_engine *engine, dend_seq seq, uint32_t from, uint32_t n,
                                      int32_t *out) {
    const dendp_slot *slot;
    uint32_t i;
    if (!engine || (!out && n)) {
        return DEND_ERR_ARGUMENT;
    }
    slot = dendp_cache_slot(&engine->cache, seq);
    if (!slot) {
        return DEND_ERR_STALE;
    }
    if (from > engine->cache.records[slot->record].len ||
        n > engine->cache.records[slot->record].len - from) {
        return DEND_ERR_ARGUMENT;
    }
    for (i = 0; i < n; i++) {
        out[i] = dendp_record_token(&engine->cache, slot->record, from + i);
    }
    return DEND_OK;
}

DEND_IMPL dend_status dend_seq_set_stream(dend_engine *engine, dend_seq seq, uint64_t stream) {
    dendp_slot *slot = engine ? dendp_cache_slot(&engine->cache, seq) : NULL;
    if (!slot) {
        return engine ? DEND_ERR_STALE : DEND_ERR_ARGUMENT;
    }
    slot->stream = stream;
    slot->n_forks = 0;
    return DEND_OK;
}

DEND_IMPL dend_status dend_seq_set_user(dend_engine *engine, dend_seq seq, void *user) {
    dendp_slot *slot = engine ? dendp_cache_slot(&engine->cache, seq) : NULL;
    if (!slot) {
        return engine ? DEND_ERR_STALE : DEND_ERR_ARGUMENT;
    }
    slot->user = user;
    return DEND_OK;
}

DEND_IMPL void *dend_seq_user(const dend_engine *engine, dend_seq seq) {
    const dendp_slot *slot = engine ? dendp_cache_slot(&engine->cache, seq) : NULL;
    return slot ? slot->user : NULL;
}

/* -- step ------------------------------------------------------------------------ */

/* Adds up to `most` waiting rows of a record to the batch, once a batch. Tokens
 * that end the waiting run ask for logits; false when all that it lacks is a
 * logits row, and none can be had. */
static bool dendp_step_take(dend_engine *e, uint32_t id, uint32_t most, uint32_t *n) {
    dendp_cache *c = &e->cache;
    dendp_record *r = &c->records[id];
    uint32_t pos, end;
    dendp_record_skip_claimed(c, id);
    pos = r->n_ready;
    if (pos == r->len) { /* nothing left to compute but perhaps the logits of the last token */
        if (!r->want_logits) {
            return true;
        }
        pos = r->len - 1;
    }
    end = pos + dendp_min_u32(r->len - pos, most);
    if (end == r->len && r->want_logits) {
        uint32_t row = dendp_logits_take(c);
        if (row == DENDP_NONE) {
            end--; /* the last token stays behind until a row is free */
            if (end <= pos) {
                return false;
            }
        } else {
            r->logits_row = row;
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
        row->logits_row = pos + 1 == r->len ? r->logits_row : DENDP_NONE;
        row->write_kv = !dendp_record_slot_claimed(c, id, pos);
        dendp_record_claim(c, id, pos);
    }
    return true;
}

/* Fills e->rows from the queue; *starved when a record only lacks a logits row. */
static uint32_t dendp_step_gather(dend_engine *e, bool *starved) {
    dendp_cache *c = &e->cache;
    uint32_t id, next, n = 0, pass, T = e->desc.n_batch;
    for (pass = 0; pass < 2; pass++) { /* single tokens first, then prompts */
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

/* Records the results of a batch: everything up to each row's position is ready. */
static void dendp_step_commit(dend_engine *e, uint32_t n) {
    uint32_t r;
    for (r = 0; r < n; r++) {
        if (e->rows[r].logits_row != DENDP_NONE) {
            e->cache.records[e->rows[r].record].want_logits = false;
        }
        if (r + 1 == n || e->rows[r + 1].record != e->rows[r].record) {
            dendp_record_commit(&e->cache, e->rows[r].record, e->rows[r].pos + 1);
            dendp_prefix_committed(&e->prefixes, e->rows[r].record);
        }
    }
    e->n_rows += n;
}

/* Computes the first n of e->rows, as dendp_step_take has filled them in. */
static void dendp_step_run(dend_engine *e, uint32_t n) {
    dendp_forward_run(&e->forward, e->rows, n, e->logits);
    dendp_step_commit(e, n);
}

DEND_IMPL dend_status dend_step(dend_engine *engine, uint64_t budget_us) {
    uint64_t start = budget_us ? dendp_now_ns() : 0;
    if (!engine) {
        return DEND_ERR_ARGUMENT;
    }
    dendp_node_reclaim(&engine->cache.nodes, engine->desc.release_budget);
    for (;;) {
        bool starved = false;
        uint32_t n = dendp_step_gather(engine, &starved);
        if (n == 0) {
            return starved ? DEND_ERR_NO_LOGITS : DEND_OK;
        }
        dendp_step_run(engine, n);
        if (budget_us && engine->cache.first_waiting != DENDP_NONE &&
            (dendp_now_ns() - start) / 1000u >= budget_us) {
            return DEND_PENDING;
        }
    }
}

/* -- logits and sampling ------------------------------------------------------------ */

/* The logits of a live sequence that is up to date. */
static dend_status dendp_seq_logits_of(const dend_engine *e, const dendp_slot *slot, const float **out) {
    const dendp_record *r = &e->cache.records[slot->record];
    if (r->n_ready < r->len) {
        return DEND_ERR_WAITING;
    }
    if (r->logits_row == DENDP_NONE) {
        return DEND_ERR_NO_LOGITS;
    }
    *out = e->logits + (size_t)r->logits_row * e->model->config.n_vocab;
    return DEND_OK;
}

DEND_IMPL dend_status dend_seq_logits(const dend_engine *engine, dend_seq seq, const float **out) {
    const dendp_slot *slot;
    if (!engine || !out) {
        return DEND_ERR_ARGUMENT;
    }
    slot = dendp_cache_slot(&engine->cache, seq);
    return slot ? dendp_seq_logits_of(engine, slot, out) : DEND_ERR_STALE;
}

DEND_IMPL dend_status dend_seq_release_logits(dend_engine *engine, dend_seq seq) {
    dendp_slot *slot = engine ? dendp_cache_slot(&engine->cache, seq) : NULL;
    dendp_record *r;
    if (!slot) {
        return engine ? DEND_ERR_STALE : DEND_ERR_ARGUMENT;
    }
    r = &engine->cache.records[dendp_record_own(&engine->cache, slot)];
    r->want_logits = false;
    dendp_logits_drop(&engine->cache, r);
    dendp_queue_update(&engine->cache, slot->record);
    return DEND_OK;
}

DEND_IMPL dend_status dend_seq_want_logits(dend_engine *engine, dend_seq seq) {
    dendp_slot *slot = engine ? dendp_cache_slot(&engine->cache, seq) : NULL;
    dendp_record *r;
    if (!slot) {
        return engine ? DEND_ERR_STALE : DEND_ERR_ARGUMENT;
    }
    r = &engine->cache.records[slot->record];
    if (r->logits_row == DENDP_NONE && r->len > 0) {
        r->want_logits = true; /* of no harm to sharers: they see the same logits */
        dendp_queue_update(&engine->cache, slot->record);
    }
    return DEND_OK;
}

DEND_IMPL dend_status dend_sample(dend_engine *engine, dend_seq seq, const dend_sample_params *params,
                                  dend_sampled *out) {
    const dendp_slot *slot;
    const float *logits;
    dend_status status;
    if (!engine || !out) {
        return DEND_ERR_ARGUMENT;
    }
    slot = dendp_cache_slot(&engine->cache, seq);
    if (!slot) {
        return DEND_ERR_STALE;
    }
    status = dendp_seq_logits_of(engine, slot, &logits);
    if (status != DEND_OK) {
        return status;
    }
    return dendp_sample(engine->cpu.ops, logits, engine->model->config.n_vocab, params, slot->stream,
                        engine->cache.records[slot->record].len, engine->sample_ids, out);
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
