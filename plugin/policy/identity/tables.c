/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signatures and their buffers, in pools of fixed size.
 *
 * The queue of announced calls. Calls are announced when the job calls NCCL. Identity takes them up in that
 * order when their first window comes. A call that stays inside the node leaves the queue with the next call
 * behind it that passes. The decisions therefore do not depend on how far the job runs ahead of the network.
 */
#include "policy/identity/internal.h"

#include <stdlib.h>
#include <string.h>

#define PENALTY 50 /* clean steps until a signature counts as single again */

/* ---- signatures and buffers -------------------------------------------------------------------------- */

static uint64_t hash_of(uint64_t comm, enum nb_func func, ncclDataType_t type, uint64_t count)
{
    return nb_mix(nb_mix(comm, count), (uint64_t)func << 8 | (uint64_t)type);
}

void nb_sig_free(struct nb_identity *id, uint32_t at)
{
    struct nb_sig *s = nb_sig_at(id, at);

    nb_chains_remove(&id->sig_chains, hash_of(s->comm, s->func, s->type, s->count), at);
    nb_set_clear(&id->buffers, &s->set);
    s->taken = 0;
    if (id->rare == at)
        id->rare = NB_NONE;
}

struct nb_sig *nb_sig_of(struct nb_identity *id, const struct nb_identity_call *c)
{
    const uint64_t hash = hash_of(c->comm, c->func, c->type, c->count);
    uint32_t at;
    struct nb_sig *s;

    for (at = nb_chains_first(&id->sig_chains, hash); at != NB_NONE; at = id->sig_chains.next[at]) {
        s = nb_sig_at(id, at);
        if (s->comm == c->comm && s->func == c->func && s->type == c->type && s->count == c->count &&
            s->bucket == c->bucket) {
            s->used = id->announced;
            return s;
        }
    }
    at = NB_NONE;
    for (uint32_t i = 0; i < id->sigs_used && (at == NB_NONE || nb_sig_at(id, at)->taken); i++)
        if (at == NB_NONE || !nb_sig_at(id, i)->taken || nb_sig_at(id, i)->used < nb_sig_at(id, at)->used)
            at = i;
    if ((at == NB_NONE || nb_sig_at(id, at)->taken) && !nb_slab_reach(&id->sigs, id->sigs_used + 1))
        at = id->sigs_used++;
    s = nb_sig_at(id, at);
    if (s->taken)
        nb_sig_free(id, at);
    memset(s, 0, sizeof(*s));
    s->own = at;
    s->comm = c->comm;
    s->func = c->func;
    s->type = c->type;
    s->bucket = c->bucket;
    s->count = c->count;
    s->taken = 1;
    s->used = id->announced;
    nb_set_init(&s->set);
    nb_chains_add(&id->sig_chains, hash, at);
    return s;
}

static struct nb_key *key_at(const struct nb_identity *id, uint32_t at)
{
    return nb_slab_at(&id->keys, at);
}

struct nb_key *nb_key_of(struct nb_identity *id, uint32_t sig, uint64_t send)
{
    uint32_t at = nb_chains_first(&id->key_chains, nb_mix(send, sig));
    struct nb_key *k;

    for (; at != NB_NONE; at = id->key_chains.next[at])
        if (key_at(id, at)->sig == sig && key_at(id, at)->send == send)
            return key_at(id, at);
    /* Replace in turn: recycled memory makes many keys that never come again. */
    at = nb_slab_reach(&id->keys, id->key_hand + 1) ? 0 : id->key_hand;
    id->key_hand = at + 1;
    k = key_at(id, at);
    if (k->taken)
        nb_chains_remove(&id->key_chains, nb_mix(k->send, k->sig), at);
    *k = (struct nb_key){.sig = sig, .send = send, .taken = 1};
    nb_chains_add(&id->key_chains, nb_mix(send, sig), at);
    return k;
}

/* ---- a signature's view of the steps ------------------------------------------------------------------ */

/* Count an operation of the signature in the current pass. */
static void count_in_pass(struct nb_identity *id, struct nb_sig *s)
{
    struct nb_view *v = &s->view;
    uint64_t pass = nb_clock_pass(id) + 1;

    if (s->round != pass) {
        if (v->in_round) {
            v->same = v->in_round == v->usual ? v->same + 1 : 0;
            v->usual = v->in_round;
            if (v->in_round == 1 && v->clean < (int)CERTAIN_AFTER)
                v->clean++;
            if (s->violations && ++s->quiet >= 100) {
                s->quiet = 0;
                s->violations--;
            }
        }
        v->context_same = v->context == id->context ? v->context_same + 1 : 0;
        v->context = id->context;
        s->round = pass;
        v->rounds++;
        v->in_round = 0;
    }
    if (++v->in_round > 1)
        v->clean = v->clean >= (int)CERTAIN_AFTER || v->clean < 0 ? -PENALTY : 0;
}

/* Note that a settled buffer broke its pattern. Several times in a round are one event. */
static void violated(struct nb_sig *s, const struct nb_view *v, const struct nb_key *k)
{
    if (k->streak < CERTAIN_AFTER || s->violated == v->rounds)
        return;
    s->violated = v->rounds;
    s->violations++;
    s->quiet = 0;
}

int nb_key_settled(struct nb_sig *s, const struct nb_view *v, struct nb_key *k, uint64_t recv,
                   const struct nb_weight_block *expected)
{
    uint64_t weight_block = expected ? (uint64_t)expected->number + 1 : 0;
    int told_apart = s->mode == MODE_ADDRESS && s->set.n > 0 && s->set.mature == s->set.n;
    uint32_t wanted = CERTAIN_AFTER << (2 * (s->violations < 3 ? s->violations : 3));
    int ok, moved = weight_block && k->weight_block && weight_block != k->weight_block && !told_apart;

    if (k->step == v->in_rounds) { /* twice in a step: several gradients use this memory */
        violated(s, v, k);
        k->streak = 0;
    } else {
        k->streak = k->step + 1 == v->in_rounds && k->recv == recv ? k->streak + 1 : 1;
    }
    if (moved) {
        violated(s, v, k);
        k->streak = 0;
    }
    k->weight_block = weight_block;
    k->step = v->in_rounds;
    k->recv = recv;
    ok = k->streak > wanted;
    if (!ok)
        s->unstable = v->rounds;
    return moved ? -1 : ok && v->rounds > s->unstable;
}

/* Take up a call that stays inside the node. */
static void take_inner(struct nb_identity *id, const struct nb_identity_call *c)
{
    if (c->func == NB_FUNC_ALL_GATHER)
        nb_clock_gather(id, c->count);
    else if (c->count >= LARGE)
        nb_clock_end_run(id);
}

/* Count a bucket. A bucket that comes again is in the next round. Further calls do not matter for buckets. */
static void count_bucket(struct nb_identity *id, struct nb_sig *s, const struct nb_call *call)
{
    struct nb_key *k = nb_key_of(id, s->own, call->c.send);

    if (k->streak && k->round == id->bucket_round)
        id->bucket_round++;
    k->streak++;
    k->round = s->view.rounds = id->bucket_round;
}

/* Note the turn of a named sum. */
static void count_turn(struct nb_identity *id, const struct nb_sig *s, struct nb_call *call)
{
    if (!nb_turns_count(id, s, &call->turn, &call->cycle))
        return;
    for (uint32_t i = 0; i < id->sigs_used; i++) {
        struct nb_sig *other = nb_sig_at(id, i);
        if (other->taken && other->comm == s->comm && other->mode == MODE_TURN)
            nb_set_clear(&id->buffers, &other->set);
    }
}

/* Count a reduction in its step. The order of the calls decides, also where communicators run beside each
 * other and a later call begins first. */
static void count_call(struct nb_identity *id, struct nb_call *call)
{
    struct nb_sig *s;

    nb_clock_end_run(id);
    s = nb_sig_of(id, &call->c);
    s->calls++;
    nb_clock_reduce(id, s);
    if (s->bucket)
        count_bucket(id, s, call);
    else
        count_in_pass(id, s);
    if (call->c.named && !s->bucket)
        count_turn(id, s, call);
    call->view = s->view;
}

/* Return 1 when the call will be asked for again. */
static int wanted(const struct nb_identity *id, const struct nb_call *call)
{
    return call->number >= id->taken_up || (call->c.passes && !call->begun);
}

/* Return the place for the next call: the oldest call's, or a new one when that call is still wanted and
 * memory suffices. */
static struct nb_call *new_call(struct nb_identity *id)
{
    const uint64_t number = id->announced;
    struct nb_call *calls;

    while (number >= id->calls_cap && id->calls_cap < id->config.calls &&
           wanted(id, &id->calls[number % id->calls_cap])) {
        const uint32_t cap = 2 * id->calls_cap < id->config.calls ? 2 * id->calls_cap : id->config.calls;
        calls = calloc(cap, sizeof(*calls));
        if (!calls)
            break;
        for (uint64_t i = number - id->calls_cap; i < number; i++)
            calls[i % cap] = id->calls[i % id->calls_cap];
        free(id->calls);
        id->calls = calls;
        id->calls_cap = cap;
    }
    return &id->calls[number % id->calls_cap];
}

struct nb_call *nb_call_take_up(struct nb_identity *id, uint64_t number)
{
    struct nb_call *call;

    if (number >= id->announced || id->announced - number > id->calls_cap)
        return NULL;
    if (id->announced - id->taken_up > id->calls_cap)
        id->taken_up = id->announced - id->calls_cap;
    for (; id->taken_up <= number; id->taken_up++) {
        call = &id->calls[id->taken_up % id->calls_cap];
        if (!call->c.passes)
            take_inner(id, &call->c);
        else if (call->c.func != NB_FUNC_ALL_GATHER && call->c.count >= LARGE)
            count_call(id, call);
    }
    call = &id->calls[number % id->calls_cap];
    if (call->begun)
        return NULL;
    call->begun = 1;
    return call;
}

uint64_t nb_identity_call(struct nb_identity *id, const struct nb_identity_call *c)
{
    struct nb_call *call = new_call(id);
    const uint64_t number = id->announced++;

    *call = (struct nb_call){.c = *c, .number = number, .turn = NB_NONE};
    if (c->func == NB_FUNC_REDUCE_SCATTER) {
        id->recent_rs[id->recent_at].recv = c->recv;
        id->recent_rs[id->recent_at].count = c->count;
        id->recent_at = (id->recent_at + 1) % NB_RECENT_RS;
    } else if (c->func == NB_FUNC_ALL_REDUCE) {
        for (unsigned i = 1; i <= NB_RECENT_RS && !call->parent; i++) {
            unsigned at = (id->recent_at + NB_RECENT_RS - i) % NB_RECENT_RS;
            if (id->recent_rs[at].count && id->recent_rs[at].recv == c->send)
                call->parent = id->recent_rs[at].count;
        }
    }
    return number;
}
