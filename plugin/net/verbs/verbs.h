/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs transport as net.c sees it when it chooses a transport. */
#ifndef NIBBLE_NET_VERBS_H
#define NIBBLE_NET_VERBS_H

#include <stdbool.h>
#include <stddef.h>

struct nb_context;
struct nb_net;

/* As init of nb_net_verbs, but log no line where there is no usable port. Return 0 and *net, or -ENODEV with
 * one line in `why` (no library, no device, no active port, switched off), or another negative errno after a
 * WARN line. With -ENODEV *misfit says that there is an adapter all the same. */
int nb_verbs_try(struct nb_context *ctx, struct nb_net **net, char *why, size_t cap, bool *misfit);

#endif
