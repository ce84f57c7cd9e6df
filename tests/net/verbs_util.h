/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that the tests of the verbs transport over the fake stack share. */
#ifndef NIBBLE_TESTS_NET_VERBS_UTIL_H
#define NIBBLE_TESTS_NET_VERBS_UTIL_H

#include "fake_verbs.h"
#include "net/transport.h"
#include "util.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

/* A checked fixture: make a new world of two adapters. Afterwards check that its objects are gone and that no
 * rule was broken. */
void verbs_before(void);
void verbs_after(void);

/* Check that the line exists and contains the text. */
void has(const char *line, const char *text);

/* Check that the comm has failed with `err` for good: the next call returns it, at once and without a
 * request. */
void failed_send(struct nb_net *net, void *comm, int err);
void failed_recv(struct nb_net *net, void *comm, int err);

/* Move one whole message of at most 100,000 bytes. Return where it was received. */
const uint8_t *exchange(struct pair *p, size_t size);

/* Return the attributes of the nth change to a state. Of the two queue pairs of a connection, the receiver's
 * joins first. */
enum { RECEIVER, SENDER };
const struct ibv_qp_attr *modified(enum ibv_qp_state to, int nth);

#endif
