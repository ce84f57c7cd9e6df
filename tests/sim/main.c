/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nibble-sim: a cluster in one process, from one number.
 *
 *   nibble-sim --seeds 1-1000 [--nodes 2-16] [--calm]     run each seed, and stop at the first failure
 *   nibble-sim --replay SEED [--trace]                    repeat one of them
 */
#include <getopt.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/sim/cluster.h"
#include "tests/sim/compare.h"
#include "tests/sim/data.h"
#include "tests/sim/fault.h"
#include "tests/sim/judge.h"
#include "tests/sim/nccl.h"
#include "tests/sim/shrink.h"

static bool reduces = true, compares_all;
static struct sim_options options = {
    .version = SIM_PLAN_VERSION, .least = 2, .most = 16, .faults = true, .connect = true};

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* "1-10" or "7". */
static int range(const char *text, uint64_t *a, uint64_t *b)
{
    char *end;

    *a = *b = strtoull(text, &end, 10);
    if (*end == '-')
        *b = strtoull(end + 1, &end, 10);
    return *end || end == text || *b < *a ? -1 : 0;
}

static int usage(void)
{
    fprintf(
        stderr,
        "usage: nibble-sim [--seeds A-B | --replay SEED [--trace]] [--nodes A-B] [--calm] [--again]\n"
        "  --seeds A-B   runs of these seeds, until one fails\n"
        "  --replay SEED the run of one; --trace: with every event and all log lines\n"
        "  --undisturbed the run of one without its lateness, with whose results it is compared\n"
        "  --nodes A-B   nodes of a run (2-16)\n"
        "  --plan N      what seeds stood for in version N of the plans (plan.h)\n"
        "  --calm        lateness only, no faults that end a communicator\n"
        "  --headers     a bit of one message's header flips in each; else lateness only\n"
        "  --again       every run twice: the trace has to be the same\n"
        "  --compare     with the run without lateness wherever that can be, not for a fourth of the seeds\n"
        "  --lenient     a failure may be told to be that of a node that has failed before\n"
        "  --no-reduce   a failure is told as it is\n"
        "  --keep-going  not only the first failure; none is reduced\n");
    return 2;
}

static void print_faults(void)
{
    printf("faults:");
    for (int k = 0; k < SIM_FAULTS; k++)
        if (sim_fault_count[k])
            printf(" %s %llu", sim_fault_name[k], (unsigned long long)sim_fault_count[k]);
    printf("\n");
}

static int replay(uint64_t seed, bool loud, bool calm)
{
    struct sim_plan *plan = sim_plan_draw(seed, &options);
    struct sim_outcome out;

    if (calm)
        sim_plan_calm(plan);
    sim_plan_print(plan);
    sim_run(plan, loud, !loud, &out);
    printf("seed %llu: %llu events, %llu messages, %llu operations of nodes, %.6f virtual seconds, trace "
           "%016llx, results %016llx\n",
           (unsigned long long)seed, (unsigned long long)out.events, (unsigned long long)out.messages,
           (unsigned long long)out.operations, 1e-9 * (double)out.ended, (unsigned long long)out.hash,
           (unsigned long long)out.results);
    print_faults();
    if (out.failed)
        printf("FAILED: %s\n", out.violation);
    sim_plan_free(plan);
    return out.failed;
}

struct totals {
    uint64_t runs, failed, events, operations, collectives, messages, compared, hash;
};

static void one(uint64_t seed, bool again, struct totals *t, struct sim_outcome *out)
{
    struct sim_plan *plan = sim_plan_draw(seed, &options);
    const int collectives = sim_plan_operations(plan);

    sim_run(plan, false, false, out);
    t->runs++;
    t->events += out->events;
    t->operations += out->operations;
    t->collectives += (uint64_t)collectives;
    t->messages += out->messages;
    t->hash = (t->hash ^ out->hash) * UINT64_C(0x100000001b3);
    if (again && !out->failed) {
        struct sim_outcome second;
        sim_run(plan, false, false, &second);
        if (second.hash != out->hash) {
            out->failed = true;
            snprintf(out->violation, sizeof(out->violation), "the same seed has taken another course");
        }
    }
    if (!out->failed && out->comparable && (compares_all || seed % 4 == 0)) {
        t->compared++;
        sim_compare(plan, out);
    }
    sim_plan_free(plan);
}

static void progress(const struct totals *t, double began)
{
    const double took = seconds() - began;

    printf("%llu runs, %llu collectives (%llu operations of nodes), %llu messages, %llu events, %llu "
           "compared with calm; %.1f runs a second, %.2f us an event; trace %016llx\n",
           (unsigned long long)t->runs, (unsigned long long)t->collectives, (unsigned long long)t->operations,
           (unsigned long long)t->messages, (unsigned long long)t->events, (unsigned long long)t->compared,
           (double)t->runs / took, took * 1e6 / (double)t->events, (unsigned long long)t->hash);
    fflush(stdout);
}

static int seeds(uint64_t first, uint64_t last, bool again, bool keep_going)
{
    const double began = seconds();
    double told = began;
    struct totals t = {0};

    for (uint64_t seed = first; seed <= last; seed++) {
        struct sim_outcome out;
        one(seed, again, &t, &out);
        if (out.failed) {
            t.failed++;
            printf("seed %llu FAILED: %s\n", (unsigned long long)seed, out.violation);
            fflush(stdout);
            if (!keep_going && reduces)
                sim_shrink(seed, &options, out.violation);
            if (!keep_going)
                break;
        }
        if (seconds() - told > 10) {
            told = seconds();
            progress(&t, began);
        }
    }
    progress(&t, began);
    print_faults();
    if (t.failed)
        printf("%llu of %llu runs FAILED\n", (unsigned long long)t.failed, (unsigned long long)t.runs);
    return t.failed != 0;
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        {"seeds", required_argument, NULL, 's'}, {"replay", required_argument, NULL, 'r'},
        {"trace", no_argument, NULL, 't'},       {"nodes", required_argument, NULL, 'n'},
        {"calm", no_argument, NULL, 'c'},        {"again", no_argument, NULL, 'a'},
        {"keep-going", no_argument, NULL, 'k'},  {"lenient", no_argument, NULL, 'l'},
        {"no-reduce", no_argument, NULL, 'x'},   {"headers", no_argument, NULL, 'd'},
        {"undisturbed", no_argument, NULL, 'u'}, {"compare", no_argument, NULL, 'm'},
        {"plan", required_argument, NULL, 'p'},  {NULL, 0, NULL, 0}};
    uint64_t first = 1, last = 100, a, b, seed = 0;
    bool loud = false, again = false, single = false, keep_going = false, calm = false;
    int c, ret;

    while ((c = getopt_long(argc, argv, "", longs, NULL)) >= 0) {
        if (c == 's' && !range(optarg, &first, &last))
            continue;
        if (c == 'r' && !range(optarg, &seed, &seed)) {
            single = true;
            continue;
        }
        if (c == 'n' && !range(optarg, &a, &b) && a >= 2 && b <= 64) {
            options.least = (int)a;
            options.most = (int)b;
            continue;
        }
        if (c == 'p' && !range(optarg, &a, &b) && a >= 1 && a <= SIM_PLAN_VERSION) {
            options.version = (int)a;
            continue;
        }
        if (c == 't')
            loud = true;
        else if (c == 'c')
            options.faults = false;
        else if (c == 'd')
            options.headers = !(options.faults = false);
        else if (c == 'a')
            again = true;
        else if (c == 'k')
            keep_going = true;
        else if (c == 'x')
            reduces = false;
        else if (c == 'm')
            compares_all = true;
        else if (c == 'u')
            calm = true;
        else if (c == 'l')
            sim_judge_lenient = true;
        else
            return usage();
    }
    if (optind != argc)
        return usage();
    mallopt(M_MMAP_THRESHOLD, 1 << 16); /* without it calloc of large, mostly untouched memory would write
                                           zeroes */
    sim_data_open();
    ret = single ? replay(seed, loud, calm) : seeds(first, last, again, keep_going);
    sim_data_close();
    return ret;
}
