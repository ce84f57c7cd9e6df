/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides whose error an operation continues; identity.h tells how, units.c and profile.c hold the parts.
 *
 * Calls are announced when NCCL is called and become known here when their first window comes, in that order;
 * calls that stay inside the node are taken up with the next one behind them that passes. So what is decided
 * does not depend on how far the job runs ahead of the network.
 */
#include "policy/identity.h"

#include <stdlib.h>
#include <string.h>

#include "policy/profile.h"
#include "policy/units.h"

#define DEFAULT_SIGNATURES 1024u
#define DEFAULT_SLOTS      4096u
#define DEFAULT_KEYS       8192u
#define DEFAULT_CALLS      16384u
#define UNITS              8192u

#define SCORE_LEAST  0.3f /* own slot: 0.55 to 0.77 measured, best other: up to 0.37 */
#define SCORE_MARGIN 0.1f
#define FOUND_LEAST  0.45f /* without a prediction that says the same */
#define FOUND_MARGIN 0.2f
#define FULL_RATE    0.2f
#define FULL_LEAST   0.5f
#define AGREE_RATE   0.1f /* share of predictions that content confirmed, moving average */
#define AGREE_LEAST  0.8f
/* Score of confirmed predictions, moving average: an average of two layers stays below. */
#define PURE_LEAST    0.42f
#define LEARN_LEAST   0.2f /* from the eighth profile on, a slot does not learn what does not look like it */
#define LEARN_FREE    8u
#define LEARN_LONG    28u /* profiles; more than the 20 of a period of layers that take turns */
#define FORGET_MISSES 64u
#define SUSPECT_AFTER 8u    /* breaks in a row until a slot begins anew */
#define ERROR_LIFE    8u    /* steps of its signature that an error is kept unused */
#define CERTAIN_AFTER 3u    /* steps seen before a slot is given out */
#define PENALTY       50    /* clean steps wanted after a signature that was single was not */
#define LARGE         1024u /* elements; below are scalars, which say nothing about steps */
#define RUN_LEAST     3u    /* gathers in a row that can be a forward pass */
#define STEPS_MISSED  2u    /* by what is still taken to come in every step */
#define MOST_STEPS    67u   /* percent */
#define RESCAN        32u   /* reductions between looks for the rarest signature */

enum clock { CLOCK_NONE, CLOCK_RARE, CLOCK_RUNS, CLOCK_WEIGHTS };
enum mode { MODE_NONE, MODE_ADDRESS, MODE_UNIT, MODE_PLACE };
/* Kinds of nb_slot.unit, in its upper half. */
enum { UNIT_GATHERED = 1, UNIT_PLACE, UNIT_KEY };

struct call {
    struct nb_identity_call c;
    uint64_t number;
    uint64_t parent; /* all-reduce: elements of the reduce-scatter whose result it sums */
    int begun;
};

struct key { /* a buffer of a signature */
    uint32_t sig, chain;
    uint64_t send, recv;
    uint64_t step;   /* of its signature, when last seen */
    uint32_t streak; /* steps in a row in which it came */
    int taken;
};

struct sig {
    uint64_t comm, count;
    enum nb_func func;
    ncclDataType_t type;
    uint32_t chain;
    int taken;
    uint64_t used;                   /* call that used it last */
    uint64_t calls, bursts;          /* reductions; those that followed another signature's */
    uint32_t round_ops, round_usual; /* operations in this round of the clock, and in the one before */
    uint64_t first_round, last_round, in_rounds; /* of the clock: + 1; in how many it was seen */
    /* steps, as this signature sees them */
    uint64_t round;                 /* + 1, of the passes, when last seen */
    uint64_t rounds;                /* in which it was seen */
    uint32_t in_round;              /* operations since the round began */
    uint32_t usual;                 /* operations in the round before */
    uint32_t same;                  /* rounds in a row with that many */
    int clean;                      /* rounds in a row with exactly one */
    uint32_t context, context_same; /* gathers before the round, and rounds in a row with that many */
    uint64_t unstable; /* the last round with an operation whose buffer was not (yet) used once a step */
    uint32_t violations, quiet;
    uint32_t unsettled; /* operations by address whose buffer was not settled */
    unsigned alike;     /* blocks of its size that the pass gathered and may still send gradients of */
    float full;         /* share of passes, of late, in which all of them did */
    enum mode mode;
    uint32_t predicted_run, unpredicted_run; /* operations in a row with and without a unit expected */
    struct nb_slot_set set;
};

struct run_total { /* gathers of one size in the run that is going on */
    uint64_t count;
    uint32_t n;
};
#define RUN_TOTALS 16u
#define RECENT_RS  16u

struct nb_identity {
    struct nb_identity_config config;
    struct call *calls;
    uint64_t announced, taken_up;
    struct sig *sigs;
    uint32_t sigs_used;
    struct nb_chains sig_chains;
    struct key *keys;
    uint32_t key_hand;
    struct nb_chains key_chains;
    struct nb_slots slots;
    struct nb_units units;
    /* the clock */
    enum clock clock;
    uint64_t round; /* steps begun */
    uint64_t weight_steps;
    uint32_t run, run_most, run_odd; /* gathers inside the node since the last reduction; usual length */
    uint32_t context;                /* length of the run before this round */
    struct run_total run_total[RUN_TOTALS], pass_total[RUN_TOTALS];
    uint32_t rare; /* the signature that marks a step */
    uint64_t reductions, rare_seen, rare_gap, rare_ticks, rare_passes;
    const struct sig *before; /* of the last large reduction */
    struct {
        uint64_t recv, count;
    } recent_rs[RECENT_RS];
    uint32_t recent_at;
    struct nb_identity_stats stats;
};

const char *nb_identity_reason_text(enum nb_identity_reason reason)
{
    static const char *const text[NB_ID_REASON_COUNT] = {
        "its buffer is used once a step",
        "one buffer has its signature",
        "prediction and content agree",
        "its content is unmistakable",
        "too few steps seen",
        "nothing says which buffer it is",
        "its content does not agree with the prediction",
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
    id->config.slots = id->config.slots ? id->config.slots : DEFAULT_SLOTS;
    id->config.keys = id->config.keys ? id->config.keys : DEFAULT_KEYS;
    id->config.calls = id->config.calls ? id->config.calls : DEFAULT_CALLS;
    id->calls = calloc(id->config.calls, sizeof(*id->calls));
    id->sigs = calloc(id->config.signatures, sizeof(*id->sigs));
    id->keys = calloc(id->config.keys, sizeof(*id->keys));
    id->rare = NB_NONE;
    if (!id->calls || !id->sigs || !id->keys || nb_chains_init(&id->sig_chains, id->config.signatures) ||
        nb_chains_init(&id->key_chains, id->config.keys) || nb_slots_init(&id->slots, id->config.slots) ||
        nb_units_init(&id->units, UNITS)) {
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
    free(id->sigs);
    free(id->keys);
    nb_chains_free(&id->sig_chains);
    nb_chains_free(&id->key_chains);
    nb_slots_free(&id->slots);
    nb_units_free(&id->units);
    free(id);
}

/* ---- signatures and buffers -------------------------------------------------------------------------- */

static uint32_t *sig_chain(struct nb_identity *id, uint64_t comm, enum nb_func func, ncclDataType_t type,
                           uint64_t count)
{
    return &id->sig_chains.head[nb_mix(nb_mix(comm, count), (uint64_t)func << 8 | (uint64_t)type) &
                                id->sig_chains.mask];
}

static void free_sig(struct nb_identity *id, uint32_t at)
{
    struct sig *s = &id->sigs[at];
    uint32_t *link = sig_chain(id, s->comm, s->func, s->type, s->count);

    while (*link != at)
        link = &id->sigs[*link].chain;
    *link = s->chain;
    nb_set_clear(&id->slots, &s->set);
    s->taken = 0;
    if (id->rare == at)
        id->rare = NB_NONE;
}

/* The signature of a call, made when it is new: a free one, else the longest unused. */
static struct sig *sig_of(struct nb_identity *id, const struct nb_identity_call *c)
{
    uint32_t *head = sig_chain(id, c->comm, c->func, c->type, c->count);
    uint32_t at;
    struct sig *s;

    for (at = *head; at != NB_NONE; at = id->sigs[at].chain) {
        s = &id->sigs[at];
        if (s->comm == c->comm && s->func == c->func && s->type == c->type && s->count == c->count) {
            s->used = id->announced;
            return s;
        }
    }
    at = NB_NONE;
    for (uint32_t i = 0; i < id->config.signatures; i++) {
        if (!id->sigs[i].taken) {
            at = i;
            break;
        }
        if (at == NB_NONE || id->sigs[i].used < id->sigs[at].used)
            at = i;
    }
    s = &id->sigs[at];
    if (s->taken)
        free_sig(id, at);
    else if (at >= id->sigs_used)
        id->sigs_used = at + 1;
    memset(s, 0, sizeof(*s));
    s->comm = c->comm;
    s->func = c->func;
    s->type = c->type;
    s->count = c->count;
    s->taken = 1;
    s->used = id->announced;
    nb_set_init(&s->set);
    s->chain = *head;
    *head = at;
    return s;
}

static uint32_t *key_chain(struct nb_identity *id, uint32_t sig, uint64_t send)
{
    return &id->key_chains.head[nb_mix(send, sig) & id->key_chains.mask];
}

static struct key *key_of(struct nb_identity *id, uint32_t sig, uint64_t send)
{
    uint32_t *head = key_chain(id, sig, send);
    struct key *k;

    for (uint32_t at = *head; at != NB_NONE; at = id->keys[at].chain)
        if (id->keys[at].sig == sig && id->keys[at].send == send)
            return &id->keys[at];
    /* Replaced in turn: recycled memory makes many keys that never come again. */
    uint32_t at = id->key_hand;
    id->key_hand = (id->key_hand + 1) % id->config.keys;
    k = &id->keys[at];
    if (k->taken) {
        uint32_t *link = key_chain(id, k->sig, k->send);
        while (*link != at)
            link = &id->keys[*link].chain;
        *link = k->chain;
    }
    head = key_chain(id, sig, send);
    *k = (struct key){.sig = sig, .send = send, .taken = 1, .chain = *head};
    *head = at;
    return k;
}

/* ---- the clock --------------------------------------------------------------------------------------- */

static void count_gather(struct nb_identity *id, uint64_t count)
{
    id->run++;
    for (unsigned i = 0; i < RUN_TOTALS; i++) {
        struct run_total *t = &id->run_total[i];
        if (t->n == 0)
            t->count = count;
        if (t->count == count) {
            t->n++;
            return;
        }
    }
}

/* A run of gathers inside the node that is (nearly) as long as the longest of late was a forward pass; the
 * prefetches of a backward pass are shorter. */
static void end_run(struct nb_identity *id)
{
    if (id->run >= RUN_LEAST && id->run * 2 > id->run_most) {
        /* One run far longer than usual is a checkpoint, two in a row are a new usual. */
        if (id->run <= 2 * id->run_most || !id->run_most || id->run_odd)
            id->run_most = id->run > id->run_most ? id->run : id->run_most - id->run_most / 16;
        id->run_odd = id->run > 2 * id->run_most;
        id->context = id->run;
        memcpy(id->pass_total, id->run_total, sizeof(id->pass_total));
        if (id->clock < CLOCK_RUNS)
            id->clock = CLOCK_RUNS;
        if (id->clock == CLOCK_RUNS)
            id->round++;
    } else if (id->run >= RUN_LEAST) {
        id->run_most -= id->run_most / 4; /* the longest was something else */
    }
    if (id->run) {
        id->run = 0;
        memset(id->run_total, 0, sizeof(id->run_total));
    }
}

/* How many blocks of `count` elements the pass gathered inside the node. */
static uint32_t gathered_alike(const struct nb_identity *id, uint64_t count)
{
    for (unsigned i = 0; count && i < RUN_TOTALS; i++)
        if (id->pass_total[i].n && id->pass_total[i].count == count)
            return id->pass_total[i].n;
    return 0;
}

/* What comes in some steps only belongs to layers that are frozen at other times. */
static int in_steps(const struct nb_identity *id, const struct sig *s, unsigned percent)
{
    return id->clock <= CLOCK_RARE || s->in_rounds * 100 >= (id->round + 2 - s->first_round) * percent;
}

static int in_all_steps(const struct nb_identity *id, const struct sig *s)
{
    return id->clock <= CLOCK_RARE || s->in_rounds + STEPS_MISSED >= id->round + 2 - s->first_round;
}

static void look_for_rare(struct nb_identity *id)
{
    uint64_t most = 0;
    uint32_t best = NB_NONE, alive = 0;

    for (uint32_t i = 0; i < id->sigs_used; i++)
        if (id->sigs[i].taken && id->sigs[i].calls > most)
            most = id->sigs[i].calls;
    for (uint32_t i = 0; i < id->sigs_used; i++) {
        const struct sig *s = &id->sigs[i];
        /* What is far rarer belongs to evaluations, what has not come for long to the past. */
        if (!s->taken || s->count < LARGE || s->bursts < CERTAIN_AFTER || s->calls * 512 < most ||
            id->announced - s->used > 4 * id->config.calls)
            continue;
        alive++;
        if (s->bursts != s->calls)
            continue; /* comes several times in a row: not once a step */
        if (!in_all_steps(id, s))
            continue;
        if (best == NB_NONE || s->calls < id->sigs[best].calls)
            best = i;
    }
    if (alive < 2)
        best = NB_NONE; /* one signature alone may come any number of times a step */
    if (id->rare != NB_NONE) {
        int stale = id->rare_gap && id->reductions - id->rare_seen > 4 * id->rare_gap + 8;
        if (!stale && in_all_steps(id, &id->sigs[id->rare]) && best != NB_NONE &&
            id->sigs[best].calls * 5 > id->sigs[id->rare].calls * 3)
            return;
    }
    id->rare = best;
    id->rare_seen = id->reductions;
    id->rare_gap = id->rare_ticks = 0;
}

/* More operations in this step than in the one before, by a clock that does not hang on reductions. */
static int more_than_usual(const struct nb_identity *id, const struct sig *s)
{
    return id->clock > CLOCK_RARE && s->round_usual && s->round_ops > s->round_usual;
}

static void tick_rare(struct nb_identity *id, struct sig *s)
{
    uint64_t gap;

    s->bursts += s != id->before;
    if (s->last_round != id->round + 1) {
        if (s->alike && s->round_ops)
            s->full += FULL_RATE * ((float)(s->round_ops % s->alike == 0) - s->full);
        s->round_usual = s->round_ops;
        s->round_ops = 0;
        s->last_round = id->round + 1;
        s->first_round = s->first_round ? s->first_round : s->last_round;
        s->in_rounds++;
    }
    s->round_ops++;
    id->before = s;
    if (id->reductions++ % RESCAN == 0 || id->rare == NB_NONE)
        look_for_rare(id);
    if (id->rare == NB_NONE || s != &id->sigs[id->rare])
        return;
    if (more_than_usual(id, s)) {
        id->rare = NB_NONE; /* does not mark steps after all; the next reduction looks for another */
        return;
    }
    gap = id->reductions - id->rare_seen;
    if (id->rare_ticks++ && gap > id->rare_gap)
        id->rare_gap = gap;
    id->rare_seen = id->reductions;
    id->rare_passes++;
    if (id->clock <= CLOCK_RARE) {
        id->clock = CLOCK_RARE;
        id->round++;
    }
}

/* Passes: as steps, but several a step where gradients of micro-batches are reduced one by one. */
static uint64_t pass_of(const struct nb_identity *id)
{
    return id->clock != CLOCK_RUNS && id->rare != NB_NONE ? id->rare_passes : id->round;
}

/* Take up a call that stays inside the node. */
static void take_inner(struct nb_identity *id, const struct nb_identity_call *c)
{
    if (c->func == NB_FUNC_ALL_GATHER)
        count_gather(id, c->count);
    else if (c->count >= LARGE)
        end_run(id);
}

/* The call that begins, with all calls inside the node before it taken up. NULL: its announcement is gone. */
static struct call *take_up(struct nb_identity *id, uint64_t number)
{
    struct call *call;

    if (number >= id->announced || id->announced - number > id->config.calls) {
        id->stats.lost_calls++;
        return NULL;
    }
    if (id->announced - id->taken_up > id->config.calls)
        id->taken_up = id->announced - id->config.calls;
    for (; id->taken_up < number; id->taken_up++) {
        call = &id->calls[id->taken_up % id->config.calls];
        if (!call->c.passes)
            take_inner(id, &call->c);
    }
    call = &id->calls[number % id->config.calls];
    if (call->begun) {
        id->stats.lost_calls++;
        return NULL;
    }
    call->begun = 1;
    return call;
}

uint64_t nb_identity_call(struct nb_identity *id, const struct nb_identity_call *c)
{
    uint64_t number = id->announced++;
    struct call *call = &id->calls[number % id->config.calls];

    *call = (struct call){.c = *c, .number = number};
    if (c->func == NB_FUNC_REDUCE_SCATTER) {
        id->recent_rs[id->recent_at].recv = c->recv;
        id->recent_rs[id->recent_at].count = c->count;
        id->recent_at = (id->recent_at + 1) % RECENT_RS;
    } else if (c->func == NB_FUNC_ALL_REDUCE) {
        for (unsigned i = 1; i <= RECENT_RS && !call->parent; i++) {
            unsigned at = (id->recent_at + RECENT_RS - i) % RECENT_RS;
            if (id->recent_rs[at].count && id->recent_rs[at].recv == c->send)
                call->parent = id->recent_rs[at].count;
        }
    }
    return number;
}

void nb_identity_gather(struct nb_identity *id, uint64_t number, int64_t unit, int changed)
{
    struct call *call = take_up(id, number);
    struct nb_unit *u;

    if (!call || unit < 0 || unit > INT32_MAX)
        return;
    u = nb_units_get(&id->units, call->c.comm, (uint32_t)unit);
    u->count = call->c.count;
    u->bytes = call->c.type == ncclInt8 || call->c.type == ncclUint8;
    nb_units_gathered(&id->units, u, changed);
    if (!changed)
        return;
    /* Weights change once a step: a block that changes again is in the next one. */
    if (u->changed_step == id->weight_steps + 1) {
        id->weight_steps++;
        if (id->weight_steps >= 2)
            id->clock = CLOCK_WEIGHTS;
        if (id->clock == CLOCK_WEIGHTS)
            id->round++;
    }
    u->changed_step = id->weight_steps + 1;
}

/* ---- a signature's view of the steps ------------------------------------------------------------------ */

static void count_operation(struct nb_identity *id, struct sig *s)
{
    uint64_t pass = pass_of(id) + 1;

    if (s->round != pass) {
        if (s->in_round) {
            s->same = s->in_round == s->usual ? s->same + 1 : 0;
            s->usual = s->in_round;
            if (s->in_round == 1 && s->clean < (int)CERTAIN_AFTER)
                s->clean++;
            if (s->violations && ++s->quiet >= 100) {
                s->quiet = 0;
                s->violations--;
            }
        }
        s->context_same = s->context == id->context ? s->context_same + 1 : 0;
        s->context = id->context;
        s->round = pass;
        s->rounds++;
        s->in_round = 0;
    }
    if (++s->in_round > 1)
        s->clean = s->clean >= (int)CERTAIN_AFTER || s->clean < 0 ? -PENALTY : 0;
}

/* Note the buffer; 1 when it has come once in every step that its signature came in, for long enough. */
static int settled(struct sig *s, struct key *k, uint64_t recv)
{
    uint32_t wanted = CERTAIN_AFTER << (2 * (s->violations < 3 ? s->violations : 3));
    int ok;

    if (k->step == s->in_rounds) { /* twice in a step: memory that others use too */
        if (k->streak >= CERTAIN_AFTER) {
            s->violations++;
            s->quiet = 0;
        }
        k->streak = 0;
    } else {
        k->streak = k->step + 1 == s->in_rounds && k->recv == recv ? k->streak + 1 : 1;
    }
    k->step = s->in_rounds;
    k->recv = recv;
    ok = k->streak > wanted;
    if (!ok)
        s->unstable = s->rounds;
    return ok && s->rounds > s->unstable;
}

static void change_mode(struct nb_identity *id, struct sig *s, enum mode mode)
{
    if (s->mode != mode)
        nb_set_clear(&id->slots, &s->set);
    s->mode = mode;
    s->unsettled = 0;
    s->predicted_run = s->unpredicted_run = 0;
}

/* What the signature's slots stand for. Buffers come first, but slots that content has proven are not given
 * up for them: recycled memory may look settled for a while. */
static void choose_mode(struct nb_identity *id, struct sig *s, int by_address, int by_unit)
{
    s->predicted_run = by_unit ? s->predicted_run + 1 : 0;
    s->unpredicted_run = by_unit ? 0 : s->unpredicted_run + 1;
    if (s->rounds <= CERTAIN_AFTER)
        return;
    switch (s->mode) {
    case MODE_NONE:
        if (by_address || s->rounds > CERTAIN_AFTER + 1)
            change_mode(id, s, by_address ? MODE_ADDRESS : by_unit ? MODE_UNIT : MODE_PLACE);
        break;
    case MODE_ADDRESS:
        if (by_address)
            s->unsettled -= s->unsettled > 0;
        else if (++s->unsettled > 4 * s->usual + 16) /* unstable for several steps */
            change_mode(id, s, by_unit ? MODE_UNIT : MODE_PLACE);
        break;
    case MODE_UNIT:
    case MODE_PLACE:
        if (by_address &&
            (s->set.mature == 0 || (s->func == NB_FUNC_ALL_REDUCE && s->rounds > s->unstable + 16)))
            change_mode(id, s, MODE_ADDRESS);
        else if (s->mode == MODE_UNIT && s->unpredicted_run > 4 * s->usual + 16)
            change_mode(id, s, MODE_PLACE);
        else if (s->mode == MODE_PLACE && s->predicted_run > 2 * s->usual + 8)
            change_mode(id, s, MODE_UNIT);
        break;
    }
}

/* ---- decisions ---------------------------------------------------------------------------------------- */

static uint64_t unit_id(unsigned kind, uint32_t number)
{
    return (uint64_t)kind << 32 | number;
}

/* Give the slot out. */
static struct nb_identity_decision give(struct nb_identity *id, struct sig *s, uint32_t at, uint64_t geometry,
                                        enum nb_identity_reason reason, const struct nb_fit *fit)
{
    struct nb_slot *slot = &id->slots.slot[at];
    struct nb_identity_decision d = {.slot = at, .reason = reason};

    d.empty = !slot->filled || slot->geometry != geometry || s->rounds - slot->used_round > ERROR_LIFE;
    if (fit) {
        d.score = fit->best_slot == at ? fit->best : fit->own;
        d.second = fit->best_slot == at ? fit->after : fit->other;
    }
    id->stats.emptied += (uint64_t)d.empty;
    slot->filled = 1;
    slot->geometry = geometry;
    slot->used_round = s->rounds;
    return d;
}

static struct nb_identity_decision refuse(enum nb_identity_reason reason, const struct nb_fit *fit)
{
    struct nb_identity_decision d = {.slot = -1, .reason = reason};

    if (fit) {
        d.score = fit->own;
        d.second = fit->other;
    }
    return d;
}

/* No other slot comes into question. All that content can say is that it is suddenly unlike what this slot's
 * always was; a slot of which that was true has to prove itself before it is given out again. */
static struct nb_identity_decision alone(struct nb_identity *id, struct sig *s, uint32_t at,
                                         const struct nb_profile *p, uint64_t geometry,
                                         enum nb_identity_reason reason)
{
    struct nb_slot *slot = &id->slots.slot[at];

    if (p && !id->config.trust_prediction && nb_set_breaks(&id->slots, at, p)) {
        if (++slot->misses >= SUSPECT_AFTER) {
            nb_set_unlearn(&id->slots, &s->set, at);
            slot->suspect = 1;
        }
        return refuse(NB_ID_MISMATCH, NULL);
    }
    if (p)
        nb_set_learn(&id->slots, &s->set, at, p);
    if (slot->suspect && slot->profiles < NB_SLOT_MATURE)
        return refuse(NB_ID_LEARNING, NULL);
    return give(id, s, at, geometry, reason, NULL);
}

static struct nb_identity_decision by_address(struct nb_identity *id, struct sig *s, const struct key *k,
                                              int settled_now, const struct nb_profile *p, uint64_t geometry)
{
    uint32_t at =
        nb_set_find(&id->slots, &s->set, unit_id(UNIT_KEY, (uint32_t)nb_mix(k->send, k->recv)), settled_now);
    struct nb_fit fit;

    if (!settled_now)
        return refuse(NB_ID_LEARNING, NULL);
    if (at == NB_SLOT_NONE)
        return refuse(NB_ID_FULL, NULL);
    if (!p)
        return give(id, s, at, geometry, NB_ID_ADDRESS, NULL);
    fit = nb_set_fit(&id->slots, &s->set, at, p);
    /* Memory may be handed round among buffers of a size: the data have a veto where another slot fits and
     * this one does not. */
    if (s->set.n > 1 && s->set.mature == s->set.n && fit.own < SCORE_LEAST &&
        fit.other >= fit.own + SCORE_MARGIN && fit.other >= SCORE_LEAST && !id->config.trust_prediction) {
        if (++id->slots.slot[at].misses >= 3) {
            s->violations++;
            change_mode(id, s, MODE_NONE);
            s->rounds = s->unstable = 1;
        }
        return refuse(NB_ID_MISMATCH, &fit);
    }
    return alone(id, s, at, p, geometry, NB_ID_ADDRESS);
}

/* Several slots come into question: `at` is predicted, or none is. */
static struct nb_identity_decision by_content(struct nb_identity *id, struct sig *s, uint32_t at,
                                              const struct nb_profile *p, uint64_t geometry)
{
    struct nb_slot *slot = at == NB_SLOT_NONE ? NULL : &id->slots.slot[at];
    /* Reductions that no gather explains may change meaning (see by_place): they learn longer. */
    uint32_t wanted =
        s->mode == MODE_PLACE && s->func == NB_FUNC_REDUCE_SCATTER ? LEARN_LONG : NB_SLOT_MATURE;
    struct nb_fit fit;
    int fits;

    if (id->config.trust_prediction) {
        if (!slot)
            return refuse(NB_ID_UNPREDICTED, NULL);
        if (p)
            nb_set_learn(&id->slots, &s->set, at, p);
        return give(id, s, at, geometry, NB_ID_VERIFIED, NULL);
    }
    if (!p)
        return refuse(NB_ID_NO_PROFILE, NULL);
    fit = nb_set_fit(&id->slots, &s->set, at, p);
    fits = slot && fit.own >= SCORE_LEAST && fit.own >= fit.other + SCORE_MARGIN;
    if (slot && slot->profiles >= LEARN_FREE) {
        slot->agreed += AGREE_RATE * ((float)fits - slot->agreed);
        if (fits)
            slot->purity += AGREE_RATE * (fit.own - slot->purity);
    }
    if (slot && slot->profiles < wanted) {
        if (slot->profiles < LEARN_FREE || (fit.own >= LEARN_LEAST && fit.own >= fit.other))
            nb_set_learn(&id->slots, &s->set, at, p);
        else if (++slot->misses >= LEARN_FREE)
            nb_set_unlearn(&id->slots, &s->set, at);
        return refuse(NB_ID_LEARNING, &fit);
    }
    /* A prediction that is often wrong has mixed buffers in the slot's average: then it proves nothing. */
    if (fits && slot->agreed >= AGREE_LEAST && slot->purity >= PURE_LEAST) {
        nb_set_learn(&id->slots, &s->set, at, p);
        return give(id, s, at, geometry, NB_ID_VERIFIED, &fit);
    }
    if (fit.best_slot != NB_SLOT_NONE && s->set.mature == s->set.n && s->set.n > 1 &&
        fit.best >= FOUND_LEAST && fit.best >= fit.after + FOUND_MARGIN) {
        nb_set_learn(&id->slots, &s->set, fit.best_slot, p);
        return give(id, s, fit.best_slot, geometry, NB_ID_FOUND, &fit);
    }
    if (!slot)
        return refuse(NB_ID_UNPREDICTED, &fit);
    if (++slot->misses >= FORGET_MISSES)
        nb_set_unlearn(&id->slots, &s->set, at);
    return refuse(NB_ID_MISMATCH, &fit);
}

static struct nb_identity_decision by_unit(struct nb_identity *id, struct sig *s, struct nb_unit *expected,
                                           unsigned alike, const struct nb_profile *p, uint64_t geometry)
{
    struct nb_identity_decision d;
    uint32_t at = NB_SLOT_NONE;

    /* Where many blocks send no gradient (frozen, or gathered in vain) the next on the stack means nothing.
     */
    if (expected && (alike == 1 || s->full >= FULL_LEAST)) {
        at = nb_set_find(&id->slots, &s->set, unit_id(UNIT_GATHERED, expected->number), 1);
        if (at == NB_SLOT_NONE)
            return refuse(NB_ID_FULL, NULL);
    }
    if (alike == 1 && s->set.n == 1 && at != NB_SLOT_NONE) {
        return alone(id, s, at, p, geometry, NB_ID_SINGLE);
    }
    d = by_content(id, s, at, p, geometry);
    if (d.reason == NB_ID_FOUND) { /* what content says corrects the stack */
        uint64_t unit = id->slots.slot[d.slot].unit;
        struct nb_unit *found = nb_units_find(&id->units, s->comm, (uint32_t)unit);
        expected = found ? found : expected;
    }
    if (expected)
        nb_units_reduced(&id->units, expected);
    return d;
}

static struct nb_identity_decision by_place(struct nb_identity *id, struct sig *s, uint64_t parent,
                                            const struct nb_profile *p, uint64_t geometry)
{
    int usual =
        s->context_same >= CERTAIN_AFTER && s->same >= CERTAIN_AFTER && s->in_round <= s->usual &&
        (s->func != NB_FUNC_REDUCE_SCATTER || (in_steps(id, s, MOST_STEPS) && !more_than_usual(id, s)));
    uint32_t at = NB_SLOT_NONE;

    if (id->clock == CLOCK_NONE)
        return refuse(NB_ID_UNPREDICTED, NULL);
    if (usual) {
        at = nb_set_find(&id->slots, &s->set, unit_id(UNIT_PLACE, s->in_round), 1);
        if (at == NB_SLOT_NONE)
            return refuse(NB_ID_FULL, NULL);
        if (s->clean >= (int)CERTAIN_AFTER && s->set.n == 1 && gathered_alike(id, parent) <= 1 &&
            in_steps(id, s, MOST_STEPS)) {
            /* Gathers tell nothing of its buffer (ZeRO-3 groups tensors differently), so it may be one of
             * many that take turns for a while: it has to prove that it stays the same. */
            if (s->func == NB_FUNC_REDUCE_SCATTER)
                id->slots.slot[at].suspect = 1;
            return alone(id, s, at, p, geometry, NB_ID_SINGLE);
        }
    }
    return by_content(id, s, at, p, geometry);
}

struct nb_identity_decision nb_identity_reduce(struct nb_identity *id, uint64_t number,
                                               const struct nb_profile *profile, uint64_t geometry)
{
    struct call *call = take_up(id, number);
    struct nb_identity_decision d = {.slot = -1, .reason = NB_ID_FULL};
    struct nb_unit *expected = NULL;
    unsigned alike = 0;
    struct sig *s;
    struct key *k;
    int address;

    if (!call) {
        id->stats.decided[d.reason]++;
        return d;
    }
    if (call->c.count < LARGE) {
        d.reason = NB_ID_SMALL;
        id->stats.decided[d.reason]++;
        return d;
    }
    end_run(id);
    s = sig_of(id, &call->c);
    s->calls++;
    tick_rare(id, s);
    count_operation(id, s);
    k = key_of(id, (uint32_t)(s - id->sigs), call->c.send);
    if (call->c.func == NB_FUNC_REDUCE_SCATTER)
        expected = nb_units_expect(&id->units, s->comm, s->count, &alike);
    address = settled(s, k, call->c.recv) && id->clock != CLOCK_NONE;
    /* One operation a step needs no address, and where fewer gradients come than there are blocks of the size
     * (the others are frozen), a buffer that comes once a step may carry another block tomorrow. */
    if (alike == 1 || (s->clean >= (int)CERTAIN_AFTER && s->mode != MODE_ADDRESS) ||
        (alike > 1 && s->round_usual % alike != 0) ||
        (s->func == NB_FUNC_REDUCE_SCATTER && !in_steps(id, s, MOST_STEPS)))
        address = 0;
    s->alike = alike;
    choose_mode(id, s, address, expected != NULL);
    if (!nb_set_accepts(&id->slots, &s->set, profile))
        profile = NULL;
    switch (s->mode) {
    case MODE_ADDRESS: d = by_address(id, s, k, address, profile, geometry); break;
    case MODE_UNIT: d = by_unit(id, s, expected, alike, profile, geometry); break;
    case MODE_PLACE: d = by_place(id, s, call->parent, profile, geometry); break;
    case MODE_NONE: d.reason = NB_ID_LEARNING; break;
    }
    if (s->mode != MODE_UNIT && expected)
        nb_units_reduced(&id->units, expected);
    id->stats.decided[d.reason]++;
    return d;
}

void nb_identity_forget(struct nb_identity *id, uint64_t comm)
{
    for (uint32_t i = 0; i < id->sigs_used; i++)
        if (id->sigs[i].taken && id->sigs[i].comm == comm)
            free_sig(id, i);
    nb_units_forget(&id->units, comm);
}

void nb_identity_get_stats(const struct nb_identity *id, struct nb_identity_stats *stats)
{
    *stats = id->stats;
    stats->steps = id->round;
    stats->slots = id->slots.used;
}
