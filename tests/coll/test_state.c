/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a communicator remembers: weight references chosen by content, error slots, and the exact reductions of
 * the host device.
 */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "coll/wire.h"
#include "device/device.h"
#include "device/exact.h"
#include "state/budget.h"
#include "state/feedback.h"
#include "state/reference.h"

static uint64_t rng(uint64_t *s)
{
    *s ^= *s >> 12;
    *s ^= *s << 25;
    *s ^= *s >> 27;
    return *s * UINT64_C(2685821657736338717);
}

/* ---- references ------------------------------------------------------------------------------------- */

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

/* Gather one block in three windows; all receivers confirm unless told otherwise. */
static enum nb_ref_outcome gather(struct nb_refs *refs, const uint16_t *w, uint64_t opno, unsigned confirms)
{
    const uint8_t *b = (const uint8_t *)w;
    struct nb_ref *ref;
    enum nb_ref_outcome outcome = nb_refs_pick(refs, b, 0, 16384, BLOCK, opno, &ref);

    if (ref)
        for (size_t off = 0; off < BLOCK; off += 16384)
            nb_refs_store(refs, ref, b + off, off, BLOCK - off < 16384 ? BLOCK - off : 16384, opno);
    for (unsigned i = 0; ref && i < confirms; i++)
        nb_refs_confirmed(refs, opno, 1, 1);
    return outcome;
}

START_TEST(reference_by_content)
{
    struct nb_refs *refs = nb_refs_create(&nb_device_host, 3);
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
        /* Any order, and a stranger in between, find their own. */
        ck_assert_int_eq(gather(refs, step & 1 ? b : a, op++, 2), NB_REF_HIT);
        if (step == 5)
            ck_assert_int_eq(gather(refs, c, op++, 2), NB_REF_NEW);
        ck_assert_int_eq(gather(refs, step & 1 ? a : b, op++, 2), NB_REF_HIT);
    }
    ck_assert_uint_eq(nb_refs_count(refs), 3);
    nb_refs_destroy(refs);
    ck_assert_uint_eq(nb_budget_left(NB_BUDGET_REFERENCE), (size_t)16384 << 20);
}
END_TEST

/* A reference changes only when every receiver holds the content before. */
START_TEST(reference_waits_for_confirmation)
{
    struct nb_refs *refs = nb_refs_create(&nb_device_host, 3);
    uint16_t a[BLOCK / 2], first[BLOCK / 2];

    weights(a, 1);
    memcpy(first, a, sizeof(a));
    ck_assert_int_eq(gather(refs, a, 0, 1), NB_REF_NEW); /* one of two confirms */
    ck_assert_int_eq(nb_refs_unconfirmed(refs), 1);
    drift(a, 2);
    ck_assert_int_eq(gather(refs, a, 1, 0), NB_REF_UNCONFIRMED);
    /* What the slow receiver may still ask for is there, unchanged. */
    ck_assert_ptr_nonnull(nb_refs_find_op(refs, 0, 100, 200));
    ck_assert_int_eq(memcmp(nb_refs_find_op(refs, 0, 100, 200), (uint8_t *)first + 100, 200), 0);
    ck_assert_ptr_null(nb_refs_find_op(refs, 1, 100, 200));
    ck_assert_ptr_null(nb_refs_find_op(refs, 0, BLOCK - 1, 2));
    nb_refs_confirmed(refs, 0, 1, 1);
    ck_assert_int_eq(nb_refs_unconfirmed(refs), 0);
    ck_assert_int_eq(gather(refs, a, 2, 2), NB_REF_HIT);
    nb_refs_destroy(refs);
}
END_TEST

/* What receivers hold instead of the source, and what they were given: the same source is known again, whole or in
 * other windows whose cuts the parts allow, and nothing else is. */
START_TEST(reference_knows_its_source)
{
    struct nb_refs *refs = nb_refs_create(&nb_device_host, 2);
    static uint16_t a[BLOCK / 2], held[BLOCK / 2];
    const uint8_t *b = (const uint8_t *)a, *h = (const uint8_t *)held;
    struct nb_ref *ref;
    uint64_t op = 1;

    weights(a, 1);
    ck_assert_int_eq(gather(refs, a, 0, 1), NB_REF_NEW);
    ref = nb_refs_last(refs);
    ck_assert_int_eq(nb_refs_source(refs, ref, b, 0, BLOCK, op++), NB_REF_HELD);
    /* Operation 2 delivers something close to it, in two ranges. */
    drift(a, 2);
    memcpy(held, a, sizeof(held));
    for (size_t i = 0; i < BLOCK / 2; i += 50)
        held[i] ^= 1;
    for (size_t off = 0; off < BLOCK; off += 32768) {
        const size_t len = BLOCK - off < 32768 ? BLOCK - off : 32768;
        ck_assert_int_eq(nb_refs_source(refs, ref, b + off, off, len, op), NB_REF_CHANGED);
        ck_assert_int_eq(nb_refs_may_approximate(ref, len), 1);
        nb_refs_store(refs, ref, h + off, off, len, op);
        nb_refs_approximated(refs, ref, b + off, off, len);
    }
    ck_assert_int_eq(memcmp(nb_refs_find_op(refs, op, 0, BLOCK), held, BLOCK), 0);
    op++;
    for (int again = 0; again < 3; again++, op++) /* for as long as it stays */
        for (size_t off = 0; off < BLOCK; off += 32768)
            ck_assert_int_eq(nb_refs_source(refs, ref, b + off, off, BLOCK - off < 32768 ? BLOCK - off : 32768, op),
                             NB_REF_HELD);
    for (size_t off = 0; off < BLOCK; off += 16384) /* in other windows */
        ck_assert_int_eq(nb_refs_source(refs, ref, b + off, off, BLOCK - off < 16384 ? BLOCK - off : 16384, op),
                         NB_REF_HELD);
    op++;
    ck_assert_int_eq(nb_refs_source(refs, ref, b, 0, 16384, op), NB_REF_HELD);
    a[9000]++; /* one value of the second part */
    ck_assert_int_eq(nb_refs_source(refs, ref, b + 16384, 16384, BLOCK - 16384, op), NB_REF_CHANGED);
    nb_refs_store(refs, ref, b + 16384, 16384, BLOCK - 16384, op);
    op++;
    /* What was held before is not the source of what was delivered now, nor are the held bytes themselves. */
    ck_assert_int_eq(nb_refs_source(refs, ref, b, 0, BLOCK, op++), NB_REF_HELD);
    ck_assert_int_eq(nb_refs_source(refs, ref, h, 0, BLOCK, op++), NB_REF_CHANGED);
    /* Delivered as it is while the reference stays. */
    drift(a, 3);
    ck_assert_int_eq(nb_refs_source(refs, ref, b, 0, BLOCK, op), NB_REF_CHANGED);
    nb_refs_sent(refs, ref, b, 0, BLOCK);
    op++;
    ck_assert_int_eq(nb_refs_source(refs, ref, b, 0, BLOCK, op), NB_REF_SENT);
    nb_refs_sent(refs, ref, b, 0, BLOCK);
    op++;
    drift(a, 4);
    ck_assert_int_eq(nb_refs_source(refs, ref, b, 0, BLOCK, op), NB_REF_CHANGED);
    nb_refs_destroy(refs);
}
END_TEST

/* A receiver without memory stops new slots, and its block is never used as a reference. */
START_TEST(reference_not_kept)
{
    struct nb_refs *refs = nb_refs_create(&nb_device_host, 2);
    uint16_t a[BLOCK / 2], b[BLOCK / 2];

    weights(a, 1);
    weights(b, 2);
    ck_assert_int_eq(gather(refs, a, 0, 0), NB_REF_NEW);
    nb_refs_confirmed(refs, 0, 0, 1);
    ck_assert_int_eq(gather(refs, a, 1, 0), NB_REF_UNCONFIRMED);
    ck_assert_int_eq(gather(refs, b, 2, 0), NB_REF_NONE);
    ck_assert_int_eq(nb_refs_unconfirmed(refs), 0); /* closing must not wait for what will never come */
    nb_refs_destroy(refs);
}
END_TEST

/* Contents that never recur do not grow without end. */
START_TEST(reference_of_passing_contents)
{
    struct nb_refs *refs = nb_refs_create(&nb_device_host, 2);
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

START_TEST(reference_of_peer)
{
    struct nb_refs *refs = nb_refs_create(&nb_device_host, 2);
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

/* ---- error slots ------------------------------------------------------------------------------------ */

static int all_zero(const void *p, size_t n)
{
    const uint8_t *b = p;
    for (size_t i = 0; i < n; i++)
        if (b[i])
            return 0;
    return 1;
}

START_TEST(feedback_slots)
{
    struct nb_feedback *fb = nb_feedback_create(&nb_device_host);
    struct nb_ef_key a = {.func = NB_FUNC_REDUCE_SCATTER, .type = NB_BF16, .n = 1000, .blocks = 4, .id = 0};
    struct nb_ef_key b = a, moved = a;
    struct nb_ef_slot *sa, *sb;
    struct nb_ef ea, eb, other;

    b.id = 1;
    moved.geometry = 77;
    sa = nb_feedback_get(fb, &a, 0, 0);
    sb = nb_feedback_get(fb, &b, 1, 0);
    ck_assert_ptr_nonnull(sa);
    ck_assert_ptr_ne(sa, sb);
    ck_assert_ptr_eq(nb_feedback_get(fb, &a, 2, 0), sa);
    nb_feedback_view(sa, 1, &ea);
    nb_feedback_view(sa, 2, &other);
    nb_feedback_view(sb, 1, &eb);
    ck_assert(all_zero(ea.err, 1000) && all_zero(ea.scale, nb_ef_scale_bytes(1000)));
    memset(ea.err, 5, 1000);
    ck_assert(all_zero(other.err, 1000) && all_zero(eb.err, 1000));
    /* Another geometry means other elements: their error is gone. */
    ck_assert_ptr_eq(nb_feedback_get(fb, &moved, 3, 0), sa);
    ck_assert(all_zero(ea.err, 1000));
    nb_feedback_destroy(fb);
    ck_assert_uint_eq(nb_budget_left(NB_BUDGET_FEEDBACK), (size_t)16384 << 20);
}
END_TEST

/* Works in flight hold a slot: those of one operation together, those of two never; and nothing is emptied under them. */
START_TEST(feedback_held)
{
    struct nb_feedback *fb = nb_feedback_create(&nb_device_host);
    struct nb_ef_key a = {.func = NB_FUNC_REDUCE_SCATTER, .type = NB_BF16, .n = 1000, .blocks = 4, .id = 0};
    struct nb_ef_slot *s = nb_feedback_get(fb, &a, 7, 0);
    struct nb_ef ef;

    ck_assert(!nb_feedback_busy(fb, &a));
    ck_assert(nb_feedback_hold(s, 7));
    ck_assert(nb_feedback_hold(s, 7));
    ck_assert(nb_feedback_busy(fb, &a));
    ck_assert(!nb_feedback_hold(s, 8));
    nb_feedback_view(s, 1, &ef);
    memset(ef.err, 5, 1000);
    nb_feedback_release(fb, s);
    ck_assert(!nb_feedback_hold(s, 8));
    nb_feedback_release(fb, s);
    ck_assert(!nb_feedback_busy(fb, &a));
    ck_assert_int_eq(ef.err[0], 5);
    /* To be emptied: when the last lets go of it, and nobody gets it before. */
    ck_assert(nb_feedback_hold(s, 8));
    nb_feedback_drop_all(fb);
    ck_assert_int_eq(ef.err[0], 5);
    ck_assert(!nb_feedback_hold(s, 8));
    ck_assert_uint_eq(nb_feedback_drop_step(fb), 0);
    nb_feedback_release(fb, s);
    ck_assert(all_zero(ef.err, 1000));
    ck_assert(nb_feedback_hold(s, 9));
    nb_feedback_release(fb, s);
    nb_feedback_destroy(fb);
}
END_TEST

/* A number that comes to mean a buffer of another shape gets a new slot; the old one stays until the operations that
 * may use it are over. */
START_TEST(feedback_number_means_another)
{
    struct nb_feedback *fb = nb_feedback_create(&nb_device_host);
    struct nb_ef_key a = {.func = NB_FUNC_REDUCE_SCATTER, .type = NB_BF16, .n = 1000, .blocks = 4, .id = 3}, b = a;
    struct nb_ef_slot *old = nb_feedback_get(fb, &a, 5, 0), *new;
    struct nb_ef ef;
    size_t one = nb_feedback_bytes(fb);

    nb_feedback_view(old, 0, &ef);
    b.n = 2000;
    new = nb_feedback_get(fb, &b, 9, 0);
    ck_assert_ptr_ne(old, new);
    memset(ef.err, 1, 1000); /* operation 8 still writes it */
    ck_assert_uint_gt(nb_feedback_bytes(fb), 2 * one);
    nb_feedback_trim(fb, 9);
    ck_assert_uint_gt(nb_feedback_bytes(fb), 2 * one);
    nb_feedback_trim(fb, 10);
    ck_assert_uint_lt(nb_feedback_bytes(fb), 2 * one + one / 2);
    ck_assert_ptr_eq(nb_feedback_get(fb, &b, 11, 0), new);
    nb_feedback_destroy(fb);
    ck_assert_uint_eq(nb_budget_left(NB_BUDGET_FEEDBACK), (size_t)16384 << 20);
}
END_TEST

/* Where nothing tells the steps, a slot that comes again begins one; a fresh buffer finds no error. */
START_TEST(feedback_steps_by_reuse)
{
    struct nb_feedback *fb = nb_feedback_create(&nb_device_host);
    struct nb_ef_key a = {.func = NB_FUNC_ALL_REDUCE, .type = NB_F32, .n = 64, .blocks = 1, .id = 1}, b = a;
    struct nb_ef ea, eb;

    b.id = 2;
    nb_feedback_view(nb_feedback_get(fb, &a, 0, 0), 0, &ea);
    nb_feedback_view(nb_feedback_get(fb, &b, 1, 0), 0, &eb);
    memset(ea.err, 1, 64);
    memset(eb.err, 1, 64);
    nb_feedback_get(fb, &a, 2, 0); /* the next step, in which b has not come yet */
    ck_assert_uint_eq(nb_feedback_drop_step(fb), 1);
    ck_assert(all_zero(ea.err, 64));
    ck_assert(!all_zero(eb.err, 64));
    nb_feedback_get(fb, &b, 3, 1);
    ck_assert(all_zero(eb.err, 64));
    /* The number passes to another buffer while nothing is coded. */
    nb_feedback_view(nb_feedback_get(fb, &a, 4, 0), 0, &ea);
    nb_feedback_view(nb_feedback_get(fb, &b, 5, 0), 0, &eb);
    memset(ea.err, 1, 64);
    memset(eb.err, 1, 64);
    nb_feedback_drop(fb, 1);
    ck_assert(all_zero(ea.err, 64));
    ck_assert(!all_zero(eb.err, 64));
    nb_feedback_destroy(fb);
}
END_TEST

/* A non-finite value drops what was used since the weights changed, and nothing else. */
START_TEST(feedback_drop_step)
{
    struct nb_feedback *fb = nb_feedback_create(&nb_device_host);
    struct nb_ef_key key = {.func = NB_FUNC_REDUCE_SCATTER, .type = NB_F32, .n = 64, .blocks = 2};
    struct nb_ef old, fresh;

    key.id = 1;
    nb_feedback_view(nb_feedback_get(fb, &key, 10, 0), 0, &old);
    memset(old.err, 1, 64);
    nb_feedback_step(fb, 11);
    key.id = 2;
    nb_feedback_view(nb_feedback_get(fb, &key, 12, 0), 0, &fresh);
    memset(fresh.err, 1, 64);
    ck_assert_uint_eq(nb_feedback_drop_step(fb), 1);
    ck_assert(!all_zero(old.err, 64));
    ck_assert(all_zero(fresh.err, 64));
    nb_feedback_destroy(fb);
}
END_TEST

/* What a spike leaves is not used, not even much later; what an ordinary step leaves is. */
START_TEST(feedback_after_spike)
{
    struct nb_feedback *fb = nb_feedback_create(&nb_device_host);
    struct nb_ef_key key = {.func = NB_FUNC_REDUCE_SCATTER, .type = NB_F32, .n = 64, .blocks = 2};
    struct nb_encode_stats stats = {0};
    struct nb_ef_report report;
    struct nb_ef_slot *s = NULL;
    struct nb_ef ef;

    for (uint64_t step = 0; step < 40; step++) {
        int spike = step == 20 || step == 30;
        s = nb_feedback_get(fb, &key, step, 0);
        nb_feedback_view(s, 0, &ef);
        ck_assert_msg(all_zero(ef.err, 64) == (step == 0 || step == 21 || step == 31), "step %d", (int)step);
        memset(ef.err, 1, 64);
        /* The gradient's norm drifts by a factor of three, and once grows five times. */
        stats.signal2 = (1 + (double)(step % 7)) * (spike ? 200 : 1) * (step == 10 ? 3 : 1);
        nb_feedback_note(s, step, &stats);
        /* What is left of the operation before is no part of this one. */
        stats.signal2 *= 1000;
        if (step % 3 == 0 && step)
            nb_feedback_note(s, step - 1, &stats);
    }
    ck_assert_int_eq(nb_feedback_report(fb, 0, &report), 1);
    ck_assert_uint_eq(report.emptied, 2);
    nb_feedback_destroy(fb);
}
END_TEST

/* ---- weights that jump ------------------------------------------------------------------------------ */

START_TEST(jump_of_weights)
{
    struct nb_jump j = {0};

    /* Nothing is usual at first, whatever comes. */
    ck_assert(!nb_jump_weights(&j, 100, 1600) && !nb_jump_weights(&j, 100, 200));
    ck_assert(!nb_jump_steady(&j));
    for (int i = 0; i < 20; i++)
        ck_assert(!nb_jump_weights(&j, 100, 250 + 50 * (uint64_t)(i % 3)));
    ck_assert(nb_jump_steady(&j));
    ck_assert(!nb_jump_weights(&j, 100, 500));
    ck_assert(nb_jump_weights(&j, 100, 850)); /* a checkpoint */
    ck_assert(!nb_jump_weights(&j, 100, 300));
    for (int i = 0; i < 20; i++)
        nb_jump_weights(&j, 100, 300);
    ck_assert(!nb_jump_weights(&j, 0, 0));
    /* A pace that stays becomes usual. */
    int jumps = 0;
    for (int i = 0; i < 20; i++)
        jumps += nb_jump_weights(&j, 100, 1000);
    ck_assert_int_ge(jumps, 1);
    ck_assert_int_le(jumps, 4);
}
END_TEST

START_TEST(jump_of_gradients)
{
    struct nb_jump j = {0};

    for (int i = 0; i < 10; i++)
        ck_assert(!nb_jump_gradients(&j, i % 2 ? 1e-6 : 3e-6));
    ck_assert(!nb_jump_gradients(&j, 0) && !nb_jump_gradients(&j, INFINITY) && !nb_jump_gradients(&j, NAN));
    ck_assert(!nb_jump_gradients(&j, 9 * 2e-6)); /* three times the norm */
    ck_assert(nb_jump_gradients(&j, 900 * 2e-6));
    ck_assert(!nb_jump_gradients(&j, 2e-6));
}
END_TEST

/* The content of a block that came again and again is suddenly like nothing before. */
START_TEST(jump_to_new_content)
{
    struct nb_refs *refs = nb_refs_create(&nb_device_host, 3);
    uint16_t a[BLOCK / 2], b[BLOCK / 2];
    struct nb_ref *ref;

    weights(a, 1);
    weights(b, 2);
    ck_assert_int_eq(gather(refs, a, 0, 2), NB_REF_NEW);
    ck_assert_int_eq(nb_refs_steady(refs, BLOCK), 0);
    for (uint64_t op = 1; op < 8; op++) {
        drift(a, op);
        ck_assert_int_eq(nb_refs_pick(refs, a, 0, BLOCK, BLOCK, op, &ref), NB_REF_HIT);
        nb_jump_weights(&ref->jump, BLOCK / 2, BLOCK);
        nb_refs_store(refs, ref, a, 0, BLOCK, op);
        nb_refs_confirmed(refs, op, 1, 1);
        nb_refs_confirmed(refs, op, 1, 1);
    }
    ck_assert_int_eq(nb_refs_pick(refs, b, 0, BLOCK, BLOCK, 9, &ref), NB_REF_NEW);
    ck_assert_int_eq(nb_refs_steady(refs, BLOCK), 1);
    ck_assert_int_eq(nb_refs_steady(refs, BLOCK / 2), 0); /* a gather of another size says nothing */
    nb_refs_destroy(refs);
}
END_TEST

/* ---- exact reductions ------------------------------------------------------------------------------- */

START_TEST(exact_integers_wrap)
{
    int8_t a[3] = {127, -128, 100}, b[3] = {1, -1, 100}, own[3] = {0, 0, 100}, out[3];
    const void *src[2] = {a, b};
    int64_t big[2] = {INT64_MAX, INT64_MIN}, one[2] = {1, -1}, sum[2];
    const void *bsrc[1] = {big};

    ck_assert_int_eq(nb_exact_reduce(ncclInt8, ncclSum, src, 2, own, 3, out), 0);
    ck_assert_int_eq(out[0], -128);
    ck_assert_int_eq(out[1], 127);
    ck_assert_int_eq(out[2], (int8_t)300);
    ck_assert_int_eq(nb_exact_reduce(ncclInt8, ncclMax, src, 2, own, 3, out), 0);
    ck_assert_int_eq(out[0], 127);
    ck_assert_int_eq(out[1], 0);
    ck_assert_int_eq(nb_exact_reduce(ncclUint8, ncclMax, src, 2, own, 3, out), 0);
    ck_assert_int_eq((uint8_t)out[1], 255);
    ck_assert_int_eq(nb_exact_reduce(ncclInt64, ncclSum, bsrc, 1, one, 2, sum), 0);
    ck_assert(sum[0] == INT64_MIN && sum[1] == INT64_MAX);
}
END_TEST

/* Every type and reduction over lengths around the block size, unaligned, in place, against the plain loop. */
START_TEST(exact_all_types)
{
    static const ncclDataType_t types[] = {ncclInt8, ncclUint8, ncclInt32, ncclUint32, ncclInt64, ncclUint64,
                                           ncclFloat16, ncclFloat32, ncclFloat64, ncclBfloat16};
    static const ncclRedOp_t ops[] = {ncclSum, ncclProd, ncclMax, ncclMin};
    static const size_t sizes[] = {1, 31, 1023, 1024, 1025, 3000};
    uint64_t seed = 5;

    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        size_t value = nb_nccl_type_size(types[t]);
        for (size_t o = 0; o < 4; o++) {
            for (size_t z = 0; z < sizeof(sizes) / sizeof(sizes[0]); z++) {
                size_t n = sizes[z], bytes = n * value;
                uint8_t *mem = malloc(4 * (bytes + 1)), *single = malloc(bytes);
                const void *src[3];
                ck_assert_int_eq(nb_exact_supported(types[t], ops[o]), 1);
                for (int k = 0; k < 4; k++) { /* small integers are exact in every type */
                    uint8_t *p = mem + (size_t)k * (bytes + 1) + 1;
                    if (k < 3)
                        src[k] = p;
                    for (size_t i = 0; i < n; i++) {
                        int v = (int)(rng(&seed) % 3) + 1;
                        float f = (float)v;
                        double d = v;
                        uint32_t bits;
                        uint16_t h = (uint16_t)(v == 1 ? 0x3c00 : v == 2 ? 0x4000 : 0x4200);
                        uint16_t bf;
                        uint64_t u = (uint64_t)v;
                        memcpy(&bits, &f, 4);
                        bf = (uint16_t)(bits >> 16);
                        const void *from = types[t] == ncclFloat32    ? (const void *)&f
                                           : types[t] == ncclFloat64  ? (const void *)&d
                                           : types[t] == ncclFloat16  ? (const void *)&h
                                           : types[t] == ncclBfloat16 ? (const void *)&bf
                                                                      : (const void *)&u;
                        memcpy(p + i * value, from, value);
                    }
                }
                uint8_t *own = mem + 3 * (bytes + 1) + 1;
                /* One value at a time gives the same as all at once. */
                for (size_t i = 0; i < n; i++) {
                    const void *one[3] = {(const uint8_t *)src[0] + i * value, (const uint8_t *)src[1] + i * value,
                                          (const uint8_t *)src[2] + i * value};
                    ck_assert_int_eq(nb_exact_reduce(types[t], ops[o], one, 3, own + i * value, 1, single + i * value), 0);
                }
                ck_assert_int_eq(nb_exact_reduce(types[t], ops[o], src, 3, own, n, own), 0);
                ck_assert_int_eq(memcmp(own, single, bytes), 0);
                free(mem);
                free(single);
            }
        }
    }
    ck_assert_int_eq(nb_exact_supported(ncclFloat8e4m3, ncclSum), 0);
    ck_assert_int_eq(nb_exact_supported(ncclFloat32, ncclAvg), 0);
    ck_assert_int_eq(nb_exact_reduce(ncclFloat8e5m2, ncclSum, NULL, 0, &seed, 1, &seed), -EINVAL);
}
END_TEST

START_TEST(exact_known_values)
{
    float a[2] = {1.5f, NAN}, own[2] = {2.25f, 3.0f}, out[2];
    uint16_t ha[1] = {0x7bff}, hb[1] = {0x7bff}; /* 65504 + 65504 overflows FP16 as it does without us */
    const void *src[1] = {a}, *hsrc[1] = {ha};

    ck_assert_int_eq(nb_exact_reduce(ncclFloat32, ncclProd, src, 1, own, 2, out), 0);
    ck_assert(out[0] == 3.375f && isnan(out[1]));
    ck_assert_int_eq(nb_exact_reduce(ncclFloat32, ncclMax, src, 1, own, 2, out), 0);
    ck_assert(out[0] == 2.25f && out[1] == 3.0f);
    ck_assert_int_eq(nb_exact_reduce(ncclFloat16, ncclSum, hsrc, 1, hb, 1, hb), 0);
    ck_assert_uint_eq(hb[0], 0x7c00);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("state");
    TCase *t = tcase_create("state");
    SRunner *r;
    int failed;

    tcase_add_test(t, reference_by_content);
    tcase_add_test(t, reference_waits_for_confirmation);
    tcase_add_test(t, reference_knows_its_source);
    tcase_add_test(t, reference_not_kept);
    tcase_add_test(t, reference_of_passing_contents);
    tcase_add_test(t, reference_of_peer);
    tcase_add_test(t, feedback_slots);
    tcase_add_test(t, feedback_held);
    tcase_add_test(t, feedback_number_means_another);
    tcase_add_test(t, feedback_steps_by_reuse);
    tcase_add_test(t, feedback_drop_step);
    tcase_add_test(t, feedback_after_spike);
    tcase_add_test(t, jump_of_weights);
    tcase_add_test(t, jump_of_gradients);
    tcase_add_test(t, jump_to_new_content);
    tcase_add_test(t, exact_integers_wrap);
    tcase_add_test(t, exact_all_types);
    tcase_add_test(t, exact_known_values);
    tcase_set_timeout(t, 120);
    suite_add_tcase(s, t);
    r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
