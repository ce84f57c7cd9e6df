/* SPDX-License-Identifier: Apache-2.0 */
/* The checks between nodes. */
#ifndef NIBBLE_TOOLS_DOCTOR_NODES_H
#define NIBBLE_TOOLS_DOCTOR_NODES_H

#include "doctor.h"
#include "launcher.h"

/*
 * After doctor_local: meet the other nodes, compare, connect all pairs, measure. Node 0's report is of all
 * nodes from then on. On other nodes it stays empty, and *shown is false. The function ends within `limit`
 * seconds, or twice as many where nodes hang one after the other. Return the worst status of the whole job,
 * the same on all nodes that node 0 reached, and STATUS_PROBLEM on the others.
 */
enum status doctor_nodes(struct doctor *d, const struct place *place, double limit, bool *shown);

#endif
