/* SPDX-License-Identifier: Apache-2.0 */
/* The quantizing codecs for x86-64 with AVX-512 (F, BW, DQ, VL). */
#include "codec/ops.h"

#if defined(__x86_64__)
#define NB_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi,bmi2,popcnt,f16c")))
#include "codec/quant_kernels.h"

static const struct nb_codec_ops operations = NB_SPAN_OPS(&nb_tile_operations);
const struct nb_codec_ops *const nb_codec_avx512 = &operations;
#else
const struct nb_codec_ops *const nb_codec_avx512 = NULL;
#endif
