/* ==========================================================================
 * >>01.01 BASE: errors, checked sizes, memory
 * ==========================================================================
 * Three habits that every later room keeps.
 *
 * Errors are values. A failing function returns a status and, if the caller
 * gave a dend_error, says why and where (dendp_fail). Nothing is printed.
 *
 * Sizes are checked. Counts come from files and descriptions, so a product or
 * sum that feeds an allocation goes through dendp_mul or dendp_add.
 *
 * Memory is carved. A dendp_carver hands out pieces of one block. Run it once
 * with no block to measure, allocate, and run the same code again to place:
 * the plan and the layout cannot disagree, since they are one function.
 * What has no size known in advance (a model's metadata) goes into a
 * dendp_chain, a list of chunks that is freed as a whole.
 *
 * Arithmetic means what is written. Under -ffast-math a compiler may add in
 * another order in each function, and take it that there is no NaN; then a row
 * would not have the same bits alone and in a batch, and hostile weights would
 * pass the checks. So the implementation, and only that, is compiled without,
 * whatever the flags; the last room (99.01) puts them back.
 * ======================================================================== */

#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) ||               \
    (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__ > 0)
#if defined(__clang__)
#pragma float_control(push)
#pragma float_control(precise, on)
#pragma clang fp contract(off)
#elif defined(__GNUC__)
#pragma GCC push_options
#pragma GCC optimize("no-fast-math")
#endif
#endif

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* For functions that only tests or an optional part call. */
#if defined(__GNUC__)
#define DENDP_UNUSED __attribute__((unused))
#else
#define DENDP_UNUSED
#endif

/* Fails with a message and the line of the check; evaluates to the status. */
#define DENDP_FAIL(err, status, msg, where) dendp_fail((err), (status), (msg), (uint64_t)(where), __LINE__)

static dend_status dendp_fail(dend_error *err, dend_status status, const char *msg, uint64_t where,
                              int line) {
    if (err) {
        err->status = status;
        err->msg = msg;
        err->where = where;
        err->room_line = (uint32_t)line;
        err->file = NULL;
    }
    return status;
}

DEND_IMPL const char *dend_status_text(dend_status status) {
    switch ((int)status) {
#define DENDP_CASE(name, value, text)                                                                        \
    case value:                                                                                              \
        return text;
        DEND_STATUS_TABLE(DENDP_CASE)
#undef DENDP_CASE
    default:
        return "unknown status";
    }
}

DEND_IMPL const char *dend_status_name(dend_status status) {
    switch ((int)status) {
#define DENDP_CASE(name, value, text)                                                                        \
    case value:                                                                                              \
        return #name;
        DEND_STATUS_TABLE(DENDP_CASE)
#undef DENDP_CASE
    default:
        return "DEND_UNKNOWN";
    }
}

DEND_IMPL const char *dend_version(void) {
    return DEND_VERSION_STRING;
}

/* -- sizes ---------------------------------------------------------------- */

/* *out = a * b; false on overflow. */
static bool dendp_mul(uint64_t a, uint64_t b, uint64_t *out) {
    if (b != 0 && a > UINT64_MAX / b) {
        return false;
    }
    *out = a * b;
    return true;
}

/* *out = a + b; false on overflow. */
static bool dendp_add(uint64_t a, uint64_t b, uint64_t *out) {
    if (a > UINT64_MAX - b) {
        return false;
    }
    *out = a + b;
    return true;
}

static uint32_t dendp_min_u32(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

static uint32_t dendp_max_u32(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

static uint32_t dendp_div_up(uint32_t a, uint32_t b) {
    return a / b + (a % b != 0 ? 1u : 0u);
}

/* -- allocation ----------------------------------------------------------- */

#define DENDP_ALIGN 64 /* a cache line, an AVX-512 register */

/* size bytes at DENDP_ALIGN, or NULL. A size that does not fit size_t fails. */
static void *dendp_alloc(const dend_allocator *a, uint64_t size) {
    if (size == 0 || size > SIZE_MAX / 2) {
        return NULL;
    }
    return a->alloc(a->user, (size_t)size, DENDP_ALIGN);
}

static void dendp_free(const dend_allocator *a, void *p, uint64_t size) {
    if (p) {
        a->free(a->user, p, (size_t)size);
    }
}

/* -- carver: one block, measured and then cut ------------------------------ */

typedef struct dendp_carver {
    unsigned char *base; /* NULL while measuring */
    uint64_t used;
    bool overflow;
} dendp_carver;

/* The next count * size bytes at DENDP_ALIGN; NULL while measuring. */
static void *dendp_carve(dendp_carver *c, uint64_t count, uint64_t size) {
    uint64_t bytes, at = c->used, end;
    if (!dendp_mul(count, size, &bytes) || !dendp_add(bytes, DENDP_ALIGN - 1, &bytes) ||
        !dendp_add(at, bytes & ~(uint64_t)(DENDP_ALIGN - 1), &end)) {
        c->overflow = true;
        return NULL;
    }
    c->used = end;
    return c->base ? c->base + at : NULL;
}

/* -- chain: chunks freed as a whole ---------------------------------------- */

typedef struct dendp_chunk {
    struct dendp_chunk *next;
    uint64_t size, used; /* of the bytes behind this head, which takes DENDP_ALIGN */
} dendp_chunk;

typedef struct dendp_chain {
    dend_allocator allocator;
    dendp_chunk *first;
    uint64_t total;
} dendp_chain;

/* `size` bytes, 16-aligned, uninitialised; NULL when out of memory. */
static void *dendp_chain_alloc(dendp_chain *chain, uint64_t size) {
    dendp_chunk *chunk = chain->first;
    uint64_t need;
    if (!dendp_add(size, 15, &need)) {
        return NULL;
    }
    need &= ~(uint64_t)15;
    if (!chunk || chunk->size - chunk->used < need) {
        uint64_t cap = need > 65536 - DENDP_ALIGN ? need : 65536 - DENDP_ALIGN;
        if (cap > UINT64_MAX - DENDP_ALIGN) {
            return NULL;
        }
        chunk = (dendp_chunk *)dendp_alloc(&chain->allocator, cap + DENDP_ALIGN);
        if (!chunk) {
            return NULL;
        }
        chunk->size = cap;
        chunk->used = 0;
        chunk->next = chain->first;
        chain->first = chunk;
        chain->total += cap + DENDP_ALIGN;
    }
    chunk->used += need;
    return (unsigned char *)chunk + DENDP_ALIGN + (chunk->used - need);
}

static void dendp_chain_free(dendp_chain *chain) {
    while (chain->first) {
        dendp_chunk *chunk = chain->first;
        chain->first = chunk->next;
        dendp_free(&chain->allocator, chunk, chunk->size + DENDP_ALIGN);
    }
    chain->total = 0;
}
