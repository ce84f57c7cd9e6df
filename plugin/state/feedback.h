/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Error feedback. For each buffer of the job of which the caller is certain there is one residual: the part
 * of this node's contributions that encoding lost, as int8 with a scale a group of 32 values (layout:
 * nibble/codec.h).
 *
 * A residual covers the whole vector of an operation as `blocks` blocks of `n` values. Its memory is taken
 * when it is made and touched where it is used. The own block needs no residual and therefore costs no
 * memory.
 *
 * Emptying a residual is work of the device like any other, on its memory as a whole, and does not block. A
 * new residual begins with it where the device's memory is not zero. Until it is done nb_feedback_hold
 * refuses the residual, and nb_feedback_progress polls the work. A residual that is not used meanwhile holds
 * up no operation.
 *
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
struct nb_residual;

struct nb_ef_key {
    uint32_t func; /* enum nb_func */
    uint32_t type; /* enum nb_dtype */
    uint64_t n;    /* values of a block */
    uint32_t blocks;
    int64_t id;        /* identity of the buffer among buffers of the same shape */
    uint64_t geometry; /* how positions map to elements; the residual of another geometry is useless */
};

/* Create the residuals of a communicator of `ctx`, whose settings and budgets it uses, on device `dev`. Both
 * outlive it. Return NULL when memory is short. Destroy it when the device has finished its work or was
 * quiesced. */
struct nb_feedback *nb_feedback_create(struct nb_context *ctx, struct nb_device *dev);
void nb_feedback_destroy(struct nb_feedback *fb);

/* Poll residuals that are being emptied, and submit the work again where the device had no room. Return 1
 * when some are empty now, 0, or the negative errno with which the device has failed. at_work: whether some
 * are being emptied. */
int nb_feedback_progress(struct nb_feedback *fb);
bool nb_feedback_at_work(const struct nb_feedback *fb);

/* Return the residual of `key`, and make it when it is new. Return NULL when the budget is too small for it,
 * which the caller counts. A residual whose id is known with another geometry is emptied and takes the new
 * geometry. One of another shape with an id other than -1 gives way to the new one, and nb_feedback_trim
 * frees it later. fresh: the content is not this buffer's last error. In mode ema a residual is also emptied
 * every 1024 steps, and in every mode when the values of the operation before were a spike
 * (state/jump.h). */
struct nb_residual *nb_feedback_get(struct nb_feedback *fb, const struct nb_ef_key *key, uint64_t opno,
                                    int fresh);

/* Return 1 while work in flight uses the residual that `key` names. nb_feedback_get then has to wait, since
 * the operation before has not written all of it yet. */
int nb_feedback_busy(const struct nb_feedback *fb, const struct nb_ef_key *key);

/*
 * Hold a residual for work that reads and writes it on the device: hold, then view, and release when the work
 * is done. Several works of one operation may hold a residual, since their values differ. Works of two
 * operations may not. hold returns 1, or 0 when the caller must ask again: another operation's work holds the
 * residual, or it is being emptied, or it is to be emptied when the works that hold it are done.
 */
int nb_feedback_hold(struct nb_residual *residual, uint64_t opno);
void nb_feedback_release(struct nb_feedback *fb, struct nb_residual *residual);

/* Free the residuals that gave way before operation `opno`: earlier operations are over. */
void nb_feedback_trim(struct nb_feedback *fb, uint64_t opno);

/* Note that values of operation `opno` were coded with the residual. `stats` has counts for the report and
 * the size of the values. */
void nb_feedback_note(struct nb_residual *residual, uint64_t opno, const struct nb_encode_stats *stats);

/* Report the use of the residual number `index`, counted from 0. Return 1 and *report, or 0 beyond the
 * last. */
struct nb_ef_report {
    struct nb_ef_key key;
    size_t bytes;
    uint64_t ops; /* operations that used it */
    uint64_t emptied;
    struct nb_encode_stats encode;
};
int nb_feedback_report(const struct nb_feedback *fb, unsigned index, struct nb_ef_report *report);

/* Fill *ef for block `block` of a residual that is held, with mode and constants from the settings. */
void nb_feedback_view(struct nb_residual *residual, uint32_t block, struct nb_ef *ef);

/* Read a buffer's residual from outside of any operation: block `block` of the residual that `func` (enum
 * nb_func) and `id` name, with *n values. Return 0, -ENOENT for an unknown residual, or -EINVAL for an
 * unknown block. Only where the device is the host. */
int nb_feedback_peek(const struct nb_feedback *fb, uint32_t func, int64_t id, uint32_t block,
                     struct nb_ef *ef, uint64_t *n);

/* Note that the weights changed: all residuals used before this point belong to finished optimizer steps.
 * Without calls of this function a step ends when an operation uses a residual that the step has used
 * before. */
void nb_feedback_step(struct nb_feedback *fb, uint64_t opno);

/* Note that a non-finite value was seen. The step will be skipped or is lost, and the residuals that were
 * read or written since the last weight change are wrong. Empty them and return their number. */
unsigned nb_feedback_drop_step(struct nb_feedback *fb);

/* Empty the residuals of `id`, which belongs to another buffer from now on. As in every such function, held
 * residuals are emptied when they are released. */
void nb_feedback_drop(struct nb_feedback *fb, int64_t id);

/* Empty all residuals, after a time without coded operations, or after weights that jumped. Return their
 * number. */
unsigned nb_feedback_drop_all(struct nb_feedback *fb);

size_t nb_feedback_bytes(const struct nb_feedback *fb);

#endif
