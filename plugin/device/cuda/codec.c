/* SPDX-License-Identifier: Apache-2.0 */
/* Codecs and sums of the CUDA device. */
#include "device/cuda/table.h"

#include <errno.h>

#include "base/nccl_names.h"
#include "device/host/host.h"

/* The kernel's operations for each codec. The CPU does the rest. */
struct by_kernel {
    bool encodes, decodes;
    uint8_t encode, decode; /* enum nb_gpu_op */
};

static const struct by_kernel kernels[NB_CODEC_CODES] = {
    [NB_CODEC_RAW] = {.decodes = true, .decode = NB_GPU_DECODE},
    [NB_CODEC_INT4] = {true, true, NB_GPU_ENCODE, NB_GPU_DECODE},
    [NB_CODEC_INT6] = {true, true, NB_GPU_ENCODE, NB_GPU_DECODE},
    [NB_CODEC_INT8] = {true, true, NB_GPU_ENCODE, NB_GPU_DECODE},
    [NB_CODEC_ULP] = {true, true, NB_GPU_ULP_ENCODE, NB_GPU_ULP_DECODE},
    [NB_CODEC_DELTA4] = {true, true, NB_GPU_DELTA4_ENCODE, NB_GPU_DELTA4_DECODE},
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
    if (!seen.src || (e->ref && !seen.ref))
        return nb_cuda_dev_lost(d);
    return e->codec->encode(&seen);
}

/* ---- Decoding and sums, by the CPU where the kernel cannot --------------------------------------------- */

/* Open views for the CPU: of `in`, which it reads (NULL: no input), and of `dst`, which it writes, `bytes`
 * each. Return 0 or an error. */
static int open_views(struct nb_cuda_device *d, const void *in, const void **seen, void *dst, void **out,
                      size_t bytes)
{
    *seen = nb_cuda_dev_view(d, 0, in, bytes, 1);
    *out = in && !*seen ? NULL : nb_cuda_dev_view(d, 1, dst, bytes, 0);
    return *out ? 0 : nb_cuda_dev_lost(d);
}

/* Close the views. `ret`: the result of the CPU's function. */
static int close_views(struct nb_cuda_device *d, int ret, void *dst, const void *out, size_t bytes)
{
    return ret ? ret : nb_cuda_dev_unview(d, dst, out, bytes);
}

/* Return whether the kernel knows the codecs of all sources. The kernel itself refuses invalid codec
 * numbers. */
static bool kernel_sums(const struct nb_source *sources, size_t nsources)
{
    for (size_t s = 0; s < nsources; s++)
        if (nb_codec_row(sources[s].codec) && !kernels[sources[s].codec].decodes)
            return false;
    return true;
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
    const size_t bytes = n * nb_dtype_size(type);
    const void *mine;
    void *out;
    int ret = -ENOTSUP;

    if (nb_cuda_dev_check_reach(d, own) || nb_cuda_dev_check_reach(d, dst))
        return -EFAULT;
    if (kernel_sums(sources, nsources))
        ret = (int)nb_cuda_dev_submit(d, work, &c, sources, NULL);
    if (ret != -ENOTSUP)
        return ret;
    ret = open_views(d, own, &mine, dst, &out, bytes);
    if (ret)
        return ret;
    ret = nb_reduce(type, sources, nsources, mine, n, first, out);
    return close_views(d, ret, dst, out, bytes);
}

int nb_cuda_dev_decode(struct nb_device *dev, struct nb_work *work, const struct nb_decoding *g)
{
    struct nb_cuda_device *d = nb_cuda_of(dev);
    const struct by_kernel *kernel = &kernels[g->codec->code];
    const struct nb_source source = {g->codec->code, g->coded, g->len};
    struct nb_gpu_desc c = {.op = kernel->decode, .nsources = 1, .dst = nb_cuda_address(g->dst)};
    struct nb_decoding seen = *g;
    int ret = -ENOTSUP;

    if ((!g->codec->reference && nb_cuda_dev_check_reach(d, g->coded)) || nb_cuda_dev_check_reach(d, g->dst))
        return -EFAULT;
    describe(&c, g->codec, g->format, g->bytes, g->first, g->ref);
    if (kernel->decodes)
        ret = (int)nb_cuda_dev_submit(d, work, &c, &source, NULL);
    if (ret != -ENOTSUP)
        return ret;
    ret = open_views(d, g->ref, &seen.ref, g->dst, &seen.dst, g->bytes);
    if (ret)
        return ret;
    ret = g->codec->decode(&seen);
    return close_views(d, ret, g->dst, seen.dst, g->bytes);
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
    struct nb_source *list;
    const void *mine;
    void *out;
    int ret = -ENOTSUP;

    if (nb_cuda_dev_check_reach(d, own) || nb_cuda_dev_check_reach(d, dst))
        return -EFAULT;
    list = nsources <= d->gpu->ring.most ? d->list : NULL;
    for (size_t i = 0; list && i < nsources; i++)
        list[i] = (struct nb_source){NB_CODEC_RAW, sources[i], bytes};
    if (list)
        ret = (int)nb_cuda_dev_submit(d, work, &c, list, NULL);
    if (ret != -ENOTSUP)
        return ret;
    ret = open_views(d, own, &mine, dst, &out, bytes);
    if (ret)
        return ret;
    ret = nb_exact_reduce(type, op, sources, nsources, mine, n, out);
    return close_views(d, ret, dst, out, bytes);
}
