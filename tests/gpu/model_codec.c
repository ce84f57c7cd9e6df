/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The codec kernel as the model sees it: the GPU's side of the ring of kernels/kernels.h, and its time. The
 * model does not touch values. Its first block takes over all published descriptors in a round, or at most
 * `model_carries`.
 *
 * A round is two round trips over PCIe one after the other, for the published count and for the descriptors,
 * and fences.
 */
#include "model_inside.h"

#include <stdlib.h>
#include <string.h>

#define ROUND_NS (2 * 1500 + 800) /* A11 */
#define RINGS 32u

unsigned model_carries;

static struct ring {
    uint64_t state; /* address that tells kernels apart */
    uint64_t launches, carried;
    struct op *runs;
    int64_t next; /* end of the current round, 0: idle */
    unsigned taken;
} rings[RINGS];

static struct {
    const void *host;
    const char *name;
    const void *const *waits;
} names[RINGS];

void model_codec_open(void)
{
    memset(names, 0, sizeof(names));
    memset(rings, 0, sizeof(rings));
}

static struct ring *ring_of(const struct op *op)
{
    for (unsigned i = 0; i < RINGS; i++) {
        if (!rings[i].state)
            rings[i].state = op->launch.state;
        if (rings[i].state == op->launch.state)
            return &rings[i];
    }
    model_wrong("too many rings");
}

void model_name_codec(const void *host_ring, const char *name, const void *const *waits)
{
    for (unsigned i = 0; i < RINGS; i++) {
        if (names[i].host && names[i].host != host_ring)
            continue;
        names[i].host = host_ring;
        names[i].name = name;
        names[i].waits = waits;
        return;
    }
}

static unsigned name_at(const struct op *op)
{
    unsigned i = 0;
    while (i < RINGS - 1 && names[i].host != (const void *)(uintptr_t)op->launch.ring)
        i++;
    return i;
}

const void *const *model_codec_waits(const struct op *op)
{
    return names[name_at(op)].waits;
}

const char *model_codec_name(const struct op *op)
{
    const char *name = names[name_at(op)].name;
    return name ? name : "codec kernel";
}

static void finish_descriptors(struct ring *r, struct nb_gpu_ring *ring)
{
    for (unsigned i = 0; i < r->taken; i++) {
        const struct nb_gpu_desc *d = &ring->desc[r->carried % NB_GPU_RING];
        struct nb_gpu_result *res = (struct nb_gpu_result *)(uintptr_t)d->result;
        res->length = 0;
        res->value = 0;
        r->carried++;
        __atomic_store_n(&res->done, d->id, __ATOMIC_RELEASE);
    }
    r->taken = 0;
    r->next = 0;
}

int model_codec_step(struct op *op, int64_t *next)
{
    struct ring *r = ring_of(op);
    struct nb_gpu_ring *ring = (struct nb_gpu_ring *)(uintptr_t)op->launch.ring;
    const uint64_t k = r->launches;
    uint64_t stops, published;

    if (r->runs && r->runs != op)
        model_wrong("two codec kernels at once on one ring");
    r->runs = op;
    *next = 0;
    __atomic_store_n(&ring->started, k + 1, __ATOMIC_RELEASE);
    if (r->next && r->next <= model_now())
        finish_descriptors(r, ring);
    if (r->next) {
        *next = r->next;
        return 0;
    }
    stops = __atomic_load_n(&ring->stops, __ATOMIC_ACQUIRE);
    published = __atomic_load_n(&ring->published, __ATOMIC_ACQUIRE);
    if (stops > k && r->carried >= ring->stop[k % NB_GPU_STOPS]) {
        if (op->placed < op->left)
            return 0; /* its last blocks are still to come */
        r->launches++;
        r->runs = NULL;
        __atomic_store_n(&ring->ended, r->launches, __ATOMIC_RELEASE);
        return 1;
    }
    if (r->carried < published) {
        const unsigned most = model_carries ? model_carries : NB_GPU_RING;
        r->taken = published - r->carried < most ? (unsigned)(published - r->carried) : most;
        r->next = model_now() + ROUND_NS;
        *next = r->next;
    }
    return 0;
}
