/* SPDX-License-Identifier: Apache-2.0 */
/* What a window is cut into. */
#ifndef NIBBLE_COLL_SEGMENT_H
#define NIBBLE_COLL_SEGMENT_H

#include <stdint.h>

/* A segment: at most a wire unit, one owner. Offsets are in the coordinates of nb_coll_req.off. */
struct nb_segment {
    uint64_t off;
    uint32_t len;
    int owner; /* rank that reduces it (all-gather: that holds it) */
    int relay; /* rank through which it goes from its owner (all-gather), or that finishes its sum; -1: the owner, or
                     * none */
    uint64_t first;  /* index of its first value in the owner's block (all-reduce: in the window) */
    uint64_t number; /* all-reduce: segments before it in the window */
    /* All-reduce: what this node knows of its values. How a window is cut does not depend on it, since it may
     * differ between nodes; messages say how much of a segment they carry. */
    uint32_t most; /* bytes from here on are padding (else len) */
    int sure;      /* all bytes before are values, so they may be coded */
};

/* The node that finishes the sum of a segment. */
static inline int nb_segment_finisher(const struct nb_segment *segment)
{
    return segment->relay >= 0 ? segment->relay : segment->owner;
}

#endif
