/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A long path in user space, for kernels without netem: the frames of N TAP interfaces, each the link of a
 * host, pass to each other with a rate, a delay, jitter, a queue, losses and frames out of order. wan.sh
 * builds and runs it.
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
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define HOSTS 16
#define FRAME 65600 /* bytes of a frame at most */
#define BATCH 64    /* frames read from a host in a row */
#define NEVER INT64_MAX

struct frame {
    struct frame *next;
    int64_t at;
    int to; /* host, or -1: all others */
    size_t len;
    uint8_t bytes[];
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
    ifr.ifr_flags = IFF_TAP | IFF_NO_PI;
    snprintf(ifr.ifr_name, sizeof(ifr.ifr_name), "wan%d", number);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &ifr)) {
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

static void take(struct host *h, const uint8_t *bytes, size_t len, int64_t now)
{
    struct line *line = &h->usual;
    struct frame *f;
    int64_t at;

    if (len < 14)
        return;
    memcpy(h->address, bytes + 6, 6);
    h->known = true;
    if (draw() < loss || (now >= outage_from && now < outage_to))
        return;
    at = pass(&h->sends, now, len);
    if (at == NEVER || !(f = malloc(sizeof(*f) + len)))
        return;
    at += delay;
    if (jitter)
        at += (int64_t)((uint64_t)jitter * draw() >> 32);
    if (late && draw() < late) {
        line = &h->late;
        at += delay / 4;
    }
    line->last = at > line->last ? at : line->last;
    *f = (struct frame){.at = line->last, .to = host_of(bytes), .len = len};
    memcpy(f->bytes, bytes, len);
    *line->end = f;
    line->end = &f->next;
}

/* Read what a host has sent. Return whether there may be more. */
static bool read_host(struct host *h)
{
    static uint8_t bytes[FRAME];

    for (int i = 0; i < BATCH; i++) {
        const ssize_t n = read(h->fd, bytes, sizeof(bytes));

        if (n <= 0)
            return false;
        take(h, bytes, (size_t)n, now_ns());
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

        for (int i = 0; i < hosts; i++)
            if (i != h - host &&
                (f->to == i || f->to < 0)) /* the receiver's own queue drops what is too much */
                if (pass(&host[i].receives, f->at, f->len) != NEVER)
                    (void)!write(host[i].fd, f->bytes, f->len);
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
