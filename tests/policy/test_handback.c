/* SPDX-License-Identifier: Apache-2.0 */
/* Operations that are handed back to NCCL: one way through it, what is refused, and all interleavings. */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "handback_model.h"
#include "policy/handback.h"
#include "policy/handback_desk.h"

#define MOST 3000000u

static void explore(const char *name, const struct handback_case *what, struct handback_found *found)
{
    ck_assert_int_eq(handback_explore(what, MOST, found), 0);
    printf("%s: %llu states, %llu steps; NCCL's %llu, waits %llu, back %llu, again %llu\n", name,
           (unsigned long long)found->states, (unsigned long long)found->steps,
           (unsigned long long)found->handed_back, (unsigned long long)found->waited,
           (unsigned long long)found->came_back, (unsigned long long)found->again);
}

#define EXPLORE(name, ...) \
    START_TEST(name) \
    { \
        const struct handback_case what = {__VA_ARGS__}; \
        struct handback_found found; \
        explore(#name, &what, &found); \
        ck_assert_msg(!found.wrong, "%s", found.wrong ? found.wrong : ""); \
        ck_assert(found.handed_back > 0); \
    } \
    END_TEST

EXPLORE(two_nodes, .nodes = 2, .signatures = 1, .calls = 8, .turns = 3, .period = 2)
EXPLORE(two_nodes_slack, .nodes = 2, .signatures = 1, .calls = 8, .turns = 3, .slack = 2, .period = 1)
EXPLORE(two_nodes_break, .nodes = 2, .signatures = 1, .calls = 6, .turns = 3, .breaks = 2, .slack = 1,
        .period = 1)
EXPLORE(two_signatures, .nodes = 2, .signatures = 2, .calls = 2, .turns = 2, .period = 1)
EXPLORE(three_nodes, .nodes = 3, .signatures = 1, .calls = 5, .turns = 2, .period = 1)
EXPLORE(three_nodes_break, .nodes = 3, .signatures = 1, .calls = 3, .turns = 1, .breaks = 1, .period = 1)
EXPLORE(two_nodes_stop, .nodes = 2, .signatures = 1, .calls = 6, .turns = 2, .stops = 1, .period = 2)
EXPLORE(two_ranks, .nodes = 2, .ranks = 2, .signatures = 1, .calls = 5, .turns = 2, .period = 1)
EXPLORE(two_heads, .nodes = 2, .ranks = 2, .heads = 2, .signatures = 1, .calls = 3, .turns = 3, .period = 1)
EXPLORE(two_ranks_break, .nodes = 2, .ranks = 2, .signatures = 1, .calls = 3, .turns = 2, .breaks = 1,
        .slack = 1, .period = 1)

/* What is broken is found. */
static const struct {
    enum handback_mutant mutant;
    const char *wrong;
} mutants[] = {
    {MUTANT_NO_WAIT, "two ranks choose differently"},
    {MUTANT_EARLY, "two ranks choose differently"},
    {MUTANT_LOST, "a caller waits for ever"},
    {MUTANT_FORGETFUL, NULL}, /* a note is refused, or two differ */
    {MUTANT_FIRST, "two ranks choose differently"},
};

START_TEST(mutants_are_found)
{
    const struct handback_case what = {.nodes = 2,
                                       .ranks = mutants[_i].mutant == MUTANT_FIRST ? 2 : 1,
                                       .signatures = 1,
                                       .calls = 6,
                                       .turns = 2,
                                       .period = 2,
                                       .mutant = mutants[_i].mutant};
    struct handback_found found;

    explore("mutant", &what, &found);
    ck_assert_ptr_nonnull(found.wrong);
    if (mutants[_i].wrong)
        ck_assert_str_eq(found.wrong, mutants[_i].wrong);
}
END_TEST

/* ---- one way through it -------------------------------------------------------------------------------- */

enum { BYTES = 1 << 20 };

static struct nb_handback node[NB_HANDBACK_NODES];

static void make(int n, uint64_t slack, uint64_t period)
{
    for (int r = 0; r < n; r++)
        nb_handback_init(&node[r], &(struct nb_handback_config){.node = r,
                                                                .nnodes = n,
                                                                .ranks = 1,
                                                                .heads = 1,
                                                                .slack = slack,
                                                                .period = period,
                                                                .longest = 2 * period});
}

static enum nb_handback_answer call(int rank)
{
    return nb_handback_call(&node[rank], 0, NB_FUNC_ALL_GATHER, BYTES);
}

static struct nb_handback_out verdict(int rank, bool raw)
{
    struct nb_handback_out out;

    nb_handback_verdict(&node[rank], 0, NB_FUNC_ALL_GATHER, BYTES, raw, &out);
    return out;
}

static struct nb_handback_out give(int from, int to, const struct nb_handback_note *note)
{
    struct nb_handback_out out;

    ck_assert_int_eq(nb_handback_receive(&node[to], from, note, &out), 0);
    return out;
}

/* All of n nodes find that it goes raw: the question that node 0 asks then. */
static struct nb_handback_note ask_all(int n)
{
    struct nb_handback_out out;

    for (int r = n - 1; r > 0; r--) {
        out = verdict(r, true);
        ck_assert_uint_eq(out.n, 1);
        ck_assert_uint_eq(give(r, 0, &out.sent[0].note).n, 0);
        ck_assert_uint_eq(verdict(r, true).n, 0); /* said once */
    }
    out = verdict(0, true);
    ck_assert_uint_eq(out.n, 1);
    ck_assert_int_lt(out.sent[0].to, 0);
    ck_assert_uint_eq(out.sent[0].note.kind, NB_HANDBACK_ASK);
    return out.sent[0].note;
}

static struct nb_handback_note vote_all(int n)
{
    const struct nb_handback_note ask = ask_all(n);
    struct nb_handback_out out = {.n = 0}, set = {.n = 0};

    for (int r = 1; r < n; r++) {
        out = give(0, r, &ask);
        ck_assert_uint_eq(out.n, 1);
        set = give(r, 0, &out.sent[0].note);
        ck_assert_uint_eq(set.n, r == n - 1);
    }
    ck_assert_uint_eq(set.sent[0].note.kind, NB_HANDBACK_SET);
    return set.sent[0].note;
}

START_TEST(goes_and_comes_back)
{
    struct nb_handback_note set;

    make(NB_HANDBACK_NODES, 3, 4);
    for (int r = 0; r < NB_HANDBACK_NODES; r++)
        for (int i = 0; i < 10 + (r == 7) * 20; i++) /* one is far ahead */
            ck_assert_int_eq(call(r), NB_HANDBACK_COLLNET);
    set = vote_all(NB_HANDBACK_NODES);
    ck_assert_uint_eq(set.call, 34);
    for (int i = 31; i <= 33; i++) /* as far as it has said */
        ck_assert_int_eq(call(7), NB_HANDBACK_COLLNET);
    ck_assert_int_eq(call(7), NB_HANDBACK_WAIT);
    ck_assert_int_eq(call(7), NB_HANDBACK_WAIT);
    for (int r = 1; r < NB_HANDBACK_NODES; r++)
        ck_assert_uint_eq(give(0, r, &set).n, 0);
    for (int r = 0; r < NB_HANDBACK_NODES; r++)
        for (uint64_t i = nb_handback_find(&node[r], NB_FUNC_ALL_GATHER, BYTES)->calls[0] + 1; i < 50; i++)
            ck_assert_int_eq(call(r), i >= 34 && i < 38 ? NB_HANDBACK_NCCL : NB_HANDBACK_COLLNET);
    /* The next time it stays twice as long. */
    set = vote_all(NB_HANDBACK_NODES);
    ck_assert_uint_eq(set.call, 53);
    for (int r = 1; r < NB_HANDBACK_NODES; r++)
        ck_assert_uint_eq(give(0, r, &set).n, 0);
    for (int r = 0; r < NB_HANDBACK_NODES; r++)
        for (uint64_t i = 50; i < 64; i++)
            ck_assert_int_eq(call(r), i >= 53 && i < 61 ? NB_HANDBACK_NCCL : NB_HANDBACK_COLLNET);
}
END_TEST

START_TEST(one_no_is_no)
{
    struct nb_handback_note ask;
    struct nb_handback_out out;

    make(3, 0, 4);
    for (int r = 0; r < 3; r++)
        call(r);
    ask = ask_all(3);
    verdict(2, false); /* thinks again, before it hears the question */
    out = give(0, 2, &ask);
    ck_assert_uint_eq(out.sent[0].note.call, NB_HANDBACK_NONE);
    ck_assert_int_eq(call(2), NB_HANDBACK_COLLNET); /* it knows the outcome */
    ck_assert_uint_eq(give(2, 0, &out.sent[0].note).n, 0);
    out = give(0, 1, &ask);
    ck_assert_int_eq(call(1), NB_HANDBACK_WAIT);
    ck_assert_int_eq(call(0), NB_HANDBACK_WAIT);
    out = give(1, 0, &out.sent[0].note);
    ck_assert_uint_eq(out.n, 1);
    ck_assert_uint_eq(out.sent[0].note.call, NB_HANDBACK_NONE);
    for (int r = 1; r < 3; r++)
        give(0, r, &out.sent[0].note);
    for (int r = 0; r < 3; r++)
        ck_assert_int_eq(call(r), NB_HANDBACK_COLLNET);
    ck_assert_uint_eq(verdict(2, true).n, 1); /* and it may be asked once more */
}
END_TEST

START_TEST(failure_ends_waiting)
{
    struct nb_handback_note ask;

    make(2, 0, 4);
    for (int r = 0; r < 2; r++)
        call(r);
    ask = ask_all(2);
    give(0, 1, &ask);
    for (int r = 0; r < 2; r++) {
        ck_assert_int_eq(call(r), NB_HANDBACK_WAIT);
        nb_handback_fail(&node[r]);
        ck_assert_int_eq(call(r), NB_HANDBACK_COLLNET);
        ck_assert_uint_eq(verdict(r, true).n, 0);
        ck_assert_uint_eq(give(!r, r, &ask).n, 0);
    }
}
END_TEST

START_TEST(no_room)
{
    struct nb_handback_out out;
    struct nb_handback_note ask = {
        .kind = NB_HANDBACK_ASK, .func = NB_FUNC_ALL_REDUCE, .bytes = 9, .vote = 1};

    make(2, 0, 4);
    for (uint64_t i = 0; i < 2 * NB_HANDBACK_SIGNATURES; i++)
        ck_assert_int_eq(nb_handback_call(&node[1], 0, NB_FUNC_ALL_REDUCE, 1000 + i), NB_HANDBACK_COLLNET);
    ck_assert_uint_eq(node[1].signatures, NB_HANDBACK_SIGNATURES);
    nb_handback_verdict(&node[1], 0, NB_FUNC_ALL_REDUCE, 1000 + NB_HANDBACK_SIGNATURES, true, &out);
    ck_assert_uint_eq(out.n, 0);
    out = give(0, 1, &ask); /* of what it does not know: no */
    ck_assert_uint_eq(out.n, 1);
    ck_assert_uint_eq(out.sent[0].note.call, NB_HANDBACK_NONE);
}
END_TEST

/* Notes that do not belong. */
START_TEST(bad_notes)
{
    const struct nb_handback_note good = {
        .kind = NB_HANDBACK_SET, .func = NB_FUNC_ALL_GATHER, .bytes = BYTES};
    struct nb_handback_note n;
    struct nb_handback_out out;

    make(3, 0, 4);
    for (int r = 0; r < 3; r++)
        call(r);
    n = good;
    n.call = 1;
    ck_assert_int_eq(nb_handback_receive(&node[1], 0, &n, &out), -EPROTO); /* was not asked */
    n.call = NB_HANDBACK_NONE;
    ck_assert_int_eq(nb_handback_receive(&node[1], 2, &n, &out), -EPROTO); /* not from node 0 */
    ck_assert_int_eq(nb_handback_receive(&node[0], 1, &n, &out), -EPROTO);
    n.kind = NB_HANDBACK_FAR;
    ck_assert_int_eq(nb_handback_receive(&node[0], 1, &n, &out), -EPROTO); /* there is no vote */
    n.kind = NB_HANDBACK_TELL;
    ck_assert_int_eq(nb_handback_receive(&node[0], 1, &n, &out), -EPROTO); /* neither yes nor no */
    n.call = 2;
    ck_assert_int_eq(nb_handback_receive(&node[0], 1, &n, &out), -EPROTO);
    n.call = 1;
    ck_assert_int_eq(nb_handback_receive(&node[0], 3, &n, &out), -EPROTO);
    ck_assert_int_eq(nb_handback_receive(&node[0], -1, &n, &out), -EPROTO);
    n.kind = NB_HANDBACK_KINDS;
    ck_assert_int_eq(nb_handback_receive(&node[1], 0, &n, &out), -EPROTO);
    n = ask_all(3);
    give(0, 1, &n);
    ck_assert_int_eq(nb_handback_receive(&node[1], 0, &n, &out), -EPROTO); /* asked twice */
    n.kind = NB_HANDBACK_SET;
    n.call = 1;
    ck_assert_int_eq(nb_handback_receive(&node[1], 0, &n, &out), -EPROTO); /* that call is answered */
    n.kind = NB_HANDBACK_FAR;
    n.call = (uint64_t)1 << 63;
    ck_assert_int_eq(nb_handback_receive(&node[0], 1, &n, &out), -EPROTO);
    n.call = 1;
    n.vote++;
    ck_assert_int_eq(nb_handback_receive(&node[0], 1, &n, &out), -EPROTO); /* of another vote */
    n.vote--;
    give(1, 0, &n);
    ck_assert_int_eq(nb_handback_receive(&node[0], 1, &n, &out), -EPROTO); /* twice */
}
END_TEST

/* ---- the desk ------------------------------------------------------------------------------------------ */

#define LONG_NS ((int64_t)3600 * 1000000000)

struct caller {
    struct nb_handback_desk *desk;
    int64_t patience_ns;
    int calls, ret;
    bool nccl; /* the last one's */
};

static void *call_on(void *arg)
{
    struct caller *c = arg;

    for (int i = 0; i < c->calls && !c->ret; i++)
        c->ret = nb_handback_desk_call(c->desk, NB_FUNC_ALL_GATHER, BYTES, c->patience_ns, &c->nccl);
    return NULL;
}

/* Node 1's desk, whose node has been asked: 16 calls are answered, and the next waits. */
static struct nb_handback_desk *asked(struct nb_context *ctx, struct nb_handback_note *far)
{
    struct nb_handback_desk *desk = nb_handback_desk_get(ctx, 5, 0);
    const struct nb_handback_note ask = {
        .kind = NB_HANDBACK_ASK, .func = NB_FUNC_ALL_GATHER, .bytes = BYTES, .vote = 1};
    struct nb_handback_out out;
    struct caller c = {.desk = desk, .calls = 1};

    ck_assert_ptr_nonnull(desk);
    nb_handback_desk_attach(desk, 9, 1, 2);
    ck_assert_int_eq(nb_handback_desk_join(desk, 1, NB_HANDBACK_MACHINE), 0);
    call_on(&c);
    ck_assert(!c.ret && !c.nccl);
    nb_handback_desk_verdict(desk, NB_FUNC_ALL_GATHER, BYTES, true, &out);
    ck_assert_uint_eq(out.n, 1);
    ck_assert_int_eq(nb_handback_desk_receive(desk, 0, &ask, &out), 0);
    ck_assert_uint_eq(out.n, 1);
    *far = out.sent[0].note;
    ck_assert_uint_eq(far->call, 17);
    return desk;
}

static void wait_for_waiting(struct nb_handback_desk *desk)
{
    struct nb_handback_counts n;

    do
        nb_handback_desk_count(desk, &n);
    while (!n.waited);
}

/* The outcome wakes it; so does a failure. */
START_TEST(desk_wakes)
{
    struct nb_context ctx = {.params = NULL};
    struct nb_handback_note note;
    struct nb_handback_out out;
    struct nb_handback_desk *desk;
    struct caller c = {.calls = 17, .patience_ns = LONG_NS};
    pthread_t thread;

    ck_assert_int_eq(nb_handback_desks_open(&ctx), 0);
    c.desk = desk = asked(&ctx, &note);
    ck_assert_int_eq(pthread_create(&thread, NULL, call_on, &c), 0);
    wait_for_waiting(desk);
    if (_i < 2) {
        note.kind = NB_HANDBACK_SET;
        note.call = _i ? 18 : NB_HANDBACK_NONE;
        ck_assert_int_eq(nb_handback_desk_receive(desk, 0, &note, &out), 0);
    } else {
        nb_handback_desk_fail(desk);
    }
    pthread_join(thread, NULL);
    ck_assert_int_eq(c.ret, 0);
    ck_assert(c.nccl == (_i == 1));
    ck_assert(!nb_handback_desk_overdue(desk));
    ck_assert(nb_handback_desk_looks(desk, NB_FUNC_ALL_GATHER, BYTES) == (_i != 1));
    nb_handback_desk_put(desk);
    nb_handback_desks_close(&ctx);
}
END_TEST

/* Without an outcome no answer is right. */
START_TEST(desk_gives_up)
{
    struct nb_context ctx = {.params = NULL};
    struct nb_handback_note note;
    struct caller c = {.calls = 17, .patience_ns = 1000000};

    ck_assert_int_eq(nb_handback_desks_open(&ctx), 0);
    c.desk = asked(&ctx, &note);
    call_on(&c);
    ck_assert_int_eq(c.ret, -ETIMEDOUT);
    ck_assert(nb_handback_desk_overdue(c.desk));
    nb_handback_desk_put(c.desk);
    nb_handback_desks_close(&ctx);
}
END_TEST

/* Whose calls are counted has to be one rank's. */
START_TEST(desk_of_two)
{
    struct nb_context ctx = {.params = NULL};
    struct nb_handback_desk *desk, *other;
    struct nb_handback_out out;
    struct caller c = {.calls = 5};

    ck_assert_int_eq(nb_handback_desks_open(&ctx), 0);
    ck_assert_ptr_null(nb_handback_desk_get(&ctx, 0, 0));
    desk = c.desk = nb_handback_desk_get(&ctx, 5, 0);
    other = nb_handback_desk_get(&ctx, 5, 1); /* of another GPU */
    ck_assert_ptr_ne(desk, other);
    ck_assert_ptr_eq(desk, nb_handback_desk_get(&ctx, 5, 0));
    nb_handback_desk_put(other);
    nb_handback_desk_attach(desk, 9, 1, 2);
    ck_assert_int_eq(nb_handback_desk_join(desk, 1, NB_HANDBACK_MACHINE), 0);
    ck_assert_int_eq(nb_handback_desk_join(desk, 1, NB_HANDBACK_MACHINE), 0);
    call_on(&c);
    nb_handback_desk_verdict(desk, NB_FUNC_ALL_GATHER, BYTES, true, &out);
    ck_assert_uint_eq(out.n, 0);
    nb_handback_desk_put(desk);
    nb_handback_desk_put(desk);
    nb_handback_desks_close(&ctx);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("handback");
    TCase *t = tcase_create("model");
    SRunner *r;
    int failed;

    tcase_set_timeout(t, 0);
    tcase_add_test(t, two_nodes);
    tcase_add_test(t, two_nodes_stop);
    tcase_add_test(t, two_heads);
    if (!getenv(
            "NB_TEST_QUICK")) { /* one thread walks through states: there is little for sanitizers to find in more of them */
        tcase_add_test(t, two_nodes_slack);
        tcase_add_test(t, two_nodes_break);
        tcase_add_test(t, two_signatures);
        tcase_add_test(t, three_nodes);
        tcase_add_test(t, three_nodes_break);
        tcase_add_test(t, two_ranks);
        tcase_add_test(t, two_ranks_break);
    }
    tcase_add_loop_test(t, mutants_are_found, 0, (int)(sizeof(mutants) / sizeof(*mutants)));
    suite_add_tcase(s, t);
    t = tcase_create("way");
    tcase_add_test(t, goes_and_comes_back);
    tcase_add_test(t, one_no_is_no);
    tcase_add_test(t, failure_ends_waiting);
    tcase_add_test(t, no_room);
    tcase_add_test(t, bad_notes);
    suite_add_tcase(s, t);
    t = tcase_create("desk");
    tcase_add_loop_test(t, desk_wakes, 0, 3);
    tcase_add_test(t, desk_gives_up);
    tcase_add_test(t, desk_of_two);
    suite_add_tcase(s, t);
    r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
