/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA device's answers to questions, and picks of values. */
#include "device/cuda/table.h"

#include <errno.h>
#include <string.h>

#include "codec/pick.h"
#include "device/host/host.h"

/* Return a view like nb_cuda_dev_view, but NULL without a failure for too many bytes. */
static const void *glimpse(struct nb_cuda_device *d, const void *p, size_t bytes)
{
    return nb_cuda_dev_may_view(d, p, bytes) ? nb_cuda_dev_view(d, 0, p, bytes, 1) : NULL;
}

/* ---- Questions with later answers ---------------------------------------------------------------------- */

/* Guess the width on the CPU, on copies, where the kernel cannot. */
static int guess_here(struct nb_cuda_device *d, const void *cur, const void *ref, size_t bytes,
                      uint64_t *width)
{
    const void *a = nb_cuda_dev_view(d, 0, cur, bytes, 1),
               *b = a ? nb_cuda_dev_view(d, 1, ref, bytes, 1) : NULL;

    if (!b)
        return nb_cuda_dev_lost(d);
    *width = nb_ulp_guess_width(a, b, bytes);
    return 0;
}

/* Submit all parts at once, so that blocks work on them side by side. */
int nb_cuda_dev_compare(struct nb_device *dev, struct nb_work *work, const void *cur, const void *ref,
                        size_t bytes, struct nb_compared *out)
{
    struct nb_cuda_device *d = nb_cuda_of(dev);
    const uint64_t a = nb_cuda_address(cur), b = nb_cuda_address(ref);
    struct nb_gpu_desc part[] = {{.op = NB_GPU_HASH, .n = bytes, .src = a},
                                 {.op = NB_GPU_HASH, .n = bytes, .src = b},
                                 {.op = NB_GPU_EQUAL, .n = bytes, .src = a, .ref = b},
                                 {.op = NB_GPU_ULP_GUESS, .n = bytes, .src = a, .ref = b}};
    uint64_t *const value[] = {&out->hash, &out->ref_hash, &out->differ, &out->guess};
    const unsigned parts = ref ? 4 : 1;
    ssize_t ret = 0;

    *out = (struct nb_compared){.differ = 1};
    if (nb_cuda_dev_check_reach(d, cur) || nb_cuda_dev_check_reach(d, ref))
        return -EFAULT;
    if (!nb_cuda_dev_room(d, parts)) {
        if (work)
            return -EAGAIN;
        nb_cuda_dev_drain(d);
    }
    for (unsigned i = 0; i < parts && !ret; i++) {
        const struct nb_gpu_wanted want = {.value = value[i]};
        ret = nb_cuda_dev_submit(d, &out->part[i], &part[i], NULL, &want);
        if (ret == -ENOTSUP && part[i].op == NB_GPU_ULP_GUESS)
            ret = guess_here(d, cur, ref, bytes, &out->guess);
        else if (ret == -EINPROGRESS)
            ret = 0;
    }
    if (ret) { /* wait: no part stays in flight after an error */
        nb_cuda_dev_drain(d);
        return (int)ret;
    }
    return (int)nb_cuda_dev_together(d, work, out);
}

int nb_cuda_dev_similarity(struct nb_device *dev, struct nb_work *work, const void *a, const void *b,
                           size_t bytes, unsigned samples, struct nb_similarity *out)
{
    struct nb_cuda_device *d = nb_cuda_of(dev);
    struct nb_gpu_desc c = {.op = bytes < 4 ? NB_GPU_EQUAL : NB_GPU_LIKENESS,
                            .nsources = samples,
                            .n = bytes,
                            .src = nb_cuda_address(a),
                            .ref = nb_cuda_address(b)};
    const struct nb_gpu_wanted want = {.near = out};

    *out = (struct nb_similarity){.samples = bytes < 4             ? 1
                                             : samples < bytes / 4 ? samples
                                                                   : (unsigned)(bytes / 4)};
    if (nb_cuda_dev_check_reach(d, a) || nb_cuda_dev_check_reach(d, b))
        return -EFAULT;
    if (!bytes || !out->samples)
        return 0;
    return (int)nb_cuda_dev_submit(d, work, &c, NULL, &want);
}

/* The host's function for the same answer. */
typedef unsigned numbers(enum nb_dtype type, const void *src, size_t n, unsigned count, float *out);

/* Compute c->nsources FP32 numbers of the c->n values at `src`. Return their number. */
static int ask_for_numbers(struct nb_device *dev, struct nb_work *work, struct nb_gpu_desc *c,
                           const void *src, numbers *here, float *out)
{
    struct nb_cuda_device *d = nb_cuda_of(dev);
    const enum nb_dtype type = (enum nb_dtype)c->type;
    const struct nb_gpu_wanted want = {.numbers = out};
    ssize_t ret = -ENOTSUP;
    const void *p;

    if (nb_cuda_dev_check_reach(d, src) || c->nsources == 0)
        return 0;
    c->src = nb_cuda_address(src);
    if (c->nsources <= NB_PICKS)
        ret = nb_cuda_dev_submit(d, work, c, NULL, &want);
    if (ret != -ENOTSUP)
        return (int)ret;
    p = glimpse(d, src, c->n * nb_dtype_size(type));
    return p ? (int)here(type, p, c->n, c->nsources, out) : 0;
}

int nb_cuda_dev_sample(struct nb_device *dev, struct nb_work *work, enum nb_dtype type, const void *src,
                       size_t n, unsigned samples, float *out)
{
    struct nb_gpu_desc c = {.op = NB_GPU_SAMPLE, .type = (uint8_t)type, .nsources = samples, .n = n};

    return ask_for_numbers(dev, work, &c, src, nb_host_sample, out);
}

int nb_cuda_dev_sums(struct nb_device *dev, struct nb_work *work, enum nb_dtype type, const void *src,
                     size_t n, unsigned groups, float *out)
{
    struct nb_gpu_desc c = {
        .op = NB_GPU_PROFILE, .type = (uint8_t)type, .flags = NB_GPU_SPREAD, .nsources = groups, .n = n};

    return ask_for_numbers(dev, work, &c, src, nb_host_sums, out);
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
    const struct nb_gpu_wanted want = {.numbers = out};
    ssize_t ret;

    c.nsources = nb_pick_parts(n, picks, first, count, &c.part);
    if (!c.nsources)
        return 0;
    if (nb_cuda_dev_check_reach(d, src))
        return -EFAULT;
    ret = nb_cuda_dev_submit(d, work, &c, NULL, &want);
    /* Refuse to pick unaligned values: the engine would have to wait for a copy for the CPU. */
    return ret == -ENOTSUP ? 0 : ret;
}
