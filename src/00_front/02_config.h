/* ==========================================================================
 * >>00.02 CONFIG: switches and version
 * ==========================================================================
 * Define these before the implementation is compiled. None of them changes a
 * public struct, so translation units may disagree about them.
 * ======================================================================== */

/* switch: DEND_STATIC      every function static: for one file that includes the implementation */
/* switch: DEND_NO_THREADS  no thread pool: all work runs on the caller's thread (a job hook still works) */
/* switch: DEND_NO_MMAP     files are read into memory, never mapped */
/* switch: DEND_NO_SIMD     only the scalar reference kernels are compiled */
/* switch: DEND_NO_FOLDERS  no safetensors, config.json, tokenizer.json: models are GGUF files */
/* switch: DEND_NO_SAMPLERS sampling by temperature, top_k, top_p and min_p alone: other parameters are UNSUPPORTED */
/* switch: DEND_NO_SERVE    without part 09: the dend_scheduler functions are declared and not defined */
/* switch: DEND_NO_SEARCH   without part 10: the dend_search functions are declared and not defined */

#define DEND_VERSION_MAJOR 0
#define DEND_VERSION_MINOR 1
#define DEND_VERSION_PATCH 0
#define DEND_VERSION_STRING "0.1.0"

/* POSIX functions are asked for before the first libc header. Where another
 * header came first this has no effect, and the implementation makes do
 * without the functions that it then cannot see. */
#if defined(DENDRITE_IMPLEMENTATION) && !defined(_WIN32)
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE 1
#elif !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif
#endif

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef DEND_STATIC
#define DEND_API static
#define DEND_IMPL static
#else
#ifdef __cplusplus
#define DEND_API extern "C"
#define DEND_IMPL extern "C"
#else
#define DEND_API extern
#define DEND_IMPL
#endif
#endif
