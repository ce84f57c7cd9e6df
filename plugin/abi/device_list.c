/* SPDX-License-Identifier: Apache-2.0 */
/* The transport's devices as NCCL sees them. See device_list.h. */
#include "abi/device_list.h"

#include <string.h>

#include "base/context.h"
#include "base/log.h"
#include "device/cuda/cuda.h"
#include "device/device.h"
#include "nibble/nccl_net.h"

/* Far more than NCCL's largest window, so that this never limits it. */
#define NB_MAX_COLL_BYTES ((size_t)1 << 30)
#define NB_MAX_COMMS 65536 /* for transports that do not count communicators */

#define GPU_MEMORY (NB_MEM_CUDA | NB_MEM_DMABUF) /* reached by address, and by DMA-BUF */

/* Return the memory that both halves take: NCCL uses one half's answer for both. The engine takes GPU memory
 * where its codecs run on the GPU. NIBBLE_GPU_POINTERS=1 claims GPU memory even where the transport does not
 * reach it. Sends and receives are then staged. */
static int memory_of(struct nb_context *ctx, const struct nb_net_props *net)
{
    const int asked = ctx->params->gpu_pointers == NB_GPU_POINTERS_ALWAYS;
    const int mem = net->mem_support & NB_MEM_HOST, gpu = net->mem_support & GPU_MEMORY;
    char why[256] = "";

    if (!asked && !gpu)
        return mem;
    if (nb_cuda_takes_pointers(ctx, -1, why, sizeof(why)))
        return mem | (gpu ? gpu : NB_MEM_CUDA);
    NB_INFO(NCCL_INIT | NCCL_NET, "%s: NCCL is to hand over host memory: %s", net->name, why);
    return mem;
}

static int ask(struct nb_context *ctx, struct nb_device_list *list)
{
    struct nb_net *transport = ctx->net;
    const struct nb_net_ops *ops = transport->ops;
    const size_t unit = (size_t)ctx->params->unit_bytes;
    int err = ops->devices(transport, &list->n); /* at most NB_NET_MAX_DEVS, see net/devices.h */

    for (int i = 0; i < list->n && !err; i++) {
        struct nb_device_info *info = &list->device[i];
        struct nb_net_props *net = &info->net;
        err = ops->properties(transport, i, net);
        if (err)
            break;
        if (net->max_comms <= 0)
            net->max_comms = NB_MAX_COMMS;
        if (net->max_recvs < 1 || net->max_recvs > NB_NET_MAX_RECVS)
            net->max_recvs = NB_NET_MAX_RECVS;
        if (net->max_bytes == 0 || net->max_bytes > (size_t)NCCL_MAX_NET_SIZE_BYTES)
            net->max_bytes = (size_t)NCCL_MAX_NET_SIZE_BYTES;
        info->mem_support = memory_of(ctx, net);
        info->max_coll_bytes = NB_MAX_COLL_BYTES / unit * unit;
    }
    return err;
}

int nb_device_list_fill(struct nb_context *ctx, struct nb_device_list *list)
{
    const char *name = ctx->net->ops->name;
    int claimed = 0, err;

    memset(list, 0, sizeof(*list));
    err = ask(ctx, list);
    if (err) {
        NB_WARN("transport %s cannot list its devices: %s", name, strerror(-err));
        return err;
    }
    for (int i = 0; i < list->n; i++) {
        const struct nb_device_info *info = &list->device[i];
        claimed |= (info->mem_support & GPU_MEMORY) != 0;
        list->staged |= info->mem_support & GPU_MEMORY && !(info->net.mem_support & GPU_MEMORY);
    }
    for (int i = 0; i < list->n && list->staged; i++)
        if (list->device[i].mem_support & GPU_MEMORY)
            list->device[i].mem_support = (list->device[i].mem_support & ~NB_MEM_DMABUF) | NB_MEM_CUDA;
    if (list->staged)
        NB_INFO(NCCL_INIT | NCCL_NET,
                "transport %s does not reach GPU memory: sends and receives of it are copied "
                "through the host's (NIBBLE_GPU_POINTERS=1)",
                name);
    nb_device_pointers(ctx, claimed);
    return 0;
}
