/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of a communicator's counters. */
#include <string.h>

#include "base/clock.h"
#include "coll/comm/comm.h"
#include "coll/flow/flow.h"
#include "coll/report/internal.h"
#include "coll/report/report.h"
#include "coll/watch/watch.h"
#include "policy/records/records.h"

static void take_stats(struct nb_coll_stats *stats, const struct nb_coll_comm *comm)
{
    *stats = comm->stats;
    if (comm->oldest < comm->begun) /* add the time of open windows */
        stats->busy_ns += (uint64_t)(comm->moved_ns - comm->busy_since_ns);
    stats->references = nb_refs_count(comm->refs);
    stats->reference_bytes = nb_refs_bytes(comm->refs);
    stats->unanswered = (uint64_t)nb_refs_unconfirmed(comm->refs);
    stats->feedback_bytes = nb_feedback_bytes(comm->decisions->feedback);
}

void nb_coll_get_stats(struct nb_coll_comm *comm, struct nb_coll_stats *stats)
{
    nb_turn_lock_take(&comm->progress_lock);
    take_stats(stats, comm);
    nb_turn_lock_give(&comm->progress_lock);
}

static void take_signatures(struct nb_figures *f, const struct nb_coll_comm *comm)
{
    const struct nb_sig_report *r;

    for (f->nsignatures = 0; f->nsignatures < NB_SIG_REPORTS; f->nsignatures++) {
        r = nb_decisions_report(comm->decisions, f->nsignatures);
        if (!r)
            break;
        f->signature[f->nsignatures] = *r;
    }
}

static void take_waits(struct nb_figures *f, const struct nb_coll_comm *comm)
{
    const int64_t now = nb_clock_ns(&comm->ctx->clock);
    const bool open = comm->oldest < comm->begun;

    f->open_windows = atomic_load(&comm->submitted) - atomic_load(&comm->finished);
    f->late_reports = nb_watch_late_reports(comm);
    f->waited_ns = open ? now - comm->moved_ns : 0;
    f->silence_ns = 0;
    f->nlate = 0;
    for (int i = 0; i < comm->nneighbors; i++) {
        const struct nb_peer *peer = comm->neighbors[i];

        if (!peer->gone && now - peer->life.received_ns > f->silence_ns)
            f->silence_ns = now - peer->life.received_ns;
        if (!open || !nb_window_misses(comm, peer))
            continue;
        if (f->nlate < NB_FIGURES_LATE)
            f->late[f->nlate] = peer->rank;
        f->nlate++;
    }
}

void nb_figures_take(struct nb_figures *f, const struct nb_coll_comm *comm)
{
    memcpy(f->label, comm->label, sizeof(f->label));
    f->comm_id = comm->comm_id;
    f->info = comm->info;
    f->rank = comm->rank;
    f->nnodes = comm->nnodes;
    f->dev = comm->dev;
    f->gpu = comm->gpu;
    f->device = comm->device->ops->name;
    f->shadow = comm->shadow;
    f->profiled = nb_queue_is_profiled(comm->queue);
    take_stats(&f->stats, comm);
    memcpy(f->reasons, comm->decisions->reasons, sizeof(f->reasons));
    take_signatures(f, comm);
    f->nresiduals = 0;
    f->error = nb_comm_failed(comm);
    f->off = nb_decisions_off(comm->decisions);
    take_waits(f, comm);
}

/* Keep the nodes with the largest numbers, the largest first. */
static void keep_largest(struct nb_figures *f, int rank, uint32_t times)
{
    unsigned at = f->nwaited < NB_FIGURES_LATE ? f->nwaited++ : NB_FIGURES_LATE;

    for (; at > 0 && f->waited[at - 1].times < times; at--)
        if (at < NB_FIGURES_LATE)
            f->waited[at] = f->waited[at - 1];
    if (at < NB_FIGURES_LATE) {
        f->waited[at].rank = rank;
        f->waited[at].times = times;
    }
}

void nb_figures_note_wait(struct nb_figures *f, const struct nb_coll_comm *comm, uint32_t *times)
{
    const int few = comm->nneighbors > 1 ? comm->nneighbors / 2 : 1;
    int missing = 0;

    if (comm->oldest >= comm->begun)
        return;
    for (int i = 0; i < comm->nneighbors; i++)
        missing += nb_window_misses(comm, comm->neighbors[i]) ? 1 : 0;
    f->waits++;
    f->nwaited = 0;
    for (int i = 0; i < comm->nneighbors; i++) {
        const struct nb_peer *peer = comm->neighbors[i];

        times[peer->rank] += missing <= few && nb_window_misses(comm, peer) ? 1 : 0;
        if (times[peer->rank])
            keep_largest(f, peer->rank, times[peer->rank]);
    }
}

void nb_figures_take_residuals(struct nb_figures *f, const struct nb_coll_comm *comm)
{
    struct nb_ef_report r;

    for (f->nresiduals = 0; nb_feedback_report(comm->decisions->feedback, f->nresiduals, &r); f->nresiduals++)
        if (f->nresiduals < NB_FIGURES_RESIDUALS)
            f->residual[f->nresiduals] = r;
}

void nb_figures_ask_transport(struct nb_figures *f, const struct nb_coll_comm *comm)
{
    f->retransmits = comm->net->resent ? 0 : UINT64_MAX;
    for (int i = 0; i < comm->nneighbors && comm->net->resent; i++)
        for (int c = 0; c < NB_CLASS_COUNT; c++)
            f->retransmits += comm->net->resent(comm->neighbors[i]->tx[c].conn);
}

double nb_figures_nmse(const struct nb_encode_stats *e)
{
    return e->signal2 > 0 ? e->noise2 / e->signal2 : 0.0;
}

double nb_figures_carried(const struct nb_encode_stats *e)
{
    return e->signal2 > 0 ? e->carried2 / e->signal2 : 0.0;
}

double nb_figures_ratio(uint64_t bytes, uint64_t wire_bytes)
{
    return wire_bytes ? (double)bytes / (double)wire_bytes : 0.0;
}
