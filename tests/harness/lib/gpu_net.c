/* SPDX-License-Identifier: Apache-2.0 */
/* See gpu_net.h. A message leaves in one part, as its bytes are, and is taken apart behind its header. */
#include "gpu_net.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "coll/comm/wire.h"
#include "net/transport.h"
#include "tests/gpu/fake_stream.h"

#define REQUESTS 4096

enum kind { FREE, SEND, RECEIVE, LANDED, FLUSH };

struct request {
    enum kind kind;
    void *conn, *inner;
    uint8_t *bytes;
    size_t size, head;
    struct nb_net_part part[2];
};

static struct nb_net_ops table;
static const struct nb_net_ops *under;
static struct gpu_net how;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct request request[REQUESTS];
static unsigned long sent, flushed;
static int registered; /* registrations now. Its address is the handle of GPU memory */

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

static void put(struct request *r)
{
    pthread_mutex_lock(&lock);
    free(r->bytes);
    r->bytes = NULL;
    r->kind = FREE;
    pthread_mutex_unlock(&lock);
}

static int send_parts(void *conn, const struct nb_net_part part[2], int tag, void **out)
{
    struct request *r = get(SEND, conn, part[0].size + part[1].size);
    const void *body = part[1].data;
    int ret;

    *out = NULL;
    if (part[1].mhandle == &registered) {
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
    if (part[1].mhandle != &registered)
        abort();
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
    if (n != 1 || !sizes[0] || mhandles[0] != &registered)
        abort();
    *out = get(FLUSH, conn, 0);
    return 0;
}

/* Write what landed before a flush was made. */
static void land(const struct request *f)
{
    for (int i = 0; i < REQUESTS; i++) {
        struct request *r = &request[i];
        if (r->kind != LANDED || r->conn != f->conn)
            continue;
        memcpy(fake_seen_at(r->part[1].data), r->bytes + r->head, r->size - r->head);
        put(r);
    }
    __atomic_add_fetch(&flushed, 1, __ATOMIC_RELAXED);
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
        land(r);
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
    for (int i = 0; i < REQUESTS; i++)
        if (request[i].kind != FREE && request[i].conn == conn)
            put(&request[i]);
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
    *mhandle = NULL;
    if (how.refuses || how.dmabuf)
        return -EIO;
    *mhandle = &registered;
    __atomic_add_fetch(&registered, 1, __ATOMIC_RELAXED);
    return 0;
}

static int reg_mr_dmabuf(void *conn, void *data, size_t size, enum nb_mem type, uint64_t offset, int fd,
                         void **mhandle)
{
    (void)conn;
    (void)data;
    (void)size;
    *mhandle = NULL;
    if (type != NB_MEM_CUDA || offset || fd < 0)
        abort();
    if (how.refuses || (how.falls_back ? gpu_net_registered() == 2 : !how.dmabuf))
        return -EIO;
    *mhandle = &registered;
    __atomic_add_fetch(&registered, 1, __ATOMIC_RELAXED);
    return 0;
}

static int dereg_mr(void *conn, void *mhandle)
{
    if (mhandle != &registered)
        return under->dereg_mr(conn, mhandle);
    __atomic_sub_fetch(&registered, 1, __ATOMIC_RELAXED);
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
    table.test = test;
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

int gpu_net_registered(void)
{
    return __atomic_load_n(&registered, __ATOMIC_RELAXED);
}
