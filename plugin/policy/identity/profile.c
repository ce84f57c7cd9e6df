/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tracked buffers of identity and their profiles: find the buffer of a signature that this content looks
 * like. Inside of identity.c.
 *
 * A set holds the tracked buffers of one signature. A tracked buffer keeps the moving average (weight 0.8 on
 * the old) of the profiles of its operations. The score of a profile and a tracked buffer is their
 * correlation without the mean over the set's tracked buffers, because a common part of all layers is no
 * evidence. Correlation ignores a common factor such as a loss scale, since profiles are logarithms.
 */
#include "policy/identity/internal.h"

#include <math.h>
#include <string.h>

#define OLD_WEIGHT 0.8f    /* an average of some five steps: profiles of two steps differ by chance */
#define BREAK_FROM 8u      /* profiles, from which their deviation is known */
#define BREAK_SPREADS 4.0f /* chance reaches this in one of 30,000 sums */
/* Smaller deviations are rounding: codes have a sixteenth of a binary order of magnitude. */
#define LEAST_SPREAD 0.005f
#define LARGEST 1000.0f     /* logarithms of floats are far below */
#define UNIT 16.0f          /* codes a binary order of magnitude */
#define MOST_CODE 1400      /* differences of two, squared and summed over all groups, fit into 31 bits */
#define LEAST_SCORE (-2.0f) /* below any correlation */

void nb_tracked_buffers_init(struct nb_tracked_buffers *buffers, uint32_t cap)
{
    nb_slab_init(&buffers->slab, sizeof(struct nb_tracked_buffer), cap);
    buffers->begun = 0;
    buffers->free = NB_TRACKED_NONE;
}

void nb_tracked_buffers_free(struct nb_tracked_buffers *buffers)
{
    nb_slab_free(&buffers->slab);
}

/* Return a free tracked buffer, or NB_TRACKED_NONE. */
static uint32_t new_slot(struct nb_tracked_buffers *buffers)
{
    uint32_t at = buffers->free;

    if (at != NB_TRACKED_NONE)
        buffers->free = nb_tracked_at(buffers, at)->next;
    else if (!nb_slab_reach(&buffers->slab, buffers->begun + 1))
        at = buffers->begun++;
    return at;
}

void nb_set_init(struct nb_tracked_set *set)
{
    memset(set, 0, sizeof(*set));
    set->first = NB_TRACKED_NONE;
}

uint32_t nb_set_find(struct nb_tracked_buffers *buffers, struct nb_tracked_set *set, uint64_t weight_block,
                     int make)
{
    struct nb_tracked_buffer *s;
    uint32_t at;

    for (at = set->first; at != NB_TRACKED_NONE; at = s->next) {
        s = nb_tracked_at(buffers, at);
        if (s->weight_block == weight_block)
            return at;
    }
    if (!make || (at = new_slot(buffers)) == NB_TRACKED_NONE)
        return NB_TRACKED_NONE;
    s = nb_tracked_at(buffers, at);
    memset(s, 0, sizeof(*s));
    s->weight_block = weight_block;
    s->agreed = 0.5f;
    s->next = set->first;
    set->first = at;
    set->n++;
    return at;
}

void nb_set_clear(struct nb_tracked_buffers *buffers, struct nb_tracked_set *set)
{
    while (set->first != NB_TRACKED_NONE) {
        struct nb_tracked_buffer *s = nb_tracked_at(buffers, set->first);
        uint32_t next = s->next;
        s->next = buffers->free;
        buffers->free = set->first;
        set->first = next;
    }
    nb_set_init(set);
}

void nb_set_unlearn(struct nb_tracked_buffers *buffers, struct nb_tracked_set *set, uint32_t tracked)
{
    struct nb_tracked_buffer *s = nb_tracked_at(buffers, tracked);

    if (s->profiles) {
        for (unsigned i = 0; i < NB_PROFILE_GROUPS; i++)
            set->sum[i] -= s->code[i];
        set->with--;
        set->mature -= s->profiles >= NB_TRACKED_MATURE;
    }
    s->profiles = 0;
    s->misses = 0;
    s->filled = 0;
    s->agreed = 0.5f;
}

/* The loops below run over all groups, without a comparison of floats, so that compilers use vectors. */
static inline int16_t code_of(float value)
{
    int32_t c = ((int32_t)(value * (2 * UNIT)) + 1) >> 1;

    c = c > MOST_CODE ? MOST_CODE : c;
    return (int16_t)(c < -MOST_CODE ? -MOST_CODE : c);
}

static inline int32_t bits_of(float value)
{
    int32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static int make_shape(const struct nb_profile *p, struct nb_shape *shape)
{
    const int32_t largest = bits_of(LARGEST), zero = bits_of(NB_PROFILE_ZERO);
    float value[NB_PROFILE_GROUPS], mean;
    int32_t wrong = 0, n = 0, sum = 0;

    memcpy(value, p->value, p->known * sizeof(*value));
    for (unsigned i = p->known; i < NB_PROFILE_GROUPS; i++)
        value[i] = NB_PROFILE_ZERO;
    for (unsigned i = 0; i < NB_PROFILE_GROUPS; i++) {
        int32_t bits = bits_of(value[i]);      /* the greater of two negative numbers has the smaller value */
        wrong |= (bits & INT32_MAX) > largest; /* true for NaN, too */
        shape->mask[i] = (uint32_t)bits < (uint32_t)zero ? -1 : 0;
    }
    if (wrong)
        return 0;
    for (unsigned i = 0; i < NB_PROFILE_GROUPS; i++) {
        n -= shape->mask[i];
        sum += (int32_t)(value[i] * UNIT) & shape->mask[i];
    }
    if (n < (int32_t)NB_PROFILE_LEAST)
        return 0;
    mean = (float)sum / ((float)n * UNIT);
    for (unsigned i = 0; i < NB_PROFILE_GROUPS; i++) {
        shape->value[i] = value[i] - mean;
        shape->code[i] = (int16_t)(code_of(shape->value[i]) & shape->mask[i]);
    }
    shape->known = p->known;
    shape->nonzero = (unsigned)n;
    return 1;
}

int nb_set_accepts(struct nb_tracked_buffers *buffers, struct nb_tracked_set *set,
                   const struct nb_profile *profile, struct nb_shape *shape)
{
    if (!profile || !profile->value || profile->known < NB_PROFILE_LEAST ||
        profile->known > NB_PROFILE_GROUPS || !make_shape(profile, shape))
        return 0;
    if (set->with == 0 || set->span != profile->span || set->known != profile->known) {
        for (uint32_t at = set->first; at != NB_TRACKED_NONE; at = nb_tracked_at(buffers, at)->next)
            nb_tracked_at(buffers, at)->profiles = nb_tracked_at(buffers, at)->misses = 0;
        memset(set->sum, 0, sizeof(set->sum));
        set->with = set->mature = 0;
        set->span = profile->span;
        set->known = profile->known;
    }
    return 1;
}

/* Return the plain correlation of a profile with a tracked buffer's average, over the nonzero groups. The
 * average's mean is zero over all groups. Over the nonzero ones the function subtracts it. */
static float likeness(const struct nb_tracked_buffer *s, const struct nb_shape *p)
{
    int32_t xy = 0, xx = 0, yy = 0, y = 0;
    double n = p->nonzero, var;

    for (unsigned i = 0; i < NB_PROFILE_GROUPS; i++) {
        int16_t b = s->code[i] & p->mask[i];
        xy += p->code[i] * b;
        xx += p->code[i] * p->code[i];
        yy += b * b;
        y += b;
    }
    var = yy - (double)y * y / n;
    return xx > 0 && var > 0.5 ? (float)(xy / sqrt(xx * var)) : 0.0f;
}

int nb_set_breaks(const struct nb_tracked_buffers *buffers, uint32_t tracked, const struct nb_shape *shape)
{
    const struct nb_tracked_buffer *s = nb_tracked_at(buffers, tracked);
    float spread = s->spread > LEAST_SPREAD ? s->spread : LEAST_SPREAD;

    return s->profiles >= BREAK_FROM && likeness(s, shape) < s->usual - BREAK_SPREADS * spread;
}

/* Move the average to the profile by `part` of the way in the nonzero groups. */
static void average(float *restrict to, int16_t *restrict code, int32_t *restrict sum,
                    const struct nb_shape *restrict shape, float part)
{
    for (unsigned i = 0; i < NB_PROFILE_GROUPS; i++) {
        float step = part * (float)-shape->mask[i];
        int16_t now;
        to[i] += step * (shape->value[i] - to[i]);
        now = code_of(to[i]);
        sum[i] += now - code[i];
        code[i] = now;
    }
}

void nb_set_learn(struct nb_tracked_buffers *buffers, struct nb_tracked_set *set, uint32_t tracked,
                  const struct nb_shape *shape)
{
    struct nb_tracked_buffer *s = nb_tracked_at(buffers, tracked);
    float keep = s->profiles ? OLD_WEIGHT : 0.0f;

    /* A plain mean at first: one early profile must not weigh as much as five. */
    if (s->profiles && s->profiles < 5)
        keep = (float)s->profiles / (float)(s->profiles + 1);
    if (s->profiles >= 2) {
        float like = likeness(s, shape), off = fabsf(like - s->usual);
        float part = s->profiles < 10 ? 1.0f / (float)(s->profiles - 1) : 0.1f;
        /* The mean deviation times 1.25 is the standard deviation of a normal distribution. */
        s->spread = s->profiles == 2 ? 0.05f : s->spread + part * (1.25f * off - s->spread);
        s->usual = s->profiles == 2 ? like : s->usual + part * (like - s->usual);
    }
    if (s->profiles == 0) {
        memset(s->average, 0, sizeof(s->average));
        memset(s->code, 0, sizeof(s->code));
        set->with++;
    }
    average(s->average, s->code, set->sum, shape, 1.0f - keep);
    s->misses = 0;
    if (s->profiles < UINT32_MAX && ++s->profiles == NB_TRACKED_MATURE)
        set->mature++;
}

/* Compute the sums of x d and d d, where d is the difference between the tracked buffer's average and the
 * mean. */
static void compare(const int16_t *x, const int16_t *average, const int16_t *mean, int32_t *xd, int32_t *dd)
{
    int32_t a = 0, b = 0;

    for (unsigned i = 0; i < NB_PROFILE_GROUPS; i++) {
        int16_t d = (int16_t)(average[i] - mean[i]);
        a += x[i] * d;
        b += d * d;
    }
    *xd = a;
    *dd = b;
}

struct nb_fit nb_set_fit(const struct nb_tracked_buffers *buffers, const struct nb_tracked_set *set,
                         uint32_t tracked, const struct nb_shape *shape)
{
    struct nb_fit fit = {LEAST_SCORE, LEAST_SCORE, LEAST_SCORE, LEAST_SCORE, NB_TRACKED_NONE};
    int16_t mean[NB_PROFILE_GROUPS], x[NB_PROFILE_GROUPS], middle;
    float each = 1.0f / (float)(set->with ? set->with : 1), part;
    int32_t sum = 0, square = 0;

    if (set->with == 0)
        return fit;
    for (unsigned i = 0; i < NB_PROFILE_GROUPS; i++) {
        mean[i] = (int16_t)((float)set->sum[i] * each);
        x[i] = (int16_t)((shape->code[i] - mean[i]) & shape->mask[i]);
        sum += x[i];
    }
    middle = (int16_t)(sum / (int32_t)shape->nonzero);
    for (unsigned i = 0; i < NB_PROFILE_GROUPS; i++) {
        x[i] = (int16_t)((x[i] - middle) & shape->mask[i]);
        square += x[i] * x[i];
    }
    /* Zero groups are missing from x, but not from the norm of the averages that x is compared with. */
    part = (float)shape->nonzero / (float)shape->known;
    for (uint32_t at = set->first; at != NB_TRACKED_NONE; at = nb_tracked_at(buffers, at)->next) {
        const struct nb_tracked_buffer *s = nb_tracked_at(buffers, at);
        int32_t xd, dd;
        float score;
        if (s->profiles == 0)
            continue;
        compare(x, s->code, mean, &xd, &dd);
        score = square > 0 && dd > 0 ? (float)xd / sqrtf((float)square * (float)dd * part) : 0.0f;
        if (at == tracked)
            fit.own = score;
        else if (score > fit.other)
            fit.other = score;
        if (score > fit.best) {
            fit.after = fit.best;
            fit.best = score;
            fit.best_tracked = at;
        } else if (score > fit.after) {
            fit.after = score;
        }
    }
    return fit;
}
