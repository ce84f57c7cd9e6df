/* SPDX-License-Identifier: Apache-2.0 */
/* The hang reports of a job's processes (plugin/coll/report/report.h has their format), and who waits for whom. */
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
    struct peer *peer; /* that are missing, or silent for more than SILENT_S */
    int npeers;
};

struct process {
    char *file;
    char host[64], job[64], why[16], version[64];
    int pid;
    double time;
    double still; /* seconds without a step of its engine */
    struct comm *comm;
    int ncomms;
    bool silent; /* has not been heard of since it wrote this */
};

struct reports {
    struct process *process;
    int n;
};

/* Read one report and append it: NULL, or what is wrong with the file, until the next call. */
const char *reports_read(struct reports *all, const char *path);
void reports_free(struct reports *all);
/* Drop those that are more than `seconds` older than the newest, or of another job (NULL: any): how many. */
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

/* The number of that node, to be read and set; -1 in a new one. Valid until the next call. NULL: no
 * memory. */
int *index_at(struct index *x, uint64_t id, uint64_t group, int node);
void index_free(struct index *x);

/* Room for one more element of `size` bytes behind `n`, zeroed; NULL: no memory. Only this makes the list
 * grow. */
void *list_more(void **list, int n, size_t size);

/* ---- who waits for whom -------------------------------------------------------------------------------- */

/* One that others wait for: a process, or a node of which there is no report. */
struct vertex {
    const struct process *process; /* NULL: no report */
    uint64_t id, group;            /* and then: the node of this communicator */
    int node;
    char name[112];          /* as its peers call it; "" before they do */
    const struct comm *comm; /* of a waiting process: in which others wait for it */
    bool waits, circle;      /* for somebody; for somebody that waits for it, directly or not */
    int waiting;             /* processes that wait for it, directly or not */
    double waited, heard;    /* the longest of these; seconds since a peer heard of it at last, -1: unknown */
};

struct edge {
    int from, to; /* vertices */
    const struct comm *comm;
    const struct peer *peer;
};

struct graph {
    struct vertex *vertex; /* the first are the processes, in their order */
    int nvertices;
    struct edge *edge; /* in the order of `from` */
    int nedges;
};

/* Vertices' `waits`, `circle`, `waiting` and `waited`, from the edges. 0, or -1: no memory. */
int reach_count(struct graph *g, int nprocesses);

/* Who has waited for whom for `least` seconds or more. 0, or -1: no memory. */
int graph_make(struct graph *g, struct reports *all, double least);
void graph_free(struct graph *g);
/* Whether a vertex is one that others wait for and that waits for nobody. */
bool graph_is_culprit(const struct graph *g, int vertex);

#endif
