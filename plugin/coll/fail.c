/* SPDX-License-Identifier: Apache-2.0 */
/* How a communicator fails; see fail.h. */
#include "coll/fail.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/log.h"
#include "coll/comm.h"

int nb_comm_fail(struct nb_coll_comm *comm, int err, const char *why)
{
    int none = 0;

    if (!atomic_compare_exchange_strong(&comm->failure.error, &none, err))
        return none;
    snprintf(comm->failure.text, sizeof(comm->failure.text), "%.*s", (int)sizeof(comm->failure.text) - 1,
             why);
    return err;
}

int nb_comm_error(struct nb_coll_comm *comm, int err, const char *fmt, ...)
{
    char text[512];
    va_list ap;

    if (nb_comm_failed(comm))
        return nb_comm_failed(comm);
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    NB_WARN("%s: %s", comm->label, text);
    return nb_comm_fail(comm, err, text);
}

bool nb_peer_left(struct nb_coll_comm *comm, const struct nb_peer *peer, enum nb_class cls,
                  const struct nb_op *op)
{
    if (!peer->gone && !peer->tx[cls].closed)
        return false;
    nb_comm_error(comm, -ECONNRESET, "%s has closed its communicator but %s %llu needs it", peer->name,
                  nb_func_name(op->func), (unsigned long long)op->opno);
    return true;
}
