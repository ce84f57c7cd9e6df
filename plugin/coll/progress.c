/* SPDX-License-Identifier: Apache-2.0 */
/* One round of a communicator: the order of its work. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "coll/comm/comm.h"
#include "coll/decide/decide.h"
#include "coll/engine.h"
#include "coll/flow/flow.h"
#include "coll/watch/watch.h"

#define ABANDONED_NS INT64_C(2000000000) /* NCCL asks for open windows all the time */

/* ---- closing ----------------------------------------------------------------------------------------- */

/* Take up the request of the thread that closes (connect/close.c). */
static void take_close(struct nb_coll_comm *comm)
{
    if (comm->state != NB_COMM_RUNNING || !atomic_load(&comm->closing.asked))
        return;
    if (comm->closing.unfinished) /* NCCL is aborting: peers must not wait for this node's remaining bytes */
        nb_comm_fail(comm, -ECONNABORTED, "the communicator was closed with unfinished operations");
    comm->state = NB_COMM_CLOSING;
}

/* ---- begin ------------------------------------------------------------------------------------------- */

void nb_comm_begin(struct nb_coll_comm *comm)
{
    nb_watch_begin(comm);
    atomic_store(&comm->stuck.checked_ms, nb_clock_ms(&comm->ctx->clock));
    nb_pace_moved(comm);
}

/* ---- one round --------------------------------------------------------------------------------------- */

static int move_links(struct nb_coll_comm *comm, int64_t t)
{
    int moved = 0, ret;

    nb_arrivals_poll(comm);
    for (int c = 0; c < NB_CLASS_CONTROL; c++)
        nb_fair_update(comm, (enum nb_class)c, t);
    for (int i = 0; i < comm->nneighbors; i++) {
        struct nb_peer *peer = nb_next_neighbor(comm, i);
        for (int c = 0; c < NB_CLASS_COUNT; c++) {
            ret = nb_tx_progress(comm, peer, &peer->tx[c]);
            if (ret < 0)
                return ret;
            moved |= ret;
            ret = nb_rx_progress(comm, peer, &peer->rx[c]);
            if (ret < 0)
                return ret;
            if (ret > 0)
                peer->life.received_ns = t;
            moved |= ret;
        }
        ret = nb_control_read(comm, peer);
        if (ret < 0)
            return ret;
        moved |= ret;
        ret = nb_retransmit_progress(comm, peer);
        if (ret < 0)
            return ret;
        moved |= ret;
    }
    return moved;
}

static int run(struct nb_coll_comm *comm, int64_t t)
{
    int moved, ret;

    moved = move_links(comm, t);
    if (moved < 0)
        return moved;
    moved |= nb_windows_dequeue(comm);
    if (nb_comm_failed(comm))
        return -1;
    ret = nb_tasks_progress(comm);
    if (ret < 0)
        return ret;
    moved |= ret;
    ret = nb_decisions_progress(comm);
    if (ret < 0)
        return ret;
    moved |= ret;
    ret = nb_receive_progress(comm);
    if (ret < 0)
        return ret;
    moved |= ret;
    ret = nb_send_progress(comm);
    if (ret < 0)
        return ret;
    moved |= ret;
    if (nb_device_failed(comm))
        return -1;
    if (moved) { /* send the segments encoded in this round */
        ret = move_links(comm, t);
        if (ret < 0)
            return ret;
    }
    ret = nb_watch_tick(comm, t);
    return ret < 0 ? ret : moved;
}

/* Return 1 when windows are open, or an operation has more to come. For the device. Windows of a failed
 * communicator stay open. */
static int busy(struct nb_coll_comm *comm)
{
    const uint64_t n = atomic_load(&comm->submitted);
    const struct nb_coll_req *last;

    if (nb_comm_failed(comm) || n == 0)
        return 0;
    if (atomic_load(&comm->finished) != n)
        return 1;
    last = nb_window(comm, n - 1);
    return last->op->func != NB_FUNC_ALL_REDUCE &&
           last->off + last->bytes < last->op->block * (uint64_t)comm->nnodes;
}

/* Return whether NCCL has stopped asking for windows that it waits for, as after ncclCommAbort. */
static bool is_abandoned(struct nb_coll_comm *comm, int64_t now_ns)
{
    const bool asked = atomic_load_explicit(&comm->asked, memory_order_relaxed);

    if (asked)
        atomic_store_explicit(&comm->asked, 0, memory_order_relaxed);
    if (asked || atomic_load(&comm->finished) == atomic_load(&comm->submitted))
        comm->asked_ns = now_ns;
    return now_ns - comm->asked_ns > ABANDONED_NS;
}

int nb_comm_progress(struct nb_coll_comm *comm, int64_t now_ns)
{
    int moved = 0;

    nb_turn_lock_keep(&comm->progress_lock);
    take_close(comm);
    if (comm->state != NB_COMM_CLOSED) {
        nb_comm_given_up(comm);
        if (!nb_comm_failed(comm) && !comm->failure.suspect_ns)
            moved = run(comm, now_ns);
        if (!nb_comm_failed(comm) && comm->failure.suspect_ns)
            moved = nb_loss_explain(comm, now_ns);
        if (comm->state == NB_COMM_CLOSING && !nb_comm_failed(comm))
            nb_shutdown_progress(comm, now_ns);
        if (nb_comm_failed(comm) && nb_abort_progress(comm, now_ns) && comm->state == NB_COMM_CLOSING)
            comm->state = NB_COMM_CLOSED; /* the call that met the error has returned it */
        if (comm->device->ops->turn)
            comm->device_waits = comm->device->ops->turn(
                comm->device, nb_comm_failed(comm) || is_abandoned(comm, now_ns) ? -1 : busy(comm));
        comm->works_open = nb_device_has_works(comm);
    }
    if (comm->state == NB_COMM_CLOSED)
        moved = -1;
    else
        moved = moved > 0;
    nb_turn_lock_give(&comm->progress_lock);
    return moved;
}

static int links_poll_fds(struct nb_coll_comm *comm, struct pollfd *fds, int max)
{
    int n = 0;

    if (nb_comm_failed(comm))
        return comm->failure.aborts_left ? -1 : 0;
    if (comm->failure.suspect_ns || (nb_device_has_works(comm) && !comm->device->ops->news))
        return -1;
    for (int i = 0; i < comm->nneighbors; i++) {
        struct nb_peer *peer = comm->neighbors[i];
        if (peer->gone)
            continue;
        for (int c = 0; c < NB_CLASS_COUNT; c++) {
            struct nb_tx *tx = &peer->tx[c];
            struct nb_rx *rx = &peer->rx[c];
            int k;
            if (tx->done < tx->queued) {
                k = comm->net->poll_fds(tx->conn, 1, fds + n, max - n);
                if (k < 0)
                    return -1;
                n += k;
            }
            if (rx->arrived < rx->posted) {
                k = comm->net->poll_fds(rx->conn, 0, fds + n, max - n);
                if (k < 0)
                    return -1;
                n += k;
            }
        }
    }
    return n;
}

int nb_comm_poll_fds(struct nb_coll_comm *comm, struct pollfd *fds, int max)
{
    int n;

    nb_turn_lock_keep(&comm->progress_lock);
    n = comm->device_waits ? -1 : links_poll_fds(comm, fds, max);
    nb_turn_lock_give(&comm->progress_lock);
    return n;
}
