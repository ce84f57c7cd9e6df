/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operation records: what is known about an operation beyond what its CollNet calls say. NCCL's profiler
 * events tell it before NCCL's proxy begins the operation; the engine matches it with the operation's first
 * window (policy/align.h). Records travel from the profiler to the engine in queues (policy/queue.h).
 */
#ifndef NIBBLE_POLICY_RECORD_H
#define NIBBLE_POLICY_RECORD_H

#include <stddef.h>
#include <stdint.h>

#include "base/func.h"
#include "nibble/nccl_types.h"
#include "policy/caller.h"

enum {
    NB_RECORD_API = 1,      /* the user's call is known and agrees with the launch */
    NB_RECORD_CAPTURED = 2, /* of a CUDA graph; comes again at every replay */
    NB_RECORD_CHAIN = 4, /* COLLNET_CHAIN: this rank serves some of the channels only; or a node may have any
                             * number of heads */
    NB_RECORD_DOUBT = 8, /* call and launch contradict each other: one operation, of no known kind */
};

struct nb_record {
    enum nb_func func;
    ncclDataType_t type;     /* as the windows have it: ncclInt8 for every all-gather */
    ncclDataType_t api_type; /* as the user has it, with NB_RECORD_API */
    uint32_t flags;
    uint64_t bytes; /* reduce-scatter, all-gather: bytes per rank; all-reduce: of the whole operation */
    const void *send, *recv; /* the user's buffers; NULL: unknown */
    const void *stream;
    enum nb_caller caller; /* of an all-reduce, with NB_RECORD_API */
    int64_t slot;          /* identity of the buffer for error feedback; -1: unknown, no feedback */
    uint64_t call;         /* number of its announcement (policy/job.h); 0: none, or not certain which */
    uint64_t comm;         /* NCCL's number of the communicator that told it */
    uint32_t nranks;       /* of that communicator */
    uint32_t source;       /* the same communicator, counted by this process */
    uint32_t node;         /* number of the own node in that communicator, from 1; 0: unknown */
    /* At most so many operations before this one, by function, may have reached the engine unrecorded. */
    uint32_t missing[NB_FUNC_COUNT];
    /* All-reduce: how the vector is dealt out. heads: bit H is set when a node may have H heads; chunk 0 and
     * head -1: unknown. */
    uint64_t heads;
    int32_t head;
    uint32_t chunk;
};

#endif
