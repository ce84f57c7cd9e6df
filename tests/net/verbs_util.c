/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that the tests of the verbs transport over the fake stack share. */
#include "verbs_util.h"

#include <check.h>
#include <string.h>

#include "fake_verbs.h"
#include "util.h"

#define AT_ONCE_MS 50
#define TRIES 5

static uint8_t buffer[64];

void verbs_before(void)
{
    net_transport = "verbs";
    fake_reset();
}

void verbs_after(void)
{
    struct fake_counts c = fake_counts();

    ck_assert_msg(c.misuse == 0, "%s", fake_misuse());
    ck_assert_int_eq(c.not_ready, 0);
    ck_assert_int_eq(c.qps, 0);
    ck_assert_int_eq(c.cqs, 0);
    ck_assert_int_eq(c.mrs, 0);
    ck_assert_int_eq(c.pds, 0);
    ck_assert_int_eq(c.channels, 0);
    ck_assert_int_eq(c.contexts, 0);
    ck_assert_int_eq(c.events_unacked, 0);
}

void has(const char *line, const char *text)
{
    ck_assert_msg(line && strstr(line, text), "no \"%s\" in: %s", text, line ? line : "(nothing)");
}

/* At once: one of several calls must be fast, since other processes may run on this processor in between. */
void failed_send(struct nb_net *net, void *comm, int err)
{
    void *req = NULL, *handle = mh(comm, buffer, sizeof(buffer));
    int64_t took = AT_ONCE_MS;

    for (int i = 0; i < TRIES && took >= AT_ONCE_MS; i++) {
        int64_t begin = now_ms();

        ck_assert_int_eq(net->ops->isend(comm, buffer, sizeof(buffer), 0, handle, &req), err);
        ck_assert_ptr_null(req);
        took = now_ms() - begin;
    }
    ck_assert_int_lt(took, AT_ONCE_MS);
}

void failed_recv(struct nb_net *net, void *comm, int err)
{
    void *req = NULL, *data = buffer, *handle = mh(comm, buffer, sizeof(buffer));
    int64_t took = AT_ONCE_MS;
    size_t size = sizeof(buffer);
    int tag = 0;

    for (int i = 0; i < TRIES && took >= AT_ONCE_MS; i++) {
        int64_t begin = now_ms();

        ck_assert_int_eq(net->ops->irecv(comm, 1, &data, &size, &tag, &handle, &req), err);
        ck_assert_ptr_null(req);
        took = now_ms() - begin;
    }
    ck_assert_int_lt(took, AT_ONCE_MS);
}

const uint8_t *exchange(struct pair *p, size_t size)
{
    void *req[2];
    static uint8_t src[100000], dst[sizeof(src)];
    static unsigned number;

    ck_assert_uint_le(size, sizeof(src));
    fill_bytes(src, size, ++number);
    req[0] = post_recv(p->recv, dst, size, 0);
    req[1] = post_send(p->send, src, size, 0);
    ck_assert_int_eq(wait_all(req, 2, 5000), 0);
    ck_assert(check_bytes(dst, size, number));
    return dst;
}

const struct ibv_qp_attr *modified(enum ibv_qp_state to, int nth)
{
    const struct fake_entry *e = fake_log(FAKE_MODIFY, to, nth);

    ck_assert_ptr_nonnull(e);
    return &e->attr;
}
