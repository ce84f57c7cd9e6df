/* SPDX-License-Identifier: Apache-2.0 */
/* Detection of an engine that makes no steps. */
#include <errno.h>
#include <stdbool.h>

#include "base/clock.h"
#include "base/log.h"
#include "coll/comm/comm.h"
#include "coll/engine.h"

#define EVERY_MS 1000
#define LEAST_MS 60000
#define LOCK_MS 50 /* time between checks while waiting for the lock */

static int64_t limit_ms(const struct nb_coll_comm *comm)
{
    const int64_t ms = 2 * 1000 * comm->ctx->params->peer_timeout;

    return ms > LEAST_MS ? ms : LEAST_MS;
}

/* Return the result of the last check. */
static bool is_stuck(struct nb_coll_comm *comm)
{
    struct nb_stuck *s = &comm->stuck;

    return atomic_load_explicit(&s->waited_ms, memory_order_relaxed) > limit_ms(comm) &&
           atomic_load_explicit(&s->steps, memory_order_relaxed) == nb_engine_steps(comm->engine);
}

static void declare(struct nb_coll_comm *comm, uint64_t steps)
{
    int none = 0;

    nb_engine_call_stuck(comm->engine, steps);
    if (atomic_compare_exchange_strong(&comm->failure.shown, &none, -ETIMEDOUT))
        NB_WARN(
            "%s: the engine of this node has made no step for %lld s (twice NIBBLE_PEER_TIMEOUT, at least %d "
            "s): its thread, nibble-engine, hangs in a call that does not return. The communicator has "
            "failed",
            comm->label, (long long)(limit_ms(comm) / 1000), LEAST_MS / 1000);
}

int nb_stuck_check(struct nb_coll_comm *comm)
{
    struct nb_stuck *s = &comm->stuck;
    const int64_t now = nb_clock_ms(&comm->ctx->clock), limit = limit_ms(comm);
    int64_t last = atomic_load_explicit(&s->checked_ms, memory_order_relaxed), gap;
    uint64_t steps;

    if (now - last < EVERY_MS || !atomic_compare_exchange_strong(&s->checked_ms, &last, now))
        return is_stuck(comm) ? -ETIMEDOUT : 0;
    steps = nb_engine_steps(comm->engine);
    if (atomic_exchange(&s->steps, steps) != steps) {
        atomic_store(&s->waited_ms, 0);
        return 0;
    }
    gap = now - last < limit / 4 ? now - last : limit / 4;
    if (atomic_fetch_add(&s->waited_ms, gap) + gap <= limit)
        return 0;
    declare(comm, steps);
    return -ETIMEDOUT;
}

int nb_stuck_lock(struct nb_coll_comm *comm)
{
    while (!nb_turn_lock_ask(&comm->progress_lock, LOCK_MS))
        if (nb_stuck_check(comm))
            return -ETIMEDOUT;
    return 0;
}
