/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The progress engine of a node: a list of communicators that it drives in rounds (steps). NCCL may stop
 * calling a plugin at any moment: its proxy sleeps when it has no operation, and does not call for a channel
 * group whose GPU is late. Meanwhile peers still wait for bytes that this node has staged. So progress is
 * independent of NCCL's calls, and a runner drives the rounds:
 *
 *   a thread      engine_thread.c: from the first communicator to the last. It polls while something moves,
 *                 and sleeps in poll() otherwise;
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

/* A runner drives an engine. `run` is its own, from start. */
struct nb_runner {
    /* The engine gets its first communicator: begin to drive it. 0 and *run, or a negative errno after a log
     * line. */
    int (*start)(struct nb_engine *engine, void **run);
    /* The last communicator is gone: free *run, and return when no step is in flight. */
    void (*stop)(void *run);
    /* There is new work, or a device has finished some: end a sleep. Any thread. Cheap when no thread
     * sleeps. */
    void (*wake)(void *run);
};

/* The runner of NCCL's process: a thread for each engine that has communicators. */
extern const struct nb_runner nb_runner_thread;

/* Create the engine of a node and set ctx->engine. The runner (NULL: the caller) outlives it. 0 or
 * -ENOMEM. */
int nb_engine_open(struct nb_context *ctx, const struct nb_runner *runner);
/* Free the engine and clear ctx->engine, which may be NULL. The node has no communicators left, except those
 * that were given up because the engine is stuck: then its memory stays. */
void nb_engine_close(struct nb_context *ctx);

const struct nb_context *nb_engine_context(const struct nb_engine *engine);
struct nb_coll_node *nb_engine_node(struct nb_engine *engine);

/* ---- for communicators; any thread ------------------------------------------------------------------ */

/* Take a reference before nb_engine_add, and release it after the communicator was detached. The first one
 * starts the runner, the last release stops it. 0, or a negative errno after a log line. */
int nb_engine_acquire(struct nb_engine *engine);
void nb_engine_release(struct nb_engine *engine);
/* Hand over a communicator. The engine lets go of it when it has closed, and sets closing.detached. */
void nb_engine_add(struct nb_engine *engine, struct nb_coll_comm *comm);
/* A window was handed over: wake the runner if it sleeps. */
void nb_engine_kick(struct nb_engine *engine);
/* Something else has changed: have a step made at once. */
void nb_engine_wake(struct nb_engine *engine);
/* Return the number of steps so far. */
uint64_t nb_engine_steps(const struct nb_engine *engine);
/* Return the counter of steps. */
const _Atomic uint64_t *nb_engine_step_count(const struct nb_engine *engine);
/* Note that the engine is stuck in the step after this many: until it ends, nb_engine_acquire fails. */
void nb_engine_call_stuck(struct nb_engine *engine, uint64_t steps);
/* Return whether there is no runner: a thread that waits for the engine has to call nb_engine_step. */
bool nb_engine_is_stepped(const struct nb_engine *engine);

/* ---- for who drives the engine ---------------------------------------------------------------------- */

/* Make one round over all communicators, at time `now_ns` of the context's clock. Never blocks. True when
 * something moved: step again at once. */
bool nb_engine_step(struct nb_engine *engine, int64_t now_ns);

/* Return how long steps in which nothing moved should be repeated before a sleep, in ns. */
int64_t nb_engine_patience_ns(const struct nb_engine *engine);

/* What ends a sleep after a step in which nothing moved. */
struct nb_engine_wait {
    int64_t until_ns; /* the next step is due in any case; INT64_MAX: no communicator */
    bool polled;      /* something may happen that no descriptor reports: step again soon */
    int nfds;         /* descriptors that report news */
};
/* Put up to `max` descriptors into `fds` (may be NULL where max is 0: transports then count as polled). */
struct nb_engine_wait nb_engine_wait(struct nb_engine *engine, int64_t now_ns, struct pollfd *fds, int max);

/* Call before a sleep: from here on nb_engine_kick calls the runner's wake. False: there is news, so do not
 * sleep. Call nb_engine_end_sleep afterwards in both cases. */
bool nb_engine_prepare_sleep(struct nb_engine *engine);
void nb_engine_end_sleep(struct nb_engine *engine);

/* ---- progress of a communicator ---------------------------------------------------------------------- */

/*
 * The progress of a communicator: the order of work in a round, heartbeats, failure, graceful shutdown. For
 * the engine thread.
 *
 *     RUNNING --close--> CLOSING: send what is owed --> FIN sent --all have acknowledged it, and
 *        |                  |                               were acknowledged, or the deadline--> CLOSED
 *      error: send ABORT  error: send ABORT; CLOSED when it has left, or after a second
 */

/* All nodes are connected: start the clocks. */
void nb_comm_begin(struct nb_coll_comm *comm);
/* Make one round: 1 something moved, 0 not, -1 it has closed, let go of it. */
int nb_comm_progress(struct nb_coll_comm *comm, int64_t now_ns);
/* Return the descriptors to sleep on; -1: poll. */
int nb_comm_poll_fds(struct nb_coll_comm *comm, struct pollfd *fds, int max);

/* ---- windows that NCCL has handed over --------------------------------------------------------------- */

/* True when windows are open, or an operation has more windows to come. Any thread. */
bool nb_requests_unfinished(struct nb_coll_comm *comm);

/* ---- an engine that is stuck ------------------------------------------------------------------------- */

/*
 * Detection of an engine that makes no steps: its thread hangs in a call that does not return (a driver, a
 * page of memory that does not come back, a debugger). NCCL's threads then fail the calls on this node's
 * communicators, and leave memory that the engine may be using as it is.
 *
 * Lateness is no error. The limit is twice NIBBLE_PEER_TIMEOUT, at least a minute. Of the time between two
 * checks at most a quarter of the limit counts, so that a process that was stopped as a whole passes when it
 * goes on.
 *
 * Any thread.
 */

/* Check the engine, at most once a second. 0, or -ETIMEDOUT when it has made no step for too long, which is
 * logged once and fails the calls on the communicator. 0 again when it goes on. */
int nb_stuck_check(struct nb_coll_comm *comm);
/* Take comm->progress_lock: 0, or -ETIMEDOUT when the engine holds it and is stuck. */
int nb_stuck_lock(struct nb_coll_comm *comm);

#endif
