/* SPDX-License-Identifier: Apache-2.0 */
/* The monotonic clock. */
#include "base/clock.h"

#include <time.h>

uint64_t nb_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail with a clock that exists */
    return (uint64_t)now.tv_sec * NB_NS_PER_S + (uint64_t)now.tv_nsec;
}

int64_t nb_clock_ms(const struct nb_clock *clock)
{
    struct timespec now;
    if (clock->now_ns)
        return (int64_t)(clock->now_ns(clock->arg) / NB_NS_PER_MS);
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}
