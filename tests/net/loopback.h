/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport between contexts of one process (plugin/emulate/memory_net.h) with faults: the network of
 * tests that put several nodes into one process. Take it with nb_net_open_with(ctx, &loopback_ops). connect
 * fails with -ECONNREFUSED when the listener is gone.
 *
 * Threads: as every transport. Different threads may use the two ends of a connection.
 */
#ifndef NIBBLE_TESTS_NET_LOOPBACK_H
#define NIBBLE_TESTS_NET_LOOPBACK_H

#include <stdbool.h>

#include "net/transport.h"

extern const struct nb_net_ops loopback_ops;

/* Faults of the contexts for which the transports were initialized, until loopback_heal. */
/* Stop all messages between the two, in both directions, without an error: calls wait. */
void loopback_separate(const struct nb_context *a, const struct nb_context *b);
/* The process of the context is gone: reset its connections, and let its listeners refuse. */
void loopback_kill(const struct nb_context *ctx);
/* Refuse the registration of the context after so many more with -ENOMEM. For one thread. */
void loopback_refuse(const struct nb_context *ctx, int after);
void loopback_heal(void);
/* Close the connections that wait to be accepted by the context, as a listener does with strangers. Return
 * how many. */
int loopback_drop_waiting(const struct nb_context *ctx);

/* Called with each message that has arrived, before its receiver sees it: `tap` may change its bytes. NULL,
 * the default: no tap. For one thread, and for the whole process. */
typedef void loopback_tap(void *arg, uint8_t *bytes, size_t size);
void loopback_set_tap(loopback_tap *tap, void *arg);

/* Return whether a message that has arrived, or the connection's end, must stay hidden from a receiver that
 * looks. NULL, the default: all is visible. For one thread, and for the whole process. */
typedef bool loopback_late(void *arg);
void loopback_set_late(loopback_late *late, void *arg);

/* Return the number of open connections, listeners and transports of this process. */
int loopback_open_objects(void);

/* Fail both ends of this connection with -ECONNRESET, as when the process at one end dies. Messages received
 * before still test done. */
void loopback_cut(void *comm);
/* Fail only the sending end with this error, as when the system gives it up. */
void loopback_give_up(void *send_comm, int err);
/* While held (1) the receiver sees neither messages of the connection nor its end. */
void loopback_hold(void *comm, int hold);

#endif
