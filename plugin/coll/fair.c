/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a node's peers share its link. A sum waits for every node's contribution, and an operation for its last
 * byte: it does not help a peer to get its bytes before the others get theirs, it hurts. Left to the network,
 * some connections run far ahead (they are older, or their receivers are less busy), and in the end the few
 * that are behind have the links to themselves while all the others are idle. So a peer gets nothing new
 * while it is more than a few milliseconds ahead of the one that is most behind. This is for transports that
 * let bytes pile up in the host (`early` in net/transport.h).
 *
 * The bookkeeping is that of start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): each ring counts
 * the bytes that its peer has had; a ring that has nothing to send counts as level with the last, so that it
 * neither saves up a claim nor holds up anybody. Here the order is not that of a scheduler of the link: it
 * only bounds the lead.
 *
 * Nobody waits for ever because of this: the last one itself is always allowed, and one that has not moved
 * for some time (its node is late, or it waits itself for what is held back) does not count until it moves.
 * Values that go straight to a reduce-scatter's owners are left out (`apart` in link.h). NCCL walks over the
 * blocks one after the other, so that the owners do not need them at the same time; while one owner gets its
 * block from all others at once, each of these has but a part of its link for it, and the rest is for the
 * owners behind. Held back, it would be idle (docs/scale.md).
 *
 * The counts of the two classes are independent, as their rings are (comm.h tells why these must be).
 */
#include "base/clock.h"
#include "coll/comm.h"

#define LEAD_MIN 131072u /* below this a ring would run empty between two looks */
#define LEAD_NS (4 * (int64_t)NB_NS_PER_MS)
#define STUCK_NS (20 * (int64_t)NB_NS_PER_MS)
#define STUCK_MOST_NS ((int64_t)NB_NS_PER_S) /* of a ring whose single messages take long */

/* When a ring that has something to send will count as stuck: it has not moved for four times what its last
 * message took. */
static int64_t stuck_ns(struct nb_tx *tx, int64_t now_ns)
{
    int64_t patience;

    if (tx->moved_ns == 0) { /* it was idle */
        tx->moved_ns = now_ns;
        tx->took_ns = 0;
        tx->seen = tx->had;
    } else if (tx->had != tx->seen) {
        tx->took_ns = now_ns - tx->moved_ns;
        tx->moved_ns = now_ns;
        tx->seen = tx->had;
    }
    patience = 4 * tx->took_ns;
    patience = patience < STUCK_NS ? STUCK_NS : patience > STUCK_MOST_NS ? STUCK_MOST_NS : patience;
    return tx->moved_ns + patience;
}

/* How far the last one gets in LEAD_NS. What it was stays while nothing moves, and over a pause. */
static void adapt_lead(struct nb_fair *f, uint64_t least, int64_t now_ns)
{
    int64_t took = now_ns - f->handshake_ns;

    if (f->handshake_ns && least >= f->noted && took < LEAD_NS)
        return;
    if (f->handshake_ns && least > f->noted)
        f->lead = (uint64_t)((double)(least - f->noted) * (double)LEAD_NS / (double)took);
    if (f->lead < LEAD_MIN)
        f->lead = LEAD_MIN;
    f->noted = least;
    f->handshake_ns = now_ns;
}

/* Nothing is to be sent: all begin level the next time. */
static void rest(struct nb_coll_comm *comm, struct nb_fair *f, enum nb_class cls)
{
    for (int i = 0; f->handshake_ns && i < comm->nneighbors; i++)
        comm->neighbors[i]->tx[cls].had = 0;
    f->bounded = 0;
    f->handshake_ns = 0;
}

void nb_fair_look(struct nb_coll_comm *comm, enum nb_class cls, int64_t now_ns)
{
    struct nb_fair *f = &comm->fair[cls];
    uint64_t least = UINT64_MAX;
    int busy = 0;

    if (!comm->net->early)
        return;
    f->until_ns = INT64_MAX;
    for (int i = 0; i < comm->nneighbors; i++) {
        struct nb_tx *tx = &comm->neighbors[i]->tx[cls];
        int64_t stuck;
        if (!nb_tx_is_fair(tx) || comm->neighbors[i]->gone) {
            tx->moved_ns = 0;
            continue;
        }
        busy++;
        stuck = stuck_ns(tx, now_ns);
        if (now_ns > stuck)
            continue;
        if (stuck < f->until_ns)
            f->until_ns = stuck;
        if (tx->had < least)
            least = tx->had;
    }
    if (busy == 0) {
        rest(comm, f, cls);
        return;
    }
    f->bounded = busy > 1 && least != UINT64_MAX;
    if (least == UINT64_MAX) /* all are stuck */
        return;
    for (int i = 0; i < comm->nneighbors; i++) {
        struct nb_tx *tx = &comm->neighbors[i]->tx[cls];
        if (tx->moved_ns == 0 && tx->had < least)
            tx->had = least;
    }
    adapt_lead(f, least, now_ns);
    f->most = least + f->lead;
}
