/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs transport as the choice of a transport sees it. */
#ifndef NIBBLE_NET_VERBS_PROBE_H
#define NIBBLE_NET_VERBS_PROBE_H

#include <stdbool.h>
#include <stddef.h>

/* init of nb_net_verbs, without a word where there is nothing to use: 0, and fini is owed; -ENODEV with one
 * line in `why` (no library, no device, no active port, switched off), *misfit when there is a device all the
 * same; or another negative errno after a WARN. */
int nb_verbs_try(char *why, size_t cap, bool *misfit);

#endif
