/* SPDX-License-Identifier: Apache-2.0 */
/* See tcp_conf.h. */
#include "net/tcp_conf.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#include "base/log.h"
#include "net/tcp_wire.h"

#define MIN_DEAD_MS 60000 /* a network may take this long to route around a failure */

/* One of NCCL's integer variables: `value` untouched when unset, -EINVAL after a WARN when it is no
 * number. */
static int env_int(const char *name, int min, int max, int *value)
{
    const char *s = nb_env(name);
    char *end;
    long v;

    if (!s)
        return 0;
    errno = 0;
    v = strtol(s, &end, 0);
    if (errno || *end || v < INT_MIN || v > INT_MAX) {
        NB_WARN("tcp: %s=%s is not a number", name, s);
        return -EINVAL;
    }
    /* NCCL's own "-1: choose yourself" */
    if (v >= min)
        *value = v > max ? max : (int)v;
    return 0;
}

int nb_tcp_conf_read(const struct nb_params *p, struct nb_tcp_conf *conf)
{
    struct nb_tcp_conf c = {.streams = (int)p->tcp_streams,
                            .connect_ms = (int)p->connect_timeout * 1000,
                            .dead_ms = (int)p->peer_timeout * 1000,
                            .pace = (uint64_t)p->tcp_pace_mbps * 1000000 / 8};
    int threads = 0, socks = 0, rc;

    rc = env_int("NCCL_SOCKET_NTHREADS", 0, 16, &threads);
    rc = rc ? rc : env_int("NCCL_NSOCKS_PERTHREAD", 0, 64, &socks);
    rc = rc ? rc : env_int("NCCL_SOCKET_RCVBUF", 1, INT_MAX, &c.rcvbuf);
    rc = rc ? rc : env_int("NCCL_SOCKET_SNDBUF", 1, INT_MAX, &c.sndbuf);
    if (rc)
        return rc;
    if (c.streams == 0 && (threads > 0 || socks > 0)) {
        c.streams = (threads > 0 ? threads : 1) * (socks > 0 ? socks : 1);
        if (c.streams > NB_TCP_MAX_STREAMS)
            c.streams = NB_TCP_MAX_STREAMS;
    }
    if (c.dead_ms < MIN_DEAD_MS)
        c.dead_ms = MIN_DEAD_MS;
    *conf = c;
    return 0;
}
