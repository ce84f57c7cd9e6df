/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory of nibble's own: residuals, references, sums, the kernel's workspaces. See cuda_arena.c for how
 * it grows.
 *
 * Threads: one at a time (the lock of struct nb_gpu; nb_arena_grow takes it by itself), with the context entered, but
 * for nb_arena_cut and nb_arena_give, which need none.
 */
#ifndef NIBBLE_DEVICE_CUDA_ARENA_H
#define NIBBLE_DEVICE_CUDA_ARENA_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/cuda_context.h"

struct nb_arena_block { /* a range of the arena, used or free; in the order of addresses */
    nb_cu_ptr at;
    size_t bytes;
    int used;
    struct nb_arena_block *next;
};

struct nb_arena_map { /* physical memory behind a part of it */
    nb_cu_ptr at;
    size_t bytes;
    unsigned long long handle; /* 0: of cuMemAlloc */
    struct nb_arena_map *next;
};

struct nb_arena {
    const struct nb_cuda_context *cuda;
    int virtual_memory; /* addresses are reserved, and memory is mapped as it is needed; 0: one cuMemAlloc at connect */
    nb_cu_ptr base;
    size_t reserved, mapped, used, peak, granularity; /* bytes */
    size_t
        placed; /* bytes of addresses that are mapped or about to be: communicators connect while another one's memory grows */
    bool told_full;
    size_t keep;             /* bytes of the GPU's memory that are left to the job */
    uint64_t grown, refused; /* counters: growths; allocations for which there was no memory */
    struct nb_arena_block *blocks;
    struct nb_arena_map *maps;
};

/* Reserve addresses, and map `bytes` to begin with. 0, or a negative errno after a WARN; nb_arena_close in
 * either case. */
int nb_arena_open(struct nb_arena *arena, const struct nb_cuda_context *cuda, size_t bytes, size_t keep);
void nb_arena_close(struct nb_arena *arena);

/* Instead of it where the GPU's context cannot be entered: frees the host's memory alone. */
void nb_arena_forget(struct nb_arena *arena);

/* Address of `bytes` of GPU memory, not zeroed, aligned to 256 bytes; 0: there is none. `take` grows the arena where
 * it has to; `cut` calls no driver, and needs no context. */
nb_cu_ptr nb_arena_take(struct nb_arena *arena, size_t bytes);
nb_cu_ptr nb_arena_cut(struct nb_arena *arena, size_t bytes);
/* Map `bytes` more: 0, or a negative errno after a log line. While other threads use the arena `lock` is theirs, and
 * is taken for its lists alone; NULL: the caller holds it. One thread at a time. */
int nb_arena_grow(struct nb_arena *arena, size_t bytes, pthread_mutex_t *lock);
/* Give back what nb_arena_take gave. It stays the arena's. */
void nb_arena_give(struct nb_arena *arena, nb_cu_ptr at);

#endif
