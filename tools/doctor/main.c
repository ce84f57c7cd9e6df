/* SPDX-License-Identifier: Apache-2.0 */
/* nibble-doctor: find the obstacles to compression before a job's first run. */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/version.h"
#include "doctor.h"
#include "hosts.h"
#include "nodes.h"
#include "tools/output.h"

#define EXIT_WRONG 3

static const char help[] =
    "usage: nibble-doctor [OPTION]...\n"
    "\n"
    "Find causes that would keep a job on this node uncompressed: settings, NCCL's variables, the plugin "
    "that NCCL\n"
    "loads, network devices, GPUs, limits of processes, NCCL. Give a remedy for each, and the expected gain "
    "of\n"
    "compression. Run it where the job runs, in the job's environment.\n"
    "\n"
    "On all nodes (one process each, by srun, mpirun, --hosts or --rank) it also compares the nodes, "
    "connects all\n"
    "pairs over the job's transport, and measures the links. Node 0 reports for all.\n"
    "\n"
    "  --json           one JSON object instead of text\n"
    "  --nodes N        number of nodes of the job, for the checks of connections and files, and for the "
    "gain\n"
    "  --limit S        seconds for the checks between nodes (default 60; at most twice that where nodes "
    "hang)\n"
    "  --alone          this node only, whatever launcher has started it\n"
    "  --gpus N         GPUs of a node, instead of the detected number\n"
    "  --gbps X         Gbit/s of a node's link, instead of its device's rate\n"
    "  --no-speed       skip measuring the codecs and predicting the gain\n"
    "  --nccl FILE      use this NCCL library instead of looking for one\n"
    "  --python NAME    interpreter whose packages are searched for PyTorch (default python3; \"\": none)\n"
    "  --system DIR     read /sys, /proc and /dev below DIR: a copy of another machine's\n"
    "  --hosts LIST     start it on these hosts: \"a,b,c\", or a file with a host per line; the first is "
    "node 0. They\n"
    "                   get all other options, this folder, and PATH, LD_LIBRARY_PATH, PYTHONPATH, "
    "VIRTUAL_ENV,\n"
    "                   NCCL_*, NIBBLE_* and CUDA_* of the environment. Their messages go to stderr, the "
    "report to\n"
    "                   stdout. If node 0 fails, or this process ends, all end\n"
    "  --rsh COMMAND    for --hosts: started with a host and a line for the shell there (default\n"
    "                   \"" DEFAULT_RSH "\")\n"
    "Without a launcher:\n"
    "  --rank R         this is node R of --nodes\n"
    "  --root HOST      of node 0; with mpirun, too     --port P  node 0 listens there (default 29877)\n"
    "  --key K          a number that only the nodes of this run share\n"
    "  --tied           end when standard input ends, as --hosts makes its nodes do\n"
    "\n"
    "  --version, -h, --help\n"
    "\n"
    "Exit status: 0 all is well; 1 warnings; 2 a problem; 3 a wrong call, or the report could not be "
    "written.\n";

struct call {
    struct doctor_options options;
    struct place place;
    double limit;
    bool alone, tied;
    struct hosts hosts;
    char *passed[128]; /* hosts.words */
};

/* Pass an option on to all nodes, unless it concerns a single node. */
static bool pass(struct call *call, const char *name, char *value)
{
    char *word;

    if (call->hosts.nwords == (int)(sizeof(call->passed) / sizeof(call->passed[0])))
        return false;
    if (asprintf(&word, value ? "--%s=%s" : "--%s", name, value) < 0)
        return false;
    call->passed[call->hosts.nwords++] = word;
    return true;
}

/* Return -1 to go on, else the exit status. */
static int parse(int argc, char **argv, struct call *call)
{
    struct stat folder;
    static const struct option long_options[] = {
        {"json", no_argument, NULL, 'j'},         {"nodes", required_argument, NULL, 'N'},
        {"gpus", required_argument, NULL, 'g'},   {"gbps", required_argument, NULL, 'G'},
        {"no-speed", no_argument, NULL, 's'},     {"nccl", required_argument, NULL, 'n'},
        {"python", required_argument, NULL, 'p'}, {"system", required_argument, NULL, 'S'},
        {"rank", required_argument, NULL, 'r'},   {"root", required_argument, NULL, 'o'},
        {"port", required_argument, NULL, 'P'},   {"key", required_argument, NULL, 'k'},
        {"limit", required_argument, NULL, 'l'},  {"alone", no_argument, NULL, 'a'},
        {"hosts", required_argument, NULL, 'H'},  {"rsh", required_argument, NULL, 'R'},
        {"tied", no_argument, NULL, 't'},         {"version", no_argument, NULL, 'v'},
        {"help", no_argument, NULL, 'h'},         {0},
    };
    struct doctor_options *o = &call->options;
    struct place *p = &call->place;
    char *end;
    int c, which = 0;

    while ((c = getopt_long(argc, argv, "h", long_options, &which)) != -1) {
        const char *name = option_name(c, long_options);
        bool good = true;
        switch (c) {
        case 'j': o->json = true; break;
        case 'N': good = option_whole(name, optarg, 1, MOST_NODES, &o->nodes); break;
        case 'g': good = option_whole(name, optarg, 0, 64, &o->gpus); break;
        case 'G': good = option_number(name, optarg, 1e-3, 1e6, &o->gbps); break;
        case 's': o->speed = false; break;
        case 'n': o->nccl = optarg; break;
        case 'p': o->python = optarg; break;
        case 'S':
            o->system = optarg;
            good = (stat(optarg, &folder) == 0 && S_ISDIR(folder.st_mode)) ||
                   option_wrong(name, optarg, "a folder, with the other machine's sys, proc and dev in it");
            break;
        case 'r': good = option_whole(name, optarg, 0, MOST_NODES - 1, &p->rank); break;
        case 'o': snprintf(p->root, sizeof(p->root), "%s", optarg); break;
        case 'P': good = option_whole(name, optarg, 1, 65535, &p->port); break;
        case 'k':
            p->key = strtoull(optarg, &end, 0);
            good = (*optarg && !*end) || option_wrong(name, optarg, "a whole number");
            break;
        case 'l': good = option_number(name, optarg, 5, 1e6, &call->limit); break;
        case 'a': call->alone = true; break;
        case 'H': call->hosts.list = optarg; break;
        case 'R': call->hosts.rsh = optarg; break;
        case 't': call->tied = true; break;
        case 'v': printf("nibble-doctor %s\n", nb_version_with_commit()); return 0;
        case 'h': fputs(help, stdout); return 0;
        default: fputs("try nibble-doctor --help\n", stderr); return EXIT_WRONG;
        }
        if (!good)
            return EXIT_WRONG;
        if (!strchr("NroPkaHRt", c) && !pass(call, long_options[which].name, optarg)) {
            fputs("nibble-doctor: too many options\n", stderr);
            return EXIT_WRONG;
        }
    }
    if (optind < argc) {
        option_wrong("an argument", argv[optind], "an option (see --help)");
        return EXIT_WRONG;
    }
    if (call->hosts.list && (o->nodes || p->rank >= 0 || call->alone)) {
        fputs("nibble-doctor: --hosts says how many nodes there are, so --nodes, --rank and --alone do not "
              "go with it\n",
              stderr);
        return EXIT_WRONG;
    }
    return -1;
}

/* Examine all nodes, or this one alone. Return the exit status. *shown: whether there is a report. */
static int examine(struct doctor *d, const struct call *call, char *scope, size_t cap, bool *shown)
{
    const struct place *p = &call->place;

    *shown = true;
    snprintf(scope, cap, "this node");
    doctor_local(d);
    if (p->nodes && d->params) {
        snprintf(scope, cap, "%d nodes, by %s", p->nodes, p->by);
        return (int)doctor_nodes(d, p, call->limit, shown);
    }
    return (int)report_status(&d->report);
}

int main(int argc, char **argv)
{
    struct call call = {.options = {.speed = true, .python = "python3", .system = "", .gpus = -1},
                        .place = {.rank = -1},
                        .hosts = {.rsh = DEFAULT_RSH},
                        .limit = 60};
    char scope[80], why[256];
    struct doctor d = {0};
    int status;
    bool shown;

    output_check(EXIT_WRONG);
    status = parse(argc, argv, &call);
    if (status < 0 && call.hosts.list) {
        call.hosts.words = call.passed;
        status = hosts_run(&call.hosts, &call.place, call.limit);
    }
    for (int i = 0; i < call.hosts.nwords; i++)
        free(call.passed[i]);
    if (status >= 0)
        return status;
    if (call.tied && hosts_tie()) {
        fputs("nibble-doctor: --tied: no thread can be started\n", stderr);
        return EXIT_WRONG;
    }
    call.place.nodes = call.options.nodes;
    if (call.alone)
        call.place.nodes = 0;
    else if (!launcher_place(&call.place, why, sizeof(why))) {
        fprintf(stderr, "nibble-doctor: %s\n", why);
        return EXIT_WRONG;
    }
    d.options = call.options;
    if (call.place.nodes)
        d.options.nodes = call.place.nodes;
    d.options.together = call.place.nodes > 0;
    status = examine(&d, &call, scope, sizeof(scope), &shown);
    if (shown && report_show(&d.report, stdout, d.options.json, nb_version_with_commit(), scope))
        status = EXIT_WRONG;
    doctor_end(&d);
    report_free(&d.report);
    return call.tied ? hosts_untie(status) : status;
}
