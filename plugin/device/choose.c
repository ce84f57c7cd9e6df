/* SPDX-License-Identifier: Apache-2.0 */
/* Which device a communicator gets. */
#include <errno.h>
#include <stdatomic.h>

#include "base/log.h"
#include "base/params.h"
#include "device/cuda.h"

#include "device/device.h"

typedef int (*opener)(const struct nb_device_wish *wish, struct nb_device **dev);

static _Atomic(opener) override;
static atomic_int pointers;

enum { DEVICE_AUTO, DEVICE_HOST, DEVICE_CUDA }; /* NIBBLE_DEVICE */

void nb_device_pointers(int claimed)
{
    atomic_store(&pointers, claimed);
}

void nb_device_override(opener open)
{
    atomic_store(&override, open);
}

int nb_device_choose(const struct nb_device_wish *wish, struct nb_device **dev)
{
    opener open = atomic_load(&override);
    const int setting = nb_params()->device, claimed = atomic_load(&pointers);
    char why[256] = "";
    int ret;

    if (open)
        return open(wish, dev);
    *dev = &nb_device_host;
    if (setting == DEVICE_HOST || (setting == DEVICE_AUTO && !claimed)) {
        if (setting == DEVICE_AUTO && wish->gpu >= 0)
            NB_INFO(NCCL_INIT, "device: NCCL was not told that GPU memory is welcome, so it hands over host memory and codecs "
                               "run on the CPU (NIBBLE_DEVICE=cuda: on GPU %d)", wish->gpu);
        return 0;
    }
    ret = nb_cuda_device_open(wish, dev, why, sizeof(why));
    if (!ret)
        return 0;
    *dev = &nb_device_host;
    if (claimed) { /* NCCL may hand over GPU memory, which no other device takes */
        if (why[0])
            NB_WARN("device: codecs cannot run on the GPU: %s", why);
        return ret;
    }
    NB_INFO(NCCL_INIT, "device: codecs run on the CPU, not on the GPU: %s", why[0] ? why : "it failed");
    return 0;
}
