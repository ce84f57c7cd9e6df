/* SPDX-License-Identifier: Apache-2.0 */
/* nibble-perf: options and rows that coll and p2p share. */
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "machines.h"
#include "perf.h"
#include "tests/harness/lib/harness.h"
#include "tools/output.h"

static const char common_help[] =
    "  -b SIZE          smallest size in bytes (default 1M); K, M, G may follow\n"
    "  -e SIZE          largest size (default 64M)\n"
    "  -f FACTOR        from size to size (default 4)\n"
    "  -i SIZE          or add so much instead\n"
    "  -N, --nodes N    processes on this machine, 2 to 16 (default 2)\n"
    "  -n, --iters N    measured operations of each size (default 10)\n"
    "  -w, --warmup N   before them (default 3)\n"
    "  --reps N         repeat that and print the median (default 1)\n"
    "  --netns PREFIX   nodes run in the network namespaces PREFIX0, PREFIX1, ... over their interface hx0\n"
    "  --plugin FILE    measure this shared object (default: the code of this build)\n"
    "  --nocopy         leave out the GPU's part (moving data between buffers), and all checks\n"
    "  --env NAME=VALUE in the nodes' environment; may be repeated\n"
    "  --log            show all lines that the plugin logs, on stderr\n"
    "  --json FILE      write a list of objects:\n"
    "                   op type nodes bytes channels chunk reps time_us min_us max_us algbw busbw\n"
    "                   wire_ratio nmse cpu busy link_bytes\n";
static const char coll_help[] =
    "usage: nibble-perf coll [OPTION]...\n\n"
    "  --ops LIST       of reduce_scatter,all_gather,all_reduce (default: all)\n"
    "  --types LIST     of float32,bfloat16,float16 (default bfloat16)\n"
    "  --raw            send all raw: NIBBLE_RS, NIBBLE_AR and NIBBLE_AG are raw\n"
    "  --compare        raw and coded in turns, --reps times: time raw, and how much faster coded is\n"
    "  --feedback       with error feedback, as for a known buffer\n"
    "  --step R         all-gather: rms of the change of the weights between two gathers over their own\n"
    "                   (default 0.0015; 0: unchanged)\n"
    "  --channels N     of NCCL (default 8)\n"
    "  --buffsize SIZE  NCCL_BUFFSIZE (default 4M)\n"
    "  --pause MS       before each of --reps, unmeasured, as a job computes between two steps (default 0)\n"
    "  --chunk SIZE     of a channel (default: as NCCL chooses for the operation)\n"
    "  --threads LIST   with each of these numbers of codec threads (NIBBLE_HOST_THREADS) in turns, --reps "
    "times: how much\n"
    "                   faster than the first; processor time of an operation on a node, of the engine's "
    "thread and of\n"
    "                   codec threads; and how much faster the busiest thread of a node allows, where there "
    "are\n"
    "                   processors for all. --json: op type nodes bytes threads time_us min_us max_us faster "
    "engine_us\n"
    "                   codec_us allows\n"
    "  --share PERCENT  of a processor for the engine's thread, and as much for each codec thread, and no "
    "more: where all of\n"
    "                   them fit, few processors stand for many slow ones (SCHED_DEADLINE, as root)\n";
static const char machines_help[] =
    "\nOver machines, a node on each, with nccl-tests' table. Without --nodes, ranks come from srun, mpirun "
    "or torchrun:\n"
    "  --hosts LIST     start it on these hosts: \"a,b,c\", or a file with a host a line; the first is node "
    "0\n"
    "  --rsh COMMAND    for --hosts (default \"" DEFAULT_RSH "\")\n"
    "  --rank R         or by hand: this is node R of --nodes\n"
    "  --root HOST      of node 0; with mpirun, too\n"
    "  --port P         node 0 listens there (default 29877)\n"
    "  --key K          a number that only the nodes of this run share\n"
    "  --tied           end when standard input ends, as --hosts makes its nodes do\n";
static const char coll_notes[] =
    "\nSizes are of the whole vector, times those of one operation out of a "
    "series, bandwidths in GB/s (10^9) as\n"
    "nccl-tests define them. wire: bytes sent over bytes before coding. nmse: "
    "squared error over the squared sum of the\n"
    "exact result. cpu: processors that the nodes kept busy, together; busy: share "
    "of the machine's processors that\nwere busy. Every sum counts as a gradient from "
    "the first step on (NIBBLE_GRAD=all, NIBBLE_WARMUP_STEPS=0), and is "
    "coded (NIBBLE_RS=int4, NIBBLE_AR=int4). The nodes share this machine's cores, so "
    "times are those of the code, not of a network.\n"
    "\nOver machines, #wrong counts values, of up to 786432 of a block, that are further from the exact sum "
    "than 4 bits can\nbe (a seventh of the largest value beside it, of each contribution and of the sum), or "
    "further than rounding with --raw;\ngathered weights must be exact. In place, an all-reduce of float16, "
    "or of more operations than its sums' range allows, is\nleft out: each one's result is the next one's "
    "data.\n";
static const char p2p_help[] =
    "usage: nibble-perf p2p [OPTION]...\n\n"
    "  --bidirectional  both nodes of a pair send at the same time\n"
    "  --streams N      NCCL channels that share a connection, 1 to 8 (default "
    "1). The sockets of a connection are\n"
    "                   NIBBLE_TCP_STREAMS\n"
    "  --chunk SIZE     of a message: larger sizes are cut (default 512K)\n"
    "  --changed P      the bytes are BF16 values, of which P percent change a little from one transfer to "
    "the\n"
    "                   next (100: new values), with NIBBLE_P2P=delta. -n counts such transfers, whose "
    "median\n"
    "                   is shown. Without it NIBBLE_P2P=raw\n"
    "  --cpus LIST      CPU of node 0, of node 1 and so on, from the first again where there are more nodes "
    "than\n"
    "                   CPUs (default: as the kernel chooses)\n";
static const char p2p_notes[] =
    "\nNodes 2k and 2k + 1 make pairs. Sizes and bandwidths are those of one direction of one pair.\n";

static bool bad_option(const char *what)
{
    fprintf(stderr, "nibble-perf: %s\n", what);
    return false;
}

static bool size_of(const char *option, size_t *out)
{
    return (perf_parse_size(optarg, out) && *out > 0) ||
           option_wrong(option, optarg, "a size in bytes above 0; K, M, G or T may follow the number");
}

/* Return whether the nodes are processes of this machine, or this process is one of them. */
static bool find_place(struct perf_run *run, bool coll)
{
    const bool asked = run->hosts.list || run->place.rank >= 0 || run->tied;
    char why[256];

    if (asked && (!coll || run->netns || run->threads))
        return bad_option("over machines only coll measures, without --netns and --threads");
    if (run->hosts.list && (run->nodes || run->place.rank >= 0))
        return bad_option("--hosts says how many nodes there are, so --nodes and --rank do not go with it");
    if (run->tied && hosts_tie())
        return bad_option("--tied: no thread can be started");
    if (asked ? !run->hosts.list : coll && !run->nodes && !run->netns && !run->threads) {
        run->place.nodes = run->nodes;
        if (!launcher_place(&run->place, why, sizeof(why)))
            return bad_option(why);
        run->nodes = run->place.nodes ? run->place.nodes : run->nodes;
    }
    run->nodes = run->nodes ? run->nodes : 2;
    return true;
}

bool perf_run_parse(int argc, char **argv, const char *part, struct perf_run *run)
{
    static const struct option longs[] = {{"nodes", required_argument, NULL, 'N'},
                                          {"iters", required_argument, NULL, 'n'},
                                          {"warmup", required_argument, NULL, 'w'},
                                          {"ops", required_argument, NULL, 'o'},
                                          {"types", required_argument, NULL, 't'},
                                          {"plugin", required_argument, NULL, 'p'},
                                          {"json", required_argument, NULL, 'j'},
                                          {"env", required_argument, NULL, 'E'},
                                          {"channels", required_argument, NULL, 'c'},
                                          {"buffsize", required_argument, NULL, 'B'},
                                          {"step", required_argument, NULL, 'r'},
                                          {"streams", required_argument, NULL, 's'},
                                          {"raw", no_argument, NULL, 'R'},
                                          {"compare", no_argument, NULL, 8},
                                          {"log", no_argument, NULL, 'l'},
                                          {"feedback", no_argument, NULL, 'F'},
                                          {"nocopy", no_argument, NULL, 'C'},
                                          {"bidirectional", no_argument, NULL, 'D'},
                                          {"changed", required_argument, NULL, 9},
                                          {"reps", required_argument, NULL, 'm'},
                                          {"pause", required_argument, NULL, 'P'},
                                          {"netns", required_argument, NULL, 'S'},
                                          {"chunk", required_argument, NULL, 'k'},
                                          {"threads", required_argument, NULL, 'T'},
                                          {"cpus", required_argument, NULL, 'U'},
                                          {"share", required_argument, NULL, 7},
                                          {"hosts", required_argument, NULL, 'H'},
                                          {"rsh", required_argument, NULL, 1},
                                          {"rank", required_argument, NULL, 2},
                                          {"root", required_argument, NULL, 3},
                                          {"port", required_argument, NULL, 4},
                                          {"key", required_argument, NULL, 5},
                                          {"tied", no_argument, NULL, 6},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    const int room = (int)(sizeof(run->env) / sizeof(run->env[0])) - 6;
    const bool coll = strcmp(part, "coll") == 0;
    char *end;
    int c;

    *run = (struct perf_run){
        .min_bytes = 1 << 20,
        .max_bytes = 64 << 20,
        .factor = 4,
        .nodes = 0,
        .place = {.rank = -1},
        .hosts = {.rsh = DEFAULT_RSH},
        .iterations = 10,
        .warmup = 3,
        .repetitions = 1,
        .channels = 8,
        .buff_size = 4 << 20,
        .streams = 1,
        .weight_step = 0.0015,
        /* Measure the steady state, with data of no training job, and use codecs whatever the link. */
        .env = {"NIBBLE_P2P=raw", "NIBBLE_GRAD=all", "NIBBLE_WARMUP_STEPS=0", "NIBBLE_RS=int4",
                "NIBBLE_AR=int4"},
        .nenv = 5,
        .changed = -1};
    while ((c = getopt_long(argc, argv, "b:e:f:i:N:n:w:h", longs, NULL)) != -1) {
        const char *name = option_name(c, longs);
        bool good = true;
        switch (c) {
        case 'b': good = size_of(name, &run->min_bytes); break;
        case 'e': good = size_of(name, &run->max_bytes); break;
        case 'i': good = size_of(name, &run->step_bytes); break;
        case 'B': good = size_of(name, &run->buff_size); break;
        case 'k': good = size_of(name, &run->chunk); break;
        case 'f': good = option_whole(name, optarg, 2, 1 << 20, &run->factor); break;
        case 'N': good = option_whole(name, optarg, 2, HX_MAX_NODES, &run->nodes); break;
        case 'n': good = option_whole(name, optarg, 1, 10000, &run->iterations); break;
        case 'w': good = option_whole(name, optarg, 0, 10000, &run->warmup); break;
        case 'm': good = option_whole(name, optarg, 1, PERF_MOST_REPETITIONS, &run->repetitions); break;
        case 'P':
            good = option_number(name, optarg, 0, 60000, &run->pause_s);
            run->pause_s *= 1e-3;
            break;
        case 'S': run->netns = optarg; break;
        case 'T': run->threads = optarg; break;
        case 'U': run->cpus = optarg; break;
        case 'o': run->ops = optarg; break;
        case 't': run->types = optarg; break;
        case 'p': run->plugin = optarg; break;
        case 'j': run->json = optarg; break;
        case 'E':
            good = strchr(optarg, '=') || option_wrong(name, optarg, "NAME=VALUE");
            if (good && run->nenv == room)
                return bad_option("--env: there may be sixteen of them at most");
            run->env[run->nenv++] = optarg;
            break;
        case 'c': good = option_whole(name, optarg, 1, HX_MAX_CHANNELS, &run->channels); break;
        case 'r': good = option_number(name, optarg, 0, 1e6, &run->weight_step); break;
        case 's': good = option_whole(name, optarg, 1, HX_CALL_CHANNELS, &run->streams); break;
        case 'R':
            run->raw = true;
            run->env[run->nenv++] = "NIBBLE_RS=raw";
            run->env[run->nenv++] = "NIBBLE_AR=raw";
            run->env[run->nenv++] = "NIBBLE_AG=raw";
            break;
        case 8: run->compare = true; break;
        case 'l': run->log = true; break;
        case 'F': run->feedback = true; break;
        case 'C': run->nocopy = true; break;
        case 'H': run->hosts.list = optarg; break;
        case 1: run->hosts.rsh = optarg; break;
        case 2: good = option_whole(name, optarg, 0, HX_MAX_NODES - 1, &run->place.rank); break;
        case 3: snprintf(run->place.root, sizeof(run->place.root), "%s", optarg); break;
        case 4: good = option_whole(name, optarg, 1, 65535, &run->place.port); break;
        case 5:
            run->place.key = strtoull(optarg, &end, 0);
            good = (*optarg && !*end) || option_wrong(name, optarg, "a whole number");
            break;
        case 6: run->tied = true; break;
        case 7: good = option_number(name, optarg, 1, 100, &run->share); break;
        case 'D': run->bidirectional = true; break;
        case 9:
            good = option_number(name, optarg, 0, 100, &run->changed);
            run->env[0] = "NIBBLE_P2P=delta";
            break;
        case 'h':
            fputs(coll ? coll_help : p2p_help, stdout);
            fputs(common_help, stdout);
            fputs(coll ? machines_help : "", stdout);
            fputs(coll ? coll_notes : p2p_notes, stdout);
            run->help = true;
            return true;
        default: fprintf(stderr, "try nibble-perf %s --help\n", part); return false;
        }
        if (!good)
            return false;
        if (run->nenv > room + 1)
            return bad_option("--env: there may be sixteen of them at most");
    }
    if (optind < argc)
        return option_wrong("an argument", argv[optind], "an option (see --help)");
    if (!find_place(run, coll))
        return false;
    if (run->hosts.list)
        return true;
    if (run->nodes < 2 || run->nodes > HX_MAX_NODES)
        return bad_option("2 to 16 nodes");
    if (run->cpus && coll)
        return bad_option("--cpus is of p2p only");
    if (run->compare && (!coll || run->raw || run->threads))
        return bad_option("--compare is of coll only, and goes without --raw and --threads");
    if (run->changed >= 0 && coll)
        return bad_option("--changed is of p2p only");
    if (run->changed >= 0) { /* values change between two measurements */
        const int n = run->iterations * run->repetitions;

        run->repetitions = n < PERF_MOST_REPETITIONS ? n : PERF_MOST_REPETITIONS;
        run->iterations = 1;
    }
    if (run->share != 0 && !coll)
        return bad_option("--share is of coll only");
    if (run->chunk > run->buff_size / HX_STEPS || run->chunk % 512) {
        fprintf(stderr,
                "nibble-perf: --chunk: %zu bytes: it must be a multiple of 512, at most %zu (an eighth of "
                "--buffsize)\n",
                run->chunk, run->buff_size / HX_STEPS);
        return false;
    }
    if (run->min_bytes > run->max_bytes || run->max_bytes > (size_t)1 << 34) {
        fprintf(stderr, "nibble-perf: -b, -e: sizes from %zu to %zu bytes: they must go up, to 16G\n",
                run->min_bytes, run->max_bytes);
        return false;
    }
    return true;
}

size_t perf_run_next(const struct perf_run *run, size_t bytes)
{
    const size_t next = bytes == 0        ? run->min_bytes
                        : run->step_bytes ? bytes + run->step_bytes
                                          : bytes * (size_t)run->factor;

    return next > run->max_bytes ? 0 : next;
}

struct perf_row perf_row_make(const struct perf_run *run, const char *op, const char *type, uint64_t bytes)
{
    struct perf_row row = {.nodes = run->nodes,
                           .channels = run->channels,
                           .repetitions = run->repetitions,
                           .bytes = bytes,
                           .chunk = run->chunk,
                           .quiet = run->quiet,
                           .wire_ratio = NAN,
                           .nmse = NAN,
                           .wrong = NAN,
                           .raw_us = NAN,
                           .in_place_us = NAN,
                           .in_place_wrong = NAN};

    snprintf(row.op, sizeof(row.op), "%s", op);
    snprintf(row.type, sizeof(row.type), "%s", type);
    return row;
}

void perf_row_measured(struct perf_row *row, struct hx_node *node, const double *seconds,
                       const struct perf_usage *before, const struct perf_usage *after, int operations)
{
    struct {
        double seconds[PERF_MOST_REPETITIONS];
        struct perf_usage used;
    } mine = {.used = {.cpu_s = after->cpu_s - before->cpu_s,
                       .engine_s = after->engine_s - before->engine_s,
                       .codec_s = after->codec_s - before->codec_s,
                       .busy_s = after->busy_s - before->busy_s,
                       .total_s = after->total_s - before->total_s,
                       .sent = after->sent - before->sent,
                       .received = after->received - before->received}},
      all[HX_MAX_NODES];
    double slowest[PERF_MOST_REPETITIONS] = {0}, wall = 0, cpu = 0, link = 0;
    const size_t n = (size_t)row->repetitions;

    memcpy(mine.seconds, seconds, n * sizeof(*seconds));
    hx_allgather(node, &mine, sizeof(mine), all);
    for (int r = 0; r < node->nnodes; r++) {
        for (size_t i = 0; i < n; i++)
            slowest[i] = all[r].seconds[i] > slowest[i] ? all[r].seconds[i] : slowest[i];
        cpu += all[r].used.cpu_s;
        row->engine_us += 1e6 * all[r].used.engine_s / (operations * node->nnodes);
        row->codec_us += 1e6 * all[r].used.codec_s / (operations * node->nnodes);
        link = all[r].used.sent > link ? all[r].used.sent : link;
        link = all[r].used.received > link ? all[r].used.received : link;
    }
    for (size_t i = 0; i < n; i++)
        wall += slowest[i] * operations / (double)n;
    row->time_us = 1e6 * perf_median(slowest, n); /* this also sorts them */
    row->min_us = 1e6 * slowest[0];
    row->max_us = 1e6 * slowest[n - 1];
    row->algbw = row->busbw = 1e-3 * (double)row->bytes / row->time_us;
    row->cpu = cpu / wall;
    row->busy = mine.used.total_s > 0 ? mine.used.busy_s / mine.used.total_s : NAN;
    row->link_bytes = link / operations;
}

void perf_row_header(bool compare)
{
    printf("%-15s %-9s %5s %12s %12s %8s %8s %6s %10s %5s %5s%s\n", "op", "type", "nodes", "bytes",
           "time(us)", "algbw", "busbw", "wire", "nmse", "cpu", "busy",
           compare ? "      raw(us)  faster" : "");
}

/* Print a known number with so many digits after the point, or (-1) with three significant digits. */
static void column(int width, int digits, double value)
{
    if (!isfinite(value))
        printf(" %*s", width, "-");
    else if (digits < 0)
        printf(" %*.3g", width, value);
    else
        printf(" %*.*f", width, digits, value);
}

void perf_row_print(const struct perf_row *row)
{
    printf("%-15s %-9s %5d %12llu %12.1f %8.3f %8.3f", row->op, row->type, row->nodes,
           (unsigned long long)row->bytes, row->time_us, row->algbw, row->busbw);
    column(6, 3, row->wire_ratio);
    column(10, -1, row->nmse);
    column(5, 2, row->cpu);
    column(5, 2, row->busy);
    if (isfinite(row->raw_us))
        printf(" %12.1f %7.2f", row->raw_us, row->raw_us / row->time_us);
    putchar('\n');
}

void perf_row_json(struct perf_json *json, const struct perf_row *row)
{
    perf_json_begin(json);
    perf_json_text(json, "op", row->op);
    perf_json_text(json, "type", row->type);
    perf_json_number(json, "nodes", row->nodes);
    perf_json_number(json, "bytes", (double)row->bytes);
    perf_json_number(json, "channels", row->channels);
    perf_json_number(json, "chunk", (double)row->chunk);
    perf_json_number(json, "reps", row->repetitions);
    perf_json_number(json, "time_us", row->time_us);
    perf_json_number(json, "min_us", row->min_us);
    perf_json_number(json, "max_us", row->max_us);
    perf_json_number(json, "algbw", row->algbw);
    perf_json_number(json, "busbw", row->busbw);
    perf_json_number(json, "wire_ratio", row->wire_ratio);
    perf_json_number(json, "nmse", row->nmse);
    perf_json_number(json, "cpu", row->cpu);
    perf_json_number(json, "busy", row->busy);
    perf_json_number(json, "link_bytes", row->link_bytes);
    if (isfinite(row->raw_us)) {
        perf_json_number(json, "raw_us", row->raw_us);
        perf_json_number(json, "faster", row->raw_us / row->time_us);
    }
    if (isfinite(row->wrong)) {
        perf_json_number(json, "wrong", row->wrong);
        perf_json_number(json, "in_place_time_us", row->in_place_us);
        perf_json_number(json, "in_place_wrong", row->in_place_wrong);
    }
    perf_json_end(json);
}

/* Layout of node 0's scratch memory: a count, then rows. */
#define MOST_ROWS ((HX_SCRATCH_BYTES - sizeof(uint64_t)) / sizeof(struct perf_row))

void perf_row_add(struct hx_node *node, const struct perf_row *row)
{
    unsigned char *scratch = hx_scratch(node, 0);
    uint64_t n;

    if (node->rank != 0)
        return;
    if (!row->quiet)
        perf_row_print(row);
    output_progress_end();
    fflush(stdout);
    memcpy(&n, scratch, sizeof(n));
    if (n < MOST_ROWS)
        memcpy(scratch + sizeof(n) + n * sizeof(*row), row, sizeof(*row));
    n++;
    memcpy(scratch, &n, sizeof(n));
}

uint64_t perf_rows_of(const struct hx_report *report, struct perf_row *row, uint64_t number)
{
    uint64_t n;

    memcpy(&n, report->node[0].scratch, sizeof(n));
    if (row && number < n && number < MOST_ROWS)
        memcpy(row, report->node[0].scratch + sizeof(n) + number * sizeof(*row), sizeof(*row));
    return n < MOST_ROWS ? n : MOST_ROWS;
}

int perf_rows_job(const struct hx_job *job, const struct perf_run *run)
{
    const struct place *place = &run->place;
    struct hx_report *report = NULL;
    struct perf_json *json;
    uint64_t n;
    int status;

    if (!perf_json_open(place->rank > 0 ? NULL : run->json, &json)) /* opens it before hours of measuring */
        return 1;
    if (!place->nodes)
        perf_row_header(run->compare);
    fflush(stdout);
    status = place->nodes ? perf_machines_run(job, place, &report) : hx_job_run(job, &report);
    if (report) {
        memcpy(&n, report->node[0].scratch, sizeof(n));
        for (uint64_t i = 0; i < n && i < MOST_ROWS; i++) {
            struct perf_row row;
            memcpy(&row, report->node[0].scratch + sizeof(n) + i * sizeof(row), sizeof(row));
            perf_row_json(json, &row);
        }
        if (n > MOST_ROWS) {
            fprintf(stderr, "nibble-perf: only the first %zu of %llu rows were written\n", MOST_ROWS,
                    (unsigned long long)n);
            status = status ? status : 1;
        }
        if (status && report->reason[0])
            fprintf(stderr, "nibble-perf: %s\n", report->reason);
        hx_report_free(report);
    }
    return perf_json_close(json) || status ? (status ? status : 1) : 0;
}
