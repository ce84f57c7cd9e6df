/* SPDX-License-Identifier: Apache-2.0 */
/* Sends that do not return. See hanging.h. */
#include "tests/net/hanging.h"

#include <stdatomic.h>
#include <unistd.h>

#include "tests/net/loopback.h"

static atomic_bool hang, seen;
static struct nb_net_ops ops; /* loopback_ops except for the send */

static int hanging_isend(void *send_comm, const void *data, size_t size, int tag, void *mhandle,
                         void **request)
{
    while (atomic_load(&hang)) {
        atomic_store(&seen, true);
        usleep(1000);
    }
    return loopback_ops.isend(send_comm, data, size, tag, mhandle, request);
}

static int hanging_init(struct nb_context *ctx, struct nb_net **net)
{
    const int ret = loopback_ops.init(ctx, net);

    ops = loopback_ops;
    ops.isend = hanging_isend;
    if (!ret)
        (*net)->ops = &ops;
    return ret;
}

const struct nb_net_ops hanging_ops = {.name = "hanging", .init = hanging_init};

void hanging_set(bool on)
{
    atomic_store(&seen, false);
    atomic_store(&hang, on);
}

bool hanging_seen(void)
{
    return atomic_load(&seen);
}
