/* ==========================================================================
 * >>03.09 VECTOR: norm, rotation, activation, softmax, searches
 * ==========================================================================
 * The small operations between the matmuls. Each treats a row on its own, in
 * one fixed order, so a row's result cannot depend on its neighbours. The
 * scalar functions are the meaning; those of AVX2, AVX-512 and NEON take the same
 * steps in the same order, 4 to 16 lanes at a time, with every fused multiply-add
 * spelled out (a compiler may contract a*b+c on its own, or not: dendp_fma leaves it
 * no choice), and tests hold them equal bit for bit.
 *
 * 2^x for x <= 0 (softmax) and in general (SiLU, GELU) is one polynomial: with
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

/* y = gelu(gate) * up, gelu(g) = g/2 * (1 + tanh(sqrt(2/pi) (g + 0.044715 g^3))), the approximation of
 * Hendrycks and Gimpel (2016).  As (1 + tanh z)/2 = 1/(1 + e^-2z), it is SiLU with another exponent,
 * here g * (C1 + C3 * g^2) as a power of two.  All [n]. */
#define DENDP_GELU_C1 (-2.30220819814432488f)  /* -2 log2(e) sqrt(2/pi) */
#define DENDP_GELU_C3 (-0.102943239580023487f) /* and times 0.044715 */
static void dendp_gelu_mul_scalar(const float *gate, const float *up, uint32_t n, float *y) {
    uint32_t i;
    for (i = 0; i < n; i++) {
        float e = dendp_exp2(dendp_fma(gate[i] * gate[i], DENDP_GELU_C3, DENDP_GELU_C1) * gate[i]);
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

/* -- searches over logits (06.01) --
 * They compare logits as integers: DENDP_ORDER_MOST is that of FLT_MAX and of infinity,
 * DENDP_ORDER_LEAST that of -FLT_MAX, of minus infinity and of NaN. */

#define DENDP_ORDER_MOST 0x7f7fffff
#define DENDP_ORDER_LEAST (-0x7f7fffff)

/* An integer that is larger for a larger logit, equal for equal ones (-0 and 0 too). The bits of a float
 * without its sign count up as the float does; those above infinity's are NaN. */
static int32_t dendp_order(float x) {
    uint32_t bits = dendp_f32_bits(x), size = bits & 0x7fffffffu;
    int32_t order = size < (uint32_t)DENDP_ORDER_MOST ? (int32_t)size : DENDP_ORDER_MOST;
    return size > 0x7f800000u ? DENDP_ORDER_LEAST : bits >> 31 ? -order : order;
}

/* The first of the largest of x [n], n > 0. */
static uint32_t dendp_max_index_scalar(const float *x, uint32_t n) {
    int32_t most = dendp_order(x[0]);
    uint32_t i, best = 0;
    for (i = 1; i < n; i++) {
        int32_t order = dendp_order(x[i]);
        best = order > most ? i : best;
        most = order > most ? order : most;
    }
    return best;
}

/* The first i of start, ..., n - 1 whose dendp_order is above `order`; n where there is none. */
static uint32_t dendp_next_above_scalar(const float *x, uint32_t start, uint32_t n, int32_t order) {
    uint32_t i;
    for (i = start; i < n && dendp_order(x[i]) <= order; i++) {
    }
    return i;
}

/* What next_lift looks for; 06.01 says why. */
typedef struct dendp_lift {
    uint64_t key; /* dendp_hash_key of the draw */
    float max;    /* the largest logit */
    float least;  /* no logit below can win */
    float scale;  /* (logit - max) * scale + offset: the most that the bits of a float of 1 - u may be */
    float offset;
} dendp_lift;

/* The first i of start, ..., n - 1 whose noise may lift x[i] to the mark; n where there is none. */
static uint32_t dendp_next_lift_scalar(const dendp_lift *l, const float *x, uint32_t start, uint32_t n) {
    uint32_t i;
    for (i = start; i < n; i++) {
        if (x[i] >= l->least) {
            uint64_t hash = dendp_mix64(l->key ^ (i * DENDP_HASH_STEP + DENDP_HASH_START));
            uint32_t rest = dendp_f32_bits((float)(int32_t)(~hash >> 33)); /* of 1 - u, times 2^31 */
            if ((float)(int32_t)rest < dendp_fma(x[i] - l->max, l->scale, l->offset)) {
                break;
            }
        }
    }
    return i;
}

/* o = o * keep + part * add: two partial results of attention become one.  o, part [n]. */
static void dendp_blend_scalar(float *o, float keep, const float *part, float add, uint32_t n) {
    uint32_t i;
    for (i = 0; i < n; i++) {
        o[i] = dendp_fma(part[i], add, o[i] * keep);
    }
}

#if DENDP_X86
/* While the upper halves of the vector registers are in use, code compiled for SSE alone (dendp_sum16, the
 * library's log) may run many times slower. Compilers clear them at the end of a function for AVX2, but not
 * always where it calls one of ours first: hence _mm256_zeroupper where the vectors end. */

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
    _mm256_zeroupper();
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

/* y = gate / (1 + 2^x) * up, where x holds the powers: how both gates end. */
#define DENDP_GATED(k)                                                                                       \
    x##k = _mm256_div_ps(_mm256_loadu_ps(gate + i + (k)*8), _mm256_add_ps(one, x##k));                       \
    _mm256_storeu_ps(y + i + (k)*8, _mm256_mul_ps(x##k, _mm256_loadu_ps(up + i + (k)*8)));

DENDP_TARGET_AVX2 static void dendp_silu_mul_avx2(const float *gate, const float *up, uint32_t n, float *y) {
    const __m256 one = _mm256_set1_ps(1.0f), minus = _mm256_set1_ps(-DENDP_LOG2E);
    uint32_t i;
    for (i = 0; i + 32 <= n; i += 32) {
        __m256 x0, x1, x2, x3;
#define DENDP_BEFORE(k) x##k = _mm256_mul_ps(_mm256_loadu_ps(gate + i + (k)*8), minus);
        DENDP_FOUR_VECTORS(DENDP_BEFORE)
        dendp_exp2x4_avx2(&x0, &x1, &x2, &x3);
        DENDP_FOUR_VECTORS(DENDP_GATED)
#undef DENDP_BEFORE
    }
    dendp_silu_mul_scalar(gate + i, up + i, n - i, y + i);
}

DENDP_TARGET_AVX2 static void dendp_gelu_mul_avx2(const float *gate, const float *up, uint32_t n, float *y) {
    const __m256 one = _mm256_set1_ps(1.0f), c1 = _mm256_set1_ps(DENDP_GELU_C1),
                 c3 = _mm256_set1_ps(DENDP_GELU_C3);
    uint32_t i;
    for (i = 0; i + 32 <= n; i += 32) {
        __m256 x0, x1, x2, x3;
#define DENDP_BEFORE(k)                                                                                      \
    x##k = _mm256_loadu_ps(gate + i + (k)*8);                                                                \
    x##k = _mm256_mul_ps(_mm256_fmadd_ps(_mm256_mul_ps(x##k, x##k), c3, c1), x##k);
        DENDP_FOUR_VECTORS(DENDP_BEFORE)
        dendp_exp2x4_avx2(&x0, &x1, &x2, &x3);
        DENDP_FOUR_VECTORS(DENDP_GATED)
#undef DENDP_BEFORE
    }
    dendp_gelu_mul_scalar(gate + i, up + i, n - i, y + i);
}

#undef DENDP_GATED

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
    _mm256_zeroupper();
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
        _mm256_zeroupper();
        for (; j < n && j < i + 512; j++) {
            lane[j % 16] += dendp_exp2((x[j] - max) * DENDP_LOG2E);
        }
        sum += (double)dendp_sum16(lane);
    }
    return sum;
}

/* dendp_order of 8 numbers + 2^23 - 1, without its limits: infinity stays above FLT_MAX, a negative NaN below
 * minus infinity; a positive one is carried past the largest integer to the smallest. */
#define DENDP_ORDER_SHIFT 0x7fffff
DENDP_INLINE_AVX2 __m256i dendp_order8(const float *x) {
    __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(x));
    __m256i size = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    return _mm256_add_epi32(_mm256_sign_epi32(size, bits), _mm256_set1_epi32(DENDP_ORDER_SHIFT));
}

/* One bit for each of 8 true lanes. */
DENDP_INLINE_AVX2 uint32_t dendp_lanes8(__m256i v) {
    return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(v));
}

DENDP_TARGET_AVX2 static uint32_t dendp_next_above_avx2(const float *x, uint32_t start, uint32_t n,
                                                        int32_t order) {
    /* Nothing is above the most, infinity neither. */
    const int32_t shifted = order < DENDP_ORDER_MOST ? order + DENDP_ORDER_SHIFT : INT32_MAX;
    const __m256i limit = _mm256_set1_epi32(shifted);
    uint32_t i = start, lanes;
    for (; i + 32 <= n; i += 32) { /* mostly there is none */
        __m256i a = _mm256_max_epi32(dendp_order8(x + i), dendp_order8(x + i + 8));
        __m256i b = _mm256_max_epi32(dendp_order8(x + i + 16), dendp_order8(x + i + 24));
        a = _mm256_cmpgt_epi32(_mm256_max_epi32(a, b), limit);
        if (!_mm256_testz_si256(a, a)) {
            break;
        }
    }
    for (; i + 8 <= n; i += 8) {
        lanes = dendp_lanes8(_mm256_cmpgt_epi32(dendp_order8(x + i), limit));
        if (lanes) {
            return i + (uint32_t)__builtin_ctz(lanes);
        }
    }
    return dendp_next_above_scalar(x, i, n, order);
}

/* Finds the part of 512 that holds the first of the largest, then looks there. */
DENDP_TARGET_AVX2 static uint32_t dendp_max_index_avx2(const float *x, uint32_t n) {
    int32_t most = DENDP_ORDER_LEAST, lane[8];
    uint32_t i, j, part = 0;
    for (i = 0; i + 512 <= n; i += 512) {
        const __m256i limit =
            _mm256_set1_epi32(most < DENDP_ORDER_MOST ? most + DENDP_ORDER_SHIFT : INT32_MAX);
        __m256i a = limit, b = limit;
        for (j = i; j < i + 512; j += 16) {
            a = _mm256_max_epi32(a, dendp_order8(x + j));
            b = _mm256_max_epi32(b, dendp_order8(x + j + 8));
        }
        a = _mm256_max_epi32(a, b);
        if (dendp_lanes8(_mm256_cmpgt_epi32(a, limit))) {
            _mm256_storeu_si256((__m256i *)lane, a);
            for (j = 0; j < 8; j++) {
                int32_t order = lane[j] - DENDP_ORDER_SHIFT;
                order = order < DENDP_ORDER_MOST ? order : DENDP_ORDER_MOST;
                most = order > most ? order : most;
            }
            part = i;
        }
    }
    for (j = i; j < n; j++) {
        if (dendp_order(x[j]) > most) {
            return i + dendp_max_index_scalar(x + i, n - i);
        }
    }
    return most > DENDP_ORDER_LEAST ? dendp_next_above_avx2(x, part, n, most - 1) : 0;
}

/* The lower 64 bits of 4 products: c = high * 2^32 + low. */
DENDP_INLINE_AVX2 __m256i dendp_times64(__m256i x, __m256i low, __m256i high) {
    __m256i cross =
        _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(x, 32), low), _mm256_mul_epu32(x, high));
    return _mm256_add_epi64(_mm256_mul_epu32(x, low), _mm256_slli_epi64(cross, 32));
}

/* dendp_mix64 of 4 words without its last step, which leaves the upper 31 bits as they are. */
DENDP_INLINE_AVX2 __m256i dendp_mix64x4(__m256i x) {
    x = _mm256_xor_si256(x, _mm256_srli_epi64(x, 30));
    x = dendp_times64(x, _mm256_set1_epi64x(0x1ce4e5b9), _mm256_set1_epi64x(0xbf58476d));
    x = _mm256_xor_si256(x, _mm256_srli_epi64(x, 27));
    return dendp_times64(x, _mm256_set1_epi64x(0x133111eb), _mm256_set1_epi64x(0x94d049bb));
}

DENDP_TARGET_AVX2 static uint32_t dendp_next_lift_avx2(const dendp_lift *l, const float *x, uint32_t start,
                                                       uint32_t n) {
    const __m256i key = _mm256_set1_epi64x((int64_t)l->key),
                  step = _mm256_set1_epi64x((int64_t)(8 * DENDP_HASH_STEP));
    const __m256 max = _mm256_set1_ps(l->max), least = _mm256_set1_ps(l->least);
    const __m256 scale = _mm256_set1_ps(l->scale), offset = _mm256_set1_ps(l->offset);
    __m256i a, b; /* id * STEP + START of the ids 0 1 4 5 and of 2 3 6 7 */
    uint64_t word[8];
    uint32_t i;
    for (i = 0; i < 8; i++) {
        word[i] =
            ((uint64_t)start + (i & 1u) + (i & 2u) * 2 + (i & 4u) / 2) * DENDP_HASH_STEP + DENDP_HASH_START;
    }
    a = _mm256_loadu_si256((const __m256i *)word);
    b = _mm256_loadu_si256((const __m256i *)(word + 4));
    for (i = start; i + 8 <= n; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i), seen = _mm256_cmp_ps(v, least, _CMP_GE_OQ), hash, rest;
        if (_mm256_movemask_ps(seen)) {
            uint32_t lanes;
            hash = _mm256_shuffle_ps(_mm256_castsi256_ps(dendp_mix64x4(_mm256_xor_si256(a, key))),
                                     _mm256_castsi256_ps(dendp_mix64x4(_mm256_xor_si256(b, key))), 0xdd);
            rest = _mm256_xor_ps(hash, _mm256_castsi256_ps(_mm256_set1_epi32(-1)));
            rest = _mm256_cvtepi32_ps(_mm256_srli_epi32(_mm256_castps_si256(rest), 1));
            rest = _mm256_cvtepi32_ps(_mm256_castps_si256(rest));
            v = _mm256_fmadd_ps(_mm256_sub_ps(v, max), scale, offset);
            lanes = (uint32_t)_mm256_movemask_ps(_mm256_and_ps(seen, _mm256_cmp_ps(rest, v, _CMP_LT_OQ)));
            if (lanes) {
                return i + (uint32_t)__builtin_ctz(lanes);
            }
        }
        a = _mm256_add_epi64(a, step);
        b = _mm256_add_epi64(b, step);
    }
    return dendp_next_lift_scalar(l, x, i, n);
}

DENDP_TARGET_AVX2 static void dendp_blend_avx2(float *o, float keep, const float *part, float add,
                                               uint32_t n) {
    const __m256 k = _mm256_set1_ps(keep), a = _mm256_set1_ps(add);
    uint32_t i;
    for (i = 0; i + 8 <= n; i += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(o + i), k);
        _mm256_storeu_ps(o + i, _mm256_fmadd_ps(_mm256_loadu_ps(part + i), a, v));
    }
    _mm256_zeroupper();
    dendp_blend_scalar(o + i, keep, part + i, add, n - i);
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
    _mm256_zeroupper();
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

DENDP_TARGET_AVX512 static void dendp_gelu_mul_avx512(const float *gate, const float *up, uint32_t n,
                                                      float *y) {
    const __m512 c1 = _mm512_set1_ps(DENDP_GELU_C1), c3 = _mm512_set1_ps(DENDP_GELU_C3);
    uint32_t i;
    for (i = 0; i + 16 <= n; i += 16) {
        __m512 g = _mm512_loadu_ps(gate + i);
        __m512 e = dendp_exp2_avx512(_mm512_mul_ps(_mm512_fmadd_ps(_mm512_mul_ps(g, g), c3, c1), g));
        __m512 s = _mm512_div_ps(g, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
        _mm512_storeu_ps(y + i, _mm512_mul_ps(s, _mm512_loadu_ps(up + i)));
    }
    dendp_gelu_mul_scalar(gate + i, up + i, n - i, y + i);
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
    _mm256_zeroupper();
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
        _mm256_zeroupper();
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

static void dendp_gelu_mul_neon(const float *gate, const float *up, uint32_t n, float *y) {
    const float32x4_t c1 = vdupq_n_f32(DENDP_GELU_C1), c3 = vdupq_n_f32(DENDP_GELU_C3);
    uint32_t i;
    for (i = 0; i + 4 <= n; i += 4) {
        float32x4_t g = vld1q_f32(gate + i);
        float32x4_t e = dendp_exp2_neon(vmulq_f32(vfmaq_f32(c1, vmulq_f32(g, g), c3), g));
        float32x4_t s = vdivq_f32(g, vaddq_f32(vdupq_n_f32(1.0f), e));
        vst1q_f32(y + i, vmulq_f32(s, vld1q_f32(up + i)));
    }
    dendp_gelu_mul_scalar(gate + i, up + i, n - i, y + i);
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

/* x *= scale.  [n]. */
static void dendp_scale_by(float *x, float scale, uint32_t n) {
    uint32_t i;
    for (i = 0; i < n; i++) {
        x[i] *= scale;
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
    void (*gelu_mul)(const float *gate, const float *up, uint32_t n, float *y);
    float (*softmax)(float *s, uint32_t n, float *max_out);
    double (*sum_exp)(const float *x, uint32_t n, float max);
    void (*blend)(float *o, float keep, const float *part, float add, uint32_t n);
    uint32_t (*max_index)(const float *x, uint32_t n);
    uint32_t (*next_above)(const float *x, uint32_t start, uint32_t n, int32_t order);
    uint32_t (*next_lift)(const dendp_lift *l, const float *x, uint32_t start, uint32_t n);
} dendp_vector_ops;

/* DEFAULT = the best that this processor has. */
static const dendp_vector_ops *dendp_vector_ops_get(dend_isa isa) {
    static const dendp_vector_ops scalar = {
        dendp_rms_norm_scalar,  dendp_silu_mul_scalar,   dendp_gelu_mul_scalar,
        dendp_softmax_scalar,   dendp_sum_exp_scalar,    dendp_blend_scalar,
        dendp_max_index_scalar, dendp_next_above_scalar, dendp_next_lift_scalar};
#if DENDP_X86
    static const dendp_vector_ops avx2 = {dendp_rms_norm_avx2,  dendp_silu_mul_avx2,   dendp_gelu_mul_avx2,
                                          dendp_softmax_avx2,   dendp_sum_exp_avx2,    dendp_blend_avx2,
                                          dendp_max_index_avx2, dendp_next_above_avx2, dendp_next_lift_avx2};
    static const dendp_vector_ops avx512 = {
        dendp_rms_norm_avx512, dendp_silu_mul_avx512, dendp_gelu_mul_avx512,
        dendp_softmax_avx512,  dendp_sum_exp_avx512,  dendp_blend_avx2,
        dendp_max_index_avx2,  dendp_next_above_avx2, dendp_next_lift_avx2};
    if ((isa == DEND_ISA_DEFAULT || isa == DEND_ISA_AVX512) &&
        (dendp_cpu_features() & DENDP_AVX512_NEEDS) == DENDP_AVX512_NEEDS) {
        return &avx512;
    }
    if (isa != DEND_ISA_SCALAR && (dendp_cpu_features() & DENDP_CPU_AVX2)) {
        return &avx2;
    }
#elif DENDP_ARM64
    static const dendp_vector_ops neon = {
        dendp_rms_norm_neon,    dendp_silu_mul_neon,     dendp_gelu_mul_neon,
        dendp_softmax_neon,     dendp_sum_exp_neon,      dendp_blend_scalar, /* fma is an instruction there */
        dendp_max_index_scalar, dendp_next_above_scalar, dendp_next_lift_scalar};
    if (isa != DEND_ISA_SCALAR) { /* every AArch64 processor has it */
        return &neon;
    }
#endif
    (void)isa;
    return &scalar;
}
