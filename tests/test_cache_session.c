/* Sessions of the cache: what is damaged, cut off, or a well-signed lie is
 * refused, and then nothing has changed. Whole sessions of random sequences are
 * saved, restored and compared by tests/test_cache_sequence.c, whose helpers
 * serve here. */

#include "dend_session.h"

/* The session of four sequences: two that share their record, a short sharer of
 * a tail that a longer one has sealed, and one with waiting tokens; two groups,
 * of which the second has a window that has moved. */
static tc_cache *tss_cache(uint32_t codec, uint32_t n_blocks, uint32_t n_seqs, uint32_t n_ctx) {
    tc_cache *t = tc_new(codec, n_blocks, n_seqs, n_ctx);
    t->groups[0].n_layers = 2;
    t->groups[0].head_dim = 4;
    t->groups[1] = t->groups[0];
    t->groups[1].n_layers = 1;
    t->groups[1].window = 16;
    t->desc.n_groups = 2;
    return t;
}

static const uint64_t tss_tags[4] = {7, 0, UINT64_MAX, 7};

static void tss_fill(tc_cache *t, dend_seq *seqs) {
    uint64_t ha = 0, hb;
    seqs[0] = ts_begin(t);
    ts_grow(t, seqs[0], &ha, 0, 37, true);
    seqs[1] = ts_child(t, seqs[0]);
    hb = ha;
    ts_grow(t, seqs[1], &hb, 50, 12, true); /* fills the block that the first one sees 5 slots of */
    ASSERT_STATUS(DEND_OK, dendp_cache_trim(t->c, dendp_cache_slot(t->c, seqs[1]), 1, 33));
    seqs[2] = ts_child(t, seqs[0]);
    seqs[3] = ts_child(t, seqs[1]);
    ts_grow(t, seqs[3], &hb, 70, 6, false); /* waits */
    if (t->desc.n_sidecars) {
        uint32_t handle = tc_side_take(&t->side[0]);
        dendp_cache_sidecar_set(t->c, dendp_cache_slot(t->c, seqs[3]), 0, handle);
        t->side[0].items[handle - 1].n = 3;
    }
    tc_walk(t);
}

static void tss_save(tc_cache *t, tc_buffer *b) {
    dend_seq seqs[4];
    tss_fill(t, seqs);
    b->fail_at = 0;
    ASSERT_STATUS(DEND_OK, tc_save(t, seqs, tss_tags, 4, 100, b));
}

/* Restores from b into t, where nothing may change when it fails. */
static dend_status tss_try(tc_cache *t, tc_buffer *b, dend_error *err) {
    dend_reader reader = tc_buffer_reader(b);
    uint64_t before = tc_digest_state(t), free_before, nodes = t->c->nodes.n_free;
    dend_seq out[8];
    uint32_t n = 0, i;
    dend_status status;
    free_before = (uint64_t)t->c->pools[0].n_free << 32 | t->c->pools[1].n_free;
    memset(err, 0, sizeof *err);
    b->n_writes = 0;
    status = tc_restore(t, &reader, 100, out, NULL, 8, &n, err);
    if (status == DEND_OK) {
        tc_walk(t);
        for (i = 0; i < n; i++) {
            ASSERT_STATUS(DEND_OK, dendp_cache_seq_drop(t->c, out[i]));
        }
        while (dendp_node_reclaim(&t->c->nodes, 100)) {
        }
    } else {
        TC_CHECK(err->status == status && err->msg != NULL);
        TC_CHECK(before == tc_digest_state(t));
    }
    TC_CHECK(free_before == ((uint64_t)t->c->pools[0].n_free << 32 | t->c->pools[1].n_free));
    TC_CHECK(nodes == t->c->nodes.n_free && nodes == t->c->nodes.n_nodes);
    return status;
}

/* A file that is cut off at any byte, longer, or has any bit of any place flipped. */
static void test_cache_session_damaged(void **state) {
    static const uint32_t codecs[3] = {TC_Q8, TC_TOY, TC_F32};
    uint32_t k;
    (void)state;
    for (k = 0; k < 3; k++) {
        tc_cache *t = tss_cache(codecs[k], 24, 6, 100), *u = tss_cache(codecs[k], 24, 6, 100);
        tc_buffer b, damaged;
        dend_error err;
        size_t at, n_header = 0;
        test_rng rng;
        rng.state = 4 + k;
        tc_open(t, 1, 4, 0);
        tc_open(u, 1, 4, 0);
        tss_save(t, &b);
        ASSERT_STATUS(DEND_OK, tss_try(u, &b, &err));
        damaged = b;
        damaged.data = (unsigned char *)malloc(b.n + 64);
        assert_non_null(damaged.data);
        memcpy(damaged.data, b.data, b.n);
        for (at = 0; at < b.n; at++) {
            damaged.n = at;
            ASSERT_STATUS(DEND_ERR_FORMAT, tss_try(u, &damaged, &err));
            TC_CHECK(err.where <= at);
        }
        memset(damaged.data + b.n, 0, 64);
        damaged.n = b.n + 1;
        ASSERT_STATUS(DEND_ERR_FORMAT, tss_try(u, &damaged, &err));
        assert_int_equal(err.where, b.n);
        damaged.n = b.n;
        for (at = 0; at < b.n * 8; at++) { /* all bits of what is no tile, and some of those */
            if (at / 8 > 6000 && test_below(&rng, 50) > 0) {
                continue;
            }
            damaged.data[at / 8] ^= (unsigned char)(1u << at % 8);
            ASSERT_STATUS(DEND_ERR_FORMAT, tss_try(u, &damaged, &err));
            TC_CHECK(err.where <= at / 8); /* the section, not behind the damage */
            TC_CHECK(at / 8 < sizeof(dendp_session_header) ? err.where == 0 : err.where > 0);
            damaged.data[at / 8] ^= (unsigned char)(1u << at % 8);
            n_header += at / 8 < sizeof(dendp_session_header);
        }
        assert_int_equal(n_header, 8 * sizeof(dendp_session_header));
        ASSERT_STATUS(DEND_OK, tss_try(u, &damaged, &err)); /* whole again */
        free(damaged.data);
        free(b.data);
        tc_close(t);
        tc_close(u);
    }
}

/* Every word of all that is no tile gets values that somebody might try, and the
 * whole is signed again: refused without a trace, or a valid set of sequences. */
static void test_cache_session_lies(void **state) {
    static const uint32_t codecs[2] = {TC_F32, TC_Q8};
    uint32_t k, n_refused = 0, n_accepted = 0;
    (void)state;
    for (k = 0; k < 2; k++) {
        tc_cache *t = tss_cache(codecs[k], 24, 6, 100), *u = tss_cache(codecs[k], 24, 6, 100);
        tc_buffer b, lie;
        size_t at, end;
        dend_error err;
        tc_open(t, 1, 4, 0);
        tc_open(u, 1, 4, 0);
        tss_save(t, &b);
        lie = b;
        lie.data = (unsigned char *)malloc(b.n);
        assert_non_null(lie.data);
        end = 0;
        for (at = sizeof(dendp_session_header); end == 0;) { /* where the tiles begin */
            dendp_session_section head;
            memcpy(&head, b.data + at, sizeof head);
            end = head.kind == DENDP_SECTION_KV ? at : 0;
            at += sizeof head + (size_t)head.n_bytes + 8;
        }
        for (at = 0; at + 4 <= end; at += 4) {
            uint32_t old, value, i;
            memcpy(&old, b.data + at, 4);
            for (i = 0; i < 12; i++) {
                static const uint32_t values[8] = {0,           1,           2,           5,
                                                   0x7fffffffu, 0x80000000u, 0xfffffffeu, 0xffffffffu};
                dend_status status;
                value = i < 8     ? values[i]
                        : i == 8  ? old + 1
                        : i == 9  ? old - 1
                        : i == 10 ? old * 2
                                  : old ^ 0x10000u;
                if (value == old) {
                    continue;
                }
                memcpy(lie.data, b.data, b.n);
                memcpy(lie.data + at, &value, 4);
                session_sign(lie.data, lie.n);
                status = tss_try(u, &lie, &err);
                TC_CHECK(status == DEND_OK || status == DEND_ERR_FORMAT || status == DEND_ERR_UNSUPPORTED ||
                         status == DEND_ERR_CONTEXT_FULL || status == DEND_ERR_NO_BLOCKS);
                n_accepted += status == DEND_OK ? 1u : 0u;
                n_refused += status == DEND_OK ? 0u : 1u;
            }
        }
        free(lie.data);
        free(b.data);
        tc_close(t);
        tc_close(u);
    }
    assert_true(n_refused > 5000);
    assert_true(n_accepted > 100); /* tags, streams, unseen tokens: so the signing works */
}

/* A file that says, of a kind of lie, exactly what is wrong. */
static void test_cache_session_refusals(void **state) {
    tc_cache *t = tss_cache(TC_F32, 24, 6, 100), *u = NULL;
    tc_buffer b, lie;
    dend_error err;
    dend_seq out[8];
    uint64_t tags[8], big = (uint64_t)1 << 63;
    dend_reader reader;
    uint32_t i, n, word;
    (void)state;
    tc_open(t, 0, 0, 0);
    tss_save(t, &b);
    lie = b;
    lie.data = (unsigned char *)malloc(b.n);
    assert_non_null(lie.data);
    for (i = 0; i < 14; i++) { /* another cache */
        dend_status expected = DEND_ERR_UNSUPPORTED;
        u = tss_cache(i == 1 ? TC_F16 : TC_F32, i == 2 ? 3 : 24, i == 3 ? 3 : 6, i == 4 ? 53 : 100);
        u->desc.block_tokens = i == 5 ? 32 : 16;
        u->groups[0].n_kv_heads = i == 6 ? 2 : 1;
        u->groups[0].head_dim = i == 7 ? 8 : 4;
        u->groups[1].window = i == 8 ? 32 : 16;
        u->groups[1].n_layers = i == 9 ? 2 : 1;
        u->desc.n_groups = i == 10 ? 1 : 2;
        tc_open(u, i == 11 ? 1 : 0, 4, 0);
        expected = i == 0 || i == 12 || i == 13 ? DEND_OK : expected;
        expected = i == 2 ? DEND_ERR_NO_BLOCKS : i == 3 ? DEND_ERR_NO_SEQUENCES : expected;
        expected = i == 4 ? DEND_ERR_CONTEXT_FULL : expected;
        reader = tc_buffer_reader(&b);
        memset(&err, 0, sizeof err);
        n = 99;
        if (i == 12) { /* too little room: the number is told, and nothing happens */
            ASSERT_STATUS(DEND_ERR_BUFFER, tc_restore(u, &reader, 100, out, tags, 3, &n, &err));
            assert_int_equal(n, 4);
        }
        if (i == 13) { /* another vocabulary, another model */
            ASSERT_STATUS(DEND_ERR_UNSUPPORTED, tc_restore(u, &reader, 99, out, tags, 8, &n, &err));
            ASSERT_STATUS(DEND_ERR_UNSUPPORTED, dendp_cache_restore(&u->snapshot, &reader, TC_FINGERPRINT + 1,
                                                                    100, out, tags, 8, &n, &err));
            assert_int_equal(err.where, 16);
        }
        ASSERT_STATUS(expected, tc_restore(u, &reader, 100, out, tags, 8, &n, &err));
        tc_walk(u);
        if (expected == DEND_OK) {
            assert_int_equal(n, 4);
            assert_memory_equal(tags, tss_tags, sizeof tss_tags);
            assert_true(ts_record(u, out[0]) == ts_record(u, out[2]));
            assert_true(ts_record(u, out[1]) != ts_record(u, out[3]));
            for (word = 0; word < 2;
                 word++) { /* blocks 0 and 1 of all are the same, and the sealed tail is not */
                uint32_t first = dendp_table_get(
                    &u->c->nodes, dendp_cache_table(u->c, dendp_cache_slot(u->c, out[0])->record, 0), word);
                uint32_t second = dendp_table_get(
                    &u->c->nodes, dendp_cache_table(u->c, dendp_cache_slot(u->c, out[3])->record, 0), word);
                assert_int_equal(first, second);
            }
        } else {
            assert_non_null(err.msg);
            out[0] = ts_begin(u); /* as if nothing had been tried */
            assert_int_equal(out[0].slot, 0);
            assert_true(dendp_cache_slot(u->c, out[0])->stream == dendp_hash2(1, 1));
            assert_int_equal(u->c->pools[0].n_free, u->c->pools[0].n_blocks);
            assert_int_equal(u->c->pools[0].first_free, 0);
            assert_int_equal(u->c->nodes.first_free, 0);
        }
        tc_close(u);
    }
    u = tss_cache(TC_F32, 24, 6, 100);
    tc_open(u, 0, 0, 0);
    for (i = 0; i < 9; i++) { /* signed headers */
        static const uint32_t at[9] = {8, 12, 40, 44, 48, 64, 72, 72, 44};
        memcpy(lie.data, b.data, b.n);
        word = i == 0 ? 0x04030201u : i == 1 ? 2u : 0xffffffffu;
        if (i < 5 || i == 8) {
            memcpy(lie.data + at[i], i == 8 ? (const void *)&big : (const void *)&word, 4);
        } else {
            memcpy(lie.data + at[i], &big, 8);
        }
        if (i == 7) {
            big = b.n - 1;
            memcpy(lie.data + at[i], &big, 8);
            big = (uint64_t)1 << 63;
        }
        session_sign(lie.data, lie.n);
        ASSERT_STATUS(i < 2 ? DEND_ERR_UNSUPPORTED : DEND_ERR_FORMAT, tss_try(u, &lie, &err));
        assert_int_equal(err.where, i == 0 ? 8 : i == 1 ? 12 : 0);
    }
    free(lie.data);
    free(b.data);
    tc_close(t);
    tc_close(u);
}

/* The n-th write or read fails, for every n. */
static void test_cache_session_failing_io(void **state) {
    tc_cache *t = tss_cache(TC_TOY, 24, 8, 100), *u = tss_cache(TC_TOY, 24, 8, 100);
    dend_seq seqs[4], twice[2];
    tc_buffer b;
    dend_error err;
    uint32_t nth;
    dend_status status = DEND_ERR_IO;
    (void)state;
    tc_open(t, 1, 4, 0);
    tc_open(u, 1, 4, 0);
    tss_fill(t, seqs);
    for (nth = 1; status != DEND_OK; nth++) {
        b.fail_at = nth;
        status = tc_save(t, seqs, NULL, 4, 100, &b);
        TC_CHECK(status == DEND_OK || status == DEND_ERR_IO);
        if (status != DEND_OK) {
            free(b.data);
        }
        TC_CHECK(nth < 10000);
    }
    TC_CHECK(nth > 50);
    for (nth = 1, status = DEND_ERR_IO; status != DEND_OK; nth++) {
        b.fail_at = nth;
        status = tss_try(u, &b, &err);
        TC_CHECK(status == DEND_OK || status == DEND_ERR_IO);
        TC_CHECK(nth < 10000);
    }
    TC_CHECK(nth > 50);
    free(b.data);
    twice[0] = twice[1] = seqs[0];
    b.fail_at = 0;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, tc_save(t, twice, NULL, 2, 100, &b));
    twice[1].generation++;
    ASSERT_STATUS(DEND_ERR_STALE, tc_save(t, twice, NULL, 2, 100, &b));
    ASSERT_STATUS(DEND_OK, tc_save(t, NULL, NULL, 0, 100, &b)); /* nobody */
    ASSERT_STATUS(DEND_OK, tss_try(u, &b, &err));
    free(b.data);
    tc_close(t);
    tc_close(u);
}

/* A sidecar's room that is full is not a damaged file, and one that is too long to
 * be saved is refused. */
static void test_cache_session_sidecars(void **state) {
    tc_cache *t = tss_cache(TC_F32, 24, 8, 100), *u = tss_cache(TC_F32, 48, 12, 100);
    dend_seq seqs[4], out[4];
    tc_buffer b;
    dend_error err;
    dend_reader reader;
    uint32_t n, handle, i;
    (void)state;
    tc_open(t, 1, 4, 0);
    tc_open(u, 1, 2, 0);
    tss_fill(t, seqs);
    b.fail_at = 0;
    ASSERT_STATUS(DEND_OK, tc_save(t, seqs, NULL, 4, 100, &b));
    for (i = 0; i < 3; i++) {
        uint64_t before = tc_digest_state(u);
        reader = tc_buffer_reader(&b);
        ASSERT_STATUS(i < 2 ? DEND_OK : DEND_ERR_NO_BLOCKS,
                      tc_restore(u, &reader, 100, out, NULL, 4, &n, &err));
        tc_walk(u);
        TC_CHECK(i < 2 || before == tc_digest_state(u));
        TC_CHECK(i == 2 || u->side[0].items[i].n == 3);
    }
    free(b.data);
    handle = t->c->records[dendp_cache_slot(t->c, seqs[3])->record].sidecar[0];
    t->side[0].items[handle - 1].n = 32; /* 260 bytes */
    ASSERT_STATUS(DEND_ERR_UNSUPPORTED, tc_save(t, seqs, NULL, 4, 100, &b));
    tc_close(t);
    tc_close(u);
}

/* The check does not care how bytes are cut into pieces, and sees every bit and length. */
static void test_cache_session_check(void **state) {
    unsigned char data[300];
    uint64_t whole[301];
    uint32_t n, bit, i;
    test_rng rng;
    (void)state;
    rng.state = 8;
    for (i = 0; i < sizeof data; i++) {
        data[i] = (unsigned char)test_below(&rng, 256);
    }
    for (n = 0; n <= 300; n++) {
        dendp_check h;
        uint32_t at = 0;
        dendp_check_begin(&h);
        dendp_check_add(&h, data, n);
        whole[n] = dendp_check_end(&h);
        dendp_check_begin(&h);
        while (at < n) {
            uint32_t piece = dendp_min_u32(n - at, test_below(&rng, 70));
            dendp_check_add(&h, data + at, piece);
            at += piece;
        }
        assert_true(whole[n] == dendp_check_end(&h));
        for (i = 0; i < n; i++) {
            assert_true(whole[i] != whole[n]);
        }
    }
    for (bit = 0; bit < 300 * 8; bit++) {
        dendp_check h;
        data[bit / 8] ^= (unsigned char)(1u << bit % 8);
        dendp_check_begin(&h);
        dendp_check_add(&h, data, 300);
        assert_true(whole[300] != dendp_check_end(&h));
        data[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    memset(data, 0, sizeof data); /* zeros count */
    for (n = 0; n <= 300; n++) {
        dendp_check h;
        dendp_check_begin(&h);
        dendp_check_add(&h, data, n);
        whole[n] = dendp_check_end(&h);
        for (i = 0; i < n; i++) {
            assert_true(whole[i] != whole[n]);
        }
    }
}

/* A pool whose bytes overflow is refused when it is measured. */
static void test_cache_session_block_bytes(void **state) {
    tc_cache *t = tc_new(TC_F32, 1, 1, 16);
    uint64_t bytes;
    (void)state;
    t->allocator = test_heap_allocator(&t->heap);
    t->groups[0].n_layers = t->groups[0].n_kv_heads = UINT32_MAX;
    t->groups[0].head_dim = 512;
    assert_null(dendp_cache_create(&t->desc, &t->allocator, &bytes));
    assert_int_equal(t->heap.n_allocs, 0);
    free(t);
}

static const struct CMUnitTest tests_cache_session[] = {
    cmocka_unit_test(test_cache_session_damaged),     cmocka_unit_test(test_cache_session_lies),
    cmocka_unit_test(test_cache_session_refusals),    cmocka_unit_test(test_cache_session_failing_io),
    cmocka_unit_test(test_cache_session_sidecars),    cmocka_unit_test(test_cache_session_check),
    cmocka_unit_test(test_cache_session_block_bytes),
};
