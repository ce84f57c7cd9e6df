/* SPDX-License-Identifier: Apache-2.0 */
/* See player.h. */
#include "player.h"
#include "coll/report/report.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "abi/process.h"
#include "base/context.h"
#include "coll/comm/node.h"
#include "coll/comm/stats.h"
#include "coll/engine.h"
#include "data.h"
#include "nccl.h"

/* The newest. */
static const struct fw_nccl newest = {"2.30", 12, 6, 6};

#define NODES 2
#define COMMS 3 /* INNER, OUTER, WORLD of the traces are 1, 2, 3 */
#define INNER 0
#define OUTER 1
#define WORLD 2
#define IN_FLIGHT 32u
#define HOLDERS 65536u
#define UNITS 256u
#define SAID 60000u /* operations whose codec the nodes exchange, before the result */

/* A CollNet communicator and its posted operations. */
struct stream {
    struct hx_comm *comm;
    const void *plugin;
    uint32_t *order;
    size_t posted, observed;
};

struct flight {
    struct hx_op op;
    size_t index; /* of the event */
    struct stream *stream;
    void *send, *recv;
};

struct unit { /* errors of a buffer since feedback began */
    float *sum;
    size_t n;
    double energy;
};

struct player {
    struct hx_node *node;
    const struct fw_play *play;
    const struct trace *trace;
    struct hx_lib *lib;
    const struct fw_nccl *nccl;
    struct nccl_comm comm[COMMS];
    struct stream stream[COMMS];
    struct flight flight[IN_FLIGHT];
    size_t begun, ended; /* numbers of operations: the range between them is in flight */
    float *mine, *other;
    char *expected;
    struct unit unit[UNITS];
    struct fw_result r;

    pthread_mutex_t lock; /* observations come from the engine's thread */
    struct nb_observation *seen;
    int64_t *holder; /* owner of a tracked buffer's error */
    int confused;    /* an observation that fits no operation */
};

enum { SAID_NOTHING, SAID_RAW, SAID_CODED };

/* Return node `rank`'s decision for each operation. The other node's contributions are coded as it says
 * there. */
static _Atomic unsigned char *said(struct player *p, int rank)
{
    return hx_scratch(p->node, rank);
}

/* ---- reports of the plugin --------------------------------------------------------- */

static void observed(void *arg, const struct nb_observation *what)
{
    struct player *p = arg;

    pthread_mutex_lock(&p->lock);
    for (int k = 0; k < COMMS; k++) {
        struct stream *s = &p->stream[k];
        const struct event *e;
        uint32_t index;

        if (!s->comm || s->plugin != what->comm)
            continue;
        if (s->observed >= s->posted) {
            p->confused++;
            break;
        }
        /* All-reduces that are unknown to the plugin are raw and go unreported. */
        while (s->observed + 1 < s->posted && what->func != NB_FUNC_ALL_REDUCE &&
               p->trace->event[s->order[s->observed]].call.func == NB_FUNC_ALL_REDUCE)
            s->observed++;
        index = s->order[s->observed++];
        e = &p->trace->event[index];
        if (e->call.func != what->func)
            p->confused++;
        p->seen[index] = *what;
        atomic_store_explicit(&said(p, p->node->rank)[index],
                              what->codec == NB_CODEC_RAW ? SAID_RAW : SAID_CODED, memory_order_release);
        if (what->tracked < 0 || !what->fed)
            break;
        if ((uint64_t)what->tracked >= HOLDERS) {
            p->confused++;
            break;
        }
        if (!what->empty && p->holder[what->tracked] != -1 && p->holder[what->tracked] != (int64_t)e->truth) {
            if (e->step >= p->play->late)
                p->r.misapplied++;
            else
                p->r.early_misapplied++;
        }
        p->holder[what->tracked] = e->content == C_GRADIENT ? (int64_t)e->truth : -2;
        break;
    }
    pthread_mutex_unlock(&p->lock);
}

/* ---- bring-up ---- */

static int uses(const struct trace *t, uint64_t comm)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->event[i].call.comm == comm)
            return 1;
    return 0;
}

static int open_comm(struct player *p, int k)
{
    struct hx_comm_cfg cfg = {.channels = p->play->channels ? p->play->channels : 2,
                              .buff_size = p->play->buff_size ? p->play->buff_size : 1u << 20,
                              .chunk = HX_CHUNK_NCCL,
                              .comm_id = 0x7000 + (uint64_t)k,
                              .poison = true};
    int inner = k == INNER, nodes = inner ? 1 : NODES, ranks = inner ? 8 : NODES;
    const char *stage;
    ncclResult_t ret;

    nccl_open(&p->comm[k], p->nccl, cfg.comm_id, nodes, ranks, inner ? 0 : p->node->rank);
    if (!inner && !(k == OUTER && p->play->share_outer)) {
        struct stream *s = &p->stream[k];
        ret = hx_comm_open(p->node, p->lib, &cfg, &s->comm, &stage);
        HX_CHECK(ret == ncclSuccess, "bring-up failed in %s with %d", stage, (int)ret);
        s->plugin = hx_comm_plugin(s->comm);
        s->order = calloc(p->trace->n, sizeof(*s->order));
        if (!s->order)
            abort();
    }
    return nccl_open_tuner(&p->comm[k], cfg.comm_id, ranks);
}

/* ---- one operation ---------------------------------------------------------- */

static const char *type_name(ncclDataType_t type)
{
    static const char *const name[ncclNumTypes] = {
        "ncclInt8",    "ncclUint8",   "ncclInt32",   "ncclUint32",   "ncclInt64",      "ncclUint64",
        "ncclFloat16", "ncclFloat32", "ncclFloat64", "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2"};

    return name[type];
}

static struct stream *stream_of(struct player *p, int k)
{
    return p->stream[k].comm ? &p->stream[k] : &p->stream[WORLD];
}

static size_t values_sent(const struct event *e)
{
    return e->call.func == NB_FUNC_ALL_GATHER ? e->call.count / NODES : e->call.count;
}

static int check(struct player *p, const struct flight *f);

static int finish_oldest(struct player *p)
{
    struct flight *f = &p->flight[p->ended % IN_FLIGHT];
    ncclResult_t ret = hx_wait(f->stream->comm, &f->op, 0);

    HX_CHECK(ret == ncclSuccess, "operation %zu (step %u): result %d", f->index,
             p->trace->event[f->index].step, (int)ret);
    p->ended++;
    return check(p, f);
}

static int begin(struct player *p, size_t index)
{
    const struct event *e = &p->trace->event[index];
    int k = (int)e->call.comm - 1, collnet;
    size_t ranks = k == INNER ? 8 : NODES, size = hx_type_size(e->call.type);
    size_t each = e->call.func == NB_FUNC_ALL_REDUCE ? e->call.count : e->call.count / ranks;
    static const int ev_func[] = {[NB_FUNC_REDUCE_SCATTER] = EV_REDUCE_SCATTER,
                                  [NB_FUNC_ALL_GATHER] = EV_ALL_GATHER,
                                  [NB_FUNC_ALL_REDUCE] = EV_ALL_REDUCE};
    static const enum hx_func hx_funcs[] = {[NB_FUNC_REDUCE_SCATTER] = HX_REDUCE_SCATTER,
                                            [NB_FUNC_ALL_GATHER] = HX_ALL_GATHER,
                                            [NB_FUNC_ALL_REDUCE] = HX_ALL_REDUCE};
    struct ev_op ev = {.func = ev_func[e->call.func],
                       .type = type_name(e->call.type),
                       .type_bytes = size,
                       .count = each,
                       .send = (const void *)(uintptr_t)e->call.send,
                       .recv = (void *)(uintptr_t)e->call.recv};
    struct stream *s;
    struct flight *f;

    collnet = nccl_start(&p->comm[k], &ev, e->call.func, e->call.count * size, e->call.bucket);
    HX_CHECK(collnet >= 0, "the tuner failed or chose channels");
    if (!collnet)
        return 0;
    while (p->begun - p->ended >= (p->play->ahead ? p->play->ahead : 6))
        if (finish_oldest(p))
            return 1;
    s = stream_of(p, k);
    f = &p->flight[p->begun % IN_FLIGHT];
    f->index = index;
    f->stream = s;
    data_make(e, index, p->node->rank, values_sent(e), p->mine);
    data_store(e->call.type, p->mine, values_sent(e), f->send);
    f->op = (struct hx_op){.func = hx_funcs[e->call.func],
                           .type = e->call.type,
                           .op = ncclSum,
                           .count = each,
                           .send = f->send,
                           .recv = f->recv};
    pthread_mutex_lock(&p->lock);
    s->order[s->posted++] = (uint32_t)index;
    pthread_mutex_unlock(&p->lock);
    p->r.posted++;
    p->begun++;
    hx_where("step %u, operation %zu of %zu", e->step, index, p->trace->n);
    HX_CHECK(hx_post(s->comm, &f->op) == ncclSuccess, "post");
    return 0;
}

/* ---- the truth ---------------------------------------------------------- */

static int check_gather(struct player *p, const struct flight *f, const struct event *e)
{
    size_t n = values_sent(e), bytes = n * hx_type_size(e->call.type);

    p->r.gathers++;
    p->r.gathers_coded += (uint64_t)(p->seen[f->index].codec != NB_CODEC_RAW);
    for (int rank = 0; rank < NODES; rank++) {
        data_make(e, f->index, rank, n, p->mine);
        data_store(e->call.type, p->mine, n, p->expected);
        HX_CHECK(memcmp((const char *)f->recv + (size_t)rank * bytes, p->expected, bytes) == 0,
                 "operation %zu (step %u): block %d of the all-gather is wrong", f->index, e->step, rank);
    }
    return 0;
}

/* Add up the errors of a buffer with feedback: their sum stays as large as one step's error. */
static void add_errors(struct player *p, const struct event *e, const float *truth, const float *got,
                       size_t n)
{
    struct unit *u = &p->unit[e->truth % UNITS];

    if (!u->sum) {
        u->sum = calloc(n, sizeof(*u->sum));
        u->n = n;
    }
    if (!u->sum || u->n != n)
        return;
    for (size_t i = 0; i < n; i++) {
        float d = got[i] - truth[i];
        u->sum[i] += d;
        u->energy += (double)d * d;
    }
}

static int check_sum(struct player *p, const struct flight *f, const struct event *e)
{
    const struct nb_observation *o = &p->seen[f->index];
    size_t n = values_sent(e), from = 0;
    unsigned says[NODES];
    int coded = 0;
    double noise = 0.0, energy = 0.0, nmse;

    for (int r = 0; r < NODES; r++) {
        says[r] = atomic_load_explicit(&said(p, r)[f->index], memory_order_acquire);
        coded |= says[r] == SAID_CODED;
    }
    if (e->call.func == NB_FUNC_REDUCE_SCATTER) /* the own contribution is exact */
        coded = says[1 - p->node->rank] == SAID_CODED;
    data_make(e, f->index, 0, n, p->mine);
    data_round(e->call.type, p->mine, n);
    data_make(e, f->index, 1, n, p->other);
    data_round(e->call.type, p->other, n);
    if (e->call.func == NB_FUNC_REDUCE_SCATTER) {
        n /= NODES;
        from = (size_t)p->node->rank * n;
    }
    for (size_t i = 0; i < n; i++) {
        float a = p->mine[from + i], b = p->other[from + i];
        energy += (double)a * a + (double)b * b;
        p->mine[i] = a + b;
    }
    if (!coded) {
        data_store(e->call.type, p->mine, n, p->expected);
        HX_CHECK(memcmp(f->recv, p->expected, n * hx_type_size(e->call.type)) == 0,
                 "operation %zu (step %u): a raw sum is not right to the bit", f->index, e->step);
        p->r.raw_sums++;
        return 0;
    }
    data_load(e->call.type, f->recv, n, p->other);
    for (size_t i = 0; i < n; i++)
        noise += ((double)p->other[i] - p->mine[i]) * ((double)p->other[i] - p->mine[i]);
    nmse = energy > 0 ? noise / energy : noise;
    /* A carried error is bounded by 0.2 of the tile, for each of an all-reduce's two codings. */
    HX_CHECK(nmse < (e->call.func == NB_FUNC_ALL_REDUCE ? 0.15 : 0.06),
             "operation %zu (step %u): error %.3g of the energy", f->index, e->step, nmse);
    p->r.worst_nmse = fmax(p->r.worst_nmse, nmse);
    if (o->comm && o->fed && e->content == C_GRADIENT)
        add_errors(p, e, p->mine, p->other, n);
    return 0;
}

static int check(struct player *p, const struct flight *f)
{
    const struct event *e = &p->trace->event[f->index];

    pthread_mutex_lock(&p->lock); /* the observation came before the operation ended */
    pthread_mutex_unlock(&p->lock);
    if (e->call.func == NB_FUNC_ALL_GATHER)
        return check_gather(p, f, e);
    return check_sum(p, f, e);
}

/* ---- totals ---------------------------------------------------------- */

static void count(struct player *p)
{
    struct fw_result *r = &p->r;
    uint32_t steps = p->trace->steps;
    uint32_t *asked = calloc(steps, sizeof(*asked)), *fed = calloc(steps, sizeof(*fed));
    double sum = 0.0, energy = 0.0;

    if (!asked || !fed)
        abort();
    for (size_t i = 0; i < p->trace->n; i++) {
        const struct event *e = &p->trace->event[i];
        const struct nb_observation *o = &p->seen[i];
        int coded = o->codec != NB_CODEC_RAW;

        if (!o->comm)
            continue;
        r->observed++;
        if (e->call.func == NB_FUNC_ALL_GATHER)
            continue;
        if (e->content != C_GRADIENT) {
            r->others++;
            r->others_coded += (uint64_t)coded;
            continue;
        }
        if (o->class_kind >= 0 && (unsigned)o->class_reason < NB_WHY_COUNT)
            r->class_reason[o->class_reason]++;
        asked[e->step]++;
        fed[e->step] += (uint32_t)(coded && o->fed);
        r->early_coded += (uint64_t)(coded && e->step < p->play->warmup);
        if (e->step < p->play->late || e->zeros == 0xff) /* zeros alone are raw and not fed */
            continue;
        r->gradients++;
        r->coded += (uint64_t)coded;
        r->fed += (uint64_t)(coded && o->fed);
        if (o->id_reason >= 0 && o->id_reason < NB_ID_REASON_COUNT)
            r->id_reason[o->id_reason]++;
    }
    r->first = trace_first_fed(asked, fed, steps);
    for (unsigned u = 0; u < UNITS; u++) {
        for (size_t i = 0; i < p->unit[u].n; i++)
            sum += (double)p->unit[u].sum[i] * p->unit[u].sum[i];
        energy += p->unit[u].energy;
    }
    r->cancelled = energy > 0 ? sum / energy : 1.0;
    for (int k = 0; k < COMMS; k++) {
        struct nb_coll_stats stats;
        if (!p->stream[k].comm)
            continue;
        nb_coll_get_stats(hx_comm_plugin(p->stream[k].comm), &stats);
        for (int f = 0; f < NB_FUNC_COUNT; f++) {
            r->sent += (double)stats.func[f].sent_bytes;
            r->wire += (double)stats.func[f].wire_bytes;
        }
    }
    free(asked);
    free(fed);
}

/* ---- a node ---------------------------------------------------------- */

static size_t largest(const struct trace *t)
{
    size_t most = 0;

    for (size_t i = 0; i < t->n; i++)
        if (t->event[i].call.comm != INNER + 1 && t->event[i].call.count > most)
            most = t->event[i].call.count;
    return most + 64;
}

static int close_all(struct player *p)
{
    int rc = 0;

    for (int k = 0; k < COMMS; k++) {
        nccl_close(&p->comm[k]);
        if (p->stream[k].comm && hx_comm_close(p->stream[k].comm) != ncclSuccess)
            rc = hx_fail("close of communicator %d", k);
        free(p->stream[k].order);
    }
    hx_lib_close(p->lib);
    if (!rc && hx_log_warns()) {
        char line[300];
        hx_log_first("W ", line, sizeof(line));
        rc = hx_fail("%d WARN lines were logged: %s", hx_log_warns(), line);
    }
    return rc;
}

static int node_main(struct hx_node *node, void *arg)
{
    struct player *p = calloc(1, sizeof(*p));
    const struct fw_play *play = arg;
    size_t most = largest(play->trace);

    if (!p)
        abort();
    p->node = node;
    p->play = play;
    p->trace = play->trace;
    p->nccl = play->nccl ? play->nccl : &newest;
    p->seen = calloc(p->trace->n, sizeof(*p->seen));
    p->holder = malloc(HOLDERS * sizeof(*p->holder));
    p->mine = malloc(most * sizeof(float));
    p->other = malloc(most * sizeof(float));
    p->expected = malloc(most * 4);
    if (!p->seen || !p->holder || !p->mine || !p->other || !p->expected)
        abort();
    memset(p->holder, 0xff, HOLDERS * sizeof(*p->holder));
    for (unsigned i = 0; i < IN_FLIGHT; i++) {
        p->flight[i].send = malloc(most * 4);
        p->flight[i].recv = malloc(most * 4);
        if (!p->flight[i].send || !p->flight[i].recv)
            abort();
    }
    pthread_mutex_init(&p->lock, NULL);
    HX_CHECK(p->trace->n <= SAID, "the trace is too long");
    p->lib = nccl_lib(p->nccl);
    for (int k = COMMS - 1; k >= 0; k--) /* the world first: the other communicators split off it */
        if ((k == WORLD || uses(p->trace, (uint64_t)k + 1)) && open_comm(p, k))
            return 1;
    nb_observe(&nb_engine_node(nb_process_context()->engine)->observer, observed, p);
    for (size_t i = 0; i < p->trace->n; i++)
        if (begin(p, i))
            return 1;
    while (p->ended < p->begun)
        if (finish_oldest(p))
            return 1;
    count(p);
    HX_CHECK(p->confused == 0, "%d observations fit no operation", p->confused);
    p->r.profiler_notices = hx_log_count("profiler", "Remedy: NCCL_PROFILER_PLUGIN=libnccl-net-nibble.so");
    p->r.tuner_notices = hx_log_count("tuner", "Remedy: NCCL_TUNER_PLUGIN=libnccl-net-nibble.so");
    memcpy((char *)hx_scratch(node, node->rank) + SAID, &p->r, sizeof(p->r));
    hx_barrier(node);
    if (close_all(p))
        return 1;
    nb_observe(&nb_engine_node(nb_process_context()->engine)->observer, NULL, NULL);
    for (unsigned i = 0; i < IN_FLIGHT; i++) {
        free(p->flight[i].send);
        free(p->flight[i].recv);
    }
    for (unsigned u = 0; u < UNITS; u++)
        free(p->unit[u].sum);
    free(p->seen);
    free(p->holder);
    free(p->mine);
    free(p->other);
    free(p->expected);
    free(p);
    return 0;
}

int fw_run(const char *name, const struct fw_play *play, struct fw_result result[2])
{
    struct fw_play copy = *play;
    struct hx_job job = {
        .name = name, .nnodes = NODES, .fn = node_main, .arg = &copy, .env = play->env, .seed = 1};
    struct hx_report *rep;
    int rc;

    rc = hx_job_run(&job, &rep);
    for (int r = 0; r < NODES && rc == 0; r++)
        memcpy(&result[r], rep->node[r].scratch + SAID, sizeof(result[r]));
    hx_report_free(rep);
    return rc;
}
