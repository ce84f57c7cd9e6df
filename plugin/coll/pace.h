/* SPDX-License-Identifier: Apache-2.0 */
/* Whether this node's processor is what operations wait for. For the engine thread. */
#ifndef NIBBLE_COLL_PACE_H
#define NIBBLE_COLL_PACE_H

#include <stdint.h>

struct nb_coll_comm;
struct nb_coll_stats;

struct nb_pace {
    int64_t moved_ns;      /* when a window last got on */
    int64_t busy_since_ns; /* while some window is unfinished: since when */
    int told;              /* it was logged that this processor is the limit */
};

/* A window got on. busy: the only unfinished one begins, and got on. idle: none is unfinished any more; log
 * it, once, if this node's processor is what they keep waiting for. */
void nb_pace_moved(struct nb_coll_comm *comm);
void nb_pace_busy(struct nb_coll_comm *comm);
void nb_pace_idle(struct nb_coll_comm *comm);
/* Share of the busy time in which this processor, or its codec threads, work rather than the links; 0 where
 * nothing was done. */
double nb_pace_share(const struct nb_coll_stats *stats);

#endif
