/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL, of one node and communicator: hands the windows of operations over as NCCL's CollNet proxy does, in
 * NCCL's buffer, in the order of steps and groups of channels, eight steps in flight, one operation after the
 * other; its GPUs fill and drain slots when they like. What it fills in is data.h's, and what it drains is
 * compared with that at once.
 */
#ifndef NIBBLE_TESTS_SIM_NCCL_H
#define NIBBLE_TESTS_SIM_NCCL_H

#include "emulate/nccl_walk.h"
#include "tests/sim/sim.h"

struct nb_coll_comm;
struct nb_coll_connect;
struct nb_coll_listen;
struct nb_coll_req;
struct sim_node;

enum sim_proxy_state {
    SIM_UNBORN, /* listens, or has not begun to connect */
    SIM_CONNECTING,
    SIM_DECLINED,
    SIM_WAITING, /* for the time of its next operation */
    SIM_RUNNING,
    SIM_FAILED, /* a call has failed: waits to close */
    SIM_DONE,   /* all operations are done: waits to close */
    SIM_CLOSING,
    SIM_CLOSED
};

struct sim_group {                            /* of up to NB_NCCL_GROUP channels */
    uint64_t filled, called, tested, drained; /* steps */
    struct nb_coll_req *request[NB_NCCL_STEPS];
    int64_t fill_at, drain_at; /* 0: not drawn */
};

struct sim_proxy {
    struct sim_node *node;
    const struct sim_comm *comm;
    int index, rank; /* which communicator; the node's rank in it, -1: not a member */
    enum sim_proxy_state state;
    struct nb_coll_listen *listen;
    uint8_t handle[128];
    struct nb_coll_connect *connect;
    struct nb_coll_comm *coll;
    int connected; /* what connect returned */
    uint8_t *region;
    void *mhandle[2 * SIM_CHANNELS];
    int64_t at;     /* the next thing by itself: operation, close */
    int64_t paused; /* calls nothing before */

    int op;        /* in the plan */
    int64_t began; /* when */
    struct nb_nccl_walk walk;
    uint64_t step; /* next call */
    int next;      /* and its group */
    struct sim_group group[(SIM_CHANNELS + NB_NCCL_GROUP - 1) / NB_NCCL_GROUP];
    uint64_t hash;        /* of what was drained of the operation */
    bool partial;         /* not of all of it */
    double error, energy; /* lossy: squared differences, and squares of what they are measured by */

    int error_code;    /* the first that a call returned */
    int64_t failed_at; /* when the communicator failed; 0: not */
    bool aborts;       /* it is to close in the middle */
    int done;          /* operations that are complete */
    uint64_t *result;  /* [nops] hash of each, 0: not done */
};

/* Listen, so that others can connect. */
void sim_proxy_listen(struct sim_proxy *p);
/* Begin to connect. */
void sim_proxy_connect(struct sim_proxy *p);
/* It is connected: register NCCL's buffer, go on to operations. */
void sim_proxy_connected(struct sim_proxy *p);
/* Go on with whatever can. True: something moved, so that the engine is to be stepped. */
bool sim_proxy_step(struct sim_proxy *p);
/* When it will go on by itself; INT64_MAX: never. */
int64_t sim_proxy_until(const struct sim_proxy *p);
/* What is free when its node is. */
void sim_proxy_free(struct sim_proxy *p);
/* In words, for a report: what it waits for. */
void sim_proxy_describe(const struct sim_proxy *p, char *buf, size_t cap);

#endif
