/* SPDX-License-Identifier: Apache-2.0 */
/* Memory registrations, as in struct nb_net_ops. */
#ifndef NIBBLE_NET_VERBS_MR_H
#define NIBBLE_NET_VERBS_MR_H

#include "net/transport.h"

int nb_verbs_reg_mr(void *comm, void *data, size_t size, enum nb_mem type, void **mhandle);
int nb_verbs_reg_mr_dmabuf(void *comm, void *data, size_t size, enum nb_mem type, uint64_t offset, int fd,
                           void **mhandle);
int nb_verbs_dereg_mr(void *comm, void *mhandle);

#endif
