/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Error feedback: for each slot (one buffer of the job, as far as the caller is certain) the part of this
 * node's contribution that the code did not carry, int8 with a scale a group of 32 (layout: nibble/codec.h).
 *
 * A slot covers the whole vector of an operation as `blocks` blocks of `n` values; memory is taken when the
 * slot is made and touched where used, so that the own block, which needs no error, costs nothing.
 *
 * To empty a slot is work of the device like any other, on its memory as a whole: nobody waits for it. A new slot of a
 * device whose memory is not zero begins so. Until it is done nb_feedback_hold says that the slot is not to be had yet,
 * and nb_feedback_progress looks after it; a slot that is not used meanwhile holds up nothing.
 * All functions are for the engine thread of the communicator.
 */
#ifndef NIBBLE_STATE_FEEDBACK_H
#define NIBBLE_STATE_FEEDBACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/device.h"

struct nb_context;
struct nb_feedback; /* of one communicator */
struct nb_ef_slot;

struct nb_ef_key {
    uint32_t func; /* enum nb_func */
    uint32_t type; /* enum nb_dtype */
    uint64_t n;    /* values a block */
    uint32_t blocks;
    int64_t id;        /* identity of the buffer among those of the same shape */
    uint64_t geometry; /* how positions map to elements; another geometry is another slot's error */
};

/* For a communicator of `ctx`, whose settings and budgets it uses, on device `dev`; both outlive it. NULL: no
 * memory. destroy: when nothing is at work any more, or the device was quiesced. */
struct nb_feedback *nb_feedback_create(struct nb_context *ctx, struct nb_device *dev);
void nb_feedback_destroy(struct nb_feedback *fb);

/* Look after slots that are being emptied, and ask the device once more where it had no room: 1 some are empty now,
 * 0, or the negative errno with which the device has failed. at_work: while there are any. */
int nb_feedback_progress(struct nb_feedback *fb);
bool nb_feedback_at_work(const struct nb_feedback *fb);

/* The slot of `key`, made when it is new. NULL when the budget does not hold it (counted by the caller). A
 * slot whose id is known with another geometry is emptied and takes the new one; one of another shape with an
 * id that is not -1 gives way to the new one (nb_feedback_trim frees it). fresh: what it holds is not this
 * buffer's last error. In mode ema a slot is also emptied every 1024 steps, and in every mode when
 * the values of the operation before were a spike (state/jump.h). */
struct nb_ef_slot *nb_feedback_get(struct nb_feedback *fb, const struct nb_ef_key *key, uint64_t opno,
                                   int fresh);

/* 1 while work uses the error of the slot that `key` names: then nb_feedback_get has to wait, since what the
 * operation before has left is not all there yet. */
int nb_feedback_busy(const struct nb_feedback *fb, const struct nb_ef_key *key);

/*
 * Work that reads and writes a slot's error may be in flight on the device for a while: hold, then view, and
 * release when it is done. Several works of one operation may hold a slot, since their values are different
 * ones; those of two operations may not. hold: 1, or 0 when it is to be asked for again, because another
 * operation's work has the slot, or because the slot is being emptied, or is to be when the works that hold it are done.
 */
int nb_feedback_hold(struct nb_ef_slot *slot, uint64_t opno);
void nb_feedback_release(struct nb_feedback *fb, struct nb_ef_slot *slot);

/* Operations before `opno` are over: free what gave way before it. */
void nb_feedback_trim(struct nb_feedback *fb, uint64_t opno);

/* Values of operation `opno` were coded with the slot's error: counts for the report, and how large they
 * are. */
void nb_feedback_note(struct nb_ef_slot *slot, uint64_t opno, const struct nb_encode_stats *stats);

/* What a slot did so far; `index` from 0: 1 and *report, or 0 when there are no more. */
struct nb_ef_report {
    struct nb_ef_key key;
    size_t bytes;
    uint64_t ops; /* that got it */
    uint64_t emptied;
    struct nb_encode_stats encode;
};
int nb_feedback_report(const struct nb_feedback *fb, unsigned index, struct nb_ef_report *report);

/* The error state of block `block` of a slot that is held, with mode and constants from the settings. */
void nb_feedback_view(struct nb_ef_slot *slot, uint32_t block, struct nb_ef *ef);

/* The error state of a buffer, read from outside of any operation: that of block `block` of the slot that
 * `func` (enum nb_func) and `id` name, whose values are *n. 0, -ENOENT: there is no such slot, -EINVAL: no
 * such block. Only where the device is the host. */
int nb_feedback_peek(const struct nb_feedback *fb, uint32_t func, int64_t id, uint32_t block,
                     struct nb_ef *ef, uint64_t *n);

/* The weights changed: errors used before this point belong to finished optimizer steps. Where this is never
 * called, a step ends when a slot comes a second time in it. */
void nb_feedback_step(struct nb_feedback *fb, uint64_t opno);

/* A non-finite value was seen: the step will be skipped or is lost, so the errors that were consumed or made
 * since the last weight change are wrong. Empties those slots; returns how many. */
unsigned nb_feedback_drop_step(struct nb_feedback *fb);

/* The number `id` belongs to another buffer from now on: empty what it has. This and all that empties does it
 * to slots that are held when they are released. */
void nb_feedback_drop(struct nb_feedback *fb, int64_t id);

/* Empty all slots: nothing was coded for a while. */
void nb_feedback_drop_all(struct nb_feedback *fb);

size_t nb_feedback_bytes(const struct nb_feedback *fb);

#endif
