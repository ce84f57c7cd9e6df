/* SPDX-License-Identifier: Apache-2.0 */
/* Questions that the CUDA device answers at once, and values that it picks. See cuda_device.h. */
#include "device/cuda_device.h"

#include <errno.h>
#include <string.h>

#include "codec/pick.h"
#include "device/evidence.h"

enum nb_ulp_width nb_cuda_dev_ulp_guess(struct nb_device *dev, const void *cur, const void *ref, size_t bytes)
{
    struct nb_cuda_device *d = nb_cuda_of(dev);
    struct nb_gpu_desc c = {
        .op = NB_GPU_ULP_GUESS, .n = bytes, .src = nb_cuda_address(cur), .ref = nb_cuda_address(ref)};
    const void *a, *b;
    uint64_t width = 0;

    if (nb_cuda_dev_check_reach(d, cur))
        return NB_ULP_16;
    if (nb_cuda_dev_submit(d, NULL, &c, NULL, NULL, &width) != -ENOTSUP)
        return width == NB_ULP_8 || width == NB_ULP_32 ? (enum nb_ulp_width)width : NB_ULP_16;
    a = nb_cuda_dev_view(d, 0, cur, bytes, 1);
    b = a ? nb_cuda_dev_view(d, 1, ref, bytes, 1) : NULL;
    return b ? nb_ulp_guess_width(a, b, bytes) : NB_ULP_16;
}

uint64_t nb_cuda_dev_hash(struct nb_device *dev, const void *data, size_t bytes, uint64_t seed)
{
    struct nb_cuda_device *d = nb_cuda_of(dev);
    struct nb_gpu_desc c = {.op = NB_GPU_HASH, .n = bytes, .first = seed, .src = nb_cuda_address(data)};
    uint64_t value = 0;
    const void *p;

    if (nb_cuda_dev_check_reach(d, data))
        return 0;
    /* A seed is no index, so it must not look like one that is too large. */
    if (seed <= UINT64_MAX - bytes && nb_cuda_dev_submit(d, NULL, &c, NULL, NULL, &value) != -ENOTSUP)
        return value;
    p = nb_cuda_dev_view(d, 0, data, bytes, 1);
    return p ? nb_hash64(p, bytes, seed) : 0;
}

int nb_cuda_dev_equal(struct nb_device *dev, const void *a, const void *b, size_t bytes)
{
    struct nb_cuda_device *d = nb_cuda_of(dev);
    struct nb_gpu_desc c = {
        .op = NB_GPU_EQUAL, .n = bytes, .src = nb_cuda_address(a), .ref = nb_cuda_address(b)};
    uint64_t differ = 1;

    if (nb_cuda_dev_check_reach(d, a) || nb_cuda_dev_check_reach(d, b))
        return 0;
    return !bytes || (nb_cuda_dev_submit(d, NULL, &c, NULL, NULL, &differ) == 0 && differ == 0);
}

/* As nb_cuda_view, but NULL for what is too much, and nothing fails. */
static const void *glimpse(struct nb_cuda_device *d, const void *p, size_t bytes)
{
    return nb_cuda_dev_may_view(d, p, bytes) ? nb_cuda_dev_view(d, 0, p, bytes, 1) : NULL;
}

double nb_cuda_dev_likeness(struct nb_device *dev, const void *a, const void *b, size_t bytes,
                            unsigned samples)
{
    struct nb_cuda_device *d = nb_cuda_of(dev);
    struct nb_gpu_desc c = {.op = NB_GPU_LIKENESS,
                            .nsources = samples,
                            .n = bytes,
                            .src = nb_cuda_address(a),
                            .ref = nb_cuda_address(b)};
    struct nb_nearness near = {.samples = samples < bytes / 4 ? samples : (unsigned)(bytes / 4)};
    struct nb_encode_stats stats = {0};
    uint64_t value = 0;

    if (nb_cuda_dev_check_reach(d, a) || nb_cuda_dev_check_reach(d, b))
        return 0;
    if (near.samples == 0)
        return bytes && nb_cuda_dev_equal(dev, a, b, bytes) ? 1.0 : 0.0;
    if (nb_cuda_dev_submit(d, NULL, &c, NULL, &stats, &value) < 0)
        return 0;
    near.near16 = value >> 32;
    near.near8 = (uint32_t)value;
    near.far16 = stats.escapes;
    return nb_likeness_of(&near);
}

/* One number for each of nsources places, FP32, into bounce buffer 0; how many. -ENOTSUP: not by the
 * kernel. */
static ssize_t ask_for_numbers(struct nb_cuda_device *d, struct nb_gpu_desc *c)
{
    if (c->nsources * sizeof(float) > d->bounce_bytes)
        return 0;
    c->dst = nb_cuda_address(d->bounce[0]);
    return nb_cuda_dev_submit(d, NULL, c, NULL, NULL, NULL);
}

unsigned nb_cuda_dev_sample(struct nb_device *dev, enum nb_dtype type, const void *src, size_t n,
                            unsigned samples, float *out)
{
    struct nb_cuda_device *d = nb_cuda_of(dev);
    struct nb_gpu_desc c = {
        .op = NB_GPU_SAMPLE, .type = (uint8_t)type, .nsources = samples, .n = n, .src = nb_cuda_address(src)};
    const void *p;
    ssize_t got;

    if (nb_cuda_dev_check_reach(d, src) || samples == 0)
        return 0;
    got = ask_for_numbers(d, &c);
    if (got == -ENOTSUP) {
        p = glimpse(d, src, n * nb_dtype_size(type));
        return p ? nb_host_sample(type, p, n, samples, out) : 0;
    }
    if (got <= 0)
        return 0;
    memcpy(out, d->bounce[0], sizeof(*out) * (size_t)got);
    return (unsigned)got;
}

unsigned nb_cuda_dev_profile(struct nb_device *dev, enum nb_dtype type, const void *src, size_t n,
                             unsigned groups, float *out)
{
    struct nb_cuda_device *d = nb_cuda_of(dev);
    struct nb_gpu_desc c = {.op = NB_GPU_PROFILE,
                            .type = (uint8_t)type,
                            .flags = NB_GPU_SPREAD,
                            .nsources = groups,
                            .n = n,
                            .src = nb_cuda_address(src)};
    const void *p;
    ssize_t got;

    if (nb_cuda_dev_check_reach(d, src) || groups == 0)
        return 0;
    got = ask_for_numbers(d, &c);
    if (got == -ENOTSUP) {
        p = glimpse(d, src, n * nb_dtype_size(type));
        return p ? nb_host_profile(type, p, n, groups, out) : 0;
    }
    return got <= 0 ? 0 : nb_profile_of_sums((const float *)(const void *)d->bounce[0], (unsigned)got, out);
}

ssize_t nb_cuda_dev_pick(struct nb_device *dev, struct nb_work *work, size_t width, const void *src,
                         uint64_t n, unsigned picks, uint64_t first, uint64_t count, uint32_t *out)
{
    struct nb_cuda_device *d = nb_cuda_of(dev);
    struct nb_gpu_desc c = {.op = NB_GPU_PICK,
                            .width = (uint8_t)width,
                            .n = count,
                            .first = first,
                            .src = nb_cuda_address(src),
                            .dst = nb_cuda_address(out),
                            .limit = n,
                            .picks = picks};
    ssize_t ret;

    c.nsources = nb_pick_parts(n, picks, first, count, &c.part);
    if (!c.nsources)
        return 0;
    if (nb_cuda_dev_check_reach(d, src))
        return -EFAULT;
    ret = nb_cuda_dev_submit(d, work, &c, NULL, NULL, NULL);
    /* Values that are not aligned: a copy for the CPU would be waited for. */
    return ret == -ENOTSUP ? 0 : ret;
}
