/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kill switch: takes compression out of a running job, and puts it back, by the word in the
 * NIBBLE_CONTROL file. All functions belong to the engine thread.
 */
#ifndef NIBBLE_COLL_KILL_SWITCH_H
#define NIBBLE_COLL_KILL_SWITCH_H

#include <stdint.h>

struct nb_coll_comm;
struct nb_ctl;
struct nb_peer;

struct nb_kill_switch { /* of each communicator */
    int asked;          /* what this node's file said last (1: off), as told to node 0 */
    uint32_t epoch;     /* of the state in force */
    uint32_t answers;   /* node 0: nodes that have switched */
    uint64_t last_op;   /* node 0: the last operation from which a node switched */
};

/* Pass on what the file says, where that is news to the communicator. 0, or < 0 when the communicator has
 * failed. */
int nb_kill_switch_tick(struct nb_coll_comm *comm);
/* Handle a message of the kinds NB_CTL_SWITCH_ASK, _SWITCH and _SWITCHED from `peer`. 0, or < 0 when the
 * communicator has failed. */
int nb_kill_switch_control(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *ctl);

#endif
