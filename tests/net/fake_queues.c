/* SPDX-License-Identifier: Apache-2.0 */
/* The fake stack's completion queues and queue pairs, and how it carries out work requests. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_int.h"

/* ---- completion queues ---- */

struct ibv_comp_channel *fake_create_comp_channel(struct ibv_context *context)
{
    struct fchannel *c = NULL;
    int fds[2];

    pthread_mutex_lock(&fk.lock);
    if (!fake_faulty("create_comp_channel") && pipe2(fds, O_CLOEXEC) == 0) {
        c = calloc(1, sizeof(*c));
        c->ibv.context = context;
        c->ibv.fd = fds[0];
        c->in = fds[1];
        fk.counts.channels++;
    }
    pthread_mutex_unlock(&fk.lock);
    return c ? &c->ibv : NULL;
}

int fake_destroy_comp_channel(struct ibv_comp_channel *channel)
{
    struct fchannel *c = (struct fchannel *)(void *)channel;

    pthread_mutex_lock(&fk.lock);
    if (c->cqs)
        fake_misused("ibv_destroy_comp_channel with completion queues");
    fk.counts.channels--;
    pthread_mutex_unlock(&fk.lock);
    close(c->ibv.fd);
    close(c->in);
    free(c);
    return fake_unfreed("destroy_comp_channel");
}

struct ibv_cq *fake_create_cq(struct ibv_context *context, int cqe, void *cq_context,
                              struct ibv_comp_channel *channel, int vector)
{
    struct fcq *c = NULL;

    (void)vector;
    pthread_mutex_lock(&fk.lock);
    if (cqe < 1 || cqe > fake_device_of(context)->max_cqe) {
        errno = EINVAL;
    } else if (!fake_faulty("create_cq")) {
        c = calloc(1, sizeof(*c));
        c->ibv.context = context;
        c->ibv.cq_context = cq_context;
        c->ibv.channel = channel;
        c->ibv.cqe = cqe;
        c->cap = (unsigned)cqe;
        c->wc = calloc(c->cap, sizeof(*c->wc));
        c->places = calloc(c->cap, sizeof(*c->places));
        c->of = calloc(c->cap, sizeof(struct fqp *));
        c->channel = (struct fchannel *)(void *)channel;
        c->channel->cqs++;
        fk.counts.cqs++;
    }
    pthread_mutex_unlock(&fk.lock);
    return c ? &c->ibv : NULL;
}

int fake_destroy_cq(struct ibv_cq *cq)
{
    struct fcq *c = cq_of(cq);

    pthread_mutex_lock(&fk.lock);
    if (c->qps || c->unacked)
        fake_misused(c->qps ? "ibv_destroy_cq with queue pairs"
                            : "ibv_destroy_cq with events that were not acknowledged");
    c->channel->cqs--;
    fk.counts.cqs--;
    pthread_mutex_unlock(&fk.lock);
    free(c->wc);
    free(c->places);
    free(c->of);
    free(c);
    return fake_unfreed("destroy_cq");
}

int fake_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
    struct ibv_cq *got;

    if (read(channel->fd, &got, sizeof(got)) != (ssize_t)sizeof(got))
        return -1;
    pthread_mutex_lock(&fk.lock);
    cq_of(got)->unacked++;
    pthread_mutex_unlock(&fk.lock);
    *cq = got;
    *cq_context = got->cq_context;
    return 0;
}

void fake_ack_cq_events(struct ibv_cq *cq, unsigned n)
{
    pthread_mutex_lock(&fk.lock);
    cq_of(cq)->unacked -= (int)n;
    pthread_mutex_unlock(&fk.lock);
}

int fake_req_notify_cq(struct ibv_cq *cq, int solicited)
{
    int rc = 0;

    (void)solicited;
    pthread_mutex_lock(&fk.lock);
    if (fake_faulty("req_notify_cq"))
        rc = errno;
    else
        cq_of(cq)->armed = true;
    pthread_mutex_unlock(&fk.lock);
    return rc;
}

static void complete(struct fqp *q, uint64_t wr_id, enum ibv_wc_status status, enum ibv_wc_opcode opcode,
                     uint32_t vendor, uint32_t bytes, uint32_t imm, unsigned places)
{
    struct fcq *c = cq_of(q->ibv.send_cq);
    unsigned at = (c->head + c->count) % c->cap;
    struct ibv_cq *cq = &c->ibv;

    if (c->count == c->cap) {
        fake_misused("a completion queue overflows");
        return;
    }
    c->wc[at] = (struct ibv_wc){.wr_id = wr_id,
                                .status = status,
                                .opcode = opcode,
                                .vendor_err = vendor,
                                .byte_len = bytes,
                                .qp_num = q->ibv.qp_num};
    c->wc[at].imm_data = imm;
    c->places[at] = places;
    c->of[at] = q;
    c->count++;
    if (c->armed) {
        c->armed = false;
        if (write(c->channel->in, &cq, sizeof(cq)) != (ssize_t)sizeof(cq))
            fake_misused("a completion channel is full");
    }
}

/* ---- queue pairs ---- */

static struct fqp *find_qp(uint32_t qpn)
{
    struct fqp *q = fk.qps;

    while (q && q->ibv.qp_num != qpn)
        q = q->next;
    return q;
}

struct ibv_qp *fake_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
    const struct fake_device *d = fake_device_of(pd->context);
    struct fqp *q = NULL;

    pthread_mutex_lock(&fk.lock);
    if (init->cap.max_send_wr > (unsigned)d->max_qp_wr || init->cap.max_recv_wr > (unsigned)d->max_qp_wr ||
        init->cap.max_send_sge > (unsigned)d->max_sge || init->cap.max_recv_sge > (unsigned)d->max_sge) {
        errno = EINVAL;
    } else if (!fake_faulty("create_qp")) {
        q = calloc(1, sizeof(*q));
        q->ibv.context = pd->context;
        q->ibv.pd = pd;
        q->ibv.send_cq = init->send_cq;
        q->ibv.recv_cq = init->recv_cq;
        q->ibv.qp_num = ++fk.next_qpn & 0xffffff;
        q->ibv.qp_type = init->qp_type;
        q->device = ((struct fctx *)(void *)pd->context)->device;
        q->state = IBV_QPS_RESET;
        q->cap = init->cap;
        q->sq_end = &q->sq;
        q->rq = calloc(init->cap.max_recv_wr + 1, sizeof(*q->rq));
        q->next = fk.qps;
        fk.qps = q;
        cq_of(init->send_cq)->qps++;
        fk.counts.qps++;
        fake_note(FAKE_CREATE_QP)->cap = init->cap;
    }
    pthread_mutex_unlock(&fk.lock);
    return q ? &q->ibv : NULL;
}

int fake_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    struct fqp *q = qp_of(qp);
    struct fake_entry *e;
    int rc = 0;

    pthread_mutex_lock(&fk.lock);
    if (fake_faulty("modify_qp")) {
        rc = errno;
    } else if ((attr->qp_state == IBV_QPS_INIT && q->state != IBV_QPS_RESET) ||
               (attr->qp_state == IBV_QPS_RTR && q->state != IBV_QPS_INIT) ||
               (attr->qp_state == IBV_QPS_RTS && q->state != IBV_QPS_RTR)) {
        fake_misused("ibv_modify_qp skips a state");
        rc = EINVAL;
    } else {
        e = fake_note(FAKE_MODIFY);
        e->qpn = q->ibv.qp_num;
        e->mask = mask;
        e->attr = *attr;
        q->state = q->ibv.state = attr->qp_state;
        if (attr->qp_state == IBV_QPS_INIT) {
            q->port = attr->port_num;
            q->access = (int)attr->qp_access_flags;
        }
        if (attr->qp_state == IBV_QPS_RTR)
            q->peer = attr->dest_qp_num;
    }
    pthread_mutex_unlock(&fk.lock);
    return rc;
}

static void free_wr(struct fwr *w)
{
    free(w->inlined);
    free(w);
}

int fake_destroy_qp(struct ibv_qp *qp)
{
    struct fqp *q = qp_of(qp);
    struct fcq *c = cq_of(q->ibv.send_cq);

    pthread_mutex_lock(&fk.lock);
    for (struct fqp **p = &fk.qps; *p; p = &(*p)->next) {
        if (*p == q) {
            *p = q->next;
            break;
        }
    }
    while (q->sq) {
        struct fwr *w = q->sq;

        q->sq = w->next;
        free_wr(w);
    }
    for (unsigned i = 0; i < c->count; i++)
        if (c->of[(c->head + i) % c->cap] == q)
            c->of[(c->head + i) % c->cap] = NULL;
    c->qps--;
    fk.counts.qps--;
    pthread_mutex_unlock(&fk.lock);
    free(q->rq);
    free(q);
    return fake_unfreed("destroy_qp");
}

/* The queue pair has failed: its queued requests come back. */
static void flush(struct fqp *q)
{
    q->state = IBV_QPS_ERR;
    while (q->sq) {
        struct fwr *w = q->sq;

        q->sq = w->next;
        complete(q, w->wr.wr_id, IBV_WC_WR_FLUSH_ERR, IBV_WC_RDMA_WRITE, 0, 0, 0, 1);
        free_wr(w);
    }
    q->sq_end = &q->sq;
    for (; q->rq_count > 0; q->rq_count--) {
        complete(q, q->rq[q->rq_head], IBV_WC_WR_FLUSH_ERR, IBV_WC_RECV, 0, 0, 0, 0);
        q->rq_head = (q->rq_head + 1) % q->cap.max_recv_wr;
    }
}

static bool port_up(const struct fqp *q)
{
    return !fake.device[q->device].port[q->port - 1].down;
}

static bool injected(enum fake_side side, enum ibv_wc_status *status, uint32_t *vendor)
{
    if (fk.wc_fault[side].nth == 0 || --fk.wc_fault[side].nth > 0)
        return false;
    *status = fk.wc_fault[side].status;
    *vendor = fk.wc_fault[side].vendor;
    return true;
}

static uint32_t length_of(const struct ibv_sge *sge, int n)
{
    uint32_t bytes = 0;

    for (int i = 0; i < n; i++)
        bytes += sge[i].length;
    return bytes;
}

/* Return whether all local places of a request are registered with these rights. */
static bool may_access(const struct fqp *q, const struct fwr *w, int access)
{
    for (int i = 0; i < w->wr.num_sge; i++)
        if (w->sge[i].length &&
            !fake_find_mr(q->ibv.pd, w->sge[i].lkey, w->sge[i].addr, w->sge[i].length, access))
            return false;
    return true;
}

/* Carry out the oldest request of a queue pair. Return false when it must wait, or when the queue is
 * empty. */
static bool step(struct fqp *q)
{
    struct fwr *w = q->sq;
    enum ibv_wc_status status = IBV_WC_SUCCESS;
    bool imm, read_back;
    uint32_t vendor = 0, length;
    struct fqp *to;
    int access;

    if (!w || q->state != IBV_QPS_RTS || !port_up(q))
        return false;
    to = find_qp(q->peer);
    imm = w->wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    read_back = w->wr.opcode == IBV_WR_RDMA_READ;
    length = length_of(w->sge, w->wr.num_sge);
    access = read_back ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
    if (to && !port_up(to))
        return false;
    if (!to || (to->state != IBV_QPS_RTR && to->state != IBV_QPS_RTS)) {
        status = IBV_WC_RETRY_EXC_ERR;
        vendor = 0x81;
    } else if (imm && to->rq_count == 0) {
        fk.counts.not_ready += !q->waits;
        q->waits = true;
        return false;
    } else if (injected(FAKE_SENDER, &status, &vendor)) {
        /* as asked */
    } else if (!w->inlined && !may_access(q, w, read_back ? IBV_ACCESS_LOCAL_WRITE : 0)) {
        status = IBV_WC_LOC_PROT_ERR;
        vendor = 0x51;
    } else if (length &&
               (!(to->access & access) ||
                !fake_find_mr(to->ibv.pd, w->wr.wr.rdma.rkey, w->wr.wr.rdma.remote_addr, length, access))) {
        status = IBV_WC_REM_ACCESS_ERR;
        vendor = 0x88;
    }
    q->waits = false;
    q->sq = w->next;
    if (!q->sq)
        q->sq_end = &q->sq;
    if (status != IBV_WC_SUCCESS) {
        complete(q, w->wr.wr_id, status, IBV_WC_RDMA_WRITE, vendor, 0, 0, q->unsignaled + 1);
        q->unsignaled = 0;
        free_wr(w);
        flush(q);
        return true;
    }
    for (uint32_t i = 0, at = 0; i < (uint32_t)w->wr.num_sge; at += w->sge[i++].length) {
        void *local = w->inlined ? w->inlined : (void *)(uintptr_t)w->sge[i].addr;
        void *remote = (uint8_t *)(uintptr_t)w->wr.wr.rdma.remote_addr + at;

        memcpy(read_back ? local : remote, read_back ? remote : local, w->sge[i].length);
    }
    if (imm) {
        uint64_t id = to->rq[to->rq_head];

        to->rq_head = (to->rq_head + 1) % to->cap.max_recv_wr;
        to->rq_count--;
        if (injected(FAKE_RECEIVER, &status, &vendor)) {
            complete(to, id, status, IBV_WC_RECV, vendor, 0, 0, 0);
            flush(to);
        } else {
            complete(to, id, IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM, 0, length, w->wr.imm_data, 0);
        }
    }
    q->unsignaled++;
    if (w->wr.send_flags & IBV_SEND_SIGNALED && !fake.lose_acks) {
        complete(q, w->wr.wr_id, IBV_WC_SUCCESS, read_back ? IBV_WC_RDMA_READ : IBV_WC_RDMA_WRITE, 0, length,
                 0, q->unsignaled);
        q->unsignaled = 0;
    }
    free_wr(w);
    return true;
}

/* Carry out requests in order on each queue pair. Chance decides which queue pair is next. */
static void shuffled_steps(void)
{
    struct fqp *ready[256];
    unsigned n = 0;

    for (struct fqp *q = fk.qps; q && n < 256; q = q->next)
        if (q->sq)
            ready[n++] = q;
    for (unsigned budget = n > 0 ? 1 + fake_dice(2 * n) : 0; budget > 0; budget--) {
        struct fqp *q = ready[fake_dice(n)];

        while (step(q) && fake_dice(3) == 0)
            ;
    }
}

int fake_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct fqp *q = qp_of(qp);
    int rc = 0;

    pthread_mutex_lock(&fk.lock);
    for (; wr && !rc; wr = wr->next) {
        struct fake_entry *e;
        struct fwr *w;

        if (fake_faulty("post_send")) {
            rc = errno;
        } else if (q->state != IBV_QPS_RTS && q->state != IBV_QPS_ERR) {
            fake_misused("ibv_post_send before the queue pair is ready");
            rc = EINVAL;
        } else if (q->sq_used == q->cap.max_send_wr) {
            fake_misused("ibv_post_send to a full send queue");
            rc = ENOMEM;
        } else if (wr->num_sge > (int)q->cap.max_send_sge || wr->num_sge > 2 ||
                   ((wr->send_flags & IBV_SEND_INLINE) && wr->sg_list->length > q->cap.max_inline_data)) {
            fake_misused("ibv_post_send of more than was agreed");
            rc = EINVAL;
        } else if (length_of(wr->sg_list, wr->num_sge) > fake.device[q->device].port[q->port - 1].max_msg) {
            fake_misused("ibv_post_send of more than the port takes");
            rc = EINVAL;
        }
        if (rc) {
            *bad = wr;
            break;
        }
        w = calloc(1, sizeof(*w));
        w->wr = *wr;
        if (wr->num_sge)
            memcpy(w->sge, wr->sg_list, (size_t)wr->num_sge * sizeof(w->sge[0]));
        if (wr->send_flags & IBV_SEND_INLINE) {
            w->inlined = malloc(w->sge[0].length + 1);
            memcpy(w->inlined, (void *)(uintptr_t)w->sge[0].addr, w->sge[0].length);
        }
        *q->sq_end = w;
        q->sq_end = &w->next;
        q->sq_used++;
        w->next = NULL;
        e = fake_note(FAKE_POST);
        e->qpn = q->ibv.qp_num;
        e->opcode = wr->opcode;
        e->flags = wr->send_flags;
        e->bytes = length_of(w->sge, w->wr.num_sge);
        e->remote = wr->wr.rdma.remote_addr;
        if (q->state == IBV_QPS_ERR)
            flush(q);
    }
    while (!fake.shuffle && step(q))
        ;
    pthread_mutex_unlock(&fk.lock);
    return rc;
}

int fake_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct fqp *q = qp_of(qp);
    int rc = 0;

    pthread_mutex_lock(&fk.lock);
    for (; wr && !rc; wr = wr->next) {
        if (fake_faulty("post_recv")) {
            rc = errno;
        } else if (q->rq_count == q->cap.max_recv_wr) {
            fake_misused("ibv_post_recv to a full receive queue");
            rc = ENOMEM;
        } else {
            q->rq[(q->rq_head + q->rq_count++) % q->cap.max_recv_wr] = wr->wr_id;
        }
        if (rc)
            *bad = wr;
    }
    if (q->state == IBV_QPS_ERR)
        flush(q);
    pthread_mutex_unlock(&fk.lock);
    return rc;
}

int fake_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
    struct fcq *c = cq_of(cq);
    int got = 0;

    pthread_mutex_lock(&fk.lock);
    if (fake.shuffle)
        shuffled_steps();
    if (fake_faulty("poll_cq")) {
        pthread_mutex_unlock(&fk.lock);
        return -1;
    }
    for (; got < n && c->count > 0; c->count--, c->head = (c->head + 1) % c->cap) {
        /* Completions go with their queue pair. */
        if (!c->of[c->head])
            continue;
        c->of[c->head]->sq_used -= c->places[c->head];
        wc[got++] = c->wc[c->head];
    }
    pthread_mutex_unlock(&fk.lock);
    return got;
}

/* ---- for the tests ---- */

void fake_port_set(int device, int port, bool up)
{
    pthread_mutex_lock(&fk.lock);
    fake.device[device].port[port - 1].down = !up;
    if (up && !fake.shuffle)
        for (struct fqp *q = fk.qps; q; q = q->next)
            while (step(q))
                ;
    pthread_mutex_unlock(&fk.lock);
    fake_event(device, up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR, port);
}

void fake_timeout(void)
{
    pthread_mutex_lock(&fk.lock);
    for (struct fqp *q = fk.qps; q; q = q->next) {
        struct fqp *to = find_qp(q->peer);

        if (!q->sq || q->state != IBV_QPS_RTS || (port_up(q) && to && port_up(to)))
            continue;
        complete(q, q->sq->wr.wr_id, IBV_WC_RETRY_EXC_ERR, IBV_WC_RDMA_WRITE, 0x81, 0, 0, q->unsignaled);
        q->unsignaled = 0;
        flush(q);
    }
    pthread_mutex_unlock(&fk.lock);
}
