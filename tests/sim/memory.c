/* SPDX-License-Identifier: Apache-2.0 */
/* The wrapped allocator. See memory.h. */
#include "tests/sim/memory.h"

#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim.h"

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *p, size_t bytes);
void __real_free(void *p);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes);
void __wrap_free(void *p);

#define MAGIC 0x626c6f63u
#define PATTERN 0xc9

/* Before each block. Its size keeps the alignment of malloc. */
struct block {
    struct block *next, *prev; /* of its owner's */
    size_t bytes;
    int owner;
    uint32_t magic;
};

static struct {
    struct block list; /* a ring */
    size_t blocks, bytes;
    uint64_t refuse, refused;
} owners[SIM_NODES_MAX + 1];
static int current = SIM_NOBODY;

int sim_memory_enter(int owner)
{
    int before = current;

    current = owner;
    return before;
}

void sim_memory_refuse(int owner, uint64_t n)
{
    owners[owner + 1].refuse = n;
}

uint64_t sim_memory_refused(int owner)
{
    return owners[owner + 1].refused;
}

size_t sim_memory_blocks(int owner)
{
    return owners[owner + 1].blocks;
}

size_t sim_memory_bytes(int owner)
{
    return owners[owner + 1].bytes;
}

static void link_block(struct block *b, size_t bytes, int owner)
{
    struct block *list = &owners[owner + 1].list;

    if (!list->next)
        list->next = list->prev = list;
    b->bytes = bytes;
    b->owner = owner;
    b->magic = MAGIC;
    b->next = list;
    b->prev = list->prev;
    b->prev->next = b->next->prev = b;
    owners[owner + 1].blocks++;
    owners[owner + 1].bytes += bytes;
}

static void unlink_block(struct block *b)
{
    if (b->magic != MAGIC)
        abort(); /* not a block, or freed before */
    b->magic = 0;
    b->prev->next = b->next;
    b->next->prev = b->prev;
    owners[b->owner + 1].blocks--;
    owners[b->owner + 1].bytes -= b->bytes;
}

static int refused(void)
{
    if (!owners[current + 1].refuse || --owners[current + 1].refuse)
        return 0;
    owners[current + 1].refused++;
    return 1;
}

void *__wrap_malloc(size_t bytes)
{
    struct block *b = refused() ? NULL : __real_malloc(sizeof(*b) + bytes);

    if (!b)
        return NULL;
    link_block(b, bytes, current);
    if (current != SIM_NOBODY)
        memset(b + 1, PATTERN, bytes);
    return b + 1;
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    struct block *b;

    if (n && bytes > SIZE_MAX / 2 / n)
        return NULL;
    b = refused() ? NULL : __real_calloc(1, sizeof(*b) + n * bytes);
    if (!b)
        return NULL;
    link_block(b, n * bytes, current);
    return b + 1;
}

void *__wrap_realloc(void *p, size_t bytes)
{
    struct block *b = p ? (struct block *)p - 1 : NULL, *made;
    size_t before = b ? b->bytes : 0;

    if (!b)
        return __wrap_malloc(bytes);
    if (refused())
        return NULL;
    int owner = b->owner;
    unlink_block(b);
    made = __real_realloc(b, sizeof(*b) + bytes);
    if (!made)
        abort();
    link_block(made, bytes, owner);
    if (bytes > before)
        memset((char *)(made + 1) + before, PATTERN, bytes - before);
    return made + 1;
}

void __wrap_free(void *p)
{
    struct block *b = p ? (struct block *)p - 1 : NULL;

    if (!b)
        return;
    unlink_block(b);
    __real_free(b);
}

void sim_memory_drop(int owner)
{
    struct block *list = &owners[owner + 1].list;

    while (list->next && list->next != list)
        __wrap_free(list->next + 1);
}

void sim_memory_reset(void)
{
    for (int i = 0; i <= SIM_NODES_MAX; i++)
        owners[i].refuse = owners[i].refused = 0;
}
