/* SPDX-License-Identifier: Apache-2.0 */
/* Creates and frees a communicator's object with the state of all folders. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/context.h"
#include "base/log.h"
#include "coll/connect/connect.h"
#include "coll/decide/decide.h"
#include "coll/engine.h"
#include "coll/flow/flow.h"
#include "coll/schedule/schedule.h"
#include "coll/watch/watch.h"

/* Order the neighbors for sending. Each node begins after its own rank: if all began with the lowest rank,
 * all would wait for that node's link. On a grid the column comes first, because its nodes pass segments on
 * to their rows. */
static void order_sends(struct nb_coll_comm *comm)
{
    int found = 0, behind = 0;

    while (behind < comm->nneighbors && comm->neighbors[behind]->rank < comm->rank)
        behind++;
    for (int row = 0; row < 2; row++) {
        for (int i = 0; i < comm->nneighbors; i++) {
            struct nb_peer *peer = comm->neighbors[(behind + i) % comm->nneighbors];
            if (nb_grid_same_row(comm->grid, peer->rank, comm->rank) == row)
                comm->sends_to[found++] = peer;
        }
    }
}

/* Find the nodes that this node will be connected with. Return 0 or -ENOMEM. */
static int find_neighbors(struct nb_coll_comm *comm)
{
    int *rank = calloc((size_t)comm->nnodes, sizeof(*rank)), n;

    comm->neighbors = calloc((size_t)comm->nnodes, sizeof(struct nb_peer *));
    comm->sends_to = calloc((size_t)comm->nnodes, sizeof(struct nb_peer *));
    if (!rank || !comm->neighbors || !comm->sends_to) {
        free(rank);
        return -ENOMEM;
    }
    n = nb_grid_connected(comm->grid, comm->rank, rank);
    for (int i = 0; i < n; i++) {
        comm->neighbors[i] = &comm->peer[rank[i]];
        comm->neighbors[i]->linked = 1;
        comm->neighbors[i]->rank = rank[i];
    }
    comm->nneighbors = n;
    order_sends(comm);
    free(rank);
    return 0;
}

static void init_closing(struct nb_coll_comm *comm)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&comm->closing.cond, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&comm->closing.lock, NULL);
}

/* Choose the grid, by the sites that handles name. All nodes have the same handles. Return 0 or -ENOMEM. */
static int choose_grid(struct nb_coll_comm *comm, void *const *handles)
{
    const struct nb_params *p = comm->ctx->params;
    char(*site)[NB_SITE_BYTES] = calloc((size_t)comm->nnodes, sizeof(*site)), why[256];
    int ret;

    if (!site)
        return -ENOMEM;
    for (int r = 0; r < comm->nnodes && !comm->net->fills_handle; r++) {
        memcpy(site[r], (const char *)handles[r] + NB_NET_HANDLE_BYTES - NB_SITE_BYTES, NB_SITE_BYTES);
        site[r][NB_SITE_BYTES - 1] = '\0';
    }
    ret = nb_grid_of_sites(comm->nnodes, (const char(*)[NB_SITE_BYTES])site, p->schedule, p->group,
                           &comm->grid, why, sizeof(why));
    free(site);
    if (comm->net->fills_handle && p->site[0])
        snprintf(why, sizeof(why), "NIBBLE_NET=%s does not tell the nodes' sites", comm->net->name);
    if (why[0])
        NB_INFO(NCCL_INIT | NCCL_NET, "%s: NIBBLE_SITE has no effect: %s", comm->label, why);
    return ret;
}

struct nb_coll_comm *nb_setup_comm(struct nb_context *ctx, int dev, uint64_t comm_id,
                                   const struct nb_net_ops *net, void *const *handles, int nnodes, int rank)
{
    struct nb_coll_comm *comm = calloc(1, sizeof(*comm));
    struct nb_device_wish wish;

    if (!comm)
        return NULL;
    comm->ctx = ctx;
    comm->engine = ctx->engine;
    comm->node = nb_engine_node(ctx->engine);
    comm->dev = dev;
    comm->comm_id = comm_id;
    comm->net = net;
    comm->nnodes = nnodes;
    comm->rank = rank;
    comm->arrivals.fd = -1;
    comm->gpu = nb_current_gpu(ctx);
    wish = (struct nb_device_wish){
        .gpu = comm->gpu, .nnodes = nnodes, .comm_id = comm_id, .mbps = nb_facts_rate(comm)};
    comm->device_error = nb_device_choose(ctx, &wish, &comm->device);
    if (comm->device_error) /* this node will decline because of it. Until then it needs a device */
        comm->device = nb_host_device();
    comm->stats.workers = comm->device->ops->workers ? comm->device->ops->workers(comm->device) : 0;
    snprintf(comm->label, sizeof(comm->label), "comm 0x%llx node %d/%d", (unsigned long long)comm_id, rank,
             nnodes);
    pthread_mutex_init(&comm->submit.lock, NULL);
    nb_turn_lock_init(&comm->progress_lock);
    init_closing(comm);
    comm->win = calloc(NB_WINDOWS, sizeof(*comm->win));
    comm->submit.ops = calloc(NB_OPS, sizeof(*comm->submit.ops));
    comm->peer = calloc((size_t)nnodes, sizeof(*comm->peer));
    comm->shadow = comm->ctx->params->shadow;
    /* In shadow mode other nodes hold no references, so no confirmation is needed. */
    comm->refs = nb_refs_create(ctx, comm->device, comm->shadow ? 1 : nnodes);
    if (!comm->win || !comm->submit.ops || !comm->peer || !comm->refs || choose_grid(comm, handles) ||
        find_neighbors(comm) || nb_decisions_init(comm) || nb_confirms_create(comm) || nb_flow_create(comm) ||
        nb_records_init(comm) || nb_watch_create(comm)) {
        nb_setup_free(comm);
        return NULL;
    }
    for (int r = 0; r < nnodes; r++) {
        comm->peer[r].rank = r;
        snprintf(comm->peer[r].name, sizeof(comm->peer[r].name), "node %d", r);
    }
    return comm;
}

void nb_setup_free(struct nb_coll_comm *comm)
{
    comm->magic = 0;
    nb_arrivals_close(comm);
    nb_staging_destroy(comm);
    nb_refs_destroy(comm->refs);
    nb_records_destroy(comm);
    nb_decisions_destroy(comm);
    free(comm->win);
    free(comm->submit.ops);
    free(comm->neighbors);
    free(comm->sends_to);
    nb_confirms_destroy(comm);
    free(comm->peer);
    nb_grid_free(&comm->grid);
    nb_flow_destroy(comm);
    nb_watch_destroy(comm);
    pthread_mutex_destroy(&comm->submit.lock);
    nb_turn_lock_destroy(&comm->progress_lock);
    pthread_cond_destroy(&comm->closing.cond);
    pthread_mutex_destroy(&comm->closing.lock);
    comm->device->ops->close(comm->device);
    free(comm);
}
