/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes in one line of the log; see name_list.h. */
#include "coll/name_list.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define RANKS 3 /* that are told behind the first */

__attribute__((format(printf, 2, 3))) static void append(struct nb_name_list *list, const char *fmt, ...)
{
    const size_t at = strlen(list->text);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(list->text + at, sizeof(list->text) - at, fmt, ap);
    va_end(ap);
}

void nb_name_list_add(struct nb_name_list *list, const struct nb_peer *peer)
{
    if (list->first < 0) {
        list->first = peer->rank;
        append(list, "%s", peer->name);
    } else if (list->more++ < RANKS) {
        append(list, "%s %d", list->more == 1 ? ", nor node" : ",", peer->rank);
    }
}

void nb_name_list_end(struct nb_name_list *list)
{
    if (list->more > RANKS)
        append(list, " and %d more", list->more - RANKS);
}
