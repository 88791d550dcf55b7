/* ==========================================================================
 * >>04.06 SNAPSHOT: sequences as bytes
 * ==========================================================================
 * Saves a set of sequences and brings it back into a cache of the same shape.
 * What the sequences share is written once and is shared again afterwards:
 * records, table nodes, blocks. Numbers in the file are those of the file, in
 * the order of writing; a node names only nodes before it, so no cycle can be
 * written down.
 *
 *     header     88 bytes: magic, byte order, version, fingerprint, counts, size, check
 *     groups     shape and counts of each layer group
 *     blocks     for each group: ready slots; the first group: hash, tokens
 *     nodes      level, group, children or blocks; children before parents
 *     records    lengths, hash, the table of each group
 *     sequences  tag, random stream, record
 *     sidecars   length and bytes of each
 *     kv         for each group and layer: the tiles of every block with ready slots
 *     end        hash of all checks
 *
 * A section is {kind, group, layer, 0, u64 bytes}, the bytes, and a 64-bit check
 * of both. All numbers are in this machine's byte order, which the header marks.
 * Tiles are the codec's bytes, and the codecs have one layout for all
 * instruction sets. Slots that no saved sequence sees are written as zeros: the
 * same sequences give the same bytes, and what others had there stays private.
 *
 * CHECK  Four lanes take a word each: lane = rotl(lane ^ word * C1, 31) * C2.
 * Each step is invertible in the lane and in the word, so a change inside of one
 * word never cancels out; other damage goes unseen once in about 2^64 times.
 *
 * Nothing is allocated: the numbering lies beside the cache (dendp_snapshot).
 * ======================================================================== */

#define DENDP_SESSION_VERSION 1u
#define DENDP_SESSION_MARK 0x01020304u
#define DENDP_SESSION_HEADER sizeof(dendp_session_header)
#define DENDP_SIDECAR_BYTES 256u /* most of one sidecar */

enum {
    DENDP_SECTION_GROUPS = 1,
    DENDP_SECTION_BLOCKS,
    DENDP_SECTION_NODES,
    DENDP_SECTION_RECORDS,
    DENDP_SECTION_SEQUENCES,
    DENDP_SECTION_SIDECARS,
    DENDP_SECTION_KV,
    DENDP_SECTION_END
};

static const unsigned char dendp_session_magic[8] = {0x89, 'D', 'S', 'E', 'S', '\r', '\n', 0x1a};

typedef struct dendp_session_header {
    unsigned char magic[8];
    uint32_t mark, version;
    uint64_t fingerprint; /* of the model */
    uint64_t shape;       /* of the cache */
    uint32_t block_tokens, n_groups;
    uint32_t n_seqs, n_records, n_nodes, n_vocab;
    uint64_t n_streams;
    uint64_t side_bytes; /* of the section of sidecars */
    uint64_t total;      /* of the file */
    uint64_t check;      /* of all before it */
} dendp_session_header;

typedef struct dendp_session_section {
    uint32_t kind, group, layer, zero;
    uint64_t n_bytes;
} dendp_session_section;

typedef struct dendp_session_group {
    uint32_t n_layers, n_kv_heads, head_dim, window;
    uint64_t block_bytes;
    uint32_t n_blocks, n_data; /* of them with ready slots */
} dendp_session_group;

typedef struct dendp_session_record {
    uint32_t len, n_ready, n_reused, want_logits;
    uint64_t hash;
} dendp_session_record;

typedef struct dendp_session_seq {
    uint64_t tag, stream, n_forks;
    uint32_t record, reuse;
} dendp_session_seq;

/* The numbering of one save or restore. */
typedef struct dendp_snapshot {
    dendp_cache *cache;
    uint32_t *node_number, *node;          /* [n_nodes] number of a node, node of a number */
    uint32_t *block_number, *block;        /* [n_groups][n_blocks] */
    uint16_t *live;                        /* [n_groups][n_blocks] by block: slots that the sequences see */
    uint32_t *record_number, *record;      /* [n_seqs] */
    uint32_t *slot, *slot_record;          /* [n_seqs] slot of a sequence of the file, number of its record */
    unsigned char *tile;                   /* one K and V tile */
    uint32_t n_seqs, n_records, n_nodes;   /* numbered, or taken, so far */
    uint32_t *n_blocks, *n_data, *n_taken; /* [n_groups] of the file; and taken so far */
} dendp_snapshot;

static void dendp_snapshot_carve(dendp_snapshot *s, const dendp_cache *c, dendp_carver *carver) {
    uint64_t n_blocks = (uint64_t)c->desc.n_blocks * c->desc.n_groups, n_seqs = c->desc.n_seqs, tile = 0;
    uint32_t g;
    for (g = 0; g < c->desc.n_groups; g++) {
        uint32_t d = c->desc.groups[g].head_dim;
        uint64_t bytes = c->desc.codec.k_bytes(d) + c->desc.codec.v_bytes(d);
        tile = bytes > tile ? bytes : tile;
    }
    s->node_number = (uint32_t *)dendp_carve(carver, c->nodes.n_nodes, sizeof(uint32_t));
    s->node = (uint32_t *)dendp_carve(carver, c->nodes.n_nodes, sizeof(uint32_t));
    s->block_number = (uint32_t *)dendp_carve(carver, n_blocks, sizeof(uint32_t));
    s->block = (uint32_t *)dendp_carve(carver, n_blocks, sizeof(uint32_t));
    s->live = (uint16_t *)dendp_carve(carver, n_blocks, sizeof(uint16_t));
    s->record_number = (uint32_t *)dendp_carve(carver, c->n_records, sizeof(uint32_t));
    s->record = (uint32_t *)dendp_carve(carver, n_seqs, sizeof(uint32_t));
    s->slot = (uint32_t *)dendp_carve(carver, n_seqs, sizeof(uint32_t));
    s->slot_record = (uint32_t *)dendp_carve(carver, n_seqs, sizeof(uint32_t));
    s->n_blocks = (uint32_t *)dendp_carve(carver, c->desc.n_groups, sizeof(uint32_t));
    s->n_data = (uint32_t *)dendp_carve(carver, c->desc.n_groups, sizeof(uint32_t));
    s->n_taken = (uint32_t *)dendp_carve(carver, c->desc.n_groups, sizeof(uint32_t));
    s->tile = (unsigned char *)dendp_carve(carver, tile, 1);
}

/* -- check ---------------------------------------------------------------------- */

/* A running hash of bytes, whatever the pieces they come in. */
typedef struct dendp_check {
    uint64_t lane[4], n;
    unsigned char rest[32];
} dendp_check;

static void dendp_check_begin(dendp_check *h) {
    uint32_t i;
    memset(h, 0, sizeof *h);
    for (i = 0; i < 4; i++) {
        h->lane[i] = dendp_hash_key(i);
    }
}

static uint64_t dendp_check_word(uint64_t lane, uint64_t word) {
    lane ^= word * 0xd6e8feb86659fd93u;
    return (lane << 31 | lane >> 33) * 0x9fb21c651e98df25u;
}

/* n is a multiple of 32. */
static void dendp_check_lines(dendp_check *h, const unsigned char *p, size_t n) {
    uint64_t a = h->lane[0], b = h->lane[1], c = h->lane[2], d = h->lane[3], w[4];
    for (; n > 0; p += 32, n -= 32) {
        memcpy(w, p, 32);
        a = dendp_check_word(a, w[0]);
        b = dendp_check_word(b, w[1]);
        c = dendp_check_word(c, w[2]);
        d = dendp_check_word(d, w[3]);
    }
    h->lane[0] = a;
    h->lane[1] = b;
    h->lane[2] = c;
    h->lane[3] = d;
}

static void dendp_check_add(dendp_check *h, const void *data, size_t n) {
    const unsigned char *p = (const unsigned char *)data;
    size_t held = (size_t)(h->n % 32), take;
    h->n += n;
    if (held > 0) {
        take = 32 - held < n ? 32 - held : n;
        memcpy(h->rest + held, p, take);
        p += take;
        n -= take;
        if (held + take < 32) {
            return;
        }
        dendp_check_lines(h, h->rest, 32);
    }
    dendp_check_lines(h, p, n & ~(size_t)31);
    if (n % 32) {
        memcpy(h->rest, p + (n & ~(size_t)31), n % 32);
    }
}

static uint64_t dendp_check_end(const dendp_check *h) {
    dendp_check last = *h;
    uint64_t sum = h->n;
    uint32_t i;
    if (h->n % 32) {
        memset(last.rest + h->n % 32, 0, 32 - (size_t)(h->n % 32));
        dendp_check_lines(&last, last.rest, 32);
    }
    for (i = 0; i < 4; i++) {
        sum = dendp_hash2(sum, last.lane[i]);
    }
    return sum;
}

/* -- what both directions compute ------------------------------------------------- */

/* What two caches must share for blocks to be exchanged. */
static uint64_t dendp_cache_shape(const dendp_cache *c) {
    dendp_check h;
    uint32_t i;
    dendp_check_begin(&h);
    dendp_check_add(&h, &c->desc.block_tokens, sizeof(uint32_t));
    dendp_check_add(&h, c->desc.codec.name, strlen(c->desc.codec.name) + 1);
    for (i = 0; i < c->desc.n_groups; i++) {
        dendp_check_add(&h, &c->groups[i].desc, sizeof c->groups[i].desc);
        dendp_check_add(&h, &c->pools[i].block_bytes, sizeof(uint64_t));
    }
    for (i = 0; i < c->desc.n_sidecars; i++) {
        dendp_check_add(&h, c->desc.sidecars[i]->name, strlen(c->desc.sidecars[i]->name) + 1);
    }
    return dendp_check_end(&h);
}

/* Bytes of one layer in a block: tiles of all its heads, which lie together. */
static uint64_t dendp_cache_layer_bytes(const dendp_cache *c, uint32_t g) {
    return c->pools[g].block_bytes / c->groups[g].desc.n_layers;
}

static uint64_t dendp_session_block_bytes(const dendp_cache *c, uint32_t g) {
    return g == 0 ? 16 + (uint64_t)c->desc.block_tokens * sizeof(int32_t) : 8;
}

#define DENDP_SESSION_NODE_BYTES (8u + DENDP_FANOUT * 4u)

static uint64_t dendp_session_record_bytes(const dendp_cache *c) {
    return sizeof(dendp_session_record) + (uint64_t)c->desc.n_groups * 16;
}

/* *total += a section of count * size bytes; false when that overflows. */
static bool dendp_session_add(uint64_t *total, uint64_t count, uint64_t size) {
    uint64_t bytes;
    return dendp_mul(count, size, &bytes) &&
           dendp_add(bytes, sizeof(dendp_session_section) + sizeof(uint64_t), &bytes) &&
           dendp_add(*total, bytes, total);
}

/* Bytes of a file with these counts; false when they overflow. */
static bool dendp_session_total(const dendp_cache *c, const dendp_session_header *h, const uint32_t *n_blocks,
                                const uint32_t *n_data, uint64_t *total) {
    uint32_t g, layer;
    *total = DENDP_SESSION_HEADER;
    if (!dendp_session_add(total, c->desc.n_groups, sizeof(dendp_session_group)) ||
        !dendp_session_add(total, h->n_nodes, DENDP_SESSION_NODE_BYTES) ||
        !dendp_session_add(total, h->n_records, dendp_session_record_bytes(c)) ||
        !dendp_session_add(total, h->n_seqs, sizeof(dendp_session_seq)) ||
        !dendp_session_add(total, h->side_bytes, 1) || !dendp_session_add(total, 1, sizeof(uint64_t))) {
        return false;
    }
    for (g = 0; g < c->desc.n_groups; g++) {
        if (!dendp_session_add(total, n_blocks[g], dendp_session_block_bytes(c, g))) {
            return false;
        }
        for (layer = 0; layer < c->groups[g].desc.n_layers; layer++) {
            if (!dendp_session_add(total, n_data[g], dendp_cache_layer_bytes(c, g))) {
                return false;
            }
        }
    }
    return true;
}

/* -- saving: numbering ------------------------------------------------------------- */

/* The node of `level` over block `index` of a table. */
static uint32_t dendp_table_node(const dendp_node_pool *np, const dendp_table *t, uint32_t level,
                                 uint32_t index) {
    uint32_t id = t->root, at;
    for (at = t->depth - 1; at > level; at--) {
        id = np->nodes[id].child[dendp_table_digit(index, at)];
    }
    return id;
}

/* Slots of a block that the sequences see and that are computed. */
static uint32_t dendp_snapshot_ready(const dendp_snapshot *s, uint32_t g, uint32_t block) {
    return dendp_min_u32(s->cache->pools[g].ready[block],
                         s->live[(size_t)g * s->cache->desc.n_blocks + block]);
}

/* Numbers the records, blocks and nodes of these sequences, each in the order in
 * which a walk meets it, nodes level by level. STALE; ARGUMENT for one named twice. */
static dend_status dendp_snapshot_number(dendp_snapshot *s, const dend_seq *seqs, uint32_t n) {
    const dendp_cache *c = s->cache;
    uint32_t P = c->desc.block_tokens, N = c->desc.n_blocks, i, g, level, deepest = 0;
    s->n_seqs = s->n_records = s->n_nodes = 0;
    for (i = 0; i < c->n_records; i++) {
        s->record_number[i] = DENDP_NONE;
    }
    for (i = 0; i < c->desc.n_seqs; i++) {
        s->slot_record[i] = DENDP_NONE;
    }
    for (i = 0; i < n; i++) {
        const dendp_slot *slot = dendp_cache_slot(c, seqs[i]);
        if (!slot) {
            return DEND_ERR_STALE;
        }
        if (s->slot_record[seqs[i].slot] != DENDP_NONE) {
            return DEND_ERR_ARGUMENT;
        }
        if (s->record_number[slot->record] == DENDP_NONE) {
            s->record_number[slot->record] = s->n_records;
            s->record[s->n_records++] = slot->record;
        }
        s->slot_record[seqs[i].slot] = s->record_number[slot->record];
        s->slot[s->n_seqs++] = seqs[i].slot;
    }
    for (i = 0; i < c->nodes.n_nodes; i++) {
        s->node_number[i] = DENDP_NONE;
    }
    for (g = 0; g < c->desc.n_groups; g++) {
        uint32_t *number = s->block_number + (size_t)g * N;
        uint16_t *live = s->live + (size_t)g * N;
        s->n_blocks[g] = s->n_data[g] = 0;
        for (i = 0; i < N; i++) {
            number[i] = DENDP_NONE;
            live[i] = 0;
        }
        for (i = 0; i < s->n_records; i++) {
            const dendp_table *t = dendp_cache_table(c, s->record[i], g);
            const dendp_node *leaf = NULL;
            uint32_t index, len = c->records[s->record[i]].len;
            deepest = dendp_max_u32(deepest, t->depth);
            for (index = t->first; index < t->n_blocks; index++) {
                uint32_t block, sees = dendp_min_u32(P, len - index * P);
                leaf = !leaf || index % DENDP_FANOUT == 0 ? dendp_table_leaf(&c->nodes, t, index) : leaf;
                block = leaf->entry[index % DENDP_FANOUT].block;
                if (number[block] == DENDP_NONE) {
                    s->block[(size_t)g * N + s->n_blocks[g]] = block;
                    number[block] = s->n_blocks[g]++;
                }
                live[block] = (uint16_t)dendp_max_u32(live[block], sees);
            }
        }
        for (i = 0; i < s->n_blocks[g]; i++) {
            s->n_data[g] += dendp_snapshot_ready(s, g, s->block[(size_t)g * N + i]) ? 1u : 0u;
        }
    }
    for (level = 0; level < deepest; level++) {
        for (i = 0; i < s->n_records; i++) {
            for (g = 0; g < c->desc.n_groups; g++) {
                const dendp_table *t = dendp_cache_table(c, s->record[i], g);
                uint64_t index;
                for (index = 0; level < t->depth && index < t->n_blocks;
                     index += dendp_table_capacity(level + 1)) {
                    uint32_t id = dendp_table_node(&c->nodes, t, level, (uint32_t)index);
                    if (s->node_number[id] == DENDP_NONE) {
                        s->node_number[id] = s->n_nodes;
                        s->node[s->n_nodes++] = id;
                    }
                }
            }
        }
    }
    return DEND_OK;
}

/* -- saving: writing --------------------------------------------------------------- */

typedef struct dendp_sink {
    const dend_writer *to;
    dendp_check section, all;
    bool failed;
} dendp_sink;

static void dendp_sink_put(dendp_sink *w, const void *data, size_t n) {
    dendp_check_add(&w->section, data, n);
    w->failed = w->failed || (n && !w->to->write(w->to->user, data, n));
}

static void dendp_sink_begin(dendp_sink *w, uint32_t kind, uint32_t group, uint32_t layer, uint64_t n_bytes) {
    dendp_session_section head;
    head.kind = kind;
    head.group = group;
    head.layer = layer;
    head.zero = 0;
    head.n_bytes = n_bytes;
    dendp_check_begin(&w->section);
    dendp_sink_put(w, &head, sizeof head);
}

static void dendp_sink_end(dendp_sink *w) {
    uint64_t check = dendp_check_end(&w->section);
    dendp_check_add(&w->all, &check, sizeof check);
    dendp_sink_put(w, &check, sizeof check);
}

static uint64_t dendp_sidecar_bytes(const dendp_cache *c, uint32_t record, uint32_t which) {
    uint32_t handle = c->records[record].sidecar[which];
    return handle ? c->desc.sidecars[which]->bytes(c->desc.sidecars[which]->user, handle) : 0;
}

/* Counts and size of the numbered sequences. UNSUPPORTED when a sidecar is too large. */
static dend_status dendp_snapshot_header(const dendp_snapshot *s, uint64_t fingerprint, uint32_t n_vocab,
                                         dendp_session_header *h) {
    const dendp_cache *c = s->cache;
    uint32_t i, k;
    dendp_check check;
    memset(h, 0, sizeof *h);
    memcpy(h->magic, dendp_session_magic, sizeof h->magic);
    h->mark = DENDP_SESSION_MARK;
    h->version = DENDP_SESSION_VERSION;
    h->fingerprint = fingerprint;
    h->shape = dendp_cache_shape(c);
    h->block_tokens = c->desc.block_tokens;
    h->n_groups = c->desc.n_groups;
    h->n_seqs = s->n_seqs;
    h->n_records = s->n_records;
    h->n_nodes = s->n_nodes;
    h->n_vocab = n_vocab;
    h->n_streams = c->n_streams;
    for (i = 0; i < s->n_records; i++) {
        for (k = 0; k < c->desc.n_sidecars; k++) {
            uint64_t bytes = dendp_sidecar_bytes(c, s->record[i], k);
            if (bytes > DENDP_SIDECAR_BYTES) {
                return DEND_ERR_UNSUPPORTED;
            }
            h->side_bytes += 8 + bytes;
        }
    }
    if (!dendp_session_total(c, h, s->n_blocks, s->n_data, &h->total)) {
        return DEND_ERR_UNSUPPORTED;
    }
    dendp_check_begin(&check);
    dendp_check_add(&check, h, DENDP_SESSION_HEADER - 8);
    h->check = dendp_check_end(&check);
    return DEND_OK;
}

static void dendp_snapshot_put_groups(const dendp_snapshot *s, dendp_sink *w) {
    const dendp_cache *c = s->cache;
    uint32_t g;
    dendp_sink_begin(w, DENDP_SECTION_GROUPS, 0, 0, c->desc.n_groups * sizeof(dendp_session_group));
    for (g = 0; g < c->desc.n_groups; g++) {
        dendp_session_group group;
        memset(&group, 0, sizeof group);
        group.n_layers = c->groups[g].desc.n_layers;
        group.n_kv_heads = c->groups[g].desc.n_kv_heads;
        group.head_dim = c->groups[g].desc.head_dim;
        group.window = c->groups[g].desc.window;
        group.block_bytes = c->pools[g].block_bytes;
        group.n_blocks = s->n_blocks[g];
        group.n_data = s->n_data[g];
        dendp_sink_put(w, &group, sizeof group);
    }
    dendp_sink_end(w);
}

static void dendp_snapshot_put_blocks(const dendp_snapshot *s, dendp_sink *w, uint32_t g) {
    const dendp_cache *c = s->cache;
    const dendp_block_pool *pool = &c->pools[g];
    uint32_t i, P = c->desc.block_tokens;
    dendp_sink_begin(w, DENDP_SECTION_BLOCKS, g, 0, s->n_blocks[g] * dendp_session_block_bytes(c, g));
    for (i = 0; i < s->n_blocks[g]; i++) {
        uint32_t block = s->block[(size_t)g * c->desc.n_blocks + i], words[2] = {0, 0}, slot;
        uint32_t live = s->live[(size_t)g * c->desc.n_blocks + block];
        words[0] = dendp_snapshot_ready(s, g, block);
        dendp_sink_put(w, words, sizeof words);
        if (g == 0) {
            int32_t tokens[DENDP_TILE];
            dendp_sink_put(w, &pool->hash[block], sizeof(uint64_t));
            for (slot = 0; slot < P; slot++) { /* of slots that nobody sees: none */
                tokens[slot % DENDP_TILE] = slot < live ? pool->tokens[(size_t)block * P + slot] : 0;
                if (slot % DENDP_TILE == DENDP_TILE - 1) {
                    dendp_sink_put(w, tokens, sizeof tokens);
                }
            }
        }
    }
    dendp_sink_end(w);
}

static void dendp_snapshot_put_nodes(const dendp_snapshot *s, dendp_sink *w) {
    const dendp_cache *c = s->cache;
    uint32_t i, k;
    dendp_sink_begin(w, DENDP_SECTION_NODES, 0, 0, (uint64_t)s->n_nodes * DENDP_SESSION_NODE_BYTES);
    for (i = 0; i < s->n_nodes; i++) {
        const dendp_node_head *head = &c->nodes.heads[s->node[i]];
        const dendp_node *node = &c->nodes.nodes[s->node[i]];
        uint32_t words[2 + DENDP_FANOUT];
        words[0] = head->level;
        words[1] = head->group;
        for (k = 0; k < DENDP_FANOUT; k++) {
            uint32_t to = head->level > 0 ? node->child[k] : node->entry[k].block;
            const uint32_t *number =
                head->level > 0 ? s->node_number : s->block_number + (size_t)head->group * c->desc.n_blocks;
            words[2 + k] = to == DENDP_NONE ? DENDP_NONE : number[to];
        }
        dendp_sink_put(w, words, sizeof words);
    }
    dendp_sink_end(w);
}

static void dendp_snapshot_put_records(const dendp_snapshot *s, dendp_sink *w) {
    const dendp_cache *c = s->cache;
    uint32_t i, g;
    dendp_sink_begin(w, DENDP_SECTION_RECORDS, 0, 0, s->n_records * dendp_session_record_bytes(c));
    for (i = 0; i < s->n_records; i++) {
        const dendp_record *r = &c->records[s->record[i]];
        dendp_session_record record;
        memset(&record, 0, sizeof record);
        record.len = r->len;
        record.n_ready = r->n_ready;
        record.n_reused = r->n_reused;
        record.want_logits = r->want_logits || r->logits_row != DENDP_NONE;
        record.hash = r->hash;
        dendp_sink_put(w, &record, sizeof record);
        for (g = 0; g < c->desc.n_groups; g++) {
            const dendp_table *t = dendp_cache_table(c, s->record[i], g);
            uint32_t words[4];
            words[0] = t->root == DENDP_NONE ? DENDP_NONE : s->node_number[t->root];
            words[1] = t->depth;
            words[2] = t->n_blocks;
            words[3] = t->first;
            dendp_sink_put(w, words, sizeof words);
        }
    }
    dendp_sink_end(w);
}

static void dendp_snapshot_put_sequences(const dendp_snapshot *s, dendp_sink *w, const uint64_t *tags) {
    uint32_t i;
    dendp_sink_begin(w, DENDP_SECTION_SEQUENCES, 0, 0, s->n_seqs * sizeof(dendp_session_seq));
    for (i = 0; i < s->n_seqs; i++) {
        const dendp_slot *slot = &s->cache->slots[s->slot[i]];
        dendp_session_seq seq;
        seq.tag = tags ? tags[i] : i;
        seq.stream = slot->stream;
        seq.n_forks = slot->n_forks;
        seq.record = s->slot_record[s->slot[i]];
        seq.reuse = slot->reuse;
        dendp_sink_put(w, &seq, sizeof seq);
    }
    dendp_sink_end(w);
}

/* False when a sidecar cannot be written. */
static bool dendp_snapshot_put_sidecars(const dendp_snapshot *s, dendp_sink *w, uint64_t side_bytes) {
    const dendp_cache *c = s->cache;
    uint32_t i, k;
    dendp_sink_begin(w, DENDP_SECTION_SIDECARS, 0, 0, side_bytes);
    for (i = 0; i < s->n_records; i++) {
        for (k = 0; k < c->desc.n_sidecars; k++) {
            const dendp_sidecar_vtable *vt = c->desc.sidecars[k];
            uint64_t bytes = dendp_sidecar_bytes(c, s->record[i], k);
            unsigned char data[DENDP_SIDECAR_BYTES];
            memset(data, 0, sizeof data);
            if (bytes && !vt->save(vt->user, c->records[s->record[i]].sidecar[k], data)) {
                return false;
            }
            dendp_sink_put(w, &bytes, sizeof bytes);
            dendp_sink_put(w, data, (size_t)bytes);
        }
    }
    dendp_sink_end(w);
    return true;
}

/* The tiles of one layer. Whole ones go as they are; of a tile that is partly
 * live its slots are put into a new one. */
static void dendp_snapshot_put_kv(const dendp_snapshot *s, dendp_sink *w, uint32_t g, uint32_t layer) {
    const dendp_cache *c = s->cache;
    const dendp_group *group = &c->groups[g];
    const dendp_codec *codec = &c->desc.codec;
    uint32_t i, head, tile, d = group->desc.head_dim;
    dendp_sink_begin(w, DENDP_SECTION_KV, g, layer, s->n_data[g] * dendp_cache_layer_bytes(c, g));
    for (i = 0; i < s->n_blocks[g]; i++) {
        uint32_t block = s->block[(size_t)g * c->desc.n_blocks + i];
        uint32_t live = dendp_snapshot_ready(s, g, block);
        if (live == c->desc.block_tokens) {
            dendp_sink_put(w, dendp_cache_tile(c, g, block, layer, 0, 0),
                           (size_t)dendp_cache_layer_bytes(c, g));
        } else if (live > 0) {
            for (head = 0; head < group->desc.n_kv_heads; head++) {
                for (tile = 0; tile < group->tiles_per_block; tile++) {
                    unsigned char *k = dendp_cache_tile(c, g, block, layer, head, tile);
                    uint32_t n = live > tile * DENDP_TILE ? live - tile * DENDP_TILE : 0;
                    if (n < DENDP_TILE) {
                        memset(s->tile, 0, (size_t)group->tile_bytes);
                        if (codec->truncate) {
                            codec->truncate(s->tile, s->tile + group->k_bytes, d, 0);
                        }
                        if (n > 0) {
                            codec->copy_slots(s->tile, s->tile + group->k_bytes, 0, k, k + group->k_bytes, 0,
                                              n, d);
                        }
                        k = s->tile;
                    }
                    dendp_sink_put(w, k, (size_t)group->tile_bytes);
                }
            }
        }
    }
    dendp_sink_end(w);
}

/* Writes sequences, with a tag each (NULL: 0, 1, 2, ...). *n_bytes is their size;
 * with `to` NULL nothing else happens. The cache does not change.
 * STALE, ARGUMENT (one twice), UNSUPPORTED (a sidecar is too large), IO. */
static dend_status dendp_cache_save(dendp_snapshot *s, const dend_seq *seqs, const uint64_t *tags, uint32_t n,
                                    uint64_t fingerprint, uint32_t n_vocab, const dend_writer *to,
                                    uint64_t *n_bytes) {
    dendp_session_header h;
    dendp_sink sink, *w = &sink;
    uint64_t all;
    uint32_t g, layer;
    dend_status status = dendp_snapshot_number(s, seqs, n);
    if (status == DEND_OK) {
        status = dendp_snapshot_header(s, fingerprint, n_vocab, &h);
    }
    if (status != DEND_OK) {
        return status;
    }
    *n_bytes = h.total;
    if (!to) {
        return DEND_OK;
    }
    w->to = to;
    w->failed = false;
    s->cache->closed = true; /* for what the writer may try */
    dendp_check_begin(&w->all);
    dendp_check_begin(&w->section);
    dendp_sink_put(w, &h, sizeof h);
    dendp_check_add(&w->all, &h.check, sizeof h.check);
    dendp_snapshot_put_groups(s, w);
    for (g = 0; g < s->cache->desc.n_groups; g++) {
        dendp_snapshot_put_blocks(s, w, g);
    }
    dendp_snapshot_put_nodes(s, w);
    dendp_snapshot_put_records(s, w);
    dendp_snapshot_put_sequences(s, w, tags);
    if (!dendp_snapshot_put_sidecars(s, w, h.side_bytes)) {
        s->cache->closed = false;
        return DEND_ERR_UNSUPPORTED;
    }
    for (g = 0; g < s->cache->desc.n_groups; g++) {
        for (layer = 0; layer < s->cache->groups[g].desc.n_layers && !w->failed; layer++) {
            dendp_snapshot_put_kv(s, w, g, layer);
        }
    }
    all = dendp_check_end(&w->all);
    dendp_sink_begin(w, DENDP_SECTION_END, 0, 0, sizeof all);
    dendp_sink_put(w, &all, sizeof all);
    dendp_sink_end(w);
    s->cache->closed = false;
    return w->failed ? DEND_ERR_IO : DEND_OK;
}
