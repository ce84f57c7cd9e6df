/* SPDX-License-Identifier: Apache-2.0 */
/* See handback.h. */
#include "policy/handback.h"

#include <errno.h>
#include <string.h>

#include "base/minmax.h"

#define CALLS_MOST ((uint64_t)1 << 62) /* nobody makes as many; what a note says stays below */

void nb_handback_init(struct nb_handback *h, const struct nb_handback_config *config)
{
    memset(h, 0, sizeof(*h));
    h->config = *config;
}

static struct nb_handback_signature *find(struct nb_handback *h, enum nb_func func, uint64_t bytes)
{
    for (unsigned i = 0; i < h->signatures; i++)
        if (h->signature[i].bytes == bytes && h->signature[i].func == func)
            return &h->signature[i];
    return NULL;
}

const struct nb_handback_signature *nb_handback_find(const struct nb_handback *h, enum nb_func func,
                                                     uint64_t bytes)
{
    return find((struct nb_handback *)h, func, bytes);
}

/* NULL: there is no room. */
static struct nb_handback_signature *take(struct nb_handback *h, enum nb_func func, uint64_t bytes)
{
    struct nb_handback_signature *s = find(h, func, bytes);

    if (s || h->signatures == NB_HANDBACK_SIGNATURES)
        return s;
    s = &h->signature[h->signatures++];
    s->func = func;
    s->bytes = bytes;
    s->period = h->config.period;
    return s;
}

static void send(struct nb_handback_out *out, int to, const struct nb_handback_signature *s,
                 enum nb_handback_kind kind, uint64_t call, uint32_t vote)
{
    out->sent[out->n].to = to;
    out->sent[out->n++].note = (struct nb_handback_note){
        .kind = kind, .func = s->func, .bytes = s->bytes, .call = call, .vote = vote};
}

/* ---- every node ---------------------------------------------------------------------------------------- */

enum nb_handback_answer nb_handback_call(struct nb_handback *h, unsigned rank, enum nb_func func,
                                         uint64_t bytes)
{
    struct nb_handback_signature *s;
    uint64_t call;

    if (h->failed)
        return NB_HANDBACK_COLLNET;
    s = take(h, func, bytes);
    if (!s)
        return NB_HANDBACK_COLLNET;
    call = s->calls[rank] + 1;
    if (s->voting && call > s->barrier)
        return NB_HANDBACK_WAIT;
    s->calls[rank] = call;
    return call >= s->from && call < s->until ? NB_HANDBACK_NCCL : NB_HANDBACK_COLLNET;
}

/* All calls that were handed back have been answered on all ranks, so that what they were need not be known any more. */
static bool is_back(const struct nb_handback *h, const struct nb_handback_signature *s)
{
    for (unsigned i = 0; i < h->config.ranks; i++)
        if (s->calls[i] + 1 < s->until)
            return false;
    return true;
}

/* A node may vote: it knows of every rank's calls, and none of those that were handed back is still to come. A rank without a call
 * may be none: a file that another job left behind (policy/handback_shared.h) has places that nobody fills. */
static bool may_vote(const struct nb_handback *h, const struct nb_handback_signature *s)
{
    for (unsigned i = 0; i < h->config.ranks; i++)
        if (!s->calls[i])
            return false;
    return !h->stopped && is_back(h, s);
}

static uint64_t furthest(const struct nb_handback *h, const struct nb_handback_signature *s)
{
    uint64_t calls = 0;

    for (unsigned i = 0; i < h->config.ranks; i++)
        calls = nb_max64(calls, s->calls[i]);
    return calls;
}

/* This node's verdict: no head has another one. */
static bool is_raw(const struct nb_handback *h, const struct nb_handback_signature *s)
{
    return s->raw == (1u << h->config.heads) - 1;
}

bool nb_handback_is_back(const struct nb_handback *h, enum nb_func func, uint64_t bytes)
{
    const struct nb_handback_signature *s = nb_handback_find(h, func, bytes);

    return !s || is_back(h, s);
}

/* A vote: this node's answer, with its ranks' promise to wait. */
static uint64_t answer(const struct nb_handback *h, struct nb_handback_signature *s)
{
    if (!s || !is_raw(h, s) || !may_vote(h, s))
        return NB_HANDBACK_NONE;
    s->voting = true;
    s->barrier = furthest(h, s) + h->config.slack;
    return s->barrier;
}

/* Its outcome. What has been seen so far has been used. */
static void settle(const struct nb_handback *h, struct nb_handback_signature *s, uint64_t call)
{
    s->voting = false;
    if (call == NB_HANDBACK_NONE)
        return;
    s->from = call;
    s->until = call + s->period;
    s->period = nb_min64(2 * s->period, h->config.longest);
    s->raw = 0;
    s->told = false;
    s->raw_on = 0;
}

/* ---- node 0 -------------------------------------------------------------------------------------------- */

static uint64_t all_of(const struct nb_handback *h)
{
    return h->config.nnodes == NB_HANDBACK_NODES ? UINT64_MAX : ((uint64_t)1 << h->config.nnodes) - 1;
}

static void hear(struct nb_handback_signature *s, int node, bool raw)
{
    if (raw)
        s->raw_on |= (uint64_t)1 << node;
    else
        s->raw_on &= ~((uint64_t)1 << node);
}

/* Begin a vote on a signature that goes raw everywhere, unless one is under way. */
static void begin_vote(struct nb_handback *h, struct nb_handback_out *out)
{
    for (unsigned i = 0; i < h->signatures && !h->vote.open; i++) {
        struct nb_handback_signature *s = &h->signature[i];
        uint64_t far;
        if (s->raw_on != all_of(h))
            continue;
        far = answer(h, s);
        if (far == NB_HANDBACK_NONE) {
            hear(s, 0, false);
            s->told = false;
            continue;
        }
        h->vote.open = true;
        h->vote.number++;
        h->vote.signature = i;
        h->vote.answered = 1;
        h->vote.refused = false;
        h->vote.furthest = far;
        send(out, -1, s, NB_HANDBACK_ASK, 0, h->vote.number);
    }
}

static void count(struct nb_handback *h, int node, uint64_t far, struct nb_handback_out *out)
{
    struct nb_handback_signature *s = &h->signature[h->vote.signature];
    uint64_t call;

    h->vote.answered |= (uint64_t)1 << node;
    if (far == NB_HANDBACK_NONE) {
        h->vote.refused = true;
        hear(s, node, false); /* until it tells again, which may be before the vote ends */
    } else {
        h->vote.furthest = nb_max64(h->vote.furthest, far);
    }
    if (h->vote.answered != all_of(h))
        return;
    call = h->vote.refused ? NB_HANDBACK_NONE : h->vote.furthest + 1;
    h->vote.open = false;
    send(out, -1, s, NB_HANDBACK_SET, call, h->vote.number);
    settle(h, s, call);
    begin_vote(h, out);
}

/* ---- what happens -------------------------------------------------------------------------------------- */

void nb_handback_verdict(struct nb_handback *h, unsigned head, enum nb_func func, uint64_t bytes, bool raw,
                         struct nb_handback_out *out)
{
    struct nb_handback_signature *s = h->failed ? NULL : find(h, func, bytes); /* there has been a call */

    out->n = 0;
    if (!s)
        return;
    s->raw = raw ? s->raw | 1u << head : s->raw & ~(1u << head);
    raw = is_raw(h, s);
    /* Nothing is told during a vote, so that nothing that was told before the outcome arrives after it. */
    if (head != h->config.leader || raw == s->told || s->voting || (raw && !may_vote(h, s)))
        return;
    s->told = raw;
    if (h->config.node == 0) {
        hear(s, 0, raw);
        begin_vote(h, out);
    } else {
        send(out, 0, s, NB_HANDBACK_TELL, raw, 0);
    }
}

int nb_handback_receive(struct nb_handback *h, int from, const struct nb_handback_note *note,
                        struct nb_handback_out *out)
{
    const bool to_first = note->kind == NB_HANDBACK_TELL || note->kind == NB_HANDBACK_FAR;
    const bool number_fits = note->call == NB_HANDBACK_NONE || note->call <= CALLS_MOST;
    struct nb_handback_signature *s;

    out->n = 0;
    if (h->failed)
        return 0;
    if (to_first != (h->config.node == 0) || (to_first ? from == 0 : from != 0) || from < 0 ||
        from >= h->config.nnodes || !number_fits)
        return -EPROTO;
    switch (note->kind) {
    case NB_HANDBACK_TELL:
        if (note->call > 1)
            return -EPROTO;
        s = take(h, note->func, note->bytes);
        if (s) {
            hear(s, from, note->call);
            begin_vote(h, out);
        }
        return 0;
    case NB_HANDBACK_ASK:
        s = find(h, note->func, note->bytes);
        if (s && s->voting)
            return -EPROTO;
        {
            const uint64_t far = answer(h, s);
            if (s && far == NB_HANDBACK_NONE)
                s->told = false; /* and so it is counted */
            out->n = 1;
            out->sent[0].to = 0;
            out->sent[0].note = *note;
            out->sent[0].note.kind = NB_HANDBACK_FAR;
            out->sent[0].note.call = far;
        }
        return 0;
    case NB_HANDBACK_FAR:
        s = find(h, note->func, note->bytes);
        if (!h->vote.open || note->vote != h->vote.number || s != &h->signature[h->vote.signature] ||
            (h->vote.answered >> from & 1))
            return -EPROTO;
        count(h, from, note->call, out);
        return 0;
    case NB_HANDBACK_SET:
        s = find(h, note->func, note->bytes);
        if (note->call != NB_HANDBACK_NONE && (!s || !s->voting || note->call <= s->barrier))
            return -EPROTO; /* this node was not asked, or has answered that call */
        if (s)
            settle(h, s, note->call);
        return 0;
    default: return -EPROTO;
    }
}

void nb_handback_stop(struct nb_handback *h)
{
    h->stopped = true;
}

void nb_handback_fail(struct nb_handback *h)
{
    h->failed = true;
    for (unsigned i = 0; i < h->signatures; i++)
        h->signature[i].voting = false;
}
