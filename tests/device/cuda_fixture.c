/* SPDX-License-Identifier: Apache-2.0 */
/* See cuda_fixture.h. */
#include "cuda_fixture.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "tests/base/hear.h"

struct nb_context ctx;
char last_warning[1024], last_info[1024];
unsigned warnings;

static void hear(ncclDebugLogLevel level, const char *text)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    const bool warns = level == NCCL_LOG_WARN;

    pthread_mutex_lock(&lock);
    snprintf(warns ? last_warning : last_info, sizeof(last_info), "%.1023s", text);
    warnings += warns;
    pthread_mutex_unlock(&lock);
}

void settings(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
    nb_params_free(ctx.params);
    CHECK(nb_params_read(&ctx.params) == 0);
}

void fixture_open(void)
{
    nb_log_set(hear_log);
    unsetenv("CUDA_LAUNCH_BLOCKING");
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    settings("NIBBLE_GPU_RESERVE_MB", "0");
    CHECK(nb_gpus_open(&ctx) == 0);
    nb_cuda_override(&fake_driver);
}

void fixture_close(void)
{
    nb_gpus_close(&ctx);
    nb_params_free(ctx.params);
    ctx.params = NULL;
}

struct nb_device *open_device(uint64_t comm)
{
    struct nb_device_wish wish = {.gpu = GPU, .nnodes = NODES, .comm_id = comm};
    struct nb_device *dev = NULL;
    char why[256];
    int ret = nb_cuda_device_open(&ctx, &wish, &dev, why, sizeof(why));

    if (ret) {
        fprintf(stderr, "open: %s: %s\n", strerror(-ret), why);
        abort();
    }
    return dev;
}

void close_device(struct nb_device *dev)
{
    dev->ops->close(dev);
}

static uint32_t random_state = 1;
uint32_t random32(void)
{
    return random_state = random_state * 1664525u + 1013904223u;
}

void fill(float *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        v[i] = ((float)(random32() >> 8) / 16777216.0f - 0.5f) * (i % 97 == 0 ? 20.0f : 1.0f);
}

void make_buffers(struct buffers *b, struct nb_device *dev)
{
    b->dev = dev;
    for (int i = 0; i < 4; i++) {
        CHECK((b->wire[i] = dev->ops->alloc(dev, NB_PLACE_WIRE, 8 * VALUES)) != NULL);
        CHECK((b->host[i] = calloc(2, 4 * VALUES)) != NULL);
    }
    for (int i = 0; i < 3; i++)
        CHECK((b->state[i] = dev->ops->alloc(dev, NB_PLACE_STATE, 8 * VALUES)) != NULL);
}

void free_buffers(struct buffers *b)
{
    for (int i = 0; i < 4; i++) {
        b->dev->ops->free(b->dev, NB_PLACE_WIRE, b->wire[i], 8 * VALUES);
        free(b->host[i]);
    }
    for (int i = 0; i < 3; i++)
        b->dev->ops->free(b->dev, NB_PLACE_STATE, b->state[i], 8 * VALUES);
}

ssize_t finish(struct nb_device *dev, struct nb_work *w, ssize_t ret)
{
    while (ret == -EINPROGRESS) {
        if (atomic_load(&nb_cuda_of(dev)->connected))
            dev->ops->turn(dev, 1); /* as the engine does in each round */
        ret = dev->ops->poll(dev, w);
    }
    return ret;
}

void same(const char *what, const void *a, const void *b, size_t n)
{
    if (memcmp(a, b, n)) {
        fprintf(stderr, "%s differs\n", what);
        abort();
    }
}

void nccl_kernel(void *arg)
{
    struct operation *op = arg;

    atomic_store(&op->begun, 1);
    while (!atomic_load(&op->may_end))
        usleep(20);
    atomic_store(&op->ended, 1);
}

uint64_t launch(nb_cu_stream stream, uint64_t comm, struct operation *op, enum operations what)
{
    uint64_t number = nb_launch_begin(&ctx, GPU, comm, NODES, stream, what == ALL_REDUCE, true);

    fake_run(stream, nccl_kernel, op);
    nb_launch_end(&ctx, number);
    if (what == GATHER)
        nb_launch_handed(&ctx, GPU, comm);
    nb_launch_posted(&ctx, number, what != ALL_REDUCE);
    return number;
}

void serve(struct nb_device *dev, struct buffers *b, unsigned works)
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
