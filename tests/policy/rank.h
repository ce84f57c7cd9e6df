/* SPDX-License-Identifier: Apache-2.0 */
/* A rank through all four of NCCL's tables, in its order: the user's calls, the tuner's answer, the launches,
 * and then the proxy's windows. Functions that return int: 0, or 1 after hx_fail. */
#ifndef NIBBLE_TESTS_POLICY_RANK_H
#define NIBBLE_TESTS_POLICY_RANK_H

#include "events.h"
#include "tests/harness/lib/suite.h"

#define COMM_ID 0x5151

struct rank {
    struct hx_node *node;
    struct hx_lib *lib;
    struct hx_comm *comm;
    struct ev_comm events;
    void *tuner;
};

int rank_open(struct hx_node *node, const struct hx_comm_cfg *cfg, int ranks_a_node, struct rank *r);
int rank_close(struct rank *r);

/* What becomes of an operation's event. */
enum fate { TOLD, LOST, WRONG_COUNT, WRONG_TYPE, NO_CALL };

/* The operation as its profiler is told of it. */
struct ev_op event_of(const struct sx_run *run);
/* A group of n operations, launched in the order that `order` names (NULL: as called). */
int group(struct rank *r, struct sx_run *run, const enum fate *fate, int n, const int *order);
/* One operation, checked, with the same bits on all nodes; its error in *nmse unless that is NULL. */
int one(struct rank *r, struct sx_spec spec, enum fate fate, double *nmse);
/* The most error that an operation may have. */
double bound_of(int nnodes, const struct sx_spec *s);

#endif
