/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forwarding, for the schedules in which pieces go through other nodes: the message goes on as it came, from
 * the slot in which it arrived, which is free again when the last receiver has taken it, and is delivered
 * here. So a finished window owes nobody anything. The order is that of whose cursor asks for it
 * (two_hop_gather.c, two_level.c).
 */
#include <errno.h>

#include "coll/internal.h"

/* 1: the head of the ring is `piece`; 0: not yet; < 0: something else is there. */
static int has_arrived(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_rx *rx, const struct nb_op *op,
                       const struct nb_piece *piece)
{
    const struct nb_msg *m = &rx->head;

    if (!nb_rx_head(comm, peer, rx == &peer->rx[NB_CLASS_CONTRIB] ? NB_CLASS_CONTRIB : NB_CLASS_RESULT))
        return 0;
    if (m->opno < op->opno && m->func == NB_FUNC_ALL_GATHER && !(m->flags & NB_MSG_WAY))
        return 0; /* an earlier all-gather's block, not delivered yet */
    if (m->opno != op->opno || m->func != op->func || !nb_msg_carries(op, piece, m))
        return nb_comm_error(comm, -EPROTO,
                             "%s sent %s %llu, %u bytes at %llu, codec %u, where %u bytes at %llu of %s %llu are to be "
                             "forwarded",
                             peer->name, nb_func_name(m->func), (unsigned long long)m->opno, m->bytes,
                             (unsigned long long)m->offset, m->codec, piece->len, (unsigned long long)piece->off,
                             nb_func_name(op->func), (unsigned long long)op->opno);
    if (nb_msg_check_schedule(comm, peer, op, m) ||
        (op->func != NB_FUNC_ALL_GATHER && nb_msg_check_type(comm, peer, op, m)))
        return -1;
    return 1;
}

int nb_forwards_to(const struct nb_coll_comm *comm, const struct nb_op *op, const struct nb_piece *piece,
                   const struct nb_peer *peer)
{
    if (nb_grid_same_row(comm->grid, peer->rank, comm->rank))
        return peer->rank != piece->owner;
    return op->func == NB_FUNC_ALL_GATHER && piece->relay == comm->rank;
}

int nb_forward_room(struct nb_coll_comm *comm, const struct nb_op *op, const struct nb_piece *piece)
{
    for (int i = 0; i < comm->nnear; i++) {
        struct nb_peer *peer = comm->near[i];
        if (!nb_forwards_to(comm, op, piece, peer))
            continue;
        if (nb_peer_left(comm, peer, NB_CLASS_RESULT, op))
            return -1;
        if (!nb_tx_buffer(&peer->tx[NB_CLASS_RESULT]))
            return 0;
    }
    return 1;
}

static void count(struct nb_coll_comm *comm, const struct nb_msg *m, size_t len, int copies)
{
    nb_count_unit(comm, m->func, m, len, (uint64_t)copies);
    if (m->func == NB_FUNC_ALL_GATHER && m->codec != NB_CODEC_RAW && m->coded == 0)
        comm->stats.func[NB_FUNC_ALL_GATHER].unchanged_units += (uint64_t)copies;
}

int nb_forward(struct nb_coll_comm *comm, struct nb_coll_req *win, const struct nb_piece *piece, struct nb_peer *from,
               struct nb_rx *rx)
{
    struct nb_peer *owner = &comm->peer[piece->owner];
    struct nb_shared *unit = &rx->unit[nb_rx_at(rx)];
    const struct nb_op *op = win->op;
    struct nb_msg head;
    size_t len;
    int ret = has_arrived(comm, from, rx, op, piece), copies = 0;

    if (ret > 0)
        ret = nb_forward_room(comm, op, piece);
    if (ret <= 0)
        return ret;
    head = rx->head;
    len = rx->len[nb_rx_at(rx)];
    if (head.func == NB_FUNC_ALL_GATHER && !nb_gather_can_take(comm, owner, &head))
        return 0;
    /* The slot is kept by a count of its own while it is taken, which may finish the window. */
    unit->len = len;
    unit->left = 1;
    ret = head.func == NB_FUNC_ALL_GATHER ? nb_gather_take(comm, owner, win, piece, rx)
                                          : nb_deliver(comm, from, win, piece);
    if (ret > 0) {
        for (int i = 0; i < comm->nnear; i++) {
            struct nb_peer *peer = nb_near_behind(comm, i);
            if (!nb_forwards_to(comm, op, piece, peer))
                continue;
            unit->left++;
            copies++;
            nb_tx_forward(&peer->tx[NB_CLASS_RESULT], unit);
        }
        count(comm, &head, len, copies);
    }
    unit->left--;
    return ret;
}
