/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiving side of a verbs connection, for one thread at a time. It writes grants into the sender's
 * table and counts the pieces that arrive.
 */
#include "net/verbs/internal.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

#define TABLE_BYTES ((size_t)NB_VERBS_GRANTS * NB_VERBS_GRANT_BYTES)
#define SIZES ((size_t)NB_VERBS_GRANTS * NB_NET_MAX_RECVS)
#define FLUSH_DEPTH 256

/* ---- completions ---- */

static void entry_done(struct nb_verbs_recv *r, struct nb_verbs_grant *grant, unsigned at, unsigned entry,
                       bool in_table)
{
    struct nb_verbs_rreq *req = grant->req;
    size_t size = grant->entry[entry].got;

    if (in_table)
        size = (size_t)le64toh(r->sizes[at * NB_NET_MAX_RECVS + entry]);
    if (size > grant->entry[entry].cap) {
        nb_verbs_fail(&r->c, -EPROTO, "a message of %zu bytes was written to a receive of %zu", size,
                      grant->entry[entry].cap);
        return;
    }
    req->size[entry] = size;
    r->c.wire += size + (in_table ? sizeof(uint64_t) : 0);
    r->c.messages++;
    if (--req->left > 0)
        return;
    r->outstanding -= (unsigned)req->n;
    r->grants_out--;
    grant->req = NULL;
    r->free_grant[r->nfree++] = (uint8_t)at;
    nb_verbs_done(&r->c, &req->head);
}

static void completion(struct nb_verbs_comm *c, const struct ibv_wc *wc)
{
    struct nb_verbs_recv *r = (struct nb_verbs_recv *)c;
    unsigned qp = NB_VERBS_WR_QP(wc->wr_id);
    struct nb_verbs_grant *grant;
    struct nb_verbs_imm imm;

    if (wc->opcode == IBV_WC_RDMA_READ) {
        struct nb_verbs_rreq *q = nb_net_req_at(&c->reqs, NB_VERBS_WR_REQ(wc->wr_id));

        r->flush.free += NB_VERBS_WR_PLACES(wc->wr_id);
        nb_verbs_done(c, &q->head);
        return;
    }
    if (qp >= (unsigned)r->c.nqps)
        return;
    if (wc->opcode != IBV_WC_RECV_RDMA_WITH_IMM) {
        r->c.qp[qp].free += NB_VERBS_WR_PLACES(wc->wr_id);
        return;
    }
    r->c.qp[qp].owed++;
    imm = nb_verbs_imm_get(ntohl(wc->imm_data));
    grant = &r->grant[imm.grant];
    if (!grant->req || (int)imm.entry >= grant->req->n || (grant->seq & NB_VERBS_DATA_SEQ_MASK) != imm.seq ||
        imm.pieces > (unsigned)r->c.nqps) {
        nb_verbs_fail(&r->c, -EPROTO, "an unexpected message for grant %u, entry %u, number %u in %u pieces",
                      imm.grant, imm.entry, imm.seq, imm.pieces);
        return;
    }
    if (!imm.in_table)
        grant->entry[imm.entry].got += wc->byte_len;
    if (++grant->entry[imm.entry].pieces == imm.pieces)
        entry_done(r, grant, imm.grant, imm.entry, imm.in_table);
}

/* Return whether a request needs the peer. Flushes do not. */
static bool needs_peer(const struct nb_verbs_comm *c)
{
    return ((const struct nb_verbs_recv *)c)->grants_out > 0;
}

static bool flushes(const struct nb_verbs_comm *c)
{
    return (unsigned)c->unfinished > ((const struct nb_verbs_recv *)c)->grants_out;
}

static const struct nb_verbs_direction receiving = {
    .completion = completion, .needs_peer = needs_peer, .flushes = flushes};

/* ---- making ---- */

int nb_verbs_recv_new(struct nb_verbs_dev *dev, int nqps, int fd, struct nb_verbs_recv **out)
{
    struct nb_verbs_recv *r = calloc(1, sizeof(*r));
    struct nb_verbs_comm *c;
    int rc, err;

    *out = r;
    if (!r)
        return -ENOMEM;
    c = &r->c;
    rc = nb_verbs_comm_init(c, dev, &receiving, false, nqps, fd, SIZES * sizeof(uint64_t) + TABLE_BYTES + 64,
                            sizeof(struct nb_verbs_rreq));
    if (rc)
        return rc;
    /* The peer writes lengths to the start of our memory. */
    r->sizes = (uint64_t *)(void *)c->mem;
    r->grants = c->mem + SIZES * sizeof(uint64_t);
    r->flush_to = r->grants + TABLE_BYTES;
    if (!(dev->mem_support & (NB_MEM_CUDA | NB_MEM_DMABUF)))
        return 0;
    r->flush.free = c->hca->attr.max_qp_wr > 0 && c->hca->attr.max_qp_wr < FLUSH_DEPTH
                        ? (unsigned)c->hca->attr.max_qp_wr
                        : FLUSH_DEPTH;
    r->flush.qp =
        nb_verbs_qp_new(c, r->flush.free, 1, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE, &err);
    c->flush_qp = r->flush.qp;
    return r->flush.qp ? 0 : -err;
}

int nb_verbs_recv_start(struct nb_verbs_recv *r)
{
    struct nb_verbs_comm *c = &r->c;
    unsigned theirs = c->peer_meta.depth;

    nb_verbs_repost(c);
    r->limit = c->recv_depth;
    r->ngrants = theirs < NB_VERBS_GRANTS ? theirs : NB_VERBS_GRANTS;
    for (unsigned i = NB_VERBS_GRANTS; i > 0; i--)
        r->free_grant[r->nfree++] = (uint8_t)(i - 1);
    return c->err;
}

/* ---- calls ---- */

/* Write grant `at` into the sender's table. */
static int clear_to_send(struct nb_verbs_recv *r, unsigned at, const struct nb_verbs_cts *cts)
{
    struct nb_verbs_qp *q = &r->c.qp[0];
    uint8_t *from = r->grants + (size_t)at * NB_VERBS_GRANT_BYTES;
    struct ibv_send_wr wr;
    struct ibv_sge sge;
    unsigned every = r->c.send_depth / 4 > 0 ? r->c.send_depth / 4 : 1;

    nb_verbs_cts_put(from, cts);
    memset(&wr, 0, sizeof(wr));
    sge = (struct ibv_sge){.addr = (uint64_t)(uintptr_t)from,
                           .length = (uint32_t)NB_VERBS_GRANT_USED(cts->n),
                           .lkey = r->c.mem_mr->lkey};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    wr.imm_data = htonl(at | (cts->seq & NB_VERBS_CTS_SEQ_MASK) << 8);
    wr.send_flags = r->c.hca->conf->use_inline ? IBV_SEND_INLINE : 0;
    wr.wr.rdma.remote_addr = r->c.peer_meta.addr + (uint64_t)at * NB_VERBS_GRANT_BYTES;
    wr.wr.rdma.rkey = r->c.peer_meta.rkey;
    /* every so many grants one work request has to report, so that the send queue empties */
    if (++q->unsignaled >= every) {
        wr.send_flags |= IBV_SEND_SIGNALED;
        wr.wr_id = NB_VERBS_WR_ID(0, q->unsignaled, 0);
        q->unsignaled = 0;
    }
    return nb_verbs_post(&r->c, q, &wr, 1);
}

static bool have_room(const struct nb_verbs_recv *r, int n)
{
    return r->outstanding + (unsigned)n <= r->limit && r->grants_out < r->ngrants && r->nfree > 0 &&
           r->c.qp[0].free > 0;
}

/* Receive `n` messages, or one of two parts. */
static int receive(struct nb_verbs_recv *r, int n, bool parts, void *const *data, const size_t *sizes,
                   const int *tags, void *const *mhandles, void **request)
{
    struct nb_verbs_cts cts = {.seq = r->seq, .n = parts ? 2 : n, .parts = parts};
    struct nb_verbs_rreq *req;
    struct nb_verbs_grant *grant;
    unsigned at;
    int rc = nb_verbs_check(&r->c);

    *request = NULL;
    if (rc)
        return rc;
    if (n < 1 || n > NB_NET_MAX_RECVS)
        return -EINVAL;
    for (int i = 0; i < cts.n; i++) {
        const struct nb_verbs_mr *m = mhandles ? mhandles[i] : NULL;

        if (sizes[i] > 0 && (!data[i] || !m || m->hca != r->c.hca)) {
            NB_WARN("verbs: %s: irecv of %zu bytes that are not registered with %s", r->c.dev->name, sizes[i],
                    r->c.hca->name);
            return -EINVAL;
        }
        cts.entry[i].addr = (uint64_t)(uintptr_t)data[i];
        cts.entry[i].size = sizes[i];
        cts.entry[i].rkey = m ? m->mr->rkey : 0;
        cts.entry[i].tag = tags ? tags[i] : 0;
    }
    if ((unsigned)n > r->limit) {
        NB_WARN("verbs: %s: a group of %d receives, but its queues hold %u", r->c.dev->name, n, r->limit);
        return -EMSGSIZE;
    }
    if (!have_room(r, n)) {
        nb_verbs_progress(&r->c);
        if (r->c.err || !have_room(r, n))
            return r->c.err;
    }
    req = nb_net_req_get(&r->c.reqs);
    if (!req)
        return 0;
    at = r->free_grant[--r->nfree];
    grant = &r->grant[at];
    memset(grant, 0, sizeof(*grant));
    grant->req = req;
    grant->seq = r->seq++;
    req->n = req->left = n;
    for (int i = 0; i < n; i++) {
        grant->entry[i].cap = sizes[parts ? 1 : i];
        req->size[i] = 0;
    }
    r->outstanding += (unsigned)n;
    r->grants_out++;
    r->c.unfinished++;
    rc = clear_to_send(r, at, &cts);
    if (rc)
        return rc;
    *request = req;
    return 0;
}

int nb_verbs_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                   void **request)
{
    return receive(recv_comm, n, false, data, sizes, tags, mhandles, request);
}

int nb_verbs_irecv_parts(void *recv_comm, const struct nb_net_part part[2], int tag, void **request)
{
    void *const data[2] = {part[0].data, part[1].data}, *const mhandles[2] = {part[0].mhandle,
                                                                              part[1].mhandle};
    const size_t sizes[2] = {part[0].size, part[1].size};
    const int tags[2] = {tag, tag};

    return receive(recv_comm, 1, true, data, sizes, tags, mhandles, request);
}

/* Post the work requests of a flush or a copy to the queue pair that is connected to itself. The last request
 * reports, and frees `places`. */
static int post_own(struct nb_verbs_recv *r, enum ibv_wr_opcode opcode, struct ibv_sge *local,
                    uint64_t remote, uint32_t rkey, const struct nb_verbs_rreq *req, unsigned places)
{
    struct ibv_send_wr wr;

    memset(&wr, 0, sizeof(wr));
    wr.wr_id = NB_VERBS_WR_ID(req->head.index, places, r->c.nqps);
    wr.sg_list = local;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = places ? IBV_SEND_SIGNALED : 0;
    wr.wr.rdma.remote_addr = remote;
    wr.wr.rdma.rkey = rkey;
    return nb_verbs_post(&r->c, &r->flush, &wr, 1);
}

/* Flush received data to GPU memory. The data has left the adapter, but may still be behind its completion on
 * the way to the GPU. Reading a byte of it back through the adapter pushes it there. The last non-empty
 * buffer stands for all buffers. A flush works without the peer, also after the peer's end. */
int nb_verbs_iflush(void *recv_comm, int n, void **data, const size_t *sizes, void **mhandles, void **request)
{
    struct nb_verbs_recv *r = recv_comm;
    const struct nb_clock *clock = r->c.hca->clock;
    const struct nb_verbs_mr *m;
    struct nb_verbs_rreq *req;
    struct ibv_sge sge;
    int last = -1, rc = r->c.fin ? r->c.err : nb_verbs_check(&r->c);

    *request = NULL;
    if (rc && !nb_verbs_may_flush(&r->c))
        return rc;
    for (int i = 0; i < n; i++) {
        m = mhandles ? mhandles[i] : NULL;
        if (sizes[i] > 0 && m && (m->type == NB_MEM_CUDA || m->dmabuf))
            last = i;
    }
    if (!r->flush.qp || last < 0 || r->c.hca->conf->flush_disable)
        return 0;
    m = mhandles[last];
    /* The caller cannot try a flush again later, so wait for room. Reads of this very adapter take
     * microseconds. */
    for (int64_t end = nb_clock_ms(clock) + 1000;
         r->flush.free == 0 && (!r->c.err || nb_verbs_may_flush(&r->c)) && nb_clock_ms(clock) < end;)
        nb_verbs_progress(&r->c);
    req = r->flush.free > 0 && (!r->c.err || nb_verbs_may_flush(&r->c)) ? nb_net_req_get(&r->c.reqs) : NULL;
    if (!req) {
        nb_verbs_fail(&r->c, -ETIMEDOUT, "flushes do not complete");
        return r->c.err;
    }
    req->n = 0;
    sge = (struct ibv_sge){.addr = (uint64_t)(uintptr_t)r->flush_to, .length = 1, .lkey = r->c.mem_mr->lkey};
    rc = post_own(r, IBV_WR_RDMA_READ, &sge, (uint64_t)(uintptr_t)data[last], m->mr->rkey, req, 1);
    if (rc)
        return rc;
    r->c.unfinished++;
    *request = req;
    return 0;
}

/* Copy by the adapter. After a write to GPU memory it reads a byte back. The read follows the written bytes,
 * so the GPU sees them when the read is done. */
int nb_verbs_icopy(void *recv_comm, void *to, void *to_mhandle, const void *from, void *from_mhandle,
                   size_t size, void **request)
{
    struct nb_verbs_recv *r = recv_comm;
    const struct nb_verbs_mr *t = to_mhandle, *f = from_mhandle;
    const bool writes = t && (t->type == NB_MEM_CUDA || t->dmabuf);
    const unsigned places = writes ? 2 : 1;
    const struct nb_verbs_mr *near = writes ? f : t, *far = writes ? t : f;
    const uint64_t local = (uint64_t)(uintptr_t)(writes ? from : to),
                   remote = (uint64_t)(uintptr_t)(writes ? to : from);
    struct nb_verbs_rreq *req;
    struct ibv_sge sge;
    int rc = r->c.fin ? r->c.err : nb_verbs_check(&r->c);

    *request = NULL;
    if (rc && !nb_verbs_may_flush(&r->c))
        return rc;
    if (!r->flush.qp)
        return -EOPNOTSUPP;
    if (!t || !f || t->hca != r->c.hca || f->hca != r->c.hca || size == 0 || size > NB_VERBS_MAX_WRITE) {
        NB_WARN("verbs: %s: icopy of %zu bytes that are not registered with %s", r->c.dev->name, size,
                r->c.hca->name);
        return -EINVAL;
    }
    if (r->flush.free < places)
        nb_verbs_progress(&r->c);
    req = r->flush.free >= places ? nb_net_req_get(&r->c.reqs) : NULL;
    if (!req)
        return r->c.err && !nb_verbs_may_flush(&r->c) ? r->c.err : 0;
    req->n = 0;
    sge = (struct ibv_sge){.addr = local, .length = (uint32_t)size, .lkey = near->mr->lkey};
    if (writes) {
        rc = post_own(r, IBV_WR_RDMA_WRITE, &sge, remote, far->mr->rkey, req, 0);
        sge = (struct ibv_sge){
            .addr = (uint64_t)(uintptr_t)r->flush_to, .length = 1, .lkey = r->c.mem_mr->lkey};
    }
    if (!rc)
        rc = post_own(r, IBV_WR_RDMA_READ, &sge, remote, far->mr->rkey, req, places);
    if (rc)
        return rc;
    r->c.unfinished++;
    *request = req;
    return 0;
}

void nb_verbs_leave(void *recv_comm)
{
    struct nb_verbs_recv *r = recv_comm;

    if (r->c.err)
        return;
    nb_verbs_close(&r->c, r->c.messages);
    r->c.err = -ECANCELED;
}

int nb_verbs_close_recv(void *recv_comm)
{
    struct nb_verbs_recv *r = recv_comm;

    if (!r)
        return 0;
    nb_verbs_close(&r->c, r->c.messages);
    if (r->flush.qp)
        nb_verbs_freed(r->c.hca, "a queue pair", r->c.hca->api->destroy_qp(r->flush.qp));
    r->flush.qp = NULL;
    r->c.flush_qp = NULL;
    nb_verbs_comm_fini(&r->c);
    free(r);
    return 0;
}
