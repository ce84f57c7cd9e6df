/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device of jobs whose buffers NCCL hands over in host memory: codecs run on the engine thread.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "device/device.h"
#include "device/exact.h"

/* mmap: zeroed, page-aligned, and costs no memory until touched. */
static void *host_alloc(size_t bytes)
{
    void *p = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void host_free(void *p, size_t bytes)
{
    if (p)
        munmap(p, bytes ? bytes : 1);
}

static void host_copy(void *dst, const void *src, size_t bytes)
{
    if (dst != src)
        memcpy(dst, src, bytes);
}

/* Large zeroed areas go back to the kernel, which gives zeroes again on the next touch: emptying what was never
 * touched must not cost memory, and what is large not the time to write it. `dst` is from host_alloc. */
static void host_zero(void *dst, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = bytes / page * page;

    if (bytes < (1u << 20) || (uintptr_t)dst % page || madvise(dst, whole, MADV_DONTNEED)) {
        memset(dst, 0, bytes);
        return;
    }
    memset((uint8_t *)dst + whole, 0, bytes - whole);
}

static int host_equal(const void *a, const void *b, size_t bytes)
{
    return memcmp(a, b, bytes) == 0;
}

/* Order patterns of sign-magnitude floats as integers, so that neighbours in value are neighbours in code. */
static int32_t ordered16(uint16_t x)
{
    return x & 0x8000 ? -(int32_t)(x & 0x7fff) : (int32_t)x;
}

static double host_likeness(const void *a, const void *b, size_t bytes, unsigned samples)
{
    const uint8_t *pa = a, *pb = b;
    size_t words = bytes / 4;
    unsigned near16 = 0, near8 = 0;

    if (words == 0 || samples == 0)
        return bytes && memcmp(a, b, bytes) == 0 ? 1.0 : 0.0;
    if (samples > words)
        samples = (unsigned)words;
    for (unsigned i = 0; i < samples; i++) {
        /* The upper half of a 32-bit word: the exponent side of an FP32, any second value of 16-bit types. */
        size_t at = (size_t)((double)words / samples * i) * 4 + 2;
        uint16_t x, y;
        memcpy(&x, pa + at, 2);
        memcpy(&y, pb + at, 2);
        near16 += abs(ordered16(x) - ordered16(y)) <= 64;
        near8 += abs((int8_t)(uint8_t)(pa[at] - pb[at])) <= 8;
    }
    return (double)(near16 > near8 ? near16 : near8) / samples;
}

const struct nb_device_ops nb_device_host = {
    .name = "host",
    .alloc = host_alloc,
    .free = host_free,
    .copy = host_copy,
    .zero = host_zero,
    .encode = nb_encode,
    .decode = nb_decode,
    .reduce = nb_reduce,
    .reduce_exact = nb_exact_reduce,
    .ulp_encode = nb_ulp_encode,
    .ulp_decode = nb_ulp_decode,
    .ulp_guess = nb_ulp_guess_width,
    .hash = nb_hash64,
    .equal = host_equal,
    .likeness = host_likeness,
};
