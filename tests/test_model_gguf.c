/* Room 02.02: a zoo of broken files, and files that must open, through every kind of source. */

#include <dirent.h>

#define LLVMFuzzerTestOneInput fuzz_gguf_one_input
#include "../fuzz/fuzz_gguf.c"
#undef LLVMFuzzerTestOneInput

/* The ways in. */
enum { GGUF_MAPPED, GGUF_READ_WHOLE, GGUF_MEMORY, GGUF_CALLBACK, GGUF_N_WAYS };

static const char *const gguf_way_names[] = {"mapped file", "file read whole", "memory", "callback"};

/* A callback's bytes; the n-th read fails when asked, and no read may leave the file. */
typedef struct gguf_bytes {
    const unsigned char *data;
    size_t size;
    uint64_t n_reads, fail_at;
} gguf_bytes;

static bool gguf_bytes_read(void *user, uint64_t offset, void *dst, size_t n) {
    gguf_bytes *bytes = (gguf_bytes *)user;
    assert_true(offset <= bytes->size && n <= bytes->size - offset);
    if (++bytes->n_reads == bytes->fail_at) {
        return false;
    }
    memcpy(dst, bytes->data + offset, n);
    return true;
}

/* Opens `bytes`, which also lie at `path`, in one of the four ways. */
static dend_status gguf_open(dendp_gguf *g, int way, const char *path, gguf_bytes *bytes,
                             dend_allocator allocator, dend_error *err) {
    dend_model_desc desc;
    memset(&desc, 0, sizeof desc);
    memset(err, 0, sizeof *err);
    desc.allocator = allocator;
    if (way == GGUF_MAPPED || way == GGUF_READ_WHOLE) {
        desc.path = path;
        desc.no_mmap = way == GGUF_READ_WHOLE;
    } else if (way == GGUF_MEMORY) {
        desc.data = bytes->data;
        desc.data_size = bytes->size;
    } else {
        desc.reader.read = gguf_bytes_read;
        desc.reader.size = bytes->size;
        desc.reader.user = bytes;
    }
    return dendp_gguf_open(g, &desc, err);
}

/* Exactly as many bytes as there are, so that the address sanitizer sees a read behind them. */
static unsigned char *gguf_exact_copy(const unsigned char *data, size_t size) {
    unsigned char *copy = (unsigned char *)malloc(size ? size : 1);
    assert_non_null(copy);
    memcpy(copy, data, size);
    return copy;
}

static gguf_bytes gguf_load(const char *path) {
    gguf_bytes bytes;
    size_t size;
    unsigned char *data = test_read_file(path, &size);
    memset(&bytes, 0, sizeof bytes);
    assert_non_null(data);
    bytes.data = gguf_exact_copy(data, size);
    bytes.size = size;
    free(data);
    return bytes;
}

static void gguf_unload(gguf_bytes *bytes) {
    union {
        const unsigned char *from;
        void *to;
    } p;
    p.from = bytes->data;
    free(p.to);
    memset(bytes, 0, sizeof *bytes);
}

static void gguf_assert_zeroed(const dendp_gguf *g) {
    const unsigned char *p = (const unsigned char *)g;
    size_t i;
    for (i = 0; i < sizeof *g; i++) {
        assert_int_equal(p[i], 0);
    }
}

#define GGUF_GOOD "tests/golden/bad_gguf/good_all_types.gguf"

/* The manifest's reasons, and a part of the messages that give them. */
static bool gguf_reason_fits(const char *reason, const char *msg) {
    static const char *const parts[][2] = {
        {"cut", "ends inside"},   {"magic", "not a GGUF"},  {"version", "version"},
        {"endian", "big-endian"}, {"count", "of the file"}, {"count", "the file has room"},
        {"empty", "empty"},       {"length", "long"},       {"zero", "zero byte"},
        {"0", "dimension of 0"},  {"duplicate", "dupl"},    {"type", "type"},
        {"bool", "bool"},         {"nested", "of arrays"},  {"dims", "dimensions"},
        {"overflow", "overflow"}, {"block", "blocks"},      {"align", "align"},
        {"outside", "outside"},   {"overlap", "overlap"},
    };
    size_t i;
    for (i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (strcmp(reason, parts[i][0]) == 0 && strstr(msg, parts[i][1])) {
            return true;
        }
    }
    return false;
}

/* Status, offset and reason of every file of the zoo, in all four ways, and nothing left behind. */
static void gguf_zoo(void **state) {
    FILE *manifest = fopen("tests/golden/bad_gguf/manifest.txt", "r");
    char line[256], file[128], status_name[64], reason[64], path[256];
    unsigned long long where;
    unsigned n_bad = 0, n_good = 0;
    (void)state;
    assert_non_null(manifest);
    while (fgets(line, sizeof line, manifest)) {
        gguf_bytes bytes;
        int way;
        if (line[0] == '#') {
            continue;
        }
        assert_int_equal(sscanf(line, "%127s %63s %llu %63s", file, status_name, &where, reason), 4);
        snprintf(path, sizeof path, "tests/golden/bad_gguf/%s", file);
        bytes = gguf_load(path);
        assert_true(bytes.size <= 1024);
        for (way = 0; way < GGUF_N_WAYS; way++) {
            test_heap heap;
            dendp_gguf g;
            dend_error err;
            dend_status status = gguf_open(&g, way, path, &bytes, test_heap_allocator(&heap), &err);
            if (strcmp(dend_status_name(status), status_name) != 0 || err.where != where) {
                fail_msg("%s (%s): %s at %llu expected, got %s at %llu: %s", file, gguf_way_names[way],
                         status_name, where, dend_status_name(status), (unsigned long long)err.where,
                         err.msg ? err.msg : "");
            }
            if (status == DEND_OK) {
                assert_null(err.msg);
                dendp_gguf_close(&g);
            } else {
                assert_int_equal(err.status, status);
                assert_non_null(err.msg);
                assert_true(err.room_line > 0);
                if (!gguf_reason_fits(reason, err.msg)) {
                    fail_msg("%s: \"%s\" is no message for %s", file, err.msg, reason);
                }
            }
            gguf_assert_zeroed(&g);
            assert_int_equal(heap.n_live_bytes, 0);
            /* The error is for whoever wants it. */
            {
                dend_model_desc desc;
                memset(&desc, 0, sizeof desc);
                desc.allocator = test_heap_allocator(&heap);
                desc.path = path;
                assert_int_equal(dendp_gguf_open(&g, &desc, NULL), status);
                dendp_gguf_close(&g);
            }
        }
        if (strcmp(status_name, "DEND_OK") == 0) {
            n_good++;
        } else {
            n_bad++;
        }
        gguf_unload(&bytes);
    }
    fclose(manifest);
    assert_true(n_bad >= 50);
    assert_true(n_good >= 10);
}

/* The good file as tools/make_bad_gguf.py describes it, field by field. */
static void gguf_good_file(void **state) {
    static const struct {
        const char *key;
        uint32_t type, n_bytes;
        uint64_t bits;
    } scalars[] = {{"t.u8", DENDP_GGUF_U8, 1, 255},
                   {"t.i8", DENDP_GGUF_I8, 1, (uint64_t)-128},
                   {"t.u16", DENDP_GGUF_U16, 2, 65535},
                   {"t.i16", DENDP_GGUF_I16, 2, (uint64_t)-32768},
                   {"t.u32", DENDP_GGUF_U32, 4, 4294967295u},
                   {"t.i32", DENDP_GGUF_I32, 4, (uint64_t)INT32_MIN},
                   {"t.f32", DENDP_GGUF_F32, 4, 0xbfc00000u},
                   {"t.true", DENDP_GGUF_BOOL, 1, 1},
                   {"t.false", DENDP_GGUF_BOOL, 1, 0},
                   {"t.u64", DENDP_GGUF_U64, 8, UINT64_MAX},
                   {"t.i64", DENDP_GGUF_I64, 8, (uint64_t)1 << 63},
                   {"t.f64", DENDP_GGUF_F64, 8, 0x3fb999999999999au},
                   {"t.small", DENDP_GGUF_I64, 8, 41}};
    static const struct {
        const char *key;
        uint32_t elem_type;
        uint64_t count, n_bytes;
        const char *elems;
    } arrays[] = {
        {"a.u8", DENDP_GGUF_U8, 3, 3, "\1\2\3"},
        {"a.i16", DENDP_GGUF_I16, 2, 4, "\377\377\54\1"},
        {"a.f32", DENDP_GGUF_F32, 1, 4, "\0\0\200\76"},
        {"a.bool", DENDP_GGUF_BOOL, 2, 2, "\1\0"},
        {"a.none", DENDP_GGUF_I32, 0, 0, ""},
        {"a.str", DENDP_GGUF_STRING, 3, 30, "\3\0\0\0\0\0\0\0one\0\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0\303\251\0"},
        {"a.nostr", DENDP_GGUF_STRING, 0, 0, ""}};
    static const struct {
        const char *name;
        uint32_t type, n_dims;
        uint64_t dims[4], n_elems, n_bytes, offset;
    } tensors[] = {{"x", DENDP_TYPE_F32, 2, {8, 2, 1, 1}, 16, 64, 0},
                   {"y", DENDP_TYPE_Q8_0, 2, {32, 3, 1, 1}, 96, 102, 64},
                   {"z", DENDP_TYPE_F16, 1, {4, 1, 1, 1}, 4, 8, 192}};
    gguf_bytes bytes = gguf_load(GGUF_GOOD);
    int way;
    (void)state;
    for (way = 0; way < GGUF_N_WAYS; way++) {
        test_heap heap;
        dendp_gguf g;
        dend_error err;
        size_t i;
        const dendp_gguf_kv *kv;
        ASSERT_STATUS(DEND_OK, gguf_open(&g, way, GGUF_GOOD, &bytes, test_heap_allocator(&heap), &err));
        assert_int_equal(g.version, 3);
        assert_int_equal(g.alignment, 32);
        assert_int_equal(g.n_kvs, 23);
        assert_int_equal(g.n_tensors, 3);
        assert_int_equal(g.data_offset % 32, 0);
        assert_int_equal(g.data_offset, bytes.size - 200);
        assert_int_equal(g.file.size, bytes.size);
        for (i = 0; i < sizeof scalars / sizeof scalars[0]; i++) {
            kv = dendp_gguf_find(&g, scalars[i].key);
            assert_non_null(kv);
            assert_ptr_equal(kv, &g.kvs[i + 1]); /* the order of the file */
            assert_string_equal(kv->key, scalars[i].key);
            assert_int_equal(kv->key_len, strlen(scalars[i].key));
            assert_int_equal(kv->type, scalars[i].type);
            assert_true(kv->bits == scalars[i].bits);
            assert_null(kv->str);
            assert_null(kv->elems);
            /* the value is where offset says, and the key where its record begins */
            assert_true(dendp_gguf_scalar(kv->type, bytes.data + kv->offset) == scalars[i].bits);
            assert_memory_equal(bytes.data + dendp_gguf_kv_where(kv) + 8, kv->key, kv->key_len);
            assert_int_equal(dendp_load64(bytes.data + dendp_gguf_kv_where(kv)), kv->key_len);
            assert_int_equal(dendp_gguf_kv_where(kv + 1), kv->offset + scalars[i].n_bytes);
        }
        kv = dendp_gguf_find(&g, "general.architecture");
        assert_int_equal(kv->type, DENDP_GGUF_STRING);
        assert_int_equal(kv->str_len, 4);
        assert_memory_equal(kv->str, "test", 5);
        kv = dendp_gguf_find(&g, "t.empty");
        assert_int_equal(kv->str_len, 0);
        assert_memory_equal(kv->str, "", 1);
        kv = dendp_gguf_find(&g, "t.nul");
        assert_int_equal(kv->str_len, 3);
        assert_memory_equal(kv->str, "a\0b", 4);
        for (i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
            kv = dendp_gguf_find(&g, arrays[i].key);
            assert_non_null(kv);
            assert_int_equal(kv->type, DENDP_GGUF_ARRAY);
            assert_int_equal(kv->elem_type, arrays[i].elem_type);
            assert_int_equal(kv->count, arrays[i].count);
            assert_int_equal(kv->elems_bytes, arrays[i].n_bytes);
            assert_non_null(kv->elems);
            assert_memory_equal(kv->elems, arrays[i].elems, arrays[i].n_bytes);
        }
        for (i = 0; i < 3; i++) {
            const dendp_gguf_tensor *t = dendp_gguf_tensor_find(&g, tensors[i].name);
            assert_ptr_equal(t, &g.tensors[i]);
            assert_string_equal(t->name, tensors[i].name);
            assert_int_equal(t->name_len, 1);
            assert_int_equal(t->type->id, tensors[i].type);
            assert_int_equal(t->n_dims, tensors[i].n_dims);
            assert_memory_equal(t->dims, tensors[i].dims, sizeof t->dims);
            assert_int_equal(t->n_elems, tensors[i].n_elems);
            assert_int_equal(t->n_bytes, tensors[i].n_bytes);
            assert_int_equal(t->offset, g.data_offset + tensors[i].offset);
            assert_int_equal(bytes.data[t->where + 8], (unsigned char)tensors[i].name[0]);
            assert_int_equal(dendp_load64(bytes.data + dendp_gguf_offset_where(t)), tensors[i].offset);
        }
        assert_null(dendp_gguf_find(&g, ""));
        assert_null(dendp_gguf_find(&g, "t"));
        assert_null(dendp_gguf_find(&g, "t.u"));
        assert_null(dendp_gguf_find(&g, "t.u88"));
        assert_null(dendp_gguf_find(&g, "zzz"));
        assert_null(dendp_gguf_tensor_find(&g, ""));
        assert_null(dendp_gguf_tensor_find(&g, "xx"));
        assert_null(dendp_gguf_tensor_find(&g, "a"));
        dendp_gguf_close(&g);
        assert_int_equal(heap.n_live_bytes, 0);
        dendp_gguf_close(&g); /* twice is harmless */
    }
    gguf_unload(&bytes);
}

/* Typed look-ups: conversion where it loses nothing, WRONG_TYPE else, and absent keys leave the default. */
static void gguf_lookups(void **state) {
    static const char *const not_u32[] = {"t.i8",  "t.i16",   "t.i32", "t.f32",  "t.true", "t.u64",
                                          "t.i64", "t.empty", "a.u8",  "a.none", "t.f64"};
    gguf_bytes bytes = gguf_load(GGUF_GOOD);
    test_heap heap;
    dendp_gguf g;
    dend_error err;
    const dendp_gguf_kv *kv = NULL;
    const char *s = NULL;
    uint64_t len = 99;
    uint32_t u = 77;
    float f = 7.5f;
    bool b = true;
    size_t i;
    (void)state;
    ASSERT_STATUS(DEND_OK, gguf_open(&g, GGUF_MEMORY, NULL, &bytes, test_heap_allocator(&heap), &err));
    assert_int_equal(dendp_gguf_u32(&g, "absent", &u), DENDP_ABSENT);
    assert_int_equal(dendp_gguf_f32(&g, "absent", &f), DENDP_ABSENT);
    assert_int_equal(dendp_gguf_bool(&g, "absent", &b), DENDP_ABSENT);
    assert_int_equal(dendp_gguf_str(&g, "absent", &s, &len), DENDP_ABSENT);
    assert_int_equal(dendp_gguf_array(&g, "absent", DENDP_GGUF_U8, &kv), DENDP_ABSENT);
    for (i = 0; i < sizeof not_u32 / sizeof not_u32[0]; i++) {
        assert_int_equal(dendp_gguf_u32(&g, not_u32[i], &u), DENDP_WRONG_TYPE);
    }
    assert_int_equal(dendp_gguf_f32(&g, "t.u32", &f), DENDP_WRONG_TYPE);
    assert_int_equal(dendp_gguf_f32(&g, "t.empty", &f), DENDP_WRONG_TYPE);
    assert_int_equal(dendp_gguf_bool(&g, "t.u8", &b), DENDP_WRONG_TYPE);
    assert_int_equal(dendp_gguf_str(&g, "t.u8", &s, &len), DENDP_WRONG_TYPE);
    assert_int_equal(dendp_gguf_str(&g, "a.str", &s, &len), DENDP_WRONG_TYPE);
    assert_int_equal(dendp_gguf_array(&g, "a.u8", DENDP_GGUF_I8, &kv), DENDP_WRONG_TYPE);
    assert_int_equal(dendp_gguf_array(&g, "t.u8", DENDP_GGUF_U8, &kv), DENDP_WRONG_TYPE);
    assert_true(u == 77 && f == 7.5f && b && !s && len == 99 && !kv); /* none of these wrote */
    assert_int_equal(dendp_gguf_u32(&g, "t.u8", &u), DENDP_FOUND);
    assert_int_equal(u, 255);
    assert_int_equal(dendp_gguf_u32(&g, "t.u16", &u), DENDP_FOUND);
    assert_int_equal(u, 65535);
    assert_int_equal(dendp_gguf_u32(&g, "t.u32", &u), DENDP_FOUND);
    assert_int_equal(u, UINT32_MAX);
    assert_int_equal(dendp_gguf_u32(&g, "t.small", &u), DENDP_FOUND);
    assert_int_equal(u, 41);
    assert_int_equal(dendp_gguf_f32(&g, "t.f32", &f), DENDP_FOUND);
    assert_true(f == -1.5f);
    assert_int_equal(dendp_gguf_f32(&g, "t.f64", &f), DENDP_FOUND);
    assert_true(f == 0.1f);
    assert_int_equal(dendp_gguf_bool(&g, "t.false", &b), DENDP_FOUND);
    assert_false(b);
    assert_int_equal(dendp_gguf_bool(&g, "t.true", &b), DENDP_FOUND);
    assert_true(b);
    assert_int_equal(dendp_gguf_str(&g, "t.nul", &s, &len), DENDP_FOUND);
    assert_int_equal(len, 3);
    assert_int_equal(dendp_gguf_str(&g, "general.architecture", &s, NULL), DENDP_FOUND);
    assert_string_equal(s, "test");
    assert_int_equal(dendp_gguf_array(&g, "a.u8", DENDP_GGUF_U8, &kv), DENDP_FOUND);
    assert_ptr_equal(kv, dendp_gguf_find(&g, "a.u8"));
    dendp_gguf_close(&g);
    gguf_unload(&bytes);
}

/* Floats that no finite f32 stands for are no values. */
static void gguf_float_limits(void **state) {
    static const struct {
        uint32_t type;
        uint64_t bits;
        dendp_found found;
        uint32_t f32; /* bits */
    } cases[] = {{DENDP_GGUF_F32, 0x7f800000u, DENDP_WRONG_TYPE, 0},
                 {DENDP_GGUF_F32, 0xff800000u, DENDP_WRONG_TYPE, 0},
                 {DENDP_GGUF_F32, 0x7fc00000u, DENDP_WRONG_TYPE, 0},
                 {DENDP_GGUF_F32, 0x7f7fffffu, DENDP_FOUND, 0x7f7fffffu},
                 {DENDP_GGUF_F32, 0x80000001u, DENDP_FOUND, 0x80000001u},
                 {DENDP_GGUF_F64, 0x7ff0000000000000u, DENDP_WRONG_TYPE, 0},
                 {DENDP_GGUF_F64, 0xfff0000000000000u, DENDP_WRONG_TYPE, 0},
                 {DENDP_GGUF_F64, 0x7ff8000000000000u, DENDP_WRONG_TYPE, 0},
                 {DENDP_GGUF_F64, 0x7fefffffffffffffu, DENDP_WRONG_TYPE, 0},
                 {DENDP_GGUF_F64, 0x47e0000000000000u, DENDP_WRONG_TYPE, 0},       /* 2^127 */
                 {DENDP_GGUF_F64, 0x47d0000000000000u, DENDP_FOUND, 0x7e800000u},  /* 2^126 */
                 {DENDP_GGUF_F64, 0xc000000000000000u, DENDP_FOUND, 0xc0000000u}}; /* -2 */
    size_t i;
    (void)state;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dendp_gguf g;
        dendp_gguf_kv kv;
        uint32_t order = 0;
        float f = 3.0f;
        memset(&g, 0, sizeof g);
        memset(&kv, 0, sizeof kv);
        kv.key = "k";
        kv.key_len = 1;
        kv.type = cases[i].type;
        kv.bits = cases[i].bits;
        g.kvs = &kv;
        g.kv_order = &order;
        g.n_kvs = 1;
        assert_int_equal(dendp_gguf_f32(&g, "k", &f), cases[i].found);
        assert_int_equal(dendp_f32_bits(f),
                         cases[i].found == DENDP_FOUND ? cases[i].f32 : dendp_f32_bits(3.0f));
    }
}

static void gguf_strings(void **state) {
    static const struct {
        const char *s;
        uint64_t len;
    } expected[] = {{"one", 3}, {"", 0}, {"\303\251\0", 3}};
    gguf_bytes bytes = gguf_load(GGUF_GOOD);
    int way;
    (void)state;
    for (way = 0; way < GGUF_N_WAYS; way++) {
        test_heap heap;
        dendp_gguf g;
        dend_error err;
        uint64_t cursor = 0, len = 0, i;
        const char *s = NULL;
        const dendp_gguf_kv *kv;
        ASSERT_STATUS(DEND_OK, gguf_open(&g, way, GGUF_GOOD, &bytes, test_heap_allocator(&heap), &err));
        kv = dendp_gguf_find(&g, "a.str");
        for (i = 0; i < 3; i++) {
            assert_true(dendp_gguf_next_string(kv, &cursor, &s, &len));
            assert_int_equal(len, expected[i].len);
            assert_memory_equal(s, expected[i].s, len);
        }
        assert_false(dendp_gguf_next_string(kv, &cursor, &s, &len));
        assert_false(dendp_gguf_next_string(kv, &cursor, &s, &len));
        cursor = 0;
        assert_false(dendp_gguf_next_string(dendp_gguf_find(&g, "a.nostr"), &cursor, &s, &len));
        assert_false(dendp_gguf_next_string(dendp_gguf_find(&g, "a.u8"), &cursor, &s, &len));
        assert_false(dendp_gguf_next_string(dendp_gguf_find(&g, "t.nul"), &cursor, &s, &len));
        dendp_gguf_close(&g);
    }
    gguf_unload(&bytes);
}

/* A length that was good when the file was opened and is not now does not lead outside of the array. */
static void gguf_strings_changed_later(void **state) {
    static const uint64_t lengths[] = {3, 4, 1000, UINT64_MAX, UINT64_MAX - 7, UINT64_MAX - 8};
    size_t i, k;
    (void)state;
    for (i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        unsigned char *elems = gguf_exact_copy((const unsigned char *)"\3\0\0\0\0\0\0\0abc", 11);
        dendp_gguf_kv kv;
        uint64_t cursor = 0, len = 0;
        const char *s = NULL;
        memset(&kv, 0, sizeof kv);
        for (k = 0; k < 8; k++) {
            elems[k] = (unsigned char)(lengths[i] >> (8 * k));
        }
        kv.type = DENDP_GGUF_ARRAY;
        kv.elem_type = DENDP_GGUF_STRING;
        kv.count = 1;
        kv.elems = elems;
        kv.elems_bytes = 11;
        assert_int_equal(dendp_gguf_next_string(&kv, &cursor, &s, &len), lengths[i] == 3);
        if (lengths[i] == 3) {
            /* from behind the end, not an array, not of strings: nothing */
            cursor = 12;
            assert_false(dendp_gguf_next_string(&kv, &cursor, &s, &len));
            cursor = 0;
            kv.type = DENDP_GGUF_STRING;
            assert_false(dendp_gguf_next_string(&kv, &cursor, &s, &len));
            kv.type = DENDP_GGUF_ARRAY;
            kv.elem_type = DENDP_GGUF_U8;
            assert_false(dendp_gguf_next_string(&kv, &cursor, &s, &len));
            /* an empty string at the very end */
            kv.elem_type = DENDP_GGUF_STRING;
            memset(elems, 0, 8);
            kv.elems_bytes = 8;
            assert_true(dendp_gguf_next_string(&kv, &cursor, &s, &len));
            assert_int_equal(len, 0);
            assert_false(dendp_gguf_next_string(&kv, &cursor, &s, &len));
        }
        free(elems);
    }
}

static void gguf_put(unsigned char **p, uint64_t v, int n_bytes) {
    int i;
    for (i = 0; i < n_bytes; i++) {
        *(*p)++ = (unsigned char)(v >> (8 * i));
    }
}

static void gguf_put_text(unsigned char **p, const char *s, size_t len) {
    gguf_put(p, len, 8);
    memcpy(*p, s, len);
    *p += len;
}

/* A vocabulary's worth of strings behind a callback: read in buffers, not one by one, and the same strings. */
static void gguf_long_string_array(void **state) {
    enum { N = 20000 };
    unsigned char *file = (unsigned char *)calloc(1, 128 + N * (8 + 40)), *p = file;
    test_rng rng = {11};
    gguf_bytes bytes;
    dendp_gguf g[2];
    test_heap heaps[2];
    uint64_t cursors[2] = {0, 0}, lens[2] = {0, 0};
    const char *strings[2] = {NULL, NULL};
    uint32_t i, k;
    (void)state;
    assert_non_null(file);
    memcpy(p, "GGUF\3\0\0\0", 8);
    p += 8;
    gguf_put(&p, 0, 8);
    gguf_put(&p, 1, 8);
    gguf_put_text(&p, "words", 5);
    gguf_put(&p, DENDP_GGUF_ARRAY, 4);
    gguf_put(&p, DENDP_GGUF_STRING, 4);
    gguf_put(&p, N, 8);
    for (i = 0; i < N; i++) {
        uint32_t len = test_below(&rng, 41);
        gguf_put(&p, len, 8);
        for (k = 0; k < len; k++) *p++ = (unsigned char)test_below(&rng, 256);
    }
    memset(&bytes, 0, sizeof bytes);
    bytes.data = file;
    bytes.size = (size_t)(p - file);
    for (k = 0; k < 2; k++) {
        dend_error err;
        ASSERT_STATUS(DEND_OK, gguf_open(&g[k], k ? GGUF_CALLBACK : GGUF_MEMORY, NULL, &bytes,
                                         test_heap_allocator(&heaps[k]), &err));
    }
    assert_true(heaps[0].n_live_bytes < 70000); /* one chunk: in memory nothing is copied */
    assert_ptr_equal(g[0].kvs[0].elems + g[0].kvs[0].elems_bytes, file + bytes.size);
    assert_true(bytes.n_reads < 2 * bytes.size / DENDP_CURSOR_BYTES);
    for (i = 0; i < N; i++) {
        for (k = 0; k < 2; k++) {
            assert_true(dendp_gguf_next_string(&g[k].kvs[0], &cursors[k], &strings[k], &lens[k]));
        }
        assert_int_equal(lens[0], lens[1]);
        assert_memory_equal(strings[0], strings[1], lens[0]);
    }
    for (k = 0; k < 2; k++) {
        assert_false(dendp_gguf_next_string(&g[k].kvs[0], &cursors[k], &strings[k], &lens[k]));
        dendp_gguf_close(&g[k]);
        assert_int_equal(heaps[k].n_live_bytes, 0);
    }
    free(file);
}

static void gguf_tensor_bytes(void **state) {
    gguf_bytes bytes = gguf_load("tests/golden/bad_gguf/good_data_backwards.gguf");
    int way;
    (void)state;
    for (way = 0; way < GGUF_N_WAYS; way++) {
        test_heap heap;
        dendp_gguf g;
        dend_error err;
        uint32_t i, k;
        ASSERT_STATUS(DEND_OK, gguf_open(&g, way, "tests/golden/bad_gguf/good_data_backwards.gguf", &bytes,
                                         test_heap_allocator(&heap), &err));
        assert_true(g.tensors[0].offset > g.tensors[1].offset && g.tensors[1].offset > g.tensors[2].offset);
        for (i = 0; i < g.n_tensors; i++) {
            const dendp_gguf_tensor *t = &g.tensors[i];
            const unsigned char *data = dendp_gguf_tensor_data(&g, t);
            unsigned char got[128];
            assert_int_equal(data != NULL, way != GGUF_CALLBACK);
            memset(got, 0xee, sizeof got);
            ASSERT_STATUS(DEND_OK, dendp_gguf_read_tensor(&g, t, 0, t->n_bytes, got));
            for (k = 0; k < t->n_bytes; k++) { /* the script's pattern */
                assert_int_equal(got[k], (7 * (t->offset - g.data_offset + k) + 1) & 0x3f);
                assert_true(!data || data[k] == got[k]);
            }
            assert_int_equal(got[t->n_bytes], 0xee);
            ASSERT_STATUS(DEND_OK, dendp_gguf_read_tensor(&g, t, 3, 4, got));
            assert_memory_equal(got, bytes.data + t->offset + 3, 4);
            ASSERT_STATUS(DEND_OK, dendp_gguf_read_tensor(&g, t, t->n_bytes, 0, got));
            ASSERT_STATUS(DEND_ERR_ARGUMENT, dendp_gguf_read_tensor(&g, t, t->n_bytes, 1, got));
            ASSERT_STATUS(DEND_ERR_ARGUMENT, dendp_gguf_read_tensor(&g, t, t->n_bytes + 1, 0, got));
            ASSERT_STATUS(DEND_ERR_ARGUMENT, dendp_gguf_read_tensor(&g, t, 1, t->n_bytes, got));
            ASSERT_STATUS(DEND_ERR_ARGUMENT, dendp_gguf_read_tensor(&g, t, 1, UINT64_MAX, got));
            if (way == GGUF_CALLBACK) {
                bytes.fail_at = bytes.n_reads + 1;
                ASSERT_STATUS(DEND_ERR_IO, dendp_gguf_read_tensor(&g, t, 0, 1, got));
                bytes.fail_at = 0;
            }
        }
        dendp_gguf_close(&g);
    }
    gguf_unload(&bytes);
}

/* Cut anywhere, the file does not open, and the error points into what is left. */
static void gguf_truncated_everywhere(void **state) {
    gguf_bytes bytes = gguf_load(GGUF_GOOD);
    size_t n;
    (void)state;
    for (n = 0; n < bytes.size; n++) {
        dend_error errs[2];
        int k;
        gguf_bytes part;
        memset(&part, 0, sizeof part);
        part.data = gguf_exact_copy(bytes.data, n);
        part.size = n;
        for (k = 0; k < 2; k++) {
            test_heap heap;
            dendp_gguf g;
            ASSERT_STATUS(DEND_ERR_FORMAT, gguf_open(&g, k ? GGUF_CALLBACK : GGUF_MEMORY, NULL, &part,
                                                     test_heap_allocator(&heap), &errs[k]));
            assert_true(errs[k].where <= n);
            assert_int_equal(heap.n_live_bytes, 0);
            gguf_assert_zeroed(&g);
        }
        assert_int_equal(errs[0].where, errs[1].where);
        assert_int_equal(errs[0].room_line, errs[1].room_line);
        gguf_unload(&part);
    }
    gguf_unload(&bytes);
}

/* Every allocation fails once: MEMORY, nothing leaks, and without failure it opens. */
static void gguf_out_of_memory(void **state) {
    gguf_bytes bytes = gguf_load(GGUF_GOOD);
    int way;
    (void)state;
    for (way = 0; way < GGUF_N_WAYS; way++) {
        uint64_t n;
        dend_status status = DEND_ERR_MEMORY;
        for (n = 1; status == DEND_ERR_MEMORY; n++) {
            test_heap heap;
            dendp_gguf g;
            dend_error err;
            dend_allocator allocator = test_heap_allocator(&heap);
            heap.fail_at = n;
            status = gguf_open(&g, way, GGUF_GOOD, &bytes, allocator, &err);
            if (status == DEND_OK) {
                assert_true(heap.n_allocs < n);
                dendp_gguf_close(&g);
            } else {
                assert_int_equal(status, DEND_ERR_MEMORY);
                assert_int_equal(err.status, DEND_ERR_MEMORY);
                gguf_assert_zeroed(&g);
            }
            assert_int_equal(heap.n_live_bytes, 0);
        }
        assert_true(n > 2);
        ASSERT_STATUS(DEND_OK, status);
    }
    gguf_unload(&bytes);
}

/* A file of n_kvs strings and n_tensors tensors of one f32 in scrambled order of names;
 * malloc. `pad` bytes of text in each string. */
static unsigned char *gguf_build_many(uint32_t n_kvs, uint32_t n_tensors, uint32_t pad, size_t *size) {
    size_t cap = 64 + (size_t)n_kvs * (64 + pad) + (size_t)n_tensors * (64 + 8), start;
    unsigned char *file = (unsigned char *)calloc(1, cap), *p = file;
    char *text = (char *)malloc(pad + 1), name[32];
    uint32_t i;
    assert_non_null(file);
    assert_non_null(text);
    memset(text, 'v', pad + 1);
    memcpy(p, "GGUF", 4);
    p += 4;
    gguf_put(&p, 3, 4);
    gguf_put(&p, n_tensors, 8);
    gguf_put(&p, (uint64_t)n_kvs + 1, 8);
    gguf_put_text(&p, "general.alignment", 17);
    gguf_put(&p, DENDP_GGUF_U32, 4);
    gguf_put(&p, 8, 4);
    for (i = 0; i < n_kvs; i++) {
        snprintf(name, sizeof name, "k%u", (unsigned)(i * 7919u % n_kvs));
        gguf_put_text(&p, name, strlen(name));
        gguf_put(&p, DENDP_GGUF_STRING, 4);
        gguf_put_text(&p, text, pad);
    }
    for (i = 0; i < n_tensors; i++) {
        snprintf(name, sizeof name, "blk.%u.t", (unsigned)(i * 7919u % n_tensors));
        gguf_put_text(&p, name, strlen(name));
        gguf_put(&p, 1, 4);
        gguf_put(&p, 1, 8);
        gguf_put(&p, DENDP_TYPE_F32, 4);
        gguf_put(&p, (uint64_t)i * 104729u % n_tensors * 8, 8);
    }
    start = ((size_t)(p - file) + 7) & ~(size_t)7;
    *size = start + (size_t)n_tensors * 8 - (n_tensors ? 4 : 0);
    assert_true(*size <= cap);
    free(text);
    return file;
}

/* The same where the metadata needs many chunks: long strings, and indices larger than a chunk. */
static void gguf_out_of_memory_many_chunks(void **state) {
    static const uint32_t shapes[2][3] = {{20, 20000, 40000}, {20000, 3, 0}};
    int k;
    (void)state;
    for (k = 0; k < 2; k++) {
        size_t size;
        unsigned char *file = gguf_build_many(shapes[k][0], shapes[k][1], shapes[k][2], &size);
        gguf_bytes bytes;
        uint64_t n;
        dend_status status = DEND_ERR_MEMORY;
        memset(&bytes, 0, sizeof bytes);
        bytes.data = file;
        bytes.size = size;
        for (n = 1; status == DEND_ERR_MEMORY; n++) {
            test_heap heap;
            dendp_gguf g;
            dend_error err;
            dend_allocator allocator = test_heap_allocator(&heap);
            heap.fail_at = n;
            status = gguf_open(&g, GGUF_CALLBACK, NULL, &bytes, allocator, &err);
            dendp_gguf_close(&g);
            assert_int_equal(heap.n_live_bytes, 0);
        }
        ASSERT_STATUS(DEND_OK, status);
        assert_true(n > 10);
        free(file);
    }
}

/* The n-th read fails, for every n: IO, nothing leaks. */
static void gguf_failing_reads(void **state) {
    gguf_bytes bytes = gguf_load(GGUF_GOOD);
    dend_status status = DEND_ERR_IO;
    uint64_t n;
    (void)state;
    for (n = 1; status == DEND_ERR_IO; n++) {
        test_heap heap;
        dendp_gguf g;
        dend_error err;
        bytes.n_reads = 0;
        bytes.fail_at = n;
        status = gguf_open(&g, GGUF_CALLBACK, NULL, &bytes, test_heap_allocator(&heap), &err);
        if (status != DEND_OK) {
            assert_int_equal(err.status, DEND_ERR_IO);
            assert_true(err.where < bytes.size);
            gguf_assert_zeroed(&g);
        }
        dendp_gguf_close(&g);
        assert_int_equal(heap.n_live_bytes, 0);
    }
    ASSERT_STATUS(DEND_OK, status);
    assert_true(n > 23 + 3); /* keys and names are read one by one */
    gguf_unload(&bytes);
}

/* Random damage: memory and callback agree, memory use stays in proportion, what opens can be walked. */
static void gguf_mutants(void **state) {
    static const char *const seeds[] = {GGUF_GOOD, "tests/golden/bad_gguf/good_base.gguf",
                                        "fuzz/corpus/gguf/model_llama.gguf",
                                        "fuzz/corpus/gguf/model_qwen2.gguf"};
    static const unsigned char edges[] = {0, 1, 2, 4, 8, 9, 12, 13, 0x7f, 0x80, 0xff};
    test_rng rng = {2026};
    unsigned n_opened = 0, n_refused = 0;
    size_t k;
    int round;
    (void)state;
    for (k = 0; k < sizeof seeds / sizeof seeds[0]; k++) {
        gguf_bytes seed = gguf_load(seeds[k]);
        for (round = 0; round < 2500; round++) {
            gguf_bytes mutant;
            dend_error errs[2];
            dend_status statuses[2];
            unsigned char *copy = gguf_exact_copy(seed.data, seed.size);
            uint32_t n = 1 + test_below(&rng, 3);
            int way;
            memset(&mutant, 0, sizeof mutant);
            mutant.data = copy;
            mutant.size = seed.size;
            while (n-- > 0) {
                size_t at = test_below(&rng, (uint32_t)seed.size);
                copy[at] = test_below(&rng, 2) ? edges[test_below(&rng, sizeof edges)]
                                               : (unsigned char)test_below(&rng, 256);
            }
            for (way = 0; way < 2; way++) {
                test_heap heap;
                dendp_gguf g;
                statuses[way] = gguf_open(&g, way ? GGUF_CALLBACK : GGUF_MEMORY, NULL, &mutant,
                                          test_heap_allocator(&heap), &errs[way]);
                assert_true(heap.n_live_bytes <= 10 * mutant.size + 131072);
                if (statuses[way] == DEND_OK) {
                    fuzz_gguf_walk(&g);
                    n_opened++;
                } else {
                    assert_true(statuses[way] == DEND_ERR_FORMAT || statuses[way] == DEND_ERR_UNSUPPORTED);
                    n_refused++;
                }
                dendp_gguf_close(&g);
                assert_int_equal(heap.n_live_bytes, 0);
            }
            assert_int_equal(statuses[0], statuses[1]);
            assert_int_equal(errs[0].where, errs[1].where);
            gguf_unload(&mutant);
        }
        gguf_unload(&seed);
    }
    assert_true(n_opened > 1000 && n_refused > 1000);
}

static void gguf_description(void **state) {
    gguf_bytes bytes = gguf_load(GGUF_GOOD);
    test_heap heap;
    dend_model_desc good, desc;
    dend_error err;
    dendp_gguf g;
    (void)state;
    memset(&good, 0, sizeof good);
    good.allocator = test_heap_allocator(&heap);
    memset(&err, 0, sizeof err);
    desc = good;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dendp_gguf_open(&g, &desc, &err)); /* no source */
    gguf_assert_zeroed(&g);
    good.data = bytes.data;
    good.data_size = bytes.size;
    desc = good;
    ASSERT_STATUS(DEND_OK, dendp_gguf_open(&g, &desc, &err));
    dendp_gguf_close(&g);
    desc = good;
    desc.canary_begin_ = 1;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dendp_gguf_open(&g, &desc, &err));
    desc = good;
    desc.canary_end_ = 1;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dendp_gguf_open(&g, &desc, &err));
    desc = good;
    desc.path = GGUF_GOOD;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dendp_gguf_open(&g, &desc, &err));
    desc = good;
    desc.reader.read = gguf_bytes_read;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dendp_gguf_open(&g, &desc, &err));
    desc = good;
    desc.data = NULL; /* a buffer that the caller failed to allocate */
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dendp_gguf_open(&g, &desc, &err));
    desc.reader.read = gguf_bytes_read;
    desc.reader.user = &bytes;
    desc.reader.size = bytes.size;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dendp_gguf_open(&g, &desc, &err));
    desc.data_size = 0;
    ASSERT_STATUS(DEND_OK, dendp_gguf_open(&g, &desc, &err));
    dendp_gguf_close(&g);
    desc.reader.size = UINT64_MAX;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dendp_gguf_open(&g, &desc, &err));
    desc.reader.size = 0;
    ASSERT_STATUS(DEND_ERR_FORMAT, dendp_gguf_open(&g, &desc, &err));
    memset(&desc.reader, 0, sizeof desc.reader);
    desc.path = "tests/golden/bad_gguf/no_such_file.gguf";
    ASSERT_STATUS(DEND_ERR_IO, dendp_gguf_open(&g, &desc, &err));
    desc.path = "tests/golden";
    ASSERT_STATUS(DEND_ERR_IO, dendp_gguf_open(&g, &desc, &err));
    assert_int_equal(err.status, DEND_ERR_IO);
    assert_int_equal(heap.n_live_bytes, 0);
    gguf_unload(&bytes);
}

/* Thousands of tensors, records and data in different orders: all found, memory in proportion. */
static void gguf_many_tensors(void **state) {
    size_t size;
    unsigned char *file = gguf_build_many(1000, 6000, 3, &size);
    gguf_bytes bytes;
    int k;
    (void)state;
    memset(&bytes, 0, sizeof bytes);
    bytes.data = file;
    bytes.size = size;
    for (k = 0; k < 2; k++) {
        test_heap heap;
        dendp_gguf g;
        dend_error err;
        char name[32];
        uint32_t i;
        ASSERT_STATUS(DEND_OK, gguf_open(&g, k ? GGUF_CALLBACK : GGUF_MEMORY, NULL, &bytes,
                                         test_heap_allocator(&heap), &err));
        assert_int_equal(g.n_tensors, 6000);
        assert_int_equal(g.alignment, 8);
        assert_true(heap.n_live_bytes <= 10 * size + 131072);
        for (i = 0; i < 6000; i++) {
            const dendp_gguf_tensor *t;
            snprintf(name, sizeof name, "blk.%u.t", (unsigned)(i * 7919u % 6000));
            t = dendp_gguf_tensor_find(&g, name);
            assert_ptr_equal(t, &g.tensors[i]);
            assert_int_equal(t->offset, g.data_offset + (uint64_t)i * 104729u % 6000 * 8);
        }
        for (i = 0; i < 1000; i++) {
            snprintf(name, sizeof name, "k%u", (unsigned)i);
            assert_non_null(dendp_gguf_find(&g, name));
        }
        assert_null(dendp_gguf_tensor_find(&g, "blk.6000.t"));
        assert_null(dendp_gguf_find(&g, "k1000"));
        dendp_gguf_close(&g);
    }
    free(file);
}

static int gguf_compare_values(const void *ctx, uint32_t a, uint32_t b) {
    const uint32_t *values = (const uint32_t *)ctx;
    return values[a] != values[b] ? (values[a] < values[b] ? -1 : 1) : dendp_compare_u64(a, b);
}

static void gguf_heap_sort(void **state) {
    test_rng rng = {5};
    uint32_t values[300], indices[300], seen[300], n, i, kind;
    (void)state;
    for (n = 0; n <= 300; n++) {
        for (kind = 0; kind < 4; kind++) { /* random, many equal, ascending, descending */
            for (i = 0; i < n; i++) {
                values[i] = kind == 0   ? test_below(&rng, 100000)
                            : kind == 1 ? test_below(&rng, 4)
                            : kind == 2 ? i
                                        : n - i;
                indices[i] = i;
                seen[i] = 0;
            }
            dendp_heap_sort(indices, n, gguf_compare_values, values);
            for (i = 0; i < n; i++) {
                assert_true(indices[i] < n && !seen[indices[i]]);
                seen[indices[i]] = 1;
                assert_true(i == 0 || gguf_compare_values(values, indices[i - 1], indices[i]) < 0);
            }
        }
    }
}

/* Keys of 65535 bytes are the longest. */
static void gguf_longest_key(void **state) {
    uint32_t len;
    (void)state;
    for (len = 65535; len <= 65536; len++) {
        gguf_bytes bytes;
        test_heap heap;
        dendp_gguf g;
        dend_error err;
        unsigned char *file = (unsigned char *)calloc(1, len + 64), *p = file;
        assert_non_null(file);
        memcpy(p, "GGUF\3\0\0\0", 8);
        p += 8;
        gguf_put(&p, 0, 8);
        gguf_put(&p, 1, 8);
        gguf_put(&p, len, 8);
        memset(p, 'k', len);
        p += len;
        gguf_put(&p, DENDP_GGUF_U8, 4);
        gguf_put(&p, 5, 1);
        memset(&bytes, 0, sizeof bytes);
        bytes.data = file;
        bytes.size = (size_t)(p - file);
        if (len == 65535) {
            ASSERT_STATUS(DEND_OK,
                          gguf_open(&g, GGUF_CALLBACK, NULL, &bytes, test_heap_allocator(&heap), &err));
            assert_int_equal(g.kvs[0].key_len, len);
            assert_int_equal(g.kvs[0].key[len], 0);
            assert_int_equal(g.kvs[0].bits, 5);
            dendp_gguf_close(&g);
        } else {
            ASSERT_STATUS(DEND_ERR_FORMAT,
                          gguf_open(&g, GGUF_CALLBACK, NULL, &bytes, test_heap_allocator(&heap), &err));
            assert_int_equal(err.where, 24);
        }
        assert_int_equal(heap.n_live_bytes, 0);
        free(file);
    }
}

/* A large file that exists only as a callback: a head, and zeros behind it. */
static bool gguf_zeros_read(void *user, uint64_t offset, void *dst, size_t n) {
    const gguf_bytes *head = (const gguf_bytes *)user;
    memset(dst, 0, n);
    if (offset < head->size) {
        size_t rest = head->size - (size_t)offset;
        memcpy(dst, head->data + offset, n < rest ? n : rest);
    }
    return true;
}

/* Refuses anything large, as a small machine does. */
static void *gguf_small_alloc(void *user, size_t size, size_t align) {
    return size > ((size_t)1 << 28) ? NULL : test_heap_alloc(user, size, align);
}

static void gguf_count_limits(void **state) {
    static const struct {
        uint64_t n_tensors, n_kvs;
        dend_status status;
        uint64_t where;
    } cases[] = {{(1u << 20) + 1, 0, DEND_ERR_UNSUPPORTED, 8},
                 {0, (1u << 20) + 1, DEND_ERR_UNSUPPORTED, 16},
                 {1u << 20, 0, DEND_ERR_FORMAT, 24}, /* behind the counts: an empty name */
                 {0, 1u << 20, DEND_ERR_FORMAT, 24},
                 {(uint64_t)1 << 40, 0, DEND_ERR_FORMAT, 8}};
    size_t i;
    (void)state;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        unsigned char head[24], *p = head;
        gguf_bytes bytes;
        test_heap heap;
        dend_model_desc desc;
        dend_error err;
        dendp_gguf g;
        memcpy(p, "GGUF\3\0\0\0", 8);
        p += 8;
        gguf_put(&p, cases[i].n_tensors, 8);
        gguf_put(&p, cases[i].n_kvs, 8);
        memset(&bytes, 0, sizeof bytes);
        bytes.data = head;
        bytes.size = sizeof head;
        memset(&desc, 0, sizeof desc);
        desc.allocator = test_heap_allocator(&heap);
        desc.reader.read = gguf_zeros_read;
        desc.reader.size = (uint64_t)1 << 30;
        desc.reader.user = &bytes;
        ASSERT_STATUS(cases[i].status, dendp_gguf_open(&g, &desc, &err));
        assert_int_equal(err.where, cases[i].where);
        assert_int_equal(heap.n_live_bytes, 0);
    }
}

/* A reader that claims 2^62 bytes: an array of 2^60 is then plausible, and memory ends first. */
static void gguf_huge_claims(void **state) {
    uint32_t elem_type;
    (void)state;
    for (elem_type = DENDP_GGUF_U8; elem_type <= DENDP_GGUF_U64; elem_type += DENDP_GGUF_U64) {
        unsigned char head[64], *p = head;
        gguf_bytes bytes;
        test_heap heap;
        dend_model_desc desc;
        dend_error err;
        dendp_gguf g;
        memcpy(p, "GGUF\3\0\0\0", 8);
        p += 8;
        gguf_put(&p, 0, 8);
        gguf_put(&p, 1, 8);
        gguf_put_text(&p, "k", 1);
        gguf_put(&p, DENDP_GGUF_ARRAY, 4);
        gguf_put(&p, elem_type, 4);
        gguf_put(&p, (uint64_t)1 << 58, 8);
        memset(&bytes, 0, sizeof bytes);
        bytes.data = head;
        bytes.size = (size_t)(p - head);
        memset(&desc, 0, sizeof desc);
        desc.allocator = test_heap_allocator(&heap);
        desc.allocator.alloc = gguf_small_alloc;
        desc.reader.read = gguf_zeros_read;
        desc.reader.size = (uint64_t)1 << 62;
        desc.reader.user = &bytes;
        ASSERT_STATUS(DEND_ERR_MEMORY, dendp_gguf_open(&g, &desc, &err));
        assert_int_equal(heap.n_live_bytes, 0);
    }
}

/* The seeds of the fuzz target, through the fuzz target. */
static void gguf_fuzz_corpus(void **state) {
    DIR *folder = opendir("fuzz/corpus/gguf");
    const struct dirent *entry;
    unsigned n = 0;
    (void)state;
    assert_non_null(folder);
    while ((entry = readdir(folder)) != NULL) {
        char path[512];
        gguf_bytes bytes;
        if (entry->d_name[0] == '.') {
            continue;
        }
        snprintf(path, sizeof path, "fuzz/corpus/gguf/%s", entry->d_name);
        bytes = gguf_load(path);
        assert_int_equal(fuzz_gguf_one_input(bytes.data, bytes.size), 0);
        gguf_unload(&bytes);
        n++;
    }
    closedir(folder);
    assert_true(n >= 60);
}

static const struct CMUnitTest tests_model_gguf[] = {
    cmocka_unit_test(gguf_zoo),
    cmocka_unit_test(gguf_good_file),
    cmocka_unit_test(gguf_lookups),
    cmocka_unit_test(gguf_float_limits),
    cmocka_unit_test(gguf_strings),
    cmocka_unit_test(gguf_strings_changed_later),
    cmocka_unit_test(gguf_long_string_array),
    cmocka_unit_test(gguf_tensor_bytes),
    cmocka_unit_test(gguf_truncated_everywhere),
    cmocka_unit_test(gguf_out_of_memory),
    cmocka_unit_test(gguf_out_of_memory_many_chunks),
    cmocka_unit_test(gguf_failing_reads),
    cmocka_unit_test(gguf_mutants),
    cmocka_unit_test(gguf_description),
    cmocka_unit_test(gguf_many_tensors),
    cmocka_unit_test(gguf_heap_sort),
    cmocka_unit_test(gguf_longest_key),
    cmocka_unit_test(gguf_count_limits),
    cmocka_unit_test(gguf_huge_claims),
    cmocka_unit_test(gguf_fuzz_corpus),
};
