/* SPDX-License-Identifier: Apache-2.0 */
/* Walking over the codec's variants in a fuzz target. */
#ifndef NIBBLE_TESTS_FUZZ_CODEC_H
#define NIBBLE_TESTS_FUZZ_CODEC_H

#include "nibble/codec.h"

/* Select the first variant numbered *v or higher that this machine has, and leave its number in *v; 0 when
 * there is none. */
static inline int next_variant(int *v)
{
    for (; *v < NB_VARIANT_COUNT; ++*v)
        if (nb_codec_available((enum nb_variant) * v))
            return nb_codec_select((enum nb_variant) * v) == 0;
    return 0;
}

#endif
