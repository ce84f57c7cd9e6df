/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels emulated on the CPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "kernels/emulate.h"

static struct nb_gpu_state *state;
static uint64_t seed = 1;

int backend_open(void)
{
#ifdef NB_TSAN
    printf("skipped: the emulation runs in one thread and changes stacks, which the thread sanitizer does not follow\n");
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

static void check_zero(const void *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (((const char *)p)[i]) {
            fprintf(stderr, "a workspace was left with byte %zu set\n", i);
            abort();
        }
}

/* Words of tickets that have to be zero again. */
static size_t zero_bytes(const struct nb_gpu_desc *d)
{
    return (d->op == NB_GPU_ENCODE                                               ? 8u
            : d->op == NB_GPU_ULP_ENCODE || d->op == NB_GPU_DELTA4_ENCODE ? 48u
            : d->op == NB_GPU_ULP_DECODE || d->op == NB_GPU_DELTA4_DECODE ? 32u
                                                                                 : 0u) *
           (size_t)d->tickets;
}

void backend_run(struct nb_gpu_desc *desc, size_t count, struct nb_gpu_result *result)
{
    struct nb_gpu_desc *list = backend_alloc(count * sizeof(*list));
    struct nb_gpu_result *results = backend_alloc(count * sizeof(*results));
    void **work = calloc(count + 1, sizeof(*work)), **scratch = calloc(count + 1, sizeof(*scratch));
    struct nb_gpu_launch launch = {(uintptr_t)state, 0, (uintptr_t)list, count};
    uint64_t ticket = 0;

    for (size_t i = 0; i < count; i++) {
        desc[i].result = (uintptr_t)&results[i];
        desc[i].work = 0;
        int64_t bytes = nb_gpu_plan(&desc[i]);
        if (bytes < 0) {
            fprintf(stderr, "nb_gpu_plan: %s\n", strerror((int)-bytes));
            abort();
        }
        work[i] = backend_alloc((size_t)bytes);
        desc[i].work = (uintptr_t)work[i];
        scratch[i] = backend_alloc((size_t)nb_gpu_scratch(&desc[i]));
        memset(scratch[i], 0xa5, (size_t)nb_gpu_scratch(&desc[i]));
        desc[i].scratch = (uintptr_t)scratch[i];
        desc[i].ticket = ticket;
        desc[i].id = (uint32_t)i + 1;
        ticket += desc[i].tickets;
    }
    memcpy(list, desc, count * sizeof(*list));
    nb_emulate_run(&launch, 1 + (unsigned)(seed % 3), seed);
    seed++;
    memcpy(result, results, count * sizeof(*result));
    for (size_t i = 0; i < count; i++) {
        if (result[i].done != i + 1) {
            fprintf(stderr, "descriptor %zu was not finished\n", i);
            abort();
        }
        check_zero(work[i], 72 + zero_bytes(&desc[i]));
        backend_free(work[i]);
        backend_free(scratch[i]);
    }
    free(work);
    free(scratch);
    backend_free(list);
    backend_free(results);
}
