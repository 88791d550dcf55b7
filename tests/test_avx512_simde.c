/* The AVX-512 kernels on processors that have none of it: SIMDe
 * (https://github.com/simd-everywhere/simde, MIT) gives every intrinsic a
 * portable meaning, the matmul tests run over them as over any other
 * instruction set, and outputs must equal the scalar kernels' bit for bit.
 * That checks what the room computes, not how fast. Narrower registers
 * are the processor's own, so AVX2 is needed:
 *
 *     gcc -O2 -std=gnu11 -mavx2 -mfma -mf16c -I. -Itests \
 *         tests/test_avx512_simde.c -o build/test_avx512_simde -lcmocka -lm -lpthread
 *
 * A program of its own, because it replaces intrinsics by macros. */
#include <immintrin.h>

#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>

#define DENDRITE_IMPLEMENTATION
#define DEND_STATIC
#define DEND_TEST_SIMDE

/* What SIMDe 0.7.4 lacks. */
static simde__m512 test_simde_cvtepi32_ps(simde__m512i v) {
    simde__m512i_private in = simde__m512i_to_private(v);
    simde__m512_private out;
    int i;
    for (i = 0; i < 16; i++) {
        out.f32[i] = (float)in.i32[i];
    }
    return simde__m512_from_private(out);
}

static simde__m512 test_simde_cvtph_ps(simde__m256i v) {
    simde__m256i_private in = simde__m256i_to_private(v);
    simde__m512_private out;
    int i;
    for (i = 0; i < 16; i++) {
        out.f32[i] = simde_float16_to_float32(simde_uint16_as_float16(in.u16[i]));
    }
    return simde__m512_from_private(out);
}

static simde__m512i test_simde_cvtepu8_epi32(simde__m128i v) {
    simde__m128i_private in = simde__m128i_to_private(v);
    simde__m512i_private out;
    int i;
    for (i = 0; i < 16; i++) {
        out.i32[i] = in.u8[i];
    }
    return simde__m512i_from_private(out);
}

static simde__m512i test_simde_cvtepi8_epi32(simde__m128i v) {
    simde__m128i_private in = simde__m128i_to_private(v);
    simde__m512i_private out;
    int i;
    for (i = 0; i < 16; i++) {
        out.i32[i] = in.i8[i];
    }
    return simde__m512i_from_private(out);
}

static simde__m512i test_simde_cvtepu16_epi32(simde__m256i v) {
    simde__m256i_private in = simde__m256i_to_private(v);
    simde__m512i_private out;
    int i;
    for (i = 0; i < 16; i++) {
        out.i32[i] = in.u16[i];
    }
    return simde__m512i_from_private(out);
}

/* SIMDe's fused multiply-add may round twice; the kernels need one rounding. */
static simde__m512 test_simde_fmadd_ps(simde__m512 a, simde__m512 b, simde__m512 c) {
    simde__m512_private x = simde__m512_to_private(a), y = simde__m512_to_private(b);
    simde__m512_private z = simde__m512_to_private(c);
    int i;
    for (i = 0; i < 16; i++) {
        z.f32[i] = fmaf(x.f32[i], y.f32[i], z.f32[i]);
    }
    return simde__m512_from_private(z);
}

/* The names that the AVX-512 room uses. 256- and 128-bit loads stay the compiler's own. */
#define __m512 simde__m512
#define __m512i simde__m512i
#define _mm512_add_ps simde_mm512_add_ps
#define _mm512_and_si512 simde_mm512_and_si512
#define _mm512_castps_si512 simde_mm512_castps_si512
#define _mm512_castsi512_ps simde_mm512_castsi512_ps
#define _mm512_dpbusd_epi32 simde_mm512_dpbusd_epi32
#define _mm512_fmadd_ps test_simde_fmadd_ps
#define _mm512_loadu_si512 simde_mm512_loadu_si512
#define _mm512_maskz_cvtepi32_ps(mask, v) test_simde_cvtepi32_ps(v)
#define _mm512_maskz_cvtepi8_epi32(mask, v) test_simde_cvtepi8_epi32(v)
#define _mm512_maskz_cvtepu16_epi32(mask, v) test_simde_cvtepu16_epi32(v)
#define _mm512_maskz_cvtepu8_epi32(mask, v) test_simde_cvtepu8_epi32(v)
#define _mm512_maskz_cvtph_ps(mask, v) test_simde_cvtph_ps(v)
#define _mm512_maskz_slli_epi32(mask, v, bits) simde_mm512_slli_epi32(v, bits)
#define _mm512_mul_ps simde_mm512_mul_ps
#define _mm512_or_si512 simde_mm512_or_si512
#define _mm512_set1_epi32 simde_mm512_set1_epi32
#define _mm512_set1_epi8 simde_mm512_set1_epi8
#define _mm512_set1_ps simde_mm512_set1_ps
#define _mm512_setzero_ps simde_mm512_setzero_ps
#define _mm512_setzero_si512 simde_mm512_setzero_si512
#define _mm512_slli_epi16 simde_mm512_slli_epi16
#define _mm512_srli_epi16 simde_mm512_srli_epi16
#define _mm512_storeu_ps simde_mm512_storeu_ps
#define _mm512_sub_epi32 simde_mm512_sub_epi32
#define _mm512_xor_si512 simde_mm512_xor_si512

#include "dendrite.h"

#include "test_kernels_matmul.c"

int main(void) {
    const int n = (int)(sizeof tests_kernels_matmul / sizeof tests_kernels_matmul[0]);
    int n_failed;
    if (!dendp_kernels_get(DEND_ISA_AVX512)) {
        printf("0 passed, 1 failed: the AVX-512 kernels were not compiled in\n");
        return 1;
    }
    n_failed = cmocka_run_group_tests(tests_kernels_matmul, NULL, NULL);
    printf("%d passed, %d failed\n", n - n_failed, n_failed);
    return n_failed != 0;
}
