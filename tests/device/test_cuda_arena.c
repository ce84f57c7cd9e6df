/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory of the CUDA device: it grows with need, is used again, and is bounded. */
#include "cuda_fixture.h"

#include <string.h>

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
    /* The arena leaves 64 MiB free, and uses returned memory again. */
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

int main(void)
{
    fixture_open();
    test_arena();
    fixture_close();
    printf("the arena grows, and is used again\n");
    return 0;
}
