/* SPDX-License-Identifier: Apache-2.0 */
/* Weight references: content selects them, and they stay when all nodes have confirmed. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "device/device.h"
#include "state/budget.h"
#include "state/reference.h"
#include "tests/suite.h"

static struct nb_context node, *const ctx = &node;

static uint64_t rng(uint64_t *s)
{
    *s ^= *s >> 12;
    *s ^= *s << 25;
    *s ^= *s >> 27;
    return *s * UINT64_C(2685821657736338717);
}

#define BLOCK 40000u

static void weights(uint16_t *w, uint64_t seed)
{
    for (size_t i = 0; i < BLOCK / 2; i++)
        w[i] = (uint16_t)(0x3c00 + rng(&seed) % 0x200 + (rng(&seed) & 0x8000));
}

static void drift(uint16_t *w, uint64_t seed)
{
    for (size_t i = 0; i < BLOCK / 2; i++)
        w[i] = (uint16_t)(w[i] + rng(&seed) % 5 - 2);
}

static size_t block = BLOCK; /* bytes of the blocks that are gathered */
static unsigned asked;       /* number of questions in the last pick */

/* Pick the reference of a block whose first `avail` bytes have arrived. */
static enum nb_ref_outcome pick(struct nb_refs *refs, const void *own, size_t avail, uint64_t opno,
                                struct nb_ref **ref)
{
    struct nb_device *host = nb_host_device();
    struct nb_ref_search s = {.own = own, .avail = avail, .bytes = block};
    struct nb_similarity near;
    const void *there;

    nb_refs_seek(refs, &s);
    asked = 0;
    while (nb_refs_ask(refs, &s, &there)) {
        asked++;
        ck_assert_int_eq(host->ops->similarity(host, NULL, own, there, avail, NB_REF_SAMPLES, &near), 0);
        nb_refs_answer(refs, &s, &near);
    }
    return nb_refs_pick(refs, &s, opno, ref);
}

static void store(struct nb_ref *ref, const void *own, size_t offset, size_t bytes, uint64_t opno)
{
    memcpy(nb_refs_write(ref, offset, bytes, opno), own, bytes);
}

static void look(struct nb_ref_range *range, const uint8_t *own)
{
    struct nb_device *host = nb_host_device();

    ck_assert_uint_le(range->at + range->part, range->offset + range->bytes);
    ck_assert_int_eq(host->ops->compare(host, NULL, own + (range->at - range->offset), range->there,
                                        range->part, &range->seen),
                     0);
}

static enum nb_ref_source source(struct nb_ref *ref, const uint8_t *own, size_t offset, size_t bytes,
                                 uint64_t opno)
{
    struct nb_ref_range range;

    if (!nb_refs_source_noted(ref, opno))
        return memcmp(own, ref->data + offset, bytes) ? NB_REF_CHANGED : NB_REF_HELD;
    nb_refs_source(ref, &range, offset, bytes);
    while (nb_refs_source_ask(ref, &range)) {
        look(&range, own);
        nb_refs_source_answer(ref, &range);
    }
    return range.all;
}

static void note(struct nb_ref *ref, const uint8_t *own, size_t offset, size_t bytes, enum nb_ref_source how)
{
    struct nb_ref_range range;

    nb_refs_note(ref, &range, offset, bytes, how);
    while (nb_refs_note_ask(&range)) {
        look(&range, own);
        nb_refs_note_answer(ref, &range);
    }
}

/* Gather one block in three windows. All receivers confirm unless the test says otherwise. */
static enum nb_ref_outcome gather(struct nb_refs *refs, const uint16_t *w, uint64_t opno, unsigned confirms)
{
    const uint8_t *b = (const uint8_t *)w;
    struct nb_ref *ref;
    enum nb_ref_outcome outcome = pick(refs, b, 16384, opno, &ref);

    if (ref)
        for (size_t off = 0; off < block; off += 16384)
            store(ref, b + off, off, block - off < 16384 ? block - off : 16384, opno);
    for (unsigned i = 0; ref && i < confirms; i++)
        nb_refs_confirmed(refs, opno, 1, 1);
    return outcome;
}

START_TEST(reference_by_content)
{
    struct nb_refs *refs = nb_refs_create(ctx, nb_host_device(), 3);
    uint16_t a[BLOCK / 2], b[BLOCK / 2], c[BLOCK / 2];
    uint64_t op = 0;

    weights(a, 1);
    weights(b, 2);
    weights(c, 3);
    ck_assert_int_eq(gather(refs, a, op++, 2), NB_REF_NEW);
    ck_assert_int_eq(gather(refs, b, op++, 2), NB_REF_NEW);
    for (int step = 0; step < 20; step++) {
        drift(a, 10 + (uint64_t)step);
        drift(b, 40 + (uint64_t)step);
        /* Blocks find their own references in any order, also with an unknown block between them. */
        ck_assert_int_eq(gather(refs, step & 1 ? b : a, op++, 2), NB_REF_HIT);
        if (step == 5)
            ck_assert_int_eq(gather(refs, c, op++, 2), NB_REF_NEW);
        ck_assert_int_eq(gather(refs, step & 1 ? a : b, op++, 2), NB_REF_HIT);
    }
    ck_assert_uint_eq(nb_refs_count(refs), 3);
    nb_refs_destroy(refs);
    ck_assert_uint_eq(nb_budget_left(ctx->budgets, NB_BUDGET_REFERENCE), (size_t)16384 << 20);
}
END_TEST

/* Forward and backward passes gather blocks in one order and then in reverse. The module finds them by their
 * predecessors, with one or two questions, however many blocks exist. */
START_TEST(reference_by_order)
{
    enum { MANY = 9 };
    struct nb_refs *refs = nb_refs_create(ctx, nb_host_device(), 3);
    static uint16_t w[MANY][BLOCK / 2];
    uint64_t op = 0;

    for (unsigned i = 0; i < MANY; i++) {
        weights(w[i], 1 + i);
        ck_assert_int_eq(gather(refs, w[i], op++, 2), NB_REF_NEW);
    }
    for (unsigned step = 0; step < 5; step++) {
        for (unsigned i = 0; i < 2 * MANY; i++) {
            const unsigned at = i < MANY ? MANY - 1 - i : i - MANY;
            ck_assert_int_eq(gather(refs, w[at], op++, 2), NB_REF_HIT);
            ck_assert_uint_eq(nb_refs_last(refs)->number, at);
            ck_assert(step == 0 || asked <= 2);
        }
        for (unsigned i = 0; i < MANY; i++)
            drift(w[i], 10 + step * MANY + i);
    }
    ck_assert_uint_eq(nb_refs_count(refs), MANY);
    nb_refs_destroy(refs);
}
END_TEST

/* Make a step of hard training: one weight in `every` gets a new value. */
static void leap(uint16_t *w, unsigned every, uint64_t seed)
{
    for (size_t i = 0; i < BLOCK / 2; i++)
        if (rng(&seed) % every == 0)
            w[i] = (uint16_t)rng(&seed);
}

/* Blocks that move far in a step count as their own next versions while no other block is nearly as similar.
 * Where two blocks are similar, the module picks no reference. */
START_TEST(reference_of_hard_training)
{
    struct nb_refs *refs = nb_refs_create(ctx, nb_host_device(), 3);
    uint16_t a[BLOCK / 2], b[BLOCK / 2], c[BLOCK / 2];
    uint64_t op = 0, half = 5;

    weights(a, 1);
    weights(b, 2);
    ck_assert_int_eq(gather(refs, a, op++, 2), NB_REF_NEW);
    ck_assert_int_eq(gather(refs, b, op++, 2), NB_REF_NEW);
    for (int step = 0; step < 20; step++) {
        leap(a, 4, 10 + (uint64_t)step);
        leap(b, 4, 40 + (uint64_t)step);
        ck_assert_int_eq(gather(refs, step & 1 ? b : a, op++, 2), NB_REF_HIT);
        ck_assert_int_eq(gather(refs, step & 1 ? a : b, op++, 2), NB_REF_HIT);
    }
    ck_assert_uint_eq(nb_refs_count(refs), 2);
    memcpy(c, a, sizeof(c));
    for (size_t i = 0; i < BLOCK / 2; i++)
        c[i] = rng(&half) % 2 ? a[i] : b[i]; /* half of each */
    ck_assert_int_eq(gather(refs, c, op++, 2), NB_REF_NEW);
    memcpy(c, a, sizeof(c)); /* half of a known block */
    leap(c, 2, 9);
    ck_assert_int_eq(gather(refs, c, op++, 2), NB_REF_NEW);
    nb_refs_destroy(refs);
}
END_TEST

/* A reference changes only when every receiver holds the content before it. */
START_TEST(reference_waits_for_confirmation)
{
    struct nb_refs *refs = nb_refs_create(ctx, nb_host_device(), 3);
    uint16_t a[BLOCK / 2], first[BLOCK / 2];
    struct nb_ref *ref;

    weights(a, 1);
    memcpy(first, a, sizeof(a));
    ck_assert_int_eq(gather(refs, a, 0, 1), NB_REF_NEW); /* one of two confirms */
    ck_assert_int_eq(nb_refs_unconfirmed(refs), 1);
    drift(a, 2);
    ck_assert_int_eq(gather(refs, a, 1, 0), NB_REF_WAIT);
    ck_assert_int_eq(nb_refs_picked(refs, &ref), NB_REF_WAIT);
    ck_assert_ptr_null(ref);
    /* The content that the slow receiver may still request is present and unchanged. */
    ck_assert_ptr_nonnull(nb_refs_find_op(refs, 0, 100, 200));
    ck_assert_int_eq(memcmp(nb_refs_find_op(refs, 0, 100, 200), (uint8_t *)first + 100, 200), 0);
    ck_assert_ptr_null(nb_refs_find_op(refs, 1, 100, 200));
    ck_assert_ptr_null(nb_refs_find_op(refs, 0, BLOCK - 1, 2));
    nb_refs_confirmed(refs, 0, 1, 1);
    ck_assert_int_eq(nb_refs_unconfirmed(refs), 0);
    ck_assert_int_eq(nb_refs_picked(refs, &ref), NB_REF_HIT);
    ck_assert_ptr_eq(ref, nb_refs_last(refs));
    store(ref, a, 0, BLOCK, 1);
    ck_assert_int_eq(gather(refs, a, 2, 0), NB_REF_WAIT);
    nb_refs_confirmed(refs, 1, 1, 1);
    ck_assert_int_eq(nb_refs_picked(refs, &ref), NB_REF_WAIT);
    nb_refs_confirmed(refs, 1, 0, 1); /* it could not keep the block */
    ck_assert_int_eq(nb_refs_picked(refs, &ref), NB_REF_UNCONFIRMED);
    ck_assert_ptr_null(ref);
    nb_refs_destroy(refs);
}
END_TEST

/* Receivers hold other bytes than the source: the delivered ones. The module knows the same source again,
 * whole or in other windows whose cuts the parts allow, and rejects all other content. */
START_TEST(reference_knows_its_source)
{
    struct nb_refs *refs = nb_refs_create(ctx, nb_host_device(), 2);
    static uint16_t a[BLOCK / 2], held[BLOCK / 2];
    const uint8_t *b = (const uint8_t *)a, *h = (const uint8_t *)held;
    struct nb_ref *ref;
    uint64_t op = 1;

    weights(a, 1);
    ck_assert_int_eq(gather(refs, a, 0, 1), NB_REF_NEW);
    ref = nb_refs_last(refs);
    ck_assert_int_eq(source(ref, b, 0, BLOCK, op++), NB_REF_HELD);
    /* Operation 2 delivers content close to it, in two ranges. */
    drift(a, 2);
    memcpy(held, a, sizeof(held));
    for (size_t i = 0; i < BLOCK / 2; i += 50)
        held[i] ^= 1;
    for (size_t off = 0; off < BLOCK; off += 32768) {
        const size_t len = BLOCK - off < 32768 ? BLOCK - off : 32768;
        ck_assert_int_eq(source(ref, b + off, off, len, op), NB_REF_CHANGED);
        ck_assert_int_eq(nb_refs_may_approximate(ref, len), 1);
        store(ref, h + off, off, len, op);
        note(ref, b + off, off, len, NB_REF_HELD);
    }
    ck_assert_int_eq(memcmp(nb_refs_find_op(refs, op, 0, BLOCK), held, BLOCK), 0);
    op++;
    for (int again = 0; again < 3; again++, op++) /* for as long as the reference stays */
        for (size_t off = 0; off < BLOCK; off += 32768)
            ck_assert_int_eq(source(ref, b + off, off, BLOCK - off < 32768 ? BLOCK - off : 32768, op),
                             NB_REF_HELD);
    for (size_t off = 0; off < BLOCK; off += 16384) /* in other windows */
        ck_assert_int_eq(source(ref, b + off, off, BLOCK - off < 16384 ? BLOCK - off : 16384, op),
                         NB_REF_HELD);
    op++;
    ck_assert_int_eq(source(ref, b, 0, 16384, op), NB_REF_HELD);
    a[9000]++; /* one value of the second part */
    ck_assert_int_eq(source(ref, b + 16384, 16384, BLOCK - 16384, op), NB_REF_CHANGED);
    store(ref, b + 16384, 16384, BLOCK - 16384, op);
    op++;
    /* The delivered source is known. The bytes that receivers held before, and still hold in the first part,
     * are not its source. */
    ck_assert_int_eq(source(ref, b, 0, BLOCK, op++), NB_REF_HELD);
    ck_assert_int_eq(source(ref, h, 0, BLOCK, op++), NB_REF_CHANGED);
    /* Deliver the content raw while the reference stays. */
    drift(a, 3);
    ck_assert_int_eq(source(ref, b, 0, BLOCK, op), NB_REF_CHANGED);
    note(ref, b, 0, BLOCK, NB_REF_SENT);
    op++;
    ck_assert_int_eq(source(ref, b, 0, BLOCK, op), NB_REF_SENT);
    note(ref, b, 0, BLOCK, NB_REF_SENT);
    op++;
    drift(a, 4);
    ck_assert_int_eq(source(ref, b, 0, BLOCK, op), NB_REF_CHANGED);
    nb_refs_destroy(refs);
}
END_TEST

/* A receiver without memory stops new slots, and its block never serves as a reference. */
START_TEST(reference_not_kept)
{
    struct nb_refs *refs = nb_refs_create(ctx, nb_host_device(), 2);
    uint16_t a[BLOCK / 2], b[BLOCK / 2];

    weights(a, 1);
    weights(b, 2);
    ck_assert_int_eq(gather(refs, a, 0, 0), NB_REF_NEW);
    nb_refs_confirmed(refs, 0, 0, 1);
    ck_assert_int_eq(gather(refs, a, 1, 0), NB_REF_UNCONFIRMED);
    ck_assert_int_eq(gather(refs, b, 2, 0), NB_REF_NONE);
    ck_assert_int_eq(nb_refs_unconfirmed(refs), 0); /* closing must not wait for confirmations that will
                                                       never come */
    nb_refs_destroy(refs);
}
END_TEST

/* Contents that never recur take bounded memory. */
START_TEST(reference_of_passing_contents)
{
    struct nb_refs *refs = nb_refs_create(ctx, nb_host_device(), 2);
    uint16_t a[BLOCK / 2];

    for (uint64_t op = 0; op < 700; op++) {
        uint64_t seed = op + 1;
        for (size_t i = 0; i < BLOCK / 2; i++)
            a[i] = (uint16_t)rng(&seed);
        ck_assert_int_eq(gather(refs, a, op, 1), NB_REF_NEW);
    }
    ck_assert_uint_eq(nb_refs_count(refs), 512);
    ck_assert_ptr_null(nb_refs_of_peer(refs, 1, UINT32_MAX, 10, 1));
    nb_refs_destroy(refs);
}
END_TEST

/* The memory of contents that have not recurred is a part of the budget. More weights than that enter part by
 * part. What has not recurred for long makes room for others, also of another size. */
START_TEST(reference_of_many_contents)
{
    enum { MANY = 300, MOST = 8 << 20 };
    struct nb_params own = *nb_params_defaults();
    static uint16_t w[MANY][BLOCK / 2], a[BLOCK / 2];
    struct nb_refs *refs;
    uint64_t op = 0;
    int hits = 0;

    own.ref_max_mb = 128; /* an eighth for both nodes: 8 MiB for each one's contents */
    node.params = &own;
    refs = nb_refs_create(ctx, nb_host_device(), 2);
    for (; op < 700; op++) {
        uint64_t seed = op + 1;
        for (size_t i = 0; i < BLOCK / 2; i++)
            a[i] = (uint16_t)rng(&seed);
        gather(refs, a, op, 1);
        ck_assert_uint_le(nb_refs_bytes(refs), MOST);
    }
    ck_assert_uint_gt(nb_refs_count(refs), 200);
    block = BLOCK / 2;
    for (int i = 0; i < 20; i++)
        hits += gather(refs, a, op++, 1) == NB_REF_HIT;
    block = BLOCK;
    ck_assert_int_gt(hits, 10);
    ck_assert_uint_le(nb_refs_bytes(refs), MOST);
    for (int i = 0; i < MANY; i++)
        weights(w[i], 1000 + (uint64_t)i);
    hits = 0;
    for (int round = 0; round < 20 && hits < MANY; round++) {
        hits = 0;
        for (int i = 0; i < MANY; i++)
            hits += gather(refs, w[i], op++, 1) == NB_REF_HIT;
    }
    ck_assert_int_eq(hits, MANY);
    /* They stop. Other contents take their place in the end. */
    op += 10000;
    for (int i = 0; i < 2000; i++) {
        uint64_t seed = op + 1;
        for (size_t k = 0; k < BLOCK / 2; k++)
            a[k] = (uint16_t)rng(&seed);
        gather(refs, a, op++, 1);
        ck_assert_uint_le(nb_refs_bytes(refs), MOST + MANY * BLOCK);
    }
    ck_assert_int_ne(gather(refs, w[0], op++, 1), NB_REF_HIT);
    nb_refs_destroy(refs);
    node.params = nb_params_defaults();
}
END_TEST

START_TEST(reference_of_peer)
{
    struct nb_refs *refs = nb_refs_create(ctx, nb_host_device(), 2);
    uint8_t *p;

    ck_assert_ptr_null(nb_refs_of_peer(refs, 1, 3, 1000, 0));
    p = nb_refs_of_peer(refs, 1, 3, 1000, 1);
    ck_assert_ptr_nonnull(p);
    memset(p, 7, 1000);
    ck_assert_ptr_eq(nb_refs_of_peer(refs, 1, 3, 1000, 0), p);
    ck_assert_ptr_null(nb_refs_of_peer(refs, 1, 3, 2000, 0)); /* another block's size: not this reference */
    ck_assert_ptr_nonnull(nb_refs_of_peer(refs, 1, 3, 2000, 1));
    ck_assert_uint_eq(nb_refs_bytes(refs), 2000);
    nb_refs_destroy(refs);
}
END_TEST

/* A block comes again and again, then its content is unlike all earlier content. */
START_TEST(jump_to_new_content)
{
    struct nb_refs *refs = nb_refs_create(ctx, nb_host_device(), 3);
    uint16_t a[BLOCK / 2], b[BLOCK / 2];
    struct nb_ref *ref;

    weights(a, 1);
    weights(b, 2);
    ck_assert_int_eq(gather(refs, a, 0, 2), NB_REF_NEW);
    ck_assert_int_eq(nb_refs_news(refs, BLOCK), 0);
    for (uint64_t op = 1; op < 8; op++) {
        drift(a, op);
        ck_assert_int_eq(pick(refs, a, BLOCK, op, &ref), NB_REF_HIT);
        nb_jump_weights(&ref->jump, BLOCK / 2, BLOCK);
        store(ref, a, 0, BLOCK, op);
        nb_refs_confirmed(refs, op, 1, 1);
        nb_refs_confirmed(refs, op, 1, 1);
    }
    ck_assert_int_eq(pick(refs, b, BLOCK, 9, &ref), NB_REF_NEW);
    ck_assert_int_eq(nb_refs_news(refs, BLOCK), 1);
    ck_assert_int_eq(nb_refs_news(refs, BLOCK / 2), 0); /* a gather of another size is ignored */
    nb_refs_destroy(refs);
}
END_TEST

/* Beside weights comes another block of their size in every step, whose content is always new (a momentum).
 * Only the first ones may look like a jump. */
START_TEST(always_new_content)
{
    struct nb_refs *refs = nb_refs_create(ctx, nb_host_device(), 3);
    uint16_t a[BLOCK / 2], b[BLOCK / 2];
    struct nb_ref *ref;
    int news = 0;

    weights(a, 1);
    ck_assert_int_eq(gather(refs, a, 0, 2), NB_REF_NEW);
    for (uint64_t op = 1; op < 80; op += 2) {
        drift(a, op);
        ck_assert_int_eq(pick(refs, a, BLOCK, op, &ref), NB_REF_HIT);
        nb_jump_weights(&ref->jump, BLOCK / 2, BLOCK);
        store(ref, a, 0, BLOCK, op);
        nb_refs_confirmed(refs, op, 1, 1);
        nb_refs_confirmed(refs, op, 1, 1);
        weights(b, 100 + (int)op);
        ck_assert_int_eq(gather(refs, b, op + 1, 2), NB_REF_NEW);
        news += nb_refs_news(refs, BLOCK);
    }
    ck_assert_int_le(news, 3);
    nb_refs_destroy(refs);
}
END_TEST

int main(void)
{
    node.params = nb_params_defaults();
    if (nb_budgets_open(&node))
        return EXIT_FAILURE;
    const int failed = SUITE("state/reference", TEST(reference_by_content), TEST(reference_by_order),
                             TEST(reference_of_hard_training), TEST(reference_waits_for_confirmation),
                             TEST(reference_knows_its_source), TEST(reference_not_kept),
                             TEST(reference_of_passing_contents), TEST(reference_of_many_contents),
                             TEST(reference_of_peer), TEST(jump_to_new_content), TEST(always_new_content));
    nb_budgets_close(&node);
    return failed;
}
