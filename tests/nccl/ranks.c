/* SPDX-License-Identifier: Apache-2.0 */
/* See ranks.h. */
#include "ranks.h"

#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "nibble/nccl_types.h"

struct nccl nccl;
struct shared *shared;

static void *get(const char *name)
{
    return library_function(name, 0);
}

static void find_functions(void)
{
    *(void **)&nccl.text = get("ncclGetErrorString");
    *(void **)&nccl.last = get("ncclGetLastError");
    *(void **)&nccl.version = get("ncclGetVersion");
    *(void **)&nccl.id = get("ncclGetUniqueId");
    *(void **)&nccl.init = get("ncclCommInitRank");
    *(void **)&nccl.init_with = get("ncclCommInitRankConfig");
    *(void **)&nccl.all_reduce = get("ncclAllReduce");
    *(void **)&nccl.reduce_scatter = get("ncclReduceScatter");
    *(void **)&nccl.all_gather = get("ncclAllGather");
    *(void **)&nccl.all_to_all = get("ncclAlltoAll");
    *(void **)&nccl.broadcast = get("ncclBroadcast");
    *(void **)&nccl.send = get("ncclSend");
    *(void **)&nccl.recv = get("ncclRecv");
    *(void **)&nccl.all_reduce_with = library_function("ncclAllReduceConfig", 1);
    *(void **)&nccl.reduce_scatter_with = library_function("ncclReduceScatterConfig", 1);
    *(void **)&nccl.group_start = get("ncclGroupStart");
    *(void **)&nccl.group_end = get("ncclGroupEnd");
    *(void **)&nccl.finalize = get("ncclCommFinalize");
    *(void **)&nccl.destroy = get("ncclCommDestroy");
    *(void **)&nccl.abort = get("ncclCommAbort");
    *(void **)&nccl.split = get("ncclCommSplit");
    *(void **)&nccl.shrink = library_function("ncclCommShrink", 1);
    *(void **)&nccl.grow_id = library_function("ncclCommGetUniqueId", 1);
    *(void **)&nccl.grow = library_function("ncclCommGrow", 1);
    *(void **)&nccl.revoke = library_function("ncclCommRevoke", 1);
    *(void **)&nccl.error = get("ncclCommGetAsyncError");
    *(void **)&nccl.mem_alloc = get("ncclMemAlloc");
    *(void **)&nccl.mem_free = get("ncclMemFree");
    *(void **)&nccl.window = get("ncclCommWindowRegister");
    *(void **)&nccl.close_window = get("ncclCommWindowDeregister");
}

void check(int result, const char *what)
{
    if (result != ncclSuccess)
        die("%s: %s (%s)", what, nccl.text(result), nccl.last(NULL));
}

void meet(int ranks)
{
    const unsigned round = __atomic_load_n(&shared->round, __ATOMIC_ACQUIRE);

    if (__atomic_add_fetch(&shared->arrived, 1, __ATOMIC_ACQ_REL) == (unsigned)ranks) {
        __atomic_store_n(&shared->arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&shared->round, round + 1, __ATOMIC_RELEASE);
    }
    while (__atomic_load_n(&shared->round, __ATOMIC_ACQUIRE) == round)
        usleep(500);
}

/* The first members of NCCL's configuration, as 2.28 has them. `size` says that later ones are missing. */
struct config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_size, least_ctas, most_ctas;
    const char *net;
    int shares_split, traffic_class;
    const char *name;
};

#define MAGIC 0xcafebeef

double timed(const struct member *m, void (*run)(const struct member *m, void *arg), void *arg)
{
    struct timespec from, to;

    meet(m->ranks);
    clock_gettime(CLOCK_MONOTONIC, &from);
    run(m, arg);
    meet(m->ranks);
    clock_gettime(CLOCK_MONOTONIC, &to);
    return (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
}

double link_bytes(void)
{
    unsigned long long in = 0, out = 0;
    FILE *f = fopen("/proc/self/net/dev", "r");
    char line[512];

    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, " hx0: %llu %*u %*u %*u %*u %*u %*u %*u %llu", &in, &out) == 2)
            break;
    if (f)
        fclose(f);
    return (double)(in > out ? in : out);
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

void print_times(const struct member *m, const char *what, double *seconds, int rounds, double before)
{
    double most = 0;

    shared->sum[m->rank] = (uint64_t)(link_bytes() - before);
    meet(m->ranks);
    for (int r = 0; r < m->ranks; r++)
        most = (double)shared->sum[r] > most ? (double)shared->sum[r] : most;
    qsort(seconds, (size_t)rounds, sizeof(seconds[0]), compare);
    if (m->rank == 0)
        printf("%s: %.6f s (%.6f to %.6f), %.0f bytes\n", what, seconds[rounds / 2], seconds[0],
               seconds[rounds - 1], most / rounds);
    fflush(stdout);
    meet(m->ranks);
}

struct call_config config_of(const char *algorithms, uint64_t tag)
{
    return (struct call_config){.size = sizeof(struct call_config),
                                .magic = MAGIC,
                                .version = 23100,
                                .least_ctas = INT_MIN,
                                .most_ctas = INT_MIN,
                                .nvls_ctas = INT_MIN,
                                .cga_size = INT_MIN,
                                .algorithms = algorithms,
                                .force = 1,
                                .policy = INT_MIN,
                                .tag = tag};
}

void open_comm(struct member *m, const char *name)
{
    const struct config config = {.size = sizeof(config),
                                  .magic = MAGIC,
                                  .version = 22700,
                                  .blocking = INT_MIN,
                                  .cga_size = INT_MIN,
                                  .least_ctas = INT_MIN,
                                  .most_ctas = INT_MIN,
                                  .shares_split = INT_MIN,
                                  .traffic_class = INT_MIN,
                                  .name = name};

    if (m->rank == 0)
        check(nccl.id(&shared->id), "ncclGetUniqueId");
    meet(m->ranks);
    if (name)
        check(nccl.init_with(&m->comm, m->ranks, shared->id, m->rank, &config), "ncclCommInitRankConfig");
    else
        check(nccl.init(&m->comm, m->ranks, shared->id, m->rank), "ncclCommInitRank");
    take_comm(m, m->ranks);
}

void take_comm(struct member *m, int ranks)
{
    m->ranks = ranks;
    device_comm(m->comm);
    m->stream = stream_create();
}

void leave_comm(struct member *m)
{
    int error = 0;

    check(nccl.error(m->comm, &error), "ncclCommGetAsyncError");
    check(error, "an operation");
    device_forget(m->comm);
    check(nccl.finalize(m->comm), "ncclCommFinalize");
    check(nccl.destroy(m->comm), "ncclCommDestroy");
    stream_destroy(m->stream);
}

void close_comm(struct member *m)
{
    leave_comm(m);
    meet(m->ranks);
}

/* Enter network namespace NB_NETNS and the node's number. */
static void enter(int node)
{
    char path[64];
    int fd;

    if (!getenv("NB_NETNS"))
        return;
    snprintf(path, sizeof(path), "/run/netns/%s%d", getenv("NB_NETNS"), node);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET))
        die("no network namespace %s", path);
    close(fd);
}

static void prepare(const struct member *m, const char *library, const char *layout)
{
    char host[32];
    int version;

    snprintf(host, sizeof(host), "node%d", m->rank / m->per_node);
    setenv("NCCL_HOSTID", host, 1);
    enter(m->rank / m->per_node);
    /* The last node may have another version of the plugin. */
    if (getenv("NB_OTHER_PLUGIN") && m->rank >= m->ranks - m->per_node)
        setenv("NCCL_NET_PLUGIN", getenv("NB_OTHER_PLUGIN"), 1);
    library_layout(layout);
    library_open(library);
    find_functions();
    device_use(m->rank % m->per_node);
    check(nccl.version(&version), "ncclGetVersion");
    /* Before 2.31 a child has CollNet only where it shares its parent's connections. */
    if (version < 23100)
        setenv("NCCL_COMM_SPLIT_SHARE_RESOURCES", "1", 1);
}

int ranks_run(const char *library, const char *layout, int nodes, int per_node,
              void (*run)(const struct member *, void *), void *arg)
{
    const int ranks = nodes * per_node;
    int status, failed = 0;
    pid_t child[MAX_RANKS] = {0};

    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        die("no memory");
    fflush(stdout);
    for (int i = 0; i < ranks; i++) {
        child[i] = fork();
        if (child[i] == 0) {
            const struct member m = {.rank = i, .ranks = ranks, .per_node = per_node};
            prepare(&m, library, layout);
            run(&m, arg);
            exit(0);
        }
    }
    for (int i = 0; i < ranks; i++) {
        const pid_t pid = wait(&status);
        if (WIFSIGNALED(status) && !failed)
            fprintf(stderr, "FAIL: a rank ended by signal %d\n", WTERMSIG(status));
        for (int k = 0; k < ranks; k++) {
            if (child[k] == pid)
                child[k] = 0;
            else if (status && child[k] > 0 && !failed)
                kill(child[k], 9);
        }
        failed |= status != 0;
    }
    munmap(shared, sizeof(*shared));
    return failed;
}
