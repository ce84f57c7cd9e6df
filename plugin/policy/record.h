/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operation records: what is known about an operation beyond what its CollNet calls say. A record is put in
 * before NCCL's proxy begins the operation and consumed by its first window, in order. An operation without a
 * record, or whose record does not fit its window, is handled on what the calls alone prove.
 */
#ifndef NIBBLE_POLICY_RECORD_H
#define NIBBLE_POLICY_RECORD_H

#include <stdint.h>

#include "coll/wire.h"
#include "nibble/nccl_types.h"

struct nb_coll_comm;

struct nb_record {
    enum nb_func func;
    ncclDataType_t type;
    ncclRedOp_t op;
    uint64_t bytes; /* reduce-scatter and all-gather: bytes per rank; all-reduce: bytes of the operation */
    /* Identity of the buffer for error feedback; -1: unknown, no feedback. */
    int64_t slot;
    /* Geometry of an all-reduce (valid bytes follow from it): channels, bytes of a chunk, and which of the node's
     * heads this communicator serves. */
    uint32_t channels;
    uint32_t chunk;
    uint32_t heads, head;
};

/* Append a record. 0, -EINVAL for a record that contradicts itself, -ENOSPC when the queue is full. Any thread. */
int nb_record_push(struct nb_coll_comm *comm, const struct nb_record *record);

#endif
