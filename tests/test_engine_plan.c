/* Memory and bytes of an engine: what dend_plan predicts, that nothing is
 * allocated later, that every failed allocation is survived, that nothing
 * leaks; and sequences saved, damaged and loaded. Helpers: test_engine_api.c. */

#include <dirent.h>

/* Sanitizers need address space of their own, so it cannot be made scarce under them. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PLAN_SCARCE 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define PLAN_SCARCE 0
#endif
#endif
#if !defined(PLAN_SCARCE) && defined(__linux__)
#define PLAN_SCARCE DENDP_THREADS
#endif

#if defined(PLAN_SCARCE) && PLAN_SCARCE
#include <sys/resource.h>
#endif

/* -- the plan -------------------------------------------------------------- */

static dend_model *plan_load(const char *path, test_heap *heap) {
    dend_model_desc d;
    dend_model *model = NULL;
    memset(&d, 0, sizeof d);
    d.path = path;
    d.allocator = test_heap_allocator(heap);
    ASSERT_STATUS(DEND_OK, dend_model_load(&d, &model, NULL));
    return model;
}

/* K and V of each layer group, and no layer in two of them. */
static void plan_check_kv(const dend_engine *e, const dend_plan_info *plan) {
    const dendp_cache *c = &e->cache;
    uint64_t kv = 0, blocks = 0;
    uint32_t g, n_layers = 0;
    for (g = 0; g < c->desc.n_groups; g++) {
        uint64_t n = g == 0 || e->desc.n_window_blocks == 0 ? plan->n_blocks : e->desc.n_window_blocks;
        assert_int_equal(c->groups[g].desc.window, g == 0 ? 0 : e->model->config.window);
        assert_int_equal(c->pools[g].n_blocks, n);
        assert_true(n <= plan->n_blocks);
        kv += n * c->pools[g].block_bytes;
        blocks += c->pools[g].block_bytes;
        n_layers += c->groups[g].desc.n_layers;
    }
    assert_int_equal(n_layers, e->model->config.n_layers);
    assert_int_equal(blocks, plan->block_bytes);
    assert_true(plan->kv_bytes >= kv);
}

/* Random descriptions: create asks for exactly what was planned, once, and the
 * engine that lies there computes what every other does. */
static void test_plan_exact(void **state) {
    int32_t tokens[20];
    uint32_t m, k, round;
    test_rng rng;
    (void)state;
    rng.state = 2024;
    eng_tokens(&rng, tokens, 20);
    for (m = 0; m < ENG_N_MODELS; m++) {
        dend_model *model = eng_load(eng_paths[m]);
        for (k = 0; k < 3; k++) {
            float expected[ENG_V];
            eng_fresh(model, eng_kv_types[k], 16, tokens, 20, expected, NULL);
            for (round = 0; round < 20; round++) {
                dend_engine_desc d = eng_desc(model);
                test_heap heap;
                dend_plan_info plan;
                dend_model_info info;
                dend_engine *e = NULL;
                dend_seq seq;
                d.allocator = test_heap_allocator(&heap);
                d.kv_type = eng_kv_types[k];
                d.n_ctx = test_below(&rng, 3) ? 20 + test_below(&rng, 2000) : 0;
                d.n_seqs = test_below(&rng, 3) ? 1 + test_below(&rng, 200) : 0;
                d.n_blocks = test_below(&rng, 2) ? 2 + test_below(&rng, 500) : 0;
                d.n_window_blocks = test_below(&rng, 2) ? 2 + test_below(&rng, 500) : 0;
                d.block_tokens = 16 * test_below(&rng, 5);
                d.n_batch = test_below(&rng, 3) ? 1 + test_below(&rng, 300) : 0;
                d.n_logits = test_below(&rng, 3) ? 1 + test_below(&rng, 100) : 0;
                d.n_tree_rows = test_below(&rng, 3) ? 1 + test_below(&rng, 256) : 0;
                d.isa = test_below(&rng, 2) ? DEND_ISA_SCALAR : DEND_ISA_DEFAULT;
                d.n_threads = 1 + (round % 8 == 0);
                ASSERT_STATUS(DEND_OK, dend_plan(&d, &plan, NULL));
                assert_int_equal(heap.n_allocs, 0);
                ASSERT_STATUS(DEND_OK, dend_engine_create(&d, &e, NULL));
                assert_int_equal(heap.n_allocs, 1);
                assert_int_equal(heap.n_live_bytes, plan.total_bytes);
                assert_int_equal(plan.kv_bytes + plan.table_bytes + plan.scratch_bytes, plan.total_bytes);
                plan_check_kv(e, &plan);
                dend_model_get_info(model, &info);
                assert_int_equal(plan.weight_bytes, info.weight_bytes);
                assert_int_equal(plan.n_blocks, eng_stats(e).n_blocks);
                seq = eng_with(e, tokens, 20);
                ASSERT_STATUS(DEND_OK, dend_step(e, 0));
                eng_equal(expected, eng_logits(e, seq), "planned", round);
                dend_engine_free(e);
                assert_int_equal(heap.n_frees, 1);
                assert_int_equal(heap.n_live_bytes, 0);
            }
        }
        dend_model_free(model);
    }
}

/* -- saved bytes ----------------------------------------------------------- */

typedef struct plan_bytes {
    unsigned char *data;
    size_t n, cap;
    uint32_t calls, fail_at; /* the call that fails; 0 = none */
} plan_bytes;

static bool plan_write(void *user, const void *data, size_t n) {
    plan_bytes *b = (plan_bytes *)user;
    if (++b->calls == b->fail_at) {
        return false;
    }
    if (b->n + n > b->cap) {
        b->cap = 2 * (b->n + n);
        b->data = (unsigned char *)realloc(b->data, b->cap);
        assert_non_null(b->data);
    }
    memcpy(b->data + b->n, data, n);
    b->n += n;
    return true;
}

static bool plan_read(void *user, uint64_t offset, void *dst, size_t n) {
    plan_bytes *b = (plan_bytes *)user;
    if (++b->calls == b->fail_at) {
        return false;
    }
    assert_true(offset <= b->n && n <= b->n - offset); /* never beyond the size that it was told */
    memcpy(dst, b->data + offset, n);
    return true;
}

static dend_status plan_save(const dend_engine *e, dend_seq seq, plan_bytes *out) {
    dend_writer writer;
    writer.write = plan_write;
    writer.user = out;
    out->n = out->calls = 0;
    return dend_seq_save(e, seq, &writer);
}

static dend_status plan_restore(dend_engine *e, plan_bytes *from, dend_seq *out) {
    dend_reader reader;
    reader.read = plan_read;
    reader.size = from->n;
    reader.user = from;
    from->calls = 0;
    return dend_seq_load(e, &reader, out);
}

/* -- nothing is allocated after create ------------------------------------- */

/* One round through every call, with successes and failures. */
static void plan_exercise(dend_engine *e, test_rng *rng, plan_bytes *bytes) {
    const int32_t parents[6] = {-1, 0, 0, 1, 1, 4};
    int32_t tokens[64], token;
    dend_sample_params p;
    dend_sampled sampled;
    dend_seq a, b, c, forks[20];
    dend_tree tree;
    const float *logits;
    uint32_t i;
    eng_tokens(rng, tokens, 64);
    memset(&p, 0, sizeof p);
    p.temperature = 1.0f;
    p.top_k = 40;
    p.top_p = 0.9f;
    a = eng_with(e, tokens, 33);
    ASSERT_STATUS(DEND_PENDING, eng_batch(e));
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    for (i = 0; i < 20; i++) {
        forks[i] = eng_fork(e, i % 2 ? forks[i - 1] : a);
        ASSERT_STATUS(DEND_OK, dend_seq_append(e, forks[i], tokens + i, 1 + i % 5));
    }
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    for (i = 0; i < 20; i++) {
        ASSERT_STATUS(DEND_OK, dend_sample(e, forks[i], &p, &sampled));
        ASSERT_STATUS(DEND_OK, dend_seq_append(e, forks[i], &sampled.token, 1));
        ASSERT_STATUS(DEND_OK, dend_seq_rewind(e, forks[i], 5 * (i / 3)));
    }
    b = forks[19];
    ASSERT_STATUS(DEND_OK, dend_seq_append_text(e, b, "some text", 9, 0));
    ASSERT_STATUS(DEND_OK, dend_seq_release_logits(e, b));
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    ASSERT_STATUS(DEND_ERR_NO_LOGITS, dend_seq_logits(e, b, &logits));
    ASSERT_STATUS(DEND_OK, dend_seq_want_logits(e, b));
    assert_true(dend_next(e, b, &p, &token) >= 0);
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    tree = eng_tree(b, 6, tokens, parents);
    ASSERT_STATUS(DEND_OK, dend_tree_eval(e, &tree, 1));
    ASSERT_STATUS(DEND_OK, dend_tree_accept(e, 0, 5));
    ASSERT_STATUS(DEND_OK, plan_save(e, b, bytes));
    ASSERT_STATUS(DEND_OK, plan_restore(e, bytes, &c));
    bytes->data[bytes->n / 2] ^= 1u;
    ASSERT_STATUS(DEND_ERR_FORMAT, plan_restore(e, bytes, &a));
    ASSERT_STATUS(DEND_ERR_CONTEXT_FULL, dend_seq_append(e, c, tokens, 64));
    ASSERT_STATUS(DEND_OK, dend_seq_set_stream(e, c, 3));
    ASSERT_STATUS(DEND_OK, dend_seq_set_user(e, c, bytes));
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    for (i = 0; i < 20; i++) {
        ASSERT_STATUS(DEND_OK, dend_seq_drop(e, forks[i]));
    }
    ASSERT_STATUS(DEND_OK, dend_seq_drop(e, c));
    ASSERT_STATUS(DEND_OK, dend_seq_drop(e, a));
    ASSERT_STATUS(DEND_ERR_STALE, dend_seq_drop(e, a));
}

static void test_plan_no_allocation(void **state) {
    uint32_t m, k, round;
    plan_bytes bytes;
    test_rng rng;
    (void)state;
    rng.state = 6;
    memset(&bytes, 0, sizeof bytes);
    for (m = 0; m < 3; m++) {
        for (k = 0; k < 3; k++) {
            test_heap model_heap, heap;
            dend_model *model = plan_load(eng_paths[m], &model_heap);
            dend_engine_desc d = eng_desc(model);
            uint64_t n_model = model_heap.n_allocs;
            dend_engine *e;
            d.allocator = test_heap_allocator(&heap);
            d.kv_type = eng_kv_types[k];
            d.n_batch = 10;
            d.n_blocks = 80;
            e = eng_open(&d);
            for (round = 0; round < 5; round++) {
                plan_exercise(e, &rng, &bytes);
                assert_int_equal(heap.n_allocs, 1);
                assert_int_equal(heap.n_frees, 0);
                assert_int_equal(model_heap.n_allocs, n_model); /* short words need no scratch */
            }
            eng_all_free(e);
            dend_engine_free(e);
            dend_model_free(model);
            assert_int_equal(heap.n_live_bytes, 0);
            assert_int_equal(model_heap.n_live_bytes, 0);
        }
    }
    free(bytes.data);
}

/* -- every allocation may fail --------------------------------------------- */

enum { PLAN_MAPPED, PLAN_READ, PLAN_DATA, PLAN_CALLBACK };

/* A description of one of the four sources of a model. */
static dend_model_desc plan_source(uint32_t source, const char *path, plan_bytes *file) {
    dend_model_desc d;
    memset(&d, 0, sizeof d);
    if (source == PLAN_MAPPED || source == PLAN_READ) {
        d.path = path;
        d.no_mmap = source == PLAN_READ;
    } else if (source == PLAN_DATA) {
        d.data = file->data;
        d.data_size = file->n;
    } else {
        d.reader.read = plan_read;
        d.reader.size = file->n;
        d.reader.user = file;
    }
    return d;
}

/* Fails the first, second, ... allocation of load and create until both
 * succeed: MEMORY, NULL, and every byte given back. All sources give one model. */
static void test_plan_failed_allocations(void **state) {
    int32_t tokens[10];
    float expected[ENG_V];
    uint32_t m, source, n_loads = 0;
    test_rng rng;
    (void)state;
    rng.state = 99;
    eng_tokens(&rng, tokens, 10);
    for (m = 0; m < 3; m++) {
        for (source = PLAN_MAPPED; source <= PLAN_CALLBACK; source++) {
            plan_bytes file;
            dend_model *model;
            test_heap heap, engine_heap;
            uint64_t nth;
            dend_status status = DEND_ERR_MEMORY;
            dend_engine *e = NULL;
            dend_engine_desc ed;
            memset(&file, 0, sizeof file);
            file.data = test_read_file(eng_paths[m], &file.n);
            assert_non_null(file.data);
            for (nth = 1; status != DEND_OK; nth++) {
                dend_model_desc d = plan_source(source, eng_paths[m], &file);
                dend_error error;
                memset(&error, 0, sizeof error);
                d.allocator = test_heap_allocator(&heap);
                heap.fail_at = nth;
                model = (dend_model *)&error; /* must be overwritten */
                status = dend_model_load(&d, &model, &error);
                if (status != DEND_OK) {
                    ASSERT_STATUS(DEND_ERR_MEMORY, status);
                    ASSERT_STATUS(DEND_ERR_MEMORY, error.status);
                    assert_non_null(error.msg);
                    assert_null(model);
                    assert_int_equal(heap.n_live_bytes, 0);
                    assert_int_equal(heap.n_allocs, heap.n_frees + 1);
                    n_loads++;
                }
                assert_true(nth < 1000);
            }
            assert_int_equal(heap.n_allocs, nth - 2); /* it asked no more than that */
            status = DEND_ERR_MEMORY;
            for (nth = 1; status != DEND_OK; nth++) {
                ed = eng_desc(model);
                ed.n_threads = 2;
                ed.allocator = test_heap_allocator(&engine_heap);
                engine_heap.fail_at = nth;
                e = (dend_engine *)&ed;
                status = dend_engine_create(&ed, &e, NULL);
                if (status != DEND_OK) {
                    ASSERT_STATUS(DEND_ERR_MEMORY, status);
                    assert_null(e);
                    assert_int_equal(engine_heap.n_live_bytes, 0);
                }
                assert_true(nth < 10);
            }
            {
                dend_seq seq = eng_with(e, tokens, 10);
                ASSERT_STATUS(DEND_OK, dend_step(e, 0));
                if (source == PLAN_MAPPED) {
                    memcpy(expected, eng_logits(e, seq), sizeof expected);
                }
                eng_equal(expected, eng_logits(e, seq), "source", source);
            }
            dend_engine_free(e);
            dend_model_free(model);
            assert_int_equal(heap.n_live_bytes, 0);
            assert_int_equal(engine_heap.n_live_bytes, 0);
            free(file.data);
        }
    }
    assert_true(n_loads > 3 * 4 * 3);
}

/* A reader that fails at its n-th call: IO, nothing leaks. */
static void test_plan_failed_reads(void **state) {
    plan_bytes file;
    dend_status status = DEND_ERR_IO;
    uint32_t nth;
    (void)state;
    memset(&file, 0, sizeof file);
    file.data = test_read_file(ENG_QWEN2, &file.n);
    assert_non_null(file.data);
    for (nth = 1; status != DEND_OK; nth++) {
        dend_model_desc d = plan_source(PLAN_CALLBACK, NULL, &file);
        dend_model *model = NULL;
        test_heap heap;
        d.allocator = test_heap_allocator(&heap);
        file.calls = 0;
        file.fail_at = nth;
        status = dend_model_load(&d, &model, NULL);
        if (status != DEND_OK) {
            ASSERT_STATUS(DEND_ERR_IO, status);
            assert_null(model);
        }
        dend_model_free(model);
        assert_int_equal(heap.n_live_bytes, 0);
        assert_true(nth < 2000);
    }
    assert_true(nth > 20);
    free(file.data);
}

/* The tokenizer asks the model's allocator: what it cannot get changes nothing. */
static void test_plan_failed_text(void **state) {
    char text[3000];
    test_heap heap;
    dend_model *model = plan_load(ENG_LLAMA_F32, &heap);
    dend_engine_desc d = eng_desc(model);
    dend_status status = DEND_ERR_MEMORY;
    dend_engine *e;
    dend_seq seq;
    uint64_t live = heap.n_live_bytes, nth;
    uint32_t n_failed = 0;
    (void)state;
    memset(text, 'a', sizeof text); /* one long word: the form that needs memory */
    d.n_ctx = 4000;
    e = eng_open(&d);
    seq = eng_with(e, (const int32_t *)(const void *)"\1\0\0\0", 1);
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    for (nth = 1; status != DEND_OK; nth++) {
        unsigned char *image = eng_freeze(e);
        heap.fail_at = heap.n_allocs + nth;
        status = dend_seq_append_text(e, seq, text, sizeof text, 0);
        if (status != DEND_OK) {
            ASSERT_STATUS(DEND_ERR_MEMORY, status);
            eng_same(e, image, "text");
            n_failed++;
        } else {
            free(image);
        }
        assert_int_equal(heap.n_live_bytes, live);
        assert_true(nth < 20);
    }
    assert_true(n_failed > 0);
    eng_reads(e, seq, 1, text, sizeof text);
    dend_engine_free(e);
    dend_model_free(model);
}

/* -- pages ------------------------------------------------------------------ */

static void *plan_dirty_alloc(void *user, size_t size, size_t align) {
    void *p = NULL;
    (void)user;
    assert_int_equal(posix_memalign(&p, align, size), 0);
    memset(p, 0xaa, size);
    return p;
}

static void plan_dirty_free(void *user, void *p, size_t size) {
    (void)user;
    (void)size;
    free(p);
}

/* An engine has written to all of its memory when it is there, so that no step waits for a page, or, with
 * lazy_memory, has left the cache alone. */
static void test_plan_touched(void **state) {
    dend_model *model = eng_load(ENG_QWEN2);
    uint32_t lazy;
    (void)state;
    for (lazy = 0; lazy < 2; lazy++) {
        dend_engine_desc d = eng_desc(model);
        const dendp_block_pool *pool;
        dend_engine *e;
        uint64_t i, n_dirty = 0, n_all = 0, n_bytes;
        d.lazy_memory = lazy == 1;
        d.allocator.alloc = plan_dirty_alloc;
        d.allocator.free = plan_dirty_free;
        e = eng_open(&d);
        pool = &e->cache.pools[0];
        n_bytes = pool->n_blocks * pool->block_bytes;
        for (i = 0; i < n_bytes; i++) {
            n_dirty += pool->data[i] == 0xaa ? 1u : 0u;
        }
        for (i = 0; i < e->bytes; i++) {
            n_all += ((const unsigned char *)e)[i] == 0xaa ? 1u : 0u;
        }
        assert_true(n_dirty == (lazy ? n_bytes : 0));
        assert_true(lazy ? n_all > n_bytes : n_all < 64);
        dend_engine_free(e);
    }
    dend_model_free(model);
}

/* -- nothing leaks --------------------------------------------------------- */

/* Open descriptors, where the system lists them; else 0. */
static uint32_t plan_descriptors(void) {
    DIR *dir = opendir("/proc/self/fd");
    uint32_t n = 0;
    if (dir) {
        while (readdir(dir)) {
            n++;
        }
        closedir(dir);
    }
    return n;
}

static void test_plan_rounds(void **state) {
    static const char *const broken[3] = {"tests/golden/bad_gguf/data_cut_by_one.gguf",
                                          "tests/golden/absent.gguf", "tests/golden"};
    uint32_t round, n_before = 0;
    (void)state;
    for (round = 0; round < 1000; round++) {
        test_heap heap, engine_heap;
        dend_model_desc md;
        dend_model *model = NULL;
        dend_engine *e = NULL;
        dend_engine_desc d;
        memset(&md, 0, sizeof md);
        md.allocator = test_heap_allocator(&heap);
        md.path = broken[round % 3];
        md.no_mmap = round % 2 == 1;
        assert_true(dend_model_load(&md, &model, NULL) < 0);
        assert_null(model);
        md.path = eng_paths[round % 3];
        ASSERT_STATUS(DEND_OK, dend_model_load(&md, &model, NULL));
        d = eng_desc(model);
        d.allocator = test_heap_allocator(&engine_heap);
        d.n_seqs = 2;
        d.n_batch = 4;
        d.n_tree_rows = 4;
        d.n_threads = 1 + (round % 10 == 0);
        ASSERT_STATUS(DEND_OK, dend_engine_create(&d, &e, NULL));
        if (round % 10 == 0) {
            int32_t tokens[2] = {1, 2};
            eng_with(e, tokens, 2);
            ASSERT_STATUS(DEND_OK, dend_step(e, 0)); /* freed with a live sequence */
        }
        dend_engine_free(e);
        dend_model_free(model);
        assert_int_equal(heap.n_live_bytes, 0);
        assert_int_equal(engine_heap.n_live_bytes, 0);
        assert_int_equal(heap.n_allocs, heap.n_frees);
        if (round == 0) {
            n_before = plan_descriptors();
        }
    }
    assert_int_equal(plan_descriptors(), n_before);
}

#if defined(PLAN_SCARCE) && PLAN_SCARCE
/* Entries of a folder of /proc: threads of this process. */
static uint32_t plan_threads(void) {
    DIR *dir = opendir("/proc/self/task");
    uint32_t n = 0;
    assert_non_null(dir);
    while (readdir(dir)) {
        n++;
    }
    closedir(dir);
    return n;
}

/* No room for the stacks of 255 threads: THREADS, and those that had been
 * started are gone. */
static void test_plan_no_threads(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e = (dend_engine *)model;
    struct rlimit limit, scarce;
    uint32_t n_threads = plan_threads();
    unsigned long pages = 0;
    test_heap heap;
    dend_status status;
    dend_error error;
    FILE *f = fopen("/proc/self/statm", "rb");
    (void)state;
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%lu", &pages), 1);
    fclose(f);
    memset(&error, 0, sizeof error);
    d.n_threads = 256;
    d.allocator = test_heap_allocator(&heap);
    assert_int_equal(getrlimit(RLIMIT_AS, &limit), 0);
    scarce = limit;
    scarce.rlim_cur =
        (rlim_t)pages * 4096u + ((rlim_t)64 << 20); /* less than 255 stacks, more than the engine */
    assert_int_equal(setrlimit(RLIMIT_AS, &scarce), 0);
    status = dend_engine_create(&d, &e, &error);
    assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
    ASSERT_STATUS(DEND_ERR_THREADS, status);
    ASSERT_STATUS(DEND_ERR_THREADS, error.status);
    assert_null(e);
    assert_int_equal(heap.n_live_bytes, 0);
    assert_int_equal(plan_threads(), n_threads);
    dend_model_free(model);
}
#endif

/* -- ten thousand branches ------------------------------------------------- */

/* Branches of one prefix, each with n_new tokens of its own, use what the
 * arithmetic says and not a block more: the pool holds exactly that. */
static void plan_branches(const dend_model *model, uint32_t n_branches, uint32_t n_prefix, uint32_t n_new) {
    uint32_t P = 16, in_tail = n_prefix % P, i, j, n_blocks;
    dend_seq *seqs = (dend_seq *)malloc(n_branches * sizeof *seqs), root;
    int32_t tokens[64];
    dend_engine_desc d = eng_desc(model);
    test_heap heap;
    dend_engine *e;
    test_rng rng;
    assert_non_null(seqs);
    rng.state = n_prefix;
    /* Full blocks of the prefix are shared by all. The first branch extends
     * the prefix's last block in place, the others copy it. */
    n_blocks = n_prefix / P + n_branches * ((in_tail + n_new + P - 1) / P);
    d.n_seqs = n_branches + 1;
    d.n_blocks = n_blocks;
    d.n_logits = 40;
    d.allocator = test_heap_allocator(&heap);
    e = eng_open(&d);
    eng_tokens(&rng, tokens, n_prefix);
    root = eng_with(e, tokens, n_prefix);
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    for (i = 0; i < n_branches; i++) {
        seqs[i] = eng_fork(e, root);
    }
    assert_int_equal(eng_stats(e).n_blocks_free, n_blocks - (n_prefix + P - 1) / P); /* forks cost none */
    assert_int_equal(eng_stats(e).n_seqs_free, 0);
    for (i = 0; i < n_branches; i++) {
        for (j = 0; j < n_new; j++) {
            tokens[n_prefix + j] = (int32_t)((i * 31 + j * 7 + i / 284) % ENG_V);
        }
        ASSERT_STATUS(DEND_OK, dend_seq_append(e, seqs[i], tokens + n_prefix, n_new));
        ASSERT_STATUS(DEND_OK, dend_seq_release_logits(e, seqs[i]));
    }
    assert_int_equal(eng_stats(e).n_blocks_free, 0);
    assert_int_equal(eng_stats(e).n_block_copies, in_tail ? n_branches - 1 : 0);
    assert_int_equal(eng_stats(e).n_waiting, n_branches * n_new);
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    assert_int_equal(eng_stats(e).n_rows, n_prefix + (uint64_t)n_branches * n_new);
    for (j = 0; j < 30; j++) {
        float expected[ENG_V];
        i = j == 0 ? 0 : j == 1 ? n_branches - 1 : test_below(&rng, n_branches);
        ASSERT_STATUS(DEND_OK, dend_seq_want_logits(e, seqs[i]));
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
        ASSERT_STATUS(DEND_OK, dend_seq_tokens(e, seqs[i], n_prefix, n_new, tokens + n_prefix));
        assert_int_equal(tokens[n_prefix], (i * 31 + i / 284) % ENG_V);
        eng_fresh(model, DEND_KV_F16, P, tokens, n_prefix + n_new, expected, NULL);
        eng_equal(expected, eng_logits(e, seqs[i]), "branch", i);
        ASSERT_STATUS(DEND_OK, dend_seq_release_logits(e, seqs[i]));
    }
    assert_int_equal(eng_stats(e).n_blocks_free, 0);
    for (i = 0; i < n_branches; i++) {
        ASSERT_STATUS(DEND_OK, dend_seq_drop(e, seqs[i]));
    }
    assert_int_equal(eng_blocks_free(e), n_blocks - (n_prefix + P - 1) / P);
    eng_all_free(e);
    assert_int_equal(heap.n_allocs, 1);
    dend_engine_free(e);
    free(seqs);
}

static void test_plan_branches(void **state) {
    dend_model *model = eng_load(ENG_LLAMA_F32);
    (void)state;
    plan_branches(model, 10000, 40, 3); /* 2 shared, 1 each */
    plan_branches(model, 10000, 48, 1); /* 3 shared, 1 each */
    plan_branches(model, 2000, 47, 2);  /* 2 shared, 2 each */
    dend_model_free(model);
}

/* -- save and load --------------------------------------------------------- */

/* Saves `seq`, loads it into `to`, and follows both for a few tokens. */
static void plan_follow(dend_engine *from, dend_seq seq, dend_engine *to, plan_bytes *bytes, test_rng *rng) {
    dend_seq_info a = eng_info(from, seq), b;
    dend_seq loaded;
    int32_t *tokens = (int32_t *)malloc(2 * (a.len_tokens + 1) * sizeof *tokens), next[3];
    uint32_t i;
    assert_non_null(tokens);
    ENG_REFUSED(DEND_OK, from, plan_save(from, seq, bytes)); /* saving changes nothing */
    ASSERT_STATUS(DEND_OK, plan_restore(to, bytes, &loaded));
    b = eng_info(to, loaded);
    assert_int_equal(b.len_tokens, a.len_tokens);
    assert_int_equal(b.n_waiting, a.n_waiting);
    assert_int_equal(b.n_blocks, a.n_blocks);
    assert_true(b.prefix_hash == a.prefix_hash && b.stream == a.stream);
    assert_false(b.has_logits);
    assert_null(dend_seq_user(to, loaded));
    ASSERT_STATUS(DEND_OK, dend_seq_tokens(from, seq, 0, a.len_tokens, tokens));
    ASSERT_STATUS(DEND_OK, dend_seq_tokens(to, loaded, 0, a.len_tokens, tokens + a.len_tokens));
    assert_memory_equal(tokens, tokens + a.len_tokens, a.len_tokens * sizeof *tokens);
    for (i = 0; i < 3; i++) {
        ASSERT_STATUS(DEND_OK, dend_step(from, 0));
        if (eng_info(from, seq).len_tokens > 0) {
            uint64_t n_rows = eng_stats(to).n_rows;
            ASSERT_STATUS(DEND_OK, dend_seq_want_logits(from, seq));
            ASSERT_STATUS(DEND_OK, dend_step(from, 0));
            ASSERT_STATUS(DEND_OK, dend_step(to, 0));
            eng_equal(eng_logits(from, seq), eng_logits(to, loaded), "loaded, then tokens", i);
            if (i == 0 &&
                from != to) { /* what was computed before is not computed again, but for the logits */
                assert_int_equal(eng_stats(to).n_rows - n_rows, a.n_waiting ? a.n_waiting : 1);
            }
        }
        if (i < 2) {
            eng_tokens(rng, next, 3);
            ASSERT_STATUS(DEND_OK, dend_seq_append(from, seq, next, 3));
            ASSERT_STATUS(DEND_OK, dend_seq_append(to, loaded, next, 3));
        }
    }
    ASSERT_STATUS(DEND_OK, dend_seq_drop(to, loaded));
    free(tokens);
}

static void test_save_load(void **state) {
    static const uint32_t lengths[7] = {0, 1, 15, 16, 17, 33, 50};
    uint32_t m, k, P, i;
    plan_bytes bytes;
    test_rng rng;
    (void)state;
    rng.state = 71;
    memset(&bytes, 0, sizeof bytes);
    for (m = 0; m < ENG_N_MODELS; m++) {
        dend_model *model = eng_load(eng_paths[m]);
        for (k = 0; k < 3; k++) {
            for (P = 16; P <= 32; P += 16) {
                dend_engine_desc d = eng_desc(model);
                dend_engine *e, *other;
                int32_t tokens[50];
                dend_seq parent, fork;
                d.kv_type = eng_kv_types[k];
                d.block_tokens = P;
                d.n_batch = 6;
                e = eng_open(&d);
                d.n_seqs = 3; /* another engine: of the same shape, but not of the same size */
                d.n_blocks = 9;
                d.n_batch = 100;
                d.isa = DEND_ISA_SCALAR;
                d.seed = 5;
                other = eng_open(&d);
                eng_tokens(&rng, tokens, 50);
                for (i = 0; i < 7; i++) {
                    dend_seq ready = eng_with(e, tokens, lengths[i]), half, none;
                    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
                    plan_follow(e, ready, other, &bytes, &rng);
                    half = eng_with(e, tokens, lengths[i]);
                    eng_batch(e); /* one batch of 6 */
                    plan_follow(e, half, other, &bytes, &rng);
                    none = eng_with(e, tokens, lengths[i]);
                    plan_follow(e, none, e, &bytes, &rng);
                    ASSERT_STATUS(DEND_OK, dend_seq_drop(e, ready));
                    ASSERT_STATUS(DEND_OK, dend_seq_drop(e, half));
                    ASSERT_STATUS(DEND_OK, dend_seq_drop(e, none));
                }
                parent = eng_with(e, tokens, 19); /* a block that holds more: slots of a longer sharer */
                ASSERT_STATUS(DEND_OK, dend_step(e, 0));
                fork = eng_fork(e, parent);
                ASSERT_STATUS(DEND_OK, dend_seq_append(e, fork, tokens + 30, 5));
                ASSERT_STATUS(DEND_OK, dend_step(e, 0));
                plan_follow(e, parent, other, &bytes, &rng);
                ASSERT_STATUS(DEND_OK, dend_seq_rewind(e, fork, 18)); /* or of a longer past */
                ASSERT_STATUS(DEND_OK, dend_seq_append(e, fork, tokens, 1));
                ASSERT_STATUS(DEND_OK, dend_seq_rewind(e, fork, 17));
                plan_follow(e, fork, other, &bytes, &rng);
                eng_all_free(other);
                eng_all_free(e);
                dend_engine_free(other);
                dend_engine_free(e);
            }
        }
        dend_model_free(model);
    }
    free(bytes.data);
}

/* An engine with a sequence that no failed load may touch. */
typedef struct plan_witness {
    dend_engine *engine;
    dend_seq seq;
    float logits[ENG_V];
    dend_seq_info info;
    dend_engine_stats stats;
    plan_bytes bytes; /* all that the sequence is */
    uint64_t n_streams;
} plan_witness;

static void plan_witness_open(plan_witness *w, const dend_engine_desc *d) {
    int32_t tokens[21];
    test_rng rng;
    memset(w, 0, sizeof *w);
    rng.state = 3;
    eng_tokens(&rng, tokens, 21);
    w->engine = eng_open(d);
    w->seq = eng_with(w->engine, tokens, 21);
    ASSERT_STATUS(DEND_OK, dend_step(w->engine, 0));
    memcpy(w->logits, eng_logits(w->engine, w->seq), sizeof w->logits);
    w->info = eng_info(w->engine, w->seq);
    w->stats = eng_stats(w->engine);
    w->n_streams = w->engine->cache.n_streams;
    ASSERT_STATUS(DEND_OK, plan_save(w->engine, w->seq, &w->bytes));
}

static void plan_witness_check(const plan_witness *w) {
    dend_seq_info info = eng_info(w->engine, w->seq);
    dend_engine_stats stats = eng_stats(w->engine);
    plan_bytes bytes;
    memset(&bytes, 0, sizeof bytes);
    if (memcmp(&info, &w->info, sizeof info) != 0 || memcmp(&stats, &w->stats, sizeof stats) != 0) {
        fail_msg("a failed load has changed the engine");
    }
    eng_equal(w->logits, eng_logits(w->engine, w->seq), "after a failed load", 0);
    assert_true(w->engine->cache.n_streams ==
                w->n_streams); /* later sequences get the streams that they would have */
    ASSERT_STATUS(DEND_OK, plan_save(w->engine, w->seq, &bytes));
    /* The header says how many streams the engine has given out; the end seals it. */
    if (bytes.n != w->bytes.n ||
        memcmp(bytes.data + sizeof(dendp_session_header), w->bytes.data + sizeof(dendp_session_header),
               bytes.n - sizeof(dendp_session_header) - 40) != 0) {
        fail_msg("a failed load has changed a sequence");
    }
    free(bytes.data);
}

static void plan_witness_close(plan_witness *w) {
    eng_all_free(w->engine);
    free(w->bytes.data);
    dend_engine_free(w->engine);
}

/* The load fails; `out` and the witness stay as they are. */
static dend_status plan_refused(plan_witness *w, plan_bytes *bytes) {
    dend_seq out;
    dend_status status;
    out.slot = 12345;
    out.generation = 54321;
    status = plan_restore(w->engine, bytes, &out);
    if (status >= 0) {
        fail_msg("damaged bytes were loaded");
    }
    assert_int_equal(out.slot, 12345);
    assert_int_equal(out.generation, 54321);
    return status;
}

/* Every byte changed in several ways, and every shorter piece. */
static void test_save_damaged(void **state) {
    static const unsigned char flips[4] = {0x01, 0x80, 0xff, 0x04};
    dend_model *model = eng_load(ENG_LLAMA_F32);
    dend_engine_desc d = eng_desc(model);
    plan_witness w;
    plan_bytes bytes;
    dend_seq seq;
    int32_t tokens[5];
    test_rng rng;
    size_t i, whole;
    uint32_t f, waiting;
    (void)state;
    rng.state = 15;
    memset(&bytes, 0, sizeof bytes);
    eng_tokens(&rng, tokens, 5);
    for (waiting = 0; waiting < 2; waiting++) {
        plan_witness_open(&w, &d);
        seq = eng_with(w.engine, tokens, 5);
        if (!waiting) {
            ASSERT_STATUS(DEND_OK, dend_step(w.engine, 0));
        }
        ASSERT_STATUS(DEND_OK, plan_save(w.engine, seq, &bytes));
        ASSERT_STATUS(DEND_OK, dend_seq_drop(w.engine, seq));
        w.stats = eng_stats(w.engine);
        w.n_streams = w.engine->cache.n_streams;
        whole = bytes.n;
        for (i = 0; i < whole; i++) {
            for (f = 0; f < 4; f++) {
                bytes.data[i] ^= flips[f];
                ASSERT_STATUS(DEND_ERR_FORMAT, plan_refused(&w, &bytes));
                bytes.data[i] ^= flips[f];
            }
            bytes.n = i;
            ASSERT_STATUS(DEND_ERR_FORMAT, plan_refused(&w, &bytes));
            bytes.n = whole;
            if (i % 64 == 0) {
                plan_witness_check(&w);
            }
        }
        for (i = 1; i < 1000; i++) { /* a reader that fails at its n-th call */
            dend_status status;
            bytes.fail_at = (uint32_t)i;
            status = plan_restore(w.engine, &bytes, &seq);
            if (status == DEND_OK) {
                break;
            }
            ASSERT_STATUS(DEND_ERR_IO, status);
            plan_witness_check(&w);
        }
        assert_in_range(i, 20, 60);
        bytes.fail_at = 0;
        ASSERT_STATUS(DEND_OK, dend_step(w.engine, 0)); /* undamaged it still loads, and is what it was */
        {
            float expected[ENG_V];
            eng_fresh(model, DEND_KV_F16, 16, tokens, 5, expected, NULL);
            eng_equal(expected, eng_logits(w.engine, seq), "undamaged", waiting);
        }
        plan_witness_close(&w);
    }
    free(bytes.data);
    dend_model_free(model);
}

/* Bytes of another shape, and engines without room. */
static void test_save_refused(void **state) {
    dend_model *models[3];
    dend_engine_desc d;
    dend_engine *e;
    plan_witness w;
    plan_bytes bytes;
    dend_seq seq, spare[3];
    int32_t tokens[40];
    test_rng rng;
    uint32_t i, nth;
    dend_status status = DEND_ERR_IO;
    (void)state;
    rng.state = 61;
    memset(&bytes, 0, sizeof bytes);
    eng_tokens(&rng, tokens, 40);
    for (i = 0; i < 3; i++) {
        models[i] = eng_load(eng_paths[i]);
    }
    d = eng_desc(models[0]);
    e = eng_open(&d);
    seq = eng_with(e, tokens, 40);
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    for (nth = 0; status != DEND_OK; nth++) { /* a writer that fails at its n-th call */
        unsigned char *image = eng_freeze(e);
        bytes.fail_at = nth + 1;
        status = plan_save(e, seq, &bytes);
        TC_CHECK(status == DEND_OK || status == DEND_ERR_IO);
        eng_same(e, image, "save");
    }
    assert_in_range(nth, 20, 100);
    bytes.fail_at = 0;
    ASSERT_STATUS(DEND_OK, plan_save(e, seq, &bytes));

    for (i = 0; i < 5; i++) { /* other KV types, another block size, other models */
        d = eng_desc(models[i < 3 ? 0 : i - 2]);
        d.kv_type = i == 0 ? DEND_KV_F32 : i == 1 ? DEND_KV_Q8_0 : DEND_KV_DEFAULT;
        d.block_tokens = i == 2 ? 32 : 16;
        plan_witness_open(&w, &d);
        ASSERT_STATUS(DEND_ERR_UNSUPPORTED, plan_refused(&w, &bytes));
        plan_witness_check(&w);
        plan_witness_close(&w);
    }
    d = eng_desc(models[0]);
    d.n_ctx = 39;
    plan_witness_open(&w, &d);
    ASSERT_STATUS(DEND_ERR_CONTEXT_FULL, plan_refused(&w, &bytes));
    plan_witness_check(&w);
    plan_witness_close(&w);
    d.n_ctx = 40;
    d.n_blocks = 4; /* 2 are in use, 3 are needed */
    plan_witness_open(&w, &d);
    ASSERT_STATUS(DEND_ERR_NO_BLOCKS, plan_refused(&w, &bytes));
    plan_witness_check(&w);
    plan_witness_close(&w);
    d.n_blocks = 5;
    d.n_seqs = 4;
    plan_witness_open(&w, &d);
    for (i = 0; i < 3; i++) {
        spare[i] = eng_seq(w.engine);
    }
    w.stats = eng_stats(w.engine);
    w.n_streams = w.engine->cache.n_streams;
    ASSERT_STATUS(DEND_ERR_NO_SEQUENCES, plan_refused(&w, &bytes));
    plan_witness_check(&w);
    ASSERT_STATUS(DEND_OK, dend_seq_drop(w.engine, spare[1]));
    ASSERT_STATUS(DEND_OK, plan_restore(w.engine, &bytes, &seq)); /* now it fits exactly */
    assert_int_equal(eng_stats(w.engine).n_blocks_free, 0);
    plan_witness_close(&w);
    free(bytes.data);
    dend_engine_free(e);
    for (i = 0; i < 3; i++) {
        dend_model_free(models[i]);
    }
}

/* Where the sections with K and V begin. */
static size_t plan_kv_at(const plan_bytes *b) {
    size_t at = sizeof(dendp_session_header);
    for (;;) {
        dendp_session_section head;
        assert_true(at + sizeof head <= b->n);
        memcpy(&head, b->data + at, sizeof head);
        if (head.kind == DENDP_SECTION_KV) {
            return at;
        }
        at += sizeof head + (size_t)head.n_bytes + 8;
    }
}

/* Hostile bytes with a valid check: whatever K and V hold, the sequence can be
 * stepped, sampled, extended and dropped, and nobody else notices. */
static void test_save_hostile(void **state) {
    uint32_t m, k, round, n_loaded = 0;
    plan_bytes bytes, copy;
    test_rng rng;
    (void)state;
    rng.state = 666;
    memset(&bytes, 0, sizeof bytes);
    memset(&copy, 0, sizeof copy);
    for (m = 0; m < 3; m++) {
        dend_model *model = eng_load(eng_paths[m]);
        for (k = 0; k < 3; k++) {
            dend_engine_desc d = eng_desc(model);
            plan_witness w;
            int32_t tokens[20];
            dend_seq seq;
            d.kv_type = eng_kv_types[k];
            plan_witness_open(&w, &d);
            eng_tokens(&rng, tokens, 20);
            seq = eng_with(w.engine, tokens, 20);
            ASSERT_STATUS(DEND_OK, dend_step(w.engine, 0));
            ASSERT_STATUS(DEND_OK, plan_save(w.engine, seq, &bytes));
            copy.n = 0;
            assert_true(plan_write(&copy, bytes.data, bytes.n));
            session_sign(bytes.data, bytes.n); /* the checks are those that are there */
            assert_memory_equal(copy.data, bytes.data, bytes.n);
            ASSERT_STATUS(DEND_OK, plan_restore(w.engine, &bytes, &seq));
            for (round = 0; round < 60; round++) {
                uint32_t i, n = 1 + test_below(&rng, 400);
                dend_sample_params p;
                dend_sampled sampled;
                dend_status status;
                int32_t token;
                copy.n = 0;
                copy.fail_at = 0;
                assert_true(plan_write(&copy, bytes.data, bytes.n));
                for (i = 0; i < n; i++) {
                    bool head = round % 4 == 0 && i < 2; /* counts, tokens, tables; else K and V */
                    uint32_t kv = (uint32_t)plan_kv_at(&bytes), end = (uint32_t)copy.n - 48;
                    size_t at = head ? 12 + test_below(&rng, kv - 12)
                                     : kv + sizeof(dendp_session_section) + test_below(&rng, end - kv - 24);
                    copy.data[at] = (unsigned char)(round % 3 ? test_below(&rng, 256) : 0xff);
                    if (!head) { /* heads of sections stay */
                        size_t layer;
                        for (layer = kv; layer + 48 < copy.n;) {
                            dendp_session_section part;
                            memcpy(&part, bytes.data + layer, sizeof part);
                            memcpy(copy.data + layer, bytes.data + layer, sizeof part);
                            layer += sizeof part + (size_t)part.n_bytes + 8;
                        }
                    }
                }
                session_sign(copy.data, copy.n);
                status = plan_restore(w.engine, &copy, &seq);
                if (status != DEND_OK) {
                    assert_int_equal(round % 4, 0);
                    TC_CHECK(status == DEND_ERR_FORMAT || status == DEND_ERR_UNSUPPORTED ||
                             status == DEND_ERR_NO_BLOCKS || status == DEND_ERR_CONTEXT_FULL ||
                             status == DEND_ERR_BUFFER);
                    continue;
                }
                n_loaded++;
                ASSERT_STATUS(DEND_OK, dend_step(w.engine, 0));
                memset(&p, 0, sizeof p);
                p.temperature = 1.0f;
                p.top_p = 0.9f;
                ASSERT_STATUS(DEND_OK, dend_sample(w.engine, seq, &p, &sampled));
                assert_true(sampled.token >= 0 && (uint32_t)sampled.token < ENG_V);
                assert_true(dendp_finite(sampled.logprob));
                status = dend_next(w.engine, seq, NULL, &token);
                assert_true(status == DEND_OK || status == DEND_END);
                ASSERT_STATUS(DEND_OK, dend_step(w.engine, 0));
                eng_equal(w.logits, eng_logits(w.engine, w.seq), "beside hostile bytes", round);
                ASSERT_STATUS(DEND_OK, dend_seq_drop(w.engine, seq));
            }
            plan_witness_close(&w);
        }
        dend_model_free(model);
    }
    assert_true(n_loaded > 200);
    free(copy.data);
    free(bytes.data);
}

static const struct CMUnitTest tests_engine_plan[] = {
    cmocka_unit_test(test_plan_exact),
    cmocka_unit_test(test_plan_no_allocation),
    cmocka_unit_test(test_plan_failed_allocations),
    cmocka_unit_test(test_plan_failed_reads),
    cmocka_unit_test(test_plan_failed_text),
    cmocka_unit_test(test_plan_touched),
    cmocka_unit_test(test_plan_rounds),
#if defined(PLAN_SCARCE) && PLAN_SCARCE
    cmocka_unit_test(test_plan_no_threads),
#endif
    cmocka_unit_test(test_plan_branches),
    cmocka_unit_test(test_save_load),
    cmocka_unit_test(test_save_damaged),
    cmocka_unit_test(test_save_refused),
    cmocka_unit_test(test_save_hostile),
};
