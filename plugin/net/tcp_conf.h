/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of the TCP transport. */
#ifndef NIBBLE_NET_TCP_CONF_H
#define NIBBLE_NET_TCP_CONF_H

#include <stdint.h>

#include "base/params.h"

struct nb_tcp_conf {
    int streams;        /* sockets of a connection; 0: by the link's speed */
    int rcvbuf, sndbuf; /* socket buffers in bytes; 0: the kernel's autotuning */
    int connect_ms;     /* limit for connect, and for a connection of which accept has some sockets */
    int dead_ms;        /* data unacknowledged for this long, with retransmissions: the peer is gone */
    uint64_t pace;      /* bytes/s of each device; 0: no limit */
};

/* From nibble's settings and NCCL's variables (NCCL_SOCKET_NTHREADS, NCCL_NSOCKS_PERTHREAD,
 * NCCL_SOCKET_RCVBUF, NCCL_SOCKET_SNDBUF). 0 and *conf, or -EINVAL after a WARN line that names variable and
 * value. */
int nb_tcp_conf_read(const struct nb_params *params, struct nb_tcp_conf *conf);

#endif
