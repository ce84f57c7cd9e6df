/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The context of the process (abi/context.h), which all of NCCL's tables share. The first call of any table
 * creates it, and unloading the library frees it, since nibble counts communicators over the life of the
 * process. It is *up*, with settings read and the transport open, from the first init of either half to the
 * last finalize. NCCL finalizes the net half of a communicator before its CollNet half. Tables before v11
 * have no finalize.
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

/* Return the context, and create it if need be. NULL: out of memory. */
struct nb_context *nb_process_context(void);

/* Count a profiler instance that uses parts of the context (+1) or stops doing so (-1). While instances exist
 * the context is not freed. */
void nb_process_profilers(int change);

/* ---- Init of a half ------------------------------------------------------------------------------------ */

/* A half, or the tables of one-sided operations beside both. */
enum nb_half { NB_HALF_NET, NB_HALF_COLLNET, NB_HALF_RMA, NB_HALF_COUNT };

/* One init of one half for one communicator: the ctx of the tables from v11 on. Children with shared
 * resources use their parent's. */
struct nb_init {
    enum nb_half half;
    uint64_t comm_id;
    int traffic_class; /* NCCL_NET_TRAFFIC_CLASS_UNDEF: the transport's default */
    struct nb_init *next;
};

/* Take a reference, and bring the context up if it is the first. Return 0 and *init, which the caller passes
 * to nb_process_finalize, or a negative errno after a WARN line (-EINVAL: a bad setting). */
int nb_process_init(enum nb_half half, uint64_t comm_id, int traffic_class, ncclDebugLogger_t logger,
                    struct nb_init **init);
/* Release the reference. Return -EINVAL when `init` is not a live init of this half. */
int nb_process_finalize(enum nb_half half, struct nb_init *init);

/* Init for tables without finalize: take a reference for this half, which the library's destructor releases.
 * NCCL calls their init again after all communicators are gone, and the reference is then still held. */
int nb_process_init_for_good(enum nb_half half, ncclDebugLogger_t logger);
/* Report that NCCL's progress thread gets an error. Return true for the process's first error where NCCL uses
 * tables before v11 (2.27 or older), because that NCCL drops it. Any thread. */
bool nb_process_loses_first(void);

/* Note that one-sided operations of communicator `comm_id` have failed. Return true the first time. Later
 * nb_process_has_failed returns true for it. Any thread. */
bool nb_process_fail(uint64_t comm_id);
bool nb_process_has_failed(uint64_t comm_id);
/* Return the communicator of a ctx of NCCL's, or 0 for a ctx that is no live init. */
uint64_t nb_process_comm_id(const void *ctx);

/* Get the settings and keep them until nb_process_release_settings. NULL while the CollNet half is not
 * initialized: NCCL's questions about CollNet then concern another plugin. */
const struct nb_params *nb_process_share_settings(void);
void nb_process_release_settings(void);

/* ---- While it is up ------------------------------------------------------------------------------------ */

/* Return the transport for NCCL's own traffic, or NULL (after a WARN line) outside init..finalize. */
struct nb_net *nb_process_transport(void);

/* Return whether the job must stop, after a log line that said why (base/demand.h). Connections and data are
 * then refused. */
bool nb_process_stops(void);

/* Note that another nibble has loaded this one to forward to it (on), or is about to unload it. */
void nb_process_forwarded(int on);

/* Count a connection, listener or collective that was created (+1) or closed (-1). While any exists the
 * context stays up, since threads may still work in it. */
void nb_process_count(int change);

int nb_process_devices(int *ndev);
/* Return a device's properties, or NULL (after a WARN line) for an unknown device. The memory lives as long
 * as the library. */
const struct nb_device_info *nb_process_device(int dev);

#endif
