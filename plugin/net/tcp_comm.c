/* SPDX-License-Identifier: Apache-2.0 */
/* What send and receive comms of the TCP transport share: names, lock, memory of requests. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "net/tcp_int.h"

int64_t nb_tcp_now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int nb_tcp_comm_init(struct nb_tcp_comm *c, struct nb_tcp_dev *dev, bool is_send, int fd0, int n,
                     const uint8_t conn_id[16])
{
    struct sockaddr_storage a;
    socklen_t len = sizeof(a);
    int rc;

    c->is_send = is_send;
    c->dev = dev;
    c->nstreams = n;
    c->key = nb_tcp_frame_key(conn_id);
    c->event_fd = -1;
    memset(&a, 0, sizeof(a));
    getpeername(fd0, (struct sockaddr *)&a, &len);
    nb_tcp_addr_name(&a, c->peer, sizeof(c->peer));
    memset(&a, 0, sizeof(a));
    len = sizeof(a);
    getsockname(fd0, (struct sockaddr *)&a, &len);
    nb_tcp_addr_name(&a, c->local, sizeof(c->local));
    rc = pthread_mutex_init(&c->lock, NULL);
    if (rc)
        return -rc;
    rc = pthread_cond_init(&c->idle, NULL);
    if (rc)
        pthread_mutex_destroy(&c->lock);
    return -rc;
}

void nb_tcp_comm_fini(struct nb_tcp_comm *c)
{
    if (c->event_fd >= 0)
        close(c->event_fd);
    pthread_cond_destroy(&c->idle);
    pthread_mutex_destroy(&c->lock);
}

void *nb_tcp_block_new(struct nb_tcp_block **chain, size_t bytes)
{
    struct nb_tcp_block *b = calloc(1, sizeof(*b) + bytes);

    if (!b)
        return NULL;
    b->next = *chain;
    *chain = b;
    return b->data;
}

void nb_tcp_blocks_free(struct nb_tcp_block *chain)
{
    while (chain) {
        struct nb_tcp_block *next = chain->next;

        free(chain);
        chain = next;
    }
}
