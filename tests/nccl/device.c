/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's kernels for CollNet-direct with one GPU a node, on the thread of a stream: all-reduce,
 * reduce-scatter and all-gather. A kernel has blocks, a block serves one channel and carries out a list of
 * works there. Each work has two flows: one puts chunks into the buffer that NCCL's proxy sends from, the
 * other one takes chunks out of the buffer that the proxy receives into. Both count steps:
 *
 *     sending    the kernel counts in `tail`, the proxy in `head`. At most STEPS steps are under way
 *     receiving  the proxy counts in `tail`, the kernel in `head`
 *
 * The proxy does the sums, so that a flow only moves bytes. See library.h.
 */
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "library.h"
#include "nibble/nccl_types.h"

#define STEPS 8 /* of a connection's buffer */
#define COMMS 64
#define COLLNET_DIRECT 2
#define SIMPLE 2
#define DEVICE_SUM 0
#define COLLECTIVE 1   /* kind of a batch of works */
#define IN_ARGUMENTS 0 /* storage of works */
#define BY_OFFSET 1    /* mode of a step: its place is an offset */

static const void *comms[COMMS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void replace(const void *old, const void *comm)
{
    int i = 0;

    pthread_mutex_lock(&lock);
    while (i < COMMS && comms[i] != old)
        i++;
    if (i == COMMS)
        die("too many communicators, or an unknown one");
    comms[i] = comm;
    pthread_mutex_unlock(&lock);
}

void device_comm(const void *comm)
{
    replace(NULL, comm);
}

void device_forget(const void *comm)
{
    replace(comm, NULL);
}

/* ---- What the host says of an operation ---------------------------------------------------------------- */

static const void *plan_of(const void *args)
{
    const void *plan = NULL;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < COMMS && !plan; i++) {
        plan = comms[i] ? pointer_at(comms[i], at.plan_queue) : NULL;
        while (plan && pointer_at(plan, at.plan_args) != args)
            plan = pointer_at(plan, at.plan_next);
    }
    pthread_mutex_unlock(&lock);
    if (!plan)
        die("a kernel of an unknown communicator");
    return plan;
}

static const void *task_of(const void *plan, const void *work)
{
    const void *task = pointer_at(plan, at.plan_tasks);

    while (task && (pointer_at(task, at.task_send) != pointer_at(work, at.work_send) ||
                    pointer_at(task, at.task_recv) != pointer_at(work, at.work_recv)))
        task = pointer_at(task, at.task_next);
    if (!task)
        die("a work of an unknown operation");
    return task;
}

static size_t bytes_of(int type)
{
    static const unsigned char bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

    if (type < 0 || type >= (int)sizeof(bytes))
        die("unknown type %d", type);
    return bytes[type];
}

/* ---- A kernel ------------------------------------------------------------------------------------------ */

struct work {
    struct work *next;
    int func;
    unsigned part, parts; /* this channel's number among the work's channels */
    size_t block;         /* bytes of an all-reduce, or of the part of one rank */
    size_t chunk;
    const char *send;
    char *recv;
};

struct flow {
    char *conn;
    uint64_t step;
    size_t grid;
    bool ends;
};

struct block {
    char *channel, *peer;
    struct work *first, **last;
    struct flow out, in;
    unsigned done;
};

struct kernel {
    char *comm;
    const volatile uint32_t *abort;
    size_t node, nodes;
    unsigned blocks;
    struct block block[];
};

static size_t min(size_t a, size_t b)
{
    return a < b ? a : b;
}

static void add_work(struct block *b, const void *plan, const char *work, unsigned channel)
{
    const void *task = task_of(plan, work);
    const int func = int_at(task, at.task_func), algo = (int)bits_at(task, at.task_algo);
    const size_t size = bytes_of(int_at(task, at.task_type));
    struct work *w = malloc(sizeof(*w));

    if (!w)
        die("no memory");
    if (algo != COLLNET_DIRECT || bits_at(task, at.task_proto) != SIMPLE)
        die("no kernel for algorithm %d with protocol %u", algo, bits_at(task, at.task_proto));
    if (func != ncclFuncAllReduce && func != ncclFuncReduceScatter && func != ncclFuncAllGather)
        die("no kernel for function %d", func);
    if (func != ncclFuncAllGather && int_at(task, at.task_op) != DEVICE_SUM)
        die("no kernel for the reduction %d", int_at(task, at.task_op));
    if (bits_at(work, at.work_registered))
        die("no kernel for registered buffers");
    *w = (struct work){.func = func,
                       .part = channel - bits_at(work, at.work_lo),
                       .parts = bits_at(work, at.work_hi) - bits_at(work, at.work_lo) + 1,
                       .block = u64_at(work, at.work_count) * size,
                       .chunk = (size_t)(unsigned)int_at(work, at.work_chunk) * size,
                       .send = pointer_at(work, at.work_send),
                       .recv = pointer_at(work, at.work_recv)};
    *b->last = w;
    b->last = &w->next;
}

/* Read the works of a block, beginning with batch `i`. */
static void add_works(struct block *b, const void *plan, const char *args, unsigned i, unsigned channel)
{
    const char *const fifo = pointer_at(args, at.args_work);
    const uint32_t mask = (uint32_t)int_at(args, at.args_mask);
    const bool inside = *(const char *)place(args, at.args_storage) == IN_ARGUMENTS;

    for (;;) {
        const char *batch = args + at.args_size.byte + (size_t)i * (size_t)at.batch_size.byte;
        const unsigned jump = bits_at(batch, at.batch_jump);
        const uint64_t set = u64_at(batch, at.batch_set);
        if (bits_at(batch, at.batch_type) != COLLECTIVE)
            die("no kernel for works of kind %u", bits_at(batch, at.batch_type));
        for (unsigned k = 0; k < 64; k++) {
            const uint32_t offset = (uint32_t)int_at(batch, at.batch_base) + k * (uint32_t)at.work_size.byte;
            if (set >> k & 1)
                add_work(b, plan, inside ? args + offset : fifo + (offset & mask), channel);
        }
        if (!jump)
            return;
        i += jump;
    }
}

void *device_kernel(const void *args, size_t size, unsigned blocks)
{
    const void *plan = plan_of(args);
    uint64_t channels = u64_at(args, at.args_channels);
    struct kernel *k = calloc(1, sizeof(*k) + blocks * sizeof(k->block[0]));

    (void)size;
    if (!k)
        die("no memory");
    k->comm = pointer_at(args, at.args_comm);
    k->abort = pointer_at(k->comm, at.comm_abort);
    k->node = (size_t)int_at(k->comm, at.comm_node);
    k->nodes = (size_t)int_at(k->comm, at.comm_nnodes);
    k->blocks = blocks;
    if (int_at(k->comm, at.comm_nranks) != (int)k->nodes || int_at(k->comm, at.comm_rank) != (int)k->node)
        die("no kernel for several GPUs a node");
    for (unsigned i = 0; i < blocks; i++) {
        struct block *b = &k->block[i];
        const unsigned channel = (unsigned)__builtin_ctzll(channels);
        if (!channels)
            die("a kernel has more blocks than channels");
        channels &= channels - 1;
        b->channel = (char *)pointer_at(k->comm, at.comm_channels) + channel * (size_t)at.channel_size.byte;
        if (int_at(b->channel, at.direct_heads) != 1)
            die("no kernel for %d heads a node", int_at(b->channel, at.direct_heads));
        b->peer = ((char **)pointer_at(b->channel, at.channel_peers))[int_at(b->channel, at.direct_out)];
        b->last = &b->first;
        add_works(b, plan, args, i, channel);
    }
    return k;
}

/* ---- Running ------------------------------------------------------------------------------------------- */

static uint64_t *counter(const char *conn, struct place where)
{
    return pointer_at(conn, where);
}

static char *fifo_of(const char *conn, uint64_t step)
{
    char *fifo = pointer_at(conn, at.conn_fifo);

    return fifo ? fifo + step % STEPS * (uint64_t)at.fifo_size.byte : NULL;
}

/* Return the place of a step in the connection's buffer for the protocol Simple. */
static char *buffer_of(const char *conn, uint64_t step)
{
    char *buffer = ((char *const *)place(conn, at.conn_buffs))[SIMPLE];
    const char *fifo = fifo_of(conn, step);

    if (fifo && int_at(fifo, at.fifo_mode) == BY_OFFSET)
        return buffer + number_at(fifo, at.fifo_offset);
    return buffer + step % STEPS * (uint64_t)int_at(conn, at.conn_step_size);
}

static size_t total(const struct kernel *k, const struct work *w)
{
    return w->func == ncclFuncAllReduce ? w->block : w->block * k->nodes;
}

/* Return the range of this flow's chunk in the operation. */
static size_t range(const struct kernel *k, const struct work *w, const struct flow *f, size_t *end)
{
    const size_t all = total(k, w), begin = min(f->grid + w->part * w->chunk, all);

    *end = min(begin + w->chunk, all);
    return begin;
}

/* Return the part of own node's block in [*begin, *end), as offsets in this block. */
static size_t own_part(const struct kernel *k, const struct work *w, size_t begin, size_t *end)
{
    const size_t from = k->node * w->block, to = from + w->block;

    begin = begin > from ? begin : from;
    *end = min(*end, to);
    if (*end < begin)
        *end = begin;
    *end -= from;
    return begin - from;
}

static size_t fill(const struct kernel *k, const struct work *w, const struct flow *f, char *to)
{
    size_t end, begin = range(k, w, f, &end);

    if (w->func == ncclFuncAllGather)
        begin = own_part(k, w, begin, &end);
    memcpy(to, w->send + begin, end - begin);
    return end - begin;
}

static void empty(const struct kernel *k, const struct work *w, const struct flow *f, const char *from)
{
    size_t end, begin = range(k, w, f, &end);

    if (w->func == ncclFuncReduceScatter)
        begin = own_part(k, w, begin, &end);
    memcpy(w->recv + begin, from, end - begin);
}

static void begin_flow(struct flow *f, char *conn)
{
    f->conn = conn;
    f->step = u64_at(conn, at.conn_step);
    f->grid = 0;
    f->ends = false;
}

/* Do one step of a flow. Return false when it waits for the proxy. */
static bool advance(const struct kernel *k, const struct work *w, struct flow *f, bool sends)
{
    uint64_t *tail = counter(f->conn, at.conn_tail), *head = counter(f->conn, at.conn_head);

    if (f->grid >= total(k, w)) {
        memcpy((char *)f->conn + at.conn_step.byte, &f->step, sizeof(f->step));
        return f->ends = true;
    }
    if (sends) {
        char *fifo = fifo_of(f->conn, f->step);
        if (__atomic_load_n(head, __ATOMIC_ACQUIRE) + STEPS < f->step + 1)
            return false;
        const int64_t n = (int64_t)fill(k, w, f, buffer_of(f->conn, f->step));
        if (fifo)
            memcpy(fifo + at.fifo_bytes.byte, &n, sizeof(n));
        __atomic_store_n(tail, ++f->step, __ATOMIC_RELEASE);
    } else {
        if (__atomic_load_n(tail, __ATOMIC_ACQUIRE) < f->step + 1)
            return false;
        empty(k, w, f, buffer_of(f->conn, f->step));
        __atomic_store_n(head, ++f->step, __ATOMIC_RELEASE);
    }
    f->grid += w->parts * w->chunk;
    return true;
}

/* Let a block go on with its first work. Return whether something moved. */
static bool go_on(struct kernel *k, struct block *b)
{
    struct work *w = b->first;
    bool moved = false;

    if (!w)
        return false;
    if (!b->out.conn) {
        /* Of the peer's four connections: the second one for sending, the first one for receiving. */
        begin_flow(&b->out, b->peer + at.conn_size.byte);
        begin_flow(&b->in, b->peer + at.peer_recv.byte);
    }
    if (!b->out.ends)
        moved |= advance(k, w, &b->out, true);
    if (!b->in.ends)
        moved |= advance(k, w, &b->in, false);
    if (b->out.ends && b->in.ends) {
        b->first = w->next;
        b->out.conn = NULL;
        b->done++;
        free(w);
    }
    return moved;
}

void device_run(void *arg)
{
    struct kernel *k = arg;
    bool works = true;

    while (works && !*k->abort) {
        bool moved = false;
        works = false;
        for (unsigned i = 0; i < k->blocks; i++) {
            moved |= go_on(k, &k->block[i]);
            works |= k->block[i].first != NULL;
        }
        if (!moved)
            sched_yield();
    }
    for (unsigned i = 0; i < k->blocks; i++) {
        struct block *b = &k->block[i];
        const uint64_t done = u64_at(b->channel, at.channel_counter) + b->done;
        memcpy(b->channel + at.channel_counter.byte, &done, sizeof(done));
        while (b->first) {
            struct work *w = b->first;
            b->first = w->next;
            free(w);
        }
    }
    free(k);
}
