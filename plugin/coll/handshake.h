/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of one size that two nodes exchange on a connection while a group is made: a hello, then votes.
 *
 * Nothing here blocks. All functions are for the thread that connects.
 */
#ifndef NIBBLE_COLL_HANDSHAKE_H
#define NIBBLE_COLL_HANDSHAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/transport.h"

/* A message, the buffer of which serves for the next one on the same connection, too. */
struct nb_handshake {
    uint8_t buf[256];
    void *mhandle; /* of the connection; stays when the buffer is used again */
    void *req;
    bool posted;
    bool refused; /* the last failure is that of registering the buffer: the connection is as it was */
    int done;
    size_t len;
};

/* Drive a handshake message over its connection: > 0 moved, 0 not, or < 0 when the connection is lost
 * (or n->refused). */
int nb_handshake_send(const struct nb_net_ops *net, void *conn, struct nb_handshake *n);
int nb_handshake_receive(const struct nb_net_ops *net, void *conn, struct nb_handshake *n);
/* Its buffer is free for another message on the same connection. */
void nb_handshake_again(struct nb_handshake *n);
/* Its connection is about to be closed, or handed over. */
void nb_handshake_forget(const struct nb_net_ops *net, void *conn, struct nb_handshake *n);

#endif
