/* SPDX-License-Identifier: Apache-2.0 */
/* The collective functions that the plugin serves. The numbers travel in messages (docs/messages.md): never
 * change them. */
#ifndef NIBBLE_BASE_FUNC_H
#define NIBBLE_BASE_FUNC_H

enum nb_func { NB_FUNC_REDUCE_SCATTER = 0, NB_FUNC_ALL_GATHER = 1, NB_FUNC_ALL_REDUCE = 2, NB_FUNC_COUNT };

/* Name for log lines and settings; "unknown" for any other value. Static storage; any thread. */
const char *nb_func_name(enum nb_func func);

#endif
