/* The tests that make sense under Windows, as a program of its own: it is cross-compiled with MinGW-w64 and runs
 * under Wine. First what the platform room does there (threads, mapped files, names in UTF-8, the clock), then the
 * groups of tests/main.c that use no POSIX function.
 *
 *     wine64 build/test-windows.exe [BEGINNING OF A TEST'S NAME]
 */
#define DENDRITE_IMPLEMENTATION
#include "dendrite.h"

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>

/* Windows has no posix_memalign, and what has its alignment cannot be given to free: so all that the tests allocate is
 * of one kind. The implementation above keeps the C library's. */
static int posix_memalign(void **out, size_t align, size_t size) {
    *out = _aligned_malloc(size ? size : 1, align);
    return *out ? 0 : ENOMEM;
}

static void *test_calloc(size_t n, size_t size) {
    void *p = _aligned_malloc(n * size + 1, 16);
    if (p) {
        memset(p, 0, n * size);
    }
    return p;
}

#define malloc(n) _aligned_malloc((n) + 1, 16)
#define calloc(n, size) test_calloc(n, size)
#define realloc(p, n) _aligned_realloc(p, n, 16)
#define free(p) _aligned_free(p)

#include "dend_test.h"

#include "test_model_quant.c"
#include "test_model_tokenizer.c"
#include "test_kernels_matmul.c"
#include "test_cache_table.c"
#include "test_cache_codec.c"
#include "test_cache_sequence.c"
#include "test_sampling_sampler.c"
#include "test_engine_goldens.c"

#define WIN_MODEL "tests/golden/tiny_llama_f32.gguf"
/* "build/test_" and three letters of three scripts, as UTF-8 and as UTF-16. */
#define WIN_NAME "build/test_\xc3\xa9\xd0\xb6\xe4\xb8\xad.gguf"
static const wchar_t win_wide_name[] = L"build/test_\x00e9\x0436\x4e2d.gguf";

typedef struct win_bytes {
    unsigned char *data;
    size_t n, cap;
} win_bytes;

static bool win_write(void *user, const void *data, size_t n) {
    win_bytes *b = (win_bytes *)user;
    assert_true(n <= b->cap - b->n);
    memcpy(b->data + b->n, data, n);
    b->n += n;
    return true;
}

static bool win_read(void *user, uint64_t offset, void *dst, size_t n) {
    const win_bytes *b = (const win_bytes *)user;
    if (offset > b->n || n > b->n - offset) {
        return false;
    }
    memcpy(dst, b->data + offset, n);
    return true;
}

/* A file whose name no code page holds is mapped, read, and refused by its wrong names. */
static void test_windows_files(void **state) {
    static const char *const absent[] = {"build/test_\xff.gguf", "build", "build/test_absent.gguf", ""};
    size_t n = 0;
    unsigned char *bytes = test_read_file(WIN_MODEL, &n);
    FILE *f = _wfopen(win_wide_name, L"wb");
    uint32_t i;
    (void)state;
    assert_non_null(bytes);
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
    for (i = 0; i < 2; i++) {
        test_heap heap;
        dend_allocator a = test_heap_allocator(&heap);
        dendp_file file;
        uint64_t nth;
        dend_status status = DEND_ERR_MEMORY;
        ASSERT_STATUS(DEND_OK, dendp_file_open(&file, WIN_NAME, i == 0, &a, NULL));
        assert_true(file.mapped == (i == 0));
        assert_int_equal(file.size, n);
        assert_memory_equal(file.data, bytes, n);
        if (file.mapped) { /* cannot shrink now */
            HANDLE h = CreateFileW(win_wide_name, GENERIC_WRITE, 7, NULL, OPEN_EXISTING, 0, NULL);
            if (h != INVALID_HANDLE_VALUE) {
                (void)CloseHandle(h);
            }
        }
        dendp_file_close(&file);
        assert_int_equal(heap.n_live_bytes, 0);
        for (nth = 1; status != DEND_OK; nth++) {
            a = test_heap_allocator(&heap);
            heap.fail_at = nth;
            status = dendp_file_open(&file, WIN_NAME, i == 0, &a, NULL);
            assert_true(status == DEND_OK || status == DEND_ERR_MEMORY);
            assert_true(nth < 9);
        }
        dendp_file_close(&file);
        assert_int_equal(heap.n_live_bytes, 0);
    }
    for (i = 0; i < 4; i++) {
        dend_model_desc d;
        dend_model *model = NULL;
        memset(&d, 0, sizeof d);
        d.path = absent[i];
        ASSERT_STATUS(DEND_ERR_IO, dend_model_load(&d, &model, NULL));
        assert_null(model);
    }
    assert_int_equal(_wremove(win_wide_name), 0); /* nothing holds it any more */
    free(bytes);
}

/* The clock goes on, at the rate of the system's; processors are counted. */
static void test_windows_clock(void **state) {
    dendp_cpus cpus;
    uint64_t a = dendp_now_ns(), b;
    (void)state;
    Sleep(50);
    b = dendp_now_ns();
    assert_true(b - a > 30000000u && b - a < 30000000000u);
    dendp_cpus_find(&cpus);
    assert_true(cpus.n_processors >= 1 && cpus.n_cores >= 1 && cpus.n_cores <= cpus.n_processors);
    assert_true(dendp_cpu_count() >= 1);
}

typedef struct win_loop {
    uint32_t runs[100];
} win_loop;

static void win_task(void *ctx, uint32_t i) {
    dendp_atomic_add(&((win_loop *)ctx)->runs[i], 1);
    if (i % 7 == 0) {
        SwitchToThread();
    }
}

/* Every task runs once, also after the threads have parked; 300 pools leave no handle behind. */
static void test_windows_threads(void **state) {
    dend_jobs none;
    dendp_pool *pool = (dendp_pool *)calloc(1, sizeof *pool);
    DWORD before = 0, after = 0;
    uint32_t round, i;
    (void)state;
    assert_non_null(pool);
    memset(&none, 0, sizeof none);
    ASSERT_STATUS(DEND_OK, dendp_pool_open(pool, 4, &none, NULL));
    assert_int_equal(pool->n_started, 3);
    for (round = 0; round < 300; round++) {
        win_loop loop;
        memset(&loop, 0, sizeof loop);
        dendp_pool_run(pool, win_task, &loop, 1 + round % 100);
        for (i = 0; i < 100; i++) {
            assert_int_equal(loop.runs[i], i < 1 + round % 100);
        }
        if (round % 50 == 0) {
            Sleep(5); /* the workers park */
        }
    }
    dendp_pool_close(pool);
    for (round = 0; round < 300; round++) {
        if (round == 10) {
            assert_true(GetProcessHandleCount(GetCurrentProcess(), &before));
        }
        ASSERT_STATUS(DEND_OK, dendp_pool_open(pool, 3, &none, NULL));
        dendp_pool_close(pool);
    }
    assert_true(GetProcessHandleCount(GetCurrentProcess(), &after));
    assert_true(after <= before + 2);
    free(pool);
}

/* A whole model, mapped, with threads: forks, a save and a load give the same bits as one thread without mapping. */
static void test_windows_engine(void **state) {
    static const int32_t prompt[] = {5, 9, 2, 14, 3, 8, 21, 1, 7, 7, 30, 11, 12, 4, 19, 22, 6, 13};
    const uint32_t n_prompt = (uint32_t)(sizeof prompt / sizeof prompt[0]);
    float first[1024];
    win_bytes saved;
    uint32_t way;
    (void)state;
    saved.cap = 1 << 22;
    saved.data = (unsigned char *)malloc(saved.cap);
    assert_non_null(saved.data);
    for (way = 0; way < 3; way++) {
        dend_model_desc md;
        dend_model *model = NULL;
        dend_model_info info;
        dend_engine_desc ed;
        dend_engine *engine = NULL;
        dend_seq trunk, branch, loaded;
        dend_writer to;
        dend_reader from;
        const float *logits;
        int32_t tokens[2][8];
        uint32_t i, b;
        memset(&md, 0, sizeof md);
        md.path = WIN_MODEL;
        md.no_mmap = way == 1;
        md.keep_file_layout = way == 2;
        ASSERT_STATUS(DEND_OK, dend_model_load(&md, &model, NULL));
        dend_model_get_info(model, &info);
        assert_true(info.n_vocab <= 1024);
        memset(&ed, 0, sizeof ed);
        ed.model = model;
        ed.n_ctx = 64;
        ed.n_threads = way == 0 ? 3 : 1;
        ASSERT_STATUS(DEND_OK, dend_engine_create(&ed, &engine, NULL));
        ASSERT_STATUS(DEND_OK, dend_seq_create(engine, &trunk));
        ASSERT_STATUS(DEND_OK, dend_seq_append(engine, trunk, prompt, n_prompt));
        ASSERT_STATUS(DEND_OK, dend_step(engine, 0));
        ASSERT_STATUS(DEND_OK, dend_seq_logits(engine, trunk, &logits));
        if (way == 0) {
            memcpy(first, logits, info.n_vocab * sizeof first[0]);
        }
        assert_memory_equal(logits, first, info.n_vocab * sizeof first[0]);
        ASSERT_STATUS(DEND_OK, dend_seq_fork(engine, trunk, DEND_FORK_SAME_STREAM, &branch));
        saved.n = 0;
        to.write = win_write;
        to.user = &saved;
        ASSERT_STATUS(DEND_OK, dend_seq_save(engine, trunk, &to));
        from.read = win_read;
        from.size = saved.n;
        from.user = &saved;
        ASSERT_STATUS(DEND_OK, dend_seq_load(engine, &from, &loaded));
        for (b = 0; b < 2; b++) {
            for (i = 0; i < 8; i++) {
                dend_status status = dend_next(engine, b ? loaded : branch, NULL, &tokens[b][i]);
                assert_true(status == DEND_OK || status == DEND_END);
            }
        }
        assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
        dend_engine_free(engine);
        dend_model_free(model);
    }
    free(saved.data);
}

static const struct CMUnitTest tests_windows[] = {
    cmocka_unit_test(test_windows_files),
    cmocka_unit_test(test_windows_clock),
    cmocka_unit_test(test_windows_threads),
    cmocka_unit_test(test_windows_engine),
};

#define RUN(group) n_failed += cmocka_run_group_tests_name(#group, tests_##group, NULL, NULL)

int main(int argc, char **argv) {
    int n_failed = 0;
    if (argc > 1) {
        cmocka_set_test_filter(argv[1]);
    }
    printf("kernels: %s\n", dendp_kernels_get(DEND_ISA_DEFAULT)->name);
    RUN(windows);
    RUN(model_quant);
    RUN(model_tokenizer);
    RUN(kernels_matmul);
    RUN(cache_table);
    RUN(cache_codec);
    RUN(cache_sequence);
    RUN(sampling_sampler);
    RUN(engine_goldens);
    return n_failed != 0;
}
