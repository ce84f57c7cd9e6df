/* SPDX-License-Identifier: Apache-2.0 */
/* Slots of identity and their profiles; see profile.h. */
#include "policy/profile.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define OLD_WEIGHT    0.8f
#define BREAK_FROM    8u
#define BREAK_SPREADS 4.0f
#define LEAST_SPREAD  0.005f
#define LANES         16u
#define LEAST_SCORE   (-2.0f) /* below any correlation */

int nb_slots_init(struct nb_slots *slots, uint32_t cap)
{
    slots->slot = calloc(cap, sizeof(*slots->slot));
    if (!slots->slot)
        return -ENOMEM;
    slots->cap = cap;
    slots->used = 0;
    for (uint32_t i = 0; i < cap; i++)
        slots->slot[i].next = i + 1 < cap ? i + 1 : NB_SLOT_NONE;
    slots->free = cap ? 0 : NB_SLOT_NONE;
    return 0;
}

void nb_slots_free(struct nb_slots *slots)
{
    free(slots->slot);
    slots->slot = NULL;
}

void nb_set_init(struct nb_slot_set *set)
{
    memset(set, 0, sizeof(*set));
    set->first = NB_SLOT_NONE;
}

uint32_t nb_set_find(struct nb_slots *slots, struct nb_slot_set *set, uint64_t unit, int make)
{
    struct nb_slot *s;
    uint32_t at;

    for (at = set->first; at != NB_SLOT_NONE; at = slots->slot[at].next)
        if (slots->slot[at].unit == unit)
            return at;
    if (!make || slots->free == NB_SLOT_NONE)
        return NB_SLOT_NONE;
    at = slots->free;
    s = &slots->slot[at];
    slots->free = s->next;
    slots->used++;
    memset(s, 0, sizeof(*s));
    s->unit = unit;
    s->taken = 1;
    s->agreed = s->purity = 0.5f;
    s->next = set->first;
    set->first = at;
    set->n++;
    return at;
}

void nb_set_clear(struct nb_slots *slots, struct nb_slot_set *set)
{
    while (set->first != NB_SLOT_NONE) {
        struct nb_slot *s = &slots->slot[set->first];
        uint32_t next = s->next;
        s->taken = 0;
        s->next = slots->free;
        slots->free = set->first;
        slots->used--;
        set->first = next;
    }
    nb_set_init(set);
}

void nb_set_unlearn(struct nb_slots *slots, struct nb_slot_set *set, uint32_t slot)
{
    struct nb_slot *s = &slots->slot[slot];

    if (s->profiles) {
        for (unsigned i = 0; i < NB_PROFILE_GROUPS; i++)
            set->sum[i] -= s->average[i];
        set->with--;
        set->mature -= s->profiles >= NB_SLOT_MATURE;
    }
    s->profiles = 0;
    s->misses = 0;
    s->filled = 0;
    s->agreed = s->purity = 0.5f;
}

int nb_set_accepts(struct nb_slots *slots, struct nb_slot_set *set, const struct nb_profile *profile)
{
    if (!profile || !profile->value || profile->known < NB_PROFILE_LEAST ||
        profile->known > NB_PROFILE_GROUPS)
        return 0;
    for (unsigned i = 0; i < profile->known; i++)
        if (!(fabsf(profile->value[i]) <=
              1000.0f)) /* logarithms of floats are far below; NaN is caught too */
            return 0;
    if (set->with == 0 || set->span != profile->span || set->known != profile->known) {
        for (uint32_t at = set->first; at != NB_SLOT_NONE; at = slots->slot[at].next)
            slots->slot[at].profiles = slots->slot[at].misses = 0;
        memset(set->sum, 0, sizeof(set->sum));
        set->with = set->mature = 0;
        set->span = profile->span;
        set->known = profile->known;
    }
    return 1;
}

/* Plain correlation of a profile with a slot's average. */
static float likeness(const struct nb_slot *s, const struct nb_profile *p)
{
    double x = 0.0, y = 0.0, xx = 0.0, yy = 0.0, xy = 0.0, n = p->known;

    for (unsigned i = 0; i < p->known; i++) {
        double a = p->value[i], b = s->average[i];
        x += a;
        y += b;
        xx += a * a;
        yy += b * b;
        xy += a * b;
    }
    xx -= x * x / n;
    yy -= y * y / n;
    return xx > 1e-9 && yy > 1e-9 ? (float)((xy - x * y / n) / sqrt(xx * yy)) : 0.0f;
}

int nb_set_breaks(const struct nb_slots *slots, uint32_t slot, const struct nb_profile *profile)
{
    const struct nb_slot *s = &slots->slot[slot];
    float spread = s->spread > LEAST_SPREAD ? s->spread : LEAST_SPREAD;

    return s->profiles >= BREAK_FROM && likeness(s, profile) < s->usual - BREAK_SPREADS * spread;
}

void nb_set_learn(struct nb_slots *slots, struct nb_slot_set *set, uint32_t slot,
                  const struct nb_profile *profile)
{
    struct nb_slot *s = &slots->slot[slot];
    float keep = s->profiles ? OLD_WEIGHT : 0.0f;

    /* A plain mean at first: one early profile must not weigh as much as five. */
    if (s->profiles && s->profiles < 5)
        keep = (float)s->profiles / (float)(s->profiles + 1);
    if (s->profiles >= 2) {
        float like = likeness(s, profile), off = fabsf(like - s->usual);
        float part = s->profiles < 10 ? 1.0f / (float)(s->profiles - 1) : 0.1f;
        /* The mean deviation times 1.25 is the standard deviation of a normal distribution. */
        s->spread = s->profiles == 2 ? 0.05f : s->spread + part * (1.25f * off - s->spread);
        s->usual = s->profiles == 2 ? like : s->usual + part * (like - s->usual);
    }
    if (s->profiles == 0) {
        memset(s->average, 0, sizeof(s->average));
        set->with++;
    }
    for (unsigned i = 0; i < profile->known; i++) {
        float to = keep * s->average[i] + (1.0f - keep) * profile->value[i];
        set->sum[i] += (double)to - s->average[i];
        s->average[i] = to;
    }
    s->misses = 0;
    if (s->profiles < UINT32_MAX && ++s->profiles == NB_SLOT_MATURE)
        set->mature++;
}

static float total(const float lane[LANES])
{
    float t = 0.0f;
    for (unsigned i = 0; i < LANES; i++)
        t += lane[i];
    return t;
}

/* Correlation of x (mean zero, norm |x|) with y - mean over the first n groups. n is at most
 * NB_PROFILE_GROUPS; x and mean are padded with zeros to whole lanes, and so is what is taken of y. */
static float correlate(const float *x, float norm, const float *y, const float *mean, unsigned n)
{
    float xd[LANES] = {0}, dd[LANES] = {0}, d1[LANES] = {0};
    float sum, var;

    for (unsigned i = 0; i < n; i += LANES)
        for (unsigned k = 0; k < LANES;
             k++) { /* lanes, so that compilers may use vectors without reordering sums */
            float d = i + k < n ? y[i + k] - mean[i + k] : 0.0f;
            xd[k] += x[i + k] * d;
            dd[k] += d * d;
            d1[k] += d;
        }
    sum = total(d1);
    var = total(dd) - sum * sum / (float)n;
    if (!(var > 1e-9f) || !(norm > 0.0f))
        return 0.0f;
    return total(xd) / (norm * sqrtf(var));
}

struct nb_fit nb_set_fit(const struct nb_slots *slots, const struct nb_slot_set *set, uint32_t slot,
                         const struct nb_profile *profile)
{
    struct nb_fit fit = {LEAST_SCORE, LEAST_SCORE, LEAST_SCORE, LEAST_SCORE, NB_SLOT_NONE};
    float mean[NB_PROFILE_GROUPS] = {0}, x[NB_PROFILE_GROUPS] = {0};
    unsigned n = profile->known;
    double sum = 0.0, square = 0.0;

    if (set->with == 0)
        return fit;
    for (unsigned i = 0; i < n; i++) {
        mean[i] = (float)(set->sum[i] / set->with);
        x[i] = profile->value[i] - mean[i];
        sum += x[i];
    }
    for (unsigned i = 0; i < n; i++) {
        x[i] -= (float)(sum / n);
        square += (double)x[i] * x[i];
    }
    for (uint32_t at = set->first; at != NB_SLOT_NONE; at = slots->slot[at].next) {
        const struct nb_slot *s = &slots->slot[at];
        float score;
        if (s->profiles == 0)
            continue;
        score = correlate(x, (float)sqrt(square), s->average, mean, n);
        if (at == slot)
            fit.own = score;
        else if (score > fit.other)
            fit.other = score;
        if (score > fit.best) {
            fit.after = fit.best;
            fit.best = score;
            fit.best_slot = at;
        } else if (score > fit.after) {
            fit.after = score;
        }
    }
    return fit;
}
