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

/* Read the devices of `under`, which is initialised, and make the table that shows them `copies` times: its
 * devices, properties, listen and connect speak of the list's devices, all else is the transport's. Device i
 * is NIC i modulo their number, so the first devices are the NICs in the transport's order, under their own
 * names; later ones are called "name#1", "name#2". Fewer copies (after a WARN line) when there would be more
 * than NB_NET_MAX_DEVS devices. A NIC that cannot tell its properties is shown with made-up ones (after a
 * WARN line), its connections fail.
 *
 * 0 and *ops, which is valid until the next call, or the error of the transport's list. One caller at a time.
 */
int nb_devices_open(const struct nb_net_ops *under, int copies, const struct nb_net_ops **ops);

#endif
