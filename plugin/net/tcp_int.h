/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the TCP transport. Who does what:
 *   tcp.c         devices, parameters, the ops table      tcp_wire.c    bytes on the wire
 *   tcp_listen.c  listen, accept                          tcp_if.c      interfaces
 *   tcp_connect.c connect                                 tcp_comm.c    what comms share
 *   tcp_send.c    isend and what moves sends forward      tcp_pace.c    sending rate of a device
 *   tcp_recv.c    irecv and what moves receives forward   tcp_thread.c  optional helper threads
 *                                                         tcp_unsent.c  what the kernel may hold unsent
 *
 * A connection goes one way. Payload flows over all its sockets ("streams"); against it flows at most one
 * ERROR frame, on stream 0. Every message has a number (seq) and travels as one or more DATA frames, each on
 * whichever stream had room, in order of seq on each stream. The receiver gives a message to a receive when
 * the first of its frames is read *and* all messages before it have been given; a stream whose next frame is
 * too new waits ("parked"). The oldest message is never behind a newer one on its stream, so this cannot
 * lock.
 *
 * Threads: without helper threads (the default) the caller of isend, irecv and test does all I/O and nothing
 * locks. With them the lock of a comm guards all its fields, except that a stream marked busy is being read
 * or written without the lock by the thread that marked it.
 */
#ifndef NIBBLE_NET_TCP_INT_H
#define NIBBLE_NET_TCP_INT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/tcp_if.h"
#include "net/tcp_wire.h"
#include "net/transport.h"

#define NB_TCP_REQ_BLOCK 64    /* requests allocated at a time */
#define NB_TCP_REQ_MAX 1024    /* requests a comm before isend and irecv say "later" */
#define NB_TCP_BATCH 32        /* frames in one gather write */
#define NB_TCP_QUANTUM 262144  /* bytes put on one stream before the next gets its turn */
#define NB_TCP_READ_AHEAD 8192 /* bytes read beyond known payload; copied once more */

/* ---- devices ---- */

struct nb_tcp_dev {
    struct nb_tcp_if nif;
    struct nb_tcp_pace *pace; /* NULL: no limit */
    struct nb_tcp_pool *pool; /* helper threads; NULL until a comm needs them */
};

/* Settings of the transport, read by init. */
struct nb_tcp_conf {
    int streams;        /* a connection; 0: by the link's speed */
    int threads;        /* helper threads a device; 0: none */
    int rcvbuf, sndbuf; /* socket buffers in bytes; 0: the kernel's autotuning */
    int connect_ms;     /* limit for connect, and for a half-made connection in accept */
    int dead_ms;        /* unacknowledged data for this long, with retransmissions: the peer is gone */
    uint64_t pace;      /* bytes/s of each device; 0: no limit */
};

extern struct nb_tcp_conf nb_tcp_conf;

/* The device, or NULL with a WARN when `dev` is out of range. */
struct nb_tcp_dev *nb_tcp_device(int dev);

/* ---- comms ---- */

/* A stream as the helper threads see it. */
struct nb_tcp_work {
    struct nb_tcp_comm *comm;
    int stream;
    struct nb_tcp_thread *thread;
    struct nb_tcp_work *next; /* in one of the thread's lists, while queued */
    bool queued;              /* under the thread's lock */
};

/* What send and receive comms share; first member of both. */
struct nb_tcp_comm {
    bool is_send;
    bool threaded;       /* helper threads do the I/O */
    bool armed;          /* threaded: the owner may be asleep on event_fd */
    atomic_bool closing; /* threaded: threads let go of the comm */
    int err;             /* first error, negative errno; sticky */
    int nstreams;
    int busy;      /* streams in I/O without the lock */
    int unfinished, done_untested; /* requests in these states */
    uint32_t key;  /* of the frame check */
    uint32_t next_seq; /* send: of the next message queued; receive: of the oldest message not yet seen */
    uint64_t wire;     /* bytes moved */
    struct nb_tcp_dev *dev;
    pthread_mutex_t lock;
    pthread_cond_t idle; /* busy fell to 0 */
    int event_fd;        /* threaded: wakes an owner that sleeps in poll; else -1 */
    struct nb_tcp_pool *pool;
    struct nb_tcp_work work[NB_TCP_MAX_STREAMS];
    char peer[64], local[64];
};

struct nb_tcp_req_head {
    struct nb_tcp_comm *comm;
    bool done;
};

/* -- sending -- */

struct nb_tcp_sreq {
    struct nb_tcp_req_head head;
    struct nb_tcp_sreq *next; /* in the queue or the free list */
    const uint8_t *data;
    size_t size, assigned; /* bytes of the message; bytes already bound to a stream */
    uint32_t chunk;        /* most bytes in one frame */
    uint32_t seq;
    int32_t tag;
    int frames;            /* bound to streams and not yet written */
};

/* A frame bound to a stream. */
struct nb_tcp_out {
    uint8_t hdr[NB_TCP_FRAME_BYTES];
    uint32_t len;
    const uint8_t *data;
    struct nb_tcp_sreq *req;
};

struct nb_tcp_unsent {
    int limit;        /* TCP_NOTSENT_LOWAT as it is set; 0: not limited */
    int64_t since_ns; /* the stream has been full since then; 0: it is not */
    uint64_t bytes;   /* written since */
    int ran_dry;      /* by then, the kernel had sent all that it had */
};

struct nb_tcp_sstream {
    int fd;
    struct nb_tcp_unsent unsent;
    bool busy, blocked; /* blocked: the kernel or the pace took no more in this round */
    bool paced;         /* it was the pace */
    int first, count;   /* out[first .. first + count) is not yet written */
    size_t written;     /* bytes of out[first] already written, header included */
    size_t turn;        /* bytes since this stream became the current one */
    struct nb_tcp_out out[NB_TCP_BATCH];
};

struct nb_tcp_send {
    struct nb_tcp_comm c;
    struct nb_tcp_sreq *queue, **queue_end; /* messages with bytes not yet bound to a stream */
    struct nb_tcp_sreq *free;
    int nreqs;
    struct nb_tcp_block *blocks;
    int cur;         /* stream whose turn it is */
    bool lazy;       /* isend leaves it to test to write */
    int wait_fd;     /* timer for an owner that sleeps while the pace forbids writing; -1 until needed */
    unsigned peeked; /* isends since the way back was looked at */
    int64_t moved_ms, checked_ms; /* when bytes last moved; when the kernel was last asked about a stall */
    uint8_t back[NB_TCP_FRAME_BYTES]; /* a frame from the receiver, `back_have` bytes of it */
    unsigned back_have;
    struct nb_tcp_sstream stream[];
};

/* -- receiving -- */

struct nb_tcp_slot {
    struct nb_tcp_slot *next; /* in the list of receives without a message, or of messages in parts */
    struct nb_tcp_rreq *req;
    uint8_t *data;
    size_t cap, size; /* of the receive; of its message, once matched */
    size_t claimed;   /* bytes in frames seen */
    size_t got;       /* bytes in place */
    uint32_t seq;     /* of the message */
    int32_t tag;
};

struct nb_tcp_rreq {
    struct nb_tcp_req_head head;
    struct nb_tcp_rreq *next; /* free list */
    int n, left;              /* slots; slots not complete */
    struct nb_tcp_slot slot[NB_NET_MAX_RECVS];
};

struct nb_tcp_rstream {
    int fd;
    bool busy, eof, bye;
    bool drained;     /* the kernel had no more in this round */
    bool yield;       /* stopped only to let others have a turn (threaded) */
    int budget;       /* reads left in this turn (threaded) */
    bool have;        /* `frame` is the header of what comes next */
    unsigned pos, end; /* unread bytes of buf */
    size_t off, rest; /* payload of `frame`: where the next byte goes in slot, how many are missing */
    struct nb_tcp_frame frame;
    struct nb_tcp_slot *slot; /* NULL until frame is matched */
    uint8_t buf[NB_TCP_READ_AHEAD];
};

struct nb_tcp_recv {
    struct nb_tcp_comm c;
    struct nb_tcp_slot *posted, **posted_end; /* receives without a message, oldest first */
    struct nb_tcp_slot *active; /* messages of which some parts are still to be seen or read */
    struct nb_tcp_rreq *free;
    int nreqs;
    struct nb_tcp_block *blocks;
    struct nb_tcp_rstream stream[];
};

/* ---- tcp_listen.c, tcp_connect.c ---- */

/* The sockets of a connection that has been made, in stream order. */
struct nb_tcp_sockets {
    int n;
    int fd[NB_TCP_MAX_STREAMS];
    uint8_t conn_id[16];
};

/* Connections without the message protocol on top, for transports that only want sockets to a peer which has
 * shown the token: as listen, connect and accept of the ops table, but they hand over the sockets. 1 when
 * *out is filled, 0: call again, or a negative errno after a WARN. A peer of another `use` is an error on
 * both sides. */
int nb_tcp_listen_for(int dev, enum nb_tcp_use use, void *handle, void **listen_comm);
int nb_tcp_dial(int dev, enum nb_tcp_use use, const struct nb_net_conn_cfg *cfg, void *handle,
                struct nb_tcp_sockets *out);
int nb_tcp_take(void *listen_comm, struct nb_tcp_sockets *out);

int nb_tcp_listen(int dev, void *handle, void **listen_comm);
int nb_tcp_connect(int dev, const struct nb_net_conn_cfg *cfg, void *handle, void **send_comm);
int nb_tcp_accept(void *listen_comm, void **recv_comm);
int nb_tcp_close_listen(void *listen_comm);
/* Give up the connect that `handle` stands for, if one is under way. */
void nb_tcp_abandon(void *handle);
/* Drop the state of connects that nobody called again (transport is shutting down). */
void nb_tcp_connect_abandon_all(void);

/* ---- tcp_send.c, tcp_recv.c ---- */

/* Take over `n` connected sockets, in stream order; -ENOMEM leaves them to the caller. */
int nb_tcp_send_new(struct nb_tcp_dev *dev, const int *fds, int n, const uint8_t conn_id[16],
                    struct nb_tcp_send **comm);
int nb_tcp_recv_new(struct nb_tcp_dev *dev, const int *fds, int n, const uint8_t conn_id[16],
                    struct nb_tcp_recv **comm);
int nb_tcp_isend(void *send_comm, const void *data, size_t size, int tag, void *mhandle, void **request);
int nb_tcp_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                 void **request);
int nb_tcp_send_test(struct nb_tcp_sreq *req, int *done, size_t *sizes);
int nb_tcp_recv_test(struct nb_tcp_rreq *req, int *done, size_t *sizes);
int nb_tcp_close_send(void *send_comm);
int nb_tcp_close_recv(void *recv_comm);
int nb_tcp_send_poll(struct nb_tcp_send *c, struct pollfd *fds, int max);
int nb_tcp_recv_poll(struct nb_tcp_recv *c, struct pollfd *fds, int max);
int nb_tcp_watch_fd(void *recv_comm);

/* One turn of a helper thread on a stream, called with the comm's lock (which it gives up during I/O). True
 * when there is more to do now; *paced when the pace is what it waits for. */
bool nb_tcp_send_turn(struct nb_tcp_send *s, int stream, bool *paced);
bool nb_tcp_recv_turn(struct nb_tcp_recv *s, int stream);

/* ---- shared by both directions (tcp_comm.c) ---- */

int nb_tcp_comm_init(struct nb_tcp_comm *c, struct nb_tcp_dev *dev, bool is_send, int fd0, int n,
                     const uint8_t conn_id[16]);
void nb_tcp_comm_fini(struct nb_tcp_comm *c);
int64_t nb_tcp_now_ms(void);
/* n random bytes; 0 or a negative errno. */
int nb_tcp_random(void *p, size_t n);
/* A non-blocking socket, or a negative errno after a WARN. */
int nb_tcp_socket(int family);
/* Options of data sockets; those of buffers only before the connection is made. */
void nb_tcp_tune(int fd, bool before_connect);

static inline void nb_tcp_lock(struct nb_tcp_comm *c)
{
    if (c->threaded)
        pthread_mutex_lock(&c->lock);
}

static inline void nb_tcp_unlock(struct nb_tcp_comm *c)
{
    if (c->threaded)
        pthread_mutex_unlock(&c->lock);
}

/* Memory of requests, in blocks chained for the comm's close. */
struct nb_tcp_block {
    struct nb_tcp_block *next;
    max_align_t data[];
};

void *nb_tcp_block_new(struct nb_tcp_block **chain, size_t bytes);
void nb_tcp_blocks_free(struct nb_tcp_block *chain);

/* Around I/O on a stream that is marked busy: give up the lock, take it back. */
static inline void nb_tcp_io_begin(struct nb_tcp_comm *c, bool *busy)
{
    if (!c->threaded)
        return;
    *busy = true;
    c->busy++;
    pthread_mutex_unlock(&c->lock);
}

static inline void nb_tcp_io_end(struct nb_tcp_comm *c, bool *busy)
{
    if (!c->threaded)
        return;
    pthread_mutex_lock(&c->lock);
    *busy = false;
    if (--c->busy == 0)
        pthread_cond_broadcast(&c->idle);
}

/* ---- tcp_thread.c ---- */

/* Let helper threads drive the comm, whose sockets are fds[0 .. nstreams). Nothing to do without them. 0 or a
 * negative errno after a WARN. */
int nb_tcp_threads_attach(struct nb_tcp_comm *c, const int *fds);
/* When it returns no thread knows the comm any more. Lasts at most a turn of each thread. */
void nb_tcp_threads_detach(struct nb_tcp_comm *c, const int *fds);
/* Something to do for a stream. With the comm's lock. */
void nb_tcp_threads_kick(struct nb_tcp_comm *c, int stream);
/* Wake the owner if it sleeps and should not. With the comm's lock. */
void nb_tcp_threads_notify(struct nb_tcp_comm *c);
/* Before a call returns the comm's error: no thread is inside the caller's memory any more. With the lock. */
void nb_tcp_threads_settle(struct nb_tcp_comm *c);
/* poll_fds of a threaded comm. With the lock. */
int nb_tcp_threads_poll(struct nb_tcp_comm *c, struct pollfd *fds, int max);
/* Join a device's threads (transport is shutting down). */
void nb_tcp_threads_stop(struct nb_tcp_dev *dev);

/* ---- tcp_pace.c ---- */

/* A bucket that fills with `rate` bytes a second. */
struct nb_tcp_pace *nb_tcp_pace_new(uint64_t rate);
void nb_tcp_pace_free(struct nb_tcp_pace *p);
/* Take up to `want` bytes; 0: nothing now. Any thread. */
size_t nb_tcp_pace_take(struct nb_tcp_pace *p, size_t want);
void nb_tcp_pace_give_back(struct nb_tcp_pace *p, size_t bytes);
/* Nanoseconds until take can succeed. */
int64_t nb_tcp_pace_wait_ns(struct nb_tcp_pace *p);

/* ---- tcp_unsent.c; with the comm's lock ---- */

/* Limit what the kernel holds unsent of a stream from now on. */
void nb_tcp_unsent_start(struct nb_tcp_unsent *u, int fd);
/* Of a limited one `bytes` were written; full: the kernel took no more. Adapts the limit. */
void nb_tcp_unsent_wrote(struct nb_tcp_unsent *u, int fd, size_t bytes, int full);
/* It has nothing more to write. */
void nb_tcp_unsent_idle(struct nb_tcp_unsent *u);

#endif
