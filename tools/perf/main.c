/* SPDX-License-Identifier: Apache-2.0 */
/* nibble-perf: measures the codecs, the collectives and the point-to-point transport on one machine. */
#include <string.h>

#include "perf.h"

static const struct {
    const char *name, *what;
    int (*run)(int argc, char **argv);
} parts[] = {
    {"codec", "the codecs and the hash, beside memcpy", perf_codec},
    {"coll", "reduce-scatter, all-gather and all-reduce between nodes (processes of this machine)",
     perf_coll},
    {"p2p", "point-to-point transfers between nodes", perf_p2p},
    {"weights", "what exact and delta4 gathers of weights cost and lose, over simulated training",
     perf_weights},
};

int main(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < sizeof(parts) / sizeof(parts[0]); i++)
        if (strcmp(argv[1], parts[i].name) == 0)
            return parts[i].run(argc - 1, argv + 1);
    fprintf(argc > 1 && strcmp(argv[1], "--help") == 0 ? stdout : stderr,
            "usage: nibble-perf PART [OPTION]...\n\n");
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        fprintf(argc > 1 && strcmp(argv[1], "--help") == 0 ? stdout : stderr, "  %-8s %s\n", parts[i].name,
                parts[i].what);
    fprintf(argc > 1 && strcmp(argv[1], "--help") == 0 ? stdout : stderr,
            "\nnibble-perf PART --help tells the options of a part.\n");
    return argc > 1 && strcmp(argv[1], "--help") == 0 ? 0 : 2;
}
