/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How TCP connections are made: tcp_connect.c is the connecting side, tcp_listen.c the accepting one.
 *
 * Both come in two forms. Those of the transport's table make connections with the message protocol
 * (tcp_send.h, tcp_recv.h). The others hand over the sockets to a peer that has shown the token, for
 * transports that only want those.
 */
#ifndef NIBBLE_NET_TCP_CONNECT_H
#define NIBBLE_NET_TCP_CONNECT_H

#include "net/tcp_dev.h"
#include "net/tcp_wire.h"

/* The sockets of a connection that has been made, in stream order. */
struct nb_tcp_sockets {
    int n;
    int fd[NB_TCP_MAX_STREAMS];
    uint8_t conn_id[16];
};

/* As listen, connect and accept of the table, but for sockets: 1 when *out is filled in, 0: call again, or a
 * negative errno after a WARN line. A peer of another `use` is an error on both sides. */
int nb_tcp_listen_for(struct nb_tcp *tcp, int dev, enum nb_tcp_use use, void *handle, void **listen_comm);
int nb_tcp_dial(struct nb_tcp *tcp, int dev, enum nb_tcp_use use, const struct nb_net_conn_cfg *cfg,
                void *handle, struct nb_tcp_sockets *out);
int nb_tcp_take(void *listen_comm, struct nb_tcp_sockets *out);
void nb_tcp_close_sockets(const struct nb_tcp_sockets *sockets);

/* As in struct nb_net_ops. */
int nb_tcp_listen(struct nb_net *net, int dev, void *handle, void **listen_comm);
int nb_tcp_connect(struct nb_net *net, int dev, const struct nb_net_conn_cfg *cfg, void *handle,
                   void **send_comm);
void nb_tcp_abandon(struct nb_net *net, void *handle);
void nb_tcp_handle_name(const void *handle, char *name, size_t cap);
int nb_tcp_accept(void *listen_comm, void **recv_comm);
int nb_tcp_close_listen(void *listen_comm);

/* Free the state of connects that nobody called again (the transport is shutting down). */
void nb_tcp_abandon_all(struct nb_tcp *tcp);

#endif
