/* SPDX-License-Identifier: Apache-2.0 */
/* What a communicator tells of itself: metrics, hang reports, and lines of the log. */
#ifndef NIBBLE_COLL_REPORT_REPORT_H
#define NIBBLE_COLL_REPORT_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "coll/comm/stats.h"

struct nb_coll_comm;
struct nb_context;
struct nb_monitor;

/* A copy of the counters; exact when no operation is running. */
void nb_coll_get_stats(struct nb_coll_comm *comm, struct nb_coll_stats *stats);

/* ---- monitor ----------------------------------------------------------------------------------------- */

/*
 * What a node writes about itself while the job runs: metrics (NIBBLE_METRICS) and hang reports
 * (NIBBLE_HANG_REPORT). A thread of its own copies what the communicators know, each under its progress_lock
 * for microseconds, and does everything that touches a file (base/chore.h); neither the engine nor NCCL's
 * threads wait for a file system.
 *
 *   metrics       every NIBBLE_METRICS_PERIOD, and when the node's last communicator closes. A closed
 *                 communicator keeps its last figures there, up to 32 of them
 *   hang report   when the engine has reported a late peer, when a communicator fails, when for
 *                 NIBBLE_LATE_REPORT no window was handed over or done, or the engine made no step, and when
 *                 the file nibble-report-now in the folder has changed. One file for each process: a later
 *                 report replaces an earlier one
 *
 * A file that cannot be written is reported once, with the setting, and tried again.
 */

/* Begin, for the node `ctx`, whose engine counts its steps in *steps: NULL where neither setting names a folder, or where it cannot be done, which
 * is logged. The engine outlives it. */
struct nb_monitor *nb_monitor_open(const struct nb_context *ctx, const _Atomic uint64_t *steps);
/* Add a communicator once it is connected; remove it before it is freed, when the engine no longer uses it.
 * Any thread; both may wait while figures are copied, never for a file. `monitor` may be NULL. */
void nb_monitor_add(struct nb_monitor *monitor, struct nb_coll_comm *comm);
void nb_monitor_remove(struct nb_monitor *monitor, struct nb_coll_comm *comm);
/* End it, after a last writing of metrics: no communicator is left. Waits up to two seconds for its thread.
 * False when that is left behind in a call: it may still write its files, so that no other may be opened for
 * this node. NULL is allowed. */
bool nb_monitor_close(struct nb_monitor *monitor);

/* ---- log --------------------------------------------------------------------------------------------- */

/* What a communicator logs of itself. */

/* At connect: what will be compressed, and why not the rest. */
void nb_comm_log_plan(struct nb_coll_comm *comm);
/* At close: what was done. */
void nb_comm_log_summary(struct nb_coll_comm *comm);

#endif
