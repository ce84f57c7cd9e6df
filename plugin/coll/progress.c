/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One communicator's progress; see progress.h.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "coll/abort.h"
#include "coll/chain.h"
#include "coll/comm.h"
#include "coll/control.h"
#include "coll/control_send.h"
#include "coll/forward.h"
#include "coll/kill_switch.h"
#include "coll/late.h"
#include "coll/loss.h"
#include "coll/retransmit.h"
#include "coll/shutdown.h"
#include "coll/task.h"
#include "coll/window.h"

#define TICK_NS (50 * (int64_t)NB_NS_PER_MS)

/* 1 when what is to be known of the next window is known, so that it may be begun with. Its look at values
 * (operation.h) is all that is done with it until then. */
static int take_up(struct nb_coll_comm *comm, struct nb_coll_req *win)
{
    const struct nb_device_ops *ops = comm->device->ops;

    if (!comm->taken_up) {
        if ((ops->ready && !ops->ready(comm->device)) ||
            (!win->op->begun && !nb_tasks_to_be_had(&comm->tasks)))
            return 0;
        comm->taken_up = true;
        win->tx_left = comm->nneighbors + 1; /* so that it is not finished when its look is over */
        if (!win->op->begun)
            nb_op_begin(comm, win);
    }
    return win->tasks_in_flight == 0;
}

static int dequeue(struct nb_coll_comm *comm)
{
    uint64_t submitted = atomic_load_explicit(&comm->submitted, memory_order_acquire);
    int moved = 0;

    while (comm->begun < submitted && !nb_comm_given_up(comm)) {
        struct nb_coll_req *win = nb_window(comm, comm->begun);
        if (!take_up(comm, win))
            break;
        comm->taken_up = false;
        if (!win->op->schedule) {
            win->op->schedule = nb_schedule_choose(comm, win);
            comm->stats.func[win->op->func].two_hop_ops += win->op->schedule->flags == NB_MSG_TWO_HOP;
            comm->stats.func[win->op->func].two_level_ops += win->op->schedule->flags == NB_MSG_TWO_LEVEL;
        }
        win->after_gather = comm->gathers_end;
        if (win->op->func == NB_FUNC_ALL_GATHER)
            comm->gathers_end = win->seq + 1;
        win->rx_left = win->op->schedule->begin(comm, win);
        comm->stats.func[win->op->func].windows++;
        nb_pace_moved(comm);
        if (comm->oldest == comm->begun++)
            nb_pace_busy(comm);
        moved = 1;
    }
    return moved;
}

/* ---- heartbeats ---------------------------------------------------------------------------------- */

/* Of whom nothing has been heard, though a heartbeat is overdue: the others are told, who may be waiting for
 * nodes that wait for it. */
static const struct nb_peer *find_quiet(const struct nb_coll_comm *comm, int64_t t)
{
    int64_t longest = nb_control_overdue_ns(comm);
    const struct nb_peer *found = NULL;

    for (int i = 0; i < comm->nneighbors; i++) {
        const struct nb_peer *peer = comm->neighbors[i];
        const int64_t silent = t - peer->life.received_ns;
        if (peer->gone || peer->life.bye_acked || silent <= longest)
            continue;
        longest = silent;
        found = peer;
    }
    return found;
}

static int tick(struct nb_coll_comm *comm, int64_t t)
{
    const struct nb_params *p = comm->ctx->params;
    int64_t limit = p->peer_timeout * (int64_t)NB_NS_PER_S;
    int64_t asleep = t - comm->life.tick_ns;

    if (asleep < TICK_NS)
        return 0;
    comm->life.tick_ns = t;
    nb_watch_rescan(comm);
    if (nb_kill_switch_tick(comm))
        return -1;
    comm->life.quiet = asleep > limit / 2 ? NULL : find_quiet(comm, t);
    nb_chain_look(comm, t);
    for (int i = 0; i < comm->nneighbors; i++) {
        struct nb_peer *peer = comm->neighbors[i];
        if (peer->gone)
            continue;
        if (asleep > limit / 2) /* this process was stopped, so it heard nothing: not the peer's fault */
            peer->life.received_ns = t;
        if (nb_control_alive(comm, peer, t))
            return -1;
        /* Silence of one of which all has arrived is its right. */
        if (t - peer->life.received_ns > limit && !peer->life.bye_acked)
            return nb_comm_error(comm, -ETIMEDOUT, "no sign of life from %s for %lld s (NIBBLE_PEER_TIMEOUT)",
                                 peer->name, (long long)p->peer_timeout);
    }
    if (comm->oldest < comm->begun) {
        const struct nb_coll_req *win = nb_window(comm, comm->oldest);
        int64_t waited = t - comm->pace.moved_ns;
        /* Of one that has said goodbye nothing more comes once all has arrived; the end of its connections may never
         * show, where it has lost power since. */
        for (int i = 0; i < comm->nneighbors; i++)
            if ((comm->neighbors[i]->gone || comm->neighbors[i]->life.bye_acked) &&
                nb_late_misses(comm, comm->neighbors[i]))
                return nb_comm_error(
                    comm, -ECONNRESET, "%s has closed its communicator but %s %llu waits for it",
                    comm->neighbors[i]->name, nb_func_name(win->op->func), (unsigned long long)win->op->opno);
        if (waited > p->late_report * (int64_t)NB_NS_PER_S &&
            t - comm->life.late_ns > p->late_report * (int64_t)NB_NS_PER_S) {
            const struct nb_chain *chain = &comm->life.chain.found;
            char who[400];
            comm->life.late_ns = t;
            atomic_fetch_add_explicit(&comm->life.late_reports, 1, memory_order_relaxed);
            nb_late_names(comm, who, sizeof(who));
            NB_INFO(NCCL_NET,
                    "%s: %s %llu, window of %llu bytes at %llu, has waited %lld s for %s (alive, late%s%s)",
                    comm->label, nb_func_name(win->op->func), (unsigned long long)win->op->opno,
                    (unsigned long long)win->bytes, (unsigned long long)win->off,
                    (long long)(waited / (int64_t)NB_NS_PER_S), who[0] ? who : "peers",
                    chain->steps > 1 ? "; held up by " : "",
                    chain->steps > 1 ? comm->peer[chain->end].name : "");
        }
    }
    return 0;
}

/* ---- closing ---------------------------------------------------------------------------------------- */

/* Whoever closes has asked for it (close.c). */
static void take_close(struct nb_coll_comm *comm)
{
    if (comm->state != NB_COMM_RUNNING || !atomic_load(&comm->closing.asked))
        return;
    if (comm->closing.unfinished) /* NCCL is aborting. Peers must not wait for what will never come. */
        nb_comm_fail(comm, -ECONNABORTED, "the communicator was closed with unfinished operations");
    comm->state = NB_COMM_CLOSING;
}

/* ---- begin ------------------------------------------------------------------------------------------ */

void nb_comm_begin(struct nb_coll_comm *comm)
{
    comm->life.tick_ns = nb_clock_ns(&comm->ctx->clock);
    atomic_store(&comm->stuck.looked_ms, nb_clock_ms(&comm->ctx->clock));
    nb_pace_moved(comm);
    for (int i = 0; i < comm->nneighbors; i++) {
        comm->neighbors[i]->life.received_ns = comm->life.tick_ns;
        comm->neighbors[i]->life.quiet = -1;
    }
}

/* ---- one round -------------------------------------------------------------------------------------- */

static int move_links(struct nb_coll_comm *comm, int64_t t)
{
    int moved = 0, ret;

    nb_watch_look(comm);
    for (int c = 0; c < NB_CLASS_CONTROL; c++)
        nb_fair_look(comm, (enum nb_class)c, t);
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
    moved |= dequeue(comm);
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
    if (moved) { /* what was just encoded should leave now */
        ret = move_links(comm, t);
        if (ret < 0)
            return ret;
    }
    ret = tick(comm, t);
    return ret < 0 ? ret : moved;
}

/* What the device wants to know: are there windows that are not finished, or of an operation that has more to
 * come? A window of a failed communicator will never be finished. */
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
            comm->state = NB_COMM_CLOSED; /* reported by the call that met it */
        if (comm->device->ops->turn)
            comm->device_waits = comm->device->ops->turn(comm->device, busy(comm));
        comm->works_open = nb_works_under_way(comm);
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
        return comm->failure.untold ? -1 : 0;
    if (comm->failure.suspect_ns || (nb_works_under_way(comm) && !comm->device->ops->news))
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
