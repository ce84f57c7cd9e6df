/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sending half of all-gathers. This node sends its own block as deltas against a reference that the
 * receivers hold (state/reference.h), or as raw bytes. The deltas are exact. They are bounded where NIBBLE_AG
 * is delta4 and both type and content say that the block holds weights.
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/log.h"
#include "coll/flow/internal.h"

/* ---- which reference --------------------------------------------------------------------------------- */

/* Weights move by less than this between two gathers: rms of the change over the values' rms. */
#define NEAR 0.125

/* Return 1 when the block's values are the reference's values, moved a little. Values that are not finite
 * return 0. */
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

/* Log once on a node the consequences of a lossy mode of all-gathers. */
static void tell_cost(struct nb_coll_comm *comm, const struct nb_codec_row *codec)
{
    if (comm->shadow || comm->node->reported_lossy)
        return;
    comm->node->reported_lossy = true;
    NB_INFO(NCCL_INIT | NCCL_NET,
            "%s: NIBBLE_AG=%s: all-gathers of weights are not exact from here on. A node keeps its own block "
            "exact, and all other nodes hold the same approximation of it (%s). So replicas differ between "
            "nodes: checks that compare hashes of weights across replicas fail, and a job resumed from a "
            "checkpoint does not continue bit by bit. Remedy: NIBBLE_AG=exact",
            comm->label, nb_ag_words[comm->ctx->params->ag], codec->loss);
}

/* It is settled whether all receivers hold the reference. Choose its use, and count it. */
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

/* ---- steps of the task ------------------------------------------------------------------------------- */

/*
 *     LOOK --> ALIKE, as often as there is a reference to compare with --> over
 *       \                                                  \----> OWN --> REF --> over
 *        \--sent raw--> over
 */

static size_t values_in(const struct nb_task *t, const struct nb_gather_pick *p)
{
    return p->search.avail / nb_dtype_size(nb_op_info_dtype(t->op->info));
}

static ssize_t ask(struct nb_coll_comm *comm, struct nb_task *t)
{
    struct nb_device *dev = comm->device;
    struct nb_gather_pick *p = &comm->flow->gather.pick;
    const struct nb_ref_search *s = &p->search;

    switch (p->step) {
    case NB_PICK_LOOK: return nb_op_info_sample(comm, t->op->info, &t->work, s->own);
    case NB_PICK_ALIKE:
        return dev->ops->similarity(dev, &t->work, s->own, p->there, s->avail, NB_REF_SAMPLES, &p->near);
    default: break;
    }
    return dev->ops->sample(dev, &t->work, nb_op_info_dtype(t->op->info),
                            p->step == NB_PICK_OWN ? s->own : t->op->like->data + s->offset, values_in(t, p),
                            NB_NEAR_SAMPLES, p->sample[p->step == NB_PICK_REF]);
}

static int picked(struct nb_coll_comm *comm, struct nb_op *op)
{
    comm->gathering--;
    op->picked = 1;
    if (op->codec != NB_CODEC_RAW)
        settle_reference(comm, op);
    return NB_TASK_OVER;
}

/* Ask the device to compare with one more reference, or make the choice. */
static int seek(struct nb_coll_comm *comm, struct nb_op *op)
{
    struct nb_gather_pick *p = &comm->flow->gather.pick;

    p->step = NB_PICK_ALIKE;
    if (nb_refs_ask(comm->refs, &p->search, &p->there))
        return NB_TASK_MORE;
    op->outcome = nb_refs_pick(comm->refs, &p->search, op->opno, &op->ref);
    op->like = op->outcome == NB_REF_NONE ? NULL : nb_refs_last(comm->refs);
    p->step = NB_PICK_OWN;
    return nb_codec_row(op->codec)->lossy && p->search.found >= 0 ? NB_TASK_MORE : picked(comm, op);
}

/* Policy has its sample. Choose the codec, and begin the search for a reference. */
static int looked(struct nb_coll_comm *comm, struct nb_op *op)
{
    op->codec = nb_op_gather_codec(comm, op);
    if (op->codec == NB_CODEC_RAW)
        return picked(comm, op);
    nb_refs_seek(comm->refs, &comm->flow->gather.pick.search);
    return seek(comm, op);
}

static int pick_step_done(struct nb_coll_comm *comm, struct nb_task *t, ssize_t result)
{
    struct nb_gather_pick *p = &comm->flow->gather.pick;
    struct nb_op *op = t->op;

    if (result < 0)
        return nb_comm_error(comm, (int)result, "cannot sample the own block of all_gather %llu: %s",
                             (unsigned long long)op->opno, strerror((int)-result));
    switch (p->step) {
    case NB_PICK_LOOK: nb_op_info_sampled(op->info, (unsigned)result); return looked(comm, op);
    case NB_PICK_ALIKE: nb_refs_answer(comm->refs, &p->search, &p->near); return seek(comm, op);
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

/* ---- one operation ----------------------------------------------------------------------------------- */

static int begin(struct nb_coll_comm *comm, struct nb_coll_req *win, const struct nb_segment *segment)
{
    struct nb_op *op = win->op;
    struct nb_ref_search *s = &comm->flow->gather.pick.search;
    struct nb_task *t = nb_task_new(comm, win, segment);

    op->outcome = NB_REF_NONE;
    op->ref = NULL;
    op->lossy = 0;
    op->moved_values = op->moved_bits = 0;
    s->own = win->send + (segment->off - win->part_off);
    s->offset = segment->off - (uint64_t)comm->rank * op->block;
    s->avail = nb_min64(win->off + win->bytes - segment->off, op->block - s->offset);
    s->bytes = op->block;
    nb_op_info_wants_sample(comm, op->info, s->avail);
    comm->flow->gather.pick.step = NB_PICK_LOOK;
    comm->gathering++;
    t->next = pick_step_done;
    t->ask = ask;
    t->step = NB_STEP_PICK;
    t->bytes = segment->len;
    nb_task_ask(comm, t);
    return nb_task_run(comm, t);
}

/* Pick the reference of the operation of `win`, which is about to send `segment` of the own block. Return 1
 * when the reference is chosen and may be used. Return 0 when the choice has to wait or the communicator has
 * failed. The caller has checked that a task is free, and that no task of the own block is in flight while
 * op->picked is 0. */
static int pick_reference(struct nb_coll_comm *comm, struct nb_coll_req *win,
                          const struct nb_segment *segment)
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

/* ---- the own block ----------------------------------------------------------------------------------- */

static const uint8_t type_on_wire[NB_DTYPE_COUNT] = {
    [NB_F32] = ncclFloat32, [NB_BF16] = ncclBfloat16, [NB_F16] = ncclFloat16};

/* ---- steps ------------------------------------------------------------------------------------------- */

/*
 *     COMPARE --noted--> SOURCE, as often as there is a part
 *        |------------------/
 *        |--as it was delivered-------------------------------------------------> send --> OWN --> over
 *        |  \--not to be kept--> NOTE?, likewise --> COPY -------------------------^
 *        v                                                                         |
 *     DELTA_ENCODE --fits-----------------> STORE_REF -----------------------------|
 *       |     \--bounded, something lost--> UPDATE_REF --> HASH_REF --> NOTE -------|
 *       |                                                                          |
 *       \--too long-> COPY --to be kept---> STORE_REF -----------------------------|
 *                      ^ \---------------------------------------------------------/
 *     HASH ------------/
 *
 * STORE_REF keeps the values as the reference. UPDATE_REF keeps the values that receivers will decode. "Send"
 * is leave(): in shadow mode it counts the message and begins again with COPY. OWN delivers the segment here.
 * Before the task is over PROVE shows the values to the operation's proof, where there is one.
 */

/* Return how often this node sends a segment of its own block: once to its relay, or to all nodes. */
static uint64_t copies_of(const struct nb_coll_comm *comm, const struct nb_task *t)
{
    return t->unit ? (uint64_t)comm->nnodes - 1 : 1;
}

/* The message is complete, and the reference holds the values that the receivers will hold. Send the message.
 * In shadow mode count it, and send the bytes raw. */
static int leave(struct nb_coll_comm *comm, struct nb_task *t)
{
    struct nb_func_stats *stats = &comm->stats.func[NB_FUNC_ALL_GATHER];
    size_t len = (size_t)nb_msg_header_bytes(&t->msg) + t->msg.coded;

    if (comm->shadow && !t->shadowed) {
        t->shadowed = 1;
        stats->would_be_bytes += len * copies_of(comm, t);
        nb_msg_describe(comm, t->op, &t->segment, &t->msg);
        t->msg.codec = NB_CODEC_RAW;
        t->body = nb_task_body(t, NB_MSG_BYTES);
        t->from = NULL;
        t->step = NB_STEP_COPY;
        return NB_TASK_MORE;
    }
    nb_payload_seal(comm, &t->msg, t->body);
    nb_msg_pack(&t->msg, t->buf);
    if (t->msg.coded == 0)
        stats->unchanged_units += copies_of(comm, t);
    nb_count_unit(comm, NB_FUNC_ALL_GATHER, &t->msg, len, copies_of(comm, t));
    if (t->unit) {
        t->unit->head = nb_msg_header_bytes(&t->msg);
        t->unit->len = len;
        t->unit->ready = 1;
    } else {
        nb_tx_ready(t->tx, t->item, nb_msg_header_bytes(&t->msg), len);
    }
    t->step = NB_STEP_OWN;
    return NB_TASK_MORE;
}

/* Count values and bits of a sent segment whose receivers have a reference. */
static void count_moved(struct nb_task *t)
{
    const struct nb_msg *msg = &t->msg;
    size_t value = NB_ULP_16;

    if (t->op->outcome != NB_REF_HIT)
        return;
    switch (nb_codec_row(msg->codec)->format) {
    case NB_FORMAT_PATTERNS: value = msg->type; break;
    case NB_FORMAT_VALUES: value = nb_dtype_size(nb_op_info_dtype(t->op->info)); break;
    default: break;
    }
    t->op->moved_values += t->bytes / value;
    t->op->moved_bits += 8 * (uint64_t)msg->coded;
}

/* ---- the message of a segment ------------------------------------------------------------------------ */

/*
 * The message of a segment. The first step compares its bytes with the reference.
 *
 *   reference (op->outcome)      source of the segment        message
 *
 *   none (no memory, raw)        any                          raw
 *   NEW                          any                          raw, to be kept
 *   HIT                          as delivered last (HELD)     header only
 *   HIT                          changed                      ULP deltas, or DELTA4 where these may be used,
 *                                                             or raw where deltas would be longer; to be kept
 *   UNCONFIRMED (some receivers  as delivered last (HELD)     raw, from the reference: the same approximation
 *   could not keep it)           changed                      raw
 */

/* Begin with a segment whose bytes are at t->values. Write the known fields of the header, mark the place in
 * the reference as written by this operation, and set the task's first step. In shadow mode the message will
 * be at `scratch`.
 * This changes the reference's records, so call it once for each segment, in the order of operations and
 * segments. */
static void begin_piece(struct nb_coll_comm *comm, struct nb_task *t, uint8_t *scratch)
{
    struct nb_op *op = t->op;
    struct nb_msg *msg = &t->msg;
    const uint64_t rel = t->segment.off - (uint64_t)comm->rank * op->block;

    nb_msg_describe(comm, op, &t->segment, msg);
    msg->codec = NB_CODEC_RAW;
    op->changed |= op->outcome == NB_REF_NEW;
    if (op->ref) {
        msg->flags |= NB_MSG_KEEP;
        msg->ref_number = op->ref->number;
        msg->version = op->ref->version + (op->ref->last_op != op->opno || op->ref->version == 0);
    }
    t->body = scratch ? scratch + nb_msg_header_bytes(msg) : nb_task_body(t, nb_msg_header_bytes(msg));
    t->source_noted = false;
    switch (op->outcome) {
    case NB_REF_HIT:
    case NB_REF_UNCONFIRMED:
        t->ref = op->like->data + rel;
        t->step = NB_STEP_COMPARE;
        t->source_noted = nb_refs_source_noted(op->like, op->opno);
        break;
    case NB_REF_NEW:
        t->ref = op->ref->data + rel;
        t->step = NB_STEP_HASH;
        break;
    default: t->step = NB_STEP_COPY; break;
    }
    if (op->ref)
        nb_refs_write(op->ref, rel, t->bytes, op->opno);
}

/* Note a sample of each part of the bytes, to recognise them later. Then continue with the next step. */
static int next_note(struct nb_coll_comm *comm, struct nb_task *t)
{
    t->step = NB_STEP_NOTE;
    if (nb_refs_note_ask(&t->range))
        return NB_TASK_MORE;
    if (t->range.all == NB_REF_HELD) {
        count_moved(t);
        return leave(comm, t);
    }
    t->step = NB_STEP_COPY;
    return NB_TASK_MORE;
}

/* The source of the bytes is known. Choose the step that makes the message, or the step after it where the
 * header is enough. */
static int found(struct nb_coll_comm *comm, struct nb_task *t, enum nb_ref_source source)
{
    struct nb_op *op = t->op;
    struct nb_msg *msg = &t->msg;
    const struct nb_codec_row *codec = nb_codec_row(op->codec);
    const uint64_t rel = t->segment.off - (uint64_t)comm->rank * op->block;
    const size_t len = t->bytes;

    op->changed |= source == NB_REF_CHANGED;
    t->step = NB_STEP_COPY;
    if (op->outcome == NB_REF_HIT && source == NB_REF_HELD) {
        /* The header only. */
        msg->codec = (uint8_t)codec->exact;
        msg->type = NB_ULP_16;
        msg->ref_hash = msg->new_hash = t->seen.ref_hash;
        t->ref = NULL;
        count_moved(t);
        return leave(comm, t);
    }
    if (op->outcome == NB_REF_HIT) {
        msg->new_hash = t->seen.hash;
        t->step = NB_STEP_DELTA_ENCODE;
        t->with = codec->exact;
        t->width = t->seen.width;
        if (op->lossy && source == NB_REF_CHANGED && rel % nb_dtype_size(nb_op_info_dtype(op->info)) == 0 &&
            nb_refs_may_approximate(op->ref, len)) {
            t->with = codec->code;
            t->dtype = nb_op_info_dtype(op->info);
            t->delta4 = (struct nb_delta4_stats){0, 0};
        }
        return NB_TASK_MORE;
    }
    /* The reference must stay as it is: a receiver that holds an approximation gets the same approximation
     * again. */
    t->ref = NULL;
    if (source != NB_REF_HELD && codec->lossy) {
        nb_refs_note(op->like, &t->range, rel, len, NB_REF_SENT);
        return next_note(comm, t);
    }
    if (source == NB_REF_HELD)
        t->from = op->like->data + rel;
    return NB_TASK_MORE;
}

/* Compare one more part with its noted sample, or take the source that was found. */
static int next_source(struct nb_coll_comm *comm, struct nb_task *t)
{
    t->step = NB_STEP_SOURCE;
    return nb_refs_source_ask(t->op->like, &t->range) ? NB_TASK_MORE : found(comm, t, t->range.all);
}

/* The bytes were compared with the reference's bytes. */
static int compared(struct nb_coll_comm *comm, struct nb_task *t)
{
    const uint64_t rel = t->segment.off - (uint64_t)comm->rank * t->op->block;

    if (!t->source_noted)
        return found(comm, t, t->seen.equal ? NB_REF_HELD : NB_REF_CHANGED);
    nb_refs_source(t->op->like, &t->range, rel, t->bytes);
    return next_source(comm, t);
}

/* The body is complete. Keep the values where they are to be kept. */
static int keep(struct nb_coll_comm *comm, struct nb_task *t)
{
    if (!t->shadowed)
        count_moved(t);
    if (!t->ref || t->shadowed)
        return leave(comm, t);
    t->step = NB_STEP_STORE_REF;
    return NB_TASK_MORE;
}

/* The deltas took `len` bytes. */
static int coded(struct nb_coll_comm *comm, struct nb_task *t, ssize_t len)
{
    struct nb_msg *msg = &t->msg;
    const struct nb_codec_row *codec = nb_codec_row((unsigned)t->with);

    if (len < 0 && len != -E2BIG)
        return nb_comm_error(comm, (int)len, "cannot encode all_gather %llu: %s",
                             (unsigned long long)t->op->opno, strerror((int)-len));
    if (len <= 0) {
        msg->codec = NB_CODEC_RAW;
        t->step = NB_STEP_COPY;
        return NB_TASK_MORE;
    }
    msg->coded = (uint32_t)len;
    msg->codec = (uint8_t)codec->code;
    msg->type = codec->format == NB_FORMAT_PATTERNS ? (uint8_t)t->width : type_on_wire[t->dtype];
    msg->ref_hash = t->seen.ref_hash;
    if (!codec->lossy)
        return keep(comm, t);
    comm->stats.bounded_units++;
    comm->stats.bounded_runs += t->delta4.runs;
    comm->stats.bounded_lossy_runs += t->delta4.lossy;
    if (!t->delta4.lossy)
        return keep(comm, t);
    t->step = NB_STEP_UPDATE_REF;
    return NB_TASK_MORE;
}

/* The reference holds the values that receivers will decode, which differ from the block's values. */
static int learnt(struct nb_coll_comm *comm, struct nb_task *t)
{
    const uint64_t rel = t->segment.off - (uint64_t)comm->rank * t->op->block;

    tell_cost(comm, nb_codec_row(t->msg.codec));
    t->msg.new_hash = t->seen.hash;
    nb_refs_note(t->op->like, &t->range, rel, t->bytes, NB_REF_HELD);
    return next_note(comm, t);
}

/* The segment was sent, delivered here and shown to the proof. */
static int finished(struct nb_coll_comm *comm, struct nb_task *t)
{
    if (t->unit)
        t->unit->left--;
    comm->gathering--;
    t->op->gathered += t->bytes;
    if (t->op->gathered == t->op->block)
        nb_op_gathered(comm, t->op);
    return NB_TASK_OVER;
}

static int step_done(struct nb_coll_comm *comm, struct nb_task *t, ssize_t result)
{
    if (t->step == NB_STEP_PROVE) {
        nb_proof_picked(t->op, result);
        return finished(comm, t);
    }
    if (t->step == NB_STEP_DELTA_ENCODE)
        return coded(comm, t, result);
    if (result < 0)
        return nb_comm_error(comm, (int)result, "cannot gather %u bytes of all_gather %llu: %s", t->bytes,
                             (unsigned long long)t->op->opno, strerror((int)-result));
    switch (t->step) {
    case NB_STEP_COMPARE: return compared(comm, t);
    case NB_STEP_SOURCE: nb_refs_source_answer(t->op->like, &t->range); return next_source(comm, t);
    case NB_STEP_NOTE: nb_refs_note_answer(t->op->like, &t->range); return next_note(comm, t);
    case NB_STEP_HASH:
        t->msg.new_hash = t->seen.hash;
        t->step = NB_STEP_COPY;
        return NB_TASK_MORE;
    case NB_STEP_COPY: t->msg.coded = t->bytes; return keep(comm, t);
    case NB_STEP_UPDATE_REF: t->step = NB_STEP_HASH_REF; return NB_TASK_MORE;
    case NB_STEP_HASH_REF: return learnt(comm, t);
    case NB_STEP_STORE_REF: return leave(comm, t);
    default:
        nb_proof_weights(comm, t->op, nb_op_info_call(t->op->info));
        return nb_task_prove(t) == NB_TASK_MORE ? NB_TASK_MORE : finished(comm, t);
    }
}

int nb_gather_can_send(struct nb_coll_comm *comm, struct nb_coll_req *win, const struct nb_segment *segment)
{
    const struct nb_codec_row *codec = nb_codec_row(win->op->codec);

    if (!nb_tasks_to_be_had(&comm->flow->tasks))
        return 0;
    /* One task at a time: a pick reads the block's contents, parts are noted and recognised in order, and
     * there is one scratch. */
    if (comm->gathering && (!win->op->picked || (codec->reference && codec->lossy) || comm->shadow ||
                            (win->op->like && nb_refs_source_noted(win->op->like, win->op->opno))))
        return 0;
    return pick_reference(comm, win, segment) && nb_tasks_to_be_had(&comm->flow->tasks);
}

int nb_gather_send(struct nb_coll_comm *comm, struct nb_coll_req *win, const struct nb_segment *segment,
                   struct nb_tx *tx, struct nb_shared *unit)
{
    struct nb_task *t = nb_task_new(comm, win, segment);
    const uint8_t *src = win->send + (segment->off - win->part_off);

    t->next = step_done;
    t->values = (uint8_t *)(uintptr_t)src; /* only read */
    t->bytes = segment->len;
    t->recv = win->recv + (segment->off - win->off);
    t->delivers = segment->len;
    t->unit = unit;
    t->tx = tx;
    t->shadowed = 0;
    t->buf = unit ? unit->buf : nb_tx_buffer(tx);
    t->payload = unit ? unit->body : nb_tx_body(tx);
    if (tx)
        t->item = nb_tx_reserve(tx, NULL);
    comm->gathering++;
    begin_piece(comm, t, comm->shadow ? comm->flow->scratch.mem + comm->buffer_bytes : NULL);
    nb_task_ask(comm, t);
    return nb_task_run(comm, t);
}

/* ---- the first hop ----------------------------------------------------------------------------------- */

/*
 * The first hop of all-gathers that are forwarded. The owner encodes and sends its segments in order, with
 * one cursor for all peers, because it writes the reference from front to back.
 */

int nb_first_hop_progress(struct nb_coll_comm *comm)
{
    struct nb_cursor *at = &comm->flow->first_hop;
    struct nb_coll_req *win;
    int moved = 0;

    while ((win = nb_cursor_window(comm, at)) != NULL) {
        struct nb_segment segment;
        struct nb_peer *peer;

        if (!nb_has_first_hop(win->op) || !win->op->schedule->next_first_hop(comm, win, at->off, &segment)) {
            nb_cursor_pass(at);
            nb_window_sent(comm, win);
            moved = 1;
            continue;
        }
        peer = &comm->peer[segment.relay];
        if (nb_peer_has_left(comm, peer, NB_CLASS_CONTRIB, win->op))
            return -1;
        /* Segments of older windows for this node go first. */
        if (peer->flow->send.cursor.seq < at->seq)
            break;
        if (!nb_tx_buffer(&peer->tx[NB_CLASS_CONTRIB]) || !nb_gather_can_send(comm, win, &segment))
            break;
        if (nb_gather_send(comm, win, &segment, &peer->tx[NB_CLASS_CONTRIB], NULL) < 0)
            return -1;
        at->off = segment.off + segment.len;
        moved = 1;
    }
    return moved;
}
