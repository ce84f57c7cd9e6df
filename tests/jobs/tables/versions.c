/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of docs/nccl-versions.md, release by release: through the tables that each NCCL looks up, with the
 * profiler and the tuner that it would find, and with another plugin's in their place. Sharded training,
 * whose weights are gathered, is compressed everywhere, with carried errors. All-reduces are compressed only
 * where their records are certain, other operations never. The log says once when another plugin is in
 * nibble's place.
 */
#include <stdio.h>
#include <stdlib.h>

#include "nccl.h"
#include "player.h"

static const char *const env_default[] = {"NIBBLE_MIN_BYTES=0", "NIBBLE_GRAD=", "NIBBLE_WARMUP_STEPS=50",
                                          NULL};

struct promise {
    struct fw_nccl nccl;
    int all_reduces; /* of gradients. 0: raw, 1: coded, -1: not sent to CollNet */
    int profiler_notices, tuner_notices;
};

static int run(const struct promise *p, enum framework f, unsigned layers, unsigned shrink,
               struct fw_result r[2])
{
    struct trace trace;
    struct fw_play how = {.trace = &trace, .env = env_default, .warmup = 50, .late = 54, .nccl = &p->nccl};
    char name[120];
    int rc;

    trace_make_small(&trace, f, V_EVAL, layers, hx_quick() ? 64 : 80, 5, shrink);
    snprintf(name, sizeof(name), "%s under %s", framework_name(f), p->nccl.name);
    rc = fw_run(name, &how, r);
    free(trace.event);
    for (int node = 0; node < 2 && rc == 0; node++) {
        HX_CHECK(r[node].others_coded == 0, "%s: %lu sums that are no gradients were coded", name,
                 (unsigned long)r[node].others_coded);
        HX_CHECK(r[node].early_coded == 0, "%s: %lu operations of the warm-up were coded", name,
                 (unsigned long)r[node].early_coded);
        HX_CHECK(r[node].misapplied + r[node].early_misapplied == 0, "%s: %lu errors were misapplied", name,
                 (unsigned long)(r[node].misapplied + r[node].early_misapplied));
        HX_CHECK(r[node].profiler_notices == p->profiler_notices, "%s: %d notices of another profiler", name,
                 r[node].profiler_notices);
        HX_CHECK(r[node].tuner_notices == p->tuner_notices, "%s: %d notices of another tuner", name,
                 r[node].tuner_notices);
    }
    return rc;
}

static int keeps(const struct promise *p)
{
    struct fw_result r[2];

    if (run(p, F_FSDP2, hx_quick() ? 3 : 6, 256, r))
        return 1;
    printf("        %-22s sharded: coded %3.0f %%, fed %3.0f %%, ratio %.2f", p->nccl.name,
           100.0 * (double)r[0].coded / (double)r[0].gradients,
           100.0 * (double)r[0].fed / (double)r[0].gradients, r[0].sent / r[0].wire);
    for (int node = 0; node < 2; node++) {
        HX_CHECK(r[node].coded * 20 >= r[node].gradients * 19, "%s: %lu of %lu gradients were coded",
                 p->nccl.name, (unsigned long)r[node].coded, (unsigned long)r[node].gradients);
        HX_CHECK(r[node].fed * 10 >= r[node].gradients * (hx_quick() ? 7 : 9),
                 "%s: %lu of %lu gradients had feedback", p->nccl.name, (unsigned long)r[node].fed,
                 (unsigned long)r[node].gradients);
        HX_CHECK(r[node].cancelled < 0.5, "%s: errors do not cancel: %.3f is left", p->nccl.name,
                 r[node].cancelled);
    }
    if (hx_quick()) {
        puts("");
        return 0;
    }
    if (run(p, F_DDP, 3, 64, r))
        return 1;
    printf("; replicated: %lu all-reduces, %lu coded\n", (unsigned long)r[0].posted,
           (unsigned long)r[0].coded);
    for (int node = 0; node < 2; node++) {
        HX_CHECK((r[node].posted == 0) == (p->all_reduces < 0), "%s: %lu all-reduces were sent to CollNet",
                 p->nccl.name, (unsigned long)r[node].posted);
        HX_CHECK(p->all_reduces == 1 ? r[node].coded * 20 >= r[node].gradients * 19 : r[node].coded == 0,
                 "%s: %lu all-reduces were coded", p->nccl.name, (unsigned long)r[node].coded);
    }
    return 0;
}

#define PROMISE(name, ...) \
    static int name(void) \
    { \
        static const struct promise p = __VA_ARGS__; \
        return keeps(&p); \
    }
PROMISE(v20, {{"2.20 to 2.23", 8, 0, 0}, 0, 0, 0})
PROMISE(v24, {{"2.24, 2.25", 9, 4, 0}, -1, 0, 0})
PROMISE(v26, {{"2.26", 10, 4, 0}, -1, 0, 0})
PROMISE(v26_untuned, {{"2.26, another tuner", 10, 0, 0}, 0, 0, 0})
PROMISE(v27, {{"2.27 with profiler", 10, 4, 4}, -1, 0, 0})
PROMISE(v28, {{"2.28", 11, 5, 5}, 1, 0, 0})
PROMISE(v29, {{"2.29", 11, 5, 6}, 1, 0, 0})
PROMISE(v30, {{"2.30", 12, 6, 6}, 1, 0, 0})
PROMISE(v31, {{"2.31, 2.32", 12, 6, 7}, 1, 0, 0})
PROMISE(other_profiler, {{"2.30, another profiler", 12, 6, 0}, 0, 1, 0})
PROMISE(other_tuner, {{"2.30, another tuner", 12, 0, 6}, 1, 0, 1})
PROMISE(other_both, {{"2.28, another of both", 11, 0, 0}, 0, 1, 1})

HX_MAIN({"2.20", v20, 0}, {"2.24", v24, HX_CASE_LONG}, {"2.26", v26, HX_CASE_LONG},
        {"2.26-other-tuner", v26_untuned, HX_CASE_LONG}, {"2.27", v27, HX_CASE_FULL},
        {"2.28", v28, HX_CASE_LONG}, {"2.29", v29, HX_CASE_LONG}, {"2.30", v30, HX_CASE_LONG},
        {"2.31", v31, HX_CASE_FULL}, {"other-profiler", other_profiler, HX_CASE_FULL},
        {"other-tuner", other_tuner, HX_CASE_FULL}, {"other-both", other_both, HX_CASE_LONG})
