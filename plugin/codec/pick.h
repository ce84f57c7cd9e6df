/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values of a rank's block at positions that depend on its length alone: there policy/causal.h compares sums
 * with weights, whose operations are cut into windows and segments in different ways.
 *
 * Pure functions: any thread, no allocation, no errors.
 */
#ifndef NIBBLE_CODEC_PICK_H
#define NIBBLE_CODEC_PICK_H

#include <stddef.h>
#include <stdint.h>

/* Positions of a block, at most: a power of two. */
#define NB_PICKS 4096u

/* The number of positions of a block of n values: about one in 256, at least 1024; 512 when n is below 16384, 256 when it is
 * below 1024, 0 when it is below 512. There is one in each of as many equal parts, at random; those with small numbers are
 * spread over the whole block, too. */
unsigned nb_picks_of(uint64_t n);

/* Of the `picks` positions in a block of n values of `width` bytes (1, 2 or 4), those that lie among the
 * `count` values at src, which are number `first` and on: out[i] = bit pattern at position i. Returns how
 * many. */
unsigned nb_pick(size_t width, const void *src, uint64_t n, unsigned picks, uint64_t first, uint64_t count,
                 uint32_t *out);

/* The same in two steps, where values are not read by this processor: the parts whose positions lie among
 * these values, how many and from which on (*begin); and then the bit patterns at their positions, in the
 * order of the parts, each to where nb_pick has it. (NB_GPU_PICK of kernels/kernels.h is in between.) */
unsigned nb_pick_parts(uint64_t n, unsigned picks, uint64_t first, uint64_t count, unsigned *begin);
void nb_pick_place(unsigned picks, unsigned begin, unsigned parts, const uint32_t *values, uint32_t *out);

#endif
