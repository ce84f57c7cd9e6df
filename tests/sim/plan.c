/* SPDX-License-Identifier: Apache-2.0 */
/* Draw a plan from a seed. See plan.h. */
#include "tests/sim/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim.h"

#define SLOTS 6
#define MOST_WINDOWS 48 /* of an operation */

static uint64_t below(uint64_t *r, uint64_t n)
{
    return hx_rand_below(r, n);
}

static bool one_in(uint64_t *r, uint64_t n)
{
    return below(r, n) == 0;
}

#define PICK(r, list) ((list)[below(r, sizeof(list) / sizeof((list)[0]))])

static void *zeroed(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);

    if (!p)
        abort();
    return p;
}

/* ---- nodes and settings -------------------------------------------------------------------------------- */

static int draw_nodes(uint64_t *r, const struct sim_options *o)
{
    int n = o->most - o->least;

    /* Small numbers of nodes are more frequent: their runs are short, and show most failures. */
    for (int i = one_in(r, 8) ? 2 : 0; i < 3; i++)
        n = (int)below(r, (uint64_t)n + 1);
    return o->least + n;
}

static void draw_settings(uint64_t *r, struct sim_plan *p)
{
    static const int64_t units[] = {4096, 4096, 4096, 8192, 8192, 16384};
    static const enum nb_ag_word bounded[] = {NB_AG_DELTA4, NB_AG_DELTA4_FP32};
    static const enum nb_sum_word sums[] = {NB_SUM_RAW, NB_SUM_INT4, NB_SUM_INT8};
    static const int64_t mins[] = {0, 0, 0, 2048, 16384};
    struct nb_params all = *nb_params_defaults();

    all.grad = "all";
    all.warmup_steps = 0;
    all.unit_bytes = one_in(r, 12) ? 65536 : PICK(r, units);
    all.rs_min_bytes = PICK(r, mins);
    all.ar_min_bytes = PICK(r, mins);
    all.ag_min_bytes = PICK(r, mins);
    all.rs = one_in(r, 3) ? PICK(r, sums) : NB_SUM_INT4;
    all.ar = one_in(r, 3) ? PICK(r, sums) : NB_SUM_INT4;
    all.ag = one_in(r, 6) ? PICK(r, bounded) : one_in(r, 4) ? NB_AG_RAW : NB_AG_EXACT;
    all.ef = one_in(r, 3) ? below(r, NB_FEEDBACK_COUNT) : NB_FEEDBACK_FULL;
    all.schedule = one_in(r, 2) ? NB_SCHEDULE_AUTO : 1 + below(r, NB_SCHEDULE_COUNT - 1);
    all.second_hop = below(r, NB_SECOND_HOP_COUNT);
    all.payload_check = NB_PAYLOAD_CHECK_ON; /* of raw bytes, too: any payload may get a flipped bit */
    all.shadow = one_in(r, 20);
    all.peer_timeout = 1 + (int64_t)below(r, 3);
    all.connect_timeout = 2 + (int64_t)below(r, 4);
    all.close_timeout = 1 + (int64_t)below(r, 3);
    all.gpu_timeout = 1;
    all.late_report = 1 + (int64_t)below(r, 5);
    p->params = zeroed((size_t)p->nnodes, sizeof(*p->params));
    for (int i = 0; i < p->nnodes; i++) {
        p->params[i] = all;
        p->params[i].credits = one_in(r, 3) ? 1 : 1 + (int64_t)below(r, 6);
    }
}

/* Draw one node's settings that need not agree. */
static void draw_own_settings(uint64_t *r, struct nb_params *own)
{
    own->ef = below(r, NB_FEEDBACK_COUNT);
    own->ef_bound = one_in(r, 3) ? 0.0 : 0.2;
    own->ef_reset = 1 + (int64_t)below(r, 20);
    own->grad = one_in(r, 3) ? "" : "all";
    own->warmup_steps = one_in(r, 2) ? 0 : (int64_t)below(r, 20);
    own->fallback_nmse = one_in(r, 3) ? 1e-6 : 0.05;
    own->connect_timeout += (int64_t)below(r, 3);
    own->close_timeout = 1 + (int64_t)below(r, 3);
    own->late_report = 1 + (int64_t)below(r, 5);
    if (one_in(r, 6))
        own->ref_max_mb = 0;
    if (one_in(r, 6))
        own->ef_max_mb = 0;
}

/* Draw one setting that must agree, differently for one node. */
static void draw_other_setting(uint64_t *r, struct nb_params *own)
{
    switch (below(r, 10)) {
    case 0:
        own->rs = own->rs == NB_SUM_RAW ? NB_SUM_INT4 : own->rs == NB_SUM_INT4 ? NB_SUM_INT8 : NB_SUM_RAW;
        break;
    case 1:
        own->ar = own->ar == NB_SUM_RAW ? NB_SUM_INT4 : own->ar == NB_SUM_INT4 ? NB_SUM_INT8 : NB_SUM_RAW;
        break;
    case 2: own->ag = (own->ag + 1) % NB_AG_COUNT; break;
    case 3: own->min_bytes++; break;
    case 4: own->unit_bytes *= 2; break;
    case 5: own->schedule = (own->schedule + 1) % NB_SCHEDULE_COUNT; break;
    case 6: own->second_hop = (own->second_hop + 1) % NB_SECOND_HOP_COUNT; break;
    case 7: own->shadow = !own->shadow; break;
    case 8: own->tuner = !own->tuner; break;
    default: own->peer_timeout++; break;
    }
}

/* Draw the differences between nodes. */
static void draw_differences(uint64_t *r, struct sim_plan *p)
{
    enum { ON = NB_PAYLOAD_CHECK_ON, CODED = NB_PAYLOAD_CHECK_CODED, OFF = NB_PAYLOAD_CHECK_OFF, ANY = -1 };
    static const int checks[] = {ON, ON, ON, ON, CODED, CODED, OFF, ANY}; /* ANY: each node its own */
    const int check = PICK(r, checks);

    const bool vague = one_in(r, 3);

    p->uneven = one_in(r, 6);
    for (int i = 0; i < p->nnodes; i++) {
        p->params[i].payload_check = check == ANY ? (int)below(r, NB_PAYLOAD_CHECK_COUNT) : check;
        p->vague[i] = vague ? (unsigned char)below(r, 3) : 0;
        if (p->uneven && one_in(r, 2))
            draw_own_settings(r, &p->params[i]);
    }
    /* The judge checks two seconds later whether all nodes have heard of the operator's switch. Some node
     * must still be there then. */
    for (int i = 0; i < p->nfaults; i++) {
        struct sim_comm *c = &p->comm[p->fault[i].comm];
        if (p->fault[i].kind == SIM_SWITCH && one_in(r, 2))
            c->op[c->nops - 1].pause = 6 * SIM_S;
    }
    if (one_in(r, 24)) {
        const size_t other = below(r, (uint64_t)p->nnodes);
        draw_other_setting(r, &p->params[other]);
        p->differs[other] = p->uneven = true;
    }
}

static void draw_machines(uint64_t *r, struct sim_plan *p)
{
    static const int64_t rates[] = {12, 125, 1250, 1250, 12500, 25000};
    static const int64_t latencies[] = {2000, 5000, 5000, 20000, 500000};
    static const int64_t steps[] = {0, 1000, 5000, 20000, 20000, 100000};
    static const int64_t gpus[] = {0, 0, 0, 2000, 100000, 5000000};
    const int64_t rate = PICK(r, rates), latency = PICK(r, latencies);
    const int64_t jitter = one_in(r, 3) ? 0 : one_in(r, 3) ? 10 * latency : latency / 2;
    const bool uneven = one_in(r, 4), skew = one_in(r, 3);
    const size_t n = (size_t)p->nnodes;

    p->nic = zeroed(n, sizeof(*p->nic));
    p->clock = zeroed(n, sizeof(*p->clock));
    p->start = zeroed(n, sizeof(*p->start));
    p->recorded = zeroed(n, sizeof(*p->recorded));
    p->late_device = one_in(r, 4);
    p->early = one_in(r, 2);
    p->eager = !one_in(r, 4);
    p->window = one_in(r, 3) ? 1 + (int)below(r, 4) : 32;
    p->step_ns = PICK(r, steps);
    p->gpu_ns = PICK(r, gpus);
    const bool records = !one_in(r, 4), partly = one_in(r, 8);
    for (size_t i = 0; i < n; i++) {
        p->nic[i].rate_in = uneven ? PICK(r, rates) : rate;
        p->nic[i].rate_out = uneven ? PICK(r, rates) : rate;
        p->nic[i].latency = uneven ? PICK(r, latencies) : latency;
        p->nic[i].jitter = jitter;
        p->clock[i] = SIM_S + (skew ? (int64_t)below(r, 1000000) * SIM_S : 0);
        p->start[i] = one_in(r, 3) ? (int64_t)below(r, 500 * (uint64_t)SIM_MS) : (int64_t)below(r, SIM_MS);
        p->recorded[i] = records && !(partly && one_in(r, 2));
    }
}

/* ---- operations ---------------------------------------------------------------------------------------- */

static size_t draw_count(uint64_t *r)
{
    const uint64_t kind = below(r, 100);

    if (kind < 50)
        return 1 + below(r, 200);
    if (kind < 90)
        return 1 + below(r, 3000);
    if (kind < 99)
        return 1 + below(r, 10000);
    return 1 + below(r, 50000);
}

static void draw_reduction(uint64_t *r, const struct nb_params *params, struct sim_op *op)
{
    static const ncclDataType_t floats[] = {ncclFloat32, ncclBfloat16, ncclFloat16};
    static const ncclDataType_t all[] = {ncclInt8,   ncclUint8,   ncclInt32,   ncclUint32,  ncclInt64,
                                         ncclUint64, ncclFloat16, ncclFloat32, ncclFloat64, ncclBfloat16};
    static const ncclRedOp_t reductions[] = {ncclSum, ncclProd, ncclMax, ncclMin};
    const bool all_reduce = op->func == NB_FUNC_ALL_REDUCE;
    bool is_float;

    op->type = one_in(r, 3) ? PICK(r, all) : PICK(r, floats);
    op->redop = one_in(r, 4) ? PICK(r, reductions) : ncclSum;
    is_float = hx_type_is_float(op->type);
    op->coded = op->redop == ncclSum && is_float && op->type != ncclFloat64 && !params->shadow &&
                (all_reduce ? params->ar : params->rs) != NB_SUM_RAW;
    if (op->coded)
        op->data = SIM_DATA_NORMAL;
    else if (op->redop == ncclProd)
        op->data = is_float ? SIM_DATA_UNITS : SIM_DATA_BITS;
    else if (op->redop == ncclSum)
        op->data = is_float || one_in(r, 2) ? SIM_DATA_SMALL : SIM_DATA_BITS;
    else
        op->data = is_float ? SIM_DATA_NORMAL : SIM_DATA_BITS;
}

/* Draw an operation that is part of a step of the job. */
static void draw_slot(uint64_t *r, const struct sim_plan *p, const struct sim_comm *c, struct sim_op *op)
{
    static const int channels[] = {1, 1, 2, 2, 4, 8, 12};
    static const size_t chunks[] = {512, 512, 1024, 4096, 16384};
    size_t total;

    memset(op, 0, sizeof(*op));
    op->func = (enum nb_func)below(r, NB_FUNC_COUNT);
    op->count = draw_count(r);
    if (op->func == NB_FUNC_ALL_GATHER) {
        static const ncclDataType_t types[] = {ncclBfloat16, ncclFloat32, ncclFloat16, ncclInt8, ncclInt64};
        op->type = PICK(r, types);
        op->data = one_in(r, 4) ? SIM_DATA_BITS : SIM_DATA_WEIGHTS;
        op->lossy_gather = p->params[0].ag >= 2 && hx_type_is_float(op->type);
    } else {
        draw_reduction(r, &p->params[0], op);
    }
    if (op->func != NB_FUNC_ALL_REDUCE)
        op->count = (op->count + (size_t)c->nmembers - 1) / (size_t)c->nmembers;
    op->channels = PICK(r, channels);
    if (op->channels > c->channels)
        op->channels = c->channels;
    op->chunk = PICK(r, chunks);
    total = op->count * hx_type_size(op->type) * (op->func == NB_FUNC_ALL_REDUCE ? 1 : (size_t)c->nmembers);
    while (total / ((size_t)op->channels * op->chunk) > MOST_WINDOWS)
        op->chunk *= 2;
    op->pause = one_in(r, 4) ? (int64_t)below(r, 2 * (uint64_t)SIM_MS) : 0;
}

static void draw_comm(uint64_t *r, struct sim_plan *p, int index)
{
    static const int nops[] = {2, 10, 30, 60, 100, 200};
    struct sim_comm *c = &p->comm[index];
    struct sim_op slot[SLOTS];
    int step[SLOTS] = {0};
    const int nslots = 1 + (int)below(r, SLOTS);
    bool alternates = one_in(r, 2); /* slots by turns, as training does, else any */

    c->id = below(r, UINT64_C(1) << 48) + 1;
    c->member = zeroed((size_t)p->nnodes, sizeof(int));
    for (int i = 0; i < p->nnodes; i++)
        if (index == 0 || p->nnodes <= 2 || !one_in(r, 4))
            c->member[c->nmembers++] = i;
    if (c->nmembers < 2) {
        c->nmembers = 2;
        c->member[0] = 0;
        c->member[1] = 1;
    }
    c->channels = one_in(r, 6) ? SIM_CHANNELS : 1 + (int)below(r, 4);
    c->closes_late = one_in(r, 2);
    for (int i = 0; i < nslots; i++) {
        draw_slot(r, p, c, &slot[i]);
        slot[i].slot = i + SLOTS * index;
        if (slot[i].chunk > c->slot_size)
            c->slot_size = slot[i].chunk;
    }
    c->nops = 1 + (int)below(r, (uint64_t)PICK(r, nops));
    c->op = zeroed((size_t)c->nops, sizeof(*c->op));
    for (int i = 0; i < c->nops; i++) {
        const int k = alternates ? i % nslots : (int)below(r, (uint64_t)nslots);
        c->op[i] = slot[k];
        c->op[i].step = step[k]++;
        c->op[i].seed = hx_rand(r);
    }
}

/* ---- faults -------------------------------------------------------------------------------------------- */

bool sim_fault_survived(const struct sim_plan *plan, const struct sim_fault *f)
{
    const int64_t limit = plan->params[0].peer_timeout * SIM_S * 6 / 10;

    switch (f->kind) {
    case SIM_SLOW:
    case SIM_PAUSE:
    case SIM_SWITCH: return true;
    case SIM_STOP:
    case SIM_CUT:
    case SIM_ISOLATE:
    case SIM_STALL: return f->lasts < limit;
    default: return false;
    }
}

static void draw_fault(uint64_t *r, const struct sim_plan *p, bool fatal, struct sim_fault *f)
{
    const int64_t limit = p->params[0].peer_timeout * SIM_S;
    const struct sim_comm *c;

    do {
        f->kind = (enum sim_fault_kind)below(r, SIM_FAULTS);
    } while (f->kind == SIM_NO_MR);
    f->comm = (int)below(r, (uint64_t)p->ncomms);
    c = &p->comm[f->comm];
    f->at_node = c->member[below(r, (uint64_t)c->nmembers)];
    f->at_op = (int)below(r, (uint64_t)c->nops);
    f->events = below(r, one_in(r, 2) ? 20 : 400);
    f->node = c->member[below(r, (uint64_t)c->nmembers)];
    do
        f->peer = c->member[below(r, (uint64_t)c->nmembers)];
    while (f->peer == f->node);
    f->amount = hx_rand(r) >> 8;
    if (fatal)
        f->lasts = one_in(r, 2) ? (int64_t)below(r, (uint64_t)limit * 3) : limit * 2;
    else
        f->lasts = (int64_t)below(r, (uint64_t)limit / (one_in(r, 2) ? 2 : 100));
    if (f->kind == SIM_PAUSE)
        f->lasts =
            one_in(r, 8) ? (int64_t)below(r, 150 * (uint64_t)SIM_S) : (int64_t)below(r, 3 * (uint64_t)SIM_S);
    if (f->kind == SIM_SLOW)
        f->amount = 1000 + below(r, (uint64_t)limit / 50);
    if (f->kind == SIM_NO_MEMORY)
        f->amount = 1 + below(r, 3);
    if (f->kind == SIM_SWITCH || f->kind == SIM_CUT)
        f->amount &= 1;
}

/* Draw a fault that happens while communicators connect. */
static void draw_connect_fault(uint64_t *r, const struct sim_plan *p, bool fatal, struct sim_fault *f)
{
    static const enum sim_fault_kind kinds[] = {SIM_KILL, SIM_POWER, SIM_STOP,      SIM_CUT,  SIM_ISOLATE,
                                                SIM_SLOW, SIM_NO_MR, SIM_NO_MEMORY, SIM_FLIP, SIM_RESET};
    const uint64_t most = (uint64_t)(p->nnodes * p->nnodes) * 20;

    do
        draw_fault(r, p, fatal, f);
    while (f->comm != 0);
    f->kind = PICK(r, kinds);
    f->at_op = -1;
    f->events = below(r, one_in(r, 3) ? 20 : most);
    if (f->kind == SIM_SLOW)
        f->amount = 1000 + below(r, (uint64_t)SIM_MS);
    if (f->kind == SIM_CUT)
        f->amount &= 1;
    if (f->kind == SIM_NO_MEMORY)
        f->amount = 1 + below(r, 40);
    if (f->kind == SIM_FLIP)
        f->amount &= ~UINT64_C(1); /* where a check is certain to cover it */
}

/* Damage control messages, which are few unless nodes wait. */
static void draw_control(uint64_t *r, struct sim_plan *p, struct sim_fault *f)
{
    struct sim_comm *c = &p->comm[f->comm];

    f->control = one_in(r, 2);
    if (f->control && (f->kind == SIM_FLIP || f->kind == SIM_TRUNCATE) && f->at_op + 2 < c->nops)
        c->op[f->at_op + 2].pause = 4 * SIM_S;
}

static void draw_faults(uint64_t *r, struct sim_plan *p, const struct sim_options *o)
{
    const bool fatal = o->faults && !one_in(r, 3);
    const bool connects = o->connect && one_in(r, 4);
    const int n = one_in(r, 5) ? 0 : 1 + (int)below(r, one_in(r, 3) ? 5 : 2);

    p->fault = zeroed((size_t)n, sizeof(*p->fault));
    while (p->nfaults < n) {
        struct sim_fault *f = &p->fault[p->nfaults];
        memset(f, 0, sizeof(*f));
        if (connects)
            draw_connect_fault(r, p, fatal, f);
        else
            draw_fault(r, p, fatal, f);
        p->nfaults += fatal || sim_fault_survived(p, f);
    }
}

/* Replace all faults by one fault of a header. */
static void draw_header(uint64_t *r, struct sim_plan *p)
{
    free(p->fault);
    p->fault = zeroed(1, sizeof(*p->fault));
    p->nfaults = 1;
    draw_fault(r, p, false, p->fault);
    p->fault->kind = SIM_FLIP;
    p->fault->amount &= ~UINT64_C(1); /* where a check is certain to cover it */
}

/* Stretch all time limits to those of a job, with ring after ring of heartbeats in each. */
static void draw_patience(uint64_t *r, struct sim_plan *p)
{
    enum { TIMES = 10 };

    if (!one_in(r, 8))
        return;
    for (int i = 0; i < p->nnodes; i++) {
        p->params[i].peer_timeout *= TIMES;
        p->params[i].connect_timeout *= TIMES;
        p->params[i].close_timeout *= TIMES;
    }
    for (int i = 0; i < p->nfaults; i++) {
        const enum sim_fault_kind k = p->fault[i].kind;
        if (k == SIM_STOP || k == SIM_CUT || k == SIM_ISOLATE || k == SIM_STALL)
            p->fault[i].lasts *= TIMES;
    }
}

/* Give the nodes sites: in order, by turns, at random, or one node without a name. */
static void draw_sites(uint64_t *r, struct sim_plan *p)
{
    static const char *const names[] = {"a", "b", "c"};
    const size_t sites = 2 + below(r, 2), kind = below(r, 5), n = (size_t)p->nnodes;
    const size_t nameless = below(r, n);

    if (!one_in(r, 3))
        return;
    for (size_t i = 0; i < n; i++)
        p->params[i].site = names[kind == 0 ? i * sites / n : kind < 3 ? i % sites : below(r, sites)];
    if (kind == 4)
        p->params[nameless].site = "";
}

/* ---- the whole ----------------------------------------------------------------------------------------- */

struct sim_plan *sim_plan_draw(uint64_t seed, const struct sim_options *options)
{
    struct sim_plan *p = zeroed(1, sizeof(*p));
    uint64_t r = hx_seed(seed, 0x73696d, 1);

    p->seed = seed;
    p->nnodes = draw_nodes(&r, options);
    draw_settings(&r, p);
    draw_machines(&r, p);
    p->ncomms = one_in(&r, 3) ? 2 + (int)below(&r, SIM_COMMS - 1) : 1;
    for (int c = 0; c < p->ncomms; c++)
        draw_comm(&r, p, c);
    draw_faults(&r, p, options);
    p->differs = zeroed((size_t)p->nnodes, sizeof(*p->differs));
    p->vague = zeroed((size_t)p->nnodes, sizeof(*p->vague));
    if (options->version >= 2) {
        r = hx_seed(seed, 0x73696d, 2);
        draw_differences(&r, p);
    }
    if (options->version >= 3) {
        r = hx_seed(seed, 0x73696d, 3);
        for (int i = 0; i < p->nfaults; i++)
            draw_control(&r, p, &p->fault[i]);
    }
    if (options->version >= 4) {
        r = hx_seed(seed, 0x73696d, 4);
        draw_patience(&r, p);
    }
    if (options->version >= 5) {
        r = hx_seed(seed, 0x73696d, 6);
        draw_sites(&r, p);
    }
    if (options->headers) {
        r = hx_seed(seed, 0x73696d, 5);
        draw_header(&r, p);
    }
    return p;
}

void sim_plan_calm(struct sim_plan *p)
{
    for (int i = 0; i < p->nfaults; i++)
        p->fault[i].skip = true;
    p->step_ns = p->gpu_ns = 0;
    p->late_device = false;
    p->eager = true;
    for (int i = 0; i < p->nnodes; i++) {
        p->nic[i] = (struct sim_nic){.rate_in = 1250, .rate_out = 1250, .latency = 5000};
        p->start[i] = 0;
    }
}

static void *copy_of(const void *list, size_t n, size_t size)
{
    void *copy = zeroed(n, size);

    memcpy(copy, list, n * size);
    return copy;
}

#define COPY(list, n) ((list) = copy_of(list, (size_t)(n), sizeof(*(list))))

struct sim_plan *sim_plan_copy(const struct sim_plan *plan)
{
    struct sim_plan *p = copy_of(plan, 1, sizeof(*plan));

    COPY(p->params, p->nnodes);
    COPY(p->nic, p->nnodes);
    COPY(p->clock, p->nnodes);
    COPY(p->start, p->nnodes);
    COPY(p->recorded, p->nnodes);
    COPY(p->vague, p->nnodes);
    COPY(p->differs, p->nnodes);
    COPY(p->fault, p->nfaults);
    for (int c = 0; c < p->ncomms; c++) {
        COPY(p->comm[c].member, p->nnodes);
        COPY(p->comm[c].op, p->comm[c].nops);
    }
    return p;
}

void sim_plan_free(struct sim_plan *p)
{
    for (int c = 0; c < p->ncomms; c++) {
        free(p->comm[c].member);
        free(p->comm[c].op);
    }
    free(p->params);
    free(p->nic);
    free(p->clock);
    free(p->start);
    free(p->recorded);
    free(p->fault);
    free(p->differs);
    free(p->vague);
    free(p);
}

int sim_plan_operations(const struct sim_plan *p)
{
    int n = 0;

    for (int c = 0; c < p->ncomms; c++)
        for (int i = 0; i < p->comm[c].nops; i++)
            n += !p->comm[c].op[i].skip;
    return n;
}

void sim_plan_print(const struct sim_plan *p)
{
    char text[1024];

    nb_params_describe(&p->params[0], text, sizeof(text));
    printf("seed %llu: %d nodes, %d communicators, %d operations\n", (unsigned long long)p->seed, p->nnodes,
           p->ncomms, sim_plan_operations(p));
    printf("  settings of node 0: %s\n", text);
    for (int i = 1; i < p->nnodes && p->uneven; i++) {
        nb_params_describe(&p->params[i], text, sizeof(text));
        printf("  settings of node %d: %s\n", i, text);
    }
    printf("  network: %lld MB/s out, %lld in, latency %lld ns, jitter %lld, sends are done %s, %d at once\n",
           (long long)p->nic[0].rate_out, (long long)p->nic[0].rate_in, (long long)p->nic[0].latency,
           (long long)p->nic[0].jitter, p->early ? "when taken" : "when they have arrived", p->window);
    printf("  nodes: %s, notice within %lld ns, device %s, GPU %lld ns\n",
           p->eager ? "eager" : "step by step", (long long)p->step_ns, p->late_device ? "late" : "at once",
           (long long)p->gpu_ns);
    for (int c = 0; c < p->ncomms; c++) {
        const struct sim_comm *comm = &p->comm[c];
        printf("  communicator %d: %d nodes, %d channels\n", c, comm->nmembers, comm->channels);
        for (int i = 0; i < comm->nops; i++)
            if (!comm->op[i].skip)
                printf("    operation %d: %s of %zu x %s, reduction %d, %d channels of %zu bytes, buffer %d, "
                       "data %d\n",
                       i, nb_func_name(comm->op[i].func), comm->op[i].count, hx_type_name(comm->op[i].type),
                       (int)comm->op[i].redop, comm->op[i].channels, comm->op[i].chunk, comm->op[i].slot,
                       (int)comm->op[i].data);
    }
    for (int i = 0; i < p->nfaults; i++) {
        const struct sim_fault *f = &p->fault[i];
        if (!f->skip)
            printf(
                "  fault %d: %s%s, node %d, peer %d, %lld us, amount %llu: %llu events after node %d begins "
                "operation %d of communicator %d\n",
                i, sim_fault_name[f->kind],
                f->control && (f->kind == SIM_FLIP || f->kind == SIM_TRUNCATE) ? " of a control message" : "",
                f->node, f->peer, (long long)(f->lasts / SIM_US), (unsigned long long)f->amount,
                (unsigned long long)f->events, f->at_node, f->at_op, f->comm);
    }
}
