/* The quantised matmul: panels, activations and kernels (part 03, rooms 01-06).
 *
 * Three oracles. The file's own decoders (and golden values) say what packing
 * must preserve; float64 arithmetic on dequantised operands says what a product
 * is; and the scalar kernels say what its bits are. Every instruction set of
 * this build and processor is held against all of them. */
#include "dend_test.h"

#include <float.h>
#include <math.h>
#if DENDP_X86
#include <cpuid.h>
#endif

/* -- matrices to test with ---------------------------------------------------- */

typedef struct mm_type {
    uint32_t id;
    bool lossless;
    int f16_at[3]; /* byte offsets of f16 fields in a block, -1 = none */
} mm_type;

static const mm_type mm_types[] = {
    {DENDP_TYPE_Q4_0, true, {0, -1, -1}},   {DENDP_TYPE_Q4_1, true, {0, 2, -1}},
    {DENDP_TYPE_Q5_0, true, {0, -1, -1}},   {DENDP_TYPE_Q5_1, true, {0, 2, -1}},
    {DENDP_TYPE_Q8_0, true, {0, -1, -1}},   {DENDP_TYPE_Q2_K, false, {80, 82, -1}},
    {DENDP_TYPE_Q3_K, true, {108, -1, -1}}, {DENDP_TYPE_Q4_K, true, {0, 2, -1}},
    {DENDP_TYPE_Q5_K, true, {0, 2, -1}},    {DENDP_TYPE_Q6_K, true, {208, -1, -1}},
    {DENDP_TYPE_IQ4_NL, true, {0, -1, -1}}, {DENDP_TYPE_IQ4_XS, false, {0, -1, -1}},
    {DENDP_TYPE_F32, true, {-1, -1, -1}},   {DENDP_TYPE_F16, true, {0, -1, -1}},
    {DENDP_TYPE_BF16, true, {-1, -1, -1}},
};
#define MM_N_TYPES (sizeof mm_types / sizeof mm_types[0])

static const dend_isa mm_isas[] = {DEND_ISA_SCALAR, DEND_ISA_AVX2, DEND_ISA_AVX_VNNI, DEND_ISA_AVX512,
                                   DEND_ISA_NEON};
#define MM_N_ISAS (sizeof mm_isas / sizeof mm_isas[0])

static void *mm_alloc(size_t size) {
    void *p = NULL;
    assert_int_equal(posix_memalign(&p, 64, size ? size : 1), 0);
    memset(p, 0xa5, size ? size : 1);
    return p;
}

/* A half of random sign and mantissa with an exponent that models have. */
static uint16_t mm_f16(test_rng *rng) {
    uint32_t bits = test_below(rng, 1024) | (5 + test_below(rng, 8)) << 10 | test_below(rng, 2) << 15;
    return (uint16_t)bits;
}

static bool mm_is_float(uint32_t id) {
    return id == DENDP_TYPE_F32 || id == DENDP_TYPE_F16 || id == DENDP_TYPE_BF16;
}

/* Random blocks of a type, with finite scales. byte >= 0: all other bytes are that one. */
static void mm_fill(const mm_type *type, unsigned char *file, uint64_t n_blocks, test_rng *rng, int byte) {
    const dendp_type *t = dendp_type_find(type->id);
    uint64_t b, i;
    for (b = 0; b < n_blocks; b++) {
        unsigned char *block = file + b * t->block_bytes;
        for (i = 0; i < t->block_bytes; i++) {
            block[i] = byte < 0 ? (unsigned char)test_below(rng, 256) : (unsigned char)byte;
        }
        if (type->id == DENDP_TYPE_F32) {
            float f = test_float(rng);
            memcpy(block, &f, 4);
        } else if (type->id == DENDP_TYPE_BF16) {
            dendp_store16(block, dendp_f32_to_bf16(test_float(rng)));
        }
        for (i = 0; i < 3 && type->f16_at[i] >= 0; i++) {
            dendp_store16(block + type->f16_at[i], mm_f16(rng));
        }
    }
}

typedef struct mm_matrix {
    dendp_panels p;
    unsigned char *file, *data;
    uint64_t bytes;
} mm_matrix;

static void mm_make(mm_matrix *m, const mm_type *type, uint32_t n_rows, uint32_t k, test_rng *rng, int byte) {
    const dendp_type *t = dendp_type_find(type->id);
    uint64_t n_blocks = (uint64_t)n_rows * (k / t->block_elems);
    ASSERT_STATUS(DEND_OK, dendp_panels_plan(&m->p, type->id, n_rows, k, &m->bytes));
    m->file = (unsigned char *)mm_alloc((size_t)(n_blocks * t->block_bytes));
    mm_fill(type, m->file, n_blocks, rng, byte);
    m->data = (unsigned char *)mm_alloc((size_t)m->bytes);
    dendp_panels_pack(&m->p, m->data, m->file, 0, m->p.n_panels);
    m->p.data = m->data;
}

static void mm_free(mm_matrix *m) {
    free(m->file);
    free(m->data);
}

/* k that a type allows, as near as can be to the one wanted. */
static uint32_t mm_k(uint32_t id, uint32_t k) {
    uint32_t block = dendp_type_find(id)->block_elems;
    return dendp_div_up(k, block) * block;
}

static float *mm_floats(size_t n, test_rng *rng) {
    float *x = (float *)mm_alloc(n * sizeof(float));
    size_t i;
    for (i = 0; i < n; i++) {
        x[i] = test_float(rng) * (test_below(rng, 50) == 0 ? 40.0f : 1.0f); /* outliers, as models have */
    }
    return x;
}

static void *mm_quantise(const dendp_kernels *kn, const float *x, size_t ldx, uint32_t n, uint32_t k) {
    void *act = mm_alloc((size_t)dendp_act_bytes(n, k));
    dendp_act_quantise(kn, x, ldx, n, k, act, 0, dendp_div_up(n, 8));
    return act;
}

/* All of a product: y [n][ldy]. */
static void mm_product(const dendp_kernels *kn, const dendp_panels *w, const float *x, size_t ldx, uint32_t n,
                       float *y, size_t ldy) {
    void *act = mm_is_float(w->type->id) ? NULL : mm_quantise(kn, x, ldx, n, w->k);
    dendp_matmul(kn, w, act, act ? NULL : x, ldx, n, 0, w->n_panels, y, ldy);
    free(act);
}

/* -- panels ------------------------------------------------------------------- */

static void test_panels_plan_sizes(void **state) {
    static const struct {
        uint32_t id, n_rows, k;
        uint64_t bytes;
    } cases[] = {
        {DENDP_TYPE_Q4_0, 16, 64, 576},
        {DENDP_TYPE_Q4_1, 16, 64, 640},
        {DENDP_TYPE_Q5_0, 16, 64, 704},
        {DENDP_TYPE_Q5_1, 16, 64, 768},
        {DENDP_TYPE_Q8_0, 16, 64, 1088},
        {DENDP_TYPE_Q4_K, 16, 256, 4 * 576 + 64},
        {DENDP_TYPE_Q5_K, 16, 256, 4 * 704 + 64},
        {DENDP_TYPE_Q6_K, 16, 256, 4 * 832 + 64},
        {DENDP_TYPE_Q3_K, 16, 512, 8 * 832 + 128},
        {DENDP_TYPE_Q2_K, 16, 256, 4 * 1088},
        {DENDP_TYPE_IQ4_NL, 16, 32, 1088},
        {DENDP_TYPE_IQ4_XS, 16, 256, 4 * 1088},
        {DENDP_TYPE_Q4_0, 17, 96, 2 * 2 * 576},
        {DENDP_TYPE_F32, 1, 3, 192},
        {DENDP_TYPE_F16, 33, 3, 3 * 128},
        {DENDP_TYPE_BF16, 16, 4, 128},
    };
    size_t i;
    (void)state;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dendp_panels p;
        uint64_t bytes = 0;
        ASSERT_STATUS(DEND_OK, dendp_panels_plan(&p, cases[i].id, cases[i].n_rows, cases[i].k, &bytes));
        assert_int_equal(bytes, cases[i].bytes);
        assert_int_equal(bytes, p.panel_bytes * p.n_panels);
        assert_int_equal(p.panel_bytes % 64, 0);
    }
}

static void test_panels_plan_refuses(void **state) {
    dendp_panels p;
    uint64_t bytes = 7;
    (void)state;
    ASSERT_STATUS(DEND_ERR_UNSUPPORTED, dendp_panels_plan(&p, 99, 16, 64, &bytes));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dendp_panels_plan(&p, DENDP_TYPE_Q4_0, 0, 64, &bytes));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dendp_panels_plan(&p, DENDP_TYPE_Q4_0, 16, 0, &bytes));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dendp_panels_plan(&p, DENDP_TYPE_Q4_0, 16, 33, &bytes));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dendp_panels_plan(&p, DENDP_TYPE_Q4_K, 16, 128, &bytes));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dendp_panels_plan(&p, DENDP_TYPE_F32, 16, 0xffffffffu, &bytes));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dendp_panels_plan(&p, DENDP_TYPE_F32, 0xffffffffu, 0x7fffffffu, &bytes));
    assert_int_equal(bytes, 7);
}

static void test_panels_lossless(void **state) {
    static const uint32_t rows[] = {1, 15, 16, 17, 130}, ks[] = {1, 3, 20, 32, 64, 96, 160, 896};
    test_rng rng = {11};
    size_t i, a, b;
    (void)state;
    for (i = 0; i < MM_N_TYPES; i++) {
        const dendp_type *t = dendp_type_find(mm_types[i].id);
        for (a = 0; a < sizeof rows / sizeof rows[0] && mm_types[i].lossless; a++) {
            for (b = 0; b < sizeof ks / sizeof ks[0]; b++) {
                uint32_t k = mm_k(t->id, ks[b]), r;
                float *want = (float *)mm_alloc(k * sizeof(float)),
                      *got = (float *)mm_alloc(k * sizeof(float));
                mm_matrix m;
                mm_make(&m, &mm_types[i], rows[a], k, &rng, -1);
                for (r = 0; r < rows[a]; r++) {
                    t->decode(m.file + r * m.p.file_row_bytes, k / t->block_elems, want);
                    dendp_panels_get_row(&m.p, r, got);
                    assert_memory_equal(want, got, k * sizeof(float));
                }
                mm_free(&m);
                free(want);
                free(got);
            }
        }
    }
}

/* Where a code lies, as drawn in 01_panels.c: row 21 of 32 is lane 5 of panel 1, and in block 3 (the second of
 * group 1) one k at a time differs from code 0, whose bytes are all zero. */
static void test_panels_layout(void **state) {
    static const struct {
        uint32_t id, q_bytes, h_bytes, s_bytes, header, k;
    } cases[] = {
        {DENDP_TYPE_Q4_1, 256, 0, 64, 0, 128},
        {DENDP_TYPE_Q5_1, 256, 64, 64, 0, 128},
        {DENDP_TYPE_Q8_0, 512, 0, 32, 0, 128},
        {DENDP_TYPE_Q6_K, 256, 128, 32, 64, 256},
    };
    size_t c;
    uint32_t k;
    (void)state;
    for (c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        const dendp_type *t = dendp_type_find(cases[c].id);
        const uint32_t lane = 5, group_bytes = 2 * (cases[c].q_bytes + cases[c].h_bytes + cases[c].s_bytes);
        for (k = 0; k < 32; k++) {
            uint32_t j = k % 16 / 4, q_at, q_want, h_at = 0, h_want = 0, code;
            unsigned char *file, *data, *row, *group;
            dendp_panels p;
            uint64_t bytes;
            ASSERT_STATUS(DEND_OK, dendp_panels_plan(&p, t->id, 32, cases[c].k, &bytes));
            file = (unsigned char *)mm_alloc((size_t)(32 * p.file_row_bytes));
            data = (unsigned char *)mm_alloc((size_t)bytes);
            memset(file, 0, (size_t)(32 * p.file_row_bytes));
            row = file + 21 * p.file_row_bytes;
            if (t->id == DENDP_TYPE_Q8_0) {
                code = 0x91; /* 17 + 128 */
                row[3 * 34 + 2 + k] = 17;
            } else if (t->id == DENDP_TYPE_Q6_K) { /* block 3: high qh bits, low ql nibble of the second 32 */
                code = 0x2b;
                row[32 + k] = 0xb0;
                row[128 + k] = 0x80;
                /* nibble 1 of ql[32 + k] is value 96 + k, its two high bits are bits 6, 7 of qh[k] */
            } else if (t->id == DENDP_TYPE_Q5_1) {
                code = 0x1b;
                row[3 * 24 + 8 + k % 16] = k < 16 ? 0x0b : 0xb0;
                row[3 * 24 + 4 + k / 8] = (unsigned char)(1u << k % 8);
            } else {
                code = 0x0b;
                row[3 * 20 + 4 + k % 16] = k < 16 ? 0x0b : 0xb0;
            }
            dendp_panels_pack(&p, data, file, 0, 2);
            group = data + p.panel_bytes + cases[c].header + group_bytes;
            if (cases[c].q_bytes == 512) {
                q_at = 512 + k / 4 * 64 + lane * 4 + k % 4;
                q_want = code;
            } else {
                q_at = 256 + j * 64 + lane * 4 + k % 4;
                q_want = k < 16 ? code & 15 : (code & 15) << 4;
            }
            if (cases[c].h_bytes == 64) {
                h_at = 2 * 256 + 64 + lane * 4 + k % 4;
                h_want = 1u << (k < 16 ? j : 4 + j);
            } else if (cases[c].h_bytes == 128) {
                h_at = 2 * 256 + 128 + k / 16 * 64 + lane * 4 + k % 4;
                h_want = code >> 4 << 2 * j;
            }
            assert_int_equal(group[q_at], q_want);
            if (cases[c].h_bytes) {
                assert_int_equal(group[h_at], h_want);
            }
            free(file);
            free(data);
        }
    }
}

/* The blocks of the golden file, with their subnormal, largest and negative
 * scales, against the values that another implementation gave. */
static void test_panels_golden(void **state) {
    size_t size, at = 8;
    unsigned char *data = test_read_file("tests/golden/quant_blocks.bin", &size);
    uint32_t n, i, n_lossless = 0;
    (void)state;
    assert_non_null(data);
    assert_memory_equal(data, "DQG1", 4);
    n = dendp_load32(data + 4);
    for (i = 0; i < n; i++) {
        uint32_t id = dendp_load32(data + at), n_blocks = dendp_load32(data + at + 4);
        uint32_t block_bytes = dendp_load32(data + at + 8), elems = dendp_load32(data + at + 12);
        const unsigned char *raw = data + at + 16, *values = raw + (size_t)n_blocks * block_bytes;
        uint32_t k = n_blocks * elems, j;
        float *got = (float *)mm_alloc(k * sizeof(float));
        dendp_panels p;
        uint64_t bytes;
        unsigned char *panels;
        at += 16 + (size_t)n_blocks * (block_bytes + elems * 4);
        assert_true(at <= size);
        ASSERT_STATUS(DEND_OK, dendp_panels_plan(&p, id, 1, k, &bytes));
        panels = (unsigned char *)mm_alloc((size_t)bytes);
        dendp_panels_pack(&p, panels, raw, 0, 1);
        p.data = panels;
        dendp_panels_get_row(&p, 0, got);
        for (j = 0; j < MM_N_TYPES; j++) {
            if (mm_types[j].id == id && mm_types[j].lossless) {
                assert_memory_equal(values, got, k * sizeof(float));
                n_lossless++;
            }
        }
        for (j = 0; j < k; j++) {
            assert_true(dendp_finite(got[j]));
        }
        free(panels);
        free(got);
    }
    assert_int_equal(n_lossless,
                     12); /* all but F32, which the file does not hold, and the two types with a star */
    free(data);
}

/* IQ4_XS: the scale is rounded to a half, relative 2^-11, or 2^-25 where
 * halves are subnormal, and meets codes of at most 127.
 * Q2_K: half a step of a scale that is at most one half above max / 127. */
static void test_panels_converted(void **state) {
    test_rng rng = {12};
    size_t i;
    (void)state;
    for (i = 0; i < MM_N_TYPES; i++) {
        const dendp_type *t = dendp_type_find(mm_types[i].id);
        float want[512], got[512];
        uint32_t r, j, b;
        mm_matrix m;
        double worst = 0;
        if (mm_types[i].lossless) {
            continue;
        }
        mm_make(&m, &mm_types[i], 130, 512, &rng, -1);
        for (r = 0; r < 130; r += 3) { /* scales of every size: subnormal ones too */
            for (j = 0; j < 3 && mm_types[i].f16_at[j] >= 0; j++) {
                dendp_store16(m.file + r * m.p.file_row_bytes + mm_types[i].f16_at[j], (uint16_t)(1 + r));
            }
        }
        dendp_panels_pack(&m.p, m.data, m.file, 0, m.p.n_panels);
        for (r = 0; r < 130; r++) {
            t->decode(m.file + r * m.p.file_row_bytes, 512 / t->block_elems, want);
            dendp_panels_get_row(&m.p, r, got);
            for (b = 0; b < 16; b++) {
                dendp_lane_block packed;
                double step, most = 0;
                dendp_lane_load(m.p.form, m.data + r / 16 * m.p.panel_bytes, b, r % 16, &packed);
                step = fabs((double)packed.scale[0]);
                for (j = 0; j < 32; j++) {
                    most = fmax(most, fabs((double)want[b * 32 + j]));
                }
                assert_true(t->id != DENDP_TYPE_Q2_K ||
                            step <= most / 127 * (1 + ldexp(1, -10)) + ldexp(1, -24));
                for (j = b * 32; j < b * 32 + 32; j++) {
                    double error = fabs((double)want[j] - (double)got[j]), bound;
                    if (t->id == DENDP_TYPE_IQ4_XS) {
                        bound = fabs((double)want[j]) * ldexp(1, -11) + 127 * ldexp(1, -25);
                    } else {
                        bound = step * (0.5 + ldexp(1, -16));
                    }
                    assert_true(error <= bound);
                    worst = fmax(worst, error);
                }
            }
        }
        assert_true(worst > 0); /* else the type is lossless and belongs elsewhere */
        mm_free(&m);
    }
}

/* Scales that no half can hold saturate; nothing becomes infinite or NaN. */
static void test_panels_converted_overflow(void **state) {
    test_rng rng = {13};
    size_t i;
    (void)state;
    for (i = 0; i < MM_N_TYPES; i++) {
        static const uint16_t halves[] = {0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0xffff};
        float got[256];
        uint32_t r, j;
        mm_matrix m;
        if (mm_types[i].lossless) {
            continue;
        }
        mm_make(&m, &mm_types[i], 6, 256, &rng, -1);
        for (r = 0; r < 6; r++) {
            for (j = 0; j < 3 && mm_types[i].f16_at[j] >= 0; j++) {
                dendp_store16(m.file + r * m.p.file_row_bytes + mm_types[i].f16_at[j], halves[r]);
            }
        }
        dendp_panels_pack(&m.p, m.data, m.file, 0, m.p.n_panels);
        for (r = 0; r < 2; r++) {
            double most = 0;
            dendp_panels_get_row(&m.p, r, got);
            for (j = 0; j < 256; j++) {
                assert_true(dendp_finite(got[j]));
                most = fmax(most, fabs((double)got[j]));
            }
            assert_true(most > 65504);
        }
        mm_free(&m);
    }
}

/* Packing by ranges, from pieces of the file, gives the same bytes; it writes
 * all of its range and nothing else. */
static void test_panels_pack_ranges(void **state) {
    test_rng rng = {14};
    size_t i;
    (void)state;
    for (i = 0; i < MM_N_TYPES; i++) {
        uint32_t k = mm_k(mm_types[i].id, 96), first, n;
        unsigned char *other;
        mm_matrix m;
        mm_make(&m, &mm_types[i], 75, k, &rng, -1);
        other = (unsigned char *)mm_alloc((size_t)m.bytes);
        memset(other, 0x3c, (size_t)m.bytes);
        for (first = 0; first < m.p.n_panels; first += n) {
            uint64_t j;
            n = 1 + first % 2;
            n = dendp_min_u32(n, m.p.n_panels - first);
            dendp_panels_pack(&m.p, other, m.file + (uint64_t)first * 16 * m.p.file_row_bytes, first, n);
            for (j = (uint64_t)(first + n) * m.p.panel_bytes; j < m.bytes; j++) {
                assert_int_equal(other[j], 0x3c);
            }
        }
        assert_memory_equal(other, m.data, (size_t)m.bytes);
        free(other);
        mm_free(&m);
    }
}

/* -- activations ---------------------------------------------------------------- */

/* What 02_activations.c promises of one block, checked against float64. */
static void mm_check_block(const float *x, const dendp_act_block *b) {
    double amax = 0, clean[32];
    int32_t sum[2][2] = {{0, 0}, {0, 0}};
    int j;
    for (j = 0; j < 32; j++) {
        uint32_t bits = dendp_f32_bits(x[j]);
        clean[j] = dendp_finite(x[j])   ? (double)x[j]
                   : (bits & 0x7fffffu) ? 0
                   : bits & 0x80000000u ? -(double)FLT_MAX
                                        : (double)FLT_MAX;
        amax = fmax(amax, fabs(clean[j]));
        sum[j / 16][j / 2 % 2] -= b->q[j];
    }
    if (amax < ldexp(1, -90)) {
        assert_true(dendp_f32_bits(b->scale) == 0 && dendp_f32_bits(b->min_factor) == 0);
        for (j = 0; j < 32; j++) {
            assert_int_equal(b->q[j], 0);
        }
    } else {
        int most = 0;
        ASSERT_NEAR(amax / 127, b->scale, 0, ldexp(1, -22));
        for (j = 0; j < 32; j++) {
            double error = fabs(clean[j] - (double)b->scale * b->q[j]);
            assert_in_range(b->q[j] + 127, 0, 254);
            assert_true(error <= (double)b->scale * (0.5 + ldexp(1, -15)));
            most = abs(b->q[j]) > most ? abs(b->q[j]) : most;
        }
        assert_int_equal(most, 127);
    }
    assert_int_equal(b->p_low[0], sum[0][0]);
    assert_int_equal(b->p_low[1], sum[0][1]);
    assert_int_equal(b->p[0], sum[0][0] + sum[1][0]);
    assert_int_equal(b->p[1], sum[0][1] + sum[1][1]);
    assert_int_equal(b->n_low, sum[0][0] + sum[0][1]);
    assert_int_equal(b->n, b->p[0] + b->p[1]);
    assert_true(dendp_f32_bits(b->min_factor) == dendp_f32_bits(b->scale * (float)-b->n));
}

static void mm_act_case(test_rng *rng, uint32_t kind, float *x) {
    uint32_t j;
    for (j = 0; j < 32; j++) {
        float f = test_float(rng);
        switch (kind) {
        case 0: /* ordinary */
            x[j] = f;
            break;
        case 1: /* any bits at all: NaN, infinities, subnormals */
            x[j] = dendp_bits_f32((uint32_t)(test_next(rng) >> 32));
            break;
        case 2: /* one huge among small */
            x[j] = j == 5 ? -FLT_MAX : f;
            break;
        case 3: /* ties: 127 / amax is exactly 1, codes are halves */
            x[j] = j == 31 ? 127.0f : (float)((int)test_below(rng, 253) - 126) + 0.5f;
            break;
        case 4: /* about the least amax that counts */
            x[j] = f * 1.01f * dendp_bits_f32(DENDP_ACT_LEAST);
            break;
        case 5: /* subnormal */
            x[j] = f * FLT_MIN;
            break;
        case 6: /* all at one end */
            x[j] = -3.25f;
            break;
        case 7: /* infinities and NaN among ordinary */
            x[j] = j == 3   ? dendp_bits_f32(0x7f800000u)
                   : j == 4 ? dendp_bits_f32(0xff800000u)
                   : j == 9 ? dendp_bits_f32(0xffc00001u)
                            : f;
            break;
        case 8: /* NaN among ordinary */
            x[j] = j % 5 == 0 ? dendp_bits_f32(0x7fc00000u + j) : f;
            break;
        case 9: /* only NaN */
            x[j] = dendp_bits_f32(0x7f800001u + j);
            break;
        default: /* zeros of both signs */
            x[j] = j % 2 ? 0.0f : -0.0f;
            break;
        }
    }
}
#define MM_ACT_CASES 11

static void test_act_blocks(void **state) {
    test_rng rng = {21};
    uint32_t kind, turn;
    size_t i;
    (void)state;
    for (turn = 0; turn < 300; turn++) {
        for (kind = 0; kind < MM_ACT_CASES; kind++) {
            dendp_act_block want;
            float x[32];
            mm_act_case(&rng, kind, x);
            dendp_act_row_scalar(x, 32, 1, &want, 1);
            mm_check_block(x, &want);
            for (i = 0; i < MM_N_ISAS; i++) {
                const dendp_kernels *kn = dendp_kernels_get(mm_isas[i]);
                dendp_act_block got;
                if (kn) {
                    memset(&got, 0xa5, sizeof got);
                    kn->act_row(x, 32, 1, &got, 1);
                    assert_memory_equal(&want, &got, sizeof got);
                }
            }
        }
    }
}

/* Ties go to the even code. */
static void test_act_ties(void **state) {
    dendp_act_block b;
    float x[32];
    size_t i;
    int j;
    (void)state;
    for (j = 0; j < 32; j++) {
        x[j] = (float)j - 16.5f;
    }
    x[31] = 127.0f;
    for (i = 0; i < MM_N_ISAS; i++) {
        const dendp_kernels *kn = dendp_kernels_get(mm_isas[i]);
        if (kn) {
            kn->act_row(x, 32, 1, &b, 1);
            for (j = 0; j < 31; j++) {
                assert_int_equal(b.q[j] % 2, 0);
                ASSERT_NEAR(x[j], b.q[j], 0.5, 0);
            }
        }
    }
}

/* Rows, tiles, odd lengths: each block lies where it should, holds what its 32
 * values alone give, and padding is zeros; ranges of tiles touch their own bytes only. */
static void test_act_layout(void **state) {
    static const uint32_t ks[] = {32, 45, 64, 96, 160, 896}, ns[] = {1, 2, 7, 8, 9, 16, 33, 65};
    test_rng rng = {22};
    size_t i, a, b;
    (void)state;
    for (i = 0; i < MM_N_ISAS; i++) {
        const dendp_kernels *kn = dendp_kernels_get(mm_isas[i]);
        for (a = 0; a < sizeof ks / sizeof ks[0] && kn; a++) {
            for (b = 0; b < sizeof ns / sizeof ns[0]; b++) {
                uint32_t k = ks[a], n = ns[b], n_blocks = 2 * dendp_div_up(k, 64), r, t, tile;
                size_t ldx = k + 5, bytes = (size_t)dendp_act_bytes(n, k);
                float *x = mm_floats(n * ldx, &rng);
                unsigned char *act = (unsigned char *)mm_alloc(bytes + 64);
                assert_int_equal(bytes, (size_t)n * n_blocks * 56);
                for (tile = dendp_div_up(n, 8);
                     tile-- > 0;) { /* backwards: each writes only what is its own */
                    size_t from = (size_t)tile * 8 * n_blocks * 56, j;
                    dendp_act_quantise(kn, x, ldx, n, k, act, tile, 1);
                    for (j = 0; j < from; j++) {
                        assert_int_equal(act[j], 0xa5);
                    }
                }
                for (t = 0; t < 64; t++) {
                    assert_int_equal(act[bytes + t], 0xa5);
                }
                for (r = 0; r < n; r++) {
                    for (t = 0; t < n_blocks; t++) {
                        const dendp_act_block *got = dendp_act_at(act, n, n_blocks, r, t);
                        dendp_act_block want;
                        float padded[32];
                        uint32_t j;
                        for (j = 0; j < 32; j++) {
                            padded[j] = t * 32 + j < k ? x[r * ldx + t * 32 + j] : 0.0f;
                        }
                        dendp_act_row_scalar(padded, 32, 1, &want, 1);
                        assert_memory_equal(&want, got, sizeof want);
                    }
                }
                free(act);
                free(x);
            }
        }
    }
}

/* -- products ------------------------------------------------------------------- */

/* The product in float64 of dequantised weights and dequantised activations,
 * and a bound on what the chain of floats may lose. Quantised: at most two fma
 * a block round once each, a term carries at most 3 roundings of its own
 * (scale * A.scale or A.min_factor; t twice in Q6_K), all relative 2^-24 to at
 * most S, the sum of the terms' sizes. Float forms: k / 4 + 1 fma of a chain
 * and two sums. */
static double mm_oracle(const mm_matrix *m, uint32_t row, const float *x, const dendp_act_block *act,
                        uint32_t n, uint32_t r, double *bound) {
    const unsigned char *panel = m->data + (row / 16) * m->p.panel_bytes;
    double sum = 0, size = 0;
    uint32_t t, j, k = m->p.k;
    float *w = (float *)mm_alloc(k * sizeof(float));
    dendp_panels_get_row(&m->p, row, w);
    if (mm_is_float(m->p.type->id)) {
        for (j = 0; j < k; j++) {
            sum += (double)w[j] * (double)x[j];
            size += fabs((double)w[j] * (double)x[j]);
        }
        *bound = (k / 4 + 4) * ldexp(1.001, -24) * size;
    } else {
        for (t = 0; t < k / 32; t++) {
            const dendp_act_block *a = dendp_act_at(act, n, m->p.n_blocks, r, t);
            dendp_lane_block b;
            double term[2] = {0, 0}, min_sum = 0;
            int32_t centre = dendp_form_layouts[m->p.form].centre;
            dendp_lane_load(m->p.form, panel, t, row % 16, &b);
            for (j = 0; j < 32; j++) {
                sum += (double)w[t * 32 + j] * (double)a->scale * a->q[j];
                term[j / 16] += (double)((int32_t)b.code[j] - centre) * a->q[j];
                min_sum += a->q[j];
            }
            size += fabs(term[0] * (double)b.scale[0] * (double)a->scale);
            size += fabs(term[1] * (double)b.scale[1] * (double)a->scale);
            size += fabs(min_sum * (double)b.min * (double)a->scale);
            /* a decoded weight with a minimum was rounded once, which the kernel does not do */
            for (j = 0; j < 32 && dendp_form_has_min(m->p.form); j++) {
                size += fabs((double)w[t * 32 + j] * (double)a->scale * a->q[j]) / (2 * m->p.n_blocks + 4);
            }
        }
        *bound = (2 * m->p.n_blocks + 4) * ldexp(1.001, -24) * size;
    }
    free(w);
    return sum;
}

/* One shape: every instruction set near float64, and equal to scalar in every bit. */
static void mm_check_product(const mm_matrix *m, const float *x, size_t ldx, uint32_t n) {
    const dendp_kernels *scalar = dendp_kernels_get(DEND_ISA_SCALAR);
    uint32_t n_out = m->p.n_rows, r, o;
    void *act = mm_is_float(m->p.type->id) ? NULL : mm_quantise(scalar, x, ldx, n, m->p.k);
    float *want = (float *)mm_alloc((size_t)n * n_out * sizeof(float));
    float *got = (float *)mm_alloc((size_t)n * n_out * sizeof(float));
    double worst = 0, worst_isa = 0;
    size_t i;
    mm_product(scalar, &m->p, x, ldx, n, want, n_out);
    for (r = 0; r<n; r += n> 4 ? 3 : 1) {
        for (o = 0; o<n_out; o += n_out> 40 ? 7 : 1) {
            double bound, y = mm_oracle(m, o, x + r * ldx, (const dendp_act_block *)act, n, r, &bound);
            double error = fabs(y - (double)want[(size_t)r * n_out + o]);
            assert_true(error <= bound + 1e-37);
            worst = fmax(worst, error);
        }
    }
    for (i = 0; i < MM_N_ISAS; i++) {
        const dendp_kernels *kn = dendp_kernels_get(mm_isas[i]);
        if (!kn) {
            continue;
        }
        memset(got, 0xa5, (size_t)n * n_out * sizeof(float));
        mm_product(kn, &m->p, x, ldx, n, got, n_out);
        for (r = 0; r<n; r += n> 4 ? 3 : 1) {
            for (o = 0; o<n_out; o += n_out> 40 ? 7 : 1) {
                double bound, y = mm_oracle(m, o, x + r * ldx, (const dendp_act_block *)act, n, r, &bound);
                worst_isa = fmax(worst_isa, fabs(y - (double)got[(size_t)r * n_out + o]));
            }
        }
        assert_true(worst_isa <= 2 * worst + 1e-37);
        assert_memory_equal(want, got, (size_t)n * n_out * sizeof(float));
    }
    free(act);
    free(want);
    free(got);
}

static void test_matmul_shapes(void **state) {
    static const uint32_t rows[] = {1, 15, 17, 130}, ks[] = {32, 64, 96, 160, 256, 896, 1536};
    static const uint32_t float_ks[] = {1, 2, 3, 20, 63, 64, 129};
    test_rng rng = {31};
    size_t i, a, b;
    (void)state;
    for (i = 0; i < MM_N_TYPES; i++) {
        for (a = 0; a < 4; a++) {
            uint32_t last = 0;
            for (b = 0; b < 7; b++) {
                uint32_t k = mm_is_float(mm_types[i].id) ? float_ks[b] : mm_k(mm_types[i].id, ks[b]);
                uint32_t n = 1 + (uint32_t)(a * 7 + b) % 9;
                float *x;
                mm_matrix m;
                if (k == last) {
                    continue;
                }
                last = k;
                x = mm_floats((size_t)n * (k + 3), &rng);
                mm_make(&m, &mm_types[i], rows[a], k, &rng, -1);
                mm_check_product(&m, x, k + 3, n);
                mm_free(&m);
                free(x);
            }
        }
    }
}

/* Many panels and many rows, where kernels take several at a time, whole and in ranges. */
static void test_matmul_panel_groups(void **state) {
    static const uint32_t ns[] = {8, 9, 17, 64, 65, 130};
    test_rng rng = {37};
    size_t i, b, isa;
    (void)state;
    for (i = 0; i < MM_N_TYPES; i++) {
        uint32_t k = mm_k(mm_types[i].id, i % 2 ? 352 : 96), n_out = 16 * 19 + 5;
        mm_matrix m;
        mm_make(&m, &mm_types[i], n_out, k, &rng, -1);
        for (b = 0; b < sizeof ns / sizeof ns[0]; b++) {
            uint32_t n = ns[b];
            float *x = mm_floats((size_t)n * k, &rng), *whole = mm_floats((size_t)n * n_out, &rng);
            mm_check_product(&m, x, k, n);
            for (isa = 0; isa < MM_N_ISAS; isa++) {
                const dendp_kernels *kn = dendp_kernels_get(mm_isas[isa]);
                static const uint32_t cuts[] = {0, 3, 4, 13, 20};
                float *parts;
                void *act;
                if (!kn) {
                    continue;
                }
                parts = mm_floats((size_t)n * n_out, &rng);
                act = mm_is_float(mm_types[i].id) ? NULL : mm_quantise(kn, x, k, n, k);
                mm_product(kn, &m.p, x, k, n, whole, n_out);
                for (size_t c = 0; c + 1 < sizeof cuts / sizeof cuts[0]; c++) {
                    dendp_matmul(kn, &m.p, act, act ? NULL : x, k, n, cuts[c], cuts[c + 1] - cuts[c], parts,
                                 n_out);
                }
                assert_memory_equal(whole, parts, (size_t)n * n_out * sizeof(float));
                free(act);
                free(parts);
            }
            free(x);
            free(whole);
        }
        mm_free(&m);
    }
}

/* Codes and activations at both of their ends, alone and mixed: where 16-bit
 * sums would overflow or saturate if they could. */
static void test_matmul_extremes(void **state) {
    static const int bytes[] = {0x00, 0xff, 0x80, 0x7f, 0x0f, 0xf0, 0xaa, 0x55};
    test_rng rng = {32};
    size_t i, b;
    (void)state;
    for (i = 0; i < MM_N_TYPES; i++) {
        uint32_t k = mm_k(mm_types[i].id, 256), j, n = 6;
        float *x;
        if (mm_is_float(mm_types[i].id)) {
            continue;
        }
        x = (float *)mm_alloc(n * k * sizeof(float));
        for (j = 0; j < k; j++) {
            x[0 * k + j] = 2.0f;                      /* all +127 */
            x[1 * k + j] = -2.0f;                     /* all -127 */
            x[2 * k + j] = j % 2 ? 2.0f : -2.0f;      /* alternating */
            x[3 * k + j] = j / 2 % 2 ? 2.0f : -2.0f;  /* pairs: where even and odd sums part */
            x[4 * k + j] = j / 16 % 2 ? 2.0f : -2.0f; /* halves of a block */
            x[5 * k + j] = test_below(&rng, 2) ? 2.0f : -2.0f;
        }
        for (b = 0; b < sizeof bytes / sizeof bytes[0]; b++) {
            mm_matrix m;
            mm_make(&m, &mm_types[i], 17, k, &rng, bytes[b]);
            mm_check_product(&m, x, k, n);
            mm_free(&m);
        }
        free(x);
    }
}

/* An output does not depend on how many rows there are, where its row stands,
 * or how panels were split; and nothing beyond the outputs is written. */
static void test_matmul_row_invariance(void **state) {
    static const uint32_t ns[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 64, 65, 130};
    enum { N_MOST = 130, N_OUT = 49, PAD = 3 };
    test_rng rng = {33};
    size_t i, a, c;
    (void)state;
    for (i = 0; i < MM_N_TYPES; i++) {
        uint32_t k = mm_is_float(mm_types[i].id) ? 83 : mm_k(mm_types[i].id, 96);
        float *x = mm_floats((size_t)N_MOST * k, &rng);
        float *single = (float *)mm_alloc(N_MOST * N_OUT * sizeof(float));
        mm_matrix m;
        uint32_t r;
        mm_make(&m, &mm_types[i], N_OUT, k, &rng, -1);
        for (r = 0; r < N_MOST; r++) {
            mm_product(dendp_kernels_get(DEND_ISA_SCALAR), &m.p, x + (size_t)r * k, k, 1, single + r * N_OUT,
                       N_OUT);
        }
        for (c = 0; c < MM_N_ISAS; c++) {
            const dendp_kernels *kn = dendp_kernels_get(mm_isas[c]);
            for (a = 0; a < sizeof ns / sizeof ns[0] && kn; a++) {
                uint32_t n = ns[a], first_row = test_below(&rng, N_MOST - n + 1), first, count;
                size_t ldy = N_OUT + PAD;
                const float *from = x + (size_t)first_row * k;
                unsigned char *bytes = (unsigned char *)mm_alloc((n * ldy + PAD) * sizeof(float));
                float *y = (float *)(void *)bytes;
                void *act = mm_is_float(mm_types[i].id) ? NULL : mm_quantise(kn, from, k, n, k);
                for (first = 0; first < m.p.n_panels; first += count) { /* panels by ranges of 1, 2, 1 */
                    count = dendp_min_u32(1 + first % 2, m.p.n_panels - first);
                    dendp_matmul(kn, &m.p, act, act ? NULL : from, k, n, first, count, y, ldy);
                }
                for (r = 0; r < n; r++) {
                    size_t j;
                    assert_memory_equal(y + r * ldy, single + (first_row + r) * N_OUT, N_OUT * sizeof(float));
                    for (j = (r * ldy + N_OUT) * sizeof(float); j < (r + 1) * ldy * sizeof(float); j++) {
                        assert_int_equal(bytes[j], 0xa5);
                    }
                }
                free(act);
                free(bytes);
            }
        }
        mm_free(&m);
        free(x);
        free(single);
    }
}

/* A range of panels leaves the outputs of all others alone. */
static void test_matmul_range_is_local(void **state) {
    test_rng rng = {34};
    size_t i, c;
    (void)state;
    for (i = 0; i < MM_N_TYPES; i++) {
        uint32_t k = mm_k(mm_types[i].id, 64), n = 5, r, o;
        float *x = mm_floats((size_t)n * k, &rng);
        mm_matrix m;
        mm_make(&m, &mm_types[i], 60, k, &rng, -1);
        for (c = 0; c < MM_N_ISAS; c++) {
            const dendp_kernels *kn = dendp_kernels_get(mm_isas[c]);
            float y[5 * 60];
            void *act;
            if (!kn) {
                continue;
            }
            for (o = 0; o < 5 * 60; o++) {
                y[o] = -777.0f;
            }
            act = mm_is_float(mm_types[i].id) ? NULL : mm_quantise(kn, x, k, n, k);
            dendp_matmul(kn, &m.p, act, x, k, n, 1, 2, y, 60);
            for (r = 0; r < n; r++) {
                for (o = 0; o < 60; o++) {
                    assert_int_equal(o < 16 || o >= 48, y[r * 60 + o] == -777.0f);
                }
            }
            free(act);
        }
        mm_free(&m);
        free(x);
    }
}

/* Activations with NaN, infinities, huge and subnormal values: defined, and
 * finite for quantised forms; equal in every instruction set. */
static void test_matmul_odd_activations(void **state) {
    test_rng rng = {35};
    size_t i;
    (void)state;
    for (i = 0; i < MM_N_TYPES; i++) {
        uint32_t k = mm_k(mm_types[i].id, 64), n = MM_ACT_CASES, r, j;
        float *x, *y;
        mm_matrix m;
        if (mm_is_float(mm_types[i].id)) {
            continue;
        }
        x = (float *)mm_alloc(n * k * sizeof(float));
        y = (float *)mm_alloc(n * 17 * sizeof(float));
        for (r = 0; r < n; r++) {
            for (j = 0; j < k; j += 32) {
                mm_act_case(&rng, r, x + r * k + j);
            }
        }
        mm_make(&m, &mm_types[i], 17, k, &rng, -1);
        for (j = 0; j < MM_N_ISAS; j++) {
            const dendp_kernels *kn = dendp_kernels_get(mm_isas[j]);
            float *z = (float *)mm_alloc(n * 17 * sizeof(float));
            if (kn) {
                mm_product(kn, &m.p, x, k, n, j == 0 ? y : z, 17);
                if (j > 0) {
                    assert_memory_equal(y, z, n * 17 * sizeof(float));
                }
            }
            free(z);
        }
        for (r = 0; r < n; r++) {
            for (j = 0; j < 17; j++) {
                bool huge = r == 1 || r == 2 || r == 7; /* may overflow to infinity by right */
                assert_true(huge || dendp_finite(y[r * 17 + j]));
                assert_true((r != 9 && r != 10) || y[r * 17 + j] == 0.0f); /* only NaN, only zeros */
            }
        }
        mm_free(&m);
        free(x);
        free(y);
    }
}

/* Float forms carry infinities and subnormals of either operand as IEEE says. */
static void test_matmul_float_specials(void **state) {
    const float inf = dendp_bits_f32(0x7f800000u);
    float w[3] = {1.0f, 0.5f, 2.0f}, x[2][3] = {{1.0f, 0, 1.0f}, {FLT_MIN, FLT_MIN, 0}}, y[2];
    size_t i;
    dendp_panels p;
    uint64_t bytes;
    void *data;
    (void)state;
    x[0][1] = inf;
    ASSERT_STATUS(DEND_OK, dendp_panels_plan(&p, DENDP_TYPE_F32, 1, 3, &bytes));
    data = mm_alloc((size_t)bytes);
    dendp_panels_pack(&p, data, w, 0, 1);
    p.data = (const unsigned char *)data;
    for (i = 0; i < MM_N_ISAS; i++) {
        const dendp_kernels *kn = dendp_kernels_get(mm_isas[i]);
        if (kn) {
            dendp_matmul(kn, &p, NULL, x[0], 3, 2, 0, 1, y, 1);
            assert_int_equal(dendp_f32_bits(y[0]), 0x7f800000u);
            assert_true(y[1] == (test_flushes() ? 1.0f : 1.5f) * FLT_MIN);
        }
    }
    free(data);
}

/* -- the table ------------------------------------------------------------------ */

static void test_kernels_get(void **state) {
    static const dend_isa best_first[] = {DEND_ISA_AVX512, DEND_ISA_AVX_VNNI, DEND_ISA_AVX2};
    const dendp_kernels *kn = dendp_kernels_get(DEND_ISA_DEFAULT), *best = NULL, *vnni;
    uint32_t features = dendp_cpu_features(), i;
    (void)state;
    for (i = 0; i < 3 && !best; i++) {
        best = dendp_kernels_get(best_first[i]);
    }
    assert_true(!best || kn == best);
    vnni = dendp_kernels_get(DEND_ISA_AVX_VNNI);
    assert_true(!vnni || (vnni->isa == DEND_ISA_AVX_VNNI && strcmp(vnni->name, "avxvnni") == 0));
    assert_non_null(kn);
    assert_ptr_equal(dendp_kernels_get(kn->isa), kn);
    assert_string_equal(dendp_kernels_get(DEND_ISA_SCALAR)->name, "scalar");
#if DENDP_X86
    if (features & DENDP_CPU_AVX2) {
        assert_non_null(dendp_kernels_get(DEND_ISA_AVX2));
        assert_int_not_equal(kn->isa, DEND_ISA_SCALAR);
    } else {
        assert_null(dendp_kernels_get(DEND_ISA_AVX2));
    }
    assert_null(dendp_kernels_get(DEND_ISA_NEON));
#else
    assert_null(dendp_kernels_get(DEND_ISA_AVX2));
    assert_null(vnni);
    assert_null(dendp_kernels_get(DEND_ISA_AVX512));
#if DENDP_ARM64
    assert_int_equal(features & ~(uint32_t)DENDP_CPU_NEON_DOT, 0);
    if (features & DENDP_CPU_NEON_DOT) {
        assert_int_equal(kn->isa, DEND_ISA_NEON);
        assert_string_equal(kn->name, "neon");
    } else {
        assert_null(dendp_kernels_get(DEND_ISA_NEON));
    }
#else
    assert_null(dendp_kernels_get(DEND_ISA_NEON));
    assert_int_equal(features, 0);
#endif
#endif
    assert_null(dendp_kernels_get((dend_isa)77));
}

/* Sanitizers' own calls keep compilers from clearing them, and speed is no matter there. Where the plain code is of
 * vector instructions too (-march=native), nothing is lost by registers in use. gcc for Windows, where a function
 * restores registers after it has cleared them, leaves some in use (tiles.add_v). */
#if DENDP_X86 && !DENDP_WINDOWS && !defined(__AVX__) && !defined(DEND_TEST_SIMDE) &&                         \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MM_TELLS_DIRTY 1
#else
#define MM_TELLS_DIRTY 0
#endif

#if MM_TELLS_DIRTY
/* Whether the upper halves of vector registers are in use (XGETBV 1, bit 2). */
static bool mm_dirty(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(1));
    (void)high;
    return low & 4u;
}

DENDP_TARGET_AVX2 static void mm_clean_up(void) {
    __asm__ volatile("vzeroupper" : : : "memory");
}

DENDP_TARGET_AVX2 static void mm_make_dirty(void) {
    __asm__ volatile("vpcmpeqb %%ymm5, %%ymm5, %%ymm5" : : : "memory");
}

/* Code for SSE alone may run many times slower while they are. */
#define MM_CLEAN(call)                                                                                       \
    {                                                                                                        \
        mm_clean_up();                                                                                       \
        call;                                                                                                \
        if (mm_dirty()) {                                                                                    \
            fail_msg("upper halves are in use after %s, ISA %s", #call, kn->name);                           \
        }                                                                                                    \
    }
#endif

/* Vector code leaves the upper halves of the registers clean. */
static void test_kernels_leave_clean_registers(void **state) {
#if MM_TELLS_DIRTY
    static const uint32_t ns[] = {1, 2, 3, 4, 5, 8, 9, 64};
    unsigned int a = 0, b = 0, c = 0, d = 0;
    float *x, *y, most = 0;
    test_rng rng;
    uint32_t isa, t, i;
    (void)state;
    if (!(dendp_cpu_features() & DENDP_CPU_AVX2) || !__get_cpuid_count(13, 1, &a, &b, &c, &d) ||
        !(a >> 2 & 1u)) {
        print_message("this processor does not tell\n");
        return;
    }
    mm_clean_up();
    assert_false(mm_dirty());
    mm_make_dirty();
    assert_true(mm_dirty());
    mm_clean_up();
    rng.state = 91;
    x = mm_floats(64 * 512, &rng);
    y = mm_floats(64 * 512, &rng);
    for (isa = 0; isa < MM_N_ISAS; isa++) {
        const dendp_kernels *kn = dendp_kernels_get(mm_isas[isa]);
        const dendp_vector_ops *ops;
        const dendp_tile_ops *tiles;
        if (!kn) {
            continue;
        }
        for (t = 0; t < MM_N_TYPES; t++) {
            mm_matrix m;
            mm_make(&m, &mm_types[t], 33, mm_k(mm_types[t].id, 256), &rng, -1);
            for (i = 0; i < sizeof ns / sizeof ns[0]; i++) {
                void *act = mm_is_float(mm_types[t].id) ? NULL : mm_quantise(kn, x, 256, ns[i], m.p.k);
                MM_CLEAN(dendp_matmul(kn, &m.p, act, act ? NULL : x, 256, ns[i], 0, m.p.n_panels, y, 33))
                free(act);
            }
            mm_free(&m);
        }
        {
            dendp_act_block block[9];
            MM_CLEAN(kn->act_row(x, 256, 8, block, 1))
            MM_CLEAN(kn->act_row(x, 250, 8, block, 1))
        }
        ops = dendp_vector_ops_get(mm_isas[isa]);
        for (i = 505; i <= 512; i++) {
            MM_CLEAN(ops->rms_norm(x, x + 512, 1e-5f, i, y))
            MM_CLEAN(ops->silu_mul(x, x + 512, i, y))
            MM_CLEAN(ops->gelu_mul(x, x + 512, i, y))
            MM_CLEAN(ops->sum_exp(x, i, 100.0f))
            MM_CLEAN(ops->max_index(x, i))
            MM_CLEAN(ops->blend(y, 0.5f, x, 0.25f, i))
        }
        MM_CLEAN(ops->softmax(y, 512, &most))
        MM_CLEAN(ops->softmax(y, 16, &most))
        tiles = dendp_tile_ops_get(mm_isas[isa]);
        for (t = 0; t < 3; t++) {
            for (i = 1; i <= 9; i++) {
                static unsigned char tile[80 * 64 * 4] DENDP_ALIGNED;
                static dendp_q8_query bytes[9 * 3];
                const void *v[4] = {tile, tile, tile, tile};
                const uint16_t mask[4] = {0xffff, 0x7fff, 0xffff, 3};
                const void *q = t == 2 ? (const void *)bytes : (const void *)x;
                MM_CLEAN(dendp_q8_put_query(tiles->act_row, x, 80, bytes))
                MM_CLEAN(tiles->score[t](tile, tile, 80, q, i, y, 64))
                MM_CLEAN(tiles->add_v[t](v, v, mask, 4, 80, x, 64, i, y))
            }
        }
    }
    free(x);
    free(y);
#else
    (void)state;
#endif
}

static const struct CMUnitTest tests_kernels_matmul[] = {
    cmocka_unit_test(test_panels_plan_sizes),
    cmocka_unit_test(test_panels_plan_refuses),
    cmocka_unit_test(test_panels_lossless),
    cmocka_unit_test(test_panels_layout),
    cmocka_unit_test(test_panels_golden),
    cmocka_unit_test(test_panels_converted),
    cmocka_unit_test(test_panels_converted_overflow),
    cmocka_unit_test(test_panels_pack_ranges),
    cmocka_unit_test(test_act_blocks),
    cmocka_unit_test(test_act_ties),
    cmocka_unit_test(test_act_layout),
    cmocka_unit_test(test_matmul_shapes),
    cmocka_unit_test(test_matmul_panel_groups),
    cmocka_unit_test(test_matmul_extremes),
    cmocka_unit_test(test_matmul_row_invariance),
    cmocka_unit_test(test_matmul_range_is_local),
    cmocka_unit_test(test_matmul_odd_activations),
    cmocka_unit_test(test_matmul_float_specials),
    cmocka_unit_test(test_kernels_get),
    cmocka_unit_test(test_kernels_leave_clean_registers),
};
