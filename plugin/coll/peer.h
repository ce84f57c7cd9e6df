/* SPDX-License-Identifier: Apache-2.0 */
/* Another node of the group: its rings, where it is connected with this one, and what each module keeps for
 * it. */
#ifndef NIBBLE_COLL_PEER_H
#define NIBBLE_COLL_PEER_H

#include "coll/link.h"
#include "coll/progress.h"
#include "coll/receive.h"
#include "coll/retransmit.h"
#include "coll/send.h"
#include "coll/take_gather.h"

struct nb_peer {
    int rank;
    char name[112]; /* "node 3 (host, address)" */
    int linked;     /* this node is connected with it: the rings below exist */
    int gone;       /* nothing more is exchanged with it; it said BYE before, or this node is closing */
    struct nb_tx tx[NB_CLASS_COUNT];
    struct nb_rx rx[NB_CLASS_COUNT];
    struct nb_peer_send send;
    struct nb_peer_gather gather;
    struct nb_peer_results results;
    struct nb_peer_raw raw;
    struct nb_peer_life life;
};

#endif
