/* SPDX-License-Identifier: Apache-2.0 */
/* Reports on communicators: metrics, hang reports, lines of the log. */
#ifndef NIBBLE_COLL_REPORT_REPORT_H
#define NIBBLE_COLL_REPORT_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "coll/comm/stats.h"

struct nb_coll_comm;
struct nb_context;
struct nb_monitor;

/* Copy the counters. They are exact while no operation runs. */
void nb_coll_get_stats(struct nb_coll_comm *comm, struct nb_coll_stats *stats);

/* ---- monitor ----------------------------------------------------------------------------------------- */

/*
 * The monitor writes files while the job runs: metrics (NIBBLE_METRICS) and hang reports
 * (NIBBLE_HANG_REPORT). It also shows nibble-top the metrics (NIBBLE_LIVE). Its thread copies the state of
 * each communicator under its progress_lock, for microseconds, and does all work on files (base/periodic.h),
 * so that the engine and NCCL's threads never wait for a file system.
 *
 *   metrics       every NIBBLE_METRICS_PERIOD, and when the node's last communicator closes. The last figures
 *                 of up to 32 closed communicators stay
 *   hang report   when the engine has reported a late peer, a communicator fails, no window was handed over
 *                 or done for NIBBLE_LATE_REPORT, the engine makes no step, or the file nibble-report-now in
 *                 the folder has changed. A process has one file: a later report replaces an earlier one
 *
 * A file that cannot be written is reported once, with the setting, and tried again.
 */

/* Abstract Unix sockets at which processes show their metrics have this prefix (internal.h). */
#define NB_LIVE_PREFIX "nibble/"

/* Start the monitor of node `ctx`, whose engine counts its steps in *steps and outlives the monitor. Return
 * NULL when no setting wants it, or when it fails, which is logged. */
struct nb_monitor *nb_monitor_open(const struct nb_context *ctx, const _Atomic uint64_t *steps);
/* Add a connected communicator. Remove it when the engine has let go of it, before it is freed. Any thread.
 * Both may wait for a copy, never for a file. `monitor` may be NULL. */
void nb_monitor_add(struct nb_monitor *monitor, struct nb_coll_comm *comm);
void nb_monitor_remove(struct nb_monitor *monitor, struct nb_coll_comm *comm);
/* Stop the monitor after it has written metrics once more. All communicators must be removed. Waits up to two
 * seconds for its thread. Return false when the thread is stuck in a call and may still write its files: then
 * do not start another monitor for this node. `monitor` may be NULL. */
bool nb_monitor_close(struct nb_monitor *monitor);

/* ---- log --------------------------------------------------------------------------------------------- */

/* Log, at connect, the operations that will be compressed, and the reasons for the other operations. */
void nb_comm_log_plan(struct nb_coll_comm *comm);
/* Log a summary at close. */
void nb_comm_log_summary(struct nb_coll_comm *comm);

#endif
