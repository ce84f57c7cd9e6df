/* SPDX-License-Identifier: Apache-2.0 */
/* Values by which policy judges whether sums move weights. */
#include <stdlib.h>
#include <string.h>

#include "codec/pick.h"
#include "coll/comm/comm.h"
#include "coll/decide/decide.h"

struct nb_proof {
    struct nb_proof *next; /* free, or waiting */
    uint64_t opno;
    struct nb_job_call call;
    uint64_t key[NB_CAUSAL_NAMES];
    uint64_t values, bytes; /* of the block */
    size_t width;
    unsigned picks, got;
    uint32_t raw[NB_PICKS];
};

void nb_proofs_init(struct nb_proofs *w)
{
    w->free = NULL;
    w->waiting = NULL;
    w->end = &w->waiting;
}

static void destroy_all(struct nb_proof *w)
{
    while (w) {
        struct nb_proof *next = w->next;
        free(w);
        w = next;
    }
}

void nb_proofs_destroy(struct nb_coll_comm *comm)
{
    for (unsigned i = 0; i < NB_OPS && comm->submit.ops; i++)
        free(comm->submit.ops[i].proof);
    destroy_all(comm->decisions->proofs.free);
    destroy_all(comm->decisions->proofs.waiting);
    nb_proofs_init(&comm->decisions->proofs);
}

int nb_proof_possible(const struct nb_coll_comm *comm)
{
    return comm->device->ops->pick != NULL;
}

/* Begin the proof of an operation with a block of `values` values. Return NULL when the block is too small or
 * memory has run out. */
static struct nb_proof *call_one(struct nb_coll_comm *comm, struct nb_op *op, const struct nb_job_call *call,
                                 uint64_t values, size_t width)
{
    struct nb_proof *w = comm->decisions->proofs.free;
    unsigned picks = nb_picks_of(values);

    if (!picks)
        return NULL;
    if (w)
        comm->decisions->proofs.free = w->next;
    else
        w = malloc(sizeof(*w));
    if (!w)
        return NULL;
    w->opno = op->opno;
    w->call = *call;
    w->values = values;
    w->width = width;
    w->bytes = op->block;
    w->picks = picks;
    w->got = 0;
    op->proof = w;
    return w;
}

static void dismiss(struct nb_coll_comm *comm, struct nb_proof *w)
{
    w->next = comm->decisions->proofs.free;
    comm->decisions->proofs.free = w;
}

/* Take the proof from an operation that has ended. */
static struct nb_proof *take(struct nb_op *op)
{
    struct nb_proof *w = op->proof;

    op->proof = NULL;
    return w;
}

ssize_t nb_proof_pick(struct nb_coll_comm *comm, const struct nb_op *op, struct nb_work *work, uint64_t off,
                      const void *values, size_t bytes)
{
    struct nb_proof *w = op->proof;
    const uint64_t rel = off - (uint64_t)comm->rank * op->block;

    if (rel % w->width || bytes % w->width) /* the proof stays incomplete */
        return 0;
    return comm->device->ops->pick(comm->device, work, w->width, values, w->values, w->picks, rel / w->width,
                                   bytes / w->width, w->raw);
}

void nb_proof_picked(struct nb_op *op, ssize_t result)
{
    op->proof->got += result > 0 ? (unsigned)result : 0;
}

/* ---- sums -------------------------------------------------------------------------------------------- */

void nb_proof_sum(struct nb_coll_comm *comm, struct nb_op *op, const struct nb_job_call *call)
{
    struct nb_proof *w = NULL;

    if (nb_proof_possible(comm))
        w = call_one(comm, op, call, op->block / op->value, op->value);
    if (w)
        memset(w->key, 0, sizeof(w->key));
}

void nb_proof_decided(struct nb_op *op, const uint64_t key[NB_CAUSAL_NAMES])
{
    if (op->proof)
        memcpy(op->proof->key, key, sizeof(op->proof->key));
}

/* ---- weights ---------------------------------------------------------------------------------------- */

void nb_proof_weights(struct nb_coll_comm *comm, struct nb_op *op, const struct nb_job_call *call)
{
    size_t width = 0;
    uint64_t values;

    if (op->sought || !nb_proof_possible(comm))
        return;
    op->sought = 1;
    values = nb_job_shard(comm->decisions->job, call, op->block, &width);
    if (values)
        call_one(comm, op, call, values, width);
}

/* Report the weights for which all earlier operations have ended. */
void nb_proof_advance(struct nb_coll_comm *comm)
{
    struct nb_proofs *all = &comm->decisions->proofs;

    while (all->waiting &&
           (comm->oldest == comm->begun || nb_window(comm, comm->oldest)->op->opno >= all->waiting->opno)) {
        struct nb_proof *w = all->waiting;
        all->waiting = w->next;
        if (!all->waiting)
            all->end = &all->waiting;
        nb_job_weights(comm->decisions->job, &w->call, w->bytes, w->raw);
        dismiss(comm, w);
    }
}

void nb_proof_gathered(struct nb_coll_comm *comm, struct nb_op *op, int changed)
{
    struct nb_proof *w = take(op);

    if (!w)
        return;
    if (!changed || w->got != w->picks) {
        dismiss(comm, w);
        return;
    }
    w->next = NULL;
    *comm->decisions->proofs.end = w;
    comm->decisions->proofs.end = &w->next;
    nb_proof_advance(comm);
}

int nb_proof_pending(const struct nb_coll_comm *comm, uint64_t opno)
{
    return comm->decisions->proofs.waiting && comm->decisions->proofs.waiting->opno < opno;
}

void nb_proof_window_done(struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    struct nb_op *op = win->op;
    struct nb_proof *w;

    nb_proof_advance(comm);
    if (op->func != NB_FUNC_REDUCE_SCATTER || !op->proof ||
        win->off + win->bytes < op->block * (uint64_t)comm->nnodes)
        return;
    w = take(op);
    if (w->got == w->picks && w->key[0])
        nb_job_sum(comm->decisions->job, &w->call, w->key, w->raw, w->picks);
    dismiss(comm, w);
}
