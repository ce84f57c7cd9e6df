/* SPDX-License-Identifier: Apache-2.0 */
/* A codec added from outside of the library, the example of docs/adding.md: values as they are, in its own
 * tile records. */
#ifndef NIBBLE_TESTS_CODEC_IDENTITY_H
#define NIBBLE_TESTS_CODEC_IDENTITY_H

#include "codec/row.h"

#define CODEC_IDENTITY ((enum nb_codec)NB_CODEC_COUNT) /* the next free number */

extern const struct nb_codec_row identity_row;

/* Bytes that the codec's functions took and returned in this process. */
extern unsigned long identity_encoded, identity_decoded;

ssize_t identity_encode(const struct nb_encoding *e);
int identity_decode(const struct nb_decoding *d);
size_t identity_bound(unsigned format, size_t bytes);
nb_record_fn identity_record;

#endif
