/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A communicator's own GPU memory: residuals, references, sums, payloads, the kernel's workspaces.
 *
 * Threads: one at a time (the lock of struct nb_gpu, which nb_arena_take, nb_arena_take_whole and
 * nb_arena_grow take by themselves), with the context entered. nb_arena_cut, nb_arena_give and
 * nb_arena_give_whole need no context.
 *
 * The arena reserves addresses for all of the GPU's memory once. NCCL's thread at connect, and later the
 * driver thread (thread.c), map physical memory behind them on demand. Mapping neither waits for the GPU nor
 * moves memory in use. cuMemAlloc and cuMemFree may wait for all kernels on the GPU, including kernels that
 * wait for nibble. Memory is unmapped only when the communicator is closed.
 *
 * Allocation is first-fit by address. Adjacent free blocks are coalesced.
 */
#include "device/cuda/driver.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"

#define ALIGN 256u
#define STEP ((size_t)64 << 20) /* minimum mapped at once: enough for the ring and small communicators */
#define FIXED_BYTES ((size_t)512 << 20) /* without virtual memory, where the arena cannot grow */

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* Append a free block, joined with a free one before it. */
static int append(struct nb_arena *a, nb_cu_ptr at, size_t bytes)
{
    struct nb_arena_block **link = &a->blocks, *b = NULL;

    for (; *link && (*link)->at < at; link = &(*link)->next)
        b = *link;
    if (b && !b->used && b->at + b->bytes == at) {
        b->bytes += bytes;
        return 0;
    }
    b = calloc(1, sizeof(*b));
    if (!b)
        return -ENOMEM;
    *b = (struct nb_arena_block){.at = at, .bytes = bytes, .next = *link};
    *link = b;
    return 0;
}

/* Note memory. Without `whole` it is also a free block. */
static int add_map(struct nb_arena *a, nb_cu_ptr at, size_t bytes, unsigned long long handle, bool whole)
{
    struct nb_arena_map *map = calloc(1, sizeof(*map));

    if (!map || (!whole && append(a, at, bytes))) {
        free(map);
        NB_WARN("cuda: out of memory");
        return -ENOMEM;
    }
    *map = (struct nb_arena_map){.at = at, .bytes = bytes, .handle = handle, .whole = whole, .next = a->maps};
    a->maps = map;
    a->mapped += bytes;
    return 0;
}

static void hold(pthread_mutex_t *lock)
{
    if (lock)
        pthread_mutex_lock(lock);
}

static void let_go(pthread_mutex_t *lock)
{
    if (lock)
        pthread_mutex_unlock(lock);
}

/* Return the next `bytes` of addresses. */
static nb_cu_ptr place(struct nb_arena *a, size_t bytes, pthread_mutex_t *lock)
{
    nb_cu_ptr at;

    hold(lock);
    at = a->base + a->placed;
    a->placed += bytes;
    let_go(lock);
    return at;
}

/* Give back addresses that stayed unmapped. Where other addresses were taken behind them they are lost. */
static void unplace(struct nb_arena *a, nb_cu_ptr at, size_t bytes, pthread_mutex_t *lock)
{
    hold(lock);
    if (a->base + a->placed == at + bytes)
        a->placed -= bytes;
    let_go(lock);
}

static void tell(const struct nb_arena *a, nb_cu_ptr at, size_t bytes)
{
    if (a->made)
        a->made(a->made_arg, at, bytes);
}

/* Map `bytes` more bytes behind the mapped ones, at *out. `lock` is taken only for the arena's own members,
 * never across a call of the driver. NULL: held, or unnecessary. whole: for one user and the adapters. */
static int map_more(struct nb_arena *a, size_t bytes, bool whole, pthread_mutex_t *lock, nb_cu_ptr *out)
{
    const struct nb_cuda *cu = a->cuda->cu;
    struct nb_cu_alloc_prop prop = {.type = NB_CU_ALLOC_PINNED,
                                    .location = {NB_CU_LOCATION_DEVICE, a->cuda->device},
                                    .gpu_direct_rdma = whole || a->for_adapters};
    struct nb_cu_access access = {.location = {NB_CU_LOCATION_DEVICE, a->cuda->device},
                                  .flags = NB_CU_ACCESS_READWRITE};
    nb_cu_ptr at = place(a, bytes, lock);
    unsigned long long handle = 0;
    char what[64];
    int ret;

    snprintf(what, sizeof(what), "GPU %d, %zu MiB more of its memory", a->cuda->ordinal, bytes >> 20);
    ret = NB_CU(cu, what, MemCreate(&handle, bytes, &prop, 0));
    if (ret) {
        unplace(a, at, bytes, lock);
        return ret;
    }
    ret = NB_CU(cu, what, MemMap(at, bytes, 0, handle, 0));
    if (!ret) {
        ret = NB_CU(cu, what, MemSetAccess(at, bytes, &access, 1));
        if (!ret) {
            tell(a, at, bytes);
            hold(lock);
            ret = add_map(a, at, bytes, handle, whole);
            let_go(lock);
            if (ret)
                tell(a, at, 0);
        }
        if (ret)
            cu->MemUnmap(at, bytes);
    }
    if (ret) {
        cu->MemRelease(handle);
        unplace(a, at, bytes, lock);
    }
    *out = at;
    return ret;
}

/* Return whether adapters can be given memory of the arena. Log why not. */
static bool is_for_adapters(const struct nb_arena *a)
{
    int able = 0;

    if (a->virtual_memory &&
        NB_CU(a->cuda->cu, "memory for adapters",
              DeviceGetAttribute(&able, NB_CU_ATTR_RDMA_OF_VIRTUAL_MEMORY, a->cuda->device)))
        return false;
    if (!able)
        NB_INFO(NCCL_NET, "cuda: GPU %d has no virtual memory that adapters reach", a->cuda->ordinal);
    return able;
}

/* Return 0 when the arena may take `bytes` more and leave the job its reserve. Log the first refusal of
 * memory for residuals and references, and each refusal for payloads (`whole`). */
static int may_grow(struct nb_arena *a, size_t bytes, bool whole, pthread_mutex_t *lock)
{
    size_t left = 0, all = 0;
    bool full, first;

    if (NB_CU(a->cuda->cu, "memory left", MemGetInfo_v2(&left, &all)))
        return -EIO;
    hold(lock);
    full = bytes > a->reserved - a->placed || left < a->keep || left - a->keep < bytes;
    first = full && (whole || !a->told_full);
    a->told_full |= full && !whole;
    let_go(lock);
    if (full) {
        if (first)
            NB_INFO(NCCL_NET,
                    "cuda: GPU %d: no %zu MiB more for %s: %zu MiB are left, of which the job "
                    "keeps %zu (NIBBLE_GPU_RESERVE_MB)",
                    a->cuda->ordinal, bytes >> 20,
                    whole ? "payloads of messages" : "residuals and references", left >> 20, a->keep >> 20);
        return -ENOMEM;
    }
    return 0;
}

int nb_arena_grow(struct nb_arena *a, size_t bytes, pthread_mutex_t *lock)
{
    nb_cu_ptr at;
    int ret;

    if (!a->virtual_memory)
        return -ENOMEM;
    bytes = round_up(bytes > STEP ? bytes : STEP, a->granularity);
    ret = may_grow(a, bytes, false, lock);
    if (!ret)
        ret = map_more(a, bytes, false, lock, &at);
    if (!ret) {
        hold(lock);
        a->grown++;
        let_go(lock);
    }
    return ret;
}

int nb_arena_open(struct nb_arena *a, const struct nb_cuda_context *cuda, size_t keep, bool for_adapters)
{
    const struct nb_cuda *cu = cuda->cu;
    struct nb_cu_alloc_prop prop = {.type = NB_CU_ALLOC_PINNED,
                                    .location = {NB_CU_LOCATION_DEVICE, cuda->device}};
    size_t left = 0, all = 0;
    nb_cu_ptr at = 0;
    int ret;

    a->cuda = cuda;
    a->keep = keep;
    ret = NB_CU(cu, "virtual memory of the GPU",
                DeviceGetAttribute(&a->virtual_memory, NB_CU_ATTR_VIRTUAL_MEMORY, a->cuda->device));
    if (ret)
        return ret;
    if (!a->virtual_memory) {
        ret = NB_CU(cu, "memory for residuals and references", MemAlloc_v2(&at, FIXED_BYTES));
        if (ret)
            return ret;
        ret = add_map(a, at, FIXED_BYTES, 0, false);
        if (ret)
            cu->MemFree_v2(at);
        return ret;
    }
    a->for_adapters = for_adapters && is_for_adapters(a);
    prop.gpu_direct_rdma = a->for_adapters;
    ret = NB_CU(cu, "pages of GPU memory",
                MemGetAllocationGranularity(&a->granularity, &prop, NB_CU_GRANULARITY_RECOMMENDED));
    if (!ret)
        ret = NB_CU(cu, "memory of the GPU", MemGetInfo_v2(&left, &all));
    if (ret)
        return ret;
    if (!a->granularity || !all) {
        NB_WARN("cuda: GPU %d says it has %zu bytes of memory in pages of %zu", a->cuda->ordinal, all,
                a->granularity);
        return -EIO;
    }
    a->reserved = round_up(all, a->granularity);
    ret = NB_CU(cu, "addresses for GPU memory", MemAddressReserve(&a->base, a->reserved, 0, 0, 0));
    if (ret) {
        a->base = 0;
        return ret;
    }
    return map_more(a, round_up(STEP, a->granularity), false, NULL, &at);
}

void nb_arena_close(struct nb_arena *a)
{
    for (const struct nb_arena_map *map = a->maps; map; map = map->next) {
        if (map->handle) {
            NB_CU(a->cuda->cu, "unmapping GPU memory", MemUnmap(map->at, map->bytes));
            NB_CU(a->cuda->cu, "giving back GPU memory", MemRelease(map->handle));
        } else {
            NB_CU(a->cuda->cu, "giving back GPU memory", MemFree_v2(map->at));
        }
    }
    if (a->base)
        NB_CU(a->cuda->cu, "giving back addresses", MemAddressFree(a->base, a->reserved));
    a->base = 0;
    nb_arena_forget(a);
}

void nb_arena_forget(struct nb_arena *a)
{
    while (a->maps) {
        struct nb_arena_map *map = a->maps;
        a->maps = map->next;
        free(map);
    }
    while (a->blocks) {
        struct nb_arena_block *b = a->blocks;
        a->blocks = b->next;
        free(b);
    }
}

static nb_cu_ptr cut(struct nb_arena *a, size_t bytes)
{
    for (struct nb_arena_block *b = a->blocks; b; b = b->next) {
        if (b->used || b->bytes < bytes)
            continue;
        if (b->bytes > bytes) {
            struct nb_arena_block *rest = calloc(1, sizeof(*rest));
            if (!rest)
                return 0;
            *rest = (struct nb_arena_block){.at = b->at + bytes, .bytes = b->bytes - bytes, .next = b->next};
            b->bytes = bytes;
            b->next = rest;
        }
        b->used = 1;
        a->used += bytes;
        if (a->used > a->peak)
            a->peak = a->used;
        return b->at;
    }
    return 0;
}

nb_cu_ptr nb_arena_cut(struct nb_arena *a, size_t bytes)
{
    return bytes > SIZE_MAX / 2 ? 0 : cut(a, round_up(bytes ? bytes : 1, ALIGN));
}

nb_cu_ptr nb_arena_take(struct nb_arena *a, size_t bytes, pthread_mutex_t *lock)
{
    nb_cu_ptr at;
    bool grows;

    do { /* again where another thread has taken the new memory */
        hold(lock);
        at = nb_arena_cut(a, bytes);
        let_go(lock);
        grows = !at && bytes <= SIZE_MAX / 2 && !nb_arena_grow(a, bytes ? bytes : 1, lock);
    } while (grows);
    if (!at) {
        hold(lock);
        a->refused++;
        let_go(lock);
    }
    return at;
}

/* Take [at, at + bytes) out of the blocks where all of it is free: an earlier user gave it back. */
static bool carve(struct nb_arena *a, nb_cu_ptr at, size_t bytes)
{
    for (struct nb_arena_block **p = &a->blocks, *b; (b = *p); p = &b->next) {
        const nb_cu_ptr end = b->at + b->bytes;

        if (b->used || b->at > at || end < at + bytes)
            continue;
        if (end > at + bytes && append(a, at + bytes, end - at - bytes))
            return false;
        b->bytes = at - b->at;
        if (!b->bytes) {
            *p = b->next;
            free(b);
        }
        return true;
    }
    return false;
}

nb_cu_ptr nb_arena_take_whole(struct nb_arena *a, size_t bytes, pthread_mutex_t *lock)
{
    nb_cu_ptr at = 0;

    if (bytes > SIZE_MAX / 2 || !is_for_adapters(a))
        return 0;
    bytes = round_up(bytes, a->granularity);
    hold(lock);
    for (const struct nb_arena_map *map = a->maps; map && !at; map = map->next)
        if (map->whole && map->bytes >= bytes && carve(a, map->at, map->bytes))
            at = map->at;
    let_go(lock);
    if (at || (!may_grow(a, bytes, true, lock) && !map_more(a, bytes, true, lock, &at)))
        return at;
    return 0;
}

void nb_arena_give_whole(struct nb_arena *a, nb_cu_ptr at)
{
    for (const struct nb_arena_map *map = a->maps; map; map = map->next)
        if (map->at == at && append(a, at, map->bytes))
            NB_WARN("cuda: out of memory");
}

void nb_arena_give(struct nb_arena *a, nb_cu_ptr at)
{
    struct nb_arena_block *before = NULL, *b = a->blocks;

    for (; b && b->at != at; b = b->next)
        before = b;
    if (!b || !b->used) {
        NB_WARN("cuda: memory at 0x%llx was given back that is not in use", (unsigned long long)at);
        return;
    }
    b->used = 0;
    a->used -= b->bytes;
    for (struct nb_arena_block *first = before && !before->used ? before : b, *next;
         (next = first->next) && !next->used && first->at + first->bytes == next->at;) {
        first->bytes += next->bytes;
        first->next = next->next;
        free(next);
    }
}
