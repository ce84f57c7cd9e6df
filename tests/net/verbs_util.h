/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the verbs transport over the fake stack share. */
#ifndef NIBBLE_TESTS_NET_VERBS_UTIL_H
#define NIBBLE_TESTS_NET_VERBS_UTIL_H

#include "fake_verbs.h"
#include "net/transport.h"
#include "util.h"

/* A checked fixture: a new world of two adapters; afterwards nothing of it may be left, nor have been
 * misused. */
void verbs_before(void);
void verbs_after(void);

/* The line is there and contains the text. */
void has(const char *line, const char *text);

/* The comm has failed with `err` for good: the next call gives it, at once and without a request. */
void failed_send(struct nb_net *net, void *comm, int err);
void failed_recv(struct nb_net *net, void *comm, int err);

/* One message of at most 100,000 bytes, whole. Returns where it was received. */
const uint8_t *exchange(struct pair *p, size_t size);

/* The attributes of the nth change to a state. Of the two queue pairs of a connection, the receiver's joins
 * first. */
enum { RECEIVER, SENDER };
const struct ibv_qp_attr *modified(enum ibv_qp_state to, int nth);

#endif
