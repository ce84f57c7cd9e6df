/* SPDX-License-Identifier: Apache-2.0 */
/* Compare received bytes. This file is separate from data.c because its functions may read memory that the
 * plugin has written. */
#include <string.h>

#include "internal.h"

uint64_t hx_hash(const void *data, size_t bytes)
{
    const unsigned char *at = data;
    uint64_t h = 0x9E3779B97F4A7C15ull ^ bytes;

    for (; bytes >= 8; at += 8, bytes -= 8) {
        uint64_t x;

        memcpy(&x, at, 8);
        h = (h ^ x) * 0x100000001B3ull;
        h ^= h >> 29;
    }
    while (bytes--)
        h = (h ^ *at++) * 0x100000001B3ull;
    return h ^ h >> 32;
}

long hx_first_difference(ncclDataType_t type, const void *a, const void *b, size_t n)
{
    size_t size = hx_type_size(type);

    if (memcmp(a, b, n * size) == 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        if (memcmp((const char *)a + i * size, (const char *)b + i * size, size) != 0)
            return (long)i;
    }
    return -1;
}
