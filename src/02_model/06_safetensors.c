/* ==========================================================================
 * >>02.06 SAFETENSORS: a head of JSON, then the bytes of tensors
 * ==========================================================================
 * The container of Hugging Face's model folders ("safetensors", format
 * description in its README). Little-endian:
 *
 *     n, 8 bytes | JSON object, n bytes | tensor data
 *
 *     {"__metadata__": {"format": "pt"},
 *      "model.norm.weight": {"dtype": "BF16", "shape": [64], "data_offsets": [0, 128]}, ...}
 *
 * Shapes name the slowest dimension first, which is the reverse of GGUF's;
 * offsets count from the first byte behind the head. Opening proves, as for
 * GGUF, that what is declared is there and is apart:
 *
 *   - the head lies inside the file, begins with a brace, is at most 100 MB
 *     long, and is one JSON object, followed by nothing but spaces;
 *   - each tensor says its dtype, shape and offsets, each once, nothing else;
 *   - the dtype is known, no product overflows, and the offsets span exactly
 *     the bytes of the shape;
 *   - names are unique, and not empty;
 *   - the tensors cover the data from its first byte to its last: no two
 *     overlap, and nothing lies between them, as the format demands. They need
 *     not be aligned, for no kernel minds.
 *
 * What we decided: at most 2^20 tensors, names of at most 256 bytes, dimensions
 * below 2^48. Tensors of integers, of 8-bit floats and of no elements are read
 * over here: whether a tensor is wanted at all is the family's affair (02.09).
 *
 * A failure says where: the first byte of the key, value or token at fault.
 * The head is read twice, once to count; records and names live in the chain
 * of the catalogue. Cost: O(head bytes + n log n) for n tensors.
 * ======================================================================== */
#ifndef DEND_NO_FOLDERS

#define DENDP_ST_MAX_HEAD 100000000u
#define DENDP_ST_MAX_NAME 256u
#define DENDP_ST_MAX_DIMS 8u

/* A tensor as its container describes it. */
typedef struct dendp_st_tensor {
    const char *name; /* 0-terminated */
    uint32_t name_len;
    uint32_t n_dims;
    uint64_t dims[4];       /* slowest first, as in the file; at most the first four are kept */
    const dendp_type *type; /* NULL: no weights of ours (integers, 8-bit floats) */
    uint64_t begin, end;    /* in the file */
    uint64_t n_elems;
    uint64_t where; /* of its key in the file */
    uint64_t offsets_where;
    uint32_t shard;
} dendp_st_tensor;

typedef struct dendp_st_dtype {
    const char *name;
    uint32_t bytes, type; /* of dendp_types; UINT32_MAX for what is no weight */
} dendp_st_dtype;

static const dendp_st_dtype dendp_st_dtypes[] = {
    {"F32", 4, DENDP_TYPE_F32}, {"F16", 2, DENDP_TYPE_F16}, {"BF16", 2, DENDP_TYPE_BF16},
    {"F64", 8, UINT32_MAX},     {"I64", 8, UINT32_MAX},     {"I32", 4, UINT32_MAX},
    {"I16", 2, UINT32_MAX},     {"I8", 1, UINT32_MAX},      {"U64", 8, UINT32_MAX},
    {"U32", 4, UINT32_MAX},     {"U16", 2, UINT32_MAX},     {"U8", 1, UINT32_MAX},
    {"BOOL", 1, UINT32_MAX},    {"F8_E4M3", 1, UINT32_MAX}, {"F8_E5M2", 1, UINT32_MAX},
};

#define DENDP_N_ST_DTYPES (sizeof dendp_st_dtypes / sizeof dendp_st_dtypes[0])

/* -- one tensor ------------------------------------------------------------------- */

static dend_status dendp_st_take_dtype(dendp_json *j, const dendp_st_dtype **out, dend_error *err) {
    size_t i;
    dend_status status = dendp_json_next(j, err);
    if (status != DEND_OK) {
        return status;
    }
    if (j->kind != DENDP_JSON_STRING) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "dtype of a tensor is no string", dendp_json_where(j));
    }
    for (i = 0; i < DENDP_N_ST_DTYPES; i++) {
        if (dendp_json_is(j, dendp_st_dtypes[i].name)) {
            *out = &dendp_st_dtypes[i];
            return DEND_OK;
        }
    }
    return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "unknown dtype of a tensor", dendp_json_where(j));
}

/* The shape: an array of integers. A scalar has none, and one element. */
static dend_status dendp_st_take_shape(dendp_json *j, dendp_st_tensor *t, dend_error *err) {
    dend_status status = dendp_json_next(j, err);
    if (status == DEND_OK && j->kind != DENDP_JSON_ARRAY) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "shape of a tensor is no array", dendp_json_where(j));
    }
    t->n_elems = 1;
    while (status == DEND_OK && (status = dendp_json_next(j, err)) == DEND_OK &&
           j->kind != DENDP_JSON_ARRAY_END) {
        uint64_t dim;
        if (!dendp_json_u64(j, &dim) || dim >> 48) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "dimension of a tensor is no integer below 2^48",
                              dendp_json_where(j));
        }
        if (t->n_dims == DENDP_ST_MAX_DIMS) {
            return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "tensor of more than eight dimensions",
                              dendp_json_where(j));
        }
        if (!dendp_mul(t->n_elems, dim, &t->n_elems)) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "product of dimensions overflows", dendp_json_where(j));
        }
        if (t->n_dims < 4) {
            t->dims[t->n_dims] = dim;
        }
        t->n_dims++;
    }
    return status;
}

/* data_offsets: [begin, end), for now from the data on. */
static dend_status dendp_st_take_offsets(dendp_json *j, dendp_st_tensor *t, dend_error *err) {
    static const char msg[] = "data_offsets of a tensor are not two integers";
    dend_status status = dendp_json_next(j, err);
    t->offsets_where = dendp_json_where(j);
    if (status == DEND_OK && j->kind == DENDP_JSON_ARRAY) {
        status = dendp_json_next(j, err);
        if (status == DEND_OK && dendp_json_u64(j, &t->begin)) {
            status = dendp_json_next(j, err);
            if (status == DEND_OK && dendp_json_u64(j, &t->end)) {
                status = dendp_json_next(j, err);
                if (status == DEND_OK && j->kind == DENDP_JSON_ARRAY_END) {
                    return DEND_OK;
                }
            }
        }
    }
    return status != DEND_OK ? status : DENDP_FAIL(err, DEND_ERR_FORMAT, msg, dendp_json_where(j));
}

/* The value of a tensor's key, which is the token. */
static dend_status dendp_st_take_tensor(dendp_json *j, dendp_st_tensor *t, uint64_t data_bytes,
                                        dend_error *err) {
    const dendp_st_dtype *dtype = NULL;
    bool shape = false, offsets = false, more = true;
    uint64_t n_bytes, end_at;
    dend_status status = dendp_json_next(j, err);
    if (status == DEND_OK && j->kind != DENDP_JSON_OBJECT) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "a tensor's record is no object", dendp_json_where(j));
    }
    while (status == DEND_OK && (status = dendp_json_next_key(j, &more, err)) == DEND_OK && more) {
        uint64_t key = dendp_json_where(j);
        if (dendp_json_is(j, "dtype") && !dtype) {
            status = dendp_st_take_dtype(j, &dtype, err);
        } else if (dendp_json_is(j, "shape") && !shape) {
            shape = true;
            status = dendp_st_take_shape(j, t, err);
        } else if (dendp_json_is(j, "data_offsets") && !offsets) {
            offsets = true;
            status = dendp_st_take_offsets(j, t, err);
        } else {
            status = DENDP_FAIL(err, DEND_ERR_FORMAT, "unknown or repeated key in a tensor's record", key);
        }
    }
    if (status != DEND_OK) {
        return status;
    }
    end_at = dendp_json_where(j);
    if (!dtype || !shape || !offsets) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "a tensor's record lacks dtype, shape or data_offsets",
                          end_at);
    }
    if (t->begin > t->end || t->end > data_bytes) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "tensor data lies outside the file", t->offsets_where);
    }
    if (!dendp_mul(t->n_elems, dtype->bytes, &n_bytes)) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "product of dimensions overflows", t->where);
    }
    if (n_bytes != t->end - t->begin) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "data_offsets of a tensor do not span its shape",
                          t->offsets_where);
    }
    t->type = dtype->type == UINT32_MAX ? NULL : dendp_type_find(dtype->type);
    return DEND_OK;
}

/* -- the head --------------------------------------------------------------------- */

/* __metadata__: an object of strings; nothing in it is used. */
static dend_status dendp_st_take_metadata(dendp_json *j, dend_error *err) {
    bool more = true;
    dend_status status = dendp_json_next(j, err);
    if (status == DEND_OK && j->kind != DENDP_JSON_OBJECT) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "__metadata__ is no object", dendp_json_where(j));
    }
    while (status == DEND_OK && (status = dendp_json_next_key(j, &more, err)) == DEND_OK && more) {
        status = dendp_json_next(j, err);
        if (status == DEND_OK && j->kind != DENDP_JSON_STRING) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "__metadata__ holds something other than strings",
                              dendp_json_where(j));
        }
    }
    return status;
}

/* Every tensor of the head, [cap] at most; with tensors NULL only counts them, and checks that the head is JSON. */
static dend_status dendp_st_take_head(dendp_json *j, dendp_chain *chain, dendp_st_tensor *tensors,
                                      uint32_t cap, uint32_t *n, uint64_t data_at, uint64_t data_bytes,
                                      dend_error *err) {
    bool more = true, metadata = false;
    dend_status status = dendp_json_next(j, err);
    *n = 0;
    if (status == DEND_OK && j->kind != DENDP_JSON_OBJECT) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "head of a safetensors file is no JSON object",
                          dendp_json_where(j));
    }
    while (status == DEND_OK && (status = dendp_json_next_key(j, &more, err)) == DEND_OK && more) {
        uint64_t where = dendp_json_where(j);
        if (dendp_json_is(j, "__metadata__")) {
            status = metadata ? DENDP_FAIL(err, DEND_ERR_FORMAT, "duplicate key", where)
                              : dendp_st_take_metadata(j, err);
            metadata = true;
            continue;
        }
        if (j->len == 0 || j->len > DENDP_ST_MAX_NAME) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "name of a tensor is empty or longer than 256 bytes",
                              where);
        }
        if (*n == cap) {
            return tensors ? DENDP_FAIL(err, DEND_ERR_FORMAT, "file changed while it was read", where)
                           : DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "more than 2^20 tensors", where);
        }
        if (tensors) {
            dendp_st_tensor *t = &tensors[*n];
            memset(t, 0, sizeof *t);
            t->where = where;
            t->name_len = (uint32_t)j->len;
            status = dendp_json_text(j, chain, &t->name, err);
            if (status == DEND_OK && memchr(t->name, 0, t->name_len)) {
                status = DENDP_FAIL(err, DEND_ERR_FORMAT, "zero byte in a key or tensor name", where);
            }
            if (status == DEND_OK) {
                status = dendp_st_take_tensor(j, t, data_bytes, err);
            }
            t->begin += data_at;
            t->end += data_at;
        } else {
            status = dendp_json_skip(j, err);
        }
        ++*n;
    }
    return status == DEND_OK ? dendp_json_next(j, err) : status; /* nothing but spaces may follow */
}

static int dendp_st_compare_names(const void *ctx, uint32_t a, uint32_t b) {
    const dendp_st_tensor *tensors = (const dendp_st_tensor *)ctx;
    int d = dendp_compare_bytes(tensors[a].name, tensors[a].name_len, tensors[b].name, tensors[b].name_len);
    return d != 0 ? d : dendp_compare_u64(a, b);
}

static int dendp_st_compare_places(const void *ctx, uint32_t a, uint32_t b) {
    const dendp_st_tensor *tensors = (const dendp_st_tensor *)ctx;
    int d = dendp_compare_u64(tensors[a].begin, tensors[b].begin);
    d = d != 0 ? d : dendp_compare_u64(tensors[a].end, tensors[b].end); /* those without bytes first */
    return d != 0 ? d : dendp_compare_u64(a, b);
}

/* Unique names, and data that is covered exactly. */
static dend_status dendp_st_check(dendp_gguf *g, const dendp_st_tensor *tensors, uint32_t n, uint64_t data_at,
                                  uint64_t file_bytes, dend_error *err) {
    uint32_t i, *order = dendp_gguf_sorted(g, n, dendp_st_compare_names, tensors);
    uint64_t end = data_at;
    if (!order) {
        return DENDP_FAIL(err, DEND_ERR_MEMORY, "no memory for the tensor index", 0);
    }
    for (i = 1; i < n; i++) {
        const dendp_st_tensor *a = &tensors[order[i - 1]], *b = &tensors[order[i]];
        if (dendp_compare_bytes(a->name, a->name_len, b->name, b->name_len) == 0) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "duplicate tensor name", b->where);
        }
    }
    for (i = 0; i < n; i++) {
        order[i] = i;
    }
    dendp_heap_sort(order, n, dendp_st_compare_places, tensors);
    for (i = 0; i < n; i++) {
        const dendp_st_tensor *t = &tensors[order[i]];
        if (t->begin != end) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT,
                              t->begin < end ? "tensors overlap" : "bytes between tensors belong to none",
                              t->offsets_where);
        }
        end = t->end;
    }
    return end == file_bytes
               ? DEND_OK
               : DENDP_FAIL(err, DEND_ERR_FORMAT, "bytes behind the last tensor belong to none", end);
}

/* Reads and checks the head of a file, which becomes shard number `shard`. Records
 * and names live in the chain of g.
 * Returns: OK; FORMAT, UNSUPPORTED, IO, MEMORY. */
static dend_status dendp_st_open(dendp_gguf *g, const dendp_file *file, uint32_t shard, dendp_st_tensor **out,
                                 uint32_t *n_out, dend_error *err) {
    unsigned char bytes[8];
    unsigned char *copy = NULL;
    const unsigned char *text = NULL;
    dendp_st_tensor *tensors = NULL;
    uint64_t n_head = 0, data_at;
    uint32_t n = 0, i;
    dendp_json j;
    dend_status status = DEND_OK;
    if (file->size < 8) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "file is too short for a safetensors file", file->size);
    }
    if (!dendp_file_read(file, 0, bytes, 8)) {
        return DENDP_FAIL(err, DEND_ERR_IO, "metadata cannot be read", 0);
    }
    n_head = dendp_load64(bytes);
    if (n_head == 0) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "head of a safetensors file is empty", 0);
    }
    if (n_head > file->size - 8) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "head of a safetensors file is longer than the file", 0);
    }
    if (n_head > DENDP_ST_MAX_HEAD) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "head of a safetensors file is longer than 100 MB", 0);
    }
    data_at = 8 + n_head;
    if (file->data) {
        text = file->data + 8;
    } else {
        copy = (unsigned char *)dendp_alloc(&g->chain.allocator, n_head);
        if (!copy) {
            return DENDP_FAIL(err, DEND_ERR_MEMORY, "no memory for the metadata", 8);
        }
        text = copy;
        if (!dendp_file_read(file, 8, copy, n_head)) {
            status = DENDP_FAIL(err, DEND_ERR_IO, "metadata cannot be read", 8);
        }
    }
    if (status == DEND_OK && text[0] != '{') {
        status = DENDP_FAIL(err, DEND_ERR_FORMAT, "head of a safetensors file is no JSON object", 8);
    }
    if (status == DEND_OK) {
        dendp_json_open(&j, text, n_head, 8);
        status = dendp_st_take_head(&j, &g->chain, NULL, DENDP_GGUF_MAX_COUNT, &n, data_at,
                                    file->size - data_at, err);
    }
    if (status == DEND_OK) {
        tensors = (dendp_st_tensor *)dendp_chain_alloc(&g->chain, (uint64_t)n * sizeof *tensors);
        status = tensors ? DEND_OK : DENDP_FAIL(err, DEND_ERR_MEMORY, "no memory for the tensor records", 8);
    }
    if (status == DEND_OK) {
        dendp_json_open(&j, text, n_head, 8);
        status = dendp_st_take_head(&j, &g->chain, tensors, n, &n, data_at, file->size - data_at, err);
    }
    dendp_free(&g->chain.allocator, copy, n_head);
    for (i = 0; status == DEND_OK && i < n; i++) {
        tensors[i].shard = shard;
    }
    if (status == DEND_OK) {
        status = dendp_st_check(g, tensors, n, data_at, file->size, err);
    }
    *out = tensors;
    *n_out = n;
    return status;
}

#endif /* DEND_NO_FOLDERS */
