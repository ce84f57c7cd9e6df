/* SPDX-License-Identifier: Apache-2.0 */
/* Whom the oldest unfinished window waits for; see late.h. */
#include "coll/late.h"

#include <stdio.h>

#include "coll/comm.h"
#include "coll/forward.h"

/* The oldest unfinished window needs `peer`'s values for a sum, and they have not arrived. */
static bool misses_values(const struct nb_coll_comm *comm, const struct nb_coll_req *win,
                          const struct nb_peer *peer)
{
    const struct nb_rx *rx = &peer->rx[NB_CLASS_CONTRIB];
    const struct nb_schedule_ops *s = win->op->schedule;
    struct nb_segment segment;

    return nb_cursor_reached(comm, &comm->reduce.cursor) == win->seq && rx->taken == rx->arrived &&
           s->next_reduce(comm, win, nb_cursor_place(&comm->reduce.cursor, win), &segment) &&
           s->contributes(comm, &segment, peer->rank);
}

/* Likewise a result of the peer's. */
static bool misses_result(const struct nb_coll_comm *comm, const struct nb_coll_req *win,
                          const struct nb_peer *peer)
{
    const struct nb_rx *rx = &peer->rx[NB_CLASS_RESULT];
    struct nb_segment segment;
    uint64_t from =
        peer->results.seq == win->seq && peer->results.win == win->seq ? peer->results.off : win->off;

    return peer->results.seq <= win->seq && rx->taken == rx->arrived &&
           win->op->schedule->next_result(comm, win, peer->rank, from, &segment);
}

bool nb_late_misses(const struct nb_coll_comm *comm, const struct nb_peer *peer)
{
    const struct nb_coll_req *win = nb_window(comm, comm->oldest);
    const struct nb_schedule_ops *s = win->op->schedule;

    return peer->raw.waiting || (s->waits_for && s->waits_for(comm, win, peer)) ||
           misses_values(comm, win, peer) || nb_forward_waits_for(comm, win, peer) ||
           misses_result(comm, win, peer);
}

void nb_late_names(const struct nb_coll_comm *comm, char *buf, size_t cap)
{
    size_t at = 0;

    buf[0] = 0;
    for (int i = 0; i < comm->nneighbors && at + 1 < cap; i++)
        if (nb_late_misses(comm, comm->neighbors[i]))
            at += (size_t)snprintf(buf + at, cap - at, "%s%s", at ? ", " : "", comm->neighbors[i]->name);
}
