/* SPDX-License-Identifier: Apache-2.0 */
/* An eventfd with a flag in front of it that saves most system calls. */
#include "base/wake.h"

#include <errno.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

int nb_wake_init(struct nb_wake *wake)
{
    atomic_init(&wake->pending, 0);
    wake->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return wake->fd < 0 ? -errno : 0;
}

void nb_wake_destroy(struct nb_wake *wake)
{
    if (wake->fd >= 0)
        close(wake->fd);
    wake->fd = -1;
}

void nb_wake_signal(struct nb_wake *wake)
{
    if (atomic_exchange_explicit(&wake->pending, 1, memory_order_acq_rel))
        return;
    uint64_t one = 1;
    /* The counter is at most 2 and cannot overflow, so only an interruption can fail the write. */
    while (write(wake->fd, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
}

int nb_wake_drain(struct nb_wake *wake)
{
    /* Clear first the descriptor, then the flag. The other way round, a signal between the two would leave
     * the flag set and the descriptor empty, and no later signal would ever arrive. */
    uint64_t count;
    while (read(wake->fd, &count, sizeof(count)) < 0 && errno == EINTR)
        ;
    return atomic_exchange_explicit(&wake->pending, 0, memory_order_acq_rel);
}
