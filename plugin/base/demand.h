/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the user demands (NIBBLE_REQUIRE): where it cannot be had, the job stops instead of going on
 * uncompressed.
 *
 * NCCL goes on without CollNet whatever CollNet's half answers, and with its own sockets where the net half's
 * init fails (unless NCCL_NET names a plugin; ncclNetInit and ncclCollNetInit in its src/plugin/net.cc). So
 * everything is initialized, and from the first unmet demand on the calls that make connections or move data
 * fail.
 */
#ifndef NIBBLE_BASE_DEMAND_H
#define NIBBLE_BASE_DEMAND_H

#include <stdbool.h>
#include <stddef.h>

struct nb_context;
struct nb_params;

enum nb_demand {
    NB_DEMAND_SETTINGS, /* settings are good */
    NB_DEMAND_COLLNET, /* communicators get CollNet that no setting excludes and that have something to gain */
    NB_DEMAND_ALL_REDUCE, /* all-reduces can be compressed: NCCL's profiler events come here */
    NB_DEMAND_TUNER,      /* NCCL asks this plugin's tuner */
    NB_DEMAND_COUNT
};

/* Whether the setting's text is a list of demands, or "none". 0, or -EINVAL with a message in `error`. */
int nb_demand_check(const char *text, char *error, size_t cap);

bool nb_demands(const struct nb_params *params, enum nb_demand what);

/* `what` cannot be had, because of `why`. If the user demands it: the first such call logs that, in a line
 * that is shown without NCCL_DEBUG, too, and nb_demand_unmet is true from then on. Any thread. */
void nb_demand_fails(struct nb_context *ctx, enum nb_demand what, const char *why);

/* The job is to stop. Any thread; cheap. */
bool nb_demand_unmet(const struct nb_context *ctx);

#endif
