/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A communicator's memory, its registrations with NCCL and with the transport, and its end.
 */
#include "coll/setup.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/params.h"
#include "coll/task.h"
#include "state/budget.h"

#define CONTROL_SLOTS_TX 256u
#define CONTROL_SLOTS_GRID (CONTROL_SLOTS_TX + 3 * NB_GRID_MOST) /* what is passed on besides (control.c) */
#define CONTROL_SLOTS_RX 16u
#define CONTROL_RX_BYTES (NB_CTL_BYTES + NB_CTL_DATA_BYTES + 32u) /* to the next cache line */
#define POSTED_MAX 16u /* receives posted at once: within what any ncclNet transport allows */

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* The queue of this communicator's records. Where another group already consumes it (one process that is several
 * nodes), there is no telling whose they are: an own one, which stays empty. */
static struct nb_queue *join_queue(uint64_t comm_id, int nranks)
{
    struct nb_queue *queue = nb_queue_get(comm_id, nb_current_gpu());

    if (queue && nb_queue_attach(queue, nranks) == 0)
        return queue;
    nb_queue_put(queue);
    queue = nb_queue_get(0, -1);
    if (queue && nb_queue_attach(queue, nranks)) {
        nb_queue_put(queue);
        queue = NULL;
    }
    return queue;
}

/* The nodes that this one will be connected with. 0 or -ENOMEM. */
static int find_near(struct nb_coll_comm *comm)
{
    int *rank = calloc((size_t)comm->nranks, sizeof(*rank)), n;

    comm->near = calloc((size_t)comm->nranks, sizeof(struct nb_peer *));
    if (!rank || !comm->near) {
        free(rank);
        return -ENOMEM;
    }
    n = nb_grid_near(comm->grid, comm->rank, rank);
    for (int i = 0; i < n; i++) {
        comm->near[i] = &comm->peer[rank[i]];
        comm->near[i]->linked = 1;
        comm->behind += rank[i] < comm->rank;
    }
    comm->nnear = n;
    free(rank);
    if (!nb_on_grid(comm))
        return 0;
    comm->confirms = calloc(NB_OPS, sizeof(*comm->confirms));
    return comm->confirms ? 0 : -ENOMEM;
}

static struct nb_job *join_job(void)
{
    struct nb_job *job = nb_job_get(nb_current_gpu());

    if (job && nb_job_attach(job)) {
        nb_job_put(job);
        job = NULL;
    }
    return job;
}

static void leave_job(struct nb_coll_comm *comm)
{
    if (!comm->job)
        return;
    nb_job_detach(comm->job);
    nb_job_forget(comm->job, comm->job_comm);
    nb_job_put(comm->job);
}

struct nb_coll_comm *nb_setup_comm(int dev, uint64_t comm_id, const struct nb_net_ops *net, int nranks, int rank)
{
    struct nb_coll_comm *comm = calloc(1, sizeof(*comm));
    struct nb_device_wish wish;

    if (!comm)
        return NULL;
    comm->dev = dev;
    comm->comm_id = comm_id;
    comm->net = net;
    comm->nranks = nranks;
    comm->rank = rank;
    comm->grid = nb_grid_choose(nranks, nb_params()->schedule, nb_params()->group);
    comm->watch = -1;
    wish = (struct nb_device_wish){.gpu = nb_current_gpu(), .nranks = nranks, .comm_id = comm_id};
    comm->device_error = nb_device_choose(&wish, &comm->device);
    if (comm->device_error) /* a reason for the vote; until then something has to be there */
        comm->device = &nb_device_host;
    comm->op_words = ((unsigned)nranks + 63) / 64;
    snprintf(comm->label, sizeof(comm->label), "comm 0x%llx node %d/%d", (unsigned long long)comm_id, rank, nranks);
    pthread_mutex_init(&comm->submit_lock, NULL);
    pthread_mutex_init(&comm->progress_lock, NULL);
    pthread_cond_init(&comm->closed_cond, NULL);
    comm->win = calloc(NB_WINDOWS, sizeof(*comm->win));
    comm->ops = calloc(NB_OPS, sizeof(*comm->ops));
    comm->op_bits = calloc((size_t)NB_OPS * 2 * comm->op_words, sizeof(*comm->op_bits));
    comm->peer = calloc((size_t)nranks, sizeof(*comm->peer));
    comm->feedback = nb_feedback_create(comm->device);
    comm->shadow = nb_params()->shadow;
    /* In shadow mode nobody else holds references, so that nobody has to confirm them. */
    comm->refs = nb_refs_create(comm->device, comm->shadow ? 1 : nranks);
    comm->facts = calloc(NB_OPS, sizeof(*comm->facts));
    comm->report = calloc(NB_SIG_REPORTS, sizeof(*comm->report));
    comm->job_comm = comm_id ? comm_id : (uint64_t)(uintptr_t)comm;
    comm->align = nb_align_create();
    comm->queue = join_queue(comm_id, nranks);
    comm->job = join_job();
    if (!comm->win || !comm->ops || !comm->op_bits || !comm->peer || find_near(comm) || nb_tasks_create(comm) ||
        !comm->feedback || !comm->refs || !comm->facts || !comm->report || !comm->align || !comm->queue || !comm->job) {
        nb_setup_free(comm);
        return NULL;
    }
    for (int r = 0; r < nranks; r++) {
        comm->peer[r].rank = r;
        snprintf(comm->peer[r].name, sizeof(comm->peer[r].name), "node %d", r);
    }
    return comm;
}

/* ---- memory of messages ---------------------------------------------------------------------------- */

static void *wire_alloc(struct nb_coll_comm *comm, size_t bytes)
{
    return comm->device->ops->alloc(comm->device, NB_PLACE_WIRE, bytes);
}

static void wire_free(struct nb_coll_comm *comm, void *p, size_t bytes)
{
    comm->device->ops->free(comm->device, NB_PLACE_WIRE, p, bytes);
}

/* ---- rings ------------------------------------------------------------------------------------------ */

/* With `mem` (of all such rings) its slots can be forwarded. */
static int make_rx(struct nb_coll_comm *comm, struct nb_rx *rx, size_t slot, unsigned slots, uint8_t *mem)
{
    rx->slot = slot;
    rx->slots = slots;
    rx->window = slots < POSTED_MAX ? slots : POSTED_MAX;
    rx->req = calloc(slots, sizeof(*rx->req));
    rx->len = calloc(slots, sizeof(*rx->len));
    rx->mem = mem ? mem : wire_alloc(comm, slot * slots);
    if (mem) {
        rx->unit = calloc(slots, sizeof(*rx->unit));
        for (unsigned i = 0; rx->unit && i < slots; i++)
            rx->unit[i] = (struct nb_shared){.buf = mem + i * slot, .ready = 1};
    }
    rx->held = calloc(slots, sizeof(*rx->held));
    return rx->req && rx->len && rx->mem && rx->held && (!mem || rx->unit) ? 0 : -ENOMEM;
}

static int make_tx(struct nb_coll_comm *comm, struct nb_tx *tx, enum nb_class cls, size_t slot, unsigned slots)
{
    tx->cls = cls;
    tx->slot = slot;
    tx->slots = slots;
    tx->item = calloc(slots, sizeof(*tx->item));
    tx->mem = wire_alloc(comm, slot * slots);
    return tx->item && tx->mem ? 0 : -ENOMEM;
}

static int make_pool(struct nb_coll_comm *comm, struct nb_pool *pool, size_t slot, unsigned slots)
{
    pool->slot = slot;
    pool->slots = slots;
    pool->unit = calloc(slots, sizeof(*pool->unit));
    pool->mem = wire_alloc(comm, slot * slots);
    if (!pool->unit || !pool->mem)
        return -ENOMEM;
    for (unsigned i = 0; i < slots; i++)
        pool->unit[i].buf = pool->mem + i * slot;
    return 0;
}

/* Bytes that hold any coded unit with its header. */
static size_t slot_bytes(size_t unit)
{
    size_t most = unit;

    for (int t = 0; t < NB_DTYPE_COUNT; t++) {
        for (int c = NB_CODEC_RAW; c <= NB_CODEC_INT8; c++) {
            size_t b = nb_encode_bound((enum nb_codec)c, (enum nb_dtype)t, unit / nb_dtype_size((enum nb_dtype)t));
            most = b > most ? b : most;
        }
    }
    for (int w = NB_ULP_8; w <= NB_ULP_32; w *= 2) {
        size_t b = nb_ulp_bound((enum nb_ulp_width)w, unit);
        most = b > most ? b : most;
    }
    return round_up(NB_MSG_MAX_BYTES + most, 64);
}

int nb_setup_memory(struct nb_coll_comm *comm)
{
    const struct nb_params *p = nb_params();
    /* On a grid what comes along the column is forwarded along the row, too. */
    size_t peers = (size_t)comm->nnear, forwarded = peers + (size_t)comm->grid.rows - 1, left, each;
    uint8_t *at;
    unsigned credits = (unsigned)p->credits;
    int ret = 0;

    comm->unit = (size_t)p->unit_bytes / 4096 * 4096;
    comm->unit_slot = slot_bytes(comm->unit);
    if (comm->shadow && !(comm->scratch = wire_alloc(comm, 2 * comm->unit_slot)))
        return -ENOMEM;
    /* Two classes each way with every peer, two pools; counted in full although untouched slots cost nothing. */
    each = (peers * 4 + 2) * comm->unit_slot;
    do { /* another communicator may take some between the look and the grasp */
        left = nb_budget_left(NB_BUDGET_STAGING);
        if (left < each)
            return -ENOMEM;
        if (credits > left / each)
            credits = (unsigned)(left / each);
    } while (nb_budget_take(NB_BUDGET_STAGING, each * credits));
    comm->staging = each * credits;
    if (credits < (unsigned)p->credits)
        NB_INFO(NCCL_INIT | NCCL_NET, "%s: %u instead of %lld credits, more do not fit into NIBBLE_STAGING_MAX_MB",
                comm->label, credits, (long long)p->credits);
    comm->partial = comm->device->ops->alloc(comm->device, NB_PLACE_STATE, NB_PARTIALS * comm->unit);
    comm->arrivals_bytes = forwarded * credits * comm->unit_slot;
    comm->arrivals = wire_alloc(comm, comm->arrivals_bytes);
    if (!comm->arrivals || !comm->partial)
        ret = -ENOMEM;
    at = comm->arrivals;
    for (int i = 0; i < comm->nnear && !ret; i++) {
        struct nb_peer *peer = comm->near[i];
        int column = nb_on_grid(comm) && nb_grid_same_column(comm->grid, peer->rank, comm->rank);
        ret = make_rx(comm, &peer->rx[NB_CLASS_CONTRIB], comm->unit_slot, credits, at);
        at += credits * comm->unit_slot;
        if (!ret)
            ret = make_rx(comm, &peer->rx[NB_CLASS_RESULT], comm->unit_slot, credits, column ? at : NULL);
        at += column ? credits * comm->unit_slot : 0;
        for (int c = 0; c < NB_CLASS_CONTROL && !ret; c++)
            ret = make_tx(comm, &peer->tx[c], (enum nb_class)c, comm->unit_slot, credits);
        if (!ret)
            ret = make_rx(comm, &peer->rx[NB_CLASS_CONTROL], CONTROL_RX_BYTES, CONTROL_SLOTS_RX, NULL);
        if (!ret)
            ret = make_tx(comm, &peer->tx[NB_CLASS_CONTROL], NB_CLASS_CONTROL, 256,
                          nb_on_grid(comm) ? CONTROL_SLOTS_GRID : CONTROL_SLOTS_TX);
        peer->resend.buf = wire_alloc(comm, CONTROL_RX_BYTES);
        peer->ask = calloc(nb_on_grid(comm) ? NB_GRID_MOST : NB_ASKS, sizeof(*peer->ask));
        if (!peer->resend.buf || !peer->ask)
            ret = -ENOMEM;
    }
    if (!ret)
        ret = make_pool(comm, &comm->gather, comm->unit_slot, credits);
    if (!ret)
        ret = make_pool(comm, &comm->result, comm->unit_slot, credits);
    return ret;
}

int nb_setup_register(struct nb_coll_comm *comm)
{
    const struct nb_net_ops *net = comm->net;
    int ret = 0;

    for (int i = 0; i < comm->nnear && !ret; i++) {
        for (int c = 0; c < NB_CLASS_COUNT && !ret; c++) {
            struct nb_tx *tx = &comm->near[i]->tx[c];
            struct nb_rx *rx = &comm->near[i]->rx[c];
            struct nb_pool *pool = c == NB_CLASS_CONTRIB ? &comm->gather : c == NB_CLASS_RESULT ? &comm->result : NULL;
            ret = net->reg_mr(rx->conn, rx->mem, rx->slot * rx->slots, NB_MEM_HOST, &rx->mhandle);
            if (!ret)
                ret = net->reg_mr(tx->conn, tx->mem, tx->slot * tx->slots, NB_MEM_HOST, &tx->mhandle);
            if (!ret && pool)
                ret = net->reg_mr(tx->conn, pool->mem, pool->slot * pool->slots, NB_MEM_HOST, &tx->shared_mhandle);
            if (!ret && c == NB_CLASS_CONTROL)
                ret = net->reg_mr(tx->conn, comm->near[i]->resend.buf, CONTROL_RX_BYTES, NB_MEM_HOST,
                                  &tx->shared_mhandle);
            if (!ret && c == NB_CLASS_RESULT)
                ret = net->reg_mr(tx->conn, comm->arrivals, comm->arrivals_bytes, NB_MEM_HOST, &tx->forward_mhandle);
        }
    }
    return ret;
}

void nb_setup_unregister(struct nb_coll_comm *comm)
{
    const struct nb_net_ops *net = comm->net;

    /* Receives are posted for as long as a connection lives, and peers may still send signs of life. */
    for (int i = 0; net->leave && i < comm->nnear; i++)
        for (int c = 0; c < NB_CLASS_COUNT; c++)
            if (comm->near[i]->rx[c].conn)
                net->leave(comm->near[i]->rx[c].conn);
    for (int i = 0; i < comm->nnear; i++) {
        for (int c = 0; c < NB_CLASS_COUNT; c++) {
            struct nb_tx *tx = &comm->near[i]->tx[c];
            struct nb_rx *rx = &comm->near[i]->rx[c];
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
}

static void free_pool(struct nb_coll_comm *comm, struct nb_pool *pool)
{
    wire_free(comm, pool->mem, pool->slot * pool->slots);
    free(pool->unit);
}

void nb_setup_free(struct nb_coll_comm *comm)
{
    comm->magic = 0;
    nb_watch_close(comm);
    for (int i = 0; i < comm->nnear; i++) {
        for (int c = 0; c < NB_CLASS_COUNT; c++) {
            struct nb_tx *tx = &comm->near[i]->tx[c];
            struct nb_rx *rx = &comm->near[i]->rx[c];
            if (!rx->unit) /* else in `arrivals` */
                wire_free(comm, rx->mem, rx->slot * rx->slots);
            wire_free(comm, tx->mem, tx->slot * tx->slots);
            free(rx->req);
            free(rx->len);
            free(rx->unit);
            free(rx->held);
            free(tx->item);
        }
        wire_free(comm, comm->near[i]->resend.buf, CONTROL_RX_BYTES);
        free(comm->near[i]->ask);
    }
    wire_free(comm, comm->arrivals, comm->arrivals_bytes);
    comm->device->ops->free(comm->device, NB_PLACE_STATE, comm->partial, NB_PARTIALS * comm->unit);
    free_pool(comm, &comm->gather);
    free_pool(comm, &comm->result);
    nb_budget_give(NB_BUDGET_STAGING, comm->staging);
    nb_feedback_destroy(comm->feedback);
    nb_refs_destroy(comm->refs);
    nb_align_destroy(comm->align);
    if (comm->queue)
        nb_queue_detach(comm->queue);
    nb_queue_put(comm->queue);
    leave_job(comm);
    wire_free(comm, comm->scratch, 2 * comm->unit_slot);
    free(comm->facts);
    free(comm->report);
    free(comm->win);
    free(comm->ops);
    free(comm->op_bits);
    free(comm->near);
    free(comm->confirms);
    free(comm->peer);
    nb_tasks_destroy(comm);
    pthread_mutex_destroy(&comm->submit_lock);
    pthread_mutex_destroy(&comm->progress_lock);
    pthread_cond_destroy(&comm->closed_cond);
    comm->device->ops->close(comm->device);
    free(comm);
}

/* ---- NCCL's memory ---------------------------------------------------------------------------------- */

/*
 * NCCL registers its own buffer once or more for each side (send, receive) of every channel when it connects: always
 * the same region, before anything else. Any other is a user's buffer: with it the windows of different nodes may
 * differ, which the engine does not match; refused, NCCL goes through its own buffer.
 */
int nb_coll_reg_mr(struct nb_coll_comm *comm, void *data, size_t size, int mem_type, void **mhandle)
{
    int ret = -ENOTSUP;

    *mhandle = NULL;
    if (!comm || comm->magic != NB_COMM_MAGIC || !data || !size) {
        NB_WARN("regMr: communicator %p, %zu bytes at %p", (void *)comm, size, data);
        return -EINVAL;
    }
    if (mem_type != NCCL_PTR_HOST && (mem_type != NCCL_PTR_CUDA || comm->device == &nb_device_host)) {
        NB_WARN("%s: regMr: memory of type %d, but its codecs run on device %s", comm->label, mem_type,
                comm->device->ops->name);
        return -EINVAL;
    }
    const int at = mem_type == NCCL_PTR_CUDA, other = !at;
    pthread_mutex_lock(&comm->submit_lock);
    if (comm->region[at].base ? comm->region[at].base == data && comm->region[at].size == size
                              : !comm->region[other].base) {
        comm->region[at].base = data;
        comm->region[at].size = size;
        comm->region[at].refs++;
        *mhandle = &comm->region[at];
        ret = 0;
    }
    pthread_mutex_unlock(&comm->submit_lock);
    if (ret)
        NB_INFO(NCCL_REG, "%s: user buffer of %zu bytes is not registered: NCCL uses its own buffer", comm->label, size);
    return ret;
}

/* NCCL is in the middle of something: windows are open, or there are more to come of an operation whose first ones may
 * well be finished. */
static int unfinished(struct nb_coll_comm *comm)
{
    int more;

    pthread_mutex_lock(&comm->submit_lock);
    more = comm->open_op != NULL;
    pthread_mutex_unlock(&comm->submit_lock);
    return more || atomic_load(&comm->submitted) != atomic_load(&comm->finished);
}

/* NCCL frees its buffer with the first deregistration, before it closes the communicator. After an abort windows
 * may still be open: nothing may touch them from here on. */
int nb_coll_dereg_mr(struct nb_coll_comm *comm, void *mhandle)
{
    int ret = -EINVAL, aborts;

    if (!comm || comm->magic != NB_COMM_MAGIC) {
        NB_WARN("deregMr: not a collective communicator of nibble: %p", (void *)comm);
        return -EINVAL;
    }
    pthread_mutex_lock(&comm->submit_lock);
    for (int i = 0; i < 2; i++) {
        if (mhandle == &comm->region[i] && comm->region[i].refs > 0) {
            if (--comm->region[i].refs == 0)
                comm->region[i].base = NULL;
            ret = 0;
        }
    }
    pthread_mutex_unlock(&comm->submit_lock);
    if (ret) {
        NB_WARN("%s: deregMr: unknown registration %p", comm->label, mhandle);
        return ret;
    }
    aborts = unfinished(comm);
    pthread_mutex_lock(&comm->progress_lock);
    if (aborts)
        nb_comm_fail(comm, -ECONNABORTED, "the communicator was closed with unfinished operations");
    if (atomic_load(&comm->error)) /* nothing goes on any more, but the device may be at work */
        nb_tasks_abandon(comm);
    pthread_mutex_unlock(&comm->progress_lock);
    return 0;
}

/* ---- close ------------------------------------------------------------------------------------------ */

int nb_coll_close(struct nb_coll_comm *comm)
{
    uint64_t open;
    int failed, aborts;

    if (!comm || comm->magic != NB_COMM_MAGIC) {
        NB_WARN("closeColl: not a collective communicator of nibble: %p", (void *)comm);
        return -EINVAL;
    }
    open = atomic_load(&comm->submitted) - atomic_load(&comm->finished);
    aborts = unfinished(comm);
    pthread_mutex_lock(&comm->progress_lock);
    failed = atomic_load(&comm->error);
    if (aborts && !failed) {
        /* NCCL is aborting. Peers must not wait for what will never come. */
        NB_INFO(NCCL_NET, "%s: closed in the middle of an operation, with %llu unfinished windows", comm->label,
                (unsigned long long)open);
        nb_comm_fail(comm, -ECONNABORTED, "the communicator was closed with unfinished operations");
    }
    comm->state = NB_COMM_CLOSING;
    comm->close_deadline_ns = (int64_t)nb_now_ns() + nb_params()->close_timeout * (int64_t)NB_NS_PER_S;
    pthread_mutex_unlock(&comm->progress_lock);
    nb_engine_wake(comm->engine);
    pthread_mutex_lock(&comm->progress_lock);
    while (!comm->detached)
        pthread_cond_wait(&comm->closed_cond, &comm->progress_lock);
    nb_tasks_abandon(comm);
    pthread_mutex_unlock(&comm->progress_lock);
    nb_comm_log_summary(comm);
    nb_setup_unregister(comm);
    for (int i = 0; i < comm->nnear; i++) {
        for (int c = 0; c < NB_CLASS_COUNT; c++) {
            comm->net->close_send(comm->near[i]->tx[c].conn);
            comm->net->close_recv(comm->near[i]->rx[c].conn);
        }
    }
    nb_engine_release(comm->engine);
    nb_net_release();
    nb_setup_free(comm);
    return 0;
}
