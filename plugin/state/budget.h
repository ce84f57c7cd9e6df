/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that state may take, counted for the whole process (one device a process is the rule; several share).
 */
#ifndef NIBBLE_STATE_BUDGET_H
#define NIBBLE_STATE_BUDGET_H

#include <stddef.h>
#include <stdint.h>

enum nb_budget { NB_BUDGET_FEEDBACK = 0, NB_BUDGET_REFERENCE, NB_BUDGET_STAGING, NB_BUDGET_COUNT };

/* Take `bytes` of the budget: 0, or -ENOMEM when the limit (a setting) would be passed. Any thread. */
int nb_budget_take(enum nb_budget budget, size_t bytes);
void nb_budget_give(enum nb_budget budget, size_t bytes);
/* Bytes that are left. */
size_t nb_budget_left(enum nb_budget budget);

#endif
