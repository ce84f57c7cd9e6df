/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NIBBLE_TOOLS_AUTO_H
#define NIBBLE_TOOLS_AUTO_H

#include <stdbool.h>

#include "policy/reckon/reckon.h"

/* Print the effect of the plugin's settings `auto` on links of these rates, for each codec variant and some
 * numbers of codec threads, for nodes and settings of `group`. Values have 32 bits (wide) or 16. */
void auto_print(const struct nb_reckon_nodes *group, const double *gbps, int links, bool wide);

#endif
