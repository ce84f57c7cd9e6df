/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The context of the process (abi/context.h), which all of NCCL's tables share. It is made by the first call
 * of any table and freed when the library is unloaded, since communicators are counted over the life of the
 * process. It is *up*, with settings read and the transport open, from the first init of either half to the
 * last finalize; NCCL finalizes the net half of a communicator before its CollNet half, and tables before v11
 * are never finalized at all.
 *
 * Functions may be called from any thread.
 */
#ifndef NIBBLE_ABI_PROCESS_H
#define NIBBLE_ABI_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "abi/device_list.h"
#include "nibble/nccl_types.h"

struct nb_context;
struct nb_params;

/* The context, made if need be. NULL: no memory. */
struct nb_context *nb_process_context(void);

/* A profiler instance keeps parts of the context (+1) or gives them back (-1). While there are any it is not
 * freed. */
void nb_process_profilers(int change);

/* ---- Init of a half ------------------------------------------------------------------------------------ */

enum nb_half { NB_HALF_NET, NB_HALF_COLLNET, NB_HALF_COUNT };

/* One init of one half for one communicator: the ctx of the tables from v11 on. Children with shared
 * resources use their parent's. */
struct nb_init {
    enum nb_half half;
    uint64_t comm_id;
    int traffic_class; /* NCCL_NET_TRAFFIC_CLASS_UNDEF: the transport's default */
    struct nb_init *next;
};

/* Take a reference, bring the context up if this is the first. 0 and *init, to be given to
 * nb_process_finalize, or a negative errno after a WARN line (-EINVAL: a bad setting). */
int nb_process_init(enum nb_half half, uint64_t comm_id, int traffic_class, ncclDebugLogger_t logger,
                    struct nb_init **init);
/* Give the reference back. -EINVAL when `init` is none of this half that is alive. */
int nb_process_finalize(enum nb_half half, struct nb_init *init);

/* For tables without finalize: a reference a half that is kept until the library's destructor runs. NCCL
 * calls their init anew after all communicators are gone; that finds the reference still held. */
int nb_process_init_for_good(enum nb_half half, ncclDebugLogger_t logger);
/* An error is told to NCCL's progress thread: true for the process's first one where NCCL takes such tables
 * (2.27 or older), for that NCCL drops it. Any thread. */
bool nb_process_loses_first(void);

/* The settings in force, kept so until nb_process_release_settings; NULL where the CollNet half is not
 * initialized: what NCCL asks the tuner about CollNet is then of another plugin. */
const struct nb_params *nb_process_share_settings(void);
void nb_process_release_settings(void);

/* ---- While it is up ------------------------------------------------------------------------------------ */

/* The transport in force for NCCL's own traffic; NULL (after a WARN line) outside init..finalize. */
struct nb_net *nb_process_transport(void);

/* The job is to stop, and has been told why (base/demand.h): connections and data are refused. */
bool nb_process_stops(void);

/* Another nibble has loaded this one to forward to it (on), or is about to unload it. */
void nb_process_forwarded(int on);

/* A connection, listener or collective was made (+1) or closed (-1). While there are any, the context stays
 * up, since threads may still be at work in it. */
void nb_process_count(int change);

int nb_process_devices(int *ndev);
/* NULL (after a WARN line) for an unknown device. The memory lives as long as the library. */
const struct nb_device_info *nb_process_device(int dev);

#endif
