/* SPDX-License-Identifier: Apache-2.0 */
/* Faults of the loopback transport that a test asks for: contexts without a path between them, dead contexts,
 * refused memory, changed or late messages. They are for the whole process. */
#include "loopback_inside.h"

#include <stdlib.h>

#define FAULTS 64

static struct {
    const struct nb_context *a, *b; /* b NULL: a is dead */
} faults[FAULTS];                   /* under fault_lock, the last of the locks */
static int nfaults;
static pthread_mutex_t fault_lock = PTHREAD_MUTEX_INITIALIZER;

static struct {
    const struct nb_context *ctx; /* NULL: none */
    int after;
} refusal;

static bool has_fault(const struct nb_context *a, const struct nb_context *b)
{
    bool has = false;

    pthread_mutex_lock(&fault_lock);
    for (int i = 0; i < nfaults; i++)
        has |= (faults[i].a == a && faults[i].b == b) || (b && faults[i].a == b && faults[i].b == a);
    pthread_mutex_unlock(&fault_lock);
    return has;
}

static void add_fault(const struct nb_context *a, const struct nb_context *b)
{
    pthread_mutex_lock(&fault_lock);
    if (nfaults == FAULTS)
        abort();
    faults[nfaults].a = a;
    faults[nfaults++].b = b;
    pthread_mutex_unlock(&fault_lock);
}

void loopback_separate(const struct nb_context *a, const struct nb_context *b)
{
    add_fault(a, b);
}

void loopback_kill(const struct nb_context *ctx)
{
    add_fault(ctx, NULL);
}

void loopback_refuse(const struct nb_context *ctx, int after)
{
    refusal.ctx = ctx;
    refusal.after = after;
}

void loopback_heal(void)
{
    pthread_mutex_lock(&fault_lock);
    nfaults = 0;
    refusal.ctx = NULL;
    pthread_mutex_unlock(&fault_lock);
}

bool loopback_is_dead(const struct nb_context *ctx)
{
    return has_fault(ctx, NULL);
}

bool loopback_is_cut(const struct nb_context *a, const struct nb_context *b)
{
    return has_fault(a, b);
}

bool loopback_refuses(const struct nb_context *ctx)
{
    if (!refusal.ctx || refusal.ctx != ctx || refusal.after-- != 0)
        return false;
    refusal.ctx = NULL;
    return true;
}

static struct {
    loopback_tap *call;
    void *arg;
} tap;

void loopback_set_tap(loopback_tap *call, void *arg)
{
    tap.call = call;
    tap.arg = arg;
}

void loopback_arrived(uint8_t *bytes, size_t size)
{
    if (tap.call)
        tap.call(tap.arg, bytes, size);
}

static struct {
    loopback_late *call;
    void *arg;
} late;

void loopback_set_late(loopback_late *call, void *arg)
{
    late.call = call;
    late.arg = arg;
}

bool loopback_is_late(void)
{
    return late.call && late.call(late.arg);
}
