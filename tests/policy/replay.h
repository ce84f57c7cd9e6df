/* SPDX-License-Identifier: Apache-2.0 */
/* Replay a trace through the identity module and compare its decisions with the truth. */
#ifndef NIBBLE_TESTS_IDENTITY_REPLAY_H
#define NIBBLE_TESTS_IDENTITY_REPLAY_H

#include "trace.h"

#define WARMUP 50u /* steps, as NIBBLE_WARMUP_STEPS */

/* Another decider than the module, for negative controls. It may change the decision. */
typedef void (*tamper_fn)(struct nb_identity_decision *decision, const struct event *event, void *arg);

struct replay {
    unsigned known; /* groups of a profile that the first window covers, 0: no profile */
    unsigned ahead; /* calls that the job runs ahead of the network */
    int beside;     /* communicators run beside each other: any announced operation may be next */
    struct nb_identity_config config;
    tamper_fn tamper;
    void *tamper_arg;
    uint64_t seed;
};

struct outcome {
    uint64_t gradients;  /* operations on gradients after the warm-up, except all-zero ones */
    uint64_t fed;        /* gradients with a slot */
    uint64_t misapplied; /* gradients whose slot held another buffer's error */
    uint64_t early;      /* misapplied during the warm-up */
    uint64_t others;     /* other operations that got a slot after the warm-up */
    int first; /* first step, from 1, that begins eight steps with 95 % of the gradients fed, or -1 */
    uint64_t decided[NB_ID_REASON_COUNT];
};

struct outcome replay(const struct trace *trace, const struct replay *how);

#endif
