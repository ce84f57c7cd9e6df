/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators that the nodes decline at connect, so that NCCL's own algorithms run from the first call. */
#include <stdio.h>

#include "base/params.h"
#include "policy/reckon/reckon.h"
#include "policy/rules/rules.h"

/* Shadow mode shows the effect of coding, and NIBBLE_FORCE_COLLNET fails operations of a declined
 * communicator. With either, every communicator connects unless a setting excludes it. */
static bool connects_always(const struct nb_params *p)
{
    return p->shadow || p->force_collnet;
}

bool nb_policy_excludes(const struct nb_params *p, const struct nb_comm_rules *rules,
                        const struct nb_comm_info *info, char *why, size_t cap)
{
    const char *parallel = nb_comm_parallelism(info->name);
    char traits[120];

    nb_comm_rule_text(info, traits, sizeof(traits));
    if (!p->enable)
        snprintf(why, cap, "NIBBLE_ENABLE=0");
    else if (!nb_comm_rules_ask(rules, info))
        snprintf(why, cap, "NIBBLE_COMMS excludes it (%s)", traits);
    else if (parallel && !connects_always(p) && !nb_comm_rules_include(rules, info))
        snprintf(why, cap, "no gain: its name says %s parallel, and no rule of NIBBLE_COMMS includes it (%s)",
                 parallel, traits);
    else
        return false;
    return true;
}

/* Return whether every operation of the function is raw. Set *reckoned when the reason is that coding pays at
 * no size. */
static bool is_raw(const struct nb_params *p, const struct nb_reckoning *r, enum nb_func func, bool *reckoned)
{
    const bool gather = func == NB_FUNC_ALL_GATHER;

    *reckoned = (gather ? p->ag == NB_AG_AUTO : nb_policy_reckons(p, func)) && !nb_reckon_pays(r, func);
    return *reckoned || (gather ? p->ag == NB_AG_RAW || p->ag == NB_AG_OFF
                                : (func == NB_FUNC_ALL_REDUCE ? p->ar : p->rs) == NB_SUM_RAW);
}

bool nb_policy_declines(const struct nb_params *p, const struct nb_reckoning *r, char *why, size_t cap)
{
    static const struct {
        enum nb_func func;
        const char *setting;
    } all[] = {{NB_FUNC_REDUCE_SCATTER, "NIBBLE_RS=int4"},
               {NB_FUNC_ALL_REDUCE, "NIBBLE_AR=int4"},
               {NB_FUNC_ALL_GATHER, "NIBBLE_AG=exact"}};
    const char *setting = NULL;
    char facts[128], remedy[64];
    unsigned workers = 0;
    uint64_t buffer = 0;

    if (!r->known || connects_always(p))
        return false;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        const unsigned more = nb_reckon_workers(r, all[i].func);
        bool reckoned;

        if (!is_raw(p, r, all[i].func, &reckoned))
            return false;
        if (reckoned && !setting)
            setting = all[i].setting;
        if (reckoned && !buffer)
            buffer = nb_reckon_buffer_needed(r, all[i].func);
        if (reckoned && more && (!workers || more < workers))
            workers = more;
    }
    if (!setting)
        return false;
    nb_reckon_facts_text(r, facts, sizeof(facts));
    if (buffer)
        snprintf(remedy, sizeof(remedy), "NCCL_BUFFSIZE=%llu would change that", (unsigned long long)buffer);
    else if (workers)
        snprintf(remedy, sizeof(remedy), "NIBBLE_HOST_THREADS=%u would change that", workers);
    else
        snprintf(remedy, sizeof(remedy), "%s connects it all the same", setting);
    snprintf(why, cap, "no gain on %s (%s)", facts, remedy);
    return true;
}
