/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call of a device's table as data, for devices of tests that do their work later: functions of the table
 * that put their arguments into it and ask, and one that has the host do what it says.
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
    /* All others. n: bytes, of sums values. */
    void *dst;
    const void *src, *own;
    size_t n, nsources;
    enum nb_dtype dtype;
    ncclDataType_t type;
    ncclRedOp_t redop;
    uint64_t first;
    const struct nb_source *sources;
    const void *const *plain;
    /* PICK: of `block` values, of which those at src begin with `first`. */
    size_t width;
    uint64_t block;
    unsigned picks;
    uint32_t *out; /* several may fill one, so it is nothing that a call has for itself */
    /* Questions: of `src`, against `own`; SAMPLE and SUMS count n in values of `dtype`. */
    unsigned samples; /* or groups */
    struct nb_compared *compared;
    struct nb_similarity *near;
    float *sample;
};

/* A device that is asked: what the functions below get as their device. */
struct asked_device {
    struct nb_device device; /* first */
    /* Do it now, and return the result, or later: as the functions of a device's table. `what` is the
     * caller's. */
    ssize_t (*ask)(struct asked_device *dev, struct nb_work *work, const struct device_call *what);
};

/* Have the host's device do it now: the result. */
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
