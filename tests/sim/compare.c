/* SPDX-License-Identifier: Apache-2.0 */
/* Comparison with the calm run. See compare.h. */
#include "tests/sim/compare.h"

#include <stdarg.h>
#include <stdio.h>

__attribute__((format(printf, 2, 3))) static void differs(struct sim_outcome *out, const char *fmt, ...)
{
    va_list ap;

    out->failed = true;
    va_start(ap, fmt);
    vsnprintf(out->violation, sizeof(out->violation), fmt, ap);
    va_end(ap);
}

/* Find the first operation whose results differ. */
static void compare_results(const struct sim_plan *plan, struct sim_outcome *out,
                            const struct sim_outcome *calm)
{
    for (int c = 0; c < plan->ncomms; c++)
        for (int op = 0; op < plan->comm[c].nops; op++)
            if (out->result[c][op] != calm->result[c][op] && !out->failed)
                differs(out,
                        "results are others than those of the same run without lateness: communicator %d, "
                        "operation %d (%s)",
                        c, op, nb_func_name(plan->comm[c].op[op].func));
}

static void compare_state(const struct sim_plan *plan, struct sim_outcome *out,
                          const struct sim_outcome *calm)
{
    for (int c = 0; c < plan->ncomms; c++)
        if (out->state[c] != calm->state[c] && !out->failed)
            differs(out,
                    "residuals or references are others at the end than those of the same run without "
                    "lateness: communicator %d",
                    c);
}

void sim_compare(const struct sim_plan *plan, struct sim_outcome *out)
{
    struct sim_plan *calm = sim_plan_copy(plan);
    struct sim_outcome other;

    sim_plan_calm(calm);
    sim_run(calm, false, false, &other);
    if (other.failed)
        *out = other;
    compare_results(plan, out, &other);
    compare_state(plan, out, &other);
    sim_plan_free(calm);
}
