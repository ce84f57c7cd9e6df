/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transport between the contexts of one process, in memory: the example of docs/adding.md, and the network
 * of tests that put several nodes into one process. Take it with nb_net_open_with(ctx, &loopback_ops).
 *
 * It has one device, "loop0", that takes host memory. connect succeeds at once, or fails with -ECONNREFUSED
 * when the listener is gone. A message is copied when both its send and its receive are posted, by whichever
 * call comes second, and only then the send tests done. Nothing is lost, reordered or delayed,
 * but by faults that a test asks for.
 *
 * Threads: as every transport; the two ends of a connection may be used by different threads.
 */
#ifndef NIBBLE_TESTS_NET_LOOPBACK_H
#define NIBBLE_TESTS_NET_LOOPBACK_H

#include <stdbool.h>

#include "net/transport.h"

extern const struct nb_net_ops loopback_ops;

/* Faults, of the contexts that the transports were initialized for, until loopback_heal. */
/* Nothing gets through between the two, either way, and nothing is refused: calls wait. */
void loopback_separate(const struct nb_context *a, const struct nb_context *b);
/* The process of the context is gone: its connections are reset, its listeners refuse. */
void loopback_kill(const struct nb_context *ctx);
/* The registration of the context after so many more is refused with -ENOMEM. For one thread. */
void loopback_refuse(const struct nb_context *ctx, int after);
void loopback_heal(void);
/* Close the connections that wait to be accepted by the context: as those that a listener takes for a
 * stranger's. Returns how many. */
int loopback_drop_waiting(const struct nb_context *ctx);

/* What is done with each message when it has arrived, before its receiver sees it: `tap` may change its
 * bytes. NULL (the default): nothing. For one thread; process-wide. */
typedef void loopback_tap(void *arg, uint8_t *bytes, size_t size);
void loopback_set_tap(loopback_tap *tap, void *arg);

/* Whether what has come over a connection, a message or its end, is not to be seen yet by a receiver that
 * looks. NULL (the default): it is. For one thread; process-wide. */
typedef bool loopback_late(void *arg);
void loopback_set_late(loopback_late *late, void *arg);

/* Connections, listeners and transports of this process that have not been closed. */
int loopback_open_objects(void);

/* As when the process at one end dies: both ends of this connection fail with -ECONNRESET. What has been
 * received before can still be tested. */
void loopback_cut(void *comm);
/* While held (1) the receiver sees nothing of the connection, neither messages nor its end. */
void loopback_hold(void *comm, int hold);

#endif
