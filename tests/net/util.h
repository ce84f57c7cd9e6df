/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that the tests of the transports share: settings, connections over loopback, payload, captured
 * log lines. */
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

/* The transport that net_up takes: "tcp" at first, "verbs", "auto". verbs runs over fake_verbs.h, which the
 * test resets. */
extern const char *net_transport;
/* Taken instead of the settings' transport. NULL at first. */
extern const struct nb_net_ops *net_ops;
/* Further settings ("NAME=value") of every net_up, up to NULL. NULL at first. */
extern const char *const *net_settings;

/* Take the transport with NCCL_SOCKET_IFNAME=lo and the given further settings ("NAME=value", up to NULL).
 * net_down() unsets them. An error fails the test. */
struct nb_net *net_up(const char *setting, ...) __attribute__((sentinel));
void net_down(void);

/* Open the transport of the present environment: return 0 and *net, or the error. net_close ends it. One at a
 * time. */
int net_open(struct nb_net **net);
void net_close(void);
/* Return the open transport's context. */
struct nb_context *net_context(void);

/* Return a handle for isend and irecv: a registration, or NULL where the transport needs none. pair_close of
 * its comm gives it back, in any thread. */
void *mh(void *comm, const void *data, size_t size);

/* Connect and accept on device 0 within 10 s, in this thread. streams 0: default. */
void pair_open(struct pair *p, int streams);
/* Do it as `cfg` says. NULL: defaults. */
void pair_open_as(struct pair *p, const struct nb_net_conn_cfg *cfg);
void pair_close(struct pair *p); /* both comms, each may be NULL */
/* Take the transport without further settings and open the pair, and end both. */
struct nb_net *pair_up(struct pair *p, int streams);
void pair_down(struct pair *p);

/* Post. An error or "later" fails the test. */
void *post_send(void *comm, const void *data, size_t size, int tag);
void *post_recv(void *comm, void *data, size_t size, int tag);

/* Test until done. Return an error, or -ETIME after `ms`. sizes may be NULL. */
int wait_req(void *req, size_t *sizes, int ms);
/* Test all requests until all are done, and set entries to NULL. Return the first error, or -ETIME. */
int wait_all(void **reqs, int n, int ms);

/* Write bytes that depend on the message's number and the position. */
void fill_bytes(void *data, size_t size, unsigned number);
bool check_bytes(const void *data, size_t size, unsigned number);

/* Move one message of `size` bytes from p->send to p->recv, whole and within 10 s. For transports without
 * registration: its memory is freed at once. */
void pair_exchange(struct pair *p, size_t size);

int64_t now_ms(void);
int64_t patient_ms(void);
int open_fds(void);
int helper_threads(void); /* threads of the plugin in this process */

/* Return the number of WARN lines since net_up, and the last of them. Other levels are dropped. */
int warnings(void);
const char *last_warning(void);
/* Return the first line since net_up, of any level, that contains the text, or NULL. Return the number of
 * such lines. */
const char *logged(const char *text);
int times_logged(const char *text);
/* Capture lines without a context from now on, as net_up does, but take no transport. */
void capture_log(void);

/* Called before and after each test of data.h, in its process. NULL at first. */
extern void (*net_before)(void);
extern void (*net_after)(void);

#endif
