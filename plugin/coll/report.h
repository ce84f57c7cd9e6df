/* SPDX-License-Identifier: Apache-2.0 */
/* What a communicator logs of itself. */
#ifndef NIBBLE_COLL_REPORT_H
#define NIBBLE_COLL_REPORT_H

struct nb_coll_comm;

/* At connect: what will be compressed, and why not the rest. */
void nb_comm_log_plan(struct nb_coll_comm *comm);
/* At close: what was done. */
void nb_comm_log_summary(struct nb_coll_comm *comm);

#endif
