/* The engine through its public calls, on the tiny models of tests/golden:
 * every error of every call, and that it changed nothing; results that do not
 * depend on company, threads or history; token trees against plain decoding.
 *
 * "Changed nothing" is taken literally: the whole memory of the engine but its
 * scratch is compared with a copy made before the call. The helpers above the
 * first test serve tests/test_engine_plan.c too, which main.c includes later. */

#define ENG_LLAMA_F32 "tests/golden/tiny_llama_f32.gguf"
#define ENG_LLAMA_F16 "tests/golden/tiny_llama_f16.gguf"
#define ENG_QWEN2 "tests/golden/tiny_qwen2_q8_q5.gguf"
#define ENG_VOCAB_ONLY "tests/golden/vocab_gpt2.gguf"
#define ENG_V 284u /* vocabulary of the tiny models */

/* The last two have sliding layers: all of them, and six of seven. */
#define ENG_MISTRAL "tests/golden/tiny_mistral.gguf"
#define ENG_GEMMA3 "tests/golden/tiny_gemma3.gguf"
#define ENG_N_MODELS 5u

static const char *const eng_paths[ENG_N_MODELS] = {ENG_LLAMA_F32, ENG_LLAMA_F16, ENG_QWEN2, ENG_MISTRAL,
                                                    ENG_GEMMA3};
static const dend_kv_type eng_kv_types[3] = {DEND_KV_F32, DEND_KV_F16, DEND_KV_Q8_0};

static dend_model *eng_load(const char *path) {
    dend_model_desc d;
    dend_model *model = NULL;
    dend_error error;
    memset(&d, 0, sizeof d);
    memset(&error, 0, sizeof error);
    d.path = path;
    if (dend_model_load(&d, &model, &error) != DEND_OK) {
        fail_msg("%s: %s", path, error.msg);
    }
    return model;
}

/* A description with one thread and defaults otherwise. */
static dend_engine_desc eng_desc(const dend_model *model) {
    dend_engine_desc d;
    memset(&d, 0, sizeof d);
    d.model = model;
    d.n_threads = 1;
    return d;
}

static dend_engine *eng_open(const dend_engine_desc *d) {
    dend_engine *engine = NULL;
    dend_error error;
    memset(&error, 0, sizeof error);
    if (dend_engine_create(d, &engine, &error) != DEND_OK) {
        fail_msg("engine: %s", error.msg);
    }
    assert_int_equal(engine->model->config.n_vocab, ENG_V);
    return engine;
}

static dend_seq eng_seq(dend_engine *engine) {
    dend_seq seq;
    ASSERT_STATUS(DEND_OK, dend_seq_create(engine, &seq));
    return seq;
}

static dend_seq eng_fork(dend_engine *engine, dend_seq parent) {
    dend_seq seq;
    ASSERT_STATUS(DEND_OK, dend_seq_fork(engine, parent, 0, &seq));
    return seq;
}

static void eng_tokens(test_rng *rng, int32_t *out, uint32_t n) {
    uint32_t i;
    for (i = 0; i < n; i++) {
        out[i] = (int32_t)test_below(rng, ENG_V);
    }
}

/* A new sequence of n tokens, not yet stepped. */
static dend_seq eng_with(dend_engine *engine, const int32_t *tokens, uint32_t n) {
    dend_seq seq = eng_seq(engine);
    ASSERT_STATUS(DEND_OK, dend_seq_append(engine, seq, tokens, n));
    return seq;
}

static const float *eng_logits(const dend_engine *engine, dend_seq seq) {
    const float *logits = NULL;
    ASSERT_STATUS(DEND_OK, dend_seq_logits(engine, seq, &logits));
    assert_non_null(logits);
    return logits;
}

static dend_seq_info eng_info(const dend_engine *engine, dend_seq seq) {
    dend_seq_info info;
    ASSERT_STATUS(DEND_OK, dend_seq_get_info(engine, seq, &info));
    return info;
}

static dend_engine_stats eng_stats(const dend_engine *engine) {
    dend_engine_stats stats;
    dend_engine_get_stats(engine, &stats);
    return stats;
}

/* One batch, or the rest of one, in the smallest slices that there are. */
static dend_status eng_batch(dend_engine *engine) {
    dend_status status;
    do {
        status = dendp_step_run(engine, 1); /* a deadline long past */
    } while (status == DEND_PENDING && engine->flight.n);
    return status;
}

/* Bit for bit, [V]. */
static void eng_equal(const float *expected, const float *got, const char *what, uint32_t id) {
    uint32_t i;
    if (memcmp(expected, got, ENG_V * sizeof(float)) == 0) {
        return;
    }
    for (i = 0; memcmp(&expected[i], &got[i], sizeof(float)) == 0; i++) {
    }
    fail_msg("%s %u: logit %u is %.9g, expected %.9g", what, id, i, (double)got[i], (double)expected[i]);
}

/* What a fresh engine, given the tokens in one go, says after the last one. out[V]. */
static void eng_fresh(const dend_model *model, dend_kv_type kv, uint32_t block_tokens, const int32_t *tokens,
                      uint32_t n, float *out, uint64_t *hash) {
    dend_engine_desc d = eng_desc(model);
    dend_engine *engine;
    dend_seq seq;
    d.n_ctx = n;
    d.n_seqs = 1;
    d.n_batch = 64;
    d.n_tree_rows = 1;
    d.kv_type = kv;
    d.block_tokens = block_tokens;
    engine = eng_open(&d);
    seq = eng_with(engine, tokens, n);
    ASSERT_STATUS(DEND_OK, dend_step(engine, 0));
    memcpy(out, eng_logits(engine, seq), ENG_V * sizeof(float));
    if (hash) {
        *hash = eng_info(engine, seq).prefix_hash;
    }
    dend_engine_free(engine);
}

/* Blocks that could be had, deferred releases included. */
static uint32_t eng_blocks_free(dend_engine *e) {
    while (dendp_node_reclaim(&e->cache.nodes, 1000)) {
    }
    return eng_stats(e).n_blocks_free;
}

/* Drops what is left, if anything, and finds everything free. */
static void eng_all_free(dend_engine *e) {
    dend_seq seq;
    for (seq.slot = 0; seq.slot < e->desc.n_seqs; seq.slot++) {
        seq.generation = e->cache.slots[seq.slot].generation;
        if (dend_seq_drop(e, seq) != DEND_OK) {
            assert_int_equal(e->cache.slots[seq.slot].record, DENDP_NONE);
        }
    }
    if (e->flight.n) { /* a batch under way lets go of its blocks when it ends */
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    }
    assert_int_equal(eng_blocks_free(e), e->desc.n_blocks);
    assert_int_equal(eng_stats(e).n_window_blocks_free, eng_stats(e).n_window_blocks);
    assert_int_equal(eng_stats(e).n_seqs_free, e->desc.n_seqs);
    assert_int_equal(eng_stats(e).n_logits_free, e->desc.n_logits);
    assert_int_equal(eng_stats(e).n_waiting, 0);
    assert_int_equal(e->cache.nodes.n_free, e->cache.nodes.n_nodes);
}

/* -- an engine's memory, before and after ---------------------------------- */

static unsigned char *eng_freeze(const dend_engine *engine) {
    unsigned char *image = (unsigned char *)malloc((size_t)engine->bytes);
    assert_non_null(image);
    memcpy(image, engine, (size_t)engine->bytes);
    return image;
}

static void eng_same_range(const dend_engine *engine, const unsigned char *image, const void *first,
                           const void *end, const char *what) {
    const unsigned char *base = (const unsigned char *)(const void *)engine,
                        *p = (const unsigned char *)first;
    size_t at = (size_t)(p - base), n = (size_t)((const unsigned char *)end - p), i;
    if (memcmp(p, image + at, n) != 0) {
        for (i = 0; p[i] == image[at + i]; i++) {
        }
        fail_msg("%s: byte %zu of the engine (of %zu) has changed", what, at + i, (size_t)engine->bytes);
    }
}

/* Compares and frees the image. Activations, batch rows and the scratch of the
 * sampler and of text may differ; all else may not: handles, records, tables,
 * blocks with their K and V, logits, results of trees. */
static void eng_same(const dend_engine *engine, unsigned char *image, const char *what) {
    const unsigned char *end = (const unsigned char *)(const void *)engine + engine->bytes;
    eng_same_range(engine, image, engine, engine->forward.scratch.x, what);
    eng_same_range(engine, image, engine->logits, engine->sample_ids, what);
    eng_same_range(engine, image, engine->tree_logits, end, what);
    free(image);
}

/* The call gives this status and changes nothing. */
#define ENG_REFUSED(expected, engine, call)                                                                  \
    do {                                                                                                     \
        unsigned char *image_ = eng_freeze(engine);                                                          \
        ASSERT_STATUS(expected, call);                                                                       \
        eng_same(engine, image_, #call);                                                                     \
    } while (0)

/* -- job systems ----------------------------------------------------------- */

static void eng_jobs_backwards(void *user, void (*task)(void *ctx, uint32_t index), void *ctx, uint32_t n) {
    uint32_t *calls = (uint32_t *)user;
    *calls += 1;
    while (n-- > 0) {
        task(ctx, n);
    }
}

#if DENDP_THREADS
typedef struct eng_half {
    void (*task)(void *ctx, uint32_t index);
    void *ctx;
    uint32_t n;
} eng_half;

static void *eng_half_main(void *arg) {
    const eng_half *half = (const eng_half *)arg;
    uint32_t i;
    for (i = 1; i < half->n; i += 2) {
        half->task(half->ctx, i);
    }
    return NULL;
}

/* Odd tasks on another thread, even ones here. */
static void eng_jobs_two(void *user, void (*task)(void *ctx, uint32_t index), void *ctx, uint32_t n) {
    uint32_t *calls = (uint32_t *)user, i;
    pthread_t thread;
    eng_half half;
    half.task = task;
    half.ctx = ctx;
    half.n = n;
    *calls += 1;
    assert_int_equal(pthread_create(&thread, NULL, eng_half_main, &half), 0);
    for (i = 0; i < n; i += 2) {
        task(ctx, i);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
}
#else
#define eng_jobs_two eng_jobs_backwards
#endif

/* -- statuses, descriptions ------------------------------------------------ */

static void test_engine_statuses(void **state) {
    int value, known = 0;
    (void)state;
    for (value = -24; value <= 20; value++) {
        const char *name = dend_status_name((dend_status)value), *text = dend_status_text((dend_status)value);
        assert_non_null(name);
        assert_non_null(text);
        assert_true(strncmp(name, "DEND_", 5) == 0 && text[0] != 0);
        known += strcmp(name, "DEND_UNKNOWN") != 0;
        assert_int_equal(strcmp(name, "DEND_UNKNOWN") == 0, strcmp(text, "unknown status") == 0);
    }
    assert_int_equal(known, 23);
    assert_string_equal(dend_status_name(DEND_ERR_NO_BLOCKS), "DEND_ERR_NO_BLOCKS");
    assert_string_equal(dend_status_text(DEND_PENDING), "work is left: call again");
    assert_string_equal(dend_version(), DEND_VERSION_STRING);
}

/* Refuses what no test should ask for. */
static void *eng_modest_alloc(void *user, size_t size, size_t align) {
    void *p = NULL;
    (void)user;
    if (size > (size_t)1 << 30 || posix_memalign(&p, align < sizeof p ? sizeof p : align, size) != 0) {
        return NULL;
    }
    return p;
}

static void eng_modest_free(void *user, void *p, size_t size) {
    (void)user;
    (void)size;
    free(p);
}

/* resolve, plan and create agree on a description that they refuse; none of
 * them touches it, and each says why. */
static void eng_desc_refused(dend_status expected, const dend_engine_desc *desc) {
    dend_engine_desc d = *desc;
    dend_plan_info plan, same;
    dend_engine *engine = (dend_engine *)&d;
    dend_error error;
    uint32_t i;
    memset(&plan, 0x5a, sizeof plan);
    same = plan;
    for (i = 0; i < 3; i++) {
        memset(&error, 0, sizeof error);
        ASSERT_STATUS(expected, i == 0   ? dend_engine_resolve(&d, &error)
                                : i == 1 ? dend_plan(&d, &plan, &error)
                                         : dend_engine_create(&d, &engine, &error));
        assert_memory_equal(&d, desc, sizeof d);
        assert_memory_equal(&plan, &same, sizeof plan);
        assert_int_equal(error.status, expected);
        assert_non_null(error.msg);
        assert_true(error.room_line > 0);
    }
    assert_null(engine);
    ASSERT_STATUS(expected, dend_engine_resolve(&d, NULL)); /* and without a place for the reason */
}

static void test_engine_desc_refused(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32), *vocab;
    dend_model_desc md;
    dend_engine_desc d, zero;
    dend_engine *engine;
    dend_plan_info plan;
    uint32_t isa;
    (void)state;
    memset(&md, 0, sizeof md);
    memset(&zero, 0, sizeof zero);
    md.path = ENG_VOCAB_ONLY;
    md.vocab_only = true;
    ASSERT_STATUS(DEND_OK, dend_model_load(&md, &vocab, NULL));

    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_engine_resolve(NULL, NULL));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_plan(NULL, &plan, NULL));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_engine_create(NULL, &engine, NULL));
    d = eng_desc(model);
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_plan(&d, NULL, NULL));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_engine_create(&d, NULL, NULL));
    dend_engine_free(NULL);

    eng_desc_refused(DEND_ERR_ARGUMENT, &zero); /* no model */
    d = eng_desc(vocab);
    eng_desc_refused(DEND_ERR_ARGUMENT, &d);
    d = eng_desc(model);
    d.canary_begin_ = 1;
    eng_desc_refused(DEND_ERR_ARGUMENT, &d);
    d = eng_desc(model);
    d.canary_end_ = 0x80000000u;
    eng_desc_refused(DEND_ERR_ARGUMENT, &d);
    d = eng_desc(model);
    d.allocator.alloc = eng_modest_alloc;
    eng_desc_refused(DEND_ERR_ARGUMENT, &d);
    d = eng_desc(model);
    d.allocator.free = eng_modest_free;
    eng_desc_refused(DEND_ERR_ARGUMENT, &d);
    for (isa = DEND_ISA_SCALAR; isa <= DEND_ISA_NEON;
         isa++) { /* what is there works, what is not is refused */
        d = eng_desc(model);
        d.isa = (dend_isa)isa;
        if (dendp_kernels_get(d.isa)) {
            engine = eng_open(&d);
            assert_string_equal(eng_stats(engine).isa, dendp_kernels_get(d.isa)->name);
            assert_int_equal(dendp_kernels_get(d.isa)->isa, isa);
            dend_engine_free(engine);
        } else {
            eng_desc_refused(DEND_ERR_UNSUPPORTED, &d);
        }
    }
    d = eng_desc(model);
    d.block_tokens = 8;
    eng_desc_refused(DEND_ERR_ARGUMENT, &d);
    d.block_tokens = 24;
    eng_desc_refused(DEND_ERR_ARGUMENT, &d);
    d.block_tokens = 4112;
    eng_desc_refused(DEND_ERR_ARGUMENT, &d);
    d = eng_desc(model);
    d.n_tree_rows = 257;
    eng_desc_refused(DEND_ERR_ARGUMENT, &d);
    dend_model_free(vocab);
    dend_model_free(model);
}

/* Field number `field` of the limits. */
static uint32_t *eng_limit(dend_engine_desc *d, uint32_t field) {
    uint32_t *const fields[9] = {&d->n_ctx,    &d->n_seqs,      &d->n_blocks,  &d->block_tokens,  &d->n_batch,
                                 &d->n_logits, &d->n_tree_rows, &d->n_threads, &d->release_budget};
    return fields[field];
}

/* Every limit far out of range, at its largest value, and just above: a status,
 * never a crash, and no allocation above a GiB. */
static void test_engine_limits(void **state) {
    static const uint32_t largest[9] = {1u << 24, 1u << 24, 1u << 28, 4096,       65536,
                                        1u << 20, 256,      256,      0xffffffffu};
    dend_model *model = eng_load(ENG_QWEN2);
    dend_engine_desc d, all;
    dend_engine *engine;
    dend_plan_info plan;
    dend_status status;
    uint32_t field, calls = 0;
    (void)state;
    all = eng_desc(model);
    for (field = 0; field < 9; field++) {
        d = eng_desc(model);
        d.allocator.alloc = eng_modest_alloc;
        d.allocator.free = eng_modest_free;
        *eng_limit(&d, field) = 0xffffffffu;
        if (largest[field] < 0xffffffffu) {
            eng_desc_refused(DEND_ERR_ARGUMENT, &d);
            *eng_limit(&d, field) = largest[field] + (field == 3 ? 16u : 1u);
            eng_desc_refused(DEND_ERR_ARGUMENT, &d);
        }
        *eng_limit(&d, field) = *eng_limit(&all, field) = largest[field];
        ASSERT_STATUS(DEND_OK, dend_plan(&d, &plan, NULL));
        if (field != 7) { /* that would be 256 threads */
            status = dend_engine_create(&d, &engine, NULL);
            ASSERT_STATUS(plan.total_bytes > (uint64_t)1 << 30 ? DEND_ERR_MEMORY : DEND_OK, status);
            dend_engine_free(engine);
        }
    }
    d = all; /* all at once: more than memory holds, but no overflow */
    d.allocator.alloc = eng_modest_alloc;
    d.allocator.free = eng_modest_free;
    ASSERT_STATUS(DEND_OK, dend_plan(&d, &plan, NULL));
    assert_true(plan.total_bytes > plan.n_blocks * plan.block_bytes); /* 2^28 blocks of 4096 tokens */
    assert_true(plan.kv_bytes / plan.n_blocks >= plan.block_bytes);
    ASSERT_STATUS(DEND_ERR_MEMORY, dend_engine_create(&d, &engine, NULL));
    assert_null(engine);

    d = eng_desc(model);
    d.kv_type = (dend_kv_type)0x7fffffff;
    eng_desc_refused(DEND_ERR_ARGUMENT, &d);
    d = eng_desc(model);
    d.kv_type = (dend_kv_type)4;
    eng_desc_refused(DEND_ERR_ARGUMENT, &d);
    d = eng_desc(model);
    d.isa = (dend_isa)0x7fffffff;
    eng_desc_refused(DEND_ERR_ARGUMENT, &d);
    d = eng_desc(model);
    d.isa = (dend_isa)(DEND_ISA_NEON + 1);
    eng_desc_refused(DEND_ERR_ARGUMENT, &d);

    d = eng_desc(model); /* a hint, however wild, must not harm */
    d.seed = 0xffffffffffffffffu;
    d.jobs.run = eng_jobs_backwards;
    d.jobs.user = &calls;
    for (field = 28; field <= 32; field++) {
        int32_t token = 5;
        const float *logits;
        dend_seq seq;
        d.jobs.n_workers = field == 32 ? 0xffffffffu : 1u << field;
        engine = eng_open(&d);
        seq = eng_with(engine, &token, 1);
        ASSERT_STATUS(DEND_OK, dend_step(engine, 0));
        ASSERT_STATUS(DEND_OK, dend_seq_logits(engine, seq, &logits));
        dend_engine_free(engine);
    }
    assert_true(calls > 0);
    dend_model_free(model);
}

/* Defaults are what the header says. */
static void test_engine_defaults(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc d;
    dend_plan_info plan;
    (void)state;
    memset(&d, 0, sizeof d);
    d.model = model;
    ASSERT_STATUS(DEND_OK, dend_engine_resolve(&d, NULL));
    assert_int_equal(d.n_ctx, 64); /* what the model was trained for */
    assert_int_equal(d.n_seqs, 64);
    assert_int_equal(d.n_blocks, 2 * 4 + 64);
    assert_int_equal(d.block_tokens, 16);
    assert_int_equal(d.kv_type, DEND_KV_F16);
    assert_int_equal(d.n_batch, 256);
    assert_int_equal(d.n_logits, 64);
    assert_int_equal(d.n_tree_rows, 64);
    assert_int_equal(d.release_budget, 64);
    assert_true(d.n_threads >= 1 && d.isa >= DEND_ISA_SCALAR);
    assert_non_null(d.allocator.alloc);
    memset(&d, 0, sizeof d);
    d.model = model;
    d.n_ctx = 100;
    d.n_seqs = 7;
    d.block_tokens = 32;
    ASSERT_STATUS(DEND_OK, dend_plan(&d, &plan, NULL));
    assert_int_equal(d.n_blocks, 0); /* a plan fills in a copy */
    assert_int_equal(plan.n_blocks, 2 * 4 + 7);
    assert_int_equal(plan.block_tokens, 32);
    /* 2 layers, 2 KV heads, 2 tiles of 16 positions, 8 f16 values of K and of V */
    assert_int_equal(plan.block_bytes, 2 * 2 * 2 * 16 * 8 * 2 * 2);
    ASSERT_STATUS(DEND_OK, dend_engine_resolve(&d, NULL));
    assert_int_equal(d.n_logits, 7);
    dend_model_free(model);
}

/* -- arguments and handles ------------------------------------------------- */

static bool eng_write_nothing(void *user, const void *data, size_t n) {
    (void)user;
    (void)data;
    (void)n;
    return true;
}

static bool eng_read_nothing(void *user, uint64_t offset, void *dst, size_t n) {
    (void)user;
    (void)offset;
    memset(dst, 0, n);
    return true;
}

static void test_engine_null(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e = eng_open(&d);
    int32_t tokens[3] = {1, 2, 3}, parents[3] = {-1, 0, 1}, token;
    dend_seq seq = eng_with(e, tokens, 3), other;
    dend_sampled sampled;
    dend_writer writer;
    dend_reader reader;
    dend_seq_info info;
    dend_tree tree;
    const float *logits;
    size_t n;
    (void)state;
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    memset(&writer, 0, sizeof writer);
    memset(&reader, 0, sizeof reader);
    tree.seq = seq;
    tree.n_rows = 3;
    tree.tokens = tokens;
    tree.parents = parents;

    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_seq_create(NULL, &other));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_seq_create(e, NULL));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_seq_fork(NULL, seq, 0, &other));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_seq_fork(e, seq, 0, NULL));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_seq_append(NULL, seq, tokens, 3));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_seq_append(e, seq, NULL, 1));
    ENG_REFUSED(DEND_OK, e, dend_seq_append(e, seq, NULL, 0));
    ENG_REFUSED(DEND_OK, e, dend_seq_append(e, seq, tokens, 0));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_seq_append_text(NULL, seq, "a", 1, 0));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_seq_append_text(e, seq, NULL, 0, 0));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_seq_append_text(e, seq, NULL, (size_t)-1, 0));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_seq_rewind(NULL, seq, 0));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_seq_drop(NULL, seq));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_seq_get_info(NULL, seq, &info));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_seq_get_info(e, seq, NULL));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_seq_tokens(NULL, seq, 0, 1, tokens));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_seq_tokens(e, seq, 0, 1, NULL));
    ENG_REFUSED(DEND_OK, e, dend_seq_tokens(e, seq, 0, 0, NULL));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_seq_save(e, seq, NULL));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_seq_save(e, seq, &writer)); /* without a callback */
    writer.write = eng_write_nothing;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_seq_save(NULL, seq, &writer));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_seq_load(e, NULL, &other));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_seq_load(e, &reader, &other)); /* without a callback */
    reader.read = eng_read_nothing;
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_seq_load(e, &reader, NULL));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_seq_load(NULL, &reader, &other));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_seq_set_stream(NULL, seq, 1));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_seq_set_user(NULL, seq, &info));
    assert_null(dend_seq_user(NULL, seq));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_step(NULL, 0));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_step(NULL, 10));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_seq_logits(NULL, seq, &logits));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_seq_logits(e, seq, NULL));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_seq_release_logits(NULL, seq));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_seq_want_logits(NULL, seq));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_sample(NULL, seq, NULL, &sampled));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_sample(e, seq, NULL, NULL));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_next(NULL, seq, NULL, &token));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_next(e, seq, NULL, NULL));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_tree_eval(NULL, &tree, 1));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_tree_eval(e, NULL, 1));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_tree_accept(NULL, 0, 0));
    assert_null(dend_tree_logits(NULL, 0, 0));

    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_tokenize(NULL, "a", 1, 0, tokens, 3, &n));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_tokenize(model, NULL, 1, 0, tokens, 3, &n));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_tokenize(model, "a", 1, 0, NULL, 3, &n));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_tokenize(model, NULL, (size_t)-1, 0, tokens, 3, &n));
    ASSERT_STATUS(DEND_OK, dend_tokenize(model, NULL, 0, 0, tokens, 3, &n));
    assert_int_equal(n, 0);
    ASSERT_STATUS(DEND_OK, dend_tokenize(model, "a", (size_t)-1, 0, tokens, 3, &n));
    assert_int_equal(n, 1);
    ASSERT_STATUS(DEND_ERR_BUFFER, dend_tokenize(model, "a", 1, 0, NULL, 0, &n));
    assert_int_equal(n, 1);
    ASSERT_STATUS(DEND_ERR_BUFFER, dend_tokenize(model, "a", 1, 0, NULL, 0, NULL));
    assert_null(dend_token_bytes(NULL, 1, &n));
    assert_null(dend_token_text(NULL, 1, &n));
    assert_false(dend_token_is_end(NULL, 282));
    assert_true(dend_token_is_end(model, 282));
    assert_false(dend_token_is_end(model, -1) || dend_token_is_end(model, INT32_MAX));
    assert_null(dend_token_bytes(model, -1, &n));
    assert_null(dend_token_bytes(model, (int32_t)ENG_V, &n));
    assert_null(dend_token_text(model, INT32_MIN, NULL));
    assert_non_null(dend_token_bytes(model, 5, NULL));
    dend_engine_free(e);
    dend_model_free(model);
}

/* Every call with a handle gives STALE, and nothing changes. */
static void eng_stale(dend_engine *e, dend_seq seq) {
    int32_t token = 1, parent = -1;
    dend_seq child;
    dend_seq_info info;
    dend_writer writer;
    dend_sampled sampled;
    dend_tree tree;
    const float *logits;
    writer.write = eng_write_nothing;
    writer.user = NULL;
    tree.seq = seq;
    tree.n_rows = 1;
    tree.tokens = &token;
    tree.parents = &parent;
    child.slot = 4711;
    child.generation = 4712;
    ENG_REFUSED(DEND_ERR_STALE, e, dend_seq_fork(e, seq, 0, &child));
    assert_int_equal(child.slot, 4711);
    assert_int_equal(child.generation, 4712);
    ENG_REFUSED(DEND_ERR_STALE, e, dend_seq_append(e, seq, &token, 1));
    ENG_REFUSED(DEND_ERR_STALE, e, dend_seq_append(e, seq, NULL, 0));
    ENG_REFUSED(DEND_ERR_STALE, e, dend_seq_append_text(e, seq, "a", 1, 0));
    ENG_REFUSED(DEND_ERR_STALE, e, dend_seq_rewind(e, seq, 0));
    ENG_REFUSED(DEND_ERR_STALE, e, dend_seq_drop(e, seq));
    ENG_REFUSED(DEND_ERR_STALE, e, dend_seq_get_info(e, seq, &info));
    ENG_REFUSED(DEND_ERR_STALE, e, dend_seq_tokens(e, seq, 0, 0, &token));
    ENG_REFUSED(DEND_ERR_STALE, e, dend_seq_save(e, seq, &writer));
    ENG_REFUSED(DEND_ERR_STALE, e, dend_seq_set_stream(e, seq, 1));
    ENG_REFUSED(DEND_ERR_STALE, e, dend_seq_set_user(e, seq, &token));
    assert_null(dend_seq_user(e, seq));
    ENG_REFUSED(DEND_ERR_STALE, e, dend_seq_logits(e, seq, &logits));
    ENG_REFUSED(DEND_ERR_STALE, e, dend_seq_release_logits(e, seq));
    ENG_REFUSED(DEND_ERR_STALE, e, dend_seq_want_logits(e, seq));
    ENG_REFUSED(DEND_ERR_STALE, e, dend_sample(e, seq, NULL, &sampled));
    ENG_REFUSED(DEND_ERR_STALE, e, dend_next(e, seq, NULL, &token));
    ENG_REFUSED(DEND_ERR_STALE, e, dend_tree_eval(e, &tree, 1));
}

static void test_engine_stale(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e, *other;
    int32_t tokens[20];
    dend_seq seq[4], gone, strange;
    test_rng rng;
    uint32_t i;
    (void)state;
    rng.state = 5;
    d.n_seqs = 6;
    e = eng_open(&d);
    other = eng_open(&d);
    eng_tokens(&rng, tokens, 20);
    for (i = 0; i < 4; i++) {
        seq[i] = eng_with(e, tokens, 5 * (i + 1));
        eng_with(other, tokens, 5);
    }
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    memset(&strange, 0, sizeof strange);
    eng_stale(e, strange); /* zero */
    gone = seq[1];
    ASSERT_STATUS(DEND_OK, dend_seq_drop(e, gone));
    eng_stale(e, gone); /* dropped */
    seq[1] = eng_with(e, tokens, 3);
    assert_int_equal(seq[1].slot, gone.slot); /* the slot lives again, the handle does not */
    eng_stale(e, gone);
    strange = eng_seq(other); /* of another engine: its slot 4 is free in this one */
    eng_stale(e, strange);
    strange.slot = 6;
    eng_stale(e, strange); /* no such slot */
    strange.slot = 0xffffffffu;
    eng_stale(e, strange);
    strange = seq[2];
    strange.generation += 1;
    eng_stale(e, strange);
    strange = seq[2];
    strange.generation = 0;
    eng_stale(e, strange);
    for (i = 0; i < 20000; i++) {
        dend_seq_info info;
        strange.slot = i % 2 ? test_below(&rng, 8) : (uint32_t)test_next(&rng);
        strange.generation = (uint32_t)test_next(&rng);
        if (strange.generation > 2) { /* the few handles that exist have small ones */
            ASSERT_STATUS(DEND_ERR_STALE, dend_seq_get_info(e, strange, &info));
        }
    }
    dend_engine_free(other);
    dend_engine_free(e);
    dend_model_free(model);
}

/* -- append: tokens, context, blocks, sequences ---------------------------- */

static void test_engine_append(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e;
    int32_t tokens[100], bad[5] = {1, 2, 3, 4, 5}, got[100];
    const int32_t wrong[5] = {-1, (int32_t)ENG_V, INT32_MAX, INT32_MIN, 0x1000000};
    float expected[ENG_V];
    dend_seq a, b;
    test_rng rng;
    uint32_t i, j;
    (void)state;
    rng.state = 17;
    d.n_ctx = 50;
    e = eng_open(&d);
    eng_tokens(&rng, tokens, 100);
    a = eng_with(e, tokens, 20);
    b = eng_with(e, tokens, 49);
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    for (i = 0; i < 5; i++) { /* one bad token anywhere */
        for (j = 0; j < 5; j++) {
            int32_t keep = bad[j];
            bad[j] = wrong[i];
            ENG_REFUSED(DEND_ERR_TOKEN, e, dend_seq_append(e, a, bad, 5));
            bad[j] = keep;
        }
    }
    ENG_REFUSED(DEND_ERR_CONTEXT_FULL, e, dend_seq_append(e, a, tokens, 31));
    ENG_REFUSED(DEND_ERR_CONTEXT_FULL, e, dend_seq_append(e, a, tokens, 100));
    ENG_REFUSED(DEND_ERR_CONTEXT_FULL, e, dend_seq_append(e, b, tokens, 2));
    ASSERT_STATUS(DEND_OK, dend_seq_append(e, b, tokens + 49, 1)); /* exactly full */
    ENG_REFUSED(DEND_ERR_CONTEXT_FULL, e, dend_seq_append(e, b, tokens, 1));
    ENG_REFUSED(DEND_OK, e, dend_seq_append(e, b, tokens, 0));
    ASSERT_STATUS(DEND_OK, dend_seq_append(e, a, tokens + 20, 30));
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    eng_fresh(model, DEND_KV_F16, 16, tokens, 50, expected, NULL);
    eng_equal(expected, eng_logits(e, a), "appended twice", 0);
    eng_equal(expected, eng_logits(e, b), "appended twice", 1);
    ASSERT_STATUS(DEND_OK, dend_seq_tokens(e, a, 0, 50, got));
    assert_memory_equal(got, tokens, 50 * sizeof(int32_t));
    {
        dend_seq c = eng_seq(e); /* over-long in one go: refused at n_ctx + 1 only */
        ENG_REFUSED(DEND_ERR_CONTEXT_FULL, e, dend_seq_append(e, c, tokens, 51));
        ASSERT_STATUS(DEND_OK, dend_seq_append(e, c, tokens, 50));
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
        eng_equal(expected, eng_logits(e, c), "in one go", 0);
    }
    eng_all_free(e);
    dend_engine_free(e);
    dend_model_free(model);
}

/* 10 blocks: refused from the eleventh on, whole or not at all. */
static void test_engine_out_of_blocks(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    uint32_t block_tokens;
    (void)state;
    for (block_tokens = 16; block_tokens <= 48; block_tokens += 16) {
        dend_engine_desc d = eng_desc(model);
        dend_engine *e;
        uint32_t P = block_tokens;
        int32_t tokens[10 * 48 + 1];
        float before[ENG_V], expected[ENG_V];
        dend_seq a, b, c;
        test_rng rng;
        rng.state = 3;
        d.n_ctx = 1024;
        d.n_blocks = 10;
        d.block_tokens = P;
        e = eng_open(&d);
        eng_tokens(&rng, tokens, 10 * P + 1);
        a = eng_seq(e);
        ENG_REFUSED(DEND_ERR_NO_BLOCKS, e, dend_seq_append(e, a, tokens, 10 * P + 1));
        ASSERT_STATUS(DEND_OK, dend_seq_append(e, a, tokens, 10 * P));
        assert_int_equal(eng_stats(e).n_blocks_free, 0);
        ENG_REFUSED(DEND_ERR_NO_BLOCKS, e, dend_seq_append(e, a, tokens, 1));
        ASSERT_STATUS(DEND_OK, dend_seq_rewind(e, a, 0));
        ASSERT_STATUS(DEND_OK,
                      dend_seq_append(e, a, tokens, 6 * P - 3)); /* 6 blocks, the last with 3 free slots */
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
        memcpy(before, eng_logits(e, a), sizeof before);
        b = eng_with(e, tokens, 3 * P);
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
        assert_int_equal(eng_stats(e).n_blocks_free, 1);
        c = eng_fork(e, a);                                       /* costs nothing, needs nothing */
        ASSERT_STATUS(DEND_OK, dend_seq_append(e, c, tokens, 3)); /* the shared tail is full, not copied */
        assert_int_equal(eng_stats(e).n_blocks_free, 1);
        ENG_REFUSED(DEND_ERR_NO_BLOCKS, e,
                    dend_seq_append(e, a, tokens, 4)); /* the tail's copy and one more */
        ENG_REFUSED(DEND_ERR_NO_BLOCKS, e, dend_seq_append(e, c, tokens, P + 1));
        eng_equal(before, eng_logits(e, a), "other sequence", P);
        ASSERT_STATUS(DEND_OK, dend_seq_append(e, a, tokens, 3)); /* the copy alone fits */
        assert_int_equal(eng_stats(e).n_blocks_free, 0);
        ENG_REFUSED(DEND_ERR_NO_BLOCKS, e, dend_seq_append(e, c, tokens, 1));
        ENG_REFUSED(DEND_ERR_NO_BLOCKS, e, dend_seq_append(e, b, tokens, 1));
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
        ASSERT_STATUS(DEND_OK, dend_seq_drop(e, b));
        ASSERT_STATUS(DEND_OK, dend_seq_append(e, c, tokens, 3 * P)); /* what b gave up */
        ENG_REFUSED(DEND_ERR_NO_BLOCKS, e, dend_seq_append(e, c, tokens, 1));
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
        memcpy(tokens + 6 * P - 3, tokens, 3 * sizeof(int32_t)); /* now what a holds */
        eng_fresh(model, DEND_KV_F16, P, tokens, 6 * P, expected, NULL);
        eng_equal(expected, eng_logits(e, a), "after a copy", P);
        ASSERT_STATUS(DEND_OK, dend_seq_rewind(e, c, 6 * P));
        ASSERT_STATUS(DEND_OK, dend_seq_want_logits(e, c));
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
        eng_equal(expected, eng_logits(e, c), "in place", P);
        eng_all_free(e);
        dend_engine_free(e);
    }
    dend_model_free(model);
}

static void test_engine_out_of_sequences(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e;
    dend_seq seq[5], out;
    int32_t token = 3;
    uint32_t i;
    (void)state;
    d.n_seqs = 5;
    e = eng_open(&d);
    seq[0] = eng_with(e, &token, 1);
    for (i = 1; i < 5; i++) {
        if (i % 2) {
            seq[i] = eng_fork(e, seq[0]);
        } else {
            seq[i] = eng_seq(e);
        }
        assert_int_equal(eng_stats(e).n_seqs_free, 4 - i);
    }
    out.slot = 99;
    out.generation = 98;
    ENG_REFUSED(DEND_ERR_NO_SEQUENCES, e, dend_seq_create(e, &out));
    ENG_REFUSED(DEND_ERR_NO_SEQUENCES, e, dend_seq_fork(e, seq[0], 0, &out));
    assert_int_equal(out.slot, 99);
    assert_int_equal(out.generation, 98);
    for (i = 0; i < 5; i++) { /* every one of them can be written */
        ASSERT_STATUS(DEND_OK, dend_seq_append(e, seq[i], &token, 1));
    }
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    ASSERT_STATUS(DEND_OK, dend_seq_drop(e, seq[3]));
    ASSERT_STATUS(DEND_OK, dend_seq_fork(e, seq[4], 0, &out));
    ENG_REFUSED(DEND_ERR_NO_SEQUENCES, e, dend_seq_create(e, &out));
    assert_int_equal(eng_stats(e).n_seqs, 5);
    eng_all_free(e);
    dend_engine_free(e);
    dend_model_free(model);
}

/* -- logits rows ----------------------------------------------------------- */

/* Seven sequences, two rows: a step serves what it can and says so, and goes
 * on as rows are released. */
static void test_engine_out_of_logits(void **state) {
    dend_model *model = eng_load(ENG_QWEN2);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e;
    dend_seq seq[7], quiet;
    int32_t tokens[7][30];
    bool served[7];
    test_rng rng;
    uint32_t i, n_served = 0, rounds;
    (void)state;
    rng.state = 8;
    d.n_logits = 2;
    d.n_batch = 16;
    e = eng_open(&d);
    for (i = 0; i < 7; i++) {
        eng_tokens(&rng, tokens[i], 30);
        seq[i] = eng_with(e, tokens[i], 1 + 4 * i);
        served[i] = false;
    }
    for (rounds = 0; n_served < 7; rounds++) {
        dend_status status = dend_step(e, 0);
        uint32_t n_waiting = 0;
        assert_true(rounds < 7);
        ASSERT_STATUS(n_served + 2 < 7 ? DEND_ERR_NO_LOGITS : DEND_OK, status);
        if (status == DEND_ERR_NO_LOGITS) {
            ENG_REFUSED(DEND_ERR_NO_LOGITS, e, dend_step(e, 0)); /* nothing can move now */
            quiet = eng_with(e, tokens[0], 30);
            ASSERT_STATUS(DEND_OK, dend_seq_release_logits(e, quiet)); /* what wants no logits still moves */
            ASSERT_STATUS(DEND_ERR_NO_LOGITS, dend_step(e, 0));
            assert_int_equal(eng_info(e, quiet).n_waiting, 0);
            ASSERT_STATUS(DEND_OK, dend_seq_drop(e, quiet));
        }
        for (i = 0; i < 7; i++) {
            const float *logits = NULL;
            dend_seq_info info = eng_info(e, seq[i]);
            n_waiting += info.n_waiting;
            if (info.has_logits && !served[i]) {
                float expected[ENG_V];
                eng_fresh(model, DEND_KV_F16, 16, tokens[i], 1 + 4 * i, expected, NULL);
                eng_equal(expected, eng_logits(e, seq[i]), "served", i);
                served[i] = true;
                n_served++;
            } else if (!served[i]) {
                assert_int_equal(info.n_waiting, 1); /* all but the last token went through */
                ENG_REFUSED(DEND_ERR_WAITING, e, dend_seq_logits(e, seq[i], &logits));
                assert_null(logits);
            }
            if (info.has_logits) {
                ASSERT_STATUS(DEND_OK, dend_seq_release_logits(e, seq[i]));
                ENG_REFUSED(DEND_ERR_NO_LOGITS, e, dend_seq_logits(e, seq[i], &logits));
            }
        }
        assert_int_equal(n_waiting, 7 - n_served);
        assert_int_equal(eng_stats(e).n_waiting, n_waiting);
        assert_int_equal(eng_stats(e).n_logits_free, 2);
    }
    assert_int_equal(rounds, 4);
    eng_all_free(e);
    dend_engine_free(e);
    dend_model_free(model);
}

/* One logits row. dend_next serves whoever holds it, though another waits for it. */
static void test_engine_next_starved(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e;
    dend_seq a, b;
    dend_sampled expected;
    int32_t tokens[8], token = -1;
    test_rng rng;
    (void)state;
    rng.state = 23;
    d.n_logits = 1;
    e = eng_open(&d);
    eng_tokens(&rng, tokens, 8);
    a = eng_with(e, tokens, 5);
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    ASSERT_STATUS(DEND_OK, dend_sample(e, a, NULL, &expected));
    b = eng_with(e, tokens + 1, 7);
    ASSERT_STATUS(DEND_ERR_NO_LOGITS, dend_step(e, 0));
    ASSERT_STATUS(DEND_ERR_NO_LOGITS, dend_next(e, b, NULL, &token)); /* its own last token waits */
    ASSERT_STATUS(DEND_OK, dend_next(e, a, NULL, &token));
    assert_int_equal(token, expected.token);
    ASSERT_STATUS(DEND_OK, dend_next(e, b, NULL, &token)); /* a's token has given the row up */
    dend_engine_free(e);
    dend_model_free(model);
}

/* Rows are shared by forks, given back by the last of them, and come again on demand. */
static void test_engine_logits(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F16);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e;
    dend_seq a, b, c, empty;
    int32_t tokens[40];
    float expected[ENG_V];
    const float *row, *other = NULL;
    dend_sampled sampled;
    test_rng rng;
    uint64_t n_rows;
    (void)state;
    rng.state = 21;
    d.n_logits = 3;
    e = eng_open(&d);
    eng_tokens(&rng, tokens, 40);
    empty = eng_seq(e);
    ENG_REFUSED(DEND_ERR_NO_LOGITS, e, dend_seq_logits(e, empty, &other));
    ENG_REFUSED(DEND_ERR_NO_LOGITS, e, dend_sample(e, empty, NULL, &sampled));
    ENG_REFUSED(DEND_OK, e, dend_seq_want_logits(e, empty)); /* there is no last token */
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    assert_int_equal(eng_stats(e).n_rows, 0);
    a = eng_with(e, tokens, 33);
    ENG_REFUSED(DEND_ERR_WAITING, e, dend_seq_logits(e, a, &other));
    ENG_REFUSED(DEND_ERR_WAITING, e, dend_sample(e, a, NULL, &sampled));
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    eng_fresh(model, DEND_KV_F16, 16, tokens, 33, expected, NULL);
    row = eng_logits(e, a);
    eng_equal(expected, row, "row", 0);
    assert_int_equal(eng_stats(e).n_logits_free, 2);
    b = eng_fork(e, a);
    c = eng_fork(e, a);
    assert_ptr_equal(row, eng_logits(e, b));
    assert_int_equal(eng_stats(e).n_logits_free, 2);
    ASSERT_STATUS(DEND_OK, dend_seq_release_logits(e, b)); /* of b alone */
    ENG_REFUSED(DEND_ERR_NO_LOGITS, e, dend_seq_logits(e, b, &other));
    ENG_REFUSED(DEND_OK, e, dend_seq_release_logits(e, b)); /* again: nothing to do */
    assert_ptr_equal(row, eng_logits(e, a));
    assert_ptr_equal(row, eng_logits(e, c));
    ASSERT_STATUS(DEND_OK, dend_seq_append(e, a, tokens + 33, 1));
    ENG_REFUSED(DEND_ERR_WAITING, e, dend_seq_logits(e, a, &other));
    eng_equal(expected, eng_logits(e, c), "sharer", 0); /* c still holds the row */
    ASSERT_STATUS(DEND_OK, dend_seq_drop(e, c));
    assert_int_equal(eng_stats(e).n_logits_free, 3);
    n_rows = eng_stats(e).n_rows;
    ASSERT_STATUS(DEND_OK, dend_seq_want_logits(e, b));
    ASSERT_STATUS(DEND_OK, dend_seq_want_logits(e, b)); /* twice is once */
    assert_int_equal(eng_stats(e).n_waiting, 1);        /* a's token: b has none */
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    assert_int_equal(eng_stats(e).n_rows, n_rows + 2);
    eng_equal(expected, eng_logits(e, b), "wanted again", 0);
    ENG_REFUSED(DEND_OK, e, dend_seq_want_logits(e, b)); /* it has them */
    eng_fresh(model, DEND_KV_F16, 16, tokens, 34, expected, NULL);
    eng_equal(expected, eng_logits(e, a), "moved on", 0);

    ASSERT_STATUS(DEND_OK, dend_seq_append(e, b, tokens + 33,
                                           7)); /* released before the step: computed, without logits */
    ASSERT_STATUS(DEND_OK, dend_seq_release_logits(e, b));
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    ENG_REFUSED(DEND_ERR_NO_LOGITS, e, dend_seq_logits(e, b, &other));
    assert_int_equal(eng_info(e, b).n_waiting, 0);
    ASSERT_STATUS(DEND_OK, dend_seq_want_logits(e, b));
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    eng_fresh(model, DEND_KV_F16, 16, tokens, 40, expected, NULL);
    eng_equal(expected, eng_logits(e, b), "wanted late", 0);
    assert_null(other);
    eng_all_free(e);
    dend_engine_free(e);
    dend_model_free(model);
}

/* -- rewind ---------------------------------------------------------------- */

static void test_engine_rewind(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e;
    dend_seq a, b;
    int32_t tokens[120], got[120];
    float expected[ENG_V];
    const float *logits;
    test_rng rng;
    uint32_t cut;
    uint64_t hash;
    (void)state;
    rng.state = 30;
    d.n_ctx = 120;
    e = eng_open(&d);
    eng_tokens(&rng, tokens, 120);
    a = eng_with(e, tokens, 60);
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    assert_int_equal(eng_info(e, a).rewind_min, 0);
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_seq_rewind(e, a, 61));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_seq_rewind(e, a, 0xffffffffu));
    ENG_REFUSED(DEND_OK, e, dend_seq_rewind(e, a, 60)); /* its logits stay */
    b = eng_fork(e, a);
    for (cut = 59; cut > 5; cut -= cut > 40 ? 1 : 7) {
        ASSERT_STATUS(DEND_OK, dend_seq_rewind(e, a, cut));
        ENG_REFUSED(DEND_ERR_NO_LOGITS, e, dend_seq_logits(e, a, &logits));
        assert_int_equal(eng_info(e, a).len_tokens, cut);
        assert_int_equal(eng_info(e, a).n_blocks, (cut + 15) / 16);
        ASSERT_STATUS(DEND_OK, dend_seq_want_logits(e, a));
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
        eng_fresh(model, DEND_KV_F16, 16, tokens, cut, expected, &hash);
        eng_equal(expected, eng_logits(e, a), "cut to", cut);
        assert_true(eng_info(e, a).prefix_hash == hash);
        if (cut % 4 == 0) { /* go on with other tokens, and come back */
            memcpy(got, tokens, cut * sizeof(int32_t));
            memcpy(got + cut, tokens + 90, 30 * sizeof(int32_t));
            ASSERT_STATUS(DEND_OK, dend_seq_append(e, a, tokens + 90, 30));
            ASSERT_STATUS(DEND_OK, dend_step(e, 0));
            eng_fresh(model, DEND_KV_F16, 16, got, cut + 30, expected, &hash);
            eng_equal(expected, eng_logits(e, a), "on from", cut);
            assert_true(eng_info(e, a).prefix_hash == hash);
        }
    }
    ASSERT_STATUS(DEND_OK, dend_seq_rewind(e, a, 0));
    assert_int_equal(eng_info(e, a).n_blocks, 0);
    assert_true(eng_info(e, a).prefix_hash == 0);
    ENG_REFUSED(DEND_OK, e, dend_seq_rewind(e, a, 0));
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    ENG_REFUSED(DEND_ERR_NO_LOGITS, e, dend_seq_logits(e, a, &logits));
    ASSERT_STATUS(DEND_OK, dend_seq_append(e, a, tokens, 60)); /* and begins anew */
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    eng_fresh(model, DEND_KV_F16, 16, tokens, 60, expected, NULL);
    eng_equal(expected, eng_logits(e, a), "anew", 0);
    eng_equal(expected, eng_logits(e, b), "fork", 0);               /* nothing of this reached the fork */
    ASSERT_STATUS(DEND_OK, dend_seq_append(e, b, tokens + 60, 50)); /* rewinding waiting tokens */
    ASSERT_STATUS(DEND_OK, dend_seq_rewind(e, b, 70));
    assert_int_equal(eng_info(e, b).n_waiting, 10);
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    eng_fresh(model, DEND_KV_F16, 16, tokens, 70, expected, NULL);
    eng_equal(expected, eng_logits(e, b), "waiting ones", 0);
    eng_all_free(e);
    dend_engine_free(e);
    dend_model_free(model);
}

/* A rewind that would have to copy a path, but has no node left, is refused
 * whole. (Nodes outlast blocks in every engine that create makes, so the test
 * takes them away by hand.) */
static void test_engine_rewind_no_nodes(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e;
    dend_seq a, b;
    int32_t tokens[60];
    uint32_t n_free, first_free;
    test_rng rng;
    (void)state;
    rng.state = 9;
    d.n_ctx = 100;
    e = eng_open(&d);
    eng_tokens(&rng, tokens, 60);
    a = eng_with(e, tokens, 60);
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    b = eng_fork(e, a);
    n_free = e->cache.nodes.n_free;
    first_free = e->cache.nodes.first_free;
    e->cache.nodes.n_free = 0;
    e->cache.nodes.first_free = DENDP_NONE;
    ENG_REFUSED(DEND_ERR_NO_BLOCKS, e, dend_seq_rewind(e, b, 17));
    ENG_REFUSED(DEND_ERR_NO_BLOCKS, e, dend_seq_append(e, b, tokens, 10));
    e->cache.nodes.n_free = n_free;
    e->cache.nodes.first_free = first_free;
    ASSERT_STATUS(DEND_OK, dend_seq_rewind(e, b, 17));
    dend_engine_free(e);
    dend_model_free(model);
}

/* -- forks, streams, users ------------------------------------------------- */

/* Waiting tokens that forks share are computed once. */
static void test_engine_fork_waiting(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    uint32_t batch;
    (void)state;
    for (batch = 7; batch <= 256; batch += 249) {
        dend_engine_desc d = eng_desc(model);
        dend_engine *e;
        dend_seq a, b, c, f;
        int32_t tokens[42];
        float expected[ENG_V];
        test_rng rng;
        uint32_t i;
        rng.state = 12;
        d.n_batch = batch;
        e = eng_open(&d);
        eng_tokens(&rng, tokens, 42);
        a = eng_with(e, tokens, 37);
        b = eng_fork(e, a);
        c = eng_fork(e, b);
        assert_int_equal(eng_info(e, c).n_waiting, 37);
        assert_int_equal(eng_stats(e).n_waiting, 37); /* not 111 */
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
        assert_int_equal(eng_stats(e).n_rows, 37);
        eng_fresh(model, DEND_KV_F16, 16, tokens, 37, expected, NULL);
        eng_equal(expected, eng_logits(e, a), "shared", 0);
        assert_ptr_equal(eng_logits(e, a), eng_logits(e, b));
        assert_ptr_equal(eng_logits(e, a), eng_logits(e, c));
        assert_int_equal(eng_stats(e).n_forks, 2);
        assert_int_equal(eng_stats(e).n_block_copies, 0);
        dend_engine_free(e);

        e = eng_open(&d); /* and each goes on before the first step */
        a = eng_with(e, tokens, 40);
        b = eng_fork(e, a);
        c = eng_fork(e, a);
        f = eng_fork(e, a);
        ASSERT_STATUS(DEND_OK, dend_seq_append(e, b, tokens + 40, 1));
        ASSERT_STATUS(DEND_OK, dend_seq_append(e, c, tokens + 41, 1));
        ASSERT_STATUS(DEND_OK, dend_seq_drop(e, f));
        assert_int_equal(eng_stats(e).n_block_copies, 1); /* b extends the tail in place, c copies it */
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
        /* 40 shared; b one more; c the 8 that waited in its copy, and one more */
        assert_int_equal(eng_stats(e).n_rows, 40 + 1 + 9);
        for (i = 0; i < 2; i++) {
            tokens[40] = tokens[40 + i];
            eng_fresh(model, DEND_KV_F16, 16, tokens, 41, expected, NULL);
            eng_equal(expected, eng_logits(e, i == 0 ? b : c), "own way", i);
        }
        eng_fresh(model, DEND_KV_F16, 16, tokens, 40, expected, NULL);
        eng_equal(expected, eng_logits(e, a), "parent", 0);
        eng_all_free(e);
        dend_engine_free(e);
    }
    dend_model_free(model);
}

static void test_engine_streams(void **state) {
    dend_model *model = eng_load(ENG_QWEN2);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e, *twin;
    dend_sample_params p;
    dend_seq a, b, same, child[40], twin_a;
    dend_sampled x, y;
    int32_t token = 9, drawn[40];
    uint64_t streams[40];
    uint32_t i, j, n_distinct = 0, n_equal = 0;
    int box[2] = {1, 2};
    (void)state;
    memset(&p, 0, sizeof p);
    p.temperature = 1.5f;
    d.seed = 77;
    e = eng_open(&d);
    a = eng_with(e, &token, 1);
    b = eng_with(e, &token, 1);
    assert_true(eng_info(e, a).stream != eng_info(e, b).stream);
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    ASSERT_STATUS(DEND_OK, dend_seq_fork(e, a, DEND_FORK_SAME_STREAM, &same));
    assert_true(eng_info(e, a).stream == eng_info(e, same).stream);
    for (i = 0; i < 40; i++) { /* by default each child draws for itself */
        child[i] = eng_fork(e, a);
        streams[i] = eng_info(e, child[i]).stream;
        ASSERT_STATUS(DEND_OK, dend_sample(e, child[i], &p, &x));
        drawn[i] = x.token;
        for (j = 0; j < i && drawn[j] != drawn[i]; j++) {
        }
        n_distinct += j == i;
        for (j = 0; j < i; j++) {
            assert_true(streams[j] != streams[i]);
        }
    }
    assert_true(n_distinct > 5);
    ASSERT_STATUS(DEND_OK, dend_sample(e, a, &p, &x));
    ASSERT_STATUS(DEND_OK, dend_sample(e, same, &p, &y));
    assert_int_equal(x.token, y.token);
    ASSERT_STATUS(DEND_OK, dend_seq_set_stream(e, b, eng_info(e, a).stream)); /* same text, same stream */
    for (i = 0; i < 30; i++) {
        dend_status status = dend_next(e, a, &p, &drawn[0]), other = dend_next(e, b, &p, &drawn[1]);
        assert_int_equal(status, other);
        assert_int_equal(drawn[0], drawn[1]);
        if (status == DEND_END) {
            break;
        }
        ASSERT_STATUS(DEND_OK, status);
    }
    twin = eng_open(&d); /* streams are a function of seed and order of creation */
    twin_a = eng_with(twin, &token, 1);
    eng_with(twin, &token, 1);
    for (i = 0; i < 40; i++) {
        assert_true(eng_info(twin, eng_fork(twin, twin_a)).stream == streams[i]);
    }
    dend_engine_free(twin);
    d.seed = 78;
    twin = eng_open(&d);
    twin_a = eng_with(twin, &token, 1);
    for (i = 0; i < 40; i++) {
        n_equal += eng_info(twin, eng_fork(twin, twin_a)).stream == streams[i];
    }
    assert_int_equal(n_equal, 0);
    dend_engine_free(twin);
    ASSERT_STATUS(DEND_OK, dend_seq_set_stream(e, child[0], 5)); /* children of a set stream repeat */
    x.token = (int32_t)(eng_info(e, eng_fork(e, child[0])).stream & 0xffff);
    ASSERT_STATUS(DEND_OK, dend_seq_set_stream(e, child[1], 5));
    assert_int_equal(x.token, (int32_t)(eng_info(e, eng_fork(e, child[1])).stream & 0xffff));

    assert_null(dend_seq_user(e, a));
    ASSERT_STATUS(DEND_OK, dend_seq_set_user(e, a, &box[0]));
    ASSERT_STATUS(DEND_OK, dend_seq_set_user(e, b, &box[1]));
    assert_ptr_equal(dend_seq_user(e, a), &box[0]);
    assert_ptr_equal(dend_seq_user(e, b), &box[1]);
    same = eng_fork(e, a);
    assert_null(dend_seq_user(e, same)); /* the pointer is the handle's own */
    ASSERT_STATUS(DEND_OK, dend_seq_append(e, a, &token, 1));
    assert_ptr_equal(dend_seq_user(e, a), &box[0]);
    ASSERT_STATUS(DEND_OK, dend_seq_drop(e, a));
    a = eng_seq(e);
    assert_null(dend_seq_user(e, a));
    eng_all_free(e);
    dend_engine_free(e);
    dend_model_free(model);
}

static void test_engine_tokens(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e;
    int32_t tokens[50], got[50];
    dend_seq a;
    test_rng rng;
    uint32_t from, n;
    (void)state;
    rng.state = 2;
    e = eng_open(&d);
    eng_tokens(&rng, tokens, 50);
    a = eng_with(e, tokens, 50);
    for (from = 0; from <= 50; from++) {
        for (n = 0; from + n <= 50; n++) {
            memset(got, 0x7f, sizeof got);
            ASSERT_STATUS(DEND_OK, dend_seq_tokens(e, a, from, n, got));
            assert_memory_equal(got, tokens + from, n * sizeof(int32_t));
            assert_true(n == 50 || got[n] == 0x7f7f7f7f);
        }
        ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_seq_tokens(e, a, from, n, got));
    }
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_seq_tokens(e, a, 51, 0, got));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_seq_tokens(e, a, 1, 0xffffffffu, got));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_seq_tokens(e, a, 0xffffffffu, 2, got));
    dend_engine_free(e);
    dend_model_free(model);
}

/* -- text ------------------------------------------------------------------ */

/* The bytes of a sequence's tokens from `from` on are `text`. */
static void eng_reads(const dend_engine *e, dend_seq seq, uint32_t from, const char *text, size_t n_bytes) {
    uint32_t len = eng_info(e, seq).len_tokens, i;
    size_t at = 0;
    for (i = from; i < len; i++) {
        int32_t token = -1;
        size_t n = 0;
        const char *bytes;
        ASSERT_STATUS(DEND_OK, dend_seq_tokens(e, seq, i, 1, &token));
        bytes = dend_token_bytes(e->model, token, &n);
        assert_true(n <= n_bytes - at);
        assert_memory_equal(bytes, text + at, n);
        at += n;
    }
    assert_int_equal(at, n_bytes);
}

static void test_engine_text(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F16), *plain = eng_load(ENG_LLAMA_F32);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e, *no_bos;
    const char *end_text;
    char text[256];
    dend_seq a, b;
    int32_t token = -1;
    size_t n = 0;
    test_rng rng;
    uint32_t i, j;
    (void)state;
    rng.state = 13;
    d.n_ctx = 64;
    e = eng_open(&d);
    a = eng_seq(e);
    ASSERT_STATUS(DEND_OK, dend_seq_append_text(e, a, "", 0, 0)); /* bos alone */
    assert_int_equal(eng_info(e, a).len_tokens, 1);
    ENG_REFUSED(DEND_OK, e, dend_seq_append_text(e, a, "", 0, 0)); /* and only once */
    ENG_REFUSED(DEND_OK, e, dend_seq_append_text(e, a, "\0abc", (size_t)-1, 0));
    ASSERT_STATUS(DEND_OK, dend_seq_append_text(e, a, "hello world", (size_t)-1, 0));
    ASSERT_STATUS(DEND_OK, dend_seq_tokens(e, a, 0, 1, &token));
    assert_int_equal(token, 281);
    eng_reads(e, a, 1, "hello world", 11);
    end_text = dend_token_text(model, 282, &n); /* the text of a special token is that token */
    j = eng_info(e, a).len_tokens;
    ASSERT_STATUS(DEND_OK, dend_seq_append_text(e, a, end_text, n, 0));
    assert_int_equal(eng_info(e, a).len_tokens, j + 1);
    ASSERT_STATUS(DEND_OK, dend_seq_tokens(e, a, j, 1, &token));
    assert_int_equal(token, 282);
    for (i = 0; i < 50; i++) { /* any bytes at all, NULs among them */
        n = test_below(&rng, 40);
        for (j = 0; j < n; j++) {
            text[j] = (char)(test_below(&rng, 3) ? test_below(&rng, 256) : 0);
        }
        b = eng_seq(e);
        ASSERT_STATUS(DEND_OK, dend_seq_append_text(e, b, text, n, 0));
        eng_reads(e, b, 1, text, n);
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
        ASSERT_STATUS(DEND_OK, dend_seq_drop(e, b));
    }
    memset(text, (char)0xff, sizeof text); /* invalid throughout: one token a byte */
    b = eng_seq(e);
    ENG_REFUSED(DEND_ERR_CONTEXT_FULL, e, dend_seq_append_text(e, b, text, 64, 0)); /* bos makes it 65 */
    ENG_REFUSED(DEND_ERR_CONTEXT_FULL, e, dend_seq_append_text(e, b, text, 256, 0));
    ASSERT_STATUS(DEND_OK, dend_seq_append_text(e, b, text, 63, 0));
    assert_int_equal(eng_info(e, b).len_tokens, 64);
    ENG_REFUSED(DEND_ERR_CONTEXT_FULL, e, dend_seq_append_text(e, b, "a", 1, 0));
    ENG_REFUSED(DEND_OK, e, dend_seq_append_text(e, b, "", 0, 0));
    ASSERT_STATUS(DEND_OK, dend_seq_rewind(e, b, 40));
    ENG_REFUSED(DEND_ERR_CONTEXT_FULL, e, dend_seq_append_text(e, b, text, 25, 0));
    ASSERT_STATUS(DEND_OK, dend_seq_append_text(e, b, text, 24, 0));
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    dend_engine_free(e);

    d = eng_desc(plain); /* a model that wants no bos */
    d.n_blocks = 2;
    no_bos = eng_open(&d);
    a = eng_seq(no_bos);
    ENG_REFUSED(DEND_OK, no_bos, dend_seq_append_text(no_bos, a, "", 0, 0));
    assert_int_equal(eng_info(no_bos, a).len_tokens, 0);
    ENG_REFUSED(DEND_ERR_NO_BLOCKS, no_bos, dend_seq_append_text(no_bos, a, text, 33, 0));
    ASSERT_STATUS(DEND_OK, dend_seq_append_text(no_bos, a, text, 32, 0));
    plain->has_tokenizer = false; /* as if the file had carried none */
    ENG_REFUSED(DEND_ERR_UNSUPPORTED, no_bos, dend_seq_append_text(no_bos, a, "a", 1, 0));
    ASSERT_STATUS(DEND_ERR_UNSUPPORTED, dend_tokenize(plain, "a", 1, 0, &token, 1, &n));
    assert_null(dend_token_bytes(plain, 5, NULL));
    assert_null(dend_token_text(plain, 5, NULL));
    assert_false(dend_token_is_end(plain, 282));
    plain->has_tokenizer = true;
    dend_engine_free(no_bos);
    dend_model_free(plain);
    dend_model_free(model);
}

/* -- time ------------------------------------------------------------------ */

/* A budget of a microsecond ends every step after one task; what comes out in
 * the end is the same. */
static void test_engine_budget(void **state) {
    const uint64_t large[4] = {0xffffffffffffffffu, (uint64_t)1 << 61, (uint64_t)1 << 54, 3600000000u};
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e;
    dend_seq seq[3];
    int32_t tokens[200];
    float expected[ENG_V];
    test_rng rng;
    uint32_t i, n_pending = 0;
    uint64_t n_rows = 0;
    (void)state;
    rng.state = 44;
    d.n_ctx = 200;
    d.n_batch = 8;
    e = eng_open(&d);
    eng_tokens(&rng, tokens, 200);
    for (i = 0; i < 3; i++) {
        seq[i] = eng_with(e, tokens, 200 - 60 * i);
    }
    for (;;) {
        dend_status status = dendp_step_run(e, 1);
        assert_true(eng_stats(e).n_rows <= n_rows + 8);
        n_rows = eng_stats(e).n_rows;
        if (status == DEND_OK) {
            break;
        }
        ASSERT_STATUS(DEND_PENDING, status);
        n_pending++;
    }
    assert_true(n_pending >=
                50 * 2 * 12); /* 420 tokens in batches of 8, 2 layers, 12 operations: each gets on by one */
    assert_true(n_pending <= 53 * (2 * (12 * 64) + 4 * 64));
    assert_int_equal(eng_stats(e).n_waiting, 0);
    for (i = 0; i < 3; i++) {
        eng_fresh(model, DEND_KV_F16, 16, tokens, 200 - 60 * i, expected, NULL);
        eng_equal(expected, eng_logits(e, seq[i]), "in slices", i);
    }
    for (i = 0; i < 4; i++) { /* budgets that no clock will reach */
        ASSERT_STATUS(DEND_OK, dend_seq_rewind(e, seq[0], 100));
        ASSERT_STATUS(DEND_OK, dend_seq_append(e, seq[0], tokens + 100, 100));
        ASSERT_STATUS(DEND_OK, dend_step(e, large[i]));
    }
    ENG_REFUSED(DEND_OK, e, dend_step(e, 1)); /* nothing waits */
    eng_all_free(e);
    dend_engine_free(e);
    dend_model_free(model);
}

/* -- sampling and next ----------------------------------------------------- */

static void test_engine_sample(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e;
    dend_sample_params p;
    dend_seq a;
    int32_t tokens[20];
    uint32_t scratch[ENG_V], i;
    test_rng rng;
    (void)state;
    rng.state = 19;
    e = eng_open(&d);
    eng_tokens(&rng, tokens, 20);
    a = eng_with(e, tokens, 20);
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    for (i = 0; i < 200; i++) { /* the engine adds the key: its stream, its length */
        dend_sampled x, y;
        memset(&p, 0, sizeof p);
        p.temperature = i % 3 ? 0.5f + 0.01f * (float)i : 0.0f;
        p.top_k = i % 4 ? 0 : 20;
        p.top_p = i % 5 ? 0.0f : 0.7f;
        p.min_p = i % 7 ? 0.0f : 0.01f;
        p.salt = i;
        ASSERT_STATUS(DEND_OK, dend_sample(e, a, &p, &x));
        ASSERT_STATUS(
            DEND_OK, dend_sample_logits(eng_logits(e, a), ENG_V, &p, eng_info(e, a).stream, 20, scratch, &y));
        assert_int_equal(x.token, y.token);
        assert_memory_equal(&x.logprob, &y.logprob, sizeof(float));
        assert_true(x.logprob <= 0.0f);
    }
    for (i = 0; i < 4; i++) {
        dend_sampled x;
        memset(&p, 0, sizeof p);
        p.temperature = i == 0 ? -1.0f : i == 1 ? dendp_bits_f32(0x7fc00000u) : 1.0f;
        p.top_p = i == 2 ? -0.5f : 0.0f;
        p.min_p = i == 3 ? 2.0f : 0.0f;
        ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_sample(e, a, &p, &x));
    }
    dend_engine_free(e);
    dend_model_free(model);
}

static void test_engine_next(void **state) {
    dend_model *model = eng_load(ENG_QWEN2);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e;
    dend_sample_params p;
    dend_seq a, b, empty;
    dend_status status = DEND_OK;
    int32_t tokens[10], token = -5, n_ends = 0;
    uint32_t i, n = 10;
    test_rng rng;
    (void)state;
    rng.state = 64;
    d.n_ctx = 40;
    e = eng_open(&d);
    eng_tokens(&rng, tokens, 10);
    empty = eng_seq(e);
    ENG_REFUSED(DEND_ERR_NO_LOGITS, e, dend_next(e, empty, NULL, &token));
    a = eng_with(e, tokens, 10);
    b = eng_with(e, tokens, 10);
    for (i = 0; i < 30; i++) { /* greedy: step, argmax, append */
        dend_sampled sampled;
        ASSERT_STATUS(DEND_OK, dend_seq_want_logits(e, b));
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
        ASSERT_STATUS(DEND_OK, dend_sample(e, b, NULL, &sampled));
        status = dend_next(e, a, NULL, &token);
        assert_int_equal(token, sampled.token);
        if (status == DEND_END) {
            assert_true(dend_token_is_end(model, token));
            break;
        }
        ASSERT_STATUS(DEND_OK, status);
        ASSERT_STATUS(DEND_OK, dend_seq_append(e, b, &token, 1));
        n++;
        assert_int_equal(eng_info(e, a).len_tokens, n);
    }
    if (status == DEND_OK) { /* the context is full now */
        token = -5;
        ASSERT_STATUS(DEND_ERR_CONTEXT_FULL, dend_next(e, a, NULL, &token));
        ENG_REFUSED(DEND_ERR_CONTEXT_FULL, e, dend_next(e, a, NULL, &token));
        assert_int_equal(eng_info(e, a).len_tokens, 40);
    }
    memset(&p, 0, sizeof p);
    p.temperature = 3.0f;
    ASSERT_STATUS(DEND_OK, dend_seq_rewind(e, a, 10));
    for (p.salt = 0; p.salt < 400; p.salt++) { /* an end token is reported, not appended */
        status = dend_next(e, a, &p, &token);
        if (status == DEND_END) {
            n_ends++;
            assert_true(dend_token_is_end(model, token));
            assert_int_equal(eng_info(e, a).len_tokens, 10);
        } else {
            ASSERT_STATUS(DEND_OK, status);
            assert_false(dend_token_is_end(model, token));
            assert_int_equal(eng_info(e, a).len_tokens, 11);
            ASSERT_STATUS(DEND_OK, dend_seq_rewind(e, a, 10));
        }
    }
    assert_true(n_ends > 0 && n_ends < 200);
    p.temperature = -1.0f;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_next(e, a, &p, &token));
    eng_all_free(e);
    dend_engine_free(e);
    dend_model_free(model);
}

/* -- models ---------------------------------------------------------------- */

static void test_engine_model_refused(void **state) {
    dend_model_desc zero, d;
    dend_model *model = NULL;
    dend_error error;
    uint32_t i;
    (void)state;
    memset(&zero, 0, sizeof zero);
    d = zero;
    d.path = ENG_LLAMA_F32;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_model_load(NULL, &model, &error));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_model_load(&d, NULL, &error));
    for (i = 0; i < 10; i++) {
        dend_status expected = i < 7 ? DEND_ERR_ARGUMENT : DEND_ERR_IO;
        d = zero;
        d.path = ENG_LLAMA_F32;
        d.canary_begin_ = i == 0;
        d.canary_end_ = i == 1;
        d.data = i == 2 ? &zero : NULL; /* two sources */
        d.data_size = i == 2 ? sizeof zero : 0;
        d.reader.read = i == 3 ? eng_read_nothing : NULL;
        d.path = i == 4 ? NULL : d.path; /* none */
        d.allocator.alloc = i == 5 ? eng_modest_alloc : NULL;
        d.allocator.free = i == 6 ? eng_modest_free : NULL;
        d.path = i == 7 ? "tests/golden/absent.gguf" : i == 8 ? "tests" : i == 9 ? "" : d.path;
        memset(&error, 0, sizeof error);
        model = (dend_model *)&error;
        ASSERT_STATUS(expected, dend_model_load(&d, &model, &error));
        ASSERT_STATUS(expected, error.status);
        assert_non_null(error.msg);
        assert_null(model);
        ASSERT_STATUS(expected, dend_model_load(&d, &model, NULL));
    }
    dend_model_free(NULL);
}

#if DENDP_THREADS
typedef struct eng_user {
    const dend_model *model;
    const float *expected; /* [V] after the text */
    bool ok;
} eng_user;

/* Twenty engines, one after the other, over a model that others use too. */
static void *eng_user_main(void *arg) {
    eng_user *u = (eng_user *)arg;
    uint32_t round;
    u->ok = true;
    for (round = 0; round < 20 && u->ok; round++) {
        dend_engine_desc d = eng_desc(u->model);
        dend_engine *e = NULL;
        dend_seq seq;
        const float *logits;
        u->ok = dend_engine_create(&d, &e, NULL) == DEND_OK && dend_seq_create(e, &seq) == DEND_OK &&
                dend_seq_append_text(e, seq, "shared by threads", (size_t)-1, 0) == DEND_OK &&
                dend_step(e, 0) == DEND_OK && dend_seq_logits(e, seq, &logits) == DEND_OK &&
                memcmp(logits, u->expected, ENG_V * sizeof(float)) == 0;
        dend_engine_free(e);
    }
    return NULL;
}

/* One model, three threads with an engine each: tokenizing and stepping. */
static void test_engine_shared_model(void **state) {
    dend_model *model = eng_load(ENG_QWEN2);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e = eng_open(&d);
    dend_seq seq = eng_seq(e);
    pthread_t threads[3];
    eng_user users[3];
    uint32_t i;
    (void)state;
    ASSERT_STATUS(DEND_OK, dend_seq_append_text(e, seq, "shared by threads", (size_t)-1, 0));
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    for (i = 0; i < 3; i++) {
        users[i].model = model;
        users[i].expected = eng_logits(e, seq);
        assert_int_equal(pthread_create(&threads[i], NULL, eng_user_main, &users[i]), 0);
    }
    for (i = 0; i < 3; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_true(users[i].ok);
    }
    dend_engine_free(e);
    dend_model_free(model);
}
#endif

/* -- attention ------------------------------------------------------------- */

#define ENG_MOST_DIM 96u /* of a head of the models here */

/* Query head h of one row in double precision, over K and V as the cache holds
 * them, as far as the layer sees, and q as the codec takes it. Scores are powers of two. Writes out[d]
 * and the error that single precision, and q8_0's integer weights, may make in
 * each: such a weight is off by half of m / 32767 times the code of V, m the
 * largest scale of V. */
static void eng_attention_exact(const dend_engine *e, const dendp_row *row, const dendp_layer_view *view,
                                uint32_t h, const float *q, double *out, double *bound) {
    const dendp_cache *c = &e->cache;
    const dendp_group *group = &c->groups[view->group];
    const double u = 1.0 / 16777216.0;
    uint32_t d = group->desc.head_dim, P = c->desc.block_tokens, n = row->pos + 1, i, pos;
    uint32_t first = view->window && n > view->window ? n - view->window : 0, layer = view->group_layer;
    uint32_t head = h / (e->model->config.n_heads / group->desc.n_kv_heads);
    double *score = (double *)malloc(n * sizeof *score), max = -1e300, sum = 0.0, off = 0.0;
    double most = 0.0, size[ENG_MOST_DIM], weights[ENG_MOST_DIM];
    bool bytes = c->desc.codec.put_query != NULL;
    dendp_q8_query as_bytes;
    assert_non_null(score);
    assert_true(d <= (bytes ? 32 : ENG_MOST_DIM));
    memset(weights, 0, sizeof weights);
    memset(&as_bytes, 0, sizeof as_bytes);
    if (bytes) {
        dendp_q8_put_query(dendp_act_row_scalar, q, d, &as_bytes);
    }
    memset(size, 0, sizeof size);
    memset(out, 0, d * sizeof *out);
    for (pos = first; pos < n; pos++) {
        uint32_t block = dendp_table_get(&c->nodes, dendp_cache_table(c, row->record, view->group), pos / P);
        const unsigned char *tile =
            dendp_cache_tile(c, view->group, block, layer, head, pos % P / DENDP_TILE);
        float k[ENG_MOST_DIM], v[ENG_MOST_DIM];
        double terms = 0.0;
        c->desc.codec.get_token(tile, tile + group->k_bytes, d, pos % DENDP_TILE, k, v);
        score[pos] = 0.0;
        for (i = 0; i < d; i++) {
            double qi = bytes ? (double)as_bytes.act.scale * as_bytes.act.q[i] : (double)q[i];
            score[pos] += qi * (double)k[i];
            terms += fabs(qi * (double)k[i]);
        }
        if (bytes) {
            double scale = (double)dendp_f16_to_f32(
                ((const uint16_t *)(const void *)(tile + group->k_bytes + d * 16))[pos % DENDP_TILE]);
            most = scale > most ? scale : most;
            for (i = 0; i < d && scale > 0; i++) {
                weights[i] += fabs((double)v[i]) / scale * (0.5 / 32767);
            }
        }
        max = score[pos] > max ? score[pos] : max;
        off = terms > off ? terms : off;
    }
    for (pos = first; pos < n; pos++) {
        uint32_t block = dendp_table_get(&c->nodes, dendp_cache_table(c, row->record, view->group), pos / P);
        const unsigned char *tile =
            dendp_cache_tile(c, view->group, block, layer, head, pos % P / DENDP_TILE);
        float k[ENG_MOST_DIM], v[ENG_MOST_DIM];
        double w = exp2(score[pos] - max);
        c->desc.codec.get_token(tile, tile + group->k_bytes, d, pos % DENDP_TILE, k, v);
        sum += w;
        for (i = 0; i < d; i++) {
            out[i] += w * (double)v[i];
            size[i] += w * fabs((double)v[i]);
        }
    }
    /* A score is a chain of d fused steps and a difference, so a weight is off
     * by ln 2 times (d + 2) u of the largest sum of terms, and by the 2e-8 of
     * 2^x and 4 roundings. A segment sums at most 512 weights; each of the few
     * merges rounds 4 times. It all counts once above and once below the line. */
    for (i = 0; i < d; i++) {
        double relative = 0.7 * (d + 2) * u * off + 2e-8 + (4.0 + 512.0 + 4.0 * (n / 512 + 1)) * u;
        bound[i] = (2.0 * relative * size[i] + 1.01 * most * weights[i]) / sum + 1e-30;
        out[i] /= sum;
    }
    free(score);
}

/* Rows of one segment, at its edges, and of two and three segments. */
static void test_engine_attention(void **state) {
    static const uint32_t positions[8] = {0, 15, 16, 510, 511, 512, 1023, 1099};
    uint32_t m, k, r, h, i;
    test_rng rng;
    (void)state;
    rng.state = 8080;
    for (m = 0; m < ENG_N_MODELS; m++) {
        dend_model *model = eng_load(eng_paths[m]);
        uint32_t H = model->config.n_heads, d = model->config.head_dim, layer = model->config.n_layers - 1;
        for (k = 0; k < (d <= 32 ? 3u : 2u); k++) {
            dend_engine_desc desc = eng_desc(model);
            dend_engine *e;
            dend_seq seq;
            dendp_row rows[8];
            dendp_layer_view view;
            int32_t tokens[1100];
            size_t n = (size_t)8 * H * d;
            float *q = (float *)malloc(2 * n * sizeof *q), *out = q + n;
            assert_non_null(q);
            desc.n_ctx = 1100;
            desc.kv_type = eng_kv_types[k];
            desc.block_tokens = 16 + 32 * (k % 2);
            e = eng_open(&desc);
            eng_tokens(&rng, tokens, 1100);
            seq = eng_with(e, tokens, 1100);
            ASSERT_STATUS(DEND_OK, dend_step(e, 0));
            for (i = 0; i < n; i++) {
                q[i] =
                    4.0f * test_float(&rng); /* scores of many sizes: each segment has a maximum of its own */
            }
            memset(rows, 0, sizeof rows);
            for (r = 0; r < 8; r++) {
                rows[r].pos = positions[r];
                rows[r].n_past = positions[r] + 1;
                rows[r].record = dendp_cache_slot(&e->cache, seq)->record;
                rows[r].tree_first = DENDP_NONE;
            }
            view = dendp_forward_view(&e->forward, layer);
            assert_int_equal(view.window, model->config.window);
            e->backend.attention(e->backend.self, &view, &e->cache, &e->overlay, rows, 8, q, (size_t)H * d,
                                 out);
            for (r = 0; r < 8; r++) {
                for (h = 0; h < H; h++) {
                    size_t at = ((size_t)r * H + h) * d;
                    double exact[ENG_MOST_DIM], bound[ENG_MOST_DIM];
                    eng_attention_exact(e, &rows[r], &view, h, q + at, exact, bound);
                    for (i = 0; i < d; i++) {
                        ASSERT_NEAR(exact[i], out[at + i], bound[i], 0.0);
                    }
                }
            }
            free(q);
            dend_engine_free(e);
        }
        dend_model_free(model);
    }
}

/* A dropped sequence of several leaves is taken apart little by little; whoever
 * needs its blocks before that gets them all the same. */
static void test_engine_deferred(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e;
    int32_t *tokens = (int32_t *)calloc(2000, sizeof *tokens);
    dend_seq seq;
    uint32_t i, n_free;
    (void)state;
    assert_non_null(tokens);
    d.n_ctx = 2000; /* 125 blocks: 4 leaves under a root */
    d.n_blocks = 130;
    d.release_budget = 1;
    e = eng_open(&d);
    seq = eng_with(e, tokens, 2000);
    ASSERT_STATUS(DEND_OK, dend_seq_drop(e, seq));
    assert_int_equal(eng_stats(e).n_blocks_free, 5); /* so far only the root */
    for (i = 1, n_free = 5; i <= 4; i++) {           /* a step takes one leaf */
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
        assert_true(eng_stats(e).n_blocks_free > n_free);
        n_free = eng_stats(e).n_blocks_free;
    }
    assert_int_equal(n_free, 130);
    seq = eng_with(e, tokens, 2000);
    ASSERT_STATUS(DEND_OK, dend_seq_drop(e, seq));
    seq = eng_with(e, tokens, 1600); /* 100 of the 125 that are still deferred */
    ENG_REFUSED(DEND_ERR_CONTEXT_FULL, e, dend_seq_append(e, seq, tokens, 401));
    ASSERT_STATUS(DEND_OK, dend_seq_append(e, seq, tokens, 400));
    assert_int_equal(eng_blocks_free(e), 5);
    eng_all_free(e);
    dend_engine_free(e);
    free(tokens);
    dend_model_free(model);
}

/* -- token trees: what is refused ------------------------------------------ */

static dend_tree eng_tree(dend_seq seq, uint32_t n_rows, const int32_t *tokens, const int32_t *parents) {
    dend_tree tree;
    tree.seq = seq;
    tree.n_rows = n_rows;
    tree.tokens = tokens;
    tree.parents = parents;
    return tree;
}

static void test_engine_tree_refused(void **state) {
    const int32_t chain[12] = {-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e;
    dend_tree trees[9];
    dend_seq a, b, late, gone;
    int32_t tokens[60], parents[12], bad[3];
    float kept[ENG_V];
    test_rng rng;
    uint32_t i;
    (void)state;
    rng.state = 90;
    d.n_ctx = 60;
    d.n_tree_rows = 8;
    d.n_blocks = 8;
    e = eng_open(&d);
    eng_tokens(&rng, tokens, 60);
    a = eng_with(e, tokens, 30);
    b = eng_with(e, tokens, 52);
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    assert_null(dend_tree_logits(e, 0, 0));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_tree_accept(e, 0, 0)); /* nothing evaluated yet */
    trees[0] = eng_tree(a, 3, tokens, chain);
    trees[1] = eng_tree(b, 5, tokens, chain);
    ASSERT_STATUS(DEND_OK,
                  dend_tree_eval(e, trees, 2)); /* 8 of 8 rows; the results must outlive what is refused */
    memcpy(kept, dend_tree_logits(e, 1, 4), sizeof kept);

    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_tree_eval(e, trees, 0));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_tree_eval(e, trees, 9));
    trees[0].n_rows = 0;
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_tree_eval(e, trees, 1));
    trees[0].n_rows = 9;
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_tree_eval(e, trees, 1));
    trees[0].n_rows = 0xffffffffu;
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_tree_eval(e, trees, 1));
    trees[0].n_rows = 4; /* 4 and 5 are 9 */
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_tree_eval(e, trees, 2));
    trees[0] = eng_tree(a, 3, NULL, chain);
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_tree_eval(e, trees, 2));
    trees[0] = eng_tree(a, 3, tokens, NULL);
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_tree_eval(e, trees, 2));
    trees[0] = eng_tree(a, 3, tokens, parents);
    for (i = 0; i < 3; i++) {
        const int32_t wrong[4] = {(int32_t)i, (int32_t)i + 1, -2, INT32_MAX};
        uint32_t j;
        for (j = 0; j < 4; j++) { /* itself, a later one, neither row nor root */
            memcpy(parents, chain, sizeof parents);
            parents[i] = wrong[j];
            ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_tree_eval(e, trees, 2));
        }
        memcpy(bad, tokens, sizeof bad);
        bad[i] = i == 0 ? -1 : i == 1 ? (int32_t)ENG_V : INT32_MIN;
        trees[2] = eng_tree(a, 3, bad, chain);
        ENG_REFUSED(DEND_ERR_TOKEN, e, dend_tree_eval(e, trees + 2, 1));
    }
    trees[0] = eng_tree(a, 3, tokens, chain);
    trees[1] = eng_tree(a, 3, tokens, chain);
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_tree_eval(e, trees, 2)); /* two trees of one sequence */
    ASSERT_STATUS(DEND_OK, dend_seq_append(e, b, tokens, 1));       /* 53 of 60 */
    trees[1] = eng_tree(b, 1, tokens, chain);
    ENG_REFUSED(DEND_ERR_WAITING, e, dend_tree_eval(e, trees, 2));
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    trees[1] = eng_tree(b, 8, tokens, chain);
    ENG_REFUSED(DEND_ERR_CONTEXT_FULL, e, dend_tree_eval(e, trees + 1, 1));
    gone = eng_fork(e, a);
    ASSERT_STATUS(DEND_OK, dend_seq_drop(e, gone));
    trees[1] = eng_tree(gone, 1, tokens, chain);
    ENG_REFUSED(DEND_ERR_STALE, e, dend_tree_eval(e, trees, 2));

    eng_equal(kept, dend_tree_logits(e, 1, 4), "kept", 0);
    assert_non_null(dend_tree_logits(e, 0, 2));
    assert_null(dend_tree_logits(e, 0, 3)); /* a row of the next tree, not of this one */
    assert_null(dend_tree_logits(e, 1, 5));
    assert_null(dend_tree_logits(e, 2, 0));
    assert_null(dend_tree_logits(e, 0xffffffffu, 0));
    assert_null(dend_tree_logits(e, 0, 0xffffffffu));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_tree_accept(e, 0, 3));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_tree_accept(e, 2, 0));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_tree_accept(e, 0xffffffffu, 0));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_tree_accept(e, 1, 0)); /* b has grown since */

    late = eng_fork(e, a); /* takes the last blocks: 2 of a, 4 of b, 2 more */
    ASSERT_STATUS(DEND_OK, dend_seq_append(e, late, tokens, 27));
    assert_int_equal(eng_stats(e).n_blocks_free, 0);
    ENG_REFUSED(DEND_ERR_NO_BLOCKS, e, dend_tree_accept(e, 0, 2));
    ASSERT_STATUS(DEND_OK, dend_seq_drop(e, late));
    ASSERT_STATUS(DEND_OK, dend_tree_accept(e, 0, 2)); /* the same tree, now that there is room */
    assert_int_equal(eng_info(e, a).len_tokens, 33);
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_tree_accept(e, 0, 2)); /* once a tree */
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_tree_accept(e, 0, 0));
    ASSERT_STATUS(DEND_OK, dend_seq_rewind(e, a, 30));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_tree_accept(e, 0, 0)); /* even back where it was */
    ASSERT_STATUS(DEND_OK, dend_seq_append(e, a, tokens, 3));
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));

    trees[0] = eng_tree(b, 7, tokens, chain); /* exactly to the end of the context */
    ASSERT_STATUS(DEND_OK, dend_tree_eval(e, trees, 1));
    ASSERT_STATUS(DEND_OK, dend_tree_accept(e, 0, 6));
    assert_int_equal(eng_info(e, b).len_tokens, 60);
    ENG_REFUSED(DEND_ERR_CONTEXT_FULL, e, dend_tree_eval(e, trees, 1));

    trees[0] = eng_tree(a, 3, tokens, chain); /* each way in which a sequence can have changed */
    ASSERT_STATUS(DEND_OK, dend_tree_eval(e, trees, 1));
    ASSERT_STATUS(DEND_OK, dend_seq_append(e, a, tokens, 1));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_tree_accept(e, 0, 0)); /* longer, and waiting */
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_tree_accept(e, 0, 0));
    ASSERT_STATUS(DEND_OK, dend_seq_rewind(e, a, 32));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_tree_accept(e, 0, 0)); /* shorter */
    bad[0] = (tokens[2] + 1) % (int32_t)ENG_V;
    ASSERT_STATUS(DEND_OK, dend_seq_append(e, a, bad, 1));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_tree_accept(e, 0, 0)); /* as long, another token, waiting */
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_tree_accept(e, 0, 0)); /* as long, another token */
    ASSERT_STATUS(DEND_OK, dend_tree_eval(e, trees, 1));
    ASSERT_STATUS(DEND_OK, dend_seq_drop(e, a));
    ENG_REFUSED(DEND_ERR_STALE, e, dend_tree_accept(e, 0, 0));
    late = eng_with(e, tokens, 33);
    assert_int_equal(late.slot, a.slot);
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    ENG_REFUSED(DEND_ERR_STALE, e, dend_tree_accept(e, 0, 0)); /* another sequence in the same slot */
    eng_all_free(e);
    dend_engine_free(e);
    dend_model_free(model);
}

/* -- token trees: the same bits as plain decoding -------------------------- */

#define ENG_MOST_ROWS 256u

/* A random tree: mostly short branches, now and then a chain. */
static void eng_random_tree(test_rng *rng, uint32_t n, int32_t *tokens, int32_t *parents) {
    uint32_t i, bushy = test_below(rng, 3);
    eng_tokens(rng, tokens, n);
    for (i = 0; i < n; i++) {
        uint32_t back = bushy == 0 ? 1 : 1 + test_below(rng, bushy == 1 ? 3 : i + 1);
        parents[i] = (int32_t)i - (int32_t)(back > i + 1 ? i + 1 : back);
    }
}

/* Tokens from the root to a row; returns their number. */
static uint32_t eng_path(const dend_tree *tree, uint32_t row, int32_t *out) {
    uint32_t n = 0, i;
    int32_t r;
    for (r = (int32_t)row; r >= 0; r = tree->parents[r]) {
        out[n++] = tree->tokens[r];
    }
    for (i = 0; i < n / 2; i++) {
        int32_t swap = out[i];
        out[i] = out[n - 1 - i];
        out[n - 1 - i] = swap;
    }
    return n;
}

/* Of one layer group; blocks that both have given up hold nothing. */
static void eng_same_group_kv(const dend_engine *e, uint32_t rx, uint32_t ry, uint32_t g) {
    const dendp_cache *c = &e->cache;
    const dendp_group *group = &c->groups[g];
    uint32_t d = group->desc.head_dim, pos, layer, head, P = c->desc.block_tokens;
    size_t bytes = (size_t)group->tile_bytes;
    unsigned char *a = (unsigned char *)malloc(2 * bytes), *b = a + bytes;
    assert_non_null(a);
    for (pos = 0; pos < c->records[rx].len; pos++) {
        uint32_t bx = dendp_table_get(&c->nodes, dendp_cache_table(c, rx, g), pos / P);
        uint32_t by = dendp_table_get(&c->nodes, dendp_cache_table(c, ry, g), pos / P);
        assert_int_equal(bx == DENDP_NONE, by == DENDP_NONE);
        for (layer = 0; layer < group->desc.n_layers && bx != by; layer++) {
            for (head = 0; head < group->desc.n_kv_heads; head++) {
                const unsigned char *kx = dendp_cache_tile(c, g, bx, layer, head, pos % P / DENDP_TILE);
                const unsigned char *ky = dendp_cache_tile(c, g, by, layer, head, pos % P / DENDP_TILE);
                memset(a, 0, 2 * bytes);
                c->desc.codec.copy_slots(a, a + group->k_bytes, 0, kx, kx + group->k_bytes, pos % DENDP_TILE,
                                         1, d);
                c->desc.codec.copy_slots(b, b + group->k_bytes, 0, ky, ky + group->k_bytes, pos % DENDP_TILE,
                                         1, d);
                if (memcmp(a, b, bytes) != 0) {
                    fail_msg("K or V at position %u, group %u, layer %u, head %u", pos, g, layer, head);
                }
            }
        }
    }
    free(a);
}

/* K and V of two sequences of one length are the same bytes, slot for slot. */
static void eng_same_kv(const dend_engine *e, dend_seq x, dend_seq y) {
    const dendp_cache *c = &e->cache;
    uint32_t rx = dendp_cache_slot(c, x)->record, ry = dendp_cache_slot(c, y)->record, pos, g;
    assert_int_equal(c->records[rx].len, c->records[ry].len);
    for (pos = 0; pos < c->records[rx].len; pos++) {
        assert_int_equal(dendp_record_token(c, rx, pos), dendp_record_token(c, ry, pos));
    }
    for (g = 0; g < c->desc.n_groups; g++) {
        eng_same_group_kv(e, rx, ry, g);
    }
}

/* From now on what is free is NaN: nothing may look at it. */
static void eng_poison(dend_engine *e) {
    uint32_t g;
    for (g = 0; g < e->cache.desc.n_groups; g++) {
        e->cache.pools[g].poison = true;
        dendp_block_pool_reset(&e->cache.pools[g]);
    }
}

/* Trees of several sequences in one call: the logits of every row, then the
 * state after accepting one row of each, and what follows it. */
static void eng_check_trees(dend_engine *e, test_rng *rng, const dend_seq *seqs, const uint32_t *n_rows,
                            uint32_t n) {
    int32_t tokens[3][ENG_MOST_ROWS], parents[3][ENG_MOST_ROWS], path[ENG_MOST_ROWS];
    dend_tree trees[3];
    dend_seq *forks = (dend_seq *)malloc(ENG_MOST_ROWS * sizeof *forks);
    uint64_t computed = eng_stats(e).n_rows;
    uint32_t i, r, total = 0;
    assert_non_null(forks);
    for (i = 0; i < n; i++) {
        eng_random_tree(rng, n_rows[i], tokens[i], parents[i]);
        trees[i] = eng_tree(seqs[i], n_rows[i], tokens[i], parents[i]);
        total += n_rows[i];
    }
    {
        unsigned char *image = eng_freeze(e); /* no sequence changes */
        const unsigned char *end = (const unsigned char *)(const void *)e->sample_ids;
        ASSERT_STATUS(DEND_OK, dend_tree_eval(e, trees, n));
        assert_int_equal(eng_stats(e).n_rows, computed + total);
        eng_same_range(e, image, &e->cache, &e->pool, "tree");
        eng_same_range(e, image, e->cache.pools, e->forward.scratch.x, "tree");
        eng_same_range(e, image, e->logits, end, "tree");
        free(image);
    }
    for (i = 0; i < n; i++) {
        for (r = 0; r < n_rows[i]; r++) {
            forks[r] = eng_fork(e, seqs[i]);
            ASSERT_STATUS(DEND_OK, dend_seq_append(e, forks[r], path, eng_path(&trees[i], r, path)));
        }
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
        for (r = 0; r < n_rows[i]; r++) {
            eng_equal(eng_logits(e, forks[r]), dend_tree_logits(e, i, r), "tree row", r);
            ASSERT_STATUS(DEND_OK, dend_seq_drop(e, forks[r]));
        }
    }
    for (i = 0; i < n; i++) {
        dend_seq twin = eng_fork(e, seqs[i]);
        dend_seq_info x, y;
        int32_t next[4];
        ASSERT_STATUS(DEND_OK, dend_seq_set_stream(e, twin, eng_info(e, seqs[i]).stream));
        r = test_below(rng, n_rows[i]);
        ASSERT_STATUS(DEND_OK, dend_seq_append(e, twin, path, eng_path(&trees[i], r, path)));
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
        computed = eng_stats(e).n_rows;
        ASSERT_STATUS(DEND_OK, dend_tree_accept(e, i, r));
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
        assert_int_equal(eng_stats(e).n_rows, computed); /* nothing is computed again */
        x = eng_info(e, seqs[i]);
        y = eng_info(e, twin);
        assert_memory_equal(&x, &y, sizeof x); /* length, waiting, blocks, hash, stream, has_logits */
        eng_equal(eng_logits(e, twin), eng_logits(e, seqs[i]), "accepted", r);
        eng_same_kv(e, seqs[i], twin);
        eng_tokens(rng, next, 4);
        ASSERT_STATUS(DEND_OK, dend_seq_append(e, seqs[i], next, 4));
        ASSERT_STATUS(DEND_OK, dend_seq_append(e, twin, next, 4));
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
        eng_equal(eng_logits(e, twin), eng_logits(e, seqs[i]), "after accepting", r);
        eng_same_kv(e, seqs[i], twin);
        ASSERT_STATUS(DEND_OK, dend_seq_drop(e, twin));
    }
    free(forks);
}

/* Contexts on both sides of tile (16), block and segment (512) borders. */
static void test_engine_tree_rows(void **state) {
    static const uint32_t lengths[12] = {0, 1, 13, 15, 16, 17, 31, 33, 47, 500, 511, 512};
    uint32_t m, k, P, round;
    test_rng rng;
    (void)state;
    rng.state = 1001;
    for (m = 0; m < ENG_N_MODELS; m++) {
        dend_model *model = eng_load(eng_paths[m]);
        for (k = 0; k < 3; k++) {
            for (P = 16; P <= 32; P += 16) {
                dend_engine_desc d = eng_desc(model);
                dend_engine *e;
                int32_t prompt[600];
                dend_seq base;
                d.n_ctx = 700;
                d.n_seqs = 64;
                d.n_blocks = 700;
                d.block_tokens = P;
                d.kv_type = eng_kv_types[k];
                d.n_tree_rows = 120;
                e = eng_open(&d);
                eng_poison(e);
                eng_tokens(&rng, prompt, 600);
                base = eng_with(e, prompt, 520);
                ASSERT_STATUS(DEND_OK, dend_step(e, 0));
                for (round = 0; round < 5; round++) {
                    uint32_t n = 1 + test_below(&rng, 3), n_rows[3], i;
                    dend_seq seqs[3];
                    for (i = 0; i < n; i++) {
                        seqs[i] = eng_fork(e, base);
                        ASSERT_STATUS(DEND_OK, dend_seq_rewind(e, seqs[i], lengths[test_below(&rng, 12)]));
                        n_rows[i] = 1 + test_below(&rng, 40);
                    }
                    eng_check_trees(e, &rng, seqs, n_rows, n);
                    for (i = 0; i < n; i++) {
                        ASSERT_STATUS(DEND_OK, dend_seq_drop(e, seqs[i]));
                    }
                }
                eng_all_free(e);
                dend_engine_free(e);
            }
        }
        dend_model_free(model);
    }
}

/* The largest tree, as one chain of 256 and as bushes, across a segment's end. */
static void test_engine_tree_large(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e;
    int32_t prompt[400], chain[ENG_MOST_ROWS], next[ENG_MOST_ROWS];
    dend_seq seq, twin;
    dend_tree tree;
    test_rng rng;
    uint32_t i, n_rows = ENG_MOST_ROWS;
    (void)state;
    rng.state = 256;
    d.n_ctx = 1000;
    d.n_seqs = 260;
    d.n_blocks = 3000;
    d.n_logits = 260;
    d.n_tree_rows = ENG_MOST_ROWS;
    d.n_batch = 100;
    e = eng_open(&d);
    eng_tokens(&rng, prompt, 400);
    seq = eng_with(e, prompt, 400);
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    twin = eng_fork(e, seq);
    eng_tokens(&rng, next, ENG_MOST_ROWS);
    for (i = 0; i < ENG_MOST_ROWS; i++) {
        chain[i] = (int32_t)i - 1;
    }
    tree = eng_tree(seq, ENG_MOST_ROWS, next, chain);
    ASSERT_STATUS(DEND_OK, dend_tree_eval(e, &tree, 1));
    for (i = 0; i < ENG_MOST_ROWS; i++) {
        ASSERT_STATUS(DEND_OK, dend_seq_append(e, twin, next + i, 1));
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
        eng_equal(eng_logits(e, twin), dend_tree_logits(e, 0, i), "chain row", i);
    }
    ASSERT_STATUS(DEND_OK, dend_tree_accept(e, 0, ENG_MOST_ROWS - 1));
    eng_equal(eng_logits(e, twin), eng_logits(e, seq), "chain", 0);
    eng_same_kv(e, seq, twin);
    ASSERT_STATUS(DEND_OK, dend_seq_drop(e, twin));
    for (i = 0; i < 3; i++) {
        ASSERT_STATUS(DEND_OK, dend_seq_rewind(e, seq, i == 0 ? 500 : 390 - 10 * i));
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
        eng_check_trees(e, &rng, &seq, &n_rows, 1);
    }
    eng_all_free(e);
    dend_engine_free(e);
    dend_model_free(model);
}

/* An accepted row whose logits find no free row: they stay wanted. */
static void test_engine_tree_no_logits(void **state) {
    const int32_t chain[3] = {-1, 0, 1};
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e;
    int32_t tokens[20];
    float expected[ENG_V];
    dend_seq a, b;
    dend_tree tree;
    const float *logits;
    test_rng rng;
    (void)state;
    rng.state = 51;
    d.n_logits = 1;
    e = eng_open(&d);
    eng_tokens(&rng, tokens, 20);
    a = eng_with(e, tokens, 17);
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    b = eng_fork(e, a); /* shares the only row, and keeps it */
    tree = eng_tree(a, 3, tokens + 17, chain);
    ASSERT_STATUS(DEND_OK, dend_tree_eval(e, &tree, 1));
    ASSERT_STATUS(DEND_OK, dend_tree_accept(e, 0, 2));
    assert_int_equal(eng_info(e, a).n_waiting, 0);
    ENG_REFUSED(DEND_ERR_NO_LOGITS, e, dend_seq_logits(e, a, &logits));
    ENG_REFUSED(DEND_ERR_NO_LOGITS, e, dend_step(e, 0));
    ASSERT_STATUS(DEND_OK, dend_seq_release_logits(e, b));
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    eng_fresh(model, DEND_KV_F16, 16, tokens, 20, expected, NULL);
    eng_equal(expected, eng_logits(e, a), "accepted", 0);
    eng_all_free(e);
    dend_engine_free(e);
    dend_model_free(model);
}

/* -- company does not matter ----------------------------------------------- */

enum { ENG_ONE, ENG_TWO, ENG_THREE, ENG_FOUR, ENG_BACKWARDS, ENG_PAIR };

typedef struct eng_variant {
    int threads; /* ENG_... */
    uint32_t n_batch;
    dend_isa isa;
} eng_variant;

/* Decodes the subject among n_others other sequences (short ones, long ones,
 * forks of it) and compares its logits at n_check lengths with `expected`,
 * those of a sequence alone: the prompt in one go, then token after token. */
static void eng_among(const dend_engine_desc *desc, const eng_variant *v, test_rng *rng,
                      const int32_t *tokens, uint32_t n_prompt, uint32_t n_all, const float *expected,
                      uint32_t n_others) {
    dend_engine_desc d = *desc;
    dend_engine *e;
    dend_seq subject, others[64];
    uint32_t i, j, calls = 0, before = n_others / 2;
    d.n_batch = v->n_batch;
    d.isa = v->isa;
    d.n_threads = v->threads <= ENG_FOUR ? (uint32_t)v->threads + 1 : 1;
    if (v->threads >= ENG_BACKWARDS) {
        d.jobs.run = v->threads == ENG_PAIR ? eng_jobs_two : eng_jobs_backwards;
        d.jobs.user = &calls;
        d.jobs.n_workers = 3;
    }
    e = eng_open(&d);
    subject = eng_seq(e);
    for (i = 0; i < n_others; i++) {
        int32_t some[40];
        if (i == before) { /* the subject waits in the middle of the queue */
            ASSERT_STATUS(DEND_OK, dend_seq_append(e, subject, tokens, n_prompt));
        }
        eng_tokens(rng, some, 40);
        if (i > before && i % 3 == 0) {
            others[i] = eng_fork(e, subject);
        } else {
            others[i] = eng_seq(e);
        }
        ASSERT_STATUS(DEND_OK, dend_seq_append(e, others[i], some, 1 + test_below(rng, i % 7 == 0 ? 40 : 3)));
    }
    if (n_others == 0) {
        ASSERT_STATUS(DEND_OK, dend_seq_append(e, subject, tokens, n_prompt));
    }
    for (i = n_prompt;; i++) {
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
        eng_equal(expected + (size_t)(i - n_prompt) * ENG_V, eng_logits(e, subject), "among others, length",
                  i);
        if (i == n_all) {
            break;
        }
        for (j = 0; j < n_others; j++) {
            int32_t token = (int32_t)test_below(rng, ENG_V);
            if (test_below(rng, 2)) {
                ASSERT_STATUS(DEND_OK, dend_seq_append(e, others[j], &token, 1));
            }
        }
        ASSERT_STATUS(DEND_OK, dend_seq_append(e, subject, tokens + i, 1));
    }
    assert_true(v->threads < ENG_BACKWARDS || calls > 0);
    eng_all_free(e);
    dend_engine_free(e);
}

/* Alone, one row a batch, by the scalar kernels: [n_all - n_prompt + 1][V]. */
static float *eng_alone(const dend_engine_desc *desc, const int32_t *tokens, uint32_t n_prompt,
                        uint32_t n_all) {
    dend_engine_desc d = *desc;
    float *out = (float *)malloc((n_all - n_prompt + 1) * (size_t)ENG_V * sizeof(float));
    dend_engine *e;
    dend_seq seq;
    uint32_t i;
    assert_non_null(out);
    d.n_batch = 1;
    d.isa = DEND_ISA_SCALAR;
    e = eng_open(&d);
    seq = eng_seq(e);
    for (i = 0; i < n_all; i++) {
        ASSERT_STATUS(DEND_OK, dend_seq_append(e, seq, tokens + i, 1));
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
        if (i + 1 >= n_prompt) {
            memcpy(out + (size_t)(i + 1 - n_prompt) * ENG_V, eng_logits(e, seq), ENG_V * sizeof(float));
        }
    }
    dend_engine_free(e);
    return out;
}

/* Every model, KV type and block size; every thread count and both job
 * systems; batches of 1, 7 and 256; scalar and the best instruction set. */
static void test_engine_row_invariance(void **state) {
    static const eng_variant variants[8] = {
        {ENG_ONE, 1, DEND_ISA_DEFAULT},     {ENG_ONE, 256, DEND_ISA_SCALAR},
        {ENG_ONE, 7, DEND_ISA_DEFAULT},     {ENG_TWO, 256, DEND_ISA_SCALAR},
        {ENG_THREE, 256, DEND_ISA_DEFAULT}, {ENG_FOUR, 256, DEND_ISA_DEFAULT},
        {ENG_PAIR, 256, DEND_ISA_DEFAULT},  {ENG_BACKWARDS, 7, DEND_ISA_DEFAULT},
    };
    uint32_t m, k, P, v;
    test_rng rng;
    (void)state;
    rng.state = 31337;
    for (m = 0; m < ENG_N_MODELS; m++) {
        dend_model *model = eng_load(eng_paths[m]);
        for (k = 0; k < 3; k++) {
            for (P = 16; P <= 32; P += 16) {
                dend_engine_desc d = eng_desc(model);
                int32_t tokens[80];
                uint32_t n_prompt = 25 + test_below(&rng, 50), n_all = n_prompt + 4;
                float *expected;
                d.n_ctx = 128;
                d.n_seqs = 70;
                d.n_logits = 70;
                d.n_blocks = 300;
                d.block_tokens = P;
                d.kv_type = eng_kv_types[k];
                eng_tokens(&rng, tokens, 80);
                expected = eng_alone(&d, tokens, n_prompt, n_all);
                eng_among(&d, &variants[0], &rng, tokens, n_prompt, n_all, expected, 0);
                for (v = 0; v < 8; v++) {
                    eng_among(&d, &variants[v], &rng, tokens, n_prompt, n_all, expected,
                              1 + test_below(&rng, 63));
                }
                free(expected);
            }
        }
        dend_model_free(model);
    }
}

/* The same across the end of a segment: 510 to 516 tokens. */
static void test_engine_row_invariance_long(void **state) {
    static const eng_variant variants[3] = {{ENG_ONE, 256, DEND_ISA_DEFAULT},
                                            {ENG_PAIR, 256, DEND_ISA_SCALAR},
                                            {ENG_BACKWARDS, 100, DEND_ISA_DEFAULT}};
    uint32_t m, v;
    test_rng rng;
    (void)state;
    rng.state = 512;
    for (m = 0; m < ENG_N_MODELS; m++) {
        dend_model *model = eng_load(eng_paths[m]);
        dend_engine_desc d = eng_desc(model);
        int32_t tokens[516];
        float *expected;
        d.n_ctx = 600;
        d.n_seqs = 70;
        d.n_logits = 70;
        d.n_blocks = 600;
        d.kv_type = eng_kv_types[m % 3];
        eng_tokens(&rng, tokens, 516);
        expected = eng_alone(&d, tokens, 510, 516);
        for (v = 0; v < 3; v++) {
            eng_among(&d, &variants[v], &rng, tokens, 510, 516, expected, test_below(&rng, 20));
        }
        free(expected);
        dend_model_free(model);
    }
}

/* -- history does not matter ----------------------------------------------- */

#define ENG_MOST_SEQS 24u
#define ENG_HISTORY_CTX 150u

/* What a sequence ought to hold. */
typedef struct eng_mirror {
    bool live;
    dend_seq seq;
    uint32_t len;
    int32_t tokens[ENG_HISTORY_CTX];
} eng_mirror;

typedef struct eng_history {
    const dend_model *model;
    dend_engine_desc desc;
    dend_engine *engine;
    eng_mirror *mirrors; /* [ENG_MOST_SEQS] */
    test_rng rng;
    uint32_t n_checked, n_refused, n_accepted, n_kept; /* n_kept: rewinds refused for what a window gave up */
} eng_history;

/* Takes a free mirror for a sequence that holds what `from` does (NULL: nothing). */
static void eng_mirror_add(eng_history *h, dend_seq seq, const eng_mirror *from) {
    uint32_t i;
    for (i = 0; h->mirrors[i].live; i++) {
        assert_true(i + 1 < ENG_MOST_SEQS);
    }
    if (from) {
        h->mirrors[i] = *from;
    } else {
        h->mirrors[i].len = 0;
    }
    h->mirrors[i].live = true;
    h->mirrors[i].seq = seq;
}

static uint32_t eng_mirror_count(const eng_history *h) {
    uint32_t i, n = 0;
    for (i = 0; i < ENG_MOST_SEQS; i++) {
        n += h->mirrors[i].live;
    }
    return n;
}

static void eng_history_append(eng_history *h, eng_mirror *m, const int32_t *tokens, uint32_t n) {
    uint32_t P = h->desc.block_tokens;
    dend_status status = dend_seq_append(h->engine, m->seq, tokens, n);
    if (m->len + n > ENG_HISTORY_CTX) {
        ASSERT_STATUS(DEND_ERR_CONTEXT_FULL, status);
    } else if (status != DEND_OK) { /* only when blocks lack, or one for the copy of a shared tail */
        ASSERT_STATUS(DEND_ERR_NO_BLOCKS, status);
        eng_blocks_free(h->engine);
        assert_true(dendp_cache_blocks_free(&h->engine->cache) <
                    (m->len + n + P - 1) / P - (m->len + P - 1) / P + (m->len % P ? 1 : 0));
        /* the blocks of sliding layers are never why, unless there are fewer of them */
        assert_true(h->desc.n_window_blocks != 0 ||
                    eng_stats(h->engine).n_blocks_free == dendp_cache_blocks_free(&h->engine->cache));
        h->n_refused++;
    } else {
        memcpy(m->tokens + m->len, tokens, n * sizeof(int32_t));
        m->len += n;
    }
}

/* Steps until nothing moves any more; rows of others are released for `keep`. */
static void eng_history_settle(eng_history *h, const eng_mirror *keep) {
    while (dend_step(h->engine, 0) != DEND_OK) {
        uint32_t i;
        for (i = 0; i < ENG_MOST_SEQS; i++) {
            if (h->mirrors[i].live && &h->mirrors[i] != keep) {
                ASSERT_STATUS(DEND_OK, dend_seq_release_logits(h->engine, h->mirrors[i].seq));
            }
        }
    }
}

/* Compares a sequence with a fresh engine that is given its tokens in one go. */
static void eng_history_check(eng_history *h, const eng_mirror *m) {
    float expected[ENG_V];
    int32_t got[ENG_HISTORY_CTX];
    uint64_t hash = 0;
    ASSERT_STATUS(DEND_OK, dend_seq_tokens(h->engine, m->seq, 0, m->len, got));
    assert_memory_equal(got, m->tokens, m->len * sizeof(int32_t));
    assert_int_equal(eng_info(h->engine, m->seq).len_tokens, m->len);
    if (m->len > 0) {
        ASSERT_STATUS(DEND_OK, dend_seq_want_logits(h->engine, m->seq));
        eng_history_settle(h, m);
        eng_fresh(h->model, h->desc.kv_type, h->desc.block_tokens, m->tokens, m->len, expected, &hash);
        eng_equal(expected, eng_logits(h->engine, m->seq), "history, length", m->len);
        h->n_checked++;
    }
    assert_true(eng_info(h->engine, m->seq).prefix_hash == hash);
}

/* Evaluates a random tree of one or two sequences and accepts a row of each. */
static void eng_history_tree(eng_history *h, eng_mirror *m, eng_mirror *other) {
    int32_t tokens[2][8], parents[2][8], path[8];
    dend_tree trees[2];
    uint32_t i, n = m == other ? 1 : 2;
    eng_mirror *who[2];
    dend_status status;
    who[0] = m;
    who[1] = other;
    for (i = 0; i < n; i++) {
        uint32_t n_rows = 1 + test_below(&h->rng, 8);
        eng_random_tree(&h->rng, n_rows, tokens[i], parents[i]);
        trees[i] = eng_tree(who[i]->seq, n_rows, tokens[i], parents[i]);
    }
    status = dend_tree_eval(h->engine, trees, n);
    if (status != DEND_OK) {
        assert_true(status == DEND_ERR_WAITING || status == DEND_ERR_CONTEXT_FULL);
        return;
    }
    for (i = 0; i < n; i++) {
        uint32_t row = test_below(&h->rng, trees[i].n_rows), len;
        status = dend_tree_accept(h->engine, i, row);
        if (status == DEND_ERR_NO_BLOCKS) {
            h->n_refused++;
            continue;
        }
        ASSERT_STATUS(DEND_OK, status);
        len = eng_path(&trees[i], row, path);
        memcpy(who[i]->tokens + who[i]->len, path, len * sizeof(int32_t));
        who[i]->len += len;
        h->n_accepted++;
    }
}

static void eng_history_sample(eng_history *h, eng_mirror *m) {
    uint32_t scratch[ENG_V];
    dend_sample_params p;
    dend_sampled x, y;
    const float *logits;
    dend_status status;
    memset(&p, 0, sizeof p);
    p.temperature = 0.8f;
    p.top_k = test_below(&h->rng, 3) * 20;
    status = dend_sample(h->engine, m->seq, &p, &x);
    if (status == DEND_OK) {
        dend_seq_info info = eng_info(h->engine, m->seq);
        ASSERT_STATUS(DEND_OK, dend_seq_logits(h->engine, m->seq, &logits));
        ASSERT_STATUS(DEND_OK, dend_sample_logits(logits, ENG_V, &p, info.stream, m->len, scratch, &y));
        assert_int_equal(x.token, y.token);
        eng_history_append(h, m, &x.token, 1);
    } else {
        assert_true(status == DEND_ERR_WAITING || status == DEND_ERR_NO_LOGITS);
    }
}

static void eng_history_step(eng_history *h) {
    uint32_t n = 1 + test_below(&h->rng, 30);
    dend_status status = DEND_PENDING;
    if (test_below(&h->rng, 3)) { /* a few of the smallest slices that there are */
        while (n-- > 0 && status == DEND_PENDING) {
            status = dendp_step_run(h->engine, 1);
        }
    } else {
        status = dend_step(h->engine, test_below(&h->rng, 3) ? 1 + test_below(&h->rng, 60) : 0);
    }
    assert_true(status == DEND_OK || status == DEND_PENDING || status == DEND_ERR_NO_LOGITS);
}

/* One random operation. */
static void eng_history_turn(eng_history *h) {
    eng_mirror *m = &h->mirrors[test_below(&h->rng, ENG_MOST_SEQS)];
    uint32_t what = test_below(&h->rng, 100), n = test_below(&h->rng, 5) ? 1 + test_below(&h->rng, 4) : 40;
    int32_t tokens[40];
    dend_seq seq;
    if (what < 22) {
        eng_history_step(h);
        return;
    }
    if (!m->live) {
        if (eng_mirror_count(h) < 3 || test_below(&h->rng, 8) == 0) {
            eng_mirror_add(h, eng_seq(h->engine), NULL);
        }
        return;
    }
    if (what < 42) {
        dend_status status = dend_seq_fork(h->engine, m->seq, what % 2 ? DEND_FORK_SAME_STREAM : 0, &seq);
        ASSERT_STATUS(eng_mirror_count(h) == ENG_MOST_SEQS ? DEND_ERR_NO_SEQUENCES : DEND_OK, status);
        if (status == DEND_OK) {
            eng_mirror_add(h, seq, m);
        }
    } else if (what < 64) {
        eng_tokens(&h->rng, tokens, n);
        eng_history_append(h, m, tokens, n);
    } else if (what < 72) {
        uint32_t len =
            m->len - test_below(&h->rng, test_below(&h->rng, 3) ? (m->len < 6 ? m->len : 6) + 1 : m->len + 1);
        uint32_t least = eng_info(h->engine, m->seq).rewind_min;
        dend_status status = dend_seq_rewind(h->engine, m->seq, len);
        ASSERT_STATUS(len < least ? DEND_ERR_UNSUPPORTED : DEND_OK, status);
        assert_true(least == 0 || h->desc.n_window_blocks != 0);
        m->len = status == DEND_OK ? len : m->len;
        h->n_kept += status != DEND_OK;
    } else if (what < 82) {
        ASSERT_STATUS(DEND_OK, dend_seq_drop(h->engine, m->seq));
        m->live = false;
    } else if (what < 88) {
        eng_mirror *other = &h->mirrors[test_below(&h->rng, ENG_MOST_SEQS)];
        if (test_below(&h->rng, 2)) {
            eng_history_settle(h, m);
        }
        eng_history_tree(h, m, other->live ? other : m);
    } else if (what < 93) {
        eng_history_sample(h, m);
    } else if (what < 95) {
        ASSERT_STATUS(DEND_OK, dend_seq_release_logits(h->engine, m->seq));
    } else if (what < 97) {
        ASSERT_STATUS(DEND_OK, dend_seq_want_logits(h->engine, m->seq));
    } else {
        eng_history_check(h, m);
    }
}

/* 3,000 operations on up to 24 sequences, in an engine that is short of
 * everything; free blocks are poisoned. At the end all comes back. (How far a
 * step with a budget gets is the clock's affair, so runs differ a little.) */
static void eng_history_run(const dend_model *model, uint32_t seed, bool few_window_blocks,
                            uint32_t *n_checked, uint32_t *n_refused, uint32_t *n_accepted,
                            uint32_t *n_kept) {
    eng_history h;
    uint32_t i, turn;
    memset(&h, 0, sizeof h);
    h.model = model;
    h.rng.state = seed * 1000003u + 7;
    h.mirrors = (eng_mirror *)calloc(ENG_MOST_SEQS, sizeof *h.mirrors);
    assert_non_null(h.mirrors);
    h.desc = eng_desc(model);
    h.desc.n_ctx = ENG_HISTORY_CTX;
    h.desc.n_seqs = ENG_MOST_SEQS;
    h.desc.block_tokens = 16 + 16 * (seed % 2);
    h.desc.kv_type = eng_kv_types[seed % 3];
    h.desc.n_blocks = (10 + test_below(&h.rng, 30)) / (1 + seed % 2);
    h.desc.n_window_blocks = few_window_blocks ? h.desc.n_blocks / 2 : 0;
    h.desc.n_batch = 1 + test_below(&h.rng, 20);
    h.desc.n_logits = 1 + test_below(&h.rng, 10);
    h.desc.n_tree_rows = 16;
    h.desc.release_budget = 1 + test_below(&h.rng, 3);
    h.desc.n_threads = 1 + (seed % 5 == 0);
    h.engine = eng_open(&h.desc);
    eng_poison(h.engine);
    for (turn = 0; turn < 3000; turn++) {
        eng_history_turn(&h);
    }
    for (i = 0; i < ENG_MOST_SEQS; i++) {
        if (h.mirrors[i].live) {
            eng_history_check(&h, &h.mirrors[i]);
        }
    }
    eng_all_free(h.engine);
    *n_checked += h.n_checked;
    *n_refused += h.n_refused;
    *n_accepted += h.n_accepted;
    *n_kept += h.n_kept;
    dend_engine_free(h.engine);
    free(h.mirrors);
}

static void test_engine_history(void **state) {
    uint32_t m, seed, n_checked = 0, n_refused = 0, n_accepted = 0, n_kept = 0;
    (void)state;
    for (m = 0; m < ENG_N_MODELS; m++) {
        dend_model *model = eng_load(eng_paths[m]);
        for (seed = 0; seed < 6; seed++) { /* with each KV type and block size */
            eng_history_run(model, 6 * m + seed, false, &n_checked, &n_refused, &n_accepted, &n_kept);
        }
        dend_model_free(model);
    }
    assert_int_equal(n_kept, 0);
    /* Or else the runs would say little. */
    assert_true(n_checked > 30 * 40 && n_refused > 30 * 50 && n_accepted > 30 * 20);
    print_message("histories: %u checks, %u refusals, %u accepted trees\n", n_checked, n_refused, n_accepted);
}

/* The same where what lies behind a window is given up. */
static void test_engine_history_windows(void **state) {
    uint32_t m, seed, n_checked = 0, n_refused = 0, n_accepted = 0, n_kept = 0;
    (void)state;
    for (m = 3; m < ENG_N_MODELS; m++) {
        dend_model *model = eng_load(eng_paths[m]);
        for (seed = 0; seed < 6; seed++) {
            eng_history_run(model, 6 * m + seed, true, &n_checked, &n_refused, &n_accepted, &n_kept);
        }
        dend_model_free(model);
    }
    print_message("histories: %u checks, %u refusals, %u accepted trees, %u rewinds refused\n", n_checked,
                  n_refused, n_accepted, n_kept);
    assert_true(n_checked > 12 * 40 && n_refused > 12 * 50 && n_accepted > 12 * 20 && n_kept > 12 * 5);
}

static const struct CMUnitTest tests_engine_api[] = {
    cmocka_unit_test(test_engine_statuses),
    cmocka_unit_test(test_engine_desc_refused),
    cmocka_unit_test(test_engine_limits),
    cmocka_unit_test(test_engine_defaults),
    cmocka_unit_test(test_engine_null),
    cmocka_unit_test(test_engine_stale),
    cmocka_unit_test(test_engine_append),
    cmocka_unit_test(test_engine_out_of_blocks),
    cmocka_unit_test(test_engine_out_of_sequences),
    cmocka_unit_test(test_engine_out_of_logits),
    cmocka_unit_test(test_engine_next_starved),
    cmocka_unit_test(test_engine_logits),
    cmocka_unit_test(test_engine_rewind),
    cmocka_unit_test(test_engine_rewind_no_nodes),
    cmocka_unit_test(test_engine_fork_waiting),
    cmocka_unit_test(test_engine_streams),
    cmocka_unit_test(test_engine_tokens),
    cmocka_unit_test(test_engine_text),
    cmocka_unit_test(test_engine_budget),
    cmocka_unit_test(test_engine_sample),
    cmocka_unit_test(test_engine_next),
    cmocka_unit_test(test_engine_model_refused),
#if DENDP_THREADS
    cmocka_unit_test(test_engine_shared_model),
#endif
    cmocka_unit_test(test_engine_attention),
    cmocka_unit_test(test_engine_deferred),
    cmocka_unit_test(test_engine_tree_refused),
    cmocka_unit_test(test_engine_tree_rows),
    cmocka_unit_test(test_engine_tree_large),
    cmocka_unit_test(test_engine_tree_no_logits),
    cmocka_unit_test(test_engine_row_invariance),
    cmocka_unit_test(test_engine_row_invariance_long),
    cmocka_unit_test(test_engine_history),
    cmocka_unit_test(test_engine_history_windows),
};
