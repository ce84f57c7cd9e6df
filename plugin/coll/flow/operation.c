/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Begins operations. When the engine dequeues the first window of an operation, it looks for the operation's
 * record. For every window of an all-reduce it finds out which bytes are values (policy/records/walk.c).
 * All-reduces without a certain record are exchanged raw, with their padding.
 */
#include <errno.h>
#include <string.h>

#include "base/context.h"
#include "base/demand.h"
#include "base/log.h"
#include "base/nccl_names.h"
#include "coll/flow/internal.h"
#include "device/device.h"

_Static_assert(NB_ALIGN_MISFIT + 1 == NB_COLL_RECORD_OUTCOMES,
               "stats.h counts the outcomes of nb_align_begin");

/* ---- state ------------------------------------------------------------------------------------------- */

/* Return the queue of this communicator's records. When one process is several nodes, another group may
 * already consume that queue, and the records cannot be told apart. Then return an own queue, which stays
 * empty. */
static struct nb_queue *join_queue(struct nb_context *ctx, uint64_t comm_id, int nnodes)
{
    struct nb_queue *queue = nb_queue_get(ctx, comm_id, nb_current_gpu(ctx));

    if (queue && nb_queue_attach(queue, nnodes) == 0)
        return queue;
    nb_queue_put(queue);
    queue = nb_queue_get(ctx, 0, -1);
    if (queue && nb_queue_attach(queue, nnodes)) {
        nb_queue_put(queue);
        queue = NULL;
    }
    return queue;
}

int nb_records_init(struct nb_coll_comm *comm)
{
    comm->flow->records.align = nb_align_create();
    comm->queue = join_queue(comm->ctx, comm->comm_id, comm->nnodes);
    return comm->flow->records.align && comm->queue ? 0 : -ENOMEM;
}

void nb_records_destroy(struct nb_coll_comm *comm)
{
    if (comm->flow)
        nb_align_destroy(comm->flow->records.align);
    if (comm->queue)
        nb_queue_detach(comm->queue);
    nb_queue_put(comm->queue);
}

/* ---- records ----------------------------------------------------------------------------------------- */

enum { SAID_MISFIT, SAID_ABSENT, SAID_DOUBT, SAID_WRONG, SAID_PLACE, SAID_CALL };

static int first_time(struct nb_coll_comm *comm, unsigned what)
{
    int first = !(comm->flow->records.said >> what & 1);

    comm->flow->records.said |= 1u << what;
    return first;
}

/* Log once on a node that records of this communicator should arrive and cannot. */
static void warn_absent(const struct nb_coll_comm *comm)
{
    struct nb_coll_node *node = comm->node;

    if (comm->comm_id == 0) { /* a table before v11: this communicator has no records of users' calls */
        nb_demand_fails(comm->ctx, NB_DEMAND_ALL_REDUCE, "NCCL 2.27 and older do not report operations");
        return;
    }
    if (!nb_queue_is_profiled(comm->queue) && !node->warned_profiler) {
        node->warned_profiler = true;
        nb_demand_fails(comm->ctx, NB_DEMAND_ALL_REDUCE, "NCCL's profiler events do not come here");
        NB_INFO(NCCL_INIT | NCCL_NET,
                "NCCL's profiler events do not come here, so all-reduces are not compressed: another "
                "profiler plugin is in use (NCCL_PROFILER_PLUGIN, or a libnccl-profiler.so in the library "
                "path). Remedy: NCCL_PROFILER_PLUGIN=libnccl-net-nibble.so, and NIBBLE_PROFILER_NEXT for the "
                "other one");
    }
    if (!nb_tuner_seen(comm->ctx) && !node->warned_tuner) {
        node->warned_tuner = true;
        nb_demand_fails(comm->ctx, NB_DEMAND_TUNER, "NCCL does not ask this plugin's tuner");
        NB_INFO(NCCL_INIT | NCCL_NET,
                "NCCL does not ask this plugin's tuner, so it seldom chooses CollNet by itself: another "
                "tuner plugin is in use (NCCL_TUNER_PLUGIN, or a libnccl-tuner.so in the library path). "
                "Remedy: NCCL_TUNER_PLUGIN=libnccl-net-nibble.so, and NIBBLE_TUNER_NEXT for the other one");
    }
}

static void take_in(struct nb_coll_comm *comm)
{
    struct nb_record r[32];
    size_t room, n;

    while ((room = nb_align_room(comm->flow->records.align)) > 0) {
        n = nb_queue_take(comm->queue, r, room < 32 ? room : 32);
        if (n == 0)
            break;
        for (size_t i = 0; i < n; i++)
            nb_align_add(comm->flow->records.align, &r[i]);
    }
}

/* Find the record of the operation that begins with this window. Return 1 and *out, or 0. Log the first
 * failure of each kind with the expected record. */
static int find_record(struct nb_coll_comm *comm, const struct nb_op *op, uint64_t bytes,
                       struct nb_record *out)
{
    const struct nb_seen seen = {op->func, op->type, bytes};
    enum nb_alignment how;

    if (first_time(comm, SAID_CALL))
        warn_absent(comm);
    take_in(comm);
    how = nb_align_begin(comm->flow->records.align, &seen, out);
    comm->stats.records[how]++;
    switch (how) {
    case NB_ALIGN_CERTAIN:
    case NB_ALIGN_ALIKE:
        if (out->comm != comm->comm_id && comm->device->ops->shares)
            comm->device->ops->shares(comm->device, out->comm); /* certainly a child communicator's */
        return 1;
    case NB_ALIGN_ABSENT:
        if (nb_queue_is_profiled(comm->queue) && first_time(comm, SAID_ABSENT))
            NB_INFO(NCCL_NET, "%s: %s %llu (%s) came without a record", comm->label, nb_func_name(op->func),
                    (unsigned long long)op->opno, nb_nccl_type_name(op->type));
        return 0;
    case NB_ALIGN_DOUBT:
        if (first_time(comm, SAID_DOUBT))
            NB_INFO(NCCL_NET, "%s: records are missing, so the record of %s %llu (%s) is uncertain",
                    comm->label, nb_func_name(op->func), (unsigned long long)op->opno,
                    nb_nccl_type_name(op->type));
        return 0;
    default:
        if (first_time(comm, SAID_MISFIT))
            NB_INFO(NCCL_NET, "%s: no record fits %s %llu of %s, %llu bytes a rank: handled without a record",
                    comm->label, nb_func_name(op->func), (unsigned long long)op->opno,
                    nb_nccl_type_name(op->type), (unsigned long long)bytes);
        return 0;
    }
}

/* ---- values ------------------------------------------------------------------------------------------ */

static ssize_t ask_sample(struct nb_coll_comm *comm, struct nb_task *t)
{
    return nb_op_info_sample(comm, t->op->info, &t->work, t->values);
}

static ssize_t ask_sums(struct nb_coll_comm *comm, struct nb_task *t)
{
    return nb_op_info_sums(comm, t->op->info, &t->work, t->values);
}

static int answered(struct nb_coll_comm *comm, struct nb_task *t, ssize_t result)
{
    struct nb_op *op = t->op;

    if (result < 0)
        return nb_comm_error(comm, (int)result, "cannot sample the values of %s %llu: %s",
                             nb_func_name(op->func), (unsigned long long)op->opno, strerror((int)-result));
    if (t->ask == ask_sums) {
        nb_op_info_summed(op->info, (unsigned)result);
        return NB_TASK_OVER;
    }
    t->ask = ask_sums;
    return nb_op_info_sampled(op->info, (unsigned)result) ? NB_TASK_MORE : NB_TASK_OVER;
}

/* Start a task that samples the first `bytes` bytes of a reduction's values. */
static void look(struct nb_coll_comm *comm, struct nb_coll_req *win, uint64_t bytes)
{
    static const struct nb_segment nothing = {.relay = -1};
    struct nb_task *t;

    if (!nb_op_info_wants_sample(comm, win->op->info, bytes))
        return;
    t = nb_task_new(comm, win, &nothing);
    t->next = answered;
    t->ask = ask_sample;
    t->step = NB_STEP_PICK;
    t->values = (uint8_t *)(uintptr_t)win->send; /* only read */
    t->bytes = (uint32_t)win->op->value;         /* any number but 0, which would mean padding */
    nb_task_ask(comm, t);
    nb_task_run(comm, t);
}

/* ---- all-reduce -------------------------------------------------------------------------------------- */

/* Return the heads that a record allows and that lengths of earlier operations have not ruled out. */
static uint64_t *heads_left(struct nb_coll_comm *comm, uint64_t told)
{
    for (size_t i = 0; i < sizeof(comm->flow->records.heads) / sizeof(comm->flow->records.heads[0]); i++) {
        if (comm->flow->records.heads[i].told == 0)
            comm->flow->records.heads[i].told = comm->flow->records.heads[i].left = told;
        if (comm->flow->records.heads[i].told == told)
            return &comm->flow->records.heads[i].left;
    }
    return NULL;
}

/* End the current all-reduce: it has got its last window. */
static void all_reduce_over(struct nb_coll_comm *comm)
{
    struct nb_walk *w = &comm->flow->records.walk;
    uint64_t *left, fit;

    if (!w->open)
        return;
    w->open = 0;
    if (nb_align_ended(comm->flow->records.align, w->steps, w->cur)) {
        comm->stats.records_wrong++;
        if (first_time(comm, SAID_WRONG))
            NB_INFO(NCCL_NET, "%s: an all_reduce had %llu steps of %llu bytes, which its record contradicts",
                    comm->label, (unsigned long long)w->steps, (unsigned long long)w->cur);
        return;
    }
    if (!comm->flow->records.ar.known)
        return;
    fit = nb_walk_heads(&comm->flow->records.ar.extent, w->steps, w->cur);
    left = heads_left(comm, comm->flow->records.ar.heads_told);
    if (left && (*left & fit))
        *left &= fit;
}

/* Begin an all-reduce with a window that is already part of the walk. */
static void all_reduce_begins(struct nb_coll_comm *comm, const struct nb_op *op)
{
    struct nb_record r;
    uint64_t *left, geometry = 0;

    comm->flow->records.ar.type = op->type;
    comm->flow->records.ar.op = op->redop;
    comm->flow->records.ar.info = NULL;
    comm->stats.func[NB_FUNC_ALL_REDUCE].ops++;
    comm->flow->records.ar.known = find_record(comm, op, 0, &r) && (r.flags & NB_RECORD_API) &&
                                   !(r.flags & (NB_RECORD_CHAIN | NB_RECORD_DOUBT)) &&
                                   r.bytes % op->value == 0;
    if (!comm->flow->records.ar.known) {
        nb_decisions_count_raw(comm, NB_FUNC_ALL_REDUCE, NB_RAW_UNKNOWN);
        return;
    }
    comm->flow->records.ar.heads_told = r.heads;
    left = heads_left(comm, r.heads);
    comm->flow->records.ar.extent = (struct nb_extent){
        .bytes = r.bytes, .heads = left ? *left : r.heads, .head = r.head, .chunk = r.chunk};
    comm->flow->records.ar.info = nb_op_info_new(comm, op, &r, r.bytes);
    /* With one head the stream is the vector. Otherwise the deal of chunks decides which value lies where. */
    if (comm->flow->records.ar.extent.heads != 2)
        geometry = comm->flow->records.ar.extent.heads << 32 ^ comm->flow->records.walk.first ^
                   (uint64_t)r.chunk << 20;
    nb_op_info_shape(comm->flow->records.ar.info,
                     nb_walk_longest(&comm->flow->records.walk, &comm->flow->records.ar.extent, op->value) /
                         op->value,
                     1, geometry);
}

/* Return which operation the window belongs to. NB_WALK_EITHER: it may begin a new one. */
static enum nb_walk_place place_of(const struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    const struct nb_walk *w = &comm->flow->records.walk;
    enum nb_walk_place place = nb_walk_place(w, win->slot, win->at, win->bytes);
    int alike = w->open && comm->flow->records.ar.type == win->op->type &&
                comm->flow->records.ar.op == win->op->redop;
    int ended;

    if (place == NB_WALK_EITHER && !alike)
        return NB_WALK_BEGINS;
    if (place == NB_WALK_CONTINUES && !alike)
        return NB_WALK_NOWHERE;
    if (place == NB_WALK_EITHER && comm->flow->records.ar.known) {
        ended = nb_walk_ended(w, &comm->flow->records.ar.extent);
        return ended < 0 ? place : ended ? NB_WALK_BEGINS : NB_WALK_CONTINUES;
    }
    return place;
}

/*
 * An all-reduce's windows arrive without offset or total. Their place in NCCL's buffer shows which operation
 * they belong to (policy/records/walk.c). `known` means that the record of the current operation is certain.
 *
 *   place       the window                       the engine                                 known afterwards
 *
 *   NOWHERE     is where NCCL puts no window     gives up the walk                          no
 *   BEGINS      is the first of a new operation  ends the operation before, seeks a record  if one is found
 *   EITHER      may be the first, or go on       allows for records that may be one         no
 *                                                further (nb_align_perhaps)
 *   CONTINUES   goes on                          finds that a record that had ended         as before or no
 *                                                before was wrong
 *
 * Only windows of a known operation have bytes that are certainly values (win->sure, win->most) and may be
 * coded.
 */
static void begin_all_reduce(struct nb_coll_comm *comm, struct nb_coll_req *win)
{
    const struct nb_seen seen = {NB_FUNC_ALL_REDUCE, win->op->type, 0};
    struct nb_op *op = win->op;
    struct nb_walk *w = &comm->flow->records.walk;
    enum nb_walk_place place = place_of(comm, win);

    win->sure = 0;
    win->most = win->bytes;
    op->info = NULL;
    switch (place) {
    case NB_WALK_NOWHERE:
        if (first_time(comm, SAID_PLACE))
            NB_INFO(NCCL_NET,
                    "%s: an all_reduce window of %llu bytes is not where NCCL puts one: all-reduces run raw",
                    comm->label, (unsigned long long)win->bytes);
        if (!w->open)
            comm->stats.func[NB_FUNC_ALL_REDUCE].ops++;
        w->open = 0;
        comm->flow->records.ar.known = 0;
        nb_align_lost(comm->flow->records.align);
        return;
    case NB_WALK_BEGINS:
        all_reduce_over(comm);
        nb_walk_begin(w);
        nb_walk_step(w, win->at, win->bytes);
        all_reduce_begins(comm, op);
        break;
    case NB_WALK_EITHER:
        comm->flow->records.ar.known = 0;
        take_in(comm);
        nb_align_perhaps(comm->flow->records.align, &seen);
        nb_walk_step(w, win->at, win->bytes);
        break;
    default:
        if (comm->flow->records.ar.known && win->at == 0 &&
            nb_walk_ended(w, &comm->flow->records.ar.extent) == 1) {
            comm->flow->records.ar.known = 0;
            comm->stats.records_wrong++;
            if (first_time(comm, SAID_WRONG))
                NB_INFO(NCCL_NET, "%s: an all_reduce of %llu bytes goes on after its last step", comm->label,
                        (unsigned long long)comm->flow->records.ar.extent.bytes);
        }
        nb_walk_step(w, win->at, win->bytes);
        break;
    }
    if (!comm->flow->records.ar.known)
        return;
    nb_walk_values(w, &comm->flow->records.ar.extent, win->bytes, op->value, &win->sure, &win->most);
    op->info = comm->flow->records.ar.info;
    op->ef_base = (w->done - win->bytes) / op->value;
    if (place == NB_WALK_BEGINS)
        look(comm, win, win->sure);
}

/* ---- all functions ----------------------------------------------------------------------------------- */

void nb_op_begin(struct nb_coll_comm *comm, struct nb_coll_req *win)
{
    struct nb_op *op = win->op;
    struct nb_record r;
    int recorded;

    op->begun = 1;
    if (op->func == NB_FUNC_ALL_REDUCE) {
        begin_all_reduce(comm, win);
        return;
    }
    all_reduce_over(comm);
    comm->stats.func[op->func].ops++;
    if (comm->device->ops->begins)
        comm->device->ops->begins(comm->device);
    recorded = find_record(comm, op, op->block, &r) && !(r.flags & NB_RECORD_DOUBT);
    /* A communicator that ncclCommSplit made may share its parent's group. NCCL compares which GPUs lead, but
     * not the order of the nodes. Then it deals blocks in the child's order to a group in the parent's
     * order. */
    if (recorded && r.node && r.node != (uint32_t)comm->rank + 1)
        nb_comm_error(comm, -EINVAL,
                      "%s of a communicator that was split off with its nodes in another order (this one is "
                      "node %u there) and shares this group: NCCL would exchange the wrong blocks. Remedy: "
                      "keep the order of the ranks (key of ncclCommSplit), or do not share resources",
                      nb_func_name(op->func), r.node - 1);
    op->info = nb_op_info_new(comm, op, recorded ? &r : NULL, op->block * (uint64_t)comm->nnodes);
    if (op->func == NB_FUNC_REDUCE_SCATTER) {
        nb_op_info_shape(op->info, op->block / op->value, (uint32_t)comm->nnodes, 0);
        look(comm, win, win->bytes);
        if (nb_op_info_codec(op->info) != NB_CODEC_RAW)
            nb_proof_sum(comm, op, nb_op_info_call(op->info));
    }
    op->codec = nb_op_info_codec(op->info);
}
