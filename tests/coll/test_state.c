/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a communicator remembers: weight references chosen by content, error slots, certainty of signatures, and
 * the exact reductions of the host device.
 */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "coll/wire.h"
#include "device/device.h"
#include "device/exact.h"
#include "policy/policy.h"
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
        nb_refs_confirmed(refs, opno, 1);
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
    nb_refs_confirmed(refs, 0, 1);
    ck_assert_int_eq(nb_refs_unconfirmed(refs), 0);
    ck_assert_int_eq(gather(refs, a, 2, 2), NB_REF_HIT);
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
    nb_refs_confirmed(refs, 0, 0);
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
    sa = nb_feedback_get(fb, &a, 0);
    sb = nb_feedback_get(fb, &b, 1);
    ck_assert_ptr_nonnull(sa);
    ck_assert_ptr_ne(sa, sb);
    ck_assert_ptr_eq(nb_feedback_get(fb, &a, 2), sa);
    nb_feedback_view(sa, 1, &ea);
    nb_feedback_view(sa, 2, &other);
    nb_feedback_view(sb, 1, &eb);
    ck_assert(all_zero(ea.err, 1000) && all_zero(ea.scale, nb_ef_scale_bytes(1000)));
    memset(ea.err, 5, 1000);
    ck_assert(all_zero(other.err, 1000) && all_zero(eb.err, 1000));
    /* Another geometry means other elements: their error is gone. */
    ck_assert_ptr_eq(nb_feedback_get(fb, &moved, 3), sa);
    ck_assert(all_zero(ea.err, 1000));
    nb_feedback_destroy(fb);
    ck_assert_uint_eq(nb_budget_left(NB_BUDGET_FEEDBACK), (size_t)16384 << 20);
}
END_TEST

/* A non-finite value drops what was used since the weights changed, and nothing else. */
START_TEST(feedback_drop_step)
{
    struct nb_feedback *fb = nb_feedback_create(&nb_device_host);
    struct nb_ef_key key = {.func = NB_FUNC_REDUCE_SCATTER, .type = NB_F32, .n = 64, .blocks = 2};
    struct nb_ef old, fresh;

    key.id = 1;
    nb_feedback_view(nb_feedback_get(fb, &key, 10), 0, &old);
    memset(old.err, 1, 64);
    nb_feedback_step(fb, 11);
    key.id = 2;
    nb_feedback_view(nb_feedback_get(fb, &key, 12), 0, &fresh);
    memset(fresh.err, 1, 64);
    ck_assert_uint_eq(nb_feedback_drop_step(fb), 1);
    ck_assert(!all_zero(old.err, 64));
    ck_assert(all_zero(fresh.err, 64));
    nb_feedback_destroy(fb);
}
END_TEST

/* ---- signatures ------------------------------------------------------------------------------------- */

START_TEST(signature_once_a_step)
{
    struct nb_signatures *s = nb_signatures_create();
    for (int step = 0; step < 20; step++) {
        ck_assert_int_eq(nb_signatures_reduce(s, ncclBfloat16, 4096), step >= 3);
        ck_assert_int_eq(nb_signatures_gather(s, 7, 1), 1);
        ck_assert_int_eq(nb_signatures_gather(s, 7, 0), 0); /* gathered again, unchanged: the same step */
        ck_assert_int_eq(nb_signatures_gather(s, 8, 1), 0); /* another block */
    }
    nb_signatures_destroy(s);
}
END_TEST

/* Two layers of one size, or two micro-batches: whose error it would be is not known. */
START_TEST(signature_twice_a_step)
{
    struct nb_signatures *s = nb_signatures_create();
    for (int step = 0; step < 200; step++) {
        ck_assert_int_eq(nb_signatures_reduce(s, ncclBfloat16, 4096), 0);
        ck_assert_int_eq(nb_signatures_reduce(s, ncclBfloat16, 4096), 0);
        nb_signatures_gather(s, 1, 1);
        nb_signatures_gather(s, 2, 1);
    }
    /* Once a step from now on: certain again, but not soon. */
    for (int step = 0; step < 53; step++) {
        ck_assert_int_eq(nb_signatures_reduce(s, ncclBfloat16, 4096), 0);
        nb_signatures_gather(s, 1, 1);
    }
    ck_assert_int_eq(nb_signatures_reduce(s, ncclBfloat16, 4096), 1);
    nb_signatures_destroy(s);
}
END_TEST

START_TEST(signature_without_steps)
{
    struct nb_signatures *s = nb_signatures_create();
    for (int i = 0; i < 1000; i++) {
        ck_assert_int_eq(nb_signatures_reduce(s, ncclFloat32, 64), 0);
        ck_assert_int_eq(nb_signatures_gather(s, 1, 0), 0);
    }
    nb_signatures_destroy(s);
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
    tcase_add_test(t, reference_not_kept);
    tcase_add_test(t, reference_of_passing_contents);
    tcase_add_test(t, reference_of_peer);
    tcase_add_test(t, feedback_slots);
    tcase_add_test(t, feedback_drop_step);
    tcase_add_test(t, signature_once_a_step);
    tcase_add_test(t, signature_twice_a_step);
    tcase_add_test(t, signature_without_steps);
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
