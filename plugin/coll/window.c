/* SPDX-License-Identifier: Apache-2.0 */
/* The account of a window; see window.h. */
#include "coll/window.h"

#include <string.h>

#include "base/clock.h"
#include "coll/comm.h"
#include "coll/pace.h"

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
    /* Before NCCL learns of it: a finished window may be used again at once, but never while an older one is
     * open. */
    while (comm->oldest < comm->begun) {
        const struct nb_coll_req *first = nb_window(comm, comm->oldest);
        if (first->rx_left || first->tx_left || first->tasks_in_flight)
            break;
        if (first->op->schedule->finished)
            first->op->schedule->finished(comm, first);
        nb_witness_passed(comm, first);
        comm->oldest++;
    }
    nb_witness_advance(comm);
    if (comm->oldest == comm->begun)
        nb_pace_idle(comm);
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
    win->tasks_in_flight--;
    win->rx_left -= bytes;
    finish(comm, win);
}
