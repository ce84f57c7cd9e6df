/* SPDX-License-Identifier: Apache-2.0 */
/* The transport in memory (loopback.h), whose sends do not return while a test says so: an engine that hangs
 * in a call. */
#ifndef NIBBLE_TESTS_NET_HANGING_H
#define NIBBLE_TESTS_NET_HANGING_H

#include <stdbool.h>

#include "net/transport.h"

extern const struct nb_net_ops hanging_ops;

/* Let sends hang from now on. false: hanging sends return, and later sends do not hang. Any thread. */
void hanging_set(bool hang);
/* Return true when a send has hung since hanging_set. */
bool hanging_seen(void);

#endif
