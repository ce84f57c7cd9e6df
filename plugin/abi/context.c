/* SPDX-License-Identifier: Apache-2.0 */
/* Life of a context. See context.h. */
#include "abi/context.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi/device_list.h"
#include "base/log.h"
#include "coll/engine.h"
#include "device/device.h"
#include "net/transport.h"
#include "policy/job/job.h"
#include "policy/records/records.h"
#include "state/budget.h"

int nb_context_init(struct nb_context *ctx, const struct nb_runner *runner)
{
    int err = nb_budgets_open(ctx);

    ctx->params = nb_params_defaults();
    if (!err)
        err = nb_queues_open(ctx);
    if (!err)
        err = nb_jobs_open(ctx);
    if (!err)
        err = nb_gpus_open(ctx);
    if (!err)
        err = nb_host_pool_open(ctx);
    if (!err)
        err = nb_engine_open(ctx, runner);
    if (err)
        nb_context_fini(ctx);
    return err;
}

void nb_context_fini(struct nb_context *ctx)
{
    nb_engine_close(ctx);
    nb_host_pool_close(ctx);
    nb_gpus_close(ctx);
    nb_jobs_close(ctx);
    nb_queues_close(ctx);
    nb_budgets_close(ctx);
}

int nb_context_start(struct nb_context *ctx, const struct nb_net_ops *transport)
{
    char wrong[512];
    const char *name;
    int err = nb_job_check_settings(ctx->params, &name, wrong, sizeof(wrong));

    if (err) {
        NB_WARN("%s", wrong);
        return err;
    }
    return transport ? nb_net_open_with(ctx, transport) : nb_net_open(ctx);
}

void nb_context_stop(struct nb_context *ctx)
{
    nb_net_close(ctx);
}

/* ---- Independent contexts ------------------------------------------------------------------------------ */

static int start(struct nb_context *ctx, const struct nb_context_options *options)
{
    const struct nb_params *params;
    struct nb_device_list *list;
    int err = options->settings ? nb_params_read_list(options->settings, &params) : nb_params_read(&params);

    if (err)
        return err;
    ctx->params = params;
    err = nb_context_start(ctx, options->transport);
    if (err)
        return err;
    /* The choice of a device depends on the memory that NCCL's tables would claim. */
    list = calloc(1, sizeof(*list));
    err = list ? nb_device_list_fill(ctx, list) : -ENOMEM;
    free(list);
    return err;
}

int nb_context_create(const struct nb_context_options *options, struct nb_context **out)
{
    struct nb_context *ctx = calloc(1, sizeof(*ctx));
    const char *before;
    int err;

    if (!ctx)
        return -ENOMEM;
    ctx->clock = options->clock;
    ctx->open_device = options->open_device;
    ctx->current_gpu = options->current_gpu;
    snprintf(ctx->label, sizeof(ctx->label), "%s", options->label ? options->label : "");
    before = nb_log_label(ctx->label);
    err = nb_context_init(ctx, options->runner);
    if (!err)
        err = start(ctx, options);
    nb_log_label(before);
    if (err)
        nb_context_destroy(ctx);
    else
        *out = ctx;
    return err;
}

void nb_context_destroy(struct nb_context *ctx)
{
    const char *before;

    if (!ctx)
        return;
    before = nb_log_label(ctx->label);
    nb_context_stop(ctx);
    nb_context_fini(ctx);
    if (ctx->params && ctx->params != nb_params_defaults())
        nb_params_free(ctx->params);
    nb_log_label(before);
    free(ctx);
}
