/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The profiler after nibble's (NIBBLE_PROFILER_NEXT). It gets the events that it would get without nibble, by
 * its own mask and NCCL's rule for masks, with its own handles.
 *
 * NCCL keeps one handle for each event and passes it as the parent of other events. nibble ignores most
 * events, and NCCL gets the next profiler's handle for them. Where both profilers have a handle (an
 * operation's call and launch, the launch of a kernel), NCCL gets a *pair*, which nibble recognises by its
 * address:
 *
 *        NCCL's handle --in the area of pairs--> { nibble's, the next profiler's }
 *                      --elsewhere-------------> the next profiler's
 *
 * nibble therefore never follows a pointer that may belong to another process: a proxy that serves several
 * processes gets their contexts and parents. Pairs of events are reused after 65,536 pairs, when all events
 * below them have long ended. Pairs of captured calls stay, because they are the parents of every replay.
 *
 * Without a next profiler contexts and handles are nibble's own. Any thread.
 */
#ifndef NIBBLE_ABI_PROFILER_NEXT_H
#define NIBBLE_ABI_PROFILER_NEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nibble/nccl_profiler.h"

/* The arguments of NCCL's init. */
struct nb_prof_setting {
    int version; /* of the table that NCCL calls */
    uint64_t comm_id;
    const char *name;
    int nnodes, nranks, rank;
    ncclDebugLogger_t logger;
    int *mask; /* NCCL's, for the whole process. May be NULL */
};

/* Return the communicator's context for NCCL, made from nibble's (`own`), and set its mask from nibble's
 * `own_mask` and the next profiler's. NULL: out of memory. */
void *nb_prof_next_init(const struct nb_prof_setting *setting, void *own, int own_mask);
/* End it and return the next profiler's result. */
ncclResult_t nb_prof_next_finalize(void *context);

/* Return nibble's part of a context, and of an event's handle, or NULL. */
void *nb_prof_next_own(void *context);
void *nb_prof_next_own_event(void *handle);

/* Pass on an event for which nibble has the handle `own` (NULL: it ignores the event). Return the next
 * profiler's result and *handle for NCCL. `description` belongs to the table of `version`. `lasts`: *handle
 * stays the parent of events until the process ends. */
ncclResult_t nb_prof_next_start(void *context, void **handle, void *own, int version, const void *description,
                                bool lasts);
ncclResult_t nb_prof_next_stop(void *handle);
ncclResult_t nb_prof_next_state(void *handle, int state, ncclProfilerEventStateArgs_v4_t *args);

#endif
