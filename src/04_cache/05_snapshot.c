/* ==========================================================================
 * >>04.05 SNAPSHOT: a sequence as bytes
 * ==========================================================================
 * Saves one sequence and brings it back into a cache of the same shape: token
 * ids, the bytes of its blocks, and whatever its sidecars write. Codecs keep
 * their state inside their tiles, so whole blocks carry it.
 *
 *     header   magic, version, shape hash, length, ready, sidecar bytes
 *     tokens   i32 [len]
 *     blocks   group by group, from the first live block on
 *     sidecars u64 length + bytes, each
 *     check    hash of all that stands before
 *
 * Restoring goes through the ordinary append, so sharing, counts and limits
 * hold; whatever fails, the half-made sequence is dropped again.
 * ======================================================================== */

#define DENDP_SNAPSHOT_MAGIC 0x51455344u /* "DSEQ" */
#define DENDP_SNAPSHOT_VERSION 1u

typedef struct dendp_writer {
    const dend_writer *to;
    uint64_t check;
    bool failed;
} dendp_writer;

/* Folds bytes into a running hash, 8 at a time; the tail is padded with its length. */
static uint64_t dendp_hash_bytes(uint64_t h, const void *data, size_t n) {
    const unsigned char *p = (const unsigned char *)data;
    for (; n >= 8; p += 8, n -= 8) {
        h = (h ^ dendp_load64(p)) * 0x9fb21c651e98df25u;
        h ^= h >> 32;
    }
    if (n) {
        unsigned char tail[8] = {0};
        memcpy(tail, p, n);
        tail[7] = (unsigned char)n;
        h = dendp_hash2(h, dendp_load64(tail));
    }
    return dendp_mix64(h + 1);
}

static void dendp_write(dendp_writer *w, const void *data, size_t n) {
    w->check = dendp_hash_bytes(w->check, data, n);
    w->failed = w->failed || (n && !w->to->write(w->to->user, data, n));
}

/* What two caches must share for blocks to be exchanged. */
static uint64_t dendp_cache_shape(const dendp_cache *c) {
    uint64_t h = dendp_hash_bytes(c->desc.block_tokens, c->desc.codec.name, strlen(c->desc.codec.name));
    uint32_t g;
    for (g = 0; g < c->desc.n_groups; g++) {
        h = dendp_hash_bytes(h, &c->groups[g].desc, sizeof c->groups[g].desc);
        h = dendp_hash2(h, c->pools[g].block_bytes);
    }
    return h;
}

/* Writes the sequence. IO when the callback fails; the cache does not change. */
static dend_status dendp_cache_save(const dendp_cache *c, const dendp_slot *slot, const dend_writer *to) {
    const dendp_record *r = &c->records[slot->record];
    dendp_writer writer, *w = &writer;
    uint32_t head[4], i, g;
    uint64_t words[2], check;
    w->to = to;
    w->check = 0;
    w->failed = false;
    head[0] = DENDP_SNAPSHOT_MAGIC;
    head[1] = DENDP_SNAPSHOT_VERSION;
    head[2] = r->len;
    head[3] = r->n_ready;
    words[0] = dendp_cache_shape(c);
    words[1] = slot->stream;
    dendp_write(w, head, sizeof head);
    dendp_write(w, words, sizeof words);
    for (i = 0; i < r->len; i++) {
        int32_t token = dendp_record_token(c, slot->record, i);
        dendp_write(w, &token, sizeof token);
    }
    for (g = 0; g < c->desc.n_groups; g++) {
        const dendp_table *t = dendp_cache_table(c, slot->record, g);
        dendp_write(w, &t->first, sizeof t->first);
        for (i = t->first; i < t->n_blocks; i++) {
            uint32_t block = dendp_table_get(&c->nodes, t, i);
            dendp_write(w, dendp_block_data(&c->pools[g], block), (size_t)c->pools[g].block_bytes);
        }
    }
    for (i = 0; i < c->desc.n_sidecars; i++) {
        const dendp_sidecar_vtable *vt = c->desc.sidecars[i];
        unsigned char bytes[256];
        uint64_t n = r->sidecar[i] ? vt->bytes(vt->user, r->sidecar[i]) : 0;
        if (n > sizeof bytes || (n && !vt->save(vt->user, r->sidecar[i], bytes))) {
            return DEND_ERR_UNSUPPORTED;
        }
        dendp_write(w, &n, sizeof n);
        dendp_write(w, bytes, (size_t)n);
    }
    check = w->check;
    dendp_write(w, &check, sizeof check);
    return w->failed ? DEND_ERR_IO : DEND_OK;
}

typedef struct dendp_source {
    const dend_reader *reader;
    uint64_t at, check;
    bool failed;
} dendp_source;

static void dendp_source_read(dendp_source *s, void *dst, size_t n) {
    if (s->failed || n > s->reader->size - s->at || (n && !s->reader->read(s->reader->user, s->at, dst, n))) {
        s->failed = true;
        memset(dst, 0, n);
        return;
    }
    s->at += n;
    s->check = dendp_hash_bytes(s->check, dst, n);
}

/* Reads blocks and sidecars into a sequence that already holds the tokens. */
static dend_status dendp_snapshot_fill(dendp_cache *c, dendp_slot *slot, dendp_source *s, uint32_t n_ready) {
    uint32_t record = slot->record, g, i;
    dendp_record *r = &c->records[record];
    uint64_t expected, check;
    for (g = 0; g < c->desc.n_groups && !s->failed; g++) {
        uint32_t first;
        dendp_source_read(s, &first, sizeof first);
        if (s->failed || first > n_ready / c->desc.block_tokens ||
            (first > 0 && c->groups[g].desc.window == 0)) {
            return DEND_ERR_FORMAT;
        }
        if (dendp_cache_trim(c, slot, g, first * c->desc.block_tokens) != DEND_OK) {
            return DEND_ERR_NO_BLOCKS;
        }
        for (i = first; i < dendp_cache_table(c, record, g)->n_blocks && !s->failed; i++) {
            uint32_t block = dendp_table_get(&c->nodes, dendp_cache_table(c, record, g), i);
            dendp_source_read(s, dendp_block_data(&c->pools[g], block), (size_t)c->pools[g].block_bytes);
            c->pools[g].ready[block] = 0;
            if (n_ready > i * c->desc.block_tokens) {
                c->pools[g].ready[block] =
                    (uint16_t)dendp_min_u32(c->desc.block_tokens, n_ready - i * c->desc.block_tokens);
            }
            c->pools[g].claimed[block] = c->pools[g].ready[block];
        }
    }
    for (i = 0; i < c->desc.n_sidecars && !s->failed; i++) {
        const dendp_sidecar_vtable *vt = c->desc.sidecars[i];
        unsigned char bytes[256];
        uint64_t n;
        dendp_source_read(s, &n, sizeof n);
        if (s->failed || n > sizeof bytes) {
            return DEND_ERR_FORMAT;
        }
        dendp_source_read(s, bytes, (size_t)n);
        if (n && !s->failed) {
            r->sidecar[i] = vt->load(vt->user, bytes, n);
            if (!r->sidecar[i]) {
                return DEND_ERR_FORMAT;
            }
        }
    }
    expected = s->check;
    dendp_source_read(s, &check, sizeof check);
    if (s->failed || check != expected) {
        return DEND_ERR_FORMAT;
    }
    for (g = 0; g < c->desc.n_groups; g++) { /* a saved block may hold more: slots of a longer sharer */
        for (i = n_ready / c->desc.block_tokens; i < dendp_cache_table(c, record, g)->n_blocks; i++) {
            uint32_t block = dendp_table_get(&c->nodes, dendp_cache_table(c, record, g), i);
            dendp_block_truncate(c, g, block, c->pools[g].ready[block]);
        }
    }
    r->n_ready = n_ready;
    r->want_logits = r->len > 0;
    dendp_queue_update(c, record);
    return DEND_OK;
}

/* Makes a new sequence from saved bytes. FORMAT for bytes that are damaged or
 * of another shape; CONTEXT_FULL, NO_BLOCKS, NO_SEQUENCES. On error nothing
 * has changed. */
static dend_status dendp_cache_restore(dendp_cache *c, const dend_reader *reader, uint32_t n_vocab,
                                       dend_seq *out) {
    dendp_source s;
    dendp_slot *slot;
    dend_seq seq;
    dend_status status;
    uint32_t head[4], i;
    uint64_t words[2], n_streams = c->n_streams;
    memset(&s, 0, sizeof s);
    s.reader = reader;
    dendp_source_read(&s, head, sizeof head);
    dendp_source_read(&s, words, sizeof words);
    if (s.failed || head[0] != DENDP_SNAPSHOT_MAGIC || head[1] != DENDP_SNAPSHOT_VERSION ||
        head[3] > head[2] || words[0] != dendp_cache_shape(c)) {
        return DEND_ERR_FORMAT;
    }
    status = dendp_cache_seq_create(c, &seq);
    if (status != DEND_OK) {
        return status;
    }
    slot = dendp_cache_slot(c, seq);
    slot->stream = words[1];
    for (i = 0; i < head[2] && status == DEND_OK; i++) {
        int32_t token;
        dendp_source_read(&s, &token, sizeof token);
        status = s.failed || token < 0 || (uint32_t)token >= n_vocab ? DEND_ERR_FORMAT
                                                                     : dendp_cache_append(c, slot, &token, 1);
    }
    if (status == DEND_OK) {
        status = dendp_snapshot_fill(c, slot, &s, head[3]);
    }
    if (status != DEND_OK) {
        dendp_cache_seq_drop(c, seq);
        c->n_streams = n_streams; /* the streams of later sequences are as if nothing had been tried */
        return status;
    }
    *out = seq;
    return DEND_OK;
}
