/* SPDX-License-Identifier: Apache-2.0 */
/* The sending side of a verbs connection. One thread at a time. */
#ifndef NIBBLE_NET_VERBS_SEND_H
#define NIBBLE_NET_VERBS_SEND_H

#include "net/verbs_comm.h"

struct nb_verbs_sreq {
    struct nb_net_req head;
    struct nb_verbs_sreq *next; /* in the queue */
    const uint8_t *data;
    size_t size;
    uint32_t lkey;
    int32_t tag;
    int left; /* pieces posted and not complete */
    bool posted;
};

/* A slot that the receiver has opened. */
struct nb_verbs_open {
    struct nb_verbs_cts cts;
    unsigned taken; /* bits of entries that have their message */
    int16_t next;   /* in the list of open slots, oldest first; -1: last */
};

struct nb_verbs_send {
    struct nb_verbs_comm c;
    struct nb_verbs_sreq *queue, **queue_end; /* without a receive so far */
    int first, last;                          /* open slots; -1: none */
    uint64_t completed;                       /* messages acknowledged */
    uint32_t cts_seq;                         /* of the next slot */
    unsigned next_qp;
    bool retry;      /* queued sends may find room or a receive now */
    uint64_t *sizes; /* lengths for the receiver's table, by request, in c.mem */
    struct nb_verbs_open open[NB_VERBS_SLOTS];
};

/* In INIT, with the socket `fd`. 0, or a negative errno after a WARN line; *out is to be closed in either
 * case, unless it is NULL. */
int nb_verbs_send_new(struct nb_verbs_dev *dev, int nqps, int fd, struct nb_verbs_send **out);
/* The peer is known and the queue pairs are ready. */
void nb_verbs_send_start(struct nb_verbs_send *s);

/* As in struct nb_net_ops. */
int nb_verbs_isend(void *send_comm, const void *data, size_t size, int tag, void *mhandle, void **request);
int nb_verbs_close_send(void *send_comm);

#endif
