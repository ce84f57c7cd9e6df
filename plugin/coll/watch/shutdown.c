/* SPDX-License-Identifier: Apache-2.0 */
/* The graceful end of a communicator. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "coll/flow/flow.h"
#include "coll/watch/internal.h"

#define LAST_WORDS_NS ((int64_t)NB_NS_PER_S) /* reserve of the time limit, at most, to send a reason */

static bool has_not_taken(const struct nb_coll_comm *comm, const struct nb_peer *peer)
{
    (void)comm;
    return nb_peer_has_not_taken(peer);
}

static bool holds_up(const struct nb_coll_comm *comm, const struct nb_peer *peer)
{
    return has_not_taken(comm, peer) || nb_peer_may_ask(comm, peer);
}

/* Return true when the peer holds up the end and is the cause itself: it has been silent for three of its
 * heartbeats, or for as many as fit into a short limit. */
static bool holds_up_silently(const struct nb_coll_comm *comm, const struct nb_peer *peer)
{
    const int64_t beat = nb_control_alive_ns(comm),
                  limit = comm->ctx->params->close_timeout * (int64_t)NB_NS_PER_S;
    int64_t silence = 3 * beat;

    if (silence > limit / 4 * 3)
        silence = limit / 4 * 3 > beat * 3 / 2 ? limit / 4 * 3 : beat * 3 / 2;
    return holds_up(comm, peer) && nb_clock_ns(&comm->ctx->clock) - peer->life.received_ns > silence;
}

static bool has_not_confirmed(const struct nb_coll_comm *comm, const struct nb_peer *peer)
{
    (void)comm;
    return !peer->life.our_fin_acked || (peer->life.fin && !peer->life.fin_acked);
}

/* Return true while the FIN with the peer is incomplete. This node's acknowledgements must leave, too, before
 * the connections close. */
static bool has_not_parted(const struct nb_coll_comm *comm, const struct nb_peer *peer)
{
    return has_not_confirmed(comm, peer) ||
           peer->tx[NB_CLASS_CONTROL].done < peer->tx[NB_CLASS_CONTROL].queued;
}

typedef bool is_waited_for(const struct nb_coll_comm *comm, const struct nb_peer *peer);

/* Count the peers for which `is` is true, and list them in `who` unless that is NULL. */
static int count(const struct nb_coll_comm *comm, is_waited_for *is, struct nb_name_list *who)
{
    int n = 0;

    for (int i = 0; i < comm->nneighbors; i++) {
        const struct nb_peer *peer = comm->neighbors[i];
        if (peer->gone || !is(comm, peer))
            continue;
        n++;
        if (who)
            nb_name_list_add(who, peer);
    }
    if (who)
        nb_name_list_end(who);
    return n;
}

static void send_fin(struct nb_coll_comm *comm)
{
    comm->drained = 1;
    for (int i = 0; i < comm->nneighbors; i++) {
        struct nb_peer *peer = comm->neighbors[i];
        const struct nb_ctl fin = {.kind = NB_CTL_FIN,
                                   .a = peer->tx[NB_CLASS_CONTRIB].queued,
                                   .b = peer->tx[NB_CLASS_RESULT].queued};
        if (!peer->gone)
            nb_control(comm, peer, &fin);
    }
}

/* Return the peer that holds up the end and has reported the longest silence of a neighbor, or NULL. */
static const struct nb_peer *find_held_up(const struct nb_coll_comm *comm)
{
    const struct nb_peer *found = NULL;

    for (int i = 0; i < comm->nneighbors; i++) {
        const struct nb_peer *peer = comm->neighbors[i];
        if (!peer->gone && holds_up(comm, peer) && peer->life.quiet >= 0 && peer->life.quiet != comm->rank &&
            (!found || peer->life.quiet_ms > found->life.quiet_ms))
            found = peer;
    }
    return found;
}

/* Name the end of the waits: all peers that hold up the end live and report their waits. Return true when the
 * communicator has failed with that. Otherwise `who` lists the culprits, if they are known. */
static bool name_end(struct nb_coll_comm *comm, struct nb_name_list *who)
{
    const struct nb_chain *chain = &comm->watch->chain.found;

    nb_chain_update(comm, nb_clock_ns(&comm->ctx->clock));
    if (chain->steps > 1) {
        nb_comm_error(comm, -ETIMEDOUT,
                      "closing although node %d, held up by %s, has not taken all that it is owed "
                      "(NIBBLE_CLOSE_TIMEOUT)",
                      chain->via->rank, comm->peer[chain->end].name);
        return true;
    }
    if (chain->kind == NB_CHAIN_END) {
        count(comm, nb_chain_ends_at, who);
    } else if (chain->kind == NB_CHAIN_MUTUAL) {
        nb_name_list_add(who, chain->via);
        nb_name_list_end(who);
    }
    return false;
}

/* Fail: time is nearly up, and some peers do not know that this node leaves. */
static void fail(struct nb_coll_comm *comm)
{
    const struct nb_peer *held_up = NULL;
    struct nb_name_list who = {.first = -1};
    char why[80] = "";

    if (!count(comm, holds_up_silently, &who)) {
        held_up = find_held_up(comm);
        if (!held_up && name_end(comm, &who))
            return;
        if (who.first < 0 && !count(comm, has_not_taken, &who))
            count(comm, nb_peer_may_ask, &who);
    }
    if (held_up)
        snprintf(why, sizeof(why), "node %d has received no heartbeat of node %d for %.1f s and ",
                 held_up->rank, held_up->life.quiet, 1e-3 * (double)held_up->life.quiet_ms);
    nb_comm_error(comm, -ETIMEDOUT,
                  "closing although %s%s has not taken all that it is owed (NIBBLE_CLOSE_TIMEOUT)", why,
                  who.text);
}

/* Leave: time is up, and all peers know it. A heartbeat for a peer that has acknowledged may be in flight. */
static void leave(struct nb_coll_comm *comm)
{
    struct nb_name_list who = {.first = -1};

    if (!count(comm, has_not_confirmed, &who))
        count(comm, has_not_parted, &who);
    NB_WARN("%s: closing although %s has not confirmed it (NIBBLE_CLOSE_TIMEOUT)", comm->label, who.text);
    comm->state = NB_COMM_CLOSED;
}

void nb_shutdown_begin(struct nb_coll_comm *comm)
{
    comm->watch->close_deadline_ns =
        nb_clock_ns(&comm->ctx->clock) + comm->ctx->params->close_timeout * (int64_t)NB_NS_PER_S;
}

void nb_shutdown_hurry(struct nb_coll_comm *comm)
{
    comm->watch->hurries = true;
}

void nb_shutdown_progress(struct nb_coll_comm *comm, int64_t now_ns)
{
    const int64_t limit = comm->ctx->params->close_timeout * (int64_t)NB_NS_PER_S;
    int64_t words = limit / 8 < LAST_WORDS_NS ? limit / 8 : LAST_WORDS_NS;

    if (!count(comm, holds_up_silently, NULL))
        words /= 2; /* another node may know the cause and fails first */
    if (!comm->drained && !count(comm, has_not_taken, NULL) && !count(comm, nb_peer_may_ask, NULL))
        send_fin(comm);
    if (comm->drained && !count(comm, has_not_parted, NULL))
        comm->state = NB_COMM_CLOSED;
    else if (!comm->drained && now_ns > comm->watch->close_deadline_ns - words)
        fail(comm);
    else if (now_ns > comm->watch->close_deadline_ns)
        leave(comm);
}
