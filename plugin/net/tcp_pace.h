/* SPDX-License-Identifier: Apache-2.0 */
/* Pacing: the sending rate of one device (NIBBLE_TCP_PACE_MBPS). Any thread. */
#ifndef NIBBLE_NET_TCP_PACE_H
#define NIBBLE_NET_TCP_PACE_H

#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"

struct nb_tcp_pace;

/* A token bucket that fills with `rate` bytes a second of the clock, which outlives it. NULL: no memory. */
struct nb_tcp_pace *nb_tcp_pace_new(uint64_t rate, const struct nb_clock *clock);
void nb_tcp_pace_free(struct nb_tcp_pace *p);
/* Take up to `want` bytes; 0: nothing may be sent now. */
size_t nb_tcp_pace_take(struct nb_tcp_pace *p, size_t want);
/* `bytes` were sent that need not wait: what is sent next waits the longer. */
void nb_tcp_pace_charge(struct nb_tcp_pace *p, size_t bytes);
/* Of bytes taken that were not sent. */
void nb_tcp_pace_give_back(struct nb_tcp_pace *p, size_t bytes);
/* Nanoseconds until take can succeed. */
int64_t nb_tcp_pace_wait_ns(struct nb_tcp_pace *p);

#endif
