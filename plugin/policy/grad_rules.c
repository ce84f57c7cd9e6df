/* SPDX-License-Identifier: Apache-2.0 */
/* The grammar of NIBBLE_GRAD; see grad_rules.h. */
#include "policy/grad_rules.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *word;
    int value;
} funcs[] = {{"reduce_scatter", NB_FUNC_REDUCE_SCATTER}, {"all_reduce", NB_FUNC_ALL_REDUCE}},
  types[] = {{"float32", ncclFloat32}, {"bfloat16", ncclBfloat16}, {"float16", ncclFloat16}};

struct reader {
    const char *rule; /* the rule being read, for messages */
    size_t length;
    const char *at, *end;
    char *error;
    size_t cap;
};

__attribute__((format(printf, 2, 3))) static int bad(struct reader *r, const char *fmt, ...)
{
    char what[160];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    snprintf(r->error, r->cap, "rule \"%.*s\": %s", (int)(r->length < 80 ? r->length : 80), r->rule, what);
    return -EINVAL;
}

/* The text up to `stop` or the rule's end. */
static size_t word_length(const struct reader *r, char stop)
{
    const char *hit = memchr(r->at, stop, (size_t)(r->end - r->at));
    return (size_t)((hit ? hit : r->end) - r->at);
}

static int read_number(struct reader *r, const char *what, uint64_t *value)
{
    uint64_t v = 0;
    const char *start = r->at;

    for (; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++) {
        uint64_t digit = (uint64_t)(*r->at - '0');
        if (v > (UINT64_MAX - digit) / 10)
            return bad(r, "%s is too large", what);
        v = v * 10 + digit;
    }
    if (r->at == start)
        return bad(r, "%s must be a number", what);
    *value = v;
    return 0;
}

static int read_rule(struct reader *r, struct nb_grad_rule *rule)
{
    uint64_t nranks = 0;
    size_t n;
    unsigned i;

    memset(rule, 0, sizeof(*rule));
    if (r->at < r->end && *r->at == '!') {
        rule->exclude = 1;
        r->at++;
    }
    n = word_length(r, ':');
    for (i = 0; i < sizeof(funcs) / sizeof(funcs[0]); i++)
        if (n == strlen(funcs[i].word) && memcmp(r->at, funcs[i].word, n) == 0)
            break;
    if (i == sizeof(funcs) / sizeof(funcs[0]))
        return bad(
            r,
            "it must be \"all\" or start with reduce_scatter: or all_reduce: (with ! in front to exclude)");
    rule->func = (enum nb_func)funcs[i].value;
    r->at += n;
    if (r->at == r->end)
        return bad(r, "a type and a count must follow the function, as in %s:bfloat16:1048576",
                   funcs[i].word);
    r->at++;
    n = word_length(r, ':');
    for (i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (n == strlen(types[i].word) && memcmp(r->at, types[i].word, n) == 0)
            break;
    if (i == sizeof(types) / sizeof(types[0]))
        return bad(r, "the type must be float32, bfloat16 or float16");
    rule->type = (ncclDataType_t)types[i].value;
    r->at += n;
    if (r->at == r->end)
        return bad(r, "a count must follow the type");
    r->at++;
    if (read_number(r, "the count", &rule->from))
        return -EINVAL;
    rule->to = rule->from;
    if (r->at < r->end && *r->at == '-') {
        r->at++;
        if (read_number(r, "the upper count", &rule->to))
            return -EINVAL;
        if (rule->to < rule->from)
            return bad(r, "the upper count is below the lower one");
    }
    if (r->at < r->end && *r->at == '@') {
        r->at++;
        if (read_number(r, "the number of ranks", &nranks))
            return -EINVAL;
        if (nranks < 1 || nranks > UINT32_MAX)
            return bad(r, "the number of ranks must be from 1 to %u", UINT32_MAX);
        rule->nranks = (uint32_t)nranks;
    }
    if (r->at != r->end)
        return bad(r, "\"%.*s\" is too much at its end", (int)(r->end - r->at < 40 ? r->end - r->at : 40),
                   r->at);
    return 0;
}

int nb_grad_rules_parse(const char *text, struct nb_grad_rules *rules, char *error, size_t cap)
{
    struct nb_grad_rules read = {0};
    const char *at = text;

    memset(rules, 0, sizeof(*rules));
    while (*text) {
        size_t n = strcspn(at, ",");
        struct reader r = {at, n, at, at + n, error, cap};

        if (n == 0)
            return bad(&r, "it is empty");
        if (n == 3 && memcmp(at, "all", 3) == 0) {
            read.all = 1;
        } else {
            if (read.n == NB_GRAD_RULES)
                return bad(&r, "there are more than %u rules", NB_GRAD_RULES);
            if (read_rule(&r, &read.rule[read.n]))
                return -EINVAL;
            read.n++;
        }
        if (!at[n])
            break;
        at += n + 1;
    }
    *rules = read;
    return 0;
}

enum nb_grad_word nb_grad_rules_ask(const struct nb_grad_rules *rules, enum nb_func func, ncclDataType_t type,
                                    uint64_t count, uint32_t nranks)
{
    enum nb_grad_word word = rules->all ? NB_GRAD_YES : NB_GRAD_SILENT;

    for (const struct nb_grad_rule *r = rules->rule; r < rules->rule + rules->n; r++) {
        if (r->func != func || r->type != type || count < r->from || count > r->to ||
            (r->nranks && r->nranks != nranks))
            continue;
        if (r->exclude)
            return NB_GRAD_NO;
        word = NB_GRAD_YES;
    }
    return word;
}

int nb_grad_rule_text(enum nb_func func, ncclDataType_t type, uint64_t count, uint32_t nranks, char *buf,
                      size_t cap)
{
    const char *name = "unknown";

    for (unsigned i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if ((ncclDataType_t)types[i].value == type)
            name = types[i].word;
    return snprintf(buf, cap, "%s:%s:%llu@%u", nb_func_name(func), name, (unsigned long long)count, nranks);
}
