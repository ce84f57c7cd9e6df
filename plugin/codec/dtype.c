/* SPDX-License-Identifier: Apache-2.0 */
/* The types of values that can be quantized: size and name. */
#include "nibble/codec.h"

size_t nb_dtype_size(enum nb_dtype type)
{
    switch (type) {
    case NB_F32: return 4;
    case NB_BF16:
    case NB_F16: return 2;
    default: return 0;
    }
}

const char *nb_dtype_name(enum nb_dtype type)
{
    static const char *const names[NB_DTYPE_COUNT] = {"float32", "bfloat16", "float16"};
    return (unsigned)type < NB_DTYPE_COUNT ? names[type] : "unknown";
}
