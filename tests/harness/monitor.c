/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that a running job writes about itself. Metrics must agree with the summary at close. The merged hang
 * reports of the other nodes must name a stopped node. A pipe, or a file in place of the folder, must delay
 * no operation.
 */
#include <dirent.h>
#include <fnmatch.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/suite.h"
#include "tests/base/folder.h"

#define NODES 3

static char dir[64], metrics[96], report[96];

static int make_dir(void)
{
    HX_CHECK(folder_make(dir, "monitor"), "no folder");
    snprintf(metrics, sizeof metrics, "NIBBLE_METRICS=%s", dir);
    snprintf(report, sizeof report, "NIBBLE_HANG_REPORT=%s", dir);
    return 0;
}

static void remove_dir(void)
{
    DIR *d = opendir(dir);
    char path[400];

    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            remove(path);
    }
    if (d)
        closedir(d);
    rmdir(dir);
}

/* Find the file of process `pid` whose name has this ending, "" when it does not exist. In a container more
 * characters follow the number. */
static void find_file(int pid, const char *ending, char *path, size_t cap)
{
    DIR *d = opendir(dir);
    char plain[64], contained[64];

    path[0] = 0;
    snprintf(plain, sizeof plain, "nibble-*-%d.%s", pid, ending);
    snprintf(contained, sizeof contained, "nibble-*-%d-????????.%s", pid, ending);
    for (struct dirent *e; d && (e = readdir(d));)
        if (fnmatch(plain, e->d_name, 0) == 0 || fnmatch(contained, e->d_name, 0) == 0)
            snprintf(path, cap, "%s/%s", dir, e->d_name);
    if (d)
        closedir(d);
}

/* ---- metrics ------------------------------------------------------------------------------------------- */

/* Return the value of the sample whose line has all of these, -1 when it does not exist. */
static double sample(const char *path, const char *name, const char *label1, const char *label2)
{
    FILE *f = fopen(path, "re");
    char line[1024], begin[128];
    double value = -1;

    snprintf(begin, sizeof begin, "nibble_%s{", name);
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, begin, strlen(begin)) == 0 && strstr(line, label1) && strstr(line, label2))
            value = atof(strrchr(line, ' ') + 1);
    if (f)
        fclose(f);
    return value;
}

/* Return the number behind `key` in the part of the line that begins with `from`, -1 when it does not
 * exist. */
static double of_line(const char *line, const char *from, const char *key)
{
    const char *at = strstr(line, from);

    at = at ? strstr(at, key) : NULL;
    return at ? atof(at + strlen(key)) : -1;
}

static int agree(const char *path, const char *what, double metric, double summary, double within)
{
    HX_CHECK(metric >= 0 && summary >= 0, "%s: %g in the metrics, %g in the summary", what, metric, summary);
    HX_CHECK(metric >= summary - within && metric <= summary + within,
             "%s: %.9g in the metrics, %.9g in the summary: %s", what, metric, summary, path);
    return 0;
}

static int compare(const char *path)
{
    static const struct {
        const char *metric, *func, *collective, *key;
    } of_func[] = {
        {"operations_total", " reduce_scatter ops=", "\"ReduceScatter\"", "ops="},
        {"coded_operations_total", " reduce_scatter ops=", "\"ReduceScatter\"", "coded="},
        {"windows_total", " reduce_scatter ops=", "\"ReduceScatter\"", "windows="},
        {"sent_bytes_total", " reduce_scatter ops=", "\"ReduceScatter\"", "bytes="},
        {"wire_bytes_total", " reduce_scatter ops=", "\"ReduceScatter\"", "wire="},
        {"operations_total", " all_gather ops=", "\"AllGather\"", "ops="},
        {"sent_bytes_total", " all_gather ops=", "\"AllGather\"", "bytes="},
        {"wire_bytes_total", " all_gather ops=", "\"AllGather\"", "wire="},
    };
    static const struct {
        const char *metric, *line, *key;
        double within;
    } of_comm[] = {
        {"busy_seconds_total", ": time busy_s=", "busy_s=", 1e-6},
        {"processor_seconds_total", ": time busy_s=", "processor_s=", 1e-6},
        {"processor_share", ": time busy_s=", "share=", 0.0051},
        {"feedback_operations_total", ": feedback ops=", "ops=", 0},
        {"code_error_ratio", ": feedback ops=", "nmse=", 0.0000051},
        {"carried_error_ratio", ": feedback ops=", "carried=", 0.00051},
        {"feedback_bytes", ": feedback ops=", "state_bytes=", 0},
        {"reference_bytes", ": references slots=", "state_bytes=", 0},
        {"reference_hits_total", ": references slots=", "hit=", 0},
        {"payloads_checked_total", ": payload checked=", "checked=", 0},
    };
    char line[1024], rule[128] = "";
    const char *at;

    hx_log_first(" reduce_scatter ops=", line, sizeof line);
    for (size_t i = 0; i < sizeof of_func / sizeof of_func[0]; i++)
        if (agree(path, of_func[i].metric, sample(path, of_func[i].metric, of_func[i].collective, ""),
                  of_line(line, of_func[i].func, of_func[i].key), 0))
            return 1;
    for (size_t i = 0; i < sizeof of_comm / sizeof of_comm[0]; i++) {
        hx_log_first(of_comm[i].line, line, sizeof line);
        if (agree(path, of_comm[i].metric, sample(path, of_comm[i].metric, "", ""),
                  of_line(line, of_comm[i].line, of_comm[i].key), of_comm[i].within))
            return 1;
    }
    hx_log_first("signature reduce_scatter:", line, sizeof line);
    at = strstr(line, "signature ");
    sscanf(at ? at : "", "signature %127[^ ]", rule);
    if (rule[0])
        rule[strlen(rule) - 1] = 0; /* the colon */
    return agree(path, "a signature's operations",
                 sample(path, "signature_operations_total", rule, "signature="),
                 of_line(line, "signature ", "ops="), 0) ||
           agree(path, "a signature's bytes", sample(path, "signature_wire_bytes_total", rule, "signature="),
                 of_line(line, "signature ", "wire="), 0) ||
           agree(path, "a signature's error", sample(path, "signature_code_error_ratio", rule, "signature="),
                 of_line(line, "signature ", "nmse="), 0.0000051);
}

static int some_operations(struct hx_node *node, struct hx_comm *comm)
{
    for (int round = 0; round < 5; round++) {
        struct sx_spec sum = {.func = HX_REDUCE_SCATTER,
                              .type = ncclFloat32,
                              .count = 20011,
                              .fill = HX_FILL_NORMAL,
                              .seed = 100 + (uint64_t)round,
                              .max_nmse = 1};
        struct sx_spec gather = {.func = HX_ALL_GATHER,
                                 .type = ncclBfloat16,
                                 .count = 200003,
                                 .fill = HX_FILL_NORMAL,
                                 .seed = (uint64_t)round / 2};
        if (sx_do(node, comm, &sum, NULL) || sx_do(node, comm, &gather, NULL))
            return 1;
    }
    return 0;
}

static int metrics_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 256 << 10};
    struct hx_lib *lib;
    struct hx_comm *comm;
    char path[400] = "";

    (void)arg;
    if (sx_open(node, &cfg, &lib, &comm) || some_operations(node, comm))
        return 1;
    hx_where("waiting for the metrics of a running job");
    do { /* also while it runs */
        hx_sleep(0.01);
        find_file(getpid(), "prom", path, sizeof path);
    } while (!path[0] || sample(path, "operations_total", "\"AllGather\"", "") < 5);
    HX_CHECK(sample(path, "closed", "", "") == 0, "said to be closed");
    if (sx_close(lib, comm, false))
        return 1;
    HX_CHECK(sample(path, "closed", "", "") == 1, "the last state was not written");
    return compare(path);
}

static int metrics_agree(void)
{
    const char *const env[] = {metrics, "NIBBLE_METRICS_PERIOD=1", "NIBBLE_MIN_BYTES=0",
                               "NIBBLE_EF_IDENTITY=signature", NULL};
    int rc = make_dir() || sx_job("metrics", NODES, metrics_node, NULL, env);

    remove_dir();
    return rc;
}

/* ---- unwritable folders -------------------------------------------------------------------------------- */

static int blocked_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 256 << 10};
    struct hx_lib *lib;
    struct hx_comm *comm;

    (void)arg;
    if (sx_open(node, &cfg, &lib, &comm) || some_operations(node, comm))
        return 1;
    while (hx_log_count("NIBBLE_METRICS: cannot write", NULL) < 1 ||
           hx_log_count("NIBBLE_HANG_REPORT: cannot write", NULL) < 1)
        hx_sleep(0.01);
    hx_sleep(2.2); /* long enough for another try */
    if (sx_close(lib, comm, true))
        return 1;
    HX_CHECK(hx_log_warns() == 2, "%d warnings instead of two", hx_log_warns());
    return 0;
}

static int blocked(void)
{
    char pipe[128], none[128], to_pipe[160], to_none[160];
    const char *const env[] = {
        to_pipe, to_none, "NIBBLE_METRICS_PERIOD=1", "NIBBLE_LATE_REPORT=1", "NIBBLE_MIN_BYTES=0", NULL};
    int rc = make_dir();

    snprintf(pipe, sizeof pipe, "%s/pipe", dir);
    snprintf(none, sizeof none, "%s/none", dir);
    snprintf(to_pipe, sizeof to_pipe, "NIBBLE_METRICS=%s", pipe);
    snprintf(to_none, sizeof to_none, "NIBBLE_HANG_REPORT=%s", none);
    rc = rc || mkfifo(pipe, 0600) || sx_job("blocked", NODES, blocked_node, NULL, env);
    remove_dir();
    return rc;
}

static int bad_node(struct hx_node *node, void *arg)
{
    struct hx_lib *lib = hx_lib_open(NULL, 0);
    struct hx_ctx ctx;

    (void)node;
    HX_CHECK(lib && hx_init(lib, 5, &ctx) == ncclSuccess, "init");
    HX_CHECK(hx_log_count(arg, NULL) == 1, "no line of the log says \"%s\"", (const char *)arg);
    HX_CHECK(hx_finalize(lib, &ctx) == ncclSuccess, "finalize");
    hx_lib_close(lib);
    return 0;
}

static int bad_settings(void)
{
    static const char *const period[] = {"NIBBLE_METRICS=/tmp", "NIBBLE_METRICS_PERIOD=0", NULL};
    static const char *const pointless[] = {"NIBBLE_METRICS_PERIOD=3", NULL};

    return sx_job("bad period", 1, bad_node, (void *)"NIBBLE_METRICS_PERIOD=0: it must be an integer from 1",
                  period) ||
           sx_job("pointless", 1, bad_node, (void *)"setting NIBBLE_METRICS_PERIOD has no effect", pointless);
}

/* ---- a hang -------------------------------------------------------------------------------------------- */

/* Run nibble-hang on the folder, copy its output to `text`, and return its exit status. */
static int run_hang(char *text, size_t cap)
{
    const char *build = getenv("NB_BUILDDIR");
    char command[400];
    FILE *f;
    size_t n;
    int status;

    snprintf(command, sizeof command, "%s/tools/nibble-hang %s", build ? build : ".", dir);
    f = popen(command, "re");
    if (!f)
        return -1;
    n = fread(text, 1, cap - 1, f);
    text[n] = 0;
    status = pclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

struct stand {
    bool stop; /* SIGSTOP. Otherwise the node only calls late */
};

/* Node 1 is stopped, or calls late. The other nodes wait for it, and their reports must say so. */
static int hang_node(struct hx_node *node, void *arg)
{
    const struct stand *stand = arg;
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 64 << 10};
    struct sx_spec spec = {.func = HX_ALL_REDUCE, .type = ncclFloat32, .count = 50021, .fill = HX_FILL_EXACT};
    static char text[65536];
    struct hx_lib *lib;
    struct hx_comm *comm;
    const char *end;
    struct sx_run run;

    if (sx_open(node, &cfg, &lib, &comm) || sx_do(node, comm, &spec, NULL))
        return 1;
    hx_barrier(node);
    if (node->rank == 1 && stand->stop)
        raise(SIGSTOP);
    sx_prepare(node, &spec, &run);
    if (node->rank != 1)
        HX_CHECK(hx_post(comm, &run.op) == ncclSuccess, "post");
    if (node->rank == 0) {
        hx_where("waiting until node 1 is named");
        do {
            hx_sleep(0.1);
        } while (run_hang(text, sizeof text) != 1 || !strstr(text, "node 1 (") ||
                 !strstr(text, "reports of 2") != !stand->stop ||
                 (stand->stop && !strstr(text, "last heard of")) ||
                 (!stand->stop && !strstr(text, "waits for nobody")) || !strstr(text, "waiting=2"));
        end = strstr(text, "who waits for whom");
        HX_CHECK(end && strncmp(text, "all wait for\n  node 1 (", 23) == 0, "another one is named: %s", text);
        HX_CHECK(strchr(text + 14, '\n') + 1 == end, "not only node 1 is named: %s", text);
        if (stand->stop)
            kill(hx_pid(node, 1), SIGCONT);
    }
    if (!stand->stop)
        hx_barrier(node);
    if (node->rank == 1)
        HX_CHECK(hx_post(comm, &run.op) == ncclSuccess, "post");
    HX_CHECK(hx_wait(comm, &run.op, HX_SOON_S) == ncclSuccess, "the operation failed");
    sx_free(&run);
    return sx_close(lib, comm, false);
}

static int hang(bool stop)
{
    struct stand stand = {stop};
    const char *const env[] = {report, "NIBBLE_LATE_REPORT=2", "NIBBLE_PEER_TIMEOUT=" HX_LONG,
                               "NIBBLE_AR=raw", NULL};
    int rc = make_dir() || sx_job(stop ? "stopped" : "late", NODES, hang_node, &stand, env);

    remove_dir();
    return rc;
}

HX_CASE(stopped_is_named, hang(true))
HX_CASE(late_is_named, hang(false))

/* Node 1 is stopped so long that the other nodes' communicators fail. These nodes close them at once. */
static int failed_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 64 << 10};
    struct sx_spec spec = {.func = HX_ALL_REDUCE, .type = ncclFloat32, .count = 50021, .fill = HX_FILL_EXACT};
    static char text[65536];
    struct hx_lib *lib;
    struct hx_comm *comm;
    struct sx_run run;

    (void)arg;
    if (sx_open(node, &cfg, &lib, &comm) || sx_do(node, comm, &spec, NULL))
        return 1;
    hx_barrier(node);
    if (node->rank == 1)
        raise(SIGSTOP);
    sx_prepare(node, &spec, &run);
    if (node->rank != 1) {
        HX_CHECK(hx_post(comm, &run.op) == ncclSuccess, "post");
        HX_CHECK(hx_wait(comm, &run.op, HX_SOON_S) != ncclSuccess, "the operation was done without node 1");
    }
    hx_comm_close(comm);
    if (node->rank == 0) {
        hx_where("waiting until node 1 is named");
        do {
            hx_sleep(0.1);
        } while (run_hang(text, sizeof text) != 1 || !strstr(text, "waiting=2"));
        HX_CHECK(strncmp(text, "all wait for\n  node 1 (", 23) == 0 && strstr(text, "last heard of"),
                 "another one is named: %s", text);
        HX_CHECK(strstr(text, "failed=no sign of life from node 1"), "the cause is not there: %s", text);
        kill(hx_pid(node, 1), SIGCONT);
    }
    sx_free(&run);
    hx_lib_close(lib);
    return 0;
}

static int failed_is_named(void)
{
    const char *const env[] = {report, "NIBBLE_PEER_TIMEOUT=7", "NIBBLE_AR=raw", NULL};
    int rc = make_dir() || sx_job("failed", NODES, failed_node, NULL, env);

    remove_dir();
    return rc;
}

HX_MAIN({"metrics-agree", metrics_agree, 0}, {"blocked", blocked, 0}, {"bad-settings", bad_settings, 0},
        {"stopped-is-named", stopped_is_named, 0}, {"late-is-named", late_is_named, 0},
        {"failed-is-named", failed_is_named, 0})
