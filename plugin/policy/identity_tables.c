/* SPDX-License-Identifier: Apache-2.0 */
/* Signatures and their buffers, in pools of fixed size; see identity_internal.h. */
#include "policy/identity_internal.h"

#include <string.h>

#define PENALTY 50 /* clean steps wanted after a signature that was single was not */

/* ---- signatures and buffers -------------------------------------------------------------------------- */

static uint32_t *sig_chain(struct nb_identity *id, uint64_t comm, enum nb_func func, ncclDataType_t type,
                           uint64_t count)
{
    return &id->sig_chains.head[nb_mix(nb_mix(comm, count), (uint64_t)func << 8 | (uint64_t)type) &
                                id->sig_chains.mask];
}

void nb_sig_free(struct nb_identity *id, uint32_t at)
{
    struct nb_sig *s = nb_sig_at(id, at);
    uint32_t *link = sig_chain(id, s->comm, s->func, s->type, s->count);

    while (*link != at)
        link = &nb_sig_at(id, *link)->chain;
    *link = s->chain;
    nb_set_clear(&id->slots, &s->set);
    s->taken = 0;
    if (id->rare == at)
        id->rare = NB_NONE;
}

struct nb_sig *nb_sig_of(struct nb_identity *id, const struct nb_identity_call *c)
{
    uint32_t *head = sig_chain(id, c->comm, c->func, c->type, c->count);
    uint32_t at;
    struct nb_sig *s;

    for (at = *head; at != NB_NONE; at = nb_sig_at(id, at)->chain) {
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
    s->chain = *head;
    *head = at;
    return s;
}

static struct nb_key *key_at(const struct nb_identity *id, uint32_t at)
{
    return nb_slab_at(&id->keys, at);
}

static uint32_t *key_chain(struct nb_identity *id, uint32_t sig, uint64_t send)
{
    return &id->key_chains.head[nb_mix(send, sig) & id->key_chains.mask];
}

struct nb_key *nb_key_of(struct nb_identity *id, uint32_t sig, uint64_t send)
{
    uint32_t *head = key_chain(id, sig, send);
    struct nb_key *k;

    for (uint32_t at = *head; at != NB_NONE; at = key_at(id, at)->chain)
        if (key_at(id, at)->sig == sig && key_at(id, at)->send == send)
            return key_at(id, at);
    /* Replaced in turn: recycled memory makes many keys that never come again. */
    uint32_t at = nb_slab_reach(&id->keys, id->key_hand + 1) ? 0 : id->key_hand;
    id->key_hand = at + 1;
    k = key_at(id, at);
    if (k->taken) {
        uint32_t *link = key_chain(id, k->sig, k->send);
        while (*link != at)
            link = &key_at(id, *link)->chain;
        *link = k->chain;
    }
    head = key_chain(id, sig, send);
    *k = (struct nb_key){.sig = sig, .send = send, .taken = 1, .chain = *head};
    *head = at;
    return k;
}

/* ---- a signature's view of the steps ------------------------------------------------------------------ */

void nb_sig_count(struct nb_identity *id, struct nb_sig *s)
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

/* Not the buffer it seemed to be. Several a round are one event. */
static void violated(struct nb_sig *s, const struct nb_view *v, const struct nb_key *k)
{
    if (k->streak < CERTAIN_AFTER || s->violated == v->rounds)
        return;
    s->violated = v->rounds;
    s->violations++;
    s->quiet = 0;
}

int nb_key_settled(struct nb_sig *s, const struct nb_view *v, struct nb_key *k, uint64_t recv,
                   const struct nb_unit *expected)
{
    uint64_t unit = expected ? (uint64_t)expected->number + 1 : 0;
    int told_apart = s->mode == MODE_ADDRESS && s->set.n > 0 && s->set.mature == s->set.n;
    uint32_t wanted = CERTAIN_AFTER << (2 * (s->violations < 3 ? s->violations : 3));
    int ok, moved = unit && k->unit && unit != k->unit && !told_apart;

    if (k->step == v->in_rounds) { /* twice in a step: memory that others use too */
        violated(s, v, k);
        k->streak = 0;
    } else {
        k->streak = k->step + 1 == v->in_rounds && k->recv == recv ? k->streak + 1 : 1;
    }
    if (moved) {
        violated(s, v, k);
        k->streak = 0;
    }
    k->unit = unit;
    k->step = v->in_rounds;
    k->recv = recv;
    ok = k->streak > wanted;
    if (!ok)
        s->unstable = v->rounds;
    return moved ? -1 : ok && v->rounds > s->unstable;
}
