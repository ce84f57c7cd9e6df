/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that a node writes about itself while it runs: their existence, their content, their occasions. The
 * node does not wait for a folder that cannot be written, is a pipe, or lies on a file system that does not
 * answer. An open() of this program, which waits, stands for that file system. Two nodes in one process are
 * connected in memory. Node 0 has the runner and writes. The test steps node 1.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/system.h"
#include "coll/comm/stats.h"
#include "coll/report/report.h"
#include "tests/base/capture.h"
#include "tests/base/folder.h"
#include "tests/coll/cluster.h"
#include "tests/net/hanging.h"
#include "tests/net/loopback.h"
#include "tests/suite.h"

#define VALUES 4096u

static struct cluster cluster;
static struct cluster_node *const node = cluster.node;

static char dir[64], file[160], text[1 << 20];
static atomic_bool dead; /* the file system does not answer */
static atomic_int waiting, left;
static float region[2][VALUES], out[2][VALUES];

/* Takes the place of the C library's. */
int open(const char *name, int flags, ...)
{
    int fd;

    if (atomic_load(&dead) && strstr(name, "/nibble-")) {
        atomic_store(&waiting, 1);
        while (atomic_load(&dead))
            usleep(1000);
        atomic_fetch_add(&left, 1);
    }
    fd = (int)syscall(SYS_openat, AT_FDCWD, name, flags, 0600);
    return fd;
}

static atomic_int accept_error; /* 0: none */

/* Takes the place of the C library's. */
int accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags)
{
    errno = atomic_load(&accept_error);
    return errno ? -1 : (int)syscall(SYS_accept4, fd, addr, len, flags);
}

static void setup(void)
{
    ck_assert_ptr_nonnull(folder_make(dir, "monitor"));
    capture_reset();
    atomic_store(&dead, false);
    hanging_set(false);
    atomic_store(&waiting, 0);
    atomic_store(&left, 0);
    nb_log_set(capture_log);
    cluster_begin(&cluster);
    cluster_add(&cluster, &nb_runner_thread, &hanging_ops);
    cluster_add(&cluster, NULL, &loopback_ops);
    for (int i = 0; i < 2; i++) {
        node[i].ctx.clock = (struct nb_clock){NULL, NULL};
        node[i].ctx.host = "host/0"; /* a name that a file cannot have */
    }
    snprintf(node[0].ctx.label, sizeof(node[0].ctx.label), "first");
}

static void teardown(void)
{
    DIR *d = opendir(dir);

    cluster_close(&cluster);
    nb_log_set(NULL);
    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(file, sizeof(file), "%s/%.80s", dir, e->d_name);
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
            ck_assert_int_eq(remove(file), 0);
    }
    closedir(d);
    rmdir(dir);
}

/* Return the path of node 0's file. */
static const char *path_of(const char *ending)
{
    char process[NB_PROCESS_NAME];

    nb_process_name(process);
    snprintf(file, sizeof(file), "%s/nibble-host_0-%s-first.%s", dir, process, ending);
    return file;
}

static void step_other(void)
{
    nb_engine_step(node[1].ctx.engine, nb_clock_ns(&node[1].ctx.clock));
}

/* Both at a time: a node whose FIN is acknowledged may leave before the FIN of the other one comes, and only
 * the end of its connections tells the other one. */
static void close_both(void)
{
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(nb_coll_close_begin(node[i].comm), 0);
    while (node[0].comm || node[1].comm) {
        for (int i = 0; i < 2; i++)
            if (node[i].comm && nb_coll_close_step(node[i].comm) == 0)
                node[i].comm = NULL;
        if (node[1].comm)
            step_other();
        usleep(100);
    }
}

static struct nb_coll_req *post(int i)
{
    struct nb_coll_req *req;

    ck_assert_int_eq(nb_coll_iallreduce(node[i].comm, region[i], out[i], VALUES, ncclFloat32, ncclSum, &req),
                     0);
    ck_assert_ptr_nonnull(req);
    return req;
}

static void wait_for(struct nb_coll_req *req)
{
    int done = 0;

    while (!done) {
        ck_assert_int_eq(nb_coll_test(req, &done, NULL), 0);
        step_other();
    }
}

/* Let node 1 take its part in node 0's operation, and wait for both. */
static void answer(struct nb_coll_req *mine)
{
    struct nb_coll_req *other = post(1);

    wait_for(mine);
    wait_for(other);
}

/* Wait until node 0's file contains `what` (NULL: any text). Return its text. */
static const char *until(const char *ending, const char *what)
{
    for (;; usleep(1000)) {
        FILE *f = fopen(path_of(ending), "re");
        size_t n = f ? fread(text, 1, sizeof(text) - 1, f) : 0;

        if (f)
            fclose(f);
        text[n] = 0;
        if (n && (!what || strstr(text, what)))
            return text;
        if (node[1].comm)
            step_other();
    }
}

static void touch(void)
{
    char name[128];
    FILE *f;

    snprintf(name, sizeof(name), "%s/nibble-report-now", dir);
    f = fopen(name, "a");
    ck_assert_ptr_nonnull(f);
    fputs("x", f);
    fclose(f);
}

static void expect_warnings(int n)
{
    ck_assert_msg(capture_warned() == n, "not %d warnings:\n%s", n, capture_text);
}

/* ---- tests --------------------------------------------------------------------------------------------- */

/* Files appear soon. The last state, when all is closed, equals the counters. */
START_TEST(metrics)
{
    struct nb_coll_stats stats;
    struct nb_coll_req *mine;
    char line[256];

    node[0].params.metrics = dir;
    node[0].params.metrics_period = 1;
    cluster_connect_alone(&cluster);
    until("prom", "nibble_open_windows{");
    mine = post(0);
    until("prom", "nibble_late_peer{");
    answer(mine);
    until("prom", "nibble_operations_total{");
    nb_coll_get_stats(node[0].comm, &stats);
    close_both();
    until("prom", "nibble_closed{"); /* written before close returned */
    ck_assert_ptr_nonnull(strstr(text,
                                 "comm=\"0x11\",serial=\"1\",dev=\"0\",n_nodes=\"2\",node_rank=\"0\",nranks="
                                 "\"unknown\"} 1\n"));
    snprintf(line, sizeof(line), "collective=\"AllReduce\"} %llu\n",
             (unsigned long long)stats.func[NB_FUNC_ALL_REDUCE].wire_bytes);
    ck_assert_ptr_nonnull(strstr(strstr(text, "nibble_wire_bytes_total{"), line));
    ck_assert_int_ne(access(path_of("prom.tmp"), F_OK), 0);
    expect_warnings(0);
}
END_TEST

/* One line names the setting, however often the plugin tries. Connect, operations and close go on. */
static void not_written(void)
{
    node[0].params.metrics_period = 1;
    node[0].params.late_report = 1;
    cluster_connect_alone(&cluster);
    answer(post(0));
    while (!capture_warned())
        usleep(1000);
    usleep(2200000); /* likely time for a second try */
    close_both();
}

START_TEST(no_folder)
{
    char missing[128];

    snprintf(missing, sizeof(missing), "%s/none", dir);
    node[0].params.metrics = missing;
    not_written();
    expect_warnings(1);
    ck_assert(capture_has("NIBBLE_METRICS"));
    ck_assert(capture_has(missing));
    ck_assert(capture_has("No such file or directory"));
}
END_TEST

START_TEST(folder_is_a_pipe)
{
    char pipe[128];

    snprintf(pipe, sizeof(pipe), "%s/pipe", dir);
    ck_assert_int_eq(mkfifo(pipe, 0600), 0);
    node[0].params.hang_report = pipe;
    not_written();
    expect_warnings(1);
    ck_assert(capture_has("NIBBLE_HANG_REPORT"));
}
END_TEST

/* A file system does not answer, while the job runs and when it ends. */
START_TEST(dead_mount)
{
    node[0].params.metrics = dir;
    atomic_store(&dead, true);
    cluster_connect_alone(&cluster);
    while (!atomic_load(&waiting))
        usleep(1000);
    answer(post(0));
    close_both();
    expect_warnings(1);
    ck_assert(capture_has("left behind"));
    ck_assert_int_eq(atomic_load(&left), 0);
    atomic_store(&dead, false);
    until("prom", "nibble_closed{"); /* the thread ends after all, and frees its memory */
    usleep(100000);
}
END_TEST

/* Connect to node 0's socket. Return it, or -1 where there is none. */
static int dial(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char process[NB_PROCESS_NAME];
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int length;

    nb_process_name(process);
    length = snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, NB_LIVE_PREFIX "%s-first", process);
    if (connect(fd, (struct sockaddr *)&address,
                (socklen_t)offsetof(struct sockaddr_un, sun_path) + 1 + (socklen_t)length) == 0)
        return fd;
    close(fd);
    return -1;
}

/* Read to the end. */
static const char *hear(int fd)
{
    size_t n = 0;
    ssize_t got;

    while ((got = recv(fd, text + n, sizeof(text) - 1 - n, 0)) > 0)
        n += (size_t)got;
    text[n] = 0;
    close(fd);
    return text;
}

/* Without any setting the process shows its metrics to those who ask. A caller that only connects delays
 * neither the engine nor the next caller for long. A node that is waited for is late. The socket goes with
 * the last communicator. */
START_TEST(live)
{
    struct nb_coll_req *mine;
    int silent;

    cluster_connect_alone(&cluster);
    silent = dial();
    ck_assert_int_ge(silent, 0);
    mine = post(0);
    do
        hear(dial());
    while (!strstr(text, "nibble_waited_for_total{"));
    ck_assert_ptr_nonnull(strstr(text, "nibble_info{"));
    ck_assert_ptr_nonnull(strstr(strstr(text, "\nnibble_waited_for_total{"), ",peer=\"1\"} "));
    answer(mine);
    close_both();
    close(silent);
    ck_assert_int_eq(dial(), -1);
    expect_warnings(0);
}
END_TEST

/* Where a filter refuses accept4 the log says so once, and callers find no socket instead of waiting for an
 * answer. Errors of one caller change nothing. */
START_TEST(live_denied)
{
    atomic_store(&accept_error, ECONNABORTED);
    cluster_connect_alone(&cluster);
    for (int i = 0; i < 3; i++)
        usleep(400000);
    atomic_store(&accept_error, 0);
    hear(dial());
    ck_assert_ptr_nonnull(strstr(text, "nibble_info{"));
    atomic_store(&accept_error, EPERM);
    while (!capture_has("allow the system call accept4"))
        usleep(10000);
    ck_assert_int_eq(dial(), -1);
    atomic_store(&accept_error, 0);
    close_both();
}
END_TEST

START_TEST(live_off)
{
    node[0].params.live = 0;
    cluster_connect_alone(&cluster);
    ck_assert_int_eq(dial(), -1);
    close_both();
}
END_TEST

/* Which node waits for which: written when one is late, and on request. */
START_TEST(reports)
{
    struct nb_coll_req *mine;

    node[0].params.hang_report = dir;
    node[0].params.late_report = 1;
    cluster_connect_alone(&cluster);
    mine = post(0);
    until("report", "why=late");
    ck_assert_ptr_nonnull(strstr(text, "report format=1 pid="));
    ck_assert_ptr_nonnull(strstr(text, "\ncomm id=0x11 group="));
    ck_assert_ptr_nonnull(
        strstr(text, " node=0 of=2 state=running submitted=1 finished=0 begun=1 oldest=0 next_op=1 "));
    ck_assert_ptr_nonnull(strstr(text, "\nwindow function=all_reduce op=0 bytes=16384 at=0 waited="));
    ck_assert_ptr_nonnull(strstr(text, "\npeer node=1 missing=yes gone=no silent="));
    ck_assert_ptr_nonnull(strstr(text, "\nend comms=1\n"));
    ck_assert_int_eq(access(path_of("prom"), F_OK), -1);
    answer(mine);
    until("report", "why=quiet"); /* an idle state is written too: other nodes may wait for this one */
    ck_assert_ptr_nonnull(strstr(text, "finished=1 begun=1 oldest=1 next_op=1"));
    ck_assert_ptr_null(strstr(text, "\nwindow"));
    ck_assert_ptr_nonnull(strstr(text, "\npeer node=1 missing=no"));
    close_both();
}
END_TEST

/* NCCL gives up and closes at once. The node still writes the awaited thing. */
START_TEST(gave_up)
{
    node[0].params.hang_report = dir;
    cluster_connect_alone(&cluster);
    post(0);
    close_both();
    ck_assert_ptr_nonnull(strstr(until("report", NULL), "why=failed"));
    ck_assert_ptr_nonnull(strstr(text, " state=failed submitted=1 finished=0 "));
    ck_assert_ptr_nonnull(strstr(text, "cause=\"the communicator was closed with unfinished operations\""));
    ck_assert_ptr_nonnull(strstr(text, "\nend comms=1\n"));
}
END_TEST

START_TEST(asked_for)
{
    touch(); /* a file that exists at the start is not a request */
    node[0].params.hang_report = dir;
    cluster_connect_alone(&cluster);
    usleep(1500000);
    ck_assert_int_ne(access(path_of("report"), F_OK), 0);
    touch();
    until("report", "why=asked");
    close_both();
}
END_TEST

/* An engine hangs and holds the lock of its communicators. */
START_TEST(stuck)
{
    struct nb_coll_req *mine;

    node[0].params.hang_report = dir;
    node[0].params.metrics = dir;
    node[0].params.metrics_period = 1;
    node[0].params.late_report = 2;
    cluster_connect_alone(&cluster);
    hanging_set(true);
    mine = post(0);
    until("report", "why=stuck");
    ck_assert_ptr_nonnull(strstr(text, " state=locked submitted=1 finished=0 name="));
    ck_assert_ptr_nonnull(strstr(text, " still="));
    until("prom", "nibble_written_timestamp_seconds"); /* with the facts known before */
    hanging_set(false);
    answer(mine);
    close_both();
}
END_TEST

static int forked_child; /* this process lacks the threads of its parent */

/* The leak sanitizer asks this before it looks for lost memory. In a child of fork it would report the memory
 * of threads that only the parent has. Without the sanitizer nothing calls it. */
__attribute__((visibility("default"))) int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return forked_child;
}

/* A child of fork lacks the thread that writes the files. Its exit does not wait for that thread. */
START_TEST(forked)
{
    int status;

    node[0].params.metrics = dir;
    node[0].params.hang_report = dir;
    cluster_connect_alone(&cluster);
    until("prom", NULL);
    atomic_store(&dead, true);
    while (!atomic_load(&waiting)) /* the thread holds the text of a file */
        usleep(1000);
    const pid_t child = fork();
    if (child == 0) {
        forked_child = 1;
        exit(7);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    atomic_store(&dead, false);
    close_both();
    until("prom", "nibble_closed{");
}
END_TEST

SUITE_MAIN("coll/monitor", FIXTURE(setup, teardown), TEST(metrics), TEST(no_folder), TEST(folder_is_a_pipe),
           TEST(live), TEST(live_denied), TEST(live_off), TEST(dead_mount), TEST(reports), TEST(gave_up),
           TEST(asked_for), TEST(stuck), TEST(forked))
