/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequences of the calls that NCCL makes, and of calls that it should not make: wrong sizes, handles, orders,
 * times. fuzz_abi (two nodes in one thread, under virtual time) and fuzz_abi_threads (engines and callers in
 * threads) share them. Every call must write its result, and every request must end or its communicator fail.
 *
 * The sequences leave out calls that no C program may make: with a pointer to freed memory, or with a size of
 * a buffer that is larger than the buffer.
 *
 * A call in the input: a u8 whose low half is the call and whose bit 4 is the node, and its arguments,
 * ABI_CALL_BYTES at most.
 */
#ifndef NIBBLE_TESTS_FUZZ_ABI_CALLS_H
#define NIBBLE_TESTS_FUZZ_ABI_CALLS_H

#include <stdbool.h>

#include "fuzz.h"
#include "tests/coll/cluster.h"

#define ABI_NODES 2
#define ABI_CALL_BYTES 8u

/* The nodes of the current input. */
extern struct cluster abi_cluster;

/* Open the nodes with settings from one byte of input. `runner` drives the engines. NULL: cluster_turn does,
 * and calls then run it, too. */
void abi_open(unsigned settings, const struct nb_runner *runner);
/* Make the next call of the input, if it is a call of `node`. -1: of either node. Different threads may make
 * calls of different nodes. */
void abi_call(struct fuzz_input *in, int node);
/* Forget the requests that have ended, as NCCL does with an operation's requests. Return the number of
 * unfinished requests. */
unsigned abi_collect(int node);
/* Close the node's communicator, if it is open. */
void abi_close_one(int node);
/* All communicators are closed: check that the plugin gave back all memory, and free the nodes. */
void abi_close(void);

#endif
