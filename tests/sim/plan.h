/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan that a seed stands for. It is drawn before the run begins, so that shrink.h can leave out a part
 * of it and see whether the failure stays.
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
    int slot; /* number of the buffer: operations of one slot are alike, and share residuals and references */
    int step; /* number of the operation among operations of its slot */
    enum sim_data data;
    bool coded;        /* settings allow a lossy codec, so the result is only within a bound */
    bool lossy_gather; /* the same for an all-gather */
    uint64_t seed;
    int64_t pause; /* pause before it, on every node, ns. Each node draws its own part of it */
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
    SIM_KILL,          /* the process dies, and its connections are closed */
    SIM_POWER,         /* the machine dies and falls silent */
    SIM_STOP,          /* the process is stopped, and goes on after `lasts` */
    SIM_SLOW,          /* the process gets a processor only now and then, for `lasts` */
    SIM_CUT,           /* messages from node to peer stop, for `lasts`. amount 1: the other way, too */
    SIM_ISOLATE,       /* messages to and from node stop, for `lasts` */
    SIM_RESET,         /* a connection between node and peer ends for both */
    SIM_HALF,          /* the same for its sender (amount 0) or receiver at once, and for the other end
                          later */
    SIM_STALL,         /* a connection from node to peer stops its deliveries, for `lasts` */
    SIM_FLIP,          /* a bit of a message from node to peer */
    SIM_TRUNCATE,      /* the end of a message is missing */
    SIM_NO_MEMORY,     /* an allocation of node is refused, the amount-th from then */
    SIM_NO_MR,         /* the same for a registration with the transport */
    SIM_BROKEN_DEVICE, /* a piece of the device's work fails */
    SIM_STUCK_DEVICE,  /* a piece of work never finishes, and the device notices after a while */
    SIM_PAUSE,         /* NCCL makes no call on node, for `lasts` */
    SIM_ABORT,         /* NCCL closes a communicator during an operation */
    SIM_SWITCH,        /* the operator switches compression off or on (amount) at node */
    SIM_FAULTS
};
extern const char *const sim_fault_name[SIM_FAULTS];

struct sim_fault {
    bool skip;
    enum sim_fault_kind kind;
    /* when: so many events after node `at_node` has begun operation `at_op` of communicator `comm`. at_op -1:
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
    int64_t *clock;           /* [nnodes] the node's clock at the beginning */
    int64_t *start;           /* [nnodes] when the node begins to connect */
    bool *recorded;           /* [nnodes] its NCCL fires profiler events of operations */
    unsigned char *vague;     /* [nnodes] gaps of records: 1 chunks. 2 also how many heads a node has */
    bool late_device;         /* the device finishes work later */
    bool early;               /* a send is done when taken */
    bool eager;               /* a node repeats its step at once until it makes no progress */
    bool *differs;            /* [nnodes] a setting that must agree differs from the other nodes' */
    bool uneven;              /* some settings differ */
    int window;               /* messages that a connection takes before it refuses */
    int64_t step_ns;          /* longest time that a node takes to notice something */
    int64_t gpu_ns;           /* that NCCL's kernels take for a slot */
    int ncomms;
    struct sim_comm comm[SIM_COMMS];
    int nfaults;
    struct sim_fault *fault;
};

#define SIM_PLAN_VERSION 5

struct sim_options {
    int version;     /* of the plans: a seed keeps its plan when later versions draw more. 2: settings that
                    differ between nodes, payloads without check values. 3: control messages are damaged as
                    often as data messages. 4: some have long time limits. 5: sites */
    int least, most; /* nodes */
    bool faults;     /* else only lateness */
    bool connect;    /* also before communicators are connected */
    bool headers;    /* one bit of one message's header flips, and lateness is the only other fault */
    bool payload;    /* bits flip also where only a check of the payload finds it */
};

/* Draw the plan of `seed`. Free it with sim_plan_free. */
struct sim_plan *sim_plan_draw(uint64_t seed, const struct sim_options *options);
void sim_plan_free(struct sim_plan *plan);
/* Copy a plan. Free the copy likewise. */
struct sim_plan *sim_plan_copy(const struct sim_plan *plan);
/* Remove all lateness and all faults: the rest must bring the same results as the plan. */
void sim_plan_calm(struct sim_plan *plan);
/* Return the number of the plan's remaining operations, of all communicators. */
int sim_plan_operations(const struct sim_plan *plan);
/* Return 1 when the cluster must survive the fault. */
bool sim_fault_survived(const struct sim_plan *plan, const struct sim_fault *fault);
/* To print it. */
void sim_plan_print(const struct sim_plan *plan);

#endif
