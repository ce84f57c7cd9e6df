/* SPDX-License-Identifier: Apache-2.0 */
/* State shared by the communicators of one node. */
#include "coll/node.h"

#include <string.h>

void nb_node_init(struct nb_coll_node *node)
{
    memset(node, 0, sizeof(*node));
    pthread_mutex_init(&node->lock, NULL);
}

void nb_node_destroy(struct nb_coll_node *node)
{
    pthread_mutex_destroy(&node->lock);
}

uint32_t nb_node_count_comm(struct nb_coll_node *node, int gpu, uint64_t comm_id)
{
    struct nb_comm_count *count = &node->count[(gpu + 1) % NB_NET_MAX_DEVS];
    uint32_t n;

    pthread_mutex_lock(&node->lock);
    if (comm_id == 0 || comm_id != count->last_id)
        count->n++;
    count->last_id = comm_id;
    n = count->n;
    pthread_mutex_unlock(&node->lock);
    return n;
}
