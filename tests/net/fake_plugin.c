/* SPDX-License-Identifier: Apache-2.0 */
/* The plugin of fake_plugin.h. */
#include "fake_plugin.h"

#include <stdlib.h>
#include <string.h>

#include "nibble/nccl_net.h"

#define EXPORT __attribute__((visibility("default")))
#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)
#define V(name) CAT(CAT(name##_v, FAKE_VERSION), _t)

EXPORT struct fake_notes fake_notes = {.listen_class = -99, .connect_class = -99, .max_bytes = 1 << 20};
#define N fake_notes

struct ctx {
    int traffic_class;
};

struct message {
    int tag;
    size_t size;
    void *data;
    struct message *next;
};

struct wire { /* a listener and its connections */
    struct message *queue;
    int connected;
};

struct request {
    int n, is_send;
    size_t size;
    struct comm *comm;
    struct request *next; /* of the comm's */
    void *data[8];
    size_t cap[8];
    int tag[8];
};

struct comm {
    struct wire *wire;
    struct request *open;
};

static struct request *request_new(struct comm *c)
{
    struct request *r = calloc(1, sizeof(*r));

    r->comm = c;
    r->next = c->open;
    c->open = r;
    return r;
}

static void request_free(struct request *r)
{
    struct request **at = &r->comm->open;

    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    free(r);
}

/* ---- parts that differ between versions ---- */

static ncclResult_t begin(ncclDebugLogger_t logger)
{
    if (logger)
        logger(NCCL_LOG_INFO, NCCL_INIT, __FILE__, __LINE__, "fake plugin v%d, %s", FAKE_VERSION, "starting");
    N.inits++;
    return (ncclResult_t)N.fail_init;
}

#if FAKE_VERSION >= 10
static void try_profiler(ncclProfilerCallback_t profiler)
{
    void *event = &event;

    N.had_profiler = profiler && profiler(&event, 0, NULL, 0, NULL) == ncclSuccess && event == NULL;
}
#endif

#if FAKE_VERSION <= 9
static ncclResult_t fake_init(ncclDebugLogger_t logger)
{
    return begin(logger);
}
#elif FAKE_VERSION == 10
static ncclResult_t fake_init(ncclDebugLogger_t logger, ncclProfilerCallback_t profiler)
{
    try_profiler(profiler);
    return begin(logger);
}
#else
static ncclResult_t fake_init(void **ctx, uint64_t comm_id, ncclNetCommConfig_v11_t *config,
                              ncclDebugLogger_t logger, ncclProfilerCallback_t profiler)
{
    struct ctx *c = malloc(sizeof(*c));

    c->traffic_class = config->trafficClass;
    N.init_classes[N.inits % 32] = c->traffic_class;
    N.comm_id = comm_id;
    try_profiler(profiler);
    if (N.fail_init)
        free(c);
    else
        *ctx = c;
    return begin(logger);
}

static ncclResult_t fake_finalize(void *ctx)
{
    N.finalizes++;
    free(ctx);
    return ncclSuccess;
}
#endif

static ncclResult_t fake_properties(int dev, V(ncclNetProperties) * p)
{
    static char names[2][8] = {"fake0", "fake1"};
    static char path[] = "/sys/devices/fake";

    if (N.fail_properties)
        return (ncclResult_t)N.fail_properties;
    memset(p, 0, sizeof(*p));
    p->name = names[dev];
    p->pciPath = dev ? NULL : path;
    p->guid = 0xabc0 + (uint64_t)dev;
    p->ptrSupport = NCCL_PTR_HOST | NCCL_PTR_CUDA;
    p->speed = 25000 * (dev + 1);
    p->port = dev + 1;
    p->latency = 1.5f;
    p->maxComms = 77;
    p->maxRecvs = 8;
    p->netDeviceType = (ncclNetDeviceType)N.device_type;
#if FAKE_VERSION >= 9
    p->forceFlush = 1;
    p->maxP2pBytes = N.max_bytes;
    p->maxCollBytes = N.max_bytes;
#endif
    return ncclSuccess;
}

static ncclResult_t do_listen(int dev, void *handle, void **listen_comm)
{
    struct wire *w = calloc(1, sizeof(*w));

    N.last_dev = dev;
    if (N.fail_listen) {
        free(w);
        return (ncclResult_t)N.fail_listen;
    }
    memset(handle, 0x5a, NCCL_NET_HANDLE_MAXSIZE); /* the whole handle is the plugin's */
    memcpy(handle, &w, sizeof(w));
    *listen_comm = w;
    N.open_comms++;
    return ncclSuccess;
}

static ncclResult_t do_connect(int dev, void *handle, void **send_comm)
{
    struct wire *w;
    char *count = (char *)handle + 64;

    N.last_dev = dev;
    if (N.fail_connect)
        return (ncclResult_t)N.fail_connect;
    if (*count != 0x5c) { /* state in the handle, as NCCL allows */
        (*count)++;
        *send_comm = NULL;
        return ncclSuccess;
    }
    memcpy(&w, handle, sizeof(w));
    w->connected++;
    struct comm *c = calloc(1, sizeof(*c));
    c->wire = w;
    *send_comm = c;
    N.open_comms++;
    return ncclSuccess;
}

#if FAKE_VERSION <= 10
static ncclResult_t fake_listen(int dev, void *handle, void **listen_comm)
{
    return do_listen(dev, handle, listen_comm);
}
#else
static ncclResult_t fake_listen(void *ctx, int dev, void *handle, void **listen_comm)
{
    N.listen_class = ((struct ctx *)ctx)->traffic_class;
    return do_listen(dev, handle, listen_comm);
}
#endif

#if FAKE_VERSION <= 9
static ncclResult_t fake_connect(int dev, void *handle, void **send_comm, ncclNetDeviceHandle_v8_t **device)
{
    *device = NULL;
    return do_connect(dev, handle, send_comm);
}
#elif FAKE_VERSION == 10
static ncclResult_t fake_connect(int dev, ncclNetCommConfig_v10_t *config, void *handle, void **send_comm,
                                 ncclNetDeviceHandle_v8_t **device)
{
    *device = NULL;
    N.connect_class = config->trafficClass;
    return do_connect(dev, handle, send_comm);
}
#else
static ncclResult_t fake_connect(void *ctx, int dev, void *handle, void **send_comm,
                                 ncclNetDeviceHandle_v8_t **device)
{
    *device = NULL;
    N.connect_class = ((struct ctx *)ctx)->traffic_class;
    return do_connect(dev, handle, send_comm);
}
#endif

static ncclResult_t do_isend(struct comm *c, void *data, size_t size, int tag, void **request)
{
    struct message *m, **at = &c->wire->queue;
    struct request *r;

    N.send_size = size;
    if (N.fail_isend)
        return (ncclResult_t)N.fail_isend;
    *request = NULL;
    if (N.refuse > 0) {
        N.refuse--;
        return ncclSuccess;
    }
    m = calloc(1, sizeof(*m));
    m->tag = tag;
    m->size = size;
    m->data = malloc(size + 1);
    memcpy(m->data, data, size);
    while (*at)
        at = &(*at)->next;
    *at = m;
    r = request_new(c);
    r->n = 1;
    r->is_send = 1;
    r->size = size;
    *request = r;
    return ncclSuccess;
}

static ncclResult_t do_irecv(struct comm *c, int n, void **data, const size_t *sizes, int *tags,
                             void **request)
{
    struct request *r;

    N.recv_n = n;
    for (int i = 0; i < n; i++) {
        N.recv_sizes[i] = sizes[i];
        N.recv_tags[i] = tags[i];
    }
    if (N.fail_irecv)
        return (ncclResult_t)N.fail_irecv;
    *request = NULL;
    if (N.refuse > 0) {
        N.refuse--;
        return ncclSuccess;
    }
    r = request_new(c);
    r->n = n;
    for (int i = 0; i < n; i++) {
        r->data[i] = data[i];
        r->cap[i] = sizes[i];
        r->tag[i] = tags[i];
    }
    *request = r;
    return ncclSuccess;
}

#if FAKE_VERSION == 8
static ncclResult_t fake_isend(void *comm, void *data, int size, int tag, void *mhandle, void **request)
{
    (void)mhandle;
    return do_isend(comm, data, (size_t)size, tag, request);
}

static ncclResult_t fake_irecv(void *comm, int n, void **data, int *sizes, int *tags, void **mhandles,
                               void **request)
{
    size_t wide[8];

    (void)mhandles;
    for (int i = 0; i < n; i++)
        wide[i] = (size_t)sizes[i];
    return do_irecv(comm, n, data, wide, tags, request);
}
#elif FAKE_VERSION == 9
static ncclResult_t fake_isend(void *comm, void *data, size_t size, int tag, void *mhandle, void **request)
{
    (void)mhandle;
    return do_isend(comm, data, size, tag, request);
}

static ncclResult_t fake_irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                               void **request)
{
    (void)mhandles;
    return do_irecv(comm, n, data, sizes, tags, request);
}
#else
static ncclResult_t fake_isend(void *comm, void *data, size_t size, int tag, void *mhandle, void *event,
                               void **request)
{
    (void)mhandle;
    N.optional |= event != NULL;
    return do_isend(comm, data, size, tag, request);
}

static ncclResult_t fake_irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                               void **events, void **request)
{
    (void)mhandles;
    for (int i = 0; i < n && events; i++)
        N.optional |= events[i] != NULL;
    return do_irecv(comm, n, data, sizes, tags, request);
}
#endif

/* ---- parts that all versions share ---- */

static ncclResult_t fake_devices(int *ndev)
{
    *ndev = 2;
    return (ncclResult_t)N.fail_devices;
}

static ncclResult_t fake_accept(void *listen_comm, void **recv_comm, ncclNetDeviceHandle_v8_t **device)
{
    struct wire *w = listen_comm;
    struct comm *c;

    *device = NULL;
    *recv_comm = NULL;
    if (!w->connected)
        return ncclSuccess;
    w->connected--;
    c = calloc(1, sizeof(*c));
    c->wire = w;
    *recv_comm = c;
    N.open_comms++;
    return ncclSuccess;
}

static ncclResult_t fake_reg(void *comm, void *data, size_t size, int type, void **mhandle)
{
    (void)comm;
    (void)size;
    N.reg_type = type;
    if (N.fail_reg)
        return (ncclResult_t)N.fail_reg;
    N.open_mrs++;
    *mhandle = data;
    return ncclSuccess;
}

#if FAKE_VERSION >= 9
static ncclResult_t fake_reg_dma_buf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                                     void **mhandle)
{
    N.reg_offset = offset;
    N.reg_fd = fd;
    return fake_reg(comm, data, size, type, mhandle);
}
#endif

static ncclResult_t fake_dereg(void *comm, void *mhandle)
{
    (void)comm;
    (void)mhandle;
    N.open_mrs--;
    return ncclSuccess;
}

static ncclResult_t fake_iflush(void *comm, int n, void **data, int *sizes, void **mhandles, void **request)
{
    struct request *r = request_new(comm);

    (void)data;
    (void)mhandles;
    for (int i = 0; i < n; i++)
        N.flush_sizes[i] = (size_t)sizes[i];
    r->is_send = 1;
    *request = r;
    return ncclSuccess;
}

static struct message **find(struct wire *w, int tag)
{
    struct message **at = &w->queue;

    while (*at && (*at)->tag != tag)
        at = &(*at)->next;
    return at;
}

static ncclResult_t fake_test(void *request, int *done, int *sizes)
{
    struct request *r = request;

    *done = 0;
    if (N.fail_test) {
        request_free(r); /* so that a second test of it is noticed */
        return (ncclResult_t)N.fail_test;
    }
    if (N.hold)
        return ncclSuccess;
    for (int i = 0; i < r->n && !r->is_send; i++)
        if (!*find(r->comm->wire, r->tag[i]))
            return ncclSuccess;
    for (int i = 0; i < r->n && !r->is_send; i++) {
        struct message **at = find(r->comm->wire, r->tag[i]), *m = *at;

        if (m->size > r->cap[i])
            return ncclInvalidUsage;
        memcpy(r->data[i], m->data, m->size);
        if (sizes)
            sizes[i] = (int)m->size;
        *at = m->next;
        free(m->data);
        free(m);
    }
    request_free(r);
    *done = 1;
    return ncclSuccess;
}

static ncclResult_t fake_close(void *comm)
{
    struct comm *c = comm;

    while (c->open)
        request_free(c->open);
    N.open_comms--;
    free(c);
    return ncclSuccess;
}

static ncclResult_t fake_close_listen(void *comm)
{
    N.open_comms--;
    free(comm);
    return ncclSuccess;
}

EXPORT extern const V(ncclNet) CAT(ncclNetPlugin_v, FAKE_VERSION);
EXPORT const V(ncclNet) CAT(ncclNetPlugin_v, FAKE_VERSION) = {
    .name = "fake",
    .init = fake_init,
    .devices = fake_devices,
    .getProperties = fake_properties,
    .listen = fake_listen,
    .connect = fake_connect,
    .accept = fake_accept,
    .regMr = fake_reg,
#if FAKE_VERSION >= 9 /* version 8 lacks this function */
    .regMrDmaBuf = fake_reg_dma_buf,
#endif
    .deregMr = fake_dereg,
    .isend = fake_isend,
    .irecv = fake_irecv,
    .iflush = fake_iflush,
    .test = fake_test,
    .closeSend = fake_close,
    .closeRecv = fake_close,
    .closeListen = fake_close_listen,
#if FAKE_VERSION >= 11
    .finalize = fake_finalize,
#endif
};
