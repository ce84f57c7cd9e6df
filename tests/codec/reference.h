/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference implementation of the codecs, slow and obvious: what docs/wire-format.md says, read aloud.
 * The library's variants are tested against it. Here variants are numbered as in enum nb_variant, with the
 * reference in the place of NB_VARIANT_AUTO, so that tests walk over all of them in one loop.
 */
#ifndef NIBBLE_TESTS_CODEC_REFERENCE_H
#define NIBBLE_TESTS_CODEC_REFERENCE_H

#include <stdbool.h>

#include "codec/dispatch.h"

#define VARIANT_REFERENCE 0

extern const struct nb_variant_ops reference_variant;
extern const struct nb_ulp_ops reference_ulp;

/* Is there such a variant on this machine? */
bool variant_available(int variant);
/* Put it in force: 0, or nb_codec_select's error. nb_codec_select(NB_VARIANT_AUTO) ends it. */
int variant_select(int variant);
const char *variant_name(int variant);

#endif
