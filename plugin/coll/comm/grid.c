/* SPDX-License-Identifier: Apache-2.0 */
/* Rows and columns of a grid. */
#include "coll/comm/grid.h"

/* Return 1 when a row may have this number of nodes. */
static int possible(int nodes, int64_t columns)
{
    return columns >= 2 && columns <= NB_GRID_MOST && columns < nodes && nodes % columns == 0 &&
           nodes / columns <= NB_GRID_MOST;
}

/*
 * Return 1 when rows of `columns` nodes suit better than rows of `than` nodes. Sums of rows go to the row of
 * their owner with 8 bits: (rows - 1) / columns of the values that go along rows with 4 bits. Gathered blocks
 * leave their owner's row (rows - 1) / (columns - 1) times. Rows of twice the square root, and a quarter of
 * that many rows, make both small, and cost a quarter more connections than a square. Of two divisors with
 * the same ratio to that optimum the larger one is better, as long as a window of 1 MiB has 64 KiB for each
 * column. With few rows the owner's row has hardly more to send than other rows, which wait for it
 * (docs/scale.md).
 */
static int closer(int nodes, int64_t columns, int64_t than)
{
    const int64_t both = columns * than; /* columns > than: the product of their ratios to the root */

    return both < 4 * (int64_t)nodes || (both == 4 * (int64_t)nodes && columns <= 16);
}

struct nb_grid nb_grid_choose(int nodes, enum nb_schedule_word schedule, int64_t group)
{
    struct nb_grid mesh = {1, nodes};
    int best = 0;

    if (schedule != NB_SCHEDULE_TWO_LEVEL && (schedule != NB_SCHEDULE_AUTO || nodes < NB_GRID_NODES))
        return mesh;
    if (group)
        return possible(nodes, group) ? (struct nb_grid){nodes / (int)group, (int)group} : mesh;
    for (int k = 2; k < nodes; k++)
        if (possible(nodes, k) && (!best || closer(nodes, k, best)))
            best = k;
    return best ? (struct nb_grid){nodes / best, best} : mesh;
}

int nb_grid_connected(struct nb_grid g, int rank, int *neighbors)
{
    int n = 0;

    for (int r = 0; r < g.rows; r++) {
        if (r != nb_grid_row(g, rank)) {
            neighbors[n++] = nb_grid_node(g, r, nb_grid_column(g, rank));
            continue;
        }
        for (int c = 0; c < g.columns; c++)
            if (c != nb_grid_column(g, rank))
                neighbors[n++] = nb_grid_node(g, r, c);
    }
    return n;
}

int nb_grid_next(struct nb_grid g, int at, int to, int to_owner)
{
    if (nb_grid_same_row(g, at, to) || nb_grid_same_column(g, at, to))
        return to;
    return to_owner ? nb_grid_node(g, nb_grid_row(g, at), nb_grid_column(g, to))
                    : nb_grid_node(g, nb_grid_row(g, to), nb_grid_column(g, at));
}
