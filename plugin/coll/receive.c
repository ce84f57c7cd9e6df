/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiving half: looks at the oldest message of every peer and does what it allows. Blocks of an
 * all-gather (take_gather.c) and results of an all-reduce are delivered as they come, for each peer on its
 * own; a sum (reduce.c) waits for the messages of all.
 */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "coll/comm.h"
#include "coll/forward.h"
#include "coll/result.h"
#include "coll/task.h"

/* ---- results ----------------------------------------------------------------------------- */

static int receive_result(struct nb_coll_comm *comm, struct nb_peer *peer)
{
    struct nb_rx *rx = &peer->rx[NB_CLASS_RESULT];
    struct nb_msg m;
    struct nb_segment segment, next;
    struct nb_coll_req *win;
    int ret;

    if (rx->unit)
        return 0; /* all that comes on it is forwarded, too (forward.c) */
    if (!nb_rx_head(comm, peer, NB_CLASS_RESULT))
        return 0;
    m = rx->head;
    if (m.func != NB_FUNC_ALL_REDUCE && !(m.flags & NB_MSG_ROUTE))
        return nb_comm_error(comm, -EPROTO, "%s sent a result of %s %llu", peer->name, nb_func_name(m.func),
                             (unsigned long long)m.opno);
    win = nb_find_window(comm, peer, &m, &peer->results.seq, &segment);
    if (!win)
        return 0;
    if (m.func != NB_FUNC_ALL_GATHER && nb_msg_check_type(comm, peer, win->op, &m))
        return -1;
    if (peer->results.win != peer->results.seq) {
        peer->results.win = peer->results.seq;
        peer->results.off = 0;
    }
    if (!win->op->schedule->next_result(comm, win, peer->rank, peer->results.off, &next) ||
        next.off != segment.off)
        return nb_comm_error(comm, -EPROTO, "%s sent a result of %s %llu at %llu that is not its next",
                             peer->name, nb_func_name(m.func), (unsigned long long)m.opno,
                             (unsigned long long)m.offset);
    if (m.func == NB_FUNC_ALL_GATHER) {
        struct nb_peer *owner = &comm->peer[segment.owner];
        ret = nb_gather_can_take(comm, owner, &m) ? nb_gather_take(comm, owner, peer, win, &segment, rx) : 0;
    } else {
        ret = m.func == NB_FUNC_REDUCE_SCATTER ? nb_take_sum(comm, peer, win, &segment)
                                               : nb_deliver(comm, peer, win, &segment);
    }
    if (ret > 0)
        peer->results.off = segment.off + segment.len;
    return ret;
}

/* Sums and forwards, a few at a time: arrivals and departures of other segments must not wait for a long row
 * of them. */
static int work_for_others(struct nb_coll_comm *comm)
{
    const uint64_t at = comm->reduce.cursor.seq + comm->forward.cursor.seq;
    int moved = 0, ret = 0;

    for (int i = 0; i < 4 && (ret = nb_reduce_next(comm)) > 0; i++)
        moved = 1;
    for (int i = 0; i < 4 && ret >= 0 && (ret = nb_forward_next(comm)) > 0; i++)
        moved = 1;
    /* One of the two may have waited for the other to pass a window. */
    return ret < 0 ? ret : moved | (at != comm->reduce.cursor.seq + comm->forward.cursor.seq);
}

int nb_receive_progress(struct nb_coll_comm *comm)
{
    int moved = 0, ret;

    for (int i = 0; i < comm->nneighbors; i++) {
        while ((ret = nb_gather_receive(comm, comm->neighbors[i])) > 0)
            moved = 1;
        if (ret < 0)
            return ret;
        while ((ret = receive_result(comm, comm->neighbors[i])) > 0)
            moved = 1;
        if (ret < 0)
            return ret;
    }
    ret = work_for_others(comm);
    return ret < 0 ? ret : moved | ret;
}
