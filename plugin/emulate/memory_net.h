/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transport between the contexts of one process, for one thread. A message is copied when both its send and
 * its receive are posted, by the later of the two calls. It has one device, of unknown rate. Every message
 * arrives, at once and in order.
 */
#ifndef NIBBLE_EMULATE_MEMORY_NET_H
#define NIBBLE_EMULATE_MEMORY_NET_H

#include "net/transport.h"

extern const struct nb_net_ops nb_net_memory;

#endif
