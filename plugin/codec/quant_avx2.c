/* SPDX-License-Identifier: Apache-2.0 */
/* The quantizing codecs for x86-64 with AVX2, BMI and F16C. */
#include "codec/ops.h"

#if defined(__x86_64__)
#define NB_TARGET __attribute__((target("avx2,bmi,bmi2,popcnt,f16c")))
#include "codec/quant_kernels.h"

static const struct nb_codec_ops operations = NB_SPAN_OPS(&nb_tile_operations);
const struct nb_codec_ops *const nb_codec_avx2 = &operations;
#else
const struct nb_codec_ops *const nb_codec_avx2 = NULL;
#endif
