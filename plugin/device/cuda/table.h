/* SPDX-License-Identifier: Apache-2.0 */
/* Private to this folder: the parts of the CUDA device's table. */
#ifndef NIBBLE_DEVICE_CUDA_TABLE_H
#define NIBBLE_DEVICE_CUDA_TABLE_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "device/cuda/gpu.h"
#include "device/device.h"

/* ---- memory.c: whose memory an address is -------------------------------------------------------------- */

enum nb_reach {
    NB_REACH_UNKNOWN = 0,
    NB_REACH_NONE, /* the GPU does not see it */
    NB_REACH_CPU,  /* both see it, at the same address */
    NB_REACH_GPU,  /* the GPU alone */
};

struct nb_reach_range {
    uintptr_t base;
    size_t bytes;
    enum nb_reach reach;
};

struct nb_ranges {
    pthread_mutex_t lock;
    struct nb_reach_range *range; /* by address, without overlap */
    unsigned n, cap;
};

void nb_ranges_init(struct nb_ranges *ranges);
void nb_ranges_free(struct nb_ranges *ranges);
/* Add a range, or update the one with this base. Return 0, or -ENOMEM without a log line. Remove the range
 * with this base, if there is one. */
int nb_ranges_add(struct nb_ranges *ranges, const void *base, size_t bytes, enum nb_reach reach);

/* ---- the instance and the functions of its table ------------------------------------------------------- */

/*
 * The parts of the CUDA device's table (device.h): the engine's work as descriptors for the kernel. The
 * kernel refuses some work: nb_gpu_plan returns -ENOTSUP for other alignments than its own, and for a span
 * without room behind it. The CPU does that work, on copies where the bytes lie in GPU memory.
 *
 *   work.c      submitting, polling, waiting
 *   memory.c    whose memory an address is, copies for the CPU, the device's own memory
 *   codec.c     codecs and sums
 *   evidence.c  looks at values: questions and picks
 *   cuda.c      the table, opening and closing
 *
 * Threads: as in device.h.
 */

/* A communicator's instance. */
struct nb_cuda_device {
    struct nb_device dev;
    struct nb_gpu *gpu;
    unsigned inflight;       /* submitted and unfinished work. Under the GPU's lock */
    struct nb_source *list;  /* [nnodes] */
    uint8_t *bounce[3];      /* pinned, for work of the CPU, and copies that are aligned */
    size_t bounce_bytes;     /* of each */
    struct nb_ranges ranges; /* memory that it was given or has made */
    _Atomic int connected;   /* the engine has it: no driver calls from here on */
};

static inline struct nb_cuda_device *nb_cuda_of(struct nb_device *dev)
{
    return (struct nb_cuda_device *)dev;
}

static inline uint64_t nb_cuda_address(const void *p)
{
    return (uintptr_t)p;
}

/* ---- work.c ---- */

/* Submit `desc` with its sources (NULL: without sources). With `work` return -EINPROGRESS, -EAGAIN, or an
 * error. With NULL for it wait, and return the result. Return -ENOTSUP when the kernel cannot do the work.
 * `want` may be NULL. */
ssize_t nb_cuda_dev_submit(struct nb_cuda_device *d, struct nb_work *work, struct nb_gpu_desc *desc,
                           const struct nb_source *sources, const struct nb_gpu_wanted *want);
/* together: submit nb_cuda_dev_compare's work, whose parts, out->part, are in flight. Return -EINPROGRESS, or
 * without `work` the result. room: return 1 when `parts` of them can be submitted now. */
int nb_cuda_dev_room(struct nb_cuda_device *d, unsigned parts);
ssize_t nb_cuda_dev_together(struct nb_cuda_device *d, struct nb_work *work, struct nb_compared *out);
/* Wait until none of the instance's work is in flight. The watchdog bounds the wait. */
void nb_cuda_dev_drain(struct nb_cuda_device *d);
/* After a step has failed, return the error with which the device has failed, or -EIO where it has none. */
int nb_cuda_dev_lost(struct nb_cuda_device *d);

ssize_t nb_cuda_dev_poll(struct nb_device *dev, struct nb_work *work);

/* ---- memory.c ---- */

/* Return 0 when the GPU sees the address, or it is NULL. Else return -EFAULT after a WARN, and fail the
 * device. */
int nb_cuda_dev_check_reach(struct nb_cuda_device *d, const void *p);
/* Return 1 when the CPU can read `bytes` at `p`, there or in a bounce buffer. */
int nb_cuda_dev_may_view(struct nb_cuda_device *d, const void *p, size_t bytes);
/* Return an address at which the CPU can access the bytes: `p` (also NULL), or bounce buffer `i`. With `fill`
 * the buffer has a copy of the bytes. Return NULL, and fail the device, for too many bytes or when copying
 * fails. */
void *nb_cuda_dev_view(struct nb_cuda_device *d, unsigned i, const void *p, size_t bytes, int fill);
/* Copy bytes that the CPU has written at `from`, a view of `to`, to `to`. Return 0 or an error. */
int nb_cuda_dev_unview(struct nb_cuda_device *d, void *to, const void *from, size_t bytes);

/* Return bounce buffer `i`, with a copy of the bytes at `p` unless `p` is NULL. Return NULL as above. */
void *nb_cuda_dev_copied(struct nb_cuda_device *d, unsigned i, const void *p, size_t bytes);

int nb_cuda_dev_dmabuf(struct nb_device *dev, void *p, size_t bytes);
int nb_cuda_dev_region(struct nb_device *dev, const void *base, size_t bytes, int fd, uint64_t offset);
int nb_cuda_dev_copy(struct nb_device *dev, struct nb_work *work, void *dst, const void *src, size_t bytes);
int nb_cuda_dev_zero(struct nb_device *dev, struct nb_work *work, void *dst, size_t bytes);
void *nb_cuda_dev_alloc(struct nb_device *dev, enum nb_place place, size_t bytes);
void nb_cuda_dev_free(struct nb_device *dev, enum nb_place place, void *p, size_t bytes);

/* ---- codec.c ---- */

ssize_t nb_cuda_dev_encode(struct nb_device *dev, struct nb_work *work, const struct nb_encoding *e);
int nb_cuda_dev_decode(struct nb_device *dev, struct nb_work *work, const struct nb_decoding *d);
int nb_cuda_dev_reduce(struct nb_device *dev, struct nb_work *work, enum nb_dtype type,
                       const struct nb_source *sources, size_t nsources, const void *own, size_t n,
                       uint64_t first, void *dst);
int nb_cuda_dev_reduce_exact(struct nb_device *dev, struct nb_work *work, ncclDataType_t type, ncclRedOp_t op,
                             const void *const *sources, size_t nsources, const void *own, size_t n,
                             void *dst);

/* ---- evidence.c ---- */

int nb_cuda_dev_compare(struct nb_device *dev, struct nb_work *work, const void *cur, const void *ref,
                        size_t bytes, struct nb_compared *out);
int nb_cuda_dev_similarity(struct nb_device *dev, struct nb_work *work, const void *a, const void *b,
                           size_t bytes, unsigned samples, struct nb_similarity *out);
int nb_cuda_dev_sample(struct nb_device *dev, struct nb_work *work, enum nb_dtype type, const void *src,
                       size_t n, unsigned samples, float *out);
int nb_cuda_dev_sums(struct nb_device *dev, struct nb_work *work, enum nb_dtype type, const void *src,
                     size_t n, unsigned groups, float *out);
ssize_t nb_cuda_dev_pick(struct nb_device *dev, struct nb_work *work, size_t width, const void *src,
                         uint64_t n, unsigned picks, uint64_t first, uint64_t count, uint32_t *out);

#endif
