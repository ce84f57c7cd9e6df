/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a communicator.
 *
 *   state      who moves it     actions                                                       next
 *   RUNNING    nb_coll_close    asks the engine, which sets a deadline. Unfinished            CLOSING
 *                               operations fail the communicator, so that peers do not wait for them
 *   CLOSING    the engine       graceful shutdown (progress.c): owed messages are sent, then FIN, CLOSED
 *                               until every peer has confirmed it. At once after a failure
 *   CLOSED     the engine       lets go of the communicator: `detached`                       (freed)
 *   (an engine that is stuck: nb_coll_close gives up, and everything is left as it is)
 *   detached   nb_coll_close    the device is stopped. Registrations, connections and memory go
 */
#include <errno.h>
#include <sched.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "coll/coll.h"
#include "coll/connect/connect.h"
#include "coll/engine.h"
#include "coll/flow/flow.h"
#include "coll/report/report.h"
#include "coll/watch/watch.h"

int nb_coll_close_begin(struct nb_coll_comm *comm)
{
    uint64_t open;

    if (!comm || comm->magic != NB_COMM_MAGIC) {
        NB_WARN("closeColl: not a collective communicator of nibble: %p", (void *)comm);
        return -EINVAL;
    }
    open = atomic_load(&comm->submitted) - atomic_load(&comm->finished);
    comm->closing.unfinished = nb_requests_unfinished(comm);
    if (comm->closing.unfinished && !nb_comm_failed(comm))
        NB_INFO(NCCL_NET, "%s: closed in the middle of an operation, with %llu unfinished windows",
                comm->label, (unsigned long long)open);
    nb_shutdown_begin(comm);
    atomic_store(&comm->closing.asked, true);
    nb_engine_wake(comm->engine);
    return 0;
}

/* Free a communicator that the engine has let go of. */
static void finish(struct nb_coll_comm *comm)
{
    nb_monitor_remove(comm->node->monitor, comm); /* first, since it asks the connections */
    nb_comm_log_summary(comm);
    nb_staging_unregister(comm);
    for (int i = 0; i < comm->nneighbors; i++) {
        for (int c = 0; c < NB_CLASS_COUNT; c++) {
            comm->net->close_send(comm->neighbors[i]->tx[c].conn);
            comm->net->close_recv(comm->neighbors[i]->rx[c].conn);
        }
    }
    nb_engine_release(comm->engine);
    nb_setup_free(comm);
}

/* Leave memory as it is: the engine, or work on the device, is stuck and may still use it. */
static int leave(struct nb_coll_comm *comm, const char *who)
{
    NB_WARN("%s: closeColl: its %s is stuck, so its memory and connections are not given back", comm->label,
            who);
    return -ETIMEDOUT;
}

int nb_coll_close_step(struct nb_coll_comm *comm)
{
    bool detached;

    pthread_mutex_lock(&comm->closing.lock);
    detached = comm->closing.detached;
    pthread_mutex_unlock(&comm->closing.lock);
    if (!detached)
        return nb_stuck_check(comm) ? leave(comm, "engine") : -EINPROGRESS;
    if (nb_tasks_abandon(comm))
        return leave(comm, "device");
    finish(comm);
    return 0;
}

/* Wait until the engine has let go of the communicator, or is found to be stuck. */
static void wait_detached(struct nb_coll_comm *comm)
{
    pthread_mutex_lock(&comm->closing.lock);
    while (!comm->closing.detached && !nb_stuck_check(comm)) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec++;
        pthread_cond_timedwait(&comm->closing.cond, &comm->closing.lock, &until);
    }
    pthread_mutex_unlock(&comm->closing.lock);
}

int nb_coll_close(struct nb_coll_comm *comm)
{
    int ret = nb_coll_close_begin(comm);

    if (ret)
        return ret;
    if (nb_engine_is_stepped(comm->engine))
        nb_shutdown_hurry(comm);
    while ((ret = nb_coll_close_step(comm)) == -EINPROGRESS) {
        if (!nb_engine_is_stepped(comm->engine))
            wait_detached(comm);
        else if (!nb_engine_step(comm->engine, nb_clock_ns(&comm->ctx->clock)))
            sched_yield();
    }
    return ret;
}
