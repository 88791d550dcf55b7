/* ==========================================================================
 * >>02.05 TENSOR DATA: the bytes of a tensor, as they lie or made from them
 * ==========================================================================
 * A catalogue (02.02) presents each tensor with a type, a shape and an order
 * of rows. Mostly that is what the file holds, and its bytes are used where
 * they lie. This room makes the difference where there is one:
 *
 *   - another type: the values are decoded (02.01) and encoded anew, when a
 *     load asks for Q8_0 or Q4_0, or a norm is stored as BF16;
 *   - one more: Gemma's folders store a norm's weight w and compute with 1 + w,
 *     GGUF stores the sum, in single precision;
 *   - another order of rows within each head of Q and K, in Llama's folders.
 *     They rotate value i of a head together with value i + d/2; GGUF's
 *     converters bring the two together, so that the pair is (2i, 2i + 1):
 *
 *         stored   0 1 2 | 3 4 5        presented   0 3 | 1 4 | 2 5
 *
 *     A dot product of Q and K does not mind the order, so nothing else changes.
 *
 * The conversion is a function of the row and the column, so any number of
 * threads may make any parts at once, from files in memory. It walks runs of at
 * most 1,024 values of one row, a multiple of every block; it allocates nothing.
 *
 * Quantising at load (dendp_gguf_quantise) only marks tensors: matrices that
 * are F32, F16 or BF16 are presented in the type that was asked for, and the
 * loader reads them as if the file had them so. The bits are those of the same
 * matrices quantised by the gguf package. What is quantised already is refused:
 * doing it twice costs quality, and the file may just be loaded as it is.
 * ======================================================================== */

static const dendp_file *dendp_gguf_file(const dendp_gguf *g, const dendp_gguf_tensor *t) {
    return t->shard ? &g->shards[t->shard - 1] : &g->file;
}

/* Whether every file is in memory, so that threads may read at once. */
static bool dendp_gguf_in_memory(const dendp_gguf *g) {
    uint32_t i;
    for (i = 0; i < g->n_shards && g->shards[i].data; i++) {
    }
    return g->file.data && i == g->n_shards;
}

/* The bytes of a tensor where they lie in memory, [n_bytes]; NULL behind a read
 * callback, and where they must be made. Of any alignment. */
static const unsigned char *dendp_gguf_tensor_data(const dendp_gguf *g, const dendp_gguf_tensor *t) {
    const dendp_file *file = dendp_gguf_file(g, t);
    return t->convert ? NULL : t->memory ? t->memory : file->data ? file->data + t->offset : NULL;
}

/* -- conversion ------------------------------------------------------------------ */

#define DENDP_CONVERT_RUN 1024u /* values: 4 KB of floats and as much of stored bytes on the stack */

/* Where row `row` of what is presented is stored. */
static uint64_t dendp_convert_row(const dendp_convert *convert, uint64_t row) {
    uint64_t width, half, in_head;
    if (convert->n_heads == 0) {
        return row;
    }
    width = convert->n_rows / convert->n_heads;
    half = width / 2;
    in_head = row % width;
    return row - in_head + in_head / 2 + (in_head % 2) * half;
}

static void dendp_encode(uint32_t type, const float *in, uint64_t n, unsigned char *out) {
    if (type == DENDP_TYPE_Q8_0) {
        dendp_encode_q8_0(in, n / 32, out);
    } else if (type == DENDP_TYPE_Q4_0) {
        dendp_encode_q4_0(in, n / 32, out);
    } else { /* F32, of this machine's byte order: what decode makes floats of */
        uint64_t i;
        for (i = 0; i < n; i++) {
            uint32_t bits = dendp_f32_bits(in[i]);
            unsigned char *p = out + 4 * i;
            p[0] = (unsigned char)bits;
            p[1] = (unsigned char)(bits >> 8);
            p[2] = (unsigned char)(bits >> 16);
            p[3] = (unsigned char)(bits >> 24);
        }
    }
}

/* Values [col, col + n) of a row, from what is stored to what is presented.
 * Both are a whole number of blocks: blocks that are stored hold one value. */
static dend_status dendp_convert_run(const dendp_gguf *g, const dendp_gguf_tensor *t, uint64_t row,
                                     uint64_t col, uint64_t n, unsigned char *dst) {
    const dendp_convert *convert = t->convert;
    uint64_t width = convert->stored->block_bytes, at;
    const dendp_file *file = dendp_gguf_file(g, t);
    unsigned char raw[4 * DENDP_CONVERT_RUN];
    float values[DENDP_CONVERT_RUN];
    const unsigned char *stored = raw;
    at = t->offset + (dendp_convert_row(convert, row) * convert->n_cols + col) * width;
    if (convert->stored == t->type && !convert->plus_one) {
        return dendp_file_read(file, at, dst, n * width) ? DEND_OK : DEND_ERR_IO;
    }
    if (file->data) {
        stored = file->data + at;
    } else if (!dendp_file_read(file, at, raw, n * width)) {
        return DEND_ERR_IO;
    }
    convert->stored->decode(stored, n, values);
    for (at = 0; convert->plus_one && at < n; at++) {
        values[at] += 1.0f;
    }
    dendp_encode(t->type->id, values, n, dst);
    return DEND_OK;
}

static dend_status dendp_convert_read(const dendp_gguf *g, const dendp_gguf_tensor *t, uint64_t first_byte,
                                      uint64_t n_bytes, unsigned char *dst) {
    const dendp_convert *convert = t->convert;
    uint64_t elems = t->type->block_elems, bytes = t->type->block_bytes;
    uint64_t at = first_byte / bytes * elems, end = (first_byte + n_bytes) / bytes * elems, n;
    dend_status status = DEND_OK;
    if (first_byte % bytes != 0 || n_bytes % bytes != 0) {
        return DEND_ERR_ARGUMENT;
    }
    for (; at < end && status == DEND_OK; at += n) {
        uint64_t row = at / convert->n_cols, col = at % convert->n_cols;
        n = convert->n_cols - col;
        n = n < end - at ? n : end - at;
        if (convert->stored != t->type || convert->plus_one) {
            n = n < DENDP_CONVERT_RUN ? n : DENDP_CONVERT_RUN;
        }
        status = dendp_convert_run(g, t, row, col, n, dst);
        dst += n / elems * bytes;
    }
    return status;
}

/* Copies bytes [first_byte, first_byte + n_bytes) of a tensor; of one that must be made, whole blocks.
 * Returns: OK; ARGUMENT outside the tensor or inside a block; IO when the callback fails. */
static dend_status dendp_gguf_read_tensor(const dendp_gguf *g, const dendp_gguf_tensor *t,
                                          uint64_t first_byte, uint64_t n_bytes, void *dst) {
    if (first_byte > t->n_bytes || n_bytes > t->n_bytes - first_byte) {
        return DEND_ERR_ARGUMENT;
    }
    if (t->convert) {
        return dendp_convert_read(g, t, first_byte, n_bytes, (unsigned char *)dst);
    }
    if (t->memory) {
        memcpy(dst, t->memory + first_byte, (size_t)n_bytes);
        return DEND_OK;
    }
    return dendp_file_read(dendp_gguf_file(g, t), t->offset + first_byte, dst, n_bytes) ? DEND_OK
                                                                                        : DEND_ERR_IO;
}

/* Gives a tensor a conversion, which begins as the identity. NULL when out of memory. */
static dendp_convert *dendp_gguf_convert(dendp_gguf *g, dendp_gguf_tensor *t) {
    dendp_convert *convert = (dendp_convert *)dendp_chain_alloc(&g->chain, sizeof *convert);
    if (convert) {
        memset(convert, 0, sizeof *convert);
        convert->stored = t->type;
        convert->n_cols = t->dims[0];
        convert->n_rows = t->n_elems / t->dims[0];
        t->convert = convert;
    }
    return convert;
}

/* Presents every matrix in type `id`: Q8_0 or Q4_0.
 * Returns: OK; UNSUPPORTED for types that are quantised, and for rows that are
 * no whole number of blocks; MEMORY. */
static dend_status dendp_gguf_quantise(dendp_gguf *g, uint32_t id, dend_error *err) {
    const dendp_type *type = dendp_type_find(id);
    uint32_t i;
    for (i = 0; i < g->n_tensors; i++) {
        dendp_gguf_tensor *t = &g->tensors[i];
        if (t->n_dims < 2) {
            continue;
        }
        if (t->type->block_elems != 1) {
            return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED,
                              "a matrix that is quantised already cannot be quantised", t->where);
        }
        if (t->dims[0] % type->block_elems != 0) {
            return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED,
                              "a matrix whose rows are no multiple of 32 cannot be quantised", t->where);
        }
        if (!t->convert && !dendp_gguf_convert(g, t)) {
            return DENDP_FAIL(err, DEND_ERR_MEMORY, "no memory for the tensor records", t->where);
        }
        t->type = type;
        t->n_bytes = t->n_elems / type->block_elems * type->block_bytes;
    }
    return DEND_OK;
}
