/* What the three test files of the KV cache share: a cache with its allocator
 * and sidecars, a codec that checks how it is called, a walk over all counts,
 * and digests for "nothing has changed".
 */
#ifndef TEST_CACHE_H
#define TEST_CACHE_H

#include "dend_test.h"

/* Like assert_true, at no cost in inner loops while it holds. */
#define TC_CHECK(condition) ((condition) ? (void)0 : tc_fail(#condition, __FILE__, __LINE__))

static void tc_fail(const char *what, const char *file, int line) {
    print_error("does not hold: %s\n", what);
    _fail(file, line);
}

/* -- a codec with state in its tiles ---------------------------------------------
 * K tile: a head of 64 bytes, then [16][d] f32; V tile: [16][d] f32. It counts
 * its slots, keeps a checksum of them, and scrambles them when it is sealed; so
 * a seal or truncate that is missing, double or late fails a check here. */

#define TC_TOY_MAGIC 0x70e0c0deu

typedef struct tc_toy_head {
    uint32_t magic, n, sealed, pad_;
    uint64_t check;
} tc_toy_head;

static uint64_t tc_hash(uint64_t h, const void *data, size_t n) {
    const unsigned char *p = (const unsigned char *)data;
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        h = (h ^ word) * 0xff51afd7ed558ccdu;
        h ^= h >> 29;
    }
    for (; n > 0; p++, n--) {
        h = (h ^ *p) * 0x100000001b3u;
    }
    return h ^ h >> 32;
}

static uint64_t tc_toy_k_bytes(uint32_t d) {
    return 64 + (uint64_t)d * 64;
}

static uint64_t tc_toy_v_bytes(uint32_t d) {
    return (uint64_t)d * 64;
}

static float *tc_toy_k(void *k_tile) {
    return (float *)(void *)((unsigned char *)k_tile + 64);
}

static uint64_t tc_toy_sum(void *k_tile, void *v_tile, uint32_t d) {
    tc_toy_head *head = (tc_toy_head *)k_tile;
    uint64_t h = tc_hash(head->n * 2 + head->sealed, tc_toy_k(k_tile), (size_t)head->n * d * 4);
    return tc_hash(h, v_tile, (size_t)head->n * d * 4);
}

static void tc_toy_valid(void *k_tile, void *v_tile, uint32_t d) {
    tc_toy_head *head = (tc_toy_head *)k_tile;
    TC_CHECK(head->magic == TC_TOY_MAGIC);
    TC_CHECK(head->n <= 16 && head->sealed <= 1);
    TC_CHECK(head->check == tc_toy_sum(k_tile, v_tile, d));
}

static void tc_toy_scramble(void *tile, size_t bytes) {
    unsigned char *p = (unsigned char *)tile;
    size_t i;
    for (i = 0; i < bytes; i++) {
        p[i] ^= (unsigned char)(0x5a + i);
    }
}

/* Scrambles what is plain and the other way round. */
static void tc_toy_flip(void *k_tile, void *v_tile, uint32_t d) {
    tc_toy_scramble(tc_toy_k(k_tile), (size_t)d * 64);
    tc_toy_scramble(v_tile, (size_t)d * 64);
}

static void tc_toy_put(void *k_tile, void *v_tile, uint32_t d, uint32_t slot, const float *k,
                       const float *v) {
    tc_toy_head *head = (tc_toy_head *)k_tile;
    float *kt = tc_toy_k(k_tile) + (size_t)slot * d, *vt = (float *)v_tile + (size_t)slot * d;
    tc_toy_valid(k_tile, v_tile, d);
    TC_CHECK(!head->sealed);
    TC_CHECK(slot <= head->n); /* in order, or again */
    if (slot < head->n) {
        TC_CHECK(memcmp(kt, k, d * sizeof(float)) == 0 && memcmp(vt, v, d * sizeof(float)) == 0);
        return;
    }
    memcpy(kt, k, d * sizeof(float));
    memcpy(vt, v, d * sizeof(float));
    head->n++;
    head->check = tc_toy_sum(k_tile, v_tile, d);
}

static void tc_toy_get(const void *k_tile, const void *v_tile, uint32_t d, uint32_t slot, float *k,
                       float *v) {
    tc_toy_head head;
    unsigned char *copy = (unsigned char *)malloc((size_t)(tc_toy_k_bytes(d) + tc_toy_v_bytes(d)));
    unsigned char *copy_v = copy + tc_toy_k_bytes(d);
    TC_CHECK(copy != NULL);
    memcpy(copy, k_tile, (size_t)tc_toy_k_bytes(d));
    memcpy(copy_v, v_tile, (size_t)tc_toy_v_bytes(d));
    memcpy(&head, copy, sizeof head);
    tc_toy_valid(copy, copy_v, d);
    TC_CHECK(slot < head.n);
    if (head.sealed) {
        tc_toy_flip(copy, copy_v, d);
    }
    memcpy(k, tc_toy_k(copy) + (size_t)slot * d, d * sizeof(float));
    memcpy(v, (float *)(void *)copy_v + (size_t)slot * d, d * sizeof(float));
    free(copy);
}

static void tc_toy_seal(void *k_tile, void *v_tile, uint32_t d) {
    tc_toy_head *head = (tc_toy_head *)k_tile;
    tc_toy_valid(k_tile, v_tile, d);
    TC_CHECK(head->n == 16 && !head->sealed);
    tc_toy_flip(k_tile, v_tile, d);
    head->sealed = 1;
    head->check = tc_toy_sum(k_tile, v_tile, d);
}

static void tc_toy_truncate(void *k_tile, void *v_tile, uint32_t d, uint32_t n) {
    tc_toy_head *head = (tc_toy_head *)k_tile;
    TC_CHECK(n < 16);
    if (n == 0) { /* also how a new tile begins, whatever it holds */
        memset(head, 0, sizeof *head);
        head->magic = TC_TOY_MAGIC;
    }
    if (n > 0) {
        tc_toy_valid(k_tile, v_tile, d);
        if (head->sealed) {
            tc_toy_flip(k_tile, v_tile, d);
            head->sealed = 0;
        }
        head->n = head->n < n ? head->n : n;
    }
    memset(tc_toy_k(k_tile) + (size_t)head->n * d, 0xff, (size_t)(16 - head->n) * d * sizeof(float));
    memset((float *)v_tile + (size_t)head->n * d, 0xff, (size_t)(16 - head->n) * d * sizeof(float));
    head->check = tc_toy_sum(k_tile, v_tile, d);
}

static void tc_toy_copy(void *k_dst, void *v_dst, uint32_t dst, const void *k_src, const void *v_src,
                        uint32_t src, uint32_t n, uint32_t d) {
    float k[64], v[64];
    uint32_t i;
    TC_CHECK(d <= 64);
    for (i = 0; i < n; i++) {
        tc_toy_get(k_src, v_src, d, src + i, k, v);
        tc_toy_put(k_dst, v_dst, d, dst + i, k, v);
    }
}

enum { TC_F32, TC_F16, TC_Q8, TC_TOY };

static void tc_codec_get(uint32_t which, dend_isa isa, dendp_codec *out) {
    dendp_codec_get(which == TC_F32 ? DEND_KV_F32 : which == TC_Q8 ? DEND_KV_Q8_0 : DEND_KV_F16, isa, out);
    if (which == TC_TOY) {
        out->name = "toy";
        out->k_bytes = tc_toy_k_bytes;
        out->v_bytes = tc_toy_v_bytes;
        out->put_token = tc_toy_put;
        out->get_token = tc_toy_get;
        out->copy_slots = tc_toy_copy;
        out->score_tile = NULL;
        out->add_v_tiles = NULL;
        out->seal = tc_toy_seal;
        out->truncate = tc_toy_truncate;
    }
}

/* -- a sidecar: a counted list of (position, value) notes ------------------------ */

#define TC_SIDE_ITEMS 24u
#define TC_SIDE_NOTES 36u /* more than the 31 that a snapshot takes */

typedef struct tc_note {
    uint32_t pos, value;
} tc_note;

typedef struct tc_side_item {
    uint32_t count, n;
    tc_note notes[TC_SIDE_NOTES];
} tc_side_item;

typedef struct tc_side {
    uint32_t n_items;
    tc_side_item items[TC_SIDE_ITEMS]; /* handle h is items[h - 1] */
} tc_side;

static tc_side_item *tc_side_item_of(tc_side *side, uint32_t handle) {
    TC_CHECK(handle >= 1 && handle <= side->n_items);
    TC_CHECK(side->items[handle - 1].count > 0);
    return &side->items[handle - 1];
}

/* An empty list, held once; 0 when all are taken. */
static uint32_t tc_side_take(tc_side *side) {
    uint32_t i;
    for (i = 0; i < side->n_items; i++) {
        if (side->items[i].count == 0) {
            side->items[i].count = 1;
            side->items[i].n = 0;
            return i + 1;
        }
    }
    return 0;
}

static void tc_side_retain(void *user, uint32_t handle) {
    tc_side_item_of((tc_side *)user, handle)->count++;
}

static void tc_side_release(void *user, uint32_t handle) {
    tc_side_item *item = tc_side_item_of((tc_side *)user, handle);
    if (--item->count == 0) {
        memset(item->notes, 0xee, sizeof item->notes);
        item->n = 0;
    }
}

static uint32_t tc_side_clone(void *user, uint32_t handle) {
    tc_side *side = (tc_side *)user;
    tc_side_item *item = tc_side_item_of(side, handle);
    uint32_t copy;
    if (item->count == 1) {
        return handle;
    }
    copy = tc_side_take(side);
    if (copy) {
        side->items[copy - 1].n = item->n;
        memcpy(side->items[copy - 1].notes, item->notes, sizeof item->notes);
        item->count--;
    }
    return copy;
}

static void tc_side_rollback(void *user, uint32_t handle, uint32_t len) {
    tc_side_item *item = tc_side_item_of((tc_side *)user, handle);
    uint32_t i, kept = 0;
    TC_CHECK(item->count == 1);
    for (i = 0; i < item->n; i++) {
        if (item->notes[i].pos < len) {
            item->notes[kept++] = item->notes[i];
        }
    }
    item->n = kept;
}

static uint64_t tc_side_bytes(void *user, uint32_t handle) {
    return 4 + 8 * (uint64_t)tc_side_item_of((tc_side *)user, handle)->n;
}

static bool tc_side_save(void *user, uint32_t handle, void *dst) {
    tc_side_item *item = tc_side_item_of((tc_side *)user, handle);
    memcpy(dst, &item->n, 4);
    memcpy((unsigned char *)dst + 4, item->notes, (size_t)item->n * 8);
    return true;
}

static dend_status tc_side_load(void *user, const void *src, uint64_t bytes, uint32_t *handle) {
    tc_side *side = (tc_side *)user;
    uint32_t n;
    if (bytes < 4) {
        return DEND_ERR_FORMAT;
    }
    memcpy(&n, src, 4);
    if (n > TC_SIDE_NOTES || bytes != 4 + 8 * (uint64_t)n) {
        return DEND_ERR_FORMAT;
    }
    *handle = tc_side_take(side);
    if (!*handle) {
        return DEND_ERR_NO_BLOCKS;
    }
    side->items[*handle - 1].n = n;
    memcpy(side->items[*handle - 1].notes, (const unsigned char *)src + 4, (size_t)n * 8);
    return DEND_OK;
}

/* -- a cache under test ------------------------------------------------------------ */

#define TC_GROUPS 80u

/* Arrays of the walk below. */
typedef struct tc_refs {
    uint32_t *node, *stack;             /* [n_nodes] */
    uint32_t *block;                    /* [n_groups][n_blocks] */
    unsigned char *node_state, *pieces; /* [n_nodes], [n_groups][n_blocks] */
    uint32_t *record;                   /* [n_seqs] */
    uint32_t *roots;                    /* [(n_seqs + n_prefixes) * n_groups] */
} tc_refs;

typedef struct tc_cache {
    test_heap heap;
    dend_allocator allocator;
    dendp_cache_desc desc;
    dendp_group_desc groups[TC_GROUPS];
    tc_side side[2];
    dendp_sidecar_vtable side_vt[2];
    uint32_t codec;
    dendp_cache *c;
    uint64_t bytes;
    dendp_prefix_tree tree;
    dendp_snapshot snapshot;
    void *rest; /* what the two lie in */
    tc_refs refs;
    unsigned char *scratch; /* one tile */
} tc_cache;

static void tc_refs_open(tc_refs *refs, size_t n_nodes, size_t n_blocks, size_t n_seqs, size_t n_groups) {
    refs->node = (uint32_t *)calloc(n_nodes + 1, 4);
    refs->stack = (uint32_t *)calloc(n_nodes + 1, 4);
    refs->block = (uint32_t *)calloc(n_blocks * n_groups + 1, 4);
    refs->node_state = (unsigned char *)calloc(n_nodes + 1, 1);
    refs->pieces = (unsigned char *)calloc(n_blocks * n_groups + 1, 1);
    refs->record = (uint32_t *)calloc(n_seqs + 1, 4);
    refs->roots = (uint32_t *)calloc(n_seqs * n_groups + 1, 4);
    assert_non_null(refs->node);
    assert_non_null(refs->stack);
    assert_non_null(refs->block);
    assert_non_null(refs->node_state);
    assert_non_null(refs->pieces);
    assert_non_null(refs->record);
    assert_non_null(refs->roots);
}

static void tc_refs_close(tc_refs *refs) {
    free(refs->node);
    free(refs->stack);
    free(refs->block);
    free(refs->node_state);
    free(refs->pieces);
    free(refs->record);
    free(refs->roots);
}

/* One group of one layer, one head of width 8, f32; nothing created yet. */
static tc_cache *tc_new(uint32_t codec, uint32_t n_blocks, uint32_t n_seqs, uint32_t n_ctx) {
    tc_cache *t = (tc_cache *)calloc(1, sizeof *t);
    assert_non_null(t);
    t->codec = codec;
    tc_codec_get(codec, DEND_ISA_DEFAULT, &t->desc.codec);
    t->desc.n_groups = 1;
    t->groups[0].n_layers = t->groups[0].n_kv_heads = 1;
    t->groups[0].head_dim = 8;
    t->desc.groups = t->groups;
    t->desc.n_blocks = n_blocks;
    t->desc.block_tokens = 16;
    t->desc.n_seqs = n_seqs;
    t->desc.n_ctx = n_ctx;
    t->desc.n_logits = 4;
    t->desc.release_budget = 64;
    t->desc.seed = 1;
    t->desc.poison = true;
    return t;
}

/* Creates the cache, with n_sidecars (0..2) of the given sizes. */
static void tc_open(tc_cache *t, uint32_t n_sidecars, uint32_t items0, uint32_t items1) {
    dendp_carver carver;
    uint32_t i, j;
    t->allocator = test_heap_allocator(&t->heap);
    t->side[0].n_items = items0;
    t->side[1].n_items = items1;
    t->desc.n_sidecars = n_sidecars;
    for (i = 0; i < 2; i++) {
        dendp_sidecar_vtable *vt = &t->side_vt[i];
        assert_true(t->side[i].n_items <= TC_SIDE_ITEMS);
        for (j = 0; j < TC_SIDE_ITEMS; j++) { /* as after a release: digests take in free ones too */
            memset(t->side[i].items[j].notes, 0xee, sizeof t->side[i].items[j].notes);
        }
        vt->name = "toy";
        vt->user = &t->side[i];
        vt->retain = tc_side_retain;
        vt->release = tc_side_release;
        vt->clone_on_write = tc_side_clone;
        vt->rollback = tc_side_rollback;
        vt->bytes = tc_side_bytes;
        vt->save = tc_side_save;
        vt->load = tc_side_load;
        t->desc.sidecars[i] = vt;
    }
    t->c = dendp_cache_create(&t->desc, &t->allocator, &t->bytes);
    assert_non_null(t->c);
    assert_int_equal(t->heap.n_live_bytes, t->bytes);
    tc_refs_open(&t->refs, t->c->nodes.n_nodes, t->desc.n_blocks, t->desc.n_seqs + t->desc.n_prefixes,
                 t->desc.n_groups);
    memset(&carver, 0, sizeof carver);
    dendp_prefix_carve(&t->tree, &t->desc, &carver);
    dendp_snapshot_carve(&t->snapshot, t->c, &carver);
    t->rest = malloc((size_t)carver.used + 64);
    assert_non_null(t->rest);
    memset(t->rest, 0xa5, (size_t)carver.used + 64);
    memset(&carver, 0, sizeof carver);
    carver.base = (unsigned char *)t->rest + (64 - (uintptr_t)t->rest % 64) % 64;
    dendp_prefix_carve(&t->tree, &t->desc, &carver);
    dendp_snapshot_carve(&t->snapshot, t->c, &carver);
    dendp_prefix_open(&t->tree, t->c);
    t->snapshot.cache = t->c;
    t->scratch = (unsigned char *)test_heap_alloc(&t->heap, 65536, 64);
    t->heap.n_allocs--; /* the cache's own are counted */
    assert_non_null(t->scratch);
}

/* Frees everything; since creation the cache must have allocated nothing. */
static void tc_close(tc_cache *t) {
    assert_int_equal(t->heap.n_allocs, 1);
    assert_int_equal(t->heap.n_frees, 0);
    test_heap_free(&t->heap, t->scratch, 65536);
    dendp_free(&t->allocator, t->c, t->bytes);
    assert_int_equal(t->heap.n_live_bytes, 0);
    tc_refs_close(&t->refs);
    free(t->rest);
    free(t);
}

static uint32_t tc_blocks_used(const tc_cache *t, uint32_t g) {
    return t->c->pools[g].n_blocks - t->c->pools[g].n_free;
}

/* -- the count walk ------------------------------------------------------------------ */

enum { TC_UNSEEN, TC_REACHED, TC_PENDING, TC_FREE };

/* Counts every name of every node and block, starting from the given roots
 * (one entry for each record and group that names it) and the pending list, and
 * holds the result against the counts; free lists must hold all that is left. */
static void tc_walk_nodes(const dendp_node_pool *np, uint32_t n_groups, const uint32_t *roots,
                          uint32_t n_roots, tc_refs *refs) {
    uint32_t n_stack = 0, id, i, g, n, n_blocks = np->pools[0].n_blocks;
    memset(refs->node, 0, np->n_nodes * sizeof *refs->node);
    memset(refs->node_state, TC_UNSEEN, np->n_nodes);
    memset(refs->block, 0, (size_t)n_groups * n_blocks * sizeof *refs->block);
    memset(refs->pieces, TC_UNSEEN, (size_t)n_groups * n_blocks);
    for (id = np->first_pending, n = 0; id != DENDP_NONE; id = np->heads[id].next, n++) {
        TC_CHECK(id < np->n_nodes && refs->node_state[id] == TC_UNSEEN);
        refs->node_state[id] = TC_PENDING;
        refs->stack[n_stack++] = id;
    }
    TC_CHECK(n == np->n_pending);
    for (i = 0; i < n_roots; i++) {
        id = roots[i];
        if (id == DENDP_NONE) {
            continue;
        }
        TC_CHECK(id < np->n_nodes && refs->node_state[id] != TC_PENDING);
        refs->node[id]++;
        if (refs->node_state[id] == TC_UNSEEN) {
            refs->node_state[id] = TC_REACHED;
            refs->stack[n_stack++] = id;
        }
    }
    while (n_stack > 0) {
        const dendp_node *node;
        const dendp_node_head *head;
        id = refs->stack[--n_stack];
        node = &np->nodes[id];
        head = &np->heads[id];
        TC_CHECK(head->group < n_groups && head->level < DENDP_MAX_DEPTH);
        for (i = 0; i < DENDP_FANOUT; i++) {
            if (head->level == 0) {
                uint32_t block = node->entry[i].block;
                if (block != DENDP_NONE) {
                    TC_CHECK(block < n_blocks);
                    refs->block[head->group * n_blocks + block]++;
                }
                TC_CHECK(node->entry[i].slotmap == 0);
            } else if (node->child[i] != DENDP_NONE) {
                uint32_t child = node->child[i];
                TC_CHECK(child < np->n_nodes && refs->node_state[child] != TC_PENDING);
                TC_CHECK(np->heads[child].level + 1 == head->level && np->heads[child].group == head->group);
                refs->node[child]++;
                if (refs->node_state[child] == TC_UNSEEN) {
                    refs->node_state[child] = TC_REACHED;
                    refs->stack[n_stack++] = child;
                }
            }
        }
    }
    for (id = np->first_free, n = 0; id != DENDP_NONE; id = np->heads[id].next, n++) {
        TC_CHECK(id < np->n_nodes && refs->node_state[id] == TC_UNSEEN);
        refs->node_state[id] = TC_FREE;
    }
    TC_CHECK(n == np->n_free);
    for (id = 0; id < np->n_nodes; id++) {
        TC_CHECK(refs->node_state[id] != TC_UNSEEN); /* nothing has leaked */
        TC_CHECK(np->heads[id].count == refs->node[id]);
        TC_CHECK((refs->node[id] > 0) == (refs->node_state[id] == TC_REACHED));
    }
    for (g = 0; g < n_groups; g++) {
        const dendp_block_pool *pool = &np->pools[g];
        unsigned char *state = refs->pieces + (size_t)g * n_blocks;
        TC_CHECK(pool->n_blocks == n_blocks);
        for (id = pool->first_free, n = 0; id != DENDP_NONE; id = pool->next_free[id], n++) {
            TC_CHECK(id < n_blocks && state[id] == TC_UNSEEN);
            state[id] = TC_FREE;
        }
        TC_CHECK(n == pool->n_free);
        for (id = 0; id < n_blocks; id++) {
            TC_CHECK(pool->count[id] == refs->block[g * n_blocks + id]);
            TC_CHECK((pool->count[id] == 0) == (state[id] == TC_FREE));
            TC_CHECK(pool->count[id] == 0 || pool->ready[id] <= pool->fill[id]);
            TC_CHECK(pool->count[id] == 0 ||
                     pool->claimed[id] == pool->ready[id]); /* no batch is in flight */
            TC_CHECK(pool->count[id] == 0 || pool->fill[id] <= pool->block_tokens);
        }
    }
}

/* A tile of the toy codec must be sealed exactly when all its slots are ready. */
static void tc_walk_toy(const tc_cache *t, uint32_t g, uint32_t block) {
    const dendp_cache *c = t->c;
    uint32_t layer, head, tile, ready = c->pools[g].ready[block];
    for (layer = 0; layer < c->groups[g].desc.n_layers; layer++) {
        for (head = 0; head < c->groups[g].desc.n_kv_heads; head++) {
            for (tile = 0; tile < c->groups[g].tiles_per_block; tile++) {
                tc_toy_head h;
                memcpy(&h, dendp_cache_tile(c, g, block, layer, head, tile), sizeof h);
                TC_CHECK(h.magic == TC_TOY_MAGIC);
                TC_CHECK((h.sealed != 0) == (ready >= (tile + 1) * 16));
                TC_CHECK(h.n + tile * 16 >= (ready < (tile + 1) * 16 ? ready : (tile + 1) * 16));
            }
        }
    }
}

/* One table of a live record. */
static void tc_walk_table(const tc_cache *t, uint32_t record, uint32_t g) {
    const dendp_cache *c = t->c;
    const dendp_record *r = &c->records[record];
    const dendp_table *table = dendp_cache_table(c, record, g);
    uint32_t P = c->desc.block_tokens, i;
    TC_CHECK(table->n_blocks == dendp_div_up(r->len, P));
    TC_CHECK(table->depth == dendp_table_depth_for(table->n_blocks));
    TC_CHECK((table->root == DENDP_NONE) == (table->depth == 0));
    TC_CHECK(table->root == DENDP_NONE || c->nodes.heads[table->root].level + 1u == table->depth);
    TC_CHECK(table->root == DENDP_NONE || c->nodes.heads[table->root].group == g);
    TC_CHECK(table->first <= table->n_blocks && table->first * P <= r->n_ready);
    for (i = 0; i < dendp_div_up(table->n_blocks, DENDP_FANOUT) * DENDP_FANOUT; i++) {
        const dendp_node *leaf = dendp_table_leaf(&c->nodes, table, i);
        uint32_t block = leaf ? leaf->entry[i % DENDP_FANOUT].block : DENDP_NONE;
        TC_CHECK((block != DENDP_NONE) == (i >= table->first && i < table->n_blocks));
        TC_CHECK(dendp_table_get(&c->nodes, table, i) == block);
        if (block != DENDP_NONE) {
            const dendp_block_pool *pool = &c->pools[g];
            TC_CHECK(pool->fill[block] >= dendp_min_u32(P, r->len - i * P));
            TC_CHECK(r->n_ready <= i * P || pool->ready[block] >= dendp_min_u32(P, r->n_ready - i * P));
            if (t->codec == TC_TOY) {
                tc_walk_toy(t, g, block);
            }
        }
    }
}

/* The prefix tree: its lists, sums and buckets, and that every edge is found. */
static void tc_walk_tree(tc_cache *t) {
    const dendp_prefix_tree *p = &t->tree;
    const dendp_cache *c = t->c;
    uint32_t e, f, n, g, i, n_used = 0, n_pinned = 0, n_listed = 0, P = c->desc.block_tokens;
    uint64_t n_tokens = 0;
    for (e = p->first_free, n = 0; e != DENDP_NONE; e = p->entries[e].older, n++) {
        TC_CHECK(e < p->n_entries && n < p->n_entries && p->entries[e].len == 0);
    }
    TC_CHECK(n == p->n_free);
    for (e = 0; e < p->n_entries; e++) {
        const dendp_prefix *entry = &p->entries[e];
        dendp_prefix_text text;
        dendp_prefix_match match;
        uint32_t n_children = 0, n_held = entry->n_pins > 0 ? 1 : 0, from;
        if (entry->len == 0) {
            continue;
        }
        n_used++;
        n_pinned += entry->n_pins > 0 ? 1u : 0u;
        n_listed += entry->n_held == 0 ? 1u : 0u;
        from = dendp_prefix_from(p, e);
        n_tokens += entry->len - from;
        TC_CHECK(entry->len % P == 0 && entry->len > from && entry->len <= c->desc.n_ctx);
        TC_CHECK(entry->parent == DENDP_NONE || p->entries[entry->parent].len > 0);
        for (f = 0; f < p->n_entries; f++) { /* what hangs below it */
            uint32_t up = f;
            n_children += p->entries[f].len > 0 && p->entries[f].parent == e ? 1u : 0u;
            while (p->entries[f].len > 0 && p->entries[f].n_pins > 0 && up != DENDP_NONE && up != e) {
                up = p->entries[up].parent;
            }
            n_held += f != e && p->entries[f].len > 0 && p->entries[f].n_pins > 0 && up == e ? 1u : 0u;
        }
        TC_CHECK(n_children == entry->n_children && n_held == entry->n_held);
        for (g = 0; g < c->desc.n_groups; g++) {
            const dendp_table *table = dendp_prefix_table(p, e, g);
            TC_CHECK(table->n_blocks == entry->len / P &&
                     table->depth == dendp_table_depth_for(table->n_blocks));
            TC_CHECK(table->first <= table->n_blocks && (g > 0 || table->first == 0));
            for (i = 0; i < dendp_div_up(table->n_blocks, DENDP_FANOUT) * DENDP_FANOUT; i++) {
                const dendp_node *leaf = dendp_table_leaf(&c->nodes, table, i);
                uint32_t block = leaf ? leaf->entry[i % DENDP_FANOUT].block : DENDP_NONE;
                TC_CHECK((block != DENDP_NONE) == (i >= table->first && i < table->n_blocks));
                TC_CHECK(block == DENDP_NONE || c->pools[g].ready[block] == P);
                TC_CHECK(block == DENDP_NONE || t->codec != TC_TOY || c->pools[g].fill[block] == P);
            }
        }
        text.tokens = NULL;
        text.table = dendp_prefix_table(p, e, 0);
        match = dendp_prefix_find(p, &text, entry->len / P);
        TC_CHECK(match.full == e && match.partial == DENDP_NONE && match.n_blocks == entry->len / P);
        if (entry->n_held == 0) { /* ancestors were used later */
            for (f = entry->newer; f != DENDP_NONE && f != entry->parent; f = p->entries[f].newer) {
            }
            TC_CHECK(f == entry->parent || p->entries[entry->parent].n_held > 0);
        }
    }
    TC_CHECK(n_used + p->n_free == p->n_entries && n_tokens == p->n_tokens && n_pinned == p->n_pinned);
    for (e = p->newest, f = DENDP_NONE, n = 0; e != DENDP_NONE; f = e, e = p->entries[e].older, n++) {
        TC_CHECK(n < p->n_entries && p->entries[e].newer == f && p->entries[e].n_held == 0);
    }
    TC_CHECK(n == n_listed && p->oldest == f);
}

/* Everything that the structures promise about one another, at any time. */
static void tc_walk(tc_cache *t) {
    const dendp_cache *c = t->c;
    uint32_t n_seqs = c->desc.n_seqs, G = c->desc.n_groups, i, g, id, n, n_live = 0, n_waiting = 0, prev;
    uint32_t logits[64], side[TC_SIDE_ITEMS];
    assert_true(c->desc.n_logits <= 64);
    memset(t->refs.record, 0, n_seqs * sizeof *t->refs.record);
    for (i = 0; i < n_seqs; i++) { /* slots */
        TC_CHECK(c->slots[i].generation != 0);
        if (c->slots[i].record != DENDP_NONE) {
            TC_CHECK(c->slots[i].record < n_seqs);
            t->refs.record[c->slots[i].record]++;
            n_live++;
        }
    }
    for (id = c->first_free_slot, n = 0; id != DENDP_NONE; id = c->slots[id].next_free, n++) {
        TC_CHECK(id < n_seqs && n < n_seqs && c->slots[id].record == DENDP_NONE);
    }
    TC_CHECK(n == c->n_free_slots && n + n_live == n_seqs);
    memset(logits, 0, sizeof logits);
    for (i = 0, n_live = 0; i < n_seqs; i++) { /* records */
        const dendp_record *r = &c->records[i];
        TC_CHECK(r->count == t->refs.record[i]);
        for (g = 0; g < G; g++) {
            t->refs.roots[i * G + g] = r->count ? dendp_cache_table(c, i, g)->root : DENDP_NONE;
        }
        if (r->count == 0) {
            TC_CHECK(!r->queued);
            continue;
        }
        n_live++;
        TC_CHECK(r->n_ready <= r->len && r->len <= c->desc.n_ctx);
        TC_CHECK(r->queued == (r->n_ready < r->len || (r->want_logits && r->len > 0)));
        n_waiting += r->queued ? 1 : 0;
        if (r->logits_row != DENDP_NONE) {
            TC_CHECK(r->logits_row < c->desc.n_logits && r->n_ready == r->len);
            logits[r->logits_row]++;
        }
        for (g = 0; g < G; g++) {
            tc_walk_table(t, i, g);
        }
    }
    for (id = c->first_free_record, n = 0; id != DENDP_NONE; id = c->records[id].next, n++) {
        TC_CHECK(id < n_seqs && n < n_seqs && c->records[id].count == 0);
    }
    TC_CHECK(n + n_live == n_seqs);
    for (id = c->first_waiting, n = 0, prev = DENDP_NONE; id != DENDP_NONE; id = c->records[id].next, n++) {
        TC_CHECK(id < n_seqs && n < n_waiting && c->records[id].queued && c->records[id].prev == prev);
        prev = id;
    }
    TC_CHECK(n == n_waiting && c->last_waiting == prev);
    for (id = c->first_free_logits, n = 0; id != DENDP_NONE; id = c->logits_next[id], n++) {
        TC_CHECK(id < c->desc.n_logits && n < c->desc.n_logits && logits[id] == 0);
        logits[id] = DENDP_NONE;
    }
    TC_CHECK(n == c->n_free_logits);
    for (i = 0; i < c->desc.n_logits; i++) {
        TC_CHECK(logits[i] != 0 && c->logits_count[i] == (logits[i] == DENDP_NONE ? 0 : logits[i]));
    }
    for (g = 0; g < c->desc.n_sidecars; g++) {
        memset(side, 0, sizeof side);
        for (i = 0; i < n_seqs; i++) {
            uint32_t handle = c->records[i].count ? c->records[i].sidecar[g] : 0;
            TC_CHECK(handle <= t->side[g].n_items);
            side[handle ? handle - 1 : 0] += handle ? 1 : 0;
        }
        for (i = 0; i < t->side[g].n_items; i++) {
            TC_CHECK(side[i] == t->side[g].items[i].count);
        }
    }
    for (i = 0; i < t->tree.n_entries; i++) {
        for (g = 0; g < G; g++) {
            t->refs.roots[(n_seqs + i) * G + g] =
                t->tree.entries[i].len ? dendp_prefix_table(&t->tree, i, g)->root : DENDP_NONE;
        }
    }
    tc_walk_nodes(&c->nodes, G, t->refs.roots, (n_seqs + t->tree.n_entries) * G, &t->refs);
    tc_walk_tree(t);
}

/* Nobody has written to a free block. */
static void tc_walk_poison(const tc_cache *t) {
    uint32_t g, i;
    for (g = 0; g < t->c->desc.n_groups; g++) {
        const dendp_block_pool *pool = &t->c->pools[g];
        for (i = 0; i < pool->n_blocks && pool->poison; i++) {
            const unsigned char *p = dendp_block_data(pool, i);
            if (pool->count[i] == 0) {
                TC_CHECK(p[0] == 0xff && memcmp(p, p + 1, (size_t)pool->block_bytes - 1) == 0);
            }
        }
    }
}

/* -- digests ----------------------------------------------------------------------- */

/* Every byte that the cache and its sidecars own. */
static uint64_t tc_digest_bytes(const tc_cache *t) {
    return tc_hash(tc_hash(1, t->c, (size_t)t->bytes), t->side, sizeof t->side);
}

/* Everything that any live handle can reach, and the counters. A call that
 * failed for want of blocks may have taken pending nodes apart, and so changed
 * free lists and counts (the walk checks those), but nothing of this. */
static uint64_t tc_digest_state(const tc_cache *t) {
    const dendp_cache *c = t->c;
    uint64_t h = tc_hash(2, t->side, sizeof t->side);
    uint32_t i, g, b, P = c->desc.block_tokens, list[8];
    h = tc_hash(h, &c->n_streams, sizeof c->n_streams);
    h = tc_hash(h, &c->n_forks, sizeof c->n_forks);
    h = tc_hash(h, &c->n_block_copies, sizeof c->n_block_copies);
    for (i = c->first_waiting; i != DENDP_NONE; i = c->records[i].next) {
        h = tc_hash(h, &i, sizeof i);
    }
    for (i = 0; i < c->desc.n_seqs; i++) {
        const dendp_slot *s = &c->slots[i];
        if (s->record != DENDP_NONE) {
            list[0] = i;
            list[1] = s->record;
            list[2] = s->generation;
            h = tc_hash(h, list, 12);
            h = tc_hash(h, &s->stream, sizeof s->stream);
            h = tc_hash(h, &s->n_forks, sizeof s->n_forks);
            h = tc_hash(h, &s->user, sizeof s->user);
        }
    }
    for (i = 0; i < c->desc.n_seqs; i++) {
        const dendp_record *r = &c->records[i];
        if (r->count == 0) {
            continue;
        }
        list[0] = i;
        list[1] = r->count;
        list[2] = r->len;
        list[3] = r->n_ready;
        list[4] = r->logits_row;
        list[5] = (r->queued ? 2u : 0u) + (r->want_logits ? 1u : 0u);
        list[6] = r->sidecar[0];
        list[7] = r->sidecar[1];
        h = tc_hash(h, list, sizeof list);
        h = tc_hash(h, &r->hash, sizeof r->hash);
        for (g = 0; g < c->desc.n_groups; g++) {
            const dendp_table *table = dendp_cache_table(c, i, g);
            const dendp_block_pool *pool = &c->pools[g];
            h = tc_hash(h, table, sizeof *table);
            for (b = table->first; b < table->n_blocks; b++) {
                uint32_t block = dendp_table_get(&c->nodes, table, b);
                list[0] = block;
                list[1] = pool->fill[block];
                list[2] = pool->ready[block];
                h = tc_hash(h, list, 12);
                h = tc_hash(h, dendp_block_data(pool, block), (size_t)pool->block_bytes);
                if (pool->tokens) {
                    h = tc_hash(h, pool->tokens + (size_t)block * P, pool->fill[block] * sizeof(int32_t));
                    h = tc_hash(h, &pool->hash[block], sizeof(uint64_t));
                }
            }
        }
    }
    return h;
}

/* -- K and V that show any mix-up ------------------------------------------------- */

/* History hash of a token list grown by one: a chain of our own, so that a flaw
 * in the cache's prefix hash cannot hide behind it. */
static uint64_t tc_history(uint64_t history, int32_t token) {
    uint64_t word[2];
    word[0] = history + 77;
    word[1] = (uint64_t)(uint32_t)token;
    return tc_hash(0x1234567u, word, sizeof word);
}

/* K and V of one head: a hash of (all tokens up to and including pos, pos, group, layer, head, dimension). */
static void tc_kv(uint64_t history, uint32_t pos, uint32_t g, uint32_t layer, uint32_t head, uint32_t d,
                  float *k, float *v) {
    uint64_t word[2], h;
    uint32_t i;
    word[0] = history;
    word[1] = (uint64_t)pos << 32 | g << 20 | layer << 10 | head;
    h = tc_hash(0x9876543u, word, sizeof word);
    for (i = 0; i < d; i++) {
        h = h * 6364136223846793005u + 1442695040888963407u;
        k[i] = (float)(int32_t)(h >> 40) * (1.0f / 4194304.0f) - 2.0f;
        v[i] = (float)(int32_t)((h >> 16) & 0xffffffu) * (1.0f / 4194304.0f) - 2.0f;
    }
}

/* Writes K and V at `pos` of a record's sequence through the codec, in every group. */
static void tc_put(const tc_cache *t, uint32_t record, uint32_t pos, uint64_t history) {
    const dendp_cache *c = t->c;
    uint32_t P = c->desc.block_tokens, g, layer, head;
    float k[64], v[64];
    for (g = 0; g < c->desc.n_groups; g++) {
        const dendp_group *group = &c->groups[g];
        uint32_t block = dendp_table_get(&c->nodes, dendp_cache_table(c, record, g), pos / P);
        TC_CHECK(block != DENDP_NONE && group->desc.head_dim <= 64);
        for (layer = 0; layer < group->desc.n_layers; layer++) {
            for (head = 0; head < group->desc.n_kv_heads; head++) {
                unsigned char *tile = dendp_cache_tile(c, g, block, layer, head, pos % P / DENDP_TILE);
                tc_kv(history, pos, g, layer, head, group->desc.head_dim, k, v);
                c->desc.codec.put_token(tile, tile + group->k_bytes, group->desc.head_dim, pos % DENDP_TILE,
                                        k, v);
            }
        }
    }
}

/* K and V at `pos`, in every group that still holds it, are what tc_put wrote for this history: bit for bit,
 * up to what the codec makes of it. */
static void tc_check_kv(const tc_cache *t, uint32_t record, uint32_t pos, uint64_t history) {
    const dendp_cache *c = t->c;
    uint32_t P = c->desc.block_tokens, g, layer, head;
    float k[64], v[64], k2[64], v2[64];
    for (g = 0; g < c->desc.n_groups; g++) {
        const dendp_group *group = &c->groups[g];
        const dendp_table *table = dendp_cache_table(c, record, g);
        uint32_t d = group->desc.head_dim, block = dendp_table_get(&c->nodes, table, pos / P);
        if (pos / P < table->first) {
            continue;
        }
        TC_CHECK(block != DENDP_NONE);
        for (layer = 0; layer < group->desc.n_layers; layer++) {
            for (head = 0; head < group->desc.n_kv_heads; head++) {
                const unsigned char *tile = dendp_cache_tile(c, g, block, layer, head, pos % P / DENDP_TILE);
                tc_kv(history, pos, g, layer, head, d, k, v);
                if (t->codec == TC_F16 || t->codec == TC_Q8) {
                    c->desc.codec.put_token(t->scratch, t->scratch + 32768, d, pos % DENDP_TILE, k, v);
                    c->desc.codec.get_token(t->scratch, t->scratch + 32768, d, pos % DENDP_TILE, k, v);
                }
                c->desc.codec.get_token(tile, tile + group->k_bytes, d, pos % DENDP_TILE, k2, v2);
                TC_CHECK(memcmp(k, k2, d * sizeof(float)) == 0);
                TC_CHECK(memcmp(v, v2, d * sizeof(float)) == 0);
            }
        }
    }
}

/* -- bytes to and from snapshots --------------------------------------------------- */

typedef struct tc_buffer {
    unsigned char *data;
    size_t n, cap;
    uint32_t n_writes, fail_at; /* the write that fails; 0 = none */
} tc_buffer;

static bool tc_buffer_write(void *user, const void *data, size_t n) {
    tc_buffer *b = (tc_buffer *)user;
    if (++b->n_writes == b->fail_at) {
        return false;
    }
    if (b->n + n > b->cap) {
        b->cap = (b->n + n) * 2;
        b->data = (unsigned char *)realloc(b->data, b->cap);
        TC_CHECK(b->data != NULL);
    }
    if (n) {
        memcpy(b->data + b->n, data, n);
    }
    b->n += n;
    return true;
}

static bool tc_buffer_read(void *user, uint64_t offset, void *dst, size_t n) {
    tc_buffer *b = (tc_buffer *)user;
    TC_CHECK(offset + n <= b->n);
    if (++b->n_writes == b->fail_at) { /* or reads */
        return false;
    }
    memcpy(dst, b->data + offset, n);
    return true;
}

static dend_reader tc_buffer_reader(tc_buffer *b) {
    dend_reader reader;
    reader.read = tc_buffer_read;
    reader.size = b->n;
    reader.user = b;
    return reader;
}

static dend_writer tc_buffer_writer(tc_buffer *b) {
    dend_writer w;
    memset(b, 0, sizeof *b);
    w.write = tc_buffer_write;
    w.user = b;
    return w;
}

#define TC_FINGERPRINT 0x1234567890abcdefu

/* Saves n sequences; the cache stays as it is, byte for byte. */
static dend_status tc_save(tc_cache *t, const dend_seq *seqs, const uint64_t *tags, uint32_t n,
                           uint32_t n_vocab, tc_buffer *b) {
    uint64_t before = tc_digest_bytes(t), size = 0, fail_at = b->fail_at;
    dend_writer writer = tc_buffer_writer(b);
    dend_status status;
    b->fail_at = (uint32_t)fail_at;
    status = dendp_cache_save(&t->snapshot, seqs, tags, n, TC_FINGERPRINT, n_vocab, &writer, &size);
    TC_CHECK(before == tc_digest_bytes(t));
    TC_CHECK(status != DEND_OK || size == b->n);
    return status;
}

/* Restores up to cap sequences. */
static dend_status tc_restore(tc_cache *t, const dend_reader *reader, uint32_t n_vocab, dend_seq *out,
                              uint64_t *tags, uint32_t cap, uint32_t *n, dend_error *err) {
    return dendp_cache_restore(&t->snapshot, reader, TC_FINGERPRINT, n_vocab, out, tags, cap, n, err);
}

#endif
