/* ==========================================================================
 * >>07.09 SESSION: public calls for saved sequences and kept prefixes
 * ==========================================================================
 * Rooms 04.05 and 04.06 do the work; here arguments are checked, and bytes come
 * from and go to callbacks, memory and files (01.08). Saving into memory and
 * files first asks for the size, so a buffer that is too small stays as it was.
 * ======================================================================== */

/* -- prefixes ------------------------------------------------------------------ */

DEND_IMPL dend_status dend_seq_set_reuse(dend_engine *engine, dend_seq seq, bool on) {
    dendp_slot *slot = engine ? dendp_cache_slot(&engine->cache, seq) : NULL;
    if (!slot) {
        return engine ? DEND_ERR_STALE : DEND_ERR_ARGUMENT;
    }
    slot->reuse = on;
    return DEND_OK;
}

DEND_IMPL dend_status dend_prefix_pin(dend_engine *engine, dend_seq seq, uint32_t *n_tokens) {
    const dendp_slot *slot = engine ? dendp_cache_slot(&engine->cache, seq) : NULL;
    const dendp_table *tables;
    uint32_t P, len, e;
    if (!slot) {
        return engine ? DEND_ERR_STALE : DEND_ERR_ARGUMENT;
    }
    P = engine->desc.block_tokens;
    len = engine->cache.records[slot->record].n_ready / P * P;
    if (len == 0 || engine->prefixes.n_entries == 0) {
        return DEND_ERR_ARGUMENT;
    }
    tables = dendp_cache_table(&engine->cache, slot->record, 0);
    if (tables[0].first > 0 || !dendp_prefix_serves(&engine->cache, tables, len)) {
        return DEND_ERR_UNSUPPORTED;
    }
    e = dendp_prefix_list(&engine->prefixes, slot->record, len, true);
    if (e == DENDP_NONE) {
        return DEND_ERR_NO_BLOCKS;
    }
    dendp_prefix_pin(&engine->prefixes, e);
    if (n_tokens) {
        *n_tokens = len;
    }
    return DEND_OK;
}

DEND_IMPL dend_status dend_prefix_unpin(dend_engine *engine, const int32_t *tokens, size_t n) {
    uint32_t e = engine && tokens && !engine->cache.closed ? dendp_prefix_exact(&engine->prefixes, tokens, n)
                                                           : DENDP_NONE;
    if (e == DENDP_NONE || engine->prefixes.entries[e].n_pins == 0) {
        return DEND_ERR_ARGUMENT;
    }
    dendp_prefix_unpin(&engine->prefixes, e);
    return DEND_OK;
}

DEND_IMPL dend_status dend_prefix_lookup(const dend_engine *engine, const int32_t *tokens, size_t n,
                                         uint32_t *n_tokens) {
    uint32_t known;
    if (!engine || (!tokens && n) || !n_tokens) {
        return DEND_ERR_ARGUMENT;
    }
    n = n > engine->desc.n_ctx ? engine->desc.n_ctx : n;
    (void)dendp_prefix_best(&engine->prefixes, tokens, n, n_tokens, &known);
    return DEND_OK;
}

DEND_IMPL dend_status dend_prefix_clear(dend_engine *engine) {
    if (!engine || engine->cache.closed) {
        return DEND_ERR_ARGUMENT;
    }
    dendp_prefix_clear(&engine->prefixes);
    dendp_node_reclaim(&engine->cache.nodes, engine->desc.release_budget);
    return DEND_OK;
}

/* -- saving ---------------------------------------------------------------------- */

DEND_IMPL dend_status dend_save(const dend_engine *engine, const dend_seq *seqs, const uint64_t *tags,
                                uint32_t n, const dend_writer *to, uint64_t *n_bytes) {
    dendp_snapshot snapshot;
    uint64_t bytes = 0;
    dend_status status;
    if (!engine || (!seqs && n) || (to && !to->write) || (!to && !n_bytes) || engine->cache.closed) {
        return DEND_ERR_ARGUMENT;
    }
    snapshot = engine->snapshot; /* counts of this call; the arrays are the engine's */
    status = dendp_cache_save(&snapshot, seqs, tags, n, engine->model->fingerprint,
                              engine->model->config.n_vocab, to, &bytes);
    if (n_bytes && (status == DEND_OK || bytes > 0)) {
        *n_bytes = bytes;
    }
    return status;
}

typedef struct dendp_memory {
    unsigned char *data;
    uint64_t n;
} dendp_memory;

static bool dendp_memory_write(void *user, const void *data, size_t n) {
    dendp_memory *m = (dendp_memory *)user;
    memcpy(m->data + m->n, data, n);
    m->n += n;
    return true;
}

DEND_IMPL dend_status dend_save_memory(const dend_engine *engine, const dend_seq *seqs, const uint64_t *tags,
                                       uint32_t n, void *out, size_t cap, uint64_t *n_bytes) {
    dendp_memory memory;
    dend_writer writer;
    dend_status status;
    if (!n_bytes || (!out && cap)) {
        return DEND_ERR_ARGUMENT;
    }
    status = dend_save(engine, seqs, tags, n, NULL, n_bytes);
    if (status != DEND_OK) {
        return status;
    }
    if (*n_bytes > cap) {
        return DEND_ERR_BUFFER;
    }
    memory.data = (unsigned char *)out;
    memory.n = 0;
    writer.write = dendp_memory_write;
    writer.user = &memory;
    return dend_save(engine, seqs, tags, n, &writer, NULL);
}

DEND_IMPL dend_status dend_save_file(const dend_engine *engine, const dend_seq *seqs, const uint64_t *tags,
                                     uint32_t n, const char *path) {
    dendp_outfile out;
    dend_writer writer;
    uint64_t n_bytes;
    dend_status status;
    if (!path || !dendp_path_fits(path)) {
        return DEND_ERR_ARGUMENT;
    }
    status = dend_save(engine, seqs, tags, n, NULL, &n_bytes); /* what is refused touches no file */
    if (status != DEND_OK) {
        return status;
    }
    if (!dendp_outfile_open(&out, path)) {
        return DEND_ERR_IO;
    }
    writer.write = dendp_outfile_write;
    writer.user = &out;
    status = dend_save(engine, seqs, tags, n, &writer, NULL);
    return dendp_outfile_close(&out, path, status == DEND_OK) || status != DEND_OK ? status : DEND_ERR_IO;
}

DEND_IMPL dend_status dend_seq_save(const dend_engine *engine, dend_seq seq, const dend_writer *to) {
    return to ? dend_save(engine, &seq, NULL, 1, to, NULL) : DEND_ERR_ARGUMENT;
}

/* -- restoring --------------------------------------------------------------------- */

DEND_IMPL dend_status dend_restore(dend_engine *engine, const dend_reader *from, dend_seq *out,
                                   uint64_t *tags, uint32_t cap, uint32_t *n, dend_error *err) {
    dendp_snapshot snapshot;
    if (!engine || !from || !from->read || (!out && cap) || !n) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "engine, reader, out and n must be given", 0);
    }
    if (engine->cache.closed) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "a session is being saved or restored", 0);
    }
    snapshot = engine->snapshot;
    return dendp_cache_restore(&snapshot, from, engine->model->fingerprint, engine->model->config.n_vocab,
                               out, tags, cap, n, err);
}

static bool dendp_memory_read(void *user, uint64_t offset, void *dst, size_t n) {
    memcpy(dst, ((dendp_memory *)user)->data + offset, n);
    return true;
}

DEND_IMPL dend_status dend_restore_memory(dend_engine *engine, const void *data, size_t size, dend_seq *out,
                                          uint64_t *tags, uint32_t cap, uint32_t *n, dend_error *err) {
    union {
        const void *from;
        unsigned char *to; /* is only read */
    } bytes;
    dendp_memory memory;
    dend_reader reader;
    if (!data && size) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "data must be given", 0);
    }
    bytes.from = data;
    memory.data = bytes.to;
    memory.n = size;
    reader.read = dendp_memory_read;
    reader.size = size;
    reader.user = &memory;
    return dend_restore(engine, &reader, out, tags, cap, n, err);
}

DEND_IMPL dend_status dend_restore_file(dend_engine *engine, const char *path, dend_seq *out, uint64_t *tags,
                                        uint32_t cap, uint32_t *n, dend_error *err) {
    dendp_infile in;
    dend_reader reader;
    dend_status status;
    if (!path) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "a path must be given", 0);
    }
    if (!dendp_infile_open(&in, path, &reader.size)) {
        return DENDP_FAIL(err, DEND_ERR_IO, "file cannot be opened", 0);
    }
    reader.read = dendp_infile_read;
    reader.user = &in;
    status = dend_restore(engine, &reader, out, tags, cap, n, err);
    fclose(in.file);
    return status;
}

DEND_IMPL dend_status dend_seq_load(dend_engine *engine, const dend_reader *from, dend_seq *out) {
    dend_seq seq;
    uint32_t n;
    dend_status status;
    if (!out) {
        return DEND_ERR_ARGUMENT;
    }
    memset(&seq, 0, sizeof seq);
    status = dend_restore(engine, from, &seq, NULL, 1, &n, NULL);
    if (status == DEND_OK) {
        (void)dend_seq_want_logits(engine, seq);
        *out = seq;
    }
    return status;
}
