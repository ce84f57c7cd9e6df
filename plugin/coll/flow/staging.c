/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a communicator's rings and shared buffers, and its registration.
 *
 * Payloads lie in the device's memory where the transport reaches that memory and carries messages in two
 * parts, and the device has memory for them (device/device.h). Headers stay in host memory. Otherwise, and
 * where registration fails, payloads follow their headers. Each node decides for itself: a message is the
 * same bytes in either place. CONTROL messages always lie in host memory, with the raw bytes that some carry.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "coll/flow/internal.h"
#include "state/budget.h"

#define CONTROL_SLOTS_TX 256u
#define CONTROL_SLOTS_GRID \
    (CONTROL_SLOTS_TX + 3 * NB_GRID_MOST) /* with room for relayed messages (watch/control.c) */
#define CONTROL_SLOTS_RX 16u
#define CONTROL_RX_BYTES (NB_CTL_BYTES + NB_CTL_DATA_BYTES + 32u) /* up to the next cache line */
#define POSTED_MAX 16u /* receives posted at once: every ncclNet transport takes so many */

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static void *wire_alloc(struct nb_coll_comm *comm, size_t bytes)
{
    return comm->device->ops->alloc(comm->device, NB_PLACE_WIRE, bytes);
}

static void wire_free(struct nb_coll_comm *comm, void *p, size_t bytes)
{
    comm->device->ops->free(comm->device, NB_PLACE_WIRE, p, bytes);
}

/* Return the bytes of a message buffer that the device keeps. */
static size_t kept(const struct nb_coll_comm *comm, size_t buffer_bytes)
{
    const size_t most = comm->device->ops->keeps;

    return most && most < buffer_bytes ? most : buffer_bytes;
}

/* ---- payloads in the device's memory ------------------------------------------------------------------ */

#define HEAD_BYTES 128u /* of a message buffer without its payload */
_Static_assert(HEAD_BYTES >= NB_MSG_MAX_BYTES, "a header fits");

/* Return the bytes of a payload, aligned for the device. They hold as much as a whole message buffer. */
static size_t body_bytes(const struct nb_coll_comm *comm)
{
    return round_up(comm->buffer_bytes, 256);
}

/* Return the kinds of memory in which the transport finds payloads besides the host's. */
static int reached(const struct nb_coll_comm *comm)
{
    return comm->net->isend_parts && comm->device->ops->dmabuf ? nb_adapter_kinds(comm, true) : 0;
}

/* Return the bytes of a message buffer, and of its payload where that lies in the device's memory. */
static size_t whole_bytes(const struct nb_coll_comm *comm, bool on_device)
{
    return on_device ? HEAD_BYTES + body_bytes(comm) : comm->buffer_bytes;
}

/* Allocate the payloads of `buffers` message buffers, for which the caller has taken the budget. Where the
 * device has no memory for them, they lie in host memory and need less: give the difference back. */
static void make_payload(struct nb_coll_comm *comm, size_t buffers)
{
    struct nb_staging *s = &comm->flow->staging;
    const size_t less = buffers * (whole_bytes(comm, true) - whole_bytes(comm, false));

    s->payload_used = 0;
    s->payload_bytes = buffers * body_bytes(comm);
    s->payload = comm->device->ops->alloc(comm->device, NB_PLACE_PAYLOAD, s->payload_bytes);
    if (s->payload)
        return;
    nb_budget_give(comm->ctx->budgets, NB_BUDGET_STAGING, less);
    comm->staging_bytes -= less;
}

/* Take the payloads of `buffers` message buffers. Return NULL where payloads follow their headers. */
static uint8_t *take_payload(struct nb_coll_comm *comm, unsigned buffers)
{
    struct nb_staging *s = &comm->flow->staging;
    const size_t at = s->payload_used;

    if (!s->payload)
        return NULL;
    s->payload_used += buffers * body_bytes(comm);
    return s->payload + at;
}

/* Register them with a connection. */
static int register_payload(struct nb_coll_comm *comm, void *conn, int fd, void **mhandle)
{
    struct nb_staging *s = &comm->flow->staging;

    return fd >= 0 ? comm->net->reg_mr_dmabuf(conn, s->payload, s->payload_bytes, NB_MEM_CUDA, 0, fd, mhandle)
                   : comm->net->reg_mr(conn, s->payload, s->payload_bytes, NB_MEM_CUDA, mhandle);
}

static int register_with_all(struct nb_coll_comm *comm, int fd)
{
    int ret = 0;

    for (int i = 0; i < comm->nneighbors && !ret; i++) {
        for (int c = 0; c < NB_CLASS_CONTROL && !ret; c++) {
            struct nb_tx *tx = &comm->neighbors[i]->tx[c];
            struct nb_rx *rx = &comm->neighbors[i]->rx[c];
            ret = register_payload(comm, rx->conn, fd, &rx->body_mhandle);
            if (!ret)
                ret = register_payload(comm, tx->conn, fd, &tx->body_mhandle);
        }
    }
    return ret;
}

static void unregister_payloads(struct nb_coll_comm *comm)
{
    for (int i = 0; i < comm->nneighbors; i++) {
        for (int c = 0; c < NB_CLASS_CONTROL; c++) {
            struct nb_tx *tx = &comm->neighbors[i]->tx[c];
            struct nb_rx *rx = &comm->neighbors[i]->rx[c];
            if (rx->conn && rx->body_mhandle)
                comm->net->dereg_mr(rx->conn, rx->body_mhandle);
            if (tx->conn && tx->body_mhandle)
                comm->net->dereg_mr(tx->conn, tx->body_mhandle);
            rx->body_mhandle = tx->body_mhandle = NULL;
        }
    }
}

/* Register by DMA-BUF, and where that fails by address. A failure is no warning: host memory serves, too. */
static int register_payloads(struct nb_coll_comm *comm)
{
    struct nb_staging *s = &comm->flow->staging;
    const int kinds = reached(comm);
    int ret = -ENOTSUP, fd;

    nb_log_mildly(true);
    if (kinds & NB_MEM_DMABUF && comm->net->reg_mr_dmabuf) {
        fd = comm->device->ops->dmabuf(comm->device, s->payload, s->payload_bytes);
        ret = fd < 0 ? fd : register_with_all(comm, fd);
        if (fd >= 0)
            close(fd);
        if (ret)
            unregister_payloads(comm);
    }
    if (ret && kinds & NB_MEM_CUDA)
        ret = register_with_all(comm, -1);
    nb_log_mildly(false);
    return ret;
}

bool nb_staging_on_device(const struct nb_coll_comm *comm)
{
    return comm->flow->staging.payload != NULL;
}

/* ---- rings ------------------------------------------------------------------------------------------- */

/* Create a receive ring. With `mem` (memory of all such rings) its message buffers can be forwarded. */
static int make_rx(struct nb_coll_comm *comm, struct nb_rx *rx, size_t buffer_bytes, unsigned buffers,
                   uint8_t *mem, uint8_t *bodies)
{
    buffer_bytes = kept(comm, buffer_bytes);
    rx->buffer_bytes = buffer_bytes;
    rx->buffers = buffers;
    rx->window = buffers < POSTED_MAX ? buffers : POSTED_MAX;
    rx->req = calloc(buffers, sizeof(*rx->req));
    rx->len = calloc(buffers, sizeof(*rx->len));
    rx->mem = mem ? mem : wire_alloc(comm, buffer_bytes * buffers);
    if (mem) {
        rx->shared = calloc(buffers, sizeof(*rx->shared));
        if (!rx->shared) /* otherwise nb_staging_destroy would take the memory for the ring's own */
            rx->mem = NULL;
        for (unsigned i = 0; rx->shared && i < buffers; i++)
            rx->shared[i] = (struct nb_shared){.buf = mem + i * buffer_bytes, .ready = 1};
    }
    rx->held = calloc(buffers, sizeof(*rx->held));
    rx->bodies = bodies;
    rx->body_bytes = body_bytes(comm);
    for (unsigned i = 0; rx->shared && i < buffers; i++)
        rx->shared[i].body = bodies ? bodies + i * rx->body_bytes : NULL;
    return rx->req && rx->len && rx->mem && rx->held && (!mem || rx->shared) ? 0 : -ENOMEM;
}

static int make_tx(struct nb_coll_comm *comm, struct nb_tx *tx, enum nb_class cls, size_t buffer_bytes,
                   unsigned buffers)
{
    buffer_bytes = kept(comm, buffer_bytes);
    tx->cls = cls;
    tx->buffer_bytes = buffer_bytes;
    tx->buffers = buffers;
    tx->bodies = cls == NB_CLASS_CONTROL ? NULL : take_payload(comm, buffers);
    tx->body_bytes = body_bytes(comm);
    tx->item = calloc(buffers, sizeof(*tx->item));
    tx->mem = wire_alloc(comm, buffer_bytes * buffers);
    return tx->item && tx->mem ? 0 : -ENOMEM;
}

static int make_pool(struct nb_coll_comm *comm, struct nb_pool *pool, size_t buffer_bytes, unsigned buffers)
{
    uint8_t *bodies = take_payload(comm, buffers);

    buffer_bytes = kept(comm, buffer_bytes);
    pool->buffer_bytes = buffer_bytes;
    pool->buffers = buffers;
    pool->shared = calloc(buffers, sizeof(*pool->shared));
    pool->mem = wire_alloc(comm, buffer_bytes * buffers);
    if (!pool->shared || !pool->mem)
        return -ENOMEM;
    for (unsigned i = 0; i < buffers; i++)
        pool->shared[i] = (struct nb_shared){.buf = pool->mem + i * buffer_bytes,
                                             .body = bodies ? bodies + i * body_bytes(comm) : NULL};
    return 0;
}

/* Return the bytes that hold any coded unit with its header. */
static size_t message_buffer_bytes(size_t unit)
{
    return round_up(NB_MSG_MAX_BYTES + nb_codec_most(unit), 64);
}

int nb_staging_create(struct nb_coll_comm *comm)
{
    const struct nb_params *p = comm->ctx->params;
    /* On a grid this node also forwards messages of the column along the row. */
    size_t peers = (size_t)comm->nneighbors, forwarded = peers + (size_t)comm->grid.rows - 1, left, each, own;
    const bool on_device = !comm->flow->staging.refused && reached(comm);
    uint8_t *at;
    unsigned credits = (unsigned)p->credits;
    int ret = 0;

    comm->unit = (size_t)p->unit_bytes / 4096 * 4096;
    comm->buffer_bytes = message_buffer_bytes(comm->unit);
    if (comm->shadow && !(comm->flow->scratch.mem = wire_alloc(comm, 2 * comm->buffer_bytes)))
        return -ENOMEM;
    /* Two classes in each direction with every peer, and two pools. All message buffers count, although
     * untouched ones cost no memory. */
    each = (peers * 4 + 2) * whole_bytes(comm, on_device);
    do { /* another communicator may take memory after the check */
        left = nb_budget_left(comm->ctx->budgets, NB_BUDGET_STAGING);
        if (left < each)
            return -ENOMEM;
        if (credits > left / each)
            credits = (unsigned)(left / each);
    } while (nb_budget_take(comm->ctx->budgets, NB_BUDGET_STAGING, each * credits));
    comm->staging_bytes = each * credits;
    if (credits < (unsigned)p->credits)
        NB_INFO(NCCL_INIT | NCCL_NET,
                "%s: %u instead of %lld credits, more do not fit into NIBBLE_STAGING_MAX_MB", comm->label,
                credits, (long long)p->credits);
    comm->flow->reduce.partial =
        comm->device->ops->alloc(comm->device, NB_PLACE_STATE, NB_PARTIALS * comm->unit);
    if (on_device)
        make_payload(comm, (peers * 4 + 2) * credits);
    own = comm->flow->staging.payload ? HEAD_BYTES : comm->buffer_bytes;
    comm->flow->staging.arrivals_bytes = forwarded * credits * kept(comm, own);
    comm->flow->staging.arrivals = wire_alloc(comm, comm->flow->staging.arrivals_bytes);
    if (!comm->flow->staging.arrivals || !comm->flow->reduce.partial)
        ret = -ENOMEM;
    at = comm->flow->staging.arrivals;
    for (int i = 0; i < comm->nneighbors && !ret; i++) {
        struct nb_peer *peer = comm->neighbors[i];
        int column = nb_on_grid(comm) && nb_grid_same_column(comm->grid, peer->rank, comm->rank);
        ret = make_rx(comm, &peer->rx[NB_CLASS_CONTRIB], own, credits, at, take_payload(comm, credits));
        at += credits * kept(comm, own);
        if (!ret)
            ret = make_rx(comm, &peer->rx[NB_CLASS_RESULT], own, credits, column ? at : NULL,
                          take_payload(comm, credits));
        at += column ? credits * kept(comm, own) : 0;
        for (int c = 0; c < NB_CLASS_CONTROL && !ret; c++)
            ret = make_tx(comm, &peer->tx[c], (enum nb_class)c, own, credits);
        if (!ret)
            ret = make_rx(comm, &peer->rx[NB_CLASS_CONTROL], CONTROL_RX_BYTES, CONTROL_SLOTS_RX, NULL, NULL);
        if (!ret)
            ret = make_tx(comm, &peer->tx[NB_CLASS_CONTROL], NB_CLASS_CONTROL, 256,
                          nb_on_grid(comm) ? CONTROL_SLOTS_GRID : CONTROL_SLOTS_TX);
        peer->flow->raw.answer.buf = wire_alloc(comm, CONTROL_RX_BYTES);
        peer->flow->raw.most = nb_on_grid(comm) ? NB_GRID_MOST : NB_ASKS;
        peer->flow->raw.ask = calloc(peer->flow->raw.most, sizeof(*peer->flow->raw.ask));
        if (!peer->flow->raw.answer.buf || !peer->flow->raw.ask)
            ret = -ENOMEM;
    }
    if (!ret)
        ret = make_pool(comm, &comm->flow->gather.units, own, credits);
    if (!ret)
        ret = make_pool(comm, &comm->flow->reduce.results, own, credits);
    return ret;
}

static void free_pool(struct nb_coll_comm *comm, struct nb_pool *pool)
{
    wire_free(comm, pool->mem, pool->buffer_bytes * pool->buffers);
    free(pool->shared);
    memset(pool, 0, sizeof(*pool));
}

void nb_staging_destroy(struct nb_coll_comm *comm)
{
    if (!comm->flow)
        return;
    for (int i = 0; i < comm->nneighbors; i++) {
        for (int c = 0; c < NB_CLASS_COUNT; c++) {
            struct nb_tx *tx = &comm->neighbors[i]->tx[c];
            struct nb_rx *rx = &comm->neighbors[i]->rx[c];
            if (!rx->shared) /* otherwise it lies in `arrivals` */
                wire_free(comm, rx->mem, rx->buffer_bytes * rx->buffers);
            wire_free(comm, tx->mem, tx->buffer_bytes * tx->buffers);
            free(rx->req);
            free(rx->len);
            free(rx->shared);
            free(rx->held);
            free(tx->item);
            *tx = (struct nb_tx){.conn = tx->conn};
            *rx = (struct nb_rx){.conn = rx->conn};
        }
        wire_free(comm, comm->neighbors[i]->flow->raw.answer.buf, CONTROL_RX_BYTES);
        free(comm->neighbors[i]->flow->raw.ask);
        memset(&comm->neighbors[i]->flow->raw, 0, sizeof(comm->neighbors[i]->flow->raw));
    }
    wire_free(comm, comm->flow->staging.arrivals, comm->flow->staging.arrivals_bytes);
    comm->device->ops->free(comm->device, NB_PLACE_STATE, comm->flow->reduce.partial,
                            NB_PARTIALS * comm->unit);
    if (comm->flow->staging.payload)
        comm->device->ops->free(comm->device, NB_PLACE_PAYLOAD, comm->flow->staging.payload,
                                comm->flow->staging.payload_bytes);
    free_pool(comm, &comm->flow->gather.units);
    free_pool(comm, &comm->flow->reduce.results);
    wire_free(comm, comm->flow->scratch.mem, 2 * comm->buffer_bytes);
    nb_budget_give(comm->ctx->budgets, NB_BUDGET_STAGING, comm->staging_bytes);
    comm->flow->staging = (struct nb_staging){.refused = comm->flow->staging.refused};
    comm->flow->scratch = (struct nb_scratch){0};
    comm->flow->reduce.partial = NULL;
    comm->staging_bytes = 0;
}

/* ---- registration with the transport ----------------------------------------------------------------- */

/* Tell the transport that the ring tests its receives in order, and post as many as it then takes. With few
 * receives one socket that waits for a lost packet would stop the others. */
static void widen(const struct nb_coll_comm *comm, struct nb_rx *rx)
{
    const unsigned most = comm->net->ordered ? comm->net->ordered(rx->conn) : 0;

    if (most > rx->window)
        rx->window = rx->buffers < most ? rx->buffers : most;
}

int nb_staging_register(struct nb_coll_comm *comm)
{
    const struct nb_net_ops *net = comm->net;
    int ret = comm->flow->staging.payload ? register_payloads(comm) : 0;

    if (ret) {
        NB_INFO(NCCL_INIT | NCCL_NET, "%s: payloads stay in host memory: GPU memory cannot be registered: %s",
                comm->label, strerror(-ret));
        unregister_payloads(comm);
        nb_staging_destroy(comm);
        comm->flow->staging.refused = true;
        ret = nb_staging_create(comm);
    }
    for (int i = 0; i < comm->nneighbors && !ret; i++) {
        for (int c = 0; c < NB_CLASS_COUNT && !ret; c++) {
            struct nb_tx *tx = &comm->neighbors[i]->tx[c];
            struct nb_rx *rx = &comm->neighbors[i]->rx[c];
            struct nb_pool *pool = c == NB_CLASS_CONTRIB  ? &comm->flow->gather.units
                                   : c == NB_CLASS_RESULT ? &comm->flow->reduce.results
                                                          : NULL;
            ret = net->reg_mr(rx->conn, rx->mem, rx->buffer_bytes * rx->buffers, NB_MEM_HOST, &rx->mhandle);
            if (!ret)
                ret =
                    net->reg_mr(tx->conn, tx->mem, tx->buffer_bytes * tx->buffers, NB_MEM_HOST, &tx->mhandle);
            if (!ret && pool)
                ret = net->reg_mr(tx->conn, pool->mem, pool->buffer_bytes * pool->buffers, NB_MEM_HOST,
                                  &tx->shared_mhandle);
            if (!ret && c == NB_CLASS_CONTROL)
                ret = net->reg_mr(tx->conn, comm->neighbors[i]->flow->raw.answer.buf, CONTROL_RX_BYTES,
                                  NB_MEM_HOST, &tx->shared_mhandle);
            if (!ret && c == NB_CLASS_RESULT)
                ret = net->reg_mr(tx->conn, comm->flow->staging.arrivals, comm->flow->staging.arrivals_bytes,
                                  NB_MEM_HOST, &tx->forward_mhandle);
            if (!ret)
                widen(comm, rx);
        }
    }
    if (!ret)
        nb_adapter_give(comm);
    return ret;
}

void nb_staging_unregister(struct nb_coll_comm *comm)
{
    const struct nb_net_ops *net = comm->net;

    nb_adapter_take_back(comm);
    /* Receives stay posted while a connection lives, and peers may still send heartbeats. */
    for (int i = 0; net->leave && i < comm->nneighbors; i++)
        for (int c = 0; c < NB_CLASS_COUNT; c++)
            if (comm->neighbors[i]->rx[c].conn)
                net->leave(comm->neighbors[i]->rx[c].conn);
    for (int i = 0; i < comm->nneighbors; i++) {
        for (int c = 0; c < NB_CLASS_COUNT; c++) {
            struct nb_tx *tx = &comm->neighbors[i]->tx[c];
            struct nb_rx *rx = &comm->neighbors[i]->rx[c];
            if (rx->conn && rx->mhandle)
                net->dereg_mr(rx->conn, rx->mhandle);
            if (tx->conn && tx->mhandle)
                net->dereg_mr(tx->conn, tx->mhandle);
            if (tx->conn && tx->shared_mhandle)
                net->dereg_mr(tx->conn, tx->shared_mhandle);
            if (tx->conn && tx->forward_mhandle)
                net->dereg_mr(tx->conn, tx->forward_mhandle);
            rx->mhandle = tx->mhandle = tx->shared_mhandle = tx->forward_mhandle = NULL;
        }
    }
    unregister_payloads(comm);
}
