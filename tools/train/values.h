/* SPDX-License-Identifier: Apache-2.0 */
/* Values in the types that travel: rounding to nearest even, and back. */
#ifndef NIBBLE_TRAIN_VALUES_H
#define NIBBLE_TRAIN_VALUES_H

#include <stddef.h>
#include <stdint.h>

#include "nibble/codec.h"

/* Convert n values to BF16 and back. NaN stays NaN. */
void nbt_to_bf16(const float *src, size_t n, uint16_t *dst);
void nbt_from_bf16(const uint16_t *src, size_t n, float *dst);

/* Convert n values to `type` and back. Values too large for FP16 become infinity. */
void nbt_narrow(enum nb_dtype type, const float *src, size_t n, void *dst);
void nbt_widen(enum nb_dtype type, const void *src, size_t n, float *dst);

#endif
