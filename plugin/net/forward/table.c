/* SPDX-License-Identifier: Apache-2.0 */
/* Loads another plugin and calls its table. */
#include "net/forward/table.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

#define OLDEST 8
#define NEWEST 12
/* Communicator number for init of v11 and later, the same on all its nodes. */
#define COMM_ID 0x6e6962626c65ull
#define MAX_CONTEXTS 16
/* Largest message: test reports sizes as int, in every version. */
#define MAX_MESSAGE ((size_t)INT_MAX & ~(size_t)4095)

struct nb_foreign {
    void *dl;
    int version;
    char label[256];
    union {
        const ncclNet_v8_t *v8;
        const ncclNet_v9_t *v9;
        const ncclNet_v10_t *v10;
        const ncclNet_v11_t *v11;
        const ncclNet_v12_t *v12;
        const void *any;
    } table;
    const struct nb_forwarding_v1 *forwarding; /* NULL: the plugin is not nibble */
    pthread_mutex_t lock;
    int ncontexts; /* under lock, v11 and later; the first is for the default class */
    struct {
        int traffic_class;
        void *ctx;
    } context[MAX_CONTEXTS];
};

/* Access a member that has the same type in every version. */
#define MEMBER(f, member) \
    ((f)->version == 8    ? (f)->table.v8->member \
     : (f)->version == 9  ? (f)->table.v9->member \
     : (f)->version == 10 ? (f)->table.v10->member \
     : (f)->version == 11 ? (f)->table.v11->member \
                          : (f)->table.v12->member)

/* ---- Loading -------------------------------------------------------------------------------------- */

__attribute__((format(printf, 5, 6))) static void pass_log(ncclDebugLogLevel level, unsigned long flags,
                                                           const char *file, int line, const char *fmt, ...)
{
    char text[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    nb_log_pass(level, flags, file, line, text);
}

/* Serve plugins that call the profiler callback without checking for NULL. */
static ncclResult_t no_profiler(void **event, int type, void *parent, int64_t plugin_id, void *details)
{
    (void)type;
    (void)parent;
    (void)plugin_id;
    (void)details;
    if (event)
        *event = NULL;
    return ncclSuccess;
}

static ncclResult_t init(struct nb_foreign *f, int traffic_class, void **ctx)
{
    ncclNetCommConfig_v11_t config = {.trafficClass = traffic_class};

    switch (f->version) {
    case 8: return f->table.v8->init(pass_log);
    case 9: return f->table.v9->init(pass_log);
    case 10: return f->table.v10->init(pass_log, no_profiler);
    case 11: return f->table.v11->init(ctx, COMM_ID, &config, pass_log, no_profiler);
    default: return f->table.v12->init(ctx, COMM_ID, &config, pass_log, no_profiler);
    }
}

/* Return the library that an address belongs to, or NULL. */
static const void *library_of(const void *address)
{
    Dl_info info;

    return dladdr(address, &info) ? info.dli_fbase : NULL;
}

static int is_file(const char *name)
{
    size_t n = strlen(name);

    return strchr(name, '/') || (n > 3 && strcmp(name + n - 3, ".so") == 0);
}

static int load(struct nb_foreign *f, const char *name)
{
    char file[512];

    if (snprintf(file, sizeof(file), is_file(name) ? "%s" : "libnccl-net-%s.so", name) >= (int)sizeof(file)) {
        NB_WARN("forward: the plugin's name is too long: %s", name);
        return -ENAMETOOLONG;
    }
    f->dl = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!f->dl) {
        NB_WARN("forward: cannot open the plugin of NIBBLE_NET_FORWARD=%s: %s", name, dlerror());
        return -ENOENT;
    }
    for (int v = NEWEST; v >= OLDEST && !f->version; v--) {
        char symbol[32];

        snprintf(symbol, sizeof(symbol), "ncclNetPlugin_v%d", v);
        f->table.any = dlsym(f->dl, symbol);
        if (f->table.any)
            f->version = v;
    }
    if (!f->version) {
        NB_WARN("forward: %s has no table ncclNetPlugin_v%d to _v%d", file, OLDEST, NEWEST);
        return -ENOTSUP;
    }
    if (library_of(f->table.any) == library_of(&no_profiler)) {
        NB_WARN("forward: NIBBLE_NET_FORWARD=%s is nibble itself: it must name another plugin", name);
        return -ELOOP;
    }
    f->forwarding = dlsym(f->dl, NB_FORWARDING_SYMBOL);
    snprintf(f->label, sizeof(f->label), "%.32s (%.180s, v%d)", MEMBER(f, name) ? MEMBER(f, name) : "?", file,
             f->version);
    return 0;
}

static void unload(struct nb_foreign *f)
{
    if (f->forwarding)
        f->forwarding->forwarded(0);
    if (f->dl)
        dlclose(f->dl);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

int nb_foreign_open(const char *name, struct nb_foreign **out)
{
    struct nb_foreign *f = calloc(1, sizeof(*f));
    ncclResult_t res;
    int ret;

    if (!f)
        return -ENOMEM;
    pthread_mutex_init(&f->lock, NULL);
    ret = load(f, name);
    if (ret) {
        f->forwarding = NULL;
        unload(f);
        return ret;
    }
    if (f->forwarding)
        f->forwarding->forwarded(1);
    f->context[0].traffic_class = NCCL_NET_TRAFFIC_CLASS_UNDEF;
    res = init(f, NCCL_NET_TRAFFIC_CLASS_UNDEF, &f->context[0].ctx);
    if (res != ncclSuccess) {
        NB_WARN("forward: init of plugin %s gave result %d", f->label, (int)res);
        unload(f);
        return res == ncclInvalidUsage || res == ncclInvalidArgument ? -EINVAL : -EIO;
    }
    f->ncontexts = 1;
    *out = f;
    return 0;
}

void nb_foreign_close(struct nb_foreign *f)
{
    for (int i = f->version >= 11 ? f->ncontexts : 0; i > 0; i--) {
        ncclNetFinalize_v11 *finalize = f->version == 11 ? f->table.v11->finalize : f->table.v12->finalize;
        ncclResult_t res = finalize ? finalize(f->context[i - 1].ctx) : ncclSuccess;

        if (res != ncclSuccess)
            NB_WARN("forward: finalize of plugin %s gave result %d", f->label, (int)res);
    }
    unload(f);
}

const char *nb_foreign_label(const struct nb_foreign *f)
{
    return f->label;
}

/* ---- Devices -------------------------------------------------------------------------------------- */

ncclResult_t nb_foreign_devices(struct nb_foreign *f, int *ndev)
{
    return MEMBER(f, devices)(ndev);
}

#define COPY_PROPS(props, p) \
    do { \
        snprintf((props)->name, sizeof((props)->name), "%s", (p).name ? (p).name : "?"); \
        if ((p).pciPath) \
            snprintf((props)->pci_path, sizeof((props)->pci_path), "%s", (p).pciPath); \
        (props)->guid = (p).guid; \
        (props)->mem_support = (p).ptrSupport & (NB_MEM_HOST | NB_MEM_CUDA | NB_MEM_DMABUF); \
        (props)->speed_mbps = (p).speed; \
        (props)->rate_mbps = (p).speed > 0 ? (p).speed : 0; \
        (props)->port = (p).port; \
        (props)->latency_us = (p).latency; \
        (props)->max_comms = (p).maxComms; \
        (props)->max_recvs = (p).maxRecvs; \
        *type = (int)(p).netDeviceType; \
    } while (0)
#define COPY_PROPS_V9(props, p) \
    do { \
        COPY_PROPS(props, p); \
        (props)->force_flush = (p).forceFlush; \
        (props)->max_bytes = (p).maxP2pBytes; \
    } while (0)

ncclResult_t nb_foreign_properties(struct nb_foreign *f, int dev, struct nb_net_props *props, int *type)
{
    union {
        ncclNetProperties_v8_t v8;
        ncclNetProperties_v9_t v9;
        ncclNetProperties_v11_t v11;
        ncclNetProperties_v12_t v12;
    } p;
    ncclResult_t res;

    memset(&p, 0, sizeof(p));
    memset(props, 0, sizeof(*props));
    switch (f->version) {
    case 8: res = f->table.v8->getProperties(dev, &p.v8); break;
    case 9: res = f->table.v9->getProperties(dev, &p.v9); break;
    case 10: res = f->table.v10->getProperties(dev, &p.v9); break;
    case 11: res = f->table.v11->getProperties(dev, &p.v11); break;
    default: res = f->table.v12->getProperties(dev, &p.v12);
    }
    if (res != ncclSuccess)
        return res;
    switch (f->version) {
    case 8: COPY_PROPS(props, p.v8); break;
    case 9:
    case 10: COPY_PROPS_V9(props, p.v9); break;
    case 11: COPY_PROPS_V9(props, p.v11); break;
    default: COPY_PROPS_V9(props, p.v12);
    }
    if (props->max_recvs < 1)
        props->max_recvs = 1;
    if (props->max_recvs > NB_NET_MAX_RECVS)
        props->max_recvs = NB_NET_MAX_RECVS;
    if (props->max_bytes == 0 || props->max_bytes > MAX_MESSAGE)
        props->max_bytes = MAX_MESSAGE;
    return ncclSuccess;
}

/* ---- Connections ---------------------------------------------------------------------------------- */

/* Return the context for a traffic class, and make it on first use. Return the default context when too many
 * are in use or a new one cannot be made: the class is a wish. */
static void *context_for(struct nb_foreign *f, int traffic_class)
{
    void *ctx = f->context[0].ctx;
    int i;

    pthread_mutex_lock(&f->lock);
    for (i = 0; i < f->ncontexts && f->context[i].traffic_class != traffic_class; i++)
        continue;
    if (i == f->ncontexts && i < MAX_CONTEXTS) {
        void *made = NULL;

        if (init(f, traffic_class, &made) == ncclSuccess) {
            f->context[i].traffic_class = traffic_class;
            f->context[i].ctx = made;
            f->ncontexts++;
        }
    }
    if (i < f->ncontexts)
        ctx = f->context[i].ctx;
    else
        NB_INFO(NCCL_NET, "forward: no context for traffic class %d in plugin %s, its default is used",
                traffic_class, f->label);
    pthread_mutex_unlock(&f->lock);
    return ctx;
}

ncclResult_t nb_foreign_listen(struct nb_foreign *f, int dev, void *handle, void **listen_comm)
{
    switch (f->version) {
    case 8: return f->table.v8->listen(dev, handle, listen_comm);
    case 9: return f->table.v9->listen(dev, handle, listen_comm);
    case 10: return f->table.v10->listen(dev, handle, listen_comm);
    case 11: return f->table.v11->listen(f->context[0].ctx, dev, handle, listen_comm);
    default: return f->table.v12->listen(f->context[0].ctx, dev, handle, listen_comm);
    }
}

ncclResult_t nb_foreign_connect(struct nb_foreign *f, int dev, int traffic_class, void *handle,
                                void **send_comm)
{
    /* Only device transports use it, which nibble refuses. */
    ncclNetDeviceHandle_v8_t *device = NULL;
    ncclNetCommConfig_v10_t config = {.trafficClass = traffic_class};

    switch (f->version) {
    case 8: return f->table.v8->connect(dev, handle, send_comm, &device);
    case 9: return f->table.v9->connect(dev, handle, send_comm, &device);
    case 10: return f->table.v10->connect(dev, &config, handle, send_comm, &device);
    case 11: return f->table.v11->connect(context_for(f, traffic_class), dev, handle, send_comm, &device);
    default: return f->table.v12->connect(context_for(f, traffic_class), dev, handle, send_comm, &device);
    }
}

ncclResult_t nb_foreign_accept(struct nb_foreign *f, void *listen_comm, void **recv_comm)
{
    ncclNetDeviceHandle_v8_t *device = NULL;

    return MEMBER(f, accept)(listen_comm, recv_comm, &device);
}

ncclResult_t nb_foreign_close_send(struct nb_foreign *f, void *comm)
{
    return MEMBER(f, closeSend)(comm);
}

ncclResult_t nb_foreign_close_recv(struct nb_foreign *f, void *comm)
{
    return MEMBER(f, closeRecv)(comm);
}

ncclResult_t nb_foreign_close_listen(struct nb_foreign *f, void *comm)
{
    return MEMBER(f, closeListen)(comm);
}

/* ---- Memory --------------------------------------------------------------------------------------- */

ncclResult_t nb_foreign_reg_mr(struct nb_foreign *f, void *comm, void *data, size_t size, int type,
                               void **mhandle)
{
    return MEMBER(f, regMr)(comm, data, size, type, mhandle);
}

ncclResult_t nb_foreign_reg_mr_dmabuf(struct nb_foreign *f, void *comm, void *data, size_t size, int type,
                                      uint64_t offset, int fd, void **mhandle)
{
    ncclNetRegMrDmaBuf_v8 *reg = MEMBER(f, regMrDmaBuf);

    return reg ? reg(comm, data, size, type, offset, fd, mhandle) : ncclInvalidUsage;
}

ncclResult_t nb_foreign_dereg_mr(struct nb_foreign *f, void *comm, void *mhandle)
{
    return MEMBER(f, deregMr)(comm, mhandle);
}

/* ---- Messages ------------------------------------------------------------------------------------- */

/* The tables are not const-correct. Plugins only read senders' bytes, sizes and tags. */
#define UNCONST(type, p) ((type *)(uintptr_t)(p))

/* Convert sizes to int, larger ones to INT_MAX. Sizes of receives are only bounds, so that is right. */
static void narrow(int n, const size_t *sizes, int *narrowed)
{
    for (int i = 0; i < n; i++)
        narrowed[i] = sizes[i] > INT_MAX ? INT_MAX : (int)sizes[i];
}

ncclResult_t nb_foreign_isend(struct nb_foreign *f, void *comm, const void *data, size_t size, int tag,
                              void *mhandle, void **request)
{
    void *from = UNCONST(void, data);

    switch (f->version) {
    case 8:
        return size > INT_MAX ? ncclInvalidUsage
                              : f->table.v8->isend(comm, from, (int)size, tag, mhandle, request);
    case 9: return f->table.v9->isend(comm, from, size, tag, mhandle, request);
    case 10: return f->table.v10->isend(comm, from, size, tag, mhandle, NULL, request);
    case 11: return f->table.v11->isend(comm, from, size, tag, mhandle, NULL, request);
    default: return f->table.v12->isend(comm, from, size, tag, mhandle, NULL, request);
    }
}

ncclResult_t nb_foreign_irecv(struct nb_foreign *f, void *comm, int n, void **data, const size_t *sizes,
                              const int *tags, void **mhandles, void **request)
{
    size_t *wide = UNCONST(size_t, sizes);
    int *tag = UNCONST(int, tags);
    int small[NB_NET_MAX_RECVS];
    void *events[NB_NET_MAX_RECVS] = {NULL};

    switch (f->version) {
    case 8: narrow(n, sizes, small); return f->table.v8->irecv(comm, n, data, small, tag, mhandles, request);
    case 9: return f->table.v9->irecv(comm, n, data, wide, tag, mhandles, request);
    case 10: return f->table.v10->irecv(comm, n, data, wide, tag, mhandles, events, request);
    case 11: return f->table.v11->irecv(comm, n, data, wide, tag, mhandles, events, request);
    default: return f->table.v12->irecv(comm, n, data, wide, tag, mhandles, events, request);
    }
}

ncclResult_t nb_foreign_iflush(struct nb_foreign *f, void *comm, int n, void **data, const size_t *sizes,
                               void **mhandles, void **request)
{
    int small[NB_NET_MAX_RECVS];

    narrow(n, sizes, small);
    return MEMBER(f, iflush)(comm, n, data, small, mhandles, request);
}

ncclResult_t nb_foreign_test(struct nb_foreign *f, void *request, int *done, int *sizes)
{
    return MEMBER(f, test)(request, done, sizes);
}
