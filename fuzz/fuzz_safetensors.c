/* libFuzzer target: any bytes as a configuration and a safetensors file.
 *
 *     u32 n | config.json, n bytes | the file of weights
 *
 * Both are opened from memory and with the weights behind a read callback; both
 * ways must say the same. What opens is walked: every key, the first and the
 * last block of each tensor, the configuration; then the model is loaded.
 *
 *     make fuzz && build/fuzz_safetensors fuzz/corpus/safetensors
 */
#ifndef DENDRITE_IMPLEMENTATION
#define DENDRITE_IMPLEMENTATION
#include "dendrite.h"
#endif

#include <stdio.h>
#include <stdlib.h>

typedef struct fuzz_st_source {
    const uint8_t *data;
    size_t size;
    bool outside; /* somebody asked for bytes that there are not */
} fuzz_st_source;

static bool fuzz_st_read(void *user, uint64_t offset, void *dst, size_t n) {
    fuzz_st_source *source = (fuzz_st_source *)user;
    if (offset > source->size || n > source->size - offset) {
        source->outside = true;
        return false;
    }
    memcpy(dst, source->data + offset, n);
    return true;
}

/* Counts live bytes, so that memory can be held against the size of the input. */
static void *fuzz_st_alloc(void *user, size_t size, size_t align) {
    size_t *live = (size_t *)user;
    void *p = dendp_default_alloc(NULL, size, align);
    *live += p ? size : 0;
    return p;
}

static void fuzz_st_free(void *user, void *p, size_t size) {
    *(size_t *)user -= size;
    dendp_default_free(NULL, p, size);
}

static const char *fuzz_st_walk(const dendp_gguf *g) {
    dendp_config config;
    uint32_t i, k;
    for (i = 0; i < g->n_kvs; i++) {
        if (dendp_gguf_find(g, g->kvs[i].key) != &g->kvs[i]) return "a key that is not found";
    }
    for (i = 0; i < g->n_tensors; i++) {
        const dendp_gguf_tensor *t = &g->tensors[i];
        unsigned char block[64];
        float out[32];
        uint64_t first;
        if (dendp_gguf_tensor_find(g, t->name) != t) return "a tensor that is not found";
        if (t->n_bytes != t->n_elems / t->type->block_elems * t->type->block_bytes) return "a wrong size";
        for (k = 0; k < 2; k++) {
            first = k ? t->n_bytes - t->type->block_bytes : 0;
            if (dendp_gguf_read_tensor(g, t, first, t->type->block_bytes, block) != DEND_OK) {
                return "a tensor that cannot be read";
            }
            t->type->decode(block, 1, out);
        }
        if (dendp_gguf_read_tensor(g, t, t->n_bytes, 1, block) != DEND_ERR_ARGUMENT) return "a byte too many";
    }
    if (dendp_config_load(&config, g, NULL) == DEND_OK) {
        for (i = 0; i < DENDP_N_TENSOR_ROLES; i++) {
            for (k = 0; k < dendp_spec_count(&dendp_tensor_specs[i], &config); k++) {
                if (!dendp_config_tensor(g, &dendp_tensor_specs[i], k)) return "a tensor is missing";
            }
        }
    }
    return NULL;
}

/* One input. Returns what is wrong, or NULL. */
static const char *fuzz_safetensors_one(const unsigned char *data, size_t size) {
    fuzz_st_source source;
    dend_error errs[2];
    dend_model *model = NULL;
    dend_model_desc desc;
    const char *wrong = NULL;
    size_t live = 0, n_config = size >= 4 ? dendp_load32(data) : 0;
    int way;
    if (size < 4 || n_config > size - 4 || n_config == 0 || size == 4 + n_config) {
        return NULL;
    }
    memset(&source, 0, sizeof source);
    source.data = data + 4 + n_config;
    source.size = size - 4 - n_config;
    for (way = 0; way < 2 && !wrong; way++) {
        dendp_folder folder;
        dendp_gguf g;
        memset(&desc, 0, sizeof desc);
        memset(&errs[way], 0, sizeof errs[way]);
        desc.allocator.alloc = fuzz_st_alloc;
        desc.allocator.free = fuzz_st_free;
        desc.allocator.user = &live;
        desc.config_json = (const char *)data + 4;
        desc.config_json_size = n_config;
        if (way == 0) {
            desc.data = source.data;
            desc.data_size = source.size;
        } else {
            desc.reader.read = fuzz_st_read;
            desc.reader.size = source.size;
            desc.reader.user = &source;
        }
        if (dendp_folder_open(&folder, &g, &desc, &errs[way]) == DEND_OK) {
            wrong = live > 40 * size + 262144 ? "too much memory" : fuzz_st_walk(&g);
            dendp_folder_close(&folder);
            dendp_gguf_close(&g);
        } else if (!errs[way].msg || errs[way].where > size || errs[way].status >= 0) {
            wrong = "an error without its place";
        }
        if (live != 0) wrong = "memory is left";
    }
    if (!wrong && source.outside) wrong = "bytes outside the file";
    if (!wrong && (errs[0].status != errs[1].status || errs[0].where != errs[1].where)) {
        wrong = "memory and reader differ";
    }
    if (!wrong) {
        memset(&desc, 0, sizeof desc);
        desc.config_json = (const char *)data + 4;
        desc.config_json_size = n_config;
        desc.data = source.data;
        desc.data_size = source.size;
        desc.keep_file_layout = (size & 1) != 0;
        if (dend_model_load(&desc, &model, NULL) == DEND_OK) {
            dend_model_free(model);
        }
    }
    return wrong;
}

#ifndef DEND_TEST_H
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *wrong = fuzz_safetensors_one(data, size);
    if (wrong) {
        fprintf(stderr, "%s\n", wrong);
        abort();
    }
    return 0;
}
#endif
