/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nibble: collectives between N nodes, carried out in one process.
 *
 * An emulation consists of N nodes of the plugin, connected in memory. Each node has its own settings,
 * engine, residuals and references. The emulation also plays NCCL's proxy for each node: it cuts operations
 * into windows by channels and chunks, in NCCL's order. The same code runs as in a job, so that results and
 * residuals equal those of N machines to the bit: groups, schedules, the order of sums, the residual of the
 * next step, and the number of raw steps before the first coded one. Time has no influence. The caller adds
 * up the values of a node's GPUs beforehand.
 *
 * In a job the plugin recognises gradients. Here all sums are taken for gradients (NIBBLE_GRAD=all) unless
 * the settings say otherwise. The caller names each buffer by a number.
 *
 * An emulation is for one thread at a time. Several emulations are independent. Functions return 0 or a
 * negative errno value, after a line on stderr that says why. After any error but -EINVAL the caller can only
 * close the emulation.
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
    (-1) /* as a buffer: the plugin identifies the buffer by address, order and content */
#define NB_EMULATE_ALL_NODES (-1)

struct nb_emulation;

/* Configuration of an emulation. A field of 0 takes its default. */
struct nb_emulate_config {
    size_t size;         /* sizeof(struct nb_emulate_config), by which a later library knows the fields */
    int nodes;           /* 2 to NB_EMULATE_NODES */
    int channels;        /* of NCCL; 0: 8 */
    size_t buffer_bytes; /* NCCL_BUFFSIZE, of a channel; 0: 4 MiB. At least 32 KiB, a multiple of 4 KiB */
    size_t chunk_bytes; /* of a channel in one step, a multiple of 512, at most buffer_bytes / 8; 0: NCCL's */
    /* Settings as in the environment of a job (docs/parameters.md): "NIBBLE_RS=int8" ..., ended by NULL.
     * NULL: defaults. Any other text is an error. The process's own environment has no influence.
     * NIBBLE_DEVICE and NIBBLE_NET have no effect. NIBBLE_HOST_THREADS is the number of threads that code for
     * all nodes, 0 by default: the calling thread codes. More are faster for large operations on an idle
     * machine. Links have an unknown rate: with NIBBLE_RS=auto and NIBBLE_AR=auto sums are coded unless
     * NIBBLE_LINK_MBPS says otherwise. Only then results may depend on the number of threads. */
    const char *const *settings;
};

/* Create the nodes and connect them. Return 0 and *emulation, which the caller frees with nb_emulate_close.
 * Return -EINVAL for a bad field of `config`, else the error of the plugin's connect. The function copies the
 * texts of `config`. */
int nb_emulate_open(const struct nb_emulate_config *config, struct nb_emulation **emulation);
/* Return the lines that the calling thread's last nb_emulate_open wrote to stderr if it failed, else "". They
 * are valid until the thread calls it again. */
const char *nb_emulate_reason(void);
/* Disconnect the nodes and free the emulation. NULL is allowed. */
void nb_emulate_close(struct nb_emulation *emulation);

/*
 * Run one operation of all nodes. send[n] and recv[n] are the buffers of node n. They may overlap as in
 * NCCL's in-place operations:
 *
 *   all-reduce      send count values, recv count values; in place: recv == send
 *   reduce-scatter  send nodes x count values, recv count values: block n of the sum of all;
 *                   in place: recv == block n of send
 *   all-gather      send count values, recv nodes x count values;
 *                   in place: send == block n of recv, which stays as it is
 *
 * The reduction is a sum. For a mean the caller divides, before the sum as PyTorch's DDP does, or after it.
 * `buffer` is the number, from 0 on, of the buffer whose residual the operation continues, among operations
 * of one function, type and count, or NB_EMULATE_NOBODY. After -EINVAL the emulation is unchanged.
 */
int nb_emulate_all_reduce(struct nb_emulation *emulation, enum nb_dtype type, size_t count,
                          const void *const *send, void *const *recv, int64_t buffer);
int nb_emulate_reduce_scatter(struct nb_emulation *emulation, enum nb_dtype type, size_t count,
                              const void *const *send, void *const *recv, int64_t buffer);
int nb_emulate_all_gather(struct nb_emulation *emulation, enum nb_dtype type, size_t count,
                          const void *const *send, void *const *recv);

enum nb_emulate_func { NB_EMULATE_REDUCE_SCATTER = 0, NB_EMULATE_ALL_GATHER, NB_EMULATE_ALL_REDUCE };

/* Counts of one function on one node, since the emulation was opened. */
struct nb_emulate_figures {
    size_t size;              /* sizeof(struct nb_emulate_figures), set by the caller */
    uint64_t operations;      /* operations begun */
    uint64_t coded;           /* operations quantized or sent as deltas, at least in part */
    uint64_t two_hop;         /* operations with the two-hop schedule */
    uint64_t two_level;       /* operations with the two-level schedule */
    uint64_t windows;         /* windows that NCCL handed over */
    uint64_t messages;        /* messages to other nodes */
    uint64_t bytes;           /* bytes of values sent to other nodes, before coding */
    uint64_t wire_bytes;      /* bytes sent for them, headers included */
    uint64_t with_feedback;   /* quantized operations with a residual, all functions */
    uint64_t feedback_resets; /* residuals emptied after a NaN or an infinity */
    uint64_t feedback_bytes;  /* memory of residuals */
    uint64_t reference_bytes; /* memory of references of all-gathers */
    struct nb_encode_stats
        encode; /* quantized contributions, all functions: noise2 / signal2 is their NMSE */
};

/* Get the counts of node `node`, or with NB_EMULATE_ALL_NODES their sum. Return 0 or -EINVAL. */
int nb_emulate_figures(struct nb_emulation *emulation, int node, enum nb_emulate_func func,
                       struct nb_emulate_figures *figures);

/* Get the residual of a buffer on node `node`: the first `count` values of block `block`, as stored (struct
 * nb_ef) and as values. Each array may be NULL. Block 0 of an all-reduce is the whole vector. A node has
 * residuals only of values that it encoded: with the direct schedule it has none of its own block of a
 * reduce-scatter. Return 0, -ENOENT when the buffer has no residual, or -EINVAL for an unknown node, function
 * or block, or a `count` beyond the block. */
int nb_emulate_residual(struct nb_emulation *emulation, int node, enum nb_emulate_func func, int64_t buffer,
                        unsigned block, size_t count, int8_t *err, uint8_t *scale, float *values);

/* Return version and commit of the library, "0.2.0 (1234abc)", in static storage. */
const char *nb_emulate_version(void);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
