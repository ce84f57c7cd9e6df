/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NIBBLE_TOOLS_AUTO_H
#define NIBBLE_TOOLS_AUTO_H

#include <stdbool.h>

/* Print what the plugin's settings `auto` come to on links of these rates, for each codec variant and some
 * numbers of codec threads: `columns` of the nodes' grid (0: none), wire units of `unit` bytes, FP32 (wide)
 * or 16 bits a value. */
void auto_print(int nodes, int columns, double unit, const double *gbps, int links, bool wide);

#endif
