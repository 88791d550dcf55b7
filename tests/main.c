/* All tests in one program: the generated header with its implementation, then
 * every test file, so that tests see private functions too.
 *
 *     build/test-gcc [PATTERN]      runs the tests whose names match (cmocka's wildcards)
 */
#define DENDRITE_IMPLEMENTATION
#include "dendrite.h"

#include "dend_test.h"

#include "test_model_quant.c"
#include "test_model_gguf.c"
#include "test_model_tokenizer.c"
#include "test_model_config.c"
#include "test_kernels_matmul.c"
#include "test_cache_table.c"
#include "test_cache_codec.c"
#include "test_cache_sequence.c"
#include "test_sampling_sampler.c"
#include "test_engine_goldens.c"
#include "test_engine_api.c"
#include "test_engine_plan.c"
#include "test_engine_layout.c"
#include "test_engine_report.c"
#include "test_serve_scheduler.c"

#define RUN(group) n_failed += cmocka_run_group_tests_name(#group, tests_##group, NULL, NULL)

int main(int argc, char **argv) {
    int n_failed = 0;
    if (argc > 1) {
        cmocka_set_test_filter(argv[1]);
    }
    RUN(model_quant);
    RUN(model_gguf);
    RUN(model_tokenizer);
    RUN(model_config);
    RUN(kernels_matmul);
    RUN(cache_table);
    RUN(cache_codec);
    RUN(cache_sequence);
    RUN(sampling_sampler);
    RUN(engine_goldens);
    RUN(engine_api);
    RUN(engine_plan);
    RUN(engine_layout);
    RUN(engine_report);
    RUN(serve_scheduler);
    return n_failed != 0;
}
