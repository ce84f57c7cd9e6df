/* SPDX-License-Identifier: Apache-2.0 */
/* The state that the communicators of a node share: the file of NIBBLE_CONTROL, an observer for tests. */
#ifndef NIBBLE_COLL_COMM_NODE_H
#define NIBBLE_COLL_COMM_NODE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coll/comm/wire.h"
#include "net/transport.h"
#include "nibble/codec.h"

struct nb_periodic;
struct nb_coll_comm;
struct nb_control_reader;
struct nb_monitor;

/* ---- the file of NIBBLE_CONTROL ---------------------------------------------------------------------- */

/*
 * The file that NIBBLE_CONTROL names, and the word in it. A file may lie on a mount that has stopped
 * answering, and then a read never returns. So in NCCL's process a thread of its own reads the file, and the
 * engine only checks the result. When the caller steps the engine there is no thread, and a step reads the
 * file.
 */

/* Belongs to a node, and to its engine thread. */
struct nb_control_file {
    bool off;        /* the last valid word was "off". At first false */
    int64_t read_ns; /* without a thread: time of the last read, or 0 */
    bool warned;     /* without a thread: a problem with the file was logged */
    bool threaded;   /* a thread reads the file, or failed to start */
    struct nb_control_reader *reader;
    struct nb_periodic *periodic; /* the thread that reads */
    uint64_t seen;                /* the thread's count of reads at seen_ns */
    int64_t seen_ns;              /* 0: no read was in progress */
    bool told;                    /* it was logged that a read does not end */
    bool left_behind;             /* a thread has not ended on request: no other thread will start */
};

/* Read the word. Return 1 for off, 0 for on, -1 for anything else, which changes nothing. A problem with the
 * file is logged once, until the next valid word (*warned). A pipe, a device or a directory is not read. */
int nb_control_file_read(const char *path, bool *warned);

/* Start a thread that reads the file once a second and logs as `label`. Return after its first read, or after
 * two seconds. Failures are logged: then the switch keeps its state. */
void nb_control_file_open(struct nb_control_file *file, const char *path, const char *label);
/* Stop the thread. A thread inside a read that does not return is left behind, and no other thread will
 * start. */
void nb_control_file_close(struct nb_control_file *file, const char *path);
/* Bring file->off up to date. Never blocks while a thread reads. */
void nb_control_file_update(struct nb_control_file *file, const char *path, int64_t now_ns);

/* ---- observer ---------------------------------------------------------------------------------------- */

/*
 * Reports the engine's decisions about each operation to tests, which know the true operation. It serves
 * tests only. Without an observer it costs one load.
 */

struct nb_observation {
    const struct nb_coll_comm *comm;
    uint64_t opno; /* operation number of its first window */
    enum nb_func func;
    int recorded;                         /* its record was found */
    uint64_t call;                        /* number of the announced call (nb_identity_call), or UINT64_MAX */
    enum nb_codec codec;                  /* as decided. Segments may still be sent raw */
    int class_kind, class_reason, warmup; /* struct nb_class_decision. kind -1: not classified */
    int64_t tracked;                      /* of struct nb_identity_decision, or -1 */
    int empty, id_reason;                 /* of the same struct. reason -1: not identified */
    int fed;                              /* a residual is carried in that tracked buffer */
};

/* The type of observers. The engine thread calls it once for each operation, in the order of operations of a
 * communicator, when the decisions on the operation are final. */
typedef void (*nb_observer_fn)(void *arg, const struct nb_observation *what);

/* The observer of a node. */
struct nb_observer {
    _Atomic(nb_observer_fn) fn; /* NULL: no observer */
    _Atomic(void *) arg;
};

static inline bool nb_observed(const struct nb_observer *observer)
{
    return atomic_load_explicit(&observer->fn, memory_order_relaxed) != NULL;
}

/* Report to the observer, if there is one. */
void nb_observe_report(const struct nb_observer *observer, const struct nb_observation *what);

/* Set the observer of a node, or remove it with fn NULL, while the node has no operation in flight. */
void nb_observe(struct nb_observer *observer, nb_observer_fn fn, void *arg);

/* ---- the node ---------------------------------------------------------------------------------------- */

/*
 * The state that the communicators of one node share besides their engine. A node has one such object, inside
 * its engine (engine.h). Communicators reach it as `comm->node`.
 */

/* Communicators counted by GPU, for the criterion `order` of NIBBLE_COMMS. */
struct nb_comm_count {
    uint64_t last_id; /* NCCL's hash of the communicator counted last */
    uint32_t n;
};

struct nb_coll_node {
    pthread_mutex_t lock;                        /* guards `count` */
    struct nb_comm_count count[NB_NET_MAX_DEVS]; /* [GPU ordinal + 1] */
    struct nb_control_file control; /* for the engine thread, and for the runner while it starts or stops */
    struct nb_monitor *monitor;     /* may be NULL. The runner changes it while it starts or stops */
    bool monitor_left_behind;       /* the thread of a monitor is stuck. Changed likewise */
    struct nb_observer observer;
    /* Lines that a node logs once. For the engine thread only. */
    bool warned_profiler, warned_tuner; /* flow/operation.c: the profiler or tuner gets no calls */
    bool reported_lossy;                /* flow/gather_send.c: the cost of a lossy all-gather */
};

/* Initialise an object of the caller. destroy: free its resources. */
void nb_node_init(struct nb_coll_node *node);
void nb_node_destroy(struct nb_coll_node *node);

/* Count a communicator of the GPU `gpu` (CUDA ordinal, or -1), and return its number, from 1. Consecutive
 * calls with the same `comm_id` get the same number: one communicator listens on several devices. A `comm_id`
 * of 0 is no identifier and gets a new number. Any thread. */
uint32_t nb_node_count_comm(struct nb_coll_node *node, int gpu, uint64_t comm_id);

#endif
