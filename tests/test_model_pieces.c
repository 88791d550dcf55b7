/* Tests of SentencePiece vocabularies (02.11 to 02.14) and of tokenizer.json
 * (02.15): goldens of llama.cpp, sentencepiece and tokenizers; round trips; an
 * oracle for the merges; hostile files. Uses helpers of test_model_tokenizer.c. */

static void pcs_open_json(dendp_tokenizer *t, const char *path) {
    dend_allocator a;
    dend_error err;
    dendp_tok_json_files files;
    size_t size;
    unsigned char *text = test_read_file(path, &size);
    assert_non_null(text);
    memset(&a, 0, sizeof a);
    memset(&files, 0, sizeof files);
    ASSERT_STATUS(DEND_OK, dendp_allocator_resolve(&a, NULL));
    files.tokenizer = (const char *)text;
    files.n_tokenizer = size;
    if (dendp_tokenizer_load_json(t, &files, &a, &err) != DEND_OK) {
        fail_msg("%s: %s at %lu", path, err.msg, (unsigned long)err.where);
    }
    free(text);
}

/* s[n] with its U+2581 as spaces, which is what pieces take them for. Returns the length. */
static size_t pcs_spaces(const unsigned char *s, size_t n, unsigned char *out) {
    size_t i, k = 0;
    for (i = 0; i < n; k++) {
        bool stand_in = n - i >= 3 && memcmp(s + i, "\342\226\201", 3) == 0;
        out[k] = stand_in ? ' ' : s[i];
        i += stand_in ? 3 : 1;
    }
    return k;
}

/* The tokens of a text give the text back, but for the tokens that are unknown. */
static void pcs_round_trip(const dendp_tokenizer *t, const int32_t *tokens, size_t n, uint32_t flags,
                           const unsigned char *text, size_t n_text, uint32_t i) {
    static char out[1 << 17];
    static unsigned char want[1 << 17];
    size_t n_out, n_want = pcs_spaces(text, n_text, want), k;
    if (t->spelling == DENDP_SPELL_BYTES) {
        memcpy(want, text, n_text);
        n_want = n_text;
    }
    for (k = 0; k < n; k++) {
        if (tokens[k] == t->unk && t->byte_ids[0xff] == DENDP_TOK_NONE) return;
    }
    if (t->prefix >= DENDP_PREFIX_EACH_WORD && want[0] == ' ')
        return; /* a space of the text's own is taken away too */
    ASSERT_STATUS(DEND_OK, dendp_tokenizer_decode(t, tokens, n, flags & 1u, out, sizeof out, &n_out));
    if (n_out != n_want || memcmp(out, want, n_out) != 0) {
        for (k = 0; k < n_want; k++) { /* bytes without a token */
            if (t->spelling == DENDP_SPELL_BYTES && t->byte_ids[want[k]] == DENDP_TOK_NONE) return;
        }
        fail_msg("string %u, flags %u does not come back: %.*s", i, flags, (int)(n_out < 60 ? n_out : 60),
                 out);
    }
}

/* Every string, token for token, plain and with special tokens; those without a reference only come back. */
static void pcs_check(dendp_tokenizer *t, const char *golden, uint32_t most_absent) {
    static tok_strings all;
    size_t size, at = 8, n;
    uint32_t i, pass, absent = 0, wrong = 0;
    unsigned char *file = test_read_file(golden, &size);
    assert_non_null(file);
    tok_strings_open(&all);
    assert_memory_equal(file, "DTG1", 4);
    assert_int_equal(dendp_load32(file + 4), all.n);
    for (i = 0; i < all.n; i++) {
        const unsigned char *want = NULL;
        uint32_t n_want = 0;
        for (pass = 0; pass < 2; pass++) {
            const int32_t *got;
            uint32_t n_next = 0xffffffffu;
            n = tok_encode(t, all.s[i], all.len[i], pass, &got);
            pcs_round_trip(t, got, n, pass, all.s[i], all.len[i], i);
            if (pass == 0 || want) {
                n_next = dendp_load32(file + at);
                at += 4;
            }
            if (n_next != 0xffffffffu) {
                want = file + at;
                n_want = n_next;
                at += 4 * (size_t)n_want;
            }
            if (want && (n != n_want || memcmp(got, want, 4 * n) != 0)) {
                print_error("%s, string %u, flags %u: %lu tokens, expected %u\n", golden, i, pass,
                            (unsigned long)n, n_want);
                wrong++;
            }
        }
        absent += want == NULL;
    }
    assert_int_equal(at, size);
    assert_int_equal(wrong, 0);
    assert_in_range(absent, 1, most_absent);
    free(all.file);
    free(file);
    dendp_tokenizer_free(t);
}

static void pcs_golden_gguf(void **state) {
    static const char *const names[3] = {"prefix", "plain", "unknown"};
    dendp_tokenizer t;
    uint32_t i;
    (void)state;
    for (i = 0; i < 3; i++) {
        char vocab[64], golden[64];
        snprintf(vocab, sizeof vocab, "tests/golden/vocab_sp_%s.gguf", names[i]);
        snprintf(golden, sizeof golden, "tests/golden/tok_sp_%s.bin", names[i]);
        tok_open(&t, vocab);
        assert_int_equal(t.prefix, i == 1 ? DENDP_PREFIX_NONE : DENDP_PREFIX_EACH);
        assert_int_equal(t.add_bos, i != 1);
        assert_int_equal(t.byte_ids[0xff] == DENDP_TOK_NONE, i == 2);
        pcs_check(&t, golden, 150);
    }
}

static void pcs_golden_gemma(void **state) {
    dendp_tokenizer t;
    (void)state;
    test_need_file("models/gemma-3-270m-Q4_K_M.gguf", "make models");
    tok_open(&t, "models/gemma-3-270m-Q4_K_M.gguf");
    assert_int_equal(t.bos, 2);
    assert_int_equal(t.eos, 1);
    pcs_check(&t, "tests/golden/tok_real_gemma.bin", 150);
}

static void pcs_golden_json(void **state) {
    static const char *const names[6] = {"smollm", "qwen2", "llama3", "llama2", "gemma", "mistral"};
    static const dendp_split_kind splits[3] = {DENDP_SPLIT_SMOLLM, DENDP_SPLIT_QWEN2, DENDP_SPLIT_LLAMA3};
    static const dendp_tok_prefix prefixes[3] = {DENDP_PREFIX_EACH, DENDP_PREFIX_NONE,
                                                 DENDP_PREFIX_FIRST_WORD};
    dendp_tokenizer t;
    uint32_t i;
    (void)state;
    for (i = 0; i < 6; i++) {
        char vocab[64], golden[64];
        snprintf(vocab, sizeof vocab, "tests/golden/tokjson_%s.json", names[i]);
        snprintf(golden, sizeof golden, "tests/golden/tok_json_%s.bin", names[i]);
        pcs_open_json(&t, vocab);
        assert_int_equal(t.spelling, i < 3 ? DENDP_SPELL_BYTES : DENDP_SPELL_PIECES);
        assert_int_equal(i < 3 ? (int)t.split : (int)t.prefix, i < 3 ? (int)splits[i] : (int)prefixes[i - 3]);
        assert_int_equal(t.add_bos, i == 2 || i == 3 || i == 5);
        assert_int_equal(t.whole_words, i == 2);
        pcs_check(&t, golden, 170);
    }
}

/* -- merges -------------------------------------------------------------------------- */

/* What SentencePiece does, said plainly: of all neighbours whose joined text is
 * a plain token, the one of the highest score, of equals the leftmost, is
 * joined; everything is looked at again each time. Writes the bytes of each
 * symbol's end to ends, returns their number. */
static uint32_t pcs_merge_slowly(const dendp_tokenizer *t, const float *scores, const unsigned char *s,
                                 uint32_t n, uint32_t *ends) {
    uint32_t count = 0, at, i;
    for (at = 0; at < n; ends[count++] = at) {
        size_t len;
        (void)dendp_uni_next(s + at, n - at, &len);
        at += (uint32_t)len;
    }
    for (;;) {
        uint32_t best = 0xffffffffu, id, begin = 0;
        float score = 0.0f;
        for (i = 0; i + 1 < count; i++) {
            uint32_t len = ends[i + 1] - begin;
            for (id = 0; id < t->n_vocab; id++) {
                size_t n_token;
                const char *bytes = dendp_tok_at(t, id, &n_token);
                if ((t->flags[id] & DENDP_TOK_PLAIN) && n_token == len &&
                    memcmp(bytes, s + begin, len) == 0 && (best == 0xffffffffu || scores[id] > score)) {
                    best = i;
                    score = scores[id];
                }
            }
            begin = ends[i];
        }
        if (best == 0xffffffffu) return count;
        count--;
        for (i = best; i < count; i++) ends[i] = ends[i + 1];
    }
}

/* Random words, short ones and such as need the list, over a vocabulary in which many scores are equal. */
static void pcs_merges(void **state) {
    static const char tokens[] =
        "a|b|c|ab|ba|aa|abc|aab|baa|aaaa|abab|\303\251|\303\251a|a\303\251|\342\226\201|\342\226\201a|"
        "a\342\226\201|\342\226\201\342\226\201|bcb";
    float scores[19];
    test_rng rng = {5};
    uint32_t round, i, k;
    (void)state;
    for (round = 0; round < 40; round++) {
        dendp_tokenizer t;
        dend_error err;
        tok_file f;
        tok_begin(&f);
        tok_key_string(&f, "tokenizer.ggml.model", "llama");
        tok_key_strings(&f, "tokenizer.ggml.tokens", tokens);
        tok_key(&f, "tokenizer.ggml.scores", DENDP_GGUF_ARRAY);
        tok_put_int(&f, DENDP_GGUF_F32, 4);
        tok_put_int(&f, 19, 8);
        for (i = 0; i < 19; i++) {
            scores[i] = round % 2 ? (float)test_below(&rng, 4) - 2.0f : test_float(&rng) * 100.0f;
            tok_put_int(&f, dendp_f32_bits(scores[i]), 4);
        }
        tok_key(&f, "tokenizer.ggml.add_space_prefix", DENDP_GGUF_BOOL);
        tok_put_int(&f, 0, 1);
        ASSERT_STATUS(DEND_OK, tok_load(&t, &f, NULL, &err));
        for (i = 0; i < 60; i++) {
            unsigned char s[400];
            uint32_t ends[400], n = 0, most = i % 10 == 0 ? 390 : i % 3 == 0 ? 60 : 20, want, at;
            const int32_t *got;
            size_t n_got;
            while (n < most) {
                static const char *const units[] = {"a", "b", "a", "c", "\303\251", " ", "\303", "x"};
                const char *u = units[test_below(&rng, i % 2 ? 8 : 4)];
                memcpy(s + n, u, strlen(u));
                n += (uint32_t)strlen(u);
            }
            n_got = tok_encode(&t, s, n, 0, &got);
            want = pcs_merge_slowly(&t, scores, s, n, ends);
            for (k = 0, at = 0; k < want; k++) {
                uint32_t id = dendp_tok_word(&t, s + at, ends[k] - at);
                if (id != DENDP_TOK_NONE) { /* others have no token at all here, and are left out */
                    if (n_got == 0 || (uint32_t)*got != id)
                        fail_msg("round %u, text %u: symbol %u", round, i, k);
                    got++;
                    n_got--;
                }
                at = ends[k];
            }
            assert_int_equal(n_got, 0);
        }
        dendp_tokenizer_free(&t);
    }
}

/* A megabyte of one character, and of other monotony, within seconds. */
static void pcs_long_words(void **state) {
    static const char *const units[] = {" ",    "a",        "\n",           "7",
                                        "ab",   "\303\251", "\344\275\240", "\377",
                                        " \n",  "the",      "\342\226\201", "\360\237\230\200",
                                        "<unk", "\t"};
    static char text[1 << 20];
    static int32_t out[(1 << 20) * 2];
    static char back[(1 << 20) + 8];
    static unsigned char want[1 << 20];
    uint32_t v, u;
    (void)state;
    for (v = 0; v < 2; v++) {
        dendp_tokenizer t;
        tok_open(&t, v ? "tests/golden/vocab_sp_plain.gguf" : "tests/golden/vocab_sp_prefix.gguf");
        for (u = 0; u < sizeof units / sizeof units[0]; u++) {
            size_t len = strlen(units[u]), i, n, n_back;
            uint64_t start = dendp_now_ns();
            for (i = 0; i + len <= sizeof text; i += len) memcpy(text + i, units[u], len);
            ASSERT_STATUS(DEND_OK,
                          dendp_tokenizer_encode(&t, text, i, 0, out, sizeof out / sizeof out[0], &n));
            assert_true(dendp_now_ns() - start < (uint64_t)3000000000 * TOK_SLOW);
            ASSERT_STATUS(DEND_OK, dendp_tokenizer_decode(&t, out, n, 0, back, sizeof back, &n_back));
            assert_int_equal(n_back, pcs_spaces((const unsigned char *)text, i, want));
            assert_memory_equal(back, want, n_back);
        }
        dendp_tokenizer_free(&t);
    }
}

/* -- rules ----------------------------------------------------------------------------- */

/* A vocabulary of pieces: all that matters here is by hand. Tokens: 0 <unk>, 1
 * <s>, 2 </s>, 3 the byte 0xe9, 4 "_", 5 "_a", 6 "a", 7 "b", 8 "ab", 9 "[U]"
 * user-defined, 10 "__", 11 unused. */
static void pcs_make(tok_file *f) {
    static const float scores[12] = {0, 0, 0, 0, -9, -1, -8, -7, -2, 0, -3, 0};
    uint32_t i;
    tok_begin(f);
    tok_key_string(f, "tokenizer.ggml.model", "llama");
    tok_key_strings(
        f, "tokenizer.ggml.tokens",
        "<unk>|<s>|</s>|<0xE9>|\342\226\201|\342\226\201a|a|b|ab|[U]|\342\226\201\342\226\201|unused");
    tok_key_types(f, "233611111415");
    tok_key(f, "tokenizer.ggml.scores", DENDP_GGUF_ARRAY);
    tok_put_int(f, DENDP_GGUF_F32, 4);
    tok_put_int(f, 12, 8);
    for (i = 0; i < 12; i++) tok_put_int(f, dendp_f32_bits(scores[i]), 4);
}

static void pcs_text(const dendp_tokenizer *t, const char *text, uint32_t flags, const char *ids,
                     const char *back) {
    const int32_t *got;
    char out[64];
    size_t n, n_out;
    tok_expect(t, text, flags, ids);
    n = tok_encode(t, text, strlen(text), flags, &got);
    ASSERT_STATUS(DEND_OK, dendp_tokenizer_decode(t, got, n, flags & 1u, out, sizeof out, &n_out));
    out[n_out] = 0;
    assert_string_equal(out, back);
}

static void pcs_rules(void **state) {
    dendp_tokenizer t;
    dend_error err;
    tok_file f;
    int32_t ids[3] = {5, 12, -1};
    char out[8];
    size_t n, n_out = 77;
    (void)state;
    pcs_make(&f);
    ASSERT_STATUS(DEND_OK, tok_load(&t, &f, NULL, &err));
    assert_int_equal(t.bos, 1); /* the numbers of SentencePiece, since the file names none */
    assert_int_equal(t.eos, 2);
    assert_int_equal(t.unk, 0);
    assert_true(t.add_bos && !t.add_eos);
    assert_true(dendp_tokenizer_is_end(&t, 2) && !dendp_tokenizer_is_end(&t, 1));
    pcs_text(&t, "", 0, "", "");
    pcs_text(&t, "a", 0, "5", "a");
    pcs_text(&t, "ab", 0, "5 7", "ab"); /* the space in front takes the a: -1 before -2 */
    pcs_text(&t, "aab", 0, "5 8", "aab");
    pcs_text(&t, " a", 0, "4 5", " a");      /* the pair of spaces scores less */
    pcs_text(&t, "  b", 0, "10 4 7", "  b"); /* of two pairs of spaces the left one */
    pcs_text(&t, "\342\226\201a", 0, "4 5", " a");
    pcs_text(&t, "a[U]a", 0, "5 9 5", "a[U]a"); /* a space behind the user-defined token too */
    pcs_text(&t, "a<s>a", 0, "5 0 6",
             "aa"); /* no control token: '<s>' is unknown, once; and then no space is added */
    pcs_text(&t, "a<s>a", DEND_TOKENIZE_SPECIAL, "5 1 5", "a<s>a");
    pcs_text(&t, "b\351b", 0, "4 7 3 7", "b\351b");
    pcs_text(&t, "b\303\251b", 0, "4 7 0 7", "bb"); /* not all of its bytes have tokens */
    pcs_text(&t, "xyz", 0, "4 0", "");
    pcs_text(&t, "unused<0xE9>", 0, "4 0",
             ""); /* neither an unused token nor a byte's is reached by its text */
    pcs_text(&t, "b", DEND_TOKENIZE_ADD_BOS | DEND_TOKENIZE_ADD_EOS, "1 4 7", "b");
    assert_string_equal(dendp_tokenizer_bytes(&t, 3, &n), "\351");
    assert_string_equal(dendp_tokenizer_bytes(&t, 5, &n), " a"); /* a token by itself keeps its space */
    assert_string_equal(dendp_tokenizer_bytes(&t, 0, &n), "");
    assert_string_equal(dendp_tokenizer_text(&t, 0, &n), "<unk>");
    /* decode: errors, and buffers */
    ASSERT_STATUS(DEND_ERR_TOKEN, dendp_tokenizer_decode(&t, ids, 2, 0, out, 8, &n_out));
    ASSERT_STATUS(DEND_ERR_TOKEN, dendp_tokenizer_decode(&t, ids + 2, 1, 0, out, 8, &n_out));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dendp_tokenizer_decode(&t, ids, 1, 2, out, 8, &n_out));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dendp_tokenizer_decode(&t, NULL, 1, 0, out, 8, &n_out));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dendp_tokenizer_decode(&t, ids, 1, 0, NULL, 8, &n_out));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dendp_tokenizer_decode(&t, ids, 1, 0, out, 8, NULL));
    assert_int_equal(n_out, 77);
    ids[1] = 8;
    memset(out, '-', sizeof out);
    ASSERT_STATUS(DEND_ERR_BUFFER, dendp_tokenizer_decode(&t, ids, 2, 0, out, 2, &n_out));
    assert_int_equal(n_out, 3);
    assert_memory_equal(out, "aa-", 3);
    ASSERT_STATUS(DEND_ERR_BUFFER, dendp_tokenizer_decode(&t, ids, 2, 0, NULL, 0, &n_out));
    dendp_tokenizer_free(&t);
    /* the keys */
    pcs_make(&f);
    tok_key(&f, "tokenizer.ggml.add_space_prefix", DENDP_GGUF_BOOL);
    tok_put_int(&f, 0, 1);
    tok_key(&f, "tokenizer.ggml.add_bos_token", DENDP_GGUF_BOOL);
    tok_put_int(&f, 0, 1);
    tok_key(&f, "tokenizer.ggml.add_eos_token", DENDP_GGUF_BOOL);
    tok_put_int(&f, 1, 1);
    ASSERT_STATUS(DEND_OK, tok_load(&t, &f, NULL, &err));
    pcs_text(&t, "ab a", DEND_TOKENIZE_ADD_BOS | DEND_TOKENIZE_ADD_EOS, "8 5 2", "ab a");
    dendp_tokenizer_free(&t);
    /* the rules of a tokenizer.json's Metaspace */
    pcs_make(&f);
    ASSERT_STATUS(DEND_OK, tok_load(&t, &f, NULL, &err));
    t.prefix = DENDP_PREFIX_FIRST_WORD;
    pcs_text(&t, "a<s>b", DEND_TOKENIZE_SPECIAL, "5 1 7", "a<s>b");
    pcs_text(&t, "<s>b", DEND_TOKENIZE_SPECIAL, "1 7", "<s>b");
    tok_expect(&t, " a", 0, "5");
    t.prefix = DENDP_PREFIX_EACH_WORD;
    pcs_text(&t, "a<s>b", DEND_TOKENIZE_SPECIAL, "5 1 4 7", "a<s>b");
    tok_expect(&t, "a<s> b\342\226\201b", DEND_TOKENIZE_SPECIAL, "5 1 4 7 4 7");
    dendp_tokenizer_free(&t);
}

/* A word that needs memory, and each allocation failing once. */
static void pcs_allocations(void **state) {
    static char text[3000];
    static int32_t out[4000];
    uint32_t i, first = 0;
    (void)state;
    for (i = 0; i < sizeof text; i++) text[i] = ' ';
    memcpy(text + 1000, "\342\226\201", 3);
    for (i = 1; i < 20; i++) {
        dendp_tokenizer t;
        test_heap heap;
        dend_allocator a = test_heap_allocator(&heap);
        dend_model_desc desc;
        dendp_gguf g;
        size_t n = 99;
        dend_status status;
        memset(&desc, 0, sizeof desc);
        desc.path = "tests/golden/vocab_sp_plain.gguf";
        ASSERT_STATUS(DEND_OK, dendp_allocator_resolve(&desc.allocator, NULL));
        ASSERT_STATUS(DEND_OK, dendp_gguf_open(&g, &desc, NULL));
        heap.fail_at = i;
        status = dendp_tokenizer_load(&t, &g, &a, NULL);
        dendp_gguf_close(&g);
        if (status == DEND_OK) {
            first = first ? first : i;
            status = dendp_tokenizer_encode(&t, text, sizeof text, 0, out, 4000, &n);
            if (status != DEND_OK) assert_int_equal(n, 99);
        }
        if (status != DEND_OK) ASSERT_STATUS(DEND_ERR_MEMORY, status);
        dendp_tokenizer_free(&t);
        assert_int_equal(heap.n_allocs, heap.n_frees + (status == DEND_OK ? 0u : 1u));
        if (status == DEND_OK) break;
    }
    assert_int_equal(first, 2);
    assert_int_equal(i, 4); /* the vocabulary, the word's bytes, its list */
}

static void pcs_refusals(void **state) {
    static const char *const kinds[] = {"t5", "bert", "rwkv", "plamo2", "gemma4", ""};
    tok_file f;
    uint32_t i;
    (void)state;
    for (i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        tok_begin(&f);
        tok_key_string(&f, TOK_E "model", kinds[i]);
        tok_refused(&f, DEND_ERR_UNSUPPORTED, f.value);
    }
    tok_begin(&f);
    tok_key_string(&f, TOK_E "model", "llama");
    i = (uint32_t)f.value;
    tok_refused(&f, DEND_ERR_FORMAT, i); /* no tokens */
    tok_key_strings(&f, TOK_E "tokens", "a|b");
    tok_refused(&f, DEND_ERR_FORMAT, i); /* no scores */
    tok_key(&f, TOK_E "scores", DENDP_GGUF_ARRAY);
    tok_put_int(&f, DENDP_GGUF_F64, 4);
    tok_put_int(&f, 2, 8);
    tok_put_int(&f, 0, 8);
    tok_put_int(&f, 0, 8);
    tok_refused(&f, DEND_ERR_FORMAT, f.value);
    tok_begin(&f);
    tok_key_string(&f, TOK_E "model", "llama");
    tok_key_strings(&f, TOK_E "tokens", "a|b");
    tok_key(&f, TOK_E "scores", DENDP_GGUF_ARRAY);
    tok_put_int(&f, DENDP_GGUF_F32, 4);
    tok_put_int(&f, 1, 8);
    tok_put_int(&f, 0, 4);
    tok_refused(&f, DEND_ERR_FORMAT, f.value); /* one score for two tokens */
    for (i = 0; i < 2; i++) {                  /* infinite, not a number: the token's offset */
        tok_begin(&f);
        tok_key_string(&f, TOK_E "model", "llama");
        tok_key_strings(&f, TOK_E "tokens", "a|b");
        tok_key(&f, TOK_E "scores", DENDP_GGUF_ARRAY);
        tok_put_int(&f, DENDP_GGUF_F32, 4);
        tok_put_int(&f, 2, 8);
        tok_put_int(&f, 0, 4);
        tok_put_int(&f, i ? 0x7fc00001u : 0xff800000u, 4);
        tok_refused(&f, DEND_ERR_FORMAT, f.elem[1]);
    }
    for (i = 0; i < 4; i++) { /* byte tokens */
        static const char *const lists[4] = {"a|0x0A", "a|<0x0a>", "<0x0A>|<0x0A>", "<0x0A>|<0x0B"};
        tok_begin(&f);
        tok_key_string(&f, TOK_E "model", "llama");
        tok_key_strings(&f, TOK_E "tokens", lists[i]);
        tok_key_types(&f, i < 2 ? "16" : "66");
        tok_key(&f, TOK_E "scores", DENDP_GGUF_ARRAY);
        tok_put_int(&f, DENDP_GGUF_F32, 4);
        tok_put_int(&f, 2, 8);
        tok_put_int(&f, 0, 8);
        tok_refused(&f, DEND_ERR_FORMAT, f.elem[1]);
    }
    pcs_make(&f);
    tok_key(&f, TOK_E "remove_extra_whitespaces", DENDP_GGUF_BOOL);
    tok_put_int(&f, 1, 1);
    tok_refused(&f, DEND_ERR_UNSUPPORTED, f.value);
    pcs_make(&f);
    tok_key_string(&f, TOK_E "precompiled_charsmap", "x");
    tok_refused(&f, DEND_ERR_UNSUPPORTED, f.value);
    pcs_make(&f);
    tok_key_string(&f, TOK_E "add_space_prefix", "x");
    tok_refused(&f, DEND_ERR_FORMAT, f.value);
    pcs_make(&f);
    tok_key_id(&f, TOK_E "unknown_token_id", 12);
    tok_refused(&f, DEND_ERR_FORMAT, f.value);
    pcs_make(&f);
    tok_key_id(&f, TOK_E "eos_token_id", 0xffffffffu);
    tok_key(&f, TOK_E "add_eos_token", DENDP_GGUF_BOOL);
    tok_put_int(&f, 1, 1);
    tok_refused(&f, DEND_ERR_FORMAT, f.value);
}

/* -- tokenizer.json -------------------------------------------------------------------- */

static dend_status pcs_load_json(dendp_tokenizer *t, const char *tokenizer, const char *config,
                                 const char *generation, const dend_allocator *a, dend_error *err) {
    dendp_tok_json_files files;
    dend_status status;
    char *copies[3] = {NULL, NULL, NULL};
    const char *texts[3];
    uint32_t i;
    texts[0] = tokenizer;
    texts[1] = config;
    texts[2] = generation;
    memset(err, 0, sizeof *err);
    for (i = 0; i < 3; i++) { /* exactly as long as they are, for the sanitizers */
        if (texts[i]) {
            copies[i] = (char *)malloc(strlen(texts[i]) + !*texts[i]);
            memcpy(copies[i], texts[i], strlen(texts[i]));
        }
    }
    memset(&files, 0, sizeof files);
    files.tokenizer = copies[0];
    files.n_tokenizer = strlen(tokenizer);
    files.config = copies[1];
    files.n_config = config ? strlen(config) : 0;
    files.generation = copies[2];
    files.n_generation = generation ? strlen(generation) : 0;
    status = dendp_tokenizer_load_json(t, &files, a, err);
    for (i = 0; i < 3; i++) free(copies[i]);
    return status;
}

#define PCS_ADDED                                                                                            \
    "\"added_tokens\":[{\"id\":3,\"content\":\"<s>\",\"special\":true,\"lstrip\":false},"                    \
    "{\"id\":5,\"content\":\"[U]\",\"special\":false}],"
#define PCS_PRE                                                                                              \
    "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_"        \
    "regex\":true},"
#define PCS_MODEL                                                                                            \
    "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"vocab\":{\"a\":0,\"b\":1,\"a\\u0062\":2,\"<s>\":3,"      \
    "\"\\u0120\":4},"                                                                                        \
    "\"merges\":[[\"a\",\"b\"]]}}"
#define PCS_GOOD "{" PCS_ADDED PCS_PRE PCS_MODEL

/* A text that must be refused, at the place of `at` in it, or for NULL at 0. */
typedef struct pcs_bad {
    const char *text, *at;
    dend_status status;
} pcs_bad;

static void pcs_json_refusals(void **state) {
    static const pcs_bad bad[] = {
        {"", NULL, DEND_ERR_FORMAT},
        {"[]", NULL, DEND_ERR_FORMAT},
        {"{}", NULL, DEND_ERR_FORMAT},
        {"{" PCS_PRE PCS_MODEL " @", "@", DEND_ERR_FORMAT},
        {"{\"model\":[]}", "[]", DEND_ERR_FORMAT},
        {"{\"model\":{\"type\":\"Unigram\"}}", "\"Unigram", DEND_ERR_UNSUPPORTED},
        {"{\"model\":{\"vocab\":[[\"a\",0.5]]}}", "[[", DEND_ERR_UNSUPPORTED},
        {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":0}}}", "\"WordPiece", DEND_ERR_UNSUPPORTED},
        {"{\"model\":{\"vocab\":{\"a\":0},\"x\":1}}", "}}",
         DEND_ERR_UNSUPPORTED}, /* WordLevel, without a type */
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"x\":1}}", "}}", DEND_ERR_FORMAT},
        {"{\"model\":{\"type\":\"BPE\",\"merges\":[]}}", "}}", DEND_ERR_FORMAT},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}", "\"vocab", DEND_ERR_FORMAT},
        {"{\"model\":{\"type\":\"BPE\",\"dropout\":0.1,\"vocab\":{\"a\":0},\"merges\":[]}}", "0.1",
         DEND_ERR_UNSUPPORTED},
        {"{\"model\":{\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\"}}", "\"</w>", DEND_ERR_UNSUPPORTED},
        {"{\"model\":{\"type\":\"BPE\",\"byte_fallback\":1}}", "1}", DEND_ERR_FORMAT},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", "-1", DEND_ERR_FORMAT},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0.5},\"merges\":[]}}", "0.5", DEND_ERR_FORMAT},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":16777216},\"merges\":[]}}", "1677", DEND_ERR_FORMAT},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":70000},\"merges\":[]}}", "\"vocab", DEND_ERR_FORMAT},
        {"{" PCS_PRE "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1,\"b\":1 },\"merges\":[]}}", "1 }",
         DEND_ERR_FORMAT},
        {"{" PCS_PRE "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}}", "\"a\":1",
         DEND_ERR_FORMAT},
        {"{" PCS_PRE "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}", "\"a\"]",
         DEND_ERR_FORMAT},
        {"{" PCS_PRE "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}", "[\"a\"]]",
         DEND_ERR_FORMAT},
        {"{" PCS_PRE "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"a\",\"a\"]]}}",
         "[\"a\",\"a\",\"a\"]]", DEND_ERR_FORMAT},
        {"{" PCS_PRE "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}", "\"a a",
         DEND_ERR_FORMAT},
        {"{" PCS_PRE "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[7]}}", "7]",
         DEND_ERR_FORMAT},
        {"{\"added_tokens\":[{\"id\":0}]," PCS_PRE PCS_MODEL, "{\"id", DEND_ERR_FORMAT},
        {"{\"added_tokens\":[{\"id\":3,\"content\":\"<t>\"}]," PCS_PRE PCS_MODEL, "{\"id", DEND_ERR_FORMAT},
        {"{\"added_tokens\":[{\"id\":9,\"content\":\"x\",\"rstrip\":true}]," PCS_PRE PCS_MODEL, "true}",
         DEND_ERR_UNSUPPORTED},
        {"{" PCS_ADDED PCS_MODEL, NULL, DEND_ERR_UNSUPPORTED}, /* no pre_tokenizer */
        {"{\"normalizer\":{\"type\":\"Lowercase\"}," PCS_MODEL, "{\"type\":\"L", DEND_ERR_UNSUPPORTED},
        {"{\"pre_tokenizer\":{\"type\":\"Whitespace\"}," PCS_MODEL, "{\"type\":\"W", DEND_ERR_UNSUPPORTED},
        {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true}," PCS_MODEL,
         "{\"type\":\"Byte", DEND_ERR_UNSUPPORTED},
        {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"use_regex\":false}," PCS_MODEL, "{\"type\":\"Byte",
         DEND_ERR_UNSUPPORTED},
        {"{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{"
         "\"Regex\":\"x+\"},"
         "\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\",\"use_regex\":false}]}"
         "," PCS_MODEL,
         "{\"type\":\"Split", DEND_ERR_UNSUPPORTED},
        {"{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{},{},{},{},{}]}," PCS_MODEL, "{}]",
         DEND_ERR_UNSUPPORTED},
        {"{\"pre_tokenizer\":7," PCS_MODEL, "7,", DEND_ERR_FORMAT},
        {"{" PCS_PRE "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{"
         "\"id\":\"<x>\"}}]}," PCS_MODEL,
         "\"<x>", DEND_ERR_FORMAT},
        {"{" PCS_PRE "\"post_processor\":{\"single\":[{\"SpecialToken\":{\"id\":\"a\"}},{\"SpecialToken\":{"
         "\"id\":\"b\"}}]}," PCS_MODEL,
         "\"b\"}}", DEND_ERR_UNSUPPORTED},
    };
    dend_allocator a;
    uint32_t i;
    size_t n;
    (void)state;
    memset(&a, 0, sizeof a);
    (void)dendp_allocator_resolve(&a, NULL);
    for (i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        dendp_tokenizer t;
        dend_error err;
        size_t where = bad[i].at ? (size_t)(strstr(bad[i].text, bad[i].at) - bad[i].text) : 0;
        dend_status got = pcs_load_json(&t, bad[i].text, NULL, NULL, &a, &err);
        if (got != bad[i].status || err.status != got || err.where != where) {
            fail_msg("%u: %s: got %s (%s) at %lu, not %lu", i, bad[i].text, dend_status_name(got),
                     err.msg ? err.msg : "", (unsigned long)err.where, (unsigned long)where);
        }
        assert_null(t.block);
    }
    for (n = 0; n < strlen(PCS_GOOD); n++) { /* cut off anywhere */
        dendp_tokenizer t;
        dend_error err;
        char cut[sizeof PCS_GOOD];
        memcpy(cut, PCS_GOOD, n);
        cut[n] = 0;
        ASSERT_STATUS(DEND_ERR_FORMAT, pcs_load_json(&t, cut, NULL, NULL, &a, &err));
    }
}

static void pcs_json_ids(void **state) {
    static const char llama2[] =
        "{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\","
        "\"type_id\":0}},"
        "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[]}," PCS_ADDED PCS_PRE PCS_MODEL;
    dendp_tokenizer t;
    dend_allocator a;
    dend_error err;
    test_heap heap;
    uint32_t i;
    (void)state;
    memset(&a, 0, sizeof a);
    (void)dendp_allocator_resolve(&a, NULL);
    ASSERT_STATUS(DEND_OK, pcs_load_json(&t, PCS_GOOD, NULL, NULL, &a, &err));
    assert_int_equal(t.n_vocab, 6);
    assert_int_equal(t.bos, -1);
    assert_false(t.add_bos);
    tok_expect(&t, "abba b", 0, "2 1 0 4 1");
    tok_expect(&t, "<s>[U]a", 0, "5 0"); /* '<', 's' and '>' have no token here */
    tok_expect(&t, "<s>[U]a", DEND_TOKENIZE_SPECIAL, "3 5 0");
    dendp_tokenizer_free(&t);
    /* names as strings and as objects; all of generation_config's eos end a generation */
    ASSERT_STATUS(
        DEND_OK,
        pcs_load_json(&t, PCS_GOOD,
                      "{\"bos_token\":{\"content\":\"<s>\"},\"eos_token\":\"ab\",\"add_bos_token\":true}",
                      "{\"eos_token_id\":[5, 1]}", &a, &err));
    assert_int_equal(t.bos, 3);
    assert_int_equal(t.eos, 2);
    assert_true(t.add_bos && !t.add_eos);
    for (i = 0; i < 6; i++)
        assert_int_equal(dendp_tokenizer_is_end(&t, (int32_t)i), i == 1 || i == 2 || i == 5);
    dendp_tokenizer_free(&t);
    ASSERT_STATUS(DEND_OK,
                  pcs_load_json(&t, PCS_GOOD, NULL, "{\"eos_token_id\":4,\"bos_token_id\":3}", &a, &err));
    assert_int_equal(t.bos, 3);
    assert_int_equal(t.eos, 4);
    assert_false(t.add_bos);
    dendp_tokenizer_free(&t);
    ASSERT_STATUS(DEND_ERR_FORMAT, pcs_load_json(&t, PCS_GOOD, NULL, "{\"eos_token_id\":6}", &a, &err));
    assert_int_equal(err.where, 16);
    ASSERT_STATUS(DEND_ERR_FORMAT, pcs_load_json(&t, PCS_GOOD, "{\"bos_token\":\"x\"}", NULL, &a, &err));
    assert_int_equal(err.where, 13);
    ASSERT_STATUS(DEND_ERR_FORMAT, pcs_load_json(&t, PCS_GOOD, "{\"bos_token\":", NULL, &a, &err));
    /* the template, and add_bos_token against it */
    ASSERT_STATUS(DEND_OK, pcs_load_json(&t, llama2, NULL, NULL, &a, &err));
    assert_int_equal(t.bos, 3);
    assert_true(t.add_bos);
    tok_expect(&t, "a", DEND_TOKENIZE_ADD_BOS, "3 0");
    dendp_tokenizer_free(&t);
    ASSERT_STATUS(DEND_OK, pcs_load_json(&t, llama2, "{\"add_bos_token\":false}", NULL, &a, &err));
    assert_false(t.add_bos);
    dendp_tokenizer_free(&t);
    ASSERT_STATUS(DEND_ERR_UNSUPPORTED, pcs_load_json(&t, llama2, "{\"bos_token\":\"a\"}", NULL, &a, &err));
    /* each allocation fails once */
    for (i = 1; i < 4; i++) {
        a = test_heap_allocator(&heap);
        heap.fail_at = i;
        ASSERT_STATUS(DEND_ERR_MEMORY, pcs_load_json(&t, PCS_GOOD, NULL, NULL, &a, &err));
        assert_int_equal(heap.n_allocs, heap.n_frees + 1);
    }
    a = test_heap_allocator(&heap);
    ASSERT_STATUS(DEND_OK, pcs_load_json(&t, PCS_GOOD, NULL, NULL, &a, &err));
    assert_int_equal(heap.n_allocs, 3);
    dendp_tokenizer_free(&t);
    assert_int_equal(heap.n_frees, 3);
}

static const struct CMUnitTest tests_model_pieces[] = {
    cmocka_unit_test(pcs_golden_gguf),   cmocka_unit_test(pcs_golden_gemma),
    cmocka_unit_test(pcs_golden_json),   cmocka_unit_test(pcs_merges),
    cmocka_unit_test(pcs_long_words),    cmocka_unit_test(pcs_rules),
    cmocka_unit_test(pcs_allocations),   cmocka_unit_test(pcs_refusals),
    cmocka_unit_test(pcs_json_refusals), cmocka_unit_test(pcs_json_ids),
};
