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

/* Entries of one hash form a chain, the last one first, and leave it in any order. */
START_TEST(chains)
{
    struct nb_chains c = {0};

    ck_assert_int_eq(nb_chains_init(&c, 17), 0);
    ck_assert_uint_eq(nb_chains_first(&c, 5), NB_NONE);
    nb_chains_add(&c, 5, 0);
    nb_chains_add(&c, 5 + 32, 16); /* shares the chain */
    nb_chains_add(&c, 6, 3);
    nb_chains_add(&c, 5, 7);
    ck_assert_uint_eq(nb_chains_first(&c, 5), 7);
    ck_assert_uint_eq(c.next[7], 16);
    ck_assert_uint_eq(c.next[16], 0);
    ck_assert_uint_eq(c.next[0], NB_NONE);
    nb_chains_remove(&c, 5 + 32, 16);
    ck_assert_uint_eq(c.next[7], 0);
    nb_chains_remove(&c, 5, 7);
    ck_assert_uint_eq(nb_chains_first(&c, 5), 0);
    nb_chains_remove(&c, 5, 0);
    ck_assert_uint_eq(nb_chains_first(&c, 5), NB_NONE);
    ck_assert_uint_eq(nb_chains_first(&c, 6), 3);
    nb_chains_free(&c);
}
END_TEST

SUITE_MAIN("base/slab", TEST(entries_stay_where_they_are), TEST(all_at_once_and_small), TEST(no_memory),
           TEST(chains))
