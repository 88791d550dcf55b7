/* Tests of 02.16 CHAT: what the templates of the models render (jinja2), which
 * templates are recognised, that no message becomes a control token, and
 * conversations that go on turn by turn. */

typedef struct chat_reader {
    unsigned char *file;
    size_t at, size;
} chat_reader;

static uint32_t chat_u32(chat_reader *r) {
    assert_true(r->size - r->at >= 4);
    r->at += 4;
    return dendp_load32(r->file + r->at - 4);
}

static const char *chat_str(chat_reader *r, size_t *n) {
    *n = chat_u32(r);
    assert_true(r->size - r->at >= *n);
    r->at += *n;
    return (const char *)r->file + r->at - *n;
}

enum { CHAT_TALKS = 64, CHAT_MESSAGES = 8 };

typedef struct chat_talk {
    dend_chat_message m[CHAT_MESSAGES];
    uint32_t n;
} chat_talk;

/* The conversations of the golden file. Returns their number. */
static uint32_t chat_open(chat_reader *r, chat_talk *talks) {
    uint32_t n, i, k;
    r->at = 4;
    r->file = test_read_file("tests/golden/chat.bin", &r->size);
    assert_non_null(r->file);
    assert_memory_equal(r->file, "DCH1", 4);
    n = chat_u32(r);
    assert_in_range(n, 40, CHAT_TALKS);
    for (i = 0; i < n; i++) {
        talks[i].n = chat_u32(r);
        assert_in_range(talks[i].n, 1, CHAT_MESSAGES);
        for (k = 0; k < talks[i].n; k++) {
            talks[i].m[k].role = (dend_role)chat_u32(r);
            talks[i].m[k].text = chat_str(r, &talks[i].m[k].n_bytes);
        }
    }
    return n;
}

static void chat_goldens(void **state) {
    static chat_talk talks[CHAT_TALKS];
    static char out[1 << 16];
    dendp_tokenizer t;
    chat_reader r;
    uint32_t n_talks = chat_open(&r, talks), n_templates = chat_u32(&r), i, k, generate, n_said = 0,
             n_refused = 0, unknown = 0, wrong = 0;
    (void)state;
    tok_open(&t, "tests/golden/vocab_sp_prefix.gguf");
    for (i = 0; i < n_templates; i++) {
        dendp_chat chat;
        size_t n_family, n_template;
        const char *family = chat_str(&r, &n_family), *text = chat_str(&r, &n_template);
        char *exact = (char *)malloc(n_template + 1); /* so that a sanitizer sees its end */
        memcpy(exact, text, n_template);
        dendp_chat_recognise(&chat, exact, n_template);
        free(exact);
        if (n_family == 0) {
            assert_null(chat.style);
            unknown++;
            continue;
        }
        if (!chat.style || strlen(chat.style->name) != n_family ||
            memcmp(chat.style->name, family, n_family) != 0) {
            fail_msg("template %u is recognised as %s, not %.*s", i, chat.style ? chat.style->name : "none",
                     (int)n_family, family);
        }
        for (k = 0; k < n_talks; k++) {
            for (generate = 0; generate < 2; generate++) {
                uint32_t refused = chat_u32(&r);
                size_t n_want;
                const char *want = chat_str(&r, &n_want);
                dendp_chat_writer w;
                dend_status status;
                memset(&w, 0, sizeof w);
                w.out = out;
                w.cap = sizeof out;
                status = dendp_chat_format(&chat, &t, NULL, talks[k].m, talks[k].n,
                                           generate ? DEND_CHAT_GENERATE : 0, &w);
                n_refused += refused;
                n_said += !refused;
                if (refused ? status >= 0
                            : status != DEND_OK || w.n != n_want || memcmp(out, want, n_want) != 0) {
                    print_error(
                        "template %u (%.*s), conversation %u, generate %u: %s\n  got  %.*s\n  want %.*s\n", i,
                        (int)n_family, family, k, generate, dend_status_name(status), (int)w.n, out,
                        (int)n_want, want);
                    wrong++;
                }
            }
        }
    }
    assert_int_equal(r.at, r.size);
    assert_int_equal(wrong, 0);
    assert_true(n_said > 900 && n_refused > 200 && unknown >= 6);
    dendp_tokenizer_free(&t);
    free(r.file);
}

/* -- safety ------------------------------------------------------------------------------- */

/* Whatever messages say, control tokens are those of the same conversation with harmless messages; and where no
 * message has a text of one, the tokens are those of the whole text. */
static void chat_safety(void **state) {
    static const char *const families[] = {"chatml",     "qwen",       "qwen3",          "llama2",
                                           "llama3",     "llama3.1",   "gemma",          "mistral",
                                           "mistral-v1", "mistral-v3", "mistral-tekken", "zephyr"};
    static const char *const vocabs[] = {
        "tests/golden/vocab_smollm.gguf", "tests/golden/vocab_llama-bpe.gguf",
        "tests/golden/vocab_sp_plain.gguf", "tests/golden/vocab_sp_prefix.gguf"};
    static chat_talk talks[CHAT_TALKS];
    static int32_t tokens[1 << 14], again[1 << 14];
    static char out[1 << 15];
    chat_reader r;
    uint32_t n_talks = chat_open(&r, talks), v, f, i, k, n_checked = 0, n_same = 0;
    (void)state;
    for (v = 0; v < 4; v++) {
        dend_model_desc md;
        dend_model *model;
        memset(&md, 0, sizeof md);
        md.path = vocabs[v];
        md.vocab_only = true;
        ASSERT_STATUS(DEND_OK, dend_model_load(&md, &model, NULL));
        assert_null(dend_chat_family(model));
        for (f = 0; f < sizeof families / sizeof families[0]; f++) {
            for (i = 0; i < n_talks; i++) {
                dend_chat_message harmless[CHAT_MESSAGES];
                size_t n, n_again, n_out, n_bos, control = 0, control_again = 0;
                bool special = false;
                dend_status status =
                    dend_chat_tokenize(model, families[f], talks[i].m, talks[i].n, DEND_CHAT_GENERATE, tokens,
                                       sizeof tokens / sizeof tokens[0], &n);
                ASSERT_STATUS(status, dend_chat_format(model, families[f], talks[i].m, talks[i].n,
                                                       DEND_CHAT_GENERATE, out, sizeof out, &n_out));
                if (status != DEND_OK) continue;
                for (k = 0; k < talks[i].n; k++) {
                    harmless[k].role = talks[i].m[k].role;
                    harmless[k].text = "x";
                    harmless[k].n_bytes = 1;
                    special = special || dendp_chat_has(talks[i].m[k].text, talks[i].m[k].n_bytes, "<");
                }
                ASSERT_STATUS(DEND_OK,
                              dend_chat_tokenize(model, families[f], harmless, talks[i].n, DEND_CHAT_GENERATE,
                                                 again, sizeof again / sizeof again[0], &n_again));
                for (k = 0; k < n; k++)
                    control += (model->tokenizer.flags[tokens[k]] & DENDP_TOK_CONTROL) != 0;
                for (k = 0; k < n_again; k++)
                    control_again += (model->tokenizer.flags[again[k]] & DENDP_TOK_CONTROL) != 0;
                if (control != control_again)
                    fail_msg("%s, %s, conversation %u: %lu control tokens, not %lu", vocabs[v], families[f],
                             i, (unsigned long)control, (unsigned long)control_again);
                n_checked++;
                /* bos that the template does not write */
                k = 0;
                if (model->tokenizer.add_bos) {
                    const char *bos = dend_token_text(model, model->tokenizer.bos, &n_bos);
                    assert_int_equal(tokens[0], model->tokenizer.bos);
                    k = n_out < n_bos || memcmp(out, bos, n_bos) != 0 ? 1 : 0;
                }
                if (!special) {
                    ASSERT_STATUS(DEND_OK, dend_tokenize(model, out, n_out, DEND_TOKENIZE_SPECIAL, again,
                                                         sizeof again / sizeof again[0], &n_again));
                    if (n_again != n - k || memcmp(again, tokens + k, 4 * n_again) != 0)
                        fail_msg("%s, %s, conversation %u: other tokens than those of its text", vocabs[v],
                                 families[f], i);
                    n_same++;
                }
            }
        }
        dend_model_free(model);
    }
    assert_true(n_checked > 1000 && n_same > 500);
    free(r.file);
}

/* -- the contract ------------------------------------------------------------------------- */

static dend_chat_message chat_say(dend_role role, const char *text) {
    dend_chat_message m;
    m.role = role;
    m.text = text;
    m.n_bytes = (size_t)-1;
    return m;
}

static void chat_contract(void **state) {
    static const char hi[] = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    dend_model_desc md;
    dend_model *model;
    test_heap heap;
    dend_chat_message m[3];
    char out[128];
    int32_t tokens[64];
    size_t n, cap, n_tokens;
    (void)state;
    memset(&md, 0, sizeof md);
    md.path = "tests/golden/vocab_smollm.gguf";
    md.vocab_only = true;
    md.allocator = test_heap_allocator(&heap);
    ASSERT_STATUS(DEND_OK, dend_model_load(&md, &model, NULL));
    m[0] = chat_say(DEND_ROLE_USER, "Hi");
    for (cap = 0; cap <= sizeof hi; cap++) {
        memset(out, '#', sizeof out);
        n = 0;
        ASSERT_STATUS(cap < sizeof hi - 1 ? DEND_ERR_BUFFER : DEND_OK,
                      dend_chat_format(model, "chatml", m, 1, DEND_CHAT_GENERATE, cap ? out : NULL, cap, &n));
        assert_int_equal(n, sizeof hi - 1);
        assert_memory_equal(out, hi, cap < n ? cap : n);
        assert_int_equal(out[cap < n ? cap : n], '#');
    }
    ASSERT_STATUS(DEND_OK,
                  dend_chat_tokenize(model, "chatml", m, 1, DEND_CHAT_GENERATE, tokens, 64, &n_tokens));
    ASSERT_STATUS(DEND_ERR_BUFFER,
                  dend_chat_tokenize(model, "chatml", m, 1, DEND_CHAT_GENERATE, tokens, n_tokens - 1, &n));
    assert_int_equal(n, n_tokens);
    heap.fail_at = heap.n_allocs + 1;
    ASSERT_STATUS(DEND_ERR_MEMORY, dend_chat_tokenize(model, "chatml", m, 1, 0, tokens, 64, &n));
    heap.fail_at = 0;
    /* after a reply */
    ASSERT_STATUS(DEND_OK,
                  dend_chat_format(model, "chatml", m, 1, DEND_CHAT_AFTER_REPLY, out, sizeof out, &n));
    assert_memory_equal(out, "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n", n);
    ASSERT_STATUS(DEND_OK,
                  dend_chat_format(model, "chatml", NULL, 0, DEND_CHAT_FOLLOWS, out, sizeof out, &n));
    assert_int_equal(n, 0);
    ASSERT_STATUS(DEND_OK, dend_chat_tokenize(model, "chatml", NULL, 0, DEND_CHAT_FOLLOWS, tokens, 64, &n));
    assert_int_equal(n, 0);
    /* nonsense */
    ASSERT_STATUS(DEND_ERR_UNSUPPORTED, dend_chat_format(model, NULL, m, 1, 0, out, sizeof out, &n));
    ASSERT_STATUS(DEND_ERR_UNSUPPORTED, dend_chat_format(model, "", m, 1, 0, out, sizeof out, &n));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_chat_format(model, "vicuna", m, 1, 0, out, sizeof out, &n));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_chat_format(model, "chatml", m, 1, 8, out, sizeof out, &n));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_chat_format(model, "chatml", NULL, 1, 0, out, sizeof out, &n));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_chat_format(model, "chatml", m, 1, 0, NULL, 1, &n));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_chat_format(NULL, "chatml", m, 1, 0, out, sizeof out, &n));
    m[1] = m[0];
    m[1].role = (dend_role)4;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_chat_format(model, "chatml", m, 2, 0, out, sizeof out, &n));
    m[1].role = (dend_role)-1;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_chat_format(model, "chatml", m, 2, 0, out, sizeof out, &n));
    m[1] = chat_say(DEND_ROLE_USER, NULL);
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_chat_format(model, "chatml", m, 2, 0, out, sizeof out, &n));
    m[1].n_bytes = 0;
    ASSERT_STATUS(DEND_OK, dend_chat_format(model, "chatml", m, 2, 0, out, sizeof out, &n));
    ASSERT_STATUS(DEND_ERR_ARGUMENT,
                  dend_chat_format(model, "gemma", m, 2, 0, out, sizeof out, &n)); /* two users */
    m[1] = chat_say(DEND_ROLE_TOOL, "1");
    ASSERT_STATUS(DEND_ERR_UNSUPPORTED, dend_chat_format(model, "gemma", m, 2, 0, out, sizeof out, &n));
    m[1] = chat_say(DEND_ROLE_SYSTEM, "1");
    ASSERT_STATUS(DEND_ERR_UNSUPPORTED, dend_chat_format(model, "gemma", m, 2, 0, out, sizeof out, &n));
    ASSERT_STATUS(DEND_ERR_UNSUPPORTED, dend_chat_format(model, "mistral", m + 1, 1, 0, out, sizeof out, &n));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_chat_format(model, "gemma", m + 1, 1, 0, out, sizeof out, &n));
    m[0] = chat_say(DEND_ROLE_ASSISTANT, "1");
    ASSERT_STATUS(DEND_ERR_ARGUMENT,
                  dend_chat_format(model, "gemma", m, 1, DEND_CHAT_AFTER_REPLY, out, sizeof out, &n));
    ASSERT_STATUS(DEND_OK, dend_chat_format(model, "gemma", m, 1, DEND_CHAT_FOLLOWS, out, sizeof out, &n));
    m[0] = chat_say(DEND_ROLE_USER, "x");
    m[0].n_bytes = (size_t)-2; /* longer than memory: measured, never read */
    m[1] = m[0];
    ASSERT_STATUS(DEND_ERR_MEMORY, dend_chat_format(model, "chatml", m, 2, 0, NULL, 0, &n));
    dend_model_free(model);
    assert_int_equal(heap.n_allocs, heap.n_frees + 1);
}

/* -- turn by turn ------------------------------------------------------------------------- */

/* A conversation that is appended turn by turn has the tokens of the same one formatted whole. */
static void chat_turns(void **state) {
    static const char *const families[] = {"chatml", "qwen", NULL};
    static const char *const says[] = {"What is 2 + 2?", "4", "And 3 + 3?", "6", "Thanks!"};
    dend_model_desc md;
    dend_engine_desc ed;
    dend_model *model;
    dend_engine *engine;
    uint32_t f, i;
    (void)state;
    test_need_file("models/SmolLM2-135M-Instruct.Q4_1.gguf", "make models");
    memset(&md, 0, sizeof md);
    md.path = "models/SmolLM2-135M-Instruct.Q4_1.gguf";
    md.keep_file_layout = true;
    ASSERT_STATUS(DEND_OK, dend_model_load(&md, &model, NULL));
    assert_string_equal(dend_chat_family(model), "chatml");
    memset(&ed, 0, sizeof ed);
    ed.model = model;
    ed.n_ctx = 256;
    ASSERT_STATUS(DEND_OK, dend_engine_create(&ed, &engine, NULL));
    for (f = 0; f < 3; f++) { /* the last: its own */
        const char *family = families[f];
        dend_chat_message m[5];
        int32_t whole[256], turns[256], reply[16];
        dend_seq seq;
        dend_seq_info info;
        size_t n, n_reply = 0;
        dend_status status;
        for (i = 0; i < 5; i++) m[i] = chat_say(i % 2 ? DEND_ROLE_ASSISTANT : DEND_ROLE_USER, says[i]);
        ASSERT_STATUS(DEND_OK, dend_chat_tokenize(model, family, m, 5, DEND_CHAT_GENERATE, whole, 256, &n));
        ASSERT_STATUS(DEND_OK, dend_seq_create(engine, &seq));
        for (i = 0; i < 5; i += 2) {
            uint32_t flags = DEND_CHAT_GENERATE | (i ? DEND_CHAT_AFTER_REPLY : 0);
            ASSERT_STATUS(DEND_OK, dend_seq_append_chat(engine, seq, family, &m[i], 1, flags));
            if (i == 4) break;
            ASSERT_STATUS(DEND_OK, dend_tokenize(model, says[i + 1], (size_t)-1, 0, reply, 16, &n_reply));
            ASSERT_STATUS(DEND_OK, dend_seq_append(engine, seq, reply, n_reply));
        }
        ASSERT_STATUS(DEND_OK, dend_seq_get_info(engine, seq, &info));
        assert_int_equal(info.len_tokens, n);
        ASSERT_STATUS(DEND_OK, dend_seq_tokens(engine, seq, 0, info.len_tokens, turns));
        assert_memory_equal(turns, whole, n * sizeof *whole);
        /* errors change nothing */
        m[0].role = DEND_ROLE_TOOL;
        status = dend_seq_append_chat(engine, seq, "zephyr", m, 1, 0);
        ASSERT_STATUS(DEND_ERR_UNSUPPORTED, status);
        for (i = 0; i < 5; i++)
            m[i] = chat_say(i % 2 ? DEND_ROLE_ASSISTANT : DEND_ROLE_USER,
                            "a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a "
                            "a a a a a a a a a a a a a a a a a a");
        ASSERT_STATUS(DEND_ERR_CONTEXT_FULL, dend_seq_append_chat(engine, seq, "chatml", m, 5, 0));
        ASSERT_STATUS(DEND_OK, dend_seq_get_info(engine, seq, &info));
        assert_int_equal(info.len_tokens, n);
        ASSERT_STATUS(DEND_OK, dend_seq_drop(engine, seq));
        ASSERT_STATUS(DEND_ERR_STALE, dend_seq_append_chat(engine, seq, "chatml", m, 1, 0));
    }
    dend_engine_free(engine);
    dend_model_free(model);
}

static const struct CMUnitTest tests_model_chat[] = {
    cmocka_unit_test(chat_goldens),
    cmocka_unit_test(chat_safety),
    cmocka_unit_test(chat_contract),
    cmocka_unit_test(chat_turns),
};
