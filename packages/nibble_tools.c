/* SPDX-License-Identifier: Apache-2.0 */
/* nibble-tools: all tools in one program, so that a wheel has one copy of their code. The tool is the program's name, or the
 * first argument. packages/Makefile.inc renames each tool's main. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

int nibble_doctor_main(int argc, char **argv);
int nibble_hang_main(int argc, char **argv);
int nibble_info_main(int argc, char **argv);
int nibble_model_main(int argc, char **argv);
int nibble_perf_main(int argc, char **argv);
int nibble_top_main(int argc, char **argv);

static const struct {
    const char *name;
    int (*main)(int argc, char **argv);
} tools[] = {
    {"nibble-doctor", nibble_doctor_main}, {"nibble-hang", nibble_hang_main},
    {"nibble-info", nibble_info_main},     {"nibble-model", nibble_model_main},
    {"nibble-perf", nibble_perf_main},     {"nibble-top", nibble_top_main},
};

int main(int argc, char **argv)
{
    const char *name = program_invocation_short_name;

    if (strcmp(name, "nibble-tools") == 0 && argc > 1) {
        name = program_invocation_name = program_invocation_short_name = *++argv;
        argc--;
    }
    for (size_t i = 0; i < sizeof(tools) / sizeof(tools[0]); i++)
        if (strcmp(name, tools[i].name) == 0)
            return tools[i].main(argc, argv);
    fputs("usage: nibble-tools TOOL [ARGUMENT]...\n\nTools:", stderr);
    for (size_t i = 0; i < sizeof(tools) / sizeof(tools[0]); i++)
        fprintf(stderr, " %s", tools[i].name);
    fputc('\n', stderr);
    return 2;
}
