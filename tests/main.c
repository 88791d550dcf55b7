/* All tests in one program: the generated header with its implementation, then
 * every test file, so that tests see private functions too.
 *
 *     build/test-gcc [PATTERN]      runs the tests whose names match (cmocka's wildcards)
 */
#define DENDRITE_IMPLEMENTATION
#include "dendrite.h"

#include "dend_test.h"

#include "test_ground_json.c"
#include "test_model_quant.c"
#include "test_model_gguf.c"
#include "test_model_tokenizer.c"
#include "test_model_pieces.c"
#include "test_model_chat.c"
#include "test_model_config.c"
#include "test_kernels_matmul.c"
#include "test_cache_table.c"
#include "test_cache_codec.c"
#include "test_cache_sequence.c"
#include "test_cache_session.c"
#include "test_cache_prefix.c"
#include "test_sampling_sampler.c"
#include "test_sampling_filters.c"
#include "test_sampling_text.c"
#include "test_engine_goldens.c"
#include "test_model_safetensors.c"
#include "test_engine_api.c"
#include "test_engine_step.c"
#include "test_engine_manners.c"
#include "test_engine_plan.c"
#include "test_engine_session.c"
#include "test_engine_layout.c"
#include "test_engine_windows.c"
#include "test_engine_report.c"
#include "test_serve_scheduler.c"
#include "test_engine_sampling.c"
#include "test_search.c"
#include "test_zoo.c"

#define RUN(group) n_failed += cmocka_run_group_tests_name(#group, tests_##group, NULL, NULL)

/* Groups in which there is one thread: nothing for the thread sanitizer, under which they take minutes. */
#if defined(__SANITIZE_THREAD__)
#define RUN_ALONE(group) (void)tests_##group
#else
#define RUN_ALONE(group) RUN(group)
#endif

int main(int argc, char **argv) {
    int n_failed = 0;
    if (argc > 1) {
        cmocka_set_test_filter(argv[1]);
    }
    RUN_ALONE(ground_json);
    RUN_ALONE(model_quant);
    RUN_ALONE(model_gguf);
    RUN(model_tokenizer);
    RUN_ALONE(model_pieces);
    RUN_ALONE(model_chat);
    RUN_ALONE(model_config);
    RUN_ALONE(kernels_matmul);
    RUN_ALONE(cache_table);
    RUN_ALONE(cache_codec);
    RUN_ALONE(cache_sequence);
    RUN_ALONE(cache_session);
    RUN_ALONE(cache_prefix);
    RUN_ALONE(sampling_sampler);
    RUN_ALONE(sampling_filters);
    RUN_ALONE(sampling_text);
    RUN(engine_goldens);
    RUN_ALONE(model_safetensors);
    RUN(engine_api);
    RUN(engine_step);
    RUN_ALONE(engine_manners);
    RUN(engine_plan);
    RUN_ALONE(engine_session);
    RUN(engine_layout);
    RUN_ALONE(engine_windows);
    RUN_ALONE(engine_report);
    RUN(serve_scheduler);
    RUN_ALONE(engine_sampling);
    RUN_ALONE(search);
    RUN(search_threads);
    RUN_ALONE(zoo);
    return n_failed != 0;
}
