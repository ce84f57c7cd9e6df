/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How gradients and weights travel between the nodes of a run. One implementation drives the plugin as NCCL
 * does, through the proxy harness. `shm` goes through shared memory and is exact, to tell what is the plugin's
 * doing and what is not.
 *
 * All functions are collective, called by each node's main thread in the same order, and return 0 or a
 * negative errno value after hx_fail has recorded why.
 */
#ifndef NIBBLE_TRAIN_EXCHANGE_H
#define NIBBLE_TRAIN_EXCHANGE_H

#include <stddef.h>
#include <stdint.h>

#include "model.h"
#include "nibble/codec.h"
#include "tests/harness/lib/harness.h"

/* Nodes of a run. */
#define NBT_MAX_NODES 8

/* Bytes by function, of one node or summed over nodes; cumulative. */
struct nbt_traffic {
    struct {
        uint64_t ops;
        uint64_t wire; /* sent to peers, headers included */
    } reduce_scatter, all_gather;
    uint64_t quantized_ops,
        feedback_ops; /* reduce-scatters that were quantized; of these, with error feedback */
    int known;        /* 0: this exchange does not count */
};

/* Deliberate mistakes, to show that the checks see them. */
enum nbt_fault {
    NBT_FAULT_NONE,
    NBT_FAULT_WEIGHT /* node 1 flips the last bit of one gathered weight, once */
};

struct nbt_exchange_cfg {
    struct hx_node *node;
    enum nb_dtype grad_type;
    size_t block;       /* values of one node's block */
    void *shared;       /* memory all nodes see, nbt_exchange_shared_bytes long, zero at first */
    const char *plugin; /* path; NULL: the harness' choice */
};

struct nbt_exchange;

struct nbt_exchange_ops {
    const char *name;
    int (*open)(struct nbt_exchange *x);
    /* recv[block] = sum over nodes of block `rank` of their send[nnodes * block], in grad_type. */
    int (*reduce_scatter)(struct nbt_exchange *x, const void *send, void *recv);
    /* In place: buf holds nnodes blocks of 16-bit values, of which the own one is filled in. */
    int (*all_gather)(struct nbt_exchange *x, uint16_t *buf);
    int (*close)(struct nbt_exchange *x);
    /* In the parent, afterwards: totals from a node's captured log. NULL: it does not count. */
    void (*traffic_from_log)(const char *log, struct nbt_traffic *traffic);
    /* ... and the lines that tell how it was decided what to code, each indented. NULL: nothing was decided.
     */
    void (*story_from_log)(const char *log, char *story, size_t cap);
};

struct nbt_exchange {
    const struct nbt_exchange_ops *ops;
    struct nbt_exchange_cfg cfg;
    void *state; /* the implementation's */
};

extern const struct nbt_exchange_ops nbt_exchange_shm;
extern const struct nbt_exchange_ops nbt_exchange_plugin;

/* By name ("plugin", "shm"); NULL when there is none. */
const struct nbt_exchange_ops *nbt_exchange_find(const char *name);
/* Shared memory that any implementation wants for a job. */
size_t nbt_exchange_shared_bytes(int nnodes, size_t block);

#endif
