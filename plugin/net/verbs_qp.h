/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pairs: how they are made and connected. */
#ifndef NIBBLE_NET_VERBS_QP_H
#define NIBBLE_NET_VERBS_QP_H

#include "net/verbs_comm.h"

/* A queue pair in INIT. NULL: errno in *err. */
struct ibv_qp *nb_verbs_qp_new(struct nb_verbs_comm *c, unsigned send_depth, unsigned recv_depth, int access,
                               int *err);
/* From INIT to ready, towards the queue pair `qpn` of `peer`. 0, -EAGAIN (try again: the peer's hardware
 * address is not known yet), or another negative errno. */
int nb_verbs_qp_connect(struct nb_verbs_comm *c, struct ibv_qp *qp, uint32_t qpn,
                        const struct nb_verbs_meta *peer, uint8_t traffic_class);

#endif
