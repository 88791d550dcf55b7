/* Room 02.01: every block format against values that the gguf package computed. */

/* tests/golden/quant_blocks.bin (tools/goldens/quant_blocks.py): "DQG1", u32 n_types, then for each type
 * u32 id, n_blocks, block_bytes, block_elems; the blocks; the values as f32. */
static void quant_goldens_bit_exact(void **state) {
    static const uint32_t expected[] = {1, 30, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 23};
    size_t size, at = 8;
    uint32_t n_types, i, k;
    unsigned char *file = test_read_file("tests/golden/quant_blocks.bin", &size);
    (void)state;
    assert_non_null(file);
    assert_true(size > 8 && memcmp(file, "DQG1", 4) == 0);
    n_types = dendp_load32(file + 4);
    assert_int_equal(n_types, sizeof expected / sizeof expected[0]);
    for (i = 0; i < n_types; i++) {
        uint32_t id = dendp_load32(file + at), n_blocks = dendp_load32(file + at + 4);
        const dendp_type *type = dendp_type_find(id);
        const unsigned char *blocks = file + at + 16;
        size_t n_values, n_bytes, first;
        unsigned char *shifted;
        float *out;
        assert_int_equal(id, expected[i]);
        assert_non_null(type);
        assert_int_equal(type->block_bytes, dendp_load32(file + at + 8));
        assert_int_equal(type->block_elems, dendp_load32(file + at + 12));
        n_values = (size_t)n_blocks * type->block_elems;
        n_bytes = (size_t)n_blocks * type->block_bytes;
        assert_true(at + 16 + n_bytes + 4 * n_values <= size);
        out = (float *)malloc((n_values + 1) * sizeof *out);
        shifted = (unsigned char *)malloc(n_bytes + 1);
        assert_non_null(out);
        assert_non_null(shifted);
        /* From an odd address, and not a value more than asked for. */
        memcpy(shifted + 1, blocks, n_bytes);
        for (k = 0; k < 2; k++) {
            out[n_values] = 123.0f;
            type->decode(k ? shifted + 1 : blocks, n_blocks, out);
            assert_true(out[n_values] == 123.0f);
            for (first = 0; first < n_values; first++) {
                uint32_t want = dendp_load32(blocks + n_bytes + 4 * first), got = dendp_f32_bits(out[first]);
                if (want != got) {
                    fail_msg("%s: value %u is %08x, not %08x", type->name, (unsigned)first, (unsigned)got,
                             (unsigned)want);
                }
            }
        }
        free(out);
        free(shifted);
        at += 16 + n_bytes + 4 * n_values;
    }
    assert_int_equal(at, size);
    free(file);
}

/* F32 and BF16 are copies of bits: signs of zero, subnormals and NaN payloads included. */
static void quant_bits_are_kept(void **state) {
    static const uint32_t bits[] = {0,           0x80000000u, 1,           0x007fffffu, 0x3f800000u,
                                    0x7f7fffffu, 0x7f800000u, 0xff800000u, 0x7fa12345u, 0xffc54321u};
    unsigned char raw[sizeof bits + 1];
    float out[10];
    uint32_t i, got;
    (void)state;
    for (i = 0; i < 10; i++) {
        int b;
        for (b = 0; b < 4; b++) {
            raw[1 + 4 * i + (uint32_t)b] = (unsigned char)(bits[i] >> (8 * b));
        }
    }
    dendp_type_find(DENDP_TYPE_F32)->decode(raw + 1, 10, out);
    for (i = 0; i < 10; i++) {
        memcpy(&got, &out[i], 4);
        assert_int_equal(got, bits[i]);
    }
    /* The same words, as pairs of bfloats. */
    dendp_type_find(DENDP_TYPE_BF16)->decode(raw + 1, 10, out);
    for (i = 0; i < 10; i++) {
        memcpy(&got, &out[i], 4);
        assert_int_equal(got, (i % 2 ? bits[i / 2] >> 16 : bits[i / 2] & 0xffffu) << 16);
    }
}

static void quant_table(void **state) {
    /* id, values and bytes of a block, as the format fixes them */
    static const struct {
        uint32_t id, elems, bytes;
        const char *name;
    } known[] = {{0, 1, 4, "F32"},       {1, 1, 2, "F16"},         {2, 32, 18, "Q4_0"},
                 {3, 32, 20, "Q4_1"},    {6, 32, 22, "Q5_0"},      {7, 32, 24, "Q5_1"},
                 {8, 32, 34, "Q8_0"},    {10, 256, 84, "Q2_K"},    {11, 256, 110, "Q3_K"},
                 {12, 256, 144, "Q4_K"}, {13, 256, 176, "Q5_K"},   {14, 256, 210, "Q6_K"},
                 {20, 32, 18, "IQ4_NL"}, {23, 256, 136, "IQ4_XS"}, {30, 1, 2, "BF16"}};
    uint32_t id, i, n_found = 0;
    (void)state;
    for (id = 0; id < 300; id++) {
        const dendp_type *type = dendp_type_find(id);
        if (!type) {
            assert_non_null(dendp_type_refusal(id));
            continue;
        }
        assert_int_equal(type->id, id);
        n_found++;
        for (i = 0; i < 15 && known[i].id != id; i++) {
        }
        assert_true(i < 15);
        assert_int_equal(type->block_elems, known[i].elems);
        assert_int_equal(type->block_bytes, known[i].bytes);
        assert_string_equal(type->name, known[i].name);
    }
    assert_int_equal(n_found, 15);
    assert_null(dendp_type_find(UINT32_MAX));
    assert_string_equal(dendp_type_refusal(16), "tensor type IQ2_XXS is not supported");
    assert_string_equal(dendp_type_refusal(UINT32_MAX), "unknown tensor type");
}

/* No blocks: nothing is written, nothing is read. */
static void quant_no_blocks(void **state) {
    size_t i;
    (void)state;
    for (i = 0; i < DENDP_N_TYPES; i++) {
        float out = 5.0f;
        dendp_types[i].decode(NULL, 0, &out);
        assert_true(out == 5.0f);
    }
}

/* Any bytes decode, infinite and NaN scales too; finite scales give finite values. */
static void quant_any_bytes(void **state) {
    test_rng rng = {7};
    unsigned char block[256];
    float out[256];
    size_t i, k;
    int round;
    (void)state;
    for (i = 0; i < DENDP_N_TYPES; i++) {
        const dendp_type *type = &dendp_types[i];
        for (round = 0; round < 200; round++) {
            for (k = 0; k < sizeof block; k++) {
                block[k] = (unsigned char)test_below(&rng, 256);
            }
            type->decode(block, 1, out);
            /* every byte below 0x7c, the exponent of infinity: all halves in it are finite */
            for (k = 0; k < sizeof block; k++) {
                block[k] &= 0x3f;
            }
            type->decode(block, 1, out);
            for (k = 0; k < type->block_elems; k++) {
                assert_true(dendp_finite(out[k]));
            }
        }
    }
}

static const struct CMUnitTest tests_model_quant[] = {
    cmocka_unit_test(quant_goldens_bit_exact),
    cmocka_unit_test(quant_bits_are_kept),
    cmocka_unit_test(quant_table),
    cmocka_unit_test(quant_no_blocks),
    cmocka_unit_test(quant_any_bytes),
};
