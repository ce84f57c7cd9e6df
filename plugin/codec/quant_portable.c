/* SPDX-License-Identifier: Apache-2.0 */
/* Tile operations for any CPU. */
#define NB_TARGET
#define NB_TILE_OPS nb_tile_portable
#include "codec/quant_kernels.h"
