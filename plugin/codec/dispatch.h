/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Variants: the same codecs for different processors, each a table of operations. All give the same bytes.
 * The selected variant holds for the whole process (nibble/codec.h, nb_codec_select): it depends on the
 * processor, while a node is a context.
 */
#ifndef NIBBLE_CODEC_DISPATCH_H
#define NIBBLE_CODEC_DISPATCH_H

#include "codec/hash_stripes.h"
#include "codec/span.h"
#include "codec/ulp.h"

struct nb_variant_ops {
    struct nb_span_ops span;
    const struct nb_ulp_ops *ulp;
    nb_stripes_fn *stripes; /* of nb_hash64 */
};

/* Return the selected variant, never NULL. */
const struct nb_variant_ops *nb_variant(void);

/* Select a variant from outside the library. Tests select the reference implementation. */
void nb_variant_use(const struct nb_variant_ops *ops);

#endif
