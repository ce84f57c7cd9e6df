/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reductions of plain values, for all operations that are not quantized. Integers wrap like unsigned
 * arithmetic in C (as NCCL's do). FP32, FP16 and BF16 are reduced in FP32, FP64 in FP64, in the order given,
 * and rounded once at the end. Minimum and maximum ignore a NaN beside a number, as fmin and fmax do. Pure
 * functions, for any thread.
 *
 * Exact reductions take any number of sources: a block of accumulators stays in the cache, so that each
 * source is read once and the result written once.
 */
#include "device/host/host.h"

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/nccl_names.h"
#include "codec/fp.h"
#include "nibble/codec.h"

#define BLOCK 1024u /* accumulators at a time: at most 8 KiB */

/* One loop a (type, op): STORE = type in memory, ACC = type of the accumulator. */
#define REDUCE_LOOP(STORE, ACC, EXPR) \
    for (size_t at = 0; at < n; at += BLOCK) { \
        size_t len = n - at < BLOCK ? n - at : BLOCK; \
        ACC acc[BLOCK]; \
        STORE in[BLOCK]; \
        for (size_t s = 0; s < total; s++) { \
            const uint8_t *src = s < nsources ? (const uint8_t *)sources[s] : (const uint8_t *)own; \
            memcpy(in, src + at * sizeof(STORE), len * sizeof(STORE)); \
            if (s == 0) { \
                for (size_t i = 0; i < len; i++) \
                    acc[i] = (ACC)in[i]; \
            } else { \
                for (size_t i = 0; i < len; i++) { \
                    ACC a = acc[i], b = (ACC)in[i]; \
                    acc[i] = (ACC)(EXPR); \
                } \
            } \
        } \
        for (size_t i = 0; i < len; i++) \
            in[i] = (STORE)acc[i]; \
        memcpy((uint8_t *)dst + at * sizeof(STORE), in, len * sizeof(STORE)); \
    }

/* Unsigned accumulators make wrap-around defined. Minimum and maximum need the sign. */
#define REDUCE_INT(SIGNED, UNSIGNED) \
    switch (op) { \
    case ncclSum: REDUCE_LOOP(UNSIGNED, UNSIGNED, a + b) break; \
    case ncclProd: REDUCE_LOOP(UNSIGNED, UNSIGNED, (uint64_t)a *b) break; \
    case ncclMax: REDUCE_LOOP(SIGNED, SIGNED, a > b ? a : b) break; \
    default: REDUCE_LOOP(SIGNED, SIGNED, a < b ? a : b) break; \
    } \
    return 0

#define REDUCE_FLOAT(TYPE, MAX, MIN) \
    switch (op) { \
    case ncclSum: REDUCE_LOOP(TYPE, TYPE, a + b) break; \
    case ncclProd: REDUCE_LOOP(TYPE, TYPE, a *b) break; \
    case ncclMax: REDUCE_LOOP(TYPE, TYPE, MAX(a, b)) break; \
    default: REDUCE_LOOP(TYPE, TYPE, MIN(a, b)) break; \
    } \
    return 0

/* 16-bit floats pass through FP32 by the codec's own conversions (raw decode of one block at a time). */
static int reduce_half(enum nb_dtype type, ncclRedOp_t op, const void *const *sources, size_t nsources,
                       const void *own, size_t n, void *dst)
{
    size_t total = nsources + (own != NULL);

    if (op == ncclSum) {
        struct nb_source src[64];
        if (nsources <= 64) {
            for (size_t s = 0; s < nsources; s++)
                src[s] = (struct nb_source){NB_CODEC_RAW, sources[s], n * 2};
            return nb_reduce(type, src, nsources, own, n, 0, dst);
        }
    }
    for (size_t at = 0; at < n; at += BLOCK) {
        size_t len = n - at < BLOCK ? n - at : BLOCK;
        float acc[BLOCK], in[BLOCK];
        for (size_t s = 0; s < total; s++) {
            const uint8_t *p = (s < nsources ? (const uint8_t *)sources[s] : (const uint8_t *)own) + at * 2;
            for (size_t i = 0; i < len; i++)
                (s == 0 ? acc : in)[i] = nb_load_value(type, p, i);
            if (s == 0)
                continue;
            for (size_t i = 0; i < len; i++)
                acc[i] = op == ncclSum    ? acc[i] + in[i]
                         : op == ncclProd ? acc[i] * in[i]
                         : op == ncclMax  ? fmaxf(acc[i], in[i])
                                          : fminf(acc[i], in[i]);
        }
        for (size_t i = 0; i < len; i++)
            nb_store_value(type, (uint8_t *)dst + at * 2, i, acc[i]);
    }
    return 0;
}

int nb_exact_reduce(ncclDataType_t type, ncclRedOp_t op, const void *const *sources, size_t nsources,
                    const void *own, size_t n, void *dst)
{
    size_t total = nsources + (own != NULL);

    if (!nb_exact_supported(type, op) || total == 0)
        return -EINVAL;
    switch (type) {
    case ncclInt8: REDUCE_INT(int8_t, uint8_t);
    case ncclUint8: REDUCE_INT(uint8_t, uint8_t);
    case ncclInt32: REDUCE_INT(int32_t, uint32_t);
    case ncclUint32: REDUCE_INT(uint32_t, uint32_t);
    case ncclInt64: REDUCE_INT(int64_t, uint64_t);
    case ncclUint64: REDUCE_INT(uint64_t, uint64_t);
    case ncclFloat32: REDUCE_FLOAT(float, fmaxf, fminf);
    case ncclFloat64: REDUCE_FLOAT(double, fmax, fmin);
    case ncclFloat16: return reduce_half(NB_F16, op, sources, nsources, own, n, dst);
    case ncclBfloat16: return reduce_half(NB_BF16, op, sources, nsources, own, n, dst);
    default: return -EINVAL;
    }
}
