/* SPDX-License-Identifier: Apache-2.0 */
/* The TCP transport, and its parts that other transports use: requests, interfaces, sockets, connections. */
#ifndef NIBBLE_NET_TCP_H
#define NIBBLE_NET_TCP_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/params.h"
#include "net/transport.h"

struct nb_tcp_pace;
struct nb_tcp_connecting;

/* ---- requests.c: requests of a connection
 * ---------------------------------------------------------------- */

/* First member of a transport's request. */
struct nb_net_req {
    struct nb_net_req *next; /* in the free list */
    void *comm;              /* the connection */
    unsigned index;          /* number of this request among all of the connection, from 0 */
    bool done;
};

struct nb_net_reqs {
    struct nb_net_req *free;
    void *comm;
    size_t size; /* bytes of a request */
    unsigned n, max;
    char **block;
};

/* Set up requests of `size` bytes, a multiple of their alignment, for `comm`. Allow at most `max` at a time,
 * a multiple of NB_NET_REQ_BLOCK. 0 means as many as fit into memory. Allocates no memory. */
void nb_net_reqs_init(struct nb_net_reqs *reqs, void *comm, size_t size, unsigned max);
/* Free all requests, also those in use. */
void nb_net_reqs_free(struct nb_net_reqs *reqs);

#define NB_NET_REQ_BLOCK 64 /* requests allocated at a time */

/* For nb_net_req_get: put a block of zeroed requests into the free list. Return the first of them, or
 * NULL. */
struct nb_net_req *nb_net_reqs_grow(struct nb_net_reqs *reqs);

/* Return a request that is not done. The transport's own fields are as the last user left them. Return NULL
 * when all requests are in use or memory is short. */
static inline void *nb_net_req_get(struct nb_net_reqs *reqs)
{
    struct nb_net_req *r = reqs->free ? reqs->free : nb_net_reqs_grow(reqs);

    if (!r)
        return NULL;
    reqs->free = r->next;
    r->done = false;
    return r;
}

static inline void nb_net_req_put(struct nb_net_reqs *reqs, struct nb_net_req *r)
{
    r->next = reqs->free;
    reqs->free = r;
}

/* Return the request of this index, in use or not. Return NULL for an index that was never handed out. */
static inline void *nb_net_req_at(const struct nb_net_reqs *reqs, unsigned index)
{
    return index < reqs->n ? reqs->block[index / NB_NET_REQ_BLOCK] + index % NB_NET_REQ_BLOCK * reqs->size
                           : NULL;
}

/* ---- sockets.c: network interfaces
 * ----------------------------------------------------------------------- */

struct nb_tcp_if {
    char name[64];
    char pci_path[256];           /* "" for virtual interfaces */
    struct sockaddr_storage addr; /* port 0 */
    unsigned index;               /* kernel's interface index */
    int speed_mbps;               /* 10000 when the kernel does not know */
    int known_mbps;               /* 0 when the kernel does not know */
};

/* Fill up to `max` interfaces, each once, in the kernel's order. NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY
 * (AF_INET, AF_INET6) choose them. The former is a comma list of prefixes. A leading ^ excludes, = asks for
 * exact names, ^= does both. Without it take the first of these sets that has an interface that is up: names
 * that begin with "ib", all but loopback, docker and virbr, docker, loopback, virbr. Return the count, which
 * may be 0, or a negative errno after a WARN line: -EINVAL for a bad family, -ENODEV when NCCL_SOCKET_IFNAME
 * matches no interface. */
int nb_tcp_if_find(struct nb_tcp_if *ifs, int max);

/* Write "address<port>" into buf (at least 64 bytes). */
void nb_tcp_addr_name(const struct sockaddr_storage *addr, char *buf, size_t cap);

/* Return the length of the socket address for its family. */
socklen_t nb_tcp_addr_len(const struct sockaddr_storage *addr);

/* ---- wire.c: messages
 * ------------------------------------------------------------------------------------ */

/* Raised when any of the three formats changes. The first 32 bytes of hello and handle never change, so that
 * two versions can still tell each other why they refuse the connection. */
#define NB_TCP_WIRE_VERSION 2

#define NB_TCP_MAX_STREAMS 16 /* sockets a connection */
#define NB_TCP_TOKEN_BYTES 16
#define NB_TCP_HELLO_BYTES 64
#define NB_TCP_FRAME_BYTES 40
#define NB_TCP_MAX_MESSAGE (1ull << 40) /* bytes, as the device properties promise */
/* Messages that a frame may run ahead of the oldest unseen one. Streams are filled in batches of bounded
 * size, so a real sender stays far below. */
#define NB_TCP_MAX_AHEAD (1u << 20)

/*
 * Handle, NB_NET_HANDLE_BYTES:
 *   0 magic u32, 4 version u32, 8 token[16], 24 check u32 (over bytes 0..23 and 32..59), 28 zero u32,
 *   32 family u16 (4 or 6), 34 port u16, 36 scope u32, 40 address[16], 56 use u32, 60 granted u32: bytes,
 *   divided by 64 KiB, that this end keeps for deltas of a connection (0 from earlier versions, not covered),
 *   64 state u64: 0 as listed; connect's own mark between its calls (not covered by the check).
 */

/* Purpose of a connection's sockets. Nodes that chose different transports recognise it by this. */
enum nb_tcp_use { NB_TCP_FOR_DATA = 0, NB_TCP_FOR_VERBS = 1 };

/* Return "tcp", "verbs" or "another transport". */
const char *nb_tcp_use_name(uint32_t use);

struct nb_tcp_handle {
    uint32_t version;
    uint32_t use; /* enum nb_tcp_use */
    uint8_t token[NB_TCP_TOKEN_BYTES];
    struct sockaddr_storage addr;
    uint64_t state;
    uint64_t granted; /* bytes, a multiple of 64 KiB */
};

void nb_tcp_handle_put(void *bytes, const struct nb_tcp_handle *h);
/* Parse a handle. Return 0, -EINVAL for bytes that are damaged or no handle of this transport, or -EPROTO for
 * a handle of another version. Then version, token and, as far as it can be understood, addr are filled
 * in. */
int nb_tcp_handle_get(const void *bytes, struct nb_tcp_handle *h);
/* Replace the state word, or the granted bytes, only. */
void nb_tcp_handle_set_state(void *bytes, uint64_t state);
void nb_tcp_handle_set_granted(void *bytes, uint64_t granted);

/*
 * Hello, first bytes on every socket, from the connecting side. The accepting side sends no answer:
 *   0 magic u32, 4 version u32, 8 token[16], 24 check u32 (over all other bytes), 28 zero u32,
 *   32 connection id[16] (random, the same on all sockets of a connection), 48 stream u16, 50 streams u16,
 *   52 use u32 (as in the handle), 56 zero u64.
 */

struct nb_tcp_hello {
    uint32_t version;
    uint8_t token[NB_TCP_TOKEN_BYTES];
    uint8_t conn_id[16];
    uint16_t stream, streams;
    uint32_t use;
};

void nb_tcp_hello_put(uint8_t bytes[NB_TCP_HELLO_BYTES], const struct nb_tcp_hello *h);
/* Parse a hello. Return 0, -EINVAL for other bytes, -EPROTO for the right magic of another version (version
 * and token are filled in), or -EBADMSG for this version with impossible fields. */
int nb_tcp_hello_get(const uint8_t bytes[NB_TCP_HELLO_BYTES], struct nb_tcp_hello *h);
/* Return whether the bytes are the same, in a time that does not depend on where they differ. */
bool nb_tcp_token_equal(const uint8_t *a, const uint8_t *b);

/*
 * Frame header:
 *   0 magic u32, 4 check u32 (over the rest, keyed by the connection id), 8 seq u32, 12 tag i32, 16 size u64,
 *   24 offset u64, 32 len u32, 36 kind u16, 38 word u16; then `len` bytes of payload.
 * DATA: bytes [offset, offset + len) of message number `seq`, which has `size` bytes and `tag`. A message may
 * be cut over the sockets of its connection. seq never falls on one socket, but for a message that is sent
 * AGAIN. The word is 0, or where the handle granted bytes, NB_TCP_ECHO, or NB_TCP_KEEP or NB_TCP_DELTA plus
 * the number of a slot (deltas.c). All frames of a message have the same word, those of other kinds have 0.
 *
 * FIN: the sender closes in order. seq is the number of messages it sent. It is the last frame on this
 * socket. From the receiver, on socket 0: the receiver closes in order, and seq is the number of messages
 * that it has begun to take.
 *
 * ERROR: from the receiver, on socket 0: it cannot take message `seq`. tag is the errno, size the message's,
 * offset the size of the receive.
 *
 * CONFIRM: from the receiver, on socket 0: it has carried out the words of all messages before `seq`. It
 * follows ECHO and DELTA only. The send of such a message is done when its CONFIRM was read, so that none is
 * unread when the sender closes: the kernel would reset the connection then, and lose sent bytes.
 *
 * AGAIN: the same, and message `seq` is a delta that the receiver cannot expand. The sender sends the
 * message once more with the same seq and NB_TCP_KEEP plus the same slot.
 */
#define NB_TCP_GRANT_UNIT 65536ull /* of the bytes that a handle grants */
#define NB_TCP_SLOTS 16384u
#define NB_TCP_PLAIN 0u
#define NB_TCP_ECHO 1u       /* confirm the message, which is plain */
#define NB_TCP_KEEP 0x4000u  /* copy the message into the slot */
#define NB_TCP_DELTA 0x8000u /* the message is a delta against the slot, whose content it replaces */

static inline bool nb_tcp_is_confirmed(uint16_t word)
{
    return word == NB_TCP_ECHO || word >= NB_TCP_DELTA;
}

enum nb_tcp_kind { NB_TCP_DATA = 1, NB_TCP_FIN = 2, NB_TCP_ERROR = 3, NB_TCP_CONFIRM = 4, NB_TCP_AGAIN = 5 };

struct nb_tcp_frame {
    uint32_t seq;
    int32_t tag;
    uint64_t size;
    uint64_t offset;
    uint32_t len;
    uint16_t kind;
    uint16_t word;
};

/* Return the key of the frame check, from the connection id. */
uint32_t nb_tcp_frame_key(const uint8_t conn_id[16]);
void nb_tcp_frame_put(uint8_t bytes[NB_TCP_FRAME_BYTES], const struct nb_tcp_frame *f, uint32_t key);
/* Parse a frame header. Return 0 and a frame whose fields are consistent in themselves (offset + len <= size
 * <= NB_TCP_MAX_MESSAGE, len > 0 unless size is 0, known kind), or -EPROTO. */
int nb_tcp_frame_get(const uint8_t bytes[NB_TCP_FRAME_BYTES], struct nb_tcp_frame *f, uint32_t key);

/* ---- dev.c: settings
 * ------------------------------------------------------------------------------------- */

struct nb_tcp_conf {
    int streams;            /* sockets of a connection; 0: by the link's speed */
    int stated;             /* NIBBLE_TCP_STREAMS, for the engine's connections, too */
    const char *congestion; /* control of congestion; "": the system's */
    int rcvbuf, sndbuf;     /* socket buffers in bytes; 0: the kernel's autotuning */
    int connect_ms;         /* limit for connect, and for accept to get all sockets of a connection */
    int dead_ms;            /* the peer is gone when data stays unacknowledged for this long in spite of
                           retransmissions */
    uint64_t pace;          /* bytes/s of each device; 0: no limit */
};

/* ---- sockets.c: sockets
 * ---------------------------------------------------------------------------------- */

/* Return a non-blocking socket, or a negative errno after a WARN line. */
int nb_tcp_socket(int family);
/* Return 0 where the kernel takes this control of congestion ("": its own choice), or a negative errno. */
int nb_tcp_congestion_check(const char *name);
/* Set the options of a data socket or listener, buffer sizes and control of congestion only before the
 * connection is made. */
void nb_tcp_tune(const struct nb_tcp_conf *conf, int fd, bool before_connect);
/* Write "address<port>" of both ends of a connected socket, each into at least 64 bytes. NULL skips an
 * end. */
void nb_tcp_names(int fd, char *local, char *peer, size_t cap);

/* ---- pace.c: pacing
 * -------------------------------------------------------------------------------------- */

/* Make a token bucket that fills with `rate` bytes a second of the clock, which outlives it. Return NULL when
 * memory is short. */
struct nb_tcp_pace *nb_tcp_pace_new(uint64_t rate, const struct nb_clock *clock);
void nb_tcp_pace_free(struct nb_tcp_pace *p);
/* Take up to `want` bytes. 0 means that sending must wait. */
size_t nb_tcp_pace_take(struct nb_tcp_pace *p, size_t want);
/* Count `bytes` that were sent without waiting. Later sends wait the longer. */
void nb_tcp_pace_charge(struct nb_tcp_pace *p, size_t bytes);
/* Give back bytes that were taken and not sent. */
void nb_tcp_pace_give_back(struct nb_tcp_pace *p, size_t bytes);
/* Return the nanoseconds until take can succeed. */
int64_t nb_tcp_pace_wait_ns(struct nb_tcp_pace *p);
/* Let the kernel send at most 1.25 times the share of one of `sockets` sockets, in bytes a second of `rate`,
 * or `rate` if there is only one. */
void nb_tcp_pace_socket(int fd, uint64_t rate, int sockets);

/* ---- dev.c: devices
 * -------------------------------------------------------------------------------------- */

/* A network interface. */
struct nb_tcp_dev {
    struct nb_tcp *tcp;
    struct nb_tcp_if nif;
    struct nb_tcp_pace *pace; /* NULL: no limit */
};

struct nb_tcp {
    struct nb_net net; /* first */
    struct nb_tcp_conf conf;
    const struct nb_clock *clock; /* the context's */
    int ndevs;
    struct nb_tcp_dev dev[NB_NET_MAX_DEVS];
    pthread_mutex_t lock;                 /* of the fields below: connect.c's, then deltas.c's */
    struct nb_tcp_connecting *connecting; /* connects in progress */
    uint64_t last_id;                     /* number of the last connect; a handle holds that of its connect */
    uint64_t delta_sent, delta_received;  /* bytes kept of sent messages, and reserved for received ones */
};

/* Make a transport for ctx with the current settings and interfaces. Return 0 and *tcp, or a negative errno
 * after a WARN line. */
int nb_tcp_new(struct nb_context *ctx, const struct nb_net_ops *ops, struct nb_tcp **tcp);
/* Free the transport. All its connections, listeners and connects in progress have ended. */
void nb_tcp_free(struct nb_tcp *tcp);

/* Return the device, or NULL with a WARN line when `dev` is out of range. */
struct nb_tcp_dev *nb_tcp_device(struct nb_tcp *tcp, int dev);

/* ---- connect.c, listen.c: how connections are made
 * ------------------------------------------------------- */

/* The sockets of an established connection, in stream order. */
struct nb_tcp_sockets {
    int n;
    int fd[NB_TCP_MAX_STREAMS];
    uint8_t conn_id[16];
};

/* As listen, connect and accept of the table, but for sockets. Return 1 when *out is filled in, 0 when the
 * caller must call again, or a negative errno after a WARN line. A peer of another `use` is an error on both
 * sides. */
int nb_tcp_listen_for(struct nb_tcp *tcp, int dev, enum nb_tcp_use use, void *handle, void **listen_comm);
int nb_tcp_dial(struct nb_tcp *tcp, int dev, enum nb_tcp_use use, const struct nb_net_conn_cfg *cfg,
                void *handle, struct nb_tcp_sockets *out);
int nb_tcp_take(void *listen_comm, struct nb_tcp_sockets *out);
void nb_tcp_close_sockets(const struct nb_tcp_sockets *sockets);

/* As in struct nb_net_ops. */
int nb_tcp_listen(struct nb_net *net, int dev, void *handle, void **listen_comm);
int nb_tcp_connect(struct nb_net *net, int dev, const struct nb_net_conn_cfg *cfg, void *handle,
                   void **send_comm);
void nb_tcp_abandon(struct nb_net *net, void *handle);
void nb_tcp_handle_name(const void *handle, char *name, size_t cap);
int nb_tcp_allow_deltas(void *listen_comm, void *handle);
int nb_tcp_accept(void *listen_comm, void **recv_comm);
int nb_tcp_close_listen(void *listen_comm);

/* Free the state of abandoned connects while the transport shuts down. */
void nb_tcp_abandon_all(struct nb_tcp *tcp);

#endif
