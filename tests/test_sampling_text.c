/* Text rules against brute force: random vocabularies over few bytes, so that strings lie across token borders
 * everywhere, and the vocabulary of a real model. */

#define TXT_VOCAB 60u
#define TXT_MOST 4096u /* bytes of a text */

/* A vocabulary without a model. Token 0 has no bytes, as control tokens have none. */
typedef struct txt_vocab {
    dendp_tokenizer t;
    char bytes[TXT_VOCAB * 8];
    uint32_t offsets[TXT_VOCAB + 1];
    unsigned char flags[TXT_VOCAB];
} txt_vocab;

/* One character of a small alphabet, of 1 to 4 bytes; returns its length. */
static uint32_t txt_char(test_rng *rng, uint32_t n_chars, char *out) {
    static const char *const chars[7] = {"a", "b", "c", " ", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x8c\xb3"};
    const char *s = chars[test_below(rng, n_chars)];
    memcpy(out, s, strlen(s));
    return (uint32_t)strlen(s);
}

/* bytes: pieces of one byte that are no whole characters occur too. */
static void txt_vocab_make(test_rng *rng, txt_vocab *v, uint32_t n_chars) {
    static const char parts[] = "\xc3\xa4\xe2\x82\xac\xf0\x9f\x8c\xb3";
    uint32_t i, at = 0;
    memset(v, 0, sizeof *v);
    for (i = 0; i < TXT_VOCAB; i++) {
        uint32_t k, len = i == 0 ? 0 : 1 + test_below(rng, 3), start = at;
        v->offsets[i] = at;
        for (k = 0; k < len && at - start < 4; k++) {
            at += txt_char(rng, n_chars, v->bytes + at);
        }
        if (i > 50 && n_chars > 4) { /* the bytes of characters, singly */
            at = start;
            v->bytes[at++] = parts[i - 51];
        }
        v->bytes[at++] = 0;
    }
    v->offsets[TXT_VOCAB] = at;
    v->t.n_vocab = TXT_VOCAB;
    v->t.bytes = v->bytes;
    v->t.offsets = v->offsets;
    v->t.flags = v->flags;
}

typedef struct txt_words {
    char text[6][16];
    const char *list[6];
    uint32_t n;
} txt_words;

static void txt_words_make(test_rng *rng, txt_words *w, uint32_t n_chars, uint32_t most) {
    uint32_t i;
    memset(w, 0, sizeof *w);
    w->n = 1 + test_below(rng, 6);
    for (i = 0; i < w->n; i++) {
        uint32_t k, at = 0, len = 1 + test_below(rng, most);
        for (k = 0; k < len && at < 12; k++) {
            at += txt_char(rng, n_chars, w->text[i] + at);
        }
        if (i > 0 && test_below(rng, 4) == 0) { /* one within another, or the same */
            strcpy(w->text[i],
                   w->text[i - 1] + (w->text[i - 1][1] && ((unsigned char)w->text[i - 1][0] < 128)));
        }
        w->list[i] = w->text[i];
    }
}

static dend_text_rules *txt_rules(const txt_vocab *v, const txt_words *banned, const txt_words *stops,
                                  const txt_words *breakers) {
    dend_text_rules_desc d;
    dend_text_rules *rules = NULL;
    memset(&d, 0, sizeof d);
    if (banned) {
        d.banned = banned->list, d.n_banned = banned->n;
    }
    if (stops) {
        d.stops = stops->list, d.n_stops = stops->n;
    }
    if (breakers) {
        d.breakers = breakers->list, d.n_breakers = breakers->n;
    }
    ASSERT_STATUS(DEND_OK, dendp_rules_create(&d, &v->t, &rules, NULL));
    return rules;
}

static size_t txt_append(const txt_vocab *v, char *text, size_t n, int32_t token) {
    size_t len;
    const char *bytes = dendp_tokenizer_bytes(&v->t, token, &len);
    memcpy(text + n, bytes, len);
    return n + len;
}

/* Length of the longest word that ends at text[n], or 0. */
static size_t txt_ends(const txt_words *w, const char *text, size_t n) {
    size_t best = 0;
    uint32_t i;
    for (i = 0; i < w->n; i++) {
        size_t len = strlen(w->list[i]);
        if (len <= n && len > best && memcmp(text + n - len, w->list[i], len) == 0) {
            best = len;
        }
    }
    return best;
}

static void txt_mark(void *ctx, uint32_t token) {
    ((bool *)ctx)[token] = true;
}

/* The banned tokens behind a random text are those whose bytes complete a word. */
static void test_text_banned(void **state) {
    test_rng rng;
    uint32_t round, n_banned = 0, n_across = 0;
    static char text[TXT_MOST];
    (void)state;
    rng.state = 1234;
    for (round = 0; round < 4000; round++) {
        txt_vocab v;
        txt_words w;
        dend_text_rules *rules;
        int32_t tokens[40];
        uint32_t n_chars = 2 + test_below(&rng, 6), n = test_below(&rng, 40), i;
        size_t at = 0;
        txt_vocab_make(&rng, &v, n_chars);
        txt_words_make(&rng, &w, n_chars, 6);
        rules = txt_rules(&v, &w, NULL, NULL);
        for (i = 0; i < n; i++) {
            tokens[i] = (int32_t)test_below(&rng, TXT_VOCAB);
            if (test_below(&rng, 50) == 0) {
                tokens[i] = -1; /* unknown: has no bytes */
                continue;
            }
            at = txt_append(&v, text, at, tokens[i]);
        }
        {
            bool banned[TXT_VOCAB] = {false};
            dendp_rules_ban(rules, tokens, n, txt_mark, banned);
            for (i = 0; i < TXT_VOCAB; i++) {
                size_t end = txt_append(&v, text, at, (int32_t)i), k;
                bool expected = false;
                for (k = at + 1; k <= end; k++) {
                    size_t len = txt_ends(&w, text, k);
                    expected = expected || len > 0;
                    n_across += len > k - at;
                }
                assert_int_equal(expected, banned[i]);
                n_banned += expected;
            }
        }
        dend_text_rules_free(rules);
    }
    printf("banned: %u tokens, %u words across borders\n", n_banned, n_across);
    assert_true(n_banned > 10000 && n_across > 5000);
}

/* Whatever is generated, no banned string comes to stand in it. */
static void test_text_banned_generation(void **state) {
    test_rng rng;
    uint32_t round, step, stuck = 0, near_misses = 0;
    void *scratch = malloc(dend_sample_scratch(TXT_VOCAB, 300));
    (void)state;
    rng.state = 77;
    for (round = 0; round < 200; round++) {
        static char text[TXT_MOST];
        txt_vocab v;
        txt_words w;
        dend_sample_params p;
        int32_t tokens[300];
        size_t at = 0;
        uint32_t n_chars = 2 + test_below(&rng, 6);
        dend_sample_past past = {tokens, 0, 0, 0.0};
        memset(&p, 0, sizeof p);
        txt_vocab_make(&rng, &v, n_chars);
        txt_words_make(&rng, &w, n_chars, 6);
        p.temperature = round % 4 ? 1.0f : 0.0f;
        p.rules = txt_rules(&v, &w, NULL, NULL);
        for (step = 0; step < 300; step++) {
            float x[TXT_VOCAB];
            dend_sampled out, free_choice;
            dend_sample_params q = p;
            dend_status status;
            size_t k, end;
            uint32_t i;
            for (i = 0; i < TXT_VOCAB; i++) {
                x[i] = 3.0f * test_float(&rng);
            }
            past.n_tokens = step;
            status = dend_sample_after(x, TXT_VOCAB, &p, 1, step, &past, scratch, &out);
            if (status == DEND_ERR_NO_TOKENS) { /* token 0 has no bytes, so this cannot be */
                stuck++;
                break;
            }
            ASSERT_STATUS(DEND_OK, status);
            q.rules = NULL;
            ASSERT_STATUS(DEND_OK,
                          dend_sample_after(x, TXT_VOCAB, &q, 1, step, &past, scratch, &free_choice));
            near_misses += free_choice.token != out.token;
            tokens[step] = out.token;
            end = txt_append(&v, text, at, out.token);
            for (k = at + 1; k <= end; k++) {
                assert_int_equal(txt_ends(&w, text, k), 0);
            }
            at = end;
        }
        dend_text_rules_free((dend_text_rules *)(uintptr_t)p.rules);
    }
    assert_int_equal(stuck, 0);
    assert_true(near_misses > 1000);
    free(scratch);
}

/* Bytes before which a stop string may yet begin. */
static size_t txt_free_bytes(const txt_words *w, const char *text, size_t n) {
    size_t best = 0, len;
    uint32_t i;
    for (i = 0; i < w->n; i++) {
        for (len = strlen(w->list[i]); len > best; len--) {
            if (len <= n && memcmp(text + n - len, w->list[i], len) == 0) {
                best = len;
            }
        }
    }
    return n - best;
}

/* Bytes of whole characters among the first n of valid UTF-8. */
static size_t txt_whole(const char *text, size_t n, size_t total) {
    while (n > 0 && n < total && ((unsigned char)text[n] & 0xc0u) == 0x80u) {
        n--;
    }
    return n;
}

static void test_text_stops(void **state) {
    test_rng rng;
    uint32_t round, n_stopped = 0, n_held = 0;
    static char text[TXT_MOST + 8];
    (void)state;
    rng.state = 4321;
    for (round = 0; round < 6000; round++) {
        txt_vocab v;
        txt_words w;
        dend_text_rules *rules;
        dend_stop_state plain, chars, copy;
        uint32_t n_chars = 2 + test_below(&rng, 6), i;
        size_t total = 0, at = 0, end = 0, cut = 0;
        memset(&plain, 0, sizeof plain);
        memset(&chars, 0, sizeof chars);
        txt_vocab_make(&rng, &v, n_chars);
        txt_words_make(&rng, &w, n_chars, 8);
        rules = txt_rules(&v, NULL, &w, NULL);
        for (i = 0; i < 40; i++) {
            total += txt_char(&rng, n_chars, text + total);
        }
        for (end = 1; end <= total && cut == 0; end++) {
            cut = txt_ends(&w, text, end);
        }
        end--; /* where the first stop string ends */
        while (at < total) {
            size_t n = 1 + test_below(&rng, 5);
            dend_status expected;
            n = n < total - at ? n : total - at;
            expected = cut && at + n >= end ? DEND_END : DEND_OK;
            copy = plain;
            ASSERT_STATUS(expected, dend_stop_feed(rules, &plain, text + at, n, 0));
            ASSERT_STATUS(expected, dend_stop_feed(rules, &chars, text + at, n, DEND_STOP_UTF8));
            ASSERT_STATUS(expected,
                          dend_stop_feed(rules, &copy, text + at, n, 0)); /* a copy goes the same way */
            assert_memory_equal(&copy, &plain, sizeof copy);
            at += n;
            if (expected == DEND_END) {
                assert_true(plain.stopped && chars.stopped);
                assert_int_equal(plain.n_release, end - cut);
                assert_int_equal(chars.n_release, end - cut);
                ASSERT_STATUS(DEND_END, dend_stop_feed(rules, &plain, text, 3, 0)); /* and it stays so */
                assert_int_equal(plain.n_release, end - cut);
                assert_int_equal(plain.n_bytes, end);
                n_stopped++;
                break;
            }
            assert_false(plain.stopped);
            assert_int_equal(plain.n_bytes, at);
            assert_int_equal(plain.n_release, txt_free_bytes(&w, text, at));
            assert_int_equal(chars.n_release, txt_whole(text, (size_t)plain.n_release, total));
            n_held += plain.n_release < at;
        }
        dend_text_rules_free(rules);
    }
    printf("stops: %u of %u texts ended, %u times bytes were held\n", n_stopped, round, n_held);
    assert_true(n_stopped > 2000 && n_held > 10000);
}

/* Any bytes: what was released never decreases, ends no character in the middle that is one, and comes out in
 * the end. */
static void test_text_stops_bytes(void **state) {
    test_rng rng;
    uint32_t round, i;
    (void)state;
    rng.state = 5;
    for (round = 0; round < 3000; round++) {
        static const char *const strings[3] = {"\x80zz", "\xc3", "q\xff"};
        txt_vocab v;
        txt_words w;
        dend_text_rules *rules;
        dend_stop_state s;
        uint64_t before = 0;
        txt_vocab_make(&rng, &v, 3);
        memset(&w, 0, sizeof w);
        w.n = 1;
        w.list[0] = strings[test_below(&rng, 3)];
        rules = txt_rules(&v, NULL, &w, NULL);
        memset(&s, 0, sizeof s);
        for (i = 0; i < 60; i++) {
            static const char some[] = "\x80\xc3\xa4zq\xff\xf0\x9f";
            char byte = some[test_below(&rng, 8)];
            if (dend_stop_feed(rules, &s, &byte, 1, DEND_STOP_UTF8) == DEND_END) {
                break;
            }
            assert_true(s.n_release >= before && s.n_release <= s.n_bytes);
            /* A string that begins within a character may hold more. */
            assert_true(w.list[0] == strings[0] || s.n_bytes - s.n_release <= 6);
            before = s.n_release;
        }
        if (!s.stopped) {
            ASSERT_STATUS(DEND_OK, dend_stop_feed(rules, &s, "ab", 2, DEND_STOP_UTF8));
            assert_int_equal(s.n_release, s.n_bytes);
        }
        dend_text_rules_free(rules);
    }
}

/* DRY with breakers: within and across tokens. */
static void test_text_breakers(void **state) {
    test_rng rng;
    uint32_t round, i, k, n_cut = 0, n_lowered = 0;
    static char text[TXT_MOST];
    void *scratch = malloc(dend_sample_scratch(TXT_VOCAB, 80));
    (void)state;
    rng.state = 909;
    for (round = 0; round < 3000; round++) {
        txt_vocab v;
        txt_words w;
        dend_sample_params p;
        dend_sampled out;
        int32_t tokens[80];
        float x[TXT_VOCAB];
        const float *got = (const float *)scratch;
        uint32_t n_chars = 3 + test_below(&rng, 5), n = 5 + test_below(&rng, 75), most = n;
        size_t at = 0;
        dend_sample_past past = {tokens, n, 0, 0.0};
        memset(&p, 0, sizeof p);
        txt_vocab_make(&rng, &v, n_chars);
        txt_words_make(&rng, &w, n_chars, 4);
        for (i = 0; i < n; i++) {
            uint32_t period = 3 + round % 9;
            tokens[i] = (int32_t)test_below(&rng, TXT_VOCAB);
            if (i > period && test_below(&rng, 12)) {
                tokens[i] = tokens[i - period];
            }
        }
        for (i = 0; i < n; i++) { /* how many tokens follow the last breaker */
            size_t end = txt_append(&v, text, at, tokens[i]);
            for (; at < end; at++) {
                if (txt_ends(&w, text, at + 1)) {
                    most = n - 1 - i;
                }
            }
        }
        n_cut += most < n;
        p.dry_multiplier = 0.5f;
        p.dry_base = 1.25f;
        p.rules = txt_rules(&v, NULL, NULL, &w);
        assert_int_equal(dendp_rules_unbroken(p.rules, tokens, n), most);
        for (i = 0; i < TXT_VOCAB; i++) {
            x[i] = 4.0f * test_float(&rng);
        }
        ASSERT_STATUS(DEND_OK, dend_sample_after(x, TXT_VOCAB, &p, 1, 1, &past, scratch, &out));
        for (i = 0; i < TXT_VOCAB; i++) {
            uint32_t longest = 0, len;
            size_t end = txt_append(&v, text, 0, (int32_t)i);
            bool breaks = false;
            for (at = 1; at <= end; at++) {
                breaks = breaks || txt_ends(&w, text, at);
            }
            for (k = 1; k < n && !breaks; k++) {
                len = tokens[k] == (int32_t)i ? flt_repeats(tokens, n, k, most) : 0;
                longest = len > longest ? len : longest;
            }
            if (longest >= 2) {
                double loss = 0.5 * pow(1.25, longest - 2.0);
                ASSERT_NEAR((double)x[i] - loss, got[i], 1e-5 * (1.0 + loss), 0.0);
                n_lowered++;
            } else {
                assert_int_equal(dendp_f32_bits(x[i]), dendp_f32_bits(got[i]));
            }
        }
        dend_text_rules_free((dend_text_rules *)(uintptr_t)p.rules);
    }
    printf("breakers: %u of %u texts, %u tokens lowered\n", n_cut, round, n_lowered);
    assert_true(n_cut > 500 && n_lowered > 500);
    free(scratch);
}

/* A real vocabulary: whatever way the text was cut into tokens, the banned word cannot be completed. */
static void test_text_vocabulary(void **state) {
    static const char *const banned[] = {"the", " cat", "\xc3\xa9t\xc3\xa9", "\n\n"};
    static const char *const texts[] = {"",   "t",  "th", " ca", "of th", "\xc3\xa9t", "\xc3\xa9t\xc3",
                                        "\n", "x\n"};
    dend_model_desc md;
    dend_model *model = NULL;
    dend_model_info info;
    dend_text_rules_desc d;
    dend_text_rules *rules = NULL;
    uint32_t i, t, V, total = 0;
    bool *mark;
    (void)state;
    memset(&md, 0, sizeof md);
    memset(&d, 0, sizeof d);
    md.path = "tests/golden/vocab_qwen2.gguf";
    md.vocab_only = true;
    ASSERT_STATUS(DEND_OK, dend_model_load(&md, &model, NULL));
    dend_model_get_info(model, &info);
    V = info.n_vocab;
    d.model = model;
    d.banned = banned, d.n_banned = 4;
    ASSERT_STATUS(DEND_OK, dend_text_rules_create(&d, &rules, NULL));
    mark = (bool *)malloc(V * sizeof *mark);
    assert_non_null(mark);
    for (t = 0; t < sizeof texts / sizeof texts[0]; t++) {
        int32_t tokens[16];
        size_t n = 0, len = strlen(texts[t]);
        ASSERT_STATUS(DEND_OK, dend_tokenize(model, texts[t], len, 0, tokens, 16, &n));
        memset(mark, 0, V * sizeof *mark);
        dendp_rules_ban(rules, tokens, (uint32_t)n, txt_mark, mark);
        for (i = 0; i < V; i++) {
            char whole[600];
            size_t bytes, k, b;
            const char *s = dend_token_bytes(model, (int32_t)i, &bytes);
            bool expected = false;
            assert_true(bytes < 500);
            memcpy(whole, texts[t], len);
            memcpy(whole + len, s, bytes);
            for (b = 0; b < 4; b++) {
                size_t m = strlen(banned[b]);
                for (k = 0; k + m <= len + bytes; k++) {
                    expected = expected || (k + m > len && memcmp(whole + k, banned[b], m) == 0);
                }
            }
            assert_int_equal(expected, mark[i]);
            total += expected;
        }
    }
    assert_true(total > 20);
    free(mark);
    dend_text_rules_free(rules);
    dend_model_free(model);
}

static void test_text_refused(void **state) {
    static char too_long[4098];
    const char *empty[] = {"a", ""}, *missing[] = {"a", NULL}, *fine[] = {"a", "bc", "bc"}, *one[1];
    test_heap heap;
    txt_vocab v;
    test_rng rng;
    dend_text_rules_desc d;
    dend_text_rules *rules = NULL;
    dend_stop_state s;
    dend_error err;
    (void)state;
    rng.state = 3;
    txt_vocab_make(&rng, &v, 4);
    memset(&s, 0, sizeof s);
    memset(too_long, 'x', 4097);
    one[0] = too_long;
    memset(&d, 0, sizeof d);
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_text_rules_create(NULL, &rules, &err));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_text_rules_create(&d, NULL, &err));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_text_rules_create(&d, &rules, &err)); /* no model */
    d.canary_begin_ = 1;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_text_rules_create(&d, &rules, &err));
    d.canary_begin_ = 0;
    d.banned = empty, d.n_banned = 2;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dendp_rules_create(&d, &v.t, &rules, &err));
    d.banned = missing;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dendp_rules_create(&d, &v.t, &rules, &err));
    d.banned = one, d.n_banned = 1;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dendp_rules_create(&d, &v.t, &rules, &err));
    too_long[4096] = 0;
    ASSERT_STATUS(DEND_OK, dendp_rules_create(&d, &v.t, &rules, &err));
    dend_text_rules_free(rules);
    d.banned = NULL, d.n_banned = 1;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dendp_rules_create(&d, &v.t, &rules, &err));
    d.banned = fine, d.n_banned = UINT32_MAX;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dendp_rules_create(&d, &v.t, &rules, &err));
    d.banned = fine, d.n_banned = 3, d.stops = fine, d.n_stops = 3;
    memset(&heap, 0, sizeof heap);
    d.allocator = test_heap_allocator(&heap);
    heap.fail_at = 1;
    ASSERT_STATUS(DEND_ERR_MEMORY, dendp_rules_create(&d, &v.t, &rules, &err));
    heap.fail_at = 0;
    ASSERT_STATUS(DEND_OK, dendp_rules_create(&d, &v.t, &rules, &err));
    assert_int_equal(heap.n_allocs, 2);
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_stop_feed(NULL, &s, "a", 1, 0));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_stop_feed(rules, NULL, "a", 1, 0));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_stop_feed(rules, &s, NULL, 1, 0));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_stop_feed(rules, &s, "a", 1, 2));
    s.node_ = 12345; /* a state of other rules */
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_stop_feed(rules, &s, "a", 1, 0));
    s.node_ = 0;
    ASSERT_STATUS(DEND_OK, dend_stop_feed(rules, &s, NULL, 0, 0));
    ASSERT_STATUS(DEND_END, dend_stop_feed(rules, &s, "za", 2, 0));
    assert_int_equal(s.n_release, 1);
    dend_text_rules_free(rules);
    dend_text_rules_free(NULL);
    assert_int_equal(heap.n_live_bytes, 0);
}

/* Equal strings count once, wherever they stand in the list. */
static void test_text_equal_words(void **state) {
    const char *words[300], *one[2] = {"as", "ass"};
    dendp_tokenizer t;
    txt_vocab v;
    dend_text_rules_desc d;
    dend_text_rules *many, *few;
    test_rng rng;
    uint32_t i;
    (void)state;
    rng.state = 5;
    txt_vocab_make(&rng, &v, 3);
    t = v.t;
    memset(&d, 0, sizeof d);
    for (i = 0; i < 300; i++) {
        words[i] = i % 3 ? "as" : "ass";
    }
    d.banned = words, d.n_banned = 300;
    d.stops = words, d.n_stops = 300;
    ASSERT_STATUS(DEND_OK, dendp_rules_create(&d, &t, &many, NULL));
    d.banned = one, d.n_banned = 2;
    ASSERT_STATUS(DEND_OK, dendp_rules_create(&d, &t, &few, NULL));
    assert_int_equal(many->banned.n_words, 2);
    assert_int_equal(many->stops.n_words, 2);
    assert_int_equal(few->banned.n_words, 2);
    assert_int_equal(many->banned.n_nodes, few->banned.n_nodes);
    assert_memory_equal(many->banned.starts, few->banned.starts, 3 * sizeof(uint32_t));
    assert_memory_equal(many->banned.bytes, few->banned.bytes, 5);
    assert_int_equal(many->banned.nodes[0].last, 2);
    dend_text_rules_free(many);
    dend_text_rules_free(few);
}

static const struct CMUnitTest tests_sampling_text[] = {
    cmocka_unit_test(test_text_equal_words),       cmocka_unit_test(test_text_banned),
    cmocka_unit_test(test_text_banned_generation), cmocka_unit_test(test_text_stops),
    cmocka_unit_test(test_text_stops_bytes),       cmocka_unit_test(test_text_breakers),
    cmocka_unit_test(test_text_vocabulary),        cmocka_unit_test(test_text_refused)};
