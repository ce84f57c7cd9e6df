/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one list of devices, between the transports and everything above them.
 *
 * NCCL identifies a device of the point-to-point table with one of the CollNet table by their names
 * (ncclTopoFillNet in graph/topo.cc) and uses the index of the former for both. It keeps CollNet resources in
 * arrays of 64 by device. It fails a communicator whose nodes have different numbers of CollNet devices
 * (init.cc, 2.30.3). Both tables therefore show one list of at most NB_NET_MAX_DEVS entries, whose length
 * does not depend on local failures.
 *
 * With NIBBLE_DEVS_PER_NIC = k every NIC is k devices: NCCL sends gathers and reduce-scatters through CollNet
 * only where every GPU of a node has a device of its own. The k devices have different names but the same
 * guid and port, by which NCCL knows that they share a link's bandwidth.
 */
#ifndef NIBBLE_NET_DEVICES_H
#define NIBBLE_NET_DEVICES_H

#include "net/transport.h"

/* Put the list of devices in front of `under`, an initialized transport, and show each of its NICs as
 * `copies` devices. The result's devices, properties, listen, connect and abandon take the list's indices.
 * All other functions are the transport's own, as are connections and listeners. Device i is NIC i modulo the
 * number of NICs. The first devices are the NICs in the transport's order, under their own names. Later ones
 * are called "name#1", "name#2". Where the list would exceed NB_NET_MAX_DEVS, show fewer copies after a WARN
 * line. A NIC that cannot report its properties is listed with made-up ones, after a WARN line, and its
 * connections fail.
 *
 * Return 0 and *net, which owns `under`: its fini calls the transport's. Otherwise return the negative errno
 * of the transport's list, or -ENOMEM. The caller then still owns `under`. */
int nb_devices_open(struct nb_net *under, int copies, struct nb_net **net);

#endif
