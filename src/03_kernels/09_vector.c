/* ==========================================================================
 * >>03.09 VECTOR: norm, rotation, activation, softmax
 * ==========================================================================
 * The small operations between the matmuls. Each treats a row on its own, in
 * one fixed order, so a row's result cannot depend on its neighbours. The
 * scalar functions are the meaning; those of AVX2 and AVX-512 take the same steps
 * in the same order, 8 or 16 lanes at a time, with every fused multiply-add spelled
 * out (a compiler may contract a*b+c on its own, or not: dendp_fma leaves it no
 * choice), and tests hold them equal bit for bit.
 *
 * 2^x for x <= 0 (softmax) and in general (SiLU) is one polynomial: with
 * n = the integer nearest x and f = x - n in [-1/2, 1/2], 2^x = 2^n * p(f),
 * p the Taylor series of degree 7: relative error under 2e-8 before rounding.
 * ======================================================================== */

#if DENDP_X86
#define DENDP_TARGET_AVX2 __attribute__((target("avx2,fma,f16c")))
#endif

#define DENDP_LOG2E 1.44269504088896341f
#define DENDP_MASKED (-1e30f) /* the score of a slot that must not be seen: finite, below all real ones */

/* ln(2)^k / k! */
#define DENDP_EXP2_C1 0.693147180559945309f
#define DENDP_EXP2_C2 0.240226506959100712f
#define DENDP_EXP2_C3 0.0555041086648215800f
#define DENDP_EXP2_C4 0.00961812910762847716f
#define DENDP_EXP2_C5 0.00133335581464284434f
#define DENDP_EXP2_C6 0.000154035303933816099f
#define DENDP_EXP2_C7 0.0000152527338040598403f

/* 2^x, x clamped to [-126, 126]. */
static float dendp_exp2(float x) {
    float f, p;
    int32_t n;
    x = x > -126.0f ? x : -126.0f;
    x = x < 126.0f ? x : 126.0f;
    n = (int32_t)(x + (x < 0.0f ? -0.5f : 0.5f));
    f = x - (float)n;
    p = dendp_fma(DENDP_EXP2_C7, f, DENDP_EXP2_C6);
    p = dendp_fma(p, f, DENDP_EXP2_C5);
    p = dendp_fma(p, f, DENDP_EXP2_C4);
    p = dendp_fma(p, f, DENDP_EXP2_C3);
    p = dendp_fma(p, f, DENDP_EXP2_C2);
    p = dendp_fma(p, f, DENDP_EXP2_C1);
    p = dendp_fma(p, f, 1.0f);
    return p * dendp_bits_f32((uint32_t)(n + 127) << 23);
}

/* The one order in which 16 lane sums become one number. */
static float dendp_sum16(const float *v) {
    float a[8];
    uint32_t i;
    for (i = 0; i < 8; i++) {
        a[i] = v[i] + v[i + 8];
    }
    return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
}

/* y = x / rms(x) * w.  x, y, w [n].  RMS norm: Zhang and Sennrich, 2019. */
static void dendp_rms_norm_scalar(const float *x, const float *w, float eps, uint32_t n, float *y) {
    float lane[16] = {0}, scale;
    uint32_t i;
    for (i = 0; i < n; i++) {
        lane[i % 16] = dendp_fma(x[i], x[i], lane[i % 16]);
    }
    scale = 1.0f / sqrtf(dendp_sum16(lane) / (float)n + eps);
    for (i = 0; i < n; i++) {
        y[i] = x[i] * scale * w[i];
    }
}

/* y = silu(gate) * up, silu(g) = g / (1 + e^-g).  All [n]. */
static void dendp_silu_mul_scalar(const float *gate, const float *up, uint32_t n, float *y) {
    uint32_t i;
    for (i = 0; i < n; i++) {
        float e = dendp_exp2(gate[i] * -DENDP_LOG2E);
        y[i] = gate[i] / (1.0f + e) * up[i];
    }
}

/* Finds the largest score, replaces scores by 2^(s - max) and returns their
 * sum. n is a multiple of 16; masked slots hold DENDP_MASKED and become exact
 * zeros, as do NaNs. */
static float dendp_softmax_scalar(float *s, uint32_t n, float *max_out) {
    float lane[16] = {0}, max = DENDP_MASKED;
    uint32_t i;
    for (i = 0; i < n; i++) {
        max = s[i] > max ? s[i] : max;
    }
    *max_out = max;
    for (i = 0; i < n; i++) {
        s[i] = s[i] > 0.5f * DENDP_MASKED ? dendp_exp2(s[i] - max) : 0.0f;
        lane[i % 16] += s[i];
    }
    return dendp_sum16(lane);
}

/* Sum of e^(x - max) over finite x <= max, 512 at a time in single precision,
 * the parts added in double. */
static double dendp_sum_exp_scalar(const float *x, uint32_t n, float max) {
    double sum = 0.0;
    uint32_t i, j;
    for (i = 0; i < n; i += 512) {
        float lane[16] = {0};
        for (j = i; j < n && j < i + 512; j++) {
            lane[j % 16] += dendp_exp2((x[j] - max) * DENDP_LOG2E);
        }
        sum += (double)dendp_sum16(lane);
    }
    return sum;
}

#if DENDP_X86
DENDP_TARGET_AVX2 static __m256 dendp_exp2_avx2(__m256 x) {
    __m256 f, p, half;
    __m256i n;
    x = _mm256_min_ps(_mm256_max_ps(x, _mm256_set1_ps(-126.0f)), _mm256_set1_ps(126.0f));
    half = _mm256_or_ps(_mm256_set1_ps(0.5f), _mm256_and_ps(x, _mm256_set1_ps(-0.0f)));
    n = _mm256_cvttps_epi32(_mm256_add_ps(x, half));
    f = _mm256_sub_ps(x, _mm256_cvtepi32_ps(n));
    p = _mm256_fmadd_ps(_mm256_set1_ps(DENDP_EXP2_C7), f, _mm256_set1_ps(DENDP_EXP2_C6));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(DENDP_EXP2_C5));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(DENDP_EXP2_C4));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(DENDP_EXP2_C3));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(DENDP_EXP2_C2));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(DENDP_EXP2_C1));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    n = _mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(p, _mm256_castsi256_ps(n));
}

DENDP_TARGET_AVX2 static void dendp_rms_norm_avx2(const float *x, const float *w, float eps, uint32_t n,
                                                  float *y) {
    __m256 lo = _mm256_setzero_ps(), hi = _mm256_setzero_ps(), v;
    float lane[16], scale;
    uint32_t i;
    for (i = 0; i + 16 <= n; i += 16) {
        v = _mm256_loadu_ps(x + i);
        lo = _mm256_fmadd_ps(v, v, lo);
        v = _mm256_loadu_ps(x + i + 8);
        hi = _mm256_fmadd_ps(v, v, hi);
    }
    _mm256_storeu_ps(lane, lo);
    _mm256_storeu_ps(lane + 8, hi);
    for (; i < n; i++) {
        lane[i % 16] = dendp_fma(x[i], x[i], lane[i % 16]);
    }
    scale = 1.0f / sqrtf(dendp_sum16(lane) / (float)n + eps);
    v = _mm256_set1_ps(scale);
    for (i = 0; i + 8 <= n; i += 8) {
        _mm256_storeu_ps(y + i,
                         _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), v), _mm256_loadu_ps(w + i)));
    }
    for (; i < n; i++) {
        y[i] = x[i] * scale * w[i];
    }
}

DENDP_TARGET_AVX2 static void dendp_silu_mul_avx2(const float *gate, const float *up, uint32_t n, float *y) {
    uint32_t i;
    for (i = 0; i + 8 <= n; i += 8) {
        __m256 g = _mm256_loadu_ps(gate + i);
        __m256 e = dendp_exp2_avx2(_mm256_mul_ps(g, _mm256_set1_ps(-DENDP_LOG2E)));
        __m256 s = _mm256_div_ps(g, _mm256_add_ps(_mm256_set1_ps(1.0f), e));
        _mm256_storeu_ps(y + i, _mm256_mul_ps(s, _mm256_loadu_ps(up + i)));
    }
    dendp_silu_mul_scalar(gate + i, up + i, n - i, y + i);
}

DENDP_TARGET_AVX2 static float dendp_softmax_avx2(float *s, uint32_t n, float *max_out) {
    __m256 lo = _mm256_setzero_ps(), hi = _mm256_setzero_ps();
    __m256 m = _mm256_set1_ps(DENDP_MASKED), m2 = m, limit = _mm256_set1_ps(0.5f * DENDP_MASKED);
    float lane[16], max = DENDP_MASKED;
    uint32_t i;
    for (i = 0; i < n; i += 16) { /* max_ps(x, m) is x > m ? x : m, so a NaN loses */
        m = _mm256_max_ps(_mm256_loadu_ps(s + i), m);
        m2 = _mm256_max_ps(_mm256_loadu_ps(s + i + 8), m2);
    }
    _mm256_storeu_ps(lane, _mm256_max_ps(m, m2));
    for (i = 0; i < 8; i++) {
        max = lane[i] > max ? lane[i] : max;
    }
    *max_out = max;
    m = _mm256_set1_ps(max);
    for (i = 0; i < n; i += 16) {
        __m256 a = _mm256_loadu_ps(s + i), b = _mm256_loadu_ps(s + i + 8);
        __m256 seen_a = _mm256_cmp_ps(a, limit, _CMP_GT_OQ), seen_b = _mm256_cmp_ps(b, limit, _CMP_GT_OQ);
        a = _mm256_and_ps(dendp_exp2_avx2(_mm256_sub_ps(a, m)), seen_a);
        b = _mm256_and_ps(dendp_exp2_avx2(_mm256_sub_ps(b, m)), seen_b);
        _mm256_storeu_ps(s + i, a);
        _mm256_storeu_ps(s + i + 8, b);
        lo = _mm256_add_ps(lo, a);
        hi = _mm256_add_ps(hi, b);
    }
    _mm256_storeu_ps(lane, lo);
    _mm256_storeu_ps(lane + 8, hi);
    return dendp_sum16(lane);
}

DENDP_TARGET_AVX2 static double dendp_sum_exp_avx2(const float *x, uint32_t n, float max) {
    __m256 m = _mm256_set1_ps(max), scale = _mm256_set1_ps(DENDP_LOG2E);
    double sum = 0.0;
    uint32_t i, j;
    for (i = 0; i < n; i += 512) {
        __m256 lo = _mm256_setzero_ps(), hi = _mm256_setzero_ps();
        float lane[16];
        for (j = i; j + 16 <= n && j < i + 512; j += 16) {
            lo = _mm256_add_ps(
                lo, dendp_exp2_avx2(_mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(x + j), m), scale)));
            hi = _mm256_add_ps(
                hi, dendp_exp2_avx2(_mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(x + j + 8), m), scale)));
        }
        _mm256_storeu_ps(lane, lo);
        _mm256_storeu_ps(lane + 8, hi);
        for (; j < n && j < i + 512; j++) {
            lane[j % 16] += dendp_exp2((x[j] - max) * DENDP_LOG2E);
        }
        sum += (double)dendp_sum16(lane);
    }
    return sum;
}

/* -- AVX-512: the 16 lanes of the sums are one register -- */

DENDP_INLINE_AVX512 __m512 dendp_max16(__m512 a, __m512 b) { /* a > b ? a : b */
    return _mm512_maskz_max_ps(DENDP_ALL_LANES, a, b);
}

DENDP_INLINE_AVX512 __m512 dendp_exp2_avx512(__m512 x) {
    const __m512i sign = _mm512_set1_epi32((int32_t)0x80000000u);
    __m512 f, p, half;
    __m512i n;
    x = _mm512_maskz_min_ps(DENDP_ALL_LANES, dendp_max16(x, _mm512_set1_ps(-126.0f)), _mm512_set1_ps(126.0f));
    half = _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(_mm512_set1_ps(0.5f)),
                                               _mm512_and_si512(_mm512_castps_si512(x), sign)));
    n = _mm512_maskz_cvttps_epi32(DENDP_ALL_LANES, _mm512_add_ps(x, half));
    f = _mm512_sub_ps(x, dendp_floats16(n));
    p = _mm512_fmadd_ps(_mm512_set1_ps(DENDP_EXP2_C7), f, _mm512_set1_ps(DENDP_EXP2_C6));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(DENDP_EXP2_C5));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(DENDP_EXP2_C4));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(DENDP_EXP2_C3));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(DENDP_EXP2_C2));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(DENDP_EXP2_C1));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    n = DENDP_LEFT32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23);
    p = _mm512_mul_ps(p, _mm512_castsi512_ps(n));
    DENDP_FIX512(p)
    return p;
}

DENDP_TARGET_AVX512 static void dendp_rms_norm_avx512(const float *x, const float *w, float eps, uint32_t n,
                                                      float *y) {
    __m512 sum = _mm512_setzero_ps(), v;
    float lane[16], scale;
    uint32_t i;
    for (i = 0; i + 16 <= n; i += 16) {
        v = _mm512_loadu_ps(x + i);
        sum = _mm512_fmadd_ps(v, v, sum);
    }
    _mm512_storeu_ps(lane, sum);
    for (; i < n; i++) {
        lane[i % 16] = dendp_fma(x[i], x[i], lane[i % 16]);
    }
    scale = 1.0f / sqrtf(dendp_sum16(lane) / (float)n + eps);
    v = _mm512_set1_ps(scale);
    for (i = 0; i + 16 <= n; i += 16) {
        _mm512_storeu_ps(y + i,
                         _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(x + i), v), _mm512_loadu_ps(w + i)));
    }
    for (; i < n; i++) {
        y[i] = x[i] * scale * w[i];
    }
}

DENDP_TARGET_AVX512 static void dendp_silu_mul_avx512(const float *gate, const float *up, uint32_t n,
                                                      float *y) {
    uint32_t i;
    for (i = 0; i + 16 <= n; i += 16) {
        __m512 g = _mm512_loadu_ps(gate + i);
        __m512 e = dendp_exp2_avx512(_mm512_mul_ps(g, _mm512_set1_ps(-DENDP_LOG2E)));
        __m512 s = _mm512_div_ps(g, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
        _mm512_storeu_ps(y + i, _mm512_mul_ps(s, _mm512_loadu_ps(up + i)));
    }
    dendp_silu_mul_scalar(gate + i, up + i, n - i, y + i);
}

DENDP_TARGET_AVX512 static float dendp_softmax_avx512(float *s, uint32_t n, float *max_out) {
    const __m512 limit = _mm512_set1_ps(0.5f * DENDP_MASKED);
    __m512 sum = _mm512_setzero_ps(), m = _mm512_set1_ps(DENDP_MASKED);
    float lane[16], max = DENDP_MASKED;
    uint32_t i;
    for (i = 0; i < n; i += 16) { /* a NaN loses */
        m = dendp_max16(_mm512_loadu_ps(s + i), m);
    }
    _mm512_storeu_ps(lane, m);
    for (i = 0; i < 16; i++) {
        max = lane[i] > max ? lane[i] : max;
    }
    *max_out = max;
    m = _mm512_set1_ps(max);
    for (i = 0; i < n; i += 16) {
        __m512 a = _mm512_loadu_ps(s + i);
        __mmask16 seen = _mm512_cmp_ps_mask(a, limit, _CMP_GT_OQ);
        a = _mm512_maskz_mov_ps(seen, dendp_exp2_avx512(_mm512_sub_ps(a, m)));
        _mm512_storeu_ps(s + i, a);
        sum = _mm512_add_ps(sum, a);
    }
    _mm512_storeu_ps(lane, sum);
    return dendp_sum16(lane);
}

DENDP_TARGET_AVX512 static double dendp_sum_exp_avx512(const float *x, uint32_t n, float max) {
    const __m512 m = _mm512_set1_ps(max), scale = _mm512_set1_ps(DENDP_LOG2E);
    double sum = 0.0;
    uint32_t i, j;
    for (i = 0; i < n; i += 512) {
        __m512 part = _mm512_setzero_ps();
        float lane[16];
        for (j = i; j + 16 <= n && j < i + 512; j += 16) {
            __m512 e = _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(x + j), m), scale);
            part = _mm512_add_ps(part, dendp_exp2_avx512(e));
        }
        _mm512_storeu_ps(lane, part);
        for (; j < n && j < i + 512; j++) {
            lane[j % 16] += dendp_exp2((x[j] - max) * DENDP_LOG2E);
        }
        sum += (double)dendp_sum16(lane);
    }
    return sum;
}
#endif

/* Rotates one head in place by the angles of its position.
 * v [n_rot and beyond]; angles [n_rot/2][2] holds cos, sin of each pair.
 * RoPE: Su et al., 2021. Pairs are neighbours (2i, 2i+1), as in llama's files,
 * or halves (i, i + n_rot/2), as in GPT-NeoX and qwen2. */
static void dendp_rope_interleaved(float *v, const float *angles, uint32_t n_rot) {
    uint32_t i;
    for (i = 0; i < n_rot; i += 2) {
        float c = angles[i], s = angles[i + 1], a = v[i], b = v[i + 1];
        v[i] = a * c - b * s;
        v[i + 1] = a * s + b * c;
    }
}

static void dendp_rope_halves(float *v, const float *angles, uint32_t n_rot) {
    uint32_t i, half = n_rot / 2;
    for (i = 0; i < half; i++) {
        float c = angles[2 * i], s = angles[2 * i + 1], a = v[i], b = v[i + half];
        v[i] = a * c - b * s;
        v[i + half] = a * s + b * c;
    }
}

/* y += x.  Both [n]. */
static void dendp_add_to(float *y, const float *x, uint32_t n) {
    uint32_t i;
    for (i = 0; i < n; i++) {
        y[i] += x[i];
    }
}

/* The vector operations of one instruction set. */
typedef struct dendp_vector_ops {
    void (*rms_norm)(const float *x, const float *w, float eps, uint32_t n, float *y);
    void (*silu_mul)(const float *gate, const float *up, uint32_t n, float *y);
    float (*softmax)(float *s, uint32_t n, float *max_out);
    double (*sum_exp)(const float *x, uint32_t n, float max);
} dendp_vector_ops;

/* DEFAULT = the best that this processor has. */
static const dendp_vector_ops *dendp_vector_ops_get(dend_isa isa) {
    static const dendp_vector_ops scalar = {dendp_rms_norm_scalar, dendp_silu_mul_scalar,
                                            dendp_softmax_scalar, dendp_sum_exp_scalar};
#if DENDP_X86
    static const dendp_vector_ops avx2 = {dendp_rms_norm_avx2, dendp_silu_mul_avx2, dendp_softmax_avx2,
                                          dendp_sum_exp_avx2};
    static const dendp_vector_ops avx512 = {dendp_rms_norm_avx512, dendp_silu_mul_avx512,
                                            dendp_softmax_avx512, dendp_sum_exp_avx512};
    if ((isa == DEND_ISA_DEFAULT || isa == DEND_ISA_AVX512) &&
        (dendp_cpu_features() & DENDP_AVX512_NEEDS) == DENDP_AVX512_NEEDS) {
        return &avx512;
    }
    if (isa != DEND_ISA_SCALAR && (dendp_cpu_features() & DENDP_CPU_AVX2)) {
        return &avx2;
    }
#endif
    (void)isa;
    return &scalar;
}
