/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL, of one node and communicator. It posts the windows of operations as NCCL's CollNet proxy does, in
 * NCCL's buffer, in the order of steps and groups of channels, eight steps in flight, one operation after the
 * other. Its GPUs fill and drain slots at drawn times. The values come from data.h, and drained values are
 * compared with data.h at once.
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
    SIM_WAITING, /* for its next operation's time */
    SIM_RUNNING,
    SIM_FAILED, /* a call has failed, and the proxy waits to close */
    SIM_DONE,   /* all operations are done, and the proxy waits to close */
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
    int index, rank; /* number of the communicator, and the node's rank in it. -1: not a member */
    enum sim_proxy_state state;
    struct nb_coll_listen *listen;
    uint8_t handle[128];
    struct nb_coll_connect *connect;
    struct nb_coll_comm *coll;
    int connected; /* result of connect */
    uint8_t *region;
    void *mhandle[2 * SIM_CHANNELS];
    int64_t at;     /* time of its next own action: operation, close */
    int64_t paused; /* makes no call before */

    int op;        /* in the plan */
    int64_t began; /* when */
    struct nb_nccl_walk walk;
    uint64_t step; /* next call */
    int next;      /* and its group */
    struct sim_group group[(SIM_CHANNELS + NB_NCCL_GROUP - 1) / NB_NCCL_GROUP];
    uint64_t hash;        /* of the operation's drained values */
    bool partial;         /* the hash covers only some of them */
    double error, energy; /* lossy: squared differences, and the squares by which they are measured */

    int error_code;    /* the first error of a call */
    int64_t failed_at; /* when the communicator failed. 0: it has not */
    bool aborts;       /* it must close during an operation */
    int done;          /* number of complete operations */
    uint64_t *result;  /* [nops] hash of each. 0: not done */
};

/* Listen, so that other nodes can connect. */
void sim_proxy_listen(struct sim_proxy *p);
/* Begin to connect. */
void sim_proxy_connect(struct sim_proxy *p);
/* It is connected: register NCCL's buffer, go on to operations. */
void sim_proxy_connected(struct sim_proxy *p);
/* Advance as far as possible. Return true after progress, so that the engine must be stepped. */
bool sim_proxy_step(struct sim_proxy *p);
/* Return when it will go on by itself. INT64_MAX: never. */
int64_t sim_proxy_until(const struct sim_proxy *p);
/* Free the parts that go with the node. */
void sim_proxy_free(struct sim_proxy *p);
/* Describe its present wait in words, for a report. */
void sim_proxy_describe(const struct sim_proxy *p, char *buf, size_t cap);

#endif
