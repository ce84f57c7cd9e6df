/* SPDX-License-Identifier: Apache-2.0 */
/* TCP sockets: how they are made, their options, their names. */
#ifndef NIBBLE_NET_TCP_SOCK_H
#define NIBBLE_NET_TCP_SOCK_H

#include <stdbool.h>
#include <stddef.h>

#include "net/tcp_conf.h"

/* A non-blocking socket, or a negative errno after a WARN line. */
int nb_tcp_socket(int family);
/* Options of data sockets and listeners; those of buffers only before the connection is made. */
void nb_tcp_tune(const struct nb_tcp_conf *conf, int fd, bool before_connect);
/* "address<port>" of either end of a connected socket, each into at least 64 bytes; NULL: not wanted. */
void nb_tcp_names(int fd, char *local, char *peer, size_t cap);

#endif
