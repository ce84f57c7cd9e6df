/* SPDX-License-Identifier: Apache-2.0 */
/* Time for deadlines and measurements. */
#ifndef NIBBLE_BASE_CLOCK_H
#define NIBBLE_BASE_CLOCK_H

#include <stdint.h>

/* Nanoseconds of CLOCK_MONOTONIC: never goes back, not moved by adjustments of the date. Any thread. */
uint64_t nb_now_ns(void);

#define NB_NS_PER_US 1000ull
#define NB_NS_PER_MS 1000000ull
#define NB_NS_PER_S 1000000000ull

#endif
