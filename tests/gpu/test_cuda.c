/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA device over a driver made of threads (fake_driver.h): its works against the host's, launches
 * beside NCCL's kernels, eager and captured, errors of every call, memory, the watchdog. What a real GPU does
 * with it is not shown here.
 */
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/params.h"
#include "device/cuda.h"
#include "device/cuda_gpu.h"
#include "device/cuda_launch.h"
#include "fake_driver.h"
#include "kernels/emulate.h"

#define GPU 1
#define NODES 3
#define COMM 77u

static char last_warning[1024];
static unsigned warnings;

__attribute__((format(printf, 5, 6))) static void hear(ncclDebugLogLevel level, unsigned long flags,
                                                       const char *file, int line, const char *fmt, ...)
{
    va_list ap;

    (void)flags;
    (void)file;
    (void)line;
    if (level != NCCL_LOG_WARN)
        return;
    va_start(ap, fmt);
    vsnprintf(last_warning, sizeof(last_warning), fmt, ap);
    va_end(ap);
    warnings++;
}

#define CHECK(what)                                                                                          \
    do {                                                                                                     \
        if (!(what)) {                                                                                       \
            fprintf(stderr, "%s:%d: %s; last warning: %s\n", __FILE__, __LINE__, #what, last_warning);       \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

static void settings(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
    nb_params_release();
    CHECK(nb_params_acquire() == 0);
}

static struct nb_device *open_device(uint64_t comm)
{
    struct nb_device_wish wish = {.gpu = GPU, .nranks = NODES, .comm_id = comm};
    struct nb_device *dev = NULL;
    char why[256];
    int ret = nb_cuda_device_open(&wish, &dev, why, sizeof(why));

    if (ret) {
        fprintf(stderr, "open: %s: %s\n", strerror(-ret), why);
        abort();
    }
    return dev;
}

static struct nb_gpu *gpu_of(struct nb_device *dev)
{
    return ((struct nb_cuda_device *)dev)->gpu;
}

static void close_device(struct nb_device *dev)
{
    dev->ops->close(dev);
}

static uint32_t random_state = 1;
static uint32_t random32(void)
{
    return random_state = random_state * 1664525u + 1013904223u;
}

static void fill(float *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        v[i] = ((float)(random32() >> 8) / 16777216.0f - 0.5f) * (i % 97 == 0 ? 20.0f : 1.0f);
}

/* ---- Works against the host's -------------------------------------------------------------------------- */

#define VALUES 20000u

struct buffers {
    struct nb_device *dev;
    float *wire[4], *state[3], *host[4];
};

static void make_buffers(struct buffers *b, struct nb_device *dev)
{
    b->dev = dev;
    for (int i = 0; i < 4; i++) {
        CHECK((b->wire[i] = dev->ops->alloc(dev, NB_PLACE_WIRE, 8 * VALUES)) != NULL);
        CHECK((b->host[i] = calloc(2, 4 * VALUES)) != NULL);
    }
    for (int i = 0; i < 3; i++)
        CHECK((b->state[i] = dev->ops->alloc(dev, NB_PLACE_STATE, 8 * VALUES)) != NULL);
}

static void free_buffers(struct buffers *b)
{
    for (int i = 0; i < 4; i++) {
        b->dev->ops->free(b->dev, NB_PLACE_WIRE, b->wire[i], 8 * VALUES);
        free(b->host[i]);
    }
    for (int i = 0; i < 3; i++)
        b->dev->ops->free(b->dev, NB_PLACE_STATE, b->state[i], 8 * VALUES);
}

static ssize_t finish(struct nb_device *dev, struct nb_work *w, ssize_t ret)
{
    while (ret == -EINPROGRESS)
        ret = dev->ops->poll(dev, w);
    return ret;
}

static void same(const char *what, const void *a, const void *b, size_t n)
{
    if (memcmp(a, b, n)) {
        fprintf(stderr, "%s differs\n", what);
        abort();
    }
}

/* What is asked of values: n at `values` and `ref` on the device, the same at the other two. */
static void compare_evidence(struct nb_device *dev, float *values, const float *ref, const float *host_values,
                             const float *host_ref, size_t n)
{
    static const unsigned counts[] = {0, 1, 200, 256, 5003, 5004};
    const struct nb_device_ops *o = dev->ops, *h = nb_device_host.ops;
    static float got[5004], want[5004];
    const unsigned works = (unsigned)gpu_of(dev)->ring.done;
    double like;

    for (unsigned i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
        const unsigned count = counts[i];
        for (unsigned shift = 0; shift < 4; shift += 2) { /* 2: FP32 values are not aligned, the CPU looks */
            const char *v = (const char *)values + shift, *hv = (const char *)host_values + shift;
            const char *r = (const char *)ref + shift, *hr = (const char *)host_ref + shift;
            for (int type = 0; type < NB_DTYPE_COUNT; type++) {
                const enum nb_dtype t = (enum nb_dtype)type;
                unsigned k = h->sample(&nb_device_host, t, hv, n - 1, count, want);
                CHECK(o->sample(dev, t, v, n - 1, count, got) == k);
                same("samples", got, want, sizeof(float) * k);
                k = h->profile(&nb_device_host, t, hv, n - 1, count < 313 ? count : 313, want);
                CHECK(o->profile(dev, t, v, n - 1, count < 313 ? count : 313, got) == k);
                same("profile", got, want, sizeof(float) * k);
            }
            like = h->likeness(&nb_device_host, hv, hr, (n - 1) * 4, count);
            CHECK(o->likeness(dev, v, r, (n - 1) * 4, count) == like);
            like = h->likeness(&nb_device_host, hv, hv + 4, (n - 1) * 4 - 4, count); /* now and then alike */
            CHECK(o->likeness(dev, v, v + 4, (n - 1) * 4 - 4, count) == like);
            CHECK(count < 200 || (like > 0 && like < 1));
        }
    }
    CHECK(h->likeness(&nb_device_host, host_values, host_values, 3, 7) == 1);
    CHECK(o->likeness(dev, values, values, 3, 7) == 1);
    /* One work each, not one for every sample. */
    CHECK((unsigned)gpu_of(dev)->ring.done - works < 150);
    CHECK(o->profile(dev, NB_F32, values, 100, 4, got) == 0); /* there are three groups */
}

/* A profile of zeros, of a number that is none, and of more than the CPU could look at where it lies
 * wrong. */
static void test_odd_evidence(void)
{
    struct nb_device *dev;
    const size_t much = ((size_t)8 << 20) + 65536;
    float out[8], *wire, *state;

    fake = (struct fake_settings){0};
    dev = open_device(COMM);
    wire = dev->ops->alloc(dev, NB_PLACE_WIRE, 4096);
    state = dev->ops->alloc(dev, NB_PLACE_STATE, much);
    CHECK(wire && state && much - 4 > ((struct nb_cuda_device *)dev)->bounce_bytes);
    CHECK(dev->ops->profile(dev, NB_F32, state, 1024, 8, out) == 0);
    wire[0] = 1.0f / 0.0f;
    CHECK(dev->ops->copy(dev, NULL, state, wire, 4) == 0);
    CHECK(dev->ops->profile(dev, NB_F32, state, 1024, 8, out) == 0);
    CHECK(dev->ops->sample(dev, NB_F32, state, much / 4, 8, out) == 8);
    CHECK(dev->ops->sample(dev, NB_F32, (char *)state + 2, much / 4 - 1, 8, out) == 0);
    CHECK(dev->ops->profile(dev, NB_F32, (char *)state + 2, much / 4 - 1, 8, out) == 0);
    CHECK(dev->ops->failed(dev) == 0);
    dev->ops->free(dev, NB_PLACE_WIRE, wire, 4096);
    dev->ops->free(dev, NB_PLACE_STATE, state, much);
    close_device(dev);
    CHECK(fake_alive() == 0);
}

static void compare_works(struct nb_device *dev, int in_state)
{
    const struct nb_device_ops *o = dev->ops, *h = nb_device_host.ops;
    struct nb_device *host = &nb_device_host;
    struct buffers b;
    struct nb_encode_stats s[2] = {{.every = 1}, {.every = 1}};
    struct nb_source src[2], src_host[2];
    struct nb_work w;
    struct nb_ef ef[2];
    const size_t n = 10007, bytes = n * 4, cap = 8 * VALUES;
    float *values, *out, out_host[10007];
    const void *plain[2];
    ssize_t len[2], got;

    make_buffers(&b, dev);
    values = in_state ? b.state[0] : b.wire[3];
    out = in_state ? b.state[1] : b.wire[3] + VALUES;
    fill(b.wire[0], VALUES);
    memcpy(b.host[0], b.wire[0], 4 * VALUES);
    CHECK(o->copy(dev, NULL, values, b.wire[0], bytes) == 0);
    /* with carried errors, twice */
    CHECK((ef[0].err = o->alloc(dev, NB_PLACE_STATE, nb_ef_err_bytes(n))) != NULL);
    CHECK((ef[0].scale = o->alloc(dev, NB_PLACE_STATE, nb_ef_scale_bytes(n))) != NULL);
    ef[0].mode = NB_EF_FULL;
    ef[0].beta = 0;
    ef[0].bound = 0.2f;
    ef[1] = ef[0];
    CHECK((ef[1].err = calloc(1, nb_ef_err_bytes(n))) && (ef[1].scale = calloc(1, nb_ef_scale_bytes(n))));
    for (int i = 0; i < 2; i++) {
        len[i] = finish(
            dev, &w,
            o->encode(dev, &w, NB_CODEC_INT4, NB_F32, values, n, 0, &ef[0], b.wire[1 + i], cap, &s[0]));
        got =
            h->encode(host, NULL, NB_CODEC_INT4, NB_F32, b.host[0], n, 0, &ef[1], b.host[1 + i], cap, &s[1]);
        CHECK(len[i] == got);
        same("coded", b.wire[1 + i], b.host[1 + i], (size_t)got);
        src[i] = (struct nb_source){NB_CODEC_INT4, b.wire[1 + i], (size_t)got};
        src_host[i] = (struct nb_source){NB_CODEC_INT4, b.host[1 + i], (size_t)got};
    }
    CHECK(s[0].values == s[1].values && s[0].escapes == s[1].escapes && s[0].signal2 > 0);
    CHECK(s[0].signal2 > s[1].signal2 * 0.9999 && s[0].signal2 < s[1].signal2 * 1.0001);
    CHECK(o->copy(dev, NULL, b.wire[3], ef[0].err, nb_ef_err_bytes(n)) == 0);
    same("errors", b.wire[3], ef[1].err, nb_ef_err_bytes(n));
    o->copy(dev, NULL, values, b.wire[0], bytes);
    /* sums and decoding */
    CHECK(finish(dev, &w, o->reduce(dev, &w, NB_F32, src, 2, values, n, 0, out)) == 0);
    CHECK(h->reduce(host, NULL, NB_F32, src_host, 2, b.host[0], n, 0, out_host) == 0);
    CHECK(o->copy(dev, NULL, b.wire[2], out, bytes) == 0);
    same("sum", b.wire[2], out_host, bytes);
    CHECK(finish(dev, &w, o->decode(dev, &w, NB_CODEC_INT4, NB_F32, b.wire[1], (size_t)len[0], n, 0, out)) ==
          0);
    CHECK(h->decode(host, NULL, NB_CODEC_INT4, NB_F32, b.host[1], (size_t)len[0], n, 0, out_host) == 0);
    o->copy(dev, NULL, b.wire[2], out, bytes);
    same("decoded", b.wire[2], out_host, bytes);
    /* A length that is wrong. */
    CHECK(o->decode(dev, NULL, NB_CODEC_INT4, NB_F32, b.wire[1], (size_t)len[0] - 1, n, 0, out) == -EBADMSG);
    /* raw, and values at an odd place: on the CPU */
    CHECK(o->encode(dev, NULL, NB_CODEC_RAW, NB_F32, values, n, 0, NULL, b.wire[1], cap, NULL) ==
          (ssize_t)bytes);
    same("raw", b.wire[1], b.host[0], bytes);
    /* exact sums */
    memcpy(b.wire[1], b.host[0], bytes);
    plain[0] = b.wire[1];
    plain[1] = b.wire[0];
    CHECK(finish(dev, &w, o->reduce_exact(dev, &w, ncclFloat32, ncclSum, plain, 2, values, n, out)) == 0);
    plain[0] = plain[1] = b.host[0];
    h->reduce_exact(host, NULL, ncclFloat32, ncclSum, plain, 2, b.host[0], n, out_host);
    o->copy(dev, NULL, b.wire[2], out, bytes);
    same("exact sum", b.wire[2], out_host, bytes);
    /* differences */
    float *ref = b.state[2];
    for (size_t i = 0; i < n; i++)
        b.host[1][i] = b.host[0][i] * (1.0f + (float)(random32() % 64) * 1e-6f);
    memcpy(b.wire[1], b.host[1], bytes);
    o->copy(dev, NULL, ref, b.wire[1], bytes);
    CHECK(o->ulp_guess(dev, values, ref, bytes) == h->ulp_guess(host, b.host[0], b.host[1], bytes));
    len[0] = finish(dev, &w, o->ulp_encode(dev, &w, NB_ULP_32, values, ref, bytes, bytes, b.wire[2], cap));
    CHECK(len[0] > 0 &&
          len[0] == h->ulp_encode(host, NULL, NB_ULP_32, b.host[0], b.host[1], bytes, bytes, b.host[2], cap));
    same("differences", b.wire[2], b.host[2], (size_t)len[0]);
    CHECK(finish(dev, &w, o->ulp_decode(dev, &w, NB_ULP_32, b.wire[2], (size_t)len[0], ref, bytes, out)) ==
          0);
    o->copy(dev, NULL, b.wire[3], out, bytes);
    same("decoded differences", b.wire[3], b.host[0], bytes);
    o->copy(dev, NULL, values, b.wire[0], bytes);
    struct nb_delta4_stats ds[2] = {{0, 0}, {0, 0}};
    len[0] =
        finish(dev, &w, o->delta4_encode(dev, &w, NB_F32, values, ref, bytes, bytes, b.wire[2], cap, &ds[0]));
    CHECK(len[0] ==
          h->delta4_encode(host, NULL, NB_F32, b.host[0], b.host[1], bytes, bytes, b.host[2], cap, &ds[1]));
    CHECK(len[0] > 0 && ds[0].runs == ds[1].runs && ds[0].lossy == ds[1].lossy);
    same("bounded differences", b.wire[2], b.host[2], (size_t)len[0]);
    CHECK(finish(dev, &w, o->delta4_decode(dev, &w, NB_F32, b.wire[2], (size_t)len[0], ref, bytes, out)) ==
          0);
    h->delta4_decode(host, NULL, NB_F32, b.host[2], (size_t)len[0], b.host[1], bytes, out_host);
    o->copy(dev, NULL, b.wire[3], out, bytes);
    same("decoded bounded differences", b.wire[3], out_host, bytes);
    o->copy(dev, NULL, values, b.wire[0], bytes);
    /* questions */
    CHECK(o->hash(dev, values, bytes, 5) == h->hash(host, b.host[0], bytes, 5));
    CHECK(o->equal(dev, values, b.wire[0], bytes) && !o->equal(dev, values, ref, bytes));
    compare_evidence(dev, values, ref, b.host[0], b.host[1], n);
    CHECK(o->zero(dev, NULL, ref, bytes) == 0);
    o->copy(dev, NULL, b.wire[3], ref, bytes);
    CHECK(b.wire[3][0] == 0 && b.wire[3][n - 1] == 0);
    o->free(dev, NB_PLACE_STATE, ef[0].err, nb_ef_err_bytes(n));
    o->free(dev, NB_PLACE_STATE, ef[0].scale, nb_ef_scale_bytes(n));
    free(ef[1].err);
    free(ef[1].scale);
    free_buffers(&b);
}

static void test_works(int emulate, int major)
{
    struct nb_device *dev;

    fake = (struct fake_settings){.emulate = emulate, .major = major};
    dev = open_device(COMM);
    CHECK(gpu_of(dev)->launches.how == NB_LAUNCH_BATCH);
    compare_works(dev, 0);
    compare_works(dev, 1);
    CHECK(dev->ops->failed(dev) == 0);
    close_device(dev);
    CHECK(fake_alive() == 0);
}

/* Memory that CUDA does not know is refused by name. */
static void test_foreign_memory(void)
{
    static float here[64];
    struct nb_device *dev;
    float *wire;

    fake = (struct fake_settings){0};
    dev = open_device(COMM);
    wire = dev->ops->alloc(dev, NB_PLACE_WIRE, 4096);
    CHECK(dev->ops->encode(dev, NULL, NB_CODEC_INT4, NB_F32, here, 64, 0, NULL, wire, 4096, NULL) == -EFAULT);
    CHECK(strstr(last_warning, "neither GPU memory nor pinned") && dev->ops->failed(dev) == -EFAULT);
    dev->ops->free(dev, NB_PLACE_WIRE, wire, 4096);
    close_device(dev);
    CHECK(fake_alive() == 0);
}

/* ---- Launches beside NCCL's ---------------------------------------------------------------------------- */

struct operation {
    atomic_int begun, may_end, ended;
};

static void nccl_kernel(void *arg)
{
    struct operation *op = arg;

    atomic_store(&op->begun, 1);
    while (!atomic_load(&op->may_end))
        usleep(20);
    atomic_store(&op->ended, 1);
}

static uint64_t launch(nb_cu_stream stream, uint64_t comm, struct operation *op)
{
    uint64_t number = nb_launch_begin(GPU, comm, NODES, stream);

    fake_run(stream, nccl_kernel, op);
    nb_launch_end(number);
    return number;
}

/* What the engine does for an operation whose kernel has begun. */
static void serve(struct nb_device *dev, struct buffers *b, unsigned works)
{
    struct nb_work w[NB_GPU_RING + 8];
    unsigned given = 0, taken = 0;

    while (taken < works) {
        if (given < works && given - taken < NB_GPU_RING + 8) {
            unsigned i = given % (NB_GPU_RING + 8);
            size_t n = 1 + random32() % 3000;
            ssize_t ret = dev->ops->copy(dev, &w[i], b->state[given % 3], b->wire[given % 4], n);
            CHECK(ret == -EINPROGRESS || ret == -EAGAIN);
            given += ret == -EINPROGRESS;
        }
        if (taken < given) {
            ssize_t ret = dev->ops->poll(dev, &w[taken % (NB_GPU_RING + 8)]);
            CHECK(ret == 0 || ret == -EINPROGRESS);
            taken += ret == 0;
        }
        dev->ops->turn(dev, 1);
    }
}

#define AHEAD 40u /* launches that the host is ahead of the GPU */

struct host {
    nb_cu_stream stream;
    uint64_t comm;
    struct operation *op;
    unsigned n;
    atomic_uint done;
    unsigned nothing; /* every so many have nothing for us */
};

static void *host_main(void *arg)
{
    struct host *h = arg;

    for (unsigned i = 0; i < h->n; i++) {
        while (i >= atomic_load(&h->done) + AHEAD)
            usleep(50);
        uint64_t number = launch(h->stream, h->comm, &h->op[i]);
        CHECK(number != 0);
        if (h->nothing && i % h->nothing == 0) {
            nb_launch_nothing(number);
            atomic_store(&h->op[i].may_end, 1);
        }
    }
    return NULL;
}

/* Several communicators, each on a stream and a thread of its own; one engine. All kernels come and go. */
static void run_launches(unsigned comms, unsigned n, unsigned nothing)
{
    struct nb_device *dev[4];
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
        while (dev[c]->ops->turn(dev[c], 0))
            usleep(20);
        CHECK(atomic_load(&g->launches.launched) == n + g->launches.alone);
        CHECK(__atomic_load_n(&g->ring.host->ring.ended, __ATOMIC_ACQUIRE) ==
              atomic_load(&g->launches.launched));
        CHECK(atomic_load(&g->launches.open) == 0 && atomic_load(&g->launches.places) == 0);
    }
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

/* ---- Graphs -------------------------------------------------------------------------------------------- */

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
        /* one that is not captured, in between */
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

/* ---- Errors -------------------------------------------------------------------------------------------- */

/* One life of a device with everything in it. Returns the number of driver calls, and stops where one
 * fails. */
static int live(void)
{
    struct nb_device_wish wish = {.gpu = GPU, .nranks = NODES, .comm_id = COMM};
    struct operation op = {0};
    struct nb_device *dev;
    nb_cu_stream stream = fake_stream();
    float *wire = NULL, *state = NULL;
    char why[256];
    uint64_t number;
    int ret = nb_cuda_device_open(&wish, &dev, why, sizeof(why));

    if (!ret) {
        wire = dev->ops->alloc(dev, NB_PLACE_WIRE, 65536);
        state = dev->ops->alloc(dev, NB_PLACE_STATE, 100 << 20); /* grows */
        number = nb_launch_begin(GPU, COMM, NODES, stream);
        fake_run(stream, nccl_kernel, &op);
        nb_launch_end(number);
        while (!atomic_load(&op.begun))
            usleep(20);
        if (wire && state) {
            ret = dev->ops->copy(dev, NULL, state, wire, 65536);
            if (!ret)
                ret = (int)dev->ops->encode(dev, NULL, NB_CODEC_INT4, NB_F32, state, 64, 0, NULL, wire, 4096,
                                            NULL);
            ret = ret < 0 ? ret : 0;
        } else {
            ret = -ENOMEM;
        }
        atomic_store(&op.may_end, 1);
        while (!atomic_load(&op.ended))
            usleep(20);
        for (int i = 0; i < 2000 && dev->ops->turn(dev, 0); i++)
            usleep(50);
        if (!ret)
            ret = dev->ops->failed(dev);
        if (wire)
            dev->ops->free(dev, NB_PLACE_WIRE, wire, 65536);
        if (state)
            dev->ops->free(dev, NB_PLACE_STATE, state, 100 << 20);
        close_device(dev);
    }
    fake_stream_free(stream);
    return ret;
}

/* Each call of the driver fails once: a life ends with an error or goes on without the one thing; the warning
 * names the call; nothing is left behind but what the failing call itself did not give back. */
static void test_errors(int no_virtual_memory, long step)
{
    long n;
    unsigned failed = 0, survived = 0;

    fake = (struct fake_settings){.no_virtual_memory = no_virtual_memory};
    settings("NIBBLE_GPU_ARENA_MB", no_virtual_memory ? "128" : NULL);
    fake_fail(0, 0);
    CHECK(live() == 0);
    CHECK(fake_alive() == 0);
    n = fake_calls();
    CHECK(n > 100);
    for (long k = 1; k <= n; k += step) {
        unsigned before = warnings;
        int ret;
        fake_fail(k, k % 3 ? 719 : NB_CU_OUT_OF_MEMORY);
        ret = live();
        const char *name = fake_failed();
        if (!name)
            continue; /* a life with fewer calls: timing */
        /* Without a context nothing can be freed. */
        if (fake_alive() && strcmp(name, "cuCtxPushCurrent") &&
            strcmp(name, "cuThreadExchangeStreamCaptureMode")) {
            fprintf(stderr, "%ld things are left after %s failed (call %ld of %ld)\n", fake_alive(), name, k,
                    n);
            abort();
        }
        fake_forget();
        failed += ret != 0;
        survived += ret == 0;
        /* cuInit and cuDeviceGetCount say so in `why`; cuPointerGetAttribute's error is an answer. */
        if (strcmp(name, "cuInit") && strcmp(name, "cuDeviceGetCount") &&
            strcmp(name, "cuPointerGetAttribute")) {
            CHECK(warnings > before);
        }
        if (warnings == before + 1 && strstr(last_warning, "CUDA error"))
            CHECK(strstr(last_warning, name) != NULL);
    }
    fake_fail(0, 0);
    printf("%ld calls of the driver failed once each%s: %u lives ended with an error, %u went on\n", n,
           no_virtual_memory ? " (no virtual memory)" : "", failed, survived);
    CHECK((failed > 60 || step > 1) && live() == 0 && fake_alive() == 0);
    settings("NIBBLE_GPU_ARENA_MB", NULL);
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
    CHECK(strstr(last_warning, stuck ? "does not get on" : "has not begun") &&
          strstr(last_warning, "NIBBLE_GPU_TIMEOUT"));
    CHECK(dev->ops->copy(dev, NULL, wire + 2048, wire, 100) == -ETIMEDOUT);
    fake.never = 0; /* the kernel that comes too late does not touch anything */
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

/* ---- Memory and choices -------------------------------------------------------------------------------- */

static void test_arena(void)
{
    struct nb_device *dev;
    char *p[64] = {0}, *big, *wire;
    size_t size[64] = {0}, before;

    settings("NIBBLE_GPU_RESERVE_MB", "64");
    fake = (struct fake_settings){0}; /* 256 MiB */
    dev = open_device(COMM);
    wire = dev->ops->alloc(dev, NB_PLACE_WIRE, 1);
    before = gpu_of(dev)->arena.used;
    /* Never more than leaves 64 MiB, and what is given back is used again. */
    CHECK(dev->ops->alloc(dev, NB_PLACE_STATE, (size_t)200 << 20) == NULL);
    big = dev->ops->alloc(dev, NB_PLACE_STATE, (size_t)100 << 20);
    CHECK(big && gpu_of(dev)->arena.grown == 1);
    dev->ops->free(dev, NB_PLACE_STATE, big, (size_t)100 << 20);
    for (int round = 0; round < 2000; round++) {
        unsigned i = random32() % 64;
        if (p[i]) {
            CHECK(dev->ops->copy(dev, NULL, wire, p[i] + size[i] - 1, 1) == 0 && *wire == (char)i);
            dev->ops->free(dev, NB_PLACE_STATE, p[i], size[i]);
            p[i] = NULL;
        } else {
            size[i] = 1 + random32() % 200000;
            p[i] = dev->ops->alloc(dev, NB_PLACE_STATE, size[i]);
            CHECK(p[i] && ((uintptr_t)p[i] % 256) == 0);
            CHECK(dev->ops->copy(dev, NULL, wire, p[i] + size[i] - 1, 1) == 0 && *wire == 0);
            *wire = (char)i;
            CHECK(dev->ops->copy(dev, NULL, p[i] + size[i] - 1, wire, 1) == 0);
        }
    }
    for (unsigned i = 0; i < 64; i++)
        if (p[i])
            dev->ops->free(dev, NB_PLACE_STATE, p[i], size[i]);
    CHECK(gpu_of(dev)->arena.used == before && gpu_of(dev)->arena.grown == 1);
    dev->ops->free(dev, NB_PLACE_WIRE, wire, 1);
    close_device(dev);
    CHECK(fake_alive() == 0);
    settings("NIBBLE_GPU_RESERVE_MB", "0");
}

static void refused(const char *says)
{
    struct nb_device_wish wish = {.gpu = GPU, .nranks = NODES};
    struct nb_device *dev;
    char why[256];

    CHECK(nb_cuda_device_open(&wish, &dev, why, sizeof(why)) < 0);
    if (!strstr(why, says)) {
        fprintf(stderr, "\"%s\", not \"%s\"\n", why, says);
        abort();
    }
}

static void test_choices(void)
{
    struct nb_device_wish wish = {.gpu = GPU, .nranks = NODES};
    struct nb_device *dev;
    char why[256];

    fake = (struct fake_settings){0};
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
    refused("CUDA_DEVICE_MAX_CONNECTIONS=1");
    nb_launch_told(GPU, 1);
    dev = open_device(1);
    CHECK(gpu_of(dev)->launches.how == NB_LAUNCH_RESIDENT && gpu_of(dev)->launches.one_queue);
    close_device(dev);
    setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
    refused("CUDA_LAUNCH_BLOCKING");
    CHECK(!nb_cuda_takes_pointers(-1, why, sizeof(why)) && strstr(why, "CUDA_LAUNCH_BLOCKING"));
    unsetenv("CUDA_LAUNCH_BLOCKING");
    settings("NIBBLE_GPU_LAUNCH", "batch");
    refused("NIBBLE_GPU_LAUNCH=batch");
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    dev = open_device(1);
    CHECK(gpu_of(dev)->launches.how == NB_LAUNCH_BATCH);
    close_device(dev);
    nb_launch_told(GPU, -1);
    settings("NIBBLE_GPU_LAUNCH", "resident");
    refused("NIBBLE_GPU_LAUNCH=resident");
    settings("NIBBLE_GPU_LAUNCH", NULL);
    wish.gpu = -1;
    CHECK(nb_cuda_device_open(&wish, &dev, why, sizeof(why)) == -ENODEV);
    /* The choice as a communicator sees it. */
    wish.gpu = GPU;
    CHECK(nb_device_choose(&wish, &dev) == 0 && dev == &nb_device_host);
    nb_device_pointers(1);
    CHECK(nb_device_choose(&wish, &dev) == 0 && strcmp(dev->ops->name, "cuda") == 0);
    close_device(dev);
    setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
    CHECK(nb_device_choose(&wish, &dev) < 0 && strstr(last_warning, "CUDA_LAUNCH_BLOCKING"));
    nb_device_pointers(0);
    settings("NIBBLE_DEVICE", "cuda");
    CHECK(nb_device_choose(&wish, &dev) == 0 && dev == &nb_device_host);
    unsetenv("CUDA_LAUNCH_BLOCKING");
    CHECK(nb_device_choose(&wish, &dev) == 0 && strcmp(dev->ops->name, "cuda") == 0);
    close_device(dev);
    settings("NIBBLE_DEVICE", NULL);
    CHECK(fake_alive() == 0);
}

int main(void)
{
    const int quick = getenv("NB_TEST_QUICK") != NULL;
    int emulate = 1;

#ifdef NB_TSAN
    emulate = 0; /* the emulation changes stacks, which the thread sanitizer does not follow */
#endif
    nb_log_set(hear);
    unsetenv("CUDA_LAUNCH_BLOCKING");
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    setenv("NIBBLE_GPU_RESERVE_MB", "0", 1);
    CHECK(nb_params_acquire() == 0);
    nb_cuda_override(&fake_driver);
    test_works(0, 0);
    test_works(0, NB_GPU_NO_DIFFERENCES); /* the CPU encodes differences there */
    if (emulate)
        test_works(1, 0);
    test_foreign_memory();
    test_odd_evidence();
    test_arena();
    test_choices();
    test_watchdog(0);
    test_watchdog(1);
    nb_launch_told(GPU, 1);
    test_launches(0, getenv("NB_LONG_TESTS") ? 20000 : quick ? 40 : 150);
    if (emulate)
        test_launches(1, 20);
    test_graph();
    test_errors(0, quick ? 9 : getenv("NB_LONG_TESTS") ? 1 : 3);
    test_errors(1, quick ? 17 : 7);
    nb_launch_told(GPU, -1);
    nb_params_release();
    printf("cuda device over a fake driver: all is well\n");
    return 0;
}
