/* SPDX-License-Identifier: Apache-2.0 */
/* Cursors over windows; see cursor.h. */
#include "coll/cursor.h"

#include "coll/comm.h"

struct nb_coll_req *nb_cursor_window(const struct nb_coll_comm *comm, struct nb_cursor *c)
{
    struct nb_coll_req *win;

    if (c->seq < comm->oldest) { /* its object may be used again */
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
