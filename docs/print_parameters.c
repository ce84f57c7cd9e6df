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
          "Settings are environment variables. nibble reads them when NCCL first initialises the plugin and "
          "keeps them\n"
          "until NCCL unloads it. An empty value counts as unset. A warning names each value that is not "
          "allowed and\n"
          "each name that is nearly a setting's. All nodes then decline CollNet, and the job stops with a "
          "line that\n"
          "names node and setting. With `NIBBLE_REQUIRE=none` it goes on uncompressed. A warning also names "
          "each\n"
          "setting of earlier releases, with its replacement, and the job runs.\n"
          "\n"
          "A setting marked \\* must be the same on all nodes. The nodes of a communicator compare these "
          "settings when\n"
          "they connect. Where they differ, NCCL's own algorithms run.\n"
          "\n",
          stdout);
    nb_params_print_table(stdout);
    return fflush(stdout) == 0 && !ferror(stdout) ? EXIT_SUCCESS : EXIT_FAILURE;
}
