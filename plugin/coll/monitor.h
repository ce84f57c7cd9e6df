/* SPDX-License-Identifier: Apache-2.0 */
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
#ifndef NIBBLE_COLL_MONITOR_H
#define NIBBLE_COLL_MONITOR_H

#include <stdbool.h>

struct nb_coll_comm;
struct nb_engine;
struct nb_monitor;

/* Begin, for the engine's node: NULL where neither setting names a folder, or where it cannot be done, which
 * is logged. The engine outlives it. */
struct nb_monitor *nb_monitor_open(struct nb_engine *engine);
/* Add a communicator once it is connected; remove it before it is freed, when the engine no longer uses it.
 * Any thread; both may wait while figures are copied, never for a file. `monitor` may be NULL. */
void nb_monitor_add(struct nb_monitor *monitor, struct nb_coll_comm *comm);
void nb_monitor_remove(struct nb_monitor *monitor, struct nb_coll_comm *comm);
/* End it, after a last writing of metrics: no communicator is left. Waits up to two seconds for its thread.
 * False when that is left behind in a call: it may still write its files, so that no other may be opened for
 * this node. NULL is allowed. */
bool nb_monitor_close(struct nb_monitor *monitor);

#endif
