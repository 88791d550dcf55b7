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
 *     8 bits         few rows: split into nibbles, code = 16 * high + low: two
 *                    sums of 4-bit codes, madd with 16s and with 1s. Many rows:
 *                    both operands widened to 16 bits, and madd alone, exact.
 *                    Either way it takes twice the instructions of 4 bits.
 *
 * 16 lanes are two registers of 8, "low" (lanes 0-7) and "high" below, and 16
 * registers are few. Two ways through a panel:
 *
 *     a few rows    straight: codes are unpacked in registers, block after
 *                   block, for up to 4 rows, while the next ones are fetched
 *     more          by units of 256 k: codes are unpacked to bytes in the
 *                   first-level cache (4 KB) once, and then each 4 rows run
 *                   over all 8 blocks: 8 sums and 2 vectors of weights in
 *                   registers, and per 2 maddubs one broadcast and 2 additions
 *
 * Straight, codes of 8 bits need twice the sums and go by 2 rows.
 *
 * The floats y stay in memory, one load and one store a block. Variables have
 * names, since gcc 12 keeps arrays of vectors on the stack.
 *
 * Results are those of the scalar room, bit for bit. docs/performance.md says
 * how fast this is and what was tried.
 * ======================================================================== */

#if DENDP_X86

#define DENDP_TARGET_AVX2 __attribute__((target("avx2,fma,f16c")))
#define DENDP_INLINE_AVX2 DENDP_TARGET_AVX2 static inline __attribute__((always_inline))
#define DENDP_NOINLINE __attribute__((noinline))
#define DENDP_ALIGNED __attribute__((aligned(64))) /* no vector on the stack straddles a cache line */

/* Both vectors are computed by here. Without this gcc regroups additions, runs
 * all products of a block first and spills them. */
#define DENDP_FIX256(v, w) __asm__ volatile("" : "+x"(v), "+x"(w));

#define DENDP_UNIT_BLOCKS 8
#define DENDP_PREFETCH 3072 /* bytes ahead in the panel's stream */

/* Up to 8 blocks of a panel, unpacked. Vector j of block t holds, for each
 * lane, codes 4j ... 4j+3: code[t][64 j + 4 lane + ...]. Of 8-bit forms vector
 * j < 16 holds code - 128 of k 2j and 2j+1 as 16-bit numbers, and wide[t] the
 * q of a tile's rows likewise. */
typedef struct dendp_unit {
    unsigned char code[DENDP_UNIT_BLOCKS][1024];
    int16_t wide[DENDP_UNIT_BLOCKS][DENDP_TILE_ROWS * 32];
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

/* The parts of one block in a panel. */
typedef struct dendp_block_parts {
    const unsigned char *q, *h, *s, *header;
} dendp_block_parts;

DENDP_INLINE_AVX2 dendp_block_parts dendp_parts(const dendp_form form, const unsigned char *group,
                                                const unsigned char *header, uint32_t t) {
    const dendp_form_layout *l = &dendp_form_layouts[form];
    dendp_block_parts p;
    p.q = group + t % 2 * l->q_bytes;
    p.h = group + 2 * l->q_bytes + t % 2 * l->h_bytes;
    p.s = group + 2 * (l->q_bytes + l->h_bytes) + t % 2 * l->s_bytes;
    p.header = header;
    return p;
}

/* Vector j < 8 of a block, lanes 0-7 (half = 0) or 8-15 (half = 32): codes of
 * k 4j ... 4j+3. High bits are shifted to bit 4 of their byte and all else is
 * masked away: what a 16-bit shift drags in from the neighbour byte lies
 * outside the mask. */
DENDP_INLINE_AVX2 __m256i dendp_unpack_vector(const dendp_form form, dendp_block_parts p, const int j,
                                              const int half) {
    const uint32_t h_bytes = dendp_form_layouts[form].h_bytes;
    const int i = j % 4;
    __m256i v = dendp_load256(p.q + i * 64 + half), f;
    v = _mm256_and_si256(j < 4 ? v : _mm256_srli_epi16(v, 4), _mm256_set1_epi8(15));
    if (h_bytes == 64) { /* bit i for low nibbles, bit 4 + i for high ones */
        f = dendp_load256(p.h + half);
        f = j < 4 ? _mm256_slli_epi16(f, 4 - i) : i == 0 ? f : _mm256_srli_epi16(f, i);
        v = _mm256_or_si256(v, _mm256_and_si256(f, _mm256_set1_epi8(0x10)));
    } else if (h_bytes == 128) { /* bits 2i, 2i + 1 of the vector for low or for high nibbles */
        f = dendp_load256(p.h + j / 4 * 64 + half);
        f = i < 2 ? _mm256_slli_epi16(f, 4 - 2 * i) : i == 2 ? f : _mm256_srli_epi16(f, 2);
        v = _mm256_or_si256(v, _mm256_and_si256(f, _mm256_set1_epi8(0x30)));
    }
    return v;
}

/* Scales of lanes i ... i+7 of a block. */
DENDP_INLINE_AVX2 __m256 dendp_unpack_scale(const dendp_form form, dendp_block_parts p, const int i) {
    if (form == DENDP_FORM_Q6_K) {
        return _mm256_mul_ps(dendp_halves8(p.header + i * 2), dendp_signed8x8(p.s + i));
    }
    if (dendp_form_layouts[form].header_bytes) {
        return _mm256_mul_ps(dendp_halves8(p.header + i * 2), dendp_bytes8(p.s + i));
    }
    return dendp_halves8(p.s + i * 2);
}

/* Their minima, or the second scales of Q6_K; nothing for forms without. */
DENDP_INLINE_AVX2 __m256 dendp_unpack_other(const dendp_form form, dendp_block_parts p, const int i) {
    if (form == DENDP_FORM_Q6_K) {
        return _mm256_mul_ps(dendp_halves8(p.header + i * 2), dendp_signed8x8(p.s + 16 + i));
    }
    if (dendp_form_layouts[form].header_bytes) {
        __m256 least = _mm256_mul_ps(dendp_halves8(p.header + 32 + i * 2), dendp_bytes8(p.s + 16 + i));
        return _mm256_xor_ps(least, _mm256_set1_ps(-0.0f));
    }
    return dendp_form_layouts[form].s_bytes == 64 ? dendp_halves8(p.s + 32 + i * 2) : _mm256_setzero_ps();
}

/* Blocks from ... from + n of a panel -> unit. from is a multiple of 8. */
DENDP_INLINE_AVX2 void dendp_unpack_unit(const dendp_form form, const unsigned char *panel, uint32_t from,
                                         uint32_t n, dendp_unit *unit) {
    const dendp_form_layout *l = &dendp_form_layouts[form];
    const unsigned char *group = panel + dendp_group_offset(l, from / 2);
    const unsigned char *header = group - l->header_bytes;
    const __m256i first = _mm256_setr_epi8(-1, 0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1, 0,
                                           -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13);
    const __m256i second = _mm256_setr_epi8(-1, 2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1, 2,
                                            -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15);
    uint32_t t;
    int i;
    for (t = 0; t < n; t++) {
        dendp_block_parts p = dendp_parts(form, group, header, t);
        for (i = 0; i < 64; i += 32) {
            unsigned char *code = unit->code[t] + i;
            if (form == DENDP_FORM_Q8_0) {
                int j;
                for (j = 0; j < 8; j++) {
                    __m256i v = dendp_load256(p.q + j * 64 + i);
                    v = _mm256_xor_si256(v, _mm256_set1_epi8(-128)); /* excess 128 to two's complement */
                    /* bytes 0, 1 of each lane to the high halves of its 16-bit numbers, then 2, 3; shift down */
                    dendp_store256(code + j * 128, _mm256_srai_epi16(_mm256_shuffle_epi8(v, first), 8));
                    dendp_store256(code + j * 128 + 64, _mm256_srai_epi16(_mm256_shuffle_epi8(v, second), 8));
                }
                continue;
            }
            dendp_store256(code, dendp_unpack_vector(form, p, 0, i));
            dendp_store256(code + 64, dendp_unpack_vector(form, p, 1, i));
            dendp_store256(code + 128, dendp_unpack_vector(form, p, 2, i));
            dendp_store256(code + 192, dendp_unpack_vector(form, p, 3, i));
            dendp_store256(code + 256, dendp_unpack_vector(form, p, 4, i));
            dendp_store256(code + 320, dendp_unpack_vector(form, p, 5, i));
            dendp_store256(code + 384, dendp_unpack_vector(form, p, 6, i));
            dendp_store256(code + 448, dendp_unpack_vector(form, p, 7, i));
        }
        for (i = 0; i < 16; i += 8) {
            _mm256_storeu_ps(unit->scale[t] + i, dendp_unpack_scale(form, p, i));
            if (form == DENDP_FORM_Q6_K || l->centre == 0) {
                _mm256_storeu_ps(unit->other[t] + i, dendp_unpack_other(form, p, i));
            }
        }
        group += t % 2 ? 2 * (l->q_bytes + l->h_bytes + l->s_bytes) : 0;
    }
}

/* Not inlined into a caller: scales pass through memory, so that no compiler
 * regroups d * s * activation scale. */
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

/* -- one block, R rows -------------------------------------------------------- */

/* Where the weights of a block are: unpacked, or ("direct") in the panel. */
typedef struct dendp_weights {
    const unsigned char *code;
    const float *scale, *other;
    dendp_block_parts parts;
} dendp_weights;

/* Scales of lanes i ... i+7; passed through a register that no compiler looks
 * through, so that d * s * activation scale is not regrouped. */
DENDP_INLINE_AVX2 __m256 dendp_scale8(const dendp_form form, const int direct, const dendp_weights *w,
                                      const int i) {
    __m256 v = direct ? dendp_unpack_scale(form, w->parts, i) : _mm256_loadu_ps(w->scale + i);
    __asm__("" : "+x"(v));
    return v;
}

DENDP_INLINE_AVX2 __m256 dendp_other8(const dendp_form form, const int direct, const dendp_weights *w,
                                      const int i) {
    __m256 v = direct ? dendp_unpack_other(form, w->parts, i) : _mm256_loadu_ps(w->other + i);
    __asm__("" : "+x"(v));
    return v;
}

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

/* Vector j of the block times k 4j ... 4j+3 of each row, onto the 16-bit sums. */
#define DENDP_ADD(r)                                                                                         \
    x = dendp_four(a[r].q + at);                                                                             \
    u = _mm256_maddubs_epi16(w_low, x);                                                                      \
    v = _mm256_maddubs_epi16(w_high, x);                                                                     \
    DENDP_FIX256(u, v)                                                                                       \
    l##r = _mm256_add_epi16(l##r, u);                                                                        \
    h##r = _mm256_add_epi16(h##r, v);                                                                        \
    DENDP_FIX256(l##r, h##r)
#define DENDP_STEP(j)                                                                                        \
    {                                                                                                        \
        const int at = (j)*4;                                                                                \
        w_low = direct ? dendp_unpack_vector(form, w->parts, j, 0) : dendp_load256(w->code + (j)*64);        \
        w_high = direct ? dendp_unpack_vector(form, w->parts, j, 32) : dendp_load256(w->code + (j)*64 + 32); \
        DENDP_EACH_ROW(R, DENDP_ADD)                                                                         \
    }

/* Codes of 4, 5 and 6 bits against rows a[0] ... a[R-1]; y [R][16]. */
DENDP_INLINE_AVX2 void dendp_block_narrow(const dendp_form form, const int R, const int direct,
                                          const dendp_weights *w, const dendp_act_block *a, float *y) {
    const __m256i ones = _mm256_set1_epi16(1);
    const int bits = form == DENDP_FORM_Q6_K ? 6 : dendp_form_layouts[form].h_bytes ? 5 : 4;
    const int has_min = dendp_form_layouts[form].centre == 0;
    /* log2 of the centre that 16-bit sums take, and whether the form has it too */
    const int shift = bits == 6 ? 5 : bits == 5 ? 4 : 3, centred = bits > 4 || !has_min;
    __m256i l0 = _mm256_setzero_si256(), l1 = l0, l2 = l0, l3 = l0, h0 = l0, h1 = l0, h2 = l0, h3 = l0;
    __m256i w_low, w_high, x, u, v;
    __m256 s0 = _mm256_setzero_ps(), s1 = s0, s2 = s0, s3 = s0, t0 = s0, t1 = s0, t2 = s0, t3 = s0;
    __m256 scale_low, scale_high, other_low = s0, other_high = s0;
#define DENDP_START(r) l##r = h##r = _mm256_slli_epi16(dendp_four(bits == 6 ? a[r].p_low : a[r].p), shift);
    if (centred) {
        DENDP_EACH_ROW(R, DENDP_START)
    }
#undef DENDP_START
    DENDP_STEP(0)
    DENDP_STEP(1)
    DENDP_STEP(2)
    DENDP_STEP(3)
    if (bits == 6) { /* the first 16 k have a scale of their own */
        scale_low = dendp_scale8(form, direct, w, 0);
        scale_high = dendp_scale8(form, direct, w, 8);
#define DENDP_FIRST(r)                                                                                       \
    s##r = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_madd_epi16(l##r, ones)), scale_low);                      \
    t##r = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_madd_epi16(h##r, ones)), scale_high);                     \
    l##r = h##r = _mm256_slli_epi16(_mm256_sub_epi16(dendp_four(a[r].p), dendp_four(a[r].p_low)), shift);
        DENDP_EACH_ROW(R, DENDP_FIRST)
#undef DENDP_FIRST
    }
    DENDP_STEP(4)
    DENDP_STEP(5)
    DENDP_STEP(6)
    DENDP_STEP(7)
    if (bits < 6) {
        scale_low = dendp_scale8(form, direct, w, 0);
        scale_high = dendp_scale8(form, direct, w, 8);
    }
    if (bits == 6 || has_min) {
        other_low = dendp_other8(form, direct, w, 0);
        other_high = dendp_other8(form, direct, w, 8);
    }
#define DENDP_FOLD(r)                                                                                        \
    l##r = _mm256_madd_epi16(l##r, ones);                                                                    \
    h##r = _mm256_madd_epi16(h##r, ones);                                                                    \
    if (centred && has_min) { /* the centre was only a detour: add 16 * sum q again */                       \
        x = _mm256_slli_epi32(dendp_four(&a[r].n), shift);                                                   \
        l##r = _mm256_sub_epi32(l##r, x);                                                                    \
        h##r = _mm256_sub_epi32(h##r, x);                                                                    \
    }                                                                                                        \
    {                                                                                                        \
        __m256 scale = _mm256_broadcast_ss(&a[r].scale);                                                     \
        __m256 y_low = _mm256_loadu_ps(y + (r)*16), y_high = _mm256_loadu_ps(y + (r)*16 + 8);                \
        if (bits == 6) {                                                                                     \
            s##r = _mm256_fmadd_ps(_mm256_cvtepi32_ps(l##r), other_low, s##r);                               \
            t##r = _mm256_fmadd_ps(_mm256_cvtepi32_ps(h##r), other_high, t##r);                              \
            y_low = _mm256_fmadd_ps(s##r, scale, y_low);                                                     \
            y_high = _mm256_fmadd_ps(t##r, scale, y_high);                                                   \
        } else {                                                                                             \
            y_low = _mm256_fmadd_ps(_mm256_cvtepi32_ps(l##r), _mm256_mul_ps(scale_low, scale), y_low);       \
            y_high = _mm256_fmadd_ps(_mm256_cvtepi32_ps(h##r), _mm256_mul_ps(scale_high, scale), y_high);    \
        }                                                                                                    \
        if (has_min) {                                                                                       \
            scale = _mm256_broadcast_ss(&a[r].min_factor);                                                   \
            y_low = _mm256_fmadd_ps(other_low, scale, y_low);                                                \
            y_high = _mm256_fmadd_ps(other_high, scale, y_high);                                             \
        }                                                                                                    \
        _mm256_storeu_ps(y + (r)*16, y_low);                                                                 \
        _mm256_storeu_ps(y + (r)*16 + 8, y_high);                                                            \
    }
    DENDP_EACH_ROW(R, DENDP_FOLD)
#undef DENDP_FOLD
}

#undef DENDP_ADD
#undef DENDP_STEP

/* Codes of 8 bits as two nibbles, from the panel, against R <= 2 rows. l, h:
 * sums of low nibbles for lanes 0-7, 8-15; m, n: of high nibbles. */
DENDP_INLINE_AVX2 void dendp_block_wide(const int R, const dendp_weights *w, const dendp_act_block *a,
                                        float *y) {
    const __m256i ones = _mm256_set1_epi16(1), sixteens = _mm256_set1_epi16(16),
                  nibble = _mm256_set1_epi8(15);
    __m256i l0 = _mm256_setzero_si256(), l1 = l0, h0 = l0, h1 = l0, m0 = l0, m1 = l0, n0 = l0, n1 = l0;
    __m256i w_low, w_high, x, u, v;
    __m256 scale_low, scale_high;
#define DENDP_ADD(low, high, r)                                                                              \
    x = dendp_four(a[r].q + at);                                                                             \
    u = _mm256_maddubs_epi16(w_low, x);                                                                      \
    v = _mm256_maddubs_epi16(w_high, x);                                                                     \
    DENDP_FIX256(u, v)                                                                                       \
    low = _mm256_add_epi16(low, u);                                                                          \
    high = _mm256_add_epi16(high, v);                                                                        \
    DENDP_FIX256(low, high)
#define DENDP_STEP(j)                                                                                        \
    {                                                                                                        \
        const int at = (j)*4;                                                                                \
        w_low = _mm256_and_si256(dendp_load256(w->parts.q + (j)*64), nibble);                                \
        w_high = _mm256_and_si256(dendp_load256(w->parts.q + (j)*64 + 32), nibble);                          \
        DENDP_ADD(l0, h0, 0)                                                                                 \
        if (R > 1) {                                                                                         \
            DENDP_ADD(l1, h1, 1)                                                                             \
        }                                                                                                    \
        w_low = _mm256_and_si256(_mm256_srli_epi16(dendp_load256(w->parts.q + (j)*64), 4), nibble);          \
        w_high = _mm256_and_si256(_mm256_srli_epi16(dendp_load256(w->parts.q + (j)*64 + 32), 4), nibble);    \
        DENDP_ADD(m0, n0, 0)                                                                                 \
        if (R > 1) {                                                                                         \
            DENDP_ADD(m1, n1, 1)                                                                             \
        }                                                                                                    \
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
    scale_low = dendp_scale8(DENDP_FORM_Q8_0, 1, w, 0);
    scale_high = dendp_scale8(DENDP_FORM_Q8_0, 1, w, 8);
#define DENDP_FOLD(r)                                                                                        \
    x = _mm256_slli_epi32(dendp_four(&a[r].n), 7);                                                           \
    l##r = _mm256_add_epi32(_mm256_madd_epi16(l##r, ones), _mm256_madd_epi16(m##r, sixteens));               \
    h##r = _mm256_add_epi32(_mm256_madd_epi16(h##r, ones), _mm256_madd_epi16(n##r, sixteens));               \
    l##r = _mm256_add_epi32(l##r, x);                                                                        \
    h##r = _mm256_add_epi32(h##r, x);                                                                        \
    {                                                                                                        \
        __m256 scale = _mm256_broadcast_ss(&a[r].scale), y_low, y_high;                                      \
        y_low = _mm256_loadu_ps(y + (r)*16);                                                                 \
        y_high = _mm256_loadu_ps(y + (r)*16 + 8);                                                            \
        y_low = _mm256_fmadd_ps(_mm256_cvtepi32_ps(l##r), _mm256_mul_ps(scale_low, scale), y_low);           \
        y_high = _mm256_fmadd_ps(_mm256_cvtepi32_ps(h##r), _mm256_mul_ps(scale_high, scale), y_high);        \
        _mm256_storeu_ps(y + (r)*16, y_low);                                                                 \
        _mm256_storeu_ps(y + (r)*16 + 8, y_high);                                                            \
    }
    DENDP_FOLD(0)
    if (R > 1) {
        DENDP_FOLD(1)
    }
#undef DENDP_FOLD
}

/* Codes of 8 bits as 16-bit numbers, unpacked, against R <= 4 rows whose q are
 * at wide [R][32]. */
DENDP_INLINE_AVX2 void dendp_block_wide16(const int R, const dendp_weights *w, const int16_t *wide,
                                          const dendp_act_block *a, float *y) {
    __m256i l0 = _mm256_setzero_si256(), l1 = l0, l2 = l0, l3 = l0, h0 = l0, h1 = l0, h2 = l0, h3 = l0;
    __m256i w_low, w_high, x, u, v;
    __m256 scale_low, scale_high;
    int j;
#define DENDP_ADD(r)                                                                                         \
    x = dendp_four(wide + (r)*32 + at);                                                                      \
    u = _mm256_madd_epi16(w_low, x);                                                                         \
    v = _mm256_madd_epi16(w_high, x);                                                                        \
    DENDP_FIX256(u, v)                                                                                       \
    l##r = _mm256_add_epi32(l##r, u);                                                                        \
    h##r = _mm256_add_epi32(h##r, v);                                                                        \
    DENDP_FIX256(l##r, h##r)
#define DENDP_STEP(i)                                                                                        \
    {                                                                                                        \
        const int at = (j + (i)) * 2;                                                                        \
        w_low = dendp_load256(w->code + (j + (i)) * 64);                                                     \
        w_high = dendp_load256(w->code + (j + (i)) * 64 + 32);                                               \
        DENDP_EACH_ROW(R, DENDP_ADD)                                                                         \
    }
    for (j = 0; j < 16; j += 4) {
        DENDP_STEP(0)
        DENDP_STEP(1)
        DENDP_STEP(2)
        DENDP_STEP(3)
    }
#undef DENDP_STEP
#undef DENDP_ADD
    scale_low = _mm256_loadu_ps(w->scale);
    scale_high = _mm256_loadu_ps(w->scale + 8);
#define DENDP_FOLD(r)                                                                                        \
    {                                                                                                        \
        __m256 scale = _mm256_broadcast_ss(&a[r].scale), y_low, y_high;                                      \
        y_low = _mm256_loadu_ps(y + (r)*16);                                                                 \
        y_high = _mm256_loadu_ps(y + (r)*16 + 8);                                                            \
        y_low = _mm256_fmadd_ps(_mm256_cvtepi32_ps(l##r), _mm256_mul_ps(scale_low, scale), y_low);           \
        y_high = _mm256_fmadd_ps(_mm256_cvtepi32_ps(h##r), _mm256_mul_ps(scale_high, scale), y_high);        \
        _mm256_storeu_ps(y + (r)*16, y_low);                                                                 \
        _mm256_storeu_ps(y + (r)*16 + 8, y_high);                                                            \
    }
    DENDP_EACH_ROW(R, DENDP_FOLD)
#undef DENDP_FOLD
}

/* -- many blocks -------------------------------------------------------------- */

/* Asks for the next bytes of the panel's stream, one block's worth. */
DENDP_INLINE_AVX2 void dendp_prefetch(const unsigned char *from, uint32_t n_bytes) {
    uint32_t i;
    for (i = 0; i < n_bytes; i += 64) {
        _mm_prefetch((const char *)from + i, _MM_HINT_T0);
    }
}

/* An unpacked unit of n blocks against R rows, the first of them row `row` of
 * its tile.  a: that row's block 0, rows adjacent, blocks a_stride apart.
 * y [R][16].  ahead: what to fetch meanwhile, ahead_bytes a block (0 = nothing). */
DENDP_INLINE_AVX2 void dendp_rows(const dendp_form form, const int R, const dendp_unit *unit, uint32_t n,
                                  const dendp_act_block *a, size_t a_stride, uint32_t row, float *y,
                                  const unsigned char *ahead, uint32_t ahead_bytes) {
    uint32_t t;
    for (t = 0; t < n; t++, a += a_stride, ahead += ahead_bytes) {
        dendp_weights w;
        memset(&w, 0, sizeof w);
        w.code = unit->code[t];
        w.scale = unit->scale[t];
        w.other = unit->other[t];
        __asm__("" : "+r"(y)); /* y stays in memory: kept in registers it would be spilled all the same */
        dendp_prefetch(ahead, ahead_bytes);
        if (form == DENDP_FORM_Q8_0) {
            dendp_block_wide16(R, &w, unit->wide[t] + row * 32, a, y);
        } else {
            dendp_block_narrow(form, R, 0, &w, a, y);
        }
    }
}

/* A whole panel against R <= 4 rows (2 for 8 bits).  a, y: as above. */
DENDP_INLINE_AVX2 void dendp_rows_direct(const dendp_form form, const int R, const unsigned char *panel,
                                         uint32_t n_blocks, const dendp_act_block *a, size_t a_stride,
                                         float *y) {
    const dendp_form_layout *l = &dendp_form_layouts[form];
    const unsigned char *group = panel + l->header_bytes, *header = panel;
    const uint32_t block_bytes = l->q_bytes + l->h_bytes + l->s_bytes;
    uint32_t t;
    for (t = 0; t < n_blocks; t++, a += a_stride) {
        dendp_weights w;
        memset(&w, 0, sizeof w);
        w.parts = dendp_parts(form, group, header, t);
        __asm__("" : "+r"(y));
        dendp_prefetch(group + t % 2 * block_bytes + DENDP_PREFETCH, block_bytes);
        if (form == DENDP_FORM_Q8_0) {
            dendp_block_wide(R, &w, a, y);
        } else {
            dendp_block_narrow(form, R, 1, &w, a, y);
        }
        if (t % 2) {
            group += 2 * block_bytes;
            if (l->header_bytes && t % 8 == 7) {
                header = group;
                group += l->header_bytes;
            }
        }
    }
}

/* One function for each number of rows, so that all of it is constant inside. */
typedef void (*dendp_rows_fn)(const dendp_unit *unit, uint32_t n, const dendp_act_block *a, size_t a_stride,
                              uint32_t row, float *y, const unsigned char *ahead, uint32_t ahead_bytes);
typedef void (*dendp_direct_fn)(const unsigned char *panel, uint32_t n_blocks, const dendp_act_block *a,
                                size_t a_stride, float *y);

#define DENDP_ROWS(name, form, R)                                                                            \
    DENDP_TARGET_AVX2 DENDP_NOINLINE static void name(                                                       \
        const dendp_unit *unit, uint32_t n, const dendp_act_block *a, size_t a_stride, uint32_t row,         \
        float *y, const unsigned char *ahead, uint32_t ahead_bytes) {                                        \
        (void)row;                                                                                           \
        dendp_rows(form, R, unit, n, a, a_stride, row, y, ahead, ahead_bytes);                               \
    }
#define DENDP_DIRECT(name, form, R)                                                                          \
    DENDP_TARGET_AVX2 DENDP_NOINLINE static void name(const unsigned char *panel, uint32_t n_blocks,         \
                                                      const dendp_act_block *a, size_t a_stride, float *y) { \
        dendp_rows_direct(form, R, panel, n_blocks, a, a_stride, y);                                         \
    }
#define DENDP_ROWS_4(name, form)                                                                             \
    DENDP_ROWS(name##_rows1, form, 1)                                                                        \
    DENDP_ROWS(name##_rows2, form, 2)                                                                        \
    DENDP_ROWS(name##_rows3, form, 3)                                                                        \
    DENDP_ROWS(name##_rows4, form, 4)
#define DENDP_DIRECT_4(name, form)                                                                           \
    DENDP_DIRECT(name##_direct1, form, 1)                                                                    \
    DENDP_DIRECT(name##_direct2, form, 2)                                                                    \
    DENDP_DIRECT(name##_direct3, form, 3)                                                                    \
    DENDP_DIRECT(name##_direct4, form, 4)

/* Unpacked, Q4_K is like Q4_1 and Q5_K like Q5_1. */
DENDP_ROWS_4(dendp_q4_0, DENDP_FORM_Q4_0)
DENDP_ROWS_4(dendp_q4_1, DENDP_FORM_Q4_1)
DENDP_ROWS_4(dendp_q5_0, DENDP_FORM_Q5_0)
DENDP_ROWS_4(dendp_q5_1, DENDP_FORM_Q5_1)
DENDP_ROWS_4(dendp_q6_k, DENDP_FORM_Q6_K)
DENDP_ROWS_4(dendp_q8_0, DENDP_FORM_Q8_0)
DENDP_DIRECT_4(dendp_q4_0, DENDP_FORM_Q4_0)
DENDP_DIRECT_4(dendp_q4_1, DENDP_FORM_Q4_1)
DENDP_DIRECT_4(dendp_q5_0, DENDP_FORM_Q5_0)
DENDP_DIRECT_4(dendp_q5_1, DENDP_FORM_Q5_1)
DENDP_DIRECT_4(dendp_q4_k, DENDP_FORM_Q4_K)
DENDP_DIRECT_4(dendp_q5_k, DENDP_FORM_Q5_K)
DENDP_DIRECT_4(dendp_q6_k, DENDP_FORM_Q6_K)
DENDP_DIRECT(dendp_q8_0_direct1, DENDP_FORM_Q8_0, 1)
DENDP_DIRECT(dendp_q8_0_direct2, DENDP_FORM_Q8_0, 2)

/* How AVX2 treats a form. direct[i] and rows[i] take i + 1 rows. */
typedef struct dendp_avx2_form {
    uint32_t most_direct; /* up to so many rows straight from the panel, `step` at a time */
    uint32_t step;
    dendp_direct_fn direct[4];
    void (*unpack)(const unsigned char *panel, uint32_t first, uint32_t n, dendp_unit *unit);
    dendp_rows_fn rows[4];
} dendp_avx2_form;

#define DENDP_FORM_AVX2(form, like, most_direct)                                                             \
    {                                                                                                        \
        most_direct, 4,                                                                                      \
            {dendp_##form##_direct1, dendp_##form##_direct2, dendp_##form##_direct3,                         \
             dendp_##form##_direct4},                                                                        \
            dendp_unpack_##form, {                                                                           \
            dendp_##like##_rows1, dendp_##like##_rows2, dendp_##like##_rows3, dendp_##like##_rows4           \
        }                                                                                                    \
    }
static const dendp_avx2_form dendp_avx2_forms[DENDP_N_QUANT_FORMS] = {
    DENDP_FORM_AVX2(q4_0, q4_0, 8),
    DENDP_FORM_AVX2(q4_1, q4_1, 8),
    DENDP_FORM_AVX2(q5_0, q5_0, 4),
    DENDP_FORM_AVX2(q5_1, q5_1, 4),
    {6,
     2,
     {dendp_q8_0_direct1, dendp_q8_0_direct2, NULL, NULL},
     dendp_unpack_q8_0,
     {dendp_q8_0_rows1, dendp_q8_0_rows2, dendp_q8_0_rows3, dendp_q8_0_rows4}},
    DENDP_FORM_AVX2(q4_k, q4_1, 6),
    DENDP_FORM_AVX2(q5_k, q5_1, 4),
    DENDP_FORM_AVX2(q6_k, q6_k, 4),
};

/* q of `rows` rows of a tile, n blocks, as 16-bit numbers. */
DENDP_TARGET_AVX2 static void dendp_widen_rows(const dendp_act_block *a, uint32_t rows, uint32_t n,
                                               dendp_unit *unit) {
    uint32_t t, r;
    for (t = 0; t < n; t++) {
        for (r = 0; r < rows; r++, a++) {
            const __m128i *q = (const __m128i *)(const void *)a->q;
            dendp_store256(unit->wide[t] + r * 32, _mm256_cvtepi8_epi16(_mm_loadu_si128(q)));
            dendp_store256(unit->wide[t] + r * 32 + 16, _mm256_cvtepi8_epi16(_mm_loadu_si128(q + 1)));
        }
    }
}

/* One panel against n_rows <= DENDP_MATMUL_ROWS rows: y[r * ldy + i], i < 16. */
static void dendp_quant_avx2(dendp_form form, const unsigned char *panel, uint32_t n_blocks,
                             const dendp_act_block *act, uint32_t n_rows, float *y, size_t ldy) {
    const dendp_avx2_form *f = &dendp_avx2_forms[form];
    const dendp_form_layout *l = &dendp_form_layouts[form];
    const uint32_t block_bytes = l->q_bytes + l->h_bytes + l->s_bytes;
    float sum[DENDP_MATMUL_ROWS][DENDP_LANES] DENDP_ALIGNED;
    dendp_unit unit DENDP_ALIGNED;
    uint32_t first, tile, r;
    memset(sum, 0, n_rows * sizeof sum[0]);
    for (r = 0; r < n_rows; r++) { /* y is far away where rows are many: stores that waited for it took 5% */
        __builtin_prefetch(y + r * ldy, 1, 3);
    }
    for (r = 0; r < n_rows && n_rows <= f->most_direct; r += f->step) {
        f->direct[dendp_min_u32(f->step, n_rows - r) - 1](panel, n_blocks, act + r, n_rows, sum[r]);
    }
    for (first = 0; first < n_blocks && n_rows > f->most_direct; first += DENDP_UNIT_BLOCKS) {
        uint32_t n = dendp_min_u32(DENDP_UNIT_BLOCKS, n_blocks - first);
        const unsigned char *next = panel + dendp_group_offset(l, first / 2 + DENDP_UNIT_BLOCKS / 2);
        f->unpack(panel, first, n, &unit);
        for (tile = 0; tile < n_rows; tile += DENDP_TILE_ROWS) {
            uint32_t tile_rows = dendp_min_u32(DENDP_TILE_ROWS, n_rows - tile);
            const dendp_act_block *a = act + (size_t)tile * n_blocks + (size_t)first * tile_rows;
            if (form == DENDP_FORM_Q8_0) {
                dendp_widen_rows(a, tile_rows, n, &unit);
            }
            for (r = 0; r < tile_rows; r += 4) { /* the first rows to use this unit fetch the next */
                f->rows[dendp_min_u32(4, tile_rows - r) - 1](&unit, n, a + r, tile_rows, r, sum[tile + r],
                                                             next, tile + r ? 0 : block_bytes);
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

#define DENDP_FLOAT_STEP 64 /* k that are widened at a time: a multiple of 4 */
#define DENDP_FLOAT_ROWS 32 /* rows whose chains are kept */

/* 8 weights of any float form, from weight `index` of the panel on. */
DENDP_INLINE_AVX2 __m256 dendp_weights8(const dendp_form form, const unsigned char *panel, size_t index) {
    if (form == DENDP_FORM_F32) {
        return _mm256_loadu_ps((const float *)(const void *)(panel + index * 4));
    }
    if (form == DENDP_FORM_F16) {
        return dendp_halves8(panel + index * 2);
    }
    return _mm256_castsi256_ps(_mm256_slli_epi32(
        _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(panel + index * 2))), 16));
}

/* One row, which waits for memory: all 4 chains of 16 lanes in registers.
 * x [k], chain [4][16]. */
DENDP_INLINE_AVX2 void dendp_float_single(const dendp_form form, const unsigned char *panel, uint32_t k,
                                          const float *x, float *chain) {
    const uint32_t step_bytes = 64 * dendp_float_bytes(form);
    __m256 l0 = _mm256_setzero_ps(), h0 = l0, l1 = l0, h1 = l0, l2 = l0, h2 = l0, l3 = l0, h3 = l0, v;
    uint32_t i;
#define DENDP_ADD(c)                                                                                         \
    v = _mm256_broadcast_ss(x + i + (c));                                                                    \
    l##c = _mm256_fmadd_ps(dendp_weights8(form, panel, ((size_t)i + (c)) * 16), v, l##c);                    \
    h##c = _mm256_fmadd_ps(dendp_weights8(form, panel, ((size_t)i + (c)) * 16 + 8), v, h##c);
    for (i = 0; i + 4 <= k; i += 4) {
        dendp_prefetch(panel + (size_t)i / 4 * step_bytes + DENDP_PREFETCH, step_bytes);
        DENDP_ADD(0)
        DENDP_ADD(1)
        DENDP_ADD(2)
        DENDP_ADD(3)
    }
    if (i < k) {
        DENDP_ADD(0)
    }
    if (i + 1 < k) {
        DENDP_ADD(1)
    }
    if (i + 2 < k) {
        DENDP_ADD(2)
    }
#undef DENDP_ADD
#define DENDP_STOP(c)                                                                                        \
    _mm256_storeu_ps(chain + (c)*16, l##c);                                                                  \
    _mm256_storeu_ps(chain + (c)*16 + 8, h##c);
    DENDP_EACH_ROW(4, DENDP_STOP)
#undef DENDP_STOP
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
    l##r = _mm256_loadu_ps(chain + (r)*16);                                                                  \
    h##r = _mm256_loadu_ps(chain + (r)*16 + 8);
        DENDP_EACH_ROW(R, DENDP_START)
#undef DENDP_START
        for (i = c; i < n; i += 4) {
            w_low = _mm256_loadu_ps(w + i * 16);
            w_high = _mm256_loadu_ps(w + i * 16 + 8);
#define DENDP_ADD(r)                                                                                         \
    v = _mm256_broadcast_ss(x + (r)*ldx + i);                                                                \
    l##r = _mm256_fmadd_ps(w_low, v, l##r);                                                                  \
    h##r = _mm256_fmadd_ps(w_high, v, h##r);
            DENDP_EACH_ROW(R, DENDP_ADD)
#undef DENDP_ADD
        }
#define DENDP_STOP(r)                                                                                        \
    _mm256_storeu_ps(chain + (r)*16, l##r);                                                                  \
    _mm256_storeu_ps(chain + (r)*16 + 8, h##r);
        DENDP_EACH_ROW(R, DENDP_STOP)
#undef DENDP_STOP
    }
}

/* y of one row: chain c, lane i at chain[c * stride + i]. */
static void dendp_float_finish(const float *chain, size_t stride, float *y) {
    uint32_t i;
    for (i = 0; i < 16; i++, chain++) {
        y[i] = dendp_keep(chain[0] + chain[stride]) + dendp_keep(chain[2 * stride] + chain[3 * stride]);
    }
}

DENDP_INLINE_AVX2 void dendp_float_panel(const dendp_form form, const unsigned char *panel, uint32_t k,
                                         const float *x, size_t ldx, uint32_t n_rows, float *y, size_t ldy) {
    const size_t stride = DENDP_FLOAT_ROWS * 16;
    float chain[4 * DENDP_FLOAT_ROWS * 16] DENDP_ALIGNED; /* [4][rows][16] */
    float w[DENDP_FLOAT_STEP * 16] DENDP_ALIGNED;
    uint32_t base, first, i, r;
    if (n_rows == 1) {
        dendp_float_single(form, panel, k, x, chain);
        _mm256_zeroupper(); /* for what follows is not AVX code: see 03.09 */
        dendp_float_finish(chain, 16, y);
        return;
    }
    for (base = 0; base < n_rows; base += DENDP_FLOAT_ROWS) {
        uint32_t rows = dendp_min_u32(DENDP_FLOAT_ROWS, n_rows - base);
        for (i = 0; i < 4; i++) {
            memset(chain + i * stride, 0, rows * 16 * sizeof(float));
        }
        for (first = 0; first < k; first += DENDP_FLOAT_STEP) {
            uint32_t n = dendp_min_u32(DENDP_FLOAT_STEP, k - first);
            for (i = 0; i < n; i++) {
                size_t at = (size_t)(first + i) * 16;
                dendp_prefetch(panel + at * dendp_float_bytes(form) + DENDP_PREFETCH,
                               16 * dendp_float_bytes(form));
                _mm256_storeu_ps(w + i * 16, dendp_weights8(form, panel, at));
                _mm256_storeu_ps(w + i * 16 + 8, dendp_weights8(form, panel, at + 8));
            }
            for (r = 0; r < rows; r += 4) {
                const float *xr = x + (size_t)(base + r) * ldx + first;
                switch (rows - r) {
                case 1:
                    dendp_float_rows(1, w, n, xr, ldx, chain + r * 16, stride);
                    break;
                case 2:
                    dendp_float_rows(2, w, n, xr, ldx, chain + r * 16, stride);
                    break;
                case 3:
                    dendp_float_rows(3, w, n, xr, ldx, chain + r * 16, stride);
                    break;
                default:
                    dendp_float_rows(4, w, n, xr, ldx, chain + r * 16, stride);
                    break;
                }
            }
        }
        _mm256_zeroupper();
        for (r = 0; r < rows; r++) {
            dendp_float_finish(chain + r * 16, stride, y + (base + r) * ldy);
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
    _mm256_zeroupper(); /* see 03.09 */
    if (t < n_blocks) {
        dendp_act_row_scalar(x + (t * 32 < k ? t * 32 : 0), t * 32 < k ? k - t * 32 : 0, n_blocks - t,
                             out + t * stride, stride);
    }
}

#endif
