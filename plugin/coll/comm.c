/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One communicator on the engine thread: order of work, signs of life, errors, farewell, summary.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/params.h"
#include "coll/internal.h"
#include "coll/task.h"

#define TICK_NS (50 * (int64_t)NB_NS_PER_MS)

static int64_t now(void)
{
    return (int64_t)nb_now_ns();
}

/* ---- errors ----------------------------------------------------------------------------------------- */

int nb_comm_fail(struct nb_coll_comm *comm, int err, const char *why)
{
    int none = 0;

    if (!atomic_compare_exchange_strong(&comm->error, &none, err))
        return none;
    /* Tell the others, as far as they still listen: no one has to wait for a timeout. */
    for (int n = 0; n < comm->nnear; n++) {
        struct nb_ctl ctl = {.kind = NB_CTL_ABORT};
        struct nb_peer *peer = comm->near[n];
        if (peer->gone)
            continue;
        strncpy(ctl.text, why, sizeof(ctl.text) - 1);
        nb_control(comm, peer, &ctl);
        for (int i = 0; i < 3; i++) {
            struct nb_tx *tx = &peer->tx[NB_CLASS_CONTROL];
            struct nb_tx_item *it;
            while (tx->sent < tx->queued) {
                it = &tx->item[tx->sent % tx->slots];
                if (comm->net->isend(tx->conn, it->data, it->len, 0, it->mhandle, &it->req) || !it->req)
                    break;
                tx->sent++;
            }
            while (tx->done < tx->sent) {
                int done = 0;
                it = &tx->item[tx->done % tx->slots];
                if (comm->net->test(it->req, &done, NULL) || !done)
                    break;
                tx->done++;
            }
        }
    }
    return err;
}

int nb_comm_error(struct nb_coll_comm *comm, int err, const char *fmt, ...)
{
    char text[512];
    va_list ap;

    if (atomic_load(&comm->error))
        return atomic_load(&comm->error);
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    NB_WARN("%s: %s", comm->label, text);
    return nb_comm_fail(comm, err, text);
}

/* ---- windows ---------------------------------------------------------------------------------------- */

/* 1 when the device has failed: then nothing that it was asked for counts. */
static int device_failed(struct nb_coll_comm *comm)
{
    int err = comm->device->ops->failed(comm->device);

    if (err)
        nb_comm_error(comm, err, "its device (%s) has failed: %s", comm->device->ops->name, strerror(-err));
    return err != 0;
}

static void finish(struct nb_coll_comm *comm, struct nb_coll_req *win)
{
    comm->moved_ns = now();
    if (win->rx_left || win->tx_left || win->works || device_failed(comm))
        return;
    /* Before NCCL learns of it: a finished window may be used again at once, but never while an older one is open. */
    while (comm->oldest < comm->begun) {
        const struct nb_coll_req *first = nb_window(comm, comm->oldest);
        if (first->rx_left || first->tx_left || first->works)
            break;
        if (nb_is_scattered(first->op))
            nb_two_hop_finished(comm, first);
        comm->oldest++;
    }
    if (comm->oldest == comm->begun) {
        comm->stats.busy_ns += (uint64_t)(comm->moved_ns - comm->busy_since_ns);
        nb_comm_look_at_pace(comm);
    }
    atomic_fetch_add_explicit(&comm->finished, 1, memory_order_relaxed);
    atomic_store_explicit(&win->state, NB_REQ_DONE, memory_order_release);
}

void nb_window_received(struct nb_coll_comm *comm, struct nb_coll_req *win, uint64_t bytes)
{
    win->rx_left -= bytes;
    finish(comm, win);
}

void nb_window_sent(struct nb_coll_comm *comm, struct nb_coll_req *win)
{
    win->tx_left--;
    finish(comm, win);
}

void nb_window_worked(struct nb_coll_comm *comm, struct nb_coll_req *win, uint64_t bytes)
{
    win->works--;
    win->rx_left -= bytes;
    finish(comm, win);
}

static int take_up(struct nb_coll_comm *comm)
{
    uint64_t submitted = atomic_load_explicit(&comm->submitted, memory_order_acquire);
    int moved = 0;

    while (comm->begun < submitted) {
        struct nb_coll_req *win = nb_window(comm, comm->begun);
        if (!win->op->begun)
            nb_op_begin(comm, win);
        if (!win->op->schedule) {
            win->op->schedule = nb_schedule_choose(comm, win);
            comm->stats.func[win->op->func].two_hop_ops += win->op->schedule->flags == NB_MSG_TWO_HOP;
            comm->stats.func[win->op->func].two_level_ops += win->op->schedule->flags == NB_MSG_TWO_LEVEL;
        }
        win->after_gather = comm->gathers_end;
        if (win->op->func == NB_FUNC_ALL_GATHER)
            comm->gathers_end = win->seq + 1;
        win->rx_left = win->op->schedule->begin(comm, win);
        win->tx_left = comm->nnear + 1;
        win->works = 0;
        comm->stats.func[win->op->func].windows++;
        comm->moved_ns = now();
        if (comm->oldest == comm->begun++)
            comm->busy_since_ns = comm->moved_ns;
        moved = 1;
    }
    return moved;
}

/* ---- signs of life ---------------------------------------------------------------------------------- */

/* 1 when the oldest unfinished window needs something from `peer` that has not arrived. */
static int misses(const struct nb_coll_comm *comm, const struct nb_peer *peer)
{
    const struct nb_coll_req *win = nb_window(comm, comm->oldest);
    const struct nb_rx *c = &peer->rx[NB_CLASS_CONTRIB], *r = &peer->rx[NB_CLASS_RESULT];
    const struct nb_op *op = win->op;
    struct nb_piece piece;
    uint64_t from = win->off;

    if (peer->asked)
        return 1;
    if (op->func == NB_FUNC_ALL_GATHER && op->schedule == &nb_schedule_direct) {
        uint64_t block = (uint64_t)peer->rank * op->block;
        if (peer->gathers_done > op->opno)
            return 0;
        from = peer->gather_open && peer->gather_op == op->opno ? block + peer->gather_bytes : block;
        return op->schedule->next_owned(comm, win, peer->rank, from, &piece) && c->taken == c->arrived;
    }
    if (comm->red_seq == comm->oldest && comm->red_started)
        from = comm->red_off;
    if (comm->red_seq <= comm->oldest && op->schedule->next_reduce(comm, win, from, &piece) &&
        c->taken == c->arrived &&
        (op->func == NB_FUNC_ALL_GATHER ? piece.owner == peer->rank : nb_contributes(comm, &piece, peer->rank)))
        return 1;
    if (nb_on_grid(comm) && comm->forward_seq <= comm->oldest &&
        nb_two_level_waits_for(comm, win, comm->forward_seq == comm->oldest && comm->forward_started ? comm->forward_off
                                                                                                     : win->off, peer))
        return 1;
    if (peer->result_seq > comm->oldest)
        return 0;
    from = peer->result_seq == comm->oldest && peer->result_win == comm->oldest ? peer->result_off : win->off;
    return op->schedule->next_result(comm, win, peer->rank, from, &piece) && r->taken == r->arrived;
}

/* Names of the peers that the oldest unfinished window waits for. */
static void late_peers(struct nb_coll_comm *comm, char *buf, size_t cap)
{
    size_t at = 0;

    buf[0] = 0;
    for (int i = 0; i < comm->nnear && at + 1 < cap; i++)
        if (misses(comm, comm->near[i]))
            at += (size_t)snprintf(buf + at, cap - at, "%s%s", at ? ", " : "", comm->near[i]->name);
}

static int tick(struct nb_coll_comm *comm, int64_t t)
{
    const struct nb_params *p = nb_params();
    int64_t limit = p->peer_timeout * (int64_t)NB_NS_PER_S, every = limit / 4;
    int64_t asleep = t - comm->tick_ns;

    if (asleep < TICK_NS)
        return 0;
    comm->tick_ns = t;
    nb_watch_doubt(comm);
    if (nb_switch_tick(comm))
        return -1;
    if (every > (int64_t)NB_NS_PER_S)
        every = (int64_t)NB_NS_PER_S;
    for (int i = 0; i < comm->nnear; i++) {
        struct nb_peer *peer = comm->near[i];
        if (peer->gone)
            continue;
        if (asleep > limit / 2) /* this process was stopped, so it heard nothing: not the peer's fault */
            peer->heard_ns = t;
        if (t - peer->told_ns >= every) {
            struct nb_ctl alive = {.kind = NB_CTL_ALIVE};
            peer->told_ns = t;
            if (nb_control(comm, peer, &alive))
                return -1;
        }
        if (t - peer->heard_ns > limit && !peer->bye)
            return nb_comm_error(comm, -ETIMEDOUT, "no sign of life from %s for %lld s (NIBBLE_PEER_TIMEOUT)",
                                 peer->name, (long long)p->peer_timeout);
    }
    if (comm->oldest < comm->begun) {
        const struct nb_coll_req *win = nb_window(comm, comm->oldest);
        int64_t waited = t - comm->moved_ns;
        for (int i = 0; i < comm->nnear; i++)
            if (comm->near[i]->gone && misses(comm, comm->near[i]))
                return nb_comm_error(comm, -ECONNRESET, "%s has closed its communicator but %s %llu waits for it",
                                     comm->near[i]->name, nb_func_name(win->op->func),
                                     (unsigned long long)win->op->opno);
        if (waited > p->late_report * (int64_t)NB_NS_PER_S &&
            t - comm->late_ns > p->late_report * (int64_t)NB_NS_PER_S) {
            char who[400];
            comm->late_ns = t;
            late_peers(comm, who, sizeof(who));
            NB_INFO(NCCL_NET, "%s: %s %llu, window of %llu bytes at %llu, has waited %lld s for %s (alive, late)",
                    comm->label, nb_func_name(win->op->func), (unsigned long long)win->op->opno,
                    (unsigned long long)win->bytes, (unsigned long long)win->off,
                    (long long)(waited / (int64_t)NB_NS_PER_S), who[0] ? who : "peers");
        }
    }
    return 0;
}

/* ---- farewell --------------------------------------------------------------------------------------- */

static void closed(struct nb_coll_comm *comm)
{
    comm->state = NB_COMM_CLOSED;
    pthread_cond_broadcast(&comm->closed_cond);
}

/* What this node owes: queued messages, and all-gathers that a receiver may still ask about, through it as well. */
static int owes(const struct nb_coll_comm *comm)
{
    for (int i = 0; i < comm->nnear; i++) {
        const struct nb_peer *peer = comm->near[i];
        if (peer->gone)
            continue;
        if (peer->nask || peer->tx[NB_CLASS_CONTRIB].done < peer->tx[NB_CLASS_CONTRIB].queued ||
            peer->tx[NB_CLASS_RESULT].done < peer->tx[NB_CLASS_RESULT].queued)
            return 1;
        if (!peer->bye && (nb_refs_unconfirmed(comm->refs) || comm->confirms_open))
            return 1;
    }
    return 0;
}

static void say_goodbye(struct nb_coll_comm *comm, int64_t t)
{
    int waiting = 0;

    if (!comm->drained && !owes(comm)) {
        comm->drained = 1;
        for (int i = 0; i < comm->nnear; i++) {
            struct nb_peer *peer = comm->near[i];
            struct nb_ctl bye = {.kind = NB_CTL_BYE, .a = peer->tx[NB_CLASS_CONTRIB].queued,
                                 .b = peer->tx[NB_CLASS_RESULT].queued};
            if (!peer->gone)
                nb_control(comm, peer, &bye);
        }
    }
    for (int i = 0; i < comm->nnear; i++) {
        const struct nb_peer *peer = comm->near[i];
        if (peer->gone)
            continue;
        /* Our own acknowledgements must leave, too, before the connections close. */
        if (!comm->drained || !peer->our_bye_acked || (peer->bye && !peer->bye_acked) ||
            peer->tx[NB_CLASS_CONTROL].done < peer->tx[NB_CLASS_CONTROL].queued)
            waiting++;
    }
    if (!waiting) {
        closed(comm);
    } else if (t > comm->close_deadline_ns) {
        NB_WARN("%s: closing although %d peers have not taken all that this node owes them (NIBBLE_CLOSE_TIMEOUT)",
                comm->label, waiting);
        closed(comm);
    }
}

/* ---- one round -------------------------------------------------------------------------------------- */

static int move_links(struct nb_coll_comm *comm, int64_t t)
{
    int moved = 0, ret;

    nb_watch_look(comm);
    for (int c = 0; c < NB_CLASS_CONTROL; c++)
        nb_fair_look(comm, (enum nb_class)c, t);
    for (int i = 0; i < comm->nnear; i++) {
        struct nb_peer *peer = comm->near[i];
        for (int c = 0; c < NB_CLASS_COUNT; c++) {
            ret = nb_tx_progress(comm, peer, &peer->tx[c]);
            if (ret < 0)
                return ret;
            moved |= ret;
            ret = nb_rx_progress(comm, peer, &peer->rx[c]);
            if (ret < 0)
                return ret;
            if (ret > 0)
                peer->heard_ns = t;
            moved |= ret;
        }
        ret = nb_control_read(comm, peer);
        if (ret < 0)
            return ret;
        moved |= ret;
        ret = nb_resend_progress(comm, peer);
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
    moved |= take_up(comm);
    if (atomic_load(&comm->error))
        return -1;
    ret = nb_tasks_progress(comm);
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
    if (device_failed(comm))
        return -1;
    if (moved) { /* what was just encoded should leave now */
        ret = move_links(comm, t);
        if (ret < 0)
            return ret;
    }
    ret = tick(comm, t);
    return ret < 0 ? ret : moved;
}

/* What the device wants to know: are there windows that are not finished, or of an operation that has more to come?
 * A window of a failed communicator will never be finished. */
static int busy(struct nb_coll_comm *comm)
{
    const uint64_t n = atomic_load(&comm->submitted);
    const struct nb_coll_req *last;

    if (atomic_load(&comm->error) || n == 0)
        return 0;
    if (atomic_load(&comm->finished) != n)
        return 1;
    last = nb_window(comm, n - 1);
    return last->op->func != NB_FUNC_ALL_REDUCE &&
           last->off + last->bytes < last->op->block * (uint64_t)comm->nranks;
}

int nb_comm_progress(struct nb_coll_comm *comm, int64_t now_ns)
{
    int moved = 0;

    pthread_mutex_lock(&comm->progress_lock);
    if (comm->state != NB_COMM_CLOSED) {
        if (!atomic_load(&comm->error))
            moved = run(comm, now_ns);
        if (comm->state == NB_COMM_CLOSING) {
            if (atomic_load(&comm->error))
                closed(comm); /* reported by the call that met it */
            else
                say_goodbye(comm, now_ns);
        }
        if (comm->device->ops->turn)
            comm->device_waits = comm->device->ops->turn(comm->device, busy(comm));
        comm->tasks_open = comm->task_run != NULL;
    }
    if (comm->state == NB_COMM_CLOSED)
        moved = -1;
    else
        moved = moved > 0;
    pthread_mutex_unlock(&comm->progress_lock);
    return moved;
}

static int links_poll_fds(struct nb_coll_comm *comm, struct pollfd *fds, int max)
{
    int n = 0;

    if (atomic_load(&comm->error))
        return 0;
    if (comm->task_run)
        return -1;
    for (int i = 0; i < comm->nnear; i++) {
        struct nb_peer *peer = comm->near[i];
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

    pthread_mutex_lock(&comm->progress_lock);
    n = comm->device_waits ? -1 : links_poll_fds(comm, fds, max);
    pthread_mutex_unlock(&comm->progress_lock);
    return n;
}
