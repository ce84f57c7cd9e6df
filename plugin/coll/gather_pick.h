/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is looked at before an operation sends the first segment of its own block: values of it, by which policy tells
 * weights from others, and its likeness to the references that there are (state/reference.h), of which one is picked. A
 * task of its own (task.h), so that nobody waits for a device that answers later; no segment of the own block is in
 * flight beside it.
 *
 * For the engine thread.
 */
#ifndef NIBBLE_COLL_GATHER_PICK_H
#define NIBBLE_COLL_GATHER_PICK_H

#include "codec/row.h"
#include "device/evidence.h"
#include "state/reference.h"

struct nb_coll_comm;
struct nb_coll_req;
struct nb_segment;

#define NB_NEAR_SAMPLES 256u

/* The pick that is under way. */
struct nb_gather_pick {
    enum nb_pick_step {
        NB_PICK_LOOK,  /* at values, for policy */
        NB_PICK_ALIKE, /* is one slot, search's question, like it? */
        NB_PICK_OWN,   /* NIBBLE_AG=delta4: values of the block, and of the slot that was found */
        NB_PICK_REF,
    } step;
    struct nb_ref_search search;
    const void *there; /* what search asks about */
    struct nb_nearness near;
    float sample[2][NB_NEAR_SAMPLES];
};

/* The operation of `win` is about to send `segment` of the own block: 1 when its reference is chosen and may be used; 0:
 * not yet, come again, or the communicator has failed. A task is to be had, and none of the own block in flight while
 * op->picked is 0. */
int nb_gather_pick(struct nb_coll_comm *comm, struct nb_coll_req *win, const struct nb_segment *segment);

/* Once on a node: what a lossy mode of all-gathers costs. */
void nb_gather_tell_cost(struct nb_coll_comm *comm, const struct nb_codec_row *codec);

#endif
