/* SPDX-License-Identifier: Apache-2.0 */
/* Shared parts of the transports' tests. */
#include "util.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "open.h"
#include "tests/suite.h"

#define MAX_REGS 4096

const char *net_transport = "tcp";
const struct nb_net_ops *net_ops;
void (*net_before)(void);
void (*net_after)(void);
const char *const *net_settings;

static struct nb_context context;
static struct nb_net *net; /* context.net. NULL: closed */
static char *set_names[16];
static int nset;

static pthread_mutex_t reg_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    void *comm, *mhandle;
    const void *data;
    size_t size;
} regs[MAX_REGS];
static int nregs;

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static int log_count;
static char log_last[1024];
static char log_lines[256][1024];
static int log_nlines;

__attribute__((format(printf, 5, 6))) static void logger(ncclDebugLogLevel level, unsigned long flags,
                                                         const char *file, int line, const char *fmt, ...)
{
    va_list ap;

    (void)flags;
    (void)file;
    (void)line;
    if (level > NCCL_LOG_INFO)
        return;
    pthread_mutex_lock(&log_lock);
    va_start(ap, fmt);
    if (log_nlines < 256) {
        vsnprintf(log_lines[log_nlines], sizeof(log_lines[0]), fmt, ap);
        if (level == NCCL_LOG_WARN)
            memcpy(log_last, log_lines[log_nlines], sizeof(log_last));
        log_nlines++;
    } else if (level == NCCL_LOG_WARN) {
        vsnprintf(log_last, sizeof(log_last), fmt, ap);
    }
    va_end(ap);
    log_count += level == NCCL_LOG_WARN;
    if (level == NCCL_LOG_WARN && getenv("NB_TEST_VERBOSE"))
        fprintf(stderr, "%s\n", log_last);
    pthread_mutex_unlock(&log_lock);
}

int warnings(void)
{
    int n;

    pthread_mutex_lock(&log_lock);
    n = log_count;
    pthread_mutex_unlock(&log_lock);
    return n;
}

const char *last_warning(void)
{
    return log_last;
}

int times_logged(const char *text)
{
    int n = 0;

    pthread_mutex_lock(&log_lock);
    for (int i = 0; i < log_nlines; i++)
        n += strstr(log_lines[i], text) != NULL;
    pthread_mutex_unlock(&log_lock);
    return n;
}

const char *logged(const char *text)
{
    const char *found = NULL;

    pthread_mutex_lock(&log_lock);
    for (int i = 0; i < log_nlines && !found; i++)
        found = strstr(log_lines[i], text) ? log_lines[i] : NULL;
    pthread_mutex_unlock(&log_lock);
    return found;
}

void capture_log(void)
{
    pthread_mutex_lock(&log_lock);
    log_count = log_nlines = 0;
    log_last[0] = '\0';
    pthread_mutex_unlock(&log_lock);
    nb_log_set(logger);
}

static void set_one(const char *setting)
{
    char *name = strdup(setting), *eq = strchr(name, '=');

    ck_assert_ptr_nonnull(eq);
    *eq = '\0';
    setenv(name, eq + 1, 1);
    ck_assert_int_lt(nset, 16);
    set_names[nset++] = name;
}

int net_open(struct nb_net **out)
{
    int err = context_up_with(&context, net_ops);

    net = err ? NULL : context.net;
    if (!err)
        *out = net;
    return err;
}

void net_close(void)
{
    if (net)
        context_down(&context);
    net = NULL;
}

struct nb_context *net_context(void)
{
    return &context;
}

struct nb_net *net_up(const char *setting, ...)
{
    va_list ap;

    capture_log();
    set_one("NCCL_SOCKET_IFNAME=lo");
    set_one(strcmp(net_transport, "tcp") == 0     ? "NIBBLE_NET=tcp"
            : strcmp(net_transport, "verbs") == 0 ? "NIBBLE_NET=verbs"
                                                  : "NIBBLE_NET=auto");
    for (const char *const *s = net_settings; s && *s; s++)
        set_one(*s);
    va_start(ap, setting);
    for (const char *s = setting; s; s = va_arg(ap, const char *))
        set_one(s);
    va_end(ap);
    ck_assert_msg(net_open(&net) == 0, "%s", log_last);
    return net;
}

void net_down(void)
{
    net_close();
    while (nset > 0) {
        unsetenv(set_names[--nset]);
        free(set_names[nset]);
    }
}

void pair_exchange(struct pair *p, size_t size)
{
    uint8_t *a = malloc(size), *b = calloc(1, size);
    void *req[2];

    fill_bytes(a, size, 3);
    req[0] = post_recv(p->recv, b, size, 0);
    req[1] = post_send(p->send, a, size, 0);
    ck_assert_msg(wait_all(req, 2, 10000) == 0, "%s", last_warning());
    ck_assert(check_bytes(b, size, 3));
    free(a);
    free(b);
}

int64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Return the time for which this thread has looked in vain, for limits. Time between two looks counts for
 * little. So a machine that stands still, or has no time for this process, does not look like an idle
 * transport. */
int64_t patient_ms(void)
{
    enum { MOST_APART_MS = 20 };
    static _Thread_local int64_t last, sum;
    int64_t now = now_ms();

    sum += last && now - last > MOST_APART_MS ? MOST_APART_MS : last ? now - last : 0;
    last = now;
    return sum;
}

void pair_open_as(struct pair *p, const struct nb_net_conn_cfg *cfg)
{
    int64_t end = patient_ms() + 10000;

    memset(p, 0, sizeof(*p));
    ck_assert_int_eq(net->ops->listen(net, 0, p->handle, &p->listen), 0);
    if (cfg && cfg->deltas)
        ck_assert_int_eq(net->ops->allow_deltas(p->listen, p->handle), 0);
    while (!p->send || !p->recv) {
        if (!p->send)
            ck_assert_int_eq(net->ops->connect(net, 0, cfg, p->handle, &p->send), 0);
        if (!p->recv)
            ck_assert_int_eq(net->ops->accept(p->listen, &p->recv), 0);
        ck_assert_msg(patient_ms() < end, "no connection in 10 s");
    }
}

void pair_open(struct pair *p, int streams)
{
    struct nb_net_conn_cfg cfg = {.streams = streams, .traffic_class = -1};

    pair_open_as(p, streams ? &cfg : NULL);
}

void *mh(void *comm, const void *data, size_t size)
{
    void *found = NULL;

    if (strcmp(net_transport, "tcp") == 0 || size == 0)
        return NULL;
    pthread_mutex_lock(&reg_lock);
    for (int i = 0; i < nregs && !found; i++)
        if (regs[i].comm == comm && regs[i].data == data && regs[i].size == size)
            found = regs[i].mhandle;
    if (!found) {
        ck_assert_int_lt(nregs, MAX_REGS);
        ck_assert_msg(net->ops->reg_mr(comm, (void *)(uintptr_t)data, size, NB_MEM_HOST, &found) == 0, "%s",
                      log_last);
        regs[nregs].comm = comm;
        regs[nregs].data = data;
        regs[nregs].size = size;
        regs[nregs++].mhandle = found;
    }
    pthread_mutex_unlock(&reg_lock);
    return found;
}

static void give_back(void *comm)
{
    pthread_mutex_lock(&reg_lock);
    for (int i = 0; i < nregs;) {
        if (regs[i].comm == comm) {
            ck_assert_int_eq(net->ops->dereg_mr(comm, regs[i].mhandle), 0);
            regs[i] = regs[--nregs];
        } else {
            i++;
        }
    }
    pthread_mutex_unlock(&reg_lock);
}

void pair_close(struct pair *p)
{
    give_back(p->send);
    give_back(p->recv);
    if (p->send)
        ck_assert_int_eq(net->ops->close_send(p->send), 0);
    if (p->recv)
        ck_assert_int_eq(net->ops->close_recv(p->recv), 0);
    if (p->listen)
        ck_assert_int_eq(net->ops->close_listen(p->listen), 0);
    memset(p, 0, sizeof(*p));
}

struct nb_net *pair_up(struct pair *p, int streams)
{
    net_up(NULL, NULL);
    pair_open(p, streams);
    return net;
}

void pair_down(struct pair *p)
{
    pair_close(p);
    net_down();
}

void *post_send(void *comm, const void *data, size_t size, int tag)
{
    void *req = NULL;

    ck_assert_msg(net->ops->isend(comm, data, size, tag, mh(comm, data, size), &req) == 0, "isend: %s",
                  log_last);
    ck_assert_ptr_nonnull(req);
    return req;
}

void *post_recv(void *comm, void *data, size_t size, int tag)
{
    void *req = NULL, *handle = mh(comm, data, size);

    ck_assert_msg(net->ops->irecv(comm, 1, &data, &size, &tag, &handle, &req) == 0, "irecv: %s", log_last);
    ck_assert_ptr_nonnull(req);
    return req;
}

int wait_req(void *req, size_t *sizes, int ms)
{
    int64_t end = patient_ms() + ms;
    int done = 0, rc;

    for (;;) {
        rc = net->ops->test(req, &done, sizes);
        if (rc || done)
            return rc;
        if (patient_ms() >= end)
            return -ETIME;
        sched_yield();
    }
}

int wait_all(void **reqs, int n, int ms)
{
    int64_t end = patient_ms() + ms;

    for (int left = n; left > 0;) {
        left = 0;
        for (int i = 0; i < n; i++) {
            int done = 0, rc;

            if (!reqs[i])
                continue;
            rc = net->ops->test(reqs[i], &done, NULL);
            if (rc)
                return rc;
            if (done)
                reqs[i] = NULL;
            left += !done;
        }
        if (left && patient_ms() >= end)
            return -ETIME;
    }
    return 0;
}

enum { ROW = 256 };
static uint8_t rows[2 * ROW];

static inline uint8_t byte_at(size_t i, unsigned number)
{
    return (uint8_t)((i * 167 + (i >> 8) * 13 + (i >> 16) * 7 + number * 31 + 5) & 0xff);
}

/* Return the bytes from i on, which is a multiple of ROW, to the end of its row. All rows are parts of one
 * sequence, as 23 is the inverse of 167: byte_at(i + j) = 167 * (j + 23 * byte_at(i)). */
static const uint8_t *row_at(size_t i, unsigned number)
{
    return rows + (uint8_t)(23 * byte_at(i, number));
}

__attribute__((constructor)) static void make_rows(void)
{
    for (unsigned j = 0; j < 2 * ROW; j++)
        rows[j] = (uint8_t)(167 * j);
}

/* Sanitizers check each access, and a row takes one. */
void fill_bytes(void *data, size_t size, unsigned number)
{
    for (size_t i = 0; i < size; i += ROW)
        memcpy((uint8_t *)data + i, row_at(i, number), size - i < ROW ? size - i : ROW);
}

bool check_bytes(const void *data, size_t size, unsigned number)
{
    for (size_t i = 0; i < size; i += ROW)
        if (memcmp((const uint8_t *)data + i, row_at(i, number), size - i < ROW ? size - i : ROW) != 0)
            return false;
    return true;
}

int open_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    ck_assert_ptr_nonnull(d);
    for (struct dirent *e = readdir(d); e; e = readdir(d))
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

int helper_threads(void)
{
    DIR *d = opendir("/proc/self/task");
    int n = 0;

    ck_assert_ptr_nonnull(d);
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        char path[300], name[32] = "";
        FILE *f;

        snprintf(path, sizeof(path), "/proc/self/task/%s/comm", e->d_name);
        f = e->d_name[0] == '.' ? NULL : fopen(path, "re");
        if (!f)
            continue;
        n += fgets(name, sizeof(name), f) && strncmp(name, "nibble", 6) == 0;
        fclose(f);
    }
    closedir(d);
    return n;
}
