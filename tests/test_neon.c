/* The NEON kernels, and the rooms that rest on them, as a program of its own:
 * it is cross-compiled and runs under an emulator, where all tests together
 * would take too long. The emulated processor has the dot products, so the
 * kernels that are chosen must be NEON's.
 *
 *     qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu max build/test-neon [PATTERN]
 */
#define DENDRITE_IMPLEMENTATION
#include "dendrite.h"

#include "dend_test.h"

#include "test_kernels_matmul.c"
#include "test_cache_table.c"
#include "test_cache_codec.c"
#include "test_cache_sequence.c"

#define RUN(group) n_failed += cmocka_run_group_tests_name(#group, tests_##group, NULL, NULL)

int main(int argc, char **argv) {
    const dendp_kernels *kn = dendp_kernels_get(DEND_ISA_DEFAULT);
    int n_failed = 0;
    printf("kernels: %s\n", kn->name);
    if (kn->isa != DEND_ISA_NEON || dendp_kernels_get(DEND_ISA_NEON) != kn) {
        printf("the NEON kernels are not there\n");
        return 1;
    }
    fflush(stdout);
    if (argc > 1) {
        cmocka_set_test_filter(argv[1]);
    }
    RUN(kernels_matmul);
    RUN(cache_table);
    RUN(cache_codec);
    RUN(cache_sequence);
    return n_failed != 0;
}
