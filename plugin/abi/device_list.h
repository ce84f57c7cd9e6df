/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of devices, which both halves share. NCCL matches the CollNet devices with the point-to-point
 * devices by name, uses the index of the latter for both, and takes speed and reachable memory from whichever
 * it sees first. Hence there is only one list.
 */
#ifndef NIBBLE_ABI_DEVICE_LIST_H
#define NIBBLE_ABI_DEVICE_LIST_H

#include <stdbool.h>
#include <stddef.h>

#include "net/transport.h"

struct nb_context;

struct nb_device_info {
    struct nb_net_props net; /* the transport's properties, with defaults for limits that it left open */
    int mem_support;         /* memory that both the transport and the collective engine reach: NCCL_PTR_*
                              bits */
    size_t max_coll_bytes;   /* largest window of a collective, a multiple of the wire unit */
};

struct nb_device_list {
    int n;
    bool staged; /* nibble claims GPU memory that the transport does not reach (abi/staging.h) */
    struct nb_device_info device[NB_NET_MAX_DEVS];
};

/* Ask the transport of a started context for its devices, and decide which memory NCCL may hand over
 * (nb_device_pointers). Return 0, or a negative errno after a WARN line. */
int nb_device_list_fill(struct nb_context *ctx, struct nb_device_list *list);

#endif
