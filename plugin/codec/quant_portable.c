/* SPDX-License-Identifier: Apache-2.0 */
/* The quantizing codecs for any CPU. */
#define NB_TARGET
#include "codec/quant_kernels.h"

const struct nb_codec_ops nb_codec_portable = NB_SPAN_OPS(&nb_tile_operations);
