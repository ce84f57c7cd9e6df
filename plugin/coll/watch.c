/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which receive rings may have got something. A round of the engine that asked every connection of every peer
 * would spend a system call on each, most of them for nothing: with 64 nodes 189 of them, more than a round's
 * work takes. So one epoll set (epoll(7), edge-triggered) tells in one call which sockets have news; a ring
 * whose transport had nothing the last time is not asked again before it has, or before something is posted
 * to it.
 *
 * The engine still sleeps on what poll_fds of the transport says (progress.c). A ring whose transport has no
 * such descriptor is asked in every round.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/log.h"
#include "coll/comm.h"

void nb_watch_open(struct nb_coll_comm *comm)
{
    const struct nb_net_ops *net = comm->net;

    comm->watch.fd = net->watch_fd ? epoll_create1(EPOLL_CLOEXEC) : -1;
    for (int i = 0; i < comm->nneighbors && comm->watch.fd >= 0; i++) {
        for (int c = 0; c < NB_CLASS_COUNT; c++) {
            struct nb_rx *rx = &comm->neighbors[i]->rx[c];
            struct epoll_event ev = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.ptr = rx};
            int fd = net->watch_fd(rx->conn);
            rx->watched = fd >= 0 && epoll_ctl(comm->watch.fd, EPOLL_CTL_ADD, fd, &ev) == 0;
        }
    }
    if (net->watch_fd && comm->watch.fd < 0)
        NB_INFO(NCCL_NET, "%s: without an epoll set (%s) every connection is asked in every round",
                comm->label, strerror(errno));
}

void nb_watch_close(struct nb_coll_comm *comm)
{
    if (comm->watch.fd >= 0)
        close(comm->watch.fd);
    comm->watch.fd = -1;
}

void nb_watch_look(struct nb_coll_comm *comm)
{
    struct epoll_event ev[64];
    int n = 64;

    while (comm->watch.fd >= 0 && n == 64) {
        n = epoll_wait(comm->watch.fd, ev, 64, 0);
        for (int i = 0; i < n; i++) {
            struct nb_rx *rx = ev[i].data.ptr;
            rx->quiet = 0;
            /* The end lies behind bytes that are read first, and will not be told of once more. */
            if (ev[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
                rx->watched = 0;
        }
    }
}

void nb_watch_rescan(struct nb_coll_comm *comm)
{
    for (int i = 0; i < comm->nneighbors; i++)
        for (int c = 0; c < NB_CLASS_COUNT; c++)
            comm->neighbors[i]->rx[c].quiet = 0;
}
