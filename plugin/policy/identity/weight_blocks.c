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
 * next.
 */
#include "policy/identity/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Backward passes leave out the last weight block or two, which are still there from the forward pass, and
 * gather ahead. */
#define REGATHER_SKIP 2

int nb_weight_blocks_init(struct nb_weight_blocks *u, uint32_t cap)
{
    memset(u, 0, sizeof(*u));
    nb_slab_init(&u->slab, sizeof(struct nb_weight_block), cap);
    if (nb_slab_reach(&u->slab, 1) || nb_chains_init(&u->chains, cap)) {
        nb_weight_blocks_free(u);
        return -ENOMEM;
    }
    return 0;
}

void nb_weight_blocks_free(struct nb_weight_blocks *u)
{
    nb_slab_free(&u->slab);
    nb_chains_free(&u->chains);
}

static struct nb_weight_block *weight_block_at(const struct nb_weight_blocks *u, uint32_t at)
{
    return nb_slab_at(&u->slab, at);
}

static void release(struct nb_weight_blocks *u, uint32_t at)
{
    struct nb_weight_block *old = weight_block_at(u, at);

    nb_chains_remove(&u->chains, nb_mix(old->comm, old->number), at);
    old->taken = 0;
}

static void begin_pass(struct nb_weight_blocks *u, struct nb_stack *s)
{
    s->pass = ++u->passes;
    s->top = NB_NONE;
    s->height = 0;
    s->regather = -1;
    s->regathers = 0;
}

static struct nb_stack *stack_of(struct nb_weight_blocks *u, uint64_t comm, int make)
{
    struct nb_stack *victim = NULL;

    for (struct nb_stack *s = u->stack; s < u->stack + NB_STACKS; s++) {
        if (s->taken && s->comm == comm) {
            s->used = ++u->now;
            return s;
        }
        if (!victim || (victim->taken && (!s->taken || s->used < victim->used)))
            victim = s;
    }
    if (!make)
        return NULL;
    *victim = (struct nb_stack){.comm = comm, .used = ++u->now, .taken = 1};
    begin_pass(u, victim);
    return victim;
}

void nb_weight_blocks_forget(struct nb_weight_blocks *u, uint64_t comm)
{
    struct nb_stack *s = stack_of(u, comm, 0);

    if (s)
        s->taken = 0;
    for (uint32_t i = 0; i < u->slab.made; i++)
        if (weight_block_at(u, i)->taken && weight_block_at(u, i)->comm == comm)
            release(u, i);
}

struct nb_weight_block *nb_weight_blocks_find(struct nb_weight_blocks *u, uint64_t comm, uint32_t number)
{
    for (uint32_t at = nb_chains_first(&u->chains, nb_mix(comm, number)); at != NB_NONE;
         at = u->chains.next[at])
        if (weight_block_at(u, at)->comm == comm && weight_block_at(u, at)->number == number)
            return weight_block_at(u, at);
    return NULL;
}

struct nb_weight_block *nb_weight_blocks_get(struct nb_weight_blocks *u, uint64_t comm, uint32_t number)
{
    struct nb_weight_block *weight_block = nb_weight_blocks_find(u, comm, number);
    uint32_t at;

    if (weight_block)
        return weight_block;
    /* Replace in turn: contents seen once (state of a checkpoint) pass through, and weights come back at
     * once. A stack that may hold the old weight block ends. */
    at = nb_slab_reach(&u->slab, u->hand + 1) ? 0 : u->hand;
    u->hand = at + 1;
    weight_block = weight_block_at(u, at);
    if (weight_block->taken) {
        struct nb_stack *s = stack_of(u, weight_block->comm, 0);
        if (s && s->pass == weight_block->pass)
            begin_pass(u, s);
        release(u, at);
    }
    *weight_block =
        (struct nb_weight_block){.comm = comm, .number = number, .own = at, .below = NB_NONE, .taken = 1};
    nb_chains_add(&u->chains, nb_mix(comm, number), at);
    return weight_block;
}

/* Note that the gradients of the weight blocks above place `from` up to place `to` will not come. */
static void leave_out(struct nb_weight_blocks *u, const struct nb_stack *s, int64_t from, int64_t to)
{
    for (uint32_t at = s->top; at != NB_NONE && weight_block_at(u, at)->place > from;
         at = weight_block_at(u, at)->below)
        if (weight_block_at(u, at)->place <= to)
            weight_block_at(u, at)->reduced = weight_block_at(u, at)->left_out = 1;
}

void nb_weight_blocks_gathered(struct nb_weight_blocks *u, struct nb_weight_block *weight_block, int changed)
{
    struct nb_stack *s = stack_of(u, weight_block->comm, 1);
    int64_t place = weight_block->place;

    if (weight_block->pass == s->pass) {
        if (!changed && !weight_block->reduced && place <= s->regather &&
            (s->regathers || place >= s->regather - REGATHER_SKIP)) {
            /* A backward pass leaps over blocks that did not run and have no gradient, except at its
             * start. */
            if (s->regathers++)
                leave_out(u, s, place, s->regather);
            s->regather = place - 1;
            return;
        }
        begin_pass(u, s);
    }
    weight_block->pass = s->pass;
    weight_block->place = s->height++;
    weight_block->reduced = weight_block->left_out = 0;
    weight_block->below = s->top;
    s->top = weight_block->own;
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
    struct nb_stack *s = stack_of(u, comm, 0);
    struct nb_weight_block *found = NULL;

    *alike = 0;
    for (uint32_t at = s ? s->top : NB_NONE; at != NB_NONE; at = weight_block_at(u, at)->below) {
        struct nb_weight_block *weight_block = weight_block_at(u, at);
        if (!fits(weight_block, count) || weight_block->left_out)
            continue;
        ++*alike;
        if (!found && !weight_block->reduced)
            found = weight_block;
    }
    return found;
}

uint32_t nb_weight_blocks_pass(const struct nb_weight_blocks *u, uint64_t comm)
{
    for (const struct nb_stack *s = u->stack; s < u->stack + NB_STACKS; s++)
        if (s->taken && s->comm == comm)
            return s->pass;
    return 0;
}

void nb_weight_blocks_reduced(struct nb_weight_blocks *u, struct nb_weight_block *weight_block)
{
    struct nb_stack *s = stack_of(u, weight_block->comm, 0);

    if (!s || weight_block->pass != s->pass)
        return;
    for (uint32_t at = s->top; at != NB_NONE; at = weight_block_at(u, at)->below) {
        struct nb_weight_block *later = weight_block_at(u, at);
        if (later->count == weight_block->count)
            later->reduced = 1;
        if (later == weight_block)
            return;
    }
}
