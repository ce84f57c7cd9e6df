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
 * A full mesh is a grid of one row.
 */
#ifndef NIBBLE_COLL_COMM_GRID_H
#define NIBBLE_COLL_COMM_GRID_H

#include <stdint.h>

#include "base/params.h"

/* The largest number of rows, and of nodes in a row: it bounds the control messages that a node may owe a
 * peer at a time. */
#define NB_GRID_MOST 128
/* From this number of nodes on NIBBLE_SCHEDULE=auto makes a grid. */
#define NB_GRID_NODES 32

struct nb_grid {
    int rows, columns;
};

/* Return the grid of `nodes` nodes, by NIBBLE_SCHEDULE (`schedule`) and NIBBLE_GROUP (`group`: nodes of a
 * row, 0: to be chosen). Where a grid is impossible or unwanted, it has one row. It depends only on the
 * arguments, so it is the same on all nodes. */
struct nb_grid nb_grid_choose(int nodes, enum nb_schedule_word schedule, int64_t group);

static inline int nb_grid_row(struct nb_grid g, int rank)
{
    return rank / g.columns;
}
static inline int nb_grid_column(struct nb_grid g, int rank)
{
    return rank % g.columns;
}
static inline int nb_grid_node(struct nb_grid g, int row, int column)
{
    return row * g.columns + column;
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
