/* ==========================================================================
 * >>03.10 TILES: scores and weighted values of 16 keys
 * ==========================================================================
 * Attention meets the cache in tiles of 16 positions of one KV head. Two
 * primitives do all the arithmetic:
 *
 *     score   s[q][t] = sum over i of  Q[q][i] * K[i][t]        t = 0..15
 *     add_v   o[q][j] += sum over t in mask of  p[q][t] * V[t][j]
 *
 * The layout makes both run along registers. K lies with all 16 keys of a
 * dimension (or of four) side by side, so scores need no horizontal sums, and
 * a K vector once loaded serves every query of the group. V lies with its
 * dimensions side by side. add_v takes up to 4 tiles at a time, so that sums
 * stay in registers for 64 positions.
 *
 *     type   K                                      V
 *     f32    [d][16] f32                            [16][d] f32
 *     f16    [d][16] f16                            [16][d] f16
 *     q8_0   [d/4][16][4] u8 (value + 128),         [8][d][2] i8,
 *            [d/32][16] f16 scales                  [d/32][16] f16 scales
 *
 * FLOATS  Every s is one chain of fused multiply-adds, i ascending; every o
 * one chain, t ascending, whatever the number of tiles in a call.
 *
 * INTEGERS  q8_0 is computed on its codes, at two to four times the rate of
 * floats. A query becomes bytes as a row of activations does (03.02), and
 *
 *     s = 0;  for each 32 dimensions:  s = fma(sum code * q, K scale * q scale, s)
 *
 * For V, weights become 15-bit numbers. Their scale must be one for all
 * positions that one integer sum runs over, while V has a scale a position: so
 * that is folded into the weight. With m the largest V scale among the live
 * slots of the tiles at hand (for each 32 dimensions),
 *
 *     w[t] = p[t] * (V scale[t] * (32767 / m)), to the nearest integer, p <= 1
 *     o    = fma(sum w * V code, m / 32767, o)
 *
 * A weight is off by 2^-16 of the largest: nothing beside the 2^-8 of V. The
 * sum of 64 products stays below 2^29. Since m is a matter of all tiles of a
 * call, callers cut at multiples of 4 tiles: then a row's result is its own.
 *
 * Slots outside the mask hold anything, NaN included: their scores are
 * computed and thrown away by the caller, their values count for nothing.
 * All instruction sets agree with this room bit for bit; widths that do not
 * fill a register take the scalar form for what is left.
 * ======================================================================== */

#define DENDP_MAX_HEAD_DIM 512u
#define DENDP_CHUNK_TILES 4u /* tiles of one add_v at most */
#define DENDP_CHUNK (DENDP_CHUNK_TILES * 16u)

/* k: one K tile; q: n_q queries, floats [n_q][d] or what the codec made of them; s [n_q][ld_s].
 * ahead: a tile that will be wanted soon, to be fetched meanwhile; k itself where there is none. */
typedef void (*dendp_score_fn)(const void *k, const void *ahead, uint32_t d, const void *q, uint32_t n_q,
                               float *s, uint32_t ld_s);
/* v[n_tiles] V tiles, mask[n_tiles] bit t: slot t counts; p [n_q][ld_p] weights, 16 a tile; o [n_q][d].
 * ahead[n_tiles]: likewise. */
typedef void (*dendp_add_v_fn)(const void *const *v, const void *const *ahead, const uint16_t *mask,
                               uint32_t n_tiles, uint32_t d, const float *p, uint32_t ld_p, uint32_t n_q,
                               float *o);

/* Runs `call` with R = 4 for as long as 4 queries are left, then for the rest. */
#define DENDP_BY_FOUR(n_q, a, call)                                                                          \
    for (a = 0; a < (n_q); a += 4) {                                                                         \
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
        default:                                                                                             \
            call(4);                                                                                         \
            break;                                                                                           \
        }                                                                                                    \
    }

/* Fetches the n tiles ahead, of `bytes` bytes, at once: for kernels that do not do it line by line. */
static DENDP_UNUSED void dendp_fetch_tiles(const void *const *tiles, const void *const *ahead, uint32_t n,
                                           size_t bytes) {
    uint32_t i;
    for (i = 0; i < n; i++) {
        if (ahead[i] != tiles[i]) {
            dendp_fetch_ahead(ahead[i], bytes);
        }
    }
}

/* q8_0: scale groups of a vector. */
static uint32_t dendp_q8_groups(uint32_t d) {
    return (d + 31) / 32;
}

/* Bytes of the codes of a K tile: whole fours of dimensions. */
static size_t dendp_q8_k_codes(uint32_t d) {
    return (size_t)dendp_div_up(d, 4) * 64;
}

/* Where K keeps dimension i of slot t, and V. */
static size_t dendp_q8_k_at(uint32_t i, uint32_t t) {
    return (size_t)(i / 4) * 64 + t * 4 + i % 4;
}

static size_t dendp_q8_v_at(uint32_t d, uint32_t i, uint32_t t) {
    return ((size_t)(t / 2) * d + i) * 2 + t % 2;
}

/* 32 dimensions of a query for q8_0: bytes, and the same as 16-bit numbers. */
typedef struct dendp_q8_query {
    dendp_act_block act;
    int16_t wide[32];
} dendp_q8_query;

/* One query [d] -> [d/32] blocks; beyond d zeros. */
static void dendp_q8_put_query(dendp_act_fn act_row, const float *q, uint32_t d, dendp_q8_query *out) {
    dendp_act_block act[DENDP_MAX_HEAD_DIM / 32];
    uint32_t b, i, groups = dendp_q8_groups(d);
    act_row(q, d, groups, act, 1);
    for (b = 0; b < groups; b++) {
        out[b].act = act[b];
        for (i = 0; i < 32; i++) {
            out[b].wide[i] = act[b].q[i];
        }
    }
}

typedef float dendp_value_f32;
typedef uint16_t dendp_value_f16;

/* -- floats ------------------------------------------------------------------- */

static float dendp_tile_f32(const void *tile, size_t i) {
    return ((const float *)tile)[i];
}

static float dendp_tile_f16(const void *tile, size_t i) {
    return dendp_f16_to_f32(((const uint16_t *)tile)[i]);
}

/* x [n] to halves, to nearest even. */
typedef void (*dendp_to_f16_fn)(const float *x, uint32_t n, uint16_t *y);

static void dendp_to_f16_scalar(const float *x, uint32_t n, uint16_t *y) {
    uint32_t i;
    for (i = 0; i < n; i++) {
        y[i] = dendp_f32_to_f16(x[i]);
    }
}

/* add_v for columns [j0, d): vector forms call it for what is left. */
#define DENDP_TILES_SCALAR(type)                                                                             \
    static void dendp_score_##type##_scalar(const void *k, const void *ahead, uint32_t d, const void *q,     \
                                            uint32_t n_q, float *s, uint32_t ld_s) {                         \
        uint32_t a, i, t;                                                                                    \
        for (a = 0; a < n_q; a++) {                                                                          \
            const float *qa = (const float *)q + (size_t)a * d;                                              \
            float acc[16] = {0};                                                                             \
            for (i = 0; i < d; i++) {                                                                        \
                for (t = 0; t < 16; t++) {                                                                   \
                    acc[t] = dendp_fma(qa[i], dendp_tile_##type(k, (size_t)i * 16 + t), acc[t]);             \
                }                                                                                            \
            }                                                                                                \
            memcpy(s + (size_t)a * ld_s, acc, sizeof acc);                                                   \
        }                                                                                                    \
        (void)ahead;                                                                                         \
    }                                                                                                        \
    static void dendp_add_v_##type##_from(uint32_t j0, const void *const *v, const uint16_t *mask,           \
                                          uint32_t n_tiles, uint32_t d, const float *p, uint32_t ld_p,       \
                                          uint32_t n_q, float *o) {                                          \
        uint32_t a, t, j;                                                                                    \
        for (a = 0; a < n_q && j0 < d; a++) {                                                                \
            for (t = 0; t < n_tiles * 16; t++) {                                                             \
                float w = p[(size_t)a * ld_p + t], *oa = o + (size_t)a * d;                                  \
                for (j = j0; j < d && (mask[t / 16] >> t % 16 & 1u); j++) {                                  \
                    oa[j] = dendp_fma(w, dendp_tile_##type(v[t / 16], (size_t)(t % 16) * d + j), oa[j]);     \
                }                                                                                            \
            }                                                                                                \
        }                                                                                                    \
    }                                                                                                        \
    static void dendp_add_v_##type##_scalar(const void *const *v, const void *const *ahead,                  \
                                            const uint16_t *mask, uint32_t n_tiles, uint32_t d,              \
                                            const float *p, uint32_t ld_p, uint32_t n_q, float *o) {         \
        (void)ahead;                                                                                         \
        dendp_add_v_##type##_from(0, v, mask, n_tiles, d, p, ld_p, n_q, o);                                  \
    }
DENDP_TILES_SCALAR(f32)
DENDP_TILES_SCALAR(f16)

/* -- q8_0 --------------------------------------------------------------------- */

static void dendp_score_q8_scalar(const void *k, const void *ahead, uint32_t d, const void *q, uint32_t n_q,
                                  float *s, uint32_t ld_s) {
    const unsigned char *code = (const unsigned char *)k;
    const uint16_t *scale = (const uint16_t *)(const void *)(code + dendp_q8_k_codes(d));
    uint32_t a, i, t, b, groups = dendp_q8_groups(d);
    (void)ahead;
    for (a = 0; a < n_q; a++) {
        const dendp_q8_query *qa = (const dendp_q8_query *)q + (size_t)a * groups;
        float acc[16] = {0};
        for (b = 0; b < groups; b++) {
            for (t = 0; t < 16; t++) {
                int32_t dot = 128 * qa[b].act.n; /* n = -sum q */
                for (i = b * 32; i < d && i < b * 32 + 32; i++) {
                    dot += code[dendp_q8_k_at(i, t)] * qa[b].act.q[i % 32];
                }
                acc[t] = dendp_fma((float)dot,
                                   dendp_keep(dendp_f16_to_f32(scale[b * 16 + t]) * qa[b].act.scale), acc[t]);
            }
        }
        memcpy(s + (size_t)a * ld_s, acc, sizeof acc);
    }
}

#define DENDP_WEIGHT_ONE 32767.0f              /* the weight 1 */
#define DENDP_WEIGHT_UNIT 3.05185094759971e-5f /* the float nearest 1 / 32767 */

/* 32767 / m, or 0. As in dendp_act_inverse, -ffast-math must not make it an estimate. */
static float dendp_q8_one(float most) {
    volatile double quotient = most > 0.0f ? 32767.0 / (double)most : 0.0;
    return (float)quotient;
}

/* Scales of one 32 dimensions of V for up to 64 slots, as factors of the
 * weights; 0 for slots that do not count. Returns m / 32767. */
static float dendp_q8_factors(const void *const *v, const uint16_t *mask, uint32_t n_tiles, uint32_t d,
                              uint32_t group, float *factor) {
    float most = 0.0f, one;
    uint32_t t;
    for (t = 0; t < n_tiles * 16; t++) {
        const uint16_t *scale = (const uint16_t *)(const void *)((const unsigned char *)v[t / 16] + d * 16u);
        bool live = mask[t / 16] >> t % 16 & 1u;
        factor[t] = live ? dendp_f16_to_f32(scale[group * 16 + t % 16]) : 0.0f;
        most = factor[t] > most ? factor[t] : most;
    }
    one = dendp_q8_one(most);
    for (t = 0; t < n_tiles * 16; t++) {
        factor[t] = dendp_keep(factor[t] * one);
    }
    return dendp_keep(most * DENDP_WEIGHT_UNIT);
}

/* A weight as an integer. Weights of slots that do not count may be anything. */
static int32_t dendp_q8_weight(float p, float factor) {
    float w = p * factor;
    return factor > 0.0f ? (int32_t)lrintf(w < DENDP_WEIGHT_ONE ? w : DENDP_WEIGHT_ONE) : 0;
}

static void dendp_add_v_q8_from(uint32_t j0, const void *const *v, const uint16_t *mask, uint32_t n_tiles,
                                uint32_t d, const float *p, uint32_t ld_p, uint32_t n_q, float *o) {
    uint32_t a, t, j, end;
    for (; j0 < d; j0 = end) { /* one scale group after another */
        float factor[DENDP_CHUNK], unit = dendp_q8_factors(v, mask, n_tiles, d, j0 / 32, factor);
        end = dendp_min_u32(d, (j0 / 32 + 1) * 32);
        for (a = 0; a < n_q; a++) {
            int32_t sum[32] = {0};
            for (t = 0; t < n_tiles * 16; t++) {
                int32_t w = dendp_q8_weight(p[(size_t)a * ld_p + t], factor[t]);
                for (j = j0; j < end; j++) {
                    sum[j % 32] += w * ((const int8_t *)v[t / 16])[dendp_q8_v_at(d, j, t % 16)];
                }
            }
            for (j = j0; j < end; j++) {
                o[(size_t)a * d + j] = dendp_fma((float)sum[j % 32], unit, o[(size_t)a * d + j]);
            }
        }
    }
}

static void dendp_add_v_q8_scalar(const void *const *v, const void *const *ahead, const uint16_t *mask,
                                  uint32_t n_tiles, uint32_t d, const float *p, uint32_t ld_p, uint32_t n_q,
                                  float *o) {
    (void)ahead;
    dendp_add_v_q8_from(0, v, mask, n_tiles, d, p, ld_p, n_q, o);
}
