/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The progress engine of a node: a list of communicators that it drives in rounds (steps). NCCL may stop
 * calling a plugin at any moment. Its proxy sleeps when it has no operation, and does not call for a channel
 * group whose GPU is late. Meanwhile peers still wait for bytes that this node has staged. So progress is
 * independent of NCCL's calls, and a runner drives the rounds:
 *
 *   a thread      engine_thread.c: from the first communicator to the last. It polls while something moves,
 *                 and sleeps in poll() otherwise,
 *   the caller    no runner: the owner of the context calls nb_engine_step, with the time of its own clock.
 *
 * Steps of one engine must not overlap. Engines are independent of each other. "Engine thread" in comments
 * means the thread that is in nb_engine_step.
 */
#ifndef NIBBLE_COLL_ENGINE_H
#define NIBBLE_COLL_ENGINE_H

#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct nb_coll_comm;
struct nb_coll_node;
struct nb_context;
struct nb_engine;

/* A runner drives an engine. start creates `run`, its private state. */
struct nb_runner {
    /* The engine gets its first communicator. Begin to drive it. Return 0 and *run, or a negative errno after
     * a log line. */
    int (*start)(struct nb_engine *engine, void **run);
    /* The last communicator is gone. Free *run, and return when no step is in flight. */
    void (*stop)(void *run);
    /* There is new work, or a device has finished work. End a sleep. Any thread. Cheap when no thread
     * sleeps. */
    void (*wake)(void *run);
};

/* The runner of NCCL's process: a thread for each engine that has communicators. */
extern const struct nb_runner nb_runner_thread;

/* Create the engine of a node and set ctx->engine. The runner outlives it. NULL: the caller steps the engine.
 * Return 0 or -ENOMEM. */
int nb_engine_open(struct nb_context *ctx, const struct nb_runner *runner);
/* Free the engine and clear ctx->engine, which may be NULL. All communicators of the node must be closed. If
 * some were given up because the engine is stuck, its memory stays. */
void nb_engine_close(struct nb_context *ctx);

const struct nb_context *nb_engine_context(const struct nb_engine *engine);
struct nb_coll_node *nb_engine_node(struct nb_engine *engine);

/* ---- for communicators; any thread ------------------------------------------------------------------- */

/* Take a reference before nb_engine_add, and release it after the communicator was detached. The first
 * reference starts the runner, the last release stops it. Return 0, or a negative errno after a log line. */
int nb_engine_acquire(struct nb_engine *engine);
void nb_engine_release(struct nb_engine *engine);
/* Hand over a communicator. When it has closed, the engine lets go of it and sets closing.detached. */
void nb_engine_add(struct nb_engine *engine, struct nb_coll_comm *comm);
/* Wake the runner if it sleeps, because a window was handed over. */
void nb_engine_kick(struct nb_engine *engine);
/* Have a step made at once, because something else has changed. */
void nb_engine_wake(struct nb_engine *engine);
/* Return the number of steps so far. */
uint64_t nb_engine_steps(const struct nb_engine *engine);
/* Return the counter of steps. */
const _Atomic uint64_t *nb_engine_step_count(const struct nb_engine *engine);
/* Note that the engine is stuck in the step after this number of steps. Until that step ends,
 * nb_engine_acquire fails. */
void nb_engine_call_stuck(struct nb_engine *engine, uint64_t steps);
/* Return true when there is no runner: then a thread that waits for the engine has to call nb_engine_step. */
bool nb_engine_is_stepped(const struct nb_engine *engine);

/* ---- for runners and callers that step --------------------------------------------------------------- */

/* Make one round over all communicators, at time `now_ns` of the context's clock. Never blocks. Return true
 * when something moved: then step again at once. */
bool nb_engine_step(struct nb_engine *engine, int64_t now_ns);

/* Return the time, in ns, for which a runner repeats idle steps before it sleeps. */
int64_t nb_engine_patience_ns(const struct nb_engine *engine);

/* The events that end a sleep after an idle step. */
struct nb_engine_wait {
    int64_t until_ns; /* the next step is due in any case. INT64_MAX: no communicator */
    bool polled;      /* some events have no descriptor: step again soon */
    int nfds;         /* number of descriptors that report news */
};
/* Put up to `max` descriptors into `fds`. With max 0 `fds` may be NULL: transports then count as polled. */
struct nb_engine_wait nb_engine_wait(struct nb_engine *engine, int64_t now_ns, struct pollfd *fds, int max);

/* Prepare a sleep: from here on nb_engine_kick calls the runner's wake. Return false when there is news: then
 * do not sleep. Call nb_engine_end_sleep afterwards in both cases. */
bool nb_engine_prepare_sleep(struct nb_engine *engine);
void nb_engine_end_sleep(struct nb_engine *engine);

/* ---- progress of a communicator ---------------------------------------------------------------------- */

/*
 * The progress of a communicator: the order of work in a round, heartbeats, failure, graceful shutdown. For
 * the engine thread.
 *
 *     RUNNING --close--> CLOSING: send everything owed --> FIN sent --all have acknowledged it, and
 *        |                  |                                 were acknowledged, or the deadline--> CLOSED
 *      error: send ABORT  error: send ABORT. CLOSED when it has left, or after a second
 */

/* Start the clocks, now that all nodes are connected. */
void nb_comm_begin(struct nb_coll_comm *comm);
/* Make one round. Return 1 when something moved, 0 when idle, -1 when the communicator has closed and the
 * engine has to let go of it. */
int nb_comm_progress(struct nb_coll_comm *comm, int64_t now_ns);
/* Return the descriptors to sleep on, or -1 to poll. */
int nb_comm_poll_fds(struct nb_coll_comm *comm, struct pollfd *fds, int max);

/* ---- windows that NCCL has handed over --------------------------------------------------------------- */

/* Return true when windows are open, or an operation has more windows to come. Any thread. */
bool nb_requests_unfinished(struct nb_coll_comm *comm);

/* ---- an engine that is stuck ------------------------------------------------------------------------- */

/*
 * Detection of an engine that makes no steps. Its thread hangs in a call that does not return: in a driver,
 * at a page of memory that does not come back, in a debugger. NCCL's threads then fail the calls on this
 * node's communicators, and leave memory that the engine may be using as it is.
 *
 * Lateness is no error. The limit is twice NIBBLE_PEER_TIMEOUT, at least a minute. Of the time between two
 * checks at most a quarter of the limit counts. So a process that was stopped as a whole passes when it
 * continues.
 *
 * Any thread.
 */

/* Check the engine, at most once a second. Return 0, or -ETIMEDOUT when it has made no step for too long.
 * That is logged once and fails the calls on the communicator. Return 0 again when it continues. */
int nb_stuck_check(struct nb_coll_comm *comm);
/* Take comm->progress_lock. Return 0, or -ETIMEDOUT when the engine holds it and is stuck. */
int nb_stuck_lock(struct nb_coll_comm *comm);

#endif
