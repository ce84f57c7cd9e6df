/* SPDX-License-Identifier: Apache-2.0 */
/* Common parts of simulated networks. See simulated.h. */
#include "tests/net/simulated.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int simulated_list_add(struct simulated_list *list, void *thing)
{
    if (list->n == list->cap) {
        list->cap = list->cap ? 2 * list->cap : 64;
        list->at = realloc(list->at, (size_t)list->cap * sizeof(*list->at));
        if (!list->at)
            abort();
    }
    list->at[list->n] = thing;
    return list->n++;
}

void simulated_handle_write(void *handle, const struct simulated_handle *h)
{
    memset(handle, 0, NB_NET_HANDLE_BYTES);
    memcpy(handle, h, sizeof(*h));
}

int simulated_handle_read(const void *handle, struct simulated_handle *h)
{
    memcpy(h, handle, sizeof(*h));
    return h->magic == SIMULATED_HANDLE ? 0 : -EINVAL;
}

void simulated_name(char name[SIMULATED_NAME], int node)
{
    snprintf(name, SIMULATED_NAME, "10.0.%d.%d<1>", node / 256, node % 256);
}

int simulated_init(struct nb_context *ctx, const struct nb_net_ops *ops, struct nb_net **net)
{
    *net = malloc(sizeof(**net));
    if (!*net)
        return -ENOMEM;
    **net = (struct nb_net){.ops = ops, .ctx = ctx};
    return 0;
}

void simulated_fini(struct nb_net *net)
{
    free(net);
}

int simulated_devices(struct nb_net *net, int *ndev)
{
    (void)net;
    *ndev = 1;
    return 0;
}

int simulated_iflush(void *recv_comm, int n, void **data, const size_t *sizes, void **mhandles,
                     void **request)
{
    (void)recv_comm, (void)n, (void)data, (void)sizes, (void)mhandles;
    *request = NULL;
    return 0;
}

void simulated_properties(struct nb_net_props *props, const char *name, double bytes_per_s)
{
    memset(props, 0, sizeof(*props));
    snprintf(props->name, sizeof(props->name), "%s", name);
    props->mem_support = NB_MEM_HOST;
    props->speed_mbps = (int)(bytes_per_s / 125e3);
    props->max_comms = 65536;
    props->max_recvs = 1;
    props->max_bytes = (size_t)1 << 30;
}
