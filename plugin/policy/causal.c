/* SPDX-License-Identifier: Apache-2.0 */
/* See causal.h. */
#include "policy/causal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/slab.h"

#define CHANGED_MOST 1024u /* positions that count: beyond, structure in the data outweighs chance */
#define CHANGED_LEAST 8u
#define DECAY 0.99f    /* of running sums, each time that a pair meets */
#define STEPS_LEAST 3u /* meetings before a proof */
#define KEEP_Z 4.0f    /* a proof stands until its sums fall below */
#define KEEP_D 3.0f
#define RECENT 0.25f      /* weight of a meeting in the mean of the last few */
#define STRONG 3.0f       /* where z is that large every time, */
#define LOST 0.25f        /* the last few may not be below this part of it */
#define RENEW_WITHIN 256u /* sums of the key */
#define NEAR 64           /* steps of the bit pattern: half a binade of BF16 */
#define NEAR_SHARE 0.9f   /* of the positions of one block and the next version of it */
#define NEAR_LEAST 0.6f   /* or so many, */
#define NEAR_MARGIN 0.2f  /* and so many more than of any other */
#define LOOK_FIRST 64u    /* positions by which units are told apart quickly */
#define UNIT_LIFE 4096u   /* events of the field */
#define CLEAR_Z 5.0f      /* one meeting that needs no others */
#define CLEAR_MARGIN 3.0f
#define CLEAR_D 3.0f
#define OWNER_AFTER 4u    /* clear meetings with one unit in a row, and the buffer is its */
#define STRAY_RATE 0.125f /* weight of a clear meeting in the share of those with another unit */
#define STRAY_MOST 0.1f   /* so that one such meeting is in doubt for two more, and every tenth for ever */
#define MIXED_Z 8.0f      /* a sum that agrees with a change so well moved it, */
#define MIXED_PART 0.4f   /* and one of the step with less than that part of it moved nothing */
#define MIXED_RATE 0.3f   /* weight of such a step in the share of those with several sums of the key */
#define MIXED_MOST 0.5f
#define EXPLAINED_FROM 128u
#define EXPLAINED_RATE (1.0f / 256.0f)

struct unit {
    int32_t *value;            /* [positions] ordered bit patterns of the last version */
    struct nb_signs change[2]; /* the last change, and the one before */
    unsigned changes;
    uint64_t used;
};

/* Running sums of a key and a unit; z and d over the root of the weight are in standard deviations. */
struct pair {
    float z, d, weight;
    float recent; /* z of the last few meetings */
    uint32_t met;
};

struct key {
    uint64_t name; /* 0: free */
    uint64_t used;
    uint32_t unproved; /* sums since the proof was last renewed */
    int proved;
    int best;          /* unit, -1: none */
    int owner;         /* unit that its sums moved clearly, -1: none yet */
    float stray;       /* share of its sums, of late, that clearly moved another */
    int moved;         /* unit that the last of them moved, */
    unsigned in_a_row; /* and so many before it */
    float mixed; /* share of its steps, of late, in which some of its sums moved weights and others nothing */
    unsigned sums;     /* of the step that is judged: how many are its, */
    float most, least; /* the best and the worst agreement of one of them with any change */
    struct pair *pair; /* [NB_CAUSAL_UNITS] */
};

struct sum {
    int key[NB_CAUSAL_KEYS];
    int explained;
    float most; /* z with the unit that it agrees best with */
    struct nb_signs signs;
};

struct nb_causal {
    unsigned positions;
    struct unit unit[NB_CAUSAL_UNITS];
    unsigned units, hint;
    struct key key[NB_CAUSAL_BUFFERS];
    struct nb_slab sum[2]; /* of struct sum: those of the last step, whose consequences come; and since */
    unsigned sums[2];
    unsigned place;
    uint64_t now;
    uint64_t judged;
    float explained;
};

/* ---- signs ------------------------------------------------------------------------------------------- */

void nb_signs_of(enum nb_dtype type, const uint32_t *raw, unsigned n, struct nb_signs *signs)
{
    const uint32_t sign = type == NB_F32 ? UINT32_C(1) << 31 : UINT32_C(1) << 15;
    const uint32_t infinite = type == NB_F32 ? 0x7f800000u : type == NB_BF16 ? 0x7f80u : 0x7c00u;

    memset(signs, 0, sizeof(*signs));
    for (unsigned i = 0; i < n; i++) {
        const uint32_t magnitude = raw[i] & (sign - 1);
        const uint64_t counts = magnitude != 0 && magnitude < infinite, minus = (raw[i] & sign) != 0;
        signs->negative[i / 64] |= (counts & minus) << (i % 64);
        signs->positive[i / 64] |= (counts & (minus ^ 1)) << (i % 64);
    }
}

static unsigned bits(uint64_t x)
{
    return (unsigned)__builtin_popcountll(x);
}

float nb_signs_agree(const struct nb_signs *sum, const struct nb_signs *change, unsigned most)
{
    unsigned n = 0, up = 0, given = 0, plus = 0, same = 0;
    double dn, of_sum, of_change, product, cov, var;

    for (unsigned w = 0; w < NB_CAUSAL_WORDS && n < most; w++) {
        uint64_t changed = change->negative[w] | change->positive[w];
        while (n + bits(changed) > most) /* the last ones go */
            changed &= ~(UINT64_C(1) << (63 - __builtin_clzll(changed)));
        n += bits(changed);
        up += bits(changed & change->positive[w]);
        given += bits(changed & (sum->negative[w] | sum->positive[w]));
        plus += bits(changed & sum->positive[w]);
        same += bits(changed &
                     ((sum->positive[w] & change->positive[w]) | (sum->negative[w] & change->negative[w])));
    }
    if (n < CHANGED_LEAST)
        return 0.0f;
    dn = n;
    of_change = 2.0 * up - n;
    of_sum = 2.0 * plus - given;
    product = 2.0 * same - given;
    cov = product - of_sum * of_change / dn;
    var = (given - of_sum * of_sum / dn) * (dn - of_change * of_change / dn);
    return var > 0.5 ? (float)(cov / sqrt(var) * sqrt(dn)) : 0.0f;
}

/* The sum over the positions of `at` of what is +1 in `positive` and -1 elsewhere. */
static int signed_bits(uint64_t at, uint64_t positive)
{
    return 2 * (int)bits(at & positive) - (int)bits(at);
}

float nb_signs_contrast(const struct nb_signs *sum, const struct nb_signs *change,
                        const struct nb_signs *before, unsigned most)
{
    unsigned n = 0, squares = 0;
    int of_sum = 0, of_change = 0, product = 0;
    double dn, cov, var;

    for (unsigned w = 0; w < NB_CAUSAL_WORDS && n < most; w++) {
        const uint64_t changed = change->negative[w] | change->positive[w],
                       earlier = before->negative[w] | before->positive[w],
                       turned = (change->positive[w] & before->negative[w]) |
                                (change->negative[w] & before->positive[w]),
                       up = change->positive[w] | (before->negative[w] & ~changed);
        uint64_t differ = (sum->negative[w] | sum->positive[w]) & (turned | (changed ^ earlier));
        while (n + bits(differ) > most) /* the last ones go */
            differ &= ~(UINT64_C(1) << (63 - __builtin_clzll(differ)));
        /* The change less the one before: 2 where it has turned round, 1 where there is only one of them. */
        const uint64_t twice = differ & turned, same = ~(sum->positive[w] ^ up);
        n += bits(differ);
        squares += bits(differ) + 3 * bits(twice);
        of_sum += signed_bits(differ, sum->positive[w]);
        of_change += signed_bits(differ, up) + signed_bits(twice, up);
        product += signed_bits(differ, same) + signed_bits(twice, same);
    }
    if (n < CHANGED_LEAST)
        return 0.0f;
    dn = n;
    cov = product - (double)of_sum * of_change / dn;
    var = (dn - (double)of_sum * of_sum / dn) * (squares - (double)of_change * of_change / dn);
    return var > 0.5 ? (float)(cov / sqrt(var) * sqrt(dn)) : 0.0f;
}

/* ---- life -------------------------------------------------------------------------------------------- */

struct nb_causal *nb_causal_create(unsigned positions)
{
    struct nb_causal *f = calloc(1, sizeof(*f));

    if (!f)
        return NULL;
    f->positions = positions < NB_PICKS ? positions : NB_PICKS;
    for (int i = 0; i < 2; i++)
        nb_slab_init(&f->sum[i], sizeof(struct sum), NB_CAUSAL_SUMS);
    return f;
}

static struct sum *sum_at(const struct nb_causal *f, int step, unsigned i)
{
    return nb_slab_at(&f->sum[step], i);
}

void nb_causal_destroy(struct nb_causal *f)
{
    if (!f)
        return;
    for (unsigned u = 0; u < f->units; u++)
        free(f->unit[u].value);
    for (unsigned k = 0; k < NB_CAUSAL_BUFFERS; k++)
        free(f->key[k].pair);
    nb_slab_free(&f->sum[0]);
    nb_slab_free(&f->sum[1]);
    free(f);
}

unsigned nb_causal_positions(const struct nb_causal *f)
{
    return f->positions;
}

/* ---- keys -------------------------------------------------------------------------------------------- */

static const struct key *find_key(const struct nb_causal *f, uint64_t name)
{
    for (unsigned k = 0; name && k < NB_CAUSAL_BUFFERS; k++)
        if (f->key[k].name == name)
            return &f->key[k];
    return NULL;
}

/* Nothing is known of the key any more. */
static void clear_key(struct key *k)
{
    k->proved = 0;
    k->unproved = 0;
    k->best = -1;
    memset(k->pair, 0, NB_CAUSAL_UNITS * sizeof(*k->pair));
}

/* Its number, made when it is new: the longest unused makes room, unless a sum of the last two steps has it.
 * -1: none. */
static int key_of(struct nb_causal *f, uint64_t name)
{
    struct key *victim = NULL;

    if (!name)
        return -1;
    for (struct key *k = f->key; k < f->key + NB_CAUSAL_BUFFERS; k++) {
        if (k->name == name) {
            k->used = ++f->now;
            return (int)(k - f->key);
        }
        if (!victim || (victim->name && (!k->name || k->used < victim->used)))
            victim = k;
    }
    for (int s = 0; s < 2 && victim->name; s++)
        for (unsigned i = 0; i < f->sums[s]; i++)
            for (unsigned j = 0; j < NB_CAUSAL_KEYS; j++)
                if (sum_at(f, s, i)->key[j] == (int)(victim - f->key))
                    return -1;
    if (!victim->pair)
        victim->pair = malloc(NB_CAUSAL_UNITS * sizeof(*victim->pair));
    if (!victim->pair)
        return -1;
    clear_key(victim);
    victim->owner = victim->moved = -1;
    victim->in_a_row = 0;
    victim->stray = 0.0f;
    victim->mixed = 0.0f;
    victim->sums = 0;
    victim->name = name;
    victim->used = ++f->now;
    return (int)(victim - f->key);
}

/* ---- units ------------------------------------------------------------------------------------------- */

/* Bit patterns of sign and magnitude as integers, in the order of the values. */
static int32_t ordered(size_t width, uint32_t raw)
{
    const uint32_t sign = UINT32_C(1) << (8 * width - 1), magnitude = raw & (sign - 1);

    return raw & sign ? -(int32_t)magnitude : (int32_t)magnitude;
}

/* Share of the first n positions in which two versions are near. Patterns of 4 bytes are compared by their
 * upper halves, which are those of BF16. */
static float nearness(const int32_t *a, const int32_t *b, size_t width, unsigned n)
{
    const int64_t near = width == 4 ? (int64_t)NEAR << 16 : width == 2 ? NEAR : NEAR / 8;
    unsigned count = 0;

    for (unsigned i = 0; i < n; i++) {
        int64_t apart = (int64_t)a[i] - b[i];
        count += apart <= near && apart >= -near;
    }
    return (float)count / (float)n;
}

/* A place for a new unit: the longest unused makes room when it has missed its turn for long. -1: none. */
static int new_unit(struct nb_causal *f)
{
    unsigned oldest = 0;
    int32_t *value;

    if (f->units < NB_CAUSAL_UNITS) {
        f->unit[f->units].value = malloc(f->positions * sizeof(int32_t));
        return f->unit[f->units].value ? (int)f->units++ : -1;
    }
    for (unsigned u = 1; u < f->units; u++)
        if (f->unit[u].used < f->unit[oldest].used)
            oldest = u;
    if (f->now - f->unit[oldest].used < UNIT_LIFE)
        return -1;
    for (struct key *k = f->key; k < f->key + NB_CAUSAL_BUFFERS; k++) {
        if (!k->name)
            continue;
        k->pair[oldest] = (struct pair){0};
        if (k->best == (int)oldest)
            clear_key(k);
    }
    value = f->unit[oldest].value;
    f->unit[oldest] = (struct unit){.value = value};
    return (int)oldest;
}

/* The unit whose next version this is, a new one, or -1. Blocks come in turn, so the one behind the last found
 * is tried first. Blocks that have nothing in common are near in about a fifth of the positions; of one that is
 * trained hard small weights move far in a step, and then it has to be nearer than any other unit. */
static int unit_of(struct nb_causal *f, size_t width, const int32_t *value)
{
    const unsigned first = f->positions < LOOK_FIRST ? f->positions : LOOK_FIRST;
    float most = 0.0f, second = 0.0f;
    int best = -1;

    for (unsigned i = 0; i < f->units && most < 1.0f; i++) {
        unsigned u = (f->hint + i) % f->units;
        float near = nearness(f->unit[u].value, value, width, first);
        if (near >= NEAR_LEAST - 0.2f)
            near = nearness(f->unit[u].value, value, width, f->positions);
        if (near > most) {
            second = most;
            most = near;
            best = (int)u;
        } else if (near > second) {
            second = near;
        }
    }
    if (best >= 0 && (most >= NEAR_SHARE || (most >= NEAR_LEAST && most - second >= NEAR_MARGIN))) {
        f->hint = (unsigned)best + 1;
        return best;
    }
    best = new_unit(f);
    if (best >= 0) {
        memcpy(f->unit[best].value, value, f->positions * sizeof(*value));
        f->hint = (unsigned)best + 1;
    }
    return best;
}

/* Where the block differs from the unit's last version, and in which direction: 1 when it does. */
static int note_change(struct nb_causal *f, struct unit *unit, const int32_t *value)
{
    struct nb_signs change = {{0}, {0}};
    uint64_t any = 0;

    for (unsigned i = 0; i < f->positions; i++) {
        change.positive[i / 64] |= (uint64_t)(value[i] > unit->value[i]) << (i % 64);
        change.negative[i / 64] |= (uint64_t)(value[i] < unit->value[i]) << (i % 64);
    }
    for (unsigned w = 0; w < NB_CAUSAL_WORDS; w++)
        any |= change.positive[w] | change.negative[w];
    if (!any)
        return 0;
    memcpy(unit->value, value, f->positions * sizeof(*value));
    unit->change[1] = unit->change[0];
    unit->change[0] = change;
    unit->changes++;
    return 1;
}

/* ---- hypotheses -------------------------------------------------------------------------------------- */

static float in_deviations(float sum, const struct pair *p)
{
    return p->weight > 0.0f ? sum / sqrtf(p->weight) : 0.0f;
}

static void meet(struct key *k, unsigned u, float z, float d)
{
    struct pair *p = &k->pair[u];
    /* Mean of z so far: of all the weights of a sum that forgets, few meetings have only a part. */
    const float usual = p->met ? p->z * (1.0f - DECAY) / (1.0f - powf(DECAY, (float)p->met)) : 0.0f;
    float all_z, all_d;

    p->z = p->z * DECAY + z;
    p->d = p->d * DECAY + d;
    p->weight = p->weight * DECAY * DECAY + 1.0f;
    p->recent += (p->met ? RECENT : 1.0f) * (z - p->recent);
    p->met++;
    all_z = in_deviations(p->z, p);
    all_d = in_deviations(p->d, p);
    if (k->best < 0 || all_z > in_deviations(k->pair[k->best].z, &k->pair[k->best]))
        if (!k->proved)
            k->best = (int)u;
    if (k->best != (int)u)
        return;
    if (p->met >= STEPS_LEAST && all_z > NB_CAUSAL_Z && all_d > NB_CAUSAL_D)
        k->proved = 1;
    else if (k->proved && (all_z < KEEP_Z || all_d < KEEP_D))
        k->proved = 0;
    if (k->proved && usual > STRONG && p->recent < LOST * usual)
        clear_key(k); /* it is another buffer's now, whose proof begins anew */
    if (k->proved && all_z >= KEEP_Z)
        k->unproved = 0;
}

/* A sum of the key has clearly moved the unit. */
static void note_owner(struct key *k, int unit)
{
    k->in_a_row = unit == k->moved ? k->in_a_row + 1 : 1;
    k->moved = unit;
    if (k->owner < 0)
        k->owner = unit;
    k->stray += STRAY_RATE * ((float)(unit != k->owner) - k->stray);
    if (unit != k->owner && k->in_a_row == OWNER_AFTER) { /* a slot begins anew, with another buffer */
        k->owner = unit;
        k->stray = 2.0f * STRAY_RATE;
    }
}

/* A unit has changed: what do the sums of the last step say of it? */
static void confront(struct nb_causal *f, unsigned u)
{
    const struct unit *unit = &f->unit[u];
    float best = 0.0f, second = 0.0f, best_d = 0.0f;
    int winner = -1;

    if (unit->changes < 2)
        return;
    for (unsigned i = 0; i < f->sums[0]; i++) {
        struct sum *s = sum_at(f, 0, i);
        float z = -nb_signs_agree(&s->signs, &unit->change[0], CHANGED_MOST);
        float d = -nb_signs_contrast(&s->signs, &unit->change[0], &unit->change[1], CHANGED_MOST);
        s->most = fmaxf(s->most, z);
        for (unsigned j = 0; j < NB_CAUSAL_KEYS; j++)
            if (s->key[j] >= 0)
                meet(&f->key[s->key[j]], u, z, d);
        if (winner < 0 || z > best) {
            second = winner < 0 ? 0.0f : best;
            best = z;
            best_d = d;
            winner = (int)i;
        } else if (z > second) {
            second = z;
        }
    }
    if (winner >= 0 && best > CLEAR_Z && best - second > CLEAR_MARGIN && best_d > CLEAR_D) {
        struct sum *s = sum_at(f, 0, (unsigned)winner);
        s->explained = 1;
        for (unsigned j = 0; j < NB_CAUSAL_KEYS; j++)
            if (s->key[j] >= 0)
                note_owner(&f->key[s->key[j]], (int)u);
    }
}

/* The sum is one of the key's in this step. */
static void gather_sums(struct key *k, float most)
{
    k->most = k->sums ? fmaxf(k->most, most) : most;
    k->least = k->sums ? fminf(k->least, most) : most;
    k->sums++;
}

/* Once all of them have been. */
static void judge_sums(struct key *k)
{
    if (k->sums > 1)
        k->mixed += MIXED_RATE * ((float)(k->most > MIXED_Z && k->least < MIXED_PART * k->most) - k->mixed);
    k->sums = 0;
}

/* All consequences of the sums of the last step have come. */
static void judge(struct nb_causal *f)
{
    for (unsigned i = 0; i < f->sums[0]; i++) {
        const struct sum *s = sum_at(f, 0, i);
        int explained = s->explained;
        for (unsigned j = 0; j < NB_CAUSAL_KEYS; j++)
            explained |= s->key[j] >= 0 && f->key[s->key[j]].proved && f->key[s->key[j]].mixed <= MIXED_MOST;
        f->judged++;
        f->explained += fmaxf(EXPLAINED_RATE, 1.0f / (float)f->judged) * ((float)explained - f->explained);
        for (unsigned j = 0; j < NB_CAUSAL_KEYS; j++)
            if (s->key[j] >= 0)
                gather_sums(&f->key[s->key[j]], s->most);
    }
    for (unsigned i = 0; i < NB_CAUSAL_BUFFERS; i++)
        if (f->key[i].sums)
            judge_sums(&f->key[i]);
}

/* Weights begin to change: the sums since they last did are the cause. */
static void next_step(struct nb_causal *f)
{
    const struct nb_slab over = f->sum[0];

    judge(f);
    f->sum[0] = f->sum[1];
    f->sums[0] = f->sums[1];
    f->sum[1] = over;
    f->sums[1] = 0;
    f->place = 0;
}

/* ---- what happens ------------------------------------------------------------------------------------ */

unsigned nb_causal_place(struct nb_causal *f)
{
    return f->place++;
}

void nb_causal_sum(struct nb_causal *f, const uint64_t keys[NB_CAUSAL_KEYS], const struct nb_signs *signs)
{
    struct sum *s;

    for (unsigned j = 0; j < NB_CAUSAL_KEYS; j++) {
        int k = key_of(f, keys[j]);
        if (k >= 0 && ++f->key[k].unproved > RENEW_WITHIN)
            clear_key(&f->key[k]);
    }
    if (nb_slab_reach(&f->sum[1], f->sums[1] + 1)) /* too many, or no memory */
        return;
    s = sum_at(f, 1, f->sums[1]);
    for (unsigned j = 0; j < NB_CAUSAL_KEYS; j++)
        s->key[j] = key_of(f, keys[j]);
    s->explained = 0;
    s->most = 0.0f;
    s->signs = *signs;
    f->sums[1]++;
}

void nb_causal_gather(struct nb_causal *f, size_t width, const uint32_t *raw)
{
    int32_t value[NB_PICKS];
    int u;

    for (unsigned i = 0; i < f->positions; i++)
        value[i] = ordered(width, raw[i]);
    u = unit_of(f, width, value);
    if (u >= 0)
        f->unit[u].used = ++f->now;
    if (u < 0 || !note_change(f, &f->unit[u], value))
        return;
    if (f->sums[1])
        next_step(f);
    confront(f, (unsigned)u);
}

/* ---- answers ----------------------------------------------------------------------------------------- */

int nb_causal_proved(const struct nb_causal *f, uint64_t key)
{
    const struct key *k = find_key(f, key);

    return k && k->proved;
}

int nb_causal_shared(const struct nb_causal *f, uint64_t key)
{
    const struct key *k = find_key(f, key);

    return k && k->stray > STRAY_MOST;
}

int nb_causal_mixed(const struct nb_causal *f, uint64_t key)
{
    const struct key *k = find_key(f, key);

    return k && k->mixed > MIXED_MOST;
}

unsigned nb_causal_units(const struct nb_causal *f)
{
    unsigned n = 0;

    for (unsigned u = 0; u < f->units; u++)
        n += f->unit[u].changes >= 2;
    return n;
}

struct nb_causal_state nb_causal_state(const struct nb_causal *f, uint64_t key)
{
    const struct key *k = find_key(f, key);
    const struct pair *p;

    if (!k || k->best < 0)
        return (struct nb_causal_state){.unit = -1};
    p = &k->pair[k->best];
    return (struct nb_causal_state){k->best, in_deviations(p->z, p), in_deviations(p->d, p), p->met};
}

float nb_causal_explained(const struct nb_causal *f)
{
    return f->judged < EXPLAINED_FROM ? 0.0f : f->explained;
}
