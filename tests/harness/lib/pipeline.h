/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The point-to-point traffic of a pipeline whose stages are the nodes, as Seq1F1B makes it: sequences are cut
 * into chunks, so that many small and some large messages go forward and backward at the same time. Each link
 * between neighbors has its own thread, beside the node's main thread.
 */
#ifndef NIBBLE_TESTS_PIPELINE_H
#define NIBBLE_TESTS_PIPELINE_H

#include "harness.h"

struct px_plan {
    int exchanges; /* messages each way on each link */
    size_t most;   /* bytes of the largest */
    uint64_t seed;
    bool check; /* compare the received bytes */
};

struct px;

/* Connect to the neighbors. All nodes call it, at about the same time. Return 0 or hx_fail. */
int px_open(struct hx_node *node, struct hx_lib *lib, struct hx_ctx *ctx, const struct px_plan *plan,
            struct px **px);
/* Run the plan in separate threads. Return 0 or hx_fail. */
int px_start(struct px *px);
/* Return 1 when all links are through. */
int px_done(struct px *px);
/* Wait for all links. Return the seconds that the slowest link took, negative after hx_fail. The plan may
 * then start again. */
double px_join(struct px *px);
/* 0 or hx_fail. */
int px_close(struct px *px);

#endif
