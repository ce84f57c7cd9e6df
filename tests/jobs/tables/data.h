/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The values behind a trace's events: gradients whose rms over the vector follows the profile of their layer,
 * which drifts from step to step, weights that walk as the sums of the step before say, states, activations
 * and statistics. All are functions of the event and the node, so that every node knows the other node's
 * values.
 */
#ifndef NIBBLE_TESTS_JOBS_TABLES_DATA_H
#define NIBBLE_TESTS_JOBS_TABLES_DATA_H

#include "nibble/nccl_types.h"
#include "tests/policy/trace.h"

#define DATA_NODES 2

/* Make the contribution of node `rank`: n values (of an all-gather its own block). `index`: the event's
 * number. */
void data_make(const struct event *event, size_t index, int rank, size_t n, float *out);

/* Store as FP32, BF16 or 32-bit integers, rounded to nearest, ties to even. */
void data_store(ncclDataType_t type, const float *values, size_t n, void *out);
void data_load(ncclDataType_t type, const void *in, size_t n, float *out);
void data_round(ncclDataType_t type, float *values, size_t n);

#endif
