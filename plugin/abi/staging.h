/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Point-to-point traffic of GPU memory over a transport that does not reach it, through pinned host memory.
 * NCCL takes one half's answer about GPU memory for both: where NIBBLE_GPU_POINTERS=1 claims it for
 * collectives, sends and receives get GPU memory, too. For tests on machines without GPU-direct. The calling
 * thread waits for each copy.
 */
#ifndef NIBBLE_ABI_STAGING_H
#define NIBBLE_ABI_STAGING_H

#include "net/transport.h"

/* Open a transport that stages for `transport`, which it does not own. The engine uses `transport` itself:
 * the staging one lacks the engine's functions (abandon, leave, poll_fds, watch_fd, peer_name, wire_bytes).
 * Return 0 or -ENOMEM. */
int nb_staging_open(struct nb_net *transport, struct nb_net **staging);
/* Close it after its last connection and listener is closed. */
void nb_staging_close(struct nb_net *staging);

#endif
