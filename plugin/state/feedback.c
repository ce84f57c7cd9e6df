/* SPDX-License-Identifier: Apache-2.0 */
/* Residuals of error feedback. See feedback.h. */
#include "state/feedback.h"

#include <errno.h>
#include <stdlib.h>

#include "base/context.h"
#include "state/budget.h"
#include "state/jump.h"

#define EMA_BETA 0.8f /* weight of the old residual, as in LoCo (arXiv 2407.04480) */

/* State of an empty residual's memory: READY once it is all zero. A residual with content is READY, too. */
enum memory {
    READY,
    DUE,     /* to be zeroed; the device had no room for the work */
    ZEROING, /* the work is in flight */
};

struct nb_residual {
    const struct nb_feedback *fb;
    struct nb_residual *next;
    struct nb_ef_key key;
    uint8_t *mem;     /* blocks x (errors, then scales) */
    size_t mem_bytes; /* mapped */
    size_t counted;   /* taken from the budget, without the own block, which is never touched */
    size_t err_bytes, scale_bytes;
    enum memory memory;
    struct nb_work work; /* while it is ZEROING */
    uint64_t last_op;
    unsigned held;       /* works in flight that use it */
    uint64_t holder;     /* the operation of these works */
    int stale;           /* to be emptied when these works are done */
    int clean;           /* emptied, and unused since */
    int used;            /* was used at least once */
    uint64_t since_step; /* the step in which it was last emptied */
    uint64_t retired_at; /* the operation that took its id for another shape */
    uint64_t ops, emptied;
    struct nb_encode_stats encode;
    struct nb_jump level; /* of the energy of its operations */
    double energy;        /* of the coded values of the last operation */
};

struct nb_feedback {
    struct nb_context *ctx;
    struct nb_device *dev;
    struct nb_residual *residuals, *retired;
    int told; /* the caller uses nb_feedback_step */
    uint64_t steps;
    uint64_t step_op; /* operations from here on belong to the running step */
    size_t bytes;
    unsigned unready; /* residuals that are not READY, retired ones included */
    int error;        /* of the device, in such work */
};

/* Round up to cache lines: arrays start on lines of their own, so that blocks share no line. */
static size_t line(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

struct nb_feedback *nb_feedback_create(struct nb_context *ctx, struct nb_device *dev)
{
    struct nb_feedback *fb = calloc(1, sizeof(*fb));
    if (fb) {
        fb->ctx = ctx;
        fb->dev = dev;
    }
    return fb;
}

static void free_residual(struct nb_feedback *fb, struct nb_residual *s)
{
    fb->unready -= s->memory != READY;
    fb->bytes -= s->counted;
    fb->dev->ops->free(fb->dev, NB_PLACE_STATE, s->mem, s->mem_bytes);
    nb_budget_give(fb->ctx->budgets, NB_BUDGET_FEEDBACK, s->counted);
    free(s);
}

void nb_feedback_trim(struct nb_feedback *fb, uint64_t opno)
{
    for (struct nb_residual **at = &fb->retired; *at;) {
        struct nb_residual *s = *at;
        if (s->retired_at >= opno || s->held || s->memory == ZEROING) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        free_residual(fb, s);
    }
}

void nb_feedback_destroy(struct nb_feedback *fb)
{
    if (!fb)
        return;
    while (fb->retired) {
        struct nb_residual *s = fb->retired;
        fb->retired = s->next;
        free_residual(fb, s);
    }
    while (fb->residuals) {
        struct nb_residual *s = fb->residuals;
        fb->residuals = s->next;
        free_residual(fb, s);
    }
    free(fb);
}

static int same_shape(const struct nb_ef_key *a, const struct nb_ef_key *b)
{
    return a->func == b->func && a->type == b->type && a->n == b->n && a->blocks == b->blocks;
}

/* Record the result so far of zeroing a residual's memory. */
static void zeroed(struct nb_feedback *fb, struct nb_residual *s, ssize_t result)
{
    const enum memory before = s->memory;

    s->memory = result >= 0 ? READY : result == -EINPROGRESS ? ZEROING : DUE;
    fb->unready += (unsigned)(s->memory != READY) - (unsigned)(before != READY);
    if (result < 0 && result != -EINPROGRESS && result != -EAGAIN)
        fb->error = (int)result;
}

static void zero(struct nb_feedback *fb, struct nb_residual *s)
{
    zeroed(fb, s, fb->dev->ops->zero(fb->dev, &s->work, s->mem, s->mem_bytes));
}

static int look_after(struct nb_feedback *fb, struct nb_residual *list)
{
    int moved = 0;

    for (struct nb_residual *s = list; s; s = s->next) {
        if (s->memory == READY)
            continue;
        if (s->memory == ZEROING)
            zeroed(fb, s, fb->dev->ops->poll(fb->dev, &s->work));
        else
            zero(fb, s);
        moved |= s->memory == READY;
    }
    return moved;
}

int nb_feedback_progress(struct nb_feedback *fb)
{
    int moved = 0;

    if (fb->unready) {
        moved = look_after(fb, fb->residuals);
        moved |= look_after(fb, fb->retired);
    }
    return fb->error ? fb->error : moved;
}

bool nb_feedback_at_work(const struct nb_feedback *fb)
{
    return fb->unready > 0;
}

static void empty(struct nb_feedback *fb, struct nb_residual *s)
{
    s->since_step = fb->steps;
    if (s->clean)
        return;
    s->stale = s->held > 0;
    if (s->stale)
        return;
    zero(fb, s);
    s->clean = 1;
    s->emptied++;
}

static void begin_step(struct nb_feedback *fb, uint64_t opno)
{
    fb->step_op = opno;
    fb->steps++;
}

static struct nb_residual *make_residual(struct nb_feedback *fb, const struct nb_ef_key *key)
{
    size_t err = line(nb_ef_err_bytes(key->n)), scale = line(nb_ef_scale_bytes(key->n));
    size_t blocks = key->blocks, counted = (err + scale) * (blocks > 1 ? blocks - 1 : 1);
    struct nb_residual *s;

    if (nb_budget_take(fb->ctx->budgets, NB_BUDGET_FEEDBACK, counted))
        return NULL;
    s = calloc(1, sizeof(*s));
    if (s) {
        s->mem_bytes = (err + scale) * blocks;
        s->mem = fb->dev->ops->alloc(fb->dev, NB_PLACE_STATE, s->mem_bytes);
    }
    if (!s || !s->mem) {
        free(s);
        nb_budget_give(fb->ctx->budgets, NB_BUDGET_FEEDBACK, counted);
        return NULL;
    }
    s->fb = fb;
    s->key = *key;
    s->counted = counted;
    s->clean = 1;
    s->err_bytes = err;
    s->scale_bytes = scale;
    s->since_step = fb->steps;
    s->next = fb->residuals;
    fb->residuals = s;
    fb->bytes += counted;
    if (!fb->dev->ops->zeroes)
        zero(fb, s);
    return s;
}

int nb_feedback_busy(const struct nb_feedback *fb, const struct nb_ef_key *key)
{
    for (const struct nb_residual *s = fb->residuals; s; s = s->next)
        if (s->key.id == key->id && same_shape(&s->key, key))
            return s->held > 0;
    return 0;
}

int nb_feedback_hold(struct nb_residual *s, uint64_t opno)
{
    if (s->memory != READY || (s->held && (s->stale || s->holder != opno)))
        return 0;
    s->held++;
    s->holder = opno;
    return 1;
}

void nb_feedback_release(struct nb_feedback *fb, struct nb_residual *s)
{
    if (--s->held == 0 && s->stale) {
        s->stale = 0;
        empty(fb, s);
    }
}

struct nb_residual *nb_feedback_get(struct nb_feedback *fb, const struct nb_ef_key *key, uint64_t opno,
                                    int fresh)
{
    const struct nb_params *p = fb->ctx->params;
    struct nb_residual *s = NULL;
    int spiked;

    for (struct nb_residual **at = &fb->residuals; *at && !s;) {
        struct nb_residual *found = *at;
        if (found->key.id == key->id && same_shape(&found->key, key)) {
            s = found;
        } else if (found->key.id == key->id && key->id >= 0) {
            /* The id now means another buffer. Operations in flight may still use this residual. */
            *at = found->next;
            found->retired_at = opno;
            found->next = fb->retired;
            fb->retired = found;
        } else {
            at = &found->next;
        }
    }
    if (!s)
        s = make_residual(fb, key);
    if (!s)
        return NULL;
    if (!fb->told && s->used && s->last_op >= fb->step_op)
        begin_step(fb, opno);
    spiked = nb_jump_gradients(&s->level, s->energy);
    s->energy = 0;
    if (fresh || spiked || s->key.geometry != key->geometry ||
        (p->ef == NB_FEEDBACK_EMA && p->ef_reset && fb->steps - s->since_step >= (uint64_t)p->ef_reset))
        empty(fb, s);
    s->key.geometry = key->geometry;
    s->last_op = opno;
    s->used = 1;
    s->ops++;
    return s;
}

void nb_feedback_note(struct nb_residual *residual, uint64_t opno, const struct nb_encode_stats *stats)
{
    nb_encode_stats_add(&residual->encode, stats);
    /* The next operation may begin for one peer before the last pieces of this one for another peer are
     * coded. These pieces do not count for it. */
    if (opno == residual->last_op)
        residual->energy += stats->signal2;
}

int nb_feedback_report(const struct nb_feedback *fb, unsigned index, struct nb_ef_report *report)
{
    const struct nb_residual *s = fb->residuals;

    while (s && index--)
        s = s->next;
    if (!s)
        return 0;
    *report = (struct nb_ef_report){
        .key = s->key, .bytes = s->counted, .ops = s->ops, .emptied = s->emptied, .encode = s->encode};
    return 1;
}

static enum nb_ef_mode mode_of(enum nb_feedback_word word)
{
    switch (word) {
    case NB_FEEDBACK_FULL: return NB_EF_FULL;
    case NB_FEEDBACK_EMA: return NB_EF_EMA;
    case NB_FEEDBACK_OFF:
    case NB_FEEDBACK_COUNT: break;
    }
    return NB_EF_OFF;
}

void nb_feedback_view(struct nb_residual *residual, uint32_t block, struct nb_ef *ef)
{
    const struct nb_params *p = residual->fb->ctx->params;
    uint8_t *base = residual->mem + (size_t)block * (residual->err_bytes + residual->scale_bytes);

    residual->clean = 0;
    ef->err = (int8_t *)base;
    ef->scale = base + residual->err_bytes;
    ef->mode = mode_of(p->ef);
    ef->beta = EMA_BETA;
    ef->bound = (float)p->ef_bound;
}

int nb_feedback_peek(const struct nb_feedback *fb, uint32_t func, int64_t id, uint32_t block,
                     struct nb_ef *ef, uint64_t *n)
{
    struct nb_residual *s = fb->residuals;
    int clean;

    while (s && (s->key.func != func || s->key.id != id))
        s = s->next;
    if (!s)
        return -ENOENT;
    if (block >= s->key.blocks)
        return -EINVAL;
    clean = s->clean;
    nb_feedback_view(s, block, ef);
    s->clean = clean; /* the caller only reads */
    *n = s->key.n;
    return 0;
}

void nb_feedback_step(struct nb_feedback *fb, uint64_t opno)
{
    fb->told = 1;
    begin_step(fb, opno);
}

unsigned nb_feedback_drop_step(struct nb_feedback *fb)
{
    unsigned dropped = 0;
    for (struct nb_residual *s = fb->residuals; s; s = s->next) {
        if (s->last_op >= fb->step_op && !s->clean && !s->stale) {
            empty(fb, s);
            dropped++;
        }
    }
    return dropped;
}

void nb_feedback_drop(struct nb_feedback *fb, int64_t id)
{
    for (struct nb_residual *s = fb->residuals; s; s = s->next)
        if (s->key.id == id)
            empty(fb, s);
}

unsigned nb_feedback_drop_all(struct nb_feedback *fb)
{
    unsigned dropped = 0;

    for (struct nb_residual *s = fb->residuals; s; s = s->next) {
        empty(fb, s);
        dropped++;
    }
    return dropped;
}

size_t nb_feedback_bytes(const struct nb_feedback *fb)
{
    return fb->bytes;
}
