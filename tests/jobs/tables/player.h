/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plays a trace of a training job (tests/policy/trace.h) through the plugin's tables in N processes:
 * profiler, tuner and CollNet together, in NCCL's order and with data, some operations ahead of the network.
 * It compares the plugin's report on each operation (coll/comm/node.h) with the operation's true kind.
 *
 * Two checks do not trust the plugin's report. Results must be right: bit for bit where it reports raw, and
 * for all gathers. And errors must cancel over the steps of a buffer: with its own error fed back the sum of
 * all errors stays that of one step. Without feedback, or with another buffer's error, it grows with every
 * step.
 */
#ifndef NIBBLE_TESTS_JOBS_TABLES_PLAYER_H
#define NIBBLE_TESTS_JOBS_TABLES_PLAYER_H

#include "policy/recognise/recognise.h"
#include "tests/harness/lib/suite.h"
#include "tests/policy/trace.h"

struct fw_nccl;

struct fw_play {
    const struct trace *trace;
    const char *const *env;
    uint32_t warmup;  /* all operations before this step must be raw */
    uint32_t late;    /* operations count from this step on */
    int share_outer;  /* the communicator between nodes is a split child over the world's connections */
    unsigned ahead;   /* operations in flight. 0: 6 */
    int channels;     /* 0: 2 */
    size_t buff_size; /* 0: 1 MiB */
    const struct fw_nccl *nccl; /* NULL: the newest, with nibble's profiler and tuner */
};

/* Counts are of one node. Unless a comment says otherwise, they count operations on gradients from step
 * `late` on. */
struct fw_result {
    uint64_t posted, observed; /* all operations that reached CollNet */
    uint64_t gradients, coded, fed, misapplied;
    uint64_t early_coded;          /* in the warm-up */
    uint64_t early_misapplied;     /* before step `late` */
    uint64_t others, others_coded; /* any time: sums of other values */
    uint64_t raw_sums;             /* any time: sums that went raw and were right to the bit */
    uint64_t gathers, gathers_coded;
    uint64_t id_reason[NB_ID_REASON_COUNT], class_reason[NB_WHY_COUNT];
    int first;         /* step (from 1) from which on 95 % of the gradients of eight steps were fed. -1 */
    double cancelled;  /* energy of the summed errors over the sum of their energies, of fed buffers */
    double worst_nmse; /* of a coded operation, against its contributions' energy */
    int profiler_notices, tuner_notices; /* log lines that another plugin is in nibble's place */
    double sent, wire;                   /* bytes before and after coding, all functions */
};

/* Run on two nodes and fill one result for each. Return 0, or 1 after a line on stderr. */
int fw_run(const char *name, const struct fw_play *play, struct fw_result result[2]);

#endif
