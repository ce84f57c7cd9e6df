/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults made on purpose before a communicator is up: nodes that fail, have other settings, are switched off
 * or absent, bad settings, strangers on the port. All nodes must decline the communicator or none of them,
 * the log must say why, and point-to-point traffic must go on.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "attacker.h"
#include "lib/suite.h"

static const char *const env_short[] = {"NIBBLE_PEER_TIMEOUT=3", "NIBBLE_CLOSE_TIMEOUT=" HX_LONG,
                                        "NIBBLE_LATE_REPORT=2",  "NIBBLE_CONNECT_TIMEOUT=" HX_LONG,
                                        "NIBBLE_RS=raw",         NULL};

/* ---- one node fails while the communicator is made ---- */

static int declined_node(struct hx_node *node, void *arg)
{
    const char *reason = arg;
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 128 << 10};
    struct hx_p2p_cfg p2p_cfg = {.streams = 2, .slot = 64 << 10};
    struct hx_lib *lib = hx_lib_open(NULL, 0);
    const char *stage = "?";
    char out[200000], in[200000], want[200000];
    struct hx_comm *comm;
    struct hx_p2p *p2p;
    struct hx_ctx ctx;
    ncclResult_t ret;
    double t = hx_now();

    HX_CHECK(lib && hx_init(lib, 5, &ctx) == ncclSuccess, "init");
    HX_CHECK(ctx.coll_ok, "CollNet init or devices failed; only connect may");
    ret = hx_comm_open(node, lib, &cfg, &comm, &stage);
    HX_CHECK(ret != ncclSuccess, "the communicator was not declined");
    HX_CHECK(strcmp(stage, "connect") == 0, "failed in %s instead of connect", stage);
    HX_CHECK(hx_now() - t < HX_SOON_S, "declining took %.1f s", hx_now() - t);
    HX_CHECK(hx_log_count(reason, NULL) > 0, "no line of the log says \"%s\"", reason);
    /* NCCL goes on over point-to-point connections. */
    HX_CHECK(hx_p2p_open(node, lib, &ctx, node->rank ^ 1, &p2p_cfg, &p2p) == ncclSuccess,
             "p2p after declining");
    hx_fill(ncclUint8, out, sizeof out, (uint64_t)node->rank, HX_FILL_BITS);
    hx_fill(ncclUint8, want, sizeof want, (uint64_t)(node->rank ^ 1), HX_FILL_BITS);
    HX_CHECK(hx_p2p_run(p2p, out, sizeof out, in, sizeof in, HX_SOON_S) == ncclSuccess,
             "p2p after declining");
    HX_CHECK(memcmp(in, want, sizeof in) == 0, "p2p after declining: wrong data");
    HX_CHECK(hx_p2p_close(p2p) == ncclSuccess && hx_finalize(lib, &ctx) == ncclSuccess, "closing");
    hx_lib_close(lib);
    HX_CHECK(hx_fd_count() <= 8, "%d descriptors left open", hx_fd_count());
    return 0;
}

/* Node `who` has one more setting and declines. The other nodes must log its reason and its number. */
static int declined_by(int who, int nnodes, const char *const *env, const char *setting, const char *reason)
{
    const char *const one_more[] = {setting, NULL};
    struct hx_job job = {
        .name = setting, .nnodes = nnodes, .fn = declined_node, .arg = (void *)(uintptr_t)reason, .env = env};
    struct hx_report *report = NULL;
    char name[16];
    int rc;

    snprintf(name, sizeof name, "node %d", who);
    job.node_env[who] = one_more;
    rc = hx_job_run(&job, &report);
    for (int r = 0; r < nnodes && rc == 0; r++)
        if (r != who && !hx_report_has(report, r, reason, name))
            rc = hx_fail("%s: node %d does not name node %d", setting, r, who);
    hx_report_free(report);
    return rc;
}

static int declined(const char *setting, const char *reason)
{
    static const char *const env[] = {"NIBBLE_RS=raw", "NIBBLE_CONNECT_TIMEOUT=" HX_LONG, NULL};

    return declined_by(1, 4, env, setting, reason);
}

HX_CASE(declined_connect, declined("NIBBLE_FAULT=connect", "connect"))
HX_CASE(declined_alloc, declined("NIBBLE_FAULT=alloc", "memory"))
HX_CASE(declined_regmr, declined("NIBBLE_FAULT=regmr", "regist"))
HX_CASE(declined_settings, declined("NIBBLE_UNIT_BYTES=65536", "settings"))
HX_CASE(declined_disabled, declined("NIBBLE_ENABLE=0", "NIBBLE_ENABLE"))

/* Nodes that listen and know each other's addresses. */
struct meeting {
    struct hx_lib *lib;
    struct hx_ctx ctx;
    unsigned char at[HX_MAX_NODES][HX_HANDLE_BYTES];
    void *handle[HX_MAX_NODES], *listen;
};

static int meet(struct hx_node *node, struct meeting *m)
{
    unsigned char mine[HX_HANDLE_BYTES] = {0};

    m->lib = hx_lib_open(NULL, 0);
    HX_CHECK(m->lib && hx_init(m->lib, 5, &m->ctx) == ncclSuccess && m->ctx.coll_ok, "init");
    HX_CHECK(hx_coll_listen(m->lib, &m->ctx, 0, mine, &m->listen) == ncclSuccess, "listen");
    hx_allgather(node, mine, sizeof mine, m->at);
    for (int r = 0; r < node->nnodes; r++)
        m->handle[r] = m->at[r];
    return 0;
}

/* One node never connects. The other nodes must give up after NIBBLE_CONNECT_TIMEOUT and log which node is
 * missing. */
static int absent_node(struct hx_node *node, void *arg)
{
    struct meeting m;
    void *comm = NULL;
    double t;

    (void)arg;
    if (meet(node, &m))
        return 1;
    t = hx_now();
    if (node->rank == 2) {
        hx_barrier(node);
        HX_CHECK(hx_coll_close_listen(m.lib, m.listen) == ncclSuccess, "closeListen");
    } else {
        HX_CHECK(hx_coll_connect(m.lib, m.handle, node->nnodes, node->rank, m.listen, &comm) != ncclSuccess,
                 "connected without node 2");
        HX_CHECK(hx_now() - t < HX_SOON_S, "gave up only after %.1f s", hx_now() - t);
        HX_CHECK(hx_log_count("node 2", NULL) > 0, "no line of the log names node 2");
        hx_barrier(node);
    }
    HX_CHECK(hx_finalize(m.lib, &m.ctx) == ncclSuccess, "finalize");
    hx_lib_close(m.lib);
    return 0;
}

HX_CASE(absent, sx_job("absent node", 3, absent_node, NULL, HX_ENV("NIBBLE_CONNECT_TIMEOUT=5")))

/* ---- nodes in rows and columns ---- */

struct grid_want {
    int nodes;
    const char *line, *more; /* that each node must log */
    const char *sites;       /* a letter for each node, '.' for no name. NULL: no node has a name */
};

static int grid_node(struct hx_node *node, void *arg)
{
    const struct grid_want *want = arg;
    const char *net = getenv("NIBBLE_NET"), *line = want->line, *more = want->more;
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 128 << 10};
    struct hx_comm *comm;
    struct hx_lib *lib;

    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    if (want->sites && net && strcmp(net, "forward") == 0) { /* its handles have no room for names */
        line = strchr(want->sites, '.') ? "" : "NIBBLE_SITE has no effect";
        more = *line ? "does not tell the nodes' sites" : "";
    }
    HX_CHECK(hx_log_count(line, more) > 0, "no line of the log says \"%s\" and \"%s\"", line, more);
    hx_barrier(node);
    if (sx_close(lib, comm, false))
        return 1;
    HX_CHECK(hx_fd_count() <= 8, "%d descriptors left open", hx_fd_count());
    return 0;
}

/* Run the nodes, each with its own NIBBLE_SITE. */
static int grid_job(const struct grid_want *want, const char *const *env)
{
    static const char *const named[][2] = {{NULL}, {"NIBBLE_SITE=paris"}, {"NIBBLE_SITE=rome"}};
    struct hx_job job = {.name = want->more,
                         .nnodes = want->nodes,
                         .fn = grid_node,
                         .arg = (void *)(uintptr_t)want,
                         .env = env,
                         .seed = 1};

    for (int r = 0; want->sites && r < want->nodes; r++)
        job.node_env[r] = named[strchr(".pr", want->sites[r]) - ".pr"];
    return hx_job_run(&job, NULL);
}

static int grid_connects(void)
{
    static const char *const env_auto[] = {"NIBBLE_RS=raw", NULL};
    static const char *const env[] = {"NIBBLE_RS=raw", "NIBBLE_SCHEDULE=two-level", NULL};
    static const char *const env_group[] = {"NIBBLE_RS=raw", "NIBBLE_SCHEDULE=two-level", "NIBBLE_GROUP=2",
                                            NULL};
    static const char *const env_direct[] = {"NIBBLE_RS=raw", "NIBBLE_SCHEDULE=direct", "NIBBLE_GROUP=2",
                                             NULL};
    static const struct {
        struct grid_want want;
        const char *const *env;
    } grid[] = {
        {{4, "connected over", "grid of 2 rows of 2 nodes", NULL}, env},
        {{6, "connected over", "grid of 2 rows of 3 nodes", NULL}, env},
        {{8, "connected over", "grid of 2 rows of 4 nodes", NULL}, env},
        {{8, "connected over", "grid of 4 rows of 2 nodes", NULL}, env_group},
        {{5, "no grid", "no divisor", NULL}, env},
        {{5, "no grid", "NIBBLE_GROUP=2 does not divide 5", NULL}, env_group},
        {{4, "no grid", "NIBBLE_SCHEDULE=direct", NULL}, env_direct},
        {{4, "connected over", "grid of 2 rows of 2 nodes at 2 sites", "prrp"}, env},
        {{6, "connected over", "grid of 3 rows of 2 nodes at 2 sites", "rrpppp"}, env},
        {{6, "connected over", "grid of 2 rows of 3 nodes at 2 sites", "prprpr"}, env_auto},
        {{4, "NIBBLE_SITE has no effect", "rows of 2 nodes speed up only", "pprr"}, env_auto},
        {{4, "NIBBLE_SITE has no effect", "node 1 names no site", "p.rr"}, env_auto},
        {{5, "NIBBLE_SITE has no effect", "(paris: 2, rome: 3)", "prrpr"}, env_auto},
        {{3, "NIBBLE_SITE has no effect", "all nodes are at one site (rome)", "rrr"}, env_auto},
    };

    for (size_t i = 0; i < sizeof grid / sizeof grid[0]; i++) {
        int rc = grid_job(&grid[i].want, grid[i].env);

        if (rc)
            return rc;
    }
    return 0;
}

/* Node 5 of two rows of three declines. Nodes 0 and 1 are not connected with it and must log its reason,
 * too. */
static int grid_declined(const char *setting, const char *reason)
{
    static const char *const env[] = {"NIBBLE_RS=raw", "NIBBLE_CONNECT_TIMEOUT=" HX_LONG,
                                      "NIBBLE_SCHEDULE=two-level", "NIBBLE_REQUIRE=none", NULL};

    return declined_by(5, 6, env, setting, reason);
}

HX_CASE(grid_declined_connect, grid_declined("NIBBLE_FAULT=connect", "fault injected at connect"))
HX_CASE(grid_declined_registration, grid_declined("NIBBLE_FAULT=regmr", "cannot register"))
HX_CASE(grid_declined_settings, grid_declined("NIBBLE_UNIT_BYTES=65536", "settings"))

/* Node 5 would connect with all nodes. Some of them would not connect with it. */
HX_CASE(grid_declined_mesh, grid_declined("NIBBLE_SCHEDULE=direct", "settings"))

/* Node 5 assumes a grid of three rows of two, and so has other neighbors. */
HX_CASE(grid_declined_group, grid_declined("NIBBLE_GROUP=2", "settings"))

static void *connect_thread(void *arg)
{
    struct meeting *m = arg;
    void *comm;

    hx_coll_connect(m->lib, m->handle, 6, 5, m->listen, &comm);
    return NULL;
}

/* Node 5 has connected with the nodes of its row, waits for node 2 of its column, and dies. */
static int grid_death_node(struct hx_node *node, void *arg)
{
    struct meeting m;
    void *comm = NULL;
    double t;

    (void)arg;
    if (meet(node, &m))
        return 1;
    if (node->rank == 5) {
        pthread_t thread;

        HX_CHECK(pthread_create(&thread, NULL, connect_thread, &m) == 0, "thread");
        hx_sleep(0.5);
        raise(SIGKILL);
    }
    if (node->rank == 2)
        hx_sleep(1);
    t = hx_now();
    HX_CHECK(hx_coll_connect(m.lib, m.handle, node->nnodes, node->rank, m.listen, &comm) != ncclSuccess,
             "connected without node 5");
    HX_CHECK(hx_now() - t < HX_SOON_S, "gave up only after %.1f s", hx_now() - t);
    HX_CHECK(hx_log_count("is declined", "node 5") > 0, "no line of the log names node 5");
    HX_CHECK(hx_finalize(m.lib, &m.ctx) == ncclSuccess, "finalize");
    hx_lib_close(m.lib);
    return 0;
}

static int grid_death(void)
{
    static const char *const env[] = {"NIBBLE_CONNECT_TIMEOUT=" HX_LONG, "NIBBLE_SCHEDULE=two-level", NULL};
    struct hx_job job = {
        .name = "death before the vote", .nnodes = 6, .fn = grid_death_node, .env = env, .dies = 1u << 5};

    return hx_job_run(&job, NULL);
}

/* ---- bad settings ---- */

/* A bad setting must not fail one node alone. The node takes part in the vote, and all nodes decline and log
 * which setting is bad. Without NIBBLE_REQUIRE=none that node's job then stops (tests/abi/test_tables). */
static int bad_settings(void)
{
    static const char *const env[] = {"NIBBLE_CONNECT_TIMEOUT=" HX_LONG, "NIBBLE_REQUIRE=none", NULL};
    static const struct {
        const char *setting, *line;
    } bad[] = {
        {"NIBBLE_CREDITS=0", "bad setting NIBBLE_CREDITS=0: it must be an integer from"},
        {"NIBBLE_CREDITS=many", "bad setting NIBBLE_CREDITS=many"},
        {"NIBBLE_UNIT_BYTES=99999999999999999999", "bad setting NIBBLE_UNIT_BYTES=99999999999999999999"},
        {"NIBBLE_RS=int3", "bad setting NIBBLE_RS=int3: it must be raw, int4, int8 or auto"},
        {"NIBBLE_FALLBACK_NMSE=nan", "bad setting NIBBLE_FALLBACK_NMSE=nan"},
        {"NIBBLE_ENABLE=maybe", "bad setting NIBBLE_ENABLE=maybe"},
        {"NIBBLE_CREDIT=4", "unknown setting NIBBLE_CREDIT"},
        {"NIBBLE_GRAD=nonsense", "NIBBLE_GRAD: rule \"nonsense\": it must be"},
        {"NIBBLE_SCHEDULE=ring", "bad setting NIBBLE_SCHEDULE=ring"},
        {"NIBBLE_SITE=paris:fast", "NIBBLE_SITE: paris:fast is neither NAME nor NAME:MBPS"},
        {"NIBBLE_SITE=a-building-with-the-longest-name", "NIBBLE_SITE: at most 31 characters, not 32"},
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int rc = declined_by(1, 4, env, bad[i].setting, bad[i].line);

        if (rc)
            return rc;
    }
    return 0;
}

/* The node would be elsewhere in the grid, or outside it. */
HX_CASE(grid_bad_settings, grid_declined("NIBBLE_GROUP=some", "bad setting NIBBLE_GROUP=some"))

/* ---- faults that nodes notice at once ---- */

struct at_once {
    const char *name;
    void (*fault)(struct meeting *m); /* runs on node 1, which then connects, or does not return */
    const char *line;                 /* that the other nodes log, with "node 1" */
    const char *elsewhere;            /* the line over other transports than TCP, which have their own
                                         words. NULL: unknown */
    bool dies;
};

static int at_once_node(struct hx_node *node, void *arg)
{
    const struct at_once *what = arg;
    const char *net = getenv("NIBBLE_NET");
    const char *line = net && strcmp(net, "tcp") != 0 ? what->elsewhere : what->line;
    struct meeting m;
    void *comm = NULL;
    double t;

    if (meet(node, &m))
        return 1;
    hx_barrier(node);
    if (!line) {
        if (node->rank == 1)
            raise(SIGKILL);
        HX_CHECK(hx_coll_close_listen(m.lib, m.listen) == ncclSuccess, "closeListen");
        return 0;
    }
    if (node->rank == 1)
        what->fault(&m);
    t = hx_now();
    HX_CHECK(hx_coll_connect(m.lib, m.handle, node->nnodes, node->rank, m.listen, &comm) != ncclSuccess,
             "connected");
    HX_CHECK(hx_now() - t < HX_SOON_S, "gave up only after %.1f s", hx_now() - t);
    HX_CHECK(hx_log_count("is declined", line) > 0, "no line of the log says \"%s\"", line);
    HX_CHECK(node->rank == 1 || hx_log_count("is declined", "node 1") > 0, "no line of the log names node 1");
    HX_CHECK(hx_finalize(m.lib, &m.ctx) == ncclSuccess, "finalize");
    hx_lib_close(m.lib);
    return 0;
}

static int at_once(const struct at_once *what, int nnodes, const char *schedule)
{
    const char *const env[] = {"NIBBLE_CONNECT_TIMEOUT=" HX_LONG, schedule, NULL};
    struct hx_job job = {.name = what->name,
                         .nnodes = nnodes,
                         .fn = at_once_node,
                         .arg = (void *)(uintptr_t)what,
                         .env = env,
                         .dies = what->dies ? 1u << 1 : 0};

    return hx_job_run(&job, NULL);
}

/* Leave enough descriptors to report that there are too few. */
static void few_descriptors(struct meeting *m)
{
    const int more = 5;
    int next = dup(0);
    struct rlimit limit = {(rlim_t)(next + more), (rlim_t)(next + more)};

    (void)m;
    close(next);
    setrlimit(RLIMIT_NOFILE, &limit);
}

static void die_before_accepting(struct meeting *m)
{
    (void)m;
    hx_sleep(0.3); /* the other nodes believe that they have connected */
    raise(SIGKILL);
}

static void damage_handle(struct meeting *m)
{
    m->at[0][4] ^= 3;
}

static int known_at_once(void)
{
    static const struct at_once faults[] = {
        /* Over other transports node 1 meets a system error and may be unable to report it. The other nodes
         * lose its connections. */
        {"too few descriptors", few_descriptors, "too many open files", "node", false},
        {"death before accepting", die_before_accepting, "node 1", NULL, true},
        {"a damaged handle", damage_handle, "cannot connect to node 0", "cannot connect to node 0", false},
    };

    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        int rc = at_once(&faults[i], 4, "NIBBLE_SCHEDULE=direct");

        rc = rc ? rc : at_once(&faults[i], 6, "NIBBLE_SCHEDULE=two-level");
        if (rc)
            return rc;
    }
    return 0;
}

/* ---- invalid calls ---- */

static int bad_ranks_node(struct hx_node *node, void *arg)
{
    static const struct {
        int nranks, rank;
    } bad[] = {{0, 0}, {1, 0}, {2, 2}, {2, -1}, {-1, 0}, {1 << 20, 0}};
    struct meeting m;
    void *comm = NULL;
    int before;

    (void)arg;
    if (meet(node, &m))
        return 1;
    before = hx_fd_count();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        unsigned char handle[HX_HANDLE_BYTES];
        void *listen, *none[2] = {handle, NULL};

        HX_CHECK(hx_coll_listen(m.lib, &m.ctx, 0, handle, &listen) == ncclSuccess, "listen");
        HX_CHECK(hx_coll_connect(m.lib, m.handle, bad[i].nranks, bad[i].rank, listen, &comm) != ncclSuccess,
                 "connected rank %d of %d", bad[i].rank, bad[i].nranks);
        HX_CHECK(hx_coll_listen(m.lib, &m.ctx, 0, handle, &listen) == ncclSuccess, "listen");
        HX_CHECK(hx_coll_connect(m.lib, none, 2, 0, listen, &comm) != ncclSuccess, "connected with NULL");
    }
    HX_CHECK(hx_fd_count() == before, "%d descriptors left open", hx_fd_count() - before);
    HX_CHECK(hx_coll_close_listen(m.lib, m.listen) == ncclSuccess, "closeListen");
    HX_CHECK(hx_finalize(m.lib, &m.ctx) == ncclSuccess, "finalize");
    hx_lib_close(m.lib);
    return 0;
}

HX_CASE(bad_ranks, sx_job("impossible ranks", 2, bad_ranks_node, NULL, NULL))

/* ---- strangers ---- */

static int strangers_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 128 << 10};
    struct hx_p2p_cfg p2p_cfg = {.streams = 2, .slot = 64 << 10};
    struct hx_lib *lib = hx_lib_open(NULL, 0);
    unsigned char handle[HX_HANDLE_BYTES];
    struct attack attack = {false, 0};
    struct hx_p2p *p2p;
    struct hx_ctx ctx;
    pthread_t thread;
    void *listen;

    (void)arg;
    HX_CHECK(lib && hx_init(lib, 5, &ctx) == ncclSuccess, "init");
    /* A listener without connections keeps the port open while the other communicators run. */
    HX_CHECK(hx_coll_listen(lib, &ctx, 0, handle, &listen) == ncclSuccess, "listen");
    HX_CHECK(pthread_create(&thread, NULL, attacker, &attack) == 0, "thread");
    hx_sleep(0.05);
    for (int round = 0; round < 6; round++) {
        struct hx_comm *comm;
        const char *stage = "?";

        if (node->rank == 0)
            hx_sleep(0.1); /* the other nodes' listeners wait under attack */
        HX_CHECK(hx_comm_open(node, lib, &cfg, &comm, &stage) == ncclSuccess,
                 "bring-up under attack failed in %s", stage);
        for (int i = 0; i < 3; i++) {
            struct sx_spec spec = {.func = (enum hx_func)i,
                                   .type = ncclFloat32,
                                   .count = 40001,
                                   .fill = HX_FILL_EXACT,
                                   .seed = (uint64_t)round};

            if (sx_do(node, comm, &spec, NULL))
                return 1;
        }
        HX_CHECK(hx_comm_close(comm) == ncclSuccess, "close");
    }
    if (node->rank < 2) {
        HX_CHECK(hx_p2p_open(node, lib, &ctx, node->rank ^ 1, &p2p_cfg, &p2p) == ncclSuccess,
                 "p2p under attack");
        HX_CHECK(hx_p2p_close(p2p) == ncclSuccess, "p2p close");
    }
    hx_where("waiting until some attacks have reached a port");
    while (atomic_load(&attack.hits) <= 20)
        hx_sleep(1e-3);
    atomic_store(&attack.stop, true);
    pthread_join(thread, NULL);
    HX_CHECK(hx_coll_close_listen(lib, listen) == ncclSuccess && hx_finalize(lib, &ctx) == ncclSuccess,
             "closing");
    hx_lib_close(lib);
    return 0;
}

HX_CASE(strangers, sx_job("strangers", 3, strangers_node, NULL, env_short))

/* ---- settings of the greatest length ---- */

static int long_settings_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 128 << 10};
    struct sx_spec spec = {
        .func = HX_REDUCE_SCATTER, .type = ncclFloat32, .op = ncclSum, .count = 1000, .seed = 3};
    struct hx_comm *comm;
    struct hx_lib *lib;

    (void)arg;
    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    if (sx_do(node, comm, &spec, NULL))
        return 1;
    HX_CHECK(hx_log_count("reduce_scatter raw", "after 0 steps, by NIBBLE_GRAD=") > 0, "no line of the plan");
    return sx_close(lib, comm, false);
}

/* Set as many rules as allowed, with numbers of any length. The plugin shortens the line that logs its plan,
 * as any long line. The settings are so long that a write past that line's buffer would also be past the
 * stack. */
static int long_settings(void)
{
    static char grad[1 << 17] = "NIBBLE_GRAD=";
    const char *env[] = {grad, "NIBBLE_RS=raw", NULL};
    size_t at = strlen(grad);

    for (int i = 0; i < 64; i++)
        at += (size_t)snprintf(grad + at, sizeof grad - at, "%sreduce_scatter:bfloat16:%01500d@64",
                               i ? "," : "", 4096 + i);
    return sx_job("long settings", 2, long_settings_node, NULL, env);
}

HX_MAIN({"long-settings", long_settings, 0}, {"declined-connect", declined_connect, 0},
        {"declined-allocation", declined_alloc, 0}, {"declined-registration", declined_regmr, 0},
        {"declined-settings", declined_settings, 0}, {"declined-disabled", declined_disabled, 0},
        {"absent-node", absent, 0}, {"grid-connects", grid_connects, 0},
        {"grid-declined-connect", grid_declined_connect, 0},
        {"grid-declined-registration", grid_declined_registration, 0},
        {"grid-declined-settings", grid_declined_settings, 0}, {"grid-declined-mesh", grid_declined_mesh, 0},
        {"grid-declined-group", grid_declined_group, 0}, {"grid-death", grid_death, 0},
        {"bad-settings", bad_settings, 0}, {"grid-bad-settings", grid_bad_settings, 0},
        {"known-at-once", known_at_once, 0}, {"bad-ranks", bad_ranks, 0}, {"strangers", strangers, 0})
