/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's kernels on the thread of a stream: CollNet-direct, rings, sends and receives with the protocol
 * Simple. A kernel has blocks, a block serves one channel and carries out a list of works there. A work is a
 * collective, or sends and receives that run at the same time. It has flows, which move
 * chunks from the buffers of some connections, and from the user's memory, to the buffers of others. The two
 * sides of a connection count steps. Its sender counts in `tail`, its receiver in `head`, and at most STEPS
 * steps are under way. The other side is NCCL's proxy, or a kernel of another rank on this node.
 * See library.h.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "codec/fp.h"
#include "library.h"
#include "nibble/nccl_types.h"

#define STEPS 8 /* of a connection's buffer */
#define ARITY 7 /* of CollNet-direct */
#define COMMS 64
#define RING 1 /* algorithms */
#define COLLNET_DIRECT 2
#define SIMPLE 2  /* protocol */
#define NONE (-1) /* algorithm of sends and receives */
#define PAIRS 0   /* kinds of a batch of works: sends and receives in pairs */
#define COLLECTIVE 1
#define IN_ARGUMENTS 0 /* storage of works */
#define BY_OFFSET 1    /* mode of a step: its place is an offset */
#define GRAIN 512      /* bytes: chunks of a ring are counted in grains */

enum { SUM = 0, MIN_MAX = 2, SCALED_SUM = 3 }; /* reductions */

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

#define TRANSFERS 32 /* sends and receives that run at the same time */

/* A send or receive: this channel's part of it. */
struct transfer {
    int peer;
    bool out;
    char *data;
    size_t bytes, chunk;
};

/* Sizes and offsets are bytes. */
struct work {
    struct work *next;
    int func, algo, type, op, root;
    uint64_t argument;    /* of the reduction */
    size_t size;          /* of a value */
    unsigned part, parts; /* this channel's number among the work's channels */
    size_t block;         /* an all-reduce, or the part of one rank */
    size_t begin, share;  /* a ring: this channel's share of the block */
    size_t chunk;
    const char *send;
    char *recv;
    unsigned pairs; /* that NCCL counts, or 0 */
    unsigned transfers;
    struct transfer transfer[TRANSFERS];
    struct transfer own; /* a send of this rank to itself. `bytes` 0: none */
    char *own_to;
};

struct end { /* of a connection */
    char *conn;
    uint64_t step;
};

/* The ways of chunks, as seen from this rank. */
enum way { AROUND, SCATTER, REDUCE, SEND, RECEIVE, SPREAD, GATHER };

struct flow {
    enum way way;
    struct end in[ARITY], out[ARITY];
    unsigned ins, outs;
    unsigned slices, steps; /* slices of a chunk, steps of a slice */
    size_t grid, done;      /* chunks before this one, and what is done of this one */
    unsigned hop, slice;
    bool ends;
};

#define FLOWS TRANSFERS /* at most, of a work */
struct block {
    char *channel;
    struct work *first, **last;
    struct flow flow[FLOWS];
    unsigned flows, done;
};

struct kernel {
    char *comm;
    const volatile uint32_t *abort;
    size_t node, nodes, rank, ranks;
    unsigned blocks;
    struct block block[];
};

static size_t min(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t minus(size_t a, size_t b)
{
    return a > b ? a - b : 0;
}

/* Read a channel's share of a ring's work. The first and the last channel have sizes of their own. */
static void share_of(struct work *w, const char *work)
{
    const unsigned middle = w->parts > 2 ? w->parts - 2 : 0;
    const size_t lo = u64_at(work, at.part_lo), mid = u64_at(work, at.part_mid),
                 hi = u64_at(work, at.part_hi);

    w->block = (lo + mid * middle + (w->parts > 1 ? hi : 0)) * w->size;
    if (w->part == 0) {
        w->share = lo * w->size;
        w->chunk = (size_t)bits_at(work, at.grains_lo) * GRAIN;
    } else if (w->part == w->parts - 1) {
        w->begin = (lo + mid * middle) * w->size;
        w->share = hi * w->size;
        w->chunk = (size_t)bits_at(work, at.grains_hi) * GRAIN;
    } else {
        w->begin = (lo + mid * (w->part - 1)) * w->size;
        w->share = mid * w->size;
        w->chunk = (size_t)bits_at(work, at.grains_mid) * GRAIN;
    }
}

static struct work *new_work(struct block *b, int algo)
{
    struct work *w = calloc(1, sizeof(*w));

    if (!w)
        die("no memory");
    w->algo = algo;
    *b->last = w;
    b->last = &w->next;
    return w;
}

static void add_work(struct block *b, const void *plan, const char *work, unsigned channel)
{
    const void *task = task_of(plan, work);
    struct work *w = new_work(b, (int)bits_at(task, at.task_algo));

    w->func = int_at(task, at.task_func);
    w->type = int_at(task, at.task_type);
    w->size = bytes_of(w->type);
    w->op = int_at(task, at.task_op);
    w->root = int_at(work, at.work_root);
    w->argument = u64_at(work, at.work_argument);
    if (w->op == SCALED_SUM && bits_at(work, at.work_by_address))
        memcpy(&w->argument, pointer_at(work, at.work_argument), w->size);
    w->part = channel - bits_at(work, at.work_lo);
    w->parts = bits_at(work, at.work_hi) - bits_at(work, at.work_lo) + 1;
    w->send = pointer_at(work, at.work_send);
    w->recv = pointer_at(work, at.work_recv);
    if ((w->algo != COLLNET_DIRECT && w->algo != RING) || bits_at(task, at.task_proto) != SIMPLE)
        die("no kernel for algorithm %d with protocol %u", w->algo, bits_at(task, at.task_proto));
    if (w->func != ncclFuncAllReduce && w->func != ncclFuncReduceScatter && w->func != ncclFuncAllGather &&
        (w->func != ncclFuncBroadcast || w->algo != RING))
        die("no kernel for function %d with algorithm %d", w->func, w->algo);
    if (w->func != ncclFuncAllGather && w->func != ncclFuncBroadcast && w->op != SUM && w->op != MIN_MAX &&
        w->op != SCALED_SUM)
        die("no kernel for the reduction %d", w->op);
    if (bits_at(work, at.work_registered))
        die("no kernel for registered buffers");
    if (w->algo == RING) {
        share_of(w, work);
    } else {
        w->block = u64_at(work, at.work_count) * w->size;
        w->chunk = (size_t)(unsigned)int_at(work, at.work_chunk) * w->size;
    }
}

/* A chunk's size has eight bits: an exponent and a mantissa of three bits. */
static size_t chunk_of(unsigned bits)
{
    const unsigned exponent = bits >> 3, mantissa = bits & 7;

    return exponent ? (size_t)(mantissa | 8) << (exponent - 1) : mantissa;
}

/* Add one direction of a pair. The parts of its bytes, of whole pages, belong to the channels in the order of
 * the reversed bits of their numbers, which begin at the pair's first one. */
static void add_transfer(struct work *w, const struct transfer *whole, unsigned parts, unsigned number,
                         unsigned channels)
{
    unsigned part = 0;

    for (unsigned bit = 1; bit < channels; bit *= 2)
        part = part * 2 + (number & bit ? 1 : 0);
    if (part >= parts)
        return;
    const size_t bytes = ((whole->bytes + parts - 1) / parts + 4095) / 4096 * 4096;
    const size_t begin = min(part * bytes, whole->bytes);
    if (w->transfers == TRANSFERS)
        die("too many sends and receives at the same time");
    w->transfer[w->transfers] = *whole;
    w->transfer[w->transfers].data += begin;
    w->transfer[w->transfers++].bytes = min(bytes, whole->bytes - begin);
}

static void add_pair(struct work *w, const char *pair, unsigned channel, int rank)
{
    const unsigned channels = u8_at(pair, at.pair_channels);
    const unsigned number = (channel - u8_at(pair, at.pair_base)) & (channels - 1);
    const struct transfer send = {.peer = int_at(pair, at.pair_send_rank),
                                  .out = true,
                                  .data = pointer_at(pair, at.pair_send),
                                  .bytes = u64_at(pair, at.pair_send_bytes),
                                  .chunk = chunk_of(u8_at(pair, at.pair_send_chunk))},
                          recv = {.peer = int_at(pair, at.pair_recv_rank),
                                  .data = pointer_at(pair, at.pair_recv),
                                  .bytes = u64_at(pair, at.pair_recv_bytes),
                                  .chunk = chunk_of(u8_at(pair, at.pair_recv_chunk))};
    const unsigned sends = u8_at(pair, at.pair_send_channels), recvs = u8_at(pair, at.pair_recv_channels);

    w->pairs++;
    if (send.peer == rank) {
        w->own = send;
        w->own_to = recv.data;
        return;
    }
    if ((sends && (bits_at(pair, at.pair_send_ll) || bits_at(pair, at.pair_send_registered))) ||
        (recvs && (bits_at(pair, at.pair_recv_ll) || bits_at(pair, at.pair_recv_registered))))
        die("no kernel for sends with the protocol LL, or of registered buffers");
    add_transfer(w, &send, sends, number, channels);
    add_transfer(w, &recv, recvs, number, channels);
}

/* Read the works of a block, beginning with batch `i`. */
static void add_works(struct block *b, const void *plan, const char *args, unsigned i, unsigned channel,
                      int rank)
{
    struct work *together = NULL; /* sends and receives that run at the same time as the next ones */
    const char *const fifo = pointer_at(args, at.args_work);
    const uint32_t mask = (uint32_t)int_at(args, at.args_mask);
    const bool inside = *(const char *)place(args, at.args_storage) == IN_ARGUMENTS;

    for (;;) {
        const char *batch = args + at.args_size.byte + (size_t)i * (size_t)at.batch_size.byte;
        const unsigned jump = bits_at(batch, at.batch_jump);
        const uint64_t set = u64_at(batch, at.batch_set);
        const unsigned kind = bits_at(batch, at.batch_type);
        if (kind != COLLECTIVE && kind != PAIRS)
            die("no kernel for works of kind %u", kind);
        if (kind == PAIRS && !together) {
            together = new_work(b, NONE);
            together->size = 1;
        }
        for (unsigned k = 0; k < 64; k++) {
            const int size = kind == PAIRS ? at.pair_size.byte : at.work_size.byte;
            const uint32_t offset = (uint32_t)int_at(batch, at.batch_base) + k * (uint32_t)size;
            const char *work = inside ? args + offset : fifo + (offset & mask);
            if (!(set >> k & 1))
                continue;
            if (kind == PAIRS)
                add_pair(together, work, channel, rank);
            else
                add_work(b, plan, work, channel);
        }
        if (!bits_at(batch, at.batch_extends))
            together = NULL;
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
    k->rank = (size_t)int_at(k->comm, at.comm_rank);
    k->ranks = (size_t)int_at(k->comm, at.comm_nranks);
    k->blocks = blocks;
    for (unsigned i = 0; i < blocks; i++) {
        struct block *b = &k->block[i];
        const unsigned channel = (unsigned)__builtin_ctzll(channels);
        if (!channels)
            die("a kernel has more blocks than channels");
        channels &= channels - 1;
        b->channel = (char *)pointer_at(k->comm, at.comm_channels) + channel * (size_t)at.channel_size.byte;
        b->last = &b->first;
        add_works(b, plan, args, i, channel, (int)k->rank);
    }
    return k;
}

/* ---- Connections --------------------------------------------------------------------------------------- */

static uint64_t *counter(const char *conn, struct place where)
{
    return pointer_at(conn, where);
}

static char *fifo_of(const struct end *e)
{
    char *fifo = pointer_at(e->conn, at.conn_fifo);

    return fifo ? fifo + e->step % STEPS * (uint64_t)at.fifo_size.byte : NULL;
}

/* Return the place of the next step in the connection's buffer for the protocol Simple. */
static char *buffer_of(const struct end *e)
{
    char *buffer = ((char *const *)place(e->conn, at.conn_buffs))[SIMPLE];
    const char *fifo = fifo_of(e);

    if (fifo && int_at(fifo, at.fifo_mode) == BY_OFFSET)
        return buffer + number_at(fifo, at.fifo_offset);
    return buffer + e->step % STEPS * (uint64_t)int_at(e->conn, at.conn_step_size);
}

static void open_end(struct end *e, const struct block *b, int peer, struct place side, unsigned number,
                     unsigned round)
{
    char *const p = ((char **)pointer_at(b->channel, at.channel_peers))[peer];

    e->conn = p + side.byte + number * (unsigned)at.conn_size.byte;
    e->step = (u64_at(e->conn, at.conn_step) + round - 1) / round * round;
    if (side.byte == at.peer_recv.byte) /* the rounding gives the sender its room back */
        __atomic_store_n(counter(e->conn, at.conn_head), e->step, __ATOMIC_RELEASE);
}

static void close_end(struct end *e)
{
    memcpy(e->conn + at.conn_step.byte, &e->step, sizeof(e->step));
}

/* Add a flow from and to peers, of which the last one in a list is followed by -1. A peer has two connections
 * a direction. Sends and receives use the second ones, and CollNet-direct up to its reducer. */
static struct flow *add_flow(struct block *b, enum way way, const int *from, unsigned from_number,
                             const int *to, unsigned to_number, unsigned slices, unsigned steps)
{
    struct flow *f = &b->flow[b->flows++];

    *f = (struct flow){.way = way, .slices = slices, .steps = steps};
    for (; from && f->ins < ARITY && from[f->ins] != -1; f->ins++)
        open_end(&f->in[f->ins], b, from[f->ins], at.peer_recv, from_number, slices * steps);
    for (; to && f->outs < ARITY && to[f->outs] != -1; f->outs++)
        open_end(&f->out[f->outs], b, to[f->outs], at.peer_send, to_number, slices * steps);
    return f;
}

static void begin_work(struct block *b)
{
    const struct work *w = b->first;
    const int *heads = place(b->channel, at.direct_list), *up = place(b->channel, at.direct_up),
              *down = place(b->channel, at.direct_down);
    const int out[2] = {int_at(b->channel, at.direct_out), -1};
    const int prev[2] = {int_at(b->channel, at.ring_prev), -1},
              next[2] = {int_at(b->channel, at.ring_next), -1};

    b->flows = 0;
    if (w->own.bytes)
        memmove(w->own_to, w->own.data, w->own.bytes);
    for (unsigned i = 0; i < w->transfers; i++) {
        const int peer[2] = {w->transfer[i].peer, -1};
        if (w->transfer[i].out)
            add_flow(b, SEND, NULL, 0, peer, 1, 1, 1);
        else
            add_flow(b, RECEIVE, peer, 1, NULL, 0, 1, 1);
    }
    if (w->algo == NONE) {
        return;
    } else if (w->algo == RING) {
        const unsigned two = w->func == ncclFuncBroadcast ? 1 : 2;
        add_flow(b, AROUND, prev, 0, next, 0, two, two);
    } else if (w->func == ncclFuncAllReduce) {
        if (up[0] != -1) {
            add_flow(b, SCATTER, NULL, 0, up, 1, 1, 1);
            add_flow(b, GATHER, up, 0, NULL, 0, 1, 1);
        }
        if (out[0] != -1) {
            add_flow(b, REDUCE, down, 1, out, 1, 1, 1);
            add_flow(b, SPREAD, out, 0, down, 0, 1, 1);
        }
    } else if (w->func == ncclFuncReduceScatter) {
        if (heads[1] != -1)
            add_flow(b, SCATTER, NULL, 0, heads + 1, 1, 1, 1);
        add_flow(b, REDUCE, heads + 1, 1, out, 1, 1, 1);
        add_flow(b, RECEIVE, out, 0, NULL, 0, 1, 1);
    } else {
        add_flow(b, SEND, NULL, 0, out, 1, 1, 1);
        add_flow(b, SPREAD, out, 0, heads + 1, 0, 1, 1);
        if (heads[1] != -1)
            add_flow(b, GATHER, heads + 1, 0, NULL, 0, 1, 1);
    }
}

/* ---- Moving values ------------------------------------------------------------------------------------- */

static float from_f16(uint16_t v)
{
    return nb_f16_to_f32(v);
}

static float from_bf16(uint16_t v)
{
    return nb_bf16_to_f32(v);
}

static uint16_t to_f16(float v)
{
    return nb_f32_to_f16(v);
}

static uint16_t to_bf16(float v)
{
    return nb_f32_to_bf16(v);
}

#define SAME(v) (v)
/* Return the reduction of `n` values of one type: own ones, which may be NULL, and those of some peers. */
#define REDUCTION(name, type, number, get, put) \
    static void name(const struct work *w, type *to, const type *own, char *const *from, unsigned froms, \
                     size_t n) \
    { \
        type argument; \
        memcpy(&argument, &w->argument, sizeof(argument)); \
        const bool greatest = w->argument & 1; \
        for (size_t i = 0; i < n; i++) { \
            unsigned k = 0; \
            number v; \
            if (own) \
                v = w->op == SCALED_SUM ? get(own[i]) * get(argument) : get(own[i]); \
            else \
                v = get(((const type *)from[k++])[i]); \
            for (; k < froms; k++) { \
                const number x = get(((const type *)from[k])[i]); \
                if (w->op != MIN_MAX) \
                    v += x; \
                else if (greatest ? x > v : x < v) \
                    v = x; \
            } \
            to[i] = put(v); \
        } \
    }
REDUCTION(reduce_f32, float, float, SAME, SAME)
REDUCTION(reduce_f64, double, double, SAME, SAME)
REDUCTION(reduce_f16, uint16_t, float, from_f16, to_f16)
REDUCTION(reduce_bf16, uint16_t, float, from_bf16, to_bf16)
REDUCTION(reduce_i32, int32_t, int32_t, SAME, SAME)
REDUCTION(reduce_i64, int64_t, int64_t, SAME, SAME)

/* Put the own values and those of peers, reduced, into `to`. */
static void reduce(const struct work *w, char *to, const char *own, char *const *from, unsigned froms,
                   size_t bytes)
{
    const size_t n = bytes / w->size;
    const bool sums = w->func == ncclFuncAllReduce || w->func == ncclFuncReduceScatter;

    if (!own && froms == 1) {
        memmove(to, from[0], bytes);
    } else if (own && !froms && !(sums && w->op == SCALED_SUM)) {
        memmove(to, own, bytes);
    } else if (w->type == ncclFloat32) {
        reduce_f32(w, (float *)(void *)to, (const float *)(const void *)own, from, froms, n);
    } else if (w->type == ncclFloat64) {
        reduce_f64(w, (double *)(void *)to, (const double *)(const void *)own, from, froms, n);
    } else if (w->type == ncclFloat16) {
        reduce_f16(w, (uint16_t *)(void *)to, (const uint16_t *)(const void *)own, from, froms, n);
    } else if (w->type == ncclBfloat16) {
        reduce_bf16(w, (uint16_t *)(void *)to, (const uint16_t *)(const void *)own, from, froms, n);
    } else if (w->op == SUM && (w->type == ncclInt32 || w->type == ncclUint32)) {
        reduce_i32(w, (int32_t *)(void *)to, (const int32_t *)(const void *)own, from, froms, n);
    } else if (w->op == SUM && (w->type == ncclInt64 || w->type == ncclUint64)) {
        reduce_i64(w, (int64_t *)(void *)to, (const int64_t *)(const void *)own, from, froms, n);
    } else {
        die("no kernel for the reduction %d of type %d", w->op, w->type);
    }
}

/* A chunk, or a slice of it, in the buffers of a flow. */
struct buffers {
    char *in[ARITY], *out[ARITY];
    unsigned ins, outs;
};

/* Reduce [offset, offset + n) of the buffers with own values into `place` and the buffers that are sent. */
static void move(const struct work *w, const struct buffers *b, size_t offset, const char *own, char *into,
                 size_t n)
{
    char *from[ARITY], *first;

    if (!n || (!into && !b->outs))
        return;
    first = into ? into : b->out[0] + offset;
    for (unsigned i = 0; i < b->ins; i++)
        from[i] = b->in[i] + offset;
    reduce(w, first, own, from, b->ins, n);
    for (unsigned i = into ? 0 : 1; i < b->outs; i++)
        memcpy(b->out[i] + offset, first, n);
}

/* Return buffers that are one peer's. */
static struct buffers of_peer(const struct buffers *b, unsigned i)
{
    struct buffers one = {.ins = b->ins ? 1 : 0, .outs = b->outs ? 1 : 0};

    one.in[0] = b->ins ? b->in[i] : NULL;
    one.out[0] = b->outs ? b->out[i] : NULL;
    return one;
}

/* ---- Rings --------------------------------------------------------------------------------------------- */

/* What a rank does with a chunk. */
struct hop {
    bool in, out;
    const char *own;
    char *into;
    size_t n;
};

static size_t ring_rank(const struct block *b, size_t i)
{
    return (size_t)((const int *)pointer_at(b->channel, at.ring_ranks))[i];
}

/* A chunk of each rank goes around twice: it collects all ranks' values, and spreads the result. */
static void ring_all_reduce(const struct kernel *k, const struct block *b, const struct flow *f,
                            struct hop *h, size_t *loop)
{
    const struct work *w = b->first;
    const size_t n = k->ranks, left = w->share - f->grid, index = (size_t)int_at(b->channel, at.ring_index);
    size_t chunk = w->chunk;

    *loop = n * chunk;
    if (left < *loop) {
        chunk = (left / w->size + n - 1) / n * w->size;
        chunk = (chunk + 15) / 16 * 16;
    }
    const size_t which = (index + 2 * n - 1 - f->hop) % n, offset = w->begin + f->grid + which * chunk;
    *h = (struct hop){
        .in = f->hop > 0, .out = f->hop < 2 * n - 2, .n = min(chunk, minus(left, which * chunk))};
    if (f->hop < n)
        h->own = w->send + offset;
    if (f->hop >= n - 1)
        h->into = w->recv + offset;
}

static void ring_reduce_scatter(const struct kernel *k, const struct block *b, const struct flow *f,
                                struct hop *h)
{
    const struct work *w = b->first;
    const size_t n = k->ranks, from = w->begin + f->grid;

    *h = (struct hop){.in = f->hop > 0,
                      .out = f->hop < n - 1,
                      .own = w->send + from + ring_rank(b, (n - 1 - f->hop) % n) * w->block,
                      .into = f->hop == n - 1 ? w->recv + from : NULL,
                      .n = min(w->chunk, w->share - f->grid)};
}

static void ring_all_gather(const struct kernel *k, const struct block *b, const struct flow *f,
                            struct hop *h)
{
    const struct work *w = b->first;
    const size_t n = k->ranks, from = w->begin + f->grid;

    *h = (struct hop){.in = f->hop > 0,
                      .out = f->hop < n - 1,
                      .own = f->hop == 0 ? w->send + from : NULL,
                      .into = w->recv + from + ring_rank(b, (n - f->hop) % n) * w->block,
                      .n = min(w->chunk, w->share - f->grid)};
}

static void ring_broadcast(const struct block *b, const struct flow *f, struct hop *h)
{
    const struct work *w = b->first;
    const bool root = (int)ring_rank(b, 0) == w->root, last = (int)ring_rank(b, 1) == w->root;

    *h = (struct hop){.in = !root,
                      .out = !last,
                      .own = root ? w->send + w->begin + f->grid : NULL,
                      .into = w->recv + w->begin + f->grid,
                      .n = min(w->chunk, w->share - f->grid)};
}

/* Return how a flow goes on in a ring: its next hop, the number of hops of a chunk, and a loop's bytes. */
static unsigned ring_hop(const struct kernel *k, const struct block *b, const struct flow *f, struct hop *h,
                         size_t *loop)
{
    *loop = b->first->chunk;
    switch (b->first->func) {
    case ncclFuncAllReduce: ring_all_reduce(k, b, f, h, loop); return 2 * (unsigned)k->ranks - 1;
    case ncclFuncReduceScatter: ring_reduce_scatter(k, b, f, h); return (unsigned)k->ranks;
    case ncclFuncAllGather: ring_all_gather(k, b, f, h); return (unsigned)k->ranks;
    default: ring_broadcast(b, f, h); return 1;
    }
}

/* ---- CollNet-direct ------------------------------------------------------------------------------------ */

/* An all-reduce's chunks belong to the heads of a node in turn. A rank's chunks of the other heads lie in the
 * order of the heads. */
static size_t head_offset(const struct block *b, const struct flow *f, size_t head)
{
    const struct work *w = b->first;
    const size_t heads = (size_t)int_at(b->channel, at.direct_heads);

    return f->grid + (w->part * heads + head) * w->chunk;
}

static size_t direct_all_reduce(const struct block *b, const struct flow *f, const struct buffers *u)
{
    const struct work *w = b->first;
    const int own = int_at(b->channel, at.direct_head);
    const unsigned peers = f->way == SCATTER ? u->outs : u->ins;

    if (f->way == REDUCE || f->way == SPREAD) {
        const size_t at_all = head_offset(b, f, (size_t)own), n = min(w->chunk, minus(w->block, at_all));
        move(w, u, 0, f->way == REDUCE ? w->send + at_all : NULL, f->way == REDUCE ? NULL : w->recv + at_all,
             n);
        return n;
    }
    for (unsigned i = 0; i < peers; i++) {
        const struct buffers one = of_peer(u, i);
        const size_t head = own >= 0 && (int)i >= own ? i + 1 : i, at_all = head_offset(b, f, head);
        const size_t n = min(w->chunk, minus(w->block, at_all));
        move(w, &one, 0, f->way == SCATTER ? w->send + at_all : NULL,
             f->way == SCATTER ? NULL : w->recv + at_all, n);
    }
    return w->chunk;
}

/* A rail is the heads of the same number on all nodes. Its vector has a block of each of its ranks, in the
 * order of the nodes. Move a chunk of rail `rail`. */
static void move_rail(const struct kernel *k, const struct block *b, const struct buffers *u, size_t rail,
                      size_t begin, size_t end, bool own, bool into)
{
    const struct work *w = b->first;
    const size_t rails = (size_t)int_at(b->channel, at.direct_heads);
    const int *dense = pointer_at(k->comm, at.comm_dense);
    const bool in_place = w->send == w->recv + k->rank * w->block;

    for (size_t from = begin; from < end;) {
        const size_t node = from / w->block, to = min(end, (node + 1) * w->block);
        const size_t rank = (size_t)dense[node * rails + rail],
                     user = rank * w->block + from - node * w->block;
        const bool stays = in_place && rank == k->rank; /* NCCL leaves the own values as they are */
        move(w, u, from - begin, own ? w->send + user : NULL, into && !stays ? w->recv + user : NULL,
             to - from);
        from = to;
    }
}

static size_t direct_blocks(const struct kernel *k, const struct block *b, const struct flow *f,
                            const struct buffers *u)
{
    const struct work *w = b->first;
    const size_t rails = (size_t)int_at(b->channel, at.direct_heads), all = w->block * k->nodes;
    const size_t head = (size_t)int_at(b->channel, at.direct_head), own = k->node * w->block;
    const size_t begin = min(f->grid + w->part * w->chunk, all), end = min(begin + w->chunk, all);
    const size_t first = begin > own ? begin : own, last = min(end, own + w->block);
    const unsigned peers = f->way == SCATTER ? u->outs : u->ins;

    switch (f->way) {
    case SEND:
        move(w, u, 0, w->send + minus(first, own), NULL, minus(last, first));
        return minus(last, first);
    case RECEIVE: move(w, u, 0, NULL, w->recv + minus(first, own), minus(last, first)); break;
    case REDUCE: move_rail(k, b, u, head, begin, end, true, false); break;
    case SPREAD: move_rail(k, b, u, head, begin, end, false, true); break;
    default:
        for (unsigned i = 0; i < peers; i++) {
            const struct buffers one = of_peer(u, i);
            move_rail(k, b, &one, (head + 1 + i) % rails, begin, end, f->way == SCATTER, f->way == GATHER);
        }
    }
    return end - begin;
}

/* ---- Running ------------------------------------------------------------------------------------------- */

/* Return the bytes of a flow's grid, in which it goes ahead by `loop`. An empty message has a chunk, too. */
static size_t grid_of(const struct kernel *k, const struct block *b, const struct flow *f, size_t *loop)
{
    const struct work *w = b->first;

    if (w->algo == NONE) {
        const struct transfer *t = &w->transfer[f - b->flow];
        *loop = t->chunk;
        return t->bytes ? t->bytes : 1;
    }
    if (w->algo == RING)
        return w->share;
    *loop = w->parts * w->chunk;
    if (w->func == ncclFuncAllReduce)
        *loop *= (size_t)int_at(b->channel, at.direct_heads);
    return w->func == ncclFuncAllReduce ? w->block : w->block * k->nodes;
}

/* Return whether the other sides of a flow's connections are as far as its next slice needs. */
static bool ready(const struct flow *f, bool in, bool out)
{
    for (unsigned i = 0; in && i < f->ins; i++)
        if (__atomic_load_n(counter(f->in[i].conn, at.conn_tail), __ATOMIC_ACQUIRE) <
            f->in[i].step + f->steps)
            return false;
    for (unsigned i = 0; out && i < f->outs; i++)
        if (__atomic_load_n(counter(f->out[i].conn, at.conn_head), __ATOMIC_ACQUIRE) + STEPS <
            f->out[i].step + f->steps)
            return false;
    return true;
}

static void post(struct flow *f, bool in, bool out, size_t bytes)
{
    for (unsigned i = 0; out && i < f->outs; i++) {
        char *fifo = fifo_of(&f->out[i]);
        const int64_t n = (int64_t)bytes;
        if (fifo)
            memcpy(fifo + at.fifo_bytes.byte, &n, sizeof(n));
        f->out[i].step += f->steps;
        __atomic_store_n(counter(f->out[i].conn, at.conn_tail), f->out[i].step, __ATOMIC_RELEASE);
    }
    for (unsigned i = 0; in && i < f->ins; i++) {
        f->in[i].step += f->steps;
        __atomic_store_n(counter(f->in[i].conn, at.conn_head), f->in[i].step, __ATOMIC_RELEASE);
    }
}

static struct buffers buffers_of(const struct flow *f, bool in, bool out)
{
    struct buffers u = {.ins = in ? f->ins : 0, .outs = out ? f->outs : 0};

    for (unsigned i = 0; i < u.ins; i++)
        u.in[i] = buffer_of(&f->in[i]);
    for (unsigned i = 0; i < u.outs; i++)
        u.out[i] = buffer_of(&f->out[i]);
    return u;
}

/* Return the bytes of a ring's slice: a chunk is cut into slices of 16 values, and of a least size. */
static size_t slice_of(const struct kernel *k, const struct work *w, const struct flow *f, size_t chunk)
{
    const size_t step = (size_t)((const int *)place(k->comm, at.comm_buffers))[SIMPLE] / STEPS / w->size;
    const size_t least = step * f->steps / 32 * w->size, values = chunk / w->size;
    const size_t slice = (values + 16 * f->slices - 1) / (16 * f->slices) * 16 * w->size;

    return min(slice > least ? slice : least, chunk - f->done);
}

/* Do one slice of a flow. Return false when it waits for another side. */
static bool advance(const struct kernel *k, const struct block *b, struct flow *f)
{
    struct work *w = b->first;
    size_t loop = 0, n;
    struct hop h = {.in = true, .out = true};
    unsigned hops = 1;

    if (f->grid >= grid_of(k, b, f, &loop)) {
        for (unsigned i = 0; i < f->ins; i++)
            close_end(&f->in[i]);
        for (unsigned i = 0; i < f->outs; i++)
            close_end(&f->out[i]);
        return f->ends = true;
    }
    if (w->algo == RING)
        hops = ring_hop(k, b, f, &h, &loop);
    if (!ready(f, h.in, h.out))
        return false;
    const struct buffers u = buffers_of(f, h.in, h.out);
    if (w->algo == RING) {
        n = slice_of(k, w, f, h.n);
        move(w, &u, 0, h.own ? h.own + f->done : NULL, h.into ? h.into + f->done : NULL, n);
    } else if (w->algo == NONE) {
        const struct transfer *t = &w->transfer[f - b->flow];
        char *data = t->data + f->grid;
        n = min(t->chunk, t->bytes - f->grid);
        move(w, &u, 0, t->out ? data : NULL, t->out ? NULL : data, n);
    } else if (w->func == ncclFuncAllReduce) {
        n = direct_all_reduce(b, f, &u);
    } else {
        n = direct_blocks(k, b, f, &u);
    }
    post(f, h.in, h.out, n);
    f->done += n;
    if (++f->slice < f->slices)
        return true;
    f->slice = 0;
    f->done = 0;
    if (++f->hop == hops) {
        f->hop = 0;
        f->grid += loop;
    }
    return true;
}

/* Let a block go on with its first work. Return whether something moved. */
static bool go_on(struct kernel *k, struct block *b)
{
    struct work *w = b->first;
    bool moved = false, ends = true;

    if (!w)
        return false;
    if (!b->flows)
        begin_work(b);
    for (unsigned i = 0; i < b->flows; i++) {
        if (!b->flow[i].ends)
            moved |= advance(k, b, &b->flow[i]);
        ends &= b->flow[i].ends;
    }
    if (ends) {
        b->first = w->next;
        b->flows = 0;
        b->done += w->pairs ? w->pairs : 1;
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
            usleep(20); /* a GPU takes no time of a processor */
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
