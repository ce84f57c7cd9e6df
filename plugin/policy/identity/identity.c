/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides which residual an operation continues.
 *
 * A signature (communicator, function, type, number of elements) has a set of tracked buffers. Its mode says
 * by which evidence they are told apart. next_mode chooses the mode anew with each of the signature's
 * operations, after CERTAIN_AFTER passes. Every change empties the set.
 *
 *          +---------------------------  NONE  ----------------------------+
 *          | buffers come once a step      | else, one pass later:         | else
 *          v                               v gathers predict the block     v
 *       ADDRESS ---- (1), predicted ---> WEIGHTS ---------- (3) ---------> PLACE
 *       a tracked buffer  <---- (2) ---- a tracked buffer  <--- (4) ------ a tracked buffer
 *       a buffer                         a gathered block                  a position in the pass
 *          |  ^                                                            ^  |
 *          |  +------------------------------ (2) -------------------------|--+
 *          +---------------------------- (1), not predicted ---------------+
 *
 *     Named sums that have a turn (turns.c) are in mode TURN in place of PLACE, from the first turn on, until
 *     the cycle breaks or (2).
 *
 *     (1) twice the operations whose buffer did not come once a step, less the operations whose buffer did,
 *         exceed the operations of 4 passes by 16
 *     (2) buffers come once a step, and content has not proven the set's tracked buffers (address_prevails)
 *     (3) 4 passes and 16 operations in a row without a predicted weight block
 *     (4) 2 passes and 8 operations in a row with a predicted weight block
 *     and from TURN back to NONE: the cycle breaks
 *
 * In a mode, an operation gets its tracked buffer, or none, by the first line that applies:
 *
 *     mode       evidence                                                             result
 *     ADDRESS,   the buffer has not come once a step, or the cycle is broken          LEARNING
 *     TURN       its profile changes suddenly, and the weights confirm it             CERTAIN
 *                its profile changes suddenly                                         MISMATCH
 *                else                                                                 ADDRESS, TURN
 *     WEIGHTS,   only one tracked buffer is possible, its content is as always        SINGLE
 *     PLACE      only one is possible, its content is not                             MISMATCH
 *                no profile                                                           NO_PROFILE
 *                the weights confirm predictions of the tracked buffer (*), and
 *                content has contradicted a prediction of this pass                   MISMATCH
 *                the weights confirm predictions (*), without a contradiction         CERTAIN
 *                the predicted tracked buffer has few profiles                        LEARNING
 *                it fits, and it alone (by SCORE_LEAST, SCORE_MARGIN)                 VERIFIED
 *                another one fits much better than all (FOUND_LEAST, FOUND_MARGIN),   FOUND
 *                has not come in this pass, and the predicted one usually fits
 *                else                                                                 MISMATCH, UNPREDICTED
 *
 *     and SHARED in place of any of these where the gathered block is two contents in turn
 *
 *     (*) nb_identity_config.certain, and the line for VERIFIED does not apply. In WEIGHTS it does not count
 *         while blocks have sent no gradient of late
 */
#include "policy/identity/internal.h"

#include <stdlib.h>

#include "base/nccl_names.h"

#define DEFAULT_SIGNATURES 1024u
#define DEFAULT_TRACKED 4096u
#define DEFAULT_KEYS 8192u
#define DEFAULT_CALLS 4096u /* as many as policy/job/job.h keeps */
#define WEIGHT_BLOCKS 8192u

#define SCORE_LEAST 0.3f  /* own tracked buffer: 0.55 to 0.77 measured, best other: up to 0.37 */
#define SCORE_MARGIN 0.1f /* layers of nearly equal profiles (tensor parallel jobs) come nearer than that */
/* For a match that was not predicted. Without such matches 84 % of HSDP's gradients have feedback beside
 * checkpoints, with them 99 % (test_identity). With a margin of 0.2 a real training with Lion took a layer
 * for another one, once in 218,400 sums. */
#define FOUND_LEAST 0.45f
#define FOUND_MARGIN 0.3f
#define FULL_LEAST 0.5f  /* share of full passes. Where more layers are frozen, order predicts little */
#define AGREE_RATE 0.1f  /* moving average of the share of predictions that content confirmed */
#define AGREE_LEAST 0.8f /* below, predictions are wrong often enough to mix two buffers in an average */
/* Content that disagrees with a prediction is evidence only where it usually agrees. */
#define CONTRADICTS_LEAST 0.7f
#define LEARN_LEAST \
    0.2f /* from the eighth profile on, a tracked buffer does not learn profiles below this score */
#define LEARN_FREE 8u
/* Misses in a row after which a tracked buffer learns anew. When training begins, profiles change for
 * good. */
#define FORGET_MISSES 12u
/* Rounds in which all buffers came once until tracked buffers by address replace tracked buffers by content.
 * Recycled memory may look so for some rounds. */
#define ADDRESS_LEAST 5u
#define ERROR_LIFE 8u /* steps of its signature for which an unused error is kept */

const char *nb_identity_reason_text(enum nb_identity_reason reason)
{
    static const char *const text[NB_ID_REASON_COUNT] = {
        "its buffer is used once a step",
        "one buffer has its signature",
        "prediction and content agree",
        "the weights confirm its prediction",
        "its turn has come in a cycle of named sums",
        "its content is unmistakable",
        "too few steps seen",
        "its buffer is unknown",
        "its content does not agree with the prediction",
        "several buffers were taken for one, as the weights show",
        "there is no usable profile",
        "it is too small to matter",
        "a pool is full",
    };
    return (unsigned)reason < NB_ID_REASON_COUNT ? text[reason] : "unknown";
}

struct nb_identity *nb_identity_create(const struct nb_identity_config *config)
{
    struct nb_identity *id = calloc(1, sizeof(*id));

    if (!id)
        return NULL;
    if (config)
        id->config = *config;
    id->config.signatures = id->config.signatures ? id->config.signatures : DEFAULT_SIGNATURES;
    id->config.buffers = id->config.buffers ? id->config.buffers : DEFAULT_TRACKED;
    id->config.keys = id->config.keys ? id->config.keys : DEFAULT_KEYS;
    id->config.calls = id->config.calls ? id->config.calls : DEFAULT_CALLS;
    id->calls = calloc(id->config.calls, sizeof(*id->calls));
    nb_tracked_buffers_init(&id->buffers, id->config.buffers);
    if (!id->calls || nb_table_init(&id->sigs, sizeof(struct nb_sig), id->config.signatures) ||
        nb_table_init(&id->keys, sizeof(struct nb_key), id->config.keys) ||
        nb_weight_blocks_init(&id->weight_blocks, WEIGHT_BLOCKS)) {
        nb_identity_destroy(id);
        return NULL;
    }
    return id;
}

void nb_identity_destroy(struct nb_identity *id)
{
    if (!id)
        return;
    free(id->calls);
    nb_table_free(&id->sigs);
    nb_table_free(&id->keys);
    nb_tracked_buffers_free(&id->buffers);
    nb_weight_blocks_free(&id->weight_blocks);
    free(id);
}

void nb_identity_gather(struct nb_identity *id, uint64_t number, int64_t weight_block, int changed,
                        const float *samples, unsigned n)
{
    struct nb_call *call = nb_call_take_up(id, number);
    struct nb_weight_block *u;

    if (!call || weight_block < 0 || weight_block > INT32_MAX)
        return;
    u = nb_weight_blocks_get(&id->weight_blocks, call->c.comm, (uint32_t)weight_block);
    u->count = call->c.count;
    u->bytes = call->c.type == ncclInt8 || call->c.type == ncclUint8;
    nb_weight_blocks_version(u, samples, n);
    nb_weight_blocks_gathered(&id->weight_blocks, u, changed);
    if (changed)
        nb_clock_weights(id, u);
}

static void change_mode(struct nb_identity *id, struct nb_sig *s, enum nb_mode mode)
{
    if (s->mode != mode)
        nb_set_clear(&id->buffers, &s->set);
    s->mode = mode;
    s->unsettled = 0;
    s->predicted_run = s->unpredicted_run = 0;
}

/* Return 1 when buffers have been used once a step for long enough to replace tracked buffers by content that
 * nothing has proven yet. */
static int address_prevails(const struct nb_sig *s)
{
    return s->set.mature == 0 && (s->set.n == 0 || s->view.rounds - s->unstable > ADDRESS_LEAST);
}

/* Return the next mode, by the transitions of the drawing at the head. Addresses come first, but they do not
 * replace tracked buffers that content has proven: recycled memory may look settled for a while.
 * `by_address`: buffers come once a step. `by_weight_block`: gathers predict the weight block. */
static enum nb_mode next_mode(const struct nb_sig *s, int by_address, int by_weight_block)
{
    const enum nb_mode without_address = s->cycle ? MODE_TURN : by_weight_block ? MODE_WEIGHTS : MODE_PLACE;

    switch (s->mode) {
    case MODE_NONE:
        if (by_address)
            return MODE_ADDRESS;
        return s->cycle || s->view.rounds > CERTAIN_AFTER + 1 ? without_address : MODE_NONE;
    case MODE_ADDRESS:
        if (by_address)
            return MODE_ADDRESS;
        return s->unsettled > 4 * s->view.usual + 16 ? without_address : MODE_ADDRESS;
    case MODE_WEIGHTS:
        if (by_address && address_prevails(s))
            return MODE_ADDRESS;
        return s->cycle ? MODE_TURN : s->unpredicted_run > 4 * s->view.usual + 16 ? MODE_PLACE : MODE_WEIGHTS;
    case MODE_PLACE:
        if (by_address && address_prevails(s))
            return MODE_ADDRESS;
        if (s->cycle)
            return MODE_TURN;
        return s->predicted_run > 2 * s->view.usual + 8 ? MODE_WEIGHTS : MODE_PLACE;
    case MODE_TURN:
        if (by_address && address_prevails(s))
            return MODE_ADDRESS;
        return s->cycle ? MODE_TURN : MODE_NONE;
    }
    return s->mode;
}

/* Update the counts for the transitions, and make a transition that is due. */
static void choose_mode(struct nb_identity *id, struct nb_sig *s, int by_address, int by_weight_block)
{
    enum nb_mode next;

    s->predicted_run = by_weight_block ? s->predicted_run + 1 : 0;
    s->unpredicted_run = by_weight_block ? 0 : s->unpredicted_run + 1;
    if (s->view.rounds <= CERTAIN_AFTER && !s->cycle)
        return;
    if (s->mode == MODE_ADDRESS && by_address)
        s->unsettled -= s->unsettled > 0;
    else if (s->mode == MODE_ADDRESS)
        s->unsettled += 2; /* so that a lasting share of one in two counts */
    next = next_mode(s, by_address, by_weight_block);
    if (next != s->mode)
        change_mode(id, s, next);
}

/* ---- decisions ---------------------------------------------------------------------------------------- */

static uint64_t tracked_id(unsigned kind, uint32_t number)
{
    return (uint64_t)kind << 32 | number;
}

/* Return the name of the buffer that the tracked buffer now belongs to. */
static uint64_t buffer_of(const struct nb_identity *id, uint32_t at)
{
    return nb_mix(nb_tracked_at(&id->buffers, at)->weight_block, at) | 1;
}

/* Return 1 when predictions of the tracked buffer have come true. */
static int is_certain(const struct nb_identity *id, uint32_t at)
{
    return at != NB_TRACKED_NONE && id->config.certain &&
           id->config.certain(id->config.arg, buffer_of(id, at));
}

/* Return 1 when the content is not the predicted tracked buffer's: it usually agrees with the prediction and
 * does not now, or it looks unmistakably like another tracked buffer with enough profiles. */
static int contradicted(const struct nb_identity *id, const struct nb_fit *fit, uint32_t at)
{
    if (nb_tracked_at(&id->buffers, at)->agreed >= CONTRADICTS_LEAST && fit->own < SCORE_LEAST)
        return 1;
    return fit->best_tracked != NB_TRACKED_NONE && fit->best_tracked != at &&
           nb_tracked_at(&id->buffers, fit->best_tracked)->profiles >= NB_TRACKED_MATURE &&
           fit->best >= FOUND_LEAST && fit->best >= fit->own + FOUND_MARGIN;
}

/* Return the number of steps of the signature, as its mode counts them. */
static uint64_t steps_of(const struct nb_sig *s)
{
    return s->mode == MODE_TURN ? s->cycle : s->view.rounds;
}

/* Give the tracked buffer out. */
static struct nb_identity_decision give(struct nb_identity *id, struct nb_sig *s, uint32_t at,
                                        uint64_t geometry, enum nb_identity_reason reason)
{
    struct nb_tracked_buffer *tracked = nb_tracked_at(&id->buffers, at);
    struct nb_identity_decision d = {.tracked = at, .buffer = buffer_of(id, at), .reason = reason};

    d.empty =
        !tracked->filled || tracked->geometry != geometry || steps_of(s) - tracked->used_round > ERROR_LIFE;
    tracked->filled = 1;
    tracked->geometry = geometry;
    tracked->used_round = steps_of(s);
    tracked->used_pass = nb_weight_blocks_pass(&id->weight_blocks, s->entry.a);
    return d;
}

static struct nb_identity_decision refuse(enum nb_identity_reason reason)
{
    return (struct nb_identity_decision){.tracked = -1, .reason = reason};
}

/* Decide when only one tracked buffer is possible. Its content then has a veto only when it is suddenly
 * unlike all before. */
static struct nb_identity_decision alone(struct nb_identity *id, struct nb_sig *s, uint32_t at,
                                         const struct nb_shape *p, uint64_t geometry,
                                         enum nb_identity_reason reason)
{
    struct nb_tracked_buffer *tracked = nb_tracked_at(&id->buffers, at);

    if (p && nb_set_breaks(&id->buffers, at, p)) {
        const struct nb_fit fit = nb_set_fit(&id->buffers, &s->set, at, p);
        /* the gradients changed, but not the buffer */
        if (!contradicted(id, &fit, at) && is_certain(id, at)) {
            nb_set_learn(&id->buffers, &s->set, at, p);
            return give(id, s, at, geometry, NB_ID_CERTAIN);
        }
        if (++tracked->misses >= FORGET_MISSES)
            nb_set_unlearn(&id->buffers, &s->set, at);
        return refuse(NB_ID_MISMATCH);
    }
    if (p)
        nb_set_learn(&id->buffers, &s->set, at, p);
    return give(id, s, at, geometry, reason);
}

static uint64_t key_id(const struct nb_key *k)
{
    return tracked_id(TRACKED_KEY, (uint32_t)nb_mix(k->entry.a, k->recv));
}

static void forget_key(struct nb_identity *id, struct nb_sig *s, const struct nb_key *k)
{
    uint32_t at = nb_set_find(&id->buffers, &s->set, key_id(k), 0);

    if (at != NB_TRACKED_NONE)
        nb_set_unlearn(&id->buffers, &s->set, at);
}

/* Decide on a sum whose buffer has a name of its own: an address that comes once a step, a turn, or a bucket
 * of DDP. Name 0 is not known yet. Another buffer may get the memory later. Then the data change suddenly, or
 * the error has not been used for long. */
static struct nb_identity_decision by_name(struct nb_identity *id, struct nb_sig *s, uint64_t name,
                                           const struct nb_shape *p, uint64_t geometry,
                                           enum nb_identity_reason reason)
{
    uint32_t at;

    if (!name)
        return refuse(NB_ID_LEARNING);
    at = nb_set_find(&id->buffers, &s->set, name, 1);
    if (at == NB_TRACKED_NONE)
        return refuse(NB_ID_FULL);
    id->predicted = at;
    return alone(id, s, at, p, geometry, reason);
}

/* Return 1 when the block's gradient has already come in this pass of gathers. Then this content only looks
 * like it. The squares of a gradient, for instance, have a profile that is twice as steep and correlates as
 * well. All-reduces are exempt, because they may come once a micro-batch between gathers. */
static int has_come(const struct nb_identity *id, const struct nb_sig *s, uint32_t at)
{
    const uint32_t pass =
        s->func == NB_FUNC_REDUCE_SCATTER ? nb_weight_blocks_pass(&id->weight_blocks, s->entry.a) : 0;

    return pass && nb_tracked_at(&id->buffers, at)->used_pass == pass;
}

/* Decide when several tracked buffers are possible. `at` is the predicted one, or NB_TRACKED_NONE. */
static struct nb_identity_decision by_content(struct nb_identity *id, struct nb_sig *s, uint32_t at,
                                              const struct nb_shape *p, uint64_t geometry)
{
    struct nb_tracked_buffer *tracked = at == NB_TRACKED_NONE ? NULL : nb_tracked_at(&id->buffers, at);
    const uint32_t pass = nb_weight_blocks_pass(&id->weight_blocks, s->entry.a);
    struct nb_fit fit;
    int fits, verified;

    if (!p)
        return refuse(NB_ID_NO_PROFILE);
    fit = nb_set_fit(&id->buffers, &s->set, at, p);
    fits = tracked && fit.own >= SCORE_LEAST && fit.own >= fit.other + SCORE_MARGIN && !has_come(id, s, at);
    if (tracked && tracked->profiles >= LEARN_FREE)
        tracked->agreed += AGREE_RATE * ((float)fits - tracked->agreed);
    /* A prediction that is often wrong has mixed buffers in the tracked buffer's average. Then a fit proves
     * little. */
    verified = fits && tracked->profiles >= NB_TRACKED_MATURE && tracked->agreed >= AGREE_LEAST;
    if (tracked &&
        contradicted(id, &fit, at)) /* one has come in place of another, and so may the following ones */
        s->shifted = pass;
    if (tracked && !verified && !has_come(id, s, at) && pass && (s->mode != MODE_WEIGHTS || s->wary == 0) &&
        is_certain(id, at)) {
        if (s->shifted != pass) {
            nb_set_learn(&id->buffers, &s->set, at, p);
            return give(id, s, at, geometry, NB_ID_CERTAIN);
        }
        /* Content would decide otherwise. A real training with AdamW had two sums of 218,400 fed wrongly. */
        if (tracked->profiles >= NB_TRACKED_MATURE)
            return refuse(NB_ID_MISMATCH);
    }
    if (tracked && tracked->profiles < NB_TRACKED_MATURE) {
        if (tracked->profiles < LEARN_FREE || (fit.own >= LEARN_LEAST && fit.own >= fit.other))
            nb_set_learn(&id->buffers, &s->set, at, p);
        else if (++tracked->misses >= LEARN_FREE)
            nb_set_unlearn(&id->buffers, &s->set, at);
        return refuse(NB_ID_LEARNING);
    }
    if (verified) {
        nb_set_learn(&id->buffers, &s->set, at, p);
        return give(id, s, at, geometry, NB_ID_VERIFIED);
    }
    if (fit.best_tracked != NB_TRACKED_NONE && s->set.mature == s->set.n && s->set.n > 1 &&
        (!tracked || fit.best_tracked == at || tracked->agreed >= CONTRADICTS_LEAST) &&
        fit.best >= FOUND_LEAST && fit.best >= fit.after + FOUND_MARGIN &&
        !has_come(id, s, fit.best_tracked)) {
        nb_set_learn(&id->buffers, &s->set, fit.best_tracked, p);
        return give(id, s, fit.best_tracked, geometry, NB_ID_FOUND);
    }
    if (!tracked)
        return refuse(NB_ID_UNPREDICTED);
    if (++tracked->misses >= FORGET_MISSES)
        nb_set_unlearn(&id->buffers, &s->set, at);
    return refuse(NB_ID_MISMATCH);
}

static struct nb_identity_decision by_weight_block(struct nb_identity *id, struct nb_sig *s,
                                                   struct nb_weight_block *expected, unsigned alike,
                                                   const struct nb_shape *p, uint64_t geometry)
{
    struct nb_identity_decision d;
    uint32_t at = NB_TRACKED_NONE;

    /* Where many blocks send no gradient (frozen, or gathered in vain), the next one on the stack is no
     * evidence. */
    if (expected && (alike == 1 || s->full >= FULL_LEAST)) {
        at = nb_set_find(&id->buffers, &s->set, tracked_id(TRACKED_GATHERED, (uint32_t)expected->entry.b), 1);
        if (at == NB_TRACKED_NONE)
            return refuse(NB_ID_FULL);
        id->predicted = at;
    }
    if (alike == 1 && s->set.n == 1 && at != NB_TRACKED_NONE) {
        return alone(id, s, at, p, geometry, NB_ID_SINGLE);
    }
    d = by_content(id, s, at, p, geometry);
    if (d.reason == NB_ID_FOUND) { /* content corrects the stack */
        uint64_t weight_block = nb_tracked_at(&id->buffers, (uint32_t)d.tracked)->weight_block;
        struct nb_weight_block *found =
            nb_table_find(&id->weight_blocks.blocks, s->entry.a, (uint32_t)weight_block);
        expected = found ? found : expected;
    } else if (at != NB_TRACKED_NONE) { /* it has come, given or not, and will not come again in this pass */
        nb_tracked_at(&id->buffers, at)->used_pass = nb_weight_blocks_pass(&id->weight_blocks, s->entry.a);
    }
    if (expected)
        nb_weight_blocks_reduced(&id->weight_blocks, expected);
    return d;
}

static struct nb_identity_decision by_place(struct nb_identity *id, struct nb_sig *s, const struct nb_view *v,
                                            const struct nb_shape *p, uint64_t geometry)
{
    /* Without the number of gathers before the pass, 1.2 in 1000 of HSDP's gradients were fed wrongly while
     * layers were frozen in turn (test_identity). */
    int usual = v->context_same >= CERTAIN_AFTER && v->same >= CERTAIN_AFTER && v->in_round <= v->usual &&
                (s->func != NB_FUNC_REDUCE_SCATTER ||
                 (nb_clock_in_steps(id, s, MOST_STEPS) && !nb_clock_more_than_usual(id, v)));
    uint32_t at = NB_TRACKED_NONE;

    if (id->clock == CLOCK_NONE)
        return refuse(NB_ID_UNPREDICTED);
    if (usual) {
        at = nb_set_find(&id->buffers, &s->set, tracked_id(TRACKED_PLACE, v->in_round), 1);
        if (at == NB_TRACKED_NONE)
            return refuse(NB_ID_FULL);
        id->predicted = at;
        if (v->clean >= (int)CERTAIN_AFTER && s->set.n == 1 && nb_clock_in_steps(id, s, MOST_STEPS)) {
            return alone(id, s, at, p, geometry, NB_ID_SINGLE);
        }
    }
    return by_content(id, s, at, p, geometry);
}

/* Return 1 when the weight block of the tracked buffer, by default the expected one, is two. */
static int is_two(const struct nb_identity *id, const struct nb_sig *s, uint32_t at,
                  const struct nb_weight_block *expected)
{
    const uint64_t of = nb_tracked_at(&id->buffers, at)->weight_block;
    const struct nb_weight_block *w = of >> 32 == TRACKED_GATHERED
                                          ? nb_table_find(&id->weight_blocks.blocks, s->entry.a, (uint32_t)of)
                                          : expected;

    return w && nb_weight_blocks_is_two(w);
}

/* Return 1 when the result is a part of the send buffer: a lasting buffer of gradients, not memory for this
 * operation only. */
static int in_place(const struct nb_identity_call *c)
{
    return c->recv >= c->send && c->recv - c->send < c->count * nb_nccl_type_size(c->type);
}

struct nb_identity_decision nb_identity_reduce(struct nb_identity *id, uint64_t number,
                                               const struct nb_profile *profile, uint64_t geometry)
{
    struct nb_call *call = nb_call_take_up(id, number);
    struct nb_identity_decision d = refuse(NB_ID_LEARNING);
    struct nb_weight_block *expected = NULL;
    const struct nb_shape *usable = NULL;
    struct nb_shape shape;
    unsigned alike = 0;
    const struct nb_view *v;
    struct nb_sig *s;
    struct nb_key *k;
    int address;

    if (!call)
        return refuse(NB_ID_FULL);
    if (call->c.count < LARGE)
        return refuse(NB_ID_SMALL);
    s = nb_sig_of(id, &call->c);
    v = &call->view;
    k = nb_key_of(id, s, call->c.send);
    if (s->bucket) {
        if (nb_set_accepts(&id->buffers, &s->set, profile, &shape))
            usable = &shape;
        d = by_name(id, s, key_id(k), usable, geometry, NB_ID_ADDRESS);
        d.passes = v->rounds;
        return d;
    }
    if (call->c.func == NB_FUNC_REDUCE_SCATTER)
        expected = nb_weight_blocks_expect(&id->weight_blocks, s->entry.a, s->count, &alike);
    if (expected)
        expected->summed = 1;
    address = nb_key_settled(s, v, k, call->c.recv, in_place(&call->c) ? NULL : expected);
    if (address < 0)
        forget_key(id, s, k);
    address = address > 0 && id->clock != CLOCK_NONE;
    /* One operation a step needs no address. Where fewer gradients come than there are blocks of the size,
     * because blocks are frozen, a buffer that comes once a step may carry another block tomorrow. */
    if ((v->clean >= (int)CERTAIN_AFTER && s->mode != MODE_ADDRESS) ||
        (alike > 1 && v->round_usual % alike != 0))
        address = 0;
    s->alike = alike;
    s->cycle = call->cycle;
    /* Operations after the gradients of all blocks are no sign that blocks do not predict. */
    choose_mode(id, s, address, alike > 0);
    if (nb_set_accepts(&id->buffers, &s->set, profile, &shape))
        usable = &shape;
    id->predicted = NB_TRACKED_NONE;
    switch (s->mode) {
    case MODE_ADDRESS: d = by_name(id, s, address ? key_id(k) : 0, usable, geometry, NB_ID_ADDRESS); break;
    case MODE_WEIGHTS: d = by_weight_block(id, s, expected, alike, usable, geometry); break;
    case MODE_PLACE: d = by_place(id, s, v, usable, geometry); break;
    case MODE_TURN:
        d = by_name(id, s, call->turn == NB_NONE ? 0 : tracked_id(TRACKED_TURN, call->turn), usable, geometry,
                    NB_ID_TURN);
        break;
    case MODE_NONE: break;
    }
    if (d.tracked >= 0 && is_two(id, s, (uint32_t)d.tracked, expected)) {
        d.buffer = d.reason == NB_ID_FOUND ? 0 : d.buffer; /* no proof that it is this buffer */
        d.reason = NB_ID_SHARED;
    }
    if (s->mode != MODE_WEIGHTS && expected)
        nb_weight_blocks_reduced(&id->weight_blocks, expected);
    d.predicted = id->predicted == NB_TRACKED_NONE ? 0 : buffer_of(id, id->predicted);
    d.passes = v->rounds;
    d.cycles = call->cycle;
    d.parent = call->parent;
    return d;
}

void nb_identity_forget(struct nb_identity *id, uint64_t comm)
{
    nb_sigs_forget(id, comm);
    nb_weight_blocks_forget(&id->weight_blocks, comm);
}
