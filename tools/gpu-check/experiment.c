/* SPDX-License-Identifier: Apache-2.0 */
/* See experiment.h. */
#include "tools/gpu-check/experiment.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

CUcontext context;
CUmodule kernels;
CUfunction hold, mark, fill, operation, resident, codec;
struct nb_board *board;
uint64_t board_gpu, counters, limit_ns = KERNEL_SECONDS * 1000000000ull;
int processors, least, greatest;
static const char *connections;

double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void nap(void)
{
    nanosleep(&(struct timespec){0, 200000}, NULL);
}

void result(const char *status, const char *name, const char *detail)
{
    printf("result %s %s, %s: %s\n", status, name, connections, detail);
    fflush(stdout);
}

CUstream stream(int priority)
{
    CUstream s;
    CU(StreamCreateWithPriority(&s, NB_CU_STREAM_NON_BLOCKING, priority));
    return s;
}

CUevent event(void)
{
    CUevent e;
    CU(EventCreate(&e, NB_CU_EVENT_DISABLE_TIMING));
    return e;
}

void launch(CUfunction f, unsigned blocks, unsigned threads, CUstream s, void **arguments)
{
    CU(LaunchKernel(f, blocks, 1, 1, threads, 1, 1, 0, s, arguments, NULL));
}

bool drained(CUstream *streams, unsigned n, double seconds)
{
    double end = now() + seconds;
    for (unsigned i = 0; i < n; i++) {
        int r;
        while ((r = nb_cu.StreamQuery(streams[i])) == NB_CU_NOT_READY) {
            if (now() > end)
                return false;
            nap();
        }
        nb_cu_check(r, "StreamQuery");
    }
    return true;
}

void give_up(CUstream *streams, unsigned n)
{
    board->release = 1;
    board->quiet = 1;
    if (!drained(streams, n, KERNEL_SECONDS + 5.0)) {
        result("failed", "release", "kernels did not return after their release");
        _exit(1);
    }
}

int prepare(const char *what)
{
    int device;
    char name[128];
    void *pinned;
    const int status = nb_cu_open();

    connections = what;
    if (status)
        return status;
    CU(DeviceGet(&device, 0));
    CU(DeviceGetName(name, sizeof(name), device));
    CU(DeviceGetAttribute(&processors, NB_CU_MULTIPROCESSORS, device));
    CU(DevicePrimaryCtxRetain(&context, device));
    CU(CtxSetCurrent(context));
    CU(CtxGetStreamPriorityRange(&least, &greatest));
    CU(ModuleLoadData(&kernels, nb_launch_image));
    CU(ModuleGetFunction(&hold, kernels, "nb_hold"));
    CU(ModuleGetFunction(&mark, kernels, "nb_mark"));
    CU(ModuleGetFunction(&fill, kernels, "nb_fill"));
    CU(ModuleGetFunction(&operation, kernels, "nb_operation"));
    CU(ModuleGetFunction(&resident, kernels, "nb_resident"));
    CU(ModuleGetFunction(&codec, kernels, "nb_codec"));
    CU(MemHostAlloc(&pinned, sizeof(*board), NB_CU_HOST_MAPPED));
    board = pinned;
    memset(pinned, 0, sizeof(*board));
    CU(MemHostGetDevicePointer_v2(&board_gpu, pinned, 0));
    CU(MemAlloc_v2(&counters, 2 * NB_LANES * sizeof(uint32_t)));
    CU(MemsetD8_v2(counters, 0, 2 * NB_LANES * sizeof(uint32_t)));

    /* First launches load code, which may wait for the whole device. Make all of them now, released
     * beforehand. */
    uint64_t no_time = 0;
    unsigned lane = 0;
    uint64_t counter = counters;
    CUstream s = stream(least);
    board->release = 1;
    launch(hold, 1, 32, s, (void *[]){&board_gpu, &no_time});
    launch(mark, 1, 1, s, (void *[]){&board_gpu});
    launch(fill, 1, 512, s, (void *[]){&board_gpu, &no_time});
    launch(operation, 1, 32, s, (void *[]){&board_gpu, &lane, &counter, &no_time});
    launch(resident, 1, 32, s, (void *[]){&board_gpu, &lane, &counter, &no_time});
    launch(codec, 1, 32, s, (void *[]){&board_gpu, &lane, &lane, &no_time});
    if (!drained(&s, 1, WAIT_SECONDS)) {
        result("failed", "first launches", "kernels that had nothing to wait for did not return");
        _exit(1);
    }
    CU(MemsetD8_v2(counters, 0, 2 * NB_LANES * sizeof(uint32_t)));
    memset(pinned, 0, sizeof(*board));
    printf("%s, %d multiprocessors, priorities %d to %d, %s\n", name, processors, least, greatest,
           connections);
    return 0;
}
