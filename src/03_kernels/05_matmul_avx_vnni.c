/* ==========================================================================
 * >>03.05 MATMUL, AVX-VNNI: four bytes at once in registers of 256 bits
 * ==========================================================================
 * Client processors since 2021 (Alder Lake and what followed it) have no
 * AVX-512, but its byte dot product in AVX2's encoding:
 *
 *     dpbusd    8 x  i32 += u8*s8 + u8*s8 + u8*s8 + u8*s8    exact
 *
 * It does what maddubs, an addition and a final madd do in the room above, and
 * nothing in it can overflow: codes of 5 bits need no detour, codes of 8 bits
 * no splitting into nibbles. What stays is that room's shape, for the same
 * reason: 16 lanes are two registers, and there are 16 registers. 4 rows take
 * 8 sums, 2 vectors of weights and 1 of activations, which leaves room for the
 * masks; sums y stay in memory. A broadcast serves 2 dpbusd. Half a panel
 * against 8 rows would need as many registers and a broadcast for each dpbusd.
 *
 * Instructions of 4 rows, 16 lanes and a block of 32 k, in the loops that
 * gcc 12 makes at -O2, prefetches aside; in brackets those of the room above:
 *
 *     form   from the panel   unpacked    unpacking a block
 *     Q4_0      216 (287)     179 (247)         79
 *     Q4_1      224 (285)     194 (245)         83
 *     Q4_K      246 (306)     194 (245)         97
 *     Q5_0      293 (362)     179 (247)        145
 *     Q5_1      300 (390)     194 (277)        145
 *     Q5_K      324 (412)     194 (277)        163
 *     Q6_K      359 (427)     218 (293)        157
 *     Q8_0      190 (538)       - (466)          -
 *
 * 64 of them are dpbusd and 32 broadcasts. Bytes of 8 bits lie in the panel as
 * dpbusd wants them and are never copied. Of the others, codes unpacked into
 * the first-level cache save their unpacking for all rows but the first 4: by
 * these counts that pays from 9 rows on with 4 bits, from 5 on with 5 and 6.
 * Q6_K, with two scales, has 8 sums of floats beside its 8 of integers, and the
 * compiler keeps some on the stack.
 *
 * How fast this is has NOT been measured: no such processor was at hand.
 * Instructions are counted, bits are tested (against the scalar room, with
 * dpbusd emulated), and that is all that is known.
 *
 * Float forms and activations are those of AVX2.
 * ======================================================================== */

#if DENDP_X86 && DENDP_HAS_AVX_VNNI

#if defined(DEND_TEST_SIMDE)
#define DENDP_TARGET_AVX_VNNI DENDP_TARGET_AVX2 /* dpbusd is emulated */
#else
#define DENDP_TARGET_AVX_VNNI __attribute__((target("avxvnni,avx2,fma,f16c")))
#endif
#define DENDP_INLINE_AVX_VNNI DENDP_TARGET_AVX_VNNI static inline __attribute__((always_inline))

/* Vector j of the block times k 4j ... 4j+3 of each row. Rows stand in order, or
 * else gcc makes all broadcasts first and spills them. */
#define DENDP_DOT(r)                                                                                         \
    x = dendp_four(a[r].q + at);                                                                             \
    l##r = _mm256_dpbusd_avx_epi32(l##r, w_low, x);                                                          \
    h##r = _mm256_dpbusd_avx_epi32(h##r, w_high, x);                                                         \
    DENDP_FIX256(l##r, h##r)
#define DENDP_STEP(j)                                                                                        \
    {                                                                                                        \
        const int at = (j)*4;                                                                                \
        w_low = dendp_codes_vnni(form, direct, w, j, 0);                                                     \
        w_high = dendp_codes_vnni(form, direct, w, j, 32);                                                   \
        DENDP_EACH_ROW(R, DENDP_DOT)                                                                         \
    }

/* Codes of k 4j ... 4j+3 of lanes 0-7 (half = 0) or 8-15 (half = 32). */
DENDP_INLINE_AVX_VNNI __m256i dendp_codes_vnni(const dendp_form form, const int direct,
                                               const dendp_weights *w, const int j, const int half) {
    if (form == DENDP_FORM_Q8_0) {
        return dendp_load256(w->parts.q + j * 64 + half);
    }
    return direct ? dendp_unpack_vector(form, w->parts, j, half) : dendp_load256(w->code + j * 64 + half);
}

/* One block against rows a[0] ... a[R-1]; y [R][16]. */
DENDP_INLINE_AVX_VNNI void dendp_block_vnni(const dendp_form form, const int R, const int direct,
                                            const dendp_weights *w, const dendp_act_block *a, float *y) {
    const int centre = dendp_form_layouts[form].centre, has_min = centre == 0, two = form == DENDP_FORM_Q6_K;
    const int shift = centre == 8 ? 3 : centre == 16 ? 4 : centre == 32 ? 5 : 7; /* log2 of the centre */
    __m256i l0 = _mm256_setzero_si256(), l1 = l0, l2 = l0, l3 = l0, h0 = l0, h1 = l0, h2 = l0, h3 = l0;
    __m256i w_low, w_high, x;
    __m256 s0 = _mm256_setzero_ps(), s1 = s0, s2 = s0, s3 = s0, t0 = s0, t1 = s0, t2 = s0, t3 = s0;
    __m256 scale_low, scale_high, other_low = s0, other_high = s0;
#define DENDP_START(r) l##r = h##r = _mm256_slli_epi32(dendp_four(two ? &a[r].n_low : &a[r].n), shift);
    if (!has_min) {
        DENDP_EACH_ROW(R, DENDP_START)
    }
#undef DENDP_START
    DENDP_STEP(0)
    DENDP_STEP(1)
    DENDP_STEP(2)
    DENDP_STEP(3)
    if (two) { /* the first 16 k have a scale of their own */
        scale_low = dendp_scale8(form, direct, w, 0);
        scale_high = dendp_scale8(form, direct, w, 8);
#define DENDP_FIRST(r)                                                                                       \
    s##r = _mm256_mul_ps(_mm256_cvtepi32_ps(l##r), scale_low);                                               \
    t##r = _mm256_mul_ps(_mm256_cvtepi32_ps(h##r), scale_high);                                              \
    l##r = h##r = _mm256_slli_epi32(_mm256_sub_epi32(dendp_four(&a[r].n), dendp_four(&a[r].n_low)), shift);
        DENDP_EACH_ROW(R, DENDP_FIRST)
#undef DENDP_FIRST
    }
    DENDP_STEP(4)
    DENDP_STEP(5)
    DENDP_STEP(6)
    DENDP_STEP(7)
    if (!two) {
        scale_low = dendp_scale8(form, direct, w, 0);
        scale_high = dendp_scale8(form, direct, w, 8);
    }
    if (two || has_min) {
        other_low = dendp_other8(form, direct, w, 0);
        other_high = dendp_other8(form, direct, w, 8);
    }
#define DENDP_FOLD(r)                                                                                        \
    {                                                                                                        \
        __m256 scale = _mm256_broadcast_ss(&a[r].scale);                                                     \
        __m256 y_low = _mm256_loadu_ps(y + (r)*16), y_high = _mm256_loadu_ps(y + (r)*16 + 8);                \
        if (two) {                                                                                           \
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

#undef DENDP_DOT
#undef DENDP_STEP

/* n blocks against R rows of a tile, from the panel (direct: `group` is where
 * their first group begins) or unpacked.  a: the first row's block 0, rows
 * adjacent, blocks a_stride apart.  y [R][16].  ahead: what to fetch
 * meanwhile, ahead_bytes a block (0 = nothing). */
DENDP_INLINE_AVX_VNNI void dendp_rows_vnni(const dendp_form form, const int R, const int direct,
                                           const unsigned char *group, const dendp_unit *unit, uint32_t n,
                                           const dendp_act_block *a, size_t a_stride, float *y,
                                           const unsigned char *ahead, uint32_t ahead_bytes) {
    const dendp_form_layout *l = &dendp_form_layouts[form];
    const unsigned char *header = group - l->header_bytes;
    uint32_t t;
    for (t = 0; t < n; t++, a += a_stride, ahead += ahead_bytes) {
        dendp_weights w;
        memset(&w, 0, sizeof w);
        if (direct) {
            w.parts = dendp_parts(form, group, header, t);
        } else {
            w.code = unit->code[t];
            w.scale = unit->scale[t];
            w.other = unit->other[t];
        }
        __asm__("" : "+r"(y)); /* y stays in memory */
        dendp_prefetch(ahead, ahead_bytes);
        dendp_block_vnni(form, R, direct, &w, a, y);
        if (direct && t % 2) {
            group += 2 * (l->q_bytes + l->h_bytes + l->s_bytes);
            if (l->header_bytes && t % 8 == 7) {
                header = group;
                group += l->header_bytes;
                ahead += ahead_bytes ? l->header_bytes : 0;
            }
        }
    }
}

/* One function for each number of rows, so that all of it is constant inside. */
typedef void (*dendp_vnni_fn)(const unsigned char *group, const dendp_unit *unit, uint32_t n,
                              const dendp_act_block *a, size_t a_stride, float *y, const unsigned char *ahead,
                              uint32_t ahead_bytes);

#define DENDP_VNNI(name, form, R, direct)                                                                    \
    DENDP_TARGET_AVX_VNNI DENDP_NOINLINE static void name(                                                   \
        const unsigned char *group, const dendp_unit *unit, uint32_t n, const dendp_act_block *a,            \
        size_t a_stride, float *y, const unsigned char *ahead, uint32_t ahead_bytes) {                       \
        dendp_rows_vnni(form, R, direct, group, unit, n, a, a_stride, y, ahead, ahead_bytes);                \
    }
#define DENDP_VNNI_4(name, form, direct)                                                                     \
    DENDP_VNNI(name##1, form, 1, direct)                                                                     \
    DENDP_VNNI(name##2, form, 2, direct)                                                                     \
    DENDP_VNNI(name##3, form, 3, direct)                                                                     \
    DENDP_VNNI(name##4, form, 4, direct)

DENDP_VNNI_4(dendp_q4_0_vnni_direct, DENDP_FORM_Q4_0, 1)
DENDP_VNNI_4(dendp_q4_1_vnni_direct, DENDP_FORM_Q4_1, 1)
DENDP_VNNI_4(dendp_q5_0_vnni_direct, DENDP_FORM_Q5_0, 1)
DENDP_VNNI_4(dendp_q5_1_vnni_direct, DENDP_FORM_Q5_1, 1)
DENDP_VNNI_4(dendp_q8_0_vnni_direct, DENDP_FORM_Q8_0, 1)
DENDP_VNNI_4(dendp_q4_k_vnni_direct, DENDP_FORM_Q4_K, 1)
DENDP_VNNI_4(dendp_q5_k_vnni_direct, DENDP_FORM_Q5_K, 1)
DENDP_VNNI_4(dendp_q6_k_vnni_direct, DENDP_FORM_Q6_K, 1)
/* Unpacked, all forms with a minimum are alike: codes, a scale, a minimum. */
DENDP_VNNI_4(dendp_q4_0_vnni_rows, DENDP_FORM_Q4_0, 0)
DENDP_VNNI_4(dendp_q4_1_vnni_rows, DENDP_FORM_Q4_1, 0)
DENDP_VNNI_4(dendp_q5_0_vnni_rows, DENDP_FORM_Q5_0, 0)
DENDP_VNNI_4(dendp_q6_k_vnni_rows, DENDP_FORM_Q6_K, 0)

/* How AVX-VNNI treats a form. direct[i] and rows[i] take i + 1 rows. */
typedef struct dendp_vnni_form {
    uint32_t most_direct; /* up to so many rows straight from the panel */
    dendp_vnni_fn direct[4];
    void (*unpack)(const unsigned char *panel, uint32_t first, uint32_t n, dendp_unit *unit);
    dendp_vnni_fn rows[4];
} dendp_vnni_form;

#define DENDP_FORM_VNNI(form, like, most_direct)                                                             \
    {                                                                                                        \
        most_direct,                                                                                         \
            {dendp_##form##_vnni_direct1, dendp_##form##_vnni_direct2, dendp_##form##_vnni_direct3,          \
             dendp_##form##_vnni_direct4},                                                                   \
            dendp_unpack_##form, {                                                                           \
            dendp_##like##_vnni_rows1, dendp_##like##_vnni_rows2, dendp_##like##_vnni_rows3,                 \
                dendp_##like##_vnni_rows4                                                                    \
        }                                                                                                    \
    }
static const dendp_vnni_form dendp_vnni_forms[DENDP_N_QUANT_FORMS] = {
    DENDP_FORM_VNNI(q4_0, q4_0, 8),
    DENDP_FORM_VNNI(q4_1, q4_1, 8),
    DENDP_FORM_VNNI(q5_0, q5_0, 4),
    DENDP_FORM_VNNI(q5_1, q4_1, 4),
    {DENDP_MATMUL_ROWS,
     {dendp_q8_0_vnni_direct1, dendp_q8_0_vnni_direct2, dendp_q8_0_vnni_direct3, dendp_q8_0_vnni_direct4},
     NULL,
     {NULL, NULL, NULL, NULL}},
    DENDP_FORM_VNNI(q4_k, q4_1, 8),
    DENDP_FORM_VNNI(q5_k, q4_1, 4),
    DENDP_FORM_VNNI(q6_k, q6_k, 4),
};

/* One panel against n_rows <= DENDP_MATMUL_ROWS rows: y[r * ldy + i], i < 16.
 * Up to 4 rows take all blocks at once; more go by units of 256 k, which stay
 * in the first-level cache until all rows have used them. */
static void dendp_quant_vnni(dendp_form form, const unsigned char *panel, uint32_t n_blocks,
                             const dendp_act_block *act, uint32_t n_rows, float *y, size_t ldy) {
    const dendp_vnni_form *f = &dendp_vnni_forms[form];
    const dendp_form_layout *l = &dendp_form_layouts[form];
    const uint32_t block_bytes = l->q_bytes + l->h_bytes + l->s_bytes;
    const uint32_t step = n_rows <= 4 ? n_blocks : DENDP_UNIT_BLOCKS;
    const bool direct = n_rows <= f->most_direct;
    float sum[DENDP_MATMUL_ROWS][DENDP_LANES] DENDP_ALIGNED;
    dendp_unit unit DENDP_ALIGNED;
    uint32_t first, tile, r;
    memset(sum, 0, n_rows * sizeof sum[0]);
    for (first = 0; first < n_blocks; first += step) {
        const uint32_t n = dendp_min_u32(step, n_blocks - first);
        const unsigned char *group = panel + dendp_group_offset(l, first / 2);
        const unsigned char *next = group + DENDP_PREFETCH;
        if (!direct) {
            f->unpack(panel, first, n, &unit);
            next = panel + dendp_group_offset(l, first / 2 + DENDP_UNIT_BLOCKS / 2);
        }
        for (tile = 0; tile < n_rows; tile += DENDP_TILE_ROWS) {
            const uint32_t tile_rows = dendp_min_u32(DENDP_TILE_ROWS, n_rows - tile);
            const dendp_act_block *a = act + (size_t)tile * n_blocks + (size_t)first * tile_rows;
            for (r = 0; r < tile_rows; r += 4) { /* the first rows to use these weights fetch the next */
                const uint32_t i = dendp_min_u32(4, tile_rows - r) - 1;
                (direct ? f->direct : f->rows)[i](group, &unit, n, a + r, tile_rows, sum[tile + r], next,
                                                  tile + r ? 0 : block_bytes);
            }
        }
    }
    for (r = 0; r < n_rows; r++) {
        memcpy(y + r * ldy, sum[r], sizeof sum[r]);
    }
}

#define DENDP_QUANT_VNNI(name, form)                                                                         \
    static void name(const unsigned char *panel, uint32_t n_blocks, const dendp_act_block *act,              \
                     uint32_t n_rows, float *y, size_t ldy) {                                                \
        dendp_quant_vnni(form, panel, n_blocks, act, n_rows, y, ldy);                                        \
    }
DENDP_QUANT_VNNI(dendp_quant_q4_0_vnni, DENDP_FORM_Q4_0)
DENDP_QUANT_VNNI(dendp_quant_q4_1_vnni, DENDP_FORM_Q4_1)
DENDP_QUANT_VNNI(dendp_quant_q5_0_vnni, DENDP_FORM_Q5_0)
DENDP_QUANT_VNNI(dendp_quant_q5_1_vnni, DENDP_FORM_Q5_1)
DENDP_QUANT_VNNI(dendp_quant_q8_0_vnni, DENDP_FORM_Q8_0)
DENDP_QUANT_VNNI(dendp_quant_q4_k_vnni, DENDP_FORM_Q4_K)
DENDP_QUANT_VNNI(dendp_quant_q5_k_vnni, DENDP_FORM_Q5_K)
DENDP_QUANT_VNNI(dendp_quant_q6_k_vnni, DENDP_FORM_Q6_K)

#endif
