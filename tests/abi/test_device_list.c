/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that NCCL may hand over, for transports that reach the GPU's in different ways. */
#include "abi/device_list.h"

#include <string.h>

#include "device/device.h"
#include "nibble/nccl_types.h"
#include "tests/device/cuda_fixture.h"

static const int *reached; /* of each device, ended by 0 */

static int devices(struct nb_net *net, int *n)
{
    (void)net;
    for (*n = 0; reached[*n]; (*n)++)
        ;
    return 0;
}

static int properties(struct nb_net *net, int dev, struct nb_net_props *props)
{
    (void)net;
    *props = (struct nb_net_props){.name = "fake", .mem_support = reached[dev]};
    return 0;
}

/* Require what NCCL is told of devices with this memory. */
static void tells(const char *setting, const int *memory, const int *told, bool staged)
{
    static const struct nb_net_ops ops = {.name = "fake", .devices = devices, .properties = properties};
    struct nb_net net = {.ops = &ops};
    struct nb_device_list list;

    settings("NIBBLE_GPU_POINTERS", setting);
    reached = memory;
    ctx.net = &net;
    CHECK(nb_device_list_fill(&ctx, &list) == 0 && list.staged == staged);
    for (int i = 0; i < list.n; i++)
        CHECK(list.device[i].mem_support == told[i]);
    CHECK(nb_cuda_pointers_claimed(&ctx) == (told[0] != NCCL_PTR_HOST));
    ctx.net = NULL;
    settings("NIBBLE_GPU_POINTERS", NULL);
}

int main(void)
{
    enum { HOST = NCCL_PTR_HOST, PEERMEM = NCCL_PTR_CUDA, DMABUF = NCCL_PTR_DMABUF };
    static const int host[] = {HOST, 0}, address[] = {HOST | PEERMEM, 0}, dmabuf[] = {HOST | DMABUF, 0},
                     both[] = {HOST | PEERMEM | DMABUF, 0}, some[] = {HOST | DMABUF, HOST, 0},
                     staged[] = {HOST | PEERMEM, HOST | PEERMEM, 0};

    fixture_open();
    nb_launch_attached(&ctx, GPU, 1);
    tells(NULL, host, host, false);
    tells(NULL, address, address, false);
    tells(NULL, dmabuf, dmabuf, false);
    tells(NULL, both, both, false);
    tells(NULL, some, some, false);
    tells("0", both, host, false);
    tells("1", host, address, true);
    tells("1", dmabuf, dmabuf, false);
    tells("1", some, staged, true);
    nb_launch_attached(&ctx, GPU, -1);
    fixture_close();
    printf("NCCL hands over memory that the adapter reaches\n");
    return 0;
}
