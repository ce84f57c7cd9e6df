/* SPDX-License-Identifier: Apache-2.0 */
/* Settings that another setting leaves without effect. See params.h. */
#include "base/params.h"

#include <stdbool.h>
#include <string.h>

#include "base/log.h"

static bool codes_sums(const struct nb_params *p)
{
    return p->rs != NB_SUM_RAW || p->ar != NB_SUM_RAW;
}

static bool feeds_back(const struct nb_params *p)
{
    return p->ef != NB_FEEDBACK_OFF && codes_sums(p);
}

static bool reckons(const struct nb_params *p)
{
    return p->rs == NB_SUM_AUTO || p->ar == NB_SUM_AUTO || p->ag == NB_AG_AUTO || p->p2p == NB_P2P_AUTO;
}

static bool bounds_gathers(const struct nb_params *p)
{
    return p->ag == NB_AG_DELTA4 || p->ag == NB_AG_DELTA4_FP32;
}

static bool keeps_references(const struct nb_params *p)
{
    return bounds_gathers(p) || p->ag == NB_AG_EXACT || p->ag == NB_AG_AUTO;
}

static bool may_use_gpu(const struct nb_params *p)
{
    return p->device != NB_DEVICE_HOST;
}

static bool may_use_tcp(const struct nb_params *p)
{
    return p->net != NB_NET_VERBS;
}

static bool may_keep_messages(const struct nb_params *p)
{
    return may_use_tcp(p) && p->p2p != NB_P2P_RAW;
}

static bool may_forward(const struct nb_params *p)
{
    return p->net == NB_NET_AUTO || p->net == NB_NET_FORWARD;
}

static bool tunes(const struct nb_params *p)
{
    return p->tuner != 0;
}

static bool writes_metrics(const struct nb_params *p)
{
    return p->metrics[0] != 0;
}

static bool makes_grids(const struct nb_params *p)
{
    return p->schedule == NB_SCHEDULE_AUTO || p->schedule == NB_SCHEDULE_TWO_LEVEL;
}

static const struct {
    const char *name;
    bool (*counts)(const struct nb_params *params);
    const char *because;
} rules[] = {
    {"NIBBLE_EF", codes_sums, "NIBBLE_RS=raw and NIBBLE_AR=raw send all sums raw"},
    {"NIBBLE_EF_IDENTITY", feeds_back, "error feedback is off"},
    {"NIBBLE_EF_MAX_MB", feeds_back, "error feedback is off"},
    {"NIBBLE_LINK_MBPS", reckons,
     "it belongs to the word auto of NIBBLE_RS, NIBBLE_AR, NIBBLE_AG and NIBBLE_P2P"},
    {"NIBBLE_GRAD", codes_sums, "NIBBLE_RS=raw and NIBBLE_AR=raw send all sums raw"},
    {"NIBBLE_AG_UNTYPED", bounds_gathers, "it belongs to NIBBLE_AG=delta4"},
    {"NIBBLE_REF_MAX_MB", keeps_references, "NIBBLE_AG keeps no references"},
    {"NIBBLE_GROUP", makes_grids, "NIBBLE_SCHEDULE makes no grid"},
    {"NIBBLE_SITE", makes_grids, "NIBBLE_SCHEDULE makes no grid"},
    {"NIBBLE_METRICS_PERIOD", writes_metrics, "NIBBLE_METRICS names no folder"},
    {"NIBBLE_TUNER_CHUNK_BYTES", tunes, "NIBBLE_TUNER=0"},
    {"NIBBLE_FORCE_COLLNET", tunes, "NIBBLE_TUNER=0"},
    {"NIBBLE_GPU_LAUNCH", may_use_gpu, "NIBBLE_DEVICE=host"},
    {"NIBBLE_GPU_RESERVE_MB", may_use_gpu, "NIBBLE_DEVICE=host"},
    {"NIBBLE_GPU_TIMEOUT", may_use_gpu, "NIBBLE_DEVICE=host"},
    {"NIBBLE_NET_FORWARD", may_forward, "NIBBLE_NET names another transport"},
    {"NIBBLE_P2P", may_use_tcp, "NIBBLE_NET=verbs"},
    {"NIBBLE_P2P_MAX_MB", may_keep_messages, "NIBBLE_NET=verbs or NIBBLE_P2P=raw keeps no messages"},
    {"NIBBLE_RMA", may_use_tcp, "NIBBLE_NET=verbs"},
    {"NIBBLE_TCP_STREAMS", may_use_tcp, "NIBBLE_NET=verbs"},
    {"NIBBLE_TCP_PACE_MBPS", may_use_tcp, "NIBBLE_NET=verbs"},
};

const char *nb_params_pointless(const struct nb_params *params, const char *name)
{
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
        if (strcmp(rules[i].name, name) == 0 && !rules[i].counts(params))
            return rules[i].because;
    return NULL;
}

int nb_params_log_pointless(const struct nb_params *params)
{
    int told = 0;

    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        if (nb_params_is_default(params, rules[i].name) || rules[i].counts(params))
            continue;
        NB_INFO(NCCL_INIT | NCCL_NET, "setting %s has no effect: %s", rules[i].name, rules[i].because);
        told++;
    }
    return told;
}
