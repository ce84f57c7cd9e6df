/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics of a process, as its text for Prometheus has them: plugin/coll/report/metrics.c. */
#ifndef NIBBLE_TOOLS_TOP_METRICS_H
#define NIBBLE_TOOLS_TOP_METRICS_H

#include <stdbool.h>

#define TOP_WAITED 16 /* nodes that others wait for, in the text */

struct top_comm {
    int serial, nodes, node;
    char id[24], name[64];
    double operations, coded, bytes, wire; /* of all collectives */
    double error, processor, waiting, waited_s;
    bool failed, closed, off;
    double checks; /* that found an open window */
    int nwaited;
    struct {
        int peer;
        double times;
    } waited[TOP_WAITED]; /* the most waited for first */
};

struct top_process {
    char pid[32], host[64], job[64], version[64];
    double time; /* of the text, in seconds since 1970 */
    int n;
    struct top_comm *comm;
};

/* Read a text, which this changes. Free the result with top_free. Return false when out of memory. */
bool top_read(char *text, struct top_process *out);
void top_free(struct top_process *process);

#endif
