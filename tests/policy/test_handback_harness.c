/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations that are handed back to NCCL, through tuner, engine and network: callers ask NCCL's tuner for
 * calls long before the proxy gets what came of them, each node as far ahead as it likes, and some are late.
 * What goes raw on all nodes leaves CollNet and comes back to be looked at; what is coded stays. Nodes that
 * choose differently hang in an operation of which the others know nothing; and the answers are compared. A node's
 * second rank is a process of its own, which calls and has no operations.
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "abi/tables.h"
#include "nibble/nccl_tuner.h"
#include "rank.h"

enum { GATHER_NEW, SCATTER_INT, GATHER_SAME, SCATTER_GRAD, KINDS };
enum { CALLS = 2600, RARE = 16, AHEAD = 48 };

static const char *const env[] = {"NIBBLE_HAND_BACK=8",    "NIBBLE_TUNER_MIN_BYTES=0",
                                  "NIBBLE_AG_MIN_BYTES=0", "NIBBLE_RS_MIN_BYTES=0",
                                  "NIBBLE_EF=off",         NULL};

static const struct sx_spec specs[KINDS] = {
    [GATHER_NEW] = {.func = HX_ALL_GATHER, .type = ncclBfloat16, .count = 3000, .fill = HX_FILL_BITS},
    [SCATTER_INT] = {.func = HX_REDUCE_SCATTER, .type = ncclInt32, .count = 1500, .fill = HX_FILL_BITS},
    [GATHER_SAME] = {.func = HX_ALL_GATHER, .type = ncclBfloat16, .count = 4000, .fill = HX_FILL_NORMAL},
    [SCATTER_GRAD] = {.func = HX_REDUCE_SCATTER, .type = ncclFloat32, .count = 4096, .fill = HX_FILL_NORMAL},
};

struct job {
    struct rank r;
    uint64_t random, answers; /* hash of all */
    unsigned asked[KINDS], nccl[KINDS], back[KINDS];
    struct sx_run run[AHEAD];
    uint64_t first, last; /* operations that were asked for, and are not posted yet */
    bool late;
    struct second *second; /* NULL: the node has one rank */
    pid_t second_pid;
};

/* What the processes of a node's two ranks know of each other. */
struct second {
    atomic_uint asked[2]; /* calls, by the first and by the second */
    atomic_uint_fast64_t answers;
};

/* What NCCL would do: the lowest of the table. */
static int ask(struct job *j, int kind, bool *collnet)
{
    const struct sx_spec *s = &specs[kind];
    const size_t bytes = s->count * (size_t)j->r.node->nnodes * hx_type_size(s->type);
    float table[NCCL_NUM_ALGORITHMS_V5][NCCL_NUM_PROTOCOLS_V5], lowest = 1e30f;
    int channels = 0, best = -1;

    for (int a = 0; a < NCCL_NUM_ALGORITHMS_V5; a++)
        for (int p = 0; p < NCCL_NUM_PROTOCOLS_V5; p++)
            table[a][p] = a == NCCL_ALGO_RING || (a == NCCL_ALGO_COLLNET_DIRECT && p == NCCL_PROTO_SIMPLE)
                              ? (float)(10 * (a + 1))
                              : -1.0f;
    HX_CHECK(NB_NEWEST_TUNER.getCollInfo(
                 j->r.tuner, s->func == HX_ALL_GATHER ? ncclFuncAllGather : ncclFuncReduceScatter, bytes, 1,
                 (float **)table, NCCL_NUM_ALGORITHMS_V5, NCCL_NUM_PROTOCOLS_V5, 0, &channels) == ncclSuccess,
             "tuner");
    for (int a = 0; a < NCCL_NUM_ALGORITHMS_V5; a++)
        for (int p = 0; p < NCCL_NUM_PROTOCOLS_V5; p++)
            if (table[a][p] >= 0 && table[a][p] < lowest) {
                lowest = table[a][p];
                best = a;
            }
    HX_CHECK(best == NCCL_ALGO_RING || best == NCCL_ALGO_COLLNET_DIRECT, "algorithm %d", best);
    *collnet = best == NCCL_ALGO_COLLNET_DIRECT;
    j->answers = (j->answers ^ (uint64_t)(kind * 2 + *collnet)) * 0x100000001b3u;
    j->asked[kind]++;
    j->nccl[kind] += !*collnet;
    j->back[kind] += *collnet && j->nccl[kind];
    return 0;
}

static int post_one(struct job *j)
{
    struct sx_run *run = &j->run[j->first++ % AHEAD];
    ncclResult_t ret;

    if (j->late && hx_rand_below(&j->random, 40) == 0)
        hx_sleep(0.05);
    hx_where("operation %llu, %s", (unsigned long long)j->first, sx_describe(&run->spec));
    HX_CHECK(hx_post(j->r.comm, &run->op) == ncclSuccess, "post");
    ret = hx_wait(j->r.comm, &run->op, 0);
    HX_CHECK(ret == ncclSuccess, "%s: result %d", sx_describe(&run->spec), (int)ret);
    if (sx_check(j->r.node, run))
        return 1;
    sx_free(run);
    return 0;
}

/* A call of the user's: an operation of NCCL's own is over with it, here. */
static int call(struct job *j, int kind)
{
    struct sx_spec spec = specs[kind];
    bool collnet;

    hx_where("call %u of kind %d, %llu not posted", j->asked[kind] + 1, kind,
             (unsigned long long)(j->last - j->first));
    if (ask(j, kind, &collnet))
        return 1;
    if (!collnet)
        return 0;
    spec.seed = kind == GATHER_SAME ? 7 : (uint64_t)kind * 1000000 + j->asked[kind];
    spec.max_nmse = kind == SCATTER_GRAD ? bound_of(j->r.node->nnodes, &spec) : 0;
    sx_prepare(j->r.node, &spec, &j->run[j->last++ % AHEAD]);
    return 0;
}

/* ---- a node's second rank ------------------------------------------------------------------------------ */

/* Neither is further ahead of the other one than a job's ranks would be. */
static void keep_up(struct second *s, int me, unsigned ahead)
{
    const unsigned mine = atomic_fetch_add(&s->asked[me], 1);

    while (mine > atomic_load(&s->asked[!me]) + ahead)
        hx_sleep(0.0002);
}

/* The kinds of operations that are called in round i. */
static bool is_due(int kind, int i)
{
    return kind < GATHER_SAME || i % RARE == 0;
}

static int ask_as_second(struct hx_node *node, struct second *s)
{
    static struct job j;
    struct hx_lib *lib = hx_lib_static(&NB_NEWEST_NET, &NB_NEWEST_COLL, NB_NET_NEWEST);
    struct hx_ctx ctx;
    unsigned ahead = 1;
    bool collnet;

    j.r.node = node;
    j.random = (uint64_t)node->rank + 770;
    HX_CHECK(hx_init(lib, COMM_ID, &ctx) == ncclSuccess, "init of the second rank");
    HX_CHECK(NB_NEWEST_TUNER.init(&j.r.tuner, COMM_ID, (size_t)node->nnodes * 2, (size_t)node->nnodes,
                                  hx_logger(), NULL, NULL) == ncclSuccess,
             "tuner init of the second rank");
    for (int i = 0; i < CALLS; i++) {
        if (hx_rand_below(&j.random, 20) == 0)
            ahead = (unsigned)hx_rand_below(&j.random, AHEAD);
        for (int kind = 0; kind < KINDS; kind++)
            if (is_due(kind, i)) {
                keep_up(s, 1, ahead);
                if (ask(&j, kind, &collnet))
                    return 1;
            }
    }
    atomic_store(&s->answers, j.answers);
    NB_NEWEST_TUNER.finalize(j.r.tuner);
    return 0;
}

/* Before this process has anything of the plugin's. */
static int start_second(struct hx_node *node, struct job *j)
{
    char host[32];

    snprintf(host, sizeof(host), "host-%d-%d", node->rank, (int)getpid()); /* of a node of its own */
    setenv("NCCL_HOSTID", host, 1);
    j->second = mmap(NULL, sizeof(*j->second), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    HX_CHECK(j->second != MAP_FAILED, "mmap");
    j->second_pid = fork();
    HX_CHECK(j->second_pid >= 0, "fork");
    if (j->second_pid == 0)
        _exit(ask_as_second(node, j->second));
    return 0;
}

static int end_second(struct job *j)
{
    int status;

    HX_CHECK(waitpid(j->second_pid, &status, 0) == j->second_pid && WIFEXITED(status) &&
                 WEXITSTATUS(status) == 0,
             "the node's second rank has ended with status %x", status);
    HX_CHECK(atomic_load(&j->second->answers) == j->answers, "two ranks of a node have chosen differently");
    return 0;
}

/* ---- a job --------------------------------------------------------------------------------------------- */

struct how {
    int late, ranks;
};

static int node_main(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 256 << 10};
    const struct how *how = arg;
    static struct job j;
    unsigned ahead = 1;

    j.late = how->late;
    j.random = (uint64_t)node->rank + 77;
    if (how->ranks > 1 && start_second(node, &j))
        return 1;
    if (rank_open(node, &cfg, how->ranks, &j.r))
        return 1;
    for (int i = 0; i < CALLS; i++) {
        if (hx_rand_below(&j.random, 20) == 0)
            ahead = (unsigned)hx_rand_below(&j.random, AHEAD - KINDS);
        for (int kind = 0; kind < KINDS; kind++) {
            if (!is_due(kind, i))
                continue;
            if (j.second)
                keep_up(j.second, 0, AHEAD);
            if (call(&j, kind))
                return 1;
        }
        while (j.last - j.first > ahead)
            if (post_one(&j))
                return 1;
    }
    while (j.last > j.first)
        if (post_one(&j))
            return 1;
    if (j.second && end_second(&j))
        return 1;
    HX_CHECK(hx_all_equal(node, j.answers), "nodes have chosen differently");
    for (int kind = 0; kind < KINDS; kind++) {
        const bool raw = kind < GATHER_SAME;
        HX_CHECK((j.nccl[kind] > 1024) == raw && (raw || !j.nccl[kind]),
                 "%u of %u calls of kind %d were handed back", j.nccl[kind], j.asked[kind], kind);
        HX_CHECK((j.back[kind] >= 8) == raw, "%u calls of kind %d came back to be looked at", j.back[kind],
                 kind);
    }
    HX_CHECK(hx_log_count("handed back to NCCL from its call", NULL) == 4, "%d votes were won",
             hx_log_count("handed back to NCCL from its call", NULL));
    return rank_close(&j.r);
}

static int run(const char *name, int nnodes, int late, int ranks)
{
    struct how how = {.late = late, .ranks = ranks};

    return sx_job(name, nnodes, node_main, &how, env);
}

static int two(void)
{
    return run("two", 2, 0, 1);
}
static int three_late(void)
{
    return run("three-late", 3, 1, 1);
}
static int two_ranks(void)
{
    return run("two-ranks", 2, 1, 2);
}

/* ---- a node dies --------------------------------------------------------------------------------------- */

/* Node 2 dies at its call number *arg, about when the others vote: they hear of it, no call hangs, and all
 * that is asked for from then on is CollNet's. */
static int orphan_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 256 << 10};
    const unsigned end = *(unsigned *)arg;
    static struct job j;
    ncclResult_t ret = ncclSuccess;
    bool collnet;

    if (rank_open(node, &cfg, 1, &j.r))
        return 1;
    for (int i = 0; ret == ncclSuccess && i < 100000; i++) {
        if (node->rank == 2 && j.asked[GATHER_NEW] == end)
            kill(getpid(), SIGKILL);
        if (call(&j, GATHER_NEW))
            return 1;
        if (j.last - j.first > (unsigned)node->rank * 3) {
            struct sx_run *run = &j.run[j.first++ % AHEAD];
            ret = hx_post(j.r.comm, &run->op);
            if (ret == ncclSuccess)
                ret = hx_wait(j.r.comm, &run->op, 0);
            sx_free(run);
        }
    }
    HX_CHECK(ret != ncclSuccess && ret != HX_TIMEOUT, "result %d after a node has died", (int)ret);
    for (int i = 0; i < 200; i++) {
        if (ask(&j, GATHER_NEW, &collnet))
            return 1;
        HX_CHECK(collnet, "a call was handed back by a communicator that has failed");
    }
    while (j.first < j.last)
        sx_free(&j.run[j.first++ % AHEAD]);
    NB_NEWEST_TUNER.finalize(j.r.tuner);
    ev_close(&NB_NEWEST_PROFILER, &j.r.events);
    hx_comm_close(j.r.comm);
    return 0;
}

static int orphans(void)
{
    for (unsigned end = 8; end < 24; end += 5) {
        const struct hx_job job = {
            .name = "orphans", .nnodes = 3, .fn = orphan_node, .arg = &end, .env = env, .dies = 1u << 2};
        const int rc = hx_job_run(&job, NULL);
        if (rc)
            return rc;
    }
    return 0;
}

/* ---- what is never handed back ------------------------------------------------------------------------- */

static int off_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 256 << 10};
    static struct job j;

    if (rank_open(node, &cfg, *(int *)arg, &j.r))
        return 1;
    for (int i = 0; i < 200; i++)
        if (call(&j, GATHER_NEW) || post_one(&j))
            return 1;
    HX_CHECK(!j.nccl[GATHER_NEW], "%u calls were handed back", j.nccl[GATHER_NEW]);
    return rank_close(&j.r);
}

/* The setting is off by default; and of two ranks a node the second one never comes. */
static int off(void)
{
    static const char *const by_default[] = {"NIBBLE_TUNER_MIN_BYTES=0", "NIBBLE_AG_MIN_BYTES=0", NULL};
    int ranks = 1;
    int rc = sx_job("off", 2, off_node, &ranks, by_default);

    ranks = 2;
    return rc ? rc : sx_job("two ranks a node", 2, off_node, &ranks, env);
}

static const struct hx_case cases[] = {
    {"two", two, 0}, {"three-late", three_late, 0}, {"two-ranks", two_ranks, 0}, {"orphans", orphans, 0},
    {"off", off, 0},
};

int main(int argc, char **argv)
{
    return hx_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
