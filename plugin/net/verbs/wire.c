/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The messages between the two ends of a verbs connection. All are little-endian. Parsers take bytes of any
 * origin, read exactly the stated number, and leave the log to their callers.
 *
 * Over the connection's TCP socket, which stays open as long as the connection:
 *
 *     connecting side          accepting side
 *     META ->                  (makes its queue pairs)
 *                              <- META
 *     (queue pairs to RTS)
 *     CONTROL ready ->
 *     ... later, either side, at most one: CONTROL fin or error
 *
 * By RDMA, on queue pair 0 of the receiver: a grant, written into the clear-to-send table in the sender's
 * memory by WRITE with immediate. The immediate wakes a sender that sleeps.
 *
 * By RDMA, on all queue pairs of the sender: a message's bytes, by WRITE, in one piece a queue pair. Where
 * the grant has two parts the head goes first, by a WRITE of its own on the first piece's queue pair. Each
 * piece ends with an immediate. The length of the message is the sum of its pieces' completions. Adaptive
 * routing and very large messages write pieces without immediate first. Then the first piece's immediate
 * write puts the length into the receiver's table of lengths.
 */
#include "net/verbs/internal.h"

#include <errno.h>
#include <string.h>

#include "base/bytes.h"

#define META_MAGIC 0x4d56424eu    /* "NBVM" */
#define CONTROL_MAGIC 0x4356424eu /* "NBVC" */

/* Copy a peer's text for the log: printable, and terminated. */
static void get_text(char *to, const uint8_t *from, size_t cap)
{
    size_t i;

    for (i = 0; i + 1 < cap && from[i]; i++)
        to[i] = from[i] >= ' ' && from[i] < 127 ? (char)from[i] : '?';
    to[i] = '\0';
}

void nb_verbs_meta_put(uint8_t b[NB_VERBS_META_BYTES], const struct nb_verbs_meta *m)
{
    memset(b, 0, NB_VERBS_META_BYTES);
    nb_put32(b, META_MAGIC);
    nb_put32(b + 4, m->version);
    nb_put32(b + 8, (uint32_t)m->error);
    nb_put32(b + 12, m->nqps);
    b[16] = m->link;
    b[17] = m->mtu;
    b[18] = m->sl;
    b[19] = m->tc;
    nb_put16(b + 20, m->lid);
    nb_put32(b + 24, m->depth);
    nb_put32(b + 28, m->rkey);
    memcpy(b + 32, m->gid, 16);
    nb_put64(b + 48, m->addr);
    memcpy(b + 64, m->device, strnlen(m->device, sizeof(m->device) - 1));
    memcpy(b + 96, m->reason, strnlen(m->reason, sizeof(m->reason) - 1));
    for (unsigned i = 0; i < m->nqps && i < NB_VERBS_MAX_QPS; i++)
        nb_put32(b + 192 + 4 * i, m->qpn[i]);
}

int nb_verbs_meta_get(const uint8_t b[NB_VERBS_META_BYTES], struct nb_verbs_meta *m)
{
    memset(m, 0, sizeof(*m));
    if (nb_get32(b) != META_MAGIC)
        return -EINVAL;
    m->version = nb_get32(b + 4);
    if (m->version != NB_VERBS_WIRE_VERSION)
        return -EPROTO;
    m->error = (int)nb_get32(b + 8);
    m->nqps = nb_get32(b + 12);
    m->link = b[16];
    m->mtu = b[17];
    m->sl = b[18];
    m->tc = b[19];
    m->lid = nb_get16(b + 20);
    m->depth = nb_get32(b + 24);
    m->rkey = nb_get32(b + 28);
    memcpy(m->gid, b + 32, 16);
    m->addr = nb_get64(b + 48);
    get_text(m->device, b + 64, sizeof(m->device));
    get_text(m->reason, b + 96, sizeof(m->reason));
    if (m->error)
        return m->error > 0 && m->error < 4096 ? 0 : -EBADMSG;
    if (m->nqps < 1 || m->nqps > NB_VERBS_MAX_QPS || m->link < 1 || m->link > 2 || m->mtu < 1 || m->mtu > 5 ||
        m->depth < 1)
        return -EBADMSG;
    for (unsigned i = 0; i < m->nqps; i++) {
        m->qpn[i] = nb_get32(b + 192 + 4 * i);
        if (m->qpn[i] > 0xffffff)
            return -EBADMSG;
    }
    return 0;
}

void nb_verbs_control_put(uint8_t b[NB_VERBS_CONTROL_BYTES], const struct nb_verbs_control *c)
{
    memset(b, 0, NB_VERBS_CONTROL_BYTES);
    nb_put32(b, CONTROL_MAGIC);
    nb_put16(b + 4, c->kind);
    nb_put32(b + 8, (uint32_t)c->error);
    nb_put64(b + 16, c->count);
    memcpy(b + 24, c->reason, strnlen(c->reason, sizeof(c->reason) - 1));
}

int nb_verbs_control_get(const uint8_t b[NB_VERBS_CONTROL_BYTES], struct nb_verbs_control *c)
{
    memset(c, 0, sizeof(*c));
    if (nb_get32(b) != CONTROL_MAGIC)
        return -EPROTO;
    c->kind = nb_get16(b + 4);
    c->error = (int)nb_get32(b + 8);
    c->count = nb_get64(b + 16);
    get_text(c->reason, b + 24, sizeof(c->reason));
    if (c->kind < NB_VERBS_READY || c->kind > NB_VERBS_ERROR)
        return -EPROTO;
    if ((c->kind == NB_VERBS_ERROR) != (c->error > 0 && c->error < 4096))
        return -EPROTO;
    return 0;
}

void nb_verbs_cts_put(uint8_t *b, const struct nb_verbs_cts *c)
{
    nb_put32(b, c->seq);
    nb_put32(b + 4, (uint32_t)c->n);
    nb_put32(b + 8, c->parts);
    nb_put32(b + 12, 0);
    for (int i = 0; i < c->n; i++) {
        uint8_t *e = b + NB_VERBS_GRANT_USED(i);

        nb_put64(e, c->entry[i].addr);
        nb_put64(e + 8, c->entry[i].size);
        nb_put32(e + 16, c->entry[i].rkey);
        nb_put32(e + 20, (uint32_t)c->entry[i].tag);
    }
}

int nb_verbs_cts_get(const uint8_t *b, struct nb_verbs_cts *c)
{
    c->seq = nb_get32(b);
    c->n = (int)nb_get32(b + 4);
    c->parts = nb_get32(b + 8) == 1;
    if (c->n < 1 || c->n > NB_NET_MAX_RECVS || nb_get32(b + 8) > 1 || (c->parts && c->n != 2))
        return -EPROTO;
    for (int i = 0; i < c->n; i++) {
        const uint8_t *e = b + NB_VERBS_GRANT_USED(i);

        c->entry[i].addr = nb_get64(e);
        c->entry[i].size = nb_get64(e + 8);
        c->entry[i].rkey = nb_get32(e + 16);
        c->entry[i].tag = (int32_t)nb_get32(e + 20);
    }
    return 0;
}
