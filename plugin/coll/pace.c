/* SPDX-License-Identifier: Apache-2.0 */
/* Whether this node's processor is what operations wait for; see pace.h. */
#include "coll/pace.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "coll/comm.h"

/* This processor is the limit where it works so much of the time, over so long. */
#define PACE_SHARE 0.75
#define PACE_AFTER_NS (2 * NB_NS_PER_S)

double nb_pace_share(const struct nb_coll_stats *s)
{
    return s->busy_ns ? (double)s->worked_ns / ((double)s->busy_ns * (s->workers ? s->workers : 1)) : 0;
}

void nb_pace_moved(struct nb_coll_comm *comm)
{
    comm->pace.moved_ns = nb_clock_ns(&comm->ctx->clock);
}

void nb_pace_busy(struct nb_coll_comm *comm)
{
    nb_pace_moved(comm);
    comm->pace.busy_since_ns = comm->pace.moved_ns;
}

void nb_pace_idle(struct nb_coll_comm *comm)
{
    struct nb_coll_stats *s = &comm->stats;
    char who[64] = "this processor";

    s->busy_ns += (uint64_t)(comm->pace.moved_ns - comm->pace.busy_since_ns);
    if (comm->pace.told || s->busy_ns < PACE_AFTER_NS || nb_pace_share(s) < PACE_SHARE)
        return;
    comm->pace.told = 1;
    if (s->workers)
        snprintf(who, sizeof(who), "%u codec threads (NIBBLE_HOST_THREADS)", s->workers);
    NB_INFO(NCCL_NET,
            "%s: codecs and copies keep %s busy for %.0f %% of the time that operations take "
            "(%.2f GB/s of "
            "values%s): that is the limit, not the links. What does not pay can be sent raw: NIBBLE_RS, "
            "NIBBLE_AR, NIBBLE_AG",
            comm->label, who, 100 * nb_pace_share(s), (double)s->worked_bytes / (double)s->worked_ns,
            s->workers > 1 ? " each" : "");
}
