/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listen and connect. A node that declined CollNet alone would leave the others waiting for ever inside
 * ncclCommInitRank (NCCL compares results within a node only), so connect is a vote: first everything that may fail
 * is tried (connections and versions: mesh.c; settings, memory, registration: here), then the nodes tell each other
 * yes or no with the reason (vote.c), and one no, or one lost peer, is a no for all.
 */
#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/params.h"
#include "coll/mesh.h"
#include "coll/setup.h"

struct nb_coll_listen {
    uint32_t magic;
    int dev;
    uint64_t comm_id;
    uint32_t order; /* of the communicators between nodes that this GPU's process makes, from 1 */
    const struct nb_net_ops *net;
    void *conn;
};
#define LISTEN_MAGIC 0x4e424c53u

/* How many communicators between nodes the rank on this GPU has made, this one included. One that listens on several
 * devices is one. */
static uint32_t count_communicator(uint64_t comm_id)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct {
        uint64_t last;
        uint32_t n;
    } gpu[NB_NET_MAX_DEVS];
    int at = (nb_current_gpu() + 1) % NB_NET_MAX_DEVS;
    uint32_t n;

    pthread_mutex_lock(&lock);
    if (comm_id == 0 || comm_id != gpu[at].last)
        gpu[at].n++;
    gpu[at].last = comm_id;
    n = gpu[at].n;
    pthread_mutex_unlock(&lock);
    return n;
}

int nb_coll_listen(int dev, uint64_t comm_id, void *handle, struct nb_coll_listen **out)
{
    struct nb_coll_listen *l = calloc(1, sizeof(*l));
    int ret;

    *out = NULL;
    if (!l)
        return -ENOMEM;
    ret = nb_net_acquire(&l->net);
    if (ret) {
        free(l);
        return ret;
    }
    ret = l->net->listen(dev, handle, &l->conn);
    if (ret) {
        nb_net_release();
        free(l);
        return ret;
    }
    l->magic = LISTEN_MAGIC;
    l->dev = dev;
    l->comm_id = comm_id;
    l->order = count_communicator(comm_id);
    *out = l;
    return 0;
}

int nb_coll_close_listen(struct nb_coll_listen *l)
{
    int ret;

    if (!l || l->magic != LISTEN_MAGIC) {
        NB_WARN("closeListen: not a listening object of nibble: %p", (void *)l);
        return -EINVAL;
    }
    l->magic = 0;
    ret = l->net->close_listen(l->conn);
    nb_net_release();
    free(l);
    return ret;
}

/* ---- connect ---------------------------------------------------------------------------------------- */

/* What is known of this communicator, for NIBBLE_COMMS and the log. */
static void describe(struct nb_mesh *m, uint32_t order, struct nb_comm_facts *facts)
{
    struct nb_coll_comm *comm = m->comm;

    memset(facts, 0, sizeof(*facts));
    nb_queue_description(comm->queue, &facts->nranks, facts->name, sizeof(facts->name));
    facts->nnodes = (uint32_t)comm->nranks;
    facts->local = facts->nranks % facts->nnodes ? 0 : facts->nranks / facts->nnodes;
    facts->order = order;
    nb_comm_rule_text(facts, comm->traits, sizeof(comm->traits));
}

/* Settings that decline this communicator: all nodes have the same. */
static void ask_settings(struct nb_mesh *m, uint32_t order)
{
    struct nb_comm_facts facts;
    char error[256];

    nb_comm_rules_parse(nb_params()->comms, &m->comm->rules, error, sizeof(error)); /* checked at init */
    describe(m, order, &facts);
    if (m->reason[0])
        return;
    if (!nb_params()->enable)
        nb_mesh_object(m, "NIBBLE_ENABLE=0");
    else if (!nb_comm_rules_ask(&m->comm->rules, &facts))
        nb_mesh_object(m, "NIBBLE_COMMS excludes it (%.120s)", m->comm->traits);
    m->wanted = m->reason[0] != 0;
}

/* Everything that may fail on this node alone, tried before the vote. */
static void try_locally(struct nb_mesh *m, uint32_t order)
{
    struct nb_coll_comm *comm = m->comm;
    int ret;

    ask_settings(m, order);
    if (nb_fault("connect"))
        nb_mesh_object(m, "fault injected at connect");
    comm->engine = nb_engine_acquire();
    if (!comm->engine)
        nb_mesh_object(m, "cannot start the engine");
    if (comm->device_error)
        nb_mesh_object(m, "cannot use its device: %s", strerror(-comm->device_error));
    ret = nb_fault("alloc") ? -ENOMEM : nb_setup_memory(comm);
    if (ret)
        nb_mesh_object(m, "cannot allocate staging memory (NIBBLE_STAGING_MAX_MB): %s", strerror(-ret));
    if (m->reason[0])
        return;
    for (int i = 0; i < comm->nnear; i++) {
        struct nb_peer *peer = comm->near[i];
        for (int c = 0; c < NB_CLASS_COUNT; c++) {
            struct nb_incoming *in = nb_mesh_in(m, peer->rank, c);
            peer->tx[c].conn = m->out[peer->rank * NB_CLASS_COUNT + c].conn;
            peer->rx[c].conn = in ? in->conn : NULL;
        }
    }
    ret = nb_fault("regmr") ? -EIO : nb_setup_register(comm);
    if (ret)
        nb_mesh_object(m, "cannot register staging memory: %s", strerror(-ret));
}

/* A grid was wished for, and the nodes form none: why not. */
static void explain_mesh(const struct nb_coll_comm *comm, const char *schedule)
{
    const struct nb_params *p = nb_params();
    char why[160];

    if (p->schedule != NB_SCHEDULE_TWO_LEVEL && p->schedule != NB_SCHEDULE_AUTO)
        snprintf(why, sizeof(why), "NIBBLE_GROUP means nothing with NIBBLE_SCHEDULE=%s", schedule);
    else if (p->schedule == NB_SCHEDULE_AUTO && comm->nranks < NB_GRID_NODES)
        snprintf(why, sizeof(why), "NIBBLE_SCHEDULE=auto makes one from %d nodes on", NB_GRID_NODES);
    else if (!p->group)
        snprintf(why, sizeof(why), "%d has no divisor that can be a row (2 to %d nodes, 2 to %d rows)", comm->nranks,
                 NB_GRID_MOST, NB_GRID_MOST);
    else if (comm->nranks % p->group)
        snprintf(why, sizeof(why), "NIBBLE_GROUP=%lld does not divide %d", (long long)p->group, comm->nranks);
    else
        snprintf(why, sizeof(why), "NIBBLE_GROUP=%lld is out of range (2 to %d nodes, 2 to %d rows)",
                 (long long)p->group, NB_GRID_MOST, NB_GRID_MOST);
    NB_INFO(NCCL_INIT | NCCL_NET, "%s: all %d nodes are connected with each other, no grid: %s", comm->label,
            comm->nranks, why);
}

static void announce(struct nb_coll_comm *comm)
{
    static const char *const words[] = {
        [NB_SCHEDULE_AUTO] = "auto",
        [NB_SCHEDULE_DIRECT] = "direct",
        [NB_SCHEDULE_TWO_HOP] = "two-hop",
        [NB_SCHEDULE_TWO_LEVEL] = "two-level",
    };
    const struct nb_params *p = nb_params();
    const char *schedule = words[p->schedule];
    char grid[64] = "";

    if (nb_on_grid(comm))
        snprintf(grid, sizeof(grid), "grid of %d rows of %d nodes, ", comm->grid.rows, comm->grid.columns);
    else if (comm->nranks > 3 && (p->schedule == NB_SCHEDULE_TWO_LEVEL || p->group))
        explain_mesh(comm, schedule);
    NB_INFO(NCCL_INIT | NCCL_NET,
            "%s: connected over %s, %sschedule %s, device %s, wire units of %zu bytes, %u credits a peer and class, "
            "staging %.1f MiB",
            comm->label, comm->net->name, grid, schedule, comm->device->ops->name, comm->unit,
            comm->near[0]->rx[NB_CLASS_CONTRIB].slots, (double)comm->staging / (1 << 20));
    nb_comm_log_plan(comm);
}

int nb_coll_connect(void *const *handles, int nranks, int rank, struct nb_coll_listen *listen,
                    struct nb_coll_comm **out)
{
    struct nb_mesh m;
    struct nb_coll_comm *comm;
    int ret = -EINVAL, made = 0;

    *out = NULL;
    memset(&m, 0, sizeof(m)); /* nb_mesh_free is called in any case */
    if (!listen || listen->magic != LISTEN_MAGIC) {
        NB_WARN("connect: not a listening object of nibble: %p", (void *)listen);
        return -EINVAL;
    }
    if (!handles || nranks < 2 || nranks > NB_MAX_NODES || rank < 0 || rank >= nranks) {
        NB_WARN("connect: rank %d of %d nodes is out of range (2 to %d nodes)", rank, nranks, NB_MAX_NODES);
        nb_coll_close_listen(listen);
        return -EINVAL;
    }
    for (int r = 0; r < nranks; r++) {
        if (!handles[r]) {
            NB_WARN("connect: the handle of node %d is NULL", r);
            nb_coll_close_listen(listen);
            return -EINVAL;
        }
    }
    comm = nb_setup_comm(listen->dev, listen->comm_id, listen->net, nranks, rank);
    if (!comm || nb_mesh_init(&m, comm, listen->conn, handles)) {
        NB_WARN("connect: out of memory");
        ret = -ENOMEM;
        goto err;
    }
    made = 1;
    nb_mesh_make(&m);
    try_locally(&m, listen->order);
    if (!nb_mesh_vote(&m)) {
        if (!m.reason[0])
            nb_mesh_object(&m, "a peer was lost");
        if (m.wanted)
            NB_INFO(NCCL_INIT | NCCL_NET, "%s: not compressed, NCCL uses its own algorithms: %s", comm->label, m.reason);
        else
            NB_WARN("%s: CollNet is declined on all nodes, NCCL uses its own algorithms: %s", comm->label, m.reason);
        ret = -ECONNREFUSED;
        goto err;
    }
    nb_mesh_dissolve(&m, 1);
    nb_mesh_free(&m);
    nb_net_acquire(&comm->net); /* cannot fail: the listen comm holds it */
    comm->fault_ref = nb_fault("ref");
    comm->magic = NB_COMM_MAGIC;
    comm->tick_ns = comm->moved_ns = (int64_t)nb_now_ns();
    for (int i = 0; i < comm->nnear; i++)
        comm->near[i]->heard_ns = comm->tick_ns;
    announce(comm);
    nb_watch_open(comm);
    nb_engine_add(comm->engine, comm);
    *out = comm;
    return 0;
err:
    if (made)
        nb_mesh_dissolve(&m, 0);
    nb_mesh_free(&m);
    if (comm) {
        if (comm->engine)
            nb_engine_release(comm->engine);
        nb_setup_free(comm);
    }
    nb_coll_close_listen(listen); /* NCCL forgets its pointer after a failure */
    return ret;
}
