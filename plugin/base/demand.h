/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The user's demands (NIBBLE_REQUIRE): where one of them cannot be met, the job stops instead of continuing
 * uncompressed.
 *
 * NCCL continues without CollNet whatever CollNet's half answers. It continues with its own sockets where the
 * net half's init fails, unless NCCL_NET names a plugin (ncclNetInit and ncclCollNetInit in its
 * src/plugin/net.cc). nibble therefore initializes everything. From the first unmet demand on, the calls that
 * make connections or move data fail.
 */
#ifndef NIBBLE_BASE_DEMAND_H
#define NIBBLE_BASE_DEMAND_H

#include <stdbool.h>
#include <stddef.h>

struct nb_context;
struct nb_params;

enum nb_demand {
    NB_DEMAND_SETTINGS,   /* all settings are valid */
    NB_DEMAND_COLLNET,    /* a communicator gets CollNet if it has something to gain and no setting excludes
                          it */
    NB_DEMAND_ALL_REDUCE, /* all-reduces can be compressed: nibble gets NCCL's profiler events */
    NB_DEMAND_TUNER,      /* NCCL asks this plugin's tuner */
    NB_DEMAND_WINDOW,     /* NCCL_BUFFSIZE suffices for the nominal rate and round trip */
    NB_DEMAND_COUNT
};

/* Check that the setting's text is a list of demands, or "none". Return 0, or -EINVAL with a message in
 * `error`. */
int nb_demand_check(const char *text, char *error, size_t cap);

bool nb_demands(const struct nb_params *params, enum nb_demand what);

/* Report that `what` cannot be met, because of `why`. If the user demands it, the first such call logs that,
 * in a line that is shown even without NCCL_DEBUG, and nb_demand_unmet returns true from then on. Any
 * thread. */
void nb_demand_fails(struct nb_context *ctx, enum nb_demand what, const char *why);

/* Return whether the job must stop. Any thread. Cheap. */
bool nb_demand_unmet(const struct nb_context *ctx);

#endif
