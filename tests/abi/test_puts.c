/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's tables of one-sided operations (ncclRmaPlugin) among ranks of one process, over TCP on the loopback
 * interface: in host memory, and in memory of a GPU that the CPU cannot touch (gpu/fake_driver.h).
 */
#include <check.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "abi/process.h"
#include "abi/tables.h"
#include "base/context.h"
#include "device/cuda/driver.h"
#include "tests/base/capture.h"
#include "tests/base/environment.h"
#include "tests/gpu/fake_driver.h"
#include "tests/suite.h"

#define MOST 3
#define WINDOWS 4
#define HOST 0
#define GPU 1 /* kinds of memory, the loop variable of most tests */

static const ncclRma_v16_t *const rma = &ncclRmaPlugin_v16;

struct window {
    uint8_t *at, *seen; /* its address, and where the test finds the same bytes */
    size_t size;
    void *handle;
};

static struct rank {
    void *ctx, *listener, *comm, *rma;
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    struct window window[WINDOWS];
} rank[MOST];

static int ranks;
static bool gpu;
static uint64_t state = 1;

static void ok(ncclResult_t res)
{
    ck_assert_msg(res == ncclSuccess, "result %d; %s", res, capture_text);
}

static int64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static uint32_t any(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

static void fill(uint8_t *at, size_t size)
{
    for (size_t i = 0; i < size; i++)
        at[i] = (uint8_t)any();
}

static int current_gpu(struct nb_context *ctx)
{
    (void)ctx;
    return gpu ? 1 : -1;
}

static void prepare(int kind)
{
    environment_clear();
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("NIBBLE_NET", "tcp", 1);
    setenv("NIBBLE_RMA", "1", 1);
    setenv("NIBBLE_P2P", "delta", 1);
    capture_reset();
    gpu = kind == GPU;
    nb_cuda_override(&fake_driver);
    nb_process_context()->current_gpu = current_gpu;
}

/* Make the group's part of one rank, from all handles. */
static void join(int i, void *handles[])
{
    ncclRmaConfig_v14_t config = {.nContexts = 1, .trafficClass = -1, .rankStride = 1};

    ok(rma->connect(NULL, handles, ranks, i, rank[i].listener, &rank[i].comm));
    ok(rma->closeListen(rank[i].listener));
    ok(rma->createContext(rank[i].comm, &config, &rank[i].rma));
}

static void listen_as(int i)
{
    ok(rma->init(&rank[i].ctx, 77, capture_log));
    ok(rma->listen(rank[i].ctx, 0, rank[i].handle, &rank[i].listener));
}

static void open_group(int n, int kind)
{
    void *handles[MOST];

    prepare(kind);
    ranks = n;
    for (int i = 0; i < n; i++) {
        listen_as(i);
        handles[i] = rank[i].handle;
    }
    for (int i = 0; i < n; i++)
        join(i, handles);
}

static void leave(int i)
{
    ok(rma->destroyContext(rank[i].rma));
    ok(rma->closeColl(rank[i].comm));
    ok(rma->finalize(rank[i].ctx));
    rank[i].comm = NULL;
}

static void allocate(struct window *w, size_t size)
{
    void *seen;

    w->size = size;
    if (gpu) {
        w->at = fake_gpu_memory(size, &seen);
        w->seen = seen;
    } else {
        w->at = w->seen = malloc(size);
    }
    ck_assert_ptr_nonnull(w->at);
    memset(w->seen, 0, size);
}

static void release(struct window *w)
{
    if (gpu)
        fake_gpu_memory_free(w->at);
    else
        free(w->at);
    w->at = NULL;
}

static void add_window(int i, int w, size_t size)
{
    allocate(&rank[i].window[w], size);
    ok(rma->regMrSym(rank[i].comm, rank[i].window[w].at, size, NCCL_PTR_CUDA, 0, &rank[i].window[w].handle));
}

static void add_windows(int w, size_t size)
{
    for (int i = 0; i < ranks; i++)
        add_window(i, w, size);
}

static void close_group(void)
{
    for (int i = 0; i < ranks; i++) {
        for (int w = 0; w < WINDOWS; w++)
            if (rank[i].window[w].at)
                ok(rma->deregMrSym(rank[i].comm, rank[i].window[w].handle));
        leave(i);
    }
    for (int i = 0; i < ranks; i++)
        for (int w = 0; w < WINDOWS; w++)
            if (rank[i].window[w].at)
                release(&rank[i].window[w]);
    ck_assert_msg(capture_warned() == 0, "%s", capture_text);
    if (gpu)
        ck_assert_int_eq(fake_alive(), 0);
}

static void turn(void)
{
    for (int i = 0; i < ranks; i++)
        if (rank[i].comm)
            ok(rma->rmaProgress(rank[i].rma));
}

static void finish(int i, void *request)
{
    const int64_t end = now_ms() + 60000;
    int done = 0;

    while (!done) {
        turn();
        ok(rma->test(rank[i].comm, request, &done));
        ck_assert_msg(now_ms() < end, "an operation does not end; %s", capture_text);
    }
}

static uint64_t signal_of(int i, int w, size_t at)
{
    return __atomic_load_n((uint64_t *)(void *)(rank[i].window[w].seen + at), __ATOMIC_ACQUIRE);
}

static void await_signal(int i, int w, size_t at, uint64_t value)
{
    const int64_t end = now_ms() + 60000;

    while (signal_of(i, w, at) != value) {
        turn();
        ck_assert_msg(now_ms() < end, "a signal does not come: %llu instead of %llu; %s",
                      (unsigned long long)signal_of(i, w, at), (unsigned long long)value, capture_text);
    }
}

static void *put(int from, int to, size_t from_at, size_t to_at, size_t size)
{
    void *request = NULL;

    ok(rma->iput(rank[from].rma, 0, from_at, rank[from].window[0].handle, size, to_at,
                 rank[from].window[1].handle, (uint32_t)to, 0, &request));
    ck_assert_ptr_nonnull(request);
    return request;
}

static void *put_signal(int from, int to, size_t from_at, size_t to_at, size_t size, size_t signal_at,
                        uint64_t value)
{
    void *request = NULL;

    ok(rma->iputSignal(rank[from].rma, 0, from_at, rank[from].window[0].handle, size, to_at,
                       rank[from].window[1].handle, (uint32_t)to, signal_at, rank[from].window[2].handle,
                       value, value == 1 ? NCCL_NET_SIGNAL_OP_INC : NCCL_NET_SIGNAL_OP_ADD, true, 0,
                       &request));
    ck_assert_ptr_nonnull(request);
    return request;
}

/* ---- Results ---------------------------------------------------------------------------------------- */

/* Bytes of all sizes arrive at odd places, and none around them change. */
START_TEST(all_sizes)
{
    static const size_t sizes[] = {0, 1, 7, 8, 63, 4096, 4097, 16387, 1 << 20, (1 << 20) + 1, (3 << 20) + 5};
    enum { ROOM = 4 << 20 };
    uint64_t signals = 0;

    open_group(3, _i);
    add_windows(0, ROOM);
    add_windows(1, ROOM);
    add_windows(2, 64);
    fill(rank[0].window[0].seen, ROOM);
    for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++)
        for (int to = 0; to < 3; to++) { /* also to itself */
            const size_t from_at = 3 + k, to_at = 5 + 2 * k, n = sizes[k];
            uint8_t *got = rank[to].window[1].seen;
            memset(got, (int)(any() & 0xff), ROOM);
            const uint8_t before = got[to_at - 1], after = got[to_at + n];
            const uint64_t value = k % 2 ? 1 : 1000;
            void *request = put_signal(0, to, from_at, to_at, n, 8, value);
            if (to == 0)
                signals += value;
            await_signal(to, 2, 8, signals);
            finish(0, request);
            ck_assert(memcmp(got + to_at, rank[0].window[0].seen + from_at, n) == 0);
            ck_assert(got[to_at - 1] == before && got[to_at + n] == after);
        }
    close_group();
}
END_TEST

/* A signal is visible after the bytes of all puts before it. Another thread looks at host memory. */
#define PUTS 60
static size_t place_of[PUTS + 1];
static atomic_bool stop;

static atomic_bool wrong;

/* Return whether the bytes of the last put with a signal are there. */
static bool there(uint64_t n)
{
    const size_t at = n ? place_of[n - 1] : 0;

    return !n || memcmp(rank[1].window[1].seen + at, rank[0].window[0].seen + at, place_of[n] - at) == 0;
}

static void *looker(void *arg)
{
    while (!atomic_load(&stop))
        if (!there(signal_of(1, 2, 0)))
            atomic_store(&wrong, true);
    return arg;
}

START_TEST(signals_after_bytes)
{
    void *request[PUTS];
    pthread_t thread;

    for (int k = 0; k < PUTS; k++)
        place_of[k + 1] = place_of[k] + 1 + any() % (k % 5 ? 20000 : 2000000);
    open_group(2, _i);
    add_windows(0, place_of[PUTS]);
    add_windows(1, place_of[PUTS]);
    add_windows(2, 8);
    fill(rank[0].window[0].seen, place_of[PUTS]);
    atomic_store(&stop, false);
    if (!gpu)
        ck_assert_int_eq(pthread_create(&thread, NULL, looker, NULL), 0);
    for (int k = 0; k < PUTS; k++) { /* halves: a put without a signal, and one with it */
        const size_t n = place_of[k + 1] - place_of[k];
        request[k] = put(0, 1, place_of[k], place_of[k], n / 2);
        finish(0, put_signal(0, 1, place_of[k] + n / 2, place_of[k] + n / 2, n - n / 2, 0, 1));
        ck_assert(there(signal_of(1, 2, 0)));
    }
    await_signal(1, 2, 0, PUTS);
    atomic_store(&stop, true);
    if (!gpu)
        pthread_join(thread, NULL);
    ck_assert_msg(!atomic_load(&wrong), "a signal came before its put's bytes");
    ck_assert(memcmp(rank[1].window[1].seen, rank[0].window[0].seen, place_of[PUTS]) == 0);
    for (int k = 0; k < PUTS; k++)
        finish(0, request[k]);
    close_group();
}
END_TEST

/* Both directions at once, with operations of two contexts, and more of them than fit under way. */
START_TEST(contexts_and_directions)
{
    enum { OPS = 100, SIZE = 30000 };
    ncclRmaConfig_v14_t config = {.nContexts = 2, .trafficClass = -1, .rankStride = 1};
    void *request[2][OPS], *second[2];

    open_group(2, _i);
    for (int i = 0; i < 2; i++)
        ok(rma->createContext(rank[i].comm, &config, &second[i]));
    add_windows(0, OPS * SIZE);
    add_windows(1, OPS * SIZE);
    add_windows(2, 16);
    for (int i = 0; i < 2; i++)
        fill(rank[i].window[0].seen, OPS * SIZE);
    for (size_t k = 0; k < OPS; k++)
        for (int i = 0; i < 2; i++) {
            void *first = rank[i].rma;
            rank[i].rma = k % 2 ? second[i] : first;
            request[i][k] = put_signal(i, 1 - i, k * SIZE, k * SIZE, SIZE, 8 * (k % 2), 1);
            rank[i].rma = first;
        }
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < OPS; k++)
            finish(i, request[i][k]);
    for (int i = 0; i < 2; i++) {
        await_signal(i, 2, 0, OPS / 2);
        await_signal(i, 2, 8, OPS / 2);
        ck_assert(memcmp(rank[i].window[1].seen, rank[1 - i].window[0].seen, OPS * SIZE) == 0);
        ok(rma->destroyContext(second[i]));
    }
    close_group();
}
END_TEST

START_TEST(gets_and_flushes)
{
    enum { SIZE = (2 << 20) + 77 };
    void *request;

    open_group(2, _i);
    add_windows(0, SIZE);
    add_windows(1, SIZE);
    fill(rank[1].window[0].seen, SIZE);
    ok(rma->iget(rank[0].rma, 0, 5, rank[0].window[0].handle, SIZE - 5, 3, rank[0].window[1].handle, 1, 0,
                 &request));
    finish(0, request);
    ck_assert(memcmp(rank[0].window[1].seen + 3, rank[1].window[0].seen + 5, SIZE - 5) == 0);
    ok(rma->iget(rank[0].rma, 0, 0, rank[0].window[0].handle, 0, 0, rank[0].window[1].handle, 1, 0,
                 &request));
    finish(0, request);
    ok(rma->iget(rank[0].rma, 0, 3, rank[0].window[1].handle, 9, 0, rank[0].window[0].handle, 0, 0,
                 &request));
    finish(0, request);
    ck_assert(memcmp(rank[0].window[0].seen, rank[1].window[0].seen + 5, 9) == 0);
    ok(rma->iflush(rank[0].rma, 0, rank[0].window[0].handle, 1, &request));
    finish(0, request);
    close_group();
}
END_TEST

/* Weights that are gathered again travel as deltas, by their windows and offsets. */
START_TEST(deltas_of_what_comes_again)
{
    enum { SIZE = 3000002, ROUNDS = 4 };
    const struct nb_p2p_counts *counts = &nb_process_context()->p2p;
    uint64_t bytes[ROUNDS], wire[ROUNDS];

    open_group(2, _i);
    add_windows(0, 2 * SIZE);
    add_windows(1, 2 * SIZE);
    add_windows(2, 8);
    fill(rank[0].window[0].seen, 2 * SIZE);
    for (int k = 0; k < ROUNDS; k++) {
        uint16_t *weights = (uint16_t *)(void *)rank[0].window[0].seen;
        const uint64_t b = counts->bytes, w = counts->wire_bytes;
        for (size_t i = 0; k && i < SIZE; i++)
            if (any() % 33 == 0)
                weights[i]++;
        for (int half = 1; half >= 0; half--) /* in any order */
            finish(0, put_signal(0, 1, (size_t)half * SIZE, (size_t)half * SIZE, SIZE, 0, 1));
        await_signal(1, 2, 0, 2 * (uint64_t)(k + 1));
        ck_assert(memcmp(rank[1].window[1].seen, rank[0].window[0].seen, 2 * SIZE) == 0);
        bytes[k] = counts->bytes - b;
        wire[k] = counts->wire_bytes - w;
    }
    ck_assert_uint_eq(bytes[0], 0);
    for (int k = 1; k < ROUNDS; k++) {
        ck_assert_uint_eq(bytes[k], 2 * SIZE);
        ck_assert_msg(wire[k] * 5 < bytes[k], "round %d: %llu bytes took %llu", k,
                      (unsigned long long)bytes[k], (unsigned long long)wire[k]);
    }
    /* Other bytes for the same place are right, too. */
    fill(rank[0].window[0].seen, SIZE);
    finish(0, put_signal(0, 1, 0, 0, SIZE, 0, 1));
    await_signal(1, 2, 0, 2 * ROUNDS + 1);
    ck_assert(memcmp(rank[1].window[1].seen, rank[0].window[0].seen, 2 * SIZE) == 0);
    close_group();
}
END_TEST

/* A rank may put before the others have registered the memory. */
START_TEST(registered_later)
{
    enum { SIZE = 100000 };
    void *request[2];

    open_group(2, _i);
    for (int w = 0; w < 3; w++)
        add_window(0, w, SIZE);
    fill(rank[0].window[0].seen, SIZE);
    request[0] = put_signal(0, 1, 0, 0, SIZE, 0, 1);
    request[1] = put_signal(0, 1, 0, 0, 100, 0, 1);
    for (int i = 0; i < 2000; i++)
        turn();
    for (int w = 0; w < 2; w++)
        add_window(1, w, SIZE);
    for (int i = 0; i < 2000; i++)
        turn();
    add_window(1, 2, SIZE);
    await_signal(1, 2, 0, 2);
    ck_assert(memcmp(rank[1].window[1].seen, rank[0].window[0].seen, SIZE) == 0);
    for (int k = 0; k < 2; k++)
        finish(0, request[k]);
    close_group();
}
END_TEST

/* The tables of earlier versions have the same functions. */
START_TEST(earlier_versions)
{
    const ncclRma_v14_t *v14 = &ncclRmaPlugin_v14;
    void *request;

    open_group(2, HOST);
    for (int w = 0; w < 3; w++)
        add_windows(w, 1000);
    fill(rank[0].window[0].seen, 1000);
    ok(v14->iput(rank[0].rma, 0, 0, rank[0].window[0].handle, 500, 0, rank[0].window[1].handle, 1, &request));
    finish(0, request);
    ok(v14->iputSignal(rank[0].rma, 0, 500, rank[0].window[0].handle, 500, 500, rank[0].window[1].handle, 1,
                       0, rank[0].window[2].handle, 7, NCCL_NET_SIGNAL_OP_ADD, true, &request));
    finish(0, request);
    await_signal(1, 2, 0, 7);
    ck_assert(memcmp(rank[1].window[1].seen, rank[0].window[0].seen, 1000) == 0);
    ok(v14->iget(rank[1].rma, 0, 0, rank[1].window[0].handle, 1000, 0, rank[1].window[1].handle, 0,
                 &request));
    finish(1, request);
    close_group();
}
END_TEST

/* ---- Where nibble leaves the operations to NCCL ----------------------------------------------------- */

START_TEST(not_offered)
{
    void *ctx = NULL;

    prepare(HOST);
    unsetenv("NIBBLE_RMA");
    ck_assert_int_ne(rma->init(&ctx, 1, capture_log), ncclSuccess);
    ck_assert_ptr_null(ctx);
    ck_assert(capture_has("left to NCCL's own table (NIBBLE_RMA=0)"));
    ck_assert_int_eq(capture_warned(), 0);

    prepare(GPU);
    fake_fail(1, NB_CU_NO_DEVICE);
    ck_assert_int_ne(rma->init(&ctx, 1, capture_log), ncclSuccess);
    ck_assert(capture_has("despite NIBBLE_RMA=1: memory of GPU 1 cannot be copied"));
    fake_fail(0, 0);
}
END_TEST

START_TEST(properties)
{
    ncclRmaProperties_v16_t group;
    ncclNetProperties_v12_t props;
    int n = 0;

    open_group(1, HOST);
    ok(rma->devices(&n));
    ck_assert_int_ge(n, 1);
    ok(rma->getProperties(0, &props));
    ck_assert_int_eq(props.netDeviceType, NCCL_NET_DEVICE_GIN_PROXY);
    ck_assert_int_eq(props.netDeviceVersion, NCCL_GIN_PROXY_VERSION);
    ck_assert_int_eq(props.ptrSupport, NCCL_PTR_HOST | NCCL_PTR_CUDA);
    ok(rma->getRmaProperties(rank[0].comm, &group));
    ck_assert(!group.flushesAllPutsOnAnySignal);
    close_group();
}
END_TEST

/* ---- Mistakes --------------------------------------------------------------------------------------- */

START_TEST(bad_arguments)
{
    void *request, *m;

    open_group(2, HOST);
    for (int w = 0; w < 3; w++)
        add_windows(w, 1000);
    void *from = rank[0].window[0].handle, *to = rank[0].window[1].handle, *at = rank[0].window[2].handle;
#define BAD(call, line) \
    do { \
        capture_reset(); \
        ck_assert_int_eq(call, ncclInternalError); \
        ck_assert_msg(capture_has(line), "%s", capture_text); \
    } while (0)
    BAD(rma->iput(rank[0].rma, 0, 0, NULL, 10, 0, to, 1, 0, &request), "the source is not registered");
    BAD(rma->iput(rank[0].rma, 0, 0, from, 10, 0, NULL, 1, 0, &request), "the destination is not registered");
    BAD(rma->iput(rank[0].rma, 0, 991, from, 10, 0, to, 1, 0, &request), "10 bytes at 991 exceed");
    BAD(rma->iput(rank[0].rma, 0, UINT64_MAX, from, 10, 0, to, 1, 0, &request), "exceed");
    BAD(rma->iput(rank[0].rma, 0, 0, from, 10, 0, to, 2, 0, &request), "there is no rank 2");
    BAD(rma->iput(rank[0].rma, 0, 0, from, 10, 991, to, 0, 0, &request), "the destination: 10 bytes at 991");
    BAD(rma->iput(NULL, 0, 0, from, 10, 0, to, 1, 0, &request), "NULL for rma_ctx");
    BAD(rma->iputSignal(rank[0].rma, 0, 0, from, 0, 0, to, 1, 4, at, 1, NCCL_NET_SIGNAL_OP_ADD, true, 0,
                        &request),
        "no multiple of 8");
    BAD(rma->iputSignal(rank[0].rma, 0, 0, from, 0, 0, to, 1, 0, at, 1, 9, true, 0, &request),
        "unknown operation 9");
    BAD(rma->iget(rank[0].rma, 0, 0, from, 10, 999, to, 1, 0, &request), "the destination: 10 bytes at 999");
    BAD(rma->regMrSym(rank[0].comm, NULL, 10, NCCL_PTR_HOST, 0, &m), "cannot register");
    BAD(rma->deregMrSym(rank[0].comm, NULL), "is not registered");
    BAD(rma->test(rank[0].comm, NULL, &(int){0}), "NULL for request");
    ok(rma->deregMrSym(rank[0].comm, from));
    BAD(rma->deregMrSym(rank[0].comm, from), "is not registered");
    BAD(rma->iput(rank[0].rma, 0, 0, from, 10, 0, to, 1, 0, &request), "the source is not registered");
    capture_reset();
    turn(); /* the group goes on */
    rank[0].window[0].handle = to;
    finish(0, put(0, 1, 0, 0, 10));
    free(rank[0].window[0].at);
    rank[0].window[0].at = NULL;
    close_group();
}
END_TEST

/* Progress of both ranks until rank `i` has an error. Return the result. */
static ncclResult_t until_error(int i)
{
    const int64_t end = now_ms() + 60000;
    ncclResult_t res = ncclSuccess;
    bool has = false;

    while (res == ncclSuccess) {
        for (int k = 0; k < ranks; k++)
            if (rank[k].comm && k != i)
                (void)rma->rmaProgress(rank[k].rma);
        res = rma->rmaProgress(rank[i].rma);
        ck_assert_msg(now_ms() < end, "no error; %s", capture_text);
    }
    ok(rma->queryLastError(rank[i].rma, &has));
    ck_assert(has);
    return res;
}

/* What the receiver alone can see fails both. */
START_TEST(outside_of_the_destination)
{
    void *request;
    int done;

    open_group(2, _i);
    add_window(0, 0, 1000);
    add_window(1, 0, 1000);
    add_window(0, 1, 1000);
    add_window(1, 1, 500);
    request = put(0, 1, 0, 1, 500);
    ck_assert_int_eq(until_error(1), ncclRemoteError);
    ck_assert(capture_has("500 bytes at 1 of 500 registered ones"));
    (void)rma->test(rank[0].comm, request, &done);
    leave(1);
    if (capture_has("is lost") || !done)
        (void)rma->rmaProgress(rank[0].rma);
    leave(0);
}
END_TEST

START_TEST(handles_of_others)
{
    void *handles[2];

    prepare(HOST);
    ranks = 2;
    for (int i = 0; i < 2; i++) {
        listen_as(i);
        handles[i] = rank[i].handle;
    }
    memset(rank[1].handle, 0, sizeof(rank[1].handle));
    ck_assert_int_eq(rma->connect(NULL, handles, 2, 0, rank[0].listener, &rank[0].comm), ncclRemoteError);
    ck_assert(capture_has("rank 1 does not carry them as this version of nibble does"));
    for (int i = 0; i < 2; i++) {
        ok(rma->closeListen(rank[i].listener));
        ok(rma->finalize(rank[i].ctx));
    }
}
END_TEST

/* ---- The end of a rank ------------------------------------------------------------------------------ */

/* A rank that leaves on purpose is no failure, until another one needs it. */
START_TEST(leaving)
{
    void *request = NULL;

    open_group(2, _i);
    for (int w = 0; w < 3; w++)
        add_windows(w, 1000);
    finish(0, put_signal(0, 1, 0, 0, 100, 0, 1));
    await_signal(1, 2, 0, 1);
    leave(1);
    for (int64_t end = now_ms() + 1700; now_ms() < end;)
        turn();
    ck_assert_int_eq(capture_warned(), 0);
    if (rma->iput(rank[0].rma, 0, 0, rank[0].window[0].handle, 100, 0, rank[0].window[1].handle, 1, 0,
                  &request) == ncclSuccess)
        until_error(0);
    ck_assert(capture_has("rank 1 has left"));
    leave(0);
}
END_TEST

/* Return the tuner's answer for communicator `comm_id`. */
static ncclResult_t tuned(uint64_t comm_id)
{
    float cost[NCCL_NUM_ALGORITHMS_V5][NCCL_NUM_PROTOCOLS_V5] = {{0}};
    int channels = 1;
    void *coll, *tuner;

    ok(ncclCollNetPlugin_v12.init(&coll, comm_id, capture_log));
    ok(ncclTunerPlugin_v6.init(&tuner, comm_id, 2, 2, capture_log, NULL, NULL));
    const ncclResult_t res =
        ncclTunerPlugin_v6.getCollInfo(tuner, ncclFuncAllReduce, 1 << 20, 1, (float **)cost,
                                       NCCL_NUM_ALGORITHMS_V5, NCCL_NUM_PROTOCOLS_V5, 0, &channels);
    ok(ncclTunerPlugin_v6.finalize(tuner));
    ok(ncclCollNetPlugin_v12.finalize(coll));
    return res;
}

/* A rank that dies gives the others an error, also where they only wait for its signal. The tuner passes it
 * on. */
START_TEST(dying)
{
    int up[2], down[2];
    void *handles[2] = {rank[0].handle, rank[1].handle}, *request;
    char byte;
    pid_t pid;

    ranks = 2;
    ck_assert(!pipe(up) && !pipe(down));
    pid = fork();
    ck_assert_int_ge(pid, 0);
    prepare(HOST);
    const int me = pid ? 0 : 1;
    if (!pid)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    listen_as(me);
    ck_assert(write(pid ? down[1] : up[1], rank[me].handle, sizeof(rank[me].handle)) ==
              sizeof(rank[me].handle));
    ck_assert(read(pid ? up[0] : down[0], rank[1 - me].handle, sizeof(rank[me].handle)) ==
              sizeof(rank[me].handle));
    join(me, handles);
    for (int w = 0; w < 3; w++)
        add_window(me, w, 100000);
    if (!pid) {
        while (signal_of(1, 2, 0) == 0)
            ok(rma->rmaProgress(rank[1].rma));
        for (int i = 0; i < 3000; i++) /* it connects back */
            ok(rma->rmaProgress(rank[1].rma));
        ck_assert(write(up[1], "x", 1) == 1);
        for (;;)
            pause();
    }
    finish(0, put_signal(0, 1, 0, 0, 100000, 0, 1));
    while (read(up[0], &byte, 1) != 1)
        ;
    request = _i ? put(0, 1, 0, 0, 50000) : NULL; /* one under way, or none */
    ok(tuned(77));
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    ck_assert_int_ne(until_error(0), ncclSuccess);
    ck_assert_int_eq(tuned(77), ncclRemoteError);
    ok(tuned(78));
    ck_assert_msg(capture_has("rank 1 is lost"), "%s", capture_text);
    if (request) {
        int done = 0;
        ck_assert(rma->test(rank[0].comm, request, &done) != ncclSuccess || done);
    }
    rank[1].comm = NULL;
    leave(0);
}
END_TEST

/* Memory that is deregistered is left alone, also with puts under way. */
START_TEST(deregistered_under_way)
{
    enum { SIZE = 24 << 20 };
    const int at = _i; /* rank 0: the source, rank 1: the destination */
    ncclResult_t res;

    open_group(2, HOST);
    for (int w = 0; w < 3; w++)
        add_windows(w, SIZE);
    finish(0, put_signal(0, 1, 0, 0, 1, 0, 1));
    await_signal(1, 2, 0, 1);
    (void)put(0, 1, 0, 0, SIZE);
    for (int i = 0; i < 3; i++)
        turn();
    (void)put(0, 1, 0, 0, SIZE);
    res = rma->deregMrSym(rank[at].comm, rank[at].window[at].handle);
    release(&rank[at].window[at]);
    if (at == 0) {
        ck_assert_int_eq(res, ncclInternalError);
        ck_assert(capture_has("memory is deregistered while operations use it"));
    }
    until_error(at);
    leave(at);
    leave(1 - at);
}
END_TEST

SUITE_MAIN("abi/puts", LOOP(all_sizes, HOST, GPU + 1), LOOP(signals_after_bytes, HOST, GPU + 1),
           LOOP(contexts_and_directions, HOST, GPU + 1), LOOP(gets_and_flushes, HOST, GPU + 1),
           LOOP(deltas_of_what_comes_again, HOST, GPU + 1), LOOP(registered_later, HOST, GPU + 1),
           TEST(earlier_versions), TEST(not_offered), TEST(properties), TEST(bad_arguments),
           LOOP(outside_of_the_destination, HOST, GPU + 1), TEST(handles_of_others),
           LOOP(leaving, HOST, GPU + 1), LOOP(dying, 0, 2), LOOP(deregistered_under_way, 0, 2))
