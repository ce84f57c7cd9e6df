/* SPDX-License-Identifier: Apache-2.0 */
/* Run kernels on the first GPU, in managed memory: tests use the same addresses as the kernels. */
#include "tests/gpu/backend.h"

#include "driver.h"

static uint64_t state;
static unsigned batches;

int backend_open(void)
{
    int status = driver_open();
    if (!status)
        state = driver_alloc(sizeof(struct nb_gpu_state));
    return status;
}

void backend_close(void)
{
    driver_free(state);
    driver_close();
}

const char *backend_name(void)
{
    return driver_device();
}

int backend_encodes_differences(void)
{
    return driver_major() < NB_GPU_NO_DIFFERENCES;
}

void *backend_alloc(size_t bytes)
{
    return driver_alloc_managed(bytes);
}

void backend_free(void *p)
{
    driver_free((uintptr_t)p);
}

uint64_t backend_alloc_device(size_t bytes, int zeroed)
{
    (void)zeroed; /* driver_alloc always zeroes */
    return driver_alloc(bytes);
}

void backend_free_device(uint64_t address)
{
    driver_free(address);
}

void backend_read_device(void *to, uint64_t from, size_t bytes)
{
    driver_read(to, from, bytes);
}

void backend_launch(struct nb_gpu_launch *launch)
{
    launch->state = state;
    driver_launch(launch, batches % 3 == 0 ? 1 : batches % 3 == 1 ? 7 : driver_multiprocessors());
    batches++;
    driver_wait();
}
