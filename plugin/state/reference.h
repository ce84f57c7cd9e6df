/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weight references: a block as its owner last delivered it in an all-gather. The owner and every receiver
 * keep it, so that the next gather of (nearly) the same block can be sent as exact differences.
 *
 * The owner picks the reference by *content*, without knowing step, address or order. A wrong choice costs
 * bytes only. The owner changes a reference only when every receiver has confirmed that it holds the content
 * before. A receiver that cannot decode can therefore always be answered with the raw bytes. A gather that
 * begins sooner waits for the confirmations (NB_REF_WAIT). It could not end earlier anyway: it needs the
 * block of every node, and a node sends its block when it has the whole gather before. The choice, and all
 * that is learnt from it (which weights these are, whether they have changed, how far), therefore depends on
 * contents alone, not on time.
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

/* Notes about ranges that were delivered while receivers do not hold the source's bytes in the reference.
 * They are in order of offsets, with a hash of the source to recognise it. There is one list for the current
 * operation and one for the operation before. */
struct nb_ref_parts {
    struct nb_ref_part *part;
    size_t n, cap, at; /* at: index of the first note that may be looked up next */
};

/* A backward pass gathers blocks in the reverse of a forward pass's order. */
#define NB_REF_FOLLOWERS 2u

/* A block that this node owns. The engine reads the fields. `data` holds `bytes` bytes. While an operation
 * writes them, the first `filled` are the current content. Between operations all are. */
struct nb_ref {
    uint32_t number;  /* number in messages */
    uint32_t version; /* operations that wrote it */
    uint8_t *data;
    size_t bytes;
    size_t filled;
    uint64_t last_op;    /* the operation that last wrote it */
    uint64_t used_op;    /* the operation that last picked it */
    int complete;        /* last_op wrote all of it */
    int matched;         /* was picked by content at least once */
    unsigned confirms;   /* receivers that hold last_op's content */
    unsigned answers;    /* receivers that took last_op over, whether they kept it or not */
    struct nb_jump jump; /* the usual cost of its changes; the engine's */
    int follower
        [NB_REF_FOLLOWERS]; /* the references picked after this one: the last, and a different one before;
                               or -1 */
    struct nb_ref_parts parts, before; /* of operation parts_op, and of the operation before it */
    uint64_t parts_op;
};

enum nb_ref_outcome {
    NB_REF_HIT,         /* code against ref->data, keep the new bytes */
    NB_REF_NEW,         /* send raw, keep */
    NB_REF_UNCONFIRMED, /* known content, but a receiver had no memory for it: send raw, keep no bytes */
    NB_REF_NONE,        /* memory is short: send raw, keep no bytes */
    NB_REF_WAIT,        /* some receivers have not answered yet: ask nb_refs_picked until they have */
};

/* Create the references of a communicator of `ctx`, whose budgets it uses, with `nranks` nodes, on device
 * `dev`. Both outlive it. Return NULL when memory is short. */
struct nb_refs *nb_refs_create(struct nb_context *ctx, struct nb_device *dev, int nranks);
void nb_refs_destroy(struct nb_refs *refs);

/* The search for the reference of an operation that is about to send the own block of `bytes` bytes. At
 * present `own` has `avail` of these bytes, from `offset` on. The caller sets these four. */
struct nb_ref_search {
    const void *own;
    size_t offset, avail, bytes;
    unsigned tried; /* from here on reference.c's: number of followers tried */
    unsigned asked, next;
    int found; /* the best so far; at the end -1 unless it is similar enough */
    double most, second;
};

/* Search: seek, then, as long as `ask` has one more question, compute the similarity (device/device.h) of
 * search->own and *there, search->avail bytes, at NB_REF_SAMPLES positions, and pass it to `hear`. References
 * stay unchanged meanwhile. */
#define NB_REF_SAMPLES 256u
void nb_refs_seek(const struct nb_refs *refs, struct nb_ref_search *search);
bool nb_refs_ask(const struct nb_refs *refs, struct nb_ref_search *search, const void **there);
void nb_refs_answer(const struct nb_refs *refs, struct nb_ref_search *search,
                    const struct nb_similarity *near);
/* End the search and choose the reference. Set *ref for HIT and NEW, else to NULL. */
enum nb_ref_outcome nb_refs_pick(struct nb_refs *refs, const struct nb_ref_search *search, uint64_t opno,
                                 struct nb_ref **ref);
/* Return the outcome of the last nb_refs_pick, which had to wait, or NB_REF_WAIT while it still has to. */
enum nb_ref_outcome nb_refs_picked(const struct nb_refs *refs, struct nb_ref **ref);

/* Return the reference of the last nb_refs_pick (all outcomes but NONE), to compare contents with. */
struct nb_ref *nb_refs_last(const struct nb_refs *refs);

/* Return 1 when a block of this many bytes that matches no earlier block is out of the ordinary: blocks of
 * the size have changed often enough to know their usual change, and hardly any gather of the size matched
 * none. Momenta, for instance, match none in every step. */
int nb_refs_news(const struct nb_refs *refs, size_t bytes);

/* How a range of the own block compares with the bytes last delivered of it. */
enum nb_ref_source {
    NB_REF_CHANGED, /* other bytes */
    NB_REF_HELD,    /* the same source, delivered as the reference's content */
    NB_REF_SENT,    /* the same source, delivered raw, while the reference has older content */
};

/* A range of the own block, compared part by part. For each part of `part` bytes the device fills `seen`
 * (struct nb_compared) from the own bytes at `at` of the block and the bytes at `there`, which may be
 * NULL. */
struct nb_ref_range {
    size_t offset, bytes;
    size_t at, part;
    const uint8_t *there;
    struct nb_compared seen;
    enum nb_ref_source all; /* the result for the range; or how the range was delivered */
    size_t kept;            /* reference.c's */
};

/* Compare the range [offset, offset + bytes) of the picked reference, which operation `opno` is about to
 * send. `noted` returns false when there are no notes about the reference's content. Then a range is HELD
 * where it equals that content, else CHANGED, and the caller need not ask further. Otherwise compare each
 * range once, in ascending order and one at a time: begin, and as long as `ask` has one more part, pass its
 * comparison to `hear`. Then range->all is the result. */
bool nb_refs_source_noted(struct nb_ref *ref, uint64_t opno);
void nb_refs_source(struct nb_ref *ref, struct nb_ref_range *range, size_t offset, size_t bytes);
bool nb_refs_source_ask(struct nb_ref *ref, struct nb_ref_range *range);
void nb_refs_source_answer(struct nb_ref *ref, struct nb_ref_range *range);

/* Return 1 when there is memory to note that a range was approximated. */
int nb_refs_may_approximate(struct nb_ref *ref, size_t bytes);
/* Note in the same way how a range is delivered. HELD: receivers have decoded the reference's content from
 * it. SENT: it is sent raw, and the reference keeps its content. The note is dropped when memory is short. */
void nb_refs_note(struct nb_ref *ref, struct nb_ref_range *range, size_t offset, size_t bytes,
                  enum nb_ref_source how);
bool nb_refs_note_ask(struct nb_ref_range *range);
void nb_refs_note_answer(struct nb_ref *ref, struct nb_ref_range *range);

/* Begin to write the own bytes of a range into the reference: operation `opno` writes it, in ascending order.
 * Until all of it is written its content must not be read. Return the address of the bytes. */
uint8_t *nb_refs_write(struct nb_ref *ref, size_t offset, size_t bytes, uint64_t opno);

/* Note that `receivers` receivers took operation `opno` over whole. kept: they hold the bytes. */
void nb_refs_confirmed(struct nb_refs *refs, uint64_t opno, int kept, unsigned receivers);
/* Return bytes of the own block of operation `opno`, for a receiver that asks for them, or NULL when they are
 * gone. */
const void *nb_refs_find_op(struct nb_refs *refs, uint64_t opno, size_t offset, size_t bytes);
/* Return 1 while some receiver has not taken over an operation of ours. It may still ask for the bytes. */
int nb_refs_unconfirmed(const struct nb_refs *refs);
/* Return one more than the number of the newest all-gather that some receiver has not taken over, 0 without
 * one. */
uint64_t nb_refs_awaited(const struct nb_refs *refs);

/* Return the memory in which this node keeps the reference number `reference` of `owner`, with `bytes` bytes.
 * make: get it when it is missing or of another size. Its content is undefined then. Return NULL when it is
 * missing or memory is short. */
uint8_t *nb_refs_of_peer(struct nb_refs *refs, int owner, uint32_t number, size_t bytes, int make);

size_t nb_refs_bytes(const struct nb_refs *refs);
unsigned nb_refs_count(const struct nb_refs *refs);

#endif
