/* ==========================================================================
 * >>03.02 ACTIVATIONS: the other operand of a quantised matmul, as bytes
 * ==========================================================================
 * A row of activations is quantised once and then meets thousands of weight
 * rows. It is cut into blocks of 32 along k, like the weights: models have
 * channels a hundred times larger than the rest, and with one scale a row
 * these would swallow all others.
 *
 * The block is a function of its 32 values x alone:
 *
 *     NaN becomes 0, an infinity the largest float of its sign
 *     amax  = max |x|; below 2^-90 the whole block is zeros with scale zero
 *     q     = x * (float)(127 / amax), to the nearest integer, ties to even
 *     scale = amax * (float)(1 / 127)
 *
 * so |x - scale * q| <= scale * (1/2 + 2^-15). No product or quotient here is
 * subnormal or overflows, and the quotient is taken in double precision and
 * rounded: -ffast-math replaces single divisions by estimates. All tests on
 * x read its bits. amax < 2^-90 cannot matter beside any other number of a
 * model, and keeps scale * (weight's scale) normal.
 *
 * Beside q stand the sums that kernels need over and over. A weight is
 * scale * (code - centre) with code unsigned, so
 *
 *     sum (code - centre) * q = sum code * q  -  centre * sum q
 *
 * and every kernel starts its integer sum at centre * n, n = -sum q. AVX2 does
 * the same in 16-bit lanes, where byte pairs (0,1) and (2,3) of each four stay
 * apart: p holds -sum q over the even pairs and over the odd ones.
 *
 * Rows are kept in tiles of up to 8 that a kernel takes together:
 *
 *     [tile][block][row of the tile]   of dendp_act_block, 56 bytes
 *
 * A tile of R rows is one linear stream, like the panel that it meets.
 * ======================================================================== */

#define DENDP_TILE_ROWS 8

/* x, rounded and final: what happens to it before and after is not merged,
 * not even under -ffast-math, where (a * b) * c may become a * (b * c). */
static float dendp_keep(float x) {
    volatile float kept = x;
    return kept;
}

typedef struct dendp_act_block {
    int8_t q[32];
    float scale;
    float min_factor; /* scale * sum q: what a weight's minimum is multiplied by */
    int32_t n;        /* -sum q */
    int32_t n_low;    /* -sum of the first 16 */
    int16_t p[2];     /* -sum q over even pairs, over odd pairs */
    int16_t p_low[2]; /* of the first 16 */
} dendp_act_block;

/* One row [k] -> n_blocks blocks at out[0], out[stride], ...; beyond k zeros. */
typedef void (*dendp_act_fn)(const float *x, uint32_t k, uint32_t n_blocks, dendp_act_block *out,
                             size_t stride);

/* Bytes that the quantised form of [n_rows][k] takes. */
static uint64_t dendp_act_bytes(uint32_t n_rows, uint32_t k) {
    return (uint64_t)n_rows * 2 * dendp_div_up(k, 64) * sizeof(dendp_act_block);
}

/* The block of row r, block t of quantised activations of n_rows rows. */
static const dendp_act_block *dendp_act_at(const void *act, uint32_t n_rows, uint32_t n_blocks, uint32_t row,
                                           uint32_t t) {
    uint32_t first = row / DENDP_TILE_ROWS * DENDP_TILE_ROWS;
    uint32_t tile_rows = dendp_min_u32(DENDP_TILE_ROWS, n_rows - first);
    return (const dendp_act_block *)act + (size_t)first * n_blocks + (size_t)t * tile_rows + (row - first);
}

#define DENDP_ACT_LEAST 0x12800000u    /* bits of 2^-90 */
#define DENDP_ACT_MOST 0x7f7fffffu     /* bits of the largest float */
#define DENDP_ACT_127TH 0.00787401575f /* the float nearest 1 / 127 */

/* 127 / amax, rounded to double and then to float. amax is not zero. volatile
 * forbids computing the quotient in single precision after all. */
static float dendp_act_inverse(float amax) {
    volatile double quotient = 127.0 / (double)amax;
    return (float)quotient;
}

/* Fills in one block that is all zeros. */
static void dendp_act_zero(dendp_act_block *out) {
    memset(out, 0, sizeof *out);
}

/* 32 values -> one block. The meaning; instruction sets must give the same bits. */
static void dendp_act_block_scalar(const float *x, dendp_act_block *out) {
    float clean[32], amax, inverse;
    uint32_t most = 0, j;
    int32_t sum[2][2] = {{0, 0}, {0, 0}}; /* [half of the block][pair of the four] */
    for (j = 0; j < 32; j++) {
        uint32_t bits = dendp_f32_bits(x[j]), size = bits & 0x7fffffffu;
        size = size > 0x7f800000u ? 0 : dendp_min_u32(size, DENDP_ACT_MOST);
        most = dendp_max_u32(most, size); /* floats without sign are ordered as their bits are */
        clean[j] = dendp_bits_f32((bits & 0x80000000u) | size);
    }
    if (most < DENDP_ACT_LEAST) {
        dendp_act_zero(out);
        return;
    }
    amax = dendp_bits_f32(most);
    inverse = dendp_act_inverse(amax);
    for (j = 0; j < 32; j++) {
        out->q[j] = (int8_t)lrintf(clean[j] * inverse);
        sum[j / 16][j / 2 % 2] += out->q[j];
    }
    out->n_low = -(sum[0][0] + sum[0][1]);
    out->n = out->n_low - (sum[1][0] + sum[1][1]);
    out->scale = dendp_keep(amax * DENDP_ACT_127TH);
    out->min_factor = out->scale * (float)-out->n;
    for (j = 0; j < 2; j++) {
        out->p_low[j] = (int16_t)-sum[0][j];
        out->p[j] = (int16_t)(-sum[0][j] - sum[1][j]);
    }
}

static void dendp_act_row_scalar(const float *x, uint32_t k, uint32_t n_blocks, dendp_act_block *out,
                                 size_t stride) {
    uint32_t t;
    for (t = 0; t < n_blocks; t++) {
        float last[32];
        uint32_t n = t * 32 >= k ? 0 : dendp_min_u32(32, k - t * 32);
        if (n == 32) {
            dendp_act_block_scalar(x + t * 32, out + t * stride);
        } else {
            memset(last, 0, sizeof last);
            memcpy(last, x + (n ? t * 32 : 0), n * sizeof(float));
            dendp_act_block_scalar(last, out + t * stride);
        }
    }
}
