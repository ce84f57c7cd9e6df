/* SPDX-License-Identifier: Apache-2.0 */
/* The hang reports of a job's processes (plugin/coll/report/report.h has their format), and the graph of
 * waits. */
#ifndef NIBBLE_TOOLS_HANG_HANG_H
#define NIBBLE_TOOLS_HANG_HANG_H

#include <stdbool.h>
#include <stdint.h>

#define SILENT_S 5.0 /* heartbeats come every second */

struct peer {
    int node;
    bool missing, gone;
    double silent; /* seconds */
    char name[112];
};

struct comm {
    uint64_t id, group;
    int node, of;
    char state[16], name[64], cause[200];
    uint64_t submitted, begun, oldest, next_op;
    bool has_window;
    char function[24];
    uint64_t op;
    double waited;
    struct peer *peer; /* missing peers, or peers silent for more than SILENT_S */
    int npeers;
};

struct process {
    char *file;
    char host[64], job[64], why[16], version[64];
    int pid;
    double time;
    double still; /* seconds since a step of its engine */
    struct comm *comm;
    int ncomms;
    bool silent; /* no peer has heard of it since it wrote this report */
};

struct reports {
    struct process *process;
    int n;
};

/* Read one report and append it. Return NULL, or the fault of the file, valid until the next call. */
const char *reports_read(struct reports *all, const char *path);
void reports_free(struct reports *all);
/* Drop reports more than `seconds` older than the newest, or of another job (NULL: any). Return their
 * number. */
int reports_drop(struct reports *all, double seconds, const char *job);

/* ---- numbers by node of a communicator ----------------------------------------------------------------- */

struct index {
    struct index_slot {
        uint64_t id, group;
        int node, value;
        bool used;
    } * slot;
    size_t slots, n;
};

/* Return a place for the number of that node, -1 in a new one. Valid until the next call. NULL: out of
 * memory. */
int *index_at(struct index *x, uint64_t id, uint64_t group, int node);
void index_free(struct index *x);

/* Return room for one more element of `size` bytes behind `n`, zeroed, or NULL when out of memory. Only this
 * function grows the list. */
void *list_more(void **list, int n, size_t size);

/* ---- who waits for whom -------------------------------------------------------------------------------- */

/* A process, or a node without a report, that others wait for. */
struct vertex {
    const struct process *process; /* NULL: without a report */
    uint64_t id, group;            /* without a report: the node of this communicator */
    int node;
    char name[112];          /* the name that its peers use, "" until one does */
    const struct comm *comm; /* of a waiting process: the communicator in which others wait for it */
    bool waits, circle;      /* waits: for some vertex. circle: for one that waits for it, directly or not */
    int waiting;             /* processes that wait for it, directly or not */
    double waited, heard;    /* waited: the longest wait for it. heard: seconds since a peer last heard of
                                it, -1: unknown */
};

struct edge {
    int from, to; /* vertices */
    const struct comm *comm;
    const struct peer *peer;
};

struct graph {
    struct vertex *vertex; /* the processes come first, in their order */
    int nvertices;
    struct edge *edge; /* in the order of `from` */
    int nedges;
};

/* Compute the vertices' `waits`, `circle`, `waiting` and `waited` from the edges. Return 0, or -1 when out of
 * memory. */
int reach_count(struct graph *g, int nprocesses);

/* Build the graph of waits of `least` seconds or more. Return 0, or -1 when out of memory. */
int graph_make(struct graph *g, struct reports *all, double least);
void graph_free(struct graph *g);
/* Return whether others wait for a vertex that itself waits for no other. */
bool graph_is_culprit(const struct graph *g, int vertex);

#endif
