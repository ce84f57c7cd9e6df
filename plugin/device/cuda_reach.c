/* SPDX-License-Identifier: Apache-2.0 */
/* See cuda_reach.h. */
#include "device/cuda_reach.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void nb_ranges_init(struct nb_ranges *r)
{
    memset(r, 0, sizeof(*r));
    pthread_mutex_init(&r->lock, NULL);
}

void nb_ranges_free(struct nb_ranges *r)
{
    free(r->range);
    pthread_mutex_destroy(&r->lock);
}

/* The number of ranges that begin at or below `address`. Under lock. */
static unsigned below(const struct nb_ranges *r, uintptr_t address)
{
    unsigned low = 0, high = r->n;

    while (low < high) {
        const unsigned mid = (low + high) / 2;
        if (r->range[mid].base <= address)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

int nb_ranges_add(struct nb_ranges *r, const void *base, size_t bytes, enum nb_reach reach)
{
    const struct nb_reach_range made = {(uintptr_t)base, bytes, reach};
    unsigned at;
    int ret = 0;

    pthread_mutex_lock(&r->lock);
    at = below(r, made.base);
    if (at && r->range[at - 1].base == made.base) {
        r->range[at - 1] = made;
    } else {
        if (r->n == r->cap) {
            const unsigned cap = r->cap ? 2 * r->cap : 64;
            void *grown = realloc(r->range, cap * sizeof(*r->range));
            if (grown) {
                r->range = grown;
                r->cap = cap;
            }
        }
        if (r->n < r->cap) {
            memmove(r->range + at + 1, r->range + at, (r->n - at) * sizeof(*r->range));
            r->range[at] = made;
            r->n++;
        } else {
            ret = -ENOMEM;
        }
    }
    pthread_mutex_unlock(&r->lock);
    return ret;
}

void nb_ranges_remove(struct nb_ranges *r, const void *base)
{
    unsigned at;

    pthread_mutex_lock(&r->lock);
    at = below(r, (uintptr_t)base);
    if (at && r->range[at - 1].base == (uintptr_t)base) {
        memmove(r->range + at - 1, r->range + at, (r->n - at) * sizeof(*r->range));
        r->n--;
    }
    pthread_mutex_unlock(&r->lock);
}

enum nb_reach nb_ranges_find(struct nb_ranges *r, const void *address)
{
    enum nb_reach reach = NB_REACH_UNKNOWN;
    unsigned at;

    pthread_mutex_lock(&r->lock);
    at = below(r, (uintptr_t)address);
    if (at && (uintptr_t)address - r->range[at - 1].base < r->range[at - 1].bytes)
        reach = r->range[at - 1].reach;
    pthread_mutex_unlock(&r->lock);
    return reach;
}
