/* SPDX-License-Identifier: Apache-2.0 */
/* Rows and columns of a grid. */
#include "coll/comm/grid.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    struct nb_grid mesh = {.rows = 1, .columns = nodes};
    int best = 0;

    if (schedule != NB_SCHEDULE_TWO_LEVEL && (schedule != NB_SCHEDULE_AUTO || nodes < NB_GRID_NODES))
        return mesh;
    if (group)
        return possible(nodes, group) ? (struct nb_grid){.rows = nodes / (int)group, .columns = (int)group}
                                      : mesh;
    for (int k = 2; k < nodes; k++)
        if (possible(nodes, k) && (!best || closer(nodes, k, best)))
            best = k;
    return best ? (struct nb_grid){.rows = nodes / best, .columns = best} : mesh;
}

void nb_grid_why_not(int nodes, enum nb_schedule_word schedule, int64_t group, char *why, size_t cap)
{
    const struct nb_grid g = nb_grid_choose(nodes, schedule, group);

    if (g.rows > 1)
        *why = '\0';
    else if (schedule != NB_SCHEDULE_TWO_LEVEL && schedule != NB_SCHEDULE_AUTO)
        snprintf(why, cap, "NIBBLE_GROUP has no effect with NIBBLE_SCHEDULE=%s", nb_schedule_words[schedule]);
    else if (group && nodes % group)
        snprintf(why, cap, "NIBBLE_GROUP=%lld does not divide %d", (long long)group, nodes);
    else if (group && !possible(nodes, group))
        snprintf(why, cap, "NIBBLE_GROUP=%lld is out of range (2 to %d nodes, 2 to %d rows)",
                 (long long)group, NB_GRID_MOST, NB_GRID_MOST);
    else if (schedule == NB_SCHEDULE_AUTO && nodes < NB_GRID_NODES)
        snprintf(why, cap, "NIBBLE_SCHEDULE=auto makes one from %d nodes on", NB_GRID_NODES);
    else
        snprintf(why, cap, "%d has no divisor that can be a row (2 to %d nodes, 2 to %d rows)", nodes,
                 NB_GRID_MOST, NB_GRID_MOST);
}

/* ---- sites ------------------------------------------------------------------------------------------- */

struct site {
    const char *name;
    size_t len; /* of the name, which a rate may follow */
    int first;  /* the lowest rank of its nodes */
    int nodes;
    int from; /* the place of its first node */
};

/* Fill sites[] in the order of their first ranks, of[] with the site of each node, and *trunk with the lowest
 * stated rate. Return their number, or -1 - r when node r has no name. */
static int find_sites(int nodes, const char (*name)[NB_SITE_BYTES], struct site *sites, int *of,
                      uint32_t *trunk)
{
    int n = 0;

    *trunk = 0;
    for (int r = 0; r < nodes; r++) {
        uint32_t mbps;
        size_t len;

        if (nb_params_site(name[r], &len, &mbps) || !len)
            return -1 - r;
        of[r] = 0;
        while (of[r] < n && (sites[of[r]].len != len || memcmp(sites[of[r]].name, name[r], len) != 0))
            of[r]++;
        if (of[r] == n)
            sites[n++] = (struct site){.name = name[r], .len = len, .first = r};
        if (mbps && (!*trunk || mbps < *trunk))
            *trunk = mbps;
        sites[of[r]].nodes++;
    }
    return n;
}

static int common_divisor(int a, int b)
{
    return b ? common_divisor(b, a % b) : a;
}

/* Return the number of nodes of a row, or 0 when no number divides each site's. */
static int site_columns(int nodes, const struct site *sites, int n, int64_t group)
{
    int common = 0;

    for (int s = 0; s < n; s++)
        common = common_divisor(sites[s].nodes, common);
    if (group)
        return common % group == 0 && possible(nodes, group) ? (int)group : 0;
    for (int k = common; k > 1; k--)
        if (common % k == 0 && possible(nodes, k))
            return k;
    return 0;
}

/* Write why sites make no rows: the sizes show a misspelt name. */
static void tell_sizes(const struct site *sites, int n, int64_t group, char *why, size_t cap)
{
    size_t len = (size_t)snprintf(why, cap, "no row of %s nodes fits into each site (",
                                  group ? "NIBBLE_GROUP" : "2 or more");

    for (int s = 0; s < n && len < cap; s++)
        len += (size_t)snprintf(why + len, cap - len, "%s%.*s: %d", s ? ", " : "", (int)sites[s].len,
                                sites[s].name, sites[s].nodes);
    if (len < cap)
        snprintf(why + len, cap - len, ")");
    else
        snprintf(why + cap - 5, 5, "...)");
}

/* Give the nodes their places: site after site, in each in the order of ranks. Return 0 or -ENOMEM. */
static int give_places(int nodes, struct site *sites, int n, const int *of, struct nb_grid *g)
{
    bool same = true;
    int next = 0;

    g->place = malloc((size_t)nodes * sizeof(*g->place));
    g->rank = malloc((size_t)nodes * sizeof(*g->rank));
    if (!g->place || !g->rank)
        return -ENOMEM;
    for (int s = 0; s < n; s++) {
        sites[s].from = next;
        next += sites[s].nodes;
    }
    for (int r = 0; r < nodes; r++) {
        g->place[r] = sites[of[r]].from++;
        g->rank[g->place[r]] = r;
        same &= g->place[r] == r;
    }
    if (same)
        nb_grid_free(g);
    return 0;
}

int nb_grid_of_sites(int nodes, const char (*site)[NB_SITE_BYTES], enum nb_schedule_word schedule,
                     int64_t group, struct nb_grid *grid, char *why, size_t cap)
{
    struct site *sites = calloc((size_t)nodes, sizeof(*sites));
    int *of = calloc((size_t)nodes, sizeof(*of)), named = 0, n, columns, ret = sites && of ? 0 : -ENOMEM;
    uint32_t trunk;

    *why = '\0';
    *grid = nb_grid_choose(nodes, schedule, group);
    for (int r = 0; r < nodes; r++)
        named += site[r][0] != 0;
    if (ret || !named)
        goto end;
    n = find_sites(nodes, site, sites, of, &trunk);
    if (n > 1) {
        grid->named = n;
        grid->trunk = trunk;
    }
    columns = n > 1 ? site_columns(nodes, sites, n, group) : 0;
    if (schedule != NB_SCHEDULE_AUTO && schedule != NB_SCHEDULE_TWO_LEVEL) {
        snprintf(why, cap, "NIBBLE_SCHEDULE=%s makes no rows", nb_schedule_words[schedule]);
    } else if (n < 0) {
        snprintf(why, cap, "node %d names no site", -1 - n);
    } else if (n == 1) {
        snprintf(why, cap, "all nodes are at one site (%.*s)", (int)sites[0].len, sites[0].name);
    } else if (!columns) {
        tell_sizes(sites, n, group, why, cap);
    } else if (schedule == NB_SCHEDULE_AUTO && columns < NB_GRID_SITE) {
        snprintf(why, cap,
                 "rows of %d nodes speed up only all-reduces (NIBBLE_SCHEDULE=two-level makes them)",
                 columns);
    } else {
        struct nb_grid rows = {
            .rows = nodes / columns, .columns = columns, .sites = n, .named = n, .trunk = trunk};

        ret = give_places(nodes, sites, n, of, &rows);
        if (ret)
            nb_grid_free(&rows);
        else
            *grid = rows;
    }
end:
    free(sites);
    free(of);
    return ret;
}

void nb_grid_free(struct nb_grid *grid)
{
    free(grid->place);
    free(grid->rank);
    grid->place = grid->rank = NULL;
}

/* ---- neighbors --------------------------------------------------------------------------------------- */

int nb_grid_connected(struct nb_grid g, int rank, int *neighbors)
{
    int n = 0;

    for (int r = 0; r < g.rows * g.columns; r++)
        if (r != rank && (nb_grid_same_row(g, r, rank) || nb_grid_same_column(g, r, rank)))
            neighbors[n++] = r;
    return n;
}

int nb_grid_next(struct nb_grid g, int at, int to, int to_owner)
{
    if (nb_grid_same_row(g, at, to) || nb_grid_same_column(g, at, to))
        return to;
    return to_owner ? nb_grid_node(g, nb_grid_row(g, at), nb_grid_column(g, to))
                    : nb_grid_node(g, nb_grid_row(g, to), nb_grid_column(g, at));
}
