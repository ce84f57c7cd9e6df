/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device: where a communicator's bytes live and its codecs run. The engine never touches values itself; it
 * calls the device's table. `host` is host memory and the C codecs; a GPU is another table of the same shape.
 * A device is an instance, created at connect and closed with the communicator, so that it can hold a
 * context, memory and a ring.
 *
 * Threads: an instance is used by one thread at a time: the engine's while the communicator runs, NCCL's when
 * it connects, deregisters and closes. So a device that needs a CUDA context makes it current in each
 * function.
 *
 * Asynchronous work. Functions with a `work` argument read and write values; on a GPU a kernel does so while
 * the engine continues. They return
 *   >= 0, or a negative errno   complete, or rejected for good; `work` and the arguments are not referenced
 *                               any more;
 *   -EINPROGRESS                accepted: `poll` reports completion, and the result;
 *   -EAGAIN                     no room at present: nothing was accepted, retry later.
 * With `work` NULL they block until the work is complete and return neither of the latter two: for tests, and
 * for what is done while a communicator connects. The engine waits for no work.
 *
 * While work is in flight its arguments must stay valid and in place: memory of values, `work` itself, struct
 * nb_ef, struct nb_encode_stats, struct nb_delta4_stats, `out` of questions, and arrays of sources (not what
 * a prototype takes by value). Work in flight runs in any order and concurrently, on one instance and on
 * several. So the caller never submits work (nor calls a function without `work`) that accesses what work in
 * flight writes, or writes what it reads: of dependent steps it submits the next when the one before is
 * complete. Results depend on nothing but the arguments.
 *
 * Errors: -EINVAL, -ENOSPC, -EBADMSG and -E2BIG are a codec's (nibble/codec.h) and concern that work alone.
 * Any other means that the device has failed: the communicator fails with it, and `failed` returns the error
 * from then on.
 */
#ifndef NIBBLE_DEVICE_DEVICE_H
#define NIBBLE_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "codec/row.h"
#include "nibble/codec.h"
#include "nibble/nccl_types.h"

struct nb_context;
struct nb_device_ops;
struct nb_similarity;

struct nb_device {
    const struct nb_device_ops *ops;
    /* the device's own fields follow (its instance begins with this struct) */
};

/* A handle of work in flight, in the caller's memory; the device alone accesses the fields. It need not be
 * initialised, and can be reused as soon as the work is complete. */
struct nb_work {
    uint64_t id;
    void *at;
    uint64_t more[2];
};

/* What `compare` tells of bytes, and of others. */
struct nb_compared {
    uint64_t hash, ref_hash; /* nb_hash64 of either, with seed 0; of no others 0 */
    int equal;               /* byte for byte; no others: 0 */
    enum nb_ulp_width width; /* not equal: what nb_ulp_guess_width says */
    struct nb_work part[4];  /* from here on the device's own, while it is in flight */
    uint64_t differ, guess;
};

enum nb_place {
    NB_PLACE_WIRE, /* messages: the CPU reads and writes headers, transports send from it and receive into it */
    NB_PLACE_STATE, /* residuals, references, partial sums: only the device accesses them */
};

struct nb_device_ops {
    const char *name;
    /* Of each message only so many bytes are kept in memory of NB_PLACE_WIRE, its header among them; 0: all.
     * For devices without values, in simulations of many nodes. */
    size_t keeps;
    /* NCCL may register host memory with it only. */
    bool host_memory;
    /* What `alloc` returns of NB_PLACE_STATE is zero, and costs nothing until it is touched. */
    bool zeroes;

    /* Wait in bounded time until no work is in flight; work that has not begun may be cancelled. Afterwards
     * what was submitted before accesses no memory but the device's own; polling it is optional and returns
     * the result or -ECANCELED. The device remains usable unless it has failed. */
    void (*quiesce)(struct nb_device *dev);
    /* After quiesce: 1 when some work does not end, and whatever it may access has to stay for ever; the
     * instance is not closed then. NULL in the table: never. */
    int (*lost)(struct nb_device *dev);
    /* 0, or the error with which the device has failed. Cheap: called for every segment. Callers check it
     * after blocking calls and before they use their results, which are undefined after a failure. */
    int (*failed)(struct nb_device *dev);
    /* Called in every iteration of the engine's loop; NULL in the table: nothing to do. `busy`: the
     * communicator has unfinished windows, or an operation of which more windows are expected. Returns 1
     * while the device has to be polled: something may happen that does not wake the engine's thread. */
    int (*turn)(struct nb_device *dev, int busy);
    /* Quiesce, and free the instance; everything that `alloc` returned was freed before. */
    void (*close)(struct nb_device *dev);

    /* NCCL's buffer, registered at connect before any of its windows comes: bytes 0 when it is deregistered.
     * 0, or
     * -ENOMEM. `shares`: operations of another communicator, a child that shares this one's connections, come
     * to this one; each may be told again. NULL in the table: of no interest. */
    int (*region)(struct nb_device *dev, const void *base, size_t bytes);
    void (*shares)(struct nb_device *dev, uint64_t comm_id);

    /* Asked before a window is begun with: 1 when what is handed over will be done soon; 0: not yet, since
     * what does it has not begun and may wait for other communicators of this thread; the window stays until
     * a later turn. NULL in the table: always. */
    int (*ready)(struct nb_device *dev);

    /* Memory, owned by the caller until `free`; aligned to 256 bytes or more. What is in it is undefined (but
     * see `zeroes`), since nobody reads any before it has been written: residuals are zeroed first
     * (state/feedback.h); references are read where an operation has written all of them, and a hash guards
     * what a receiver reads of its own; a sum is read when it is complete. NULL when there is none (of
     * NB_PLACE_STATE: at present; asked for again later, there may be some). NB_PLACE_WIRE is allocated while
     * a communicator connects, and freed when it closes. `free` gets the same place and size; NULL is
     * allowed. */
    void *(*alloc)(struct nb_device *dev, enum nb_place place, size_t bytes);
    void (*free)(struct nb_device *dev, enum nb_place place, void *p, size_t bytes);

    /* For work that returned -EINPROGRESS: -EINPROGRESS, or its result (once; then it is not in flight any
     * more). */
    ssize_t (*poll)(struct nb_device *dev, struct nb_work *work);
    /* 1 when a result is there that `poll` has not returned yet. Whenever there is one more the device calls
     * ctx->work_done, so that the engine's thread may sleep while works are in flight. Without a lock, by the
     * engine's thread. NULL in the table: nobody wakes it, so it has to poll. */
    int (*news)(struct nb_device *dev);
    /* Processor time, in ns, of work whose result `poll` has just returned. NULL in the table: none of this
     * processor's. */
    uint64_t (*took)(struct nb_device *dev, const struct nb_work *work);
    /* Threads of this processor's that do the work; NULL in the table: none but the caller's. */
    unsigned (*workers)(struct nb_device *dev);

    /* Copy `bytes` bytes; dst and src are equal or do not overlap. */
    int (*copy)(struct nb_device *dev, struct nb_work *work, void *dst, const void *src, size_t bytes);
    int (*zero)(struct nb_device *dev, struct nb_work *work, void *dst,
                size_t bytes); /* in memory from alloc */

    /* With e->codec and d->codec: what their functions do (codec/row.h), at once or by a kernel. The structs
     * are read during the call only; what they point to stays. */
    ssize_t (*encode)(struct nb_device *dev, struct nb_work *work, const struct nb_encoding *e);
    int (*decode)(struct nb_device *dev, struct nb_work *work, const struct nb_decoding *d);
    /* nb_reduce of nibble/codec.h. */
    int (*reduce)(struct nb_device *dev, struct nb_work *work, enum nb_dtype type,
                  const struct nb_source *sources, size_t nsources, const void *own, size_t n, uint64_t first,
                  void *dst);
    /* dst[i] = sources[0][i] op ... op own[i] over plain values, in this order; see device/host/exact.c. */
    int (*reduce_exact)(struct nb_device *dev, struct nb_work *work, ncclDataType_t type, ncclRedOp_t op,
                        const void *const *sources, size_t nsources, const void *own, size_t n, void *dst);
    /* nb_pick of codec/pick.h; the result is how many. `out`, NB_PICKS numbers of the caller's own memory, is
     * written by this processor, at the latest when `poll` returns the result, and only where positions lie
     * among the values: so several picks of one block may be in flight with the same `out`. 0 also where
     * these values cannot be had. NULL in the table: none can, and no work of this kind is submitted. */
    ssize_t (*pick)(struct nb_device *dev, struct nb_work *work, size_t width, const void *src, uint64_t n,
                    unsigned picks, uint64_t first, uint64_t count, uint32_t *out);

    /* Questions. Of `bytes` bytes at `cur`, and at `ref` unless that is NULL, what struct nb_compared tells:
     * 0. */
    int (*compare)(struct nb_device *dev, struct nb_work *work, const void *cur, const void *ref,
                   size_t bytes, struct nb_compared *out);
    /* nb_host_similarity (device/host/evidence.c) of two byte strings: 0. Fewer than four bytes are one
     * position, near where they are the same. */
    int (*similarity)(struct nb_device *dev, struct nb_work *work, const void *a, const void *b, size_t bytes,
                      unsigned samples, struct nb_similarity *out);
    /* nb_host_sample (device/host/evidence.c): how many samples, 0 also where the values cannot be had. */
    int (*sample)(struct nb_device *dev, struct nb_work *work, enum nb_dtype type, const void *src, size_t n,
                  unsigned samples, float *out);
    /* nb_host_sums (device/host/evidence.c), likewise. */
    int (*sums)(struct nb_device *dev, struct nb_work *work, enum nb_dtype type, const void *src, size_t n,
                unsigned groups, float *out);

    /* nb_hash64 of a payload in memory of NB_PLACE_WIRE, which `encode` has written or `decode` is about to
     * read. NULL: this processor touches no payloads, and none are checked. (A kernel that is to check them
     * computes the value where it has the bytes anyway, in `encode` and before `decode`, and hands it out
     * here.) */
    uint64_t (*check)(struct nb_device *dev, const void *payload, size_t bytes, uint64_t seed);
};

/* Host memory, C codecs: one constant instance for everyone, since it holds nothing; closing it does nothing.
 * No work is ever in flight on it. Any thread. */
struct nb_device *nb_host_device(void);

/* The communicator that a device is requested for. */
struct nb_device_wish {
    int gpu;          /* CUDA ordinal of the calling thread's GPU, -1: none */
    int nnodes;       /* number of nodes: the maximum number of sources of a sum */
    uint64_t comm_id; /* 0: unknown */
};

/* Open and close the context's member `gpus`: before the first and after the last use of any function of this
 * folder that takes the context. 0, or -ENOMEM after a WARN. The ABI layer's thread. */
int nb_gpus_open(struct nb_context *ctx);
void nb_gpus_close(struct nb_context *ctx);

/* Open and close the context's member `host_pool` (device/host/pool.h), likewise; without it codecs of the
 * host run on the engine's thread. */
int nb_host_pool_open(struct nb_context *ctx);
void nb_host_pool_close(struct nb_context *ctx);

/* Create a communicator's device: through ctx->open_device where that is set, else by the settings and the
 * machine. 0 and *dev, which uses ctx until it is closed; or a negative errno after a log line with the
 * reason (the communicator is then declined, on all nodes). On NCCL's thread, at connect. */
int nb_device_choose(struct nb_context *ctx, const struct nb_device_wish *wish, struct nb_device **dev);

/* NCCL was told that it may hand over GPU memory (1), or was not (0). Any thread. */
void nb_device_pointers(struct nb_context *ctx, int claimed);

#endif
