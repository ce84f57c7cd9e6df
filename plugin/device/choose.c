/* SPDX-License-Identifier: Apache-2.0 */
/* Choose a communicator's device. */
#include "device/device.h"

#include "base/context.h"
#include "base/log.h"
#include "device/cuda/cuda.h"
#include "device/host/host.h"

/* Return the host's device, with codec threads or without. */
static struct nb_device *host_device(struct nb_context *ctx)
{
    struct nb_device *dev = nb_host_threads_open(ctx);

    return dev ? dev : nb_host_device();
}

int nb_device_choose(struct nb_context *ctx, const struct nb_device_wish *wish, struct nb_device **dev)
{
    const enum nb_device_word setting = ctx->params->device;
    const int claimed = nb_cuda_pointers_claimed(ctx);
    char why[256] = "";
    int ret;

    if (ctx->open_device)
        return ctx->open_device(ctx, wish, dev);
    if (setting == NB_DEVICE_HOST || (setting == NB_DEVICE_AUTO && !claimed)) {
        if (setting == NB_DEVICE_AUTO && wish->gpu >= 0)
            NB_INFO(NCCL_INIT,
                    "device: nibble has not offered to take GPU memory, so NCCL hands over host memory and "
                    "codecs run on the CPU (NIBBLE_DEVICE=cuda: on GPU %d)",
                    wish->gpu);
        *dev = host_device(ctx);
        return 0;
    }
    ret = nb_cuda_device_open(ctx, wish, dev, why, sizeof(why));
    if (!ret)
        return 0;
    if (claimed) { /* NCCL may hand over GPU memory, which only this device takes */
        if (why[0])
            NB_WARN("device: codecs cannot run on the GPU: %s", why);
        return ret;
    }
    if (setting == NB_DEVICE_CUDA)
        NB_WARN("device: NIBBLE_DEVICE=cuda, but codecs run on the CPU, not on the GPU: %s",
                why[0] ? why : "it failed");
    else
        NB_INFO(NCCL_INIT, "device: codecs run on the CPU, not on the GPU: %s", why[0] ? why : "it failed");
    *dev = host_device(ctx);
    return 0;
}
