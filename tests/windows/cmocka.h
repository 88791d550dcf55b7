/* What the tests use of cmocka, for where Debian has no cmocka: programs that
 * are cross-compiled for Windows. A failed test ends by longjmp and is counted;
 * the report has the lines of cmocka's that scripts add up. */
#ifndef TEST_WINDOWS_CMOCKA_H
#define TEST_WINDOWS_CMOCKA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};

#define cmocka_unit_test(f)                                                                                  \
    { #f, f }

static jmp_buf cm_back;
static const char *cm_filter;

static __attribute__((unused)) void print_message(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    fflush(stdout);
}

#define print_error print_message

static void _fail(const char *file, int line) {
    print_message("[  ERROR   ] --- %s:%d: failure\n", file, line);
    longjmp(cm_back, 1);
}

#define fail_msg(...) (print_message(__VA_ARGS__), print_message("\n"), _fail(__FILE__, __LINE__))
#define skip() longjmp(cm_back, 2)

static __attribute__((unused)) void cm_need(int ok, const char *what, const char *file, int line) {
    if (!ok) {
        print_message("[  ERROR   ] --- %s\n", what);
        _fail(file, line);
    }
}

static __attribute__((unused)) void cm_equal(uint64_t a, uint64_t b, int equal, const char *file, int line) {
    if ((a == b) != equal) {
        print_message("[  ERROR   ] --- 0x%llx %s 0x%llx\n", (unsigned long long)a,
                      equal ? "!=" : "==", (unsigned long long)b);
        _fail(file, line);
    }
}

static __attribute__((unused)) void cm_range(uint64_t v, uint64_t least, uint64_t most, const char *what,
                                             const char *file, int line) {
    cm_need(v >= least && v <= most, what, file, line);
}

#define assert_true(c) cm_need((c) ? 1 : 0, #c, __FILE__, __LINE__)
#define assert_false(c) cm_need((c) ? 0 : 1, "not " #c, __FILE__, __LINE__)
#define assert_non_null(p) cm_need((p) != NULL, #p " is not NULL", __FILE__, __LINE__)
#define assert_null(p) cm_need((p) == NULL, #p " is NULL", __FILE__, __LINE__)
#define assert_ptr_equal(a, b)                                                                               \
    cm_need((const void *)(a) == (const void *)(b), #a " is " #b, __FILE__, __LINE__)
#define assert_int_equal(a, b) cm_equal((uint64_t)(a), (uint64_t)(b), 1, __FILE__, __LINE__)
#define assert_int_not_equal(a, b) cm_equal((uint64_t)(a), (uint64_t)(b), 0, __FILE__, __LINE__)
#define assert_in_range(v, least, most)                                                                      \
    cm_range((uint64_t)(v), (uint64_t)(least), (uint64_t)(most), #v, __FILE__, __LINE__)
#define assert_string_equal(a, b) cm_need(strcmp((a), (b)) == 0, #a " equals " #b, __FILE__, __LINE__)
#define assert_memory_equal(a, b, n)                                                                         \
    cm_need(memcmp((a), (b), (size_t)(n)) == 0, #a " has the bytes of " #b, __FILE__, __LINE__)

static __attribute__((unused)) void cmocka_set_test_filter(const char *pattern) {
    cm_filter = pattern;
}

/* Runs the tests whose names begin with the filter; returns how many failed. */
static int cm_run(const char *group, const struct CMUnitTest *tests, size_t n) {
    volatile size_t i;
    volatile int n_passed = 0, n_failed = 0;
    for (i = 0; i < n; i++) {
        void *state = NULL;
        int how;
        if (cm_filter && strncmp(tests[i].name, cm_filter, strlen(cm_filter)) != 0) {
            continue;
        }
        how = setjmp(cm_back);
        if (how == 0) {
            tests[i].run(&state);
            n_passed++;
        } else if (how == 1) {
            n_failed++;
            print_message("[  FAILED  ] %s\n", tests[i].name);
        } else {
            print_message("[  SKIPPED ] %s\n", tests[i].name);
        }
    }
    if (n_passed + n_failed > 0) {
        print_message("[==========] %s\n[  PASSED  ] %d test(s).\n", group, n_passed);
    }
    if (n_failed) {
        print_message("%2d FAILED TEST(S)\n", n_failed);
    }
    return n_failed;
}

#define cmocka_run_group_tests_name(group, tests, setup, teardown)                                           \
    cm_run(group, tests, sizeof(tests) / sizeof(tests)[0])

#endif
