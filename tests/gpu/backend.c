/* SPDX-License-Identifier: Apache-2.0 */
/* Run batches of descriptors on either backend. See backend.h. */
#include "tests/gpu/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Set the descriptor's result, work, scratch, ticket and id. Return the bytes of its workspace. */
static size_t prepare(struct nb_gpu_desc *desc, size_t number, uint64_t ticket, struct nb_gpu_result *result)
{
    int64_t bytes;

    desc->result = (uintptr_t)result;
    desc->work = 0;
    bytes = nb_gpu_plan(desc);
    if (bytes < 0) {
        fprintf(stderr, "nb_gpu_plan: %s\n", strerror((int)-bytes));
        exit(1);
    }
    desc->work = backend_alloc_device((size_t)bytes, 1);
    desc->scratch = backend_alloc_device((size_t)nb_gpu_scratch(desc), 0);
    desc->ticket = ticket;
    desc->id = (uint32_t)number + 1;
    return (size_t)bytes;
}

static void check(const struct nb_gpu_desc *desc, size_t number, const struct nb_gpu_result *result,
                  size_t bytes)
{
    uint8_t *left = malloc(bytes + 1);

    if (!left)
        abort();
    if (result->done != number + 1) {
        fprintf(stderr, "descriptor %zu was not finished\n", number);
        exit(1);
    }
    backend_read_device(left, desc->work, bytes);
    for (size_t k = 0; k < bytes; k++)
        if (left[k]) {
            fprintf(stderr, "operation %u left byte %zu of its workspace set\n", desc->op, k);
            exit(1);
        }
    free(left);
    backend_free_device(desc->work);
    backend_free_device(desc->scratch);
}

void backend_run(struct nb_gpu_desc *desc, size_t count, struct nb_gpu_result *result)
{
    struct nb_gpu_desc *list = backend_alloc(count * sizeof(*list));
    struct nb_gpu_result *results = backend_alloc(count * sizeof(*results));
    struct nb_gpu_launch launch = {.list = (uintptr_t)list, .count = count};
    size_t *bytes = calloc(count + 1, sizeof(*bytes));
    uint64_t ticket = 0;

    if (!bytes)
        abort();
    for (size_t i = 0; i < count; i++) {
        bytes[i] = prepare(&desc[i], i, ticket, &results[i]);
        ticket += desc[i].tickets;
    }
    memcpy(list, desc, count * sizeof(*list));
    backend_launch(&launch);
    memcpy(result, results, count * sizeof(*result));
    for (size_t i = 0; i < count; i++)
        check(&desc[i], i, &result[i], bytes[i]);
    free(bytes);
    backend_free(list);
    backend_free(results);
}
