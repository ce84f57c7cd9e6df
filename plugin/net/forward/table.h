/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another plugin's point-to-point table, of any version from 8 to 12, behind functions that do not depend on
 * the version. It is called as NCCL's adapter of its version does. Sizes are checked where a version narrows
 * them. The functions return the plugin's own result codes; only failures to load are logged here.
 *
 * From v11 on a plugin is initialized for every communicator, with its traffic class; the transports'
 * interface has connections only. Hence there is one plugin context for each traffic class, created on first
 * use.
 */
#ifndef NIBBLE_NET_FORWARD_TABLE_H
#define NIBBLE_NET_FORWARD_TABLE_H

#include <stddef.h>

#include "net/transport.h"
#include "nibble/nccl_net.h"

struct nb_foreign;

/* Open the plugin called `name` as NCCL does with NCCL_NET_PLUGIN: what has a '/' or ends in ".so" is a file,
 * else it is libnccl-net-<name>.so on the library path. Takes its newest table and initializes it. 0, or a
 * negative errno after a WARN line: -ENOENT (cannot be opened), -ENOTSUP (no table of version 8 to 12),
 * -ELOOP (it is this library), or what its init gave. */
int nb_foreign_open(const char *name, struct nb_foreign **out);
/* Finalize all contexts (v11 and later) and unload. */
void nb_foreign_close(struct nb_foreign *f);

/* "ofi (libnccl-net-ofi.so, v11)" */
const char *nb_foreign_label(const struct nb_foreign *f);

ncclResult_t nb_foreign_devices(struct nb_foreign *f, int *ndev);
/* *type: who moves the data, of enum ncclNetDeviceType. */
ncclResult_t nb_foreign_properties(struct nb_foreign *f, int dev, struct nb_net_props *props, int *type);
ncclResult_t nb_foreign_listen(struct nb_foreign *f, int dev, void *handle, void **listen_comm);
ncclResult_t nb_foreign_connect(struct nb_foreign *f, int dev, int traffic_class, void *handle,
                                void **send_comm);
ncclResult_t nb_foreign_accept(struct nb_foreign *f, void *listen_comm, void **recv_comm);
ncclResult_t nb_foreign_reg_mr(struct nb_foreign *f, void *comm, void *data, size_t size, int type,
                               void **mhandle);
/* ncclInvalidUsage where the plugin has no such function. */
ncclResult_t nb_foreign_reg_mr_dmabuf(struct nb_foreign *f, void *comm, void *data, size_t size, int type,
                                      uint64_t offset, int fd, void **mhandle);
ncclResult_t nb_foreign_dereg_mr(struct nb_foreign *f, void *comm, void *mhandle);
/* Sizes must not be above the properties' max_bytes. */
ncclResult_t nb_foreign_isend(struct nb_foreign *f, void *comm, const void *data, size_t size, int tag,
                              void *mhandle, void **request);
ncclResult_t nb_foreign_irecv(struct nb_foreign *f, void *comm, int n, void **data, const size_t *sizes,
                              const int *tags, void **mhandles, void **request);
ncclResult_t nb_foreign_iflush(struct nb_foreign *f, void *comm, int n, void **data, const size_t *sizes,
                               void **mhandles, void **request);
/* sizes: NULL or NB_NET_MAX_RECVS entries, of which the plugin fills in those it has. */
ncclResult_t nb_foreign_test(struct nb_foreign *f, void *request, int *done, int *sizes);
ncclResult_t nb_foreign_close_send(struct nb_foreign *f, void *comm);
ncclResult_t nb_foreign_close_recv(struct nb_foreign *f, void *comm);
ncclResult_t nb_foreign_close_listen(struct nb_foreign *f, void *comm);

#endif
