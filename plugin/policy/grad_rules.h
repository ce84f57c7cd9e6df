/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NIBBLE_GRAD: the user's word on what is a gradient. A list of rules, separated by commas, without blanks:
 *
 *     all                                 every sum of float values is a gradient
 *     FUNC:TYPE:COUNT[-COUNT][@NRANKS]    these are: elements of the whole vector (for reduce_scatter of all
 *                                         ranks together), on communicators of NRANKS ranks
 *     !FUNC:TYPE:COUNT[-COUNT][@NRANKS]   these are not; an exclusion prevails over every other rule
 *
 * FUNC is reduce_scatter or all_reduce; TYPE is float32, bfloat16 or float16. These are the words of the log
 * lines, so that rules can be pasted from there.
 */
#ifndef NIBBLE_POLICY_GRAD_RULES_H
#define NIBBLE_POLICY_GRAD_RULES_H

#include <stddef.h>
#include <stdint.h>

#include "base/func.h"
#include "nibble/nccl_types.h"

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

#endif
