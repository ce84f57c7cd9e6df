/* SPDX-License-Identifier: Apache-2.0 */
/* The common beginning of the fake driver's functions, and the functions of its memory (fake_memory.c). */
#ifndef NIBBLE_TESTS_GPU_FAKE_CALLS_H
#define NIBBLE_TESTS_GPU_FAKE_CALLS_H

#include "fake_driver.h"

#define FAKE_INVALID 1 /* CUDA_ERROR_INVALID_VALUE */

/* contexts pushed on this thread, and its capture mode */
extern _Thread_local int fake_depth, fake_mode;

/* Begin a call of this name. Return the error with which it must fail. */
nb_cu_result fake_called(const char *name);
/* Add `by` to the number of live objects. Call without the lock. */
void fake_count(long by);

/* Begin a call that needs a context, and a call that a capture on another thread would forbid. */
#define CALL(name) \
    do { \
        nb_cu_result failed_ = fake_called(name); \
        if (failed_) \
            return failed_; \
    } while (0)
#define CALL_IN_CONTEXT(name) \
    do { \
        if (fake_depth == 0 || fake_mode != NB_CU_CAPTURE_MODE_RELAXED) \
            fake_wrong(name " without a context or outside of relaxed capture mode"); \
        CALL(name); \
    } while (0)

nb_cu_result fMemHostAlloc(void **p, size_t bytes, unsigned flags);
nb_cu_result fMemFreeHost(void *p);
nb_cu_result fMemHostGetDevicePointer_v2(nb_cu_ptr *at, void *p, unsigned flags);
nb_cu_result fMemAlloc_v2(nb_cu_ptr *at, size_t bytes);
nb_cu_result fMemFree_v2(nb_cu_ptr at);
nb_cu_result fMemGetInfo_v2(size_t *left, size_t *all);
nb_cu_result fMemGetAllocationGranularity(size_t *granularity, const struct nb_cu_alloc_prop *prop,
                                          int option);
nb_cu_result fMemAddressReserve(nb_cu_ptr *at, size_t bytes, size_t align, nb_cu_ptr wish,
                                unsigned long long flags);
nb_cu_result fMemAddressFree(nb_cu_ptr at, size_t bytes);
nb_cu_result fMemCreate(unsigned long long *handle, size_t bytes, const struct nb_cu_alloc_prop *prop,
                        unsigned long long flags);
nb_cu_result fMemRelease(unsigned long long handle);
nb_cu_result fMemMap(nb_cu_ptr at, size_t bytes, size_t offset, unsigned long long handle,
                     unsigned long long flags);
nb_cu_result fMemUnmap(nb_cu_ptr at, size_t bytes);
nb_cu_result fMemSetAccess(nb_cu_ptr at, size_t bytes, const struct nb_cu_access *access, size_t n);
nb_cu_result fMemGetHandleForAddressRange(void *handle, nb_cu_ptr at, size_t bytes, int type,
                                          unsigned long long flags);
nb_cu_result fPointerGetAttribute(void *out, int attribute, nb_cu_ptr at);
void fake_forget_memory(void);

#endif
