/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes in one process, with the work of NCCL's proxy for each. See nibble/emulate.h. */
#include "nibble/emulate.h"
#include "coll/decide/decide.h"
#include "coll/report/report.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi/context.h"
#include "base/log.h"
#include "base/nccl_names.h"
#include "base/version.h"
#include "codec/format.h"
#include "coll/coll.h"
#include "coll/comm/comm.h"
#include "coll/engine.h"
#include "device/device.h"
#include "emulate/memory_net.h"
#include "emulate/nccl_walk.h"
#include "policy/records/records.h"
#include "state/feedback.h"

#define COMM_ID UINT64_C(0x6e6962626c65) /* NCCL's number of the communicator; not 0, which means unknown */
#define SETTLED 4                        /* rounds of a millisecond without progress */
#define LONGEST_NS (3600 * (int64_t)NB_NS_PER_S) /* of virtual time, longer than any wait */
#define STRING_OF(x) #x
#define STRING(x) STRING_OF(x)
#define MOST_GROUPS ((NB_EMULATE_CHANNELS + NB_NCCL_GROUP - 1) / NB_NCCL_GROUP)

_Static_assert((int)NB_EMULATE_REDUCE_SCATTER == NB_FUNC_REDUCE_SCATTER &&
                   (int)NB_EMULATE_ALL_GATHER == NB_FUNC_ALL_GATHER &&
                   (int)NB_EMULATE_ALL_REDUCE == NB_FUNC_ALL_REDUCE,
               "functions are numbered as in the engine");

/* Windows of an operation that share a call's channels. */
struct group {
    uint64_t called, tested;
    struct nb_coll_req *request[NB_NCCL_STEPS];
};

struct node {
    struct nb_context *ctx;
    uint8_t handle[NB_NET_HANDLE_BYTES];
    struct nb_coll_listen *listen;
    struct nb_coll_connect *connect;
    struct nb_coll_comm *comm;
    int connected; /* -EINPROGRESS, or the result of connecting */
    uint8_t *region;
    size_t region_bytes;
    void **mhandle; /* two for each channel */
    int registered;
    /* the operation */
    struct nb_nccl_walk walk;
    struct group group[MOST_GROUPS];
    uint64_t step; /* the next one to call */
    int next;
    const uint8_t *send;
    uint8_t *recv;
};

struct nb_emulation {
    int nodes, channels;
    size_t buffer, chunk;
    int64_t now; /* of all nodes' clocks */
    int err;     /* the first error */
    pthread_mutex_t lock;
    pthread_cond_t ended;
    uint64_t works; /* that codec threads have ended, under lock */
    struct node node[];
};

static _Thread_local char reason[4096]; /* why the thread's last nb_emulate_open failed */

/* ---- time and progress --------------------------------------------------------------------------------- */

static uint64_t virtual_ns(void *arg)
{
    return (uint64_t)((struct nb_emulation *)arg)->now;
}

static int no_gpu(struct nb_context *ctx)
{
    (void)ctx;
    return -1;
}

/* On a codec thread. */
static void work_done(struct nb_context *ctx)
{
    struct nb_emulation *e = ctx->clock.arg;

    pthread_mutex_lock(&e->lock);
    e->works++;
    pthread_cond_signal(&e->ended);
    pthread_mutex_unlock(&e->lock);
}

static uint64_t works_ended(struct nb_emulation *e)
{
    uint64_t works;

    pthread_mutex_lock(&e->lock);
    works = e->works;
    pthread_mutex_unlock(&e->lock);
    return works;
}

/* Wait until codec threads have ended more works than `before`, if they have any: time must not pass
 * meanwhile. Return whether they have ended one. All nodes share node 0's threads. */
static bool await_works(struct nb_emulation *e, uint64_t before)
{
    const uint64_t given = e->nodes ? nb_host_pool_works(e->node[0].ctx) : 0;
    bool ended;

    pthread_mutex_lock(&e->lock);
    while (e->works == before && e->works != given)
        pthread_cond_wait(&e->ended, &e->lock);
    ended = e->works != before;
    pthread_mutex_unlock(&e->lock);
    return ended;
}

/* Take one step of all engines. Return whether something has moved. *until is the time at which waiting alone
 * moves something. */
static bool step_engines(struct nb_emulation *e, int64_t *until)
{
    const uint64_t works = works_ended(e);
    struct pollfd none[1]; /* has room for 0 */
    bool moved = false;

    *until = INT64_MAX;
    for (int i = 0; i < e->nodes; i++) {
        struct node *n = &e->node[i];
        const char *before = nb_log_label(n->ctx->label);
        struct nb_engine_wait wait;

        moved |= nb_engine_step(n->ctx->engine, e->now);
        wait = nb_engine_wait(n->ctx->engine, e->now, none, 0);
        if (wait.until_ns < *until)
            *until = wait.until_ns;
        nb_log_label(before);
    }
    return moved || await_works(e, works);
}

/* Advance the time, when no engine has moved, to the earliest deadline. Return -ETIMEDOUT when that has gone
 * on for too long. */
static int pass_time(struct nb_emulation *e, int64_t until, int64_t began)
{
    e->now = until == INT64_MAX ? e->now + (int64_t)NB_NS_PER_MS : until > e->now ? until : e->now + 1;
    if (e->now - began < LONGEST_NS)
        return 0;
    NB_WARN("emulation: the nodes wait for each other without end");
    return -ETIMEDOUT;
}

/* Complete an operation's remaining work, above all confirmations of all-gathers, before the next begins. In
 * a job a step takes longer than a message, too. */
static void settle(struct nb_emulation *e)
{
    int64_t until;

    for (int still = 0; still < SETTLED;) {
        if (step_engines(e, &until)) {
            still = 0;
            continue;
        }
        still++;
        e->now += (int64_t)NB_NS_PER_MS;
    }
}

/* ---- begin and end ------------------------------------------------------------------------------------- */

/* Return the settings. The first setting of a name counts: first the required ones, then the caller's list,
 * and last the defaults: the caller vouches for gradients, and the calling thread codes. */
static const char **settings_of(const struct nb_emulate_config *config)
{
    static const char *const first[] = {"NIBBLE_DEVICE=host", "NIBBLE_NET=auto"};
    size_t n = sizeof(first) / sizeof(first[0]), given = 0;
    const char **list;

    while (config->settings && config->settings[given])
        given++;
    list = calloc(n + given + 3, sizeof(*list));
    if (!list)
        return NULL;
    memcpy(list, first, sizeof(first));
    if (given)
        memcpy(list + n, config->settings, given * sizeof(*list));
    list[n + given] = "NIBBLE_GRAD=all";
    list[n + given + 1] = "NIBBLE_HOST_THREADS=0";
    return list;
}

static int open_node(struct nb_emulation *e, int number, const char *const *settings)
{
    struct node *n = &e->node[number];
    char label[32];
    struct nb_context_options options = {.settings = settings,
                                         .label = label,
                                         .clock = {virtual_ns, e},
                                         .transport = &nb_net_memory,
                                         .current_gpu = no_gpu};
    int err;

    snprintf(label, sizeof(label), "node %d", number);
    err = nb_context_create(&options, &n->ctx);
    if (err)
        return err;
    n->ctx->work_done = work_done;
    if (number) {
        nb_host_pool_close(n->ctx);
        n->ctx->host_pool = e->node[0].ctx->host_pool;
    }
    n->connected = -EINPROGRESS;
    n->region_bytes = nb_nccl_walk_region(e->channels, e->buffer);
    n->region = calloc(1, n->region_bytes);
    n->mhandle = calloc(2 * (size_t)e->channels, sizeof(*n->mhandle));
    if (!n->region || !n->mhandle)
        return -ENOMEM;
    return nb_coll_listen(n->ctx, 0, COMM_ID, n->handle, &n->listen);
}

static int begin_connect(struct nb_emulation *e)
{
    void *handles[NB_EMULATE_NODES];
    int err;

    for (int i = 0; i < e->nodes; i++)
        handles[i] = e->node[i].handle;
    for (int i = 0; i < e->nodes; i++) {
        struct node *n = &e->node[i];

        err = nb_coll_connect_begin(handles, e->nodes, i, n->listen, &n->connect);
        if (err) {
            n->listen = NULL; /* connect has freed it */
            return err;
        }
    }
    return 0;
}

/* Take one step of the nodes that are still connecting, and return their number. */
static int step_connect(struct nb_emulation *e, bool *moved, int64_t *until)
{
    int left = 0;

    for (int i = 0; i < e->nodes; i++) {
        struct node *n = &e->node[i];
        bool on;

        if (!n->connect)
            continue;
        n->connected = nb_coll_connect_step(n->connect, &on, &n->comm);
        *moved |= on;
        if (n->connected == -EINPROGRESS) {
            const int64_t due = nb_coll_connect_until(n->connect);

            if (due < *until)
                *until = due;
            left++;
            continue;
        }
        *moved = true;
        n->connect = NULL;
        if (n->connected)
            n->listen = NULL;
    }
    return left;
}

static int connect_all(struct nb_emulation *e)
{
    const int64_t began = e->now;
    int err = begin_connect(e), left;

    do {
        int64_t until;
        bool moved = step_engines(e, &until);

        left = step_connect(e, &moved, &until);
        if (!moved && pass_time(e, until, began))
            return -ETIMEDOUT;
    } while (left);
    for (int i = 0; i < e->nodes && !err; i++)
        err = e->node[i].connected;
    return err;
}

/* Register the buffer as NCCL does. */
static int register_region(struct nb_emulation *e, struct node *n)
{
    for (int i = 0; i < 2 * e->channels; i++) {
        int err = nb_coll_reg_mr(n->comm, n->region, n->region_bytes, NCCL_PTR_HOST, &n->mhandle[i]);

        if (err)
            return err;
        n->registered++;
    }
    return 0;
}

/* Return which field is out of its range, and the range, or NULL. */
static const char *misfit(const struct nb_emulate_config *c)
{
    const size_t buffer = c->buffer_bytes ? c->buffer_bytes : (size_t)4 << 20;

    if (c->size < sizeof(*c))
        return "size: the caller was compiled for another version of struct nb_emulate_config";
    if (c->nodes < 2 || c->nodes > NB_EMULATE_NODES)
        return "nodes must be from 2 to " STRING(NB_EMULATE_NODES);
    if (c->channels < 0 || c->channels > NB_EMULATE_CHANNELS)
        return "channels must be from 0 to " STRING(NB_EMULATE_CHANNELS);
    if (buffer < 32768 || buffer % 4096 != 0 || buffer > (size_t)1 << 30)
        return "buffer_bytes must be a multiple of 4096 from 32768 to 1073741824";
    if (c->chunk_bytes % 512 != 0 || c->chunk_bytes > buffer / NB_NCCL_STEPS)
        return "chunk_bytes must be a multiple of 512, and at most an eighth of buffer_bytes";
    return NULL;
}

static int open_all(const struct nb_emulate_config *config, struct nb_emulation **out)
{
    struct nb_emulation *e;
    const char **settings;
    int err = 0;

    if (!config || !out || misfit(config)) {
        NB_WARN("emulation: %s", !config || !out ? "no configuration" : misfit(config));
        return -EINVAL;
    }
    e = calloc(1, sizeof(*e) + (size_t)config->nodes * sizeof(e->node[0]));
    settings = settings_of(config);
    if (!e || !settings) {
        free(e);
        free(settings);
        return -ENOMEM;
    }
    e->channels = config->channels ? config->channels : 8;
    e->buffer = config->buffer_bytes ? config->buffer_bytes : (size_t)4 << 20;
    e->chunk = config->chunk_bytes;
    e->now = NB_NS_PER_S;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->ended, NULL);
    for (int i = 0; i < config->nodes && !err; i++) {
        err = open_node(e, i, settings);
        e->nodes += e->node[i].ctx != NULL;
    }
    free(settings);
    if (!err)
        err = connect_all(e);
    for (int i = 0; i < e->nodes && !err; i++)
        err = register_region(e, &e->node[i]);
    if (err) {
        nb_emulate_close(e);
        return err;
    }
    *out = e;
    return 0;
}

int nb_emulate_open(const struct nb_emulate_config *config, struct nb_emulation **out)
{
    int err;

    reason[0] = '\0';
    nb_log_keep(reason, sizeof(reason));
    err = open_all(config, out);
    nb_log_keep(NULL, 0);
    if (!err)
        reason[0] = '\0';
    return err;
}

const char *nb_emulate_reason(void)
{
    return reason;
}

static void disconnect(struct nb_emulation *e)
{
    const int64_t began = e->now;
    int64_t until;
    bool open = true;

    for (int i = 0; i < e->nodes; i++) {
        struct node *n = &e->node[i];

        for (int k = 0; k < n->registered; k++)
            nb_coll_dereg_mr(n->comm, n->mhandle[k]);
        if (n->comm)
            nb_coll_close_begin(n->comm);
    }
    while (open) {
        const bool moved = step_engines(e, &until);

        open = false;
        for (int i = 0; i < e->nodes; i++) {
            struct node *n = &e->node[i];

            if (n->comm && !nb_coll_close_step(n->comm))
                n->comm = NULL;
            open |= n->comm != NULL;
        }
        if (open && !moved && pass_time(e, until, began))
            return;
    }
}

void nb_emulate_close(struct nb_emulation *e)
{
    if (!e)
        return;
    disconnect(e);
    for (int i = 0; i < e->nodes; i++)
        if (e->node[i].listen)
            nb_coll_close_listen(e->node[i].listen);
    for (int i = e->nodes; i-- > 0;) { /* node 0, whose codec threads all use, last */
        struct node *n = &e->node[i];

        if (i)
            n->ctx->host_pool = NULL;
        nb_context_destroy(n->ctx);
        free(n->region);
        free(n->mhandle);
    }
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->ended);
    free(e);
}

/* ---- operations ---------------------------------------------------------------------------------------- */

static ncclDataType_t nccl_type(enum nb_dtype type)
{
    return type == NB_F32 ? ncclFloat32 : type == NB_BF16 ? ncclBfloat16 : ncclFloat16;
}

/* Record an operation as NCCL's profiler reports it. A buffer number that the caller vouches for stands for
 * the buffer's address, too, which says when a step ends. */
static int tell(struct node *n, enum nb_dtype type, size_t bytes, int64_t buffer)
{
    const struct nb_nccl_walk *w = &n->walk;
    const bool gather = w->func == NB_FUNC_ALL_GATHER;
    struct nb_record r = {.func = w->func,
                          .type = gather ? ncclInt8 : nccl_type(type),
                          .api_type = nccl_type(type),
                          .flags = NB_RECORD_API,
                          .bytes = bytes,
                          .send = n->send,
                          .recv = n->recv,
                          .slot = buffer,
                          .heads = 1 << 1,
                          .head = 0,
                          .chunk = (uint32_t)w->chunk};

    if (buffer >= 0)
        r.send = r.recv = (const void *)(((uintptr_t)w->func + 1) << 56 | ((uintptr_t)buffer + 1) << 8);
    return nb_record_push(n->comm, &r);
}

/* Return where a side's values lie in the node's own buffer. Positions in a block count from its
 * beginning. */
static size_t within(const struct nb_nccl_walk *w, bool receives, const struct nb_nccl_place *p)
{
    const bool all = receives != (w->func == NB_FUNC_REDUCE_SCATTER);

    return p->from - (all ? 0 : (size_t)w->rank * w->block);
}

static void fill(struct node *n, int group, uint64_t step)
{
    const struct nb_nccl_place p = nb_nccl_place(&n->walk, false, group, step);

    if (p.valid)
        memcpy(n->region + p.at, n->send + within(&n->walk, false, &p), p.valid);
}

static void drain(struct node *n, int group, uint64_t step)
{
    const struct nb_nccl_walk *w = &n->walk;
    const struct nb_nccl_place p = nb_nccl_place(w, true, group, step);
    const size_t own = (size_t)w->rank * w->block, end = p.from + p.valid;
    const uint8_t *src = n->region + p.at;

    if (w->func == NB_FUNC_ALL_GATHER &&
        n->send == n->recv + own) { /* in place: the own block stays unchanged */
        if (p.from < own)
            memcpy(n->recv + p.from, src, (end < own ? end : own) - p.from);
        if (end > own + w->block) {
            const size_t from = p.from > own + w->block ? p.from : own + w->block;

            memcpy(n->recv + from, src + (from - p.from), end - from);
        }
        return;
    }
    if (p.valid)
        memcpy(n->recv + within(w, true, &p), src, p.valid);
}

/* Call for all windows that have room. Return 1 after a call, 0 without one, or an error. */
static int hand_over(struct node *n, enum nb_dtype type)
{
    int moved = 0;

    while (n->step < n->walk.steps) {
        struct group *g = &n->group[n->next];
        struct nb_coll_req *req;
        int err;

        if (n->step >= g->tested + NB_NCCL_STEPS)
            break;
        fill(n, n->next, n->step);
        err = nb_nccl_call(&n->walk, n->comm, n->region, n->next, n->step, nccl_type(type), ncclSum, &req);
        if (err)
            return err;
        g->request[n->step % NB_NCCL_STEPS] = req;
        g->called = n->step + 1;
        if (++n->next == n->walk.groups) {
            n->next = 0;
            n->step++;
        }
        moved = 1;
    }
    return moved;
}

/* Test the windows, and take their data when they are done. Return 1 when one was, else 0, or an error. */
static int take(struct node *n)
{
    int moved = 0;

    for (int i = 0; i < n->walk.groups; i++) {
        struct group *g = &n->group[i];

        while (g->tested < g->called) {
            struct nb_coll_req *req = g->request[g->tested % NB_NCCL_STEPS];
            int done = 1, err = req ? nb_coll_test(req, &done, NULL) : 0;

            if (err)
                return err;
            if (!done)
                break;
            drain(n, i, g->tested++);
            moved = 1;
        }
    }
    return moved;
}

static bool complete(const struct node *n)
{
    for (int i = 0; i < n->walk.groups; i++)
        if (n->group[i].tested < n->walk.steps)
            return false;
    return true;
}

static int work(struct node *n, enum nb_dtype type, bool *moved)
{
    int some = hand_over(n, type);

    if (some < 0)
        return some;
    *moved |= some;
    some = take(n);
    if (some < 0)
        return some;
    *moved |= some;
    return 0;
}

static int run(struct nb_emulation *e, enum nb_dtype type)
{
    const int64_t began = e->now;
    bool left = true;

    while (left) {
        int64_t until;
        bool moved = step_engines(e, &until);

        left = false;
        for (int i = 0; i < e->nodes; i++) {
            int err = work(&e->node[i], type, &moved);

            if (err)
                return err;
            left |= !complete(&e->node[i]);
        }
        if (left && !moved && pass_time(e, until, began))
            return -ETIMEDOUT;
    }
    settle(e);
    return 0;
}

static int operate(struct nb_emulation *e, enum nb_func func, enum nb_dtype type, size_t count,
                   const void *const *send, void *const *recv, int64_t buffer)
{
    const size_t value = nb_dtype_size(type);

    if (!e || !value || !count || count > SIZE_MAX / 16 / NB_EMULATE_NODES || !send || !recv ||
        buffer < NB_EMULATE_NOBODY || buffer >= (int64_t)1 << 40)
        return -EINVAL;
    for (int i = 0; i < e->nodes; i++)
        if (!send[i] || !recv[i])
            return -EINVAL;
    if (e->err)
        return e->err;
    for (int i = 0; i < e->nodes && !e->err; i++) {
        struct node *n = &e->node[i];

        n->walk = nb_nccl_walk(func, e->nodes, i, e->channels, e->buffer, e->chunk, count * value);
        memset(n->group, 0, sizeof(n->group));
        n->step = 0;
        n->next = 0;
        n->send = send[i];
        n->recv = recv[i];
        e->err = tell(n, type, count * value, buffer);
    }
    if (!e->err)
        e->err = run(e, type);
    return e->err;
}

int nb_emulate_all_reduce(struct nb_emulation *e, enum nb_dtype type, size_t count, const void *const *send,
                          void *const *recv, int64_t buffer)
{
    return operate(e, NB_FUNC_ALL_REDUCE, type, count, send, recv, buffer);
}

int nb_emulate_reduce_scatter(struct nb_emulation *e, enum nb_dtype type, size_t count,
                              const void *const *send, void *const *recv, int64_t buffer)
{
    return operate(e, NB_FUNC_REDUCE_SCATTER, type, count, send, recv, buffer);
}

int nb_emulate_all_gather(struct nb_emulation *e, enum nb_dtype type, size_t count, const void *const *send,
                          void *const *recv)
{
    return operate(e, NB_FUNC_ALL_GATHER, type, count, send, recv, NB_EMULATE_NOBODY);
}

/* ---- results and state --------------------------------------------------------------------------------- */

static void add_figures(struct nb_emulate_figures *f, const struct nb_coll_stats *s,
                        enum nb_emulate_func func)
{
    const struct nb_func_stats *o = &s->func[func];

    f->operations += o->ops;
    f->coded += o->coded_ops;
    f->two_hop += o->two_hop_ops;
    f->two_level += o->two_level_ops;
    f->windows += o->windows;
    f->messages += o->units;
    f->bytes += o->sent_bytes;
    f->wire_bytes += o->wire_bytes;
    f->with_feedback += s->feedback_ops;
    f->feedback_resets += s->feedback_resets;
    f->feedback_bytes += s->feedback_bytes;
    f->reference_bytes += s->reference_bytes;
    nb_encode_stats_add(&f->encode, &s->encode);
}

int nb_emulate_figures(struct nb_emulation *e, int node, enum nb_emulate_func func,
                       struct nb_emulate_figures *figures)
{
    const bool all = node == NB_EMULATE_ALL_NODES;
    struct nb_coll_stats stats;

    if (!e || (!all && (node < 0 || node >= e->nodes)) || (unsigned)func >= NB_FUNC_COUNT || !figures ||
        figures->size < sizeof(*figures))
        return -EINVAL;
    *figures = (struct nb_emulate_figures){.size = figures->size};
    for (int i = 0; i < e->nodes; i++) {
        if (!all && i != node)
            continue;
        nb_coll_get_stats(e->node[i].comm, &stats);
        add_figures(figures, &stats, func);
    }
    return 0;
}

int nb_emulate_residual(struct nb_emulation *e, int node, enum nb_emulate_func func, int64_t buffer,
                        unsigned block, size_t count, int8_t *err, uint8_t *scale, float *values)
{
    struct nb_ef ef;
    uint64_t n;
    int ret;

    if (!e || node < 0 || node >= e->nodes || (unsigned)func >= NB_FUNC_COUNT || buffer < 0)
        return -EINVAL;
    ret = nb_feedback_peek(e->node[node].comm->decisions->feedback, (uint32_t)func, buffer, block, &ef, &n);
    if (ret)
        return ret;
    if (count > n)
        return -EINVAL;
    if (err)
        memcpy(err, ef.err, nb_ef_err_bytes(count));
    if (scale)
        memcpy(scale, ef.scale, nb_ef_scale_bytes(count));
    for (size_t i = 0; values && i < count; i++)
        values[i] = (float)ef.err[i] * nb_error_unit(ef.scale[i / NB_GROUP], 1);
    return 0;
}

const char *nb_emulate_version(void)
{
    return nb_version_with_commit();
}
