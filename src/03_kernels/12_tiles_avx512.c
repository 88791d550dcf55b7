/* ==========================================================================
 * >>03.12 TILES, AVX-512: sixteen keys in one register
 * ==========================================================================
 * A dimension of K is one register of 16 keys, and so are 16 dimensions of V.
 * Up to 8 queries are taken at a time: a vector of the tile, once loaded and
 * converted, serves them all, and their 8 or 16 sums are as many chains as two
 * multipliers with a latency of 4 can keep busy. Numbers of a query come by
 * the broadcast that is part of the instruction. V goes by 32 columns, so that
 * a single query has two chains too.
 *
 * Multiplications of one tile and one query at d = 64, two a cycle at best:
 *
 *     f32, f16   64 fma of 16 lanes for K, 64 for V (16 slots * 4 vectors);
 *                of f16 128 conversions, shared by up to 8 queries
 *     q8_0       16 dpbusd for K, whose codes lie as it wants them, 32 dpwssd
 *                for V; 32 widenings of V, shared; and for each 32 dimensions
 *                the weights of 16 slots become integers in 6 instructions
 *
 *     dpwssd    16 x  i32 += i16*i16 + i16*i16    exact
 *
 * Masks of slots are masks of registers: a dead slot's scale is loaded as 0.
 * The tile ahead is fetched line by line, as in room 03.11. Results are those of
 * room 03.10, bit for bit.
 * ======================================================================== */

#if DENDP_X86

/* Runs call(R) with R = 8 for as long as 8 queries are left, then for the rest. */
#define DENDP_BY_EIGHT(n_q, a, call)                                                                         \
    for (a = 0; a < (n_q); a += 8) {                                                                         \
        switch ((n_q)-a) {                                                                                   \
        case 1:                                                                                              \
            call(1);                                                                                         \
            break;                                                                                           \
        case 2:                                                                                              \
            call(2);                                                                                         \
            break;                                                                                           \
        case 3:                                                                                              \
            call(3);                                                                                         \
            break;                                                                                           \
        case 4:                                                                                              \
            call(4);                                                                                         \
            break;                                                                                           \
        case 5:                                                                                              \
            call(5);                                                                                         \
            break;                                                                                           \
        case 6:                                                                                              \
            call(6);                                                                                         \
            break;                                                                                           \
        case 7:                                                                                              \
            call(7);                                                                                         \
            break;                                                                                           \
        default:                                                                                             \
            call(8);                                                                                         \
            break;                                                                                           \
        }                                                                                                    \
    }

/* -- floats ------------------------------------------------------------------- */

/* 16 numbers of a tile, from number i on. */
DENDP_INLINE_AVX512 __m512 dendp_tile16(const int f16, const void *tile, size_t i) {
    return f16 ? dendp_halves16((const uint16_t *)tile + i) : _mm512_loadu_ps((const float *)tile + i);
}

/* q [R][d], s [R][ld_s]. */
DENDP_INLINE_AVX512 void dendp_score_rows_avx512(const int f16, const int R, const void *k, const char *ahead,
                                                 uint32_t d, const float *q, float *s, uint32_t ld_s) {
    __m512 s0 = _mm512_setzero_ps(), s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0;
    uint32_t i;
    for (i = 0; i < d; i++) {
        const __m512 key = dendp_tile16(f16, k, (size_t)i * 16);
        _mm_prefetch(ahead + (size_t)i * (f16 ? 32 : 64), _MM_HINT_T1);
#define DENDP_ADD(r) s##r = _mm512_fmadd_ps(key, _mm512_set1_ps(q[(size_t)(r)*d + i]), s##r);
        DENDP_EACH_ROW8(R, DENDP_ADD)
#undef DENDP_ADD
    }
#define DENDP_STORE(r) _mm512_storeu_ps(s + (size_t)(r)*ld_s, s##r);
    DENDP_EACH_ROW8(R, DENDP_STORE)
#undef DENDP_STORE
}

/* 16 * C columns from column 0 of v and o on, C = 1 or 2.  p [R][ld_p], o [R][d]. */
DENDP_INLINE_AVX512 void dendp_add_v_rows_avx512(const int f16, const int C, const int R,
                                                 const void *const *v, const void *const *ahead,
                                                 const uint16_t *mask, uint32_t n_tiles, uint32_t d,
                                                 uint32_t j, const float *p, uint32_t ld_p, float *o) {
    __m512 a0 = _mm512_setzero_ps(), a1 = a0, a2 = a0, a3 = a0, a4 = a0, a5 = a0, a6 = a0, a7 = a0;
    __m512 b0 = a0, b1 = a0, b2 = a0, b3 = a0, b4 = a0, b5 = a0, b6 = a0, b7 = a0, x = a0, y = a0, w;
    const size_t number = f16 ? 2 : 4;
    uint32_t tile, live, t;
#define DENDP_START(r)                                                                                       \
    a##r = _mm512_loadu_ps(o + (size_t)(r)*d + j);                                                           \
    if (C > 1) {                                                                                             \
        b##r = _mm512_loadu_ps(o + (size_t)(r)*d + j + 16);                                                  \
    }
    DENDP_EACH_ROW8(R, DENDP_START)
#undef DENDP_START
#define DENDP_ADD(r)                                                                                         \
    w = _mm512_set1_ps(p[(size_t)(r)*ld_p + t]);                                                             \
    a##r = _mm512_fmadd_ps(w, x, a##r);                                                                      \
    if (C > 1) {                                                                                             \
        b##r = _mm512_fmadd_ps(w, y, b##r);                                                                  \
    }
#define DENDP_SLOT                                                                                           \
    x = dendp_tile16(f16, v[tile], (size_t)t * d + j);                                                       \
    _mm_prefetch(next + (size_t)t * d * number, _MM_HINT_T1);                                                \
    if (C > 1) {                                                                                             \
        y = dendp_tile16(f16, v[tile], (size_t)t * d + j + 16);                                              \
        if (!f16) {                                                                                          \
            _mm_prefetch(next + (size_t)t * d * number + 64, _MM_HINT_T1);                                   \
        }                                                                                                    \
    }                                                                                                        \
    DENDP_EACH_ROW8(R, DENDP_ADD)
    for (tile = 0; tile < n_tiles; tile++, p += 16) {
        const char *next = (const char *)ahead[tile] + (size_t)j * number;
        if (mask[tile] == 0xffffu) { /* the usual case */
            for (t = 0; t < 16; t++) {
                DENDP_SLOT
            }
            continue;
        }
        for (live = mask[tile]; live; live &= live - 1) { /* the slots that count, ascending */
            t = (uint32_t)__builtin_ctz(live);
            DENDP_SLOT
        }
    }
#undef DENDP_SLOT
#undef DENDP_ADD
#define DENDP_STORE(r)                                                                                       \
    _mm512_storeu_ps(o + (size_t)(r)*d + j, a##r);                                                           \
    if (C > 1) {                                                                                             \
        _mm512_storeu_ps(o + (size_t)(r)*d + j + 16, b##r);                                                  \
    }
    DENDP_EACH_ROW8(R, DENDP_STORE)
#undef DENDP_STORE
}

#define DENDP_SCORE_CALL(R)                                                                                  \
    dendp_score_rows_avx512(f16, R, k, (const char *)(a ? k : ahead), d, (const float *)q + (size_t)a * d,   \
                            s + (size_t)a * ld_s, ld_s)
#define DENDP_ADD_V_CALL(C, R)                                                                               \
    dendp_add_v_rows_avx512(f16, C, R, v, a ? v : ahead, mask, n_tiles, d, j, p + (size_t)a * ld_p, ld_p,    \
                            o + (size_t)a * d)
#define DENDP_ADD_V_CALL1(R) DENDP_ADD_V_CALL(1, R)
#define DENDP_ADD_V_CALL2(R) DENDP_ADD_V_CALL(2, R)

#define DENDP_TILES_AVX512(type, is_f16)                                                                     \
    DENDP_TARGET_AVX512 static void dendp_score_##type##_avx512(const void *k, const void *ahead,            \
                                                                uint32_t d, const void *q, uint32_t n_q,     \
                                                                float *s, uint32_t ld_s) {                   \
        const int f16 = is_f16;                                                                              \
        uint32_t a;                                                                                          \
        DENDP_BY_EIGHT(n_q, a, DENDP_SCORE_CALL)                                                             \
    }                                                                                                        \
    DENDP_TARGET_AVX512 static void dendp_add_v_##type##_avx512(                                             \
        const void *const *v, const void *const *ahead, const uint16_t *mask, uint32_t n_tiles, uint32_t d,  \
        const float *p, uint32_t ld_p, uint32_t n_q, float *o) {                                             \
        const int f16 = is_f16;                                                                              \
        uint32_t a, j;                                                                                       \
        for (j = 0; j + 32 <= d; j += 32) {                                                                  \
            DENDP_BY_EIGHT(n_q, a, DENDP_ADD_V_CALL2)                                                        \
        }                                                                                                    \
        if (j + 16 <= d) {                                                                                   \
            DENDP_BY_EIGHT(n_q, a, DENDP_ADD_V_CALL1)                                                        \
        }                                                                                                    \
        dendp_add_v_##type##_from(d / 16 * 16, v, mask, n_tiles, d, p, ld_p, n_q, o);                        \
    }
DENDP_TILES_AVX512(f32, 0)
DENDP_TILES_AVX512(f16, 1)

#undef DENDP_SCORE_CALL
#undef DENDP_ADD_V_CALL
#undef DENDP_ADD_V_CALL1
#undef DENDP_ADD_V_CALL2

/* -- q8_0 --------------------------------------------------------------------- */

/* q: block 0 of R queries, each `groups` blocks. */
DENDP_INLINE_AVX512 void dendp_score_q8_rows_avx512(const int R, const void *k, const char *ahead, uint32_t d,
                                                    const dendp_q8_query *q, float *s, uint32_t ld_s) {
    const unsigned char *code = (const unsigned char *)k, *scale = code + dendp_q8_k_codes(d);
    const uint32_t groups = dendp_q8_groups(d);
    __m512 y0 = _mm512_setzero_ps(), y1 = y0, y2 = y0, y3 = y0, y4 = y0, y5 = y0, y6 = y0, y7 = y0;
    uint32_t b, i;
    for (b = 0; b < groups; b++, q++, scale += 32) {
        __m512i d0 = _mm512_setzero_si512(), d1 = d0, d2 = d0, d3 = d0, d4 = d0, d5 = d0, d6 = d0, d7 = d0;
        const __m512 key_scale = dendp_halves16(scale);
        const uint32_t n = dendp_min_u32(32, d - b * 32);
#define DENDP_START(r) d##r = DENDP_LEFT32(dendp_all16(&q[(size_t)(r)*groups].act.n), 7);
        DENDP_EACH_ROW8(R, DENDP_START)
#undef DENDP_START
        for (i = 0; i < n; i += 4, code += 64, ahead += 64) { /* beyond d queries have zeros */
            const __m512i key = dendp_load512(code);
            _mm_prefetch(ahead, _MM_HINT_T0);
#define DENDP_DOT(r) d##r = _mm512_dpbusd_epi32(d##r, key, dendp_all16(q[(size_t)(r)*groups].act.q + i));
            DENDP_EACH_ROW8(R, DENDP_DOT)
#undef DENDP_DOT
        }
#define DENDP_FOLD(r)                                                                                        \
    y##r = _mm512_fmadd_ps(dendp_floats16(d##r),                                                             \
                           _mm512_mul_ps(key_scale, _mm512_set1_ps(q[(size_t)(r)*groups].act.scale)), y##r);
        DENDP_EACH_ROW8(R, DENDP_FOLD)
#undef DENDP_FOLD
    }
#define DENDP_STORE(r) _mm512_storeu_ps(s + (size_t)(r)*ld_s, y##r);
    DENDP_EACH_ROW8(R, DENDP_STORE)
#undef DENDP_STORE
}

DENDP_TARGET_AVX512 static void dendp_score_q8_avx512(const void *k, const void *ahead, uint32_t d,
                                                      const void *q, uint32_t n_q, float *s, uint32_t ld_s) {
    const uint32_t groups = dendp_q8_groups(d);
    uint32_t a;
#define DENDP_CALL(R)                                                                                        \
    dendp_score_q8_rows_avx512(R, k, (const char *)(a ? k : ahead), d,                                       \
                               (const dendp_q8_query *)q + (size_t)a * groups, s + (size_t)a * ld_s, ld_s)
    DENDP_BY_EIGHT(n_q, a, DENDP_CALL)
#undef DENDP_CALL
}

/* dendp_q8_factors. */
DENDP_TARGET_AVX512 static float dendp_q8_factors_avx512(const void *const *v, const uint16_t *mask,
                                                         uint32_t n_tiles, uint32_t d, uint32_t group,
                                                         float *factor) {
    __m512 most = _mm512_setzero_ps(), one;
    float lane[16], m = 0.0f;
    uint32_t t;
    for (t = 0; t < n_tiles; t++) {
        const unsigned char *scale = (const unsigned char *)v[t] + (size_t)d * 16 + group * 32;
        __m512 f = _mm512_maskz_cvtph_ps((__mmask16)mask[t],
                                         _mm256_loadu_si256((const __m256i *)(const void *)scale));
        most = _mm512_maskz_max_ps(DENDP_ALL_LANES, most, f);
        _mm512_storeu_ps(factor + t * 16, f);
    }
    _mm512_storeu_ps(lane, most);
    for (t = 0; t < 16; t++) {
        m = lane[t] > m ? lane[t] : m;
    }
    one = _mm512_set1_ps(dendp_q8_one(m));
    for (t = 0; t < n_tiles * 16; t += 16) {
        _mm512_storeu_ps(factor + t, _mm512_mul_ps(_mm512_loadu_ps(factor + t), one));
    }
    return dendp_keep(m * DENDP_WEIGHT_UNIT);
}

/* dendp_q8_weight of 16 slots. */
DENDP_INLINE_AVX512 void dendp_q8_weights16(const float *p, const float *factor, int16_t *weight) {
    const __m512 f = _mm512_loadu_ps(factor);
    const __mmask16 counts = _mm512_cmp_ps_mask(f, _mm512_setzero_ps(), _CMP_GT_OQ);
    __m512 w = _mm512_mul_ps(_mm512_loadu_ps(p), f);
    w = _mm512_maskz_min_ps(DENDP_ALL_LANES, w, _mm512_set1_ps(DENDP_WEIGHT_ONE));
    dendp_store256(weight, _mm512_maskz_cvtepi32_epi16(DENDP_ALL_LANES, _mm512_maskz_cvtps_epi32(counts, w)));
}

/* 16 columns of two slots, from their codes as pairs, as 16-bit numbers. */
DENDP_INLINE_AVX512 __m512i dendp_pairs16(const unsigned char *code) {
    return _mm512_maskz_cvtepi8_epi16((__mmask32)0xffffffffu,
                                      _mm256_loadu_si256((const __m256i *)(const void *)code));
}

/* 16 * C columns from column j on, C = 1 or 2, all of one scale group.  weight [R][64], o [R][d]. */
DENDP_INLINE_AVX512 void dendp_add_v_q8_rows_avx512(const int C, const int R, const void *const *v,
                                                    const void *const *ahead, uint32_t n_tiles, uint32_t d,
                                                    uint32_t j, int16_t (*weight)[DENDP_CHUNK], float unit,
                                                    float *o) {
    __m512i a0 = _mm512_setzero_si512(), a1 = a0, a2 = a0, a3 = a0, a4 = a0, a5 = a0, a6 = a0, a7 = a0;
    __m512i b0 = a0, b1 = a0, b2 = a0, b3 = a0, b4 = a0, b5 = a0, b6 = a0, b7 = a0, x = a0, y = a0, w;
    const __m512 u = _mm512_set1_ps(unit);
    uint32_t tile, t;
    for (tile = 0; tile < n_tiles; tile++) {
        const unsigned char *code = (const unsigned char *)v[tile] + (size_t)j * 2;
        const char *next = (const char *)ahead[tile] + (size_t)j * 2;
        for (t = tile * 16; t < tile * 16 + 16; t += 2, code += (size_t)d * 2, next += (size_t)d * 2) {
            x = dendp_pairs16(code);
            _mm_prefetch(next, _MM_HINT_T0);
            if (C > 1) {
                y = dendp_pairs16(code + 32);
            }
#define DENDP_ADD(r)                                                                                         \
    w = dendp_all16(weight[r] + t);                                                                          \
    a##r = _mm512_dpwssd_epi32(a##r, x, w);                                                                  \
    if (C > 1) {                                                                                             \
        b##r = _mm512_dpwssd_epi32(b##r, y, w);                                                              \
    }
            DENDP_EACH_ROW8(R, DENDP_ADD)
#undef DENDP_ADD
        }
    }
#define DENDP_FOLD(r)                                                                                        \
    {                                                                                                        \
        float *to = o + (size_t)(r)*d + j;                                                                   \
        _mm512_storeu_ps(to, _mm512_fmadd_ps(dendp_floats16(a##r), u, _mm512_loadu_ps(to)));                 \
        if (C > 1) {                                                                                         \
            _mm512_storeu_ps(to + 16, _mm512_fmadd_ps(dendp_floats16(b##r), u, _mm512_loadu_ps(to + 16)));   \
        }                                                                                                    \
    }
    DENDP_EACH_ROW8(R, DENDP_FOLD)
#undef DENDP_FOLD
}

/* 8 queries or fewer, one scale group. */
DENDP_TARGET_AVX512 static void dendp_add_v_q8_group_avx512(const void *const *v, const void *const *ahead,
                                                            uint32_t n_tiles, uint32_t d, uint32_t j,
                                                            const float *factor, float unit, const float *p,
                                                            uint32_t ld_p, uint32_t n_q, float *o) {
    int16_t weight[8][DENDP_CHUNK];
    uint32_t r, t, a;
    for (r = 0; r < n_q; r++) {
        for (t = 0; t < n_tiles * 16; t += 16) {
            dendp_q8_weights16(p + (size_t)r * ld_p + t, factor + t, weight[r] + t);
        }
    }
#define DENDP_CALL1(R) dendp_add_v_q8_rows_avx512(1, R, v, ahead, n_tiles, d, j, weight, unit, o)
#define DENDP_CALL2(R) dendp_add_v_q8_rows_avx512(2, R, v, ahead, n_tiles, d, j, weight, unit, o)
    if (j + 32 <= d) {
        DENDP_BY_EIGHT(n_q, a, DENDP_CALL2)
    } else {
        DENDP_BY_EIGHT(n_q, a, DENDP_CALL1)
    }
#undef DENDP_CALL1
#undef DENDP_CALL2
}

DENDP_TARGET_AVX512 static void dendp_add_v_q8_avx512(const void *const *v, const void *const *ahead,
                                                      const uint16_t *mask, uint32_t n_tiles, uint32_t d,
                                                      const float *p, uint32_t ld_p, uint32_t n_q, float *o) {
    uint32_t a, j;
    for (j = 0; j + 16 <= d; j += 32) {
        float factor[DENDP_CHUNK], unit = dendp_q8_factors_avx512(v, mask, n_tiles, d, j / 32, factor);
        for (a = 0; a < n_q; a += 8) {
            dendp_add_v_q8_group_avx512(v, a ? v : ahead, n_tiles, d, j, factor, unit, p + (size_t)a * ld_p,
                                        ld_p, dendp_min_u32(8, n_q - a), o + (size_t)a * d);
        }
    }
    dendp_add_v_q8_from(d / 16 * 16, v, mask, n_tiles, d, p, ld_p, n_q, o);
}

#endif
