/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conditions that must hold, whatever happens:
 *   Results equal data.h's, and are the same on all nodes.
 *   A communicator with lateness as its only fault completes all operations, without a warning.
 *   A communicator with a fatal fault fails on every living node within the documented time, and the log
 *   names a node that the fault hit. A node that has finished with the communicator need not fail.
 *   Connecting ends within NIBBLE_CONNECT_TIMEOUT from its beginning, and a node that declines names a node
 *   that a fault hit. Where settings differ that must agree, all nodes decline at once.
 *   Bits that flip in a payload which settings leave without a check may change results, and results only.
 *   A run without further events has completed all its work.
 */
#ifndef NIBBLE_TESTS_SIM_JUDGE_H
#define NIBBLE_TESTS_SIM_JUDGE_H

#include "tests/sim/sim.h"

struct sim_judge;
struct sim_proxy;

/* A node may blame a node that has failed before it, for any reason. */
extern bool sim_judge_lenient;

/* A fault's effect on communicators. comm -1: all that contain one of both nodes. */
enum sim_verdict {
    SIM_SURVIVES, /* all goes on as before */
    SIM_MENDED,   /* at most a warning: damaged bytes are sent again */
    SIM_MAY_FAIL, /* either way */
    /* Every member fails, unless it has finished with the communicator: */
    SIM_FATAL_IN_TURN, /* when a node reads a message, and so not while the message's operation waits for a
                          late node */
    SIM_FATAL_IN_USE,  /* when a node uses a connection */
    SIM_FATAL
};
void sim_judge_fault(struct sim *s, enum sim_verdict verdict, int comm, int a, int b, int64_t within);
/* Two nodes are delayed while they connect. A node that waits for them in one communicator comes late to the
 * next, where its peers wait for it, perhaps too long. */
void sim_judge_delay(struct sim *s, int a, int b);
/* A payload without a check was damaged: the communicator's results carry no promise from now on. */
void sim_judge_unchecked(struct sim *s, int comm);
/* A message of the communicator was damaged. */
void sim_judge_damage(int comm);
/* Return whether the communicator's results still carry a promise. */
bool sim_judge_promises(int comm);
/* SIM_DUE. */
void sim_judge_due(struct sim *s, const struct sim_event *event);
/* A node has logged a warning. */
void sim_judge_warning(struct sim *s, int node, const char *text);
/* After an event: judge communicators that have failed. */
void sim_judge_node(struct sim *s, int node);
/* An operation is complete on a node. */
void sim_judge_operation(struct sim *s, struct sim_proxy *p);
/* Connecting has ended. */
void sim_judge_connected(struct sim *s, struct sim_proxy *p);
/* A node is about to close a communicator, with all operations complete or not. */
void sim_judge_closes(struct sim *s, struct sim_proxy *p);
/* The end of a run. */
void sim_judge_end(struct sim *s);
/* A node gives back a piece of a communicator's residuals or references: a hash of its contents. */
void sim_judge_state(struct sim *s, int node, int comm, uint64_t hash);
/* Return the hash of all these pieces of a communicator, over all nodes. */
uint64_t sim_judge_states(int comm);
/* Copy the hash of each operation's results, over all nodes. */
void sim_judge_results(const struct sim *s, uint64_t result[SIM_COMMS][SIM_OPS]);
/* The queue has no further events: report a violation that lists each node's wait. */
void sim_judge_deadlock(struct sim *s);

void sim_judge_open(struct sim *s);
/* The nodes exist. */
void sim_judge_begin(struct sim *s);
void sim_judge_close(struct sim *s);

#endif
