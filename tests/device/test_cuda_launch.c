/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of the CUDA device beside NCCL's: of several communicators, in graphs, and kernels that do not get
 * on. */
#include "cuda_fixture.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define AHEAD 40u /* launches by which the host is ahead of the GPU */

struct host {
    nb_cu_stream stream;
    uint64_t comm;
    struct operation *op;
    unsigned n;
    atomic_uint done;
    unsigned ring; /* one launch in so many has no window for the engine */
    int gathers;   /* only gathers besides: no all-reduces */
};

static enum operations kind(const struct host *h, unsigned i)
{
    return h->ring && i % h->ring == 0 ? RING : h->gathers || i % 2 ? GATHER : ALL_REDUCE;
}

static void *host_main(void *arg)
{
    struct host *h = arg;

    for (unsigned i = 0; i < h->n; i++) {
        while (i >= atomic_load(&h->done) + AHEAD)
            usleep(50);
        CHECK(launch(h->stream, h->comm, &h->op[i], kind(h, i)) != 0);
        if (kind(h, i) == RING)
            atomic_store(&h->op[i].may_end, 1);
    }
    return NULL;
}

/* Run several communicators, each on its own stream and thread, with one engine. All kernels come and go. */
static void run_launches(unsigned comms, unsigned n, unsigned ring, int gathers)
{
    struct nb_device *dev[4] = {NULL};
    struct buffers b[4];
    struct host h[4] = {0};
    pthread_t thread[4];
    unsigned left = comms * n;
    struct nb_gpu *g;

    for (unsigned c = 0; c < comms; c++) {
        dev[c] = open_device(COMM + c);
        make_buffers(&b[c], dev[c]);
        h[c].stream = fake_stream();
        h[c].comm = COMM + c;
        h[c].n = n;
        h[c].ring = ring;
        h[c].gathers = gathers;
        CHECK((h[c].op = calloc(n, sizeof(*h[c].op))) != NULL);
    }
    g = gpu_of(dev[0]);
    CHECK(g->launches.how == NB_LAUNCH_RESIDENT);
    for (unsigned c = 0; c < comms; c++)
        CHECK(pthread_create(&thread[c], NULL, host_main, &h[c]) == 0);
    fake_serves(1);
    while (left) {
        for (unsigned c = 0; c < comms; c++) {
            unsigned i = atomic_load(&h[c].done);
            if (i < n && atomic_load(&h[c].op[i].begun)) {
                if (kind(&h[c], i) == GATHER)
                    dev[c]->ops->begins(dev[c]);
                if (kind(&h[c], i) != RING) {
                    serve(dev[c], &b[c], random32() % 5);
                    atomic_store(&h[c].op[i].may_end, 1);
                }
                atomic_store(&h[c].done, i + 1);
                left--;
            }
            dev[c]->ops->turn(dev[c], 0);
        }
        usleep(10);
    }
    for (unsigned c = 0; c < comms; c++)
        pthread_join(thread[c], NULL);
    for (unsigned c = 0; c < comms; c++) {
        g = gpu_of(dev[c]);
        while (dev[c]->ops->turn(dev[c], 0) ||
               atomic_load(&g->launches.places)) /* until all marks are seen */
            usleep(20);
        CHECK(atomic_load(&g->launches.launched) == n + g->launches.alone);
        CHECK(__atomic_load_n(&g->ring.host->ring.ended, __ATOMIC_ACQUIRE) ==
              atomic_load(&g->launches.launched));
        CHECK(atomic_load(&g->launches.open) == 0);
    }
    fake_serves(0);
    for (unsigned c = 0; c < comms; c++) {
        fake_wait(h[c].stream);
        fake_stream_free(h[c].stream);
        free(h[c].op);
        free_buffers(&b[c]);
    }
    for (unsigned c = 0; c < comms; c++)
        close_device(dev[c]);
    CHECK(fake_alive() == 0);
}

static void test_launches(int emulate, unsigned n)
{
    fake = (struct fake_settings){.emulate = emulate};
    run_launches(1, n, 0, 0);
    run_launches(3, n, 7, 0);
}

struct replayer {
    struct fake_graph *graph;
    atomic_int done;
};

static void *replay_main(void *arg)
{
    struct replayer *r = arg;

    fake_replay(r->graph);
    atomic_store(&r->done, 1);
    return NULL;
}

static void test_graph(void)
{
    struct nb_device *dev;
    struct buffers b;
    struct operation op[2] = {{0}};
    struct replayer r = {0};
    const unsigned warned = warnings;
    nb_cu_stream stream;
    pthread_t thread;

    fake = (struct fake_settings){0};
    dev = open_device(COMM);
    make_buffers(&b, dev);
    stream = fake_stream();
    while (dev->ops->turn(dev, 0)) /* a capture waits until earlier kernels have ended */
        usleep(20);
    fake_capture(stream);
    for (int i = 0; i < 2; i++)
        CHECK(launch(stream, COMM, &op[i], ALL_REDUCE) != 0);
    r.graph = fake_capture_end(stream);
    for (int replay = 0; replay < 20; replay++) {
        memset(op, 0, sizeof(op));
        atomic_store(&r.done, 0);
        CHECK(pthread_create(&thread, NULL, replay_main, &r) == 0);
        for (int i = 0; i < 2; i++) {
            while (!atomic_load(&op[i].begun))
                dev->ops->turn(dev, 0);
            serve(dev, &b, 3);
            atomic_store(&op[i].may_end, 1);
        }
        while (!atomic_load(&r.done))
            dev->ops->turn(dev, 0);
        pthread_join(thread, NULL);
        /* an uncaptured one in between, and one that only sends and receives */
        CHECK(nb_launch_begin(&ctx, GPU, COMM, NODES, stream, false, false) == 0 && warnings == warned);
        struct operation eager = {0};
        CHECK(launch(stream, COMM, &eager, replay % 2 ? GATHER : ALL_REDUCE) != 0);
        while (!atomic_load(&eager.begun))
            dev->ops->turn(dev, 0);
        if (replay % 2)
            dev->ops->begins(dev);
        serve(dev, &b, 2);
        atomic_store(&eager.may_end, 1);
        while (dev->ops->turn(dev, 0))
            usleep(20);
        fake_wait(stream);
    }
    CHECK(gpu_of(dev)->ring.host->ring.ended == 20 * 3 + gpu_of(dev)->launches.alone);
    fake_graph_free(r.graph);
    fake_stream_free(stream);
    free_buffers(&b);
    close_device(dev);
    CHECK(fake_alive() == 0);
}

static void test_watchdog(int stuck)
{
    struct nb_device *dev;
    struct nb_work w;
    char *wire;
    ssize_t ret;

    settings("NIBBLE_GPU_TIMEOUT", "1");
    fake = (struct fake_settings){0};
    dev = open_device(COMM);
    wire = dev->ops->alloc(dev, NB_PLACE_WIRE, 4096);
    fake.never = !stuck;
    fake.stuck = stuck;
    CHECK(dev->ops->copy(dev, &w, wire + 2048, wire, 100) == -EINPROGRESS);
    memset(wire, 1, 100);
    while ((ret = dev->ops->poll(dev, &w)) == -EINPROGRESS)
        usleep(1000);
    CHECK(ret == -ECANCELED && dev->ops->failed(dev) == -ETIMEDOUT);
    CHECK(strstr(last_warning, stuck ? "makes no progress" : "has not begun") &&
          strstr(last_warning, "NIBBLE_GPU_TIMEOUT"));
    CHECK(dev->ops->copy(dev, NULL, wire + 2048, wire, 100) == -ETIMEDOUT);
    fake.never = 0; /* the late kernel does not touch memory */
    dev->ops->turn(dev, 0);
    dev->ops->quiesce(dev);
    while (__atomic_load_n(&gpu_of(dev)->ring.host->ring.ended, __ATOMIC_ACQUIRE) == 0)
        dev->ops->turn(dev, 0);
    CHECK(wire[2048] == 0);
    dev->ops->free(dev, NB_PLACE_WIRE, wire, 4096);
    close_device(dev);
    CHECK(fake_alive() == 0);
    settings("NIBBLE_GPU_TIMEOUT", NULL);
}

/* Which launches get a kernel of which ring: the communicator's own, and a child's only after operations of
 * it have come. Another communicator of as many nodes gets none, because its windows never come here. */
static void test_attach(void)
{
    const uint64_t child = 1234, stranger = 4321;
    struct nb_device *dev;
    nb_cu_stream stream;

    fake = (struct fake_settings){0};
    dev = open_device(COMM);
    stream = fake_stream();
    CHECK(nb_launch_begin(&ctx, GPU, stranger, NODES, stream, true, true) == 0);
    CHECK(nb_launch_begin(&ctx, GPU, child, NODES, stream, true, true) == 0);
    dev->ops->shares(dev, child);
    CHECK(nb_launch_begin(&ctx, GPU, stranger, NODES, stream, true, true) == 0);
    struct operation op = {.may_end = 1};
    CHECK(launch(stream, child, &op, ALL_REDUCE) != 0);
    while (dev->ops->turn(dev, 0))
        usleep(20);
    fake_wait(stream);
    fake_stream_free(stream);
    close_device(dev);
    CHECK(fake_alive() == 0);
}

/* A peer is late for long. NCCL's kernel has ended and a window is open, and the codec kernel ends all the
 * same. The rest of the window gets its own kernel. From the first turn on this thread calls no driver. */
static void test_lingers(void)
{
    struct operation op = {.may_end = 1};
    struct nb_device *dev;
    struct buffers b;
    nb_cu_stream stream;
    struct nb_gpu *g;

    fake = (struct fake_settings){0};
    dev = open_device(COMM);
    make_buffers(&b, dev);
    g = gpu_of(dev);
    stream = fake_stream();
    const uint64_t before = __atomic_load_n(&g->ring.host->ring.ended, __ATOMIC_ACQUIRE);
    CHECK(launch(stream, COMM, &op, ALL_REDUCE) != 0);
    fake_serves(1);
    while (__atomic_load_n(&g->ring.host->ring.ended, __ATOMIC_ACQUIRE) == before) {
        dev->ops->turn(dev, 1);
        usleep(1000);
    }
    CHECK(!dev->ops->ready(dev)); /* a new window needs a kernel first */
    while (!dev->ops->ready(dev)) {
        dev->ops->turn(dev, 1);
        usleep(50);
    }
    serve(dev, &b, 5);
    CHECK(dev->ops->alloc(dev, NB_PLACE_STATE, 100 << 20) == NULL); /* grows on another thread */
    void *more;
    while (!(more = dev->ops->alloc(dev, NB_PLACE_STATE, 100 << 20)))
        usleep(1000);
    while (dev->ops->turn(dev, 0))
        usleep(20);
    CHECK(g->launches.alone >= 1 && g->arena.grown >= 1);
    dev->ops->free(dev, NB_PLACE_STATE, more, 100 << 20);
    fake_serves(0);
    fake_wait(stream);
    fake_stream_free(stream);
    free_buffers(&b);
    close_device(dev);
    CHECK(fake_alive() == 0);
}

/* An operation of which the engine is done ends its kernel although NCCL's goes on. */
static void test_counts(void)
{
    struct operation op = {0};
    struct nb_device *dev;
    struct buffers b;
    nb_cu_stream stream;
    struct nb_gpu *g;

    fake = (struct fake_settings){0};
    dev = open_device(COMM);
    make_buffers(&b, dev);
    g = gpu_of(dev);
    stream = fake_stream();
    while (dev->ops->turn(dev, 0))
        usleep(20);
    const uint64_t before = __atomic_load_n(&g->ring.host->ring.ended, __ATOMIC_ACQUIRE);
    const uint64_t alone = g->launches.alone;
    CHECK(launch(stream, COMM, &op, GATHER) != 0);
    while (!atomic_load(&op.begun))
        dev->ops->turn(dev, 0); /* idle turns before the operation begins end nothing */
    for (int i = 0; i < 100; i++)
        dev->ops->turn(dev, 0);
    CHECK(__atomic_load_n(&g->ring.host->ring.ended, __ATOMIC_ACQUIRE) == before);
    dev->ops->begins(dev);
    serve(dev, &b, 3);
    while (__atomic_load_n(&g->ring.host->ring.ended, __ATOMIC_ACQUIRE) == before) {
        dev->ops->turn(dev, 0);
        usleep(20);
    }
    CHECK(g->launches.alone == alone);
    atomic_store(&op.may_end, 1);
    while (dev->ops->turn(dev, 0) || atomic_load(&g->launches.places))
        usleep(20);
    fake_wait(stream);
    fake_stream_free(stream);
    free_buffers(&b);
    close_device(dev);
    CHECK(fake_alive() == 0);
}

/* Another thread spoils the capture, and NCCL's launch fails. A warning says why, and the next launch
 * goes. */
static void test_invalidated(void)
{
    struct operation lost = {0}, op = {.may_end = 1};
    struct nb_device *dev;
    nb_cu_stream stream;
    struct nb_gpu *g;

    fake = (struct fake_settings){.invalidated = 1};
    dev = open_device(COMM);
    g = gpu_of(dev);
    stream = fake_stream();
    const uint64_t launched = atomic_load(&g->launches.launched);
    CHECK(launch(stream, COMM, &lost, ALL_REDUCE) != 0);
    CHECK(strstr(last_warning, "cudaDeviceSynchronize") && strstr(last_warning, "NIBBLE_GPU_LAUNCH=behind"));
    CHECK(!dev->ops->failed(dev) && !atomic_load(&g->launches.open) && !atomic_load(&g->launches.places));
    CHECK(atomic_load(&g->launches.launched) == launched && !atomic_load(&lost.begun));
    fake.invalidated = 0;
    CHECK(launch(stream, COMM, &op, ALL_REDUCE) != 0);
    while (dev->ops->turn(dev, 0) || atomic_load(&g->launches.places))
        usleep(20);
    fake_wait(stream);
    CHECK(atomic_load(&op.ended));
    fake_stream_free(stream);
    close_device(dev);
    CHECK(fake_alive() == 0);
}

int main(void)
{
    const int quick = getenv("NB_TEST_QUICK") != NULL;

    fixture_open();
    test_watchdog(0);
    test_watchdog(1);
    nb_launch_attached(&ctx, GPU, 1);
    test_launches(0, getenv("NB_LONG_TESTS") ? 20000 : quick ? 40 : 150);
    if (EMULATES)
        test_launches(1, 20);
    test_graph();
    test_attach();
    test_lingers();
    test_counts();
    test_invalidated();
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1); /* gathers without a mark */
    run_launches(3, quick ? 40 : 150, 7, 1);
    run_launches(2, 20, 3, 0);
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    fake = (struct fake_settings){.no_update = 1};
    run_launches(1, 20, 0, 0);
    fake = (struct fake_settings){.blocking = 1};
    run_launches(2, 40, 7, 0);
    settings("NIBBLE_GPU_LAUNCH", "behind");
    test_launches(0, getenv("NB_LONG_TESTS") ? 20000 : quick ? 40 : 150);
    test_graph();
    test_lingers();
    test_counts();
    settings("NIBBLE_GPU_LAUNCH", NULL);
    nb_launch_attached(&ctx, GPU, -1);
    fixture_close();
    printf("kernels beside NCCL's come and go\n");
    return 0;
}
