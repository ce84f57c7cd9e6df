/* SPDX-License-Identifier: Apache-2.0 */
/* Residuals: their owners, their lifetime, and their memory. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "base/nccl_names.h"
#include "device/device.h"
#include "state/budget.h"
#include "state/feedback.h"
#include "tests/suite.h"

static struct nb_context node, *const ctx = &node;

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
    struct nb_feedback *fb = nb_feedback_create(ctx, nb_host_device());
    struct nb_ef_key a = {.func = NB_FUNC_REDUCE_SCATTER, .type = NB_BF16, .n = 1000, .blocks = 4, .id = 0};
    struct nb_ef_key b = a, moved = a;
    struct nb_residual *sa, *sb;
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
    /* Another geometry means other elements: the residual is zero again. */
    ck_assert_ptr_eq(nb_feedback_get(fb, &moved, 3, 0), sa);
    ck_assert(all_zero(ea.err, 1000));
    nb_feedback_destroy(fb);
    ck_assert_uint_eq(nb_budget_left(ctx->budgets, NB_BUDGET_FEEDBACK), (size_t)16384 << 20);
}
END_TEST

/* Tasks in flight hold a slot. Tasks of one operation hold it together, tasks of two operations never do. A
 * held slot keeps its residual. */
START_TEST(feedback_held)
{
    struct nb_feedback *fb = nb_feedback_create(ctx, nb_host_device());
    struct nb_ef_key a = {.func = NB_FUNC_REDUCE_SCATTER, .type = NB_BF16, .n = 1000, .blocks = 4, .id = 0};
    struct nb_residual *s = nb_feedback_get(fb, &a, 7, 0);
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
    /* The slot is to be emptied when its last holder releases it. Until then it has no new holder. */
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

/* A number that passes to a buffer of another shape gets a new slot. The old slot stays until the operations
 * that may use it are over. */
START_TEST(feedback_number_means_another)
{
    struct nb_feedback *fb = nb_feedback_create(ctx, nb_host_device());
    struct nb_ef_key a = {.func = NB_FUNC_REDUCE_SCATTER, .type = NB_BF16, .n = 1000, .blocks = 4, .id = 3},
                     b = a;
    struct nb_residual *old = nb_feedback_get(fb, &a, 5, 0), *new;
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
    ck_assert_uint_eq(nb_budget_left(ctx->budgets, NB_BUDGET_FEEDBACK), (size_t)16384 << 20);
}
END_TEST

/* Without other signs of steps, a slot that comes again begins a step. A fresh buffer has a residual of
 * zero. */
START_TEST(feedback_steps_by_reuse)
{
    struct nb_feedback *fb = nb_feedback_create(ctx, nb_host_device());
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
    /* The number passes to another buffer between two encodings. */
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

/* With NIBBLE_EF=ema a residual is emptied every so many steps, to the step. */
START_TEST(feedback_emptied_regularly)
{
    struct nb_params own = *nb_params_defaults();
    struct nb_ef_key a = {.func = NB_FUNC_ALL_REDUCE, .type = NB_F32, .n = 64, .blocks = 1, .id = 1};
    struct nb_feedback *fb;
    struct nb_ef ef;

    own.ef = NB_FEEDBACK_EMA;
    own.ef_reset = 5;
    node.params = &own;
    fb = nb_feedback_create(ctx, nb_host_device());
    for (uint64_t step = 0; step <= 12; step++) {
        nb_feedback_view(nb_feedback_get(fb, &a, step, 0), 0, &ef);
        ck_assert_int_eq(all_zero(ef.err, 64), (step % 5 == 0));
        memset(ef.err, 1, 64);
    }
    nb_feedback_destroy(fb);
    node.params = nb_params_defaults();
}
END_TEST

/* A non-finite value drops exactly the residuals used since the weights changed. */
START_TEST(feedback_drop_step)
{
    struct nb_feedback *fb = nb_feedback_create(ctx, nb_host_device());
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

/* The residual of a spike is never used, even much later. The residual of an ordinary step is. */
START_TEST(feedback_after_spike)
{
    struct nb_feedback *fb = nb_feedback_create(ctx, nb_host_device());
    struct nb_ef_key key = {.func = NB_FUNC_REDUCE_SCATTER, .type = NB_F32, .n = 64, .blocks = 2};
    struct nb_encode_stats stats = {0};
    struct nb_ef_report report;
    struct nb_residual *s = NULL;
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
        /* The last operation's residual is not part of this one. */
        stats.signal2 *= 1000;
        if (step % 3 == 0 && step)
            nb_feedback_note(s, step - 1, &stats);
    }
    ck_assert_int_eq(nb_feedback_report(fb, 0, &report), 1);
    ck_assert_uint_eq(report.emptied, 2);
    nb_feedback_destroy(fb);
}
END_TEST

/* ---- a device that zeroes memory when the test says so ------------------------------------------------ */

static struct {
    struct nb_device_ops ops;
    struct nb_device device;
    int answer; /* answer to a request for zeros, 0: done at once */
    unsigned asked, open;
    void *at; /* memory of the last accepted request */
    size_t bytes;
    ssize_t result; /* result of poll */
} later;

static int later_zero(struct nb_device *dev, struct nb_work *work, void *dst, size_t bytes)
{
    (void)dev;
    ck_assert_msg(work, "somebody waits");
    later.asked++;
    later.at = dst;
    later.bytes = bytes;
    if (later.answer == 0)
        memset(dst, 0, bytes);
    later.open += later.answer == -EINPROGRESS;
    return later.answer;
}

static ssize_t later_poll(struct nb_device *dev, struct nb_work *work)
{
    (void)dev, (void)work;
    ck_assert_uint_gt(later.open, 0);
    later.open -= later.result != -EINPROGRESS;
    return later.result;
}

static void *later_alloc(struct nb_device *dev, enum nb_place place, size_t bytes)
{
    void *p = nb_host_device()->ops->alloc(nb_host_device(), place, bytes);

    (void)dev;
    ck_assert_ptr_nonnull(p);
    return memset(p, 0xa5, bytes);
}

static struct nb_feedback *create_later(int answer)
{
    later.ops = *nb_host_device()->ops;
    later.ops.zeroes = false;
    later.ops.zero = later_zero;
    later.ops.poll = later_poll;
    later.ops.alloc = later_alloc;
    later.device.ops = &later.ops;
    later.answer = answer;
    later.asked = later.open = 0;
    later.result = -EINPROGRESS;
    return nb_feedback_create(ctx, &later.device);
}

/* Finish the requests in flight. */
static void zeroes_are_there(void)
{
    memset(later.at, 0, later.bytes);
    later.result = 0;
}

static const struct nb_ef_key some = {
    .func = NB_FUNC_REDUCE_SCATTER, .type = NB_BF16, .n = 1000, .blocks = 4, .id = 0};

/* A new slot and an emptied slot are unavailable until their memory is zero, and no thread waits for that. A
 * slot that is emptied again meanwhile is not zeroed twice. */
START_TEST(feedback_zeroed_later)
{
    struct nb_feedback *fb = create_later(-EINPROGRESS);
    struct nb_residual *s = nb_feedback_get(fb, &some, 0, 0);
    struct nb_ef ef;

    for (unsigned n = 1; n <= 2; n++) {
        ck_assert_uint_eq(later.asked, n);
        ck_assert(nb_feedback_at_work(fb));
        ck_assert(!nb_feedback_hold(s, n));
        ck_assert_int_eq(nb_feedback_progress(fb), 0);
        ck_assert(!nb_feedback_busy(fb, &some));
        nb_feedback_drop_all(fb);
        ck_assert_uint_eq(later.asked, n);
        zeroes_are_there();
        ck_assert_int_eq(nb_feedback_progress(fb), 1);
        ck_assert_int_eq(nb_feedback_progress(fb), 0);
        ck_assert(!nb_feedback_at_work(fb));
        ck_assert_uint_eq(later.open, 0);
        ck_assert(nb_feedback_hold(s, n));
        for (uint32_t b = 0; b < some.blocks; b++) {
            nb_feedback_view(s, b, &ef);
            ck_assert(all_zero(ef.err, 1000) && all_zero(ef.scale, nb_ef_scale_bytes(1000)));
        }
        memset(ef.err, 5, 1000);
        later.result = -EINPROGRESS;
        nb_feedback_drop(fb, some.id); /* takes effect when its holder is done */
        ck_assert_uint_eq(later.asked, n);
        nb_feedback_release(fb, s);
    }
    zeroes_are_there();
    ck_assert_int_eq(nb_feedback_progress(fb), 1);
    nb_feedback_destroy(fb);
}
END_TEST

/* The plugin asks a device without room again. It uses memory zeroed at once, and reports a device that
 * fails. */
START_TEST(feedback_zeroing_refused)
{
    struct nb_feedback *fb = create_later(-EAGAIN);
    struct nb_residual *s = nb_feedback_get(fb, &some, 0, 0);

    ck_assert_int_eq(nb_feedback_progress(fb), 0);
    ck_assert_uint_eq(later.asked, 2);
    ck_assert(nb_feedback_at_work(fb) && !nb_feedback_hold(s, 0));
    later.answer = 0;
    ck_assert_int_eq(nb_feedback_progress(fb), 1);
    ck_assert(!nb_feedback_at_work(fb) && nb_feedback_hold(s, 0));
    nb_feedback_release(fb, s);
    later.answer = -EIO;
    s = nb_feedback_get(fb, &(struct nb_ef_key){.n = 8, .blocks = 1, .id = 7}, 1, 0);
    ck_assert(!nb_feedback_hold(s, 1));
    ck_assert_int_eq(nb_feedback_progress(fb), -EIO);
    nb_feedback_destroy(fb);
    ck_assert_uint_eq(nb_budget_left(ctx->budgets, NB_BUDGET_FEEDBACK), (size_t)16384 << 20);
}
END_TEST

/* The memory of a replaced slot stays until its zeroing ends. */
START_TEST(feedback_zeroed_and_retired)
{
    struct nb_feedback *fb = create_later(-EINPROGRESS);
    struct nb_ef_key other = some;
    size_t one, both;

    nb_feedback_get(fb, &some, 5, 0);
    one = nb_feedback_bytes(fb);
    other.n = 2000;
    later.answer = 0;
    nb_feedback_get(fb, &other, 9, 0);
    both = nb_feedback_bytes(fb);
    nb_feedback_trim(fb, 20);
    ck_assert_uint_eq(nb_feedback_bytes(fb), both);
    later.result = 0;
    ck_assert_int_eq(nb_feedback_progress(fb), 1);
    nb_feedback_trim(fb, 20);
    ck_assert_uint_eq(nb_feedback_bytes(fb), both - one);
    nb_feedback_destroy(fb);
}
END_TEST

int main(void)
{
    node.params = nb_params_defaults();
    if (nb_budgets_open(&node))
        return EXIT_FAILURE;
    const int failed =
        SUITE("state/feedback", TEST(feedback_slots), TEST(feedback_held),
              TEST(feedback_number_means_another), TEST(feedback_steps_by_reuse),
              TEST(feedback_emptied_regularly), TEST(feedback_drop_step), TEST(feedback_after_spike),
              TEST(feedback_zeroed_later), TEST(feedback_zeroing_refused), TEST(feedback_zeroed_and_retired));
    nb_budgets_close(&node);
    return failed;
}
