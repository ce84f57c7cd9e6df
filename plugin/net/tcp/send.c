/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sending side of a TCP connection, for one thread at a time. Messages wait in one queue. They are cut
 * into frames when a stream has room for them, and leave in gather writes of up to NB_TCP_BATCH frames. A
 * message of up to STRIPE_MAX goes to one stream. The streams take turns after each quantum, or when the
 * kernel takes no more.
 */
#include "net/tcp/internal.h"

#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/log.h"

#define STRIPE_MAX 524288 /* longest part of a message on several streams: a slow stream holds up little */
#define FRAME_MAX (1u << 30)
#define PEEK_EVERY 16 /* isends between reads of the reverse direction */
#define STALL_CHECK_MS 5000

int nb_tcp_send_new(struct nb_tcp_dev *dev, const int *fds, int n, const uint8_t conn_id[16],
                    const struct nb_net_conn_cfg *cfg, struct nb_tcp_send **comm)
{
    struct nb_tcp_send *s = calloc(1, sizeof(*s) + (size_t)n * sizeof(s->stream[0]));
    bool paced;

    if (!s)
        return -ENOMEM;
    nb_tcp_comm_init(&s->c, dev, true, fds[0], n, conn_id, sizeof(struct nb_tcp_sreq));
    s->queue_end = &s->queue;
    s->waiting_end = &s->waiting;
    s->wait_fd = -1;
    s->lazy = cfg && cfg->lazy;
    s->urgent = cfg && cfg->urgent;
    s->moved_ms = s->checked_ms = nb_clock_ms(dev->tcp->clock);
    paced = dev->pace && !s->urgent;
    for (int i = 0; i < n; i++) {
        s->stream[i].fd = fds[i];
        if ((cfg && cfg->shallow) || paced)
            nb_tcp_unsent_start(&s->stream[i].unsent, fds[i]);
        if (paced)
            nb_tcp_pace_socket(fds[i], dev->tcp->conf.pace, n);
    }
    *comm = s;
    return 0;
}

/* Record and log the connection's first error, and shut the sockets down, so that the peer learns of it,
 * too. */
__attribute__((format(printf, 3, 4))) static void send_fail(struct nb_tcp_send *s, int err, const char *fmt,
                                                            ...)
{
    char why[256];
    va_list ap;

    if (s->c.err)
        return;
    s->c.err = err;
    va_start(ap, fmt);
    vsnprintf(why, sizeof(why), fmt, ap);
    va_end(ap);
    NB_WARN("tcp: sending from %s to %s failed: %s. %d sends are lost", s->c.local, s->c.peer, why,
            s->c.unfinished);
    for (int i = 0; i < s->c.nstreams; i++)
        shutdown(s->stream[i].fd, SHUT_RDWR);
}

/* Return whether the peer can have received only a part of some message. */
static bool inside_message(const struct nb_tcp_send *s)
{
    if (s->queue && s->queue->assigned > 0)
        return true;
    for (int i = 0; i < s->c.nstreams; i++) {
        const struct nb_tcp_sstream *t = &s->stream[i];

        if (t->count > 0 && (t->written > 0 || t->out[t->first].len < t->out[t->first].req->size))
            return true;
    }
    return false;
}

/* Note that the peer closed in order after all sent messages. A caller that sends more decides whether that
 * matters. */
static void peer_left(struct nb_tcp_send *s)
{
    s->c.err = -ECONNRESET;
    NB_INFO(NCCL_NET, "tcp: %s, to which %s sends, has closed the connection", s->c.peer, s->c.local);
    for (int i = 0; i < s->c.nstreams; i++)
        shutdown(s->stream[i].fd, SHUT_RDWR);
}

static void system_error(struct nb_tcp_send *s, int err)
{
    send_fail(s, err == EPIPE ? -ECONNRESET : -err, "%s%s", strerror(err), nb_net_hint(err));
}

/* Cut a message into as few parts as possible, of similar length. Each part costs a call at both ends and
 * ends in a short packet, and the messages in flight keep the streams busy (docs/performance.md,
 * "Point-to-point beside iperf3"). NCCL's messages are of 512 KiB and travel whole. */
static uint32_t chunk_for(size_t size, int streams)
{
    const size_t parts = size / STRIPE_MAX + (size % STRIPE_MAX != 0);

    if (streams == 1 || parts < 2)
        return FRAME_MAX;
    return (uint32_t)(((size + parts - 1) / parts + 4095) & ~(size_t)4095);
}

/* Take the oldest unconfirmed message, all of whose bytes were written. Return NULL where there is none. */
static struct nb_tcp_sreq *take_waiting(struct nb_tcp_send *s)
{
    struct nb_tcp_sreq *r = s->waiting;

    if (!r || r->frames > 0 || r->assigned < r->size)
        return NULL;
    s->waiting = r->next_waiting;
    if (!s->waiting)
        s->waiting_end = &s->waiting;
    r->waiting = false;
    return r;
}

/* Carry out a CONFIRM or AGAIN frame. Return false when it names a message that was not sent. */
static bool confirmed(struct nb_tcp_send *s, const struct nb_tcp_frame *f)
{
    struct nb_tcp_sreq *r;

    if ((int32_t)(f->seq - s->c.next_seq) > 0)
        return false;
    while (s->waiting && (int32_t)(f->seq - s->waiting->seq) > 0) {
        r = take_waiting(s);
        if (!r)
            return false;
        nb_tcp_comm_done(&s->c, &r->head);
    }
    if (f->kind == NB_TCP_CONFIRM) {
        if (s->deltas)
            nb_tcp_deltas_confirmed(s, f->seq);
        return true;
    }
    r = s->waiting && s->waiting->seq == f->seq ? take_waiting(s) : NULL;
    if (!r)
        return false;
    nb_tcp_deltas_again(s, r->seq);
    r->data = r->plain;
    r->size = r->whole;
    r->chunk = chunk_for(r->size, s->c.nstreams);
    r->word = (uint16_t)(NB_TCP_KEEP | (r->word & (NB_TCP_SLOTS - 1)));
    r->assigned = 0;
    r->next = s->queue;
    if (!s->queue)
        s->queue_end = &r->next;
    s->queue = r;
    return true;
}

/* Read the reverse direction: no bytes, a frame, or the end. Return true when there may be more. When the
 * peer has closed with unread bytes of ours, the frame arrives before the reset that follows it. The kernel
 * reports an error of a socket only once and then shows the end of the stream. So an error of a write
 * (`cause`) stands, unless it says no more than the end does. */
static bool read_back(struct nb_tcp_send *s, int cause)
{
    const bool ended = cause == 0 || cause == EPIPE || cause == ECONNRESET;
    struct nb_tcp_frame f;
    ssize_t n;

    do
        n = recv(s->stream[0].fd, s->back + s->back_have, sizeof(s->back) - s->back_have, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n > 0) {
        s->back_have += (unsigned)n;
        if (s->back_have < sizeof(s->back))
            return true;
        s->back_have = 0;
        if (nb_tcp_frame_get(s->back, &f, s->c.key) || f.kind == NB_TCP_DATA)
            send_fail(s, -EPROTO, "the peer answered with bytes of another protocol");
        else if (f.kind == NB_TCP_CONFIRM || f.kind == NB_TCP_AGAIN) {
            if (confirmed(s, &f))
                return true;
            send_fail(s, -EPROTO, "the peer confirmed message %u, which was not sent", f.seq);
        } else if (f.kind == NB_TCP_FIN && !s->waiting && !inside_message(s))
            peer_left(s);
        else if (f.kind == NB_TCP_FIN)
            send_fail(s, -ECONNRESET, "the peer has closed the connection");
        else if (f.tag == EMSGSIZE)
            send_fail(s, -EMSGSIZE, "message %u has %llu bytes but the peer's receive takes %llu", f.seq,
                      (unsigned long long)f.size, (unsigned long long)f.offset);
        else
            send_fail(s, -EPROTO, "the peer gave up at message %u: %s", f.seq, strerror(f.tag));
        return false;
    }
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
        system_error(s, errno);
    else if (!ended || (n < 0 && cause))
        system_error(s, cause);
    else if (n == 0 && s->c.unfinished == 0)
        peer_left(s);
    else if (n == 0)
        send_fail(s, -ECONNRESET, "the peer has closed the connection");
    return false;
}

static void look_back(struct nb_tcp_send *s, int cause)
{
    while (!s->c.err && read_back(s, cause))
        ;
}

/* Bind bytes of the queue to an empty stream: many small messages, then at most one piece of a large message,
 * so that the remaining streams get their pieces. */
static void fill(struct nb_tcp_send *s, struct nb_tcp_sstream *t)
{
    size_t bytes = 0;

    t->first = t->count = 0;
    t->written = 0;
    while (s->queue && t->count < NB_TCP_BATCH && (bytes < NB_TCP_QUANTUM || t->count == 0)) {
        struct nb_tcp_sreq *r = s->queue;
        struct nb_tcp_out *o = &t->out[t->count++];
        size_t rest = r->size - r->assigned;
        struct nb_tcp_frame f = {.seq = r->seq,
                                 .tag = r->tag,
                                 .size = r->size,
                                 .offset = r->assigned,
                                 .len = rest < r->chunk ? (uint32_t)rest : r->chunk,
                                 .kind = NB_TCP_DATA,
                                 .word = r->word};

        nb_tcp_frame_put(o->hdr, &f, s->c.key);
        o->len = f.len;
        o->data = r->data + r->assigned;
        o->req = r;
        r->frames++;
        r->assigned += f.len;
        bytes += f.len;
        if (r->assigned == r->size) {
            s->queue = r->next;
            if (!s->queue)
                s->queue_end = &s->queue;
        }
        if (f.len < r->size)
            break;
    }
}

/* Note that `n` more bytes of the stream's frames are in the kernel. */
static void advance(struct nb_tcp_send *s, struct nb_tcp_sstream *t, size_t n)
{
    s->c.wire += n;
    t->turn += n;
    t->written += n;
    while (t->count > 0) {
        struct nb_tcp_out *o = &t->out[t->first];
        size_t whole = NB_TCP_FRAME_BYTES + (size_t)o->len;
        struct nb_tcp_sreq *r = o->req;

        if (t->written < whole)
            break;
        t->written -= whole;
        t->first++;
        t->count--;
        if (--r->frames == 0 && r->assigned == r->size && !r->waiting)
            nb_tcp_comm_done(&s->c, &r->head);
    }
}

/* Shorten the vector to the bytes that the pace allows, and return their number. */
static size_t apply_pace(struct nb_tcp_send *s, struct iovec *v, size_t *nv, size_t total)
{
    size_t allow = nb_tcp_pace_take(s->c.dev->pace, total), sum = 0;

    for (size_t i = 0; i < *nv; i++) {
        if (sum + v[i].iov_len >= allow) {
            v[i].iov_len = allow - sum;
            *nv = i + 1;
            break;
        }
        sum += v[i].iov_len;
    }
    return allow;
}

/* Write the frames bound to the stream, once. Return true when bytes moved and more may. */
static bool flush(struct nb_tcp_send *s, struct nb_tcp_sstream *t)
{
    struct iovec v[2 * NB_TCP_BATCH];
    struct msghdr m = {.msg_iov = v};
    size_t nv = 0, skip = t->written, total = 0;
    ssize_t n;
    int err = 0;

    for (int i = t->first; i < t->first + t->count; i++) {
        struct nb_tcp_out *o = &t->out[i];

        if (skip < NB_TCP_FRAME_BYTES) {
            v[nv++] = (struct iovec){o->hdr + skip, NB_TCP_FRAME_BYTES - skip};
            skip = 0;
        } else {
            skip -= NB_TCP_FRAME_BYTES;
        }
        if (o->len > skip)
            v[nv++] = (struct iovec){(void *)(uintptr_t)(o->data + skip), o->len - skip};
        skip = 0;
    }
    for (size_t i = 0; i < nv; i++)
        total += v[i].iov_len;
    if (s->c.dev->pace && !s->urgent) {
        total = apply_pace(s, v, &nv, total);
        t->paced = total == 0;
        if (t->paced) {
            t->blocked = true;
            return false;
        }
    }
    m.msg_iovlen = nv;
    do
        n = sendmsg(t->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        err = errno;
    if (s->c.dev->pace && s->urgent)
        nb_tcp_pace_charge(s->c.dev->pace, n < 0 ? 0 : (size_t)n);
    else if (s->c.dev->pace && (n < 0 || (size_t)n < total))
        nb_tcp_pace_give_back(s->c.dev->pace, total - (n < 0 ? 0 : (size_t)n));
    if (n >= 0)
        advance(s, t, (size_t)n);
    if (t->unsent.limit && t->count == 0 && !s->queue)
        nb_tcp_unsent_idle(&t->unsent);
    else if (t->unsent.limit)
        nb_tcp_unsent_wrote(&t->unsent, t->fd, n >= 0 ? (size_t)n : 0, n < 0 || (size_t)n < total,
                            nb_clock_ns(s->c.dev->tcp->clock));
    if (n >= 0) {
        s->moved_ms = 0; /* set when the clock is read next */
        /* After a short write the kernel is full: another write would only report that. */
        t->blocked = (size_t)n < total;
        return !t->blocked;
    }
    t->blocked = true;
    if (err != EAGAIN && err != EWOULDBLOCK && err != ENOBUFS)
        look_back(s, err); /* the peer may have sent the reason before it hung up */
    return false;
}

/* Fail the connection when data stays unacknowledged although the kernel keeps sending it: the peer's host or
 * the path to it is gone. A late peer keeps acknowledging with a closed window. TCP_USER_TIMEOUT would take
 * that for death, hence this check instead. */
static void check_stall(struct nb_tcp_send *s)
{
    int64_t now = nb_clock_ms(s->c.dev->tcp->clock);

    if (s->moved_ms == 0)
        s->moved_ms = s->checked_ms = now;
    if (now - s->moved_ms < STALL_CHECK_MS || now - s->checked_ms < STALL_CHECK_MS)
        return;
    s->checked_ms = now;
    for (int i = 0; i < s->c.nstreams; i++) {
        struct tcp_info info;
        socklen_t len = sizeof(info);

        if ((s->stream[i].count == 0 && !s->waiting) ||
            getsockopt(s->stream[i].fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0)
            continue;
        /* Probes of a closed window are up to 2 minutes apart, and one alone may get lost. */
        if ((info.tcpi_retransmits >= 3 || info.tcpi_probes >= 2) &&
            (int64_t)info.tcpi_last_ack_recv > s->c.dev->tcp->conf.dead_ms) {
            send_fail(
                s, -ETIMEDOUT,
                "no acknowledgement for %u s: host down, network cut, or packets of %u bytes (MTU) lost",
                info.tcpi_last_ack_recv / 1000, info.tcpi_pmtu);
            return;
        }
    }
}

/* Move all streams until all bytes are written or no stream moves. */
static void pump(struct nb_tcp_send *s)
{
    int n = s->c.nstreams, stuck = 0;

    for (int i = 0; i < n && !s->c.err; i++) {
        struct nb_tcp_sstream *t = &s->stream[i];

        t->blocked = false;
        while (t->count > 0 && flush(s, t))
            ;
    }
    while (s->queue && stuck < n && !s->c.err) {
        struct nb_tcp_sstream *t = &s->stream[s->cur];

        if (!t->blocked) {
            stuck = 0;
            fill(s, t);
            while (t->count > 0 && flush(s, t))
                ;
        }
        if (t->blocked || t->turn >= NB_TCP_QUANTUM) {
            stuck += t->blocked;
            t->turn = 0;
            s->cur = s->cur + 1 < n ? s->cur + 1 : 0;
        }
    }
}

int nb_tcp_isend(void *send_comm, const void *data, size_t size, int tag, void *mhandle, void **request)
{
    struct nb_tcp_send *s = send_comm;
    struct nb_tcp_sreq *r;

    (void)mhandle;
    *request = NULL;
    if (size > NB_TCP_MAX_MESSAGE || (!data && size))
        return -EINVAL;
    if (s->peeked++ % PEEK_EVERY == 0)
        look_back(s, 0);
    r = s->c.err ? NULL : nb_net_req_get(&s->c.reqs);
    if (!r)
        return s->c.err;
    r->next = NULL;
    r->data = r->plain = data;
    r->size = r->whole = size;
    r->word = NB_TCP_PLAIN;
    r->waiting = false;
    if (s->deltas)
        r->word = nb_tcp_deltas_plan(s, data, size, tag, &r->coded, &r->size);
    if (r->word >= NB_TCP_DELTA)
        r->data = r->coded.bytes;
    if (nb_tcp_is_confirmed(r->word)) {
        r->waiting = true;
        r->next_waiting = NULL;
        *s->waiting_end = r;
        s->waiting_end = &r->next_waiting;
    }
    r->assigned = 0;
    r->chunk = chunk_for(r->size, s->c.nstreams);
    r->seq = s->c.next_seq++;
    r->tag = tag;
    r->frames = 0;
    *s->queue_end = r;
    s->queue_end = &r->next;
    s->c.unfinished++;
    if (!s->lazy || s->c.unfinished >= NB_TCP_BATCH)
        pump(s);
    if (!s->c.err)
        *request = r;
    return s->c.err;
}

int nb_tcp_send_test(struct nb_tcp_sreq *r, int *done, size_t *sizes)
{
    struct nb_tcp_send *s = r->head.comm;

    *done = 0;
    if (!r->head.done && !s->c.err) {
        pump(s);
        if (!r->head.done && !s->c.err) {
            if (!s->lazy || s->waiting || s->peeked++ % PEEK_EVERY == 0)
                look_back(s, 0);
            if (s->queue) /* perhaps a message is to be sent again */
                pump(s);
            if (!s->c.err)
                check_stall(s);
        }
    }
    if (!r->head.done)
        return s->c.err;
    *done = 1;
    if (sizes)
        sizes[0] = r->whole;
    nb_tcp_comm_tested(&s->c, &r->head);
    return 0;
}

/* Return the timer of a comm that the pace holds back, armed for the time when it may continue. */
static int pace_timer(struct nb_tcp_send *s)
{
    int64_t ns = nb_tcp_pace_wait_ns(s->c.dev->pace);
    struct itimerspec it = {.it_value = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000}};

    if (s->wait_fd < 0)
        s->wait_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (s->wait_fd < 0)
        return -1;
    if (ns == 0)
        it.it_value.tv_nsec = 1; /* zero would disarm it */
    return timerfd_settime(s->wait_fd, 0, &it, NULL) ? -1 : s->wait_fd;
}

int nb_tcp_send_poll(struct nb_tcp_send *s, struct pollfd *fds, int max)
{
    bool paced = false;
    int n = 0;

    if (s->c.err || s->c.done_untested > 0 || (s->lazy && s->queue && s->stream[0].count == 0))
        return -1;
    if (s->c.unfinished == 0)
        return 0;
    if (max < s->c.nstreams + 1)
        return -1;
    for (int i = 0; i < s->c.nstreams; i++) {
        struct nb_tcp_sstream *t = &s->stream[i];
        short ev = t->count > 0 && !t->paced ? POLLOUT : 0;

        paced |= t->count > 0 && t->paced;
        if (i == 0)
            ev |= POLLIN;
        if (ev)
            fds[n++] = (struct pollfd){.fd = t->fd, .events = ev};
    }
    if (paced) {
        int fd = pace_timer(s);

        if (fd < 0)
            return -1;
        fds[n++] = (struct pollfd){.fd = fd, .events = POLLIN};
    }
    return n;
}

int nb_tcp_lost(void *send_comm)
{
    struct nb_tcp_send *s = send_comm;

    for (int i = 0; i < s->c.nstreams && !s->c.err; i++) {
        char c;
        ssize_t n = recv(s->stream[i].fd, &c, 1, MSG_PEEK | MSG_DONTWAIT);

        if (n >= 0) /* the end, or an ERROR or FIN frame before it */
            s->c.err = -ECONNRESET;
        else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
            s->c.err = -errno;
    }
    return s->c.err;
}

/* Any thread may ask: the sockets stay the same from the beginning to the end. */
uint64_t nb_tcp_resent(void *send_comm)
{
    const struct nb_tcp_send *s = send_comm;
    uint64_t n = 0;

    for (int i = 0; i < s->c.nstreams; i++) {
        struct tcp_info info;
        socklen_t len = sizeof(info);

        if (getsockopt(s->stream[i].fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0)
            n += info.tcpi_total_retrans;
    }
    return n;
}

uint32_t nb_tcp_round_trip_us(void *send_comm)
{
    const struct nb_tcp_send *s = send_comm;
    struct tcp_info info;
    socklen_t len = sizeof(info);

    return getsockopt(s->stream[0].fd, IPPROTO_TCP, TCP_INFO, &info, &len) ? 0 : info.tcpi_rtt;
}

int nb_tcp_close_send(void *send_comm)
{
    struct nb_tcp_send *s = send_comm;

    if (!s)
        return 0;
    for (int i = 0; i < s->c.nstreams; i++) {
        struct nb_tcp_sstream *t = &s->stream[i];

        if (!s->c.err && s->c.unfinished == 0) {
            struct nb_tcp_frame fin = {.seq = s->c.next_seq, .kind = NB_TCP_FIN};
            uint8_t b[NB_TCP_FRAME_BYTES];

            /* Best effort: without the frame a receiver that waits for more takes the end of the stream for a
             * crash. An incomplete frame is dropped with the socket's last bytes. */
            nb_tcp_frame_put(b, &fin, s->c.key);
            (void)!send(t->fd, b, sizeof(b), MSG_NOSIGNAL | MSG_DONTWAIT);
        }
        /* The peer sends at most an ERROR frame, or a FIN when it stops receiving, since all CONFIRM frames
         * have been read when no send is unfinished. No unread bytes can therefore turn this close into a
         * reset: the kernel delivers the bytes in the socket, then ends the stream. */
        close(t->fd);
    }
    if (s->wait_fd >= 0)
        close(s->wait_fd);
    nb_tcp_deltas_end(s);
    for (unsigned i = 0; i < s->c.reqs.n; i++)
        free(((struct nb_tcp_sreq *)nb_net_req_at(&s->c.reqs, i))->coded.bytes);
    nb_tcp_comm_fini(&s->c);
    free(s);
    return 0;
}
