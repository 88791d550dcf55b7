/* ==========================================================================
 * >>03.04 MATMUL, AVX2: bytes in pairs, pairs in 16 bits
 * ==========================================================================
 * AVX2 has no instruction that sums four products of bytes. It has maddubs:
 *
 *     maddubs   16 x  i16 = u8 * s8 + u8 * s8    saturating
 *     madd       8 x  i32 = i16 * 1 + i16 * 1    exact
 *
 * The second costs as much as the first, so sums stay in 16 bits for as long
 * as they fit. How long that is (q is within +-127):
 *
 *     one maddubs    63 * 127 * 2 = 16002 < 32768: codes of 4, 5 and 6 bits
 *                    never saturate. Codes of 8 bits would (255 * 127 * 2).
 *     4 bits         8 of them, all 32 k: 8 * 15 * 127 * 2 = 30480. Fits.
 *     5 bits         8 * 31 * 127 * 2 = 62992. Does not fit; but addition
 *                    modulo 2^16 does not mind a detour. The sum of
 *                    (code - 16) * q is at most 8 * 16 * 127 * 2 = 32512 and
 *                    fits, so starting at 16 * p (the activations' own sums,
 *                    dendp_act_block.p) gives it exactly.
 *     6 bits         4 of them, the 16 k of a scale: likewise with centre 32,
 *                    4 * 32 * 127 * 2 = 32512. Fits.
 *     8 bits         split into nibbles, code = 16 * high + low: two sums of
 *                    4-bit codes, madd with 16s and with 1s. Twice the work;
 *                    signs moved onto q (vpsignb) would cost as much and sum
 *                    one product at a time.
 *
 * Work is cut like this:
 *
 *     for each 256 k of a panel ("unit")          at most 8 blocks
 *         unpack its codes to bytes, its scales to floats    -> L1, 8 KB
 *         for each 4 rows (2 for 8 bits): all blocks of the unit
 *
 * Unpacking first lets all rows share it, and leaves the inner loop nothing
 * but broadcast, maddubs, add: 8 sums of 16 bits (4 rows, two half panels of
 * 8 lanes) and 2 vectors of weights in 16 registers. The floats y live in
 * memory in between, one load and one store a block. Named variables, since
 * gcc 12 keeps arrays of vectors on the stack.
 *
 * Results are those of the scalar room, bit for bit.
 * ======================================================================== */

#if DENDP_X86

#define DENDP_TARGET_AVX2 __attribute__((target("avx2,fma,f16c")))
#define DENDP_INLINE_AVX2 DENDP_TARGET_AVX2 static inline __attribute__((always_inline))
#define DENDP_NOINLINE __attribute__((noinline))
#define DENDP_ALIGNED __attribute__((aligned(64))) /* no vector on the stack straddles a cache line */

/* The sum stands here: without this gcc 12 regroups additions, runs all
 * products of a block first and spills them. */
#define DENDP_FIX256(v,w) __asm__ volatile("" : "+x"(v), "+x"(w));

#define DENDP_UNIT_BLOCKS 8
#define DENDP_PREFETCH 3072 /* bytes ahead in the panel's stream */

/* Up to 8 blocks of a panel, unpacked. Vector j of block t holds, for each
 * lane, codes 4j ... 4j+3: code[t][j][lane][4]. Forms of 8 bits hold low
 * nibbles there and high nibbles in high[]. */
typedef struct dendp_unit {
    unsigned char code[DENDP_UNIT_BLOCKS][512];
    unsigned char high[DENDP_UNIT_BLOCKS][512];
    float scale[DENDP_UNIT_BLOCKS][16];
    float other[DENDP_UNIT_BLOCKS][16]; /* minimum, or the second scale of Q6_K */
} dendp_unit;

DENDP_INLINE_AVX2 __m256i dendp_load256(const void *p) {
    return _mm256_loadu_si256((const __m256i *)p);
}

DENDP_INLINE_AVX2 void dendp_store256(void *p, __m256i v) {
    _mm256_storeu_si256((__m256i *)p, v);
}

/* 8 halves as floats. */
DENDP_INLINE_AVX2 __m256 dendp_halves8(const void *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

/* 8 unsigned bytes as floats. */
DENDP_INLINE_AVX2 __m256 dendp_bytes8(const void *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

/* 8 signed bytes as floats. */
DENDP_INLINE_AVX2 __m256 dendp_signed8x8(const void *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

/* Four bytes, or two 16-bit numbers, in all lanes. */
DENDP_INLINE_AVX2 __m256i dendp_four(const void *p) {
    int32_t v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

/* -- unpacking ---------------------------------------------------------------- */

/* q [4][64] -> code [8][64]; h NULL, or [64] fifth bits, or [2][64] two-bit
 * fields: a field is shifted to bits 4, 5 of its byte and all else masked away
 * (what a 16-bit shift drags in from the neighbour byte lies outside the mask). */
DENDP_INLINE_AVX2 void dendp_unpack_codes(const int h_bits, const unsigned char *q, const unsigned char *h,
                                          unsigned char *code) {
    const __m256i nibble = _mm256_set1_epi8(15);
    int half;
    for (half = 0; half < 64; half += 32) {
        __m256i f = nibble, g = nibble, v, low, high;
        const __m256i field = _mm256_set1_epi8(h_bits == 1 ? 0x10 : 0x30);
        if (h_bits == 1) {
            f = dendp_load256(h + half);
        } else if (h_bits == 2) {
            f = dendp_load256(h + half);
            g = dendp_load256(h + 64 + half);
        }
#define DENDP_UNPACK(j, low1, high1, shift2)                                                                 \
    v = dendp_load256(q + (j) * 64 + half);                                                                  \
    low = _mm256_and_si256(v, nibble);                                                                       \
    high = _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble);                                                \
    if (h_bits == 1) {                                                                                       \
        low = _mm256_or_si256(low, _mm256_and_si256(low1, field));                                           \
        high = _mm256_or_si256(high, _mm256_and_si256(high1, field));                                        \
    } else if (h_bits == 2) {                                                                                \
        low = _mm256_or_si256(low, _mm256_and_si256(shift2(f), field));                                      \
        high = _mm256_or_si256(high, _mm256_and_si256(shift2(g), field));                                    \
    }                                                                                                        \
    dendp_store256(code + (j) * 64 + half, low);                                                             \
    dendp_store256(code + ((j) + 4) * 64 + half, high);
#define DENDP_LEFT4(x) _mm256_slli_epi16(x, 4)
#define DENDP_LEFT2(x) _mm256_slli_epi16(x, 2)
#define DENDP_STAY(x) (x)
#define DENDP_RIGHT2(x) _mm256_srli_epi16(x, 2)
        DENDP_UNPACK(0, _mm256_slli_epi16(f, 4), f, DENDP_LEFT4)
        DENDP_UNPACK(1, _mm256_slli_epi16(f, 3), _mm256_srli_epi16(f, 1), DENDP_LEFT2)
        DENDP_UNPACK(2, _mm256_slli_epi16(f, 2), _mm256_srli_epi16(f, 2), DENDP_STAY)
        DENDP_UNPACK(3, _mm256_slli_epi16(f, 1), _mm256_srli_epi16(f, 3), DENDP_RIGHT2)
#undef DENDP_UNPACK
#undef DENDP_LEFT4
#undef DENDP_LEFT2
#undef DENDP_STAY
#undef DENDP_RIGHT2
    }
}

/* Blocks first ... first + n of a panel -> unit. first is a multiple of 8. */
DENDP_INLINE_AVX2 void dendp_unpack_unit(const dendp_form form, const unsigned char *panel, uint32_t first,
                                         uint32_t n, dendp_unit *unit) {
    const dendp_form_layout *l = &dendp_form_layouts[form];
    const unsigned char *group = panel + dendp_group_offset(l, first / 2);
    const unsigned char *header = group - 64; /* read by K-quants only */
    const int h_bits = l->h_bytes == 128 ? 2 : l->h_bytes == 64 ? 1 : 0;
    uint32_t t, i;
    for (t = 0; t < n; t++) {
        const unsigned char *q = group + t % 2 * l->q_bytes;
        const unsigned char *h = group + 2 * l->q_bytes + t % 2 * l->h_bytes;
        const unsigned char *s = group + 2 * (l->q_bytes + l->h_bytes) + t % 2 * l->s_bytes;
        for (i = 0; i < l->q_bytes; i += 64) {
            _mm_prefetch((const char *)q + DENDP_PREFETCH + i, _MM_HINT_T0);
        }
        if (l->q_bytes == 512) {
            const __m256i nibble = _mm256_set1_epi8(15);
            for (i = 0; i < 512; i += 32) {
                __m256i v = dendp_load256(q + i);
                dendp_store256(unit->code[t] + i, _mm256_and_si256(v, nibble));
                dendp_store256(unit->high[t] + i, _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble));
            }
        } else {
            dendp_unpack_codes(h_bits, q, h, unit->code[t]);
        }
        for (i = 0; i < 16; i += 8) {
            __m256 scale, other = _mm256_setzero_ps();
            if (form == DENDP_FORM_Q6_K) {
                __m256 d = dendp_halves8(header + i * 2);
                scale = _mm256_mul_ps(d, dendp_signed8x8(s + i));
                other = _mm256_mul_ps(d, dendp_signed8x8(s + 16 + i));
            } else if (l->header_bytes) {
                __m256 least = dendp_halves8(header + 32 + i * 2);
                least = _mm256_xor_ps(least, _mm256_set1_ps(-0.0f));
                scale = _mm256_mul_ps(dendp_halves8(header + i * 2), dendp_bytes8(s + i));
                other = _mm256_mul_ps(least, dendp_bytes8(s + 16 + i));
            } else {
                scale = dendp_halves8(s + i * 2);
                if (l->s_bytes == 64) {
                    other = dendp_halves8(s + 32 + i * 2);
                }
            }
            _mm256_storeu_ps(unit->scale[t] + i, scale);
            _mm256_storeu_ps(unit->other[t] + i, other);
        }
        group += t % 2 ? 2 * (l->q_bytes + l->h_bytes + l->s_bytes) : 0;
    }
}

/* Not inlined into a caller: scales must pass through memory, so that no
 * compiler regroups d * s * activation scale. */
#define DENDP_UNPACK_UNIT(name, form)                                                                        \
    DENDP_TARGET_AVX2 DENDP_NOINLINE static void name(const unsigned char *panel, uint32_t first,            \
                                                      uint32_t n, dendp_unit *unit) {                        \
        dendp_unpack_unit(form, panel, first, n, unit);                                                      \
    }
DENDP_UNPACK_UNIT(dendp_unpack_q4_0, DENDP_FORM_Q4_0)
DENDP_UNPACK_UNIT(dendp_unpack_q4_1, DENDP_FORM_Q4_1)
DENDP_UNPACK_UNIT(dendp_unpack_q5_0, DENDP_FORM_Q5_0)
DENDP_UNPACK_UNIT(dendp_unpack_q5_1, DENDP_FORM_Q5_1)
DENDP_UNPACK_UNIT(dendp_unpack_q8_0, DENDP_FORM_Q8_0)
DENDP_UNPACK_UNIT(dendp_unpack_q4_k, DENDP_FORM_Q4_K)
DENDP_UNPACK_UNIT(dendp_unpack_q5_k, DENDP_FORM_Q5_K)
DENDP_UNPACK_UNIT(dendp_unpack_q6_k, DENDP_FORM_Q6_K)

/* -- rows --------------------------------------------------------------------- */

/* Runs M for rows 0 ... R-1, R a constant. */
#define DENDP_EACH_ROW(R, M)                                                                                 \
    M(0)                                                                                                     \
    if ((R) > 1) {                                                                                           \
        M(1)                                                                                                 \
    }                                                                                                        \
    if ((R) > 2) {                                                                                           \
        M(2)                                                                                                 \
    }                                                                                                        \
    if ((R) > 3) {                                                                                           \
        M(3)                                                                                                 \
    }

/* y += for lanes 0-7 (low) and 8-15 of one row: the integer sums become floats. */
DENDP_INLINE_AVX2 void dendp_fold(const int has_min, __m256i low, __m256i high, __m256 scale_low,
                                  __m256 scale_high, const float *other, const dendp_act_block *a, float *y) {
    __m256 s = _mm256_broadcast_ss(&a->scale);
    __m256 y_low = _mm256_loadu_ps(y), y_high = _mm256_loadu_ps(y + 8);
    y_low = _mm256_fmadd_ps(_mm256_cvtepi32_ps(low), _mm256_mul_ps(scale_low, s), y_low);
    y_high = _mm256_fmadd_ps(_mm256_cvtepi32_ps(high), _mm256_mul_ps(scale_high, s), y_high);
    if (has_min) {
        s = _mm256_broadcast_ss(&a->min_factor);
        y_low = _mm256_fmadd_ps(_mm256_loadu_ps(other), s, y_low);
        y_high = _mm256_fmadd_ps(_mm256_loadu_ps(other + 8), s, y_high);
    }
    _mm256_storeu_ps(y, y_low);
    _mm256_storeu_ps(y + 8, y_high);
}

/* Codes of 4 or 5 bits against R <= 4 rows, n blocks.  a: row 0 of block 0,
 * rows adjacent, blocks a_stride apart.  y [R][16].
 * centre_shift: log2 of the centre that 16-bit sums start from, 0 for none.
 * back: add it again at the end (5 bits without a centre of their own). */
DENDP_INLINE_AVX2 void dendp_rows_narrow(const int R, const int centre_shift, const int back, const int has_min,
                                         const dendp_unit *unit, uint32_t n, const dendp_act_block *a,
                                         size_t a_stride, float *y) {
    const __m256i ones = _mm256_set1_epi16(1);
    uint32_t t;
    for (t = 0; t < n; t++, a += a_stride) {
        const unsigned char *code = unit->code[t];
        const __m256 scale_low = _mm256_loadu_ps(unit->scale[t]), scale_high = _mm256_loadu_ps(unit->scale[t] + 8);
        __m256i l0 = _mm256_setzero_si256(), l1 = l0, l2 = l0, l3 = l0, h0 = l0, h1 = l0, h2 = l0, h3 = l0;
        __m256i w_low, w_high, x;
        __asm__("" : "+r"(y));
#define DENDP_START(r) l##r = h##r = _mm256_slli_epi16(dendp_four(a[r].p), centre_shift);
        if (centre_shift) {
            DENDP_EACH_ROW(R, DENDP_START)
        }
#undef DENDP_START
#define DENDP_ADD(r)                                                                                         \
    x = dendp_four(a[r].q + at);                                                                             \
    {                                                                                                        \
        __m256i low = _mm256_maddubs_epi16(w_low, x), high = _mm256_maddubs_epi16(w_high, x);                \
        DENDP_FIX256(low, high)                                                                              \
        l##r = _mm256_add_epi16(l##r, low);                                                                  \
        h##r = _mm256_add_epi16(h##r, high);                                                                 \
        DENDP_FIX256(l##r, h##r)                                                                             \
    }
#define DENDP_STEP(j)                                                                                        \
    {                                                                                                        \
        const int at = (j) * 4;                                                                              \
        w_low = dendp_load256(code + (j) * 64);                                                              \
        w_high = dendp_load256(code + (j) * 64 + 32);                                                        \
        DENDP_EACH_ROW(R, DENDP_ADD)                                                                         \
    }
        DENDP_STEP(0)
        DENDP_STEP(1)
        DENDP_STEP(2)
        DENDP_STEP(3)
        DENDP_STEP(4)
        DENDP_STEP(5)
        DENDP_STEP(6)
        DENDP_STEP(7)
#undef DENDP_STEP
#undef DENDP_ADD
#define DENDP_FOLD(r)                                                                                        \
    l##r = _mm256_madd_epi16(l##r, ones);                                                                    \
    h##r = _mm256_madd_epi16(h##r, ones);                                                                    \
    if (back) {                                                                                              \
        x = _mm256_slli_epi32(dendp_four(&a[r].n), centre_shift);                                            \
        l##r = _mm256_sub_epi32(l##r, x);                                                                    \
        h##r = _mm256_sub_epi32(h##r, x);                                                                    \
    }                                                                                                        \
    dendp_fold(has_min, l##r, h##r, scale_low, scale_high, unit->other[t], a + (r), y + (r) * 16);
        DENDP_EACH_ROW(R, DENDP_FOLD)
#undef DENDP_FOLD
    }
}

/* Codes of 6 bits with a scale for each 16 k (Q6_K); else as above. */
DENDP_INLINE_AVX2 void dendp_rows_q6(const int R, const dendp_unit *unit, uint32_t n, const dendp_act_block *a,
                                     size_t a_stride, float *y) {
    const __m256i ones = _mm256_set1_epi16(1);
    uint32_t t;
    for (t = 0; t < n; t++, a += a_stride) {
        const unsigned char *code = unit->code[t];
        __m256i l0 = _mm256_setzero_si256(), l1 = l0, l2 = l0, l3 = l0, h0 = l0, h1 = l0, h2 = l0, h3 = l0;
        __m256 s0 = _mm256_setzero_ps(), s1 = s0, s2 = s0, s3 = s0, u0 = s0, u1 = s0, u2 = s0, u3 = s0, ws_low, ws_high;
        __m256i w_low, w_high, x;
#define DENDP_ADD(r)                                                                                         \
    x = dendp_four(a[r].q + at);                                                                             \
    {                                                                                                        \
        __m256i low = _mm256_maddubs_epi16(w_low, x), high = _mm256_maddubs_epi16(w_high, x);                \
        DENDP_FIX256(low, high)                                                                              \
        l##r = _mm256_add_epi16(l##r, low);                                                                  \
        h##r = _mm256_add_epi16(h##r, high);                                                                 \
        DENDP_FIX256(l##r, h##r)                                                                             \
    }
#define DENDP_STEP(j)                                                                                        \
    {                                                                                                        \
        const int at = (j) * 4;                                                                              \
        w_low = dendp_load256(code + (j) * 64);                                                              \
        w_high = dendp_load256(code + (j) * 64 + 32);                                                        \
        DENDP_EACH_ROW(R, DENDP_ADD)                                                                         \
    }
#define DENDP_START(r) l##r = h##r = _mm256_slli_epi16(dendp_four(a[r].p_low), 5);
        DENDP_EACH_ROW(R, DENDP_START)
#undef DENDP_START
        DENDP_STEP(0)
        DENDP_STEP(1)
        DENDP_STEP(2)
        DENDP_STEP(3)
        ws_low = _mm256_loadu_ps(unit->scale[t]);
        ws_high = _mm256_loadu_ps(unit->scale[t] + 8);
#define DENDP_FIRST(r)                                                                                       \
    s##r = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_madd_epi16(l##r, ones)), ws_low);                         \
    u##r = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_madd_epi16(h##r, ones)), ws_high);
        DENDP_EACH_ROW(R, DENDP_FIRST)
#undef DENDP_FIRST
#define DENDP_START(r)                                                                                       \
    l##r = h##r = _mm256_slli_epi16(_mm256_sub_epi16(dendp_four(a[r].p), dendp_four(a[r].p_low)), 5);
        DENDP_EACH_ROW(R, DENDP_START)
#undef DENDP_START
        DENDP_STEP(4)
        DENDP_STEP(5)
        DENDP_STEP(6)
        DENDP_STEP(7)
#undef DENDP_STEP
#undef DENDP_ADD
        ws_low = _mm256_loadu_ps(unit->other[t]);
        ws_high = _mm256_loadu_ps(unit->other[t] + 8);
#define DENDP_SECOND(r)                                                                                      \
    s##r = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_madd_epi16(l##r, ones)), ws_low, s##r);                 \
    u##r = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_madd_epi16(h##r, ones)), ws_high, u##r);                \
    {                                                                                                        \
        __m256 as = _mm256_broadcast_ss(&a[r].scale);                                                        \
        _mm256_storeu_ps(y + (r) * 16, _mm256_fmadd_ps(s##r, as, _mm256_loadu_ps(y + (r) * 16)));            \
        _mm256_storeu_ps(y + (r) * 16 + 8, _mm256_fmadd_ps(u##r, as, _mm256_loadu_ps(y + (r) * 16 + 8)));    \
    }
        DENDP_EACH_ROW(R, DENDP_SECOND)
#undef DENDP_SECOND
    }
}

/* Codes of 8 bits, as nibbles, against R <= 2 rows; else as above. */
DENDP_INLINE_AVX2 void dendp_rows_wide(const int R, const dendp_unit *unit, uint32_t n, const dendp_act_block *a,
                                       size_t a_stride, float *y) {
    const __m256i ones = _mm256_set1_epi16(1), sixteens = _mm256_set1_epi16(16);
    uint32_t t;
    for (t = 0; t < n; t++, a += a_stride) {
        const unsigned char *code = unit->code[t], *high = unit->high[t];
        const __m256 scale_low = _mm256_loadu_ps(unit->scale[t]), scale_high = _mm256_loadu_ps(unit->scale[t] + 8);
        /* l, h: low nibbles of lanes 0-7, 8-15; u, v: high nibbles */
        __m256i l0 = _mm256_setzero_si256(), l1 = l0, h0 = l0, h1 = l0, u0 = l0, u1 = l0, v0 = l0, v1 = l0;
        __m256i w_low, w_high, x0, x1 = l0;
#define DENDP_STEP(j)                                                                                        \
    w_low = dendp_load256(code + (j) * 64);                                                                  \
    w_high = dendp_load256(code + (j) * 64 + 32);                                                            \
    x0 = dendp_four(a[0].q + (j) * 4);                                                                       \
    l0 = _mm256_add_epi16(l0, _mm256_maddubs_epi16(w_low, x0));                                              \
    h0 = _mm256_add_epi16(h0, _mm256_maddubs_epi16(w_high, x0));                                             \
    DENDP_FIX256(l0,h0)                                                                                         \
    if (R > 1) {                                                                                             \
        x1 = dendp_four(a[1].q + (j) * 4);                                                                   \
        l1 = _mm256_add_epi16(l1, _mm256_maddubs_epi16(w_low, x1));                                          \
        h1 = _mm256_add_epi16(h1, _mm256_maddubs_epi16(w_high, x1));                                         \
        DENDP_FIX256(l1,h1)                                                                                     \
    }                                                                                                        \
    w_low = dendp_load256(high + (j) * 64);                                                                  \
    w_high = dendp_load256(high + (j) * 64 + 32);                                                            \
    u0 = _mm256_add_epi16(u0, _mm256_maddubs_epi16(w_low, x0));                                              \
    v0 = _mm256_add_epi16(v0, _mm256_maddubs_epi16(w_high, x0));                                             \
    DENDP_FIX256(u0,v0)                                                                                         \
    if (R > 1) {                                                                                             \
        u1 = _mm256_add_epi16(u1, _mm256_maddubs_epi16(w_low, x1));                                          \
        v1 = _mm256_add_epi16(v1, _mm256_maddubs_epi16(w_high, x1));                                         \
        DENDP_FIX256(u1,v1)                                                                                     \
    }
        DENDP_STEP(0)
        DENDP_STEP(1)
        DENDP_STEP(2)
        DENDP_STEP(3)
        DENDP_STEP(4)
        DENDP_STEP(5)
        DENDP_STEP(6)
        DENDP_STEP(7)
#undef DENDP_STEP
#define DENDP_FOLD(r)                                                                                        \
    x0 = _mm256_slli_epi32(dendp_four(&a[r].n), 7);                                                          \
    l##r = _mm256_add_epi32(_mm256_madd_epi16(l##r, ones), _mm256_madd_epi16(u##r, sixteens));               \
    h##r = _mm256_add_epi32(_mm256_madd_epi16(h##r, ones), _mm256_madd_epi16(v##r, sixteens));               \
    dendp_fold(0, _mm256_add_epi32(l##r, x0), _mm256_add_epi32(h##r, x0), scale_low, scale_high, NULL,       \
               a + (r), y + (r) * 16);
        DENDP_FOLD(0)
        if (R > 1) {
            DENDP_FOLD(1)
        }
#undef DENDP_FOLD
    }
}

/* One function for each number of rows, so that all of it is constant inside. */
typedef void (*dendp_rows_fn)(const dendp_unit *unit, uint32_t n, const dendp_act_block *a, size_t a_stride, float *y);

#define DENDP_ROWS(name, call)                                                                               \
    DENDP_TARGET_AVX2 DENDP_NOINLINE static void name(const dendp_unit *unit, uint32_t n,                    \
                                                      const dendp_act_block *a, size_t a_stride, float *y) { \
        call;                                                                                                \
    }
#define DENDP_ROWS_NARROW(name, centre_shift, back, has_min)                                                 \
    DENDP_ROWS(name##_1, dendp_rows_narrow(1, centre_shift, back, has_min, unit, n, a, a_stride, y))         \
    DENDP_ROWS(name##_2, dendp_rows_narrow(2, centre_shift, back, has_min, unit, n, a, a_stride, y))         \
    DENDP_ROWS(name##_3, dendp_rows_narrow(3, centre_shift, back, has_min, unit, n, a, a_stride, y))         \
    DENDP_ROWS(name##_4, dendp_rows_narrow(4, centre_shift, back, has_min, unit, n, a, a_stride, y))
DENDP_ROWS_NARROW(dendp_rows_c8, 3, 0, 0)      /* Q4_0 */
DENDP_ROWS_NARROW(dendp_rows_min, 0, 0, 1)     /* Q4_1, Q4_K */
DENDP_ROWS_NARROW(dendp_rows_c16, 4, 0, 0)     /* Q5_0 */
DENDP_ROWS_NARROW(dendp_rows_c16_min, 4, 1, 1) /* Q5_1, Q5_K */
DENDP_ROWS(dendp_rows_q6_1, dendp_rows_q6(1, unit, n, a, a_stride, y))
DENDP_ROWS(dendp_rows_q6_2, dendp_rows_q6(2, unit, n, a, a_stride, y))
DENDP_ROWS(dendp_rows_q6_3, dendp_rows_q6(3, unit, n, a, a_stride, y))
DENDP_ROWS(dendp_rows_q6_4, dendp_rows_q6(4, unit, n, a, a_stride, y))
DENDP_ROWS(dendp_rows_wide_1, dendp_rows_wide(1, unit, n, a, a_stride, y))
DENDP_ROWS(dendp_rows_wide_2, dendp_rows_wide(2, unit, n, a, a_stride, y))

/* How AVX2 treats a form. rows[i] takes i + 1 rows. */
typedef struct dendp_avx2_form {
    void (*unpack)(const unsigned char *panel, uint32_t first, uint32_t n, dendp_unit *unit);
    uint32_t max_rows;
    dendp_rows_fn rows[4];
} dendp_avx2_form;

#define DENDP_ROWS_4(name) 4, {name##_1, name##_2, name##_3, name##_4}
static const dendp_avx2_form dendp_avx2_forms[DENDP_N_QUANT_FORMS] = {
    {dendp_unpack_q4_0, DENDP_ROWS_4(dendp_rows_c8)},
    {dendp_unpack_q4_1, DENDP_ROWS_4(dendp_rows_min)},
    {dendp_unpack_q5_0, DENDP_ROWS_4(dendp_rows_c16)},
    {dendp_unpack_q5_1, DENDP_ROWS_4(dendp_rows_c16_min)},
    {dendp_unpack_q8_0, 2, {dendp_rows_wide_1, dendp_rows_wide_2, NULL, NULL}},
    {dendp_unpack_q4_k, DENDP_ROWS_4(dendp_rows_min)},
    {dendp_unpack_q5_k, DENDP_ROWS_4(dendp_rows_c16_min)},
    {dendp_unpack_q6_k, DENDP_ROWS_4(dendp_rows_q6)},
};

/* One panel against n_rows <= DENDP_MATMUL_ROWS rows: y[r * ldy + i], i < 16. */
static void dendp_quant_avx2(dendp_form form, const unsigned char *panel, uint32_t n_blocks,
                             const dendp_act_block *act, uint32_t n_rows, float *y, size_t ldy) {
    const dendp_avx2_form *f = &dendp_avx2_forms[form];
    float sum[DENDP_MATMUL_ROWS][DENDP_LANES] DENDP_ALIGNED;
    dendp_unit unit DENDP_ALIGNED;
    uint32_t first, tile, r;
    memset(sum, 0, n_rows * sizeof sum[0]);
    for (first = 0; first < n_blocks; first += DENDP_UNIT_BLOCKS) {
        uint32_t n = dendp_min_u32(DENDP_UNIT_BLOCKS, n_blocks - first);
        f->unpack(panel, first, n, &unit);
        for (tile = 0; tile < n_rows; tile += DENDP_TILE_ROWS) {
            uint32_t tile_rows = dendp_min_u32(DENDP_TILE_ROWS, n_rows - tile);
            const dendp_act_block *a = act + (size_t)tile * n_blocks + (size_t)first * tile_rows;
            for (r = 0; r < tile_rows;) {
                uint32_t rows = dendp_min_u32(f->max_rows, tile_rows - r);
                f->rows[rows - 1](&unit, n, a + r, tile_rows, sum[tile + r]);
                r += rows;
            }
        }
    }
    for (r = 0; r < n_rows; r++) {
        memcpy(y + r * ldy, sum[r], sizeof sum[r]);
    }
}

#define DENDP_QUANT_AVX2(name, form)                                                                         \
    static void name(const unsigned char *panel, uint32_t n_blocks, const dendp_act_block *act,              \
                     uint32_t n_rows, float *y, size_t ldy) {                                                \
        dendp_quant_avx2(form, panel, n_blocks, act, n_rows, y, ldy);                                        \
    }
DENDP_QUANT_AVX2(dendp_quant_q4_0_avx2, DENDP_FORM_Q4_0)
DENDP_QUANT_AVX2(dendp_quant_q4_1_avx2, DENDP_FORM_Q4_1)
DENDP_QUANT_AVX2(dendp_quant_q5_0_avx2, DENDP_FORM_Q5_0)
DENDP_QUANT_AVX2(dendp_quant_q5_1_avx2, DENDP_FORM_Q5_1)
DENDP_QUANT_AVX2(dendp_quant_q8_0_avx2, DENDP_FORM_Q8_0)
DENDP_QUANT_AVX2(dendp_quant_q4_k_avx2, DENDP_FORM_Q4_K)
DENDP_QUANT_AVX2(dendp_quant_q5_k_avx2, DENDP_FORM_Q5_K)
DENDP_QUANT_AVX2(dendp_quant_q6_k_avx2, DENDP_FORM_Q6_K)

/* -- float forms -------------------------------------------------------------- */

#define DENDP_FLOAT_STEP 64  /* k that are widened at a time: a multiple of 4 */
#define DENDP_FLOAT_ROWS 32  /* rows whose chains are kept */

/* 16 weights of any float form as floats: w [16]. */
DENDP_INLINE_AVX2 void dendp_widen16(const dendp_form form, const unsigned char *panel, size_t k, float *w) {
    int i;
    for (i = 0; i < 16; i += 8) {
        const unsigned char *p = panel + (k * 16 + (size_t)i) * (form == DENDP_FORM_F32 ? 4 : 2);
        if (form == DENDP_FORM_F32) {
            dendp_store256(w + i, dendp_load256(p));
        } else if (form == DENDP_FORM_F16) {
            _mm256_storeu_ps(w + i, dendp_halves8(p));
        } else {
            __m256i v = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
            dendp_store256(w + i, _mm256_slli_epi32(v, 16));
        }
    }
}

/* n weights k of 16 lanes, w [n][16], against R <= 4 rows from x[r * ldx] on:
 * chain [R][16] of k mod 4, for n / 4 or so steps each. chain_stride floats
 * lie between the chains of k mod 4 = 0, 1, 2, 3. */
DENDP_INLINE_AVX2 void dendp_float_rows(const int R, const float *w, uint32_t n, const float *x, size_t ldx,
                                        float *chain, size_t chain_stride) {
    uint32_t c, i;
    for (c = 0; c < 4; c++, chain += chain_stride) {
        __m256 l0 = _mm256_loadu_ps(chain), h0 = _mm256_loadu_ps(chain + 8);
        __m256 l1 = l0, h1 = l0, l2 = l0, h2 = l0, l3 = l0, h3 = l0, w_low, w_high, v;
#define DENDP_START(r)                                                                                       \
    l##r = _mm256_loadu_ps(chain + (r) * 16);                                                                \
    h##r = _mm256_loadu_ps(chain + (r) * 16 + 8);
        DENDP_EACH_ROW(R, DENDP_START)
#undef DENDP_START
        for (i = c; i < n; i += 4) {
            w_low = _mm256_loadu_ps(w + i * 16);
            w_high = _mm256_loadu_ps(w + i * 16 + 8);
#define DENDP_ADD(r)                                                                                         \
    v = _mm256_broadcast_ss(x + (r) * ldx + i);                                                              \
    l##r = _mm256_fmadd_ps(w_low, v, l##r);                                                                  \
    h##r = _mm256_fmadd_ps(w_high, v, h##r);
            DENDP_EACH_ROW(R, DENDP_ADD)
#undef DENDP_ADD
        }
#define DENDP_STOP(r)                                                                                        \
    _mm256_storeu_ps(chain + (r) * 16, l##r);                                                                \
    _mm256_storeu_ps(chain + (r) * 16 + 8, h##r);
        DENDP_EACH_ROW(R, DENDP_STOP)
#undef DENDP_STOP
    }
}

DENDP_INLINE_AVX2 void dendp_float_panel(const dendp_form form, const unsigned char *panel, uint32_t k,
                                         const float *x, size_t ldx, uint32_t n_rows, float *y, size_t ldy) {
    float chain[4][DENDP_FLOAT_ROWS][16] DENDP_ALIGNED;
    float w[DENDP_FLOAT_STEP * 16] DENDP_ALIGNED;
    const size_t chain_stride = DENDP_FLOAT_ROWS * 16;
    uint32_t base, first, i, r;
    for (base = 0; base < n_rows; base += DENDP_FLOAT_ROWS) {
        uint32_t rows = dendp_min_u32(DENDP_FLOAT_ROWS, n_rows - base);
        memset(chain, 0, sizeof chain);
        for (first = 0; first < k; first += DENDP_FLOAT_STEP) {
            uint32_t n = dendp_min_u32(DENDP_FLOAT_STEP, k - first);
            for (i = 0; i < n; i++) {
                dendp_widen16(form, panel, first + i, w + i * 16);
            }
            for (r = 0; r < rows; r += 4) {
                const float *xr = x + (size_t)(base + r) * ldx + first;
                switch (rows - r) {
                case 1:
                    dendp_float_rows(1, w, n, xr, ldx, chain[0][r], chain_stride);
                    break;
                case 2:
                    dendp_float_rows(2, w, n, xr, ldx, chain[0][r], chain_stride);
                    break;
                case 3:
                    dendp_float_rows(3, w, n, xr, ldx, chain[0][r], chain_stride);
                    break;
                default:
                    dendp_float_rows(4, w, n, xr, ldx, chain[0][r], chain_stride);
                    break;
                }
            }
        }
        for (r = 0; r < rows; r++) {
            for (i = 0; i < 16; i++) {
                y[(base + r) * ldy + i] =
                    dendp_keep(chain[0][r][i] + chain[1][r][i]) + dendp_keep(chain[2][r][i] + chain[3][r][i]);
            }
        }
    }
}

#define DENDP_FLOAT_AVX2(name, form)                                                                         \
    DENDP_TARGET_AVX2 static void name(const unsigned char *panel, uint32_t k, const float *x, size_t ldx,   \
                                       uint32_t n_rows, float *y, size_t ldy) {                              \
        dendp_float_panel(form, panel, k, x, ldx, n_rows, y, ldy);                                           \
    }
DENDP_FLOAT_AVX2(dendp_float_f32_avx2, DENDP_FORM_F32)
DENDP_FLOAT_AVX2(dendp_float_f16_avx2, DENDP_FORM_F16)
DENDP_FLOAT_AVX2(dendp_float_bf16_avx2, DENDP_FORM_BF16)

/* -- activations ---------------------------------------------------------------- */

/* x with NaN as 0 and infinities as the largest floats. */
DENDP_INLINE_AVX2 __m256i dendp_clean8(__m256i x, __m256i *size) {
    const __m256i sign = _mm256_set1_epi32((int32_t)0x80000000u);
    __m256i a = _mm256_andnot_si256(sign, x);
    __m256i nan = _mm256_cmpgt_epi32(a, _mm256_set1_epi32(0x7f800000));
    a = _mm256_andnot_si256(nan, _mm256_min_epi32(a, _mm256_set1_epi32((int32_t)DENDP_ACT_MOST)));
    *size = a;
    return _mm256_or_si256(a, _mm256_and_si256(x, sign));
}

DENDP_INLINE_AVX2 __m256i dendp_codes8(__m256i x, __m256 inverse) {
    return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_castsi256_ps(x), inverse));
}

DENDP_TARGET_AVX2 static void dendp_act_block_avx2(const float *x, dendp_act_block *out) {
    __m256i a0, a1, a2, a3, x0, x1, x2, x3, pairs;
    __m128i m, low, high;
    __m256 inverse;
    uint32_t most;
    float amax;
    x0 = dendp_clean8(dendp_load256(x), &a0);
    x1 = dendp_clean8(dendp_load256(x + 8), &a1);
    x2 = dendp_clean8(dendp_load256(x + 16), &a2);
    x3 = dendp_clean8(dendp_load256(x + 24), &a3);
    a0 = _mm256_max_epi32(_mm256_max_epi32(a0, a1), _mm256_max_epi32(a2, a3));
    m = _mm_max_epi32(_mm256_castsi256_si128(a0), _mm256_extracti128_si256(a0, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    most = (uint32_t)_mm_cvtsi128_si32(m);
    if (most < DENDP_ACT_LEAST) {
        dendp_act_zero(out);
        return;
    }
    amax = dendp_bits_f32(most);
    inverse = _mm256_set1_ps(dendp_act_inverse(amax));
    x0 = _mm256_packs_epi32(dendp_codes8(x0, inverse), dendp_codes8(x1, inverse));
    x2 = _mm256_packs_epi32(dendp_codes8(x2, inverse), dendp_codes8(x3, inverse));
    /* packing works within 128-bit lanes: fours 0 2 4 6 | 1 3 5 7 come back in order */
    x0 = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(x0, x2), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    dendp_store256(out->q, x0);
    /* even and odd pair sums of each four, then over the four fours of each 16 k */
    pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), x0);
    pairs = _mm256_add_epi16(pairs, _mm256_shuffle_epi32(pairs, 0x4e));
    pairs = _mm256_add_epi16(pairs, _mm256_shuffle_epi32(pairs, 0xb1));
    pairs = _mm256_sub_epi16(_mm256_setzero_si256(), pairs);
    low = _mm256_castsi256_si128(pairs);
    high = _mm_add_epi16(low, _mm256_extracti128_si256(pairs, 1));
    out->n_low = _mm_cvtsi128_si32(_mm_madd_epi16(low, _mm_set1_epi16(1)));
    out->n = _mm_cvtsi128_si32(_mm_madd_epi16(high, _mm_set1_epi16(1)));
    out->p_low[0] = (int16_t)_mm_extract_epi16(low, 0);
    out->p_low[1] = (int16_t)_mm_extract_epi16(low, 1);
    out->p[0] = (int16_t)_mm_extract_epi16(high, 0);
    out->p[1] = (int16_t)_mm_extract_epi16(high, 1);
    out->scale = dendp_keep(amax * DENDP_ACT_127TH);
    out->min_factor = out->scale * (float)-out->n;
}

DENDP_TARGET_AVX2 static void dendp_act_row_avx2(const float *x, uint32_t k, uint32_t n_blocks,
                                                 dendp_act_block *out, size_t stride) {
    uint32_t t, whole = dendp_min_u32(n_blocks, k / 32);
    for (t = 0; t < whole; t++) {
        dendp_act_block_avx2(x + t * 32, out + t * stride);
    }
    if (t < n_blocks) {
        dendp_act_row_scalar(x + (t * 32 < k ? t * 32 : 0), t * 32 < k ? k - t * 32 : 0, n_blocks - t,
                             out + t * stride, stride);
    }
}

#endif
