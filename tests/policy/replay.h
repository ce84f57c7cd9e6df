/* SPDX-License-Identifier: Apache-2.0 */
/* Plays a trace to the identity module and compares what it decides with the truth. */
#ifndef NIBBLE_TESTS_IDENTITY_REPLAY_H
#define NIBBLE_TESTS_IDENTITY_REPLAY_H

#include "trace.h"

#define WARMUP 50u /* steps, as NIBBLE_WARMUP_STEPS */

/* A decider other than the module, for negative controls: may change what was decided. */
typedef void (*tamper_fn)(struct nb_identity_decision *decision, const struct event *event, void *arg);

struct replay {
    unsigned known; /* groups of a profile that the first window covers; 0: no profile */
    unsigned ahead; /* calls that the job runs ahead of the network */
    int beside;     /* communicators do not wait for each other: among what was called, any may be next */
    struct nb_identity_config config;
    tamper_fn tamper;
    void *tamper_arg;
    uint64_t seed;
};

struct outcome {
    uint64_t gradients;  /* operations on gradients after the warm-up that are not all zeros */
    uint64_t fed;        /* of them, with a slot */
    uint64_t misapplied; /* of them, whose slot held another buffer's error */
    uint64_t early;      /* misapplied during the warm-up */
    uint64_t others;     /* operations that are no gradients and got a slot, after the warm-up */
    int first; /* first step (from 1) from which on 95 % of the gradients of eight steps were fed, or -1 */
    struct nb_identity_stats stats;
};

struct outcome replay(const struct trace *trace, const struct replay *how);

#endif
