/* SPDX-License-Identifier: Apache-2.0 */
/* nibble-doctor: what would keep a job from being compressed, before its first run. */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "base/version.h"
#include "doctor.h"

#define EXIT_WRONG 3

static const char help[] =
    "usage: nibble-doctor [OPTION]...\n\n"
    "What would keep a job on this node from being compressed: settings, NCCL's variables, the plugin that "
    "NCCL\n"
    "loads, network devices, GPUs, limits of processes, NCCL; and what compression would gain. Each problem "
    "with\n"
    "its remedy. Run it where the job runs, in its environment.\n\n"
    "  --json           one JSON object instead of text\n"
    "  --nodes N        nodes that the job will have: connections, files and the gain depend on it\n"
    "  --gpus N         GPUs of a node, instead of those that are found\n"
    "  --gbps X         Gbit/s of a node's link, instead of what its device says\n"
    "  --no-speed       do not measure the codecs, nor predict the gain\n"
    "  --nccl FILE      this NCCL library, instead of looking for it\n"
    "  --python NAME    the interpreter whose packages are asked for PyTorch (default python3; \"\": none)\n"
    "  --system DIR     read /sys, /proc and /dev below DIR: a copy of another machine's\n"
    "  --version, --help\n\n"
    "Exit status: 0: all is well; 1: warnings; 2: a problem; 3: a wrong call, or the report could not be "
    "written.\n";

static int wrong(const char *option, const char *text)
{
    fprintf(stderr, "nibble-doctor: %s cannot be \"%s\"; try --help\n", option, text);
    return EXIT_WRONG;
}

static bool whole(const char *text, int least, int most, int *out)
{
    char *end;
    const long v = strtol(text, &end, 10);

    *out = (int)v;
    return end != text && !*end && v >= least && v <= most;
}

static bool positive(const char *text, double *out)
{
    char *end;

    *out = strtod(text, &end);
    return end != text && !*end && *out > 0 && *out < 1e6;
}

/* -1: go on; else the exit status. */
static int parse(int argc, char **argv, struct doctor_options *o)
{
    static const struct option long_options[] = {
        {"json", no_argument, NULL, 'j'},
        {"nodes", required_argument, NULL, 'N'},
        {"gpus", required_argument, NULL, 'g'},
        {"gbps", required_argument, NULL, 'G'},
        {"no-speed", no_argument, NULL, 's'},
        {"nccl", required_argument, NULL, 'n'},
        {"python", required_argument, NULL, 'p'},
        {"system", required_argument, NULL, 'S'},
        {"version", no_argument, NULL, 'v'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    int c;

    while ((c = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
        switch (c) {
        case 'j': o->json = true; break;
        case 'N':
            if (!whole(optarg, 1, 4096, &o->nodes))
                return wrong("--nodes", optarg);
            break;
        case 'g':
            if (!whole(optarg, 0, 64, &o->gpus))
                return wrong("--gpus", optarg);
            break;
        case 'G':
            if (!positive(optarg, &o->gbps))
                return wrong("--gbps", optarg);
            break;
        case 's': o->speed = false; break;
        case 'n': o->nccl = optarg; break;
        case 'p': o->python = optarg; break;
        case 'S': o->system = optarg; break;
        case 'v': printf("nibble-doctor %s\n", nb_version_with_commit()); return 0;
        case 'h': fputs(help, stdout); return 0;
        default: fputs("try nibble-doctor --help\n", stderr); return EXIT_WRONG;
        }
    }
    return optind < argc ? wrong("an option", argv[optind]) : -1;
}

int main(int argc, char **argv)
{
    struct doctor d = {.options = {.speed = true, .python = "python3", .system = "", .gpus = -1}};
    int status = parse(argc, argv, &d.options);

    if (status >= 0)
        return status;
    doctor_local(&d);
    status = (int)report_status(&d.report); /* 0, 1, 2 */
    if (report_show(&d.report, stdout, d.options.json, nb_version_with_commit(), "this node"))
        status = EXIT_WRONG;
    doctor_end(&d);
    report_free(&d.report);
    return status;
}
