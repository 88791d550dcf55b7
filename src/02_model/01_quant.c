/* ==========================================================================
 * >>02.01 QUANT: the block formats of weights, and one plain decoder for each
 * ==========================================================================
 * A weight matrix is stored row by row, and a row is cut into blocks that
 * share a scale. This room says how long a block is and turns blocks into
 * floats; the kernels have faster ways that must agree with it. The layouts
 * are those of ggml (ggml-common.h) as GGUF files hold them. Everything is
 * little-endian; d, m and dmin are IEEE halves; a byte's low half comes first.
 *
 * Blocks of 32 values. qs[j] holds value j in its low nibble and value j + 16
 * in its high nibble; qh is a word whose bit i is the fifth bit of value i.
 *
 *     Q4_0    | d 2 | qs 16 |               x = d * (q - 8)
 *     Q4_1    | d 2 | m 2 | qs 16 |         x = d * q + m
 *     Q5_0    | d 2 | qh 4 | qs 16 |        x = d * (q - 16)
 *     Q5_1    | d 2 | m 2 | qh 4 | qs 16 |  x = d * q + m
 *     Q8_0    | d 2 | qs 32 signed |        x = d * q
 *     IQ4_NL  | d 2 | qs 16 |               x = d * table[q]
 *
 * Blocks of 256 values, "super-blocks": small integer scales times the d of
 * the whole. Value e lies in half h = e / 128, quarter g = e % 128 / 32 and
 * lane l = e % 32; s = e / 16 and t = e / 32 number the sub-blocks.
 *
 *     Q2_K    | scales 16 | qs 64 | d 2 | dmin 2 |
 *             q = qs[32 h + l] >> 2 g & 3
 *             x = d * (scales[s] & 15) * q - dmin * (scales[s] >> 4)
 *     Q3_K    | hmask 32 | qs 64 | scales 12 | d 2 |
 *             q = qs[32 h + l] >> 2 g & 3, less 4 unless hmask[l] has bit 4 h + g
 *             x = d * (six bits of sub-block s - 32) * q
 *     Q4_K    | d 2 | dmin 2 | scales 12 | qs 128 |
 *             q = nibble t % 2 of qs[32 (t / 2) + l]
 *             x = d * scale[t] * q - dmin * least[t], six bits each
 *     Q5_K    | d 2 | dmin 2 | scales 12 | qh 32 | qs 128 |
 *             as Q4_K, with 16 more where qh[l] has bit t
 *     Q6_K    | ql 128 | qh 64 | scales 16 signed | d 2 |
 *             q = nibble g / 2 of ql[64 h + 32 (g % 2) + l]
 *                 + 16 * (qh[32 h + l] >> 2 g & 3)
 *             x = d * scales[s] * (q - 32)
 *     IQ4_XS  | d 2 | scales_h 2 | scales_l 4 | qs 128 |
 *             six bits a sub-block t, four in scales_l and two in scales_h
 *             x = d * (scale[t] - 32) * table[q], nibbles as in IQ4_NL
 *
 * The twelve bytes of packed scales:
 *
 *     Q4_K, Q5_K    byte 0..3    2 high bits of scale 4+j | scale j, 6 bits
 *                   byte 4..7    2 high bits of least 4+j | least j, 6 bits
 *                   byte 8..11   least 4+j, 4 low bits    | scale 4+j, 4 low bits
 *     Q3_K          byte 0..7    scale 8+j, 4 low bits    | scale j, 4 low bits
 *                   byte 8..11   2 high bits each of scales 12+j, 8+j, 4+j, j
 *
 * Exactness. A half is an integer of at most 11 significant bits times a power
 * of two, and no format multiplies it by more than 12 bits of integers (Q6_K:
 * 7 of the scale and 5 of q; IQ4_XS: 5 and 7), so every product fits the 24
 * bits of a float and rounds nowhere, in any order. Where something is added
 * (m, dmin), the exact sum is a multiple of 2^-24 below 2^28, which a double
 * holds. So each value has one rounding, the last: fusing a product with the
 * sum (gcc contracts a * b + c by default) or computing in wider registers
 * changes no bit, and nothing has to forbid either.
 *
 * Cost: one pass. Cannot fail: any bytes decode to something, with infinite
 * or NaN scales to infinities or NaN.
 * ======================================================================== */

typedef struct dendp_type {
    uint32_t id; /* as in the file */
    const char *name;
    uint32_t block_elems, block_bytes;
    /* blocks [n_blocks][block_bytes], any alignment -> out [n_blocks][block_elems] */
    void (*decode)(const void *blocks, uint64_t n_blocks, float *out);
} dendp_type;

enum {
    DENDP_TYPE_F32 = 0,
    DENDP_TYPE_F16 = 1,
    DENDP_TYPE_Q4_0 = 2,
    DENDP_TYPE_Q4_1 = 3,
    DENDP_TYPE_Q5_0 = 6,
    DENDP_TYPE_Q5_1 = 7,
    DENDP_TYPE_Q8_0 = 8,
    DENDP_TYPE_Q2_K = 10,
    DENDP_TYPE_Q3_K = 11,
    DENDP_TYPE_Q4_K = 12,
    DENDP_TYPE_Q5_K = 13,
    DENDP_TYPE_Q6_K = 14,
    DENDP_TYPE_IQ4_NL = 20,
    DENDP_TYPE_IQ4_XS = 23,
    DENDP_TYPE_BF16 = 30
};

/* The 16 levels of IQ4_NL and IQ4_XS: finer near zero, as weights are. */
static const int8_t dendp_iq4_levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                            1,    13,   25,  38,  53,  69,  89,  113};

/* A byte read as a two's-complement integer. */
static int32_t dendp_signed8(unsigned char b) {
    return b < 128 ? (int32_t)b : (int32_t)b - 256;
}

static float dendp_load_f16(const unsigned char *p) {
    return dendp_f16_to_f32(dendp_load16(p));
}

/* -- one value a block ------------------------------------------------------ */

static void dendp_decode_f32(const void *blocks, uint64_t n_blocks, float *out) {
    const unsigned char *p = (const unsigned char *)blocks;
    uint64_t i;
    for (i = 0; i < n_blocks; i++) {
        uint32_t bits = dendp_load32(p + i * 4);
        memcpy(out + i, &bits, 4); /* as bits: a signalling NaN stays what it is */
    }
}

static void dendp_decode_f16(const void *blocks, uint64_t n_blocks, float *out) {
    const unsigned char *p = (const unsigned char *)blocks;
    uint64_t i;
    for (i = 0; i < n_blocks; i++) {
        out[i] = dendp_load_f16(p + i * 2);
    }
}

static void dendp_decode_bf16(const void *blocks, uint64_t n_blocks, float *out) {
    const unsigned char *p = (const unsigned char *)blocks;
    uint64_t i;
    for (i = 0; i < n_blocks; i++) {
        uint32_t bits = (uint32_t)dendp_load16(p + i * 2) << 16;
        memcpy(out + i, &bits, 4);
    }
}

/* -- 32 values a block ------------------------------------------------------ */

static void dendp_decode_q4_0(const void *blocks, uint64_t n_blocks, float *out) {
    const unsigned char *p = (const unsigned char *)blocks;
    uint64_t i;
    int j;
    for (i = 0; i < n_blocks; i++, p += 18, out += 32) {
        float d = dendp_load_f16(p);
        for (j = 0; j < 16; j++) {
            out[j] = d * (float)((p[2 + j] & 15) - 8);
            out[j + 16] = d * (float)((p[2 + j] >> 4) - 8);
        }
    }
}

static void dendp_decode_q4_1(const void *blocks, uint64_t n_blocks, float *out) {
    const unsigned char *p = (const unsigned char *)blocks;
    uint64_t i;
    int j;
    for (i = 0; i < n_blocks; i++, p += 20, out += 32) {
        float d = dendp_load_f16(p), m = dendp_load_f16(p + 2);
        for (j = 0; j < 16; j++) {
            out[j] = d * (float)(p[4 + j] & 15) + m;
            out[j + 16] = d * (float)(p[4 + j] >> 4) + m;
        }
    }
}

/* The five bits of value j + 16 * high, j < 16: a nibble, and a bit of qh. */
static int32_t dendp_q5(const unsigned char *qs, uint32_t qh, int j, int high) {
    uint32_t nibble = high ? (uint32_t)qs[j] >> 4 : (uint32_t)qs[j] & 15u;
    return (int32_t)(nibble | (qh >> (j + 16 * high) & 1u) << 4);
}

static void dendp_decode_q5_0(const void *blocks, uint64_t n_blocks, float *out) {
    const unsigned char *p = (const unsigned char *)blocks;
    uint64_t i;
    int j;
    for (i = 0; i < n_blocks; i++, p += 22, out += 32) {
        float d = dendp_load_f16(p);
        uint32_t qh = dendp_load32(p + 2);
        for (j = 0; j < 16; j++) {
            out[j] = d * (float)(dendp_q5(p + 6, qh, j, 0) - 16);
            out[j + 16] = d * (float)(dendp_q5(p + 6, qh, j, 1) - 16);
        }
    }
}

static void dendp_decode_q5_1(const void *blocks, uint64_t n_blocks, float *out) {
    const unsigned char *p = (const unsigned char *)blocks;
    uint64_t i;
    int j;
    for (i = 0; i < n_blocks; i++, p += 24, out += 32) {
        float d = dendp_load_f16(p), m = dendp_load_f16(p + 2);
        uint32_t qh = dendp_load32(p + 4);
        for (j = 0; j < 16; j++) {
            out[j] = d * (float)dendp_q5(p + 8, qh, j, 0) + m;
            out[j + 16] = d * (float)dendp_q5(p + 8, qh, j, 1) + m;
        }
    }
}

static void dendp_decode_q8_0(const void *blocks, uint64_t n_blocks, float *out) {
    const unsigned char *p = (const unsigned char *)blocks;
    uint64_t i;
    int j;
    for (i = 0; i < n_blocks; i++, p += 34, out += 32) {
        float d = dendp_load_f16(p);
        for (j = 0; j < 32; j++) {
            out[j] = d * (float)dendp_signed8(p[2 + j]);
        }
    }
}

/* 32 values of the two IQ4 formats: qs [16] nibbles, d times a level -> out [32]. */
static void dendp_iq4_lane(const unsigned char *qs, float d, float *out) {
    int j;
    for (j = 0; j < 16; j++) {
        out[j] = d * (float)dendp_iq4_levels[qs[j] & 15];
        out[j + 16] = d * (float)dendp_iq4_levels[qs[j] >> 4];
    }
}

static void dendp_decode_iq4_nl(const void *blocks, uint64_t n_blocks, float *out) {
    const unsigned char *p = (const unsigned char *)blocks;
    uint64_t i;
    for (i = 0; i < n_blocks; i++, p += 18, out += 32) {
        dendp_iq4_lane(p + 2, dendp_load_f16(p), out);
    }
}

/* -- 256 values a block ------------------------------------------------------ */

static void dendp_decode_q2_k(const void *blocks, uint64_t n_blocks, float *out) {
    const unsigned char *p = (const unsigned char *)blocks;
    uint64_t i;
    int e;
    for (i = 0; i < n_blocks; i++, p += 84, out += 256) {
        const unsigned char *scales = p, *qs = p + 16;
        float d = dendp_load_f16(p + 80), dmin = dendp_load_f16(p + 82);
        for (e = 0; e < 256; e++) {
            int q = qs[e / 128 * 32 + e % 32] >> (e % 128 / 32 * 2) & 3;
            out[e] = d * (float)(scales[e / 16] & 15) * (float)q - dmin * (float)(scales[e / 16] >> 4);
        }
    }
}

static void dendp_decode_q3_k(const void *blocks, uint64_t n_blocks, float *out) {
    const unsigned char *p = (const unsigned char *)blocks;
    uint64_t i;
    int e;
    for (i = 0; i < n_blocks; i++, p += 110, out += 256) {
        const unsigned char *hmask = p, *qs = p + 32, *packed = p + 96;
        float d = dendp_load_f16(p + 108);
        for (e = 0; e < 256; e++) {
            int s = e / 16;
            int low = s < 8 ? packed[s] & 15 : packed[s - 8] >> 4;
            int scale = (low | (packed[8 + s % 4] >> (s / 4 * 2) & 3) << 4) - 32;
            int q = qs[e / 128 * 32 + e % 32] >> (e % 128 / 32 * 2) & 3;
            q -= hmask[e % 32] >> (e / 32) & 1 ? 0 : 4;
            out[e] = d * (float)scale * (float)q;
        }
    }
}

/* Unpacks scale and least value of sub-block t < 8 of Q4_K and Q5_K. */
static void dendp_k4_scale(const unsigned char *packed, int t, int *scale, int *least) {
    if (t < 4) {
        *scale = packed[t] & 63;
        *least = packed[t + 4] & 63;
    } else {
        *scale = (packed[t + 4] & 15) | packed[t - 4] >> 6 << 4;
        *least = packed[t + 4] >> 4 | packed[t] >> 6 << 4;
    }
}

static void dendp_decode_q4_k(const void *blocks, uint64_t n_blocks, float *out) {
    const unsigned char *p = (const unsigned char *)blocks;
    uint64_t i;
    int t, l;
    for (i = 0; i < n_blocks; i++, p += 144, out += 256) {
        float d = dendp_load_f16(p), dmin = dendp_load_f16(p + 2);
        for (t = 0; t < 8; t++) {
            const unsigned char *qs = p + 16 + t / 2 * 32;
            int scale, least;
            dendp_k4_scale(p + 4, t, &scale, &least);
            for (l = 0; l < 32; l++) {
                int q = qs[l] >> (t % 2 * 4) & 15;
                out[t * 32 + l] = d * (float)scale * (float)q - dmin * (float)least;
            }
        }
    }
}

static void dendp_decode_q5_k(const void *blocks, uint64_t n_blocks, float *out) {
    const unsigned char *p = (const unsigned char *)blocks;
    uint64_t i;
    int t, l;
    for (i = 0; i < n_blocks; i++, p += 176, out += 256) {
        const unsigned char *qh = p + 16;
        float d = dendp_load_f16(p), dmin = dendp_load_f16(p + 2);
        for (t = 0; t < 8; t++) {
            const unsigned char *qs = p + 48 + t / 2 * 32;
            int scale, least;
            dendp_k4_scale(p + 4, t, &scale, &least);
            for (l = 0; l < 32; l++) {
                int q = (qs[l] >> (t % 2 * 4) & 15) | (qh[l] >> t & 1) << 4;
                out[t * 32 + l] = d * (float)scale * (float)q - dmin * (float)least;
            }
        }
    }
}

static void dendp_decode_q6_k(const void *blocks, uint64_t n_blocks, float *out) {
    const unsigned char *p = (const unsigned char *)blocks;
    uint64_t i;
    int e;
    for (i = 0; i < n_blocks; i++, p += 210, out += 256) {
        const unsigned char *ql = p, *qh = p + 128, *scales = p + 192;
        float d = dendp_load_f16(p + 208);
        for (e = 0; e < 256; e++) {
            int h = e / 128, g = e % 128 / 32, l = e % 32;
            int q = (ql[h * 64 + g % 2 * 32 + l] >> (g / 2 * 4) & 15) | (qh[h * 32 + l] >> (g * 2) & 3) << 4;
            out[e] = d * (float)dendp_signed8(scales[e / 16]) * (float)(q - 32);
        }
    }
}

static void dendp_decode_iq4_xs(const void *blocks, uint64_t n_blocks, float *out) {
    const unsigned char *p = (const unsigned char *)blocks;
    uint64_t i;
    int t;
    for (i = 0; i < n_blocks; i++, p += 136, out += 256) {
        float d = dendp_load_f16(p);
        int scales_h = dendp_load16(p + 2);
        for (t = 0; t < 8; t++) {
            int scale = (p[4 + t / 2] >> (t % 2 * 4) & 15) | (scales_h >> (t * 2) & 3) << 4;
            dendp_iq4_lane(p + 8 + t * 16, d * (float)(scale - 32), out + t * 32);
        }
    }
}

/* -- the table ---------------------------------------------------------------- */

static const dendp_type dendp_types[] = {
    {DENDP_TYPE_F32, "F32", 1, 4, dendp_decode_f32},
    {DENDP_TYPE_F16, "F16", 1, 2, dendp_decode_f16},
    {DENDP_TYPE_Q4_0, "Q4_0", 32, 18, dendp_decode_q4_0},
    {DENDP_TYPE_Q4_1, "Q4_1", 32, 20, dendp_decode_q4_1},
    {DENDP_TYPE_Q5_0, "Q5_0", 32, 22, dendp_decode_q5_0},
    {DENDP_TYPE_Q5_1, "Q5_1", 32, 24, dendp_decode_q5_1},
    {DENDP_TYPE_Q8_0, "Q8_0", 32, 34, dendp_decode_q8_0},
    {DENDP_TYPE_Q2_K, "Q2_K", 256, 84, dendp_decode_q2_k},
    {DENDP_TYPE_Q3_K, "Q3_K", 256, 110, dendp_decode_q3_k},
    {DENDP_TYPE_Q4_K, "Q4_K", 256, 144, dendp_decode_q4_k},
    {DENDP_TYPE_Q5_K, "Q5_K", 256, 176, dendp_decode_q5_k},
    {DENDP_TYPE_Q6_K, "Q6_K", 256, 210, dendp_decode_q6_k},
    {DENDP_TYPE_IQ4_NL, "IQ4_NL", 32, 18, dendp_decode_iq4_nl},
    {DENDP_TYPE_IQ4_XS, "IQ4_XS", 256, 136, dendp_decode_iq4_xs},
    {DENDP_TYPE_BF16, "BF16", 1, 2, dendp_decode_bf16},
};

#define DENDP_N_TYPES (sizeof dendp_types / sizeof dendp_types[0])

/* The type of a file's id, or NULL when this engine does not read it. */
static const dendp_type *dendp_type_find(uint32_t id) {
    size_t i;
    for (i = 0; i < DENDP_N_TYPES; i++) {
        if (dendp_types[i].id == id) {
            return &dendp_types[i];
        }
    }
    return NULL;
}

/* Why dendp_type_find has no entry: names the formats that exist elsewhere. Never NULL. */
static const char *dendp_type_refusal(uint32_t id) {
    switch (id) {
    case 9:
        return "tensor type Q8_1 is not supported";
    case 15:
        return "tensor type Q8_K is not supported";
    case 16:
        return "tensor type IQ2_XXS is not supported";
    case 17:
        return "tensor type IQ2_XS is not supported";
    case 18:
        return "tensor type IQ3_XXS is not supported";
    case 19:
        return "tensor type IQ1_S is not supported";
    case 21:
        return "tensor type IQ3_S is not supported";
    case 22:
        return "tensor type IQ2_S is not supported";
    case 24:
    case 25:
    case 26:
    case 27:
        return "integer tensors are not supported";
    case 28:
        return "tensor type F64 is not supported";
    case 29:
        return "tensor type IQ1_M is not supported";
    case 34:
        return "tensor type TQ1_0 is not supported";
    case 35:
        return "tensor type TQ2_0 is not supported";
    case 39:
        return "tensor type MXFP4 is not supported";
    default:
        return "unknown tensor type";
    }
}

/* -- floats to blocks: what a load may ask for --------------------------------- */

/* How far from zero a block of 32 reaches: the greatest magnitude, and the value that has it first. */
static float dendp_block_reach(const float *in, float *value) {
    float most = 0.0f;
    int j;
    *value = in[0];
    for (j = 0; j < 32; j++) {
        float magnitude = in[j] < 0.0f ? -in[j] : in[j];
        if (magnitude > most) {
            most = magnitude;
            *value = in[j];
        }
    }
    return most;
}

/* A float to the nearest integer, halves away from zero, cut to [-127, 127]. In
 * integers, so that no compiler can fuse the product that gave x into a sum. */
static int32_t dendp_round8(float x) {
    uint32_t bits = dendp_f32_bits(x), exponent = bits >> 23 & 255u, m = (bits & 0x7fffffu) | 0x800000u;
    int32_t q = 0;
    if (exponent >= 127 + 7) {
        q = 127; /* 128 and more, infinity, NaN */
    } else if (exponent >= 127 - 1) {
        uint32_t shift = 127 + 23 - exponent; /* 17 to 24 */
        q = (int32_t)((m + ((uint32_t)1 << (shift - 1))) >> shift);
        q = q > 127 ? 127 : q;
    }
    return bits >> 31 ? -q : q;
}

/* in [n_blocks][32] -> Q8_0: d is the reach / 127. The bits are those of the gguf package's quantize. */
static void dendp_encode_q8_0(const float *in, uint64_t n_blocks, unsigned char *out) {
    for (; n_blocks > 0; n_blocks--, in += 32, out += 34) {
        float first, d = dendp_block_reach(in, &first) / 127.0f, inverse = d == 0.0f ? 0.0f : 1.0f / d;
        uint32_t half = dendp_f32_to_f16(d);
        int j;
        out[0] = (unsigned char)half;
        out[1] = (unsigned char)(half >> 8);
        for (j = 0; j < 32; j++) {
            out[2 + j] = (unsigned char)(dendp_round8(in[j] * inverse) & 255);
        }
    }
}

/* x / d + 8.5 of Q4_0 in single precision, cut to a whole number from 0 to 15.
 * The sum of doubles is exact, and `half` is half a float's last place there:
 * what a float would round up to a whole number reaches it too. A sum of floats
 * might be fused with the product, which rounds otherwise. */
static uint32_t dendp_round4(float x, float inverse) {
    float quotient = x * inverse;
    double v = (double)quotient + 8.5, half = 1.0 / (1 << 25);
    if (!(v >= 0.5)) { /* NaN too */
        return 0;
    }
    if (v >= 15.0) {
        return 15;
    }
    half *= v >= 8.0 ? 16.0 : v >= 4.0 ? 8.0 : v >= 2.0 ? 4.0 : v >= 1.0 ? 2.0 : 1.0;
    return (uint32_t)(v + half);
}

/* in [n_blocks][32] -> Q4_0: d is the value that reaches furthest / -8. The bits are those of the gguf package. */
static void dendp_encode_q4_0(const float *in, uint64_t n_blocks, unsigned char *out) {
    for (; n_blocks > 0; n_blocks--, in += 32, out += 18) {
        float first, d, inverse;
        uint32_t half;
        int j;
        (void)dendp_block_reach(in, &first);
        d = first / -8.0f;
        inverse = d == 0.0f ? 0.0f : 1.0f / d;
        half = dendp_f32_to_f16(d);
        out[0] = (unsigned char)half;
        out[1] = (unsigned char)(half >> 8);
        for (j = 0; j < 16; j++) {
            out[2 + j] =
                (unsigned char)(dendp_round4(in[j], inverse) | dendp_round4(in[j + 16], inverse) << 4);
        }
    }
}
