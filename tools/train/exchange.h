/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way of gradients and weights between the nodes of a run. Exchange `plugin` drives the plugin as NCCL
 * does, through the proxy harness. `shm` goes through shared memory and is exact, to show which effects the
 * plugin causes.
 *
 * All functions are collective: each node's main thread calls them in the same order. They return 0, or a
 * negative errno value after hx_fail has recorded the reason.
 */
#ifndef NIBBLE_TRAIN_EXCHANGE_H
#define NIBBLE_TRAIN_EXCHANGE_H

#include <stddef.h>
#include <stdint.h>

#include "model.h"
#include "nibble/codec.h"
#include "tests/harness/lib/harness.h"

/* Largest number of nodes of a run. */
#define NBT_MAX_NODES 8

/* Cumulative bytes by function, of one node or summed over nodes. */
struct nbt_traffic {
    struct {
        uint64_t ops;
        uint64_t wire;                    /* bytes sent to peers, headers included */
    } reduce_scatter, all_gather;         /* sums of gradients by all-reduce count as the former */
    uint64_t quantized_ops, feedback_ops; /* quantized sums, and how many of them had error feedback */
    int known;                            /* 0: this exchange counts no bytes */
};

/* Deliberate mistakes, which show that the checks work. */
enum nbt_fault {
    NBT_FAULT_NONE,
    NBT_FAULT_WEIGHT /* node 1 flips the last bit of one gathered weight, once */
};

struct nbt_exchange_cfg {
    struct hx_node *node;
    enum nb_dtype grad_type;
    size_t block;       /* values of one node's block */
    int all_reduce;     /* sum by all-reduce, and keep the own block */
    void *shared;       /* memory that all nodes see, nbt_exchange_shared_bytes long, zero at first */
    const char *plugin; /* path, NULL: the harness selects it */
};

struct nbt_exchange;

struct nbt_exchange_ops {
    const char *name;
    int (*open)(struct nbt_exchange *x);
    /* Compute recv[block] = sum over nodes of block `rank` of their send[nnodes * block], in grad_type. */
    int (*reduce_scatter)(struct nbt_exchange *x, const void *send, void *recv);
    /* Gather in place: buf holds nnodes blocks of 16-bit values, and the caller has filled in its own
     * block. */
    int (*all_gather)(struct nbt_exchange *x, uint16_t *buf);
    int (*close)(struct nbt_exchange *x);
    /* Read totals from a node's captured log, afterwards in the parent. NULL: this exchange counts no
     * bytes. */
    void (*traffic_from_log)(const char *log, struct nbt_traffic *traffic);
    /* Read the lines that tell how the plugin decided which operations to code, each indented. NULL: there
     * was no decision. */
    void (*story_from_log)(const char *log, char *story, size_t cap);
};

struct nbt_exchange {
    const struct nbt_exchange_ops *ops;
    struct nbt_exchange_cfg cfg;
    void *state; /* belongs to the implementation */
};

extern const struct nbt_exchange_ops nbt_exchange_shm;
extern const struct nbt_exchange_ops nbt_exchange_plugin;

/* Return the implementation of this name ("plugin", "shm"), or NULL. */
const struct nbt_exchange_ops *nbt_exchange_find(const char *name);
/* Return the bytes of shared memory that any implementation wants for a job. */
size_t nbt_exchange_shared_bytes(int nnodes, size_t block);

#endif
