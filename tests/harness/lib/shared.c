/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everything that the nodes of a job tell each other and the parent: barrier, gathering, mailboxes,
 * positions, failures and the captured log, in one piece of shared memory. Also the clock and random streams.
 */
#include <dirent.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

struct hx_node *hx_this_node;
static pthread_mutex_t text_lock = PTHREAD_MUTEX_INITIALIZER;

struct hx_node *hx_self(void)
{
    return hx_this_node;
}

double hx_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void hx_sleep(double seconds)
{
    struct timespec t = {(time_t)seconds, 0};

    if (seconds <= 0)
        return;
    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    while (nanosleep(&t, &t) != 0)
        continue;
}

uint64_t hx_rand(uint64_t *state)
{
    return hx_next_random(state);
}

uint64_t hx_rand_below(uint64_t *state, uint64_t n)
{
    return n ? (hx_rand(state) >> 11) % n : 0;
}

uint64_t hx_seed(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t x = a * 0x9E3779B97F4A7C15ull + b * 0xBF58476D1CE4E5B9ull + c * 0x94D049BB133111EBull + 1;

    for (int i = 0; i < 3; i++) {
        x ^= x >> 31;
        x *= 0xD6E8FEB86659FD93ull;
    }
    x ^= x >> 32;
    return x ? x : 1;
}

/* ---- variables ---- */

static struct hx_env env;
static bool env_known;

static int is_on(const char *name)
{
    const char *v = getenv(name);

    return v && *v && strcmp(v, "0") != 0;
}

const struct hx_env *hx_env_read(void)
{
    const char *path;

    if (env_known)
        return &env;
    path = getenv("NB_HARNESS_PLUGIN");
    if (!path || !*path)
        path = getenv("NB_PLUGIN"); /* "make check" sets it */
    snprintf(env.plugin, sizeof env.plugin, "%s", path ? path : "");
    env.verbose = is_on("NB_HARNESS_VERBOSE");
    env.quick = is_on("NB_TEST_QUICK");
    env.long_tests = is_on("NB_LONG_TESTS");
    path = getenv("NB_HARNESS_SETTINGS");
    snprintf(env.settings, sizeof env.settings, "%s", path ? path : "");
    path = getenv("NB_HARNESS_PATIENCE");
    env.patience = path && atof(path) > 0 ? atof(path) : 1;
    env.hosts = 1;
    path = getenv("NB_HARNESS_HOST");
    if (path && *path &&
        (sscanf(path, "%d/%d", &env.host, &env.hosts) != 2 || env.hosts < 1 || env.hosts > HX_MAX_HOSTS ||
         env.host < 0 || env.host >= env.hosts)) {
        fprintf(stderr, "harness: NB_HARNESS_HOST=%s is not like 0/2\n", path);
        exit(1);
    }
    path = getenv("NB_HARNESS_MEMORY");
    snprintf(env.host_memory, sizeof env.host_memory, "%s", path ? path : "");
    env_known = true;
    return &env;
}

void hx_env_forget_settings(void)
{
    extern char **environ;
    char name[128];
    int i = 0;

    hx_env_read();
    while (environ[i]) {
        size_t len = strcspn(environ[i], "=");

        if (strncmp(environ[i], "NIBBLE_", 7) != 0 || len >= sizeof name) {
            i++;
            continue;
        }
        memcpy(name, environ[i], len);
        name[len] = 0;
        unsetenv(name);
        i = 0; /* the array has moved */
    }
}

void hx_env_hide(void)
{
    hx_env_read();
    unsetenv("NB_HARNESS_PLUGIN");
    unsetenv("NB_HARNESS_VERBOSE");
    unsetenv("NB_TEST_QUICK");
    unsetenv("NB_LONG_TESTS");
    unsetenv("NB_HARNESS_SETTINGS");
    unsetenv("NB_HARNESS_PATIENCE");
    unsetenv("NB_HARNESS_HOST");
    unsetenv("NB_HARNESS_MEMORY");
}

/* ---- functions for the parent ---- */

/* Return whether another node has failed with the same text. */
static bool is_told(const struct hx_node *n, const char *text)
{
    for (int r = 0; r < n->nnodes; r++)
        if (r != n->rank && atomic_load(&n->shared->node[r].failed) &&
            strcmp(n->shared->node[r].failure, text) == 0)
            return true;
    return false;
}

int hx_fail(const char *fmt, ...)
{
    char text[sizeof hx_this_node->shared->node[0].failure];
    struct hx_node *n = hx_this_node;
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!n) {
        fprintf(stderr, "harness: %s\n", text);
        return 1;
    }
    if (!n->quiet && !is_told(n, text)) /* at the end the report names all nodes that failed so */
        fprintf(stderr, "harness: node %d: %s\n", n->rank, text);
    pthread_mutex_lock(&text_lock);
    if (!atomic_load(&n->shared->node[n->rank].failed)) {
        memcpy(n->shared->node[n->rank].failure, text, sizeof text);
        memcpy(n->shared->node[n->rank].failed_where, n->shared->node[n->rank].where,
               sizeof n->shared->node[n->rank].where);
        atomic_store(&n->shared->node[n->rank].failed, 1);
    }
    pthread_mutex_unlock(&text_lock);
    return 1;
}

void hx_where(const char *fmt, ...)
{
    struct hx_node *n = hx_this_node;
    va_list ap;

    if (!n)
        return;
    pthread_mutex_lock(&text_lock);
    va_start(ap, fmt);
    vsnprintf(n->shared->node[n->rank].where, sizeof n->shared->node[n->rank].where, fmt, ap);
    va_end(ap);
    pthread_mutex_unlock(&text_lock);
}

/* ---- between nodes ---- */

/* Sleep, a little longer with each call in a row: siblings share few cores. */
static void pause_a_bit(unsigned *round)
{
    if ((*round)++ < 20)
        sched_yield();
    else
        hx_sleep(*round < 200 ? 50e-6 : 500e-6);
}

int hx_ended(struct hx_node *node, int rank)
{
    return atomic_load(&node->shared->node[rank].ended);
}

void hx_deadline(struct hx_node *node, double seconds)
{
    atomic_store(&node->shared->deadline_ms, (long long)(1e3 * (hx_now() + seconds)));
}

int hx_pid(struct hx_node *node, int rank)
{
    unsigned round = 0;
    int pid;

    while (!(pid = atomic_load(&node->shared->node[rank].pid)))
        pause_a_bit(&round);
    return pid;
}

/* Gather over the meeting. The job cannot go on without a node that is gone. */
static void meet(struct hx_node *node, const void *mine, size_t len, void *all)
{
    if (node->meeting->gather(node->meeting->arg, mine, len, all) == 0)
        return;
    hx_fail("a node is gone");
    _exit(1);
}

void hx_barrier(struct hx_node *node)
{
    if (node->meeting) {
        char nothing = 0, all[HX_MAX_NODES];
        meet(node, &nothing, 1, all);
        return;
    }
    unsigned long mine = atomic_fetch_add(&node->shared->node[node->rank].arrived, 1) + 1;
    unsigned round = 0;

    for (int r = 0; r < node->nnodes; r++) {
        while (atomic_load(&node->shared->node[r].arrived) < mine && !hx_ended(node, r))
            pause_a_bit(&round);
    }
}

/* hx_allgather. Return which parts arrived, as a bit for each node, also for nodes that have ended since. */
static uint64_t gather(struct hx_node *node, const void *mine, size_t len, void *all)
{
    struct hx_shared *shared = node->shared;
    uint64_t there = 0;
    unsigned long turn;

    if (len > HX_BOX_BYTES)
        abort();
    if (node->meeting) {
        meet(node, mine, len, all);
        return (UINT64_C(1) << node->nnodes) - 1;
    }
    memcpy(shared->node[node->rank].gather, mine, len);
    hx_barrier(node);
    turn = atomic_load(&shared->node[node->rank].arrived);
    for (int r = 0; r < node->nnodes; r++) {
        if (atomic_load(&shared->node[r].arrived) < turn) {
            memset((char *)all + (size_t)r * len, 0, len);
        } else {
            memcpy((char *)all + (size_t)r * len, shared->node[r].gather, len);
            there |= 1ull << r;
        }
    }
    hx_barrier(node);
    return there;
}

void hx_allgather(struct hx_node *node, const void *mine, size_t len, void *all)
{
    gather(node, mine, len, all);
}

int hx_all_equal(struct hx_node *node, uint64_t hash)
{
    uint64_t all[HX_MAX_NODES], there = gather(node, &hash, sizeof hash, all);

    for (int r = 0; r < node->nnodes; r++) {
        if ((there >> r & 1) && all[r] != hash)
            return 0;
    }
    return 1;
}

int hx_put(struct hx_node *node, int to, const void *data, size_t len, double timeout_s)
{
    struct hx_box *box = &node->shared->box[node->rank][to];
    double end = hx_now() + timeout_s;
    unsigned round = 0;

    if (len > HX_BOX_BYTES)
        abort();
    while (atomic_load(&box->full)) {
        if (hx_now() > end || hx_ended(node, to))
            return -1;
        pause_a_bit(&round);
    }
    memcpy(box->data, data, len);
    box->len = len;
    atomic_store(&box->full, 1);
    return 0;
}

int hx_get(struct hx_node *node, int from, void *data, size_t len, double timeout_s)
{
    struct hx_box *box = &node->shared->box[from][node->rank];
    double end = hx_now() + timeout_s;
    unsigned round = 0;

    while (!atomic_load(&box->full)) {
        /* A node that has ended may have filled the box before. */
        if (hx_now() > end || (hx_ended(node, from) && !atomic_load(&box->full)))
            return -1;
        pause_a_bit(&round);
    }
    if (box->len != len)
        return -1;
    memcpy(data, box->data, len);
    atomic_store(&box->full, 0);
    return 0;
}

void *hx_scratch(struct hx_node *node, int rank)
{
    return node->shared->node[rank].scratch;
}

/* ---- log ---- */

static void capture(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *fmt,
                    ...) __attribute__((format(printf, 5, 6)));

static void capture(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *fmt,
                    ...)
{
    struct hx_node *n = hx_this_node;
    char text[2048];
    int head, len;
    va_list ap;

    (void)flags;
    head = snprintf(text, sizeof text, "%c ",
                    level == NCCL_LOG_WARN   ? 'W'
                    : level == NCCL_LOG_INFO ? 'I'
                                             : 'T');
    va_start(ap, fmt);
    len = vsnprintf(text + head, sizeof text - (size_t)head - 1, fmt, ap);
    va_end(ap);
    if (len < 0)
        return;
    len += head;
    if (len > (int)sizeof text - 2)
        len = (int)sizeof text - 2;
    for (int i = 0; i < len; i++) {
        if (text[i] == '\n')
            text[i] = ' ';
    }
    text[len++] = '\n';
    text[len] = 0;
    if (hx_env_read()->verbose)
        fprintf(stderr, "[%d] %s:%d %s", n ? n->rank : -1, file ? file : "?", line, text);
    else if (n && (n->log || (n->meeting && level == NCCL_LOG_WARN)))
        fprintf(stderr, "node %d: %s", n->rank, text + head);
    if (!n)
        return;
    pthread_mutex_lock(&text_lock);
    struct hx_shared_node *sn = &n->shared->node[n->rank];
    unsigned used = atomic_load(&sn->log_len);
    if (level == NCCL_LOG_WARN)
        atomic_fetch_add(&sn->warns, 1);
    if (used + (unsigned)len < HX_LOG_BYTES) {
        memcpy(sn->log + used, text, (size_t)len);
        atomic_store(&sn->log_len, used + (unsigned)len);
    }
    pthread_mutex_unlock(&text_lock);
}

ncclDebugLogger_t hx_logger(void)
{
    return capture;
}

/* Count lines with both strings, and copy the first into buf when cap > 0. Written lines stay unchanged and
 * new lines follow them, so other nodes may look, too. */
static int find_lines(struct hx_shared_node *sn, const char *a, const char *b, char *buf, size_t cap)
{
    size_t alen = strlen(a), blen = b ? strlen(b) : 0;
    int count = 0;

    for (const char *at = sn->log, *end = sn->log + atomic_load(&sn->log_len); at < end;) {
        const char *eol = memchr(at, '\n', (size_t)(end - at));
        size_t len;

        if (!eol)
            break;
        len = (size_t)(eol - at);
        if (memmem(at, len, a, alen) && (!b || memmem(at, len, b, blen)) && count++ == 0 && cap)
            snprintf(buf, cap, "%.*s", (int)len, at);
        at = eol + 1;
    }
    return count;
}

int hx_log_count(const char *a, const char *b)
{
    return hx_this_node ? hx_log_count_of(hx_this_node, hx_this_node->rank, a, b) : 0;
}

int hx_log_count_of(struct hx_node *node, int rank, const char *a, const char *b)
{
    return find_lines(&node->shared->node[rank], a, b, NULL, 0);
}

void hx_log_first(const char *a, char *buf, size_t cap)
{
    buf[0] = 0;
    if (hx_this_node)
        find_lines(&hx_this_node->shared->node[hx_this_node->rank], a, NULL, buf, cap);
}

/* Return whether a warning is about a setting without effect, and so no reason of a failure. */
static bool is_note(const char *line)
{
    static const char *const notes[] = {"ignored", "has no effect", "passes nothing on",
                                        "nothing is passed on"};

    for (size_t i = 0; i < sizeof notes / sizeof *notes; i++)
        if (strstr(line, notes[i]))
            return true;
    return false;
}

int hx_fail_by_plugin(const char *what, ncclResult_t result)
{
    static const char before[] = "W NET/nibble : ", declined[] = "NCCL uses its own algorithms: ";
    const struct hx_shared_node *sn = hx_this_node ? &hx_this_node->shared->node[hx_this_node->rank] : NULL;
    const size_t n = sizeof before - 1;
    char line[400] = "";
    const char *why;

    for (const char *at = sn ? sn->log : "", *end; !line[0] && (end = strchr(at, '\n')); at = end + 1)
        if (strncmp(at, before, n) == 0) {
            snprintf(line, sizeof line, "%.*s", (int)(end - at - (ptrdiff_t)n), at + n);
            if (is_note(line))
                line[0] = 0;
        }
    why = strstr(line, declined);
    why = why ? why + sizeof declined - 1 : line;
    return line[0] ? hx_fail("%s: %s", what, why)
                   : hx_fail("%s: result %d without a warning", what, (int)result);
}

int hx_log_warns(void)
{
    struct hx_node *n = hx_this_node;

    return n ? atomic_load(&n->shared->node[n->rank].warns) : 0;
}

/* ---- this process ---- */

static long status_field(const char *name)
{
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    long value = -1;

    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, name, strlen(name)) == 0)
            value = strtol(line + strlen(name), NULL, 10);
    }
    if (f)
        fclose(f);
    return value;
}

long hx_mapped_kb(void)
{
    return status_field("VmSize:");
}

int hx_thread_count(void)
{
    return (int)status_field("Threads:");
}

int hx_settled_threads(int expected)
{
    double end = hx_now() + 2;

    while (hx_thread_count() > expected && hx_now() < end)
        hx_sleep(1e-3);
    return hx_thread_count();
}

int hx_fd_count(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n - 3; /* ".", ".." and the directory itself */
}
