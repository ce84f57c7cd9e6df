/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a CUDA device, in which each call of the driver fails once. */
#include "cuda_fixture.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* Live one life of a device with all its parts. Return the number of driver calls. Stop where a call
 * fails. */
static int live(void)
{
    struct nb_device_wish wish = {.gpu = GPU, .nnodes = NODES, .comm_id = COMM};
    struct operation op = {0};
    struct nb_device *dev;
    nb_cu_stream stream = fake_stream();
    float *wire = NULL, *state = NULL;
    char why[256];
    uint64_t number;
    int ret = nb_cuda_device_open(&ctx, &wish, &dev, why, sizeof(why));

    if (!ret) {
        wire = dev->ops->alloc(dev, NB_PLACE_WIRE, 65536);
        state = dev->ops->alloc(dev, NB_PLACE_STATE, 100 << 20); /* grows */
        dev->ops->turn(dev, 1); /* the engine's first turn: the communicator is connected */
        number = nb_launch_begin(&ctx, GPU, COMM, NODES, stream, true, true);
        fake_run(stream, nccl_kernel, &op);
        nb_launch_end(&ctx, number);
        nb_launch_posted(&ctx, number, false);
        /* NCCL's kernel is lost where the launch of both fails. */
        while (!atomic_load(&op.begun) && !(ret = dev->ops->failed(dev)))
            usleep(20);
        if (ret)
            ;
        else if (wire && state) {
            ret = dev->ops->copy(dev, NULL, state, wire, 65536);
            if (!ret)
                ret = (int)dev->ops->encode(dev, NULL,
                                            &(struct nb_encoding){.codec = nb_codec_row(NB_CODEC_INT4),
                                                                  .format = NB_F32,
                                                                  .src = state,
                                                                  .bytes = 256,
                                                                  .dst = wire,
                                                                  .cap = 4096});
            ret = ret < 0 ? ret : 0;
        } else {
            ret = -ENOMEM;
        }
        atomic_store(&op.may_end, 1);
        while (atomic_load(&op.begun) && !atomic_load(&op.ended))
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

/* Each call of the driver fails once. The life then ends with an error, or goes on without one thing. The
 * warning names the call. Only resources that the failing call itself did not return may be left. */
static void test_errors(int no_virtual_memory, long step)
{
    long n;
    unsigned failed = 0, survived = 0;

    fake = (struct fake_settings){.no_virtual_memory = no_virtual_memory};
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
            continue; /* timing gave this life fewer calls */
        /* Without a context the device cannot free anything. */
        if (fake_alive() && strcmp(name, "cuCtxPushCurrent") &&
            strcmp(name, "cuThreadExchangeStreamCaptureMode")) {
            fprintf(stderr, "%ld things are left after %s failed (call %ld of %ld)\n", fake_alive(), name, k,
                    n);
            abort();
        }
        fake_forget();
        failed += ret != 0;
        survived += ret == 0;
        /* cuInit, cuDeviceGetCount and cuDriverGetVersion report it in `why`. The errors of
         * cuPointerGetAttribute and cuGraphExecUpdate are answers. */
        if (strcmp(name, "cuInit") && strcmp(name, "cuDeviceGetCount") &&
            strcmp(name, "cuDriverGetVersion") && strcmp(name, "cuPointerGetAttribute") &&
            strcmp(name, "cuGraphExecUpdate")) {
            CHECK(warnings > before);
        }
        if (warnings == before + 1 && strstr(last_warning, "CUDA error"))
            CHECK(strstr(last_warning, name) != NULL);
    }
    fake_fail(0, 0);
    printf("%ld calls of the driver failed once each%s: %u lives ended with an error, %u went on\n", n,
           no_virtual_memory ? " (no virtual memory)" : "", failed, survived);
    CHECK((failed > 60 || step > 1) && live() == 0 && fake_alive() == 0);
}

int main(void)
{
    const int quick = getenv("NB_TEST_QUICK") != NULL;

    fixture_open();
    nb_launch_attached(&ctx, GPU, 1);
    test_errors(0, quick ? 9 : 1);
    test_errors(1, quick ? 17 : 7);
    settings("NIBBLE_GPU_LAUNCH", "behind");
    test_errors(0, quick ? 9 : 7);
    settings("NIBBLE_GPU_LAUNCH", NULL);
    nb_launch_attached(&ctx, GPU, -1);
    fixture_close();
    return 0;
}
