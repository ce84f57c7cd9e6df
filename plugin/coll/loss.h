/* SPDX-License-Identifier: Apache-2.0 */
/* Why a connection has ended. For the engine thread. */
#ifndef NIBBLE_COLL_LOSS_H
#define NIBBLE_COLL_LOSS_H

#include <stdint.h>

struct nb_coll_comm;

/* A round of a communicator some of whose connections have ended (nb_comm_suspect), in place of the usual
 * one: look for the cause. < 0 when the communicator has failed with it, else whether something moved. */
int nb_loss_explain(struct nb_coll_comm *comm, int64_t now_ns);

#endif
