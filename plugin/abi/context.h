/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts (base/context.h): made, started, stopped and freed here, the only layer that knows all members.
 * NCCL's tables use the one of the process (abi/process.h). Tests and simulations make as many as they like
 * with nb_context_create; these know nothing of each other.
 *
 *   init     the members that need no settings: budgets, queues, jobs, gpus, codec threads, engine
 *   start    settings are checked and the transport is opened
 *   stop     the transport is closed; what is counted over the life of the node stays
 *   fini     the members of init, in reverse order
 */
#ifndef NIBBLE_ABI_CONTEXT_H
#define NIBBLE_ABI_CONTEXT_H

#include "base/context.h"

struct nb_net_ops;
struct nb_runner;

struct nb_context_options {
    const char *const *settings; /* "NIBBLE_X=value" ..., NULL; or NULL: of the process's environment */
    const char *label;           /* precedes the node's log lines; NULL: nothing does */
    struct nb_clock clock;       /* all zero: real time */
    const struct nb_runner
        *runner; /* drives the engine (coll/engine.h); NULL: the caller does, with nb_engine_step */
    const struct nb_net_ops *transport; /* NULL: the one that the settings name */
    /* See base/context.h; NULL: as in a process of NCCL's. */
    int (*open_device)(struct nb_context *ctx, const struct nb_device_wish *wish, struct nb_device **dev);
    int (*current_gpu)(struct nb_context *ctx);
};

/* Make and start a context. 0 and *ctx, to be freed with nb_context_destroy, or a negative errno after a WARN
 * line (-EINVAL: bad settings). The texts of `options` are copied, what else it points to outlives the
 * context. Any thread. */
int nb_context_create(const struct nb_context_options *options, struct nb_context **ctx);
/* Of which no communicator, connection or listener is left. NULL is allowed. */
void nb_context_destroy(struct nb_context *ctx);

/* ---- The steps, for the context of the process --------------------------------------------------------- */

/* Open the members that need no settings; params are the defaults. 0 or a negative errno; *ctx is then as
 * after fini. */
int nb_context_init(struct nb_context *ctx, const struct nb_runner *runner);
void nb_context_fini(struct nb_context *ctx);

/* Check ctx->params as far as they are rules and lists, and open the transport (NULL: of the settings). 0, or
 * a negative errno after a WARN line. */
int nb_context_start(struct nb_context *ctx, const struct nb_net_ops *transport);
void nb_context_stop(struct nb_context *ctx);

#endif
