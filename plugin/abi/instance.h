/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What both halves of the plugin share in a process: settings, transport and the list of devices. It comes into
 * being with the first init of either half and goes with the last finalize; NCCL finalizes the net half of a
 * communicator before its CollNet half, and tables before v11 are never finalized at all.
 *
 * Functions may be called from any thread.
 */
#ifndef NIBBLE_ABI_INSTANCE_H
#define NIBBLE_ABI_INSTANCE_H

#include <stddef.h>
#include <stdint.h>

#include "net/transport.h"
#include "nibble/nccl_types.h"

enum nb_half { NB_HALF_NET, NB_HALF_COLLNET, NB_HALF_COUNT };

/* One init of one half for one communicator: the ctx of the tables from v11 on. Children with shared
 * resources use their parent's. */
struct nb_context {
    enum nb_half half;
    uint64_t comm_id;
    int traffic_class; /* NCCL_NET_TRAFFIC_CLASS_UNDEF: the transport's default */
    struct nb_context *next;
};

/* Take a reference, bring the shared state up if this is the first, and make a context. 0, or a negative errno
 * after a log line (-EINVAL: a bad setting). */
int nb_instance_enter(enum nb_half half, uint64_t comm_id, int traffic_class, ncclDebugLogger_t logger,
                      struct nb_context **ctx);
/* Give the reference back. -EINVAL when `ctx` is not a context of this half that is alive. */
int nb_instance_leave(enum nb_half half, struct nb_context *ctx);

/* For tables without finalize: a reference a half that is kept until the library's destructor runs. NCCL calls
 * their init anew after all communicators are gone; that finds the reference still held. */
int nb_instance_enter_for_good(enum nb_half half, ncclDebugLogger_t logger);

/* 1 between init and finalize of this half. */
int nb_instance_has(enum nb_half half);

/* Table of the transport in force; NULL (after a WARN line) outside init..finalize. */
const struct nb_net_ops *nb_instance_transport(void);

/* A connection, listener or collective was made (+1) or closed (-1). While there are any, the shared state
 * stays, since threads may still be at work in it. */
void nb_instance_count(int change);

/* ---- Devices: the same list for both halves ---------------------------------------------------------
 * NCCL matches the CollNet devices with the point-to-point ones by name, uses the index of the latter for both,
 * and takes speed and reachable memory from whichever it sees first. Hence there is only one list. */

int nb_instance_devices(int *ndev);

struct nb_device_info {
    struct nb_net_props net; /* as the transport has it, with limits that it left open filled in */
    int mem_support;         /* what both the transport and the collective engine can reach: NCCL_PTR_* bits */
    size_t max_coll_bytes;   /* largest window of a collective, a multiple of the wire unit */
};

/* NULL (after a WARN line) for an unknown device. The memory lives as long as the library. */
const struct nb_device_info *nb_instance_device(int dev);

#endif
