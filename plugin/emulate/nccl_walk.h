/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's CollNet proxy cuts an operation into steps of a chunk for each channel. At most 8 channels share a
 * call (docs/nccl-contract.md; NCCL 2.30, src/transport/coll_net.cc). The data passes through a buffer of 8
 * steps for each side. The range of one call is a window. Sizes are bytes.
 */
#ifndef NIBBLE_EMULATE_NCCL_WALK_H
#define NIBBLE_EMULATE_NCCL_WALK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/nccl_names.h"
#include "coll/coll.h"

#define NB_NCCL_STEPS 8u /* NCCL_STEPS: most steps in flight, and slots of the buffer */
#define NB_NCCL_GROUP 8  /* channels that share a call: COLLNET_GROUP_NSUBS */

/* An operation of a communicator, on one node. */
struct nb_nccl_walk {
    enum nb_func func;
    int nodes, rank;
    int channels, laid_out; /* channels in use; channels of the buffer */
    size_t slot;            /* a channel's bytes of one step in the buffer: NCCL_BUFFSIZE / 8 */
    size_t chunk;           /* bytes of it in use */
    size_t block;           /* a rank's bytes; 0: all-reduce */
    size_t total;           /* bytes of the whole vector */
    uint64_t steps;
    int groups;
};

/* Return the cut of an operation. NCCL_BUFFSIZE is `buffer`. `bytes` are a rank's, or the all-reduce's. With
 * chunk 0 it is NCCL's choice, which is halved for small operations. The channels' chunks lie within their
 * slots. */
struct nb_nccl_walk nb_nccl_walk(enum nb_func func, int nodes, int rank, int channels, size_t buffer,
                                 size_t chunk, size_t bytes);
/* Return the bytes of the buffer for both sides. */
size_t nb_nccl_walk_region(int channels, size_t buffer);

/* One side of a window. */
struct nb_nccl_place {
    size_t at, bytes;   /* range of the call in the buffer */
    size_t from, valid; /* range of the whole vector that it holds; values begin at its first byte */
};
struct nb_nccl_place nb_nccl_place(const struct nb_nccl_walk *w, bool receives, int group, uint64_t step);
/* Call the collective function for a window in NCCL's buffer at `region`, and return its result. *req is NULL
 * where NCCL makes no call. */
int nb_nccl_call(const struct nb_nccl_walk *w, struct nb_coll_comm *coll, uint8_t *region, int group,
                 uint64_t step, ncclDataType_t type, ncclRedOp_t op, struct nb_coll_req **req);

#endif
