/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where bytes live and codecs run. The engine never touches values itself: it asks the device of a communicator.
 * `host` is host memory and the C codecs; a GPU is another table of the same shape. A device is an instance, made at
 * connect and closed with the communicator, so that it can hold a context, memory and a ring.
 *
 * Threads: an instance is used by one thread at a time: the engine's while the communicator runs, NCCL's when it
 * connects, deregisters and closes. So a device that needs a context makes it current in each function.
 *
 * Work that may take its time. Functions with a `work` argument read and write values; a GPU has them done by a
 * kernel while the engine goes on. They return
 *   >= 0, or a negative errno   the work is done, or refused for good: nobody looks at `work` or the arguments again;
 *   -EINPROGRESS                it was taken and will be done: `poll` tells when, and the result;
 *   -EAGAIN                     there is no room for it now: nothing was taken, come again later.
 * With `work` NULL they return when the work is done, and neither of the latter two: for what is rare, or short.
 *
 * While work is in flight everything that it was given stays where it is: memory of values, and also `work` itself,
 * struct nb_ef, struct nb_encode_stats, struct nb_delta4_stats, and arrays of sources (not what a prototype takes by
 * value). Works in flight run in any order and at the same time, on one instance and on several. So the caller never
 * submits one (nor calls a function without `work`) that touches what another in flight writes, or writes what another
 * reads: of steps that depend on each other it submits the next when the one before is done. The results of works
 * depend on nothing but their arguments.
 *
 * Errors: -EINVAL, -ENOSPC, -EBADMSG and -E2BIG are a codec's (nibble/codec.h) and concern that work alone. Any other
 * means that the device has failed: the communicator fails with it, and `failed` says so from then on.
 */
#ifndef NIBBLE_DEVICE_DEVICE_H
#define NIBBLE_DEVICE_DEVICE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "nibble/codec.h"
#include "nibble/nccl_types.h"

struct nb_device_ops;

struct nb_device {
    const struct nb_device_ops *ops;
    /* the device's own fields follow (its instance begins with this struct) */
};

/* Work in flight: memory of the caller's, contents of the device's. Nothing has to be set before; when the work is
 * done it can be used again at once. */
struct nb_work {
    uint64_t id;
    void *at;
    uint64_t more[2];
};

enum nb_place {
    NB_PLACE_WIRE,  /* messages: the CPU reads and writes headers, transports send from it and receive into it */
    NB_PLACE_STATE, /* carried errors, references, sums under way: only the device touches them */
};

struct nb_device_ops {
    const char *name;

    /* Wait until nothing is in flight, cancelling what has not begun, in bounded time. When it returns no memory
     * but the device's own is touched any more by what was submitted before; `poll` need not be called for it and,
     * if it is, gives the result or -ECANCELED. After that the device can be used as before, unless it has failed. */
    void (*quiesce)(struct nb_device *dev);
    /* 0, or the error with which the device has failed. Cheap: asked for every piece. Looked at after what was asked for
     * without `work` and before it counts, so that answers and results after a failure may be anything. */
    int (*failed)(struct nb_device *dev);
    /* Called in every round of the engine's; NULL in the table: nothing to do. `busy`: the communicator has windows that
     * are not finished, or an operation of which more windows are to come. 1 while something may happen that nobody
     * wakes the engine's thread for. */
    int (*turn)(struct nb_device *dev, int busy);
    /* quiesce, and free the instance; memory of alloc's was freed before. */
    void (*close)(struct nb_device *dev);

    /* Zeroed memory, page-aligned; not touched until used. NULL when there is none. */
    void *(*alloc)(struct nb_device *dev, enum nb_place place, size_t bytes);
    void (*free)(struct nb_device *dev, enum nb_place place, void *p, size_t bytes);

    /* Of work that gave -EINPROGRESS: -EINPROGRESS, or its result (once; then it is no longer in flight). */
    ssize_t (*poll)(struct nb_device *dev, struct nb_work *work);

    /* `bytes` bytes; dst and src are the same or do not overlap. */
    int (*copy)(struct nb_device *dev, struct nb_work *work, void *dst, const void *src, size_t bytes);
    int (*zero)(struct nb_device *dev, struct nb_work *work, void *dst, size_t bytes); /* of alloc's memory */

    /* As in nibble/codec.h. */
    ssize_t (*encode)(struct nb_device *dev, struct nb_work *work, enum nb_codec codec, enum nb_dtype type,
                      const void *src, size_t n, uint64_t first, const struct nb_ef *ef, void *dst, size_t cap,
                      struct nb_encode_stats *stats);
    int (*decode)(struct nb_device *dev, struct nb_work *work, enum nb_codec codec, enum nb_dtype type,
                  const void *coded, size_t len, size_t n, uint64_t first, void *dst);
    int (*reduce)(struct nb_device *dev, struct nb_work *work, enum nb_dtype type, const struct nb_source *sources,
                  size_t nsources, const void *own, size_t n, uint64_t first, void *dst);
    /* dst[i] = sources[0][i] op ... op own[i] over plain values, in this order; see plugin/device/exact.h. */
    int (*reduce_exact)(struct nb_device *dev, struct nb_work *work, ncclDataType_t type, ncclRedOp_t op,
                        const void *const *sources, size_t nsources, const void *own, size_t n, void *dst);
    ssize_t (*ulp_encode)(struct nb_device *dev, struct nb_work *work, enum nb_ulp_width width, const void *cur,
                          const void *ref, size_t bytes, size_t limit, void *dst, size_t cap);
    int (*ulp_decode)(struct nb_device *dev, struct nb_work *work, enum nb_ulp_width width, const void *coded,
                      size_t len, const void *ref, size_t bytes, void *dst);
    ssize_t (*delta4_encode)(struct nb_device *dev, struct nb_work *work, enum nb_dtype type, const void *cur,
                             const void *ref, size_t bytes, size_t limit, void *dst, size_t cap,
                             struct nb_delta4_stats *stats);
    int (*delta4_decode)(struct nb_device *dev, struct nb_work *work, enum nb_dtype type, const void *coded, size_t len,
                         const void *ref, size_t bytes, void *dst);

    /* Questions whose answers decide what comes next: answered at once. */
    enum nb_ulp_width (*ulp_guess)(struct nb_device *dev, const void *cur, const void *ref, size_t bytes);
    uint64_t (*hash)(struct nb_device *dev, const void *data, size_t bytes, uint64_t seed);
    int (*equal)(struct nb_device *dev, const void *a, const void *b, size_t bytes);
    /* Likeness of two byte strings in 0..1, judged on `samples` positions spread over them: the larger of the
     * share of 16-bit patterns that differ by at most 64 (half a binade of BF16; those that differ by at most 256,
     * a quarter of one of FP16, count 0.95) and the share of bytes that differ by at most 8. */
    double (*likeness)(struct nb_device *dev, const void *a, const void *b, size_t bytes, unsigned samples);
    /* What values look like, for plugin/policy; see plugin/device/evidence.h. */
    unsigned (*sample)(struct nb_device *dev, enum nb_dtype type, const void *src, size_t n, unsigned samples,
                       float *out);
    unsigned (*profile)(struct nb_device *dev, enum nb_dtype type, const void *src, size_t n, unsigned groups,
                        float *out);
};

/* Host memory, C codecs: an instance for everyone, since it holds nothing; closing it does nothing. No work is ever
 * in flight on it. */
extern struct nb_device nb_device_host;

/* What is known of the communicator that a device is wanted for. */
struct nb_device_wish {
    int gpu;    /* CUDA ordinal of the calling thread's, -1: none */
    int nranks; /* nodes: a sum has as many sources at most */
    uint64_t comm_id; /* 0: not known */
};

/* Make the device that the settings and the machine say: 0, or a negative errno after a line that says why (the
 * communicator is then declined, on all nodes). On NCCL's thread, at connect. */
int nb_device_choose(const struct nb_device_wish *wish, struct nb_device **dev);

/* NCCL was told that it may hand over GPU memory (1), or was not (0). */
void nb_device_pointers(int claimed);

/* For tests: from now on devices are made by `open` (NULL: as usual). */
void nb_device_override(int (*open)(const struct nb_device_wish *wish, struct nb_device **dev));

#endif
