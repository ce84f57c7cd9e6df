/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where bytes live and codecs run. The engine never touches values itself: it asks the device of a
 * communicator. `host` is host memory and the C codecs; a GPU is another table of the same shape.
 *
 * All functions are called on the engine thread (alloc and free on the connecting and closing threads too),
 * return when the work is done, and give 0 or a length, or a negative errno.
 */
#ifndef NIBBLE_DEVICE_DEVICE_H
#define NIBBLE_DEVICE_DEVICE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "nibble/codec.h"
#include "nibble/nccl_types.h"

struct nb_device_ops {
    const char *name;

    /* Zeroed memory, page-aligned; not touched until used. NULL when there is none. */
    void *(*alloc)(size_t bytes);
    void (*free)(void *p, size_t bytes);
    void (*copy)(void *dst, const void *src, size_t bytes);
    void (*zero)(void *dst, size_t bytes); /* of alloc's memory */

    /* As in nibble/codec.h. */
    ssize_t (*encode)(enum nb_codec codec, enum nb_dtype type, const void *src, size_t n, uint64_t first,
                      const struct nb_ef *ef, void *dst, size_t cap, struct nb_encode_stats *stats);
    int (*decode)(enum nb_codec codec, enum nb_dtype type, const void *coded, size_t len, size_t n, uint64_t first,
                  void *dst);
    int (*reduce)(enum nb_dtype type, const struct nb_source *sources, size_t nsources, const void *own, size_t n,
                  uint64_t first, void *dst);
    /* dst[i] = sources[0][i] op ... op own[i] over plain values, in this order; see plugin/device/exact.h. */
    int (*reduce_exact)(ncclDataType_t type, ncclRedOp_t op, const void *const *sources, size_t nsources,
                        const void *own, size_t n, void *dst);

    ssize_t (*ulp_encode)(enum nb_ulp_width width, const void *cur, const void *ref, size_t bytes, size_t limit,
                          void *dst, size_t cap);
    int (*ulp_decode)(enum nb_ulp_width width, const void *coded, size_t len, const void *ref, size_t bytes,
                      void *dst);
    enum nb_ulp_width (*ulp_guess)(const void *cur, const void *ref, size_t bytes);
    uint64_t (*hash)(const void *data, size_t bytes, uint64_t seed);
    int (*equal)(const void *a, const void *b, size_t bytes);
    /* Likeness of two byte strings in 0..1, judged on `samples` positions spread over them: the larger of the
     * share of 16-bit patterns that differ by at most 64 and the share of bytes that differ by at most 8. */
    double (*likeness)(const void *a, const void *b, size_t bytes, unsigned samples);
};

extern const struct nb_device_ops nb_device_host;

#endif
