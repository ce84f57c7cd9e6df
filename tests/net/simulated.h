/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Common parts of the simulated networks of nibble-sim and nibble-scale: lines of messages, lists of objects,
 * handles and names of nodes, and the functions of a transport's table that do not depend on how a network is
 * simulated. Each network passes messages in its own way: nibble-sim's has payload, faults and random draws,
 * nibble-scale's has only lengths, and turns at the links.
 *
 * Both are for one thread, and end the process when out of memory.
 */
#ifndef NIBBLE_TESTS_NET_SIMULATED_H
#define NIBBLE_TESTS_NET_SIMULATED_H

#include <stddef.h>
#include <stdint.h>

#include "net/transport.h"

/* Messages, or other objects whose first member is a link, first in, first out. Zeroes are an empty line. */
struct simulated_link {
    struct simulated_link *next;
};
struct simulated_line {
    struct simulated_link *head, *tail;
    unsigned n;
};

static inline void simulated_append(struct simulated_line *l, struct simulated_link *m)
{
    m->next = NULL;
    if (l->tail)
        l->tail->next = m;
    else
        l->head = m;
    l->tail = m;
    l->n++;
}

/* Take the oldest. Return NULL from an empty line. */
static inline void *simulated_take(struct simulated_line *l)
{
    struct simulated_link *m = l->head;

    if (m) {
        l->head = m->next;
        if (!l->head)
            l->tail = NULL;
        l->n--;
    }
    return m;
}

/* Connections, or listeners, by number. Zeroes are an empty list. `at` is for free(). */
struct simulated_list {
    void **at;
    int n, cap;
};
/* Append an object and return its number. */
int simulated_list_add(struct simulated_list *list, void *thing);

/* Contents of a transport's handle: a listener, and, from the first call of connect with it on, the
 * connection. */
struct simulated_handle {
    uint32_t magic; /* SIMULATED_HANDLE */
    int32_t listener;
    int32_t conn; /* its number + 1. 0: none yet */
};
#define SIMULATED_HANDLE 0x73696d6eu
void simulated_handle_write(void *handle, const struct simulated_handle *h);
/* Read a handle. Return 0, or -EINVAL for a foreign handle. */
int simulated_handle_read(const void *handle, struct simulated_handle *h);

/* A node's name for its peers: its address. */
#define SIMULATED_NAME 24
void simulated_name(char name[SIMULATED_NAME], int node);

/* Make the engine's object, with the table `ops`. Return 0, or -ENOMEM. */
int simulated_init(struct nb_context *ctx, const struct nb_net_ops *ops, struct nb_net **net);
/* For the table: fini frees that object, there is one device, and flush has no work. */
void simulated_fini(struct nb_net *net);
int simulated_devices(struct nb_net *net, int *ndev);
int simulated_iflush(void *recv_comm, int n, void **data, const size_t *sizes, void **mhandles,
                     void **request);
/* Fill in the properties of that device, whose link sends `bytes_per_s`. */
void simulated_properties(struct nb_net_props *props, const char *name, double bytes_per_s);

/* The other functions of the table are the including file's, with names that begin with net_, and
 * further members. */
#define SIMULATED_TABLE(name_, early_, ...) \
    { \
        .name = name_, .early = early_, .init = net_init, .fini = simulated_fini, \
        .devices = simulated_devices, .properties = net_properties, .listen = net_listen, \
        .connect = net_connect, .abandon = net_abandon, .accept = net_accept, .reg_mr = net_reg_mr, \
        .dereg_mr = net_dereg_mr, .isend = net_isend, .irecv = net_irecv, .iflush = simulated_iflush, \
        .test = net_test, .close_send = net_close_send, .close_recv = net_close_recv, \
        .close_listen = net_close_listen, .poll_fds = net_poll_fds, .peer_name = net_peer_name, \
        .wire_bytes = net_wire_bytes, __VA_ARGS__ \
    }

#endif
