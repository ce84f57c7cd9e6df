/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The switch that takes compression out of a running job. Whoever finds the word changed in its NIBBLE_CONTROL file
 * asks node 0, which numbers the change and tells all nodes; each applies it to the next operation that it decides on
 * and answers from which one on. Nothing has to stop for it: the codec is the sender's choice for each message, so that
 * nodes may switch a few operations apart.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/params.h"
#include "coll/internal.h"

/* The engine thread's. */
static int64_t looked_ns;
static int file_says; /* 1: off */
static int complained;

/* The word in the file: 1 off, 0 on, -1 nothing that is understood (then nothing changes). */
static int read_word(const char *path)
{
    char word[16] = "";
    FILE *f = fopen(path, "re");

    if (!f)
        return -1;
    if (!fgets(word, sizeof(word), f))
        word[0] = 0;
    fclose(f);
    word[strcspn(word, " \t\r\n")] = 0;
    if (strcmp(word, "off") == 0)
        return 1;
    if (strcmp(word, "on") == 0)
        return 0;
    if (word[0] && !complained) {
        complained = 1;
        NB_WARN("NIBBLE_CONTROL: %s says \"%s\", which is neither on nor off", path, word);
    }
    return -1;
}

void nb_switch_look(int64_t now_ns)
{
    const char *path = nb_params()->control;
    int word;

    if (!path[0] || (looked_ns && now_ns - looked_ns < (int64_t)NB_NS_PER_S))
        return;
    looked_ns = now_ns;
    word = read_word(path);
    if (word < 0)
        return;
    file_says = word;
    complained = 0;
}

static const char *word_of(int off)
{
    return off ? "off" : "on";
}

/* Apply the state to the operations that are not decided yet; the number of the first. */
static uint64_t apply(struct nb_coll_comm *comm, int off, uint32_t epoch, const char *who)
{
    uint64_t first = comm->begun ? nb_window(comm, comm->begun - 1)->op->opno + 1 : 0;

    comm->sw.epoch = epoch;
    if (comm->off && !off) /* what was carried is of another time */
        nb_feedback_drop_all(comm->feedback);
    comm->off = off;
    NB_INFO(NCCL_NET, "%s: compression is switched %s from about operation %llu on (%s)", comm->label, word_of(off),
            (unsigned long long)first, who);
    return first;
}

static void count_answer(struct nb_coll_comm *comm, uint64_t first)
{
    if (first > comm->sw.last_op)
        comm->sw.last_op = first;
    if (++comm->sw.answers == (uint32_t)comm->nranks)
        NB_INFO(NCCL_NET, "%s: compression is switched %s on all nodes, from operation %llu on at the latest",
                comm->label, word_of(comm->off), (unsigned long long)comm->sw.last_op);
}

/* Node 0: make it so, everywhere. */
static int decide(struct nb_coll_comm *comm, int off, const char *who)
{
    if (off == comm->off)
        return 0;
    comm->sw.answers = 0;
    comm->sw.last_op = 0;
    count_answer(comm, apply(comm, off, comm->sw.epoch + 1, who));
    for (int r = 1; r < comm->nranks; r++) {
        const struct nb_ctl tell = {.kind = NB_CTL_SWITCH, .a = (uint64_t)off, .c = comm->sw.epoch};
        if (!comm->peer[r].gone && nb_control(comm, &comm->peer[r], &tell))
            return -1;
    }
    return 0;
}

int nb_switch_tick(struct nb_coll_comm *comm)
{
    struct nb_ctl ask = {.kind = NB_CTL_SWITCH_ASK, .a = (uint64_t)file_says};

    if (comm->sw.asked == file_says)
        return 0;
    comm->sw.asked = file_says;
    if (comm->rank == 0)
        return decide(comm, file_says, "asked by the file of node 0");
    return comm->peer[0].gone ? 0 : nb_control(comm, &comm->peer[0], &ask);
}

int nb_switch_control(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *ctl)
{
    char who[160];

    if ((ctl->kind == NB_CTL_SWITCH) == (peer->rank != 0) || (ctl->kind != NB_CTL_SWITCH && comm->rank != 0) ||
        (ctl->kind != NB_CTL_SWITCHED && ctl->a > 1))
        return nb_comm_error(comm, -EPROTO, "%s sent a message about the switch that it may not send", peer->name);
    if (ctl->kind == NB_CTL_SWITCH_ASK) {
        snprintf(who, sizeof(who), "asked by %s", peer->name);
        return decide(comm, (int)ctl->a, who);
    }
    if (ctl->kind == NB_CTL_SWITCHED) {
        if (ctl->c == comm->sw.epoch) /* not the answer to an earlier change */
            count_answer(comm, ctl->a);
        return 0;
    }
    struct nb_ctl done = {.kind = NB_CTL_SWITCHED, .c = ctl->c};
    done.a = apply(comm, (int)ctl->a, ctl->c, "told by node 0");
    return nb_control(comm, peer, &done);
}
