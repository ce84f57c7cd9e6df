/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of threads on a CPU, for testing the kernels without a GPU. Threads are fibers that take turns
 * within one thread of the operating system. They switch only where a GPU's threads would meet or wait. With
 * nb_emulate_run blocks take turns too, with nb_emulate_block each block has a thread of the operating
 * system.
 */
#ifndef NIBBLE_TESTS_GPU_EMULATE_H
#define NIBBLE_TESTS_GPU_EMULATE_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "tests/gpu/fiber.h" /* NB_TSAN */

/* The thread that runs now. */
struct nb_emulated {
    unsigned thread, block, blocks;
};
extern _Thread_local struct nb_emulated *nb_emulated;

void nb_emulate_barrier(void);
/* Let all threads of the warp meet. Return the values that they passed, valid until this thread's second call
 * from now. */
const uint32_t *nb_emulate_warp(uint32_t value);
void nb_emulate_pause(void);
void nb_emulate_async(void *to, const void *from, unsigned bytes);
void nb_emulate_async_end(void);
void nb_emulate_async_wait(unsigned but);
void nb_emulate_fail(const char *what) __attribute__((noreturn));

#ifdef NB_TSAN
/* Relaxed accesses of 4 or 8 bytes and fences, as the thread sanitizer has to see them. `scope` and `sys` are
 * 1 for system scope and 0 for GPU scope. */
uint64_t nb_emulate_get(const void *p, unsigned bytes, int scope);
void nb_emulate_put(void *p, unsigned bytes, uint64_t v, int scope);
uint64_t nb_emulate_change(void *p, unsigned bytes, uint64_t v, int take);
void nb_emulate_fence(int sys);
#endif

/* Run block `number` of `blocks` in the calling thread of the operating system, for any number of launches.
 * All blocks of a launch must run at the same time. */
struct nb_emulated_block;
struct nb_emulated_block *nb_emulate_open(unsigned number, unsigned blocks);
void nb_emulate_block(struct nb_emulated_block *b, const struct nb_gpu_launch *launch, uint64_t seed);
void nb_emulate_close(struct nb_emulated_block *b);

/* Run the kernel with `blocks` blocks that take turns, in an order that follows from `seed`. The thread keeps
 * the blocks for its next launch until it calls nb_emulate_end. */
#define NB_EMULATE_BLOCKS 3u /* most blocks */
void nb_emulate_run(const struct nb_gpu_launch *launch, unsigned blocks, uint64_t seed);
void nb_emulate_end(void);

#endif
