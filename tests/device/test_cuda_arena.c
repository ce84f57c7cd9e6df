/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory of the CUDA device: it grows with need, is used again, and is bounded. */
#include "cuda_fixture.h"

#include <pthread.h>
#include <string.h>

#include "device/device.h"

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

/* ---- memory of payloads ------------------------------------------------------------------------------- */

#define MIB ((size_t)1 << 20)

static pthread_mutex_t *lock; /* of the GPU, which engines take */
static unsigned waits;

static void engine_may_go_on(void)
{
    CHECK(pthread_mutex_trylock(lock) == 0);
    pthread_mutex_unlock(lock);
    waits++;
}

/* Memory that a communicator takes while it connects. */
static void test_connect(void)
{
    struct nb_device *dev;
    struct nb_ring *ring;
    void *state;
    int mode;

    fake = (struct fake_settings){.memory = 1024 * MIB};
    dev = open_device(COMM);
    lock = &gpu_of(dev)->lock;
    ring = &gpu_of(dev)->ring;
    CHECK(nb_cuda_enter(&gpu_of(dev)->cuda, &mode) == 0);
    fake.waiting = engine_may_go_on;
    CHECK(nb_ring_reserve(ring, ring->work_bytes + 1, 2 * MIB, ring->most + 1, lock) == 0);
    CHECK(waits >= 4 && ring->work_bytes % 256 == 0 && ring->scratch_bytes == 2 * MIB); /* the arena grew */
    waits = 0;
    CHECK(nb_ring_reserve(ring, ring->work_bytes, 1, ring->most, lock) == 0 && waits == 0);
    nb_cuda_leave(&gpu_of(dev)->cuda, mode);
    state = dev->ops->alloc(dev, NB_PLACE_STATE, 200 * MIB);
    CHECK(state && waits >= 1);
    dev->ops->free(dev, NB_PLACE_STATE, state, 200 * MIB);
    fake.waiting = NULL;
    close_device(dev);
    CHECK(fake_alive() == 0);
    waits = 0;
}

static void *payload(struct nb_device *dev, size_t bytes)
{
    return dev->ops->alloc(dev, NB_PLACE_PAYLOAD, bytes);
}

static void test_payloads(void)
{
    char *a, *b, *c, *wire, *p[16] = {0}, *state[64];
    size_t size[16] = {0}, mapped;
    struct nb_device *dev;
    int states = 0;

    settings("NIBBLE_GPU_RESERVE_MB", "64");
    fake = (struct fake_settings){.memory = 1024 * MIB};
    dev = open_device(COMM);
    CHECK(payload(dev, 1) == NULL); /* NCCL's buffers are pinned */
    nb_device_pointers(&ctx, 1);
    lock = &gpu_of(dev)->lock;
    fake.waiting = engine_may_go_on;
    a = payload(dev, 20 * MIB);
    b = payload(dev, 10 * MIB + 1);
    CHECK(a && b && a + 20 * MIB <= b && ((uintptr_t)a | (uintptr_t)b) % 4096 == 0 && waits == 2);
    /* A later communicator takes what one has left, also where it needs less. */
    mapped = fake_created();
    dev->ops->free(dev, NB_PLACE_PAYLOAD, a, 20 * MIB);
    c = payload(dev, 15 * MIB);
    CHECK(c == a && fake_created() == mapped);
    dev->ops->free(dev, NB_PLACE_PAYLOAD, b, 10 * MIB + 1);
    dev->ops->free(dev, NB_PLACE_PAYLOAD, c, 15 * MIB);
    CHECK(payload(dev, 20 * MIB) == a && payload(dev, 12 * MIB) == b && fake_created() == mapped);
    dev->ops->free(dev, NB_PLACE_PAYLOAD, a, 20 * MIB);
    dev->ops->free(dev, NB_PLACE_PAYLOAD, b, 12 * MIB);
    /* State lies there meanwhile: other memory for payloads, as long as it lies there. */
    while ((c = dev->ops->alloc(dev, NB_PLACE_STATE, MIB)) < a) /* what lies before */
        state[states++] = c;
    CHECK(c < a + 20 * MIB && fake_created() == mapped);
    wire = payload(dev, 20 * MIB);
    CHECK(wire && wire != a && fake_created() == mapped + 20 * MIB);
    dev->ops->free(dev, NB_PLACE_PAYLOAD, wire, 20 * MIB);
    dev->ops->free(dev, NB_PLACE_STATE, c, MIB);
    while (states)
        dev->ops->free(dev, NB_PLACE_STATE, state[--states], MIB);
    CHECK(payload(dev, 20 * MIB) && payload(dev, 20 * MIB) && fake_created() == mapped + 20 * MIB);
    dev->ops->free(dev, NB_PLACE_PAYLOAD, a, 20 * MIB);
    dev->ops->free(dev, NB_PLACE_PAYLOAD, wire, 20 * MIB);
    CHECK(payload(dev, 900 * MIB) == NULL && warnings == 0); /* the job's reserve */
    fake.waiting = NULL;
    /* Both kinds come and go, and none lies in another. */
    wire = dev->ops->alloc(dev, NB_PLACE_WIRE, 1);
    for (int round = 0; round < 500; round++) {
        const unsigned i = random32() % 16;
        const enum nb_place place = i < 4 ? NB_PLACE_PAYLOAD : NB_PLACE_STATE;

        if (p[i]) {
            for (int end = 0; end < 2; end++)
                CHECK(dev->ops->copy(dev, NULL, wire, p[i] + (end ? size[i] - 1 : 0), 1) == 0 &&
                      *wire == (char)i);
            dev->ops->free(dev, place, p[i], size[i]);
            p[i] = NULL;
            continue;
        }
        size[i] = 1 + random32() % (5 * MIB);
        p[i] = dev->ops->alloc(dev, place, size[i]);
        CHECK(p[i]);
        *wire = (char)i;
        for (int end = 0; end < 2; end++)
            CHECK(dev->ops->copy(dev, NULL, p[i] + (end ? size[i] - 1 : 0), wire, 1) == 0);
    }
    for (unsigned i = 0; i < 16; i++)
        if (p[i])
            dev->ops->free(dev, i < 4 ? NB_PLACE_PAYLOAD : NB_PLACE_STATE, p[i], size[i]);
    dev->ops->free(dev, NB_PLACE_WIRE, wire, 1);
    nb_device_pointers(&ctx, 0);
    close_device(dev);
    CHECK(fake_alive() == 0);
    settings("NIBBLE_GPU_RESERVE_MB", "0");
}

int main(void)
{
    fixture_open();
    test_arena();
    test_connect();
    test_payloads();
    fixture_close();
    printf("the arena grows, and is used again\n");
    return 0;
}
