/* SPDX-License-Identifier: Apache-2.0 */
/* See memory.h. */
#include "tests/scale/memory.h"

#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define RANGE ((size_t)1 << 44)
#define PAGE ((size_t)4096)
#define LARGE (2 * PAGE)
#define HEAD ((size_t)64) /* before a block of calloc, for its bytes */

void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *p, size_t bytes);
void __real_free(void *p);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes);
void __wrap_free(void *p);

static char *range;
static size_t taken, blocks; /* bytes of the range, and of live blocks of calloc */

static size_t pages(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

void *scale_pages(size_t bytes)
{
    if (!range)
        range = mmap(NULL, RANGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED || pages(bytes) > RANGE - taken) {
        fprintf(stderr, "nibble-scale: no 16 TiB of addresses, or more is wanted (ulimit -v?)\n");
        exit(2);
    }
    taken += pages(bytes);
    return range + taken - pages(bytes);
}

void scale_pages_free(void *p, size_t bytes)
{
    madvise(p, pages(bytes), MADV_DONTNEED);
}

size_t scale_heap(void)
{
    const struct mallinfo2 m = mallinfo2();

    return m.uordblks + m.hblkhd + blocks;
}

/* Return where a block of the range has its bytes, or NULL for another block. */
static size_t *head_of(void *p)
{
    return range && (uintptr_t)p - (uintptr_t)range < RANGE ? (size_t *)((char *)p - HEAD) : NULL;
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    char *p;

    if (n && bytes > SIZE_MAX / 2 / n)
        return NULL;
    bytes *= n;
    if (bytes < LARGE)
        return __real_calloc(1, bytes);
    p = scale_pages(HEAD + bytes);
    *(size_t *)p = bytes;
    blocks += bytes;
    return p + HEAD;
}

void __wrap_free(void *p)
{
    size_t *head = head_of(p);

    if (!head) {
        __real_free(p);
        return;
    }
    blocks -= *head;
    scale_pages_free(head, HEAD + *head);
}

void *__wrap_realloc(void *p, size_t bytes)
{
    const size_t *head = head_of(p);
    void *made;

    if (!head)
        return __real_realloc(p, bytes);
    made = malloc(bytes);
    if (made) {
        memcpy(made, p, bytes < *head ? bytes : *head);
        __wrap_free(p);
    }
    return made;
}
