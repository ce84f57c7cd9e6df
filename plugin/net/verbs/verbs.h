/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs transport as the choice of a transport sees it. */
#ifndef NIBBLE_NET_VERBS_H
#define NIBBLE_NET_VERBS_H

#include <stdbool.h>
#include <stddef.h>

struct nb_context;
struct nb_net;

/* As init of nb_net_verbs, but nothing is logged where there is no usable port: 0 and *net; -ENODEV with one
 * line in `why` (no library, no device, no active port, switched off), *misfit where there is an adapter all
 * the same; or another negative errno after a WARN. */
int nb_verbs_try(struct nb_context *ctx, struct nb_net **net, char *why, size_t cap, bool *misfit);

#endif
