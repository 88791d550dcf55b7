/* Models with sliding layers: layer groups, blocks that are given up behind the
 * window, and what that leaves as it was. Uses the helpers of test_engine_api.c
 * and test_engine_plan.c. */

#define WIN_TEXT 700u

/* An engine with few blocks for sliding layers; free blocks are NaN. */
static dend_engine *win_open(const dend_model *model, dend_kv_type kv, uint32_t n_window_blocks) {
    dend_engine_desc d = eng_desc(model);
    dend_engine *e;
    d.n_ctx = 1000;
    d.n_blocks = 140;
    d.n_seqs = 8;
    d.n_window_blocks = n_window_blocks;
    d.kv_type = kv;
    e = eng_open(&d);
    eng_poison(e);
    return e;
}

/* Appends in pieces of `piece` tokens, with a step after each. */
static void win_write(dend_engine *e, dend_seq seq, const int32_t *tokens, uint32_t n, uint32_t piece) {
    uint32_t i;
    for (i = 0; i < n; i += piece) {
        ASSERT_STATUS(DEND_OK, dend_seq_append(e, seq, tokens + i, n - i < piece ? n - i : piece));
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    }
}

/* The logits are those of a fresh engine that keeps everything. */
static void win_check(dend_engine *e, dend_seq seq, const int32_t *tokens, uint32_t n) {
    float expected[ENG_V];
    uint64_t hash;
    int32_t got[WIN_TEXT + 100];
    ASSERT_STATUS(DEND_OK, dend_seq_want_logits(e, seq));
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    eng_fresh(e->model, e->desc.kv_type, 16, tokens, n, expected, &hash);
    eng_equal(expected, eng_logits(e, seq), "behind a window, length", n);
    assert_true(eng_info(e, seq).prefix_hash == hash);
    ASSERT_STATUS(DEND_OK, dend_seq_tokens(e, seq, 0, n, got)); /* the text is all there */
    assert_memory_equal(got, tokens, n * sizeof(int32_t));
}

/* Sliding layers are a group of their own; the first group keeps everything, even if no layer is in it. */
static void test_window_groups(void **state) {
    uint32_t m, layer;
    (void)state;
    for (m = 3; m < ENG_N_MODELS; m++) {
        dend_model *model = eng_load(eng_paths[m]);
        dend_engine *e = win_open(model, DEND_KV_F16, 0);
        const dendp_cache *c = &e->cache;
        dend_model_info info;
        uint32_t n[2] = {0, 0};
        dend_model_get_info(model, &info);
        assert_int_equal(info.window, m == 3 ? 20 : 16);
        assert_int_equal(info.n_window_layers, m == 3 ? 1 : 6);
        assert_int_equal(c->desc.n_groups, 2);
        assert_int_equal(c->groups[0].desc.n_layers, info.n_layers - info.n_window_layers);
        assert_int_equal(c->groups[1].desc.n_layers, info.n_window_layers);
        assert_int_equal(c->groups[0].desc.window, 0);
        assert_int_equal(c->groups[1].desc.window, info.window);
        for (layer = 0; layer < info.n_layers; layer++) {
            uint32_t g = e->forward.layer_group[layer];
            assert_int_equal(g, m == 3 || layer % 6 != 5);
            assert_int_equal(e->forward.layer_index[layer], n[g]++);
        }
        dend_engine_free(e);
        dend_model_free(model);
    }
}

/* With as many blocks as for the other layers nothing is given up. */
static void test_window_keeps(void **state) {
    int32_t tokens[WIN_TEXT];
    uint32_t m;
    test_rng rng;
    (void)state;
    rng.state = 11;
    eng_tokens(&rng, tokens, WIN_TEXT);
    for (m = 3; m < ENG_N_MODELS; m++) {
        dend_model *model = eng_load(eng_paths[m]);
        dend_engine *e = win_open(model, DEND_KV_F16, m == 3 ? 0 : 140);
        dend_seq seq = eng_with(e, tokens, 600);
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
        assert_int_equal(eng_info(e, seq).rewind_min, 0);
        assert_int_equal(eng_stats(e).n_window_blocks, 140);
        assert_int_equal(eng_stats(e).n_window_blocks_free, eng_stats(e).n_blocks_free);
        win_check(e, seq, tokens, 600);
        ASSERT_STATUS(DEND_OK, dend_seq_rewind(e, seq, 3));
        win_check(e, seq, tokens, 3);
        eng_all_free(e);
        dend_engine_free(e);
        dend_model_free(model);
    }
}

/* With 8 blocks a text of 44 goes through, and every length that can be rewound to says what it always said. */
static void test_window_gives_up(void **state) {
    int32_t tokens[WIN_TEXT + 100];
    uint32_t m, k, i;
    test_rng rng;
    (void)state;
    rng.state = 12;
    eng_tokens(&rng, tokens, WIN_TEXT + 100);
    for (m = 3; m < ENG_N_MODELS; m++) {
        dend_model *model = eng_load(eng_paths[m]);
        for (k = 0; k < 3; k++) {
            dend_engine *e = win_open(model, eng_kv_types[k], 8);
            uint32_t window = model->config.window, least = (WIN_TEXT - window) / 16 * 16 + window;
            dend_seq seq = eng_seq(e), fork, other;
            plan_bytes bytes;
            dend_engine *roomy = win_open(model, eng_kv_types[k], 0);
            assert_true(eng_stats(e).n_window_blocks == 8);
            win_write(e, seq, tokens, WIN_TEXT, 50);
            assert_int_equal(eng_info(e, seq).len_tokens, WIN_TEXT);
            assert_int_equal(eng_info(e, seq).rewind_min, least);
            eng_blocks_free(e);
            assert_int_equal(eng_stats(e).n_window_blocks_free, 8 - (44 - (WIN_TEXT - window) / 16));
            win_check(e, seq, tokens, WIN_TEXT);
            ASSERT_STATUS(DEND_OK, dend_seq_release_logits(e, seq));
            win_check(e, seq, tokens, WIN_TEXT); /* computed again */
            /* more at once than the blocks hold */
            ENG_REFUSED(DEND_ERR_NO_BLOCKS, e, dend_seq_append(e, seq, tokens, 130));
            ENG_REFUSED(DEND_ERR_UNSUPPORTED, e, dend_seq_rewind(e, seq, least - 1));
            ENG_REFUSED(DEND_ERR_UNSUPPORTED, e, dend_seq_rewind(e, seq, 0));
            fork = eng_fork(e, seq);
            ASSERT_STATUS(DEND_OK, dend_seq_rewind(e, fork, least));
            win_check(e, fork, tokens, least);
            for (i = 0; i < 60; i += 10) { /* the fork goes on; its parent stays */
                ASSERT_STATUS(DEND_OK, dend_seq_append(e, fork, tokens + least + i, 10));
                ASSERT_STATUS(DEND_OK, dend_step(e, 0));
            }
            win_check(e, fork, tokens, least + 60);
            ASSERT_STATUS(DEND_OK, dend_seq_release_logits(e, seq));
            win_check(e, seq, tokens, WIN_TEXT);
            assert_int_equal(eng_info(e, seq).rewind_min, least);
            /* saved with what is left; loaded here, and where there is room for all of it, it goes on alike */
            memset(&bytes, 0, sizeof bytes);
            ASSERT_STATUS(DEND_OK, plan_save(e, seq, &bytes));
            ASSERT_STATUS(DEND_OK, dend_seq_drop(e, fork)); /* its blocks are wanted */
            ASSERT_STATUS(DEND_OK, plan_restore(e, &bytes, &other));
            assert_int_equal(eng_info(e, other).rewind_min, least);
            ASSERT_STATUS(DEND_OK, dend_seq_drop(e, seq));
            win_check(e, other, tokens, WIN_TEXT);
            ASSERT_STATUS(DEND_OK, plan_restore(roomy, &bytes, &other));
            assert_int_equal(eng_info(roomy, other).rewind_min, least);
            win_check(roomy, other, tokens, WIN_TEXT);
            win_write(roomy, other, tokens + WIN_TEXT, 70, 70);
            win_check(roomy, other, tokens, WIN_TEXT + 70);
            assert_int_equal(eng_info(roomy, other).rewind_min, least);
            free(bytes.data);
            eng_all_free(roomy);
            dend_engine_free(roomy);
            eng_all_free(e);
            dend_engine_free(e);
        }
        dend_model_free(model);
    }
}

/* Trees over a text whose beginning is given up, and their acceptance, which gives up more. */
static void test_window_trees(void **state) {
    int32_t tokens[WIN_TEXT];
    uint32_t m, round, n_rows, least;
    test_rng rng;
    (void)state;
    rng.state = 13;
    eng_tokens(&rng, tokens, WIN_TEXT);
    for (m = 3; m < ENG_N_MODELS; m++) {
        dend_model *model = eng_load(eng_paths[m]);
        dend_engine_desc d = eng_desc(model);
        dend_engine *e;
        dend_seq seq;
        d.n_ctx = 1000;
        d.n_blocks = 400;
        d.n_window_blocks = 200;
        d.n_seqs = 64;
        e = eng_open(&d);
        eng_poison(e);
        seq = eng_seq(e);
        win_write(e, seq, tokens, 505, 100);
        least = eng_info(e, seq).rewind_min;
        for (round = 0; round < 4; round++) {
            n_rows = 1 + test_below(&rng, 40);
            eng_check_trees(e, &rng, &seq, &n_rows, 1);
        }
        assert_true(eng_info(e, seq).rewind_min > least);
        eng_all_free(e);
        dend_engine_free(e);
        dend_model_free(model);
    }
}

/* The cache itself gives nothing of its first group up, which has the text, whatever its description says. */
static void test_window_first_group(void **state) {
    dend_model *model = eng_load(ENG_MISTRAL);
    dend_engine *e = win_open(model, DEND_KV_F16, 0);
    int32_t tokens[100];
    dend_seq seq;
    test_rng rng;
    (void)state;
    rng.state = 14;
    eng_tokens(&rng, tokens, 100);
    seq = eng_with(e, tokens, 100);
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    ENG_REFUSED(DEND_ERR_UNSUPPORTED, e,
                dendp_cache_trim(&e->cache, dendp_cache_slot(&e->cache, seq), 0, 64));
    ASSERT_STATUS(DEND_OK, dendp_cache_trim(&e->cache, dendp_cache_slot(&e->cache, seq), 0, 15));
    ASSERT_STATUS(DEND_OK, dendp_cache_trim(&e->cache, dendp_cache_slot(&e->cache, seq), 1, 64));
    win_check(e, seq, tokens, 100);
    eng_all_free(e);
    dend_engine_free(e);
    dend_model_free(model);
}

static const struct CMUnitTest tests_engine_windows[] = {
    cmocka_unit_test(test_window_groups),      cmocka_unit_test(test_window_keeps),
    cmocka_unit_test(test_window_gives_up),    cmocka_unit_test(test_window_trees),
    cmocka_unit_test(test_window_first_group),
};
