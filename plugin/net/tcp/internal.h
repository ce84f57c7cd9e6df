/* SPDX-License-Identifier: Apache-2.0 */
/* Private to this folder: both halves of a connection. */
#ifndef NIBBLE_NET_TCP_INTERNAL_H
#define NIBBLE_NET_TCP_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/tcp/tcp.h"

/* ---- pace.c: unsent bytes
 * -------------------------------------------------------------------------------- */

struct nb_tcp_unsent {
    int limit;        /* current TCP_NOTSENT_LOWAT in bytes; 0: not limited */
    int64_t since_ns; /* when the kernel last took no more; 0: it takes more */
    uint64_t bytes;   /* written since then */
    bool ran_dry;     /* since then the kernel had sent all its bytes */
};

/* Limit the unsent bytes of the stream with socket `fd` from now on. */
void nb_tcp_unsent_start(struct nb_tcp_unsent *u, int fd);
/* Note that `bytes` were written to a limited stream by `now_ns`, and adapt the limit. full: the kernel took
 * no more. */
void nb_tcp_unsent_wrote(struct nb_tcp_unsent *u, int fd, size_t bytes, bool full, int64_t now_ns);
/* Note that the stream has written all its bytes. */
void nb_tcp_unsent_idle(struct nb_tcp_unsent *u);

/* ---- tcp.c: a connection
 * --------------------------------------------------------------------------------- */

#define NB_TCP_REQ_MAX 1024 /* requests of a connection before isend and irecv answer "later" */

/* First member of sending and receiving connections. */
struct nb_tcp_comm {
    bool is_send;
    int err; /* first error, negative errno; sticky */
    int nstreams;
    int unfinished, done_untested; /* requests in these states */
    uint32_t key;                  /* of the frame check */
    uint32_t next_seq; /* send: of the next message queued; receive: of the oldest unseen message */
    uint64_t wire;     /* bytes moved */
    struct nb_tcp_dev *dev;
    struct nb_net_reqs reqs;
    char peer[64], local[64]; /* "address<port>" */
};

/* Set the fields of a new connection of n streams, the first of which is socket fd0, with requests of
 * req_size bytes. */
void nb_tcp_comm_init(struct nb_tcp_comm *c, struct nb_tcp_dev *dev, bool is_send, int fd0, int n,
                      const uint8_t conn_id[16], size_t req_size);
/* Free the connection's requests. */
void nb_tcp_comm_fini(struct nb_tcp_comm *c);

/* Mark a request complete. */
static inline void nb_tcp_comm_done(struct nb_tcp_comm *c, struct nb_net_req *r)
{
    r->done = true;
    c->unfinished--;
    c->done_untested++;
}

/* Free a complete request that has been tested. */
static inline void nb_tcp_comm_tested(struct nb_tcp_comm *c, struct nb_net_req *r)
{
    c->done_untested--;
    nb_net_req_put(&c->reqs, r);
}

/* ---- places.c: messages that come again
 * ---------------------------------------------------------------------- */

#define NB_TCP_PICKS 32       /* samples of a message */
#define NB_TCP_NO_SLOT 0xffff /* of a place */

/* A time in which messages go plain: so many of them, or until `until_ns`, whichever ends first. */
struct nb_tcp_rest {
    uint64_t left;
    int64_t until_ns;
};

/* Return whether the next message goes plain, and count it. */
static inline bool nb_tcp_rests(struct nb_tcp_rest *r, int64_t now_ns)
{
    if (r->left > 0 && now_ns < r->until_ns) {
        r->left--;
        return true;
    }
    r->left = 0;
    return false;
}

/* A message of a round that repeats. */
struct nb_tcp_place {
    size_t size;
    int32_t tag;                 /* where tags distinguish places */
    uint16_t pick[NB_TCP_PICKS]; /* samples of its last content, where content does */
    uint16_t slot;               /* where both ends keep this content, or NB_TCP_NO_SLOT */
    uint8_t misses;              /* deltas in a row that saved too little */
    struct nb_tcp_rest rest;
};

struct nb_tcp_places {
    struct nb_tcp_place *at;
    unsigned n, cap;
    unsigned next;    /* place that is expected */
    unsigned unknown; /* messages in a row without a place */
    unsigned found;   /* messages with a place, since the last cleaning */
    bool hopeless;    /* no message comes again */
};

/* Return the place of a message of at least 4 * NB_TCP_PICKS bytes, and whether it is *known: its content is
 * about that of the last message of its place. An unknown message gets a new place, or NULL where there is no
 * room. The pointer holds until the next call. */
struct nb_tcp_place *nb_tcp_place_of(struct nb_tcp_places *p, const void *data, size_t size, bool *known);
/* Return the place of the messages of this size with this tag. It is a new one where they lack one, or NULL
 * where there is no room. */
struct nb_tcp_place *nb_tcp_place_of_tag(struct nb_tcp_places *p, int32_t tag, size_t size);
void nb_tcp_places_free(struct nb_tcp_places *p);

/* ---- judge.c: whether deltas pay ---- */

#define NB_TCP_TIMED 64u /* messages on their way whose time is measured */

/* A message whose confirmation is awaited. */
struct nb_tcp_timed {
    int64_t start_ns; /* of isend */
    size_t size;
    uint32_t seq;
    bool plain, delta;
};

struct nb_tcp_speed { /* recent messages */
    double ns, bytes;
    unsigned n;
};

struct nb_tcp_judge {
    unsigned n; /* messages in `at`, the oldest is number `first` */
    unsigned first;
    struct nb_tcp_timed at[NB_TCP_TIMED];
    int64_t last_ns;         /* of the last confirmation */
    bool probing;            /* plain messages are sent to be measured */
    double left_ns;          /* time that deltas take until then */
    unsigned sent;           /* plain messages */
    unsigned rounds;         /* of the last rest, 0 when deltas have paid since */
    struct nb_tcp_rest rest; /* because deltas did not pay */
    struct nb_tcp_speed plain, delta;
};

/* Return whether a message goes plain instead of as a delta, to measure that: for about a hundredth of the
 * time that messages take. */
bool nb_tcp_judge_probes(struct nb_tcp_judge *j);
/* Note a message that is sent with this word, or NB_TCP_ECHO to measure a plain one. Return the word. */
uint16_t nb_tcp_judge_sends(struct nb_tcp_judge *j, uint16_t word, uint32_t seq, size_t size, int64_t now_ns);
/* Note the confirmation of all messages before `seq`. Return false when it shows that deltas do not pay. Then
 * call nb_tcp_judge_rest with the messages of a round. */
bool nb_tcp_judge_confirmed(struct nb_tcp_judge *j, uint32_t seq, int64_t now_ns);
void nb_tcp_judge_rest(struct nb_tcp_judge *j, unsigned messages, int64_t now_ns);

/* ---- deltas.c: exact deltas of messages that come again
 * --------------------------------------------------------- */

/* In front of a delta: 0 bytes of the message u64, 8 seq of the message in the slot u32, 12 width u32 (enum
 * nb_ulp_width), 16 nb_hash64 of the message u64. The delta follows, as
 * nb_ulp_encode_sparse makes it. */
#define NB_TCP_DELTA_BYTES 24

#define NB_TCP_DELTA_MBPS 10000 /* fastest link on which NIBBLE_P2P=auto codes */

struct nb_tcp_slot {
    uint8_t *data; /* NULL: empty */
    size_t size;
    uint32_t seq;  /* of the message */
    uint8_t width; /* sender: enum nb_ulp_width, 0 until it is known */
    uint64_t used; /* sender: messages seen when it was used last */
};

struct nb_tcp_slots {
    struct nb_tcp_slot *at;
    unsigned cap;
    uint64_t bytes; /* kept in all slots */
};

/* Memory for a coded message, which a request keeps for its next message. */
struct nb_tcp_coded {
    uint8_t *bytes;
    size_t cap;
};

struct nb_tcp_deltas { /* of a sending connection */
    struct nb_tcp_places places;
    bool by_tag; /* tags distinguish places */
    struct nb_tcp_slots slots;
    unsigned lowest;        /* all slots before it are full */
    uint64_t granted;       /* bytes that the receiver keeps at most */
    uint64_t seen, cleaned; /* messages looked at so far, and when stale slots were looked for */
    uint64_t coded, plain_bytes, coded_bytes;
    unsigned again; /* deltas that the receiver could not expand */
    unsigned kept;  /* slots in use */
    struct nb_tcp_judge judge;
};

struct nb_tcp_send;
struct nb_tcp_recv;
struct nb_tcp_buffer;

/* Reserve memory for the messages that a receiving connection of this device keeps. Return its bytes, a
 * multiple of NB_TCP_GRANT_UNIT, which nb_tcp_deltas_return gives back. 0: the settings forbid deltas, or
 * nothing is left. */
uint64_t nb_tcp_deltas_reserve(struct nb_tcp_dev *dev);
void nb_tcp_deltas_return(struct nb_tcp *tcp, uint64_t bytes);
/* Reserve the same for another connection of a listener, whose handle has promised it: even beyond the limit.
 * NCCL makes one connection a listener. */
uint64_t nb_tcp_deltas_reserve_again(struct nb_tcp_dev *dev, uint64_t bytes);
/* Return whether connections of this device may use deltas, by NIBBLE_P2P and the nominal rate. */
bool nb_tcp_deltas_wanted(const struct nb_tcp_dev *dev);

/* Begin and end deltas of a sending connection whose receiver keeps up to `granted` bytes. `deltas` is not
 * NB_DELTAS_NONE. */
void nb_tcp_deltas_start(struct nb_tcp_send *s, enum nb_net_deltas deltas, uint64_t granted);
void nb_tcp_deltas_end(struct nb_tcp_send *s);
/* Choose how the next message (s->c.next_seq) is sent, and code it where that pays. Return the word for its
 * frames and the *length to send: of `data`, or with NB_TCP_DELTA of coded->bytes. */
uint16_t nb_tcp_deltas_plan(struct nb_tcp_send *s, const void *data, size_t size, int32_t tag,
                            struct nb_tcp_coded *coded, size_t *length);

/* Note that the receiver has carried out the words of all messages before `seq`. */
void nb_tcp_deltas_confirmed(struct nb_tcp_send *s, uint32_t seq);
/* Note that the receiver asked for a message again. After some, no message of the connection is coded. */
void nb_tcp_deltas_again(struct nb_tcp_send *s, uint32_t seq);

/* Choose where a receive's message lands (b->land): in its memory, or a delta apart from it. Return false
 * when memory is short. */
bool nb_tcp_deltas_land(struct nb_tcp_buffer *b);
/* Carry out the word of a complete message: expand it, set its size, and keep it. Call in the order of the
 * messages. Return 0, 1 and the reason where the sender must send the plain message again, or a negative
 * errno and the reason. */
int nb_tcp_deltas_take(struct nb_tcp_recv *s, struct nb_tcp_buffer *b, const char **why);
/* Free what a receiving connection keeps. */
void nb_tcp_deltas_leave(struct nb_tcp_recv *s);

/* ---- send.c: sending
 * ------------------------------------------------------------------------------------- */

#define NB_TCP_BATCH 32       /* frames in one gather write */
#define NB_TCP_QUANTUM 262144 /* bytes put on one stream before the next gets its turn */

struct nb_tcp_sreq {
    struct nb_net_req head;
    struct nb_tcp_sreq *next; /* in the queue */
    const uint8_t *data;      /* the message, or coded.bytes */
    size_t size, assigned;    /* bytes of `data`; bytes already bound to a stream */
    const uint8_t *plain;     /* the message */
    size_t whole;             /* bytes of the message */
    uint16_t word;            /* NB_TCP_PLAIN, or what the receiver does with it */
    bool waiting;             /* its word asks for a confirmation, which has not come */
    struct nb_tcp_sreq *next_waiting;
    struct nb_tcp_coded coded;
    uint32_t chunk; /* most bytes in one frame */
    uint32_t seq;
    int32_t tag;
    int frames; /* bound to streams and unwritten */
};

/* A frame bound to a stream. */
struct nb_tcp_out {
    uint8_t hdr[NB_TCP_FRAME_BYTES];
    uint32_t len;
    const uint8_t *data;
    struct nb_tcp_sreq *req;
};

struct nb_tcp_sstream {
    int fd;
    struct nb_tcp_unsent unsent;
    bool blocked;     /* the kernel or the pace took no more in this round */
    bool paced;       /* the pace did */
    int first, count; /* out[first .. first + count) is unwritten */
    size_t written;   /* bytes of out[first] already written, header included */
    size_t turn;      /* bytes since this stream became the current one */
    struct nb_tcp_out out[NB_TCP_BATCH];
};

struct nb_tcp_send {
    struct nb_tcp_comm c;
    struct nb_tcp_sreq *queue, **queue_end; /* messages with bytes that are bound to no stream yet */
    int cur;                                /* stream whose turn it is */
    bool lazy;                              /* isend leaves writing to test */
    bool urgent;                            /* the pace does not delay it */
    int wait_fd;     /* timer for an owner that sleeps while the pace forbids writing; -1 until needed */
    unsigned peeked; /* isends since the reverse direction was read */
    int64_t moved_ms, checked_ms; /* when bytes last moved; when the kernel was last asked about a stall */
    struct nb_tcp_deltas *deltas; /* NULL: all messages are plain */
    struct nb_tcp_sreq *waiting, **waiting_end; /* for a confirmation, by seq */
    uint8_t back[NB_TCP_FRAME_BYTES];           /* the first `back_have` bytes of a frame from the receiver */
    unsigned back_have;
    struct nb_tcp_sstream stream[];
};

/* Take over `n` connected sockets, in stream order. `cfg` says whether the connection is lazy, shallow and
 * urgent. NULL means defaults. -ENOMEM leaves the sockets to the caller. */
int nb_tcp_send_new(struct nb_tcp_dev *dev, const int *fds, int n, const uint8_t conn_id[16],
                    const struct nb_net_conn_cfg *cfg, struct nb_tcp_send **comm);

/* As in struct nb_net_ops. */
int nb_tcp_isend(void *send_comm, const void *data, size_t size, int tag, void *mhandle, void **request);
int nb_tcp_send_test(struct nb_tcp_sreq *req, int *done, size_t *sizes);
int nb_tcp_send_poll(struct nb_tcp_send *s, struct pollfd *fds, int max);
int nb_tcp_lost(void *send_comm);
uint64_t nb_tcp_resent(void *send_comm);
uint32_t nb_tcp_round_trip_us(void *send_comm);
int nb_tcp_close_send(void *send_comm);

/* ---- recv.c: receiving
 * ----------------------------------------------------------------------------------- */

#define NB_TCP_READ_AHEAD 8192 /* bytes read beyond known payload; they are copied once more */

/* One receive of a group. */
struct nb_tcp_buffer {
    struct nb_tcp_buffer *next; /* in the list of receives without a message, or of messages in parts */
    struct nb_tcp_rreq *req;
    uint8_t *data;
    uint8_t *land;    /* where the message is written: `data`, or coded.bytes */
    size_t cap, size; /* bytes of the receive; bytes of its message, once matched */
    size_t claimed;   /* bytes in the frames seen */
    size_t got;       /* bytes in place */
    uint32_t seq;     /* number of the message */
    int32_t tag;
    uint16_t word;                   /* of its frames */
    bool complete;                   /* all bytes are in place */
    bool again;                      /* its plain bytes are to come, of an unknown size */
    bool listed;                     /* in the list of messages in parts */
    struct nb_tcp_buffer *next_kept; /* in the list of messages with a word */
    struct nb_tcp_coded coded;       /* stays with the request */
};

struct nb_tcp_rreq {
    struct nb_net_req head;
    struct nb_tcp_rreq *later; /* the next one to be tested, where receives have an order */
    int n, left;               /* receives of the group; incomplete receives */
    struct nb_tcp_buffer buffer[NB_NET_MAX_RECVS];
};

struct nb_tcp_rstream {
    int fd;
    bool eof, fin;
    bool drained;      /* the kernel had no more bytes in this round */
    bool have;         /* `frame` is the header of the next frame */
    unsigned pos, end; /* unread bytes of buf */
    size_t off, rest;  /* payload of `frame`: position of the next byte in buffer, number of missing bytes */
    struct nb_tcp_frame frame;
    struct nb_tcp_buffer *buffer; /* NULL until frame is matched */
    struct nb_tcp_parked *parked; /* instead of a receive */
    uint8_t *land;                /* where the payload is written, from `off` on */
    uint8_t buf[NB_TCP_READ_AHEAD];
};

/* A frame that arrived before its receive, while a message is awaited again. */
struct nb_tcp_parked {
    struct nb_tcp_parked *next;
    struct nb_tcp_frame frame;
    uint8_t bytes[];
};

/* Frames on their way to the sender. */
struct nb_tcp_answer {
    bool confirm, again; /* to be sent */
    uint32_t handled;    /* the next message: the words of all before it are carried out */
    size_t since;        /* bytes of messages that are not confirmed */
    unsigned left;       /* unsent bytes at the end of `frame` */
    uint8_t frame[NB_TCP_FRAME_BYTES];
};

struct nb_tcp_recv {
    struct nb_tcp_comm c;
    struct nb_tcp_buffer *posted, **posted_end; /* receives without a message, oldest first */
    bool ordered;                               /* receive number n takes message n, see nb_tcp_ordered */
    uint32_t next_post;                         /* number of the next receive */
    struct nb_tcp_rreq *oldest, **oldest_end;   /* receives that have not tested done */
    struct nb_tcp_buffer *active;               /* messages with parts that are still to be seen or read */
    struct nb_tcp_buffer *kept, **kept_end; /* messages with a word that is still to be carried out, by seq */
    struct nb_tcp_slots slots;
    uint64_t granted;            /* bytes reserved for the slots */
    struct nb_tcp_buffer *asked; /* message that the sender must send again, or NULL */
    unsigned asks;               /* such messages so far */
    struct nb_tcp_answer answer;
    struct nb_tcp_parked *parked, **parked_end; /* in the order of arrival */
    size_t parked_bytes;
    struct nb_tcp_rstream stream[];
};

/* Take over `n` connected sockets, in stream order. -ENOMEM leaves them to the caller. */
int nb_tcp_recv_new(struct nb_tcp_dev *dev, const int *fds, int n, const uint8_t conn_id[16],
                    struct nb_tcp_recv **comm);

/* As in struct nb_net_ops. */
int nb_tcp_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                 void **request);
int nb_tcp_recv_test(struct nb_tcp_rreq *req, int *done, size_t *sizes);
int nb_tcp_recv_poll(struct nb_tcp_recv *s, struct pollfd *fds, int max);
int nb_tcp_watch_fd(void *recv_comm);
unsigned nb_tcp_ordered(void *recv_comm);
int nb_tcp_close_recv(void *recv_comm);

#endif
