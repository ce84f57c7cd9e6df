/* SPDX-License-Identifier: Apache-2.0 */
/* The node that a late window waits for in the end. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/clock.h"
#include "coll/flow/flow.h"
#include "coll/schedule/schedule.h"
#include "coll/watch/internal.h"

/* ---- late peers -------------------------------------------------------------------------------------- */

void nb_late_names(const struct nb_coll_comm *comm, char *buf, size_t cap)
{
    size_t at = 0;

    buf[0] = 0;
    for (int i = 0; i < comm->nneighbors && at + 1 < cap; i++)
        if (nb_window_misses(comm, comm->neighbors[i]))
            at += (size_t)snprintf(buf + at, cap - at, "%s%s", at ? ", " : "", comm->neighbors[i]->name);
}

/* ---- chains of waits --------------------------------------------------------------------------------- */

/* Return true when this node lacks something of the peer: data, a confirmation that other nodes wait for, or,
 * to close, an acknowledgement. */
static bool misses(const struct nb_coll_comm *comm, const struct nb_peer *peer)
{
    if (comm->state == NB_COMM_CLOSING && !comm->drained &&
        (nb_peer_has_not_taken(peer) ||
         (!peer->life.fin && peer->life.confirmed < nb_refs_awaited(comm->refs))))
        return true;
    return (comm->oldest < comm->begun && nb_window_misses(comm, peer)) || nb_confirm_misses(comm, peer);
}

/* Return true for the next best reason of an open window: the peer has not taken its messages. */
static bool has_to_take(const struct nb_coll_comm *comm, const struct nb_peer *peer)
{
    return comm->oldest < comm->begun && nb_peer_has_not_taken(peer);
}

typedef bool is_waited_for(const struct nb_coll_comm *comm, const struct nb_peer *peer);

/* Return the test for peers that this node waits for, or NULL when it waits for no peer. */
static is_waited_for *waits_for(const struct nb_coll_comm *comm)
{
    static is_waited_for *const reasons[] = {misses, has_to_take};

    if (nb_tasks_work(comm))
        return NULL;
    for (unsigned k = 0; k < sizeof(reasons) / sizeof(reasons[0]); k++)
        for (int i = 0; i < comm->nneighbors; i++)
            if (!comm->neighbors[i]->gone && reasons[k](comm, comm->neighbors[i]))
                return reasons[k];
    return NULL;
}

/* Return true when the peer waits for no node, and reported that after this node began to wait. */
static bool says_none(const struct nb_coll_comm *comm, const struct nb_peer *peer)
{
    return comm->watch->reported[peer->rank].chain.kind == NB_CHAIN_NONE &&
           comm->watch->reported[peer->rank].at_ns > comm->watch->chain.since_ns;
}

/* Follow the chain of waits from `peer`, for which this node waits. */
static struct nb_chain follow(const struct nb_coll_comm *comm, const struct nb_peer *peer, int64_t now_ns)
{
    const struct nb_chain_report *told = &comm->watch->reported[peer->rank];
    struct nb_chain chain = {.kind = NB_CHAIN_LOST, .end = -1, .via = peer};
    const struct nb_chain itself = {.kind = NB_CHAIN_END, .end = peer->rank, .steps = 1, .via = peer};

    if (now_ns - peer->life.received_ns > nb_control_overdue_ns(comm))
        return itself; /* its last report is old */
    switch (told->chain.kind) {
    case NB_CHAIN_NONE:
        if (says_none(comm, peer))
            return itself;
        break;
    case NB_CHAIN_MUTUAL:
    case NB_CHAIN_END:
        if (told->chain.end == comm->rank && told->chain.steps == 1) {
            chain = itself;
            chain.kind = NB_CHAIN_MUTUAL;
        } else if (told->chain.end != comm->rank && told->chain.steps < NB_CHAIN_STEPS) {
            chain = told->chain;
            chain.steps++;
            chain.via = peer;
        }
        break;
    default: break;
    }
    return chain;
}

static bool is_better(const struct nb_chain *a, const struct nb_chain *b)
{
    return a->kind != b->kind ? a->kind > b->kind : a->steps < b->steps;
}

void nb_chain_update(struct nb_coll_comm *comm, int64_t now_ns)
{
    struct nb_chain_life *life = &comm->watch->chain;
    is_waited_for *const waited_for = waits_for(comm);

    life->found = (struct nb_chain){.kind = NB_CHAIN_NONE, .end = -1};
    if (!waited_for) {
        life->since_ns = 0;
        return;
    }
    if (life->since_ns < comm->moved_ns || !life->since_ns) /* a window has moved meanwhile */
        life->since_ns = now_ns;
    for (int i = 0; i < comm->nneighbors; i++) {
        const struct nb_peer *peer = comm->neighbors[i];
        struct nb_chain chain;
        if (peer->gone || !waited_for(comm, peer))
            continue;
        chain = follow(comm, peer, now_ns);
        if (is_better(&chain, &life->found))
            life->found = chain;
    }
}

bool nb_chain_ends_at(const struct nb_coll_comm *comm, const struct nb_peer *peer)
{
    is_waited_for *const waited_for = waits_for(comm);

    return waited_for && waited_for(comm, peer) && says_none(comm, peer);
}

int nb_chain_received(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *alive)
{
    const bool leads = alive->c == NB_CHAIN_MUTUAL || alive->c == NB_CHAIN_END;

    if (alive->c >= NB_CHAIN_COUNT ||
        (leads && (alive->wait.end >= (uint32_t)comm->nnodes || alive->wait.end == (uint32_t)peer->rank ||
                   alive->wait.steps == 0 || alive->wait.steps > NB_CHAIN_STEPS)))
        return nb_comm_error(comm, -EPROTO, "%s has sent a heartbeat that it waits (%u) for node %u of %d",
                             peer->name, alive->c, alive->wait.end, comm->nnodes);
    comm->watch->reported[peer->rank].chain =
        (struct nb_chain){.kind = (enum nb_chain_kind)alive->c, .end = -1};
    if (leads) {
        comm->watch->reported[peer->rank].chain.end = (int)alive->wait.end;
        comm->watch->reported[peer->rank].chain.steps = alive->wait.steps;
    }
    comm->watch->reported[peer->rank].at_ns = nb_clock_ns(&comm->ctx->clock);
    return 0;
}
