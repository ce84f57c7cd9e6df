/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of nodes. The program is linked with --wrap for malloc, calloc, realloc and free, so that each block
 * belongs to the node that took it. The simulation can refuse an allocation, a killed node loses its blocks,
 * and blocks left after a node has closed everything are a leak. Fresh memory holds a pattern, so that
 * results cannot depend on its former contents.
 */
#ifndef NIBBLE_TESTS_SIM_MEMORY_H
#define NIBBLE_TESTS_SIM_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#define SIM_NOBODY (-1) /* the simulation itself */

/* Take memory for node `owner` from here on. Return the owner before the call. */
int sim_memory_enter(int owner);
/* Refuse the `n`-th allocation of `owner` from now. 0: refuse no allocation. */
void sim_memory_refuse(int owner, uint64_t n);
/* Return the number of refusals so far. */
uint64_t sim_memory_refused(int owner);
/* Return the number of blocks, and of bytes, of `owner`. */
size_t sim_memory_blocks(int owner);
size_t sim_memory_bytes(int owner);
/* Give back all memory of `owner`. */
void sim_memory_drop(int owner);
/* Forget refusals. No owner may have blocks. */
void sim_memory_reset(void);

#endif
