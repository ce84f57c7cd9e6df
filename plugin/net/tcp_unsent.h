/* SPDX-License-Identifier: Apache-2.0 */
/* A limit of what the kernel holds unsent of a stream. As a connection, one thread at a time. */
#ifndef NIBBLE_NET_TCP_UNSENT_H
#define NIBBLE_NET_TCP_UNSENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct nb_tcp_unsent {
    int limit;        /* TCP_NOTSENT_LOWAT as it is set, in bytes; 0: not limited */
    int64_t since_ns; /* the kernel has taken no more since then; 0: it does */
    uint64_t bytes;   /* written since */
    bool ran_dry;     /* since then, the kernel had sent all that it had */
};

/* Limit the stream with socket `fd` from now on. */
void nb_tcp_unsent_start(struct nb_tcp_unsent *u, int fd);
/* `bytes` were written to a limited one by `now_ns`; full: the kernel took no more. Adapts the limit. */
void nb_tcp_unsent_wrote(struct nb_tcp_unsent *u, int fd, size_t bytes, bool full, int64_t now_ns);
/* It has nothing more to write. */
void nb_tcp_unsent_idle(struct nb_tcp_unsent *u);

#endif
