/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NIBBLE_TOOLS_AUTO_H
#define NIBBLE_TOOLS_AUTO_H

#include <stdbool.h>

/* Print the effect of the plugin's settings `auto` on links of these rates, for each codec variant and some
 * numbers of codec threads. `columns` is the nodes' grid (0: none), `unit` the bytes of a wire unit. Values
 * have 32 bits (wide) or 16. */
void auto_print(int nodes, int columns, double unit, const double *gbps, int links, bool wide);

#endif
