/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nibble-model: will 4 bits help on this cluster, and from which size on? It predicts reduce-scatter,
 * all-gather and all-reduce from measured figures, for 2 to 4096 nodes and 1 to 800 Gbit/s, and checks itself
 * against bench.sh.
 */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "auto.h"
#include "base/version.h"
#include "model.h"
#include "policy/reckon/reckon.h"
#include "tools/output.h"

#define MOST 16
#define GRID_NODES 32 /* number of nodes from which "auto" makes a grid (plugin/coll/comm/grid.h) */
#define GRID_SITE 3   /* plugin/coll/comm/grid.h: NB_GRID_SITE */

struct options {
    double gbps[MOST], bytes[MOST];
    int nodes[MOST];
    int ngbps, nbytes, nnodes;
    const char *codec, *type, *validate;
    double speed;           /* speed of all codecs in GB/s, 0: as measured */
    double ratio, ag_ratio; /* 0: the type's ratio */
    double tolerance;       /* --validate: percent, 0: print only */
    struct nb_cost_machine figures;
    struct nb_cost_op op;
    double gradients, weights;
    bool reckon;   /* --auto */
    bool distant;  /* --latency-us was given: --auto reckons with NIBBLE_LINK_RTT_US of twice as much */
    double buffer; /* NCCL_BUFFSIZE */
    double sites, trunk;
};

static const char help[] =
    "usage: nibble-model [OPTION]...\n"
    "\n"
    "Predict times of nibble's collectives and of NCCL's own rings, which send raw values, by link and "
    "number of nodes.\n"
    "\n"
    "  --nodes LIST        numbers of nodes (default 2,4,8,16,64,256,1024,4096)\n"
    "  --gbps LIST         Gbit/s of a node's link, as one GPU uses it (default 1,10,25,100,200,400,800)\n"
    "  --bytes LIST        bytes of the whole vector; K, M, G may follow (default 64M)\n"
    "  --type NAME         bfloat16 or float32 (default bfloat16)\n"
    "  --codec FILE        speeds measured by nibble-perf codec --json FILE (default: those of one core of "
    "a\n"
    "                      Sapphire Rapids Xeon with AVX-512)\n"
    "  --codec-gbps X      one speed for all codecs instead, for example of a GPU's kernels\n"
    "  --cores X           processors per node for the codec (default 1: the engine's thread)\n"
    "  --latency-us X      latency of one hop (default 20). With --auto half of NIBBLE_LINK_RTT_US\n"
    "  --buffer SIZE       NCCL_BUFFSIZE, with --auto and --latency-us (default 4M)\n"
    "  --sites N           nodes are at N sites, hops within a site take 20 us (default 1)\n"
    "  --trunk-gbps X      Gbit/s that leave a site together, as NIBBLE_SITE states (default: no limit)\n"
    "  --message-us X      processor time of a message at one end (default 2)\n"
    "  --chunk SIZE        NCCL's chunk (default 128K)   --channels N  NCCL's channels (default 8)\n"
    "  --unit SIZE         NIBBLE_UNIT_BYTES             --credits N   NIBBLE_CREDITS\n"
    "  --group N           NIBBLE_GROUP: nodes of a row of the two-level schedule (default: the divisor "
    "closest\n"
    "                      to twice the square root)\n"
    "  --ratio R           bytes on the wire over bytes of values, for sums (default: 0.268 of BF16, 0.134 "
    "of FP32)\n"
    "  --ag-ratio R        the same for deltas of weights (default 0.19 of BF16, 0.55 of FP32)\n"
    "  --gradients SIZE    bytes reduced in a step, for the memory (default: the operation's)\n"
    "  --weights SIZE      bytes gathered in a step, likewise\n"
    "  --auto              print the decisions of NIBBLE_RS=auto and NIBBLE_AR=auto on these links instead "
    "(--nodes,\n"
    "                      --gbps, --type, --unit, --group), with tabled codecs\n"
    "  --validate FILE     predict the samples of bench.sh -o FILE instead, and print the errors\n"
    "  --tolerance P       with --validate: status 1 when an error is larger than P percent\n"
    "  --version, -h, --help\n";

static bool number(const char *text, double *out)
{
    char *end;
    double v = strtod(text, &end);

    if (end == text || !(v >= 0) || !isfinite(v))
        return false;
    if (*end && strchr("KkMmGgTt", *end)) {
        const char *unit = strchr("kmgt", *end | 0x20);
        v *= pow(1024, (double)(unit - "kmgt") + 1);
        end++;
    }
    *out = v;
    return *end == 0;
}

static int list(const char *text, double *out)
{
    char copy[256], *at = copy, *one;
    int n = 0;

    snprintf(copy, sizeof(copy), "%s", text);
    while ((one = strsep(&at, ","))) {
        if (n == MOST || !number(one, &out[n]) || out[n] <= 0)
            return 0;
        n++;
    }
    return n;
}

static bool wrong(const char *option, const char *text, const char *allowed)
{
    char name[40];

    snprintf(name, sizeof(name), "--%s", option);
    return option_wrong(name, text, allowed);
}

static bool parse(int argc, char **argv, struct options *o)
{
    static const struct option longs[] = {
        {"nodes", 1, NULL, 0},     {"gbps", 1, NULL, 0},       {"bytes", 1, NULL, 0},
        {"type", 1, NULL, 0},      {"codec", 1, NULL, 0},      {"codec-gbps", 1, NULL, 0},
        {"cores", 1, NULL, 0},     {"latency-us", 1, NULL, 0}, {"message-us", 1, NULL, 0},
        {"chunk", 1, NULL, 0},     {"channels", 1, NULL, 0},   {"unit", 1, NULL, 0},
        {"credits", 1, NULL, 0},   {"group", 1, NULL, 0},      {"ratio", 1, NULL, 0},
        {"ag-ratio", 1, NULL, 0},  {"gradients", 1, NULL, 0},  {"weights", 1, NULL, 0},
        {"validate", 1, NULL, 0},  {"tolerance", 1, NULL, 0},  {"auto", 0, NULL, 0},
        {"buffer", 1, NULL, 0},    {"sites", 1, NULL, 0},      {"trunk-gbps", 1, NULL, 0},
        {"version", 0, NULL, 'v'}, {"help", 0, NULL, 'h'},     {NULL, 0, NULL, 0}};
    double cores = 1, latency = 20, message = 2, channels = 8, group = 0, nodes[MOST];
    int c, at;

    while ((c = getopt_long(argc, argv, "h", longs, &at)) != -1) {
        const char *name = c == 0 ? longs[at].name : "";
        const struct {
            const char *name;
            double *to;
        } above[] = {{"codec-gbps", &o->speed}, {"ratio", &o->ratio},         {"ag-ratio", &o->ag_ratio},
                     {"buffer", &o->buffer},    {"tolerance", &o->tolerance}, {"gradients", &o->gradients},
                     {"weights", &o->weights},  {"sites", &o->sites},         {"trunk-gbps", &o->trunk}},
          plain[] = {{"cores", &cores},           {"latency-us", &latency}, {"message-us", &message},
                     {"chunk", &o->op.chunk},     {"channels", &channels},  {"unit", &o->op.unit},
                     {"credits", &o->op.credits}, {"group", &group}};
        if (c == 'h') {
            fputs(help, stdout);
            exit(0);
        }
        if (c == 'v') {
            printf("nibble-model %s\n", nb_version_with_commit());
            exit(0);
        }
        if (c != 0)
            return false;
        for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++)
            if (strcmp(name, plain[i].name) == 0 && !number(optarg, plain[i].to))
                return wrong(name, optarg, "a number of at least 0; K, M, G or T may follow it");
        for (size_t i = 0; i < sizeof(above) / sizeof(above[0]); i++)
            if (strcmp(name, above[i].name) == 0 && !(number(optarg, above[i].to) && *above[i].to > 0))
                return wrong(name, optarg, "a number above 0; K, M, G or T may follow it");
        o->distant |= strcmp(name, "latency-us") == 0;
        if (strcmp(name, "nodes") == 0) {
            o->nnodes = list(optarg, nodes);
            for (int i = 0; i < o->nnodes; i++) {
                o->nodes[i] = (int)nodes[i];
                if (nodes[i] < 2 || nodes[i] > 4096 || nodes[i] != o->nodes[i])
                    return wrong(name, optarg, "a list of whole numbers from 2 to 4096");
            }
            if (!o->nnodes)
                return wrong(name, optarg, "a list of up to 16 whole numbers from 2 to 4096");
        } else if (strcmp(name, "gbps") == 0) {
            if (!(o->ngbps = list(optarg, o->gbps)))
                return wrong(name, optarg, "a list of up to 16 numbers above 0");
        } else if (strcmp(name, "bytes") == 0) {
            if (!(o->nbytes = list(optarg, o->bytes)))
                return wrong(name, optarg,
                             "a list of up to 16 sizes above 0; K, M, G or T may follow a number");
        } else if (strcmp(name, "type") == 0) {
            o->type = optarg;
        } else if (strcmp(name, "codec") == 0) {
            o->codec = optarg;
        } else if (strcmp(name, "auto") == 0) {
            o->reckon = true;
        } else if (strcmp(name, "validate") == 0) {
            o->validate = optarg;
        }
    }
    if (optind < argc)
        return option_wrong("an argument", argv[optind], "an option (see --help)");
    if (strcmp(o->type, "bfloat16") != 0 && strcmp(o->type, "float32") != 0)
        return wrong("type", o->type, "bfloat16 or float32");
    if (cores <= 0 || channels < 1 || o->op.chunk < 512 || o->op.unit < 512 || o->op.credits < 1) {
        fprintf(stderr,
                "nibble-model: --cores %g, --channels %g, --chunk %g, --unit %g, --credits %g: they must be "
                "above 0, and --chunk and --unit at least 512\n",
                cores, channels, o->op.chunk, o->op.unit, o->op.credits);
        return false;
    }
    if (o->tolerance > 0 && !o->validate) {
        fputs("nibble-model: --tolerance: it judges the errors of --validate FILE, which is missing\n",
              stderr);
        return false;
    }
    o->figures.cores = cores;
    o->figures.latency = 1e-6 * latency;
    o->figures.near = 20e-6;
    o->figures.trunk = 1e9 / 8 * o->trunk;
    o->figures.message = 1e-6 * message;
    o->op.channels = (int)channels;
    o->op.group = (int)group;
    return true;
}

/* Set the table's speeds for AVX-512, as the plugin does. */
static void default_speeds(struct options *o)
{
    const struct nb_reckon_facts facts = {.mbps = 1, .codec = NB_RECKON_AVX512};
    const struct nb_cost_machine f = nb_reckon_machine(&facts, strcmp(o->type, "float32") == 0 ? 4 : 2);

    o->figures.copy = f.copy;
    o->figures.speed = f.speed;
}

static bool speeds(struct options *o, const char *type)
{
    o->type = type;
    default_speeds(o);
    if (o->codec && !nm_read_codec(o->codec, type, &o->figures))
        return false;
    if (o->speed > 0) {
        const double s = 1e9 * o->speed;
        o->figures.speed = (struct nb_cost_speed){s, s, s, s, s, s};
        o->figures.copy = fmax(s, o->figures.copy);
    }
    return true;
}

static double ratio_of(const struct options *o, enum nb_func func)
{
    const double given = func == NB_FUNC_ALL_GATHER ? o->ag_ratio : o->ratio;

    return given > 0 ? given : nb_cost_usual_ratio(func, strcmp(o->type, "float32") == 0 ? 4 : 2);
}

static struct nb_cost_op operation(const struct options *o, enum nb_func func, enum nb_cost_schedule schedule,
                                   int nodes, double bytes)
{
    struct nb_cost_op op = o->op;

    op.func = func;
    op.schedule = schedule;
    op.nodes = nodes;
    op.bytes = bytes;
    op.value = strcmp(o->type, "float32") == 0 ? 4 : 2;
    op.ratio = ratio_of(o, func);
    op.coded = op.ratio < 1;
    op.feedback = func != NB_FUNC_ALL_GATHER;
    op.sites = (int)o->sites;
    if (op.sites > 1 && !op.group && nodes % op.sites == 0)
        op.group = nodes / op.sites;
    return op;
}

/* Return the fastest schedule's time. */
static double best_of(const struct options *o, enum nb_func func, int nodes, double bytes)
{
    struct nb_cost_op op = operation(o, func, NB_COST_DIRECT, nodes, bytes);
    struct nm_result r;

    return nm_predict_best(&o->figures, &op, &r) < NB_COST_SCHEDULES ? r.seconds : INFINITY;
}

static const char *size_text(double bytes, char *out, size_t cap)
{
    const char *units[] = {"", "K", "M", "G", "T"};
    int u = 0;

    while (bytes >= 1024 && u < 4) {
        bytes /= 1024;
        u++;
    }
    snprintf(out, cap, bytes < 10 && bytes != floor(bytes) ? "%.1f%s" : "%.0f%s", bytes, units[u]);
    return out;
}

/* Return the sizes from 4 KiB to 1 GiB at which 4 bits are faster than NCCL's own way. */
static const char *pays(const struct options *o, enum nb_func func, int nodes, char *out, size_t cap)
{
    double from = 0, to = 0;
    char a[16], b[16];

    for (double bytes = 4096; bytes <= 1 << 30; bytes *= 4)
        if (best_of(o, func, nodes, bytes) < nm_nccl(&o->figures, func, nodes, bytes)) {
            from = from > 0 ? from : bytes;
            to = bytes;
        }
    if (from == 0)
        snprintf(out, cap, "nowhere");
    else if (to == 1 << 30)
        snprintf(out, cap, "%s and up", size_text(from, a, sizeof(a)));
    else
        snprintf(out, cap, "%s to %s", size_text(from, a, sizeof(a)), size_text(to, b, sizeof(b)));
    return out;
}

static void print_table(struct options *o, enum nb_func func, double bytes)
{
    char a[16], b[16], c[40], grid[16];

    printf("\n%s, %s of %s in all, chunks of %s x %d channels: milliseconds; \"times\" is NCCL's own over "
           "the best\n",
           nm_func_name(func), size_text(bytes, a, sizeof(a)), o->type, size_text(o->op.chunk, b, sizeof(b)),
           o->op.channels);
    printf("%5s %6s %9s %9s %9s %9s %9s %9s %-9s %6s %-6s %s\n", "nodes", "Gbit/s", "NCCL", "ideal", "direct",
           "two-hop", "two-level", "latency", "best", "times", "bound", "4 bits are faster at");
    for (int n = 0; n < o->nnodes; n++) {
        for (int g = 0; g < o->ngbps; g++) {
            struct nm_result r = {0}, of[NB_COST_SCHEDULES] = {{0}};
            int best = 0;

            o->figures.link = 1e9 / 8 * o->gbps[g];
            for (int s = 0; s < NB_COST_SCHEDULES; s++) {
                const struct nb_cost_op op = operation(o, func, (enum nb_cost_schedule)s, o->nodes[n], bytes);
                if ((s == NB_COST_TWO_LEVEL && !nm_columns(&op)) || !nm_predict(&o->figures, &op, &of[s]))
                    of[s].seconds = INFINITY;
                best = of[s].seconds < of[best].seconds ? s : best;
            }
            r = of[best];
            const double own = nm_nccl(&o->figures, func, o->nodes[n], bytes);
            if (isfinite(of[NB_COST_TWO_LEVEL].seconds))
                snprintf(grid, sizeof(grid), "%.3f", 1e3 * of[NB_COST_TWO_LEVEL].seconds);
            else
                snprintf(grid, sizeof(grid), "no grid");
            printf("%5d %6g %9.3f %9.3f %9.3f %9.3f %9s %9.3f %-9s %6.2f %-6s %s\n", o->nodes[n], o->gbps[g],
                   1e3 * own, 1e3 * r.ideal, 1e3 * of[NB_COST_DIRECT].seconds,
                   1e3 * of[NB_COST_TWO_HOP].seconds, grid, 1e3 * r.latency,
                   nm_schedule_name((enum nb_cost_schedule)best), own / r.seconds,
                   r.ideal > 0.8 * r.seconds        ? "link"
                   : r.cpu > 0.8 * o->figures.cores ? "codec"
                                                    : "window",
                   pays(o, func, o->nodes[n], c, sizeof(c)));
        }
    }
}

static void print_needs(const struct options *o, double bytes)
{
    char text[3][16];

    printf("\nWhat a node needs, for one communicator and GPU\n%5s %-10s %12s %10s %10s %11s\n", "nodes",
           "schedule", "connections", "staging", "feedback", "references");
    for (int n = 0; n < o->nnodes; n++) {
        for (int s = 0; s < NB_COST_SCHEDULES; s++) {
            const struct nb_cost_op sum =
                operation(o, NB_FUNC_ALL_REDUCE, (enum nb_cost_schedule)s, o->nodes[n], bytes);
            const struct nb_cost_op gather =
                operation(o, NB_FUNC_ALL_GATHER, (enum nb_cost_schedule)s, o->nodes[n], bytes);
            struct nm_needs a, b;
            if (s == NB_COST_TWO_HOP) /* connects like direct */
                continue;
            if (s == NB_COST_TWO_LEVEL && !nm_columns(&sum)) {
                printf("%5d %-10s no grid, as others\n", o->nodes[n], "two-level");
                continue;
            }
            nm_needs(&sum, o->gradients, o->weights, &a);
            nm_needs(&gather, o->gradients, o->weights, &b);
            printf("%5d %-10s %12.0f %10s %10s %11s\n", o->nodes[n],
                   s == NB_COST_DIRECT ? "others" : "two-level", a.connections,
                   size_text(a.staging, text[0], sizeof(text[0])),
                   size_text(a.feedback, text[1], sizeof(text[1])),
                   size_text(b.references, text[2], sizeof(text[2])));
        }
    }
    puts("Staging counts all credits; NIBBLE_STAGING_MAX_MB gives fewer where they would not fit.");
}

/* ---- beside measurements ---- */

/* Return whether "auto" takes two hops for a reduce-scatter that is raw, or whose second hop has 6 bits. This
 * is the rule of plugin/coll/schedule/two_hop.c, which considers more than the faster way. Raw samples older
 * than NB_RULES_VERSION 6 went the way of coded ones, coded samples older than 11 had 4 bits there. */
static bool sums_in_two_hops(const struct nb_cost_op *op)
{
    const double n = op->nodes, window = op->channels * op->chunk, block = op->bytes / n;

    return n > 2 && window / (n - 1) >= 8192 &&
           nb_cost_two_hops_pay(n, NB_COST_STEPS * window, block, 0,
                                op->coded ? NB_COST_SECOND_INT6 : NB_COST_SECOND_RAW);
}

/* Predict one sample. "auto" is a grid from some number of nodes on, below that the faster way for a
 * gather. */
static bool predict_sample(const struct options *o, const struct nm_sample *s, enum nb_func func,
                           struct nm_result *r)
{
    const bool word = strcmp(s->schedule, "two-level") == 0, chosen = strcmp(s->schedule, "auto") == 0;
    const bool any = chosen && func != NB_FUNC_REDUCE_SCATTER;
    bool hops = strncmp(s->schedule, "two-hop", 7) == 0;
    struct nb_cost_op op = operation(o, func, NB_COST_DIRECT, s->nodes, s->bytes);
    struct nm_result other;

    if (word || (chosen && s->nodes >= GRID_NODES))
        op.schedule = NB_COST_TWO_LEVEL;
    /* A grid's sums have 4 bits and 8. The measured ratio is the mean. */
    if (s->ratio > 0 && (s->ratio >= 1 || func == NB_FUNC_ALL_GATHER || !nm_columns(&op)))
        op.ratio = s->ratio;
    op.coded = strcmp(s->tool, "coded") == 0;
    op.chunk = s->chunk;
    op.channels = s->channels;
    if (nm_columns(&op))
        return nm_predict(&o->figures, &op, r);
    if (chosen && func == NB_FUNC_REDUCE_SCATTER)
        hops = sums_in_two_hops(&op);
    op.schedule = hops ? NB_COST_TWO_HOP : NB_COST_DIRECT;
    if (!nm_predict(&o->figures, &op, r))
        return false;
    op.schedule = NB_COST_TWO_HOP;
    if (any && nm_predict(&o->figures, &op, &other) && other.seconds < r->seconds)
        *r = other;
    return true;
}

/* Set the latency of a hop from the smallest raw operations of the same run, which consist of latency
 * only. */
static void calibrate(struct options *o, const struct nm_sample *samples, long n, int nodes)
{
    double best = INFINITY;

    for (long i = 0; i < n; i++)
        if (strcmp(samples[i].set, "small") == 0 && strcmp(samples[i].tool, "raw") == 0 &&
            samples[i].nodes == nodes && strcmp(samples[i].op, "reduce_scatter") == 0 &&
            samples[i].bytes <= 8192 && samples[i].seconds < best)
            best = samples[i].seconds;
    if (isfinite(best))
        o->figures.latency = best;
}

static int validate(struct options *o)
{
    struct nm_sample *samples;
    const long n = nm_read_bench(o->validate, &samples);
    double worst = 0, sum = 0;
    int count = 0, over = 0;

    if (n < 0)
        return 1;
    printf("%-8s %-7s %-10s %5s %-15s %-9s %6s %10s %12s %12s %7s\n", "set", "tool", "schedule", "nodes",
           "op", "type", "bytes", "windows", "measured ms", "predicted ms", "error");
    for (long i = 0; i < n; i++) {
        const struct nm_sample *s = &samples[i];
        char size[16], chunk[16], windows[32];
        struct nm_result r;
        enum nb_func func;

        for (func = NB_FUNC_REDUCE_SCATTER; func < NB_FUNC_COUNT && strcmp(s->op, nm_func_name(func)) != 0;
             func++)
            continue;
        if (func == NB_FUNC_COUNT || (strcmp(s->tool, "coded") != 0 && strcmp(s->tool, "raw") != 0) ||
            s->chunk <= 0 || s->mbps <= 0)
            continue;
        if (!speeds(o, s->type))
            return 1;
        calibrate(o, samples, n, s->nodes);
        o->figures.link = 1e6 / 8 * s->mbps;
        o->figures.host_slots = true;
        if (!predict_sample(o, s, func, &r))
            continue;
        const double error = r.seconds / s->seconds - 1;
        snprintf(windows, sizeof(windows), "%s x %d", size_text(s->chunk, chunk, sizeof(chunk)), s->channels);
        printf("%-8s %-7s %-10s %5d %-15s %-9s %6s %10s %12.2f %12.2f %+6.1f%%\n", s->set, s->tool,
               s->schedule, s->nodes, s->op, s->type, size_text(s->bytes, size, sizeof(size)), windows,
               1e3 * s->seconds, 1e3 * r.seconds, 100 * error);
        worst = fmax(worst, fabs(error));
        sum += fabs(error);
        over += fabs(error) > 0.15;
        count++;
    }
    free(samples);
    if (!count) {
        fprintf(stderr,
                "nibble-model: %s has nothing to compare with (sets main, large and windows of bench.sh)\n",
                o->validate);
        return 1;
    }
    printf("%d measurements: mean error %.1f %%, largest %.1f %%, %d beyond 15 %%\n", count,
           100 * sum / count, 100 * worst, over);
    return o->tolerance > 0 && 100 * worst > o->tolerance;
}

int main(int argc, char **argv)
{
    static const double gbps[] = {1, 10, 25, 100, 200, 400, 800};
    static const int nodes[] = {2, 4, 8, 16, 64, 256, 1024, 4096};
    struct options o = {
        .type = "bfloat16", .bytes = {64 << 20}, .nbytes = 1, .ngbps = 7, .nnodes = 8, .buffer = 4 << 20};

    output_check(1);
    memcpy(o.gbps, gbps, sizeof(gbps));
    memcpy(o.nodes, nodes, sizeof(nodes));
    o.op = nb_cost_op_make(NB_FUNC_ALL_REDUCE, 2, 1, 2, 1);
    if (!parse(argc, argv, &o))
        return 2;
    if (!speeds(&o, o.type))
        return 1;
    if (o.validate)
        return validate(&o);
    if (o.reckon) {
        for (int i = 0; i < o.nnodes; i++) {
            struct nb_cost_op op = operation(&o, NB_FUNC_ALL_REDUCE, NB_COST_TWO_LEVEL, o.nodes[i], 1);
            const bool rows =
                o.nodes[i] >= GRID_NODES || o.op.group > 0 || (op.sites > 1 && op.group >= GRID_SITE);
            const int columns = rows ? nm_columns(&op) : 0;
            const struct nb_reckon_nodes group = {.nodes = o.nodes[i],
                                                  .columns = columns,
                                                  .schedule = NB_SCHEDULE_AUTO,
                                                  .unit = o.op.unit,
                                                  .second_bits = 6,
                                                  .rtt = o.distant ? 2 * o.figures.latency : 0,
                                                  .sites = op.sites,
                                                  .trunk = (uint32_t)(1000 * o.trunk),
                                                  .buffer = o.buffer};
            auto_print(&group, o.gbps, o.ngbps, strcmp(o.type, "float32") == 0);
        }
        return 0;
    }
    printf("Codec %s, GB/s of values: encode %.1f, with feedback %.1f, add %.1f, decode %.1f; differences: "
           "encode %.1f, decode %.1f.\n%g processors a node, hop %g us, message %g us.\n",
           o.type, 1e-9 * o.figures.speed.encode, 1e-9 * o.figures.speed.encode_feedback,
           1e-9 * o.figures.speed.decode_add, 1e-9 * o.figures.speed.decode,
           1e-9 * o.figures.speed.ulp_encode, 1e-9 * o.figures.speed.ulp_decode, o.figures.cores,
           1e6 * o.figures.latency, 1e6 * o.figures.message);
    for (int b = 0; b < o.nbytes; b++)
        for (int f = 0; f < NB_FUNC_COUNT; f++)
            print_table(&o, (enum nb_func)f, o.bytes[b]);
    print_needs(&o, o.bytes[0]);
    puts("\nbound: link: at 80 % of what its rate allows; codec: processors are busy; window: nodes wait for "
         "one another\n"
         "or for NCCL, which keeps eight steps of each channel in flight.");
    return 0;
}
