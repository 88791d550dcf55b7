/* ==========================================================================
 * >>03.13 TILES, NEON: sixteen keys in four registers
 * ==========================================================================
 * Up to 4 queries at a time: 16 sums, and 16 registers for what they meet. The
 * values of a query are taken by number from registers of four, so a step of
 * scores costs 4 loads, for f16 4 conversions, and 4 multiplications a query.
 *
 * q8_0: a K tile is a panel of 16 lanes like those of the matmul, and its
 * codes become signed in the same way; sdot gives 16 products where a fma of
 * floats gives 4. Weights of V have 15 bits, too many for sdot: smlal
 * multiplies 16-bit numbers, 4 at a time, which is the rate of floats; what is
 * saved is the memory of f16 and its conversions.
 * ======================================================================== */

#if DENDP_ARM64

/* 4 values of a tile row as floats, for each type. */
#define DENDP_LOAD4_f32(tile, i) vld1q_f32((const float *)(tile) + (i))
#define DENDP_LOAD4_f16(tile, i) DENDP_HALVES4((const uint16_t *)(tile) + (i))

#define DENDP_TILE_ZERO(r, n) sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = vdupq_n_f32(0);
/* One dimension of K, number n of the four in x. */
#define DENDP_TILE_ADD(r, n)                                                                                 \
    sum[r][0] = vfmaq_laneq_f32(sum[r][0], w0, x[r], n);                                                     \
    sum[r][1] = vfmaq_laneq_f32(sum[r][1], w1, x[r], n);                                                     \
    sum[r][2] = vfmaq_laneq_f32(sum[r][2], w2, x[r], n);                                                     \
    sum[r][3] = vfmaq_laneq_f32(sum[r][3], w3, x[r], n);
#define DENDP_TILE_LOAD_X(r, n) x[r] = vld1q_f32(q + (r)*d + i);
#define DENDP_TILE_LOAD_ONE(r, n) x[r] = vld1q_dup_f32(q + (r)*d + i);
#define DENDP_TILE_STORE(r, n)                                                                               \
    vst1q_f32(s + (r)*ld_s, sum[r][0]);                                                                      \
    vst1q_f32(s + (r)*ld_s + 4, sum[r][1]);                                                                  \
    vst1q_f32(s + (r)*ld_s + 8, sum[r][2]);                                                                  \
    vst1q_f32(s + (r)*ld_s + 12, sum[r][3]);
#define DENDP_TILE_LOAD_O(r, n)                                                                              \
    sum[r][0] = vld1q_f32(o + (r)*d + j);                                                                    \
    sum[r][1] = vld1q_f32(o + (r)*d + j + 4);                                                                \
    sum[r][2] = vld1q_f32(o + (r)*d + j + 8);                                                                \
    sum[r][3] = vld1q_f32(o + (r)*d + j + 12);
#define DENDP_TILE_LOAD_P(r, n) x[r] = vld1q_dup_f32(p + (r)*ld_p + tile * 16 + t);
#define DENDP_TILE_STORE_O(r, n)                                                                             \
    vst1q_f32(o + (r)*d + j, sum[r][0]);                                                                     \
    vst1q_f32(o + (r)*d + j + 4, sum[r][1]);                                                                 \
    vst1q_f32(o + (r)*d + j + 8, sum[r][2]);                                                                 \
    vst1q_f32(o + (r)*d + j + 12, sum[r][3]);

#define DENDP_TILES_NEON(type)                                                                               \
    DENDP_INLINE_NEON void dendp_score_##type##_rows_neon(const int R, const void *k, uint32_t d,            \
                                                          const float *q, float *s, uint32_t ld_s) {         \
        float32x4_t sum[4][4], x[4], w0, w1, w2, w3;                                                         \
        uint32_t i;                                                                                          \
        DENDP_EACH4_NEON(R, DENDP_TILE_ZERO, 0)                                                              \
        for (i = 0; i + 4 <= d; i += 4) {                                                                    \
            DENDP_EACH4_NEON(R, DENDP_TILE_LOAD_X, 0)                                                        \
            DENDP_TILE_STEP_##type(0) DENDP_TILE_STEP_##type(1) DENDP_TILE_STEP_##type(2)                    \
                DENDP_TILE_STEP_##type(3)                                                                    \
        }                                                                                                    \
        for (; i < d; i++) {                                                                                 \
            DENDP_EACH4_NEON(R, DENDP_TILE_LOAD_ONE, 0)                                                      \
            DENDP_TILE_STEP_##type(0)                                                                        \
        }                                                                                                    \
        DENDP_EACH4_NEON(R, DENDP_TILE_STORE, 0)                                                             \
    }                                                                                                        \
    static void dendp_score_##type##_neon(const void *k, const void *ahead, uint32_t d, const void *q,       \
                                          uint32_t n_q, float *s, uint32_t ld_s) {                           \
        uint32_t a;                                                                                          \
        dendp_fetch_tiles(&k, &ahead, 1, (size_t)d * 16 * sizeof(dendp_value_##type));                       \
        DENDP_BY_FOUR(n_q, a, DENDP_SCORE_CALL_##type)                                                       \
    }                                                                                                        \
    DENDP_INLINE_NEON void dendp_add_v_##type##_rows_neon(                                                   \
        const int R, const void *const *v, const uint16_t *mask, uint32_t n_tiles, uint32_t d,               \
        const float *p, uint32_t ld_p, float *o) {                                                           \
        uint32_t tile, t, j;                                                                                 \
        for (j = 0; j + 16 <= d; j += 16) {                                                                  \
            float32x4_t sum[4][4], x[4], w0, w1, w2, w3;                                                     \
            DENDP_EACH4_NEON(R, DENDP_TILE_LOAD_O, 0)                                                        \
            for (tile = 0; tile < n_tiles; tile++) {                                                         \
                for (t = 0; t < 16; t++) {                                                                   \
                    if (mask[tile] >> t & 1u) {                                                              \
                        DENDP_TILE_LOAD_W(type, v[tile], (size_t)t *d + j)                                   \
                        DENDP_EACH4_NEON(R, DENDP_TILE_LOAD_P, 0)                                            \
                        DENDP_EACH4_NEON(R, DENDP_TILE_ADD, 0)                                               \
                    }                                                                                        \
                }                                                                                            \
            }                                                                                                \
            DENDP_EACH4_NEON(R, DENDP_TILE_STORE_O, 0)                                                       \
        }                                                                                                    \
    }                                                                                                        \
    static void dendp_add_v_##type##_neon(const void *const *v, const void *const *ahead,                    \
                                          const uint16_t *mask, uint32_t n_tiles, uint32_t d,                \
                                          const float *p, uint32_t ld_p, uint32_t n_q, float *o) {           \
        uint32_t a;                                                                                          \
        dendp_fetch_tiles(v, ahead, n_tiles, (size_t)d * 16 * sizeof(dendp_value_##type));                   \
        DENDP_BY_FOUR(n_q, a, DENDP_ADD_V_CALL_##type)                                                       \
        dendp_add_v_##type##_from(d / 16 * 16, v, mask, n_tiles, d, p, ld_p, n_q, o);                        \
    }

/* 16 values of a tile, the first at `at`. */
#define DENDP_TILE_LOAD_W(type, tile, at)                                                                    \
    w0 = DENDP_LOAD4_##type(tile, at);                                                                       \
    w1 = DENDP_LOAD4_##type(tile, (at) + 4);                                                                 \
    w2 = DENDP_LOAD4_##type(tile, (at) + 8);                                                                 \
    w3 = DENDP_LOAD4_##type(tile, (at) + 12);
#define DENDP_TILE_STEP_f32(n)                                                                               \
    DENDP_TILE_LOAD_W(f32, k, ((size_t)i + (n)) * 16)                                                        \
    DENDP_EACH4_NEON(R, DENDP_TILE_ADD, n)
#define DENDP_TILE_STEP_f16(n)                                                                               \
    DENDP_TILE_LOAD_W(f16, k, ((size_t)i + (n)) * 16)                                                        \
    DENDP_EACH4_NEON(R, DENDP_TILE_ADD, n)
#define DENDP_SCORE_CALL_f32(R)                                                                              \
    dendp_score_f32_rows_neon(R, k, d, (const float *)q + (size_t)a * d, s + (size_t)a * ld_s, ld_s)
#define DENDP_SCORE_CALL_f16(R)                                                                              \
    dendp_score_f16_rows_neon(R, k, d, (const float *)q + (size_t)a * d, s + (size_t)a * ld_s, ld_s)
#define DENDP_ADD_V_CALL_f32(R)                                                                              \
    dendp_add_v_f32_rows_neon(R, v, mask, n_tiles, d, p + (size_t)a * ld_p, ld_p, o + (size_t)a * d)
#define DENDP_ADD_V_CALL_f16(R)                                                                              \
    dendp_add_v_f16_rows_neon(R, v, mask, n_tiles, d, p + (size_t)a * ld_p, ld_p, o + (size_t)a * d)
DENDP_TILES_NEON(f32)
DENDP_TILES_NEON(f16)

/* -- q8_0 --------------------------------------------------------------------- */

#define DENDP_Q8_OPEN(r, j)                                                                                  \
    sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = vdupq_n_s32(0);                                          \
    low[r] = vld1q_s8(q[(r)*groups].act.q);                                                                  \
    high[r] = vld1q_s8(q[(r)*groups].act.q + 16);
#define DENDP_Q8_LOW(r, j)                                                                                   \
    DENDP_SDOT(sum[r][0], w0, low[r], j)                                                                     \
    DENDP_SDOT(sum[r][1], w1, low[r], j)                                                                     \
    DENDP_SDOT(sum[r][2], w2, low[r], j)                                                                     \
    DENDP_SDOT(sum[r][3], w3, low[r], j)
#define DENDP_Q8_HIGH(r, j)                                                                                  \
    DENDP_SDOT(sum[r][0], w0, high[r], j)                                                                    \
    DENDP_SDOT(sum[r][1], w1, high[r], j)                                                                    \
    DENDP_SDOT(sum[r][2], w2, high[r], j)                                                                    \
    DENDP_SDOT(sum[r][3], w3, high[r], j)
/* The next four dimensions of 16 keys, where there are some. */
#define DENDP_Q8_FOUR(at, M, j)                                                                              \
    if (n > (at)) {                                                                                          \
        w0 = veorq_u8(vld1q_u8(code), top);                                                                  \
        w1 = veorq_u8(vld1q_u8(code + 16), top);                                                             \
        w2 = veorq_u8(vld1q_u8(code + 32), top);                                                             \
        w3 = veorq_u8(vld1q_u8(code + 48), top);                                                             \
        code += 64;                                                                                          \
        DENDP_EACH4_NEON(R, M, j)                                                                            \
    }
#define DENDP_Q8_FOLD(r, j)                                                                                  \
    to = s + (r)*ld_s + (j)*4;                                                                               \
    y = b ? vld1q_f32(to) : vdupq_n_f32(0);                                                                  \
    y = vfmaq_f32(y, vcvtq_f32_s32(sum[r][j]), vmulq_n_f32(f, q[(r)*groups].act.scale));                     \
    vst1q_f32(to, y);
#define DENDP_Q8_FOLD_QUARTER(c)                                                                             \
    f = DENDP_HALVES4(scale + b * 32 + (c)*8);                                                               \
    DENDP_EACH4_NEON(R, DENDP_Q8_FOLD, c)

/* q: block 0 of R queries, each `groups` blocks. */
DENDP_TARGET_NEON DENDP_INLINE_NEON void dendp_score_q8_rows_neon(const int R, const void *k, uint32_t d,
                                                                  const dendp_q8_query *q, float *s,
                                                                  uint32_t ld_s) {
    const unsigned char *code = (const unsigned char *)k, *scale = code + dendp_q8_k_codes(d);
    const uint8x16_t top = vdupq_n_u8(0x80);
    uint32_t b, groups = dendp_q8_groups(d);
    for (b = 0; b < groups; b++, q++) {
        int32x4_t sum[4][4];
        int8x16_t low[4], high[4];
        uint8x16_t w0, w1, w2, w3;
        float32x4_t f, y;
        float *to;
        uint32_t n = dendp_min_u32(32, d - b * 32);
        DENDP_EACH4_NEON(R, DENDP_Q8_OPEN, 0)
        DENDP_Q8_FOUR(0, DENDP_Q8_LOW, 0)
        DENDP_Q8_FOUR(4, DENDP_Q8_LOW, 1)
        DENDP_Q8_FOUR(8, DENDP_Q8_LOW, 2)
        DENDP_Q8_FOUR(12, DENDP_Q8_LOW, 3)
        DENDP_Q8_FOUR(16, DENDP_Q8_HIGH, 0)
        DENDP_Q8_FOUR(20, DENDP_Q8_HIGH, 1)
        DENDP_Q8_FOUR(24, DENDP_Q8_HIGH, 2)
        DENDP_Q8_FOUR(28, DENDP_Q8_HIGH, 3)
        DENDP_Q8_FOLD_QUARTER(0)
        DENDP_Q8_FOLD_QUARTER(1)
        DENDP_Q8_FOLD_QUARTER(2)
        DENDP_Q8_FOLD_QUARTER(3)
    }
}

DENDP_TARGET_NEON static void dendp_score_q8_neon(const void *k, const void *ahead, uint32_t d, const void *q,
                                                  uint32_t n_q, float *s, uint32_t ld_s) {
    uint32_t a, groups = dendp_q8_groups(d);
    dendp_fetch_tiles(&k, &ahead, 1, dendp_q8_k_codes(d) + groups * 32u);
#define DENDP_CALL(R)                                                                                        \
    dendp_score_q8_rows_neon(R, k, d, (const dendp_q8_query *)q + (size_t)a * groups, s + (size_t)a * ld_s,  \
                             ld_s)
    DENDP_BY_FOUR(n_q, a, DENDP_CALL)
#undef DENDP_CALL
}

/* dendp_q8_factors. */
static float dendp_q8_factors_neon(const void *const *v, const uint16_t *mask, uint32_t n_tiles, uint32_t d,
                                   uint32_t group, float *factor) {
    static const uint32_t bits[4] = {1, 2, 4, 8};
    const uint32x4_t bit = vld1q_u32(bits);
    float32x4_t most = vdupq_n_f32(0), f;
    float m, one;
    uint32_t t;
    for (t = 0; t < n_tiles * 16; t += 4) {
        const unsigned char *scale = (const unsigned char *)v[t / 16] + d * 16u + group * 32 + t % 16 * 2;
        uint32x4_t live = vtstq_u32(vdupq_n_u32((uint32_t)mask[t / 16] >> t % 16), bit);
        f = vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(DENDP_HALVES4(scale)), live));
        most = dendp_above4(f, most);
        vst1q_f32(factor + t, f);
    }
    m = vmaxvq_f32(most);
    one = dendp_q8_one(m);
    for (t = 0; t < n_tiles * 16; t += 4) {
        f = vmulq_n_f32(vld1q_f32(factor + t), one);
        DENDP_FIX_NEON(f)
        vst1q_f32(factor + t, f);
    }
    return dendp_keep(m * DENDP_WEIGHT_UNIT);
}

/* 4 weights as integers. */
DENDP_INLINE_NEON int16x4_t dendp_q8_weights4(const float *p, const float *factor) {
    const float32x4_t one = vdupq_n_f32(DENDP_WEIGHT_ONE);
    float32x4_t f = vld1q_f32(factor), w = vmulq_f32(vld1q_f32(p), f);
    w = vbslq_f32(vcltq_f32(w, one), w, one);
    w = vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(w), vcgtq_f32(f, vdupq_n_f32(0))));
    return vqmovn_s32(vcvtnq_s32_f32(w));
}

#define DENDP_Q8_SUM_ZERO(r, n) sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = vdupq_n_s32(0);
#define DENDP_Q8_SUM_WEIGHTS(r, n) x[r] = vld1q_s16(weight[r] + tile * 16 + t);
/* 16 dimensions of a slot, number n of the eight in x. */
#define DENDP_Q8_SUM(r, n)                                                                                   \
    sum[r][0] = vmlal_laneq_s16(sum[r][0], vget_low_s16(c0), x[r], n);                                       \
    sum[r][1] = vmlal_high_laneq_s16(sum[r][1], c0, x[r], n);                                                \
    sum[r][2] = vmlal_laneq_s16(sum[r][2], vget_low_s16(c1), x[r], n);                                       \
    sum[r][3] = vmlal_high_laneq_s16(sum[r][3], c1, x[r], n);
/* 16 dimensions of a pair of slots: bytes of the one and of the other by turns. */
#define DENDP_Q8_SUM_PAIR(even, odd)                                                                         \
    pair0 = vld1q_s8(code);                                                                                  \
    pair1 = vld1q_s8(code + 16);                                                                             \
    code += (size_t)d * 2;                                                                                   \
    c0 = vshrq_n_s16(vshlq_n_s16(vreinterpretq_s16_s8(pair0), 8), 8);                                        \
    c1 = vshrq_n_s16(vshlq_n_s16(vreinterpretq_s16_s8(pair1), 8), 8);                                        \
    DENDP_EACH4_NEON(R, DENDP_Q8_SUM, even)                                                                  \
    c0 = vshrq_n_s16(vreinterpretq_s16_s8(pair0), 8);                                                        \
    c1 = vshrq_n_s16(vreinterpretq_s16_s8(pair1), 8);                                                        \
    DENDP_EACH4_NEON(R, DENDP_Q8_SUM, odd)
#define DENDP_Q8_SUM_STORE(r, n)                                                                             \
    to = o + (r)*d + j;                                                                                      \
    vst1q_f32(to, vfmaq_f32(vld1q_f32(to), vcvtq_f32_s32(sum[r][0]), u));                                    \
    vst1q_f32(to + 4, vfmaq_f32(vld1q_f32(to + 4), vcvtq_f32_s32(sum[r][1]), u));                            \
    vst1q_f32(to + 8, vfmaq_f32(vld1q_f32(to + 8), vcvtq_f32_s32(sum[r][2]), u));                            \
    vst1q_f32(to + 12, vfmaq_f32(vld1q_f32(to + 12), vcvtq_f32_s32(sum[r][3]), u));

/* Columns [j, end) of one scale group, multiples of 16. weight [R][64] of that group. */
DENDP_INLINE_NEON void dendp_add_v_q8_rows_neon(const int R, const void *const *v, uint32_t n_tiles,
                                                uint32_t d, uint32_t j, uint32_t end,
                                                int16_t (*weight)[DENDP_CHUNK], float unit, float *o) {
    const float32x4_t u = vdupq_n_f32(unit);
    uint32_t tile, t;
    for (; j < end; j += 16) {
        int32x4_t sum[4][4];
        int16x8_t x[4], c0, c1;
        int8x16_t pair0, pair1;
        float *to;
        DENDP_EACH4_NEON(R, DENDP_Q8_SUM_ZERO, 0)
        for (tile = 0; tile < n_tiles; tile++) {
            const int8_t *code = (const int8_t *)v[tile] + (size_t)j * 2;
            for (t = 0; t < 16; t += 8) {
                DENDP_EACH4_NEON(R, DENDP_Q8_SUM_WEIGHTS, 0)
                DENDP_Q8_SUM_PAIR(0, 1)
                DENDP_Q8_SUM_PAIR(2, 3)
                DENDP_Q8_SUM_PAIR(4, 5)
                DENDP_Q8_SUM_PAIR(6, 7)
            }
        }
        DENDP_EACH4_NEON(R, DENDP_Q8_SUM_STORE, 0)
    }
}

static void dendp_add_v_q8_neon(const void *const *v, const void *const *ahead, const uint16_t *mask,
                                uint32_t n_tiles, uint32_t d, const float *p, uint32_t ld_p, uint32_t n_q,
                                float *o) {
    uint32_t a, t, r, b;
    dendp_fetch_tiles(v, ahead, n_tiles, (size_t)d * 16 + dendp_q8_groups(d) * 32u);
    for (b = 0; b * 32 + 16 <= d; b++) {
        float factor[DENDP_CHUNK], unit = dendp_q8_factors_neon(v, mask, n_tiles, d, b, factor);
        uint32_t end = dendp_min_u32(b * 32 + 32, d / 16 * 16);
        for (a = 0; a < n_q; a += 4) {
            int16_t weight[4][DENDP_CHUNK];
            for (r = 0; r < 4 && a + r < n_q; r++) {
                const float *w = p + (size_t)(a + r) * ld_p;
                for (t = 0; t < n_tiles * 16; t += 4) {
                    vst1_s16(weight[r] + t, dendp_q8_weights4(w + t, factor + t));
                }
            }
            switch (n_q - a) {
            case 1:
                dendp_add_v_q8_rows_neon(1, v, n_tiles, d, b * 32, end, weight, unit, o + (size_t)a * d);
                break;
            case 2:
                dendp_add_v_q8_rows_neon(2, v, n_tiles, d, b * 32, end, weight, unit, o + (size_t)a * d);
                break;
            case 3:
                dendp_add_v_q8_rows_neon(3, v, n_tiles, d, b * 32, end, weight, unit, o + (size_t)a * d);
                break;
            default:
                dendp_add_v_q8_rows_neon(4, v, n_tiles, d, b * 32, end, weight, unit, o + (size_t)a * d);
                break;
            }
        }
    }
    dendp_add_v_q8_from(d / 16 * 16, v, mask, n_tiles, d, p, ld_p, n_q, o);
}

#endif
