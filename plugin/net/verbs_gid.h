/* SPDX-License-Identifier: Apache-2.0 */
/* Which of a port's GIDs a connection uses. */
#ifndef NIBBLE_NET_VERBS_GID_H
#define NIBBLE_NET_VERBS_GID_H

#include <stdint.h>

#include "net/verbs_dev.h"

/* Index of the GID to use on this port, by NCCL's rules. 0 or a negative errno after a WARN line. */
int nb_verbs_gid_choose(const struct nb_verbs_dev *dev, int *index, union ibv_gid *gid);
/* "fe80::1" into buf of INET6_ADDRSTRLEN bytes. */
void nb_verbs_gid_name(const uint8_t raw[16], char *buf);

#endif
