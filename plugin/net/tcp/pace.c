/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sending rate of one device (NIBBLE_TCP_PACE_MBPS), for any thread: all sockets of the device in this
 * context share a token bucket, whichever thread drives them. The kernel's own pacing (SO_MAX_PACING_RATE) is
 * per socket. A device's rate divided over sockets gives too little whenever some of them are idle.
 *
 * The bucket counts bytes that enter a socket. They leave at that rate only if sockets keep few of them: a
 * socket that waited, for an acknowledgement or for the receiver, would send all that it kept in one burst,
 * and several such bursts overflow the queues that the pace is set for. So sockets of a paced device keep few
 * unsent bytes, and the kernel paces each of them a quarter above its share. A socket that may send twice its
 * share teaches BBR that rate while the others wait, and all of them together then overflow the path's queue.
 * The quarter lets a socket that lags catch up.
 *
 * The number of unsent bytes of a stream that the kernel may hold (TCP_NOTSENT_LOWAT, tcp(7)), for one thread
 * at a time. By default the kernel takes megabytes from a stream, so that write() completes long before
 * transmission. A caller that wants connections to advance together (coll/comm/ring.c) then cannot see how
 * far they are. A stream's bytes of a few milliseconds keep its link busy. Unacknowledged bytes in flight do
 * not count against this limit.
 */
#include "net/tcp/tcp.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "net/tcp/internal.h"

/* Bytes granted at a time: enough for full segments, and few enough that comms take turns. */
#define GRANT_MAX 131072
#define GRANT_MIN 16384

struct nb_tcp_pace {
    const struct nb_clock *clock;
    pthread_mutex_t lock;
    double rate;  /* bytes a nanosecond */
    double depth; /* most tokens that can be saved up */
    double tokens;
    int64_t filled_ns;
};

struct nb_tcp_pace *nb_tcp_pace_new(uint64_t rate, const struct nb_clock *clock)
{
    struct nb_tcp_pace *p = calloc(1, sizeof(*p));

    if (!p)
        return NULL;
    if (pthread_mutex_init(&p->lock, NULL)) {
        free(p);
        return NULL;
    }
    p->rate = (double)rate / (double)NB_NS_PER_S;
    /* 2 ms of the rate: a caller that takes tokens once a millisecond still gets all of it. */
    p->depth = p->rate * 2e6 > GRANT_MAX ? p->rate * 2e6 : GRANT_MAX;
    p->clock = clock;
    p->filled_ns = nb_clock_ns(clock);
    return p;
}

void nb_tcp_pace_free(struct nb_tcp_pace *p)
{
    if (!p)
        return;
    pthread_mutex_destroy(&p->lock);
    free(p);
}

static void refill(struct nb_tcp_pace *p)
{
    int64_t now = nb_clock_ns(p->clock);

    p->tokens += (double)(now - p->filled_ns) * p->rate;
    if (p->tokens > p->depth)
        p->tokens = p->depth;
    p->filled_ns = now;
}

size_t nb_tcp_pace_take(struct nb_tcp_pace *p, size_t want)
{
    size_t need, got = 0;

    if (want > GRANT_MAX)
        want = GRANT_MAX;
    /* Smaller grants would cost a system call for every few hundred bytes. */
    need = want < GRANT_MIN ? want : GRANT_MIN;
    pthread_mutex_lock(&p->lock);
    refill(p);
    if (p->tokens >= (double)need) {
        got = (double)want <= p->tokens ? want : (size_t)p->tokens;
        p->tokens -= (double)got;
    }
    pthread_mutex_unlock(&p->lock);
    return got;
}

void nb_tcp_pace_charge(struct nb_tcp_pace *p, size_t bytes)
{
    pthread_mutex_lock(&p->lock);
    p->tokens -= (double)bytes;
    pthread_mutex_unlock(&p->lock);
}

void nb_tcp_pace_give_back(struct nb_tcp_pace *p, size_t bytes)
{
    pthread_mutex_lock(&p->lock);
    p->tokens += (double)bytes;
    pthread_mutex_unlock(&p->lock);
}

int64_t nb_tcp_pace_wait_ns(struct nb_tcp_pace *p)
{
    double missing;

    pthread_mutex_lock(&p->lock);
    refill(p);
    missing = GRANT_MIN - p->tokens;
    pthread_mutex_unlock(&p->lock);
    return missing > 0 ? (int64_t)(missing / p->rate) + 1 : 0;
}

void nb_tcp_pace_socket(int fd, uint64_t rate, int sockets)
{
    const uint64_t most = sockets > 1 ? 5 * rate / (4 * (unsigned)sockets) : rate;
    const uint32_t limit = (uint32_t)most;

    if (most < UINT32_MAX) /* that value means no limit */
        setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &limit, sizeof(limit));
}

#ifndef TCP_NOTSENT_LOWAT
#define TCP_NOTSENT_LOWAT 25
#endif

#define LIMIT_MIN 65536
#define LIMIT_FIRST 262144 /* of a stream of unknown speed */
#define LIMIT_MAX (64 << 20)
#define AHEAD_NS (4 * (int64_t)NB_NS_PER_MS)

static void set(struct nb_tcp_unsent *u, int fd, int limit)
{
    /* An old kernel without the option continues as before. */
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
        /* A period without progress is due to the receiver. After a period in which the kernel had run dry,
         * the speed of the stream is unknown. */
        if (want > 1.5 * u->limit || (want < 0.5 * u->limit && u->bytes && !u->ran_dry))
            set(u, fd, (int)want);
    }
    u->since_ns = full ? now_ns : 0;
    u->bytes = 0;
    u->ran_dry = false;
}

void nb_tcp_unsent_idle(struct nb_tcp_unsent *u)
{
    u->since_ns = 0; /* it sent less than it could: the period says little about its speed */
}
