/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The judgement of a sending connection whether deltas pay, with NIBBLE_P2P=auto. It compares the times from
 * isend to the receiver's confirmation, of deltas and of plain messages that ask for one (NB_TCP_ECHO). Where
 * deltas take longer for a byte, all messages go plain for some rounds or minutes, and then a trial decides
 * again.
 */
#include "net/tcp/internal.h"

#include <string.h>

#define PLAIN_LEAST 8u /* plain messages, and deltas, that are measured before a decision */
#define DELTA_LEAST 16u
#define ECHO_EVERY 16u  /* plain messages of which one is measured */
#define PROBE_SHARE 200 /* time of deltas over the time of the plain messages among them */
#define REST_LEAST 64u  /* rounds without deltas after they did not pay, twice as many each time */
#define REST_MOST 1024u
/* Or so long for each of the least rounds: a minute at first, 16 at most. A job whose rounds
 * come minutes apart waits no longer for a trial, and can spare its time. */
#define REST_ROUND_NS (60 * (int64_t)NB_NS_PER_S / REST_LEAST)

static void add_time(struct nb_tcp_speed *speed, unsigned n, double bytes, double ns)
{
    if (speed->n >= 4 * DELTA_LEAST) {
        speed->n /= 2;
        speed->ns /= 2;
        speed->bytes /= 2;
    }
    speed->n += n;
    speed->ns += ns;
    speed->bytes += bytes;
}

bool nb_tcp_judge_probes(struct nb_tcp_judge *j)
{
    if (j->delta.n < DELTA_LEAST)
        return false;
    if (j->plain.n >= PLAIN_LEAST) {
        if (j->probing)
            j->left_ns = PROBE_SHARE * PLAIN_LEAST * j->plain.ns / j->plain.n;
        j->probing = false;
        if (j->left_ns > 0)
            return false;
        memset(&j->plain, 0, sizeof(j->plain));
    }
    j->probing = true;
    return true;
}

uint16_t nb_tcp_judge_sends(struct nb_tcp_judge *j, uint16_t word, uint32_t seq, size_t size, int64_t now_ns)
{
    if (word == NB_TCP_PLAIN && (j->sent++ % ECHO_EVERY == 0 || j->plain.n < PLAIN_LEAST))
        word = NB_TCP_ECHO;
    if (word == NB_TCP_PLAIN)
        return word;
    if (j->n == NB_TCP_TIMED) /* its time would be that of others, too */
        j->n = 0;
    else
        j->at[(j->first + j->n++) % NB_TCP_TIMED] = (struct nb_tcp_timed){.start_ns = now_ns,
                                                                          .size = size,
                                                                          .seq = seq,
                                                                          .plain = word == NB_TCP_ECHO,
                                                                          .delta = word >= NB_TCP_DELTA};
    return word;
}

bool nb_tcp_judge_confirmed(struct nb_tcp_judge *j, uint32_t seq, int64_t now_ns)
{
    const struct nb_tcp_timed *t = &j->at[j->first];
    unsigned n = 0, plain = 0, delta = 0;
    int64_t start = t->start_ns;
    double bytes = 0;

    for (; n < j->n; n++) {
        t = &j->at[(j->first + n) % NB_TCP_TIMED];
        if ((int32_t)(seq - t->seq) <= 0)
            break;
        plain += t->plain;
        delta += t->delta;
        bytes += (double)t->size;
    }
    if (!n)
        return true;
    j->first = (j->first + n) % NB_TCP_TIMED;
    j->n -= n;
    start = start > j->last_ns ? start : j->last_ns; /* before, messages in front of it were on their way */
    j->last_ns = now_ns;
    if (plain == n)
        add_time(&j->plain, n, bytes, (double)(now_ns - start));
    else if (delta == n)
        add_time(&j->delta, n, bytes, (double)(now_ns - start));
    if (delta == n)
        j->left_ns -= (double)(now_ns - start);
    if (j->plain.n < PLAIN_LEAST || j->delta.n < DELTA_LEAST)
        return true;
    if (j->delta.ns * j->plain.bytes >= j->plain.ns * j->delta.bytes)
        return false;
    j->rounds = 0;
    return true;
}

void nb_tcp_judge_rest(struct nb_tcp_judge *j, unsigned messages, int64_t now_ns)
{
    j->rounds = !j->rounds ? REST_LEAST : 2 * j->rounds < REST_MOST ? 2 * j->rounds : REST_MOST;
    j->rest = (struct nb_tcp_rest){(uint64_t)j->rounds * messages, now_ns + j->rounds * REST_ROUND_NS};
    memset(&j->plain, 0, sizeof(j->plain));
    memset(&j->delta, 0, sizeof(j->delta));
}
