/* SPDX-License-Identifier: Apache-2.0 */
/* Tables that grow in chunks. The program is linked with --wrap for calloc, which fails on the test's
 * demand. */
#include <errno.h>
#include <stdlib.h>

#include "base/slab.h"
#include "tests/suite.h"

static int refuse;

void *__real_calloc(size_t n, size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes)
{
    return refuse ? NULL : __real_calloc(n, bytes);
}

START_TEST(entries_stay_where_they_are)
{
    enum { CAP = 1000 };
    struct nb_slab slab;
    uint32_t *place[CAP];

    nb_slab_init(&slab, sizeof(uint32_t), CAP);
    ck_assert_uint_eq(slab.made, 0);
    for (uint32_t i = 0; i < CAP; i++) {
        ck_assert_int_eq(nb_slab_reach(&slab, i + 1), 0);
        place[i] = nb_slab_at(&slab, i);
        ck_assert_uint_eq(*place[i], 0);
        *place[i] = i + 1;
        ck_assert_uint_gt(slab.made, i);
        ck_assert_uint_le(slab.made, i < 16 ? 16 : 2 * i); /* at most twice the used entries */
    }
    ck_assert_uint_eq(slab.made, CAP);
    for (uint32_t i = 0; i < CAP; i++) {
        ck_assert_ptr_eq(nb_slab_at(&slab, i), place[i]);
        ck_assert_uint_eq(*place[i], i + 1); /* each entry has its own place */
    }
    ck_assert_int_eq(nb_slab_reach(&slab, CAP), 0);
    ck_assert_int_eq(nb_slab_reach(&slab, CAP + 1), -ENOMEM);
    nb_slab_free(&slab);
    nb_slab_free(&slab);
}
END_TEST

START_TEST(all_at_once_and_small)
{
    struct nb_slab slab;

    nb_slab_init(&slab, 3, NB_SLAB_MOST);
    ck_assert_int_eq(nb_slab_reach(&slab, NB_SLAB_MOST), 0);
    for (uint32_t i = 0; i < NB_SLAB_MOST; i += 4095)
        *(char *)nb_slab_at(&slab, i) = 1;
    *(char *)nb_slab_at(&slab, NB_SLAB_MOST - 1) = 1;
    nb_slab_free(&slab);
    nb_slab_init(&slab, 8, 5);
    ck_assert_int_eq(nb_slab_reach(&slab, 6), -ENOMEM);
    ck_assert_int_eq(nb_slab_reach(&slab, 5), 0);
    ck_assert_uint_eq(slab.made, 5);
    *(uint64_t *)nb_slab_at(&slab, 4) = 1;
    nb_slab_free(&slab);
}
END_TEST

/* Without memory the entries stay. */
START_TEST(no_memory)
{
    struct nb_slab slab;

    nb_slab_init(&slab, 8, 100);
    refuse = 1;
    ck_assert_int_eq(nb_slab_reach(&slab, 1), -ENOMEM);
    ck_assert_uint_eq(slab.made, 0);
    refuse = 0;
    ck_assert_int_eq(nb_slab_reach(&slab, 1), 0);
    *(uint64_t *)nb_slab_at(&slab, 15) = 7;
    refuse = 1;
    ck_assert_int_eq(nb_slab_reach(&slab, 17), -ENOMEM);
    refuse = 0;
    ck_assert_uint_eq(slab.made, 16);
    ck_assert_uint_eq(*(uint64_t *)nb_slab_at(&slab, 15), 7);
    ck_assert_int_eq(nb_slab_reach(&slab, 17), 0);
    nb_slab_free(&slab);
}
END_TEST

struct named {
    struct nb_entry entry;
    int value;
};

static void note_dropped(void *arg, void *entry)
{
    *(uint64_t *)arg = ((struct named *)entry)->entry.a;
}

/* Entries are found by both numbers, whatever else was put in and taken out. */
START_TEST(named_entries)
{
    enum { N = 300 };
    struct nb_table t = {.mask = 0};
    unsigned seen = 0;

    nb_table_free(&t);
    ck_assert_int_eq(nb_table_init(&t, sizeof(struct named), N), 0);
    for (int i = 0; i < N; i++) {
        struct named *e = nb_table_make(&t, (uint64_t)(i / 2), (uint64_t)(i % 2), NULL, NULL);
        ck_assert_int_eq(e->value, 0);
        e->value = i + 1;
    }
    for (int i = 0; i < N; i += 3)
        nb_table_remove(&t, nb_table_find(&t, (uint64_t)(i / 2), (uint64_t)(i % 2)));
    for (int i = 0; i < N; i++) {
        const struct named *e = nb_table_find(&t, (uint64_t)(i / 2), (uint64_t)(i % 2));
        ck_assert(e ? i % 3 && e->value == i + 1 : i % 3 == 0);
    }
    for (const struct named *e = NULL; (e = nb_table_next(&t, e));)
        seen++;
    ck_assert_uint_eq(seen, N - N / 3);
    ck_assert_int_eq(((struct named *)nb_table_make(&t, 1000, 0, NULL, NULL))->value,
                     0); /* in a free place */
    nb_table_free(&t);
}
END_TEST

/* A full table, and one without memory for more, forgets an entry that nobody has asked for lately. */
START_TEST(full_table)
{
    for (int without = 0; without < 2; without++) {
        struct nb_table t;
        uint64_t dropped = 0;

        ck_assert_int_eq(nb_table_init(&t, sizeof(struct named), without ? 100 : 16), 0);
        refuse = without;
        for (uint64_t i = 1; i <= 500; i++) {
            ck_assert(i == 1 || nb_table_find(&t, 1, 0)); /* always in use */
            dropped = 0;
            nb_table_make(&t, i, 0, note_dropped, &dropped);
            ck_assert((i > 16) == (dropped > 0));
            ck_assert_uint_ne(dropped, 1);
            ck_assert_uint_ne(dropped, i);
            ck_assert_ptr_null(dropped ? nb_table_find(&t, dropped, 0) : NULL);
        }
        refuse = 0;
        nb_table_free(&t);
        refuse = 1;
        ck_assert_int_eq(nb_table_init(&t, sizeof(struct named), 16), -ENOMEM);
        refuse = 0;
    }
}
END_TEST

SUITE_MAIN("base/slab", TEST(entries_stay_where_they_are), TEST(all_at_once_and_small), TEST(no_memory),
           TEST(named_entries), TEST(full_table))
