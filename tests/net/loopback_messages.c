/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of the loopback transport: sends and receives wait for their counterparts. All functions except
 * those in the table need the connection's lock. */
#include "loopback_inside.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

/* Return the error of calls on this end, and of its unfinished requests. */
static int end_error(struct end *e)
{
    struct connection *c = e->connection;
    const bool dead = loopback_is_dead(c->from) || loopback_is_dead(c->to);

    if (e->err || (!dead && ((e->is_send ? c->recv_open : c->send_open) || loopback_is_cut(c->from, c->to))))
        return e->err;
    e->err = -ECONNRESET;
    /* A graceful shutdown is not logged here: the caller knows whether it matters. */
    if (!e->is_send && !c->sent_all && !dead)
        NB_WARN("loopback: %s closed with sends in flight", e->peer);
    return e->err;
}

static struct request *request_new(struct end *e, int n)
{
    struct request *r = calloc(1, sizeof(*r));

    if (!r)
        return NULL;
    r->end = e;
    r->n = r->left = n;
    for (int i = 0; i < n; i++)
        r->part[i].request = r;
    r->next = e->requests;
    e->requests = r;
    return r;
}

static void part_done(struct part *p, size_t size)
{
    struct request *r = p->request;

    r->size[p - r->part] = size;
    r->left--;
    r->end->bytes += size;
}

/* Carry a message from a send to the receive with its tag. */
static void carry(struct part *from, struct part *to)
{
    struct connection *c = from->request->end->connection;

    if (from->size > to->size) {
        NB_WARN("loopback: a message of %zu bytes (tag %d) for a receive of %zu", from->size, from->tag,
                to->size);
        c->send.err = c->recv.err = -EMSGSIZE;
        return;
    }
    if (from->size > 0)
        memcpy(to->data, from->data, from->size);
    loopback_arrived(to->data, from->size);
    part_done(to, from->size);
    part_done(from, from->size);
}

/* Take the oldest part with the tag out of the list. Return NULL when there is none. */
static struct part *take(struct part **list, int tag)
{
    for (; *list; list = &(*list)->next) {
        struct part *p = *list;

        if (p->tag == tag) {
            *list = p->next;
            return p;
        }
    }
    return NULL;
}

static void append(struct part **list, struct part *p)
{
    while (*list)
        list = &(*list)->next;
    p->next = NULL;
    *list = p;
}

/* Match all parts that the network lets through. An end without tags has only tag 0. */
static void match(struct connection *c)
{
    if (loopback_is_cut(c->from, c->to) || loopback_is_dead(c->from) || loopback_is_dead(c->to))
        return;
    for (struct part **at = &c->sends; *at && !c->send.err;) {
        struct part *from = *at, *to = take(&c->recvs, from->tag);

        if (!to) {
            at = &from->next;
            continue;
        }
        *at = from->next;
        carry(from, to);
    }
}

int loopback_isend(void *send_comm, const void *data, size_t size, int tag, void *mhandle, void **request)
{
    struct end *e = send_comm;
    struct connection *c = e->connection;
    struct request *r = NULL;
    int err;

    (void)mhandle;
    *request = NULL;
    if (size > LOOPBACK_MAX_BYTES || (!data && size))
        return -EINVAL;
    pthread_mutex_lock(&c->lock);
    err = end_error(e);
    if (!err && !(r = request_new(e, 1)))
        err = -ENOMEM;
    if (!err) {
        r->part[0].data = (uint8_t *)(uintptr_t)data;
        r->part[0].size = size;
        r->part[0].tag = tag;
        append(&c->sends, &r->part[0]);
        match(c);
        *request = r;
    }
    pthread_mutex_unlock(&c->lock);
    return err;
}

int loopback_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                   void **request)
{
    struct end *e = recv_comm;
    struct connection *c = e->connection;
    struct request *r = NULL;
    int err;

    (void)mhandles;
    *request = NULL;
    if (n < 1 || n > NB_NET_MAX_RECVS)
        return -EINVAL;
    pthread_mutex_lock(&c->lock);
    err = e->err; /* messages before the peer's close are here already, or will not come: test reports them */
    if (!err && !(r = request_new(e, n)))
        err = -ENOMEM;
    for (int i = 0; i < n && !err; i++) {
        struct part *to = &r->part[i];

        to->data = data[i];
        to->size = sizes[i];
        to->tag = tags ? tags[i] : 0;
        append(&c->recvs, to);
    }
    if (!err)
        match(c);
    if (!err)
        *request = r;
    pthread_mutex_unlock(&c->lock);
    return err;
}

int loopback_iflush(void *recv_comm, int n, void **data, const size_t *sizes, void **mhandles, void **request)
{
    (void)recv_comm;
    (void)n;
    (void)data;
    (void)sizes;
    (void)mhandles;
    *request = NULL; /* complete at once */
    return 0;
}

int loopback_test(void *request, int *done, size_t *sizes)
{
    struct request *r = request, **p;
    struct end *e = r->end;
    int err = 0;

    pthread_mutex_lock(&e->connection->lock);
    if (r->left)
        match(e->connection);
    *done = r->left == 0;
    if (!e->is_send && (e->connection->held || loopback_is_late())) {
        *done = 0;
    } else if (!*done) {
        err = end_error(e);
    } else {
        for (int i = 0; sizes && i < r->n; i++)
            sizes[i] = r->size[i];
        for (p = &e->requests; *p != r; p = &(*p)->next)
            ;
        *p = r->next;
        free(r);
    }
    pthread_mutex_unlock(&e->connection->lock);
    return err;
}

void loopback_cut(void *comm)
{
    struct connection *c = ((struct end *)comm)->connection;

    pthread_mutex_lock(&c->lock);
    c->send.err = c->recv.err = -ECONNRESET;
    pthread_mutex_unlock(&c->lock);
}

void loopback_hold(void *comm, int hold)
{
    struct connection *c = ((struct end *)comm)->connection;

    pthread_mutex_lock(&c->lock);
    c->held = hold;
    pthread_mutex_unlock(&c->lock);
}

/* There is no descriptor to sleep on. Return 0 without requests in flight, else ask for another test. */
int loopback_poll_fds(void *comm, int is_send, struct pollfd *fds, int max)
{
    struct end *e = comm;
    bool busy;

    (void)is_send;
    (void)fds;
    (void)max;
    pthread_mutex_lock(&e->connection->lock);
    busy = e->err || e->requests;
    pthread_mutex_unlock(&e->connection->lock);
    return busy ? -1 : 0;
}

int loopback_lost(void *send_comm)
{
    struct end *e = send_comm;
    int err;

    pthread_mutex_lock(&e->connection->lock);
    err = end_error(e);
    pthread_mutex_unlock(&e->connection->lock);
    return err;
}

uint64_t loopback_wire_bytes(void *comm)
{
    struct end *e = comm;
    uint64_t n;

    pthread_mutex_lock(&e->connection->lock);
    n = e->bytes;
    pthread_mutex_unlock(&e->connection->lock);
    return n;
}
