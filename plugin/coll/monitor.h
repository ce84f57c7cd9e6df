/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a node writes about itself while the job runs: metrics (NIBBLE_METRICS) and hang reports
 * (NIBBLE_HANG_REPORT). A thread of its own copies what the communicators know, each under its progress_lock
 * for microseconds, and does everything that touches a file (base/chore.h); neither the engine nor NCCL's
 * threads wait for a file system.
 *
 *   metrics       every NIBBLE_METRICS_PERIOD, and when the node's last communicator closes. A communicator that has
 *                 closed keeps its last figures there, up to 32 of them
 *   hang report   when the engine has reported a late peer, when a communicator fails, when no window is handed over
 *                 or done, or the engine makes no step, for NIBBLE_LATE_REPORT, and when the file nibble-report-now in
 *                 the folder has changed. One file for each process: a later report takes the place of an earlier one
 *
 * What cannot be written is told once, with the setting, and tried again.
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
/* A communicator is connected; and it is about to be freed, the engine has let go of it. Any thread; they may
 * wait for copies to be made, never for a file. NULL is allowed. */
void nb_monitor_add(struct nb_monitor *monitor, struct nb_coll_comm *comm);
void nb_monitor_remove(struct nb_monitor *monitor, struct nb_coll_comm *comm);
/* End it, after a last writing of metrics: no communicator is left. Waits up to two seconds for its thread.
 * False when that is left behind in a call: it may still write its files, so that no other may be opened for
 * this node. NULL is allowed. */
bool nb_monitor_close(struct nb_monitor *monitor);

#endif
