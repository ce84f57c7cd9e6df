/* SPDX-License-Identifier: Apache-2.0 */
/* The clock of identity: finds where steps and passes begin. */
#include "policy/identity/internal.h"

#define RUN_LEAST 3u    /* gathers in a row that can be a forward pass */
#define STEPS_MISSED 2u /* steps that a signature may miss and still count as coming in every step */
#define RESCAN 32u      /* reductions between two searches for the rarest signature */
#define FULL_RATE 0.2f  /* of a pass in the share of full passes: three passes in a row decide */
/* Full passes before a pass with fewer sums than blocks that make it an exception, and full passes for which
 * the exception is remembered. */
#define SHORT_AFTER 8u
#define SHORT_LIFE 200u

/* A run of gathers inside the node that is nearly as long as the longest recent one was a forward pass. The
 * prefetches of a backward pass are shorter. */
void nb_clock_end_run(struct nb_identity *id)
{
    if (id->run >= RUN_LEAST && id->run * 2 > id->run_most) {
        /* One run far longer than usual is a checkpoint. Two in a row are a new usual. */
        if (id->run <= 2 * id->run_most || !id->run_most || id->run_odd)
            id->run_most = id->run > id->run_most ? id->run : id->run_most - id->run_most / 16;
        id->run_odd = id->run > 2 * id->run_most;
        id->context = id->run;
        if (id->clock < CLOCK_RUNS)
            id->clock = CLOCK_RUNS;
        if (id->clock == CLOCK_RUNS)
            id->round++;
    } else if (id->run >= RUN_LEAST) {
        id->run_most -= id->run_most / 4; /* the longest run was an exception */
    }
    id->run = 0;
}

int nb_clock_in_steps(const struct nb_identity *id, const struct nb_sig *s, unsigned percent)
{
    return id->clock <= CLOCK_RARE || s->view.in_rounds * 100 >= (id->round + 2 - s->first_round) * percent;
}

static int in_all_steps(const struct nb_identity *id, const struct nb_sig *s)
{
    return id->clock <= CLOCK_RARE || s->view.in_rounds + STEPS_MISSED >= id->round + 2 - s->first_round;
}

/* Find the rarest signature that comes in all steps, and never twice in a row. */
static void look_for_rare(struct nb_identity *id)
{
    struct nb_sig *best = NULL;
    uint32_t alive = 0;

    for (struct nb_sig *s = NULL; (s = nb_table_next(&id->sigs, s));) {
        if (s->count < LARGE || s->bursts < CERTAIN_AFTER)
            continue;
        alive++;
        if (s->bursts == s->calls && in_all_steps(id, s) && (!best || s->calls < best->calls))
            best = s;
    }
    if (alive < 2)
        best = NULL; /* a single signature may come any number of times a step */
    if (!best || !id->rare || !in_all_steps(id, id->rare))
        id->rare = best;
}

int nb_clock_more_than_usual(const struct nb_identity *id, const struct nb_view *v)
{
    return id->clock > CLOCK_RARE && v->round_usual && v->round_ops > v->round_usual;
}

/* Return 1 when the last large reduction of its communicator had another signature. Communicators run beside
 * each other, so operations of another communicator in between do not count. */
static int follows_another(struct nb_identity *id, const struct nb_sig *s)
{
    struct nb_identity_comm *comm = nb_identity_comm_of(&id->weight_blocks, s->entry.a);
    const int another = comm->last != s;

    comm->last = s;
    return another;
}

/* Note the end of a pass. `full`: each block that it gathered has sent a gradient, as far as can be
 * counted. */
static void note_full(struct nb_sig *s, int full)
{
    s->full += FULL_RATE * ((float)full - s->full);
    if (full) {
        s->full_run++;
        s->wary -= s->wary > 0;
    } else {
        const uint32_t wary = s->full_run >= SHORT_AFTER ? SHORT_LIFE : SHORT_AFTER;
        s->wary = s->wary > wary ? s->wary : wary;
        s->full_run = 0;
    }
}

void nb_clock_reduce(struct nb_identity *id, struct nb_sig *s)
{
    s->bursts += (uint64_t)follows_another(id, s);
    if (s->last_round != id->round + 1) {
        if (s->alike && s->view.round_ops)
            note_full(s, s->view.round_ops >= s->alike);
        s->view.round_usual = s->view.round_ops;
        s->view.round_ops = 0;
        s->last_round = id->round + 1;
        s->first_round = s->first_round ? s->first_round : s->last_round;
        s->view.in_rounds++;
    }
    s->view.round_ops++;
    if (id->reductions++ % RESCAN == 0 || !id->rare)
        look_for_rare(id);
    if (s != id->rare)
        return;
    if (nb_clock_more_than_usual(id, &s->view)) {
        id->rare = NULL; /* it does not mark steps, so the next reduction searches for another one */
        return;
    }
    id->rare_passes++;
    if (id->clock <= CLOCK_RARE) {
        id->clock = CLOCK_RARE;
        id->round++;
    }
}

uint64_t nb_clock_pass(const struct nb_identity *id)
{
    return id->clock != CLOCK_RUNS && id->rare ? id->rare_passes : id->round;
}

/* Weights change once a step, so a block that changes again belongs to the next step. */
void nb_clock_weights(struct nb_identity *id, struct nb_weight_block *weight_block)
{
    if (weight_block->changed_step == id->weight_steps + 1) {
        id->weight_steps++;
        if (id->weight_steps >= 2)
            id->clock = CLOCK_WEIGHTS;
        if (id->clock == CLOCK_WEIGHTS)
            id->round++;
    }
    weight_block->changed_step = id->weight_steps + 1;
}
