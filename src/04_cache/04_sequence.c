/* ==========================================================================
 * >>04.04 SEQUENCE: handles, records, and the operations on them
 * ==========================================================================
 * Three levels, so that a fork touches one word of each of two:
 *
 *     handle  {slot, generation}         a value in the caller's hands
 *       -> slot    record, random stream, user pointer
 *         -> record  length, one block table a layer group, logits row,
 *                    sidecars                      (counted, shared by forks)
 *
 * FORK makes a new slot that names the same record, count + 1. Nothing else
 * happens, whatever the length, the depth of the family tree or the number of
 * layers. The first write through either handle clones the record, which is
 * O(groups), and path-copies the tables (04.02).
 *
 * APPEND reserves slots for tokens and writes down their ids; K and V follow
 * when a step computes them. Between the two they are *waiting*: positions
 * n_ready ... len-1. Records with waiting tokens stand in a queue. Forks of a
 * record with waiting tokens share them, and they are computed once.
 *
 *     a block that two sequences share:  len A = 22, len B = 19, P = 16
 *
 *         slot   0  1  2 | 3  4  5 | 6 ...     fill mark = 6
 *                 A and B    A only    free
 *
 * The first sequence whose length meets the fill mark appends in place, even
 * though the block is shared. A later one (B) copies the block: at most P-1
 * used slots. A sole owner always writes in place.
 *
 * SIDECARS are counted states that higher rooms hang on a record (grammar
 * state, method statistics, draft index): a handle each, and a vtable through
 * which the record carries them along fork, rewind, save and drop.
 *
 * Every operation reserves first and changes afterwards: a failure leaves the
 * cache as it was.
 * ======================================================================== */

#define DENDP_MAX_SIDECARS 4

/* How a record carries a state that it knows nothing of. Handle 0 = none. */
typedef struct dendp_sidecar_vtable {
    const char *name;
    void *user;
    void (*retain)(void *user, uint32_t handle);
    void (*release)(void *user, uint32_t handle);
    /* A handle that the caller may write: the same one if nobody else holds
     * it, else a copy (and one hold on `handle` fewer). 0 when full. */
    uint32_t (*clone_on_write)(void *user, uint32_t handle);
    /* Forget tokens at positions >= len. The handle is exclusively held. */
    void (*rollback)(void *user, uint32_t handle, uint32_t len);
    uint64_t (*bytes)(void *user, uint32_t handle); /* what save writes */
    bool (*save)(void *user, uint32_t handle, void *dst);
    /* A handle, held once, from what save wrote. FORMAT, or NO_BLOCKS when its room is full;
     * *handle is then as it was. */
    dend_status (*load)(void *user, const void *src, uint64_t bytes, uint32_t *handle);
} dendp_sidecar_vtable;

/* Layers that forget alike and store alike. */
typedef struct dendp_group_desc {
    uint32_t n_layers, n_kv_heads, head_dim;
    uint32_t window; /* 0 = attends to everything */
} dendp_group_desc;

typedef struct dendp_cache_desc {
    uint32_t n_groups;
    const dendp_group_desc *groups;
    uint32_t n_blocks;        /* of each group */
    uint32_t n_window_blocks; /* of each group with a window instead; 0 = n_blocks */
    uint32_t block_tokens, n_seqs, n_ctx, n_logits;
    uint32_t n_holds;    /* records that a batch may hold at once */
    uint32_t n_prefixes; /* tables beyond those of records (04.05) */
    uint32_t release_budget;
    dendp_codec codec;
    uint32_t n_sidecars;
    const dendp_sidecar_vtable *sidecars[DENDP_MAX_SIDECARS];
    uint64_t seed;
    bool poison; /* tests */
} dendp_cache_desc;

typedef struct dendp_group {
    dendp_group_desc desc;
    uint64_t k_bytes, tile_bytes; /* a tile is K, then V */
    uint32_t tiles_per_block;
} dendp_group;

typedef struct dendp_record {
    uint32_t count;      /* slots that name it, and the batch that holds it; 0 = free */
    uint32_t len;        /* tokens, waiting ones included */
    uint32_t n_ready;    /* tokens whose K and V are computed */
    uint32_t logits_row; /* or DENDP_NONE */
    uint64_t hash;       /* of its tokens */
    uint32_t prev, next; /* waiting queue; next also links free records */
    uint32_t n_reused;   /* leading tokens that were taken over from the prefix tree (04.05) */
    uint32_t list_at;    /* when n_ready gets here, the tree takes that prefix too; 0 = nowhere */
    bool queued;
    bool held;        /* by a batch that is under way */
    bool want_logits; /* of its last token */
    bool list;        /* a prompt: the tree takes it when it is computed */
    uint32_t sidecar[DENDP_MAX_SIDECARS];
} dendp_record;

typedef struct dendp_slot {
    uint32_t record; /* DENDP_NONE = free */
    uint32_t generation;
    uint64_t stream, n_forks;
    void *user;
    uint32_t next_free;
    bool reuse; /* takes prefixes from the tree, and leaves its own there */
} dendp_slot;

typedef struct dendp_cache {
    dendp_cache_desc desc;
    dendp_group *groups;     /* [n_groups] */
    dendp_block_pool *pools; /* [n_groups] */
    dendp_node_pool nodes;
    dendp_record *records; /* [n_records]: one for each slot and hold */
    dendp_table *tables;   /* [n_records][n_groups]: of record r, group g */
    dendp_slot *slots;     /* [n_seqs] */
    uint32_t n_records, first_free_record, first_free_slot, n_free_slots;
    uint32_t *logits_count; /* [n_logits] */
    uint32_t *logits_next;  /* [n_logits] free list */
    uint32_t first_free_logits, n_free_logits;
    uint32_t first_waiting, last_waiting; /* queue of records */
    uint64_t n_streams, n_forks, n_block_copies;
    bool closed; /* a callback of a session (04.06) runs: to it all handles are stale */
    /* Who holds blocks and nodes for nobody's sake gives some up when they run
     * short; false when there is nothing more. `record` (or DENDP_NONE) is about
     * to copy its tail, because others name it. NULL: nobody does. */
    bool (*give_up)(void *user, uint32_t record, uint32_t n_nodes);
    void *give_up_user;
} dendp_cache;

/* -- layout ----------------------------------------------------------------- */

/* Places everything; call once to measure and once to cut. kv_bytes is the
 * part that the block pools take. */
static void dendp_cache_carve(dendp_cache *c, const dendp_cache_desc *desc, dendp_carver *carver,
                              uint64_t *kv_bytes) {
    uint32_t g, depth = dendp_table_depth_for(dendp_div_up(desc->n_ctx, desc->block_tokens));
    uint64_t n_nodes, n_seqs = desc->n_seqs, n_records = n_seqs + desc->n_holds, before;
    dendp_group *groups = (dendp_group *)dendp_carve(carver, desc->n_groups, sizeof *groups);
    dendp_block_pool *pools = (dendp_block_pool *)dendp_carve(carver, desc->n_groups, sizeof *pools);
    c->desc = *desc;
    c->groups = groups;
    c->pools = pools;
    *kv_bytes = 0;
    for (g = 0; g < desc->n_groups; g++) {
        const dendp_group_desc *gd = &desc->groups[g];
        dendp_group group;
        dendp_block_pool pool;
        memset(&group, 0, sizeof group);
        memset(&pool, 0, sizeof pool);
        group.desc = *gd;
        group.k_bytes = desc->codec.k_bytes(gd->head_dim);
        group.tile_bytes = group.k_bytes + desc->codec.v_bytes(gd->head_dim);
        group.tiles_per_block = desc->block_tokens / DENDP_TILE;
        pool.n_blocks = gd->window && desc->n_window_blocks ? desc->n_window_blocks : desc->n_blocks;
        pool.block_tokens = desc->block_tokens;
        if (!dendp_mul((uint64_t)gd->n_layers * gd->n_kv_heads, group.tiles_per_block, &pool.block_bytes) ||
            !dendp_mul(pool.block_bytes, group.tile_bytes, &pool.block_bytes)) {
            carver->overflow = true;
            pool.block_bytes = 0;
        }
        pool.poison = desc->poison;
        before = carver->used;
        dendp_block_pool_carve(&pool, carver, g == 0);
        *kv_bytes += carver->used - before;
        if (groups) {
            groups[g] = group;
            pools[g] = pool;
        }
    }
    /* A path a record or prefix, a leaf for each few blocks, and the nodes above. */
    n_nodes = (uint64_t)desc->n_groups *
              ((n_records + desc->n_prefixes) * (depth + 1) + desc->n_blocks / 8 + 2 * depth + 8);
    if (n_nodes >= DENDP_NONE || n_records >= DENDP_NONE) {
        carver->overflow = true;
        n_nodes = n_records = 0;
    }
    c->n_records = (uint32_t)n_records;
    c->nodes.n_nodes = (uint32_t)n_nodes;
    dendp_node_pool_carve(&c->nodes, carver);
    c->nodes.pools = pools;
    c->records = (dendp_record *)dendp_carve(carver, n_records, sizeof *c->records);
    c->tables = (dendp_table *)dendp_carve(carver, n_records * desc->n_groups, sizeof *c->tables);
    c->slots = (dendp_slot *)dendp_carve(carver, n_seqs, sizeof *c->slots);
    c->logits_count = (uint32_t *)dendp_carve(carver, desc->n_logits, sizeof(uint32_t));
    c->logits_next = (uint32_t *)dendp_carve(carver, desc->n_logits, sizeof(uint32_t));
}

/* Everything free. */
static void dendp_cache_reset(dendp_cache *c) {
    uint32_t i;
    for (i = 0; i < c->desc.n_groups; i++) {
        dendp_block_pool_reset(&c->pools[i]);
    }
    dendp_node_pool_reset(&c->nodes);
    for (i = 0; i < c->n_records; i++) {
        memset(&c->records[i], 0, sizeof c->records[i]);
        c->records[i].next = i + 1 < c->n_records ? i + 1 : DENDP_NONE;
    }
    for (i = 0; i < c->desc.n_seqs; i++) {
        memset(&c->slots[i], 0, sizeof c->slots[i]);
        c->slots[i].record = DENDP_NONE;
        c->slots[i].generation = 1;
        c->slots[i].next_free = i + 1 < c->desc.n_seqs ? i + 1 : DENDP_NONE;
    }
    for (i = 0; i < c->desc.n_logits; i++) {
        c->logits_count[i] = 0;
        c->logits_next[i] = i + 1 < c->desc.n_logits ? i + 1 : DENDP_NONE;
    }
    c->first_free_record = c->first_free_slot = 0;
    c->n_free_slots = c->desc.n_seqs;
    c->first_free_logits = c->desc.n_logits ? 0 : DENDP_NONE;
    c->n_free_logits = c->desc.n_logits;
    c->first_waiting = c->last_waiting = DENDP_NONE;
    c->n_streams = c->n_forks = c->n_block_copies = 0;
    c->closed = false;
}

/* Creates a cache in one allocation of *bytes, for engines and for tests that
 * need no model. Free it with dendp_free(allocator, cache, bytes). */
static DENDP_UNUSED dendp_cache *dendp_cache_create(const dendp_cache_desc *desc,
                                                    const dend_allocator *allocator, uint64_t *bytes) {
    dendp_cache measure, *c;
    dendp_carver carver;
    uint64_t kv_bytes;
    memset(&carver, 0, sizeof carver);
    memset(&measure, 0, sizeof measure);
    dendp_carve(&carver, 1, sizeof *c);
    dendp_cache_carve(&measure, desc, &carver, &kv_bytes);
    *bytes = carver.used;
    if (carver.overflow) {
        return NULL;
    }
    c = (dendp_cache *)dendp_alloc(allocator, *bytes);
    if (c) {
        memset(&carver, 0, sizeof carver);
        carver.base = (unsigned char *)c;
        dendp_carve(&carver, 1, sizeof *c);
        memset(c, 0, sizeof *c);
        dendp_cache_carve(c, desc, &carver, &kv_bytes);
        dendp_cache_reset(c);
    }
    return c;
}

/* The table of record `record` and group `g`. */
static dendp_table *dendp_cache_table(const dendp_cache *c, uint32_t record, uint32_t g) {
    return &c->tables[(size_t)record * c->desc.n_groups + g];
}

/* K tile of (block, layer in group, KV head, tile in block); V follows k_bytes behind. */
static unsigned char *dendp_cache_tile(const dendp_cache *c, uint32_t g, uint32_t block, uint32_t layer,
                                       uint32_t head, uint32_t tile) {
    const dendp_group *group = &c->groups[g];
    uint64_t at = ((uint64_t)layer * group->desc.n_kv_heads + head) * group->tiles_per_block + tile;
    return dendp_block_data(&c->pools[g], block) + at * group->tile_bytes;
}

/* Blocks that an append may take at once, in the group that has fewest. */
static DENDP_UNUSED uint32_t dendp_cache_blocks_free(const dendp_cache *c) {
    uint32_t g, n = c->pools[0].n_free;
    for (g = 1; g < c->desc.n_groups; g++) {
        n = dendp_min_u32(n, c->pools[g].n_free);
    }
    return n;
}

/* -- logits rows ------------------------------------------------------------- */

/* A row with count 1, or DENDP_NONE. */
static uint32_t dendp_logits_take(dendp_cache *c) {
    uint32_t row = c->first_free_logits;
    if (row != DENDP_NONE) {
        c->first_free_logits = c->logits_next[row];
        c->logits_count[row] = 1;
        c->n_free_logits--;
    }
    return row;
}

/* One name fewer of a row; NONE is fine. */
static void dendp_logits_release(dendp_cache *c, uint32_t row) {
    if (row != DENDP_NONE && --c->logits_count[row] == 0) {
        c->logits_next[row] = c->first_free_logits;
        c->first_free_logits = row;
        c->n_free_logits++;
    }
}

/* Lets go of a record's row. */
static void dendp_logits_drop(dendp_cache *c, dendp_record *r) {
    uint32_t row = r->logits_row;
    r->logits_row = DENDP_NONE;
    dendp_logits_release(c, row);
}

/* -- the waiting queue -------------------------------------------------------- */

/* Puts the record into the queue, or takes it out, as its state asks. */
static void dendp_queue_update(dendp_cache *c, uint32_t id) {
    dendp_record *r = &c->records[id];
    bool waits = r->count > 0 && (r->n_ready < r->len || (r->want_logits && r->len > 0));
    if (waits && !r->queued) {
        r->prev = c->last_waiting;
        r->next = DENDP_NONE;
        if (c->last_waiting != DENDP_NONE) {
            c->records[c->last_waiting].next = id;
        } else {
            c->first_waiting = id;
        }
        c->last_waiting = id;
    } else if (!waits && r->queued) {
        if (r->prev != DENDP_NONE) {
            c->records[r->prev].next = r->next;
        } else {
            c->first_waiting = r->next;
        }
        if (r->next != DENDP_NONE) {
            c->records[r->next].prev = r->prev;
        } else {
            c->last_waiting = r->prev;
        }
    }
    r->queued = waits;
}

/* -- records ------------------------------------------------------------------ */

/* An empty record with count 1. There is one for every slot and hold, so it cannot fail. */
static uint32_t dendp_record_take(dendp_cache *c) {
    uint32_t id = c->first_free_record, g;
    dendp_record *r = &c->records[id];
    c->first_free_record = r->next;
    memset(r, 0, sizeof *r);
    r->count = 1;
    r->logits_row = r->prev = r->next = DENDP_NONE;
    for (g = 0; g < c->desc.n_groups; g++) {
        dendp_table *t = dendp_cache_table(c, id, g);
        memset(t, 0, sizeof *t);
        t->root = DENDP_NONE;
    }
    return id;
}

/* One name fewer; the last one releases all that the record holds. */
static void dendp_record_release(dendp_cache *c, uint32_t id) {
    dendp_record *r = &c->records[id];
    uint32_t i;
    if (--r->count > 0) {
        return;
    }
    dendp_queue_update(c, id);
    dendp_logits_drop(c, r);
    for (i = 0; i < c->desc.n_groups; i++) {
        dendp_node_release(&c->nodes, dendp_cache_table(c, id, i)->root);
    }
    for (i = 0; i < c->desc.n_sidecars; i++) {
        if (r->sidecar[i]) {
            c->desc.sidecars[i]->release(c->desc.sidecars[i]->user, r->sidecar[i]);
        }
    }
    r->next = c->first_free_record;
    c->first_free_record = id;
}

/* A batch that is under way names the record, at most once: it and its blocks
 * stay as they are, since whoever wants to change them must clone them. */
static void dendp_record_hold(dendp_cache *c, uint32_t id) {
    c->records[id].count++;
    c->records[id].held = true;
}

static void dendp_record_let_go(dendp_cache *c, uint32_t id) {
    c->records[id].held = false;
    dendp_record_release(c, id);
}

/* True when a held record is of no interest to any sequence. */
static bool dendp_record_orphaned(const dendp_cache *c, uint32_t id) {
    return c->records[id].held && c->records[id].count == 1;
}

/* The slot's record, cloned if others name it too. */
static uint32_t dendp_record_own(dendp_cache *c, dendp_slot *slot) {
    uint32_t old = slot->record, id, i;
    dendp_record *from = &c->records[old], *to;
    if (from->count == 1) {
        return old;
    }
    id = dendp_record_take(c);
    to = &c->records[id];
    *to = *from;
    to->count = 1;
    to->queued = to->held = false;
    to->prev = to->next = DENDP_NONE;
    if (to->logits_row != DENDP_NONE) {
        c->logits_count[to->logits_row]++;
    }
    for (i = 0; i < c->desc.n_groups; i++) {
        dendp_table *t = dendp_cache_table(c, id, i);
        *t = *dendp_cache_table(c, old, i);
        if (t->root != DENDP_NONE) {
            c->nodes.heads[t->root].count++;
        }
    }
    for (i = 0; i < c->desc.n_sidecars; i++) {
        if (to->sidecar[i]) {
            c->desc.sidecars[i]->retain(c->desc.sidecars[i]->user, to->sidecar[i]);
        }
    }
    from->count--;
    slot->record = id;
    dendp_queue_update(c, id);
    return id;
}

/* -- handles ------------------------------------------------------------------ */

/* The slot of a live handle, or NULL. */
static dendp_slot *dendp_cache_slot(const dendp_cache *c, dend_seq seq) {
    dendp_slot *slot;
    if (seq.slot >= c->desc.n_seqs || c->closed) {
        return NULL;
    }
    slot = &c->slots[seq.slot];
    return slot->generation == seq.generation && slot->record != DENDP_NONE ? slot : NULL;
}

static dendp_slot *dendp_slot_take(dendp_cache *c, dend_seq *out) {
    dendp_slot *slot;
    if (c->first_free_slot == DENDP_NONE) {
        return NULL;
    }
    slot = &c->slots[c->first_free_slot];
    out->slot = c->first_free_slot;
    out->generation = slot->generation;
    c->first_free_slot = slot->next_free;
    c->n_free_slots--;
    slot->n_forks = 0;
    slot->user = NULL;
    slot->reuse = false;
    return slot;
}

static dend_status dendp_cache_seq_create(dendp_cache *c, dend_seq *out) {
    dendp_slot *slot = dendp_slot_take(c, out);
    if (!slot) {
        return DEND_ERR_NO_SEQUENCES;
    }
    slot->record = dendp_record_take(c);
    slot->stream = dendp_hash2(c->desc.seed, ++c->n_streams);
    slot->reuse = true;
    return DEND_OK;
}

/* The whole of a fork. Its stream depends on the parent's stream and on how
 * often the parent forked before, never on time or threads. */
static dend_status dendp_cache_seq_fork(dendp_cache *c, dend_seq parent, uint32_t flags, dend_seq *out) {
    dendp_slot *from = dendp_cache_slot(c, parent), *slot;
    dend_seq child;
    if (!from) {
        return DEND_ERR_STALE;
    }
    slot = dendp_slot_take(c, &child);
    if (!slot) {
        return DEND_ERR_NO_SEQUENCES;
    }
    slot->record = from->record;
    c->records[slot->record].count++;
    slot->stream = flags & DEND_FORK_SAME_STREAM ? from->stream : dendp_hash2(from->stream, ++from->n_forks);
    c->n_forks++;
    *out = child;
    return DEND_OK;
}

static dend_status dendp_cache_seq_drop(dendp_cache *c, dend_seq seq) {
    dendp_slot *slot = dendp_cache_slot(c, seq);
    uint32_t record;
    if (!slot) {
        return DEND_ERR_STALE;
    }
    record = slot->record;
    slot->record = DENDP_NONE;
    slot->generation = slot->generation == UINT32_MAX ? 1 : slot->generation + 1;
    slot->next_free = c->first_free_slot;
    c->first_free_slot = seq.slot;
    c->n_free_slots++;
    dendp_record_release(c, record);
    dendp_node_reclaim(&c->nodes, c->desc.release_budget);
    return DEND_OK;
}

/* -- reserving ------------------------------------------------------------------- */

/* Lets whoever holds blocks for nobody's sake give some up; false when nothing was. */
static bool dendp_cache_give_up(dendp_cache *c, uint32_t record, uint32_t n_nodes) {
    return c->give_up && c->give_up(c->give_up_user, record, n_nodes);
}

/* True when n_nodes nodes and n_blocks blocks of every group are free. */
static bool dendp_cache_reserve(dendp_cache *c, uint32_t n_nodes, uint32_t n_blocks) {
    while (!dendp_table_reserve(&c->nodes, c->desc.n_groups, n_nodes, n_blocks)) {
        if (!dendp_cache_give_up(c, DENDP_NONE, n_nodes)) {
            return false;
        }
    }
    return true;
}

/* -- append -------------------------------------------------------------------- */

/* True when slots from `len` on may be written into the tail block as it is. */
static bool dendp_tail_in_place(const dendp_cache *c, uint32_t record, uint32_t g) {
    const dendp_record *r = &c->records[record];
    const dendp_table *t = dendp_cache_table(c, record, g);
    uint32_t offset = r->len % c->desc.block_tokens, index = r->len / c->desc.block_tokens;
    if (offset == 0 || c->pools[g].fill[dendp_table_get(&c->nodes, t, index)] == offset) {
        return true;
    }
    return r->count == 1 && dendp_table_exclusive(&c->nodes, t, g, index);
}

/* The same of all groups. */
static bool dendp_tails_in_place(const dendp_cache *c, uint32_t record) {
    uint32_t g;
    for (g = 0; g < c->desc.n_groups && dendp_tail_in_place(c, record, g); g++) {
    }
    return g == c->desc.n_groups;
}

/* Tells the codec that only the first n slots of an exclusively owned block remain. */
static void dendp_block_truncate(dendp_cache *c, uint32_t g, uint32_t block, uint32_t n) {
    const dendp_group *group = &c->groups[g];
    uint32_t layer, head, tile;
    if (c->desc.codec.truncate) {
        for (layer = 0; layer < group->desc.n_layers; layer++) {
            for (head = 0; head < group->desc.n_kv_heads; head++) {
                for (tile = n / DENDP_TILE; tile < group->tiles_per_block; tile++) {
                    unsigned char *k = dendp_cache_tile(c, g, block, layer, head, tile);
                    uint32_t left = tile == n / DENDP_TILE ? n % DENDP_TILE : 0;
                    c->desc.codec.truncate(k, k + group->k_bytes, group->desc.head_dim, left);
                }
            }
        }
    }
    c->pools[g].ready[block] = (uint16_t)dendp_min_u32(c->pools[g].ready[block], n);
    c->pools[g].claimed[block] = c->pools[g].ready[block];
}

/* Makes the tail of group g ready to take slots from r->len on: in place, or
 * in a copy of the block. */
static void dendp_tail_open(dendp_cache *c, uint32_t record, uint32_t g) {
    const dendp_record *r = &c->records[record];
    dendp_table *t = dendp_cache_table(c, record, g);
    dendp_block_pool *pool = &c->pools[g];
    uint32_t P = c->desc.block_tokens, offset = r->len % P, index = r->len / P, block, copy;
    dendp_node *leaf;
    if (offset == 0) {
        return;
    }
    block = dendp_table_get(&c->nodes, t, index);
    if (pool->fill[block] == offset) {
        return;
    }
    if (dendp_table_exclusive(&c->nodes, t, g, index)) {
        dendp_block_truncate(c, g, block, offset);
        return;
    }
    leaf = dendp_table_open(&c->nodes, t, g, index);
    copy = dendp_block_take(pool);
    memcpy(dendp_block_data(pool, copy), dendp_block_data(pool, block), (size_t)pool->block_bytes);
    pool->ready[copy] = pool->claimed[copy] = pool->ready[block];
    if (pool->tokens) {
        memcpy(pool->tokens + (size_t)copy * P, pool->tokens + (size_t)block * P, offset * sizeof(int32_t));
        pool->hash[copy] = pool->hash[block];
    }
    leaf->entry[index % DENDP_FANOUT].block = copy;
    dendp_block_release(pool, block);
    dendp_block_truncate(c, g, copy, offset);
    c->n_block_copies++;
}

/* Appends n tokens: reserves their slots in every group and writes down their
 * ids. CONTEXT_FULL or NO_BLOCKS change nothing. */
static dend_status dendp_cache_append(dendp_cache *c, dendp_slot *slot, const int32_t *tokens, size_t n) {
    uint32_t P = c->desc.block_tokens, G = c->desc.n_groups, g, i, record = slot->record;
    uint32_t len = c->records[record].len, end, n_old, n_new, need_blocks, need_nodes;
    dendp_record *r;
    if (n == 0) {
        return DEND_OK;
    }
    if (n > c->desc.n_ctx - len) {
        return DEND_ERR_CONTEXT_FULL;
    }
    end = len + (uint32_t)n;
    n_old = dendp_div_up(len, P);
    n_new = dendp_div_up(end, P);
    need_nodes = G * (3 * dendp_table_depth_for(n_new) + (n_new - n_old) / (DENDP_FANOUT / 2) + 1);
    for (;;) {
        bool copies = !dendp_tails_in_place(c, record);
        need_blocks = n_new - n_old + (copies ? 1u : 0u);
        if (need_blocks == 0 || dendp_table_reserve(&c->nodes, G, need_nodes, need_blocks)) {
            break;
        }
        if (copies && dendp_tails_in_place(c, record)) { /* only deferred releases named the tail too */
            continue;
        }
        if (!dendp_cache_give_up(c, copies ? record : DENDP_NONE, need_nodes)) {
            return DEND_ERR_NO_BLOCKS;
        }
    }
    record = dendp_record_own(c, slot);
    r = &c->records[record];
    for (g = 0; g < G; g++) {
        dendp_table *t = dendp_cache_table(c, record, g);
        dendp_block_pool *pool = &c->pools[g];
        dendp_node *leaf = NULL;
        dendp_tail_open(c, record, g);
        for (i = n_old; i < n_new; i++) {
            if (!leaf || i % DENDP_FANOUT == 0) {
                leaf = dendp_table_open(&c->nodes, t, g, i);
            }
            leaf->entry[i % DENDP_FANOUT].block = dendp_block_take(pool);
            dendp_block_truncate(c, g, leaf->entry[i % DENDP_FANOUT].block, 0); /* forget its last life */
        }
        t->n_blocks = n_new;
        for (i = len / P; i < n_new; i++) {
            pool->fill[dendp_table_get(&c->nodes, t, i)] = (uint16_t)dendp_min_u32(P, end - i * P);
        }
    }
    for (i = len; i < end; i++) {
        dendp_block_pool *pool = &c->pools[0];
        uint32_t block = dendp_table_get(&c->nodes, dendp_cache_table(c, record, 0), i / P);
        if (i % P == 0) {
            pool->hash[block] = r->hash;
        }
        pool->tokens[(size_t)block * P + i % P] = tokens[i - len];
        r->hash = dendp_hash2(r->hash, (uint64_t)(uint32_t)tokens[i - len]);
    }
    r->len = end;
    r->want_logits = true;
    dendp_logits_drop(c, r);
    dendp_queue_update(c, record);
    return DEND_OK;
}

/* -- reading --------------------------------------------------------------------- */

/* Token id at position pos < len of a record. */
static int32_t dendp_record_token(const dendp_cache *c, uint32_t record, uint32_t pos) {
    uint32_t P = c->desc.block_tokens;
    uint32_t block = dendp_table_get(&c->nodes, dendp_cache_table(c, record, 0), pos / P);
    return block == DENDP_NONE ? -1 : c->pools[0].tokens[(size_t)block * P + pos % P];
}

/* The shortest length to which a record can be rewound: above what its windowed groups gave up. */
static uint32_t dendp_record_rewind_min(const dendp_cache *c, uint32_t record) {
    uint32_t g, least = 0;
    for (g = 0; g < c->desc.n_groups; g++) {
        uint32_t first = dendp_cache_table(c, record, g)->first;
        if (first > 0) {
            least = dendp_max_u32(least, first * c->desc.block_tokens + c->groups[g].desc.window);
        }
    }
    return dendp_min_u32(least, c->records[record].len);
}

/* -- rewind ------------------------------------------------------------------------ */

/* A sidecar handle of the record that may be written; 0 when its room is full
 * (nothing has changed then). Takes the record of the slot into sole ownership. */
static uint32_t dendp_cache_sidecar_own(dendp_cache *c, dendp_slot *slot, uint32_t which) {
    dendp_record *r = &c->records[dendp_record_own(c, slot)];
    const dendp_sidecar_vtable *vt = c->desc.sidecars[which];
    uint32_t handle = r->sidecar[which] ? vt->clone_on_write(vt->user, r->sidecar[which]) : 0;
    r->sidecar[which] = handle ? handle : r->sidecar[which];
    return handle;
}

/* Hangs a handle, held once for us by the caller, on the slot's record. */
static DENDP_UNUSED void dendp_cache_sidecar_set(dendp_cache *c, dendp_slot *slot, uint32_t which,
                                                 uint32_t handle) {
    dendp_record *r = &c->records[dendp_record_own(c, slot)];
    const dendp_sidecar_vtable *vt = c->desc.sidecars[which];
    if (r->sidecar[which]) {
        vt->release(vt->user, r->sidecar[which]);
    }
    r->sidecar[which] = handle;
}

/* Cuts the slot's sequence to `len` tokens. */
static dend_status dendp_cache_rewind(dendp_cache *c, dendp_slot *slot, uint32_t len) {
    uint32_t P = c->desc.block_tokens, G = c->desc.n_groups, g, i, record = slot->record, block;
    dendp_record *r = &c->records[record];
    uint64_t hash = 0;
    if (len > r->len) {
        return DEND_ERR_ARGUMENT;
    }
    if (len < dendp_record_rewind_min(c, record)) {
        return DEND_ERR_UNSUPPORTED;
    }
    if (len == r->len) {
        return DEND_OK;
    }
    if (!dendp_cache_reserve(c, G * dendp_table_depth_for(dendp_div_up(r->len, P)), 0)) {
        return DEND_ERR_NO_BLOCKS;
    }
    for (i = 0; i < c->desc.n_sidecars; i++) {
        if (r->sidecar[i] && !dendp_cache_sidecar_own(c, slot, i)) {
            return DEND_ERR_NO_BLOCKS;
        }
        r = &c->records[slot->record];
    }
    record = dendp_record_own(c, slot);
    r = &c->records[record];
    block = dendp_table_get(&c->nodes, dendp_cache_table(c, record, 0), len / P);
    if (block != DENDP_NONE) { /* the running hash at `len`, from the start of its block */
        hash = c->pools[0].hash[block];
        for (i = len / P * P; i < len; i++) {
            hash = dendp_hash2(hash, (uint64_t)(uint32_t)c->pools[0].tokens[(size_t)block * P + i % P]);
        }
    }
    r->hash = hash;
    for (g = 0; g < G; g++) {
        dendp_table_cut(&c->nodes, dendp_cache_table(c, record, g), g, dendp_div_up(len, P));
    }
    for (i = 0; i < c->desc.n_sidecars; i++) {
        if (r->sidecar[i]) {
            c->desc.sidecars[i]->rollback(c->desc.sidecars[i]->user, r->sidecar[i], len);
        }
    }
    r->len = len;
    r->n_ready = dendp_min_u32(r->n_ready, len);
    r->n_reused = dendp_min_u32(r->n_reused, len);
    r->list_at = 0; /* the tokens that it was for may be gone */
    r->want_logits = r->n_ready < len;
    dendp_logits_drop(c, r);
    dendp_queue_update(c, record);
    dendp_node_reclaim(&c->nodes, c->desc.release_budget);
    return DEND_OK;
}

/* How many leading blocks of a windowed group lie wholly below `pos`, with
 * table nodes reserved for giving them up: 0 when they are given up already.
 * UNSUPPORTED for the first group, whose blocks carry the text. */
static dend_status dendp_trim_reserve(dendp_cache *c, uint32_t record, uint32_t g, uint32_t pos,
                                      uint32_t *out) {
    uint32_t n = dendp_min_u32(pos, c->records[record].len) / c->desc.block_tokens, need;
    const dendp_table *t = dendp_cache_table(c, record, g);
    *out = n > t->first ? n : 0;
    if (*out == 0) {
        return DEND_OK;
    }
    if (g == 0) {
        return DEND_ERR_UNSUPPORTED;
    }
    need = dendp_table_open_nodes(t, n) + (n - t->first) / (DENDP_FANOUT / 2) + 2;
    return dendp_cache_reserve(c, need, 0) ? DEND_OK : DEND_ERR_NO_BLOCKS;
}

/* Gives up the blocks below the n-th (0: none). */
static void dendp_trim_cut(dendp_cache *c, uint32_t record, uint32_t g, uint32_t n) {
    dendp_table *t = dendp_cache_table(c, record, g);
    dendp_node *leaf = NULL;
    uint32_t i;
    for (i = t->first; i < n; i++) {
        if (!leaf || i % DENDP_FANOUT == 0) {
            leaf = dendp_table_open(&c->nodes, t, g, i);
        }
        dendp_block_release(&c->pools[g], leaf->entry[i % DENDP_FANOUT].block);
        leaf->entry[i % DENDP_FANOUT].block = DENDP_NONE;
    }
    t->first = dendp_max_u32(t->first, n);
}

/* Gives up, in a windowed group, the blocks that lie wholly below `pos` <= len:
 * for one slot alone. NO_BLOCKS when the path cannot be copied; nothing has
 * changed then. */
static DENDP_UNUSED dend_status dendp_cache_trim(dendp_cache *c, dendp_slot *slot, uint32_t g, uint32_t pos) {
    uint32_t n;
    dend_status status = dendp_trim_reserve(c, slot->record, g, pos, &n);
    if (status == DEND_OK && n != 0) {
        dendp_trim_cut(c, dendp_record_own(c, slot), g, n);
    }
    return status;
}

/* The same for all slots that name a record. */
static dend_status dendp_record_trim(dendp_cache *c, uint32_t record, uint32_t g, uint32_t pos) {
    uint32_t n;
    dend_status status = dendp_trim_reserve(c, record, g, pos, &n);
    if (status == DEND_OK) {
        dendp_trim_cut(c, record, g, n);
    }
    return status;
}

/* -- commit -------------------------------------------------------------------------- */

/* True when K and V at position pos are computed in every group's block; with
 * `claims` also when a batch under way computes them. */
static bool dendp_record_slot_ready(const dendp_cache *c, uint32_t record, uint32_t pos, bool claims) {
    uint32_t g, P = c->desc.block_tokens;
    for (g = 0; g < c->desc.n_groups; g++) {
        const dendp_block_pool *pool = &c->pools[g];
        uint32_t block = dendp_table_get(&c->nodes, dendp_cache_table(c, record, g), pos / P);
        if (block == DENDP_NONE || (claims ? pool->claimed : pool->ready)[block] <= pos % P) {
            return false;
        }
    }
    return true;
}

/* The batch that is being gathered will compute K and V at position pos. */
static void dendp_record_claim(dendp_cache *c, uint32_t record, uint32_t pos) {
    uint32_t g, P = c->desc.block_tokens;
    for (g = 0; g < c->desc.n_groups; g++) {
        uint32_t block = dendp_table_get(&c->nodes, dendp_cache_table(c, record, g), pos / P);
        if (block != DENDP_NONE && c->pools[g].claimed[block] <= pos % P) {
            c->pools[g].claimed[block] = (uint16_t)(pos % P + 1);
        }
    }
}

/* Steps over waiting tokens that a sharer of the same blocks has computed. */
static void dendp_record_skip_ready(dendp_cache *c, uint32_t record) {
    dendp_record *r = &c->records[record];
    while (r->n_ready < r->len && dendp_record_slot_ready(c, record, r->n_ready, false)) {
        r->n_ready++;
    }
    dendp_queue_update(c, record);
}

/* True when nobody but the record itself has the block of position pos. */
static bool dendp_record_alone_at(const dendp_cache *c, uint32_t record, uint32_t pos) {
    uint32_t g, index = pos / c->desc.block_tokens;
    for (g = 0; g < c->desc.n_groups; g++) {
        const dendp_table *t = dendp_cache_table(c, record, g);
        if (dendp_table_get(&c->nodes, t, index) != DENDP_NONE &&
            !dendp_table_exclusive(&c->nodes, t, g, index)) {
            return false;
        }
    }
    return true;
}

/* K and V of positions n_ready ... end-1 have been computed. */
static void dendp_record_commit(dendp_cache *c, uint32_t record, uint32_t end) {
    dendp_record *r = &c->records[record];
    uint32_t P = c->desc.block_tokens, g, i, layer, head, tile;
    for (g = 0; g < c->desc.n_groups && end > r->n_ready; g++) {
        const dendp_group *group = &c->groups[g];
        for (i = r->n_ready / P; i * P < end; i++) {
            uint32_t block = dendp_table_get(&c->nodes, dendp_cache_table(c, record, g), i);
            uint16_t *ready, before;
            if (block == DENDP_NONE) {
                continue;
            }
            ready = &c->pools[g].ready[block];
            before = *ready;
            *ready = (uint16_t)dendp_max_u32(before, dendp_min_u32(P, end - i * P));
            c->pools[g].claimed[block] = (uint16_t)dendp_max_u32(c->pools[g].claimed[block], *ready);
            for (tile = before / DENDP_TILE; c->desc.codec.seal && tile < *ready / DENDP_TILE; tile++) {
                for (layer = 0; layer < group->desc.n_layers; layer++) {
                    for (head = 0; head < group->desc.n_kv_heads; head++) {
                        unsigned char *k = dendp_cache_tile(c, g, block, layer, head, tile);
                        c->desc.codec.seal(k, k + group->k_bytes, group->desc.head_dim);
                    }
                }
            }
        }
    }
    r->n_ready = dendp_max_u32(r->n_ready, end);
    dendp_queue_update(c, record);
}
