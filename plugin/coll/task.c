/* SPDX-License-Identifier: Apache-2.0 */
/* Tasks; see task.h. */
#include "coll/task.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

struct nb_task *nb_task_new(struct nb_coll_comm *comm, struct nb_coll_req *win, const struct nb_piece *piece)
{
    struct nb_task *t = comm->task_free;

    if (!t)
        return NULL;
    comm->task_free = t->link;
    t->win = win;
    t->op = win->op;
    t->piece = *piece;
    t->delivers = 0;
    t->slot = NULL;
    t->unit = NULL;
    t->tx = NULL;
    t->rx = NULL;
    t->nsources = 0;
    t->counted = 0;
    t->value = win->op->value;
    t->first = piece->first;
    t->ref = NULL;
    t->from = NULL;
    return t;
}

static void give_back(struct nb_coll_comm *comm, struct nb_task *t)
{
    t->link = comm->task_free;
    comm->task_free = t;
}

void nb_task_drop(struct nb_coll_comm *comm, struct nb_task *t)
{
    nb_task_release_error(comm, t);
    give_back(comm, t);
}

/* ---- slots of messages ------------------------------------------------------------------------------- */

void nb_task_hold_head(struct nb_task *t, struct nb_peer *peer, struct nb_rx *rx)
{
    t->peer = peer;
    t->rx = rx;
    t->at = nb_rx_at(rx);
    rx->held[t->at]++;
    nb_rx_take(rx);
}

void nb_task_release_head(struct nb_task *t)
{
    t->rx->held[t->at]--;
}

/* ---- carried errors ---------------------------------------------------------------------------------- */

int nb_task_hold_error(struct nb_task *t, uint32_t block)
{
    const struct nb_op *op = t->op;
    struct nb_ef_slot *slot = op->facts->ef;

    if (!slot || op->ef_base % NB_GROUP) /* groups of the slot begin at multiples of their length */
        return 1;
    if (!nb_feedback_hold(slot, op->facts->opno))
        return 0;
    t->slot = slot;
    nb_feedback_view(slot, block, &t->ef);
    t->ef.err += op->ef_base;
    t->ef.scale += op->ef_base / NB_GROUP;
    return 1;
}

void nb_task_release_error(struct nb_coll_comm *comm, struct nb_task *t)
{
    if (t->slot)
        nb_feedback_release(comm->feedback, t->slot);
    t->slot = NULL;
}

/* ---- steps ------------------------------------------------------------------------------------------- */

static ssize_t differ(struct nb_coll_comm *comm, struct nb_task *t)
{
    struct nb_device *dev = comm->device;
    size_t cap = comm->unit_slot - NB_MSG_MAX_BYTES;

    if (t->with == NB_CODEC_DELTA4)
        return dev->ops->delta4_encode(dev, &t->work, t->dtype, t->values, t->ref, t->bytes, t->bytes, t->body, cap,
                                       &t->delta4);
    return dev->ops->ulp_encode(dev, &t->work, t->width, t->values, t->ref, t->bytes, t->bytes, t->body, cap);
}

static ssize_t add(struct nb_coll_comm *comm, struct nb_task *t, uint8_t *dst)
{
    struct nb_device *dev = comm->device;

    if (t->msg.codec == NB_CODEC_DELTA4)
        return dev->ops->delta4_decode(dev, &t->work, t->dtype, t->body, t->msg.coded, t->ref, t->bytes, dst);
    return dev->ops->ulp_decode(dev, &t->work, t->width, t->body, t->msg.coded, t->ref, t->bytes, dst);
}

static ssize_t submit(struct nb_coll_comm *comm, struct nb_task *t)
{
    struct nb_device *dev = comm->device;
    size_t n = t->bytes / t->value;

    if (t->bytes == 0) /* a piece that is all padding */
        return 0;
    switch (t->step) {
    case NB_STEP_SUM:
        if (t->exact)
            return dev->ops->reduce_exact(dev, &t->work, t->op->type, t->op->redop, t->plain, t->nsources, t->own, n,
                                          t->values);
        return dev->ops->reduce(dev, &t->work, t->dtype, t->sources, t->nsources, t->own, n, t->first, t->values);
    case NB_STEP_CODE:
        return dev->ops->encode(dev, &t->work, (enum nb_codec)t->msg.codec, t->dtype, t->values, n, t->first,
                                t->slot ? &t->ef : NULL, t->body, comm->unit_slot - NB_MSG_BYTES,
                                t->counted ? &t->stats : NULL);
    case NB_STEP_COPY: return dev->ops->copy(dev, &t->work, t->body, t->from ? t->from : t->values, t->bytes);
    case NB_STEP_SHOW:
        if (t->msg.codec == NB_CODEC_RAW)
            return dev->ops->copy(dev, &t->work, t->values, t->body, t->bytes);
        return dev->ops->decode(dev, &t->work, (enum nb_codec)t->msg.codec, t->dtype, t->body, t->msg.coded, n,
                                t->first, t->values);
    case NB_STEP_DIFFER: return differ(comm, t);
    case NB_STEP_ADD: return add(comm, t, t->values);
    case NB_STEP_LEARN: return add(comm, t, t->ref);
    case NB_STEP_STORE: return dev->ops->copy(dev, &t->work, t->ref, t->values, t->bytes);
    case NB_STEP_RECALL: return dev->ops->copy(dev, &t->work, t->values, t->ref, t->bytes);
    case NB_STEP_OWN: return dev->ops->copy(dev, &t->work, t->recv, t->values, t->bytes);
    default: return nb_gather_ask(comm, t);
    }
}

int nb_task_ask(struct nb_coll_comm *comm, struct nb_task *t)
{
    uint64_t begun = nb_now_ns();

    t->result = submit(comm, t);
    t->flying = t->result == -EINPROGRESS;
    if (t->result >= 0) { /* done on the spot: this processor did it */
        comm->stats.worked_ns += nb_now_ns() - begun;
        comm->stats.worked_bytes += t->bytes;
    }
    return t->result != -EAGAIN;
}

/* The step at hand is done: go on as far as it goes. 1 when the task is over, 0 when it has to wait, < 0. */
static int advance(struct nb_coll_comm *comm, struct nb_task *t)
{
    int ret;

    while (!t->flying && t->result != -EAGAIN) {
        ret = t->next(comm, t, t->result);
        if (ret < 0)
            return ret;
        if (ret == NB_TASK_OVER)
            return 1;
        nb_task_ask(comm, t);
    }
    return 0;
}

/* It is over: what it had is free before the window learns of it. */
static void over(struct nb_coll_comm *comm, struct nb_task *t)
{
    struct nb_coll_req *win = t->win;
    uint64_t delivers = t->delivers;

    nb_task_release_error(comm, t);
    give_back(comm, t);
    nb_window_worked(comm, win, delivers);
}

int nb_task_run(struct nb_coll_comm *comm, struct nb_task *t)
{
    int ret;

    t->win->works++;
    ret = advance(comm, t);
    if (ret > 0) {
        over(comm, t);
        return 1;
    }
    /* Also when it failed: its memory is the communicator's. */
    t->link = comm->task_run;
    comm->task_run = t;
    return ret < 0 ? ret : 1;
}

int nb_tasks_progress(struct nb_coll_comm *comm)
{
    int moved = 0, ret;

    for (struct nb_task **at = &comm->task_run; *at;) {
        struct nb_task *t = *at;
        enum nb_step step = t->step;
        if (t->flying) {
            t->result = comm->device->ops->poll(comm->device, &t->work);
            t->flying = t->result == -EINPROGRESS;
        } else { /* there was no room */
            nb_task_ask(comm, t);
        }
        ret = advance(comm, t);
        if (ret < 0)
            return ret;
        if (ret > 0) {
            *at = t->link;
            over(comm, t);
            moved = 1;
        } else {
            moved |= t->step != step;
            at = &t->link;
        }
    }
    return moved;
}

void nb_tasks_abandon(struct nb_coll_comm *comm)
{
    if (!comm->task_run)
        return;
    comm->device->ops->quiesce(comm->device);
    comm->task_run = NULL;
}

/* ---- memory ------------------------------------------------------------------------------------------ */

int nb_tasks_create(struct nb_coll_comm *comm)
{
    size_t n = (size_t)comm->nranks;

    comm->task = calloc(NB_TASKS, sizeof(*comm->task));
    comm->sources = calloc(NB_TASKS * n, sizeof(*comm->sources));
    comm->plain = calloc(NB_TASKS * n, sizeof(*comm->plain));
    if (!comm->task || !comm->sources || !comm->plain)
        return -ENOMEM;
    for (unsigned i = NB_TASKS; i-- > 0;) {
        comm->task[i].sources = comm->sources + i * n;
        comm->task[i].plain = comm->plain + i * n;
        give_back(comm, &comm->task[i]);
    }
    return 0;
}

void nb_tasks_destroy(struct nb_coll_comm *comm)
{
    free(comm->task);
    free(comm->sources);
    free(comm->plain);
}
