/* SPDX-License-Identifier: Apache-2.0 */
/* See launcher.h. */
#include "launcher.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long number(const char *name)
{
    const char *text = getenv(name);
    char *end;
    const long v = text ? strtol(text, &end, 10) : -1;

    return text && *text && !*end ? v : -1;
}

/* Get the first host of Slurm's "n[01-04,07],m3": n01. */
static void first_host(const char *list, char *host, size_t cap)
{
    const size_t plain = strcspn(list, ",[");
    size_t digits = 0;

    if (list[plain] == '[')
        digits = strcspn(list + plain + 1, ",-]");
    snprintf(host, cap, "%.*s%.*s", (int)plain, list, (int)digits, list + plain + (digits > 0));
}

/* For srun's steps only: a batch script has SLURM_PROCID, too, but runs once. */
static bool slurm(struct place *p)
{
    const char *list = getenv("SLURM_STEP_NODELIST");
    const long rank = number("SLURM_PROCID"), n = number("SLURM_STEP_NUM_TASKS");
    const long job = number("SLURM_JOB_ID"), step = number("SLURM_STEP_ID");

    if (!list || rank < 0 || n < 1)
        return false;
    p->by = "Slurm";
    p->rank = (int)rank;
    p->nodes = (int)n;
    if (!*p->root)
        first_host(list, p->root, sizeof(p->root));
    if (job >= 0 && step >= 0) {
        p->key = p->key ? p->key : (uint64_t)job << 20 ^ (uint64_t)step;
        p->port = p->port ? p->port : 20000 + (int)((job * 16 + step) % 10000);
    }
    return true;
}

static bool torchrun(struct place *p)
{
    const char *root = getenv("MASTER_ADDR");
    const long rank = number("RANK"), n = number("WORLD_SIZE"), port = number("MASTER_PORT");

    if (!root || rank < 0 || n < 1)
        return false;
    p->by = "torchrun's variables";
    p->rank = (int)rank;
    p->nodes = (int)n;
    if (!*p->root)
        snprintf(p->root, sizeof(p->root), "%s", root);
    if (!p->port && port > 0 && port < 65535)
        p->port = (int)port + 1; /* torchrun itself uses MASTER_PORT */
    return true;
}

/* mpirun tells a node whether all nodes are on one machine, and keeps their places to itself. */
static bool mpirun(struct place *p, const char *by, const char *rank, const char *size, const char *local)
{
    if (number(rank) < 0 || number(size) < 1)
        return false;
    p->by = by;
    p->rank = (int)number(rank);
    p->nodes = (int)number(size);
    if (!*p->root && number(local) == p->nodes)
        snprintf(p->root, sizeof(p->root), "127.0.0.1");
    return true;
}

bool launcher_place(struct place *p, char *why, size_t cap)
{
    if (p->rank >= 0)
        p->by = "options";
    else if (!slurm(p) &&
             !mpirun(p, "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                     "OMPI_COMM_WORLD_LOCAL_SIZE") &&
             !mpirun(p, "MPI's process manager", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS") && !torchrun(p)) {
        p->nodes = 0;
        return true;
    }
    if (!p->port)
        p->port = DEFAULT_PORT;
    if (p->nodes < 1 || p->nodes > MOST_NODES || p->rank >= p->nodes) {
        if (p->nodes < 1)
            snprintf(why, cap, "--rank %d: --nodes N must say how many nodes there are", p->rank);
        else
            snprintf(why, cap, "%s: rank %d of %d nodes: ranks go from 0 to %d, nodes to %d", p->by, p->rank,
                     p->nodes, p->nodes - 1, MOST_NODES);
        return false;
    }
    if (p->nodes == 1)
        p->nodes = 0;
    if (p->nodes && !*p->root) {
        snprintf(why, cap, "%s: where is node 0? --root HOST, the host of rank 0", p->by);
        return false;
    }
    return true;
}
