/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Count the processes that wait for each vertex, directly or not, and their longest wait. Vertices that wait
 * for each other form a circle and count as one (Tarjan, "Depth-first search and linear graph algorithms",
 * 1972, with an explicit stack). The circles have an order, in which each passes on the set of its waiters. V
 * vertices and E edges take E V / 64 steps.
 */
#include <stdlib.h>
#include <string.h>

#include "hang.h"

struct walk {
    const struct graph *g;
    int *first;        /* [vertices + 1]: edges of a vertex, in the order of `from` */
    int *number, *low; /* of a vertex: order of its first visit (0: unvisited), and the lowest that it
                          reaches */
    int *next;         /* next edge of a vertex */
    int *path, *stack; /* vertices on the way here, and visited ones whose circle is still incomplete */
    int *circle;       /* of a vertex, -1: unknown. A circle comes after all circles that it waits for */
    int met, depth, height, circles;
};

static int enter(struct walk *w, int v)
{
    w->number[v] = w->low[v] = ++w->met;
    w->next[v] = w->first[v];
    w->path[w->depth++] = v;
    w->stack[w->height++] = v;
    return v;
}

static void leave(struct walk *w, int v)
{
    int u;

    if (w->low[v] == w->number[v]) {
        do
            w->circle[u = w->stack[--w->height]] = w->circles;
        while (u != v);
        w->circles++;
    }
    if (--w->depth > 0) {
        const int to = w->path[w->depth - 1];
        if (w->low[v] < w->low[to])
            w->low[to] = w->low[v];
    }
}

static void find_circles(struct walk *w)
{
    for (int root = 0; root < w->g->nvertices; root++) {
        if (!w->number[root])
            enter(w, root);
        while (w->depth > 0) {
            const int v = w->path[w->depth - 1];
            if (w->next[v] == w->first[v + 1]) {
                leave(w, v);
                continue;
            }
            const int to = w->g->edge[w->next[v]++].to;
            if (!w->number[to])
                enter(w, to);
            else if (w->circle[to] < 0 && w->number[to] < w->low[v])
                w->low[v] = w->number[to];
        }
    }
}

static int bits(const uint64_t *set, size_t words)
{
    int n = 0;

    for (size_t i = 0; i < words; i++)
        n += __builtin_popcountll(set[i]);
    return n;
}

/* List vertices in the order of their circles, beginning with those that block no other. */
static void order(const struct walk *w, int *count, int *list)
{
    memset(count, 0, ((size_t)w->circles + 1) * sizeof(*count));
    for (int v = 0; v < w->g->nvertices; v++)
        count[w->circles - 1 - w->circle[v] + 1]++;
    for (int c = 0; c < w->circles; c++)
        count[c + 1] += count[c];
    for (int v = 0; v < w->g->nvertices; v++)
        list[count[w->circles - 1 - w->circle[v]]++] = v;
}

/* Complete one circle's members. Their waiters are known. `set` holds the circle's waiting processes. */
static void tell(const struct walk *w, struct graph *g, const int *member, int n, uint64_t *sets,
                 size_t words, double *handed, int nprocesses)
{
    const int c = w->circle[member[0]];
    uint64_t *set = sets + (size_t)c * words;
    double waited = handed[c]; /* of the circle's waiters, then of the circle itself */
    bool circle = n > 1;

    for (int i = 0; i < n; i++) {
        const int v = member[i];
        if (v < nprocesses)
            set[v / 64] |= 1ull << v % 64;
        for (int e = w->first[v]; e < w->first[v + 1]; e++) {
            circle |= g->edge[e].to == v;
            if (g->edge[e].comm->waited > waited)
                waited = g->edge[e].comm->waited;
        }
    }
    const int all = bits(set, words);
    for (int i = 0; i < n; i++) {
        struct vertex *v = &g->vertex[member[i]];
        v->waiting = all - (member[i] < nprocesses);
        v->waited = circle ? waited : handed[c];
        v->circle = circle;
        v->waits = w->first[member[i]] < w->first[member[i] + 1];
    }
    for (int i = 0; i < n; i++)
        for (int e = w->first[member[i]]; e < w->first[member[i] + 1]; e++) {
            const int to = w->circle[g->edge[e].to];
            uint64_t *other = sets + (size_t)to * words;
            if (to == c)
                continue;
            for (size_t k = 0; k < words; k++)
                other[k] |= set[k];
            if (waited > handed[to])
                handed[to] = waited;
        }
}

int reach_count(struct graph *g, int nprocesses)
{
    const size_t n = (size_t)g->nvertices, words = ((size_t)nprocesses + 63) / 64;
    int *room = calloc(8 * (n + 1), sizeof(*room));
    struct walk w = {.g = g};
    uint64_t *sets = NULL;
    double *handed = NULL;

    if (room) {
        int **part[] = {&w.first, &w.number, &w.low, &w.next, &w.path, &w.stack, &w.circle};
        for (int i = 0; i < 7; i++)
            *part[i] = room + (size_t)i * (n + 1);
        for (int e = 0; e < g->nedges; e++)
            w.first[g->edge[e].from + 1]++;
        for (size_t v = 0; v < n; v++) {
            w.first[v + 1] += w.first[v];
            w.circle[v] = -1;
        }
        find_circles(&w);
        sets = calloc((size_t)w.circles * words + 1, sizeof(*sets));
        handed = calloc((size_t)w.circles + 1, sizeof(*handed));
    }
    if (sets && handed) {
        int *list = w.path, *end = w.number;
        order(&w, end, list);
        for (int i = 0, c = 0; c < w.circles; i = end[c++])
            tell(&w, g, list + i, end[c] - i, sets, words, handed, nprocesses);
    }
    const bool good = sets && handed;
    free(room);
    free(sets);
    free(handed);
    return good ? 0 : -1;
}
