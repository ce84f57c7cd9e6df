/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the transport in force (NIBBLE_NET) and counts who uses it. */
#include <errno.h>
#include <pthread.h>

#include "base/log.h"
#include "base/params.h"
#include "net/transport.h"

/* In the order of the words of NIBBLE_NET. "auto" has one choice so far. */
static const struct nb_net_ops *const transports[] = {&nb_net_tcp, &nb_net_tcp};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct nb_net_ops *in_force;
static int users;

int nb_net_acquire(const struct nb_net_ops **ops)
{
    int rc = 0;

    pthread_mutex_lock(&lock);
    if (users == 0) {
        rc = nb_params_acquire();
        if (rc)
            goto out;
        in_force = transports[nb_params()->net];
        rc = in_force->init();
        if (rc) {
            nb_params_release();
            goto out;
        }
    }
    users++;
    *ops = in_force;
out:
    pthread_mutex_unlock(&lock);
    return rc;
}

void nb_net_release(void)
{
    pthread_mutex_lock(&lock);
    if (users > 0 && --users == 0) {
        in_force->fini();
        nb_params_release();
    }
    pthread_mutex_unlock(&lock);
}
