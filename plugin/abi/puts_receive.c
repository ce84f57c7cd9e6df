/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of other ranks: each connection's heads and bytes, one after the other. See puts.h. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "abi/puts_internal.h"
#include "base/bytes.h"
#include "device/cuda/cuda.h"

#define ACCEPT_EVERY 64u /* calls of nb_puts_receive */

static void get_head(const uint8_t *b, struct nb_puts_head *h)
{
    *h = (struct nb_puts_head){.kind = nb_get32(b),
                               .to = nb_get32(b + 4),
                               .at = nb_get64(b + 8),
                               .size = nb_get64(b + 16),
                               .signal = nb_get32(b + 24),
                               .get = nb_get32(b + 28),
                               .signal_at = nb_get64(b + 32),
                               .add = nb_get64(b + 40),
                               .local = nb_get32(b + 48),
                               .local_at = nb_get64(b + 56)};
}

static int rank_of(const struct nb_puts_in *in)
{
    return in->peer->rank;
}

/* ---- Heads ------------------------------------------------------------------------------------------ */

/* Note a rank's hello, and connect with the rank in the other direction. */
static void greet(struct nb_puts *p, struct nb_puts_in *in)
{
    const struct nb_puts_head *h = &in->head;

    if (h->kind != NB_PUTS_HELLO || h->to != NB_PUTS_VERSION || h->size != (uint64_t)p->nranks ||
        h->local >= (uint32_t)p->nranks || (int)h->local == p->rank) {
        nb_puts_fail(p, -EPROTO, "a connection began with another protocol or version");
        return;
    }
    in->peer = &p->peer[h->local];
    nb_puts_activate(p, in->peer);
}

static void part(struct nb_puts *p, struct nb_puts_in *in)
{
    struct nb_puts_peer *peer = in->peer;

    peer->left = true;
    nb_puts_close_in(p, in);
    if (peer->first || peer->count)
        nb_puts_fail(p, -ECONNRESET, "rank %d has left, with operations under way to it", peer->rank);
}

/* Begin the answer to a get. */
static void answer(struct nb_puts *p, struct nb_puts_in *in)
{
    const struct nb_puts_head *h = &in->head;
    struct nb_puts_request *r = nb_puts_new_request(p);

    if (!r) {
        nb_puts_fail(p, -ENOMEM, "no memory for an answer");
        return;
    }
    r->answer = true;
    r->from = in->to;
    r->from_at = h->at;
    r->head = (struct nb_puts_head){
        .kind = NB_PUTS_BYTES, .to = h->local, .at = h->local_at, .size = h->size, .get = h->get};
    nb_puts_queue(p, in->peer, r);
}

static void end_get(struct nb_puts *p, const struct nb_puts_in *in)
{
    for (struct nb_puts_request *r = p->requests; r; r = r->next)
        if (r->head.kind == NB_PUTS_GET && r->head.get == in->head.get && r->peer == in->peer) {
            r->done = true;
            return;
        }
    nb_puts_fail(p, -EPROTO, "rank %d answers a get that was not made", rank_of(in));
}

/* Find a registration that a head names. Return NULL while it is still to be made, and on an error. */
static const struct nb_puts_memory *find(struct nb_puts *p, const struct nb_puts_in *in, uint32_t number,
                                         uint64_t at, uint64_t size)
{
    const struct nb_puts_memory *m = number < p->nmemory ? p->memory[number] : NULL;

    if (!m)
        return NULL;
    if (m->gone)
        nb_puts_fail(p, -EPROTO, "rank %d has an operation for memory that was deregistered here",
                     rank_of(in));
    else if (!nb_puts_inside(m, at, size))
        nb_puts_fail(p, -EPROTO,
                     "rank %d has an operation for %" PRIu64 " bytes at %" PRIu64 " of %zu registered ones",
                     rank_of(in), size, at, m->size);
    return p->err ? NULL : m;
}

/* The bytes of a head are in place: add to its signal. Return false while the signal's memory is still to be
 * registered, and on an error. */
static bool signalled(struct nb_puts *p, struct nb_puts_in *in)
{
    const struct nb_puts_head *h = &in->head;

    if (h->signal) {
        const struct nb_puts_memory *m = find(p, in, h->signal - 1, h->signal_at, sizeof(uint64_t));
        if (!m)
            return false;
        if (h->signal_at % sizeof(uint64_t)) {
            nb_puts_fail(p, -EPROTO, "rank %d has a signal at an odd offset", rank_of(in));
            return false;
        }
        nb_puts_signal(p, m, h->signal_at, h->add);
    }
    if (h->get)
        end_get(p, in);
    return !p->err;
}

/* Take the bytes that follow a head in its message. */
static void take_inlined(struct nb_puts *p, struct nb_puts_in *in, size_t size)
{
    const uint8_t *from = in->buffer + NB_PUTS_HEAD_BYTES;

    if (in->to->gpu) {
        memcpy(p->scratch, from, size);
        from = p->scratch;
    }
    nb_puts_copy(p, in->to->gpu, in->to->data + in->head.at, from, size);
}

/* Receive the bytes in the next message. Return false when that has to wait. */
static bool expect(struct nb_puts *p, struct nb_puts_in *in)
{
    const size_t size = in->head.size;
    void *land = in->to->gpu ? nb_puts_pinned(p, &in->pinned) : in->to->data + in->head.at, *none = NULL;
    const int tag = nb_puts_tag(&in->head);
    int ret;

    if (!land)
        return false;
    ret = nb_puts_ops(p)->irecv(in->comm, 1, &land, &size, &tag, &none, &in->request);
    if (ret)
        nb_puts_fail(p, ret, "receiving from rank %d failed: %s", rank_of(in), strerror(-ret));
    if (ret || !in->request)
        return false;
    in->state = NB_PUTS_WANT_BYTES;
    return true;
}

/* Treat a head that has arrived, as far as that is possible now. Return false when it has to wait, when its
 * connection is over, and on an error. */
static bool treat(struct nb_puts *p, struct nb_puts_in *in)
{
    const struct nb_puts_head *h = &in->head;
    const size_t inlined = in->got - NB_PUTS_HEAD_BYTES;

    if (!in->peer) {
        greet(p, in);
        in->state = NB_PUTS_WANT_HEAD;
        return !p->err;
    }
    if (h->kind == NB_PUTS_FAREWELL) {
        part(p, in);
        return false;
    }
    if ((h->kind != NB_PUTS_BYTES && h->kind != NB_PUTS_GET) ||
        (h->kind == NB_PUTS_BYTES && h->size > NB_PUTS_PIECE) || (inlined && inlined != h->size)) {
        nb_puts_fail(p, -EPROTO, "rank %d sent a malformed head", rank_of(in));
        return false;
    }
    in->to = h->size ? find(p, in, h->to, h->at, h->size) : NULL;
    if (h->size && !in->to)
        return false;
    if (h->kind == NB_PUTS_GET) {
        answer(p, in);
    } else if (h->size && !inlined) {
        return expect(p, in);
    } else {
        if (h->signal > p->nmemory)
            return false;
        if (inlined)
            take_inlined(p, in, inlined);
        if (p->err || !signalled(p, in))
            return false;
    }
    in->state = NB_PUTS_WANT_HEAD;
    return !p->err;
}

/* ---- Messages --------------------------------------------------------------------------------------- */

/* Treat the end of a connection from a rank. Before its hello it is a stranger's. */
static void ended(struct nb_puts *p, struct nb_puts_in *in, int err)
{
    if (in->peer && !in->peer->left)
        nb_puts_fail(p, err, "rank %d is lost: %s%s", rank_of(in), strerror(-err), nb_net_hint(-err));
    else
        nb_puts_close_in(p, in);
}

/* Return whether the message that is awaited has come, and its *size. */
static bool arrived(struct nb_puts *p, struct nb_puts_in *in, size_t *size)
{
    int done = 0, ret = nb_puts_ops(p)->test(in->request, &done, size);

    if (ret)
        ended(p, in, ret);
    if (ret || !done)
        return false;
    in->request = NULL;
    return true;
}

static bool receive_head(struct nb_puts *p, struct nb_puts_in *in)
{
    const size_t room = sizeof(in->buffer);
    const int tag = NB_PUTS_HEAD_TAG;
    void *land = in->buffer, *none = NULL;
    int ret;

    if (!in->request) {
        ret = nb_puts_ops(p)->irecv(in->comm, 1, &land, &room, &tag, &none, &in->request);
        if (ret)
            ended(p, in, ret);
        if (ret || !in->request)
            return false;
    }
    if (!arrived(p, in, &in->got))
        return false;
    if (in->got < NB_PUTS_HEAD_BYTES) {
        nb_puts_fail(p, -EPROTO, "a head has %zu bytes", in->got);
        return false;
    }
    get_head(in->buffer, &in->head);
    in->state = NB_PUTS_WANT_PLACE;
    return true;
}

static bool receive_bytes(struct nb_puts *p, struct nb_puts_in *in)
{
    const struct nb_puts_head *h = &in->head;
    size_t size;

    if (in->request) { /* otherwise only the signal is still to come */
        if (!arrived(p, in, &size))
            return false;
        if (size != h->size) {
            nb_puts_fail(p, -EPROTO, "rank %d sent %zu bytes behind a head for %" PRIu64, rank_of(in), size,
                         h->size);
            return false;
        }
        if (in->to->gpu)
            nb_puts_copy(p, true, in->to->data + h->at, in->pinned, size);
    }
    if (p->err || !signalled(p, in))
        return false;
    in->state = NB_PUTS_WANT_HEAD;
    return true;
}

static void receive(struct nb_puts *p, struct nb_puts_in *in)
{
    bool more = true;

    while (more && in->comm && !p->err)
        switch (in->state) {
        case NB_PUTS_WANT_HEAD: more = receive_head(p, in); break;
        case NB_PUTS_WANT_PLACE: more = treat(p, in); break;
        case NB_PUTS_WANT_BYTES: more = receive_bytes(p, in); break;
        }
}

static void accept_one(struct nb_puts *p)
{
    void *comm = NULL;
    struct nb_puts_in *in;
    int ret = nb_puts_ops(p)->accept(p->listen, &comm);

    if (ret)
        nb_puts_fail(p, ret, "accepting connections failed: %s", strerror(-ret));
    if (ret || !comm)
        return;
    in = calloc(1, sizeof(*in));
    if (!in) {
        nb_puts_ops(p)->close_recv(comm);
        nb_puts_fail(p, -ENOMEM, "no memory for a connection");
        return;
    }
    in->comm = comm;
    in->next = p->ins;
    p->ins = in;
}

void nb_puts_receive(struct nb_puts *p)
{
    if (p->turn++ % ACCEPT_EVERY == 0 && !p->err)
        accept_one(p);
    for (struct nb_puts_in *in = p->ins; in && !p->err; in = in->next)
        receive(p, in);
}

void nb_puts_close_in(struct nb_puts *p, struct nb_puts_in *in)
{
    if (in->comm)
        nb_puts_ops(p)->close_recv(in->comm);
    if (in->pinned)
        nb_copier_unpin(p->copier, in->pinned);
    in->comm = NULL;
    in->pinned = NULL;
}
