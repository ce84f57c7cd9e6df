/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The call orders of the frameworks through the plugin's tables on two nodes, with the truth known. See
 * player.h. These must hold, each as far as the plugin can know:
 *
 * - Buffers with an own address or signature have feedback from the fourth step after the warm-up, blocks of
 *   equal size from step 50.
 * - Where the evidence decides, each operation gets its own buffer's error. Where layers are left out or
 * frozen
 *   in turn, one in a thousand at most gets another buffer's.
 * - Operations that are not gradients go raw, and raw is right to the bit. - Errors that are fed back cancel
 * over the steps.
 *
 * With NB_LONG_TESTS=1 every framework runs with every variant.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "player.h"
#include "policy/recognise/recognise.h"

#define WARMUP 50u

/* The defaults of users, except for the sizes. */
static const char *const env_default[] = {"NIBBLE_MIN_BYTES=0", "NIBBLE_GRAD=", "NIBBLE_WARMUP_STEPS=50",
                                          NULL};
/* The plugin cannot see that the differences of local SGD are gradients: the user says so. */
static const char *const env_vouched[] = {
    "NIBBLE_MIN_BYTES=0", "NIBBLE_GRAD=all_reduce:float32:4096-8191,all_reduce:float32:100000-110000",
    "NIBBLE_WARMUP_STEPS=50", NULL};
/* All operations are gradients from the first step on: the least that identity needs. */
static const char *const env_grad_all[] = {"NIBBLE_MIN_BYTES=0", "NIBBLE_GRAD=all", "NIBBLE_WARMUP_STEPS=0",
                                           NULL};

/* Size of a framework's job that runs in a second. Without gathers of weights, sums of 65536 values mark the
 * steps. */
struct shape {
    unsigned layers, shrink;
    uint32_t steps;
};

static struct shape shape_of(enum framework f)
{
    switch (f) {
    case F_DDP: return (struct shape){6, 64, 90};
    case F_HSDP: return (struct shape){6, 8, 90};
    case F_OUTER: return (struct shape){4, 64, 400}; /* one step in five is between nodes */
    case F_ZERO1:
    case F_ZERO2: return (struct shape){8, 256, 90};
    case F_ZERO3: return (struct shape){12, 512, 100};
    default: return (struct shape){8, 256, 90};
    }
}

struct bars {
    double fed;    /* least share of late gradients with feedback. 0: any */
    int first;     /* step (from 1) by which feedback has begun. 0: any */
    double wrong;  /* most misapplied, as a share of late gradients */
    double cancel; /* most of summed errors that may be left. 0: any */
};

static void print_reasons(int node, const struct fw_result *n)
{
    for (int k = 0; k < NB_WHY_COUNT; k++)
        if (n->class_reason[k])
            printf("          node %d: %5lu times: %s\n", node, (unsigned long)n->class_reason[k],
                   nb_class_reason_text((enum nb_class_reason)k));
    for (int k = 0; k < NB_ID_REASON_COUNT; k++)
        if (n->id_reason[k])
            printf("          node %d: %5lu times: %s\n", node, (unsigned long)n->id_reason[k],
                   nb_identity_reason_text((enum nb_identity_reason)k));
}

static int play(enum framework f, unsigned variants, const char *const *env, uint32_t steps, uint32_t late,
                int share, struct bars bars)
{
    struct shape s = shape_of(f);
    struct trace trace;
    struct fw_play how = {.trace = &trace,
                          .env = env,
                          .warmup = env == env_grad_all ? 0 : WARMUP,
                          .late = late,
                          .share_outer = share};
    struct fw_result r[2];
    char name[160];
    int rc;

    trace_make_small(&trace, f, variants, s.layers, steps ? steps : s.steps, 5, s.shrink);
    snprintf(name, sizeof(name), "%s, %s", framework_name(f), variants_name(variants));
    rc = fw_run(name, &how, r);
    free(trace.event);
    if (rc)
        return rc;
    for (int node = 0; node < 2; node++) {
        const struct fw_result *n = &r[node];
        double all = (double)n->gradients;

        if (node == 0)
            printf("        %-18s %-22s %5lu operations: coded %5.1f %%, fed %5.1f %% from step %d, "
                   "misapplied %lu, left of errors %.2f, ratio %.2f\n",
                   framework_name(f), variants_name(variants), (unsigned long)n->posted,
                   100 * (double)n->coded / all, 100 * (double)n->fed / all, n->first,
                   (unsigned long)(n->misapplied + n->early_misapplied), n->cancelled, n->sent / n->wire);
        if (getenv("NB_HARNESS_VERBOSE"))
            print_reasons(node, n);
        HX_CHECK(n->observed == n->posted, "%s: of %lu operations %lu were observed", name,
                 (unsigned long)n->posted, (unsigned long)n->observed);
        HX_CHECK(n->others_coded == 0 || env == env_grad_all, "%s: %lu sums that are no gradients were coded",
                 name, (unsigned long)n->others_coded);
        HX_CHECK(n->early_coded == 0 || (variants & V_ACCUMULATE),
                 "%s: %lu operations of the warm-up were coded", name, (unsigned long)n->early_coded);
        HX_CHECK(n->gradients > 0 && ((variants & V_LISA) || (double)n->coded >= 0.95 * all),
                 "%s: only %lu of %lu gradients were coded", name, (unsigned long)n->coded,
                 (unsigned long)n->gradients);
        HX_CHECK((double)(n->misapplied + n->early_misapplied) <= bars.wrong * all,
                 "%s: %lu operations got another buffer's error, %lu of them early", name,
                 (unsigned long)(n->misapplied + n->early_misapplied), (unsigned long)n->early_misapplied);
        HX_CHECK((double)n->fed >= bars.fed * all, "%s: only %lu of %lu gradients had feedback", name,
                 (unsigned long)n->fed, (unsigned long)n->gradients);
        HX_CHECK(!bars.first || (n->first > 0 && n->first <= bars.first), "%s: feedback began with step %d",
                 name, n->first);
        HX_CHECK(!bars.cancel || n->cancelled <= bars.cancel,
                 "%s: errors do not cancel: %.3f of their energies is left", name, n->cancelled);
    }
    return 0;
}

/* ---- in order ---------------------------------------------------------- */

static const struct bars orderly = {0.95, WARMUP + 4, 0.0, 0.5};
/* The outer steps come every fifth step: their own warm-up ends later, and their errors have had few
 * steps. */
static const struct bars outer = {0.9, 320, 0.0, 0.5};

static int in_order(enum framework f, unsigned variants)
{
    if (f == F_OUTER)
        return play(f, variants, env_vouched, 0, 300, 0, outer);
    /* A checkpoint inside the node (HSDP) breaks the usual run of gathers for some steps. */
    if (f == F_HSDP && (variants & V_CHECKPOINT))
        return play(f, variants, env_default, 0, WARMUP + 4, 0, (struct bars){0.95, WARMUP + 10, 0.0, 0.5});
    return play(f, variants, env_default, 0, WARMUP + 4, 0, orderly);
}

#define IN_ORDER(name, framework, variants) \
    static int name(void) \
    { \
        return in_order(framework, variants); \
    }
IN_ORDER(ddp, F_DDP, V_EVAL | V_CHECKPOINT | V_BATCH)
IN_ORDER(fsdp1, F_FSDP1, V_EVAL | V_CHECKPOINT | V_BATCH)
IN_ORDER(fsdp1_prefetch, F_FSDP1, V_PREFETCH)
IN_ORDER(fsdp2, F_FSDP2, V_EVAL | V_CHECKPOINT | V_BATCH)
IN_ORDER(fsdp2_prefetch, F_FSDP2, V_PREFETCH)
IN_ORDER(fsdp2_keep, F_FSDP2_KEEP, V_EVAL | V_CHECKPOINT | V_BATCH)
IN_ORDER(hsdp, F_HSDP, V_EVAL | V_BATCH)
IN_ORDER(megatron, F_MEGATRON, V_EVAL | V_CHECKPOINT | V_ACCUMULATE)
IN_ORDER(megatron_overlap, F_MEGATRON_OVERLAP, V_EVAL | V_CHECKPOINT | V_ACCUMULATE)
IN_ORDER(megatron_pipeline, F_MEGATRON_PIPELINE, V_EVAL | V_RAMP)
IN_ORDER(zero1, F_ZERO1, V_EVAL | V_CHECKPOINT | V_BATCH)
IN_ORDER(zero2, F_ZERO2, V_EVAL | V_ACCUMULATE)
IN_ORDER(zero3, F_ZERO3, V_EVAL | V_CHECKPOINT | V_BATCH)
IN_ORDER(outer_steps, F_OUTER, V_EVAL | V_CHECKPOINT)

/* HSDP's communicator between nodes as a split child over the world's connections. */
HX_CASE(hsdp_shared, play(F_HSDP, V_EVAL, env_default, 0, WARMUP + 4, 1, orderly))

/* ---- needs of identity alone --------------------------------------------------------------- */

static int at_once(enum framework f, uint32_t steps, int first)
{
    struct bars bars = {0.9, first, 0.0, 0.5};

    return play(f, V_EVAL, env_grad_all, steps, (uint32_t)first, 0, bars);
}

/* Step 1 makes other buckets. Three equal steps follow, in which the plugin must find the mark of a step. */
HX_CASE(ddp_at_once, at_once(F_DDP, 30, 12))
HX_CASE(megatron_at_once, at_once(F_MEGATRON_OVERLAP, hx_quick() ? 22 : 30, 12))
HX_CASE(fsdp2_at_once, at_once(F_FSDP2, 70, 50))

/* ---- layers left out, frozen in turn ---------------------------------------------------------- */

static int adverse(enum framework f, unsigned variants, double fed)
{
    struct bars bars = {fed, 0, 0.001, 0.0};

    return play(f, variants, f == F_OUTER ? env_vouched : env_default, f == F_OUTER ? 400 : 110,
                f == F_OUTER ? 300 : WARMUP + 4, 0, bars);
}

HX_CASE(fsdp2_drop, adverse(F_FSDP2, V_DROP | V_EVAL, 0.9))
HX_CASE(fsdp2_lisa, adverse(F_FSDP2, V_LISA | V_EVAL, 0))
HX_CASE(hsdp_drop, adverse(F_HSDP, V_DROP, 0))
HX_CASE(hsdp_lisa, adverse(F_HSDP, V_LISA | V_EVAL, 0))
HX_CASE(ddp_drop, adverse(F_DDP, V_DROP | V_EVAL, 0.5))

/* ---- all ---------------------------------------------------------- */

static int everything(void)
{
    static const unsigned calm[] = {0, V_EVAL, V_CHECKPOINT, V_BATCH, V_ACCUMULATE};
    static const unsigned rough[] = {V_DROP, V_DROP | V_EVAL, V_LISA, V_LISA | V_EVAL | V_CHECKPOINT,
                                     V_PREFETCH | V_DROP};
    int failed = 0;

    for (int f = 0; f < F_COUNT; f++) {
        for (unsigned v = 0; v < sizeof(calm) / sizeof(calm[0]); v++)
            failed += in_order((enum framework)f, calm[v]) != 0;
        for (unsigned v = 0; v < sizeof(rough) / sizeof(rough[0]); v++)
            failed += adverse((enum framework)f, rough[v], 0) != 0;
    }
    return failed != 0;
}

HX_MAIN({"ddp", ddp, HX_CASE_FULL}, {"ddp-at-once", ddp_at_once, HX_CASE_LONG},
        {"fsdp1", fsdp1, HX_CASE_LONG}, {"fsdp1-prefetch", fsdp1_prefetch, HX_CASE_LONG},
        {"fsdp2", fsdp2, HX_CASE_FULL}, {"fsdp2-prefetch", fsdp2_prefetch, HX_CASE_LONG},
        {"fsdp2-at-once", fsdp2_at_once, HX_CASE_LONG}, {"fsdp2-keep", fsdp2_keep, HX_CASE_LONG},
        {"hsdp", hsdp, HX_CASE_FULL}, {"hsdp-shared", hsdp_shared, HX_CASE_FULL},
        {"megatron", megatron, HX_CASE_LONG}, {"megatron-overlap", megatron_overlap, HX_CASE_LONG},
        {"megatron-pipeline", megatron_pipeline, HX_CASE_LONG}, {"megatron-at-once", megatron_at_once, 0},
        {"zero1", zero1, HX_CASE_FULL}, {"zero2", zero2, HX_CASE_LONG}, {"zero3", zero3, HX_CASE_FULL},
        {"outer-steps", outer_steps, HX_CASE_FULL}, {"fsdp2-layerdrop", fsdp2_drop, HX_CASE_FULL},
        {"fsdp2-lisa", fsdp2_lisa, HX_CASE_LONG}, {"hsdp-layerdrop", hsdp_drop, HX_CASE_FULL},
        {"hsdp-lisa", hsdp_lisa, HX_CASE_LONG}, {"ddp-layerdrop", ddp_drop, HX_CASE_LONG},
        {"everything", everything, HX_CASE_LONG})
