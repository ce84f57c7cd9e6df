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
    if (nb_policy_dtype(type, &dtype))
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
    const bool bounded = p->ag == NB_AG_DELTA4 || p->ag == NB_AG_DELTA4_FP32;
    const ncclDataType_t type = api_type ? *api_type : type_of_untyped(p->ag_untyped);

    return bounded && !nb_policy_dtype(type, dtype) && (*dtype != NB_F32 || p->ag == NB_AG_DELTA4_FP32)
               ? NB_CODEC_DELTA4
               : NB_CODEC_ULP;
}
