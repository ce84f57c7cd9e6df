/* SPDX-License-Identifier: Apache-2.0 */
/* Reports decisions to the observer of a node, see observe.h. */
#include "coll/observe.h"

void nb_observe(struct nb_observer *observer, nb_observer_fn fn, void *arg)
{
    atomic_store(&observer->arg, arg);
    atomic_store(&observer->fn, fn);
}

void nb_observe_tell(const struct nb_observer *observer, const struct nb_observation *what)
{
    nb_observer_fn fn = atomic_load(&observer->fn);

    if (fn)
        fn(atomic_load(&observer->arg), what);
}
