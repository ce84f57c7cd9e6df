/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call of a device's table as data, for test devices that do their work later. Functions of the table put
 * their arguments into it and ask. Another function lets the host do the call.
 */
#ifndef NIBBLE_TESTS_DEVICE_CALL_H
#define NIBBLE_TESTS_DEVICE_CALL_H

#include "device/device.h"

enum device_call_kind {
    COPY,
    ZERO,
    ENCODE,
    DECODE,
    REDUCE,
    REDUCE_EXACT,
    PICK,
    COMPARE,
    NEARNESS,
    SAMPLE,
    SUMS
};

struct device_call {
    enum device_call_kind kind;
    struct nb_encoding encoding; /* ENCODE */
    struct nb_decoding decoding; /* DECODE */
    /* All other calls. n counts bytes, for sums values. */
    void *dst;
    const void *src, *own;
    size_t n, nsources;
    enum nb_dtype dtype;
    ncclDataType_t type;
    ncclRedOp_t redop;
    uint64_t first;
    const struct nb_source *sources;
    const void *const *plain;
    /* PICK: from a block of `block` values. The values at src begin with number `first`. */
    size_t width;
    uint64_t block;
    unsigned picks;
    uint32_t *out; /* several calls may fill one, so it does not belong to a call */
    /* Questions: about `src`, compared with `own`. SAMPLE and SUMS count n in values of `dtype`. */
    unsigned samples; /* or groups */
    struct nb_compared *compared;
    struct nb_similarity *near;
    float *sample;
};

/* A device that asks: the device argument of the functions below. */
struct asked_device {
    struct nb_device device; /* must be first */
    /* Do the call now and return its result, or later, as the functions of a device's table do. The caller
     * owns `what`. */
    ssize_t (*ask)(struct asked_device *dev, struct nb_work *work, const struct device_call *what);
};

/* Let the host's device do the call now. Return the result. */
ssize_t device_call_perform(const struct device_call *call);

/* Functions for the device's table. */
int device_call_copy(struct nb_device *dev, struct nb_work *work, void *dst, const void *src, size_t bytes);
int device_call_zero(struct nb_device *dev, struct nb_work *work, void *dst, size_t bytes);
ssize_t device_call_encode(struct nb_device *dev, struct nb_work *work, const struct nb_encoding *e);
int device_call_decode(struct nb_device *dev, struct nb_work *work, const struct nb_decoding *d);
int device_call_reduce(struct nb_device *dev, struct nb_work *work, enum nb_dtype type,
                       const struct nb_source *sources, size_t nsources, const void *own, size_t n,
                       uint64_t first, void *dst);
int device_call_reduce_exact(struct nb_device *dev, struct nb_work *work, ncclDataType_t type, ncclRedOp_t op,
                             const void *const *sources, size_t nsources, const void *own, size_t n,
                             void *dst);
int device_call_compare(struct nb_device *dev, struct nb_work *work, const void *cur, const void *ref,
                        size_t bytes, struct nb_compared *out);
int device_call_similarity(struct nb_device *dev, struct nb_work *work, const void *a, const void *b,
                           size_t bytes, unsigned samples, struct nb_similarity *out);
int device_call_sample(struct nb_device *dev, struct nb_work *work, enum nb_dtype type, const void *src,
                       size_t n, unsigned samples, float *out);
int device_call_sums(struct nb_device *dev, struct nb_work *work, enum nb_dtype type, const void *src,
                     size_t n, unsigned groups, float *out);
ssize_t device_call_pick(struct nb_device *dev, struct nb_work *work, size_t width, const void *src,
                         uint64_t n, unsigned picks, uint64_t first, uint64_t count, uint32_t *out);

#endif
