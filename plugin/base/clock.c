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
