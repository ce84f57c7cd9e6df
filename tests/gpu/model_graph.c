/* SPDX-License-Identifier: Apache-2.0 */
/* Events of the model, and graphs: capture streams and replay their work. See model.h. */
#include "model_inside.h"

#include <stdlib.h>
#include <string.h>

struct node { /* a node of a graph */
    struct op op;
    struct stream *stream;
    int before, event; /* nodes, -1: none */
};

struct model_graph {
    struct node *node;
    int n, cap;
    struct stream *origin;
    struct stream *member[16];
    int last[16]; /* last node of each member, or -1 */
    int members;
};

static int member(struct model_graph *g, struct stream *s)
{
    for (int i = 0; i < g->members; i++)
        if (g->member[i] == s)
            return i;
    if (g->members == 16)
        model_wrong("a capture of too many streams");
    g->member[g->members] = s;
    g->last[g->members] = -1;
    return g->members++;
}

void model_put_in_graph(struct model_graph *g, struct stream *s, struct op *op, int event)
{
    const int m = member(g, s);

    if (g->n == g->cap) {
        struct node *old = g->node;
        g->cap = g->cap ? 2 * g->cap : 64;
        g->node = model_keep((size_t)g->cap * sizeof(*g->node));
        if (old)
            memcpy(g->node, old, (size_t)g->n * sizeof(*old));
    }
    g->node[g->n] = (struct node){*op, s, g->last[m], event};
    g->last[m] = g->n++;
    model_give_op(op);
}

nb_cu_event model_event(void)
{
    return model_keep(sizeof(struct model_event));
}

void model_record(nb_cu_event event, nb_cu_stream stream)
{
    struct model_event *e = event;
    struct stream *s = stream;

    model_call("cuEventRecord", 1);
    if (model.records_block)
        model_put(s, model_new_op(s, OP_RECORD));
    e->capture = s->capture;
    if (!s->capture)
        model_join_branches(s);
    if (s->capture)
        e->captured_at = s->capture->last[member(s->capture, s)];
    else
        e->at = s->last;
}

void model_stream_waits(nb_cu_stream stream, nb_cu_event event)
{
    struct model_event *e = event;
    struct stream *s = stream;
    struct op *op;

    model_call("cuStreamWaitEvent", 1);
    if (e->capture) {
        if (s->capture && s->capture != e->capture)
            model_wrong("a stream that would be in two captures");
        s->capture = e->capture;
        model_put_in_graph(s->capture, s, model_new_op(s, OP_WAIT), e->captured_at);
        return;
    }
    op = model_new_op(s, OP_WAIT);
    op->event = e->at;
    model_put(s, op);
}

void model_capture(nb_cu_stream stream)
{
    struct model_graph *g = model_keep(sizeof(*g));
    struct stream *s = stream;

    g->origin = s;
    s->capture = g;
    member(g, s);
}

struct model_graph *model_capture_end(nb_cu_stream stream)
{
    struct model_graph *g = ((struct stream *)stream)->capture;
    char joined[16] = {1};

    for (int i = g->n - 1; i >= 0; i--) { /* backwards: the nodes for which the origin waits, and the nodes
                                             for which these wait */
        const int m = member(g, g->node[i].stream);
        if (joined[m] && g->node[i].event >= 0)
            joined[member(g, g->node[g->node[i].event].stream)] = 1;
    }
    for (int m = 0; m < g->members; m++) {
        g->member[m]->capture = NULL;
        if (!joined[m] && g->last[m] >= 0)
            model_wrong("a capture that ends with work that is not joined");
    }
    return g;
}

/* Return whether a node is only an edge of the graph that nothing in its branch follows, or that comes from
 * the graph's beginning. */
static int is_edge(const struct model_graph *g, int node)
{
    int i = node + 1;

    if (g->node[node].op.what != OP_WAIT)
        return 0;
    while (i < g->n && g->node[i].stream != g->node[node].stream)
        i++;
    return i == g->n || g->node[node].event < 0;
}

void model_replay(struct model_graph *g, nb_cu_stream stream)
{
    struct stream *s = stream, *lane[16];
    struct op **made = calloc((size_t)g->n + 1, sizeof(*made));
    struct reference *ref = calloc((size_t)g->n + 1, sizeof(*ref));
    struct reference last[16] = {{0}};
    unsigned first = 0;

    if (!made || !ref)
        abort();
    model_call("cuGraphLaunch", 1);
    model_join_branches(s);
    for (int m = 0; m < g->members; m++)
        lane[m] = model_make_stream(model_gpu_number(s->gpu), g->member[m]->priority, 0);
    for (int i = 0; i < g->n; i++) {
        const struct node *n = &g->node[i];
        if (is_edge(g, i)) {
            ref[i] = n->before >= 0 ? ref[n->before] : s->last;
            continue;
        }
        struct op *op = model_take_op(s->gpu);
        uint8_t *where = op->where;
        *op = n->op;
        op->where = where;
        op->stream = lane[member(g, n->stream)];
        op->before = n->before >= 0 ? ref[n->before] : s->last;
        op->event = n->event >= 0 ? ref[n->event] : (struct reference){NULL, 0};
        model_number(op);
        model_refer(op);
        made[i] = op;
        ref[i] = (struct reference){op, op->number};
        last[member(g, n->stream)] = ref[i];
    }
    if (model.branches == 3)
        first = (unsigned)model_random((uint64_t)g->members);
    if (model.branches == 0) {
        for (int i = 0; i < g->n; i++)
            if (made[i])
                model_queue(made[i], made[i]->stream->queue);
    } else {
        for (int m = 0; m < g->members; m++)
            for (int i = 0; i < g->n; i++)
                if (made[i] &&
                    made[i]->stream ==
                        lane[model.branches == 2 ? g->members - 1 - m : (m + (int)first) % g->members])
                    model_queue(made[i], made[i]->stream->queue);
    }
    for (int m = 0; m < g->members; m++)
        s->branch[s->branches++] = last[m];
    free(made);
    free(ref);
}
