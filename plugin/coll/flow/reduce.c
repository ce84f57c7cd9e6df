/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums. A segment waits until every contributor's message for it is at the head of its ring. It is summed in
 * rank order, so that its bits do not depend on timing. Then the sum
 *  - of a reduce-scatter is delivered,
 *  - of an all-reduce is coded for all nodes and delivered as they decode it,
 *  - of two hops is coded for its owner,
 *  - of a row (two levels) is coded for the node that finishes it.
 *
 * A finisher on a grid waits for the sums of other rows, while these rows wait for sums of its own row. If
 * both kept the order of segments, each segment would take the time of a message along a column. So a segment
 * whose row has contributed is parked until its column has, and the node sums for other rows meanwhile.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"

#include "codec/fp.h"
#include "coll/flow/internal.h"

/* ---- arrivals ---------------------------------------------------------------------------------------- */

/* The destination of a sum. */
enum goal {
    HERE,
    TO_ALL,
    TO_OWNER,
    TO_FINISHER, /* it is a part of the sum. Another node finishes it */
};

static enum goal goal_of(const struct nb_coll_comm *comm, const struct nb_op *op,
                         const struct nb_segment *segment)
{
    if (nb_segment_finisher(segment) != comm->rank)
        return TO_FINISHER;
    if (op->func == NB_FUNC_ALL_REDUCE)
        return TO_ALL;
    return segment->relay >= 0 ? TO_OWNER : HERE;
}

enum side { ROW = 1, COLUMN = 2 }; /* of contributors. A full mesh is a row */

static enum side side_of(const struct nb_coll_comm *comm, int i)
{
    return nb_grid_same_row(comm->grid, comm->neighbors[i]->rank, comm->rank) ? ROW : COLUMN;
}

/* Return 1 when the head of the ring of every contributor on these sides is its contribution to `segment`, 0
 * when some have not arrived yet, < 0 when another message is there. */
static int all_arrived(struct nb_coll_comm *comm, const struct nb_coll_req *win,
                       const struct nb_segment *segment, unsigned sides)
{
    const struct nb_op *op = win->op;

    for (int i = 0; i < comm->nneighbors; i++) {
        struct nb_peer *peer = comm->neighbors[i];
        const struct nb_msg *m = &peer->rx[NB_CLASS_CONTRIB].head;
        if (!(sides & side_of(comm, i)) || !op->schedule->contributes(comm, segment, peer->rank))
            continue;
        if (!nb_rx_head(comm, peer, NB_CLASS_CONTRIB))
            return 0;
        if (m->opno < op->opno && m->func == NB_FUNC_ALL_GATHER)
            return 0; /* a block of an earlier all-gather, which waits for delivery */
        if (m->opno != op->opno || m->func != op->func || !nb_msg_carries(op, segment, m))
            return nb_comm_error(
                comm, -EPROTO,
                "%s sent %s %llu, %u bytes at %llu, where %s %llu, %u bytes at %llu is expected", peer->name,
                nb_func_name(m->func), (unsigned long long)m->opno, m->bytes, (unsigned long long)m->offset,
                nb_func_name(op->func), (unsigned long long)op->opno, segment->len,
                (unsigned long long)segment->off);
        if (nb_msg_check_schedule(comm, peer, op, m))
            return -1;
        if (nb_msg_check_type(comm, peer, op, m))
            return -1;
    }
    return 1;
}

/* Return the contribution of neighbor i: with `parked` that of a parked segment's row, else the head of its
 * ring. */
static struct nb_held_message contribution(const struct nb_coll_comm *comm, const struct nb_parked *parked,
                                           int i)
{
    const struct nb_rx *rx = &comm->neighbors[i]->rx[NB_CLASS_CONTRIB];

    if (parked && side_of(comm, i) == ROW)
        return parked->held[i];
    return (struct nb_held_message){rx->head, nb_rx_body(rx)};
}

/* Return the bytes of the segment that all nodes take for values. Every node sends at least the real values.
 * A node without a record also sends padding, and the sum drops it. If a node has coded more than another
 * node sent, one of the two has a wrong record, and values are missing. */
static int64_t common_bytes(struct nb_coll_comm *comm, const struct nb_op *op,
                            const struct nb_segment *segment, const struct nb_parked *parked)
{
    uint32_t least = segment->most;
    int least_rank = comm->rank;

    if (op->func != NB_FUNC_ALL_REDUCE)
        return least;

    for (int i = 0; i < comm->nneighbors; i++) {
        const uint32_t bytes = contribution(comm, parked, i).msg.bytes;
        if (op->schedule->contributes(comm, segment, comm->neighbors[i]->rank) && bytes < least) {
            least = bytes;
            least_rank = comm->neighbors[i]->rank;
        }
    }
    for (int i = -1; i < comm->nneighbors; i++) {
        int r = i < 0 ? comm->rank : comm->neighbors[i]->rank;
        const struct nb_msg m =
            i < 0 ? (struct nb_msg){.bytes = segment->most} : contribution(comm, parked, i).msg;
        int more =
            i < 0 ? segment->sure && segment->most > least
                  : op->schedule->contributes(comm, segment, r) && m.codec != NB_CODEC_RAW && m.bytes > least;
        if (more)
            return nb_comm_error(
                comm, -EPROTO,
                "all_reduce %llu: node %d has %u bytes of values at %llu and node %d has only %u: an "
                "operation record is wrong (NIBBLE_AR=raw does without records)",
                (unsigned long long)op->opno, r, m.bytes, (unsigned long long)segment->off, least_rank,
                least);
    }
    return least;
}

/* ---- the task ---------------------------------------------------------------------------------------- */

/* Collect the contributions. Their first `bytes` bytes count. Return 0, or a negative errno. */
static int set_sources(struct nb_coll_comm *comm, struct nb_task *t, const struct nb_parked *parked,
                       uint32_t bytes)
{
    const struct nb_op *op = t->op;
    int coded = 0;

    t->exact = nb_policy_dtype(op->type, &t->dtype) != 0 || op->redop != ncclSum;
    for (int i = 0; i < comm->nneighbors; i++) {
        const struct nb_held_message from = contribution(comm, parked, i);
        struct nb_source *s = &t->sources[t->nsources];
        if (!t->op->schedule->contributes(comm, &t->segment, comm->neighbors[i]->rank))
            continue;
        s->codec = from.msg.codec;
        s->coded = from.body;
        s->len = from.msg.codec == NB_CODEC_RAW ? bytes : from.msg.coded;
        t->plain[t->nsources++] = s->coded;
        coded |= from.msg.codec != NB_CODEC_RAW;
    }
    return t->exact && coded ? -EBADMSG
                             : 0; /* quantized values of a type or reduction that has no quantizer */
}

/* Compare the contributions' check values. Return 0, or < 0 when one is damaged: then the communicator has
 * failed. */
static int verify_sources(struct nb_coll_comm *comm, const struct nb_task *t, const struct nb_parked *parked)
{
    for (int i = 0; i < comm->nneighbors; i++) {
        const struct nb_peer *peer = comm->neighbors[i];
        const struct nb_held_message from = contribution(comm, parked, i);
        if (t->op->schedule->contributes(comm, &t->segment, peer->rank) &&
            nb_payload_verify(comm, peer, peer->rank, &from.msg, from.body))
            return -1;
    }
    return 0;
}

/* Take the heads of the contributors on these sides, and hold their buffers. */
static void take_heads(struct nb_coll_comm *comm, const struct nb_op *op, const struct nb_segment *segment,
                       unsigned sides)
{
    for (int i = 0; i < comm->nneighbors; i++) {
        struct nb_rx *rx = &comm->neighbors[i]->rx[NB_CLASS_CONTRIB];
        if ((sides & side_of(comm, i)) &&
            op->schedule->contributes(comm, segment, comm->neighbors[i]->rank)) {
            rx->held[nb_rx_at(rx)]++;
            nb_rx_take(rx);
        }
    }
}

static void release_heads(struct nb_coll_comm *comm, struct nb_task *t)
{
    size_t n = 0;

    for (int i = 0; i < comm->nneighbors; i++) {
        struct nb_rx *rx = &comm->neighbors[i]->rx[NB_CLASS_CONTRIB];
        if (t->op->schedule->contributes(comm, &t->segment, comm->neighbors[i]->rank))
            rx->held[nb_rx_number(rx, t->sources[n++].coded)]--;
    }
}

/* Return the bit of the area with the task's sum. Return 0 for an all-reduce, whose sum lies where it is
 * delivered. */
static unsigned partial_of(const struct nb_coll_comm *comm, const struct nb_task *t)
{
    return t->tx && t->op->func != NB_FUNC_ALL_REDUCE
               ? 1u << ((size_t)(t->values - comm->flow->reduce.partial) / comm->unit)
               : 0;
}

/* The sum's message is complete. Send it. */
static void send_sum(struct nb_coll_comm *comm, struct nb_task *t)
{
    uint64_t copies = t->unit ? (uint64_t)comm->nneighbors : 1;
    size_t len = NB_MSG_BYTES + t->msg.coded;

    nb_payload_seal(comm, &t->msg, t->body);
    nb_msg_pack(&t->msg, t->buf);
    nb_count_unit(comm, t->op->func, &t->msg, len, copies);
    if (t->unit) {
        t->unit->head = NB_MSG_BYTES;
        t->unit->len = len;
        t->unit->ready = 1;
    } else {
        nb_tx_ready(t->tx, t->item, NB_MSG_BYTES, len);
    }
}

static int failed(struct nb_coll_comm *comm, const struct nb_task *t, int err, const char *what)
{
    return nb_comm_error(comm, err, "cannot reduce %s %llu, %u bytes at %llu: %s: %s",
                         nb_func_name(t->op->func), (unsigned long long)t->op->opno, t->segment.len,
                         (unsigned long long)t->segment.off, what, strerror(-err));
}

/* ---- energies of sums -------------------------------------------------------------------------------- */

#define LOOK_EVERY 2u /* sums between two that are sampled */

void nb_look_begin(struct nb_coll_comm *comm, struct nb_task *t)
{
    struct nb_look *look = &comm->flow->reduce.look;

    if (look->task || t->exact || !nb_proof_possible(comm) || !nb_op_wants_energies(t->op) ||
        look->turn++ % LOOK_EVERY)
        return;
    look->picks = nb_picks_of(t->bytes / t->value);
    if (!look->picks)
        return;
    look->task = t;
    look->then = t->step;
    t->step = NB_STEP_LOOK_OWN;
}

int nb_look_next(struct nb_coll_comm *comm, struct nb_task *t, ssize_t result)
{
    struct nb_look *look = &comm->flow->reduce.look;

    if (look->task != t)
        return 0;
    if (t->step == NB_STEP_LOOK_OWN) {
        if (result != (ssize_t)look->picks) /* the device cannot sample these values */
            look->task = NULL;
        t->step = look->then;
        return 1;
    }
    t->step = NB_STEP_LOOK_SUM;
    return 1;
}

static double pick(enum nb_dtype type, const uint32_t *at)
{
    return (double)nb_load_value(type, (const uint8_t *)at, 0); /* little-endian */
}

void nb_look_end(struct nb_coll_comm *comm, struct nb_task *t, ssize_t result)
{
    struct nb_look *look = &comm->flow->reduce.look;

    const struct nb_op *op = t->op;
    struct nb_sum_energies e = {.others_coded =
                                    op->func == NB_FUNC_REDUCE_SCATTER && op->schedule->flags != 0};

    look->task = NULL;
    if (result != (ssize_t)look->picks)
        return;
    for (unsigned i = 0; i < look->picks; i++) {
        const double own = pick(t->dtype, &look->own[i]), sum = pick(t->dtype, &look->sum[i]);

        e.own2 += own * own;
        e.others2 += (sum - own) * (sum - own);
        e.sum2 += sum * sum;
    }
    nb_op_summed(comm, t->op, &e);
}

/* The sum is complete. Code or copy it where it goes on, else show it to the proof. */
static int pass_on(struct nb_task *t)
{
    if (!t->tx && !t->unit)
        return nb_task_prove(t);
    t->step = t->msg.codec == NB_CODEC_RAW ? NB_STEP_COPY : NB_STEP_ENCODE;
    return NB_TASK_MORE;
}

/* A step is done: sum, then encode or copy where the sum is sent, then decode where this node takes it as
 * other nodes do. Continue. */
static int reduced(struct nb_coll_comm *comm, struct nb_task *t, ssize_t result)
{
    switch (t->step) {
    case NB_STEP_LOOK_OWN: nb_look_next(comm, t, result); return NB_TASK_MORE;
    case NB_STEP_SUM:
        release_heads(comm, t);
        if (result < 0)
            return failed(comm, t, (int)result, "malformed contribution");
        return nb_look_next(comm, t, result) ? NB_TASK_MORE : pass_on(t);
    case NB_STEP_LOOK_SUM: nb_look_end(comm, t, result); return pass_on(t);
    case NB_STEP_ENCODE:
    case NB_STEP_COPY:
        nb_task_release_error(comm, t);
        if (result < 0)
            return failed(comm, t, (int)result, "coding the sum");
        if (t->counted)
            nb_op_passed_on(t->op, &t->stats);
        t->msg.coded = t->step == NB_STEP_COPY ? t->bytes : (uint32_t)result;
        send_sum(comm, t);
        if (t->unit && t->step == NB_STEP_ENCODE) {
            t->step = NB_STEP_DECODE;
            return NB_TASK_MORE;
        }
        break;
    case NB_STEP_PROVE: nb_proof_picked(t->op, result); return NB_TASK_OVER;
    default:
        if (result < 0)
            return failed(comm, t, (int)result, "decoding the sum");
        break;
    }
    if (t->unit)
        t->unit->left--;
    else
        comm->flow->reduce.partials &= ~partial_of(comm, t);
    return NB_TASK_OVER;
}

/* ---- destinations of sums ---------------------------------------------------------------------------- */

/* Return true when the peer gets a result at once. Other peers get it in the order of forwards. */
static int handed_at_once(const struct nb_coll_comm *comm, const struct nb_op *op, const struct nb_peer *peer)
{
    return !op->schedule->results_to || op->schedule->results_to(comm, peer);
}

/* Return true when all these peers have room for a result now. */
static int result_room(struct nb_coll_comm *comm, const struct nb_op *op)
{
    if (comm->flow->reduce.results.tail - comm->flow->reduce.results.head ==
        comm->flow->reduce.results.buffers)
        return 0;
    for (int i = 0; i < comm->nneighbors; i++)
        if (handed_at_once(comm, op, comm->neighbors[i]) &&
            !nb_tx_buffer(&comm->neighbors[i]->tx[NB_CLASS_RESULT]))
            return 0;
    return 1;
}

/* Return the ring for a sum that goes to one node. */
static struct nb_tx *ring_of(struct nb_coll_comm *comm, enum goal goal, const struct nb_segment *segment)
{
    return goal == TO_OWNER ? &comm->peer[segment->owner].tx[NB_CLASS_RESULT]
                            : &comm->peer[nb_segment_finisher(segment)].tx[NB_CLASS_CONTRIB];
}

/* Return true when the window's operation can be decided: all own segments before it have been encoded, as
 * for contributions. */
static int can_decide(const struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    const struct nb_schedule_ops *s = win->op->schedule;

    for (int i = 0; i < comm->nneighbors; i++)
        if (comm->neighbors[i]->flow->send.cursor.seq >= win->seq &&
            (!s->values_to || s->values_to(comm, comm->neighbors[i])))
            return 1;
    return 0;
}

/* Return true when there is room for the sum at its destination, and it is its turn. */
static int can_pass_on(struct nb_coll_comm *comm, const struct nb_coll_req *win,
                       const struct nb_segment *segment)
{
    const enum goal goal = goal_of(comm, win->op, segment);

    if (goal == HERE)
        return 1;
    if (goal == TO_ALL ? !result_room(comm, win->op) : !nb_tx_buffer(ring_of(comm, goal, segment)))
        return 0;
    if (win->op->func != NB_FUNC_ALL_REDUCE && comm->flow->reduce.partials == (1u << NB_PARTIALS) - 1)
        return 0;
    if (goal != TO_FINISHER && !nb_forward_lets_result_pass(comm, win))
        return 0;
    return can_decide(comm, win);
}

#define MEASURE_EVERY 16u /* coded sums that go on, between two sums whose error is measured */

/* Plan the message of a sum that goes on. `bytes` of it are values. Return 1, or 0 when it has to wait. */
static int plan_message(struct nb_coll_comm *comm, struct nb_task *t, enum goal goal, uint32_t bytes)
{
    struct nb_op *op = t->op;
    uint32_t block = op->func == NB_FUNC_REDUCE_SCATTER ? (uint32_t)t->segment.owner : 0;

    if (!nb_op_settle(comm, op))
        return 0;
    nb_msg_describe(comm, op, &t->segment, &t->msg);
    t->msg.bytes = bytes;
    /* Sums of rows always have 8 bits: they are coded once more on the next hop. */
    t->msg.codec = (uint8_t)nb_op_segment_codec(op, t->segment.sure, bytes / op->value,
                                                goal == TO_FINISHER ? NB_HOP_ROW : NB_HOP_SUM);
    if (t->msg.codec != NB_CODEC_RAW && !nb_task_hold_error(t, block))
        return 0;
    if (t->msg.codec != NB_CODEC_RAW && goal != TO_FINISHER &&
        comm->flow->reduce.passed_on++ % MEASURE_EVERY == 0) {
        t->stats = (struct nb_encode_stats){.every = 1};
        t->counted = 1;
    }
    if (goal != TO_ALL) {
        t->tx = ring_of(comm, goal, &t->segment);
        t->buf = nb_tx_buffer(t->tx);
        t->payload = nb_tx_body(t->tx);
    } else {
        t->unit = &comm->flow->reduce.results
                       .shared[comm->flow->reduce.results.tail % comm->flow->reduce.results.buffers];
        t->buf = t->unit->buf;
        t->payload = t->unit->body;
    }
    t->body = nb_task_body(t, NB_MSG_BYTES);
    return 1;
}

/* Take the room that plan_message found. */
static void reserve(struct nb_coll_comm *comm, struct nb_task *t)
{
    if (t->tx) {
        t->item = nb_tx_reserve(t->tx, NULL);
        comm->flow->reduce.partials |= partial_of(comm, t);
    } else if (t->unit) {
        t->unit->ready = 0;
        t->unit->left = comm->nneighbors + 1; /* the other peers, and this task */
        t->unit->opno = t->op->opno;
        t->unit->off = t->segment.off;
        comm->flow->reduce.results.tail++;
        for (int i = 0; i < comm->nneighbors; i++)
            if (handed_at_once(comm, t->op, nb_next_neighbor(comm, i)))
                nb_tx_reserve(&nb_next_neighbor(comm, i)->tx[NB_CLASS_RESULT], t->unit);
    }
}

/* ---- one segment ------------------------------------------------------------------------------------- */

/* Return where the sum is written. */
static uint8_t *place_of(struct nb_coll_comm *comm, const struct nb_coll_req *win, enum goal goal,
                         const struct nb_segment *segment)
{
    unsigned i = 0;

    if (win->op->func == NB_FUNC_ALL_REDUCE)
        return win->recv + (segment->off - win->off);
    if (goal == HERE)
        return win->recv + (segment->off - win->part_off);
    while (comm->flow->reduce.partials >> i & 1)
        i++;
    return comm->flow->reduce.partial + i * comm->unit;
}

/* Sum a segment with all its contributions. parked: its row has contributed before. Return 1, 0 when it has
 * to wait, or < 0. */
static int reduce(struct nb_coll_comm *comm, struct nb_coll_req *win, const struct nb_segment *segment,
                  const struct nb_parked *parked)
{
    const enum goal goal = goal_of(comm, win->op, segment);
    int64_t bytes = common_bytes(comm, win->op, segment, parked);
    struct nb_task *t;
    int ret;

    if (bytes < 0)
        return (int)bytes;
    t = nb_task_new(comm, win, segment);
    if (!t)
        return 0;
    t->next = reduced;
    t->step = NB_STEP_SUM;
    t->bytes = (uint32_t)bytes;
    t->own = win->send + (segment->off - win->off);
    t->values = place_of(comm, win, goal, segment);
    /* A forwarded segment of an all-reduce is delivered by its forward. */
    t->delivers = win->op->schedule->results_to && win->op->func == NB_FUNC_ALL_REDUCE ? 0 : segment->len;
    ret = set_sources(comm, t, parked, (uint32_t)bytes);
    if (ret) {
        nb_task_drop(comm, t);
        return failed(comm, t, ret, "values of a type or reduction without a quantizer");
    }
    ret = goal == HERE || plan_message(comm, t, goal, (uint32_t)bytes);
    if (goal == HERE || goal == TO_ALL)
        nb_look_begin(comm, t);
    if (ret)
        ret = verify_sources(comm, t, parked) ? -1 : nb_task_ask(comm, t);
    if (ret <= 0) {
        nb_task_drop(comm, t);
        return ret;
    }
    take_heads(comm, t->op, &t->segment, parked ? COLUMN : ROW | COLUMN);
    reserve(comm, t);
    return nb_task_run(comm, t);
}

/* ---- parked segments --------------------------------------------------------------------------------- */

int nb_parking_create(struct nb_coll_comm *comm)
{
    struct nb_reduce *r = &comm->flow->reduce;

    if (!nb_on_grid(comm))
        return 0;
    r->parking = (unsigned)nb_min64((uint64_t)comm->ctx->params->credits, NB_PARKED);
    r->parked = calloc(r->parking, sizeof(*r->parked));
    r->held = calloc((size_t)r->parking * (size_t)comm->nneighbors, sizeof(*r->held));
    if (!r->parked || !r->held)
        return -ENOMEM;
    for (unsigned i = 0; i < r->parking; i++)
        r->parked[i].held = &r->held[i * (size_t)comm->nneighbors];
    return 0;
}

void nb_parking_destroy(struct nb_coll_comm *comm)
{
    free(comm->flow->reduce.parked);
    free(comm->flow->reduce.held);
}

/* Return the oldest parked segment, or NULL. */
static const struct nb_parked *oldest(const struct nb_coll_comm *comm)
{
    const struct nb_reduce *r = &comm->flow->reduce;

    return r->left == r->came ? NULL : &r->parked[r->left % r->parking];
}

uint64_t nb_reduce_reached(const struct nb_coll_comm *comm)
{
    const struct nb_parked *p = oldest(comm);

    return p ? p->win->seq : nb_cursor_reached(comm, &comm->flow->reduce.cursor);
}

bool nb_reduce_waits_for(const struct nb_coll_comm *comm, const struct nb_coll_req *win,
                         const struct nb_peer *peer)
{
    const struct nb_rx *rx = &peer->rx[NB_CLASS_CONTRIB];
    const struct nb_cursor *at = &comm->flow->reduce.cursor;
    const struct nb_schedule_ops *s = win->op->schedule;
    const struct nb_parked *p = oldest(comm);
    struct nb_segment segment;

    if (rx->taken != rx->arrived)
        return false;
    if (p && p->win == win && !nb_grid_same_row(comm->grid, peer->rank, comm->rank) &&
        s->segment_at(comm, win, p->off, &segment) && s->contributes(comm, &segment, peer->rank))
        return true;
    return nb_cursor_reached(comm, at) == win->seq &&
           s->next_reduce(comm, win, nb_cursor_place(at, win), &segment) &&
           s->contributes(comm, &segment, peer->rank);
}

/* Sum the oldest parked segment when its column has contributed. Return as nb_reduce_next. */
static int reduce_parked(struct nb_coll_comm *comm)
{
    const struct nb_parked *p = oldest(comm);
    struct nb_segment segment; /* its `most` may be more exact than when it was parked */
    int ret;

    if (!p || !p->win->op->schedule->segment_at(comm, p->win, p->off, &segment) ||
        !can_pass_on(comm, p->win, &segment))
        return 0;
    ret = all_arrived(comm, p->win, &segment, COLUMN);
    if (ret > 0)
        ret = reduce(comm, p->win, &segment, p);
    if (ret > 0)
        comm->flow->reduce.left++;
    return ret;
}

/* Park a segment when its row has contributed. Return as nb_reduce_next. */
static int park(struct nb_coll_comm *comm, struct nb_coll_req *win, const struct nb_segment *segment)
{
    struct nb_reduce *r = &comm->flow->reduce;
    struct nb_parked *p = &r->parked[r->came % r->parking];
    int ret;

    if (r->came - r->left == r->parking)
        return 0;
    ret = all_arrived(comm, win, segment, ROW);
    if (ret <= 0)
        return ret;
    p->win = win;
    p->off = segment->off;
    for (int i = 0; i < comm->nneighbors; i++)
        if (side_of(comm, i) == ROW)
            p->held[i] = contribution(comm, NULL, i);
    take_heads(comm, win->op, segment, ROW);
    r->came++;
    return 1;
}

/* ---- the next sum ------------------------------------------------------------------------------------ */

/* Sum or park the next segment in order. Return as nb_reduce_next. */
static int reduce_or_park(struct nb_coll_comm *comm, struct nb_coll_req *win,
                          const struct nb_segment *segment)
{
    const bool finishes = nb_on_grid(comm) && goal_of(comm, win->op, segment) != TO_FINISHER;
    int ret = 1;

    if (finishes)
        ret = oldest(comm) || !can_pass_on(comm, win, segment) ? 0 : all_arrived(comm, win, segment, COLUMN);
    if (finishes && ret == 0)
        return park(comm, win, segment);
    if (ret < 0 || !can_pass_on(comm, win, segment))
        return ret < 0 ? ret : 0;
    ret = all_arrived(comm, win, segment, ROW | COLUMN);
    return ret > 0 ? reduce(comm, win, segment, NULL) : ret;
}

int nb_reduce_next(struct nb_coll_comm *comm)
{
    struct nb_cursor *at = &comm->flow->reduce.cursor;
    struct nb_coll_req *win;
    struct nb_segment segment;
    int ret = reduce_parked(comm);

    if (ret)
        return ret;
    while ((win = nb_cursor_window(comm, at)) != NULL &&
           !win->op->schedule->next_reduce(comm, win, at->off, &segment))
        nb_cursor_pass(at);
    if (!win)
        return 0;
    ret = reduce_or_park(comm, win, &segment);
    if (ret > 0)
        at->off = segment.off + segment.len;
    return ret;
}
