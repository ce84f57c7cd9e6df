/* SPDX-License-Identifier: Apache-2.0 */
/* Match records with operations, also where some of either are missing. */
#include <stdio.h>
#include <stdlib.h>

#include "policy/records/records.h"
#include "tests/suite.h"

static struct nb_align *al;

static void add(enum nb_func func, uint64_t bytes, uint32_t missing)
{
    struct nb_record r = {
        .func = func, .type = ncclFloat32, .bytes = bytes, .heads = 2, .head = -1, .slot = (int64_t)bytes};
    r.missing[func] = missing;
    nb_align_add(al, &r);
}

static uint64_t got;

/* Begin an operation. Return how it matched, and check the bytes that the record states. An all-reduce does
 * not show its bytes. */
static enum nb_alignment begin(enum nb_func func, uint64_t bytes)
{
    struct nb_seen seen = {func, ncclFloat32, func == NB_FUNC_ALL_REDUCE ? 0 : bytes};
    struct nb_record r;
    enum nb_alignment how = nb_align_begin(al, &seen, &r);

    got = how == NB_ALIGN_CERTAIN || how == NB_ALIGN_ALIKE ? r.bytes : 0;
    if (got)
        ck_assert_uint_eq(got, bytes); /* never wrong bytes */
    return how;
}

/* Begin and finish an all-reduce of one head, with steps of 1000 bytes. */
static enum nb_alignment reduce(uint64_t bytes)
{
    enum nb_alignment how = begin(NB_FUNC_ALL_REDUCE, bytes);
    nb_align_ended(al, (bytes + 999) / 1000, 1000);
    return how;
}

#define RS NB_FUNC_REDUCE_SCATTER
#define AR NB_FUNC_ALL_REDUCE

static void al_setup(void)
{
    al = nb_align_create();
}

static void al_teardown(void)
{
    nb_align_destroy(al);
}

START_TEST(in_step)
{
    for (uint64_t i = 1; i < 3 * NB_QUEUE_RECORDS; i++) {
        add(i % 2 ? AR : RS, 4 * i, 0);
        ck_assert_int_eq(i % 2 ? reduce(4 * i) : begin(RS, 4 * i), NB_ALIGN_CERTAIN);
        ck_assert_uint_eq(nb_align_room(al), NB_QUEUE_RECORDS - (i % 2 ? 0 : 1));
    }
    ck_assert_int_eq(reduce(4), NB_ALIGN_ABSENT);
    add(AR, 8, 0);
    ck_assert_int_eq(reduce(8), NB_ALIGN_CERTAIN);
}
END_TEST

/* A loss that showed when its operation came costs no later record, when NCCL's number tells of it. */
START_TEST(lost_and_seen)
{
    for (uint64_t i = 1; i < 20; i++) {
        ck_assert_int_eq(reduce(9000), NB_ALIGN_ABSENT);
        add(RS, 64, 0);
        add(AR, 4 * i, 1);
        ck_assert_int_eq(begin(RS, 64), NB_ALIGN_CERTAIN);
        ck_assert_int_eq(reduce(4 * i), NB_ALIGN_CERTAIN);
    }
}
END_TEST

/* A launch that contradicts its call stands for exactly one operation. */
START_TEST(contradicting_record)
{
    struct nb_record bad = {.func = AR, .type = ncclInt32, .bytes = 12, .heads = 2, .flags = NB_RECORD_DOUBT},
                     r;
    struct nb_seen seen = {AR, ncclFloat32, 0};

    nb_align_add(al, &bad);
    add(AR, 4000, 0);
    ck_assert_int_eq(nb_align_begin(al, &seen, &r), NB_ALIGN_CERTAIN);
    ck_assert_uint_eq(r.flags, NB_RECORD_DOUBT);
    ck_assert_int_eq(nb_align_ended(al, 7, 1000), 0);
    ck_assert_int_eq(reduce(4000), NB_ALIGN_CERTAIN);
}
END_TEST

START_TEST(misfit_then_next)
{
    add(AR, 5000, 0); /* the second operation's: the first one's record is missing without a sign */
    add(RS, 64, 0);
    ck_assert_int_eq(begin(RS, 100), NB_ALIGN_MISFIT);
    ck_assert_int_eq(reduce(5000), NB_ALIGN_CERTAIN);
    ck_assert_int_eq(begin(RS, 64), NB_ALIGN_CERTAIN);
}
END_TEST

/* An event was lost among all-reduces of the same type, and NCCL's number told. The module uses no record
 * until sizes show which is which. Then it uses all. */
START_TEST(lost_among_alike)
{
    int certain = 0;

    add(AR, 5000, 0);
    ck_assert_int_eq(reduce(5000), NB_ALIGN_CERTAIN);
    /* 9000 is lost. 3000, 7000, 2000, 4000 follow. */
    add(AR, 3000, 1);
    add(AR, 7000, 0);
    add(AR, 2000, 0);
    add(AR, 4000, 0);
    ck_assert_int_eq(reduce(9000), NB_ALIGN_DOUBT);
    for (uint64_t i = 0; i < 4; i++)
        certain += reduce((uint64_t[]){3000, 7000, 2000, 4000}[i]) == NB_ALIGN_CERTAIN;
    ck_assert_int_ge(certain, 3);
}
END_TEST

/* The lost operation took another algorithm and never came here. */
START_TEST(lost_elsewhere)
{
    int certain = 0;

    add(AR, 3000, 1);
    add(AR, 7000, 0);
    add(AR, 2000, 0);
    ck_assert_int_eq(reduce(3000), NB_ALIGN_DOUBT);
    certain += reduce(7000) == NB_ALIGN_CERTAIN;
    certain += reduce(2000) == NB_ALIGN_CERTAIN;
    ck_assert_int_ge(certain, 1);
}
END_TEST

/* All sizes are equal. The match stays open, but all records say the same, without a buffer. */
START_TEST(alike_is_enough)
{
    add(AR, 4000, 1);
    for (int i = 0; i < 6; i++)
        add(AR, 4000, 0);
    ck_assert_int_eq(reduce(4000), NB_ALIGN_DOUBT);
    for (int i = 0; i < 4; i++) {
        enum nb_alignment how = reduce(4000);
        ck_assert_int_eq(how, NB_ALIGN_ALIKE);
    }
}
END_TEST

/* Records whose operations never came. */
START_TEST(superfluous)
{
    add(RS, 1111, 0);
    add(AR, 3000, 0);
    ck_assert_int_eq(reduce(3000), NB_ALIGN_MISFIT);
    add(AR, 2000, 0);
    ck_assert_int_eq(reduce(2000), NB_ALIGN_CERTAIN);
}
END_TEST

START_TEST(wrong_size_shows_at_the_end)
{
    struct nb_seen seen = {AR, ncclFloat32, 0};
    struct nb_record r;

    add(AR, 30000, 0);
    ck_assert_int_eq(nb_align_begin(al, &seen, &r), NB_ALIGN_CERTAIN);
    ck_assert_int_eq(nb_align_ended(al, 2, 1000), -1);
}
END_TEST

/* Random sequences with random losses that NCCL's numbers show, and operations elsewhere. No record is wrong,
 * and most are used. */
START_TEST(random_losses)
{
    uint64_t seed = 0x9e3779b97f4a7c15 * (uint64_t)(_i + 1), used = 0, total = 0;
    uint32_t missing[NB_FUNC_COUNT] = {0};
    struct {
        uint64_t bytes;
        int func;
    } wait[8];
    unsigned waiting = 0;

    for (int i = 0; i < 20000; i++) {
        uint64_t bytes, kind;
        int func;
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
        bytes = 4 * (1 + seed % 4 * 700);
        func = seed >> 20 & 1 ? AR : RS;
        kind = seed >> 32 & 63;
        if (kind == 0) { /* lost, comes here */
            missing[func]++;
        } else if (kind == 1) { /* lost, goes elsewhere */
            missing[func]++;
            continue;
        } else {
            add((enum nb_func)func, bytes, missing[func]);
            missing[func] = 0;
        }
        wait[waiting].bytes = bytes;
        wait[waiting++].func = func;
        if (waiting < 1 + (seed >> 40 & 7)) /* launches run ahead */
            continue;
        for (unsigned k = 0; k < waiting; k++) {
            enum nb_alignment how = wait[k].func == AR ? reduce(wait[k].bytes) : begin(RS, wait[k].bytes);
            used += how == NB_ALIGN_CERTAIN || how == NB_ALIGN_ALIKE;
            total++;
        }
        waiting = 0;
    }
    ck_assert_int_eq(al->blind, 0);
    ck_assert_msg(used * 10 > total * 7, "only %lu of %lu records were used", (unsigned long)used,
                  (unsigned long)total);
    if (_i == 0)
        printf("alignment: %lu of %lu operations had their record, 1 in 32 events lost\n",
               (unsigned long)used, (unsigned long)total);
}
END_TEST

SUITE_MAIN("policy/align", FIXTURE(al_setup, al_teardown), TEST(in_step), TEST(lost_and_seen),
           TEST(contradicting_record), TEST(misfit_then_next), TEST(lost_among_alike), TEST(lost_elsewhere),
           TEST(alike_is_enough), TEST(superfluous), TEST(wrong_size_shows_at_the_end),
           LOOP(random_losses, 0, 40))
