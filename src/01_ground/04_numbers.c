/* ==========================================================================
 * >>01.04 NUMBERS: half floats, little-endian loads, hashes, randomness
 * ==========================================================================
 * Conversions are exact bit manipulations with round-to-nearest-even, so that
 * every platform gives the same bits. Randomness is a function, not a state:
 * a 64-bit mix of (stream, position, token), so any draw can be repeated, in
 * any order, on any thread (Salmon et al., "Parallel random numbers: as easy
 * as 1, 2, 3", SC 2011, for the idea; the mixer is our own choice of the
 * splitmix64 finaliser of Steele et al., OOPSLA 2014).
 * ======================================================================== */

/* -- little-endian loads from any address ---------------------------------- */

static uint16_t dendp_load16(const void *p) {
    const unsigned char *b = (const unsigned char *)p;
    return (uint16_t)(b[0] | (uint32_t)b[1] << 8);
}

static uint32_t dendp_load32(const void *p) {
    const unsigned char *b = (const unsigned char *)p;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static uint64_t dendp_load64(const void *p) {
    const unsigned char *b = (const unsigned char *)p;
    return (uint64_t)dendp_load32(b) | (uint64_t)dendp_load32(b + 4) << 32;
}

/* -- bits of a float ------------------------------------------------------- */

static float dendp_bits_f32(uint32_t bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static uint32_t dendp_f32_bits(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

static float dendp_load_f32(const void *p) {
    return dendp_bits_f32(dendp_load32(p));
}

/* IEEE half to single: exact. */
static float dendp_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 31u;
    uint32_t mantissa = h & 0x3ffu;
    if (exponent == 0) {
        /* zero or subnormal: mantissa * 2^-24 is exact in single precision */
        float magnitude = (float)mantissa * 5.9604644775390625e-8f;
        return dendp_bits_f32(dendp_f32_bits(magnitude) | sign);
    }
    if (exponent == 31) {
        return dendp_bits_f32(sign | 0x7f800000u | mantissa << 13);
    }
    return dendp_bits_f32(sign | (exponent + 112) << 23 | mantissa << 13);
}

/* Single to IEEE half, round to nearest even; overflow gives infinity. */
static uint16_t dendp_f32_to_f16(float f) {
    uint32_t bits = dendp_f32_bits(f);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t a = bits & 0x7fffffffu;
    uint32_t r;
    if (a >= 0x7f800000u) { /* infinity, or NaN kept quiet */
        return (uint16_t)(sign | 0x7c00u | (a > 0x7f800000u ? 0x200u : 0u));
    }
    if (a >= 0x477ff000u) { /* rounds to 2^16 or more */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (a < 0x38800000u) { /* below 2^-14: subnormal half, unit 2^-24 */
        uint32_t shift, m;
        if (a < 0x33000000u) {
            return (uint16_t)sign;
        }
        shift = 126u - (a >> 23);
        m = (a & 0x7fffffu) | 0x800000u;
        r = m >> shift;
        if ((m & ((1u << shift) - 1u)) > (1u << (shift - 1)) ||
            ((m & ((1u << shift) - 1u)) == (1u << (shift - 1)) && (r & 1u))) {
            r++;
        }
        return (uint16_t)(sign | r);
    }
    r = a - 0x38000000u;
    r += 0xfffu + ((r >> 13) & 1u);
    return (uint16_t)(sign | r >> 13);
}

static float dendp_bf16_to_f32(uint16_t b) {
    return dendp_bits_f32((uint32_t)b << 16);
}

/* Single to bfloat16, round to nearest even; NaN stays NaN. */
static DENDP_UNUSED uint16_t dendp_f32_to_bf16(float f) {
    uint32_t bits = dendp_f32_bits(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)(bits >> 16 | 64u);
    }
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* True unless NaN or infinite; reads bits, so that -ffast-math cannot fold it. */
static bool dendp_finite(float f) {
    return (dendp_f32_bits(f) & 0x7f800000u) != 0x7f800000u;
}

/* -- hashing and keyed randomness ------------------------------------------ */

static uint64_t dendp_mix64(uint64_t x) {
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    x ^= x >> 31;
    return x;
}

#define DENDP_HASH_STEP 0xd6e8feb86659fd93u
#define DENDP_HASH_START 0x2545f4914f6cdd1du

/* The first half of dendp_hash2: what depends on a alone. */
static uint64_t dendp_hash_key(uint64_t a) {
    return dendp_mix64(a + 0x9e3779b97f4a7c15u);
}

/* An order-sensitive hash of two words. */
static uint64_t dendp_hash2(uint64_t a, uint64_t b) {
    return dendp_mix64(dendp_hash_key(a) ^ (b * DENDP_HASH_STEP + DENDP_HASH_START));
}

/* Uniform in the open interval (0, 1), 53 bits, for the key (stream, position, id).
 * The largest of them would be rounded to 1. */
static double dendp_uniform(uint64_t stream, uint64_t position, uint64_t id) {
    uint64_t x = dendp_hash2(dendp_hash2(stream, position), id);
    double u = ((double)(x >> 11) + 0.5) * (1.0 / 9007199254740992.0);
    return u < 1.0 ? u : 1.0 - 1.0 / 9007199254740992.0;
}

/* Standard Gumbel noise for the key: at most 36.8, since u <= 1 - 2^-53. */
static double dendp_gumbel(uint64_t stream, uint64_t position, uint64_t id) {
    return -log(-log(dendp_uniform(stream, position, id)));
}
