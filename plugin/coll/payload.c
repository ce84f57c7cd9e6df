/* SPDX-License-Identifier: Apache-2.0 */
/* Check values of payloads; see payload.h. */
#include "coll/payload.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "codec/row.h"
#include "coll/comm.h"

static bool is_off(const struct nb_coll_comm *comm)
{
    return comm->ctx->params->payload_check == NB_PAYLOAD_CHECK_OFF || !comm->device->ops->check;
}

/* The value, and the time that it takes, which is this processor's work as the codec's is. */
static uint64_t value_of(struct nb_coll_comm *comm, const uint8_t *body, size_t bytes)
{
    const int64_t begun = nb_clock_ns(&comm->ctx->clock);
    const uint64_t value = comm->device->ops->check(comm->device, body, bytes, NB_PAYLOAD_SEED);

    comm->stats.worked_ns += (uint64_t)(nb_clock_ns(&comm->ctx->clock) - begun);
    return value;
}

void nb_payload_seal(struct nb_coll_comm *comm, struct nb_msg *msg, const uint8_t *body)
{
    if (is_off(comm) || !msg->coded || nb_msg_header_bytes(msg) != NB_MSG_BYTES ||
        (msg->codec == NB_CODEC_RAW && comm->ctx->params->payload_check != NB_PAYLOAD_CHECK_ON))
        return;
    msg->flags |= NB_MSG_CHECKED;
    msg->check = value_of(comm, body, msg->coded);
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
    return value_of(comm, body, msg->coded) == msg->check ? 0 : nb_payload_damaged(comm, from, author, msg);
}

bool nb_payload_compares_kept(const struct nb_coll_comm *comm)
{
    return !is_off(comm);
}
