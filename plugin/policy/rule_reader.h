/* SPDX-License-Identifier: Apache-2.0 */
/* What the grammars of NIBBLE_GRAD and NIBBLE_COMMS have in common: reading one rule, with messages that show
 * it. */
#ifndef NIBBLE_POLICY_RULE_READER_H
#define NIBBLE_POLICY_RULE_READER_H

#include <stddef.h>
#include <stdint.h>

struct nb_rule_reader {
    const char *rule; /* the rule being read, for messages */
    size_t length;
    const char *at, *end;
    char *error;
    size_t cap;
};

/* Write the message; returns -EINVAL. */
int nb_rule_bad(struct nb_rule_reader *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Length of the text up to `stop` or the rule's end. */
size_t nb_rule_word(const struct nb_rule_reader *r, char stop);
/* Call read_rule for every rule of a list ("" is none), in order. 0, or -EINVAL with a message for an empty
 * rule or as read_rule says, which returns 0 or nb_rule_bad's result. */
int nb_rules_read(const char *text, int (*read_rule)(struct nb_rule_reader *r, void *rules), void *rules,
                  char *error, size_t cap);
/* A decimal number; `what` names it in messages. 0 or -EINVAL. */
int nb_rule_number(struct nb_rule_reader *r, const char *what, uint64_t *value);

#endif
