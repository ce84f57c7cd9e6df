/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A long path in user space, for kernels without netem: the frames of N TAP interfaces, each the link of a
 * host, pass to each other with a rate, a delay, jitter, a queue, losses and frames out of order. wan.sh
 * builds and runs it.
 *
 * A host hands over up to 64 KiB of a TCP connection at once, as to an adapter that cuts frames itself. Rate,
 * queue and draws count the frames that such an adapter would make of it. The relay joins the frames that
 * pass into as few pieces as their order allows, like an adapter that joins frames, and hands these to the
 * receiver. So the path costs the processor little beside the hosts' own work.
 *
 *   relay HOSTS MBPS DELAY_US JITTER_US QUEUE_BYTES LOSS_PERCENT LATE_PERCENT OUTAGE_AT_MS OUTAGE_MS
 *
 * makes wan0, wan1, ... and prints "ready". Host i's frames leave at its rate, one after the other, wait
 * DELAY_US and reach the host that has their address, at that host's rate. The delay grows by up to
 * JITTER_US, in order: a frame also waits for the frames before it. LATE_PERCENT of the frames wait a quarter
 * of the delay longer, and other frames pass them. A frame that finds QUEUE_BYTES before it is dropped, as
 * are LOSS_PERCENT of all frames, and all frames of the outage. Draws come from a fixed seed. The relay ends
 * with its standard input.
 */
#define _GNU_SOURCE /* ppoll */
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define HOSTS 16
#define FRAME 66000 /* bytes that a host hands over at most */
#define BATCH 16    /* times that a host is read in a row */
#define NEVER INT64_MAX

struct frame { /* one, or several of a TCP connection with their common header */
    struct frame *next;
    int64_t at;
    int to; /* host, or -1: all others */
    size_t len, on_wire;
    struct virtio_net_hdr cut;
    uint8_t bytes[];
};

/* What a host has handed over, and how it is cut. */
struct given {
    struct virtio_net_hdr cut;
    uint8_t bytes[FRAME];
    size_t len;          /* of bytes */
    size_t header, each; /* bytes of a frame's headers, and of each frame's payload */
};

struct line { /* of frames, in the order of their times */
    struct frame *first, **end;
    int64_t last;
};

static struct host {
    int fd;
    uint8_t address[6];
    bool known;
    int64_t sends, receives; /* when either direction of its link is free */
    struct line usual, late; /* from this host */
} host[HOSTS];

static int hosts;
static double ns_of_byte;
static int64_t delay, jitter, queue_ns, outage_from, outage_to;
static uint64_t random_state = 1, loss, late;

static int64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Return a number below 2^32. */
static uint64_t draw(void)
{
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return random_state >> 32;
}

/* Return the share of draws below which `percent` of them lie. */
static uint64_t share(const char *percent)
{
    return (uint64_t)(atof(percent) / 100 * 4294967296.0);
}

static int open_tap(int number)
{
    struct ifreq ifr;
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);

    memset(&ifr, 0, sizeof(ifr));
    ifr.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
    snprintf(ifr.ifr_name, sizeof(ifr.ifr_name), "wan%d", number);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &ifr) || ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4)) {
        fprintf(stderr, "relay: no TAP interface: %s\n", strerror(errno));
        exit(77);
    }
    return fd;
}

/* Return the host with this address, -1: all hosts. */
static int host_of(const uint8_t *address)
{
    for (int i = 0; i < hosts; i++)
        if (host[i].known && memcmp(host[i].address, address, 6) == 0)
            return i;
    return -1;
}

/* Return when a link that is free at *free has passed the frame, or NEVER when its queue is full. */
static int64_t pass(int64_t *free, int64_t at, size_t len)
{
    const int64_t begins = *free > at ? *free : at;

    if (begins - at > queue_ns)
        return NEVER;
    return *free = begins + (int64_t)((double)len * ns_of_byte);
}

/* ---- cutting ----------------------------------------------------------------------------------------- */

#define ETHERNET 14u

static unsigned get16(const uint8_t *p)
{
    return (unsigned)p[0] << 8 | p[1];
}

static void put16(uint8_t *p, unsigned v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

/* Return the sum of 16-bit words, folded, for a checksum of the Internet. */
static unsigned sum16(const uint8_t *p, size_t len, unsigned sum)
{
    for (size_t i = 0; i + 1 < len; i += 2)
        sum += get16(p + i);
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return sum;
}

/* Find where the frames of TCP over IPv4 end. Anything else is one frame. */
static void measure(struct given *g)
{
    const uint8_t *ip = g->bytes + ETHERNET;
    size_t ip_len, header;

    g->header = 0;
    g->each = g->len;
    if ((g->cut.gso_type & ~VIRTIO_NET_HDR_GSO_ECN) != VIRTIO_NET_HDR_GSO_TCPV4 || !g->cut.gso_size ||
        g->len < ETHERNET + 40)
        return;
    ip_len = (ip[0] & 15u) * 4;
    if (g->len < ETHERNET + ip_len + 20)
        return;
    header = ETHERNET + ip_len + (ip[ip_len + 12] >> 4) * 4u;
    if (g->len <= header)
        return;
    g->header = header;
    g->each = g->cut.gso_size;
}

static size_t frames_of(const struct given *g)
{
    return (g->len - g->header + g->each - 1) / g->each;
}

/* Return frames `from` to `to` - 1 in one piece with headers of their own. NULL: no memory. */
static struct frame *piece(const struct given *g, size_t from, size_t to)
{
    const size_t begin = from * g->each, rest = g->len - g->header;
    const size_t end = to * g->each < rest ? to * g->each : rest, len = g->header + end - begin;
    struct frame *f = malloc(sizeof(*f) + len);
    uint8_t *ip, *tcp, pseudo[4] = {0};
    size_t ip_len;
    uint32_t place;

    if (!f)
        return NULL;
    *f = (struct frame){.len = len, .on_wire = len + (to - from - 1) * g->header, .cut = g->cut};
    memcpy(f->bytes, g->bytes, g->header);
    memcpy(f->bytes + g->header, g->bytes + g->header + begin, end - begin);
    if (!g->header || end - begin == rest)
        return f;
    ip = f->bytes + ETHERNET;
    ip_len = (ip[0] & 15u) * 4;
    tcp = ip + ip_len;
    put16(ip + 2, (unsigned)(len - ETHERNET));
    put16(ip + 4, get16(ip + 4) + (unsigned)from);
    put16(ip + 10, 0);
    put16(ip + 10, ~sum16(ip, ip_len, 0));
    place = (uint32_t)get16(tcp + 4) << 16 | get16(tcp + 6);
    place += (uint32_t)begin;
    put16(tcp + 4, place >> 16);
    put16(tcp + 6, place);
    if (end < rest)
        tcp[13] &= (uint8_t)~0x09; /* FIN and PSH belong to the last frame, */
    if (from)
        tcp[13] &= (uint8_t)~0x80; /* CWR to the first */
    /* The receiver's kernel completes the checksum from that of the pseudo header. */
    pseudo[1] = ip[9];
    put16(pseudo + 2, (unsigned)(len - ETHERNET - ip_len));
    put16(tcp + 16, sum16(ip + 12, 8, sum16(pseudo, sizeof(pseudo), 0)));
    if (to - from == 1) {
        f->cut.gso_type = VIRTIO_NET_HDR_GSO_NONE;
        f->cut.gso_size = 0;
    }
    return f;
}

static void append(struct line *line, struct frame *f, int64_t at)
{
    line->last = at > line->last ? at : line->last;
    f->at = line->last;
    *line->end = f;
    line->end = &f->next;
}

/* Draw each frame's fate, and put those that pass onto their lines, as one piece while fates are the same. */
static void take(struct host *h, struct given *g, int64_t now)
{
    enum { GONE, USUAL, LATE } fate, before = GONE;
    size_t from = 0, frames;
    int64_t at = 0, last = 0;

    if (g->len < ETHERNET)
        return;
    memcpy(h->address, g->bytes + 6, 6);
    h->known = true;
    measure(g);
    frames = frames_of(g);
    for (size_t i = 0; i <= frames; i++, before = fate, last = at) {
        const size_t payload = i + 1 < frames ? g->each : g->len - g->header - (frames - 1) * g->each;

        fate = GONE;
        if (i < frames && draw() >= loss && (now < outage_from || now >= outage_to) &&
            (at = pass(&h->sends, now, g->header + payload)) != NEVER)
            fate = late && draw() < late ? LATE : USUAL;
        if (i == frames || fate != before) {
            struct frame *f = before == GONE ? NULL : piece(g, from, i);

            if (f) {
                f->to = host_of(g->bytes);
                last += delay + (before == LATE ? delay / 4 : 0);
                if (jitter)
                    last += (int64_t)((uint64_t)jitter * draw() >> 32);
                append(before == LATE ? &h->late : &h->usual, f, last);
            }
            from = i;
        }
    }
}

/* Read what a host has sent. Return whether there may be more. */
static bool read_host(struct host *h)
{
    static struct given g;

    for (int i = 0; i < BATCH; i++) {
        struct iovec parts[] = {{&g.cut, sizeof(g.cut)}, {g.bytes, sizeof(g.bytes)}};
        const ssize_t n = readv(h->fd, parts, 2);

        if (n <= (ssize_t)sizeof(g.cut))
            return false;
        g.len = (size_t)n - sizeof(g.cut);
        take(h, &g, now_ns());
    }
    return true;
}

/* Return the line whose first frame comes next, or the usual one when both are empty. */
static struct line *next_line(struct host *h)
{
    return h->late.first && (!h->usual.first || h->late.first->at < h->usual.first->at) ? &h->late
                                                                                        : &h->usual;
}

/* Give the host's frames to their receivers whose time has come. Return when the next one's comes. */
static int64_t deliver(struct host *h, int64_t now)
{
    struct line *line;

    while ((line = next_line(h))->first && line->first->at <= now) {
        struct frame *f = line->first;
        struct iovec parts[] = {{&f->cut, sizeof(f->cut)}, {f->bytes, f->len}};

        for (int i = 0; i < hosts; i++)
            if (i != h - host &&
                (f->to == i || f->to < 0)) /* the receiver's own queue drops what is too much */
                if (pass(&host[i].receives, f->at, f->on_wire) != NEVER)
                    (void)!writev(host[i].fd, parts, 2);
        line->first = f->next;
        if (!line->first)
            line->end = &line->first;
        free(f);
    }
    return line->first ? line->first->at : NEVER;
}

int main(int argc, char **argv)
{
    struct pollfd fds[HOSTS + 1];
    double mbps;

    if (argc != 10 || (hosts = atoi(argv[1])) < 2 || hosts > HOSTS || (mbps = atof(argv[2])) <= 0) {
        fputs("usage: relay HOSTS MBPS DELAY_US JITTER_US QUEUE_BYTES LOSS_PERCENT LATE_PERCENT OUTAGE_AT_MS "
              "OUTAGE_MS\n",
              stderr);
        return 2;
    }
    ns_of_byte = 8000 / mbps;
    delay = (int64_t)(1000 * atof(argv[3]));
    jitter = (int64_t)(1000 * atof(argv[4]));
    queue_ns = (int64_t)(atof(argv[5]) * ns_of_byte);
    loss = share(argv[6]);
    late = share(argv[7]);
    outage_from = now_ns() + (int64_t)(1e6 * atof(argv[8]));
    outage_to = outage_from + (int64_t)(1e6 * atof(argv[9]));
    for (int i = 0; i < hosts; i++) {
        host[i].fd = open_tap(i);
        host[i].usual.end = &host[i].usual.first;
        host[i].late.end = &host[i].late.first;
        fds[i] = (struct pollfd){.fd = host[i].fd, .events = POLLIN};
    }
    fds[hosts] = (struct pollfd){.fd = 0, .events = POLLIN};
    prctl(PR_SET_TIMERSLACK, 1);
    puts("ready");
    fflush(stdout);
    for (;;) {
        int64_t next = NEVER, now = now_ns();
        bool more = false;
        struct timespec wait;

        for (int i = 0; i < hosts; i++) {
            const int64_t at = deliver(&host[i], now);
            next = at < next ? at : next;
        }
        now = now_ns();
        next = next == NEVER ? 1000000000 : next > now ? next - now : 0;
        wait = (struct timespec){next / 1000000000, next % 1000000000};
        if (ppoll(fds, (nfds_t)hosts + 1, &wait, NULL) < 0 && errno != EINTR)
            return 1;
        for (int i = 0; i < hosts; i++)
            more |= read_host(&host[i]);
        if (!more && fds[hosts].revents)
            return 0; /* the script has ended */
    }
}
