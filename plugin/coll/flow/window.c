/* SPDX-License-Identifier: Apache-2.0 */
/* Windows: dequeue them, walk over them with cursors, keep their accounts, and find the peers that the oldest
 * one waits for. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "coll/flow/internal.h"

/* ---- cursors ----------------------------------------------------------------------------------------- */

struct nb_coll_req *nb_cursor_window(const struct nb_coll_comm *comm, struct nb_cursor *c)
{
    struct nb_coll_req *win;

    if (c->seq < comm->oldest) { /* NCCL may use the window again */
        c->seq = comm->oldest;
        c->started = false;
    }
    if (c->seq == comm->begun)
        return NULL;
    win = nb_window(comm, c->seq);
    if (!c->started) {
        c->started = true;
        c->off = win->off;
    }
    return win;
}

uint64_t nb_cursor_reached(const struct nb_coll_comm *comm, const struct nb_cursor *c)
{
    return nb_max64(c->seq, comm->oldest);
}

uint64_t nb_cursor_place(const struct nb_cursor *c, const struct nb_coll_req *win)
{
    return c->seq == win->seq && c->started ? c->off : win->off;
}

/* ---- whether the processor is the limit -------------------------------------------------------------- */

/* The processor is the limit when it works for this share of the time, measured over this much time. */
#define PACE_SHARE 0.75
#define PACE_AFTER_NS (2 * NB_NS_PER_S)

void nb_pace_moved(struct nb_coll_comm *comm)
{
    comm->moved_ns = nb_clock_ns(&comm->ctx->clock);
}

static void pace_busy(struct nb_coll_comm *comm)
{
    nb_pace_moved(comm);
    comm->busy_since_ns = comm->moved_ns;
}

static void pace_idle(struct nb_coll_comm *comm)
{
    struct nb_coll_stats *s = &comm->stats;
    char who[64] = "this processor";

    s->busy_ns += (uint64_t)(comm->moved_ns - comm->busy_since_ns);
    if (comm->flow->pace_told || s->busy_ns < PACE_AFTER_NS || nb_stats_codec_share(s) < PACE_SHARE)
        return;
    comm->flow->pace_told = 1;
    if (s->workers)
        snprintf(who, sizeof(who), "%u codec threads (NIBBLE_HOST_THREADS)", s->workers);
    NB_INFO(
        NCCL_NET,
        "%s: codecs and copies keep %s busy for %.0f %% of the time that operations take (%.2f GB/s of "
        "values%s): the processor is the limit, not the links. Remedy: send operations raw on which coding "
        "does not pay (NIBBLE_RS, NIBBLE_AR, NIBBLE_AG)",
        comm->label, who, 100 * nb_stats_codec_share(s), (double)s->worked_bytes / (double)s->worked_ns,
        s->workers > 1 ? " each" : "");
}

/* ---- the account of a window ------------------------------------------------------------------------- */

bool nb_device_failed(struct nb_coll_comm *comm)
{
    int err = comm->device->ops->failed(comm->device);

    if (err)
        nb_comm_error(comm, err, "its device (%s) has failed: %s", comm->device->ops->name, strerror(-err));
    return err != 0;
}

static void finish(struct nb_coll_comm *comm, struct nb_coll_req *win)
{
    nb_pace_moved(comm);
    if (win->rx_left || win->tx_left || win->tasks_in_flight || nb_device_failed(comm))
        return;
    /* Pass windows before NCCL learns of their end. NCCL may use a done window again at once, but only while
     * no older window is open. */
    while (comm->oldest < comm->begun) {
        const struct nb_coll_req *first = nb_window(comm, comm->oldest);
        if (first->rx_left || first->tx_left || first->tasks_in_flight)
            break;
        if (first->op->schedule->finished)
            first->op->schedule->finished(comm, first);
        nb_proof_window_done(comm, first);
        comm->oldest++;
    }
    nb_proof_advance(comm);
    if (comm->oldest == comm->begun)
        pace_idle(comm);
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

void nb_window_task_done(struct nb_coll_comm *comm, struct nb_coll_req *win, uint64_t bytes)
{
    win->tasks_in_flight--;
    win->rx_left -= bytes;
    finish(comm, win);
}

/* ---- dequeuing --------------------------------------------------------------------------------------- */

/* Return 1 when the next window is ready to begin: its operation has begun, and the task that samples values
 * (operation.c) has ended. */
static int take_up(struct nb_coll_comm *comm, struct nb_coll_req *win)
{
    const struct nb_device_ops *ops = comm->device->ops;

    if (!comm->flow->taken_up) {
        if ((ops->ready && !ops->ready(comm->device)) ||
            (!win->op->begun && !nb_tasks_to_be_had(&comm->flow->tasks)))
            return 0;
        comm->flow->taken_up = true;
        win->tx_left = comm->nneighbors + 1; /* keeps the window open when that task ends */
        if (!win->op->begun)
            nb_op_begin(comm, win);
    }
    return win->tasks_in_flight == 0;
}

bool nb_windows_dequeue(struct nb_coll_comm *comm)
{
    uint64_t submitted = atomic_load_explicit(&comm->submitted, memory_order_acquire);
    bool moved = false;

    while (comm->begun < submitted && !nb_comm_given_up(comm)) {
        struct nb_coll_req *win = nb_window(comm, comm->begun);
        if (!take_up(comm, win))
            break;
        comm->flow->taken_up = false;
        if (!win->op->schedule) {
            win->op->schedule = nb_schedule_choose(comm, win);
            comm->stats.func[win->op->func].two_hop_ops += win->op->schedule->flags == NB_MSG_TWO_HOP;
            comm->stats.func[win->op->func].two_level_ops += win->op->schedule->flags == NB_MSG_TWO_LEVEL;
        }
        win->after_gather = comm->flow->gathers_end;
        if (win->op->func == NB_FUNC_ALL_GATHER)
            comm->flow->gathers_end = win->seq + 1;
        win->rx_left = win->op->schedule->begin(comm, win);
        comm->stats.func[win->op->func].windows++;
        nb_pace_moved(comm);
        if (comm->oldest == comm->begun++)
            pace_busy(comm);
        moved = true;
    }
    return moved;
}

/* ---- peers that the oldest window waits for ---------------------------------------------------------- */

/* Return true when the window needs a result of the peer. */
static bool misses_result(const struct nb_coll_comm *comm, const struct nb_coll_req *win,
                          const struct nb_peer *peer)
{
    const struct nb_rx *rx = &peer->rx[NB_CLASS_RESULT];
    struct nb_segment segment;
    uint64_t from = peer->flow->results.seq == win->seq && peer->flow->results.win == win->seq
                        ? peer->flow->results.off
                        : win->off;

    return peer->flow->results.seq <= win->seq && rx->taken == rx->arrived &&
           win->op->schedule->next_result(comm, win, peer->rank, from, &segment);
}

bool nb_window_misses(const struct nb_coll_comm *comm, const struct nb_peer *peer)
{
    const struct nb_coll_req *win = nb_window(comm, comm->oldest);
    const struct nb_schedule_ops *s = win->op->schedule;

    return peer->flow->raw.waiting || (s->waits_for && s->waits_for(comm, win, peer)) ||
           nb_reduce_waits_for(comm, win, peer) || nb_forward_waits_for(comm, win, peer) ||
           misses_result(comm, win, peer);
}

bool nb_peer_has_not_taken(const struct nb_peer *peer)
{
    return peer->flow->raw.n || peer->tx[NB_CLASS_CONTRIB].done < peer->tx[NB_CLASS_CONTRIB].queued ||
           peer->tx[NB_CLASS_RESULT].done < peer->tx[NB_CLASS_RESULT].queued;
}
