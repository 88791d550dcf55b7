/* The AVX-512 and AVX-VNNI kernels on processors that have none of it: SIMDe (0.7.4,
 * Debian's libsimde-dev) gives every intrinsic a portable meaning, the tests of
 * matmul, tiles and vector operations run over them as over any other instruction set, and outputs must
 * equal the scalar kernels' bit for bit. That checks what the room computes,
 * not how fast. Narrower registers are the processor's own, so AVX2 is needed:
 *
 *     gcc -O1 -std=gnu11 -Wno-psabi -mavx2 -mfma -mf16c -I. -Itests \
 *         tests/test_avx512_simde.c -o build/test_avx512_simde -lcmocka -lm -lpthread
 *
 * A program of its own, because it replaces intrinsics by macros. */
#include <immintrin.h>

#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>

#define DENDRITE_IMPLEMENTATION
#define DEND_STATIC
#define DEND_TEST_SIMDE

/* Functions that are not inlined: the kernels hold thousands of intrinsics, and an emulation at each of them
 * takes a compiler minutes. */
#define TEST_EMULATED static __attribute__((noinline))

#define TEST_ONE(name, result, type)                                                                         \
    TEST_EMULATED result test_##name(type a) {                                                               \
        return simde_mm512_##name(a);                                                                        \
    }
#define TEST_TWO(name, type)                                                                                 \
    TEST_EMULATED type test_##name(type a, type b) {                                                         \
        return simde_mm512_##name(a, b);                                                                     \
    }
#define TEST_SHIFT(name)                                                                                     \
    TEST_EMULATED simde__m512i test_##name(simde__m512i a, int bits) {                                       \
        return simde_mm512_##name(a, (unsigned)bits);                                                        \
    }
TEST_ONE(set1_epi32, simde__m512i, int32_t)
TEST_ONE(set1_epi8, simde__m512i, int8_t)
TEST_ONE(set1_ps, simde__m512, float)
TEST_ONE(loadu_si512, simde__m512i, const void *)
TEST_ONE(loadu_ps, simde__m512, const float *)
TEST_TWO(add_ps, simde__m512)
TEST_TWO(div_ps, simde__m512)
TEST_TWO(mul_ps, simde__m512)
TEST_TWO(sub_ps, simde__m512)
TEST_TWO(add_epi32, simde__m512i)
TEST_TWO(and_si512, simde__m512i)
TEST_TWO(or_si512, simde__m512i)
TEST_TWO(xor_si512, simde__m512i)
TEST_TWO(sub_epi32, simde__m512i)
TEST_SHIFT(slli_epi16)
TEST_SHIFT(srli_epi16)
TEST_SHIFT(slli_epi32)

TEST_EMULATED simde__m512i test_dpbusd_epi32(simde__m512i sum, simde__m512i a, simde__m512i b) {
    return simde_mm512_dpbusd_epi32(sum, a, b);
}

TEST_EMULATED simde__m512i test_dpwssd_epi32(simde__m512i sum, simde__m512i a, simde__m512i b) {
    return simde_mm512_dpwssd_epi32(sum, a, b);
}

TEST_EMULATED simde__m256i test_dpbusd_avx_epi32(simde__m256i sum, simde__m256i a, simde__m256i b) {
    return simde_mm256_dpbusd_epi32(sum, a, b);
}

/* SIMDe's fused multiply-add may round twice; the kernels need one rounding. */
TEST_EMULATED simde__m512 test_fmadd_ps(simde__m512 a, simde__m512 b, simde__m512 c) {
    simde__m512_private x = simde__m512_to_private(a), y = simde__m512_to_private(b);
    simde__m512_private z = simde__m512_to_private(c);
    int i;
    for (i = 0; i < 16; i++) {
        z.f32[i] = fmaf(x.f32[i], y.f32[i], z.f32[i]);
    }
    return simde__m512_from_private(z);
}

/* Lanes of a larger than those of b, or not: the other operand where one is NaN, as the instructions have it. */
TEST_EMULATED __mmask16 test_larger(simde__m512 a, simde__m512 b) {
    simde__m512_private x = simde__m512_to_private(a), y = simde__m512_to_private(b);
    uint32_t mask = 0, i;
    for (i = 0; i < 16; i++) {
        mask |= (uint32_t)(x.f32[i] > y.f32[i]) << i;
    }
    return (__mmask16)mask;
}

/* Lanes of a where the mask has a bit, of b elsewhere. */
TEST_EMULATED simde__m512 test_blend(__mmask16 mask, simde__m512 a, simde__m512 b) {
    simde__m512_private x = simde__m512_to_private(a), y = simde__m512_to_private(b);
    int i;
    for (i = 0; i < 16; i++) {
        y.f32[i] = mask >> i & 1 ? x.f32[i] : y.f32[i];
    }
    return simde__m512_from_private(y);
}

/* Conversions that SIMDe 0.7.4 lacks: 16 lanes of `to`, each made from a lane of `from`. */
#define TEST_CONVERT(name, result, to, type, from, convert)                                                  \
    TEST_EMULATED result test_##name(type v) {                                                               \
        type##_private in = type##_to_private(v);                                                            \
        result##_private out;                                                                                \
        int i;                                                                                               \
        for (i = 0; i < 16; i++) {                                                                           \
            out.to[i] = convert(in.from[i]);                                                                 \
        }                                                                                                    \
        return result##_from_private(out);                                                                   \
    }
#define TEST_HALF(h) simde_float16_to_float32(simde_uint16_as_float16(h))
TEST_CONVERT(cvtepi32_ps, simde__m512, f32, simde__m512i, i32, (float))
TEST_CONVERT(cvtepu8_epi32, simde__m512i, i32, simde__m128i, u8, (int32_t))
TEST_CONVERT(cvtepi8_epi32, simde__m512i, i32, simde__m128i, i8, (int32_t))
TEST_CONVERT(cvtepu16_epi32, simde__m512i, i32, simde__m256i, u16, (int32_t))
TEST_CONVERT(cvtph_ps, simde__m512, f32, simde__m256i, u16, TEST_HALF)
TEST_CONVERT(cvtps_epi32, simde__m512i, i32, simde__m512, f32, (int32_t)lrintf)
TEST_CONVERT(cvtepi32_epi16, simde__m256i, i16, simde__m512i, i32, (int16_t))

TEST_EMULATED simde__m512i test_cvtepi8_epi16(simde__m256i v) {
    simde__m256i_private in = simde__m256i_to_private(v);
    simde__m512i_private out;
    int i;
    for (i = 0; i < 32; i++) {
        out.i16[i] = in.i8[i];
    }
    return simde__m512i_from_private(out);
}

/* The names that the AVX-512 and AVX-VNNI rooms use. Some are macros of the compiler's when it does not optimise. */
#undef _mm512_maskz_slli_epi32
#undef _mm256_dpbusd_avx_epi32
#undef _mm512_cmp_ps_mask
#undef _mm512_slli_epi16
#undef _mm512_srli_epi16
#define __m512 simde__m512
#define __m512i simde__m512i
#define _mm256_dpbusd_avx_epi32 test_dpbusd_avx_epi32
#define _mm512_add_epi32 test_add_epi32
#define _mm512_add_ps test_add_ps
#define _mm512_and_si512 test_and_si512
#define _mm512_castps_si512 simde_mm512_castps_si512
#define _mm512_castsi512_ps simde_mm512_castsi512_ps
#define _mm512_cmp_ps_mask(a, b, is_larger) test_larger(a, b)
#define _mm512_div_ps test_div_ps
#define _mm512_dpbusd_epi32 test_dpbusd_epi32
#define _mm512_dpwssd_epi32 test_dpwssd_epi32
#define _mm512_fmadd_ps test_fmadd_ps
#define _mm512_loadu_ps test_loadu_ps
#define _mm512_loadu_si512 test_loadu_si512
#define _mm512_maskz_cvtepi32_epi16(mask, v) test_cvtepi32_epi16(v)
#define _mm512_maskz_cvtepi32_ps(mask, v) test_cvtepi32_ps(v)
#define _mm512_maskz_cvtepi8_epi16(mask, v) test_cvtepi8_epi16(v)
#define _mm512_maskz_cvtepi8_epi32(mask, v) test_cvtepi8_epi32(v)
#define _mm512_maskz_cvtepu16_epi32(mask, v) test_cvtepu16_epi32(v)
#define _mm512_maskz_cvtepu8_epi32(mask, v) test_cvtepu8_epi32(v)
#define _mm512_maskz_cvtph_ps(mask, v) test_blend(mask, test_cvtph_ps(v), simde_mm512_setzero_ps())
#define _mm512_maskz_cvtps_epi32(mask, v) test_cvtps_epi32(test_blend(mask, v, simde_mm512_setzero_ps()))
#define _mm512_maskz_max_ps(mask, a, b) test_blend(test_larger(a, b), a, b)
#define _mm512_maskz_min_ps(mask, a, b) test_blend(test_larger(b, a), a, b)
#define _mm512_maskz_mov_ps(mask, a) test_blend(mask, a, simde_mm512_setzero_ps())
#define _mm512_maskz_slli_epi32(mask, v, bits) test_slli_epi32(v, bits)
#define _mm512_mul_ps test_mul_ps
#define _mm512_or_si512 test_or_si512
#define _mm512_set1_epi32 test_set1_epi32
#define _mm512_set1_epi8 test_set1_epi8
#define _mm512_set1_ps test_set1_ps
#define _mm512_setzero_ps simde_mm512_setzero_ps
#define _mm512_setzero_si512 simde_mm512_setzero_si512
#define _mm512_slli_epi16 test_slli_epi16
#define _mm512_srli_epi16 test_srli_epi16
#define _mm512_storeu_ps simde_mm512_storeu_ps
#define _mm512_sub_epi32 test_sub_epi32
#define _mm512_sub_ps test_sub_ps
#define _mm512_xor_si512 test_xor_si512

#include "dendrite.h"

#include "test_kernels_matmul.c"
#include "test_cache_codec.c"

int main(void) {
    const int n = (int)(sizeof tests_kernels_matmul / sizeof tests_kernels_matmul[0] +
                        sizeof tests_cache_codec / sizeof tests_cache_codec[0]);
    int n_failed;
    if (!dendp_kernels_get(DEND_ISA_AVX512) || !dendp_kernels_get(DEND_ISA_AVX_VNNI)) {
        printf("0 passed, 1 failed: the AVX-512 or AVX-VNNI kernels were not compiled in\n");
        return 1;
    }
    n_failed = cmocka_run_group_tests(tests_kernels_matmul, NULL, NULL);
    n_failed += cmocka_run_group_tests(tests_cache_codec, NULL, NULL);
    printf("%d passed, %d failed\n", n - n_failed, n_failed);
    return n_failed != 0;
}
