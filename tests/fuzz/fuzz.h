/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions that the fuzz targets share. A target is a source with LLVMFuzzerTestOneInput. It is linked
 * either with clang's libFuzzer or with standalone.c. A failed FUZZ_CHECK aborts, which both take for a
 * finding.
 */
#ifndef NIBBLE_TESTS_FUZZ_H
#define NIBBLE_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_CHECK(cond) \
    do { \
        if (!(cond)) { \
            fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #cond); \
            abort(); \
        } \
    } while (0)

/* The input, consumed from its front. Zeros follow its end. */
struct fuzz_input {
    const uint8_t *p;
    size_t left;
};

static inline uint64_t fuzz_take(struct fuzz_input *in, unsigned bytes)
{
    uint64_t v = 0;

    for (unsigned i = 0; i < bytes && in->left; i++, in->p++, in->left--)
        v |= (uint64_t)*in->p << 8 * i;
    return v;
}

/* Return the next `bytes` of input (fewer at its end, then zeros) in memory of exactly that size, so that a
 * sanitizer sees an access one byte too far. */
static inline uint8_t *fuzz_copy(struct fuzz_input *in, size_t bytes)
{
    uint8_t *p = malloc(bytes ? bytes : 1);
    size_t have = bytes < in->left ? bytes : in->left;

    FUZZ_CHECK(p != NULL);
    memset(p, 0, bytes);
    if (have)
        memcpy(p, in->p, have);
    in->p += have;
    in->left -= have;
    return p;
}

static inline uint8_t *fuzz_alloc(size_t bytes, int fill)
{
    uint8_t *p = malloc(bytes ? bytes : 1);

    FUZZ_CHECK(p != NULL);
    memset(p, fill, bytes);
    return p;
}

/* xorshift64*, for data that the input only seeds. */
static inline uint64_t fuzz_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(0x2545f4914f6cdd1d);
}

#endif
