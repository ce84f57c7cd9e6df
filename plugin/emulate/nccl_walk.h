/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How NCCL's CollNet proxy cuts an operation: steps of a chunk for each channel, channels in groups of at
 * most 8 that share a call (docs/nccl-contract.md; NCCL 2.30, src/transport/coll_net.cc), through a buffer of
 * 8 steps for each side. What is handed over in one call is a window. Sizes are bytes.
 */
#ifndef NIBBLE_EMULATE_NCCL_WALK_H
#define NIBBLE_EMULATE_NCCL_WALK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/nccl_names.h"
#include "coll/coll.h"

#define NB_NCCL_STEPS 8u /* NCCL_STEPS: in flight, and slots of the buffer */
#define NB_NCCL_GROUP 8  /* channels that share a call: COLLNET_GROUP_NSUBS */

/* An operation of a communicator, on one node. */
struct nb_nccl_walk {
    enum nb_func func;
    int nodes, rank;
    int channels, laid_out; /* in use; of the buffer */
    size_t slot;            /* of a channel's step in the buffer: NCCL_BUFFSIZE / 8 */
    size_t chunk;           /* of it in use */
    size_t block;           /* of a rank; 0: all-reduce */
    size_t total;           /* of the whole vector */
    uint64_t steps;
    int groups;
};

/* NCCL_BUFFSIZE is `buffer`; chunk 0: as NCCL halves it for small operations; `bytes` are a rank's, or the
 * all-reduce's. The channels' chunks lie within their slots. */
struct nb_nccl_walk nb_nccl_walk(enum nb_func func, int nodes, int rank, int channels, size_t buffer,
                                 size_t chunk, size_t bytes);
/* Bytes of the buffer: both sides. */
size_t nb_nccl_walk_region(int channels, size_t buffer);

/* One side of a window. */
struct nb_nccl_place {
    size_t at, bytes;   /* in the buffer: what is handed over */
    size_t from, valid; /* in the whole vector: what of it are values, from its first byte on */
};
struct nb_nccl_place nb_nccl_place(const struct nb_nccl_walk *w, bool receives, int group, uint64_t step);
/* Hand a window over, in NCCL's buffer at `region`. Return what the call returns. *req: NULL where NCCL makes no call. */
int nb_nccl_call(const struct nb_nccl_walk *w, struct nb_coll_comm *coll, uint8_t *region, int group,
                 uint64_t step, ncclDataType_t type, ncclRedOp_t op, struct nb_coll_req **req);

#endif
