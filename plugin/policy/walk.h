/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where an all-reduce window stands in its operation, and which of its bytes are values.
 *
 * NCCL deals a vector of B bytes out to C channels, H heads a node and chunks of k bytes: channel c of head h
 * takes chunk (s C + c) H + h in step s, for L = ceil(B / (C H k)) steps. The windows of head h are, step by
 * step, the chunks of channels 0..7, then of 8..15 and so on ("groups"): always whole chunks, whatever the
 * operation's end leaves of them, and without any offset. The slot says where a window stands: NCCL keeps
 * step s of an operation in slot s mod 8 of its region, and the chunk of channel c at c k in it.
 *
 * Neither C nor k is told. What follows all the same, with D the bytes of all windows of the operation so far
 * (this head's "stream"):
 *
 *  (1) Chunk number j of the stream begins at j k there and at (j H + h) k in the vector, whatever C is:
 *      steps and channels only number the chunks of a head in order.
 *  (2) So the values of a head are a prefix of its stream: chunk j + 1 begins, in the vector, behind the end
 *      of chunk j. With q = floor(B / (H k)) and r = B - q H k the prefix has S = q k + min(max(r - h k, 0),
 *      k) bytes. A window of W bytes at D therefore has min(max(S - D, 0), W) bytes of values, and they come
 *      first.
 *  (3) With H = 1 this is S = B: exact, without C and k.
 *  (4) Else k is one of few: the first window has min(C, 8) chunks, so k = W / c for some c in 1..8; once a
 *      window of a second group has come, at 8 k in the slot, k is known. h is any of 0..H-1. Every candidate
 *      gives an S between the least and the largest one; bytes below the least are values and bytes at the
 *      largest and beyond are padding, for certain. In between (of a whole operation at most the bytes of
 *      two windows) they are sent as they are and not coded.
 *  (5) A window at 0 of slot 0 begins an operation unless the step before it was in slot 7. After slot 7 the
 *      length decides: when it comes, the step is complete and has C k bytes, so that L = ceil(B / (H C k))
 *      is known too.
 */
#ifndef NIBBLE_POLICY_WALK_H
#define NIBBLE_POLICY_WALK_H

#include <stdint.h>

#define NB_WALK_SLOTS 8u /* steps in NCCL's region */
#define NB_WALK_GROUP 8u /* channels in a window at most */

struct nb_walk {
    int open;            /* windows of an operation are coming in */
    uint64_t steps;      /* begun, the one at hand included */
    uint64_t step_bytes; /* of a complete step; 0: none is complete yet */
    uint64_t cur;        /* bytes of the step at hand so far */
    uint64_t first;      /* bytes of the operation's first window */
    uint64_t chunk;      /* once certain, else 0 */
    uint64_t done;       /* D: bytes of all its windows so far */
};

enum nb_walk_place {
    NB_WALK_BEGINS,    /* another operation */
    NB_WALK_CONTINUES, /* the one at hand */
    NB_WALK_EITHER,    /* only the length tells */
    NB_WALK_NOWHERE,   /* not a place that a window of NCCL's has */
};

/* What is known of an operation: B, the heads that a node may have (bit H), h or -1, k or 0. */
struct nb_extent {
    uint64_t bytes;
    uint64_t heads;
    int head;
    uint64_t chunk;
};

/* Judge by its place, `at` bytes into `slot` of the region, where a window of `bytes` bytes belongs. */
enum nb_walk_place nb_walk_place(const struct nb_walk *walk, unsigned slot, uint64_t at, uint64_t bytes);
/* An operation begins. */
void nb_walk_begin(struct nb_walk *walk);
/* Account for the window that nb_walk_place placed into the operation at hand; before nb_walk_values. */
void nb_walk_step(struct nb_walk *walk, uint64_t at, uint64_t bytes);
/* Bytes of values in the window that was just accounted for, `value` bytes each: *sure of its first bytes
 * certainly are some, and from *most on none is. */
void nb_walk_values(const struct nb_walk *walk, const struct nb_extent *extent, uint64_t bytes,
                    uint64_t value, uint64_t *sure, uint64_t *most);
/* The largest S that is possible: no stream has values beyond. */
uint64_t nb_walk_longest(const struct nb_walk *walk, const struct nb_extent *extent, uint64_t value);

/* Heads (bits) with which the operation would have `steps` steps of `step_bytes` bytes. */
uint64_t nb_walk_heads(const struct nb_extent *extent, uint64_t steps, uint64_t step_bytes);
/* The step at hand is complete (nothing of it is missing): has the operation ended? 1, 0, or -1 when the
 * heads that are possible do not agree. */
int nb_walk_ended(const struct nb_walk *walk, const struct nb_extent *extent);

#endif
