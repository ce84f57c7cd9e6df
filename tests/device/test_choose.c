/* SPDX-License-Identifier: Apache-2.0 */
/* The device that a communicator gets, and how its kernel is launched. Contexts are independent. */
#include "cuda_fixture.h"

#include <errno.h>
#include <string.h>

static void refused(const char *says)
{
    struct nb_device_wish wish = {.gpu = GPU, .nnodes = NODES};
    struct nb_device *dev;
    char why[256];

    CHECK(nb_cuda_device_open(&ctx, &wish, &dev, why, sizeof(why)) < 0);
    if (!strstr(why, says)) {
        fprintf(stderr, "\"%s\", not \"%s\"\n", why, says);
        abort();
    }
}

static void test_choices(void)
{
    struct nb_device_wish wish = {.gpu = GPU, .nnodes = NODES};
    struct nb_device *dev;
    char why[256];

    fake = (struct fake_settings){.version = 12080};
    refused("compiled by CUDA 13.0, and the driver is one of CUDA 12.8");
    CHECK(!nb_cuda_takes_pointers(&ctx, -1, why, sizeof(why)) && strstr(why, "a newer driver"));
    fake = (struct fake_settings){.version = 13020};
    dev = open_device(1);
    close_device(dev);
    fake = (struct fake_settings){0};
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
    refused("CUDA_DEVICE_MAX_CONNECTIONS=1");
    nb_launch_attached(&ctx, GPU, 1);
    dev = open_device(1); /* both kernels in one launch */
    CHECK(gpu_of(dev)->launches.how == NB_LAUNCH_RESIDENT);
    close_device(dev);
    settings("NIBBLE_GPU_LAUNCH", "behind");
    refused("CUDA_DEVICE_MAX_CONNECTIONS=1");
    CHECK(!nb_cuda_takes_pointers(&ctx, -1, why, sizeof(why)) && strstr(why, "CUDA_DEVICE_MAX_CONNECTIONS"));
    settings("NIBBLE_GPU_LAUNCH", NULL);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    dev = open_device(1);
    CHECK(gpu_of(dev)->launches.how == NB_LAUNCH_RESIDENT);
    close_device(dev);
    setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
    refused("CUDA_LAUNCH_BLOCKING");
    CHECK(!nb_cuda_takes_pointers(&ctx, -1, why, sizeof(why)) && strstr(why, "CUDA_LAUNCH_BLOCKING"));
    unsetenv("CUDA_LAUNCH_BLOCKING");
    settings("NIBBLE_GPU_LAUNCH", "batch");
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "4", 1);
    refused("CUDA_DEVICE_MAX_CONNECTIONS=4");
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    dev = open_device(1);
    CHECK(gpu_of(dev)->launches.how == NB_LAUNCH_BATCH);
    close_device(dev);
    nb_launch_attached(&ctx, GPU, -1);
    settings("NIBBLE_GPU_LAUNCH", "behind");
    refused("NIBBLE_GPU_LAUNCH=behind");
    settings("NIBBLE_GPU_LAUNCH", "together");
    refused("NIBBLE_GPU_LAUNCH=together");
    settings("NIBBLE_GPU_LAUNCH", NULL);
    /* A slow link takes fewer multiprocessors from the job. */
    static const unsigned blocks[][2] = {{0, 33}, {1000, 2}, {25000, 13}, {100000, 33}, {400000, 33}};
    fake.multiprocessors = 132;
    for (unsigned i = 0; i < 5; i++) {
        wish.mbps = blocks[i][0];
        CHECK(nb_cuda_device_open(&ctx, &wish, &dev, why, sizeof(why)) == 0);
        CHECK(gpu_of(dev)->launches.blocks == blocks[i][1]);
        close_device(dev);
    }
    fake = (struct fake_settings){0};
    wish.gpu = -1;
    CHECK(nb_cuda_device_open(&ctx, &wish, &dev, why, sizeof(why)) == -ENODEV);
    /* Check the choice as a communicator sees it. */
    wish.gpu = GPU;
    CHECK(nb_device_choose(&ctx, &wish, &dev) == 0 && dev == nb_host_device());
    nb_device_pointers(&ctx, 1);
    CHECK(nb_device_choose(&ctx, &wish, &dev) == 0 && strcmp(dev->ops->name, "cuda") == 0);
    close_device(dev);
    setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
    CHECK(nb_device_choose(&ctx, &wish, &dev) < 0 && strstr(last_warning, "CUDA_LAUNCH_BLOCKING"));
    nb_device_pointers(&ctx, 0);
    settings("NIBBLE_DEVICE", "cuda");
    CHECK(nb_device_choose(&ctx, &wish, &dev) == 0 && dev == nb_host_device());
    CHECK(strstr(last_warning, "NIBBLE_DEVICE=cuda, but codecs run on the CPU"));
    unsetenv("CUDA_LAUNCH_BLOCKING");
    CHECK(nb_device_choose(&ctx, &wish, &dev) == 0 && strcmp(dev->ops->name, "cuda") == 0);
    close_device(dev);
    settings("NIBBLE_DEVICE", NULL);
    CHECK(fake_alive() == 0);
}

/* Contexts share neither reports nor resources. */
static void test_contexts(void)
{
    const struct nb_device_wish wish = {.gpu = GPU, .nnodes = NODES, .comm_id = COMM};
    struct nb_context other = {.params = ctx.params};
    struct operation op = {.may_end = 1};
    nb_cu_stream stream = fake_stream();
    struct nb_device *dev, *others;
    uint64_t number;

    fake = (struct fake_settings){0};
    CHECK(nb_gpus_open(&other) == 0);
    nb_launch_attached(&ctx, GPU, 1);
    nb_device_pointers(&ctx, 1);
    CHECK(nb_device_choose(&other, &wish, &others) == 0 && others == nb_host_device());
    nb_device_pointers(&other, 1);
    CHECK(nb_device_choose(&other, &wish, &others) == 0 && gpu_of(others)->launches.how == NB_LAUNCH_BATCH);
    CHECK(nb_device_choose(&ctx, &wish, &dev) == 0 && gpu_of(dev)->launches.how == NB_LAUNCH_RESIDENT);
    close_device(dev);
    /* the other context's kernel is not this one's */
    CHECK(nb_launch_begin(&ctx, GPU, COMM, NODES, stream, true, true) == 0);
    nb_launch_attached(&other, GPU, 1);
    close_device(others);
    CHECK(nb_device_choose(&ctx, &wish, &dev) == 0 && nb_device_choose(&other, &wish, &others) == 0);
    number = launch(stream, COMM, &op, ALL_REDUCE);
    CHECK(number != 0 && atomic_load(&gpu_of(dev)->launches.launched) == 1);
    CHECK(atomic_load(&gpu_of(others)->launches.launched) == 0);
    while (dev->ops->turn(dev, 0))
        ;
    fake_wait(stream);
    fake_stream_free(stream);
    close_device(dev);
    close_device(others);
    nb_launch_attached(&ctx, GPU, -1);
    nb_device_pointers(&ctx, 0);
    nb_gpus_close(&other);
    CHECK(fake_alive() == 0);
}

/* A context with its own devices. */
static int own_device(struct nb_context *of, const struct nb_device_wish *wish, struct nb_device **dev)
{
    (void)of;
    *dev = nb_host_device();
    return wish->nnodes == NODES ? 0 : -ENODEV;
}

static void test_own_device(void)
{
    struct nb_device_wish wish = {.gpu = GPU, .nnodes = NODES};
    struct nb_device *dev = NULL;

    settings("NIBBLE_DEVICE", "cuda");
    ctx.open_device = own_device;
    CHECK(nb_device_choose(&ctx, &wish, &dev) == 0 && dev == nb_host_device());
    wish.nnodes++;
    CHECK(nb_device_choose(&ctx, &wish, &dev) == -ENODEV);
    ctx.open_device = NULL;
    settings("NIBBLE_DEVICE", NULL);
}

int main(void)
{
    fixture_open();
    test_choices();
    test_contexts();
    test_own_device();
    fixture_close();
    printf("devices are chosen as the settings say, by each context for itself\n");
    return 0;
}
