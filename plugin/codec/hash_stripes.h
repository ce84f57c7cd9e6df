/* SPDX-License-Identifier: Apache-2.0 */
/* The inner loop of nb_hash64 (hash.c), one function for each variant. */
#ifndef NIBBLE_CODEC_HASH_STRIPES_H
#define NIBBLE_CODEC_HASH_STRIPES_H

#include <stddef.h>
#include <stdint.h>

#include "codec/fp.h" /* NB_NEON */

#define NB_HASH_LANES 32u                   /* accumulators of 64 bits */
#define NB_HASH_STRIPE (8u * NB_HASH_LANES) /* bytes: a word for each lane */

/* Mix `stripes` stripes at p into acc[NB_HASH_LANES]. */
typedef void nb_stripes_fn(uint64_t *acc, const uint8_t *p, size_t stripes);

nb_stripes_fn nb_stripes_portable;
#if defined(__x86_64__)
nb_stripes_fn nb_stripes_avx2, nb_stripes_avx512;
#endif
#if defined(NB_NEON)
nb_stripes_fn nb_stripes_neon;
#endif

#endif
