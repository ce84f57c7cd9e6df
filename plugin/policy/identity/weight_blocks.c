/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weight blocks and the order in which a pass gathered them, which predicts the next gradient's weight block.
 * Inside of identity.c.
 *
 * A forward pass gathers weight block after weight block. The backward pass gathers them again from the last
 * to the first, unless they were kept, and sends the gradient of each. So a weight block goes onto a stack
 * when first gathered in a pass. A gradient belongs to the topmost weight block of its size whose gradient
 * has not come yet. The stack has only weight blocks that this pass gathered, so a layer that was left out is
 * not on it.
 *
 * A new pass begins when a weight block on the stack is gathered again and that is no backward gather: its
 * weights have changed, or its gradient has come already, or it is not the next one downward, or nearly the
 * next. Bytes may be codes of a frozen base that never sends a gradient. So the third gather of bytes begins
 * a pass, too. Without this a quarter of qlora-kept's gradients have feedback, with it all.
 */
#include "policy/identity/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Backward passes leave out the last weight block or two, which are still there from the forward pass, and
 * gather ahead. */
#define REGATHER_SKIP 2

#define BACK_LEAST 4u    /* samples that differ between two versions. Fewer may be rounded back by chance */
#define BACK_RATE 0.125f /* of a version in the share of versions that are the one before the last */
#define BACK_MOST 0.1f   /* one such version is in doubt for two more, every tenth for ever */

#define COMMS 64u /* communicators */

int nb_weight_blocks_init(struct nb_weight_blocks *u, uint32_t cap)
{
    return nb_table_init(&u->blocks, sizeof(struct nb_weight_block), cap) ||
                   nb_table_init(&u->comms, sizeof(struct nb_identity_comm), COMMS)
               ? -ENOMEM
               : 0;
}

static void drop_comm(void *arg, void *entry)
{
    (void)arg;
    free(((struct nb_identity_comm *)entry)->turns.kind);
}

void nb_weight_blocks_free(struct nb_weight_blocks *u)
{
    for (struct nb_identity_comm *s = NULL; (s = nb_table_next(&u->comms, s));)
        drop_comm(NULL, s);
    nb_table_free(&u->comms);
    nb_table_free(&u->blocks);
}

struct nb_identity_comm *nb_identity_comm_of(struct nb_weight_blocks *u, uint64_t comm)
{
    struct nb_identity_comm *s = nb_table_find(&u->comms, comm, 0);

    return s ? s : nb_table_make(&u->comms, comm, 0, drop_comm, NULL);
}

static void begin_pass(struct nb_weight_blocks *u, struct nb_identity_comm *s)
{
    s->pass = ++u->passes;
    s->top = NULL;
    s->height = 0;
    s->regather = -1;
    s->regathers = 0;
}

void nb_weight_blocks_forget(struct nb_weight_blocks *u, uint64_t comm)
{
    struct nb_identity_comm *s = nb_table_find(&u->comms, comm, 0);

    if (s) {
        drop_comm(NULL, s);
        nb_table_remove(&u->comms, s);
    }
    for (struct nb_weight_block *w = NULL; (w = nb_table_next(&u->blocks, w));)
        if (w->entry.a == comm)
            nb_table_remove(&u->blocks, w);
}

/* A block makes room for another one: contents seen once (state of a checkpoint) pass through. A stack that
 * may hold the block ends. */
static void drop_block(void *arg, void *entry)
{
    const struct nb_weight_block *w = entry;
    struct nb_weight_blocks *u = arg;
    struct nb_identity_comm *s = nb_table_find(&u->comms, w->entry.a, 0);

    if (s && s->pass == w->pass)
        begin_pass(u, s);
}

struct nb_weight_block *nb_weight_blocks_get(struct nb_weight_blocks *u, uint64_t comm, uint32_t number)
{
    struct nb_weight_block *w = nb_table_find(&u->blocks, comm, number);

    return w ? w : nb_table_make(&u->blocks, comm, number, drop_block, u);
}

void nb_weight_blocks_version(struct nb_weight_block *w, const float *samples, unsigned n)
{
    const size_t bytes = n * sizeof(*samples);
    unsigned differ = 0, back;

    if (n > NB_WEIGHT_SAMPLES)
        return;
    for (unsigned i = 0; i < n; i++)
        differ += samples[i] != w->version[0][i];
    if (!differ)
        return;
    back = w->summed && differ >= BACK_LEAST && memcmp(samples, w->version[1], bytes) == 0;
    w->back += BACK_RATE * ((float)back - w->back);
    memcpy(w->version[1], w->version[0], bytes);
    memcpy(w->version[0], samples, bytes);
    w->summed = 0;
}

int nb_weight_blocks_is_two(const struct nb_weight_block *w)
{
    return w->back > BACK_MOST;
}

void nb_weight_blocks_gathered(struct nb_weight_blocks *u, struct nb_weight_block *weight_block, int changed)
{
    struct nb_identity_comm *s = nb_identity_comm_of(u, weight_block->entry.a);
    int64_t place = weight_block->place;

    if (!s->pass || weight_block->pass == s->pass) {
        if (s->pass && !changed && !weight_block->reduced && !weight_block->again && place <= s->regather &&
            (s->regathers || place >= s->regather - REGATHER_SKIP)) {
            s->regathers++;
            s->regather = place - 1;
            weight_block->again = weight_block->bytes;
            return;
        }
        begin_pass(u, s);
    }
    weight_block->pass = s->pass;
    weight_block->place = s->height++;
    weight_block->reduced = weight_block->again = 0;
    weight_block->below = s->top;
    s->top = weight_block;
    s->regather = weight_block->place;
}

static int fits(const struct nb_weight_block *weight_block, uint64_t count)
{
    return weight_block->count == count ||
           (weight_block->bytes && (weight_block->count == 2 * count || weight_block->count == 4 * count));
}

struct nb_weight_block *nb_weight_blocks_expect(struct nb_weight_blocks *u, uint64_t comm, uint64_t count,
                                                unsigned *alike)
{
    const struct nb_identity_comm *s = nb_table_find(&u->comms, comm, 0);
    struct nb_weight_block *found = NULL;

    *alike = 0;
    for (struct nb_weight_block *w = s ? s->top : NULL; w; w = w->below) {
        if (!fits(w, count))
            continue;
        ++*alike;
        if (!found && !w->reduced)
            found = w;
    }
    return found;
}

uint32_t nb_weight_blocks_pass(const struct nb_weight_blocks *u, uint64_t comm)
{
    const struct nb_identity_comm *s = nb_table_find(&u->comms, comm, 0);

    return s ? s->pass : 0;
}

void nb_weight_blocks_reduced(struct nb_weight_blocks *u, struct nb_weight_block *weight_block)
{
    const struct nb_identity_comm *s = nb_table_find(&u->comms, weight_block->entry.a, 0);

    if (!s || weight_block->pass != s->pass)
        return;
    for (struct nb_weight_block *later = s->top; later; later = later->below) {
        if (later->count == weight_block->count)
            later->reduced = 1;
        if (later == weight_block)
            return;
    }
}
