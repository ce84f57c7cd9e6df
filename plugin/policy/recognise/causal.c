/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The causal test: whether a sum moves the weights. An optimizer turns a gradient into a change of the
 * weights. So in a shard that is reduced and gathered again, the change dW that follows a sum G has, element
 * by element, the sign of -G more often than chance allows. Activations, statistics and averaged parameters
 * lack this property. See docs/how-nibble-decides.md for the statistic, its errors and its power.
 *
 * A field is all shards of one size on one communicator: their sums that were delivered here, and the blocks
 * that this rank gathers. The test samples both at the same positions (codec/pick.h) and uses only signs: of
 * a sum's values, and of the differences between a block's bit patterns. The order of bit patterns is the
 * order of the values for every float type, so that the weights' type need not be known.
 *
 *  - A block that is like an earlier one is the next version of that *weight block* and has a change of its
 *    own.
 *  - Sums wait until the first weight block changes afterwards, or one step longer where that explains the
 *    changes and this does not (an optimizer on the host, beside the next step). The test then compares them
 *    with each weight block's first change. It does not assume which sum belongs to which weight block.
 *    Every sum carries up to two *keys* that say which buffer it probably is: its place among the sums of the
 *    step, and the tracked buffer of policy/identity/identity.h. Every pair of key and weight block is a
 *    hypothesis of its own, with running sums of
 *
 *        z = centred sign agreement of -G and dW in the changed positions, in standard deviations, and of
 *        D = centred agreement of -G's signs with the change less the change *before*, likewise.
 *
 *    Values that persist from step to step (parameters, residual streams, a momentum's direction) agree with
 *    both changes alike. Only the sum's own consequence makes D large.
 *  - A key is proved when both are beyond NB_CAUSAL_Z and NB_CAUSAL_D for one weight block. The test drops
 *    the proof when they fall far below, or when many sums came without renewing it.
 *
 * For one thread. The test allocates memory when it first meets sums, weight blocks and keys. Without memory
 * it ignores them.
 */
#include "policy/recognise/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "base/slab.h"

#define CHANGED_MOST 1024u /* positions that count. Beyond, structure in the data outweighs chance */
#define DECAY 0.99f        /* of running sums, at each meeting of a pair */
#define STEPS_LEAST 3u     /* meetings before a proof */
#define KEEP 0.5f          /* part of its limits at which a proof ends: it does not come and go near them */
#define FEW_LEAST 16u      /* positions of several small meetings that count together as one meeting */
#define RECENT 0.25f       /* weight of a meeting in the mean of the last few */
#define LATELY 0.03125f    /* weight of a meeting in the mean of the last 32 */
#define STRONG 2.5f        /* once z has been this large of late, */
#define LOST 0.25f         /* the mean of the last few must stay above this part of it */
#define LATELY_MET 32u     /* after this many meetings the mean of the last 32 must stay above 0 */
#define RENEW_WITHIN 256u  /* sums of the key in which its proof must be renewed */
#define NEAR 64            /* steps of the bit pattern: half a binade of BF16 */
#define NEAR_SHARE 0.9f    /* share of positions that are near between a block and its next version */
#define NEAR_LEAST 0.6f    /* or this share, */
#define NEAR_MARGIN 0.2f   /* when it is this much larger than any other block's */
#define LOOK_FIRST 64u     /* positions that a first, quick comparison of weight blocks uses */
#define WEIGHT_BLOCK_LIFE 4096u /* gathers of the field until an unused weight block makes room */
#define SUCCESSOR_LIFE 2048u    /* changes until a successor counts. Samplers' loops have up to 1000 steps */
/* A clear meeting needs no further evidence. Sums that persist have no D. By chance the margin to the second
 * best comes once in 700 meetings, and layers that are trained alike come nearer. */
#define CLEAR_Z 5.0f
#define CLEAR_MARGIN 3.0f
#define CLEAR_D 3.0f
#define OWNER_AFTER 4u    /* clear meetings with one weight block in a row that make it the buffer's owner */
#define STRAY_RATE 0.125f /* weight of a clear meeting in the share that met another weight block */
#define STRAY_MOST 0.1f   /* one such meeting is in doubt for two more, every tenth for ever */
#define CERTAIN_AFTER 8u  /* clear meetings with one weight block in a row that make a prediction certain */
/* A meeting below this begins the row anew, unless it turned the change round. Without it 1.2 % of the
 * gradients of checkpoint-inside stay raw (seed 3). */
#define FAINT_Z 1.25f
#define REPEATS_LIFE 64u /* steps after the last one in which several sums of a key came */
/* Share of explained sums from which the other lag is not tried. Without this limit adapters-at-random takes
 * the other lag for its own, and 10 to 15 % of its gradients are coded instead of 34 to 38 %. */
#define LAG_EXPLAINED 0.5f
#define LAG_AFTER 8u /* clear meetings with the other lag's sums since the last one with this lag's */
#define EXPLAINED_RATE (1.0f / 256.0f) /* of a sum in the share: some steps of a model */

struct weight_block {
    int32_t *value;            /* [positions] ordered bit patterns of the last version */
    struct nb_signs change[2]; /* the last change, and the change before it */
    unsigned changes;
    uint64_t used;
    uint64_t met;  /* step whose sums were last compared with its change */
    uint64_t born; /* step in which it was first gathered */
    int led;       /* 1: a key was proved to move it */
    int successor; /* 1: it came after blocks that sums moved had been replaced */
};

/* Running sums of a key and a weight block. z and d over the root of the weight are standard deviations. */
struct pair {
    float z, d, weight;
    float recent, lately; /* z of the last few meetings, and of the last 32 */
    uint32_t met;
    struct nb_agreement few, few_d; /* meetings at few positions that do not count yet */
};

/* The weight block that a name's sums belong to, according to the sums that clearly moved one. */
struct belonging {
    int owner;         /* weight block that they moved, -1: none yet */
    float stray;       /* share of recent clear sums that moved another weight block */
    int moved;         /* weight block that the last clear sum moved */
    unsigned in_a_row; /* clear sums that moved it in a row */
};

/* A name: a key, or a prediction of identity, which its sums confirm or contradict. */
struct key {
    struct nb_entry entry; /* the name, and 0 */
    uint32_t unproved;     /* sums since the proof was last renewed */
    int proved;
    int best; /* weight block of the strongest hypothesis, -1: none */
    struct belonging of;
    int came_for;      /* its strongest hypothesis when a sum came last, */
    unsigned came_at;  /* and the changes of this weight block until then, plus 1 */
    uint64_t repeated; /* the last step in which a sum came although its weight block had not changed, plus 1.
                          0: none */
    int came_given;    /* 1: identity gave it to the sum that came last */
    unsigned twice_at; /* came_at when last a second sum came. 0: never */
    struct pair *pair; /* [NB_CAUSAL_WEIGHT_BLOCKS] */
};

struct sum {
    uint64_t name[NB_CAUSAL_NAMES]; /* 0: none */
    int explained;
    struct nb_signs signs;
};

/* Sums of the last step, whose consequences usually come now, sums since then, and sums of the step before
 * the last one, whose consequences come now where an optimizer works beside the next step. */
enum { LAST, SINCE, BEFORE, SUMS };

struct nb_causal {
    unsigned positions;
    struct weight_block weight_block[NB_CAUSAL_WEIGHT_BLOCKS];
    unsigned weight_blocks, hint;
    struct nb_table keys;     /* of struct key */
    struct nb_slab sum[SUMS]; /* of struct sum */
    unsigned sums[SUMS];
    int late;           /* 1: the weights follow sums one step late */
    unsigned other_lag; /* clear meetings in a row with sums of the other lag */
    int replaced;       /* 1: a block that sums moved was replaced */
    unsigned place;
    uint64_t step; /* counts from 1 once there are sums to compare with */
    uint64_t now;
    uint64_t judged;
    float explained;
};

/* ---- life -------------------------------------------------------------------------------------------- */

struct nb_causal *nb_causal_create(unsigned positions)
{
    struct nb_causal *f = calloc(1, sizeof(*f));

    if (!f)
        return NULL;
    f->positions = positions < NB_PICKS ? positions : NB_PICKS;
    for (int i = 0; i < SUMS; i++)
        nb_slab_init(&f->sum[i], sizeof(struct sum), NB_CAUSAL_SUMS);
    if (nb_table_init(&f->keys, sizeof(struct key), NB_CAUSAL_BUFFERS)) {
        free(f);
        return NULL;
    }
    return f;
}

static struct sum *sum_at(const struct nb_causal *f, int step, unsigned i)
{
    return nb_slab_at(&f->sum[step], i);
}

static void drop_key(void *arg, void *entry)
{
    (void)arg;
    free(((struct key *)entry)->pair);
}

void nb_causal_destroy(struct nb_causal *f)
{
    if (!f)
        return;
    for (unsigned u = 0; u < f->weight_blocks; u++)
        free(f->weight_block[u].value);
    for (struct key *k = NULL; (k = nb_table_next(&f->keys, k));)
        drop_key(NULL, k);
    nb_table_free(&f->keys);
    for (int i = 0; i < SUMS; i++)
        nb_slab_free(&f->sum[i]);
    free(f);
}

unsigned nb_causal_positions(const struct nb_causal *f)
{
    return f->positions;
}

static const struct belonging nobody = {.owner = -1, .moved = -1};

/* ---- keys -------------------------------------------------------------------------------------------- */

/* Return the key `name`, or NULL when there is none, as for name 0. */
static struct key *find_key(const struct nb_causal *f, uint64_t name)
{
    return nb_table_find(&f->keys, name, 0);
}

/* Forget the hypotheses of a key. */
static void clear_key(struct key *k)
{
    k->proved = 0;
    k->unproved = 0;
    k->best = -1;
    memset(k->pair, 0, NB_CAUSAL_WEIGHT_BLOCKS * sizeof(*k->pair));
}

/* Return the key `name`, a new one if need be. Return NULL for name 0, and without memory. */
static struct key *key_of(struct nb_causal *f, uint64_t name)
{
    struct key *k = find_key(f, name);
    struct pair *pair = !k && name ? calloc(NB_CAUSAL_WEIGHT_BLOCKS, sizeof(*pair)) : NULL;

    if (!pair)
        return k;
    k = nb_table_make(&f->keys, name, 0, drop_key, NULL);
    k->pair = pair;
    k->best = -1;
    k->of = nobody;
    return k;
}

/* ---- weight blocks ------------------------------------------------------------------------------------ */

/* Return a bit pattern of sign and magnitude as an integer whose order is the order of the values. */
static int32_t ordered(size_t width, uint32_t raw)
{
    const uint32_t sign = UINT32_C(1) << (8 * width - 1), magnitude = raw & (sign - 1);

    return raw & sign ? -(int32_t)magnitude : (int32_t)magnitude;
}

/* Return the share of the first n positions in which two versions are near. Patterns of 4 bytes are compared
 * by their upper halves, which are BF16 patterns. */
static float similarity(const int32_t *a, const int32_t *b, size_t width, unsigned n)
{
    const uint32_t near = width == 4 ? (uint32_t)NEAR << 16 : width == 2 ? NEAR : NEAR / 8;
    unsigned count = 0;

    for (unsigned i = 0; i < n; i++) { /* 32 bits throughout, so that compilers use vectors */
        const uint32_t less = a[i] < b[i] ? UINT32_MAX : 0, apart = (uint32_t)a[i] - (uint32_t)b[i];
        count += ((apart ^ less) - less) <= near;
    }
    return (float)count / (float)n;
}

/* Forget that sums belong to the weight block: its number is another block's from now on. */
static void disown(struct belonging *of, int weight_block)
{
    if (of->owner == weight_block || of->moved == weight_block)
        *of = nobody;
}

/* Forget a weight block that has gone, and free its number for another one. */
static void forget_weight_block(struct nb_causal *f, unsigned weight_block)
{
    for (struct key *k = NULL; (k = nb_table_next(&f->keys, k));) {
        k->pair[weight_block] = (struct pair){0};
        if (k->best == (int)weight_block)
            clear_key(k);
        disown(&k->of, (int)weight_block);
    }
    f->weight_block[weight_block] = (struct weight_block){.value = f->weight_block[weight_block].value};
}

/* Weights change for the whole job, but the latents of a sampler are replaced every few steps. So a block
 * that came after such a replacement counts as evidence once it has lived for longer than samplers need. */
static int has_lived(const struct weight_block *block)
{
    return !block->successor || block->changes >= SUCCESSOR_LIFE;
}

/* Return 1 when `before` was moved by sums and has not changed since `block` came. */
static int is_replaced(const struct weight_block *before, const struct weight_block *block)
{
    return before->led && before != block && before->met <= block->born;
}

/* The block changes for the second time. Note whether it replaces another one, and drop the proofs that rest
 * on that one. */
static void note_successor(struct nb_causal *f, struct weight_block *block)
{
    for (unsigned u = 0; u < f->weight_blocks; u++)
        f->replaced |= is_replaced(&f->weight_block[u], block);
    for (struct key *k = NULL; (k = nb_table_next(&f->keys, k));)
        if (k->best >= 0 && is_replaced(&f->weight_block[k->best], block))
            clear_key(k);
    block->successor = f->replaced;
}

/* Return a place for a new weight block, or -1. When all are taken, the longest unused makes room if it has
 * missed its turn for long. */
static int new_unit(struct nb_causal *f)
{
    unsigned oldest = 0;

    if (f->weight_blocks < NB_CAUSAL_WEIGHT_BLOCKS) {
        f->weight_block[f->weight_blocks].value = malloc(f->positions * sizeof(int32_t));
        return f->weight_block[f->weight_blocks].value ? (int)f->weight_blocks++ : -1;
    }
    for (unsigned u = 1; u < f->weight_blocks; u++)
        if (f->weight_block[u].used < f->weight_block[oldest].used)
            oldest = u;
    if (f->now - f->weight_block[oldest].used < WEIGHT_BLOCK_LIFE)
        return -1;
    forget_weight_block(f, oldest);
    return (int)oldest;
}

/* Return the weight block whose next version `value` is, a new one, or -1. Blocks come in turn, so the search
 * begins behind the last match. Unrelated blocks are near in about a fifth of the positions. In hard training
 * small weights move far in a step. Then the match has to be nearer than any other weight block. */
static int unit_of(struct nb_causal *f, size_t width, const int32_t *value)
{
    const unsigned first = f->positions < LOOK_FIRST ? f->positions : LOOK_FIRST;
    float most = 0.0f, second = 0.0f;
    int best = -1;

    for (unsigned i = 0; i < f->weight_blocks && most < 1.0f; i++) {
        unsigned u = (f->hint + i) % f->weight_blocks;
        float near = similarity(f->weight_block[u].value, value, width, first);
        if (near >= NEAR_LEAST - 0.2f)
            near = similarity(f->weight_block[u].value, value, width, f->positions);
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
        memcpy(f->weight_block[best].value, value, f->positions * sizeof(*value));
        f->weight_block[best].born = f->step;
        f->hint = (unsigned)best + 1;
    }
    return best;
}

/* Note the positions in which the block differs from the weight block's last version, with the direction.
 * Return 1 when it differs. */
static int note_change(struct nb_causal *f, struct weight_block *weight_block, const int32_t *value)
{
    struct nb_signs change;

    if (!nb_signs_of_change(value, weight_block->value, f->positions, &change))
        return 0;
    memcpy(weight_block->value, value, f->positions * sizeof(*value));
    weight_block->change[1] = weight_block->change[0];
    weight_block->change[0] = change;
    weight_block->changes++;
    return 1;
}

/* ---- hypotheses -------------------------------------------------------------------------------------- */

static float in_deviations(float sum, const struct pair *p)
{
    return p->weight > 0.0f ? sum / sqrtf(p->weight) : 0.0f;
}

/* Add up meetings at few positions, as a low learning rate causes: one by one they mean too little. Return 1
 * when the sum counts as a meeting, and store it in *z and *d. */
static int add_few(struct pair *p, struct nb_agreement *z, struct nb_agreement *d)
{
    nb_agreement_add(&p->few, z);
    nb_agreement_add(&p->few_d, d);
    if (p->few.n < FEW_LEAST)
        return 0;
    *z = p->few;
    *d = p->few_d;
    p->few = p->few_d = (struct nb_agreement){0};
    return 1;
}

/* Return 1 when the pair has lost its effect, so that the buffer must now be another one. A strong effect is
 * lost at once, a weak one after many meetings without any. An effect that fades as training goes on is not
 * lost. */
static int is_lost(const struct pair *p, float lately)
{
    return (lately > STRONG && p->recent < LOST * lately) || (p->met >= LATELY_MET && p->lately < 0.0f);
}

/* The meeting of a sum and a change: the sum's agreement with the change, and with the change less the change
 * before it. */
struct meeting {
    struct nb_agreement agreed, contrast;
    float z, d;
};

static struct meeting meeting_of(const struct nb_signs *sum, const struct nb_change *change)
{
    struct meeting m = {nb_signs_agree(sum, change), nb_signs_contrast(sum, change), 0.0f, 0.0f};

    m.z = -nb_agreement_z(&m.agreed);
    m.d = -nb_agreement_z(&m.contrast);
    return m;
}

static void meet(struct nb_causal *f, struct key *k, unsigned u, const struct meeting *m)
{
    struct pair *p = &k->pair[u];
    const float lately = p->lately;
    float of_z = m->z, of_d = m->d, all_z, all_d;

    if (m->agreed.n < NB_AGREEMENT_LEAST) {
        struct nb_agreement z = m->agreed, d = m->contrast;
        if (!add_few(p, &z, &d))
            return;
        of_z = -nb_agreement_z(&z);
        of_d = -nb_agreement_z(&d);
    }
    p->z = p->z * DECAY + of_z;
    p->d = p->d * DECAY + of_d;
    p->weight = p->weight * DECAY * DECAY + 1.0f;
    p->recent += (p->met ? RECENT : 1.0f) * (of_z - p->recent);
    p->met++;
    p->lately += (p->met < LATELY_MET ? 1.0f / (float)p->met : LATELY) * (of_z - p->lately);
    if (k->proved && k->best != (int)u)
        return;
    all_z = in_deviations(p->z, p);
    if (k->best < 0 || all_z > in_deviations(k->pair[k->best].z, &k->pair[k->best]))
        k->best = (int)u;
    if (k->best != (int)u)
        return;
    all_d = in_deviations(p->d, p);
    if (p->met >= STEPS_LEAST && all_z > NB_CAUSAL_Z && all_d > NB_CAUSAL_D && has_lived(&f->weight_block[u]))
        k->proved = f->weight_block[u].led = 1;
    else if (k->proved && (all_z < KEEP * NB_CAUSAL_Z || all_d < KEEP * NB_CAUSAL_D))
        k->proved = 0;
    if (k->proved && is_lost(p, lately))
        clear_key(k); /* its proof begins anew */
    if (k->proved)
        k->unproved = 0;
}

/* Note that a sum of the name has clearly moved the weight block. */
static void note_owner(struct belonging *of, int weight_block)
{
    of->in_a_row = weight_block == of->moved ? of->in_a_row + 1 : 1;
    of->moved = weight_block;
    if (of->owner < 0)
        of->owner = weight_block;
    of->stray += STRAY_RATE * ((float)(weight_block != of->owner) - of->stray);
    if (weight_block != of->owner &&
        of->in_a_row == OWNER_AFTER) { /* the name begins anew, with another buffer */
        of->owner = weight_block;
        of->stray = 0.0f;
    }
}

/* Note that the sum has clearly moved the weight block. */
static void note_moved(struct nb_causal *f, struct sum *s, int weight_block)
{
    s->explained = has_lived(&f->weight_block[weight_block]);
    for (unsigned j = 0; j < NB_CAUSAL_NAMES; j++) {
        struct key *k = find_key(f, s->name[j]);
        if (k)
            note_owner(&k->of, weight_block);
    }
}

/* Compare this sum of a prediction with a new change of the prediction's weight block. Momentum may carry the
 * weights on as before, or even against the sum. But the weight block's own sum turns the change in its
 * direction. */
static void confirm(struct key *k, float z, float d)
{
    if (z < FAINT_Z && d <= CLEAR_Z)
        k->of.in_a_row = 0;
}

/* Return the step whose sums the weights follow now. */
static int cause(const struct nb_causal *f)
{
    return f->late ? BEFORE : LAST;
}

/* The sum that agrees best with a change. */
struct winner {
    int sum; /* -1: there was no sum */
    float z, second, d;
};

static void compete(struct winner *w, unsigned i, const struct meeting *m)
{
    if (w->sum < 0 || m->z > w->z) {
        w->second = w->sum < 0 ? 0.0f : w->z;
        w->z = m->z;
        w->d = m->d;
        w->sum = (int)i;
    } else if (m->z > w->second) {
        w->second = m->z;
    }
}

static int is_clear(const struct winner *w)
{
    return w->sum >= 0 && w->z > CLEAR_Z && w->z - w->second > CLEAR_MARGIN && w->d > CLEAR_D;
}

/* An optimizer may work beside the next step, so that the weights follow one step late. While most sums are
 * unexplained, compare the change with the sums of the other lag, too. A clear meeting with this lag resets
 * the count of clear meetings there. After enough of them begin anew with the other lag. */
static void weigh_lag(struct nb_causal *f, const struct nb_change *change, int clear_here)
{
    const int other = f->late ? LAST : BEFORE;
    struct winner w = {.sum = -1};

    if (f->explained > LAG_EXPLAINED)
        return;
    for (unsigned i = 0; i < f->sums[other]; i++) {
        const struct meeting m = meeting_of(&sum_at(f, other, i)->signs, change);
        compete(&w, i, &m);
    }
    f->other_lag = clear_here ? 0 : f->other_lag + (unsigned)is_clear(&w);
    if (f->other_lag < LAG_AFTER)
        return;
    f->late = !f->late;
    f->other_lag = 0;
    for (struct key *k = NULL; (k = nb_table_next(&f->keys, k));) {
        clear_key(k);
        k->of = nobody;
    }
}

/* Compare the change of a weight block with all sums of the step that causes it. Only the first change after
 * these sums counts. A later change has another cause. */
static void confront(struct nb_causal *f, unsigned u)
{
    struct weight_block *weight_block = &f->weight_block[u];
    struct winner w = {.sum = -1};
    struct nb_change change;
    const int from = cause(f);

    if (weight_block->changes < 2 || weight_block->met == f->step)
        return;
    weight_block->met = f->step;
    if (weight_block->changes == 2)
        note_successor(f, weight_block);
    nb_change_of(&change, &weight_block->change[0], &weight_block->change[1], f->positions, CHANGED_MOST);
    for (unsigned i = 0; i < f->sums[from]; i++) {
        struct sum *s = sum_at(f, from, i);
        const struct meeting m = meeting_of(&s->signs, &change);
        struct key *k = find_key(f, s->name[NB_CAUSAL_GUESS]);
        if (k && k->of.owner == (int)u)
            confirm(k, m.z, m.d);
        for (unsigned j = 0; j < NB_CAUSAL_KEYS; j++)
            if ((k = find_key(f, s->name[j])))
                meet(f, k, u, &m);
        compete(&w, i, &m);
    }
    if (is_clear(&w))
        note_moved(f, sum_at(f, from, (unsigned)w.sum), (int)u);
    weigh_lag(f, &change, is_clear(&w));
}

/* Return 1 when its sums are proved, and clearly moved their weight block on average of late. */
static int is_clear_key(const struct key *k)
{
    return k->proved && k->pair[k->best].lately > CLEAR_Z;
}

/* Return 1 when of late several sums of the key came between two changes of its weight block. */
static int repeats(const struct nb_causal *f, const struct key *k)
{
    return k->repeated && f->step + 1 - k->repeated < REPEATS_LIFE;
}

/* Return 1 when the proof of its key explains the sum. A place without any word from identity has to be
 * clear. */
static int explains(const struct nb_causal *f, const struct sum *s, const struct key *k)
{
    return !repeats(f, k) && (s->name[1] || s->name[NB_CAUSAL_GUESS] ? k->proved : is_clear_key(k));
}

/* Judge the sums of a step after all their consequences have come. */
static void judge(struct nb_causal *f)
{
    const int from = cause(f);

    for (unsigned i = 0; i < f->sums[from]; i++) {
        const struct sum *s = sum_at(f, from, i);
        int explained = s->explained;
        for (unsigned j = 0; j < NB_CAUSAL_KEYS; j++) {
            const struct key *k = find_key(f, s->name[j]);
            explained |= k && explains(f, s, k);
        }
        f->judged++;
        f->explained += fmaxf(EXPLAINED_RATE, 1.0f / (float)f->judged) * ((float)explained - f->explained);
    }
}

/* Begin a step when weights begin to change: the sums since the last change are the cause. */
static void next_step(struct nb_causal *f)
{
    const struct nb_slab over = f->sum[BEFORE];

    judge(f);
    f->sum[BEFORE] = f->sum[LAST];
    f->sums[BEFORE] = f->sums[LAST];
    f->sum[LAST] = f->sum[SINCE];
    f->sums[LAST] = f->sums[SINCE];
    f->sum[SINCE] = over;
    f->sums[SINCE] = 0;
    f->place = 0;
    f->step++;
}

/* ---- events ------------------------------------------------------------------------------------------- */

unsigned nb_causal_place(struct nb_causal *f)
{
    return f->place++;
}

/* A sum that is unlike its predicted buffer may have come by chance. It counts from the second change in a
 * row on. If the first counted, 2.5 % of the gradients of experts-of-changing-sizes would stay raw. */
static void note_repeat(const struct nb_causal *f, struct key *k, int given)
{
    if (given || k->twice_at + 1 == k->came_at)
        k->repeated = f->step + 1;
    k->twice_at = k->came_at;
}

int nb_causal_repeats(struct nb_causal *f, uint64_t name, int given)
{
    struct key *k = find_key(f, name);

    if (!k || k->best < 0)
        return 0;
    if (k->came_for == k->best && k->came_at == f->weight_block[k->best].changes + 1)
        note_repeat(f, k, given && k->came_given);
    k->came_given = given;
    k->came_for = k->best;
    k->came_at = f->weight_block[k->best].changes + 1;
    return repeats(f, k);
}

void nb_causal_sum(struct nb_causal *f, const uint64_t names[NB_CAUSAL_NAMES], const struct nb_signs *signs)
{
    struct sum *s;

    for (unsigned j = 0; j < NB_CAUSAL_NAMES; j++) {
        struct key *k = key_of(f, names[j]);
        if (k && ++k->unproved > RENEW_WITHIN)
            clear_key(k);
    }
    if (nb_slab_reach(&f->sum[SINCE], f->sums[SINCE] + 1)) /* too many sums, or no memory */
        return;
    s = sum_at(f, SINCE, f->sums[SINCE]);
    memcpy(s->name, names, sizeof(s->name));
    s->explained = 0;
    s->signs = *signs;
    f->sums[SINCE]++;
}

void nb_causal_gather(struct nb_causal *f, size_t width, const uint32_t *raw)
{
    int32_t value[NB_PICKS];
    int u;

    for (unsigned i = 0; i < f->positions; i++)
        value[i] = ordered(width, raw[i]);
    u = unit_of(f, width, value);
    if (u >= 0)
        f->weight_block[u].used = ++f->now;
    if (u < 0 || !note_change(f, &f->weight_block[u], value))
        return;
    if (f->sums[SINCE])
        next_step(f);
    confront(f, (unsigned)u);
}

/* ---- answers ----------------------------------------------------------------------------------------- */

int nb_causal_proved(const struct nb_causal *f, uint64_t key)
{
    const struct key *k = find_key(f, key);

    return k && k->proved;
}

int nb_causal_clear(const struct nb_causal *f, uint64_t key)
{
    const struct key *k = find_key(f, key);

    return k && is_clear_key(k);
}

int nb_causal_shared(const struct nb_causal *f, uint64_t key)
{
    const struct key *k = find_key(f, key);

    return k && k->of.stray > STRAY_MOST;
}

int nb_causal_certain(const struct nb_causal *f, uint64_t guess)
{
    const struct key *k = find_key(f, guess);

    return k && k->of.moved == k->of.owner && k->of.in_a_row >= CERTAIN_AFTER;
}

unsigned nb_causal_weight_blocks(const struct nb_causal *f)
{
    unsigned n = 0;

    for (unsigned u = 0; u < f->weight_blocks; u++)
        n += f->weight_block[u].changes >= 2;
    return n;
}

struct nb_causal_state nb_causal_state(const struct nb_causal *f, uint64_t key)
{
    const struct key *k = find_key(f, key);
    const struct pair *p;

    if (!k || k->best < 0)
        return (struct nb_causal_state){.weight_block = -1};
    p = &k->pair[k->best];
    return (struct nb_causal_state){k->best, in_deviations(p->z, p), in_deviations(p->d, p), p->met};
}

float nb_causal_explained(const struct nb_causal *f)
{
    return f->explained;
}
