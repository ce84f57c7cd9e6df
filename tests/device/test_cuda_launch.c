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
    unsigned nothing; /* one launch in so many has no window for the engine */
};

static void *host_main(void *arg)
{
    struct host *h = arg;

    for (unsigned i = 0; i < h->n; i++) {
        while (i >= atomic_load(&h->done) + AHEAD)
            usleep(50);
        const int nothing = h->nothing && i % h->nothing == 0;
        uint64_t number =
            nothing ? launch_unused(h->stream, h->comm, &h->op[i]) : launch(h->stream, h->comm, &h->op[i]);
        CHECK(number != 0);
        if (nothing)
            atomic_store(&h->op[i].may_end, 1);
    }
    return NULL;
}

/* Run several communicators, each on its own stream and thread, with one engine. All kernels come and go. */
static void run_launches(unsigned comms, unsigned n, unsigned nothing)
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
        h[c].nothing = nothing;
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
                if (!nothing || i % nothing) {
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
        CHECK(atomic_load(&g->launches.launched) == n + g->launches.alone + g->launches.again);
        CHECK(__atomic_load_n(&g->ring.host->ring.ended, __ATOMIC_ACQUIRE) ==
              atomic_load(&g->launches.launched));
        CHECK(atomic_load(&g->launches.open) == 0 && atomic_load(&g->launches.late) == 0);
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
    run_launches(1, n, 0);
    run_launches(3, n, 7);
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
        CHECK(launch(stream, COMM, &op[i]) != 0);
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
        /* an uncaptured one in between */
        struct operation eager = {0};
        CHECK(launch(stream, COMM, &eager) != 0);
        while (!atomic_load(&eager.begun))
            dev->ops->turn(dev, 0);
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
    CHECK(nb_launch_begin(&ctx, GPU, stranger, NODES, stream) == 0);
    CHECK(nb_launch_begin(&ctx, GPU, child, NODES, stream) == 0);
    dev->ops->shares(dev, child);
    CHECK(nb_launch_begin(&ctx, GPU, stranger, NODES, stream) == 0);
    struct operation op = {.may_end = 1};
    CHECK(launch(stream, child, &op) != 0);
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
    CHECK(launch(stream, COMM, &op) != 0);
    fake_wait(stream); /* NCCL's stream does not wait for the codec kernel */
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
    fake_stream_free(stream);
    free_buffers(&b);
    close_device(dev);
    CHECK(fake_alive() == 0);
}

/* Time for the engine that passes only where this test lets it. On a busy machine a thread may lose its
 * processor for longer than any wait of the engine here. */
static _Atomic uint64_t test_time;

static uint64_t test_clock(void *unused)
{
    (void)unused;
    return atomic_load(&test_time);
}

static int turn_later(struct nb_device *dev, int open)
{
    const int more = dev->ops->turn(dev, open);

    atomic_fetch_add(&test_time, 60 * NB_NS_PER_US); /* about as long as the pause */
    usleep(20);
    return more;
}

static uint64_t again(struct nb_launches *l)
{
    pthread_mutex_lock(&l->lock);
    const uint64_t n = l->again;
    pthread_mutex_unlock(&l->lock);
    return n;
}

static int all_have_left(struct nb_launches *l)
{
    return __atomic_load_n(&l->ring->host->ring.ended, __ATOMIC_ACQUIRE) == atomic_load(&l->launched);
}

/* NCCL's launch returns only when the plugin's kernels have ended. The codec kernel leaves, and comes again
 * behind NCCL's. Where that happens each time, the plugin launches it there from the start. Work that must
 * follow NCCL's launch comes late as well, and the codec kernel does not wait for it. */
static void test_stalls(void)
{
    struct nb_device *dev;
    struct buffers b;
    nb_cu_stream stream;
    struct nb_launches *l;
    unsigned ahead = 0;

    fake = (struct fake_settings){0};
    dev = open_device(COMM);
    make_buffers(&b, dev);
    /* It never passes faster than real time, which goes on afterwards. */
    atomic_store(&test_time, nb_now_ns());
    ctx.clock.now_ns = test_clock;
    l = &gpu_of(dev)->launches;
    stream = fake_stream();
    while (turn_later(dev, 0))
        ;
    const uint64_t alone = l->alone;
    for (int i = 0; i < 10; i++) {
        struct operation op = {0};
        const uint64_t before = atomic_load(&l->launched);
        const uint64_t number = nb_launch_begin(&ctx, GPU, COMM, NODES, stream);
        const unsigned first = atomic_load(&l->launched) > before;
        /* The kernel that is launched again during NCCL's launch is about to leave too. */
        while (again(l) < 2 * ahead + first || !all_have_left(l))
            turn_later(dev, 0);
        fake_run(stream, nccl_kernel, &op);
        nb_launch_end(&ctx, number);
        while (!atomic_load(&op.begun) || !dev->ops->ready(dev))
            turn_later(dev, 1);
        turn_later(dev, 1); /* it has seen the codec kernel begin before there is work for it */
        serve(dev, &b, 5);
        atomic_store(&op.may_end, 1);
        fake_wait(stream);
        while (!all_have_left(l))
            turn_later(dev, 0);
        nb_launch_posted(&ctx, number);
        while (turn_later(dev, 0) || atomic_load(&l->places)) /* until the engine sees the mark */
            ;
        ahead += first;
        CHECK(again(l) == 2 * ahead); /* once before NCCL's launch returns, once behind it */
    }
    CHECK(ahead == 8 && l->alone == alone);
    ctx.clock.now_ns = NULL;
    fake_stream_free(stream);
    free_buffers(&b);
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
    settings("NIBBLE_GPU_LAUNCH", "before");
    test_launches(0, getenv("NB_LONG_TESTS") ? 20000 : quick ? 40 : 150);
    test_graph();
    test_lingers();
    test_stalls();
    settings("NIBBLE_GPU_LAUNCH", NULL);
    nb_launch_attached(&ctx, GPU, -1);
    fixture_close();
    printf("kernels beside NCCL's come and go\n");
    return 0;
}
