/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Create, start, stop and free contexts (base/context.h). This is the only layer that knows all members.
 * NCCL's tables use the context of the process (abi/process.h). Tests and simulations create independent
 * contexts with nb_context_create.
 *
 *   init     opens the members that need no settings: budgets, queues, jobs, gpus, codec threads, engine
 *   start    checks the settings and opens the transport
 *   stop     closes the transport and keeps the counts over the life of the node
 *   fini     frees the members of init, in reverse order
 */
#ifndef NIBBLE_ABI_CONTEXT_H
#define NIBBLE_ABI_CONTEXT_H

#include "base/context.h"

struct nb_net_ops;
struct nb_runner;

struct nb_context_options {
    const char *const *settings; /* "NIBBLE_X=value" ..., ended by NULL. NULL: the process's environment */
    const char *label;           /* precedes the node's log lines. NULL: lines have no label */
    struct nb_clock clock;       /* all zero: real time */
    const struct nb_runner
        *runner; /* drives the engine (coll/engine.h). NULL: the caller does, with nb_engine_step */
    const struct nb_net_ops *transport; /* NULL: the transport that the settings name */
    /* See base/context.h. NULL: as in NCCL's process. */
    int (*open_device)(struct nb_context *ctx, const struct nb_device_wish *wish, struct nb_device **dev);
    int (*current_gpu)(struct nb_context *ctx);
};

/* Create and start a context. Return 0 and *ctx, which the caller frees with nb_context_destroy, or a
 * negative errno after a WARN line (-EINVAL: bad settings). The function copies the texts of `options`. Other
 * memory that `options` points to must outlive the context. Any thread. */
int nb_context_create(const struct nb_context_options *options, struct nb_context **ctx);
/* Destroy a context after its last communicator, connection and listener is closed. NULL is allowed. */
void nb_context_destroy(struct nb_context *ctx);

/* ---- The steps, for the context of the process --------------------------------------------------------- */

/* Open the members that need no settings, with default params. Return 0 or a negative errno. On an error *ctx
 * is as after fini. */
int nb_context_init(struct nb_context *ctx, const struct nb_runner *runner);
void nb_context_fini(struct nb_context *ctx);

/* Check the rules and lists of ctx->params, and open the transport (NULL: the one that the settings name).
 * Return 0, or a negative errno after a WARN line. */
int nb_context_start(struct nb_context *ctx, const struct nb_net_ops *transport);
void nb_context_stop(struct nb_context *ctx);

#endif
