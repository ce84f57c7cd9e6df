/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The progress engine of a node: a list of communicators that are driven in rounds (steps). NCCL stops
 * calling a plugin at any moment (its proxy sleeps when it has no operation, and does not call for a channel
 * group whose GPU is late), while peers still wait for what this node has staged: so nothing may depend on
 * NCCL's calls, and somebody else has to drive the rounds. Who that is, is handed in:
 *
 *   a runner      engine_thread.c: a thread, from the first communicator to the last, that polls while
 *                 something moves and sleeps in poll() otherwise;
 *   the caller    no runner: whoever made the context calls nb_engine_step, with the time of a clock of its
 *                 own.
 *
 * One step at a time: steps of one engine must not overlap. Those of different engines are independent. Where
 * a comment says "engine thread" it means whoever is in nb_engine_step.
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

/* Who drives an engine. `run` is what start has made of it. */
struct nb_runner {
    /* The engine gets its first communicator: begin to drive it. 0 and *run, or a negative errno after a log
     * line. */
    int (*start)(struct nb_engine *engine, void **run);
    /* The last communicator is gone: return when no step is in flight any more, and free *run. */
    void (*stop)(void *run);
    /* There is something new to do, or work on a device is done: end a sleep. Any thread; cheap when nobody
     * sleeps. */
    void (*wake)(void *run);
};

/* A thread of its own for each engine that has communicators (engine_thread.c). */
extern const struct nb_runner nb_runner_thread;

/* Make the engine of a node: sets ctx->engine. The runner (NULL: the caller drives it) outlives the engine.
 * 0 or -ENOMEM. */
int nb_engine_open(struct nb_context *ctx, const struct nb_runner *runner);
/* Free it; no communicator of the node is left, but some that were given up because it is stuck: then its
 * memory is left to it. ctx->engine is NULL afterwards, and may have been before. */
void nb_engine_close(struct nb_context *ctx);

const struct nb_context *nb_engine_context(const struct nb_engine *engine);
struct nb_coll_node *nb_engine_node(struct nb_engine *engine);

/* ---- for communicators; any thread ------------------------------------------------------------------ */

/* Take a reference, from before nb_engine_add until after the communicator was detached: the first starts the
 * runner, the last release stops it. 0, or a negative errno after a log line. */
int nb_engine_acquire(struct nb_engine *engine);
void nb_engine_release(struct nb_engine *engine);
/* Hand a communicator over. The engine lets go of it when it has closed, and sets comm->detached then. */
void nb_engine_add(struct nb_engine *engine, struct nb_coll_comm *comm);
/* A window was handed over: wake the runner if it sleeps. */
void nb_engine_kick(struct nb_engine *engine);
/* Something else changed: have a step made at once. */
void nb_engine_wake(struct nb_engine *engine);
/* How many steps it has made. */
uint64_t nb_engine_steps(const struct nb_engine *engine);
/* Where it counts them. */
const _Atomic uint64_t *nb_engine_step_count(const struct nb_engine *engine);
/* It is stuck in the step after so many (engine.h): until it has made that, nobody can take a reference. */
void nb_engine_call_stuck(struct nb_engine *engine, uint64_t steps);
/* Whether there is no runner, so that who waits for the engine has to call nb_engine_step. */
bool nb_engine_is_stepped(const struct nb_engine *engine);

/* ---- for who drives the engine ---------------------------------------------------------------------- */

/* One round over all communicators at time `now_ns` of the context's clock. Never blocks. True when something
 * moved: then step again at once. */
bool nb_engine_step(struct nb_engine *engine, int64_t now_ns);

/* How long it pays to repeat steps in which nothing moved before sleeping, in ns. */
int64_t nb_engine_patience_ns(const struct nb_engine *engine);

/* What the engine waits for after a step in which nothing moved. */
struct nb_engine_wait {
    int64_t until_ns; /* a step is due at this time in any case; INT64_MAX: no communicator */
    bool polled;      /* something may also happen that no descriptor tells: step again soon */
    int nfds;         /* descriptors that tell when there is something to do */
};
/* Up to `max` descriptors are put into `fds` (may be NULL where max is 0; then transports count as
 * polled). */
struct nb_engine_wait nb_engine_wait(struct nb_engine *engine, int64_t now_ns, struct pollfd *fds, int max);

/* Before a sleep: from here on nb_engine_kick calls the runner's wake. False: something was handed over
 * meanwhile, so do not sleep. After a sleep, or instead of it: nb_engine_end_sleep. */
bool nb_engine_prepare_sleep(struct nb_engine *engine);
void nb_engine_end_sleep(struct nb_engine *engine);

/* ---- progress of a communicator ---------------------------------------------------------------------- */

/*
 * One communicator's progress: the order of work in a round, heartbeats, failure, graceful shutdown. For the
 * engine thread.
 *
 *     RUNNING --close--> CLOSING: what this node owes is drained --> BYE sent --all have acknowledged, and
 *     were--> CLOSED
 *        |                  |                                                       acknowledged; or the deadline
 *      error: ABORT sent  error: ABORT sent, closed when it has left, or after a second
 *      nothing moves      ---------------------------------------------------------------------------------------> CLOSED
 */

/* All nodes are connected: time begins to count. */
void nb_comm_begin(struct nb_coll_comm *comm);
/* One round: 1 when something moved, 0 when not, -1 when it has closed and the engine must let go of it. */
int nb_comm_progress(struct nb_coll_comm *comm, int64_t now_ns);
/* Descriptors to sleep on; -1 when it must be polled. */
int nb_comm_poll_fds(struct nb_coll_comm *comm, struct pollfd *fds, int max);

/* ---- windows that NCCL has handed over --------------------------------------------------------------- */

/* True when NCCL is in the middle of something: windows are not finished, or there are more to come of an
 * operation whose first ones may well be. Any thread. */
bool nb_requests_unfinished(struct nb_coll_comm *comm);

/* ---- an engine that is stuck ------------------------------------------------------------------------- */

/*
 * Noticing that the engine of this node makes no steps: its thread hangs in a call that does not return (a
 * driver, a page of memory that does not come back, a debugger). Then nobody fails this node's communicators,
 * so the calls of NCCL's threads do, and leave what the engine may be using as it is.
 *
 * Lateness is no error: the limit is twice NIBBLE_PEER_TIMEOUT, at least a minute, and of the time between
 * two looks no more than a quarter of it counts, so that a process that was stopped as a whole finds nothing
 * when it goes on.
 *
 * Any thread.
 */

/* Look at the engine, at most once a second. 0, or -ETIMEDOUT when it has not made a step for too long, which
 * is logged once and fails the calls on the communicator. 0 again when it goes on. */
int nb_stuck_check(struct nb_coll_comm *comm);
/* Take comm->progress_lock: 0, or -ETIMEDOUT when the engine holds it and is stuck. */
int nb_stuck_lock(struct nb_coll_comm *comm);

#endif
