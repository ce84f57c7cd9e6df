/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which record belongs to which operation.
 *
 * Records and operations come in the same order, one for one. As long as nothing is lost the next record is
 * the next operation's. A launch that was not told (NCCL's sequence numbers show it), a record that was
 * dropped, or one whose operation never came here leaves several alignments possible: a set of positions, one
 * of which is right. Every operation tests them: where it contradicts the record at a position (function,
 * type, bytes; for an all-reduce also the number of steps, known when it has ended), the position is struck
 * out. A record is used only when all positions that are left show equal ones, so nothing is ever guessed:
 * while the set is larger than that, operations run on what their calls alone prove.
 *
 * Used by one thread.
 */
#ifndef NIBBLE_POLICY_ALIGN_H
#define NIBBLE_POLICY_ALIGN_H

#include "policy/queue.h"
#include "policy/record.h"

#define NB_ALIGN_POSITIONS 64u
#define NB_ALIGN_REACH 16u /* how far records and operations may be apart after a misfit */

enum nb_alignment {
    NB_ALIGN_CERTAIN = 0, /* the record is the operation's */
    NB_ALIGN_ALIKE,       /* one of several that tell the same, but for the buffer */
    NB_ALIGN_ABSENT,      /* the operation has no record */
    NB_ALIGN_DOUBT,       /* several records are possible, and they differ */
    NB_ALIGN_MISFIT,      /* no record fits: where the next one belongs is found by the operations to come */
};

struct nb_position {
    uint64_t at; /* number of the record that belongs to the next operation */
    int took;    /* the record before is that of the operation at hand */
};

struct nb_align {
    struct nb_record *ring; /* [cap]; grows to NB_QUEUE_RECORDS */
    uint32_t cap;
    uint64_t head, tail;
    struct nb_position position[NB_ALIGN_POSITIONS];
    unsigned n;
    /* Operations that came without a record while it was certain that they are the next ones: the losses that
     * a later record of the same function tells of. Only while all records are of one communicator. */
    uint32_t owed[NB_FUNC_COUNT];
    uint32_t source;
    int mixed;
    int blind; /* too much was lost to keep track, or memory was short: no record is used any more */
};

/* An operation as its windows show it; bytes 0: not known (all-reduce). */
struct nb_seen {
    enum nb_func func;
    ncclDataType_t type;
    uint64_t bytes;
};

struct nb_align *nb_align_create(void);
void nb_align_destroy(struct nb_align *align);
/* Room for further records; add: where there is no memory for one, the order is lost. */
size_t nb_align_room(const struct nb_align *align);
void nb_align_add(struct nb_align *align, const struct nb_record *record);

/* An operation begins; all records of operations up to it have been added. *record is set for CERTAIN and
 * ALIKE (then without slot and buffers). */
enum nb_alignment nb_align_begin(struct nb_align *align, const struct nb_seen *seen,
                                 struct nb_record *record);
/* The window at hand may have begun another operation without one being able to tell. */
void nb_align_perhaps(struct nb_align *align, const struct nb_seen *seen);
/* The all-reduce at hand ended after `steps` steps of `step_bytes` bytes. Strikes out records that
 * contradict; -1 when all do. */
int nb_align_ended(struct nb_align *align, uint64_t steps, uint64_t step_bytes);
/* The order of operations itself is lost. */
void nb_align_lost(struct nb_align *align);

#endif
