/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the ranks of a node share of what is handed back to NCCL: the node's state machine (policy/handback.h) under a
 * lock, and which of the node's heads votes for it. With one rank a node it lies in the process's memory, with several in
 * shared memory (a file in /dev/shm), since NCCL's ranks are processes as a rule.
 *
 * The file is named after the communicator and the host as NCCL tells hosts apart (NCCL_HOSTID, or the host's name), is
 * made by the first rank that comes, and loses its name with the last one. Ranks that do not see each other's /dev/shm
 * never are complete, so that nothing is handed back; nor are those that find a file which a job of the same number (with NCCL_COMM_ID
 * all jobs have one) left behind, since a place that nobody fills has no calls. A process that dies in the middle of a change
 * fails the machine.
 */
#ifndef NIBBLE_POLICY_HANDBACK_SHARED_H
#define NIBBLE_POLICY_HANDBACK_SHARED_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "policy/handback.h"

struct nb_handback_shared {
    uint32_t magic, bytes; /* of this struct: processes of two builds do not share one */
    pthread_mutex_t lock;  /* all below, but for news */
    uint32_t news;         /* counts what a caller may wait for: for nb_handback_shared_wait */
    unsigned users;        /* of a process's memory; without the lock */
    unsigned joined;       /* ranks */
    unsigned attached;     /* heads */
    struct {
        uint64_t group; /* alike on all nodes, and of no other group */
        int node, nnodes;
    } head[NB_HANDBACK_RANKS];
    bool has_leader; /* it is settled which heads there are, and who votes */
    bool overdue;    /* a caller has waited for too long */
    struct nb_handback machine;
};

/* A rank's way to it. */
struct nb_handback_share {
    struct nb_handback_shared *at; /* NULL: none */
    bool mapped;                   /* of a file; else of this process's memory */
    char name[96];                 /* of the file; "" when it has none any more */
};

/* Join as one of `ranks` ranks of the node, of the communicator with that identifier: 0 and the rank's number on the node,
 * or a negative errno. Where more ranks come than that, nothing is handed back. The first makes it from `config`, whose slack and
 * periods are used. */
int nb_handback_share_map(struct nb_handback_share *share, uint64_t comm_id, unsigned ranks,
                          const struct nb_handback_config *config, unsigned *rank);
/* The same in memory of this process: with the rank whose share `with` is, or (NULL) as the first one. Not at the same time
 * as the next two of what is joined. */
int nb_handback_share_make(struct nb_handback_share *share, const struct nb_handback_share *with,
                           unsigned ranks, const struct nb_handback_config *config, unsigned *rank);
void nb_handback_share_close(struct nb_handback_share *share);

void nb_handback_shared_lock(struct nb_handback_shared *s);
void nb_handback_shared_unlock(struct nb_handback_shared *s);
/* With the lock: callers that wait look again. */
void nb_handback_shared_wake(struct nb_handback_shared *s);
/* With the lock, which is free meanwhile: wait for news, at most until `end` of the monotonic clock. 0, or -ETIMEDOUT. */
int nb_handback_shared_wait(struct nb_handback_shared *s, const struct timespec *end);

/* With the lock. A head of the node: its number, or -1: it comes too late, or is one too many, and has no say. */
int nb_handback_shared_attach(struct nb_handback_shared *s, uint64_t group, int node, int nnodes);
/* With the lock: whether this head votes for the node. The first time that this is asked when all ranks have joined
 * settles it: the group of the lowest identifier, on every node. */
bool nb_handback_shared_leads(struct nb_handback_shared *s, int head);

#endif
