/* SPDX-License-Identifier: Apache-2.0 */
/* ulp block coder with AVX-512 and its VBMI (permutations of bytes, eight bits from any bit). See
 * ulp_avx512.inc.h. */
#include "codec/ulp.h"

#ifdef NB_ULP_X86

#include <errno.h>
#include <immintrin.h>
#include <string.h>

#if defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,bmi,bmi2,popcnt"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,bmi,bmi2,popcnt")
#endif

#define ULP_VBMI
#define ULP_TABLE nb_ulp_avx512_vbmi
#include "codec/ulp_avx512.inc.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#else
typedef int nb_ulp_avx512_vbmi_unused;
#endif
