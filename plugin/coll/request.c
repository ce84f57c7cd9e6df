/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of NCCL's proxy thread. They check a window, put it into the ring, and later find it done. They
 * never wait, allocate, encode or touch a connection. */
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/nccl_names.h"
#include "coll/coll.h"
#include "coll/comm/comm.h"
#include "coll/engine.h"
#include "coll/flow/flow.h"
#include "policy/records/records.h"

/* ---- windows ----------------------------------------------------------------------------------------- */

static int valid_comm(const struct nb_coll_comm *comm, const char *call)
{
    if (comm && comm->magic == NB_COMM_MAGIC)
        return 1;
    NB_WARN("%s: not a collective communicator of nibble: %p", call, (const void *)comm);
    return 0;
}

/* The arguments of the three functions. `block` is 0 for an all-reduce, each window of which is an
 * operation. */
struct window {
    enum nb_func func;
    ncclDataType_t type;
    ncclRedOp_t op;
    size_t value;
    const void *send;
    void *recv;
    uint64_t off, bytes, part_off, block, size;
};

static int bad_window(const struct nb_coll_comm *comm, const struct window *w, const char *why)
{
    NB_WARN("%s: %s window of %llu bytes at %llu, %llu bytes a rank, type %s: %s", comm->label,
            nb_func_name(w->func), (unsigned long long)w->bytes, (unsigned long long)w->off,
            (unsigned long long)w->block, nb_nccl_type_name(w->type), why);
    return -EINVAL;
}

/* Return the operation that the window begins or continues, or NULL and *why. Under submit.lock. */
static struct nb_op *place(struct nb_coll_comm *comm, const struct window *w, const char **why)
{
    struct nb_op *op = comm->submit.open_op;

    if (op && w->off == comm->submit.open_off && op->func == w->func && op->type == w->type &&
        op->redop == w->op && op->block == w->block)
        return op;
    if (op) {
        *why = "does not continue the operation whose windows are coming in";
        return NULL;
    }
    if (w->off != 0) {
        *why = "an operation must begin at offset 0";
        return NULL;
    }
    op = &comm->submit.ops[comm->submit.next_opno % NB_OPS];
    memset(op, 0, sizeof(*op));
    op->opno = comm->submit.next_opno++;
    op->func = w->func;
    op->type = w->type;
    op->redop = w->op;
    op->value = w->value;
    op->block = w->block;
    return op;
}

/* Find the slot of an all-reduce window in NCCL's buffer: eight slots for sending, then eight for receiving,
 * of the same layout. A window lies at the same place of both. Each side may be in the host's or the device's
 * buffer, which are of one size (see below). Under submit.lock. */
static void locate(const struct nb_coll_comm *comm, struct nb_coll_req *win)
{
    const int known = !comm->submit.region[0].base;
    size_t size = comm->submit.region[known].size, stride = size / (2 * NB_WALK_SLOTS);
    uint64_t place[2] = {0, 0};
    int found = 0;

    if (stride == 0)
        return;
    for (int side = 0; side < 2; side++) {
        uintptr_t p = (uintptr_t)(side ? win->recv : (const uint8_t *)win->send);
        for (int i = 0; i < 2 && found == side; i++) {
            uintptr_t base = (uintptr_t)comm->submit.region[i].base + (side ? size / 2 : 0);
            if (comm->submit.region[i].base && p >= base && p - base < size / 2) {
                place[side] = p - base;
                found++;
            }
        }
    }
    if (found != 2 || place[0] != place[1] || place[0] % stride + win->bytes > stride)
        return;
    win->slot = (unsigned)(place[0] / stride);
    win->at = place[0] % stride;
}

static int submit(struct nb_coll_comm *comm, struct window *w, struct nb_coll_req **req)
{
    struct nb_coll_req *win;
    const char *why = "";
    uint64_t total;
    int ret = 0;

    *req = NULL;
    ret = nb_comm_shown_error(comm);
    if (!ret)
        ret = nb_stuck_check(comm);
    if (ret)
        return ret;
    if (!w->value || w->bytes == 0 || w->bytes % w->value || w->off % w->value || w->block % w->value)
        return bad_window(comm, w, "not a whole number of values, or empty");
    if (w->func == NB_FUNC_ALL_REDUCE) {
        total = w->bytes;
    } else {
        if (w->block == 0 || w->block > (UINT64_C(1) << 60) / (uint64_t)comm->nnodes)
            return bad_window(comm, w, "bytes per rank out of range");
        total = w->block * (uint64_t)comm->nnodes;
        if (w->off > total || w->bytes > total - w->off)
            return bad_window(comm, w, "reaches beyond the vector");
    }
    if (w->bytes > (UINT64_C(1) << 40))
        return bad_window(comm, w, "longer than any window NCCL has");

    pthread_mutex_lock(&comm->submit.lock);
    uint64_t seq = atomic_load_explicit(&comm->submitted, memory_order_relaxed);
    win = nb_window(comm, seq);
    if (atomic_load_explicit(&win->state, memory_order_acquire) != NB_REQ_FREE)
        goto out; /* impossible with NCCL, which has fewer windows in flight than the ring holds */
    struct nb_op *op = place(comm, w, &why);
    if (!op) {
        ret = bad_window(comm, w, why);
        goto out;
    }
    if (w->func == NB_FUNC_ALL_REDUCE)
        op->block = w->bytes;
    comm->submit.open_off = w->off + w->bytes;
    comm->submit.open_op = comm->submit.open_off == total ? NULL : op;
    win->magic = NB_REQ_MAGIC;
    win->comm = comm;
    win->seq = seq;
    win->op = op;
    win->send = w->send;
    win->recv = w->recv;
    win->off = w->off;
    win->bytes = w->bytes;
    win->part_off = w->part_off;
    win->size = w->size;
    win->slot = NB_WALK_SLOTS;
    if (w->func == NB_FUNC_ALL_REDUCE)
        locate(comm, win);
    atomic_store_explicit(&win->state, NB_REQ_ACTIVE, memory_order_relaxed);
    atomic_store(&comm->submitted, seq + 1);
    *req = win;
out:
    pthread_mutex_unlock(&comm->submit.lock);
    if (*req)
        nb_engine_kick(comm->engine);
    return ret;
}

/* Return the length and *beg of the window's overlap with the own block. */
static uint64_t own_part(const struct nb_coll_comm *comm, const struct window *w, uint64_t *beg)
{
    uint64_t block_beg, block_end, end = w->off + w->bytes;

    *beg = 0;
    if (w->block > (UINT64_C(1) << 60) / (uint64_t)comm->nnodes || w->bytes > (UINT64_C(1) << 60) ||
        w->off > (UINT64_C(1) << 60))
        return 0; /* refused by submit */
    block_beg = (uint64_t)comm->rank * w->block;
    block_end = block_beg + w->block;
    *beg = w->off > block_beg ? w->off : block_beg;
    if (end > block_end)
        end = block_end;
    return end > *beg ? end - *beg : 0;
}

int nb_coll_iallreduce(struct nb_coll_comm *comm, const void *send, void *recv, size_t count,
                       ncclDataType_t type, ncclRedOp_t op, struct nb_coll_req **req)
{
    struct window w = {.func = NB_FUNC_ALL_REDUCE,
                       .type = type,
                       .op = op,
                       .value = nb_nccl_type_size(type),
                       .send = send,
                       .recv = recv};

    *req = NULL;
    if (!valid_comm(comm, "iallreduce"))
        return -EINVAL;
    if (w.value && count > (UINT64_C(1) << 40) / w.value)
        return bad_window(comm, &w, "count out of range");
    w.bytes = w.size = count * w.value;
    if (!send || !recv)
        return bad_window(comm, &w, "a buffer is NULL");
    if (!nb_exact_supported(type, op))
        return bad_window(comm, &w, "this type and reduction are not supported (reduceSupport says so)");
    return submit(comm, &w, req);
}

int nb_coll_iallgather(struct nb_coll_comm *comm, const void *send, void *recv, size_t recv_bytes,
                       size_t bytes_per_rank, size_t window_offset, size_t window_bytes,
                       struct nb_coll_req **req)
{
    struct window w = {.func = NB_FUNC_ALL_GATHER,
                       .type = ncclInt8,
                       .op = ncclSum,
                       .value = 1,
                       .send = send,
                       .recv = recv,
                       .off = window_offset,
                       .bytes = window_bytes,
                       .block = bytes_per_rank,
                       .size = window_bytes};

    *req = NULL;
    if (!valid_comm(comm, "iallgather"))
        return -EINVAL;
    if (recv_bytes < window_bytes)
        return bad_window(comm, &w, "the receive part is shorter than the window");
    if (!recv || (own_part(comm, &w, &w.part_off) && !send))
        return bad_window(comm, &w, "a buffer is NULL");
    return submit(comm, &w, req);
}

int nb_coll_ireducescatter(struct nb_coll_comm *comm, const void *send, size_t send_bytes, void *recv,
                           size_t bytes_per_rank, size_t window_offset, size_t window_bytes,
                           ncclDataType_t type, ncclRedOp_t op, struct nb_coll_req **req)
{
    struct window w = {.func = NB_FUNC_REDUCE_SCATTER,
                       .type = type,
                       .op = op,
                       .value = nb_nccl_type_size(type),
                       .send = send,
                       .recv = recv,
                       .off = window_offset,
                       .bytes = window_bytes,
                       .block = bytes_per_rank};

    *req = NULL;
    if (!valid_comm(comm, "ireducescatter"))
        return -EINVAL;
    if (send_bytes < window_bytes)
        return bad_window(comm, &w, "the send part is shorter than the window");
    if (!nb_exact_supported(type, op))
        return bad_window(comm, &w, "this type and reduction are not supported (reduceSupport says so)");
    w.size = own_part(comm, &w, &w.part_off);
    if (!send || (w.size && !recv))
        return bad_window(comm, &w, "a buffer is NULL");
    return submit(comm, &w, req);
}

/* Flushing has no work: host memory that a CPU thread wrote is visible everywhere. */
int nb_coll_iflush(struct nb_coll_comm *comm, void *data, size_t size, struct nb_coll_req **req)
{
    (void)data;
    (void)size;
    *req = NULL;
    if (!valid_comm(comm, "iflush"))
        return -EINVAL;
    return nb_comm_shown_error(comm);
}

int nb_coll_test(struct nb_coll_req *req, int *done, size_t *size)
{
    int err;

    *done = 0;
    if (!req || req->magic != NB_REQ_MAGIC ||
        atomic_load_explicit(&req->state, memory_order_acquire) == NB_REQ_FREE) {
        NB_WARN("test: not an open request of nibble: %p", (const void *)req);
        return -EINVAL;
    }
    err = nb_comm_shown_error(req->comm);
    if (err)
        return err;
    if (atomic_load_explicit(&req->state, memory_order_acquire) != NB_REQ_DONE) {
        if (!atomic_load_explicit(&req->comm->asked, memory_order_relaxed)) /* keeps the line shared */
            atomic_store_explicit(&req->comm->asked, 1, memory_order_relaxed);
        return nb_stuck_check(req->comm);
    }
    *done = 1;
    if (size)
        *size = req->size;
    atomic_store_explicit(&req->state, NB_REQ_FREE, memory_order_release);
    return 0;
}

int nb_coll_reduce_support(ncclDataType_t type, ncclRedOp_t op)
{
    return nb_exact_supported(type, op);
}

int nb_record_push(struct nb_coll_comm *comm, const struct nb_record *r)
{
    if (r->bytes == 0 || nb_nccl_type_size(r->type) == 0 ||
        (r->func == NB_FUNC_ALL_REDUCE &&
         (r->heads <= 1 || (r->head >= 0 && r->heads >> (r->head + 1) == 0))))
        return -EINVAL;
    return nb_queue_push(comm->queue, r);
}

bool nb_requests_unfinished(struct nb_coll_comm *comm)
{
    bool more;

    pthread_mutex_lock(&comm->submit.lock);
    more = comm->submit.open_op != NULL;
    pthread_mutex_unlock(&comm->submit.lock);
    return more || atomic_load(&comm->submitted) != atomic_load(&comm->finished);
}

/* ---- NCCL's buffer ----------------------------------------------------------------------------------- */

/*
 * NCCL's registrations of its own buffer (regMr, deregMr).
 *
 * NCCL registers its buffer once or more for each side (send, receive) of every channel when it connects:
 * always the same region, before any other. Where GPU-direct serves one side only (NCCL_NET_GDR_READ=0:
 * receives), NCCL has two buffers of one size (collNet->size), one in host memory and one in the GPU's, and
 * each side uses its half of its own buffer.
 *
 * Other buffers are a user's. With such buffers, windows of different nodes may differ, which the engine does
 * not match. So it refuses them, and NCCL goes through its own buffer. A user's buffer is in GPU memory, and
 * NCCL registers it only for a side that is GPU-direct (collnetRegisterBuffer). So it comes after NCCL's own
 * buffer of that side and is never taken for it.
 */

int nb_coll_reg_mr_dmabuf(struct nb_coll_comm *comm, void *data, size_t size, int mem_type, uint64_t offset,
                          int fd, void **mhandle)
{
    int ret = -ENOTSUP;

    *mhandle = NULL;
    if (!comm || comm->magic != NB_COMM_MAGIC || !data || !size) {
        NB_WARN("regMr: communicator %p, %zu bytes at %p", (void *)comm, size, data);
        return -EINVAL;
    }
    if (mem_type != NCCL_PTR_HOST && (mem_type != NCCL_PTR_CUDA || comm->device->ops->host_memory)) {
        NB_WARN("%s: regMr: memory of type %d, but its codecs run on device %s", comm->label, mem_type,
                comm->device->ops->name);
        return -EINVAL;
    }
    const int at = mem_type == NCCL_PTR_CUDA, other = !at;
    pthread_mutex_lock(&comm->submit.lock);
    if (comm->submit.region[at].base
            ? comm->submit.region[at].base == data && comm->submit.region[at].size == size
            : !comm->submit.region[other].base || comm->submit.region[other].size == size) {
        comm->submit.region[at].base = data;
        comm->submit.region[at].size = size;
        comm->submit.region[at].refs++;
        *mhandle = &comm->submit.region[at];
        ret = 0;
    }
    pthread_mutex_unlock(&comm->submit.lock);
    if (!ret && comm->device->ops->region && comm->device->ops->region(comm->device, data, size, fd, offset))
        NB_WARN("%s: regMr: out of memory",
                comm->label); /* its windows will fail. regMr must not fail on one node alone */
    if (ret)
        NB_INFO(NCCL_REG, "%s: user buffer of %zu bytes is not registered: NCCL uses its own buffer",
                comm->label, size);
    return ret;
}

int nb_coll_reg_mr(struct nb_coll_comm *comm, void *data, size_t size, int mem_type, void **mhandle)
{
    return nb_coll_reg_mr_dmabuf(comm, data, size, mem_type, 0, -1, mhandle);
}

/* Deregister. NCCL frees its buffer with the first deregistration, before it closes the communicator. After
 * an abort windows may still be open, and the engine must leave them alone from here on. */
int nb_coll_dereg_mr(struct nb_coll_comm *comm, void *mhandle)
{
    const void *gone = NULL;
    int ret = -EINVAL, aborts;

    if (!comm || comm->magic != NB_COMM_MAGIC) {
        NB_WARN("deregMr: not a collective communicator of nibble: %p", (void *)comm);
        return -EINVAL;
    }
    pthread_mutex_lock(&comm->submit.lock);
    for (int i = 0; i < 2; i++) {
        if (mhandle == &comm->submit.region[i] && comm->submit.region[i].refs > 0) {
            if (--comm->submit.region[i].refs == 0) {
                gone = comm->submit.region[i].base;
                comm->submit.region[i].base = NULL;
            }
            ret = 0;
        }
    }
    pthread_mutex_unlock(&comm->submit.lock);
    if (ret) {
        NB_WARN("%s: deregMr: unknown registration %p", comm->label, mhandle);
        return ret;
    }
    aborts = nb_requests_unfinished(comm);
    if (nb_stuck_lock(comm)) {
        NB_WARN("%s: deregMr: its engine is stuck, so that it may still use the buffer", comm->label);
        return -ETIMEDOUT;
    }
    if (aborts) {
        nb_comm_fail(comm, -ECONNABORTED, "the communicator was closed with unfinished operations");
        nb_engine_wake(comm->engine); /* the engine tells the peers */
    }
    if (nb_comm_failed(comm)) /* the engine has stopped, but the device may still work */
        ret = nb_tasks_abandon(comm);
    if (ret)
        NB_WARN("%s: deregMr: work on its buffer does not end", comm->label);
    if (gone && comm->device->ops->region)
        comm->device->ops->region(comm->device, gone, 0, -1, 0);
    nb_turn_lock_give(&comm->progress_lock);
    return ret;
}
