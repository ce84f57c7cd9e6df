/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values of what is delivered, by which policy/causal.h judges whether sums move weights: of the sum of every
 * reduce-scatter that might be coded, and of the own block of every all-gather of that size, at the positions
 * of codec/pick.h.
 *
 * They are told in the order of operations, however these overlap: a sum when all windows up to its last one
 * are finished; weights that have changed when all operations before theirs are. An operation that is decided
 * on waits for such weights before it (nb_witness_pending), so that decisions do not depend on who was first.
 * In training it never waits: what is gathered after a change of the weights was computed from the sums
 * before.
 *
 * For the engine thread.
 */
#ifndef NIBBLE_COLL_WITNESS_H
#define NIBBLE_COLL_WITNESS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "policy/job.h"

struct nb_coll_comm;
struct nb_coll_req;
struct nb_op;
struct nb_task;
struct nb_witness;

struct nb_witnesses {
    struct nb_witness *free;           /* to be used again */
    struct nb_witness *waiting, **end; /* weights whose turn has not come, in the order of operations */
};

void nb_witnesses_init(struct nb_witnesses *witnesses);
/* The communicator is closed, and no operation is in flight. */
void nb_witnesses_destroy(struct nb_coll_comm *comm);

/* 1 when the device can show values; where it cannot, no operation has a witness. */
int nb_witness_possible(const struct nb_coll_comm *comm);

/* A reduce-scatter that might be coded begins: look at its sum; windows of the own block alone may be
 * finished before anything is decided. Then: it was decided on, with these keys. */
void nb_witness_sum(struct nb_coll_comm *comm, struct nb_op *op, const struct nb_job_call *call);
void nb_witness_decided(struct nb_op *op, const uint64_t key[NB_CAUSAL_NAMES]);
/* A window is finished here, NCCL does not know it yet, and so are all before it; then: the oldest that is
 * not finished is another one. */
void nb_witness_passed(struct nb_coll_comm *comm, const struct nb_coll_req *win);
void nb_witness_advance(struct nb_coll_comm *comm);

/* The first segment of an all-gather's own block, in whatever order, has been sent. */
void nb_witness_block(struct nb_coll_comm *comm, struct nb_op *op, const struct nb_job_call *call);

/* A task has all that it is for, and its `values` are a segment of the own block, of a sum or of what is
 * gathered. next: NB_TASK_MORE where they are to be looked at, with that step set; else NB_TASK_OVER. look:
 * have the device do it, as `pick` of device/device.h. looked: it has; an error shows nothing, so that the
 * witness will not be complete. */
int nb_witness_next(struct nb_task *task);
ssize_t nb_witness_look(struct nb_coll_comm *comm, struct nb_task *task);
void nb_witness_looked(struct nb_task *task, ssize_t result);

/* All of an all-gather's own block has been sent. changed: it differs from the last time, or that is not
 * known. */
void nb_witness_gathered(struct nb_coll_comm *comm, struct nb_op *op, int changed);
/* 1 when weights that were gathered before operation `opno` are not told yet. */
int nb_witness_pending(const struct nb_coll_comm *comm, uint64_t opno);

#endif
