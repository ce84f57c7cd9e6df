/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations that are handed back to NCCL: which calls of a communicator take CollNet, and which NCCL's own rings. An
 * operation of a signature (function and bytes, which is what NCCL's tuner is told) comes to CollNet to be looked at. Where
 * every node finds for itself that it only ever goes raw, the nodes vote, and calls from a number on that no rank has
 * reached yet are NCCL's; some thousand calls later they come again to be looked at.
 *
 * All ranks have to answer alike at the same call, else the job hangs. docs/handing-back.md has the states, the
 * messages, and why no two can differ; tests/policy/test_handback.c tries all interleavings of small groups.
 *
 * This is the state of one node, as a machine without threads, locks, clock or connections: its user brings calls,
 * verdicts and notes in the order in which they happen, and sends what comes out. Notes between two nodes have to
 * arrive in order, each once, or the communicator fails.
 *
 * A node has one or more ranks, which call, each at its own pace. Some of them, or all, are NCCL's heads: those that
 * reach the network, each in a group with one head of every other node, and each with a verdict of its own. The groups
 * know nothing of each other; so the leader, a head of the same group on every node, votes for its node.
 */
#ifndef NIBBLE_POLICY_HANDBACK_H
#define NIBBLE_POLICY_HANDBACK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/func.h"

#define NB_HANDBACK_NODES 64      /* of a communicator, at most */
#define NB_HANDBACK_RANKS 16      /* of a node, at most */
#define NB_HANDBACK_SIGNATURES 64 /* what comes later always takes CollNet */
#define NB_HANDBACK_NONE UINT64_MAX

/* What nodes say to each other; all of them to node 0 or from it. `call` is a number among the signature's calls, from 1 on. */
enum nb_handback_kind {
    NB_HANDBACK_TELL, /* to node 0: goes raw here (call: 1), or no more (0) */
    NB_HANDBACK_ASK,  /* from node 0: a vote begins */
    NB_HANDBACK_FAR,  /* to node 0: no call behind `call` is answered before the outcome; NONE: no */
    NB_HANDBACK_SET,  /* from node 0: the outcome: calls from `call` on are NCCL's; NONE: none */
    NB_HANDBACK_KINDS
};
struct nb_handback_note {
    enum nb_handback_kind kind;
    enum nb_func func;
    uint64_t bytes, call;
    uint32_t vote; /* its number; TELL: 0 */
};
/* What is to be sent, in this order; to < 0: to all others. */
struct nb_handback_out {
    unsigned n;
    struct {
        int to;
        struct nb_handback_note note;
    } sent[3];
};

struct nb_handback_config {
    int node, nnodes;
    unsigned ranks; /* of this node */
    unsigned heads; /* of this node; one of them is the leader */
    unsigned leader;
    uint64_t slack;   /* calls that may still be answered while a vote is under way */
    uint64_t period;  /* calls that are NCCL's the first time; twice as many each time, up to `longest` */
    uint64_t longest; /* all three alike on all nodes */
};

struct nb_handback_signature {
    enum nb_func func;
    uint64_t bytes;
    uint64_t calls[NB_HANDBACK_RANKS]; /* answered, of each rank */
    uint64_t from, until;              /* calls from .. until - 1 are NCCL's */
    uint64_t period;                   /* of the next time */
    uint32_t raw;                      /* bit for each head whose verdict that is */
    bool told;                         /* node 0 has been told that it is raw */
    bool voting;                       /* this node has said how far it is, and waits for the outcome */
    uint64_t barrier;                  /* then: the last call that is answered before it */
    uint64_t raw_on;                   /* node 0: bit for each node that has told so */
};

struct nb_handback {
    struct nb_handback_config config;
    bool failed, stopped;
    unsigned signatures;
    struct nb_handback_signature signature[NB_HANDBACK_SIGNATURES];
    struct { /* node 0 */
        bool open;
        uint32_t number;
        unsigned signature;
        uint64_t answered; /* bit for each node */
        bool refused;
        uint64_t furthest;
    } vote;
};

enum nb_handback_answer { NB_HANDBACK_COLLNET, NB_HANDBACK_NCCL, NB_HANDBACK_WAIT };

/* nnodes is 2 to NB_HANDBACK_NODES; ranks, and heads, 1 to NB_HANDBACK_RANKS. */
void nb_handback_init(struct nb_handback *h, const struct nb_handback_config *config);

/* The next call of a signature on one of the node's ranks: whose is it? After WAIT nothing has changed: it is asked again
 * when a note has come or the communicator has failed. */
enum nb_handback_answer nb_handback_call(struct nb_handback *h, unsigned rank, enum nb_func func,
                                         uint64_t bytes);

/* Whether operations of this signature, as far as a head has seen them, go raw and will. It counts for nothing before each
 * of the node's ranks has had a call: one that never has may not be there. Said as often as one
 * likes; which operations are looked at for it does not matter for safety. Only what the leader says has something to be
 * sent: what another head's verdict changes goes out with the leader's next one. */
void nb_handback_verdict(struct nb_handback *h, unsigned head, enum nb_func func, uint64_t bytes, bool raw,
                         struct nb_handback_out *out);

/* A note from another node: 0, or -EPROTO when it is none that may come now. */
int nb_handback_receive(struct nb_handback *h, int from, const struct nb_handback_note *note,
                        struct nb_handback_out *out);

/* The communicator has failed: from now on every call takes CollNet, where it ends in the error. */
void nb_handback_fail(struct nb_handback *h);

/* Nothing more is handed back: this node says no to every vote. What has been promised or handed back stays so, as on all
 * other nodes. For good. */
void nb_handback_stop(struct nb_handback *h);

/* Whether the signature's next call is CollNet's on every rank, and none that was handed back is still to come. */
bool nb_handback_is_back(const struct nb_handback *h, enum nb_func func, uint64_t bytes);
/* The signature's state, or NULL. */
const struct nb_handback_signature *nb_handback_find(const struct nb_handback *h, enum nb_func func,
                                                     uint64_t bytes);

#endif
