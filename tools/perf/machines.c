/* SPDX-License-Identifier: Apache-2.0 */
/* See machines.h. The nodes meet as nibble-doctor's do, and their messages between two measurements pass
 * through node 0. */
#include "machines.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/version.h"
#include "tests/harness/lib/harness.h"
#include "tools/doctor/meet.h"

#define COME_S 60.0    /* for all nodes to arrive */
#define WAIT_S 86400.0 /* for a node that measures. The end of a node is noticed at once */

static int gather(void *arg, const void *mine, size_t len, void *all)
{
    struct meet *m = arg;
    struct blob said;
    bool good;

    if (meet_gather(m, mine, len, WAIT_S))
        return -1;
    if (m->rank > 0) {
        if (meet_hear(m, &said, WAIT_S))
            return -1;
        good = said.len == len * (size_t)m->nodes;
        if (good)
            memcpy(all, said.data, said.len);
        free(said.data);
        return good ? 0 : -1;
    }
    for (int i = 0; i < m->nodes; i++) {
        if (!m->got[i].data || m->got[i].len != len) {
            fprintf(stderr, "nibble-perf: node %d is gone\n", i);
            return -1;
        }
        memcpy((char *)all + (size_t)i * len, m->got[i].data, len);
    }
    return meet_say(m, all, len * (size_t)m->nodes);
}

int perf_machines_run(const struct hx_job *job, const struct place *place, struct hx_report **rows)
{
    static struct meet meet;
    const struct hx_meeting meeting = {.rank = place->rank, .gather = gather, .arg = &meet};
    struct hx_job here = *job;
    char why[512];
    int status;

    if (meet_open(&meet, place, COME_S, why, sizeof(why))) {
        fprintf(stderr, "nibble-perf: %s\n", why);
        return 1;
    }
    for (int i = 1; i < meet.nodes && place->rank == 0; i++)
        if (meet.fd[i] < 0) {
            fprintf(stderr, "nibble-perf: node %d has not come within %.0f s\n", i, COME_S);
            meet_close(&meet);
            return 1;
        }
    here.meeting = &meeting;
    status = hx_job_run(&here, rows);
    meet_close(&meet);
    return status;
}

/* ---- The table ---- */

void perf_tests_head(struct hx_node *node, const struct perf_run *run)
{
    struct {
        char host[64];
        int pid;
    } mine = {.pid = (int)getpid()}, all[HX_MAX_NODES];

    if (gethostname(mine.host, sizeof(mine.host) - 1))
        snprintf(mine.host, sizeof(mine.host), "?");
    hx_allgather(node, &mine, sizeof(mine), all);
    if (node->rank != 0)
        return;
    printf("# nibble-perf coll %s\n", nb_version_with_commit());
    printf("# nodes %d minBytes %zu maxBytes %zu step: %zu(%s) warmup iters: %d iters: %d repetitions: %d "
           "validation: %d\n#\n",
           run->nodes, run->min_bytes, run->max_bytes,
           run->step_bytes ? run->step_bytes : (size_t)run->factor, run->step_bytes ? "bytes" : "factor",
           run->warmup, run->iterations, run->repetitions, !run->nocopy);
    printf("# Using hosts\n");
    for (int r = 0; r < node->nnodes; r++)
        printf("#  Rank %2d Pid %6d on %s\n", r, all[r].pid, all[r].host);
    printf("#\n");
    fflush(stdout);
}

static void names(const char *op, bool compare)
{
    printf("# %s\n", op);
    printf("# %62s %38s\n", "out-of-place", "in-place");
    printf("# %10s %12s %8s %6s %5s %9s %7s %7s %6s %9s %7s %7s %6s %6s %9s%s\n", "size", "count", "type",
           "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong", "wire",
           "nmse", compare ? "       raw  faster" : "");
    printf("# %10s %12s %8s %6s %5s %9s %7s %7s %6s %9s %7s %7s\n", "(B)", "(elements)", "", "", "", "(us)",
           "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)");
}

/* nccl-tests' names of types. */
static const char *type_name(const char *type)
{
    return strcmp(type, "float32") == 0 ? "float" : strcmp(type, "float16") == 0 ? "half" : type;
}

static void place_columns(double us, double algbw, double busbw, double wrong)
{
    if (us > 0)
        printf(" %9.2f %7.3f %7.3f", us, algbw, busbw);
    else
        printf(" %9s %7s %7s", "N/A", "N/A", "N/A");
    if (us > 0 && wrong >= 0)
        printf(" %6.0f", wrong);
    else
        printf(" %6s", "N/A");
}

void perf_tests_row(const struct perf_row *row, char last[24])
{
    const size_t size = strcmp(row->type, "float32") == 0 ? 4 : 2;
    const size_t share = strcmp(row->op, "all_reduce") == 0 ? 1 : (size_t)row->nodes;

    if (strcmp(last, row->op) != 0)
        names(row->op, row->raw_us >= 0);
    snprintf(last, 24, "%s", row->op);
    printf("  %10llu %12zu %8s %6s %5d", (unsigned long long)row->bytes, (size_t)row->bytes / size / share,
           type_name(row->type), strcmp(row->op, "all_gather") == 0 ? "none" : "sum", -1);
    place_columns(row->time_us, row->algbw, row->busbw, row->wrong);
    place_columns(row->in_place_us, row->in_place_algbw, row->in_place_busbw, row->in_place_wrong);
    if (row->wire_ratio >= 0)
        printf(" %6.3f", row->wire_ratio);
    else
        printf(" %6s", "N/A");
    if (row->nmse >= 0)
        printf(" %9.2e", row->nmse);
    else
        printf(" %9s", "N/A");
    if (row->raw_us >= 0)
        printf(" %9.2f %7.2f", row->raw_us, row->raw_us / row->time_us);
    putchar('\n');
    fflush(stdout);
}

void perf_tests_tail(double wrong, double busbw, unsigned n)
{
    printf("# Out of bounds values : %.0f %s\n# Avg bus bandwidth    : %g\n#\n", wrong,
           wrong > 0 ? "FAILED" : "OK", n ? busbw / n : 0);
    fflush(stdout);
}
