/* SPDX-License-Identifier: Apache-2.0 */
/* The grammar of NIBBLE_COMMS; see comm_rules.h. */
#include "policy/comm_rules.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "policy/rule_reader.h"

static const char *const keys[NB_COMM_KEYS] = {"nranks", "nnodes", "local", "order", "name"};

static int read_name(struct nb_rule_reader *r, struct nb_comm_rule *rule)
{
    size_t n = nb_rule_word(r, ':');

    if (n == 0 || n >= sizeof(rule->name))
        return nb_rule_bad(r, "a name has 1 to %zu characters", sizeof(rule->name) - 1);
    memcpy(rule->name, r->at, n);
    r->at += n;
    return 0;
}

static int read_condition(struct nb_rule_reader *r, struct nb_comm_rule *rule)
{
    size_t n = nb_rule_word(r, '=');
    unsigned key;

    for (key = 0; key < NB_COMM_KEYS; key++)
        if (n == strlen(keys[key]) && memcmp(r->at, keys[key], n) == 0)
            break;
    if (key == NB_COMM_KEYS || r->at + n == r->end)
        return nb_rule_bad(r, "a condition is nranks=, nnodes=, local=, order= or name= and a value");
    if (rule->keys >> key & 1)
        return nb_rule_bad(r, "%s= comes twice", keys[key]);
    rule->keys |= 1u << key;
    r->at += n + 1;
    if (key == NB_COMM_NAMED)
        return read_name(r, rule);
    if (nb_rule_number(r, keys[key], &rule->from[key]))
        return -EINVAL;
    rule->to[key] = rule->from[key];
    if (r->at < r->end && *r->at == '-') {
        r->at++;
        if (nb_rule_number(r, "the upper limit", &rule->to[key]))
            return -EINVAL;
        if (rule->to[key] < rule->from[key])
            return nb_rule_bad(r, "the upper limit is below the lower one");
    }
    return 0;
}

static int read_rule(struct nb_rule_reader *r, struct nb_comm_rule *rule)
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
            return nb_rule_bad(r, "\"%.*s\" is too much after a value",
                               (int)(r->end - r->at < 40 ? r->end - r->at : 40), r->at);
        r->at++;
    }
}

static int add_rule(struct nb_rule_reader *r, void *arg)
{
    struct nb_comm_rules *rules = arg;

    if (rules->n == NB_COMM_RULES)
        return nb_rule_bad(r, "there are more than %u rules", NB_COMM_RULES);
    return read_rule(r, &rules->rule[rules->n++]);
}

int nb_comm_rules_parse(const char *text, struct nb_comm_rules *rules, char *error, size_t cap)
{
    int ret;

    memset(rules, 0, sizeof(*rules));
    ret = nb_rules_read(text, add_rule, rules, error, cap);
    if (ret)
        memset(rules, 0, sizeof(*rules));
    return ret;
}

/* `*` in the pattern stands for any text, also for none. */
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
 * Words of names: Megatron's group descriptions (TENSOR_MODEL_PARALLEL_GROUP, DATA_PARALLEL_GROUP_WITH_CP), those of
 * PyTorch's device meshes (mesh_tp, mesh_dp_shard_cp), and dimensions that TorchTitan, Accelerate and others name.
 */
static const struct {
    const char *word, *parallelism; /* NULL: data, gradients or weights */
} words[] = {
    {"tp", "tensor"},
    {"etp", "tensor"},
    {"tensor", "tensor"},
    {"sp", "sequence"},
    {"sequence", "sequence"},
    {"seq", "sequence"},
    {"ulysses", "sequence"},
    {"cp", "context"},
    {"context", "context"},
    {"ep", "expert"},
    {"expert", "expert"},
    {"moe", "expert"},
    {"dp", NULL},
    {"edp", NULL},
    {"ddp", NULL},
    {"data", NULL},
    {"fsdp", NULL},
    {"efsdp", NULL},
    {"hsdp", NULL},
    {"zero", NULL},
    {"shard", NULL},
    {"sharded", NULL},
    {"sharding", NULL},
    {"replica", NULL},
    {"replicas", NULL},
    {"replicate", NULL},
    {"replicated", NULL},
    {"grad", NULL},
    {"grads", NULL},
    {"gradient", NULL},
    {"gradients", NULL},
    {"optimizer", NULL},
    {"weight", NULL},
    {"weights", NULL},
    {"param", NULL},
    {"params", NULL},
    {"world", NULL},
};

/* Copy the next word of *name in lower case, without digits at its end and without "parallel" behind it. False: there
 * is none. Words end at anything that is no letter or digit, and before a capital behind a small letter. */
static bool next_word(const char **name, char *word, size_t cap)
{
    static const char suffix[] = "parallel";
    const char *at = *name;
    size_t n = 0;

    while (*at && !isalnum((unsigned char)*at))
        at++;
    if (!*at)
        return false;
    do {
        if (n + 1 < cap)
            word[n++] = (char)tolower((unsigned char)*at);
        at++;
    } while (isalnum((unsigned char)*at) && !(isupper((unsigned char)*at) && islower((unsigned char)at[-1])));
    while (n > 1 && isdigit((unsigned char)word[n - 1]))
        n--;
    if (n > strlen(suffix) && memcmp(word + n - strlen(suffix), suffix, strlen(suffix)) == 0)
        n -= strlen(suffix);
    word[n] = 0;
    *name = at;
    return true;
}

const char *nb_comm_parallelism(const char *name)
{
    const char *found = NULL;
    char word[NB_COMM_NAME];

    while (next_word(&name, word, sizeof(word)))
        for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
            if (strcmp(words[i].word, word) != 0)
                continue;
            if (!words[i].parallelism)
                return NULL;
            if (!found)
                found = words[i].parallelism;
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
