/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Match records with operations.
 *
 * Records and operations come in the same order, one for one. As long as each operation has its record, the
 * next record belongs to the next operation. Three things break that: a launch that NCCL did not report (gaps
 * in its sequence numbers show it), a dropped record, and a record whose operation went elsewhere. Then
 * several alignments are possible. They are kept as a set of positions, one of which is right. Every
 * operation tests them and strikes out each position whose record it contradicts: by function, type and
 * bytes, and for an all-reduce also by the number of steps, which is known at its end. A record is used only
 * when all remaining positions show equal records, so a record is never a guess. Until then operations rely
 * on the evidence of their own calls.
 *
 * Used by one thread.
 *
 * The set of positions is a nondeterministic automaton: each position says which record belongs to the next
 * operation, and an operation moves each of them. `at` is the record at the position. `teller` is the first
 * record of the operation's function at or behind it, and reports losses of that function:
 *
 *     record at            teller               the position becomes
 *     fits                 reports no loss      at + 1                 TAKE
 *     fits                 reports losses       at + 1, and at         TAKE, STAY: it may be a lost one
 *     does not fit         reports losses       at                     STAY
 *     does not fit         reports no loss      struck out
 *     does not fit,        not yet there        at                     ABSENT: it has no record, or its
 *     or not yet there                                                 loss is still to be reported
 *
 * The result for the operation follows from all moves together:
 *
 *     no move                                          MISFIT    and every position near by is possible again
 *     no TAKE                                          ABSENT
 *     TAKE, and any STAY, ABSENT or unequal records    DOUBT
 *     TAKE of one position                             CERTAIN
 *     TAKE of several, records equal but for buffers   ALIKE
 *
 * An all-reduce also strikes out positions at its end, when its number of steps is known (nb_align_ended).
 */
#include "policy/records/records.h"

#include <errno.h>
#include <stdlib.h>

#define FIRST_RECORDS 32u

struct nb_align *nb_align_create(void)
{
    struct nb_align *a = calloc(1, sizeof(*a));

    if (!a)
        return NULL;
    a->cap = FIRST_RECORDS;
    a->ring = calloc(a->cap, sizeof(*a->ring));
    a->n = 1;
    if (!a->ring) {
        free(a);
        return NULL;
    }
    return a;
}

void nb_align_destroy(struct nb_align *a)
{
    if (!a)
        return;
    free(a->ring);
    free(a);
}

static struct nb_record *record_at(struct nb_align *a, uint64_t at)
{
    return &a->ring[at % a->cap];
}

/* Double the ring. Return 0 or -ENOMEM. */
static int grow(struct nb_align *a)
{
    struct nb_record *ring = calloc(2 * (size_t)a->cap, sizeof(*ring));

    if (!ring)
        return -ENOMEM;
    for (uint64_t at = a->head; at < a->tail; at++)
        ring[at % (2 * a->cap)] = *record_at(a, at);
    free(a->ring);
    a->ring = ring;
    a->cap *= 2;
    return 0;
}

size_t nb_align_room(const struct nb_align *a)
{
    return NB_QUEUE_RECORDS - (size_t)(a->tail - a->head);
}

void nb_align_add(struct nb_align *a, const struct nb_record *record)
{
    struct nb_record *r;

    if (!a->blind && a->tail - a->head == a->cap && grow(a))
        nb_align_lost(a);
    if (a->blind)
        return;
    r = record_at(a, a->tail);
    *r = *record;
    if (a->tail == 0)
        a->source = record->source;
    a->mixed |= record->source != a->source;
    for (int f = 0; f < NB_FUNC_COUNT; f++) {
        if (record->missing[f]) {
            if (!a->mixed)
                r->missing[f] -= r->missing[f] < a->owed[f] ? r->missing[f] : a->owed[f];
            a->owed[f] = 0;
        }
    }
    a->tail++;
}

void nb_align_lost(struct nb_align *a)
{
    a->blind = 1;
    a->head = a->tail;
}

static int fits(const struct nb_record *r, const struct nb_seen *seen)
{
    if (r->flags & NB_RECORD_DOUBT)
        return 1;
    return r->func == seen->func && r->type == seen->type && (seen->bytes == 0 || r->bytes == seen->bytes);
}

/* Return 1 for records that lead to the same exchange. */
static int alike(const struct nb_record *a, const struct nb_record *b)
{
    return a->func == b->func && a->type == b->type && a->bytes == b->bytes && a->heads == b->heads &&
           a->head == b->head && a->chunk == b->chunk && a->caller == b->caller &&
           (a->flags & ~(unsigned)NB_RECORD_CAPTURED) == (b->flags & ~(unsigned)NB_RECORD_CAPTURED);
}

static void insert(struct nb_align *a, uint64_t at, int took)
{
    for (unsigned i = 0; i < a->n; i++)
        if (a->position[i].at == at && a->position[i].took == took)
            return;
    if (a->n == NB_ALIGN_POSITIONS) {
        nb_align_lost(a);
        return;
    }
    a->position[a->n].at = at;
    a->position[a->n++].took = took;
}

/* Drop the records before all positions. A position that took a record still needs that one. */
static void forget(struct nb_align *a)
{
    uint64_t least = UINT64_MAX;

    for (unsigned i = 0; i < a->n; i++) {
        uint64_t need = a->position[i].at - (a->position[i].took != 0);
        least = need < least ? need : least;
    }
    if (!a->blind && least > a->head)
        a->head = least;
}

/* Restart without a position: either this operation has no record, or one of the records behind belongs to
 * it. The following operations decide. */
static void resync(struct nb_align *a, uint64_t from, const struct nb_seen *seen)
{
    a->n = 0;
    insert(a, from, 0);
    for (uint64_t at = from; at < a->tail && at < from + NB_ALIGN_REACH; at++)
        if (fits(record_at(a, at), seen))
            insert(a, at + 1, 1);
}

#define NONE UINT64_MAX

/* Return the first record of `func` at or behind `at`, or NONE. The next record of a function reports the
 * function's losses, so it says whether an operation at `at` may have been lost. With NONE that is still
 * open. */
static uint64_t next_of(struct nb_align *a, uint64_t at, enum nb_func func)
{
    for (; at < a->tail; at++)
        if (record_at(a, at)->func == func)
            return at;
    return NONE;
}

enum { TAKE = 1, STAY = 2, ABSENT = 4 };

/* Return an operation's moves of a position, by the table at the head of the file. */
static unsigned moves_of(struct nb_align *a, uint64_t at, const struct nb_seen *seen)
{
    const uint64_t teller = next_of(a, at, seen->func);
    const int fit = at < a->tail && fits(record_at(a, at), seen);

    if (teller == NONE)
        return fit ? TAKE : ABSENT;
    return (fit ? TAKE : 0) | (record_at(a, teller)->missing[seen->func] ? STAY : 0);
}

/* Count one loss as explained when this operation can belong only to the lowest position. */
static void account_for_loss(struct nb_align *a, uint64_t least, unsigned positions, unsigned moves,
                             const struct nb_seen *seen)
{
    const uint64_t teller = next_of(a, least, seen->func);

    if (teller != NONE && (teller == least || positions == 1) && record_at(a, teller)->missing[seen->func])
        record_at(a, teller)->missing[seen->func]--;
    else if (teller == NONE && positions == 1 && !(moves & TAKE))
        a->owed[seen->func]++;
}

enum nb_alignment nb_align_begin(struct nb_align *a, const struct nb_seen *seen, struct nb_record *out)
{
    struct nb_position before[NB_ALIGN_POSITIONS];
    const unsigned n = a->n;
    unsigned moves = 0; /* of all positions */
    uint64_t least = NONE;
    int differ = 0;

    if (a->blind)
        return NB_ALIGN_DOUBT;
    for (unsigned i = 0; i < n; i++) {
        before[i] = a->position[i];
        least = before[i].at < least ? before[i].at : least;
    }
    a->n = 0;
    for (unsigned i = 0; i < n; i++) {
        const uint64_t at = before[i].at;
        const unsigned m = moves_of(a, at, seen);
        if (m & TAKE) {
            if (!(moves & TAKE))
                *out = *record_at(a, at);
            else
                differ |= !alike(out, record_at(a, at));
            insert(a, at + 1, 1);
        }
        if (m & (STAY | ABSENT))
            insert(a, at, 0);
        moves |= m;
    }
    account_for_loss(a, least, n, moves, seen);
    if (!moves) {
        resync(a, least, seen);
        forget(a);
        return NB_ALIGN_MISFIT;
    }
    forget(a);
    if (!(moves & TAKE))
        return NB_ALIGN_ABSENT;
    if (moves & (STAY | ABSENT) || differ || a->blind)
        return NB_ALIGN_DOUBT;
    if (a->n == 1)
        return NB_ALIGN_CERTAIN;
    out->slot = -1;
    out->call = 0;
    out->send = out->recv = NULL;
    return NB_ALIGN_ALIKE;
}

void nb_align_perhaps(struct nb_align *a, const struct nb_seen *seen)
{
    unsigned n = a->n;

    for (unsigned i = 0; i < n && !a->blind; i++) {
        uint64_t at = a->position[i].at;
        if (at < a->tail && fits(record_at(a, at), seen))
            insert(a, at + 1, 1);
    }
}

int nb_align_ended(struct nb_align *a, uint64_t steps, uint64_t step_bytes)
{
    unsigned kept = 0, n = a->n, had = 0;
    struct nb_position position[NB_ALIGN_POSITIONS];

    if (a->blind)
        return 0;
    for (unsigned i = 0; i < n; i++) {
        struct nb_position p = a->position[i];
        if (p.took) {
            const struct nb_record *r = record_at(a, p.at - 1);
            struct nb_extent e = {.bytes = r->bytes, .heads = r->heads, .head = r->head, .chunk = r->chunk};
            had++;
            if (!(r->flags & (NB_RECORD_CHAIN | NB_RECORD_DOUBT)) && !nb_walk_heads(&e, steps, step_bytes))
                continue;
        }
        position[kept++] = p;
    }
    if (had && kept == 0) {
        /* The records are wrong, or farther from the operations than assumed. */
        uint64_t from = a->head;
        a->n = 0;
        for (uint64_t at = from; at <= a->tail && at < from + NB_ALIGN_REACH; at++)
            insert(a, at, 0);
        return -1;
    }
    a->n = 0;
    for (unsigned i = 0; i < kept; i++)
        insert(a, position[i].at, 0);
    forget(a);
    return 0;
}
