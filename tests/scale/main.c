/* SPDX-License-Identifier: Apache-2.0 */
/* nibble-scale: collectives of many nodes, timed in virtual time, beside the predictions of nibble-model. */
#include <getopt.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "codec/row.h"
#include "coll/comm/grid.h"
#include "coll/comm/wire.h"
#include "emulate/nccl_walk.h"
#include "policy/reckon/reckon.h"
#include "tests/scale/cluster.h"
#include "tests/scale/device.h"
#include "tools/model/model.h"

#define MOST 16

struct options {
    double nodes[MOST];
    int nnodes;
    bool func[NB_FUNC_COUNT], schedule[4];
    double gbps, latency, message, codec, queue, tolerance, bytes, chunk, channels, unit, credits, group,
        ratio, rtt, buffer, sites, trunk, near;
    bool raw, memory, late, whole, csv, advised;
    struct scale_settings set;
};

static const char help[] =
    "usage: nibble-scale [OPTION]...\n\n"
    "Times collectives of many nodes in virtual time: the real engine and schedules over simulated links, "
    "without\n"
    "payload, beside what nibble-model predicts.\n\n"
    "  --nodes LIST       default 4,8,32,64\n"
    "  --ops LIST         reduce_scatter, all_gather, all_reduce (default: all of them)\n"
    "  --schedules LIST   auto, direct, two-hop, two-level (default: the last three)\n"
    "  --bytes SIZE       of the whole vector; K, M, G may follow (default 64M)\n"
    "  --gbps X           Gbit/s of a node's link (default 25)\n"
    "  --latency-us X     of one hop (default 10)\n"
    "  --message-us X     processor time of a message at one end (default 2)\n"
    "  --codec-gbps X     GB/s of all codecs (default 100)\n"
    "  --type NAME        bfloat16 or float32   --raw: not coded\n"
    "  --ratio R          of all-gathers' differences (default 0.19 of BF16, 0.55 of FP32)\n"
    "  --chunk SIZE       of NCCL (default 128K)   --channels N (default 8)\n"
    "  --unit SIZE        NIBBLE_UNIT_BYTES        --credits N  NIBBLE_CREDITS   --group N  NIBBLE_GROUP\n"
    "  --rtt-us X         NIBBLE_LINK_RTT_US\n"
    "  --sites N          the nodes are at N sites, which they name (default 1). Then a line ends with the "
    "MB "
    "that\n"
    "                     left a site\n"
    "  --trunk-gbps X     Gbit/s that leave a site together (default: no limit)\n"
    "  --near-us X        latency of a hop within a site (default 10)\n"
    "  --buffer SIZE      NCCL_BUFFSIZE, instead of --chunk: the chunk as NCCL's rule and the tuner choose "
    "it\n"
    "  --advised          NCCL_BUFFSIZE and NIBBLE_UNIT_BYTES as the line at connect recommends them, with "
    "--rtt-us\n"
    "  --queue SIZE       that a connection takes before it arrives (default 1M, or twice the bytes on the "
    "way\n"
    "                     of a round trip if that is more)\n"
    "  --late             sends are done when they have arrived (RDMA), not when they are taken (TCP)\n"
    "  --memory           instead: what a node needs, after connecting\n"
    "  --csv              a line for each, with commas\n"
    "  --tolerance P      status 1 when a prediction is off by more than P percent\n";

static const char *const schedules[] = {"auto", "direct", "two-hop", "two-level"};

static bool number(const char *text, double *out)
{
    char *end;
    double v = strtod(text, &end);

    if (end == text || !(v >= 0) || !isfinite(v))
        return false;
    if (*end && strchr("KkMmGg", *end)) {
        v *= *end == 'K' || *end == 'k' ? 0x1p10 : *end == 'M' || *end == 'm' ? 0x1p20 : 0x1p30;
        end++;
    }
    *out = v;
    return *end == 0;
}

/* Parse numbers separated by commas. Return how many there are, 0 for other text. */
static int numbers(const char *text, double *out)
{
    char copy[256], *at = copy, *one;
    int n = 0;

    snprintf(copy, sizeof(copy), "%s", text);
    while ((one = strsep(&at, ","))) {
        if (n == MOST || !number(one, &out[n]))
            return 0;
        n++;
    }
    return n;
}

/* Parse words separated by commas, and mark each of the `n` words that the text names. */
static bool words(const char *text, const char *const *word, int n, bool *named)
{
    char copy[256], *at = copy, *one;

    memset(named, 0, (size_t)n * sizeof(*named));
    snprintf(copy, sizeof(copy), "%s", text);
    while ((one = strsep(&at, ","))) {
        int i = 0;
        while (i < n && strcmp(one, word[i]) != 0)
            i++;
        if (i == n)
            return false;
        named[i] = true;
    }
    return true;
}

static bool parse(int argc, char **argv, struct options *o)
{
    static const struct option longs[] = {
        {"nodes", 1, NULL, 'n'},    {"ops", 1, NULL, 'o'},      {"schedules", 1, NULL, 's'},
        {"type", 1, NULL, 't'},     {"raw", 0, NULL, 'r'},      {"late", 0, NULL, 'l'},
        {"memory", 0, NULL, 'm'},   {"csv", 0, NULL, 'c'},      {"bytes", 1, NULL, 0},
        {"gbps", 1, NULL, 0},       {"latency-us", 1, NULL, 0}, {"message-us", 1, NULL, 0},
        {"ratio", 1, NULL, 0},      {"codec-gbps", 1, NULL, 0}, {"chunk", 1, NULL, 0},
        {"channels", 1, NULL, 0},   {"unit", 1, NULL, 0},       {"credits", 1, NULL, 0},
        {"group", 1, NULL, 0},      {"queue", 1, NULL, 0},      {"tolerance", 1, NULL, 0},
        {"rtt-us", 1, NULL, 0},     {"buffer", 1, NULL, 0},     {"sites", 1, NULL, 0},
        {"trunk-gbps", 1, NULL, 0}, {"near-us", 1, NULL, 0},    {"help", 0, NULL, 'h'},
        {"advised", 0, NULL, 'a'},  {NULL, 0, NULL, 0}};
    const struct {
        const char *name;
        double *to;
    } plain[] = {{"bytes", &o->bytes},        {"gbps", &o->gbps},        {"latency-us", &o->latency},
                 {"message-us", &o->message}, {"codec-gbps", &o->codec}, {"chunk", &o->chunk},
                 {"channels", &o->channels},  {"unit", &o->unit},        {"credits", &o->credits},
                 {"group", &o->group},        {"queue", &o->queue},      {"tolerance", &o->tolerance},
                 {"ratio", &o->ratio},        {"rtt-us", &o->rtt},       {"buffer", &o->buffer},
                 {"sites", &o->sites},        {"trunk-gbps", &o->trunk}, {"near-us", &o->near}};
    static const char *const funcs[] = {[NB_FUNC_REDUCE_SCATTER] = "reduce_scatter",
                                        [NB_FUNC_ALL_GATHER] = "all_gather",
                                        [NB_FUNC_ALL_REDUCE] = "all_reduce"};
    int c, at = 0;
    bool good = true;

    while (good && (c = getopt_long(argc, argv, "", longs, &at)) != -1) {
        switch (c) {
        case 'n': good = (o->nnodes = numbers(optarg, o->nodes)) > 0; break;
        case 'o': good = words(optarg, funcs, NB_FUNC_COUNT, o->func); break;
        case 's': good = words(optarg, schedules, 4, o->schedule); break;
        case 't':
            good = (o->set.wide = strcmp(optarg, "float32") == 0) || strcmp(optarg, "bfloat16") == 0;
            break;
        case 'r': o->raw = true; break;
        case 'l': o->late = true; break;
        case 'm': o->memory = true; break;
        case 'c': o->csv = true; break;
        case 'a': o->advised = true; break;
        case 'h': fputs(help, stdout); exit(0);
        case 0:
            for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++)
                if (strcmp(longs[at].name, plain[i].name) == 0)
                    good = number(optarg, plain[i].to);
            break;
        default: good = false;
        }
    }
    for (int i = 0; i < o->nnodes; i++)
        good = good && o->nodes[i] >= 2 && o->nodes[i] <= 4096 && o->sites <= o->nodes[i];
    good = good && optind == argc && o->gbps > 0 && o->sites >= 1 && o->channels >= 1 && o->channels <= 64 &&
           o->chunk >= 512;
    if (!good)
        fputs(help, stderr);
    return good;
}

/* Return a unit's coded bytes, with the header, over its bytes. */
static double ratio_of(const struct options *o, enum nb_codec codec, double unit)
{
    const struct nb_codec_row *row = nb_codec_row(codec);
    const double coded = codec == NB_CODEC_RAW ? unit
                         : row->reference      ? unit * o->ratio
                                               : unit * scale_coded(codec, o->set.wide ? NB_F32 : NB_BF16);

    return (coded + NB_MSG_BYTES) / unit;
}

static void settle(struct options *o)
{
    struct scale_settings *s = &o->set;
    const double speed = 1e9 * o->codec;

    if (o->advised) {
        o->buffer = nb_reckon_buffer(1e-6 * o->rtt);
        o->unit = nb_reckon_unit(1000 * o->gbps);
    }
    s->coded = !o->raw;
    s->bytes = (size_t)o->bytes;
    s->chunk = (size_t)o->chunk;
    s->channels = (int)o->channels;
    s->link = 1e9 / 8 * o->gbps;
    s->latency = (int64_t)(1000 * o->latency);
    s->sites = (int)o->sites;
    s->trunk = 1e9 / 8 * o->trunk;
    s->near = s->sites > 1 ? (int64_t)(1000 * o->near) : s->latency;
    s->message = (int64_t)(1000 * o->message);
    s->queue = (size_t)(o->queue ? o->queue : fmax(1 << 20, 4 * s->link * 1e-6 * o->latency));
    s->early = !o->late;
    if (!o->ratio)
        o->ratio = s->wide ? 0.55 : 0.19;
    s->gather_ratio = o->ratio;
    s->speed = (struct scale_speed){speed, speed, speed, speed, speed, speed, speed};
    s->params = *nb_params_defaults();
    s->params.grad = "all";
    s->params.warmup_steps = 0;
    s->params.rs_min_bytes = s->params.ar_min_bytes = s->params.ag_min_bytes = 0;
    s->params.rs = s->params.ar = o->raw ? NB_SUM_RAW : NB_SUM_INT4;
    s->params.ag = o->raw ? NB_AG_RAW : NB_AG_EXACT;
    s->params.link_mbps = (int64_t)fmax(1, 1000 * o->gbps);
    if (o->unit > 0)
        s->params.unit_bytes = (int64_t)o->unit;
    if (o->credits > 0)
        s->params.credits = (int64_t)o->credits;
    s->params.group = (int64_t)o->group;
    s->params.link_rtt_us = (int64_t)o->rtt;
}

/* Return the ratio of sums that nodes code again and pass on, with the default NIBBLE_SECOND_HOP. */
static double ratio_again(const struct options *o)
{
    return ratio_of(o, o->set.coded ? NB_CODEC_INT6 : NB_CODEC_RAW, (double)o->set.params.unit_bytes);
}

static bool predict(const struct options *o, const struct scale_result *r, double *seconds)
{
    const struct scale_settings *s = &o->set;
    const double speed = 1e9 * o->codec, unit = (double)s->params.unit_bytes;
    const enum nb_codec codec = !s->coded                       ? NB_CODEC_RAW
                                : s->func == NB_FUNC_ALL_GATHER ? NB_CODEC_ULP
                                                                : NB_CODEC_INT4;
    const struct nb_cost_machine f = {.link = s->link,
                                      .latency = 1e-9 * (double)s->latency,
                                      .near = 1e-9 * (double)s->near,
                                      .trunk = s->trunk,
                                      .message = 1e-9 * (double)s->message,
                                      .copy = speed,
                                      .cores = 1,
                                      .speed = {speed, speed, speed, speed, speed, speed}};
    struct nb_cost_op op =
        nb_cost_op_make(s->func, s->nodes, (double)s->bytes, s->wide ? 4 : 2, ratio_of(o, codec, unit));
    struct nm_result result;

    op.coded = s->coded;
    op.feedback = s->func != NB_FUNC_ALL_GATHER;
    if (op.feedback)
        op.ratio_again = ratio_again(o);
    op.chunk = (double)s->chunk;
    op.channels = s->channels;
    op.unit = unit;
    op.credits = r->credits;
    op.group = s->sites > 1 ? r->columns : (int)s->params.group;
    op.sites = s->sites;
    op.schedule = strcmp(r->schedule, "two-hop") == 0     ? NB_COST_TWO_HOP
                  : strcmp(r->schedule, "two-level") == 0 ? NB_COST_TWO_LEVEL
                                                          : NB_COST_DIRECT;
    if (!nm_predict(&f, &op, &result))
        return false;
    *seconds = result.seconds;
    return true;
}

static double clock_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Return the time that each node's link needs at least, with any schedule. */
static double ideal(const struct options *o)
{
    const struct scale_settings *s = &o->set;
    const enum nb_codec codec = !s->coded                       ? NB_CODEC_RAW
                                : s->func == NB_FUNC_ALL_GATHER ? NB_CODEC_ULP
                                                                : NB_CODEC_INT4;
    const double once = ratio_of(o, codec, (double)s->params.unit_bytes);
    const double ratios = s->func == NB_FUNC_ALL_REDUCE ? once + ratio_again(o) : once;

    return ratios * (s->nodes - 1) / s->nodes * (double)s->bytes / s->link;
}

/* Print one line of the table. Return false when the run failed, or the prediction is off. */
static bool one(struct options *o, int operations, double *worst)
{
    struct scale_result r;
    const double began = clock_s();
    double predicted = 0, error, best;

    scale_run(&o->set, operations, &r);
    if (r.failed)
        return false;
    best = r.seconds[operations - 1];
    if (!predict(o, &r, &predicted))
        predicted = NAN;
    error = predicted / best - 1;
    printf(o->csv ? "%d,%s,%s,%s,%.3f,%.3f,%.3f,%.3f,%.1f,%llu,%llu,%.2f,%.1f"
                  : "%5d %-14s %-9s %-9s %10.3f %10.3f %9.3f %9.3f %+7.1f %9llu %9llu %8.2f %7.1f",
           o->set.nodes, nb_func_name(o->set.func), schedules[o->set.params.schedule], r.schedule,
           1e3 * r.seconds[0], 1e3 * best, 1e3 * predicted, 1e3 * ideal(o), 100 * error,
           (unsigned long long)r.messages / (unsigned)o->set.nodes,
           (unsigned long long)r.steps / (unsigned)o->set.nodes, 1e-6 * r.wire, clock_s() - began);
    if (o->set.sites > 1)
        printf(o->csv ? ",%.2f" : " %8.2f", 1e-6 * r.crossed);
    putchar('\n');
    fflush(stdout);
    *worst = fmax(*worst, fabs(error));
    return true;
}

/* Return the chunk that NCCL and nibble's tuner choose for an operation with these buffers. */
static size_t chosen_chunk(const struct options *o)
{
    const struct scale_settings *s = &o->set;
    const struct nb_tuning tuning = {
        .params = &s->params, .nranks = (size_t)s->nodes, .nnodes = (size_t)s->nodes, .records = 1};
    const size_t block = s->func == NB_FUNC_ALL_REDUCE ? s->bytes : s->bytes / (size_t)s->nodes;
    const struct nb_nccl_walk w =
        nb_nccl_walk(s->func, s->nodes, 0, s->channels, (size_t)o->buffer, 0, block);
    const size_t chunk =
        nb_tuning_chunk(&tuning, s->bytes, NCCL_ALGO_COLLNET_DIRECT, NCCL_PROTO_SIMPLE, s->channels, w.chunk);

    return chunk < w.slot ? chunk : w.slot; /* NCCL's limit */
}

static int times(struct options *o)
{
    double worst = 0;
    bool good = true;

    if (!o->csv)
        printf("%5s %-14s %-9s %-9s %10s %10s %9s %9s %7s %9s %9s %8s %7s\n", "nodes", "operation",
               "schedule", "taken", "first ms", "ms", "model ms", "ideal ms", "off %", "messages", "rounds",
               "MB sent", o->set.sites > 1 ? "real s   MB out" : "real s");
    for (int f = 0; f < NB_FUNC_COUNT; f++) {
        for (int n = 0; n < o->nnodes; n++) {
            for (enum nb_schedule_word s = 0; s < NB_SCHEDULE_COUNT; s++) {
                if (!o->func[f] || !o->schedule[s] || (s == NB_SCHEDULE_TWO_HOP && f == NB_FUNC_ALL_REDUCE))
                    continue;
                o->set.nodes = (int)o->nodes[n];
                o->set.bytes = (size_t)o->bytes / (size_t)(4 * o->set.nodes) * (size_t)(4 * o->set.nodes);
                o->set.func = (enum nb_func)f;
                if (o->buffer)
                    o->set.chunk = chosen_chunk(o);
                o->set.params.schedule = s;
                if (s == NB_SCHEDULE_TWO_LEVEL &&
                    nb_grid_choose(o->set.nodes, s, o->set.params.group).rows == 1)
                    continue;
                good &= one(o, f == NB_FUNC_ALL_GATHER && o->set.coded ? 2 : 1, &worst);
            }
        }
    }
    if (!o->csv)
        printf("largest error of a prediction: %.1f %%\n", 100 * worst);
    return !good || (o->tolerance > 0 && 100 * worst > o->tolerance);
}

static int memory(struct options *o)
{
    int bad = 0;

    printf("%5s %-9s %7s %6s %12s %8s %12s %12s %12s\n", "nodes", "schedule", "grid", "peers", "connections",
           "credits", "staging MiB", "messages MiB", "objects MiB");
    o->set.whole = true;
    o->set.func = NB_FUNC_ALL_REDUCE;
    for (int n = 0; n < o->nnodes; n++) {
        for (enum nb_schedule_word s = 0; s < NB_SCHEDULE_COUNT; s++) {
            struct scale_result r;
            char grid[16];

            if (!o->schedule[s] || s == NB_SCHEDULE_TWO_HOP) /* connects as direct does */
                continue;
            o->set.nodes = (int)o->nodes[n];
            o->set.params.schedule = s;
            scale_run(&o->set, 0, &r);
            bad |= r.failed;
            snprintf(grid, sizeof(grid), "%dx%d", r.rows, r.columns);
            printf("%5d %-9s %7s %6d %12d %8u %12.1f %12.1f %12.2f\n", o->set.nodes, schedules[s], grid,
                   r.peers, r.connections, r.credits, (double)r.staging / 0x1p20,
                   (double)r.wire_bytes / 0x1p20, (double)r.heap / 0x1p20);
            fflush(stdout);
        }
    }
    return bad;
}

int main(int argc, char **argv)
{
    struct options o = {.nodes = {4, 8, 32, 64},
                        .nnodes = 4,
                        .func = {true, true, true},
                        .schedule = {false, true, true, true},
                        .gbps = 25,
                        .latency = 10,
                        .sites = 1,
                        .near = 10,
                        .message = 2,
                        .codec = 100,
                        .bytes = 64 << 20,
                        .chunk = 131072,
                        .channels = 8};

    if (!parse(argc, argv, &o))
        return 2;
    settle(&o);
    mallopt(M_MMAP_THRESHOLD, 1 << 30); /* with more mappings the process would exceed Linux's limit */
    return o.memory ? memory(&o) : times(&o);
}
