/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recognize gradients: positive evidence on the traces of all frameworks, and a list of sums and gathers that
 * must never count as gradients.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec/pick.h"
#include "optimizer.h"
#include "policy/recognise/recognise.h"
#include "tests/suite.h"
#include "trace.h"

#define WARMUP 50u
#define SAMPLES 256u
#define RANKS 4096u /* so many that blocks are short */

static struct nb_class_op eight_ranks(enum nb_func func, ncclDataType_t type, size_t count, uint64_t at)
{
    return (struct nb_class_op){
        .comm = 1, .nranks = 8, .func = func, .type = type, .op = ncclSum, .count = count, .send = at};
}

static struct nb_classify *create(const char *rules)
{
    static struct nb_grad_rules parsed;
    struct nb_classify_config config = {.warmup_steps = WARMUP, .rules = &parsed};
    struct nb_classify *c;
    char error[256];

    ck_assert_int_eq(nb_grad_rules_parse(rules, &parsed, error, sizeof(error)), 0);
    c = nb_classify_create(&config);
    ck_assert_ptr_nonnull(c);
    return c;
}

static struct nb_class_op op_of(const struct event *e)
{
    return (struct nb_class_op){
        .comm = e->call.comm,
        .nranks = e->call.comm == 1 ? 8 : RANKS, /* 8 inside a node */
        .func = e->call.func,
        .type = e->call.type,
        .op = ncclSum,
        .count = e->call.count,
        .send = e->call.send,
        .caller = e->call.bucket ? NB_CALLER_BUCKET : NB_CALLER_UNKNOWN,
        .buffer = e->call.func == NB_FUNC_REDUCE_SCATTER ? e->truth + 1 : 0 /* as identity would say */
    };
}

/* The sampled values of the shards of a job's units. Sums move them. */
struct units {
    struct shard *shard[256];
    float *sum[256]; /* since the last step */
    uint64_t version[256];
};

static struct shard *shard_of(struct units *u, const struct event *e)
{
    const unsigned k = e->truth % 256;

    if (!u->shard[k]) {
        u->shard[k] = malloc(sizeof(**u->shard));
        u->sum[k] = calloc(SHARD, sizeof(**u->sum));
        ck_assert(u->shard[k] && u->sum[k]);
        shard_open(u->shard[k], OPT_ADAMW, 0.005f, nb_picks_of(e->call.count / RANKS), e->truth + 1);
        u->version[k] = e->version;
    }
    return u->shard[k];
}

static void tell_sum(struct nb_classify *c, struct units *u, const struct event *e,
                     const struct nb_class_op *op, const uint64_t *key)
{
    static uint32_t raw[SHARD];
    static float wide[SHARD];
    struct shard *s = shard_of(u, e);

    shard_gradient(s, 0.05f);
    if (e->content != C_GRADIENT)
        for (unsigned i = 0; i < s->values; i++)
            s->sum[i] = rnd_normal(&s->seed);
    for (unsigned i = 0; i < s->values; i++) {
        wide[i] = s->sum[i];
        u->sum[e->truth % 256][i] += s->sum[i];
    }
    shard_bits(wide, s->values, raw);
    for (unsigned i = 0; i < s->values && op->type == ncclBfloat16; i++)
        raw[i] >>= 16;
    nb_classify_sum(c, op, key, raw, s->values);
}

static void tell_weights(struct nb_classify *c, struct units *u, const struct event *e,
                         const struct nb_class_op *op)
{
    const uint64_t bytes = op->count / RANKS * (op->type == ncclFloat32 ? 4 : 2);
    static uint32_t raw[SHARD];
    struct shard *s;
    size_t width;

    if (!nb_classify_shard(c, op->comm, op->type, bytes, &width) || e->content != C_WEIGHTS)
        return;
    s = shard_of(u, e);
    if (u->version[e->truth % 256] != e->version) {
        memcpy(s->sum, u->sum[e->truth % 256], s->values * sizeof(float));
        memset(u->sum[e->truth % 256], 0, s->values * sizeof(float));
        shard_step(s);
        u->version[e->truth % 256] = e->version;
    }
    shard_weights(s, raw);
    nb_classify_weights(c, op->comm, op->type, bytes, raw);
}

static void close_units(struct units *u)
{
    for (unsigned k = 0; k < 256; k++) {
        free(u->shard[k]);
        free(u->sum[k]);
    }
}

struct result {
    uint64_t gradients,
        coded;      /* after step 100: operations on gradients, and how many of them may be quantized */
    uint64_t wrong; /* other operations that may be quantized, ever */
    uint64_t early; /* operations that may be quantized before the warm-up is over */
    enum nb_class_reason reason;
};

static struct result play(struct nb_classify *c, const struct trace *t)
{
    struct units units = {{0}, {0}, {0}};
    struct result r = {0};
    float samples[SAMPLES];

    for (size_t i = 0; i < t->n; i++) {
        const struct event *e = &t->event[i];
        struct nb_class_op op = op_of(e);
        struct nb_class_decision d;
        int coded;

        if (!e->call.passes)
            continue;
        op.linked = i && e[-1].call.func == NB_FUNC_REDUCE_SCATTER && e[-1].call.recv == e->call.send;
        op.passes = (uint64_t)e->step + 1; /* as identity tells passes apart */
        model_samples(e, i, samples, SAMPLES);
        if (e->call.func == NB_FUNC_ALL_GATHER) {
            nb_classify_gather(c, &op, samples, SAMPLES);
            tell_weights(c, &units, e, &op);
            continue;
        }
        d = nb_classify_reduce(c, &op, samples, SAMPLES);
        if (op.func == NB_FUNC_REDUCE_SCATTER && d.key[0])
            tell_sum(c, &units, e, &op, d.key);
        coded = d.kind == NB_CLASS_GRADIENT && !d.warmup;
        if (e->content != C_GRADIENT) {
            r.wrong += (uint64_t)(coded && op.count >= 1024);
            continue;
        }
        r.early += (uint64_t)(coded && e->step < WARMUP - 4);
        if (e->step < 100)
            continue;
        r.gradients++;
        r.coded += (uint64_t)coded;
        r.reason = coded ? d.reason : r.reason;
    }
    close_units(&units);
    return r;
}

START_TEST(test_frameworks)
{
    static const enum nb_class_reason expected[F_COUNT] = {
        [F_DDP] = NB_WHY_BUCKET,
        [F_FSDP1] = NB_WHY_MOVES,
        [F_FSDP2] = NB_WHY_MOVES,
        [F_FSDP2_KEEP] = NB_WHY_MOVES,
        [F_HSDP] = NB_WHY_AFTER_RS,
        [F_MEGATRON] = NB_WHY_MOVES,
        [F_MEGATRON_OVERLAP] = NB_WHY_MOVES,
        [F_MEGATRON_PIPELINE] = NB_WHY_MOVES,
        [F_ZERO1] = NB_WHY_SUM,
        [F_ZERO2] = NB_WHY_SUM,
        [F_ZERO3] = NB_WHY_SUM,
    };
    static const unsigned variants[] = {0, V_EVAL | V_CHECKPOINT, V_ACCUMULATE, V_DROP | V_EVAL};

    for (int f = 0; f < F_OUTER; f++)
        for (unsigned v = 0; v < 4; v++) {
            struct nb_classify *c = create("");
            struct trace t;
            struct result r;

            trace_make(&t, (enum framework)f, variants[v], 24, 180, 5);
            r = play(c, &t);
            free(t.event);
            nb_classify_destroy(c);
            printf("  %-18s variant %2u: coded %5.1f %%, early %llu, wrong %llu: %s\n",
                   framework_name((enum framework)f), variants[v],
                   100.0 * (double)r.coded / (double)r.gradients, (unsigned long long)r.early,
                   (unsigned long long)r.wrong, nb_class_reason_text(r.reason));
            ck_assert_uint_eq(r.wrong, 0);
            /* HSDP's network sees no weights. Its steps are passes, so micro-batches shorten the warm-up. */
            if (f != F_HSDP || variants[v] != V_ACCUMULATE)
                ck_assert_uint_eq(r.early, 0);
            ck_assert_uint_gt(r.gradients, 0);
            ck_assert((double)r.coded >= 0.9 * (double)r.gradients);
            ck_assert_int_eq(r.reason, expected[f]);
        }
}
END_TEST

/* ---- never --------------------------------------------------------------------------------------------- */

/* A signature whose operations come `per_step` times a step for 300 steps, beside DDP with two buckets. */
struct other {
    const char *what;
    enum nb_func func;
    ncclDataType_t type;
    uint64_t count;
    int stable; /* 1: the same address every time */
    unsigned per_step, every;
    float drift; /* content: fixed + drift x step + noise x random */
    float noise;
    int gathered; /* also gathered, with the same content, which is unlike weights, as activations are */
};

static const struct other others[] = {
    {"average of the parameters, every 4 steps", NB_FUNC_ALL_REDUCE, ncclFloat32, 50000000, 1, 1, 4, 0.001f,
     0, 0},
    {"average of the parameters, every step", NB_FUNC_ALL_REDUCE, ncclFloat32, 50000000, 1, 1, 1, 0.001f, 0,
     0},
    {"average of the parameters from fresh memory", NB_FUNC_ALL_REDUCE, ncclBfloat16, 50000000, 0, 1, 1,
     0.001f, 0, 0},
    {"tied embeddings at the start", NB_FUNC_ALL_REDUCE, ncclBfloat16, 30000000, 1, 1, 1000, 0, 0, 0},
    {"moving average of a codebook", NB_FUNC_ALL_REDUCE, ncclFloat32, 1000000, 1, 1, 1, 0, 0.01f, 0},
    {"sums of a batch by code, much alike", NB_FUNC_ALL_REDUCE, ncclFloat32, 1000000, 1, 1, 1, 0, 0.2f, 0},
    {"covariances that accumulate", NB_FUNC_ALL_REDUCE, ncclFloat32, 4194304, 1, 1, 2, 0.002f, 0.001f, 0},
    {"gradients of keys and values, context parallel", NB_FUNC_REDUCE_SCATTER, ncclBfloat16, 8388608, 1, 8, 1,
     0, 1, 1},
    {"activations, sequence parallel", NB_FUNC_REDUCE_SCATTER, ncclBfloat16, 16777216, 1, 16, 1, 0, 1, 2},
    {"activations, tensor parallel", NB_FUNC_ALL_REDUCE, ncclBfloat16, 16777216, 1, 16, 1, 0, 1, 0},
    {"optimizer state that is summed", NB_FUNC_REDUCE_SCATTER, ncclFloat32, 12000000, 1, 1, 1, 0.0005f,
     0.001f, 0},
    {"logits of an evaluation", NB_FUNC_REDUCE_SCATTER, ncclFloat32, 3000000, 0, 4, 10, 0, 1, 1},
};

static void content(const struct other *o, unsigned step, uint64_t seed, float *out)
{
    uint64_t fixed = 1234, turn = 99;

    for (unsigned i = 0; i < SAMPLES; i++)
        out[i] = (o->drift > 0 || o->noise < 1 ? rnd_normal(&fixed) : 0) +
                 o->drift * (float)step * rnd_normal(&turn) + o->noise * rnd_normal(&seed);
}

START_TEST(test_never)
{
    const struct other *o = &others[_i];
    struct nb_classify *c = create("");
    uint64_t fresh = 0x1000000, seed = 7;
    float samples[SAMPLES];
    int last = -1;

    for (unsigned step = 0; step < 300; step++) {
        /* The job's own gradients come in other places: DDP. */
        for (unsigned b = 0; b < 2; b++) {
            struct nb_class_op ddp = {.comm = 9,
                                      .nranks = 16,
                                      .func = NB_FUNC_ALL_REDUCE,
                                      .type = ncclFloat32,
                                      .op = ncclSum,
                                      .count = 5000000 + b,
                                      .send = 0x100 + b,
                                      .caller = NB_CALLER_BUCKET};
            for (unsigned i = 0; i < SAMPLES; i++)
                samples[i] = rnd_normal(&seed);
            last = (int)nb_classify_reduce(c, &ddp, samples, SAMPLES).kind;
        }
        for (unsigned k = 0; step % o->every == 0 && k < o->per_step; k++) {
            struct nb_class_op op = {
                .comm = 3, .nranks = 16, .func = o->func, .type = o->type, .op = ncclSum, .count = o->count};
            struct nb_class_decision d;

            op.send = o->stable ? 0x5000 : (fresh += 0x1000);
            content(o, step, seed += 3, samples);
            if (o->gathered) {
                struct nb_class_op gather = op;
                gather.func = NB_FUNC_ALL_GATHER;
                /* 2: gathered again at recomputation, with exactly the same content */
                for (int i = 0; i < o->gathered; i++) {
                    nb_classify_gather(c, &gather, samples, SAMPLES);
                }
            }
            d = nb_classify_reduce(c, &op, samples, SAMPLES);
            ck_assert_msg(d.kind != NB_CLASS_GRADIENT, "%s: taken for a gradient in step %u: %s", o->what,
                          step, nb_class_reason_text(d.reason));
        }
    }
    ck_assert_int_eq(last, NB_CLASS_GRADIENT); /* the job's own gradients were recognized beside it */
    nb_classify_destroy(c);
}
END_TEST

/* All-reduce the result of a reduce-scatter, as HSDP does. That is the evidence which its values may
 * contradict. */
static struct nb_class_decision sum_of_result(struct nb_classify *c, const struct nb_class_op *op,
                                              const float *samples)
{
    struct nb_class_op result = *op;

    result.linked = 1;
    return nb_classify_reduce(c, &result, samples, SAMPLES);
}

/* Sums that change in every step and come from the places of gradients. Their values show that they are
 * none. */
static const struct {
    const char *what;
    ncclDataType_t type;
    int integer, one_sign;
    enum nb_class_reason reason;
} vetoed[] = {
    {"gradients", ncclFloat32, 0, 0, NB_WHY_AFTER_RS},
    {"squares", ncclFloat32, 0, 1, NB_WHY_ONE_SIGN},
    {"counts with signs", ncclFloat32, 1, 0, NB_WHY_INTEGERS},
    {"a histogram", ncclBfloat16, 1, 1, NB_WHY_ONE_SIGN},
    {"gradients of a large scale, in a type that has only integers there", ncclBfloat16, 2, 0,
     NB_WHY_AFTER_RS},
};

static void make_vetoed(int row, uint64_t *seed, float samples[SAMPLES])
{
    for (unsigned i = 0; i < SAMPLES; i++) {
        float v = rnd_normal(seed);
        v = vetoed[row].one_sign ? fabsf(v) : v;
        samples[i] = vetoed[row].integer == 2   ? roundf(v * 1024.0f) * 8.0f
                     : vetoed[row].integer == 1 ? roundf(v * 3.0f)
                                                : v;
    }
}

START_TEST(test_vetoed)
{
    struct nb_classify *c = create("");
    struct nb_class_op a = eight_ranks(NB_FUNC_ALL_REDUCE, vetoed[_i].type, 1000000, 0x1000);
    struct nb_class_decision d = {0};
    float samples[SAMPLES];
    uint64_t seed = 3;

    for (unsigned step = 0; step < 100; step++) {
        make_vetoed(_i, &seed, samples);
        d = sum_of_result(c, &a, samples);
    }
    ck_assert_msg(d.reason == vetoed[_i].reason, "%s: %s", vetoed[_i].what, nb_class_reason_text(d.reason));
    ck_assert_int_eq(d.kind, d.reason == NB_WHY_AFTER_RS ? NB_CLASS_GRADIENT : NB_CLASS_OTHER);
    nb_classify_destroy(c);
}
END_TEST

/* One such sum among gradients is raw, and the gradients after it are not. Few values prove nothing. */
START_TEST(test_vetoed_once)
{
    static const struct {
        unsigned values; /* other than 0 */
        int raw[3];      /* squares, counts with signs, a histogram of BF16 */
    } sums[] = {{SAMPLES, {1, 1, 1}}, {32, {1, 1, 1}}, {31, {0, 1, 1}}, {10, {0, 0, 0}}, {0, {0, 0, 0}}};

    for (int row = 1; row <= 3; row++) {
        struct nb_classify *c = create("");
        struct nb_class_op a = eight_ranks(NB_FUNC_ALL_REDUCE, vetoed[row].type, 1000000, 0x1000);
        float samples[SAMPLES];
        uint64_t seed = 3;
        for (unsigned step = 0; step < 100; step++) {
            make_vetoed(0, &seed, samples);
            sum_of_result(c, &a, samples);
        }
        for (unsigned k = 0; k < sizeof(sums) / sizeof(sums[0]); k++) {
            unsigned values = 0;
            make_vetoed(row, &seed, samples);
            for (unsigned i = 0; i < SAMPLES; i++) {
                samples[i] = values < sums[k].values ? samples[i] : 0.0f;
                values += samples[i] != 0.0f;
            }
            ck_assert_int_eq(sum_of_result(c, &a, samples).kind != NB_CLASS_GRADIENT, sums[k].raw[row - 1]);
            make_vetoed(0, &seed, samples);
            ck_assert_int_eq(sum_of_result(c, &a, samples).kind, NB_CLASS_GRADIENT);
        }
        nb_classify_destroy(c);
    }
}
END_TEST

/* The module revokes a gradient at once when its content begins to repeat, and forgives it long after that
 * ended. */
START_TEST(test_revoked)
{
    struct nb_classify *c = create("");
    struct nb_class_op a = eight_ranks(NB_FUNC_ALL_REDUCE, ncclFloat32, 1000000, 0x1000);
    struct nb_class_decision d = {0};
    float samples[SAMPLES], steady[SAMPLES];
    uint64_t seed = 3;
    char text[512];

    for (unsigned i = 0; i < SAMPLES; i++)
        steady[i] = rnd_normal(&seed);
    for (unsigned step = 0; step < 400; step++) {
        int repeats = step == 100 || step == 101;
        for (unsigned i = 0; i < SAMPLES; i++)
            samples[i] = repeats ? steady[i] * (1.0f + 1e-3f * (float)(step % 2)) : rnd_normal(&seed);
        d = sum_of_result(c, &a, samples);
        if (step < 49)
            ck_assert_int_eq(d.kind, NB_CLASS_UNKNOWN);
        if (step == 60 || step == 99 || step == 100 || step == 399)
            ck_assert_int_eq(d.kind, NB_CLASS_GRADIENT);
        if (step == 101) {
            ck_assert_int_eq(d.kind, NB_CLASS_OTHER);
            ck_assert_int_eq(d.reason, NB_WHY_STEADY);
            ck_assert_int_eq(d.changed, 1);
        }
        if (step == 150)
            ck_assert_int_eq(d.kind, NB_CLASS_OTHER);
    }
    nb_classify_text(&a, &d, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "NIBBLE_GRAD=!all_reduce:float32:1000000@8"));
    nb_classify_forget(c, 1);
    ck_assert_int_eq(nb_classify_reduce(c, &a, samples, SAMPLES).reason, NB_WHY_YOUNG);
    nb_classify_destroy(c);
}
END_TEST

/* The framework's word decides whatever the content, from the end of the warm-up on. NIBBLE_GRAD decides
 * before it. Calls without a word are other sums, and need evidence. */
START_TEST(test_framework_says)
{
    for (int rule = 0; rule < 3; rule++) {
        struct nb_classify *c = create(rule == 0   ? ""
                                       : rule == 1 ? "!reduce_scatter:float32:1000000@8"
                                                   : "reduce_scatter:float32:1000000@8");
        struct nb_class_op op = eight_ranks(NB_FUNC_REDUCE_SCATTER, ncclFloat32, 1000000, 0x1000);
        struct nb_class_decision d;
        float samples[SAMPLES];

        for (unsigned i = 0; i < SAMPLES; i++)
            samples[i] = (float)i;
        for (unsigned step = 0; step < 20 * WARMUP; step++)
            for (int k = 0; k < 3; k++) {
                op.caller = k == 0   ? NB_CALLER_SAYS_GRADIENT
                            : k == 1 ? NB_CALLER_SAYS_EXACT
                                     : NB_CALLER_UNKNOWN;
                d = nb_classify_reduce(c, &op, samples, SAMPLES);
                ck_assert_int_eq(d.kind == NB_CLASS_GRADIENT, rule == 2 || (rule == 0 && k == 0));
                if (!rule && k < 2)
                    ck_assert_int_eq(d.reason, k ? NB_WHY_SAID_NO : NB_WHY_SAID_YES);
                if (step == 0)
                    ck_assert_int_eq(d.warmup, d.kind == NB_CLASS_GRADIENT);
                else if (step == 20 * WARMUP - 1)
                    ck_assert_int_eq(d.warmup, 0);
            }
        nb_classify_destroy(c);
    }
}
END_TEST

/* One type, one size, one communicator, fixed buffers once a step. The sums of DDP's reducer are gradients,
 * however they look. Other callers' sums are not, however they look. The log does not report at each call
 * that the last buffer came from another caller. */
START_TEST(test_caller)
{
    static const enum nb_caller callers[] = {NB_CALLER_UNKNOWN, NB_CALLER_BUCKET, NB_CALLER_HOOK};
    struct nb_classify *c = create("");
    struct nb_class_op op = eight_ranks(NB_FUNC_ALL_REDUCE, ncclFloat32, 1000000, 0);
    unsigned told[NB_WHY_COUNT] = {0};
    float samples[SAMPLES];
    uint64_t seed = 3;
    char text[512];

    for (unsigned step = 0; step < 120; step++)
        for (unsigned k = 0; k < sizeof(callers) / sizeof(callers[0]); k++) {
            struct nb_class_decision d;
            for (unsigned i = 0; i < SAMPLES; i++)
                samples[i] = callers[k] == NB_CALLER_BUCKET ? (float)i - 99.5f : rnd_normal(&seed);
            op.send = 0x1000 * (k + 1);
            op.caller = callers[k];
            d = nb_classify_reduce(c, &op, samples, SAMPLES);
            ck_assert_int_eq(d.kind == NB_CLASS_GRADIENT, callers[k] == NB_CALLER_BUCKET);
            told[d.reason] += d.changed != 0;
            if (callers[k] == NB_CALLER_BUCKET) {
                ck_assert_int_eq(d.reason, NB_WHY_BUCKET);
                ck_assert_int_eq(d.warmup, step < WARMUP);
            } else if (step > 100) {
                ck_assert_int_eq(d.reason, callers[k] == NB_CALLER_HOOK ? NB_WHY_HOOK : NB_WHY_NO_EVIDENCE);
                nb_classify_text(&op, &d, text, sizeof(text));
                ck_assert_ptr_nonnull(strstr(text, "NIBBLE_GRAD=all_reduce:float32:1000000@8"));
            }
        }
    for (unsigned reason = 0; reason < NB_WHY_COUNT; reason++)
        ck_assert_uint_le(told[reason], 3);
    op.caller = NB_CALLER_BUCKET;
    for (int row = 0; row <= 3; row++) { /* a pass that sums something else by the reducer */
        op.type = vetoed[row].type;
        make_vetoed(row, &seed, samples);
        ck_assert_int_eq(nb_classify_reduce(c, &op, samples, SAMPLES).reason,
                         row ? vetoed[row].reason : NB_WHY_BUCKET);
    }
    ck_assert_uint_ge(told[NB_WHY_BUCKET], 1);
    ck_assert_uint_ge(told[NB_WHY_NO_EVIDENCE], 1);
    nb_classify_destroy(c);
}
END_TEST

/* A small reduce-scatter whose weights the module does not see stays raw, and the log says why. Where the
 * user vouches for it, its warm-up ends, whether or not calls tell passes. */
START_TEST(test_small_vouched)
{
    struct nb_classify *c = create(_i ? "reduce_scatter:float32:8192" : "");
    struct nb_class_op op = eight_ranks(NB_FUNC_REDUCE_SCATTER, ncclFloat32, 8192, 0);
    float samples[SAMPLES];
    uint64_t seed = 3;
    unsigned coded = 0;

    for (unsigned call = 0; call < 20 * WARMUP; call++) {
        struct nb_class_decision d;
        for (unsigned i = 0; i < SAMPLES; i++)
            samples[i] = rnd_normal(&seed);
        op.passes = _i == 1 ? call / 4 + 1 : 0; /* four calls in a step */
        d = nb_classify_reduce(c, &op, samples, SAMPLES);
        ck_assert_int_eq(d.kind == NB_CLASS_GRADIENT, _i > 0);
        ck_assert(_i > 0 || call < 60 || d.reason == NB_WHY_UNSEEN);
        ck_assert(_i == 0 || d.warmup == (call < (_i == 1 ? 4 : 16) * WARMUP - (unsigned)(_i == 2)));
        coded += (unsigned)(d.kind == NB_CLASS_GRADIENT && !d.warmup);
    }
    ck_assert_int_eq(coded > 0, _i > 0);
    nb_classify_destroy(c);
}
END_TEST

/* The evidence holds for one operation: another operation of the same signature, which is not the result of a
 * reduce-scatter, stays raw. */
START_TEST(test_linked)
{
    struct nb_classify *c = create("");
    struct nb_class_op op = eight_ranks(NB_FUNC_ALL_REDUCE, ncclFloat32, 1000000, 0);
    float samples[SAMPLES];
    uint64_t seed = 3;

    for (unsigned call = 0; call < 200; call++) {
        const int other = call % 16 == 15;
        struct nb_class_decision d;
        for (unsigned i = 0; i < SAMPLES; i++)
            samples[i] = rnd_normal(&seed);
        op.send = 0x1000 * (1 + call % 3);
        if (other) {
            d = nb_classify_reduce(c, &op, samples, SAMPLES);
        } else {
            d = sum_of_result(c, &op, samples);
        }
        ck_assert_int_eq(d.kind == NB_CLASS_GRADIENT, !other && call >= 49);
    }
    nb_classify_destroy(c);
}
END_TEST

START_TEST(test_override)
{
    struct nb_classify *c = create("all_reduce:float32:1000-2000@8,!all_reduce:float32:1500");
    struct nb_class_op op = eight_ranks(NB_FUNC_ALL_REDUCE, ncclFloat32, 1024, 0x1000);
    struct nb_class_decision d = {0};

    for (int i = 0; i < 60; i++) {
        d = nb_classify_reduce(c, &op, NULL, 0);
        ck_assert_int_eq(d.kind, NB_CLASS_GRADIENT);
        ck_assert_int_eq(d.reason, NB_WHY_USER_YES);
        ck_assert_int_eq(d.changed, i == 0);
        ck_assert(i > 1 || d.warmup); /* the user's gradients have a warm-up too */
    }
    op.count = 1500;
    ck_assert_int_eq(nb_classify_reduce(c, &op, NULL, 0).reason, NB_WHY_USER_NO);
    op.count = 2001;
    ck_assert_int_eq(nb_classify_reduce(c, &op, NULL, 0).reason, NB_WHY_YOUNG);
    op.op = ncclMax;
    ck_assert_int_eq(nb_classify_reduce(c, &op, NULL, 0).reason, NB_WHY_TYPE);
    op.op = ncclSum;
    op.type = ncclInt32;
    ck_assert_int_eq(nb_classify_reduce(c, &op, NULL, 0).reason, NB_WHY_TYPE);
    nb_classify_destroy(c);
}
END_TEST

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    return SUITE("classify", TEST(test_frameworks),
                 LOOP(test_never, 0, (int)(sizeof(others) / sizeof(others[0]))),
                 LOOP(test_vetoed, 0, (int)(sizeof(vetoed) / sizeof(vetoed[0]))), TEST(test_vetoed_once),
                 TEST(test_revoked), TEST(test_caller), TEST(test_framework_says),
                 LOOP(test_small_vouched, 0, 3), TEST(test_linked), TEST(test_override));
}
