/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of the one-sided operations (puts.h): heads, memory, sending, receiving. All functions are called
 * with the group's lock held. */
#ifndef NIBBLE_ABI_PUTS_INTERNAL_H
#define NIBBLE_ABI_PUTS_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "abi/puts.h"
#include "base/context.h"
#include "net/transport.h"

struct nb_cuda_copier;

#define NB_PUTS_VERSION 1u              /* of the heads */
#define NB_PUTS_PIECE ((size_t)1 << 20) /* most bytes behind one head */
#define NB_PUTS_INLINE 4096u            /* most bytes of a put that travel in its head's message */
#define NB_PUTS_HEAD_TAG 0
#define NB_PUTS_FLYING 8u     /* heads, with their bytes, that are under way to a rank */
#define NB_PUTS_GRACE_MS 1000 /* between the end of a connection and the farewell that explains it */

/* Bytes of a head, with their places: 0 kind u32, 4 to u32, 8 at u64, 16 size u64, 24 signal u32, 28 get u32,
 * 32 signal_at u64, 40 add u64, 48 local u32, 56 local_at u64. */
#define NB_PUTS_HEAD_BYTES 64

enum nb_puts_kind {
    NB_PUTS_HELLO =
        1,         /* first on a connection. to: NB_PUTS_VERSION, local: the sender's rank, size: nranks */
    NB_PUTS_BYTES, /* `size` bytes for `at` of registration `to`, in this message or in the next one */
    NB_PUTS_GET,   /* send `size` bytes at `at` of registration `to` to `local_at` of registration `local` */
    NB_PUTS_FAREWELL /* last on a connection */
};

struct nb_puts_head {
    uint32_t kind, to;
    uint64_t at, size;
    uint32_t signal; /* number of the registration plus 1; 0: none. `add` is added at `signal_at` */
    uint32_t get;    /* number of a get. With NB_PUTS_BYTES: the get that these end; 0: none */
    uint64_t signal_at, add;
    uint32_t local;
    uint64_t local_at;
};

struct nb_puts_memory {
    uint8_t *data;
    size_t size;
    uint32_t number;
    bool gpu, gone;
};

struct nb_puts_request {
    struct nb_puts_request *next, **link; /* of all operations */
    struct nb_puts_request *queued;       /* of those with heads to send to this rank */
    struct nb_puts_peer *peer;            /* NULL: done from the start */
    struct nb_puts_head head;             /* of the first piece; that of the last one has the signal */
    const struct nb_puts_memory *from;
    uint64_t from_at;
    size_t sent;     /* bytes behind heads so far */
    unsigned flying; /* heads under way */
    bool issued;     /* all heads are made */
    bool answer;     /* to a get of another rank, so that no test frees it */
    bool done;
};

struct nb_puts_piece {
    struct nb_puts_request *op; /* NULL: a hello or a farewell */
    size_t size, head_size;
    const uint8_t *data; /* `size` bytes in a message of their own */
    int tag;
    unsigned left; /* messages to hand to the transport */
    void *head_request, *data_request;
    uint8_t *pinned;
    uint8_t head[NB_PUTS_HEAD_BYTES + NB_PUTS_INLINE];
};

/* A connection from another rank. */
struct nb_puts_in {
    struct nb_puts_in *next;
    struct nb_puts_peer *peer; /* NULL until its hello */
    void *comm;                /* NULL: over */
    enum { NB_PUTS_WANT_HEAD, NB_PUTS_WANT_PLACE, NB_PUTS_WANT_BYTES } state;
    void *request;
    size_t got; /* bytes of the head's message */
    struct nb_puts_head head;
    const struct nb_puts_memory *to;
    uint8_t *pinned;
    uint8_t buffer[NB_PUTS_HEAD_BYTES + NB_PUTS_INLINE];
};

struct nb_puts_peer {
    struct nb_puts_peer *next; /* of those with a connection, or in need of one */
    int rank;
    bool active, left;
    void *out;
    struct nb_puts_request *first, **last; /* with heads to make */
    struct nb_puts_piece *piece;           /* a ring of NB_PUTS_FLYING */
    unsigned oldest, count;
    int64_t checked_ms, lost_ms; /* lost_ms: when its end was seen, 0 while it lives */
    uint8_t handle[NB_NET_HANDLE_BYTES];
};

struct nb_puts {
    struct nb_context *ctx;
    uint64_t comm_id;
    int dev, rank, nranks, traffic_class;
    pthread_mutex_t lock;
    int err;
    bool closing;
    void *listen; /* the transport's */
    unsigned turn;
    struct nb_cuda_copier *copier; /* NULL: all memory is the host's */
    uint8_t *scratch;              /* NB_PUTS_PIECE bytes, pinned where there is a copier */
    struct nb_puts_memory **memory;
    uint32_t nmemory, capacity;
    struct nb_puts_peer *peer; /* by rank */
    struct nb_puts_peer *active;
    struct nb_puts_in *ins;
    struct nb_puts_request *requests;
    uint32_t gets;
    uint64_t nputs, bytes;
};

/* Return the tag of a head's bytes, which names their place for deltas. */
static inline int nb_puts_tag(const struct nb_puts_head *h)
{
    const uint64_t x = (h->at + h->to * 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;

    return (int)(x >> 34) + 1; /* never NB_PUTS_HEAD_TAG */
}

/* Record the group's first error, with a WARN line. */
void nb_puts_fail(struct nb_puts *p, int err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static inline const struct nb_net_ops *nb_puts_ops(const struct nb_puts *p)
{
    return p->ctx->net->ops;
}

/* ---- puts_memory.c ---------------------------------------------------------------------------------- */

/* Copy in the host, or between GPU memory and pinned memory. On an error the group fails. */
void nb_puts_copy(struct nb_puts *p, bool gpu, void *to, const void *from, size_t size);
/* Return *memory, pinned memory of NB_PUTS_PIECE bytes that is allocated if it is NULL. NULL: the group has
 * failed. */
uint8_t *nb_puts_pinned(struct nb_puts *p, uint8_t **memory);
/* Carry out a put or get of this rank to itself. */
int nb_puts_here(struct nb_puts *p, const struct nb_put *put);
/* Add to a signal's word. Other threads and the GPU see it after all copies before. */
void nb_puts_signal(struct nb_puts *p, const struct nb_puts_memory *m, uint64_t at, uint64_t add);
/* Return whether the registration contains the range. */
bool nb_puts_inside(const struct nb_puts_memory *m, uint64_t at, uint64_t size);
/* Check the arguments of a put, or of a get. Return -EINVAL after a WARN line. */
int nb_puts_check(const struct nb_puts *p, const struct nb_put *put, bool get);

/* ---- puts_send.c ------------------------------------------------------------------------------------ */

/* Return a new operation, or NULL after a WARN line. */
struct nb_puts_request *nb_puts_new_request(struct nb_puts *p);
void nb_puts_free_request(struct nb_puts_request *r);
/* Let nb_puts_send connect with a rank. */
void nb_puts_activate(struct nb_puts *p, struct nb_puts_peer *peer);
/* Append an operation to those for a rank. */
void nb_puts_queue(struct nb_puts *p, struct nb_puts_peer *peer, struct nb_puts_request *r);
/* Move what can be moved to a rank, and look whether it lives. */
void nb_puts_send(struct nb_puts *p, struct nb_puts_peer *peer);
/* Tell a rank that this one leaves, once. Return whether it knows, or is gone. */
bool nb_puts_part(struct nb_puts *p, struct nb_puts_peer *peer, bool *said);
/* Close the connection to a rank. Its messages may be lost. */
void nb_puts_close_peer(struct nb_puts *p, struct nb_puts_peer *peer);

/* ---- puts_receive.c --------------------------------------------------------------------------------- */

/* Move what can be moved from other ranks, and accept their connections now and then. */
void nb_puts_receive(struct nb_puts *p);
/* Close a connection from another rank. */
void nb_puts_close_in(struct nb_puts *p, struct nb_puts_in *in);

#endif
