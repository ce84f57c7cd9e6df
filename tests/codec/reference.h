/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference implementation of the codecs, slow and obvious: a transcript of docs/wire-format.md. Tests
 * compare the library's variants with it. Variants have the numbers of enum nb_variant here, and the
 * reference has the number of NB_VARIANT_AUTO, so that tests walk over all of them in one loop.
 */
#ifndef NIBBLE_TESTS_CODEC_REFERENCE_H
#define NIBBLE_TESTS_CODEC_REFERENCE_H

#include <stdbool.h>

#include "codec/dispatch.h"

#define VARIANT_REFERENCE 0

extern const struct nb_variant_ops reference_variant;
extern const struct nb_ulp_ops reference_ulp;

/* The parts of the reference variant besides encoding: decode and reduce as in struct nb_span_ops. */
int reference_decode(const struct nb_span_ops *self, nb_record_fn *record, enum nb_dtype type,
                     const uint8_t *coded, size_t len, size_t n, uint64_t first, uint8_t *dst);
int reference_reduce(const struct nb_span_ops *self, const struct nb_codec_row *const *rows,
                     enum nb_dtype type, const struct nb_source *sources, size_t nsources, const uint8_t *own,
                     size_t n, uint64_t first, uint8_t *dst);
/* Compute the unnormalized transform of a group, in the format's order of roundings. */
void reference_hadamard(float v[NB_GROUP]);

/* Return whether this machine has the variant. */
bool variant_available(int variant);
/* Select the variant. Return 0, or nb_codec_select's error. nb_codec_select(NB_VARIANT_AUTO) ends the
 * selection. */
int variant_select(int variant);
/* Select the first variant numbered *variant or higher that this machine has, and leave its number in
 * *variant. Return false when there is none. */
bool next_variant(int *variant);
const char *variant_name(int variant);

#endif
