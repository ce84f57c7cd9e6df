/* SPDX-License-Identifier: Apache-2.0 */
/* See tcp_comm.h. */
#include "net/tcp_comm.h"

#include "net/tcp_sock.h"

void nb_tcp_comm_init(struct nb_tcp_comm *c, struct nb_tcp_dev *dev, bool is_send, int fd0, int n,
                      const uint8_t conn_id[16], size_t req_size)
{
    c->is_send = is_send;
    c->dev = dev;
    c->nstreams = n;
    c->key = nb_tcp_frame_key(conn_id);
    nb_net_reqs_init(&c->reqs, c, req_size, NB_TCP_REQ_MAX);
    nb_tcp_names(fd0, c->local, c->peer, sizeof(c->peer));
}

void nb_tcp_comm_fini(struct nb_tcp_comm *c)
{
    nb_net_reqs_free(&c->reqs);
}
