/* SPDX-License-Identifier: Apache-2.0 */
/* Headers and check values of data messages: write them, and compare them with windows. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "codec/row.h"
#include "coll/flow/internal.h"

/* ---- messages against operations --------------------------------------------------------------------- */

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

/* ---- received messages ------------------------------------------------------------------------------- */

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
            continue; /* done, perhaps in use again */
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

/* ---- check values of payloads ------------------------------------------------------------------------ */

static bool is_off(const struct nb_coll_comm *comm)
{
    return comm->ctx->params->payload_check == NB_PAYLOAD_CHECK_OFF || !comm->device->ops->check;
}

/* Return the check value of a message's payload. Count the time as the codec's, unless no codec worked. */
static uint64_t value_of(struct nb_coll_comm *comm, const struct nb_msg *msg, const uint8_t *body)
{
    const int64_t begun = nb_clock_ns(&comm->ctx->clock);
    const uint64_t value = comm->device->ops->check(comm->device, body, msg->coded, NB_PAYLOAD_SEED);

    if (msg->codec != NB_CODEC_RAW)
        comm->stats.worked_ns += (uint64_t)(nb_clock_ns(&comm->ctx->clock) - begun);
    return value;
}

void nb_payload_seal(struct nb_coll_comm *comm, struct nb_msg *msg, const uint8_t *body)
{
    if (is_off(comm) || !msg->coded || nb_msg_header_bytes(msg) != NB_MSG_BYTES ||
        (msg->codec == NB_CODEC_RAW && comm->ctx->params->payload_check == NB_PAYLOAD_CHECK_CODED))
        return;
    msg->flags |= NB_MSG_CHECKED;
    msg->check = value_of(comm, msg, body);
}

/* "all_gather 3, 4096 bytes at 8192, codec raw, from node 1 (a) through node 2 (b) to node 0 (c)" */
static void describe(const struct nb_coll_comm *comm, const struct nb_peer *from, int author,
                     const struct nb_msg *msg, char *text, size_t cap)
{
    const struct nb_peer *writer = &comm->peer[author];
    char host[64] = "";

    if (comm->ctx->host)
        snprintf(host, sizeof(host), "%s", comm->ctx->host);
    else
        gethostname(host, sizeof(host) - 1);
    snprintf(text, cap, "%s %llu, %u bytes at %llu, codec %s, from %s%s%s to node %d (%s)",
             nb_func_name(msg->func), (unsigned long long)msg->opno, msg->bytes,
             (unsigned long long)msg->offset, nb_codec_name((enum nb_codec)msg->codec), writer->name,
             from == writer ? "" : " through ", from == writer ? "" : from->name, comm->rank, host);
}

int nb_payload_damaged(struct nb_coll_comm *comm, const struct nb_peer *from, int author,
                       const struct nb_msg *msg)
{
    char text[384];

    comm->stats.payload_damaged++;
    describe(comm, from, author, msg, text, sizeof(text));
    return nb_comm_error(comm, -EBADMSG, "damaged payload: %s", text);
}

void nb_payload_damage_mended(struct nb_coll_comm *comm, const struct nb_peer *from, int author,
                              const struct nb_msg *msg)
{
    char text[384];

    comm->stats.payload_damaged++;
    describe(comm, from, author, msg, text, sizeof(text));
    NB_WARN("%s: damaged payload, asking for it again: %s", comm->label, text);
}

int nb_payload_verify(struct nb_coll_comm *comm, const struct nb_peer *from, int author,
                      const struct nb_msg *msg, const uint8_t *body)
{
    if (!(msg->flags & NB_MSG_CHECKED) || is_off(comm))
        return 0;
    comm->stats.payload_checked++;
    comm->stats.payload_checked_bytes += msg->coded;
    return value_of(comm, msg, body) == msg->check ? 0 : nb_payload_damaged(comm, from, author, msg);
}

bool nb_payload_compares_kept(const struct nb_coll_comm *comm)
{
    return !is_off(comm);
}
