/* ==========================================================================
 * >>02.02 GGUF: the model file, validated whole before anything is believed
 * ==========================================================================
 * GGUF is one file for everything: hyper-parameters, vocabulary, weights (the
 * "gguf.md" of the ggml project). Versions 2 and 3 are the same bytes as long
 * as they are little-endian. n is a u64, t a u32:
 *
 *     "GGUF" | version t | n_tensors n | n_kvs n |
 *     n_kvs     times  | key: length n, bytes | value type t | value |
 *     n_tensors times  | name: length n, bytes | n_dims t | n_dims times n |
 *                      | tensor type t | offset n, from the data on |
 *     padding to a multiple of general.alignment (32 where not given)
 *     tensor data
 *
 *     value    scalar of 1 to 8 bytes | string: length n, bytes |
 *              array: element type t, count n, elements back to back
 *
 * The bytes come from anywhere, so opening proves these before it returns:
 *
 *   - every field lies inside the file, and nothing outside is ever read;
 *   - every count was held against the bytes that are left before memory was
 *     asked for, so that memory stays in proportion to the file (a factor
 *     below ten for the densest metadata, plus one 64 KB chunk);
 *   - keys and tensor names are unique, not empty, and hold no zero byte;
 *   - all types are known, a bool is 0 or 1, arrays do not nest;
 *   - a row is a whole number of blocks, no dimension is 0, no product
 *     overflows;
 *   - each tensor is aligned, inside the file, and overlaps no other.
 *
 * What we decided where the format leaves room: at most 2^20 keys and 2^20
 * tensors; names of at most 64 bytes, as the specification says; alignments
 * from 8 to 65536, powers of two; gaps between tensors are allowed.
 *
 * A failure says where: the offset of the first byte of the field at fault
 * (of a string, its length; of a tensor whose data is out of place, the
 * offset field of its record; of a duplicate, the length of the second key).
 *
 * Three sources. A file (mapped or read whole) and memory are used in place;
 * behind a read callback the metadata is read through a small buffer, arrays
 * are copied, and tensor data is read when asked for. Keys, names and strings
 * are always copied, each with a zero behind it. All copies live in a chain.
 *
 * The catalogue that opening makes serves another container too: room 02.07
 * turns a folder of safetensors into the same keys, names and shapes, so that
 * no later room asks which it was. There a tensor may lie in another file than
 * the first, in memory of the catalogue's own, or be stored in another way than
 * it is presented; only room 02.05, which reads tensors, sees that.
 *
 * Look-ups are binary searches over indices sorted by name; the sort is a heap
 * sort, so O(n log n) on hostile input too, without recursion.
 * Cost of opening: O(metadata bytes * log n).
 * ======================================================================== */

enum {
    DENDP_GGUF_U8 = 0,
    DENDP_GGUF_I8 = 1,
    DENDP_GGUF_U16 = 2,
    DENDP_GGUF_I16 = 3,
    DENDP_GGUF_U32 = 4,
    DENDP_GGUF_I32 = 5,
    DENDP_GGUF_F32 = 6,
    DENDP_GGUF_BOOL = 7,
    DENDP_GGUF_STRING = 8,
    DENDP_GGUF_ARRAY = 9,
    DENDP_GGUF_U64 = 10,
    DENDP_GGUF_I64 = 11,
    DENDP_GGUF_F64 = 12,
    DENDP_GGUF_N_TYPES = 13
};

/* Bytes of a value of each type; 0 where they vary. */
static const unsigned char dendp_gguf_value_bytes[DENDP_GGUF_N_TYPES] = {1, 1, 2, 2, 4, 4, 4,
                                                                         1, 0, 0, 8, 8, 8};

#define DENDP_GGUF_MAX_COUNT (1u << 20) /* of keys, of tensors */
#define DENDP_GGUF_MAX_KEY 65535u
#define DENDP_GGUF_MAX_NAME 64u
#define DENDP_GGUF_MIN_KV 14u     /* least bytes of a record: length, one letter, type, a byte */
#define DENDP_GGUF_MIN_TENSOR 33u /* length, one letter, n_dims, one dimension, type, offset */

typedef struct dendp_gguf_kv {
    const char *key; /* 0-terminated */
    uint32_t key_len;
    uint32_t type;              /* DENDP_GGUF_* */
    uint64_t offset;            /* of the value in the file */
    uint64_t bits;              /* scalars: integers sign-extended, floats as their bits, bools 0 or 1 */
    const char *str;            /* strings: 0-terminated copy */
    uint64_t str_len;           /* without that zero */
    uint32_t elem_type;         /* arrays: DENDP_GGUF_*, never ARRAY */
    uint64_t count;             /* arrays: elements */
    const unsigned char *elems; /* arrays: as in the file, any alignment; never NULL then */
    uint64_t elems_bytes;
} dendp_gguf_kv;

/* How a tensor is made of what is stored, where that is another thing (room 02.05). */
typedef struct dendp_convert {
    const dendp_type *stored;
    uint64_t n_rows, n_cols; /* of values, as the conversion walks them */
    uint32_t n_heads;        /* rows are in another order within each of so many heads; 0 = in the same */
    bool plus_one;           /* 1 is added to each value */
} dendp_convert;

typedef struct dendp_gguf_tensor {
    const char *name; /* 0-terminated */
    uint32_t name_len, n_dims;
    uint64_t dims[4]; /* dims[0] varies fastest: the row length; missing ones are 1 */
    const dendp_type *type;
    uint64_t offset; /* of the data in the file */
    uint64_t n_bytes, n_elems;
    uint64_t where; /* of its record in the file */
    /* containers other than GGUF: */
    uint32_t shard;               /* the file it lies in: 0 = g->file, n = g->shards[n - 1] */
    const unsigned char *memory;  /* its bytes, where they lie in no file */
    const dendp_convert *convert; /* NULL = it is presented as it is stored */
} dendp_gguf_tensor;

typedef struct dendp_gguf {
    dendp_file file;
    dendp_file *shards; /* [n_shards] more files of weights; NULL when there are none */
    uint32_t n_shards;
    dendp_chain chain;
    uint32_t version;
    uint64_t alignment, data_offset;
    uint32_t n_kvs, n_tensors;
    dendp_gguf_kv *kvs;         /* [n_kvs] in the order of the file */
    dendp_gguf_tensor *tensors; /* [n_tensors] in the order of the file */
    uint32_t *kv_order;         /* [n_kvs] indices in the order of the keys' bytes */
    uint32_t *tensor_order;     /* [n_tensors] in the order of the names' bytes */
} dendp_gguf;

/* What a look-up found. */
typedef enum dendp_found { DENDP_ABSENT = 0, DENDP_FOUND, DENDP_WRONG_TYPE } dendp_found;

/* -- order -------------------------------------------------------------------- */

/* Sorts indices[n] ascending. compare(ctx, a, b) < 0 when a comes before b, and
 * is 0 for a == b only: the result is one order, however the heap works. */
static void dendp_heap_sort(uint32_t *indices, uint32_t n,
                            int (*compare)(const void *ctx, uint32_t a, uint32_t b), const void *ctx) {
    uint32_t start = n / 2, end = n;
    while (end > 1) {
        uint32_t root, sinking;
        if (start > 0) { /* still building: the next subtree from the right */
            root = --start;
        } else { /* the greatest goes behind the heap */
            uint32_t greatest = indices[0];
            indices[0] = indices[--end];
            indices[end] = greatest;
            root = 0;
        }
        sinking = indices[root];
        while (root < end / 2) {
            uint32_t child = 2 * root + 1;
            if (child + 1 < end && compare(ctx, indices[child], indices[child + 1]) < 0) {
                child++;
            }
            if (compare(ctx, sinking, indices[child]) >= 0) {
                break;
            }
            indices[root] = indices[child];
            root = child;
        }
        indices[root] = sinking;
    }
}

/* Byte order, the shorter first where one begins with the other. */
static int dendp_compare_bytes(const char *a, uint64_t a_len, const char *b, uint64_t b_len) {
    int d = memcmp(a, b, (size_t)(a_len < b_len ? a_len : b_len));
    return d != 0 ? d : a_len < b_len ? -1 : a_len > b_len ? 1 : 0;
}

static int dendp_compare_u64(uint64_t a, uint64_t b) {
    return a < b ? -1 : a > b ? 1 : 0;
}

static int dendp_gguf_compare_keys(const void *ctx, uint32_t a, uint32_t b) {
    const dendp_gguf_kv *kvs = (const dendp_gguf_kv *)ctx;
    int d = dendp_compare_bytes(kvs[a].key, kvs[a].key_len, kvs[b].key, kvs[b].key_len);
    return d != 0 ? d : dendp_compare_u64(a, b);
}

static int dendp_gguf_compare_names(const void *ctx, uint32_t a, uint32_t b) {
    const dendp_gguf_tensor *tensors = (const dendp_gguf_tensor *)ctx;
    int d = dendp_compare_bytes(tensors[a].name, tensors[a].name_len, tensors[b].name, tensors[b].name_len);
    return d != 0 ? d : dendp_compare_u64(a, b);
}

static int dendp_gguf_compare_offsets(const void *ctx, uint32_t a, uint32_t b) {
    const dendp_gguf_tensor *tensors = (const dendp_gguf_tensor *)ctx;
    int d = dendp_compare_u64(tensors[a].offset, tensors[b].offset);
    return d != 0 ? d : dendp_compare_u64(a, b);
}

/* 0 ... n-1 sorted, in the chain; NULL when out of memory. */
static uint32_t *dendp_gguf_sorted(dendp_gguf *g, uint32_t n,
                                   int (*compare)(const void *, uint32_t, uint32_t), const void *ctx) {
    uint32_t i, *order = (uint32_t *)dendp_chain_alloc(&g->chain, (uint64_t)n * sizeof *order);
    if (order) {
        for (i = 0; i < n; i++) {
            order[i] = i;
        }
        dendp_heap_sort(order, n, compare, ctx);
    }
    return order;
}

/* -- cursor: the next field of the file ---------------------------------------- */

#define DENDP_CURSOR_BYTES 4096

typedef struct dendp_cursor {
    const dendp_file *file;
    uint64_t at;     /* of the next field; never beyond the end */
    uint64_t buf_at; /* only for callbacks: buf holds buf_n bytes from here on */
    size_t buf_n;
    unsigned char buf[DENDP_CURSOR_BYTES];
} dendp_cursor;

static uint64_t dendp_cursor_left(const dendp_cursor *c) {
    return c->file->size - c->at;
}

/* *p = the next n <= DENDP_CURSOR_BYTES bytes, valid until the next call; moves behind them. */
static dend_status dendp_take(dendp_cursor *c, size_t n, const unsigned char **p, dend_error *err) {
    uint64_t left = dendp_cursor_left(c);
    if (n > left) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "file ends inside its metadata", c->at);
    }
    if (c->file->data) {
        *p = c->file->data + c->at;
    } else {
        if (c->at < c->buf_at || c->at - c->buf_at > c->buf_n || n > c->buf_n - (c->at - c->buf_at)) {
            size_t want = left < DENDP_CURSOR_BYTES ? (size_t)left : DENDP_CURSOR_BYTES;
            c->buf_n = 0;
            if (!dendp_file_read(c->file, c->at, c->buf, want)) {
                return DENDP_FAIL(err, DEND_ERR_IO, "metadata cannot be read", c->at);
            }
            c->buf_at = c->at;
            c->buf_n = want;
        }
        *p = c->buf + (size_t)(c->at - c->buf_at);
    }
    c->at += n;
    return DEND_OK;
}

static dend_status dendp_take_u32(dendp_cursor *c, uint32_t *out, dend_error *err) {
    const unsigned char *p;
    dend_status status = dendp_take(c, 4, &p, err);
    if (status == DEND_OK) {
        *out = dendp_load32(p);
    }
    return status;
}

static dend_status dendp_take_u64(dendp_cursor *c, uint64_t *out, dend_error *err) {
    const unsigned char *p;
    dend_status status = dendp_take(c, 8, &p, err);
    if (status == DEND_OK) {
        *out = dendp_load64(p);
    }
    return status;
}

/* The length of a string, which the rest of the file must hold. */
static dend_status dendp_take_length(dendp_cursor *c, uint64_t *len, dend_error *err) {
    uint64_t where = c->at;
    dend_status status = dendp_take_u64(c, len, err);
    if (status == DEND_OK && *len > dendp_cursor_left(c)) {
        status = DENDP_FAIL(err, DEND_ERR_FORMAT, "string is longer than the rest of the file", where);
    }
    return status;
}

/* Copies `len` bytes, which are known to be there, into the chain, a zero behind them. */
static dend_status dendp_take_chars(dendp_cursor *c, dendp_chain *chain, uint64_t len, const char **out,
                                    dend_error *err) {
    char *s = (char *)dendp_chain_alloc(chain, len + 1);
    if (!s) {
        return DENDP_FAIL(err, DEND_ERR_MEMORY, "no memory for the metadata", c->at);
    }
    if (!dendp_file_read(c->file, c->at, s, len)) {
        return DENDP_FAIL(err, DEND_ERR_IO, "metadata cannot be read", c->at);
    }
    s[len] = 0;
    c->at += len;
    *out = s;
    return DEND_OK;
}

/* A key or a tensor's name: 1 to `max` bytes without zeros. */
static dend_status dendp_take_name(dendp_cursor *c, dendp_chain *chain, uint32_t max, const char **out,
                                   uint32_t *out_len, dend_error *err) {
    uint64_t where = c->at, len;
    dend_status status = dendp_take_length(c, &len, err);
    if (status != DEND_OK) {
        return status;
    }
    if (len == 0) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "empty key or tensor name", where);
    }
    if (len > max) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "key or tensor name is too long", where);
    }
    status = dendp_take_chars(c, chain, len, out, err);
    if (status == DEND_OK && memchr(*out, 0, (size_t)len)) {
        status = DENDP_FAIL(err, DEND_ERR_FORMAT, "zero byte in a key or tensor name", where);
    }
    *out_len = (uint32_t)len;
    return status;
}

/* -- opening: metadata ---------------------------------------------------------- */

/* A scalar's bytes as 64 bits, integers sign-extended. */
static uint64_t dendp_gguf_scalar(uint32_t type, const unsigned char *p) {
    switch (type) {
    case DENDP_GGUF_U8:
    case DENDP_GGUF_BOOL:
        return p[0];
    case DENDP_GGUF_I8:
        return (p[0] ^ (uint64_t)0x80) - 0x80;
    case DENDP_GGUF_U16:
        return dendp_load16(p);
    case DENDP_GGUF_I16:
        return (dendp_load16(p) ^ (uint64_t)0x8000) - 0x8000;
    case DENDP_GGUF_I32:
        return (dendp_load32(p) ^ (uint64_t)0x80000000u) - 0x80000000u;
    case DENDP_GGUF_U32:
    case DENDP_GGUF_F32:
        return dendp_load32(p);
    default:
        return dendp_load64(p);
    }
}

/* An array value. Elements of a string array are walked once for their
 * lengths; behind a callback the whole range is then read into the chain. */
static dend_status dendp_gguf_take_array(dendp_gguf *g, dendp_cursor *c, dendp_gguf_kv *kv, dend_error *err) {
    uint64_t where = c->at, start, i, n_bytes, least;
    dend_status status = dendp_take_u32(c, &kv->elem_type, err);
    if (status != DEND_OK) {
        return status;
    }
    if (kv->elem_type >= DENDP_GGUF_N_TYPES) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "unknown element type of an array", where);
    }
    if (kv->elem_type == DENDP_GGUF_ARRAY) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "arrays of arrays are not supported", where);
    }
    where = c->at;
    status = dendp_take_u64(c, &kv->count, err);
    if (status != DEND_OK) {
        return status;
    }
    least = kv->elem_type == DENDP_GGUF_STRING ? 8 : dendp_gguf_value_bytes[kv->elem_type];
    if (!dendp_mul(kv->count, least, &n_bytes) || n_bytes > dendp_cursor_left(c)) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "array is longer than the rest of the file", where);
    }
    start = c->at;
    if (kv->elem_type == DENDP_GGUF_STRING) {
        for (i = 0; i < kv->count; i++) {
            uint64_t len;
            status = dendp_take_length(c, &len, err);
            if (status != DEND_OK) {
                return status;
            }
            c->at += len;
        }
        n_bytes = c->at - start;
    }
    c->at = start + n_bytes;
    kv->elems_bytes = n_bytes;
    if (g->file.data) {
        kv->elems = g->file.data + start;
    } else {
        unsigned char *copy = (unsigned char *)dendp_chain_alloc(&g->chain, n_bytes);
        if (!copy) {
            return DENDP_FAIL(err, DEND_ERR_MEMORY, "no memory for an array of the metadata", start);
        }
        if (!dendp_file_read(&g->file, start, copy, n_bytes)) {
            return DENDP_FAIL(err, DEND_ERR_IO, "metadata cannot be read", start);
        }
        kv->elems = copy;
    }
    if (kv->elem_type == DENDP_GGUF_BOOL) {
        for (i = 0; i < kv->count; i++) {
            if (kv->elems[i] > 1) {
                return DENDP_FAIL(err, DEND_ERR_FORMAT, "bool that is neither 0 nor 1", start + i);
            }
        }
    }
    return DEND_OK;
}

/* One key and its value. */
static dend_status dendp_gguf_take_kv(dendp_gguf *g, dendp_cursor *c, dendp_gguf_kv *kv, dend_error *err) {
    const unsigned char *p;
    uint64_t where;
    dend_status status;
    memset(kv, 0, sizeof *kv);
    status = dendp_take_name(c, &g->chain, DENDP_GGUF_MAX_KEY, &kv->key, &kv->key_len, err);
    if (status != DEND_OK) {
        return status;
    }
    where = c->at;
    status = dendp_take_u32(c, &kv->type, err);
    if (status != DEND_OK) {
        return status;
    }
    if (kv->type >= DENDP_GGUF_N_TYPES) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "unknown type of a value", where);
    }
    kv->offset = c->at;
    if (kv->type == DENDP_GGUF_ARRAY) {
        return dendp_gguf_take_array(g, c, kv, err);
    }
    if (kv->type == DENDP_GGUF_STRING) {
        status = dendp_take_length(c, &kv->str_len, err);
        return status != DEND_OK ? status : dendp_take_chars(c, &g->chain, kv->str_len, &kv->str, err);
    }
    status = dendp_take(c, dendp_gguf_value_bytes[kv->type], &p, err);
    if (status != DEND_OK) {
        return status;
    }
    kv->bits = dendp_gguf_scalar(kv->type, p);
    if (kv->type == DENDP_GGUF_BOOL && kv->bits > 1) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "bool that is neither 0 nor 1", kv->offset);
    }
    return DEND_OK;
}

/* -- look-up --------------------------------------------------------------------- */

/* The value of `key`, or NULL. */
static const dendp_gguf_kv *dendp_gguf_find(const dendp_gguf *g, const char *key) {
    uint32_t low = 0, high = g->n_kvs;
    uint64_t len = strlen(key);
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        const dendp_gguf_kv *kv = &g->kvs[g->kv_order[mid]];
        int d = dendp_compare_bytes(key, len, kv->key, kv->key_len);
        if (d == 0) {
            return kv;
        }
        if (d < 0) {
            high = mid;
        } else {
            low = mid + 1;
        }
    }
    return NULL;
}

/* The tensor `name`, or NULL. */
static const dendp_gguf_tensor *dendp_gguf_tensor_find(const dendp_gguf *g, const char *name) {
    uint32_t low = 0, high = g->n_tensors;
    uint64_t len = strlen(name);
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        const dendp_gguf_tensor *t = &g->tensors[g->tensor_order[mid]];
        int d = dendp_compare_bytes(name, len, t->name, t->name_len);
        if (d == 0) {
            return t;
        }
        if (d < 0) {
            high = mid;
        } else {
            low = mid + 1;
        }
    }
    return NULL;
}

/* The offset of a key's record, for errors. */
static uint64_t dendp_gguf_kv_where(const dendp_gguf_kv *kv) {
    return kv->offset - 4 - kv->key_len - 8;
}

/* Where the look-ups below find something, they set *out; else they leave it,
 * so that a default put there before survives. */

static bool dendp_gguf_is_integer(const dendp_gguf_kv *kv) {
    switch (kv->type) {
    case DENDP_GGUF_U8:
    case DENDP_GGUF_I8:
    case DENDP_GGUF_U16:
    case DENDP_GGUF_I16:
    case DENDP_GGUF_U32:
    case DENDP_GGUF_I32:
    case DENDP_GGUF_U64:
    case DENDP_GGUF_I64:
        return true;
    default:
        return false;
    }
}

/* Any integer type whose value fits. */
static dendp_found dendp_gguf_u32(const dendp_gguf *g, const char *key, uint32_t *out) {
    const dendp_gguf_kv *kv = dendp_gguf_find(g, key);
    if (!kv) {
        return DENDP_ABSENT;
    }
    if (!dendp_gguf_is_integer(kv) ||
        kv->bits > UINT32_MAX) { /* a negative number is sign-extended, and fails here too */
        return DENDP_WRONG_TYPE;
    }
    *out = (uint32_t)kv->bits;
    return DENDP_FOUND;
}

/* A finite f32, or an f64 that a finite f32 can stand for. */
static dendp_found dendp_gguf_f32(const dendp_gguf *g, const char *key, float *out) {
    const dendp_gguf_kv *kv = dendp_gguf_find(g, key);
    if (!kv) {
        return DENDP_ABSENT;
    }
    if (kv->type == DENDP_GGUF_F32) {
        float f = dendp_bits_f32((uint32_t)kv->bits);
        if (!dendp_finite(f)) {
            return DENDP_WRONG_TYPE;
        }
        *out = f;
        return DENDP_FOUND;
    }
    if (kv->type == DENDP_GGUF_F64) {
        double d;
        memcpy(&d, &kv->bits, 8);
        /* the exponent's bits say whether it is below 2^127: true for no NaN, under any compiler flag */
        if ((kv->bits >> 52 & 0x7ff) >= 1023 + 127) {
            return DENDP_WRONG_TYPE;
        }
        *out = (float)d;
        return DENDP_FOUND;
    }
    return DENDP_WRONG_TYPE;
}

static DENDP_UNUSED dendp_found dendp_gguf_bool(const dendp_gguf *g, const char *key, bool *out) {
    const dendp_gguf_kv *kv = dendp_gguf_find(g, key);
    if (!kv) {
        return DENDP_ABSENT;
    }
    if (kv->type != DENDP_GGUF_BOOL) {
        return DENDP_WRONG_TYPE;
    }
    *out = kv->bits != 0;
    return DENDP_FOUND;
}

/* The string lives with g. It may hold zero bytes: len (may be NULL) counts them. */
static dendp_found dendp_gguf_str(const dendp_gguf *g, const char *key, const char **out, uint64_t *len) {
    const dendp_gguf_kv *kv = dendp_gguf_find(g, key);
    if (!kv) {
        return DENDP_ABSENT;
    }
    if (kv->type != DENDP_GGUF_STRING) {
        return DENDP_WRONG_TYPE;
    }
    *out = kv->str;
    if (len) {
        *len = kv->str_len;
    }
    return DENDP_FOUND;
}

/* An array of the given element type. */
static dendp_found dendp_gguf_array(const dendp_gguf *g, const char *key, uint32_t elem_type,
                                    const dendp_gguf_kv **out) {
    const dendp_gguf_kv *kv = dendp_gguf_find(g, key);
    if (!kv) {
        return DENDP_ABSENT;
    }
    if (kv->type != DENDP_GGUF_ARRAY || kv->elem_type != elem_type) {
        return DENDP_WRONG_TYPE;
    }
    *out = kv;
    return DENDP_FOUND;
}

/* The next string of a string array, not 0-terminated; false at the end.
 * *cursor starts at 0 and is the helper's own affair (a byte position). Opening
 * has checked the lengths; they are bounded here again, because a callback may
 * give other bytes when the range is read a second time, and a mapped file may
 * be written to. */
static bool dendp_gguf_next_string(const dendp_gguf_kv *kv, uint64_t *cursor, const char **s, uint64_t *len) {
    uint64_t at = *cursor, n;
    if (kv->type != DENDP_GGUF_ARRAY || kv->elem_type != DENDP_GGUF_STRING || at > kv->elems_bytes ||
        kv->elems_bytes - at < 8) {
        return false;
    }
    n = dendp_load64(kv->elems + at);
    at += 8;
    if (n > kv->elems_bytes - at) {
        return false;
    }
    *s = (const char *)(kv->elems + at);
    *len = n;
    *cursor = at + n;
    return true;
}

/* -- opening: tensors -------------------------------------------------------------- */

/* One tensor record. Whether its data is where it says is checked later. */
static dend_status dendp_gguf_take_tensor(dendp_gguf *g, dendp_cursor *c, dendp_gguf_tensor *t,
                                          dend_error *err) {
    uint64_t where, dims_at;
    uint32_t i, id;
    dend_status status;
    memset(t, 0, sizeof *t);
    t->where = c->at;
    status = dendp_take_name(c, &g->chain, DENDP_GGUF_MAX_NAME, &t->name, &t->name_len, err);
    if (status != DEND_OK) {
        return status;
    }
    where = c->at;
    status = dendp_take_u32(c, &t->n_dims, err);
    if (status != DEND_OK) {
        return status;
    }
    if (t->n_dims == 0) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "tensor without dimensions", where);
    }
    if (t->n_dims > 4) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "tensor of more than four dimensions", where);
    }
    dims_at = c->at;
    t->n_elems = 1;
    for (i = 0; i < 4; i++) {
        t->dims[i] = 1;
        if (i >= t->n_dims) {
            continue;
        }
        where = c->at;
        status = dendp_take_u64(c, &t->dims[i], err);
        if (status != DEND_OK) {
            return status;
        }
        if (t->dims[i] == 0) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "dimension of 0", where);
        }
        if (!dendp_mul(t->n_elems, t->dims[i], &t->n_elems)) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "product of dimensions overflows", where);
        }
    }
    where = c->at;
    status = dendp_take_u32(c, &id, err);
    if (status != DEND_OK) {
        return status;
    }
    t->type = dendp_type_find(id);
    if (!t->type) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, dendp_type_refusal(id), where);
    }
    if (t->dims[0] % t->type->block_elems != 0) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "row is not a whole number of blocks", dims_at);
    }
    if (!dendp_mul(t->n_elems / t->type->block_elems, t->type->block_bytes, &t->n_bytes)) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "product of dimensions overflows", dims_at);
    }
    return dendp_take_u64(c, &t->offset, err); /* from the data on, for now */
}

/* The offset field of a tensor's record, for errors. */
static uint64_t dendp_gguf_offset_where(const dendp_gguf_tensor *t) {
    return t->where + 8 + t->name_len + 4 + 8 * (uint64_t)t->n_dims + 4;
}

/* Every tensor aligned, inside the file, apart from all others; makes offsets absolute. */
static dend_status dendp_gguf_place(dendp_gguf *g, dend_error *err) {
    uint64_t room = g->data_offset < g->file.size ? g->file.size - g->data_offset : 0;
    uint32_t i, *order;
    for (i = 0; i < g->n_tensors; i++) {
        dendp_gguf_tensor *t = &g->tensors[i];
        if (t->offset % g->alignment != 0) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "tensor data is not aligned", dendp_gguf_offset_where(t));
        }
        if (t->offset > room || t->n_bytes > room - t->offset) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "tensor data lies outside the file",
                              dendp_gguf_offset_where(t));
        }
        t->offset += g->data_offset;
    }
    order = dendp_gguf_sorted(g, g->n_tensors, dendp_gguf_compare_offsets, g->tensors);
    if (!order) {
        return DENDP_FAIL(err, DEND_ERR_MEMORY, "no memory for the tensor index", 0);
    }
    for (i = 1; i < g->n_tensors; i++) {
        const dendp_gguf_tensor *a = &g->tensors[order[i - 1]], *b = &g->tensors[order[i]];
        if (b->offset - a->offset < a->n_bytes) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "tensors overlap", dendp_gguf_offset_where(b));
        }
    }
    return DEND_OK;
}

/* -- opening ------------------------------------------------------------------------ */

/* The first 24 bytes; the counts are plausible for what follows. */
static dend_status dendp_gguf_take_header(dendp_gguf *g, dendp_cursor *c, dend_error *err) {
    const unsigned char *p;
    uint64_t n_tensors, n_kvs;
    dend_status status = dendp_take(c, 4, &p, err);
    if (status != DEND_OK) {
        return status;
    }
    if (memcmp(p, "GGUF", 4) != 0) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "not a GGUF file", 0);
    }
    status = dendp_take_u32(c, &g->version, err);
    if (status != DEND_OK) {
        return status;
    }
    if (g->version == 0) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "GGUF version 0", 4);
    }
    if ((g->version & 0xffffu) == 0) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "big-endian GGUF is not supported", 4);
    }
    if (g->version == 1) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "GGUF version 1 is not supported", 4);
    }
    if (g->version > 3) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "GGUF version is newer than 3", 4);
    }
    status = dendp_take_u64(c, &n_tensors, err);
    if (status != DEND_OK) {
        return status;
    }
    status = dendp_take_u64(c, &n_kvs, err);
    if (status != DEND_OK) {
        return status;
    }
    if (n_tensors > dendp_cursor_left(c) / DENDP_GGUF_MIN_TENSOR) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "more tensors than the file has room for", 8);
    }
    if (n_kvs > (dendp_cursor_left(c) - n_tensors * DENDP_GGUF_MIN_TENSOR) / DENDP_GGUF_MIN_KV) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "more keys than the file has room for", 16);
    }
    if (n_tensors > DENDP_GGUF_MAX_COUNT) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "more than 2^20 tensors", 8);
    }
    if (n_kvs > DENDP_GGUF_MAX_COUNT) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "more than 2^20 keys", 16);
    }
    g->n_tensors = (uint32_t)n_tensors;
    g->n_kvs = (uint32_t)n_kvs;
    return DEND_OK;
}

/* All keys and values, and the index over them. */
static dend_status dendp_gguf_take_kvs(dendp_gguf *g, dendp_cursor *c, dend_error *err) {
    uint32_t i;
    dend_status status;
    g->kvs = (dendp_gguf_kv *)dendp_chain_alloc(&g->chain, (uint64_t)g->n_kvs * sizeof *g->kvs);
    if (!g->kvs) {
        return DENDP_FAIL(err, DEND_ERR_MEMORY, "no memory for the metadata", 16);
    }
    for (i = 0; i < g->n_kvs; i++) {
        status = dendp_gguf_take_kv(g, c, &g->kvs[i], err);
        if (status != DEND_OK) {
            return status;
        }
    }
    g->kv_order = dendp_gguf_sorted(g, g->n_kvs, dendp_gguf_compare_keys, g->kvs);
    if (!g->kv_order) {
        return DENDP_FAIL(err, DEND_ERR_MEMORY, "no memory for the metadata", 16);
    }
    for (i = 1; i < g->n_kvs; i++) {
        const dendp_gguf_kv *a = &g->kvs[g->kv_order[i - 1]], *b = &g->kvs[g->kv_order[i]];
        if (dendp_compare_bytes(a->key, a->key_len, b->key, b->key_len) == 0) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "duplicate key", dendp_gguf_kv_where(b));
        }
    }
    return DEND_OK;
}

/* All tensor records, the index over them, and where the data begins. */
static dend_status dendp_gguf_take_tensors(dendp_gguf *g, dendp_cursor *c, dend_error *err) {
    const dendp_gguf_kv *alignment = dendp_gguf_find(g, "general.alignment");
    uint32_t i;
    dend_status status;
    g->alignment = 32;
    if (alignment) {
        if (alignment->type != DENDP_GGUF_U32 || alignment->bits < 8 || alignment->bits > 65536 ||
            (alignment->bits & (alignment->bits - 1)) != 0) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT,
                              "general.alignment is no u32 power of two from 8 to 65536", alignment->offset);
        }
        g->alignment = alignment->bits;
    }
    g->tensors =
        (dendp_gguf_tensor *)dendp_chain_alloc(&g->chain, (uint64_t)g->n_tensors * sizeof *g->tensors);
    if (!g->tensors) {
        return DENDP_FAIL(err, DEND_ERR_MEMORY, "no memory for the tensor records", 8);
    }
    for (i = 0; i < g->n_tensors; i++) {
        status = dendp_gguf_take_tensor(g, c, &g->tensors[i], err);
        if (status != DEND_OK) {
            return status;
        }
    }
    g->data_offset = (c->at + (g->alignment - 1)) & ~(g->alignment - 1);
    g->tensor_order = dendp_gguf_sorted(g, g->n_tensors, dendp_gguf_compare_names, g->tensors);
    if (!g->tensor_order) {
        return DENDP_FAIL(err, DEND_ERR_MEMORY, "no memory for the tensor index", 8);
    }
    for (i = 1; i < g->n_tensors; i++) {
        const dendp_gguf_tensor *a = &g->tensors[g->tensor_order[i - 1]],
                                *b = &g->tensors[g->tensor_order[i]];
        if (dendp_compare_bytes(a->name, a->name_len, b->name, b->name_len) == 0) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "duplicate tensor name", b->where);
        }
    }
    return dendp_gguf_place(g, err);
}

/* Closes files that dendp_gguf.shards was made of. */
static void dendp_gguf_close_shards(dendp_file *shards, uint32_t n_shards, const dend_allocator *allocator) {
    uint32_t i;
    for (i = 0; i < n_shards; i++) {
        dendp_file_close(&shards[i]);
    }
    dendp_free(allocator, shards, (uint64_t)n_shards * sizeof *shards);
}

static void dendp_gguf_close(dendp_gguf *g) {
    dendp_gguf_close_shards(g->shards, g->n_shards, &g->chain.allocator);
    dendp_chain_free(&g->chain);
    dendp_file_close(&g->file);
    memset(g, 0, sizeof *g);
}

/* Checks what all models have in common in their descriptions. */
static dend_status dendp_model_desc_check(const dend_model_desc *desc, dend_error *err) {
    int n_sources = (desc->path ? 1 : 0) + (desc->data ? 1 : 0) + (desc->reader.read ? 1 : 0);
    if (desc->canary_begin_ != 0 || desc->canary_end_ != 0) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "model description was not zeroed", 0);
    }
    if (n_sources != 1 || (desc->data_size != 0 && !desc->data)) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "a model needs exactly one of path, data and reader", 0);
    }
    return DEND_OK;
}

/* Opens the one source that the description names. */
static dend_status dendp_model_source(dendp_file *file, const dend_model_desc *desc, dend_error *err) {
    if (desc->path) {
        return dendp_file_open(file, desc->path, !desc->no_mmap, &desc->allocator, err);
    }
    file->allocator = desc->allocator;
    if (desc->data) {
        file->data = (const unsigned char *)desc->data;
        file->size = desc->data_size;
    } else {
        file->reader = desc->reader;
        file->size = desc->reader.size;
    }
    if (file->size == 0) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "file is empty", 0);
    }
    if (file->size > UINT64_MAX / 2) { /* so that offsets plus an alignment cannot overflow */
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "reader.size is no size of a file", 0);
    }
    return DEND_OK;
}

/* Opens and validates. The description's allocator must be resolved.
 * Returns: OK; ARGUMENT, IO, FORMAT, UNSUPPORTED, MEMORY, and then *g is zeroed
 * and holds nothing. Owns: what dendp_gguf_close releases; memory that the
 * description names must outlive g. */
static dend_status dendp_gguf_open(dendp_gguf *g, const dend_model_desc *desc, dend_error *err) {
    dendp_cursor cursor;
    dend_status status;
    memset(g, 0, sizeof *g);
    g->chain.allocator = desc->allocator;
    status = dendp_model_desc_check(desc, err);
    if (status == DEND_OK) {
        status = dendp_model_source(&g->file, desc, err);
    }
    if (status == DEND_OK) {
        cursor.file = &g->file;
        cursor.at = 0;
        cursor.buf_at = 0;
        cursor.buf_n = 0;
        status = dendp_gguf_take_header(g, &cursor, err);
    }
    if (status == DEND_OK) {
        status = dendp_gguf_take_kvs(g, &cursor, err);
    }
    if (status == DEND_OK) {
        status = dendp_gguf_take_tensors(g, &cursor, err);
    }
    if (status != DEND_OK) {
        dendp_gguf_close(g);
    }
    return status;
}
