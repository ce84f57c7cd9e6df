/* SPDX-License-Identifier: Apache-2.0 */
/* See fake_kernel.h. */
#include "fake_kernel.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "codec/format.h"
#include "codec/fp.h"
#include "codec/pick.h"
#include "device/device.h"
#include "device/host/host.h"
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

static int64_t encode(const struct nb_gpu_desc *d, struct nb_gpu_result *res)
{
    struct nb_ef ef = {at(d->err), at(d->scale), (enum nb_ef_mode)d->mode, d->beta, d->bound};
    struct nb_encode_stats s = {.every = d->every};
    const int stats = d->flags & NB_GPU_STATS;
    int64_t ret =
        nb_encode((enum nb_codec)d->codec, (enum nb_dtype)d->type, at(d->src), d->n, d->first,
                  d->mode != NB_EF_OFF ? &ef : NULL, at(d->dst),
                  nb_encode_bound((enum nb_codec)d->codec, (enum nb_dtype)d->type, d->n), stats ? &s : NULL);
    res->nonfinite = s.nonfinite;
    res->escapes = s.escapes;
    res->fallback = s.fallback;
    res->flushed = s.flushed;
    res->bounded = s.bounded;
    res->signal2 = s.signal2;
    res->noise2 = s.noise2;
    res->carried2 = s.carried2;
    return ret;
}

static int64_t sum(const struct nb_gpu_desc *d)
{
    const struct nb_gpu_source *from = at(d->sources);
    struct nb_source *list = calloc(d->nsources + 1u, sizeof(*list));
    const void **plain = calloc(d->nsources + 1u, sizeof(*plain));
    int64_t ret;

    if (!list || !plain)
        abort();
    for (uint32_t i = 0; i < d->nsources; i++) {
        list[i] = (struct nb_source){(enum nb_codec)from[i].codec, at(from[i].coded), from[i].bytes};
        plain[i] = at(from[i].coded);
    }
    if (d->op == NB_GPU_DECODE)
        ret = nb_decode(list[0].codec, (enum nb_dtype)d->type, list[0].coded, list[0].len, d->n, d->first,
                        at(d->dst));
    else if (d->op == NB_GPU_REDUCE)
        ret = nb_reduce((enum nb_dtype)d->type, list, d->nsources, at(d->own), d->n, d->first, at(d->dst));
    else if (d->op == NB_GPU_ULP_DECODE)
        ret = nb_ulp_decode((enum nb_ulp_width)d->width, list[0].coded, list[0].len, at(d->ref), d->n,
                            at(d->dst));
    else if (d->op == NB_GPU_DELTA4_DECODE)
        ret = nb_delta4_decode((enum nb_dtype)d->type, list[0].coded, list[0].len, at(d->ref), d->n,
                               at(d->dst));
    else
        ret = nb_exact_reduce((ncclDataType_t)d->type, (ncclRedOp_t)d->mode, plain, d->nsources, at(d->own),
                              d->n, at(d->dst));
    free(list);
    free(plain);
    return ret;
}

/* Put the values of nb_pick back into the order of the parts. */
static int64_t pick(const struct nb_gpu_desc *d)
{
    uint32_t *to = at(d->dst), found[NB_PICKS];
    unsigned bits = 0;

    if (nb_pick(d->width, at(d->src), d->limit, d->picks, d->first, d->n, found) != d->nsources)
        wrong("a pick of other values than it is given");
    while (1u << bits < d->picks)
        bits++;
    for (uint32_t i = 0; i < d->nsources; i++) {
        uint32_t reversed = 0;
        for (unsigned b = 0; b < bits; b++)
            reversed |= ((d->part + i) >> b & 1) << (bits - 1 - b);
        to[i] = found[reversed];
    }
    return 0;
}

static int64_t work(const struct nb_gpu_desc *d, struct nb_gpu_result *res)
{
    struct nb_delta4_stats lossy = {0, 0};
    int64_t ret = 0;

    if (fake.major >= NB_GPU_NO_DIFFERENCES && nb_gpu_differs(d->op))
        return -ENOTSUP;
    switch (d->op) {
    case NB_GPU_ENCODE: return encode(d, res);
    case NB_GPU_DECODE:
    case NB_GPU_REDUCE:
    case NB_GPU_ULP_DECODE:
    case NB_GPU_DELTA4_DECODE:
    case NB_GPU_REDUCE_EXACT: return sum(d);
    case NB_GPU_COPY: memcpy(at(d->dst), at(d->src), d->n); return 0;
    case NB_GPU_ZERO: fake_zero(at(d->dst), d->n); return 0;
    case NB_GPU_HASH: res->value = nb_hash64(at(d->src), d->n, d->first); return 0;
    case NB_GPU_EQUAL: res->value = memcmp(at(d->src), at(d->ref), d->n) != 0; return 0;
    case NB_GPU_ULP_ENCODE:
        return nb_ulp_encode((enum nb_ulp_width)d->width, at(d->src), at(d->ref), d->n, d->limit, at(d->dst),
                             nb_ulp_bound((enum nb_ulp_width)d->width, d->n));
    case NB_GPU_DELTA4_ENCODE:
        ret = nb_delta4_encode((enum nb_dtype)d->type, at(d->src), at(d->ref), d->n, d->limit, at(d->dst),
                               nb_delta4_bound((enum nb_dtype)d->type, d->n), &lossy);
        res->value = lossy.lossy;
        return ret;
    case NB_GPU_LIKENESS: {
        const struct nb_similarity near = nb_host_similarity(at(d->src), at(d->ref), d->n, d->nsources);
        res->value = near.near16 << 32 | near.near8;
        res->escapes = near.far16;
        return 0;
    }
    case NB_GPU_SAMPLE:
        return nb_host_sample((enum nb_dtype)d->type, at(d->src), d->n, d->nsources, at(d->dst));
    case NB_GPU_PROFILE:
        if (!(d->flags & NB_GPU_SPREAD))
            wrong("a profile with a stride");
        return nb_host_sums((enum nb_dtype)d->type, at(d->src), d->n, d->nsources, at(d->dst));
    case NB_GPU_PICK: return pick(d);
    case NB_GPU_ULP_GUESS: res->value = nb_ulp_guess_width(at(d->src), at(d->ref), d->n); return 0;
    default: wrong("an operation that it does not know");
    }
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
        fresh.length = work(&d, &fresh);
        memcpy(res, &fresh, offsetof(struct nb_gpu_result, done));
        state->last = d.ticket + d.tickets;
        state->carried = number + 1;
        __atomic_store_n(&res->done, d.id, __ATOMIC_RELEASE);
    }
    state->launches = k + 1;
    __atomic_store_n(&state->left, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&ring->ended, k + 1, __ATOMIC_RELEASE);
}
