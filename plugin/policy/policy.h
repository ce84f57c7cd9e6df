/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens to an operation: which codec, and whether its error may be fed back. Decisions are local: the
 * codec is the sender's choice for each message and every receiver decodes every codec.
 */
#ifndef NIBBLE_POLICY_POLICY_H
#define NIBBLE_POLICY_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/func.h"
#include "nibble/codec.h"
#include "nibble/nccl_types.h"

struct nb_comm_info;
struct nb_comm_rules;
struct nb_params;
struct nb_reckoning;

/* Why an operation is not coded; the summary names these. */
enum nb_reason {
    NB_CODED = 0,
    NB_RAW_TYPE,     /* not FP32, BF16 or FP16 */
    NB_RAW_OP,       /* not a sum */
    NB_RAW_SMALL,    /* below the minimum size */
    NB_RAW_SETTING,  /* switched off */
    NB_RAW_UNKNOWN,  /* an all-reduce without a record: its window is padded with stale memory */
    NB_RAW_YOUNG,    /* too few calls seen to tell whether it is a gradient */
    NB_RAW_CLASS,    /* not recognised as a gradient, or recognised as something else */
    NB_RAW_WARMUP,   /* a gradient in the communicator's first steps */
    NB_RAW_COMM,     /* of a communicator that NIBBLE_COMMS excludes, over the group of its parent */
    NB_RAW_LINK,     /* raw is reckoned to be faster on these links */
    NB_RAW_SWITCHED, /* compression was switched off while the job ran */
    NB_REASON_COUNT
};
const char *nb_reason_text(enum nb_reason reason);

/* Check NIBBLE_TYPES: 0, or -EINVAL and what is wrong in `error`. */
int nb_policy_check_settings(const struct nb_params *params, char *error, size_t cap);

/* The quantizable type that `type` is: 0 and *dtype, or -1. */
int nb_policy_dtype(ncclDataType_t type, enum nb_dtype *dtype);

/* Codec of an operation of `bytes` bytes (the whole vector). For all-gathers NB_CODEC_ULP means differences;
 * whether they may be lossy is for nb_policy_gather to say. */
enum nb_codec nb_policy_codec(const struct nb_params *params, enum nb_func func, ncclDataType_t type,
                              ncclRedOp_t op, uint64_t bytes, int recorded, enum nb_reason *reason);

/* Whether the setting leaves it to a reckoning (policy/reckon.h) from which size on such operations are coded. */
bool nb_policy_reckons(const struct nb_params *params, enum nb_func func);

/*
 * Communicators that the nodes decline at connect, so that NCCL's own algorithms run from the first call on. Both
 * functions return true and write the reason to `why`.
 */

/* Settings exclude the communicator (NIBBLE_ENABLE, NIBBLE_COMMS), or a framework gave it a name of tensor, sequence,
 * context or expert parallelism, and no rule of NIBBLE_COMMS includes it by a condition that it meets. Its traffic is
 * then activations: neither gradients nor weights. */
bool nb_policy_excludes(const struct nb_params *params, const struct nb_comm_rules *rules,
                        const struct nb_comm_info *info, char *why, size_t cap);
/* Coding gains nothing: settings leave some function to the reckoning (auto), and every function is raw, by its setting
 * or because coding pays at no size. Where a link's rate or a codec's speed is unknown the answer is false.
 * All nodes reckon with the same facts and settings, so all answer alike. */
bool nb_policy_declines(const struct nb_params *params, const struct nb_reckoning *reckoning, char *why,
                        size_t cap);

/* Codec of an all-gather for which nb_policy_codec said NB_CODEC_ULP. api_type: the user's type, or NULL when
 * it is not known for certain. ULP: exact. DELTA4 (for what looks like weights, else exact) and INT8 set
 * *dtype. Integers, 8-bit floats and what is not known are exact in every mode. */
enum nb_codec nb_policy_gather(const struct nb_params *params, const ncclDataType_t *api_type,
                               enum nb_dtype *dtype);

#endif
