/* Eight lanes: AVX-512 F and DQ. Only functions of this file may use them; they run after a check of the
 * processor (dispatch.c). */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512vl,avx2,fma"))),                  \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512dq,avx512vl,avx2,fma")
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

#define SPO_LANES 8
#include "all.h"

const spo_kernels spo_kernels_avx512 = SPO_TABLE("avx512");

#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int spo_no_avx512; /* a translation unit may not be empty */
#endif
