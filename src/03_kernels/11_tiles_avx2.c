/* ==========================================================================
 * >>03.11 TILES, AVX2: sixteen keys in two registers
 * ==========================================================================
 * Up to 4 queries at a time: 8 sums, 2 vectors of the tile and one broadcast
 * are what 16 registers hold. What a tile costs for one query at d = 64, in
 * cycles of a core that starts two multiplications and four additions:
 *
 *     f32, f16   128 fma of 8 lanes for K, 128 for V                = 128
 *                conversions of f16: 256, shared by 4 queries       + 16 to 64
 *     q8_0       64 madd and 64 additions for K, as many for V      = 96
 *                widening shared by 4 queries; weights to integers  + 20
 *
 * madd multiplies 16-bit numbers in pairs and adds each pair to 32 bits, so
 * nothing saturates. K's codes are widened by a shuffle that leaves dimensions
 * 0,1 or 2,3 of every four beside each other; V lies in pairs of slots.
 *
 * Tiles are too short, and too far apart, for the hardware to fetch ahead. The
 * kernels fetch the tile `ahead` line by line as they go: all its lines at once
 * would fill the queue of outstanding loads and hold up the tile at hand. Floats
 * are fetched into the second-level cache, which has more such places; the codes
 * of q8_0, of which there are fewer, into the first.
 * ======================================================================== */

#if DENDP_X86

/* 8 values of a tile row as floats, for each type. */
#define DENDP_LOAD8_f32(row, i) _mm256_loadu_ps((const float *)(const void *)(row) + (i))
#define DENDP_LOAD8_f16(row, i) dendp_halves8((const uint16_t *)(const void *)(row) + (i))

#define DENDP_SCORE_ADD(r)                                                                                   \
    x = _mm256_broadcast_ss(q + (r)*d + i);                                                                  \
    l##r = _mm256_fmadd_ps(x, lo, l##r);                                                                     \
    h##r = _mm256_fmadd_ps(x, hi, h##r);
#define DENDP_SCORE_STORE(r)                                                                                 \
    _mm256_storeu_ps(s + (r)*ld_s, l##r);                                                                    \
    _mm256_storeu_ps(s + (r)*ld_s + 8, h##r);
#define DENDP_SUM_LOAD(r)                                                                                    \
    l##r = _mm256_loadu_ps(o + (r)*d + j);                                                                   \
    h##r = _mm256_loadu_ps(o + (r)*d + j + 8);
#define DENDP_SUM_ADD(r)                                                                                     \
    x = _mm256_broadcast_ss(w + (r)*ld_p + at);                                                              \
    l##r = _mm256_fmadd_ps(x, lo, l##r);                                                                     \
    h##r = _mm256_fmadd_ps(x, hi, h##r);
/* The next row of V, with weight w[k] of each query. */
#define DENDP_SUM_SLOT(R, type, k)                                                                           \
    {                                                                                                        \
        const int at = k;                                                                                    \
        lo = DENDP_LOAD8_##type(row, 0);                                                                     \
        hi = DENDP_LOAD8_##type(row, 8);                                                                     \
        row += row_bytes;                                                                                    \
        _mm_prefetch(next, _MM_HINT_T1);                                                                     \
        next += row_bytes;                                                                                   \
        DENDP_EACH_ROW(R, DENDP_SUM_ADD)                                                                     \
    }
#define DENDP_SUM_STORE(r)                                                                                   \
    _mm256_storeu_ps(o + (r)*d + j, l##r);                                                                   \
    _mm256_storeu_ps(o + (r)*d + j + 8, h##r);

#define DENDP_TILES_AVX2(type)                                                                               \
    DENDP_INLINE_AVX2 void dendp_score_rows_##type(const int R, const void *k, const char *ahead,            \
                                                   uint32_t d, const float *q, float *s, uint32_t ld_s) {    \
        __m256 l0 = _mm256_setzero_ps(), l1 = l0, l2 = l0, l3 = l0, h0 = l0, h1 = l0, h2 = l0, h3 = l0;      \
        uint32_t i;                                                                                          \
        for (i = 0; i < d; i++) {                                                                            \
            __m256 lo = DENDP_LOAD8_##type(k, i * 16), hi = DENDP_LOAD8_##type(k, i * 16 + 8), x;            \
            _mm_prefetch(ahead + (size_t)i * 16 * sizeof(dendp_value_##type), _MM_HINT_T1);                  \
            DENDP_EACH_ROW(R, DENDP_SCORE_ADD)                                                               \
        }                                                                                                    \
        DENDP_EACH_ROW(R, DENDP_SCORE_STORE)                                                                 \
    }                                                                                                        \
    DENDP_TARGET_AVX2 static void dendp_score_##type##_avx2(const void *k, const void *ahead, uint32_t d,    \
                                                            const void *q, uint32_t n_q, float *s,           \
                                                            uint32_t ld_s) {                                 \
        uint32_t a;                                                                                          \
        DENDP_BY_FOUR(n_q, a, DENDP_SCORE_CALL_##type)                                                       \
    }                                                                                                        \
    DENDP_INLINE_AVX2 void dendp_add_v_rows_##type(                                                          \
        const int R, const void *const *v, const void *const *ahead, const uint16_t *mask, uint32_t n_tiles, \
        uint32_t d, const float *p, uint32_t ld_p, float *o) {                                               \
        uint32_t tile, t, j;                                                                                 \
        for (j = 0; j + 16 <= d; j += 16) {                                                                  \
            __m256 l0 = _mm256_setzero_ps(), l1 = l0, l2 = l0, l3 = l0, h0 = l0, h1 = l0, h2 = l0, h3 = l0;  \
            __m256 lo, hi, x;                                                                                \
            DENDP_EACH_ROW(R, DENDP_SUM_LOAD)                                                                \
            for (tile = 0; tile < n_tiles; tile++) {                                                         \
                const float *w = p + tile * 16;                                                              \
                const unsigned char *row = (const unsigned char *)v[tile] + j * sizeof(dendp_value_##type);  \
                const char *next = (const char *)ahead[tile] + j * sizeof(dendp_value_##type);               \
                const size_t row_bytes = d * sizeof(dendp_value_##type);                                     \
                if (mask[tile] == 0xffffu) { /* the usual case, and twice as fast without the branches */    \
                    for (t = 0; t < 16; t += 4, w += 4) {                                                    \
                        DENDP_SUM_SLOT(R, type, 0)                                                           \
                        DENDP_SUM_SLOT(R, type, 1)                                                           \
                        DENDP_SUM_SLOT(R, type, 2)                                                           \
                        DENDP_SUM_SLOT(R, type, 3)                                                           \
                    }                                                                                        \
                    continue;                                                                                \
                }                                                                                            \
                for (t = 0; t < 16; t++, w++) {                                                              \
                    if (mask[tile] >> t & 1u) {                                                              \
                        DENDP_SUM_SLOT(R, type, 0)                                                           \
                    } else {                                                                                 \
                        row += row_bytes;                                                                    \
                        next += row_bytes;                                                                   \
                    }                                                                                        \
                }                                                                                            \
            }                                                                                                \
            DENDP_EACH_ROW(R, DENDP_SUM_STORE)                                                               \
        }                                                                                                    \
    }                                                                                                        \
    DENDP_TARGET_AVX2 static void dendp_add_v_##type##_avx2(                                                 \
        const void *const *v, const void *const *ahead, const uint16_t *mask, uint32_t n_tiles, uint32_t d,  \
        const float *p, uint32_t ld_p, uint32_t n_q, float *o) {                                             \
        uint32_t a;                                                                                          \
        DENDP_BY_FOUR(n_q, a, DENDP_ADD_V_CALL_##type)                                                       \
        dendp_add_v_##type##_from(d / 16 * 16, v, mask, n_tiles, d, p, ld_p, n_q, o);                        \
    }

#define DENDP_SCORE_CALL_f32(R)                                                                              \
    dendp_score_rows_f32(R, k, (const char *)(a ? k : ahead), d, (const float *)q + (size_t)a * d,           \
                         s + (size_t)a * ld_s, ld_s)
#define DENDP_SCORE_CALL_f16(R)                                                                              \
    dendp_score_rows_f16(R, k, (const char *)(a ? k : ahead), d, (const float *)q + (size_t)a * d,           \
                         s + (size_t)a * ld_s, ld_s)
#define DENDP_ADD_V_CALL_f32(R)                                                                              \
    dendp_add_v_rows_f32(R, v, a ? v : ahead, mask, n_tiles, d, p + (size_t)a * ld_p, ld_p, o + (size_t)a * d)
#define DENDP_ADD_V_CALL_f16(R)                                                                              \
    dendp_add_v_rows_f16(R, v, a ? v : ahead, mask, n_tiles, d, p + (size_t)a * ld_p, ld_p, o + (size_t)a * d)
DENDP_TILES_AVX2(f32)
DENDP_TILES_AVX2(f16)

DENDP_TARGET_AVX2 static void dendp_to_f16_avx2(const float *x, uint32_t n, uint16_t *y) {
    uint32_t i;
    for (i = 0; i + 8 <= n; i += 8) {
        __m128i h = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm_storeu_si128((__m128i *)(void *)(y + i), h);
    }
    _mm256_zeroupper();
    dendp_to_f16_scalar(x + i, n - i, y + i);
}

/* -- q8_0 --------------------------------------------------------------------- */

/* Two numbers of 16 bits times both halves of the K vectors at hand. */
#define DENDP_Q8_PAIR(r, x01, lo, hi)                                                                        \
    x = dendp_four(q[(r)*groups].wide + (x01));                                                              \
    l##r = _mm256_add_epi32(l##r, _mm256_madd_epi16(lo, x));                                                 \
    h##r = _mm256_add_epi32(h##r, _mm256_madd_epi16(hi, x));
#define DENDP_Q8_ADD(r)                                                                                      \
    DENDP_Q8_PAIR(r, i, lo01, hi01)                                                                          \
    DENDP_Q8_PAIR(r, i + 2, lo23, hi23)
#define DENDP_Q8_START(r) l##r = h##r = _mm256_set1_epi32(128 * q[(r)*groups].act.n);
#define DENDP_Q8_FOLD(r)                                                                                     \
    {                                                                                                        \
        float *to = s + (r)*ld_s;                                                                            \
        __m256 y = b ? _mm256_loadu_ps(to) : _mm256_setzero_ps();                                            \
        __m256 z = b ? _mm256_loadu_ps(to + 8) : _mm256_setzero_ps();                                        \
        __m256 x2 = _mm256_set1_ps(q[(r)*groups].act.scale);                                                 \
        _mm256_storeu_ps(to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(l##r), _mm256_mul_ps(scale_lo, x2), y));     \
        _mm256_storeu_ps(to + 8, _mm256_fmadd_ps(_mm256_cvtepi32_ps(h##r), _mm256_mul_ps(scale_hi, x2), z)); \
    }

/* q: block 0 of R queries, each `groups` blocks. */
DENDP_INLINE_AVX2 void dendp_score_rows_q8(const int R, const void *k, const char *ahead, uint32_t d,
                                           const dendp_q8_query *q, float *s, uint32_t ld_s) {
    const unsigned char *code = (const unsigned char *)k, *scale = code + dendp_q8_k_codes(d);
    const __m256i first = _mm256_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1, 0, -1, 1,
                                           -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1);
    const __m256i second = _mm256_setr_epi8(2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1, 2, -1,
                                            3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1);
    uint32_t b, i, groups = dendp_q8_groups(d);
    for (b = 0; b < groups; b++, q++) {
        __m256i l0 = _mm256_setzero_si256(), l1 = l0, l2 = l0, l3 = l0, h0 = l0, h1 = l0, h2 = l0, h3 = l0;
        __m256i lo01, lo23, hi01, hi23, x;
        __m256 scale_lo = dendp_halves8(scale + b * 32), scale_hi = dendp_halves8(scale + b * 32 + 16);
        uint32_t n = dendp_min_u32(32, d - b * 32);
        DENDP_EACH_ROW(R, DENDP_Q8_START)
        for (i = 0; i < n; i += 4, code += 64) {
            _mm_prefetch(ahead, _MM_HINT_T0);
            ahead += 64;
            lo01 = dendp_load256(code);
            hi01 = dendp_load256(code + 32);
            lo23 = _mm256_shuffle_epi8(lo01, second);
            hi23 = _mm256_shuffle_epi8(hi01, second);
            lo01 = _mm256_shuffle_epi8(lo01, first);
            hi01 = _mm256_shuffle_epi8(hi01, first);
            DENDP_EACH_ROW(R, DENDP_Q8_ADD)
        }
        DENDP_EACH_ROW(R, DENDP_Q8_FOLD)
    }
}

DENDP_TARGET_AVX2 static void dendp_score_q8_avx2(const void *k, const void *ahead, uint32_t d, const void *q,
                                                  uint32_t n_q, float *s, uint32_t ld_s) {
    uint32_t a, groups = dendp_q8_groups(d);
#define DENDP_CALL(R)                                                                                        \
    dendp_score_rows_q8(R, k, (const char *)(a ? k : ahead), d,                                              \
                        (const dendp_q8_query *)q + (size_t)a * groups, s + (size_t)a * ld_s, ld_s)
    DENDP_BY_FOUR(n_q, a, DENDP_CALL)
#undef DENDP_CALL
}

/* dendp_q8_factors. */
DENDP_TARGET_AVX2 static float dendp_q8_factors_avx2(const void *const *v, const uint16_t *mask,
                                                     uint32_t n_tiles, uint32_t d, uint32_t group,
                                                     float *factor) {
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256 most = _mm256_setzero_ps(), one;
    float lane[8], m = 0.0f;
    uint32_t t;
    for (t = 0; t < n_tiles * 16; t += 8) {
        const unsigned char *scale = (const unsigned char *)v[t / 16] + d * 16u + group * 32 + t % 16 * 2;
        __m256i live = _mm256_set1_epi32(mask[t / 16] >> t % 16);
        __m256 f;
        live = _mm256_cmpeq_epi32(_mm256_and_si256(live, bit), bit);
        f = _mm256_and_ps(dendp_halves8(scale), _mm256_castsi256_ps(live));
        most = _mm256_max_ps(most, f);
        _mm256_storeu_ps(factor + t, f);
    }
    _mm256_storeu_ps(lane, most);
    for (t = 0; t < 8; t++) {
        m = lane[t] > m ? lane[t] : m;
    }
    one = _mm256_set1_ps(dendp_q8_one(m));
    for (t = 0; t < n_tiles * 16; t += 8) {
        _mm256_storeu_ps(factor + t, _mm256_mul_ps(_mm256_loadu_ps(factor + t), one));
    }
    return dendp_keep(m * DENDP_WEIGHT_UNIT);
}

/* 8 weights as 32-bit integers. */
DENDP_INLINE_AVX2 __m256i dendp_q8_weights8(const float *p, const float *factor) {
    __m256 f = _mm256_loadu_ps(factor), w = _mm256_mul_ps(_mm256_loadu_ps(p), f);
    w = _mm256_min_ps(w, _mm256_set1_ps(DENDP_WEIGHT_ONE));
    return _mm256_cvtps_epi32(_mm256_and_ps(w, _mm256_cmp_ps(f, _mm256_setzero_ps(), _CMP_GT_OQ)));
}

#define DENDP_Q8_SUM(r)                                                                                      \
    x = dendp_four(weight[r] + tile * 16 + at);                                                              \
    l##r = _mm256_add_epi32(l##r, _mm256_madd_epi16(lo, x));                                                 \
    h##r = _mm256_add_epi32(h##r, _mm256_madd_epi16(hi, x));
/* The next two slots of V, with the weights of each query from `slot` on. */
#define DENDP_Q8_PAIR_OF_SLOTS(R, slot)                                                                      \
    {                                                                                                        \
        const uint32_t at = slot;                                                                            \
        lo = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)code));                     \
        hi = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(code + 16)));              \
        code += (size_t)d * 2;                                                                               \
        _mm_prefetch(next, _MM_HINT_T0);                                                                     \
        next += (size_t)d * 2;                                                                               \
        DENDP_EACH_ROW(R, DENDP_Q8_SUM)                                                                      \
    }
#define DENDP_Q8_SUM_STORE(r)                                                                                \
    {                                                                                                        \
        float *to = o + (r)*d + j;                                                                           \
        _mm256_storeu_ps(to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(l##r), u, _mm256_loadu_ps(to)));             \
        _mm256_storeu_ps(to + 8, _mm256_fmadd_ps(_mm256_cvtepi32_ps(h##r), u, _mm256_loadu_ps(to + 8)));     \
    }

/* Columns [j0, end) of one scale group, multiples of 16. weight [R][64] of that group. */
DENDP_INLINE_AVX2 void dendp_add_v_rows_q8(const int R, const void *const *v, const void *const *ahead,
                                           uint32_t n_tiles, uint32_t d, uint32_t j, uint32_t end,
                                           int16_t (*weight)[DENDP_CHUNK], float unit, float *o) {
    const __m256 u = _mm256_set1_ps(unit);
    uint32_t tile, t;
    for (; j < end; j += 16) {
        __m256i l0 = _mm256_setzero_si256(), l1 = l0, l2 = l0, l3 = l0, h0 = l0, h1 = l0, h2 = l0, h3 = l0;
        __m256i lo, hi, x;
        for (tile = 0; tile < n_tiles; tile++) {
            const unsigned char *code = (const unsigned char *)v[tile] + (size_t)j * 2;
            const char *next = (const char *)ahead[tile] + (size_t)j * 2;
            for (t = 0; t < 16; t += 4) {
                DENDP_Q8_PAIR_OF_SLOTS(R, t)
                DENDP_Q8_PAIR_OF_SLOTS(R, t + 2)
            }
        }
        DENDP_EACH_ROW(R, DENDP_Q8_SUM_STORE)
    }
}

DENDP_TARGET_AVX2 static void dendp_add_v_q8_avx2(const void *const *v, const void *const *ahead,
                                                  const uint16_t *mask, uint32_t n_tiles, uint32_t d,
                                                  const float *p, uint32_t ld_p, uint32_t n_q, float *o) {
    uint32_t a, t, r, b;
    for (b = 0; b * 32 + 16 <= d; b++) {
        float factor[DENDP_CHUNK], unit = dendp_q8_factors_avx2(v, mask, n_tiles, d, b, factor);
        uint32_t end = dendp_min_u32(b * 32 + 32, d / 16 * 16);
        for (a = 0; a < n_q; a += 4) {
            int16_t weight[4][DENDP_CHUNK];
            for (r = 0; r < 4 && a + r < n_q; r++) {
                const float *w = p + (size_t)(a + r) * ld_p;
                for (t = 0; t < n_tiles * 16; t += 16) {
                    __m256i x = _mm256_packs_epi32(dendp_q8_weights8(w + t, factor + t),
                                                   dendp_q8_weights8(w + t + 8, factor + t + 8));
                    dendp_store256(weight[r] + t, _mm256_permute4x64_epi64(x, 0xd8));
                }
            }
            switch (n_q - a) {
            case 1:
                dendp_add_v_rows_q8(1, v, a ? v : ahead, n_tiles, d, b * 32, end, weight, unit,
                                    o + (size_t)a * d);
                break;
            case 2:
                dendp_add_v_rows_q8(2, v, a ? v : ahead, n_tiles, d, b * 32, end, weight, unit,
                                    o + (size_t)a * d);
                break;
            case 3:
                dendp_add_v_rows_q8(3, v, a ? v : ahead, n_tiles, d, b * 32, end, weight, unit,
                                    o + (size_t)a * d);
                break;
            default:
                dendp_add_v_rows_q8(4, v, a ? v : ahead, n_tiles, d, b * 32, end, weight, unit,
                                    o + (size_t)a * d);
                break;
            }
        }
    }
    dendp_add_v_q8_from(d / 16 * 16, v, mask, n_tiles, d, p, ld_p, n_q, o);
}

#endif
