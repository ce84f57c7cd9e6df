/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of NIBBLE_GRAD and NIBBLE_COMMS: their effect on a signature and on a communicator, and invalid
 * rules. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/params.h"
#include "policy/reckon/reckon.h"
#include "policy/rules/rules.h"
#include "tests/suite.h"

START_TEST(of_signatures)
{
    struct nb_grad_rules r;
    char e[256], text[128];

    ck_assert_int_eq(nb_grad_rules_parse("all,!reduce_scatter:bfloat16:10-20", &r, e, sizeof(e)), 0);
    ck_assert_int_eq(nb_grad_rules_ask(&r, NB_FUNC_ALL_REDUCE, ncclFloat16, 1, 1), NB_GRAD_YES);
    ck_assert_int_eq(nb_grad_rules_ask(&r, NB_FUNC_REDUCE_SCATTER, ncclBfloat16, 20, 1), NB_GRAD_NO);
    ck_assert_int_eq(nb_grad_rules_ask(&r, NB_FUNC_REDUCE_SCATTER, ncclBfloat16, 21, 1), NB_GRAD_YES);
    ck_assert_int_eq(nb_grad_rules_parse("", &r, e, sizeof(e)), 0);
    ck_assert_int_eq(nb_grad_rules_ask(&r, NB_FUNC_ALL_REDUCE, ncclFloat16, 1, 1), NB_GRAD_SILENT);
    /* The parser reads the printed rule. */
    nb_grad_rule_text(NB_FUNC_REDUCE_SCATTER, ncclBfloat16, UINT64_MAX, 16, text, sizeof(text));
    ck_assert_int_eq(nb_grad_rules_parse(text, &r, e, sizeof(e)), 0);
    ck_assert_int_eq(nb_grad_rules_ask(&r, NB_FUNC_REDUCE_SCATTER, ncclBfloat16, UINT64_MAX, 16),
                     NB_GRAD_YES);
    ck_assert_int_eq(nb_grad_rules_ask(&r, NB_FUNC_REDUCE_SCATTER, ncclBfloat16, UINT64_MAX, 15),
                     NB_GRAD_SILENT);
}
END_TEST

START_TEST(of_communicators)
{
    struct nb_comm_info facts = {
        .nranks = 16, .nnodes = 2, .local = 8, .order = 3, .name = "DATA_PARALLEL_CP"};
    static const struct {
        const char *text;
        int yes;
    } rules[] = {
        {"", 1},
        {"nranks=16", 1},
        {"nranks=15,nranks=17", 0},
        {"nranks=15,nranks=16-20", 1},
        {"nranks=16:nnodes=3", 0},
        {"nranks=16:nnodes=2:local=8:order=1-3:name=*", 1},
        {"!nranks=16", 0},
        {"!nranks=15", 1},
        {"nranks=16,!order=3", 0},
        {"name=DATA*", 1},
        {"name=*CP", 1},
        {"name=*PARA*_CP", 1},
        {"name=DATA", 0},
        {"name=*DP*", 0},
        {"!name=EXPERT*", 1},
    };
    static const char *const wrong_rules[] = {
        "x",
        "nranks",
        "nranks=",
        "nranks=a",
        "nranks=2-1",
        "nranks=1:nranks=2",
        "name=",
        ",",
        "nranks=1,",
        "!",
        "nranks=1x",
        "nranks=1:",
        "size=3",
        "nranks=99999999999999999999",
        "name=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    };
    struct nb_comm_rules r;
    char e[256], text[200];

    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        ck_assert_int_eq(nb_comm_rules_parse(rules[i].text, &r, e, sizeof(e)), 0);
        ck_assert_msg(nb_comm_rules_ask(&r, &facts) == rules[i].yes, "%s", rules[i].text);
    }
    for (size_t i = 0; i < sizeof(wrong_rules) / sizeof(wrong_rules[0]); i++) {
        ck_assert_msg(nb_comm_rules_parse(wrong_rules[i], &r, e, sizeof(e)) != 0, "%s", wrong_rules[i]);
        ck_assert_msg(strstr(e, "rule \"") && r.n == 0, "%s", e);
    }
    /* The parser reads the printed rule, and it matches this communicator. */
    nb_comm_rule_text(&facts, text, sizeof(text));
    ck_assert_str_eq(text, "nranks=16:nnodes=2:local=8:order=3:name=DATA_PARALLEL_CP");
    ck_assert_int_eq(nb_comm_rules_parse(text, &r, e, sizeof(e)), 0);
    ck_assert_int_eq(nb_comm_rules_ask(&r, &facts), 1);
    facts.order = 4;
    ck_assert_int_eq(nb_comm_rules_ask(&r, &facts), 0);
    /* A condition on an unknown fact is false. */
    facts = (struct nb_comm_info){.nnodes = 2};
    ck_assert_int_eq(nb_comm_rules_parse("nranks=0-99", &r, e, sizeof(e)), 0);
    ck_assert_int_eq(nb_comm_rules_ask(&r, &facts), 0);
    ck_assert_int_eq(nb_comm_rules_parse("name=*", &r, e, sizeof(e)), 0);
    ck_assert_int_eq(nb_comm_rules_ask(&r, &facts), 0);
}
END_TEST

/* Names as frameworks give them. Wrong answers differ in price: declining gradients loses the whole gain,
 * connecting activations costs little. */
START_TEST(names)
{
    static const struct {
        const char *name, *parallelism;
    } cases[] = {
        /* Megatron's group descriptions */
        {"TENSOR_MODEL_PARALLEL_GROUP", "tensor"},
        {"CONTEXT_PARALLEL_GROUP", "context"},
        {"EXPERT_MODEL_PARALLEL_GROUP", "expert"},
        {"EXPERT_TENSOR_PARALLEL_GROUP", "expert"},
        {"EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", "expert"},
        {"EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP", "expert"},
        {"TENSOR_AND_CONTEXT_PARALLEL_GROUP", "tensor"},
        {"DATA_PARALLEL_GROUP", NULL},
        {"DATA_PARALLEL_GROUP_WITH_CP", NULL},
        {"INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP", NULL},
        {"INTER_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP", NULL},
        {"TENSOR_AND_DATA_PARALLEL_GROUP", NULL},
        {"TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP", NULL},
        {"EXPERT_DATA_PARALLEL_GROUP", NULL},
        {"INTRA_PARTIAL_EXPERT_DATA_PARALLEL_GROUP", NULL},
        {"DATA_MODULO_EXPERT_PARALLEL_GROUP", NULL},
        {"INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP", NULL},
        {"MODEL_PARALLEL_GROUP", NULL},
        {"PIPELINE_MODEL_PARALLEL_GROUP", NULL},
        {"EMBEDDING_GROUP", NULL},
        /* dimensions of PyTorch's device meshes */
        {"mesh_tp", "tensor"},
        {"mesh_cp", "context"},
        {"mesh_sp", "sequence"},
        {"mesh_ep", "expert"},
        {"mesh_etp", "tensor"},
        {"mesh_tensor_parallel", "tensor"},
        {"mesh_dp", NULL},
        {"mesh_dp_shard_cp", NULL},
        {"mesh_dp_cp", NULL},
        {"mesh_dp_replicate", NULL},
        {"mesh_dp_shard_mod_ep", NULL},
        {"mesh_ep_fsdp", NULL},
        {"mesh_ep_replicate", NULL},
        {"mesh_efsdp", NULL},
        {"mesh_data_parallel", NULL},
        {"mesh_dim_0", NULL},
        {"mesh_pp", NULL},
        {"mesh_world", NULL},
        {"default_pg", NULL},
        {"", NULL},
        /* and other spellings */
        {"tp", "tensor"},
        {"TP0", "tensor"},
        {"tp:3", "tensor"},
        {"tp-cp", "tensor"},
        {"cp-dp", NULL},
        {"TensorParallelGroup", "tensor"},
        {"sequenceparallel", "sequence"},
        {"seq_data_parallel", NULL},
        {"contextParallel2", "context"},
        {"dataparallel_tp", NULL},
        {"expert grads", NULL},
        {"tpx", NULL},
        {"step", NULL},
        {"_", NULL},
        {"parallel", NULL},
        {"12", NULL},
    };
    struct nb_params p = *nb_params_defaults();
    struct nb_comm_info info = {.nranks = 16, .nnodes = 2, .local = 8, .order = 3};
    struct nb_comm_rules rules;
    char why[160], e[256];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *got = nb_comm_parallelism(cases[i].name);
        ck_assert_msg(got == cases[i].parallelism ||
                          (got && cases[i].parallelism && strcmp(got, cases[i].parallelism) == 0),
                      "%s: %s", cases[i].name, got ? got : "none");
    }
    /* A rule vouches. Shadow mode and NIBBLE_FORCE_COLLNET do not ask. */
    snprintf(info.name, sizeof(info.name), "mesh_tp");
    ck_assert_int_eq(nb_comm_rules_parse("", &rules, e, sizeof(e)), 0);
    ck_assert(nb_policy_excludes(&p, &rules, &info, why, sizeof(why)));
    ck_assert_str_eq(why, "no gain: its name says tensor parallel, and no rule of NIBBLE_COMMS includes it "
                          "(nranks=16:nnodes=2:local=8:order=3:name=mesh_tp)");
    p.shadow = 1;
    ck_assert(!nb_policy_excludes(&p, &rules, &info, why, sizeof(why)));
    p.shadow = 0;
    p.force_collnet = 1;
    ck_assert(!nb_policy_excludes(&p, &rules, &info, why, sizeof(why)));
    p.force_collnet = 0;
    ck_assert_int_eq(nb_comm_rules_parse("!name=other", &rules, e, sizeof(e)), 0);
    ck_assert(nb_policy_excludes(&p, &rules, &info, why, sizeof(why)));
    ck_assert_int_eq(nb_comm_rules_parse("name=*tp", &rules, e, sizeof(e)), 0);
    ck_assert(!nb_policy_excludes(&p, &rules, &info, why, sizeof(why)));
    ck_assert_int_eq(nb_comm_rules_parse("nnodes=2-64", &rules, e, sizeof(e)), 0);
    ck_assert(!nb_policy_excludes(&p, &rules, &info, why, sizeof(why)));
    ck_assert_int_eq(nb_comm_rules_parse("nnodes=2-64,!name=*tp", &rules, e, sizeof(e)), 0);
    ck_assert(nb_policy_excludes(&p, &rules, &info, why, sizeof(why)) &&
              strstr(why, "NIBBLE_COMMS excludes it"));
    snprintf(info.name, sizeof(info.name), "mesh_dp");
    ck_assert(!nb_policy_excludes(&p, &rules, &info, why, sizeof(why)));
    p.enable = 0;
    ck_assert(nb_policy_excludes(&p, &rules, &info, why, sizeof(why)));
    ck_assert_str_eq(why, "NIBBLE_ENABLE=0");
}
END_TEST

static const struct {
    const char *text, *error;
} wrong[] = {
    {"al", "must be \"all\""},
    {",", "empty"},
    {"all,", "empty"},
    {"all,,all", "empty"},
    {"!all", "must be"},
    {" all", "must be"},
    {"all_reduce", "must follow"},
    {"all_reduce:", "type must be"},
    {"all_reduce:int8:1", "type must be"},
    {"all_gather:float32:1", "must be"},
    {"all_reduce:float32", "must follow the type"},
    {"all_reduce:float32:", "a number"},
    {"all_reduce:float32:-1", "a number"},
    {"all_reduce:float32:1-", "upper count must"},
    {"all_reduce:float32:5-4", "below"},
    {"all_reduce:float32:1@", "ranks must be a number"},
    {"all_reduce:float32:1@0", "from 1"},
    {"all_reduce:float32:1@4294967296", "from 1"},
    {"all_reduce:float32:99999999999999999999", "too large"},
    {"all_reduce:float32:1x", "too much"},
    {"all_reduce:float32:1-2-3", "too much"},
    {"!!all_reduce:float32:1", "must be"},
    {"all_reduce:float32:1 ", "too much"},
    {"ALL_REDUCE:float32:1", "must be"},
};

START_TEST(bad_signatures)
{
    struct nb_grad_rules r;
    char e[256] = "";

    ck_assert_int_lt(nb_grad_rules_parse(wrong[_i].text, &r, e, sizeof(e)), 0);
    ck_assert_msg(strstr(e, wrong[_i].error) != NULL, "\"%s\": %s", wrong[_i].text, e);
    ck_assert_uint_eq(r.n, 0);
    ck_assert_int_eq(r.all, 0);
}
END_TEST

START_TEST(too_many)
{
    char text[NB_GRAD_RULES * 24 + 32] = "all_reduce:float32:1", e[256];
    struct nb_grad_rules r;

    for (unsigned i = 1; i < NB_GRAD_RULES; i++)
        strcat(text, ",all_reduce:float32:1");
    ck_assert_int_eq(nb_grad_rules_parse(text, &r, e, sizeof(e)), 0);
    strcat(text, ",all_reduce:float32:1");
    ck_assert_int_lt(nb_grad_rules_parse(text, &r, e, sizeof(e)), 0);
}
END_TEST

SUITE_MAIN("rules", TEST(of_signatures), TEST(names), TEST(of_communicators),
           LOOP(bad_signatures, 0, (int)(sizeof(wrong) / sizeof(wrong[0]))), TEST(too_many))
