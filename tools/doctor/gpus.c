/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs of the node, the links that join them, and network devices for each. */
#include <string.h>

#include "device/cuda/driver.h"
#include "doctor.h"
#include "system.h"

static void see_switch(void *arg, const char *name)
{
    static const char prefix[] = "nvidia-nvswitch";

    if (strncmp(name, prefix, sizeof(prefix) - 1) == 0 && strcmp(name, "nvidia-nvswitchctl") != 0)
        *(bool *)arg = true;
}

static void codecs(struct doctor *d)
{
    const struct nb_cuda *cu;
    char why[256];

    const bool wanted = d->params && d->params->device == NB_DEVICE_CUDA;
    const char *said = wanted ? "NIBBLE_DEVICE=cuda, but codecs run on the CPU" : "codecs run on the CPU";

    if (nb_cuda_open(&cu, why, sizeof(why))) {
        const bool bad = wanted || d->gpus > 0;

        say(&d->report, bad ? STATUS_WARNING : STATUS_OK, "gpu",
            bad ? "make the driver's libcuda.so.1 visible here" : NULL, "%s: %s", said, why);
        return;
    }
    if (cu->image)
        say(&d->report, STATUS_OK, "gpu", NULL, "kernels are built in");
    else
        say(&d->report, wanted ? STATUS_WARNING : STATUS_OK, "gpu", wanted ? "configure --with-cuda" : NULL,
            "%s: built without kernels", said);
    nb_cuda_close();
}

/* Reduce-scatters and all-gathers need a CollNet device for each GPU: ncclTopo's heads,
 * src/graph/tuning.cc. */
static void devices_for_each(struct doctor *d)
{
    const int n = d->list ? d->list->n : 0;

    if (n >= d->gpus)
        say(&d->report, STATUS_OK, "gpu", NULL, "%d network device%s for %d GPU%s", n, n == 1 ? "" : "s",
            d->gpus, d->gpus == 1 ? "" : "s");
    else if (n > 0) {
        say(&d->report, STATUS_PROBLEM, "gpu", NULL,
            "%d network device%s for %d GPUs: all-gathers and reduce-scatters are not compressed", n,
            n == 1 ? "" : "s", d->gpus);
        say_remedy(&d->report, "export NIBBLE_DEVS_PER_NIC=%lld on all nodes",
                   (long long)((d->gpus + n - 1) / n * d->params->devs_per_nic));
    }
}

static void reach(struct doctor *d)
{
    bool reached = false;

    for (int i = 0; d->list && i < d->list->n; i++)
        reached |= (d->list->device[i].net.mem_support & NB_MEM_CUDA) != 0;
    if (reached)
        say(&d->report, STATUS_OK, "gpu-direct", NULL, "network devices reach GPU memory");
    else if (strcmp(d->transport, "verbs") == 0 && !system_has("/sys/module/nvidia_peermem"))
        say(&d->report, STATUS_WARNING, "gpu-direct",
            "modprobe nvidia_peermem, or a kernel from 5.12 on with the open GPU driver (DMA-BUF)",
            "network devices do not reach GPU memory: neither nvidia_peermem nor DMA-BUF");
    else
        say(&d->report, STATUS_OK, "gpu-direct", NULL,
            "network devices do not reach GPU memory: everything goes through host memory (%s)",
            *d->transport ? d->transport : "no transport");
}

void check_gpus(struct doctor *d)
{
    d->gpus = d->options.gpus >= 0 ? d->options.gpus : system_each("/proc/driver/nvidia/gpus", NULL, NULL);
    system_each("/dev", see_switch, &d->nvswitch);
    codecs(d);
    if (d->gpus == 0) {
        say(&d->report, STATUS_OK, "gpu", NULL, "none found (--gpus N: as if there were)");
        return;
    }
    devices_for_each(d);
    reach(d);
    if (d->nvswitch)
        say(&d->report, STATUS_OK, "gpu", NULL, "NVSwitch");
    else if (d->gpus == 1 && !d->params->force_collnet)
        say(&d->report, STATUS_PROBLEM, "gpu", "export NIBBLE_FORCE_COLLNET=1 on all nodes",
            "one GPU, no NVSwitch: NCCL rules CollNet out for reduce-scatters and all-gathers, although it "
            "works");
    else if (d->gpus > 1)
        say(&d->report, STATUS_WARNING, "gpu",
            "virtual machines may hide it; else nibble cannot help this node",
            "no NVSwitch is seen: without one NCCL has no CollNet for reduce-scatters and all-gathers of %d "
            "GPUs",
            d->gpus);
}
