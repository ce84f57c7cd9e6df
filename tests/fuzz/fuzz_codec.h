/* SPDX-License-Identifier: Apache-2.0 */
/* Walking over the codec's variants in a fuzz target. */
#ifndef NIBBLE_TESTS_FUZZ_CODEC_H
#define NIBBLE_TESTS_FUZZ_CODEC_H

#include "reference.h"

/* Select the first variant numbered *v or higher that this machine has, and leave its number in *v. Return 0
 * when there is none. */
static inline int next_variant(int *v)
{
    for (; *v < NB_VARIANT_COUNT; ++*v)
        if (variant_available(*v))
            return variant_select(*v) == 0;
    return 0;
}

#endif
