/* ==========================================================================
 * >>03.07 MATMUL, NEON: a panel's 16 lanes in four quarters
 * ==========================================================================
 * AArch64 with its byte dot products (an extension of ARMv8.2, part of the
 * base since ARMv8.4). One instruction makes 16 products and sums them by fours:
 *
 *     sdot    4 x  i32 += s8*s8 + s8*s8 + s8*s8 + s8*s8     exact
 *
 * and its second factor is one four of a register, named by number. So the 32
 * bytes of an activation block stay in two registers, and no broadcast is
 * needed. Both operands are signed: codes of 4 to 6 bits are as they are, an
 * 8-bit code loses its excess of 128 by turning its top bit, and with it the
 * centre.
 *
 * A vector of a panel is 64 bytes, four registers. The quarters of 4 lanes are
 * taken one after the other:
 *
 *     for each block of 32 k
 *         scales of all 16 lanes, as floats
 *         for each quarter
 *             8 rows' sums in 8 registers: 4 times (load, unpack, 2 sdot a row)
 *             sums to floats, scaled, added to y in the first-level cache
 *
 * 8 sums and 16 registers of activations leave 8 of the 32 for codes. A
 * quarter costs 8 sdot a row and 3 or 4 float operations, and for all rows
 * together 8 operations to unpack 4 bits, up to 28 with a fifth bit. Rows come
 * as 8, or as 4 and 1 to 3. Q6_K, with two scales, reads a quarter's codes
 * twice, which keeps its two sets of sums apart in time.
 *
 * sdot stands as one line of assembly, because compilers differ on whether its
 * intrinsic exists in a function that asks for the extension by attribute.
 * What is not of the quantised forms needs no extension.
 *
 * Results are those of the scalar room, bit for bit.
 * ======================================================================== */

#if DENDP_ARM64

#if defined(__ARM_FEATURE_DOTPROD)
#define DENDP_TARGET_NEON /* the whole program may use them */
#elif defined(__clang__)
#define DENDP_TARGET_NEON __attribute__((target("dotprod")))
#else
#define DENDP_TARGET_NEON __attribute__((target("arch=armv8.2-a+dotprod")))
#endif
#define DENDP_INLINE_NEON static inline __attribute__((always_inline))

/* A value that no optimiser looks through: dendp_keep for a register. */
#define DENDP_FIX_NEON(v) __asm__("" : "+w"(v));

/* sum += products of w with four number `four` of q. */
#define DENDP_SDOT(sum, w, q, four)                                                                          \
    __asm__("sdot %0.4s, %1.16b, %2.4b[" #four "]" : "+w"(sum) : "w"(w), "w"(q));

/* Runs M(r, j) for rows 0 ... R-1, R a constant up to 4, or up to 8. */
#define DENDP_EACH4_NEON(R, M, j)                                                                            \
    M(0, j)                                                                                                  \
    if ((R) > 1) {                                                                                           \
        M(1, j)                                                                                              \
    }                                                                                                        \
    if ((R) > 2) {                                                                                           \
        M(2, j)                                                                                              \
    }                                                                                                        \
    if ((R) > 3) {                                                                                           \
        M(3, j)                                                                                              \
    }
#define DENDP_EACH8_NEON(R, M, j)                                                                            \
    DENDP_EACH4_NEON(R, M, j)                                                                                \
    if ((R) > 4) {                                                                                           \
        M(4, j) M(5, j) M(6, j) M(7, j)                                                                      \
    }

/* 4 halves -> floats. A macro, because a function of one target is not inlined into one of another. */
#define DENDP_HALVES4(p) vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)(const void *)(p))))

/* 16 bytes, unsigned or signed, -> floats out [16]. */
DENDP_TARGET_NEON DENDP_INLINE_NEON void dendp_bytes16_neon(const unsigned char *p, const int is_signed,
                                                            float *out) {
    uint8x16_t v = vld1q_u8(p);
    if (is_signed) {
        int16x8_t low = vmovl_s8(vget_low_s8(vreinterpretq_s8_u8(v)));
        int16x8_t high = vmovl_s8(vget_high_s8(vreinterpretq_s8_u8(v)));
        vst1q_f32(out, vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))));
        vst1q_f32(out + 4, vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))));
        vst1q_f32(out + 8, vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))));
        vst1q_f32(out + 12, vcvtq_f32_s32(vmovl_s16(vget_high_s16(high))));
    } else {
        uint16x8_t low = vmovl_u8(vget_low_u8(v)), high = vmovl_u8(vget_high_u8(v));
        vst1q_f32(out, vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))));
        vst1q_f32(out + 4, vcvtq_f32_u32(vmovl_u16(vget_high_u16(low))));
        vst1q_f32(out + 8, vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))));
        vst1q_f32(out + 12, vcvtq_f32_u32(vmovl_u16(vget_high_u16(high))));
    }
}

/* The two rows of lane values of a block, s its s part: a scale and a minimum,
 * or the two scales of Q6_K. */
DENDP_TARGET_NEON DENDP_INLINE_NEON void dendp_scales_neon(const dendp_form form, const unsigned char *header,
                                                           const unsigned char *s, float first[16],
                                                           float second[16]) {
    const dendp_form_layout *l = &dendp_form_layouts[form];
    const int q6 = form == DENDP_FORM_Q6_K;
    uint32_t i;
    if (l->header_bytes) { /* all products are exact */
        dendp_bytes16_neon(s, q6, first);
        dendp_bytes16_neon(s + 16, q6, second);
        for (i = 0; i < 16; i += 4) {
            float32x4_t d = DENDP_HALVES4(header + i * 2), v = vmulq_f32(d, vld1q_f32(first + i));
            DENDP_FIX_NEON(v)
            vst1q_f32(first + i, v);
            d = q6 ? d : vnegq_f32(DENDP_HALVES4(header + 32 + i * 2));
            v = vmulq_f32(d, vld1q_f32(second + i));
            DENDP_FIX_NEON(v)
            vst1q_f32(second + i, v);
        }
    } else {
        for (i = 0; i < 16; i += 4) {
            vst1q_f32(first + i, DENDP_HALVES4(s + i * 2));
            if (l->s_bytes == 64) {
                vst1q_f32(second + i, DENDP_HALVES4(s + 32 + i * 2));
            }
        }
    }
}

/* One panel against R rows of a tile.  a: row 0 of block 0, rows adjacent,
 * blocks a_stride apart.  y[r * ldy + i], i < 16. */
DENDP_TARGET_NEON DENDP_INLINE_NEON void dendp_rows_neon(const dendp_form form, const int R,
                                                         const unsigned char *panel, uint32_t n_blocks,
                                                         const dendp_act_block *a, size_t a_stride, float *y,
                                                         size_t ldy) {
    const dendp_form_layout *l = &dendp_form_layouts[form];
    const int h_bits = l->h_bytes == 128 ? 2 : l->h_bytes == 64 ? 1 : 0;
    const int q6 = form == DENDP_FORM_Q6_K, eight = l->q_bytes == 512, has_min = l->centre == 0;
    const int32_t centre = eight ? 0 : l->centre;
    const unsigned char *group = panel + l->header_bytes, *header = panel;
    const uint8x16_t top = vdupq_n_u8(0x80);
    const uint8x16_t mask = vdupq_n_u8((uint8_t)(h_bits == 2 ? 63 : h_bits == 1 ? 31 : 15));
    float sum[8][16], first[16], second[16];
    uint32_t t, c;
    int r;
    memset(sum, 0, (size_t)R * sizeof sum[0]);
    for (t = 0; t < n_blocks; t++, a += a_stride) {
        const unsigned char *q = group + t % 2 * l->q_bytes;
        const unsigned char *h = group + 2 * l->q_bytes + t % 2 * l->h_bytes;
        const unsigned char *s = group + 2 * (l->q_bytes + l->h_bytes) + t % 2 * l->s_bytes;
        int8x16_t low[8], high[8];
        int32_t start[8], start_high[8];
        dendp_scales_neon(form, header, s, first, second);
#define DENDP_OPEN(r, j)                                                                                     \
    low[r] = vld1q_s8(a[r].q);                                                                               \
    high[r] = vld1q_s8(a[r].q + 16);                                                                         \
    start[r] = centre * (q6 ? a[r].n_low : a[r].n);                                                          \
    start_high[r] = centre * (a[r].n - a[r].n_low);
        DENDP_EACH8_NEON(R, DENDP_OPEN, 0)
#undef DENDP_OPEN
        for (c = 0; c < 16; c += 4, q += 16, h += 16) {
            uint8x16_t f = vdupq_n_u8(0), g = f, v, w;
            float32x4_t one = vld1q_f32(first + c), two = one, part[8];
            int32x4_t d[8];
            if (h_bits) {
                f = vld1q_u8(h);
                g = h_bits == 2 ? vld1q_u8(h + 64) : vshrq_n_u8(f, 4);
            }
            if (has_min || q6) {
                two = vld1q_f32(second + c);
            }
#define DENDP_START(r, j) d[r] = vld1q_dup_s32(start + (r));
            DENDP_EACH8_NEON(R, DENDP_START, 0)
#undef DENDP_START
/* k 4j ...: the low codes of vector j. A fifth bit, or two more, are the lowest of f, which moves on by as many. */
#define DENDP_DOT(r, j) DENDP_SDOT(d[r], w, low[r], j)
#define DENDP_LOW(j)                                                                                         \
    v = vld1q_u8(q + (j)*64);                                                                                \
    if (eight) {                                                                                             \
        w = veorq_u8(v, top);                                                                                \
    } else if (h_bits) {                                                                                     \
        w = vandq_u8(vsliq_n_u8(v, f, 4), mask);                                                             \
        f = h_bits == 2 ? vshrq_n_u8(f, 2) : vshrq_n_u8(f, 1);                                               \
    } else {                                                                                                 \
        w = vandq_u8(v, mask);                                                                               \
    }                                                                                                        \
    DENDP_EACH8_NEON(R, DENDP_DOT, j)
/* k 16 + 4j ...: the high codes of v, the same vector. */
#define DENDP_DOT_HIGH(r, j) DENDP_SDOT(d[r], w, high[r], j)
#define DENDP_HIGH(j)                                                                                        \
    if (eight) {                                                                                             \
        w = veorq_u8(vld1q_u8(q + ((j) + 4) * 64), top);                                                     \
    } else if (h_bits) {                                                                                     \
        w = vandq_u8(vsliq_n_u8(vshrq_n_u8(v, 4), g, 4), mask);                                              \
        g = h_bits == 2 ? vshrq_n_u8(g, 2) : vshrq_n_u8(g, 1);                                               \
    } else {                                                                                                 \
        w = vshrq_n_u8(v, 4);                                                                                \
    }                                                                                                        \
    DENDP_EACH8_NEON(R, DENDP_DOT_HIGH, j)
#define DENDP_HIGH_AGAIN(j)                                                                                  \
    v = vld1q_u8(q + (j)*64);                                                                                \
    DENDP_HIGH(j)
            if (q6) {
                DENDP_LOW(0)
                DENDP_LOW(1)
                DENDP_LOW(2)
                DENDP_LOW(3)
#define DENDP_FIRST(r, j)                                                                                    \
    part[r] = vmulq_f32(vcvtq_f32_s32(d[r]), one);                                                           \
    d[r] = vld1q_dup_s32(start_high + (r));
                DENDP_EACH8_NEON(R, DENDP_FIRST, 0)
#undef DENDP_FIRST
                DENDP_HIGH_AGAIN(0)
                DENDP_HIGH_AGAIN(1)
                DENDP_HIGH_AGAIN(2)
                DENDP_HIGH_AGAIN(3)
#define DENDP_SECOND(r, j)                                                                                   \
    part[r] = vfmaq_f32(part[r], vcvtq_f32_s32(d[r]), two);                                                  \
    vst1q_f32(sum[r] + c, vfmaq_f32(vld1q_f32(sum[r] + c), part[r], vld1q_dup_f32(&a[r].scale)));
                DENDP_EACH8_NEON(R, DENDP_SECOND, 0)
#undef DENDP_SECOND
            } else {
                DENDP_LOW(0)
                DENDP_HIGH(0)
                DENDP_LOW(1)
                DENDP_HIGH(1)
                DENDP_LOW(2)
                DENDP_HIGH(2)
                DENDP_LOW(3)
                DENDP_HIGH(3)
#define DENDP_FOLD(r, j)                                                                                     \
    part[r] =                                                                                                \
        vfmaq_f32(vld1q_f32(sum[r] + c), vcvtq_f32_s32(d[r]), vmulq_f32(one, vld1q_dup_f32(&a[r].scale)));   \
    if (has_min) {                                                                                           \
        part[r] = vfmaq_f32(part[r], two, vld1q_dup_f32(&a[r].min_factor));                                  \
    }                                                                                                        \
    vst1q_f32(sum[r] + c, part[r]);
                DENDP_EACH8_NEON(R, DENDP_FOLD, 0)
#undef DENDP_FOLD
            }
#undef DENDP_HIGH_AGAIN
#undef DENDP_HIGH
#undef DENDP_DOT_HIGH
#undef DENDP_LOW
#undef DENDP_DOT
        }
        if (t % 2) {
            group += 2 * (l->q_bytes + l->h_bytes + l->s_bytes);
            if (t % 8 == 7 && l->header_bytes) {
                header = group;
                group += l->header_bytes;
            }
        }
    }
    for (r = 0; r < R; r++) {
        memcpy(y + (size_t)r * ldy, sum[r], sizeof sum[r]);
    }
}

/* One panel against n_rows rows in tiles: y[r * ldy + i], i < 16. */
#define DENDP_QUANT_NEON(name, form)                                                                         \
    DENDP_TARGET_NEON static void name(const unsigned char *panel, uint32_t n_blocks,                        \
                                       const dendp_act_block *act, uint32_t n_rows, float *y, size_t ldy) {  \
        uint32_t tile, r;                                                                                    \
        for (tile = 0; tile < n_rows; tile += DENDP_TILE_ROWS) {                                             \
            uint32_t rows = dendp_min_u32(DENDP_TILE_ROWS, n_rows - tile), left;                             \
            const dendp_act_block *a = act + (size_t)tile * n_blocks;                                        \
            float *to = y + tile * ldy;                                                                      \
            for (r = 0; r < rows; r += left == 8 ? 8 : dendp_min_u32(left, 4)) {                             \
                left = rows - r;                                                                             \
                if (left == 8) {                                                                             \
                    dendp_rows_neon(form, 8, panel, n_blocks, a, rows, to, ldy);                             \
                } else if (left >= 4) {                                                                      \
                    dendp_rows_neon(form, 4, panel, n_blocks, a + r, rows, to + r * ldy, ldy);               \
                } else if (left == 3) {                                                                      \
                    dendp_rows_neon(form, 3, panel, n_blocks, a + r, rows, to + r * ldy, ldy);               \
                } else if (left == 2) {                                                                      \
                    dendp_rows_neon(form, 2, panel, n_blocks, a + r, rows, to + r * ldy, ldy);               \
                } else {                                                                                     \
                    dendp_rows_neon(form, 1, panel, n_blocks, a + r, rows, to + r * ldy, ldy);               \
                }                                                                                            \
            }                                                                                                \
        }                                                                                                    \
    }
DENDP_QUANT_NEON(dendp_quant_q4_0_neon, DENDP_FORM_Q4_0)
DENDP_QUANT_NEON(dendp_quant_q4_1_neon, DENDP_FORM_Q4_1)
DENDP_QUANT_NEON(dendp_quant_q5_0_neon, DENDP_FORM_Q5_0)
DENDP_QUANT_NEON(dendp_quant_q5_1_neon, DENDP_FORM_Q5_1)
DENDP_QUANT_NEON(dendp_quant_q8_0_neon, DENDP_FORM_Q8_0)
DENDP_QUANT_NEON(dendp_quant_q4_k_neon, DENDP_FORM_Q4_K)
DENDP_QUANT_NEON(dendp_quant_q5_k_neon, DENDP_FORM_Q5_K)
DENDP_QUANT_NEON(dendp_quant_q6_k_neon, DENDP_FORM_Q6_K)

/* -- float forms -------------------------------------------------------------- */

#define DENDP_FLOAT_STEP_NEON 64 /* k after which the next quarter or row takes its turn: a multiple of 4 */

/* 4 weights of any float form, from weight `index` of the panel on. */
DENDP_INLINE_NEON float32x4_t dendp_weights4(const dendp_form form, const unsigned char *panel,
                                             size_t index) {
    if (form == DENDP_FORM_F32) {
        return vld1q_f32((const float *)(const void *)(panel + index * 4));
    }
    if (form == DENDP_FORM_F16) {
        return DENDP_HALVES4(panel + index * 2);
    }
    return vreinterpretq_f32_u32(
        vshll_n_u16(vld1_u16((const uint16_t *)(const void *)(panel + index * 2)), 16));
}

/* n weights k from w on, [k][16]: R times 4 lanes, each with its chain for every
 * k mod 4 (`stride` apart), whose factors are the four numbers of a register of
 * x. With `lanes` the R = 4 are the quarters of one row, else rows that share
 * one quarter; row_stride lies between the chains of the R. */
DENDP_INLINE_NEON void dendp_chains_neon(const dendp_form form, const int lanes, const int R,
                                         const unsigned char *w, uint32_t n, const float *x, size_t ldx,
                                         float *chain, size_t row_stride, size_t stride) {
    float32x4_t s0[4], s1[4], s2[4], s3[4];
    uint32_t i;
#define DENDP_X(r) (x + (lanes ? 0 : (r)*ldx) + i)
#define DENDP_W(r, k) dendp_weights4(form, w, ((size_t)i + (k)) * 16 + (lanes ? (r)*4 : 0))
#define DENDP_OPEN(r, j)                                                                                     \
    s0[r] = vld1q_f32(chain + (r)*row_stride);                                                               \
    s1[r] = vld1q_f32(chain + (r)*row_stride + stride);                                                      \
    s2[r] = vld1q_f32(chain + (r)*row_stride + 2 * stride);                                                  \
    s3[r] = vld1q_f32(chain + (r)*row_stride + 3 * stride);
#define DENDP_ADD(r, j)                                                                                      \
    v = vld1q_f32(DENDP_X(r));                                                                               \
    s0[r] = vfmaq_laneq_f32(s0[r], DENDP_W(r, 0), v, 0);                                                     \
    s1[r] = vfmaq_laneq_f32(s1[r], DENDP_W(r, 1), v, 1);                                                     \
    s2[r] = vfmaq_laneq_f32(s2[r], DENDP_W(r, 2), v, 2);                                                     \
    s3[r] = vfmaq_laneq_f32(s3[r], DENDP_W(r, 3), v, 3);
#define DENDP_REST(r, j)                                                                                     \
    s0[r] = vfmaq_f32(s0[r], DENDP_W(r, 0), vld1q_dup_f32(DENDP_X(r)));                                      \
    if (i + 1 < n) {                                                                                         \
        s1[r] = vfmaq_f32(s1[r], DENDP_W(r, 1), vld1q_dup_f32(DENDP_X(r) + 1));                              \
    }                                                                                                        \
    if (i + 2 < n) {                                                                                         \
        s2[r] = vfmaq_f32(s2[r], DENDP_W(r, 2), vld1q_dup_f32(DENDP_X(r) + 2));                              \
    }
#define DENDP_CLOSE(r, j)                                                                                    \
    vst1q_f32(chain + (r)*row_stride, s0[r]);                                                                \
    vst1q_f32(chain + (r)*row_stride + stride, s1[r]);                                                       \
    vst1q_f32(chain + (r)*row_stride + 2 * stride, s2[r]);                                                   \
    vst1q_f32(chain + (r)*row_stride + 3 * stride, s3[r]);
    DENDP_EACH4_NEON(R, DENDP_OPEN, 0)
    for (i = 0; i + 4 <= n; i += 4) {
        float32x4_t v;
        DENDP_EACH4_NEON(R, DENDP_ADD, 0)
    }
    if (i < n) {
        DENDP_EACH4_NEON(R, DENDP_REST, 0)
    }
    DENDP_EACH4_NEON(R, DENDP_CLOSE, 0)
#undef DENDP_CLOSE
#undef DENDP_REST
#undef DENDP_ADD
#undef DENDP_OPEN
#undef DENDP_W
#undef DENDP_X
}

/* chain [rows][4][16]. A row alone streams through the panel, all quarters at
 * once; more rows share what they load, by quarters of 64 k that stay in cache. */
DENDP_INLINE_NEON void dendp_float_panel_neon(const dendp_form form, const unsigned char *panel, uint32_t k,
                                              const float *x, size_t ldx, uint32_t n_rows, float *y,
                                              size_t ldy) {
    float chain[DENDP_MATMUL_ROWS * 64];
    const uint32_t bytes = dendp_float_bytes(form);
    uint32_t first, r, c;
    memset(chain, 0, n_rows * 64 * sizeof(float));
    if (n_rows == 1) {
        dendp_chains_neon(form, 1, 4, panel, k, x, 0, chain, 4, 16);
    }
    for (first = 0; first < k && n_rows > 1; first += DENDP_FLOAT_STEP_NEON) {
        uint32_t n = dendp_min_u32(DENDP_FLOAT_STEP_NEON, k - first);
        const unsigned char *w = panel + (size_t)first * 16 * bytes;
        for (r = 0; r < n_rows; r += 4) {
            for (c = 0; c < 16; c += 4) {
                const float *from = x + r * ldx + first;
                float *to = chain + (size_t)r * 64 + c;
                switch (n_rows - r) {
                case 1:
                    dendp_chains_neon(form, 0, 1, w + c * bytes, n, from, ldx, to, 64, 16);
                    break;
                case 2:
                    dendp_chains_neon(form, 0, 2, w + c * bytes, n, from, ldx, to, 64, 16);
                    break;
                case 3:
                    dendp_chains_neon(form, 0, 3, w + c * bytes, n, from, ldx, to, 64, 16);
                    break;
                default:
                    dendp_chains_neon(form, 0, 4, w + c * bytes, n, from, ldx, to, 64, 16);
                    break;
                }
            }
        }
    }
    for (r = 0; r < n_rows; r++) {
        for (c = 0; c < 16; c += 4) {
            const float *from = chain + r * 64 + c;
            float32x4_t a = vaddq_f32(vld1q_f32(from), vld1q_f32(from + 16));
            float32x4_t b = vaddq_f32(vld1q_f32(from + 32), vld1q_f32(from + 48));
            DENDP_FIX_NEON(a)
            DENDP_FIX_NEON(b)
            vst1q_f32(y + r * ldy + c, vaddq_f32(a, b));
        }
    }
}

#define DENDP_FLOAT_NEON(name, form)                                                                         \
    static void name(const unsigned char *panel, uint32_t k, const float *x, size_t ldx, uint32_t n_rows,    \
                     float *y, size_t ldy) {                                                                 \
        dendp_float_panel_neon(form, panel, k, x, ldx, n_rows, y, ldy);                                      \
    }
DENDP_FLOAT_NEON(dendp_float_f32_neon, DENDP_FORM_F32)
DENDP_FLOAT_NEON(dendp_float_f16_neon, DENDP_FORM_F16)
DENDP_FLOAT_NEON(dendp_float_bf16_neon, DENDP_FORM_BF16)

/* -- activations ---------------------------------------------------------------- */

/* Bits of |x|, NaN as 0 and infinities as the largest float. */
DENDP_INLINE_NEON uint32x4_t dendp_size4(uint32x4_t x) {
    uint32x4_t a = vbicq_u32(x, vdupq_n_u32(0x80000000u));
    uint32x4_t nan = vcgtq_u32(a, vdupq_n_u32(0x7f800000u));
    return vbicq_u32(vminq_u32(a, vdupq_n_u32(DENDP_ACT_MOST)), nan);
}

/* 8 values -> their codes, ties to even; the sizes as above. */
DENDP_INLINE_NEON int16x8_t dendp_codes8_neon(const float *x, uint32x4_t size0, uint32x4_t size1,
                                              float inverse) {
    const uint32x4_t sign = vdupq_n_u32(0x80000000u);
    float32x4_t a = vreinterpretq_f32_u32(vbslq_u32(sign, vreinterpretq_u32_f32(vld1q_f32(x)), size0));
    float32x4_t b = vreinterpretq_f32_u32(vbslq_u32(sign, vreinterpretq_u32_f32(vld1q_f32(x + 4)), size1));
    int32x4_t i = vcvtnq_s32_f32(vmulq_n_f32(a, inverse)), j = vcvtnq_s32_f32(vmulq_n_f32(b, inverse));
    return vcombine_s16(vmovn_s32(i), vmovn_s32(j));
}

static void dendp_act_block_neon(const float *x, dendp_act_block *out) {
    uint32x4_t size[8], m;
    int8x16_t low, high;
    int16x8_t pairs;
    int16x4_t sums, sums_high;
    uint32_t most, j;
    float amax, inverse;
    for (j = 0; j < 8; j++) {
        size[j] = dendp_size4(vreinterpretq_u32_f32(vld1q_f32(x + j * 4)));
    }
    m = vmaxq_u32(vmaxq_u32(size[0], size[1]), vmaxq_u32(size[2], size[3]));
    m = vmaxq_u32(m, vmaxq_u32(vmaxq_u32(size[4], size[5]), vmaxq_u32(size[6], size[7])));
    most = vmaxvq_u32(m);
    if (most < DENDP_ACT_LEAST) {
        dendp_act_zero(out);
        return;
    }
    amax = dendp_bits_f32(most);
    inverse = dendp_act_inverse(amax);
    low = vcombine_s8(vmovn_s16(dendp_codes8_neon(x, size[0], size[1], inverse)),
                      vmovn_s16(dendp_codes8_neon(x + 8, size[2], size[3], inverse)));
    high = vcombine_s8(vmovn_s16(dendp_codes8_neon(x + 16, size[4], size[5], inverse)),
                       vmovn_s16(dendp_codes8_neon(x + 24, size[6], size[7], inverse)));
    vst1q_s8(out->q, low);
    vst1q_s8(out->q + 16, high);
    /* pair sums, even and odd in turn, down to one of each in lanes 0 and 1 */
    pairs = vpaddlq_s8(low);
    sums = vadd_s16(vget_low_s16(pairs), vget_high_s16(pairs));
    sums = vneg_s16(vadd_s16(sums, vext_s16(sums, sums, 2)));
    pairs = vpaddlq_s8(high);
    sums_high = vadd_s16(vget_low_s16(pairs), vget_high_s16(pairs));
    sums_high = vadd_s16(sums_high, vext_s16(sums_high, sums_high, 2));
    sums_high = vsub_s16(sums, sums_high);
    out->p_low[0] = vget_lane_s16(sums, 0);
    out->p_low[1] = vget_lane_s16(sums, 1);
    out->p[0] = vget_lane_s16(sums_high, 0);
    out->p[1] = vget_lane_s16(sums_high, 1);
    out->n_low = out->p_low[0] + out->p_low[1];
    out->n = out->p[0] + out->p[1];
    out->scale = dendp_keep(amax * DENDP_ACT_127TH);
    out->min_factor = out->scale * (float)-out->n;
}

static void dendp_act_row_neon(const float *x, uint32_t k, uint32_t n_blocks, dendp_act_block *out,
                               size_t stride) {
    uint32_t t, whole = dendp_min_u32(n_blocks, k / 32);
    for (t = 0; t < whole; t++) {
        dendp_act_block_neon(x + t * 32, out + t * stride);
    }
    if (t < n_blocks) {
        dendp_act_row_scalar(x + (t * 32 < k ? t * 32 : 0), t * 32 < k ? k - t * 32 : 0, n_blocks - t,
                             out + t * stride, stride);
    }
}

#endif
