/* SPDX-License-Identifier: Apache-2.0 */
/* Time for deadlines and measurements. */
#ifndef NIBBLE_BASE_CLOCK_H
#define NIBBLE_BASE_CLOCK_H

#include <stdint.h>

/* A clock in nanoseconds that never goes back. A context has one, so that simulations can run in virtual
 * time. */
struct nb_clock {
    uint64_t (*now_ns)(void *arg); /* any thread; NULL: nb_now_ns */
    void *arg;
};

/* Return the nanoseconds of CLOCK_MONOTONIC, which never goes back and ignores adjustments of the date. Any
 * thread. Code that has a context asks the context's clock instead. */
uint64_t nb_now_ns(void);

static inline int64_t nb_clock_ns(const struct nb_clock *clock)
{
    return (int64_t)(clock->now_ns ? clock->now_ns(clock->arg) : nb_now_ns());
}

/* Return milliseconds of the same clock or, where the clock is the real one, of CLOCK_MONOTONIC_COARSE. That
 * is some milliseconds inexact, but cheap enough for every poll of a connection. Do not mix it with
 * nb_clock_ns. */
int64_t nb_clock_ms(const struct nb_clock *clock);

#define NB_NS_PER_US 1000ull
#define NB_NS_PER_MS 1000000ull
#define NB_NS_PER_S 1000000000ull

/* How long the idle engine thread, or an idle codec thread, polls before it sleeps. Waking a thread takes
 * several microseconds, and under load the next work comes sooner. Longer polling takes the cores from NCCL's
 * threads. */
#define NB_SPIN_US 20

#endif
