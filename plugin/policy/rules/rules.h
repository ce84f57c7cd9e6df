/* SPDX-License-Identifier: Apache-2.0 */
/* What the settings say of an operation: its codec, and the rules of NIBBLE_GRAD and NIBBLE_COMMS. */
#ifndef NIBBLE_POLICY_RULES_H
#define NIBBLE_POLICY_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/nccl_names.h"
#include "nibble/codec.h"
#include "nibble/nccl_types.h"

struct nb_params;

/* ---- policy.c: codecs by settings ------------------------------------------------------------------------ */

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

/* The quantizable type that `type` is: 0 and *dtype, or -1. */
int nb_policy_dtype(ncclDataType_t type, enum nb_dtype *dtype);

/* Codec of an operation of `bytes` bytes (the whole vector). For all-gathers NB_CODEC_ULP means differences;
 * whether they may be lossy is for nb_policy_gather to say. */
enum nb_codec nb_policy_codec(const struct nb_params *params, enum nb_func func, ncclDataType_t type,
                              ncclRedOp_t op, uint64_t bytes, int recorded, enum nb_reason *reason);

/* Whether the setting leaves it to a reckoning (policy/reckon/reckon.c) from which size on such operations are coded. */
bool nb_policy_reckons(const struct nb_params *params, enum nb_func func);

/* Codec of an all-gather for which nb_policy_codec said NB_CODEC_ULP. api_type: the user's type, or NULL when
 * it is not known for certain. ULP: exact. DELTA4 (for what looks like weights, else exact) sets
 * *dtype. Integers, 8-bit floats and what is not known are exact in every mode. */
enum nb_codec nb_policy_gather(const struct nb_params *params, const ncclDataType_t *api_type,
                               enum nb_dtype *dtype);

/* ---- rules.c: NIBBLE_GRAD -------------------------------------------------------------------------------- */

#define NB_GRAD_RULES 64u

struct nb_grad_rule {
    int exclude;
    enum nb_func func;
    ncclDataType_t type;
    uint64_t from, to; /* elements, both included */
    uint32_t nranks;   /* 0: any */
};

struct nb_grad_rules {
    int all;
    unsigned n;
    struct nb_grad_rule rule[NB_GRAD_RULES];
};

enum nb_grad_word { NB_GRAD_SILENT = 0, NB_GRAD_YES, NB_GRAD_NO };

/* Read the setting's text ("" is no rules). 0, or -EINVAL with a message in `error` that shows the rule and
 * what is wrong with it; `rules` is then without rules. */
int nb_grad_rules_parse(const char *text, struct nb_grad_rules *rules, char *error, size_t cap);

/* What the rules say of a signature. */
enum nb_grad_word nb_grad_rules_ask(const struct nb_grad_rules *rules, enum nb_func func, ncclDataType_t type,
                                    uint64_t count, uint32_t nranks);

/* "FUNC:TYPE:COUNT@NRANKS" of a signature, as a rule. Returns its length as snprintf does. */
int nb_grad_rule_text(enum nb_func func, ncclDataType_t type, uint64_t count, uint32_t nranks, char *buf,
                      size_t cap);

/* ---- rules.c: NIBBLE_COMMS ------------------------------------------------------------------------------- */

#define NB_COMM_RULES 64u
#define NB_COMM_NAME 64u

struct nb_comm_info {
    uint32_t nranks, nnodes, local, order; /* 0: unknown */
    char name[NB_COMM_NAME];               /* "": none */
};

enum nb_comm_key {
    NB_COMM_NRANKS = 0,
    NB_COMM_NNODES,
    NB_COMM_LOCAL,
    NB_COMM_ORDER,
    NB_COMM_NAMED,
    NB_COMM_KEYS
};

struct nb_comm_rule {
    int exclude;
    unsigned keys; /* bit: this condition is there */
    uint64_t from[NB_COMM_NAMED], to[NB_COMM_NAMED];
    char name[NB_COMM_NAME];
};

struct nb_comm_rules {
    unsigned n;
    struct nb_comm_rule rule[NB_COMM_RULES];
};

/* Read the setting's text. 0, or -EINVAL with a message in `error`; `rules` is then without rules. */
int nb_comm_rules_parse(const char *text, struct nb_comm_rules *rules, char *error, size_t cap);
/* 1: this communicator is compressed. */
int nb_comm_rules_ask(const struct nb_comm_rules *rules, const struct nb_comm_info *facts);
/* 1: a rule without ! is met, so that a user vouches for this communicator. */
int nb_comm_rules_include(const struct nb_comm_rules *rules, const struct nb_comm_info *facts);
/* Return "tensor", "sequence", "context" or "expert" where the name is one that frameworks give to communicators of
 * that parallelism, else NULL. Names that also speak of data parallelism, replicas, shards or gradients give NULL,
 * since gradients or weights travel there. */
const char *nb_comm_parallelism(const char *name);
/* "nranks=N:nnodes=N:local=N:order=N:name=TEXT" of what is known, as a rule. Returns its length as snprintf
 * does. */
int nb_comm_rule_text(const struct nb_comm_info *facts, char *buf, size_t cap);

#endif
