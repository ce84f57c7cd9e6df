/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the transports share: settings, connections over loopback, payload, captured log
 * lines. */
#ifndef NIBBLE_TESTS_NET_UTIL_H
#define NIBBLE_TESTS_NET_UTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <check.h>

#include "net/transport.h"

struct pair {
    void *listen, *send, *recv;
    uint8_t handle[NB_NET_HANDLE_BYTES];
};

/* The transport that net_up takes: "tcp" at first, "verbs", "auto"; verbs is over fake_verbs.h, which the
 * test resets. */
extern const char *net_transport;
/* Taken instead of what the settings name; NULL at first. */
extern const struct nb_net_ops *net_ops;
/* Further settings ("NAME=value") of every net_up, up to NULL; NULL at first. */
extern const char *const *net_settings;

/* Take the transport with NCCL_SOCKET_IFNAME=lo and the given further settings ("NAME=value", up to NULL);
 * net_down() unsets them. Fails the test on an error. */
struct nb_net *net_up(const char *setting, ...) __attribute__((sentinel));
void net_down(void);

/* The transport as the environment has it now: 0 and *net, or the error; and its end. One at a time. */
int net_open(struct nb_net **net);
void net_close(void);
/* That of the transport that is open. */
struct nb_context *net_context(void);

/* A handle for isend and irecv: a registration (given back by pair_close of its comm, in any thread), or NULL
 * where the transport needs none. */
void *mh(void *comm, const void *data, size_t size);

/* Connect and accept on device 0 within 10 s, in this thread. streams 0: default. */
void pair_open(struct pair *p, int streams);
/* As `cfg` says; NULL: defaults. */
void pair_open_as(struct pair *p, const struct nb_net_conn_cfg *cfg);
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

/* One message of `size` bytes from p->send to p->recv, whole and within 10 s. For transports that register
 * nothing: its memory is freed at once. */
void pair_exchange(struct pair *p, size_t size);

int64_t now_ms(void);
int64_t patient_ms(void);
int open_fds(void);
int helper_threads(void); /* threads of the plugin's in this process */

/* WARN lines since net_up; the last of them. Other levels are dropped. */
int warnings(void);
const char *last_warning(void);
/* The first line since net_up, of any level, that contains the text; NULL: none. How many there were. */
const char *logged(const char *text);
int times_logged(const char *text);
/* Take nobody's lines from now on, as net_up does, without a transport. */
void capture_log(void);

/* A suite of tests, each of which is looped `loops` times in a case of its name: neighbours of one name share
 * a case. */
struct net_test {
    const char *name;
    const TTest *test;
    int loops;
};
/* Before and after each test of net_main and of data.h, in its process; NULL at first. */
extern void (*net_before)(void);
extern void (*net_after)(void);
/* Run it. What main returns. */
int net_main(const char *suite, const struct net_test *tests, size_t n);

#endif
