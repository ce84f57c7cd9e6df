/* SPDX-License-Identifier: Apache-2.0 */
/* Private to this folder: adapters, connections, and their messages. */
#ifndef NIBBLE_NET_VERBS_INTERNAL_H
#define NIBBLE_NET_VERBS_INTERNAL_H

#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/params.h"
#include "net/tcp/tcp.h"
#include "net/transport.h"
#include "net/verbs/api.h"

struct nb_verbs_connecting;

/* ---- text.c: texts
 * --------------------------------------------------------------------------------------- */

const char *nb_verbs_status_name(enum ibv_wc_status status);
/* Return the usual cause of a status and where to look. */
const char *nb_verbs_status_hint(enum ibv_wc_status status);
/* Return the negative errno for a status. */
int nb_verbs_status_errno(enum ibv_wc_status status);
/* Return whether this side has caused the status. Otherwise the peer may know more. */
bool nb_verbs_status_local(enum ibv_wc_status status);
const char *nb_verbs_event_name(enum ibv_event_type type);
const char *nb_verbs_link_name(int link_layer);

/* ---- wire.c: messages
 * ------------------------------------------------------------------------------------ */

#define NB_VERBS_WIRE_VERSION 2
#define NB_VERBS_MAX_QPS 128
#define NB_VERBS_GRANTS 256 /* grants in flight on a connection, each for one receive or a group */

/*
 * META, 0 magic u32, 4 version u32, 8 error i32 (0, or an errno: no connection, for the reason at 96), 12
 * queue pairs u32, 16 link layer u8 (1 InfiniBand, 2 Ethernet), 17 path MTU u8 (IBV_MTU_*), 18 service level
 * u8, 19 traffic class u8, 20 LID u16, 22 zero u16, 24 depth u32 (receive work requests on its queue pair 0),
 * 28 rkey u32, 32 GID[16], 48 address u64 (with the rkey: sender: clear-to-send table; receiver: table of
 * lengths), 56 zero u64, 64 device char[32], 96 reason char[96], 192 queue pair numbers u32[128].
 */
#define NB_VERBS_META_BYTES 704

struct nb_verbs_meta {
    uint32_t version;
    int error;
    unsigned nqps;
    uint8_t link, mtu, sl, tc;
    uint16_t lid;
    uint32_t depth, rkey;
    uint8_t gid[16];
    uint64_t addr;
    char device[32];
    char reason[96];
    uint32_t qpn[NB_VERBS_MAX_QPS];
};

void nb_verbs_meta_put(uint8_t bytes[NB_VERBS_META_BYTES], const struct nb_verbs_meta *m);
/* Parse a META. Return 0, -EINVAL for other bytes, -EPROTO for another version (only the version is filled
 * in), or -EBADMSG for impossible fields. */
int nb_verbs_meta_get(const uint8_t bytes[NB_VERBS_META_BYTES], struct nb_verbs_meta *m);

/* CONTROL: 0 magic u32, 4 kind u16, 6 zero u16, 8 error i32 (an errno, in ERROR only), 12 zero u32, 16 count
 * u64, 24 reason char[104]. count, in FIN: number of messages that this side knows to be complete. */
#define NB_VERBS_CONTROL_BYTES 128

enum nb_verbs_control_kind { NB_VERBS_READY = 1, NB_VERBS_FIN = 2, NB_VERBS_ERROR = 3 };

struct nb_verbs_control {
    uint16_t kind;
    int error;
    uint64_t count;
    char reason[104];
};

void nb_verbs_control_put(uint8_t bytes[NB_VERBS_CONTROL_BYTES], const struct nb_verbs_control *c);
/* Parse a CONTROL message. Return 0 or -EPROTO. */
int nb_verbs_control_get(const uint8_t bytes[NB_VERBS_CONTROL_BYTES], struct nb_verbs_control *c);

/* A grant, that is an entry of the clear-to-send table: 0 seq u32, 4 n u32, 8 parts u32 (1: both entries are
 * for one message, its head and its body), 12 zero u32, then n times 0 address u64, 8 size u64, 16 rkey
 * u32, 20 tag i32. */
#define NB_VERBS_GRANT_BYTES 256
#define NB_VERBS_ENTRY_BYTES 24
#define NB_VERBS_GRANT_USED(n) (16 + (size_t)(n)*NB_VERBS_ENTRY_BYTES)
_Static_assert(NB_VERBS_GRANT_USED(NB_NET_MAX_RECVS) <= NB_VERBS_GRANT_BYTES,
               "a grant holds a full grouped receive");

struct nb_verbs_cts {
    uint32_t seq;
    int n;
    bool parts;
    struct nb_verbs_cts_entry {
        uint64_t addr, size;
        uint32_t rkey;
        int32_t tag;
    } entry[NB_NET_MAX_RECVS];
};

void nb_verbs_cts_put(uint8_t *grant, const struct nb_verbs_cts *c);
/* Parse a grant. Return 0 or -EPROTO. */
int nb_verbs_cts_get(const uint8_t *grant, struct nb_verbs_cts *c);

/* Immediates, in host order. Of a grant: bits 0..7 its place in the table, 8..31 seq. Of a piece: 0..7 place
 * of the grant, 8..10 entry, 11..17 pieces of the message less one, 18 its length is in the table, 19..31
 * seq. */
#define NB_VERBS_CTS_SEQ_MASK 0xffffffu
#define NB_VERBS_DATA_SEQ_MASK 0x1fffu

struct nb_verbs_imm {
    unsigned grant, entry, pieces;
    bool in_table;
    uint32_t seq; /* low 13 bits */
};

static inline uint32_t nb_verbs_imm_put(const struct nb_verbs_imm *i)
{
    return i->grant | i->entry << 8 | (i->pieces - 1) << 11 | (uint32_t)i->in_table << 18 |
           (i->seq & NB_VERBS_DATA_SEQ_MASK) << 19;
}

static inline struct nb_verbs_imm nb_verbs_imm_get(uint32_t v)
{
    return (struct nb_verbs_imm){.grant = v & 255,
                                 .entry = v >> 8 & 7,
                                 .pieces = (v >> 11 & 127) + 1,
                                 .in_table = v >> 18 & 1,
                                 .seq = v >> 19};
}

/* ---- conf.c: settings
 * ------------------------------------------------------------------------------------ */

/* NCCL's variables, with NCCL's defaults. */
struct nb_verbs_conf {
    int disable;              /* NCCL_IB_DISABLE */
    const char *hca;          /* NCCL_IB_HCA */
    int merge_vfs, pci_order; /* NCCL_IB_MERGE_VFS, NCCL_IB_DEVICE_PCI_ORDER */
    int relaxed_ordering;     /* NCCL_IB_PCI_RELAXED_ORDERING: 0, 1, 2 (where possible) */
    int adaptive_routing;     /* NCCL_IB_ADAPTIVE_ROUTING: -2: on for InfiniBand */
    int64_t ar_threshold;     /* NCCL_IB_AR_THRESHOLD */
    int gid_index, flid_gid_index, roce_version;
    int addr_family; /* NCCL_IB_ADDR_FAMILY */
    int range_bits;  /* NCCL_IB_ADDR_RANGE; 0: none */
    uint8_t range[16];
    int timeout, retry_cnt, pkey, use_inline, sl, tc, fifo_tc;
    int qps, split;   /* NCCL_IB_QPS_PER_CONNECTION, NCCL_IB_SPLIT_DATA_ON_QPS */
    int return_async; /* NCCL_IB_RETURN_ASYNC_EVENTS */
    int query_speed;  /* NCCL_IB_QUERY_PORT_SPEED */
    int mqp_retry_all, mqp_retry_cnt, mqp_retry_ms; /* NCCL_IB_MQP_RETRY_* */
    int flush_disable;                              /* NCCL_GDR_FLUSH_DISABLE */
    int connect_ms;                                 /* NIBBLE_CONNECT_TIMEOUT */
};

/* Fill *conf. Return 0, or -EINVAL after a WARN line that names variable and value. */
int nb_verbs_conf_read(const struct nb_params *params, struct nb_verbs_conf *conf);

/* ---- dev.c: adapters
 * ------------------------------------------------------------------------------------- */

#define NB_VERBS_MAX_WRITE (1u << 30) /* bytes of one work request; ports may allow less */
/* Pieces of a message, one for each queue pair, start at multiples of this: NCCL's LL128 protocol relies on
 * it. */
#define NB_VERBS_CHUNK_ALIGN 128

/* A registration in the adapter's cache. */
struct nb_verbs_mr {
    struct ibv_mr *mr;
    struct nb_verbs_hca *hca;
    uintptr_t addr;
    size_t bytes; /* whole pages */
    int refs;
    enum nb_mem type;
    bool dmabuf;
};

/* An opened adapter, which may have several ports. */
struct nb_verbs_hca {
    struct nb_verbs_hca *next;
    const struct nb_verbs_api *api;
    const struct nb_verbs_conf *conf;
    const struct nb_clock *clock;
    struct ibv_context *context;
    struct ibv_device_attr attr;
    char name[64];
    atomic_bool fatal;           /* the adapter is lost */
    atomic_bool leaks;           /* nb_verbs_freed has logged a line */
    pthread_mutex_t lock;        /* of the fields below */
    struct nb_verbs_comm *comms; /* all of them, for asynchronous events */
    struct ibv_pd *pd;           /* while there are comms */
    int pd_refs;
    struct nb_verbs_mr **mr; /* cached registrations, by address */
    int nmr, mr_cap;
};

/* An active port, or one that was active at init. */
struct nb_verbs_dev {
    struct nb_verbs_hca *hca;
    char name[64]; /* "mlx5_0"; "mlx5_0:2" for other ports than the first */
    int port;
    int real_port; /* number of ports of the same card before this one */
    struct ibv_port_attr attr;
    int speed_mbps;
    char pci_path[256], full_path[256];
    bool adaptive_routing;
    int mem_support;
    bool parts; /* it sends a message from two places */
    uint32_t max_write;
};

/* The transport's state in one context. */
struct nb_verbs {
    struct nb_net net; /* first */
    struct nb_verbs_conf conf;
    const struct nb_verbs_api *api;
    const struct nb_clock *clock; /* the context's */
    struct nb_net *tcp;           /* the TCP transport over which connections are made, owned by this one */
    struct nb_verbs_hca *hcas;
    int ndevs;
    struct nb_verbs_dev dev[NB_NET_MAX_DEVS];
    pthread_mutex_t lock;                   /* of the fields below */
    struct nb_verbs_connecting *connecting; /* connects in progress */
    uint64_t last_id;                       /* number of the last connect; a handle holds that of its
                                               connect */
};

/* Open the library and all adapters that pass the filters of v->conf. Return 0, or a negative errno with the
 * reason in `why` (one line, no WARN): -ENODEV when there is no usable adapter. *misfit: there are adapters,
 * but all are unusable. */
int nb_verbs_devices_open(struct nb_verbs *v, char *why, size_t cap, bool *misfit);
void nb_verbs_devices_close(struct nb_verbs *v);
/* Log that giving back `what` failed with `rc`, the result of a function of the library. The first line of an
 * adapter is a WARN, since the others usually follow from it. Return whether it was given back. */
bool nb_verbs_freed(struct nb_verbs_hca *hca, const char *what, int rc);
/* Return the device, or NULL with a WARN line when `dev` is out of range. */
struct nb_verbs_dev *nb_verbs_device(struct nb_verbs *v, int dev);

/* Return the adapter's protection domain. The first user makes it, the last one frees it. NULL: errno in
 * *err. */
struct ibv_pd *nb_verbs_pd_get(struct nb_verbs_hca *hca, int *err);
void nb_verbs_pd_put(struct nb_verbs_hca *hca);

/* ---- gid.c: addresses
 * ------------------------------------------------------------------------------------ */

/* Choose the GID of this port by NCCL's rules. Return 0, or a negative errno after a WARN line. */
int nb_verbs_gid_choose(const struct nb_verbs_dev *dev, int *index, union ibv_gid *gid);
/* Write a GID like "fe80::1" into buf of INET6_ADDRSTRLEN bytes. */
void nb_verbs_gid_name(const uint8_t raw[16], char *buf);

/* ---- comm.c: a connection
 * -------------------------------------------------------------------------------- */

#define NB_VERBS_REQ_MAX 1024 /* requests of a connection before isend and irecv answer "later" */
/* Receives in flight, each of a group counted: 32 requests of 8, NCCL's limit. */
#define NB_VERBS_RECV_DEPTH 256
#define NB_VERBS_SEND_DEPTH 512

/* Room in a queue pair's send queue. */
struct nb_verbs_qp {
    struct ibv_qp *qp;
    unsigned free;       /* free places in the send queue */
    unsigned unsignaled; /* work requests posted since the last one that reports */
    unsigned owed;       /* receive work requests that were consumed and must be posted again */
};

/* Functions by which a direction handles the findings of progress. */
struct nb_verbs_direction {
    /* Handle a work request that has succeeded. */
    void (*completion)(struct nb_verbs_comm *c, const struct ibv_wc *wc);
    /* Post all that has become possible. NULL: this direction never waits for room. */
    void (*push)(struct nb_verbs_comm *c);
    /* Return whether there are requests that only the peer can complete. */
    bool (*needs_peer)(const struct nb_verbs_comm *c);
    /* Return whether there are flushes, which need this node's adapter only. NULL: sending. */
    bool (*flushes)(const struct nb_verbs_comm *c);
    /* Complete the requests of all messages: the peer has received them although their acknowledgements are
     * missing. NULL: receiving. */
    void (*all_received)(struct nb_verbs_comm *c);
};

/* First member of sending and receiving connections. */
struct nb_verbs_comm {
    struct nb_verbs_comm *next, *prev; /* in the adapter's list */
    bool is_send;
    int err;          /* first error, negative errno; sticky */
    atomic_int async; /* an asynchronous event about this comm: its type + 1 */
    struct nb_verbs_dev *dev;
    struct nb_verbs_hca *hca;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    bool armed; /* the next completion makes the channel readable */
    bool have_pd;
    int nqps;
    unsigned send_depth, recv_depth; /* of the queue pairs that send, or receive, messages */
    struct nb_verbs_qp *qp;
    const struct ibv_qp *flush_qp; /* receiving: the queue pair of flushes; NULL: none */
    uint8_t *mem;                  /* our part of the tables, registered by mem_mr */
    size_t mem_bytes;
    struct ibv_mr *mem_mr;
    struct nb_verbs_meta meta, peer_meta;
    union ibv_gid gid;
    int gid_index;
    int fd; /* the socket to the peer; -1 when closed */
    uint8_t heard[NB_VERBS_CONTROL_BYTES];
    unsigned received_bytes;
    bool eof, fin;     /* the peer has closed; it has closed in order */
    bool flush_failed; /* after that */
    uint64_t fin_count;
    int64_t eof_ms;
    int unfinished, done_untested; /* requests in these states */
    uint64_t messages;             /* send: given to the queue pairs; receive: complete */
    uint64_t wire;
    int64_t checked_ms; /* time of the last slow checks */
    bool failing;       /* a work request has failed; the peer may still send the reason */
    int64_t failing_ms;
    struct ibv_wc failing_wc;
    char peer[64], local[64];
    struct nb_net_reqs reqs;
    const struct nb_verbs_direction *direction;
};

/* Work request ids: bits 0..19 request, 20..39 places in the send queue that its completion frees, 40..47
 * queue pair. */
#define NB_VERBS_WR_ID(req, places, qp) ((uint64_t)(req) | (uint64_t)(places) << 20 | (uint64_t)(qp) << 40)
#define NB_VERBS_WR_REQ(id) ((unsigned)((id)&0xfffff))
#define NB_VERBS_WR_PLACES(id) ((unsigned)((id) >> 20 & 0xfffff))
#define NB_VERBS_WR_QP(id) ((unsigned)((id) >> 40 & 0xff))

/* Set the fields of a new connection that has the socket `fd`: completion queue, queue pairs in INIT, memory
 * of `mem_bytes`, requests of `req_size` bytes, `meta`. Return 0, or a negative errno after a WARN line. In
 * either case nb_verbs_comm_fini undoes the work. */
int nb_verbs_comm_init(struct nb_verbs_comm *c, struct nb_verbs_dev *dev,
                       const struct nb_verbs_direction *direction, bool is_send, int nqps, int fd,
                       size_t mem_bytes, size_t req_size);
void nb_verbs_comm_fini(struct nb_verbs_comm *c);
/* Let the connection get asynchronous events from here on. */
void nb_verbs_comm_enlist(struct nb_verbs_comm *c);

/* Record the connection's first error: log it with both ends' names and send it to the peer. Drop later
 * errors. */
void nb_verbs_fail(struct nb_verbs_comm *c, int err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Post to a queue pair, and take `places` from its send queue. On an error the connection has failed. */
int nb_verbs_post(struct nb_verbs_comm *c, struct nb_verbs_qp *q, struct ibv_send_wr *wr, unsigned places);
/* Keep each queue pair's receive queue at its depth: post the owed receive work requests. */
void nb_verbs_repost(struct nb_verbs_comm *c);
/* Shut down in order: send the peer the number of messages known to be complete. */
void nb_verbs_close(struct nb_verbs_comm *c, uint64_t count);

/* Mark a request complete. */
static inline void nb_verbs_done(struct nb_verbs_comm *c, struct nb_net_req *r)
{
    r->done = true;
    c->unfinished--;
    c->done_untested++;
}

/* Free a complete request that has been tested. */
static inline void nb_verbs_tested(struct nb_verbs_comm *c, struct nb_net_req *r)
{
    c->done_untested--;
    nb_net_req_put(&c->reqs, r);
}

/* ---- qp.c: queue pairs
 * ----------------------------------------------------------------------------------- */

/* Make a queue pair in INIT. NULL: errno in *err. */
struct ibv_qp *nb_verbs_qp_new(struct nb_verbs_comm *c, unsigned send_depth, unsigned recv_depth, int access,
                               int *err);
/* Take a queue pair from INIT to ready, towards the queue pair `qpn` of `peer`. Return 0, -EAGAIN (try again:
 * the peer's hardware address is still unknown), or another negative errno. */
int nb_verbs_qp_connect(struct nb_verbs_comm *c, struct ibv_qp *qp, uint32_t qpn,
                        const struct nb_verbs_meta *peer, uint8_t traffic_class);

/* ---- mr.c: memory regions
 * -------------------------------------------------------------------------------- */

int nb_verbs_reg_mr(void *comm, void *data, size_t size, enum nb_mem type, void **mhandle);
int nb_verbs_reg_mr_dmabuf(void *comm, void *data, size_t size, enum nb_mem type, uint64_t offset, int fd,
                           void **mhandle);
int nb_verbs_dereg_mr(void *comm, void *mhandle);

/* ---- progress.c: completions
 * ----------------------------------------------------------------------------- */

/* Take completions, and read the socket and asynchronous events now and then. Return true when something
 * moved. */
bool nb_verbs_progress(struct nb_verbs_comm *c);
/* Check the connection before a request is queued. Return 0, the connection's error, or -ECONNRESET when the
 * peer has closed. */
int nb_verbs_check(struct nb_verbs_comm *c);
/* Return whether the connection's error is the end of its peer, in order or not. Flushes go on after that,
 * until one fails. */
static inline bool nb_verbs_may_flush(const struct nb_verbs_comm *c)
{
    return c->err == -ECONNRESET && !c->flush_failed;
}
/* As in struct nb_net_ops. */
int nb_verbs_poll_fds(void *comm, int is_send, struct pollfd *fds, int max);

/* ---- send.c: sending
 * ------------------------------------------------------------------------------------- */

struct nb_verbs_sreq {
    struct nb_net_req head;
    struct nb_verbs_sreq *next; /* in the queue */
    struct nb_verbs_piece {
        const uint8_t *data;
        size_t size;
        uint32_t lkey;
    } part[2];
    int32_t tag;
    int left; /* pieces posted and incomplete */
    bool posted;
};

/* A grant that the receiver has written. */
struct nb_verbs_open {
    struct nb_verbs_cts cts;
    unsigned taken; /* bits of entries that have their message */
    int16_t next;   /* in the list of open grants, oldest first; -1: last */
};

struct nb_verbs_send {
    struct nb_verbs_comm c;
    struct nb_verbs_sreq *queue, **queue_end; /* messages without a receive so far */
    int first, last;                          /* open grants; -1: the list is empty */
    uint64_t completed;                       /* messages acknowledged */
    uint32_t cts_seq;                         /* of the next grant */
    unsigned next_qp;
    bool retry;      /* queued sends may find room or a receive now */
    uint64_t *sizes; /* lengths for the receiver's table, by request, in c.mem */
    struct nb_verbs_open open[NB_VERBS_GRANTS];
};

/* Make a sending connection in INIT, with the socket `fd`. Return 0, or a negative errno after a WARN line.
 * In either case the caller closes *out unless it is NULL. */
int nb_verbs_send_new(struct nb_verbs_dev *dev, int nqps, int fd, struct nb_verbs_send **out);
/* Begin to send: the peer is known and the queue pairs are ready. */
void nb_verbs_send_start(struct nb_verbs_send *s);

/* As in struct nb_net_ops. */
int nb_verbs_isend(void *send_comm, const void *data, size_t size, int tag, void *mhandle, void **request);
int nb_verbs_isend_parts(void *send_comm, const struct nb_net_part part[2], int tag, void **request);
int nb_verbs_close_send(void *send_comm);

/* ---- recv.c: receiving
 * ----------------------------------------------------------------------------------- */

struct nb_verbs_rreq {
    struct nb_net_req head;
    int n, left; /* receives; incomplete receives. Of a flush: 0 */
    size_t size[NB_NET_MAX_RECVS];
};

struct nb_verbs_grant {
    struct nb_verbs_rreq *req; /* NULL: free */
    uint32_t seq;
    struct {
        size_t cap, got;
        unsigned pieces; /* pieces seen */
    } entry[NB_NET_MAX_RECVS];
};

struct nb_verbs_recv {
    struct nb_verbs_comm c;
    unsigned outstanding;         /* receives granted and incomplete */
    unsigned limit;               /* most outstanding receives */
    unsigned ngrants, grants_out; /* most grants; grants in use */
    unsigned nfree;
    uint8_t free_grant[NB_VERBS_GRANTS];
    uint32_t seq;
    struct nb_verbs_qp
        flush;         /* a queue pair connected to itself. qp NULL: the port reaches host memory only */
    uint8_t *grants;   /* sources of the writes into the sender's table, in c.mem */
    uint64_t *sizes;   /* the table of lengths, in c.mem */
    uint8_t *flush_to; /* destination of the byte that a flush reads, in c.mem */
    struct nb_verbs_grant grant[NB_VERBS_GRANTS];
};

/* As nb_verbs_send_new. */
int nb_verbs_recv_new(struct nb_verbs_dev *dev, int nqps, int fd, struct nb_verbs_recv **out);
/* Begin to receive: the peer is known and the queue pairs are ready. Return 0, or a negative errno after a
 * WARN line. */
int nb_verbs_recv_start(struct nb_verbs_recv *r);

/* As in struct nb_net_ops. */
int nb_verbs_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                   void **request);
int nb_verbs_irecv_parts(void *recv_comm, const struct nb_net_part part[2], int tag, void **request);
int nb_verbs_iflush(void *recv_comm, int n, void **data, const size_t *sizes, void **mhandles,
                    void **request);
int nb_verbs_icopy(void *recv_comm, void *to, void *to_mhandle, const void *from, void *from_mhandle,
                   size_t size, void **request);
void nb_verbs_leave(void *recv_comm);
int nb_verbs_close_recv(void *recv_comm);

/* ---- conn.c: how connections are made
 * -------------------------------------------------------------------- */

int nb_verbs_listen(struct nb_net *net, int dev, void *handle, void **listen_comm);
int nb_verbs_connect(struct nb_net *net, int dev, const struct nb_net_conn_cfg *cfg, void *handle,
                     void **send_comm);
int nb_verbs_accept(void *listen_comm, void **recv_comm);
int nb_verbs_close_listen(void *listen_comm);
void nb_verbs_abandon(struct nb_net *net, void *handle);
/* Free the state of abandoned connects while the transport shuts down. */
void nb_verbs_abandon_all(struct nb_verbs *v);

#endif
