/* SPDX-License-Identifier: Apache-2.0 */
/* Eligibility by function, type, reduction and size; settings decide the rest. */
#include "policy/policy.h"

#include "base/params.h"

const char *nb_reason_text(enum nb_reason reason)
{
    static const char *const text[NB_REASON_COUNT] = {
        "coded", "type is not quantized", "not a sum", "below the minimum size", "switched off", "no record",
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

/* The words of NIBBLE_RS and NIBBLE_AR, in their order. */
static const enum nb_codec codec_of_word[] = {NB_CODEC_RAW, NB_CODEC_INT4, NB_CODEC_INT8};

enum nb_codec nb_policy_codec(enum nb_func func, ncclDataType_t type, ncclRedOp_t op, uint64_t bytes, int recorded,
                              enum nb_reason *reason)
{
    const struct nb_params *p = nb_params();
    enum nb_codec codec;
    enum nb_dtype dtype;
    int64_t least;

    if (func == NB_FUNC_ALL_GATHER) {
        *reason = p->ag == 0 ? NB_RAW_SETTING : bytes < (uint64_t)p->ag_min_bytes ? NB_RAW_SMALL : NB_CODED;
        return *reason == NB_CODED ? NB_CODEC_ULP : NB_CODEC_RAW;
    }
    codec = codec_of_word[func == NB_FUNC_ALL_REDUCE ? p->ar : p->rs];
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
