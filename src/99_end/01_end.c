/* ==========================================================================
 * >>99.01 END: what the first room changed is put back
 * ==========================================================================
 * The implementation may stand in front of other code in one file, and that
 * code's meaning is not ours to change: here end the compiler options that
 * 01.01 set aside. The condition must be the same there and here.
 *
 * What remains. gcc then gives the same bits with -ffast-math, -Ofast and any
 * -march as without. Clang's back end goes on fusing a product and a sum into
 * one operation where the processor can (-ffp-contract=fast, which -ffast-math
 * implies), in spite of what a file says: results differ in the last places
 * from those of other builds, though not between the rows or threads of one
 * build. -ffast-math -ffp-contract=off avoids it. And a program that is linked
 * with -ffast-math flushes subnormal numbers to zero on x86, in all threads.
 * ======================================================================== */

#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) ||               \
    (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__ > 0)
#if defined(__clang__)
#pragma float_control(pop)
#elif defined(__GNUC__)
#pragma GCC pop_options
#endif
#endif
