/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NIBBLE_GRAD: the user's rules for gradients. A list, separated by commas, without blanks:
 *
 *     all                                 every sum of float values is a gradient
 *     FUNC:TYPE:COUNT[-COUNT][@NRANKS]    these are: elements of the whole vector (for reduce_scatter of all
 *                                         ranks together), on communicators of NRANKS ranks
 *     !FUNC:TYPE:COUNT[-COUNT][@NRANKS]   these are not: an exclusion prevails over every other rule
 *
 * FUNC is reduce_scatter or all_reduce. TYPE is float32, bfloat16 or float16. Log lines use the same words,
 * so that rules can be pasted from there.
 *
 * NIBBLE_COMMS: the communicators that are compressed at all. A list of rules, separated by commas, without
 * blanks:
 *
 *     KEY=VALUE[:KEY=VALUE...]     communicators that meet all the conditions
 *     !KEY=VALUE[:KEY=VALUE...]    not these: an exclusion prevails over every other rule
 *
 * KEY is nranks, nnodes, local (ranks a node), order (the process's communicators between nodes, from 1, in
 * the order of their creation) or name. VALUE is a number, a range N-M or, for name, a text in which * stands
 * for anything. Without a rule, or with exclusions only, all other communicators are compressed. Log lines
 * use the same words, to be pasted from there.
 *
 * A condition on an unknown fact is not met: on the name where the framework gives none, on ranks where
 * NCCL's profiler events do not come here. Nodes vote on each communicator, so that either all of them
 * compress it or all leave it raw.
 */
#include "policy/rules/rules.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/nccl_names.h"

/*
 * The common part of the grammars of NIBBLE_GRAD and NIBBLE_COMMS: read one rule, with messages that show it.
 */
struct rule_reader {
    const char *rule; /* the current rule, for messages */
    size_t length;
    const char *at, *end;
    char *error;
    size_t cap;
};

/* Write the message and return -EINVAL. */
__attribute__((format(printf, 2, 3))) static int rule_bad(struct rule_reader *r, const char *fmt, ...)
{
    char what[160];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    snprintf(r->error, r->cap, "rule \"%.*s\": %s", (int)(r->length < 80 ? r->length : 80), r->rule, what);
    return -EINVAL;
}

/* Return the length of the text up to `stop` or the rule's end. */
static size_t rule_word(const struct rule_reader *r, char stop)
{
    const char *hit = memchr(r->at, stop, (size_t)(r->end - r->at));
    return (size_t)((hit ? hit : r->end) - r->at);
}

/* Call read_rule for every rule of a list ("": an empty list), in order. read_rule returns 0 or rule_bad's
 * result. Return 0, or -EINVAL with a message after an empty rule or an error of read_rule. */
static int read_rules(const char *text, int (*read_rule)(struct rule_reader *r, void *rules), void *rules,
                      char *error, size_t cap)
{
    while (*text) {
        size_t n = strcspn(text, ",");
        struct rule_reader r = {text, n, text, text + n, error, cap};

        if (n == 0)
            return rule_bad(&r, "it is empty");
        if (read_rule(&r, rules))
            return -EINVAL;
        if (!text[n])
            return 0;
        text += n + 1;
        if (!*text) { /* a comma at the end of the text */
            r = (struct rule_reader){text, 0, text, text, error, cap};
            return rule_bad(&r, "it is empty");
        }
    }
    return 0;
}

/* read_rules into `bytes` bytes at `rules`, zeros at first and after an error. */
static int parse_rules(const char *text, int (*read_rule)(struct rule_reader *r, void *rules), void *rules,
                       size_t bytes, char *error, size_t cap)
{
    memset(rules, 0, bytes);
    const int ret = read_rules(text, read_rule, rules, error, cap);
    if (ret)
        memset(rules, 0, bytes);
    return ret;
}

/* Read a decimal number. `what` names it in messages. Return 0 or -EINVAL. */
static int read_number(struct rule_reader *r, const char *what, uint64_t *value)
{
    uint64_t v = 0;
    const char *start = r->at;

    for (; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++) {
        uint64_t digit = (uint64_t)(*r->at - '0');
        if (v > (UINT64_MAX - digit) / 10)
            return rule_bad(r, "%s is too large", what);
        v = v * 10 + digit;
    }
    if (r->at == start)
        return rule_bad(r, "%s must be a number", what);
    *value = v;
    return 0;
}

static const struct {
    const char *word;
    int value;
} funcs[] = {{"reduce_scatter", NB_FUNC_REDUCE_SCATTER}, {"all_reduce", NB_FUNC_ALL_REDUCE}},
  types[] = {{"float32", ncclFloat32}, {"bfloat16", ncclBfloat16}, {"float16", ncclFloat16}};

static int read_grad_rule(struct rule_reader *r, struct nb_grad_rule *rule)
{
    uint64_t nranks = 0;
    size_t n;
    unsigned i;

    memset(rule, 0, sizeof(*rule));
    if (r->at < r->end && *r->at == '!') {
        rule->exclude = 1;
        r->at++;
    }
    n = rule_word(r, ':');
    for (i = 0; i < sizeof(funcs) / sizeof(funcs[0]); i++)
        if (n == strlen(funcs[i].word) && memcmp(r->at, funcs[i].word, n) == 0)
            break;
    if (i == sizeof(funcs) / sizeof(funcs[0]))
        return rule_bad(
            r,
            "it must be \"all\" or start with reduce_scatter: or all_reduce: (with ! in front to exclude)");
    rule->func = (enum nb_func)funcs[i].value;
    r->at += n;
    if (r->at == r->end)
        return rule_bad(r, "a type and a count must follow the function, as in %s:bfloat16:1048576",
                        funcs[i].word);
    r->at++;
    n = rule_word(r, ':');
    for (i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (n == strlen(types[i].word) && memcmp(r->at, types[i].word, n) == 0)
            break;
    if (i == sizeof(types) / sizeof(types[0]))
        return rule_bad(r, "the type must be float32, bfloat16 or float16");
    rule->type = (ncclDataType_t)types[i].value;
    r->at += n;
    if (r->at == r->end)
        return rule_bad(r, "a count must follow the type");
    r->at++;
    if (read_number(r, "the count", &rule->from))
        return -EINVAL;
    rule->to = rule->from;
    if (r->at < r->end && *r->at == '-') {
        r->at++;
        if (read_number(r, "the upper count", &rule->to))
            return -EINVAL;
        if (rule->to < rule->from)
            return rule_bad(r, "the upper count is below the lower one");
    }
    if (r->at < r->end && *r->at == '@') {
        r->at++;
        if (read_number(r, "the number of ranks", &nranks))
            return -EINVAL;
        if (nranks < 1 || nranks > UINT32_MAX)
            return rule_bad(r, "the number of ranks must be from 1 to %u", UINT32_MAX);
        rule->nranks = (uint32_t)nranks;
    }
    if (r->at != r->end)
        return rule_bad(r, "\"%.*s\" is too much at its end",
                        (int)(r->end - r->at < 40 ? r->end - r->at : 40), r->at);
    return 0;
}

static int add_grad_rule(struct rule_reader *r, void *arg)
{
    struct nb_grad_rules *rules = arg;

    if (r->length == 3 && memcmp(r->rule, "all", 3) == 0) {
        rules->all = 1;
        return 0;
    }
    if (rules->n == NB_GRAD_RULES)
        return rule_bad(r, "there are more than %u rules", NB_GRAD_RULES);
    return read_grad_rule(r, &rules->rule[rules->n++]);
}

int nb_grad_rules_parse(const char *text, struct nb_grad_rules *rules, char *error, size_t cap)
{
    return parse_rules(text, add_grad_rule, rules, sizeof(*rules), error, cap);
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

static const char *const keys[NB_COMM_KEYS] = {"nranks", "nnodes", "local", "order", "name"};

static int read_name(struct rule_reader *r, struct nb_comm_rule *rule)
{
    size_t n = rule_word(r, ':');

    if (n == 0 || n >= sizeof(rule->name))
        return rule_bad(r, "a name has 1 to %zu characters", sizeof(rule->name) - 1);
    memcpy(rule->name, r->at, n);
    r->at += n;
    return 0;
}

static int read_condition(struct rule_reader *r, struct nb_comm_rule *rule)
{
    size_t n = rule_word(r, '=');
    unsigned key;

    for (key = 0; key < NB_COMM_KEYS; key++)
        if (n == strlen(keys[key]) && memcmp(r->at, keys[key], n) == 0)
            break;
    if (key == NB_COMM_KEYS || r->at + n == r->end)
        return rule_bad(r, "a condition is nranks=, nnodes=, local=, order= or name= and a value");
    if (rule->keys >> key & 1)
        return rule_bad(r, "%s= comes twice", keys[key]);
    rule->keys |= 1u << key;
    r->at += n + 1;
    if (key == NB_COMM_NAMED)
        return read_name(r, rule);
    if (read_number(r, keys[key], &rule->from[key]))
        return -EINVAL;
    rule->to[key] = rule->from[key];
    if (r->at < r->end && *r->at == '-') {
        r->at++;
        if (read_number(r, "the upper limit", &rule->to[key]))
            return -EINVAL;
        if (rule->to[key] < rule->from[key])
            return rule_bad(r, "the upper limit is below the lower one");
    }
    return 0;
}

static int read_comm_rule(struct rule_reader *r, struct nb_comm_rule *rule)
{
    if (r->at < r->end && *r->at == '!') {
        rule->exclude = 1;
        r->at++;
    }
    for (;;) {
        if (read_condition(r, rule))
            return -EINVAL;
        if (r->at == r->end)
            return 0;
        if (*r->at != ':')
            return rule_bad(r, "\"%.*s\" is too much after a value",
                            (int)(r->end - r->at < 40 ? r->end - r->at : 40), r->at);
        r->at++;
    }
}

static int add_comm_rule(struct rule_reader *r, void *arg)
{
    struct nb_comm_rules *rules = arg;

    if (rules->n == NB_COMM_RULES)
        return rule_bad(r, "there are more than %u rules", NB_COMM_RULES);
    return read_comm_rule(r, &rules->rule[rules->n++]);
}

int nb_comm_rules_parse(const char *text, struct nb_comm_rules *rules, char *error, size_t cap)
{
    return parse_rules(text, add_comm_rule, rules, sizeof(*rules), error, cap);
}

/* Return 1 when the text matches. `*` in the pattern stands for any text, also for an empty one. */
static int matches(const char *pattern, const char *text)
{
    const char *star = NULL, *retry = NULL;

    while (*text) {
        if (*pattern == '*') {
            star = ++pattern;
            retry = text;
        } else if (*pattern == *text) {
            pattern++;
            text++;
        } else if (star) {
            pattern = star;
            text = ++retry;
        } else {
            return 0;
        }
    }
    while (*pattern == '*')
        pattern++;
    return !*pattern;
}

static int meets(const struct nb_comm_rule *rule, const struct nb_comm_info *facts)
{
    const uint32_t value[NB_COMM_NAMED] = {facts->nranks, facts->nnodes, facts->local, facts->order};

    for (unsigned key = 0; key < NB_COMM_NAMED; key++)
        if (rule->keys >> key & 1 &&
            (value[key] == 0 || value[key] < rule->from[key] || value[key] > rule->to[key]))
            return 0;
    return !(rule->keys >> NB_COMM_NAMED & 1) || (facts->name[0] && matches(rule->name, facts->name));
}

int nb_comm_rules_ask(const struct nb_comm_rules *rules, const struct nb_comm_info *facts)
{
    int included = 0, inclusions = 0;

    for (const struct nb_comm_rule *r = rules->rule; r < rules->rule + rules->n; r++) {
        inclusions |= !r->exclude;
        if (!meets(r, facts))
            continue;
        if (r->exclude)
            return 0;
        included = 1;
    }
    return included || !inclusions;
}

int nb_comm_rules_include(const struct nb_comm_rules *rules, const struct nb_comm_info *facts)
{
    for (const struct nb_comm_rule *r = rules->rule; r < rules->rule + rules->n; r++)
        if (!r->exclude && meets(r, facts))
            return 1;
    return 0;
}

/* ---- names ------------------------------------------------------------------------------------------- */

/*
 * Words in names of communicators: Megatron's group descriptions (TENSOR_MODEL_PARALLEL_GROUP,
 * DATA_PARALLEL_GROUP_WITH_CP), PyTorch's device meshes (mesh_tp, mesh_dp_shard_cp), and the dimensions of
 * TorchTitan, Accelerate and other frameworks.
 */
static const struct {
    const char *words, *parallelism; /* NULL: data, gradients or weights */
} kinds[] = {
    {" tp etp tensor ", "tensor"},
    {" sp sequence seq ulysses ", "sequence"},
    {" cp context ", "context"},
    {" ep expert moe ", "expert"},
    {" dp edp ddp data fsdp efsdp hsdp zero shard sharded sharding replica replicas replicate "
     "replicated grad grads gradient gradients optimizer weight weights param params world ",
     NULL},
};

/* Copy the next word of *name in lower case, between blanks, without digits at its end and without "parallel"
 * behind it. Return false at the end of the name. A word ends at any character but a letter or digit, and
 * before a capital behind a small letter. */
static bool next_word(const char **name, char *word, size_t cap)
{
    static const char suffix[] = "parallel";
    const char *at = *name;
    size_t n = 1;

    while (*at && !isalnum((unsigned char)*at))
        at++;
    if (!*at)
        return false;
    do {
        if (n + 2 < cap)
            word[n++] = (char)tolower((unsigned char)*at);
        at++;
    } while (isalnum((unsigned char)*at) && !(isupper((unsigned char)*at) && islower((unsigned char)at[-1])));
    while (n > 2 && isdigit((unsigned char)word[n - 1]))
        n--;
    if (n > strlen(suffix) + 1 && memcmp(word + n - strlen(suffix), suffix, strlen(suffix)) == 0)
        n -= strlen(suffix);
    word[0] = word[n] = ' ';
    word[n + 1] = 0;
    *name = at;
    return true;
}

const char *nb_comm_parallelism(const char *name)
{
    const char *found = NULL;
    char word[NB_COMM_NAME];

    while (next_word(&name, word, sizeof(word)))
        for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
            if (!strstr(kinds[i].words, word))
                continue;
            if (!kinds[i].parallelism)
                return NULL;
            found = found ? found : kinds[i].parallelism;
        }
    return found;
}

int nb_comm_rule_text(const struct nb_comm_info *facts, char *buf, size_t cap)
{
    const uint32_t value[NB_COMM_NAMED] = {facts->nranks, facts->nnodes, facts->local, facts->order};
    size_t at = 0;

    if (cap)
        buf[0] = 0;
    for (unsigned key = 0; key < NB_COMM_NAMED; key++)
        if (value[key])
            at += (size_t)snprintf(at < cap ? buf + at : NULL, at < cap ? cap - at : 0, "%s%s=%u",
                                   at ? ":" : "", keys[key], value[key]);
    if (facts->name[0])
        at += (size_t)snprintf(at < cap ? buf + at : NULL, at < cap ? cap - at : 0, "%sname=%s",
                               at ? ":" : "", facts->name);
    return (int)at;
}
