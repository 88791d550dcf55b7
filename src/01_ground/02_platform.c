/* ==========================================================================
 * >>01.02 PLATFORM: memory, files, clock, processor, atomics, threads
 * ==========================================================================
 * Everything that differs between systems, and nothing else: POSIX, Windows
 * (MinGW-w64 is what is tested), and for the rest files through stdio, the C
 * library's clock and no threads. Of later rooms 01.08 and 01.09 alone ask which
 * system it is.
 *
 * LARGE PAGES.  Decoding reads all weights once a token. With pages of 4 KB the
 * processor translates an address anew every 64 lines, and its prefetchers stop
 * at each border; with pages of 2 MB the same weights come 1.3 to 1.5 times as fast
 * (docs/performance.md). Linux gives such pages to those who ask (madvise), where
 * it is set so; for large blocks we do. It is a wish: nothing depends on it.
 *
 * A dendp_file is a range of bytes: mapped, read whole into memory, given by
 * the caller, or behind the caller's read callback. A mapped file that
 * somebody truncates raises SIGBUS on access, which no library can turn into
 * an error; dend_model_desc.no_mmap avoids it. Windows refuses to truncate a
 * file that is mapped.
 *
 * gcc aligns the stack to 16 bytes on 64-bit Windows, whatever a function asks
 * for, and yet spills 32 and 64 byte registers with instructions that need more
 * (its bug 54412): the first spill in a kernel would crash. The assembler macros
 * below make these instructions the ones that need no alignment, which cost the
 * same on all processors with AVX. Clang has no such fault.
 * ======================================================================== */

#include <errno.h>
#include <stdio.h>
#include <time.h>

#if defined(__unix__) || defined(__APPLE__)
#define DENDP_POSIX 1
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>
#else
#define DENDP_POSIX 0
#endif

#if DENDP_POSIX
#include <sched.h>
#endif

#if defined(_WIN32)
#define DENDP_WINDOWS 1
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <process.h>
#include <windows.h>
#else
#define DENDP_WINDOWS 0
#endif

#if (defined(__x86_64__) || defined(__i386__)) && !defined(DEND_NO_SIMD)
#define DENDP_X86 1
#include <cpuid.h>
#include <immintrin.h>
#else
#define DENDP_X86 0
#endif

#if defined(__aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && !defined(DEND_NO_SIMD)
#define DENDP_ARM64 1
#include <arm_neon.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif
#else
#define DENDP_ARM64 0
#endif

#if DENDP_X86 && defined(_WIN64) && defined(__GNUC__) && !defined(__clang__)
__asm__(".macro vmovaps args:vararg\n\tvmovups \\args\n.endm\n"
        ".macro vmovapd args:vararg\n\tvmovupd \\args\n.endm\n"
        ".macro vmovdqa args:vararg\n\tvmovdqu \\args\n.endm\n"
        ".macro vmovdqa32 args:vararg\n\tvmovdqu32 \\args\n.endm\n"
        ".macro vmovdqa64 args:vararg\n\tvmovdqu64 \\args\n.endm\n");
#endif

/* Whether the compiler knows AVX-VNNI: gcc 11, clang 12. */
#define DENDP_HAS_AVX_VNNI 0
#if DENDP_X86 && defined(__has_include)
#if __has_include(<avxvnniintrin.h>)
#undef DENDP_HAS_AVX_VNNI
#define DENDP_HAS_AVX_VNNI 1
#endif
#endif

/* -- atomics (GCC and Clang builtins, so that C99 and C++11 see the same); without threads some are idle -- */

static DENDP_UNUSED uint32_t dendp_atomic_load(const uint32_t *p) {
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

static void dendp_atomic_store(uint32_t *p, uint32_t v) {
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

/* Adds and returns the value before. All adds stand in one order that all threads agree on. */
static DENDP_UNUSED uint32_t dendp_atomic_add(uint32_t *p, uint32_t v) {
    return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);
}

/* Replaces *p by `to` if it is *from; else *from becomes what it is. May fail without cause. */
static DENDP_UNUSED bool dendp_atomic_swap_if(uint32_t *p, uint32_t *from, uint32_t to) {
    return __atomic_compare_exchange_n(p, from, to, true, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/* A hint to the processor that this is a spin loop. */
static DENDP_UNUSED void dendp_pause(void) {
#if DENDP_X86
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* Asks for the cache lines of [p, p + bytes) ahead of their use, into the second level. */
static void dendp_fetch_ahead(const void *p, uint64_t bytes) {
    const char *line = (const char *)p;
    uint64_t i;
    for (i = 0; i < bytes; i += 64) {
        __builtin_prefetch(line + i, 0, 2);
    }
}

/* Gives the rest of this thread's time slice to others. */
static DENDP_UNUSED void dendp_yield(void) {
#if DENDP_POSIX
    sched_yield();
#elif DENDP_WINDOWS
    SwitchToThread();
#endif
}

/* -- threads: names of the system's for what the next room needs ------------ */

#if !defined(DEND_NO_THREADS) && (DENDP_POSIX || DENDP_WINDOWS)
#define DENDP_THREADS 1
#else
#define DENDP_THREADS 0
#endif

#if DENDP_THREADS && DENDP_POSIX
#include <pthread.h>

typedef pthread_mutex_t dendp_mutex;
typedef pthread_cond_t dendp_condition;
typedef pthread_t dendp_thread;
#define DENDP_THREAD_MAIN void * /* a thread's first function: of void *, returns 0 */
typedef void *(*dendp_thread_main)(void *);

static bool dendp_mutex_init(dendp_mutex *m) {
    return pthread_mutex_init(m, NULL) == 0;
}

static void dendp_mutex_destroy(dendp_mutex *m) {
    pthread_mutex_destroy(m);
}

static void dendp_mutex_lock(dendp_mutex *m) {
    pthread_mutex_lock(m);
}

static void dendp_mutex_unlock(dendp_mutex *m) {
    pthread_mutex_unlock(m);
}

static bool dendp_condition_init(dendp_condition *c) {
    return pthread_cond_init(c, NULL) == 0;
}

static void dendp_condition_destroy(dendp_condition *c) {
    pthread_cond_destroy(c);
}

static void dendp_condition_wait(dendp_condition *c, dendp_mutex *m) {
    pthread_cond_wait(c, m);
}

static void dendp_condition_wake_all(dendp_condition *c) {
    pthread_cond_broadcast(c);
}

/* Starts a thread with a stack of at least so many bytes. */
static bool dendp_thread_start(dendp_thread *thread, dendp_thread_main f, void *arg, uint32_t stack_bytes) {
    pthread_attr_t attr;
    bool ok;
    if (pthread_attr_init(&attr) != 0) {
        return false;
    }
    (void)pthread_attr_setstacksize(&attr, stack_bytes);
    ok = pthread_create(thread, &attr, f, arg) == 0;
    pthread_attr_destroy(&attr);
    return ok;
}

static void dendp_thread_join(dendp_thread thread) {
    pthread_join(thread, NULL);
}

#elif DENDP_THREADS

typedef SRWLOCK dendp_mutex;
typedef CONDITION_VARIABLE dendp_condition;
typedef HANDLE dendp_thread;
#define DENDP_THREAD_MAIN unsigned __stdcall
typedef unsigned(__stdcall *dendp_thread_main)(void *);

static bool dendp_mutex_init(dendp_mutex *m) {
    InitializeSRWLock(m);
    return true;
}

static void dendp_mutex_destroy(dendp_mutex *m) {
    (void)m;
}

static void dendp_mutex_lock(dendp_mutex *m) {
    AcquireSRWLockExclusive(m);
}

static void dendp_mutex_unlock(dendp_mutex *m) {
    ReleaseSRWLockExclusive(m);
}

static bool dendp_condition_init(dendp_condition *c) {
    InitializeConditionVariable(c);
    return true;
}

static void dendp_condition_destroy(dendp_condition *c) {
    (void)c;
}

static void dendp_condition_wait(dendp_condition *c, dendp_mutex *m) {
    (void)SleepConditionVariableSRW(c, m, INFINITE, 0);
}

static void dendp_condition_wake_all(dendp_condition *c) {
    WakeAllConditionVariable(c);
}

static bool dendp_thread_start(dendp_thread *thread, dendp_thread_main f, void *arg, uint32_t stack_bytes) {
    uintptr_t h = _beginthreadex(NULL, stack_bytes, f, arg, STACK_SIZE_PARAM_IS_A_RESERVATION, NULL);
    *thread = (HANDLE)h;
    return h != 0;
}

static void dendp_thread_join(dendp_thread thread) {
    (void)WaitForSingleObject(thread, INFINITE);
    (void)CloseHandle(thread);
}
#endif

/* -- memory --------------------------------------------------------------- */

#define DENDP_LARGE_PAGE ((size_t)2 << 20)

#if defined(__linux__) && !defined(MADV_HUGEPAGE) && (defined(__x86_64__) || defined(__aarch64__)) &&        \
    !defined(__cplusplus)
#define MADV_HUGEPAGE 14 /* strict C99, and another header came first: the headers keep both from us */
extern int madvise(void *p, size_t n, int advice);
#endif

/* Asks for large pages where whole ones lie in [p, p + n), which has not been written to yet. */
static void dendp_ask_large_pages(void *p, size_t n) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    unsigned char *begin = (unsigned char *)p;
    size_t skip = (DENDP_LARGE_PAGE - ((uintptr_t)begin & (DENDP_LARGE_PAGE - 1))) & (DENDP_LARGE_PAGE - 1);
    int before = errno;
    if (n >= skip + DENDP_LARGE_PAGE) {
        (void)madvise(begin + skip, (n - skip) & ~(DENDP_LARGE_PAGE - 1), MADV_HUGEPAGE);
    }
    errno = before;
#else
    (void)p;
    (void)n;
#endif
}

/* malloc with alignment: the start stands in front. Blocks of several large pages begin with one. */
static void *dendp_default_alloc(void *user, size_t size, size_t align) {
    unsigned char *raw, *p;
    (void)user;
    align = size >= 2 * DENDP_LARGE_PAGE && align < DENDP_LARGE_PAGE ? DENDP_LARGE_PAGE : align;
    if (size > SIZE_MAX - align - sizeof(void *)) {
        return NULL;
    }
    raw = (unsigned char *)malloc(size + align + sizeof(void *));
    if (!raw) {
        return NULL;
    }
    p = raw + sizeof(void *);
    p += (align - ((uintptr_t)p & (align - 1))) & (align - 1);
    memcpy(p - sizeof(void *), &raw, sizeof(void *));
    dendp_ask_large_pages(p, size);
    return p;
}

static void dendp_default_free(void *user, void *p, size_t size) {
    void *raw;
    (void)user;
    (void)size;
    memcpy(&raw, (unsigned char *)p - sizeof(void *), sizeof(void *));
    free(raw);
}

/* Resolves a description's allocator: all zero = malloc; half a pair is refused. */
static dend_status dendp_allocator_resolve(dend_allocator *a, dend_error *err) {
    if (!a->alloc != !a->free) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "allocator needs both alloc and free", 0);
    }
    if (!a->alloc) {
        a->alloc = dendp_default_alloc;
        a->free = dendp_default_free;
        a->user = NULL;
    }
    return DEND_OK;
}

/* -- clock ---------------------------------------------------------------- */

/* Nanoseconds from some fixed moment; never runs backwards where the system can promise it. */
static uint64_t dendp_now_ns(void) {
#if DENDP_WINDOWS
    LARGE_INTEGER ticks, per_s;
    if (QueryPerformanceCounter(&ticks) && QueryPerformanceFrequency(&per_s) && per_s.QuadPart > 0) {
        uint64_t t = (uint64_t)ticks.QuadPart, f = (uint64_t)per_s.QuadPart;
        return t / f * 1000000000u + t % f * 1000000000u / f;
    }
#elif defined(CLOCK_MONOTONIC)
    struct timespec t;
    if (clock_gettime(CLOCK_MONOTONIC, &t) == 0) {
        return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    }
#endif
    return (uint64_t)clock() * (uint64_t)(1000000000 / CLOCKS_PER_SEC);
}

/* -- processor ------------------------------------------------------------ */

/* Bits of dendp_cpu_features. */
enum { DENDP_CPU_AVX2 = 1, DENDP_CPU_AVX512 = 2, DENDP_CPU_NEON_DOT = 4 };

/* What this processor and its operating system offer: AVX2 means AVX2 with FMA
 * (and F16C, which every such processor has); AVX512 means F, BW, VL, DQ and
 * VNNI on top of that. The compiler's runtime asked the processor when the
 * program started: CPUID itself takes tens of microseconds in a virtual machine.
 * NEON_DOT means the byte dot products of AArch64. NEON itself is part of every
 * such processor, the dot products are not: Linux tells of them by a bit, all
 * of Apple's 64-bit desktops have them, elsewhere they are taken to be absent. */
static uint32_t dendp_cpu_features(void) {
    uint32_t found = 0;
#if DENDP_X86
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        found |= DENDP_CPU_AVX2;
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512vnni")) {
            found |= DENDP_CPU_AVX512;
        }
    }
#elif DENDP_ARM64 && defined(__linux__)
    if (getauxval(AT_HWCAP) >> 20 & 1u) { /* HWCAP_ASIMDDP, which old C libraries do not name */
        found |= DENDP_CPU_NEON_DOT;
    }
#elif DENDP_ARM64 && defined(__APPLE__)
    found |= DENDP_CPU_NEON_DOT;
#endif
    return found;
}

#if DENDP_HAS_AVX_VNNI
/* AVX-VNNI, which is no bit of dendp_cpu_features: that is asked often, and
 * only gcc's runtime knows this one (clang 14 refuses the name). With other
 * compilers this executes CPUID, 10 to 100 microseconds in a virtual machine.
 * It is for choosing kernels, a few times in the life of an engine, and
 * nothing is kept in a global variable for it. */
static bool dendp_cpu_has_avx_vnni(void) {
#if defined(DEND_TEST_SIMDE)
    return true; /* emulated */
#elif defined(__GNUC__) && !defined(__clang__)
    return __builtin_cpu_supports("avxvnni") != 0;
#else
    unsigned int a = 0, b = 0, c = 0, d = 0;
    if (!(dendp_cpu_features() & DENDP_CPU_AVX2)) { /* the system must keep 256-bit registers */
        return false;
    }
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1u); /* zeros where there is no subleaf 1 */
#endif
}
#endif

/* -- files ---------------------------------------------------------------- */

typedef struct dendp_file {
    const unsigned char *data; /* all bytes, or NULL when there is only the reader */
    uint64_t size;
    dend_reader reader;
    dend_allocator allocator;
    bool mapped, owned;
} dendp_file;

static void dendp_file_close(dendp_file *file) {
#if DENDP_POSIX && !defined(DEND_NO_MMAP)
    if (file->mapped && file->data) {
        union {
            const unsigned char *from;
            void *to;
        } p;
        p.from = file->data;
        munmap(p.to, (size_t)file->size);
    }
#elif DENDP_WINDOWS && !defined(DEND_NO_MMAP)
    if (file->mapped && file->data) {
        (void)UnmapViewOfFile(file->data);
    }
#endif
    if (file->owned && file->data) {
        union {
            const unsigned char *from;
            void *to;
        } p;
        p.from = file->data;
        dendp_free(&file->allocator, p.to, file->size);
    }
    memset(file, 0, sizeof *file);
}

/* Whether there is something at a path that can be opened. */
static DENDP_UNUSED bool dendp_path_exists(const char *path) {
#if DENDP_POSIX
    struct stat st;
    return stat(path, &st) == 0;
#else
    FILE *f = fopen(path, "rb");
    if (f) {
        fclose(f);
    }
    return f != NULL;
#endif
}

/* Whether a path is that of a folder. Elsewhere than on POSIX: of one with a config.json, and no file. */
static bool dendp_path_is_folder(const char *path) {
#if DENDP_POSIX
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
#else
    static const char inside[] = "/config.json";
    char buf[1024];
    size_t n = strlen(path);
    if (dendp_path_exists(path) || n + sizeof inside > sizeof buf) {
        return false;
    }
    memcpy(buf, path, n);
    memcpy(buf + n, inside, sizeof inside);
    return dendp_path_exists(buf);
#endif
}

#if DENDP_POSIX
/* Reads [0, size) of a descriptor. */
static bool dendp_fd_read_all(int fd, unsigned char *dst, uint64_t size) {
    uint64_t done = 0;
    while (done < size) {
        uint64_t want = size - done > (1u << 30) ? (1u << 30) : size - done;
        ssize_t got = read(fd, dst + done, (size_t)want);
        if (got <= 0) {
            return false;
        }
        done += (uint64_t)got;
    }
    return true;
}
#endif

#if DENDP_WINDOWS
/* Opens an existing file to read; its name is UTF-8. INVALID_HANDLE_VALUE when it is not there, or is no name. */
static HANDLE dendp_open_utf8(const char *path, const dend_allocator *allocator, bool *no_memory) {
    HANDLE f = INVALID_HANDLE_VALUE;
    wchar_t *wide;
    int n = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, NULL, 0);
    *no_memory = false;
    if (n <= 0) {
        return f;
    }
    wide = (wchar_t *)dendp_alloc(allocator, (uint64_t)n * sizeof *wide);
    if (!wide) {
        *no_memory = true;
        return f;
    }
    if (MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, wide, n) == n) {
        f = CreateFileW(wide, GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, NULL,
                        OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, NULL);
    }
    dendp_free(allocator, wide, (uint64_t)n * sizeof *wide);
    return f;
}

/* Reads [0, size) of a file. */
static bool dendp_handle_read_all(HANDLE f, unsigned char *dst, uint64_t size) {
    uint64_t done = 0;
    while (done < size) {
        DWORD want = (DWORD)(size - done > (1u << 30) ? (1u << 30) : size - done), got = 0;
        if (!ReadFile(f, dst + done, want, &got, NULL) || got == 0) {
            return false;
        }
        done += got;
    }
    return true;
}
#endif

/* Opens `path`, mapped if it can be and `use_mmap`, else read whole.
 * IO when it cannot be opened or read, or is no regular file; FORMAT when empty. */
static dend_status dendp_file_open(dendp_file *file, const char *path, bool use_mmap,
                                   const dend_allocator *allocator, dend_error *err) {
    dend_status status = DEND_OK;
    unsigned char *data = NULL;
    memset(file, 0, sizeof *file);
    file->allocator = *allocator;
    (void)use_mmap; /* not asked where nothing can be mapped */
#if DENDP_POSIX
    {
        struct stat st;
        int fd = open(path, O_RDONLY);
        if (fd < 0) {
            return DENDP_FAIL(err, DEND_ERR_IO, "file cannot be opened", 0);
        }
        if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
            status = DENDP_FAIL(err, DEND_ERR_IO, "not a regular file", 0);
        } else if (st.st_size <= 0) {
            status = DENDP_FAIL(err, DEND_ERR_FORMAT, "file is empty", 0);
        } else if ((uint64_t)st.st_size > SIZE_MAX / 2) {
            status = DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "file is too large for this system", 0);
        } else {
            file->size = (uint64_t)st.st_size;
#if !defined(DEND_NO_MMAP)
            if (use_mmap) {
                void *p = mmap(NULL, (size_t)file->size, PROT_READ, MAP_PRIVATE, fd, 0);
                if (p != MAP_FAILED) {
                    file->data = (const unsigned char *)p;
                    file->mapped = true;
                }
            }
#endif
            if (!file->data) {
                data = (unsigned char *)dendp_alloc(allocator, file->size);
                if (!data) {
                    status = DENDP_FAIL(err, DEND_ERR_MEMORY, "no memory for the file", 0);
                } else if (!dendp_fd_read_all(fd, data, file->size)) {
                    dendp_free(allocator, data, file->size);
                    status = DENDP_FAIL(err, DEND_ERR_IO, "file cannot be read", 0);
                } else {
                    file->data = data;
                    file->owned = true;
                }
            }
        }
        close(fd);
    }
#elif DENDP_WINDOWS
    {
        LARGE_INTEGER size;
        bool no_memory;
        HANDLE f = dendp_open_utf8(path, allocator, &no_memory);
        if (f == INVALID_HANDLE_VALUE) {
            return no_memory ? DENDP_FAIL(err, DEND_ERR_MEMORY, "no memory for the file's name", 0)
                             : DENDP_FAIL(err, DEND_ERR_IO, "file cannot be opened", 0);
        }
        if (GetFileType(f) != FILE_TYPE_DISK || !GetFileSizeEx(f, &size)) {
            status = DENDP_FAIL(err, DEND_ERR_IO, "not a regular file", 0);
        } else if (size.QuadPart <= 0) {
            status = DENDP_FAIL(err, DEND_ERR_FORMAT, "file is empty", 0);
        } else if ((uint64_t)size.QuadPart > SIZE_MAX / 2) {
            status = DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "file is too large for this system", 0);
        } else {
            file->size = (uint64_t)size.QuadPart;
#if !defined(DEND_NO_MMAP)
            if (use_mmap) { /* the view keeps the mapping, and the mapping the file */
                HANDLE mapping = CreateFileMappingW(f, NULL, PAGE_READONLY, 0, 0, NULL);
                if (mapping) {
                    file->data = (const unsigned char *)MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, 0);
                    file->mapped = file->data != NULL;
                    (void)CloseHandle(mapping);
                }
            }
#endif
            if (!file->data) {
                data = (unsigned char *)dendp_alloc(allocator, file->size);
                if (!data) {
                    status = DENDP_FAIL(err, DEND_ERR_MEMORY, "no memory for the file", 0);
                } else if (!dendp_handle_read_all(f, data, file->size)) {
                    dendp_free(allocator, data, file->size);
                    status = DENDP_FAIL(err, DEND_ERR_IO, "file cannot be read", 0);
                } else {
                    file->data = data;
                    file->owned = true;
                }
            }
        }
        (void)CloseHandle(f);
    }
#else
    {
        FILE *f = fopen(path, "rb");
        long size = 0;
        if (!f) {
            return DENDP_FAIL(err, DEND_ERR_IO, "file cannot be opened", 0);
        }
        if (fseek(f, 0, SEEK_END) != 0 || (size = ftell(f)) < 0 || fseek(f, 0, SEEK_SET) != 0) {
            status = DENDP_FAIL(err, DEND_ERR_IO, "file cannot be read", 0);
        } else if (size == 0) {
            status = DENDP_FAIL(err, DEND_ERR_FORMAT, "file is empty", 0);
        } else {
            file->size = (uint64_t)size;
            data = (unsigned char *)dendp_alloc(allocator, file->size);
            if (!data) {
                status = DENDP_FAIL(err, DEND_ERR_MEMORY, "no memory for the file", 0);
            } else if (fread(data, 1, (size_t)size, f) != (size_t)size) {
                dendp_free(allocator, data, file->size);
                status = DENDP_FAIL(err, DEND_ERR_IO, "file cannot be read", 0);
            } else {
                file->data = data;
                file->owned = true;
            }
        }
        fclose(f);
    }
#endif
    if (status != DEND_OK) {
        memset(file, 0, sizeof *file);
    }
    return status;
}

/* Copies n bytes at `offset`; false when they are not there or the callback fails. */
static bool dendp_file_read(const dendp_file *file, uint64_t offset, void *dst, uint64_t n) {
    if (offset > file->size || n > file->size - offset) {
        return false;
    }
    if (file->data) {
        memcpy(dst, file->data + offset, (size_t)n);
        return true;
    }
    return n == 0 || file->reader.read(file->reader.user, offset, dst, (size_t)n);
}
