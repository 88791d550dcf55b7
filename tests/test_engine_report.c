/* Counting processors (room 01.02) on text made up here, and the report of an
 * engine. Helpers: test_engine_api.c, test_engine_plan.c, test_engine_layout.c. */

/* -- lists of processors ----------------------------------------------------- */

static void test_cpu_list(void **state) {
    static const char *const good[][2] = {
        {"0", "0"},
        {"0,4", "0 4"},
        {"0-1", "0 1"},
        {"0-3,8-11\n", "0 1 2 3 8 9 10 11"},
        {"7\n", "7"},
        {"3,3,1", "1 3"},
        {"63-65", "63 64 65"},
        {"1023", "1023"},
        {"2-2", "2"},
        {"0,1024", "0"},
        {"1022-99999999999999999999", "1022 1023"},
        {"5000000000,2", "2"},
        {"1024-2000", ""},
        {"00,004", "0 4"},
    };
    static const char *const bad[] = {"",    "\n",    ",",    "0,",   ",0",    "-",
                                      "1-",  "-1",    "3-1",  "0 1",  "0;1",   "a",
                                      "0x1", "0-1-2", "0,,1", "1\n2", "0\n\n", "0-3:1/2",
                                      " 0",  "0,a",   "1.5",  "+1",   "0-\n",  "4294967296-1"};
    size_t i;
    (void)state;
    for (i = 0; i < sizeof good / sizeof good[0]; i++) {
        dendp_cpu_set set;
        char text[64];
        size_t n = 0;
        uint32_t cpu;
        memset(&set, 0xa5, sizeof set);
        assert_true(dendp_cpu_list(good[i][0], &set));
        text[0] = 0;
        for (cpu = 0; cpu < 1100; cpu++) {
            if (dendp_cpu_set_has(&set, cpu)) {
                n += (size_t)snprintf(text + n, sizeof text - n, "%s%u", n ? " " : "", (unsigned)cpu);
            }
        }
        assert_string_equal(text, good[i][1]);
    }
    for (i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        dendp_cpu_set set, empty;
        memset(&empty, 0, sizeof empty);
        memset(&set, 0xa5, sizeof set);
        if (dendp_cpu_list(bad[i], &set)) {
            fail_msg("accepted: %s", bad[i]);
        }
        assert_memory_equal(&set, &empty, sizeof set);
    }
}

/* A made-up machine: the list of every processor. */
typedef struct report_machine {
    const char *lists[8];
    uint32_t n_reads;
} report_machine;

static bool report_siblings(void *user, uint32_t cpu, char *text, size_t cap) {
    report_machine *m = (report_machine *)user;
    m->n_reads++;
    if (cpu >= 8 || !m->lists[cpu]) {
        return false;
    }
    snprintf(text, cap, "%s", m->lists[cpu]);
    return true;
}

static void test_core_count(void **state) {
    static const struct {
        const char *mask, *lists[8];
        uint32_t expected, reads;
    } cases[] = {
        /* two threads a core, in both usual orders */
        {"0-7", {"0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"}, 4, 4},
        {"0-7", {"0-1", "0-1", "2-3", "2-3", "4-5", "4-5", "6-7", "6-7"}, 4, 4},
        {"0-1", {"0-1", "0-1", "2-3", "2-3", 0, 0, 0, 0}, 1, 1},
        {"1,2", {"0-1", "0-1", "2-3", "2-3", 0, 0, 0, 0}, 2, 2}, /* a sibling outside of the mask */
        {"4-7", {"0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"}, 4, 4},
        {"0-3", {"0", "1", "2", "3", 0, 0, 0, 0}, 4, 4},
        {"0-5", {"0-1", "0-1", "2", "3", "4", "5", 0, 0}, 5, 5}, /* large cores and small ones */
        {"0-7", {"0-3", "0-3", "0-3", "0-3", "4-7", "4-7", "4-7", "4-7"}, 2, 2},
        /* nothing known, nonsense, lists without the processor itself */
        {"0-3", {0, 0, 0, 0, 0, 0, 0, 0}, 4, 4},
        {"0-3", {"", "x", "3-1", "\n", 0, 0, 0, 0}, 4, 4},
        {"0-3", {"1,2,3", "0", "0", "0", 0, 0, 0, 0}, 4, 4},
        {"6", {0, 0, 0, 0, 0, 0, "0-99999999999", 0}, 1, 1},
        {"0,9,1023", {"0", 0, 0, 0, 0, 0, 0, 0}, 3, 3},
    };
    size_t i;
    (void)state;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        report_machine m;
        dendp_cpu_set set;
        memcpy(m.lists, cases[i].lists, sizeof m.lists);
        m.n_reads = 0;
        assert_true(dendp_cpu_list(cases[i].mask, &set));
        assert_int_equal(dendp_core_count(&set, report_siblings, &m), cases[i].expected);
        assert_int_equal(m.n_reads, cases[i].reads);
    }
}

static void test_quota(void **state) {
    static const struct {
        const char *text;
        uint32_t expected;
    } cases[] = {
        {"max 100000\n", 0},
        {"100000 100000\n", 1},
        {"50000 100000\n", 1},
        {"1 100000", 1},
        {"100001 100000", 2},
        {"150000 100000", 2},
        {"400000 100000\n", 4},
        {"-1\n100000\n", 0},
        {"200000\n100000\n", 2},
        {"", 0},
        {"\n", 0},
        {"0 100000", 0},
        {"100000", 0},
        {"100000 0", 0},
        {"100000 x", 0},
        {"x 100000", 0},
        {"100000 -5", 0},
        {"99999999999999999999 1", UINT32_MAX},
        {"5 99999999999999999999", 1},
    };
    size_t i;
    (void)state;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (dendp_quota_count(cases[i].text) != cases[i].expected) {
            fail_msg("\"%s\" gives %u", cases[i].text, (unsigned)dendp_quota_count(cases[i].text));
        }
    }
}

static void test_cgroup_path(void **state) {
    static const struct {
        const char *text, *controller, *expected; /* NULL: none */
    } cases[] = {
        {"0::/\n", "", "/"},
        {"0::/user.slice/a.scope\n", "", "/user.slice/a.scope"},
        {"0::/x", "", "/x"},
        {"0::/x:y\n", "", "/x:y"},
        {"0::/x\n", "cpu", NULL},
        {"4:memory:/m\n3:cpu,cpuacct:/docker/1\n0::/two\n", "cpu", "/docker/1"},
        {"3:cpuacct,cpu:/a\n", "cpu", "/a"},
        {"3:cpuacct:/a\n2:cpuset:/b\n1:cpu:/c", "cpu", "/c"},
        {"3:cpuacct:/a\n0::/two\n", "", "/two"},
        {"1:name=systemd:/s\n", "", NULL},
        {"", "", NULL},
        {"", "cpu", NULL},
        {"\n\n:::\n", "cpu", NULL},
        {"garbage\n1:cpu\n2:cpu:relative\n", "cpu", NULL},
        {"1:cpu:/0123456789012345678901234567890123456789\n", "cpu", NULL}, /* too long for 32 */
    };
    size_t i;
    (void)state;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char path[32];
        bool found = dendp_cgroup_path(cases[i].text, cases[i].controller, path, sizeof path);
        if (found != (cases[i].expected != NULL) || (found && strcmp(path, cases[i].expected) != 0)) {
            fail_msg("case %zu: %s", i, found ? path : "none");
        }
    }
}

/* Here and now: never none, never more than there are. */
static void test_cpus_of_this_process(void **state) {
    dendp_cpus cpus;
    uint32_t n = dendp_cpu_count();
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc d = eng_desc(model);
    (void)state;
    dendp_cpus_find(&cpus);
    assert_true(cpus.n_processors >= 1 && cpus.n_cores >= 1 && cpus.n_cores <= cpus.n_processors);
    assert_true(n >= 1 && n <= cpus.n_cores && (cpus.quota == 0 || n <= cpus.quota));
    d.n_threads = 0;
    ASSERT_STATUS(DEND_OK, dend_engine_resolve(&d, NULL));
    assert_int_equal(d.n_threads, dendp_min_u32(n, DENDP_MAX_THREADS));
    dend_model_free(model);
}

/* -- the report -------------------------------------------------------------- */

static bool report_says(const char *text, const char *part) {
    return strstr(text, part) != NULL;
}

/* The report of an engine of this description, checked at every capacity (malloc). */
static char *report_of(const dend_engine_desc *d) {
    dend_engine_desc copy = *d;
    test_heap heap;
    dend_engine *e = NULL;
    size_t n, cap;
    char *text, *cut;
    unsigned char *image;
    copy.allocator = test_heap_allocator(&heap);
    ASSERT_STATUS(DEND_OK, dend_engine_create(&copy, &e, NULL));
    image = eng_freeze(e);
    n = dend_engine_report(e, NULL, 0);
    assert_int_equal(dend_engine_report(e, NULL, 1000), n);
    assert_true(n > 200 && n < 2000);
    text = (char *)malloc(n + 1);
    cut = (char *)malloc(n + 3);
    assert_true(text && cut);
    memset(text, 0x55, n + 1);
    assert_int_equal(dend_engine_report(e, text, n + 1), n);
    assert_int_equal(strlen(text), n);
    assert_int_equal(text[n - 1], '\n');
    for (cap = 0; cap <= n + 2; cap += cap < 3 || cap + 3 > n ? 1 : 61) {
        size_t kept = cap == 0 ? 0 : cap - 1 < n ? cap - 1 : n;
        memset(cut, 0x55, n + 3);
        assert_int_equal(dend_engine_report(e, cut, cap), n);
        if (cap) {
            assert_memory_equal(cut, text, kept);
            assert_int_equal(cut[kept], 0);
        }
        assert_int_equal(cut[cap < kept + 1 ? cap : kept + 1], 0x55); /* and not a byte more */
    }
    assert_int_equal(heap.n_allocs, 1);
    eng_same(e, image, "report");
    dend_engine_free(e);
    free(cut);
    return text;
}

static void test_report_isas(void **state) {
    dend_model *model = eng_load(ENG_QWEN2);
    uint32_t i, k;
    (void)state;
    for (i = 0; i < MM_N_ISAS; i++) {
        for (k = 0; k < 3 && dendp_kernels_get(mm_isas[i]); k++) {
            dend_engine_desc d = eng_desc(model);
            bool scalar = mm_isas[i] == DEND_ISA_SCALAR;
            char *text, line[64];
            d.isa = mm_isas[i];
            d.kv_type = eng_kv_types[k];
            text = report_of(&d);
            assert_true(report_says(text, "dendrite " DEND_VERSION_STRING ": qwen2 \""));
            assert_int_equal(report_says(text, "matmul: scalar: no fast kernel"), scalar);
            assert_int_equal(report_says(text, "vectors: scalar: no fast kernel\n"), scalar);
            assert_int_equal(report_says(text, ", scalar: no fast kernel\n"), scalar);
            assert_int_equal(report_says(text, "(this processor has "),
                             dendp_kernels_get(mm_isas[i]) != dendp_kernels_get(DEND_ISA_DEFAULT));
            snprintf(line, sizeof line, "matmul: %s", dendp_kernels_get(mm_isas[i])->name);
            assert_true(report_says(text, line));
            snprintf(line, sizeof line, "KV: %s, ", k == 0 ? "f32" : k == 1 ? "f16" : "q8_0");
            assert_true(report_says(text, line));
            assert_true(report_says(text, "threads: 1; this process may use "));
            assert_true(report_says(text, "memory: KV "));
            assert_true(report_says(text, "weights: packed when loaded\n"));
            assert_true(report_says(text, "  Q8_0 as Q8_0: "));
            free(text);
        }
    }
    dend_model_free(model);
}

/* Rests that take scalar code are there exactly when the head has one; the
 * model's own fields are bent, so that any width can be had. Only the report looks at them. */
static void test_report_rests(void **state) {
    static const uint32_t widths[6] = {16, 20, 32, 48, 8, 64};
    uint32_t i;
    (void)state;
    for (i = 0; i < 6; i++) {
        dend_model *model = eng_load(ENG_LLAMA_F32);
        dend_engine_desc d = eng_desc(model);
        char *scalar, *best, line[96];
        uint32_t w = widths[i];
        bool fast = dendp_kernels_get(DEND_ISA_DEFAULT)->isa != DEND_ISA_SCALAR;
        model->config.head_dim = w;
        model->config.n_embd = 3 * w + 16;
        model->config.n_ff = 2 * w;
        d.kv_type = DEND_KV_Q8_0;
        best = report_of(&d);
        d.isa = DEND_ISA_SCALAR;
        scalar = report_of(&d);
        snprintf(line, sizeof line, "attention: heads of %u, ", (unsigned)w);
        assert_true(report_says(best, line) && report_says(scalar, line));
        assert_false(report_says(scalar, "the last"));
        assert_int_equal(report_says(best, " columns of V take scalar code"), fast && w % 16 != 0);
        assert_int_equal(report_says(best, " of a query take scalar code"), fast && w % 32 != 0);
        assert_int_equal(report_says(best, " in norms take scalar code"), fast && 3 * w % 16 != 0);
        if (fast && w == 20) {
            assert_true(report_says(
                best, "; the last 4 of 20 columns of V take scalar code; the last 20 of 20 of a query"));
        }
        free(best);
        free(scalar);
        dend_model_free(model);
    }
}

/* Each type says what it became; a layout that was kept says so. */
static void test_report_types(void **state) {
    uint32_t t, keep;
    (void)state;
    for (t = 0; t < MM_N_TYPES; t++) {
        const dendp_type *type = dendp_type_find(mm_types[t].id);
        for (keep = 0; keep < 2; keep++) {
            plan_bytes file;
            dend_model_desc md;
            dend_engine_desc d;
            dend_model *model;
            dendp_form form;
            char *text, line[96];
            memset(&file, 0, sizeof file);
            file.data = layout_build(&mm_types[t], &file.n);
            md = plan_source(PLAN_DATA, NULL, &file);
            model = layout_load(&md, keep != 0);
            d = eng_desc(model);
            text = report_of(&d);
            assert_true(dendp_form_of(type->id, &form));
            snprintf(line, sizeof line, "  %s as %s%s: 9 matrices, ", type->name, dendp_form_names[form],
                     mm_types[t].lossless ? "" : " (rounded)");
            if (!report_says(text, line)) {
                fail_msg("no \"%s\" in:\n%s", line, text);
            }
            assert_int_equal(report_says(text, "weights: as in the file, packed at every use\n"), keep);
            if (keep && mm_types[t].id == DENDP_TYPE_F32) { /* 1744 rows of 256 floats */
                assert_true(report_says(text, "9 matrices, 1.6 MB, ") ||
                            report_says(text, "9 matrices, 1.7 MB, "));
            }
            free(text);
            dend_model_free(model);
            free(file.data);
        }
    }
}

/* Numbers and counts in words; foreign text does not steer the terminal; nothing of nothing. */
static void test_report_text(void **state) {
    static const struct {
        uint64_t bytes;
        const char *text;
    } sizes[] = {{0, "0 B"},
                 {999, "999 B"},
                 {1000, "1.0 kB"},
                 {1999, "1.9 kB"},
                 {999999, "999.9 kB"},
                 {1000000, "1.0 MB"},
                 {98362432, "98.3 MB"},
                 {UINT64_MAX, "18446744073709.5 MB"}};
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc d = eng_desc(model);
    uint32_t calls = 0;
    char *text, small[64];
    size_t i;
    (void)state;
    for (i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        dendp_text t;
        t.out = small;
        t.cap = sizeof small;
        t.n = 0;
        dendp_text_put_bytes(&t, sizes[i].bytes);
        assert_string_equal(small, sizes[i].text);
    }
    memset(small, 0x55, sizeof small);
    assert_int_equal(dend_engine_report(NULL, small, sizeof small), 0);
    assert_int_equal(small[0], 0);
    assert_int_equal(small[1], 0x55);
    assert_int_equal(dend_engine_report(NULL, NULL, 5), 0);
    snprintf(model->name, sizeof model->name, "a\033[2J\n\x7f\xc3\xa9");
    d.jobs.run = eng_jobs_backwards;
    d.jobs.user = &calls;
    d.jobs.n_workers = 3;
    d.n_blocks = 1;
    text = report_of(&d);
    assert_true(report_says(text, " \"a?[2J??\xc3\xa9\", "));
    assert_true(report_says(text, "threads: the caller's job system, 3 workers; "));
    assert_true(report_says(text, ", 1 block of 16 tokens\n"));
    free(text);
    dend_model_free(model);
}

static const struct CMUnitTest tests_engine_report[] = {
    cmocka_unit_test(test_cpu_list),
    cmocka_unit_test(test_core_count),
    cmocka_unit_test(test_quota),
    cmocka_unit_test(test_cgroup_path),
    cmocka_unit_test(test_cpus_of_this_process),
    cmocka_unit_test(test_report_isas),
    cmocka_unit_test(test_report_rests),
    cmocka_unit_test(test_report_types),
    cmocka_unit_test(test_report_text),
};
