/* SPDX-License-Identifier: Apache-2.0 */
/* See handback_vote.h. */
#include "coll/handback_vote.h"

#include <errno.h>

#include "base/gpu.h"
#include "base/log.h"
#include "coll/comm.h"
#include "coll/control_send.h"
#include "policy/handback_desk.h"

void nb_handback_vote_open(struct nb_coll_comm *comm)
{
    struct nb_handback_vote *v = &comm->handback;

    /* In shadow mode all goes raw, to be looked at. Notes need a connection with node 0. */
    if (comm->ctx->params->hand_back == 0 || comm->shadow || comm->nneighbors < comm->nnodes - 1 ||
        comm->nnodes > NB_HANDBACK_NODES)
        return;
    v->desk = nb_handback_desk_get(comm->ctx, comm->comm_id, comm->gpu);
    if (v->desk)
        nb_handback_desk_attach(v->desk, comm->token, comm->rank, comm->nnodes);
}

void nb_handback_vote_close(struct nb_coll_comm *comm)
{
    struct nb_handback_vote *v = &comm->handback;
    struct nb_handback_counts n;

    if (!v->desk)
        return;
    nb_handback_desk_fail(v->desk);
    nb_handback_desk_count(v->desk, &n);
    if (n.handed_back)
        NB_INFO(NCCL_NET | NCCL_TUNING, "%s: %llu calls were handed back to NCCL, %llu waited for a vote",
                comm->label, (unsigned long long)n.handed_back, (unsigned long long)n.waited);
    nb_handback_desk_put(v->desk);
    v->desk = NULL;
}

void nb_handback_vote_fail(struct nb_coll_comm *comm)
{
    struct nb_handback_vote *v = &comm->handback;

    if (!v->desk || v->failed)
        return;
    v->failed = true;
    nb_handback_desk_fail(v->desk);
}

int nb_handback_vote_tick(struct nb_coll_comm *comm)
{
    if (comm->handback.desk && nb_handback_desk_overdue(comm->handback.desk))
        return nb_comm_error(
            comm, -ETIMEDOUT,
            "a call has waited for a vote on what is handed back to NCCL for more than twice "
            "NIBBLE_PEER_TIMEOUT");
    return 0;
}

/* ---- notes ------------------------------------------------------------------------------------------- */

static int send_one(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_handback_note *note)
{
    const struct nb_ctl ctl = {.kind = (uint8_t)(NB_CTL_HAND_TELL + (int)note->kind),
                               .a = note->bytes,
                               .b = note->call,
                               .c = note->vote << 2 | (uint32_t)note->func};

    return peer->gone ? 0 : nb_control(comm, peer, &ctl);
}

static void say(const struct nb_coll_comm *comm, const struct nb_handback_note *note)
{
    if (note->kind == NB_HANDBACK_SET && note->call != NB_HANDBACK_NONE)
        NB_INFO(NCCL_NET | NCCL_TUNING,
                "%s: %s of %llu bytes is handed back to NCCL from its call %llu on: it goes raw on all nodes "
                "(NIBBLE_HAND_BACK)",
                comm->label, nb_func_name(note->func), (unsigned long long)note->bytes,
                (unsigned long long)note->call);
}

static int send_all(struct nb_coll_comm *comm, const struct nb_handback_out *out)
{
    for (unsigned i = 0; i < out->n; i++) {
        const int to = out->sent[i].to;
        say(comm, &out->sent[i].note);
        for (int r = 0; r < comm->nnodes; r++)
            if (r != comm->rank && (to < 0 || to == r) && send_one(comm, &comm->peer[r], &out->sent[i].note))
                return -1;
    }
    return 0;
}

int nb_handback_vote_control(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *ctl)
{
    const struct nb_handback_note note = {.kind = (enum nb_handback_kind)(ctl->kind - NB_CTL_HAND_TELL),
                                          .func = (enum nb_func)(ctl->c & 3),
                                          .bytes = ctl->a,
                                          .call = ctl->b,
                                          .vote = ctl->c >> 2};
    struct nb_handback_out out;

    if (comm->state != NB_COMM_RUNNING) /* it closes: all calls have been answered, on all ranks */
        return 0;
    if (!comm->handback.desk && note.kind == NB_HANDBACK_TELL)
        return 0; /* this node has nothing to hand back; so nothing is */
    if (!comm->handback.desk || note.func >= NB_FUNC_COUNT ||
        nb_handback_desk_receive(comm->handback.desk, peer->rank, &note, &out))
        return nb_comm_error(comm, -EPROTO,
                             "%s sent a message about what is handed back to NCCL that it may not send",
                             peer->name);
    say(comm, &note);
    return send_all(comm, &out);
}

/* ---- verdicts ---------------------------------------------------------------------------------------- */

/* There is room for what a vote needs at least, whatever verdicts there are. */
static bool has_room(const struct nb_coll_comm *comm)
{
    const struct nb_tx *tx = &comm->peer[0].tx[NB_CLASS_CONTROL];

    return comm->rank == 0 || tx->queued - tx->done < tx->slots / 2;
}

void nb_handback_vote_saw(struct nb_coll_comm *comm, enum nb_func func, uint64_t bytes, bool raw,
                          bool for_good)
{
    struct nb_handback_vote *v = &comm->handback;
    struct nb_handback_out out;
    unsigned i = 0;

    if (!v->desk || v->failed || comm->state != NB_COMM_RUNNING || (raw && !for_good))
        return;
    while (i < v->signatures && (v->seen[i].bytes != bytes || v->seen[i].func != func))
        i++;
    if (i == NB_HANDBACK_SIGNATURES)
        return;
    if (i == v->signatures) {
        v->seen[i].func = func;
        v->seen[i].bytes = bytes;
        v->seen[v->signatures++].raw = 0;
    }
    /* What was asked for before it is handed back comes here still, and is no new look. */
    v->seen[i].raw = raw && nb_handback_desk_looks(v->desk, func, bytes) ? v->seen[i].raw + 1 : 0;
    if (!has_room(comm)) /* it is said with the next one */
        return;
    raw = v->seen[i].raw >= (uint64_t)comm->ctx->params->hand_back;
    nb_handback_desk_verdict(v->desk, func, bytes, raw, &out);
    send_all(comm, &out); /* where that fails the communicator has */
}
