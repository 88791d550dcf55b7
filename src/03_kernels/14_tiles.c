/* ==========================================================================
 * >>03.14 TILE CHOICE: the tile kernels of an instruction set
 * ==========================================================================
 * The door to the rooms of tiles above. All sets give the same bits, so the
 * choice is about speed alone.
 * ======================================================================== */

/* Indexed by dend_kv_type - 1: f32, f16, q8_0. */
typedef struct dendp_tile_ops {
    const char *name;
    dendp_act_fn act_row; /* turns queries for q8_0 into bytes */
    dendp_to_f16_fn to_f16;
    dendp_score_fn score[3];
    dendp_add_v_fn add_v[3];
} dendp_tile_ops;

/* DEFAULT = the best that this processor has. */
static const dendp_tile_ops *dendp_tile_ops_get(dend_isa isa) {
    static const dendp_tile_ops scalar = {
        "scalar",
        dendp_act_row_scalar,
        dendp_to_f16_scalar,
        {dendp_score_f32_scalar, dendp_score_f16_scalar, dendp_score_q8_scalar},
        {dendp_add_v_f32_scalar, dendp_add_v_f16_scalar, dendp_add_v_q8_scalar},
    };
#if DENDP_X86
    static const dendp_tile_ops avx2 = {
        "avx2",
        dendp_act_row_avx2,
        dendp_to_f16_avx2,
        {dendp_score_f32_avx2, dendp_score_f16_avx2, dendp_score_q8_avx2},
        {dendp_add_v_f32_avx2, dendp_add_v_f16_avx2, dendp_add_v_q8_avx2},
    };
    static const dendp_tile_ops avx512 = {
        "avx512",
        dendp_act_row_avx2,
        dendp_to_f16_avx2,
        {dendp_score_f32_avx512, dendp_score_f16_avx512, dendp_score_q8_avx512},
        {dendp_add_v_f32_avx512, dendp_add_v_f16_avx512, dendp_add_v_q8_avx512},
    };
    if ((isa == DEND_ISA_DEFAULT || isa == DEND_ISA_AVX512) &&
        (dendp_cpu_features() & DENDP_AVX512_NEEDS) == DENDP_AVX512_NEEDS) {
        return &avx512;
    }
    if (isa != DEND_ISA_SCALAR && (dendp_cpu_features() & DENDP_CPU_AVX2)) {
        return &avx2;
    }
#elif DENDP_ARM64
    static const dendp_tile_ops neon = {
        "neon",
        dendp_act_row_neon,
        dendp_to_f16_scalar,
        {dendp_score_f32_neon, dendp_score_f16_neon, dendp_score_q8_neon},
        {dendp_add_v_f32_neon, dendp_add_v_f16_neon, dendp_add_v_q8_neon},
    };
    if (isa != DEND_ISA_SCALAR && (dendp_cpu_features() & DENDP_CPU_NEON_DOT)) {
        return &neon;
    }
#endif
    (void)isa;
    return &scalar;
}
