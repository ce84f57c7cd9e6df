/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device of jobs whose buffers NCCL hands over in host memory. Codecs run on the calling thread: the
 * engine's, or a codec thread (threads.c).
 */
#include "device/host/host.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "codec/pick.h"
#include "device/device.h"

/* Map memory: zeroed, page-aligned, and free of cost until touched. */
static void *host_alloc(struct nb_device *dev, enum nb_place place, size_t bytes)
{
    void *p = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    (void)dev;
    (void)place;
    return p == MAP_FAILED ? NULL : p;
}

static void host_free(struct nb_device *dev, enum nb_place place, void *p, size_t bytes)
{
    (void)dev;
    (void)place;
    if (p)
        munmap(p, bytes ? bytes : 1);
}

static int host_copy(struct nb_device *dev, struct nb_work *work, void *dst, const void *src, size_t bytes)
{
    (void)dev;
    (void)work;
    if (dst != src)
        memcpy(dst, src, bytes);
    return 0;
}

/* Zero memory of host_alloc. The pages of a large area go back to the kernel, which gives zeros again on the
 * next touch. Zeroing an untouched area therefore takes no memory, and zeroing a large one takes no time to
 * write it. */
static int host_zero(struct nb_device *dev, struct nb_work *work, void *dst, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = bytes / page * page;

    (void)dev;
    (void)work;
    if (bytes < (1u << 20) || (uintptr_t)dst % page || madvise(dst, whole, MADV_DONTNEED)) {
        memset(dst, 0, bytes);
        return 0;
    }
    memset((uint8_t *)dst + whole, 0, bytes - whole);
    return 0;
}

static int host_compare(struct nb_device *dev, struct nb_work *work, const void *cur, const void *ref,
                        size_t bytes, struct nb_compared *out)
{
    (void)dev;
    (void)work;
    out->equal = ref && memcmp(cur, ref, bytes) == 0;
    out->hash = nb_hash64(cur, bytes, 0);
    out->ref_hash = !ref ? 0 : out->equal ? out->hash : nb_hash64(ref, bytes, 0);
    if (ref && !out->equal)
        out->width = nb_ulp_guess_width(cur, ref, bytes);
    return 0;
}

static int host_similarity(struct nb_device *dev, struct nb_work *work, const void *a, const void *b,
                           size_t bytes, unsigned samples, struct nb_similarity *out)
{
    (void)dev;
    (void)work;
    if (bytes < 4)
        *out = (struct nb_similarity){.near8 = bytes && memcmp(a, b, bytes) == 0, .samples = 1};
    else
        *out = nb_host_similarity(a, b, bytes, samples);
    return 0;
}

/* The functions of nibble/codec.h and the rest. The host ignores the first two arguments. */

static ssize_t host_encode(struct nb_device *dev, struct nb_work *work, const struct nb_encoding *e)
{
    (void)dev;
    (void)work;
    return e->codec->encode(e);
}

static int host_decode(struct nb_device *dev, struct nb_work *work, const struct nb_decoding *d)
{
    (void)dev;
    (void)work;
    return d->codec->decode(d);
}

static int host_reduce(struct nb_device *dev, struct nb_work *work, enum nb_dtype type,
                       const struct nb_source *sources, size_t nsources, const void *own, size_t n,
                       uint64_t first, void *dst)
{
    (void)dev;
    (void)work;
    return nb_reduce(type, sources, nsources, own, n, first, dst);
}

static int host_reduce_exact(struct nb_device *dev, struct nb_work *work, ncclDataType_t type, ncclRedOp_t op,
                             const void *const *sources, size_t nsources, const void *own, size_t n,
                             void *dst)
{
    (void)dev;
    (void)work;
    return nb_exact_reduce(type, op, sources, nsources, own, n, dst);
}

static uint64_t host_check(struct nb_device *dev, const void *data, size_t bytes, uint64_t seed)
{
    (void)dev;
    return nb_hash64(data, bytes, seed);
}

static int host_sample(struct nb_device *dev, struct nb_work *work, enum nb_dtype type, const void *src,
                       size_t n, unsigned samples, float *out)
{
    (void)dev;
    (void)work;
    return (int)nb_host_sample(type, src, n, samples, out);
}

static int host_sums(struct nb_device *dev, struct nb_work *work, enum nb_dtype type, const void *src,
                     size_t n, unsigned groups, float *out)
{
    (void)dev;
    (void)work;
    return (int)nb_host_sums(type, src, n, groups, out);
}

static void host_nothing(struct nb_device *dev)
{
    (void)dev;
}

static int host_failed(struct nb_device *dev)
{
    (void)dev;
    return 0;
}

/* Work of the host is complete at once. */
static ssize_t host_poll(struct nb_device *dev, struct nb_work *work)
{
    (void)dev;
    (void)work;
    return -EINVAL;
}

static ssize_t host_pick(struct nb_device *dev, struct nb_work *work, size_t width, const void *src,
                         uint64_t n, unsigned picks, uint64_t first, uint64_t count, uint32_t *out)
{
    (void)dev;
    (void)work;
    return (ssize_t)nb_pick(width, src, n, picks, first, count, out);
}

static const struct nb_device_ops host_ops = {
    .name = "host",
    .host_memory = true,
    .zeroes = true,
    .quiesce = host_nothing,
    .failed = host_failed,
    .close = host_nothing,
    .alloc = host_alloc,
    .free = host_free,
    .poll = host_poll,
    .copy = host_copy,
    .zero = host_zero,
    .encode = host_encode,
    .decode = host_decode,
    .reduce = host_reduce,
    .reduce_exact = host_reduce_exact,
    .compare = host_compare,
    .similarity = host_similarity,
    .sample = host_sample,
    .sums = host_sums,
    .check = host_check,
    .pick = host_pick,
};

struct nb_device *nb_host_device(void)
{
    static const struct nb_device device = {.ops = &host_ops};
    return (struct nb_device *)(uintptr_t)&device; /* all users only read it */
}
