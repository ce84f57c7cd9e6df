/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signatures and their buffers, in pools of fixed size.
 *
 * The queue of announced calls. Calls are announced when the job calls NCCL. Identity takes them up in that
 * order when their first window comes. A call that stays inside the node leaves the queue with the next call
 * behind it that passes. The decisions therefore do not depend on how far the job runs ahead of the network.
 */
#include "policy/identity/internal.h"

#define PENALTY 50 /* clean steps until a signature counts as single again */

/* ---- signatures and buffers -------------------------------------------------------------------------- */

/* Free what a signature holds. */
static void drop_sig(void *arg, void *entry)
{
    struct nb_identity *id = arg;
    struct nb_sig *s = entry;

    nb_set_clear(&id->buffers, &s->set);
    if (id->rare == s)
        id->rare = NULL;
}

void nb_sigs_forget(struct nb_identity *id, uint64_t comm)
{
    for (struct nb_sig *s = NULL; (s = nb_table_next(&id->sigs, s));)
        if (s->entry.a == comm) {
            drop_sig(id, s);
            nb_table_remove(&id->sigs, s);
        }
}

struct nb_sig *nb_sig_of(struct nb_identity *id, const struct nb_identity_call *c)
{
    const uint64_t rest =
        nb_mix(c->count, (uint64_t)c->func << 16 | (uint64_t)c->type << 8 | (uint64_t)(c->bucket != 0));
    struct nb_sig *s = nb_table_find(&id->sigs, c->comm, rest);

    if (!s) {
        s = nb_table_make(&id->sigs, c->comm, rest, drop_sig, id);
        s->func = c->func;
        s->type = c->type;
        s->bucket = c->bucket;
        s->count = c->count;
        nb_set_init(&s->set);
    }
    return s;
}

struct nb_key *nb_key_of(struct nb_identity *id, const struct nb_sig *s, uint64_t send)
{
    struct nb_key *k = nb_table_find(&id->keys, send, s->entry.at);

    return k ? k : nb_table_make(&id->keys, send, s->entry.at, NULL, NULL);
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
    uint64_t weight_block = expected ? expected->entry.b + 1 : 0;
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
        id->run++;
    else if (c->count >= LARGE)
        nb_clock_end_run(id);
}

/* Count a bucket. A bucket that comes again is in the next round. Further calls do not matter for buckets. */
static void count_bucket(struct nb_identity *id, struct nb_sig *s, const struct nb_call *call)
{
    struct nb_key *k = nb_key_of(id, s, call->c.send);

    if (k->streak && k->round == id->bucket_round)
        id->bucket_round++;
    k->streak++;
    k->round = s->view.rounds = id->bucket_round;
}

/* Note the turn of a named sum. */
static void count_turn(struct nb_identity *id, const struct nb_sig *s, struct nb_call *call)
{
    struct nb_identity_comm *comm = nb_identity_comm_of(&id->weight_blocks, s->entry.a);

    if (!nb_turns_count(&comm->turns, s, &call->turn, &call->cycle))
        return;
    for (struct nb_sig *other = NULL; (other = nb_table_next(&id->sigs, other));)
        if (other->entry.a == s->entry.a && other->mode == MODE_TURN)
            nb_set_clear(&id->buffers, &other->set);
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

struct nb_call *nb_call_take_up(struct nb_identity *id, uint64_t number)
{
    struct nb_call *call;

    if (number >= id->announced || id->announced - number > id->config.calls)
        return NULL;
    if (id->announced - id->taken_up > id->config.calls)
        id->taken_up = id->announced - id->config.calls;
    for (; id->taken_up <= number; id->taken_up++) {
        call = &id->calls[id->taken_up % id->config.calls];
        if (!call->c.passes)
            take_inner(id, &call->c);
        else if (call->c.func != NB_FUNC_ALL_GATHER && call->c.count >= LARGE)
            count_call(id, call);
    }
    call = &id->calls[number % id->config.calls];
    if (call->begun)
        return NULL;
    call->begun = 1;
    return call;
}

uint64_t nb_identity_call(struct nb_identity *id, const struct nb_identity_call *c)
{
    const uint64_t number = id->announced++;
    struct nb_call *call = &id->calls[number % id->config.calls];

    *call = (struct nb_call){.c = *c, .turn = NB_NONE};
    if (c->func == NB_FUNC_REDUCE_SCATTER) {
        id->recent_rs[id->recent_at].recv = c->recv;
        id->recent_rs[id->recent_at].count = c->count;
        id->recent_rs[id->recent_at].type = c->type;
        id->recent_at = (id->recent_at + 1) % NB_RECENT_RS;
    } else if (c->func == NB_FUNC_ALL_REDUCE && c->send && c->count) {
        for (unsigned i = 1; i <= NB_RECENT_RS && !call->parent; i++) {
            const unsigned at = (id->recent_at + NB_RECENT_RS - i) % NB_RECENT_RS;
            if (id->recent_rs[at].recv == c->send && id->recent_rs[at].type == c->type &&
                id->recent_rs[at].count % c->count == 0) {
                call->parent = id->recent_rs[at].count;
                id->recent_rs[at].count = 0; /* one reduce-scatter proves one all-reduce */
            }
        }
    }
    return number;
}
