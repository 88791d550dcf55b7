/* ==========================================================================
 * >>04.03 KV CODEC: how K and V of a tile are stored
 * ==========================================================================
 * A codec owns the bytes of a tile: 16 positions of K and of V for one KV
 * head. Nothing outside knows the layout; attention asks the codec for scores
 * and weighted values, so a compressed cache is attended to in place and
 * never expanded to memory.
 *
 *     put_token    store K and V of one slot
 *     get_token    read them back as floats
 *     put_query    what score_tile wants of a query (query_bytes 0: the floats as they are)
 *     score_tile   s[q][0..15] = Q K^T          (any value in unwritten slots)
 *     add_v_tiles  o[q][d] += P V over the slots of a mask, up to 4 tiles a call.
 *                  Results depend on nothing but a row's own tiles when calls
 *                  begin at multiples of chunk_tiles
 *     copy_slots   move slots from one tile to another (tree rows, compaction)
 *     seal         all 16 slots are written and final   (NULL: nothing to do)
 *     truncate     only the first n slots remain; unseal (NULL: nothing to do).
 *                  With n = 0 also the beginning of a new tile, whatever it holds
 *
 * Putting the same token twice leaves the same bytes. A codec may keep state
 * inside its tile; blocks are copied and saved as whole bytes.
 * Three codecs are here: f32 (exact), f16, and q8_0 (int8 with one f16 scale
 * for 32 dimensions, scale = amax / 127, values rounded half away from zero).
 * ======================================================================== */

typedef struct dendp_codec {
    const char *name;
    uint64_t (*k_bytes)(uint32_t d); /* of one tile; a multiple of DENDP_ALIGN */
    uint64_t (*v_bytes)(uint32_t d);
    void (*put_token)(void *k_tile, void *v_tile, uint32_t d, uint32_t slot, const float *k, const float *v);
    void (*get_token)(const void *k_tile, const void *v_tile, uint32_t d, uint32_t slot, float *k, float *v);
    void (*copy_slots)(void *k_dst, void *v_dst, uint32_t dst, const void *k_src, const void *v_src,
                       uint32_t src, uint32_t n, uint32_t d);
    uint32_t chunk_tiles;
    uint64_t (*query_bytes)(uint32_t d); /* of one query; NULL: no put_query */
    void (*put_query)(dendp_act_fn act_row, const float *q, uint32_t d, void *out);
    dendp_act_fn act_row; /* for put_query */
    dendp_score_fn score_tile;
    dendp_add_v_fn add_v_tiles;
    void (*seal)(void *k_tile, void *v_tile, uint32_t d);
    void (*truncate)(void *k_tile, void *v_tile, uint32_t d, uint32_t n);
} dendp_codec;

static uint64_t dendp_codec_round(uint64_t bytes) {
    return (bytes + (DENDP_ALIGN - 1)) & ~(uint64_t)(DENDP_ALIGN - 1);
}

/* -- f32 -------------------------------------------------------------------- */

static uint64_t dendp_codec_f32_bytes(uint32_t d) {
    return dendp_codec_round((uint64_t)d * 64);
}

static void dendp_codec_f32_put(void *k_tile, void *v_tile, uint32_t d, uint32_t slot, const float *k,
                                const float *v) {
    float *kt = (float *)k_tile, *vt = (float *)v_tile;
    uint32_t i;
    for (i = 0; i < d; i++) {
        kt[i * 16 + slot] = k[i];
    }
    memcpy(vt + (size_t)slot * d, v, d * sizeof(float));
}

static void dendp_codec_f32_get(const void *k_tile, const void *v_tile, uint32_t d, uint32_t slot, float *k,
                                float *v) {
    const float *kt = (const float *)k_tile, *vt = (const float *)v_tile;
    uint32_t i;
    for (i = 0; i < d; i++) {
        k[i] = kt[i * 16 + slot];
    }
    memcpy(v, vt + (size_t)slot * d, d * sizeof(float));
}

static void dendp_codec_f32_copy(void *k_dst, void *v_dst, uint32_t dst, const void *k_src, const void *v_src,
                                 uint32_t src, uint32_t n, uint32_t d) {
    float *kd = (float *)k_dst;
    const float *ks = (const float *)k_src;
    uint32_t i;
    for (i = 0; i < d; i++) {
        memmove(kd + i * 16 + dst, ks + i * 16 + src, n * sizeof(float));
    }
    memmove((float *)v_dst + (size_t)dst * d, (const float *)v_src + (size_t)src * d,
            (size_t)n * d * sizeof(float));
}

/* -- f16 -------------------------------------------------------------------- */

static uint64_t dendp_codec_f16_bytes(uint32_t d) {
    return dendp_codec_round((uint64_t)d * 32);
}

/* K goes to slot `slot` of every dimension, V lies together. */
static void dendp_codec_f16_store(dendp_to_f16_fn to_f16, void *k_tile, void *v_tile, uint32_t d,
                                  uint32_t slot, const float *k, const float *v) {
    uint16_t *kt = (uint16_t *)k_tile + slot, half[DENDP_MAX_HEAD_DIM];
    uint32_t i;
    to_f16(k, d, half);
    for (i = 0; i < d; i++) {
        kt[i * 16] = half[i];
    }
    to_f16(v, d, (uint16_t *)v_tile + (size_t)slot * d);
}

static void dendp_codec_f16_put(void *k_tile, void *v_tile, uint32_t d, uint32_t slot, const float *k,
                                const float *v) {
    dendp_codec_f16_store(dendp_to_f16_scalar, k_tile, v_tile, d, slot, k, v);
}

#if DENDP_X86
static void dendp_codec_f16_put_avx2(void *k_tile, void *v_tile, uint32_t d, uint32_t slot, const float *k,
                                     const float *v) {
    dendp_codec_f16_store(dendp_to_f16_avx2, k_tile, v_tile, d, slot, k, v);
}
#endif

static void dendp_codec_f16_get(const void *k_tile, const void *v_tile, uint32_t d, uint32_t slot, float *k,
                                float *v) {
    const uint16_t *kt = (const uint16_t *)k_tile, *vt = (const uint16_t *)v_tile + (size_t)slot * d;
    uint32_t i;
    for (i = 0; i < d; i++) {
        k[i] = dendp_f16_to_f32(kt[i * 16 + slot]);
        v[i] = dendp_f16_to_f32(vt[i]);
    }
}

static void dendp_codec_f16_copy(void *k_dst, void *v_dst, uint32_t dst, const void *k_src, const void *v_src,
                                 uint32_t src, uint32_t n, uint32_t d) {
    uint16_t *kd = (uint16_t *)k_dst;
    const uint16_t *ks = (const uint16_t *)k_src;
    uint32_t i;
    for (i = 0; i < d; i++) {
        memmove(kd + i * 16 + dst, ks + i * 16 + src, n * sizeof(uint16_t));
    }
    memmove((uint16_t *)v_dst + (size_t)dst * d, (const uint16_t *)v_src + (size_t)src * d,
            (size_t)n * d * sizeof(uint16_t));
}

/* -- q8_0 ------------------------------------------------------------------- */

static uint64_t dendp_codec_q8_k_bytes(uint32_t d) {
    return dendp_codec_round(dendp_q8_k_codes(d) + 32u * dendp_q8_groups(d));
}

static uint64_t dendp_codec_q8_v_bytes(uint32_t d) {
    return dendp_codec_round((uint64_t)d * 16 + 32u * dendp_q8_groups(d));
}

static uint64_t dendp_codec_q8_query_bytes(uint32_t d) {
    return (uint64_t)dendp_q8_groups(d) * sizeof(dendp_q8_query);
}

static void dendp_codec_q8_put_query(dendp_act_fn act_row, const float *q, uint32_t d, void *out) {
    dendp_q8_put_query(act_row, q, d, (dendp_q8_query *)out);
}

/* Quantises n <= 32 values: returns the f16 scale.
 * What is not finite counts as 0; what is beyond 127 * 65504 becomes that. */
static uint16_t dendp_q8_encode(const float *x, uint32_t n, int8_t *code) {
    float amax = 0.0f, inverse;
    uint16_t scale;
    uint32_t i;
    for (i = 0; i < n; i++) {
        float a = fabsf(x[i]);
        amax = dendp_finite(a) && a > amax ? a : amax;
    }
    scale =
        dendp_f32_to_f16(dendp_finite(amax / 127.0f) && amax / 127.0f < 65504.0f ? amax / 127.0f : 65504.0f);
    inverse = dendp_f16_to_f32(scale);
    inverse = inverse > 0.0f ? 1.0f / inverse : 0.0f;
    for (i = 0; i < n; i++) {
        float c = dendp_finite(x[i]) ? x[i] * inverse : 0.0f;
        c = c > 127.0f ? 127.0f : c < -127.0f ? -127.0f : c;
        code[i] = (int8_t)(c < 0.0f ? c - 0.5f : c + 0.5f);
    }
    return scale;
}

/* The scales of a K or V tile: [d/32][16] behind its codes. */
static uint16_t *dendp_q8_k_scales(void *k_tile, uint32_t d) {
    return (uint16_t *)(void *)((unsigned char *)k_tile + dendp_q8_k_codes(d));
}

static uint16_t *dendp_q8_v_scales(void *v_tile, uint32_t d) {
    return (uint16_t *)(void *)((unsigned char *)v_tile + (size_t)d * 16);
}

static void dendp_codec_q8_put(void *k_tile, void *v_tile, uint32_t d, uint32_t slot, const float *k,
                               const float *v) {
    unsigned char *kt = (unsigned char *)k_tile;
    int8_t *vt = (int8_t *)v_tile, code[32];
    uint32_t b, i;
    for (b = 0; b < dendp_q8_groups(d); b++) {
        uint32_t n = dendp_min_u32(32, d - b * 32);
        dendp_q8_k_scales(k_tile, d)[b * 16 + slot] = dendp_q8_encode(k + b * 32, n, code);
        for (i = 0; i < n; i++) {
            kt[dendp_q8_k_at(b * 32 + i, slot)] = (unsigned char)(code[i] + 128);
        }
        dendp_q8_v_scales(v_tile, d)[b * 16 + slot] = dendp_q8_encode(v + b * 32, n, code);
        for (i = 0; i < n; i++) {
            vt[dendp_q8_v_at(d, b * 32 + i, slot)] = code[i];
        }
    }
}

static void dendp_codec_q8_get(const void *k_tile, const void *v_tile, uint32_t d, uint32_t slot, float *k,
                               float *v) {
    const unsigned char *kt = (const unsigned char *)k_tile;
    const int8_t *vt = (const int8_t *)v_tile;
    const uint16_t *ks = (const uint16_t *)(const void *)(kt + dendp_q8_k_codes(d));
    const uint16_t *vs = (const uint16_t *)(const void *)(vt + (size_t)d * 16);
    uint32_t i;
    for (i = 0; i < d; i++) {
        k[i] = (float)(kt[dendp_q8_k_at(i, slot)] - 128) * dendp_f16_to_f32(ks[i / 32 * 16 + slot]);
        v[i] = (float)vt[dendp_q8_v_at(d, i, slot)] * dendp_f16_to_f32(vs[i / 32 * 16 + slot]);
    }
}

static void dendp_codec_q8_copy(void *k_dst, void *v_dst, uint32_t dst, const void *k_src, const void *v_src,
                                uint32_t src, uint32_t n, uint32_t d) {
    unsigned char *kd = (unsigned char *)k_dst, *vd = (unsigned char *)v_dst;
    const unsigned char *ks = (const unsigned char *)k_src, *vs = (const unsigned char *)v_src;
    uint32_t i, t, groups = dendp_q8_groups(d);
    for (i = 0; i < dendp_div_up(d, 4) * 4; i += 4) { /* four dimensions of a slot lie together */
        memmove(kd + dendp_q8_k_at(i, dst), ks + dendp_q8_k_at(i, src), (size_t)n * 4);
    }
    for (i = 0; i < groups; i++) {
        memmove(kd + dendp_q8_k_codes(d) + (i * 16 + dst) * 2, ks + dendp_q8_k_codes(d) + (i * 16 + src) * 2,
                (size_t)n * 2);
        memmove(vd + ((size_t)d * 16) + (i * 16 + dst) * 2, vs + ((size_t)d * 16) + (i * 16 + src) * 2,
                (size_t)n * 2);
    }
    for (t = 0; t < n; t++) { /* within one tile slots move towards the front, or the back */
        uint32_t at = vd == vs && dst > src ? n - 1 - t : t;
        for (i = 0; i < d; i++) {
            vd[dendp_q8_v_at(d, i, dst + at)] = vs[dendp_q8_v_at(d, i, src + at)];
        }
    }
}

/* -- choice ----------------------------------------------------------------- */

/* Fills *out with the codec of a KV type and an instruction set. */
static void dendp_codec_get(dend_kv_type type, dend_isa isa, dendp_codec *out) {
    const dendp_tile_ops *ops = dendp_tile_ops_get(isa);
    uint32_t i = type == DEND_KV_F32 ? 0 : type == DEND_KV_Q8_0 ? 2 : 1;
    memset(out, 0, sizeof *out);
    out->name = i == 0 ? "f32" : i == 1 ? "f16" : "q8_0";
    out->k_bytes = i == 0 ? dendp_codec_f32_bytes : i == 1 ? dendp_codec_f16_bytes : dendp_codec_q8_k_bytes;
    out->v_bytes = i == 0 ? dendp_codec_f32_bytes : i == 1 ? dendp_codec_f16_bytes : dendp_codec_q8_v_bytes;
    out->chunk_tiles = i == 2 ? DENDP_CHUNK_TILES : 1;
    out->query_bytes = i == 2 ? dendp_codec_q8_query_bytes : NULL;
    out->put_query = i == 2 ? dendp_codec_q8_put_query : NULL;
    out->act_row = ops->act_row;
    out->put_token = i == 0 ? dendp_codec_f32_put : i == 1 ? dendp_codec_f16_put : dendp_codec_q8_put;
#if DENDP_X86
    if (i == 1 && ops->to_f16 == dendp_to_f16_avx2) {
        out->put_token = dendp_codec_f16_put_avx2;
    }
#endif
    out->get_token = i == 0 ? dendp_codec_f32_get : i == 1 ? dendp_codec_f16_get : dendp_codec_q8_get;
    out->copy_slots = i == 0 ? dendp_codec_f32_copy : i == 1 ? dendp_codec_f16_copy : dendp_codec_q8_copy;
    out->score_tile = ops->score[i];
    out->add_v_tiles = ops->add_v[i];
}
