/* SPDX-License-Identifier: Apache-2.0 */
/* The grammar of NIBBLE_GRAD; see grad_rules.h. */
#include "policy/grad_rules.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/nccl_names.h"
#include "policy/rule_reader.h"

static const struct {
    const char *word;
    int value;
} funcs[] = {{"reduce_scatter", NB_FUNC_REDUCE_SCATTER}, {"all_reduce", NB_FUNC_ALL_REDUCE}},
  types[] = {{"float32", ncclFloat32}, {"bfloat16", ncclBfloat16}, {"float16", ncclFloat16}};

static int read_rule(struct nb_rule_reader *r, struct nb_grad_rule *rule)
{
    uint64_t nranks = 0;
    size_t n;
    unsigned i;

    memset(rule, 0, sizeof(*rule));
    if (r->at < r->end && *r->at == '!') {
        rule->exclude = 1;
        r->at++;
    }
    n = nb_rule_word(r, ':');
    for (i = 0; i < sizeof(funcs) / sizeof(funcs[0]); i++)
        if (n == strlen(funcs[i].word) && memcmp(r->at, funcs[i].word, n) == 0)
            break;
    if (i == sizeof(funcs) / sizeof(funcs[0]))
        return nb_rule_bad(
            r,
            "it must be \"all\" or start with reduce_scatter: or all_reduce: (with ! in front to exclude)");
    rule->func = (enum nb_func)funcs[i].value;
    r->at += n;
    if (r->at == r->end)
        return nb_rule_bad(r, "a type and a count must follow the function, as in %s:bfloat16:1048576",
                           funcs[i].word);
    r->at++;
    n = nb_rule_word(r, ':');
    for (i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (n == strlen(types[i].word) && memcmp(r->at, types[i].word, n) == 0)
            break;
    if (i == sizeof(types) / sizeof(types[0]))
        return nb_rule_bad(r, "the type must be float32, bfloat16 or float16");
    rule->type = (ncclDataType_t)types[i].value;
    r->at += n;
    if (r->at == r->end)
        return nb_rule_bad(r, "a count must follow the type");
    r->at++;
    if (nb_rule_number(r, "the count", &rule->from))
        return -EINVAL;
    rule->to = rule->from;
    if (r->at < r->end && *r->at == '-') {
        r->at++;
        if (nb_rule_number(r, "the upper count", &rule->to))
            return -EINVAL;
        if (rule->to < rule->from)
            return nb_rule_bad(r, "the upper count is below the lower one");
    }
    if (r->at < r->end && *r->at == '@') {
        r->at++;
        if (nb_rule_number(r, "the number of ranks", &nranks))
            return -EINVAL;
        if (nranks < 1 || nranks > UINT32_MAX)
            return nb_rule_bad(r, "the number of ranks must be from 1 to %u", UINT32_MAX);
        rule->nranks = (uint32_t)nranks;
    }
    if (r->at != r->end)
        return nb_rule_bad(r, "\"%.*s\" is too much at its end",
                           (int)(r->end - r->at < 40 ? r->end - r->at : 40), r->at);
    return 0;
}

static int add_rule(struct nb_rule_reader *r, void *arg)
{
    struct nb_grad_rules *rules = arg;

    if (r->length == 3 && memcmp(r->rule, "all", 3) == 0) {
        rules->all = 1;
        return 0;
    }
    if (rules->n == NB_GRAD_RULES)
        return nb_rule_bad(r, "there are more than %u rules", NB_GRAD_RULES);
    return read_rule(r, &rules->rule[rules->n++]);
}

int nb_grad_rules_parse(const char *text, struct nb_grad_rules *rules, char *error, size_t cap)
{
    int ret;

    memset(rules, 0, sizeof(*rules));
    ret = nb_rules_read(text, add_rule, rules, error, cap);
    if (ret)
        memset(rules, 0, sizeof(*rules));
    return ret;
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
    const char *name = nb_nccl_type_name(type);

    for (unsigned i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if ((ncclDataType_t)types[i].value == type)
            name = types[i].word;
    return snprintf(buf, cap, "%s:%s:%llu@%u", nb_func_name(func), name, (unsigned long long)count, nranks);
}
