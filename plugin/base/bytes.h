/* SPDX-License-Identifier: Apache-2.0 */
/* Little-endian integers in bytes of any alignment, for all data that leaves the process. */
#ifndef NIBBLE_BASE_BYTES_H
#define NIBBLE_BASE_BYTES_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline void nb_put16(void *to, uint16_t v)
{
    v = htole16(v);
    memcpy(to, &v, sizeof(v));
}

static inline void nb_put32(void *to, uint32_t v)
{
    v = htole32(v);
    memcpy(to, &v, sizeof(v));
}

static inline void nb_put64(void *to, uint64_t v)
{
    v = htole64(v);
    memcpy(to, &v, sizeof(v));
}

static inline uint16_t nb_get16(const void *from)
{
    uint16_t v;

    memcpy(&v, from, sizeof(v));
    return le16toh(v);
}

static inline uint32_t nb_get32(const void *from)
{
    uint32_t v;

    memcpy(&v, from, sizeof(v));
    return le32toh(v);
}

static inline uint64_t nb_get64(const void *from)
{
    uint64_t v;

    memcpy(&v, from, sizeof(v));
    return le64toh(v);
}

#endif
