/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Profiler, tuner and CollNet together, in NCCL's order: the user's calls, the tuner's answer, the launches,
 * then the proxy's windows, padded with NaN patterns and huge values. All-reduces with their event are
 * quantized, within the quantizer's error and with the same bits on all nodes. All-reduces whose event is
 * lost or wrong, on one node or on all, are right to the bit. No operation fails.
 *
 * Error bounds as in tests/harness/records.c.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi/tables.h"
#include "coll/comm/stats.h"
#include "coll/report/report.h"
#include "nibble/nccl_tuner.h"
#include "rank.h"
#include "tests/abi/next_plugin.h"
#include "tests/harness/lib/suite.h"

static const ncclProfiler_v7_t *const prof = &NB_NEWEST_PROFILER;
static const char *const env[] = {"NIBBLE_MIN_BYTES=0", "NIBBLE_EF=off", NULL};

/* ---- all sizes, channels, types ---- */

static int padded_node(struct hx_node *node, void *arg)
{
    static const ncclDataType_t types[] = {ncclFloat32, ncclBfloat16, ncclFloat16};
    static const size_t counts[] = {1, 31, 1000, 4095, 40001, 65536, 150001, 500000};
    static const size_t chunks[] = {0, 4096, 1536, HX_CHUNK_NCCL};
    int channels = *(int *)arg, n = 0;
    struct hx_comm_cfg cfg = {.channels = channels, .buff_size = 256 << 10, .poison = true};
    struct rank r;

    if (rank_open(node, &cfg, 1, &r))
        return 1;
    for (int t = 0; t < 3; t++) {
        for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++, n++) {
            struct sx_spec spec = {.func = HX_ALL_REDUCE,
                                   .type = types[t],
                                   .count = counts[k],
                                   .fill = HX_FILL_NORMAL,
                                   .seed = (uint64_t)n + 1,
                                   .in_place = n & 1,
                                   .chunk = chunks[n % 4],
                                   .channels = n % 5 == 3 ? 1 + n % channels : 0};
            double nmse;
            spec.max_nmse = bound_of(node->nnodes, &spec);
            if (one(&r, spec, TOLD, &nmse))
                return 1;
            if (counts[k] >= 30000)
                HX_CHECK(nmse > spec.max_nmse / 4, "%s: error %.3g: this was not coded in 4 bits",
                         sx_describe(&spec), nmse);
        }
    }
    HX_CHECK(!hx_log_count("not compressed", NULL) && !hx_log_count("does not ask", NULL), "a false alarm");
    return rank_close(&r);
}

static int padded(int nnodes, int channels)
{
    return sx_job("recorded", nnodes, padded_node, &channels, env);
}

HX_CASE(padded_8, padded(2, 8))
HX_CASE(padded_12, padded(3, 12))
HX_CASE(padded_16, padded(2, 16))
HX_CASE(padded_1, padded(4, 1))

/* ---- groups ---- */

static int groups_node(struct hx_node *node, void *arg)
{
    static const int order[] = {2, 4, 0, 3, 1};
    struct hx_comm_cfg cfg = {.channels = 9, .buff_size = 256 << 10, .poison = true};
    struct rank r;

    (void)arg;
    if (rank_open(node, &cfg, 1, &r))
        return 1;
    for (int round = 0; round < (hx_quick() ? 5 : 10); round++) {
        struct sx_spec spec[5] = {
            {.func = HX_ALL_REDUCE, .type = ncclFloat32, .count = 100},
            {.func = HX_ALL_REDUCE, .type = ncclBfloat16, .count = 200003},
            {.func = HX_ALL_GATHER, .type = ncclBfloat16, .count = 30003},
            {.func = HX_REDUCE_SCATTER, .type = ncclFloat32, .count = 60000},
            {.func = HX_ALL_REDUCE, .type = ncclBfloat16, .count = 300001},
        };
        const enum fate fate[5] = {TOLD, TOLD, TOLD, TOLD, TOLD};
        struct sx_run run[5];
        for (int i = 0; i < 5; i++) {
            spec[i].fill = HX_FILL_NORMAL;
            spec[i].seed = (uint64_t)(round * 5 + i + 1);
            spec[i].max_nmse = spec[i].func == HX_ALL_GATHER ? 0 : bound_of(node->nnodes, &spec[i]);
            sx_prepare(node, &spec[i], &run[i]);
        }
        hx_where("group %d", round);
        if (group(&r, run, fate, 5, order))
            return 1;
        for (int i = 0; i < 5; i++) {
            if (sx_check(node, &run[i]))
                return 1;
            if (spec[i].func == HX_ALL_REDUCE && spec[i].count > 100)
                HX_CHECK(run[i].nmse > spec[i].max_nmse / 4, "group %d: operation %d was not coded", round,
                         i);
            sx_free(&run[i]);
        }
    }
    return rank_close(&r);
}

HX_CASE(groups, sx_job("groups", 3, groups_node, NULL, env))

/* ---- lost and wrong events ---- */

static int doomed_node(struct hx_node *node, void *arg)
{
    const struct {
        int everywhere;
        enum fate fate;
    } *how = arg;
    struct hx_comm_cfg cfg = {.channels = 12, .buff_size = 256 << 10, .poison = true};
    struct nb_coll_stats stats;
    struct rank r;
    double nmse;

    if (rank_open(node, &cfg, 1, &r))
        return 1;
    for (int round = 0; round < 12; round++) {
        static const size_t counts[] = {70001, 400003, 5000, 120000};
        struct sx_spec spec = {.func = HX_ALL_REDUCE,
                               .type = ncclFloat32,
                               .count = counts[round % 4],
                               .seed = (uint64_t)round + 1};
        int hit = round % 3 == 1, mine = hit && (how->everywhere || node->rank == 1);
        /* An event lost on all nodes makes the operation raw on all, so it is right to the bit. An event lost
         * on one node makes that node's part raw, and all values are right. */
        spec.fill = hit && how->everywhere ? HX_FILL_EXACT : HX_FILL_NORMAL;
        spec.max_nmse = hit && how->everywhere ? 0 : bound_of(node->nnodes, &spec);
        if (one(&r, spec, mine ? how->fate : TOLD, &nmse))
            return 1;
        /* Operations before the first fault are coded. */
        if (round == 0)
            HX_CHECK(nmse > spec.max_nmse / 4, "round %d: error %.3g: not coded", round, nmse);
    }
    nb_coll_get_stats(hx_comm_plugin(r.comm), &stats);
    if (how->everywhere || node->rank == 1)
        HX_CHECK(stats.func[NB_FUNC_ALL_REDUCE].coded_ops >= 7 &&
                     stats.func[NB_FUNC_ALL_REDUCE].coded_ops <= 8,
                 "%lu of 12 operations were coded", (unsigned long)stats.func[NB_FUNC_ALL_REDUCE].coded_ops);
    else
        HX_CHECK(stats.func[NB_FUNC_ALL_REDUCE].coded_ops == 12, "a node with all events coded %lu of 12",
                 (unsigned long)stats.func[NB_FUNC_ALL_REDUCE].coded_ops);
    return rank_close(&r);
}

static int doomed(void)
{
    for (int everywhere = 0; everywhere < 2; everywhere++) {
        for (int fate = LOST; fate <= NO_CALL; fate++) {
            if (hx_quick() && everywhere != fate % 2)
                continue;
            struct {
                int everywhere;
                enum fate fate;
            } how = {everywhere, (enum fate)fate};
            int rc = sx_job("lost or wrong event", 3, doomed_node, &how, env);
            if (rc)
                return rc;
        }
    }
    return 0;
}

/* Random operations, random faults on random nodes, many in flight. */
static int storm_node(struct hx_node *node, void *arg)
{
    enum { ROUNDS = 16, GROUP = 4 };
    struct hx_comm_cfg cfg = {.channels = 12, .buff_size = 128 << 10, .poison = true, .gpu_delay_us = 20};
    uint64_t shared = hx_seed(node->seed, 77, *(uint64_t *)arg),
             own = hx_seed(shared, (uint64_t)node->rank + 1, 3);
    struct rank r;

    if (rank_open(node, &cfg, 1, &r))
        return 1;
    for (int round = 0; round < (hx_quick() ? ROUNDS / 2 : ROUNDS); round++) {
        struct sx_run run[GROUP];
        enum fate fate[GROUP];
        hx_where("storm, group %d", round);
        for (int i = 0; i < GROUP; i++) {
            struct sx_spec spec = {.func = (enum hx_func)hx_rand_below(&shared, 3),
                                   .fill = HX_FILL_NORMAL,
                                   .type = hx_rand_below(&shared, 2) ? ncclFloat32 : ncclBfloat16,
                                   .channels = (int)hx_rand_below(&shared, 13)};
            spec.count = 1 + (size_t)hx_rand_below(&shared, spec.func == HX_ALL_REDUCE ? 200000 : 40000);
            if (hx_rand_below(&shared, 3) ==
                0) /* whole numbers of eight steps, so that the slot gives no hint */
                spec.count = 8 * 12 * (16384 / hx_type_size(spec.type));
            if (spec.func != HX_ALL_REDUCE)
                spec.count = spec.count % 40000 + 1;
            spec.seed = hx_rand(&shared);
            spec.max_nmse = spec.func == HX_ALL_GATHER ? 0 : bound_of(node->nnodes, &spec);
            fate[i] = hx_rand_below(&own, 8) ? TOLD : (enum fate)(LOST + hx_rand_below(&own, 4));
            sx_prepare(node, &spec, &run[i]);
        }
        if (group(&r, run, fate, GROUP, NULL))
            return 1;
        for (int i = 0; i < GROUP; i++) {
            if (sx_check(node, &run[i]))
                return 1;
            sx_free(&run[i]);
        }
    }
    return rank_close(&r);
}

static int storm(void)
{
    for (uint64_t seed = 1; seed <= (hx_quick() ? 1 : 4); seed++) {
        int rc = sx_job("storm", 3, storm_node, &seed, env);
        if (rc)
            return rc;
    }
    return 0;
}

/* ---- one node's call and launch have another length: an error, never wrong values ---- */

static int contradicting_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 4, .buff_size = 128 << 10, .poison = true};
    struct sx_spec spec = {
        .func = HX_ALL_REDUCE, .type = ncclFloat32, .count = 300000, .fill = HX_FILL_NORMAL, .seed = 9};
    struct sx_run run;
    struct rank r;
    struct ev_op e;
    ncclResult_t ret;

    (void)arg;
    if (rank_open(node, &cfg, 1, &r))
        return 1;
    sx_prepare(node, &spec, &run);
    e = event_of(&run);
    if (node->rank == 1)
        e.count /= 2;
    ev_call(prof, &r.events, &e);
    ev_launch(prof, &r.events, &e, 1);
    HX_CHECK(hx_post(r.comm, &run.op) == ncclSuccess, "post");
    ret = hx_wait(r.comm, &run.op, HX_SOON_S);
    HX_CHECK(ret != ncclSuccess && ret != HX_TIMEOUT, "result %d", (int)ret);
    HX_CHECK(hx_log_count("an operation record is wrong", NULL) > 0, "the reason is not told");
    hx_barrier(node);
    hx_comm_close(r.comm);
    NB_NEWEST_TUNER.finalize(r.tuner);
    ev_close(prof, &r.events);
    hx_lib_close(r.lib);
    sx_free(&run);
    return 0;
}

HX_CASE(contradicting, sx_job("contradicting", 3, contradicting_node, NULL, env))

/* ---- a split child shares its parent's group: right in the same order of nodes, an error in another order
 * ---- */

static int split_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 4, .buff_size = 128 << 10};
    struct sx_spec spec = {
        .func = *(enum hx_func *)arg, .type = ncclFloat32, .count = 30000, .fill = HX_FILL_NORMAL, .seed = 5};
    struct ev_comm same, reversed;
    struct sx_run run;
    struct rank r;
    struct ev_op e;
    ncclResult_t ret;

    if (rank_open(node, &cfg, 1, &r))
        return 1;
    spec.max_nmse = spec.func == HX_ALL_GATHER ? 0 : bound_of(node->nnodes, &spec);
    ev_open(prof, &same, COMM_ID + 1, node->nnodes, node->nnodes, node->rank);
    ev_open(prof, &reversed, COMM_ID + 2, node->nnodes, node->nnodes, node->nnodes - 1 - node->rank);
    sx_prepare(node, &spec, &run);
    e = event_of(&run);
    ev_call(prof, &same, &e);
    ev_launch(prof, &same, &e, 1);
    ret = hx_run(r.comm, &run.op);
    HX_CHECK(ret == ncclSuccess, "in the same order: result %d", (int)ret);
    if (sx_check(node, &run))
        return 1;
    hx_barrier(node); /* the error of the next operation may overtake this one on a slower node */
    e = event_of(&run);
    ev_call(prof, &reversed, &e);
    ev_launch(prof, &reversed, &e, 1);
    /* The node in the middle has its own number in both: the other nodes tell it of the error. */
    ret = hx_post(r.comm, &run.op);
    if (ret == ncclSuccess)
        ret = hx_wait(r.comm, &run.op, HX_SOON_S);
    HX_CHECK(ret != ncclSuccess && ret != HX_TIMEOUT, "in another order: result %d", (int)ret);
    HX_CHECK(hx_log_count("nodes in another order", NULL) > 0, "the reason is not told");
    hx_barrier(node);
    hx_comm_close(r.comm);
    NB_NEWEST_TUNER.finalize(r.tuner);
    ev_close(prof, &reversed);
    ev_close(prof, &same);
    ev_close(prof, &r.events);
    hx_lib_close(r.lib);
    sx_free(&run);
    return 0;
}

static int split_gather(void)
{
    enum hx_func func = HX_ALL_GATHER;

    return sx_job("split, all-gather", 3, split_node, &func, env);
}

static int split_scatter(void)
{
    enum hx_func func = HX_REDUCE_SCATTER;

    return sx_job("split, reduce-scatter", 3, split_node, &func, env);
}

/* ---- the lengths of operations show how many heads a node has ---- */

static int heads_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 128 << 10, .poison = true};
    struct sx_spec spec = {
        .func = HX_ALL_REDUCE, .type = ncclFloat32, .count = 400001, .fill = HX_FILL_NORMAL, .seed = 1};
    double first = 0, last = 0;
    struct rank r;

    (void)arg;
    /* Four ranks a node, with one head: the engine learns that there are one to four heads. */
    if (rank_open(node, &cfg, 4, &r))
        return 1;
    spec.max_nmse = bound_of(node->nnodes, &spec);
    for (int i = 0; i < 4; i++) {
        spec.seed++;
        if (one(&r, spec, TOLD, i == 0 ? &first : &last))
            return 1;
    }
    /* At first only a quarter is certain, whose values are small. */
    HX_CHECK(first > 0 && first < last / 4, "errors %.3g and %.3g", first, last);
    HX_CHECK(last > spec.max_nmse / 4, "error %.3g: not coded in the end", last);
    return rank_close(&r);
}

HX_CASE(heads, sx_job("heads", 2, heads_node, NULL, env))

/* ---- graphs ---- */

static int replay_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 8, .buff_size = 128 << 10, .poison = true};
    struct sx_spec spec = {
        .func = HX_ALL_REDUCE, .type = ncclBfloat16, .count = 100001, .fill = HX_FILL_NORMAL, .seed = 4};
    struct sx_run run;
    struct ev_op e;
    struct rank r;

    (void)arg;
    if (rank_open(node, &cfg, 1, &r))
        return 1;
    spec.max_nmse = bound_of(node->nnodes, &spec);
    sx_prepare(node, &spec, &run);
    e = event_of(&run);
    e.captured = true;
    ev_call(prof, &r.events, &e);
    for (int i = 0; i < 30; i++) {
        struct sx_spec eager = spec;
        hx_where("replay %d", i);
        ev_launch(prof, &r.events, &e, 1);
        HX_CHECK(hx_run(r.comm, &run.op) == ncclSuccess, "replay %d", i);
        if (sx_check(node, &run))
            return 1;
        HX_CHECK(run.nmse > spec.max_nmse / 4, "replay %d was not coded", i);
        eager.count = 30000 + (size_t)i;
        eager.max_nmse = bound_of(node->nnodes, &eager);
        if (one(&r, eager, TOLD, NULL))
            return 1;
    }
    sx_free(&run);
    return rank_close(&r);
}

HX_CASE(replay, sx_job("replay", 2, replay_node, NULL, env))

/* ---- with another profiler behind this one: it gets the events, and all operations stay coded ---- */

static int passed_on_node(struct hx_node *node, void *arg)
{
    void *module = dlopen(NEXT_PLUGIN, RTLD_NOW);
    struct next_plugin *next = module ? dlsym(module, "nb_next_plugin") : NULL;

    HX_CHECK(next, "%s", dlerror());
    next->mask = ncclProfileCollApi | ncclProfileColl;
    if (replay_node(node, arg))
        return 1;
    HX_CHECK(next->contexts == 1 && next->handles >= 91, "it has seen %d communicators, %d events",
             next->contexts, next->handles);
    return 0;
}

static int passed_on(void)
{
    int rc;

    setenv("NIBBLE_PROFILER_NEXT", NEXT_PLUGIN, 1);
    rc = sx_job("passed-on", 2, passed_on_node, NULL, env);
    unsetenv("NIBBLE_PROFILER_NEXT");
    return rc;
}

/* ---- two communicators, a child without a group of its own ---- */

static int child_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 4, .buff_size = 128 << 10, .poison = true};
    struct sx_spec spec = {.func = HX_ALL_REDUCE, .type = ncclFloat32, .fill = HX_FILL_NORMAL};
    struct ev_comm parent, child;
    struct rank r;
    double nmse;

    (void)arg;
    if (rank_open(node, &cfg, 1, &r))
        return 1;
    parent = r.events;
    ev_open(prof, &child, COMM_ID + 1, node->nnodes, node->nnodes, node->rank);
    for (int i = 0; i < 12; i++) {
        /* The child has its own events, and its windows come over the parent's group. */
        r.events = i % 2 ? child : parent;
        spec.count = 40000 + (size_t)i * 5000;
        spec.seed = (uint64_t)i + 1;
        spec.max_nmse = bound_of(node->nnodes, &spec);
        if (one(&r, spec, TOLD, &nmse))
            return 1;
        HX_CHECK(nmse > spec.max_nmse / 4, "operation %d was not coded", i);
        *(i % 2 ? &child : &parent) = r.events;
    }
    r.events = parent;
    ev_close(prof, &child);
    return rank_close(&r);
}

HX_CASE(child, sx_job("child", 2, child_node, NULL, env))

/* ---- another vendor's profiler and tuner ---- */

static int unprofiled_node(struct hx_node *node, void *arg)
{
    int version = *(int *)arg;
    struct hx_comm_cfg cfg = {.channels = 2, .poison = true};
    struct sx_spec spec = {
        .func = HX_ALL_REDUCE, .type = ncclFloat32, .count = 50001, .fill = HX_FILL_EXACT, .seed = 1};
    struct hx_lib *lib;
    struct hx_comm *comm[2];

    lib = hx_lib_open(NULL, version);
    HX_CHECK(lib, "no plugin");
    for (int i = 0; i < 2; i++)
        HX_CHECK(hx_comm_open(node, lib, &cfg, &comm[i], NULL) == ncclSuccess, "bring-up");
    for (int k = 0; k < 4; k++)
        if (sx_do(node, comm[k % 2], &spec, NULL))
            return 1;
    /* One warning a process, with the remedy. Silence where NCCL could not know better. */
    HX_CHECK(hx_log_count("profiler", "NCCL_PROFILER_PLUGIN=libnccl-net-nibble.so") == (version >= 11),
             "%d notices of the profiler",
             hx_log_count("profiler", "NCCL_PROFILER_PLUGIN=libnccl-net-nibble.so"));
    HX_CHECK(hx_log_count("tuner", "NCCL_TUNER_PLUGIN=libnccl-net-nibble.so") == (version >= 11),
             "notices of the tuner");
    if (hx_comm_close(comm[0]) != ncclSuccess)
        return hx_fail("close");
    return sx_close(lib, comm[1], false);
}

static int unprofiled(void)
{
    for (int version = 10; version <= 12; version++) {
        int rc = sx_job("unprofiled", 2, unprofiled_node, &version, env);
        if (rc)
            return rc;
    }
    return 0;
}

/* ---- names of communicators ---- */

#define NAME "TENSOR_MODEL_PARALLEL_GROUP"

/* Connect a communicator whose name NCCL's profiler gave. `arg` is the reason for declining it, or NULL. */
static int named_node(struct hx_node *node, void *arg)
{
    const struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 128 << 10, .comm_id = COMM_ID};
    struct hx_lib *lib = hx_lib_static(&NB_NEWEST_NET, &NB_NEWEST_COLL, NB_NET_NEWEST);
    struct ev_comm events = {0};
    struct hx_comm *comm;
    const char *stage = "?";
    ncclResult_t ret;

    prof->init(&events.ctx, COMM_ID, &events.mask, NAME, node->nnodes, node->nnodes, node->rank, NULL);
    ret = hx_comm_open(node, lib, &cfg, &comm, &stage);
    HX_CHECK((ret == ncclSuccess) == !arg, "connect: %s, %d", stage, (int)ret);
    HX_CHECK(!arg || hx_log_count(arg, NULL) == 1, "no line of the log says \"%s\"", (const char *)arg);
    HX_CHECK(hx_log_warns() == 0, "what nibble intends is logged as a warning");
    ev_close(prof, &events);
    if (ret == ncclSuccess)
        return sx_close(lib, comm, false);
    hx_lib_close(lib);
    return 0;
}

static int named(void)
{
    static const char *const none[] = {"NIBBLE_REQUIRE=collnet", NULL};
    static const char *const rule[] = {"NIBBLE_COMMS=name=TENSOR*", NULL};
    static const char *const all[] = {"NIBBLE_COMMS=nnodes=2-64", NULL};
    static const char *const shadow[] = {"NIBBLE_SHADOW=1", NULL};

    return sx_job("named", 3, named_node,
                  (void *)"no gain: its name says tensor "
                          "parallel, and no rule of NIBBLE_COMMS includes it",
                  none) ||
           sx_job("named by a rule", 3, named_node, NULL, rule) ||
           sx_job("met by a rule", 3, named_node, NULL, all) ||
           sx_job("shadow mode", 3, named_node, NULL, shadow);
}

HX_MAIN({"padded-8-channels", padded_8, HX_CASE_SLOW}, {"padded-12-channels", padded_12, HX_CASE_FULL},
        {"padded-16-channels", padded_16, HX_CASE_FULL}, {"padded-1-channel", padded_1, HX_CASE_FULL},
        {"groups", groups, 0}, {"lost-and-wrong-events", doomed, HX_CASE_SLOW}, {"storm", storm, 0},
        {"contradicting-nodes", contradicting, 0}, {"heads", heads, 0}, {"replay", replay, 0},
        {"passed-on", passed_on, 0}, {"child", child, 0}, {"split-gather", split_gather, 0},
        {"split-scatter", split_scatter, 0}, {"unprofiled", unprofiled, 0}, {"named", named, 0})
