/* SPDX-License-Identifier: Apache-2.0 */
/* nibble-train: options, the runs one after the other, and the report. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/version.h"
#include "job.h"
#include "report.h"
#include "tools/output.h"

#define MAX_TEXTS 64

struct options {
    struct nbt_settings s;
    struct nbt_config cfg;
    const char *text[MAX_TEXTS];
    size_t texts;
    size_t text_limit;
    const char *out;
    int run[NBT_RUNS_MAX];
    int quick, quiet;
};

static void usage(FILE *f)
{
    fputs(
        "usage: nibble-train [options]\n"
        "Train a small byte-level GPT, data parallel over several processes whose gradients and weights go\n"
        "through the plugin: uncompressed, at 4 bits without and with error feedback. Compare.\n"
        "\n"
        "  -n, --nodes N          processes, each a node, 2 to 8 (4)\n"
        "  -o, --out DIR          folder for results.json, loss curves and the picture (nibble-train-out)\n"
        "      --text PATH        file or folder to train on, several times if wanted\n"
        "                         (/usr/share/common-licenses)\n"
        "      --text-limit MB    read at most this much (64)\n"
        "      --steps N          steps of each run (240)\n"
        "      --runs LIST        of raw, nofeedback, feedback (these three), ema, delta4,\n"
        "                         all-reduce, all-reduce4, two-hop, two-hop4, two-level\n"
        "      --grad TYPE        gradients travel as bf16, fp16 or fp32 (bf16)\n"
        "      --exchange WHAT    plugin (default); shm: exact, through shared memory\n"
        "      --plugin PATH      the plugin's shared object (the build's)\n"
        "      --layers N, --width N, --heads N, --context N, --batch N\n"
        "                         the model (4, 96, 3, 64) and sequences a node and step (8)\n"
        "      --rate X           peak learning rate (0.003)\n"
        "      --seed N           of weights and batches (1)\n"
        "      --fault WHAT       make a mistake, to see it found: weight\n"
        "      --quick            two nodes, a small model, 80 steps: a test, not a measurement\n"
        "  -q, --quiet            no progress\n"
        "  -h, --help, --version\n"
        "\n"
        "Exit status: 0 when every bar holds, 1 when one fails, 2 when nothing could be measured.\n",
        f);
}

static int number(const char *text, const char *option, long long min, long long max, long long *value)
{
    char *end;
    errno = 0;
    *value = strtoll(text, &end, 10);
    if (errno == 0 && end != text && *end == 0 && *value >= min && *value <= max)
        return 0;
    fprintf(stderr, "nibble-train: --%s: \"%s\" is not a number from %lld to %lld\n", option, text, min, max);
    return -EINVAL;
}

static int choose_runs(struct options *o, const char *list)
{
    memset(o->run, 0, sizeof o->run);
    while (*list) {
        const size_t n = strcspn(list, ",");
        const struct nbt_run *run = nbt_run_find(list, n);
        if (!run) {
            fprintf(stderr, "nibble-train: --runs: \"%.*s\" is none of ", (int)n, list);
            nbt_run_names(stderr);
            fputc('\n', stderr);
            return -EINVAL;
        }
        o->run[run - nbt_runs] = 1;
        list += n + (list[n] == ',');
    }
    return 0;
}

enum {
    O_TEXT = 256,
    O_LIMIT,
    O_STEPS,
    O_RUNS,
    O_GRAD,
    O_EXCHANGE,
    O_PLUGIN,
    O_LAYERS,
    O_WIDTH,
    O_HEADS,
    O_CONTEXT,
    O_BATCH,
    O_RATE,
    O_SEED,
    O_QUICK,
    O_FAULT,
    O_VERSION
};

static const struct option long_options[] = {
    {"nodes", required_argument, NULL, 'n'},
    {"out", required_argument, NULL, 'o'},
    {"text", required_argument, NULL, O_TEXT},
    {"text-limit", required_argument, NULL, O_LIMIT},
    {"steps", required_argument, NULL, O_STEPS},
    {"runs", required_argument, NULL, O_RUNS},
    {"grad", required_argument, NULL, O_GRAD},
    {"exchange", required_argument, NULL, O_EXCHANGE},
    {"plugin", required_argument, NULL, O_PLUGIN},
    {"layers", required_argument, NULL, O_LAYERS},
    {"width", required_argument, NULL, O_WIDTH},
    {"heads", required_argument, NULL, O_HEADS},
    {"context", required_argument, NULL, O_CONTEXT},
    {"batch", required_argument, NULL, O_BATCH},
    {"rate", required_argument, NULL, O_RATE},
    {"seed", required_argument, NULL, O_SEED},
    {"quick", no_argument, NULL, O_QUICK},
    {"fault", required_argument, NULL, O_FAULT},
    {"quiet", no_argument, NULL, 'q'},
    {"version", no_argument, NULL, O_VERSION},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* Take one option. Return 0, 1 for --help, 2 for --version, or a negative value for a bad argument. */
static int take_option(struct options *o, int c, const char *name)
{
    struct nbt_settings *s = &o->s;
    long long v = 0;
    int rc = 0;
    switch (c) {
    case 'n':
        rc = number(optarg, name, 2, NBT_MAX_NODES, &v);
        s->nodes = (int)v;
        return rc;
    case 'o': o->out = optarg; return 0;
    case 'q': o->quiet = 1; return 0;
    case 'h': return 1;
    case O_VERSION: return 2;
    case O_TEXT:
        if (o->texts == MAX_TEXTS)
            return -EINVAL;
        o->text[o->texts++] = optarg;
        return 0;
    case O_LIMIT:
        rc = number(optarg, name, 1, 65536, &v);
        o->text_limit = (size_t)v << 20;
        return rc;
    case O_STEPS:
        rc = number(optarg, name, 1, 1000000, &v);
        s->steps = (size_t)v;
        return rc;
    case O_RUNS: return choose_runs(o, optarg);
    case O_GRAD:
        s->grad_type = strcmp(optarg, "fp32") == 0 ? NB_F32 : strcmp(optarg, "fp16") == 0 ? NB_F16 : NB_BF16;
        if (s->grad_type != NB_BF16 || strcmp(optarg, "bf16") == 0)
            return 0;
        fprintf(stderr, "nibble-train: --grad: \"%s\" is none of bf16, fp16, fp32\n", optarg);
        return -EINVAL;
    case O_EXCHANGE:
        s->exchange = nbt_exchange_find(optarg);
        if (s->exchange)
            return 0;
        fprintf(stderr, "nibble-train: --exchange: \"%s\" is neither plugin nor shm\n", optarg);
        return -EINVAL;
    case O_PLUGIN: s->plugin = optarg; return 0;
    case O_LAYERS:
    case O_WIDTH:
    case O_HEADS:
    case O_CONTEXT:
    case O_BATCH: {
        size_t *const field[] = {&o->cfg.layers, &o->cfg.width, &o->cfg.heads, &o->cfg.context,
                                 &o->cfg.batch};
        rc = number(optarg, name, 1, 4096, &v);
        *field[c - O_LAYERS] = (size_t)v;
        return rc;
    }
    case O_RATE:
        s->rate = (float)atof(optarg);
        if (s->rate > 0 && s->rate < 1)
            return 0;
        fprintf(stderr, "nibble-train: --rate: \"%s\" is not between 0 and 1\n", optarg);
        return -EINVAL;
    case O_SEED:
        rc = number(optarg, name, 0, INT64_MAX, &v);
        s->seed = (uint64_t)v;
        return rc;
    case O_QUICK: o->quick = 1; return 0;
    case O_FAULT:
        s->fault = strcmp(optarg, "weight") == 0 ? NBT_FAULT_WEIGHT : NBT_FAULT_NONE;
        if (s->fault != NBT_FAULT_NONE)
            return 0;
        fprintf(stderr, "nibble-train: --fault: \"%s\" is not weight\n", optarg);
        return -EINVAL;
    default: return -EINVAL; /* getopt has printed the reason */
    }
}

static void defaults(struct options *o, int quick)
{
    memset(o, 0, sizeof *o);
    o->cfg = quick ? (struct nbt_config){.layers = 2, .width = 64, .heads = 2, .context = 64, .batch = 4}
                   : (struct nbt_config){.layers = 4, .width = 96, .heads = 3, .context = 64, .batch = 8};
    o->s.opt = (struct nbt_adamw){.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .decay = 0.1f};
    o->s.nodes = quick ? 2 : 4;
    o->s.steps = quick ? 80 : 240;
    o->s.rate = 3e-3f;
    o->s.seed = 1;
    o->s.grad_type = NB_BF16;
    o->s.exchange = &nbt_exchange_plugin;
    o->out = "nibble-train-out";
    o->text_limit = (size_t)64 << 20;
    for (size_t i = 0; i < nbt_runs_count; i++)
        o->run[i] = nbt_runs[i].usual;
}

static int parse(struct options *o, int argc, char **argv)
{
    int c, at = -1, quick = 0;
    for (int i = 1; i < argc; i++) /* the other options refine --quick's settings */
        quick |= strcmp(argv[i], "--quick") == 0;
    defaults(o, quick);
    while ((c = getopt_long(argc, argv, "n:o:qh", long_options, &at)) != -1) {
        const int rc = take_option(o, c, c == 'n' ? "nodes" : at >= 0 ? long_options[at].name : "?");
        if (rc)
            return rc;
    }
    if (optind < argc) {
        fprintf(stderr, "nibble-train: unexpected \"%s\"\n", argv[optind]);
        return -EINVAL;
    }
    if (o->texts == 0)
        o->text[o->texts++] = "/usr/share/common-licenses";
    return 0;
}

/* Set the values that follow from the options. */
static int complete(struct options *o)
{
    struct nbt_settings *s = &o->s;
    int rc = nbt_layout_make(&o->cfg, &s->lay);
    if (rc) {
        fprintf(stderr,
                "nibble-train: no such model: at most %u layers, width / heads and context multiples of 32\n",
                NBT_MAX_LAYERS);
        return rc;
    }
    if (s->plugin && s->exchange == &nbt_exchange_plugin && access(s->plugin, R_OK) != 0) {
        fprintf(stderr, "nibble-train: --plugin: cannot read %s: %s\n", s->plugin, strerror(errno));
        return -ENOENT;
    }
    rc = nbt_report_folder(o->out); /* before the runs, which take minutes */
    if (rc)
        return rc;
    rc = nbt_text_load(o->text, o->texts, o->text_limit, &s->text);
    if (rc)
        return rc;
    if (nbt_text_valid_count(&s->text, o->cfg.context) < o->cfg.batch ||
        s->text.train_bytes <= o->cfg.context) {
        fprintf(stderr, "nibble-train: too little text for a batch of %zu x %zu bytes\n", o->cfg.batch,
                o->cfg.context);
        return -ENODATA;
    }
    s->block = (s->lay.params + (size_t)s->nodes - 1) / (size_t)s->nodes;
    s->block = (s->block + 1023) / 1024 * 1024;
    s->warmup = s->steps / 10 > 0 ? s->steps / 10 : 1;
    s->eval_every = s->steps / 10 > 10 ? s->steps / 10 : 10;
    s->probe_from = s->steps * 6 / 10;
    s->probe_every = s->steps / 60 > 0 ? s->steps / 60 : 1;
    s->deadline_s = 120 + (double)s->steps * 30;
    return 0;
}

/* Collect the bytes of the whole run: counted along the way, or from the plugin's log at its close. */
static void collect_traffic(const struct nbt_settings *s, const struct hx_report *report,
                            struct nbt_outcome *out)
{
    struct nbt_traffic *sum = &out->traffic;
    if (!s->exchange->traffic_from_log)
        return;
    for (int r = 0; r < s->nodes; r++) {
        struct nbt_traffic t;
        s->exchange->traffic_from_log(report->node[r].log ? report->node[r].log : "", &t);
        sum->reduce_scatter.ops += t.reduce_scatter.ops;
        sum->reduce_scatter.wire += t.reduce_scatter.wire;
        sum->all_gather.ops += t.all_gather.ops;
        sum->all_gather.wire += t.all_gather.wire;
        sum->quantized_ops += t.quantized_ops;
        sum->feedback_ops += t.feedback_ops;
        sum->known = r == 0 ? t.known : sum->known && t.known;
    }
}

/* Set the run's settings, and turn the plugin's own recognition of gradients on, because the harness normally
 * lets tests code all operations at once. The caller's environment overrides both. */
static void make_env(const struct nbt_run *run, const char **env)
{
    static const char *const judgement[] = {"NIBBLE_GRAD", "NIBBLE_WARMUP_STEPS"};
    size_t n = 0;
    for (size_t i = 0; run->env && run->env[i]; i++)
        env[n++] = run->env[i];
    for (size_t i = 0; i < sizeof judgement / sizeof *judgement; i++)
        if (!getenv(judgement[i]))
            env[n++] = judgement[i]; /* without a value: unset */
    env[n] = NULL;
}

static int do_run(const struct options *o, const struct nbt_run *run, struct nbt_progress *progress,
                  struct nbt_outcome *out)
{
    const struct nbt_settings *s = &o->s;
    struct nbt_launch launch = {.settings = s, .run = run, .progress = progress};
    struct hx_report *report = NULL;
    launch.board = hx_common_memory(nbt_board_bytes(s));
    if (!launch.board)
        return -ENOMEM;
    const char *env[16];
    make_env(run, env);
    const struct hx_job job = {
        .name = run->title,
        .nnodes = s->nodes,
        .deadline_s = s->deadline_s,
        .fn = nbt_node_main,
        .arg = &launch,
        .env = env,
        .seed = s->seed,
        .quiet = true, /* the verdict, or the refusal, has the reason */
    };
    memset(out, 0, sizeof *out);
    out->run = run;
    out->ok = hx_job_run(&job, &report) == 0;
    out->board = hx_common_memory_keep(launch.board, nbt_board_bytes(s));
    if (!out->board)
        return -ENOMEM;
    collect_traffic(s, report, out);
    if (s->exchange->story_from_log && report->node[0].log)
        s->exchange->story_from_log(report->node[0].log, out->story, sizeof out->story);
    snprintf(out->reason, sizeof out->reason, "%.*s", (int)sizeof out->reason - 1, report->reason);
    for (char *c = out->reason; *c; c++) /* the reason becomes part of a JSON string */
        if (*c == '"' || *c == '\\' || (unsigned char)*c < ' ')
            *c = '\'';
    hx_report_free(report);
    return 0;
}

int main(int argc, char **argv)
{
    static struct options o;
    struct nbt_outcome outcome[NBT_RUNS_MAX];
    struct nbt_progress progress = {0};
    size_t n = 0;
    output_check(2);
    const int rc = parse(&o, argc, argv);
    if (rc == 2) {
        printf("nibble-train %s\n", nb_version_with_commit());
        return 0;
    }
    if (rc) {
        usage(rc > 0 ? stdout : stderr);
        return rc > 0 ? 0 : 2;
    }
    if (complete(&o))
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("nibble-train: %zu parameters (%zu layers of width %zu, %zu heads, context %zu), %d nodes,\n"
           "%zu sequences a node, %zu steps\ntext: %zu files, %zu KiB to train on, %zu KiB held out; kernels "
           "%s\n",
           o.s.lay.params, o.cfg.layers, o.cfg.width, o.cfg.heads, o.cfg.context, o.s.nodes, o.cfg.batch,
           o.s.steps, o.s.text.files, o.s.text.train_bytes >> 10, o.s.text.valid_bytes >> 10,
           nbt_kernels_get(NULL)->name);
    progress.steps = o.s.steps;
    progress.quiet = o.quiet;
    progress.terminal = isatty(2);
    for (size_t i = 0; i < nbt_runs_count; i++)
        progress.runs += o.run[i] != 0;
    for (size_t i = 0; i < nbt_runs_count; i++) {
        if (!o.run[i])
            continue;
        nbt_progress_run(&progress, n, nbt_runs[i].title);
        if (do_run(&o, &nbt_runs[i], &progress, &outcome[n]))
            return 2;
        if (!outcome[n].ok && outcome[n].board->steps_done == 0) {
            fprintf(stderr, "nibble-train: %s: not one step ran: %s\n", nbt_runs[i].title, outcome[n].reason);
            return 2;
        }
        n++;
    }
    if (n == 0) {
        fprintf(stderr, "nibble-train: --runs: no run\n");
        return 2;
    }
    const int failed = nbt_report(&o.s, outcome, n, o.out, !o.quick);
    for (size_t i = 0; i < n; i++)
        hx_common_memory_free(outcome[i].board, nbt_board_bytes(&o.s));
    nbt_text_free(&o.s.text);
    return failed < 0 ? 2 : failed > 0;
}
