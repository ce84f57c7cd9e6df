/* SPDX-License-Identifier: Apache-2.0 */
/* Codecs and sums of the CUDA device. */
#include "device/cuda/table.h"

#include <errno.h>

#include "base/nccl_names.h"
#include "device/host/host.h"

/* The kernel's operations for each codec. The CPU encodes with the rest. */
struct by_kernel {
    bool encodes;
    uint8_t encode, decode; /* enum nb_gpu_op */
};

static const struct by_kernel kernels[NB_CODEC_CODES] = {
    [NB_CODEC_RAW] = {.decode = NB_GPU_DECODE},
    [NB_CODEC_INT4] = {true, NB_GPU_ENCODE, NB_GPU_DECODE},
    [NB_CODEC_INT6] = {true, NB_GPU_ENCODE, NB_GPU_DECODE},
    [NB_CODEC_INT8] = {true, NB_GPU_ENCODE, NB_GPU_DECODE},
    [NB_CODEC_ULP] = {true, NB_GPU_ULP_ENCODE, NB_GPU_ULP_DECODE},
    [NB_CODEC_DELTA4] = {true, NB_GPU_DELTA4_ENCODE, NB_GPU_DELTA4_DECODE},
};

/* Set the fields that describe the values: `n` counts bytes with a reference, else values. */
static void describe(struct nb_gpu_desc *c, const struct nb_codec_row *codec, unsigned format, size_t bytes,
                     uint64_t first, const void *ref)
{
    if (codec->format == NB_FORMAT_PATTERNS)
        c->width = (uint8_t)format;
    else
        c->type = (uint8_t)format;
    if (codec->reference) {
        c->n = bytes;
        c->ref = nb_cuda_address(ref);
    } else {
        c->n = bytes / nb_dtype_size((enum nb_dtype)format);
        c->first = first;
    }
}

/* ---- Encoding ------------------------------------------------------------------------------------------ */

/* Encode by the kernel. Return -ENOTSUP where it cannot. */
static ssize_t encode_by_kernel(struct nb_cuda_device *d, struct nb_work *work, const struct nb_encoding *e)
{
    const struct by_kernel *kernel = &kernels[e->codec->code];
    const size_t bound = e->codec->bound(e->format, e->bytes);
    const struct nb_gpu_wanted want = {.stats = e->stats,
                                       .runs = e->codec->reference && e->codec->lossy ? e->runs : NULL};
    struct nb_gpu_desc c = {
        .op = kernel->encode, .src = nb_cuda_address(e->src), .dst = nb_cuda_address(e->dst)};

    if (!kernel->encodes || !bound || e->cap < (bound + 3) / 4 * 4)
        return -ENOTSUP;
    describe(&c, e->codec, e->format, e->bytes, e->first, e->ref);
    if (e->codec->reference)
        c.limit = e->limit;
    else
        c.codec = (uint8_t)e->codec->code;
    if (e->ef && e->ef->mode != NB_EF_OFF) {
        c.mode = (uint8_t)e->ef->mode;
        c.err = nb_cuda_address(e->ef->err);
        c.scale = nb_cuda_address(e->ef->scale);
        c.beta = e->ef->beta;
        c.bound = e->ef->bound;
    }
    return nb_cuda_dev_submit(d, work, &c, NULL, &want);
}

ssize_t nb_cuda_dev_encode(struct nb_device *dev, struct nb_work *work, const struct nb_encoding *e)
{
    struct nb_cuda_device *d = nb_cuda_of(dev);
    struct nb_encoding seen = *e;
    ssize_t ret;

    if (nb_cuda_dev_check_reach(d, e->src) || (!e->codec->reference && nb_cuda_dev_check_reach(d, e->dst)))
        return -EFAULT;
    ret = encode_by_kernel(d, work, e);
    if (ret != -ENOTSUP)
        return ret;
    if (e->ef && e->ef->mode != NB_EF_OFF)
        return -EINVAL; /* the CPU cannot reach residuals, and the engine aligns its memory for the kernel */
    seen.src = nb_cuda_dev_view(d, 0, e->src, e->bytes, 1);
    seen.ref = seen.src && e->ref ? nb_cuda_dev_view(d, 1, e->ref, e->bytes, 1) : NULL;
    seen.cap = e->cap < d->bounce_bytes ? e->cap : d->bounce_bytes;
    seen.dst = nb_cuda_dev_view(d, 2, e->dst, seen.cap, 0);
    if (!seen.src || (e->ref && !seen.ref) || !seen.dst)
        return nb_cuda_dev_lost(d);
    ret = e->codec->encode(&seen);
    if (ret > 0 && nb_cuda_dev_unview(d, e->dst, seen.dst, (size_t)ret))
        return nb_cuda_dev_lost(d);
    return ret;
}

/* ---- Decoding and sums --------------------------------------------------------------------------------- */

/* Let the kernel work on aligned copies where the values lack the alignment that it needs. The CPU cannot do
 * this work, since payloads may lie where it cannot reach them. *in (0: no input) and c->dst have `bytes`
 * bytes each. */
static int on_copies(struct nb_cuda_device *d, struct nb_gpu_desc *c, uint64_t *in,
                     const struct nb_source *sources, size_t bytes)
{
    void *dst = (void *)(uintptr_t)c->dst, *out = nb_cuda_dev_copied(d, 1, NULL, bytes);
    int ret;

    if (*in)
        *in = nb_cuda_address(nb_cuda_dev_copied(d, 0, (const void *)(uintptr_t)*in, bytes));
    if (!out || atomic_load(&d->gpu->ring.failed))
        return nb_cuda_dev_lost(d);
    c->dst = nb_cuda_address(out);
    ret = (int)nb_cuda_dev_submit(d, NULL, c, sources, NULL);
    return ret ? ret : nb_cuda_dev_unview(d, dst, out, bytes);
}

int nb_cuda_dev_reduce(struct nb_device *dev, struct nb_work *work, enum nb_dtype type,
                       const struct nb_source *sources, size_t nsources, const void *own, size_t n,
                       uint64_t first, void *dst)
{
    struct nb_cuda_device *d = nb_cuda_of(dev);
    struct nb_gpu_desc c = {.op = NB_GPU_REDUCE,
                            .type = (uint8_t)type,
                            .nsources = (uint32_t)nsources,
                            .n = n,
                            .first = first,
                            .own = nb_cuda_address(own),
                            .dst = nb_cuda_address(dst)};
    int ret;

    if (nb_cuda_dev_check_reach(d, own) || nb_cuda_dev_check_reach(d, dst))
        return -EFAULT;
    ret = (int)nb_cuda_dev_submit(d, work, &c, sources, NULL);
    return ret == -ENOTSUP ? on_copies(d, &c, &c.own, sources, n * nb_dtype_size(type)) : ret;
}

int nb_cuda_dev_decode(struct nb_device *dev, struct nb_work *work, const struct nb_decoding *g)
{
    struct nb_cuda_device *d = nb_cuda_of(dev);
    const struct by_kernel *kernel = &kernels[g->codec->code];
    const struct nb_source source = {g->codec->code, g->coded, g->len};
    struct nb_gpu_desc c = {.op = kernel->decode, .nsources = 1, .dst = nb_cuda_address(g->dst)};
    int ret;

    if ((!g->codec->reference && nb_cuda_dev_check_reach(d, g->coded)) || nb_cuda_dev_check_reach(d, g->dst))
        return -EFAULT;
    describe(&c, g->codec, g->format, g->bytes, g->first, g->ref);
    ret = (int)nb_cuda_dev_submit(d, work, &c, &source, NULL);
    return ret == -ENOTSUP ? on_copies(d, &c, &c.ref, &source, g->bytes) : ret;
}

int nb_cuda_dev_reduce_exact(struct nb_device *dev, struct nb_work *work, ncclDataType_t type, ncclRedOp_t op,
                             const void *const *sources, size_t nsources, const void *own, size_t n,
                             void *dst)
{
    struct nb_cuda_device *d = nb_cuda_of(dev);
    struct nb_gpu_desc c = {.op = NB_GPU_REDUCE_EXACT,
                            .type = (uint8_t)type,
                            .mode = (uint8_t)op,
                            .nsources = (uint32_t)nsources,
                            .n = n,
                            .own = nb_cuda_address(own),
                            .dst = nb_cuda_address(dst)};
    const size_t bytes = n * nb_nccl_type_size(type);
    int ret;

    if (nb_cuda_dev_check_reach(d, own) || nb_cuda_dev_check_reach(d, dst))
        return -EFAULT;
    if (nsources > d->gpu->ring.most)
        return -EINVAL;
    for (size_t i = 0; i < nsources; i++)
        d->list[i] = (struct nb_source){NB_CODEC_RAW, sources[i], bytes};
    ret = (int)nb_cuda_dev_submit(d, work, &c, d->list, NULL);
    return ret == -ENOTSUP ? on_copies(d, &c, &c.own, d->list, bytes) : ret;
}
