/* SPDX-License-Identifier: Apache-2.0 */
/* Data messages against operations and windows; see message.h. */
#include "coll/message.h"

#include <errno.h>
#include <string.h>

#include "coll/comm.h"

void nb_count_unit(struct nb_coll_comm *comm, enum nb_func func, const struct nb_msg *msg, size_t len,
                   uint64_t copies)
{
    struct nb_func_stats *s = &comm->stats.func[func];
    s->units += copies;
    s->sent_bytes += msg->bytes * copies;
    s->wire_bytes += len * copies;
    if (msg->codec == NB_CODEC_RAW)
        s->raw_units += copies;
}

void nb_msg_describe(const struct nb_coll_comm *comm, const struct nb_op *op,
                     const struct nb_segment *segment, struct nb_msg *msg)
{
    memset(msg, 0, sizeof(*msg));
    msg->func = (uint8_t)op->func;
    msg->type = (uint8_t)op->type;
    msg->op = (uint8_t)op->redop;
    msg->flags = op->schedule->flags;
    msg->token = comm->token;
    msg->opno = op->opno;
    msg->offset = segment->off;
    msg->bytes = segment->most;
}

/* ---- received messages ------------------------------------------------------------------------------ */

static int ends_before(const struct nb_coll_req *win, const struct nb_msg *m)
{
    return win->op->opno < m->opno || (win->op->opno == m->opno && win->off + win->bytes <= m->offset);
}

int nb_msg_carries(const struct nb_op *op, const struct nb_segment *segment, const struct nb_msg *m)
{
    if (m->offset != segment->off)
        return 0;
    if (op->func != NB_FUNC_ALL_REDUCE)
        return m->bytes == segment->len;
    return m->bytes <= segment->len && m->bytes % op->value == 0;
}

int nb_msg_check_schedule(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_op *op,
                          const struct nb_msg *m)
{
    if ((m->flags & NB_MSG_ROUTE) == op->schedule->flags)
        return 0;
    return nb_comm_error(comm, -EPROTO, "%s sent %s %llu %s, but here its schedule is %s", peer->name,
                         nb_func_name(op->func), (unsigned long long)op->opno,
                         m->flags & NB_MSG_TWO_HOP     ? "in two hops"
                         : m->flags & NB_MSG_TWO_LEVEL ? "in two levels"
                                                       : "in one hop",
                         op->schedule->name);
}

struct nb_coll_req *nb_find_window(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_msg *m,
                                   uint64_t *seq, struct nb_segment *segment)
{
    struct nb_coll_req *win;

    for (;; (*seq)++) {
        if (*seq == comm->begun)
            return NULL;
        if (*seq < comm->oldest)
            continue; /* finished, perhaps used again */
        win = nb_window(comm, *seq);
        if (!ends_before(win, m))
            break;
    }
    if (win->op->opno == m->opno && win->op->func == m->func && nb_msg_check_schedule(comm, peer, win->op, m))
        return NULL;
    if (win->op->opno != m->opno || win->op->func != m->func || m->offset < win->off ||
        !win->op->schedule->segment_at(comm, win, m->offset, segment) ||
        !nb_msg_carries(win->op, segment, m)) {
        nb_comm_error(comm, -EPROTO,
                      "%s sent %s %llu, %u bytes at %llu, which does not fit %s %llu, window of %llu bytes "
                      "at %llu here",
                      peer->name, nb_func_name(m->func), (unsigned long long)m->opno, m->bytes,
                      (unsigned long long)m->offset, nb_func_name(win->op->func),
                      (unsigned long long)win->op->opno, (unsigned long long)win->bytes,
                      (unsigned long long)win->off);
        return NULL;
    }
    return win;
}

int nb_msg_check_type(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_op *op,
                      const struct nb_msg *m)
{
    if (m->type == (uint8_t)op->type && m->op == (uint8_t)op->redop)
        return 0;
    return nb_comm_error(
        comm, -EPROTO, "%s sent %s %llu with type %u and reduction %u, but here it is %d and %d", peer->name,
        nb_func_name(m->func), (unsigned long long)m->opno, m->type, m->op, (int)op->type, (int)op->redop);
}
