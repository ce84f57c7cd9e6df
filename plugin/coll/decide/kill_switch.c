/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The switch that takes compression out of a running job. Whoever finds the word changed in its
 * NIBBLE_CONTROL file (comm/node.h) asks node 0, which numbers the change and tells all nodes; each
 * applies it to the next operation that it decides on and answers from which one on. Nothing has to stop for
 * it: the codec is the sender's choice for each message, so that nodes may switch a few operations apart.
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

/* Apply the state to the operations that are not decided yet; the number of the first. */
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

/* Node 0: make it so, everywhere. */
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
        if (ctl->c == comm->decisions->kill_switch.epoch) /* not the answer to an earlier change */
            count_answer(comm, ctl->a);
        return 0;
    }
    struct nb_ctl done = {.kind = NB_CTL_SWITCHED, .c = ctl->c};
    done.a = apply(comm, (int)ctl->a, ctl->c, "told by node 0");
    return nb_control(comm, peer, &done);
}
