/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors' work by this processor, with the C functions whose bytes the kernel gives
 * (kernels/kernels.h). */
#include "device/cuda/gpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "device/host/host.h"

static void *at(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

static int64_t encode(const struct nb_gpu_desc *d, struct nb_gpu_result *res)
{
    const struct nb_ef ef = {at(d->err), at(d->scale), (enum nb_ef_mode)d->mode, d->beta, d->bound};
    struct nb_encode_stats s = {.every = d->every};
    int64_t ret = nb_encode((enum nb_codec)d->codec, (enum nb_dtype)d->type, at(d->src), d->n, d->first,
                            d->mode != NB_EF_OFF ? &ef : NULL, at(d->dst),
                            nb_encode_bound((enum nb_codec)d->codec, (enum nb_dtype)d->type, d->n),
                            d->flags & NB_GPU_STATS ? &s : NULL);

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
    int64_t ret = -ENOMEM;

    for (uint32_t i = 0; list && plain && i < d->nsources; i++) {
        list[i] = (struct nb_source){(enum nb_codec)from[i].codec, at(from[i].coded), from[i].bytes};
        plain[i] = at(from[i].coded);
    }
    if (list && plain && d->op == NB_GPU_REDUCE)
        ret = nb_reduce((enum nb_dtype)d->type, list, d->nsources, at(d->own), d->n, d->first, at(d->dst));
    else if (list && plain)
        ret = nb_exact_reduce((ncclDataType_t)d->type, (ncclRedOp_t)d->mode, plain, d->nsources, at(d->own),
                              d->n, at(d->dst));
    free(list);
    free(plain);
    return ret;
}

static int64_t decode(const struct nb_gpu_desc *d)
{
    const struct nb_gpu_source *from = at(d->sources);

    if (d->op == NB_GPU_DECODE)
        return nb_decode((enum nb_codec)from->codec, (enum nb_dtype)d->type, at(from->coded), from->bytes,
                         d->n, d->first, at(d->dst));
    if (d->op == NB_GPU_ULP_DECODE)
        return nb_ulp_decode((enum nb_ulp_width)d->width, at(from->coded), from->bytes, at(d->ref), d->n,
                             at(d->dst));
    return nb_delta4_decode((enum nb_dtype)d->type, at(from->coded), from->bytes, at(d->ref), d->n,
                            at(d->dst));
}

static int64_t encode_deltas(const struct nb_gpu_desc *d, struct nb_gpu_result *res)
{
    struct nb_delta4_stats lossy = {0, 0};
    int64_t ret;

    if (d->op == NB_GPU_ULP_ENCODE)
        return nb_ulp_encode((enum nb_ulp_width)d->width, at(d->src), at(d->ref), d->n, d->limit, at(d->dst),
                             nb_ulp_bound((enum nb_ulp_width)d->width, d->n));
    ret = nb_delta4_encode((enum nb_dtype)d->type, at(d->src), at(d->ref), d->n, d->limit, at(d->dst),
                           nb_delta4_bound((enum nb_dtype)d->type, d->n), &lossy);
    res->value = lossy.lossy;
    return ret;
}

/* Put the values of nb_pick back into the order of the parts. */
static int64_t pick(const struct nb_gpu_desc *d)
{
    uint32_t *to = at(d->dst), found[NB_PICKS];
    unsigned bits = 0;

    if (nb_pick(d->width, at(d->src), d->limit, d->picks, d->first, d->n, found) != d->nsources)
        return -EINVAL;
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

int64_t nb_gpu_by_processor(const struct nb_gpu_desc *d, struct nb_gpu_result *res)
{
    switch (d->op) {
    case NB_GPU_ENCODE: return encode(d, res);
    case NB_GPU_DECODE:
    case NB_GPU_ULP_DECODE:
    case NB_GPU_DELTA4_DECODE: return decode(d);
    case NB_GPU_REDUCE:
    case NB_GPU_REDUCE_EXACT: return sum(d);
    case NB_GPU_ULP_ENCODE:
    case NB_GPU_DELTA4_ENCODE: return encode_deltas(d, res);
    case NB_GPU_COPY: memcpy(at(d->dst), at(d->src), d->n); return 0;
    case NB_GPU_ZERO: memset(at(d->dst), 0, d->n); return 0;
    case NB_GPU_HASH: res->value = nb_hash64(at(d->src), d->n, d->first); return 0;
    case NB_GPU_EQUAL: res->value = memcmp(at(d->src), at(d->ref), d->n) != 0; return 0;
    case NB_GPU_LIKENESS: {
        const struct nb_similarity near = nb_host_similarity(at(d->src), at(d->ref), d->n, d->nsources);
        res->value = near.near16 << 32 | near.near8;
        res->escapes = near.far16;
        return 0;
    }
    case NB_GPU_ULP_GUESS: res->value = nb_ulp_guess_width(at(d->src), at(d->ref), d->n); return 0;
    case NB_GPU_SAMPLE:
        return nb_host_sample((enum nb_dtype)d->type, at(d->src), d->n, d->nsources, at(d->dst));
    case NB_GPU_PROFILE:
        if (d->flags & NB_GPU_SPREAD)
            return nb_host_sums((enum nb_dtype)d->type, at(d->src), d->n, d->nsources, at(d->dst));
        return -EINVAL; /* only tests ask for these */
    case NB_GPU_PICK: return pick(d);
    default: return -EINVAL;
    }
}
