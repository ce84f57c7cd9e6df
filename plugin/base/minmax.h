/* SPDX-License-Identifier: Apache-2.0 */
/* The smaller and the larger of two numbers. */
#ifndef NIBBLE_BASE_MINMAX_H
#define NIBBLE_BASE_MINMAX_H

#include <stdint.h>

static inline uint64_t nb_min64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}
static inline uint64_t nb_max64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}
static inline double nb_min_double(double a, double b)
{
    return a < b ? a : b;
}
static inline double nb_max_double(double a, double b)
{
    return a > b ? a : b;
}

#endif
