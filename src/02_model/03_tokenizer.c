/* ==========================================================================
 * >>02.03 TOKENIZER: byte-level BPE, from text to token ids and back
 * ==========================================================================
 * A model reads and writes token ids. The vocabulary says which bytes each id
 * stands for; this room cuts text into them, in three steps:
 *
 *     "Hi there<|im_end|>"                           special tokens
 *     "Hi there" <|im_end|>                          words (the split)
 *     "Hi" " there" <|im_end|>                       pairs merged by rank (BPE)
 *     26843 665 2                                    ids (of SmolLM2)
 *
 * SPECIAL TOKENS are looked for in the text first: at each position the
 * longest one, from left to right. (llama.cpp looks for the longest of the
 * whole text first. It differs where a longer one begins inside a shorter one
 * and ends behind it, as in no vocabulary that we know.) User-defined ones
 * always count. Control ones (<|im_end|>, <s>, ...) only do when the caller
 * asks for them, and no other way leads to them: what a user types never
 * becomes a token that the file calls a control token.
 *
 * SPLIT  A regular expression cuts the rest into words, so that no token
 * reaches across a word's edge. Each family of models has its own; it is
 * named by tokenizer.ggml.pre and stands above its scanner. Scanners are
 * written by hand, since a regex engine would be most of this file, and they
 * look only forward: a word costs its own length.
 *
 * BPE    A word begins as its bytes, one token each. Of all neighbouring pairs
 * that the merge list knows the one of lowest rank (the leftmost, where it
 * occurs more than once) becomes one token, until no pair is known (Sennrich
 * et al., "Neural machine translation of rare words with subword units", ACL
 * 2016; on bytes: Radford et al., "Language models are unsupervised multitask
 * learners", 2019). Short words look for the lowest rank by scanning. Long
 * ones keep a heap, or else a megabyte of one letter would take hours.
 *
 * ALPHABET  In the file a token is text, in which each byte has a printable
 * stand-in: bytes that print stand for themselves, the other 68 take U+0100
 * and up, so that a space is U+0120. Tokens added later (special ones) are
 * written as they are. We turn all tokens into bytes while loading.
 *
 * INVALID UTF-8  The split takes each byte that belongs to no code point for a
 * character of its own that is neither letter, number nor space, as the
 * reference (llama.cpp) does. But where that then replaces it by U+FFFD, we
 * keep the byte, so that
 *
 *     the bytes of the tokens of a text are the text,   for every byte string,
 *
 * given a token for each byte. Some vocabularies lack a few (SmolLM2 has no
 * 0x04, and none for most bytes that UTF-8 never uses). Such a byte is left
 * out, as the reference does: nothing is merged across the gap.
 *
 * The equation holds by construction: a byte is a token only if that token's
 * bytes are the byte, and a merge counts only if the bytes of what it makes
 * are those of its halves. Vocabularies that break this are read, but such
 * tokens are out of reach; merges that name unknown tokens are refused.
 *
 * Cost: loading O(file's metadata), memory at most about 6 times that.
 * Encoding n bytes: O(n log w) for words of w bytes, plus O(s) at each place
 * where a special token of s bytes could begin.
 * ======================================================================== */

/* -- character classes ------------------------------------------------------- */

enum { DENDP_UNI_OTHER = 0, DENDP_UNI_LETTER, DENDP_UNI_NUMBER, DENDP_UNI_SPACE, DENDP_UNI_END };

/* -- table made by tools/make_unicode_tables.py: do not edit ---------------- */
/* Unicode 15.1.0: 136726 letters, 1831 numbers, 25 white spaces. */
#define DENDP_UNI_RUNS 1564u
/* clang-format off */
static const uint32_t dendp_uni_runs[DENDP_UNI_RUNS] = {
    0x0, 0x27, 0x38, 0x83, 0x84, 0xc2, 0xe8, 0x105, 0x16c, 0x185, 0x1ec, 0x217, 0x218, 0x283, 0x284, 0x2a9,
    0x2ac, 0x2ca, 0x2d0, 0x2d5, 0x2d8, 0x2e6, 0x2e9, 0x2ec, 0x2f2, 0x2fc, 0x301, 0x35c, 0x361, 0x3dc, 0x3e1,
    0xb08, 0xb19, 0xb48, 0xb81, 0xb94, 0xbb1, 0xbb4, 0xbb9, 0xbbc, 0xdc1, 0xdd4, 0xdd9, 0xde0, 0xde9, 0xdf8,
    0xdfd, 0xe00, 0xe19, 0xe1c, 0xe21, 0xe2c, 0xe31, 0xe34, 0xe39, 0xe88, 0xe8d, 0xfd8, 0xfdd, 0x1208, 0x1229,
    0x14c0, 0x14c5, 0x155c, 0x1565, 0x1568, 0x1581, 0x1624, 0x1741, 0x17ac, 0x17bd, 0x17cc, 0x1881, 0x192c,
    0x1982, 0x19a8, 0x19b9, 0x19c0, 0x19c5, 0x1b50, 0x1b55, 0x1b58, 0x1b95, 0x1b9c, 0x1bb9, 0x1bc2, 0x1be9,
    0x1bf4, 0x1bfd, 0x1c00, 0x1c41, 0x1c44, 0x1c49, 0x1cc0, 0x1d35, 0x1e98, 0x1ec5, 0x1ec8, 0x1f02, 0x1f29,
    0x1fac, 0x1fd1, 0x1fd8, 0x1fe9, 0x1fec, 0x2001, 0x2058, 0x2069, 0x206c, 0x2091, 0x2094, 0x20a1, 0x20a4,
    0x2101, 0x2164, 0x2181, 0x21ac, 0x21c1, 0x2220, 0x2225, 0x223c, 0x2281, 0x2328, 0x2411, 0x24e8, 0x24f5,
    0x24f8, 0x2541, 0x2544, 0x2561, 0x2588, 0x259a, 0x25c0, 0x25c5, 0x2604, 0x2615, 0x2634, 0x263d, 0x2644,
    0x264d, 0x26a4, 0x26a9, 0x26c4, 0x26c9, 0x26cc, 0x26d9, 0x26e8, 0x26f5, 0x26f8, 0x2739, 0x273c, 0x2771,
    0x2778, 0x277d, 0x2788, 0x279a, 0x27c1, 0x27c8, 0x27d2, 0x27e8, 0x27f1, 0x27f4, 0x2815, 0x282c, 0x283d,
    0x2844, 0x284d, 0x28a4, 0x28a9, 0x28c4, 0x28c9, 0x28d0, 0x28d5, 0x28dc, 0x28e1, 0x28e8, 0x2965, 0x2974,
    0x2979, 0x297c, 0x299a, 0x29c0, 0x29c9, 0x29d4, 0x2a15, 0x2a38, 0x2a3d, 0x2a48, 0x2a4d, 0x2aa4, 0x2aa9,
    0x2ac4, 0x2ac9, 0x2ad0, 0x2ad5, 0x2ae8, 0x2af5, 0x2af8, 0x2b41, 0x2b44, 0x2b81, 0x2b88, 0x2b9a, 0x2bc0,
    0x2be5, 0x2be8, 0x2c15, 0x2c34, 0x2c3d, 0x2c44, 0x2c4d, 0x2ca4, 0x2ca9, 0x2cc4, 0x2cc9, 0x2cd0, 0x2cd5,
    0x2ce8, 0x2cf5, 0x2cf8, 0x2d71, 0x2d78, 0x2d7d, 0x2d88, 0x2d9a, 0x2dc0, 0x2dc5, 0x2dca, 0x2de0, 0x2e0d,
    0x2e10, 0x2e15, 0x2e2c, 0x2e39, 0x2e44, 0x2e49, 0x2e58, 0x2e65, 0x2e6c, 0x2e71, 0x2e74, 0x2e79, 0x2e80,
    0x2e8d, 0x2e94, 0x2ea1, 0x2eac, 0x2eb9, 0x2ee8, 0x2f41, 0x2f44, 0x2f9a, 0x2fcc, 0x3015, 0x3034, 0x3039,
    0x3044, 0x3049, 0x30a4, 0x30a9, 0x30e8, 0x30f5, 0x30f8, 0x3161, 0x316c, 0x3175, 0x3178, 0x3181, 0x3188,
    0x319a, 0x31c0, 0x31e2, 0x31fc, 0x3201, 0x3204, 0x3215, 0x3234, 0x3239, 0x3244, 0x3249, 0x32a4, 0x32a9,
    0x32d0, 0x32d5, 0x32e8, 0x32f5, 0x32f8, 0x3375, 0x337c, 0x3381, 0x3388, 0x339a, 0x33c0, 0x33c5, 0x33cc,
    0x3411, 0x3434, 0x3439, 0x3444, 0x3449, 0x34ec, 0x34f5, 0x34f8, 0x3539, 0x353c, 0x3551, 0x355c, 0x3562,
    0x357d, 0x3588, 0x359a, 0x35e4, 0x35e9, 0x3600, 0x3615, 0x365c, 0x3669, 0x36c8, 0x36cd, 0x36f0, 0x36f5,
    0x36f8, 0x3701, 0x371c, 0x379a, 0x37c0, 0x3805, 0x38c4, 0x38c9, 0x38d0, 0x3901, 0x391c, 0x3942, 0x3968,
    0x3a05, 0x3a0c, 0x3a11, 0x3a14, 0x3a19, 0x3a2c, 0x3a31, 0x3a90, 0x3a95, 0x3a98, 0x3a9d, 0x3ac4, 0x3ac9,
    0x3ad0, 0x3af5, 0x3af8, 0x3b01, 0x3b14, 0x3b19, 0x3b1c, 0x3b42, 0x3b68, 0x3b71, 0x3b80, 0x3c01, 0x3c04,
    0x3c82, 0x3cd0, 0x3d01, 0x3d20, 0x3d25, 0x3db4, 0x3e21, 0x3e34, 0x4001, 0x40ac, 0x40fd, 0x4102, 0x4128,
    0x4141, 0x4158, 0x4169, 0x4178, 0x4185, 0x4188, 0x4195, 0x419c, 0x41b9, 0x41c4, 0x41d5, 0x4208, 0x4239,
    0x423c, 0x4242, 0x4268, 0x4281, 0x4318, 0x431d, 0x4320, 0x4335, 0x4338, 0x4341, 0x43ec, 0x43f1, 0x4924,
    0x4929, 0x4938, 0x4941, 0x495c, 0x4961, 0x4964, 0x4969, 0x4978, 0x4981, 0x4a24, 0x4a29, 0x4a38, 0x4a41,
    0x4ac4, 0x4ac9, 0x4ad8, 0x4ae1, 0x4afc, 0x4b01, 0x4b04, 0x4b09, 0x4b18, 0x4b21, 0x4b5c, 0x4b61, 0x4c44,
    0x4c49, 0x4c58, 0x4c61, 0x4d6c, 0x4da6, 0x4df4, 0x4e01, 0x4e40, 0x4e81, 0x4fd8, 0x4fe1, 0x4ff8, 0x5005,
    0x59b4, 0x59bd, 0x5a03, 0x5a05, 0x5a6c, 0x5a81, 0x5bac, 0x5bba, 0x5bc5, 0x5be4, 0x5c01, 0x5c48, 0x5c7d,
    0x5cc8, 0x5d01, 0x5d48, 0x5d81, 0x5db4, 0x5db9, 0x5dc4, 0x5e01, 0x5ed0, 0x5f5d, 0x5f60, 0x5f71, 0x5f74,
    0x5f82, 0x5fa8, 0x5fc2, 0x5fe8, 0x6042, 0x6068, 0x6081, 0x61e4, 0x6201, 0x6214, 0x621d, 0x62a4, 0x62a9,
    0x62ac, 0x62c1, 0x63d8, 0x6401, 0x647c, 0x651a, 0x6541, 0x65b8, 0x65c1, 0x65d4, 0x6601, 0x66b0, 0x66c1,
    0x6728, 0x6742, 0x676c, 0x6801, 0x685c, 0x6881, 0x6954, 0x6a02, 0x6a28, 0x6a42, 0x6a68, 0x6a9d, 0x6aa0,
    0x6c15, 0x6cd0, 0x6d15, 0x6d34, 0x6d42, 0x6d68, 0x6e0d, 0x6e84, 0x6eb9, 0x6ec2, 0x6ee9, 0x6f98, 0x7001,
    0x7090, 0x7102, 0x7128, 0x7135, 0x7142, 0x7169, 0x71f8, 0x7201, 0x7224, 0x7241, 0x72ec, 0x72f5, 0x7300,
    0x73a5, 0x73b4, 0x73b9, 0x73d0, 0x73d5, 0x73dc, 0x73e9, 0x73ec, 0x7401, 0x7700, 0x7801, 0x7c58, 0x7c61,
    0x7c78, 0x7c81, 0x7d18, 0x7d21, 0x7d38, 0x7d41, 0x7d60, 0x7d65, 0x7d68, 0x7d6d, 0x7d70, 0x7d75, 0x7d78,
    0x7d7d, 0x7df8, 0x7e01, 0x7ed4, 0x7ed9, 0x7ef4, 0x7ef9, 0x7efc, 0x7f09, 0x7f14, 0x7f19, 0x7f34, 0x7f41,
    0x7f50, 0x7f59, 0x7f70, 0x7f81, 0x7fb4, 0x7fc9, 0x7fd4, 0x7fd9, 0x7ff4, 0x8003, 0x802c, 0x80a3, 0x80a8,
    0x80bf, 0x80c0, 0x817f, 0x8180, 0x81c2, 0x81c5, 0x81c8, 0x81d2, 0x81e8, 0x81fd, 0x8202, 0x8228, 0x8241,
    0x8274, 0x8409, 0x840c, 0x841d, 0x8420, 0x8429, 0x8450, 0x8455, 0x8458, 0x8465, 0x8478, 0x8491, 0x8494,
    0x8499, 0x849c, 0x84a1, 0x84a4, 0x84a9, 0x84b8, 0x84bd, 0x84e8, 0x84f1, 0x8500, 0x8515, 0x8528, 0x8539,
    0x853c, 0x8542, 0x860d, 0x8616, 0x8628, 0x9182, 0x9270, 0x93aa, 0x9400, 0x9dda, 0x9e50, 0xb001, 0xb394,
    0xb3ad, 0xb3bc, 0xb3c9, 0xb3d0, 0xb3f6, 0xb3f8, 0xb401, 0xb498, 0xb49d, 0xb4a0, 0xb4b5, 0xb4b8, 0xb4c1,
    0xb5a0, 0xb5bd, 0xb5c0, 0xb601, 0xb65c, 0xb681, 0xb69c, 0xb6a1, 0xb6bc, 0xb6c1, 0xb6dc, 0xb6e1, 0xb6fc,
    0xb701, 0xb71c, 0xb721, 0xb73c, 0xb741, 0xb75c, 0xb761, 0xb77c, 0xb8bd, 0xb8c0, 0xc003, 0xc004, 0xc015,
    0xc01e, 0xc020, 0xc086, 0xc0a8, 0xc0c5, 0xc0d8, 0xc0e2, 0xc0ed, 0xc0f4, 0xc105, 0xc25c, 0xc275, 0xc280,
    0xc285, 0xc3ec, 0xc3f1, 0xc400, 0xc415, 0xc4c0, 0xc4c5, 0xc63c, 0xc64a, 0xc658, 0xc681, 0xc700, 0xc7c1,
    0xc800, 0xc882, 0xc8a8, 0xc922, 0xc940, 0xc946, 0xc980, 0xca02, 0xca28, 0xcac6, 0xcb00, 0xd001, 0x13700,
    0x13801, 0x29234, 0x29341, 0x293f8, 0x29401, 0x29834, 0x29841, 0x29882, 0x298a9, 0x298b0, 0x29901,
    0x299bc, 0x299fd, 0x29a78, 0x29a81, 0x29b9a, 0x29bc0, 0x29c5d, 0x29c80, 0x29c89, 0x29e24, 0x29e2d,
    0x29f2c, 0x29f41, 0x29f48, 0x29f4d, 0x29f50, 0x29f55, 0x29f68, 0x29fc9, 0x2a008, 0x2a00d, 0x2a018,
    0x2a01d, 0x2a02c, 0x2a031, 0x2a08c, 0x2a0c2, 0x2a0d8, 0x2a101, 0x2a1d0, 0x2a209, 0x2a2d0, 0x2a342,
    0x2a368, 0x2a3c9, 0x2a3e0, 0x2a3ed, 0x2a3f0, 0x2a3f5, 0x2a3fc, 0x2a402, 0x2a429, 0x2a498, 0x2a4c1,
    0x2a51c, 0x2a581, 0x2a5f4, 0x2a611, 0x2a6cc, 0x2a73d, 0x2a742, 0x2a768, 0x2a781, 0x2a794, 0x2a799,
    0x2a7c2, 0x2a7e9, 0x2a7fc, 0x2a801, 0x2a8a4, 0x2a901, 0x2a90c, 0x2a911, 0x2a930, 0x2a942, 0x2a968,
    0x2a981, 0x2a9dc, 0x2a9e9, 0x2a9ec, 0x2a9f9, 0x2aac0, 0x2aac5, 0x2aac8, 0x2aad5, 0x2aadc, 0x2aae5,
    0x2aaf8, 0x2ab01, 0x2ab04, 0x2ab09, 0x2ab0c, 0x2ab6d, 0x2ab78, 0x2ab81, 0x2abac, 0x2abc9, 0x2abd4,
    0x2ac05, 0x2ac1c, 0x2ac25, 0x2ac3c, 0x2ac45, 0x2ac5c, 0x2ac81, 0x2ac9c, 0x2aca1, 0x2acbc, 0x2acc1,
    0x2ad6c, 0x2ad71, 0x2ada8, 0x2adc1, 0x2af8c, 0x2afc2, 0x2afe8, 0x2b001, 0x35e90, 0x35ec1, 0x35f1c,
    0x35f2d, 0x35ff0, 0x3e401, 0x3e9b8, 0x3e9c1, 0x3eb68, 0x3ec01, 0x3ec1c, 0x3ec4d, 0x3ec60, 0x3ec75,
    0x3ec78, 0x3ec7d, 0x3eca4, 0x3eca9, 0x3ecdc, 0x3ece1, 0x3ecf4, 0x3ecf9, 0x3ecfc, 0x3ed01, 0x3ed08,
    0x3ed0d, 0x3ed14, 0x3ed19, 0x3eec8, 0x3ef4d, 0x3f4f8, 0x3f541, 0x3f640, 0x3f649, 0x3f720, 0x3f7c1,
    0x3f7f0, 0x3f9c1, 0x3f9d4, 0x3f9d9, 0x3fbf4, 0x3fc42, 0x3fc68, 0x3fc85, 0x3fcec, 0x3fd05, 0x3fd6c,
    0x3fd99, 0x3fefc, 0x3ff09, 0x3ff20, 0x3ff29, 0x3ff40, 0x3ff49, 0x3ff60, 0x3ff69, 0x3ff74, 0x40001,
    0x40030, 0x40035, 0x4009c, 0x400a1, 0x400ec, 0x400f1, 0x400f8, 0x400fd, 0x40138, 0x40141, 0x40178,
    0x40201, 0x403ec, 0x4041e, 0x404d0, 0x40502, 0x405e4, 0x4062a, 0x40630, 0x40a01, 0x40a74, 0x40a81,
    0x40b44, 0x40b86, 0x40bf0, 0x40c01, 0x40c82, 0x40c90, 0x40cb5, 0x40d06, 0x40d09, 0x40d2a, 0x40d2c,
    0x40d41, 0x40dd8, 0x40e01, 0x40e78, 0x40e81, 0x40f10, 0x40f21, 0x40f40, 0x40f46, 0x40f58, 0x41001,
    0x41278, 0x41282, 0x412a8, 0x412c1, 0x41350, 0x41361, 0x413f0, 0x41401, 0x414a0, 0x414c1, 0x41590,
    0x415c1, 0x415ec, 0x415f1, 0x4162c, 0x41631, 0x4164c, 0x41651, 0x41658, 0x4165d, 0x41688, 0x4168d,
    0x416c8, 0x416cd, 0x416e8, 0x416ed, 0x416f4, 0x41801, 0x41cdc, 0x41d01, 0x41d58, 0x41d81, 0x41da0,
    0x41e01, 0x41e18, 0x41e1d, 0x41ec4, 0x41ec9, 0x41eec, 0x42001, 0x42018, 0x42021, 0x42024, 0x42029,
    0x420d8, 0x420dd, 0x420e4, 0x420f1, 0x420f4, 0x420fd, 0x42158, 0x42162, 0x42181, 0x421dc, 0x421e6,
    0x42201, 0x4227c, 0x4229e, 0x422c0, 0x42381, 0x423cc, 0x423d1, 0x423d8, 0x423ee, 0x42401, 0x4245a,
    0x42470, 0x42481, 0x424e8, 0x42601, 0x426e0, 0x426f2, 0x426f9, 0x42702, 0x42740, 0x4274a, 0x42801,
    0x42804, 0x42841, 0x42850, 0x42855, 0x42860, 0x42865, 0x428d8, 0x42902, 0x42924, 0x42981, 0x429f6,
    0x429fc, 0x42a01, 0x42a76, 0x42a80, 0x42b01, 0x42b20, 0x42b25, 0x42b94, 0x42bae, 0x42bc0, 0x42c01,
    0x42cd8, 0x42d01, 0x42d58, 0x42d62, 0x42d81, 0x42dcc, 0x42de2, 0x42e01, 0x42e48, 0x42ea6, 0x42ec0,
    0x43001, 0x43124, 0x43201, 0x432cc, 0x43301, 0x433cc, 0x433ea, 0x43401, 0x43490, 0x434c2, 0x434e8,
    0x43982, 0x439fc, 0x43a01, 0x43aa8, 0x43ac1, 0x43ac8, 0x43c01, 0x43c76, 0x43c9d, 0x43ca0, 0x43cc1,
    0x43d18, 0x43d46, 0x43d54, 0x43dc1, 0x43e08, 0x43ec1, 0x43f16, 0x43f30, 0x43f81, 0x43fdc, 0x4400d,
    0x440e0, 0x4414a, 0x441c0, 0x441c5, 0x441cc, 0x441d5, 0x441d8, 0x4420d, 0x442c0, 0x44341, 0x443a4,
    0x443c2, 0x443e8, 0x4440d, 0x4449c, 0x444da, 0x44500, 0x44511, 0x44514, 0x4451d, 0x44520, 0x44541,
    0x445cc, 0x445d9, 0x445dc, 0x4460d, 0x446cc, 0x44705, 0x44714, 0x44742, 0x44769, 0x4476c, 0x44771,
    0x44774, 0x44786, 0x447d4, 0x44801, 0x44848, 0x4484d, 0x448b0, 0x448fd, 0x44904, 0x44a01, 0x44a1c,
    0x44a21, 0x44a24, 0x44a29, 0x44a38, 0x44a3d, 0x44a78, 0x44a7d, 0x44aa4, 0x44ac1, 0x44b7c, 0x44bc2,
    0x44be8, 0x44c15, 0x44c34, 0x44c3d, 0x44c44, 0x44c4d, 0x44ca4, 0x44ca9, 0x44cc4, 0x44cc9, 0x44cd0,
    0x44cd5, 0x44ce8, 0x44cf5, 0x44cf8, 0x44d41, 0x44d44, 0x44d75, 0x44d88, 0x45001, 0x450d4, 0x4511d,
    0x4512c, 0x45142, 0x45168, 0x4517d, 0x45188, 0x45201, 0x452c0, 0x45311, 0x45318, 0x4531d, 0x45320,
    0x45342, 0x45368, 0x45601, 0x456bc, 0x45761, 0x45770, 0x45801, 0x458c0, 0x45911, 0x45914, 0x45942,
    0x45968, 0x45a01, 0x45aac, 0x45ae1, 0x45ae4, 0x45b02, 0x45b28, 0x45c01, 0x45c6c, 0x45cc2, 0x45cf0,
    0x45d01, 0x45d1c, 0x46001, 0x460b0, 0x46281, 0x46382, 0x463cc, 0x463fd, 0x4641c, 0x46425, 0x46428,
    0x46431, 0x46450, 0x46455, 0x4645c, 0x46461, 0x464c0, 0x464fd, 0x46500, 0x46505, 0x46508, 0x46542,
    0x46568, 0x46681, 0x466a0, 0x466a9, 0x46744, 0x46785, 0x46788, 0x4678d, 0x46790, 0x46801, 0x46804,
    0x4682d, 0x468cc, 0x468e9, 0x468ec, 0x46941, 0x46944, 0x46971, 0x46a28, 0x46a75, 0x46a78, 0x46ac1,
    0x46be4, 0x47001, 0x47024, 0x47029, 0x470bc, 0x47101, 0x47104, 0x47142, 0x471b4, 0x471c9, 0x47240,
    0x47401, 0x4741c, 0x47421, 0x47428, 0x4742d, 0x474c4, 0x47519, 0x4751c, 0x47542, 0x47568, 0x47581,
    0x47598, 0x4759d, 0x475a4, 0x475a9, 0x47628, 0x47661, 0x47664, 0x47682, 0x476a8, 0x47b81, 0x47bcc,
    0x47c09, 0x47c0c, 0x47c11, 0x47c44, 0x47c49, 0x47cd0, 0x47d42, 0x47d68, 0x47ec1, 0x47ec4, 0x47f02,
    0x47f54, 0x48001, 0x48e68, 0x49002, 0x491bc, 0x49201, 0x49510, 0x4be41, 0x4bfc4, 0x4c001, 0x4d0c0,
    0x4d105, 0x4d11c, 0x51001, 0x5191c, 0x5a001, 0x5a8e4, 0x5a901, 0x5a97c, 0x5a982, 0x5a9a8, 0x5a9c1,
    0x5aafc, 0x5ab02, 0x5ab28, 0x5ab41, 0x5abb8, 0x5ac01, 0x5acc0, 0x5ad01, 0x5ad10, 0x5ad42, 0x5ad68,
    0x5ad6e, 0x5ad88, 0x5ad8d, 0x5ade0, 0x5adf5, 0x5ae40, 0x5b901, 0x5ba02, 0x5ba5c, 0x5bc01, 0x5bd2c,
    0x5bd41, 0x5bd44, 0x5be4d, 0x5be80, 0x5bf81, 0x5bf88, 0x5bf8d, 0x5bf90, 0x5c001, 0x61fe0, 0x62001,
    0x63358, 0x63401, 0x63424, 0x6bfc1, 0x6bfd0, 0x6bfd5, 0x6bff0, 0x6bff5, 0x6bffc, 0x6c001, 0x6c48c,
    0x6c4c9, 0x6c4cc, 0x6c541, 0x6c54c, 0x6c555, 0x6c558, 0x6c591, 0x6c5a0, 0x6c5c1, 0x6cbf0, 0x6f001,
    0x6f1ac, 0x6f1c1, 0x6f1f4, 0x6f201, 0x6f224, 0x6f241, 0x6f268, 0x74b02, 0x74b50, 0x74b82, 0x74bd0,
    0x74d82, 0x74de4, 0x75001, 0x75154, 0x75159, 0x75274, 0x75279, 0x75280, 0x75289, 0x7528c, 0x75295,
    0x7529c, 0x752a5, 0x752b4, 0x752b9, 0x752e8, 0x752ed, 0x752f0, 0x752f5, 0x75310, 0x75315, 0x75418,
    0x7541d, 0x7542c, 0x75435, 0x75454, 0x75459, 0x75474, 0x75479, 0x754e8, 0x754ed, 0x754fc, 0x75501,
    0x75514, 0x75519, 0x7551c, 0x75529, 0x75544, 0x75549, 0x75a98, 0x75aa1, 0x75b04, 0x75b09, 0x75b6c,
    0x75b71, 0x75bec, 0x75bf1, 0x75c54, 0x75c59, 0x75cd4, 0x75cd9, 0x75d3c, 0x75d41, 0x75dbc, 0x75dc1,
    0x75e24, 0x75e29, 0x75ea4, 0x75ea9, 0x75f0c, 0x75f11, 0x75f30, 0x75f3a, 0x76000, 0x77c01, 0x77c7c,
    0x77c95, 0x77cac, 0x780c1, 0x781b8, 0x78401, 0x784b4, 0x784dd, 0x784f8, 0x78502, 0x78528, 0x78539,
    0x7853c, 0x78a41, 0x78ab8, 0x78b01, 0x78bb0, 0x78bc2, 0x78be8, 0x79341, 0x793b0, 0x793c2, 0x793e8,
    0x79f81, 0x79f9c, 0x79fa1, 0x79fb0, 0x79fb5, 0x79fbc, 0x79fc1, 0x79ffc, 0x7a001, 0x7a314, 0x7a31e,
    0x7a340, 0x7a401, 0x7a510, 0x7a52d, 0x7a530, 0x7a542, 0x7a568, 0x7b1c6, 0x7b2b0, 0x7b2b6, 0x7b2c0,
    0x7b2c6, 0x7b2d4, 0x7b406, 0x7b4b8, 0x7b4be, 0x7b4f8, 0x7b801, 0x7b810, 0x7b815, 0x7b880, 0x7b885,
    0x7b88c, 0x7b891, 0x7b894, 0x7b89d, 0x7b8a0, 0x7b8a5, 0x7b8cc, 0x7b8d1, 0x7b8e0, 0x7b8e5, 0x7b8e8,
    0x7b8ed, 0x7b8f0, 0x7b909, 0x7b90c, 0x7b91d, 0x7b920, 0x7b925, 0x7b928, 0x7b92d, 0x7b930, 0x7b935,
    0x7b940, 0x7b945, 0x7b94c, 0x7b951, 0x7b954, 0x7b95d, 0x7b960, 0x7b965, 0x7b968, 0x7b96d, 0x7b970,
    0x7b975, 0x7b978, 0x7b97d, 0x7b980, 0x7b985, 0x7b98c, 0x7b991, 0x7b994, 0x7b99d, 0x7b9ac, 0x7b9b1,
    0x7b9cc, 0x7b9d1, 0x7b9e0, 0x7b9e5, 0x7b9f4, 0x7b9f9, 0x7b9fc, 0x7ba01, 0x7ba28, 0x7ba2d, 0x7ba70,
    0x7ba85, 0x7ba90, 0x7ba95, 0x7baa8, 0x7baad, 0x7baf0, 0x7c402, 0x7c434, 0x7efc2, 0x7efe8, 0x80001,
    0xa9b80, 0xa9c01, 0xadce8, 0xadd01, 0xae078, 0xae081, 0xb3a88, 0xb3ac1, 0xbaf84, 0xbafc1, 0xbb978,
    0xbe001, 0xbe878, 0xc0001, 0xc4d2c, 0xc4d41, 0xc8ec0
};
/* clang-format on */
/* -- end of the table ------------------------------------------------------ */

/* Classes of ASCII, where nearly all text is. */
static const unsigned char dendp_ascii_class[128] = {
    0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 3, 3, 3, 3, 0, 0, /* tab to carriage return */
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, /* other controls */
    3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, /* space */
    2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0, /* 0 to 9 */
    0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, /* A */
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, /* to Z */
    0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, /* a */
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, /* to z */
};

/* Class of a code point: that of the last run which begins at or before it. */
static uint32_t dendp_uni_class(uint32_t cp) {
    uint32_t lo = 0, hi = DENDP_UNI_RUNS; /* runs[lo] begins there; runs[hi], if any, does not */
    while (hi - lo > 1) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (dendp_uni_runs[mid] >> 2 <= cp) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    return dendp_uni_runs[lo] & 3u;
}

/* Class and length of the first character of s[n]; END and 0 when n is 0.
 * Surrogates pass as characters, as in the reference; any other byte outside
 * a well-formed code point is a character of one byte. */
static uint32_t dendp_uni_next(const unsigned char *s, size_t n, size_t *len) {
    uint32_t b, cp, more, i;
    *len = 0;
    if (n == 0) return DENDP_UNI_END;
    *len = 1;
    b = s[0];
    if (b < 0x80) return dendp_ascii_class[b];
    if (b < 0xc2 || b > 0xf4) return DENDP_UNI_OTHER;
    more = b < 0xe0 ? 1 : b < 0xf0 ? 2 : 3;
    if (n <= more) return DENDP_UNI_OTHER;
    cp = b & (0x3fu >> more);
    for (i = 1; i <= more; i++) {
        if ((s[i] & 0xc0u) != 0x80u) return DENDP_UNI_OTHER;
        cp = cp << 6 | (s[i] & 0x3fu);
    }
    if ((more == 2 && cp < 0x800) || (more == 3 && (cp < 0x10000 || cp > 0x10ffff))) return DENDP_UNI_OTHER;
    *len = more + 1;
    return dendp_uni_class(cp);
}

/* The end of the characters of one class that begin at s[at]. */
static size_t dendp_uni_run(const unsigned char *s, size_t n, size_t at, uint32_t of_class) {
    size_t len;
    while (dendp_uni_next(s + at, n - at, &len) == of_class) at += len;
    return at;
}

/* -- splits: each returns the length of the first word of s[n], n > 0 --------- */

typedef enum dendp_split_kind {
    DENDP_SPLIT_GPT2,
    DENDP_SPLIT_SMOLLM,
    DENDP_SPLIT_QWEN2,
    DENDP_SPLIT_LLAMA3
} dendp_split_kind;

/* 's|'t|'re|'ve|'m|'ll|'d at the start: its length, else 0. */
static size_t dendp_split_contraction(const unsigned char *s, size_t n, bool any_case) {
    uint32_t fold = any_case ? 0x20 : 0, a, b;
    if (n < 2 || s[0] != '\'') return 0;
    a = s[1] | fold;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    b = n > 2 ? s[2] | fold : 0;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* \s+(?!\S)|\s+ at the start: all the white space, but for its last character
 * where a word follows, which may want a space in front. With `apart` a number
 * is no such word. 0 when there is no white space. */
static size_t dendp_split_space(const unsigned char *s, size_t n, bool apart) {
    size_t at = 0, last = 0, len;
    uint32_t c = dendp_uni_next(s, n, &len);
    while (c == DENDP_UNI_SPACE) {
        last = at;
        at += len;
        c = dendp_uni_next(s + at, n - at, &len);
    }
    return last == 0 || c == DENDP_UNI_END || (apart && c == DENDP_UNI_NUMBER) ? at : last;
}

/* GPT-2:
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 * SmolLM cuts out each \p{N} first and applies the same to what is between
 * (`apart`): a number is a word, and the text before it ends there. */
static size_t dendp_split_gpt2(const unsigned char *s, size_t n, bool apart) {
    size_t at = s[0] == ' ' ? 1 : 0, len;
    uint32_t c = dendp_uni_next(s + at, n - at, &len);
    size_t short_form = dendp_split_contraction(s, n, false);
    if (short_form) return short_form;
    if (c == DENDP_UNI_NUMBER && apart) return at ? 1 : len;
    if (c != DENDP_UNI_SPACE && c != DENDP_UNI_END) return dendp_uni_run(s, n, at + len, c);
    return dendp_split_space(s, n, apart);
}

/* Llama 3, with digits = 3, and Qwen2, with digits = 1:
 *     (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}|
 *      ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 * where (?i:) folds ASCII only, as in the reference. */
static size_t dendp_split_llama3(const unsigned char *s, size_t n, uint32_t digits) {
    size_t len, len2, at = dendp_split_contraction(s, n, true), line_end = 0;
    uint32_t c = dendp_uni_next(s, n, &len), i;
    bool line = s[0] == '\r' || s[0] == '\n';
    if (at) return at;
    if (c == DENDP_UNI_LETTER) return dendp_uni_run(s, n, len, c);
    if (c == DENDP_UNI_NUMBER) {
        for (i = 0; i < digits && dendp_uni_next(s + at, n - at, &len) == DENDP_UNI_NUMBER; i++) at += len;
        return at;
    }
    if (!line && dendp_uni_next(s + len, n - len, &len2) == DENDP_UNI_LETTER) {
        return dendp_uni_run(s, n, len + len2, DENDP_UNI_LETTER);
    }
    at = s[0] == ' ' ? 1 : 0;
    if (dendp_uni_next(s + at, n - at, &len) == DENDP_UNI_OTHER) {
        at = dendp_uni_run(s, n, at + len, DENDP_UNI_OTHER);
        while (at < n && (s[at] == '\r' || s[at] == '\n')) at++;
        return at;
    }
    /* white space: up to the last line end in it, if there is one */
    for (at = 0; dendp_uni_next(s + at, n - at, &len) == DENDP_UNI_SPACE; at += len) {
        if (s[at] == '\r' || s[at] == '\n') line_end = at + 1;
    }
    return line_end ? line_end : dendp_split_space(s, n, false);
}

static size_t dendp_split(dendp_split_kind kind, const unsigned char *s, size_t n) {
    switch (kind) {
    case DENDP_SPLIT_SMOLLM:
        return dendp_split_gpt2(s, n, true);
    case DENDP_SPLIT_QWEN2:
        return dendp_split_llama3(s, n, 1);
    case DENDP_SPLIT_LLAMA3:
        return dendp_split_llama3(s, n, 3);
    case DENDP_SPLIT_GPT2:
        break;
    }
    return dendp_split_gpt2(s, n, false);
}

/* The names of tokenizer.ggml.pre. Those of a family differ from one another
 * in nothing that this room does. */
typedef struct dendp_pre {
    const char *name;
    dendp_split_kind split;
    bool whole_words; /* a word that is a token is that token, whatever the merges say */
    bool add_bos;     /* unless the file says otherwise */
} dendp_pre;

static const dendp_pre dendp_pres[] = {
    {"gpt-2", DENDP_SPLIT_GPT2, false, false},     {"gpt2", DENDP_SPLIT_GPT2, false, false},
    {"phi-2", DENDP_SPLIT_GPT2, false, false},     {"olmo", DENDP_SPLIT_GPT2, false, false},
    {"smollm", DENDP_SPLIT_SMOLLM, false, false},  {"starcoder", DENDP_SPLIT_SMOLLM, false, false},
    {"refact", DENDP_SPLIT_SMOLLM, false, false},  {"command-r", DENDP_SPLIT_SMOLLM, false, false},
    {"exaone", DENDP_SPLIT_SMOLLM, false, false},  {"qwen2", DENDP_SPLIT_QWEN2, false, false},
    {"megrez", DENDP_SPLIT_QWEN2, false, false},   {"deepseek-r1-qwen", DENDP_SPLIT_QWEN2, false, false},
    {"llama-bpe", DENDP_SPLIT_LLAMA3, true, true}, {"llama3", DENDP_SPLIT_LLAMA3, true, true},
    {"llama-v3", DENDP_SPLIT_LLAMA3, true, true},  {"falcon3", DENDP_SPLIT_LLAMA3, true, true},
    {"dbrx", DENDP_SPLIT_LLAMA3, false, false},    {"smaug-bpe", DENDP_SPLIT_LLAMA3, false, false},
};

/* -- the byte alphabet --------------------------------------------------------- */

/* The stand-in of a byte. The 68 bytes that do not print are 0-0x20, 0x7f-0xa0 and 0xad. */
static uint32_t dendp_alphabet_of(uint32_t byte) {
    if (byte <= 0x20) return byte + 0x100;
    if (byte >= 0x7f && byte <= 0xa0) return byte - 0x7f + 0x121;
    return byte == 0xad ? 0x143 : byte;
}

/* The byte for which the first character of s[n] stands, and the character's
 * length; -1 when it is none of the alphabet. */
static int dendp_alphabet_next(const char *s, size_t n, size_t *len) {
    uint32_t b = n ? (unsigned char)s[0] : 0, c;
    *len = 1;
    if (b < 0x80) return b > 0x20 && b < 0x7f ? (int)b : -1;
    if (n < 2 || b < 0xc2 || b > 0xc5 || ((unsigned char)s[1] & 0xc0) != 0x80) return -1;
    *len = 2;
    c = (b & 0x1f) << 6 | ((unsigned char)s[1] & 0x3fu);
    if (c <= 0xff) return c > 0xa0 && c != 0xad ? (int)c : -1;
    if (c <= 0x120) return (int)c - 0x100;
    if (c <= 0x142) return (int)c - 0x121 + 0x7f;
    return c == 0x143 ? 0xad : -1;
}

/* -- the vocabulary ------------------------------------------------------------- */

#define DENDP_TOK_NONE 0xffffffffu /* no token; no rank */
#define DENDP_TOK_DEAD 0xfffffffeu /* a symbol that was merged into the one on its left */
#define DENDP_TOK_MAX_VOCAB (1u << 24)

/* Flags of a token. */
enum {
    DENDP_TOK_PLAIN = 1,  /* its text stands for its bytes in the alphabet, and ordinary text may become it */
    DENDP_TOK_MADE = 2,   /* the token of a byte, or of a merge */
    DENDP_TOK_SILENT = 4, /* has text, but no bytes */
    DENDP_TOK_CONTROL = 8, /* found in text by its own text, when the caller wants that */
    DENDP_TOK_USER = 16,   /* found in text by its own text, always */
    DENDP_TOK_END = 32     /* generation stops here */
};

/* A slot of the table of merges; rank NONE is empty. */
typedef struct dendp_merge {
    uint32_t left, right, rank, made;
} dendp_merge;

/* Open addressing everywhere: capacities are powers of two, at most half full.
 * All arrays are pieces of one block. n_vocab 0: the file has no tokenizer. */
typedef struct dendp_tokenizer {
    dend_allocator allocator;
    uint32_t n_vocab;      /* V */
    int32_t bos, eos, eot; /* -1 where there is none */
    bool add_bos;
    bool whole_words;
    dendp_split_kind split;
    void *block;
    uint64_t block_bytes;
    char *bytes;          /* each token's bytes, or text where it is silent, and a 0 behind it */
    uint32_t *offsets;    /* [V + 1] where a token's begin in there */
    unsigned char *flags; /* [V] */
    uint32_t *table;      /* text to token, by hash */
    uint32_t table_mask;
    uint32_t merge_mask, merge_shift;
    dendp_merge *merges; /* (left, right) to rank and token, by hash */
    uint32_t *specials;  /* control and user-defined tokens in the order of their texts' bytes */
    uint32_t n_specials;
    uint32_t starts[2][8];  /* set of first bytes: of user-defined tokens, of all special ones */
    uint32_t byte_ids[256]; /* token of each byte, or NONE */
} dendp_tokenizer;

static const char *dendp_tok_at(const dendp_tokenizer *t, uint32_t id, size_t *n) {
    *n = t->offsets[id + 1] - t->offsets[id] - 1;
    return t->bytes + t->offsets[id];
}

/* FNV-1a (Fowler, Noll, Vo), which can go on from where it stopped. */
#define DENDP_TOK_HASH 0xcbf29ce484222325u

static uint64_t dendp_tok_hash(uint64_t h, const char *s, size_t n) {
    size_t i;
    for (i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
    return h;
}

/* Whether a token's text is s[n] in the file's spelling; *k counts the bytes seen so far. */
static bool dendp_tok_matches(const dendp_tokenizer *t, uint32_t id, const char *s, size_t n, size_t *k) {
    size_t len, step, at;
    const char *bytes = dendp_tok_at(t, id, &len);
    if (!(t->flags[id] & DENDP_TOK_PLAIN)) {
        at = *k;
        *k += n;
        return n <= len && at <= len - n && memcmp(bytes + at, s, n) == 0;
    }
    for (at = 0; at < n; at += step) {
        int b = dendp_alphabet_next(s + at, n - at, &step);
        if (b < 0 || *k >= len || (unsigned char)bytes[*k] != (unsigned)b) return false;
        ++*k;
    }
    return true;
}

/* The slot of the token whose text is a[na] followed by b[nb]; an empty slot when there is none. */
static uint32_t dendp_tok_slot(const dendp_tokenizer *t, const char *a, size_t na, const char *b, size_t nb) {
    uint32_t slot = (uint32_t)dendp_mix64(dendp_tok_hash(dendp_tok_hash(DENDP_TOK_HASH, a, na), b, nb));
    for (;; slot++) {
        uint32_t id = t->table[slot &= t->table_mask];
        size_t k = 0, len;
        if (id == DENDP_TOK_NONE) return slot;
        if (dendp_tok_matches(t, id, a, na, &k) && dendp_tok_matches(t, id, b, nb, &k)) {
            dendp_tok_at(t, id, &len);
            if (k == len) return slot;
        }
    }
}

static uint32_t dendp_tok_find(const dendp_tokenizer *t, const char *s, size_t n) {
    return t->table[dendp_tok_slot(t, s, n, s, 0)];
}

/* The token of ordinary text that a whole word s[n] is, or NONE. */
static uint32_t dendp_tok_word(const dendp_tokenizer *t, const unsigned char *s, size_t n) {
    uint64_t h = DENDP_TOK_HASH;
    const char *bytes;
    uint32_t slot;
    size_t i, len;
    for (i = 0; i < n; i++) {
        uint32_t c = dendp_alphabet_of(s[i]);
        char text[2];
        text[0] = (char)(c < 0x80 ? c : 0xc0 | c >> 6);
        text[1] = (char)(0x80 | (c & 0x3f));
        h = dendp_tok_hash(h, text, c < 0x80 ? 1 : 2);
    }
    for (slot = (uint32_t)dendp_mix64(h);; slot++) {
        uint32_t id = t->table[slot &= t->table_mask];
        if (id == DENDP_TOK_NONE) return id;
        bytes = dendp_tok_at(t, id, &len);
        if ((t->flags[id] & DENDP_TOK_PLAIN) && len == n && memcmp(bytes, s, n) == 0) return id;
    }
}

/* The slot of a pair; its rank is NONE where the pair is not known. */
static dendp_merge *dendp_tok_merge(const dendp_tokenizer *t, uint32_t left, uint32_t right) {
    uint32_t slot = (uint32_t)(((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u >> t->merge_shift);
    for (;; slot++) {
        dendp_merge *m = &t->merges[slot &= t->merge_mask];
        if ((m->left == left && m->right == right) || m->rank == DENDP_TOK_NONE) return m;
    }
}

/* -- loading --------------------------------------------------------------------- */

/* Texts that mark a token as the end of generation (END), as the end of a turn
 * where the file names none (EOT, the first of the list that there is), or
 * just as a control token: files do not say such things reliably. */
enum { DENDP_KIN_CONTROL = 0, DENDP_KIN_END = 1, DENDP_KIN_EOT = 3 };

typedef struct dendp_kin {
    const char *text;
    uint32_t what;
} dendp_kin;

static const dendp_kin dendp_kins[] = {
    {"<|eot_id|>", DENDP_KIN_EOT},
    {"<|im_end|>", DENDP_KIN_EOT},
    {"<|end|>", DENDP_KIN_EOT},
    {"<end_of_turn>", DENDP_KIN_EOT},
    {"<end_of_utterance>", DENDP_KIN_EOT},
    {"<|endoftext|>", DENDP_KIN_EOT},
    {"<|end_of_text|>", DENDP_KIN_EOT},
    {"<EOT>", DENDP_KIN_EOT},
    {"_<EOT>", DENDP_KIN_EOT},
    {"[EOT]", DENDP_KIN_EOT},
    {"<\357\275\234end\342\226\201of\342\226\201sentence\357\275\234>", DENDP_KIN_EOT}, /* DeepSeek */
    {"</s>", DENDP_KIN_END},
    {"<eos>", DENDP_KIN_END},
    {"[EOS]", DENDP_KIN_END},
    {"<|eom_id|>", DENDP_KIN_END},
    /* of fill-in-the-middle models: padding, and where the next file or repository begins */
    {"<|fim_pad|>", DENDP_KIN_END},
    {"<fim-pad>", DENDP_KIN_END},
    {"<fim_pad>", DENDP_KIN_END},
    {"<PAD>", DENDP_KIN_END},
    {"[PAD]", DENDP_KIN_END},
    {"<|fim_repo|>", DENDP_KIN_END},
    {"<|repo_name|>", DENDP_KIN_END},
    {"<fim-repo>", DENDP_KIN_END},
    {"<REPO>", DENDP_KIN_END},
    {"<reponame>", DENDP_KIN_END},
    {"<|file_sep|>", DENDP_KIN_END},
    {"<|fim_prefix|>", DENDP_KIN_CONTROL},
    {"<fim-prefix>", DENDP_KIN_CONTROL},
    {"<fim_prefix>", DENDP_KIN_CONTROL},
    {"<|fim_suffix|>", DENDP_KIN_CONTROL},
    {"<fim-suffix>", DENDP_KIN_CONTROL},
    {"<fim_suffix>", DENDP_KIN_CONTROL},
    {"<|fim_middle|>", DENDP_KIN_CONTROL},
    {"<fim-middle>", DENDP_KIN_CONTROL},
    {"<fim_middle>", DENDP_KIN_CONTROL},
};
#define DENDP_N_KINS (uint32_t)(sizeof dendp_kins / sizeof dendp_kins[0])

/* What loading needs of the file. */
typedef struct dendp_tok_source {
    const dendp_gguf_kv *tokens;
    const dendp_gguf_kv *types; /* NULL: all normal */
    const dendp_gguf_kv *merges;
    uint32_t n_specials; /* at most */
} dendp_tok_source;

/* Offset in the file of the elements of an array: behind their type and count. */
static uint64_t dendp_tok_elems_where(const dendp_gguf_kv *kv) {
    return kv->offset + 12;
}

/* The names of the model and the split. *found is false where the file has no tokenizer. */
static dend_status dendp_tok_load_names(dendp_tokenizer *t, const dendp_gguf *g, bool *found,
                                        dend_error *err) {
    const dendp_gguf_kv *model = dendp_gguf_find(g, "tokenizer.ggml.model");
    const dendp_gguf_kv *pre = dendp_gguf_find(g, "tokenizer.ggml.pre");
    uint32_t i;
    *found = false;
    if (!model) return DEND_OK;
    if (model->type != DENDP_GGUF_STRING) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "tokenizer.ggml.model is no string", model->offset);
    }
    if (strcmp(model->str, "none") == 0 || strcmp(model->str, "no_vocab") == 0) return DEND_OK;
    if (strcmp(model->str, "llama") == 0) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "SentencePiece vocabularies (llama) are not supported",
                          model->offset);
    }
    if (strcmp(model->str, "gpt2") != 0) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "tokenizer.ggml.model is none of: gpt2", model->offset);
    }
    if (!pre) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "tokenizer.ggml.pre is missing", model->offset);
    }
    if (pre->type != DENDP_GGUF_STRING) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "tokenizer.ggml.pre is no string", pre->offset);
    }
    for (i = 0; i < sizeof dendp_pres / sizeof dendp_pres[0]; i++) {
        if (strcmp(pre->str, dendp_pres[i].name) == 0) {
            t->split = dendp_pres[i].split;
            t->whole_words = dendp_pres[i].whole_words;
            t->add_bos = dendp_pres[i].add_bos;
            *found = true;
            return DEND_OK;
        }
    }
    return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "tokenizer.ggml.pre names a split that is not supported",
                      pre->offset);
}

/* The three arrays and their lengths. */
static dend_status dendp_tok_load_arrays(dendp_tokenizer *t, const dendp_gguf *g, dendp_tok_source *src,
                                         dend_error *err) {
    const dendp_gguf_kv *model = dendp_gguf_find(g, "tokenizer.ggml.model");
    const dendp_gguf_kv *types = dendp_gguf_find(g, "tokenizer.ggml.token_type");
    uint64_t i;
    src->tokens = dendp_gguf_find(g, "tokenizer.ggml.tokens");
    src->merges = dendp_gguf_find(g, "tokenizer.ggml.merges");
    src->types = types;
    src->n_specials = DENDP_N_KINS;
    if (!src->tokens) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "tokenizer.ggml.tokens is missing", model->offset);
    }
    if (!src->merges) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "tokenizer.ggml.merges is missing", model->offset);
    }
    if (src->tokens->type != DENDP_GGUF_ARRAY || src->tokens->elem_type != DENDP_GGUF_STRING) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "tokenizer.ggml.tokens is no array of strings",
                          src->tokens->offset);
    }
    if (src->merges->type != DENDP_GGUF_ARRAY || src->merges->elem_type != DENDP_GGUF_STRING) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "tokenizer.ggml.merges is no array of strings",
                          src->merges->offset);
    }
    if (src->tokens->count == 0) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "tokenizer.ggml.tokens is empty", src->tokens->offset);
    }
    if (src->tokens->count > DENDP_TOK_MAX_VOCAB) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "more than 2^24 tokens", src->tokens->offset);
    }
    if (src->tokens->elems_bytes > UINT32_MAX || src->merges->count > (1u << 30)) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "vocabulary of 4 GiB or more", src->tokens->offset);
    }
    t->n_vocab = (uint32_t)src->tokens->count;
    if (types) {
        if (types->type != DENDP_GGUF_ARRAY ||
            (types->elem_type != DENDP_GGUF_I32 && types->elem_type != DENDP_GGUF_U32)) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT,
                              "tokenizer.ggml.token_type is no array of 32-bit integers", types->offset);
        }
        if (types->count != t->n_vocab) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "tokenizer.ggml.token_type is not as long as the tokens",
                              types->offset);
        }
        for (i = 0; i < types->count; i++) {
            uint32_t type = dendp_load32(types->elems + 4 * i);
            if (type > 6) {
                return DENDP_FAIL(err, DEND_ERR_FORMAT, "unknown token type",
                                  dendp_tok_elems_where(types) + 4 * i);
            }
            if (type >= 2 && type <= 4) src->n_specials++;
        }
    }
    return DEND_OK;
}

/* Smallest power of two that is at least 2n + 2, so that a search always meets an empty slot. */
static uint64_t dendp_tok_capacity(uint64_t n) {
    uint64_t c = 2;
    while (c < 2 * n + 2) c *= 2;
    return c;
}

/* Measures, or places, all arrays. */
static void dendp_tok_layout(dendp_tokenizer *t, const dendp_tok_source *src, dendp_carver *c) {
    uint64_t n_table = dendp_tok_capacity(t->n_vocab), n_merges = dendp_tok_capacity(src->merges->count);
    t->table_mask = (uint32_t)(n_table - 1);
    t->merge_mask = (uint32_t)(n_merges - 1);
    for (t->merge_shift = 64; n_merges > (uint64_t)1 << (64 - t->merge_shift);) t->merge_shift--;
    t->merges = (dendp_merge *)dendp_carve(c, n_merges, sizeof *t->merges);
    t->table = (uint32_t *)dendp_carve(c, n_table, sizeof *t->table);
    t->offsets = (uint32_t *)dendp_carve(c, (uint64_t)t->n_vocab + 1, sizeof *t->offsets);
    t->specials = (uint32_t *)dendp_carve(c, src->n_specials, sizeof *t->specials);
    t->flags = (unsigned char *)dendp_carve(c, t->n_vocab, 1);
    /* 8 bytes of length in the file become the 0 behind each token */
    t->bytes = (char *)dendp_carve(c, src->tokens->elems_bytes - 7 * (uint64_t)t->n_vocab, 1);
}

/* Writes the bytes of a text in the alphabet to out; false when a character is none of it. */
static bool dendp_tok_decode(const char *s, size_t n, char *out) {
    size_t at, step;
    for (at = 0; at < n; at += step) {
        int b = dendp_alphabet_next(s + at, n - at, &step);
        if (b < 0) return false;
        *out++ = (char)b;
    }
    return true;
}

/* Tokens: bytes, flags, and the table of texts. */
static dend_status dendp_tok_load_tokens(dendp_tokenizer *t, const dendp_tok_source *src, dend_error *err) {
    uint64_t cursor = 0, where = 0, len;
    uint32_t id, at = 0;
    const char *s;
    for (id = 0; dendp_gguf_next_string(src->tokens, &cursor, &s, &len); id++) {
        uint32_t type = src->types ? dendp_load32(src->types->elems + 4 * (uint64_t)id) : 1;
        unsigned char flags = 0;
        size_t n = (size_t)len, i;
        t->offsets[id] = at;
        switch (type) {
        case 1: /* normal */
            if (n > 0 && dendp_tok_decode(s, n, t->bytes + at)) flags = DENDP_TOK_PLAIN;
            break;
        case 2: /* unknown */
        case 3: /* control */
            flags = DENDP_TOK_SILENT | DENDP_TOK_CONTROL;
            break;
        case 4: /* user-defined: always cut out of the text, so that no merge ever sees one */
            flags = DENDP_TOK_USER;
            break;
        case 6: /* byte: the other kinds of tokenizers have them; here it is a text like <0x0A> */
            break;
        default: /* unused, undefined */
            flags = DENDP_TOK_SILENT;
            break;
        }
        if (flags & DENDP_TOK_PLAIN) {
            for (i = 0; i < n; at++) {
                size_t step;
                (void)dendp_alphabet_next(s + i, n - i, &step);
                i += step;
            }
        } else {
            memcpy(t->bytes + at, s, n);
            at += (uint32_t)n;
        }
        t->bytes[at++] = 0;
        t->offsets[id + 1] = at;
        t->flags[id] = flags;
        if (n > 0) {
            uint32_t slot = dendp_tok_slot(t, s, n, s, 0);
            if (t->table[slot] != DENDP_TOK_NONE) {
                return DENDP_FAIL(err, DEND_ERR_FORMAT, "two tokens have one text",
                                  dendp_tok_elems_where(src->tokens) + where);
            }
            t->table[slot] = id;
        }
        where = cursor;
    }
    return DEND_OK;
}

/* The tokens of the 256 bytes. */
static void dendp_tok_load_bytes(dendp_tokenizer *t) {
    uint32_t b;
    for (b = 0; b < 256; b++) {
        unsigned char byte = (unsigned char)b;
        uint32_t id = dendp_tok_word(t, &byte, 1);
        t->byte_ids[b] = id;
        if (id != DENDP_TOK_NONE) t->flags[id] |= DENDP_TOK_MADE;
    }
}

/* Merges: "left right", the earlier the lower the rank; the first of equal ones counts. */
static dend_status dendp_tok_load_merges(dendp_tokenizer *t, const dendp_tok_source *src, dend_error *err) {
    uint64_t cursor = 0, where = dendp_tok_elems_where(src->merges), len;
    uint32_t rank;
    const char *s;
    for (rank = 0; dendp_gguf_next_string(src->merges, &cursor, &s, &len); rank++) {
        size_t n = (size_t)len, n_left = 1, n_right; /* a space at 0 would belong to the left half */
        uint32_t left, right, made;
        while (n_left < n && s[n_left] != ' ') n_left++;
        if (n_left + 1 >= n) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "merge is not two texts with a space between", where);
        }
        n_right = n - n_left - 1;
        left = dendp_tok_find(t, s, n_left);
        right = dendp_tok_find(t, s + n_left + 1, n_right);
        made = t->table[dendp_tok_slot(t, s, n_left, s + n_left + 1, n_right)];
        if (left == DENDP_TOK_NONE || right == DENDP_TOK_NONE || made == DENDP_TOK_NONE) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "merge of texts that are no tokens", where);
        }
        if (t->flags[left] & t->flags[right] & t->flags[made] & DENDP_TOK_PLAIN) {
            dendp_merge *m = dendp_tok_merge(t, left, right);
            if (m->rank == DENDP_TOK_NONE) {
                m->left = left;
                m->right = right;
                m->rank = rank;
                m->made = made;
                t->flags[made] |= DENDP_TOK_MADE;
            }
        }
        where = dendp_tok_elems_where(src->merges) + cursor;
    }
    return DEND_OK;
}

/* A token id of the metadata; -1 where it is absent, or says so itself. */
static dend_status dendp_tok_load_id(const dendp_tokenizer *t, const dendp_gguf *g, const char *key,
                                     int32_t *out, dend_error *err) {
    const dendp_gguf_kv *kv = dendp_gguf_find(g, key);
    *out = -1;
    if (!kv) return DEND_OK;
    switch (kv->type) {
    case DENDP_GGUF_U8:
    case DENDP_GGUF_I8:
    case DENDP_GGUF_U16:
    case DENDP_GGUF_I16:
    case DENDP_GGUF_U32:
    case DENDP_GGUF_I32:
    case DENDP_GGUF_U64:
    case DENDP_GGUF_I64:
        break;
    default:
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "special token's id is no integer", kv->offset);
    }
    if (kv->bits == UINT64_MAX || (kv->type == DENDP_GGUF_U32 && kv->bits == UINT32_MAX)) return DEND_OK;
    if (kv->bits >= t->n_vocab) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "special token's id is outside the vocabulary", kv->offset);
    }
    *out = (int32_t)kv->bits;
    return DEND_OK;
}

/* bos, eos, eot, what else ends a generation, and whether bos is added. */
static dend_status dendp_tok_load_ids(dendp_tokenizer *t, const dendp_gguf *g, dend_error *err) {
    static const char *const ends[] = {
        "tokenizer.ggml.eos_token_id",     "tokenizer.ggml.eot_token_id",
        "tokenizer.ggml.eom_token_id",     "tokenizer.ggml.fim_pad_token_id",
        "tokenizer.ggml.fim_rep_token_id", "tokenizer.ggml.fim_sep_token_id",
    };
    const dendp_gguf_kv *kv = dendp_gguf_find(g, "tokenizer.ggml.add_bos_token");
    uint32_t i;
    dend_status status = dendp_tok_load_id(t, g, "tokenizer.ggml.bos_token_id", &t->bos, err);
    for (i = 0; i < sizeof ends / sizeof ends[0] && status == DEND_OK; i++) {
        int32_t id;
        status = dendp_tok_load_id(t, g, ends[i], &id, err);
        if (status == DEND_OK && id >= 0) t->flags[id] |= DENDP_TOK_END;
        if (i == 0) t->eos = id;
        if (i == 1) t->eot = id;
    }
    if (status != DEND_OK) return status;
    if (kv) {
        if (kv->type != DENDP_GGUF_BOOL) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "tokenizer.ggml.add_bos_token is no bool", kv->offset);
        }
        t->add_bos = kv->bits != 0;
        if (t->add_bos && t->bos < 0) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "tokenizer.ggml.add_bos_token without bos_token_id",
                              kv->offset);
        }
    }
    t->add_bos = t->add_bos && t->bos >= 0;
    for (i = 0; i < DENDP_N_KINS; i++) {
        uint32_t id = dendp_tok_find(t, dendp_kins[i].text, strlen(dendp_kins[i].text));
        if (id == DENDP_TOK_NONE) continue;
        if (t->flags[id] & DENDP_TOK_MADE) { /* a word as well (</s> of Qwen2): it keeps its bytes */
            t->flags[id] |= DENDP_TOK_CONTROL;
        } else {
            t->flags[id] = DENDP_TOK_SILENT | DENDP_TOK_CONTROL | (t->flags[id] & DENDP_TOK_END);
        }
        if (dendp_kins[i].what & DENDP_KIN_END) t->flags[id] |= DENDP_TOK_END;
        if (dendp_kins[i].what == DENDP_KIN_EOT && t->eot < 0) t->eot = (int32_t)id;
    }
    return DEND_OK;
}

static int dendp_tok_compare(const void *ctx, uint32_t a, uint32_t b) {
    const dendp_tokenizer *t = (const dendp_tokenizer *)ctx;
    size_t na, nb;
    const char *sa = dendp_tok_at(t, a, &na), *sb = dendp_tok_at(t, b, &nb);
    return dendp_compare_bytes(sa, na, sb, nb);
}

/* The sorted list of special tokens, and the sets of their first bytes. */
static void dendp_tok_load_specials(dendp_tokenizer *t) {
    uint32_t id;
    for (id = 0; id < t->n_vocab; id++) {
        size_t n;
        const char *s = dendp_tok_at(t, id, &n);
        uint32_t bit = 1u << ((unsigned char)s[0] & 31u), word = (unsigned char)s[0] >> 5;
        if (n == 0 || !(t->flags[id] & (DENDP_TOK_CONTROL | DENDP_TOK_USER))) continue;
        t->specials[t->n_specials++] = id;
        t->starts[1][word] |= bit;
        if (t->flags[id] & DENDP_TOK_USER) t->starts[0][word] |= bit;
    }
    dendp_heap_sort(t->specials, t->n_specials, dendp_tok_compare, t);
}

static void dendp_tokenizer_free(dendp_tokenizer *t) {
    dendp_free(&t->allocator, t->block, t->block_bytes);
    memset(t, 0, sizeof *t);
}

/* Loads and validates a vocabulary; nothing of g is needed afterwards. A file
 * without one gives a tokenizer with n_vocab 0, of which encode says UNSUPPORTED.
 * Params: the allocator is resolved, and is used by encode as well.
 * Returns: OK; FORMAT, UNSUPPORTED, MEMORY, and then *t holds nothing. */
static dend_status dendp_tokenizer_load(dendp_tokenizer *t, const dendp_gguf *g, const dend_allocator *a,
                                        dend_error *err) {
    dendp_tok_source src;
    dendp_carver carver;
    bool found;
    dend_status status;
    memset(t, 0, sizeof *t);
    memset(&carver, 0, sizeof carver);
    t->allocator = *a;
    t->bos = t->eos = t->eot = -1;
    status = dendp_tok_load_names(t, g, &found, err);
    if (status == DEND_OK && !found) return DEND_OK;
    if (status == DEND_OK) status = dendp_tok_load_arrays(t, g, &src, err);
    if (status == DEND_OK) {
        dendp_tok_layout(t, &src, &carver);
        t->block_bytes = carver.used;
        t->block = carver.overflow ? NULL : dendp_alloc(a, carver.used);
        if (!t->block) status = DENDP_FAIL(err, DEND_ERR_MEMORY, "no memory for the vocabulary", 0);
    }
    if (status == DEND_OK) {
        carver.base = (unsigned char *)t->block;
        carver.used = 0;
        dendp_tok_layout(t, &src, &carver);
        memset(t->table, 0xff, ((size_t)t->table_mask + 1) * sizeof *t->table);
        memset(t->merges, 0xff, ((size_t)t->merge_mask + 1) * sizeof *t->merges);
        status = dendp_tok_load_tokens(t, &src, err);
    }
    if (status == DEND_OK) {
        dendp_tok_load_bytes(t);
        status = dendp_tok_load_merges(t, &src, err);
    }
    if (status == DEND_OK) status = dendp_tok_load_ids(t, g, err);
    if (status == DEND_OK) {
        dendp_tok_load_specials(t);
    } else {
        dendp_tokenizer_free(t);
    }
    return status;
}

/* -- encoding ----------------------------------------------------------------------- */

enum {
    DENDP_TOK_SHORT = 24,  /* bytes of a word that is merged by scanning */
    DENDP_TOK_MEDIUM = 256 /* bytes of a word whose heap lies on the stack */
};

/* One call of encode: where tokens go, and memory for long words. */
typedef struct dendp_tok_run {
    const dendp_tokenizer *t;
    int32_t *out;
    size_t cap, n; /* n counts on when out is full */
    void *scratch;
    uint64_t scratch_bytes;
} dendp_tok_run;

static void dendp_tok_emit(dendp_tok_run *run, uint32_t id) {
    if (id == DENDP_TOK_NONE) return; /* a byte that has no token */
    if (run->n < run->cap) run->out[run->n] = (int32_t)id;
    run->n++;
}

/* A word of at most SHORT bytes: ids[n], and ranks[i] of the pair (i, i + 1). O(n^2), in two cache lines. */
static void dendp_tok_merge_short(dendp_tok_run *run, const unsigned char *s, uint32_t n) {
    const dendp_tokenizer *t = run->t;
    uint32_t ids[DENDP_TOK_SHORT + 1], ranks[DENDP_TOK_SHORT + 1], made[DENDP_TOK_SHORT + 1], i;
    for (i = 0; i < n; i++) ids[i] = t->byte_ids[s[i]];
    for (i = 0; i + 1 < n; i++) {
        const dendp_merge *m = dendp_tok_merge(t, ids[i], ids[i + 1]);
        ranks[i] = m->rank;
        made[i] = m->made;
    }
    while (n > 1) {
        uint32_t best = 0, at;
        for (i = 1; i + 1 < n; i++) best = ranks[i] < ranks[best] ? i : best;
        if (ranks[best] == DENDP_TOK_NONE) break;
        ids[best] = made[best];
        n--;
        for (i = best + 1; i < n; i++) {
            ids[i] = ids[i + 1];
            ranks[i - 1] = ranks[i];
            made[i - 1] = made[i];
        }
        for (at = best > 0 ? best - 1 : 0; at <= best && at + 1 < n; at++) {
            const dendp_merge *m = dendp_tok_merge(t, ids[at], ids[at + 1]);
            ranks[at] = m->rank;
            made[at] = m->made;
        }
    }
    for (i = 0; i < n; i++) dendp_tok_emit(run, ids[i]);
}

/* A heap with four children a node, the least key on top: rank, then place. */
static void dendp_tok_push(uint64_t *heap, size_t *n, uint64_t key) {
    size_t i = (*n)++;
    while (i > 0 && key < heap[(i - 1) / 4]) {
        heap[i] = heap[(i - 1) / 4];
        i = (i - 1) / 4;
    }
    heap[i] = key;
}

static uint64_t dendp_tok_pop(uint64_t *heap, size_t *n) {
    uint64_t top = heap[0], key = heap[--*n];
    size_t i = 0, child;
    while ((child = 4 * i + 1) < *n) {
        size_t least = child, end = child + 4 < *n ? child + 4 : *n;
        while (++child < end) least = heap[child] < heap[least] ? child : least;
        if (key <= heap[least]) break;
        heap[i] = heap[least];
        i = least;
    }
    heap[i] = key;
    return top;
}

/* A word of any length. Symbols are a linked list over its bytes. Each known
 * pair is pushed once when it comes to be; a pair that is gone when its key
 * comes up is recognised by its rank, which no other pair has (and a dead
 * symbol is in no pair). There are at most n - 1 keys at first, and two more
 * for each of at most n - 1 merges, which took one out: never more than 2n. */
static void dendp_tok_merge_list(dendp_tok_run *run, const unsigned char *s, uint32_t n, uint64_t *heap,
                                 uint32_t *ids, uint32_t *next, uint32_t *prev) {
    const dendp_tokenizer *t = run->t;
    size_t n_heap = 0;
    uint32_t i;
    for (i = 0; i < n; i++) {
        ids[i] = t->byte_ids[s[i]];
        next[i] = i + 1; /* n: the end */
        prev[i] = i - 1; /* wraps for the first, which nobody asks */
    }
    for (i = 0; i + 1 < n; i++) {
        uint32_t rank = dendp_tok_merge(t, ids[i], ids[i + 1])->rank;
        if (rank != DENDP_TOK_NONE) dendp_tok_push(heap, &n_heap, (uint64_t)rank << 32 | i);
    }
    while (n_heap > 0) {
        uint64_t key = dendp_tok_pop(heap, &n_heap);
        uint32_t at = (uint32_t)key, right = next[at], rank;
        const dendp_merge *m;
        if (right == n) continue;
        m = dendp_tok_merge(t, ids[at], ids[right]);
        if (m->rank != (uint32_t)(key >> 32)) continue;
        ids[at] = m->made;
        ids[right] = DENDP_TOK_DEAD;
        next[at] = next[right];
        if (next[at] < n) {
            prev[next[at]] = at;
            rank = dendp_tok_merge(t, ids[at], ids[next[at]])->rank;
            if (rank != DENDP_TOK_NONE) dendp_tok_push(heap, &n_heap, (uint64_t)rank << 32 | at);
        }
        if (at > 0) {
            rank = dendp_tok_merge(t, ids[prev[at]], ids[at])->rank;
            if (rank != DENDP_TOK_NONE) dendp_tok_push(heap, &n_heap, (uint64_t)rank << 32 | prev[at]);
        }
    }
    for (i = 0; i < n; i = next[i]) dendp_tok_emit(run, ids[i]);
}

/* The tokens of one word. */
static dend_status dendp_tok_encode_word(dendp_tok_run *run, const unsigned char *s, size_t n) {
    if (n == 1) {
        dendp_tok_emit(run, run->t->byte_ids[s[0]]);
        return DEND_OK;
    }
    if (run->t->whole_words) {
        uint32_t id = dendp_tok_word(run->t, s, n);
        if (id != DENDP_TOK_NONE) {
            dendp_tok_emit(run, id);
            return DEND_OK;
        }
    }
    if (n <= DENDP_TOK_SHORT) {
        dendp_tok_merge_short(run, s, (uint32_t)n);
    } else if (n <= DENDP_TOK_MEDIUM) {
        uint64_t heap[2 * DENDP_TOK_MEDIUM];
        uint32_t ids[DENDP_TOK_MEDIUM], next[DENDP_TOK_MEDIUM], prev[DENDP_TOK_MEDIUM];
        dendp_tok_merge_list(run, s, (uint32_t)n, heap, ids, next, prev);
    } else {
        uint64_t need = (uint64_t)n * (2 * 8 + 3 * 4);
        uint32_t *ids;
        if (n >= UINT32_MAX) return DEND_ERR_MEMORY;
        if (run->scratch_bytes < need) { /* at least twice what it was: all words together cost O(longest) */
            dendp_free(&run->t->allocator, run->scratch, run->scratch_bytes);
            run->scratch_bytes = need < 2 * run->scratch_bytes ? 2 * run->scratch_bytes : need;
            run->scratch = dendp_alloc(&run->t->allocator, run->scratch_bytes);
            if (!run->scratch) return DEND_ERR_MEMORY;
        }
        ids = (uint32_t *)((uint64_t *)run->scratch + 2 * n);
        dendp_tok_merge_list(run, s, (uint32_t)n, (uint64_t *)run->scratch, ids, ids + n, ids + 2 * n);
    }
    return DEND_OK;
}

/* The longest special token with which s[n] begins, or NONE. [lo, hi) of the
 * sorted list are those that begin with the k bytes seen so far. */
static uint32_t dendp_tok_special(const dendp_tokenizer *t, const unsigned char *s, size_t n,
                                  uint32_t which) {
    uint32_t lo = 0, hi = t->n_specials, found = DENDP_TOK_NONE;
    size_t k;
    for (k = 0; lo < hi; k++) {
        uint32_t first = lo, last = hi, end = hi;
        if (t->offsets[t->specials[lo] + 1] - t->offsets[t->specials[lo]] - 1 == k) {
            if (t->flags[t->specials[lo]] & which) found = t->specials[lo];
            first = ++lo; /* texts are unique: the others are longer */
        }
        if (k == n) break;
        while (first < last) { /* the first whose byte k is s[k] or more */
            uint32_t mid = first + (last - first) / 2;
            if ((unsigned char)t->bytes[t->offsets[t->specials[mid]] + k] < s[k]) {
                first = mid + 1;
            } else {
                last = mid;
            }
        }
        lo = first;
        last = end;
        while (first < last) { /* the first whose byte k is more */
            uint32_t mid = first + (last - first) / 2;
            if ((unsigned char)t->bytes[t->offsets[t->specials[mid]] + k] <= s[k]) {
                first = mid + 1;
            } else {
                last = mid;
            }
        }
        hi = first;
    }
    return found;
}

/* Splits text[n_bytes] into tokens: dend_tokenize says how. Ordinary words use
 * the stack; the allocator gives 28 bytes for each byte of the longest word,
 * where that is over 256. It must be thread-safe if calls are to overlap.
 * Returns: OK; BUFFER; MEMORY; UNSUPPORTED without a vocabulary; ARGUMENT. */
static dend_status dendp_tokenizer_encode(const dendp_tokenizer *t, const char *text, size_t n_bytes,
                                          uint32_t flags, int32_t *out, size_t cap, size_t *n_out) {
    const unsigned char *s = (const unsigned char *)text;
    uint32_t all = flags & DEND_TOKENIZE_SPECIAL ? 1 : 0;
    uint32_t which = all ? DENDP_TOK_USER | DENDP_TOK_CONTROL : DENDP_TOK_USER;
    const uint32_t *starts = t->starts[all];
    dendp_tok_run run;
    size_t at = 0;
    dend_status status = DEND_OK;
    if (!n_out || (!text && n_bytes) || (!out && cap) ||
        (flags & ~(uint32_t)(DEND_TOKENIZE_SPECIAL | DEND_TOKENIZE_ADD_BOS))) {
        return DEND_ERR_ARGUMENT;
    }
    if (t->n_vocab == 0) return DEND_ERR_UNSUPPORTED;
    memset(&run, 0, sizeof run);
    run.t = t;
    run.out = out;
    run.cap = cap;
    if ((flags & DEND_TOKENIZE_ADD_BOS) && t->add_bos) dendp_tok_emit(&run, (uint32_t)t->bos);
    while (at < n_bytes && status == DEND_OK) {
        uint32_t special = DENDP_TOK_NONE;
        size_t end = at;
        for (; end < n_bytes; end++) {
            if ((starts[s[end] >> 5] >> (s[end] & 31u) & 1u) == 0) continue;
            special = dendp_tok_special(t, s + end, n_bytes - end, which);
            if (special != DENDP_TOK_NONE) break;
        }
        while (at < end && status == DEND_OK) {
            size_t n = dendp_split(t->split, s + at, end - at);
            status = dendp_tok_encode_word(&run, s + at, n);
            at += n;
        }
        if (special != DENDP_TOK_NONE) {
            size_t n;
            (void)dendp_tok_at(t, special, &n);
            dendp_tok_emit(&run, special);
            at += n;
        }
    }
    dendp_free(&t->allocator, run.scratch, run.scratch_bytes);
    if (status != DEND_OK) return status;
    *n_out = run.n;
    return run.n > cap ? DEND_ERR_BUFFER : DEND_OK;
}

/* -- decoding ------------------------------------------------------------------------ */

/* The text of a token, that of control tokens included, and a 0 behind it; NULL for ids out of range. */
static const char *dendp_tokenizer_text(const dendp_tokenizer *t, int32_t id, size_t *n) {
    size_t len = 0;
    const char *s = NULL;
    if (id >= 0 && (uint32_t)id < t->n_vocab) s = dendp_tok_at(t, (uint32_t)id, &len);
    if (n) *n = len;
    return s;
}

/* As dendp_tokenizer_text, but silent tokens have no bytes. */
static const char *dendp_tokenizer_bytes(const dendp_tokenizer *t, int32_t id, size_t *n) {
    size_t len;
    const char *s = dendp_tokenizer_text(t, id, &len);
    if (s && (t->flags[id] & DENDP_TOK_SILENT)) {
        s += len; /* the 0 behind it */
        len = 0;
    }
    if (n) *n = len;
    return s;
}

static bool dendp_tokenizer_is_end(const dendp_tokenizer *t, int32_t id) {
    return id >= 0 && (uint32_t)id < t->n_vocab && (t->flags[id] & DENDP_TOK_END) != 0;
}
