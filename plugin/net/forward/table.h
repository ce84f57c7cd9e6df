/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another plugin's point-to-point table, of any version from 8 to 12, behind functions that do not depend on
 * the version. nibble calls it as NCCL's adapter of its version does, and checks sizes where a version
 * narrows them. The functions return the plugin's own result codes. This file logs only failures to load.
 *
 * From v11 on NCCL initializes a plugin for every communicator, with its traffic class. The transports'
 * interface has connections only. There is therefore one plugin context for each traffic class, created on
 * first use.
 */
#ifndef NIBBLE_NET_FORWARD_TABLE_H
#define NIBBLE_NET_FORWARD_TABLE_H

#include <stddef.h>

#include "net/transport.h"
#include "nibble/nccl_net.h"

struct nb_foreign;

/* Open the plugin called `name` as NCCL does with NCCL_NET_PLUGIN. A name that has a '/' or ends in ".so" is
 * a file. Any other name stands for libnccl-net-<name>.so on the library path. Take the plugin's newest table
 * and initialize it. Return 0, or a negative errno after a WARN line: -ENOENT (cannot be opened), -ENOTSUP
 * (no table of version 8 to 12), -ELOOP (it is this library), or the error of the plugin's init. */
int nb_foreign_open(const char *name, struct nb_foreign **out);
/* Finalize all contexts (v11 and later) and unload. */
void nb_foreign_close(struct nb_foreign *f);

/* Return "ofi (libnccl-net-ofi.so, v11)". */
const char *nb_foreign_label(const struct nb_foreign *f);

ncclResult_t nb_foreign_devices(struct nb_foreign *f, int *ndev);
/* Read a device's properties. *type is its enum ncclNetDeviceType, which says whether host or device moves
 * the data. */
ncclResult_t nb_foreign_properties(struct nb_foreign *f, int dev, struct nb_net_props *props, int *type);
ncclResult_t nb_foreign_listen(struct nb_foreign *f, int dev, void *handle, void **listen_comm);
ncclResult_t nb_foreign_connect(struct nb_foreign *f, int dev, int traffic_class, void *handle,
                                void **send_comm);
ncclResult_t nb_foreign_accept(struct nb_foreign *f, void *listen_comm, void **recv_comm);
ncclResult_t nb_foreign_reg_mr(struct nb_foreign *f, void *comm, void *data, size_t size, int type,
                               void **mhandle);
/* Register a DMA-BUF. Return ncclInvalidUsage where the plugin lacks the function. */
ncclResult_t nb_foreign_reg_mr_dmabuf(struct nb_foreign *f, void *comm, void *data, size_t size, int type,
                                      uint64_t offset, int fd, void **mhandle);
ncclResult_t nb_foreign_dereg_mr(struct nb_foreign *f, void *comm, void *mhandle);
/* Post messages. Sizes must be at most the properties' max_bytes. */
ncclResult_t nb_foreign_isend(struct nb_foreign *f, void *comm, const void *data, size_t size, int tag,
                              void *mhandle, void **request);
ncclResult_t nb_foreign_irecv(struct nb_foreign *f, void *comm, int n, void **data, const size_t *sizes,
                              const int *tags, void **mhandles, void **request);
ncclResult_t nb_foreign_iflush(struct nb_foreign *f, void *comm, int n, void **data, const size_t *sizes,
                               void **mhandles, void **request);
/* Test a request. `sizes` is NULL or has NB_NET_MAX_RECVS entries, of which the plugin fills in those of its
 * messages. */
ncclResult_t nb_foreign_test(struct nb_foreign *f, void *request, int *done, int *sizes);
ncclResult_t nb_foreign_close_send(struct nb_foreign *f, void *comm);
ncclResult_t nb_foreign_close_recv(struct nb_foreign *f, void *comm);
ncclResult_t nb_foreign_close_listen(struct nb_foreign *f, void *comm);

#endif
