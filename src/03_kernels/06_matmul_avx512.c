/* ==========================================================================
 * >>03.06 MATMUL, AVX-512: a panel's 16 lanes in one register
 * ==========================================================================
 * With VNNI one instruction does what four did in the room above:
 *
 *     dpbusd    16 x  i32 += u8*s8 + u8*s8 + u8*s8 + u8*s8    exact
 *
 * so sums are 32 bits wide from the start and nothing can overflow. Codes are
 * the unsigned operand, as they lie in the panel; activations the signed one,
 * four bytes at a time, broadcast to all lanes by the load itself. 8 dpbusd,
 * one multiplication and one or two fused multiply-adds make a block of 32 k
 * and a row, and all of these share the same two ports: they are the cost.
 * Unpacking nibbles, starting sums at centre * n (a shift) and conversions run
 * beside them.
 *
 * There are 32 registers, so 8 rows fit with their integer sums and their
 * floats, and codes are unpacked in registers, once for all rows. Rows come as
 * 8, or as 4 and 1 to 3 (a tile of 6 is 4 + 2). Q6_K, with two scales, makes
 * two passes over a block and finds it in the first-level cache.
 *
 * Results are those of the scalar room, bit for bit. Where no such processor
 * is at hand, tests compile this room and the others of its kind against a
 * portable emulation of the intrinsics, under DEND_TEST_SIMDE.
 * ======================================================================== */

#if DENDP_X86

#if defined(DEND_TEST_SIMDE)
#define DENDP_TARGET_AVX512 /* the emulation is plain C */
#define DENDP_FIX512(v)
#define DENDP_AVX512_NEEDS 0u
#else
#define DENDP_TARGET_AVX512                                                                                  \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")))
/* A value that no optimiser looks through: dendp_keep for a register. */
#define DENDP_FIX512(v) __asm__("" : "+v"(v));
#define DENDP_AVX512_NEEDS ((uint32_t)DENDP_CPU_AVX512)
#endif
#define DENDP_INLINE_AVX512 DENDP_TARGET_AVX512 static inline __attribute__((always_inline))

/* Runs M for rows 0 ... R-1, R a constant. */
#define DENDP_EACH_ROW8(R, M)                                                                                \
    DENDP_EACH_ROW(R, M)                                                                                     \
    if ((R) > 4) {                                                                                           \
        M(4)                                                                                                 \
    }                                                                                                        \
    if ((R) > 5) {                                                                                           \
        M(5)                                                                                                 \
    }                                                                                                        \
    if ((R) > 6) {                                                                                           \
        M(6)                                                                                                 \
    }                                                                                                        \
    if ((R) > 7) {                                                                                           \
        M(7)                                                                                                 \
    }

/* Masked forms with all lanes on, here and below: gcc's plain ones pass an
 * undefined vector and, as C++, warn of it. The instructions are the same. */
#define DENDP_ALL_LANES ((__mmask16)0xffff)
#define DENDP_LEFT32(v, bits) _mm512_maskz_slli_epi32(DENDP_ALL_LANES, v, bits)

DENDP_INLINE_AVX512 __m512i dendp_load512(const void *p) {
    return _mm512_loadu_si512(p);
}

DENDP_INLINE_AVX512 __m512 dendp_floats16(__m512i v) {
    return _mm512_maskz_cvtepi32_ps(DENDP_ALL_LANES, v);
}

DENDP_INLINE_AVX512 __m512 dendp_halves16(const void *p) {
    return _mm512_maskz_cvtph_ps(DENDP_ALL_LANES, _mm256_loadu_si256((const __m256i *)p));
}

DENDP_INLINE_AVX512 __m512 dendp_bytes16(const void *p) {
    return dendp_floats16(_mm512_maskz_cvtepu8_epi32(DENDP_ALL_LANES, _mm_loadu_si128((const __m128i *)p)));
}

DENDP_INLINE_AVX512 __m512 dendp_signed16(const void *p) {
    return dendp_floats16(_mm512_maskz_cvtepi8_epi32(DENDP_ALL_LANES, _mm_loadu_si128((const __m128i *)p)));
}

DENDP_INLINE_AVX512 __m512i dendp_all16(const void *p) {
    int32_t v;
    memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}

/* One panel against R rows of a tile.  a: row 0 of block 0, rows adjacent,
 * blocks a_stride apart.  y[r * ldy + i], i < 16. */
DENDP_INLINE_AVX512 void dendp_rows_avx512(const dendp_form form, const int R, const unsigned char *panel,
                                           uint32_t n_blocks, const dendp_act_block *a, size_t a_stride,
                                           float *y, size_t ldy) {
    const dendp_form_layout *l = &dendp_form_layouts[form];
    const int h_bits = l->h_bytes == 128 ? 2 : l->h_bytes == 64 ? 1 : 0;
    const int has_min = l->centre == 0;
    const unsigned char *group = panel + l->header_bytes, *header = panel;
    const __m512i nibble = _mm512_set1_epi8(15);
    __m512 y0 = _mm512_setzero_ps(), y1 = y0, y2 = y0, y3 = y0, y4 = y0, y5 = y0, y6 = y0, y7 = y0;
    __m512i d0 = _mm512_setzero_si512(), d1 = d0, d2 = d0, d3 = d0, d4 = d0, d5 = d0, d6 = d0, d7 = d0;
    const uint32_t block_bytes = l->q_bytes + l->h_bytes + l->s_bytes;
    uint32_t t, i;
    for (t = 0; t < n_blocks; t++, a += a_stride) {
        const unsigned char *q = group + t % 2 * l->q_bytes;
        const unsigned char *h = group + 2 * l->q_bytes + t % 2 * l->h_bytes;
        const unsigned char *s = group + 2 * (l->q_bytes + l->h_bytes) + t % 2 * l->s_bytes;
        __m512i f = _mm512_setzero_si512(), w;
        for (i = 0; i < block_bytes; i += 64) {
            _mm_prefetch((const char *)group + t % 2 * block_bytes + DENDP_PREFETCH + i, _MM_HINT_T0);
        }
        if (h_bits) {
            f = dendp_load512(h);
        }
#define DENDP_DOT(r) d##r = _mm512_dpbusd_epi32(d##r, w, dendp_all16(a[r].q + at));
/* Vector j of the low codes, k 4j ...: one or two more bits come from field1 or field2 (literal shifts,
 * since these are immediate operands). */
#define DENDP_LOW(j, field1, field2)                                                                         \
    {                                                                                                        \
        const int at = (j)*4;                                                                                \
        w = dendp_load512(q + (j)*64);                                                                       \
        if (l->q_bytes != 512) {                                                                             \
            w = _mm512_and_si512(w, nibble);                                                                 \
            DENDP_JOIN(field1, field2)                                                                       \
        }                                                                                                    \
        DENDP_EACH_ROW8(R, DENDP_DOT)                                                                        \
    }
/* Vector j of the high codes, k 16 + 4j ... */
#define DENDP_HIGH(j, field1, field2)                                                                        \
    {                                                                                                        \
        const int at = (j)*4 + 16;                                                                           \
        if (l->q_bytes == 512) {                                                                             \
            w = dendp_load512(q + (j)*64 + 256);                                                             \
        } else {                                                                                             \
            w = _mm512_and_si512(_mm512_srli_epi16(dendp_load512(q + (j)*64), 4), nibble);                   \
            DENDP_JOIN(field1, field2)                                                                       \
        }                                                                                                    \
        DENDP_EACH_ROW8(R, DENDP_DOT)                                                                        \
    }
#define DENDP_JOIN(field1, field2)                                                                           \
    if (h_bits == 1) {                                                                                       \
        w = _mm512_or_si512(w, _mm512_and_si512(field1, _mm512_set1_epi8(0x10)));                            \
    } else if (h_bits == 2) {                                                                                \
        w = _mm512_or_si512(w, _mm512_and_si512(field2, _mm512_set1_epi8(0x30)));                            \
    }
#define DENDP_ALL_LOW                                                                                        \
    DENDP_LOW(0, _mm512_slli_epi16(f, 4), _mm512_slli_epi16(f, 4))                                           \
    DENDP_LOW(1, _mm512_slli_epi16(f, 3), _mm512_slli_epi16(f, 2))                                           \
    DENDP_LOW(2, _mm512_slli_epi16(f, 2), f)                                                                 \
    DENDP_LOW(3, _mm512_slli_epi16(f, 1), _mm512_srli_epi16(f, 2))
#define DENDP_ALL_HIGH                                                                                       \
    DENDP_HIGH(0, f, _mm512_slli_epi16(f, 4))                                                                \
    DENDP_HIGH(1, _mm512_srli_epi16(f, 1), _mm512_slli_epi16(f, 2))                                          \
    DENDP_HIGH(2, _mm512_srli_epi16(f, 2), f)                                                                \
    DENDP_HIGH(3, _mm512_srli_epi16(f, 3), _mm512_srli_epi16(f, 2))
        if (form == DENDP_FORM_Q6_K) {
            __m512 t0, t1, t2, t3, t4, t5, t6, t7, d = dendp_halves16(header), ws;
            t0 = t1 = t2 = t3 = t4 = t5 = t6 = t7 = _mm512_setzero_ps();
#define DENDP_START(r) d##r = DENDP_LEFT32(dendp_all16(&a[r].n_low), 5);
            DENDP_EACH_ROW8(R, DENDP_START)
#undef DENDP_START
            DENDP_ALL_LOW
            ws = _mm512_mul_ps(d, dendp_signed16(s));
            DENDP_FIX512(ws)
#define DENDP_FIRST(r) t##r = _mm512_mul_ps(dendp_floats16(d##r), ws);
            DENDP_EACH_ROW8(R, DENDP_FIRST)
#undef DENDP_FIRST
            f = dendp_load512(h + 64);
#define DENDP_START(r)                                                                                       \
    d##r = DENDP_LEFT32(_mm512_sub_epi32(dendp_all16(&a[r].n), dendp_all16(&a[r].n_low)), 5);
            DENDP_EACH_ROW8(R, DENDP_START)
#undef DENDP_START
            DENDP_ALL_HIGH
            ws = _mm512_mul_ps(d, dendp_signed16(s + 16));
            DENDP_FIX512(ws)
#define DENDP_SECOND(r)                                                                                      \
    t##r = _mm512_fmadd_ps(dendp_floats16(d##r), ws, t##r);                                                  \
    y##r = _mm512_fmadd_ps(t##r, _mm512_set1_ps(a[r].scale), y##r);
            DENDP_EACH_ROW8(R, DENDP_SECOND)
#undef DENDP_SECOND
        } else {
            __m512 ws, wm = _mm512_setzero_ps();
#define DENDP_START(r)                                                                                       \
    d##r = l->centre == 0    ? _mm512_setzero_si512()                                                        \
           : l->centre == 8  ? DENDP_LEFT32(dendp_all16(&a[r].n), 3)                                         \
           : l->centre == 16 ? DENDP_LEFT32(dendp_all16(&a[r].n), 4)                                         \
                             : DENDP_LEFT32(dendp_all16(&a[r].n), 7);
            DENDP_EACH_ROW8(R, DENDP_START)
#undef DENDP_START
            DENDP_ALL_LOW
            DENDP_ALL_HIGH
            if (l->header_bytes) {
                ws = _mm512_mul_ps(dendp_halves16(header), dendp_bytes16(s));
                wm = _mm512_mul_ps(dendp_halves16(header + 32), dendp_bytes16(s + 16));
                wm = _mm512_castsi512_ps(
                    _mm512_xor_si512(_mm512_castps_si512(wm), _mm512_set1_epi32((int32_t)0x80000000u)));
                DENDP_FIX512(ws)
                DENDP_FIX512(wm)
            } else {
                ws = dendp_halves16(s);
                if (has_min) {
                    wm = dendp_halves16(s + 32);
                }
            }
#define DENDP_FOLD(r)                                                                                        \
    y##r = _mm512_fmadd_ps(dendp_floats16(d##r), _mm512_mul_ps(ws, _mm512_set1_ps(a[r].scale)), y##r);       \
    if (has_min) {                                                                                           \
        y##r = _mm512_fmadd_ps(wm, _mm512_set1_ps(a[r].min_factor), y##r);                                   \
    }
            DENDP_EACH_ROW8(R, DENDP_FOLD)
#undef DENDP_FOLD
        }
#undef DENDP_ALL_LOW
#undef DENDP_ALL_HIGH
#undef DENDP_JOIN
#undef DENDP_LOW
#undef DENDP_HIGH
#undef DENDP_DOT
        if (t % 2) {
            group += 2 * (l->q_bytes + l->h_bytes + l->s_bytes);
            if (t % 8 == 7 && l->header_bytes) {
                header = group;
                group += l->header_bytes;
            }
        }
    }
#define DENDP_STORE(r) _mm512_storeu_ps(y + (r)*ldy, y##r);
    DENDP_EACH_ROW8(R, DENDP_STORE)
#undef DENDP_STORE
}

/* One panel against n_rows rows in tiles: y[r * ldy + i], i < 16. */
#define DENDP_QUANT_AVX512(name, form)                                                                       \
    DENDP_TARGET_AVX512 static void name(const unsigned char *panel, uint32_t n_blocks,                      \
                                         const dendp_act_block *act, uint32_t n_rows, float *y,              \
                                         size_t ldy) {                                                       \
        uint32_t tile, r;                                                                                    \
        for (tile = 0; tile < n_rows; tile += DENDP_TILE_ROWS) {                                             \
            uint32_t rows = dendp_min_u32(DENDP_TILE_ROWS, n_rows - tile), left;                             \
            const dendp_act_block *a = act + (size_t)tile * n_blocks;                                        \
            float *to = y + tile * ldy;                                                                      \
            for (r = 0; r < rows; r += left == 8 ? 8 : dendp_min_u32(left, 4)) {                             \
                left = rows - r;                                                                             \
                if (left == 8) {                                                                             \
                    dendp_rows_avx512(form, 8, panel, n_blocks, a, rows, to, ldy);                           \
                } else if (left >= 4) {                                                                      \
                    dendp_rows_avx512(form, 4, panel, n_blocks, a + r, rows, to + r * ldy, ldy);             \
                } else if (left == 3) {                                                                      \
                    dendp_rows_avx512(form, 3, panel, n_blocks, a + r, rows, to + r * ldy, ldy);             \
                } else if (left == 2) {                                                                      \
                    dendp_rows_avx512(form, 2, panel, n_blocks, a + r, rows, to + r * ldy, ldy);             \
                } else {                                                                                     \
                    dendp_rows_avx512(form, 1, panel, n_blocks, a + r, rows, to + r * ldy, ldy);             \
                }                                                                                            \
            }                                                                                                \
        }                                                                                                    \
    }
DENDP_QUANT_AVX512(dendp_quant_q4_0_avx512, DENDP_FORM_Q4_0)
DENDP_QUANT_AVX512(dendp_quant_q4_1_avx512, DENDP_FORM_Q4_1)
DENDP_QUANT_AVX512(dendp_quant_q5_0_avx512, DENDP_FORM_Q5_0)
DENDP_QUANT_AVX512(dendp_quant_q5_1_avx512, DENDP_FORM_Q5_1)
DENDP_QUANT_AVX512(dendp_quant_q8_0_avx512, DENDP_FORM_Q8_0)
DENDP_QUANT_AVX512(dendp_quant_q4_k_avx512, DENDP_FORM_Q4_K)
DENDP_QUANT_AVX512(dendp_quant_q5_k_avx512, DENDP_FORM_Q5_K)
DENDP_QUANT_AVX512(dendp_quant_q6_k_avx512, DENDP_FORM_Q6_K)

/* -- float forms -------------------------------------------------------------- */

/* 16 weights of one k as floats. */
DENDP_INLINE_AVX512 __m512 dendp_weights16(const dendp_form form, const unsigned char *panel, size_t k) {
    if (form == DENDP_FORM_F32) {
        return _mm512_castsi512_ps(dendp_load512(panel + k * 64));
    }
    if (form == DENDP_FORM_F16) {
        return dendp_halves16(panel + k * 32);
    }
    return _mm512_castsi512_ps(DENDP_LEFT32(
        _mm512_maskz_cvtepu16_epi32(DENDP_ALL_LANES,
                                    _mm256_loadu_si256((const __m256i *)(const void *)(panel + k * 32))),
        16));
}

/* One float panel against R <= 4 rows: 4 chains a row, all in registers. */
DENDP_INLINE_AVX512 void dendp_float_rows_avx512(const dendp_form form, const int R,
                                                 const unsigned char *panel, uint32_t k, const float *x,
                                                 size_t ldx, float *y, size_t ldy) {
    __m512 a0 = _mm512_setzero_ps(), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
    __m512 c0 = a0, c1 = a0, c2 = a0, c3 = a0, e0 = a0, e1 = a0, e2 = a0, e3 = a0, w;
    uint32_t i;
#define DENDP_A(r) a##r = _mm512_fmadd_ps(w, _mm512_set1_ps(x[(r)*ldx + i]), a##r);
#define DENDP_B(r) b##r = _mm512_fmadd_ps(w, _mm512_set1_ps(x[(r)*ldx + i + 1]), b##r);
#define DENDP_C(r) c##r = _mm512_fmadd_ps(w, _mm512_set1_ps(x[(r)*ldx + i + 2]), c##r);
#define DENDP_E(r) e##r = _mm512_fmadd_ps(w, _mm512_set1_ps(x[(r)*ldx + i + 3]), e##r);
    for (i = 0; i + 4 <= k; i += 4) {
        w = dendp_weights16(form, panel, i);
        DENDP_EACH_ROW(R, DENDP_A)
        w = dendp_weights16(form, panel, i + 1);
        DENDP_EACH_ROW(R, DENDP_B)
        w = dendp_weights16(form, panel, i + 2);
        DENDP_EACH_ROW(R, DENDP_C)
        w = dendp_weights16(form, panel, i + 3);
        DENDP_EACH_ROW(R, DENDP_E)
    }
    if (i < k) {
        w = dendp_weights16(form, panel, i);
        DENDP_EACH_ROW(R, DENDP_A)
    }
    if (i + 1 < k) {
        w = dendp_weights16(form, panel, i + 1);
        DENDP_EACH_ROW(R, DENDP_B)
    }
    if (i + 2 < k) {
        w = dendp_weights16(form, panel, i + 2);
        DENDP_EACH_ROW(R, DENDP_C)
    }
#undef DENDP_A
#undef DENDP_B
#undef DENDP_C
#undef DENDP_E
#define DENDP_STORE(r)                                                                                       \
    a##r = _mm512_add_ps(a##r, b##r);                                                                        \
    c##r = _mm512_add_ps(c##r, e##r);                                                                        \
    DENDP_FIX512(a##r)                                                                                       \
    DENDP_FIX512(c##r)                                                                                       \
    _mm512_storeu_ps(y + (r)*ldy, _mm512_add_ps(a##r, c##r));
    DENDP_EACH_ROW(R, DENDP_STORE)
#undef DENDP_STORE
}

#define DENDP_FLOAT_AVX512(name, form)                                                                       \
    DENDP_TARGET_AVX512 static void name(const unsigned char *panel, uint32_t k, const float *x, size_t ldx, \
                                         uint32_t n_rows, float *y, size_t ldy) {                            \
        uint32_t r;                                                                                          \
        for (r = 0; r + 4 <= n_rows; r += 4) {                                                               \
            dendp_float_rows_avx512(form, 4, panel, k, x + r * ldx, ldx, y + r * ldy, ldy);                  \
        }                                                                                                    \
        for (; r < n_rows; r++) {                                                                            \
            dendp_float_rows_avx512(form, 1, panel, k, x + r * ldx, ldx, y + r * ldy, ldy);                  \
        }                                                                                                    \
    }
DENDP_FLOAT_AVX512(dendp_float_f32_avx512, DENDP_FORM_F32)
DENDP_FLOAT_AVX512(dendp_float_f16_avx512, DENDP_FORM_F16)
DENDP_FLOAT_AVX512(dendp_float_bf16_avx512, DENDP_FORM_BF16)

#endif
