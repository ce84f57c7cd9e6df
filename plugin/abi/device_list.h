/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of devices, the same for both halves. NCCL matches the CollNet devices with the point-to-point
 * ones by name, uses the index of the latter for both, and takes speed and reachable memory from whichever it
 * sees first. Hence there is only one list.
 */
#ifndef NIBBLE_ABI_DEVICE_LIST_H
#define NIBBLE_ABI_DEVICE_LIST_H

#include <stdbool.h>
#include <stddef.h>

#include "net/transport.h"

struct nb_context;

struct nb_device_info {
    struct nb_net_props net; /* as the transport has it, with limits that it left open filled in */
    int mem_support;       /* what both the transport and the collective engine can reach: NCCL_PTR_* bits */
    size_t max_coll_bytes; /* largest window of a collective, a multiple of the wire unit */
};

struct nb_device_list {
    int n;
    bool staged; /* GPU memory is claimed that the transport does not reach (abi/staging.h) */
    struct nb_device_info device[NB_NET_MAX_DEVS];
};

/* Ask the transport of a started context for its devices, and decide which memory NCCL may hand over
 * (nb_device_pointers). 0, or a negative errno after a WARN line. */
int nb_device_list_fill(struct nb_context *ctx, struct nb_device_list *list);

#endif
