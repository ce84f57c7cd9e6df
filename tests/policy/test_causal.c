/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does a sum move the weights (policy/recognise/causal.c)? The test measures proofs on shards that optimizers
 * train, and requires that sums in the same places which move no weights stay unproved. It also tests the
 * positions at which the module samples both.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "optimizer.h"
#include "policy/recognise/internal.h"
#include "tests/suite.h"
#include "trace.h"

#define UNITS 4u
#define FOREIGN 0x1000u /* keys: the job's own are place + 1, a sum beside it adds this */

/* ---- positions --------------------------------------------------------------------------------------- */

START_TEST(test_positions)
{
    static const uint64_t lengths[] = {512, 513, 1000, 65537, 300000, 1048576, 2000003};

    ck_assert_uint_eq(nb_picks_of(511), 0);
    ck_assert_uint_eq(nb_picks_of(512), 256);
    ck_assert_uint_eq(nb_picks_of(1024), 512);
    ck_assert_uint_eq(nb_picks_of(16383), 512);
    ck_assert_uint_eq(nb_picks_of(16384), 1024);
    ck_assert_uint_eq(nb_picks_of(1 << 19), 2048);
    ck_assert_uint_eq(nb_picks_of((uint64_t)1 << 40), NB_PICKS);
    for (unsigned k = 0; k < sizeof(lengths) / sizeof(lengths[0]); k++) {
        uint64_t n = lengths[k], at = 0, seed = k;
        unsigned picks = nb_picks_of(n), got = 0, early = 0, above = 0;
        uint32_t *values = malloc(n * 4), whole[NB_PICKS], pieces[NB_PICKS];
        uint16_t *halves = malloc(n * 2);

        for (uint64_t i = 0; i < n; i++) {
            values[i] = (uint32_t)i;
            halves[i] = (uint16_t)(i * 7);
        }
        memset(whole, 0xff, sizeof(whole));
        memset(pieces, 0xff, sizeof(pieces));
        ck_assert_uint_eq(nb_pick(4, values, n, picks, 0, n, whole), picks);
        /* Each position comes once and stays the same, however the block is cut. */
        while (at < n) {
            uint64_t piece = 1 + rnd(&seed) % (n / 7);
            if (piece > n - at)
                piece = n - at;
            got += nb_pick(4, values + at, n, picks, at, piece, pieces);
            at += piece;
        }
        ck_assert_uint_eq(got, picks);
        ck_assert(memcmp(whole, pieces, picks * 4) == 0);
        /* Each part has one. The first eighth of the numbers is spread over all parts. */
        for (unsigned i = 0; i < picks; i++) {
            ck_assert_uint_lt(whole[i], n);
            above += whole[i] >= n / 2;
            early += i < picks / 8 && whole[i] >= n / 2;
        }
        ck_assert_uint_eq(above, picks / 2);
        ck_assert_uint_eq(early, picks / 16);
        /* Another width has the same positions. */
        ck_assert_uint_eq(nb_pick(2, halves, n, picks, 0, n, pieces), picks);
        for (unsigned i = 0; i < picks; i++)
            ck_assert_uint_eq(pieces[i], (uint16_t)(whole[i] * 7));
        free(values);
        free(halves);
    }
}
END_TEST

/* ---- jobs -------------------------------------------------------------------------------------------- */

/* Sums beside a job's gradients, in the same places. */
enum foreign {
    NOTHING,
    NOISE,      /* activations: new every time */
    RESIDUAL,   /* activations of the residual stream: a large part stays */
    PARAMETERS, /* the weights themselves, negated or not */
    NEGATED,
    SQUARES,  /* squares of the gradients */
    SHUFFLED, /* the gradients in another order */
    LATE,     /* the last step's change as sums: it explains the past */
};

struct job {
    enum optimizer optimizer;
    float rate, coherence;
    unsigned steps, drop; /* drop: percentage of steps in which a layer is left out */
    enum foreign foreign;
    int slots;       /* 1: the buffers' identity is known, 0: their place in the step stands for it */
    unsigned values; /* sampled values, 0: SHARD */
};

struct outcome {
    unsigned proved_at; /* first step in which all units' keys are proved, 0: never */
    unsigned foreign;   /* steps in which the foreign sum was proved */
    unsigned held;      /* steps after that first step in which all were still proved */
    unsigned wrong;     /* keys proved for another unit */
    float explained;
};

static void foreign_sum(enum foreign what, const struct shard *unit, const float *before, uint64_t *seed,
                        float *out)
{
    static float stream[SHARD];

    for (unsigned i = 0; i < SHARD; i++) {
        stream[i] = 0.98f * stream[i] + 0.2f * rnd_normal(seed);
        switch (what) {
        case NOISE: out[i] = rnd_normal(seed); break;
        case RESIDUAL: out[i] = stream[i] - 40.0f * unit->centre[i] + 0.5f * rnd_normal(seed); break;
        case PARAMETERS: out[i] = unit->master[i]; break;
        case NEGATED: out[i] = -unit->master[i]; break;
        case SQUARES: out[i] = unit->sum[i] * unit->sum[i]; break;
        case SHUFFLED: out[i] = unit->sum[(i * 5 + 17) % unit->values]; break;
        default: out[i] = -(unit->master[i] - before[i]); break;
        }
    }
}

/* The module under test, and the job's units. */
static struct nb_causal *f;
static struct shard s[UNITS];

static void setup(void)
{
    f = nb_causal_create(SHARD);
    ck_assert(f);
}

static void teardown(void)
{
    nb_causal_destroy(f);
}

static void open_units(unsigned units, enum optimizer optimizer)
{
    for (unsigned u = 0; u < units; u++)
        shard_open(&s[u], optimizer, 0.005f, SHARD, 40 + u);
}

/* Gather the weights of `units` units. */
static void gather(const struct shard *of, unsigned units)
{
    static uint32_t raw[SHARD];

    for (unsigned u = 0; u < units; u++) {
        shard_weights(&of[u], raw);
        nb_causal_gather(f, 2, raw);
    }
}

/* Names of keys and of predictions differ. */
static uint64_t prediction(uint64_t guess)
{
    return guess ? guess + 100000 : 0;
}

static void sum_of(uint64_t key, uint64_t guess, const float *values)
{
    const uint64_t names[NB_CAUSAL_NAMES] = {key, 0, prediction(guess)};
    const unsigned n = nb_causal_positions(f);
    static uint32_t raw[SHARD];
    struct nb_signs signs;

    shard_bits(values, n, raw);
    nb_signs_of(NB_F32, raw, n, &signs);
    nb_causal_sum(f, names, &signs);
}

static void sum(uint64_t key, const float *values)
{
    sum_of(key, 0, values);
}

static struct outcome play(const struct job *job, uint64_t seed)
{
    const unsigned values = job->values ? job->values : SHARD;
    static float before[SHARD], beside[SHARD];
    struct outcome o = {0};

    f = nb_causal_create(values);
    ck_assert(f);
    for (unsigned u = 0; u < UNITS; u++)
        shard_open(&s[u], job->optimizer, job->rate, values, seed * 100 + u);
    memcpy(before, s[0].master, sizeof(before));
    for (unsigned step = 1; step <= job->steps; step++) {
        unsigned all = 0;
        int dropped[UNITS];

        for (unsigned u = 0; u < UNITS; u++) { /* forward */
            gather(&s[u], 1);
            dropped[u] = rnd(&seed) % 100 < job->drop;
        }
        for (unsigned u = UNITS; u-- > 0;) { /* backward: gathered again, unchanged */
            gather(&s[u], 1);
            if (dropped[u])
                continue;
            shard_gradient(&s[u], job->coherence);
            sum(job->slots ? 1 + u : 1 + nb_causal_place(f), s[u].sum);
        }
        if (job->foreign != NOTHING) {
            foreign_sum(job->foreign, &s[0], before, &seed, beside);
            sum(FOREIGN, beside);
        }
        memcpy(before, s[0].master, sizeof(before));
        for (unsigned u = 0; u < UNITS; u++)
            if (!dropped[u])
                shard_step(&s[u]);
        for (unsigned u = 0; u < UNITS; u++) {
            struct nb_causal_state state = nb_causal_state(f, 1 + u);
            all += (unsigned)nb_causal_proved(f, 1 + u);
            if (nb_causal_proved(f, 1 + u) && job->slots)
                o.wrong += state.weight_block != (int)u;
        }
        if (all == UNITS && !o.proved_at)
            o.proved_at = step;
        o.held += o.proved_at && all == UNITS;
        o.foreign += (unsigned)nb_causal_proved(f, FOREIGN);
    }
    o.explained = nb_causal_explained(f);
    nb_causal_destroy(f);
    return o;
}

static const char *const name[OPT_COUNT] = {"AdamW", "SGD with momentum", "Lion", "Adafactor"};

START_TEST(test_power)
{
    static const struct {
        float rate, coherence;
        unsigned within;
    } at[] = {{0.05f, 0.02f, 20}, {0.005f, 0.02f, 20}, {0.0005f, 0.02f, 60}};

    for (int o = 0; o < OPT_COUNT; o++)
        for (unsigned r = 0; r < 3; r++)
            for (int slots = 0; slots < 2; slots++) {
                const struct job job = {.optimizer = (enum optimizer)o,
                                        .rate = at[r].rate,
                                        .coherence = at[r].coherence,
                                        .steps = 90,
                                        .slots = slots};
                struct outcome out = play(&job, (uint64_t)(1 + o * 10) + r);

                printf("  %-18s change %.4f: proved in step %u, held %u of %u, explained %.3f\n", name[o],
                       at[r].rate, out.proved_at, out.held, out.proved_at ? 91 - out.proved_at : 0,
                       out.explained);
                ck_assert(out.proved_at && out.proved_at <= at[r].within);
                ck_assert_uint_eq(out.held, 91 - out.proved_at);
                ck_assert_uint_eq(out.wrong, 0);
            }
}
END_TEST

/* Gradients that hardly differ from step to step, like an output layer's from scratch. Most of a change then
 * repeats the one before, and sign changes tell. */
START_TEST(test_persistent)
{
    const struct job job = {
        .optimizer = (enum optimizer)_i, .rate = 0.05f, .coherence = 0.95f, .steps = 100, .slots = 1};
    struct outcome out = play(&job, 21 + (uint64_t)_i);

    printf("  %-18s persistent: proved in step %u, held %u\n", name[_i], out.proved_at, out.held);
    ck_assert(out.proved_at && out.proved_at <= 12);
    ck_assert_uint_eq(out.wrong, 0);
}
END_TEST

/* An optimizer beside the next step: the weights follow one step late. Later the optimizer waits again. */
START_TEST(test_late)
{
    static float held[UNITS][SHARD];
    unsigned late_at = 0, prompt_at = 0;

    open_units(UNITS, (enum optimizer)_i);
    for (unsigned step = 1; step <= 200; step++) {
        unsigned all = 0;

        gather(s, UNITS);
        for (unsigned u = 0; u < UNITS; u++) {
            shard_gradient(&s[u], 0.02f);
            sum(1 + u, s[u].sum);
        }
        for (unsigned u = 0; u < UNITS; u++) {
            float now[SHARD];
            memcpy(now, s[u].sum, sizeof(now));
            if (step <= 60)
                memcpy(s[u].sum, held[u], sizeof(now));
            memcpy(held[u], now, sizeof(now));
            shard_step(&s[u]);
            all += (unsigned)nb_causal_proved(f, 1 + u);
        }
        if (all == UNITS && step <= 60 && !late_at)
            late_at = step;
        if (all == UNITS && step > 70)
            prompt_at = prompt_at ? prompt_at : step;
    }
    printf("  %-18s late: proved in step %u, in time again: in step %u\n", name[_i], late_at, prompt_at);
    ck_assert(late_at && late_at <= 20);
    ck_assert(prompt_at && prompt_at <= 160);
    for (unsigned u = 0; u < UNITS; u++)
        ck_assert_int_eq(nb_causal_state(f, 1 + u).weight_block, (int)u);
}
END_TEST

/* Sums move blocks that replace each other, as a sampler's latents do. The first one cannot be told from
 * weights. The next ones prove nothing until they live for long. A unit beside them stays proved. */
START_TEST(test_replaced)
{
    unsigned first = 0, later = 0, beside = 0;

    open_units(UNITS, OPT_ADAMW);
    for (unsigned step = 0; step < 80 + 2100; step++) {
        const unsigned now = step < 80 ? step / 40 : 2;

        gather(&s[now], 1);
        gather(&s[3], 1);
        shard_gradient(&s[now], 0.02f);
        shard_gradient(&s[3], 0.02f);
        sum(1, s[now].sum);
        sum(2, s[3].sum);
        shard_step(&s[now]);
        shard_step(&s[3]);
        first += (unsigned)(step >= 20 && step < 40 && nb_causal_proved(f, 1));
        later += (unsigned)(step >= 44 && step < 80 + 2040 && nb_causal_proved(f, 1));
        beside += (unsigned)(step >= 20 && nb_causal_proved(f, 2));
    }
    ck_assert_uint_eq(first, 20);
    ck_assert_uint_eq(later, 0);
    ck_assert_uint_eq(beside, 80 + 2100 - 20);
    ck_assert(nb_causal_proved(f, 1));
}
END_TEST

/* Layers are left out. Their places in the step are then useless, and their identity tells. */
START_TEST(test_layer_drop)
{
    const struct job job = {
        .optimizer = OPT_ADAMW, .rate = 0.005f, .coherence = 0.02f, .steps = 200, .drop = 10, .slots = 1};
    struct outcome out = play(&job, 3);

    ck_assert(out.proved_at && out.proved_at < 20);
    ck_assert_uint_eq(out.held, 201 - out.proved_at);
    ck_assert_uint_eq(out.wrong, 0);
    ck_assert(out.explained > 0.98f);
}
END_TEST

/* With NB_TEST_QUICK run one optimizer beside each kind of foreign sums, and another one beside the next
 * kind. */
static int is_left_out(int i)
{
    return getenv("NB_TEST_QUICK") && i % OPT_COUNT != i / OPT_COUNT % OPT_COUNT;
}

START_TEST(test_foreign)
{
    const struct job job = {.optimizer = (enum optimizer)(_i % OPT_COUNT),
                            .rate = 0.005f,
                            .coherence = 0.02f,
                            .steps = 400,
                            .foreign = (enum foreign)(NOISE + _i / OPT_COUNT),
                            .slots = 1};
    struct outcome out;

    if (is_left_out(_i))
        return;
    out = play(&job, 11 + (uint64_t)_i);
    ck_assert_msg(out.foreign == 0, "what moves no weights (%d beside %s) was proved in %u of 400 steps",
                  _i / OPT_COUNT, name[job.optimizer], out.foreign);
    ck_assert(out.proved_at && out.proved_at < 20);
    ck_assert(out.explained < 0.9f); /* one sum of five stays unexplained */
}
END_TEST

/* Rates so low that some four of 256 values change in a step. A single step proves no sum. All steps together
 * prove exactly the sums that move the weights, where an optimizer does not average over many steps. */
START_TEST(test_few)
{
    const struct job job = {.optimizer = (enum optimizer)(_i % OPT_COUNT),
                            .rate = 0.00008f,
                            .coherence = 0.1f,
                            .steps = 600,
                            .foreign = (enum foreign)(NOISE + _i / OPT_COUNT),
                            .slots = 1,
                            .values = 256};
    struct outcome out;

    if (is_left_out(_i))
        return;
    out = play(&job, 31 + (uint64_t)_i);
    printf("  %-18s few changes, beside %d: proved in step %u\n", name[job.optimizer], _i / OPT_COUNT,
           out.proved_at);
    ck_assert_msg(out.foreign == 0, "what moves no weights (%d beside %s) was proved in %u of 600 steps",
                  _i / OPT_COUNT, name[job.optimizer], out.foreign);
    if (job.optimizer >= OPT_LION) /* AdamW and SGD may need more than 600 */
        ck_assert(out.proved_at && out.proved_at < 60);
    ck_assert_uint_eq(out.wrong, 0);
}
END_TEST

/* The module compares a sum with the first change after it only, however often the weights change before the
 * next sum. Later changes have other causes, and would count the same evidence again. */
START_TEST(test_once)
{
    shard_open(s, OPT_SGD, 0.005f, SHARD, 41);
    for (unsigned step = 1; step <= 40; step++) {
        shard_gradient(s, 0.02f);
        sum(1, s->sum);
        for (unsigned again = 0; again < 5; again++) {
            shard_step(s);
            gather(s, 1);
        }
        ck_assert_uint_eq(nb_causal_state(f, 1).steps, step);
    }
}
END_TEST

/* The effect of a sum on the weights fades as gradients become noise, to a tenth of its first size. The proof
 * survives that. It ends when other sums come in its place. */
START_TEST(test_fading)
{
    static float seen[SHARD];
    unsigned doubted = 0, ended = 0;
    uint64_t seed = 4;

    open_units(1, OPT_ADAMW);
    for (unsigned step = 0; step < 400; step++) {
        const float noise = step < 30 ? 0.0f : step < 230 ? (float)(step - 30) / 25.0f : 8.0f;

        gather(s, 1);
        shard_gradient(s, 0.02f);
        for (unsigned i = 0; i < SHARD; i++)
            seen[i] = (step < 250 ? s->sum[i] : 0.0f) + noise * fabsf(s->sum[i]) * rnd_normal(&seed);
        sum(1, seen);
        shard_step(s);
        doubted += (unsigned)(step >= 20 && step < 250 && !nb_causal_proved(f, 1));
        if (step >= 250 && !ended && !nb_causal_proved(f, 1))
            ended = step;
    }
    printf("  fading: other sums in its place are noticed after %u steps\n", ended - 250);
    ck_assert_uint_eq(doubted, 0);
    ck_assert(ended && ended < 400);
}
END_TEST

/* With momentum, weights go on against a gradient that has turned round. They turn towards it all the same,
 * by its own effect. A certain key therefore stays certain. */
START_TEST(test_turned)
{
    static float last[SHARD];

    open_units(2, OPT_ADAMW);
    for (unsigned step = 0; step < 60; step++) {
        gather(s, 2);
        ck_assert(step < 20 || (nb_causal_certain(f, prediction(1)) && nb_causal_certain(f, prediction(2))));
        for (unsigned u = 0; u < 2; u++) {
            memcpy(last, s[u].sum, sizeof(last));
            shard_gradient(&s[u], 0.02f);
            for (unsigned i = 0; step % 10 == 9 && i < SHARD; i++)
                s[u].sum[i] = -3.0f * last[i];
            sum_of(1 + u, 1 + u, s[u].sum);
            shard_step(&s[u]);
        }
    }
}
END_TEST

/* The module doubts a key that passes to another unit, and proves it again for that unit. It forgets a key
 * whose sums end. */
START_TEST(test_doubt)
{
    unsigned doubted = 0, again = 0;

    open_units(2, OPT_ADAMW);
    for (unsigned step = 0; step < 400; step++) {
        int swapped = step >= 60;
        gather(s, 2);
        for (unsigned u = 0; u < 2; u++) {
            shard_gradient(&s[u], 0.02f);
            sum(1 + (swapped ? 1 - u : u), s[u].sum);
            if (step < 200)
                shard_step(&s[u]); /* from here on they move no weights */
        }
        if (step == 59) {
            ck_assert(nb_causal_proved(f, 1) && nb_causal_state(f, 1).weight_block == 0);
            ck_assert(nb_causal_proved(f, 2) && nb_causal_state(f, 2).weight_block == 1);
        }
        if (swapped && !doubted && !nb_causal_proved(f, 1))
            doubted = step;
        if (doubted && !again && nb_causal_proved(f, 1))
            again = step;
    }
    ck_assert(doubted && doubted < 70);
    ck_assert(again && again < 100);
    /* with 200 steps more than it needs, and constant weights */
    for (unsigned i = 0; i < 100; i++)
        sum(1, s[0].sum);
    ck_assert(!nb_causal_proved(f, 1));
    ck_assert_uint_eq(nb_causal_weight_blocks(f), 2);
}
END_TEST

/* A proof that is some steps old ends as soon as an old proof does, say when the number of a slot passes to
 * another buffer. */
START_TEST(test_young_doubt)
{
    static float noise[SHARD];
    uint64_t seed = 3;

    open_units(1, OPT_ADAMW);
    for (unsigned step = 0; step < 28; step++) {
        gather(s, 1);
        shard_gradient(s, 0.02f);
        for (unsigned i = 0; i < SHARD; i++)
            noise[i] = rnd_normal(&seed);
        sum(1, step < 16 ? s->sum : noise);
        shard_step(s);
        ck_assert(step != 15 || nb_causal_proved(f, 1));
    }
    ck_assert(!nb_causal_proved(f, 1));
}
END_TEST

/* The module detects a key that stands for two buffers in turn, and always trusts a key that stays with its
 * unit. A key that passes to another unit for good is in doubt for some steps. */
START_TEST(test_shared)
{
    unsigned shared = 0, wrongly = 0, moved = 0;

    open_units(3, OPT_ADAMW);
    for (unsigned step = 0; step < 120; step++) {
        gather(s, 3);
        for (unsigned u = 0; u < 3; u++) { /* 1 and 2 share a key until step 60 */
            shard_gradient(&s[u], 0.02f);
            sum(u == 0 ? 1 : step < 60 ? 2 : u == 1 ? 2 : 3, s[u].sum);
            shard_step(&s[u]);
        }
        wrongly += (unsigned)nb_causal_shared(f, 1);
        shared += (unsigned)(step >= 20 && step < 60 && nb_causal_shared(f, 2));
        moved += (unsigned)(step >= 80 && (nb_causal_shared(f, 2) || nb_causal_shared(f, 3)));
    }
    ck_assert_uint_eq(wrongly, 0);
    ck_assert_uint_eq(shared, 40);
    ck_assert_uint_eq(moved, 0);
}
END_TEST

/* A prediction that comes true is certain after some steps. A wrong prediction never is. A prediction loses
 * its certainty when its sums move no weights, or move another unit even once. */
START_TEST(test_certain)
{
    static float noise[SHARD];
    unsigned early = 0, late = 0, wrongly = 0, once = 0;
    uint64_t seed = 9;

    open_units(3, OPT_ADAMW);
    for (unsigned step = 0; step < 120; step++) {
        gather(s, 3);
        for (unsigned i = 0; i < SHARD; i++)
            noise[i] = rnd_normal(&seed);
        for (unsigned u = 0; u < 3; u++)
            shard_gradient(&s[u], 0.02f);
        sum_of(1, 1, step == 60 ? s[1].sum : s[0].sum);
        sum_of(2, 2 + step % 2,
               step == 60 ? s[0].sum : s[1].sum);         /* two predictions in turn, both of one unit, */
        sum_of(3, step % 2 ? 2 : 3 + step % 4, s[2].sum); /* and of another unit */
        sum_of(4, 4, noise);
        if (step % 2) /* half of them move no weights */
            sum_of(5, 5, noise);
        for (unsigned u = 0; u < 3; u++)
            shard_step(&s[u]);
        early += (unsigned)(step < 8 && nb_causal_certain(f, prediction(1)));
        late += (unsigned)(step >= 20 && step < 60 && nb_causal_certain(f, prediction(1)));
        once += (unsigned)(step > 60 && step < 68 && nb_causal_certain(f, prediction(1)));
        wrongly += (unsigned)(nb_causal_certain(f, prediction(2)) || nb_causal_certain(f, prediction(3)) ||
                              nb_causal_certain(f, prediction(5)) ||
                              (step > 60 && nb_causal_certain(f, prediction(4))));
    }
    ck_assert_uint_eq(early, 0);
    ck_assert_uint_eq(late, 40);
    ck_assert_uint_eq(once, 0);
    ck_assert_uint_eq(wrongly, 0);
    ck_assert(nb_causal_certain(f, prediction(1)) && !nb_causal_certain(f, prediction(0)));
}
END_TEST

/* Decide on a sum of the key, as classification does, and deliver it. */
static unsigned repeated_sum(uint64_t key, const float *value)
{
    const int repeats = nb_causal_repeats(f, key, 1);

    sum(key, value);
    return repeats != 0;
}

/* The module detects a key of which several sums come between two changes of its weights, and forgets it
 * later. One sum a step is none. */
START_TEST(test_repeats)
{
    static float noise[SHARD];
    unsigned found = 0, wrongly = 0, later = 0;
    uint64_t seed = 5;

    open_units(2, (enum optimizer)_i);
    for (unsigned step = 0; step < 200; step++) {
        gather(s, 2);
        for (unsigned u = 0; u < 2; u++)
            shard_gradient(&s[u], 0.02f);
        for (unsigned i = 0; i < SHARD; i++)
            noise[i] = rnd_normal(&seed);
        wrongly += repeated_sum(2, s[1].sum);
        if (step < 100) {
            found += repeated_sum(1, s[0].sum) && step >= 20; /* by the step before */
            found += repeated_sum(1, noise) && step >= 20;
        } else {
            later += repeated_sum(1, s[0].sum) && step >= 180;
        }
        for (unsigned u = 0; u < 2; u++)
            shard_step(&s[u]);
        if (step == 99) /* the proof of the key does not explain its sums */
            ck_assert_msg(nb_causal_explained(f) < 0.9, "%.3f of the sums are explained",
                          nb_causal_explained(f));
    }
    ck_assert(nb_causal_proved(f, 1) && nb_causal_proved(f, 2));
    ck_assert_uint_eq(found, 160);
    ck_assert_uint_eq(wrongly, 0);
    ck_assert_uint_eq(later, 0);
}
END_TEST

static void gather_any(uint64_t seed)
{
    static uint32_t raw[SHARD];

    for (unsigned i = 0; i < SHARD; i++)
        raw[i] = (uint32_t)rnd(&seed) & 0xffff;
    nb_causal_gather(f, 2, raw);
}

/* Gathers of a block end, and another block gets its number. The proof for the old block does not pass to the
 * new one. */
START_TEST(test_stale)
{
    open_units(2, OPT_ADAMW);
    for (unsigned step = 0; step < 20; step++) {
        gather(&s[0], 1);
        shard_gradient(&s[0], 0.02f);
        sum_of(1, 1, s[0].sum);
        shard_step(&s[0]);
    }
    ck_assert(nb_causal_proved(f, 1) && nb_causal_certain(f, prediction(1)));
    for (unsigned i = 0; i < 5000; i++)
        gather_any(1000 + i % (NB_CAUSAL_WEIGHT_BLOCKS - 1));
    ck_assert(nb_causal_certain(f, prediction(1))); /* the block may come back */
    gather(&s[1], 1);
    ck_assert(!nb_causal_proved(f, 1) && !nb_causal_certain(f, prediction(1)));
}
END_TEST

/* More keys and units than the tables hold: the oldest make room, and no key is proved by mistake. */
START_TEST(test_many)
{
    static float values[SHARD];
    static uint32_t raw[SHARD];
    uint64_t seed = 9;

    f = nb_causal_create(256);
    ck_assert(f);
    for (unsigned round = 0; round < 6000; round++) {
        for (unsigned i = 0; i < 256; i++) {
            raw[i] = (uint32_t)rnd(&seed) & 0xffff;
            values[i] = rnd_normal(&seed);
        }
        nb_causal_gather(f, 2, raw);
        sum(1 + round, values);
        ck_assert(!nb_causal_proved(f, 1 + round));
    }
    nb_causal_destroy(f);
}
END_TEST

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    return SUITE("causal", TEST(test_positions), TEST(test_power), LOOP(test_persistent, 0, OPT_COUNT),
                 TEST(test_layer_drop), LOOP(test_foreign, 0, (LATE - NOISE + 1) * OPT_COUNT),
                 LOOP(test_few, 0, (LATE - NOISE + 1) * OPT_COUNT), TEST(test_many), FIXTURE(setup, teardown),
                 TEST(test_once), TEST(test_fading), TEST(test_turned), TEST(test_doubt),
                 TEST(test_young_doubt), TEST(test_shared), TEST(test_certain), TEST(test_stale),
                 LOOP(test_repeats, 0, OPT_COUNT), LOOP(test_late, 0, OPT_COUNT), TEST(test_replaced));
}
