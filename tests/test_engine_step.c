/* Steps in slices: what happens between two of them, cancels, and when things
 * become known. (test_engine_history in test_engine_api.c has random operations
 * between random slices; its helpers serve here.) */

/* Slices of one task until the batch under way has written K and V of its first layer. */
static void step_into_batch(dend_engine *e) {
    ASSERT_STATUS(DEND_PENDING, dendp_step_run(e, 1));
    while (e->forward.op < DENDP_OP_LAYERS + DENDP_OP_ATTENTION) {
        ASSERT_STATUS(DEND_PENDING, dendp_step_run(e, 1));
    }
    assert_true(e->flight.n > 0);
}

/* A batch under way: nothing is known of it, to nobody. */
static void test_step_known(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e = eng_open(&d);
    int32_t tokens[40];
    float expected[ENG_V];
    const float *logits;
    dend_seq a, b, c;
    test_rng rng;
    (void)state;
    rng.state = 1;
    eng_tokens(&rng, tokens, 40);
    a = eng_with(e, tokens, 40);
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    memcpy(expected, eng_logits(e, a), sizeof expected);
    ASSERT_STATUS(DEND_OK, dend_seq_drop(e, a));

    a = eng_with(e, tokens, 40);
    step_into_batch(e);
    assert_int_equal(eng_info(e, a).n_waiting, 40);
    assert_int_equal(eng_stats(e).n_waiting, 40);
    assert_false(eng_info(e, a).has_logits);
    ASSERT_STATUS(DEND_ERR_WAITING, dend_seq_logits(e, a, &logits));
    b = eng_fork(e, a); /* shares what is under way */
    assert_int_equal(eng_info(e, b).n_waiting, 40);
    c = eng_fork(e, a);
    ASSERT_STATUS(DEND_OK, dend_seq_append(e, c, tokens, 3)); /* goes its own way from here */
    assert_int_equal(eng_stats(e).n_waiting, 40 + 43);
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    eng_equal(expected, eng_logits(e, a), "a", 0);
    eng_equal(expected, eng_logits(e, b), "b", 0);
    assert_int_equal(eng_stats(e).n_rows, 40 + 40 + 3); /* nothing twice */
    /* The last token again, for its logits: they are not there before they are. */
    ASSERT_STATUS(DEND_OK, dend_seq_release_logits(e, a));
    ASSERT_STATUS(DEND_OK, dend_seq_want_logits(e, a));
    step_into_batch(e);
    ASSERT_STATUS(DEND_ERR_NO_LOGITS, dend_seq_logits(e, a, &logits));
    assert_false(eng_info(e, a).has_logits);
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    eng_equal(expected, eng_logits(e, a), "again", 0);
    eng_all_free(e);
    dend_engine_free(e);
    dend_model_free(model);
}

/* What is dropped or cut off is not computed to its end, unless somebody else has it. */
static void test_step_orphans(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e;
    int32_t tokens[100], other[20];
    dend_seq a, b, c;
    test_rng rng;
    uint64_t n_rows;
    (void)state;
    rng.state = 2;
    d.n_ctx = 128;
    e = eng_open(&d);
    eng_tokens(&rng, tokens, 100);
    eng_tokens(&rng, other, 20);
    a = eng_with(e, tokens, 100);
    b = eng_with(e, other, 20);
    step_into_batch(e);
    assert_int_equal(e->flight.n, 120);
    ASSERT_STATUS(DEND_OK, dend_seq_drop(e, a));
    n_rows = eng_stats(e).n_rows;
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    assert_int_equal(eng_stats(e).n_rows - n_rows, 20); /* b's only */
    assert_int_equal(eng_blocks_free(e), e->desc.n_blocks - 2);
    ASSERT_STATUS(DEND_OK, dend_seq_drop(e, b));

    a = eng_with(e, tokens, 100); /* cut to 40 tokens: the blocks from 48 on are nobody's */
    step_into_batch(e);
    ASSERT_STATUS(DEND_OK, dend_seq_rewind(e, a, 40));
    n_rows = eng_stats(e).n_rows;
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    assert_int_equal(eng_stats(e).n_rows - n_rows, 48 + 1); /* and the logits of token 40 */
    ASSERT_STATUS(DEND_OK, dend_seq_drop(e, a));

    a = eng_with(e, tokens, 100); /* dropped, but a fork has it all */
    step_into_batch(e);
    c = eng_fork(e, a);
    ASSERT_STATUS(DEND_OK, dend_seq_drop(e, a));
    n_rows = eng_stats(e).n_rows;
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    assert_int_equal(eng_stats(e).n_rows - n_rows, 100);
    assert_int_equal(eng_info(e, c).n_waiting, 0);
    ASSERT_STATUS(DEND_OK, dend_seq_drop(e, c));

    a = eng_with(e, tokens,
                 100); /* all that was under way is dropped, in the middle of a layer and between two */
    step_into_batch(e);
    ASSERT_STATUS(DEND_OK, dend_seq_drop(e, a));
    while (e->flight.n) {
        (void)dendp_step_run(e, 1);
    }
    assert_int_equal(eng_blocks_free(e), e->desc.n_blocks);
    a = eng_with(e, tokens, 100);
    step_into_batch(e);
    while (!dendp_forward_between_layers(&e->forward)) {
        ASSERT_STATUS(DEND_PENDING, dendp_step_run(e, 1));
    }
    ASSERT_STATUS(DEND_OK, dend_seq_drop(e, a));
    n_rows = eng_stats(e).n_rows;
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    assert_int_equal(eng_stats(e).n_rows, n_rows);
    eng_all_free(e);
    dend_engine_free(e);
    dend_model_free(model);
}

/* Every sequence slot is taken, and every sequence changes while a batch holds its record. */
static void test_step_records(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e;
    dend_seq seqs[6];
    int32_t tokens[30];
    test_rng rng;
    uint32_t i, round;
    (void)state;
    rng.state = 3;
    d.n_seqs = 6;
    d.n_ctx = 64;
    d.n_blocks = 40; /* what the batch holds comes free only when it ends */
    e = eng_open(&d);
    for (round = 0; round < 4; round++) {
        float expected[ENG_V];
        eng_tokens(&rng, tokens, 30);
        for (i = 0; i < 6; i++) {
            seqs[i] = eng_with(e, tokens, 5 + 4 * i);
        }
        step_into_batch(e);
        for (i = 0; i < 6; i++) {
            if (round == 0) {
                ASSERT_STATUS(DEND_OK, dend_seq_append(e, seqs[i], tokens, 2));
            } else if (round == 1) {
                ASSERT_STATUS(DEND_OK, dend_seq_rewind(e, seqs[i], 4));
                ASSERT_STATUS(DEND_OK, dend_seq_append(e, seqs[i], tokens + 4, 3 + i));
            } else if (round == 2) { /* dropped, and another one in its place */
                ASSERT_STATUS(DEND_OK, dend_seq_drop(e, seqs[i]));
                seqs[i] = eng_with(e, tokens + i, 7);
            }
        }
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
        for (i = 0; i < 6; i++) {
            int32_t all[64];
            uint32_t len = eng_info(e, seqs[i]).len_tokens;
            ASSERT_STATUS(DEND_OK, dend_seq_tokens(e, seqs[i], 0, len, all));
            eng_fresh(model, DEND_KV_F16, 16, all, len, expected, NULL);
            eng_equal(expected, eng_logits(e, seqs[i]), "record", i);
        }
        eng_all_free(e);
    }
    dend_engine_free(e);
    dend_model_free(model);
}

/* A token tree ends the batch that is under way; its own results are as ever. */
static void test_step_tree(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e = eng_open(&d);
    int32_t tokens[60], parents[2] = {-1, 0};
    float expected[ENG_V];
    dend_tree tree;
    dend_seq a, b;
    test_rng rng;
    (void)state;
    rng.state = 4;
    eng_tokens(&rng, tokens, 60);
    a = eng_with(e, tokens, 20);
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    b = eng_with(e, tokens + 20, 40);
    step_into_batch(e);
    tree = eng_tree(a, 2, tokens + 20, parents);
    ASSERT_STATUS(DEND_OK, dend_tree_eval(e, &tree, 1));
    assert_int_equal(e->flight.n, 0);
    assert_int_equal(eng_info(e, b).n_waiting, 0);
    eng_fresh(model, DEND_KV_F16, 16, tokens, 22, expected, NULL);
    eng_equal(expected, dend_tree_logits(e, 0, 1), "tree", 1);
    eng_fresh(model, DEND_KV_F16, 16, tokens + 20, 40, expected, NULL);
    eng_equal(expected, eng_logits(e, b), "batch", 0);
    ASSERT_STATUS(DEND_OK, dend_seq_append(e, b, tokens, 3));
    step_into_batch(e);
    ASSERT_STATUS(DEND_OK, dend_tree_accept(e, 0, 1)); /* between two slices */
    eng_fresh(model, DEND_KV_F16, 16, tokens, 22, expected, NULL);
    eng_equal(expected, eng_logits(e, a), "accepted", 0);
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    dend_engine_free(e);
    dend_model_free(model);
}

typedef struct step_canceller {
    dend_engine *engine;
    uint32_t n_calls, at; /* the call that cancels */
} step_canceller;

static void step_cancelling_jobs(void *user, void (*task)(void *ctx, uint32_t index), void *ctx, uint32_t n) {
    step_canceller *c = (step_canceller *)user;
    uint32_t i;
    for (i = 0; i < n; i++) {
        task(ctx, i);
    }
    if (c->n_calls++ == c->at) {
        dend_cancel(c->engine);
    }
}

/* A cancel during each loop of a step, of dend_next and of a tree; nothing is lost. */
static void test_step_cancel(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e;
    step_canceller c;
    int32_t tokens[40], parents[3] = {-1, 0, -1}, token;
    float expected[ENG_V], tree_expected[ENG_V];
    dend_tree tree;
    test_rng rng;
    uint32_t at, n_cancelled = 0, n_trees = 0;
    (void)state;
    memset(&c, 0, sizeof c);
    rng.state = 5;
    eng_tokens(&rng, tokens, 40);
    eng_fresh(model, DEND_KV_F16, 16, tokens, 30, expected, NULL);
    eng_fresh(model, DEND_KV_F16, 16, tokens, 32, tree_expected, NULL);
    d.n_batch = 16;
    d.jobs.run = step_cancelling_jobs;
    d.jobs.user = &c;
    e = eng_open(&d);
    c.engine = e;
    for (at = 0; at < 140; at++) {
        dend_seq a = eng_with(e, tokens, 30);
        dend_status status;
        c.n_calls = 0;
        c.at = at;
        status = dend_step(e, 0);
        if (status == DEND_ERR_CANCELLED) {
            n_cancelled++;
            ASSERT_STATUS(DEND_OK, dend_step(e, 0)); /* once */
        } else {
            ASSERT_STATUS(DEND_OK, status);
        }
        eng_equal(expected, eng_logits(e, a), "cancelled at", at);
        tree = eng_tree(a, 3, tokens + 30, parents);
        status = dend_tree_eval(e, &tree, 1);
        if (status == DEND_ERR_CANCELLED) {
            n_trees++;
            assert_null(dend_tree_logits(e, 0, 0));
            ASSERT_STATUS(DEND_OK, dend_tree_eval(e, &tree, 1));
        } else {
            ASSERT_STATUS(DEND_OK, status);
        }
        eng_equal(tree_expected, dend_tree_logits(e, 0, 1), "tree cancelled at", at);
        ASSERT_STATUS(DEND_OK, dend_seq_drop(e, a));
    }
    assert_true(n_cancelled > 60 && n_cancelled < 140 && n_trees > 30);
    c.at = UINT32_MAX;
    for (at = 0; at < 2; at++) { /* before a step: the next one, once */
        dend_seq a = eng_with(e, tokens, 5);
        dend_cancel(e);
        dend_cancel(e);
        if (at == 0) {
            ASSERT_STATUS(DEND_ERR_CANCELLED, dend_step(e, 0));
        } else {
            ASSERT_STATUS(DEND_ERR_CANCELLED, dend_next(e, a, NULL, &token));
        }
        assert_int_equal(eng_info(e, a).n_waiting, 5);
        ASSERT_STATUS(DEND_OK, dend_next(e, a, NULL, &token));
    }
    dend_cancel(NULL);
    dend_engine_free(e);
    dend_model_free(model);
}

/* Slices of all sizes, with own threads and job systems that run backwards or on
 * two threads: the bits of one step without a limit. */
static void test_step_slices(void **state) {
    uint32_t k, threads;
    (void)state;
    for (k = 0; k < 9; k++) {
        dend_model *model = eng_load(eng_paths[k % 3]);
        for (threads = 0; threads < 4; threads++) {
            dend_engine_desc d = eng_desc(model);
            dend_engine *e;
            int32_t tokens[600];
            float expected[3][ENG_V];
            uint32_t calls = 0, i;
            dend_seq seqs[3];
            test_rng rng;
            rng.state = 6 + k;
            eng_tokens(&rng, tokens, 600);
            d.kv_type = eng_kv_types[k / 3];
            d.n_ctx = 600;
            d.n_batch = 70;
            d.n_threads = threads == 1 ? 3 : 1;
            d.jobs.run = threads == 2 ? eng_jobs_backwards : threads == 3 ? eng_jobs_two : NULL;
            d.jobs.user = &calls;
            d.jobs.n_workers = 2;
            e = eng_open(&d);
            for (i = 0; i < 3; i++) {
                seqs[i] = eng_with(e, tokens + i, i == 2 ? 580 : 90 * i + 1);
            }
            ASSERT_STATUS(DEND_OK, dend_step(e, 0));
            for (i = 0; i < 3; i++) {
                memcpy(expected[i], eng_logits(e, seqs[i]), sizeof expected[i]);
            }
            eng_all_free(e);
            for (i = 0; i < 3; i++) {
                seqs[i] = eng_with(e, tokens + i, i == 2 ? 580 : 90 * i + 1);
            }
            for (;;) {
                uint32_t how = test_below(&rng, 8);
                dend_status status = how < 5   ? dendp_step_run(e, 1)
                                     : how < 7 ? dend_step(e, 1 + test_below(&rng, 300))
                                               : dendp_step_run(e, dendp_now_ns() + test_below(&rng, 200000));
                if (status == DEND_OK) {
                    break;
                }
                ASSERT_STATUS(DEND_PENDING, status);
            }
            for (i = 0; i < 3; i++) {
                eng_equal(expected[i], eng_logits(e, seqs[i]), "slices", k * 10 + threads);
            }
            dend_engine_free(e);
        }
        dend_model_free(model);
    }
}

static const struct CMUnitTest tests_engine_step[] = {
    cmocka_unit_test(test_step_known),   cmocka_unit_test(test_step_orphans),
    cmocka_unit_test(test_step_records), cmocka_unit_test(test_step_tree),
    cmocka_unit_test(test_step_cancel),  cmocka_unit_test(test_step_slices),
};
