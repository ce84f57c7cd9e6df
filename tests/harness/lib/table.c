/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plugin behind one API: loading, choice of table version, and one function for each entry that calls it
 * as NCCL's adapter of that version does. abi.h lists the differences between versions.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"
#include "internal.h"
#include "nibble/nccl_net.h"

#define OLD_MAX_BYTES (512ull << 20) /* NCCL's assumption for tables without the field (MAX_COLLNET_SIZE) */

union net_table {
    const struct hx_net_v8 *v8;
    const struct hx_net_v9 *v9;
    const struct hx_net_v10 *v10;
    const struct hx_net_v11 *v11;
    const struct hx_net_v12 *v12;
    const void *any;
};

union coll_table {
    const struct hx_coll_v8 *v8;
    const struct hx_coll_v9 *v9; /* 10 too */
    const struct hx_coll_v11 *v11;
    const struct hx_coll_v12 *v12;
    const void *any;
};

struct hx_lib {
    void *dl;
    int version;
    union net_table net;
    union coll_table coll;
    bool net_inited, coll_inited, coll_ok; /* versions below 11: init once for each load */
};

/* Members whose type is the same in several versions: pick the table. Below 11 the layouts up to listen
 * agree. */
#define NET(lib, member) \
    ((lib)->version == 8    ? (lib)->net.v8->member \
     : (lib)->version == 9  ? (lib)->net.v9->member \
     : (lib)->version == 10 ? (lib)->net.v10->member \
     : (lib)->version == 11 ? (lib)->net.v11->member \
                            : (lib)->net.v12->member)
#define COLL(lib, member) \
    ((lib)->version == 8    ? (lib)->coll.v8->member \
     : (lib)->version <= 10 ? (lib)->coll.v9->member \
     : (lib)->version == 11 ? (lib)->coll.v11->member \
                            : (lib)->coll.v12->member)

const char *hx_plugin_path(void)
{
    if (hx_env_read()->plugin[0])
        return hx_env_read()->plugin;
#ifdef HX_PLUGIN_DEFAULT
    return HX_PLUGIN_DEFAULT;
#else
    return "libnccl-net-nibble.so";
#endif
}

static const void *symbol(void *dl, const char *what, int version)
{
    char name[64];

    snprintf(name, sizeof name, "%s_v%d", what, version);
    return dlsym(dl, name);
}

struct hx_lib *hx_lib_open(const char *path, int version)
{
    struct hx_lib *lib = calloc(1, sizeof *lib);

    if (!lib)
        return NULL;
    path = path ? path : hx_plugin_path();
    lib->dl = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib->dl) {
        hx_fail("dlopen: %s", dlerror());
        free(lib);
        return NULL;
    }
    for (int v = version ? version : NB_NET_NEWEST; v >= (version ? version : NB_NET_OLDEST) && !lib->version;
         v--) {
        lib->net.any = symbol(lib->dl, "ncclNetPlugin", v);
        lib->coll.any = symbol(lib->dl, "ncclCollNetPlugin", v);
        if (lib->net.any && lib->coll.any)
            lib->version = v;
    }
    if (!lib->version) {
        hx_fail("%s lacks a net or a CollNet table of version %d", path, version);
        dlclose(lib->dl);
        free(lib);
        return NULL;
    }
    return lib;
}

struct hx_lib *hx_lib_static(const void *net, const void *coll, int version)
{
    struct hx_lib *lib = calloc(1, sizeof *lib);

    if (!lib)
        return NULL;
    lib->version = version;
    lib->net.any = net;
    lib->coll.any = coll;
    return lib;
}

void hx_lib_close(struct hx_lib *lib)
{
    if (!lib)
        return;
    if (lib->dl)
        dlclose(lib->dl);
    free(lib);
}

int hx_lib_version(const struct hx_lib *lib)
{
    return lib->version;
}

int hx_lib_has(const char *path, int version)
{
    void *dl = dlopen(path ? path : hx_plugin_path(), RTLD_NOW | RTLD_LOCAL);
    int has;

    if (!dl)
        return 0;
    has = symbol(dl, "ncclNetPlugin", version) && symbol(dl, "ncclCollNetPlugin", version);
    dlclose(dl);
    return has;
}

/* ---- init and finalize ---- */

static ncclResult_t no_profiler(void **event, int type, void *parent, int64_t plugin_id, void *ext)
{
    (void)type, (void)parent, (void)plugin_id, (void)ext;
    if (event)
        *event = NULL;
    return ncclSuccess;
}

static ncclResult_t net_init(struct hx_lib *lib, uint64_t comm_id, void **ctx)
{
    struct hx_config config = {-1};

    switch (lib->version) {
    case 8: return lib->net_inited ? ncclSuccess : lib->net.v8->init(hx_logger());
    case 9: return lib->net_inited ? ncclSuccess : lib->net.v9->init(hx_logger());
    case 10: return lib->net_inited ? ncclSuccess : lib->net.v10->init(hx_logger(), no_profiler);
    case 11: return lib->net.v11->init(ctx, comm_id, &config, hx_logger(), no_profiler);
    default: return lib->net.v12->init(ctx, comm_id, &config, hx_logger(), no_profiler);
    }
}

static ncclResult_t coll_init(struct hx_lib *lib, uint64_t comm_id, void **ctx)
{
    switch (lib->version) {
    case 8: return lib->coll_inited ? ncclSuccess : lib->coll.v8->init(hx_logger());
    case 9:
    case 10: return lib->coll_inited ? ncclSuccess : lib->coll.v9->init(hx_logger());
    case 11: return lib->coll.v11->init(ctx, comm_id, hx_logger());
    default: return lib->coll.v12->init(ctx, comm_id, hx_logger());
    }
}

ncclResult_t hx_init(struct hx_lib *lib, uint64_t comm_id, struct hx_ctx *ctx)
{
    ncclResult_t ret;

    memset(ctx, 0, sizeof *ctx);
    if (lib->net.any) {
        ret = net_init(lib, comm_id, &ctx->net);
        if (ret != ncclSuccess)
            return ret;
        ctx->net_ok = true;
        ret = NET(lib, devices(&ctx->ndev));
        if (ret != ncclSuccess)
            return ret;
        lib->net_inited = true;
    }
    if (!lib->coll_inited || lib->coll_ok) {
        ctx->coll_ok = coll_init(lib, comm_id, &ctx->coll) == ncclSuccess &&
                       COLL(lib, devices(&ctx->coll_ndev)) == ncclSuccess && ctx->coll_ndev > 0;
        lib->coll_ok = ctx->coll_ok; /* a failure switches CollNet off for the process */
        lib->coll_inited = true;
    }
    return ncclSuccess;
}

ncclResult_t hx_finalize(struct hx_lib *lib, struct hx_ctx *ctx)
{
    ncclResult_t ret = ncclSuccess, ret2 = ncclSuccess;

    if (lib->version >= 11) {
        if (ctx->net_ok)
            ret = lib->version == 11 ? lib->net.v11->finalize(ctx->net) : lib->net.v12->finalize(ctx->net);
        if (ctx->coll_ok)
            ret2 =
                lib->version == 11 ? lib->coll.v11->finalize(ctx->coll) : lib->coll.v12->finalize(ctx->coll);
    }
    memset(ctx, 0, sizeof *ctx);
    return ret != ncclSuccess ? ret : ret2;
}

/* ---- properties ---- */

#define COMMON_PROPS(p) \
    do { \
        snprintf(out->name, sizeof out->name, "%s", (p).name); \
        if ((p).pci_path) \
            snprintf(out->pci_path, sizeof out->pci_path, "%s", (p).pci_path); \
        out->guid = (p).guid; \
        out->ptr_support = (p).ptr_support; \
        out->reg_is_global = (p).reg_is_global; \
        out->speed = (p).speed; \
        out->port = (p).port; \
        out->latency = (p).latency; \
        out->max_comms = (p).max_comms; \
        out->max_recvs = (p).max_recvs; \
    } while (0)

static void props_from(struct hx_lib *lib, const void *from, struct hx_props *out)
{
    const struct hx_props_v8 *p8 = from;
    const struct hx_props_v12 *p12 = from;
    const struct hx_props_v9 *p9 = from; /* also the beginning of version 11's */

    memset(out, 0, sizeof *out);
    switch (lib->version) {
    case 8:
        COMMON_PROPS(*p8);
        out->max_p2p_bytes = out->max_coll_bytes = OLD_MAX_BYTES;
        break;
    case 12:
        COMMON_PROPS(*p12);
        out->force_flush = p12->force_flush;
        out->max_p2p_bytes = p12->max_p2p_bytes;
        out->max_coll_bytes = p12->max_coll_bytes;
        break;
    default:
        COMMON_PROPS(*p9);
        out->force_flush = p9->force_flush;
        out->max_p2p_bytes = p9->max_p2p_bytes;
        out->max_coll_bytes = p9->max_coll_bytes;
    }
}

union any_props {
    struct hx_props_v8 v8;
    struct hx_props_v9 v9;
    struct hx_props_v11 v11;
    struct hx_props_v12 v12;
};

ncclResult_t hx_net_properties(struct hx_lib *lib, int dev, struct hx_props *props)
{
    union any_props p;
    ncclResult_t ret;

    memset(&p, 0, sizeof p);
    ret = lib->version == 8    ? lib->net.v8->getProperties(dev, &p.v8)
          : lib->version == 9  ? lib->net.v9->getProperties(dev, &p.v9)
          : lib->version == 10 ? lib->net.v10->getProperties(dev, &p.v9)
          : lib->version == 11 ? lib->net.v11->getProperties(dev, &p.v11)
                               : lib->net.v12->getProperties(dev, &p.v12);
    if (ret == ncclSuccess)
        props_from(lib, &p, props);
    return ret;
}

ncclResult_t hx_coll_properties(struct hx_lib *lib, int dev, struct hx_props *props)
{
    union any_props p;
    ncclResult_t ret;

    memset(&p, 0, sizeof p);
    ret = lib->version == 8    ? lib->coll.v8->getProperties(dev, &p.v8)
          : lib->version <= 10 ? lib->coll.v9->getProperties(dev, &p.v9)
          : lib->version == 11 ? lib->coll.v11->getProperties(dev, &p.v11)
                               : lib->coll.v12->getProperties(dev, &p.v12);
    if (ret == ncclSuccess)
        props_from(lib, &p, props);
    return ret;
}

/* ---- net ---- */

ncclResult_t hx_net_listen(struct hx_lib *lib, struct hx_ctx *ctx, int dev, void *handle, void **listen)
{
    switch (lib->version) {
    case 8: return lib->net.v8->listen(dev, handle, listen);
    case 9: return lib->net.v9->listen(dev, handle, listen);
    case 10: return lib->net.v10->listen(dev, handle, listen);
    case 11: return lib->net.v11->listen(ctx->net, dev, handle, listen);
    default: return lib->net.v12->listen(ctx->net, dev, handle, listen);
    }
}

ncclResult_t hx_net_connect(struct hx_lib *lib, struct hx_ctx *ctx, int dev, void *handle, void **send_comm)
{
    struct hx_config config = {-1};
    void *device = NULL;

    switch (lib->version) {
    case 8: return lib->net.v8->connect(dev, handle, send_comm, &device);
    case 9: return lib->net.v9->connect(dev, handle, send_comm, &device);
    case 10: return lib->net.v10->connect(dev, &config, handle, send_comm, &device);
    case 11: return lib->net.v11->connect(ctx->net, dev, handle, send_comm, &device);
    default: return lib->net.v12->connect(ctx->net, dev, handle, send_comm, &device);
    }
}

ncclResult_t hx_net_accept(struct hx_lib *lib, void *listen, void **recv_comm)
{
    void *device = NULL;

    return NET(lib, accept(listen, recv_comm, &device));
}

ncclResult_t hx_net_reg_mr(struct hx_lib *lib, void *comm, void *data, size_t size, int type, void **mhandle)
{
    return NET(lib, regMr(comm, data, size, type, mhandle));
}

ncclResult_t hx_net_dereg_mr(struct hx_lib *lib, void *comm, void *mhandle)
{
    return NET(lib, deregMr(comm, mhandle));
}

ncclResult_t hx_net_isend(struct hx_lib *lib, void *comm, void *data, size_t size, int tag, void *mhandle,
                          void **request)
{
    switch (lib->version) {
    case 8: return lib->net.v8->isend(comm, data, (int)size, tag, mhandle, request);
    case 9: return lib->net.v9->isend(comm, data, size, tag, mhandle, request);
    case 10: return lib->net.v10->isend(comm, data, size, tag, mhandle, NULL, request);
    case 11: return lib->net.v11->isend(comm, data, size, tag, mhandle, NULL, request);
    default: return lib->net.v12->isend(comm, data, size, tag, mhandle, NULL, request);
    }
}

ncclResult_t hx_net_irecv(struct hx_lib *lib, void *comm, int n, void **data, const size_t *sizes,
                          const int *tags, void **mhandles, void **request)
{
    size_t wide[HX_CALL_CHANNELS];
    int narrow[HX_CALL_CHANNELS], tag[HX_CALL_CHANNELS];
    void *phandles[HX_CALL_CHANNELS] = {NULL};

    if (n > HX_CALL_CHANNELS)
        return ncclInternalError;
    for (int i = 0; i < n; i++) {
        wide[i] = sizes[i];
        narrow[i] = (int)sizes[i];
        tag[i] = tags[i];
    }
    switch (lib->version) {
    case 8: return lib->net.v8->irecv(comm, n, data, narrow, tag, mhandles, request);
    case 9: return lib->net.v9->irecv(comm, n, data, wide, tag, mhandles, request);
    case 10: return lib->net.v10->irecv(comm, n, data, wide, tag, mhandles, phandles, request);
    case 11: return lib->net.v11->irecv(comm, n, data, wide, tag, mhandles, phandles, request);
    default: return lib->net.v12->irecv(comm, n, data, wide, tag, mhandles, phandles, request);
    }
}

ncclResult_t hx_net_iflush(struct hx_lib *lib, void *comm, int n, void **data, const int *sizes,
                           void **mhandles, void **request)
{
    int size[HX_CALL_CHANNELS];

    if (n > HX_CALL_CHANNELS)
        return ncclInternalError;
    memcpy(size, sizes, (size_t)n * sizeof(int));
    return NET(lib, iflush(comm, n, data, size, mhandles, request));
}

ncclResult_t hx_net_test(struct hx_lib *lib, void *request, int *done, int *sizes)
{
    return NET(lib, test(request, done, sizes));
}

ncclResult_t hx_net_close_send(struct hx_lib *lib, void *comm)
{
    return NET(lib, closeSend(comm));
}

ncclResult_t hx_net_close_recv(struct hx_lib *lib, void *comm)
{
    return NET(lib, closeRecv(comm));
}

ncclResult_t hx_net_close_listen(struct hx_lib *lib, void *listen)
{
    return NET(lib, closeListen(listen));
}

/* ---- CollNet ---- */

ncclResult_t hx_coll_listen(struct hx_lib *lib, struct hx_ctx *ctx, int dev, void *handle, void **listen)
{
    switch (lib->version) {
    case 8: return lib->coll.v8->listen(dev, handle, listen);
    case 9:
    case 10: return lib->coll.v9->listen(dev, handle, listen);
    case 11: return lib->coll.v11->listen(ctx->coll, dev, handle, listen);
    default: return lib->coll.v12->listen(ctx->coll, dev, handle, listen);
    }
}

ncclResult_t hx_coll_connect(struct hx_lib *lib, void **handles, int nranks, int rank, void *listen,
                             void **comm)
{
    return COLL(lib, connect(handles, nranks, rank, listen, comm));
}

ncclResult_t hx_coll_reduce_support(struct hx_lib *lib, ncclDataType_t type, ncclRedOp_t op, int *supported)
{
    return COLL(lib, reduceSupport(type, op, supported));
}

ncclResult_t hx_coll_reg_mr(struct hx_lib *lib, void *comm, void *data, size_t size, int type, void **mhandle)
{
    return COLL(lib, regMr(comm, data, size, type, mhandle));
}

ncclResult_t hx_coll_dereg_mr(struct hx_lib *lib, void *comm, void *mhandle)
{
    return COLL(lib, deregMr(comm, mhandle));
}

ncclResult_t hx_coll_iallreduce(struct hx_lib *lib, void *comm, void *send, void *recv, size_t count,
                                ncclDataType_t type, ncclRedOp_t op, void *send_mh, void *recv_mh,
                                void **request)
{
    if (lib->version == 8)
        return lib->coll.v8->iallreduce(comm, send, recv, (int)count, type, op, send_mh, recv_mh, request);
    if (lib->version <= 10)
        return lib->coll.v9->iallreduce(comm, send, recv, count, type, op, send_mh, recv_mh, request);
    if (lib->version == 11)
        return lib->coll.v11->iallreduce(comm, send, recv, count, type, op, send_mh, recv_mh, request);
    return lib->coll.v12->iallreduce(comm, send, recv, count, type, op, send_mh, recv_mh, request);
}

ncclResult_t hx_coll_iallgather(struct hx_lib *lib, void *comm, void *send, void *recv, size_t recv_bytes,
                                void *recv_mh, size_t bytes_per_rank, size_t offset, size_t bytes,
                                void *send_mh, void **request)
{
    struct hx_sge_v8 part8 = {recv_mh, recv, (uint32_t)recv_bytes};
    struct hx_sge_v9 part = {recv_mh, recv, recv_bytes};

    if (lib->version == 8)
        return lib->coll.v8->iallgather(comm, send, 1, &part8, bytes_per_rank, offset, bytes, send_mh,
                                        request);
    if (lib->version <= 10)
        return lib->coll.v9->iallgather(comm, send, 1, &part, bytes_per_rank, offset, bytes, send_mh,
                                        request);
    if (lib->version == 11)
        return lib->coll.v11->iallgather(comm, send, 1, &part, bytes_per_rank, offset, bytes, send_mh,
                                         request);
    return lib->coll.v12->iallgather(comm, send, 1, &part, bytes_per_rank, offset, bytes, send_mh, request);
}

ncclResult_t hx_coll_ireducescatter(struct hx_lib *lib, void *comm, void *send, size_t send_bytes,
                                    void *send_mh, void *recv, size_t bytes_per_rank, size_t offset,
                                    size_t bytes, ncclDataType_t type, ncclRedOp_t op, void *recv_mh,
                                    void **request)
{
    struct hx_sge_v8 part8 = {send_mh, send, (uint32_t)send_bytes};
    struct hx_sge_v9 part = {send_mh, send, send_bytes};

    if (lib->version == 8)
        return lib->coll.v8->ireducescatter(comm, 1, &part8, recv, bytes_per_rank, offset, bytes, type, op,
                                            recv_mh, request);
    if (lib->version <= 10)
        return lib->coll.v9->ireducescatter(comm, 1, &part, recv, bytes_per_rank, offset, bytes, type, op,
                                            recv_mh, request);
    if (lib->version == 11)
        return lib->coll.v11->ireducescatter(comm, 1, &part, recv, bytes_per_rank, offset, bytes, type, op,
                                             recv_mh, request);
    return lib->coll.v12->ireducescatter(comm, 1, &part, recv, bytes_per_rank, offset, bytes, type, op,
                                         recv_mh, request);
}

ncclResult_t hx_coll_iflush(struct hx_lib *lib, void *comm, void *data, int size, void *mhandle,
                            void **request)
{
    return COLL(lib, iflush(comm, data, size, mhandle, request));
}

ncclResult_t hx_coll_test(struct hx_lib *lib, void *request, int *done, int *size)
{
    return COLL(lib, test(request, done, size));
}

ncclResult_t hx_coll_close(struct hx_lib *lib, void *comm)
{
    return COLL(lib, closeColl(comm));
}

ncclResult_t hx_coll_close_listen(struct hx_lib *lib, void *listen)
{
    return COLL(lib, closeListen(listen));
}
