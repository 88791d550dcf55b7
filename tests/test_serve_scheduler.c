/* The scheduler: every request's tokens against dend_next on a fresh engine,
 * whatever the order, budgets, priorities and want; order, aging, quotas and
 * deadlines; hostile callers. Helpers: test_engine_api.c. */

#define SRV_MOST 24u /* requests of one test */
#define SRV_CTX 160u

static dend_scheduler *srv_open(dend_engine *engine, uint32_t n_requests, uint32_t n_users) {
    dend_scheduler_desc d;
    dend_scheduler *s = NULL;
    dend_error error;
    memset(&d, 0, sizeof d);
    memset(&error, 0, sizeof error);
    d.engine = engine;
    d.n_requests = n_requests;
    d.n_users = n_users;
    if (dend_scheduler_create(&d, &s, &error) != DEND_OK) {
        fail_msg("scheduler: %s", error.msg);
    }
    return s;
}

/* One batch, however many steps it takes, and what settling makes of it. */
static dend_status srv_batch(dend_scheduler *s) {
    dend_status status;
    do {
        status = dendp_serve_step(s, 1); /* a deadline long past: a task a call */
    } while (status == DEND_PENDING && (s->flight || s->unsettled));
    return status;
}

static dend_request srv_request(dend_seq seq, uint32_t max_tokens) {
    dend_request r;
    memset(&r, 0, sizeof r);
    r.seq = seq;
    r.max_tokens = max_tokens;
    return r;
}

static dend_request_id srv_submit(dend_scheduler *s, const dend_request *r) {
    dend_request_id id;
    memset(&id, 0, sizeof id);
    ASSERT_STATUS(DEND_OK, dend_scheduler_submit(s, r, &id));
    assert_true(id.generation != 0);
    return id;
}

static dend_request_info srv_info(const dend_scheduler *s, dend_request_id id) {
    dend_request_info info;
    ASSERT_STATUS(DEND_OK, dend_scheduler_request_info(s, id, &info));
    return info;
}

static void srv_done(const dend_scheduler *s, dend_request_id id, dend_status status, uint32_t n_generated) {
    dend_request_info info = srv_info(s, id);
    assert_int_equal(info.state, DEND_REQUEST_DONE);
    ASSERT_STATUS(status, info.status);
    assert_int_equal(info.n_generated, n_generated);
}

/* Lists, owners and the heap order hold together. */
static void srv_walk(const dend_scheduler *s) {
    uint32_t i, n_free = 0, n_used = 0, n_live = 0;
    for (i = s->first_free; i != DENDP_NONE; i = s->requests[i].next_free) {
        assert_false(s->requests[i].used);
        n_free++;
    }
    for (i = 0; i < s->desc.n_requests; i++) {
        const dendp_request *q = &s->requests[i];
        n_used += q->used;
        assert_int_equal(q->live_at != DENDP_NONE, q->used && q->state != DEND_REQUEST_DONE);
        assert_int_equal(q->live_at != DENDP_NONE, q->used && q->status == DEND_PENDING);
        if (q->live_at != DENDP_NONE) {
            n_live++;
            assert_true(q->live_at < s->n_live && s->live[q->live_at] == i);
        }
    }
    assert_int_equal(n_free + n_used, s->desc.n_requests);
    assert_int_equal(n_live, s->n_live);
    for (i = 0; i < s->engine->desc.n_seqs; i++) {
        uint32_t owner = s->owner[i];
        assert_true(owner == DENDP_NONE ||
                    (s->requests[owner].live_at != DENDP_NONE && s->requests[owner].desc.seq.slot == i));
    }
}

/* -- the oracle: one request alone ------------------------------------------ */

typedef struct srv_task {
    int32_t prompt[SRV_CTX];
    uint32_t n_prompt, max_tokens;
    dend_sample_params params;
    uint64_t stream;
    /* what dend_next says alone */
    int32_t expected[SRV_CTX];
    uint32_t n_expected; /* tokens after the prompt */
    dend_status status;
    /* the request */
    dend_seq seq;
    dend_request_id id;
    int32_t told[SRV_CTX]; /* by on_token */
    uint32_t n_told;
    dend_scheduler *scheduler;
} srv_task;

static bool srv_on_token(void *user, dend_request_id id, int32_t token) {
    srv_task *t = (srv_task *)user;
    assert_int_equal(id.slot, t->id.slot);
    assert_int_equal(id.generation, t->id.generation);
    assert_true(t->n_told < SRV_CTX);
    t->told[t->n_told++] = token;
    return true;
}

/* A random prompt of at least `least` tokens, greedy or warm. */
static void srv_task_make(srv_task *t, test_rng *rng, uint32_t least, uint32_t most_prompt,
                          uint32_t most_tokens) {
    memset(t, 0, sizeof *t);
    t->n_prompt = least + test_below(rng, most_prompt - least + 1);
    eng_tokens(rng, t->prompt, t->n_prompt);
    t->max_tokens = 1 + test_below(rng, most_tokens);
    t->stream = test_next(rng);
    if (test_below(rng, 2)) {
        t->params.temperature = 0.5f + 0.1f * (float)test_below(rng, 20);
        t->params.top_k = test_below(rng, 3) * 30;
        t->params.top_p = test_below(rng, 2) ? 0.9f : 0.0f;
        t->params.salt = test_below(rng, 3);
    }
}

/* Fills in what is expected, from an engine of its own with blocks for all. */
static void srv_task_alone(srv_task *t, const dend_engine_desc *desc) {
    dend_engine_desc d = *desc;
    dend_engine *e;
    dend_seq seq;
    memset(&d.allocator, 0, sizeof d.allocator);
    d.n_seqs = 1;
    d.n_blocks = 0;
    d.n_batch = 64;
    d.n_threads = 1;
    e = eng_open(&d);
    seq = eng_with(e, t->prompt, t->n_prompt);
    ASSERT_STATUS(DEND_OK, dend_seq_set_stream(e, seq, t->stream));
    t->status = DEND_OK;
    for (t->n_expected = 0; t->n_expected < t->max_tokens; t->n_expected++) {
        t->status = dend_next(e, seq, &t->params, &t->expected[t->n_expected]);
        if (t->status != DEND_OK) {
            break;
        }
    }
    dend_engine_free(e);
}

/* A task of n_prompt tokens that reaches max_tokens. */
static void srv_task_long(srv_task *t, test_rng *rng, const dend_engine_desc *desc, uint32_t n_prompt,
                          uint32_t max_tokens) {
    do {
        srv_task_make(t, rng, n_prompt, n_prompt, 1);
        t->params.temperature = 1.5f;
        t->max_tokens = max_tokens;
        srv_task_alone(t, desc);
    } while (t->status != DEND_OK);
}

static dend_request srv_task_request(srv_task *t, dend_scheduler *s) {
    dend_request r = srv_request(t->seq, t->max_tokens);
    r.params = t->params;
    r.on_token = srv_on_token;
    r.user_data = t;
    t->scheduler = s;
    return r;
}

static void srv_task_submit(srv_task *t, dend_scheduler *s, int32_t priority) {
    dend_request r = srv_task_request(t, s);
    r.priority = priority;
    ASSERT_STATUS(DEND_OK, dend_seq_set_stream(s->engine, t->seq, t->stream));
    ASSERT_STATUS(DEND_OK, dend_scheduler_submit(s, &r, &t->id));
}

/* The sequence holds the prompt and the first n expected tokens, and on_token told them. */
static void srv_task_prefix(const srv_task *t, uint32_t n) {
    const dend_engine *e = t->scheduler->engine;
    int32_t got[2 * SRV_CTX];
    assert_true(n <= t->n_expected);
    assert_int_equal(eng_info(e, t->seq).len_tokens, t->n_prompt + n);
    ASSERT_STATUS(DEND_OK, dend_seq_tokens(e, t->seq, 0, t->n_prompt + n, got));
    assert_memory_equal(got, t->prompt, t->n_prompt * sizeof(int32_t));
    assert_memory_equal(got + t->n_prompt, t->expected, n * sizeof(int32_t));
    assert_int_equal(t->n_told, n);
    assert_memory_equal(t->told, t->expected, n * sizeof(int32_t));
}

static void srv_task_check(const srv_task *t) {
    srv_done(t->scheduler, t->id, t->status, t->n_expected);
    srv_task_prefix(t, t->n_expected);
    assert_false(eng_info(t->scheduler->engine, t->seq).has_logits);
}

/* -- results do not depend on anything --------------------------------------- */

/* Some arrive at once, some between steps; a few fork a common prefix, waiting or computed. */
static void srv_random_run(const dend_model *model, uint32_t seed, uint32_t *n_ends, uint32_t *n_full) {
    static srv_task tasks[SRV_MOST];
    dend_engine_desc d = eng_desc(model);
    dend_engine *e;
    dend_scheduler *s;
    dend_scheduler_desc sd;
    dend_seq trunk, stranger;
    test_rng rng;
    uint32_t i, n = 4 + seed % 12, arrived = 0, done = 0, n_trunk = 20, turns = 0;
    int32_t prefix[20], lone[7];
    rng.state = seed * 7919u + 1;
    d.n_ctx = seed % 3 ? SRV_CTX : 70;
    d.n_seqs = SRV_MOST + 2;
    d.n_blocks = 400;
    d.kv_type = eng_kv_types[seed % 3];
    d.n_batch = 1 + test_below(&rng, seed % 2 ? 6 : 50);
    d.n_logits = 1 + test_below(&rng, 4);
    d.n_threads = 1 + seed % 2;
    e = eng_open(&d);
    memset(&sd, 0, sizeof sd);
    sd.engine = e;
    sd.n_requests = n;
    sd.prefill_share = 1 + test_below(&rng, 100);
    ASSERT_STATUS(DEND_OK, dend_scheduler_create(&sd, &s, NULL));
    eng_tokens(&rng, prefix, 20);
    eng_tokens(&rng, lone, 7);
    trunk = eng_with(e, prefix, n_trunk);
    if (test_below(&rng, 2)) {
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
        if (d.n_logits == 1 || test_below(&rng, 2)) { /* or else the trunk would keep the only row */
            ASSERT_STATUS(DEND_OK, dend_seq_release_logits(e, trunk));
        }
    } else {
        n_trunk = 1 + test_below(&rng, 20); /* a tail that is not full */
        ASSERT_STATUS(DEND_OK, dend_seq_rewind(e, trunk, n_trunk));
    }
    stranger = eng_with(e, lone, 7);
    for (i = 0; i < n; i++) {
        srv_task *t = &tasks[i];
        srv_task_make(t, &rng, 1, 60, 25);
        if (test_below(&rng, 3) == 0) {
            uint32_t more = test_below(&rng, 3) * test_below(&rng, 20);
            memmove(t->prompt + n_trunk, t->prompt, more * sizeof(int32_t));
            memcpy(t->prompt, prefix, n_trunk * sizeof(int32_t));
            t->n_prompt = n_trunk + more;
            t->seq = eng_fork(e, trunk);
            ASSERT_STATUS(DEND_OK, dend_seq_append(e, t->seq, t->prompt + n_trunk, more));
        } else {
            t->seq = eng_with(e, t->prompt, t->n_prompt);
        }
        srv_task_alone(t, &d);
        *n_ends += t->status == DEND_END;
        *n_full += t->status == DEND_ERR_CONTEXT_FULL;
    }
    while (done < n) {
        dend_status status;
        assert_true(++turns < 20000);
        while (arrived < n && test_below(&rng, 3) == 0) {
            srv_task_submit(&tasks[arrived++], s, (int32_t)test_below(&rng, 7) - 3);
        }
        status = dend_scheduler_step(s, test_below(&rng, 10) ? test_below(&rng, 300) + 1 : 0);
        srv_walk(s);
        assert_true(status == DEND_OK || status == DEND_PENDING);
        for (i = 0, done = 0; i < arrived; i++) {
            done += srv_info(s, tasks[i].id).state == DEND_REQUEST_DONE;
        }
        ASSERT_STATUS(done == arrived ? DEND_OK : DEND_PENDING, status);
    }
    for (i = 0; i < n; i++) {
        srv_task_check(&tasks[i]);
        ASSERT_STATUS(DEND_OK, dend_scheduler_collect(s, tasks[i].id));
    }
    srv_walk(s);
    assert_int_equal(eng_info(e, stranger).n_waiting, 7); /* left alone */
    dend_scheduler_free(s);
    eng_all_free(e);
    dend_engine_free(e);
}

static void test_serve_alone(void **state) {
    uint32_t m, seed, n_ends = 0, n_full = 0;
    (void)state;
    for (m = 0; m < 3; m++) {
        dend_model *model = eng_load(eng_paths[m]);
        for (seed = 0; seed < 20; seed++) {
            srv_random_run(model, 20 * m + seed, &n_ends, &n_full);
        }
        dend_model_free(model);
    }
    print_message("scheduler: %u ended by the model, %u by the context\n", n_ends, n_full);
    assert_true(n_full > 5);
}

/* -- descriptions and memory -------------------------------------------------- */

static void srv_desc_refused(const dend_scheduler_desc *desc) {
    dend_scheduler_desc d = *desc;
    dend_scheduler *s = (dend_scheduler *)&d;
    dend_error error;
    uint64_t bytes = 4711;
    memset(&error, 0, sizeof error);
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_scheduler_resolve(&d, &error));
    assert_true(error.msg && error.room_line > 0);
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_scheduler_plan(&d, &bytes, NULL));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_scheduler_create(&d, &s, NULL));
    assert_null(s);
    assert_int_equal(bytes, 4711);
    assert_memory_equal(&d, desc, sizeof d);
}

static void test_serve_desc(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc ed = eng_desc(model);
    dend_engine *e = eng_open(&ed);
    dend_scheduler_desc d, good;
    dend_scheduler *s;
    uint64_t bytes;
    (void)state;
    memset(&good, 0, sizeof good);
    srv_desc_refused(&good); /* no engine */
    good.engine = e;
    d = good;
    d.canary_begin_ = 1;
    srv_desc_refused(&d);
    d = good;
    d.canary_end_ = 1;
    srv_desc_refused(&d);
    d = good;
    d.n_requests = (1u << 24) + 1;
    srv_desc_refused(&d);
    d = good;
    d.n_users = 0xffffffffu;
    srv_desc_refused(&d);
    d = good;
    d.prefill_share = 101;
    srv_desc_refused(&d);
    d = good;
    d.allocator.alloc = eng_modest_alloc;
    srv_desc_refused(&d);
    d = good;
    d.n_requests = d.n_users = 1u << 24; /* the largest: more than this allocator grants */
    d.allocator.alloc = eng_modest_alloc;
    d.allocator.free = eng_modest_free;
    ASSERT_STATUS(DEND_OK, dend_scheduler_plan(&d, &bytes, NULL));
    assert_true(bytes > (uint64_t)1 << 30);
    ASSERT_STATUS(DEND_ERR_MEMORY, dend_scheduler_create(&d, &s, NULL));
    assert_null(s);
    d = good;
    ASSERT_STATUS(DEND_OK, dend_scheduler_resolve(&d, NULL));
    assert_int_equal(d.n_requests, 64);
    assert_int_equal(d.n_users, 1);
    assert_int_equal(d.prefill_share, 50);
    assert_true(d.allocator.alloc == e->desc.allocator.alloc);
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_scheduler_resolve(NULL, NULL));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_scheduler_plan(NULL, &bytes, NULL));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_scheduler_plan(&good, NULL, NULL));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_scheduler_create(NULL, &s, NULL));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_scheduler_create(&good, NULL, NULL));
    dend_scheduler_free(NULL);
    dend_engine_free(e);
    dend_model_free(model);
}

/* One allocation of the planned size; none while running. */
static void test_serve_memory(void **state) {
    dend_model *model = eng_load(ENG_QWEN2);
    dend_engine_desc ed = eng_desc(model);
    dend_engine *e;
    dend_scheduler_desc d;
    dend_scheduler *s;
    test_heap engine_heap, heap;
    test_rng rng;
    uint64_t bytes;
    uint32_t round, i;
    (void)state;
    rng.state = 77;
    ed.allocator = test_heap_allocator(&engine_heap);
    ed.n_ctx = 100;
    ed.n_seqs = 20;
    ed.n_logits = 2;
    e = eng_open(&ed);
    for (round = 0; round < 10; round++) {
        dend_seq seq[10];
        memset(&d, 0, sizeof d);
        d.engine = e;
        d.n_requests = round ? 10 + test_below(&rng, 500) : 0;
        d.n_users = round ? 1 + test_below(&rng, 500) : 0;
        d.allocator = test_heap_allocator(&heap);
        ASSERT_STATUS(DEND_OK, dend_scheduler_plan(&d, &bytes, NULL));
        heap.fail_at = 1;
        ASSERT_STATUS(DEND_ERR_MEMORY, dend_scheduler_create(&d, &s, NULL));
        assert_null(s);
        ASSERT_STATUS(DEND_OK, dend_scheduler_create(&d, &s, NULL));
        assert_int_equal(heap.n_allocs, 2);
        assert_int_equal(heap.n_live_bytes, bytes);
        for (i = 0; i < 10; i++) {
            int32_t tokens[30];
            dend_request r;
            eng_tokens(&rng, tokens, 30);
            seq[i] = eng_with(e, tokens, 1 + test_below(&rng, 30));
            r = srv_request(seq[i], 5);
            srv_submit(s, &r);
        }
        while (dend_scheduler_step(s, 100) == DEND_PENDING) {
        }
        for (i = 0; i < 10; i++) {
            ASSERT_STATUS(DEND_OK, dend_seq_drop(e, seq[i]));
        }
        assert_int_equal(heap.n_allocs, 2);
        assert_int_equal(engine_heap.n_allocs, 1);
        dend_scheduler_free(s);
        assert_int_equal(heap.n_live_bytes, 0);
    }
    eng_all_free(e);
    dend_engine_free(e);
    dend_model_free(model);
}

/* -- hostile callers ------------------------------------------------------------ */

static void test_serve_handles(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc ed = eng_desc(model);
    dend_engine *e = eng_open(&ed);
    dend_scheduler *s = srv_open(e, 3, 2);
    int32_t tokens[5] = {1, 2, 3, 4, 5};
    dend_seq seq[5], empty = eng_seq(e), gone;
    dend_request r;
    dend_request_id id[4], bad;
    dend_request_info info;
    test_rng rng;
    uint32_t i;
    (void)state;
    rng.state = 6;
    memset(&bad, 0, sizeof bad);
    memset(&r, 0, sizeof r);
    for (i = 0; i < 5; i++) {
        seq[i] = eng_with(e, tokens, i + 1);
    }
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_scheduler_step(NULL, 0));
    ASSERT_STATUS(DEND_OK, dend_scheduler_step(s, 0)); /* nothing to do */
    ASSERT_STATUS(DEND_OK, dend_scheduler_step(s, 1));
    ASSERT_STATUS(DEND_ERR_STALE, dend_scheduler_submit(s, &r, &bad)); /* zero everything */
    r = srv_request(seq[0], 3);
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_scheduler_submit(NULL, &r, &bad));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_scheduler_submit(s, NULL, &bad));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_scheduler_submit(s, &r, NULL));
    r.user = 2;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_scheduler_submit(s, &r, &bad));
    r.user = 1;
    r.priority = 101;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_scheduler_submit(s, &r, &bad));
    r.priority = INT32_MIN;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_scheduler_submit(s, &r, &bad));
    r.priority = 0;
    r.params.temperature = -1.0f;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_scheduler_submit(s, &r, &bad));
    r = srv_request(empty, 3);
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_scheduler_submit(s, &r, &bad));
    gone = eng_with(e, tokens, 1);
    ASSERT_STATUS(DEND_OK, dend_seq_drop(e, gone));
    r = srv_request(gone, 3);
    ASSERT_STATUS(DEND_ERR_STALE, dend_scheduler_submit(s, &r, &bad));
    assert_int_equal(bad.generation, 0); /* refusals write nothing */
    srv_walk(s);

    for (i = 0; i < 3; i++) {
        r = srv_request(seq[i], 4);
        id[i] = srv_submit(s, &r);
    }
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_scheduler_submit(s, &r, &bad)); /* that sequence is busy */
    r = srv_request(seq[3], 4);
    ASSERT_STATUS(DEND_ERR_NO_REQUESTS, dend_scheduler_submit(s, &r, &bad));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_scheduler_collect(s, id[0])); /* it lives */
    ASSERT_STATUS(DEND_OK, dend_scheduler_step(s, 0));
    for (i = 0; i < 3; i++) {
        srv_done(s, id[i], DEND_OK, 4);
    }
    ASSERT_STATUS(DEND_ERR_NO_REQUESTS, dend_scheduler_submit(s, &r, &bad)); /* not collected yet */
    ASSERT_STATUS(DEND_OK, dend_scheduler_cancel(s, id[1]));                 /* changes nothing */
    srv_done(s, id[1], DEND_OK, 4);
    ASSERT_STATUS(DEND_OK, dend_scheduler_collect(s, id[1]));
    ASSERT_STATUS(DEND_ERR_STALE, dend_scheduler_collect(s, id[1]));
    ASSERT_STATUS(DEND_ERR_STALE, dend_scheduler_cancel(s, id[1]));
    ASSERT_STATUS(DEND_ERR_STALE, dend_scheduler_request_info(s, id[1], &info));
    id[3] = srv_submit(s, &r);
    assert_int_equal(id[3].slot, id[1].slot);
    ASSERT_STATUS(DEND_ERR_STALE, dend_scheduler_cancel(s, id[1]));
    ASSERT_STATUS(DEND_OK, dend_scheduler_cancel(s, id[3]));
    srv_done(s, id[3], DEND_ERR_CANCELLED, 0);
    assert_int_equal(eng_info(e, seq[3]).n_waiting, 4); /* untouched */
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_scheduler_cancel(NULL, id[0]));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_scheduler_collect(NULL, id[0]));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_scheduler_request_info(NULL, id[0], &info));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_scheduler_request_info(s, id[0], NULL));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_scheduler_set_quota(NULL, 0, 1));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_scheduler_set_quota(s, 2, 1));
    assert_int_equal(dend_scheduler_quota(NULL, 0), 0);
    assert_int_equal(dend_scheduler_quota(s, 2), 0);
    assert_true(dend_scheduler_quota(s, 1) == UINT64_MAX);
    for (i = 0; i < 10000; i++) {
        bad.slot = i % 2 ? test_below(&rng, 5) : (uint32_t)test_next(&rng);
        bad.generation = i % 3 ? (uint32_t)test_next(&rng) | 4u : 0u;
        ASSERT_STATUS(DEND_ERR_STALE, dend_scheduler_request_info(s, bad, &info));
        ASSERT_STATUS(DEND_ERR_STALE, dend_scheduler_cancel(s, bad));
        ASSERT_STATUS(DEND_ERR_STALE, dend_scheduler_collect(s, bad));
    }
    srv_walk(s);
    dend_scheduler_free(s);
    eng_all_free(e);
    dend_engine_free(e);
    dend_model_free(model);
}

/* Sequences dropped, emptied, cut, and replaced under live requests. */
static void test_serve_stale(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc ed = eng_desc(model);
    dend_engine *e;
    dend_scheduler *s;
    static srv_task t[5];
    dend_request r;
    dend_request_id again;
    dend_seq reborn;
    test_rng rng;
    uint32_t i;
    (void)state;
    rng.state = 60;
    ed.n_batch = 4;
    ed.n_ctx = SRV_CTX;
    e = eng_open(&ed);
    s = srv_open(e, 8, 1);
    for (i = 0; i < 5; i++) {
        srv_task_long(&t[i], &rng, &ed, 20 + i, 30);
        t[i].seq = eng_with(e, t[i].prompt, t[i].n_prompt);
        srv_task_submit(&t[i], s, 0);
    }
    ASSERT_STATUS(DEND_OK, dend_seq_drop(e, t[0].seq)); /* before its first batch */
    reborn = eng_with(e, t[0].prompt, 3);
    assert_int_equal(reborn.slot, t[0].seq.slot);
    r = srv_request(reborn, 2); /* the same slot, before the old request is missed */
    again = srv_submit(s, &r);
    while (t[1].n_told < 3) {
        ASSERT_STATUS(DEND_PENDING, srv_batch(s));
        srv_walk(s);
    }
    srv_done(s, t[0].id, DEND_ERR_STALE, 0);
    ASSERT_STATUS(DEND_OK, dend_seq_drop(e, t[1].seq));
    ASSERT_STATUS(DEND_OK, dend_seq_rewind(e, t[2].seq, 0));
    i = 1; /* back by a token: it comes again, being keyed by its place */
    ASSERT_STATUS(DEND_OK, dend_seq_rewind(e, t[3].seq, eng_info(e, t[3].seq).len_tokens - i));
    t[3].n_told = 0;
    ASSERT_STATUS(DEND_OK, dend_scheduler_step(s, 0));
    srv_done(s, again, DEND_OK, 2);
    assert_int_equal(srv_info(s, t[1].id).status, DEND_ERR_STALE);
    assert_int_equal(srv_info(s, t[2].id).status, DEND_ERR_NO_LOGITS);
    assert_int_equal(srv_info(s, t[3].id).state, DEND_REQUEST_DONE);
    srv_task_check(&t[4]);
    srv_walk(s);
    dend_scheduler_free(s);
    eng_all_free(e);
    dend_engine_free(e);
    dend_model_free(model);
}

/* What a callback does, chosen at random. */
typedef struct srv_chaos {
    dend_scheduler *s;
    test_rng rng;
    dend_request_id ids[64];
    uint32_t n_ids, n_calls, n_submitted;
} srv_chaos;

static bool srv_on_chaos(void *user, dend_request_id id, int32_t token) {
    srv_chaos *c = (srv_chaos *)user;
    dend_engine *e = c->s->engine;
    dend_request_id other = c->ids[test_below(&c->rng, c->n_ids)], fresh;
    dend_request_info info = srv_info(c->s, id);
    dend_request r;
    dend_seq seq;
    assert_true(token >= 0 && token < (int32_t)ENG_V);
    assert_int_equal(info.state, DEND_REQUEST_DECODE);
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_scheduler_step(c->s, 1)); /* not from here */
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_scheduler_collect(c->s, id));
    c->n_calls++;
    switch (test_below(&c->rng, 40)) {
    case 0:
        ASSERT_STATUS(DEND_OK, dend_scheduler_cancel(c->s, id));
        ASSERT_STATUS(DEND_OK, dend_scheduler_collect(c->s, id)); /* and its slot is taken at once, below */
        break;
    case 1:
        dend_scheduler_cancel(c->s, other);
        break;
    case 2:
        dend_seq_drop(e, info.seq);
        break;
    case 3:
        return false;
    case 4:
        dend_step(e, 1); /* others get logits behind the scheduler's back */
        break;
    case 5:
        if (dend_scheduler_request_info(c->s, other, &info) == DEND_OK) {
            dend_seq_rewind(e, info.seq, 2);
        }
        break;
    case 6:
        dend_seq_drop(e, info.seq);
        return false;
    default:
        break;
    }
    if (c->n_submitted < 60 && dend_seq_create(e, &seq) == DEND_OK) {
        int32_t tokens[9];
        eng_tokens(&c->rng, tokens, 9);
        r = srv_request(seq, 8);
        r.params.temperature = 3.0f;
        r.on_token = srv_on_chaos;
        r.user_data = c;
        r.priority = (int32_t)test_below(&c->rng, 3);
        if (dend_seq_append(e, seq, tokens, 1 + test_below(&c->rng, 9)) == DEND_OK &&
            dend_scheduler_submit(c->s, &r, &fresh) == DEND_OK) {
            c->ids[c->n_ids++ % 64] = fresh;
            c->n_ids = c->n_ids > 64 ? 64 : c->n_ids;
            c->n_submitted++;
        } else {
            dend_seq_drop(e, seq);
        }
    }
    return true;
}

static void test_serve_callbacks(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    uint32_t seed, n_calls = 0, n_begun = 0;
    (void)state;
    for (seed = 1; seed <= 20; seed++) {
        dend_engine_desc ed = eng_desc(model);
        dend_engine *e;
        static srv_chaos c;
        dend_request r;
        dend_status status;
        int32_t token = 7;
        uint32_t turns = 0;
        memset(&c, 0, sizeof c);
        c.rng.state = seed;
        ed.n_seqs = 12;
        ed.n_batch = 1 + seed % 5;
        ed.n_logits = 1 + seed % 7;
        ed.n_blocks = 8 + seed;
        e = eng_open(&ed);
        c.s = srv_open(e, 6, 1);
        do {
            uint32_t i;
            assert_true(++turns < 5000);
            if (c.s->n_live == 0) { /* all that was begun has ended: everything away, and begin anew */
                for (i = 0; i < 6; i++) {
                    dend_request_id id;
                    id.slot = i;
                    id.generation = c.s->requests[i].generation;
                    dend_scheduler_collect(c.s, id);
                }
                eng_all_free(e);
                r = srv_request(eng_with(e, &token, 1), 8);
                r.params.temperature = 3.0f;
                r.on_token = srv_on_chaos;
                r.user_data = &c;
                c.ids[0] = srv_submit(c.s, &r);
                c.n_ids = c.n_ids ? c.n_ids : 1;
                n_begun++;
            }
            status = dend_scheduler_step(c.s, test_below(&c.rng, 2) ? 50 : 0);
            srv_walk(c.s);
            if (status ==
                DEND_ERR_NO_LOGITS) { /* rows that a callback's step gave to sequences of no request */
                for (i = 0; i < e->desc.n_seqs; i++) {
                    dend_seq seq;
                    seq.slot = i;
                    seq.generation = e->cache.slots[i].generation;
                    dend_seq_release_logits(e, seq);
                }
                status = DEND_PENDING;
            }
            assert_true(status == DEND_OK || status == DEND_PENDING);
        } while (status == DEND_PENDING || n_begun % 20 != 0);
        n_calls += c.n_calls;
        dend_scheduler_free(c.s);
        eng_all_free(e);
        dend_engine_free(e);
    }
    print_message("scheduler: %u chaotic calls\n", n_calls);
    assert_true(n_calls > 2000);
    dend_model_free(model);
}

/* -- want ------------------------------------------------------------------------- */

/* One logits row: it goes round. Held by a stranger, the step says so. */
static void test_serve_logits(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F16);
    dend_engine_desc ed = eng_desc(model);
    dend_engine *e;
    dend_scheduler *s;
    static srv_task t[6];
    const int32_t tokens[2] = {3, 4};
    dend_seq stranger;
    test_rng rng;
    uint32_t i, n_rows;
    (void)state;
    rng.state = 600;
    ed.n_logits = 1;
    ed.n_ctx = SRV_CTX;
    e = eng_open(&ed);
    s = srv_open(e, 8, 1);
    stranger = eng_with(e, tokens, 2);
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    for (i = 0; i < 6; i++) {
        srv_task_make(&t[i], &rng, 1, 40, 20);
        if (i >= 4) { /* forks that share a record with its waiting tokens */
            memcpy(t[i].prompt, t[3].prompt, sizeof t[i].prompt);
            t[i].n_prompt = t[3].n_prompt;
        }
        srv_task_alone(&t[i], &ed);
        t[i].seq = i < 4 ? eng_with(e, t[i].prompt, t[i].n_prompt) : eng_fork(e, t[3].seq);
        srv_task_submit(&t[i], s, (int32_t)i);
    }
    ASSERT_STATUS(DEND_ERR_NO_LOGITS, dend_scheduler_step(s, 0)); /* the stranger has the only row */
    srv_walk(s);
    for (i = 0; i < 6; i++) { /* the prompts are computed but for their last tokens */
        assert_int_equal(eng_info(e, t[i].seq).n_waiting, 1);
        assert_int_equal(srv_info(s, t[i].id).n_generated, 0);
    }
    assert_true(eng_info(e, stranger).has_logits);
    ASSERT_STATUS(DEND_ERR_NO_LOGITS, dend_scheduler_step(s, 1));
    ASSERT_STATUS(DEND_OK, dend_seq_release_logits(e, stranger));
    n_rows = (uint32_t)eng_stats(e).n_rows;
    ASSERT_STATUS(DEND_OK, dend_scheduler_step(s, 0));
    for (i = 0; i < 6; i++) {
        srv_task_check(&t[i]);
    }
    assert_true(eng_stats(e).n_rows > n_rows);
    assert_int_equal(eng_stats(e).n_logits_free, 1);
    dend_scheduler_free(s);
    eng_all_free(e);
    dend_engine_free(e);
    dend_model_free(model);
}

/* Forks of a computed trunk begin with its logits; forks that wait are computed once. */
static void test_serve_forks(void **state) {
    dend_model *model = eng_load(ENG_QWEN2);
    dend_engine_desc ed = eng_desc(model);
    uint32_t computed;
    (void)state;
    ed.n_ctx = SRV_CTX;
    for (computed = 0; computed < 2; computed++) {
        dend_engine *e = eng_open(&ed);
        dend_scheduler *s = srv_open(e, 10, 1);
        static srv_task t[10];
        dend_seq trunk;
        test_rng rng;
        uint32_t i;
        uint64_t n_rows;
        rng.state = 5 + computed;
        for (i = 0; i < 10; i++) {
            srv_task_make(&t[i], &rng, 50, 50, 1);
            t[i].max_tokens = 6;
            t[i].params.temperature = 1.0f;
            if (i == 0) {
                trunk = eng_with(e, t[0].prompt, 50);
                if (computed) {
                    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
                }
            } else {
                memcpy(t[i].prompt, t[0].prompt, sizeof t[i].prompt);
            }
            t[i].seq = eng_fork(e, trunk);
            srv_task_alone(&t[i], &ed);
            srv_task_submit(&t[i], s, 0);
        }
        n_rows = eng_stats(e).n_rows;
        ASSERT_STATUS(DEND_OK, dend_scheduler_step(s, 0));
        for (i = 0; i < 10; i++) {
            srv_task_check(&t[i]);
            n_rows += t[i].status == DEND_OK ? 5 : t[i].n_expected; /* the sixth token is not computed */
        }
        assert_true(eng_stats(e).n_rows <= n_rows + (computed ? 0 : 50));
        dend_scheduler_free(s);
        eng_all_free(e);
        dend_engine_free(e);
    }
    dend_model_free(model);
}

/* Blocks for some of the requests: the others wait, go on as sequences are
 * dropped, or end when nobody moves. */
static void test_serve_blocks(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    uint32_t drop;
    (void)state;
    for (drop = 0; drop < 2; drop++) {
        dend_engine_desc ed = eng_desc(model);
        dend_engine *e;
        dend_scheduler *s;
        static srv_task t[4];
        test_rng rng;
        dend_status status;
        uint32_t i, n_turns = 0, n_blocked = 0, n_end = 0;
        bool dropped[4] = {false, false, false, false};
        rng.state = 70;
        ed.n_ctx = SRV_CTX;
        ed.n_blocks = 9;
        e = eng_open(&ed);
        s = srv_open(e, 4, 1);
        for (i = 0; i < 4; i++) {
            /* two blocks each, and one is free; in the end three, and five */
            srv_task_long(&t[i], &rng, &ed, 20, i == 0 ? 20 : 60);
            t[i].seq = eng_with(e, t[i].prompt, 20);
        }
        for (i = 0; i < 4; i++) {
            srv_task_submit(&t[i], s, -(int32_t)i);
        }
        do {
            assert_true(++n_turns < 1000);
            status = dend_scheduler_step(s, drop ? 200 : 0);
            srv_walk(s);
            for (i = 0; i < 4; i++) {
                dend_request_info info = srv_info(s, t[i].id);
                if (info.state != DEND_REQUEST_DONE || dropped[i]) {
                    continue;
                }
                if (info.status == DEND_ERR_NO_BLOCKS) {
                    n_blocked++;
                    assert_true(t[i].n_told < t[i].n_expected);
                    srv_task_prefix(&t[i], t[i].n_told);
                    if (!drop) { /* the least first: nobody who is left goes before it */
                        assert_int_equal(n_end, n_blocked - 1 + (t[0].n_told == t[0].n_expected));
                    }
                } else {
                    srv_task_check(&t[i]);
                }
                n_end++;
                dropped[i] = true;
                if (drop) {
                    ASSERT_STATUS(DEND_OK, dend_seq_drop(e, t[i].seq));
                }
            }
        } while (status == DEND_PENDING);
        ASSERT_STATUS(DEND_OK, status);
        assert_int_equal(n_end, 4);
        srv_done(s, t[0].id, t[0].status, t[0].n_expected); /* the highest got the last block */
        if (drop) {
            /* what they left served the others; how many that takes depends on what fits into 200 us */
            assert_true(n_blocked <= 3);
        } else {
            assert_int_equal(n_blocked, 3);
        }
        dend_scheduler_free(s);
        eng_all_free(e);
        dend_engine_free(e);
    }
    dend_model_free(model);
}

/* -- callers between ----------------------------------------------------------------- */

typedef struct srv_meddler {
    dend_engine *e;
    dend_scheduler *s;
    dend_seq kid;
    bool drop, done;
    const int32_t *tokens;
} srv_meddler;

/* Makes a sequence of its own in the callback, and computes it there. */
static bool srv_meddle(void *user, dend_request_id id, int32_t token) {
    srv_meddler *m = (srv_meddler *)user;
    (void)token;
    if (!m->done) {
        const float *logits;
        m->done = true;
        if (m->drop) {
            ASSERT_STATUS(DEND_OK, dend_seq_drop(m->e, srv_info(m->s, id).seq));
            m->kid = eng_with(m->e, m->tokens, 5);
        } else {
            m->kid = eng_fork(m->e, srv_info(m->s, id).seq);
        }
        ASSERT_STATUS(DEND_OK, dend_step(m->e, 0));
        ASSERT_STATUS(DEND_OK, dend_seq_logits(m->e, m->kid, &logits));
    }
    return true;
}

/* Logits that a caller has got inside a callback stay, though one row is all there is. */
static void test_serve_meddling(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    uint32_t drop;
    (void)state;
    for (drop = 0; drop < 2; drop++) {
        dend_engine_desc ed = eng_desc(model);
        dend_request r;
        dend_request_id id;
        srv_meddler m;
        int32_t tokens[8];
        const float *logits;
        test_rng rng;
        rng.state = 75;
        ed.n_logits = 1;
        memset(&m, 0, sizeof m);
        m.e = eng_open(&ed);
        m.s = srv_open(m.e, 4, 1);
        m.drop = drop;
        m.tokens = tokens;
        eng_tokens(&rng, tokens, 8);
        memset(&r, 0, sizeof r);
        r.seq = eng_with(m.e, tokens, 8);
        r.max_tokens = 2;
        r.on_token = srv_meddle;
        r.user_data = &m;
        ASSERT_STATUS(DEND_OK, dend_scheduler_submit(m.s, &r, &id));
        (void)dend_scheduler_step(m.s, 0);
        assert_true(m.done);
        ASSERT_STATUS(DEND_OK, dend_seq_logits(m.e, m.kid, &logits));
        dend_scheduler_free(m.s);
        dend_engine_free(m.e);
    }
    dend_model_free(model);
}

/* A token that waits for a block is drawn anew when the sequence gets another stream. */
static void test_serve_held_stream(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc ed = eng_desc(model);
    dend_engine *e;
    dend_scheduler *s;
    dend_seq hog, a;
    dend_seq_info info;
    dend_request r;
    dend_request_id id, other;
    dend_sample_params p;
    int32_t tokens[40], got[40], expected;
    uint32_t i, n;
    test_rng rng;
    (void)state;
    rng.state = 76;
    ed.n_ctx = SRV_CTX;
    ed.n_blocks = 4;
    e = eng_open(&ed);
    s = srv_open(e, 4, 1);
    eng_tokens(&rng, tokens, 40);
    hog = eng_with(e, tokens, 20);
    a = eng_with(e, tokens, 15);
    memset(&p, 0, sizeof p);
    p.temperature = 5.0f;
    memset(&r, 0, sizeof r);
    r.seq = a;
    r.params = p;
    r.max_tokens = 5;
    ASSERT_STATUS(DEND_OK, dend_scheduler_submit(s, &r, &id));
    r.seq = eng_with(e, tokens + 1, 14); /* another, which still has room when the first has none */
    r.priority = -50;
    r.max_tokens = 20;
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    ASSERT_STATUS(DEND_OK, dend_scheduler_submit(s, &r, &other));
    do { /* until the first has its 16 tokens, all computed, and its logits have become the token that waits */
        (void)srv_batch(s);
        ASSERT_STATUS(DEND_OK, dend_seq_get_info(e, a, &info));
    } while (srv_info(s, id).state != DEND_REQUEST_DONE &&
             (info.len_tokens < 16 || info.n_waiting > 0 || info.has_logits));
    if (srv_info(s, id).state != DEND_REQUEST_DONE) {
        ASSERT_STATUS(DEND_OK, dend_seq_set_stream(e, a, 4242));
        ASSERT_STATUS(DEND_OK, dend_seq_drop(e, hog));
        while (dend_scheduler_step(s, 0) == DEND_PENDING) {
        }
        n = srv_info(s, id).n_prompt + srv_info(s, id).n_generated;
        ASSERT_STATUS(DEND_OK, dend_seq_tokens(e, a, 0, n, got));
        dend_scheduler_free(s);
        dend_engine_free(e);
        ed.n_blocks = 0;
        e = eng_open(&ed);
        a = eng_with(e, got, 16);
        ASSERT_STATUS(DEND_OK, dend_seq_set_stream(e, a, 4242));
        for (i = 16; i < n; i++) {
            (void)dend_next(e, a, &p, &expected);
            assert_int_equal(expected, got[i]);
        }
        assert_true(n > 17);
    } else {
        fail_msg("the request did not wait");
    }
    dend_engine_free(e);
    dend_model_free(model);
}

/* -- order -------------------------------------------------------------------------- */

/* A high arrival overtakes a long prompt and a stream, row by row. */
static void test_serve_priority(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc ed = eng_desc(model);
    dend_engine *e;
    dend_scheduler *s;
    static srv_task t[3];
    dend_request_info before;
    test_rng rng;
    uint32_t i, waiting;
    (void)state;
    rng.state = 81;
    ed.n_batch = 1;
    ed.n_ctx = SRV_CTX;
    e = eng_open(&ed);
    s = srv_open(e, 4, 1);
    for (i = 0; i < 3; i++) {
        srv_task_long(&t[i], &rng, &ed, i == 1 ? 90 : 9, i == 2 ? 5 : 40);
        t[i].seq = eng_with(e, t[i].prompt, t[i].n_prompt);
    }
    srv_task_submit(&t[0], s, 0);
    srv_task_submit(&t[1], s, 0);
    while (t[0].n_told < 3) {
        ASSERT_STATUS(DEND_PENDING, srv_batch(s));
    }
    before = srv_info(s, t[0].id);
    waiting = eng_info(e, t[1].seq).n_waiting;
    srv_task_submit(&t[2], s, 50);
    for (i = 0; i < 9 + 4; i++) { /* a row a step */
        ASSERT_STATUS(DEND_PENDING, srv_batch(s));
    }
    srv_task_check(&t[2]);
    assert_int_equal(srv_info(s, t[0].id).n_generated, before.n_generated);
    assert_int_equal(eng_info(e, t[1].seq).n_waiting, waiting);
    ASSERT_STATUS(DEND_OK, dend_scheduler_step(s, 0));
    srv_task_check(&t[0]);
    srv_task_check(&t[1]);
    dend_scheduler_free(s);
    dend_engine_free(e);
    dend_model_free(model);
}

/* With one row a batch, or two, each request gets its next row within 16 (d + 1) + n batches. */
static void test_serve_aging(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    uint32_t round;
    (void)state;
    for (round = 0; round < 3; round++) {
        dend_engine_desc ed = eng_desc(model);
        dend_engine *e;
        dend_scheduler *s;
        dend_request_id id[6];
        uint64_t longest[6] = {0, 0, 0, 0, 0, 0};
        test_rng rng;
        uint32_t i, spread = round * 2;
        int32_t tokens[100];
        rng.state = 4 + round;
        ed.n_batch = 1 + (round == 1);
        ed.n_ctx = 1000;
        ed.n_blocks = 400;
        e = eng_open(&ed);
        s = srv_open(e, 6, 1);
        eng_tokens(&rng, tokens, 100);
        for (i = 0; i < 6; i++) {
            dend_request r = srv_request(eng_with(e, tokens, i % 2 ? 100 : 5), 800);
            r.params.temperature = 3.0f;
            r.priority = i == 0 ? (int32_t)spread : i == 5 ? 0 : (int32_t)test_below(&rng, spread + 1);
            id[i] = srv_submit(s, &r);
        }
        while (s->n_batches < (round == 1 ? 350u : 700u)) { /* until then nothing ends */
            ASSERT_STATUS(DEND_PENDING, srv_batch(s));
            for (i = 0; i < 6; i++) {
                uint64_t waited = s->n_batches - s->requests[id[i].slot].last_served;
                longest[i] = waited > longest[i] ? waited : longest[i];
            }
        }
        for (i = 0; i < 6; i++) {
            uint32_t d = spread - (uint32_t)s->requests[id[i].slot].desc.priority;
            if (srv_info(s, id[i]).state != DEND_REQUEST_DONE) {
                assert_true(longest[i] <= 16 * (d + 1) + 6);
                assert_true(srv_info(s, id[i]).state != DEND_REQUEST_QUEUED);
            }
        }
        if (round == 2) {
            assert_true(longest[5] > 16); /* priorities did matter */
        }
        dend_scheduler_free(s);
        eng_all_free(e);
        dend_engine_free(e);
    }
    dend_model_free(model);
}

/* One row a batch: a prompt has every fifth while a stream of its rank goes on, and none beside a higher one. */
static void test_serve_patience(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc ed = eng_desc(model);
    uint32_t higher;
    (void)state;
    ed.n_batch = 1;
    ed.n_ctx = SRV_CTX;
    for (higher = 0; higher < 2; higher++) {
        dend_engine *e = eng_open(&ed);
        dend_scheduler *s = srv_open(e, 4, 1);
        static srv_task t[2];
        test_rng rng;
        uint32_t i;
        rng.state = 84;
        for (i = 0; i < 2; i++) {
            srv_task_long(&t[i], &rng, &ed, i ? 50 : 5, 60);
            t[i].seq = eng_with(e, t[i].prompt, t[i].n_prompt);
        }
        srv_task_submit(&t[0], s, higher ? 20 : 0);
        while (t[0].n_told < 1) {
            ASSERT_STATUS(DEND_PENDING, srv_batch(s));
        }
        srv_task_submit(&t[1], s, 0);
        for (i = 0; i < 50; i++) {
            ASSERT_STATUS(DEND_PENDING, srv_batch(s));
        }
        assert_int_equal(eng_info(e, t[1].seq).n_waiting, higher ? 50 : 40);
        assert_int_equal(t[0].n_told, higher ? 51 : 41);
        ASSERT_STATUS(DEND_OK, dend_scheduler_step(s, 0));
        srv_task_check(&t[0]);
        srv_task_check(&t[1]);
        dend_scheduler_free(s);
        dend_engine_free(e);
    }
    dend_model_free(model);
}

/* Streams go on while a long prompt is computed, in chunks of its share. */
static void test_serve_chunks(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc ed = eng_desc(model);
    dend_engine *e;
    dend_scheduler *s;
    dend_scheduler_desc sd;
    dend_request r;
    dend_request_id stream, prompt;
    int32_t tokens[100];
    test_rng rng;
    uint32_t i;
    (void)state;
    rng.state = 82;
    eng_tokens(&rng, tokens, 100);
    ed.n_batch = 20;
    ed.n_ctx = SRV_CTX;
    e = eng_open(&ed);
    memset(&sd, 0, sizeof sd);
    sd.engine = e;
    sd.prefill_share = 25;
    ASSERT_STATUS(DEND_OK, dend_scheduler_create(&sd, &s, NULL));
    r = srv_request(eng_with(e, tokens, 3), 100);
    r.params.temperature = 5.0f;
    stream = srv_submit(s, &r);
    ASSERT_STATUS(DEND_PENDING, srv_batch(s)); /* one row, as nothing was timed... */
    while (srv_info(s, stream).n_generated < 1) {
        ASSERT_STATUS(DEND_PENDING, srv_batch(s));
    }
    r = srv_request(eng_with(e, tokens, 100), 5);
    r.priority = 3;
    prompt = srv_submit(s, &r);
    for (i = 0; i < 19; i++) { /* batches of 20 rows: 5 of the prompt and 1 of the stream */
        uint32_t n = srv_info(s, stream).n_generated,
                 waiting = eng_info(e, srv_info(s, prompt).seq).n_waiting;
        (void)dendp_serve_settle(s, false, 0);
        ASSERT_STATUS(DEND_PENDING, dendp_serve_turn(s, 20, 0));
        (void)dendp_serve_settle(s, false, 0);
        assert_int_equal(srv_info(s, stream).n_generated, n + 1);
        assert_int_equal(eng_info(e, srv_info(s, prompt).seq).n_waiting, waiting - 5);
    }
    assert_int_equal(srv_info(s, prompt).n_generated, 0);
    ASSERT_STATUS(DEND_OK, dend_scheduler_cancel(s, stream)); /* alone, it may take all */
    r = srv_request(eng_with(e, tokens + 7, 90), 5);
    srv_submit(s, &r);
    ASSERT_STATUS(DEND_PENDING, dendp_serve_turn(s, 20, 0));
    assert_int_equal(eng_info(e, r.seq).n_waiting, 75); /* what 5 rows of the first prompt left */
    dend_scheduler_free(s);
    eng_all_free(e);
    dend_engine_free(e);
    dend_model_free(model);
}

/* Costs that lie on a line are found; without a line, sizes are tried out; senseless ones do no harm. */
static void test_serve_pace(void **state) {
    dendp_pace p;
    uint32_t i, n;
    test_rng rng;
    (void)state;
    rng.state = 83;
    memset(&p, 0, sizeof p);
    assert_int_equal(dendp_pace_rows(&p, 1, 256), 8);
    assert_int_equal(dendp_pace_rows(&p, 1000000, 5), 5);
    for (i = 0; i < 40; i++) { /* 4 ms a pass, 0.5 ms a row */
        n = 1 + test_below(&rng, 30);
        dendp_pace_learn(&p, n, 4000000u + 500000u * n);
    }
    assert_int_equal(dendp_pace_rows(&p, 4499000, 256), 0);
    assert_int_equal(dendp_pace_rows(&p, 4501000, 256), 1);
    assert_int_equal(dendp_pace_rows(&p, 16001000, 256), 24);
    assert_int_equal(dendp_pace_rows(&p, 16001000, 20), 20);
    memset(&p, 0, sizeof p);
    for (i = 0, n = 1; i < 30; i++) { /* the same machine, from single rows on, 16 ms a batch */
        dendp_pace_learn(&p, n, 4000000u + 500000u * n);
        n = dendp_pace_rows(&p, 16001000, 256);
        assert_true(n >= 1 && n <= 48);
    }
    assert_true(n >= 20);
    memset(&p, 0, sizeof p);
    dendp_pace_learn(&p, 3, 0); /* a clock that stands still */
    assert_int_equal(dendp_pace_rows(&p, 1000, 256), 256);
    for (i = 0; i < 1000; i++) {
        dendp_pace_learn(&p, 1 + test_below(&rng, 65536), test_next(&rng) >> test_below(&rng, 64));
        n = dendp_pace_rows(&p, test_next(&rng) >> test_below(&rng, 64), 256);
        assert_true(n <= 256);
    }
}

/* -- deadlines, quotas, numbers --------------------------------------------------------- */

static void test_serve_deadline(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc ed = eng_desc(model);
    dend_engine *e;
    dend_scheduler *s;
    static srv_task t[3];
    test_rng rng;
    uint64_t start;
    uint32_t i;
    (void)state;
    rng.state = 90;
    ed.n_ctx = SRV_CTX;
    e = eng_open(&ed);
    s = srv_open(e, 4, 1);
    for (i = 0; i < 3; i++) {
        dend_request r;
        srv_task_make(&t[i], &rng, 9, 9, 1);
        t[i].max_tokens = 40;
        srv_task_alone(&t[i], &ed);
        t[i].seq = eng_with(e, t[i].prompt, t[i].n_prompt);
        ASSERT_STATUS(DEND_OK, dend_seq_set_stream(e, t[i].seq, t[i].stream));
        r = srv_task_request(&t[i], s);
        r.deadline_us = i == 0 ? 1 : i == 1 ? UINT64_MAX : 0;
        t[i].id = srv_submit(s, &r);
    }
    start = dendp_now_ns();
    while (dendp_now_ns() - start < 5000) {
    }
    ASSERT_STATUS(DEND_PENDING, srv_batch(s));
    srv_done(s, t[0].id, DEND_ERR_DEADLINE, 0);
    assert_int_equal(eng_info(e, t[0].seq).n_waiting, 9);
    ASSERT_STATUS(DEND_OK, dend_scheduler_step(s, 0));
    srv_task_check(&t[1]);
    srv_task_check(&t[2]);
    dend_scheduler_free(s);
    dend_engine_free(e);
    dend_model_free(model);
}

static void test_serve_quota(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc ed = eng_desc(model);
    dend_engine *e;
    dend_scheduler *s;
    static srv_task t[6];
    test_rng rng;
    uint32_t i, n = 0;
    (void)state;
    rng.state = 91;
    ed.n_ctx = SRV_CTX;
    e = eng_open(&ed);
    s = srv_open(e, 8, 3);
    ASSERT_STATUS(DEND_OK, dend_scheduler_set_quota(s, 1, 11));
    ASSERT_STATUS(DEND_OK, dend_scheduler_set_quota(s, 2, 0));
    for (i = 0; i < 6; i++) {
        dend_request r;
        srv_task_make(&t[i], &rng, 5, 40, 1);
        t[i].max_tokens = 20;
        t[i].params.temperature = 1.0f;
        srv_task_alone(&t[i], &ed);
        t[i].seq = eng_with(e, t[i].prompt, t[i].n_prompt);
        ASSERT_STATUS(DEND_OK, dend_seq_set_stream(e, t[i].seq, t[i].stream));
        r = srv_task_request(&t[i], s);
        r.user = i < 3 ? 1 : i < 4 ? 2 : 0;
        t[i].id = srv_submit(s, &r);
    }
    ASSERT_STATUS(DEND_OK, dend_scheduler_step(s, 0));
    for (i = 0; i < 3; i++) {
        assert_int_equal(srv_info(s, t[i].id).status, DEND_ERR_QUOTA);
        srv_task_prefix(&t[i], t[i].n_told);
        n += t[i].n_told;
    }
    assert_int_equal(n, 11);
    assert_int_equal(dend_scheduler_quota(s, 1), 0);
    srv_done(s, t[3].id, DEND_ERR_QUOTA, 0);
    assert_int_equal(eng_info(e, t[3].seq).n_waiting, t[3].n_prompt); /* nothing was computed */
    srv_task_check(&t[4]);
    srv_task_check(&t[5]);
    assert_true(dend_scheduler_quota(s, 0) == UINT64_MAX);
    ASSERT_STATUS(DEND_OK, dend_scheduler_set_quota(s, 1, 1000)); /* and on, where they stopped */
    for (i = 0; i < 3; i++) {
        dend_request r = srv_task_request(&t[i], s);
        ASSERT_STATUS(DEND_OK, dend_scheduler_collect(s, t[i].id));
        r.user = 1;
        r.max_tokens = 20 - t[i].n_told;
        t[i].id = srv_submit(s, &r);
    }
    ASSERT_STATUS(DEND_OK, dend_scheduler_step(s, 0));
    for (i = 0, n = 0; i < 3; i++) {
        srv_task_prefix(&t[i], t[i].n_expected);
        n += t[i].n_told;
    }
    assert_int_equal(dend_scheduler_quota(s, 1), 1000 + 11 - n);
    dend_scheduler_free(s);
    dend_engine_free(e);
    dend_model_free(model);
}

static void test_serve_info(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc ed = eng_desc(model);
    dend_engine *e;
    dend_scheduler *s;
    dend_request r;
    dend_request_id id;
    dend_request_info info;
    int32_t tokens[20];
    test_rng rng;
    (void)state;
    rng.state = 92;
    ed.n_batch = 4;
    ed.n_ctx = SRV_CTX;
    e = eng_open(&ed);
    s = srv_open(e, 0, 0);
    eng_tokens(&rng, tokens, 20);
    r = srv_request(eng_with(e, tokens, 20), 30);
    r.params.temperature = 5.0f;
    id = srv_submit(s, &r);
    info = srv_info(s, id);
    assert_int_equal(info.state, DEND_REQUEST_QUEUED);
    assert_int_equal(info.status, DEND_PENDING);
    assert_int_equal(info.n_prompt, 20);
    assert_memory_equal(&info.seq, &r.seq, sizeof r.seq);
    ASSERT_STATUS(DEND_PENDING, srv_batch(s));
    info = srv_info(s, id);
    assert_int_equal(info.state, DEND_REQUEST_PREFILL);
    assert_int_equal(info.first_token_us, 0);
    while (srv_info(s, id).n_generated == 0) {
        ASSERT_STATUS(DEND_PENDING, srv_batch(s));
    }
    info = srv_info(s, id);
    assert_int_equal(info.state, DEND_REQUEST_DECODE);
    assert_true(info.first_token_us > 0 && info.queue_us <= info.first_token_us);
    assert_true(info.tokens_per_s <= 0.0f);
    while (srv_batch(s) == DEND_PENDING) {
    }
    info = srv_info(s, id);
    assert_int_equal(info.state, DEND_REQUEST_DONE);
    assert_int_equal(info.n_prompt, 20);
    assert_true(info.total_us >= info.first_token_us);
    assert_true(info.n_generated < 2 || info.tokens_per_s > 0.0f);
    assert_int_equal(srv_info(s, id).total_us, info.total_us); /* it stands still */
    dend_scheduler_free(s);
    dend_engine_free(e);
    dend_model_free(model);
}

/* -- a callback of the engine's that meddles ----------------------------------------- */

typedef struct srv_full {
    dend_scheduler *s;
    dend_request_id id;
    uint32_t what, n_calls;
} srv_full;

static bool srv_on_full(void *user, dend_engine *engine, dend_seq seq, size_t n_tokens) {
    srv_full *f = (srv_full *)user;
    (void)n_tokens;
    f->n_calls++;
    ASSERT_STATUS(DEND_OK, dend_scheduler_cancel(f->s, f->id));
    if (f->what / 2 % 2) { /* and another request in its place */
        dend_request r = srv_request(seq, 3);
        ASSERT_STATUS(DEND_OK, dend_scheduler_collect(f->s, f->id));
        ASSERT_STATUS(DEND_OK, dend_seq_rewind(engine, seq, 4));
        f->id = srv_submit(f->s, &r);
    }
    return f->what % 2 != 0;
}

/* A request that ends while its own token finds the context full. */
static void test_serve_context_full(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F16);
    uint32_t what;
    (void)state;
    for (what = 0; what < 4; what++) {
        dend_engine_desc ed = eng_desc(model);
        dend_engine *e;
        dend_request r;
        srv_full f;
        int32_t tokens[30];
        test_rng rng;
        dend_seq seq;
        memset(&f, 0, sizeof f);
        rng.state = 91;
        eng_tokens(&rng, tokens, 30);
        ed.n_ctx = 32;
        ed.context_policy = DEND_CONTEXT_CALLBACK;
        ed.on_context_full = srv_on_full;
        ed.context_user = &f;
        e = eng_open(&ed);
        f.s = srv_open(e, 4, 1);
        f.what = what;
        seq = eng_with(e, tokens, 30);
        r = srv_request(seq, 0);
        r.params.temperature = 3.0f;
        f.id = srv_submit(f.s, &r);
        ASSERT_STATUS(DEND_OK, dend_scheduler_step(f.s, 0));
        srv_walk(f.s);
        if (f.n_calls == 0) { /* the model has ended it before */
            assert_int_equal(srv_info(f.s, f.id).status, DEND_END);
        } else if (what < 2) {
            assert_int_equal(srv_info(f.s, f.id).status, DEND_ERR_CANCELLED);
        } else {
            assert_int_equal(srv_info(f.s, f.id).state, DEND_REQUEST_DONE);
        }
        ASSERT_STATUS(DEND_OK, dend_scheduler_collect(f.s, f.id));
        dend_scheduler_free(f.s);
        eng_all_free(e);
        dend_engine_free(e);
    }
    dend_model_free(model);
}

/* A cancel with nothing to do is told all the same, once. */
static void test_serve_cancel(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F16);
    dend_engine_desc ed = eng_desc(model);
    dend_engine *e = eng_open(&ed);
    dend_scheduler *s = srv_open(e, 4, 1);
    (void)state;
    dend_cancel(e);
    ASSERT_STATUS(DEND_ERR_CANCELLED, dend_scheduler_step(s, 0));
    ASSERT_STATUS(DEND_OK, dend_scheduler_step(s, 0));
    dend_scheduler_free(s);
    dend_engine_free(e);
    dend_model_free(model);
}

static bool srv_counting(void *user, dend_request_id id, int32_t token) {
    (void)id;
    (void)token;
    ++*(uint32_t *)user;
    return true;
}

/* With the time over from the start each call chooses one token at most, and the tokens are those of a single call. */
static void test_serve_slices(void **state) {
    enum { N = 9, TOKENS = 6 };
    dend_model *model = eng_load(ENG_QWEN2);
    int32_t want[N][TOKENS], have[TOKENS], prompt[3];
    uint32_t pass, i;
    (void)state;
    for (pass = 0; pass < 2; pass++) {
        dend_engine_desc d = eng_desc(model);
        dend_engine *e;
        dend_scheduler *s;
        dend_seq seqs[N];
        uint32_t n_tokens = 0;
        d.n_seqs = N;
        d.n_logits = N;
        e = eng_open(&d);
        s = srv_open(e, N, 1);
        for (i = 0; i < N; i++) {
            dend_request r;
            prompt[0] = (int32_t)i, prompt[1] = 7, prompt[2] = (int32_t)(2 * i + 1);
            seqs[i] = eng_seq(e);
            ASSERT_STATUS(DEND_OK, dend_seq_append(e, seqs[i], prompt, 3));
            r = srv_request(seqs[i], TOKENS);
            r.params.temperature = 0.9f;
            r.params.typical_p = 0.8f;
            r.on_token = srv_counting;
            r.user_data = &n_tokens;
            (void)srv_submit(s, &r);
        }
        for (;;) {
            uint32_t before = n_tokens;
            dend_status status = dendp_serve_step(s, pass); /* 1: a moment long past */
            assert_true(pass == 0 || n_tokens <= before + 1);
            srv_walk(s);
            if (status != DEND_PENDING) {
                ASSERT_STATUS(DEND_OK, status);
                break;
            }
        }
        for (i = 0; i < N; i++) {
            uint32_t len = eng_info(e, seqs[i]).len_tokens - 3;
            assert_in_range(len, 0, TOKENS);
            memset(have, 0, sizeof have);
            ASSERT_STATUS(DEND_OK, dend_seq_tokens(e, seqs[i], 3, len, have));
            if (pass == 0) {
                memcpy(want[i], have, sizeof have);
            }
            assert_memory_equal(have, want[i], sizeof have);
        }
        assert_true(n_tokens > N);
        dend_scheduler_free(s);
        dend_engine_free(e);
    }
    dend_model_free(model);
}

static const struct CMUnitTest tests_serve_scheduler[] = {
    cmocka_unit_test(test_serve_slices),    cmocka_unit_test(test_serve_context_full),
    cmocka_unit_test(test_serve_cancel),    cmocka_unit_test(test_serve_alone),
    cmocka_unit_test(test_serve_desc),      cmocka_unit_test(test_serve_memory),
    cmocka_unit_test(test_serve_handles),   cmocka_unit_test(test_serve_stale),
    cmocka_unit_test(test_serve_callbacks), cmocka_unit_test(test_serve_logits),
    cmocka_unit_test(test_serve_forks),     cmocka_unit_test(test_serve_blocks),
    cmocka_unit_test(test_serve_meddling),  cmocka_unit_test(test_serve_held_stream),
    cmocka_unit_test(test_serve_priority),  cmocka_unit_test(test_serve_aging),
    cmocka_unit_test(test_serve_patience),  cmocka_unit_test(test_serve_chunks),
    cmocka_unit_test(test_serve_pace),      cmocka_unit_test(test_serve_deadline),
    cmocka_unit_test(test_serve_quota),     cmocka_unit_test(test_serve_info),
};
