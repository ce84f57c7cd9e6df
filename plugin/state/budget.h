/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of the memory that a node's state may take, over all its communicators and GPUs. */
#ifndef NIBBLE_STATE_BUDGET_H
#define NIBBLE_STATE_BUDGET_H

#include <stddef.h>
#include <stdint.h>

enum nb_budget { NB_BUDGET_FEEDBACK = 0, NB_BUDGET_REFERENCE, NB_BUDGET_STAGING, NB_BUDGET_COUNT };

struct nb_context;
struct nb_budgets;

/* Make and free the context's budgets (ctx->budgets). Return 0 or -ENOMEM. */
int nb_budgets_open(struct nb_context *ctx);
void nb_budgets_close(struct nb_context *ctx);

/* Take `bytes` from a budget. Return 0, or -ENOMEM when that would exceed the limit, which is a setting of
 * the context. Any thread. */
int nb_budget_take(struct nb_budgets *budgets, enum nb_budget budget, size_t bytes);
void nb_budget_give(struct nb_budgets *budgets, enum nb_budget budget, size_t bytes);
/* Return the bytes that are left. */
size_t nb_budget_left(const struct nb_budgets *budgets, enum nb_budget budget);

#endif
