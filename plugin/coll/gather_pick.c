/* SPDX-License-Identifier: Apache-2.0 */
/* The reference of an all-gather's own block is picked; see gather_pick.h. */
#include "coll/gather_pick.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/log.h"
#include "coll/comm.h"
#include "coll/task.h"

/* Weights move by less than this between two gathers: rms of the change over that of the values. */
#define NEAR 0.125

/* Are the values of the slot those of the block, moved a little? What is not finite never is. */
static int moved_a_little(const struct nb_gather_pick *p)
{
    double moved = 0, size = 0;

    for (unsigned i = 0; i < NB_NEAR_SAMPLES; i++) {
        const double d = (double)p->sample[0][i] - (double)p->sample[1][i];
        moved += d * d;
        size += (double)p->sample[0][i] * (double)p->sample[0][i];
    }
    return isfinite(size) && isfinite(moved) && moved <= NEAR * NEAR * size; /* NaN is not */
}

void nb_gather_tell_cost(struct nb_coll_comm *comm, const struct nb_codec_row *codec)
{
    if (comm->shadow || comm->node->reported_lossy)
        return;
    comm->node->reported_lossy = true;
    NB_INFO(
        NCCL_INIT | NCCL_NET,
        "%s: NIBBLE_AG=%s: all-gathers of weights are not exact from here on. A node keeps its own block "
        "exact and "
        "all others hold the same approximation of it (%s), so replicas differ between nodes by that much: "
        "checks "
        "that compare hashes of weights across replicas fail, and a job resumed from a checkpoint does not "
        "continue bit by bit. NIBBLE_AG=exact is exact",
        comm->label, codec->name, codec->loss);
}

/* The reference is known to be held by all, or not: what will be done with it. */
static void settle_reference(struct nb_coll_comm *comm, struct nb_op *op)
{
    switch (op->outcome) {
    case NB_REF_HIT: comm->stats.ref_hits++; break;
    case NB_REF_NEW: comm->stats.ref_new++; break;
    case NB_REF_UNCONFIRMED: comm->stats.ref_unconfirmed++; break;
    case NB_REF_NONE: comm->stats.ref_budget++; break;
    case NB_REF_WAIT: return;
    }
    if (op->ref)
        comm->stats.func[NB_FUNC_ALL_GATHER].coded_ops++;
    op->lossy = op->lossy && op->outcome == NB_REF_HIT;
    comm->stats.gathers_bounded += (uint64_t)op->lossy;
}

/* ---- steps of the task ---------------------------------------------------------------------------------- */

/*
 *     LOOK --> ALIKE, as often as there is a slot to ask about --> over
 *       \                                                  \----> OWN --> REF --> over
 *        \--what is sent raw, or quantized--> over
 */

static size_t values_in(const struct nb_task *t, const struct nb_gather_pick *p)
{
    return p->search.avail / nb_dtype_size(nb_op_info_dtype(t->op->info));
}

static ssize_t ask(struct nb_coll_comm *comm, struct nb_task *t)
{
    struct nb_device *dev = comm->device;
    struct nb_gather_pick *p = &comm->gather.pick;
    const struct nb_ref_search *s = &p->search;

    switch (p->step) {
    case NB_PICK_LOOK: return nb_op_info_sample(comm, t->op->info, &t->work, s->own);
    case NB_PICK_ALIKE:
        return dev->ops->nearness(dev, &t->work, s->own, p->there, s->avail, NB_REF_SAMPLES, &p->near);
    default: break;
    }
    return dev->ops->sample(dev, &t->work, nb_op_info_dtype(t->op->info),
                            p->step == NB_PICK_OWN ? s->own : t->op->like->data + s->offset, values_in(t, p),
                            NB_NEAR_SAMPLES, p->sample[p->step == NB_PICK_REF]);
}

static int picked(struct nb_coll_comm *comm, struct nb_op *op)
{
    comm->gather.tasks--;
    op->picked = 1;
    if (nb_codec_row(op->codec)->reference)
        settle_reference(comm, op);
    return NB_TASK_OVER;
}

/* One more question, or the choice. */
static int seek(struct nb_coll_comm *comm, struct nb_op *op)
{
    struct nb_gather_pick *p = &comm->gather.pick;

    p->step = NB_PICK_ALIKE;
    if (nb_refs_ask(comm->refs, &p->search, &p->there))
        return NB_TASK_MORE;
    op->outcome = nb_refs_pick(comm->refs, &p->search, op->opno, &op->ref);
    op->like = op->outcome == NB_REF_NONE ? NULL : nb_refs_last(comm->refs);
    p->step = NB_PICK_OWN;
    return nb_codec_row(op->codec)->lossy && p->search.found >= 0 ? NB_TASK_MORE : picked(comm, op);
}

/* Policy has what it wants to see. */
static int looked(struct nb_coll_comm *comm, struct nb_op *op)
{
    const struct nb_codec_row *codec;

    if (nb_decisions_off(&comm->decisions) && op->codec != NB_CODEC_RAW) {
        op->codec = NB_CODEC_RAW;
        nb_decisions_count_raw(comm, NB_FUNC_ALL_GATHER, NB_RAW_SWITCHED);
    }
    codec = nb_codec_row(op->codec);
    if (codec->reference) {
        nb_refs_seek(comm->refs, &comm->gather.pick.search);
        return seek(comm, op);
    }
    if (codec->lossy) {
        nb_gather_tell_cost(comm, codec);
        comm->stats.gathers_quantized++;
    }
    comm->stats.func[NB_FUNC_ALL_GATHER].coded_ops += codec->format == NB_FORMAT_VALUES;
    return picked(comm, op);
}

static int step_done(struct nb_coll_comm *comm, struct nb_task *t, ssize_t result)
{
    struct nb_gather_pick *p = &comm->gather.pick;
    struct nb_op *op = t->op;

    if (result < 0)
        return nb_comm_error(comm, (int)result, "cannot look at the own block of all_gather %llu: %s",
                             (unsigned long long)op->opno, strerror((int)-result));
    switch (p->step) {
    case NB_PICK_LOOK: nb_op_info_sampled(op->info, (unsigned)result); return looked(comm, op);
    case NB_PICK_ALIKE: nb_refs_hear(comm->refs, &p->search, &p->near); return seek(comm, op);
    default: break;
    }
    if (result != NB_NEAR_SAMPLES)
        return picked(comm, op);
    if (p->step == NB_PICK_OWN) {
        p->step = NB_PICK_REF;
        return NB_TASK_MORE;
    }
    op->lossy = moved_a_little(p);
    return picked(comm, op);
}

/* ---- one operation -------------------------------------------------------------------------------------- */

static int begin(struct nb_coll_comm *comm, struct nb_coll_req *win, const struct nb_segment *segment)
{
    struct nb_op *op = win->op;
    struct nb_ref_search *s = &comm->gather.pick.search;
    struct nb_task *t = nb_task_new(comm, win, segment);

    op->outcome = NB_REF_NONE;
    op->ref = NULL;
    op->lossy = 0;
    op->moved_values = op->moved_bits = 0;
    s->own = win->send + (segment->off - win->part_off);
    s->offset = segment->off - (uint64_t)comm->rank * op->block;
    s->avail = nb_min64(win->off + win->bytes - segment->off, op->block - s->offset);
    s->bytes = op->block;
    nb_op_info_look(comm, op->info, s->avail);
    comm->gather.pick.step = NB_PICK_LOOK;
    comm->gather.tasks++;
    t->next = step_done;
    t->ask = ask;
    t->step = NB_STEP_PICK;
    t->bytes = segment->len;
    nb_task_ask(comm, t);
    return nb_task_run(comm, t);
}

int nb_gather_pick(struct nb_coll_comm *comm, struct nb_coll_req *win, const struct nb_segment *segment)
{
    struct nb_op *op = win->op;

    if (!op->picked && (begin(comm, win, segment) < 0 || !op->picked))
        return 0;
    if (op->outcome == NB_REF_WAIT) {
        op->outcome = nb_refs_picked(comm->refs, &op->ref);
        settle_reference(comm, op);
    }
    return op->outcome != NB_REF_WAIT;
}
