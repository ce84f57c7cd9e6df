/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a node's peers share its link. A sum waits for every node's contribution, and an operation for its last byte: it
 * does not help a peer to get its bytes before the others get theirs, it hurts. Left to the network, some connections run
 * far ahead (they are older, or their receivers are less busy), and in the end the few that are behind have the links to
 * themselves while all the others are idle. So a peer gets nothing new while it is more than a few milliseconds ahead of
 * the one that is most behind.
 *
 * The bookkeeping is that of start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): each ring counts the bytes
 * that its peer has had; a ring that has nothing to send counts as level with the last, so that it neither saves up
 * a claim nor holds up anybody. Here the order is not that of a scheduler of the link: it only bounds the lead.
 *
 * Nobody may wait for ever because of this: a last one that has not moved for STUCK_NS (its node is late, or it waits
 * itself for what is held back) does not count until it moves. The three counts are per class, whose rings are
 * independent of each other (internal.h tells why they must be).
 */
#include "base/clock.h"
#include "coll/internal.h"

#define LEAD_MIN 131072u /* below this a ring would run empty between two looks */
#define LEAD_NS (4 * (int64_t)NB_NS_PER_MS)
#define STUCK_NS (20 * (int64_t)NB_NS_PER_MS)

void nb_fair_look(struct nb_coll_comm *comm, enum nb_class cls, int64_t now_ns)
{
    struct nb_fair *f = &comm->fair[cls];
    uint64_t least = UINT64_MAX;
    int busy = 0;

    for (int r = 0; r < comm->nranks; r++) {
        const struct nb_tx *tx = &comm->peer[r].tx[cls];
        if (r == comm->rank || tx->done == tx->queued)
            continue;
        busy++;
        if (tx->had < least)
            least = tx->had;
    }
    if (busy == 0) {
        f->busy = f->bounded = 0;
        return;
    }
    for (int r = 0; r < comm->nranks; r++) {
        struct nb_tx *tx = &comm->peer[r].tx[cls];
        if (r != comm->rank && tx->done == tx->queued && tx->had < least)
            tx->had = least;
    }
    if (least != f->least || f->busy == 0) {
        f->least = least;
        f->moved_ns = now_ns;
    }
    f->busy = busy;
    if (now_ns - f->noted_ns >= LEAD_NS) { /* how far the last one gets in that time, at least */
        f->lead = least > f->noted && now_ns - f->noted_ns < 2 * LEAD_NS ? least - f->noted : 0;
        if (f->lead < LEAD_MIN)
            f->lead = LEAD_MIN;
        f->noted = least;
        f->noted_ns = now_ns;
    }
    f->bounded = busy > 1 && now_ns - f->moved_ns <= STUCK_NS;
    f->most = least + f->lead;
}
