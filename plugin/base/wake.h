/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wakes one sleeping thread from any number of other threads, through a descriptor that fits into poll.
 *
 * The sleeper polls nb_wake_fd for POLLIN, calls nb_wake_drain, and only then looks for work. A producer
 * makes its work visible before nb_wake_signal. The sleeper then misses no work. Signals that were not
 * drained yet coincide, so that signalling an awake thread costs one atomic operation and no system call.
 */
#ifndef NIBBLE_BASE_WAKE_H
#define NIBBLE_BASE_WAKE_H

#include <stdatomic.h>

struct nb_wake {
    int fd;
    atomic_int pending; /* there is an undrained signal */
};

/* Return 0 or a negative errno. On failure fd is -1. */
int nb_wake_init(struct nb_wake *wake);
/* Destroy the object, which all threads have stopped using. May be called after a failed init, and twice. */
void nb_wake_destroy(struct nb_wake *wake);
/* Signal the sleeper. Any thread. Never blocks. */
void nb_wake_signal(struct nb_wake *wake);
/* Clear the signal, on the sleeping thread only. Return 1 when there was one. Never blocks. */
int nb_wake_drain(struct nb_wake *wake);

static inline int nb_wake_fd(const struct nb_wake *wake)
{
    return wake->fd;
}

#endif
