/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nibble: collectives between N nodes, carried out in one process.
 *
 * An emulation is N nodes of the plugin, each with its settings, engine, residuals and references, connected
 * in memory, and what NCCL's proxy does for each: operations are cut into windows by channels and chunks, in
 * the order in which NCCL hands them over. Results and residuals are those that N machines would have, to the
 * bit, as it is the same code that runs: which values form a group, which schedule an operation takes, in
 * which order sums are made, what is carried to the next step, and how many steps go by until anything is
 * coded. Time does not matter to it. What a node's GPUs add up before is the caller's business.
 *
 * Where a job's log has to say what is a gradient, the caller of this library says so: all sums are taken for
 * gradients (NIBBLE_GRAD=all), unless the settings say otherwise. A buffer is known by a number that the
 * caller gives it.
 *
 * An emulation is for one thread at a time; different ones are independent. Results: 0 or a negative errno,
 * after a line on stderr that says why. After any error but -EINVAL an emulation can only be closed.
 */
#ifndef NIBBLE_EMULATE_H
#define NIBBLE_EMULATE_H

#include <stddef.h>
#include <stdint.h>

#include "nibble/codec.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define NB_EMULATE_NODES 128   /* at most */
#define NB_EMULATE_CHANNELS 32 /* at most */
#define NB_EMULATE_NOBODY \
    (-1) /* as a buffer: the plugin finds out which it is, by address, order and content */
#define NB_EMULATE_ALL_NODES (-1)

struct nb_emulation;

/* Zeroes stand for defaults. */
struct nb_emulate_config {
    size_t size;         /* sizeof(struct nb_emulate_config): a later library knows which fields there are */
    int nodes;           /* 2 to NB_EMULATE_NODES */
    int channels;        /* of NCCL; 0: 8 */
    size_t buffer_bytes; /* NCCL_BUFFSIZE, of a channel; 0: 4 MiB. At least 32 KiB, a multiple of 4 KiB */
    size_t
        chunk_bytes; /* of a channel in one step, a multiple of 512, at most an eighth of buffer_bytes; 0: as NCCL chooses */
    /* "NIBBLE_RS=int8" ..., ended by NULL, as in the environment of a job (docs/parameters.md); NULL:
     * defaults. The process's own environment is not read. NIBBLE_DEVICE, NIBBLE_HOST_THREADS and NIBBLE_NET
     * have no effect: codecs run on the calling thread. Links are of unknown rate, so that NIBBLE_RS=auto and
     * NIBBLE_AR=auto code unless NIBBLE_LINK_MBPS says otherwise. */
    const char *const *settings;
};

/* Make the nodes and connect them: 0 and *emulation, to be freed with nb_emulate_close. -EINVAL: what is in
 * `config`; else as connect of the plugin. The texts are copied. */
int nb_emulate_open(const struct nb_emulate_config *config, struct nb_emulation **emulation);
/* Disconnect the nodes and free everything. NULL is allowed. */
void nb_emulate_close(struct nb_emulation *emulation);

/*
 * One operation of all nodes. send[n], recv[n] are the buffers of node n; they may be the same as in NCCL's
 * operations in place:
 *
 *   all-reduce      send count values, recv count values                          in place: recv == send
 *   reduce-scatter  send nodes x count values, recv count values, block n of       in place: recv == block n of send
 *                   the sum of all
 *   all-gather      send count values, recv nodes x count values                   in place: send == block n of recv, which is
 *                                                                                  then left as it is
 *
 * Sums only; a mean is divided by the caller, before, as PyTorch's DDP does, or after. `buffer` is the number
 * of the buffer whose residual the operation carries on, from 0 on, of operations of one function, type and
 * count; or NB_EMULATE_NOBODY. -EINVAL has changed nothing.
 */
int nb_emulate_all_reduce(struct nb_emulation *emulation, enum nb_dtype type, size_t count,
                          const void *const *send, void *const *recv, int64_t buffer);
int nb_emulate_reduce_scatter(struct nb_emulation *emulation, enum nb_dtype type, size_t count,
                              const void *const *send, void *const *recv, int64_t buffer);
int nb_emulate_all_gather(struct nb_emulation *emulation, enum nb_dtype type, size_t count,
                          const void *const *send, void *const *recv);

enum nb_emulate_func { NB_EMULATE_REDUCE_SCATTER = 0, NB_EMULATE_ALL_GATHER, NB_EMULATE_ALL_REDUCE };

/* What a node has done so far with the operations of one function. */
struct nb_emulate_figures {
    size_t size;              /* sizeof(struct nb_emulate_figures), set by the caller */
    uint64_t operations;      /* begun */
    uint64_t coded;           /* of these, quantized, or sent as differences, in part at least */
    uint64_t two_hop;         /* in two hops */
    uint64_t two_level;       /* on a grid */
    uint64_t windows;         /* calls of NCCL's */
    uint64_t messages;        /* to other nodes */
    uint64_t bytes;           /* of values that were sent to other nodes */
    uint64_t wire_bytes;      /* the same as sent, headers included */
    uint64_t with_feedback;   /* quantized operations, of all functions, with a residual */
    uint64_t feedback_resets; /* residuals emptied because a value was not finite */
    uint64_t feedback_bytes;  /* memory that residuals take */
    uint64_t reference_bytes; /* and references of all-gathers */
    struct nb_encode_stats
        encode; /* of quantized contributions of all functions: noise2 / signal2 is their NMSE */
};

/* Figures of node `node`, or of all together: 0, or -EINVAL. */
int nb_emulate_figures(struct nb_emulation *emulation, int node, enum nb_emulate_func func,
                       struct nb_emulate_figures *figures);

/* The residual that node `node` carries for a buffer, as it is kept (struct nb_ef) and as values, `count`
 * values of block `block` from its first on (all-reduce: block 0 is the vector); each array may be NULL. It
 * is the residual of what this node encoded: of its own block of a reduce-scatter with the direct schedule
 * there is none. 0; -ENOENT: there is no residual of such a buffer; -EINVAL: no such node, function or block,
 * or fewer values than that. */
int nb_emulate_residual(struct nb_emulation *emulation, int node, enum nb_emulate_func func, int64_t buffer,
                        unsigned block, size_t count, int8_t *err, uint8_t *scale, float *values);

/* Version and commit of the library, "0.1.0 (1234abc)"; of static storage. */
const char *nb_emulate_version(void);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
