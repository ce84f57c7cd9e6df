/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values of a rank's block at positions that depend on the block's length alone. policy/recognise/causal.c
 * compares sums with weights at these positions, as NCCL and nibble cut the two operations in different ways.
 *
 * Pure functions: any thread, no allocation, no errors.
 */
#ifndef NIBBLE_CODEC_PICK_H
#define NIBBLE_CODEC_PICK_H

#include <stddef.h>
#include <stdint.h>

/* The most positions of a block, a power of two. */
#define NB_PICKS 4096u

/* Return the number of positions of a block of n values: about one in 256, at least 1024. It is 512 when n is
 * below 16384, 256 below 1024, and 0 below 512. The block has as many equal parts, each with one position at
 * random. Positions with small numbers are spread over the whole block, too. */
unsigned nb_picks_of(uint64_t n);

/* Copy picked values: out[i] = bit pattern at position i. The block has n values of `width` bytes (1, 2 or 4)
 * and `picks` positions. src holds `count` of its values, from number `first` on. Return how many positions
 * lie among them. */
unsigned nb_pick(size_t width, const void *src, uint64_t n, unsigned picks, uint64_t first, uint64_t count,
                 uint32_t *out);

/* The same in two steps, for values that another processor reads (NB_GPU_PICK of kernels/kernels.h). The
 * first returns the number of parts whose positions lie among these values, and the first such part (*begin).
 * The second takes the bit patterns at their positions, in the order of the parts, and stores each at
 * nb_pick's place. */
unsigned nb_pick_parts(uint64_t n, unsigned picks, uint64_t first, uint64_t count, unsigned *begin);
void nb_pick_place(unsigned picks, unsigned begin, unsigned parts, const uint32_t *values, uint32_t *out);

#endif
