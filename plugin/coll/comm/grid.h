/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which nodes are connected. A full mesh of N nodes has N - 1 connections of each class on every node, with
 * memory for each, and cuts a vector into N segments. From some number of nodes on both are too many. Then
 * the nodes form a grid, and each node is connected only with the nodes of its row and of its column
 * (coll/schedule/two_level.c describes how operations go there). A row is a group of consecutive ranks: nodes
 * that a launcher puts next to each other usually are consecutive.
 *
 *     row 0      0   1   2   3        node r is in row r / columns
 *     row 1      4   5   6   7             and column r % columns
 *
 * Where the nodes name their sites (NIBBLE_SITE), all nodes of a row are at one site, whatever their ranks.
 * So values stay inside a site, and only sums of rows cross between sites.
 *
 *     site a: 0, 2, 5       row 0      0   2   5
 *     site b: 1, 3, 4       row 1      1   3   4
 *
 * A full mesh is a grid of one row.
 */
#ifndef NIBBLE_COLL_COMM_GRID_H
#define NIBBLE_COLL_COMM_GRID_H

#include <stddef.h>
#include <stdint.h>

#include "base/params.h"

/* The largest number of rows, and of nodes in a row: it bounds the control messages that a node may owe a
 * peer at a time. */
#define NB_GRID_MOST 128
/* From this number of nodes on NIBBLE_SCHEDULE=auto makes a grid. */
#define NB_GRID_NODES 32
/* Nodes of a row from which on NIBBLE_SCHEDULE=auto follows sites. With two nodes reduce-scatters send as
 * many bytes between sites as without a grid, and one way after the other (docs/performance.md). */
#define NB_GRID_SITE 3

struct nb_grid {
    int rows, columns;
    int sites;      /* whose nodes the rows are. 0: rows do not follow sites */
    int named;      /* sites that the nodes name, whether rows follow them or not. 0 where one names none */
    uint32_t trunk; /* lowest rate that a site states, in Mbit/s. 0: none */
    /* [nodes] each: the place of a rank, row * columns + column, and the rank at a place. NULL: the same
     * number. Owned, see nb_grid_free. */
    int *place, *rank;
};

/* Return the grid of `nodes` nodes, by NIBBLE_SCHEDULE (`schedule`) and NIBBLE_GROUP (`group`: nodes of a
 * row, 0: to be chosen). Where a grid is impossible or unwanted, it has one row. It depends only on the
 * arguments, so it is the same on all nodes. */
struct nb_grid nb_grid_choose(int nodes, enum nb_schedule_word schedule, int64_t group);

/* Write why nb_grid_choose makes no grid of these arguments, or "" where it makes one. */
void nb_grid_why_not(int nodes, enum nb_schedule_word schedule, int64_t group, char *why, size_t cap);

/* Make the grid of nodes that name their sites: site[nodes] in order of ranks, "" for a node without a name.
 * A row has `group` nodes, or with 0 as many as possible. Their number divides the number of nodes of every
 * site, and is NB_GRID_SITE at least with NB_SCHEDULE_AUTO. Where names make no rows, *grid is as
 * nb_grid_choose says, and `why` tells the reason. It is "" where no node has a name. The grid depends only
 * on the arguments, as above. Return 0, or -ENOMEM with *grid as nb_grid_choose says. */
int nb_grid_of_sites(int nodes, const char (*site)[NB_SITE_BYTES], enum nb_schedule_word schedule,
                     int64_t group, struct nb_grid *grid, char *why, size_t cap);
/* Free the arrays of a grid, which stays valid as a grid of consecutive ranks. */
void nb_grid_free(struct nb_grid *grid);

static inline int nb_grid_place(struct nb_grid g, int rank)
{
    return g.place ? g.place[rank] : rank;
}
static inline int nb_grid_row(struct nb_grid g, int rank)
{
    return nb_grid_place(g, rank) / g.columns;
}
static inline int nb_grid_column(struct nb_grid g, int rank)
{
    return nb_grid_place(g, rank) % g.columns;
}
static inline int nb_grid_node(struct nb_grid g, int row, int column)
{
    const int place = row * g.columns + column;

    return g.rank ? g.rank[place] : place;
}
static inline int nb_grid_same_row(struct nb_grid g, int a, int b)
{
    return nb_grid_row(g, a) == nb_grid_row(g, b);
}
static inline int nb_grid_same_column(struct nb_grid g, int a, int b)
{
    return nb_grid_column(g, a) == nb_grid_column(g, b);
}

/* Write the ranks of the nodes that `rank` is connected with, in order, into neighbors[rows + columns - 2].
 * Return their number. */
int nb_grid_connected(struct nb_grid g, int rank, int *neighbors);

/* Return the next node, seen from node `at`, on the way of a control message from `from` to `to`. It is `to`
 * itself if `at` is connected with it. A message to an owner (`to_owner`) first goes along its sender's row,
 * a message from an owner along its sender's column. So both pass the same node: the node in the owner's
 * column and the other node's row. */
int nb_grid_next(struct nb_grid g, int at, int to, int to_owner);

#endif
