/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The switch that switches the compression of a running job off and on. A node that finds a changed word in
 * its file of NIBBLE_CONTROL (comm/node.c) asks node 0. Node 0 numbers the change and sends it to all nodes.
 * Each node applies it to its next decision and answers with the number of that operation. The job continues
 * meanwhile: the sender chooses the codec of each message, so nodes may switch a few operations apart.
 */
#include <errno.h>
#include <stdio.h>

#include "base/log.h"
#include "coll/comm/comm.h"
#include "coll/decide/decide.h"

static const char *word_of(int off)
{
    return off ? "off" : "on";
}

/* Apply the change to undecided operations. Return the number of the first one. */
static uint64_t apply(struct nb_coll_comm *comm, int off, uint32_t epoch, const char *who)
{
    uint64_t first = comm->begun ? nb_window(comm, comm->begun - 1)->op->opno + 1 : 0;

    comm->decisions->kill_switch.epoch = epoch;
    nb_decisions_kill_switch(comm, off);
    NB_INFO(NCCL_NET, "%s: compression is switched %s from about operation %llu on (%s)", comm->label,
            word_of(off), (unsigned long long)first, who);
    return first;
}

static void count_answer(struct nb_coll_comm *comm, uint64_t first)
{
    if (first > comm->decisions->kill_switch.last_op)
        comm->decisions->kill_switch.last_op = first;
    if (++comm->decisions->kill_switch.answers == (uint32_t)comm->nnodes)
        NB_INFO(NCCL_NET, "%s: compression is switched %s on all nodes, from operation %llu on at the latest",
                comm->label, word_of(nb_decisions_off(comm->decisions)),
                (unsigned long long)comm->decisions->kill_switch.last_op);
}

/* On node 0: apply the change, and send it to all nodes. */
static int decide(struct nb_coll_comm *comm, int off, const char *who)
{
    if (off == nb_decisions_off(comm->decisions))
        return 0;
    comm->decisions->kill_switch.answers = 0;
    comm->decisions->kill_switch.last_op = 0;
    count_answer(comm, apply(comm, off, comm->decisions->kill_switch.epoch + 1, who));
    for (int r = 1; r < comm->nnodes; r++) {
        const struct nb_ctl tell = {
            .kind = NB_CTL_SWITCH, .a = (uint64_t)off, .c = comm->decisions->kill_switch.epoch};
        if (!comm->peer[r].gone && nb_control(comm, &comm->peer[r], &tell))
            return -1;
    }
    return 0;
}

int nb_kill_switch_tick(struct nb_coll_comm *comm)
{
    const bool off = comm->node->control.off;
    struct nb_ctl ask = {.kind = NB_CTL_SWITCH_ASK, .a = off};

    if (comm->decisions->kill_switch.asked == off)
        return 0;
    comm->decisions->kill_switch.asked = off;
    if (comm->rank == 0)
        return decide(comm, off, "asked by the file of node 0");
    return comm->peer[0].gone ? 0 : nb_control(comm, &comm->peer[0], &ask);
}

int nb_kill_switch_control(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *ctl)
{
    char who[160];

    if ((ctl->kind == NB_CTL_SWITCH) == (peer->rank != 0) ||
        (ctl->kind != NB_CTL_SWITCH && comm->rank != 0) || (ctl->kind != NB_CTL_SWITCHED && ctl->a > 1))
        return nb_comm_error(comm, -EPROTO, "%s sent a message about the switch that it may not send",
                             peer->name);
    if (ctl->kind == NB_CTL_SWITCH_ASK) {
        snprintf(who, sizeof(who), "asked by %s", peer->name);
        return decide(comm, (int)ctl->a, who);
    }
    if (ctl->kind == NB_CTL_SWITCHED) {
        if (ctl->c == comm->decisions->kill_switch.epoch) /* else it answers an earlier change */
            count_answer(comm, ctl->a);
        return 0;
    }
    struct nb_ctl done = {.kind = NB_CTL_SWITCHED, .c = ctl->c};
    done.a = apply(comm, (int)ctl->a, ctl->c, "told by node 0");
    return nb_control(comm, peer, &done);
}
