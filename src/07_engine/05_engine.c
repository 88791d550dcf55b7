/* ==========================================================================
 * >>07.05 ENGINE: create, plan, sequences, sampling
 * ==========================================================================
 * An engine is one block of memory: cache, scratch, logits, threads. Creating
 * it is the last allocation; dend_plan runs the same layout without a base and
 * so predicts the bytes exactly.
 *
 * Every public call checks its arguments and handles, then does all that can
 * fail, then changes the engine.
 * ======================================================================== */

/* The batch that is under way (07.06). */
typedef struct dendp_flight {
    uint32_t n;      /* rows, the first of dend_engine.rows; 0 = there is none */
    uint64_t number; /* batches that have begun */
    uint64_t ns;     /* that this one has taken */
} dendp_flight;

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
#ifndef DEND_NO_SAMPLERS
    dendp_sampling sampling;
#endif
    int32_t *text_tokens; /* [n_ctx] scratch of append_text */
    int32_t
        *slide_tokens; /* [n_ctx] what slides, or waits for on_context_full; NULL with DEND_CONTEXT_STATUS */
    bool asking;       /* on_context_full is being called */
    uint64_t n_rows;   /* rows computed since creation */
    dendp_flight flight;
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
    d->context_policy = d->context_policy == DEND_CONTEXT_DEFAULT ? DEND_CONTEXT_STATUS : d->context_policy;
    d->n_sink = d->n_sink || d->context_policy != DEND_CONTEXT_SLIDE ? d->n_sink
                                                                     : dendp_min_u32(4, (d->n_ctx - 1) / 2);
    if (d->isa == DEND_ISA_DEFAULT) {
        d->isa = dendp_kernels_get(DEND_ISA_DEFAULT)->isa;
    }
    if (d->n_ctx > (1u << 24) || d->n_seqs > (1u << 24) || d->n_batch > 65536 ||
        d->n_threads > DENDP_MAX_THREADS || d->n_logits > (1u << 20) || d->n_prefixes > (1u << 20)) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "a limit of the description is out of range", 0);
    }
    d->n_threads = DENDP_THREADS || d->jobs.run ? d->n_threads : 1;
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
    if (d->context_policy < DEND_CONTEXT_STATUS || d->context_policy > DEND_CONTEXT_CALLBACK) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "unknown context_policy", 0);
    }
    if (d->context_policy == DEND_CONTEXT_SLIDE && d->n_sink >= dendp_div_up(d->n_ctx, 2)) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "n_sink must be below n_ctx / 2", 0);
    }
    if (d->context_policy == DEND_CONTEXT_CALLBACK && !d->on_context_full) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "on_context_full must be given", 0);
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
    d->n_window_blocks = d->n_window_blocks ? dendp_min_u32(d->n_window_blocks, d->n_blocks) : d->n_blocks;
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
    uint32_t *layer_group, *layer_index, n_placed[2] = {0, 0}, i,
                                         max_segments = dendp_div_up(d->n_ctx, DENDP_SEGMENT);
    uint64_t before, act, kv_bytes, widest, batch = dendp_max_u32(d->n_batch, d->n_tree_rows), V = c->n_vocab;
    dendp_group_desc *groups = (dendp_group_desc *)dendp_carve(carver, 2, sizeof *groups);
    dendp_group_desc group[2];
    dendp_cache_desc cd;
    memset(plan, 0, sizeof *plan);
    memset(group, 0, sizeof group);
    memset(&cd, 0, sizeof cd);
    for (i = 0; i < c->n_layers; i++) {
        group[dendp_config_slides(c, i)].n_layers++;
    }
    group[0].n_kv_heads = group[1].n_kv_heads = c->n_kv_heads;
    group[0].head_dim = group[1].head_dim = c->head_dim;
    group[1].window = c->window;
    cd.n_groups = group[1].n_layers ? 2 : 1; /* the first one may have no layers: it still has the text */
    cd.groups = group;
    cd.n_blocks = d->n_blocks;
    cd.n_window_blocks = d->n_window_blocks;
    cd.block_tokens = d->block_tokens;
    cd.n_seqs = d->n_seqs;
    cd.n_ctx = d->n_ctx;
    cd.n_logits = d->n_logits;
    cd.n_prefixes = d->n_prefixes;
    cd.n_holds =
        dendp_min_u32(d->n_seqs, (uint32_t)batch) + 1; /* a batch's, and one of a sequence that slides */
    cd.release_budget = d->release_budget;
    cd.seed = d->seed;
    dendp_codec_get(d->kv_type, d->isa, &cd.codec);
#ifndef DEND_NO_SAMPLERS
    dendp_sampling_carve(&e->sampling, d->n_ctx, d->n_seqs, d->n_tree_rows,
                         (uint64_t)d->n_blocks * d->block_tokens, carver);
    cd.n_sidecars = 1;
    cd.sidecars[0] = &e->sampling.sidecar;
#endif
    before = carver->used;
    dendp_cache_carve(&e->cache, &cd, carver, &kv_bytes);
    dendp_prefix_carve(&e->prefixes, &cd, carver);
    if (groups) { /* the description points at memory of its own from now on */
        memcpy(groups, group, sizeof group);
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
        layer_group[i] = dendp_config_slides(c, i);
        layer_index[i] = n_placed[layer_group[i]]++;
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
#ifndef DEND_NO_SAMPLERS
    dendp_sampling_carve_scratch(&e->sampling, c->n_vocab, d->n_ctx, d->n_tree_rows, carver);
#endif
    e->text_tokens = (int32_t *)dendp_carve(carver, d->n_ctx, sizeof(int32_t));
    dendp_snapshot_carve(&e->snapshot, &e->cache, carver);
    if (d->context_policy != DEND_CONTEXT_STATUS) {
        e->slide_tokens = (int32_t *)dendp_carve(carver, d->n_ctx, sizeof(int32_t));
    }
    e->tree_logits = (float *)dendp_carve(carver, d->n_tree_rows * V, sizeof(float));
    e->trees = (dendp_tree_state *)dendp_carve(carver, d->n_tree_rows, sizeof *e->trees);
    e->tree_rows = (dendp_row *)dendp_carve(carver, d->n_tree_rows, sizeof *e->tree_rows);
    plan->weight_bytes = dendp_model_bytes(d->model);
    plan->model_bytes = dendp_model_all_bytes(d->model);
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

DEND_IMPL dend_status dend_plan_file(const dend_model_desc *model, const dend_engine_desc *engine,
                                     dend_plan_info *out, dend_error *err) {
    dend_engine_desc d;
    dend_model *m;
    dend_status status;
    memset(&d, 0, sizeof d);
    if (!model || !out) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "model and out must be given", 0);
    }
    if (model->vocab_only || (engine && engine->model)) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "vocab_only, or an engine with a model that is loaded", 0);
    }
    d = engine ? *engine : d;
    status = dendp_model_make(model, true, &m, err);
    if (status != DEND_OK) {
        return status;
    }
    m->has_weights = true; /* for as long as we plan */
    d.model = m;
    status = dend_plan(&d, out, err);
    if (status == DEND_OK && model->no_mmap &&
        model->keep_file_layout) { /* it will be read, and is mapped now */
        uint64_t bytes = dendp_model_file_bytes(m, true) - dendp_model_file_bytes(m, false);
        out->weight_bytes += bytes;
        out->model_bytes += bytes;
    }
    dend_model_free(m);
    return status;
}

DEND_IMPL void dend_engine_free(dend_engine *engine) {
    if (engine) {
        dend_allocator allocator = engine->desc.allocator;
        dendp_pool_close(&engine->pool);
        dendp_free(&allocator, engine, engine->bytes);
    }
}

/* Says what an engine is. (dend_engine_report says it in full.) */
static void dendp_engine_log(const dend_engine *e, bool isa_is_default) {
    const dend_log *log = &e->desc.log;
    dendp_log_line line;
    if (dendp_log_begin(&line, log, "engine: ")) {
        dendp_text_put(&line.text, e->cpu.kernels->name);
        dendp_text_put(&line.text, ", ");
        dendp_text_put_count(&line.text, e->pool.n_threads, "thread", "threads");
        dendp_text_put(&line.text, ", ");
        dendp_text_put_number(&line.text, e->desc.n_blocks);
        dendp_text_put(&line.text, " KV blocks of ");
        dendp_text_put_number(&line.text, e->desc.block_tokens);
        dendp_text_put(&line.text, " tokens, ");
        dendp_text_put_bytes(&line.text, e->bytes);
        dendp_log_end(&line, log, DEND_LOG_INFO);
    }
    if (isa_is_default && e->desc.isa == DEND_ISA_SCALAR &&
        dendp_log_begin(&line, log,
                        "this processor, or this build, has no fast kernels: plain C does the work")) {
        dendp_log_end(&line, log, DEND_LOG_WARNING);
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
    memset(e, 0, d.lazy_memory ? sizeof *e : (size_t)plan.total_bytes); /* now, and not under a time limit */
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
#ifndef DEND_NO_SAMPLERS
    dendp_sampling_reset(&e->sampling, d.n_seqs, d.n_tree_rows);
#endif
    e->cpu.pool = &e->pool;
    e->cpu.kernels = dendp_kernels_get(d.isa);
    e->cpu.ops = dendp_vector_ops_get(d.isa);
    dendp_cpu_backend(&e->cpu, &e->backend);
    e->forward.model = d.model;
    e->forward.backend = &e->backend;
    e->forward.cache = &e->cache;
    e->forward.overlay = &e->overlay;
    dendp_rope_freqs(d.model, &d.model->config.rope, e->forward.scratch.freqs[0]);
    if (e->forward.scratch.freqs[1] != e->forward.scratch.freqs[0]) {
        dendp_rope_freqs(d.model, &d.model->config.rope_local, e->forward.scratch.freqs[1]);
    }
    dendp_engine_log(e, desc->isa == DEND_ISA_DEFAULT);
    *out = e;
    return DEND_OK;
}

/* What all descriptions begin with that are of an engine's user: canaries, the engine, and an allocator, which is the
 * engine's unless one is given. */
static DENDP_UNUSED dend_status dendp_user_resolve(const dend_engine *engine, uint32_t canaries,
                                                   dend_allocator *allocator, dend_error *err) {
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
    if (c->desc.n_groups > 1) {
        out->n_window_blocks = c->pools[1].n_blocks;
        out->n_window_blocks_free = c->pools[1].n_free;
    }
    out->n_seqs = c->desc.n_seqs;
    out->n_seqs_free = c->n_free_slots;
    out->n_logits = c->desc.n_logits;
    out->n_logits_free = c->n_free_logits;
    for (r = c->first_waiting; r != DENDP_NONE; r = c->records[r].next) {
        out->n_waiting += dendp_record_orphaned(c, r) ? 0 : c->records[r].len - c->records[r].n_ready;
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
    return engine && out && !engine->cache.closed ? dendp_cache_seq_create(&engine->cache, out)
                                                  : DEND_ERR_ARGUMENT;
}

DEND_IMPL dend_status dend_seq_fork(dend_engine *engine, dend_seq parent, uint32_t flags, dend_seq *child) {
    dend_status status =
        engine && child ? dendp_cache_seq_fork(&engine->cache, parent, flags, child) : DEND_ERR_ARGUMENT;
#ifndef DEND_NO_SAMPLERS
    if (status == DEND_OK) {
        dendp_sampling_fork(&engine->sampling, parent, *child);
    }
#endif
    return status;
}

DEND_IMPL dend_status dend_seq_drop(dend_engine *engine, dend_seq seq) {
    const dendp_slot *slot = engine ? dendp_cache_slot(&engine->cache, seq) : NULL;
    if (!slot) {
        return engine ? DEND_ERR_STALE : DEND_ERR_ARGUMENT;
    }
    dendp_prefix_dropping(&engine->prefixes, slot);
    return dendp_cache_seq_drop(&engine->cache, seq);
}

/* Appends n tokens to a sequence that has no room for them: the sinks and a tail
 * of it become a new record, with the tokens behind. A failure leaves it as it was. */
static dend_status dendp_seq_slide(dend_engine *e, dendp_slot *slot, const int32_t *tokens, size_t n) {
    dendp_cache *c = &e->cache;
    uint32_t old = slot->record, len = c->records[old].len, sink = dendp_min_u32(e->desc.n_sink, len), i;
    uint32_t room = e->desc.n_ctx - sink, keep = dendp_min_u32((len - sink) / 2, (e->desc.n_ctx - sink) / 2),
             first = sink;
    dend_status status = DEND_OK;
    if (n > room) {
        return DEND_ERR_CONTEXT_FULL;
    }
    keep = dendp_min_u32(keep, room - (uint32_t)n);
    c->records[old].count++; /* ours, so that what follows is done to a clone */
    if (sink >= dendp_record_rewind_min(c, old)) {
        status = dendp_cache_rewind(c, slot, sink);
    } else { /* a window has lost its first tokens: the sinks are computed again, too */
        c->records[old].count--;
        slot->record = dendp_record_take(c);
        first = 0;
    }
    if (status == DEND_OK) {
        for (i = first; i < sink + keep; i++) {
            e->slide_tokens[i - first] = dendp_record_token(c, old, i < sink ? i : len - keep + (i - sink));
        }
        memcpy(e->slide_tokens + (sink + keep - first), tokens, n * sizeof *tokens);
        status = dendp_cache_append(c, slot, e->slide_tokens, sink + keep - first + n);
    }
    if (status != DEND_OK) {
        uint32_t made = slot->record;
        slot->record = old;
        dendp_record_release(c, made); /* a clone; or, where none came to be, our name of the old one */
        return status;
    }
    dendp_record_release(c, old);
    slot->stream = dendp_hash2(slot->stream, ++slot->n_forks);
    return DEND_OK;
}

/* Appends to a sequence; an empty one first takes over what has been computed before. */
static dend_status dendp_seq_put(dend_engine *e, dendp_slot *slot, const int32_t *tokens, size_t n) {
    bool empty = e->cache.records[slot->record].len == 0;
    uint32_t reused = 0;
    dend_status status;
    if (empty) {
        dendp_prefix_adopt(&e->prefixes, slot, tokens, n);
        reused = e->cache.records[slot->record].len;
    }
    status = dendp_cache_append(&e->cache, slot, reused ? tokens + reused : tokens, n - reused);
    if (status != DEND_OK && empty) {
        dendp_prefix_return(&e->prefixes, slot);
    }
    if (status == DEND_OK && slot->reuse && n > 1) {
        e->cache.records[slot->record].list = true; /* a prompt, or a turn of a chat */
    }
    return status;
}

/* Appends tokens, and counts the first for mirostat if it was drawn with it. */
static dend_status dendp_engine_append(dend_engine *e, dend_seq seq, dendp_slot *slot, const int32_t *tokens,
                                       size_t n) {
#ifndef DEND_NO_SAMPLERS
    float bits;
    bool counts = dendp_sampling_counts(&e->sampling, &e->cache, seq, slot, tokens[0], &bits);
    uint32_t pos = e->cache.records[slot->record].len;
    dend_status status =
        counts && e->sampling.n_free == 0 ? DEND_ERR_NO_BLOCKS : dendp_seq_put(e, slot, tokens, n);
    if (status == DEND_OK && counts) {
        dendp_sampling_count(&e->sampling, &e->cache, slot, pos, bits);
    }
    return status;
#else
    (void)seq;
    return dendp_seq_put(e, slot, tokens, n);
#endif
}

DEND_IMPL dend_status dend_seq_append(dend_engine *engine, dend_seq seq, const int32_t *tokens, size_t n) {
    dendp_slot *slot;
    dend_status status;
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
    if (n == 0) {
        return DEND_OK;
    }
    status = dendp_engine_append(engine, seq, slot, tokens, n);
    if (status == DEND_ERR_CONTEXT_FULL && engine->desc.context_policy == DEND_CONTEXT_SLIDE) {
        status = dendp_seq_slide(engine, slot, tokens, n);
    } else if (status == DEND_ERR_CONTEXT_FULL && engine->desc.context_policy == DEND_CONTEXT_CALLBACK &&
               n <= engine->desc.n_ctx && !engine->asking) {
        bool again;
        if (tokens == engine->text_tokens) { /* which the callback may need for a text of its own */
            memcpy(engine->slide_tokens, tokens, n * sizeof *tokens);
            tokens = engine->slide_tokens;
        }
        engine->asking = true;
        again = engine->desc.on_context_full(engine->desc.context_user, engine, seq, n);
        engine->asking = false;
        if (again) {
            slot = dendp_cache_slot(&engine->cache, seq);
            status = slot ? dendp_engine_append(engine, seq, slot, tokens, n) : DEND_ERR_STALE;
        }
    }
    return status;
}

/* Appends the n tokens that have been made of a text, if they have. */
static dend_status dendp_seq_append_made(dend_engine *e, dend_seq seq, dend_status status, size_t n) {
    return status == DEND_OK           ? dend_seq_append(e, seq, e->text_tokens, n)
           : status == DEND_ERR_BUFFER ? DEND_ERR_CONTEXT_FULL /* the text alone is longer */
                                       : status;
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
    return dendp_seq_append_made(engine, seq, status, n);
}

DEND_IMPL dend_status dend_seq_append_chat(dend_engine *engine, dend_seq seq, const char *family,
                                           const dend_chat_message *messages, size_t n, uint32_t flags) {
    dendp_slot *slot;
    size_t n_tokens = 0;
    dend_status status;
    if (!engine) {
        return DEND_ERR_ARGUMENT;
    }
    slot = dendp_cache_slot(&engine->cache, seq);
    if (!slot) {
        return DEND_ERR_STALE;
    }
    if (engine->cache.records[slot->record].len > 0) {
        flags |= DEND_CHAT_FOLLOWS;
    }
    status = dend_chat_tokenize(engine->model, family, messages, n, flags, engine->text_tokens,
                                engine->desc.n_ctx, &n_tokens);
    return dendp_seq_append_made(engine, seq, status, n_tokens);
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
#ifndef DEND_NO_SAMPLERS
    status = dendp_sampling_choose(&engine->sampling, engine->cpu.ops, logits, engine->model->config.n_vocab,
                                   &engine->model->tokenizer, params, &engine->cache, slot, NULL, 0, 0, 0.0,
                                   engine->sample_ids, out);
    if (status == DEND_OK && dendp_sampling_is_mirostat(params)) {
        dendp_sampling_note(&engine->sampling, &engine->cache, seq, slot, out);
    }
    return status;
#else
    return dendp_choose(engine->cpu.ops, logits, engine->model->config.n_vocab, params, slot->stream,
                        engine->cache.records[slot->record].len, engine->sample_ids, out);
#endif
}
