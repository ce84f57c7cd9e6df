/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State of classification on signatures, communicators and buffers, and the fields of causal evidence
 * (policy/recognise/causal.c) of a process: shards of one size on one communicator. A field begins with the
 * first reduce-scatter of its size. All-gathers of as many values a rank join it.
 */
#include "policy/recognise/internal.h"

#include <stdlib.h>

#include "base/nccl_names.h"

/* Entries. Only keys come and go by the thousands, where memory is new in every step. A field has up to some
 * megabytes. */
#define SIGNATURES 512u
#define KEYS 4096u
#define COMMS 128u
#define FIELDS 64u

static void drop_field(void *arg, void *entry)
{
    (void)arg;
    nb_causal_destroy(((struct nb_field *)entry)->causal);
}

struct nb_causal *nb_field_get(struct nb_table *fields, uint64_t comm, uint64_t values, int make)
{
    struct nb_field *f = nb_table_find(fields, comm, values);

    if (!f && make && nb_picks_of(values)) {
        f = nb_table_make(fields, comm, values, drop_field, NULL);
        f->causal = nb_causal_create(nb_picks_of(values));
        if (!f->causal)
            nb_table_remove(fields, f);
    }
    return f ? f->causal : NULL;
}

struct nb_causal *nb_field_of_bytes(struct nb_table *fields, uint64_t comm, ncclDataType_t type,
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

static void drop_sig(void *arg, void *entry)
{
    (void)arg;
    nb_book_clear(&((struct nb_class_sig *)entry)->book);
}

struct nb_classify *nb_classify_create(const struct nb_classify_config *config)
{
    struct nb_classify *c = calloc(1, sizeof(*c));

    if (!c)
        return NULL;
    c->warmup = config->warmup_steps;
    if (config->rules)
        c->rules = *config->rules;
    if (nb_table_init(&c->sigs, sizeof(struct nb_class_sig),
                      config->signatures ? config->signatures : SIGNATURES) ||
        nb_table_init(&c->keys, sizeof(struct nb_class_key), KEYS) ||
        nb_table_init(&c->comms, sizeof(struct nb_class_comm), COMMS) ||
        nb_table_init(&c->fields, sizeof(struct nb_field), FIELDS)) {
        nb_classify_destroy(c);
        return NULL;
    }
    return c;
}

/* Take the entries of a communicator out of the table, or all entries with `all`. */
static void forget(struct nb_table *t, uint64_t comm, int all, void (*drop)(void *arg, void *entry))
{
    for (struct nb_entry *e = NULL; (e = nb_table_next(t, e));)
        if (all || e->a == comm) {
            if (drop)
                drop(NULL, e);
            nb_table_remove(t, e);
        }
}

void nb_classify_destroy(struct nb_classify *c)
{
    if (!c)
        return;
    forget(&c->sigs, 0, 1, drop_sig);
    forget(&c->fields, 0, 1, drop_field);
    nb_table_free(&c->sigs);
    nb_table_free(&c->keys);
    nb_table_free(&c->comms);
    nb_table_free(&c->fields);
    free(c);
}

void nb_classify_forget(struct nb_classify *c, uint64_t comm)
{
    forget(&c->sigs, comm, 0, drop_sig);
    forget(&c->comms, comm, 0, NULL);
    forget(&c->fields, comm, 0, drop_field);
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
    const uint64_t rest = nb_mix(op->count, (uint64_t)op->func << 24 | (uint64_t)op->type << 16 |
                                                (uint64_t)said_of(op) << 8 | (uint64_t)is_bucket(op));
    struct nb_class_sig *s = nb_table_find(&c->sigs, op->comm, rest);

    if (s)
        return s;
    s = nb_table_make(&c->sigs, op->comm, rest, drop_sig, NULL);
    s->count = op->count;
    s->nranks = op->nranks;
    s->func = op->func;
    s->type = op->type;
    s->bucket = is_bucket(op);
    s->said = said_of(op);
    s->reason = NB_WHY_COUNT;
    return s;
}

struct nb_class_comm *nb_class_comm_of(struct nb_classify *c, uint64_t comm)
{
    struct nb_class_comm *m = nb_table_find(&c->comms, comm, 0);

    if (m)
        return m;
    m = nb_table_make(&c->comms, comm, 0, NULL, NULL);
    m->first_weight_step = c->weight_steps;
    return m;
}

struct nb_class_key *nb_class_key_of(struct nb_classify *c, const struct nb_class_sig *s, uint64_t send)
{
    struct nb_class_key *k = nb_table_find(&c->keys, send, s->entry.at);

    if (k)
        return k;
    k = nb_table_make(&c->keys, send, s->entry.at, NULL, NULL);
    k->round = UINT64_MAX;
    return k;
}
