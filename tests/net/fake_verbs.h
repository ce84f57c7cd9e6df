/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libibverbs, played within one process: adapters, ports, registrations, completion queues and queue pairs as
 * plain objects. They really move bytes, check keys, bounds, states and queue depths as adapters do, and log
 * the requests that they get. Tests make them fail: any call, any work request with any status, ports,
 * asynchronous events.
 *
 * Delivery: a work request is carried out when it is posted. With fake.shuffle it is carried out later, in
 * any order among queue pairs, when a thread polls a completion queue. A request that needs a missing receive
 * request waits and is counted, as it should not happen. While a port is down, requests wait until
 * fake_timeout().
 *
 * Any thread may call in, and one lock guards everything. A test sets fields of `fake` while the transport is
 * idle.
 */
#ifndef NIBBLE_TESTS_NET_FAKE_VERBS_H
#define NIBBLE_TESTS_NET_FAKE_VERBS_H

#include <stdbool.h>
#include <stdint.h>

#include "net/verbs/api.h"

#define FAKE_DEVICES 4
#define FAKE_PORTS 2
#define FAKE_GIDS 6
#define FAKE_LOG 4096

struct fake_port {
    bool down;
    int link; /* IBV_LINK_LAYER_* */
    enum ibv_mtu mtu;
    uint8_t speed, width, flags;
    uint16_t lid;
    uint32_t max_msg;
    union ibv_gid gid[FAKE_GIDS];
    const char *gid_type[FAKE_GIDS]; /* NULL: the kernel refuses to tell */
    int gids;
};

struct fake_device {
    const char *name, *pci; /* pci NULL: no path */
    int ports;
    uint64_t guid;
    int max_qp_wr, max_cqe, max_sge;
    struct fake_port port[FAKE_PORTS];
};

/* The world, and its faults. */
struct fake_world {
    int devices;
    struct fake_device device[FAKE_DEVICES];
    bool no_kernel;      /* ibv_get_device_list returns an empty list */
    bool peermem;        /* nvidia_peermem is loaded */
    bool dmabuf;         /* the driver registers DMA-BUFs */
    bool no_iova2;       /* an old library */
    uint64_t port_speed; /* ibv_query_port_speed. 0: it fails */
    bool shuffle;
    bool lose_acks; /* messages arrive, but their senders do not hear of it */
    unsigned seed;
};

extern struct fake_world fake;

/* Make a world of one active RoCE adapter "fake0" with a second "fake1", without faults and with an empty
 * log. The transport then uses it. */
void fake_reset(void);
/* Return to libibverbs. */
void fake_end(void);

/* ---- faults ---- */

/* Let the nth call from now (1: the next) of ibv_<name> fail with this errno. Several may be set. */
void fake_fail_call(const char *name, int nth, int err);
enum fake_side { FAKE_SENDER, FAKE_RECEIVER };
/* Let the nth work request carried out from now on fail with this status. FAKE_SENDER: the side that posted
 * it sees the failure. FAKE_RECEIVER: for a request with an immediate, the side whose receive request it
 * takes. */
void fake_fail_wc(enum fake_side side, int nth, enum ibv_wc_status status, uint32_t vendor);
/* Post an asynchronous event about a port, or about the nth queue pair (or its completion queue) of the
 * device, in the order of their creation. */
void fake_event(int device, enum ibv_event_type type, int n);
void fake_port_set(int device, int port, bool up);
/* End the retries of requests that wait for a port. */
void fake_timeout(void);

/* ---- record ---- */

struct fake_counts {
    int contexts, pds, mrs, channels, cqs, qps; /* there now */
    int fork_inits, events_unacked;
    int not_ready; /* requests without a receive request */
    int misuse;    /* calls that break the rules: freeing objects in use, posting too much, bad states */
};
struct fake_counts fake_counts(void);
/* Describe the last misuse. */
const char *fake_misuse(void);

enum fake_what { FAKE_REG, FAKE_CREATE_QP, FAKE_MODIFY, FAKE_POST };
struct fake_entry {
    enum fake_what what;
    uint32_t qpn;
    /* FAKE_REG */
    int access, fd;
    uint64_t addr, length, offset;
    bool iova2;
    /* FAKE_CREATE_QP */
    struct ibv_qp_cap cap;
    /* FAKE_MODIFY */
    int mask;
    struct ibv_qp_attr attr;
    /* FAKE_POST */
    enum ibv_wr_opcode opcode;
    unsigned flags;
    uint32_t bytes;
    uint64_t remote;
};
/* Return the nth entry of a kind since the last fake_forget (counted from 0), or NULL. FAKE_MODIFY: only
 * entries to `state`. FAKE_POST: only entries with this opcode. -1: any. */
const struct fake_entry *fake_log(enum fake_what what, int detail, int nth);
int fake_logged(enum fake_what what, int detail);
void fake_forget(void);

#endif
