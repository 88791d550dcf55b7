/* What programs ask of an engine beside tokens: memory of their own, a log, and
 * something sensible when a context is full. (Helpers: test_engine_api.c.) */

/* -- fixed memory ------------------------------------------------------------ */

#define FIXED_BYTES ((size_t)1 << 16)
#define FIXED_MOST 60u

typedef struct fixed_piece {
    unsigned char *p;
    size_t size;
    unsigned char mark;
} fixed_piece;

static void fixed_check(const fixed_piece *pieces, const dend_allocator *a, size_t n_bytes) {
    size_t used = 0, i, k;
    dend_fixed_info info;
    for (i = 0; i < FIXED_MOST; i++) {
        for (k = 0; pieces[i].p && k < pieces[i].size; k++) {
            assert_int_equal(pieces[i].p[k], pieces[i].mark);
        }
        used += pieces[i].p ? ((pieces[i].size ? pieces[i].size : 1) + 63) / 64 * 64 : 0;
    }
    dend_fixed_get_info(a, &info);
    assert_int_equal(info.n_bytes, n_bytes);
    assert_int_equal(info.n_used, used);
    assert_true(info.n_peak >= used && info.n_peak <= n_bytes);
    assert_true(info.n_largest_free <= n_bytes - used);
}

/* Random requests: pieces lie inside, apart and aligned, keep what is written, and join again. */
static void test_manners_fixed_memory(void **state) {
    unsigned char *memory = (unsigned char *)malloc(FIXED_BYTES + 1);
    uint32_t seed;
    (void)state;
    assert_non_null(memory);
    for (seed = 0; seed < 40; seed++) {
        fixed_piece pieces[FIXED_MOST];
        dend_allocator a;
        dend_fixed_info info;
        test_rng rng;
        uint32_t turn, i, n_refused = 0;
        size_t n_bytes;
        rng.state = seed + 1;
        memset(pieces, 0, sizeof pieces);
        ASSERT_STATUS(DEND_OK, dend_fixed_memory(memory + seed % 2, FIXED_BYTES - seed, &a));
        dend_fixed_get_info(&a, &info);
        n_bytes = info.n_bytes;
        assert_true(n_bytes > FIXED_BYTES - 400 && n_bytes % 64 == 0 && info.n_largest_free == n_bytes);
        for (turn = 0; turn < 2000; turn++) {
            fixed_piece *piece = &pieces[test_below(&rng, FIXED_MOST)];
            if (piece->p) {
                a.free(a.user, piece->p, piece->size);
                piece->p = NULL;
            } else {
                size_t align = (size_t)1 << test_below(&rng, 13);
                piece->size = test_below(&rng, test_below(&rng, 4) ? 900 : 9000);
                piece->mark = (unsigned char)turn;
                piece->p = (unsigned char *)a.alloc(a.user, piece->size, align);
                dend_fixed_get_info(&a, &info);
                if (piece->p) {
                    assert_true(piece->p >= memory && piece->p + piece->size <= memory + FIXED_BYTES);
                    assert_true((uintptr_t)piece->p % align == 0);
                    memset(piece->p, piece->mark, piece->size);
                } else { /* there is none that large, aligned so */
                    assert_true(info.n_largest_free < piece->size + 64 + align);
                    n_refused++;
                }
            }
            if (turn % 16 == 0) {
                fixed_check(pieces, &a, n_bytes);
            }
        }
        assert_true(n_refused > 10);
        for (i = 0; i < FIXED_MOST; i++) {
            a.free(a.user, pieces[i].p, pieces[i].size);
        }
        dend_fixed_get_info(&a, &info);
        assert_int_equal(info.n_used, 0);
        assert_int_equal(info.n_largest_free, n_bytes);
        a.free(a.user, memory + FIXED_BYTES / 2 / 64 * 64, 64); /* is free already */
        a.free(a.user, &rng, 64);                               /* is not of this block */
        dend_fixed_get_info(&a, &info);
        assert_int_equal(info.n_largest_free, n_bytes);
        assert_null(a.alloc(a.user, SIZE_MAX, 64));
        assert_null(a.alloc(a.user, SIZE_MAX - 64, 4096));
        assert_null(a.alloc(a.user, n_bytes + 1, 64));
    }
    free(memory);
}

/* A model, an engine, a scheduler and a search in one block; in a smaller one the
 * call that finds no room says so and gives all back. */
static void test_manners_fixed_engine(void **state) {
    dend_model *plain = eng_load(ENG_LLAMA_F32);
    const size_t most = (size_t)4 << 20;
    unsigned char *memory = (unsigned char *)malloc(most);
    int32_t tokens[40];
    float expected[ENG_V];
    dend_allocator a;
    dend_fixed_info info;
    test_rng rng;
    size_t n, needed = most;
    uint32_t n_made = 0, n_failed[4] = {0, 0, 0, 0}, i;
    (void)state;
    assert_non_null(memory);
    rng.state = 1;
    eng_tokens(&rng, tokens, 40);
    eng_fresh(plain, DEND_KV_F16, 16, tokens, 40, expected, NULL);
    for (n = most; n > 1000; n = n == most ? needed : n - (n_failed[1] ? 1 + n / 50 : 512)) {
        dend_model_desc md;
        dend_engine_desc ed;
        dend_scheduler_desc sd;
        dend_model *model = NULL;
        dend_engine *e = NULL;
        dend_scheduler *s = NULL;
        dend_status status;
        memset(&md, 0, sizeof md);
        memset(&sd, 0, sizeof sd);
        memset(memory, 0xaa, most);
        ASSERT_STATUS(DEND_OK, dend_fixed_memory(memory, n, &a));
        md.path = ENG_LLAMA_F32;
        md.allocator = a;
        status = dend_model_load(&md, &model, NULL);
        if (status == DEND_OK) {
            ed = eng_desc(model);
            ed.n_ctx = 64;
            ed.n_seqs = 4;
            ed.allocator = a;
            status = dend_engine_create(&ed, &e, NULL);
        }
        if (status == DEND_OK) {
            sd.engine = e;        /* takes the engine's allocator */
            sd.n_requests = 2000; /* more than fits where the loader has left holes */
            status = dend_scheduler_create(&sd, &s, NULL);
        }
        if (status == DEND_OK) {
            dend_seq seq = eng_with(e, tokens, 40);
            ASSERT_STATUS(DEND_OK, dend_step(e, 0));
            eng_equal(expected, eng_logits(e, seq), "in a block", (uint32_t)n);
            n_made++;
        } else {
            ASSERT_STATUS(DEND_ERR_MEMORY, status);
            n_failed[!model ? 0 : !e ? 1 : 2]++;
        }
        dend_fixed_get_info(&a, &info);
        if (n == most) {
            needed = info.n_peak * 3 / 2; /* loading leaves holes */
        }
        dend_scheduler_free(s);
        dend_engine_free(e);
        dend_model_free(model);
        dend_fixed_get_info(&a, &info);
        assert_int_equal(info.n_used, 0);
        assert_int_equal(info.n_largest_free, info.n_bytes);
        for (i = 0; n < most && i < 100; i++) {
            assert_int_equal(memory[n + i], 0xaa);
        }
    }
    assert_true(n_made >= 2 && n_failed[0] > 10 && n_failed[1] > 0 && n_failed[2] > 0);
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_fixed_memory(NULL, 1000, &a));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_fixed_memory(memory, 1000, NULL));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_fixed_memory(memory, 0, &a));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_fixed_memory(memory, 127, &a));
    memset(&a, 0, sizeof a);
    dend_fixed_get_info(&a, &info);
    assert_int_equal(info.n_bytes, 0);
    dend_fixed_get_info(NULL, &info);
    dend_fixed_get_info(&a, NULL);
    free(memory);
    dend_model_free(plain);
}

/* -- log ------------------------------------------------------------------------ */

typedef struct manners_log {
    char text[2048];
    uint32_t n_lines, n_warnings;
} manners_log;

static void manners_write(void *user, dend_log_level level, const char *text) {
    manners_log *l = (manners_log *)user;
    assert_true(strlen(text) < 256 && !strchr(text, '\n'));
    assert_true(strlen(l->text) + strlen(text) + 2 < sizeof l->text);
    strcat(strcat(l->text, text), "\n");
    l->n_lines++;
    l->n_warnings += level == DEND_LOG_WARNING;
}

static void test_manners_log(void **state) {
    dend_model_desc md;
    dend_engine_desc ed;
    dend_model *model;
    dend_engine *e;
    manners_log l;
    (void)state;
    memset(&l, 0, sizeof l);
    memset(&md, 0, sizeof md);
    md.path = ENG_LLAMA_F32;
    md.log.write = manners_write;
    md.log.user = &l;
    ASSERT_STATUS(DEND_OK, dend_model_load(&md, &model, NULL));
    assert_int_equal(l.n_lines, 1);
    assert_non_null(strstr(l.text, "llama, 2 layers, "));
    ed = eng_desc(model);
    ed.log = md.log;
    ed.isa = DEND_ISA_SCALAR; /* as asked: nothing to warn of */
    ASSERT_STATUS(DEND_OK, dend_engine_create(&ed, &e, NULL));
    assert_int_equal(l.n_lines, 2);
    assert_int_equal(l.n_warnings, 0);
    assert_non_null(strstr(l.text, "engine: scalar, 1 thread, "));
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    dend_engine_free(e);
    dend_model_free(model);
    assert_int_equal(l.n_lines, 2);
    md.path = "tests/golden/no_such_file.gguf";
    ASSERT_STATUS(DEND_ERR_IO, dend_model_load(&md, &model, NULL));
    assert_int_equal(l.n_lines, 2); /* the status has said it */
}

/* -- a full context ----------------------------------------------------------------- */

/* A sequence that slides says what a fresh one says to what is left of it. */
static void test_manners_slide(void **state) {
    uint32_t k;
    (void)state;
    for (k = 0; k < 12; k++) {
        dend_model *model = eng_load(eng_paths[k % 3]);
        dend_engine_desc d = eng_desc(model);
        dend_engine *e;
        dend_seq seq, fork;
        int32_t text[64], all[64];
        float expected[ENG_V];
        test_rng rng;
        uint32_t len = 0, turn, n_slides = 0;
        uint64_t stream;
        rng.state = 70 + k;
        d.n_ctx = 40 + k;
        d.n_sink = k % 4 * 3;
        d.context_policy = DEND_CONTEXT_SLIDE;
        e = eng_open(&d);
        seq = eng_seq(e);
        stream = eng_info(e, seq).stream;
        for (turn = 0; turn < 60; turn++) {
            uint32_t sink = e->desc.n_sink, n = 1 + test_below(&rng, turn % 7 == 0 ? 20 : 5), keep;
            int32_t tokens[20];
            eng_tokens(&rng, tokens, n);
            fork = eng_fork(e, seq);
            if (turn % 3 == 0 && len > 1) {
                (void)dendp_step_run(e, 1); /* a batch is under way */
            }
            ASSERT_STATUS(DEND_OK, dend_seq_append(e, seq, tokens, n));
            if (len + n > d.n_ctx) {
                keep = (len - sink) / 2 < d.n_ctx - sink - n ? (len - sink) / 2 : d.n_ctx - sink - n;
                memmove(text + sink, text + len - keep, keep * sizeof text[0]);
                len = sink + keep;
                n_slides++;
                assert_true(eng_info(e, seq).stream != stream);
                stream = eng_info(e, seq).stream;
            }
            assert_true(eng_info(e, seq).stream == stream);
            memcpy(text + len, tokens, n * sizeof text[0]);
            len += n;
            assert_int_equal(eng_info(e, seq).len_tokens, len);
            ASSERT_STATUS(DEND_OK, dend_seq_tokens(e, seq, 0, len, all));
            assert_memory_equal(all, text, len * sizeof text[0]);
            if (turn % 4 == 0) {
                ASSERT_STATUS(DEND_OK, dend_step(e, 0));
                eng_fresh(model, DEND_KV_F16, 16, text, len, expected, NULL);
                eng_equal(expected, eng_logits(e, seq), "slide", turn);
            }
            if (eng_info(e, fork).len_tokens > 0 && turn % 4 == 1) { /* which has not moved */
                uint32_t n_fork = eng_info(e, fork).len_tokens;
                ASSERT_STATUS(DEND_OK, dend_seq_tokens(e, fork, 0, n_fork, all));
                ASSERT_STATUS(DEND_OK, dend_seq_want_logits(e, fork));
                ASSERT_STATUS(DEND_OK, dend_step(e, 0));
                eng_fresh(model, DEND_KV_F16, 16, all, n_fork, expected, NULL);
                eng_equal(expected, eng_logits(e, fork), "fork", turn);
            }
            ASSERT_STATUS(DEND_OK, dend_seq_drop(e, fork));
        }
        assert_true(n_slides > 5);
        eng_tokens(&rng, all, 64);
        ENG_REFUSED(DEND_ERR_CONTEXT_FULL, e, dend_seq_append(e, seq, all, d.n_ctx - e->desc.n_sink + 1));
        eng_all_free(e);
        dend_engine_free(e);
        dend_model_free(model);
    }
}

/* Too few blocks for the old text and the new one beside each other: nothing has changed. */
static void test_manners_slide_blocks(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F16);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e;
    dend_seq seq;
    int32_t tokens[64], all[64];
    float expected[ENG_V];
    test_rng rng;
    (void)state;
    rng.state = 9;
    eng_tokens(&rng, tokens, 64);
    d.n_ctx = 64;
    d.n_blocks = 5;
    d.context_policy = DEND_CONTEXT_SLIDE;
    e = eng_open(&d);
    seq = eng_with(e, tokens, 64);
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    memcpy(expected, eng_logits(e, seq), sizeof expected);
    ASSERT_STATUS(DEND_ERR_NO_BLOCKS, dend_seq_append(e, seq, tokens, 1));
    eng_equal(expected, eng_logits(e, seq), "refused", 0);
    assert_int_equal(eng_info(e, seq).len_tokens, 64);
    ASSERT_STATUS(DEND_OK, dend_seq_tokens(e, seq, 0, 64, all));
    assert_memory_equal(all, tokens, sizeof tokens);
    assert_int_equal(eng_blocks_free(e), 1);
    assert_int_equal(eng_stats(e).n_logits_free, e->desc.n_logits - 1);
    ASSERT_STATUS(DEND_OK, dend_seq_rewind(e, seq, 63));
    ASSERT_STATUS(DEND_OK, dend_seq_append(e, seq, tokens, 1));
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    eng_all_free(e);
    dend_engine_free(e);
    d.n_sink = 32;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_engine_create(&d, &e, NULL));
    d.n_sink = 31;
    ASSERT_STATUS(DEND_OK, dend_engine_create(&d, &e, NULL));
    dend_engine_free(e);
    d.context_policy = DEND_CONTEXT_CALLBACK;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_engine_create(&d, &e, NULL)); /* without one */
    d.context_policy = (dend_context_policy)7;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_engine_create(&d, &e, NULL));
    dend_model_free(model);
}

typedef struct manners_full {
    uint32_t what, n_calls;
    size_t n;
} manners_full;

static bool manners_on_full(void *user, dend_engine *engine, dend_seq seq, size_t n_tokens) {
    manners_full *f = (manners_full *)user;
    f->n_calls++;
    f->n = n_tokens;
    switch (f->what) {
    case 0:
        return false;
    case 1:
        ASSERT_STATUS(DEND_OK, dend_seq_rewind(engine, seq, 10));
        return true;
    case 2:
        return true; /* without having made room */
    case 4:          /* with a text of its own, and one that does not fit either */
        ASSERT_STATUS(DEND_OK, dend_seq_rewind(engine, seq, 5));
        ASSERT_STATUS(DEND_OK, dend_seq_append_text(engine, seq, "zzz", 3, 0));
        ASSERT_STATUS(DEND_ERR_CONTEXT_FULL,
                      dend_seq_append_text(engine, seq, "0123456789012345678901234567890123456789", 40, 0));
        return true;
    default:
        ASSERT_STATUS(DEND_OK, dend_seq_drop(engine, seq));
        return true;
    }
}

static void test_manners_callback(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F16);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e;
    dend_seq seq;
    int32_t tokens[40], token;
    manners_full f;
    test_rng rng;
    (void)state;
    memset(&f, 0, sizeof f);
    rng.state = 10;
    eng_tokens(&rng, tokens, 40);
    d.n_ctx = 40;
    d.context_policy = DEND_CONTEXT_CALLBACK;
    d.on_context_full = manners_on_full;
    d.context_user = &f;
    e = eng_open(&d);
    seq = eng_with(e, tokens, 38);
    ASSERT_STATUS(DEND_ERR_CONTEXT_FULL, dend_seq_append(e, seq, tokens, 3));
    assert_int_equal(f.n_calls, 1);
    assert_int_equal(f.n, 3);
    assert_int_equal(eng_info(e, seq).len_tokens, 38);
    f.what = 2;
    ASSERT_STATUS(DEND_ERR_CONTEXT_FULL, dend_seq_append(e, seq, tokens, 3));
    assert_int_equal(f.n_calls, 2); /* once */
    f.what = 1;
    ASSERT_STATUS(DEND_OK, dend_seq_append(e, seq, tokens, 3));
    assert_int_equal(eng_info(e, seq).len_tokens, 13);
    while (eng_info(e, seq).len_tokens < 40) {
        ASSERT_STATUS(DEND_OK, dend_next(e, seq, NULL, &token));
    }
    ASSERT_STATUS(DEND_OK, dend_next(e, seq, NULL, &token)); /* by way of the callback, too */
    assert_int_equal(eng_info(e, seq).len_tokens, 11);
    ASSERT_STATUS(DEND_OK, dend_seq_append(e, seq, tokens, 29));
    f.what = 4;
    f.n_calls = 0;
    ASSERT_STATUS(DEND_OK, dend_seq_append_text(e, seq, "abc", 3, 0));
    assert_int_equal(f.n_calls, 1);
    {
        int32_t want[16], have[16];
        size_t n_z, n_abc;
        ASSERT_STATUS(DEND_OK, dend_tokenize(model, "zzz", 3, 0, want, 8, &n_z));
        ASSERT_STATUS(DEND_OK, dend_tokenize(model, "abc", 3, 0, want + n_z, 8, &n_abc));
        assert_int_equal(eng_info(e, seq).len_tokens, 5 + n_z + n_abc);
        ASSERT_STATUS(DEND_OK, dend_seq_tokens(e, seq, 5, (uint32_t)(n_z + n_abc), have));
        assert_memory_equal(have, want, (n_z + n_abc) * sizeof want[0]);
    }
    ASSERT_STATUS(DEND_OK, dend_seq_append(e, seq, tokens, 40 - eng_info(e, seq).len_tokens));
    f.n_calls = 0;
    {
        int32_t many[41];
        memset(many, 0, sizeof many);
        ASSERT_STATUS(DEND_ERR_CONTEXT_FULL,
                      dend_seq_append(e, seq, many, 41)); /* no room can be made for so many */
    }
    assert_int_equal(f.n_calls, 0);
    f.what = 3;
    ASSERT_STATUS(DEND_ERR_STALE, dend_seq_append(e, seq, tokens, 1));
    eng_all_free(e);
    dend_engine_free(e);
    dend_model_free(model);
}

/* -- plans before loading --------------------------------------------------------------- */

static const char *const manners_models[] = {ENG_LLAMA_F32,
                                             ENG_QWEN2,
                                             "tests/golden/tiny_gemma3.gguf",
                                             "tests/golden/tiny_llama_yarn.gguf",
                                             "tests/golden/hf_llama",
                                             "tests/golden/hf_gemma3"};

/* What dend_plan_file says is what the allocator sees, for every way to load. */
static void test_manners_plan_file(void **state) {
    uint32_t k, how, n_planned = 0;
    (void)state;
    for (k = 0; k < sizeof manners_models / sizeof manners_models[0]; k++) {
        for (how = 0; how < 12; how++) {
            dend_model_desc md;
            dend_engine_desc ed;
            dend_plan_info plan, again;
            dend_model *model;
            dend_model_info info;
            dend_engine *e;
            test_heap heap;
            uint64_t before;
            dend_status status;
            memset(&md, 0, sizeof md);
            memset(&ed, 0, sizeof ed);
            memset(&heap, 0, sizeof heap);
            md.path = manners_models[k];
            md.no_mmap = how % 2 != 0;
            md.keep_file_layout = how / 2 % 2 != 0;
            md.quantise = (dend_weight_type)(how / 4);
            md.allocator = test_heap_allocator(&heap);
            ed.allocator = md.allocator;
            ed.n_ctx = 64;
            ed.n_threads = 1;
            ed.context_policy = how % 3 ? DEND_CONTEXT_SLIDE : DEND_CONTEXT_DEFAULT;
            status = dend_plan_file(&md, &ed, &plan, NULL);
            assert_int_equal(heap.n_live_bytes, 0);
            ASSERT_STATUS(status, dend_model_load(&md, &model, NULL));
            if (status != DEND_OK) { /* rows that are no multiple of a block */
                ASSERT_STATUS(DEND_ERR_UNSUPPORTED, status);
                assert_true(md.quantise != DEND_WEIGHT_DEFAULT);
                continue;
            }
            n_planned++;
            assert_int_equal(heap.n_live_bytes, plan.model_bytes);
            dend_model_get_info(model, &info);
            assert_int_equal(info.weight_bytes, plan.weight_bytes);
            ed.model = model;
            before = heap.n_live_bytes;
            ASSERT_STATUS(DEND_OK, dend_plan(&ed, &again, NULL));
            assert_memory_equal(&again, &plan, sizeof plan);
            ASSERT_STATUS(DEND_OK, dend_engine_create(&ed, &e, NULL));
            assert_int_equal(heap.n_live_bytes - before, plan.total_bytes);
            ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_plan_file(&md, &ed, &again, NULL)); /* with a model */
            assert_memory_equal(&again, &plan, sizeof plan);
            dend_engine_free(e);
            dend_model_free(model);
            assert_int_equal(heap.n_live_bytes, 0);
        }
    }
    assert_true(n_planned > 6 * 4 + 8);
}

/* Every error of loading and of planning; memory that runs out leaves nothing behind. */
static void test_manners_plan_file_refused(void **state) {
    dend_model_desc md;
    dend_engine_desc ed;
    dend_plan_info plan;
    dend_error error;
    test_heap heap;
    dend_status status = DEND_ERR_MEMORY;
    uint64_t n;
    (void)state;
    memset(&md, 0, sizeof md);
    memset(&ed, 0, sizeof ed);
    memset(&plan, 0x5a, sizeof plan);
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_plan_file(NULL, NULL, &plan, &error));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_plan_file(&md, NULL, &plan, &error)); /* from nowhere */
    md.path = ENG_LLAMA_F32;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_plan_file(&md, NULL, NULL, &error));
    md.vocab_only = true;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_plan_file(&md, NULL, &plan, &error));
    md.vocab_only = false;
    ed.block_tokens = 15;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_plan_file(&md, &ed, &plan, &error));
    md.path = "tests/golden/no_such_file.gguf";
    ASSERT_STATUS(DEND_ERR_IO, dend_plan_file(&md, NULL, &plan, &error));
    md.path = ENG_VOCAB_ONLY;
    assert_true(dend_plan_file(&md, NULL, &plan, &error) < 0); /* no weights */
    for (n = 0; n < sizeof plan; n++) {
        assert_int_equal(((unsigned char *)&plan)[n], 0x5a);
    }
    md.path = "tests/golden/hf_llama";
    for (n = 1; status != DEND_OK; n++) {
        md.allocator = test_heap_allocator(&heap);
        heap.fail_at = n;
        status = dend_plan_file(&md, NULL, &plan, NULL);
        assert_true(status == DEND_OK || status == DEND_ERR_MEMORY);
        assert_int_equal(heap.n_live_bytes, 0);
    }
    assert_true(n > 2);
}

static const struct CMUnitTest tests_engine_manners[] = {
    cmocka_unit_test(test_manners_plan_file),    cmocka_unit_test(test_manners_plan_file_refused),
    cmocka_unit_test(test_manners_fixed_memory), cmocka_unit_test(test_manners_fixed_engine),
    cmocka_unit_test(test_manners_log),          cmocka_unit_test(test_manners_slide),
    cmocka_unit_test(test_manners_slide_blocks), cmocka_unit_test(test_manners_callback),
};
