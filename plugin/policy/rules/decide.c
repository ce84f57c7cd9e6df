/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coded or raw: one ordered table. Each rule that holds makes an operation raw, and the first one gives the
 * reason. Decisions are local: the sender chooses the codec of each message, and every receiver decodes every
 * codec.
 */
#include <stdio.h>

#include "base/params.h"
#include "codec/row.h"
#include "policy/rules/rules.h"

int nb_policy_dtype(ncclDataType_t type, enum nb_dtype *dtype)
{
    switch (type) {
    case ncclFloat32: *dtype = NB_F32; return 0;
    case ncclBfloat16: *dtype = NB_BF16; return 0;
    case ncclFloat16: *dtype = NB_F16; return 0;
    default: return -1;
    }
}

static bool is_gather(const struct nb_facts *f)
{
    return f->func == NB_FUNC_ALL_GATHER;
}

static enum nb_sum_word sum_word(const struct nb_params *p, enum nb_func func)
{
    return func == NB_FUNC_ALL_REDUCE ? p->ar : p->rs;
}

bool nb_policy_reckons(const struct nb_params *p, enum nb_func func)
{
    return func != NB_FUNC_ALL_GATHER && sum_word(p, func) == NB_SUM_AUTO;
}

/* ---- rules ------------------------------------------------------------------------------------------- */

static bool other_type(const struct nb_facts *f)
{
    enum nb_dtype dtype;

    return !is_gather(f) && nb_policy_dtype(f->type, &dtype);
}

static bool other_reduction(const struct nb_facts *f)
{
    return !is_gather(f) && f->redop != ncclSum;
}

static bool set_to_raw(const struct nb_facts *f)
{
    const struct nb_params *p = f->params;

    if (is_gather(f))
        return p->ag == NB_AG_OFF || (p->ag == NB_AG_RAW && !f->carried);
    return sum_word(p, f->func) == NB_SUM_RAW;
}

/* The window of an all-reduce is padded with stale memory. Only a record has its length. */
static bool without_record(const struct nb_facts *f)
{
    return f->func == NB_FUNC_ALL_REDUCE && !f->recorded;
}

static bool too_small(const struct nb_facts *f)
{
    const struct nb_params *p = f->params;
    const int64_t least = is_gather(f)                    ? p->ag_min_bytes
                          : f->func == NB_FUNC_ALL_REDUCE ? p->ar_min_bytes
                                                          : p->rs_min_bytes;

    return f->bytes < (uint64_t)least;
}

/* Shadow mode sends raw in any case, and shows the effect of coding. */
static bool link_is_faster(const struct nb_facts *f)
{
    return nb_policy_reckons(f->params, f->func) && !f->shadow && f->bytes < f->pays_from;
}

static bool is_excluded(const struct nb_facts *f)
{
    return f->excluded;
}

static bool is_switched_off(const struct nb_facts *f)
{
    return f->switched_off;
}

static bool is_young(const struct nb_facts *f)
{
    return !is_gather(f) && !f->gradient && f->young;
}

static bool no_gradient(const struct nb_facts *f)
{
    return !is_gather(f) && !f->gradient;
}

static bool warms_up(const struct nb_facts *f)
{
    return !is_gather(f) && f->warmup;
}

static bool only_looks_on(const struct nb_facts *f)
{
    return f->shadow && f->passed_on;
}

static bool may_be_padding(const struct nb_facts *f)
{
    return !f->sure;
}

static bool too_short(const struct nb_facts *f)
{
    return f->values < NB_MIN_CODED_VALUES;
}

static const struct rule {
    const char *name; /* the label of metrics */
    enum nb_stage stage;
    bool (*holds)(const struct nb_facts *facts);
    const char *text;
} rules[NB_RAW_REASON_COUNT] = {
    [NB_CODED] = {"coded", NB_STAGE_CALL, NULL, "coded"},
    [NB_RAW_TYPE] = {"type", NB_STAGE_CALL, other_type, "type is not quantized"},
    [NB_RAW_OP] = {"reduction", NB_STAGE_CALL, other_reduction, "not a sum"},
    [NB_RAW_SETTING] = {"setting", NB_STAGE_CALL, set_to_raw, "switched off by a setting"},
    [NB_RAW_UNKNOWN] = {"no_record", NB_STAGE_CALL, without_record, "no record"},
    [NB_RAW_SMALL] = {"small", NB_STAGE_CALL, too_small, "below the minimum size"},
    [NB_RAW_LINK] = {"link", NB_STAGE_CALL, link_is_faster, "raw is reckoned to be faster on this link"},
    [NB_RAW_COMM] = {"comm_rules", NB_STAGE_CALL, is_excluded,
                     "its communicator is excluded by NIBBLE_COMMS"},
    [NB_RAW_SWITCHED] = {"switched_off", NB_STAGE_VALUES, is_switched_off,
                         "compression was switched off while the job ran"},
    [NB_RAW_YOUNG] = {"young", NB_STAGE_VALUES, is_young, "too few calls seen to classify it"},
    [NB_RAW_CLASS] = {"no_gradient", NB_STAGE_VALUES, no_gradient, "not recognised as a gradient"},
    [NB_RAW_WARMUP] = {"warmup", NB_STAGE_VALUES, warms_up,
                       "a gradient in the first steps (NIBBLE_WARMUP_STEPS)"},
    [NB_RAW_SHADOW] = {"shadow", NB_STAGE_SEGMENT, only_looks_on, "shadow mode passes sums on raw"},
    [NB_RAW_UNSURE] = {"unsure", NB_STAGE_SEGMENT, may_be_padding, "it may hold more than values"},
    [NB_RAW_SHORT] = {"short", NB_STAGE_SEGMENT, too_short, "too few values for a header"},
};

const char *nb_raw_reason_text(enum nb_raw_reason reason)
{
    return (unsigned)reason < NB_RAW_REASON_COUNT ? rules[reason].text : "unknown";
}

const char *nb_reason_name(enum nb_raw_reason reason)
{
    return (unsigned)reason < NB_RAW_REASON_COUNT ? rules[reason].name : "unknown";
}

/* ---- The codec of an operation that passed all rules --------------------------------------------------- */

static enum nb_codec codec_of_word(enum nb_sum_word word)
{
    switch (word) {
    case NB_SUM_INT4:
    case NB_SUM_AUTO: return NB_CODEC_INT4;
    case NB_SUM_INT8: return NB_CODEC_INT8;
    case NB_SUM_RAW:
    case NB_SUM_COUNT: break;
    }
    return NB_CODEC_RAW;
}

static enum nb_codec sum_codec(const struct nb_facts *f, enum nb_dtype *dtype)
{
    const struct nb_codec_row *codec = nb_codec_row(codec_of_word(sum_word(f->params, f->func)));

    nb_policy_dtype(f->type, dtype);
    if (f->finer)
        return codec->finer;
    if (codec->code != NB_CODEC_INT4 || f->bits <= codec->bits)
        return codec->code;
    return f->bits == 6 ? NB_CODEC_INT6 : NB_CODEC_INT8;
}

static ncclDataType_t type_of_untyped(enum nb_ag_untyped_word word)
{
    switch (word) {
    case NB_AG_UNTYPED_BFLOAT16: return ncclBfloat16;
    case NB_AG_UNTYPED_FLOAT16: return ncclFloat16;
    case NB_AG_UNTYPED_EXACT:
    case NB_AG_UNTYPED_COUNT: break;
    }
    return ncclNumTypes;
}

/* Integers, 8-bit floats and values of unknown type are exact in every mode. */
static enum nb_codec gather_codec(const struct nb_facts *f, enum nb_dtype *dtype)
{
    const struct nb_params *p = f->params;
    const bool bounded = p->ag == NB_AG_DELTA4 || p->ag == NB_AG_DELTA4_FP32;
    const ncclDataType_t type = f->typed ? f->type : type_of_untyped(p->ag_untyped);

    return bounded && !nb_policy_dtype(type, dtype) && (*dtype != NB_F32 || p->ag == NB_AG_DELTA4_FP32)
               ? NB_CODEC_DELTA4
               : NB_CODEC_ULP;
}

struct nb_verdict nb_decide(const struct nb_facts *facts, enum nb_stage stage)
{
    struct nb_verdict v = {.codec = NB_CODEC_RAW, .reason = NB_CODED};

    for (unsigned r = NB_CODED + 1; r < NB_RAW_REASON_COUNT; r++)
        if (rules[r].stage <= stage && rules[r].holds(facts)) {
            v.reason = (enum nb_raw_reason)r;
            return v;
        }
    v.codec = is_gather(facts) ? gather_codec(facts, &v.dtype) : sum_codec(facts, &v.dtype);
    return v;
}
