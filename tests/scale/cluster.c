/* SPDX-License-Identifier: Apache-2.0 */
/* The loop over events. See cluster.h. */
#include "tests/scale/cluster.h"
#include "coll/schedule/schedule.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "coll/comm/comm.h"
#include "tests/scale/memory.h"
#include "tests/scale/network.h"
#include "tests/scale/node.h"
#include "tests/sim/memory.h"

#define PAUSE (20 * SCALE_MS) /* between operations: confirmations are exchanged */

/* Unlike tests/sim, this program does not follow which node allocates. */
int sim_memory_enter(int owner)
{
    return owner;
}

__attribute__((format(printf, 5, 6))) static void logger(ncclDebugLogLevel level, unsigned long flags,
                                                         const char *file, int line, const char *fmt, ...)
{
    va_list ap;

    (void)flags;
    if (level != NCCL_LOG_WARN && !getenv("NIBBLE_SCALE_LOG"))
        return;
    va_start(ap, fmt);
    fprintf(stderr, "%s:%d ", file, line);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}

/* Run until *count is `nodes`. */
static void run_until(struct scale_cluster *cl, const int *count)
{
    struct sim_event e;

    while (!cl->failed && *count < cl->set->nodes) {
        if (!sim_queue_take(&cl->queue, &e) || e.at > 10000 * SCALE_S) {
            fprintf(stderr, "nibble-scale: nothing moves any more\n");
            cl->failed = true;
            return;
        }
        cl->now = e.at;
        if (e.kind == SIM_NODE)
            scale_node_event(cl, &e);
        else
            scale_network_event(cl, &e);
    }
}

static void measure(struct scale_cluster *cl, size_t before, struct scale_result *r)
{
    const struct scale_node *n = cl->node[0];
    const struct nb_coll_comm *comm = n->coll;

    r->rows = comm->grid.rows;
    r->columns = comm->grid.columns;
    r->peers = comm->nneighbors;
    r->connections = 2 * comm->nneighbors * NB_CLASS_COUNT;
    r->credits = comm->neighbors[0]->rx[NB_CLASS_CONTRIB].buffers;
    r->staging = comm->staging_bytes;
    r->wire_bytes = n->wire_bytes;
    r->heap = (scale_heap() - before - scale_network_bytes(cl->network)) / (size_t)cl->set->nodes;
    r->connect = 1e-9 * (double)cl->now;
}

static void operate(struct scale_cluster *cl, int number, struct scale_result *r)
{
    const uint64_t steps = cl->steps, messages = cl->messages, wire = cl->wire, crossed = cl->crossed;
    int64_t end = 0;

    cl->complete = 0;
    cl->barrier = cl->now + PAUSE;
    for (int i = 0; i < cl->set->nodes; i++) {
        cl->node[i]->state = SCALE_WAITING;
        scale_node_wake_at(cl, i, cl->barrier);
    }
    run_until(cl, &cl->complete);
    for (int i = 0; i < cl->set->nodes; i++)
        end = cl->node[i]->ended > end ? cl->node[i]->ended : end;
    r->seconds[number] = 1e-9 * (double)(end - cl->barrier);
    r->steps = cl->steps - steps;
    r->messages = cl->messages - messages;
    r->crossed = (double)(cl->crossed - crossed) / cl->set->sites;
    r->wire = (double)(cl->wire - wire) / cl->set->nodes;
}

void scale_run(const struct scale_settings *set, int operations, struct scale_result *r)
{
    struct scale_cluster cl = {.set = set};
    const size_t before = scale_heap();

    memset(r, 0, sizeof(*r));
    nb_log_set(logger);
    cl.node = calloc((size_t)set->nodes, sizeof(*cl.node));
    if (!cl.node)
        abort();
    cl.barrier = INT64_MAX;
    cl.network = scale_network_open(&cl);
    for (int i = 0; i < set->nodes; i++)
        scale_node_open(&cl, i);
    for (int i = 0; i < set->nodes && !cl.failed; i++) {
        scale_node_connect(cl.node[i]);
        scale_node_wake(&cl, i);
    }
    run_until(&cl, &cl.connected);
    if (!cl.failed)
        measure(&cl, before, r);
    for (int i = 0; i < operations && !cl.failed; i++)
        operate(&cl, i, r);
    if (!cl.failed) {
        const struct nb_coll_comm *comm = cl.node[0]->coll;
        r->state_bytes = cl.node[0]->state_bytes;
        if (operations)
            r->schedule = nb_window(comm, comm->begun - 1)->op->schedule->name;
        cl.barrier = INT64_MAX;
        for (int i = 0; i < set->nodes; i++)
            scale_node_close(cl.node[i]);
        run_until(&cl, &cl.closed);
    }
    r->failed = cl.failed;
    for (int i = 0; i < set->nodes; i++)
        scale_node_free(cl.node[i]);
    scale_network_close(cl.network);
    sim_queue_free(&cl.queue);
    free(cl.node);
}
