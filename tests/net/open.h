/* SPDX-License-Identifier: Apache-2.0 */
/* A context for tests of transports: the settings of the environment, and the transport that they name. */
#ifndef NIBBLE_TESTS_NET_OPEN_H
#define NIBBLE_TESTS_NET_OPEN_H

#include <string.h>

#include "base/context.h"
#include "net/transport.h"

/* Open a context with the transport of `ops`, or with the transport of the settings when `ops` is NULL.
 * Return 0, to be undone with context_down, or the error of the settings or of the transport. */
static inline int context_up_with(struct nb_context *ctx, const struct nb_net_ops *ops)
{
    int err;

    memset(ctx, 0, sizeof(*ctx));
    err = nb_params_read(&ctx->params);
    if (err)
        return err;
    err = ops ? nb_net_open_with(ctx, ops) : nb_net_open(ctx);
    if (err)
        nb_params_free(ctx->params);
    return err;
}

static inline int context_up(struct nb_context *ctx)
{
    return context_up_with(ctx, NULL);
}

static inline void context_down(struct nb_context *ctx)
{
    nb_net_close(ctx);
    nb_params_free(ctx->params);
}

#endif
