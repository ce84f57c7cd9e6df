/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the verbs transport over the fake stack share. */
#ifndef NIBBLE_TESTS_NET_VERBS_UTIL_H
#define NIBBLE_TESTS_NET_VERBS_UTIL_H

#include "net/transport.h"

/* A checked fixture: a new world of two adapters; afterwards nothing of it may be left, nor have been
 * misused. */
void verbs_before(void);
void verbs_after(void);

/* The line is there and contains the text. */
void has(const char *line, const char *text);

/* The comm has failed with `err` for good: the next call gives it, at once and without a request. */
void failed_send(struct nb_net *net, void *comm, int err);
void failed_recv(struct nb_net *net, void *comm, int err);

#endif
