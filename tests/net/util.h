/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the TCP transport share: settings, connections over loopback, payload, captured log
 * lines. */
#ifndef NIBBLE_TESTS_NET_UTIL_H
#define NIBBLE_TESTS_NET_UTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/transport.h"

struct pair {
    void *listen, *send, *recv;
    uint8_t handle[NB_NET_HANDLE_BYTES];
};

/* Helper threads a device (NIBBLE_TCP_THREADS) in what net_up sets; 0 at first. */
extern int net_threads;

/* Take the transport with NCCL_SOCKET_IFNAME=lo and the given further settings ("NAME=value", up to NULL);
 * net_down() unsets them. Fails the test on an error. */
const struct nb_net_ops *net_up(const char *setting, ...) __attribute__((sentinel));
void net_down(void);

/* Connect and accept on device 0 within 10 s, in this thread. streams 0: default. */
void pair_open(struct pair *p, int streams);
void pair_close(struct pair *p); /* whatever is not NULL */

/* Post; fails the test on an error or on "later". */
void *post_send(void *comm, const void *data, size_t size, int tag);
void *post_recv(void *comm, void *data, size_t size, int tag);

/* Test until done, an error, or -ETIME after `ms`. sizes may be NULL. */
int wait_req(void *req, size_t *sizes, int ms);
/* Test all requests until all are done; entries become NULL. First error, or -ETIME. */
int wait_all(void **reqs, int n, int ms);

/* Bytes that depend on the message's number and the position. */
void fill_bytes(void *data, size_t size, unsigned number);
bool check_bytes(const void *data, size_t size, unsigned number);

int64_t now_ms(void);
int open_fds(void);
int helper_threads(void); /* running in this process */

/* WARN lines since net_up; the last of them. Other levels are dropped. */
int warnings(void);
const char *last_warning(void);

#endif
