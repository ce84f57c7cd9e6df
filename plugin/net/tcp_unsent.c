/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much the kernel may hold that it has not sent (TCP_NOTSENT_LOWAT, tcp(7)). By default it takes
 * megabytes from a stream, so write() completes long before transmission, and whoever wants connections to
 * advance together (coll/comm/ring.c) cannot see how far they are. A few milliseconds of what the stream has been
 * sending keep its link busy; what is in flight and not acknowledged is not limited by this.
 */
#include "net/tcp_unsent.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "base/clock.h"

#ifndef TCP_NOTSENT_LOWAT
#define TCP_NOTSENT_LOWAT 25
#endif

#define LIMIT_MIN 65536
#define LIMIT_FIRST 262144 /* of a stream whose speed is not known */
#define LIMIT_MAX (64 << 20)
#define AHEAD_NS (4 * (int64_t)NB_NS_PER_MS)

static void set(struct nb_tcp_unsent *u, int fd, int limit)
{
    /* An old kernel that does not know it goes on as before. */
    u->limit = limit;
    setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &limit, sizeof(limit));
}

void nb_tcp_unsent_start(struct nb_tcp_unsent *u, int fd)
{
    u->since_ns = 0;
    set(u, fd, LIMIT_FIRST);
}

void nb_tcp_unsent_wrote(struct nb_tcp_unsent *u, int fd, size_t bytes, bool full, int64_t now_ns)
{
    int64_t took = now_ns - u->since_ns;
    double want;

    if (u->since_ns) {
        u->bytes += bytes;
        u->ran_dry |= bytes >= (size_t)u->limit;
        if (took < AHEAD_NS)
            return;
        want = (double)u->bytes * (double)AHEAD_NS / (double)took;
        want = want < LIMIT_MIN ? LIMIT_MIN : want > LIMIT_MAX ? LIMIT_MAX : want;
        /* A period in which nothing moved is the receiver's, and after one in which the kernel had run dry it
         * is not known what it could have sent. */
        if (want > 1.5 * u->limit || (want < 0.5 * u->limit && u->bytes && !u->ran_dry))
            set(u, fd, (int)want);
    }
    u->since_ns = full ? now_ns : 0;
    u->bytes = 0;
    u->ran_dry = false;
}

void nb_tcp_unsent_idle(struct nb_tcp_unsent *u)
{
    u->since_ns = 0; /* it sent less than it could have: that tells nothing */
}
