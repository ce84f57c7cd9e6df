/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiving side of a TCP connection, for one thread at a time. Each stream is a small state machine:
 * frame header, match, payload. Payload goes from the kernel straight to its destination. One read takes the
 * rest of a payload together with up to NB_TCP_READ_AHEAD further bytes, which usually hold the next header.
 *
 * A socket that waits for a lost packet holds up the headers behind it. Where receives have an order
 * (nb_tcp_ordered), the other sockets go on: a message's number tells its receive.
 *
 * A message that the sender must send again comes behind frames that may lack a receive until that message is
 * complete. Until it has come, such frames are parked in memory.
 */
#include "net/tcp/internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/log.h"

#define LARGE 4096       /* payload of frames from this size on is not read ahead */
#define HEADER_AHEAD 256 /* bytes that are still read ahead: a header and a short message behind it */
#define PARKED_MOST (256u << 20)
#define CONFIRM_AT 65536u /* bytes of messages after which a confirmation does not wait for more of them */

int nb_tcp_recv_new(struct nb_tcp_dev *dev, const int *fds, int n, const uint8_t conn_id[16],
                    struct nb_tcp_recv **comm)
{
    struct nb_tcp_recv *s = calloc(1, sizeof(*s) + (size_t)n * sizeof(s->stream[0]));

    if (!s)
        return -ENOMEM;
    nb_tcp_comm_init(&s->c, dev, false, fds[0], n, conn_id, sizeof(struct nb_tcp_rreq));
    s->posted_end = &s->posted;
    s->oldest_end = &s->oldest;
    s->kept_end = &s->kept;
    s->parked_end = &s->parked;
    for (int i = 0; i < n; i++)
        s->stream[i].fd = fds[i];
    *comm = s;
    return 0;
}

/* Record the connection's first error. quiet: the peer closed in order, and the caller decides whether that
 * matters. */
__attribute__((format(printf, 4, 5))) static void recv_fail(struct nb_tcp_recv *s, int err, bool quiet,
                                                            const char *fmt, ...)
{
    char why[256];
    va_list ap;

    if (s->c.err)
        return;
    s->c.err = err;
    va_start(ap, fmt);
    vsnprintf(why, sizeof(why), fmt, ap);
    va_end(ap);
    if (quiet)
        NB_INFO(NCCL_NET, "tcp: %s, from which %s receives: %s", s->c.peer, s->c.local, why);
    else
        NB_WARN("tcp: receiving on %s from %s failed: %s. %d receives are lost", s->c.local, s->c.peer, why,
                s->c.unfinished);
}

/* Send what the answer asks for. The next call sends the bytes that the kernel does not take. */
static void send_answer(struct nb_tcp_recv *s)
{
    struct nb_tcp_answer *a = &s->answer;

    while (!s->c.err && (a->left || a->confirm || a->again)) {
        ssize_t n;

        if (!a->left) {
            const struct nb_tcp_frame f = {.seq = a->handled,
                                           .kind = a->again ? NB_TCP_AGAIN : NB_TCP_CONFIRM};

            nb_tcp_frame_put(a->frame, &f, s->c.key);
            a->left = sizeof(a->frame);
            a->confirm = a->again = false;
            a->since = 0;
        }
        n = send(s->stream[0].fd, a->frame + sizeof(a->frame) - a->left, a->left,
                 MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n <= 0)
            return; /* reading tells why, if the connection has ended */
        a->left -= (unsigned)n;
    }
}

/* Remove and return the receive for a message that is not seen yet, or return NULL: the one of its number
 * where receives have an order, else the oldest one with its tag. */
static struct nb_tcp_buffer *take_posted(struct nb_tcp_recv *s, const struct nb_tcp_frame *f)
{
    for (struct nb_tcp_buffer **p = &s->posted; *p; p = &(*p)->next) {
        struct nb_tcp_buffer *buffer = *p;

        if (buffer->tag != f->tag || (s->ordered && buffer->seq != f->seq))
            continue;
        *p = buffer->next;
        if (!buffer->next)
            s->posted_end = p;
        return buffer;
    }
    return NULL;
}

/* Tell the sender why this side refuses its connection from here on. The sockets stay open until the comm is
 * closed: closing them now, with unread bytes inside, could send a reset that overtakes this frame. */
static void tell_sender(struct nb_tcp_recv *s, const struct nb_tcp_frame *about, int err, size_t cap)
{
    struct nb_tcp_frame f = {
        .seq = about->seq, .tag = err, .size = about->size, .offset = cap, .kind = NB_TCP_ERROR};
    uint8_t b[NB_TCP_FRAME_BYTES];

    send_answer(s);
    if (s->answer.left)
        return;
    nb_tcp_frame_put(b, &f, s->c.key);
    (void)!send(s->stream[0].fd, b, sizeof(b), MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void protocol_error(struct nb_tcp_recv *s, const struct nb_tcp_frame *f, const char *what)
{
    if (s->c.err)
        return;
    tell_sender(s, f, EPROTO, 0);
    recv_fail(s, -EPROTO, false, "message %u of %llu bytes: %s", f->seq, (unsigned long long)f->size, what);
}

static void too_long(struct nb_tcp_recv *s, const struct nb_tcp_frame *f, size_t cap)
{
    tell_sender(s, f, EMSGSIZE, cap);
    recv_fail(s, -EMSGSIZE, false, "message %u (tag %d) has %llu bytes, its receive takes %zu", f->seq,
              f->tag, (unsigned long long)f->size, cap);
}

static void list_active(struct nb_tcp_recv *s, struct nb_tcp_buffer *buffer)
{
    buffer->listed = true;
    buffer->next = s->active;
    s->active = buffer;
}

/* Return the message in parts with this number, or NULL. */
static struct nb_tcp_buffer *active_of(const struct nb_tcp_recv *s, uint32_t seq)
{
    struct nb_tcp_buffer *buffer = s->active;

    while (buffer && buffer->seq != seq)
        buffer = buffer->next;
    return buffer;
}

/* Return the receive for the frame, or NULL when there is none yet, or on an error. */
static struct nb_tcp_buffer *match(struct nb_tcp_recv *s, const struct nb_tcp_frame *f)
{
    uint32_t ahead = f->seq - s->c.next_seq;
    struct nb_tcp_buffer *buffer = NULL;

    if (s->ordered && (int32_t)(f->seq - s->next_post) < 0) {
        buffer = take_posted(s, f);
        /* Deltas refer to the message before them. */
        if (buffer ? f->word != NB_TCP_PLAIN : ahead <= NB_TCP_MAX_AHEAD && !active_of(s, f->seq)) {
            protocol_error(s, f, "it fits no receive of a connection with an order");
            return NULL;
        }
    } else if (ahead == 0) {
        buffer = take_posted(s, f);
        if (!buffer)
            return NULL;
    } else if (ahead <= NB_TCP_MAX_AHEAD) {
        return NULL; /* it waits until the messages before it are matched */
    }
    if (buffer) {
        if (f->size > buffer->cap + (f->word >= NB_TCP_DELTA ? NB_TCP_DELTA_BYTES : 0)) {
            too_long(s, f, buffer->cap);
            return NULL;
        }
        s->c.next_seq = !s->ordered ? s->c.next_seq + 1 : s->posted ? s->posted->seq : s->next_post;
        buffer->size = f->size;
        buffer->seq = f->seq;
        buffer->word = f->word;
        if (f->word) {
            *s->kept_end = buffer;
            s->kept_end = &buffer->next_kept;
            if (!nb_tcp_deltas_land(buffer)) {
                tell_sender(s, f, ENOMEM, 0);
                recv_fail(s, -ENOMEM, false, "no memory for message %u, a delta of %llu bytes", f->seq,
                          (unsigned long long)f->size);
                return NULL;
            }
        }
        if (f->len < f->size)
            list_active(s, buffer);
    } else {
        buffer = active_of(s, f->seq);
        if (buffer && buffer->again && buffer->word == f->word) {
            if (f->size > buffer->cap) {
                too_long(s, f, buffer->cap);
                return NULL;
            }
            buffer->size = f->size;
            buffer->again = false;
        }
        if (!buffer || buffer->size != f->size || buffer->tag != f->tag || buffer->word != f->word ||
            f->len > buffer->size - buffer->claimed) {
            protocol_error(s, f, "a part that fits no message");
            return NULL;
        }
    }
    buffer->claimed += f->len;
    return buffer;
}

/* Take memory for the stream's frame, which has no receive, while a message is awaited again. */
static bool park(struct nb_tcp_recv *s, struct nb_tcp_rstream *t)
{
    const size_t len = t->frame.len;

    if (!s->asked || len > PARKED_MOST - s->parked_bytes)
        return false;
    t->parked = malloc(sizeof(*t->parked) + len);
    if (!t->parked)
        return false;
    *t->parked = (struct nb_tcp_parked){.frame = t->frame};
    s->parked_bytes += len;
    return true;
}

/* Find a place for the payload of the stream's frame. Return false when there is none yet, or on an error. */
static bool place(struct nb_tcp_recv *s, struct nb_tcp_rstream *t)
{
    t->buffer = match(s, &t->frame);
    if (!t->buffer && (s->c.err || !park(s, t)))
        return false;
    t->land = t->buffer ? t->buffer->land : t->parked->bytes;
    t->off = t->buffer ? t->frame.offset : 0;
    t->rest = t->frame.len;
    return true;
}

static void message_done(struct nb_tcp_recv *s, struct nb_tcp_buffer *buffer)
{
    struct nb_tcp_rreq *r = buffer->req;

    if (--r->left == 0)
        nb_tcp_comm_done(&s->c, &r->head);
}

/* Ask the sender for the plain bytes of a message whose delta cannot be expanded. */
static void ask_again(struct nb_tcp_recv *s, struct nb_tcp_buffer *buffer, const char *why)
{
    if (s->asks++ < 3)
        NB_WARN(
            "tcp: message %u from %s to %s: %s. The plain message is sent instead. (NIBBLE_P2P=raw sends no "
            "deltas)",
            buffer->seq, s->c.peer, s->c.local, why);
    buffer->word = (uint16_t)(NB_TCP_KEEP | (buffer->word & (NB_TCP_SLOTS - 1)));
    buffer->land = buffer->data;
    buffer->size = buffer->claimed = buffer->got = 0;
    buffer->complete = false;
    buffer->again = true;
    list_active(s, buffer);
    s->asked = buffer;
    s->answer.handled = buffer->seq;
    s->answer.again = true;
    send_answer(s);
}

/* Carry out the words of complete messages, in the order in which the sender wrote them. */
static void take_kept(struct nb_tcp_recv *s)
{
    while (s->kept && s->kept->complete) {
        struct nb_tcp_buffer *buffer = s->kept;
        const struct nb_tcp_frame f = {.seq = buffer->seq, .size = buffer->size};
        const char *why;
        const int rc = nb_tcp_deltas_take(s, buffer, &why);

        if (rc > 0) {
            ask_again(s, buffer, why);
            return;
        }
        if (rc) {
            tell_sender(s, &f, -rc, buffer->cap);
            recv_fail(s, rc, false, "message %u of %llu bytes: %s", f.seq, (unsigned long long)f.size, why);
            return;
        }
        s->kept = buffer->next_kept;
        if (!s->kept)
            s->kept_end = &s->kept;
        if (s->asked == buffer)
            s->asked = NULL;
        s->answer.handled = buffer->seq + 1;
        s->answer.since += buffer->size;
        if (nb_tcp_is_confirmed(buffer->word)) {
            s->answer.confirm = true;
            if (s->answer.since >= CONFIRM_AT) /* the sender waits with the next delta */
                send_answer(s);
        }
        message_done(s, buffer);
    }
}

/* Note that `len` bytes of a message are in place. */
static void part_done(struct nb_tcp_recv *s, struct nb_tcp_buffer *buffer, size_t len)
{
    buffer->got += len;
    if (buffer->got < buffer->size)
        return;
    if (buffer->listed) {
        struct nb_tcp_buffer **p = &s->active;

        while (*p != buffer)
            p = &(*p)->next;
        *p = buffer->next;
        buffer->listed = false;
    }
    if (!buffer->word) {
        message_done(s, buffer);
        return;
    }
    buffer->complete = true;
    take_kept(s);
}

/* Finish the stream's frame, which is complete. */
static void frame_done(struct nb_tcp_recv *s, struct nb_tcp_rstream *t)
{
    struct nb_tcp_buffer *buffer = t->buffer;

    t->have = false;
    t->buffer = NULL;
    if (buffer) {
        part_done(s, buffer, t->frame.len);
        return;
    }
    *s->parked_end = t->parked;
    s->parked_end = &t->parked->next;
    t->parked = NULL;
}

/* Move parked frames to their receives. Return true when one was moved. */
static bool unpark(struct nb_tcp_recv *s)
{
    struct nb_tcp_parked **at = &s->parked;
    bool moved = false;

    while (*at && !s->c.err) {
        struct nb_tcp_parked *parked = *at;
        const struct nb_tcp_frame *f = &parked->frame;
        struct nb_tcp_buffer *buffer = match(s, f);

        if (!buffer) {
            at = &parked->next;
            continue;
        }
        *at = parked->next;
        if (!*at)
            s->parked_end = at;
        if (f->len)
            memcpy(buffer->land + f->offset, parked->bytes, f->len);
        s->parked_bytes -= f->len;
        part_done(s, buffer, f->len);
        free(parked);
        at = &s->parked;
        moved = true;
    }
    return moved;
}

/* Read once into `v`. Return the bytes, or 0 when the kernel has none now. Handle an end or an error, and
 * return 0. */
static size_t read_some(struct nb_tcp_recv *s, struct nb_tcp_rstream *t, struct iovec *v, int nv)
{
    struct msghdr m = {.msg_iov = v, .msg_iovlen = (size_t)nv};
    size_t room = v[0].iov_len + (nv > 1 ? v[1].iov_len : 0);
    ssize_t n;
    int err = 0;

    if (t->drained || t->eof || s->c.err)
        return 0;
    do
        n = recvmsg(t->fd, &m, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        err = errno;
    if (n > 0) {
        s->c.wire += (size_t)n;
        /* A short read has emptied the socket. At most the end of the stream remains, for which poll wakes
         * again. */
        t->drained = (size_t)n < room;
        return (size_t)n;
    }
    if (n == 0) {
        t->eof = true;
        if (t->have || t->end > t->pos)
            recv_fail(s, -ECONNRESET, false, "the peer ended the connection inside message %u",
                      t->have ? t->frame.seq : s->c.next_seq);
    } else if (err == EAGAIN || err == EWOULDBLOCK) {
        t->drained = true;
    } else {
        recv_fail(s, -err, false, "%s%s", strerror(err), nb_net_hint(err));
    }
    return 0;
}

/* Read a header into t->frame. Return false when it is not complete yet. */
static bool next_frame(struct nb_tcp_recv *s, struct nb_tcp_rstream *t)
{
    if (t->end - t->pos < NB_TCP_FRAME_BYTES) {
        struct iovec v;

        memmove(t->buf, t->buf + t->pos, t->end - t->pos);
        t->end -= t->pos;
        t->pos = 0;
        v = (struct iovec){t->buf + t->end, sizeof(t->buf) - t->end};
        t->end += (unsigned)read_some(s, t, &v, 1);
        if (s->c.err || t->end - t->pos < NB_TCP_FRAME_BYTES)
            return false;
    }
    if (nb_tcp_frame_get(t->buf + t->pos, &t->frame, s->c.key) || t->fin ||
        (t->frame.kind != NB_TCP_DATA && t->frame.kind != NB_TCP_FIN)) {
        protocol_error(s, &t->frame, "an invalid frame header (damaged or misplaced bytes)");
        return false;
    }
    t->pos += NB_TCP_FRAME_BYTES;
    if (t->frame.kind == NB_TCP_FIN)
        t->fin = true;
    else
        t->have = true;
    return true;
}

/* Move payload of the current frame, first from the bytes read ahead, then from the kernel. Return true when
 * it is complete. */
static bool take_payload(struct nb_tcp_recv *s, struct nb_tcp_rstream *t)
{
    size_t n = t->end - t->pos;

    if (n > 0 && t->rest > 0) {
        n = n < t->rest ? n : t->rest;
        memcpy(t->land + t->off, t->buf + t->pos, n);
        t->pos += (unsigned)n;
        t->off += n;
        t->rest -= n;
    }
    while (t->rest > 0) {
        /* A large message is probably followed by another. Reading its header now pays. Its payload would
         * only be copied twice. */
        struct iovec v[2] = {{t->land + t->off, t->rest},
                             {t->buf, t->frame.len < LARGE ? sizeof(t->buf) : HEADER_AHEAD}};

        n = read_some(s, t, v, 2);
        if (n == 0)
            return false;
        t->pos = t->end = 0;
        if (n > t->rest) {
            t->end = (unsigned)(n - t->rest);
            n = t->rest;
        }
        t->off += n;
        t->rest -= n;
    }
    return true;
}

/* Move one stream as far as it goes. Return true when something moved. */
static bool pump_stream(struct nb_tcp_recv *s, struct nb_tcp_rstream *t)
{
    bool moved = false;

    while (!s->c.err && (t->have || s->c.unfinished > 0)) {
        if (!t->have) {
            if (!next_frame(s, t))
                break;
            moved = true;
            if (!t->have)
                continue;
        }
        if (!t->buffer && !t->parked) {
            if (!place(s, t))
                break;
            moved = true;
        }
        if (!take_payload(s, t))
            break;
        frame_done(s, t);
        moved = true;
    }
    return moved;
}

/* Fail the connection when receives wait although every stream has ended at a message's border, or is parked
 * behind a message that can only arrive on an ended stream. */
static void check_end(struct nb_tcp_recv *s)
{
    bool fin = true;

    if (s->c.err || s->c.unfinished == 0)
        return;
    for (int i = 0; i < s->c.nstreams; i++) {
        struct nb_tcp_rstream *t = &s->stream[i];

        if (t->have ? t->buffer || t->parked || (int32_t)(t->frame.seq - s->c.next_seq) <= 0 : !t->eof)
            return;
        fin &= t->fin;
    }
    for (const struct nb_tcp_parked *p = s->parked; p; p = p->next)
        if ((int32_t)(p->frame.seq - s->c.next_seq) <= 0)
            return;
    recv_fail(s, -ECONNRESET, fin, fin ? "closed by the peer in order" : "the peer ended the connection");
}

static void pump(struct nb_tcp_recv *s)
{
    bool moved = true;

    for (int i = 0; i < s->c.nstreams; i++)
        s->stream[i].drained = false;
    /* Repeat while something moved: matching a message on one stream frees parked streams. */
    while (moved && !s->c.err && s->c.unfinished > 0) {
        moved = s->parked && unpark(s);
        for (int i = 0; i < s->c.nstreams; i++)
            moved |= pump_stream(s, &s->stream[i]);
        if (s->c.nstreams == 1 && !s->parked)
            break;
    }
    send_answer(s);
    check_end(s);
}

int nb_tcp_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                 void **request)
{
    struct nb_tcp_recv *s = recv_comm;
    struct nb_tcp_rreq *r;
    bool ready = s->parked != NULL;

    (void)mhandles;
    *request = NULL;
    if (n < 1 || n > (s->ordered ? 1 : NB_NET_MAX_RECVS))
        return -EINVAL;
    for (int i = 0; i < n; i++) {
        if (!data[i] && sizes[i])
            return -EINVAL;
    }
    r = s->c.err ? NULL : nb_net_req_get(&s->c.reqs);
    if (!r)
        return s->c.err;
    r->n = r->left = n;
    for (int i = 0; i < n; i++) {
        r->buffer[i] = (struct nb_tcp_buffer){.req = r,
                                              .data = data[i],
                                              .land = data[i],
                                              .cap = sizes[i],
                                              .tag = tags ? tags[i] : 0,
                                              .coded = r->buffer[i].coded};
        if (s->ordered)
            r->buffer[i].seq = s->next_post++;
        *s->posted_end = &r->buffer[i];
        s->posted_end = &r->buffer[i].next;
    }
    if (s->ordered) {
        r->later = NULL;
        *s->oldest_end = r;
        s->oldest_end = &r->later;
    }
    s->c.unfinished++;
    /* Bytes that are already in our memory do not wake an owner that sleeps on the sockets, so move them
     * here. Bytes in the kernel can wait for test. */
    for (int i = 0; i < s->c.nstreams; i++)
        ready |= s->stream[i].have || s->stream[i].end > s->stream[i].pos || s->stream[i].eof;
    if (ready)
        pump(s);
    if (s->c.err && !r->head.done)
        return s->c.err;
    *request = r;
    return 0;
}

/* Take a receive that tests done out of the list. It is the oldest, or close to it. */
static void forget(struct nb_tcp_recv *s, const struct nb_tcp_rreq *r)
{
    struct nb_tcp_rreq **p = &s->oldest;

    while (*p != r)
        p = &(*p)->later;
    *p = r->later;
    if (!r->later)
        s->oldest_end = p;
}

int nb_tcp_recv_test(struct nb_tcp_rreq *r, int *done, size_t *sizes)
{
    struct nb_tcp_recv *s = r->head.comm;

    *done = 0;
    if (!r->head.done && !s->c.err)
        pump(s);
    if (!r->head.done)
        return s->c.err;
    *done = 1;
    for (int i = 0; sizes && i < r->n; i++)
        sizes[i] = r->buffer[i].size;
    if (s->ordered)
        forget(s, r);
    nb_tcp_comm_tested(&s->c, &r->head);
    return 0;
}

int nb_tcp_recv_poll(struct nb_tcp_recv *s, struct pollfd *fds, int max)
{
    const bool done = s->ordered ? s->oldest && s->oldest->head.done : s->c.done_untested > 0;
    int n = 0;

    if (s->c.err || done || s->answer.left || max < s->c.nstreams)
        return -1;
    if (s->c.unfinished == 0)
        return 0;
    for (int i = 0; i < s->c.nstreams; i++) {
        struct nb_tcp_rstream *t = &s->stream[i];

        /* Do not poll a stream whose next message has no place yet: its socket has readable bytes that must
         * wait. */
        if (!t->eof && (!t->have || t->buffer || t->parked || s->asked))
            fds[n++] = (struct pollfd){.fd = t->fd, .events = POLLIN};
    }
    return n;
}

/* Return the socket of a connection with a single one. Several sockets have no common descriptor. Bytes that
 * were read ahead into our memory are handled when a receive is posted. */
int nb_tcp_watch_fd(void *recv_comm)
{
    const struct nb_tcp_recv *s = recv_comm;

    return s->c.nstreams > 1 ? -1 : s->stream[0].fd;
}

unsigned nb_tcp_ordered(void *recv_comm)
{
    struct nb_tcp_recv *s = recv_comm;

    if (s->c.nstreams == 1 || s->granted || s->c.unfinished || s->c.done_untested)
        return 0;
    s->ordered = true;
    s->next_post = s->c.next_seq;
    return NB_TCP_REQ_MAX;
}

int nb_tcp_close_recv(void *recv_comm)
{
    struct nb_tcp_recv *s = recv_comm;

    if (!s)
        return 0;
    send_answer(s);
    if (!s->c.err && !s->answer.left) {
        struct nb_tcp_frame fin = {.seq = s->c.next_seq, .kind = NB_TCP_FIN};
        uint8_t b[NB_TCP_FRAME_BYTES];

        /* The kernel answers unreceived messages with a reset. By the reset alone the sender could not tell
         * this close from a crash. */
        nb_tcp_frame_put(b, &fin, s->c.key);
        (void)!send(s->stream[0].fd, b, sizeof(b), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    for (int i = 0; i < s->c.nstreams; i++) {
        close(s->stream[i].fd);
        free(s->stream[i].parked);
    }
    for (struct nb_tcp_parked *p = s->parked, *next; p; p = next) {
        next = p->next;
        free(p);
    }
    nb_tcp_deltas_leave(s);
    for (unsigned i = 0; i < s->c.reqs.n; i++)
        for (int j = 0; j < NB_NET_MAX_RECVS; j++)
            free(((struct nb_tcp_rreq *)nb_net_req_at(&s->c.reqs, i))->buffer[j].coded.bytes);
    nb_tcp_comm_fini(&s->c);
    free(s);
    return 0;
}
