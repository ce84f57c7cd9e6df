/* SPDX-License-Identifier: Apache-2.0 */
/* nibble-perf coll over machines: one process a node, started by a launcher, by --hosts, or by hand. */
#ifndef NIBBLE_TOOLS_PERF_MACHINES_H
#define NIBBLE_TOOLS_PERF_MACHINES_H

#include "perf.h"
#include "tools/doctor/launcher.h"

/* Run `job` as the node that `place` says; *rows, of the harness, is free with hx_report_free. Exit
 * status. */
int perf_machines_run(const struct hx_job *job, const struct place *place, struct hx_report **rows);

/* ---- The table that nccl-tests print ---- */

/* The lines before all rows, on node 0; collective: nodes tell their hosts. */
void perf_tests_head(struct hx_node *node, const struct perf_run *run);
/* A line, after the names of columns where the operation is another than that of the line before (`last`, ""
 * at first). */
void perf_tests_row(const struct perf_row *row, char last[24]);
/* The last lines: values that are wrong, and the average of `n` bus bandwidths whose sum is `busbw`. */
void perf_tests_tail(double wrong, double busbw, unsigned n);

#endif
