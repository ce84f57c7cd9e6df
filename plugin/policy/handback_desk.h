/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the two sides of a rank meet over what is handed back to NCCL (policy/handback.h): callers, whom NCCL's tuner
 * asks for, and the engine, which votes with the other nodes' engines. A desk belongs to one communicator on one GPU. It
 * is made by whichever comes first, connect or the tuner's init, and freed with the last of them.
 *
 * A caller may have to wait here for the outcome of a vote. It holds nothing meanwhile that an engine needs.
 */
#ifndef NIBBLE_POLICY_HANDBACK_DESK_H
#define NIBBLE_POLICY_HANDBACK_DESK_H

#include "policy/handback.h"

struct nb_context;
struct nb_handback_desk;

/* Make and free the context's list of desks (ctx->desks): 0 or -ENOMEM. All desks have been put before it is freed. */
int nb_handback_desks_open(struct nb_context *ctx);
void nb_handback_desks_close(struct nb_context *ctx);

/* The desk of a communicator on a GPU (nb_current_gpu; -1 is any), made if need be; one reference. NULL: no memory, or no
 * identifier (comm_id 0). Any thread. */
struct nb_handback_desk *nb_handback_desk_get(struct nb_context *ctx, uint64_t comm_id, int gpu);
void nb_handback_desk_put(struct nb_handback_desk *desk);

/* ---- callers ------------------------------------------------------------------------------------------- */

/* In place of the slack and periods that it has, before it joins: for tests. All ranks alike. */
void nb_handback_desk_tune(struct nb_handback_desk *desk, uint64_t slack, uint64_t period, uint64_t longest);
/* Where ranks of one node meet. */
enum nb_handback_place {
    NB_HANDBACK_MACHINE, /* processes of this machine: in shared memory, unless there is but one */
    NB_HANDBACK_PROCESS  /* this process: for tests in which it is several ranks, and several nodes */
};
/* A tuner begins to ask here, as one of `ranks` ranks of the node; before the communicator's first call. 0, or a negative
 * errno: then it is always answered CollNet, and so is every rank of the communicator. Where more ranks join, or two through one desk, nothing
 * is handed back either. */
int nb_handback_desk_join(struct nb_handback_desk *desk, unsigned ranks, enum nb_handback_place place);
/* As nb_handback_call. */
enum nb_handback_answer nb_handback_desk_ask(struct nb_handback_desk *desk, enum nb_func func,
                                             uint64_t bytes);
/* The next call of the signature: 0 and *nccl; it may wait for an outcome, no longer than `patience_ns`, after which the
 * communicator fails, and the call with -ETIMEDOUT. On the thread that calls NCCL. */
int nb_handback_desk_call(struct nb_handback_desk *desk, enum nb_func func, uint64_t bytes,
                          int64_t patience_ns, bool *nccl);

/* ---- the engine; its thread ---------------------------------------------------------------------------- */

/* A group that this rank is head of, which all of its nodes know by the number `group`, begins to look; and to vote for
 * the node, if it is the leader. Of one desk one group does. */
void nb_handback_desk_attach(struct nb_handback_desk *desk, uint64_t group, int node, int nnodes);
/* Whether what comes to CollNet now is there to be looked at: nb_handback_is_back. */
bool nb_handback_desk_looks(struct nb_handback_desk *desk, enum nb_func func, uint64_t bytes);
/* As nb_handback_verdict, nb_handback_receive and nb_handback_fail. The last also where the group ends. */
void nb_handback_desk_verdict(struct nb_handback_desk *desk, enum nb_func func, uint64_t bytes, bool raw,
                              struct nb_handback_out *out);
int nb_handback_desk_receive(struct nb_handback_desk *desk, int from, const struct nb_handback_note *note,
                             struct nb_handback_out *out);
void nb_handback_desk_fail(struct nb_handback_desk *desk);
/* A caller has waited for too long: the communicator has to fail. */
bool nb_handback_desk_overdue(struct nb_handback_desk *desk);

struct nb_handback_counts {
    uint64_t handed_back, waited; /* calls that were NCCL's; that had to wait */
};
void nb_handback_desk_count(struct nb_handback_desk *desk, struct nb_handback_counts *counts);

#endif
