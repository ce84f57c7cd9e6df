/* SPDX-License-Identifier: Apache-2.0 */
/* Drive a rank through all four of NCCL's tables in NCCL's order: the user's calls, the tuner's answer, the
 * launches, then the proxy's windows. Functions that return int return 0, or 1 after hx_fail. */
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

/* The fate of an operation's event. */
enum fate { TOLD, LOST, WRONG_COUNT, WRONG_TYPE, NO_CALL };

/* Return the operation as the profiler hears of it. */
struct ev_op event_of(const struct sx_run *run);
/* Run a group of n operations, launched in the order that `order` names (NULL: as called). */
int group(struct rank *r, struct sx_run *run, const enum fate *fate, int n, const int *order);
/* Run and check one operation. All nodes must get the same bits. Its error goes to *nmse unless that is
 * NULL. */
int one(struct rank *r, struct sx_spec spec, enum fate fate, double *nmse);
/* Return the largest error that an operation may have. */
double bound_of(int nnodes, const struct sx_spec *s);

#endif
