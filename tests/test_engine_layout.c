/* Models that keep the file's layout: the same bits as packed ones for every
 * source, type, instruction set and way of running tasks; what they hold; and
 * that nothing leaks. Helpers: test_kernels_matmul.c, test_model_config.c,
 * test_engine_api.c, test_engine_plan.c. */

/* -- panels ------------------------------------------------------------------ */

/* Each panel and each row of an unaligned file equals those of the packed matrix. */
static void test_layout_panels(void **state) {
    uint32_t t, round, i;
    test_rng rng;
    (void)state;
    rng.state = 71;
    for (t = 0; t < MM_N_TYPES; t++) {
        for (round = 0; round < 6; round++) {
            uint32_t n_rows = 1 + test_below(&rng, 50), k = mm_k(mm_types[t].id, 1 + test_below(&rng, 900));
            mm_matrix m;
            dendp_panels file;
            unsigned char *rows, *buffer;
            float *a = (float *)mm_alloc(k * sizeof(float)), *b = (float *)mm_alloc(k * sizeof(float));
            mm_make(&m, &mm_types[t], n_rows, k, &rng, -1);
            rows = (unsigned char *)malloc((size_t)(n_rows * m.p.file_row_bytes + 1));
            assert_non_null(rows);
            memcpy(rows + 1, m.file, (size_t)(n_rows * m.p.file_row_bytes));
            buffer = (unsigned char *)mm_alloc((size_t)m.p.panel_bytes);
            file = m.p;
            file.data = NULL;
            file.rows = rows + 1;
            for (i = 0; i < m.p.n_panels; i++) {
                dendp_panels packed = dendp_panels_one(&m.p, i, NULL);
                dendp_panels one = dendp_panels_one(&file, i, buffer);
                assert_ptr_equal(packed.data, m.data + i * m.p.panel_bytes);
                assert_ptr_equal(one.data, buffer);
                assert_null(one.rows);
                assert_int_equal(one.n_panels, 1);
                assert_int_equal(one.n_rows, dendp_min_u32(16, n_rows - 16 * i));
                assert_int_equal(packed.n_rows, one.n_rows);
                assert_memory_equal(packed.data, one.data, (size_t)m.p.panel_bytes);
            }
            for (i = 0; i < n_rows; i++) {
                dendp_panels_get_row(&m.p, i, a);
                dendp_panels_get_row(&file, i, b);
                assert_memory_equal(a, b, k * sizeof(float));
            }
            free(a);
            free(b);
            free(rows);
            free(buffer);
            mm_free(&m);
        }
    }
}

/* -- engines ----------------------------------------------------------------- */

static dend_model *layout_load(const dend_model_desc *desc, bool keep) {
    dend_model_desc d = *desc;
    dend_model *model = NULL;
    dend_model_info info;
    dend_error error;
    memset(&error, 0, sizeof error);
    d.keep_file_layout = keep;
    if (dend_model_load(&d, &model, &error) != DEND_OK) {
        fail_msg("model: %s", error.msg);
    }
    dend_model_get_info(model, &info);
    assert_int_equal(info.file_layout, keep);
    return model;
}

enum { LAYOUT_ROWS = 70, LAYOUT_OUT = 5 };

/* Logits of a prompt, of decoded tokens behind it, and of a token tree.  out [LAYOUT_OUT][V]. */
static void layout_run(const dend_engine_desc *d, float *out) {
    const int32_t parents[3] = {-1, 0, 0};
    int32_t tokens[LAYOUT_ROWS];
    size_t V = d->model->config.n_vocab, row = V * sizeof(float);
    dend_engine *e = NULL;
    const float *logits = NULL;
    dend_tree tree;
    dend_seq seq;
    test_rng rng;
    uint32_t i;
    rng.state = 5;
    for (i = 0; i < LAYOUT_ROWS; i++) {
        tokens[i] = (int32_t)test_below(&rng, (uint32_t)V);
    }
    ASSERT_STATUS(DEND_OK, dend_engine_create(d, &e, NULL));
    ASSERT_STATUS(DEND_OK, dend_seq_create(e, &seq));
    for (i = 0; i < 3; i++) {
        ASSERT_STATUS(DEND_OK, dend_seq_append(e, seq, tokens, i == 0 ? LAYOUT_ROWS : 1));
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
        ASSERT_STATUS(DEND_OK, dend_seq_logits(e, seq, &logits));
        memcpy(out + i * V, logits, row);
    }
    memset(&tree, 0, sizeof tree);
    tree.seq = seq;
    tree.n_rows = 3;
    tree.tokens = tokens + 3;
    tree.parents = parents;
    ASSERT_STATUS(DEND_OK, dend_tree_eval(e, &tree, 1));
    memcpy(out + 3 * V, dend_tree_logits(e, 0, 1), row);
    memcpy(out + 4 * V, dend_tree_logits(e, 0, 2), row);
    dend_engine_free(e);
}

/* Both models give the same bits, with this description otherwise. */
static void layout_same(dend_engine_desc *d, const dend_model *packed, const dend_model *file,
                        const char *what, uint32_t id) {
    size_t n = (size_t)LAYOUT_OUT * packed->config.n_vocab, i;
    float *a = (float *)malloc(n * sizeof(float)), *b = (float *)malloc(n * sizeof(float));
    assert_true(a && b);
    d->model = packed;
    layout_run(d, a);
    d->model = file;
    layout_run(d, b);
    for (i = 0; i < n; i++) {
        assert_true(dendp_finite(a[i]));
        if (memcmp(&a[i], &b[i], sizeof(float)) != 0) {
            fail_msg("%s %u: number %zu is %.9g, expected %.9g", what, id, i, (double)b[i], (double)a[i]);
        }
    }
    free(a);
    free(b);
}

static dend_engine_desc layout_desc(void) {
    dend_engine_desc d = eng_desc(NULL);
    d.n_ctx = 96;
    d.n_seqs = 2;
    return d;
}

static void test_layout_golden_models(void **state) {
    uint32_t m, source, k, i;
    (void)state;
    for (m = 0; m < ENG_N_MODELS; m++) {
        dend_model *packed;
        plan_bytes file;
        memset(&file, 0, sizeof file);
        file.data = test_read_file(eng_paths[m], &file.n);
        assert_non_null(file.data);
        packed = eng_load(eng_paths[m]);
        for (source = PLAN_MAPPED; source <= PLAN_CALLBACK; source++) {
            dend_model_desc md = plan_source(source, eng_paths[m], &file);
            dend_model *kept = layout_load(&md, true);
            for (k = 0; k < 3; k++) {
                for (i = 0; i < MM_N_ISAS; i++) {
                    dend_engine_desc d = layout_desc();
                    d.kv_type = eng_kv_types[k];
                    d.isa = mm_isas[i];
                    d.n_threads = 1 + (i + source) % 3;
                    d.n_batch = 1 + 40 * (k % 2);
                    if (dendp_kernels_get(d.isa)) {
                        layout_same(&d, packed, kept, eng_paths[m], source);
                    }
                }
            }
            dend_model_free(kept);
        }
        dend_model_free(packed);
        free(file.data);
    }
}

/* A model of one layer whose matrices all have one type: 256 wide, so that all types fit, 40 tokens. */
static unsigned char *layout_build(const mm_type *type, size_t *size) {
    static const char *const names[9] = {
        "token_embd.weight",   "blk.0.attn_q.weight",      "blk.0.attn_k.weight",
        "blk.0.attn_v.weight", "blk.0.attn_output.weight", "blk.0.ffn_gate.weight",
        "blk.0.ffn_up.weight", "blk.0.ffn_down.weight",    "output.weight"};
    static const char *const norms[3] = {"blk.0.attn_norm.weight", "blk.0.ffn_norm.weight",
                                         "output_norm.weight"};
    static const uint32_t rows[9] = {40, 256, 128, 128, 256, 256, 256, 256, 40};
    config_case c = config_default("llama");
    config_file f;
    unsigned char *data;
    test_rng rng;
    uint32_t i, j;
    rng.state = 77;
    c.V = 40;
    c.D = c.F = 256;
    c.H = 4;
    c.G = 2;
    c.L = 1;
    memset(&f, 0, sizeof f);
    f.data = f.p = (unsigned char *)calloc(1, 2u << 20);
    assert_non_null(f.data);
    memcpy(f.p, "GGUF\3\0\0\0", 8);
    f.p += 24;
    config_base_kv(&f, &c, "general.architecture", DENDP_GGUF_STRING, 0, c.arch);
    config_base_kv(&f, &c, "*block_count", DENDP_GGUF_U32, c.L, NULL);
    config_base_kv(&f, &c, "*context_length", DENDP_GGUF_U32, 2048, NULL);
    config_base_kv(&f, &c, "*embedding_length", DENDP_GGUF_U32, c.D, NULL);
    config_base_kv(&f, &c, "*feed_forward_length", DENDP_GGUF_U32, c.F, NULL);
    config_base_kv(&f, &c, "*attention.head_count", DENDP_GGUF_U32, c.H, NULL);
    config_base_kv(&f, &c, "*attention.head_count_kv", DENDP_GGUF_U32, c.G, NULL);
    config_base_kv(&f, &c, "*attention.layer_norm_rms_epsilon", DENDP_GGUF_F32, dendp_f32_bits(1e-5f), NULL);
    c.vector_type = DENDP_TYPE_F32;
    c.bent_type = type->id;
    for (i = 0; i < 9; i++) {
        c.bent = names[i];
        config_put_tensor(&f, &c, names[i], 256, rows[i]);
    }
    c.bent = NULL;
    for (i = 0; i < 3; i++) {
        config_put_tensor(&f, &c, norms[i], 256, 1);
    }
    data = f.data + (((size_t)(f.p - f.data) + 31) & ~(size_t)31);
    for (i = 0; i < 9; i++) {
        const dendp_type *t = dendp_type_find(type->id);
        uint64_t n_blocks = (uint64_t)rows[i] * 256 / t->block_elems;
        mm_fill(type, data, n_blocks, &rng, -1);
        data += (n_blocks * t->block_bytes + 31) & ~(uint64_t)31;
    }
    for (i = 0; i < 3; i++) {
        for (j = 0; j < 256; j++, data += 4) {
            float one = 1.0f + 0.25f * test_float(&rng);
            memcpy(data, &one, 4);
        }
    }
    *size = (size_t)(data - f.data);
    assert_true(*size <= 2u << 20);
    f.p = f.data + 8;
    config_put(&f, f.n_tensors, 8);
    config_put(&f, f.n_kvs, 8);
    return f.data;
}

static void test_layout_types(void **state) {
    uint32_t t, i;
    (void)state;
    for (t = 0; t < MM_N_TYPES; t++) {
        plan_bytes file;
        dend_model_desc md;
        dend_model *packed, *in_place, *copied;
        memset(&file, 0, sizeof file);
        file.data = layout_build(&mm_types[t], &file.n);
        md = plan_source(PLAN_DATA, NULL, &file);
        packed = layout_load(&md, false);
        in_place = layout_load(&md, true);
        md = plan_source(PLAN_CALLBACK, NULL, &file);
        copied = layout_load(&md, true);
        for (i = 0; i < MM_N_ISAS; i++) {
            dend_engine_desc d = layout_desc();
            d.isa = mm_isas[i];
            d.n_threads = 2;
            if (dendp_kernels_get(d.isa)) {
                layout_same(&d, packed, in_place, "in place, type", mm_types[t].id);
                layout_same(&d, packed, copied, "copied, type", mm_types[t].id);
            }
        }
        dend_model_free(packed);
        dend_model_free(in_place);
        dend_model_free(copied);
        free(file.data);
    }
}

/* Fewer buffers than threads that want one, and more workers than anyone has. */
static void test_layout_jobs(void **state) {
    dend_model_desc md = plan_source(PLAN_MAPPED, ENG_QWEN2, NULL);
    dend_model *packed = layout_load(&md, false), *kept = layout_load(&md, true);
    dend_engine_desc d = layout_desc();
    dend_plan_info few, many;
    uint32_t calls = 0;
    (void)state;
    d.jobs.user = &calls;
    d.jobs.run = eng_jobs_backwards;
    layout_same(&d, packed, kept, "jobs", 0);
    d.jobs.run = eng_jobs_two; /* on two threads, without having said so */
    layout_same(&d, packed, kept, "jobs", 1);
    assert_true(calls > 20);
    d.model = kept;
    ASSERT_STATUS(DEND_OK, dend_plan(&d, &few, NULL));
    d.jobs.n_workers = 4000000000u;
    ASSERT_STATUS(DEND_OK, dend_plan(&d, &many, NULL));
    assert_int_equal(many.scratch_bytes - few.scratch_bytes,
                     (DENDP_MAX_THREADS - 1) * (64 + kept->panel_bytes));
    layout_same(&d, packed, kept, "jobs", 2);
    dend_model_free(packed);
    dend_model_free(kept);
}

/* -- memory ------------------------------------------------------------------ */

/* What the model says it holds is what it asked for, and the plan is exact. */
static void test_layout_memory(void **state) {
    uint32_t m, source;
    (void)state;
    for (m = 0; m < 3; m++) {
        plan_bytes file;
        memset(&file, 0, sizeof file);
        file.data = test_read_file(eng_paths[m], &file.n);
        assert_non_null(file.data);
        for (source = PLAN_MAPPED; source <= PLAN_CALLBACK; source++) {
            dend_model_desc md = plan_source(source, eng_paths[m], &file);
            dend_engine_desc d = layout_desc();
            dend_model_info packed_info, info, vocab_info;
            dend_model *packed, *kept, *vocab;
            dend_plan_info plan, packed_plan;
            test_heap heap, engine_heap;
            dend_engine *e = NULL;
            uint64_t own, n_allocs;
            packed = layout_load(&md, false);
            dend_model_get_info(packed, &packed_info);
            md.allocator = test_heap_allocator(&heap);
            kept = layout_load(&md, true);
            own = heap.n_live_bytes;
            dend_model_get_info(kept, &info);
            assert_true(info.weight_bytes < own);
            if (source == PLAN_CALLBACK) { /* rows as they are in the file, beside the vectors */
                assert_true(info.weight_bytes <= file.n && info.weight_bytes > file.n / 4);
            } else if (source == PLAN_READ && kept->file.owned) {
                assert_true(info.weight_bytes > file.n);
            } else if (kept->file.mapped || source == PLAN_DATA) { /* norms and biases only */
                assert_true(info.weight_bytes < packed_info.weight_bytes / 4);
            }
            assert_int_equal(info.weight_bytes, kept->memory_bytes + (kept->file.owned ? file.n : 0));
            assert_int_equal(info.n_params, packed_info.n_params);

            d.n_threads = 3;
            d.model = packed;
            ASSERT_STATUS(DEND_OK, dend_plan(&d, &packed_plan, NULL));
            d.model = kept;
            d.allocator = test_heap_allocator(&engine_heap);
            ASSERT_STATUS(DEND_OK, dend_plan(&d, &plan, NULL));
            assert_int_equal(plan.total_bytes - packed_plan.total_bytes, 3 * (64 + kept->panel_bytes));
            assert_int_equal(plan.weight_bytes, info.weight_bytes);
            ASSERT_STATUS(DEND_OK, dend_engine_create(&d, &e, NULL));
            assert_int_equal(engine_heap.n_live_bytes, plan.total_bytes);
            n_allocs = heap.n_allocs;
            {
                const int32_t tokens[3] = {1, 2, 3};
                dend_seq seq = eng_with(e, tokens, 3);
                ASSERT_STATUS(DEND_OK, dend_step(e, 0));
                assert_true(dend_token_bytes(kept, 65, NULL) != NULL);
                ASSERT_STATUS(DEND_OK, dend_seq_drop(e, seq));
            }
            assert_int_equal(heap.n_allocs, n_allocs);
            assert_int_equal(engine_heap.n_allocs, 1);
            dend_engine_free(e);
            dend_model_free(kept);
            assert_int_equal(heap.n_live_bytes, 0);

            md.allocator = test_heap_allocator(&heap);
            md.vocab_only = md.keep_file_layout = true; /* nothing to keep: the file is closed */
            ASSERT_STATUS(DEND_OK, dend_model_load(&md, &vocab, NULL));
            dend_model_get_info(vocab, &vocab_info);
            assert_false(vocab_info.file_layout || vocab_info.has_weights);
            assert_int_equal(vocab_info.weight_bytes, 0);
            assert_null(vocab->file.data);
            dend_model_free(vocab);
            assert_int_equal(heap.n_live_bytes, 0);
            dend_model_free(packed);
        }
        free(file.data);
    }
}

/* Every allocation and every read of loading fails once: nothing stays, neither memory nor descriptors. */
static void test_layout_failures(void **state) {
    uint32_t m, source, n_before = 0, n_failed = 0;
    uint64_t nth;
    (void)state;
    for (m = 0; m < 3; m++) {
        plan_bytes file;
        memset(&file, 0, sizeof file);
        file.data = test_read_file(eng_paths[m], &file.n);
        assert_non_null(file.data);
        n_before = m == 0 ? plan_descriptors() : n_before;
        for (source = PLAN_MAPPED; source <= PLAN_CALLBACK + 1; source++) {
            bool reads = source > PLAN_CALLBACK;
            dend_status status = DEND_ERR_MEMORY;
            for (nth = 1; status != DEND_OK; nth++) {
                dend_model_desc d = plan_source(reads ? PLAN_CALLBACK : source, eng_paths[m], &file);
                dend_model *model = NULL;
                test_heap heap;
                d.keep_file_layout = true;
                d.allocator = test_heap_allocator(&heap);
                file.calls = 0;
                file.fail_at = reads ? (uint32_t)nth : 0;
                heap.fail_at = reads ? 0 : nth;
                status = dend_model_load(&d, &model, NULL);
                if (status != DEND_OK) {
                    ASSERT_STATUS(reads ? DEND_ERR_IO : DEND_ERR_MEMORY, status);
                    assert_null(model);
                    n_failed++;
                }
                dend_model_free(model);
                assert_int_equal(heap.n_live_bytes, 0);
                assert_true(nth < 2000);
            }
        }
        free(file.data);
    }
    assert_true(n_failed > 100);
    assert_int_equal(plan_descriptors(), n_before);
}

/* Weights that change under a running engine lead nowhere; those that change back are as before. */
static void test_layout_changed_bytes(void **state) {
    uint32_t m, round, i;
    test_rng rng;
    (void)state;
    rng.state = 12;
    for (m = 0; m < 3; m++) {
        plan_bytes file;
        dend_model_desc md;
        dend_model *model;
        unsigned char *original;
        size_t first;
        dend_engine_desc d = layout_desc();
        float *before, *after;
        memset(&file, 0, sizeof file);
        file.data = test_read_file(eng_paths[m], &file.n);
        original = (unsigned char *)malloc(file.n);
        assert_true(file.data && original);
        memcpy(original, file.data, file.n);
        md = plan_source(PLAN_DATA, NULL, &file);
        model = layout_load(&md, true);
        before = (float *)malloc(2 * LAYOUT_OUT * ENG_V * sizeof(float));
        assert_non_null(before);
        after = before + LAYOUT_OUT * ENG_V;
        d.model = model;
        layout_run(&d, before);
        first = (size_t)(model->layers[0].q.rows - file.data);
        for (round = 0; round < 4; round++) {
            for (i = 0; i < file.n / 16; i++) {
                file.data[first + test_below(&rng, (uint32_t)(file.n - first))] =
                    (unsigned char)(round ? test_below(&rng, 256) : 255);
            }
            layout_run(&d, after);
        }
        memcpy(file.data, original, file.n);
        layout_run(&d, after);
        assert_memory_equal(before, after, LAYOUT_OUT * ENG_V * sizeof(float));
        dend_model_free(model);
        free(before);
        free(original);
        free(file.data);
    }
}

static const struct CMUnitTest tests_engine_layout[] = {
    cmocka_unit_test(test_layout_panels),        cmocka_unit_test(test_layout_golden_models),
    cmocka_unit_test(test_layout_types),         cmocka_unit_test(test_layout_jobs),
    cmocka_unit_test(test_layout_memory),        cmocka_unit_test(test_layout_failures),
    cmocka_unit_test(test_layout_changed_bytes),
};
