/* SPDX-License-Identifier: Apache-2.0 */
/* Slots of carried error; see feedback.h. */
#include "state/feedback.h"

#include <stdlib.h>

#include "base/params.h"
#include "state/budget.h"

struct nb_ef_slot {
    struct nb_ef_slot *next;
    struct nb_ef_key key;
    uint8_t *mem;         /* blocks x (errors, then scales) */
    size_t mem_bytes;     /* mapped */
    size_t counted;       /* taken from the budget: the own block is never touched */
    size_t err_bytes, scale_bytes;
    uint64_t last_op;
    int clean; /* all zero: emptied, and not lent since */
};

struct nb_feedback {
    const struct nb_device_ops *dev;
    struct nb_ef_slot *slots;
    uint64_t step_op; /* operations from here on belong to the running step */
    size_t bytes;
};

/* Arrays start on cache lines of their own, so that blocks do not share any. */
static size_t line(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

struct nb_feedback *nb_feedback_create(const struct nb_device_ops *dev)
{
    struct nb_feedback *fb = calloc(1, sizeof(*fb));
    if (fb)
        fb->dev = dev;
    return fb;
}

void nb_feedback_destroy(struct nb_feedback *fb)
{
    if (!fb)
        return;
    while (fb->slots) {
        struct nb_ef_slot *s = fb->slots;
        fb->slots = s->next;
        fb->dev->free(s->mem, s->mem_bytes);
        nb_budget_give(NB_BUDGET_FEEDBACK, s->counted);
        free(s);
    }
    free(fb);
}

static int same_buffer(const struct nb_ef_key *a, const struct nb_ef_key *b)
{
    return a->func == b->func && a->type == b->type && a->n == b->n && a->blocks == b->blocks && a->id == b->id;
}

static void empty(struct nb_feedback *fb, struct nb_ef_slot *s)
{
    if (!s->clean)
        fb->dev->zero(s->mem, s->mem_bytes);
    s->clean = 1;
}

struct nb_ef_slot *nb_feedback_get(struct nb_feedback *fb, const struct nb_ef_key *key, uint64_t opno)
{
    struct nb_ef_slot *s;

    for (s = fb->slots; s; s = s->next)
        if (same_buffer(&s->key, key))
            break;
    if (!s) {
        size_t err = line(nb_ef_err_bytes(key->n)), scale = line(nb_ef_scale_bytes(key->n));
        size_t blocks = key->blocks, counted = (err + scale) * (blocks > 1 ? blocks - 1 : 1);
        if (nb_budget_take(NB_BUDGET_FEEDBACK, counted))
            return NULL;
        s = calloc(1, sizeof(*s));
        if (s) {
            s->mem_bytes = (err + scale) * blocks;
            s->mem = fb->dev->alloc(s->mem_bytes);
        }
        if (!s || !s->mem) {
            free(s);
            nb_budget_give(NB_BUDGET_FEEDBACK, counted);
            return NULL;
        }
        s->key = *key;
        s->counted = counted;
        s->clean = 1;
        s->err_bytes = err;
        s->scale_bytes = scale;
        s->next = fb->slots;
        fb->slots = s;
        fb->bytes += counted;
    } else if (s->key.geometry != key->geometry) {
        empty(fb, s);
        s->key.geometry = key->geometry;
    }
    s->last_op = opno;
    return s;
}

void nb_feedback_view(struct nb_ef_slot *slot, uint32_t block, struct nb_ef *ef)
{
    const struct nb_params *p = nb_params();
    uint8_t *base = slot->mem + (size_t)block * (slot->err_bytes + slot->scale_bytes);

    slot->clean = 0;
    ef->err = (int8_t *)base;
    ef->scale = base + slot->err_bytes;
    ef->mode = (enum nb_ef_mode)p->ef;
    ef->beta = (float)p->ef_beta;
    ef->bound = (float)p->ef_bound;
}

void nb_feedback_step(struct nb_feedback *fb, uint64_t opno)
{
    fb->step_op = opno;
}

unsigned nb_feedback_drop_step(struct nb_feedback *fb)
{
    unsigned dropped = 0;
    for (struct nb_ef_slot *s = fb->slots; s; s = s->next) {
        if (s->last_op >= fb->step_op && !s->clean) {
            empty(fb, s);
            dropped++;
        }
    }
    return dropped;
}

size_t nb_feedback_bytes(const struct nb_feedback *fb)
{
    return fb->bytes;
}
