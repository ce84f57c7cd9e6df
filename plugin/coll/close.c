/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a communicator.
 *
 *   state      who moves it     what happens                                                  next
 *   RUNNING    nb_coll_close    a deadline is set; unfinished operations fail the             CLOSING
 *                               communicator, so that peers do not wait for them
 *   CLOSING    the engine       graceful shutdown (progress.c): what is owed is sent, then BYE,   CLOSED
 *                               until every peer has confirmed it; at once after a failure
 *   CLOSED     the engine       lets go of the communicator: `detached`                       (freed)
 *   detached   nb_coll_close    the device is stopped; registrations, connections and memory go
 */
#include "coll/coll.h"

#include <errno.h>
#include <sched.h>

#include "base/clock.h"
#include "base/log.h"
#include "coll/comm.h"
#include "coll/engine.h"
#include "coll/report.h"
#include "coll/request.h"
#include "coll/setup.h"
#include "coll/staging.h"
#include "coll/task.h"

int nb_coll_close_begin(struct nb_coll_comm *comm)
{
    uint64_t open;
    bool unfinished;

    if (!comm || comm->magic != NB_COMM_MAGIC) {
        NB_WARN("closeColl: not a collective communicator of nibble: %p", (void *)comm);
        return -EINVAL;
    }
    open = atomic_load(&comm->submitted) - atomic_load(&comm->finished);
    unfinished = nb_requests_unfinished(comm);
    pthread_mutex_lock(&comm->progress_lock);
    if (unfinished && !nb_comm_failed(comm)) {
        /* NCCL is aborting. Peers must not wait for what will never come. */
        NB_INFO(NCCL_NET, "%s: closed in the middle of an operation, with %llu unfinished windows",
                comm->label, (unsigned long long)open);
        nb_comm_fail(comm, -ECONNABORTED, "the communicator was closed with unfinished operations");
    }
    comm->state = NB_COMM_CLOSING;
    comm->life.close_deadline_ns =
        nb_clock_ns(&comm->ctx->clock) + comm->ctx->params->close_timeout * (int64_t)NB_NS_PER_S;
    pthread_mutex_unlock(&comm->progress_lock);
    nb_engine_wake(comm->engine);
    return 0;
}

/* The engine has let go of it. */
static void finish(struct nb_coll_comm *comm)
{
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

int nb_coll_close_step(struct nb_coll_comm *comm)
{
    bool detached;

    pthread_mutex_lock(&comm->progress_lock);
    detached = comm->detached;
    if (detached)
        nb_tasks_abandon(comm);
    pthread_mutex_unlock(&comm->progress_lock);
    if (!detached)
        return -EINPROGRESS;
    finish(comm);
    return 0;
}

/* Wait until the engine has let go of it. */
static void wait_detached(struct nb_coll_comm *comm)
{
    pthread_mutex_lock(&comm->progress_lock);
    while (!comm->detached)
        pthread_cond_wait(&comm->closed_cond, &comm->progress_lock);
    pthread_mutex_unlock(&comm->progress_lock);
}

int nb_coll_close(struct nb_coll_comm *comm)
{
    int ret = nb_coll_close_begin(comm);

    if (ret)
        return ret;
    if (nb_engine_is_stepped(comm->engine))
        comm->life.hurries = 1;
    else
        wait_detached(comm);
    while (nb_coll_close_step(comm))
        if (!nb_engine_step(comm->engine, nb_clock_ns(&comm->ctx->clock)))
            sched_yield();
    return 0;
}
