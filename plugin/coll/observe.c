/* SPDX-License-Identifier: Apache-2.0 */
/* Where the observer of decisions is kept; see observe.h. */
#include "coll/observe.h"

#include <stdatomic.h>
#include <stddef.h>

static _Atomic(nb_observer) observer;
static _Atomic(void *) observer_arg;

void nb_observe(nb_observer fn, void *arg)
{
    atomic_store(&observer_arg, arg);
    atomic_store(&observer, fn);
}

int nb_observed(void)
{
    return atomic_load_explicit(&observer, memory_order_relaxed) != NULL;
}

void nb_observe_tell(const struct nb_observation *what)
{
    nb_observer fn = atomic_load(&observer);

    if (fn)
        fn(atomic_load(&observer_arg), what);
}
