/* SPDX-License-Identifier: Apache-2.0 */
/* The receiving side of a verbs connection. One thread at a time. */
#ifndef NIBBLE_NET_VERBS_RECV_H
#define NIBBLE_NET_VERBS_RECV_H

#include "net/verbs_comm.h"

struct nb_verbs_rreq {
    struct nb_net_req head;
    int n, left; /* receives; receives not complete. Of a flush: 0 */
    size_t size[NB_NET_MAX_RECVS];
};

struct nb_verbs_slot {
    struct nb_verbs_rreq *req; /* NULL: free */
    uint32_t seq;
    struct {
        size_t cap, got;
        unsigned pieces; /* seen */
    } entry[NB_NET_MAX_RECVS];
};

struct nb_verbs_recv {
    struct nb_verbs_comm c;
    unsigned outstanding;       /* receives cleared and not complete */
    unsigned limit;             /* of those */
    unsigned nslots, slots_out; /* slots that may be and that are in use */
    unsigned nfree;
    uint8_t free_slot[NB_VERBS_SLOTS];
    uint32_t seq;
    struct nb_verbs_qp flush; /* a queue pair connected to itself; qp NULL: no flush needed */
    uint8_t *slots;           /* sources of the writes into the sender's table, in c.mem */
    uint64_t *sizes;          /* the table of lengths, in c.mem */
    uint8_t *flush_to;        /* where the flush reads a byte to, in c.mem */
    struct nb_verbs_slot slot[NB_VERBS_SLOTS];
};

/* As nb_verbs_send_new. */
int nb_verbs_recv_new(struct nb_verbs_dev *dev, int nqps, int fd, struct nb_verbs_recv **out);
/* The peer is known and the queue pairs are ready. 0 or a negative errno after a WARN line. */
int nb_verbs_recv_start(struct nb_verbs_recv *r);

/* As in struct nb_net_ops. */
int nb_verbs_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                   void **request);
int nb_verbs_iflush(void *recv_comm, int n, void **data, const size_t *sizes, void **mhandles,
                    void **request);
void nb_verbs_leave(void *recv_comm);
int nb_verbs_close_recv(void *recv_comm);

#endif
