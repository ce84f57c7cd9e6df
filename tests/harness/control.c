/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Choices and changes of the user: which communicators nibble compresses, shadow mode, and the switch that
 * stops compression in a running job.
 */
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/suite.h"

#define NODES 3

/* ---- NIBBLE_COMMS ---- */

static int excluded_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 128 << 10};
    struct hx_lib *lib = hx_lib_open(NULL, 0);
    const char *stage = "?";
    struct hx_comm *comm;

    HX_CHECK(lib, "the plugin does not load");
    HX_CHECK(hx_comm_open(node, lib, &cfg, &comm, &stage) != ncclSuccess,
             "the communicator was not excluded");
    HX_CHECK(strcmp(stage, "connect") == 0, "failed in %s instead of connect", stage);
    HX_CHECK(hx_log_count(arg, NULL) == 1, "no line of the log says \"%s\"", (const char *)arg);
    HX_CHECK(hx_log_warns() == 0, "what the user wants is logged as a warning");
    hx_lib_close(lib);
    return 0;
}

static int comms_excluded(void)
{
    static const char *const other[] = {"NIBBLE_COMMS=nnodes=5,nnodes=8-16:nranks=8", NULL};
    static const char *const this[] = {"NIBBLE_COMMS=!order=1", NULL};

    return sx_job("others only", NODES, excluded_node, (void *)"NIBBLE_COMMS excludes it (nnodes=3:order=1)",
                  other) ||
           sx_job("not this one", NODES, excluded_node, (void *)"NIBBLE_COMMS excludes it (nnodes=3:order=1)",
                  this);
}

static int included_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 128 << 10};
    struct hx_lib *lib;
    struct hx_comm *comm;

    (void)arg;
    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    HX_CHECK(hx_log_count("(NIBBLE_COMMS=nnodes=3:order=1): reduce_scatter int4", NULL) == 1,
             "no line tells what will be compressed, and how to change it");
    return sx_close(lib, comm, false);
}

HX_CASE(comms_included, sx_job("included", NODES, included_node, NULL,
                               HX_ENV("NIBBLE_COMMS=nnodes=3:order=1-4,!name=model*")))

/* ---- coding does not pay ---- */

static int nothing_to_gain(void)
{
    static const char *const fast[] = {"NIBBLE_LINK_MBPS=400000", "NIBBLE_HOST_THREADS=0",
                                       "NIBBLE_REQUIRE=collnet", NULL};
    static const char *const fast_grid[] = {"NIBBLE_LINK_MBPS=400000", "NIBBLE_HOST_THREADS=0",
                                            "NIBBLE_SCHEDULE=two-level", "NIBBLE_REQUIRE=collnet", NULL};

    return sx_job("fast links", NODES, excluded_node, (void *)"no gain on links of 400 Gbit/s", fast) ||
           sx_job("fast links, grid", 4, excluded_node, (void *)"no gain on links of 400 Gbit/s", fast_grid);
}

static int connected_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 128 << 10};
    struct hx_lib *lib;
    struct hx_comm *comm;

    (void)arg;
    return sx_open(node, &cfg, &lib, &comm) || sx_close(lib, comm, false);
}

static int something_to_gain(void)
{
    static const char *const sums[] = {"NIBBLE_LINK_MBPS=400000", "NIBBLE_RS=int4", NULL};
    static const char *const gathers[] = {"NIBBLE_LINK_MBPS=400000", "NIBBLE_AG=exact", NULL};
    static const char *const shadow[] = {"NIBBLE_LINK_MBPS=400000", "NIBBLE_SHADOW=1", NULL};
    static const char *const unknown[] = {"NIBBLE_REQUIRE=collnet", NULL}; /* loopback reports no rate */

    return sx_job("NIBBLE_RS=int4", NODES, connected_node, NULL, sums) ||
           sx_job("NIBBLE_AG=exact", NODES, connected_node, NULL, gathers) ||
           sx_job("shadow mode", NODES, connected_node, NULL, shadow) ||
           sx_job("unknown rate", NODES, connected_node, NULL, unknown);
}

/* Nodes refuse bad settings at the vote (bringup.c), so that all of them hear of it, and the job stops
 * (tests/abi/test_tables). Here the log must name each bad setting once. */
static int refused_node(struct hx_node *node, void *arg)
{
    struct hx_lib *lib = hx_lib_open(NULL, 0);
    struct hx_ctx ctx;

    (void)node;
    HX_CHECK(lib && hx_init(lib, 5, &ctx) == ncclSuccess, "init");
    HX_CHECK(hx_log_count(arg, NULL) == 1, "no line of the log says \"%s\"", (const char *)arg);
    HX_CHECK(hx_log_count("the job stops, since NIBBLE_REQUIRE has settings", NULL) == 1,
             "what follows is not said");
    HX_CHECK(hx_log_warns() == 2, "%d warnings instead of two", hx_log_warns());
    HX_CHECK(hx_finalize(lib, &ctx) == ncclSuccess, "finalize");
    hx_lib_close(lib);
    return 0;
}

static int bad_rules(void)
{
    static const char *const comms[] = {"NIBBLE_COMMS=nnodes=3:size=4", NULL};
    static const char *const grad[] = {"NIBBLE_GRAD=reduce_scatter:int8:4", NULL};

    return sx_job("bad NIBBLE_COMMS", 1, refused_node, (void *)"NIBBLE_COMMS: rule \"nnodes=3:size=4\"",
                  comms) ||
           sx_job("bad NIBBLE_GRAD", 1, refused_node, (void *)"NIBBLE_GRAD: rule \"reduce_scatter:int8:4\"",
                  grad);
}

/* ---- delivered results ---- */

/* Run one reduce-scatter and compare with the sum in double precision. */
static int error_of_one(struct hx_node *node, struct hx_comm *comm, int round, double *nmse)
{
    struct sx_spec spec = {.func = HX_REDUCE_SCATTER,
                           .type = ncclFloat32,
                           .count = 20011,
                           .fill = HX_FILL_NORMAL,
                           .seed = 100 + (uint64_t)round,
                           .max_nmse = 1};
    struct sx_run run;
    ncclResult_t ret;

    sx_prepare(node, &spec, &run);
    hx_where("round %d", round);
    ret = hx_run(comm, &run.op);
    HX_CHECK(ret == ncclSuccess, "round %d: result %d", round, (int)ret);
    if (sx_check(node, &run))
        return 1;
    *nmse = run.nmse;
    sx_free(&run);
    return 0;
}

#define EXACT 1e-10 /* of FP32 sums. Four bits leave more than 1e-3 */

/* ---- NIBBLE_SHADOW ---- */

static int shadow_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 256 << 10};
    struct hx_lib *lib;
    struct hx_comm *comm;
    struct sx_spec gather = {
        .func = HX_ALL_GATHER, .type = ncclBfloat16, .count = 50001, .fill = HX_FILL_NORMAL};
    double nmse = 1;
    char line[1024];
    const char *at;

    (void)arg;
    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    for (int round = 0; round < 8; round++) {
        if (error_of_one(node, comm, round, &nmse))
            return 1;
        HX_CHECK(nmse < EXACT, "round %d: shadow mode delivered an error of %g", round, nmse);
        gather.seed = 7; /* the weights of before */
        if (sx_do(node, comm, &gather, NULL))
            return 1;
    }
    HX_CHECK(hx_log_count("shadow mode, everything is sent raw", NULL) == 1,
             "nothing says that this is shadow mode");
    if (sx_close(lib, comm, false))
        return 1;
    hx_log_first("signature reduce_scatter:float32:60033@3", line, sizeof line);
    at = strstr(line, "would_be=");
    HX_CHECK(at && strstr(at, "ratio="), "no line tells what compression would do: %s", line);
    HX_CHECK(atof(strstr(at, "ratio=") + 6) > 6.5, "the ratio would be only %s", strstr(at, "ratio="));
    at = strstr(line, "nmse=");
    HX_CHECK(at && atof(at + 5) > 1e-3 && atof(at + 5) < 0.02, "the error would be %s", at ? at : "unknown");
    HX_CHECK(strstr(line, "feedback=8 "), "feedback did not run beside: %s", line);
    hx_log_first(": all_gather bytes=", line, sizeof line);
    at = strstr(line, "would_be=");
    HX_CHECK(at && atof(strstr(at, "ratio=") + 6) > 7, "seven of eight gathers repeat the first, but: %s",
             line);
    HX_CHECK(hx_log_count("all_gather ops=8", "ratio=1.00") == 1, "gathers were not sent raw");
    hx_log_first("reduce_scatter ops=8 coded=0", line, sizeof line);
    HX_CHECK(strstr(line, "ratio=1.00") || strstr(line, "ratio=0.99"), "what was sent is not raw: %s", line);
    return 0;
}

HX_CASE(shadow, sx_job("shadow", NODES, shadow_node, NULL,
                       HX_ENV("NIBBLE_SHADOW=1", "NIBBLE_MIN_BYTES=0", "NIBBLE_EF_IDENTITY=signature")))

/* ---- NIBBLE_FALLBACK_NMSE ---- */

static int fallback_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 256 << 10};
    struct hx_lib *lib;
    struct hx_comm *comm;
    double first = 0, last = 0;

    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    for (int round = 0; round < 80; round++) {
        if (error_of_one(node, comm, round, &last))
            return 1;
        first = round ? first : last;
    }
    HX_CHECK(first > 1e-3, "the first round was not coded at 4 bits: error %g", first);
    if (arg)
        HX_CHECK(last < first / 20 && hx_log_count("goes on with 8 bits", NULL) == 1,
                 "error %g of 4 bits stayed %g", first, last);
    else
        HX_CHECK(last > first / 4 && hx_log_count("goes on with 8 bits", NULL) == 0,
                 "error %g of 4 bits became %g", first, last);
    return sx_close(lib, comm, false);
}

/* Four bits leave 0.006 of these data's energy. */
static int fallback(void)
{
    static const char *const tight[] = {"NIBBLE_FALLBACK_NMSE=0.003", "NIBBLE_MIN_BYTES=0", NULL};
    static const char *const usual[] = {"NIBBLE_MIN_BYTES=0", NULL};

    return sx_job("error above the limit", NODES, fallback_node, (void *)"", tight) ||
           sx_job("error below the limit", NODES, fallback_node, NULL, usual);
}

/* Contributions that cancel: every second node has the values of the others with the other sign, and each a
 * little of its own. Four bits then leave more than the sum's energy. */
struct cancel {
    bool falls_back, cancels;
    double near; /* most by which the reported error is off, as a factor */
};

enum { CANCEL = 20011, CANCEL_ROUNDS = 90 };

/* Make a block of a node. */
static void cancel_block(const struct cancel *c, int round, int rank, int block, float *out)
{
    static float own[CANCEL];
    struct sx_spec spec = {
        .func = HX_REDUCE_SCATTER, .type = ncclFloat32, .count = CANCEL, .fill = HX_FILL_NORMAL};

    spec.seed = 1000 + (uint64_t)round;
    sx_block(&spec, c->cancels ? 0 : rank, block, out);
    spec.seed = 2000 + (uint64_t)round;
    sx_block(&spec, rank, block, own);
    for (size_t i = 0; i < CANCEL; i++)
        out[i] = (rank % 2 ? -out[i] : out[i]) + 0.05f * own[i];
}

static int cancel_once(struct hx_node *node, struct hx_comm *comm, const struct cancel *c, int round,
                       double *nmse)
{
    static float block[CANCEL];
    static double sum[CANCEL];
    struct sx_spec spec = {
        .func = HX_REDUCE_SCATTER, .type = ncclFloat32, .count = CANCEL, .fill = HX_FILL_EXACT};
    double error = 0, energy = 0;
    struct sx_run run;
    ncclResult_t ret;

    sx_prepare(node, &spec, &run);
    memset(sum, 0, sizeof(sum));
    for (int r = 0; r < node->nnodes; r++) {
        cancel_block(c, round, node->rank, r, (float *)(void *)run.send + (size_t)r * CANCEL);
        cancel_block(c, round, r, node->rank, block);
        for (size_t i = 0; i < CANCEL; i++)
            sum[i] += (double)block[i];
    }
    hx_where("round %d", round);
    ret = hx_run(comm, &run.op);
    HX_CHECK(ret == ncclSuccess, "round %d: result %d", round, (int)ret);
    for (size_t i = 0; i < CANCEL; i++) {
        error += pow((double)((const float *)(const void *)run.recv)[i] - sum[i], 2);
        energy += sum[i] * sum[i];
    }
    *nmse = error / energy;
    sx_free(&run);
    return 0;
}

static int cancel_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 256 << 10};
    const struct cancel *c = arg;
    double first = 0, last = 0;
    struct hx_lib *lib;
    struct hx_comm *comm;
    char line[1024];
    const char *at;

    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    for (int round = 0; round < CANCEL_ROUNDS; round++) {
        if (cancel_once(node, comm, c, round, &last))
            return 1;
        first = round ? first : last;
    }
    HX_CHECK(c->cancels ? first > 0.3 : first < 0.02, "the first sum has an error of %g of its energy",
             first);
    HX_CHECK(hx_log_count("goes on with 8 bits", "since contributions cancel") == c->falls_back, "8 bits: %d",
             !c->falls_back);
    HX_CHECK(c->falls_back ? last < first / 50 : last > first / 4, "error %g of 4 bits became %g", first,
             last);
    if (sx_close(lib, comm, false))
        return 1;
    hx_log_first("sum_nmse=", line, sizeof(line));
    at = strstr(line, "sum_nmse=");
    HX_CHECK(at && atof(at + 9) > first / c->near && atof(at + 9) < c->near * first, "first error %g: %s",
             first, line);
    return 0;
}

static int cancelling(void)
{
    static const char *const usual[] = {"NIBBLE_MIN_BYTES=0", NULL};
    static const char *const two_hop[] = {"NIBBLE_MIN_BYTES=0", "NIBBLE_SCHEDULE=two-hop", NULL};
    static const char *const four[] = {"NIBBLE_MIN_BYTES=0", "NIBBLE_SCHEDULE=two-hop",
                                       "NIBBLE_SECOND_HOP=int4", NULL};
    static const struct cancel yes = {true, true, 4}, apart = {false, false, 1.25};

    return sx_job("cancelling contributions", 4, cancel_node, (void *)&yes, usual) ||
           sx_job("two hops", 4, cancel_node, (void *)&yes, two_hop) ||
           sx_job("independent contributions", 4, cancel_node, (void *)&apart, usual) ||
           sx_job("independent contributions, second hop of 4 bits", 4, cancel_node, (void *)&apart, four);
}

/* ---- NIBBLE_CONTROL ---- */

static char control_path[64];

static int write_word(const char *word)
{
    int fd = open(control_path, O_WRONLY | O_TRUNC);
    int bad = fd < 0 || write(fd, word, strlen(word)) < 0;

    if (fd >= 0)
        close(fd);
    HX_CHECK(!bad, "cannot write %s", control_path);
    return 0;
}

/* Run rounds until all nodes get sums with a coding error, or without one when coded is 0. */
static int until(struct hx_node *node, struct hx_comm *comm, int *round, int coded)
{
    double begin = hx_now(), all[HX_MAX_NODES];

    for (;;) {
        double nmse = 1;
        int n = 0;

        if (error_of_one(node, comm, (*round)++, &nmse))
            return 1;
        hx_allgather(node, &nmse, sizeof nmse, all);
        for (int r = 0; r < node->nnodes; r++)
            n += coded ? all[r] > 1e-4 : all[r] < EXACT;
        if (n == node->nnodes)
            return 0;
        HX_CHECK(hx_now() - begin < HX_SOON_S, "compression is not switched %s", coded ? "on" : "off");
        hx_sleep(0.02);
    }
}

static int switch_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 256 << 10};
    struct hx_lib *lib;
    struct hx_comm *comm;
    int round = 0;

    (void)arg;
    if (sx_open(node, &cfg, &lib, &comm))
        return 1;
    for (int turn = 0; turn < 2; turn++) {
        if (until(node, comm, &round, 1))
            return 1;
        hx_barrier(node);
        if (node->rank == 1 && write_word("off\n"))
            return 1;
        if (until(node, comm, &round, 0))
            return 1;
        hx_barrier(node);
        if (node->rank == 1 && write_word(turn ? "perhaps\n" : "on\n"))
            return 1;
    }
    while (node->rank == 1 && !hx_log_count("instead of on or off", control_path))
        hx_sleep(0.02); /* the plugin looks once a second */
    hx_barrier(node);   /* an unknown word must change nothing */
    if (until(node, comm, &round, 0))
        return 1;
    HX_CHECK(hx_log_warns() == (node->rank == 1), "%d warnings", hx_log_warns());
    HX_CHECK(node->rank != 1 || hx_log_count("instead of on or off", control_path) == 1,
             "nothing says what is wrong");
    HX_CHECK(hx_log_count("compression is switched off from about operation", NULL) == 2,
             "off is not logged twice");
    if (node->rank == 0)
        HX_CHECK(hx_log_count("compression is switched on on all nodes", NULL) == 1 &&
                     hx_log_count("compression is switched off on all nodes", NULL) == 2,
                 "node 0 does not tell that all have switched");
    return sx_close(lib, comm, true);
}

/* Only one node has the file. */
static int kill_switch(int nnodes, const char *const *env)
{
    static char setting[96];
    static const char *const control[] = {setting, NULL};
    struct hx_job job = {
        .name = "switch", .nnodes = nnodes, .fn = switch_node, .env = env, .node_env = {[1] = control}};
    int fd, rc;

    snprintf(control_path, sizeof control_path, "/tmp/nibble-control-XXXXXX");
    fd = mkstemp(control_path);
    if (fd < 0)
        return 1;
    close(fd);
    snprintf(setting, sizeof setting, "NIBBLE_CONTROL=%s", control_path);
    rc = hx_job_run(&job, NULL);
    unlink(control_path);
    return rc;
}

HX_CASE(switch_direct, kill_switch(NODES, HX_ENV("NIBBLE_MIN_BYTES=0")))

/* Node 0 and the nodes outside its row and column hear of each other through nodes between them. */
HX_CASE(switch_two_level, kill_switch(6, HX_ENV("NIBBLE_MIN_BYTES=0", "NIBBLE_SCHEDULE=two-level")))

HX_MAIN({"comms-excluded", comms_excluded, 0}, {"comms-included", comms_included, 0},
        {"nothing-to-gain", nothing_to_gain, 0}, {"something-to-gain", something_to_gain, 0},
        {"bad-rules", bad_rules, 0}, {"shadow", shadow, 0}, {"fallback", fallback, HX_CASE_SLOW},
        {"cancelling", cancelling, HX_CASE_FULL}, {"switch", switch_direct, 0},
        {"switch-two-level", switch_two_level, 0})
