/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Error feedback: for each slot (one buffer of the job, as far as the caller is certain) the part of this node's
 * contribution that the code did not carry, int8 with a scale a group of 32 (layout: nibble/codec.h).
 *
 * A slot covers the whole vector of an operation as `blocks` blocks of `n` values; memory is taken when the slot
 * is made and touched where used, so that the own block, which needs no error, costs nothing.
 * All functions are for the engine thread of the communicator.
 */
#ifndef NIBBLE_STATE_FEEDBACK_H
#define NIBBLE_STATE_FEEDBACK_H

#include <stddef.h>
#include <stdint.h>

#include "device/device.h"

struct nb_feedback; /* of one communicator */
struct nb_ef_slot;

struct nb_ef_key {
    uint32_t func;     /* enum nb_func */
    uint32_t type;     /* enum nb_dtype */
    uint64_t n;        /* values a block */
    uint32_t blocks;
    int64_t id;        /* identity of the buffer among those of the same shape */
    uint64_t geometry; /* how positions map to elements; another geometry is another slot's error */
};

struct nb_feedback *nb_feedback_create(const struct nb_device_ops *dev);
void nb_feedback_destroy(struct nb_feedback *fb);

/* The slot of `key`, made when it is new. NULL when the budget does not hold it (counted by the caller). A slot
 * whose id is known with another geometry is emptied and takes the new one. */
struct nb_ef_slot *nb_feedback_get(struct nb_feedback *fb, const struct nb_ef_key *key, uint64_t opno);

/* The error state of block `block`, with mode and constants from the settings. */
void nb_feedback_view(struct nb_ef_slot *slot, uint32_t block, struct nb_ef *ef);

/* The weights changed: errors used before this point belong to finished optimizer steps. */
void nb_feedback_step(struct nb_feedback *fb, uint64_t opno);

/* A non-finite value was seen: the step will be skipped or is lost, so the errors that were consumed or made
 * since the last weight change are wrong. Empties those slots; returns how many. */
unsigned nb_feedback_drop_step(struct nb_feedback *fb);

size_t nb_feedback_bytes(const struct nb_feedback *fb);

#endif
