/* libFuzzer target: any bytes as a whole model. What loads runs: a prompt of a
 * few tokens with every KV type, a branch, a draw with every filter. Weights may
 * be NaN, infinite or subnormal, scales included; tokens must stay tokens, and a
 * sequence must not notice another beside it.
 *
 *     make fuzz && build/fuzz_model fuzz/corpus/gguf
 */
#ifndef DENDRITE_IMPLEMENTATION
#define DENDRITE_IMPLEMENTATION
#include "dendrite.h"
#endif

#include <stdlib.h>

#define FUZZ_MODEL_REQUIRE(condition)                                                                        \
    do {                                                                                                     \
        if (!(condition)) abort();                                                                           \
    } while (0)

#define FUZZ_MODEL_MOST ((size_t)256 << 20)

/* Counts, and refuses what no file of a fuzzer's size has a right to. */
static void *fuzz_model_alloc(void *user, size_t size, size_t align) {
    size_t *live = (size_t *)user;
    void *p = size > FUZZ_MODEL_MOST ? NULL : dendp_default_alloc(NULL, size, align);
    *live += p ? size : 0;
    return p;
}

static void fuzz_model_free(void *user, void *p, size_t size) {
    size_t *live = (size_t *)user;
    FUZZ_MODEL_REQUIRE(*live >= size);
    *live -= size;
    dendp_default_free(NULL, p, size);
}

static void fuzz_model_run(const dend_model *model, dend_kv_type kv_type, const dend_allocator *a) {
    dend_model_info info;
    dend_engine_desc d;
    dend_engine *engine = NULL;
    dend_seq alone, beside, branch;
    dend_sample_params p;
    dend_sampled got;
    const float *x, *y;
    int32_t tokens[3];
    uint32_t i;
    dend_status status;
    dend_model_get_info(model, &info);
    for (i = 0; i < 3; i++) {
        tokens[i] = (int32_t)(i * 7 % info.n_vocab);
    }
    memset(&d, 0, sizeof d);
    d.model = model;
    d.n_ctx = info.n_ctx_train < 8 ? info.n_ctx_train : 8;
    d.n_seqs = 3;
    d.n_batch = 4;
    d.n_tree_rows = 1;
    d.n_threads = 1;
    d.kv_type = kv_type;
    d.allocator = *a;
    status = dend_engine_create(&d, &engine, NULL);
    if (status != DEND_OK) {
        FUZZ_MODEL_REQUIRE(!engine && status < 0);
        return;
    }
    if (d.n_ctx >= 4) {
        FUZZ_MODEL_REQUIRE(dend_seq_create(engine, &alone) == DEND_OK);
        FUZZ_MODEL_REQUIRE(dend_seq_append(engine, alone, tokens, 3) == DEND_OK);
        FUZZ_MODEL_REQUIRE(dend_step(engine, 0) == DEND_OK);
        FUZZ_MODEL_REQUIRE(dend_seq_create(engine, &beside) == DEND_OK);
        FUZZ_MODEL_REQUIRE(dend_seq_append(engine, beside, tokens, 3) == DEND_OK);
        FUZZ_MODEL_REQUIRE(dend_seq_fork(engine, alone, 0, &branch) == DEND_OK);
        FUZZ_MODEL_REQUIRE(dend_seq_append(engine, branch, tokens, 1) == DEND_OK);
        FUZZ_MODEL_REQUIRE(dend_step(engine, 0) == DEND_OK);
        FUZZ_MODEL_REQUIRE(dend_seq_logits(engine, alone, &x) == DEND_OK);
        FUZZ_MODEL_REQUIRE(dend_seq_logits(engine, beside, &y) == DEND_OK);
        for (i = 0; i < info.n_vocab;
             i++) { /* of a NaN only that it is one: its sign may come of any operand */
            FUZZ_MODEL_REQUIRE(dendp_f32_bits(x[i]) == dendp_f32_bits(y[i]) ||
                               ((dendp_f32_bits(x[i]) & 0x7fffffffu) > 0x7f800000u &&
                                (dendp_f32_bits(y[i]) & 0x7fffffffu) > 0x7f800000u));
        }
        for (i = 0; i < 4; i++) {
            memset(&p, 0, sizeof p);
            p.temperature = i ? 0.7f : 0.0f;
            p.top_k = i == 1 ? 2 : 0;
            p.top_p = i == 2 ? 0.9f : 0.0f;
            p.min_p = i == 3 ? 0.1f : 0.0f;
            FUZZ_MODEL_REQUIRE(dend_sample(engine, branch, &p, &got) == DEND_OK);
            FUZZ_MODEL_REQUIRE(got.token >= 0 && (uint32_t)got.token < info.n_vocab);
        }
    }
    dend_engine_free(engine);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const dend_kv_type kv_types[3] = {DEND_KV_F32, DEND_KV_F16, DEND_KV_Q8_0};
    size_t live = 0;
    uint32_t way;
    if (size == 0) {
        return 0;
    }
    for (way = 0; way < 2; way++) {
        dend_model_desc desc;
        dend_model *model = NULL;
        dend_error err;
        memset(&desc, 0, sizeof desc);
        memset(&err, 0, sizeof err);
        desc.data = data;
        desc.data_size = size;
        desc.keep_file_layout = way == 1;
        desc.allocator.alloc = fuzz_model_alloc;
        desc.allocator.free = fuzz_model_free;
        desc.allocator.user = &live;
        if (dend_model_load(&desc, &model, &err) == DEND_OK) {
            uint32_t kv;
            for (kv = 0; kv < 3; kv++) {
                fuzz_model_run(model, kv_types[kv], &desc.allocator);
            }
            dend_model_free(model);
        } else {
            FUZZ_MODEL_REQUIRE(!model && err.msg && err.where <= size);
        }
        FUZZ_MODEL_REQUIRE(live == 0);
    }
    return 0;
}
