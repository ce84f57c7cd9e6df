/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What must be true, whatever happens:
 *   results are those of data.h, and the same on all nodes;
 *   a communicator that nothing happened to but lateness completes all operations, without a warning;
 *   one that something fatal happened to fails on every living node within the time that is documented for
 *   it, and what is logged names a node that it happened to; or the node had no more need of it;
 *   connecting ends within NIBBLE_CONNECT_TIMEOUT from its beginning, and who declines names a node that
 *   something happened to; where settings differ that must agree, all decline at once;
 *   bits that flip in a payload which settings leave without a check may change results, and nothing else;
 *   a run in which nothing is left to happen has nothing left to do.
 */
#ifndef NIBBLE_TESTS_SIM_JUDGE_H
#define NIBBLE_TESTS_SIM_JUDGE_H

#include "tests/sim/sim.h"

struct sim_judge;
struct sim_proxy;

/* A node may blame one that has failed before it, for whatever reason. */
extern bool sim_judge_lenient;

/* What a fault that has taken effect means for communicators. comm -1: all that one of both nodes is in. */
enum sim_verdict {
    SIM_SURVIVES, /* nothing may come of it */
    SIM_MENDED,   /* nothing but a warning: what was damaged can be had again */
    SIM_MAY_FAIL, /* either way */
    /* Every member fails, unless it has no more need: */
    SIM_FATAL_IN_TURN, /* when a message is read, so not while its operation waits for a node that is late */
    SIM_FATAL_IN_USE,  /* when a connection is used */
    SIM_FATAL
};
void sim_judge_fault(struct sim *s, enum sim_verdict verdict, int comm, int a, int b, int64_t within);
/* While they connect, two nodes are held up: whoever waits for them in one communicator comes late to the
 * next, where others wait for it, perhaps too long. */
void sim_judge_delay(struct sim *s, int a, int b);
/* A payload of the communicator was damaged that nobody checks: its results are not promised any more. */
void sim_judge_unchecked(struct sim *s, int comm);
/* Something of the communicator was damaged. */
void sim_judge_damage(int comm);
/* True while they are. */
bool sim_judge_promises(int comm);
/* SIM_DUE. */
void sim_judge_due(struct sim *s, const struct sim_event *event);
/* A line that a node has logged as a warning. */
void sim_judge_warning(struct sim *s, int node, const char *text);
/* After an event: communicators that have failed. */
void sim_judge_node(struct sim *s, int node);
/* An operation is complete on a node. */
void sim_judge_operation(struct sim *s, struct sim_proxy *p);
/* Connecting has ended. */
void sim_judge_connected(struct sim *s, struct sim_proxy *p);
/* A node is about to close a communicator, all operations complete or not. */
void sim_judge_closes(struct sim *s, struct sim_proxy *p);
/* The end of a run. */
void sim_judge_end(struct sim *s);
/* A piece of a communicator's residuals or references is given back: a hash of what was in it. */
void sim_judge_state(struct sim *s, int node, int comm, uint64_t hash);
/* What all of those of a communicator were, on all nodes together. */
uint64_t sim_judge_states(int comm);
/* What operations brought on all nodes together. */
void sim_judge_results(const struct sim *s, uint64_t result[SIM_COMMS][SIM_OPS]);
/* Nothing will happen any more: a violation that tells who waits for what. */
void sim_judge_deadlock(struct sim *s);

void sim_judge_open(struct sim *s);
/* The nodes are there. */
void sim_judge_begin(struct sim *s);
void sim_judge_close(struct sim *s);

#endif
