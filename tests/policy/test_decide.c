/* SPDX-License-Identifier: Apache-2.0 */
/* Coded or raw: each rule alone, the order of the rules, their stages, and the codec where no rule holds. */
#include <string.h>

#include "base/params.h"
#include "policy/rules/rules.h"
#include "tests/suite.h"

static struct nb_params params;

/* Return the facts of an all-reduce that every rule lets pass. */
static struct nb_facts coded(void)
{
    params = *nb_params_defaults();
    return (struct nb_facts){.params = &params,
                             .func = NB_FUNC_ALL_REDUCE,
                             .type = ncclBfloat16,
                             .redop = ncclSum,
                             .bytes = 1 << 20,
                             .pays_from = 1 << 16,
                             .recorded = true,
                             .gradient = true,
                             .passed_on = true,
                             .sure = true,
                             .values = NB_MIN_CODED_VALUES};
}

/* Change the facts so that a rule holds. Where two rules need opposite values of a fact, the first rule
 * holds. */
static void break_rule(struct nb_facts *f, enum nb_raw_reason rule)
{
    switch (rule) {
    case NB_RAW_TYPE: f->type = ncclInt32; break;
    case NB_RAW_OP: f->redop = ncclMax; break;
    case NB_RAW_SETTING: params.ar = NB_SUM_RAW; break;
    case NB_RAW_UNKNOWN: f->recorded = false; break;
    case NB_RAW_SMALL: f->bytes = (uint64_t)params.ar_min_bytes - 1; break;
    case NB_RAW_LINK: f->pays_from = UINT64_MAX; break;
    case NB_RAW_COMM: f->excluded = true; break;
    case NB_RAW_SWITCHED: f->switched_off = true; break;
    case NB_RAW_YOUNG: f->gradient = !(f->young = true); break;
    case NB_RAW_CLASS: f->gradient = false; break;
    case NB_RAW_WARMUP: f->warmup = true; break;
    case NB_RAW_SHADOW: f->shadow = true; break;
    case NB_RAW_UNSURE: f->sure = false; break;
    case NB_RAW_SHORT: f->values = NB_MIN_CODED_VALUES - 1; break;
    case NB_CODED:
    case NB_RAW_REASON_COUNT: ck_abort();
    }
}

static enum nb_stage stage_of(enum nb_raw_reason rule)
{
    return rule < NB_RAW_SWITCHED ? NB_STAGE_CALL : rule < NB_RAW_SHADOW ? NB_STAGE_VALUES : NB_STAGE_SEGMENT;
}

START_TEST(each_rule)
{
    const enum nb_raw_reason rule = (enum nb_raw_reason)_i;
    struct nb_facts f = coded();
    struct nb_verdict v = nb_decide(&f, NB_STAGE_SEGMENT);

    ck_assert(v.reason == NB_CODED && v.codec == NB_CODEC_INT4 && v.dtype == NB_BF16);
    break_rule(&f, rule);
    for (enum nb_stage s = NB_STAGE_CALL; s <= NB_STAGE_SEGMENT; s++) {
        v = nb_decide(&f, s);
        ck_assert_msg(v.reason == (s < stage_of(rule) ? NB_CODED : rule), "%s at stage %d: %s",
                      nb_reason_name(rule), s, nb_reason_name(v.reason));
        ck_assert((v.codec == NB_CODEC_RAW) == (v.reason != NB_CODED));
    }
}
END_TEST

/* Where two rules hold, the first gives the reason. */
START_TEST(order)
{
    const enum nb_raw_reason first = (enum nb_raw_reason)_i;

    for (enum nb_raw_reason second = first + 1; second < NB_RAW_REASON_COUNT; second++) {
        struct nb_facts f = coded();

        if (first == NB_RAW_LINK && second == NB_RAW_SHADOW)
            continue; /* shadow mode shows the effect of coding on every link */
        break_rule(&f, second);
        break_rule(&f, first);
        ck_assert_msg(nb_decide(&f, NB_STAGE_SEGMENT).reason == first, "%s, %s: %s", nb_reason_name(first),
                      nb_reason_name(second), nb_reason_name(nb_decide(&f, NB_STAGE_SEGMENT).reason));
    }
}
END_TEST

START_TEST(names)
{
    for (int r = 0; r < NB_RAW_REASON_COUNT; r++) {
        ck_assert(nb_reason_name((enum nb_raw_reason)r)[0] && nb_raw_reason_text((enum nb_raw_reason)r)[0]);
        for (int other = 0; other < r; other++) {
            ck_assert_str_ne(nb_reason_name((enum nb_raw_reason)r),
                             nb_reason_name((enum nb_raw_reason)other));
            ck_assert_str_ne(nb_raw_reason_text((enum nb_raw_reason)r),
                             nb_raw_reason_text((enum nb_raw_reason)other));
        }
    }
    ck_assert_str_eq(nb_reason_name(NB_RAW_REASON_COUNT), "unknown");
    ck_assert_str_eq(nb_raw_reason_text(NB_RAW_REASON_COUNT), "unknown");
}
END_TEST

START_TEST(codecs_of_sums)
{
    static const struct {
        enum nb_sum_word word;
        bool finer;
        unsigned bits;
        enum nb_codec codec;
    } cases[] = {{NB_SUM_AUTO, false, 0, NB_CODEC_INT4}, {NB_SUM_INT4, false, 0, NB_CODEC_INT4},
                 {NB_SUM_INT8, false, 0, NB_CODEC_INT8}, {NB_SUM_RAW, false, 0, NB_CODEC_RAW},
                 {NB_SUM_AUTO, true, 0, NB_CODEC_INT8},  {NB_SUM_INT8, true, 0, NB_CODEC_INT8},
                 {NB_SUM_AUTO, false, 4, NB_CODEC_INT4}, {NB_SUM_AUTO, false, 6, NB_CODEC_INT6},
                 {NB_SUM_AUTO, false, 8, NB_CODEC_INT8}, {NB_SUM_INT8, false, 6, NB_CODEC_INT8},
                 {NB_SUM_AUTO, true, 6, NB_CODEC_INT8},  {NB_SUM_RAW, false, 6, NB_CODEC_RAW}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct nb_facts f = coded();

        f.func = NB_FUNC_REDUCE_SCATTER;
        f.recorded = false; /* only all-reduces need a record */
        f.finer = cases[i].finer;
        f.bits = cases[i].bits;
        params.rs = cases[i].word;
        params.ar = NB_SUM_RAW; /* the setting of another function */
        ck_assert_int_eq(nb_decide(&f, NB_STAGE_SEGMENT).codec, cases[i].codec);
        /* Only auto leaves it to the reckoning. */
        f.pays_from = UINT64_MAX;
        ck_assert_int_eq(nb_decide(&f, NB_STAGE_CALL).codec,
                         cases[i].word == NB_SUM_AUTO ? NB_CODEC_RAW : cases[i].codec);
    }
}
END_TEST

START_TEST(codecs_of_gathers)
{
    static const struct {
        enum nb_ag_word word;
        bool typed;
        ncclDataType_t type;
        enum nb_ag_untyped_word untyped;
        enum nb_codec codec;
    } cases[] = {
        {NB_AG_AUTO, true, ncclBfloat16, 0, NB_CODEC_ULP},
        {NB_AG_EXACT, true, ncclBfloat16, 0, NB_CODEC_ULP},
        {NB_AG_RAW, true, ncclBfloat16, 0, NB_CODEC_RAW},
        {NB_AG_OFF, true, ncclBfloat16, 0, NB_CODEC_RAW},
        {NB_AG_DELTA4, true, ncclBfloat16, 0, NB_CODEC_DELTA4},
        {NB_AG_DELTA4, true, ncclFloat16, 0, NB_CODEC_DELTA4},
        {NB_AG_DELTA4, true, ncclFloat32, 0, NB_CODEC_ULP},
        {NB_AG_DELTA4_FP32, true, ncclFloat32, 0, NB_CODEC_DELTA4},
        {NB_AG_DELTA4, true, ncclInt8, NB_AG_UNTYPED_BFLOAT16, NB_CODEC_ULP},
        {NB_AG_DELTA4, false, ncclInt8, NB_AG_UNTYPED_EXACT, NB_CODEC_ULP},
        {NB_AG_DELTA4, false, ncclInt8, NB_AG_UNTYPED_BFLOAT16, NB_CODEC_DELTA4},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct nb_facts f = coded();

        f.func = NB_FUNC_ALL_GATHER;
        f.redop = ncclMax; /* all-gathers have no reduction operator */
        f.recorded = f.gradient = false;
        f.typed = cases[i].typed;
        f.type = cases[i].type;
        params.ag = cases[i].word;
        params.ag_untyped = cases[i].untyped;
        ck_assert_msg(nb_decide(&f, NB_STAGE_VALUES).codec == cases[i].codec, "case %zu", i);
        f.bytes = (uint64_t)params.ag_min_bytes - 1;
        ck_assert_int_eq(nb_decide(&f, NB_STAGE_VALUES).codec, NB_CODEC_RAW);
        /* With NIBBLE_AG=raw CollNet carries the operation without codecs. */
        f = (struct nb_facts){
            .params = &params, .func = NB_FUNC_ALL_GATHER, .bytes = 1 << 20, .carried = true};
        ck_assert_int_eq(nb_decide(&f, NB_STAGE_CALL).reason == NB_CODED, cases[i].word != NB_AG_OFF);
    }
}
END_TEST

SUITE_MAIN("policy/decide", LOOP(each_rule, NB_CODED + 1, NB_RAW_REASON_COUNT),
           LOOP(order, NB_CODED + 1, NB_RAW_REASON_COUNT), TEST(names), TEST(codecs_of_sums),
           TEST(codecs_of_gathers))
