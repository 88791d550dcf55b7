/* The core profile: every DEND_NO_x switch at once (the Makefile gives them), and
 * what is left must be the same engine: the logits of the reference for tiny
 * models of all families, greedy and plain sampling, forks, sessions. What is
 * left out says so with UNSUPPORTED. */
#if !defined(DEND_NO_THREADS) || !defined(DEND_NO_MMAP) || !defined(DEND_NO_SIMD) ||                         \
    !defined(DEND_NO_FOLDERS) || !defined(DEND_NO_SAMPLERS) || !defined(DEND_NO_SERVE) ||                    \
    !defined(DEND_NO_SEARCH)
#error "this file is for the core profile: make test-core"
#endif

#define DENDRITE_IMPLEMENTATION
#include "dendrite.h"

#include "dend_test.h"

#include "test_engine_goldens.c"

static dend_model *core_model(void) {
    dend_model_desc desc;
    dend_model *model = NULL;
    memset(&desc, 0, sizeof desc);
    desc.path = "tests/golden/tiny_llama_f16.gguf";
    ASSERT_STATUS(DEND_OK, dend_model_load(&desc, &model, NULL));
    return model;
}

static void test_core_folders(void **state) {
    dend_model_desc desc;
    dend_model *model = NULL;
    dend_error err;
    (void)state;
    memset(&desc, 0, sizeof desc);
    desc.path = "tests/golden/hf_qwen2";
    ASSERT_STATUS(DEND_ERR_UNSUPPORTED, dend_model_load(&desc, &model, &err));
    assert_null(model);
    assert_non_null(err.msg);
}

static void test_core_report(void **state) {
    dend_engine_desc desc;
    dend_engine *engine = NULL;
    dend_model *model = core_model();
    char text[4096];
    (void)state;
    memset(&desc, 0, sizeof desc);
    desc.model = model;
    desc.isa = DEND_ISA_AVX2;
    ASSERT_STATUS(DEND_ERR_UNSUPPORTED, dend_engine_create(&desc, &engine, NULL));
    assert_null(engine);
    desc.isa = DEND_ISA_DEFAULT;
    desc.n_threads = 8; /* a wish */
    ASSERT_STATUS(DEND_OK, dend_engine_resolve(&desc, NULL));
    assert_int_equal(desc.n_threads, 1);
    ASSERT_STATUS(DEND_OK, dend_engine_create(&desc, &engine, NULL));
    assert_in_range(dend_engine_report(engine, text, sizeof text), 1, sizeof text - 1);
    assert_non_null(strstr(text, "scalar"));
    dend_engine_free(engine);
    dend_model_free(model);
}

/* Parameters of the plain sampler work; each of the others says that it is not there. */
static void test_core_sampling(void **state) {
    static const int32_t prompt[] = {5, 6, 7, 8};
    dend_engine_desc desc;
    dend_engine *engine = NULL;
    dend_model *model = core_model();
    dend_seq seq, fork;
    dend_sample_params p;
    dend_sampled got, again;
    const float *logits;
    dend_model_info info;
    uint32_t i;
    int32_t token;
    (void)state;
    memset(&desc, 0, sizeof desc);
    desc.model = model;
    desc.seed = 7;
    dend_model_get_info(desc.model, &info);
    ASSERT_STATUS(DEND_OK, dend_engine_create(&desc, &engine, NULL));
    ASSERT_STATUS(DEND_OK, dend_seq_create(engine, &seq));
    ASSERT_STATUS(DEND_OK, dend_seq_append(engine, seq, prompt, 4));
    ASSERT_STATUS(DEND_OK, dend_step(engine, 0));
    ASSERT_STATUS(DEND_OK, dend_seq_logits(engine, seq, &logits));
    memset(&p, 0, sizeof p);
    ASSERT_STATUS(DEND_OK, dend_sample(engine, seq, &p, &got));
    for (i = 0; i < info.n_vocab; i++) {
        assert_true(logits[i] <= logits[got.token]);
    }
    p.temperature = 0.9f;
    p.top_k = 20;
    p.top_p = 0.9f;
    p.min_p = 0.02f;
    ASSERT_STATUS(DEND_OK, dend_sample(engine, seq, &p, &got));
    ASSERT_STATUS(DEND_OK, dend_sample(engine, seq, &p, &again));
    assert_int_equal(got.token, again.token);
    for (i = 0; i < 11; i++) {
        dend_sample_params q = p;
        dend_logit_bias bias = {3, 1.0f};
        q.typical_p = i == 0 ? 0.9f : 0.0f;
        q.top_n_sigma = i == 1 ? 1.0f : 0.0f;
        q.xtc_probability = i == 2 ? 0.5f : 0.0f;
        q.mirostat_tau = i == 3 ? 5.0f : 0.0f;
        q.repeat_penalty = i == 4 ? 1.1f : 0.0f;
        q.frequency_penalty = i == 5 ? 0.1f : 0.0f;
        q.presence_penalty = i == 6 ? 0.1f : 0.0f;
        q.dry_multiplier = i == 7 ? 0.8f : 0.0f;
        q.bias = i == 8 ? &bias : NULL;
        q.n_bias = i == 8 ? 1 : 0;
        q.order[0] = i == 9 ? DEND_SAMPLE_TEMPERATURE : 0;
        ASSERT_STATUS(i == 10 ? DEND_OK : DEND_ERR_UNSUPPORTED, dend_sample(engine, seq, &q, &again));
    }
    assert_int_equal(got.token, again.token);
    ASSERT_STATUS(DEND_OK, dend_seq_fork(engine, seq, 0, &fork));
    ASSERT_STATUS(DEND_OK, dend_next(engine, fork, NULL, &token));
    assert_in_range(token, 0, info.n_vocab - 1);
    dend_engine_free(engine);
    dend_model_free(model);
}

/* Saved, brought back, and the next token is the same. */
static void test_core_session(void **state) {
    static const int32_t prompt[] = {9, 8, 7, 6, 5, 4, 3};
    static unsigned char bytes[1 << 16];
    dend_engine_desc desc;
    dend_engine *engine = NULL;
    dend_model *model = core_model();
    dend_seq seq, back;
    uint64_t n_bytes = 0;
    uint32_t n = 0;
    int32_t want, have;
    (void)state;
    memset(&desc, 0, sizeof desc);
    desc.model = model;
    ASSERT_STATUS(DEND_OK, dend_engine_create(&desc, &engine, NULL));
    ASSERT_STATUS(DEND_OK, dend_seq_create(engine, &seq));
    ASSERT_STATUS(DEND_OK, dend_seq_append(engine, seq, prompt, 7));
    ASSERT_STATUS(DEND_OK, dend_step(engine, 0));
    ASSERT_STATUS(DEND_OK, dend_save_memory(engine, &seq, NULL, 1, bytes, sizeof bytes, &n_bytes));
    ASSERT_STATUS(DEND_OK, dend_restore_memory(engine, bytes, (size_t)n_bytes, &back, NULL, 1, &n, NULL));
    assert_int_equal(n, 1);
    ASSERT_STATUS(DEND_OK, dend_next(engine, seq, NULL, &want));
    ASSERT_STATUS(DEND_OK, dend_next(engine, back, NULL, &have));
    assert_int_equal(want, have);
    dend_engine_free(engine);
    dend_model_free(model);
}

static const struct CMUnitTest tests_core[] = {
    cmocka_unit_test(test_core_folders),
    cmocka_unit_test(test_core_report),
    cmocka_unit_test(test_core_sampling),
    cmocka_unit_test(test_core_session),
};

int main(void) {
    int n_failed = cmocka_run_group_tests_name("core", tests_core, NULL, NULL);
    cmocka_set_test_filter("test_golden_tiny_*");
    n_failed += cmocka_run_group_tests_name("engine_goldens", tests_engine_goldens, NULL, NULL);
    return n_failed ? 1 : 0;
}
