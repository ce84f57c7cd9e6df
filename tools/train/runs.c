/* SPDX-License-Identifier: Apache-2.0 */
/* The runs that the trainer can compare. */
#include "runs.h"

#include <string.h>

static const char *const env_raw[] = {"NIBBLE_RS=raw", "NIBBLE_AG=raw", NULL};
static const char *const env_off[] = {"NIBBLE_RS=int4", "NIBBLE_AG=exact", "NIBBLE_EF=off", NULL};
static const char *const env_full[] = {"NIBBLE_RS=int4", "NIBBLE_AG=exact", "NIBBLE_EF=full", NULL};
static const char *const env_delta4[] = {"NIBBLE_RS=int4", "NIBBLE_AG=delta4", "NIBBLE_EF=full", NULL};
static const char *const env_ema[] = {"NIBBLE_RS=int4", "NIBBLE_AG=exact", "NIBBLE_EF=ema", NULL};
static const char *const env_ddp[] = {"NIBBLE_AR=int4", "NIBBLE_AG=exact", "NIBBLE_EF=full", NULL};
static const char *const env_ddp4[] = {"NIBBLE_AR=int4", "NIBBLE_AG=exact", "NIBBLE_EF=full",
                                       "NIBBLE_SECOND_HOP=int4", NULL};
static const char *const env_hops[] = {"NIBBLE_RS=int4", "NIBBLE_AG=exact", "NIBBLE_EF=full",
                                       "NIBBLE_SCHEDULE=two-hop", NULL};
static const char *const env_hops4[] = {"NIBBLE_RS=int4",          "NIBBLE_AG=exact",        "NIBBLE_EF=full",
                                        "NIBBLE_SCHEDULE=two-hop", "NIBBLE_SECOND_HOP=int4", NULL};
static const char *const env_grid[] = {"NIBBLE_RS=int4", "NIBBLE_AG=exact", "NIBBLE_EF=full",
                                       "NIBBLE_SCHEDULE=two-level", NULL};

#define INT4(ef) .gradients = NBT_GRADIENTS_INT4, .feedback = (ef), .weights = NBT_WEIGHTS_EXACT

const struct nbt_run nbt_runs[] = {
    {.name = "raw", .title = "uncompressed", .env = env_raw, .usual = 1},
    {.name = "nofeedback",
     .title = "4 bits, no feedback",
     .env = env_off,
     .method = {INT4(NB_EF_OFF)},
     .usual = 1},
    {.name = "feedback",
     .title = "4 bits, feedback",
     .env = env_full,
     .method = {INT4(NB_EF_FULL)},
     .usual = 1,
     .judged = 1},
    {.name = "ema", .title = "4 bits, averaged feedback", .env = env_ema, .method = {INT4(NB_EF_EMA)}},
    {.name = "delta4",
     .title = "4 bits, feedback, delta4",
     .env = env_delta4,
     .method = {.gradients = NBT_GRADIENTS_INT4, .feedback = NB_EF_FULL, .weights = NBT_WEIGHTS_DELTA4},
     .judged = 1},
    {.name = "all-reduce",
     .title = "all-reduce",
     .env = env_ddp,
     .method = {INT4(NB_EF_FULL), .all_reduce = 1, .finer = 1},
     .judged = 1},
    {.name = "all-reduce4",
     .title = "all-reduce, results with 4 bits",
     .env = env_ddp4,
     .method = {INT4(NB_EF_FULL), .all_reduce = 1},
     .judged = 2.5},
    {.name = "two-hop",
     .title = "two hops",
     .env = env_hops,
     .method = {INT4(NB_EF_FULL), .finer = 1},
     .judged = 1},
    {.name = "two-hop4",
     .title = "two hops, sums with 4 bits",
     .env = env_hops4,
     .method = {INT4(NB_EF_FULL)},
     .judged = 1.5},
    {.name = "two-level", /* sums of rows have 8 bits */
     .title = "two levels",
     .env = env_grid,
     .method = {INT4(NB_EF_FULL), .finer = 1},
     .judged = 1},
};
const size_t nbt_runs_count = sizeof nbt_runs / sizeof *nbt_runs;

_Static_assert(sizeof nbt_runs / sizeof *nbt_runs <= NBT_RUNS_MAX, "NBT_RUNS_MAX");

const struct nbt_run *nbt_run_find(const char *name, size_t n)
{
    for (size_t i = 0; i < nbt_runs_count; i++)
        if (strlen(nbt_runs[i].name) == n && strncmp(nbt_runs[i].name, name, n) == 0)
            return &nbt_runs[i];
    return NULL;
}

void nbt_run_names(FILE *f)
{
    for (size_t i = 0; i < nbt_runs_count; i++)
        fprintf(f, "%s%s", i ? ", " : "", nbt_runs[i].name);
}
