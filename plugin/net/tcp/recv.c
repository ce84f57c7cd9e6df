/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiving side of a TCP connection, for one thread at a time. Each stream is a small state machine:
 * frame header, match, payload. Payload goes from the kernel straight to its destination. One read takes the
 * rest of a payload together with up to NB_TCP_READ_AHEAD further bytes, which usually hold the next header.
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

int nb_tcp_recv_new(struct nb_tcp_dev *dev, const int *fds, int n, const uint8_t conn_id[16],
                    struct nb_tcp_recv **comm)
{
    struct nb_tcp_recv *s = calloc(1, sizeof(*s) + (size_t)n * sizeof(s->stream[0]));

    if (!s)
        return -ENOMEM;
    nb_tcp_comm_init(&s->c, dev, false, fds[0], n, conn_id, sizeof(struct nb_tcp_rreq));
    s->posted_end = &s->posted;
    s->kept_end = &s->kept;
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

/* Tell the sender why this side refuses its connection from here on. The sockets stay open until the comm is
 * closed: closing them now, with unread bytes inside, could send a reset that overtakes this frame. */
static void tell_sender(struct nb_tcp_recv *s, const struct nb_tcp_frame *about, int err, size_t cap)
{
    struct nb_tcp_frame f = {
        .seq = about->seq, .tag = err, .size = about->size, .offset = cap, .kind = NB_TCP_ERROR};
    uint8_t b[NB_TCP_FRAME_BYTES];

    nb_tcp_frame_put(b, &f, s->c.key);
    (void)!send(s->stream[0].fd, b, sizeof(b), MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void protocol_error(struct nb_tcp_recv *s, struct nb_tcp_rstream *t, const char *what)
{
    if (s->c.err)
        return;
    tell_sender(s, &t->frame, EPROTO, 0);
    recv_fail(s, -EPROTO, false, "stream %d, message %u of %llu bytes: %s", (int)(t - s->stream),
              t->frame.seq, (unsigned long long)t->frame.size, what);
}

/* Remove and return the oldest receive with this tag that has no message, or return NULL. */
static struct nb_tcp_buffer *take_posted(struct nb_tcp_recv *s, int32_t tag)
{
    for (struct nb_tcp_buffer **p = &s->posted; *p; p = &(*p)->next) {
        struct nb_tcp_buffer *buffer = *p;

        if (buffer->tag != tag)
            continue;
        *p = buffer->next;
        if (!buffer->next)
            s->posted_end = p;
        return buffer;
    }
    return NULL;
}

/* Find the receive for the stream's frame. Return false when there is none yet, or on an error. */
static bool match(struct nb_tcp_recv *s, struct nb_tcp_rstream *t)
{
    const struct nb_tcp_frame *f = &t->frame;
    uint32_t ahead = f->seq - s->c.next_seq;
    struct nb_tcp_buffer *buffer = NULL;

    if (ahead == 0) {
        buffer = take_posted(s, f->tag);
        if (!buffer)
            return false;
        if (f->size > buffer->cap + (f->word >= NB_TCP_DELTA ? NB_TCP_DELTA_BYTES : 0)) {
            tell_sender(s, f, EMSGSIZE, buffer->cap);
            recv_fail(s, -EMSGSIZE, false, "message %u (tag %d) has %llu bytes, its receive takes %zu",
                      f->seq, f->tag, (unsigned long long)f->size, buffer->cap);
            return false;
        }
        s->c.next_seq++;
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
                return false;
            }
        }
        if (f->len < f->size) {
            buffer->next = s->active;
            s->active = buffer;
        }
    } else if (ahead <= NB_TCP_MAX_AHEAD) {
        return false; /* parked until the messages before it are matched */
    } else {
        buffer = s->active;
        while (buffer && buffer->seq != f->seq)
            buffer = buffer->next;
        if (!buffer || buffer->size != f->size || buffer->tag != f->tag || buffer->word != f->word ||
            f->len > buffer->size - buffer->claimed) {
            protocol_error(s, t, "a part that fits no message");
            return false;
        }
    }
    buffer->claimed += f->len;
    t->buffer = buffer;
    t->off = f->offset;
    t->rest = f->len;
    return true;
}

static void message_done(struct nb_tcp_recv *s, struct nb_tcp_buffer *buffer)
{
    struct nb_tcp_rreq *r = buffer->req;

    if (--r->left == 0)
        nb_tcp_comm_done(&s->c, &r->head);
}

/* Carry out the words of complete messages, in the order in which the sender wrote them. */
static void take_kept(struct nb_tcp_recv *s)
{
    while (s->kept && s->kept->complete) {
        struct nb_tcp_buffer *buffer = s->kept;
        const struct nb_tcp_frame f = {.seq = buffer->seq, .size = buffer->size};
        const char *why;
        const int rc = nb_tcp_deltas_take(s, buffer, &why);

        if (rc) {
            tell_sender(s, &f, -rc, buffer->cap);
            recv_fail(s, rc, false, "message %u of %llu bytes: %s", f.seq, (unsigned long long)f.size, why);
            return;
        }
        s->kept = buffer->next_kept;
        if (!s->kept)
            s->kept_end = &s->kept;
        message_done(s, buffer);
    }
}

/* Finish the stream's frame, which is complete. */
static void frame_done(struct nb_tcp_recv *s, struct nb_tcp_rstream *t)
{
    struct nb_tcp_buffer *buffer = t->buffer;

    t->have = false;
    t->buffer = NULL;
    buffer->got += t->frame.len;
    if (buffer->got < buffer->size)
        return;
    if (t->frame.len < buffer->size) {
        struct nb_tcp_buffer **p = &s->active;

        while (*p != buffer)
            p = &(*p)->next;
        *p = buffer->next;
    }
    if (!buffer->word) {
        message_done(s, buffer);
        return;
    }
    buffer->complete = true;
    take_kept(s);
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
    if (nb_tcp_frame_get(t->buf + t->pos, &t->frame, s->c.key) || t->frame.kind == NB_TCP_ERROR || t->fin) {
        protocol_error(s, t, "an invalid frame header (damaged or misplaced bytes)");
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
        memcpy(t->buffer->land + t->off, t->buf + t->pos, n);
        t->pos += (unsigned)n;
        t->off += n;
        t->rest -= n;
    }
    while (t->rest > 0) {
        /* A large message is probably followed by another. Reading its header now pays. Its payload would
         * only be copied twice. */
        struct iovec v[2] = {{t->buffer->land + t->off, t->rest},
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
        if (!t->buffer) {
            if (!match(s, t))
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

        if (t->have ? t->buffer || (int32_t)(t->frame.seq - s->c.next_seq) <= 0 : !t->eof)
            return;
        fin &= t->fin;
    }
    recv_fail(s, -ECONNRESET, fin, fin ? "closed by the peer in order" : "the peer ended the connection");
}

static void pump(struct nb_tcp_recv *s)
{
    bool moved = true;

    for (int i = 0; i < s->c.nstreams; i++)
        s->stream[i].drained = false;
    /* Repeat while something moved: matching a message on one stream frees parked streams. */
    while (moved && !s->c.err && s->c.unfinished > 0) {
        moved = false;
        for (int i = 0; i < s->c.nstreams; i++)
            moved |= pump_stream(s, &s->stream[i]);
        if (s->c.nstreams == 1)
            break;
    }
    check_end(s);
}

int nb_tcp_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                 void **request)
{
    struct nb_tcp_recv *s = recv_comm;
    struct nb_tcp_rreq *r;
    bool ready = false;

    (void)mhandles;
    *request = NULL;
    if (n < 1 || n > NB_NET_MAX_RECVS)
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
        *s->posted_end = &r->buffer[i];
        s->posted_end = &r->buffer[i].next;
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
    nb_tcp_comm_tested(&s->c, &r->head);
    return 0;
}

int nb_tcp_recv_poll(struct nb_tcp_recv *s, struct pollfd *fds, int max)
{
    int n = 0;

    if (s->c.err || s->c.done_untested > 0 || max < s->c.nstreams)
        return -1;
    if (s->c.unfinished == 0)
        return 0;
    for (int i = 0; i < s->c.nstreams; i++) {
        struct nb_tcp_rstream *t = &s->stream[i];

        /* Do not poll a stream whose next message has no place yet: its socket has readable bytes that must
         * wait. */
        if (!t->eof && (!t->have || t->buffer))
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

int nb_tcp_close_recv(void *recv_comm)
{
    struct nb_tcp_recv *s = recv_comm;

    if (!s)
        return 0;
    if (!s->c.err) {
        struct nb_tcp_frame fin = {.seq = s->c.next_seq, .kind = NB_TCP_FIN};
        uint8_t b[NB_TCP_FRAME_BYTES];

        /* The kernel answers unreceived messages with a reset. By the reset alone the sender could not tell
         * this close from a crash. */
        nb_tcp_frame_put(b, &fin, s->c.key);
        (void)!send(s->stream[0].fd, b, sizeof(b), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    for (int i = 0; i < s->c.nstreams; i++)
        close(s->stream[i].fd);
    nb_tcp_deltas_leave(s);
    for (unsigned i = 0; i < s->c.reqs.n; i++)
        for (int j = 0; j < NB_NET_MAX_RECVS; j++)
            free(((struct nb_tcp_rreq *)nb_net_req_at(&s->c.reqs, i))->buffer[j].coded.bytes);
    nb_tcp_comm_fini(&s->c);
    free(s);
    return 0;
}
