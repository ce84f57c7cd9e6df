/* SPDX-License-Identifier: Apache-2.0 */
/* Names and hints for what adapters report. */
#ifndef NIBBLE_NET_VERBS_TEXT_H
#define NIBBLE_NET_VERBS_TEXT_H

#include <infiniband/verbs.h>
#include <stdbool.h>

const char *nb_verbs_status_name(enum ibv_wc_status status);
/* What usually causes it and what to look at. */
const char *nb_verbs_status_hint(enum ibv_wc_status status);
/* The negative errno that stands for it. */
int nb_verbs_status_errno(enum ibv_wc_status status);
/* Is it this side's own doing? Else the peer may know more. */
bool nb_verbs_status_local(enum ibv_wc_status status);
const char *nb_verbs_event_name(enum ibv_event_type type);
const char *nb_verbs_link_name(int link_layer);

#endif
