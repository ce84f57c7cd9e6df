/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who waits for whom. A process waits for a node if the oldest open window of one of its communicators misses
 * something of it, and that for a while. Who waits may itself be waited for, in the same or in another communicator:
 * whoever is at the end of all chains is to blame.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hang.h"

#define SILENT_S 5.0 /* heartbeats come every second */

static int find_process(const struct reports *all, const struct comm *c, int node)
{
    for (int i = 0; i < all->n; i++)
        for (int k = 0; k < all->process[i].ncomms; k++) {
            const struct comm *other = &all->process[i].comm[k];
            if (other->id == c->id && other->group == c->group && other->node == node)
                return i;
        }
    return -1;
}

/* The node of a communicator as a vertex; made if need be. -1: no memory. */
static int find_vertex(struct graph *g, const struct reports *all, const struct comm *c,
                       const struct peer *peer)
{
    int i = find_process(all, c, peer->node);
    struct vertex *grown;

    if (i < 0)
        for (i = all->n; i < g->nvertices; i++)
            if (g->vertex[i].id == c->id && g->vertex[i].group == c->group && g->vertex[i].node == peer->node)
                break;
    if (i == g->nvertices) {
        grown = realloc(g->vertex, ((size_t)i + 1) * sizeof(*grown));
        if (!grown)
            return -1;
        g->vertex = grown;
        g->vertex[g->nvertices++] =
            (struct vertex){.id = c->id, .group = c->group, .node = peer->node, .heard = -1};
    }
    if (!g->vertex[i].name[0])
        snprintf(g->vertex[i].name, sizeof(g->vertex[i].name), "%s", peer->name);
    return i;
}

/* What a report says of a process that was heard of last before it was written, or not since. */
static void hear(struct reports *all, const struct process *p, const struct comm *c)
{
    for (int k = 0; k < c->npeers; k++) {
        const int i = find_process(all, c, c->peer[k].node);

        /* Clocks of two machines may differ a little. */
        if (i >= 0 && c->peer[k].silent > SILENT_S &&
            all->process[i].time < p->time - c->peer[k].silent + SILENT_S / 2)
            all->process[i].silent = true;
    }
}

static bool counts(const struct comm *c, const struct peer *peer, double least)
{
    return c->has_window && c->waited >= least && peer->missing;
}

static int add_edge(struct graph *g, int from, int to, const struct comm *c, const struct peer *peer)
{
    struct edge *grown = realloc(g->edge, ((size_t)g->nedges + 1) * sizeof(*grown));

    if (!grown)
        return -1;
    g->edge = grown;
    g->edge[g->nedges++] = (struct edge){from, to, c, peer};
    if (!g->vertex[to].comm)
        g->vertex[to].comm = c;
    return 0;
}

static bool waits(const struct graph *g, int vertex)
{
    for (int e = 0; e < g->nedges; e++)
        if (g->edge[e].from == vertex)
            return true;
    return false;
}

/* Mark in reached[] all that `from` waits for, directly or not. */
static void follow(const struct graph *g, int from, bool *reached)
{
    bool moved = true;

    for (int e = 0; e < g->nedges; e++)
        if (g->edge[e].from == from)
            reached[g->edge[e].to] = true;
    while (moved) {
        moved = false;
        for (int e = 0; e < g->nedges; e++)
            if (reached[g->edge[e].from] && !reached[g->edge[e].to])
                moved = reached[g->edge[e].to] = true;
    }
}

static int count_waiting(struct graph *g, int nprocesses)
{
    bool *reached = calloc((size_t)g->nvertices + 1, sizeof(*reached));

    if (!reached)
        return -1;
    for (int i = 0; i < nprocesses; i++) {
        double waited = 0;

        memset(reached, 0, (size_t)g->nvertices * sizeof(*reached));
        follow(g, i, reached);
        for (int e = 0; e < g->nedges; e++)
            if (g->edge[e].from == i && g->edge[e].comm->waited > waited)
                waited = g->edge[e].comm->waited;
        for (int v = 0; v < g->nvertices; v++) {
            g->vertex[v].waiting += reached[v] && v != i;
            if (reached[v] && waited > g->vertex[v].waited)
                g->vertex[v].waited = waited;
        }
    }
    free(reached);
    return 0;
}

int graph_make(struct graph *g, struct reports *all, double least)
{
    *g = (struct graph){.vertex = calloc((size_t)all->n + 1, sizeof(*g->vertex)), .nvertices = all->n};
    if (!g->vertex)
        return -1;
    for (int i = 0; i < all->n; i++) {
        g->vertex[i] = (struct vertex){.process = &all->process[i], .heard = -1};
        for (int k = 0; k < all->process[i].ncomms; k++)
            hear(all, &all->process[i], &all->process[i].comm[k]);
    }
    for (int i = 0; i < all->n; i++)
        for (int k = 0; k < all->process[i].ncomms; k++) {
            const struct comm *c = &all->process[i].comm[k];
            for (int n = 0; n < c->npeers; n++) {
                int to;
                if (!counts(c, &c->peer[n], least))
                    continue;
                to = find_vertex(g, all, c, &c->peer[n]);
                if (to < 0)
                    return -1;
                if (g->vertex[to].heard < 0 || c->peer[n].silent < g->vertex[to].heard)
                    g->vertex[to].heard = c->peer[n].silent;
                /* What a silent one waited for before says nothing. */
                if (!all->process[i].silent && add_edge(g, i, to, c, &c->peer[n]))
                    return -1;
            }
        }
    return count_waiting(g, all->n);
}

void graph_free(struct graph *g)
{
    free(g->vertex);
    free(g->edge);
}

bool graph_is_culprit(const struct graph *g, int vertex)
{
    return g->vertex[vertex].waiting && !waits(g, vertex);
}

bool graph_in_circle(const struct graph *g, int vertex)
{
    bool *reached = calloc((size_t)g->nvertices + 1, sizeof(*reached)), in = false;

    if (reached) {
        follow(g, vertex, reached);
        in = reached[vertex];
    }
    free(reached);
    return in;
}
