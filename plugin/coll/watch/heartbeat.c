/* SPDX-License-Identifier: Apache-2.0 */
/* Heartbeats to all neighbors, and checks of silence and lateness. */
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "coll/decide/decide.h"
#include "coll/flow/flow.h"
#include "coll/watch/internal.h"

#define TICK_NS (50 * (int64_t)NB_NS_PER_MS)

int nb_watch_create(struct nb_coll_comm *comm)
{
    comm->watch = calloc(1, sizeof(*comm->watch) + (size_t)comm->nnodes * sizeof(comm->watch->reported[0]));
    return comm->watch ? 0 : -ENOMEM;
}

void nb_watch_destroy(struct nb_coll_comm *comm)
{
    free(comm->watch);
}

uint64_t nb_watch_late_reports(const struct nb_coll_comm *comm)
{
    return atomic_load_explicit(&comm->watch->late_reports, memory_order_relaxed);
}

void nb_watch_begin(struct nb_coll_comm *comm)
{
    comm->watch->tick_ns = nb_clock_ns(&comm->ctx->clock);
    for (int i = 0; i < comm->nneighbors; i++) {
        comm->neighbors[i]->life.received_ns = comm->watch->tick_ns;
        comm->neighbors[i]->life.quiet = -1;
    }
}

/* Return NIBBLE_PEER_TIMEOUT / `parts`, a second at most. */
static int64_t part_of_timeout(const struct nb_coll_comm *comm, int parts)
{
    const int64_t part = comm->ctx->params->peer_timeout * (int64_t)NB_NS_PER_S / parts;

    return part < (int64_t)NB_NS_PER_S ? part : (int64_t)NB_NS_PER_S;
}

int64_t nb_control_alive_ns(const struct nb_coll_comm *comm)
{
    return part_of_timeout(comm, 8);
}

int64_t nb_control_overdue_ns(const struct nb_coll_comm *comm)
{
    return nb_control_alive_ns(comm) * 3 / 2;
}

int64_t nb_control_doubt_ns(const struct nb_coll_comm *comm)
{
    return part_of_timeout(comm, 4);
}

int nb_control_alive(struct nb_coll_comm *comm, struct nb_peer *peer, int64_t t_ns)
{
    const struct nb_peer *quiet = comm->watch->quiet;
    const struct nb_chain *chain = &comm->watch->chain.found;
    struct nb_ctl alive = {
        .kind = NB_CTL_ALIVE,
        .a = quiet ? (uint64_t)quiet->rank + 1 : 0,
        .b = quiet ? (uint64_t)((t_ns - quiet->life.received_ns) / (int64_t)NB_NS_PER_MS) : 0,
        .c = (uint32_t)chain->kind,
    };

    if (t_ns - peer->life.sent_ns < nb_control_alive_ns(comm))
        return 0;
    peer->life.sent_ns = t_ns;
    if (chain->steps)
        alive.wait = (struct nb_ctl_wait){.end = (uint32_t)chain->end, .steps = chain->steps};
    return nb_control(comm, peer, &alive);
}

/* Find the neighbor that has been silent for longest, with a heartbeat overdue. Heartbeats report it to nodes
 * that may wait for nodes that wait for it. */
static const struct nb_peer *find_quiet(const struct nb_coll_comm *comm, int64_t t)
{
    int64_t longest = nb_control_overdue_ns(comm);
    const struct nb_peer *found = NULL;

    for (int i = 0; i < comm->nneighbors; i++) {
        const struct nb_peer *peer = comm->neighbors[i];
        const int64_t silent = t - peer->life.received_ns;
        if (peer->gone || peer->life.fin_acked || silent <= longest)
            continue;
        longest = silent;
        found = peer;
    }
    return found;
}

/* While an operation waits, ask for the state of the connections on which all is sent. The system may have
 * given up one whose bytes the operation needs, and this node need not send on it again. */
static int check_sent(struct nb_coll_comm *comm, int64_t t)
{
    if (comm->oldest == comm->begun || t - comm->watch->checked_ns < nb_control_alive_ns(comm))
        return 0;
    comm->watch->checked_ns = t;
    for (int i = 0; i < comm->nneighbors; i++)
        for (int c = 0; c < NB_CLASS_CONTROL; c++) {
            const int ret = nb_tx_check(comm, comm->neighbors[i], &comm->neighbors[i]->tx[c]);
            if (ret)
                return ret;
        }
    return 0;
}

int nb_watch_tick(struct nb_coll_comm *comm, int64_t t)
{
    const struct nb_params *p = comm->ctx->params;
    int64_t limit = p->peer_timeout * (int64_t)NB_NS_PER_S;
    int64_t asleep = t - comm->watch->tick_ns;

    if (asleep < TICK_NS)
        return 0;
    comm->watch->tick_ns = t;
    nb_arrivals_rescan(comm);
    if (nb_kill_switch_tick(comm))
        return -1;
    comm->watch->quiet = asleep > limit / 2 ? NULL : find_quiet(comm, t);
    nb_chain_update(comm, t);
    for (int i = 0; i < comm->nneighbors; i++) {
        struct nb_peer *peer = comm->neighbors[i];
        if (peer->gone)
            continue;
        if (asleep > limit / 2) /* this process was stopped and could not receive */
            peer->life.received_ns = t;
        if (nb_control_alive(comm, peer, t))
            return -1;
        /* After the last message of a peer has arrived, it may be silent. */
        if (t - peer->life.received_ns > limit && !peer->life.fin_acked)
            return nb_comm_error(comm, -ETIMEDOUT, "no sign of life from %s for %lld s (NIBBLE_PEER_TIMEOUT)",
                                 peer->name, (long long)p->peer_timeout);
    }
    if (check_sent(comm, t))
        return -1;
    if (comm->oldest < comm->begun) {
        const struct nb_coll_req *win = nb_window(comm, comm->oldest);
        int64_t waited = t - comm->moved_ns;
        /* A peer that has sent FIN sends no more once all its messages have arrived. If it has lost power
         * since, the end of its connections may never show. */
        for (int i = 0; i < comm->nneighbors; i++)
            if ((comm->neighbors[i]->gone || comm->neighbors[i]->life.fin_acked) &&
                nb_window_misses(comm, comm->neighbors[i]))
                return nb_comm_error(
                    comm, -ECONNRESET, "%s has closed its communicator but %s %llu waits for it",
                    comm->neighbors[i]->name, nb_func_name(win->op->func), (unsigned long long)win->op->opno);
        if (waited > p->late_report * (int64_t)NB_NS_PER_S &&
            t - comm->watch->late_ns > p->late_report * (int64_t)NB_NS_PER_S) {
            const struct nb_chain *chain = &comm->watch->chain.found;
            char who[400];
            comm->watch->late_ns = t;
            atomic_fetch_add_explicit(&comm->watch->late_reports, 1, memory_order_relaxed);
            nb_late_names(comm, who, sizeof(who));
            NB_INFO(NCCL_NET,
                    "%s: %s %llu, window of %llu bytes at %llu, has waited %lld s for %s (alive, late%s%s)",
                    comm->label, nb_func_name(win->op->func), (unsigned long long)win->op->opno,
                    (unsigned long long)win->bytes, (unsigned long long)win->off,
                    (long long)(waited / (int64_t)NB_NS_PER_S), who[0] ? who : "peers",
                    chain->steps > 1 ? "; held up by " : "",
                    chain->steps > 1 ? comm->peer[chain->end].name : "");
        }
    }
    return 0;
}
