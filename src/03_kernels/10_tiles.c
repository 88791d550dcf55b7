/* ==========================================================================
 * >>03.10 TILES: scores and weighted values of 16 keys
 * ==========================================================================
 * Attention meets the cache in tiles of 16 positions of one KV head. Two
 * primitives do all the arithmetic:
 *
 *     score   s[q][t] = sum over i of  Q[q][i] * K[i][t]        t = 0..15
 *     add_v   o[q][j] += sum over t in mask of  p[q][t] * V[t][j]
 *
 * The layout makes both run along registers. K lies [d][16]: one dimension of
 * all 16 keys side by side, so scores need no horizontal sums, and a K vector
 * once loaded serves every query of the group. V lies [16][d].
 *
 *     type   K                                   V
 *     f32    [d][16] f32                         [16][d] f32
 *     f16    [d][16] f16                         [16][d] f16
 *     q8_0   [d][16] i8, [d/32][16] f16 scales   [16][d] i8, [16][d/32] f16 scales
 *
 * ORDER  Every s is one chain of fused multiply-adds, i ascending (q8_0: a
 * chain over each 32 dimensions, then one fma with the scale); every o one
 * chain, t ascending. Scalar and AVX2 agree bit for bit. Slots outside the
 * mask hold anything, NaN included: their scores are computed and thrown away
 * by the caller, their values are never touched.
 *
 * Widths that are no multiple of 8 take the scalar form for what is left.
 * ======================================================================== */

/* q8_0: scale groups of a vector. */
static uint32_t dendp_q8_groups(uint32_t d) {
    return (d + 31) / 32;
}

/* -- scalar: the meaning ---------------------------------------------------- */

/* Q [n_q][d], k one K tile, s [n_q][ld_s]. */
static void dendp_score_f32_scalar(const void *k, uint32_t d, const float *q, uint32_t n_q, float *s,
                                   uint32_t ld_s) {
    const float *key = (const float *)k;
    uint32_t a, i, t;
    for (a = 0; a < n_q; a++) {
        float acc[16] = {0};
        for (i = 0; i < d; i++) {
            for (t = 0; t < 16; t++) {
                acc[t] = dendp_fma(q[a * d + i], key[i * 16 + t], acc[t]);
            }
        }
        memcpy(s + (size_t)a * ld_s, acc, sizeof acc);
    }
}

static void dendp_score_f16_scalar(const void *k, uint32_t d, const float *q, uint32_t n_q, float *s,
                                   uint32_t ld_s) {
    const uint16_t *key = (const uint16_t *)k;
    uint32_t a, i, t;
    for (a = 0; a < n_q; a++) {
        float acc[16] = {0};
        for (i = 0; i < d; i++) {
            for (t = 0; t < 16; t++) {
                acc[t] = dendp_fma(q[a * d + i], dendp_f16_to_f32(key[i * 16 + t]), acc[t]);
            }
        }
        memcpy(s + (size_t)a * ld_s, acc, sizeof acc);
    }
}

static void dendp_score_q8_scalar(const void *k, uint32_t d, const float *q, uint32_t n_q, float *s,
                                  uint32_t ld_s) {
    const int8_t *key = (const int8_t *)k;
    const uint16_t *scale = (const uint16_t *)((const unsigned char *)k + (size_t)d * 16);
    uint32_t a, i, t, b;
    for (a = 0; a < n_q; a++) {
        float acc[16] = {0};
        for (b = 0; b < dendp_q8_groups(d); b++) {
            float part[16] = {0};
            for (i = b * 32; i < d && i < b * 32 + 32; i++) {
                for (t = 0; t < 16; t++) {
                    part[t] = dendp_fma(q[a * d + i], (float)key[i * 16 + t], part[t]);
                }
            }
            for (t = 0; t < 16; t++) {
                acc[t] = dendp_fma(part[t], dendp_f16_to_f32(scale[b * 16 + t]), acc[t]);
            }
        }
        memcpy(s + (size_t)a * ld_s, acc, sizeof acc);
    }
}

/* Columns [j0, d) of o += p V; the AVX2 forms call these for what is left.
 * v one V tile, p [n_q][ld_p] weights, mask bit t: slot t counts, o [n_q][d]. */
static void dendp_add_v_f32_from(const void *v, uint32_t d, uint32_t j0, const float *p, uint32_t ld_p,
                                 uint32_t n_q, uint32_t mask, float *o) {
    const float *val = (const float *)v;
    uint32_t a, t, j;
    for (a = 0; a < n_q; a++) {
        for (t = 0; t < 16; t++) {
            float w = p[(size_t)a * ld_p + t];
            for (j = j0; j < d && (mask >> t & 1u); j++) {
                o[a * d + j] = dendp_fma(w, val[t * d + j], o[a * d + j]);
            }
        }
    }
}

static void dendp_add_v_f16_from(const void *v, uint32_t d, uint32_t j0, const float *p, uint32_t ld_p,
                                 uint32_t n_q, uint32_t mask, float *o) {
    const uint16_t *val = (const uint16_t *)v;
    uint32_t a, t, j;
    for (a = 0; a < n_q; a++) {
        for (t = 0; t < 16; t++) {
            float w = p[(size_t)a * ld_p + t];
            for (j = j0; j < d && (mask >> t & 1u); j++) {
                o[a * d + j] = dendp_fma(w, dendp_f16_to_f32(val[t * d + j]), o[a * d + j]);
            }
        }
    }
}

static void dendp_add_v_q8_from(const void *v, uint32_t d, uint32_t j0, const float *p, uint32_t ld_p,
                                uint32_t n_q, uint32_t mask, float *o) {
    const int8_t *val = (const int8_t *)v;
    const uint16_t *scale = (const uint16_t *)((const unsigned char *)v + (size_t)d * 16);
    uint32_t a, t, j, groups = dendp_q8_groups(d);
    for (a = 0; a < n_q; a++) {
        for (t = 0; t < 16; t++) {
            for (j = j0; j < d && (mask >> t & 1u); j++) {
                float w = p[(size_t)a * ld_p + t] * dendp_f16_to_f32(scale[t * groups + j / 32]);
                o[a * d + j] = dendp_fma(w, (float)val[t * d + j], o[a * d + j]);
            }
        }
    }
}

static void dendp_add_v_f32_scalar(const void *v, uint32_t d, const float *p, uint32_t ld_p, uint32_t n_q,
                                   uint32_t mask, float *o) {
    dendp_add_v_f32_from(v, d, 0, p, ld_p, n_q, mask, o);
}

static void dendp_add_v_f16_scalar(const void *v, uint32_t d, const float *p, uint32_t ld_p, uint32_t n_q,
                                   uint32_t mask, float *o) {
    dendp_add_v_f16_from(v, d, 0, p, ld_p, n_q, mask, o);
}

static void dendp_add_v_q8_scalar(const void *v, uint32_t d, const float *p, uint32_t ld_p, uint32_t n_q,
                                  uint32_t mask, float *o) {
    dendp_add_v_q8_from(v, d, 0, p, ld_p, n_q, mask, o);
}

/* -- AVX2 ------------------------------------------------------------------- */

#if DENDP_X86

/* 8 values of a tile row as floats, for each type. */
#define DENDP_LOAD8_F32(ptr) _mm256_loadu_ps((const float *)(ptr))
#define DENDP_LOAD8_F16(ptr) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(ptr)))
#define DENDP_LOAD8_I8(ptr)                                                                                  \
    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(ptr))))

/* Scores of up to 4 queries against one tile: 8 accumulators stay in
 * registers. Where fewer are left, the last one is computed and stored again. */
#define DENDP_SCORE_AVX2(name, type, LOAD8)                                                                  \
    DENDP_TARGET_AVX2 static void name(const void *k, uint32_t d, const float *q, uint32_t n_q, float *s,    \
                                       uint32_t ld_s) {                                                      \
        uint32_t a, i;                                                                                       \
        for (a = 0; a < n_q; a += 4) {                                                                       \
            const type *key = (const type *)k;                                                               \
            uint32_t r1 = a + 1 < n_q ? a + 1 : n_q - 1, r2 = a + 2 < n_q ? a + 2 : n_q - 1;                 \
            uint32_t r3 = a + 3 < n_q ? a + 3 : n_q - 1;                                                     \
            const float *q0 = q + (size_t)a * d, *q1 = q + (size_t)r1 * d;                                   \
            const float *q2 = q + (size_t)r2 * d, *q3 = q + (size_t)r3 * d;                                  \
            __m256 a0 = _mm256_setzero_ps(), b0 = a0, a1 = a0, b1 = a0, a2 = a0, b2 = a0, a3 = a0, b3 = a0;  \
            for (i = 0; i < d; i++, key += 16) {                                                             \
                __m256 lo = LOAD8(key), hi = LOAD8(key + 8), x;                                              \
                x = _mm256_broadcast_ss(q0 + i);                                                             \
                a0 = _mm256_fmadd_ps(x, lo, a0);                                                             \
                b0 = _mm256_fmadd_ps(x, hi, b0);                                                             \
                x = _mm256_broadcast_ss(q1 + i);                                                             \
                a1 = _mm256_fmadd_ps(x, lo, a1);                                                             \
                b1 = _mm256_fmadd_ps(x, hi, b1);                                                             \
                x = _mm256_broadcast_ss(q2 + i);                                                             \
                a2 = _mm256_fmadd_ps(x, lo, a2);                                                             \
                b2 = _mm256_fmadd_ps(x, hi, b2);                                                             \
                x = _mm256_broadcast_ss(q3 + i);                                                             \
                a3 = _mm256_fmadd_ps(x, lo, a3);                                                             \
                b3 = _mm256_fmadd_ps(x, hi, b3);                                                             \
            }                                                                                                \
            _mm256_storeu_ps(s + (size_t)a * ld_s, a0);                                                      \
            _mm256_storeu_ps(s + (size_t)a * ld_s + 8, b0);                                                  \
            _mm256_storeu_ps(s + (size_t)r1 * ld_s, a1);                                                     \
            _mm256_storeu_ps(s + (size_t)r1 * ld_s + 8, b1);                                                 \
            _mm256_storeu_ps(s + (size_t)r2 * ld_s, a2);                                                     \
            _mm256_storeu_ps(s + (size_t)r2 * ld_s + 8, b2);                                                 \
            _mm256_storeu_ps(s + (size_t)r3 * ld_s, a3);                                                     \
            _mm256_storeu_ps(s + (size_t)r3 * ld_s + 8, b3);                                                 \
        }                                                                                                    \
    }

DENDP_SCORE_AVX2(dendp_score_f32_avx2, float, DENDP_LOAD8_F32)
DENDP_SCORE_AVX2(dendp_score_f16_avx2, uint16_t, DENDP_LOAD8_F16)

DENDP_TARGET_AVX2 static void dendp_score_q8_avx2(const void *k, uint32_t d, const float *q, uint32_t n_q,
                                                  float *s, uint32_t ld_s) {
    const uint16_t *scale = (const uint16_t *)((const unsigned char *)k + (size_t)d * 16);
    uint32_t a, i, b;
    for (a = 0; a < n_q; a += 2) {
        uint32_t r1 = a + 1 < n_q ? a + 1 : a;
        const float *q0 = q + (size_t)a * d, *q1 = q + (size_t)r1 * d;
        __m256 a0 = _mm256_setzero_ps(), b0 = a0, a1 = a0, b1 = a0;
        for (b = 0; b < dendp_q8_groups(d); b++) {
            __m256 p0 = _mm256_setzero_ps(), u0 = p0, p1 = p0, u1 = p0, w;
            for (i = b * 32; i < d && i < b * 32 + 32; i++) {
                const int8_t *key = (const int8_t *)k + (size_t)i * 16;
                __m256 lo = DENDP_LOAD8_I8(key), hi = DENDP_LOAD8_I8(key + 8), x;
                x = _mm256_broadcast_ss(q0 + i);
                p0 = _mm256_fmadd_ps(x, lo, p0);
                u0 = _mm256_fmadd_ps(x, hi, u0);
                x = _mm256_broadcast_ss(q1 + i);
                p1 = _mm256_fmadd_ps(x, lo, p1);
                u1 = _mm256_fmadd_ps(x, hi, u1);
            }
            w = DENDP_LOAD8_F16(scale + b * 16);
            a0 = _mm256_fmadd_ps(p0, w, a0);
            a1 = _mm256_fmadd_ps(p1, w, a1);
            w = DENDP_LOAD8_F16(scale + b * 16 + 8);
            b0 = _mm256_fmadd_ps(u0, w, b0);
            b1 = _mm256_fmadd_ps(u1, w, b1);
        }
        _mm256_storeu_ps(s + (size_t)a * ld_s, a0);
        _mm256_storeu_ps(s + (size_t)a * ld_s + 8, b0);
        if (r1 > a) {
            _mm256_storeu_ps(s + (size_t)r1 * ld_s, a1);
            _mm256_storeu_ps(s + (size_t)r1 * ld_s + 8, b1);
        }
    }
}

/* o += p V, 16 columns and one query at a time; what is left of d goes to the scalar form. */
#define DENDP_ADD_V_AVX2(name, from, type, LOAD8)                                                            \
    DENDP_TARGET_AVX2 static void name(const void *v, uint32_t d, const float *p, uint32_t ld_p,             \
                                       uint32_t n_q, uint32_t mask, float *o) {                              \
        uint32_t a, t, j;                                                                                    \
        for (j = 0; j + 16 <= d; j += 16) {                                                                  \
            for (a = 0; a < n_q; a += 2) {                                                                   \
                uint32_t r1 = a + 1 < n_q ? a + 1 : a;                                                       \
                const float *w0 = p + (size_t)a * ld_p, *w1 = p + (size_t)r1 * ld_p;                         \
                float *o0 = o + (size_t)a * d + j, *o1 = o + (size_t)r1 * d + j;                             \
                __m256 x0 = _mm256_loadu_ps(o0), y0 = _mm256_loadu_ps(o0 + 8);                               \
                __m256 x1 = _mm256_loadu_ps(o1), y1 = _mm256_loadu_ps(o1 + 8);                               \
                for (t = 0; t < 16; t++) {                                                                   \
                    const type *val = (const type *)v + (size_t)t * d + j;                                   \
                    __m256 lo, hi, w;                                                                        \
                    if (!(mask >> t & 1u)) {                                                                 \
                        continue;                                                                            \
                    }                                                                                        \
                    lo = LOAD8(val);                                                                         \
                    hi = LOAD8(val + 8);                                                                     \
                    w = _mm256_broadcast_ss(w0 + t);                                                         \
                    x0 = _mm256_fmadd_ps(w, lo, x0);                                                         \
                    y0 = _mm256_fmadd_ps(w, hi, y0);                                                         \
                    w = _mm256_broadcast_ss(w1 + t);                                                         \
                    x1 = _mm256_fmadd_ps(w, lo, x1);                                                         \
                    y1 = _mm256_fmadd_ps(w, hi, y1);                                                         \
                }                                                                                            \
                _mm256_storeu_ps(o0, x0);                                                                    \
                _mm256_storeu_ps(o0 + 8, y0);                                                                \
                if (r1 > a) {                                                                                \
                    _mm256_storeu_ps(o1, x1);                                                                \
                    _mm256_storeu_ps(o1 + 8, y1);                                                            \
                }                                                                                            \
            }                                                                                                \
        }                                                                                                    \
        from(v, d, j, p, ld_p, n_q, mask, o);                                                                \
    }

DENDP_ADD_V_AVX2(dendp_add_v_f32_avx2, dendp_add_v_f32_from, float, DENDP_LOAD8_F32)
DENDP_ADD_V_AVX2(dendp_add_v_f16_avx2, dendp_add_v_f16_from, uint16_t, DENDP_LOAD8_F16)

DENDP_TARGET_AVX2 static void dendp_add_v_q8_avx2(const void *v, uint32_t d, const float *p, uint32_t ld_p,
                                                  uint32_t n_q, uint32_t mask, float *o) {
    const uint16_t *scale = (const uint16_t *)((const unsigned char *)v + (size_t)d * 16);
    uint32_t a, t, j, groups = dendp_q8_groups(d);
    for (j = 0; j + 16 <= d; j += 16) {
        for (a = 0; a < n_q; a++) {
            float *o0 = o + (size_t)a * d + j;
            __m256 x0 = _mm256_loadu_ps(o0), y0 = _mm256_loadu_ps(o0 + 8);
            for (t = 0; t < 16; t++) {
                const int8_t *val = (const int8_t *)v + (size_t)t * d + j;
                __m256 w;
                if (!(mask >> t & 1u)) {
                    continue;
                }
                w = _mm256_set1_ps(p[(size_t)a * ld_p + t] * _cvtsh_ss(scale[t * groups + j / 32]));
                x0 = _mm256_fmadd_ps(w, DENDP_LOAD8_I8(val), x0);
                y0 = _mm256_fmadd_ps(w, DENDP_LOAD8_I8(val + 8), y0);
            }
            _mm256_storeu_ps(o0, x0);
            _mm256_storeu_ps(o0 + 8, y0);
        }
    }
    dendp_add_v_q8_from(v, d, j, p, ld_p, n_q, mask, o);
}
#endif

/* -- choice ----------------------------------------------------------------- */

typedef void (*dendp_score_fn)(const void *k, uint32_t d, const float *q, uint32_t n_q, float *s,
                               uint32_t ld_s);
typedef void (*dendp_add_v_fn)(const void *v, uint32_t d, const float *p, uint32_t ld_p, uint32_t n_q,
                               uint32_t mask, float *o);

/* Tile kernels of one instruction set, indexed by dend_kv_type - 1: f32, f16, q8_0. */
typedef struct dendp_tile_ops {
    dendp_score_fn score[3];
    dendp_add_v_fn add_v[3];
} dendp_tile_ops;

static const dendp_tile_ops *dendp_tile_ops_get(dend_isa isa) {
    static const dendp_tile_ops scalar = {
        {dendp_score_f32_scalar, dendp_score_f16_scalar, dendp_score_q8_scalar},
        {dendp_add_v_f32_scalar, dendp_add_v_f16_scalar, dendp_add_v_q8_scalar},
    };
#if DENDP_X86
    static const dendp_tile_ops avx2 = {
        {dendp_score_f32_avx2, dendp_score_f16_avx2, dendp_score_q8_avx2},
        {dendp_add_v_f32_avx2, dendp_add_v_f16_avx2, dendp_add_v_q8_avx2},
    };
    if (isa != DEND_ISA_SCALAR && (dendp_cpu_features() & DENDP_CPU_AVX2)) {
        return &avx2;
    }
#endif
    (void)isa;
    return &scalar;
}
