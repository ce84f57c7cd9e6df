/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State of classification on signatures, communicators and buffers. The tables grow up to their size. Then
 * the longest unused entry makes room. Of buffers, the oldest makes room.
 *
 * The fields of causal evidence (policy/recognise/causal.c) of a process: shards of one size on one
 * communicator. A field begins with the first reduce-scatter of its size. All-gathers of as many values a
 * rank join it.
 *
 * The module is pure, except that it allocates memory when fields begin. The caller serializes the calls.
 */
#include "policy/recognise/internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/nccl_names.h"

static void end(struct nb_field *f)
{
    nb_causal_destroy(f->causal);
    memset(f, 0, sizeof(*f));
}

struct nb_causal *nb_field_get(struct nb_fields *fields, uint64_t comm, uint64_t values, int make)
{
    struct nb_field *victim = fields->field;

    for (struct nb_field *f = fields->field; f < fields->field + NB_FIELDS; f++) {
        if (f->values == values && f->comm == comm && values) {
            f->used = ++fields->now;
            return f->causal;
        }
        if (victim->values && (!f->values || f->used < victim->used))
            victim = f;
    }
    if (!make || !nb_picks_of(values))
        return NULL;
    end(victim);
    victim->causal = nb_causal_create(nb_picks_of(values));
    if (!victim->causal)
        return NULL;
    victim->comm = comm;
    victim->values = values;
    victim->used = ++fields->now;
    return victim->causal;
}

struct nb_causal *nb_field_of_bytes(struct nb_fields *fields, uint64_t comm, ncclDataType_t type,
                                    uint64_t bytes, uint64_t *values, size_t *width)
{
    static const size_t widths[] = {2, 4, 1};
    const size_t known = type == ncclInt8 || type == ncclUint8 ? 0 : nb_nccl_type_size(type);

    for (unsigned i = 0; i < sizeof(widths) / sizeof(widths[0]); i++) {
        if (known && known != widths[i])
            continue;
        struct nb_causal *f = bytes % widths[i] ? NULL : nb_field_get(fields, comm, bytes / widths[i], 0);
        if (f) {
            *values = bytes / widths[i];
            *width = widths[i];
            return f;
        }
    }
    return NULL;
}

/* Forget the fields of a communicator that was destroyed. */
static void forget_fields(struct nb_fields *fields, uint64_t comm)
{
    for (struct nb_field *f = fields->field; f < fields->field + NB_FIELDS; f++)
        if (f->values && f->comm == comm)
            end(f);
}

static void clear_fields(struct nb_fields *fields)
{
    for (struct nb_field *f = fields->field; f < fields->field + NB_FIELDS; f++)
        end(f);
}

#define DEFAULT_SIGNATURES 512u
#define KEYS 4096u

static struct nb_class_key *key_at(const struct nb_classify *c, uint32_t at)
{
    return nb_slab_at(&c->keys, at);
}

struct nb_classify *nb_classify_create(const struct nb_classify_config *config)
{
    const uint32_t signatures = config->signatures ? config->signatures : DEFAULT_SIGNATURES;
    struct nb_classify *c = calloc(1, sizeof(*c));

    if (!c)
        return NULL;
    c->warmup = config->warmup_steps;
    if (config->rules)
        c->rules = *config->rules;
    nb_slab_init(&c->sigs, sizeof(struct nb_class_sig), signatures);
    nb_slab_init(&c->keys, sizeof(struct nb_class_key), KEYS);
    if (nb_slab_reach(&c->sigs, 1) || nb_slab_reach(&c->keys, 1) ||
        nb_chains_init(&c->sig_chains, signatures) || nb_chains_init(&c->key_chains, KEYS)) {
        nb_classify_destroy(c);
        return NULL;
    }
    return c;
}

void nb_classify_destroy(struct nb_classify *c)
{
    if (!c)
        return;
    for (uint32_t i = 0; i < c->used; i++)
        nb_book_clear(&nb_class_sig_at(c, i)->book);
    nb_slab_free(&c->sigs);
    nb_slab_free(&c->keys);
    nb_chains_free(&c->sig_chains);
    nb_chains_free(&c->key_chains);
    clear_fields(&c->fields);
    free(c);
}

static uint64_t hash_of(uint64_t comm, enum nb_func func, ncclDataType_t type, uint64_t count)
{
    return nb_mix(nb_mix(comm, count), (uint64_t)func << 8 | (uint64_t)type);
}

static void free_sig(struct nb_classify *c, uint32_t at)
{
    struct nb_class_sig *s = nb_class_sig_at(c, at);

    nb_chains_remove(&c->sig_chains, hash_of(s->comm, s->func, s->type, s->count), at);
    nb_book_clear(&s->book);
    s->taken = 0;
}

static int is_bucket(const struct nb_class_op *op)
{
    return op->func == NB_FUNC_ALL_REDUCE && op->caller == NB_CALLER_BUCKET;
}

static enum nb_caller said_of(const struct nb_class_op *op)
{
    return op->caller == NB_CALLER_SAYS_GRADIENT || op->caller == NB_CALLER_SAYS_EXACT ? op->caller
                                                                                       : NB_CALLER_UNKNOWN;
}

struct nb_class_sig *nb_class_sig_of(struct nb_classify *c, const struct nb_class_op *op)
{
    const uint64_t hash = hash_of(op->comm, op->func, op->type, op->count);
    uint32_t at;
    struct nb_class_sig *s;

    for (at = nb_chains_first(&c->sig_chains, hash); at != NB_NONE; at = c->sig_chains.next[at]) {
        s = nb_class_sig_at(c, at);
        if (s->comm == op->comm && s->func == op->func && s->type == op->type && s->count == op->count &&
            s->bucket == is_bucket(op) && s->said == said_of(op)) {
            s->used = ++c->now;
            return s;
        }
    }
    at = NB_NONE;
    for (uint32_t i = 0; i < c->used && (at == NB_NONE || nb_class_sig_at(c, at)->taken); i++)
        if (at == NB_NONE || !nb_class_sig_at(c, i)->taken ||
            nb_class_sig_at(c, i)->used < nb_class_sig_at(c, at)->used)
            at = i;
    if ((at == NB_NONE || nb_class_sig_at(c, at)->taken) && !nb_slab_reach(&c->sigs, c->used + 1))
        at = c->used++;
    s = nb_class_sig_at(c, at);
    if (s->taken)
        free_sig(c, at);
    *s = (struct nb_class_sig){.comm = op->comm,
                               .count = op->count,
                               .nranks = op->nranks,
                               .func = op->func,
                               .type = op->type,
                               .own = at,
                               .bucket = is_bucket(op),
                               .said = said_of(op),
                               .taken = 1,
                               .used = ++c->now,
                               .reason = NB_WHY_COUNT};
    nb_chains_add(&c->sig_chains, hash, at);
    return s;
}

struct nb_class_comm *nb_class_comm_of(struct nb_classify *c, uint64_t comm)
{
    struct nb_class_comm *victim = c->comms;

    for (struct nb_class_comm *m = c->comms; m < c->comms + COMMS; m++) {
        if (m->taken && m->comm == comm) {
            m->used = ++c->now;
            return m;
        }
        if (victim->taken && (!m->taken || m->used < victim->used))
            victim = m;
    }
    *victim = (struct nb_class_comm){
        .comm = comm, .taken = 1, .used = ++c->now, .first_weight_step = c->weight_steps};
    return victim;
}

struct nb_class_key *nb_class_key_of(struct nb_classify *c, uint32_t sig, uint64_t send)
{
    uint32_t at = nb_chains_first(&c->key_chains, nb_mix(send, sig));
    struct nb_class_key *k;

    for (; at != NB_NONE; at = c->key_chains.next[at])
        if (key_at(c, at)->sig == sig && key_at(c, at)->send == send)
            return key_at(c, at);
    at = nb_slab_reach(&c->keys, c->key_hand + 1) ? 0 : c->key_hand;
    c->key_hand = at + 1;
    k = key_at(c, at);
    if (k->taken)
        nb_chains_remove(&c->key_chains, nb_mix(k->send, k->sig), at);
    *k = (struct nb_class_key){.sig = sig, .send = send, .round = UINT64_MAX, .taken = 1};
    nb_chains_add(&c->key_chains, nb_mix(send, sig), at);
    return k;
}

void nb_classify_forget(struct nb_classify *c, uint64_t comm)
{
    for (uint32_t i = 0; i < c->used; i++)
        if (nb_class_sig_at(c, i)->taken && nb_class_sig_at(c, i)->comm == comm)
            free_sig(c, i);
    for (struct nb_class_comm *m = c->comms; m < c->comms + COMMS; m++)
        if (m->taken && m->comm == comm)
            m->taken = 0;
    forget_fields(&c->fields, comm);
}
