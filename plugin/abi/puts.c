/* SPDX-License-Identifier: Apache-2.0 */
/* The group of one-sided operations: how it begins and ends, and its calls. See puts.h. */
#include "abi/puts.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "abi/puts_internal.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "device/cuda/cuda.h"

/* At the free end of a handle. It shows that the other rank carries puts by this code, too. */
#define MARK "nibble puts"
#define MARK_AT (NB_NET_HANDLE_BYTES - NB_NET_HANDLE_FREE)

struct nb_puts_listener {
    struct nb_context *ctx;
    uint64_t comm_id;
    int dev;
    void *listen; /* the transport's. NULL: a group has it */
};

void nb_puts_fail(struct nb_puts *p, int err, const char *fmt, ...)
{
    char why[512];
    va_list ap;

    if (p->err)
        return;
    p->err = err;
    va_start(ap, fmt);
    vsnprintf(why, sizeof(why), fmt, ap);
    va_end(ap);
    NB_WARN("puts: rank %d of %d: %s", p->rank, p->nranks, why);
}

/* ---- Begin ------------------------------------------------------------------------------------------ */

/* Return the ordinal of the GPU whose memory the calling thread's group has. -1: the process has no CUDA, so
 * that all memory is the host's. -ENODEV: it has, but no current GPU. */
static int gpu_here(struct nb_context *ctx)
{
    const int gpu = nb_current_gpu(ctx);
    void *cuda = gpu < 0 && !ctx->current_gpu ? dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) : NULL;

    if (cuda)
        dlclose(cuda);
    return cuda ? -ENODEV : gpu < 0 ? -1 : gpu;
}

int nb_puts_available(struct nb_context *ctx, char *why, size_t cap)
{
    const struct nb_net_ops *ops = ctx->net->ops;
    struct nb_cuda_copier *copier;
    int gpu, ret;

    if (!ops->allow_deltas) {
        snprintf(why, cap, "transport %s has no deltas, so NCCL's own puts are as good", ops->name);
        return -ENOTSUP;
    }
    gpu = gpu_here(ctx);
    if (gpu == -ENODEV) {
        snprintf(why, cap, "the calling thread has no current GPU");
        return gpu;
    }
    if (gpu < 0)
        return 0;
    ret = nb_copier_open(gpu, &copier);
    if (ret)
        snprintf(why, cap, "memory of GPU %d cannot be copied (see the line before)", gpu);
    else
        nb_copier_close(copier);
    return ret;
}

int nb_puts_listen(struct nb_context *ctx, uint64_t comm_id, int dev, void *handle,
                   struct nb_puts_listener **listener)
{
    struct nb_puts_listener *l = calloc(1, sizeof(*l));
    uint8_t *free_end = (uint8_t *)handle + MARK_AT;
    int ret;

    if (!l) {
        NB_WARN("puts: out of memory");
        return -ENOMEM;
    }
    l->ctx = ctx;
    l->comm_id = comm_id;
    l->dev = dev;
    ret = ctx->net->ops->listen(ctx->net, dev, handle, &l->listen);
    if (!ret)
        ret = ctx->net->ops->allow_deltas(l->listen, handle);
    if (ret) {
        nb_puts_close_listen(l);
        return ret;
    }
    memcpy(free_end, MARK, sizeof(MARK));
    nb_put32(free_end + sizeof(MARK), NB_PUTS_VERSION);
    *listener = l;
    return 0;
}

void nb_puts_close_listen(struct nb_puts_listener *l)
{
    if (l && l->listen)
        l->ctx->net->ops->close_listen(l->listen);
    free(l);
}

static void free_group(struct nb_puts *p)
{
    if (p->listen)
        nb_puts_ops(p)->close_listen(p->listen);
    while (p->requests)
        nb_puts_free_request(p->requests);
    for (uint32_t i = 0; i < p->nmemory; i++)
        free(p->memory[i]);
    free(p->memory);
    if (p->scratch)
        nb_copier_unpin(p->copier, p->scratch);
    nb_copier_close(p->copier);
    free(p->peer);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

static int open_copier(struct nb_puts *p)
{
    const int gpu = gpu_here(p->ctx);
    int ret;

    if (gpu == -ENODEV)
        NB_WARN("puts: the calling thread has no current GPU");
    if (gpu < 0)
        return gpu == -ENODEV ? gpu : 0;
    ret = nb_copier_open(gpu, &p->copier);
    if (!ret && !nb_puts_pinned(p, &p->scratch))
        ret = -ENOMEM;
    return ret;
}

/* Keep the ranks' handles. They show that all ranks carry puts by this code. */
static int take_handles(struct nb_puts *p, void *const handles[])
{
    for (int i = 0; i < p->nranks; i++) {
        struct nb_puts_peer *peer = &p->peer[i];
        uint8_t *free_end = peer->handle + MARK_AT;

        peer->rank = i;
        peer->last = &peer->first;
        memcpy(peer->handle, handles[i], sizeof(peer->handle));
        if (memcmp(free_end, MARK, sizeof(MARK)) != 0 ||
            nb_get32(free_end + sizeof(MARK)) != NB_PUTS_VERSION) {
            NB_WARN("puts: rank %d does not carry them as this version of nibble does. NIBBLE_RMA and the "
                    "version must be the same on all nodes",
                    i);
            return -EPROTO;
        }
        memset(free_end, 0, NB_NET_HANDLE_FREE);
    }
    return 0;
}

int nb_puts_open(struct nb_puts_listener *l, void *const handles[], int nranks, int rank,
                 struct nb_puts **puts)
{
    struct nb_puts *p;
    int ret;

    if (!l->listen || nranks < 1 || rank < 0 || rank >= nranks) {
        NB_WARN("puts: no listener, or rank %d of %d", rank, nranks);
        return -EINVAL;
    }
    p = calloc(1, sizeof(*p));
    if (p)
        p->peer = calloc((size_t)nranks, sizeof(*p->peer));
    if (!p || !p->peer) {
        NB_WARN("puts: out of memory");
        free(p);
        return -ENOMEM;
    }
    pthread_mutex_init(&p->lock, NULL);
    p->ctx = l->ctx;
    p->comm_id = l->comm_id;
    p->dev = l->dev;
    p->rank = rank;
    p->nranks = nranks;
    p->traffic_class = -1;
    ret = take_handles(p, handles);
    if (!ret)
        ret = open_copier(p);
    if (ret) {
        free_group(p);
        return ret;
    }
    p->listen = l->listen;
    l->listen = NULL;
    NB_INFO(NCCL_INIT | NCCL_NET, "puts: rank %d of %d sends its puts to other nodes over %s, in %s memory",
            rank, nranks, nb_puts_ops(p)->name, p->copier ? "GPU" : "host");
    *puts = p;
    return 0;
}

void nb_puts_set_traffic_class(struct nb_puts *p, int traffic_class)
{
    pthread_mutex_lock(&p->lock);
    p->traffic_class = traffic_class;
    pthread_mutex_unlock(&p->lock);
}

/* ---- End -------------------------------------------------------------------------------------------- */

/* Tell the other ranks, for a second at most. */
static void part(struct nb_puts *p)
{
    const int64_t end = nb_clock_ms(&p->ctx->clock) + NB_PUTS_GRACE_MS;
    bool *said = calloc((size_t)p->nranks, sizeof(*said)), all = !said;

    while (!all && !p->err && nb_clock_ms(&p->ctx->clock) < end) {
        all = true;
        for (struct nb_puts_peer *peer = p->active; peer; peer = peer->next)
            all &= nb_puts_part(p, peer, &said[peer->rank]);
        if (!all)
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
    free(said);
}

void nb_puts_close(struct nb_puts *p)
{
    pthread_mutex_lock(&p->lock);
    p->closing = true;
    for (struct nb_puts_peer *peer = p->active; peer; peer = peer->next) {
        peer->first = NULL; /* the caller gives these operations up */
        peer->last = &peer->first;
    }
    part(p);
    NB_INFO(NCCL_NET, "puts: summary of rank %d of %d: %" PRIu64 " puts of %" PRIu64 " bytes to other nodes",
            p->rank, p->nranks, p->nputs, p->bytes);
    for (struct nb_puts_peer *peer = p->active; peer; peer = peer->next)
        nb_puts_close_peer(p, peer);
    for (struct nb_puts_in *in = p->ins, *next; in; in = next) {
        next = in->next;
        nb_puts_close_in(p, in);
        free(in);
    }
    pthread_mutex_unlock(&p->lock);
    free_group(p);
}

/* ---- Operations ------------------------------------------------------------------------------------- */

static int start(struct nb_puts *p, const struct nb_put *put, bool get, struct nb_puts_request **request)
{
    struct nb_puts_request *r;
    int ret = p->err ? p->err : nb_puts_check(p, put, get);

    if (!ret && put->rank == p->rank)
        ret = nb_puts_here(p, put);
    if (ret)
        return ret;
    r = nb_puts_new_request(p);
    if (!r)
        return -ENOMEM;
    *request = r;
    if (put->rank == p->rank || (get && !put->size)) {
        r->done = true;
        return 0;
    }
    r->head = (struct nb_puts_head){.kind = get ? NB_PUTS_GET : NB_PUTS_BYTES, .size = put->size};
    if (get) {
        r->head.to = put->from->number;
        r->head.at = put->from_at;
        r->head.local = put->to->number;
        r->head.local_at = put->to_at;
        r->head.get = ++p->gets ? p->gets : ++p->gets; /* 0 stands for none */
    } else {
        r->from = put->from;
        r->from_at = put->from_at;
        r->head.to = put->size ? put->to->number : 0;
        r->head.at = put->to_at;
        if (put->signal) {
            r->head.signal = put->signal->number + 1;
            r->head.signal_at = put->signal_at;
            r->head.add = put->add;
        }
        p->nputs++;
        p->bytes += put->size;
        p->ctx->p2p.puts++;
        p->ctx->p2p.put_bytes += put->size;
    }
    nb_puts_queue(p, &p->peer[put->rank], r);
    nb_puts_send(p, r->peer);
    return p->err; /* the group frees the request */
}

static int start_locked(struct nb_puts *p, const struct nb_put *put, bool get,
                        struct nb_puts_request **request)
{
    int ret;

    *request = NULL;
    pthread_mutex_lock(&p->lock);
    ret = start(p, put, get, request);
    pthread_mutex_unlock(&p->lock);
    return ret;
}

int nb_puts_put(struct nb_puts *p, const struct nb_put *put, struct nb_puts_request **request)
{
    return start_locked(p, put, false, request);
}

int nb_puts_get(struct nb_puts *p, const struct nb_put *put, struct nb_puts_request **request)
{
    return start_locked(p, put, true, request);
}

int nb_puts_flush(struct nb_puts *p, struct nb_puts_request **request)
{
    const struct nb_put nothing = {.rank = p->rank};

    return start_locked(p, &nothing, false, request);
}

int nb_puts_test(struct nb_puts *p, struct nb_puts_request *r, int *done)
{
    int ret = 0;

    pthread_mutex_lock(&p->lock);
    *done = r->done;
    if (r->done && !r->flying)
        nb_puts_free_request(r);
    else if (r->done)
        r->answer = true; /* freed with its last head */
    else
        ret = p->err;
    pthread_mutex_unlock(&p->lock);
    return ret;
}

int nb_puts_progress(struct nb_puts *p)
{
    int ret;

    pthread_mutex_lock(&p->lock);
    nb_puts_receive(p);
    for (struct nb_puts_peer *peer = p->active; peer && !p->err; peer = peer->next)
        nb_puts_send(p, peer);
    ret = p->err;
    pthread_mutex_unlock(&p->lock);
    return ret;
}

int nb_puts_error(struct nb_puts *p)
{
    int ret;

    pthread_mutex_lock(&p->lock);
    ret = p->err;
    pthread_mutex_unlock(&p->lock);
    return ret;
}

uint64_t nb_puts_comm_id(const struct nb_puts *p)
{
    return p->comm_id;
}
