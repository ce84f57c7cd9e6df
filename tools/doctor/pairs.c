/* SPDX-License-Identifier: Apache-2.0 */
/* See pairs.h. */
#include "pairs.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "doctor.h"

#define SMALL 64
#define LARGE 65536 /* beyond every MTU */
#define BULK (1u << 20)
#define FIRST (16u << 10) /* bytes of a stream's first message */
#define AHEAD 4           /* messages of a stream in flight */
#define ROUNDS 20

enum step { CONNECT, SEND_SMALL, SEND_LARGE, OVER };

struct out {
    void *conn, *mr, *req;
    enum step step;
    bool failed;
    int err;
    uint8_t handle[NB_NET_HANDLE_BYTES];
    char to[72], cause[320];
};

struct in {
    struct in *next;
    void *conn, *mr, *req;
    enum step step; /* SEND_SMALL, SEND_LARGE, OVER: the next event */
    int peer, dev;  /* of the small message; -1 before */
    bool damaged;
    uint8_t buf[LARGE];
};

struct pairs {
    struct nb_net *net;
    int rank, nodes, ndev;
    int dev; /* of the measurements */
    bool *present;
    void *listener[NB_NET_MAX_DEVS];
    uint8_t *handles;
    struct out *out; /* [nodes][ndev] */
    struct in *in;
    uint8_t *bulk;                        /* (1 + AHEAD) x BULK: sent, received */
    uint8_t small[SMALL + LARGE], *large; /* one block, one registration: the same bytes for every peer */
};

static void pattern(uint8_t *buf, int from)
{
    uint64_t state = (uint64_t)from * 0x9e3779b97f4a7c15u + 1;

    for (size_t i = 0; i < LARGE; i += 8) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        nb_put64(buf + i, state ^ state >> 29);
    }
}

static void pause_shortly(void)
{
    const struct timespec t = {.tv_nsec = 100000};

    nanosleep(&t, NULL);
}

static struct out *out_of(const struct pairs *p, int node, int dev)
{
    return &p->out[(size_t)node * (size_t)p->ndev + (size_t)dev];
}

int pairs_open(struct nb_net *net, int rank, int nodes, struct pairs **result)
{
    struct pairs *p = calloc(1, sizeof(*p));
    int err = p ? net->ops->devices(net, &p->ndev) : -ENOMEM;

    if (err) {
        free(p);
        return err;
    }
    p->net = net;
    p->rank = rank;
    p->nodes = nodes;
    p->present = calloc((size_t)nodes, sizeof(*p->present));
    p->handles = calloc((size_t)p->ndev + 1, NB_NET_HANDLE_BYTES);
    p->out = calloc((size_t)nodes * (size_t)p->ndev + 1, sizeof(*p->out));
    p->bulk = calloc(1 + AHEAD, BULK);
    err = p->present && p->handles && p->out && p->bulk ? 0 : -ENOMEM;
    for (int i = 0; i < p->ndev && !err; i++)
        err = net->ops->listen(net, i, p->handles + (size_t)i * NB_NET_HANDLE_BYTES, &p->listener[i]);
    if (err) {
        pairs_close(p);
        return err;
    }
    p->large = p->small + SMALL;
    nb_put32(p->small, (uint32_t)rank);
    pattern(p->large, rank);
    *result = p;
    return 0;
}

const void *pairs_handles(const struct pairs *p, size_t *len)
{
    *len = (size_t)p->ndev * NB_NET_HANDLE_BYTES;
    return p->handles;
}

void pairs_set(struct pairs *p, int node, const void *handles, size_t len)
{
    const int n = (int)(len / NB_NET_HANDLE_BYTES);

    p->present[node] = n > 0;
    for (int dev = 0; dev < p->ndev; dev++) {
        struct out *o = out_of(p, node, dev);
        if (dev >= n) {
            o->failed = true;
            o->step = OVER;
            snprintf(o->cause, sizeof(o->cause), "it has no device %d", dev);
            continue;
        }
        memcpy(o->handle, (const char *)handles + (size_t)dev * NB_NET_HANDLE_BYTES, NB_NET_HANDLE_BYTES);
        if (p->net->ops->handle_name)
            p->net->ops->handle_name(o->handle, o->to, sizeof(o->to));
    }
}

/* ---- Sending ---- */

static void out_fails(struct out *o, int err)
{
    char line[sizeof(o->cause)];

    o->failed = true;
    o->err = err;
    snprintf(o->cause, sizeof(o->cause), "%s", strerror(-err));
    while (log_next(line, sizeof(line))) /* the transport's own lines: the last ones concern this
                                            connection */
        snprintf(o->cause, sizeof(o->cause), "%s", line);
}

static int send_step(struct pairs *p, struct out *o, const void *data, size_t len, enum step then)
{
    const struct nb_net_ops *ops = p->net->ops;
    int done = 0, err = 0;

    if (!o->req)
        err = ops->isend(o->conn, data, len, 0, o->mr, &o->req);
    if (!err && o->req)
        err = ops->test(o->req, &done, NULL);
    if (done) {
        o->req = NULL;
        o->step = then;
    }
    return err;
}

/* Return whether the step made progress. */
static bool out_step(struct pairs *p, struct out *o, int dev)
{
    const struct nb_net_conn_cfg cfg = {.streams = 1, .traffic_class = -1};
    const enum step before = o->step;
    int err = 0;

    if (o->failed || o->step == OVER)
        return false;
    if (o->step == CONNECT) {
        err = p->net->ops->connect(p->net, dev, &cfg, o->handle, &o->conn);
        if (!err && o->conn) {
            o->step = SEND_SMALL;
            /* One registration for both messages. */
            err = p->net->ops->reg_mr(o->conn, p->small, SMALL + LARGE, NB_MEM_HOST, &o->mr);
        }
    } else if (o->step == SEND_SMALL) {
        err = send_step(p, o, p->small, SMALL, SEND_LARGE);
    } else {
        err = send_step(p, o, p->large, LARGE, OVER);
    }
    if (err)
        out_fails(o, err);
    return err || o->step != before;
}

/* ---- Receiving ---- */

static void take(struct pairs *p, int dev)
{
    void *conn = NULL;
    struct in *in;

    if (!p->listener[dev])
        return;
    if (p->net->ops->accept(p->listener[dev], &conn)) {
        p->net->ops->close_listen(p->listener[dev]);
        p->listener[dev] = NULL;
        return;
    }
    in = conn ? calloc(1, sizeof(*in)) : NULL;
    if (conn && (!in || p->net->ops->reg_mr(conn, in->buf, sizeof(in->buf), NB_MEM_HOST, &in->mr))) {
        p->net->ops->close_recv(conn);
        free(in);
        return;
    }
    if (!in)
        return;
    in->conn = conn;
    in->peer = -1;
    in->dev = dev;
    in->step = SEND_SMALL;
    in->next = p->in;
    p->in = in;
}

static int receive(struct pairs *p, struct in *in, size_t len, bool *got, size_t *size)
{
    const struct nb_net_ops *ops = p->net->ops;
    void *data = in->buf;
    const size_t room = len;
    const int tag = 0;
    int done = 0, err = 0;

    if (!in->req)
        err = ops->irecv(in->conn, 1, &data, &room, &tag, &in->mr, &in->req);
    if (!err && in->req)
        err = ops->test(in->req, &done, size);
    if (done)
        in->req = NULL;
    *got = done != 0;
    return err;
}

static bool in_step(struct pairs *p, struct in *in)
{
    static uint8_t want[LARGE];
    size_t size = 0;
    bool got = false;

    if (in->step == OVER || in->damaged)
        return false;
    if (receive(p, in, in->step == SEND_SMALL ? SMALL : LARGE, &got, &size)) {
        in->damaged = true; /* its connection has failed: the sender reports why */
        return true;
    }
    if (!got)
        return false;
    if (in->step == SEND_SMALL) {
        const uint32_t peer = nb_get32(in->buf);
        in->damaged = size != SMALL || peer >= (uint32_t)p->nodes;
        in->peer = in->damaged ? -1 : (int)peer;
        in->step = SEND_LARGE;
    } else {
        pattern(want, in->peer);
        in->damaged = size != LARGE || memcmp(want, in->buf, LARGE) != 0;
        in->step = OVER;
    }
    return true;
}

static bool all_over(const struct pairs *p)
{
    int expected = 0, got = 0;

    for (int node = 0; node < p->nodes; node++)
        for (int dev = 0; dev < p->ndev; dev++) {
            const struct out *o = out_of(p, node, dev);
            if (!p->present[node] || node == p->rank)
                continue;
            expected++;
            if (!o->failed && o->step != OVER)
                return false;
        }
    for (const struct in *in = p->in; in; in = in->next)
        got += in->step == OVER;
    return got >= expected;
}

void pairs_run(struct pairs *p, double seconds)
{
    const uint64_t end = nb_now_ns() + (uint64_t)(1e9 * seconds);
    char line[8];

    while (log_next(line, sizeof(line)))
        continue;
    while (!all_over(p) && nb_now_ns() < end) {
        bool on = false;
        /* Nearer ranks first, so that nodes begin with different peers. */
        for (int i = 1; i < p->nodes; i++) {
            const int node = (p->rank + i) % p->nodes;
            for (int dev = 0; dev < p->ndev && p->present[node]; dev++)
                on |= out_step(p, out_of(p, node, dev), dev);
        }
        for (int dev = 0; dev < p->ndev; dev++)
            take(p, dev);
        for (struct in *in = p->in; in; in = in->next)
            on |= in_step(p, in);
        if (!on)
            pause_shortly();
    }
    for (int node = 0; node < p->nodes; node++)
        for (int dev = 0; dev < p->ndev; dev++) {
            struct out *o = out_of(p, node, dev);
            if (!p->present[node] || node == p->rank || o->failed || o->step == OVER)
                continue;
            o->failed = true;
            snprintf(o->cause, sizeof(o->cause), "no answer within %.0f s", seconds);
            if (o->step == CONNECT && p->net->ops->abandon)
                p->net->ops->abandon(p->net, o->handle);
        }
}

void pairs_tell(const struct pairs *p, FILE *f)
{
    for (int node = 0; node < p->nodes; node++)
        for (int dev = 0; dev < p->ndev; dev++) {
            const struct out *o = out_of(p, node, dev);
            if (p->present[node] && node != p->rank)
                fprintf(f, "out\t%d\t%d\t%s\t%s\t%s\n", node, dev,
                        !o->failed ? "ok"
                        : o->conn  ? "send"
                                   : "connect",
                        o->to, o->cause);
        }
    for (const struct in *in = p->in; in; in = in->next)
        if (in->peer >= 0)
            fprintf(f, "in\t%d\t%d\t%s\n", in->peer, in->dev,
                    in->step == OVER ? in->damaged ? "damaged" : "ok" : "small");
}

/* ---- Rates ---- */

void pairs_choose(struct pairs *p, int dev)
{
    p->dev = dev >= 0 && dev < p->ndev ? dev : 0;
}

static struct in *in_from(struct pairs *p, int node)
{
    for (struct in *in = p->in; in; in = in->next)
        if (in->peer == node && in->dev == p->dev && in->step == OVER && !in->damaged)
            return in;
    return NULL;
}

/* Send, or receive into the connection's own memory, a small message until `end`. */
static bool pass(struct pairs *p, struct out *o, struct in *in, uint64_t end)
{
    bool got = false;
    size_t size;

    while (nb_now_ns() < end && !got) {
        if (in && receive(p, in, SMALL, &got, &size))
            return false;
        if (o) {
            o->step = SEND_SMALL;
            if (send_step(p, o, p->small, SMALL, OVER))
                return false;
            got = o->step == OVER;
        }
        if (!got)
            sched_yield(); /* nodes may share a processor, as in tests */
    }
    return got;
}

double pairs_hop(struct pairs *p, double limit)
{
    const uint64_t from = nb_now_ns(), end = from + (uint64_t)(1e9 * limit);
    struct out *o = out_of(p, (p->rank + 1) % p->nodes, p->dev);
    struct in *in = in_from(p, (p->rank + p->nodes - 1) % p->nodes);
    bool good = o->conn && in;

    for (int i = 0; i < ROUNDS && good; i++)
        good = p->rank == 0 ? pass(p, o, NULL, end) && pass(p, NULL, in, end)
                            : pass(p, NULL, in, end) && pass(p, o, NULL, end);
    return good ? 1e-9 * (double)(nb_now_ns() - from) / (ROUNDS * p->nodes) : NAN;
}

struct flow {
    void *conn, *mr, *req[AHEAD];
    int at;      /* oldest */
    size_t next; /* bytes of the next message to send */
    bool over;
    uint64_t first, last;
    double begin, bytes; /* of the first message, and of the others */
};

/* Send messages for a while, then a small one. They grow from FIRST to BULK, so that some arrive on a slow
 * link, too. */
static int flow_out(struct pairs *p, struct flow *f, uint64_t until)
{
    const struct nb_net_ops *ops = p->net->ops;
    int err = 0;

    for (int i = 0; i < AHEAD && !err && !f->over; i++) {
        void **req = &f->req[(f->at + i) % AHEAD];
        int done = 0;
        if (*req)
            err = ops->test(*req, &done, NULL);
        if (done)
            *req = NULL;
        if (*req || err)
            continue;
        const bool last = nb_now_ns() >= until;
        err = ops->isend(f->conn, p->bulk, last ? SMALL : f->next, 0, f->mr, req);
        f->over = last && *req;
        if (*req && f->next < BULK)
            f->next *= 2;
    }
    return err;
}

static int flow_in(struct pairs *p, struct flow *f)
{
    const struct nb_net_ops *ops = p->net->ops;
    const size_t room = BULK;
    const int tag = 0;
    int err = 0;

    for (int i = 0; i < AHEAD && !err; i++) {
        const int slot = (f->at + i) % AHEAD;
        void *data = p->bulk + (size_t)(1 + slot) * BULK;
        if (!f->req[slot])
            err = ops->irecv(f->conn, 1, &data, &room, &tag, &f->mr, &f->req[slot]);
        if (!f->req[slot])
            break;
    }
    while (!err && !f->over && f->req[f->at]) {
        size_t size = 0;
        int done = 0;
        err = ops->test(f->req[f->at], &done, &size);
        if (!done)
            break;
        f->req[f->at] = NULL;
        f->at = (f->at + 1) % AHEAD;
        f->last = nb_now_ns();
        f->over = size == SMALL;
        /* Time begins with the end of the first message. */
        if (!f->first) {
            f->first = f->last;
            f->begin = (double)size;
        } else {
            f->bytes += (double)size;
        }
    }
    return err;
}

double pairs_stream(struct pairs *p, int to, int from, double seconds, double limit)
{
    const uint64_t begin = nb_now_ns(), until = begin + (uint64_t)(1e9 * seconds);
    const uint64_t end = begin + (uint64_t)(1e9 * limit);
    const struct out *o = out_of(p, (p->rank + 1) % p->nodes, p->dev);
    struct in *i = in_from(p, (p->rank + p->nodes - 1) % p->nodes);
    struct flow out = {.over = !to || !o->conn, .next = FIRST}, in = {.over = !from || !i};
    int err = 0;

    out.conn = o->conn;
    in.conn = i ? i->conn : NULL;
    if (!out.over)
        err = p->net->ops->reg_mr(out.conn, p->bulk, BULK, NB_MEM_HOST, &out.mr);
    if (!in.over && !err)
        err = p->net->ops->reg_mr(in.conn, p->bulk + BULK, (size_t)AHEAD * BULK, NB_MEM_HOST, &in.mr);
    /* A completed send may still be in flight. The connections stay until all nodes have sent their
     * figures. */
    while (!err && nb_now_ns() < end && (!out.over || !in.over)) {
        if (!out.over)
            err = flow_out(p, &out, until);
        if (!in.over && !err)
            err = flow_in(p, &in);
        sched_yield();
    }
    while (!err && nb_now_ns() < end && out.over && to && o->conn) {
        bool any = false;
        for (int k = 0; k < AHEAD && !err; k++) {
            int done = 0;
            if (out.req[k])
                err = p->net->ops->test(out.req[k], &done, NULL);
            if (done)
                out.req[k] = NULL;
            any |= out.req[k] != NULL;
        }
        if (!any)
            break;
        sched_yield();
    }
    if (!from || !in.first)
        return NAN;
    if (in.last > in.first)
        return in.bytes / (1e-9 * (double)(in.last - in.first));
    return in.begin / (1e-9 * (double)(in.first - begin));
}

void pairs_close(struct pairs *p)
{
    const struct nb_net_ops *ops = p->net->ops;

    for (int i = 0; p->out && i < p->nodes * p->ndev; i++)
        if (p->out[i].conn)
            ops->close_send(p->out[i].conn);
    while (p->in) {
        struct in *next = p->in->next;
        ops->close_recv(p->in->conn);
        free(p->in);
        p->in = next;
    }
    for (int i = 0; i < p->ndev; i++)
        if (p->listener[i])
            ops->close_listen(p->listener[i]);
    free(p->present);
    free(p->handles);
    free(p->out);
    free(p->bulk);
    free(p);
}
