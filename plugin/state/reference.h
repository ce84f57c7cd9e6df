/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weight references: what an owner last delivered of a block in an all-gather, kept by the owner and by every
 * receiver, so that the next gather of (nearly) the same block can be sent as exact differences.
 *
 * The owner picks the reference by *content*: no step, address or order has to be known, a wrong choice costs
 * bytes and nothing else. It changes a reference only when every receiver has confirmed that it holds the one
 * before, so that a receiver that finds it cannot decode can always be answered with the raw bytes. A gather
 * that comes sooner waits for that (NB_REF_WAIT). It could not end earlier anyway: it needs the block of
 * every node, which sends it when it has the whole gather before. And so what is picked, and all that is
 * learnt from it (which weights these are, whether they have changed, how far), depends on contents alone,
 * not on time.
 *
 * All functions are for the engine thread of the communicator.
 */
#ifndef NIBBLE_STATE_REFERENCE_H
#define NIBBLE_STATE_REFERENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/device.h"
#include "device/host/host.h"
#include "state/jump.h"

struct nb_context;
struct nb_refs; /* of one communicator */
struct nb_ref_part;

/* What was delivered of ranges whose receivers do not hold the source's bytes in the reference: in order of
 * offsets, with a hash of the source, so that it is known again. Kept for the operation at hand and for the
 * one before. */
struct nb_ref_parts {
    struct nb_ref_part *part;
    size_t n, cap, at; /* at: behind which those lie that are looked for next */
};

/* A backward pass gathers blocks in the reverse of a forward pass's order. */
#define NB_REF_FOLLOWERS 2u

/* A block that this node owns. Fields are read by the engine; `data` holds `bytes` bytes of which the first
 * `filled` are the current content while an operation is writing it (all, between operations). */
struct nb_ref {
    uint32_t slot;    /* number in messages */
    uint32_t version; /* operations that wrote it */
    uint8_t *data;
    size_t bytes;
    size_t filled;
    uint64_t last_op;    /* the operation that wrote it last */
    uint64_t used_op;    /* the last that picked it */
    int complete;        /* last_op wrote all of it */
    int matched;         /* was picked by content at least once */
    unsigned confirms;   /* receivers that hold last_op's content */
    unsigned answers;    /* receivers that took last_op over, whether they kept it or not */
    struct nb_jump jump; /* what its changes usually cost; the engine's */
    int follower
        [NB_REF_FOLLOWERS]; /* the slots picked after this one: last time, and another one before; or -1 */
    struct nb_ref_parts parts, before; /* of operation parts_op, and of the one before it */
    uint64_t parts_op;
};

enum nb_ref_outcome {
    NB_REF_HIT,         /* code against ref->data, keep the new bytes */
    NB_REF_NEW,         /* send raw, keep */
    NB_REF_UNCONFIRMED, /* known content, but a receiver had no memory for it: raw, keep nothing */
    NB_REF_NONE,        /* no memory for it: raw, keep nothing */
    NB_REF_WAIT,        /* not all receivers have answered yet: ask nb_refs_picked until they have */
};

/* For a communicator of `ctx`, whose budgets it uses, with `nranks` nodes, on device `dev`; both outlive it.
 * NULL: no memory. */
struct nb_refs *nb_refs_create(struct nb_context *ctx, struct nb_device *dev, int nranks);
void nb_refs_destroy(struct nb_refs *refs);

/* The search for the reference of an operation that is about to send the own block of `bytes` bytes, of which
 * `avail` bytes from `offset` on are at `own` now: these four are the caller's. */
struct nb_ref_search {
    const void *own;
    size_t offset, avail, bytes;
    unsigned tried; /* from here on reference.c's: of the slots to be tried first */
    unsigned asked, next;
    int found; /* the best so far; when it is over -1 where that is not like enough */
    double most, second;
};

/* Begin. Then, as long as `ask` has one more question: nearness (device/device.h) of search->own and *there,
 * search->avail bytes, at NB_REF_SAMPLES positions; `hear` gets the answer. No slot is written meanwhile. */
#define NB_REF_SAMPLES 256u
void nb_refs_seek(const struct nb_refs *refs, struct nb_ref_search *search);
bool nb_refs_ask(const struct nb_refs *refs, struct nb_ref_search *search, const void **there);
void nb_refs_hear(const struct nb_refs *refs, struct nb_ref_search *search, const struct nb_nearness *near);
/* It is over: choose the reference. *ref is set for HIT and NEW, else NULL. */
enum nb_ref_outcome nb_refs_pick(struct nb_refs *refs, const struct nb_ref_search *search, uint64_t opno,
                                 struct nb_ref **ref);
/* What came of the last nb_refs_pick, which had to wait: as that, or NB_REF_WAIT still. */
enum nb_ref_outcome nb_refs_picked(const struct nb_refs *refs, struct nb_ref **ref);

/* The slot that the last nb_refs_pick settled on (all but NONE), to compare contents with. */
struct nb_ref *nb_refs_last(const struct nb_refs *refs);

/* 1 when a block of this many bytes has been gathered and changed often enough to know what is usual for
 * it. */
int nb_refs_steady(const struct nb_refs *refs, size_t bytes);

/* How a range of the own block stands to what was delivered of it last. */
enum nb_ref_source {
    NB_REF_CHANGED, /* other bytes */
    NB_REF_HELD,    /* the same source, and what was delivered is the reference's content */
    NB_REF_SENT,    /* the same source, delivered as it is, while the reference has older content */
};

/* A range of the own block, looked at part by part. Of `part` the device is asked what struct nb_compared tells, into
 * `seen`: own bytes at `at` of the block and, unless it is NULL, what is at `there`. */
struct nb_ref_range {
    size_t offset, bytes;
    size_t at, part;
    const uint8_t *there;
    struct nb_compared seen;
    enum nb_ref_source all; /* of the range: what it is, once that is found; or how it was delivered */
    size_t kept;            /* reference.c's */
};

/* Operation `opno` is about to send the range [offset, offset + bytes) of the slot it picked. `noted`: false when nothing
 * was noted of the slot's content: then a range is HELD where it equals the reference's content, else CHANGED, and
 * nothing else has to be asked. Else, once for each range, in ascending order and one at a time: begin, and as long as
 * `ask` has one more part, `hear` its answer; then range->all is what it is. */
bool nb_refs_source_noted(struct nb_ref *ref, uint64_t opno);
void nb_refs_source(struct nb_ref *ref, struct nb_ref_range *range, size_t offset, size_t bytes);
bool nb_refs_source_ask(struct nb_ref *ref, struct nb_ref_range *range);
void nb_refs_source_hear(struct nb_ref *ref, struct nb_ref_range *range);

/* 1 when there is memory to remember that a range was approximated. */
int nb_refs_may_approximate(struct nb_ref *ref, size_t bytes);
/* The same way, a range is noted: HELD, the reference's content is what receivers have decoded of it; SENT, it is sent as
 * it is, and the reference keeps its content. Without memory for it that is forgotten. */
void nb_refs_note(struct nb_ref *ref, struct nb_ref_range *range, size_t offset, size_t bytes,
                  enum nb_ref_source how);
bool nb_refs_note_ask(struct nb_ref_range *range);
void nb_refs_note_hear(struct nb_ref *ref, struct nb_ref_range *range);

/* The own bytes of a range will be the reference's content: operation `opno` is writing it, in ascending order; until all
 * of it is written the slot's content may not be looked at. Returns where it is. */
uint8_t *nb_refs_write(struct nb_ref *ref, size_t offset, size_t bytes, uint64_t opno);

/* So many receivers took operation `opno` over whole; kept: they hold the bytes. */
void nb_refs_confirmed(struct nb_refs *refs, uint64_t opno, int kept, unsigned receivers);
/* Bytes of the own block of operation `opno`, for a receiver that asks for them; NULL when they are gone. */
const void *nb_refs_find_op(struct nb_refs *refs, uint64_t opno, size_t offset, size_t bytes);
/* 1 while some receiver has not taken over an operation of ours: it may still ask for its bytes. */
int nb_refs_unconfirmed(const struct nb_refs *refs);
/* One more than the number of the newest all-gather of which that is so; 0: there is none. */
uint64_t nb_refs_awaited(const struct nb_refs *refs);

/* The memory in which this node keeps `owner`'s slot of `bytes` bytes. make: get it when it is not there or
 * of another size (content undefined then). NULL: not there, or no memory. */
uint8_t *nb_refs_of_peer(struct nb_refs *refs, int owner, uint32_t slot, size_t bytes, int make);

size_t nb_refs_bytes(const struct nb_refs *refs);
unsigned nb_refs_count(const struct nb_refs *refs);

#endif
