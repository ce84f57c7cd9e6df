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

/* ---- decide.c: coded or raw
 * ------------------------------------------------------------------------------ */

/* Why an operation is raw: the rules, in the order in which they are asked. The summary and the metrics name
 * them. */
enum nb_raw_reason {
    NB_CODED = 0,
    NB_RAW_TYPE,     /* not FP32, BF16 or FP16 */
    NB_RAW_OP,       /* not a sum */
    NB_RAW_SETTING,  /* switched off */
    NB_RAW_UNKNOWN,  /* an all-reduce without a record: its window is padded with stale memory */
    NB_RAW_SMALL,    /* below the minimum size */
    NB_RAW_LINK,     /* raw is reckoned to be faster on these links */
    NB_RAW_COMM,     /* of a communicator that NIBBLE_COMMS excludes, over the group of its parent */
    NB_RAW_SWITCHED, /* compression was switched off while the job ran */
    NB_RAW_YOUNG,    /* too few calls seen to tell whether it is a gradient */
    NB_RAW_CLASS,    /* not recognised as a gradient, or recognised as something else */
    NB_RAW_WARMUP,   /* a gradient in the communicator's first steps */
    /* of a segment of a coded operation, whose messages nobody counts by reason */
    NB_RAW_SHADOW, /* shadow mode passes sums on as they are */
    NB_RAW_UNSURE, /* it may hold more than values */
    NB_RAW_SHORT,  /* too few values for a header */
    NB_RAW_REASON_COUNT
};
const char *nb_raw_reason_text(enum nb_raw_reason reason);
const char *nb_reason_name(enum nb_raw_reason reason); /* one word */

/* Segments of fewer values (slivers that a window boundary cuts off) are not worth a quantizer's header. */
#define NB_MIN_CODED_VALUES 64u

/* When an operation is decided on. Each stage asks the rules of the stages before as well. */
enum nb_stage {
    NB_STAGE_CALL, /* its first window: type, size, settings and links. Of reduce-scatters all nodes know the same */
    NB_STAGE_VALUES, /* its first segment is about to be encoded: what calls and values show of it */
    NB_STAGE_SEGMENT /* a message for one segment */
};

/* All that the rules ask. The engine gathers it (coll/decide/decision.c), and the tuner before a call. */
struct nb_facts {
    const struct nb_params *params;
    enum nb_func func;
    ncclDataType_t type;
    bool typed; /* all-gathers: `type` is the user's, known for certain */
    ncclRedOp_t redop;
    uint64_t bytes;     /* of the whole vector */
    uint64_t pays_from; /* bytes from which coding is reckoned to pay; 0: at every size */
    bool recorded;      /* this node has the operation's record */
    bool carried;       /* the question is whether CollNet is to carry it, which NIBBLE_AG=raw allows */
    bool excluded;      /* of a split-off communicator that NIBBLE_COMMS excludes */
    bool shadow;
    /* NB_STAGE_VALUES */
    bool switched_off, gradient, young, warmup;
    bool finer; /* 8 bits instead of 4: its error was too large, or this hop has them */
    /* NB_STAGE_SEGMENT */
    bool passed_on; /* a sum that goes on, not a contribution */
    bool sure;      /* it holds nothing but values */
    uint64_t values;
};

struct nb_verdict {
    enum nb_codec codec;
    enum nb_raw_reason reason;
    enum nb_dtype dtype; /* how values are read, where the codec codes values */
};

/* Ask the rules up to `stage`, in order. All-gathers: NB_CODEC_ULP for exact deltas, NB_CODEC_DELTA4 for
 * bounded ones where the content looks like weights. Any thread. */
struct nb_verdict nb_decide(const struct nb_facts *facts, enum nb_stage stage);

/* The quantizable type that `type` is: 0 and *dtype, or -1. */
int nb_policy_dtype(ncclDataType_t type, enum nb_dtype *dtype);

/* Whether the setting leaves it to a reckoning (policy/reckon/reckon.c) from which size on such operations
 * are coded. */
bool nb_policy_reckons(const struct nb_params *params, enum nb_func func);

/* ---- rules.c: NIBBLE_GRAD
 * -------------------------------------------------------------------------------- */

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

/* ---- rules.c: NIBBLE_COMMS
 * ------------------------------------------------------------------------------- */

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
/* Return "tensor", "sequence", "context" or "expert" where the name is one that frameworks give to
 * communicators of that parallelism, else NULL. Names that also speak of data parallelism, replicas, shards
 * or gradients give NULL, since gradients or weights travel there. */
const char *nb_comm_parallelism(const char *name);
/* "nranks=N:nnodes=N:local=N:order=N:name=TEXT" of what is known, as a rule. Returns its length as snprintf
 * does. */
int nb_comm_rule_text(const struct nb_comm_info *facts, char *buf, size_t cap);

#endif
