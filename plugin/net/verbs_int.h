/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the verbs transport (InfiniBand and RoCE). Who does what:
 *   verbs.c       the ops table, init               verbs_comm.c  progress, errors, sleeping, closing
 *   verbs_conf.c  NCCL_IB_* variables               verbs_send.c  isend, and what matches sends with receives
 *   verbs_dev.c   devices, ports, async events      verbs_recv.c  irecv, iflush
 *   verbs_gid.c   which GID                         verbs_qp.c    queue pairs and their states
 *   verbs_mr.c    registrations                     verbs_wire.c  what two ends tell each other
 *   verbs_conn.c  listen, connect, accept           verbs_text.c  names and hints for messages
 *   verbs_lib.c   libibverbs
 *
 * A connection goes one way, and the receiver drives it. irecv writes addresses, keys and sizes of a group of
 * receives into a slot of a table in the sender's memory ("clear to send"). The sender matches its queued
 * sends with the open slots, by tag, in order, and writes each message straight to its place, on one queue
 * pair or cut over all of them; the last write of a piece carries an immediate that tells slot, entry, and
 * number of pieces. So nothing depends on an order between queue pairs.
 *
 * No queue can overflow: the receiver has a receive work request for every message that it has cleared, on
 * every queue pair, and the sender one for every slot; each post counts the send queue's free places first
 * and waits its turn.
 *
 * The TCP socket over which the two have met stays open. It tells that a peer has closed (and how many
 * messages it knows to be complete), that it has failed (and why), or that its process has died, long before
 * the network's retries end.
 *
 * Threads: a comm is used by one thread at a time; what devices share has locks. There are no threads of its
 * own: asynchronous events are read by whichever comm looks first.
 */
#ifndef NIBBLE_NET_VERBS_INT_H
#define NIBBLE_NET_VERBS_INT_H

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/transport.h"
#include "net/verbs_api.h"
#include "net/verbs_wire.h"

#define NB_VERBS_REQ_BLOCK 64
#define NB_VERBS_REQ_MAX 1024     /* requests a comm before isend and irecv say "later" */
/* Receives under way, each of a group counted: 32 requests of 8, as NCCL's limit. */
#define NB_VERBS_RECV_DEPTH 256
#define NB_VERBS_SEND_DEPTH 512
#define NB_VERBS_MAX_WRITE (1u << 30) /* bytes of one work request; ports may allow less */
/* Pieces of a message start at multiples: NCCL's LL128 protocol relies on it. */
#define NB_VERBS_CHUNK_ALIGN 128

/* ---- settings (verbs_conf.c) ---- */

/* NCCL's variables, with NCCL's defaults. */
struct nb_verbs_conf {
    int disable;              /* NCCL_IB_DISABLE */
    const char *hca;          /* NCCL_IB_HCA */
    int merge_vfs, pci_order; /* NCCL_IB_MERGE_VFS, NCCL_IB_DEVICE_PCI_ORDER */
    int relaxed_ordering;     /* NCCL_IB_PCI_RELAXED_ORDERING: 0, 1, 2 (where possible) */
    int adaptive_routing;     /* NCCL_IB_ADAPTIVE_ROUTING: -2: on for InfiniBand */
    int64_t ar_threshold;     /* NCCL_IB_AR_THRESHOLD */
    int gid_index, flid_gid_index, roce_version;
    int addr_family;          /* NCCL_IB_ADDR_FAMILY */
    int range_bits;           /* NCCL_IB_ADDR_RANGE; 0: none */
    uint8_t range[16];
    int timeout, retry_cnt, pkey, use_inline, sl, tc, fifo_tc;
    int qps, split;           /* NCCL_IB_QPS_PER_CONNECTION, NCCL_IB_SPLIT_DATA_ON_QPS */
    int return_async;         /* NCCL_IB_RETURN_ASYNC_EVENTS */
    int query_speed;          /* NCCL_IB_QUERY_PORT_SPEED */
    int mqp_retry_all, mqp_retry_cnt, mqp_retry_ms; /* NCCL_IB_MQP_RETRY_* */
    int flush_disable;        /* NCCL_GDR_FLUSH_DISABLE */
    int connect_ms;           /* NIBBLE_CONNECT_TIMEOUT */
};

extern struct nb_verbs_conf nb_verbs_conf;
extern const struct nb_verbs_api *nb_verbs_api; /* while the transport is in use */

/* Fills nb_verbs_conf; 0, or -EINVAL after a WARN that names variable and value. */
int nb_verbs_conf_read(void);

/* ---- devices (verbs_dev.c) ---- */

struct nb_verbs_comm;

/* An opened adapter, which may have several ports. */
struct nb_verbs_hca {
    struct nb_verbs_hca *next;
    struct ibv_context *context;
    struct ibv_device_attr attr;
    char name[64];
    atomic_bool fatal;           /* the adapter is lost */
    pthread_mutex_t lock;        /* of what follows */
    struct nb_verbs_comm *comms; /* all of them, for asynchronous events */
    struct ibv_pd *pd;           /* while there are comms */
    int pd_refs;
    struct nb_verbs_mr **mr; /* cached registrations, by address */
    int nmr, mr_cap;
};

/* An active port, or one that was active at init. */
struct nb_verbs_dev {
    struct nb_verbs_hca *hca;
    char name[64];  /* "mlx5_0"; "mlx5_0:2" for other ports than the first */
    int port;
    int real_port;  /* ports of the same card before this one */
    struct ibv_port_attr attr;
    int speed_mbps;
    char pci_path[256], full_path[256];
    bool adaptive_routing;
    int mem_support;
    uint32_t max_write;
};

/* Opens the library and all adapters that pass the filters. 0, or a negative errno with the reason in `why`
 * (one line, no WARN): -ENODEV when nothing usable is there, -EINVAL for bad settings (which had their WARN).
 * *misfit: there is an adapter, but none can be used. */
int nb_verbs_devices_open(char *why, size_t cap, bool *misfit);
void nb_verbs_devices_close(void);
int nb_verbs_device_count(void);
/* NULL with a WARN when `dev` is out of range. */
struct nb_verbs_dev *nb_verbs_device(int dev);

/* The adapter's protection domain, made by the first user and gone with the last. NULL: errno in *err. */
struct ibv_pd *nb_verbs_pd_get(struct nb_verbs_hca *hca, int *err);
void nb_verbs_pd_put(struct nb_verbs_hca *hca);
/* Reads asynchronous events that are there, without waiting; logs them and marks the comms they are about. */
void nb_verbs_async(struct nb_verbs_hca *hca);

/* ---- verbs_gid.c ---- */

/* Index of the GID to use on this port, by NCCL's rules. 0 or a negative errno after a WARN. */
int nb_verbs_gid_choose(const struct nb_verbs_dev *dev, int *index, union ibv_gid *gid);
/* "fe80::1" into buf of INET6_ADDRSTRLEN bytes. */
void nb_verbs_gid_name(const uint8_t raw[16], char *buf);

/* ---- registrations (verbs_mr.c) ---- */

struct nb_verbs_mr {
    struct ibv_mr *mr;
    struct nb_verbs_hca *hca;
    uintptr_t addr;
    size_t bytes; /* whole pages */
    int refs;
    enum nb_mem type;
    bool dmabuf;
};

int nb_verbs_reg_mr(void *comm, void *data, size_t size, enum nb_mem type, void **mhandle);
int nb_verbs_reg_mr_dmabuf(void *comm, void *data, size_t size, enum nb_mem type, uint64_t offset, int fd,
                           void **mhandle);
int nb_verbs_dereg_mr(void *comm, void *mhandle);

/* ---- comms ---- */

/* Room in a queue pair's send queue. */
struct nb_verbs_qp {
    struct ibv_qp *qp;
    unsigned free;       /* places in the send queue */
    unsigned unsignaled; /* work requests posted since the last that will report */
    unsigned owed;       /* receive work requests consumed and not yet posted again */
};

struct nb_verbs_comm {
    struct nb_verbs_comm *next, *prev; /* in the adapter's list */
    bool is_send;
    int err;                /* first error, negative errno; sticky */
    atomic_int async;       /* an asynchronous event about this comm: its type + 1 */
    struct nb_verbs_dev *dev;
    struct nb_verbs_hca *hca;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    bool armed;             /* the next completion makes the channel readable */
    bool have_pd;
    int nqps;
    unsigned send_depth, recv_depth; /* of the queue pairs that send, or receive, more than nothing */
    struct nb_verbs_qp *qp;
    uint8_t *mem;           /* our part of the tables, registered by mem_mr */
    size_t mem_bytes;
    struct ibv_mr *mem_mr;
    struct nb_verbs_meta meta, peer_meta;
    union ibv_gid gid;
    int gid_index;
    int fd;                 /* the socket to the peer; -1 when closed */
    uint8_t heard[NB_VERBS_CONTROL_BYTES];
    unsigned heard_bytes;
    bool eof, bye;          /* the peer has closed; in order */
    uint64_t bye_count;
    int64_t eof_ms;
    int unfinished, done_untested; /* requests in these states */
    uint64_t messages;      /* send: given to the queue pairs; receive: complete */
    uint64_t wire;
    int64_t checked_ms;     /* when the slow checks were last made */
    bool failing;           /* a work request has failed; the peer may still tell why */
    int64_t failing_ms;
    struct ibv_wc failing_wc;
    char peer[64], local[64];
    struct nb_verbs_block *blocks;
};

enum nb_verbs_req_kind { NB_VERBS_SEND_REQ, NB_VERBS_RECV_REQ, NB_VERBS_FLUSH_REQ };

struct nb_verbs_req_head {
    struct nb_verbs_comm *comm;
    enum nb_verbs_req_kind kind;
    bool done;
};

/* Work request ids: 0..19 request, 20..39 places in the send queue that its completion frees, 40..47 queue
 * pair. */
#define NB_VERBS_WR_ID(req, places, qp) ((uint64_t)(req) | (uint64_t)(places) << 20 | (uint64_t)(qp) << 40)
#define NB_VERBS_WR_REQ(id) ((unsigned)((id) & 0xfffff))
#define NB_VERBS_WR_PLACES(id) ((unsigned)((id) >> 20 & 0xfffff))
#define NB_VERBS_WR_QP(id) ((unsigned)((id) >> 40 & 0xff))

/* -- sending -- */

struct nb_verbs_sreq {
    struct nb_verbs_req_head head;
    struct nb_verbs_sreq *next; /* in the queue or the free list */
    const uint8_t *data;
    size_t size;
    uint32_t lkey;
    int32_t tag;
    unsigned index;
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
    struct nb_verbs_sreq *free;
    struct nb_verbs_sreq *block[NB_VERBS_REQ_MAX / NB_VERBS_REQ_BLOCK];
    int nreqs;
    int first, last; /* open slots; -1: none */
    uint64_t completed; /* messages acknowledged */
    uint32_t cts_seq; /* of the next slot */
    unsigned next_qp;
    bool retry;      /* queued sends may find room or a receive now */
    uint64_t *sizes; /* lengths for the receiver's table, by request, in c.mem */
    struct nb_verbs_open open[NB_VERBS_SLOTS];
};

/* -- receiving -- */

struct nb_verbs_rreq {
    struct nb_verbs_req_head head;
    struct nb_verbs_rreq *next; /* free list */
    unsigned index;
    int n, left;
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
    struct nb_verbs_rreq *free;
    struct nb_verbs_rreq *block[NB_VERBS_REQ_MAX / NB_VERBS_REQ_BLOCK];
    int nreqs;
    unsigned outstanding;      /* receives cleared and not complete */
    unsigned limit;            /* of those */
    unsigned nslots, slots_out; /* slots that may be and that are in use */
    unsigned nfree;
    uint8_t free_slot[NB_VERBS_SLOTS];
    uint32_t seq;
    struct nb_verbs_qp flush; /* a queue pair connected to itself; qp NULL: no flush needed */
    uint8_t *slots;            /* sources of the writes into the sender's table, in c.mem */
    uint64_t *sizes;           /* the table of lengths, in c.mem */
    uint8_t *flush_to;         /* where the flush reads a byte to, in c.mem */
    struct nb_verbs_slot slot[NB_VERBS_SLOTS];
};

/* ---- verbs_comm.c ---- */

/* Fields of a new comm that has the socket `fd`: completion queue, queue pairs in INIT, memory of
 * `mem_bytes`, `meta`. 0, or a negative errno after a WARN; nb_verbs_comm_fini undoes what was done in either
 * case. */
int nb_verbs_comm_init(struct nb_verbs_comm *c, struct nb_verbs_dev *dev, bool is_send, int nqps, int fd,
                       size_t mem_bytes);
void nb_verbs_comm_fini(struct nb_verbs_comm *c);
/* The comm can get asynchronous events from here on. */
void nb_verbs_comm_enlist(struct nb_verbs_comm *c);

/* Take completions, look after the socket and events now and then. True when something moved. */
bool nb_verbs_progress(struct nb_verbs_comm *c);
/* Before a request is queued: 0, or the error that the comm has, or -ECONNRESET when the peer has closed. */
int nb_verbs_check(struct nb_verbs_comm *c);
/* The comm's first error: logs it with both ends' names and tells the peer. Later ones are dropped. */
void nb_verbs_fail(struct nb_verbs_comm *c, int err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
int nb_verbs_poll_fds(void *comm, int is_send, struct pollfd *fds, int max);
/* Posts to a queue pair; on an error the comm has failed. `places` are taken from its send queue. */
int nb_verbs_post(struct nb_verbs_comm *c, struct nb_verbs_qp *q, struct ibv_send_wr *wr, unsigned places);
/* Keeps each queue pair's receive queue at `depth`: posts what is owed. */
void nb_verbs_repost(struct nb_verbs_comm *c);
/* Says goodbye to the peer, with the number of messages known to be complete. */
void nb_verbs_close(struct nb_verbs_comm *c, uint64_t count);
/* Zeroed memory of requests, freed with the comm. */
void *nb_verbs_block_new(struct nb_verbs_comm *c, size_t bytes);
int nb_verbs_test(void *request, int *done, size_t *sizes);
/* A request is complete. */
void nb_verbs_done(struct nb_verbs_req_head *h);

/* ---- verbs_qp.c ---- */

/* A queue pair in INIT. NULL: errno in *err. */
struct ibv_qp *nb_verbs_qp_new(struct nb_verbs_comm *c, unsigned send_depth, unsigned recv_depth, int access,
                               int *err);
/* From INIT to ready, towards the queue pair `qpn` of `peer`. 0, -EAGAIN (try again: the peer's hardware
 * address is not known yet), or another negative errno. */
int nb_verbs_qp_connect(struct nb_verbs_comm *c, struct ibv_qp *qp, uint32_t qpn,
                        const struct nb_verbs_meta *peer, uint8_t traffic_class);

/* ---- verbs_send.c, verbs_recv.c ---- */

int nb_verbs_send_new(struct nb_verbs_dev *dev, int nqps, int fd, struct nb_verbs_send **out);
int nb_verbs_recv_new(struct nb_verbs_dev *dev, int nqps, int fd, struct nb_verbs_recv **out);
/* The peer is known and the queue pairs are ready. */
void nb_verbs_send_start(struct nb_verbs_send *s);
int nb_verbs_recv_start(struct nb_verbs_recv *r);
void nb_verbs_send_wc(struct nb_verbs_send *s, const struct ibv_wc *wc);
void nb_verbs_recv_wc(struct nb_verbs_recv *r, const struct ibv_wc *wc);
/* Gives queued sends to the queue pairs, as far as receives and room allow. */
void nb_verbs_send_push(struct nb_verbs_send *s);
/* The peer has all messages that it was given: their requests are done although nothing acknowledged them. */
void nb_verbs_send_all_received(struct nb_verbs_send *s);
int nb_verbs_isend(void *send_comm, const void *data, size_t size, int tag, void *mhandle, void **request);
int nb_verbs_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                   void **request);
int nb_verbs_iflush(void *recv_comm, int n, void **data, const size_t *sizes, void **mhandles,
                    void **request);
int nb_verbs_close_send(void *send_comm);
int nb_verbs_close_recv(void *recv_comm);
void nb_verbs_leave(void *recv_comm);
void nb_verbs_sreq_free(struct nb_verbs_sreq *q);
void nb_verbs_rreq_free(struct nb_verbs_rreq *q);

/* ---- verbs_conn.c ---- */

int nb_verbs_listen(int dev, void *handle, void **listen_comm);
int nb_verbs_connect(int dev, const struct nb_net_conn_cfg *cfg, void *handle, void **send_comm);
int nb_verbs_accept(void *listen_comm, void **recv_comm);
int nb_verbs_close_listen(void *listen_comm);
void nb_verbs_abandon(void *handle);
void nb_verbs_abandon_all(void);

/* ---- verbs_text.c ---- */

const char *nb_verbs_status_name(enum ibv_wc_status status);
/* What usually causes it and what to look at. */
const char *nb_verbs_status_hint(enum ibv_wc_status status);
/* The negative errno that stands for it. */
int nb_verbs_status_errno(enum ibv_wc_status status);
/* Is it this side's own doing? Else the peer may know more. */
bool nb_verbs_status_local(enum ibv_wc_status status);
const char *nb_verbs_event_name(enum ibv_event_type type);
const char *nb_verbs_link_name(int link_layer);

#endif
