/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The graph of waiting processes. A process waits for a node when the oldest open window of one of its
 * communicators has missed something of that node for a while. A waiting process may block others, in the
 * same or in another communicator. The process at the end of all chains is to blame.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hang.h"

/* Index all nodes of all reports. Of two reports of a node, take the first. */
static int index_all(struct index *x, const struct reports *all)
{
    for (int i = 0; i < all->n; i++)
        for (int k = 0; k < all->process[i].ncomms; k++) {
            const struct comm *c = &all->process[i].comm[k];
            int *at = index_at(x, c->id, c->group, c->node);
            if (!at)
                return -1;
            if (*at < 0)
                *at = i;
        }
    return 0;
}

/* Return the vertex of a communicator's node, and create it if need be. -1: out of memory. */
static int find_vertex(struct graph *g, struct index *x, const struct comm *c, const struct peer *peer)
{
    int *at = index_at(x, c->id, c->group, peer->node);
    struct vertex *v;

    if (!at)
        return -1;
    if (*at < 0) {
        v = list_more((void **)&g->vertex, g->nvertices, sizeof(*v));
        if (!v)
            return -1;
        *v = (struct vertex){.id = c->id, .group = c->group, .node = peer->node, .heard = -1};
        *at = g->nvertices++;
    }
    v = &g->vertex[*at];
    if (!v->name[0])
        snprintf(v->name, sizeof(v->name), "%s", peer->name);
    return *at;
}

/* Mark processes that a report last heard of before they wrote, or has not heard of since. */
static int hear(struct reports *all, struct index *x, const struct process *p, const struct comm *c)
{
    for (int k = 0; k < c->npeers; k++) {
        const int *i = index_at(x, c->id, c->group, c->peer[k].node);

        if (!i)
            return -1;
        /* Clocks of two machines may differ a little. */
        if (*i >= 0 && c->peer[k].silent > SILENT_S &&
            all->process[*i].time < p->time - c->peer[k].silent + SILENT_S / 2)
            all->process[*i].silent = true;
    }
    return 0;
}

static bool counts(const struct comm *c, const struct peer *peer, double least)
{
    return c->has_window && c->waited >= least && peer->missing;
}

static int add_edge(struct graph *g, int from, int to, const struct comm *c, const struct peer *peer)
{
    struct edge *edge = list_more((void **)&g->edge, g->nedges, sizeof(*edge));

    if (!edge)
        return -1;
    *edge = (struct edge){from, to, c, peer};
    g->nedges++;
    if (!g->vertex[to].comm)
        g->vertex[to].comm = c;
    return 0;
}

static int add_edges(struct graph *g, const struct reports *all, struct index *x, int i, double least)
{
    for (int k = 0; k < all->process[i].ncomms; k++) {
        const struct comm *c = &all->process[i].comm[k];
        for (int n = 0; n < c->npeers; n++) {
            int to;
            if (!counts(c, &c->peer[n], least))
                continue;
            to = find_vertex(g, x, c, &c->peer[n]);
            if (to < 0)
                return -1;
            if (g->vertex[to].heard < 0 || c->peer[n].silent < g->vertex[to].heard)
                g->vertex[to].heard = c->peer[n].silent;
            /* An old wait of a silent process is no evidence. */
            if (!all->process[i].silent && add_edge(g, i, to, c, &c->peer[n]))
                return -1;
        }
    }
    return 0;
}

static int make(struct graph *g, struct reports *all, struct index *x, double least)
{
    if (index_all(x, all))
        return -1;
    for (int i = 0; i < all->n; i++) {
        struct vertex *v = list_more((void **)&g->vertex, g->nvertices, sizeof(*v));
        if (!v)
            return -1;
        *v = (struct vertex){.process = &all->process[i], .heard = -1};
        g->nvertices++;
        for (int k = 0; k < all->process[i].ncomms; k++)
            if (hear(all, x, &all->process[i], &all->process[i].comm[k]))
                return -1;
    }
    for (int i = 0; i < all->n; i++)
        if (add_edges(g, all, x, i, least))
            return -1;
    return reach_count(g, all->n);
}

int graph_make(struct graph *g, struct reports *all, double least)
{
    struct index x = {0};
    int err;

    *g = (struct graph){0};
    err = make(g, all, &x, least);
    index_free(&x);
    return err;
}

void graph_free(struct graph *g)
{
    free(g->vertex);
    free(g->edge);
}

bool graph_is_culprit(const struct graph *g, int vertex)
{
    return g->vertex[vertex].waiting && !g->vertex[vertex].waits;
}
