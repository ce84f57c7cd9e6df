/* SPDX-License-Identifier: Apache-2.0 */
/* The first error of a communicator, and lists of nodes for the log. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "coll/comm/comm.h"

/* ---- failing ----------------------------------------------------------------------------------------- */

static int record(struct nb_coll_comm *comm, int err, int author, const char *why)
{
    int none = 0;

    if (!atomic_compare_exchange_strong(&comm->failure.error, &none, err))
        return none;
    comm->failure.author = author;
    snprintf(comm->failure.text, sizeof(comm->failure.text), "%.*s", (int)sizeof(comm->failure.text) - 1,
             why);
    return err;
}

int nb_comm_fail(struct nb_coll_comm *comm, int err, const char *why)
{
    return record(comm, err, comm->rank, why);
}

int nb_comm_error(struct nb_coll_comm *comm, int err, const char *fmt, ...)
{
    char text[512];
    va_list ap;

    if (nb_comm_failed(comm))
        return nb_comm_failed(comm);
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    NB_WARN("%s: %s", comm->label, text);
    return nb_comm_fail(comm, err, text);
}

int nb_comm_abort_received(struct nb_coll_comm *comm, const struct nb_peer *via, const struct nb_ctl *abort)
{
    const struct nb_peer *author = abort->a < (uint64_t)comm->nnodes ? &comm->peer[abort->a] : via;

    if (nb_comm_failed(comm))
        return nb_comm_failed(comm);
    if (author == via)
        NB_WARN("%s: %s has failed: %s", comm->label, via->name, abort->text);
    else
        NB_WARN("%s: %s has failed: %s (passed on by %s)", comm->label, author->name, abort->text, via->name);
    return record(comm, -ECONNABORTED, author->rank, abort->text);
}

int nb_comm_suspect(struct nb_coll_comm *comm, struct nb_peer *peer, int err)
{
    if (!peer->life.lost)
        peer->life.lost = err;
    if (!comm->failure.suspect_ns)
        comm->failure.suspect_ns = nb_clock_ns(&comm->ctx->clock);
    return err;
}

int nb_comm_given_up(struct nb_coll_comm *comm)
{
    const int err = nb_comm_shown_error(comm);

    if (!err || nb_comm_failed(comm))
        return err;
    return nb_comm_error(comm, err, "the engine of this node was stuck, so that NCCL gave up on it");
}

bool nb_peer_has_left(struct nb_coll_comm *comm, const struct nb_peer *peer, enum nb_class cls,
                      const struct nb_op *op)
{
    if (!peer->gone && !peer->tx[cls].closed)
        return false;
    nb_comm_error(comm, -ECONNRESET, "%s has closed its communicator but %s %llu needs it", peer->name,
                  nb_func_name(op->func), (unsigned long long)op->opno);
    return true;
}

/* ---- names of nodes ---------------------------------------------------------------------------------- */

#define RANKS 3 /* ranks listed after the first */

__attribute__((format(printf, 2, 3))) static void append(struct nb_name_list *list, const char *fmt, ...)
{
    const size_t at = strlen(list->text);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(list->text + at, sizeof(list->text) - at, fmt, ap);
    va_end(ap);
}

void nb_name_list_add(struct nb_name_list *list, const struct nb_peer *peer)
{
    if (list->first < 0) {
        list->first = peer->rank;
        append(list, "%s", peer->name);
    } else if (list->more++ < RANKS) {
        append(list, "%s %d", list->more == 1 ? ", nor node" : ",", peer->rank);
    }
}

void nb_name_list_end(struct nb_name_list *list)
{
    if (list->more > RANKS)
        append(list, " and %d more", list->more - RANKS);
}
