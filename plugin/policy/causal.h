/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does a sum move the weights? A gradient is what an optimizer turns into a change of the weights, so of a
 * shard that is reduced and gathered again the change dW that follows a sum G has, element by element, more
 * often the sign of -G than chance allows. Nothing else does: not activations, not statistics, not averaged
 * parameters. See docs/how-nibble-decides.md for the statistic, its errors and its power.
 *
 * A field is all shards of one size on one communicator: the sums of them that were delivered here, and the
 * blocks that this rank gathers to the others. Both are looked at in the same positions (codec/pick.h),
 * and of both only signs count: of a value; and of the difference of bit patterns, whose order is that of the
 * values for every float type, so that the weights' type need not be known.
 *
 * - A block that is like one seen before is that *unit*'s next version, with a change of its own.
 * - Sums wait until the first unit changes afterwards, and are compared with each unit's first change. Which sum belongs to which unit is not assumed: every
 *   sum carries up to two *keys* that say which buffer it is thought to be (its place among the sums of the
 *   step; the slot of policy/identity.h), and every pair of key and unit is a hypothesis of its own, with
 *   running sums of
 *
 *       z = centred sign agreement of -G and dW in the changed positions, in standard deviations, and of
 *       D = centred agreement of -G's signs with the change less the change *before*, likewise,
 *
 *   since what persists from step to step (parameters, residual streams, a momentum's direction) agrees with
 *   both changes alike. Only the sum's own consequence makes D large.
 * - A key is proved when both are beyond NB_CAUSAL_Z and NB_CAUSAL_D for one unit; it is doubted again when
 *   they fall far below, or when many sums came and nothing renewed the proof.
 *
 * For one thread. Memory is made when sums, units and keys are first met; without memory they are not looked at.
 */
#ifndef NIBBLE_POLICY_CAUSAL_H
#define NIBBLE_POLICY_CAUSAL_H

#include <stddef.h>
#include <stdint.h>

#include "policy/signs.h"

#define NB_CAUSAL_Z 8.0f /* standard deviations over the running sums */
#define NB_CAUSAL_D 6.0f
#define NB_CAUSAL_KEYS 2u /* of a sum */
/* What a sum is told with: its keys; and the name of the buffer that identity predicted, whether content
 * agreed or not. */
enum { NB_CAUSAL_GUESS = NB_CAUSAL_KEYS, NB_CAUSAL_NAMES };
#define NB_CAUSAL_UNITS 128u   /* of a field */
#define NB_CAUSAL_BUFFERS 256u /* keys of a field that are remembered */
#define NB_CAUSAL_SUMS 512u    /* of a step that wait; further ones are not looked at */

struct nb_causal;

/* A field that is looked at in `positions` positions (at most NB_PICKS), or NULL. */
struct nb_causal *nb_causal_create(unsigned positions);
void nb_causal_destroy(struct nb_causal *field);
unsigned nb_causal_positions(const struct nb_causal *field);

/* A sum is being decided on, the next in the order of operations: returns its place among those since weights
 * last changed, from 0. */
unsigned nb_causal_place(struct nb_causal *field);

/* A sum was delivered; in the order of operations. names: 0 for none. */
void nb_causal_sum(struct nb_causal *field, const uint64_t names[NB_CAUSAL_NAMES],
                   const struct nb_signs *signs);

/* A block was gathered; in the order of operations. raw: its values in the positions, `width` bytes each
 * (1, 2 or 4). */
void nb_causal_gather(struct nb_causal *field, size_t width, const uint32_t *raw);

/* Do the sums with this key move weights, as far as is known? */
int nb_causal_proved(const struct nb_causal *field, uint64_t key);
/* 1 when sums with this key clearly moved different units of late: it stands for several buffers. */
int nb_causal_shared(const struct nb_causal *field, uint64_t key);
/* 1 when the sums for which this buffer was predicted clearly moved one unit, of late, and no other: the
 * prediction comes true, whatever their content looks like. */
int nb_causal_certain(const struct nb_causal *field, uint64_t guess);
/* 1 when several sums of a step had this key, of late, of which some clearly moved weights and others
 * nothing: what is proved of it holds for some of them only. */
int nb_causal_mixed(const struct nb_causal *field, uint64_t key);
/* Units that have changed at least twice: without any, nothing can be proved. */
unsigned nb_causal_units(const struct nb_causal *field);
/* The strongest hypothesis of a key, for reports and tests: 0 where there is none. */
struct nb_causal_state {
    int unit; /* -1: none */
    float z, d;
    unsigned steps; /* in which sum and change met */
};
struct nb_causal_state nb_causal_state(const struct nb_causal *field, uint64_t key);

/* The share of sums, lately, that were explained: their key is proved, or they agreed with one change far
 * better than all other sums of the step did. 0 before there were enough of them to tell. */
float nb_causal_explained(const struct nb_causal *field);

#endif
