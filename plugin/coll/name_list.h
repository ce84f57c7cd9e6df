/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes in one line of the log: "node 3 (host, address), nor node 4, 7, 8 and 2 more". */
#ifndef NIBBLE_COLL_NAME_LIST_H
#define NIBBLE_COLL_NAME_LIST_H

#include "coll/peer.h"

/* Begin with {.first = -1}. */
struct nb_name_list {
    int first; /* rank of the first; -1: there is none */
    int more;  /* behind it */
    char text[160];
};

/* Another node: the first by its name, a few by their ranks. */
void nb_name_list_add(struct nb_name_list *list, const struct nb_peer *peer);
/* No more: the text is complete. */
void nb_name_list_end(struct nb_name_list *list);

#endif
