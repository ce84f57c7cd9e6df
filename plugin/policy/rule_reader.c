/* SPDX-License-Identifier: Apache-2.0 */
/* See rule_reader.h. */
#include "policy/rule_reader.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int nb_rule_bad(struct nb_rule_reader *r, const char *fmt, ...)
{
    char what[160];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    snprintf(r->error, r->cap, "rule \"%.*s\": %s", (int)(r->length < 80 ? r->length : 80), r->rule, what);
    return -EINVAL;
}

size_t nb_rule_word(const struct nb_rule_reader *r, char stop)
{
    const char *hit = memchr(r->at, stop, (size_t)(r->end - r->at));
    return (size_t)((hit ? hit : r->end) - r->at);
}

int nb_rules_read(const char *text, int (*read_rule)(struct nb_rule_reader *r, void *rules), void *rules,
                  char *error, size_t cap)
{
    while (*text) {
        size_t n = strcspn(text, ",");
        struct nb_rule_reader r = {text, n, text, text + n, error, cap};

        if (n == 0)
            return nb_rule_bad(&r, "it is empty");
        if (read_rule(&r, rules))
            return -EINVAL;
        if (!text[n])
            return 0;
        text += n + 1;
        if (!*text) { /* a comma, and nothing behind it */
            r = (struct nb_rule_reader){text, 0, text, text, error, cap};
            return nb_rule_bad(&r, "it is empty");
        }
    }
    return 0;
}

int nb_rule_number(struct nb_rule_reader *r, const char *what, uint64_t *value)
{
    uint64_t v = 0;
    const char *start = r->at;

    for (; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++) {
        uint64_t digit = (uint64_t)(*r->at - '0');
        if (v > (UINT64_MAX - digit) / 10)
            return nb_rule_bad(r, "%s is too large", what);
        v = v * 10 + digit;
    }
    if (r->at == start)
        return nb_rule_bad(r, "%s must be a number", what);
    *value = v;
    return 0;
}
