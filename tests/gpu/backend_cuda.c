/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels on the first GPU, in managed memory: tests address it as the kernels do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
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

void backend_run(struct nb_gpu_desc *desc, size_t count, struct nb_gpu_result *result)
{
    struct nb_gpu_desc *list = backend_alloc(count * sizeof(*list));
    struct nb_gpu_result *results = backend_alloc(count * sizeof(*results));
    uint64_t *work = calloc(count + 1, sizeof(*work)), *scratch = calloc(count + 1, sizeof(*scratch)), ticket = 0;
    struct nb_gpu_launch launch = {state, 0, (uintptr_t)list, count};

    if (!work || !scratch)
        abort();
    for (size_t i = 0; i < count; i++) {
        desc[i].result = (uintptr_t)&results[i];
        desc[i].work = 0;
        int64_t bytes = nb_gpu_plan(&desc[i]);
        if (bytes < 0) {
            fprintf(stderr, "nb_gpu_plan: %s\n", strerror((int)-bytes));
            exit(1);
        }
        desc[i].work = work[i] = driver_alloc((size_t)bytes);
        desc[i].scratch = scratch[i] = driver_alloc((size_t)nb_gpu_scratch(&desc[i]));
        desc[i].ticket = ticket;
        desc[i].id = (uint32_t)i + 1;
        ticket += desc[i].tickets;
    }
    memcpy(list, desc, count * sizeof(*list));
    /* Few blocks and many: tickets wait for each other in different ways. */
    driver_launch(&launch, batches % 3 == 0 ? 1 : batches % 3 == 1 ? 7 : driver_multiprocessors());
    batches++;
    driver_wait();
    memcpy(result, results, count * sizeof(*result));
    for (size_t i = 0; i < count; i++) {
        uint8_t head[72];
        if (result[i].done != i + 1) {
            fprintf(stderr, "descriptor %zu was not finished\n", i);
            exit(1);
        }
        driver_read(head, work[i], sizeof(head));
        for (size_t k = 0; k < sizeof(head); k++)
            if (head[k]) {
                fprintf(stderr, "a workspace was left with byte %zu set\n", k);
                exit(1);
            }
        driver_free(work[i]);
        driver_free(scratch[i]);
    }
    free(work);
    free(scratch);
    backend_free(list);
    backend_free(results);
}
