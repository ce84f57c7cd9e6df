/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of one node that are processes, and share what is handed back to NCCL; and which of their heads votes. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/context.h"
#include "policy/handback_desk.h"
#include "policy/handback_shared.h"

enum { BYTES = 4096, SLACK = 2, PERIOD = 8 };
#define LONG_NS ((int64_t)3600 * 1000000000)

static struct nb_context ctx;
static uint64_t comm_id;
static struct nb_handback_out out;

/* A communicator, and a host, of its own for each test. */
static void setup(void)
{
    char host[64];

    snprintf(host, sizeof(host), "test-%d", (int)getpid());
    ck_assert_int_eq(setenv("NCCL_HOSTID", host, 1), 0);
    comm_id = 0x1234;
    ck_assert_int_eq(nb_handback_desks_open(&ctx), 0);
}

static void teardown(void)
{
    nb_handback_desks_close(&ctx);
}

/* How many files there are of it. */
static size_t files(void)
{
    char pattern[64];
    glob_t found;
    size_t n;

    snprintf(pattern, sizeof(pattern), "/dev/shm/nibble-%u-%016llx-*", (unsigned)geteuid(),
             (unsigned long long)comm_id);
    n = glob(pattern, 0, NULL, &found) ? 0 : found.gl_pathc;
    if (n)
        globfree(&found);
    return n;
}

static struct nb_handback_desk *desk_of(int gpu, unsigned ranks, enum nb_handback_place place)
{
    struct nb_handback_desk *desk = nb_handback_desk_get(&ctx, comm_id, gpu);

    ck_assert_ptr_nonnull(desk);
    nb_handback_desk_tune(desk, SLACK, PERIOD, PERIOD);
    ck_assert_int_eq(nb_handback_desk_join(desk, ranks, place), 0);
    return desk;
}

static enum nb_handback_answer ask(struct nb_handback_desk *desk)
{
    return nb_handback_desk_ask(desk, NB_FUNC_ALL_REDUCE, BYTES);
}

static void verdict(struct nb_handback_desk *desk, bool raw)
{
    nb_handback_desk_verdict(desk, NB_FUNC_ALL_REDUCE, BYTES, raw, &out);
}

static int give(struct nb_handback_desk *desk, enum nb_handback_kind kind, uint64_t call)
{
    const struct nb_handback_note note = {
        .kind = kind, .func = NB_FUNC_ALL_REDUCE, .bytes = BYTES, .call = call, .vote = 1};

    return nb_handback_desk_receive(desk, 0, &note, &out);
}

/* ---- processes ----------------------------------------------------------------------------------------- */

/* A rank in a process of its own, which does what it is told: 'c' the next call, 'w' the same and wait. It says what it was
 * answered, by the numbers of enum nb_handback_answer. */
struct process {
    pid_t pid;
    int to, from;
};

static void serve(int in, int to, unsigned ranks)
{
    struct nb_handback_desk *desk;
    char order, answer = 'j';
    bool nccl;

    ctx = (struct nb_context){.params = NULL}; /* nothing of its parent's */
    if (nb_handback_desks_open(&ctx))
        _exit(1);
    desk = nb_handback_desk_get(&ctx, comm_id, 0);
    nb_handback_desk_tune(desk, SLACK, PERIOD, PERIOD);
    if (nb_handback_desk_join(desk, ranks, NB_HANDBACK_MACHINE))
        answer = 'x';
    while (write(to, &answer, 1) == 1 && read(in, &order, 1) == 1) {
        if (order == 'w') {
            if (nb_handback_desk_call(desk, NB_FUNC_ALL_REDUCE, BYTES, LONG_NS, &nccl))
                _exit(1);
            answer = (char)('0' + (nccl ? NB_HANDBACK_NCCL : NB_HANDBACK_COLLNET));
        } else {
            answer = (char)('0' + ask(desk));
        }
    }
    nb_handback_desk_put(desk);
    nb_handback_desks_close(&ctx);
    _exit(0);
}

static char hear(const struct process *p)
{
    char c;

    ck_assert_int_eq(read(p->from, &c, 1), 1);
    return c;
}

static void order(const struct process *p, char c)
{
    ck_assert_int_eq(write(p->to, &c, 1), 1);
}

static void start(struct process *p, unsigned ranks, char joins)
{
    int to[2], from[2];

    ck_assert_int_eq(pipe(to), 0);
    ck_assert_int_eq(pipe(from), 0);
    p->pid = fork();
    ck_assert_int_ge(p->pid, 0);
    if (!p->pid) {
        close(to[1]);
        close(from[0]);
        serve(to[0], from[1], ranks);
    }
    close(to[0]);
    close(from[1]);
    p->to = to[1];
    p->from = from[0];
    ck_assert_int_eq(hear(p), joins);
}

static void end(const struct process *p)
{
    int status;

    close(p->to);
    ck_assert_int_eq(waitpid(p->pid, &status, 0), p->pid);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(p->from);
}

/* The rank that is head, here, and another one that runs ahead of it in a process of its own: the node says how far the
 * other one is, which waits until this one hears the outcome. */
START_TEST(another_process_waits)
{
    struct nb_handback_desk *desk = nb_handback_desk_get(&ctx, comm_id, 0);
    struct process p;

    nb_handback_desk_tune(desk, SLACK, PERIOD, PERIOD);
    nb_handback_desk_attach(desk, 7, 1, 2); /* connect may come before the tuner */
    ck_assert_int_eq(nb_handback_desk_join(desk, 2, NB_HANDBACK_MACHINE), 0);
    ck_assert_int_eq(ask(desk), NB_HANDBACK_COLLNET);
    verdict(desk, true);
    ck_assert_uint_eq(out.n, 0); /* where is the other one? */
    ck_assert_uint_eq(files(), 1);
    start(&p, 2, 'j');
    ck_assert_uint_eq(files(), 0); /* all have joined */
    for (int i = 0; i < 5; i++) {
        order(&p, 'c');
        ck_assert_int_eq(hear(&p), '0' + NB_HANDBACK_COLLNET);
    }
    verdict(desk, true);
    ck_assert_uint_eq(out.n, 1);
    ck_assert_int_eq(give(desk, NB_HANDBACK_ASK, 0), 0);
    ck_assert_uint_eq(out.n, 1);
    ck_assert_uint_eq(out.sent[0].note.call, 5 + SLACK);
    for (int i = 0; i < SLACK; i++) {
        order(&p, 'w');
        ck_assert_int_eq(hear(&p), '0' + NB_HANDBACK_COLLNET);
    }
    order(&p, 'w');
    usleep(20000); /* so that it waits, as a rule */
    if (_i == 0)
        ck_assert_int_eq(give(desk, NB_HANDBACK_SET, 5 + SLACK + 1), 0);
    else
        nb_handback_desk_fail(desk);
    ck_assert_int_eq(hear(&p), '0' + (_i ? NB_HANDBACK_COLLNET : NB_HANDBACK_NCCL));
    for (int call = 2; call < 20; call++) /* alike on this rank, which is behind */
        ck_assert_int_eq(ask(desk),
                         _i || call < 8 || call >= 8 + PERIOD ? NB_HANDBACK_COLLNET : NB_HANDBACK_NCCL);
    ck_assert(nb_handback_desk_looks(desk, NB_FUNC_ALL_REDUCE, BYTES) ==
              (_i == 1)); /* the other one is not through */
    for (int call = 9; call < 20; call++) {
        order(&p, 'c');
        ck_assert_int_eq(hear(&p), '0' + (_i || call >= 8 + PERIOD ? NB_HANDBACK_COLLNET : NB_HANDBACK_NCCL));
    }
    ck_assert(nb_handback_desk_looks(desk, NB_FUNC_ALL_REDUCE, BYTES));
    end(&p);
    nb_handback_desk_put(desk);
}
END_TEST

/* A rank too many, and ranks that disagree on how many there are. */
START_TEST(others_come)
{
    struct nb_handback_desk *desk = nb_handback_desk_get(&ctx, comm_id, 0);
    struct process p[3];

    nb_handback_desk_attach(desk, 7, 1, 2);
    ck_assert_int_eq(nb_handback_desk_join(desk, 3, NB_HANDBACK_MACHINE), 0);
    start(&p[0], 2, 'x');
    start(&p[1], 3, 'j');
    ck_assert_int_eq(ask(desk), NB_HANDBACK_COLLNET);
    verdict(desk, true);
    ck_assert_uint_eq(out.n, 0);
    start(&p[2], 3, 'j');
    for (int i = 1; i < 3; i++) {
        verdict(desk, true);
        ck_assert_uint_eq(out.n, 0); /* a rank without a call may be none */
        order(&p[i], 'c');
        ck_assert_int_eq(hear(&p[i]), '0' + NB_HANDBACK_COLLNET);
    }
    verdict(desk, true);
    ck_assert_uint_eq(out.n, 1);
    for (int i = 2; i >= 0; i--) /* later ones have earlier ones' pipes open */
        end(&p[i]);
    ck_assert_uint_eq(files(), 0);
    nb_handback_desk_put(desk);
}
END_TEST

START_TEST(one_too_many)
{
    struct nb_handback_config config = {.nnodes = 2, .slack = SLACK, .period = PERIOD, .longest = PERIOD};
    struct nb_handback_share share[3];
    unsigned rank = 9;

    for (unsigned i = 0; i < 3; i++) {
        ck_assert_int_eq(nb_handback_share_make(&share[i], i ? &share[0] : NULL, 2, &config, &rank), 0);
        ck_assert_uint_eq(rank, i < 2 ? i : 0);
    }
    ck_assert(share[0].at->machine.stopped);
    for (int i = 0; i < 3; i++)
        nb_handback_share_close(&share[i]);
}
END_TEST

/* A job of the same number has left its file behind, in which it had joined: the first rank of this one completes it, the second
 * finds none. Neither hands anything back. */
START_TEST(left_behind)
{
    struct nb_handback_config config = {.nnodes = 2, .slack = SLACK, .period = PERIOD, .longest = PERIOD};
    struct nb_handback_desk *desk[2];
    struct nb_handback_share share;
    unsigned rank;
    int status;
    const pid_t pid = fork();

    ck_assert_int_ge(pid, 0);
    if (!pid)
        _exit(nb_handback_share_map(&share, comm_id, 2, &config, &rank) != 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    ck_assert_uint_eq(files(), 1);
    for (int i = 0; i < 2; i++) {
        desk[i] = desk_of(i, 2, NB_HANDBACK_MACHINE);
        nb_handback_desk_attach(desk[i], 7 + (uint64_t)i, 1, 2);
    }
    for (int call = 0; call < 10; call++)
        for (int i = 0; i < 2; i++) {
            ck_assert_int_eq(ask(desk[i]), NB_HANDBACK_COLLNET);
            verdict(desk[i], true);
            ck_assert_uint_eq(out.n, 0);
            ck_assert_int_eq(give(desk[i], NB_HANDBACK_ASK, 0), 0);
            ck_assert_uint_eq(out.sent[0].note.call, NB_HANDBACK_NONE);
        }
    for (int i = 0; i < 2; i++)
        nb_handback_desk_put(desk[i]);
    ck_assert_uint_eq(files(), 0);
}
END_TEST

/* It leaves no file behind where somebody never came; and another host's ranks have another one. */
START_TEST(file_goes)
{
    struct nb_handback_desk *desk = desk_of(0, 2, NB_HANDBACK_MACHINE), *other;

    ck_assert_uint_eq(files(), 1);
    ck_assert_int_eq(setenv("NCCL_HOSTID", "another", 1), 0);
    other = desk_of(1, 2, NB_HANDBACK_MACHINE);
    ck_assert_uint_eq(files(), 2);
    nb_handback_desk_put(desk);
    ck_assert_uint_eq(files(), 1);
    nb_handback_desk_put(other);
    ck_assert_uint_eq(files(), 0);
}
END_TEST

/* What has the file's name, and is none of ours. */
START_TEST(bad_file)
{
    static const int bytes[] = {1, sizeof(struct nb_handback_shared), 1 << 20};
    struct nb_handback_desk *desk = desk_of(0, 2, NB_HANDBACK_MACHINE);
    char path[64];
    glob_t found;
    int fd;

    snprintf(path, sizeof(path), "/dev/shm/nibble-%u-%016llx-*", (unsigned)geteuid(),
             (unsigned long long)comm_id);
    ck_assert_int_eq(glob(path, 0, NULL, &found), 0);
    nb_handback_desk_put(desk);
    if (_i < 3) {
        fd = open(found.gl_pathv[0], O_WRONLY | O_CREAT | O_EXCL, 0600);
        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(ftruncate(fd, bytes[_i]), 0);
        close(fd);
    } else {
        ck_assert_int_eq(symlink("/dev/null", found.gl_pathv[0]), 0);
    }
    desk = nb_handback_desk_get(&ctx, comm_id, 0);
    ck_assert_int_eq(nb_handback_desk_join(desk, 2, NB_HANDBACK_MACHINE), _i < 3 ? -EPROTO : -ELOOP);
    ck_assert_int_eq(ask(desk), NB_HANDBACK_COLLNET);
    ck_assert_int_eq(unlink(found.gl_pathv[0]), 0);
    globfree(&found);
    nb_handback_desk_put(desk);
}
END_TEST

/* A process that dies in the middle of a change: nothing is handed back from then on. */
START_TEST(dies_in_the_middle)
{
    struct nb_handback_config config = {.nnodes = 2, .slack = SLACK, .period = PERIOD, .longest = PERIOD};
    struct nb_handback_share share;
    unsigned rank;
    pid_t pid;
    int status;

    ck_assert_int_eq(nb_handback_share_map(&share, comm_id, 2, &config, &rank), 0);
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (!pid) {
        nb_handback_shared_lock(share.at);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    nb_handback_shared_lock(share.at);
    ck_assert(share.at->machine.failed);
    nb_handback_shared_unlock(share.at);
    nb_handback_shared_lock(share.at); /* and the lock still works */
    nb_handback_shared_unlock(share.at);
    nb_handback_share_close(&share);
}
END_TEST

/* ---- heads --------------------------------------------------------------------------------------------- */

/* Three ranks, two of them heads: that of the lower group votes, and only when both say raw. */
START_TEST(lower_group_leads)
{
    struct nb_handback_desk *desk[3];

    for (int i = 0; i < 3; i++)
        desk[i] = desk_of(i, 3, NB_HANDBACK_PROCESS);
    nb_handback_desk_attach(desk[0], 70, 1, 2);
    nb_handback_desk_attach(desk[2], 30, 1, 2);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(ask(desk[i]), NB_HANDBACK_COLLNET);
    verdict(desk[2], true);
    ck_assert_uint_eq(out.n, 0);
    verdict(desk[0], true);
    ck_assert_uint_eq(out.n, 0); /* it is not the one who says it */
    verdict(desk[2], true);
    ck_assert_uint_eq(out.n, 1);
    ck_assert_uint_eq(out.sent[0].note.kind, NB_HANDBACK_TELL);
    /* Another group's node 0 asks: no, and nobody waits for its outcome. */
    ck_assert_int_eq(give(desk[0], NB_HANDBACK_TELL, 1), 0);
    ck_assert_uint_eq(out.n, 0);
    ck_assert_int_eq(give(desk[0], NB_HANDBACK_ASK, 0), 0);
    ck_assert_uint_eq(out.n, 1);
    ck_assert_uint_eq(out.sent[0].note.call, NB_HANDBACK_NONE);
    ck_assert_int_eq(give(desk[0], NB_HANDBACK_SET, NB_HANDBACK_NONE), 0);
    ck_assert_int_eq(give(desk[0], NB_HANDBACK_SET, 2), -EPROTO);
    ck_assert_int_eq(give(desk[0], NB_HANDBACK_FAR, 2), -EPROTO);
    /* The leader's: yes, unless the other head has thought again. */
    if (_i)
        verdict(desk[0], false);
    ck_assert_int_eq(give(desk[2], NB_HANDBACK_ASK, 0), 0);
    ck_assert_uint_eq(out.sent[0].note.call, _i ? NB_HANDBACK_NONE : 1 + SLACK);
    /* Who attaches after that has no say. */
    nb_handback_desk_attach(desk[1], 1, 1, 2);
    verdict(desk[1], false);
    verdict(desk[2], true);
    ck_assert_int_eq(give(desk[2], NB_HANDBACK_SET, _i ? NB_HANDBACK_NONE : 2 + SLACK), 0);
    for (int call = 2; call < 2 + SLACK + 2 * PERIOD; call++)
        for (int i = 0; i < 3; i++)
            ck_assert_int_eq(ask(desk[i]), _i || call < 2 + SLACK || call >= 2 + SLACK + PERIOD
                                               ? NB_HANDBACK_COLLNET
                                               : NB_HANDBACK_NCCL);
    for (int i = 0; i < 3; i++)
        nb_handback_desk_put(desk[i]);
}
END_TEST

/* A second group of one rank, while calls are handed back: those stay NCCL's, and are the last ones. */
START_TEST(second_group)
{
    struct nb_handback_desk *desk = desk_of(0, 1, NB_HANDBACK_MACHINE);

    nb_handback_desk_attach(desk, 70, 1, 2);
    ck_assert_int_eq(ask(desk), NB_HANDBACK_COLLNET);
    verdict(desk, true);
    ck_assert_uint_eq(out.n, 1);
    ck_assert_int_eq(give(desk, NB_HANDBACK_ASK, 0), 0);
    ck_assert_uint_eq(out.sent[0].note.call, 1 + SLACK);
    nb_handback_desk_attach(desk, 71, 1, 2);
    for (int call = 2; call < 2 + SLACK; call++)
        ck_assert_int_eq(ask(desk), NB_HANDBACK_COLLNET);
    ck_assert_int_eq(ask(desk), NB_HANDBACK_WAIT);
    ck_assert_int_eq(give(desk, NB_HANDBACK_SET, 2 + SLACK), 0);
    for (int call = 0; call < PERIOD; call++)
        ck_assert_int_eq(ask(desk), NB_HANDBACK_NCCL);
    ck_assert_int_eq(ask(desk), NB_HANDBACK_COLLNET);
    verdict(desk, true);
    ck_assert_uint_eq(out.n, 0);
    ck_assert_int_eq(give(desk, NB_HANDBACK_ASK, 0), 0);
    ck_assert_uint_eq(out.sent[0].note.call, NB_HANDBACK_NONE);
    nb_handback_desk_put(desk);
}
END_TEST

START_TEST(out_of_range)
{
    struct nb_handback_desk *desk = nb_handback_desk_get(&ctx, comm_id, 0);

    ck_assert_int_eq(nb_handback_desk_join(desk, 0, NB_HANDBACK_MACHINE), -ERANGE);
    ck_assert_int_eq(nb_handback_desk_join(desk, NB_HANDBACK_RANKS + 1, NB_HANDBACK_MACHINE), -ERANGE);
    ck_assert_int_eq(ask(desk), NB_HANDBACK_COLLNET);
    verdict(desk, true);
    ck_assert_uint_eq(out.n, 0);
    ck_assert_int_eq(give(desk, NB_HANDBACK_ASK, 0), 0);
    ck_assert_uint_eq(out.sent[0].note.call, NB_HANDBACK_NONE);
    ck_assert(!nb_handback_desk_overdue(desk));
    nb_handback_desk_put(desk);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("handback_shared");
    TCase *t = tcase_create("shared");
    SRunner *r;
    int failed;

    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_loop_test(t, another_process_waits, 0, 2);
    tcase_add_test(t, others_come);
    tcase_add_test(t, one_too_many);
    tcase_add_test(t, left_behind);
    tcase_add_test(t, file_goes);
    tcase_add_loop_test(t, bad_file, 0, 4);
    tcase_add_test(t, dies_in_the_middle);
    tcase_add_loop_test(t, lower_group_leads, 0, 2);
    tcase_add_test(t, second_group);
    tcase_add_test(t, out_of_range);
    suite_add_tcase(s, t);
    r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
