/* SPDX-License-Identifier: Apache-2.0 */
/* See gpu_net.h. A message leaves in one part, as its bytes are, and is taken apart behind its header. */
#include "gpu_net.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "base/log.h"
#include "coll/comm/wire.h"
#include "net/transport.h"
#include "tests/gpu/fake_stream.h"

#define REQUESTS 4096
#define REGISTRATIONS 256
#define FLUSH_TESTS 3 /* a flush, or a copy, is done when it is tested so often */

/* A received payload that has LANDED is FLUSHING from the next flush on, and there when that is done. */
enum kind { FREE, SEND, RECEIVE, LANDED, FLUSHING, FLUSH, OWN_COPY };

struct request {
    enum kind kind;
    void *conn, *inner;
    uint8_t *bytes;
    size_t size, head;
    struct nb_net_part part[2]; /* of a copy: destination and source */
    int tests;
};

static struct nb_net_ops table;
static const struct nb_net_ops *under;
static struct gpu_net how;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct request request[REQUESTS];
static unsigned long sent, flushed, copied;
static void *registered[REGISTRATIONS]; /* connections with a registration of GPU memory. NULL: none. The
                                           array's address is the handle */

static struct request *get(enum kind kind, void *conn, size_t size)
{
    struct request *r = NULL;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < REQUESTS && !r; i++)
        if (request[i].kind == FREE)
            r = &request[i];
    if (r)
        *r = (struct request){.kind = kind, .conn = conn, .bytes = malloc(size + 1), .size = size};
    pthread_mutex_unlock(&lock);
    if (!r || !r->bytes) {
        fprintf(stderr, "gpu_net: too many requests\n");
        abort();
    }
    return r;
}

static void put_locked(struct request *r)
{
    free(r->bytes);
    r->bytes = NULL;
    r->kind = FREE;
}

static void put(struct request *r)
{
    pthread_mutex_lock(&lock);
    put_locked(r);
    pthread_mutex_unlock(&lock);
}

/* Replace a registration's connection. Return false where it is not there. */
static bool replace(void *conn, void *by)
{
    bool found = false;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < REGISTRATIONS && !found; i++)
        if (registered[i] == conn) {
            registered[i] = by;
            found = true;
        }
    pthread_mutex_unlock(&lock);
    return found;
}

/* End the program where the adapter would access GPU memory that is not registered with it. */
static void check_registered(void *conn, const void *handle)
{
    if (handle == registered && replace(conn, conn))
        return;
    fprintf(stderr, "gpu_net: GPU memory without a registration\n");
    abort();
}

static int send_parts(void *conn, const struct nb_net_part part[2], int tag, void **out)
{
    struct request *r = get(SEND, conn, part[0].size + part[1].size);
    const void *body = part[1].data;
    int ret;

    *out = NULL;
    if (part[1].mhandle == registered) {
        check_registered(conn, registered);
        body = fake_seen_at(body);
        __atomic_add_fetch(&sent, 1, __ATOMIC_RELAXED);
    }
    memcpy(r->bytes, part[0].data, part[0].size);
    memcpy(r->bytes + part[0].size, body, part[1].size);
    ret = under->isend(conn, r->bytes, r->size, tag, NULL, &r->inner);
    if (ret || !r->inner)
        put(r);
    else
        *out = r;
    return ret;
}

static int receive_parts(void *conn, const struct nb_net_part part[2], int tag, void **out)
{
    struct request *r = get(RECEIVE, conn, part[0].size + part[1].size);
    void *data = r->bytes;
    int ret;

    *out = NULL;
    memcpy(r->part, part, sizeof(r->part));
    check_registered(conn, part[1].mhandle);
    ret = under->irecv(conn, 1, &data, &r->size, &tag, NULL, &r->inner);
    if (ret || !r->inner)
        put(r);
    else
        *out = r;
    return ret;
}

static int flush(void *conn, int n, void **data, const size_t *sizes, void **mhandles, void **out)
{
    (void)data;
    if (n != 1 || !sizes[0])
        abort();
    check_registered(conn, mhandles[0]);
    *out = get(FLUSH, conn, 0);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < REQUESTS; i++)
        if (request[i].kind == LANDED && request[i].conn == conn)
            request[i].kind = FLUSHING;
    pthread_mutex_unlock(&lock);
    return 0;
}

/* Write what landed before a flush was made. */
static void land(const struct request *f)
{
    check_registered(f->conn, registered);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < REQUESTS; i++) {
        struct request *r = &request[i];
        if (r->kind != FLUSHING || r->conn != f->conn)
            continue;
        memcpy(fake_seen_at(r->part[1].data), r->bytes + r->head, r->size - r->head);
        put_locked(r);
    }
    pthread_mutex_unlock(&lock);
    __atomic_add_fetch(&flushed, 1, __ATOMIC_RELAXED);
}

static int copy(void *conn, void *to, void *to_mhandle, const void *from, void *from_mhandle, size_t size,
                void **out)
{
    struct request *r;

    if (!size || (to_mhandle == registered) == (from_mhandle == registered))
        abort(); /* between GPU memory and host memory */
    check_registered(conn, registered);
    r = get(OWN_COPY, conn, 0);
    r->part[0] = (struct nb_net_part){to, size, to_mhandle};
    r->part[1] = (struct nb_net_part){(void *)(uintptr_t)from, size, from_mhandle};
    *out = r;
    return 0;
}

static void *seen_by_adapter(const struct nb_net_part *part)
{
    return part->mhandle == registered ? fake_seen_at(part->data) : part->data;
}

/* Nobody sleeps while a flush is under way. */
static int poll_fds(void *conn, int is_send, struct pollfd *fds, int max)
{
    bool flushes = false;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < REQUESTS && !flushes; i++)
        flushes = request[i].kind == FLUSH && request[i].conn == conn;
    pthread_mutex_unlock(&lock);
    return flushes ? -1 : under->poll_fds(conn, is_send, fds, max);
}

static int received(struct request *r, size_t size, size_t *body)
{
    r->head = nb_msg_header_at(r->bytes);
    if (size < r->head || r->head > r->part[0].size || size - r->head > r->part[1].size)
        return -EMSGSIZE;
    memcpy(r->part[0].data, r->bytes, r->head);
    *body = size - r->head;
    r->size = size;
    if (*body) {
        memset(fake_seen_at(r->part[1].data), 0xdd, *body); /* what a reader without a flush finds */
        r->kind = LANDED;
    } else {
        put(r);
    }
    return 0;
}

static int test(void *req, int *done, size_t *sizes)
{
    struct request *r = req;
    size_t size = 0;
    int ret;

    if ((uintptr_t)req < (uintptr_t)request || (uintptr_t)req >= (uintptr_t)(request + REQUESTS))
        return under->test(req, done, sizes);
    if (r->kind == FLUSH) {
        if (++r->tests < FLUSH_TESTS)
            return 0;
        land(r);
        put(r);
        *done = 1;
        return 0;
    }
    if (r->kind == OWN_COPY) {
        if (++r->tests < FLUSH_TESTS)
            return 0;
        check_registered(r->conn, registered);
        memcpy(seen_by_adapter(&r->part[0]), seen_by_adapter(&r->part[1]), r->part[0].size);
        __atomic_add_fetch(&copied, 1, __ATOMIC_RELAXED);
        put(r);
        *done = 1;
        return 0;
    }
    ret = under->test(r->inner, done, &size);
    if (ret || !*done)
        return ret;
    if (r->kind == RECEIVE)
        return received(r, size, sizes);
    put(r);
    return 0;
}

static void forget(void *conn)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < REQUESTS; i++)
        if (request[i].kind != FREE && request[i].conn == conn)
            put_locked(&request[i]);
    pthread_mutex_unlock(&lock);
}

/* Up to the end of a registration its adapter may write to the places of all receives in flight. */
static void last_writes(void *conn)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < REQUESTS; i++)
        if (request[i].kind == RECEIVE && request[i].conn == conn)
            memset(fake_seen_at(request[i].part[1].data), 0xdd, request[i].part[1].size);
    pthread_mutex_unlock(&lock);
}

/* Register GPU memory, or fail as a transport does. */
static int reg(void *conn, bool fails, void **mhandle)
{
    *mhandle = NULL;
    if (fails) {
        NB_WARN("gpu_net: GPU memory cannot be registered");
        return -EIO;
    }
    if (!replace(NULL, conn))
        abort();
    *mhandle = registered;
    return 0;
}

static int close_send(void *conn)
{
    int ret = under->close_send(conn);

    forget(conn);
    return ret;
}

static int close_recv(void *conn)
{
    int ret = under->close_recv(conn);

    forget(conn);
    return ret;
}

static int properties(struct nb_net *net, int dev, struct nb_net_props *props)
{
    int ret = under->properties(net, dev, props);

    props->parts = 1;
    props->mem_support |= how.falls_back ? NB_MEM_DMABUF | NB_MEM_CUDA
                          : how.dmabuf   ? NB_MEM_DMABUF
                                         : NB_MEM_CUDA;
    return ret;
}

static int reg_mr(void *conn, void *data, size_t size, enum nb_mem type, void **mhandle)
{
    if (type != NB_MEM_CUDA)
        return under->reg_mr(conn, data, size, type, mhandle);
    return reg(conn, how.refuses || how.dmabuf, mhandle);
}

static int reg_mr_dmabuf(void *conn, void *data, size_t size, enum nb_mem type, uint64_t offset, int fd,
                         void **mhandle)
{
    (void)data;
    (void)size;
    if (type != NB_MEM_CUDA || offset || fd < 0)
        abort();
    return reg(conn, how.refuses || (how.falls_back ? gpu_net_registered() == 2 : !how.dmabuf), mhandle);
}

static int dereg_mr(void *conn, void *mhandle)
{
    if (mhandle != registered)
        return under->dereg_mr(conn, mhandle);
    last_writes(conn);
    if (!replace(conn, NULL))
        abort();
    return 0;
}

void gpu_net_wrap(struct nb_context *ctx, const struct gpu_net *wanted)
{
    under = ctx->net->ops;
    how = *wanted;
    table = *under;
    table.properties = properties;
    table.reg_mr = reg_mr;
    table.reg_mr_dmabuf = reg_mr_dmabuf;
    table.dereg_mr = dereg_mr;
    table.isend_parts = send_parts;
    table.irecv_parts = receive_parts;
    table.iflush = flush;
    table.icopy = wanted->copies ? copy : NULL;
    table.test = test;
    table.poll_fds = poll_fds;
    table.close_send = close_send;
    table.close_recv = close_recv;
    ctx->net->ops = &table;
}

unsigned long gpu_net_sent(void)
{
    return __atomic_load_n(&sent, __ATOMIC_RELAXED);
}

unsigned long gpu_net_flushed(void)
{
    return __atomic_load_n(&flushed, __ATOMIC_RELAXED);
}

unsigned long gpu_net_copied(void)
{
    return __atomic_load_n(&copied, __ATOMIC_RELAXED);
}

int gpu_net_registered(void)
{
    int n = 0;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < REGISTRATIONS; i++)
        n += registered[i] != NULL;
    pthread_mutex_unlock(&lock);
    return n;
}
