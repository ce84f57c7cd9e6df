/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wakes one sleeping thread from any number of others, through a descriptor that fits into poll.
 *
 * The sleeper polls nb_wake_fd for POLLIN, calls nb_wake_drain, and only then looks for work; a producer
 * makes its work visible before nb_wake_signal. Then no work is missed. Signals that were not drained yet
 * coincide, so signalling a thread that is already awake costs one atomic operation and no system call.
 */
#ifndef NIBBLE_BASE_WAKE_H
#define NIBBLE_BASE_WAKE_H

#include <stdatomic.h>

struct nb_wake {
    int fd;
    atomic_int pending; /* a signal that was not drained */
};

/* 0 or a negative errno; on failure fd is -1. */
int nb_wake_init(struct nb_wake *wake);
/* Nobody may use the object any more. May be called after a failed init, and twice. */
void nb_wake_destroy(struct nb_wake *wake);
/* Any thread; never blocks. */
void nb_wake_signal(struct nb_wake *wake);
/* Sleeping thread only; never blocks. Returns 1 when there was a signal. */
int nb_wake_drain(struct nb_wake *wake);

static inline int nb_wake_fd(const struct nb_wake *wake)
{
    return wake->fd;
}

#endif
