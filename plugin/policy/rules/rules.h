/* SPDX-License-Identifier: Apache-2.0 */
/* Decide an operation's codec by the settings, and read the rules of NIBBLE_GRAD and NIBBLE_COMMS. */
#ifndef NIBBLE_POLICY_RULES_H
#define NIBBLE_POLICY_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/nccl_names.h"
#include "nibble/codec.h"
#include "nibble/nccl_types.h"

struct nb_params;

/* ---- decide.c: coded or raw ---------------------------------------------------------------------------- */

/* Why an operation is raw: the rules, in the order of their evaluation. The summary and the metrics name
 * them. */
enum nb_raw_reason {
    NB_CODED = 0,
    NB_RAW_TYPE,     /* other than FP32, BF16 and FP16 */
    NB_RAW_OP,       /* other than a sum */
    NB_RAW_SETTING,  /* switched off */
    NB_RAW_UNKNOWN,  /* an all-reduce without a record: its window is padded with stale memory */
    NB_RAW_SMALL,    /* below the minimum size */
    NB_RAW_LINK,     /* by the reckoning raw is faster on these links */
    NB_RAW_COMM,     /* of a communicator that NIBBLE_COMMS excludes, over its parent's connections */
    NB_RAW_SWITCHED, /* compression was switched off while the job ran */
    NB_RAW_YOUNG,    /* too few calls seen to recognise a gradient */
    NB_RAW_CLASS,    /* not recognised as a gradient, or recognised as other data */
    NB_RAW_WARMUP,   /* a gradient in the communicator's first steps */
    /* of a segment of a coded operation: its messages are not counted by reason */
    NB_RAW_SHADOW, /* shadow mode passes sums on raw */
    NB_RAW_UNSURE, /* it may hold more than values */
    NB_RAW_SHORT,  /* too few values for a header */
    NB_RAW_REASON_COUNT
};
const char *nb_raw_reason_text(enum nb_raw_reason reason);
const char *nb_reason_name(enum nb_raw_reason reason); /* one word */

/* Minimum of values in a coded segment. A shorter one (a sliver that a window boundary cuts off) does not pay
 * for a quantizer's header. */
#define NB_MIN_CODED_VALUES 64u

/* Stages of the decision on an operation. Each stage also asks the rules of the stages before it. */
enum nb_stage {
    NB_STAGE_CALL,   /* its first window: type, size, settings and links. All nodes know a reduce-scatter's */
    NB_STAGE_VALUES, /* its first segment is about to be encoded: the evidence of calls and values */
    NB_STAGE_SEGMENT /* a message for one segment */
};

/* Facts for all rules. The engine gathers them (coll/decide/decision.c), and the tuner before a call. */
struct nb_facts {
    const struct nb_params *params;
    enum nb_func func;
    ncclDataType_t type;
    bool typed; /* all-gathers: `type` is certainly the user's */
    ncclRedOp_t redop;
    uint64_t bytes;     /* of the whole vector */
    uint64_t pays_from; /* bytes from which coding pays by the reckoning. 0: at every size */
    bool recorded;      /* this node has the operation's record */
    bool carried;       /* the question is whether CollNet is to carry it, and NIBBLE_AG=raw allows that */
    bool excluded;      /* of a split-off communicator that NIBBLE_COMMS excludes */
    bool shadow;
    /* NB_STAGE_VALUES */
    bool switched_off, gradient, young, warmup;
    bool finer; /* 8 bits instead of 4, since its error was too large */
    /* NB_STAGE_SEGMENT */
    bool passed_on; /* a sum that goes on, not a contribution */
    unsigned bits;  /* least bits of its codec. 0: those of contributions */
    bool sure;      /* it holds only values */
    uint64_t values;
};

struct nb_verdict {
    enum nb_codec codec;
    enum nb_raw_reason reason;
    enum nb_dtype dtype; /* type of the values where the codec codes values */
};

/* Ask the rules up to `stage`, in order, and return the codec. All-gathers: NB_CODEC_ULP for exact deltas,
 * NB_CODEC_DELTA4 for bounded deltas where the content looks like weights. Any thread. */
struct nb_verdict nb_decide(const struct nb_facts *facts, enum nb_stage stage);

/* Convert `type` to a quantizable type. Return 0 and *dtype, or -1 for other types. */
int nb_policy_dtype(ncclDataType_t type, enum nb_dtype *dtype);

/* Return whether by the settings a reckoning (policy/reckon/reckon.c) decides from which size such operations
 * are coded. */
bool nb_policy_reckons(const struct nb_params *params, enum nb_func func);

/* ---- rules.c: NIBBLE_GRAD ------------------------------------------------------------------------------ */

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

/* Read the setting's text ("": an empty list). Return 0, or -EINVAL with a message in `error` that shows the
 * rule and its mistake, and with empty `rules`. */
int nb_grad_rules_parse(const char *text, struct nb_grad_rules *rules, char *error, size_t cap);

/* Return the verdict of the rules on a signature. */
enum nb_grad_word nb_grad_rules_ask(const struct nb_grad_rules *rules, enum nb_func func, ncclDataType_t type,
                                    uint64_t count, uint32_t nranks);

/* Write a signature as a rule, "FUNC:TYPE:COUNT@NRANKS". Return its length as snprintf does. */
int nb_grad_rule_text(enum nb_func func, ncclDataType_t type, uint64_t count, uint32_t nranks, char *buf,
                      size_t cap);

/* ---- rules.c: NIBBLE_COMMS ----------------------------------------------------------------------------- */

#define NB_COMM_RULES 64u
#define NB_COMM_NAME 64u

struct nb_comm_info {
    uint32_t nranks, nnodes, local, order; /* 0: unknown */
    char name[NB_COMM_NAME];               /* "": unnamed */
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
    unsigned keys; /* bits of the rule's conditions */
    uint64_t from[NB_COMM_NAMED], to[NB_COMM_NAMED];
    char name[NB_COMM_NAME];
};

struct nb_comm_rules {
    unsigned n;
    struct nb_comm_rule rule[NB_COMM_RULES];
};

/* Read the setting's text. Return 0, or -EINVAL with a message in `error` and empty `rules`. */
int nb_comm_rules_parse(const char *text, struct nb_comm_rules *rules, char *error, size_t cap);
/* Return 1 when this communicator is compressed. */
int nb_comm_rules_ask(const struct nb_comm_rules *rules, const struct nb_comm_info *facts);
/* Return 1 when a rule without ! is met, so that a user vouches for this communicator. */
int nb_comm_rules_include(const struct nb_comm_rules *rules, const struct nb_comm_info *facts);
/* Return "tensor", "sequence", "context" or "expert" where frameworks give the name to communicators of that
 * parallelism, else NULL. Names that also speak of data parallelism, replicas, shards or gradients give NULL,
 * since gradients or weights travel there. */
const char *nb_comm_parallelism(const char *name);
/* Write the known facts as a rule, "nranks=N:nnodes=N:local=N:order=N:name=TEXT". Return its length as
 * snprintf does. */
int nb_comm_rule_text(const struct nb_comm_info *facts, char *buf, size_t cap);

#endif
