/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sending half of all-gathers: what is sent of the own block. Differences against a reference that the
 * receivers hold (state/reference.h), exact or, where NIBBLE_AG=delta4 and both type and content say that
 * these are weights, bounded; quantized values (NIBBLE_AG=int8); or the bytes as they are.
 */
#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/log.h"
#include "base/params.h"
#include "coll/task.h"

/* Weights move by less than this between two gathers: rms of the change over that of the values. */
#define NEAR 0.125
#define NEAR_SAMPLES 256u

static const uint8_t type_on_wire[NB_DTYPE_COUNT] = {
    [NB_F32] = ncclFloat32, [NB_BF16] = ncclBfloat16, [NB_F16] = ncclFloat16};

/* Is this the content of the slot, moved a little, when both are read as values of the type? What is not
 * finite never is. */
static int moved_a_little(const struct nb_coll_comm *comm, enum nb_dtype type, const void *cur,
                          const void *ref, uint64_t bytes)
{
    float a[NEAR_SAMPLES], b[NEAR_SAMPLES];
    size_t n = bytes / nb_dtype_size(type);
    double moved = 0, size = 0;

    if (comm->device->ops->sample(comm->device, type, cur, n, NEAR_SAMPLES, a) != NEAR_SAMPLES ||
        comm->device->ops->sample(comm->device, type, ref, n, NEAR_SAMPLES, b) != NEAR_SAMPLES)
        return 0;
    for (unsigned i = 0; i < NEAR_SAMPLES; i++) {
        const double d = (double)a[i] - (double)b[i];
        moved += d * d;
        size += (double)a[i] * (double)a[i];
    }
    return isfinite(size) && isfinite(moved) && moved <= NEAR * NEAR * size; /* NaN is not */
}

/* Once in a process: what a lossy mode costs. */
static void tell_cost(const struct nb_coll_comm *comm, const char *mode, const char *error)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;

    if (comm->shadow || atomic_flag_test_and_set(&told))
        return;
    NB_INFO(
        NCCL_INIT | NCCL_NET,
        "%s: NIBBLE_AG=%s: all-gathers of weights are not exact from here on. A node keeps its own block "
        "exact and "
        "all others hold the same approximation of it (%s), so replicas differ between nodes by that much: "
        "checks "
        "that compare hashes of weights across replicas fail, and a job resumed from a checkpoint does not "
        "continue bit by bit. NIBBLE_AG=exact is exact",
        comm->label, mode, error);
}

static void pick_reference(struct nb_coll_comm *comm, struct nb_coll_req *win, const struct nb_piece *piece,
                           const uint8_t *src)
{
    struct nb_op *op = win->op;
    struct nb_func_stats *stats = &comm->stats.func[NB_FUNC_ALL_GATHER];
    uint64_t own = (uint64_t)comm->rank * op->block, rel = piece->off - own;
    uint64_t avail = win->off + win->bytes - piece->off;

    if (avail > op->block - rel)
        avail = op->block - rel;
    op->picked = 1;
    op->outcome = NB_REF_NONE;
    op->ref = NULL;
    op->moved_values = op->moved_bits = 0;
    nb_facts_look_gather(comm, op->facts, src, avail);
    if (comm->off && op->codec != NB_CODEC_RAW) {
        op->codec = NB_CODEC_RAW;
        comm->reasons[NB_FUNC_ALL_GATHER][NB_RAW_SWITCHED]++;
    }
    if (op->codec == NB_CODEC_INT8) {
        tell_cost(comm, "int8", "within 1/254 of the largest of 32 neighbours");
        stats->coded_ops++;
        comm->stats.gathers_int8++;
    }
    if (op->codec != NB_CODEC_ULP && op->codec != NB_CODEC_DELTA4)
        return;
    op->outcome = nb_refs_pick(comm->refs, src, rel, avail, op->block, op->opno, &op->ref);
    op->like = op->outcome == NB_REF_NONE ? NULL : nb_refs_last(comm->refs);
    switch (op->outcome) {
    case NB_REF_HIT: comm->stats.ref_hits++; break;
    case NB_REF_NEW: comm->stats.ref_new++; break;
    case NB_REF_UNCONFIRMED: comm->stats.ref_unconfirmed++; break;
    case NB_REF_NONE: comm->stats.ref_budget++; break;
    }
    if (op->ref)
        stats->coded_ops++;
    if (op->codec == NB_CODEC_DELTA4) {
        op->lossy = op->outcome == NB_REF_HIT &&
                    moved_a_little(comm, op->facts->dtype, src, op->ref->data + rel, avail);
        comm->stats.gathers_delta4 += (uint64_t)op->lossy;
    }
}

/* ---- what is sent of a piece ------------------------------------------------------------------------- */

/* Codec and reference of a piece whose bytes are at task->values, and with that the task's first step: what it takes
 * to make the message at `out`. Once for each piece, in the order of pieces and operations. */
static void plan(struct nb_coll_comm *comm, struct nb_task *t, uint8_t *out)
{
    struct nb_device *dev = comm->device;
    struct nb_op *op = t->op;
    struct nb_msg *msg = &t->msg;
    const uint64_t rel = t->piece.off - (uint64_t)comm->rank * op->block;
    const size_t len = t->bytes;
    enum nb_ref_source state = NB_REF_CHANGED;

    if (!op->picked)
        pick_reference(comm, t->win, &t->piece, t->values);
    nb_msg_describe(comm, op, &t->piece, msg);
    msg->codec = NB_CODEC_RAW;
    t->step = NB_STEP_COPY;
    if (op->outcome == NB_REF_HIT || op->outcome == NB_REF_UNCONFIRMED) {
        state = nb_refs_source(comm->refs, op->like, t->values, rel, len, op->opno);
        op->changed |= state == NB_REF_CHANGED;
    } else {
        op->changed |= op->outcome == NB_REF_NEW;
    }
    if (op->ref) {
        msg->flags |= NB_MSG_KEEP;
        msg->slot = op->ref->slot;
        msg->version = op->ref->version + (op->ref->last_op != op->opno || op->ref->version == 0);
    }
    t->body = out + nb_msg_header_bytes(msg);
    if (op->outcome == NB_REF_HIT && state == NB_REF_HELD) {
        /* Nothing but the header. */
        msg->codec = NB_CODEC_ULP;
        msg->type = NB_ULP_16;
        msg->ref_hash = msg->new_hash = dev->ops->hash(dev, op->ref->data + rel, len, 0);
        nb_refs_write(op->ref, rel, len, op->opno);
        t->step = NB_STEP_OWN;
    } else if (op->ref) {
        msg->new_hash = dev->ops->hash(dev, t->values, len, 0);
        t->ref = op->ref->data + rel;
        if (op->outcome == NB_REF_HIT) {
            t->step = NB_STEP_DIFFER;
            t->with = NB_CODEC_ULP;
            if (op->lossy && state == NB_REF_CHANGED && rel % nb_dtype_size(op->facts->dtype) == 0 &&
                nb_refs_may_approximate(op->ref, len)) {
                t->with = NB_CODEC_DELTA4;
                t->dtype = op->facts->dtype;
                t->delta4 = (struct nb_delta4_stats){0, 0};
            } else {
                t->width = dev->ops->ulp_guess(dev, t->values, t->ref, len);
            }
        }
        nb_refs_write(op->ref, rel, len, op->opno);
    } else if (op->outcome == NB_REF_UNCONFIRMED) {
        /* Nothing may change the reference yet; but who was given an approximation gets the same again. */
        if (state == NB_REF_HELD)
            t->from = op->like->data + rel;
        else if (op->codec == NB_CODEC_DELTA4)
            nb_refs_sent(comm->refs, op->like, t->values, rel, len);
    } else if (op->codec == NB_CODEC_INT8) {
        const size_t size = nb_dtype_size(op->facts->dtype);
        if (rel % size == 0 && len % size == 0 && len / size >= NB_MIN_CODED_VALUES) {
            msg->codec = NB_CODEC_INT8;
            t->dtype = op->facts->dtype;
            t->value = size;
            t->first = rel / size;
            t->step = NB_STEP_CODE;
        }
    }
}

/* ---- steps ------------------------------------------------------------------------------------------- */

/* How often this node sends a piece of its own block. */
static uint64_t copies_of(const struct nb_coll_comm *comm, const struct nb_op *op)
{
    return op->schedule->flags & NB_MSG_WAY ? 1 : (uint64_t)comm->nranks - 1;
}

/* The message is complete, what the receivers will hold is in the reference: send it. In shadow mode it is counted,
 * and the bytes are sent as they are. */
static int leave(struct nb_coll_comm *comm, struct nb_task *t)
{
    struct nb_func_stats *stats = &comm->stats.func[NB_FUNC_ALL_GATHER];
    size_t len = (size_t)nb_msg_header_bytes(&t->msg) + t->msg.coded;

    if (comm->shadow && !t->shadowed) {
        t->shadowed = 1;
        stats->would_be_bytes += len * copies_of(comm, t->op);
        nb_msg_describe(comm, t->op, &t->piece, &t->msg);
        t->msg.codec = NB_CODEC_RAW;
        t->body = t->buf + NB_MSG_BYTES;
        t->from = NULL;
        t->step = NB_STEP_COPY;
        return NB_TASK_MORE;
    }
    nb_msg_pack(&t->msg, t->buf);
    if (t->msg.coded == 0)
        stats->unchanged_units += copies_of(comm, t->op);
    nb_count_unit(comm, NB_FUNC_ALL_GATHER, &t->msg, len, copies_of(comm, t->op));
    if (t->unit) {
        t->unit->len = len;
        t->unit->ready = 1;
    } else {
        nb_tx_ready(t->tx, t->item, len);
    }
    t->step = NB_STEP_OWN;
    return NB_TASK_MORE;
}

/* What it took to send a piece of a block whose receivers have a reference. */
static void count_moved(struct nb_task *t)
{
    const struct nb_msg *msg = &t->msg;

    if (t->op->outcome != NB_REF_HIT)
        return;
    t->op->moved_values += t->bytes / (msg->codec == NB_CODEC_ULP      ? msg->type
                                       : msg->codec == NB_CODEC_DELTA4 ? nb_dtype_size(t->op->facts->dtype)
                                                                       : NB_ULP_16);
    t->op->moved_bits += 8 * (uint64_t)msg->coded;
}

/* The body is there. */
static int keep(struct nb_coll_comm *comm, struct nb_task *t)
{
    if (!t->shadowed)
        count_moved(t);
    if (!t->ref || t->shadowed)
        return leave(comm, t);
    t->step = NB_STEP_STORE;
    return NB_TASK_MORE;
}

/* Differences, or quantized values, took `len` bytes. */
static int coded(struct nb_coll_comm *comm, struct nb_task *t, ssize_t len)
{
    struct nb_msg *msg = &t->msg;

    if (len < 0 && len != -E2BIG)
        return nb_comm_error(comm, (int)len, "cannot encode all_gather %llu: %s", (unsigned long long)t->op->opno,
                             strerror((int)-len));
    if (len <= 0 || (t->step == NB_STEP_CODE && (size_t)len >= t->bytes)) {
        msg->codec = NB_CODEC_RAW;
        t->step = NB_STEP_COPY;
        return NB_TASK_MORE;
    }
    msg->coded = (uint32_t)len;
    if (t->step == NB_STEP_CODE) {
        msg->type = type_on_wire[t->dtype];
        return keep(comm, t);
    }
    msg->codec = (uint8_t)t->with;
    msg->ref_hash = comm->device->ops->hash(comm->device, t->ref, t->bytes, 0);
    if (t->with == NB_CODEC_ULP) {
        msg->type = (uint8_t)t->width;
        return keep(comm, t);
    }
    msg->type = type_on_wire[t->dtype];
    comm->stats.delta4_units++;
    comm->stats.delta4_runs += t->delta4.runs;
    comm->stats.delta4_lossy_runs += t->delta4.lossy;
    if (!t->delta4.lossy)
        return keep(comm, t);
    t->step = NB_STEP_LEARN;
    return NB_TASK_MORE;
}

/* The reference holds what the receivers will decode, which is not what was sent. */
static int learnt(struct nb_coll_comm *comm, struct nb_task *t)
{
    const uint64_t rel = t->piece.off - (uint64_t)comm->rank * t->op->block;

    tell_cost(comm, "delta4", "within the rounding of bfloat16, usually 1/20 to 1/4 of it, while learning rates are "
                              "high; none later");
    t->msg.new_hash = comm->device->ops->hash(comm->device, t->ref, t->bytes, 0);
    nb_refs_approximated(comm->refs, t->op->ref, t->values, rel, t->bytes);
    count_moved(t);
    return leave(comm, t);
}

/* The piece is sent, and delivered here. */
static int finished(struct nb_coll_comm *comm, struct nb_task *t)
{
    if (t->unit)
        t->unit->left--;
    comm->gather_tasks--;
    t->op->gathered += t->bytes;
    if (t->op->gathered == t->op->block)
        nb_op_gathered(comm, t->op);
    return NB_TASK_OVER;
}

static int stepped(struct nb_coll_comm *comm, struct nb_task *t, ssize_t result)
{
    if (t->step == NB_STEP_DIFFER || t->step == NB_STEP_CODE)
        return coded(comm, t, result);
    if (result < 0)
        return nb_comm_error(comm, (int)result, "cannot gather %u bytes of all_gather %llu: %s", t->bytes,
                             (unsigned long long)t->op->opno, strerror((int)-result));
    switch (t->step) {
    case NB_STEP_COPY: t->msg.coded = t->bytes; return keep(comm, t);
    case NB_STEP_LEARN: return learnt(comm, t);
    case NB_STEP_STORE: return leave(comm, t);
    default: return finished(comm, t);
    }
}

int nb_gather_can_send(const struct nb_coll_comm *comm, const struct nb_op *op)
{
    if (!comm->task_free)
        return 0;
    /* Contents are looked at when a reference is picked; approximations are noted in order; one scratch. */
    return !comm->gather_tasks || (op->picked && op->codec != NB_CODEC_DELTA4 && !comm->shadow);
}

int nb_gather_send(struct nb_coll_comm *comm, struct nb_coll_req *win, const struct nb_piece *piece, struct nb_tx *tx,
                   struct nb_shared *unit)
{
    struct nb_task *t = nb_task_new(comm, win, piece);
    const uint8_t *src = win->send + (piece->off - win->part_off);

    t->next = stepped;
    t->values = (uint8_t *)(uintptr_t)src; /* only read */
    t->bytes = piece->len;
    t->recv = win->recv + (piece->off - win->off);
    t->delivers = piece->len;
    t->unit = unit;
    t->tx = tx;
    t->shadowed = 0;
    t->buf = unit ? unit->buf : nb_tx_buffer(tx);
    if (tx)
        t->item = nb_tx_reserve(tx, NULL);
    comm->gather_tasks++;
    plan(comm, t, comm->shadow ? comm->scratch + comm->unit_slot : t->buf);
    if (t->step == NB_STEP_OWN) { /* nothing to be made */
        count_moved(t);
        if (leave(comm, t) < 0)
            return -1;
    }
    nb_task_ask(comm, t);
    return nb_task_run(comm, t);
}
