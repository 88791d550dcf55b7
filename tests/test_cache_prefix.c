/* The prefix tree of the cache: single cases. Random operations beside a model,
 * with every count walked, are in tests/test_cache_sequence.c, whose helpers
 * serve here. */

static tc_cache *tsp_open(uint32_t n_blocks, uint32_t n_seqs, uint32_t n_ctx, uint32_t n_prefixes) {
    tc_cache *t = tc_new(TC_F32, n_blocks, n_seqs, n_ctx);
    t->desc.n_prefixes = n_prefixes;
    tc_open(t, 0, 0, 0);
    return t;
}

/* A text's tokens: text number, then where it leaves text 0. */
static int32_t tsp_token(uint32_t text, uint32_t leaves, uint32_t pos) {
    return (int32_t)((pos < leaves ? 0 : text * 7) + pos % 5);
}

/* Appends n tokens of a text to an empty sequence as the engine does, without
 * computing them. Returns what was taken over. */
static uint32_t tsp_prompt(tc_cache *t, dend_seq seq, uint32_t text, uint32_t leaves, uint32_t n) {
    int32_t tokens[600];
    dendp_slot *slot = dendp_cache_slot(t->c, seq);
    uint32_t i, reused;
    TC_CHECK(n <= 600);
    for (i = 0; i < n; i++) {
        tokens[i] = tsp_token(text, leaves, i);
    }
    dendp_prefix_adopt(&t->tree, slot, tokens, n);
    reused = t->c->records[slot->record].len;
    ASSERT_STATUS(DEND_OK, dendp_cache_append(t->c, slot, tokens + reused, n - reused));
    t->c->records[slot->record].list = slot->reuse;
    TC_CHECK(t->c->records[slot->record].n_reused == reused);
    tc_walk(t);
    return reused;
}

/* Computes what waits, in batches of at most `most`, giving up blocks below windows. */
static void tsp_compute(tc_cache *t, dend_seq seq, uint32_t text, uint32_t leaves, uint32_t most) {
    dendp_slot *slot = dendp_cache_slot(t->c, seq);
    uint32_t pos, i, g;
    while (t->c->records[slot->record].n_ready < t->c->records[slot->record].len) {
        const dendp_record *r = &t->c->records[slot->record];
        uint64_t history = 0;
        uint32_t from = r->n_ready, end = dendp_min_u32(r->len, from + most);
        for (pos = 0; pos < end; pos++) {
            history = tc_history(history, tsp_token(text, leaves, pos));
            if (pos >= from && !dendp_record_slot_ready(t->c, slot->record, pos, true)) {
                tc_put(t, slot->record, pos, history);
            }
        }
        dendp_record_commit(t->c, slot->record, end);
        dendp_prefix_committed(&t->tree, slot->record);
        for (g = 0; g < t->desc.n_groups; g++) {
            uint32_t window = t->groups[g].window;
            if (window && end > window) {
                ASSERT_STATUS(DEND_OK, dendp_cache_trim(t->c, slot, g, end - window));
            }
        }
        tc_walk(t);
    }
    for (i = 0, pos = 0; pos < t->c->records[slot->record].len; pos++) { /* what it took over as well */
        uint64_t history = 0;
        for (i = 0; i <= pos; i++) {
            history = tc_history(history, tsp_token(text, leaves, i));
        }
        if (pos % 7 == 0) {
            tc_check_kv(t, slot->record, pos, history);
        }
    }
}

/* Create, prompt, compute; returns what was taken over. */
static uint32_t tsp_run(tc_cache *t, uint32_t text, uint32_t leaves, uint32_t n, uint32_t most,
                        dend_seq *out) {
    uint32_t reused;
    *out = ts_begin(t);
    reused = tsp_prompt(t, *out, text, leaves, n);
    tsp_compute(t, *out, text, leaves, most);
    return reused;
}

static void tsp_drop(tc_cache *t, dend_seq seq) {
    dendp_prefix_dropping(&t->tree, dendp_cache_slot(t->c, seq));
    ASSERT_STATUS(DEND_OK, dendp_cache_seq_drop(t->c, seq));
    tc_walk(t);
}

/* Never the last token, always whole blocks; while the first is alive and after;
 * an edge is cut where another text leaves it, and grows where its own goes on. */
static void test_cache_prefix_reuse(void **state) {
    tc_cache *t = tsp_open(200, 12, 300, 10);
    dend_seq a, b, c;
    uint32_t n;
    (void)state;
    assert_int_equal(tsp_run(t, 1, 0, 100, 40, &a), 0);
    for (n = 1; n <= 100; n++) {
        assert_int_equal(tsp_run(t, 1, 0, n, 40, &b), n <= 96 ? (n - 1) / 16 * 16 : 96);
        ASSERT_STATUS(DEND_OK, dendp_cache_seq_drop(t->c, b)); /* without a trace */
    }
    assert_int_equal(t->tree.n_entries - t->tree.n_free, 1);
    assert_int_equal(tsp_run(t, 2, 50, 60, 40, &b), 0); /* text 1 leaves text 0 at once */
    tsp_drop(t, a);
    assert_int_equal(tsp_run(t, 3, 40, 90, 40, &c), 32);     /* text 0 up to 40: two blocks of it */
    assert_int_equal(t->tree.n_entries - t->tree.n_free, 4); /* 1; 0 up to 32, and 2 and 3 behind it */
    tsp_drop(t, b);
    tsp_drop(t, c);
    assert_int_equal(tsp_run(t, 3, 40, 90, 40, &c), 80);
    assert_int_equal(tsp_run(t, 2, 50, 61, 40, &b), 48);
    assert_int_equal(tsp_run(t, 2, 50, 300, 7, &a), 48); /* goes on: its edge grows */
    assert_int_equal(t->tree.n_entries - t->tree.n_free, 4);
    assert_int_equal(t->tree.n_tokens, 96 + 32 + 288 - 32 + 80 - 32);
    dendp_prefix_clear(&t->tree);
    assert_int_equal(t->tree.n_tokens, 0);
    tc_walk(t);
    tsp_drop(t, a); /* and is there again when its sequence goes */
    assert_int_equal(tsp_run(t, 2, 50, 300, 7, &a), 288);
    tc_close(t);
}

/* Forks leave nothing behind, and those who do not want it neither take nor give. */
static void test_cache_prefix_who(void **state) {
    tc_cache *t = tsp_open(200, 12, 300, 10);
    dend_seq a, b;
    (void)state;
    a = ts_begin(t);
    b = ts_child(t, a);
    assert_int_equal(tsp_prompt(t, b, 1, 0, 100), 0);
    tsp_compute(t, b, 1, 0, 100);
    tsp_drop(t, b);
    assert_int_equal(t->tree.n_free, 10);
    dendp_cache_slot(t->c, a)->reuse = false;
    assert_int_equal(tsp_prompt(t, a, 1, 0, 100), 0);
    tsp_compute(t, a, 1, 0, 100);
    assert_int_equal(t->tree.n_free, 10);
    dendp_cache_slot(t->c, a)->reuse = true;
    tsp_drop(t, a);
    assert_int_equal(t->tree.n_free, 9);
    a = ts_begin(t);
    dendp_cache_slot(t->c, a)->reuse = false;
    assert_int_equal(tsp_prompt(t, a, 1, 0, 100), 0);
    tc_close(t);
}

/* Equal hashes are not equal tokens. */
static void test_cache_prefix_collision(void **state) {
    tc_cache *t = tsp_open(50, 4, 100, 4);
    int32_t tokens[40];
    dend_seq a, b;
    uint32_t i, known;
    (void)state;
    tsp_run(t, 1, 0, 40, 40, &a);
    for (i = 0; i < 40; i++) {
        tokens[i] = tsp_token(2, 0, i);
    }
    dendp_prefix_leave(&t->tree, 0); /* a forged key: as if the two first blocks collided */
    dendp_prefix_enter(&t->tree, 0, dendp_prefix_key(t->c, DENDP_NONE, tokens));
    b = ts_begin(t);
    dendp_prefix_adopt(&t->tree, dendp_cache_slot(t->c, b), tokens, 40);
    assert_int_equal(ts_record(t, b)->len, 0);
    dendp_prefix_leave(&t->tree, 0);
    ASSERT_STATUS(DEND_OK, dendp_cache_append(t->c, dendp_cache_slot(t->c, b), tokens, 40));
    dendp_record_commit(t->c, dendp_cache_slot(t->c, b)->record, 40);
    assert_int_equal(dendp_prefix_list(&t->tree, dendp_cache_slot(t->c, b)->record, 40, false), 1);
    dendp_prefix_enter(&t->tree, 0, dendp_prefix_key(t->c, DENDP_NONE, tokens)); /* and stands before it */
    assert_int_equal(dendp_prefix_best(&t->tree, tokens, 40, &i, &known), 1);
    assert_int_equal(i, 32);
    tc_close(t);
}

/* The least recently used leaf goes first, inner entries after their children,
 * pinned ones never, and entries that cannot help are spared. */
static void test_cache_prefix_eviction(void **state) {
    tc_cache *t = tsp_open(20, 4, 400, 8);
    dend_seq a, b;
    int32_t token = 1;
    uint32_t i, e = DENDP_NONE;
    (void)state;
    for (i = 1; i <= 4; i++) { /* four texts of 5 blocks */
        tsp_run(t, i, 0, 80, 80, &a);
        if (i == 2) {
            e = dendp_prefix_list(&t->tree, dendp_cache_slot(t->c, a)->record, 80, true);
            dendp_prefix_pin(&t->tree, e);
        }
        tsp_drop(t, a);
    }
    assert_int_equal(t->c->pools[0].n_free, 0);
    assert_int_equal(tsp_run(t, 1, 0, 65, 80, &b), 64); /* used again; takes a block: text 3 goes */
    assert_int_equal(t->tree.n_evictions, 1);
    assert_int_equal(tsp_run(t, 3, 0, 80, 80, &a), 0); /* takes 5: text 4 goes; text 1 is in use */
    assert_int_equal(t->tree.n_evictions, 2);
    tsp_drop(t, a);
    assert_int_equal(tsp_run(t, 2, 0, 80, 80, &a), 64);
    tsp_drop(t, a);
    tsp_drop(t, b);
    a = ts_begin(t); /* 15 blocks: all but the pinned ones */
    assert_int_equal(tsp_prompt(t, a, 5, 0, 240), 0);
    assert_int_equal(t->tree.n_entries - t->tree.n_free, 1);
    b = ts_begin(t);
    ASSERT_STATUS(DEND_ERR_NO_BLOCKS, dendp_cache_append(t->c, dendp_cache_slot(t->c, b), &token, 1));
    dendp_prefix_unpin(&t->tree, e);
    tc_walk(t);
    ASSERT_STATUS(DEND_OK, dendp_cache_append(t->c, dendp_cache_slot(t->c, b), &token, 1));
    tc_walk(t);
    tc_close(t);
}

/* Two sequences computed the same text without knowing of each other: the blocks
 * of one of them can be given up while the other lives, though an entry grew out. */
static void test_cache_prefix_merge(void **state) {
    tc_cache *t = tsp_open(20, 4, 400, 8);
    dend_seq a, b, c;
    (void)state;
    a = ts_begin(t);
    b = ts_begin(t);
    tsp_prompt(t, a, 1, 0, 80);
    tsp_prompt(t, b, 1, 0, 160);
    tsp_compute(t, a, 1, 0, 80);
    dendp_prefix_pin(&t->tree, 0); /* or it would grow in place */
    tsp_compute(t, b, 1, 0, 160);
    dendp_prefix_unpin(&t->tree, 0);
    tsp_drop(t, a);
    assert_int_equal(t->tree.n_entries - t->tree.n_free, 2);
    assert_int_equal(tc_blocks_used(t, 0), 15);
    c = ts_begin(t);
    assert_int_equal(tsp_prompt(t, c, 2, 0, 160), 0); /* needs 10: 5 are free, 5 are the first entry's own */
    assert_int_equal(t->tree.n_entries - t->tree.n_free, 2);
    assert_int_equal(t->tree.n_evictions, 0);
    tsp_compute(t, c, 2, 0, 160);
    tsp_drop(t, c);
    tc_close(t);
}

/* A shared tail that only the tree shares: cutting and appending works without a
 * free block, as it would without the tree. */
static void test_cache_prefix_tail(void **state) {
    tc_cache *t = tsp_open(2, 2, 40, 4);
    int32_t token = 3;
    dend_seq a;
    (void)state;
    tsp_run(t, 1, 0, 32, 32, &a);
    assert_int_equal(t->tree.n_free, 3);
    ASSERT_STATUS(DEND_OK, dendp_cache_rewind(t->c, dendp_cache_slot(t->c, a), 20));
    tc_walk(t);
    ASSERT_STATUS(DEND_OK, dendp_cache_append(t->c, dendp_cache_slot(t->c, a), &token, 1));
    tc_walk(t);
    assert_int_equal(t->tree.n_free, 4);
    assert_int_equal(t->c->n_block_copies, 0);
    tc_close(t);
}

/* A window that has moved beyond the branch: the second asker computes it again
 * and leaves an entry there, the third takes it over. */
static void test_cache_prefix_window(void **state) {
    tc_cache *t = tc_new(TC_F32, 200, 8, 400);
    dend_seq a;
    (void)state;
    t->desc.n_prefixes = 16;
    t->groups[1] = t->groups[0];
    t->groups[1].window = 32;
    t->desc.n_groups = 2;
    tc_open(t, 0, 0, 0);
    assert_int_equal(tsp_run(t, 1, 100, 300, 24, &a), 0); /* text 0 up to 100, then its own */
    tsp_drop(t, a);
    assert_int_equal(tsp_run(t, 1, 100, 300, 24, &a), 288); /* the whole of it is there */
    tsp_drop(t, a);
    assert_int_equal(tsp_run(t, 2, 100, 250, 24, &a), 0);
    tsp_drop(t, a);
    assert_int_equal(tsp_run(t, 3, 100, 250, 24, &a), 96);
    tsp_drop(t, a);
    assert_int_equal(tsp_run(t, 4, 100, 100, 24, &a), 96);
    tsp_drop(t, a);
    assert_int_equal(tsp_run(t, 2, 100, 250, 24, &a), 240);
    tsp_drop(t, a);
    tc_close(t);
}

/* Blocks come back under the budget, whoever lets go of them: a sequence of
 * 131,072 tokens, its entry, or the whole tree. */
static void test_cache_prefix_budget(void **state) {
    tc_cache *t = tc_new(TC_F32, 8192 + 16, 4, 131072);
    dendp_slot *slot;
    dend_seq a;
    int32_t *tokens = (int32_t *)calloc(131072, sizeof(int32_t));
    uint32_t free_before, i, n_calls = 0;
    (void)state;
    assert_non_null(tokens);
    t->desc.n_prefixes = 8;
    t->desc.release_budget = 4;
    t->desc.poison = false;
    tc_open(t, 0, 0, 0);
    for (i = 0; i < 131072; i++) {
        tokens[i] = (int32_t)(i % 50);
    }
    a = ts_begin(t);
    slot = dendp_cache_slot(t->c, a);
    ASSERT_STATUS(DEND_OK, dendp_cache_append(t->c, slot, tokens, 131072));
    dendp_record_commit(t->c, slot->record, 131072);
    free_before = t->c->pools[0].n_free;
    dendp_prefix_dropping(&t->tree, slot);
    ASSERT_STATUS(DEND_OK, dendp_cache_seq_drop(t->c, a));
    assert_int_equal(t->tree.n_tokens, 131072);
    assert_int_equal(t->c->pools[0].n_free, free_before);
    dendp_prefix_clear(&t->tree);
    assert_int_equal(t->c->pools[0].n_free, free_before); /* it waits */
    while (t->c->nodes.first_pending != DENDP_NONE) {
        free_before = t->c->pools[0].n_free;
        a = ts_begin(t);
        ASSERT_STATUS(DEND_OK, dendp_cache_seq_drop(t->c, a));
        assert_true(t->c->pools[0].n_free - free_before <= 4 * DENDP_FANOUT);
        n_calls++;
    }
    assert_true(n_calls >= 256 / 4);
    assert_int_equal(t->c->pools[0].n_free, 8192 + 16);
    tc_walk(t);
    free(tokens);
    tc_close(t);
}

static const struct CMUnitTest tests_cache_prefix[] = {
    cmocka_unit_test(test_cache_prefix_reuse),     cmocka_unit_test(test_cache_prefix_who),
    cmocka_unit_test(test_cache_prefix_collision), cmocka_unit_test(test_cache_prefix_eviction),
    cmocka_unit_test(test_cache_prefix_merge),     cmocka_unit_test(test_cache_prefix_tail),
    cmocka_unit_test(test_cache_prefix_window),    cmocka_unit_test(test_cache_prefix_budget),
};
