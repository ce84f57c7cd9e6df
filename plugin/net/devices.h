/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one list of devices, between the transports and everything above them.
 *
 * NCCL takes the devices of the point-to-point table and of the CollNet table for the same when their names
 * are equal (ncclTopoFillNet in graph/topo.cc), uses the index of the former for both, keeps CollNet
 * resources in arrays of 64 by device, and fails a communicator whose nodes have different numbers of CollNet
 * devices (init.cc, 2.30.3). Hence there is one list, of at most NB_NET_MAX_DEVS entries, whose length does
 * not depend on what fails locally.
 *
 * With NIBBLE_DEVS_PER_NIC = k every NIC is k devices: gathers and reduce-scatters go through CollNet only
 * where every GPU of a node has a device of its own. They have names of their own, and guid and port in
 * common, by which NCCL knows that they share a link's bandwidth.
 */
#ifndef NIBBLE_NET_DEVICES_H
#define NIBBLE_NET_DEVICES_H

#include "net/transport.h"

/* Put the list of devices in front of `under`, an initialized transport of which each NIC is to be `copies`
 * devices. The result's devices, properties, listen, connect and abandon take the list's indices; all other
 * functions are the transport's own, so connections and listeners are too. Device i is NIC i modulo the
 * number of NICs: the first devices are the NICs in the transport's order, under their own names, later ones
 * are called "name#1", "name#2". With fewer copies (after a WARN line) when there would be more than
 * NB_NET_MAX_DEVS devices. A NIC that cannot tell its properties is listed with made-up ones (after a WARN
 * line); its connections fail.
 *
 * 0 and *net, which owns `under` (its fini calls under's), or a negative errno: that of the transport's list,
 * or -ENOMEM; `under` is then the caller's still. */
int nb_devices_open(struct nb_net *under, int copies, struct nb_net **net);

#endif
