/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listen and connect. A node that declined CollNet alone would leave the other nodes waiting for ever inside
 * ncclCommInitRank, because NCCL compares results within a node only. So connect is a vote. First each node
 * tries everything that may fail: connections and versions in mesh.c, settings, memory and registration here.
 * Then the nodes send each other yes or no with the reason (vote.c). One no, or one lost peer, is a no for
 * all nodes.
 *
 * Connecting goes in steps that never block:
 *
 *   state    a step                                    left when                                 to
 *   MESH     connect to the neighbors, accept them,    all have confirmed their connections      PREPARE
 *            exchange hellos (mesh.c). A hello that    there is an objection, or a no has come   DECLINE
 *            does not fit is an objection              the deadline has passed                   DECLINE
 *   PREPARE  ask the settings, hold the engine, take   at once                                   VOTE
 *            memory, register it with the connections  something failed                          DECLINE
 *   VOTE     exchange votes (vote.c)                   all are there and say yes                 (made)
 *                                                      all are there, and coding gains no time   DECLINE
 *                                                      there is a no, or the deadline passed     DECLINE
 *   DECLINE  tell all other nodes why                  they know, and no better reason can come  (declined)
 *
 *   (made)      the communicator is handed to the engine. The listener stays the caller's
 *   (declined)  the reason is logged. Connections, memory and listener are freed
 *
 * All of it takes NIBBLE_CONNECT_TIMEOUT at most. The deadline is a little earlier, so that there is time to
 * tell the reason.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/context.h"
#include "base/demand.h"
#include "base/log.h"
#include "coll/coll.h"
#include "coll/connect/connect.h"
#include "coll/decide/decide.h"
#include "coll/engine.h"
#include "coll/flow/flow.h"
#include "coll/report/report.h"
#include "policy/records/records.h"

/* A handle ends with the name of its node's site, so a node knows all names before it connects. */
_Static_assert(NB_SITE_BYTES == NB_NET_HANDLE_FREE, "a handle has room for the name of a site");

struct nb_coll_listen {
    uint32_t magic;
    struct nb_context *ctx;
    int dev;
    uint64_t comm_id;
    uint32_t order; /* this GPU's process numbers its communicators between nodes from 1 */
    const struct nb_net_ops *net;
    void *conn;
};
#define LISTEN_MAGIC 0x4e424c53u

#define PAUSE_NS 200000L /* pause after a step in which everything stood still */

int nb_coll_listen(struct nb_context *ctx, int dev, uint64_t comm_id, void *handle,
                   struct nb_coll_listen **out)
{
    struct nb_net *net = ctx->net;
    struct nb_coll_listen *l = calloc(1, sizeof(*l));
    int ret;

    *out = NULL;
    if (!l)
        return -ENOMEM;
    l->net = net->ops;
    ret = net->ops->listen(net, dev, handle, &l->conn);
    if (ret) {
        free(l);
        return ret;
    }
    if (!l->net->fills_handle)
        snprintf((char *)handle + NB_NET_HANDLE_BYTES - NB_SITE_BYTES, NB_SITE_BYTES, "%s",
                 ctx->params->site);
    l->magic = LISTEN_MAGIC;
    l->ctx = ctx;
    l->dev = dev;
    l->comm_id = comm_id;
    l->order = nb_node_count_comm(nb_engine_node(ctx->engine), nb_current_gpu(ctx), comm_id);
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
    free(l);
    return ret;
}

/* ---- connect ---------------------------------------------------------------------------------------- */

/* Describe this communicator, for NIBBLE_COMMS and the log. */
static void describe(struct nb_mesh *m, uint32_t order)
{
    struct nb_coll_comm *comm = m->comm;
    struct nb_comm_info *info = &comm->info;

    memset(info, 0, sizeof(*info));
    nb_queue_description(comm->queue, &info->nranks, info->name, sizeof(info->name));
    info->nnodes = (uint32_t)comm->nnodes;
    info->local = info->nranks % info->nnodes ? 0 : info->nranks / info->nnodes;
    info->order = order;
    nb_comm_rule_text(info, comm->traits, sizeof(comm->traits));
}

/* Decline the communicator if settings say so. All nodes have the same settings. So a no that arrives from
 * another node, before this node has come to its own no, also follows the user's settings. */
static void ask_settings(struct nb_mesh *m, uint32_t order)
{
    const struct nb_params *p = m->comm->ctx->params;
    char error[256], why[sizeof(m->reason)];

    nb_comm_rules_parse(p->comms, &m->comm->rules, error, sizeof(error)); /* checked at init */
    describe(m, order);
    m->wanted = nb_policy_excludes(p, &m->comm->rules, &m->comm->info, why, sizeof(why));
    if (m->wanted)
        nb_decline(m, "%s", why);
}

/* Decline a communicator on which coding gains no time, once the facts of all nodes are here. The yeses of
 * ROW and COLUMN carry the facts, so they are here from ROW_ALL on. A node sends its own no only after its
 * last round, when every node has said ROW_ALL. So a node that receives that no has the same facts, comes to
 * the same answer here, and takes the no for its own. */
static void ask_gain(struct nb_mesh *m)
{
    struct nb_reckon_facts facts = m->row_facts;
    char why[sizeof(m->reason)];

    if (m->round < NB_ROUND_ROW_ALL)
        return;
    nb_reckon_slowest(&facts, &m->other_facts);
    nb_facts_reckon(m->comm->ctx->params, &m->comm->grid, &facts, &m->comm->reckoning);
    if (!nb_policy_declines(m->comm->ctx->params, &m->comm->reckoning, why, sizeof(why)))
        return;
    m->wanted = true;
    nb_decline(m, "%s", why);
}

/* Try everything that may fail on this node alone, before the vote. */
static void try_locally(struct nb_mesh *m, uint32_t order)
{
    struct nb_coll_comm *comm = m->comm;
    int ret;

    ask_settings(m, order);
    if (nb_fault(comm->ctx, "connect"))
        nb_decline(m, "fault injected at connect");
    comm->engine_held = nb_engine_acquire(comm->engine) == 0;
    if (!comm->engine_held)
        nb_decline(m, "cannot start the engine");
    if (comm->device_error)
        nb_decline(m, "cannot use its device: %s", strerror(-comm->device_error));
    ret = nb_fault(comm->ctx, "alloc") ? -ENOMEM : nb_staging_create(comm);
    if (ret)
        nb_decline(m, "cannot allocate staging memory (NIBBLE_STAGING_MAX_MB): %s", strerror(-ret));
    if (m->cause != NB_CAUSE_NONE)
        return;
    for (int i = 0; i < comm->nneighbors; i++) {
        struct nb_peer *peer = comm->neighbors[i];
        for (int c = 0; c < NB_CLASS_COUNT; c++) {
            peer->tx[c].conn = nb_mesh_out(m, peer->rank, c)->conn;
            peer->rx[c].conn = nb_mesh_in(m, peer->rank, c)->conn;
        }
    }
    ret = nb_fault(comm->ctx, "regmr") ? -EIO : nb_staging_register(comm);
    if (ret)
        nb_decline(m, "cannot register staging memory: %s", strerror(-ret));
}

/* Log why the nodes form a full mesh although a setting asks for a grid. */
static void explain_mesh(const struct nb_coll_comm *comm)
{
    const struct nb_params *p = comm->ctx->params;
    char why[160];

    nb_grid_why_not(comm->nnodes, p->schedule, p->group, why, sizeof(why));
    NB_INFO(NCCL_INIT | NCCL_NET, "%s: all %d nodes are connected with each other, no grid: %s", comm->label,
            comm->nnodes, why);
}

static void announce(struct nb_coll_comm *comm)
{
    const struct nb_params *p = comm->ctx->params;
    const char *schedule = nb_schedule_words[p->schedule];
    char grid[96] = "", sites[32] = "";

    if (comm->grid.sites)
        snprintf(sites, sizeof(sites), " at %d sites", comm->grid.sites);
    if (nb_on_grid(comm))
        snprintf(grid, sizeof(grid), "grid of %d rows of %d nodes%s, ", comm->grid.rows, comm->grid.columns,
                 sites);
    else if (comm->nnodes > 3 && (p->schedule == NB_SCHEDULE_TWO_LEVEL || p->group))
        explain_mesh(comm);
    NB_INFO(NCCL_INIT | NCCL_NET,
            "%s: connected over %s, %sschedule %s, device %s, wire units of %zu bytes, %u credits a peer and "
            "class, staging %.1f MiB%s",
            comm->label, comm->net->name, grid, schedule, comm->device->ops->name, comm->unit,
            comm->neighbors[0]->rx[NB_CLASS_CONTRIB].buffers, (double)comm->staging_bytes / (1 << 20),
            nb_staging_on_device(comm) ? ", payloads in GPU memory" : "");
    nb_comm_log_plan(comm);
    nb_facts_log(comm);
}

/* ---- the steps -------------------------------------------------------------------------------------- */

struct nb_coll_connect {
    enum { MESH, PREPARE, VOTE, DECLINE } state;
    struct nb_coll_listen *listen; /* owned until the communicator is made */
    struct nb_coll_comm *comm;     /* owned */
    struct nb_mesh mesh;
    bool has_mesh;
};

/* All nodes have said yes: start the communicator. */
static void hand_over(struct nb_coll_connect *c)
{
    struct nb_coll_comm *comm = c->comm;

    nb_mesh_dissolve(&c->mesh, true);
    comm->fault_ref = nb_fault(comm->ctx, "ref");
    comm->magic = NB_COMM_MAGIC;
    nb_comm_begin(comm);
    announce(comm);
    nb_arrivals_open(comm);
    nb_monitor_add(comm->node->monitor, comm);
    nb_engine_add(comm->engine, comm);
}

/* Undo the steps so far. */
static void give_up(struct nb_coll_connect *c)
{
    struct nb_coll_comm *comm = c->comm;

    if (c->has_mesh) {
        nb_staging_unregister(comm);
        nb_mesh_dissolve(&c->mesh, false);
    }
    if (!comm)
        return;
    if (comm->engine_held)
        nb_engine_release(comm->engine);
    nb_setup_free(comm);
}

static void explain_decline(struct nb_mesh *m)
{
    if (m->wanted)
        NB_INFO(NCCL_INIT | NCCL_NET, "%s: not compressed, NCCL uses its own algorithms: %s", m->comm->label,
                m->reason);
    else
        NB_WARN("%s: CollNet is declined on all nodes, NCCL uses its own algorithms: %s", m->comm->label,
                m->reason);
    if (!m->wanted)
        nb_demand_fails(m->comm->ctx, NB_DEMAND_COLLNET, m->reason);
}

/* End connect with `ret` and free the object. */
static int end(struct nb_coll_connect *c, int ret)
{
    if (ret) {
        give_up(c);
        nb_coll_close_listen(c->listen); /* NCCL forgets its pointer after a failure */
    }
    nb_mesh_free(&c->mesh);
    free(c);
    return ret;
}

static int bad_arguments(void *const *handles, int nnodes, int rank)
{
    if (!handles || nnodes < 2 || nnodes > NB_MAX_NODES || rank < 0 || rank >= nnodes) {
        NB_WARN("connect: rank %d of %d nodes is out of range (2 to %d nodes)", rank, nnodes, NB_MAX_NODES);
        return -EINVAL;
    }
    for (int r = 0; r < nnodes; r++) {
        if (!handles[r]) {
            NB_WARN("connect: the handle of node %d is NULL", r);
            return -EINVAL;
        }
    }
    return 0;
}

int nb_coll_connect_begin(void *const *handles, int nnodes, int rank, struct nb_coll_listen *listen,
                          struct nb_coll_connect **out)
{
    struct nb_coll_connect *c;
    int ret;

    *out = NULL;
    if (!listen || listen->magic != LISTEN_MAGIC) {
        NB_WARN("connect: not a listening object of nibble: %p", (void *)listen);
        return -EINVAL;
    }
    ret = bad_arguments(handles, nnodes, rank);
    c = ret ? NULL : calloc(1, sizeof(*c)); /* the caller calls nb_mesh_free in any case */
    if (!c) {
        nb_coll_close_listen(listen);
        if (!ret)
            NB_WARN("connect: out of memory");
        return ret ? ret : -ENOMEM;
    }
    c->listen = listen;
    c->comm = nb_setup_comm(listen->ctx, listen->dev, listen->comm_id, listen->net, handles, nnodes, rank);
    if (!c->comm || nb_mesh_init(&c->mesh, c->comm, listen->conn, handles)) {
        NB_WARN("connect: out of memory");
        return end(c, -ENOMEM);
    }
    c->has_mesh = true;
    *out = c;
    return 0;
}

static void decline(struct nb_coll_connect *c)
{
    nb_decline_begin(&c->mesh);
    c->state = DECLINE;
}

static bool is_whole(const struct nb_mesh *m)
{
    for (int r = 0; r < m->comm->nnodes; r++)
        if (m->comm->peer[r].linked && nb_mesh_missing(m, r))
            return false;
    return true;
}

static enum nb_stepped step_mesh(struct nb_coll_connect *c)
{
    struct nb_mesh *m = &c->mesh;
    bool moved = nb_mesh_move(m);

    moved |= nb_ballots_move(m);
    if (m->cause == NB_CAUSE_SURE)
        ask_settings(m, c->listen->order);
    if (m->cause != NB_CAUSE_NONE)
        decline(c);
    else if (is_whole(m))
        c->state = PREPARE;
    else if (nb_clock_ns(&c->comm->ctx->clock) > m->deadline)
        decline(c);
    else
        return moved ? NB_STEPPED_ON : NB_STEPPED_IDLE;
    return NB_STEPPED_ON;
}

static void prepare(struct nb_coll_connect *c)
{
    c->mesh.prepared = true;
    try_locally(&c->mesh, c->listen->order);
    if (c->mesh.cause != NB_CAUSE_NONE) {
        decline(c);
        return;
    }
    nb_vote_begin(&c->mesh);
    c->state = VOTE;
}

int nb_coll_connect_step(struct nb_coll_connect *c, bool *moved, struct nb_coll_comm **comm)
{
    enum nb_stepped stepped = NB_STEPPED_ON;

    *comm = NULL;
    *moved = true;
    switch (c->state) {
    case MESH: stepped = step_mesh(c); break;
    case PREPARE: prepare(c); break;
    case VOTE:
        stepped = nb_vote_step(&c->mesh);
        if (stepped != NB_STEPPED_DONE)
            break;
        ask_gain(&c->mesh);
        if (!nb_vote_is_won(&c->mesh)) {
            decline(c);
            break;
        }
        hand_over(c);
        *comm = c->comm;
        return end(c, 0);
    case DECLINE:
        stepped = nb_decline_step(&c->mesh);
        if (stepped != NB_STEPPED_DONE)
            break;
        explain_decline(&c->mesh);
        return end(c, -ECONNREFUSED);
    }
    *moved = stepped != NB_STEPPED_IDLE;
    return -EINPROGRESS;
}

int64_t nb_coll_connect_until(const struct nb_coll_connect *c)
{
    const struct nb_mesh *m = &c->mesh;

    return m->look_ns < m->deadline ? m->look_ns : m->deadline;
}

const char *nb_coll_connect_phase(const struct nb_coll_connect *c)
{
    static const char *const round[NB_ROUND_COUNT] = {
        [NB_ROUND_GREETED] = "greeting",
        [NB_ROUND_ROW] = "vote of the row",
        [NB_ROUND_COLUMN] = "vote of the column",
        [NB_ROUND_ROW_ALL] = "second vote of the row",
        [NB_ROUND_COLUMN_ALL] = "second vote of the column",
    };

    switch (c->state) {
    case MESH: return "connecting";
    case PREPARE: return "preparing";
    case VOTE: return round[c->mesh.round];
    default: return "declining";
    }
}

int nb_coll_connect(void *const *handles, int nnodes, int rank, struct nb_coll_listen *listen,
                    struct nb_coll_comm **comm)
{
    const struct timespec pause = {0, PAUSE_NS};
    struct nb_coll_connect *c;
    bool moved;
    int ret = nb_coll_connect_begin(handles, nnodes, rank, listen, &c);

    *comm = NULL;
    if (ret)
        return ret;
    while ((ret = nb_coll_connect_step(c, &moved, comm)) == -EINPROGRESS)
        if (!moved)
            nanosleep(&pause, NULL);
    return ret;
}
