/* SPDX-License-Identifier: Apache-2.0 */
/* A schedule in which everything goes through node 0: the example of docs/adding.md. */
#ifndef NIBBLE_TESTS_COLL_STAR_H
#define NIBBLE_TESTS_COLL_STAR_H

#include "coll/schedule/schedule.h"

extern const struct nb_schedule_ops star_schedule;

/* Number of windows that took this schedule in this process. */
extern unsigned long star_windows;

#endif
