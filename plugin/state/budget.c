/* SPDX-License-Identifier: Apache-2.0 */
/* Process-wide budgets of state memory. */
#include "state/budget.h"

#include <errno.h>
#include <stdatomic.h>

#include "base/params.h"

static _Atomic size_t used[NB_BUDGET_COUNT];

static size_t limit_of(enum nb_budget budget)
{
    const struct nb_params *p = nb_params();
    int64_t mb = budget == NB_BUDGET_FEEDBACK ? p->ef_max_mb : budget == NB_BUDGET_REFERENCE ? p->ref_max_mb : p->staging_max_mb;
    return (size_t)mb << 20;
}

int nb_budget_take(enum nb_budget budget, size_t bytes)
{
    size_t limit = limit_of(budget);
    size_t before = atomic_load(&used[budget]);
    do {
        if (bytes > limit || before > limit - bytes)
            return -ENOMEM;
    } while (!atomic_compare_exchange_weak(&used[budget], &before, before + bytes));
    return 0;
}

void nb_budget_give(enum nb_budget budget, size_t bytes)
{
    atomic_fetch_sub(&used[budget], bytes);
}

size_t nb_budget_left(enum nb_budget budget)
{
    size_t limit = limit_of(budget), now = atomic_load(&used[budget]);
    return now < limit ? limit - now : 0;
}
