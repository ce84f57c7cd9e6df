/* SPDX-License-Identifier: Apache-2.0 */
/* The state of open windows, and its text for hang reports. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/version.h"
#include "coll/comm/comm.h"
#include "coll/flow/flow.h"
#include "coll/report/internal.h"
#include "coll/report/report.h"
#include "coll/watch/watch.h"

struct nb_waits *nb_waits_new(const struct nb_coll_comm *comm)
{
    struct nb_waits *w = calloc(1, sizeof(*w) + (size_t)comm->nneighbors * sizeof(w->peer[0]));

    if (w)
        w->npeers = comm->nneighbors;
    return w;
}

struct nb_waits *nb_waits_copy(const struct nb_waits *waits)
{
    const size_t bytes = waits ? sizeof(*waits) + (size_t)waits->npeers * sizeof(waits->peer[0]) : 0;
    struct nb_waits *copy = waits ? malloc(bytes) : NULL;

    return copy ? memcpy(copy, waits, bytes) : NULL;
}

void nb_waits_glance(struct nb_waits *w, const struct nb_coll_comm *comm)
{
    w->comm_id = comm->comm_id;
    w->token = comm->token;
    w->rank = comm->rank;
    w->nnodes = comm->nnodes;
    memcpy(w->name, comm->info.name, sizeof(w->name));
    w->submitted = atomic_load(&comm->submitted);
    w->finished = atomic_load(&comm->finished);
    w->seen = false;
    for (int i = 0; i < w->npeers; i++) {
        w->peer[i].rank = comm->neighbors[i]->rank;
        memcpy(w->peer[i].name, comm->neighbors[i]->name, sizeof(w->peer[i].name));
    }
}

static void take_peer(struct nb_waits_peer *p, const struct nb_coll_comm *comm, const struct nb_peer *peer,
                      int64_t now)
{
    p->gone = peer->gone;
    p->missing = comm->oldest < comm->begun && nb_window_misses(comm, peer);
    p->silent_ns = now - peer->life.received_ns;
    for (int c = 0; c < NB_CLASS_COUNT; c++) {
        p->ring[c].queued = peer->tx[c].queued;
        p->ring[c].sent = peer->tx[c].sent;
        p->ring[c].done = peer->tx[c].done;
        p->ring[c].posted = peer->rx[c].posted;
        p->ring[c].arrived = peer->rx[c].arrived;
        p->ring[c].taken = peer->rx[c].taken;
    }
}

void nb_waits_take(struct nb_waits *w, const struct nb_coll_comm *comm)
{
    const int64_t now = nb_clock_ns(&comm->ctx->clock);

    nb_waits_glance(w, comm);
    w->seen = true;
    w->begun = comm->begun;
    w->oldest = comm->oldest;
    w->next_op = comm->begun ? nb_window(comm, comm->begun - 1)->op->opno + 1 : 0;
    w->error = nb_comm_failed(comm);
    if (w->error)
        memcpy(w->cause, comm->failure.text, sizeof(w->cause));
    w->closing = comm->state != NB_COMM_RUNNING;
    if (comm->oldest < comm->begun) {
        const struct nb_coll_req *win = nb_window(comm, comm->oldest);

        w->func = win->op->func;
        w->opno = win->op->opno;
        w->bytes = win->bytes;
        w->off = win->off;
        w->undelivered = win->rx_left;
        w->unsent = win->tx_left;
        w->working = win->tasks_in_flight;
        w->waited_ns = now - comm->moved_ns;
    }
    for (int i = 0; i < w->npeers; i++)
        take_peer(&w->peer[i], comm, comm->neighbors[i], now);
}

/* ---- text -------------------------------------------------------------------------------------------- */

/* Write ` KEY="TEXT"`. A character that would end the text or the line becomes a blank. */
static void put_text(FILE *out, const char *key, const char *text)
{
    fprintf(out, " %s=\"", key);
    for (const char *p = text; *p; p++)
        fputc(*p == '"' || (unsigned char)*p < ' ' ? ' ' : *p, out);
    fputc('"', out);
}

static const char *state_of(const struct nb_waits *w)
{
    if (!w->seen)
        return "locked";
    return w->error ? "failed" : w->closing ? "closing" : "running";
}

static void put_peer(FILE *out, const struct nb_waits_peer *p)
{
    static const char *const class_name[NB_CLASS_COUNT] = {"contrib", "result", "control"};

    fprintf(out, "peer node=%d missing=%s gone=%s silent=%.3f", p->rank, p->missing ? "yes" : "no",
            p->gone ? "yes" : "no", 1e-9 * (double)p->silent_ns);
    for (int c = 0; c < NB_CLASS_COUNT; c++)
        fprintf(out, " %s_out=%" PRIu64 "/%" PRIu64 "/%" PRIu64 " %s_in=%" PRIu64 "/%" PRIu64 "/%" PRIu64,
                class_name[c], p->ring[c].queued, p->ring[c].sent, p->ring[c].done, class_name[c],
                p->ring[c].posted, p->ring[c].arrived, p->ring[c].taken);
    put_text(out, "name", p->name);
    fputc('\n', out);
}

static void put_comm(FILE *out, const struct nb_waits *w)
{
    fprintf(out, "comm id=0x%" PRIx64 " group=%08" PRIx32 " node=%d of=%d state=%s", w->comm_id, w->token,
            w->rank, w->nnodes, state_of(w));
    fprintf(out, " submitted=%" PRIu64 " finished=%" PRIu64, w->submitted, w->finished);
    if (w->seen)
        fprintf(out, " begun=%" PRIu64 " oldest=%" PRIu64 " next_op=%" PRIu64, w->begun, w->oldest,
                w->next_op);
    put_text(out, "name", w->name);
    if (w->seen && w->error)
        put_text(out, "cause", w->cause);
    fputc('\n', out);
    if (w->seen && w->oldest < w->begun)
        fprintf(out,
                "window function=%s op=%" PRIu64 " bytes=%" PRIu64 " at=%" PRIu64
                " waited=%.3f undelivered=%" PRIu64 " unsent=%d working=%u\n",
                nb_func_name(w->func), w->opno, w->bytes, w->off, 1e-9 * (double)w->waited_ns, w->undelivered,
                w->unsent, w->working);
    for (int i = 0; i < w->npeers && w->seen; i++)
        put_peer(out, &w->peer[i]);
}

void nb_waits_write(FILE *out, const struct nb_waits_process *p, const struct nb_waits *const *waits,
                    unsigned n)
{
    fprintf(out, "report format=1 pid=%d time=%.3f why=%s", p->pid, p->time, p->why);
    put_text(out, "host", p->host);
    put_text(out, "job", p->job);
    put_text(out, "version", nb_version_with_commit());
    fprintf(out, "\nengine steps=%" PRIu64 " still=%u\n", p->steps, p->still);
    for (unsigned i = 0; i < n; i++)
        put_comm(out, waits[i]);
    fprintf(out, "end comms=%u\n", n);
}
