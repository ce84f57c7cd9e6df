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
 * The file that NIBBLE_CONTROL names, and the word in it. A file may lie on a mount that no longer answers,
 * and reading it then never returns: so in NCCL's process a thread of its own reads it, and the engine only
 * looks at what that thread has found. Where the caller steps the engine there is no thread, and a step
 * reads.
 */

/* Of a node, and its engine thread's. */
struct nb_control_file {
    bool off;        /* the last word that was understood; at first: on */
    int64_t read_ns; /* without a thread: time of the last look; 0: never */
    bool warned;     /* and: what is wrong with the file has been reported */
    bool threaded;   /* a thread reads it, or would if it could */
    struct nb_control_reader *reader;
    struct nb_periodic *periodic; /* with a reader: its thread */
    uint64_t seen;                /* of its looks, at seen_ns */
    int64_t seen_ns;              /* 0: none was under way */
    bool told;                    /* it was reported that one does not end */
    bool left_behind;             /* one has not ended although it was told to: there will be no other */
};

/* The word: 1 off, 0 on, -1 nothing that is understood (then nothing changes). What is wrong with the file is
 * logged once, until a word is understood again (*warned). A pipe, a device or a directory is not read. */
int nb_control_file_read(const char *path, bool *warned);

/* Begin to read once a second, in a thread that logs as `label`; returns when it has read once, or after two
 * seconds. What fails is logged: then the switch keeps its state. */
void nb_control_file_open(struct nb_control_file *file, const char *path, const char *label);
/* End it. A thread that is inside a read that does not return is left behind, and no other will be begun. */
void nb_control_file_close(struct nb_control_file *file, const char *path);
/* Bring file->off up to date. Never blocks while a thread reads. */
void nb_control_file_update(struct nb_control_file *file, const char *path, int64_t now_ns);

/* ---- observer ---------------------------------------------------------------------------------------- */

/*
 * Reports what the engine decided about each operation to tests that know what the operation really was.
 * Nothing else uses it; without an observer it costs one load.
 */

struct nb_observation {
    const struct nb_coll_comm *comm;
    uint64_t opno; /* of the operation's first window */
    enum nb_func func;
    int recorded;        /* its record was found */
    uint64_t call;       /* number of the announced call (nb_identity_call); UINT64_MAX: none */
    enum nb_codec codec; /* as decided; segments may still be sent raw */
    int class_kind, class_reason, warmup; /* struct nb_class_decision; kind -1: not classified */
    int64_t tracked;                      /* struct nb_identity_decision, -1: none */
    int empty, id_reason;                 /* of the same; reason -1: not identified */
    int fed;                              /* a residual is carried in that tracked buffer */
};

/* Called on the engine thread, once an operation, in the order of operations of a communicator, when the
 * decisions on it are final. */
typedef void (*nb_observer_fn)(void *arg, const struct nb_observation *what);

/* Whom a node reports to. */
struct nb_observer {
    _Atomic(nb_observer_fn) fn; /* NULL: nobody */
    _Atomic(void *) arg;
};

static inline bool nb_observed(const struct nb_observer *observer)
{
    return atomic_load_explicit(&observer->fn, memory_order_relaxed) != NULL;
}

/* Report, if there is an observer. */
void nb_observe_report(const struct nb_observer *observer, const struct nb_observation *what);

/* Set whom a node reports to or, with fn NULL, end it, while the node has no operation in flight. */
void nb_observe(struct nb_observer *observer, nb_observer_fn fn, void *arg);

/* ---- the node ---------------------------------------------------------------------------------------- */

/*
 * What the communicators of one node share besides the engine that drives them. A node has one such object,
 * inside its engine (engine.h); communicators reach it as `comm->node`.
 */

/* Communicators counted by GPU, for the criterion `order` of NIBBLE_COMMS. */
struct nb_comm_count {
    uint64_t last_id; /* NCCL's hash of the communicator counted last */
    uint32_t n;
};

struct nb_coll_node {
    pthread_mutex_t lock;                        /* guards `count` */
    struct nb_comm_count count[NB_NET_MAX_DEVS]; /* [GPU ordinal + 1] */
    struct nb_control_file control; /* engine thread, and its runner while that starts or stops it */
    struct nb_monitor *monitor;     /* NULL: none; the runner's while that starts or stops, else constant */
    bool monitor_left_behind;       /* one's thread never came back; as above */
    struct nb_observer observer;
    /* Lines that a node logs once. Engine thread only. */
    bool warned_profiler, warned_tuner; /* flow/operation.c: events or questions do not reach this plugin */
    bool reported_lossy;                /* flow/gather_send.c: what a lossy all-gather costs */
};

/* Initialise an object of the caller's, and give back what that took. */
void nb_node_init(struct nb_coll_node *node);
void nb_node_destroy(struct nb_coll_node *node);

/* Count a communicator of the GPU `gpu` (CUDA ordinal, -1: none): returns its number, from 1. Consecutive
 * calls with the same `comm_id` (one communicator that listens on several devices) get the same number,
 * except that 0 is no identifier. Any thread. */
uint32_t nb_node_count_comm(struct nb_coll_node *node, int gpu, uint64_t comm_id);

#endif
