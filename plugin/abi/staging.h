/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Point-to-point traffic of GPU memory over a transport that does not reach it, through pinned host memory.
 * NCCL takes one half's answer about GPU memory for both: where NIBBLE_GPU_POINTERS=1 claims it for
 * collectives, sends and receives get it, too. For tests on machines without GPU-direct; a copy is waited for
 * on the thread that calls.
 */
#ifndef NIBBLE_ABI_STAGING_H
#define NIBBLE_ABI_STAGING_H

#include "net/transport.h"

/* A transport that stages for `transport`, which it does not own. The engine's connections are not made with
 * it: it leaves out what only they use (abandon, leave, poll_fds, watch_fd, peer_name, wire_bytes). 0, or
 * -ENOMEM. */
int nb_staging_open(struct nb_net *transport, struct nb_net **staging);
/* Of which no connection or listener is left. */
void nb_staging_close(struct nb_net *staging);

#endif
