/* ==========================================================================
 * >>03.08 MATMUL: which kernels, and in which order
 * ==========================================================================
 * The door to the rooms above. A dendp_kernels is the set of functions of
 * one instruction set; which one an engine uses is decided once. All sets give
 * the same bits, so that choice is about speed alone.
 *
 *     dendp_panels_plan, _pack      weights [N][K] -> panels, at load
 *     dendp_act_quantise            rows [R][K] -> bytes, once a matmul
 *     dendp_matmul                  y[r][i] = weights[i] . row r
 *
 * A matmul is cut into tasks by panel ranges, quantising by tiles of 8 rows:
 * the caller's affair, since only it knows its threads. Ranges of one matmul
 * may run side by side.
 *
 * Many rows are taken 64 at a time, panels inside:
 *
 *     for each 64 rows       their bytes stay in the second-level cache
 *         for each panel     read once from memory, then from the first level
 *             all 64 rows
 *
 * Cost: n_rows * n_panels * 16 * K multiply-adds; memory traffic n_panels *
 * panel_bytes for each 64 rows. Allocates nothing; 25 KB of stack.
 * ======================================================================== */

typedef struct dendp_kernels {
    const char *name;
    dend_isa isa;
    dendp_act_fn act_row;
    dendp_quant_fn quant[DENDP_N_QUANT_FORMS];
    dendp_float_fn flt[DENDP_N_FORMS - DENDP_N_QUANT_FORMS];
} dendp_kernels;

static const dendp_kernels dendp_kernels_scalar = {
    "scalar",
    DEND_ISA_SCALAR,
    dendp_act_row_scalar,
    {dendp_quant_q4_0_scalar, dendp_quant_q4_1_scalar, dendp_quant_q5_0_scalar, dendp_quant_q5_1_scalar,
     dendp_quant_q8_0_scalar, dendp_quant_q4_k_scalar, dendp_quant_q5_k_scalar, dendp_quant_q6_k_scalar},
    {dendp_float_f32_scalar, dendp_float_f16_scalar, dendp_float_bf16_scalar},
};

#if DENDP_X86
static const dendp_kernels dendp_kernels_avx2 = {
    "avx2",
    DEND_ISA_AVX2,
    dendp_act_row_avx2,
    {dendp_quant_q4_0_avx2, dendp_quant_q4_1_avx2, dendp_quant_q5_0_avx2, dendp_quant_q5_1_avx2,
     dendp_quant_q8_0_avx2, dendp_quant_q4_k_avx2, dendp_quant_q5_k_avx2, dendp_quant_q6_k_avx2},
    {dendp_float_f32_avx2, dendp_float_f16_avx2, dendp_float_bf16_avx2},
};

#if DENDP_HAS_AVX_VNNI
static const dendp_kernels dendp_kernels_avx_vnni = {
    "avxvnni",
    DEND_ISA_AVX_VNNI,
    dendp_act_row_avx2,
    {dendp_quant_q4_0_vnni, dendp_quant_q4_1_vnni, dendp_quant_q5_0_vnni, dendp_quant_q5_1_vnni,
     dendp_quant_q8_0_vnni, dendp_quant_q4_k_vnni, dendp_quant_q5_k_vnni, dendp_quant_q6_k_vnni},
    {dendp_float_f32_avx2, dendp_float_f16_avx2, dendp_float_bf16_avx2},
};
#endif

static const dendp_kernels dendp_kernels_avx512 = {
    "avx512",
    DEND_ISA_AVX512,
    dendp_act_row_avx2, /* a part too small to have its own */
    {dendp_quant_q4_0_avx512, dendp_quant_q4_1_avx512, dendp_quant_q5_0_avx512, dendp_quant_q5_1_avx512,
     dendp_quant_q8_0_avx512, dendp_quant_q4_k_avx512, dendp_quant_q5_k_avx512, dendp_quant_q6_k_avx512},
    {dendp_float_f32_avx512, dendp_float_f16_avx512, dendp_float_bf16_avx512},
};
#elif DENDP_ARM64
static const dendp_kernels dendp_kernels_neon = {
    "neon",
    DEND_ISA_NEON,
    dendp_act_row_neon,
    {dendp_quant_q4_0_neon, dendp_quant_q4_1_neon, dendp_quant_q5_0_neon, dendp_quant_q5_1_neon,
     dendp_quant_q8_0_neon, dendp_quant_q4_k_neon, dendp_quant_q5_k_neon, dendp_quant_q6_k_neon},
    {dendp_float_f32_neon, dendp_float_f16_neon, dendp_float_bf16_neon},
};
#endif

/* The kernels of an instruction set; NULL where this build or this processor
 * lacks it. DEFAULT gives the best that there is, and is never NULL. */
static const dendp_kernels *dendp_kernels_get(dend_isa isa) {
    uint32_t features = dendp_cpu_features();
    (void)features;
#if DENDP_X86
    if ((isa == DEND_ISA_DEFAULT || isa == DEND_ISA_AVX512) &&
        (features & DENDP_AVX512_NEEDS) == DENDP_AVX512_NEEDS) {
        return &dendp_kernels_avx512;
    }
#if DENDP_HAS_AVX_VNNI
    if ((isa == DEND_ISA_DEFAULT || isa == DEND_ISA_AVX_VNNI) && (features & DENDP_CPU_AVX2) &&
        dendp_cpu_has_avx_vnni()) {
        return &dendp_kernels_avx_vnni;
    }
#endif
    if ((isa == DEND_ISA_DEFAULT || isa == DEND_ISA_AVX2) && (features & DENDP_CPU_AVX2)) {
        return &dendp_kernels_avx2;
    }
#elif DENDP_ARM64
    if ((isa == DEND_ISA_DEFAULT || isa == DEND_ISA_NEON) && (features & DENDP_CPU_NEON_DOT)) {
        return &dendp_kernels_neon;
    }
#endif
    return isa == DEND_ISA_DEFAULT || isa == DEND_ISA_SCALAR ? &dendp_kernels_scalar : NULL;
}

/* Quantises rows x[r * ldx + ...][k], r < n_rows, into act (dendp_act_bytes,
 * 64-aligned): the tiles of 8 rows [first_tile, first_tile + n_tiles) of it.
 * Threads: any, on different tiles. */
static void dendp_act_quantise(const dendp_kernels *kn, const float *x, size_t ldx, uint32_t n_rows,
                               uint32_t k, void *act, uint32_t first_tile, uint32_t n_tiles) {
    uint32_t n_blocks = 2 * dendp_div_up(k, 64), tile, r;
    for (tile = first_tile; tile < first_tile + n_tiles; tile++) {
        uint32_t first = tile * DENDP_TILE_ROWS, rows = dendp_min_u32(DENDP_TILE_ROWS, n_rows - first);
        dendp_act_block *out = (dendp_act_block *)act + (size_t)first * n_blocks;
        for (r = 0; r < rows; r++) {
            kn->act_row(x + (size_t)(first + r) * ldx, k, n_blocks, out + r, rows);
        }
    }
}

/* y[r * ldy + o] = weights of row o . activations of row r, for r < n_rows and
 * the outputs o of panels [first_panel, first_panel + n_panels); nothing else
 * of y is touched.  Quantised forms take act, made from the same n_rows rows
 * (x may be NULL); float forms take x[r * ldx + k] (act may be NULL).
 * Threads: any, on different panels. */
static void dendp_matmul(const dendp_kernels *kn, const dendp_panels *w, const void *act, const float *x,
                         size_t ldx, uint32_t n_rows, uint32_t first_panel, uint32_t n_panels, float *y,
                         size_t ldy) {
    uint32_t base, i, r;
    for (base = 0; base < n_rows; base += DENDP_MATMUL_ROWS) {
        uint32_t rows = dendp_min_u32(DENDP_MATMUL_ROWS, n_rows - base);
        for (i = first_panel; i < first_panel + n_panels; i++) {
            const unsigned char *panel = w->data + (uint64_t)i * w->panel_bytes;
            uint32_t lanes = dendp_min_u32(DENDP_LANES, w->n_rows - i * DENDP_LANES);
            float edge[DENDP_MATMUL_ROWS][DENDP_LANES]; /* of a panel whose last rows do not exist */
            float *to = y + (size_t)base * ldy + (size_t)i * DENDP_LANES;
            float *out = lanes == DENDP_LANES ? to : edge[0];
            size_t ld = lanes == DENDP_LANES ? ldy : DENDP_LANES;
            if (w->form < DENDP_N_QUANT_FORMS) {
                const dendp_act_block *a = (const dendp_act_block *)act + (size_t)base * w->n_blocks;
                kn->quant[w->form](panel, w->n_blocks, a, rows, out, ld);
            } else {
                kn->flt[w->form - DENDP_N_QUANT_FORMS](panel, w->k, x + (size_t)base * ldx, ldx, rows, out,
                                                       ld);
            }
            for (r = 0; r < rows && out != to; r++) {
                memcpy(to + r * ldy, edge[r], lanes * sizeof(float));
            }
        }
    }
}
