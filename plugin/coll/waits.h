/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a communicator waits for, copied at one time, and the text of a hang report, which nibble-hang reads
 * (tools/watch). A report has a line each for
 *
 *     report     the format's version, and the process: host, pid, time, why it was written
 *     engine     steps made; seconds without one
 *     comm       a communicator: identifiers, this node's number, state, windows, the next operation
 *     window     its oldest open window, of an operation: how far it is, and for how long
 *     peer       a node that it is connected with: whether the window misses something of it, how long it has been
 *                silent, messages queued, sent and done, posted, arrived and taken, by class
 *
 * "window" and "peer" belong to the "comm" before. A line is a word and KEY=VALUE fields; a value with blanks
 * stands in quotes.
 */
#ifndef NIBBLE_COLL_WAITS_H
#define NIBBLE_COLL_WAITS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/func.h"
#include "coll/wire.h"
#include "policy/comm_rules.h"

struct nb_coll_comm;

struct nb_waits_peer {
    int rank;
    char name[112];
    bool gone, missing;
    int64_t silent_ns;
    struct {
        uint64_t queued, sent, done, posted, arrived, taken;
    } ring[NB_CLASS_COUNT];
};

struct nb_waits {
    uint64_t comm_id;
    uint32_t token; /* with comm_id: the same on the nodes of the group, and of no other group */
    int rank, nnodes;
    char name[NB_COMM_NAME];
    bool seen; /* the engine let it be looked at; else only what follows up to `finished` */
    uint64_t submitted, finished;
    uint64_t begun, oldest, next_op; /* next_op: the operation behind the last window that was begun */
    int error;                       /* negative errno, or 0 */
    char cause[NB_CTL_TEXT];
    bool closing;
    /* The oldest open window, where oldest < begun. */
    enum nb_func func;
    uint64_t opno, bytes, off, undelivered;
    int unsent;
    unsigned working;
    int64_t waited_ns;
    int npeers;
    struct nb_waits_peer peer[]; /* [npeers] */
};

/* Room for what `comm`, connected, waits for; free() it. NULL: no memory. */
struct nb_waits *nb_waits_new(const struct nb_coll_comm *comm);
/* The same once more: free() it. NULL: no memory, or of NULL. */
struct nb_waits *nb_waits_copy(const struct nb_waits *waits);
/* Fill in what any thread may read without waiting. */
void nb_waits_glance(struct nb_waits *waits, const struct nb_coll_comm *comm);
/* Fill in everything. With progress_lock. */
void nb_waits_take(struct nb_waits *waits, const struct nb_coll_comm *comm);

/* Whose report it is. */
struct nb_waits_process {
    const char *host, *job, *why;
    int pid;
    double time; /* seconds since 1970 */
    uint64_t steps;
    unsigned still; /* seconds in which the engine has made none */
};
/* Write a report of `n` communicators. */
void nb_waits_write(FILE *out, const struct nb_waits_process *process, const struct nb_waits *const *waits,
                    unsigned n);

#endif
