/* SPDX-License-Identifier: Apache-2.0 */
/* Tasks: their steps on the device, and the memory of flow's state. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "coll/flow/internal.h"

struct nb_task *nb_task_new(struct nb_coll_comm *comm, struct nb_coll_req *win,
                            const struct nb_segment *segment)
{
    struct nb_task *t = comm->flow->tasks.free;

    if (!t)
        return NULL;
    comm->flow->tasks.free = t->link;
    t->win = win;
    t->op = win->op;
    t->segment = *segment;
    t->delivers = 0;
    t->residual = NULL;
    t->unit = NULL;
    t->tx = NULL;
    t->rx = NULL;
    t->nsources = 0;
    t->counted = 0;
    t->value = win->op->value;
    t->first = segment->first;
    t->ref = NULL;
    t->from = NULL;
    t->payload = NULL;
    return t;
}

static void give_back(struct nb_coll_comm *comm, struct nb_task *t)
{
    if (comm->flow->reduce.look.task == t)
        comm->flow->reduce.look.task = NULL;
    t->link = comm->flow->tasks.free;
    comm->flow->tasks.free = t;
}

void nb_task_drop(struct nb_coll_comm *comm, struct nb_task *t)
{
    nb_task_release_error(comm, t);
    give_back(comm, t);
}

/* ---- message buffers of messages --------------------------------------------------------------------- */

void nb_task_hold_head(struct nb_task *t, struct nb_peer *peer, struct nb_rx *rx)
{
    t->peer = peer;
    t->rx = rx;
    t->at = nb_rx_at(rx);
    rx->held[t->at]++;
    nb_rx_take(rx);
}

/* ---- residuals --------------------------------------------------------------------------------------- */

int nb_task_hold_error(struct nb_task *t, uint32_t block)
{
    const struct nb_op *op = t->op;
    uint64_t opno;
    struct nb_residual *residual = nb_op_info_residual(op->info, &opno);

    if (!residual ||
        op->ef_base % NB_GROUP) /* groups of the message buffer begin at multiples of their length */
        return 1;
    if (!nb_feedback_hold(residual, opno))
        return 0;
    t->residual = residual;
    nb_feedback_view(residual, block, &t->ef);
    t->ef.err += op->ef_base;
    t->ef.scale += op->ef_base / NB_GROUP;
    return 1;
}

void nb_task_release_error(struct nb_coll_comm *comm, struct nb_task *t)
{
    if (t->residual)
        nb_decisions_release_residual(comm, t->residual);
    t->residual = NULL;
}

/* ---- steps ------------------------------------------------------------------------------------------- */

static unsigned format_of(const struct nb_task *t, const struct nb_codec_row *codec)
{
    return codec->format == NB_FORMAT_PATTERNS ? (unsigned)t->width : (unsigned)t->dtype;
}

/* Encode values with `code` into the body, behind a header of `header` bytes, against `ref` unless that is
 * NULL. */
static ssize_t encode(struct nb_coll_comm *comm, struct nb_task *t, unsigned code, const uint8_t *ref,
                      size_t header)
{
    const struct nb_codec_row *codec = nb_codec_row(code);
    const struct nb_encoding e = {.codec = codec,
                                  .format = format_of(t, codec),
                                  .src = t->values,
                                  .bytes = t->bytes,
                                  .first = t->first,
                                  .ref = ref,
                                  .limit = t->bytes,
                                  .ef = t->residual ? &t->ef : NULL,
                                  .dst = t->body,
                                  .cap = comm->buffer_bytes - header,
                                  .stats = t->counted ? &t->stats : NULL,
                                  .runs = ref ? &t->delta4 : NULL};

    return comm->device->ops->encode(comm->device, &t->work, &e);
}

static ssize_t decode(struct nb_coll_comm *comm, struct nb_task *t, const uint8_t *ref, uint8_t *dst)
{
    const struct nb_codec_row *codec = nb_codec_row(t->msg.codec);
    const struct nb_decoding d = {.codec = codec,
                                  .format = format_of(t, codec),
                                  .coded = t->body,
                                  .len = t->msg.coded,
                                  .ref = ref,
                                  .bytes = t->bytes,
                                  .first = t->first,
                                  .dst = dst};

    return comm->device->ops->decode(comm->device, &t->work, &d);
}

/* Sample the segment's values. */
static ssize_t look(struct nb_coll_comm *comm, struct nb_task *t, const void *values, uint32_t *out)
{
    const size_t n = t->bytes / t->value;

    return comm->device->ops->pick(comm->device, &t->work, t->value, values, n, comm->flow->reduce.look.picks,
                                   0, n, out);
}

static ssize_t submit(struct nb_coll_comm *comm, struct nb_task *t)
{
    struct nb_device *dev = comm->device;
    size_t n = t->bytes / t->value;

    if (t->bytes == 0) /* the whole segment is padding */
        return 0;
    switch (t->step) {
    case NB_STEP_SUM:
        if (t->exact)
            return dev->ops->reduce_exact(dev, &t->work, t->op->type, t->op->redop, t->plain, t->nsources,
                                          t->own, n, t->values);
        return dev->ops->reduce(dev, &t->work, t->dtype, t->sources, t->nsources, t->own, n, t->first,
                                t->values);
    case NB_STEP_LOOK_OWN: return look(comm, t, t->own, comm->flow->reduce.look.own);
    case NB_STEP_LOOK_SUM: return look(comm, t, t->values, comm->flow->reduce.look.sum);
    case NB_STEP_ENCODE: return encode(comm, t, t->msg.codec, NULL, NB_MSG_BYTES);
    case NB_STEP_COPY: return dev->ops->copy(dev, &t->work, t->body, t->from ? t->from : t->values, t->bytes);
    case NB_STEP_DECODE:
        if (t->msg.codec == NB_CODEC_RAW)
            return dev->ops->copy(dev, &t->work, t->values, t->body, t->bytes);
        return decode(comm, t, NULL, t->values);
    case NB_STEP_PICK: return t->ask(comm, t);
    case NB_STEP_COMPARE: return dev->ops->compare(dev, &t->work, t->values, t->ref, t->bytes, &t->seen);
    case NB_STEP_HASH: return dev->ops->compare(dev, &t->work, t->values, NULL, t->bytes, &t->seen);
    case NB_STEP_HASH_REF: return dev->ops->compare(dev, &t->work, t->ref, NULL, t->bytes, &t->seen);
    case NB_STEP_SOURCE:
    case NB_STEP_NOTE:
        return dev->ops->compare(dev, &t->work, t->values + (t->range.at - t->range.offset), t->range.there,
                                 t->range.part, &t->range.seen);
    case NB_STEP_DELTA_ENCODE: return encode(comm, t, t->with, t->ref, NB_MSG_MAX_BYTES);
    case NB_STEP_DELTA_DECODE: return decode(comm, t, t->ref, t->values);
    case NB_STEP_UPDATE_REF: return decode(comm, t, t->ref, t->ref);
    case NB_STEP_STORE_REF: return dev->ops->copy(dev, &t->work, t->ref, t->values, t->bytes);
    case NB_STEP_LOAD_REF: return dev->ops->copy(dev, &t->work, t->values, t->ref, t->bytes);
    case NB_STEP_OWN: return dev->ops->copy(dev, &t->work, t->recv, t->values, t->bytes);
    case NB_STEP_PROVE: return nb_proof_pick(comm, t->op, &t->work, t->segment.off, t->values, t->bytes);
    default: return nb_retransmit_await(comm, t);
    }
}

/* Return the bytes that the step has worked on. The bytes of a PICK count with the step that it prepares. */
static uint64_t worked_bytes(const struct nb_task *t)
{
    switch (t->step) {
    case NB_STEP_PROVE:
    case NB_STEP_PICK:
    case NB_STEP_LOOK_OWN:
    case NB_STEP_LOOK_SUM:
    case NB_STEP_COMPARE:
    case NB_STEP_HASH:
    case NB_STEP_HASH_REF:
    case NB_STEP_SOURCE:
    case NB_STEP_NOTE: return 0;
    case NB_STEP_RETRANSMIT: return t->part;
    default: return t->bytes;
    }
}

int nb_task_ask(struct nb_coll_comm *comm, struct nb_task *t)
{
    int64_t begun = nb_clock_ns(&comm->ctx->clock);

    t->result = submit(comm, t);
    t->in_flight = t->result == -EINPROGRESS;
    if (t->result >= 0) { /* done at once, by this processor */
        comm->stats.worked_ns += (uint64_t)(nb_clock_ns(&comm->ctx->clock) - begun);
        comm->stats.worked_bytes += worked_bytes(t);
    }
    return t->result != -EAGAIN;
}

/* The step is done. Continue. Return 1 when the task has ended, 0 when it has to wait, or < 0. */
static int advance(struct nb_coll_comm *comm, struct nb_task *t)
{
    int ret;

    while (!t->in_flight && t->result != -EAGAIN) {
        ret = t->next(comm, t, t->result);
        if (ret < 0)
            return ret;
        if (ret == NB_TASK_OVER)
            return 1;
        nb_task_ask(comm, t);
    }
    return 0;
}

/* End the task. Give back its areas before the window counts its end. */
static void over(struct nb_coll_comm *comm, struct nb_task *t)
{
    struct nb_coll_req *win = t->win;
    uint64_t delivers = t->delivers;

    nb_task_release_error(comm, t);
    give_back(comm, t);
    nb_window_task_done(comm, win, delivers);
}

int nb_task_run(struct nb_coll_comm *comm, struct nb_task *t)
{
    int ret;

    t->win->tasks_in_flight++;
    ret = nb_comm_given_up(comm) ? -ETIMEDOUT : advance(comm, t);
    if (ret > 0) {
        over(comm, t);
        return 1;
    }
    /* Link the task also after a failure: its memory belongs to the communicator. */
    t->link = comm->flow->tasks.run;
    comm->flow->tasks.run = t;
    return ret < 0 ? ret : 1;
}

static void poll_device(struct nb_coll_comm *comm, struct nb_task *t)
{
    struct nb_device *dev = comm->device;

    t->result = dev->ops->poll(dev, &t->work);
    t->in_flight = t->result == -EINPROGRESS;
    if (t->result < 0)
        return;
    if (dev->ops->took) {
        comm->stats.worked_ns += dev->ops->took(dev, &t->work);
        comm->stats.worked_bytes += worked_bytes(t);
    } else if (t->step != NB_STEP_RETRANSMIT) {
        comm->stats.device_bytes += worked_bytes(t);
    }
}

bool nb_tasks_work(const struct nb_coll_comm *comm)
{
    for (const struct nb_task *t = comm->flow->tasks.run; t; t = t->link)
        if (t->in_flight && t->step != NB_STEP_RETRANSMIT)
            return true;
    return false;
}

int nb_tasks_progress(struct nb_coll_comm *comm)
{
    int moved = 0, ret;

    if (comm->flow->tasks.run && nb_comm_given_up(comm))
        return -ETIMEDOUT;
    for (struct nb_task **at = &comm->flow->tasks.run; *at;) {
        struct nb_task *t = *at;
        enum nb_step step = t->step;
        if (t->in_flight) {
            poll_device(comm, t);
        } else { /* the device had no room */
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

bool nb_device_has_works(const struct nb_coll_comm *comm)
{
    return nb_tasks_under_way(&comm->flow->tasks) || nb_decisions_at_work(comm->decisions) ||
           comm->flow->retransmits.copying;
}

int nb_tasks_abandon(struct nb_coll_comm *comm)
{
    struct nb_device *dev = comm->device;

    if (nb_device_has_works(comm))
        dev->ops->quiesce(dev);
    comm->flow->tasks.run = NULL;
    return dev->ops->lost && dev->ops->lost(dev) ? -ETIMEDOUT : 0;
}

/* ---- memory ------------------------------------------------------------------------------------------ */

static int create_tasks(struct nb_coll_comm *comm)
{
    struct nb_tasks *tasks = &comm->flow->tasks;
    size_t n = (size_t)comm->nnodes;

    tasks->all = calloc(NB_TASKS, sizeof(*tasks->all));
    tasks->sources = calloc(NB_TASKS * n, sizeof(*tasks->sources));
    tasks->plain = calloc(NB_TASKS * n, sizeof(*tasks->plain));
    if (!tasks->all || !tasks->sources || !tasks->plain)
        return -ENOMEM;
    for (unsigned i = NB_TASKS; i-- > 0;) {
        tasks->all[i].sources = tasks->sources + i * n;
        tasks->all[i].plain = tasks->plain + i * n;
        give_back(comm, &tasks->all[i]);
    }
    return 0;
}

int nb_flow_create(struct nb_coll_comm *comm)
{
    struct nb_flow *flow = comm->flow = calloc(1, sizeof(*flow));

    if (!flow)
        return -ENOMEM;
    flow->peers = calloc((size_t)comm->nnodes, sizeof(*flow->peers));
    if (!flow->peers || create_tasks(comm) || nb_parking_create(comm)) {
        nb_flow_destroy(comm);
        return -ENOMEM;
    }
    for (int r = 0; r < comm->nnodes; r++)
        comm->peer[r].flow = &flow->peers[r];
    return 0;
}

void nb_flow_destroy(struct nb_coll_comm *comm)
{
    struct nb_flow *flow = comm->flow;

    if (!flow)
        return;
    nb_parking_destroy(comm);
    free(flow->tasks.all);
    free(flow->tasks.sources);
    free(flow->tasks.plain);
    free(flow->peers);
    free(flow);
    comm->flow = NULL;
}
