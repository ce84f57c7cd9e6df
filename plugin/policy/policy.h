/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens to an operation: which codec, and whether its error may be fed back. Decisions are local: the
 * codec is the sender's choice for each message and every receiver decodes every codec.
 */
#ifndef NIBBLE_POLICY_POLICY_H
#define NIBBLE_POLICY_POLICY_H

#include <stdint.h>

#include "coll/wire.h"
#include "nibble/codec.h"
#include "nibble/nccl_types.h"

/* Why an operation is not coded; the summary names these. */
enum nb_reason {
    NB_CODED = 0,
    NB_RAW_TYPE,     /* not FP32, BF16 or FP16 */
    NB_RAW_OP,       /* not a sum */
    NB_RAW_SMALL,    /* below the minimum size */
    NB_RAW_SETTING,  /* switched off */
    NB_RAW_UNKNOWN,  /* an all-reduce without a record: its window is padded with stale memory */
    NB_REASON_COUNT
};
const char *nb_reason_text(enum nb_reason reason);

/* The quantizable type that `type` is: 0 and *dtype, or -1. */
int nb_policy_dtype(ncclDataType_t type, enum nb_dtype *dtype);

/* Codec of an operation of `bytes` bytes (the whole vector). For all-gathers NB_CODEC_ULP means differences. */
enum nb_codec nb_policy_codec(enum nb_func func, ncclDataType_t type, ncclRedOp_t op, uint64_t bytes, int recorded,
                              enum nb_reason *reason);

/*
 * Which reduce-scatters belong to one buffer, judged by the calls of one communicator alone.
 *
 * A signature (type, bytes) is certain when, three weight changes in a row, exactly one reduce-scatter of it
 * came between two changes of the same gathered block: then it is one buffer, used once a step. As soon as a second one comes
 * within a step (several layers of one size, gradient accumulation) the signature is uncertain, and stays so for
 * fifty clean steps. Without gathers that change there are no steps and nothing is certain.
 */
struct nb_signatures;
struct nb_signatures *nb_signatures_create(void);
void nb_signatures_destroy(struct nb_signatures *sigs);
/* A reduce-scatter begins. 1: it is certain that it belongs to the buffer of its signature. */
int nb_signatures_reduce(struct nb_signatures *sigs, ncclDataType_t type, uint64_t bytes);
/* An all-gather of this node's block `slot` ended; changed: its content differed from the time before. 1 when
 * this marks a new step. */
int nb_signatures_gather(struct nb_signatures *sigs, uint32_t slot, int changed);

#endif
