/* SPDX-License-Identifier: Apache-2.0 */
/* How verbs connections are made; as in struct nb_net_ops. */
#ifndef NIBBLE_NET_VERBS_CONN_H
#define NIBBLE_NET_VERBS_CONN_H

#include "net/verbs_dev.h"

int nb_verbs_listen(struct nb_net *net, int dev, void *handle, void **listen_comm);
int nb_verbs_connect(struct nb_net *net, int dev, const struct nb_net_conn_cfg *cfg, void *handle,
                     void **send_comm);
int nb_verbs_accept(void *listen_comm, void **recv_comm);
int nb_verbs_close_listen(void *listen_comm);
void nb_verbs_abandon(struct nb_net *net, void *handle);
/* Free the state of connects that nobody called again (the transport is shutting down). */
void nb_verbs_abandon_all(struct nb_verbs *v);

#endif
