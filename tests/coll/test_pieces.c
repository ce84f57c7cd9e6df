/* SPDX-License-Identifier: Apache-2.0 */
/* A schedule finds the next piece for a peer, for the sum or to pass on directly. Compare it with a walk over
 * all pieces. */
#include <stdlib.h>

#include "base/context.h"
#include "coll/comm/comm.h"
#include "coll/comm/op.h"
#include "coll/schedule/cut.h"
#include "tests/suite.h"

static struct nb_context node;
static struct nb_coll_comm *comm;
static struct nb_coll_req *win; /* the operation's only window */
static struct nb_confirms confirms;

static void setup(void)
{
    comm = calloc(1, sizeof(*comm));
    node.params = nb_params_defaults();
    comm->ctx = &node;
    comm->win = calloc(NB_WINDOWS, sizeof(*comm->win));
    comm->submit.ops = calloc(1, sizeof(*comm->submit.ops));
    comm->begun = 1;
    win = comm->win;
    win->op = comm->submit.ops;
    win->state = NB_REQ_ACTIVE;
}

static void teardown(void)
{
    nb_grid_free(&comm->grid);
    free(comm->win);
    free(comm->submit.ops);
    free(comm);
}

/* Find the first segment at or behind `from` with this owner and relay by a walk over all. -1: any. Owner -2:
 * any but this node and the relay. */
static int walk(const struct nb_schedule_ops *ops, uint64_t from, int owner, int relay, struct nb_segment *p)
{
    for (from = from > win->off ? from : win->off; ops->segment_at(comm, win, from, p);
         from = p->off + p->len)
        if ((owner == -2 ? p->owner != comm->rank && p->owner != relay : p->owner == owner) &&
            (relay == -1 || p->relay == relay))
            return 1;
    return 0;
}

static void same(int found, const struct nb_segment *got, int there, const struct nb_segment *want)
{
    ck_assert_int_eq(found, there);
    if (found)
        ck_assert(got->off == want->off && got->len == want->len && got->owner == want->owner &&
                  got->relay == want->relay && got->number == want->number);
}

/* A schedule's piece for a peer equals the walk's. */
START_TEST(of_a_mesh)
{
    uint64_t state = 88172645463325252u;

    comm->unit = 4096;
    win->op->value = 4;
    for (int i = 0; i < 20000; i++) {
        struct nb_segment got, want;
        uint64_t from;
        int peer, found;

        for (int k = 0; k < 3; k++)
            state ^= k == 1 ? state >> 7 : state << (k ? 17 : 13);
        comm->nnodes = 3 + (int)(state >> 8 & 15);
        comm->grid = (struct nb_grid){.rows = 1, .columns = comm->nnodes};
        comm->rank = (int)(state >> 12 & 255) % comm->nnodes;
        peer = (comm->rank + 1 + (int)(state >> 20 & 255) % (comm->nnodes - 1)) % comm->nnodes;
        win->op->block = 4 * (1 + (state >> 28 & 32767));
        win->off = 4 * ((state >> 43) % (win->op->block / 4 * (uint64_t)comm->nnodes));
        win->bytes = 4 + 4 * ((state >> 35) % (win->op->block / 4 * (uint64_t)comm->nnodes - win->off / 4));
        win->sure = win->most = win->bytes;
        from = win->off + (state >> 5) % (win->bytes + 1) / 4 * 4;
        win->op->func = NB_FUNC_REDUCE_SCATTER;
        found = nb_schedule_two_hop_reduce.next_send(comm, win, peer, from, &got);
        same(found, &got, walk(&nb_schedule_two_hop_reduce, from, -2, peer, &want), &want);
        found = nb_schedule_two_hop_reduce.next_reduce(comm, win, from, &got);
        same(found, &got, walk(&nb_schedule_two_hop_reduce, from, -2, comm->rank, &want), &want);
        found = nb_schedule_two_hop_reduce.next_result(comm, win, peer, from, &got);
        same(found, &got, walk(&nb_schedule_two_hop_reduce, from, comm->rank, peer, &want), &want);
        win->op->func = NB_FUNC_ALL_REDUCE; /* its windows lie at 0 */
        win->off = 0;
        from %= win->bytes + 4;
        found = nb_schedule_direct.next_send(comm, win, peer, from, &got);
        same(found, &got, walk(&nb_schedule_direct, from, peer, -1, &want), &want);
    }
}
END_TEST

static int common_divisor(int a, int b)
{
    return b ? common_divisor(b, a % b) : a;
}

/* Make a grid. step > 0: ranks are spread over sites, which are the rows. */
static void on_grid(int rows, int columns, int step)
{
    const int n = rows * columns;
    char name[64][NB_SITE_BYTES] = {{0}}, why[64];

    comm->nnodes = n;
    nb_grid_free(&comm->grid);
    while (step && common_divisor(step, n) > 1)
        step++;
    for (int r = 0; step && r < n; r++)
        name[r][0] = (char)('a' + r * step % n / columns);
    ck_assert_int_eq(nb_grid_of_sites(n, (const char(*)[NB_SITE_BYTES])name, NB_SCHEDULE_TWO_LEVEL, columns,
                                      &comm->grid, why, sizeof(why)),
                     0);
    ck_assert(comm->grid.rows == rows && comm->grid.columns == columns);
    ck_assert(comm->grid.sites == (step ? rows : 0));
}

/* Find the first segment at or behind `from` for which `wanted` returns 1, by a walk over all. */
static int walk_grid(uint64_t from, int (*wanted)(const struct nb_segment *, int), int with,
                     struct nb_segment *p)
{
    for (from = from > win->off ? from : win->off; nb_schedule_two_level.segment_at(comm, win, from, p);
         from = p->off + p->len)
        if (wanted(p, with))
            return 1;
    return 0;
}

static int column_of_piece(const struct nb_segment *p)
{
    return nb_grid_column(comm->grid, p->relay >= 0 ? p->relay : p->owner);
}

static int goes_to(const struct nb_segment *p, int peer)
{
    if (win->op->func == NB_FUNC_ALL_GATHER || !nb_grid_same_row(comm->grid, peer, comm->rank))
        return 0;
    return column_of_piece(p) == nb_grid_column(comm->grid, peer) &&
           !(win->op->func == NB_FUNC_REDUCE_SCATTER && p->owner == comm->rank);
}

static int comes_back(const struct nb_segment *p, int peer)
{
    if (!nb_grid_same_row(comm->grid, peer, comm->rank))
        return 0;
    if (win->op->func == NB_FUNC_REDUCE_SCATTER)
        return p->owner == comm->rank && p->relay == peer;
    return column_of_piece(p) == nb_grid_column(comm->grid, peer) &&
           !(win->op->func == NB_FUNC_ALL_GATHER && p->owner == comm->rank);
}

static int is_of_column(const struct nb_segment *p, int column)
{
    return column_of_piece(p) == column;
}

static int is_of_owner(const struct nb_segment *p, int owner)
{
    return p->owner == owner;
}

/* Check that segments cover a window once, each within a block, with a finisher in the owner's row. */
static void covers(void)
{
    struct nb_segment p;
    uint64_t at = win->off;

    while (nb_schedule_two_level.segment_at(comm, win, at, &p)) {
        int good = p.off == at && p.len > 0 && p.len <= comm->unit;
        good &= p.relay < 0 || (p.relay != p.owner && nb_grid_same_row(comm->grid, p.relay, p.owner));
        good &= p.relay < 0 ? win->op->func != NB_FUNC_ALL_GATHER : win->op->func != NB_FUNC_ALL_REDUCE;
        if (win->op->func != NB_FUNC_ALL_REDUCE)
            good &= p.off / win->op->block == (uint64_t)p.owner &&
                    (p.off + p.len - 1) / win->op->block == (uint64_t)p.owner;
        ck_assert(good);
        at += p.len;
    }
    ck_assert_uint_eq(at, win->off + win->bytes);
}

/* The pieces of the schedule of grids equal the walk's, and the remaining pieces add up. */
START_TEST(of_a_grid)
{
    const enum nb_func func[] = {NB_FUNC_REDUCE_SCATTER, NB_FUNC_ALL_GATHER, NB_FUNC_ALL_REDUCE};
    uint64_t state = 88172645463325252u, bits[2];

    comm->unit = 4096;
    confirms = (struct nb_confirms){.words = 1, .bits = bits};
    comm->confirms = &confirms;
    win->op->value = 4;
    win->op->schedule = &nb_schedule_two_level;
    for (int i = 0; i < 3000; i++) {
        struct nb_segment got, want;
        uint64_t from, total, sum = 0;
        int peer, found;

        for (int k = 0; k < 3; k++)
            state ^= k == 1 ? state >> 7 : state << (k ? 17 : 13);
        on_grid(2 + (int)(state >> 8 & 3), 2 + (int)(state >> 10 & 3),
                i / 6 % 2 * (int)(1 + (state >> 50 & 15)));
        comm->rank = (int)(state >> 12 & 255) % comm->nnodes;
        peer = (comm->rank + 1 + (int)(state >> 20 & 255) % (comm->nnodes - 1)) % comm->nnodes;
        if (!nb_grid_same_row(comm->grid, peer, comm->rank))
            peer = nb_grid_node(comm->grid, nb_grid_row(comm->grid, peer),
                                nb_grid_column(comm->grid, comm->rank));
        win->op->func = func[i % 3];
        win->op->keep = NULL;
        win->op->block =
            4 * (1 + (state >> 28 & (i & 1 ? 511 : 32767))); /* also windows of many small blocks */
        total = win->op->block / 4 * (uint64_t)comm->nnodes;
        win->off = 4 * ((state >> 43) % total);
        win->bytes = 4 + 4 * ((state >> 35) % (total - win->off / 4));
        if (win->op->func == NB_FUNC_ALL_REDUCE)
            win->off = 0;
        win->sure = win->most = win->bytes;
        from = win->off + (state >> 5) % (win->bytes + 1) / 4 * 4;
        covers();
        found = nb_schedule_two_level.next_send(comm, win, peer, from, &got);
        same(found, &got, walk_grid(from, goes_to, peer, &want), &want);
        found = nb_schedule_two_level.next_result(comm, win, peer, from, &got);
        same(found, &got, walk_grid(from, comes_back, peer, &want), &want);
        found = nb_schedule_two_level.next_first_hop(comm, win, from, &got);
        if (win->op->func == NB_FUNC_ALL_GATHER)
            same(found, &got, walk_grid(from, is_of_owner, comm->rank, &want), &want);
        else
            ck_assert_int_eq(found, 0);
        found = nb_schedule_two_level.next_reduce(comm, win, from, &got);
        if (win->op->func == NB_FUNC_ALL_GATHER)
            ck_assert_int_eq(found, 0);
        else
            same(found, &got, walk_grid(from, is_of_column, nb_grid_column(comm->grid, comm->rank), &want),
                 &want);
        found = nb_schedule_two_level.next_forward(comm, win, from, &got);
        if (win->op->func == NB_FUNC_REDUCE_SCATTER)
            ck_assert_int_eq(found, 0);
        else
            same(found, &got, walk_grid(from, is_of_column, nb_grid_column(comm->grid, comm->rank), &want),
                 &want);
        for (from = win->off; nb_schedule_two_level.segment_at(comm, win, from, &want); from += want.len)
            if (want.owner == comm->rank || column_of_piece(&want) == nb_grid_column(comm->grid, comm->rank))
                sum += want.len;
        total = nb_schedule_two_level.begin(comm, win);
        ck_assert_uint_eq(total, win->op->func == NB_FUNC_REDUCE_SCATTER ? sum : win->bytes);
    }
}
END_TEST

SUITE_MAIN("pieces", FIXTURE(setup, teardown), TEST(of_a_mesh), TEST(of_a_grid))
