/* SPDX-License-Identifier: Apache-2.0 */
/* The tests of data.c, for the transport that util.h's variables name. */
#ifndef NIBBLE_TESTS_NET_DATA_H
#define NIBBLE_TESTS_NET_DATA_H

/* DATA_FLOWS: only tests that take "later" for an answer, for transports with short queues. */
enum { DATA_FLOWS, DATA_ALL };

/* Fewer messages in the longer tests by this factor. 1 at first. */
extern int data_divisor;
/* Numbers of sockets or queue pairs that the tests try: 4 at first. */
extern int data_counts;

/* Run the suite. Return 1 when a test failed, else 0. */
int data_tests(const char *name, int what);

#endif
