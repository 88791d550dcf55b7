/* The block table as a persistent array, and what it is for: forks that cost
 * the same whatever they share, memory that grows with what differs, drops
 * that never stall.
 */
#include "test_cache.h"

/* -- versions of a table against plain arrays ------------------------------------------
 * Sequences of the other test are short; here tables reach depth 3. */

#define TT_VERSIONS 12u
#define TT_BLOCKS 6000u
#define TT_NODES 3000u

typedef struct tt_version {
    bool live;
    dendp_table table;
    uint32_t n;
    uint32_t block[TT_BLOCKS];
} tt_version;

typedef struct tt_world {
    dendp_node_pool np;
    dendp_block_pool pool;
    test_heap heap;
    dend_allocator allocator;
    tc_refs refs;
    test_rng rng;
    tt_version versions[TT_VERSIONS];
    uint32_t uses[TT_BLOCKS];
} tt_world;

static tt_version *tt_pick(tt_world *w, bool live) {
    uint32_t at = test_below(&w->rng, TT_VERSIONS), i;
    for (i = 0; i < TT_VERSIONS; i++) {
        tt_version *v = &w->versions[(at + i) % TT_VERSIONS];
        if (v->live == live) {
            return v;
        }
    }
    return NULL;
}

static void tt_walk(tt_world *w) {
    uint32_t roots[TT_VERSIONS], i;
    for (i = 0; i < TT_VERSIONS; i++) {
        roots[i] = w->versions[i].live ? w->versions[i].table.root : DENDP_NONE;
    }
    tc_walk_nodes(&w->np, 1, roots, TT_VERSIONS, &w->refs);
}

/* Every version holds what its array says, at every index, and nothing behind. */
static void tt_compare(tt_world *w) {
    uint32_t i, j;
    memset(w->uses, 0, sizeof w->uses);
    for (i = 0; i < TT_VERSIONS; i++) {
        for (j = 0; w->versions[i].live && j < w->versions[i].n; j++) {
            w->uses[w->versions[i].block[j]]++;
        }
    }
    for (i = 0; i < TT_VERSIONS; i++) {
        const tt_version *v = &w->versions[i];
        if (!v->live) {
            continue;
        }
        TC_CHECK(v->table.n_blocks == v->n && v->table.depth == dendp_table_depth_for(v->n));
        for (j = 0; j < v->n; j++) {
            TC_CHECK(dendp_table_get(&w->np, &v->table, j) == v->block[j]);
            /* With nothing pending, exclusive means: no other version has this block. */
            TC_CHECK(w->np.n_pending > 0 ||
                     dendp_table_exclusive(&w->np, &v->table, 0, j) == (w->uses[v->block[j]] == 1));
        }
        for (; j < v->n + 40; j++) {
            TC_CHECK(dendp_table_get(&w->np, &v->table, j) == DENDP_NONE);
        }
        TC_CHECK(dendp_table_get(&w->np, &v->table, UINT32_MAX) == DENDP_NONE);
    }
}

static void tt_extend(tt_world *w, tt_version *v) {
    uint32_t k = 1 + test_below(&w->rng, test_below(&w->rng, 2) ? 40 : 700), end = v->n + k, need, i, before;
    dendp_node *leaf = NULL;
    need = 2 * dendp_table_depth_for(end) + k / 16 + 1; /* what an append without a copied tail may take */
    if (end > 3000 || !dendp_table_reserve(&w->np, 1, need, k)) {
        return;
    }
    before = w->np.n_free;
    for (i = v->n; i < end; i++) {
        if (!leaf || i % DENDP_FANOUT == 0) {
            leaf = dendp_table_open(&w->np, &v->table, 0, i);
        }
        v->block[i] = leaf->entry[i % DENDP_FANOUT].block = dendp_block_take(&w->pool);
    }
    TC_CHECK(before - w->np.n_free <= need);
    v->table.n_blocks = v->n = end;
}

static void tt_replace(tt_world *w, tt_version *v) {
    uint32_t i = test_below(&w->rng, v->n), before;
    dendp_node *leaf;
    if (!dendp_table_reserve(&w->np, 1, dendp_table_open_nodes(&v->table, i), 1)) {
        return;
    }
    before = w->np.n_free;
    leaf = dendp_table_open(&w->np, &v->table, 0, i);
    TC_CHECK(before - w->np.n_free <= v->table.depth);
    dendp_block_release(&w->pool, leaf->entry[i % DENDP_FANOUT].block);
    v->block[i] = leaf->entry[i % DENDP_FANOUT].block = dendp_block_take(&w->pool);
}

static void tt_cut(tt_world *w, tt_version *v) {
    uint32_t n = test_below(&w->rng, 6) == 0 ? 0 : test_below(&w->rng, v->n + 1), before;
    n = test_below(&w->rng, 3) == 0 ? n / 32 * 32 : n;
    n = test_below(&w->rng, 3) && v->n > 40 ? v->n - test_below(&w->rng, 40) : n;
    if (!dendp_table_reserve(&w->np, 1, v->table.depth, 0)) {
        return;
    }
    before = w->np.n_free;
    TC_CHECK(w->np.n_free >= v->table.depth);
    dendp_table_cut(&w->np, &v->table, 0, n);
    TC_CHECK(w->np.n_free + v->table.depth >= before || n == 0);
    v->n = n;
}

static void test_table_persistent(void **state) {
    tt_world *w = (tt_world *)calloc(1, sizeof *w);
    dendp_carver carver;
    uint32_t i, n_depth3 = 0, n_dry = 0;
    unsigned char *memory;
    uint64_t bytes = 0;
    (void)state;
    assert_non_null(w);
    w->rng.state = 99;
    w->allocator = test_heap_allocator(&w->heap);
    w->pool.n_blocks = TT_BLOCKS;
    w->pool.block_tokens = 16;
    w->pool.block_bytes = 8;
    w->pool.poison = true;
    w->np.n_nodes = TT_NODES;
    w->np.pools = &w->pool;
    memset(&carver, 0, sizeof carver);
    for (memory = NULL; bytes == 0;) { /* measure, then cut */
        dendp_block_pool_carve(&w->pool, &carver, false);
        dendp_node_pool_carve(&w->np, &carver);
        if (!memory) {
            memory = (unsigned char *)dendp_alloc(&w->allocator, carver.used);
            assert_non_null(memory);
            memset(&carver, 0, sizeof carver);
            carver.base = memory;
        } else {
            bytes = carver.used;
        }
    }
    dendp_block_pool_reset(&w->pool);
    dendp_node_pool_reset(&w->np);
    tc_refs_open(&w->refs, TT_NODES, TT_BLOCKS, TT_VERSIONS, 1);
    for (i = 0; i < 2500; i++) {
        tt_version *v = tt_pick(w, true), *fresh;
        uint32_t x = test_below(&w->rng, 100);
        if (!v || x < 3) {
            fresh = tt_pick(w, false);
            if (fresh) {
                memset(&fresh->table, 0, sizeof fresh->table);
                fresh->table.root = DENDP_NONE;
                fresh->n = 0;
                fresh->live = true;
            }
        } else if (x < 25) {
            fresh = tt_pick(w, false);
            if (fresh) {
                *fresh = *v;
                if (v->table.root != DENDP_NONE) {
                    w->np.heads[v->table.root].count++;
                }
            }
        } else if (x < 55) {
            tt_extend(w, v);
        } else if (x < 65 && v->n > 0) {
            tt_replace(w, v);
        } else if (x < 80) {
            tt_cut(w, v);
        } else if (x < 92) {
            dendp_node_release(&w->np, v->table.root);
            v->live = false;
        } else {
            dendp_node_reclaim(&w->np, test_below(&w->rng, 2) ? 1 : 5000);
        }
        n_depth3 += v && v->live && v->table.depth == 3 ? 1 : 0;
        n_dry += w->pool.n_free < 300 ? 1 : 0;
        if (i % 3 == 0) {
            tt_walk(w);
        }
        if (i % 8 == 0) {
            tt_compare(w);
        }
    }
    assert_true(n_depth3 > 300); /* else this test sees less than it says */
    assert_true(n_dry > 100);
    for (i = 0; i < TT_VERSIONS; i++) {
        if (w->versions[i].live) {
            dendp_node_release(&w->np, w->versions[i].table.root);
            w->versions[i].live = false;
        }
    }
    while (dendp_node_reclaim(&w->np, 7)) {
    }
    tt_walk(w);
    assert_int_equal(w->np.n_free, TT_NODES);
    assert_int_equal(w->pool.n_free, TT_BLOCKS);
    tc_refs_close(&w->refs);
    dendp_free(&w->allocator, memory, bytes);
    free(w);
}

/* Sizes of the tree, at their edges. */
static void test_table_depths(void **state) {
    (void)state;
    assert_int_equal(dendp_table_depth_for(0), 0);
    assert_int_equal(dendp_table_depth_for(1), 1);
    assert_int_equal(dendp_table_depth_for(32), 1);
    assert_int_equal(dendp_table_depth_for(33), 2);
    assert_int_equal(dendp_table_depth_for(1024), 2);
    assert_int_equal(dendp_table_depth_for(1025), 3);
    assert_int_equal(dendp_table_depth_for(32768), 3);
    assert_int_equal(dendp_table_depth_for(32769), 4);
    assert_int_equal(dendp_table_depth_for(1u << 28), 6); /* a context of 2^32 tokens */
}

/* -- helpers on whole caches ------------------------------------------------------------ */

static dend_seq tf_create(tc_cache *t) {
    dend_seq seq;
    ASSERT_STATUS(DEND_OK, dendp_cache_seq_create(t->c, &seq));
    return seq;
}

static dend_seq tf_fork(tc_cache *t, dend_seq parent) {
    dend_seq seq;
    ASSERT_STATUS(DEND_OK, dendp_cache_seq_fork(t->c, parent, 0, &seq));
    return seq;
}

static uint32_t tf_record(const tc_cache *t, dend_seq seq) {
    const dendp_slot *slot = dendp_cache_slot(t->c, seq);
    TC_CHECK(slot != NULL);
    return slot->record;
}

/* Appends n tokens first, first + 1, ... in one call. */
static dend_status tf_append(tc_cache *t, dend_seq seq, int32_t first, uint32_t n) {
    int32_t *tokens = (int32_t *)malloc((n + 1) * sizeof *tokens);
    dend_status status;
    uint32_t i;
    assert_non_null(tokens);
    for (i = 0; i < n; i++) {
        tokens[i] = first + (int32_t)i;
    }
    status = dendp_cache_append(t->c, dendp_cache_slot(t->c, seq), tokens, n);
    free(tokens);
    return status;
}

/* -- a fork changes two words -------------------------------------------------------------- */

/* Forks `parent` and holds every byte of the cache against the bytes before,
 * in which exactly what a fork may touch has been changed by hand: one record's
 * count, the child's slot, the parent's fork counter, and the cache's own
 * counters. Nodes, blocks, tables and everything else are thereby untouched. */
static dend_seq tf_fork_checked(tc_cache *t, dend_seq parent) {
    unsigned char *image = (unsigned char *)malloc((size_t)t->bytes);
    uint32_t free_slot = t->c->first_free_slot, record = tf_record(t, parent);
    dendp_cache *c = t->c;
    dend_seq child;
    uint64_t at;
    assert_non_null(image);
    memcpy(image, c, (size_t)t->bytes);
    child = tf_fork(t, parent);
    assert_int_equal(child.slot, free_slot);
    assert_int_equal(tf_record(t, child), record);
#define TF_AT(field) ((size_t)((const unsigned char *)&(field) - (const unsigned char *)c))
#define TF_PLUS(type, field, d)                                                                              \
    do {                                                                                                     \
        type value_;                                                                                         \
        memcpy(&value_, image + TF_AT(field), sizeof value_);                                                \
        value_ = (type)(value_ + (type)(d));                                                                 \
        memcpy(image + TF_AT(field), &value_, sizeof value_);                                                \
    } while (0)
    TF_PLUS(uint32_t, c->records[record].count, 1);
    TF_PLUS(uint64_t, c->slots[parent.slot].n_forks, 1);
    TF_PLUS(uint64_t, c->n_forks, 1);
    TF_PLUS(uint32_t, c->n_free_slots, -1);
    at = TF_AT(c->slots[child.slot]);
    memcpy(image + at, &c->slots[child.slot], sizeof c->slots[child.slot]);
    assert_int_equal(c->first_free_slot, c->slots[child.slot].next_free);
    memcpy(image + TF_AT(c->first_free_slot), &c->first_free_slot, sizeof c->first_free_slot);
#undef TF_AT
#undef TF_PLUS
    assert_memory_equal(image, c, (size_t)t->bytes);
    assert_int_equal(t->heap.n_allocs, 1);
    free(image);
    return child;
}

static void test_fork_long(void **state) {
    tc_cache *t = tc_new(TC_F16, 8200, 4, 131072);
    dend_seq a, b, c;
    (void)state;
    t->desc.poison = false;
    tc_open(t, 0, 0, 0);
    a = tf_create(t);
    tf_fork_checked(t, a); /* empty */
    ASSERT_STATUS(DEND_OK, tf_append(t, a, 0, 131072));
    assert_int_equal(tc_blocks_used(t, 0), 8192);
    b = tf_fork_checked(t, a);
    c = tf_fork_checked(t, b);
    assert_int_equal(tc_blocks_used(t, 0), 8192);
    assert_int_equal(t->c->records[tf_record(t, c)].count, 3);
    ASSERT_STATUS(DEND_ERR_CONTEXT_FULL, tf_append(t, c, 0, 1));
    tc_walk(t);
    tc_close(t);
}

static void test_fork_deep(void **state) {
    tc_cache *t = tc_new(TC_F16, 700, 10003, 10016);
    uint32_t i;
    dend_seq seq;
    (void)state;
    t->desc.poison = false;
    tc_open(t, 0, 0, 0);
    seq = tf_create(t);
    for (i = 0; i < 10000; i++) {
        ASSERT_STATUS(DEND_OK, tf_append(t, seq, (int32_t)i, 1));
        seq = tf_fork(t, seq);
    }
    seq = tf_fork_checked(t, seq);
    assert_int_equal(t->c->records[tf_record(t, seq)].len, 10000);
    assert_int_equal(t->c->n_block_copies, 0); /* each generation went on where its parent had ended */
    assert_int_equal(tc_blocks_used(t, 0), 625);
    for (i = 0; i < 10000; i++) {
        TC_CHECK(dendp_record_token(t->c, tf_record(t, seq), i) == (int32_t)i);
    }
    tc_walk(t);
    tc_close(t);
}

static void test_fork_many_groups(void **state) {
    tc_cache *t = tc_new(TC_F16, 40, 4, 600);
    uint32_t g;
    dend_seq a, b;
    (void)state;
    t->desc.n_groups = TC_GROUPS;
    for (g = 1; g < TC_GROUPS; g++) {
        t->groups[g] = t->groups[0];
    }
    tc_open(t, 0, 0, 0);
    a = tf_create(t);
    ASSERT_STATUS(DEND_OK, tf_append(t, a, 0, 520));
    b = tf_fork_checked(t, a);
    ASSERT_STATUS(DEND_OK, tf_append(t, b, 0, 1));
    ASSERT_STATUS(DEND_OK, tf_append(t, a, 0, 1));
    assert_int_equal(t->c->n_block_copies, TC_GROUPS);
    tc_walk(t);
    tc_close(t);
}

/* -- memory -------------------------------------------------------------------------------- */

/* Six branches of 64 tokens on a prefix of 4,096: at most 1.12 times the blocks of one. */
static void test_fork_branches_share(void **state) {
    tc_cache *t = tc_new(TC_F16, 400, 8, 4200);
    dend_seq root, branch[6];
    uint32_t i, one, all;
    (void)state;
    tc_open(t, 0, 0, 0);
    root = tf_create(t);
    ASSERT_STATUS(DEND_OK, tf_append(t, root, 0, 4096));
    for (i = 0; i < 6; i++) {
        branch[i] = tf_fork(t, root);
    }
    ASSERT_STATUS(DEND_OK, tf_append(t, branch[0], 9000, 64));
    one = tc_blocks_used(t, 0);
    assert_int_equal(one, 260);
    for (i = 1; i < 6; i++) {
        ASSERT_STATUS(DEND_OK, tf_append(t, branch[i], 9000 + 100 * (int32_t)i, 64));
    }
    all = tc_blocks_used(t, 0);
    assert_true(all * 100 <= one * 112);
    assert_int_equal(all, 256 + 6 * 4);
    for (i = 0; i < 6; i++) {
        TC_CHECK(dendp_record_token(t->c, tf_record(t, branch[i]), 4095) == 4095);
        TC_CHECK(dendp_record_token(t->c, tf_record(t, branch[i]), 4159) == 9063 + 100 * (int32_t)i);
    }
    tc_walk(t);
    tc_close(t);
}

/* Ten thousand live branches of one 1,000-token context: a block each, no more. */
static void test_fork_branches_many(void **state) {
    tc_cache *t = tc_new(TC_F16, 10064, 10001, 1100);
    dend_seq root, *branch = (dend_seq *)calloc(10000, sizeof *branch);
    uint32_t i, j;
    (void)state;
    assert_non_null(branch);
    t->desc.poison = false;
    tc_open(t, 0, 0, 0);
    root = tf_create(t);
    ASSERT_STATUS(DEND_OK, tf_append(t, root, 0, 1000)); /* 62 full blocks and half of one */
    for (i = 0; i < 10000; i++) {
        branch[i] = tf_fork(t, root);
    }
    assert_int_equal(tc_blocks_used(t, 0), 63);
    for (i = 0; i < 10000; i++) {
        ASSERT_STATUS(DEND_OK, tf_append(t, branch[i], 5000 + (int32_t)i, 3));
    }
    assert_int_equal(tc_blocks_used(t, 0), 63 + 9999); /* the first went on in place */
    assert_int_equal(t->c->n_block_copies, 9999);
    for (i = 0; i < 10000; i++) {
        uint32_t record = tf_record(t, branch[i]);
        TC_CHECK(dendp_record_token(t->c, record, 999) == 999);
        for (j = 0; j < 3; j++) {
            TC_CHECK(dendp_record_token(t->c, record, 1000 + j) == 5000 + (int32_t)(i + j));
        }
    }
    tc_walk(t);
    free(branch);
    tc_close(t);
}

/* -- the first append after a fork --------------------------------------------------------- */

/* 64 siblings on a half-full tail: one goes on in place, 63 copy, and whoever
 * is left alone at the end, with or without a copy, goes on in place. */
static void tf_siblings(uint32_t codec, uint32_t survivor) {
    tc_cache *t = tc_new(codec, 160, 66, 100);
    dend_seq seqs[65];
    uint64_t history[65], copies;
    uint32_t i, pos, used;
    tc_open(t, 0, 0, 0);
    seqs[64] = tf_create(t); /* the parent, of length 40 */
    ASSERT_STATUS(DEND_OK, tf_append(t, seqs[64], 0, 40));
    for (pos = 0, history[64] = 0; pos < 40; pos++) {
        history[64] = tc_history(history[64], (int32_t)pos);
        tc_put(t, tf_record(t, seqs[64]), pos, history[64]);
    }
    dendp_record_commit(t->c, tf_record(t, seqs[64]), 40);
    for (i = 0; i < 64; i++) {
        seqs[i] = tf_fork(t, seqs[64]);
    }
    for (i = 0; i < 64; i++) {
        ASSERT_STATUS(DEND_OK, tf_append(t, seqs[i], 100 + (int32_t)i, 1));
        assert_int_equal(t->c->n_block_copies, i);
        history[i] = tc_history(history[64], 100 + (int32_t)i);
        tc_put(t, tf_record(t, seqs[i]), 40, history[i]);
        dendp_record_commit(t->c, tf_record(t, seqs[i]), 41);
    }
    assert_int_equal(tc_blocks_used(t, 0), 3 + 63);
    tc_walk(t);
    for (i = 0; i < 64; i++) {
        uint64_t h = 0;
        for (pos = 0; pos < 40; pos++) {
            h = tc_history(h, (int32_t)pos);
            TC_CHECK(dendp_record_token(t->c, tf_record(t, seqs[i]), pos) == (int32_t)pos);
            tc_check_kv(t, tf_record(t, seqs[i]), pos, h);
        }
        TC_CHECK(dendp_record_token(t->c, tf_record(t, seqs[i]), 40) == 100 + (int32_t)i);
        tc_check_kv(t, tf_record(t, seqs[i]), 40, history[i]);
    }
    for (i = 0; i < 65; i++) {
        if (i != survivor) {
            ASSERT_STATUS(DEND_OK, dendp_cache_seq_drop(t->c, seqs[i]));
        }
    }
    dendp_node_reclaim(&t->c->nodes, 1000);
    tc_walk(t);
    copies = t->c->n_block_copies;
    used = tc_blocks_used(t, 0);
    assert_int_equal(used, 3);
    pos = survivor == 64 ? 40 : 41;
    ASSERT_STATUS(DEND_OK, tf_append(t, seqs[survivor], 200, 5));
    assert_int_equal(t->c->n_block_copies, copies);
    assert_int_equal(tc_blocks_used(t, 0), used);
    tc_put(t, tf_record(t, seqs[survivor]), pos, tc_history(history[survivor], 200));
    dendp_record_commit(t->c, tf_record(t, seqs[survivor]), pos + 1);
    tc_check_kv(t, tf_record(t, seqs[survivor]), pos - 1, history[survivor]);
    tc_walk(t);
    tc_close(t);
}

static void test_fork_siblings(void **state) {
    uint32_t codec;
    (void)state;
    for (codec = TC_F32; codec <= TC_TOY; codec++) {
        tf_siblings(codec, 64); /* the parent, which never appended */
        tf_siblings(codec, 0);  /* who went on in place */
        tf_siblings(codec, 1);  /* who copied first */
        tf_siblings(codec, 63);
    }
}

/* -- deferred release ------------------------------------------------------------------------ */

/* Dropping the sole owner of 131,072 tokens takes apart one node a call; the
 * blocks come back bit by bit, or at once for whoever needs them. */
static void tf_drop_long(bool in_a_hurry) {
    tc_cache *t = tc_new(TC_F16, 8192, 4, 131072);
    uint32_t calls = 0, used, before, nodes;
    dend_seq a, b;
    t->desc.poison = false;
    t->desc.release_budget = 1;
    tc_open(t, 0, 0, 0);
    a = tf_create(t);
    b = tf_create(t);
    ASSERT_STATUS(DEND_OK, tf_append(t, a, 0, 131072));
    assert_int_equal(t->c->pools[0].n_free, 0);
    ASSERT_STATUS(DEND_ERR_NO_BLOCKS, tf_append(t, b, 0, 1));
    nodes = t->c->nodes.n_free;
    ASSERT_STATUS(DEND_OK, dendp_cache_seq_drop(t->c, a));
    assert_int_equal(t->c->nodes.n_free, nodes + 1);
    tc_walk(t);
    if (in_a_hurry) {
        ASSERT_STATUS(DEND_OK, tf_append(t, b, 7, 131072));
        tc_walk(t);
        assert_int_equal(t->c->pools[0].n_free, 0);
        TC_CHECK(dendp_record_token(t->c, tf_record(t, b), 131071) == 131078);
    } else {
        used = tc_blocks_used(t, 0);
        while (t->c->nodes.n_pending > 0) { /* any drop does its share */
            before = t->c->nodes.n_free;
            a = tf_create(t);
            ASSERT_STATUS(DEND_OK, dendp_cache_seq_drop(t->c, a));
            assert_int_equal(t->c->nodes.n_free, before + 1);
            TC_CHECK(used - tc_blocks_used(t, 0) <= DENDP_FANOUT);
            used = tc_blocks_used(t, 0);
            calls++;
        }
        assert_int_equal(used, 0);
        assert_int_equal(calls, 8192 / 32 + 8192 / 1024); /* and one call was the drop itself */
        assert_int_equal(t->c->nodes.n_free, t->c->nodes.n_nodes);
    }
    tc_walk(t);
    tc_close(t);
}

static void test_cache_drop_long(void **state) {
    (void)state;
    tf_drop_long(false);
    tf_drop_long(true);
}

/* A budget of 0 reclaims nothing by itself, and still nothing is lost. */
static void test_cache_drop_budget_zero(void **state) {
    tc_cache *t = tc_new(TC_F32, 16, 3, 256);
    uint32_t i;
    (void)state;
    t->desc.release_budget = 0;
    tc_open(t, 0, 0, 0);
    for (i = 0; i < 50; i++) {
        dend_seq a = tf_create(t);
        ASSERT_STATUS(DEND_OK, tf_append(t, a, 0, 250));
        ASSERT_STATUS(DEND_OK, dendp_cache_seq_drop(t->c, a));
        assert_int_equal(tc_blocks_used(t, 0), 16);
        tc_walk(t);
    }
    tc_close(t);
}

/* -- random streams ----------------------------------------------------------------------------- */

static int tf_compare_u64(const void *a, const void *b) {
    uint64_t x, y;
    memcpy(&x, a, 8);
    memcpy(&y, b, 8);
    return x < y ? -1 : x > y ? 1 : 0;
}

/* 100,000 forks (of one parent, of chains, of created sequences) and as many
 * streams: all different. */
static void test_fork_streams_differ(void **state) {
    tc_cache *t = tc_new(TC_F32, 1, 8, 16);
    uint64_t *streams = (uint64_t *)calloc(100004, sizeof *streams);
    uint32_t n = 0, i;
    dend_seq root, a, b;
    (void)state;
    assert_non_null(streams);
    tc_open(t, 0, 0, 0);
    root = tf_create(t);
    streams[n++] = dendp_cache_slot(t->c, root)->stream;
    for (i = 0; i < 50000; i++) { /* children of one */
        a = tf_fork(t, root);
        streams[n++] = dendp_cache_slot(t->c, a)->stream;
        ASSERT_STATUS(DEND_OK, dendp_cache_seq_drop(t->c, a));
    }
    a = tf_create(t);
    streams[n++] = dendp_cache_slot(t->c, a)->stream;
    for (i = 0; i < 50000; i++) { /* a chain */
        b = tf_fork(t, a);
        streams[n++] = dendp_cache_slot(t->c, b)->stream;
        ASSERT_STATUS(DEND_OK, dendp_cache_seq_drop(t->c, a));
        a = b;
    }
    assert_int_equal(n, 100002);
    qsort(streams, n, sizeof *streams, tf_compare_u64);
    for (i = 1; i < n; i++) {
        TC_CHECK(streams[i] != streams[i - 1]);
    }
    free(streams);
    tc_close(t);
}

/* A child's stream depends on its parent's and on how often the parent forked
 * before: not on what others do in between, nor on slots; another seed, other streams. */
static void test_fork_streams_order(void **state) {
    uint64_t seen[3][4], first;
    uint32_t round, i;
    dend_seq p, q, child[4], other;
    (void)state;
    for (round = 0; round < 3; round++) {
        tc_cache *t = tc_new(TC_F32, 8, 16, 64);
        t->desc.seed = round == 2 ? 2 : 1;
        tc_open(t, 0, 0, 0);
        p = tf_create(t);
        q = tf_create(t);
        first = dendp_cache_slot(t->c, p)->stream;
        for (i = 0; i < 4; i++) {
            if (round == 1) { /* others fork, grow, go; the parent grows and gets same-stream twins */
                other = tf_fork(t, q);
                ASSERT_STATUS(DEND_OK, tf_append(t, q, 0, 1));
                ASSERT_STATUS(DEND_OK, tf_append(t, p, 0, 1));
                ASSERT_STATUS(DEND_OK, dendp_cache_seq_fork(t->c, p, DEND_FORK_SAME_STREAM, &child[0]));
                assert_true(dendp_cache_slot(t->c, child[0])->stream == first);
                if (i % 2) {
                    ASSERT_STATUS(DEND_OK, dendp_cache_seq_drop(t->c, other));
                }
            }
            child[i] = tf_fork(t, p);
            seen[round][i] = dendp_cache_slot(t->c, child[i])->stream;
            assert_true(seen[round][i] != first);
            assert_true(dendp_cache_slot(t->c, p)->stream == first);
        }
        tc_walk(t);
        tc_close(t);
    }
    assert_memory_equal(seen[0], seen[1], sizeof seen[0]);
    for (i = 0; i < 4; i++) {
        assert_true(seen[0][i] != seen[2][i]);
    }
}

/* -- creation ---------------------------------------------------------------------------------------- */

/* No memory, and sizes beyond any machine: NULL, nothing leaked. */
static void test_cache_create_fails(void **state) {
    tc_cache *t = tc_new(TC_F32, 4, 4, 64);
    test_heap heap;
    dend_allocator allocator = test_heap_allocator(&heap);
    uint64_t bytes;
    (void)state;
    heap.fail_at = 1;
    assert_null(dendp_cache_create(&t->desc, &allocator, &bytes));
    assert_int_equal(heap.n_allocs, 1);
    assert_int_equal(heap.n_live_bytes, 0);
    t->desc.n_blocks = 0xfffffff0u;
    t->groups[0].n_layers = t->groups[0].n_kv_heads = t->groups[0].head_dim = 65536;
    assert_null(dendp_cache_create(&t->desc, &allocator, &bytes));
    t->groups[0].n_layers = t->groups[0].n_kv_heads = 1;
    t->groups[0].head_dim = 8;
    t->desc.n_blocks = 4;
    t->desc.n_seqs = 0xfffffff0u; /* more nodes than numbers */
    assert_null(dendp_cache_create(&t->desc, &allocator, &bytes));
    assert_int_equal(heap.n_live_bytes, 0);
    free(t);
}

static const struct CMUnitTest tests_cache_table[] = {
    cmocka_unit_test(test_table_persistent),    cmocka_unit_test(test_table_depths),
    cmocka_unit_test(test_fork_long),           cmocka_unit_test(test_fork_deep),
    cmocka_unit_test(test_fork_many_groups),    cmocka_unit_test(test_fork_branches_share),
    cmocka_unit_test(test_fork_branches_many),  cmocka_unit_test(test_fork_siblings),
    cmocka_unit_test(test_cache_drop_long),     cmocka_unit_test(test_cache_drop_budget_zero),
    cmocka_unit_test(test_fork_streams_differ), cmocka_unit_test(test_fork_streams_order),
    cmocka_unit_test(test_cache_create_fails),
};
