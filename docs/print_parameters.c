/* SPDX-License-Identifier: Apache-2.0 */
/* Writes docs/parameters.md from the table of settings; "make update-docs" runs it. */
#include <stdio.h>
#include <stdlib.h>

#include "base/params.h"

int main(void)
{
    fputs("# Settings\n"
          "\n"
          "<!-- Made from plugin/base/params.def by \"make update-docs\"; do not edit. -->\n"
          "\n"
          "Settings are environment variables, read when NCCL first initialises the plugin and constant "
          "until it is\n"
          "unloaded. An empty value counts as unset. A value that is not allowed, or a `NIBBLE_` name that "
          "is not in\n"
          "this table, is named in a warning and has no effect: the node takes part in all point-to-point "
          "traffic, and\n"
          "declines every CollNet communicator, on all nodes, with a line that names node and setting.\n"
          "\n"
          "A setting marked \\* must be the same on all nodes: the nodes of a communicator compare them when "
          "they\n"
          "connect, and where they differ, NCCL's own algorithms are used.\n"
          "\n",
          stdout);
    nb_params_print_table(stdout);
    return fflush(stdout) == 0 && !ferror(stdout) ? EXIT_SUCCESS : EXIT_FAILURE;
}
