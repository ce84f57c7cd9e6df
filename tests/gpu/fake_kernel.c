/* SPDX-License-Identifier: Apache-2.0 */
/* See fake_kernel.h. */
#include "fake_kernel.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/cuda/gpu.h"
#include "fake_driver.h"
#include "fake_stream.h"

static void *at(uint64_t address)
{
    return fake_seen_at((void *)(uintptr_t)address);
}

static void __attribute__((noreturn)) wrong(const char *what)
{
    fprintf(stderr, "fake kernel: %s\n", what);
    abort();
}

/* Do the work at the CPU's addresses of everything that the descriptor names. */
static int64_t work(struct nb_gpu_desc d, struct nb_gpu_result *res)
{
    struct nb_gpu_source *list = NULL;
    uint64_t *const address[] = {&d.src, &d.ref, &d.own, &d.dst, &d.sources, &d.err, &d.scale};
    int64_t ret;

    if (fake.major >= NB_GPU_NO_DIFFERENCES && nb_gpu_differs(d.op))
        return -ENOTSUP;
    for (size_t i = 0; i < sizeof(address) / sizeof(*address); i++)
        *address[i] = (uintptr_t)at(*address[i]);
    if (d.op == NB_GPU_ZERO) {
        fake_zero(at(d.dst), d.n);
        return 0;
    }
    if (d.sources) {
        list = malloc((d.nsources + 1u) * sizeof(*list));
        if (!list)
            abort();
        memcpy(list, at(d.sources), d.nsources * sizeof(*list));
        for (uint32_t i = 0; i < d.nsources; i++)
            list[i].coded = (uintptr_t)at(list[i].coded);
        d.sources = (uintptr_t)list;
    }
    ret = nb_gpu_by_processor(&d, res);
    if (ret == -EINVAL)
        wrong("an operation that no kernel does");
    free(list);
    return ret;
}

void fake_kernel(const struct nb_gpu_launch *launch, int stuck)
{
    struct nb_gpu_state *state = at(launch->state);
    struct nb_gpu_ring *ring = at(launch->ring);
    const uint64_t k = state->launches;
    unsigned idle = 0;

    /* Run launches on one ring one after the other. */
    if (__atomic_exchange_n(&state->left, 1, __ATOMIC_ACQ_REL))
        wrong("two launches at once on a ring");
    __atomic_store_n(&ring->started, k + 1, __ATOMIC_RELEASE);
    for (;;) {
        const uint64_t number = state->carried;
        /* Read `stops` first: descriptors that were published before an order to end are visible then. */
        uint64_t stops = __atomic_load_n(&ring->stops, __ATOMIC_ACQUIRE);
        uint64_t published = __atomic_load_n(&ring->published, __ATOMIC_ACQUIRE);
        if (stops > k && number >= __atomic_load_n(&ring->stop[k % NB_GPU_STOPS], __ATOMIC_RELAXED))
            break;
        if (number == published || stuck) {
            if (stuck || ++idle % 64 == 0)
                usleep(stuck ? 1000 : 20);
            else
                sched_yield();
            continue;
        }
        struct nb_gpu_desc d = ring->desc[number % NB_GPU_RING];
        struct nb_gpu_result *res = at(d.result);
        if (d.ticket != state->last)
            wrong("tickets with a gap");
        if (res->done == d.id)
            wrong("a descriptor with the number of the one before it");
        if (d.work % 16 || d.scratch % 16)
            wrong("a workspace that is not aligned");
        struct nb_gpu_result fresh = {.done = res->done};
        fresh.length = work(d, &fresh);
        memcpy(res, &fresh, offsetof(struct nb_gpu_result, done));
        state->last = d.ticket + d.tickets;
        state->carried = number + 1;
        __atomic_store_n(&res->done, d.id, __ATOMIC_RELEASE);
    }
    state->launches = k + 1;
    __atomic_store_n(&state->left, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&ring->ended, k + 1, __ATOMIC_RELEASE);
}
