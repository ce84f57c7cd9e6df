/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compare the calls that nibble passes on to the profiler and the tuner after it (NIBBLE_PROFILER_NEXT,
 * NIBBLE_TUNER_NEXT) with the calls that they get without nibble: the same calls, to the letter. The test
 * plays NCCL's part, including the rule of masks, as NCCL's src/plugin/profiler.cc does it.
 */
#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "next_plugin.h"
#include "plugin_fixture.h"
#include "tests/suite.h"

#define LOG_CAP 65536

static void *module_lib;
static struct next_plugin *next;
static char text[2][LOG_CAP];

/* Open the module of this version, with its log in text[i]. */
static void *open_next(int version, int i)
{
    char path[512];

    snprintf(path, sizeof(path), NEXT_PLUGINS "/next_v%d.so", version);
    module_lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    ck_assert_msg(module_lib, "%s", dlerror());
    next = dlsym(module_lib, "nb_next_plugin");
    ck_assert_ptr_nonnull(next);
    *next = (struct next_plugin){.log = text[i], .cap = LOG_CAP, .prefers = -1, .writes = 0.5f};
    text[i][0] = 0;
    setenv("NIBBLE_PROFILER_NEXT", path, 1);
    setenv("NIBBLE_TUNER_NEXT", path, 1);
    return module_lib;
}

/* ---- The profiler -------------------------------------------------------------------------------------- */

struct player { /* NCCL with a profiler's table of this version */
    int version;
    const void *table;
    int mask; /* NCCL's own */
    void *context[2];
};

#define V4(p) ((const ncclProfiler_v4_t *)(p)->table)
#define V7(p) \
    ((const ncclProfiler_v7_t *)(p) \
         ->table) /* v5 and v6 have the same functions, and descriptions that are the beginning of these */

static bool enabled(const struct player *p, int mask)
{
    return p->mask & mask;
}

static void *start(struct player *p, void *context, const ncclProfilerEventDescr_v7_t *d)
{
    void *handle = (void *)(uintptr_t)0x77; /* a value left by an earlier event */

    if (p->version == 4) {
        ncclProfilerEventDescr_v4_t e = {
            .type = (uint8_t)d->type, .parentObj = d->parentObj, .rank = d->rank};
        if (d->type == ncclProfileColl) {
            e.parentObj = d->coll.parentGroup;
            e.coll.func = d->coll.func;
            e.coll.datatype = d->coll.datatype;
            e.coll.count = d->coll.count;
            e.coll.algo = d->coll.algo;
            e.coll.proto = d->coll.proto;
            e.coll.nChannels = d->coll.nChannels;
            e.coll.recvBuff = d->coll.recvBuff;
        } else if (d->type == ncclProfileProxyOp) {
            e.proxyOp = d->proxyOp;
        } else if (d->type == ncclProfileProxyStep) {
            e.proxyStep.step = d->proxyStep.step;
        } else if (d->type == ncclProfileKernelCh) {
            e.kernelCh = d->kernelCh;
        }
        ok(V4(p)->startEvent(context, &handle, &e));
    } else {
        /* Nothing follows the description of this version. */
        const size_t size = p->version == 7 ? sizeof(*d) : sizeof(ncclProfilerEventDescr_v6_t);
        ncclProfilerEventDescr_v7_t *e = malloc(size);
        ck_assert_ptr_nonnull(e);
        memcpy(e, d, size);
        ok(V7(p)->startEvent(context, &handle, e));
        free(e);
    }
    ck_assert_ptr_ne(handle, (void *)(uintptr_t)0x77);
    return handle;
}

static void stop(struct player *p, void *handle)
{
    if (handle)
        ok(p->version == 4 ? V4(p)->stopEvent(handle) : V7(p)->stopEvent(handle));
}

static void state(struct player *p, void *handle, int to)
{
    ncclProfilerEventStateArgs_v4_t args = {.proxyCtrl.appendedProxyOps = to + 1};

    if (handle)
        ok(p->version == 4 ? V4(p)->recordEventState(handle, to, &args)
                           : V7(p)->recordEventState(handle, to, &args));
}

#define STEPS (ncclProfileProxyStep | ncclProfileNetPlugin)
#define OPS (ncclProfileProxyOp | STEPS)
#define WORK (OPS | ncclProfileKernelCh)
#define ENGINE (ncclProfileCeColl | ncclProfileCeSync | ncclProfileCeBatch)

static void proxy(struct player *p, void *context, void *parent, int pid)
{
    void *op = NULL, *step = NULL, *net = NULL;

    if (enabled(p, OPS))
        op = start(p, context,
                   &(ncclProfilerEventDescr_v7_t){.type = ncclProfileProxyOp,
                                                  .parentObj = parent,
                                                  .rank = 1,
                                                  .proxyOp = {.pid = pid, .nSteps = 2}});
    state(p, op, 3);
    if (enabled(p, STEPS))
        step = start(p, context,
                     &(ncclProfilerEventDescr_v7_t){
                         .type = ncclProfileProxyStep, .parentObj = op, .rank = 1, .proxyStep.step = 1});
    if (enabled(p, ncclProfileNetPlugin))
        net =
            start(p, context,
                  &(ncclProfilerEventDescr_v7_t){.type = ncclProfileNetPlugin, .parentObj = step, .rank = 1});
    stop(p, net);
    state(p, step, 9);
    stop(p, step);
    stop(p, op);
}

/* Launch the operation that `call` called in `group`. */
static void launch(struct player *p, void *context, void *group, void *call, size_t count)
{
    void *kernel = NULL, *set = NULL, *coll = NULL, *channel = NULL;

    if (p->version > 4 && enabled(p, ncclProfileKernelLaunch))
        kernel =
            start(p, context,
                  &(ncclProfilerEventDescr_v7_t){
                      .type = ncclProfileKernelLaunch, .parentObj = group, .kernelLaunch.stream = &text});
    if (enabled(p, ncclProfileGroup | ncclProfileColl | ncclProfileP2p | WORK))
        set = start(p, context, &(ncclProfilerEventDescr_v7_t){.type = ncclProfileGroup});
    if (enabled(p, ncclProfileColl | WORK))
        coll = start(p, context,
                     &(ncclProfilerEventDescr_v7_t){.type = ncclProfileColl,
                                                    .parentObj = call,
                                                    .rank = 1,
                                                    .coll = {.func = "AllReduce",
                                                             .count = count,
                                                             .datatype = "ncclFloat32",
                                                             .nChannels = 3,
                                                             .algo = "RING",
                                                             .proto = "SIMPLE",
                                                             .recvBuff = &next,
                                                             .parentGroup = set,
                                                             .kernelVariant = "Symk",
                                                             .isSymColl = true,
                                                             .userTag = 40}});
    stop(p, kernel);
    stop(p, coll);
    stop(p, set);
    proxy(p, context, coll, getpid());
    if (enabled(p, ncclProfileKernelCh))
        channel =
            start(p, context,
                  &(ncclProfilerEventDescr_v7_t){
                      .type = ncclProfileKernelCh, .parentObj = coll, .rank = 1, .kernelCh.channelId = 2});
    state(p, channel, 21);
    stop(p, channel);
    if (p->version > 6 && enabled(p, ncclProfileKernelPhase)) {
        channel = start(p, context,
                        &(ncclProfilerEventDescr_v7_t){.type = ncclProfileKernelPhase,
                                                       .parentObj = coll,
                                                       .rank = 1,
                                                       .kernelPhase = {.channelId = 2, .phaseId = 3}});
        state(p, channel, 31);
        stop(p, channel);
    }
}

static void *call_of(struct player *p, void *context, void *group, size_t count, bool captured)
{
    void *call = NULL;

    if (p->version > 4 && enabled(p, ncclProfileCollApi | ncclProfileColl | WORK | ENGINE))
        call = start(p, context,
                     &(ncclProfilerEventDescr_v7_t){.type = ncclProfileCollApi,
                                                    .parentObj = group,
                                                    .collApi = {.func = "AllReduce",
                                                                .count = count,
                                                                .datatype = "ncclFloat32",
                                                                .stream = &text,
                                                                .graphCaptured = captured,
                                                                .userTag = 41}});
    stop(p, call);
    return call;
}

/* Play an operation: call, launch, replay if captured, and the proxy's part, also for another process. */
static void operation(struct player *p, void *context, size_t count, bool captured)
{
    void *group = NULL, *call, *engine = NULL;

    if (p->version > 4)
        group = enabled(p, (1 << 15) - 1 - ncclProfileProxyCtrl)
                    ? start(p, context, &(ncclProfilerEventDescr_v7_t){.type = ncclProfileGroupApi})
                    : NULL;
    state(p, group, 24);
    call = call_of(p, context, group, count, captured);
    stop(p, group);
    for (int replay = 0; replay < 1 + 2 * captured; replay++)
        launch(p, context, group, call, count);
    if (p->version > 5 && enabled(p, ENGINE))
        engine =
            start(p, context, &(ncclProfilerEventDescr_v7_t){.type = ncclProfileCeColl, .parentObj = call});
    stop(p, engine);
    proxy(p, (void *)(uintptr_t)0xdead0000, (void *)(uintptr_t)0xbeef0000, -1);
}

static void control(struct player *p, void *context)
{
    void *handle = NULL;

    if (enabled(p, ncclProfileProxyCtrl))
        handle = start(p, context, &(ncclProfilerEventDescr_v7_t){.type = ncclProfileProxyCtrl});
    state(p, handle, 14);
    stop(p, handle);
}

static void profile(struct player *p)
{
    for (int c = 0; c < 2; c++) {
        const char *name = c ? "data" : NULL;
        if (p->version == 4)
            ok(V4(p)->init(&p->context[c], &p->mask, name, 0x10u + (unsigned)c, 2, 4, 1, capture_log));
        else
            ok(V7(p)->init(&p->context[c], 0x10u + (unsigned)c, &p->mask, name, 2, 4, 1, capture_log));
        ck_assert_ptr_nonnull(p->context[c]);
    }
    if (p->version < 7) /* older versions of NCCL end here */
        p->mask &= p->version == 4 ? 255 : p->version == 5 ? 4095 : 0x7fff;
    for (int i = 0; i < 3; i++) {
        operation(p, p->context[i % 2], 1000u + (unsigned)i, i == 1);
        control(p, p->context[0]);
    }
    for (int c = 0; c < 2; c++)
        ok(p->version == 4 ? V4(p)->finalize(p->context[c]) : V7(p)->finalize(p->context[c]));
}

static const int masks[] = {0xffff,
                            ncclProfileColl,
                            ncclProfileProxyStep | ncclProfileProxyCtrl,
                            ncclProfileKernelCh | ncclProfileP2p,
                            ncclProfileNetPlugin,
                            ncclProfileProxyCtrl,
                            ncclProfileGroup,
                            ncclProfileKernelLaunch,
                            ncclProfileCeSync,
                            ncclProfileKernelPhase,
                            0};
#define MASKS ((int)(sizeof(masks) / sizeof(masks[0])))
static const int versions[][2] = {{4, 4},
                                  {5, 5},
                                  {6, 6},
                                  {7, 7},
                                  /* version of NCCL's table, version of the next profiler */
                                  {7, 6},
                                  {7, 5},
                                  {7, 4},
                                  {6, 5},
                                  {6, 4},
                                  {5, 4}};
#define VERSIONS ((int)(sizeof(versions) / sizeof(versions[0])))

/* Before NCCL calls a profiler of an older version it drops the mask's bits that the version does not
 * know. */
static int known(int version, int mask)
{
    return mask & (version == 4 ? 255 : version == 5 ? 4095 : version == 6 ? 32767 : 65535);
}

/* Compare the logs. On a difference print the lines from there. */
static void same(void)
{
    size_t at = 0;

    for (size_t i = 0; text[0][i] && text[0][i] == text[1][i]; i++)
        if (text[0][i] == '\n')
            at = i + 1;
    ck_assert_msg(strcmp(text[0], text[1]) == 0, "without nibble: %.100s\nthrough nibble: %.100s",
                  text[0] + at, text[1] + at);
}

START_TEST(the_next_profiler_is_told_what_it_would_be)
{
    const int ours = versions[_i / MASKS][0], theirs = versions[_i / MASKS][1], mask = masks[_i % MASKS];
    struct player alone = {.version = theirs}, behind = {.version = ours};
    char name[32];

    snprintf(name, sizeof(name), "ncclProfiler_v%d", theirs);
    alone.table = dlsym(open_next(theirs, 0), name);
    next->mask = known(theirs, mask);
    profile(&alone);
    open_next(theirs, 1);
    next->mask = mask;
    behind.table = table("ncclProfiler", ours);
    profile(&behind);
    same();
    ck_assert(strstr(text[0], "finalize 2"));
    ck_assert(capture_has("next"));
}
END_TEST

START_TEST(its_mask_may_change_while_the_job_runs)
{
    struct player p = {.version = 7};

    open_next(7, 0);
    p.table = table("ncclProfiler", 7);
    ok(V7(&p)->init(&p.context[0], 1, &p.mask, NULL, 2, 2, 0, capture_log));
    ck_assert_int_eq(p.mask,
                     ncclProfileColl | ncclProfileCollApi | ncclProfileKernelLaunch | ncclProfileCeColl);
    operation(&p, p.context[0], 5, false);
    ck_assert(!strstr(text[0], "start"));
    __atomic_store_n(next->mask_of_nccl, ncclProfileProxyOp, __ATOMIC_RELAXED);
    operation(&p, p.context[0], 6, false);
    ck_assert_int_eq(p.mask, ncclProfileColl | ncclProfileCollApi | ncclProfileKernelLaunch |
                                 ncclProfileCeColl | ncclProfileProxyOp);
    operation(&p, p.context[0], 7, false);
    ck_assert(strstr(text[0], "ncclFloat32 7"));
    ok(V7(&p)->finalize(p.context[0]));
}
END_TEST

/* NCCL goes on without a profiler whose init fails. nibble does so too, and still gets its own events. */
START_TEST(its_failure_is_its_own)
{
    struct player p = {.version = 6};

    open_next(6, 0);
    next->refuses = ncclInvalidUsage;
    p.table = table("ncclProfiler", 6);
    profile(&p);
    ck_assert_str_eq(text[0], "");
    ck_assert(capture_has("init of next"));
}
END_TEST

static void says(const char *name, const char *what)
{
    struct player p = {.version = 4};

    setenv("NIBBLE_PROFILER_NEXT", name, 1);
    p.table = table("ncclProfiler", 4);
    profile(&p);
    ck_assert_msg(capture_has(what), "not said: %s; but: %s", what, capture_text);
}

START_TEST(names_that_lead_nowhere_are_told)
{
    switch (_i) {
    case 0: says("nobody", "NIBBLE_PROFILER_NEXT=nobody: cannot open it"); break;
    case 1: says(NEXT_PLUGINS "/next_v6.so", "has no table ncclProfiler_v4 to _v4"); break;
    default: says(environment_plugin(), "is nibble itself"); break;
    }
}
END_TEST

/* ---- The tuner ----------------------------------------------------------------------------------------- */

static float costs[NCCL_NUM_ALGORITHMS_V5][NCCL_NUM_PROTOCOLS_V5];

/* Play NCCL's question about an all-gather of `bytes`. Return the cheapest algorithm, and the channels. */
static int ask(const ncclTuner_v6_t *t, void *context, size_t bytes, int *channels, ncclResult_t expected)
{
    float *flat = &costs[0][0];
    int best = 0;

    for (int a = 0; a < NCCL_NUM_ALGORITHMS_V5; a++)
        for (int q = 0; q < NCCL_NUM_PROTOCOLS_V5; q++)
            costs[a][q] = a == NCCL_ALGO_RING                                       ? 10
                          : a == NCCL_ALGO_COLLNET_DIRECT && q == NCCL_PROTO_SIMPLE ? 20
                                                                                    : -1;
    *channels = 2;
    ck_assert_int_eq(t->getCollInfo(context, ncclFuncAllGather, bytes, 1, (float **)flat,
                                    NCCL_NUM_ALGORITHMS_V5, NCCL_NUM_PROTOCOLS_V5, 0, channels),
                     expected);
    for (int a = 0; a < NCCL_NUM_ALGORITHMS_V5; a++)
        for (int q = 0; q < NCCL_NUM_PROTOCOLS_V5; q++)
            if (costs[a][q] >= 0 &&
                (costs[best / 3][best % 3] < 0 || costs[a][q] < costs[best / 3][best % 3]))
                best = a * 3 + q;
    return best / 3;
}

static void *begin_tuner(int version)
{
    const ncclTuner_v6_t *t = table("ncclTunerPlugin", version);
    void *context = NULL;

    if (version == 4)
        ok(((const ncclTuner_v4_t *)(const void *)t)->init(8, 4, capture_log, &context));
    else
        ok(t->init(&context, 0x99, 8, 4, capture_log, NULL, NULL));
    ck_assert_ptr_nonnull(context);
    return context;
}

/* The same pairs for tuners. */
static const int tuners[][2] = {{4, 4}, {5, 5}, {6, 6}, {6, 5}, {6, 4}, {5, 4}};
#define TUNERS ((int)(sizeof(tuners) / sizeof(tuners[0])))

START_TEST(the_next_tuner_is_asked_first)
{
    const int ours = tuners[_i][0], theirs = tuners[_i][1];
    const ncclTuner_v6_t *t;
    size_t chunk = 1 << 17;
    void *context;
    int channels;

    open_next(theirs, 0);
    init_v12();
    t = table("ncclTunerPlugin", ours);
    context = begin_tuner(ours);
    ck_assert(strstr(text[0], theirs == 4 ? "init 1: 0x0 8 4" : "init 1: 0x99 8 4"));
    /* The next tuner has no wish: nibble's choice. */
    ck_assert_int_eq(ask(t, context, 1 << 26, &channels, ncclSuccess), NCCL_ALGO_COLLNET_DIRECT);
    ck_assert_int_eq(channels, 2);
    ck_assert(strstr(text[0], "67108864 1 7 3 0 2 10\n"));
    /* Its wish stands only where nibble has none. */
    next->prefers = NCCL_ALGO_RING;
    ck_assert_int_eq(ask(t, context, 1000, &channels, ncclSuccess), NCCL_ALGO_RING);
    ck_assert_int_eq(channels, 7);
    ck_assert_int_eq(ask(t, context, 1 << 26, &channels, ncclSuccess), NCCL_ALGO_COLLNET_DIRECT);
    ck_assert_int_eq(channels, 2);
    /* NCCL must see its error: hidden on one rank, the error would make this rank select another
     * algorithm. */
    next->refuses = ncclSystemError;
    ask(t, context, 1 << 26, &channels, ncclSystemError);
    next->refuses = ncclSuccess;
    if (ours == 6) {
        ok(t->getChunkSize(context, ncclFuncAllGather, 1 << 26, NCCL_ALGO_RING, NCCL_PROTO_SIMPLE, 2,
                           &chunk));
        ck_assert_uint_eq(chunk, theirs == 6 ? 4096 : 1 << 17);
    }
    ok(ours == 4 ? ((const ncclTuner_v4_t *)(const void *)t)->destroy(context) : t->finalize(context));
    ck_assert(strstr(text[0], "finalize 1"));
}
END_TEST

/* From 2.31 on NCCL takes the least entry of those that it can run, so that a tuner's -1 would be chosen. A
 * tuner that rules an entry out gets a cost in its place that is never the least. Entries that NCCL rules out
 * stay -1. */
START_TEST(a_ruled_out_entry_is_never_the_least)
{
    const ncclTuner_v6_t *t;
    void *context;
    int channels;

    open_next(6, 0);
    if (_i)
        init_v12();
    t = table("ncclTunerPlugin", 6);
    context = begin_tuner(6);
    next->prefers = NCCL_ALGO_RING;
    next->writes = -1;
    ask(t, context, 1000, &channels, ncclSuccess);
    ck_assert(costs[NCCL_ALGO_RING][0] > 1e9f && isfinite(costs[NCCL_ALGO_RING][0]));
    ck_assert(costs[NCCL_ALGO_RING][1] == 10);
    ck_assert(costs[NCCL_ALGO_TREE][0] == -1);
    ok(t->finalize(context));
}
END_TEST

/* NCCL may load nibble's tuner beside another network plugin. Then the tuner only passes calls on. */
START_TEST(a_tuner_is_passed_on_without_a_network_half)
{
    const ncclTuner_v6_t *t;
    void *context;
    int channels;

    open_next(6, 0);
    t = table("ncclTunerPlugin", 6);
    context = begin_tuner(6);
    next->prefers = NCCL_ALGO_RING;
    ck_assert_int_eq(ask(t, context, 1 << 26, &channels, ncclSuccess), NCCL_ALGO_RING);
    ck_assert_int_eq(channels, 7);
    ok(t->finalize(context));
}
END_TEST

SUITE_MAIN("next", FIXTURE(setup, NULL), LOOP(the_next_profiler_is_told_what_it_would_be, 0, MASKS *VERSIONS),
           TEST(its_mask_may_change_while_the_job_runs), TEST(its_failure_is_its_own),
           LOOP(names_that_lead_nowhere_are_told, 0, 3), FIXTURE(setup, NULL),
           LOOP(the_next_tuner_is_asked_first, 0, TUNERS), LOOP(a_ruled_out_entry_is_never_the_least, 0, 2),
           TEST(a_tuner_is_passed_on_without_a_network_half))
