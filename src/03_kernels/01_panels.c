/* ==========================================================================
 * >>03.01 PANELS: weights laid out in the order in which kernels read them
 * ==========================================================================
 * A file stores a matrix row by row, which suits nobody who multiplies: a
 * vector register wants 8 or 16 rows (outputs) side by side, and a processor
 * reads memory fastest in address order. So weights are repacked once, at
 * load, into panels. (Where memory is short a model keeps the file's rows and
 * each panel is packed right before it is multiplied: the same panels, so the
 * same results, at the price of packing them every time.)
 *
 *     a panel    16 rows (the lanes), all of K, one linear stream
 *     a group    64 k of a panel: two blocks of 32, all their bytes adjacent
 *
 *     group:  | q block 0 | q block 1 | h 0 | h 1 | s 0 | s 1 |
 *
 *     q, 4 bits  4 vectors of 64 bytes a block. Vector j, lane i, byte c
 *                (at 64 j + 4 i + c) holds w[i][4j+c] in its low nibble and
 *                w[i][16+4j+c] in its high one
 *     q, 8 bits  8 vectors a block: vector j, lane i, byte c = w[i][4j+c] + 128
 *     h, 1 bit   the fifth bits, one vector a block: bit j of lane i, byte c
 *                belongs to low-nibble vector j, bit 4+j to high-nibble vector j
 *     h, 2 bits  two vectors a block, for low and high nibbles: bits 2j, 2j+1
 *                belong to vector j
 *     s          one value a lane: f16 scales, then f16 minima, or the small
 *                integers of the K-quants
 *     header     of K-quants only, 64 bytes before every 4 groups (256 k):
 *                f16 d[16], f16 dmin[16]
 *
 * Four bytes of a lane are four consecutive k, because the byte dot products
 * of all instruction sets (maddubs, dpbusd) sum such fours. Vectors are 64
 * bytes: one register of AVX-512, two of AVX2. All parts are multiples of 64
 * bytes, except pairs of 32 that together are one.
 *
 *     form   bytes of a group  s, per block and lane  centre  comes from
 *     Q4_0   576               f16 scale                 8    Q4_0
 *     Q4_1   640               f16 scale, f16 min        0    Q4_1
 *     Q5_0   704               f16 scale                16    Q5_0
 *     Q5_1   768               f16 scale, f16 min        0    Q5_1
 *     Q8_0   1088              f16 scale               128    Q8_0 IQ4_NL IQ4_XS* Q2_K*
 *     Q4_K   576 + header      u8 scale, u8 min          0    Q4_K
 *     Q5_K   704 + header      u8 scale, u8 min          0    Q5_K
 *     Q6_K   832 + header      i8 scale of each 16 k    32    Q6_K Q3_K
 *     floats [k][16]                                          F32 F16 BF16
 *
 * A weight is scale * (code - centre) + min. Nothing is lost, except in the
 * two types with a star. IQ4_XS has scales of 16 significant bits, which Q8_0
 * rounds to the 11 of a half: a relative error of 2^-11 where the format's
 * own is a few percent. Q2_K has two steps and two offsets in 32 values, and
 * is quantised anew to 8 bits: an error of half a 127th of the largest value.
 *
 * K is padded to 64 with blocks of scale zero, rows to 16 with rows of zeros,
 * so that kernels know no edges inside a panel.
 * ======================================================================== */

typedef enum dendp_form {
    DENDP_FORM_Q4_0,
    DENDP_FORM_Q4_1,
    DENDP_FORM_Q5_0,
    DENDP_FORM_Q5_1,
    DENDP_FORM_Q8_0,
    DENDP_FORM_Q4_K,
    DENDP_FORM_Q5_K,
    DENDP_FORM_Q6_K,
    DENDP_N_QUANT_FORMS,
    DENDP_FORM_F32 = DENDP_N_QUANT_FORMS,
    DENDP_FORM_F16,
    DENDP_FORM_BF16,
    DENDP_N_FORMS
} dendp_form;

#define DENDP_LANES 16 /* rows of a panel */

/* What a group is made of. Bytes are per block of 32 k and 16 lanes. */
typedef struct dendp_form_layout {
    uint32_t q_bytes, h_bytes, s_bytes;
    uint32_t header_bytes; /* before every 4 groups */
    int32_t centre;
} dendp_form_layout;

static const dendp_form_layout dendp_form_layouts[DENDP_N_QUANT_FORMS] = {
    {256, 0, 32, 0, 8},    /* Q4_0 */
    {256, 0, 64, 0, 0},    /* Q4_1 */
    {256, 64, 32, 0, 16},  /* Q5_0 */
    {256, 64, 64, 0, 0},   /* Q5_1 */
    {512, 0, 32, 0, 128},  /* Q8_0 */
    {256, 0, 32, 64, 0},   /* Q4_K */
    {256, 64, 32, 64, 0},  /* Q5_K */
    {256, 128, 32, 64, 32} /* Q6_K */
};

/* A weight matrix [n_rows][k] as panels. */
typedef struct dendp_panels {
    dendp_form form;
    const dendp_type *type; /* that the file stores */
    uint32_t n_rows, k;
    uint32_t n_panels; /* ceil(n_rows / 16) */
    uint32_t n_blocks; /* blocks of 32 k, padded to an even number; 0 for floats */
    uint64_t panel_bytes;
    uint64_t file_row_bytes;   /* of one row in the file */
    const unsigned char *data; /* [n_panels][panel_bytes], set by whoever holds the memory */
    const unsigned char *rows; /* or, instead of it, the file's rows: [n_rows][file_row_bytes], unaligned */
} dendp_panels;

/* The form that holds a type of the file; false for types that no form holds. */
static bool dendp_form_of(uint32_t type_id, dendp_form *form) {
    switch (type_id) {
    case DENDP_TYPE_F32:
        *form = DENDP_FORM_F32;
        return true;
    case DENDP_TYPE_F16:
        *form = DENDP_FORM_F16;
        return true;
    case DENDP_TYPE_BF16:
        *form = DENDP_FORM_BF16;
        return true;
    case DENDP_TYPE_Q4_0:
        *form = DENDP_FORM_Q4_0;
        return true;
    case DENDP_TYPE_Q4_1:
        *form = DENDP_FORM_Q4_1;
        return true;
    case DENDP_TYPE_Q5_0:
        *form = DENDP_FORM_Q5_0;
        return true;
    case DENDP_TYPE_Q5_1:
        *form = DENDP_FORM_Q5_1;
        return true;
    case DENDP_TYPE_Q8_0:
    case DENDP_TYPE_IQ4_NL:
    case DENDP_TYPE_IQ4_XS:
    case DENDP_TYPE_Q2_K:
        *form = DENDP_FORM_Q8_0;
        return true;
    case DENDP_TYPE_Q4_K:
        *form = DENDP_FORM_Q4_K;
        return true;
    case DENDP_TYPE_Q5_K:
        *form = DENDP_FORM_Q5_K;
        return true;
    case DENDP_TYPE_Q6_K:
    case DENDP_TYPE_Q3_K:
        *form = DENDP_FORM_Q6_K;
        return true;
    default:
        return false;
    }
}

/* Bytes of a weight in a float form. */
static uint32_t dendp_float_bytes(dendp_form form) {
    return form == DENDP_FORM_F32 ? 4u : 2u;
}

/* Bytes of a panel before block `block` of 32 k begins its group, header skipped. */
static size_t dendp_group_offset(const dendp_form_layout *l, uint32_t group) {
    size_t group_bytes = 2 * (size_t)(l->q_bytes + l->h_bytes + l->s_bytes);
    return group * group_bytes + (size_t)(l->header_bytes ? group / 4 + 1 : 0) * l->header_bytes;
}

/* Fills in *p, all but data and rows, for a matrix [n_rows][k] of a file's type, and
 * the bytes that its panels take.  UNSUPPORTED: no form holds the type.
 * ARGUMENT: no rows, no columns, columns that are no whole blocks, or more
 * bytes than this system can address. */
static dend_status dendp_panels_plan(dendp_panels *p, uint32_t type_id, uint32_t n_rows, uint32_t k,
                                     uint64_t *bytes) {
    const dendp_type *type = dendp_type_find(type_id);
    dendp_form form;
    uint64_t panel_bytes, total;
    memset(p, 0, sizeof *p);
    if (!type || !dendp_form_of(type_id, &form)) {
        return DEND_ERR_UNSUPPORTED;
    }
    if (n_rows == 0 || k == 0 || k > 0x7fffffffu || k % type->block_elems != 0) {
        return DEND_ERR_ARGUMENT;
    }
    p->form = form;
    p->type = type;
    p->n_rows = n_rows;
    p->k = k;
    p->n_panels = dendp_div_up(n_rows, DENDP_LANES);
    p->file_row_bytes = (uint64_t)(k / type->block_elems) * type->block_bytes;
    if (form < DENDP_N_QUANT_FORMS) {
        /* K-quants have whole super-blocks, so their last group completes four. */
        p->n_blocks = 2 * dendp_div_up(k, 64);
        panel_bytes = dendp_group_offset(&dendp_form_layouts[form], p->n_blocks / 2);
        panel_bytes -= dendp_form_layouts[form].header_bytes; /* that of the group behind the last */
    } else {
        panel_bytes = ((uint64_t)k * DENDP_LANES * dendp_float_bytes(form) + 63) & ~(uint64_t)63;
    }
    if (!dendp_mul(panel_bytes, p->n_panels, &total) || total > SIZE_MAX / 2) {
        return DEND_ERR_ARGUMENT;
    }
    p->panel_bytes = panel_bytes;
    *bytes = total;
    return DEND_OK;
}

/* -- from the file's blocks to codes ---------------------------------------- */

/* For functions that are to be compiled anew for each type: dendp_pack_blocks. */
#if defined(__GNUC__)
#define DENDP_INLINE static inline __attribute__((always_inline))
#else
#define DENDP_INLINE static
#endif

/* 32 weights of one row between file and panel. `s` are the bytes of the
 * form's s part: 2 of an f16 scale and 2 of an f16 min, or two of integers. */
typedef struct dendp_codes {
    unsigned char code[32];
    unsigned char s[4];
    unsigned char header[4]; /* d, dmin of K-quants */
} dendp_codes;

static void dendp_store16(unsigned char *p, uint16_t v) {
    p[0] = (unsigned char)v;
    p[1] = (unsigned char)(v >> 8);
}

/* The least half >= f, for 0 <= f; at most 65504, the largest finite one. */
static uint16_t dendp_f16_above(float f) {
    uint16_t h = dendp_f32_to_f16(f);
    if (h < 0x7c00u && dendp_f16_to_f32(h) < f) {
        h++;
    }
    return h > 0x7bffu ? (uint16_t)0x7bffu : h;
}

/* The half nearest f, saturated at the largest finite ones. */
static uint16_t dendp_f16_saturated(float f) {
    uint16_t h = dendp_f32_to_f16(f);
    return (h & 0x7fffu) == 0x7c00u && dendp_finite(f) ? (uint16_t)(h - 1u) : h;
}

/* Eight bytes at a time: each shifted right, and what the mask leaves of it.
 * What a shift brings over from the neighbour byte the mask takes away again,
 * so the order of bytes in a word does not matter. */
#define DENDP_EACH_BYTE(b) ((b)*0x0101010101010101u)
DENDP_INLINE uint64_t dendp_take8(const unsigned char *p, uint32_t shift, unsigned char mask) {
    uint64_t word;
    memcpy(&word, p, 8);
    return word >> shift & DENDP_EACH_BYTE((uint64_t)mask);
}

/* Nibbles of a block of 32: qs [16] -> code [32]. */
DENDP_INLINE void dendp_take_nibbles(const unsigned char *qs, unsigned char *code) {
    int j;
    for (j = 0; j < 16; j += 8) {
        uint64_t low = dendp_take8(qs + j, 0, 15), high = dendp_take8(qs + j, 4, 15);
        memcpy(code + j, &low, 8);
        memcpy(code + 16 + j, &high, 8);
    }
}

/* Fifth bits: bit i of qh joins code i. The product puts bit i < 7 of a byte to
 * 8 i: copies of it stand at i + 7 j, none in the place of another. */
DENDP_INLINE void dendp_take_fifth(uint32_t qh, unsigned char *code) {
    int j;
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    for (j = 0; j < 32; j += 8) {
        uint64_t byte = qh >> j & 255u, word;
        uint64_t bits = ((byte & 127u) * 0x02040810204081u & DENDP_EACH_BYTE((uint64_t)1)) | byte >> 7 << 56;
        memcpy(&word, code + j, 8);
        word |= bits << 4;
        memcpy(code + j, &word, 8);
    }
#else
    for (j = 0; j < 32; j++) {
        code[j] = (unsigned char)(code[j] | (qh >> j & 1u) << 4);
    }
#endif
}

/* Q2_K, 32 values v quantised anew: s = the half not below max |v| / 127, so
 * that no code passes 127 and |error| <= s / 2 (and the rounding of q + 128.5,
 * 2^-17 s). Values beyond what a half can scale (s > 65504) saturate; a NaN
 * becomes 0. */
static void dendp_take_requantised(const float *v, dendp_codes *out) {
    float most = 0, s;
    int j;
    for (j = 0; j < 32; j++) {
        float a = dendp_bits_f32(dendp_f32_bits(v[j]) & 0x7fffffffu);
        most = dendp_finite(v[j]) && a > most ? a : most;
    }
    dendp_store16(out->s, dendp_f16_above(most / 127.0f));
    s = dendp_f16_to_f32(dendp_load16(out->s));
    for (j = 0; j < 32; j++) {
        float q = dendp_finite(v[j]) && s > 0 ? v[j] / s : 0.0f;
        q = q > 127.0f ? 127.0f : q < -127.0f ? -127.0f : q;
        out->code[j] = (unsigned char)(int32_t)(q + 128.5f);
    }
}

/* Block t of 32 k of a row in the file -> codes and scales of its form. */
DENDP_INLINE void dendp_take_block(uint32_t type_id, const unsigned char *row, uint32_t t, dendp_codes *out) {
    const unsigned char *p;
    float v[32];
    uint64_t word;
    uint32_t j, u = t % 8;
    int scale, least;
    memset(out->s, 0, sizeof out->s);
    memset(out->header, 0, sizeof out->header);
    switch (type_id) {
    case DENDP_TYPE_Q4_0:
        p = row + (size_t)t * 18;
        memcpy(out->s, p, 2);
        dendp_take_nibbles(p + 2, out->code);
        return;
    case DENDP_TYPE_Q4_1:
        p = row + (size_t)t * 20;
        memcpy(out->s, p, 4);
        dendp_take_nibbles(p + 4, out->code);
        return;
    case DENDP_TYPE_Q5_0:
        p = row + (size_t)t * 22;
        memcpy(out->s, p, 2);
        dendp_take_nibbles(p + 6, out->code);
        dendp_take_fifth(dendp_load32(p + 2), out->code);
        return;
    case DENDP_TYPE_Q5_1:
        p = row + (size_t)t * 24;
        memcpy(out->s, p, 4);
        dendp_take_nibbles(p + 8, out->code);
        dendp_take_fifth(dendp_load32(p + 4), out->code);
        return;
    case DENDP_TYPE_Q8_0:
        p = row + (size_t)t * 34;
        memcpy(out->s, p, 2);
        for (j = 0; j < 32; j += 8) { /* two's complement to excess 128 */
            word = dendp_take8(p + 2 + j, 0, 255) ^ DENDP_EACH_BYTE((uint64_t)128);
            memcpy(out->code + j, &word, 8);
        }
        return;
    case DENDP_TYPE_IQ4_NL:
        p = row + (size_t)t * 18;
        memcpy(out->s, p, 2);
        dendp_take_nibbles(p + 2, out->code);
        for (j = 0; j < 32; j++) {
            out->code[j] = (unsigned char)(128 + dendp_iq4_levels[out->code[j]]);
        }
        return;
    case DENDP_TYPE_IQ4_XS:
        p = row + (size_t)(t / 8) * 136;
        scale = (p[4 + u / 2] >> (u % 2 * 4) & 15) | (dendp_load16(p + 2) >> (u * 2) & 3) << 4;
        dendp_store16(out->s, dendp_f16_saturated(dendp_load_f16(p) * (float)(scale - 32)));
        dendp_take_nibbles(p + 8 + u * 16, out->code);
        for (j = 0; j < 32; j++) {
            out->code[j] = (unsigned char)(128 + dendp_iq4_levels[out->code[j]]);
        }
        return;
    case DENDP_TYPE_Q2_K:
        p = row + (size_t)(t / 8) * 84;
        for (j = 0; j < 32; j++) {
            uint32_t s = p[u * 2 + j / 16], q = p[16 + u / 4 * 32 + j] >> (u % 4 * 2) & 3u;
            v[j] = dendp_load_f16(p + 80) * (float)(s & 15u) * (float)q -
                   dendp_load_f16(p + 82) * (float)(s >> 4);
        }
        dendp_take_requantised(v, out);
        return;
    case DENDP_TYPE_Q4_K:
        p = row + (size_t)(t / 8) * 144;
        memcpy(out->header, p, 4);
        dendp_k4_scale(p + 4, (int)u, &scale, &least);
        out->s[0] = (unsigned char)scale;
        out->s[1] = (unsigned char)least;
        for (j = 0; j < 32; j += 8) {
            word = dendp_take8(p + 16 + u / 2 * 32 + j, u % 2 * 4, 15);
            memcpy(out->code + j, &word, 8);
        }
        return;
    case DENDP_TYPE_Q5_K:
        p = row + (size_t)(t / 8) * 176;
        memcpy(out->header, p, 4);
        dendp_k4_scale(p + 4, (int)u, &scale, &least);
        out->s[0] = (unsigned char)scale;
        out->s[1] = (unsigned char)least;
        for (j = 0; j < 32; j += 8) {
            word = dendp_take8(p + 48 + u / 2 * 32 + j, u % 2 * 4, 15);
            word |= dendp_take8(p + 16 + j, u, 1) << 4;
            memcpy(out->code + j, &word, 8);
        }
        return;
    case DENDP_TYPE_Q6_K:
        p = row + (size_t)(t / 8) * 210;
        memcpy(out->header, p + 208, 2);
        memcpy(out->s, p + 192 + u * 2, 2);
        for (j = 0; j < 32; j += 8) {
            word = dendp_take8(p + u / 4 * 64 + u % 2 * 32 + j, u % 4 / 2 * 4, 15);
            word |= dendp_take8(p + 128 + u / 4 * 32 + j, u % 4 * 2, 3) << 4;
            memcpy(out->code + j, &word, 8);
        }
        return;
    case DENDP_TYPE_Q3_K:
        /* x = d * (six bits - 32) * (code - 4): as Q6_K with code + 28 */
        p = row + (size_t)(t / 8) * 110;
        memcpy(out->header, p + 108, 2);
        for (j = 0; j < 2; j++) {
            uint32_t s = u * 2 + j;
            uint32_t low = s < 8 ? p[96 + s] & 15u : (uint32_t)p[96 + s - 8] >> 4;
            uint32_t six = low | (p[104 + s % 4] >> (s / 4 * 2) & 3u) << 4;
            out->s[j] = (unsigned char)(six - 32u); /* modulo 256: two's complement */
        }
        for (j = 0; j < 32; j += 8) {
            word = dendp_take8(p + 32 + u / 4 * 32 + j, u % 4 * 2, 3) | dendp_take8(p + j, u, 1) << 2;
            word += DENDP_EACH_BYTE((uint64_t)28); /* 35 at most: no carry */
            memcpy(out->code + j, &word, 8);
        }
        return;
    default: /* no other type has a quantised form */
        memset(out->code, 0, sizeof out->code);
        return;
    }
}

/* -- packing ------------------------------------------------------------------ */

/* Codes and scales -> lane i of block t of a panel. Each byte is written once. */
DENDP_INLINE void dendp_put_block(dendp_form form, unsigned char *panel, uint32_t t, uint32_t lane,
                                  const dendp_codes *in) {
    const dendp_form_layout *l = &dendp_form_layouts[form];
    unsigned char *group = panel + dendp_group_offset(l, t / 2);
    unsigned char *q = group + t % 2 * l->q_bytes + lane * 4;
    unsigned char *h = group + 2 * l->q_bytes + t % 2 * l->h_bytes + lane * 4;
    unsigned char *s = group + 2 * (l->q_bytes + l->h_bytes) + t % 2 * l->s_bytes;
    const unsigned char *code = in->code;
    uint32_t j, h_low = 0, h_high = 0, low, high;
    if (l->q_bytes == 512) {
        for (j = 0; j < 8; j++) {
            memcpy(q + j * 64, code + j * 4, 4);
        }
    } else {
        /* Four codes at a time. No shift carries a bit into the neighbour
         * byte, so the order of bytes in a word does not matter. */
        const uint32_t high_bits = l->h_bytes == 64 ? 0x01010101u : 0x03030303u;
        for (j = 0; j < 4; j++) {
            uint32_t step = l->h_bytes == 64 ? j : 2 * j, word;
            memcpy(&low, code + 4 * j, 4);
            memcpy(&high, code + 16 + 4 * j, 4);
            word = (low & 0x0f0f0f0fu) | (high & 0x0f0f0f0fu) << 4;
            memcpy(q + j * 64, &word, 4);
            h_low |= (low >> 4 & high_bits) << step;
            h_high |= (high >> 4 & high_bits) << step;
        }
        if (l->h_bytes == 64) {
            h_low |= h_high << 4;
            memcpy(h, &h_low, 4);
        } else if (l->h_bytes == 128) {
            memcpy(h, &h_low, 4);
            memcpy(h + 64, &h_high, 4);
        }
    }
    if (l->header_bytes) {
        s[lane] = in->s[0];
        s[16 + lane] = in->s[1];
        if (t % 8 == 0) {
            memcpy(group - 64 + lane * 2, in->header, 2);
            memcpy(group - 32 + lane * 2, in->header + 2, 2);
        }
    } else {
        memcpy(s + lane * 2, in->s, 2);
        if (l->s_bytes == 64) {
            memcpy(s + 32 + lane * 2, in->s + 2, 2);
        }
    }
}

/* One panel of a float form; real: how many of its rows exist. */
static void dendp_pack_floats(const dendp_panels *p, unsigned char *panel, const unsigned char *rows,
                              uint32_t real) {
    size_t bytes = dendp_float_bytes(p->form), k = p->k, first, i, n;
    uint32_t lane;
    if (real < DENDP_LANES || p->panel_bytes != k * DENDP_LANES * bytes) {
        memset(panel, 0, (size_t)p->panel_bytes);
    }
    for (first = 0; first < k;
         first += 16) { /* a cache line of each row, since rows may all fall into one cache set */
        n = k - first < 16 ? k - first : 16;
        for (lane = 0; lane < real; lane++) {
            const unsigned char *from = rows + lane * p->file_row_bytes + first * bytes;
            unsigned char *to = panel + (first * DENDP_LANES + lane) * bytes;
            if (bytes == 4) {
                for (i = 0; i < n; i++) {
                    memcpy(to + i * DENDP_LANES * 4, from + i * 4, 4);
                }
            } else {
                for (i = 0; i < n; i++) {
                    memcpy(to + i * DENDP_LANES * 2, from + i * 2, 2);
                }
            }
        }
    }
}

DENDP_INLINE void dendp_pack_type(const dendp_panels *p, uint32_t type_id, dendp_form form,
                                  unsigned char *panel, const unsigned char *rows, uint32_t real) {
    uint32_t t, lane;
    for (lane = 0; lane < DENDP_LANES; lane++) {
        for (t = 0; t < p->n_blocks; t++) {
            dendp_codes codes;
            if (lane < real && t < p->k / 32) {
                dendp_take_block(type_id, rows + lane * p->file_row_bytes, t, &codes);
            } else {
                memset(&codes, 0, sizeof codes);
            }
            dendp_put_block(form, panel, t, lane, &codes);
        }
    }
}

/* One panel of a quantised form. Each type has a copy of the loop of its own,
 * in which the decisions about types and forms are gone: four times as fast. */
static void dendp_pack_blocks(const dendp_panels *p, unsigned char *panel, const unsigned char *rows,
                              uint32_t real) {
    switch (p->type->id) {
#define DENDP_PACK_CASE(type, form)                                                                          \
    case DENDP_TYPE_##type:                                                                                  \
        dendp_pack_type(p, DENDP_TYPE_##type, DENDP_FORM_##form, panel, rows, real);                         \
        break;
        DENDP_PACK_CASE(Q4_0, Q4_0)
        DENDP_PACK_CASE(Q4_1, Q4_1)
        DENDP_PACK_CASE(Q5_0, Q5_0)
        DENDP_PACK_CASE(Q5_1, Q5_1)
        DENDP_PACK_CASE(Q8_0, Q8_0)
        DENDP_PACK_CASE(IQ4_NL, Q8_0)
        DENDP_PACK_CASE(IQ4_XS, Q8_0)
        DENDP_PACK_CASE(Q2_K, Q8_0)
        DENDP_PACK_CASE(Q4_K, Q4_K)
        DENDP_PACK_CASE(Q5_K, Q5_K)
        DENDP_PACK_CASE(Q6_K, Q6_K)
        DENDP_PACK_CASE(Q3_K, Q6_K)
#undef DENDP_PACK_CASE
    default: /* dendp_form_of knows no other */
        break;
    }
}

/* Repacks panels [first_panel, first_panel + n_panels).  dst: the panels of
 * the whole matrix (so that ranges can be packed side by side).  file_rows:
 * the rows of this range alone, from row 16 * first_panel on, as the file has
 * them (so that a matrix can be read piece by piece).  Every byte of the
 * range is written.
 * Cost: 0.15 to 1 ns a weight, Q2_K 4.  Threads: any, on different ranges. */
static void dendp_panels_pack(const dendp_panels *p, void *dst, const void *file_rows, uint32_t first_panel,
                              uint32_t n_panels) {
    const unsigned char *rows = (const unsigned char *)file_rows;
    uint32_t i;
    for (i = 0; i < n_panels; i++) {
        const unsigned char *from = rows + (uint64_t)i * DENDP_LANES * p->file_row_bytes;
        unsigned char *panel = (unsigned char *)dst + (uint64_t)(first_panel + i) * p->panel_bytes;
        uint32_t real = dendp_min_u32(DENDP_LANES, p->n_rows - (first_panel + i) * DENDP_LANES);
        if (p->form < DENDP_N_QUANT_FORMS) {
            dendp_pack_blocks(p, panel, from, real);
        } else {
            dendp_pack_floats(p, panel, from, real);
        }
    }
}

/* Panel `panel` of a matrix as one of its own: where it lies, or, of a matrix
 * that keeps the file's rows, packed into `buffer` (panel_bytes, 64-aligned). */
static dendp_panels dendp_panels_one(const dendp_panels *p, uint32_t panel, void *buffer) {
    dendp_panels one = *p;
    one.n_rows = dendp_min_u32(DENDP_LANES, p->n_rows - panel * DENDP_LANES);
    one.n_panels = 1;
    if (p->rows) {
        one.rows = NULL;
        one.data = (const unsigned char *)buffer;
        dendp_panels_pack(&one, buffer, p->rows + (uint64_t)panel * DENDP_LANES * p->file_row_bytes, 0, 1);
    } else {
        one.data += (uint64_t)panel * p->panel_bytes;
    }
    return one;
}

/* -- reading back --------------------------------------------------------------- */

/* 32 weights of one lane as kernels see them: x = scale * (code - centre) + min.
 * scale[0] belongs to codes 0..15 and scale[1] to 16..31; they differ in Q6_K only. */
typedef struct dendp_lane_block {
    unsigned char code[32];
    float scale[2];
    float min;
} dendp_lane_block;

static void dendp_lane_load(dendp_form form, const unsigned char *panel, uint32_t t, uint32_t lane,
                            dendp_lane_block *out) {
    const dendp_form_layout *l = &dendp_form_layouts[form];
    const unsigned char *group = panel + dendp_group_offset(l, t / 2);
    const unsigned char *q = group + t % 2 * l->q_bytes + lane * 4;
    const unsigned char *h = group + 2 * l->q_bytes + t % 2 * l->h_bytes + lane * 4;
    const unsigned char *s = group + 2 * (l->q_bytes + l->h_bytes) + t % 2 * l->s_bytes;
    uint32_t j, c;
    for (j = 0; j < 4; j++) {
        for (c = 0; c < 4; c++) {
            uint32_t low = q[j * 64 + c] & 15u, high = (uint32_t)q[j * 64 + c] >> 4;
            if (l->q_bytes == 512) {
                low = q[j * 64 + c];
                high = q[(j + 4) * 64 + c];
            } else if (l->h_bytes == 64) {
                low |= (h[c] >> j & 1u) << 4;
                high |= (h[c] >> (4 + j) & 1u) << 4;
            } else if (l->h_bytes == 128) {
                low |= (h[c] >> (2 * j) & 3u) << 4;
                high |= (h[64 + c] >> (2 * j) & 3u) << 4;
            }
            out->code[4 * j + c] = (unsigned char)low;
            out->code[16 + 4 * j + c] = (unsigned char)high;
        }
    }
    out->min = 0;
    if (form == DENDP_FORM_Q6_K) {
        float d = dendp_load_f16(panel + dendp_group_offset(l, t / 8 * 4) - 64 + lane * 2);
        out->scale[0] = d * (float)dendp_signed8(s[lane]); /* 11 + 7 bits: exact */
        out->scale[1] = d * (float)dendp_signed8(s[16 + lane]);
        return;
    }
    if (l->header_bytes) {
        const unsigned char *header = panel + dendp_group_offset(l, t / 8 * 4) - 64;
        out->scale[0] = dendp_load_f16(header + lane * 2) * (float)s[lane]; /* 11 + 6 bits: exact */
        out->min = -dendp_load_f16(header + 32 + lane * 2) * (float)s[16 + lane];
    } else {
        out->scale[0] = dendp_load_f16(s + lane * 2);
        if (l->s_bytes == 64) {
            out->min = dendp_load_f16(s + 32 + lane * 2);
        }
    }
    out->scale[1] = out->scale[0];
}

/* Whether a form's weights have a minimum. */
static bool dendp_form_has_min(dendp_form form) {
    return form < DENDP_N_QUANT_FORMS && dendp_form_layouts[form].centre == 0;
}

/* Weight `index` of a float form's panel: [k][16] flattened. */
static float dendp_float_weight(dendp_form form, const unsigned char *panel, size_t index) {
    switch ((int)form) {
    case DENDP_FORM_F16:
        return dendp_load_f16(panel + index * 2);
    case DENDP_FORM_BF16:
        return dendp_bf16_to_f32(dendp_load16(panel + index * 2));
    default:
        return dendp_load_f32(panel + index * 4);
    }
}

/* One row as floats.  out [k].  Equal to the file's decoder bit for bit for
 * all types without a star above: products are exact, and the sum with a
 * minimum rounds once, here as there. A row of the file goes through the
 * panel's form all the same, block by block. */
static void dendp_panels_get_row(const dendp_panels *p, uint32_t row, float *out) {
    unsigned char few[8 * 544 + 64]; /* 8 blocks of 32 k of the largest form, with their header */
    const unsigned char *file = p->rows ? p->rows + row * p->file_row_bytes : NULL;
    const unsigned char *panel = file ? few : p->data + (uint64_t)(row / DENDP_LANES) * p->panel_bytes;
    uint32_t lane = file ? 0 : row % DENDP_LANES, t, j;
    if (p->form >= DENDP_N_QUANT_FORMS) {
        for (t = 0; t < p->k; t++) {
            out[t] = file ? dendp_float_weight(p->form, file, t)
                          : dendp_float_weight(p->form, panel, (size_t)t * DENDP_LANES + lane);
        }
        return;
    }
    if (file) {
        memset(few, 0, sizeof few);
    }
    for (t = 0; t < p->k / 32; t++) {
        dendp_lane_block w;
        if (file) {
            dendp_codes codes;
            dendp_take_block(p->type->id, file, t, &codes);
            dendp_put_block(p->form, few, t % 8, 0, &codes);
        }
        dendp_lane_load(p->form, panel, file ? t % 8 : t, lane, &w);
        for (j = 0; j < 32; j++) {
            float product =
                w.scale[j / 16] * (float)((int32_t)w.code[j] - dendp_form_layouts[p->form].centre);
            out[t * 32 + j] = dendp_form_has_min(p->form) ? product + w.min : product;
        }
    }
}
