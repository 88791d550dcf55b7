/* ==========================================================================
 * >>04.07 RESTORE: bytes become sequences, or nothing happens
 * ==========================================================================
 * The other direction of 04.06. It believes nothing: a session may be damaged,
 * or be written by somebody who means harm and signs it well.
 *
 *  1. The header and the counts of the groups are read and their checks verified.
 *     The counts are held against the size of the file, and against what is free.
 *  2. Blocks, nodes, records and handles are taken from their free lists, filled
 *     and verified, section by section. A node may name only nodes that stand
 *     before it, so there are no cycles; a block stands at one index only, in all
 *     tables; every table is walked from end to end; hashes follow from tokens;
 *     and nothing is there that nobody names.
 *  3. K and V are read straight into the blocks.
 *  4. When the end has been verified, the handles get their records: this cannot
 *     fail, and until here nobody could see any of it.
 *
 * Whatever fails puts all of it back, in the order in which it lay. A verdict
 * that is not FORMAT or IO (too long for n_ctx, a sidecar's room that is full) is
 * given when the check of its section has been verified, since only then is it
 * about what was saved.
 *
 * Cost: the bytes once, and O(blocks) for each sequence.
 * ======================================================================== */

typedef struct dendp_source {
    const dend_reader *reader;
    dend_error *err;
    uint64_t at, section_at;
    dendp_check section, all;
} dendp_source;

static dend_status dendp_source_get(dendp_source *f, void *dst, size_t n) {
    if (n > f->reader->size - f->at) {
        return DENDP_FAIL(f->err, DEND_ERR_FORMAT, "the session is cut off", f->section_at);
    }
    if (n && !f->reader->read(f->reader->user, f->at, dst, n)) {
        return DENDP_FAIL(f->err, DEND_ERR_IO, "the session cannot be read", f->at);
    }
    f->at += n;
    dendp_check_add(&f->section, dst, n);
    return DEND_OK;
}

static dend_status dendp_source_begin(dendp_source *f, uint32_t kind, uint32_t group, uint32_t layer,
                                      uint64_t n_bytes) {
    dendp_session_section head;
    dend_status status;
    f->section_at = f->at;
    dendp_check_begin(&f->section);
    status = dendp_source_get(f, &head, sizeof head);
    if (status == DEND_OK && (head.kind != kind || head.group != group || head.layer != layer ||
                              head.zero != 0 || head.n_bytes != n_bytes)) {
        status = DENDP_FAIL(f->err, DEND_ERR_FORMAT, "another section belongs here", f->section_at);
    }
    return status;
}

static dend_status dendp_source_end(dendp_source *f) {
    uint64_t expected = dendp_check_end(&f->section), check;
    dend_status status = dendp_source_get(f, &check, sizeof check);
    dendp_check_add(&f->all, &check, sizeof check);
    return status == DEND_OK && check != expected
               ? DENDP_FAIL(f->err, DEND_ERR_FORMAT, "the check of a section does not match", f->section_at)
               : status;
}

/* A section whose bytes are not what save writes. */
static dend_status dendp_source_bad(const dendp_source *f, const char *msg) {
    return DENDP_FAIL(f->err, DEND_ERR_FORMAT, msg, f->section_at);
}

/* Reads and judges the header, then the counts of the groups. Nothing is taken. */
static dend_status dendp_snapshot_get_header(dendp_snapshot *s, dendp_source *f, uint64_t fingerprint,
                                             uint32_t n_vocab, dendp_session_header *h) {
    const dendp_cache *c = s->cache;
    uint32_t swapped = 0x04030201u, g;
    uint64_t total;
    dendp_check check;
    dend_status status = dendp_source_get(f, h, sizeof *h);
    if (status != DEND_OK) {
        return status;
    }
    if (memcmp(h->magic, dendp_session_magic, sizeof h->magic) != 0) {
        return dendp_source_bad(f, "this is no session");
    }
    if (h->mark == swapped) {
        return DENDP_FAIL(f->err, DEND_ERR_UNSUPPORTED, "saved on a machine of the other byte order", 8);
    }
    dendp_check_begin(&check);
    dendp_check_add(&check, h, DENDP_SESSION_HEADER - 8);
    if (h->check != dendp_check_end(&check) || h->mark != DENDP_SESSION_MARK) {
        return dendp_source_bad(f, "the check of the header does not match");
    }
    dendp_check_add(&f->all, &h->check, sizeof h->check);
    if (h->version != DENDP_SESSION_VERSION) {
        return DENDP_FAIL(f->err, DEND_ERR_UNSUPPORTED, "a session of another version", 12);
    }
    if (h->fingerprint != fingerprint || h->n_vocab != n_vocab) {
        return DENDP_FAIL(f->err, DEND_ERR_UNSUPPORTED, "saved with another model", 16);
    }
    if (h->block_tokens != c->desc.block_tokens) {
        return DENDP_FAIL(f->err, DEND_ERR_UNSUPPORTED, "saved with another block size", 32);
    }
    if (h->shape != dendp_cache_shape(c) || h->n_groups != c->desc.n_groups) {
        return DENDP_FAIL(f->err, DEND_ERR_UNSUPPORTED, "saved with another KV type, or other sidecars", 24);
    }
    status =
        dendp_source_begin(f, DENDP_SECTION_GROUPS, 0, 0, c->desc.n_groups * sizeof(dendp_session_group));
    for (g = 0; g < c->desc.n_groups && status == DEND_OK; g++) {
        dendp_session_group group;
        status = dendp_source_get(f, &group, sizeof group);
        if (status == DEND_OK) {
            s->n_blocks[g] = group.n_blocks;
            s->n_data[g] = group.n_data;
            if (group.n_layers != c->groups[g].desc.n_layers ||
                group.n_kv_heads != c->groups[g].desc.n_kv_heads ||
                group.head_dim != c->groups[g].desc.head_dim || group.window != c->groups[g].desc.window ||
                group.block_bytes != c->pools[g].block_bytes || group.n_data > group.n_blocks) {
                status = dendp_source_bad(f, "a group of layers is not what the header says");
            }
        }
    }
    if (status == DEND_OK) {
        status = dendp_source_end(f);
    }
    if (status == DEND_OK &&
        (!dendp_session_total(c, h, s->n_blocks, s->n_data, &total) || h->total != total ||
         h->n_records > h->n_seqs || h->side_bytes < (uint64_t)h->n_records * c->desc.n_sidecars * 8)) {
        status = DENDP_FAIL(f->err, DEND_ERR_FORMAT, "the counts do not agree with the size", 0);
    }
    if (status == DEND_OK && f->reader->size != total) {
        status = DENDP_FAIL(f->err, DEND_ERR_FORMAT,
                            f->reader->size < total ? "the session is cut off" : "bytes follow the session",
                            f->reader->size < total ? f->reader->size : total);
    }
    return status;
}

/* True when everything that the file wants is free. */
static bool dendp_snapshot_reserve(const dendp_snapshot *s, uint32_t n_nodes) {
    dendp_cache *c = s->cache;
    uint32_t g;
    for (;;) {
        bool enough = c->nodes.n_free >= n_nodes;
        for (g = 0; g < c->desc.n_groups; g++) {
            enough = enough && c->pools[g].n_free >= s->n_blocks[g];
        }
        if (enough) {
            return true;
        }
        if (c->nodes.first_pending != DENDP_NONE) {
            dendp_node_reclaim(&c->nodes, 1);
        } else if (!dendp_cache_give_up(c, DENDP_NONE, n_nodes)) {
            return false;
        }
    }
}

/* Takes blocks, and reads what is known of them. */
static dend_status dendp_snapshot_get_blocks(dendp_snapshot *s, dendp_source *f, uint32_t g,
                                             uint32_t n_vocab) {
    dendp_cache *c = s->cache;
    dendp_block_pool *pool = &c->pools[g];
    uint32_t P = c->desc.block_tokens, slot, n_data = 0;
    dend_status status =
        dendp_source_begin(f, DENDP_SECTION_BLOCKS, g, 0, s->n_blocks[g] * dendp_session_block_bytes(c, g));
    while (status == DEND_OK && s->n_taken[g] < s->n_blocks[g]) {
        uint32_t block = dendp_block_take(pool), words[2];
        s->block_number[(size_t)g * c->desc.n_blocks + block] = DENDP_NONE; /* its place in the tables */
        s->live[(size_t)g * c->desc.n_blocks + block] = 0;
        s->block[(size_t)g * c->desc.n_blocks + s->n_taken[g]++] = block;
        pool->count[block] = 0; /* leaves will name it */
        dendp_block_truncate(c, g, block, 0);
        status = dendp_source_get(f, words, sizeof words);
        if (status == DEND_OK && (words[0] > P || words[1] != 0)) {
            status = dendp_source_bad(f, "a block has more computed slots than slots");
        }
        if (status != DEND_OK) {
            break;
        }
        pool->ready[block] = pool->claimed[block] = (uint16_t)words[0];
        n_data += words[0] ? 1u : 0u;
        if (g == 0) {
            status = dendp_source_get(f, &pool->hash[block], sizeof(uint64_t));
            if (status == DEND_OK) {
                status = dendp_source_get(f, pool->tokens + (size_t)block * P, P * sizeof(int32_t));
            }
            for (slot = 0; slot < P && status == DEND_OK; slot++) {
                int32_t token = pool->tokens[(size_t)block * P + slot];
                if (token < 0 || (uint32_t)token >= n_vocab) {
                    status = dendp_source_bad(f, "a token is outside of the vocabulary");
                }
            }
        }
    }
    if (status == DEND_OK && n_data != s->n_data[g]) {
        status = dendp_source_bad(f, "the number of blocks with data is wrong");
    }
    return status == DEND_OK ? dendp_source_end(f) : status;
}

/* Takes nodes. Each names blocks of its group, or nodes before it. */
static dend_status dendp_snapshot_get_nodes(dendp_snapshot *s, dendp_source *f, uint32_t n) {
    dendp_cache *c = s->cache;
    dendp_node_pool *np = &c->nodes;
    uint32_t k;
    dend_status status =
        dendp_source_begin(f, DENDP_SECTION_NODES, 0, 0, (uint64_t)n * DENDP_SESSION_NODE_BYTES);
    while (status == DEND_OK && s->n_nodes < n) {
        uint32_t words[2 + DENDP_FANOUT], id;
        status = dendp_source_get(f, words, sizeof words);
        if (status == DEND_OK && (words[0] >= DENDP_MAX_DEPTH || words[1] >= c->desc.n_groups)) {
            status = dendp_source_bad(f, "a table node is of no level or group");
        }
        if (status != DEND_OK) {
            break;
        }
        id = dendp_node_take(np, words[0], words[1]);
        np->heads[id].count = 0;
        for (k = 0; k < DENDP_FANOUT; k++) {
            uint32_t to = words[2 + k];
            if (to == DENDP_NONE) {
                continue;
            }
            if (words[0] == 0) {
                if (to >= s->n_blocks[words[1]]) {
                    status = dendp_source_bad(f, "a table names a block that is not there");
                    break;
                }
                to = s->block[(size_t)words[1] * c->desc.n_blocks + to];
                np->nodes[id].entry[k].block = to;
                c->pools[words[1]].count[to]++;
            } else {
                uint32_t child = to < s->n_nodes ? s->node[to] : DENDP_NONE;
                if (child == DENDP_NONE || np->heads[child].level + 1u != words[0] ||
                    np->heads[child].group != words[1]) {
                    status = dendp_source_bad(f, "a table node names one that cannot be below it");
                    break;
                }
                np->nodes[id].child[k] = child;
                np->heads[child].count++;
            }
        }
        s->node[s->n_nodes++] = id;
    }
    return status == DEND_OK ? dendp_source_end(f) : status;
}

/* Walks one table of a record: exactly the nodes and blocks that a table of that
 * length has, blocks at one place only, computed as far as the record says. */
static const char *dendp_snapshot_check_table(dendp_snapshot *s, uint32_t record, uint32_t g) {
    const dendp_cache *c = s->cache;
    const dendp_record *r = &c->records[record];
    const dendp_table *t = dendp_cache_table(c, record, g);
    const dendp_block_pool *pool = &c->pools[g];
    uint32_t P = c->desc.block_tokens, index, k, level;
    uint64_t hash = 0;
    if (t->n_blocks != dendp_div_up(r->len, P) || t->depth != dendp_table_depth_for(t->n_blocks) ||
        (t->root == DENDP_NONE) != (t->depth == 0) || t->first > t->n_blocks) {
        return "a table does not fit its sequence";
    }
    if (t->first > 0 &&
        (c->groups[g].desc.window == 0 || (uint64_t)t->first * P + c->groups[g].desc.window > r->n_ready)) {
        return "a window lacks blocks";
    }
    if (t->root != DENDP_NONE &&
        (c->nodes.heads[t->root].level + 1u != t->depth || c->nodes.heads[t->root].group != g)) {
        return "a table begins with a node of another kind";
    }
    for (index = 0; index < t->n_blocks; index += DENDP_FANOUT) {
        uint32_t id = t->root, last = dendp_min_u32(t->n_blocks, index + DENDP_FANOUT);
        for (level = t->depth; level-- > 1;) {
            uint32_t digit = dendp_table_digit(index, level);
            for (k = digit + 1; last == t->n_blocks && k < DENDP_FANOUT; k++) {
                if (c->nodes.nodes[id].child[k] != DENDP_NONE) {
                    return "a table goes on behind its end";
                }
            }
            id = c->nodes.nodes[id].child[digit];
            if (id == DENDP_NONE) {
                return "a table has a gap";
            }
        }
        for (k = 0; k < DENDP_FANOUT; k++) {
            uint32_t at = index + k, block = c->nodes.nodes[id].entry[k].block, *place, sees;
            uint16_t *live;
            if ((block != DENDP_NONE) != (at >= t->first && at < t->n_blocks)) {
                return "a table has a gap, or goes on behind its end";
            }
            if (block == DENDP_NONE) {
                continue;
            }
            sees = dendp_min_u32(P, r->len - at * P);
            place = s->block_number + (size_t)g * c->desc.n_blocks + block;
            live = s->live + (size_t)g * c->desc.n_blocks + block;
            if (*place != DENDP_NONE && *place != at) {
                return "a block stands at two places";
            }
            *place = at;
            *live = (uint16_t)dendp_max_u32(*live, sees);
            if (r->n_ready > at * P && pool->ready[block] < dendp_min_u32(P, r->n_ready - at * P)) {
                return "a sequence has computed more than its blocks";
            }
            if (g == 0) {
                if (at == t->first && at > 0) {
                    hash = pool->hash[block]; /* nobody knows what stood before */
                }
                if (pool->hash[block] != hash) {
                    return "the hash of a block does not match its tokens";
                }
                for (; sees > 0; sees--) {
                    uint32_t slot = dendp_min_u32(P, r->len - at * P) - sees;
                    hash = dendp_hash2(hash, (uint64_t)(uint32_t)pool->tokens[(size_t)block * P + slot]);
                }
            }
        }
    }
    return g == 0 && hash != r->hash ? "the hash of a sequence does not match its tokens" : NULL;
}

/* Takes records, and walks their tables. CONTEXT_FULL for one that is too long. */
static dend_status dendp_snapshot_get_records(dendp_snapshot *s, dendp_source *f, uint32_t n) {
    dendp_cache *c = s->cache;
    bool too_long = false; /* to be said when the section is known to be whole */
    uint32_t g;
    dend_status status =
        dendp_source_begin(f, DENDP_SECTION_RECORDS, 0, 0, n * dendp_session_record_bytes(c));
    while (status == DEND_OK && s->n_records < n) {
        uint32_t id = dendp_record_take(c);
        dendp_record *r = &c->records[id];
        dendp_session_record record;
        const char *bad = NULL;
        s->record[s->n_records++] = id;
        r->count = 0; /* sequences will name it */
        status = dendp_source_get(f, &record, sizeof record);
        if (status == DEND_OK &&
            (record.n_ready > record.len || record.n_reused > record.n_ready || record.want_logits > 1)) {
            status = dendp_source_bad(f, "the lengths of a sequence do not agree");
        }
        if (status == DEND_OK) {
            r->len = record.len;
            r->n_ready = record.n_ready;
            r->n_reused = record.n_reused;
            r->hash = record.hash;
            r->want_logits = record.want_logits != 0;
            too_long = too_long || record.len > c->desc.n_ctx;
        }
        for (g = 0; g < c->desc.n_groups && status == DEND_OK; g++) {
            dendp_table *t = dendp_cache_table(c, id, g);
            uint32_t words[4];
            status = dendp_source_get(f, words, sizeof words);
            if (status == DEND_OK && words[0] != DENDP_NONE && words[0] >= s->n_nodes) {
                status = dendp_source_bad(f, "a table begins with a node that is not there");
            }
            if (status != DEND_OK) {
                break;
            }
            t->root = words[0] == DENDP_NONE ? DENDP_NONE : s->node[words[0]];
            t->depth = words[1];
            t->n_blocks = words[2];
            t->first = words[3];
            bad = too_long ? NULL : dendp_snapshot_check_table(s, id, g);
            if (bad) {
                status = dendp_source_bad(f, bad);
            } else if (t->root != DENDP_NONE) {
                c->nodes.heads[t->root].count++;
            }
        }
    }
    if (status == DEND_OK) {
        status = dendp_source_end(f);
    }
    return status == DEND_OK && too_long
               ? DENDP_FAIL(f->err, DEND_ERR_CONTEXT_FULL, "a sequence is longer than n_ctx", f->section_at)
               : status;
}

/* Every node and block is named by somebody; blocks know what is taken of them. */
static dend_status dendp_snapshot_check_counts(dendp_snapshot *s, const dendp_source *f) {
    dendp_cache *c = s->cache;
    uint32_t i, g;
    for (i = 0; i < s->n_nodes; i++) {
        if (c->nodes.heads[s->node[i]].count == 0) {
            return dendp_source_bad(f, "a table node belongs to nobody");
        }
    }
    for (g = 0; g < c->desc.n_groups; g++) {
        for (i = 0; i < s->n_blocks[g]; i++) {
            uint32_t block = s->block[(size_t)g * c->desc.n_blocks + i];
            uint32_t live = s->live[(size_t)g * c->desc.n_blocks + block];
            if (c->pools[g].count[block] == 0 || live == 0) {
                return dendp_source_bad(f, "a block belongs to nobody");
            }
            if (c->pools[g].ready[block] > live) {
                return dendp_source_bad(f, "a block has computed slots that nobody sees");
            }
            c->pools[g].fill[block] = (uint16_t)live;
        }
    }
    return DEND_OK;
}

static dend_status dendp_snapshot_get_sequences(dendp_snapshot *s, dendp_source *f, uint32_t n, dend_seq *out,
                                                uint64_t *tags) {
    dendp_cache *c = s->cache;
    uint32_t i;
    dend_status status = dendp_source_begin(f, DENDP_SECTION_SEQUENCES, 0, 0, n * sizeof(dendp_session_seq));
    while (status == DEND_OK && s->n_seqs < n) {
        dendp_session_seq seq;
        dend_seq handle;
        dendp_slot *slot = dendp_slot_take(c, &handle);
        s->slot_record[s->n_seqs] = DENDP_NONE;
        s->slot[s->n_seqs++] = handle.slot;
        status = dendp_source_get(f, &seq, sizeof seq);
        if (status == DEND_OK && (seq.record >= s->n_records || seq.reuse > 1)) {
            status = dendp_source_bad(f, "a sequence names a record that is not there");
        }
        if (status == DEND_OK) {
            slot->stream = seq.stream;
            slot->n_forks = seq.n_forks;
            slot->reuse = seq.reuse != 0;
            s->slot_record[s->n_seqs - 1] = s->record[seq.record];
            c->records[s->record[seq.record]].count++;
            out[s->n_seqs - 1] = handle;
            if (tags) {
                tags[s->n_seqs - 1] = seq.tag;
            }
        }
    }
    if (status == DEND_OK) {
        status = dendp_source_end(f);
    }
    for (i = 0; i < s->n_records && status == DEND_OK; i++) {
        if (c->records[s->record[i]].count == 0) {
            status = dendp_source_bad(f, "a record belongs to nobody");
        }
    }
    return status;
}

static dend_status dendp_snapshot_get_sidecars(dendp_snapshot *s, dendp_source *f, uint64_t side_bytes) {
    dendp_cache *c = s->cache;
    uint32_t i, k;
    uint64_t left = side_bytes;
    dend_status loaded = DEND_OK; /* to be said when the section is known to be whole */
    dend_status status = dendp_source_begin(f, DENDP_SECTION_SIDECARS, 0, 0, side_bytes);
    for (i = 0; i < s->n_records; i++) {
        for (k = 0; k < c->desc.n_sidecars && status == DEND_OK; k++) {
            const dendp_sidecar_vtable *vt = c->desc.sidecars[k];
            unsigned char data[DENDP_SIDECAR_BYTES];
            uint64_t bytes = 0;
            status = dendp_source_get(f, &bytes, sizeof bytes);
            left -= left < 8 ? left : 8;
            if (status == DEND_OK && (bytes > sizeof data || bytes > left)) {
                status = dendp_source_bad(f, "a sidecar is longer than its section");
            }
            if (status == DEND_OK) {
                left -= bytes;
                status = dendp_source_get(f, data, (size_t)bytes);
            }
            if (status == DEND_OK && bytes > 0 && loaded == DEND_OK) {
                loaded = vt->load(vt->user, data, bytes, &c->records[s->record[i]].sidecar[k]);
            }
        }
    }
    if (status == DEND_OK && left > 0) {
        status = dendp_source_bad(f, "bytes follow the sidecars");
    }
    if (status == DEND_OK) {
        status = dendp_source_end(f);
    }
    if (status == DEND_OK && loaded != DEND_OK) {
        status = DENDP_FAIL(f->err, loaded,
                            loaded == DEND_ERR_NO_BLOCKS ? "the room of a sidecar is full"
                                                         : "a sidecar cannot be read",
                            f->section_at);
    }
    return status;
}

static dend_status dendp_snapshot_get_kv(const dendp_snapshot *s, dendp_source *f, uint32_t g,
                                         uint32_t layer) {
    const dendp_cache *c = s->cache;
    uint64_t bytes = dendp_cache_layer_bytes(c, g);
    uint32_t i;
    dend_status status = dendp_source_begin(f, DENDP_SECTION_KV, g, layer, s->n_data[g] * bytes);
    for (i = 0; i < s->n_blocks[g] && status == DEND_OK; i++) {
        uint32_t block = s->block[(size_t)g * c->desc.n_blocks + i];
        if (c->pools[g].ready[block] > 0) {
            status = dendp_source_get(f, dendp_cache_tile(c, g, block, layer, 0, 0), (size_t)bytes);
        }
    }
    return status == DEND_OK ? dendp_source_end(f) : status;
}

/* Puts back all that has been taken, in the order in which it lay. */
static void dendp_snapshot_undo(dendp_snapshot *s) {
    dendp_cache *c = s->cache;
    uint32_t g, k;
    while (s->n_seqs > 0) {
        uint32_t id = s->slot[--s->n_seqs];
        c->slots[id].next_free = c->first_free_slot;
        c->first_free_slot = id;
        c->n_free_slots++;
    }
    while (s->n_records > 0) {
        uint32_t id = s->record[--s->n_records];
        dendp_record *r = &c->records[id];
        for (k = 0; k < c->desc.n_sidecars; k++) {
            if (r->sidecar[k]) {
                c->desc.sidecars[k]->release(c->desc.sidecars[k]->user, r->sidecar[k]);
            }
        }
        memset(r, 0, sizeof *r);
        r->next = c->first_free_record;
        c->first_free_record = id;
    }
    while (s->n_nodes > 0) {
        dendp_node_give(&c->nodes, s->node[--s->n_nodes]);
    }
    for (g = c->desc.n_groups; g-- > 0;) {
        while (s->n_taken[g] > 0) {
            uint32_t block = s->block[(size_t)g * c->desc.n_blocks + --s->n_taken[g]];
            c->pools[g].count[block] = 1;
            dendp_block_release(&c->pools[g], block);
        }
    }
}

static dend_status dendp_snapshot_get_all(dendp_snapshot *s, const dend_reader *reader, uint64_t fingerprint,
                                          uint32_t n_vocab, dend_seq *out, uint64_t *tags, uint32_t cap,
                                          uint32_t *n, dend_error *err) {
    dendp_cache *c = s->cache;
    dendp_session_header h;
    dendp_source source, *f = &source;
    uint32_t g, i, layer;
    uint64_t all = 0, expected = 0;
    dend_status status;
    memset(f, 0, sizeof *f);
    f->reader = reader;
    f->err = err;
    dendp_check_begin(&f->all);
    dendp_check_begin(&f->section);
    s->n_seqs = s->n_records = s->n_nodes = 0;
    *n = 0;
    status = dendp_snapshot_get_header(s, f, fingerprint, n_vocab, &h);
    if (status == DEND_OK) {
        *n = h.n_seqs;
        if (h.n_seqs > cap) {
            status = DENDP_FAIL(err, DEND_ERR_BUFFER, "more sequences than there is room for", 0);
        } else if (h.n_seqs > c->n_free_slots) {
            status = DENDP_FAIL(err, DEND_ERR_NO_SEQUENCES, "the engine has too few sequences left", 0);
        } else if (!dendp_snapshot_reserve(s, h.n_nodes)) {
            status = DENDP_FAIL(err, DEND_ERR_NO_BLOCKS, "the engine has too few blocks left", 0);
        }
    }
    if (status != DEND_OK) {
        return status;
    }
    for (g = 0; g < c->desc.n_groups; g++) {
        s->n_taken[g] = 0;
    }
    for (g = 0; g < c->desc.n_groups && status == DEND_OK; g++) {
        status = dendp_snapshot_get_blocks(s, f, g, n_vocab);
    }
    if (status == DEND_OK) {
        status = dendp_snapshot_get_nodes(s, f, h.n_nodes);
    }
    if (status == DEND_OK) {
        status = dendp_snapshot_get_records(s, f, h.n_records);
    }
    if (status == DEND_OK) {
        status = dendp_snapshot_check_counts(s, f);
    }
    if (status == DEND_OK) {
        status = dendp_snapshot_get_sequences(s, f, h.n_seqs, out, tags);
    }
    if (status == DEND_OK) {
        status = dendp_snapshot_get_sidecars(s, f, h.side_bytes);
    }
    for (g = 0; g < c->desc.n_groups; g++) {
        for (layer = 0; layer < c->groups[g].desc.n_layers && status == DEND_OK; layer++) {
            status = dendp_snapshot_get_kv(s, f, g, layer);
        }
    }
    if (status == DEND_OK) {
        expected = dendp_check_end(&f->all);
        status = dendp_source_begin(f, DENDP_SECTION_END, 0, 0, sizeof all);
    }
    if (status == DEND_OK) {
        status = dendp_source_get(f, &all, sizeof all);
    }
    if (status == DEND_OK && all != expected) {
        status = dendp_source_bad(f, "the sections do not belong together");
    }
    if (status == DEND_OK) {
        status = dendp_source_end(f);
    }
    if (status != DEND_OK) {
        dendp_snapshot_undo(s);
        return status;
    }
    for (i = 0; i < s->n_seqs; i++) {
        c->slots[s->slot[i]].record = s->slot_record[i];
    }
    for (i = 0; i < s->n_records; i++) {
        dendp_queue_update(c, s->record[i]);
    }
    c->n_streams =
        c->n_streams > h.n_streams ? c->n_streams : h.n_streams; /* new sequences draw other numbers */
    return DEND_OK;
}

/* Brings saved sequences to life: out[*n] and, unless NULL, their tags[*n].
 * FORMAT, IO, UNSUPPORTED (another model, shape, version or byte order), BUFFER
 * (cap < *n), CONTEXT_FULL, NO_BLOCKS, NO_SEQUENCES. On error no sequence has
 * changed; prefixes that nobody pinned may have been given up. */
static dend_status dendp_cache_restore(dendp_snapshot *s, const dend_reader *reader, uint64_t fingerprint,
                                       uint32_t n_vocab, dend_seq *out, uint64_t *tags, uint32_t cap,
                                       uint32_t *n, dend_error *err) {
    dend_status status;
    s->cache->closed = true; /* for what the reader may try */
    status = dendp_snapshot_get_all(s, reader, fingerprint, n_vocab, out, tags, cap, n, err);
    s->cache->closed = false;
    return status;
}
