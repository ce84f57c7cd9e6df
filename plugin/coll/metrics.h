/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The figures of a process's communicators (figures.h) as text for others: the exposition format of
 * Prometheus, and lines of JSON. Both are made from one table of metrics (metrics.c); docs/operators.md says
 * what each means. Labels are called as NCCL Inspector calls them where it has them
 * (plugins/profiler/inspector/inspector_prom.cc of NCCL 2.30): slurm_job_id, node, gpu, comm_name, n_nodes,
 * nranks, collective.
 */
#ifndef NIBBLE_COLL_METRICS_H
#define NIBBLE_COLL_METRICS_H

#include <stdio.h>

#include "base/process_name.h"

struct nb_figures;

/* Where the figures come from. */
struct nb_metrics_process {
    char host[64];
    char job[64];                  /* SLURM_JOB_ID, or "unknown" */
    char process[NB_PROCESS_NAME]; /* the label "pid" */
    double time;                   /* of the copy, in seconds since 1970 */
};

/* Write all of `n` communicators to `out`, each metric with its help and type once. The calling thread's
 * locale has decimal points. */
void nb_metrics_prometheus(FILE *out, const struct nb_metrics_process *process,
                           const struct nb_figures *const *figures, unsigned n);

/* The same as lines, an object each: one for each communicator, each collective of it, each reason for raw,
 * each signature. */
void nb_metrics_json(FILE *out, const struct nb_metrics_process *process,
                     const struct nb_figures *const *figures, unsigned n);

#endif
