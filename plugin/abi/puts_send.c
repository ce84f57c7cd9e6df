/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on their way to other ranks: pieces, connections. See puts.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "abi/puts_internal.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "device/cuda/cuda.h"

#define CHECK_EVERY_MS 500 /* for the end of an idle connection */
#define ROUNDS 4           /* of pieces in a call, before other ranks have their turn */

/* ---- Operations ------------------------------------------------------------------------------------- */

struct nb_puts_request *nb_puts_new_request(struct nb_puts *p)
{
    struct nb_puts_request *r = calloc(1, sizeof(*r));

    if (!r) {
        NB_WARN("puts: out of memory");
        return NULL;
    }
    r->next = p->requests;
    r->link = &p->requests;
    if (r->next)
        r->next->link = &r->next;
    p->requests = r;
    return r;
}

void nb_puts_free_request(struct nb_puts_request *r)
{
    *r->link = r->next;
    if (r->next)
        r->next->link = r->link;
    free(r);
}

void nb_puts_activate(struct nb_puts *p, struct nb_puts_peer *peer)
{
    if (peer->active)
        return;
    peer->active = true;
    peer->next = p->active;
    p->active = peer;
}

void nb_puts_queue(struct nb_puts *p, struct nb_puts_peer *peer, struct nb_puts_request *r)
{
    r->peer = peer;
    *peer->last = r;
    peer->last = &r->queued;
    nb_puts_activate(p, peer);
}

/* ---- Pieces ----------------------------------------------------------------------------------------- */

static void put_head(uint8_t *b, const struct nb_puts_head *h)
{
    memset(b, 0, NB_PUTS_HEAD_BYTES);
    nb_put32(b, h->kind);
    nb_put32(b + 4, h->to);
    nb_put64(b + 8, h->at);
    nb_put64(b + 16, h->size);
    nb_put32(b + 24, h->signal);
    nb_put32(b + 28, h->get);
    nb_put64(b + 32, h->signal_at);
    nb_put64(b + 40, h->add);
    nb_put32(b + 48, h->local);
    nb_put64(b + 56, h->local_at);
}

/* Take the next free piece of the ring, with its head. Return NULL when all are under way. */
static struct nb_puts_piece *new_piece(struct nb_puts_peer *peer, const struct nb_puts_head *head,
                                       struct nb_puts_request *op)
{
    struct nb_puts_piece *piece;

    if (peer->count == NB_PUTS_FLYING)
        return NULL;
    piece = &peer->piece[(peer->oldest + peer->count++) % NB_PUTS_FLYING];
    piece->op = op;
    piece->size = 0;
    piece->left = 1;
    piece->head_size = NB_PUTS_HEAD_BYTES;
    put_head(piece->head, head);
    return piece;
}

/* Put bytes into a piece: into the head's message, or a message of their own. */
static void load(struct nb_puts *p, struct nb_puts_piece *piece, const struct nb_puts_head *head)
{
    struct nb_puts_request *op = piece->op;
    const uint8_t *from = op->from->data + op->from_at + op->sent;

    op->sent += head->size;
    if (op->head.size <= NB_PUTS_INLINE) {
        if (op->from->gpu) {
            nb_puts_copy(p, true, p->scratch, from, head->size);
            from = p->scratch;
        }
        memcpy(piece->head + NB_PUTS_HEAD_BYTES, from, head->size);
        piece->head_size += head->size;
        return;
    }
    if (op->from->gpu) {
        if (!nb_puts_pinned(p, &piece->pinned))
            return;
        nb_puts_copy(p, true, piece->pinned, from, head->size);
        from = piece->pinned;
    }
    piece->data = from;
    piece->size = head->size;
    piece->tag = nb_puts_tag(head);
    piece->left = 2;
}

/* Make the next piece of the peer's oldest operation. Return false when there is none, or no room. */
static bool next_piece(struct nb_puts *p, struct nb_puts_peer *peer)
{
    struct nb_puts_request *op = peer->first;
    struct nb_puts_piece *piece;
    struct nb_puts_head head;

    if (!op || peer->count == NB_PUTS_FLYING || p->err)
        return false;
    head = op->head;
    op->issued = true;
    if (head.kind == NB_PUTS_BYTES) {
        const size_t rest = op->head.size - op->sent;
        head.at += op->sent;
        if (rest > NB_PUTS_PIECE) {
            head.size = NB_PUTS_PIECE;
            head.signal = head.get = 0; /* the last piece has them */
            op->issued = false;
        } else {
            head.size = rest;
        }
    }
    piece = new_piece(peer, &head, op);
    if (head.kind == NB_PUTS_BYTES && head.size)
        load(p, piece, &head);
    op->flying++;
    if (op->issued) {
        peer->first = op->queued;
        if (!peer->first)
            peer->last = &peer->first;
    }
    return !p->err;
}

/* ---- The connection --------------------------------------------------------------------------------- */

/* Treat the end of a connection to a rank: a failure, unless the rank's farewell comes in time. */
static void ended(struct nb_puts *p, struct nb_puts_peer *peer, int err)
{
    const int64_t now = nb_clock_ms(&p->ctx->clock);

    if (p->closing)
        peer->left = true;
    if (peer->left)
        return;
    if (!peer->lost_ms)
        peer->lost_ms = now ? now : 1;
    if (peer->first || peer->count || now - peer->lost_ms > NB_PUTS_GRACE_MS)
        nb_puts_fail(p, err, "rank %d is lost: %s%s", peer->rank, strerror(-err), nb_net_hint(-err));
}

static void connect_to(struct nb_puts *p, struct nb_puts_peer *peer)
{
    const struct nb_net_conn_cfg cfg = {.traffic_class = p->traffic_class, .deltas = NB_DELTAS_BY_TAG};
    const struct nb_puts_head hello = {.kind = NB_PUTS_HELLO,
                                       .to = NB_PUTS_VERSION,
                                       .local = (uint32_t)p->rank,
                                       .size = (uint64_t)p->nranks};
    int ret;

    if (!peer->piece)
        peer->piece = calloc(NB_PUTS_FLYING, sizeof(*peer->piece));
    if (!peer->piece) {
        nb_puts_fail(p, -ENOMEM, "no memory for a connection to rank %d", peer->rank);
        return;
    }
    if (peer->lost_ms) {
        ended(p, peer, -ECONNRESET);
        return;
    }
    ret = nb_puts_ops(p)->connect(p->ctx->net, p->dev, &cfg, peer->handle, &peer->out);
    if (ret)
        ended(p, peer, ret);
    else if (peer->out)
        new_piece(peer, &hello, NULL);
}

/* Hand a message to the transport. Return false when that has to wait. */
static bool hand_over(struct nb_puts *p, struct nb_puts_peer *peer, const void *data, size_t size, int tag,
                      void **request)
{
    const int ret = nb_puts_ops(p)->isend(peer->out, data, size, tag, NULL, request);

    if (ret)
        ended(p, peer, ret);
    return !ret && *request;
}

static void send_pieces(struct nb_puts *p, struct nb_puts_peer *peer)
{
    for (unsigned i = 0; i < peer->count; i++) {
        struct nb_puts_piece *piece = &peer->piece[(peer->oldest + i) % NB_PUTS_FLYING];

        if (piece->left == (piece->size ? 2u : 1u)) {
            if (!hand_over(p, peer, piece->head, piece->head_size, NB_PUTS_HEAD_TAG, &piece->head_request))
                return;
            piece->left--;
        }
        if (piece->left) {
            if (!hand_over(p, peer, piece->data, piece->size, piece->tag, &piece->data_request))
                return;
            piece->left--;
        }
    }
}

/* Return whether a message has been sent. */
static bool sent(struct nb_puts *p, struct nb_puts_peer *peer, void **request)
{
    int done = 0, ret;

    if (!*request)
        return true;
    ret = nb_puts_ops(p)->test(*request, &done, NULL);
    if (ret)
        ended(p, peer, ret);
    if (ret || !done)
        return false;
    *request = NULL;
    return true;
}

static void reap(struct nb_puts *p, struct nb_puts_peer *peer)
{
    while (peer->count && !p->err) {
        struct nb_puts_piece *piece = &peer->piece[peer->oldest];
        struct nb_puts_request *op = piece->op;

        if (piece->left || !sent(p, peer, &piece->head_request) || !sent(p, peer, &piece->data_request))
            return;
        peer->oldest = (peer->oldest + 1) % NB_PUTS_FLYING;
        peer->count--;
        if (!op || --op->flying || !op->issued)
            continue;
        op->done |= op->head.kind == NB_PUTS_BYTES; /* a get ends with its bytes */
        if (op->answer)
            nb_puts_free_request(op);
    }
}

/* Look now and then whether an idle connection has ended. */
static void check_idle(struct nb_puts *p, struct nb_puts_peer *peer)
{
    const int64_t now = nb_clock_ms(&p->ctx->clock);
    int ret;

    if (now - peer->checked_ms < CHECK_EVERY_MS || !nb_puts_ops(p)->lost)
        return;
    peer->checked_ms = now;
    ret = nb_puts_ops(p)->lost(peer->out);
    if (ret)
        ended(p, peer, ret);
}

void nb_puts_send(struct nb_puts *p, struct nb_puts_peer *peer)
{
    bool more = true;

    if (peer->left) {
        if (peer->first && !p->closing)
            nb_puts_fail(p, -ECONNRESET, "rank %d has left, with operations under way to it", peer->rank);
        return;
    }
    if (!peer->out)
        connect_to(p, peer);
    if (!peer->out || p->err)
        return;
    for (int i = 0; i < ROUNDS && more && !p->err; i++) {
        reap(p, peer);
        more = false;
        while (next_piece(p, peer))
            more = true;
        send_pieces(p, peer);
    }
    if (!peer->count && !p->err)
        check_idle(p, peer);
}

bool nb_puts_part(struct nb_puts *p, struct nb_puts_peer *peer, bool *said)
{
    const struct nb_puts_head farewell = {.kind = NB_PUTS_FAREWELL};

    nb_puts_send(p, peer);
    if (peer->out && !peer->count && nb_puts_ops(p)->lost && nb_puts_ops(p)->lost(peer->out))
        peer->left = true; /* it was the first to leave */
    if (!peer->left && peer->out && !*said && new_piece(peer, &farewell, NULL)) {
        *said = true;
        nb_puts_send(p, peer);
    }
    return peer->left || (*said && !peer->count);
}

void nb_puts_close_peer(struct nb_puts *p, struct nb_puts_peer *peer)
{
    if (peer->out)
        nb_puts_ops(p)->close_send(peer->out);
    else if (nb_puts_ops(p)->abandon)
        nb_puts_ops(p)->abandon(p->ctx->net, peer->handle);
    for (unsigned i = 0; peer->piece && i < NB_PUTS_FLYING; i++)
        if (peer->piece[i].pinned)
            nb_copier_unpin(p->copier, peer->piece[i].pinned);
    free(peer->piece);
    peer->piece = NULL;
    peer->out = NULL;
    peer->count = 0;
    peer->left = true;
}
