/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NIBBLE_COMMS: which communicators are compressed at all. A list of rules, separated by commas, without
 * blanks:
 *
 *     KEY=VALUE[:KEY=VALUE...]     communicators that meet all the conditions
 *     !KEY=VALUE[:KEY=VALUE...]    not these; an exclusion prevails over every other rule
 *
 * KEY is nranks, nnodes, local (ranks a node), order (the process's communicators between nodes, from 1, as
 * they are made) or name; VALUE a number, a range N-M or, for name, a text in which * stands for anything.
 * Without a rule, or with exclusions only, all others are compressed. These are the words of the log lines,
 * to be pasted from there.
 *
 * A condition on what is not known (the name, where the framework gives none; ranks, where NCCL's profiler
 * events do not come here) is not met. Nodes vote on each communicator, so that all of them or none compress
 * it.
 */
#ifndef NIBBLE_POLICY_COMM_RULES_H
#define NIBBLE_POLICY_COMM_RULES_H

#include <stddef.h>
#include <stdint.h>

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
