/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens to an operation: which codec, and whether its error may be fed back. Decisions are local: the
 * codec is the sender's choice for each message and every receiver decodes every codec.
 *
 * Eligibility by function, type, reduction and size; settings decide the rest.
 */
#include "policy/rules/rules.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/params.h"

const char *nb_reason_text(enum nb_reason reason)
{
    static const char *const text[NB_REASON_COUNT] = {
        "coded",
        "type is not quantized",
        "not a sum",
        "below the minimum size",
        "switched off by a setting",
        "no record",
        "too few calls seen to tell what it is",
        "not recognised as a gradient",
        "a gradient in the first steps (NIBBLE_WARMUP_STEPS)",
        "its communicator is excluded by NIBBLE_COMMS",
        "raw is reckoned to be faster on this link",
        "compression was switched off while the job ran",
    };
    return (unsigned)reason < NB_REASON_COUNT ? text[reason] : "unknown";
}

int nb_policy_dtype(ncclDataType_t type, enum nb_dtype *dtype)
{
    switch (type) {
    case ncclFloat32: *dtype = NB_F32; return 0;
    case ncclBfloat16: *dtype = NB_BF16; return 0;
    case ncclFloat16: *dtype = NB_F16; return 0;
    default: return -1;
    }
}

static const struct {
    const char *word;
    ncclDataType_t type;
} types[] = {{"float32", ncclFloat32}, {"bfloat16", ncclBfloat16}, {"float16", ncclFloat16}};

/* NIBBLE_TYPES as bits by ncclDataType_t. 0 when a word is none of them, which *wrong and *length then
 * show. */
static unsigned types_wanted(const struct nb_params *params, const char **wrong, size_t *length)
{
    unsigned mask = 0;

    for (const char *at = params->types;; at++) {
        size_t n = strcspn(at, ","), i = 0;
        while (i < sizeof(types) / sizeof(types[0]) &&
               (n != strlen(types[i].word) || memcmp(at, types[i].word, n)))
            i++;
        if (i == sizeof(types) / sizeof(types[0])) {
            *wrong = at;
            *length = n;
            return 0;
        }
        mask |= 1u << types[i].type;
        at += n;
        if (!*at)
            return mask;
    }
}

int nb_policy_check_settings(const struct nb_params *params, char *error, size_t cap)
{
    const char *wrong;
    size_t n;

    if (types_wanted(params, &wrong, &n))
        return 0;
    snprintf(error, cap, "NIBBLE_TYPES=%s: \"%.*s\" is not float32, bfloat16 or float16", params->types,
             (int)n, wrong);
    return -EINVAL;
}

static int wanted(const struct nb_params *params, ncclDataType_t type)
{
    const char *wrong;
    size_t n;

    return types_wanted(params, &wrong, &n) >> type & 1;
}

static enum nb_sum_word sum_word(const struct nb_params *p, enum nb_func func)
{
    return func == NB_FUNC_ALL_REDUCE ? p->ar : p->rs;
}

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

enum nb_codec nb_policy_codec(const struct nb_params *p, enum nb_func func, ncclDataType_t type,
                              ncclRedOp_t op, uint64_t bytes, int recorded, enum nb_reason *reason)
{
    enum nb_codec codec;
    enum nb_dtype dtype;
    int64_t least;

    if (func == NB_FUNC_ALL_GATHER) {
        *reason = p->ag == NB_AG_RAW || p->ag == NB_AG_OFF ? NB_RAW_SETTING
                  : bytes < (uint64_t)p->ag_min_bytes      ? NB_RAW_SMALL
                                                           : NB_CODED;
        return *reason == NB_CODED ? NB_CODEC_ULP : NB_CODEC_RAW;
    }
    codec = codec_of_word(sum_word(p, func));
    least = func == NB_FUNC_ALL_REDUCE ? p->ar_min_bytes : p->rs_min_bytes;
    *reason = NB_CODED;
    if (nb_policy_dtype(type, &dtype) || !wanted(p, type))
        *reason = NB_RAW_TYPE;
    else if (op != ncclSum)
        *reason = NB_RAW_OP;
    else if (codec == NB_CODEC_RAW)
        *reason = NB_RAW_SETTING;
    else if (func == NB_FUNC_ALL_REDUCE && !recorded)
        *reason = NB_RAW_UNKNOWN;
    else if (bytes < (uint64_t)least)
        *reason = NB_RAW_SMALL;
    return *reason == NB_CODED ? codec : NB_CODEC_RAW;
}

bool nb_policy_reckons(const struct nb_params *p, enum nb_func func)
{
    return func != NB_FUNC_ALL_GATHER && sum_word(p, func) == NB_SUM_AUTO;
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

enum nb_codec nb_policy_gather(const struct nb_params *p, const ncclDataType_t *api_type,
                               enum nb_dtype *dtype)
{
    ncclDataType_t type = api_type ? *api_type : ncclNumTypes;

    if (!api_type && p->ag == NB_AG_DELTA4)
        type = type_of_untyped(p->ag_untyped);
    if ((p->ag != NB_AG_DELTA4 && p->ag != NB_AG_INT8) || nb_policy_dtype(type, dtype) ||
        (p->ag == NB_AG_DELTA4 && *dtype == NB_F32 && p->ag_fp32 == NB_AG_FP32_EXACT))
        return NB_CODEC_ULP;
    return p->ag == NB_AG_DELTA4 ? NB_CODEC_DELTA4 : NB_CODEC_INT8;
}
