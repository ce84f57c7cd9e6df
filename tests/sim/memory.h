/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of nodes. The program is linked with --wrap for malloc, calloc, realloc and free, so that what a
 * node takes is known to be its own: it can be refused, a node that is killed loses it, and what is left when
 * a node has closed all is a leak. Fresh memory is filled with a pattern, so that nobody depends on what it
 * held before.
 */
#ifndef NIBBLE_TESTS_SIM_MEMORY_H
#define NIBBLE_TESTS_SIM_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#define SIM_NOBODY (-1) /* the simulation itself */

/* From here on memory is taken for node `owner`; returns for whom it was before. */
int sim_memory_enter(int owner);
/* The `n`-th allocation of `owner` from now is refused; 0: none. */
void sim_memory_refuse(int owner, uint64_t n);
/* How many were refused so far. */
uint64_t sim_memory_refused(int owner);
/* Blocks and bytes that `owner` has. */
size_t sim_memory_blocks(int owner);
size_t sim_memory_bytes(int owner);
/* Give back all that `owner` has. */
void sim_memory_drop(int owner);
/* Forget refusals; nobody may have anything. */
void sim_memory_reset(void);

#endif
