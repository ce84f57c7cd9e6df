/* SPDX-License-Identifier: Apache-2.0 */
/* What moves a verbs connection forward, and what its owner may sleep on. One thread at a time. */
#ifndef NIBBLE_NET_VERBS_PROGRESS_H
#define NIBBLE_NET_VERBS_PROGRESS_H

#include <poll.h>

#include "net/verbs_comm.h"

/* Take completions, read the socket and asynchronous events now and then. True when something moved. */
bool nb_verbs_progress(struct nb_verbs_comm *c);
/* Before a request is queued: 0, or the error that the connection has, or -ECONNRESET when the peer has
 * closed. */
int nb_verbs_check(struct nb_verbs_comm *c);
/* As in struct nb_net_ops. */
int nb_verbs_poll_fds(void *comm, int is_send, struct pollfd *fds, int max);

#endif
