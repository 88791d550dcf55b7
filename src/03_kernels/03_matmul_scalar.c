/* ==========================================================================
 * >>03.03 MATMUL, SCALAR: what a product of weights and activations means
 * ==========================================================================
 * This room defines the bits of every output; the rooms for AVX2 and AVX-512
 * compute the same ones faster. An output y depends on one weight row and one
 * activation row, and on nothing else: not on the rows beside them, nor on
 * how the work was cut. That holds because each sum has one order.
 *
 * Quantised forms. Blocks of 32 k, ascending. In a block an integer sum,
 * exact in any order, at most 32 * 128 * 127 < 2^24, so its float is exact:
 *
 *     dot = sum code * q - centre * sum q
 *
 * and then a chain of fused multiply-adds, with A the block of activations:
 *
 *     one scale      y = fma(dot, scale * A.scale, y)
 *     and a minimum  y = fma(min, A.min_factor, y)     after the line above
 *     two scales     t = dot0 * scale0                 Q6_K: 16 k each
 *                    t = fma(dot1, scale1, t)
 *                    y = fma(t, A.scale, y)
 *
 * Float forms. Four chains, k mod 4 = 0, 1, 2, 3, each ascending, so that a
 * vector unit can overlap them:
 *
 *     c[k % 4] = fma(w[k], x[k], c[k % 4]);   y = (c[0] + c[1]) + (c[2] + c[3])
 *
 * Only fma by name: a compiler may turn a * b + c into one rounding or two as
 * it likes, and differently in each function. A sum or a product that must
 * not be regrouped even under -ffast-math passes through dendp_keep.
 * ======================================================================== */

/* One panel against all rows of activations in tiles: y[r * ldy + i], i < 16. */
typedef void (*dendp_quant_fn)(const unsigned char *panel, uint32_t n_blocks, const dendp_act_block *act,
                               uint32_t n_rows, float *y, size_t ldy);
/* The same for a float form: x[r * ldx + k]. */
typedef void (*dendp_float_fn)(const unsigned char *panel, uint32_t k, const float *x, size_t ldx,
                               uint32_t n_rows, float *y, size_t ldy);

#define DENDP_MATMUL_ROWS                                                                                    \
    64 /* rows that one call of a kernel takes at most: their sums and bytes stay in cache */

#if DENDP_WINDOWS && !defined(__FMA__)
/* a * b + c, rounded once, for C libraries whose fmaf rounds twice (MinGW's). The product is exact in double
 * precision. The sum's error is found (Knuth's two-sum), and where there is one, the sum is made odd, toward
 * the exact value: rounding that to single precision then is right (Boldo and Melquiond, "Emulation of a FMA
 * and correctly rounded sums", IEEE Transactions on Computers 2008). */
static float dendp_fma_soft(float a, float b, float c) {
    double p = (double)a * (double)b, s = p + (double)c, t = s - p, e = (p - (s - t)) + ((double)c - t);
    uint64_t bits;
    memcpy(&bits, &s, 8);
    if ((bits >> 52 & 2047u) != 2047u && (bits & 1u) == 0 && e != 0.0) {
        bits += (e > 0.0) == (s > 0.0) ? 1u : UINT64_MAX;
        memcpy(&s, &bits, 8);
    }
    return (float)s;
}
#endif

/* a * b + c, rounded once. Under -ffast-math clang makes fmaf a product and a
 * sum, in every place where it knows what is called. */
static float dendp_fma(float a, float b, float c) {
#if DENDP_WINDOWS && !defined(__FMA__)
    return dendp_fma_soft(a, b, c);
#elif defined(__clang__) && defined(__FAST_MATH__)
    float (*volatile function)(float, float, float) = fmaf;
    return function(a, b, c);
#else
    return fmaf(a, b, c);
#endif
}

/* sum code * q over n k. */
static int32_t dendp_dot_scalar(const unsigned char *code, const int8_t *q, uint32_t n) {
    int32_t dot = 0;
    uint32_t j;
    for (j = 0; j < n; j++) {
        dot += (int32_t)code[j] * q[j];
    }
    return dot;
}

/* y after one block. */
static float dendp_block_scalar(dendp_form form, const dendp_lane_block *w, const dendp_act_block *a,
                                float y) {
    int32_t centre = dendp_form_layouts[form].centre;
    int32_t low = dendp_dot_scalar(w->code, a->q, 16) + centre * a->n_low;
    int32_t high = dendp_dot_scalar(w->code + 16, a->q + 16, 16) + centre * (a->n - a->n_low);
    if (form == DENDP_FORM_Q6_K) {
        float t = dendp_keep((float)low * dendp_keep(w->scale[0]));
        t = dendp_fma((float)high, dendp_keep(w->scale[1]), t);
        return dendp_fma(t, a->scale, y);
    }
    y = dendp_fma((float)(low + high), dendp_keep(w->scale[0]) * a->scale, y);
    if (dendp_form_has_min(form)) {
        y = dendp_fma(dendp_keep(w->min), a->min_factor, y);
    }
    return y;
}

static void dendp_quant_scalar(dendp_form form, const unsigned char *panel, uint32_t n_blocks,
                               const dendp_act_block *act, uint32_t n_rows, float *y, size_t ldy) {
    uint32_t lane, t, r;
    for (lane = 0; lane < DENDP_LANES; lane++) {
        float sum[DENDP_MATMUL_ROWS];
        for (r = 0; r < n_rows; r++) {
            sum[r] = 0;
        }
        for (t = 0; t < n_blocks; t++) {
            dendp_lane_block w;
            dendp_lane_load(form, panel, t, lane, &w);
            for (r = 0; r < n_rows; r++) {
                sum[r] = dendp_block_scalar(form, &w, dendp_act_at(act, n_rows, n_blocks, r, t), sum[r]);
            }
        }
        for (r = 0; r < n_rows; r++) {
            y[r * ldy + lane] = sum[r];
        }
    }
}

static void dendp_float_scalar(dendp_form form, const unsigned char *panel, uint32_t k, const float *x,
                               size_t ldx, uint32_t n_rows, float *y, size_t ldy) {
    uint32_t lane, i, r;
    for (r = 0; r < n_rows; r++) {
        for (lane = 0; lane < DENDP_LANES; lane++) {
            float c[4] = {0, 0, 0, 0};
            for (i = 0; i < k; i++) {
                float w = dendp_float_weight(form, panel, (size_t)i * DENDP_LANES + lane);
                c[i % 4] = dendp_fma(w, x[r * ldx + i], c[i % 4]);
            }
            y[r * ldy + lane] = dendp_keep(c[0] + c[1]) + dendp_keep(c[2] + c[3]);
        }
    }
}

/* One function a form, for the table of kernels. */
#define DENDP_QUANT_SCALAR(name, form)                                                                       \
    static void name(const unsigned char *panel, uint32_t n_blocks, const dendp_act_block *act,              \
                     uint32_t n_rows, float *y, size_t ldy) {                                                \
        dendp_quant_scalar(form, panel, n_blocks, act, n_rows, y, ldy);                                      \
    }
DENDP_QUANT_SCALAR(dendp_quant_q4_0_scalar, DENDP_FORM_Q4_0)
DENDP_QUANT_SCALAR(dendp_quant_q4_1_scalar, DENDP_FORM_Q4_1)
DENDP_QUANT_SCALAR(dendp_quant_q5_0_scalar, DENDP_FORM_Q5_0)
DENDP_QUANT_SCALAR(dendp_quant_q5_1_scalar, DENDP_FORM_Q5_1)
DENDP_QUANT_SCALAR(dendp_quant_q8_0_scalar, DENDP_FORM_Q8_0)
DENDP_QUANT_SCALAR(dendp_quant_q4_k_scalar, DENDP_FORM_Q4_K)
DENDP_QUANT_SCALAR(dendp_quant_q5_k_scalar, DENDP_FORM_Q5_K)
DENDP_QUANT_SCALAR(dendp_quant_q6_k_scalar, DENDP_FORM_Q6_K)

#define DENDP_FLOAT_SCALAR(name, form)                                                                       \
    static void name(const unsigned char *panel, uint32_t k, const float *x, size_t ldx, uint32_t n_rows,    \
                     float *y, size_t ldy) {                                                                 \
        dendp_float_scalar(form, panel, k, x, ldx, n_rows, y, ldy);                                          \
    }
DENDP_FLOAT_SCALAR(dendp_float_f32_scalar, DENDP_FORM_F32)
DENDP_FLOAT_SCALAR(dendp_float_f16_scalar, DENDP_FORM_F16)
DENDP_FLOAT_SCALAR(dendp_float_bf16_scalar, DENDP_FORM_BF16)
