/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the engine finds out when it dequeues the first window of an operation: its record, if that is
 * certain, and of every window of an all-reduce the bytes that are values (policy/walk.h). For the engine
 * thread.
 */
#ifndef NIBBLE_COLL_OPERATION_H
#define NIBBLE_COLL_OPERATION_H

#include <stdint.h>

#include "nibble/nccl_types.h"
#include "policy/align.h"
#include "policy/walk.h"

struct nb_coll_comm;
struct nb_coll_req;
struct nb_op_info;
struct nb_queue;

/* Records of the communicator's operations, and the all-reduce whose windows are coming in; operation.c's
 * own. */
struct nb_records {
    struct nb_queue *queue; /* records of this communicator and its children; pushed by any thread */
    struct nb_align *align; /* which of them is whose */
    struct nb_walk walk;    /* the all-reduce whose windows are coming in */
    struct {
        ncclDataType_t type;
        ncclRedOp_t op;
        int known; /* its record is certain; `extent` is set */
        struct nb_extent extent;
        uint64_t heads_told; /* as the record has them */
        struct nb_op_info *info;
    } ar;
    struct {
        uint64_t told, left;
    } heads[4];    /* heads that lengths of operations have left over */
    unsigned said; /* bit: why a record was not used has been said */
};

/* Make the state of a communicator whose identifier and size are set: 0 or -ENOMEM. destroy: also of what was
 * half made. */
int nb_records_init(struct nb_coll_comm *comm);
void nb_records_destroy(struct nb_coll_comm *comm);

/* Find out what is known of the operation that a window begins or continues; in window order. Of the first window of a
 * reduction the values are looked at, by a task of that window: nothing else may be done with it before that is over. A
 * task is to be had. */
void nb_op_begin(struct nb_coll_comm *comm, struct nb_coll_req *win);

#endif
