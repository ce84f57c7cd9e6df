/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device: the place of a communicator's bytes and the processor of its codecs. The engine never touches
 * values itself. It calls the device's table. `host` is host memory and the C codecs, and a GPU is another
 * table of the same shape. Connect creates an instance and the communicator closes it, so that the instance
 * can hold a context, memory and a ring.
 *
 * Threads: one thread at a time uses an instance: the engine's while the communicator runs, NCCL's when it
 * connects, deregisters and closes. So a device that needs a CUDA context makes it current in each function.
 *
 * Asynchronous work. Functions with a `work` argument read and write values. On a GPU a kernel does so while
 * the engine continues. They return
 *   >= 0, or a negative errno   complete, or rejected for good. The device has dropped `work` and the
 *                               arguments
 *   -EINPROGRESS                accepted: `poll` reports completion, and the result
 *   -EAGAIN                     rejected for lack of room: retry later
 * With `work` NULL they block until the work is complete, and never return the latter two: for tests, and for
 * steps while a communicator connects. The engine never waits for work.
 *
 * While work is in flight its arguments must stay valid and in place: memory of values, `work` itself, struct
 * nb_ef, struct nb_encode_stats, struct nb_delta4_stats, `out` of questions, and arrays of sources. Arguments
 * that a prototype takes by value may go. Work in flight runs in any order and concurrently, on one instance
 * and on several. The caller therefore keeps dependent steps apart: it submits the next one, or calls a
 * function without `work`, when the one before is complete. Steps depend when one writes memory that the
 * other reads or writes. Results depend only on the arguments.
 *
 * Errors: -EINVAL, -ENOSPC, -EBADMSG and -E2BIG are a codec's (nibble/codec.h) and concern that work alone.
 * Any other error means that the device has failed: the communicator fails with it, and `failed` returns the
 * error from then on.
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
    /* The device's own fields follow: its instance begins with this struct. */
};

/* A handle of work in flight, in the caller's memory. Only the device accesses the fields. It needs no
 * initialisation, and can be reused as soon as the work is complete. */
struct nb_work {
    uint64_t id;
    void *at;
    uint64_t more[2];
};

/* Answers of `compare` about bytes, and about a reference. */
struct nb_compared {
    uint64_t hash, ref_hash; /* nb_hash64 of either, with seed 0. Without a reference 0 */
    int equal;               /* byte for byte. Without a reference 0 */
    enum nb_ulp_width width; /* of unequal bytes: nb_ulp_guess_width */
    struct nb_work part[4];  /* from here on the device's own, while the work is in flight */
    uint64_t differ, guess;
};

/* An adapter: the transport's way between GPU memory and host memory, without the GPU's driver. The engine
 * gives it to a device. */
struct nb_adapter {
    /* Register memory. `gpu`: GPU memory, by the DMA-BUF `fd` with the memory at `offset`, or by address
     * where fd is -1. Return 0 and *handle, or a negative errno. Any thread. */
    int (*reg)(const struct nb_adapter *adapter, void *data, size_t bytes, bool gpu, int fd, uint64_t offset,
               void **handle);
    void (*dereg)(const struct nb_adapter *adapter, void *handle);
    /* icopy and test of net/transport.h. The engine's thread. */
    int (*copy)(const struct nb_adapter *adapter, void *to, void *to_handle, const void *from,
                void *from_handle, size_t bytes, void **request);
    int (*test)(const struct nb_adapter *adapter, void *request, int *done);
};

enum nb_place {
    NB_PLACE_WIRE,    /* messages: the CPU accesses headers, transports send from it and receive into it */
    NB_PLACE_STATE,   /* residuals, references, partial sums: only the device accesses them */
    NB_PLACE_PAYLOAD, /* payloads of messages: only the device and the transport access them */
};

struct nb_device_ops {
    const char *name;
    /* Bytes of each message that memory of NB_PLACE_WIRE keeps, its header among them. 0: all. For devices
     * without values, in simulations of many nodes. */
    size_t keeps;
    /* NCCL may register host memory with this device only. */
    bool host_memory;
    /* `alloc` returns zeroed memory of NB_PLACE_STATE, which costs no physical memory until it is touched. */
    bool zeroes;

    /* Wait in bounded time until no work is in flight. Work that has not begun may be cancelled. Afterwards
     * work submitted before accesses only the device's own memory. Polling it is optional and returns the
     * result or -ECANCELED. The device remains usable unless it has failed. */
    void (*quiesce)(struct nb_device *dev);
    /* Return 1 after quiesce when some work does not end. All memory that it may access has to stay for ever,
     * and the instance is not closed. NULL in the table: never. */
    int (*lost)(struct nb_device *dev);
    /* Return 0, or the error with which the device has failed. Cheap: called for every segment. Callers check
     * it after blocking calls and before they use their results, which are undefined after a failure. */
    int (*failed)(struct nb_device *dev);
    /* Make the device's turn, in every iteration of the engine's loop. NULL in the table: without turns.
     * `busy`: 1, the communicator has unfinished windows, or an operation that expects more windows. -1: its
     * windows will not be finished, since it has failed or NCCL has given it up. 0 otherwise. Return 1
     * while the device has to be polled, because it may make progress without waking the engine's thread. */
    int (*turn)(struct nb_device *dev, int busy);
    /* Quiesce, and free the instance. The caller has freed all memory of `alloc` before. */
    void (*close)(struct nb_device *dev);

    /* region: take note of NCCL's buffer, registered at connect before any of its windows comes. `fd`: its
     * DMA-BUF, with the buffer at `offset`, or -1. Bytes 0: it is deregistered. Return 0 or -ENOMEM.
     * shares: take note that the operations of another communicator come to this one. It is a child that
     * shares this one's connections. Each may be reported again. NULL in the table: ignored. */
    int (*region)(struct nb_device *dev, const void *base, size_t bytes, int fd, uint64_t offset);
    void (*shares)(struct nb_device *dev, uint64_t comm_id);
    /* Take note that the engine begins an operation that is no all-reduce. NULL in the table: ignored. */
    void (*begins)(struct nb_device *dev);

    /* Use this adapter where no kernel begins, until the next call. NULL: none, and no copy is under way when
     * the call returns. While a communicator connects, before NCCL registers its buffer, and when it closes.
     * NULL in the table: the device needs none. */
    void (*adapter)(struct nb_device *dev, const struct nb_adapter *adapter);

    /* Return 1 when work that is submitted now will be done soon. The engine asks before it begins with a
     * window. 0: not yet, since the work's kernel has not begun and may wait for other communicators of this
     * thread. The window then waits for a later turn. NULL in the table: always 1. */
    int (*ready)(struct nb_device *dev);

    /* Allocate memory, aligned to 256 bytes or more, which the caller owns until `free`. Its content is
     * undefined (but see `zeroes`), since every user writes it before reading it: residuals are zeroed first
     * (state/feedback.h). References are read after an operation has written all of them, and a hash guards a
     * receiver's own. A sum is read when it is complete. Return NULL without memory. A later call for
     * NB_PLACE_STATE may succeed. NB_PLACE_WIRE is allocated while a communicator connects, and freed when it
     * closes. NB_PLACE_PAYLOAD likewise, by a device with `dmabuf`, which returns NULL where payloads belong
     * into NB_PLACE_WIRE. `free` gets the same place and size. NULL is allowed. */
    void *(*alloc)(struct nb_device *dev, enum nb_place place, size_t bytes);
    void (*free)(struct nb_device *dev, enum nb_place place, void *p, size_t bytes);

    /* Return a file descriptor for memory of NB_PLACE_PAYLOAD (a DMA-BUF), which the caller closes, or a
     * negative errno where the device has none. NULL in the table: the device has no memory of
     * NB_PLACE_PAYLOAD. */
    int (*dmabuf)(struct nb_device *dev, void *p, size_t bytes);

    /* Return -EINPROGRESS, or once the result of work that returned -EINPROGRESS. That ends the work's
     * flight. */
    ssize_t (*poll)(struct nb_device *dev, struct nb_work *work);
    /* Return 1 when a result waits for `poll`. At each new result the device calls ctx->work_done, so that
     * the engine's thread may sleep while works are in flight. The engine's thread calls it without a lock.
     * NULL in the table: the device never wakes the engine's thread, which therefore has to poll. */
    int (*news)(struct nb_device *dev);
    /* Return the processor time, in ns, of the work whose result `poll` has just returned. NULL in the table:
     * the work takes no time of this processor. */
    uint64_t (*took)(struct nb_device *dev, const struct nb_work *work);
    /* Return the number of this processor's threads that do the work. NULL in the table: only the
     * caller's. */
    unsigned (*workers)(struct nb_device *dev);

    /* Copy `bytes` bytes. dst and src are equal or do not overlap. */
    int (*copy)(struct nb_device *dev, struct nb_work *work, void *dst, const void *src, size_t bytes);
    int (*zero)(struct nb_device *dev, struct nb_work *work, void *dst,
                size_t bytes); /* in memory from alloc */

    /* Call the functions of e->codec and d->codec (codec/row.h), at once or by a kernel. The structs are read
     * only during the call. The memory behind their pointers stays. */
    ssize_t (*encode)(struct nb_device *dev, struct nb_work *work, const struct nb_encoding *e);
    int (*decode)(struct nb_device *dev, struct nb_work *work, const struct nb_decoding *d);
    /* nb_reduce of nibble/codec.h. */
    int (*reduce)(struct nb_device *dev, struct nb_work *work, enum nb_dtype type,
                  const struct nb_source *sources, size_t nsources, const void *own, size_t n, uint64_t first,
                  void *dst);
    /* Set dst[i] = sources[0][i] op ... op own[i] over plain values, in this order (device/host/exact.c). */
    int (*reduce_exact)(struct nb_device *dev, struct nb_work *work, ncclDataType_t type, ncclRedOp_t op,
                        const void *const *sources, size_t nsources, const void *own, size_t n, void *dst);
    /* nb_pick of codec/pick.h. The result is the number of values. This processor writes `out`, NB_PICKS
     * numbers of the caller's own memory, at the latest when `poll` returns the result, and only where
     * positions lie among the values. So several picks of one block may be in flight with the same `out`. The
     * result also is 0 where the device cannot pick these values. NULL in the table: it can pick no values,
     * and the engine submits no work of this kind. */
    ssize_t (*pick)(struct nb_device *dev, struct nb_work *work, size_t width, const void *src, uint64_t n,
                    unsigned picks, uint64_t first, uint64_t count, uint32_t *out);

    /* Questions. Answer those of struct nb_compared about `bytes` bytes at `cur`, and at `ref` unless that is
     * NULL. Return 0. */
    int (*compare)(struct nb_device *dev, struct nb_work *work, const void *cur, const void *ref,
                   size_t bytes, struct nb_compared *out);
    /* nb_host_similarity (device/host/evidence.c) of two byte strings. Return 0. Fewer than four bytes are
     * one position, near where they are the same. */
    int (*similarity)(struct nb_device *dev, struct nb_work *work, const void *a, const void *b, size_t bytes,
                      unsigned samples, struct nb_similarity *out);
    /* nb_host_sample (device/host/evidence.c). The result is the number of samples, 0 also where the device
     * cannot read the values. */
    int (*sample)(struct nb_device *dev, struct nb_work *work, enum nb_dtype type, const void *src, size_t n,
                  unsigned samples, float *out);
    /* nb_host_sums (device/host/evidence.c), likewise. */
    int (*sums)(struct nb_device *dev, struct nb_work *work, enum nb_dtype type, const void *src, size_t n,
                unsigned groups, float *out);

    /* Return nb_hash64 of a payload in memory of NB_PLACE_WIRE, which `encode` has written or `decode` is
     * about to read. NULL: this processor touches no payloads, and they stay unchecked. A kernel that is to
     * check them computes the value where it has the bytes anyway, in `encode` and before `decode`, and hands
     * it out here. */
    uint64_t (*check)(struct nb_device *dev, const void *payload, size_t bytes, uint64_t seed);
};

/* Return host memory with C codecs: one constant instance without state, for all users. Closing it has no
 * effect. Its work is always complete. Any thread. */
struct nb_device *nb_host_device(void);

/* The communicator that a device is requested for. */
struct nb_device_wish {
    int gpu;          /* CUDA ordinal of the calling thread's GPU, or -1 */
    int nnodes;       /* number of nodes: the maximum number of sources of a sum */
    uint64_t comm_id; /* 0: unknown */
    uint32_t mbps;    /* of the node's link, 0: unknown */
};

/* Open and close the context's member `gpus`: before the first and after the last use of any function of this
 * folder that takes the context. Return 0, or -ENOMEM after a WARN. The ABI layer's thread. */
int nb_gpus_open(struct nb_context *ctx);
void nb_gpus_close(struct nb_context *ctx);

/* Open and close the context's member `host_pool` (device/host/pool.h), likewise. Without it codecs of the
 * host run on the engine's thread. */
int nb_host_pool_open(struct nb_context *ctx);
void nb_host_pool_close(struct nb_context *ctx);
/* Return the number of works that codec threads were given, less the cancelled ones. For each one they call
 * ctx->work_done of its context. On the engine's thread. */
uint64_t nb_host_pool_works(const struct nb_context *ctx);

/* Create a communicator's device: through ctx->open_device where that is set, else by the settings and the
 * machine. Return 0 and *dev, which uses ctx until it is closed, or a negative errno after a log line with
 * the reason. All nodes then decline the communicator. On NCCL's thread, at connect. */
int nb_device_choose(struct nb_context *ctx, const struct nb_device_wish *wish, struct nb_device **dev);

/* Note whether the plugin told NCCL that it may hand over GPU memory (1) or not (0). Any thread. */
void nb_device_pointers(struct nb_context *ctx, int claimed);

#endif
