/* SPDX-License-Identifier: Apache-2.0 */
/* The sending side of a verbs connection, for one thread at a time: queued sends, the receiver's grants, and
 * the writes that carry a send into a grant's memory. */
#include "net/verbs/internal.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

#define WR_BATCH 8 /* work requests posted to a queue pair at once */

#define TABLE_BYTES ((size_t)NB_VERBS_GRANTS * NB_VERBS_GRANT_BYTES)

/* ---- grants ---- */

/* Open a grant that the receiver has written. */
static void open_grant(struct nb_verbs_send *s, uint32_t imm)
{
    int at = (int)(imm & 255);
    struct nb_verbs_open *o = &s->open[at];
    int rc = nb_verbs_cts_get(s->c.mem + (size_t)at * NB_VERBS_GRANT_BYTES, &o->cts);

    if (rc || (o->cts.seq & NB_VERBS_CTS_SEQ_MASK) != imm >> 8 || o->cts.seq != s->cts_seq) {
        nb_verbs_fail(&s->c, -EPROTO, "the peer wrote grant %d with number %u instead of %u", at,
                      rc ? imm >> 8 : o->cts.seq, s->cts_seq);
        return;
    }
    s->cts_seq++;
    o->taken = 0;
    o->next = -1;
    if (s->last >= 0)
        s->open[s->last].next = (int16_t)at;
    else
        s->first = at;
    s->last = at;
    s->retry = true;
}

/* Return the number of messages of a grant. */
static int messages_of(const struct nb_verbs_open *o)
{
    return o->cts.parts ? 1 : o->cts.n;
}

/* Find the first open entry for the tag. Return its grant, and set *prev to the grant before that. */
static int find_entry(const struct nb_verbs_send *s, int32_t tag, int *prev, int *entry)
{
    *prev = -1;
    for (int at = s->first; at >= 0; *prev = at, at = s->open[at].next) {
        const struct nb_verbs_open *o = &s->open[at];

        for (int i = 0; i < messages_of(o); i++) {
            if (o->cts.entry[i].tag == tag && !(o->taken & 1u << i)) {
                *entry = i;
                return at;
            }
        }
    }
    return -1;
}

static void take_entry(struct nb_verbs_send *s, int at, int prev, int entry)
{
    struct nb_verbs_open *o = &s->open[at];

    o->taken |= 1u << entry;
    if (o->taken != (1u << messages_of(o)) - 1)
        return;
    if (prev >= 0)
        s->open[prev].next = o->next;
    else
        s->first = o->next;
    if (s->last == at)
        s->last = prev;
}

/* ---- posting ---- */

/* How a message is cut. */
struct cut {
    unsigned pieces, first_qp;
    size_t chunk;  /* bytes of all pieces but the last */
    bool in_table; /* data first, then a work request with the immediate alone */
    size_t head;   /* bytes that go to a place of their own, ahead of the first piece */
};

/* Return the number of writes for `bytes` bytes. */
static size_t writes(const struct nb_verbs_send *s, size_t bytes)
{
    return (bytes + s->c.dev->max_write - 1) / s->c.dev->max_write;
}

static unsigned piece_requests(const struct nb_verbs_send *s, const struct cut *c, unsigned piece,
                               size_t bytes)
{
    size_t n = writes(s, bytes);

    return (unsigned)((n > 0 ? n : 1) + (c->in_table ? 1 : 0) + (piece == 0 ? writes(s, c->head) : 0));
}

/* Cut `size` bytes behind a head that goes to a place of its own. */
static struct cut cut_message(const struct nb_verbs_send *s, size_t head, size_t size)
{
    size_t n = (size_t)s->c.nqps, align = NB_VERBS_CHUNK_ALIGN;
    struct cut c = {.pieces = 1, .first_qp = s->next_qp, .chunk = size, .head = head};

    if (s->c.hca->conf->split && n > 1 && size > 0) {
        c.chunk = ((size + n - 1) / n + align - 1) / align * align;
        c.pieces = (unsigned)((size + c.chunk - 1) / c.chunk);
    }
    c.in_table = c.chunk > s->c.dev->max_write ||
                 (s->c.dev->adaptive_routing && size > (uint64_t)s->c.hca->conf->ar_threshold);
    return c;
}

static size_t piece_bytes(const struct cut *c, size_t size, unsigned i)
{
    size_t at = c->chunk * i;

    return size - at < c->chunk ? size - at : c->chunk;
}

static bool has_room(const struct nb_verbs_send *s, const struct cut *c, size_t size)
{
    for (unsigned i = 0; i < c->pieces; i++) {
        const struct nb_verbs_qp *q = &s->c.qp[(c->first_qp + i) % (unsigned)s->c.nqps];

        if (q->free < piece_requests(s, c, i, piece_bytes(c, size, i)))
            return false;
    }
    return true;
}

static size_t size_of(const struct nb_verbs_sreq *req)
{
    return req->part[0].size + req->part[1].size;
}

/* Return whether one place holds both parts. */
static bool adjoin(const struct nb_verbs_piece part[2])
{
    return !part[0].size || !part[1].size ||
           (part[0].data + part[0].size == part[1].data && part[0].lkey == part[1].lkey);
}

/* List where `bytes` bytes from byte `at` of the message on lie. Return the number of places. */
static int gather(const struct nb_verbs_sreq *req, size_t at, size_t bytes, struct ibv_sge sge[2])
{
    int n = 0;

    for (int i = 0; i < 2; i++) {
        const struct nb_verbs_piece *p = &req->part[i];
        const size_t skip = at < p->size ? at : p->size;
        const size_t take = bytes < p->size - skip ? bytes : p->size - skip;

        if (take && n && adjoin(req->part))
            sge[0].length += (uint32_t)take;
        else if (take)
            sge[n++] = (struct ibv_sge){
                .addr = (uint64_t)(uintptr_t)p->data + skip, .length = (uint32_t)take, .lkey = p->lkey};
        at -= skip;
        bytes -= take;
    }
    return n;
}

/* Post one piece to one queue pair. `to`: where the bytes behind the head go. */
static int post_piece(struct nb_verbs_send *s, const struct nb_verbs_sreq *req,
                      const struct nb_verbs_cts_entry *to, const struct nb_verbs_cts_entry *head_to,
                      const struct cut *cut, unsigned piece, uint32_t imm, uint64_t grant_entry)
{
    unsigned k = (cut->first_qp + piece) % (unsigned)s->c.nqps, n = 0, total;
    size_t at = cut->chunk * piece, left = piece_bytes(cut, size_of(req) - cut->head, piece);
    size_t headed = piece == 0 ? 0 : cut->head; /* bytes of the head that are posted */
    struct nb_verbs_qp *q = &s->c.qp[k];
    struct ibv_send_wr wr[WR_BATCH];
    struct ibv_sge sge[WR_BATCH][2];
    int rc;

    total = piece_requests(s, cut, piece, left);
    for (unsigned i = 0; i < total; i++) {
        bool last = i + 1 == total, record = last && cut->in_table, head = headed < cut->head;
        size_t rest = head ? cut->head - headed : left;
        size_t bytes = rest < s->c.dev->max_write ? rest : s->c.dev->max_write;

        memset(&wr[n], 0, sizeof(wr[n]));
        wr[n].opcode = last ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
        if (record) {
            /* Write the length with the first piece. The other pieces' immediates travel without data. */
            wr[n].wr.rdma.remote_addr = s->c.peer_meta.addr + grant_entry * sizeof(uint64_t);
            wr[n].wr.rdma.rkey = s->c.peer_meta.rkey;
            sge[n][0] = (struct ibv_sge){.addr = (uint64_t)(uintptr_t)&s->sizes[req->head.index],
                                         .length = sizeof(uint64_t),
                                         .lkey = s->c.mem_mr->lkey};
            wr[n].num_sge = piece == 0;
            s->c.wire += piece == 0 ? sizeof(uint64_t) : 0;
        } else if (head) {
            /* the immediate behind it on this queue pair completes only after it */
            wr[n].wr.rdma.remote_addr = head_to->addr + headed;
            wr[n].wr.rdma.rkey = head_to->rkey;
            wr[n].num_sge = gather(req, headed, bytes, sge[n]);
            headed += bytes;
            s->c.wire += bytes;
        } else {
            wr[n].wr.rdma.remote_addr = to->addr + at;
            wr[n].wr.rdma.rkey = to->rkey;
            wr[n].num_sge = gather(req, cut->head + at, bytes, sge[n]);
            at += bytes;
            left -= bytes;
            s->c.wire += bytes;
        }
        wr[n].sg_list = sge[n];
        if (last) {
            wr[n].imm_data = htonl(imm);
            wr[n].send_flags = IBV_SEND_SIGNALED;
            wr[n].wr_id = NB_VERBS_WR_ID(req->head.index, total, k);
        } else {
            wr[n].wr_id = NB_VERBS_WR_ID(req->head.index, 0, k);
        }
        if (n > 0)
            wr[n - 1].next = &wr[n];
        n++;
        if (n == WR_BATCH || last) {
            rc = nb_verbs_post(&s->c, q, wr, n);
            if (rc)
                return rc;
            n = 0;
        }
    }
    return 0;
}

static int post_message(struct nb_verbs_send *s, struct nb_verbs_sreq *req, int at, int entry,
                        const struct cut *cut)
{
    const struct nb_verbs_open *o = &s->open[at];
    const struct nb_verbs_imm imm = {.grant = (unsigned)at,
                                     .entry = (unsigned)entry,
                                     .pieces = cut->pieces,
                                     .in_table = cut->in_table,
                                     .seq = o->cts.seq};
    uint64_t grant_entry = (uint64_t)at * NB_NET_MAX_RECVS + (uint64_t)entry;
    const struct nb_verbs_cts_entry *to = &o->cts.entry[entry];
    int rc = 0;

    s->sizes[req->head.index] = htole64((uint64_t)(size_of(req) - cut->head));
    req->left = (int)cut->pieces;
    req->posted = true;
    for (unsigned i = 0; i < cut->pieces && !rc; i++)
        rc = post_piece(s, req, o->cts.parts ? to + 1 : to, to, cut, i, nb_verbs_imm_put(&imm), grant_entry);
    s->next_qp = (cut->first_qp + cut->pieces) % (unsigned)s->c.nqps;
    s->c.messages++;
    return rc;
}

/* Post queued sends to the queue pairs, as far as receives and room allow. */
static void push(struct nb_verbs_comm *c)
{
    struct nb_verbs_send *s = (struct nb_verbs_send *)c;

    if (!s->retry || s->c.eof)
        return;
    s->retry = false;
    for (struct nb_verbs_sreq **p = &s->queue; *p && s->first >= 0;) {
        struct nb_verbs_sreq *req = *p;
        int prev, entry = 0, at = find_entry(s, req->tag, &prev, &entry);
        const struct nb_verbs_cts_entry *to;
        size_t head, body;
        struct cut cut;

        if (at < 0) {
            p = &req->next;
            continue;
        }
        to = &s->open[at].cts.entry[entry];
        head = s->open[at].cts.parts ? req->part[0].size : 0;
        body = size_of(req) - head;
        if (head > to->size || body > to[s->open[at].cts.parts].size) {
            nb_verbs_fail(&s->c, -EMSGSIZE,
                          "message %llu (tag %d) has %zu bytes but the peer's receive takes %llu",
                          (unsigned long long)s->c.messages, req->tag, head > to->size ? head : body,
                          (unsigned long long)(head > to->size ? to->size : to[s->open[at].cts.parts].size));
            return;
        }
        cut = cut_message(s, head, body);
        /* Later messages must not overtake this one, so wait. Completions set s->retry. */
        if (!has_room(s, &cut, body))
            return;
        *p = req->next;
        if (s->queue_end == &req->next)
            s->queue_end = p;
        if (post_message(s, req, at, entry, &cut) != 0)
            return;
        take_entry(s, at, prev, entry);
    }
}

/* ---- completions ---- */

static void completion(struct nb_verbs_comm *c, const struct ibv_wc *wc)
{
    struct nb_verbs_send *s = (struct nb_verbs_send *)c;
    struct nb_verbs_qp *q = &s->c.qp[NB_VERBS_WR_QP(wc->wr_id) % (unsigned)s->c.nqps];
    struct nb_verbs_sreq *req;

    if (wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
        q->owed++;
        open_grant(s, ntohl(wc->imm_data));
        return;
    }
    q->free += NB_VERBS_WR_PLACES(wc->wr_id);
    s->retry = s->queue != NULL;
    req = nb_net_req_at(&s->c.reqs, NB_VERBS_WR_REQ(wc->wr_id));
    if (req && req->posted && req->left > 0 && --req->left == 0) {
        s->completed++;
        nb_verbs_done(&s->c, &req->head);
    }
}

static void all_received(struct nb_verbs_comm *c)
{
    for (unsigned i = 0; i < c->reqs.n; i++) {
        struct nb_verbs_sreq *req = nb_net_req_at(&c->reqs, i);

        if (req->posted && req->left > 0) {
            req->left = 0;
            nb_verbs_done(c, &req->head);
        }
    }
}

static bool needs_peer(const struct nb_verbs_comm *c)
{
    (void)c;
    return true;
}

static const struct nb_verbs_direction sending = {
    .completion = completion, .push = push, .needs_peer = needs_peer, .all_received = all_received};

/* ---- making ---- */

int nb_verbs_send_new(struct nb_verbs_dev *dev, int nqps, int fd, struct nb_verbs_send **out)
{
    struct nb_verbs_send *s = calloc(1, sizeof(*s));

    *out = s;
    if (!s)
        return -ENOMEM;
    s->queue_end = &s->queue;
    s->first = s->last = -1;
    return nb_verbs_comm_init(&s->c, dev, &sending, true, nqps, fd,
                              TABLE_BYTES + NB_VERBS_REQ_MAX * sizeof(uint64_t),
                              sizeof(struct nb_verbs_sreq));
}

void nb_verbs_send_start(struct nb_verbs_send *s)
{
    s->sizes = (uint64_t *)(void *)(s->c.mem + TABLE_BYTES);
    nb_verbs_repost(&s->c);
}

/* ---- calls ---- */

int nb_verbs_isend_parts(void *send_comm, const struct nb_net_part part[2], int tag, void **request)
{
    struct nb_verbs_send *s = send_comm;
    const size_t size = part[0].size + part[1].size;
    struct nb_verbs_piece parts[2];
    struct nb_verbs_sreq *req;
    int rc = nb_verbs_check(&s->c);

    *request = NULL;
    if (rc)
        return rc;
    for (int i = 0; i < 2; i++) {
        const struct nb_verbs_mr *m = part[i].mhandle;

        if (part[i].size > 0 && (!m || m->hca != s->c.hca)) {
            NB_WARN("verbs: %s: isend of %zu bytes that are not registered with %s", s->c.dev->name,
                    part[i].size, s->c.hca->name);
            return -EINVAL;
        }
    }
    if (size / s->c.dev->max_write + 2 + (part[1].size > 0) > s->c.send_depth) {
        NB_WARN("verbs: %s: a message of %zu bytes is too large: %u requests of %u bytes at most",
                s->c.dev->name, size, s->c.send_depth - 1, s->c.dev->max_write);
        return -EMSGSIZE;
    }
    for (int i = 0; i < 2; i++) {
        const struct nb_verbs_mr *m = part[i].mhandle;

        parts[i] = (struct nb_verbs_piece){part[i].data, part[i].size, m ? m->mr->lkey : 0};
    }
    if (!s->c.dev->parts && !adjoin(parts)) {
        NB_WARN("verbs: %s: the adapter cannot send a message from two places", s->c.dev->name);
        return -EOPNOTSUPP;
    }
    req = nb_net_req_get(&s->c.reqs);
    if (!req) {
        nb_verbs_progress(&s->c);
        return s->c.err;
    }
    req->posted = false;
    req->next = NULL;
    memcpy(req->part, parts, sizeof(parts));
    req->tag = tag;
    req->left = 0;
    *s->queue_end = req;
    s->queue_end = &req->next;
    s->retry = true;
    s->c.unfinished++;
    if (s->first < 0)
        nb_verbs_progress(&s->c); /* the grant may have arrived meanwhile */
    else
        push(&s->c);
    if (s->c.err && !req->head.done)
        return s->c.err;
    *request = req;
    return 0;
}

int nb_verbs_isend(void *send_comm, const void *data, size_t size, int tag, void *mhandle, void **request)
{
    const struct nb_net_part part[2] = {{(void *)(uintptr_t)data, size, mhandle}};

    return nb_verbs_isend_parts(send_comm, part, tag, request);
}

int nb_verbs_close_send(void *send_comm)
{
    struct nb_verbs_send *s = send_comm;

    if (!s)
        return 0;
    nb_verbs_close(&s->c, s->completed);
    nb_verbs_comm_fini(&s->c);
    free(s);
    return 0;
}
