/* SPDX-License-Identifier: Apache-2.0 */
/* Run kernels emulated on the CPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/backend.h"
#include "tests/gpu/emulate.h"

static struct nb_gpu_state *state;
static uint64_t seed = 1;

int backend_open(void)
{
#ifdef NB_TSAN
    printf("skipped: the emulation runs in one thread and changes stacks, which the thread sanitizer does "
           "not follow\n");
    return 77;
#endif
    state = aligned_alloc(64, (sizeof(*state) + 63) & ~(size_t)63);
    if (!state)
        abort();
    memset(state, 0, sizeof(*state));
    return 0;
}

void backend_close(void)
{
    nb_emulate_end();
    free(state);
}

const char *backend_name(void)
{
    return "emulated";
}

int backend_encodes_differences(void)
{
    return 1;
}

void *backend_alloc(size_t bytes)
{
    void *p = NULL;
    if (posix_memalign(&p, 256, bytes ? bytes : 1))
        abort();
    memset(p, 0, bytes);
    return p;
}

void backend_free(void *p)
{
    free(p);
}

uint64_t backend_alloc_device(size_t bytes, int zeroed)
{
    void *p = backend_alloc(bytes);

    if (!zeroed)
        memset(p, 0xa5, bytes);
    return (uintptr_t)p;
}

void backend_free_device(uint64_t address)
{
    free((void *)(uintptr_t)address);
}

void backend_read_device(void *to, uint64_t from, size_t bytes)
{
    memcpy(to, (const void *)(uintptr_t)from, bytes);
}

void backend_launch(struct nb_gpu_launch *launch)
{
    launch->state = (uintptr_t)state;
    nb_emulate_run(launch, 1 + (unsigned)(seed % NB_EMULATE_BLOCKS), seed);
    seed++;
}
