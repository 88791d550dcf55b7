/* libFuzzer target: any bytes as a GGUF file.
 *
 * The file is opened from memory and through a read callback; both must say
 * the same. What opens is walked to the last byte: look-ups, arrays, strings,
 * a block of each tensor, the configuration. An invariant that does not hold
 * ends in abort(), which libFuzzer reports.
 *
 *     make fuzz && build/fuzz_gguf fuzz/corpus/gguf
 */
#ifndef DENDRITE_IMPLEMENTATION
#define DENDRITE_IMPLEMENTATION
#include "dendrite.h"
#endif

#include <stdlib.h>

#define FUZZ_GGUF_REQUIRE(condition)                                                                         \
    do {                                                                                                     \
        if (!(condition)) abort();                                                                           \
    } while (0)

typedef struct fuzz_gguf_source {
    const uint8_t *data;
    size_t size;
} fuzz_gguf_source;

static bool fuzz_gguf_read(void *user, uint64_t offset, void *dst, size_t n) {
    const fuzz_gguf_source *source = (const fuzz_gguf_source *)user;
    FUZZ_GGUF_REQUIRE(offset <= source->size && n <= source->size - offset);
    memcpy(dst, source->data + offset, n);
    return true;
}

/* Counts live bytes, so that memory can be held against the size of the file. */
static void *fuzz_gguf_alloc(void *user, size_t size, size_t align) {
    size_t *live = (size_t *)user;
    void *p = dendp_default_alloc(NULL, size, align);
    *live += p ? size : 0;
    return p;
}

static void fuzz_gguf_free(void *user, void *p, size_t size) {
    size_t *live = (size_t *)user;
    FUZZ_GGUF_REQUIRE(*live >= size);
    *live -= size;
    dendp_default_free(NULL, p, size);
}

static void fuzz_gguf_walk(const dendp_gguf *g) {
    dendp_config config;
    dend_error err;
    uint32_t i, k;
    for (i = 0; i < g->n_kvs; i++) {
        const dendp_gguf_kv *kv = &g->kvs[i];
        uint64_t cursor = 0, len = 0, n = 0, sum = 0;
        const char *s = NULL;
        uint32_t u = 0;
        float f = 0;
        bool b = false;
        FUZZ_GGUF_REQUIRE(dendp_gguf_find(g, kv->key) == kv);
        (void)dendp_gguf_u32(g, kv->key, &u);
        (void)dendp_gguf_f32(g, kv->key, &f);
        FUZZ_GGUF_REQUIRE(dendp_finite(f));
        (void)dendp_gguf_bool(g, kv->key, &b);
        if (dendp_gguf_str(g, kv->key, &s, &len) == DENDP_FOUND) {
            FUZZ_GGUF_REQUIRE(s[len] == 0);
        }
        for (len = 0; kv->type == DENDP_GGUF_ARRAY && len < kv->elems_bytes; len++) {
            sum += kv->elems[len];
        }
        while (dendp_gguf_next_string(kv, &cursor, &s, &len)) {
            n++;
            sum += len ? (unsigned char)s[len - 1] : 0u;
        }
        FUZZ_GGUF_REQUIRE(kv->elem_type != DENDP_GGUF_STRING || n == kv->count);
        FUZZ_GGUF_REQUIRE(sum != UINT64_MAX);
    }
    for (i = 0; i < g->n_tensors; i++) {
        const dendp_gguf_tensor *t = &g->tensors[i];
        unsigned char block[256];
        float out[256];
        FUZZ_GGUF_REQUIRE(dendp_gguf_tensor_find(g, t->name) == t);
        FUZZ_GGUF_REQUIRE(t->type->block_bytes <= sizeof block && t->type->block_elems <= 256);
        FUZZ_GGUF_REQUIRE(t->offset % g->alignment == 0 && t->offset >= g->data_offset);
        for (k = 0; k < 2; k++) {
            uint64_t at = k ? t->n_bytes - t->type->block_bytes : 0;
            FUZZ_GGUF_REQUIRE(dendp_gguf_read_tensor(g, t, at, t->type->block_bytes, block) == DEND_OK);
            t->type->decode(block, 1, out);
        }
        FUZZ_GGUF_REQUIRE(dendp_gguf_read_tensor(g, t, t->n_bytes, 1, block) == DEND_ERR_ARGUMENT);
    }
    memset(&err, 0, sizeof err);
    if (dendp_config_load(&config, g, &err) == DEND_OK) {
        FUZZ_GGUF_REQUIRE(config.family && config.n_layers && config.n_vocab && config.n_heads &&
                          config.head_dim);
        FUZZ_GGUF_REQUIRE(config.n_heads % config.n_kv_heads == 0 && config.n_rot <= config.head_dim);
        for (i = 0; i < DENDP_N_TENSOR_ROLES; i++) {
            const dendp_tensor_spec *spec = &dendp_tensor_specs[i];
            for (k = 0; k < dendp_spec_count(spec, &config); k++) {
                const dendp_gguf_tensor *t = dendp_config_tensor(g, spec, k);
                FUZZ_GGUF_REQUIRE(t && t->n_elems == (uint64_t)dendp_config_extent(&config, spec->rows) *
                                                         dendp_config_extent(&config, spec->cols));
            }
        }
    } else {
        FUZZ_GGUF_REQUIRE(err.msg && (err.status == DEND_ERR_FORMAT || err.status == DEND_ERR_UNSUPPORTED));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_gguf_source source;
    dend_error errs[2];
    size_t live = 0;
    int way;
    if (size == 0) {
        return 0;
    }
    source.data = data;
    source.size = size;
    for (way = 0; way < 2; way++) {
        dend_model_desc desc;
        dendp_gguf g;
        memset(&desc, 0, sizeof desc);
        memset(&errs[way], 0, sizeof errs[way]);
        desc.allocator.alloc = fuzz_gguf_alloc;
        desc.allocator.free = fuzz_gguf_free;
        desc.allocator.user = &live;
        if (way == 0) {
            desc.data = data;
            desc.data_size = size;
        } else {
            desc.reader.read = fuzz_gguf_read;
            desc.reader.size = size;
            desc.reader.user = &source;
        }
        if (dendp_gguf_open(&g, &desc, &errs[way]) == DEND_OK) {
            FUZZ_GGUF_REQUIRE(live <= 10 * size + 131072);
            fuzz_gguf_walk(&g);
            dendp_gguf_close(&g);
        } else {
            FUZZ_GGUF_REQUIRE(errs[way].msg && errs[way].where <= size);
        }
        FUZZ_GGUF_REQUIRE(live == 0);
    }
    FUZZ_GGUF_REQUIRE(errs[0].status == errs[1].status && errs[0].where == errs[1].where);
#ifdef FUZZ_MODEL_LOAD
    {
        dend_model_desc desc;
        dend_model *model = NULL;
        memset(&desc, 0, sizeof desc);
        desc.data = data;
        desc.data_size = size;
        if (dend_model_load(&desc, &model, NULL) == DEND_OK) {
            dend_model_free(model);
        }
    }
#endif
    return 0;
}
