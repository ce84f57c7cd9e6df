/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a node's link and codec are, which nodes tell each other when they vote (ballot.c), and what follows
 * from the slowest of them: from which size on sums are coded (policy/reckon.h). For the thread that
 * connects.
 */
#ifndef NIBBLE_COLL_FACTS_H
#define NIBBLE_COLL_FACTS_H

#include "policy/reckon.h"

struct nb_coll_comm;

/* Of this node: the nominal rate of the communicator's network device, or what NIBBLE_LINK_MBPS says; its
 * codec. */
struct nb_reckon_facts nb_facts_of_node(const struct nb_coll_comm *comm);

/* All nodes have voted, and these are the slowest's: reckon. */
void nb_facts_settle(struct nb_coll_comm *comm, const struct nb_reckon_facts *slowest);

struct nb_coll_stats;

/* At close, for each sum that was left to the reckoning: whether what was reckoned came true, by what this
 * node saw. */
void nb_facts_log_seen(const struct nb_coll_comm *comm, const struct nb_coll_stats *stats);

/* One line: what follows for sums that settings leave to the reckoning, and why. */
void nb_facts_log(const struct nb_coll_comm *comm);

#endif
