/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Find the place of an all-reduce window in its operation, and which of its bytes are values.
 *
 * NCCL deals a vector of B bytes out to C channels, H heads a node and chunks of k bytes: channel c of head h
 * takes chunk (s C + c) H + h in step s, for L = ceil(B / (C H k)) steps. The windows of head h are, step by
 * step, the chunks of channels 0..7, then of 8..15 and so on ("groups"). They always are whole chunks without
 * any offset, also at the operation's end. The slot gives a window's place: NCCL keeps step s of an operation
 * in slot s mod 8 of its region, and the chunk of channel c at c k in it.
 *
 * NCCL passes only B. C and k stay unknown, but with D, the bytes of all windows of the operation so far
 * (this head's "stream"), this follows:
 *
 *  (1) Chunk number j of the stream begins at j k there and at (j H + h) k in the vector, for every C:
 *      steps and channels only number the chunks of a head in order.
 *  (2) So the values of a head are a prefix of its stream: chunk j + 1 begins, in the vector, behind the end
 *      of chunk j. With q = floor(B / (H k)) and r = B - q H k the prefix has S = q k + min(max(r - h k, 0),
 *      k) bytes. A window of W bytes at D therefore has min(max(S - D, 0), W) bytes of values, and they come
 *      first.
 *  (3) With H = 1 this is S = B: exact, without C and k.
 *  (4) Else k is one of few: the first window has min(C, 8) chunks, so k = W / c for some c in 1..8. Once a
 *      window of a second group has come, at 8 k in the slot, k is known. h is any of 0..H-1. Every candidate
 *      gives an S between the least and the largest one. Bytes below the least certainly are values, and
 *      bytes at the largest and beyond certainly are padding. The bytes between, at most those of two
 *      windows in a whole operation, are sent raw.
 *  (5) A window at 0 of slot 0 begins an operation unless the step before it was in slot 7. After slot 7 the
 *      length decides: when the window comes, the step is complete and has C k bytes, so that
 *      L = ceil(B / (H C k)) is known, too.
 */
#include "policy/records/records.h"

#include <string.h>

#define MAX_HEADS 63u

enum nb_walk_place nb_walk_place(const struct nb_walk *w, unsigned slot, uint64_t at, uint64_t bytes)
{
    unsigned here = (unsigned)((w->steps - 1) % NB_WALK_SLOTS), next = (here + 1) % NB_WALK_SLOTS;

    if (slot >= NB_WALK_SLOTS || bytes == 0)
        return NB_WALK_NOWHERE;
    if (!w->open)
        return slot == 0 && at == 0 ? NB_WALK_BEGINS : NB_WALK_NOWHERE;
    if (at != 0) { /* a further group of the current step, after a whole one of 8 chunks */
        if (slot != here || at != w->cur || at % w->first != 0 || w->first % NB_WALK_CALL_CHANNELS != 0)
            return NB_WALK_NOWHERE;
        return bytes <= w->first && (w->step_bytes == 0 || w->cur + bytes <= w->step_bytes)
                   ? NB_WALK_CONTINUES
                   : NB_WALK_NOWHERE;
    }
    if (slot != next)
        return slot == 0 ? NB_WALK_BEGINS : NB_WALK_NOWHERE;
    /* A step is over. If it is this operation's, all its steps have the same bytes and begin with the same
     * window. */
    if ((w->step_bytes && w->cur != w->step_bytes) || bytes != w->first)
        return slot == 0 ? NB_WALK_BEGINS : NB_WALK_NOWHERE;
    return slot == 0 ? NB_WALK_EITHER : NB_WALK_CONTINUES;
}

void nb_walk_begin(struct nb_walk *w)
{
    memset(w, 0, sizeof(*w));
    w->open = 1;
}

void nb_walk_step(struct nb_walk *w, uint64_t at, uint64_t bytes)
{
    if (w->steps == 0) {
        w->steps = 1;
        w->first = bytes;
    } else if (at == 0) {
        w->step_bytes = w->cur;
        w->steps++;
        w->cur = 0;
    } else {
        w->chunk = w->first / NB_WALK_CALL_CHANNELS; /* (4): the first group was a whole one */
    }
    w->cur += bytes;
    w->done += bytes;
}

/* Set the largest and the least S for k bytes a chunk and H heads (2). */
static void prefix(uint64_t bytes, uint64_t k, uint64_t heads, int head, uint64_t *least, uint64_t *most)
{
    uint64_t q = bytes / (heads * k), r = bytes - q * heads * k;
    uint64_t lo = head < 0 ? heads - 1 : (uint64_t)head, hi = head < 0 ? 0 : (uint64_t)head;
    uint64_t a = r > lo * k ? r - lo * k : 0, b = r > hi * k ? r - hi * k : 0;

    *least = q * k + (a < k ? a : k);
    *most = q * k + (b < k ? b : k);
}

/* Set the largest and the least S of all candidates (4). */
static void stream(const struct nb_walk *w, const struct nb_extent *e, uint64_t value, uint64_t *least,
                   uint64_t *most)
{
    uint64_t known = e->chunk ? e->chunk : w->chunk;
    int contradicts = known && (w->first % known || w->first / known > NB_WALK_CALL_CHANNELS ||
                                (w->chunk && w->chunk != known));

    *least = UINT64_MAX;
    *most = 0;
    for (unsigned heads = 1; heads <= MAX_HEADS && !contradicts; heads++) {
        if (!(e->heads >> heads & 1) || e->head >= (int)heads)
            continue;
        for (unsigned c = 1; c <= NB_WALK_CALL_CHANNELS; c++) {
            uint64_t k = known ? known : w->first / c, a, b;
            if (!known && (w->first % c || k % value))
                continue;
            prefix(e->bytes, k, heads, e->head, &a, &b);
            *least = a < *least ? a : *least;
            *most = b > *most ? b : *most;
            if (known || heads == 1) /* (3): k does not matter */
                break;
        }
    }
    if (*least == UINT64_MAX) /* without a candidate all is uncertain */
        *least = 0, *most = UINT64_MAX;
}

void nb_walk_values(const struct nb_walk *w, const struct nb_extent *e, uint64_t bytes, uint64_t value,
                    uint64_t *sure, uint64_t *most)
{
    uint64_t before = w->done - bytes, least, largest;

    stream(w, e, value, &least, &largest);
    *sure = least <= before ? 0 : least - before < bytes ? least - before : bytes;
    *most = largest <= before ? 0 : largest - before < bytes ? largest - before : bytes;
}

uint64_t nb_walk_longest(const struct nb_walk *w, const struct nb_extent *e, uint64_t value)
{
    uint64_t least, most;

    stream(w, e, value, &least, &most);
    return most == UINT64_MAX ? 0 : most;
}

uint64_t nb_walk_heads(const struct nb_extent *e, uint64_t steps, uint64_t step_bytes)
{
    uint64_t fit = 0;

    for (unsigned heads = 1; heads <= MAX_HEADS; heads++) {
        uint64_t whole = heads * step_bytes;
        if ((e->heads >> heads & 1) && (e->bytes + whole - 1) / whole == steps)
            fit |= UINT64_C(1) << heads;
    }
    return fit;
}

int nb_walk_ended(const struct nb_walk *w, const struct nb_extent *e)
{
    uint64_t fit = nb_walk_heads(e, w->steps, w->cur);
    int more = 0;

    for (unsigned heads = 1; heads <= MAX_HEADS; heads++)
        if ((e->heads >> heads & 1) && !(fit >> heads & 1) && w->steps * heads * w->cur < e->bytes)
            more = 1;
    return fit && more ? -1 : !more;
}
