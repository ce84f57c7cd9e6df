/* SPDX-License-Identifier: Apache-2.0 */
/* Results of sums that arrive; see result.h. */
#include "coll/result.h"

#include <errno.h>
#include <string.h>

#include "coll/comm.h"
#include "coll/payload.h"
#include "coll/task.h"
#include "coll/witness.h"

/* A result has been decoded, or the own values were added to it; and it was looked at. */
static int taken(struct nb_coll_comm *comm, struct nb_task *t, ssize_t result)
{
    if (t->step == NB_STEP_LOOK) {
        nb_witness_looked(t, result);
        return NB_TASK_OVER;
    }
    nb_task_release_head(t);
    if (result < 0)
        return nb_comm_error(comm, (int)result, "cannot take the result of %s %llu at %llu from %s: %s",
                             nb_func_name(t->op->func), (unsigned long long)t->op->opno,
                             (unsigned long long)t->segment.off, t->peer->name, strerror((int)-result));
    return nb_witness_next(t);
}

int nb_take_result(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_task *t)
{
    const struct nb_rx *rx = &peer->rx[NB_CLASS_RESULT];

    if (nb_payload_verify(comm, peer, nb_segment_finisher(&t->segment), &rx->head,
                          rx->mem + nb_rx_at(rx) * rx->slot + rx->head_bytes)) {
        nb_task_drop(comm, t);
        return -1;
    }
    t->next = taken;
    t->delivers = t->segment.len;
    if (!nb_task_ask(comm, t)) {
        nb_task_drop(comm, t);
        return 0;
    }
    nb_task_hold_head(t, peer, &peer->rx[NB_CLASS_RESULT]);
    return nb_task_run(comm, t);
}

int nb_deliver(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_coll_req *win,
               const struct nb_segment *segment)
{
    struct nb_rx *rx = &peer->rx[NB_CLASS_RESULT];
    const struct nb_msg *m = &rx->head;
    struct nb_task *t;
    enum nb_dtype dtype = NB_F32;

    if (m->codec != NB_CODEC_RAW &&
        (nb_codec_row(m->codec)->reference || nb_policy_dtype(win->op->type, &dtype)))
        return nb_comm_error(comm, -EBADMSG, "malformed result of %s %llu from %s: codec %u",
                             nb_func_name(m->func), (unsigned long long)m->opno, peer->name, m->codec);
    t = nb_task_new(comm, win, segment);
    if (!t)
        return 0;
    t->step = NB_STEP_DECODE;
    t->msg = *m;
    t->dtype = dtype;
    t->body = rx->mem + nb_rx_at(rx) * rx->slot + rx->head_bytes;
    t->values = win->recv + (m->offset - win->off);
    t->bytes = m->bytes;
    return nb_take_result(comm, peer, t);
}

int nb_take_sum(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_coll_req *win,
                const struct nb_segment *segment)
{
    struct nb_rx *rx = &peer->rx[NB_CLASS_RESULT];
    const struct nb_msg *m = &rx->head;
    struct nb_task *t = nb_task_new(comm, win, segment);

    if (!t)
        return 0;
    t->exact = nb_policy_dtype(win->op->type, &t->dtype) != 0 || win->op->redop != ncclSum;
    if (t->exact && m->codec != NB_CODEC_RAW) {
        nb_task_drop(comm, t);
        return nb_comm_error(comm, -EBADMSG, "%s sent a sum of %s %llu, whose type has no quantizer",
                             peer->name, nb_func_name(m->func), (unsigned long long)m->opno);
    }
    t->step = NB_STEP_SUM;
    t->sources[0] = (struct nb_source){
        .codec = m->codec, .len = m->coded, .coded = rx->mem + nb_rx_at(rx) * rx->slot + rx->head_bytes};
    t->plain[0] = t->sources[0].coded;
    t->nsources = 1;
    t->own = win->send + (segment->off - win->off);
    t->values = win->recv + (segment->off - win->part_off);
    t->bytes = segment->len;
    return nb_take_result(comm, peer, t);
}
