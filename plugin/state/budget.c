/* SPDX-License-Identifier: Apache-2.0 */
/* Budgets of state memory. */
#include "state/budget.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/context.h"

struct nb_budgets {
    const struct nb_context *ctx; /* its settings are the limits */
    _Atomic size_t used[NB_BUDGET_COUNT];
};

int nb_budgets_open(struct nb_context *ctx)
{
    struct nb_budgets *budgets = calloc(1, sizeof(*budgets));

    if (!budgets)
        return -ENOMEM;
    budgets->ctx = ctx;
    ctx->budgets = budgets;
    return 0;
}

void nb_budgets_close(struct nb_context *ctx)
{
    free(ctx->budgets);
    ctx->budgets = NULL;
}

static size_t limit_of(const struct nb_budgets *budgets, enum nb_budget budget)
{
    const struct nb_params *p = budgets->ctx->params;
    int64_t mb = budget == NB_BUDGET_FEEDBACK    ? p->ef_max_mb
                 : budget == NB_BUDGET_REFERENCE ? p->ref_max_mb
                                                 : p->staging_max_mb;
    return (size_t)mb << 20;
}

int nb_budget_take(struct nb_budgets *budgets, enum nb_budget budget, size_t bytes)
{
    size_t limit = limit_of(budgets, budget);
    size_t before = atomic_load(&budgets->used[budget]);
    do {
        if (bytes > limit || before > limit - bytes)
            return -ENOMEM;
    } while (!atomic_compare_exchange_weak(&budgets->used[budget], &before, before + bytes));
    return 0;
}

void nb_budget_give(struct nb_budgets *budgets, enum nb_budget budget, size_t bytes)
{
    atomic_fetch_sub(&budgets->used[budget], bytes);
}

size_t nb_budget_left(const struct nb_budgets *budgets, enum nb_budget budget)
{
    size_t limit = limit_of(budgets, budget), now = atomic_load(&budgets->used[budget]);
    return now < limit ? limit - now : 0;
}
