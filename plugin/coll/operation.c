/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is settled when the engine takes up the first window of an operation: codec, error slot, and for an
 * all-reduce the bytes of its windows that are values at all.
 *
 * All-reduce: NCCL hands over whole chunks whose rest holds whatever the buffer held before, and no offset. With
 * a record the valid part follows: an operation of B bytes on C channels with chunks of k bytes, on a node with
 * H heads of which this one is h, comes in L = ceil(B / (C H k)) steps; in the last one channel c holds
 * clamp(B - ((L-1) C H + c H + h) k, 0, k) bytes, in the others k. A step comes as one window for every 8
 * channels. Without a record, or as soon as a window does not fit it, whole windows are exchanged raw.
 */
#include "base/log.h"
#include "base/params.h"
#include "coll/internal.h"
#include "device/exact.h"

/* The record at the head of the queue if it describes this operation. One that does not fit stays or goes: a
 * record of another function belongs to a later operation; one of the same function that contradicts the window
 * is dropped, and the operation is handled without. */
static int take_record(struct nb_coll_comm *comm, const struct nb_op *op, struct nb_record *out)
{
    int found = 0;

    pthread_mutex_lock(&comm->submit_lock);
    if (comm->record_head < comm->record_tail) {
        const struct nb_record *r = &comm->record[comm->record_head % NB_RECORDS];
        if (r->func == op->func) {
            found = r->type == op->type && r->op == op->redop &&
                    (op->func == NB_FUNC_ALL_REDUCE || r->bytes == op->block);
            *out = *r;
            comm->record_head++;
        }
    }
    pthread_mutex_unlock(&comm->submit_lock);
    return found;
}

static void count(struct nb_coll_comm *comm, enum nb_func func, enum nb_reason reason)
{
    comm->stats.func[func].ops++;
    comm->reasons[func][reason]++;
    if (reason == NB_CODED && func != NB_FUNC_ALL_GATHER)
        comm->stats.func[func].coded_ops++;
}

/* The error slot of a quantized operation, or NULL. */
static struct nb_ef_slot *slot_of(struct nb_coll_comm *comm, const struct nb_op *op, const struct nb_record *record,
                                  uint64_t values, uint32_t blocks, uint64_t geometry)
{
    const struct nb_params *p = nb_params();
    struct nb_ef_key key = {.func = op->func, .type = op->dtype, .n = values, .blocks = blocks, .id = -1,
                            .geometry = geometry};
    struct nb_ef_slot *slot;
    int certain = 0;

    if (p->ef == NB_EF_OFF)
        return NULL;
    if (record && record->slot >= 0) {
        key.id = record->slot;
        certain = 1;
    } else if (op->func == NB_FUNC_REDUCE_SCATTER) {
        certain = nb_signatures_reduce(comm->signatures, op->type, op->block);
        if (p->ef_identity == 1) /* "signature": the user vouches */
            certain = 1;
    }
    if (!certain) {
        comm->stats.no_feedback_ambiguous++;
        return NULL;
    }
    slot = nb_feedback_get(comm->feedback, &key, op->opno);
    if (slot)
        comm->stats.feedback_ops++;
    else
        comm->stats.no_feedback_budget++;
    return slot;
}

/* ---- all-reduce ------------------------------------------------------------------------------------- */

static uint32_t groups_of(const struct nb_record *r)
{
    return (r->channels + NB_SEGMENTS - 1) / NB_SEGMENTS;
}

static void begin_recorded(struct nb_coll_comm *comm, const struct nb_op *op, const struct nb_record *r)
{
    uint64_t step = (uint64_t)r->channels * r->heads * r->chunk;
    enum nb_reason reason;
    struct nb_op whole = *op;

    comm->ar_record = *r;
    comm->ar_open = 1;
    comm->ar_window = 0;
    comm->ar_steps = (r->bytes + step - 1) / step;
    comm->ar_codec = nb_policy_codec(NB_FUNC_ALL_REDUCE, r->type, r->op, r->bytes, 1, &reason);
    comm->ar_ef = NULL;
    count(comm, NB_FUNC_ALL_REDUCE, reason);
    if (comm->ar_codec != NB_CODEC_RAW) {
        nb_policy_dtype(r->type, &whole.dtype);
        comm->ar_ef = slot_of(comm, &whole, r, comm->ar_steps * r->channels * r->chunk / op->value, 1,
                              ((uint64_t)r->channels << 40) ^ ((uint64_t)r->heads << 32) ^ r->chunk);
    }
}

/* Valid bytes of the window by the record. 0, or -1 when the window does not fit it. */
static int apply_record(struct nb_coll_comm *comm, struct nb_coll_req *win)
{
    const struct nb_record *r = &comm->ar_record;
    struct nb_op *op = win->op;
    uint32_t groups = groups_of(r), group = (uint32_t)(comm->ar_window % groups);
    uint64_t step = comm->ar_window / groups, k = r->chunk;
    uint32_t first = group * NB_SEGMENTS;
    uint32_t channels = r->channels - first < NB_SEGMENTS ? r->channels - first : NB_SEGMENTS;

    if (win->bytes != channels * k || op->type != r->type || op->redop != r->op || k % op->value)
        return -1;
    win->segments = channels;
    win->stride = k;
    for (uint32_t c = 0; c < channels; c++) {
        uint64_t before = (((step * r->channels) + first + c) * r->heads + r->head) * k;
        win->valid[c] = before >= r->bytes ? 0 : r->bytes - before < k ? r->bytes - before : k;
    }
    op->codec = comm->ar_codec;
    nb_policy_dtype(op->type, &op->dtype);
    op->ef = comm->ar_ef;
    op->ef_base = (step * r->channels + first) * k / op->value;
    if (++comm->ar_window == comm->ar_steps * groups)
        comm->ar_open = 0;
    return 0;
}

static void begin_all_reduce(struct nb_coll_comm *comm, struct nb_coll_req *win)
{
    struct nb_record r;
    enum nb_reason reason;

    if (!comm->ar_open && take_record(comm, win->op, &r))
        begin_recorded(comm, win->op, &r);
    if (comm->ar_open) {
        if (apply_record(comm, win) == 0)
            return;
        comm->ar_open = 0;
        NB_INFO(NCCL_NET, "%s: an all_reduce window of %llu bytes does not fit its record (%u channels, chunk %u): raw",
                comm->label, (unsigned long long)win->bytes, comm->ar_record.channels, comm->ar_record.chunk);
    }
    win->segments = 1;
    win->stride = win->valid[0] = win->bytes;
    win->op->codec = nb_policy_codec(NB_FUNC_ALL_REDUCE, win->op->type, win->op->redop, win->bytes, 0, &reason);
    count(comm, NB_FUNC_ALL_REDUCE, reason);
}

/* ---- all functions ---------------------------------------------------------------------------------- */

void nb_op_begin(struct nb_coll_comm *comm, struct nb_coll_req *win)
{
    struct nb_op *op = win->op;
    struct nb_record r;
    enum nb_reason reason;
    int recorded;

    op->begun = 1;
    if (op->func == NB_FUNC_ALL_REDUCE) {
        begin_all_reduce(comm, win);
        return;
    }
    recorded = take_record(comm, op, &r);
    op->codec = nb_policy_codec(op->func, op->type, op->redop, op->block * (uint64_t)comm->nranks, recorded, &reason);
    count(comm, op->func, reason);
    if (op->func == NB_FUNC_REDUCE_SCATTER && op->codec != NB_CODEC_RAW) {
        nb_policy_dtype(op->type, &op->dtype);
        op->ef = slot_of(comm, op, recorded ? &r : NULL, op->block / op->value, (uint32_t)comm->nranks, 0);
    }
}
