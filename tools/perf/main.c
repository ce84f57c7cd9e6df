/* SPDX-License-Identifier: Apache-2.0 */
/* nibble-perf: measure the codecs, the collectives and the point-to-point transport on one machine. */
#include <string.h>

#include "base/version.h"
#include "perf.h"
#include "tools/output.h"

static const struct {
    const char *name, *what;
    int (*run)(int argc, char **argv);
} parts[] = {
    {"codec", "the codecs and the hash, beside memcpy", perf_codec},
    {"coll", "reduce-scatter, all-gather and all-reduce between nodes (processes of this machine)",
     perf_coll},
    {"p2p", "point-to-point transfers between nodes", perf_p2p},
    {"weights", "size and error of exact and delta4 gathers of weights, over simulated training",
     perf_weights},
};

static void usage(FILE *to)
{
    fputs("usage: nibble-perf PART [OPTION]...\n\nParts:\n", to);
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        fprintf(to, "  %-8s  %s\n", parts[i].name, parts[i].what);
    fputs("\n  --version, -h, --help\n\nnibble-perf PART --help lists the options of a part.\n", to);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";

    output_check(1);
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (strcmp(what, parts[i].name) == 0) {
            char name[32];

            snprintf(name, sizeof(name), "nibble-perf %s", what);
            argv[1] = name; /* getopt begins its messages with it */
            return parts[i].run(argc - 1, argv + 1);
        }
    if (strcmp(what, "--version") == 0) {
        printf("nibble-perf %s\n", nb_version_with_commit());
        return 0;
    }
    if (strcmp(what, "--help") == 0 || strcmp(what, "-h") == 0) {
        usage(stdout);
        return 0;
    }
    if (*what)
        option_wrong("the part", what, "codec, coll, p2p or weights");
    usage(stderr);
    return 2;
}
