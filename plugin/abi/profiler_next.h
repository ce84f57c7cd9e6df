/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The profiler that comes after nibble's (NIBBLE_PROFILER_NEXT): it gets the events that it would get without
 * nibble, by its own mask and NCCL's rule of what a mask asks for, with its own handles.
 *
 * NCCL keeps one handle for each event and gives it back as the parent of others. Most events are of no
 * interest to nibble, and their handles are the other's as they are. Where both have one (an operation's call
 * and launch, the launch of a kernel), NCCL gets a *pair*, which is known by its address:
 *
 *        NCCL's handle --in the area of pairs--> { nibble's, the other's }
 *                      --else------------------> the other's
 *
 * So no pointer is followed that may be another process's: a proxy that serves several processes gets
 * contexts and parents of theirs. Pairs of events are used anew after 65,536 of them, when everything below
 * them has long ended; those of captured calls, which are the parents of every replay, stay.
 *
 * Without such a profiler contexts and handles are nibble's own. Any thread.
 */
#ifndef NIBBLE_ABI_PROFILER_NEXT_H
#define NIBBLE_ABI_PROFILER_NEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nibble/nccl_profiler.h"

/* What NCCL gives to init. */
struct nb_prof_setting {
    int version; /* of the table that NCCL calls */
    uint64_t comm_id;
    const char *name;
    int nnodes, nranks, rank;
    ncclDebugLogger_t logger;
    int *mask; /* NCCL's, of the whole process; may be NULL */
};

/* The communicator's context for NCCL, made of nibble's (`own`), and its mask, made of nibble's `own_mask`
 * and the other's.
 * NULL: no memory. */
void *nb_prof_next_init(const struct nb_prof_setting *setting, void *own, int own_mask);
/* End it: the other's result. */
ncclResult_t nb_prof_next_finalize(void *context);

/* What is nibble's of a context, and of an event's handle; NULL: nothing. */
void *nb_prof_next_own(void *context);
void *nb_prof_next_own_event(void *handle);

/* Pass an event on that nibble has taken, with its handle `own` (NULL: it wants none): its result, and
 * *handle for NCCL. `description` is the one of `version`'s table; `lasts`: *handle is the parent of events
 * for as long as the process lives. */
ncclResult_t nb_prof_next_start(void *context, void **handle, void *own, int version, const void *description,
                                bool lasts);
ncclResult_t nb_prof_next_stop(void *handle);
ncclResult_t nb_prof_next_state(void *handle, int state, ncclProfilerEventStateArgs_v4_t *args);

#endif
