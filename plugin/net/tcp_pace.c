/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sending rate of one device: a token bucket that all of its sockets in this process draw from, whichever
 * thread drives them. The kernel's own pacing (SO_MAX_PACING_RATE) is per socket, and dividing a device's
 * rate over sockets gives too little whenever some of them are idle.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "net/tcp_int.h"

/* Bytes granted at a time: enough for full segments, little enough that comms take turns. */
#define GRANT_MAX 131072
#define GRANT_MIN 16384
#define NS_PER_S 1000000000ll

struct nb_tcp_pace {
    pthread_mutex_t lock;
    double rate;   /* bytes a nanosecond */
    double depth;  /* most that can be saved up */
    double tokens;
    int64_t filled_ns;
};

static int64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

struct nb_tcp_pace *nb_tcp_pace_new(uint64_t rate)
{
    struct nb_tcp_pace *p = calloc(1, sizeof(*p));

    if (!p)
        return NULL;
    if (pthread_mutex_init(&p->lock, NULL)) {
        free(p);
        return NULL;
    }
    p->rate = (double)rate / NS_PER_S;
    /* 2 ms of the rate: a caller that looks in once a millisecond still gets all of it. */
    p->depth = p->rate * 2e6 > GRANT_MAX ? p->rate * 2e6 : GRANT_MAX;
    p->filled_ns = now_ns();
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
    int64_t now = now_ns();

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
    /* Less than this would be crumbs: a system call for each few hundred bytes. */
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
