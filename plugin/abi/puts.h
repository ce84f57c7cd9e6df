/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One-sided operations between the ranks of a group (puts, gets, signals) as messages over a transport, for
 * NCCL's tables ncclRmaPlugin (rma.c).
 *
 * Each rank registers the same memory in the same order, so a registration's number names it on all ranks. A
 * put travels in pieces. In front of each goes a head that says where its bytes belong. The bytes' message
 * has a tag made of that place, by which the transport recognises bytes of the same window and offset and
 * sends them as exact deltas (NIBBLE_P2P). A connection carries messages in order, and a receiver carries
 * out one after the other. So a signal is visible after the bytes of all puts before it from the same rank.
 * Two ranks connect, in both directions, when one of them has an operation for the other.
 *
 * GPU memory is copied through pinned host memory. Where the process has no CUDA, all memory is the host's.
 *
 * Threads: any. A lock of the group excludes its functions from one another. nb_puts_progress and the start
 * of an operation move bytes. They never wait for a peer.
 *
 * Errors: the first error of a group is sticky. It is logged once where it is detected. Later calls, and
 * tests of unfinished operations, return it.
 */
#ifndef NIBBLE_ABI_PUTS_H
#define NIBBLE_ABI_PUTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct nb_context;
struct nb_puts;
struct nb_puts_listener;
struct nb_puts_memory;
struct nb_puts_request;

/* Return 0 when ctx->net can carry puts and the memory of the calling thread's GPU can be copied. Otherwise
 * return a negative errno, and `why` of `cap` bytes. */
int nb_puts_available(struct nb_context *ctx, char *why, size_t cap);

/* Listen for communicator `comm_id`, and fill `handle` (NB_NET_HANDLE_BYTES) for the other ranks. Return 0
 * and *listener, or a negative errno after a WARN line. */
int nb_puts_listen(struct nb_context *ctx, uint64_t comm_id, int dev, void *handle,
                   struct nb_puts_listener **listener);
void nb_puts_close_listen(struct nb_puts_listener *listener); /* NULL is allowed */

/* Make the group of `nranks` ranks with these handles, in which this one is `rank`. The group takes what it
 * needs from the listener, which the caller still closes. GPU memory is the calling thread's GPU's. No
 * connection is made yet. Return 0 and *puts, or a negative errno after a WARN line. */
int nb_puts_open(struct nb_puts_listener *listener, void *const handles[], int nranks, int rank,
                 struct nb_puts **puts);
/* Close the group. Operations that are under way are lost. Other ranks learn that it was on purpose, for
 * which this waits a second at most. */
void nb_puts_close(struct nb_puts *puts);
/* Set the traffic class of connections that are still to be made. -1: unset. */
void nb_puts_set_traffic_class(struct nb_puts *puts, int traffic_class);

/* Register memory, of the GPU or of the host. Its number counts all calls of the group, also those that fail.
 * The handle is valid until nb_puts_close. Return 0 and *memory, or a negative errno after a WARN line. */
int nb_puts_register(struct nb_puts *puts, void *data, size_t size, bool gpu, struct nb_puts_memory **memory);
/* Deregister it. With operations under way that read or write it here, the group fails: the memory is left
 * alone from then on. */
int nb_puts_deregister(struct nb_puts *puts, struct nb_puts_memory *memory);

struct nb_put {
    struct nb_puts_memory *from, *to; /* not looked at when size is 0 */
    uint64_t from_at, to_at;          /* offsets */
    size_t size;
    int rank;
    struct nb_puts_memory *signal; /* NULL: without a signal */
    uint64_t signal_at, add;       /* offset of its 64-bit word, and the number that is added to it */
};

/* Start a put. It tests done when its source may change. Return 0 and *request, which nb_puts_test frees, or
 * a negative errno: -EINVAL after a WARN line for arguments that do not fit together. */
int nb_puts_put(struct nb_puts *puts, const struct nb_put *put, struct nb_puts_request **request);
/* Start a get: the same, but `from` and `from_at` are those of rank `put->rank`, `to` is this rank's, and
 * there is no signal. It tests done when the bytes are here. */
int nb_puts_get(struct nb_puts *puts, const struct nb_put *put, struct nb_puts_request **request);
/* Return a request that is done: all that has arrived is visible already. */
int nb_puts_flush(struct nb_puts *puts, struct nb_puts_request **request);
/* Test a request. When it is *done, free it. */
int nb_puts_test(struct nb_puts *puts, struct nb_puts_request *request, int *done);
/* Move bytes in both directions. Return 0, or the group's error. */
int nb_puts_progress(struct nb_puts *puts);
/* Return 0, or the group's error. */
int nb_puts_error(struct nb_puts *puts);
/* Return the listener's communicator. */
uint64_t nb_puts_comm_id(const struct nb_puts *puts);

#endif
