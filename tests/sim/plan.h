/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a seed stands for, drawn before anything happens, so that a part of it can be left out to see whether
 * a failure stays (shrink.h).
 */
#ifndef NIBBLE_TESTS_SIM_PLAN_H
#define NIBBLE_TESTS_SIM_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/nccl_names.h"
#include "base/params.h"
#include "nibble/nccl_types.h"

#define SIM_COMMS 3
#define SIM_OPS 256 /* of a communicator, at most */
#define SIM_CHANNELS 12

/* Values that an operation carries (data.h). */
enum sim_data {
    SIM_DATA_SMALL,   /* -1, 0, 1: sums are exact in every type and order */
    SIM_DATA_UNITS,   /* 1, -1 and few twos: products are exact */
    SIM_DATA_NORMAL,  /* floats of one scale */
    SIM_DATA_BITS,    /* any bytes */
    SIM_DATA_WEIGHTS, /* floats that change a little from step to step */
    SIM_DATA_KINDS
};

struct sim_op {
    bool skip; /* left out */
    enum nb_func func;
    ncclDataType_t type;
    ncclRedOp_t redop;
    size_t count; /* values of a block, or of an all-reduce */
    int channels;
    size_t chunk;
    int slot; /* which buffer: operations of one slot are alike, and share residuals and references */
    int step; /* number of this one among those of its slot */
    enum sim_data data;
    bool coded;        /* settings allow a lossy codec, so that the result is within a bound only */
    bool lossy_gather; /* the same for an all-gather */
    uint64_t seed;
    int64_t pause; /* before it, on every node, ns; each draws its own part of it */
};

struct sim_comm {
    uint64_t id;
    int nmembers;
    int *member; /* [nmembers] node of each rank */
    int channels;
    size_t slot_size; /* of NCCL's region */
    int nops;
    struct sim_op *op;
    bool closes_late; /* nodes wait a little before they close */
};

enum sim_fault_kind {
    SIM_KILL,          /* the process dies: its connections are closed */
    SIM_POWER,         /* the machine dies: nothing is heard of it any more */
    SIM_STOP,          /* the process is stopped, and goes on after `lasts` */
    SIM_SLOW,          /* it gets a processor now and then only, for `lasts` */
    SIM_CUT,           /* nothing passes from node to peer, for `lasts`; amount 1: and the other way */
    SIM_ISOLATE,       /* nothing passes to or from node, for `lasts` */
    SIM_RESET,         /* a connection between node and peer ends for both */
    SIM_HALF,          /* for its sender (amount 0) or receiver at once; the other one hears of it later */
    SIM_STALL,         /* a connection from node to peer delivers nothing, for `lasts` */
    SIM_FLIP,          /* a bit of a message from node to peer */
    SIM_TRUNCATE,      /* the end of one is missing */
    SIM_NO_MEMORY,     /* an allocation of node is refused, the amount-th from then */
    SIM_NO_MR,         /* a registration with the transport */
    SIM_BROKEN_DEVICE, /* a work of the device fails */
    SIM_STUCK_DEVICE,  /* a work is never done; the device notices after a while */
    SIM_PAUSE,         /* NCCL calls nothing on node, for `lasts` */
    SIM_ABORT,         /* NCCL closes a communicator in the middle */
    SIM_SWITCH,        /* the operator switches compression off or on (amount) at node */
    SIM_FAULTS
};
extern const char *const sim_fault_name[SIM_FAULTS];

struct sim_fault {
    bool skip;
    enum sim_fault_kind kind;
    /* when: so many events after node `at_node` has begun operation `at_op` of communicator `comm`; at_op -1:
     * after the beginning of all */
    int comm, at_node, at_op;
    uint64_t events;
    int node, peer;
    int64_t lasts;
    uint64_t amount;
    bool control; /* flip, truncate: of a control message */
};

struct sim_nic {
    int64_t rate_in, rate_out; /* MB/s */
    int64_t latency, jitter;   /* ns */
};

struct sim_plan {
    uint64_t seed;
    int nnodes;
    struct nb_params *params; /* [nnodes] */
    struct sim_nic *nic;      /* [nnodes] */
    int64_t *clock;           /* [nnodes] what the node's clock says at the beginning */
    int64_t *start;           /* [nnodes] when it begins to connect */
    bool *recorded;           /* [nnodes] its NCCL tells of operations */
    unsigned char *vague;     /* [nnodes] records do not tell: 1 chunks; 2 nor how many heads a node has */
    bool late_device;         /* work is done later */
    bool early;               /* sends are done when they are taken */
    bool eager;               /* a step is repeated until nothing moves, at once */
    bool *differs;            /* [nnodes] a setting that must agree is another one than that of the rest */
    bool uneven;              /* settings differ, whichever they are */
    int window;               /* messages that a connection takes before it refuses */
    int64_t step_ns;          /* longest time that a node takes to notice something */
    int64_t gpu_ns;           /* that NCCL's kernels take for a slot */
    int ncomms;
    struct sim_comm comm[SIM_COMMS];
    int nfaults;
    struct sim_fault *fault;
};

#define SIM_PLAN_VERSION 3

struct sim_options {
    int version; /* of the plans: what a seed stood for does not change when more is drawn. 2: settings that
                      * differ between nodes, payloads without check values. 3: damage to control messages as often as to others */
    int least, most; /* nodes */
    bool faults;     /* else lateness only */
    bool connect;    /* also before communicators stand */
    bool headers;    /* one bit of one message's header flips, and nothing else happens but lateness */
    bool payload;    /* flips also where only a check of the payload finds them */
};

/* The plan of `seed`; free it with sim_plan_free. */
struct sim_plan *sim_plan_draw(uint64_t seed, const struct sim_options *options);
void sim_plan_free(struct sim_plan *plan);
/* Another one of the same, to be freed likewise. */
struct sim_plan *sim_plan_copy(const struct sim_plan *plan);
/* Take away all that comes late, and all faults: what is left brings the results that the plan should bring,
 * too. */
void sim_plan_calm(struct sim_plan *plan);
/* Operations that are not left out, of all communicators. */
int sim_plan_operations(const struct sim_plan *plan);
/* 1 when the fault is one that the cluster has to live with. */
bool sim_fault_survived(const struct sim_plan *plan, const struct sim_fault *fault);
/* To print it. */
void sim_plan_print(const struct sim_plan *plan);

#endif
