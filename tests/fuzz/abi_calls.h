/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequences of the calls that NCCL makes, also those that it should not make: wrong sizes, handles, orders,
 * times. What fuzz_abi (two nodes in one thread, under virtual time) and fuzz_abi_threads (engines and
 * callers in threads) share. Every call writes its result, a request ends or its communicator fails.
 *
 * Not called is what no program may do in C: a pointer to freed memory, or a size of a buffer that is larger
 * than the buffer.
 *
 * A call in the input: what u8 (low half: the call, bit 4: the node), and its arguments, ABI_CALL_BYTES at
 * most.
 */
#ifndef NIBBLE_TESTS_FUZZ_ABI_CALLS_H
#define NIBBLE_TESTS_FUZZ_ABI_CALLS_H

#include <stdbool.h>

#include "fuzz.h"
#include "tests/coll/cluster.h"

#define ABI_NODES 2
#define ABI_CALL_BYTES 8u

/* The nodes of the input that is being tried. */
extern struct cluster abi_cluster;

/* Open the nodes with settings from one byte of input. `runner`: who drives the engines, NULL: cluster_turn,
 * which calls then make too. */
void abi_open(unsigned settings, const struct nb_runner *runner);
/* Make the next call of the input, if it is one of `node`; -1: of whichever node it is. Calls of different
 * nodes may be made by different threads. */
void abi_call(struct fuzz_input *in, int node);
/* Forget the requests that have ended, as NCCL does with those of an operation; how many have not. */
unsigned abi_collect(int node);
/* Close the node's communicator, if it is open. */
void abi_close_one(int node);
/* Everything is closed: check that all memory is given back, and free the nodes. */
void abi_close(void);

#endif
