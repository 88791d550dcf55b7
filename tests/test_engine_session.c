/* Kept prefixes and sessions through the public calls, on the tiny models: an
 * engine that keeps prefixes beside one that does not, the same bits in every
 * logit; sessions through memory, callbacks and files. Helpers are those of
 * tests/test_engine_api.c. */

/* -- prefixes ---------------------------------------------------------------- */

/* One of a few prompts, which share beginnings of whole and partial blocks. */
static void ses_prompt(uint32_t which, uint32_t n, int32_t *out) {
    uint32_t i;
    for (i = 0; i < n; i++) {
        uint32_t branch = i < 40 ? which & 1u : i < 64 ? which & 3u : which;
        out[i] = (int32_t)((branch * 37 + i * 11 + i / 7) % ENG_V);
    }
}

/* Random operations on both engines at once. Statuses are the same, except that
 * the one which keeps prefixes may still have blocks when the other has none. */
static void ses_twins(const dend_model *model, dend_kv_type kv, uint32_t P, uint32_t n_blocks,
                      uint32_t n_prefixes, uint64_t seed, uint32_t n_ops) {
    enum { N = 6, CTX = 200 };
    dend_engine_desc d = eng_desc(model);
    dend_engine *e[2];
    dend_seq seqs[N][2];
    bool live[N];
    int32_t tokens[CTX];
    test_rng rng;
    uint32_t op, i, k, n, n_full = 0;
    memset(live, 0, sizeof live);
    memset(seqs, 0, sizeof seqs);
    rng.state = seed;
    d.kv_type = kv;
    d.block_tokens = P;
    d.n_ctx = CTX;
    d.n_seqs = N;
    d.n_blocks = n_blocks;
    d.n_batch = 48;
    d.n_logits = N;
    d.n_window_blocks = n_blocks - 1; /* so that windows move */
    e[0] = eng_open(&d);
    d.n_prefixes = n_prefixes;
    e[1] = eng_open(&d);
    for (op = 0; op < n_ops; op++) {
        uint32_t x = test_below(&rng, 100);
        dend_status status[2] = {DEND_OK, DEND_OK};
        i = test_below(&rng, N);
        if (!live[i]) {
            uint32_t parent = test_below(&rng, N);
            if (x < 30 && live[parent]) {
                ASSERT_STATUS(DEND_OK, dend_seq_fork(e[0], seqs[parent][0], 0, &seqs[i][0]));
                ASSERT_STATUS(DEND_OK, dend_seq_fork(e[1], seqs[parent][1], 0, &seqs[i][1]));
            } else {
                seqs[i][0] = eng_seq(e[0]);
                seqs[i][1] = eng_seq(e[1]);
                ASSERT_STATUS(DEND_OK, dend_seq_set_reuse(e[1], seqs[i][1], x < 90));
            }
            live[i] = true;
            assert_true(eng_info(e[0], seqs[i][0]).stream == eng_info(e[1], seqs[i][1]).stream);
            continue;
        }
        n = eng_info(e[0], seqs[i][0]).len_tokens;
        if (x < 45) {
            uint32_t most = n == 0 ? 110 : 20;
            n = 1 + test_below(&rng, most);
            ses_prompt(test_below(&rng, 8), n, tokens);
            if (most == 20) {
                eng_tokens(&rng, tokens, n);
            }
            for (k = 0; k < 2; k++) {
                status[k] = dend_seq_append(e[k], seqs[i][k], tokens, n);
            }
            if (status[0] == DEND_ERR_NO_BLOCKS && status[1] == DEND_OK) {
                x = 99; /* out of step: both drop it */
                n_full++;
                status[1] = status[0];
            }
            n_full += status[1] == DEND_ERR_NO_BLOCKS ? 1u : 0u;
        } else if (x < 65) {
            for (k = 0; k < 2; k++) {
                status[k] = dend_step(e[k], 0);
            }
        } else if (x < 75) {
            n = test_below(&rng, n + 1);
            for (k = 0; k < 2; k++) { /* what was taken over has lost its window's old blocks already */
                n = dendp_max_u32(n, eng_info(e[k], seqs[i][k]).rewind_min);
            }
            for (k = 0; k < 2; k++) {
                status[k] = dend_seq_rewind(e[k], seqs[i][k], n);
            }
            if (status[0] == DEND_OK) {
                ASSERT_STATUS(DEND_OK, dend_seq_want_logits(e[0], seqs[i][0]));
                ASSERT_STATUS(DEND_OK, dend_seq_want_logits(e[1], seqs[i][1]));
            }
        } else if (x == 75) {
            ASSERT_STATUS(DEND_OK, dend_prefix_clear(e[1]));
        }
        ASSERT_STATUS(status[0], status[1]);
        if (x > 85) {
            ASSERT_STATUS(DEND_OK, dend_seq_drop(e[0], seqs[i][0]));
            ASSERT_STATUS(DEND_OK, dend_seq_drop(e[1], seqs[i][1]));
            live[i] = false;
        }
        for (i = 0; i < N; i++) {
            const float *logits[2];
            dend_seq_info info[2];
            if (!live[i]) {
                continue;
            }
            info[0] = eng_info(e[0], seqs[i][0]);
            info[1] = eng_info(e[1], seqs[i][1]);
            assert_int_equal(info[0].len_tokens, info[1].len_tokens);
            assert_true(info[0].prefix_hash == info[1].prefix_hash && info[0].stream == info[1].stream);
            assert_int_equal(info[0].has_logits, info[1].has_logits);
            if (dend_seq_logits(e[0], seqs[i][0], &logits[0]) == DEND_OK) {
                ASSERT_STATUS(DEND_OK, dend_seq_logits(e[1], seqs[i][1], &logits[1]));
                eng_equal(logits[0], logits[1], "operation", op);
            }
        }
    }
    assert_true(eng_stats(e[1]).n_prefix_hits > 3);
    assert_true(eng_stats(e[1]).n_rows < eng_stats(e[0]).n_rows);
    assert_true(n_blocks > 40 || (n_full > 0 && eng_stats(e[1]).n_prefix_evictions > 0));
    dend_engine_free(e[0]);
    dend_engine_free(e[1]);
}

static void test_session_prefix_twins(void **state) {
    uint32_t m, k;
    (void)state;
    for (m = 0; m < 3; m++) {
        dend_model *model = eng_load(eng_paths[m]);
        for (k = 0; k < 3; k++) {
            ses_twins(model, eng_kv_types[k], 16, k == m ? 100 : 18, 1 + 7 * ((k + m) % 3), 5 + m * 3 + k,
                      500);
        }
        ses_twins(model, eng_kv_types[m], 32, 12, 6, 50 + m, 500);
        dend_model_free(model);
    }
    for (m = 0; m < 2; m++) { /* sliding windows of 8 and more tokens, whose old blocks are given up */
        dend_model *model = eng_load(m ? "tests/golden/tiny_gemma3.gguf" : "tests/golden/tiny_mistral.gguf");
        assert_true(model->config.window > 0);
        ses_twins(model, DEND_KV_F16, 16, 100, 8, 70 + m, 500);
        dend_model_free(model);
    }
}

/* A sequence that is dropped while a batch computes its last token leaves what it has. */
static void test_session_prefix_under_way(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc d = eng_desc(model);
    int32_t tokens[100];
    dend_engine *e;
    dend_seq seq;
    test_rng rng;
    uint32_t i, known;
    (void)state;
    rng.state = 8;
    eng_tokens(&rng, tokens, 100);
    d.n_ctx = 128;
    d.n_prefixes = 4;
    e = eng_open(&d);
    seq = eng_with(e, tokens, 40);
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    for (i = 40; i < 65; i++) { /* one token after the other: no prompt */
        ASSERT_STATUS(DEND_OK, dend_seq_append(e, seq, &tokens[i], 1));
        if (i < 64) {
            ASSERT_STATUS(DEND_OK, dend_step(e, 0));
        }
    }
    ASSERT_STATUS(DEND_PENDING, dendp_step_run(e, 1));
    assert_true(e->flight.n > 0);
    ASSERT_STATUS(DEND_OK, dend_seq_drop(e, seq));
    ASSERT_STATUS(DEND_OK, dend_prefix_lookup(e, tokens, 100, &known));
    assert_int_equal(known, 64);
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    ASSERT_STATUS(DEND_OK, dend_prefix_clear(e));
    eng_all_free(e);
    dend_engine_free(e);
    dend_model_free(model);
}

/* A prompt of 2,048 tokens that was seen before costs no prefill beyond its last
 * partial block, while its sequence lives and after; chats pay for what is new. */
static void test_session_prefix_rows(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F16);
    dend_engine_desc d = eng_desc(model);
    int32_t *tokens = (int32_t *)malloc(4096 * sizeof *tokens), token;
    float expected[ENG_V];
    dend_engine *e;
    dend_seq first, again;
    test_rng rng;
    uint64_t rows;
    uint32_t n, turn, known;
    (void)state;
    assert_non_null(tokens);
    rng.state = 3;
    eng_tokens(&rng, tokens, 4096);
    d.n_ctx = 3000;
    d.n_blocks = 600;
    d.n_prefixes = 16;
    e = eng_open(&d);
    first = eng_with(e, tokens, 2048);
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    assert_int_equal(eng_stats(e).n_rows, 2048);
    memcpy(expected, eng_logits(e, first), sizeof expected);
    for (turn = 0; turn < 2; turn++) { /* beside it, and after it */
        rows = eng_stats(e).n_rows;
        again = eng_with(e, tokens, 2048);
        ASSERT_STATUS(DEND_OK, dend_prefix_lookup(e, tokens, 2048, &known));
        assert_int_equal(known, 2032);
        assert_int_equal(eng_info(e, again).n_reused, 2032);
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
        print_message("prefix_hit_prefill_tokens %u\n", (uint32_t)(eng_stats(e).n_rows - rows));
        assert_true(eng_stats(e).n_rows - rows <= 16);
        eng_equal(expected, eng_logits(e, again), "turn", turn);
        ASSERT_STATUS(DEND_OK, dend_seq_drop(e, again));
        if (turn == 0) {
            ASSERT_STATUS(DEND_OK, dend_seq_drop(e, first));
        }
    }
    ASSERT_STATUS(DEND_OK, dend_prefix_clear(e));
    assert_int_equal(eng_blocks_free(e), 600);
    for (turn = 0, n = 100; turn < 6; turn++) { /* a chat, sent anew as a whole with every turn */
        first = eng_with(e, tokens, n);
        rows = eng_stats(e).n_rows;
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
        assert_true(turn == 0 || eng_stats(e).n_rows - rows <= 50 + 16);
        for (known = 0; known < 30; known++) { /* the reply */
            assert_true(dend_next(e, first, NULL, &token) >= 0);
            token = token == 0 ? 1 : token;
            tokens[n + known] = token;
        }
        n = eng_info(e, first).len_tokens;
        ASSERT_STATUS(DEND_OK, dend_seq_tokens(e, first, 0, n, tokens));
        ASSERT_STATUS(DEND_OK, dend_seq_drop(e, first));
        n += 20; /* and the next question */
    }
    assert_int_equal(eng_stats(e).n_prefix_hits, 5 + 2);
    assert_int_equal(eng_stats(e).n_prefixes - eng_stats(e).n_prefixes_free, 1); /* one edge that grew */
    dend_engine_free(e);
    dend_model_free(model);
    free(tokens);
}

/* Errors of every call; pins; a plan that counts the tree. */
static void test_session_prefix_calls(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc d = eng_desc(model);
    dend_plan_info without, with;
    dend_engine *e, *none;
    int32_t tokens[64], many[65];
    dend_seq seq, other;
    uint32_t n = 0;
    test_rng rng;
    (void)state;
    rng.state = 11;
    eng_tokens(&rng, tokens, 64);
    memset(many, 0, sizeof many);
    memcpy(many, tokens + 20, 44 * sizeof *many);
    d.n_ctx = 64;
    d.n_blocks = 8;
    ASSERT_STATUS(DEND_OK, dend_plan(&d, &without, NULL));
    none = eng_open(&d);
    d.n_prefixes = (1u << 20) + 1;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_plan(&d, &with, NULL));
    d.n_prefixes = 1000;
    ASSERT_STATUS(DEND_OK, dend_plan(&d, &with, NULL));
    assert_true(with.table_bytes > without.table_bytes + 1000 * 64);
    assert_true(with.kv_bytes == without.kv_bytes);
    assert_true(with.total_bytes - without.total_bytes < 1000 * 1000);
    d.n_prefixes = 1;
    e = eng_open(&d);
    seq = eng_with(e, tokens, 40);
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_prefix_pin(e, seq, NULL)); /* nothing is computed */
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    ASSERT_STATUS(DEND_OK, dend_prefix_pin(e, seq, &n));
    assert_int_equal(n, 32);
    ASSERT_STATUS(DEND_OK, dend_prefix_pin(e, seq, NULL));
    assert_int_equal(eng_stats(e).n_prefixes_pinned, 1);
    assert_int_equal(eng_stats(e).n_prefix_blocks, 2);
    ASSERT_STATUS(DEND_OK, dend_seq_drop(e, seq));
    other = eng_with(e, tokens + 20, 40);
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    ASSERT_STATUS(DEND_ERR_NO_BLOCKS, dend_prefix_pin(e, other, NULL)); /* the only entry is pinned */
    ASSERT_STATUS(DEND_OK, dend_prefix_clear(e));
    ASSERT_STATUS(DEND_OK, dend_prefix_lookup(e, tokens, 64, &n));
    assert_int_equal(n, 32);
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_prefix_unpin(e, tokens, 31));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_prefix_unpin(e, tokens, 48));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_prefix_unpin(e, tokens + 1, 40));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_prefix_unpin(e, NULL, 40));
    ASSERT_STATUS(DEND_OK, dend_prefix_unpin(e, tokens, 40));
    ASSERT_STATUS(DEND_OK, dend_prefix_unpin(e, tokens, 32));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_prefix_unpin(e, tokens, 32));
    ASSERT_STATUS(DEND_OK, dend_prefix_pin(e, other, NULL));
    ASSERT_STATUS(DEND_OK, dend_prefix_lookup(e, tokens, 64, &n));
    assert_int_equal(n, 0);
    ENG_REFUSED(DEND_ERR_STALE, e, dend_prefix_pin(e, seq, NULL));
    ENG_REFUSED(DEND_ERR_STALE, e, dend_seq_set_reuse(e, seq, true));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_seq_set_reuse(NULL, seq, true));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_prefix_pin(NULL, seq, NULL));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_prefix_unpin(NULL, tokens, 32));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_prefix_clear(NULL));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_prefix_lookup(NULL, tokens, 3, &n));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_prefix_lookup(e, NULL, 3, &n));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_prefix_lookup(e, tokens, 3, NULL));
    seq = eng_seq(e); /* an append that is refused leaves an empty sequence empty */
    (void)eng_with(e, tokens, 64);
    (void)eng_with(e, tokens, 16);
    assert_int_equal(eng_stats(e).n_blocks_free, 0);
    ASSERT_STATUS(DEND_ERR_NO_BLOCKS,
                  dend_seq_append(e, seq, tokens + 20, 40)); /* two blocks are known, one is missing */
    ASSERT_STATUS(DEND_ERR_CONTEXT_FULL, dend_seq_append(e, seq, many, 65));
    assert_int_equal(eng_info(e, seq).len_tokens, 0);
    assert_int_equal(eng_info(e, seq).n_reused, 0);
    ENG_REFUSED(DEND_ERR_TOKEN, e, dend_seq_append(e, seq, (const int32_t[]){-1}, 1));
    other = eng_with(none, tokens, 40); /* an engine that keeps none */
    ASSERT_STATUS(DEND_OK, dend_step(none, 0));
    ENG_REFUSED(DEND_ERR_ARGUMENT, none, dend_prefix_pin(none, other, NULL));
    ENG_REFUSED(DEND_ERR_ARGUMENT, none, dend_prefix_unpin(none, tokens, 32));
    ASSERT_STATUS(DEND_OK, dend_prefix_lookup(none, tokens, 40, &n));
    assert_int_equal(n, 0);
    ASSERT_STATUS(DEND_OK, dend_prefix_clear(none));
    dend_engine_free(none);
    dend_engine_free(e);
    dend_model_free(model);
}

/* -- sessions ---------------------------------------------------------------- */

enum { SES_N = 6 };

/* A tree of forks with partial blocks; one sequence with waiting tokens, one
 * whose record is shared, an empty one. */
static void ses_grow(dend_engine *e, dend_seq *seqs) {
    int32_t tokens[90];
    test_rng rng;
    rng.state = 21;
    eng_tokens(&rng, tokens, 90);
    seqs[0] = eng_with(e, tokens, 43);
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    seqs[1] = eng_fork(e, seqs[0]);
    ASSERT_STATUS(DEND_OK, dend_seq_append(e, seqs[1], tokens + 50, 20));
    seqs[2] = eng_fork(e, seqs[1]);
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    ASSERT_STATUS(DEND_OK, dend_seq_append(e, seqs[2], tokens + 10, 3));
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    seqs[3] = eng_fork(e, seqs[2]);
    ASSERT_STATUS(DEND_OK, dend_seq_append(e, seqs[2], tokens + 5, 17)); /* waits */
    seqs[4] = eng_fork(e, seqs[0]);
    seqs[5] = eng_seq(e);
}

static uint64_t ses_hash(uint64_t h, const void *data, size_t n) {
    const unsigned char *p = (const unsigned char *)data;
    while (n-- > 0) {
        h = (h ^ *p++) * 1099511628211u;
    }
    return h;
}

/* What follows from the state of all sequences: logits, forks, samples. */
static uint64_t ses_replay(dend_engine *e, const dend_seq *seqs) {
    dend_sample_params p;
    uint64_t h = 14695981039346656037u;
    uint32_t i, k;
    memset(&p, 0, sizeof p);
    p.temperature = 1.0f;
    for (i = 0; i < 5; i++) {
        dend_seq child;
        ASSERT_STATUS(DEND_OK, dend_seq_want_logits(e, seqs[i]));
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
        h = ses_hash(h, eng_logits(e, seqs[i]), ENG_V * sizeof(float));
        child = eng_fork(e, seqs[i]);
        for (k = 0; k < 6; k++) {
            dend_sampled s;
            const dend_seq who = k % 2 ? child : seqs[i];
            ASSERT_STATUS(DEND_OK, dend_seq_want_logits(e, who));
            ASSERT_STATUS(DEND_OK, dend_step(e, 0));
            ASSERT_STATUS(DEND_OK, dend_sample(e, who, &p, &s));
            h = ses_hash(h, &s, sizeof s);
            h = ses_hash(h, eng_logits(e, who), ENG_V * sizeof(float));
            ASSERT_STATUS(DEND_OK, dend_seq_append(e, who, &s.token, 1));
        }
        ASSERT_STATUS(DEND_OK, dend_seq_drop(e, child));
    }
    return h;
}

static dend_engine *ses_open(const dend_model *model, dend_kv_type kv, uint32_t P, dend_isa isa) {
    dend_engine_desc d = eng_desc(model);
    d.kv_type = kv;
    d.block_tokens = P;
    d.n_ctx = 160;
    d.n_seqs = 16;
    d.n_blocks = 80;
    d.n_window_blocks = 79; /* so that windows move */
    d.n_batch = 32;
    d.seed = 9;
    d.isa = isa;
    return eng_open(&d);
}

/* Ten rounds of restore, save and replay: the same bytes and the same logits, for
 * every model and KV type, whichever instruction set wrote the session. */
static void test_session_rounds(void **state) {
    uint32_t m, k, round, P, n;
    (void)state;
    for (m = 0; m < ENG_N_MODELS; m++) {
        dend_model *model = eng_load(eng_paths[m]);
        for (k = 0; k < 3; k++) {
            dend_seq seqs[SES_N];
            uint64_t size = 0, expected, size_scalar = 0;
            const uint64_t tags[SES_N] = {5, 4, 3, 2, 1, UINT64_MAX};
            unsigned char *data, *again;
            dend_engine *e;
            P = (m + k) % 2 ? 32 : 16;
            e = ses_open(model, eng_kv_types[k], P, DEND_ISA_DEFAULT);
            ses_grow(e, seqs);
            ASSERT_STATUS(DEND_OK, dend_save(e, seqs, tags, SES_N, NULL, &size));
            data = (unsigned char *)malloc((size_t)size);
            again = (unsigned char *)malloc((size_t)size + 1);
            assert_non_null(data);
            assert_non_null(again);
            ASSERT_STATUS(DEND_ERR_BUFFER,
                          dend_save_memory(e, seqs, tags, SES_N, data, (size_t)size - 1, &size));
            ENG_REFUSED(DEND_OK, e, dend_save_memory(e, seqs, tags, SES_N, data, (size_t)size, &size));
            expected = ses_replay(e, seqs);
            dend_engine_free(e);
            for (round = 0; round < 10; round++) {
                dend_seq out[SES_N];
                uint64_t got[SES_N], n_bytes;
                e = ses_open(model, eng_kv_types[k], P, DEND_ISA_DEFAULT);
                ASSERT_STATUS(DEND_OK, dend_restore_memory(e, data, (size_t)size, out, got, SES_N, &n, NULL));
                assert_int_equal(n, SES_N);
                assert_memory_equal(tags, got, sizeof tags);
                ASSERT_STATUS(DEND_OK,
                              dend_save_memory(e, out, got, SES_N, again, (size_t)size + 1, &n_bytes));
                assert_int_equal(size, n_bytes);
                assert_memory_equal(data, again, (size_t)size);
                assert_true(expected == ses_replay(e, out));
                eng_all_free(e);
                dend_engine_free(e);
            }
            e = ses_open(model, eng_kv_types[k], P, DEND_ISA_SCALAR); /* what scalar code wrote */
            ses_grow(e, seqs);
            ASSERT_STATUS(DEND_OK, dend_save_memory(e, seqs, tags, SES_N, again, (size_t)size, &size_scalar));
            assert_int_equal(size, size_scalar);
            dend_engine_free(e);
            e = ses_open(model, eng_kv_types[k], P, DEND_ISA_DEFAULT);
            ASSERT_STATUS(DEND_OK, dend_restore_memory(e, again, (size_t)size, seqs, NULL, SES_N, &n, NULL));
            (void)ses_replay(e, seqs);
            dend_engine_free(e);
            free(data);
            free(again);
        }
        dend_model_free(model);
    }
}

/* -- readers and writers that call back ------------------------------------------ */

typedef struct ses_caller {
    dend_engine *engine;
    dend_seq seq;
    const unsigned char *data;
    uint64_t n_calls;
} ses_caller;

/* Everything fails, and nothing happens. */
static void ses_try_everything(ses_caller *c) {
    dend_engine *e = c->engine;
    dend_seq seq;
    dend_seq_info info;
    dend_tree tree;
    dend_reader reader;
    dend_error err;
    const float *logits;
    int32_t token = 3, parent = -1;
    uint64_t n_bytes = 0;
    uint32_t n = 0;
    unsigned char bytes[64];
    memset(&reader, 0, sizeof reader);
    memset(&tree, 0, sizeof tree);
    tree.seq = c->seq, tree.n_rows = 1, tree.tokens = &token, tree.parents = &parent;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_seq_create(e, &seq));
    ASSERT_STATUS(DEND_ERR_STALE, dend_seq_fork(e, c->seq, 0, &seq));
    ASSERT_STATUS(DEND_ERR_STALE, dend_seq_append(e, c->seq, &token, 1));
    ASSERT_STATUS(DEND_ERR_STALE, dend_seq_rewind(e, c->seq, 1));
    ASSERT_STATUS(DEND_ERR_STALE, dend_seq_drop(e, c->seq));
    ASSERT_STATUS(DEND_ERR_STALE, dend_seq_get_info(e, c->seq, &info));
    ASSERT_STATUS(DEND_ERR_STALE, dend_seq_want_logits(e, c->seq));
    ASSERT_STATUS(DEND_ERR_STALE, dend_seq_release_logits(e, c->seq));
    ASSERT_STATUS(DEND_ERR_STALE, dend_seq_logits(e, c->seq, &logits));
    ASSERT_STATUS(DEND_ERR_STALE, dend_next(e, c->seq, NULL, &token));
    ASSERT_STATUS(DEND_ERR_STALE, dend_tree_eval(e, &tree, 1));
    ASSERT_STATUS(DEND_ERR_STALE, dend_prefix_pin(e, c->seq, &n));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_step(e, 0));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_prefix_clear(e));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_prefix_unpin(e, &token, 1));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_save_memory(e, NULL, NULL, 0, bytes, sizeof bytes, &n_bytes));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_restore_memory(e, bytes, sizeof bytes, &seq, NULL, 1, &n, &err));
    c->n_calls++;
}

static bool ses_calling_write(void *user, const void *data, size_t n) {
    (void)data;
    (void)n;
    ses_try_everything((ses_caller *)user);
    return true;
}

static bool ses_calling_read(void *user, uint64_t offset, void *dst, size_t n) {
    ses_caller *c = (ses_caller *)user;
    memcpy(dst, c->data + offset, n);
    ses_try_everything(c);
    return true;
}

static void test_session_callers(void **state) {
    dend_model *model = eng_load(ENG_QWEN2);
    dend_engine *e = ses_open(model, DEND_KV_F16, 16, DEND_ISA_DEFAULT);
    dend_seq seqs[SES_N], out[SES_N];
    ses_caller c;
    dend_writer writer;
    dend_reader reader;
    uint64_t size = 0, expected;
    uint32_t n = 0;
    unsigned char *data;
    (void)state;
    ses_grow(e, seqs);
    memset(&c, 0, sizeof c);
    c.engine = e;
    c.seq = seqs[0];
    ASSERT_STATUS(DEND_OK, dend_save(e, seqs, NULL, SES_N, NULL, &size));
    data = (unsigned char *)malloc((size_t)size);
    assert_non_null(data);
    ASSERT_STATUS(DEND_OK, dend_save_memory(e, seqs, NULL, SES_N, data, (size_t)size, &size));
    writer.write = ses_calling_write;
    writer.user = &c;
    ASSERT_STATUS(DEND_OK, dend_save(e, seqs, NULL, SES_N, &writer, NULL));
    assert_true(c.n_calls > 10);
    expected = ses_replay(e, seqs); /* drops them */
    reader.read = ses_calling_read;
    reader.size = size;
    reader.user = &c;
    c.data = data;
    c.n_calls = 0;
    ASSERT_STATUS(DEND_OK, dend_seq_create(e, &c.seq));
    ASSERT_STATUS(DEND_OK, dend_restore(e, &reader, out, NULL, SES_N, &n, NULL));
    assert_int_equal(n, SES_N);
    assert_true(c.n_calls > 10);
    reader.size = size - 1; /* refused in the end: open again all the same */
    ASSERT_STATUS(DEND_ERR_FORMAT, dend_restore(e, &reader, seqs, NULL, SES_N, &n, NULL));
    ASSERT_STATUS(DEND_OK, dend_seq_drop(e, c.seq));
    assert_true(expected == ses_replay(e, out));
    eng_all_free(e);
    dend_engine_free(e);
    dend_model_free(model);
    free(data);
}

/* What is shared takes its blocks once, in the file and after; new sequences
 * draw other numbers than restored ones. */
static void test_session_sharing(void **state) {
    dend_model *model = eng_load(ENG_QWEN2);
    dend_engine *e = ses_open(model, DEND_KV_Q8_0, 16, DEND_ISA_DEFAULT), *f;
    dend_seq seqs[12], out[12];
    int32_t tokens[130];
    uint64_t one, all;
    unsigned char *data;
    test_rng rng;
    uint32_t i, n;
    (void)state;
    rng.state = 4;
    eng_tokens(&rng, tokens, 130);
    seqs[0] = eng_with(e, tokens, 128);
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    for (i = 1; i < 12; i++) {
        seqs[i] = eng_fork(e, seqs[0]);
    }
    ASSERT_STATUS(DEND_OK, dend_save(e, seqs, NULL, 1, NULL, &one));
    ASSERT_STATUS(DEND_OK, dend_save(e, seqs, NULL, 12, NULL, &all));
    assert_int_equal(all - one, 11 * sizeof(dendp_session_seq)); /* forks of one record */
    for (i = 1; i < 12; i++) {
        ASSERT_STATUS(DEND_OK, dend_seq_append(e, seqs[i], tokens + i, 1));
    }
    ASSERT_STATUS(DEND_OK, dend_save(e, seqs, NULL, 12, NULL, &all));
    data = (unsigned char *)malloc((size_t)all);
    assert_non_null(data);
    ASSERT_STATUS(DEND_OK, dend_save_memory(e, seqs, NULL, 12, data, (size_t)all, &all));
    f = ses_open(model, DEND_KV_Q8_0, 16, DEND_ISA_DEFAULT);
    ASSERT_STATUS(DEND_OK, dend_restore_memory(f, data, (size_t)all, out, NULL, 12, &n, NULL));
    assert_int_equal(eng_stats(f).n_blocks - eng_stats(f).n_blocks_free, 8 + 11);
    assert_int_equal(eng_stats(e).n_blocks_free, eng_stats(f).n_blocks_free);
    for (i = 0; i < 12; i++) {
        const dendp_table *table =
            dendp_cache_table(&f->cache, dendp_cache_slot(&f->cache, out[i])->record, 0);
        assert_true(
            dendp_table_get(&f->cache.nodes, table, 7) ==
            dendp_table_get(&f->cache.nodes,
                            dendp_cache_table(&f->cache, dendp_cache_slot(&f->cache, out[0])->record, 0), 7));
    }
    out[0] = eng_seq(f);
    for (i = 1; i < 12; i++) {
        assert_true(eng_info(f, out[0]).stream != eng_info(f, out[i]).stream);
    }
    assert_true(eng_info(f, out[0]).stream != eng_info(e, seqs[0]).stream);
    free(data);
    dend_engine_free(e);
    dend_engine_free(f);
    dend_model_free(model);
}

/* Too little of anything: refused, and not a byte of the engine has changed; kept
 * prefixes make room. Other models are told apart, other layouts of one are not. */
static void test_session_refused(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F16), *same = NULL, *other = eng_load(ENG_LLAMA_F32);
    dend_engine *e = ses_open(model, DEND_KV_F16, 16, DEND_ISA_DEFAULT), *f;
    dend_engine_desc d = eng_desc(model);
    dend_model_desc md;
    dend_model_info info[3];
    dend_seq seqs[SES_N], out[SES_N];
    dend_error err;
    dend_writer writer;
    dend_reader reader;
    int32_t tokens[100];
    uint64_t size, tags[SES_N];
    unsigned char *data;
    test_rng rng;
    uint32_t n, i;
    (void)state;
    memset(&md, 0, sizeof md);
    memset(&writer, 0, sizeof writer);
    memset(&reader, 0, sizeof reader);
    md.path = ENG_LLAMA_F16;
    md.keep_file_layout = true;
    ASSERT_STATUS(DEND_OK, dend_model_load(&md, &same, NULL));
    dend_model_get_info(model, &info[0]);
    dend_model_get_info(same, &info[1]);
    dend_model_get_info(other, &info[2]);
    assert_true(info[0].fingerprint != 0 && info[0].fingerprint == info[1].fingerprint);
    assert_true(info[0].fingerprint != info[2].fingerprint);
    ses_grow(e, seqs);
    ASSERT_STATUS(DEND_OK, dend_save(e, seqs, NULL, SES_N, NULL, &size));
    data = (unsigned char *)malloc((size_t)size);
    assert_non_null(data);
    ASSERT_STATUS(DEND_OK, dend_save_memory(e, seqs, NULL, SES_N, data, (size_t)size, &size));
    for (i = 0; i < 9; i++) {
        static const dend_status expected[9] = {DEND_OK,
                                                DEND_OK,
                                                DEND_ERR_UNSUPPORTED,
                                                DEND_ERR_UNSUPPORTED,
                                                DEND_ERR_UNSUPPORTED,
                                                DEND_ERR_NO_BLOCKS,
                                                DEND_ERR_NO_SEQUENCES,
                                                DEND_ERR_CONTEXT_FULL,
                                                DEND_OK};
        d.model = i == 1 ? same : i == 2 ? other : model;
        d.kv_type = i == 3 ? DEND_KV_Q8_0 : DEND_KV_F16;
        d.block_tokens = i == 4 ? 32 : 16;
        d.n_blocks = i == 5 ? 5 : i == 8 ? 9 : 80;
        d.n_seqs = i == 6 ? SES_N - 1 : SES_N;
        d.n_ctx = i == 7 ? 60 : 160;
        d.n_prefixes = i == 8 ? 4 : 0;
        f = eng_open(&d);
        if (i == 8) { /* a pool that is full of what nobody needs */
            rng.state = 77;
            eng_tokens(&rng, tokens, 100);
            seqs[0] = eng_with(f, tokens, 100);
            ASSERT_STATUS(DEND_OK, dend_step(f, 0));
            ASSERT_STATUS(DEND_OK, dend_seq_drop(f, seqs[0]));
            assert_int_equal(eng_blocks_free(f), 3);
        }
        memset(&err, 0, sizeof err);
        if (expected[i] != DEND_OK) {
            unsigned char *image = eng_freeze(f);
            ASSERT_STATUS(expected[i],
                          dend_restore_memory(f, data, (size_t)size, out, tags, SES_N, &n, &err));
            assert_int_equal(err.status, expected[i]);
            if (i < 7) { /* the numbering is scratch, and free nodes and blocks hold what was read */
                eng_same_range(f, image, f->cache.records, f->prefixes.entries, "records");
            }
            free(image);
            eng_all_free(f);
        } else {
            ASSERT_STATUS(DEND_OK, dend_restore_memory(f, data, (size_t)size, out, tags, SES_N, &n, &err));
            assert_int_equal(n, SES_N);
        }
        dend_engine_free(f);
    }
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_save(e, NULL, NULL, 2, NULL, &size));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_save(e, out, NULL, 2, NULL, NULL));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_save(e, out, NULL, 2, &writer, &size));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_save_memory(e, out, NULL, 1, NULL, 5, &size));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_save_memory(e, out, NULL, 1, data, 5, NULL));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_save_file(e, out, NULL, 1, NULL));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_save_file(e, out, NULL, 1, ""));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_restore(e, NULL, out, NULL, 1, &n, NULL));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_restore(e, &reader, out, NULL, 1, &n, NULL));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_restore_memory(e, NULL, 1, out, NULL, 1, &n, NULL));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_restore_memory(e, data, 1, NULL, NULL, 1, &n, NULL));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_restore_memory(e, data, 1, out, NULL, 1, NULL, NULL));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_restore_file(e, NULL, out, NULL, 1, &n, NULL));
    ENG_REFUSED(DEND_ERR_FORMAT, e, dend_restore_memory(e, NULL, 0, out, NULL, 1, &n, NULL));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_save(NULL, out, NULL, 1, NULL, &size));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_restore_memory(NULL, data, 1, out, NULL, 1, &n, NULL));
    free(data);
    dend_engine_free(e);
    dend_model_free(model);
    dend_model_free(same);
    dend_model_free(other);
}

static bool ses_exists(const char *path) {
    FILE *f = fopen(path, "rb");
    if (f) {
        fclose(f);
    }
    return f != NULL;
}

/* Files: whole or not at all. */
static void test_session_files(void **state) {
    static const char path[] = "build/test_session.dend", tmp[] = "build/test_session.dend.tmp";
    dend_model *model = eng_load(ENG_LLAMA_F16);
    dend_engine *e = ses_open(model, DEND_KV_F16, 16, DEND_ISA_DEFAULT), *f;
    dend_seq seqs[SES_N], out[SES_N];
    uint64_t expected;
    unsigned char *bytes, *memory;
    size_t size, at;
    uint64_t n_bytes;
    dend_error err;
    uint32_t n;
    FILE *file;
    char *longer;
    (void)state;
    (void)remove(path);
    (void)remove(tmp);
    ses_grow(e, seqs);
    ASSERT_STATUS(DEND_OK, dend_save_file(e, seqs, NULL, SES_N, path));
    assert_false(ses_exists(tmp));
    bytes = test_read_file(path, &size);
    assert_non_null(bytes);
    memory = (unsigned char *)malloc(size);
    assert_non_null(memory);
    ASSERT_STATUS(DEND_OK, dend_save_memory(e, seqs, NULL, SES_N, memory, size, &n_bytes));
    assert_int_equal(size, n_bytes);
    assert_memory_equal(bytes, memory, size);
    f = ses_open(model, DEND_KV_F16, 16, DEND_ISA_DEFAULT);
    ASSERT_STATUS(DEND_OK, dend_restore_file(f, path, out, NULL, SES_N, &n, &err));
    expected = ses_replay(e, seqs);
    assert_true(expected == ses_replay(f, out));
    eng_all_free(f);
    /* failures: the old file stays, and no part of a new one */
    ASSERT_STATUS(DEND_ERR_IO, dend_save_file(e, seqs, NULL, SES_N, "build/no such folder/x"));
    ASSERT_STATUS(DEND_ERR_IO, dend_save_file(e, seqs, NULL, SES_N, "build/"));
    seqs[1].generation++;
    ASSERT_STATUS(DEND_ERR_STALE, dend_save_file(e, seqs, NULL, SES_N, path));
    seqs[1].generation--;
#if defined(__linux__)
    if (symlink("/dev/full", tmp) == 0) { /* a disk that is full */
        ASSERT_STATUS(DEND_ERR_IO, dend_save_file(e, seqs, NULL, SES_N, path));
        assert_false(ses_exists(tmp));
    }
#endif
    longer = (char *)malloc(5000);
    assert_non_null(longer);
    memset(longer, 'x', 4999);
    longer[4999] = 0;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_save_file(e, seqs, NULL, SES_N, longer));
    free(longer);
    free(memory);
    memory = test_read_file(path, &at);
    assert_non_null(memory);
    assert_int_equal(at, size);
    assert_memory_equal(bytes, memory, size);
    ASSERT_STATUS(DEND_OK, dend_save_file(e, seqs, NULL, 1, path)); /* over the old one */
    ASSERT_STATUS(DEND_OK, dend_restore_file(f, path, out, NULL, SES_N, &n, &err));
    assert_int_equal(n, 1);
    ASSERT_STATUS(DEND_ERR_IO, dend_restore_file(f, "build/no such file", out, NULL, SES_N, &n, &err));
    ASSERT_STATUS(DEND_ERR_IO, dend_restore_file(f, "build", out, NULL, SES_N, &n, &err));
    for (at = 0; at < size; at += at < 200 ? 1 : size / 50) { /* a file that was cut off */
        file = fopen(path, "wb");
        assert_non_null(file);
        assert_int_equal(fwrite(bytes, 1, at, file), at);
        fclose(file);
        ASSERT_STATUS(DEND_ERR_FORMAT, dend_restore_file(f, path, out, NULL, SES_N, &n, &err));
    }
    (void)remove(path);
    free(memory);
    free(bytes);
    dend_engine_free(e);
    dend_engine_free(f);
    dend_model_free(model);
}

static const struct CMUnitTest tests_engine_session[] = {
    cmocka_unit_test(test_session_prefix_twins),
    cmocka_unit_test(test_session_prefix_rows),
    cmocka_unit_test(test_session_prefix_under_way),
    cmocka_unit_test(test_session_prefix_calls),
    cmocka_unit_test(test_session_callers),
    cmocka_unit_test(test_session_rounds),
    cmocka_unit_test(test_session_sharing),
    cmocka_unit_test(test_session_refused),
    cmocka_unit_test(test_session_files),
};
