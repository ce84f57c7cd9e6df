/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sending rate of one device: a token bucket shared by all of its sockets of this context, whichever
 * thread drives them. The kernel's own pacing (SO_MAX_PACING_RATE) is per socket, and dividing a device's
 * rate over sockets gives too little whenever some of them are idle.
 */
#include "net/tcp_pace.h"

#include <pthread.h>
#include <stdlib.h>

/* Bytes granted at a time: enough for full segments, little enough that comms take turns. */
#define GRANT_MAX 131072
#define GRANT_MIN 16384

struct nb_tcp_pace {
    const struct nb_clock *clock;
    pthread_mutex_t lock;
    double rate;  /* bytes a nanosecond */
    double depth; /* most that can be saved up */
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
    /* 2 ms of the rate: a caller that looks in once a millisecond still gets all of it. */
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
    /* Less than this would cost a system call for every few hundred bytes. */
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
