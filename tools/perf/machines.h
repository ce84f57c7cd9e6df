/* SPDX-License-Identifier: Apache-2.0 */
/* nibble-perf coll over machines: one process a node, started by a launcher, by --hosts, or by hand. */
#ifndef NIBBLE_TOOLS_PERF_MACHINES_H
#define NIBBLE_TOOLS_PERF_MACHINES_H

#include "perf.h"
#include "tools/doctor/launcher.h"

/* Run `job` as the node of `place`. The caller frees *rows, of the harness, with hx_report_free. Return the
 * exit status. */
int perf_machines_run(const struct hx_job *job, const struct place *place, struct hx_report **rows);

/* ---- The table that nccl-tests print ---- */

/* Print the lines before all rows, on node 0. All nodes call, and send their host names. */
void perf_tests_head(struct hx_node *node, const struct perf_run *run);
/* Print a line. The names of columns precede it where the operation differs from the last line's (`last`, ""
 * at first). */
void perf_tests_row(const struct perf_row *row, char last[24]);
/* Print the last lines: the number of wrong values, and the average of `n` bus bandwidths whose sum is
 * `busbw`. */
void perf_tests_tail(double wrong, double busbw, unsigned n);

#endif
