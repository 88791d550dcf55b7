/* Codecs of the KV cache, the tile kernels that attend to them, and the small
 * vector operations: every instruction set against float64.
 *
 * Error bounds are derived. With u = 2^-24, a chain of n fused multiply-adds
 * is off by at most n * u * (sum of the terms' magnitudes), to first order
 * (Higham, "Accuracy and Stability of Numerical Algorithms", section 3.1);
 * 1% more covers the higher orders for n <= 1000.
 */
#include "test_cache.h"

#define TK_U (1.0 / 16777216.0) /* unit roundoff of float */

static const uint32_t tk_widths[] = {1, 8, 16, 20, 32, 48, 64, 80, 96, 100, 128, 256};
#define TK_N_WIDTHS (sizeof tk_widths / sizeof tk_widths[0])

/* Instruction sets to test against the scalar forms, and what they are here. */
static const dend_isa tk_isas[] = {DEND_ISA_SCALAR, DEND_ISA_AVX2, DEND_ISA_AVX_VNNI, DEND_ISA_AVX512,
                                   DEND_ISA_NEON};
#define TK_N_ISAS (sizeof tk_isas / sizeof tk_isas[0])

/* A tile of exactly the codec's size, so that a sanitizer sees every byte too far. */
typedef struct tk_tile {
    unsigned char *k, *v;
    size_t k_bytes, v_bytes;
} tk_tile;

static tk_tile tk_tile_new(const dendp_codec *codec, uint32_t d, int fill) {
    tk_tile t;
    void *k = NULL, *v = NULL;
    t.k_bytes = (size_t)codec->k_bytes(d);
    t.v_bytes = (size_t)codec->v_bytes(d);
    assert_int_equal(t.k_bytes % DENDP_ALIGN, 0);
    assert_int_equal(t.v_bytes % DENDP_ALIGN, 0);
    assert_int_equal(posix_memalign(&k, DENDP_ALIGN, t.k_bytes), 0);
    assert_int_equal(posix_memalign(&v, DENDP_ALIGN, t.v_bytes), 0);
    t.k = (unsigned char *)k;
    t.v = (unsigned char *)v;
    memset(t.k, fill, t.k_bytes);
    memset(t.v, fill, t.v_bytes);
    return t;
}

static void tk_tile_free(tk_tile *t) {
    free(t->k);
    free(t->v);
}

/* Random vectors with a few outliers, as K has. */
static void tk_random(test_rng *rng, float *x, uint32_t n) {
    uint32_t i;
    for (i = 0; i < n; i++) {
        x[i] = test_float(rng) * (test_below(rng, 16) == 0 ? 20.0f : 1.0f);
    }
}

static bool tk_is_nan(float x) {
    return (dendp_f32_bits(x) & 0x7fffffffu) > 0x7f800000u;
}

static bool tk_same(float a, float b) {
    return dendp_f32_bits(a) == dendp_f32_bits(b) || (tk_is_nan(a) && tk_is_nan(b));
}

static double tk_abs(double x) {
    return x < 0 ? -x : x;
}

/* -- put, get, copy ----------------------------------------------------------------- */

/* What a codec may make of x, as one of n <= 32 values with the largest magnitude amax.
 * f16: half a unit in the last of 11 bits, or half of 2^-24 below 2^-14.
 * q8_0: the scale is amax/127 with a relative error of 2^-11, or 2^-25 absolute
 * below 2^-14. A code is off by half, so half a scale; the largest value may be
 * clamped to 127 scales, and is then off by what the scale fell short. */
static double tk_codec_bound(uint32_t codec, double x, double amax) {
    double scale, shortfall;
    switch (codec) {
    case TC_F16:
        return tk_abs(x) / 2048 > 1.0 / 33554432 ? tk_abs(x) / 2048 : 1.0 / 33554432;
    case TC_Q8:
        scale = amax / 127;
        shortfall = scale / 2048 > 1.0 / 33554432 ? scale / 2048 : 1.0 / 33554432;
        scale += shortfall;
        return (scale / 2 > 127 * shortfall ? scale / 2 : 127 * shortfall) * 1.00001;
    default:
        return 0;
    }
}

static void tk_round_trip(uint32_t which, uint32_t d, float magnitude) {
    dendp_codec codec;
    tk_tile a, b;
    float *x = (float *)malloc((size_t)d * 32 * sizeof *x), *k, *v; /* [16][K | V][d] */
    float *y = (float *)malloc((size_t)d * 2 * sizeof *y);
    uint32_t slot, i, order, part;
    test_rng rng;
    rng.state = 5 + d + which;
    assert_non_null(x);
    assert_non_null(y);
    tc_codec_get(which, DEND_ISA_SCALAR, &codec);
    a = tk_tile_new(&codec, d, 0xff);
    b = tk_tile_new(&codec, d, 0xff);
    if (codec.truncate) {
        codec.truncate(a.k, a.v, d, 0);
        codec.truncate(b.k, b.v, d, 0);
    }
    tk_random(&rng, x, d * 32);
    for (i = 0; i < d * 32; i++) {
        x[i] *= magnitude;
    }
    for (order = 0; order < 16; order++) { /* out of order where the codec has no state */
        slot = codec.truncate ? order : order * 7 % 16;
        codec.put_token(a.k, a.v, d, slot, x + (size_t)slot * 2 * d, x + ((size_t)slot * 2 + 1) * d);
    }
    for (slot = 0; slot < 16; slot++) {
        memset(y, 0xff, (size_t)d * 2 * sizeof *y);
        codec.get_token(a.k, a.v, d, slot, y, y + d);
        for (part = 0; part < 2; part++) {
            const float *in = x + ((size_t)slot * 2 + part) * d, *out = y + (size_t)part * d;
            for (i = 0; i < d; i++) {
                double amax = 0;
                uint32_t j;
                for (j = i / 32 * 32; j < d && j < i / 32 * 32 + 32; j++) {
                    amax = tk_abs((double)in[j]) > amax ? tk_abs((double)in[j]) : amax;
                }
                ASSERT_NEAR(in[i], out[i], tk_codec_bound(which, (double)in[i], amax), 0);
                TC_CHECK(which != TC_F16 || tk_same(out[i], dendp_f16_to_f32(dendp_f32_to_f16(in[i]))));
            }
        }
    }
    for (slot = 0; slot < 16; slot++) { /* again: the same bytes in another tile, in another order */
        uint32_t at = codec.truncate ? slot : 15 - slot;
        codec.put_token(b.k, b.v, d, at, x + (size_t)at * 2 * d, x + ((size_t)at * 2 + 1) * d);
        codec.put_token(b.k, b.v, d, at, x + (size_t)at * 2 * d, x + ((size_t)at * 2 + 1) * d);
    }
    k = y;
    v = y + d;
    for (slot = 0; slot < 16; slot++) {
        float *k2 = (float *)malloc((size_t)d * 2 * sizeof *k2);
        assert_non_null(k2);
        codec.get_token(a.k, a.v, d, slot, k, v);
        codec.get_token(b.k, b.v, d, slot, k2, k2 + d);
        assert_memory_equal(k, k2, (size_t)d * 2 * sizeof *k2);
        free(k2);
    }
    tk_tile_free(&a);
    tk_tile_free(&b);
    free(x);
    free(y);
}

static void test_codec_round_trip(void **state) {
    static const float magnitudes[] = {1.0f, 1e-3f, 1e-5f, 3e-7f, 1000.0f};
    uint32_t which, i, m;
    (void)state;
    for (which = TC_F32; which <= TC_TOY; which++) {
        for (i = 0; i < TK_N_WIDTHS; i++) {
            for (m = 0; m < 5; m++) {
                tk_round_trip(which, tk_widths[i], magnitudes[m]);
            }
        }
    }
}

/* copy_slots between tiles and inside one, overlapping both ways: the slots
 * named arrive, the others stay, byte for byte. */
static void test_codec_copy_slots(void **state) {
    uint32_t which, w, round, s, i;
    test_rng rng;
    (void)state;
    rng.state = 17;
    for (which = TC_F32; which <= TC_Q8; which++) {
        for (w = 0; w < TK_N_WIDTHS; w++) {
            uint32_t d = tk_widths[w];
            dendp_codec codec;
            float *x = (float *)malloc((size_t)d * 64 * sizeof *x),
                  *y = (float *)malloc((size_t)d * 64 * sizeof *y);
            tk_tile t[2];
            assert_non_null(x);
            assert_non_null(y);
            tc_codec_get(which, DEND_ISA_SCALAR, &codec);
            for (round = 0; round < 6; round++) {
                uint32_t n = test_below(&rng, 17), src = test_below(&rng, 17 - n),
                         dst = test_below(&rng, 17 - n);
                uint32_t to = test_below(&rng, 2);
                tk_random(&rng, x, d * 64);
                for (i = 0; i < 2; i++) {
                    t[i] = tk_tile_new(&codec, d, 0xff);
                    for (s = 0; s < 16; s++) {
                        float *at = x + ((size_t)i * 16 + s) * 2 * d;
                        codec.put_token(t[i].k, t[i].v, d, s, at, at + d);
                        codec.get_token(t[i].k, t[i].v, d, s, at, at + d); /* x = what is stored */
                    }
                }
                codec.copy_slots(t[to].k, t[to].v, dst, t[1].k, t[1].v, src, n, d);
                for (i = 0; i < 2; i++) {
                    for (s = 0; s < 16; s++) {
                        bool moved = i == to && s >= dst && s < dst + n;
                        uint32_t from = moved ? 16 + src + s - dst : i * 16 + s;
                        codec.get_token(t[i].k, t[i].v, d, s, y, y + d);
                        assert_memory_equal(y, x + (size_t)from * 2 * d, (size_t)d * 2 * sizeof *y);
                    }
                    tk_tile_free(&t[i]);
                }
            }
            free(x);
            free(y);
        }
    }
}

/* The toy codec too, as far as its order allows: from sealed tiles, to the end of another. */
static void test_codec_toy_itself(void **state) {
    dendp_codec codec;
    tk_tile a, b;
    float k[20], v[20], k2[20], v2[20];
    uint32_t i;
    test_rng rng;
    (void)state;
    rng.state = 3;
    tc_codec_get(TC_TOY, DEND_ISA_SCALAR, &codec);
    a = tk_tile_new(&codec, 20, 0x11);
    b = tk_tile_new(&codec, 20, 0x22);
    codec.truncate(a.k, a.v, 20, 0);
    codec.truncate(b.k, b.v, 20, 0);
    for (i = 0; i < 16; i++) {
        tk_random(&rng, k, 20);
        tk_random(&rng, v, 20);
        codec.put_token(a.k, a.v, 20, i, k, v);
    }
    codec.seal(a.k, a.v, 20);
    codec.copy_slots(b.k, b.v, 0, a.k, a.v, 4, 9, 20);
    codec.truncate(a.k, a.v, 20, 7);
    for (i = 0; i < 7; i++) {
        codec.get_token(a.k, a.v, 20, i, k, v);
        if (i >= 4) {
            codec.get_token(b.k, b.v, 20, i - 4, k2, v2);
            assert_memory_equal(k, k2, sizeof k);
            assert_memory_equal(v, v2, sizeof v);
        }
    }
    codec.put_token(a.k, a.v, 20, 7, k, v);
    tk_tile_free(&a);
    tk_tile_free(&b);
}

/* NaN, infinity and huge values in one token: no trap, the codes are defined,
 * and no other slot, and in q8_0 no other group of 32, changes. */
static void test_codec_extremes(void **state) {
    static const float bad[] = {3.4e38f, -3.4e38f, 65504.0f, 70000.0f, 8.4e6f, 1e-45f,
                                0.0f,    -0.0f,    0.0f,     0.0f,     0.0f};
    uint32_t which, n = sizeof bad / sizeof bad[0], e, s, i;
    test_rng rng;
    (void)state;
    rng.state = 23;
    for (which = TC_F32; which <= TC_Q8; which++) {
        dendp_codec codec;
        tc_codec_get(which, DEND_ISA_SCALAR, &codec);
        for (e = 0; e < n; e++) {
            float x[16][96], k[96], v[96], value = bad[e];
            tk_tile t = tk_tile_new(&codec, 96, 0xff);
            value = e == n - 3 ? dendp_bits_f32(0x7fc00000u) : value; /* not by arithmetic: -ffast-math */
            value = e == n - 2 ? dendp_bits_f32(0x7f800000u) : value;
            value = e == n - 1 ? dendp_bits_f32(0xff800000u) : value;
            for (s = 0; s < 16; s++) {
                tk_random(&rng, x[s], 96);
                codec.put_token(t.k, t.v, 96, s, x[s], x[s]);
                codec.get_token(t.k, t.v, 96, s, x[s], v);
            }
            memcpy(k, x[5], sizeof k);
            k[40] = value;
            codec.put_token(t.k, t.v, 96, 5, k, k);
            for (s = 0; s < 16; s++) {
                codec.get_token(t.k, t.v, 96, s, k, v);
                assert_memory_equal(k, v, sizeof k);
                for (i = 0; i < 96; i++) {
                    if (s != 5 || (which == TC_Q8 ? i / 32 != 1 : i != 40)) {
                        TC_CHECK(dendp_f32_bits(k[i]) == dendp_f32_bits(x[s][i]));
                    }
                }
                if (s != 5) {
                    continue;
                }
                if (which == TC_F32) {
                    TC_CHECK(dendp_f32_bits(k[40]) == dendp_f32_bits(value));
                } else if (which == TC_F16) {
                    TC_CHECK(tk_same(k[40], dendp_f16_to_f32(dendp_f32_to_f16(value))));
                } else {
                    for (i = 32; i < 64; i++) {
                        TC_CHECK(dendp_finite(k[i]));
                    }
                    if (!dendp_finite(value)) { /* it counts as 0, its neighbours keep their values */
                        TC_CHECK(dendp_f32_bits(k[40]) << 1 == 0);
                        ASSERT_NEAR(x[5][33], k[33], 20.0 / 127, 0);
                    } else {
                        double clamp = 127.0 * 65504; /* the largest that can be said */
                        double want = (double)value > clamp    ? clamp
                                      : (double)value < -clamp ? -clamp
                                                               : (double)value;
                        ASSERT_NEAR(want, k[40], 20.0 / 127, 1.0 / 254 + 1.0 / 2048);
                    }
                }
            }
            tk_tile_free(&t);
        }
    }
}

/* -- score and add_v --------------------------------------------------------------------- */

#define TK_QUERIES 9u

typedef struct tk_case {
    uint32_t which, d, n_tiles;
    uint16_t mask[DENDP_CHUNK_TILES]; /* slots that are written */
    dendp_codec codec;
    tk_tile tile[DENDP_CHUNK_TILES];
    float *k, *v;        /* [n_tiles * 16][d]: what is stored */
    float *q_, *p_, *o_; /* allocated; the arrays below lie 4 bytes further, so nothing is aligned */
    float *q, *p, *o;    /* [n_q][d], [n_q][ld], [n_q][d] */
    uint32_t ld;
} tk_case;

static bool tk_live(const tk_case *c, uint32_t t) {
    return c->mask[t / 16] >> t % 16 & 1u;
}

/* Tiles with random tokens in the slots of their masks and all bits set, NaN in every type, in the others. */
static void tk_case_open(tk_case *c, uint32_t which, uint32_t d, const uint16_t *mask, uint32_t n_tiles,
                         test_rng *rng) {
    uint32_t t, a, i;
    memset(c, 0, sizeof *c);
    c->which = which;
    c->d = d;
    c->n_tiles = n_tiles;
    c->ld = DENDP_CHUNK + 3;
    tc_codec_get(which, DEND_ISA_SCALAR, &c->codec);
    c->k = (float *)calloc((size_t)d * 16 * n_tiles, sizeof(float));
    c->v = (float *)calloc((size_t)d * 16 * n_tiles, sizeof(float));
    c->q_ = (float *)calloc((size_t)d * TK_QUERIES + 1, sizeof(float));
    c->p_ = (float *)calloc((size_t)c->ld * TK_QUERIES + 1, sizeof(float));
    c->o_ = (float *)calloc((size_t)d * TK_QUERIES + 1, sizeof(float));
    assert_non_null(c->k);
    assert_non_null(c->v);
    assert_non_null(c->q_);
    assert_non_null(c->p_);
    assert_non_null(c->o_);
    c->q = c->q_ + 1;
    c->p = c->p_ + 1;
    c->o = c->o_ + 1;
    for (t = 0; t < n_tiles; t++) {
        c->mask[t] = mask[t];
        c->tile[t] = tk_tile_new(&c->codec, d, 0xff);
    }
    for (t = 0; t < n_tiles * 16; t++) {
        if (tk_live(c, t)) {
            float *k = c->k + (size_t)t * d, *v = c->v + (size_t)t * d;
            tk_tile *tile = &c->tile[t / 16];
            float size = test_below(rng, 4) ? 1.0f : 30.0f; /* V scales of different magnitudes */
            tk_random(rng, k, d);
            tk_random(rng, v, d);
            for (i = 0; i < d; i++) {
                v[i] *= size;
            }
            c->codec.put_token(tile->k, tile->v, d, t % 16, k, v);
            c->codec.get_token(tile->k, tile->v, d, t % 16, k, v);
        }
    }
    tk_random(rng, c->q, d * TK_QUERIES);
    tk_random(rng, c->o, d * TK_QUERIES);
    for (a = 0; a < TK_QUERIES; a++) {
        for (i = 0; i < c->ld; i++) {
            float weight = test_float(rng);
            c->p[a * c->ld + i] =
                i < n_tiles * 16 && tk_live(c, i) ? weight * weight : dendp_bits_f32(0x7fc00000u);
        }
        for (i = 0; i < n_tiles * 16 && a % 3 == 0; i++) { /* the largest weight that softmax gives */
            if (tk_live(c, i)) {
                c->p[a * c->ld + i] = 1.0f;
                break;
            }
        }
    }
}

static void tk_case_close(tk_case *c) {
    uint32_t t;
    for (t = 0; t < c->n_tiles; t++) {
        tk_tile_free(&c->tile[t]);
    }
    free(c->k);
    free(c->v);
    free(c->q_);
    free(c->p_);
    free(c->o_);
}

/* Scores of tile 0 as attention asks for them: q8_0 takes queries as bytes. */
static void tk_score_call(const tk_case *c, const dendp_tile_ops *ops, const float *q, uint32_t n_q, float *s,
                          uint32_t ld) {
    uint32_t groups = dendp_q8_groups(c->d), a;
    dendp_q8_query *bytes;
    if (c->which != TC_Q8) {
        ops->score[c->which](c->tile[0].k, c->tile[0].k, c->d, q, n_q, s, ld);
        return;
    }
    bytes = (dendp_q8_query *)malloc((size_t)n_q * groups * sizeof *bytes);
    assert_non_null(bytes);
    for (a = 0; a < n_q; a++) {
        dendp_q8_put_query(ops->act_row, q + (size_t)a * c->d, c->d, bytes + (size_t)a * groups);
    }
    ops->score[c->which](c->tile[0].k, c->tile[0].k, c->d, bytes, n_q, s, ld);
    free(bytes);
}

static void tk_add_v_call(const tk_case *c, const dendp_tile_ops *ops, const float *p, uint32_t n_q,
                          float *o) {
    const void *v[DENDP_CHUNK_TILES];
    uint32_t i;
    for (i = 0; i < c->n_tiles; i++) {
        v[i] = c->tile[i].v;
    }
    ops->add_v[c->which](v, v, c->mask, c->n_tiles, c->d, p, c->ld, n_q, o);
}

/* Scores of n_q queries by one instruction set: within the derived bound of
 * float64, at most twice as far off as the scalar form, and equal to it.
 * q8_0: a query's value is off by at most its scale times (1/2 + 2^-15), the
 * integer sum is exact, and three roundings a group follow. */
static void tk_score(const tk_case *c, const dendp_tile_ops *ops, const dendp_tile_ops *scalar,
                     uint32_t n_q) {
    float *s = (float *)malloc(((size_t)c->ld * TK_QUERIES + 1) * 2 * sizeof *s);
    float *got = s + 1, *want = s + (size_t)c->ld * TK_QUERIES + 1;
    uint32_t a, t, i;
    double worst = 0, worst_scalar = 0;
    assert_non_null(s);
    for (i = 0; i < c->ld * TK_QUERIES; i++) {
        got[i] = want[i] = 12345.0f;
    }
    tk_score_call(c, ops, c->q, n_q, got, c->ld);
    tk_score_call(c, scalar, c->q, n_q, want, c->ld);
    for (a = 0; a < TK_QUERIES; a++) {
        for (t = 0; t < c->ld; t++) {
            double exact = 0, size = 0, error, bytes = 0;
            float g = got[a * c->ld + t], w = want[a * c->ld + t];
            if (a >= n_q || t >= 16) { /* nothing is written beside the scores */
                TC_CHECK(dendp_f32_bits(g) == dendp_f32_bits(12345.0f));
                continue;
            }
            TC_CHECK(tk_same(g, w));
            if (!tk_live(c, t)) {
                continue; /* garbage: any value */
            }
            for (i = 0; i < c->d; i++) {
                double term = (double)c->q[a * c->d + i] * (double)c->k[t * c->d + i], amax = 0;
                uint32_t j;
                exact += term;
                size += tk_abs(term);
                for (j = i / 32 * 32; c->which == TC_Q8 && j < c->d && j < i / 32 * 32 + 32; j++) {
                    amax =
                        tk_abs((double)c->q[a * c->d + j]) > amax ? tk_abs((double)c->q[a * c->d + j]) : amax;
                }
                bytes += amax / 127 * (0.5 + 1.0 / 32768) * tk_abs((double)c->k[t * c->d + i]);
            }
            error = tk_abs((double)g - exact);
            TC_CHECK(error <= 1.01 * TK_U * (c->d + 3 * dendp_q8_groups(c->d)) * (size + bytes) + bytes);
            worst = error > worst ? error : worst;
            error = tk_abs((double)w - exact);
            worst_scalar = error > worst_scalar ? error : worst_scalar;
        }
    }
    TC_CHECK(worst <= 2 * worst_scalar);
    free(s);
}

/* q8_0: a weight is off by half of m / 32767, m the largest V scale, times
 * the code; the integer sum is exact; a handful of roundings follow. */
static void tk_add_v(const tk_case *c, const dendp_tile_ops *ops, const dendp_tile_ops *scalar,
                     uint32_t n_q) {
    size_t n = (size_t)c->d * TK_QUERIES;
    float *o = (float *)malloc((n + 1) * 2 * sizeof *o), *got = o + 1, *want = o + n + 1;
    uint32_t a, t, i;
    double worst = 0, worst_scalar = 0;
    assert_non_null(o);
    memcpy(got, c->o, n * sizeof *o);
    memcpy(want, c->o, n * sizeof *o);
    tk_add_v_call(c, ops, c->p, n_q, got);
    tk_add_v_call(c, scalar, c->p, n_q, want);
    for (i = 0; i < c->d; i++) {
        double scale[DENDP_CHUNK] = {0}, most = 0;
        for (t = 0; t < c->n_tiles * 16 && c->which == TC_Q8; t++) {
            if (tk_live(c, t)) {
                scale[t] = (double)dendp_f16_to_f32(
                    dendp_q8_v_scales(c->tile[t / 16].v, c->d)[i / 32 * 16 + t % 16]);
                most = scale[t] > most ? scale[t] : most;
            }
        }
        for (a = 0; a < TK_QUERIES; a++) {
            double exact = (double)c->o[a * c->d + i], size = tk_abs(exact), error, weights = 0;
            float g = got[a * c->d + i], w = want[a * c->d + i];
            for (t = 0; t < c->n_tiles * 16 && a < n_q; t++) {
                if (tk_live(c, t)) {
                    double value = (double)c->v[t * c->d + i], term = (double)c->p[a * c->ld + t] * value;
                    exact += term;
                    size += tk_abs(term);
                    weights += scale[t] > 0 ? 0.5 * most / 32767 * tk_abs(value) / scale[t] : 0;
                }
            }
            TC_CHECK(tk_same(g, w) && dendp_finite(g));
            error = tk_abs((double)g - exact);
            TC_CHECK(error <= 1.01 * TK_U * (16 * c->n_tiles + 1) * (size + weights) + weights);
            TC_CHECK(a < n_q || error == 0);
            worst = error > worst ? error : worst;
            error = tk_abs((double)w - exact);
            worst_scalar = error > worst_scalar ? error : worst_scalar;
        }
    }
    TC_CHECK(worst <= 2 * worst_scalar);
    free(o);
}

static void test_tiles_against_float64(void **state) {
    const dendp_tile_ops *scalar = dendp_tile_ops_get(DEND_ISA_SCALAR);
    uint32_t which, w, isa, n_q, round, t;
    test_rng rng;
    (void)state;
    rng.state = 71;
    TC_CHECK(scalar->score[0] == dendp_score_f32_scalar);
    for (which = TC_F32; which <= TC_Q8; which++) {
        for (w = 0; w < TK_N_WIDTHS; w++) {
            for (round = 0; round < 5; round++) {
                uint32_t n_tiles = round == 0 ? 4 : 1 + test_below(&rng, 4);
                uint16_t mask[DENDP_CHUNK_TILES];
                tk_case c;
                for (t = 0; t < n_tiles; t++) {
                    mask[t] = (uint16_t)(round == 0   ? 0xffffu
                                         : round == 1 ? 1u << test_below(&rng, 16)
                                         : round == 4 ? 0
                                                      : test_below(&rng, 65536));
                }
                tk_case_open(&c, which, tk_widths[w], mask, n_tiles, &rng);
                for (isa = 0; isa < TK_N_ISAS; isa++) {
                    const dendp_tile_ops *ops = dendp_tile_ops_get(tk_isas[isa]);
                    for (n_q = 1; n_q <= TK_QUERIES; n_q++) {
                        tk_score(&c, ops, scalar, n_q);
                        tk_add_v(&c, ops, scalar, n_q);
                    }
                }
                tk_case_close(&c);
            }
        }
    }
}

/* The table of an instruction set holds what its name says, where the processor has it. */
static void test_tiles_dispatch(void **state) {
    (void)state;
#if DENDP_X86
    if (dendp_cpu_features() & DENDP_CPU_AVX2) {
        assert_true(dendp_tile_ops_get(DEND_ISA_AVX2)->score[1] == dendp_score_f16_avx2);
        assert_true(dendp_tile_ops_get(DEND_ISA_AVX_VNNI)->add_v[2] == dendp_add_v_q8_avx2);
        assert_true(dendp_vector_ops_get(DEND_ISA_AVX2)->softmax == dendp_softmax_avx2);
        assert_true(dendp_vector_ops_get(DEND_ISA_AVX_VNNI)->softmax == dendp_softmax_avx2);
    }
    if ((dendp_cpu_features() & DENDP_AVX512_NEEDS) == DENDP_AVX512_NEEDS) {
        assert_true(dendp_tile_ops_get(DEND_ISA_AVX512)->score[1] == dendp_score_f16_avx512);
        assert_true(dendp_tile_ops_get(DEND_ISA_DEFAULT)->add_v[2] == dendp_add_v_q8_avx512);
        assert_true(dendp_vector_ops_get(DEND_ISA_AVX512)->softmax == dendp_softmax_avx512);
    } else if (dendp_cpu_features() & DENDP_CPU_AVX2) {
        assert_true(dendp_tile_ops_get(DEND_ISA_DEFAULT)->add_v[2] == dendp_add_v_q8_avx2);
    }
#elif DENDP_ARM64
    if (dendp_cpu_features() & DENDP_CPU_NEON_DOT) {
        assert_true(dendp_tile_ops_get(DEND_ISA_NEON)->score[1] == dendp_score_f16_neon);
        assert_true(dendp_tile_ops_get(DEND_ISA_DEFAULT)->add_v[2] == dendp_add_v_q8_neon);
    }
    assert_true(dendp_vector_ops_get(DEND_ISA_NEON)->softmax == dendp_softmax_neon);
    assert_true(dendp_vector_ops_get(DEND_ISA_DEFAULT)->rms_norm == dendp_rms_norm_neon);
#endif
    assert_true(dendp_tile_ops_get(DEND_ISA_SCALAR)->add_v[0] == dendp_add_v_f32_scalar);
    assert_true(dendp_vector_ops_get(DEND_ISA_SCALAR)->rms_norm == dendp_rms_norm_scalar);
}

/* Sums of floats do not depend on how many tiles a call takes; those of q8_0 are cut at fours. */
static void test_tiles_chunks(void **state) {
    static const uint16_t mask[4] = {0xffff, 0xffff, 0x0ff1, 0x00ff};
    uint32_t which, isa, t;
    test_rng rng;
    (void)state;
    rng.state = 73;
    for (which = TC_F32; which <= TC_F16; which++) {
        for (isa = 0; isa < TK_N_ISAS; isa++) {
            const dendp_tile_ops *ops = dendp_tile_ops_get(tk_isas[isa]);
            tk_case c;
            float o[TK_QUERIES * 80];
            tk_case_open(&c, which, 80, mask, 4, &rng);
            memcpy(o, c.o, sizeof o);
            tk_add_v_call(&c, ops, c.p, TK_QUERIES, c.o);
            for (t = 0; t < 4; t++) {
                const void *v = c.tile[t].v;
                ops->add_v[which](&v, &v, c.mask + t, 1, 80, c.p + t * 16, c.ld, TK_QUERIES, o);
            }
            assert_memory_equal(o, c.o, sizeof o);
            tk_case_close(&c);
        }
    }
}

/* A row's scores and sums do not depend on the other rows of the call. */
static void test_tiles_rows_independent(void **state) {
    static const uint16_t mask[3] = {0xffff, 0xbeef, 0x0007};
    uint32_t which, isa, a, i;
    test_rng rng;
    (void)state;
    rng.state = 72;
    for (which = TC_F32; which <= TC_Q8; which++) {
        for (isa = 0; isa < TK_N_ISAS; isa++) {
            const dendp_tile_ops *ops = dendp_tile_ops_get(tk_isas[isa]);
            tk_case c;
            float s[TK_QUERIES * 16], one[16], o[TK_QUERIES * 80], o1[80];
            tk_case_open(&c, which, 80, mask, 3, &rng);
            memcpy(o, c.o, sizeof o);
            tk_score_call(&c, ops, c.q, TK_QUERIES, s, 16);
            tk_add_v_call(&c, ops, c.p, TK_QUERIES, o);
            for (a = 0; a < TK_QUERIES; a++) {
                tk_score_call(&c, ops, c.q + a * 80, 1, one, 16);
                memcpy(o1, c.o + a * 80, sizeof o1);
                tk_add_v_call(&c, ops, c.p + a * c.ld, 1, o1);
                for (i = 0; i < 16; i++) {
                    TC_CHECK(tk_same(s[a * 16 + i], one[i]));
                }
                assert_memory_equal(o1, o + a * 80, sizeof o1);
            }
            tk_case_close(&c);
        }
    }
}

/* -- vector operations ---------------------------------------------------------------------- */

/* The tables of tk_isas; asking the processor is slow under a hypervisor, so once a test. */
static void tk_vector_ops(const dendp_vector_ops *ops[TK_N_ISAS]) {
    uint32_t isa;
    for (isa = 0; isa < TK_N_ISAS; isa++) {
        ops[isa] = dendp_vector_ops_get(tk_isas[isa]);
    }
}

/* Values that break careless code. */
static float tk_special(uint32_t i) {
    static const uint32_t bits[] = {0x7fc00000u, 0xffc00000u, 0x7f800000u, 0xff800000u, 0x7f7fffffu,
                                    0xff7fffffu, 0x00000001u, 0x80000001u, 0x00000000u, 0x80000000u,
                                    0x42fc0000u, 0xc2fc0000u, 0x42fcffffu, 0xc2fd0001u, 0x43160000u,
                                    0xc3160000u, 0x4f000000u, 0xcf000001u};
    return dendp_bits_f32(bits[i % (sizeof bits / sizeof bits[0])]);
}
#define TK_SPECIALS 18u

#if DENDP_X86
DENDP_TARGET_AVX2 static void tk_exp2_avx2(const float *x, float *y) {
    __m256 a = _mm256_loadu_ps(x), b = a, c = a, d = a;
    dendp_exp2x4_avx2(&a, &b, &c, &d);
    _mm256_storeu_ps(y, a);
    _mm256_storeu_ps(y, b);
    _mm256_storeu_ps(y, c);
    _mm256_storeu_ps(y, d);
}
#elif DENDP_ARM64
static void tk_exp2_neon(const float *x, float *y) {
    vst1q_f32(y, dendp_exp2_neon(vld1q_f32(x)));
    vst1q_f32(y + 4, dendp_exp2_neon(vld1q_f32(x + 4)));
}
#endif

/* 2^x: Taylor remainder 5.2e-9, and with u = 2^-24: u for the last step, half
 * of the step before and of c1 (0.7 u and 0.5 u relative to p >= 0.707): 2.4 u. */
static void test_vector_exp2(void **state) {
    uint32_t i;
    test_rng rng;
    (void)state;
    rng.state = 81;
    for (i = 0; i <= 1000; i++) { /* the polynomial itself, without roundings: as its room says */
        double f = i / 1000.0 - 0.5, p = (double)DENDP_EXP2_C7 * f + (double)DENDP_EXP2_C6;
        p = ((p * f + (double)DENDP_EXP2_C5) * f + (double)DENDP_EXP2_C4) * f + (double)DENDP_EXP2_C3;
        p = ((p * f + (double)DENDP_EXP2_C2) * f + (double)DENDP_EXP2_C1) * f + 1.0;
        ASSERT_NEAR(pow(2.0, f), p, 0, 2e-8);
    }
    for (i = 0; i < 300000; i++) {
        float x = i < 1041 ? (float)i * 0.25f - 130.0f : test_float(&rng) * (i % 2 ? 130.0f : 2.0f);
        double clamped = (double)x < -126 ? -126 : (double)x > 126 ? 126 : (double)x;
        ASSERT_NEAR(pow(2.0, clamped), dendp_exp2(x), 1e-45, 2.5 * TK_U);
    }
    for (i = 0; i < TK_SPECIALS; i++) {
        float y = dendp_exp2(tk_special(i));
        TC_CHECK(dendp_finite(y) && y >= 1e-38f && y <= 8.6e37f);
    }
    TC_CHECK(dendp_f32_bits(dendp_exp2(0.0f)) == 0x3f800000u &&
             dendp_f32_bits(dendp_exp2(-0.0f)) == 0x3f800000u);
    TC_CHECK(dendp_f32_bits(dendp_exp2(tk_special(0))) == dendp_f32_bits(dendp_exp2(-126.0f))); /* NaN */
#if DENDP_X86 || DENDP_ARM64
    for (i = DENDP_ARM64 || dendp_cpu_features() ? 0 : 100000; i < 100000; i++) { /* the vector form */
        uint32_t j;
        float x[8], y[8];
        for (j = 0; j < 8; j++) {
            x[j] = i < 300 ? tk_special(i + j) : test_float(&rng) * (j < 4 ? 140.0f : 3.0f);
        }
#if DENDP_ARM64
        tk_exp2_neon(x, y);
#else
        tk_exp2_avx2(x, y);
#endif
        for (j = 0; j < 8; j++) {
            TC_CHECK(dendp_f32_bits(y[j]) == dendp_f32_bits(dendp_exp2(x[j])));
        }
    }
#endif
}

/* rms_norm: the sum is a chain of ceil(n/16) steps and 4 more, its square root
 * halves the relative error; then + eps, sqrt, reciprocal, two products and a division. */
static void test_vector_rms_norm(void **state) {
    static const uint32_t sizes[] = {1, 7, 8, 15, 16, 17, 24, 31, 64, 576, 1000, 4096};
    const dendp_vector_ops *ops[TK_N_ISAS], *scalar;
    uint32_t k, isa, i, round;
    test_rng rng;
    (void)state;
    tk_vector_ops(ops);
    scalar = ops[0];
    rng.state = 82;
    for (k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        uint32_t n = sizes[k];
        float *x = (float *)malloc((n + 1) * 4 * sizeof *x), *w = x + n + 1, *y = w + n + 1, *y2 = y + n + 1;
        assert_non_null(x);
        for (round = 0; round < 8; round++) {
            double sum = 0, scale;
            tk_random(&rng, x, n);
            tk_random(&rng, w, n);
            for (i = 0; i < n; i++) {
                x[i] *= round == 1 ? 1e-15f : round == 2 ? 1e10f : 1.0f;
                sum += (double)x[i] * (double)x[i];
            }
            if (round >= 4) { /* NaN, infinities, the largest: defined, and the same on all */
                x[test_below(&rng, n)] = tk_special(round + test_below(&rng, 3));
            }
            scale = 1 / sqrt(sum / n + (double)1e-5f);
            scalar->rms_norm(x, w, 1e-5f, n, y2);
            for (isa = 0; isa < TK_N_ISAS; isa++) {
                y[n] = 99.0f;
                ops[isa]->rms_norm(x, w, 1e-5f, n, y);
                TC_CHECK(dendp_f32_bits(y[n]) == dendp_f32_bits(99.0f));
                for (i = 0; i < n; i++) {
                    TC_CHECK(tk_same(y[i], y2[i]));
                    if (round < 4) {
                        ASSERT_NEAR((double)x[i] * scale * (double)w[i], y[i], 1e-44,
                                    1.01 * TK_U * ((n + 15) / 16 * 0.5 + 2 + 0.5 + 0.5 + 1 + 1 + 2));
                    }
                }
            }
        }
        free(x);
    }
}

/* What a gate of x makes of up, in double, and the two parts of its tolerance. */
typedef double (*tk_gate)(double x, double *atol, double *rtol);

/* silu: the argument x * log2(e) is off by 2 u |x| of e^-x, e^-x by 2.5 u itself,
 * and sum, quotient, product by u each; where e^-x leaves the range of float
 * (|x| > 87), the result is below |x| * 2^-125. */
static double tk_silu(double x, double *atol, double *rtol) {
    *atol = tk_abs(x) * 3 / 4.25e37 + 1e-44;
    *rtol = 1.01 * TK_U * (2 * tk_abs(x) + 2.5 + 3);
    return x / (1 + exp(-x));
}

/* gelu: as silu, with 2 z, z = sqrt(2/pi) x (1 + 0.044715 x^2), for x. The argument is a
 * square, a fused step of terms of one sign, and a product, each u, beside the constants' u. */
static double tk_gelu(double x, double *atol, double *rtol) {
    double z = 0.7978845608028654 * (x + 0.044715 * x * x * x);
    *atol = tk_abs(x) * 3 / 4.25e37 + 1e-44 + tk_abs(x) * 3 * 2.3e-16; /* tanh near -1 */
    *rtol = 1.01 * TK_U * (2 * tk_abs(z) * 5 + 2.5 + 3);
    return x * 0.5 * (1 + tanh(z));
}

/* gate(g) * up on every instruction set, with gates of three scales. */
static void tk_check_gate(bool is_gelu, tk_gate gate, const float scales[3], uint64_t seed) {
    const dendp_vector_ops *ops[TK_N_ISAS];
    uint32_t n, isa, i, round;
    test_rng rng;
    float g[260], up[260], y[261], y2[261];
    tk_vector_ops(ops);
    rng.state = seed;
    for (n = 0; n <= 260; n = n < 20 ? n + 1 : n + 48) {
        for (round = 0; round < 20; round++) {
            for (i = 0; i < n; i++) {
                g[i] = test_float(&rng) * scales[round % 3];
                g[i] = round >= 16 ? tk_special(i + round) : g[i];
                up[i] = test_float(&rng) * 3.0f;
                up[i] = round == 19 ? tk_special(i * 5) : up[i];
            }
            (is_gelu ? ops[0]->gelu_mul : ops[0]->silu_mul)(g, up, n, y2);
            for (isa = 0; isa < TK_N_ISAS; isa++) {
                y[n] = 99.0f;
                (is_gelu ? ops[isa]->gelu_mul : ops[isa]->silu_mul)(g, up, n, y);
                TC_CHECK(dendp_f32_bits(y[n]) == dendp_f32_bits(99.0f));
                for (i = 0; i < n; i++) {
                    TC_CHECK(tk_same(y[i], y2[i]));
                    if (round < 16) {
                        double atol, rtol, want = gate((double)g[i], &atol, &rtol);
                        ASSERT_NEAR(want * (double)up[i], y[i], atol, rtol);
                    }
                }
            }
        }
    }
}

static void test_vector_silu_mul(void **state) {
    static const float scales[3] = {4.0f, 30.0f, 120.0f};
    (void)state;
    tk_check_gate(false, tk_silu, scales, 83);
}

static void test_vector_gelu_mul(void **state) {
    static const float scales[3] = {4.0f, 0.1f, 20.0f};
    (void)state;
    tk_check_gate(true, tk_gelu, scales, 89);
}

/* softmax: each weight as 2^x, the difference s - max rounds once (u * |s - max|
 * * ln 2 of the weight); masked slots and NaN are exact zeros; the sum is a
 * chain of n/16 steps and 4 more. */
static void test_vector_softmax(void **state) {
    const dendp_vector_ops *ops[TK_N_ISAS], *scalar;
    uint32_t n, isa, i, round;
    test_rng rng;
    float s[512], a[513], b[512];
    (void)state;
    tk_vector_ops(ops);
    scalar = ops[0];
    rng.state = 84;
    for (n = 16; n <= 512; n = n < 64 ? n + 16 : n * 2) {
        for (round = 0; round < 30; round++) {
            float max = DENDP_MASKED, max_a, max_b, sum_a, sum_b;
            double total = 0;
            for (i = 0; i < n; i++) {
                s[i] = test_float(&rng) * (round % 2 ? 15.0f : 100.0f);
                s[i] = test_below(&rng, 4) == 0 || round == 7 ? DENDP_MASKED : s[i];
                s[i] = test_below(&rng, 9) == 0 && round == 9 ? tk_special(i) : s[i]; /* any */
                s[i] = test_below(&rng, 9) == 0 && round == 8 ? tk_special(0) : s[i]; /* NaN only */
                max = tk_is_nan(s[i]) || s[i] <= max ? max : s[i];
            }
            memcpy(b, s, sizeof s);
            sum_b = scalar->softmax(b, n, &max_b);
            TC_CHECK(max_b >= max && max_b <= max);
            for (isa = 0; isa < TK_N_ISAS; isa++) {
                memcpy(a, s, sizeof s);
                a[n] = 99.0f;
                sum_a = ops[isa]->softmax(a, n, &max_a);
                TC_CHECK(dendp_f32_bits(a[n]) == dendp_f32_bits(99.0f));
                TC_CHECK(max_a >= max && max_a <= max);
                TC_CHECK(dendp_f32_bits(sum_a) == dendp_f32_bits(sum_b) && dendp_finite(sum_a));
                assert_memory_equal(a, b, n * sizeof *a);
            }
            for (i = 0; i < n && round != 9; i++) {
                double x = (double)s[i] - (double)max, want = x < -126 ? pow(2.0, -126) : pow(2.0, x);
                if (tk_is_nan(s[i]) || dendp_f32_bits(s[i]) == dendp_f32_bits(DENDP_MASKED)) {
                    TC_CHECK(dendp_f32_bits(b[i]) == 0);
                    continue;
                }
                ASSERT_NEAR(want, b[i], 1e-45, 1.01 * TK_U * (2.5 + tk_abs(x)));
                total += (double)b[i];
            }
            if (round != 9) {
                ASSERT_NEAR(total, sum_b, 1e-44, 1.01 * TK_U * (n / 16 + 4));
            }
        }
    }
}

/* sum_exp: the argument rounds twice (2 u |x - max|), the constant and 2^x are
 * off by u and 2.5 u, and each part of 512 is a chain of 32 steps and 4 more;
 * values further than 87 below the max count as 2^-126 each. */
static void test_vector_sum_exp(void **state) {
    static const uint32_t sizes[] = {1, 5, 15, 16, 17, 511, 512, 513, 1024, 1100, 49152};
    const dendp_vector_ops *ops[TK_N_ISAS], *scalar;
    float *x = (float *)malloc(49152 * sizeof *x);
    uint32_t k, isa, i, round;
    test_rng rng;
    (void)state;
    tk_vector_ops(ops);
    scalar = ops[0];
    assert_non_null(x);
    rng.state = 86;
    for (k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        uint32_t n = sizes[k];
        for (round = 0; round < 4; round++) {
            float spread = round == 0 ? 1.0f : round == 1 ? 20.0f : round == 2 ? 200.0f : 1e30f, max;
            double exact = 0, got = scalar->sum_exp(x, 0, 0.0f);
            TC_CHECK(got <= 0 && got >= 0);
            for (i = 0; i < n; i++) {
                x[i] = test_float(&rng) * spread;
            }
            for (i = 1, max = x[0]; i < n; i++) {
                max = x[i] > max ? x[i] : max;
            }
            for (i = 0; i < n; i++) {
                exact += exp((double)x[i] - (double)max);
            }
            got = scalar->sum_exp(x, n, max);
            ASSERT_NEAR(exact, got, n * 1.2e-38, 1.01 * TK_U * (2 * 87 + 1 + 2.5 + 36));
            for (isa = 0; isa < TK_N_ISAS; isa++) {
                double other = ops[isa]->sum_exp(x, n, max);
                TC_CHECK(memcmp(&other, &got, sizeof got) == 0);
            }
        }
    }
    free(x);
}

/* Rotations keep lengths, invert with the opposite angle, and act on the pairs that their names say. */
static void test_vector_rope(void **state) {
    float v[24], w[24], angles[16], back[16];
    uint32_t i;
    test_rng rng;
    (void)state;
    rng.state = 85;
    for (i = 0; i < 8; i++) {
        double theta = 3.0 * (double)test_float(&rng);
        angles[2 * i] = back[2 * i] = (float)cos(theta);
        angles[2 * i + 1] = (float)sin(theta);
        back[2 * i + 1] = -angles[2 * i + 1];
    }
    tk_random(&rng, v, 24); /* 16 are rotated, 8 are not */
    memcpy(w, v, sizeof w);
    dendp_rope_interleaved(w, angles, 16);
    for (i = 0; i < 8; i++) {
        double c = (double)angles[2 * i], s = (double)angles[2 * i + 1];
        ASSERT_NEAR((double)v[2 * i] * c - (double)v[2 * i + 1] * s, w[2 * i], 40 * 3 * TK_U, 0);
        ASSERT_NEAR((double)v[2 * i] * s + (double)v[2 * i + 1] * c, w[2 * i + 1], 40 * 3 * TK_U, 0);
    }
    assert_memory_equal(w + 16, v + 16, 8 * sizeof *v);
    dendp_rope_interleaved(w, back, 16);
    for (i = 0; i < 24; i++) {
        ASSERT_NEAR(v[i], w[i], 40 * 8 * TK_U, 0);
    }
    memcpy(w, v, sizeof w);
    dendp_rope_halves(w, angles, 16);
    for (i = 0; i < 8; i++) {
        double c = (double)angles[2 * i], s = (double)angles[2 * i + 1];
        ASSERT_NEAR((double)v[i] * c - (double)v[i + 8] * s, w[i], 40 * 3 * TK_U, 0);
        ASSERT_NEAR((double)v[i] * s + (double)v[i + 8] * c, w[i + 8], 40 * 3 * TK_U, 0);
    }
    assert_memory_equal(w + 16, v + 16, 8 * sizeof *v);
    dendp_add_to(w, v, 5);
    ASSERT_NEAR((double)v[5 - 1] + ((double)v[4] * (double)angles[8] - (double)v[12] * (double)angles[9]),
                w[4], 40 * 4 * TK_U, 0);
}

/* Two roundings, as the scalar form has them, in every lane. */
static void test_vector_blend(void **state) {
    const dendp_vector_ops *ops[TK_N_ISAS];
    float o[67], part[67], got[68];
    uint32_t isa, n, i;
    test_rng rng;
    (void)state;
    tk_vector_ops(ops);
    rng.state = 87;
    for (n = 0; n <= 67; n++) {
        float keep = test_float(&rng), add = test_float(&rng);
        tk_random(&rng, o, 67);
        tk_random(&rng, part, 67);
        for (isa = 0; isa < TK_N_ISAS; isa++) {
            memcpy(got, o, sizeof o);
            ops[isa]->blend(got, keep, part, add, n);
            for (i = 0; i < 67; i++) {
                TC_CHECK(tk_same(got[i], i < n ? dendp_fma(part[i], add, dendp_keep(o[i] * keep)) : o[i]));
            }
        }
    }
}

/* Halves of every instruction set, for all kinds of floats; a NaN stays one. */
static void test_vector_to_f16(void **state) {
    uint32_t isa, i, round;
    test_rng rng;
    (void)state;
    rng.state = 88;
    for (isa = 0; isa < TK_N_ISAS; isa++) {
        const dendp_tile_ops *ops = dendp_tile_ops_get(tk_isas[isa]);
        for (round = 0; round < 3000; round++) {
            float x[19];
            uint16_t got[20];
            for (i = 0; i < 19; i++) {
                uint32_t bits = (uint32_t)test_below(&rng, 65536) << 16 | test_below(&rng, 65536);
                bits = round % 3 == 0 ? bits : (bits & 0x8fffffffu) | (0x30u + test_below(&rng, 24)) << 24;
                x[i] =
                    round % 3 == 1 ? dendp_bits_f32(bits & 0xffffe000u) : dendp_bits_f32(bits); /* ties too */
                got[i] = 0x1234;
            }
            got[19] = 0x1234;
            ops->to_f16(x, 19, got);
            assert_int_equal(got[19], 0x1234);
            for (i = 0; i < 19; i++) {
                TC_CHECK(tk_is_nan(x[i]) ? (got[i] & 0x7fffu) > 0x7c00u : got[i] == dendp_f32_to_f16(x[i]));
            }
        }
    }
}

static const struct CMUnitTest tests_cache_codec[] = {
    cmocka_unit_test(test_vector_to_f16),
    cmocka_unit_test(test_vector_blend),
    cmocka_unit_test(test_codec_round_trip),
    cmocka_unit_test(test_codec_copy_slots),
    cmocka_unit_test(test_codec_toy_itself),
    cmocka_unit_test(test_codec_extremes),
    cmocka_unit_test(test_tiles_against_float64),
    cmocka_unit_test(test_tiles_dispatch),
    cmocka_unit_test(test_tiles_rows_independent),
    cmocka_unit_test(test_tiles_chunks),
    cmocka_unit_test(test_vector_exp2),
    cmocka_unit_test(test_vector_rms_norm),
    cmocka_unit_test(test_vector_silu_mul),
    cmocka_unit_test(test_vector_gelu_mul),
    cmocka_unit_test(test_vector_softmax),
    cmocka_unit_test(test_vector_sum_exp),
    cmocka_unit_test(test_vector_rope),
};
