/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses as a framework's caching allocator would give them. They hold no data: the plugin gets only their
 * numbers. Requests are rounded up to 512 bytes. A request takes the smallest free piece that is large
 * enough, and the lowest of equal pieces, and splits it. Free neighbors are joined, as PyTorch's allocator
 * does inside a segment.
 */
#ifndef NIBBLE_TESTS_JOBS_MEMORY_H
#define NIBBLE_TESTS_JOBS_MEMORY_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t address; /* 0: none */

struct memory {
    struct piece {
        address at;
        uint64_t bytes;
        int used;
    } * piece; /* by address, without gaps */
    size_t n, cap;
};

void memory_open(struct memory *memory);
void memory_close(struct memory *memory);
address memory_take(struct memory *memory, uint64_t bytes);
/* Give a piece back. 0 is ignored. */
void memory_give(struct memory *memory, address at);

#endif
