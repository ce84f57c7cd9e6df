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

/* What the reference variant is made of beside encoding: decode and reduce as in struct nb_span_ops. */
int reference_decode(const struct nb_span_ops *self, nb_record_fn *record, enum nb_dtype type,
                     const uint8_t *coded, size_t len, size_t n, uint64_t first, uint8_t *dst);
int reference_reduce(const struct nb_span_ops *self, const struct nb_codec_row *const *rows,
                     enum nb_dtype type, const struct nb_source *sources, size_t nsources, const uint8_t *own,
                     size_t n, uint64_t first, uint8_t *dst);
/* The unnormalised transform of a group, in the format's order of roundings. */
void reference_hadamard(float v[NB_GROUP]);

/* Is there such a variant on this machine? */
bool variant_available(int variant);
/* Put it in force: 0, or nb_codec_select's error. nb_codec_select(NB_VARIANT_AUTO) ends it. */
int variant_select(int variant);
const char *variant_name(int variant);

#endif
