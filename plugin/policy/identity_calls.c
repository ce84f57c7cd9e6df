/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue of announced calls. Calls are announced when NCCL is called and become known to identity when their first
 * window comes, in that order; calls that stay inside the node are dequeued with the next one behind them that passes.
 * So what is decided does not depend on how far the job runs ahead of the network.
 */
#include "policy/identity_internal.h"

#include <stdlib.h>

/* Take up a call that stays inside the node. */
static void take_inner(struct nb_identity *id, const struct nb_identity_call *c)
{
    if (c->func == NB_FUNC_ALL_GATHER)
        nb_clock_gather(id, c->count);
    else if (c->count >= LARGE)
        nb_clock_end_run(id);
}

/* A bucket that comes again is in the next round. What else is called, and when, says nothing of buckets. */
static void count_bucket(struct nb_identity *id, struct nb_sig *s, const struct nb_call *call)
{
    struct nb_key *k = nb_key_of(id, s->own, call->c.send);

    if (k->streak && k->round == id->bucket_round)
        id->bucket_round++;
    k->streak++;
    k->round = s->view.rounds = id->bucket_round;
}

/* What a reduction means for the steps follows from the order of the calls, also where communicators run
 * beside each other and a later one begins first. */
static void count_call(struct nb_identity *id, struct nb_call *call)
{
    struct nb_sig *s;

    nb_clock_end_run(id);
    s = nb_sig_of(id, &call->c);
    s->calls++;
    nb_clock_reduce(id, s);
    if (s->bucket)
        count_bucket(id, s, call);
    else
        nb_sig_count(id, s);
    call->view = s->view;
}

/* Will somebody ask for the call again? */
static int wanted(const struct nb_identity *id, const struct nb_call *call)
{
    return call->number >= id->taken_up || (call->c.passes && !call->begun);
}

/* A place for the next call: that of the oldest one, or, when that is still wanted and there is memory, a new one. */
static struct nb_call *new_call(struct nb_identity *id)
{
    const uint64_t number = id->announced;
    struct nb_call *calls;

    while (number >= id->calls_cap && id->calls_cap < id->config.calls &&
           wanted(id, &id->calls[number % id->calls_cap])) {
        const uint32_t cap = 2 * id->calls_cap < id->config.calls ? 2 * id->calls_cap : id->config.calls;
        calls = calloc(cap, sizeof(*calls));
        if (!calls)
            break;
        for (uint64_t i = number - id->calls_cap; i < number; i++)
            calls[i % cap] = id->calls[i % id->calls_cap];
        free(id->calls);
        id->calls = calls;
        id->calls_cap = cap;
    }
    return &id->calls[number % id->calls_cap];
}

struct nb_call *nb_call_take_up(struct nb_identity *id, uint64_t number)
{
    struct nb_call *call;

    if (number >= id->announced || id->announced - number > id->calls_cap) {
        id->stats.lost_calls++;
        return NULL;
    }
    if (id->announced - id->taken_up > id->calls_cap)
        id->taken_up = id->announced - id->calls_cap;
    for (; id->taken_up <= number; id->taken_up++) {
        call = &id->calls[id->taken_up % id->calls_cap];
        if (!call->c.passes)
            take_inner(id, &call->c);
        else if (call->c.func != NB_FUNC_ALL_GATHER && call->c.count >= LARGE)
            count_call(id, call);
    }
    call = &id->calls[number % id->calls_cap];
    if (call->begun) {
        id->stats.lost_calls++;
        return NULL;
    }
    call->begun = 1;
    return call;
}

uint64_t nb_identity_call(struct nb_identity *id, const struct nb_identity_call *c)
{
    struct nb_call *call = new_call(id);
    const uint64_t number = id->announced++;

    *call = (struct nb_call){.c = *c, .number = number};
    if (c->func == NB_FUNC_REDUCE_SCATTER) {
        id->recent_rs[id->recent_at].recv = c->recv;
        id->recent_rs[id->recent_at].count = c->count;
        id->recent_at = (id->recent_at + 1) % NB_RECENT_RS;
    } else if (c->func == NB_FUNC_ALL_REDUCE) {
        for (unsigned i = 1; i <= NB_RECENT_RS && !call->parent; i++) {
            unsigned at = (id->recent_at + NB_RECENT_RS - i) % NB_RECENT_RS;
            if (id->recent_rs[at].count && id->recent_rs[at].recv == c->send)
                call->parent = id->recent_rs[at].count;
        }
    }
    return number;
}
