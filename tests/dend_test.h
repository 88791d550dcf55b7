/* Helpers that every test file shares. Each tests/test_<part>_<room>.c is
 * included by tests/main.c after dendrite.h with its implementation, so tests
 * see private functions too, and ends with one array
 *
 *     static const struct CMUnitTest tests_<part>_<room>[] = {...};
 */
#ifndef DEND_TEST_H
#define DEND_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The tests, and the oracles in them, mean what is written too, as the implementation does (01.01). */
#if defined(__FAST_MATH__) && defined(__clang__)
#pragma float_control(precise, on)
#elif defined(__FAST_MATH__) && defined(__GNUC__)
#pragma GCC optimize("no-fast-math")
#endif

/* Whether this process takes subnormal numbers for zero: programs that are linked with -ffast-math do. */
static int test_flushes(void) {
    volatile float least = 1.17549435e-38f, half = 0.5f;
    return least * half == 0.0f;
}

/* |expected - got| <= atol + rtol * |expected|; fails on NaN and infinity. */
#define ASSERT_NEAR(expected, got, atol, rtol)                                                               \
    test_assert_near((double)(expected), (double)(got), (double)(atol), (double)(rtol), #got, __FILE__,      \
                     __LINE__)

static void test_assert_near(double expected, double got, double atol, double rtol, const char *what,
                             const char *file, int line) {
    double error = expected > got ? expected - got : got - expected;
    double size = expected > 0 ? expected : -expected;
    if (!(error <= atol + rtol * size) || !(size <= 1.7e308)) {
        print_error("%s: expected %.9g, got %.9g (tolerance %.3g)\n", what, expected, got,
                    atol + rtol * size);
        _fail(file, line);
    }
}

#define ASSERT_STATUS(expected, call)                                                                        \
    do {                                                                                                     \
        dend_status status_ = (call);                                                                        \
        if (status_ != (expected)) {                                                                         \
            print_error("%s: expected %s, got %s\n", #call, dend_status_name(expected),                      \
                        dend_status_name(status_));                                                          \
            _fail(__FILE__, __LINE__);                                                                       \
            abort(); /* never reached: _fail does not return, and this says so to the compiler */            \
        }                                                                                                    \
    } while (0)

/* A small generator for test data (xorshift64*), so that runs repeat. */
typedef struct test_rng {
    uint64_t state;
} test_rng;

static uint64_t test_next(test_rng *rng) {
    uint64_t x = rng->state ? rng->state : 88172645463325252u;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    rng->state = x;
    return x * 2685821657736338717u;
}

static uint32_t test_below(test_rng *rng, uint32_t n) {
    return (uint32_t)((test_next(rng) >> 32) % n);
}

/* Uniform in [-1, 1). */
static float test_float(test_rng *rng) {
    return (float)((double)(test_next(rng) >> 11) * (2.0 / 9007199254740992.0) - 1.0);
}

/* Reads a whole file (malloc), or returns NULL. */
static unsigned char *test_read_file(const char *path, size_t *size) {
    FILE *f = fopen(path, "rb");
    unsigned char *data = NULL;
    long n;
    *size = 0;
    if (!f) {
        return NULL;
    }
    if (fseek(f, 0, SEEK_END) == 0 && (n = ftell(f)) >= 0 && fseek(f, 0, SEEK_SET) == 0) {
        data = (unsigned char *)malloc((size_t)n + 1);
        if (data && fread(data, 1, (size_t)n, f) == (size_t)n) {
            *size = (size_t)n;
            data[n] = 0;
        } else {
            free(data);
            data = NULL;
        }
    }
    fclose(f);
    return data;
}

/* For files that may be absent (models): skips the test and says why; under
 * CI=true that is a failure. */
static void test_need_file(const char *path, const char *how) {
    FILE *f = fopen(path, "rb");
    const char *ci = getenv("CI");
    if (f) {
        fclose(f);
        return;
    }
    print_message("skipped: %s is not here (%s)\n", path, how);
    if (ci && strcmp(ci, "true") == 0) {
        fail_msg("%s is required under CI=true", path);
    }
    skip();
}

/* An allocator that counts, and fails the n-th allocation when asked. */
typedef struct test_heap {
    uint64_t n_allocs, n_frees, n_live_bytes;
    uint64_t fail_at; /* 1 = the first; 0 = never */
} test_heap;

static void *test_heap_alloc(void *user, size_t size, size_t align) {
    test_heap *heap = (test_heap *)user;
    void *p = NULL;
    heap->n_allocs++;
    if (heap->n_allocs == heap->fail_at) {
        return NULL;
    }
    if (posix_memalign(&p, align < sizeof(void *) ? sizeof(void *) : align, size) != 0) {
        return NULL;
    }
    memset(p, 0xa5, size); /* nothing may rely on zeroed memory */
    heap->n_live_bytes += size;
    return p;
}

static void test_heap_free(void *user, void *p, size_t size) {
    test_heap *heap = (test_heap *)user;
    heap->n_frees++;
    heap->n_live_bytes -= size;
    free(p);
}

static dend_allocator test_heap_allocator(test_heap *heap) {
    dend_allocator a;
    memset(heap, 0, sizeof *heap);
    a.alloc = test_heap_alloc;
    a.free = test_heap_free;
    a.user = heap;
    return a;
}

#endif
