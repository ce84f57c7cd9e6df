/* SPDX-License-Identifier: Apache-2.0 */
/* The pool of requests of a connection. */
#include <check.h>
#include <stdlib.h>

#include "net/tcp/tcp.h"
#include "tests/suite.h"
#include "util.h"

struct request {
    struct nb_net_req head;
    char more[40];
};

enum { MAX = 4 * NB_NET_REQ_BLOCK };

START_TEST(as_many_as_allowed)
{
    struct request *r[MAX];
    struct nb_net_reqs pool;
    int comm;

    nb_net_reqs_init(&pool, &comm, sizeof(struct request), MAX);
    ck_assert_ptr_null(nb_net_req_at(&pool, 0));
    for (unsigned i = 0; i < MAX; i++) {
        r[i] = nb_net_req_get(&pool);
        ck_assert_ptr_nonnull(r[i]);
        ck_assert_uint_eq(r[i]->head.index, i);
        ck_assert_ptr_eq(nb_net_req_at(&pool, i), r[i]);
        ck_assert_ptr_eq(r[i]->head.comm, &comm);
        ck_assert(!r[i]->head.done);
        ck_assert_int_eq(r[i]->more[39], 0);
        r[i]->more[39] = (char)i;
        r[i]->head.done = true;
    }
    ck_assert_ptr_null(nb_net_req_get(&pool));
    ck_assert_ptr_null(nb_net_req_at(&pool, MAX));
    nb_net_req_put(&pool, &r[7]->head);
    nb_net_req_put(&pool, &r[100]->head);
    ck_assert_ptr_eq(nb_net_req_get(&pool), r[100]); /* the last one first: it is in the cache */
    ck_assert(!r[100]->head.done);
    ck_assert_int_eq(r[100]->more[39], 100);
    ck_assert_ptr_eq(nb_net_req_get(&pool), r[7]);
    ck_assert_ptr_null(nb_net_req_get(&pool));
    nb_net_reqs_free(&pool); /* in use or not */
    ck_assert_ptr_null(nb_net_req_at(&pool, 0));
}
END_TEST

START_TEST(without_a_limit)
{
    struct nb_net_reqs pool;

    nb_net_reqs_init(&pool, NULL, sizeof(struct request), 0);
    for (int i = 0; i < 10 * MAX; i++)
        ck_assert_ptr_nonnull(nb_net_req_get(&pool));
    nb_net_reqs_free(&pool);
}
END_TEST

SUITE_MAIN("net/requests", TEST(as_many_as_allowed), TEST(without_a_limit))
