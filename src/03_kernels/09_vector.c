/* ==========================================================================
 * >>03.09 VECTOR: norm, rotation, activation, softmax
 * ==========================================================================
 * The small operations between the matmuls. Each treats a row on its own, in
 * one fixed order, so a row's result cannot depend on its neighbours. The
 * scalar functions are the meaning; those of AVX2, AVX-512 and NEON take the same
 * steps in the same order, 4 to 16 lanes at a time, with every fused multiply-add
 * spelled out (a compiler may contract a*b+c on its own, or not: dendp_fma leaves it
 * no choice), and tests hold them equal bit for bit.
 *
 * 2^x for x <= 0 (softmax) and in general (SiLU) is one polynomial: with
 * n = the integer nearest x (ties to even) and f = x - n in [-1/2, 1/2],
 * 2^x = 2^n * p(f), p the Taylor series of degree 7: relative error under 2e-8
 * before rounding. The factor 2^n is added to the exponent of p: at n = -126,
 * where p < 1 would be subnormal, x >= -126 has left f >= 0 and so p >= 1.
 * ======================================================================== */

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
    n = (int32_t)lrintf(x);
    f = x - (float)n;
    p = dendp_fma(DENDP_EXP2_C7, f, DENDP_EXP2_C6);
    p = dendp_fma(p, f, DENDP_EXP2_C5);
    p = dendp_fma(p, f, DENDP_EXP2_C4);
    p = dendp_fma(p, f, DENDP_EXP2_C3);
    p = dendp_fma(p, f, DENDP_EXP2_C2);
    p = dendp_fma(p, f, DENDP_EXP2_C1);
    p = dendp_fma(p, f, 1.0f);
    return dendp_bits_f32(dendp_f32_bits(p) + ((uint32_t)n << 23));
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
/* 2^x of 32 values, in place. Each is a chain of 16 dependent steps: four chains
 * stand side by side so that one fills the waits of the others. */
#define DENDP_FOUR_VECTORS(M) M(0) M(1) M(2) M(3)
DENDP_INLINE_AVX2 void dendp_exp2x4_avx2(__m256 *x0, __m256 *x1, __m256 *x2, __m256 *x3) {
    __m256 f0, f1, f2, f3, p0, p1, p2, p3;
    __m256i n0, n1, n2, n3;
#define DENDP_EXP2_CLAMP(i) f##i = _mm256_max_ps(*x##i, _mm256_set1_ps(-126.0f));
#define DENDP_EXP2_LIMIT(i) f##i = _mm256_min_ps(f##i, _mm256_set1_ps(126.0f));
#define DENDP_EXP2_ROUND(i) n##i = _mm256_cvtps_epi32(f##i);
#define DENDP_EXP2_REST(i) f##i = _mm256_sub_ps(f##i, _mm256_cvtepi32_ps(n##i));
#define DENDP_EXP2_FIRST(i)                                                                                  \
    p##i = _mm256_fmadd_ps(_mm256_set1_ps(DENDP_EXP2_C7), f##i, _mm256_set1_ps(DENDP_EXP2_C6));
#define DENDP_EXP2_POWER(i) n##i = _mm256_slli_epi32(n##i, 23);
#define DENDP_EXP2_SCALE(i) *x##i = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p##i), n##i));
#define DENDP_EXP2_STEP(c)                                                                                   \
    p0 = _mm256_fmadd_ps(p0, f0, _mm256_set1_ps(c));                                                         \
    p1 = _mm256_fmadd_ps(p1, f1, _mm256_set1_ps(c));                                                         \
    p2 = _mm256_fmadd_ps(p2, f2, _mm256_set1_ps(c));                                                         \
    p3 = _mm256_fmadd_ps(p3, f3, _mm256_set1_ps(c));
    DENDP_FOUR_VECTORS(DENDP_EXP2_CLAMP)
    DENDP_FOUR_VECTORS(DENDP_EXP2_LIMIT)
    DENDP_FOUR_VECTORS(DENDP_EXP2_ROUND)
    DENDP_FOUR_VECTORS(DENDP_EXP2_REST)
    DENDP_FOUR_VECTORS(DENDP_EXP2_FIRST)
    DENDP_FOUR_VECTORS(DENDP_EXP2_POWER)
    DENDP_EXP2_STEP(DENDP_EXP2_C5)
    DENDP_EXP2_STEP(DENDP_EXP2_C4)
    DENDP_EXP2_STEP(DENDP_EXP2_C3)
    DENDP_EXP2_STEP(DENDP_EXP2_C2)
    DENDP_EXP2_STEP(DENDP_EXP2_C1)
    DENDP_EXP2_STEP(1.0f)
    DENDP_FOUR_VECTORS(DENDP_EXP2_SCALE)
#undef DENDP_EXP2_CLAMP
#undef DENDP_EXP2_LIMIT
#undef DENDP_EXP2_ROUND
#undef DENDP_EXP2_REST
#undef DENDP_EXP2_FIRST
#undef DENDP_EXP2_POWER
#undef DENDP_EXP2_SCALE
#undef DENDP_EXP2_STEP
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
    const __m256 one = _mm256_set1_ps(1.0f), minus = _mm256_set1_ps(-DENDP_LOG2E);
    uint32_t i;
    for (i = 0; i + 32 <= n; i += 32) {
        __m256 x0, x1, x2, x3;
#define DENDP_BEFORE(k) x##k = _mm256_mul_ps(_mm256_loadu_ps(gate + i + (k)*8), minus);
#define DENDP_AFTER(k)                                                                                       \
    x##k = _mm256_div_ps(_mm256_loadu_ps(gate + i + (k)*8), _mm256_add_ps(one, x##k));                       \
    _mm256_storeu_ps(y + i + (k)*8, _mm256_mul_ps(x##k, _mm256_loadu_ps(up + i + (k)*8)));
        DENDP_FOUR_VECTORS(DENDP_BEFORE)
        dendp_exp2x4_avx2(&x0, &x1, &x2, &x3);
        DENDP_FOUR_VECTORS(DENDP_AFTER)
#undef DENDP_BEFORE
#undef DENDP_AFTER
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
    for (i = 0; i + 32 <= n; i += 32) {
        __m256 x0, x1, x2, x3;
#define DENDP_BEFORE(k) x##k = _mm256_sub_ps(_mm256_loadu_ps(s + i + (k)*8), m);
#define DENDP_AFTER(k)                                                                                       \
    x##k = _mm256_and_ps(x##k, _mm256_cmp_ps(_mm256_loadu_ps(s + i + (k)*8), limit, _CMP_GT_OQ));            \
    _mm256_storeu_ps(s + i + (k)*8, x##k);
        DENDP_FOUR_VECTORS(DENDP_BEFORE)
        dendp_exp2x4_avx2(&x0, &x1, &x2, &x3);
        DENDP_FOUR_VECTORS(DENDP_AFTER)
#undef DENDP_BEFORE
#undef DENDP_AFTER
        lo = _mm256_add_ps(_mm256_add_ps(lo, x0), x2);
        hi = _mm256_add_ps(_mm256_add_ps(hi, x1), x3);
    }
    _mm256_storeu_ps(lane, lo);
    _mm256_storeu_ps(lane + 8, hi);
    for (; i < n; i++) {
        s[i] = s[i] > 0.5f * DENDP_MASKED ? dendp_exp2(s[i] - max) : 0.0f;
        lane[i % 16] += s[i];
    }
    return dendp_sum16(lane);
}

DENDP_TARGET_AVX2 static double dendp_sum_exp_avx2(const float *x, uint32_t n, float max) {
    __m256 m = _mm256_set1_ps(max), scale = _mm256_set1_ps(DENDP_LOG2E);
    double sum = 0.0;
    uint32_t i, j;
    for (i = 0; i < n; i += 512) {
        __m256 lo = _mm256_setzero_ps(), hi = _mm256_setzero_ps();
        float lane[16];
        for (j = i; j + 32 <= n && j < i + 512; j += 32) {
            __m256 x0, x1, x2, x3;
#define DENDP_BEFORE(k) x##k = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(x + j + (k)*8), m), scale);
            DENDP_FOUR_VECTORS(DENDP_BEFORE)
#undef DENDP_BEFORE
            dendp_exp2x4_avx2(&x0, &x1, &x2, &x3);
            lo = _mm256_add_ps(_mm256_add_ps(lo, x0), x2);
            hi = _mm256_add_ps(_mm256_add_ps(hi, x1), x3);
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
    __m512 f, p;
    __m512i n;
    x = _mm512_maskz_min_ps(DENDP_ALL_LANES, dendp_max16(x, _mm512_set1_ps(-126.0f)), _mm512_set1_ps(126.0f));
    n = _mm512_maskz_cvtps_epi32(DENDP_ALL_LANES, x);
    f = _mm512_sub_ps(x, dendp_floats16(n));
    p = _mm512_fmadd_ps(_mm512_set1_ps(DENDP_EXP2_C7), f, _mm512_set1_ps(DENDP_EXP2_C6));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(DENDP_EXP2_C5));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(DENDP_EXP2_C4));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(DENDP_EXP2_C3));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(DENDP_EXP2_C2));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(DENDP_EXP2_C1));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), DENDP_LEFT32(n, 23)));
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

#if DENDP_ARM64
/* Sums of 16 lanes from four registers: lane [16]. */
static void dendp_lanes_neon(float *lane, float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d) {
    vst1q_f32(lane, a);
    vst1q_f32(lane + 4, b);
    vst1q_f32(lane + 8, c);
    vst1q_f32(lane + 12, d);
}

/* x > limit ? x : limit, as C says it: a NaN gives the limit. The processor's own maximum keeps NaNs. */
static float32x4_t dendp_above4(float32x4_t x, float32x4_t limit) {
    return vbslq_f32(vcgtq_f32(x, limit), x, limit);
}

static float32x4_t dendp_exp2_neon(float32x4_t x) {
    float32x4_t f, p;
    int32x4_t n;
    x = dendp_above4(x, vdupq_n_f32(-126.0f));
    x = vminq_f32(x, vdupq_n_f32(126.0f)); /* no NaN is left */
    n = vcvtnq_s32_f32(x);
    f = vsubq_f32(x, vcvtq_f32_s32(n));
    p = vfmaq_f32(vdupq_n_f32(DENDP_EXP2_C6), vdupq_n_f32(DENDP_EXP2_C7), f);
    p = vfmaq_f32(vdupq_n_f32(DENDP_EXP2_C5), p, f);
    p = vfmaq_f32(vdupq_n_f32(DENDP_EXP2_C4), p, f);
    p = vfmaq_f32(vdupq_n_f32(DENDP_EXP2_C3), p, f);
    p = vfmaq_f32(vdupq_n_f32(DENDP_EXP2_C2), p, f);
    p = vfmaq_f32(vdupq_n_f32(DENDP_EXP2_C1), p, f);
    p = vfmaq_f32(vdupq_n_f32(1.0f), p, f);
    return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(p), vshlq_n_s32(n, 23)));
}

static void dendp_rms_norm_neon(const float *x, const float *w, float eps, uint32_t n, float *y) {
    float32x4_t a = vdupq_n_f32(0), b = a, c = a, d = a, v;
    float lane[16], scale;
    uint32_t i;
    for (i = 0; i + 16 <= n; i += 16) {
        v = vld1q_f32(x + i);
        a = vfmaq_f32(a, v, v);
        v = vld1q_f32(x + i + 4);
        b = vfmaq_f32(b, v, v);
        v = vld1q_f32(x + i + 8);
        c = vfmaq_f32(c, v, v);
        v = vld1q_f32(x + i + 12);
        d = vfmaq_f32(d, v, v);
    }
    dendp_lanes_neon(lane, a, b, c, d);
    for (; i < n; i++) {
        lane[i % 16] = dendp_fma(x[i], x[i], lane[i % 16]);
    }
    scale = 1.0f / sqrtf(dendp_sum16(lane) / (float)n + eps);
    v = vdupq_n_f32(scale);
    for (i = 0; i + 4 <= n; i += 4) {
        vst1q_f32(y + i, vmulq_f32(vmulq_f32(vld1q_f32(x + i), v), vld1q_f32(w + i)));
    }
    for (; i < n; i++) {
        y[i] = x[i] * scale * w[i];
    }
}

static void dendp_silu_mul_neon(const float *gate, const float *up, uint32_t n, float *y) {
    uint32_t i;
    for (i = 0; i + 4 <= n; i += 4) {
        float32x4_t g = vld1q_f32(gate + i);
        float32x4_t e = dendp_exp2_neon(vmulq_f32(g, vdupq_n_f32(-DENDP_LOG2E)));
        float32x4_t s = vdivq_f32(g, vaddq_f32(vdupq_n_f32(1.0f), e));
        vst1q_f32(y + i, vmulq_f32(s, vld1q_f32(up + i)));
    }
    dendp_silu_mul_scalar(gate + i, up + i, n - i, y + i);
}

/* 2^(s - max) of 4 scores, 0 where masked; stored and returned. */
static float32x4_t dendp_softmax4(float *s, float32x4_t max) {
    float32x4_t v = vld1q_f32(s);
    uint32x4_t seen = vcgtq_f32(v, vdupq_n_f32(0.5f * DENDP_MASKED));
    v = vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(dendp_exp2_neon(vsubq_f32(v, max))), seen));
    vst1q_f32(s, v);
    return v;
}

static float dendp_softmax_neon(float *s, uint32_t n, float *max_out) {
    float32x4_t a = vdupq_n_f32(0), b = a, c = a, d = a, m = vdupq_n_f32(DENDP_MASKED), m2 = m;
    float lane[16];
    uint32_t i;
    for (i = 0; i < n; i += 8) {
        m = dendp_above4(vld1q_f32(s + i), m);
        m2 = dendp_above4(vld1q_f32(s + i + 4), m2);
    }
    *max_out = vmaxvq_f32(vmaxq_f32(m, m2)); /* neither holds a NaN */
    m = vdupq_n_f32(*max_out);
    for (i = 0; i < n; i += 16) {
        a = vaddq_f32(a, dendp_softmax4(s + i, m));
        b = vaddq_f32(b, dendp_softmax4(s + i + 4, m));
        c = vaddq_f32(c, dendp_softmax4(s + i + 8, m));
        d = vaddq_f32(d, dendp_softmax4(s + i + 12, m));
    }
    dendp_lanes_neon(lane, a, b, c, d);
    return dendp_sum16(lane);
}

/* e^(x - max) of 4 numbers. */
static float32x4_t dendp_exp4(const float *x, float32x4_t max) {
    return dendp_exp2_neon(vmulq_f32(vsubq_f32(vld1q_f32(x), max), vdupq_n_f32(DENDP_LOG2E)));
}

static double dendp_sum_exp_neon(const float *x, uint32_t n, float max) {
    float32x4_t m = vdupq_n_f32(max);
    double sum = 0.0;
    uint32_t i, j;
    for (i = 0; i < n; i += 512) {
        float32x4_t a = vdupq_n_f32(0), b = a, c = a, d = a;
        float lane[16];
        for (j = i; j + 16 <= n && j < i + 512; j += 16) {
            a = vaddq_f32(a, dendp_exp4(x + j, m));
            b = vaddq_f32(b, dendp_exp4(x + j + 4, m));
            c = vaddq_f32(c, dendp_exp4(x + j + 8, m));
            d = vaddq_f32(d, dendp_exp4(x + j + 12, m));
        }
        dendp_lanes_neon(lane, a, b, c, d);
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
#elif DENDP_ARM64
    static const dendp_vector_ops neon = {dendp_rms_norm_neon, dendp_silu_mul_neon, dendp_softmax_neon,
                                          dendp_sum_exp_neon};
    if (isa != DEND_ISA_SCALAR) { /* every AArch64 processor has it */
        return &neon;
    }
#endif
    (void)isa;
    return &scalar;
}
