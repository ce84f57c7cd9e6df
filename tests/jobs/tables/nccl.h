/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of NCCL that make events and ask tuners, by release: the tables that it looks up, and its calls.
 */
#ifndef NIBBLE_TESTS_JOBS_TABLES_NCCL_H
#define NIBBLE_TESTS_JOBS_TABLES_NCCL_H

#include "coll/comm/wire.h"
#include "nibble/nccl_types.h"
#include "tests/policy/events.h"

struct fw_nccl {
    const char *name;
    int net;      /* version of the net and CollNet tables, 8 to 12 */
    int tuner;    /* 0: absent, or another plugin's. 4 to 6 */
    int profiler; /* 0: the same. 4 to 7 */
};

struct hx_lib;
struct hx_lib *nccl_lib(const struct fw_nccl *nccl);

/* A communicator as profiler and tuner see it. */
struct nccl_comm {
    const struct fw_nccl *nccl;
    struct ev_comm events;
    void *tuner;
    int nodes;
};

/* Call it before CollNet's init, and after its connect. Return 0 or hx_fail. */
void nccl_open(struct nccl_comm *c, const struct fw_nccl *nccl, uint64_t id, int nodes, int ranks, int rank);
int nccl_open_tuner(struct nccl_comm *c, uint64_t id, int ranks);
void nccl_close(struct nccl_comm *c);

/* Start an operation of the user: events, the choice of an algorithm, launch. Return 1 when it goes to
 * CollNet, 0 when it does not, or -1 when the tuner broke a rule. `op` has no algo. Without a tuner the
 * choice is CollNet. bucket: DDP's reducer calls. */
int nccl_start(struct nccl_comm *c, struct ev_op *op, enum nb_func func, size_t bytes, int bucket);

#endif
