/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster names, or cluster LIBRARY LAYOUT NODES[xRANKS] CASE...
 *
 * Run NVIDIA's library in one process a rank, with nibble as its plugin, and check the results. Nodes have
 * one rank, or RANKS. "names" prints the names for layout.py. test-nccl.sh sets NCCL's variables. With
 * NCCL_NET_PLUGIN=none, NCCL's own sockets are the control: then all sums must be exact. A CASE:
 *
 *     raw      sums of small whole numbers and gathers, right to the bit, in several sizes
 *     coded    the same calls over and over with gradients: the sums are near, and all ranks have the same
 *     sharded  training with gathered weights and scattered gradients, with nibble's default settings: exact
 *              before step WARM, the weights always, and most gradients coded from step LATE on
 *     again    communicators that are made, used and destroyed, one after the other, in one process
 *     many     several communicators at a time, used in turn and closed in the order in which they were made
 *     split    a child of a communicator, both used in turn
 *     shrink   a child without the last node, both used in turn, then one made while an all-reduce waits
 *     grow     a communicator without the last node, and its successor with this node (from NCCL 2.30 on)
 *     revoke   a communicator is revoked while an all-reduce waits for a rank, and another one is made
 *     abort    the same with a communicator that is aborted
 *
 * After each case a process has as many threads and descriptors as after the first one, and no memory that it
 * shares with others.
 */
#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "library.h"
#include "nibble/nccl_types.h"

#define MAX_RANKS 16
#define CODED_ERROR 1e-6 /* of the sums' power: what rounding of float32 cannot reach */

struct id { /* ncclUniqueId */
    char bytes[128];
};

static struct {
    const char *(*text)(int);
    const char *(*last)(void *);
    int (*version)(int *);
    int (*id)(struct id *);
    int (*init)(void **, int, struct id, int);
    int (*all_reduce)(const void *, void *, size_t, int, int, void *, void *);
    int (*reduce_scatter)(const void *, void *, size_t, int, int, void *, void *);
    int (*all_gather)(const void *, void *, size_t, int, void *, void *);
    int (*finalize)(void *);
    int (*destroy)(void *);
    int (*abort)(void *);
    int (*split)(void *, int, int, void **, const void *);
    int (*shrink)(void *, const int *, int, void **, const void *, int);
    int (*grow_id)(void *, struct id *);
    int (*grow)(void *, int, const struct id *, int, void **, const void *);
    int (*revoke)(void *, int);
    int (*error)(void *, int *);
} nccl;

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
    *(void **)&nccl.all_reduce = get("ncclAllReduce");
    *(void **)&nccl.reduce_scatter = get("ncclReduceScatter");
    *(void **)&nccl.all_gather = get("ncclAllGather");
    *(void **)&nccl.finalize = get("ncclCommFinalize");
    *(void **)&nccl.destroy = get("ncclCommDestroy");
    *(void **)&nccl.abort = get("ncclCommAbort");
    *(void **)&nccl.split = get("ncclCommSplit");
    *(void **)&nccl.shrink = library_function("ncclCommShrink", 1);
    *(void **)&nccl.grow_id = library_function("ncclCommGetUniqueId", 1);
    *(void **)&nccl.grow = library_function("ncclCommGrow", 1);
    *(void **)&nccl.revoke = library_function("ncclCommRevoke", 1);
    *(void **)&nccl.error = get("ncclCommGetAsyncError");
}

static void check(int result, const char *what)
{
    if (result != ncclSuccess)
        die("%s: %s (%s)", what, nccl.text(result), nccl.last(NULL));
}

/* ---- Shared by the ranks ------------------------------------------------------------------------------- */

static struct shared {
    struct id id;
    unsigned arrived[2];
    uint64_t sum[MAX_RANKS];
} * shared;

static bool control; /* without nibble */

/* Wait until all ranks are here. A rank that dies ends the others through the parent. */
static void meet(int ranks)
{
    static unsigned round;
    const unsigned target = (++round + 1) / 2 * (unsigned)ranks, which = round % 2;

    __atomic_add_fetch(&shared->arrived[which], 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&shared->arrived[which], __ATOMIC_ACQUIRE) < target)
        usleep(500);
}

struct member { /* a rank of a communicator */
    int rank, ranks, per_node;
    void *comm, *stream;
};

static void open_comm(struct member *m)
{
    if (m->rank == 0)
        check(nccl.id(&shared->id), "ncclGetUniqueId");
    meet(m->ranks);
    check(nccl.init(&m->comm, m->ranks, shared->id, m->rank), "ncclCommInitRank");
    device_comm(m->comm);
    m->stream = stream_create();
}

/* End the communicator on this rank alone. */
static void leave_comm(struct member *m)
{
    int error = 0;

    check(nccl.error(m->comm, &error), "ncclCommGetAsyncError");
    check(error, "an operation");
    device_forget(m->comm);
    check(nccl.finalize(m->comm), "ncclCommFinalize");
    check(nccl.destroy(m->comm), "ncclCommDestroy");
    stream_destroy(m->stream);
}

static void close_comm(struct member *m)
{
    leave_comm(m);
    meet(m->ranks);
}

/* ---- Cases --------------------------------------------------------------------------------------------- */

static float whole(size_t i, int rank, int round)
{
    return (float)((int)((i * 7 + (size_t)rank * 13 + (size_t)round * 5) % 1001) - 500);
}

/* Call the three collectives with `count` values a rank. All sums of these numbers are exact. */
static void exact(struct member *m, size_t count, int round)
{
    const size_t all = count * (size_t)m->ranks;
    float *in = device_alloc(all * 4), *out = device_alloc(all * 4);
    size_t bad = 0;

    for (size_t i = 0; i < all; i++)
        in[i] = whole(i, m->rank, round);
    memset(out, 0xff, all * 4);
    check(nccl.all_reduce(in, out, all, ncclFloat32, ncclSum, m->comm, m->stream), "ncclAllReduce");
    stream_wait(m->stream);
    for (size_t i = 0; i < all; i++) {
        float want = 0;
        for (int r = 0; r < m->ranks; r++)
            want += whole(i, r, round);
        bad += out[i] != want;
    }
    if (bad)
        die("rank %d: all-reduce of %zu values: %zu are wrong", m->rank, all, bad);
    memset(out, 0xff, all * 4);
    check(nccl.reduce_scatter(in, out, count, ncclFloat32, ncclSum, m->comm, m->stream), "ncclReduceScatter");
    stream_wait(m->stream);
    for (size_t i = 0; i < count; i++) {
        float want = 0;
        for (int r = 0; r < m->ranks; r++)
            want += whole((size_t)m->rank * count + i, r, round);
        bad += out[i] != want;
    }
    if (bad)
        die("rank %d: reduce-scatter of %zu values: %zu are wrong", m->rank, count, bad);
    memset(out, 0xff, all * 4);
    check(nccl.all_gather(in, out, count, ncclFloat32, m->comm, m->stream), "ncclAllGather");
    stream_wait(m->stream);
    for (size_t i = 0; i < all; i++)
        bad += out[i] != whole(i % count, (int)(i / count), round);
    if (bad)
        die("rank %d: all-gather of %zu values: %zu are wrong", m->rank, count, bad);
    device_free(in);
    device_free(out);
}

static void raw(struct member *m)
{
    static const size_t counts[] = {1, 1000, 65536, 300007, 1000000};

    open_comm(m);
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        exact(m, counts[i], (int)i);
    close_comm(m);
}

static void again(struct member *m)
{
    for (int k = 0; k < 3; k++) {
        open_comm(m);
        exact(m, 20000, k);
        close_comm(m);
    }
}

#define MANY 4
static void many(struct member *m)
{
    struct member one[MANY];

    for (int i = 0; i < MANY; i++) {
        one[i] = *m;
        open_comm(&one[i]);
    }
    for (int k = 0; k < 2 * MANY; k++)
        exact(&one[(k * 3) % MANY], 5000, k);
    for (int i = 0; i < MANY; i++)
        close_comm(&one[i]);
}

/* Take a communicator that NCCL has made. */
static void take_comm(struct member *m, int ranks)
{
    m->ranks = ranks;
    device_comm(m->comm);
    m->stream = stream_create();
}

static void split(struct member *m)
{
    struct member child = *m;

    open_comm(m);
    check(nccl.split(m->comm, 0, m->rank, &child.comm, NULL), "ncclCommSplit");
    take_comm(&child, m->ranks);
    for (int k = 0; k < 2; k++) {
        exact(m, 3000, k);
        exact(&child, 50000, k);
    }
    close_comm(&child);
    close_comm(m);
}

/* Begin an all-reduce in which the other ranks take no part. */
static float *wait_alone(struct member *m)
{
    float *values = device_alloc(400000);

    exact(m, 1000, 0);
    if (m->rank == 0)
        check(nccl.all_reduce(values, values, 100000, ncclFloat32, ncclSum, m->comm, m->stream),
              "ncclAllReduce");
    meet(m->ranks);
    usleep(50000);
    return values;
}

/* Abort the communicator, and use another one. */
static void abort_waiting(struct member *m, float *values)
{
    device_forget(m->comm);
    check(nccl.abort(m->comm), "ncclCommAbort");
    stream_wait(m->stream);
    stream_destroy(m->stream);
    device_free(values);
    meet(m->ranks);
    again(m);
}

static void abort_comm(struct member *m)
{
    open_comm(m);
    abort_waiting(m, wait_alone(m));
}

static void revoke_comm(struct member *m)
{
    open_comm(m);
    float *values = wait_alone(m);
    check(nccl.revoke(m->comm, 0), "ncclCommRevoke");
    abort_waiting(m, values);
}

#define SHRINK_ABORT 1
static void shrink(struct member *m)
{
    struct member child = *m;
    int gone[MAX_RANKS];
    const int left = m->ranks - m->per_node;

    for (int i = 0; i < m->per_node; i++)
        gone[i] = left + i;
    open_comm(m);
    if (m->rank < left) {
        check(nccl.shrink(m->comm, gone, m->per_node, &child.comm, NULL, 0), "ncclCommShrink");
        take_comm(&child, left);
    }
    for (int k = 0; k < 2; k++) {
        exact(m, 3000, k);
        if (m->rank < left)
            exact(&child, 50000, k);
    }
    if (m->rank < left)
        leave_comm(&child);
    float *values = wait_alone(m);
    if (m->rank < left) {
        check(nccl.shrink(m->comm, gone, m->per_node, &child.comm, NULL, SHRINK_ABORT), "ncclCommShrink");
        take_comm(&child, left);
        exact(&child, 50000, 0);
        leave_comm(&child);
    }
    meet(m->ranks);
    abort_waiting(m, values);
}

static void grow(struct member *m)
{
    struct member old = *m;
    const int few = m->ranks - m->per_node;
    const bool member = m->rank < few;

    if (m->rank == 0)
        check(nccl.id(&shared->id), "ncclGetUniqueId");
    meet(m->ranks);
    if (member) {
        check(nccl.init(&old.comm, few, shared->id, m->rank), "ncclCommInitRank");
        take_comm(&old, few);
        exact(&old, 3000, 0);
    }
    meet(m->ranks);
    if (m->rank == 0)
        check(nccl.grow_id(old.comm, &shared->id), "ncclCommGetUniqueId");
    meet(m->ranks);
    check(nccl.grow(member ? old.comm : NULL, m->ranks, m->rank == 0 || !member ? &shared->id : NULL,
                    member ? -1 : m->rank, &m->comm, NULL),
          "ncclCommGrow");
    take_comm(m, m->ranks);
    if (member)
        leave_comm(&old);
    for (int k = 0; k < 2; k++)
        exact(m, 50000, k);
    close_comm(m);
}

static float gradient(size_t i, int rank, int round)
{
    uint64_t x = (i * 0x9e3779b97f4a7c15u) ^ ((uint64_t)rank << 40) ^ ((uint64_t)round << 48);

    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 32;
    return ((float)(x & 0xffff) - 32767.5f) / 32768.0f;
}

/* Compare with exact sums. Four bits a value leave some percent of the sums' power as error. */
static void near(const struct member *m, const char *what, const float *out, size_t from, size_t count,
                 int round)
{
    double error = 0, power = 0;

    for (size_t i = 0; i < count; i++) {
        double want = 0;
        for (int r = 0; r < m->ranks; r++)
            want += (double)gradient(from + i, r, round);
        error += (out[i] - want) * (out[i] - want);
        power += want * want;
    }
    if (!(error < 0.05 * power))
        die("rank %d: %s: error %.4f of the sums' power", m->rank, what, error / power);
    if (control ? error > CODED_ERROR * power : error < CODED_ERROR * power)
        die("rank %d: %s: error %.2g of the sums' power, so that %s was coded", m->rank, what, error / power,
            control ? "it" : "nothing");
}

static void coded(struct member *m)
{
    const size_t count = 200000, all = count * (size_t)m->ranks;
    float *in = device_alloc(all * 4), *out = device_alloc(all * 4);

    open_comm(m);
    for (int round = 0; round < 4; round++) {
        uint64_t sum = 0;
        for (size_t i = 0; i < all; i++)
            in[i] = gradient(i, m->rank, round);
        check(nccl.all_reduce(in, out, all, ncclFloat32, ncclSum, m->comm, m->stream), "ncclAllReduce");
        stream_wait(m->stream);
        near(m, "all-reduce", out, 0, all, round);
        for (size_t i = 0; i < all; i++) {
            uint32_t bits;
            memcpy(&bits, &out[i], 4);
            sum = sum * 31 + bits;
        }
        shared->sum[m->rank] = sum;
        meet(m->ranks);
        if (shared->sum[0] != sum)
            die("rank %d: its all-reduce differs from rank 0's", m->rank);
        check(nccl.reduce_scatter(in, out, count, ncclFloat32, ncclSum, m->comm, m->stream),
              "ncclReduceScatter");
        stream_wait(m->stream);
        near(m, "reduce-scatter", out, (size_t)m->rank * count, count, round);
        check(nccl.all_gather(in, out, count, ncclFloat32, m->comm, m->stream), "ncclAllGather");
        stream_wait(m->stream);
        for (size_t i = 0; i < all; i++)
            if (out[i] != gradient(i % count, (int)(i / count), round))
                die("rank %d: all-gather: value %zu is wrong", m->rank, i);
    }
    close_comm(m);
    device_free(in);
    device_free(out);
}

/* Training of LAYERS layers, whose shards of weights follow the sums of the ranks' gradients. */
#define LAYERS 4
#define SHARD 24000
#define WARM 45
#define LATE 60
#define TRAINING 66

static void sharded(struct member *m)
{
    const size_t all = SHARD * (size_t)m->ranks;
    float *shard[LAYERS], *full[LAYERS], *gradients = device_alloc(all * 4), *sums = device_alloc(SHARD * 4);
    unsigned coded_late = 0;

    open_comm(m);
    for (int l = 0; l < LAYERS; l++) {
        shard[l] = device_alloc(SHARD * 4);
        full[l] = device_alloc(all * 4);
        for (size_t i = 0; i < SHARD; i++)
            shard[l][i] = gradient(i, m->rank, 1000 + l);
    }
    for (int step = 0; step < TRAINING; step++) {
        for (int l = 0; l < LAYERS; l++) {
            check(nccl.all_gather(shard[l], full[l], SHARD, ncclFloat32, m->comm, m->stream),
                  "ncclAllGather");
            stream_wait(m->stream);
            if (memcmp(full[l] + (size_t)m->rank * SHARD, shard[l], SHARD * 4) != 0)
                die("rank %d: step %d: the own weights have changed", m->rank, step);
        }
        for (int l = LAYERS - 1; l >= 0; l--) {
            const int round = step * LAYERS + l;
            size_t wrong = 0;
            for (size_t i = 0; i < all; i++)
                gradients[i] = gradient(i, m->rank, round) * (float)(1 + l) + 0.1f * full[l][i];
            check(nccl.reduce_scatter(gradients, sums, SHARD, ncclFloat32, ncclSum, m->comm, m->stream),
                  "ncclReduceScatter");
            stream_wait(m->stream);
            for (size_t i = 0; i < SHARD; i++) {
                const size_t at_all = (size_t)m->rank * SHARD + i;
                float want = 0;
                for (int r = 0; r < m->ranks; r++)
                    want += gradient(at_all, r, round) * (float)(1 + l) + 0.1f * full[l][at_all];
                wrong += fabsf(sums[i] - want) > 1e-5f * (float)(1 + l);
                shard[l][i] -= 0.01f * sums[i];
            }
            if (step < WARM && wrong)
                die("rank %d: step %d: %zu sums differ during the warm-up", m->rank, step, wrong);
            coded_late += step >= LATE && wrong > SHARD / 2;
        }
    }
    /* A sum in doubt goes raw. */
    if (control ? coded_late > 0 : coded_late < (TRAINING - LATE) * LAYERS * 3 / 4)
        die("rank %d: %u of %d sums of gradients were coded from step %d on", m->rank, coded_late,
            (TRAINING - LATE) * LAYERS, LATE);
    close_comm(m);
    for (int l = 0; l < LAYERS; l++) {
        device_free(shard[l]);
        device_free(full[l]);
    }
    device_free(gradients);
    device_free(sums);
}

static const struct {
    const char *name;
    void (*run)(struct member *);
} cases[] = {{"raw", raw},         {"coded", coded}, {"sharded", sharded},
             {"again", again},     {"many", many},   {"split", split},
             {"shrink", shrink},   {"grow", grow},   {"revoke", revoke_comm},
             {"abort", abort_comm}};
#define CASES (sizeof(cases) / sizeof(cases[0]))

static unsigned count_of(const char *folder)
{
    DIR *d = opendir(folder);
    unsigned n = 0;

    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

/* Return whether this process maps a file of /dev/shm. */
static bool shares_memory(void)
{
    FILE *f = fopen("/proc/self/maps", "r");
    char line[512];
    bool found = false;

    while (f && fgets(line, sizeof(line), f))
        found |= strstr(line, "/dev/shm/") != NULL;
    if (f)
        fclose(f);
    return found;
}

/* Compare with the numbers after the first case. NCCL keeps some threads and descriptors of its own. Threads
 * that end need a moment. */
static void check_remains(const char *after)
{
    static unsigned threads, descriptors;
    unsigned t = count_of("/proc/self/task"), d = count_of("/proc/self/fd");

    for (int i = 0; threads && (t != threads || d != descriptors) && i < 100; i++) {
        usleep(20000);
        t = count_of("/proc/self/task");
        d = count_of("/proc/self/fd");
    }
    if (threads && (t > threads || d > descriptors))
        die("after %s a process has %u threads and %u descriptors, instead of %u and %u", after, t, d,
            threads, descriptors);
    if (shares_memory())
        die("after %s a process still maps files of /dev/shm", after);
    threads = t;
    descriptors = d;
}

static void run_rank(struct member m, char **arg, int count)
{
    char host[32];
    int version;

    snprintf(host, sizeof(host), "node%d", m.rank / m.per_node);
    setenv("NCCL_HOSTID", host, 1);
    /* The last node may have another version of the plugin. */
    if (getenv("NB_OTHER_PLUGIN") && m.rank >= m.ranks - m.per_node)
        setenv("NCCL_NET_PLUGIN", getenv("NB_OTHER_PLUGIN"), 1);
    library_layout(arg[1]);
    library_open(arg[0]);
    find_functions();
    device_use(m.rank % m.per_node);
    check(nccl.version(&version), "ncclGetVersion");
    /* Before 2.31 a child has CollNet only where it shares its parent's connections. */
    if (version < 23100)
        setenv("NCCL_COMM_SPLIT_SHARE_RESOURCES", "1", 1);
    for (int i = 3; i < count; i++)
        for (size_t c = 0; c < CASES; c++)
            if (strcmp(cases[c].name, arg[i]) == 0) {
                if ((cases[c].run == grow && !nccl.grow) || (cases[c].run == revoke_comm && !nccl.revoke))
                    continue;
                cases[c].run(&m);
                check_remains(arg[i]);
                if (m.rank == 0)
                    printf("ok      NCCL %d, %s nodes%s: %s\n", version, arg[2],
                           control ? " over NCCL's sockets" : "", arg[i]);
                fflush(stdout);
            }
}

int main(int argc, char **argv)
{
    const char *plugin = getenv("NCCL_NET_PLUGIN");
    int nodes, per_node = 1, status, failed = 0;
    pid_t child[MAX_RANKS] = {0};

    if (argc == 2 && strcmp(argv[1], "names") == 0) {
        library_names();
        return 0;
    }
    if (argc < 5 || sscanf(argv[3], "%dx%d", &nodes, &per_node) < 1 || nodes < 2 || per_node < 1 ||
        nodes * per_node > MAX_RANKS)
        die("usage: %s names | LIBRARY LAYOUT NODES[xRANKS] CASE...", argv[0]);
    control = plugin && strcmp(plugin, "none") == 0;
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        die("no memory");
    const int ranks = nodes * per_node;
    for (int i = 0; i < ranks; i++) {
        child[i] = fork();
        if (child[i] == 0) {
            run_rank((struct member){.rank = i, .ranks = ranks, .per_node = per_node}, argv + 1, argc - 1);
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
    return failed;
}
