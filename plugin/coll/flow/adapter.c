/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport's adapter, for a device whose kernel does not begin: it copies between GPU memory and host
 * memory by itself (net/transport.h, icopy). Any of the communicator's connections will do, since all of them
 * use one adapter. The engine's thread copies, as it uses the connection anyway.
 */
#include <errno.h>

#include "coll/flow/internal.h"

int nb_adapter_kinds(const struct nb_coll_comm *comm, bool parts)
{
    struct nb_net_props props;

    if (comm->ctx->net->ops->properties(comm->ctx->net, comm->dev, &props) || (parts && !props.parts))
        return 0;
    return props.mem_support & (NB_MEM_CUDA | NB_MEM_DMABUF);
}

static const struct nb_flow_adapter *of(const struct nb_adapter *adapter)
{
    return (const struct nb_flow_adapter *)adapter;
}

static int reg(const struct nb_adapter *adapter, void *data, size_t bytes, bool gpu, int fd, uint64_t offset,
               void **handle)
{
    const struct nb_flow_adapter *a = of(adapter);

    if (!gpu)
        return a->net->reg_mr(a->conn, data, bytes, NB_MEM_HOST, handle);
    if (fd >= 0)
        return a->kinds & NB_MEM_DMABUF && a->net->reg_mr_dmabuf
                   ? a->net->reg_mr_dmabuf(a->conn, data, bytes, NB_MEM_CUDA, offset, fd, handle)
                   : -ENOTSUP;
    return a->kinds & NB_MEM_CUDA ? a->net->reg_mr(a->conn, data, bytes, NB_MEM_CUDA, handle) : -ENOTSUP;
}

static void dereg(const struct nb_adapter *adapter, void *handle)
{
    of(adapter)->net->dereg_mr(of(adapter)->conn, handle);
}

static int copy(const struct nb_adapter *adapter, void *to, void *to_handle, const void *from,
                void *from_handle, size_t bytes, void **request)
{
    return of(adapter)->net->icopy(of(adapter)->conn, to, to_handle, from, from_handle, bytes, request);
}

static int test(const struct nb_adapter *adapter, void *request, int *done)
{
    return of(adapter)->net->test(request, done, NULL);
}

void nb_adapter_give(struct nb_coll_comm *comm)
{
    struct nb_flow_adapter *a = &comm->flow->adapter;

    if (!comm->net->icopy || !comm->device->ops->adapter || comm->nneighbors == 0)
        return;
    *a = (struct nb_flow_adapter){.adapter = {reg, dereg, copy, test},
                                  .net = comm->net,
                                  .conn = comm->neighbors[0]->rx[NB_CLASS_CONTRIB].conn,
                                  .kinds = nb_adapter_kinds(comm, false)};
    if (a->conn && a->kinds)
        comm->device->ops->adapter(comm->device, &a->adapter);
    else
        a->conn = NULL;
}

void nb_adapter_take_back(struct nb_coll_comm *comm)
{
    if (comm->flow && comm->flow->adapter.conn)
        comm->device->ops->adapter(comm->device, NULL);
    if (comm->flow)
        comm->flow->adapter.conn = NULL;
}
