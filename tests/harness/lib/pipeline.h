/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The point-to-point traffic of a pipeline whose stages are the nodes, as Seq1F1B makes it: sequences are cut
 * into chunks, so that many small and some large messages go forward and backward at the same time. Each link
 * between neighbours has a thread of its own, beside whatever the node's main thread does.
 */
#ifndef NIBBLE_TESTS_PIPELINE_H
#define NIBBLE_TESTS_PIPELINE_H

#include "harness.h"

struct px_plan {
    int exchanges; /* messages each way on each link */
    size_t most;   /* bytes of the largest */
    uint64_t seed;
    bool check; /* compare what arrives, byte by byte */
};

struct px;

/* Connect to the neighbours. All nodes, at about the same time. 0 or hx_fail. */
int px_open(struct hx_node *node, struct hx_lib *lib, struct hx_ctx *ctx, const struct px_plan *plan,
            struct px **px);
/* Run the plan in threads of its own. 0 or hx_fail. */
int px_start(struct px *px);
/* 1 when all links are through. */
int px_done(struct px *px);
/* Wait for them: seconds that the slowest link took, negative after hx_fail. May be started again. */
double px_join(struct px *px);
/* 0 or hx_fail. */
int px_close(struct px *px);

#endif
