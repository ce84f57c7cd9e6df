/* SPDX-License-Identifier: Apache-2.0 */
/* Handshake messages; see handshake.h. */
#include "coll/handshake.h"

/* Drive a message in the direction that it has. */
static int handshake_drive(const struct nb_net_ops *net, void *conn, struct nb_handshake *n, bool send)
{
    void *data = n->buf;
    size_t size = sizeof(n->buf);
    int tag = 0, ret;
    bool moved = false;

    if (n->done)
        return 0;
    if (!n->posted) {
        if (!n->mhandle) {
            ret = net->reg_mr(conn, n->buf, sizeof(n->buf), NB_MEM_HOST, &n->mhandle);
            n->refused = ret != 0;
            if (ret)
                return ret;
        }
        ret = send ? net->isend(conn, n->buf, n->len, 0, n->mhandle, &n->req)
                   : net->irecv(conn, 1, &data, &size, &tag, &n->mhandle, &n->req);
        if (ret)
            return ret;
        if (!n->req)
            return 0;
        n->posted = moved = true;
    }
    ret = net->test(n->req, &n->done, send ? NULL : &n->len);
    return ret ? ret : (moved || n->done);
}

int nb_handshake_send(const struct nb_net_ops *net, void *conn, struct nb_handshake *n)
{
    return handshake_drive(net, conn, n, true);
}

int nb_handshake_receive(const struct nb_net_ops *net, void *conn, struct nb_handshake *n)
{
    return handshake_drive(net, conn, n, false);
}

void nb_handshake_again(struct nb_handshake *n)
{
    n->posted = false;
    n->done = 0;
    n->req = NULL;
}

void nb_handshake_forget(const struct nb_net_ops *net, void *conn, struct nb_handshake *n)
{
    if (conn && n->mhandle)
        net->dereg_mr(conn, n->mhandle);
    n->mhandle = NULL;
    n->len = 0; /* nothing is under way */
    nb_handshake_again(n);
}
