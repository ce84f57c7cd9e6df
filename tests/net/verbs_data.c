/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs transport, over the fake stack: the data tests in each way of cutting, clearing and delivering
 * messages, and messages of two parts. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "fake_verbs.h"
#include "tests/suite.h"
#include "util.h"
#include "verbs_util.h"

static struct {
    const char *name;
    const char *settings[4]; /* ends with NULL */
    bool shuffle;
    int depth;        /* of the adapter's queues. 0: long */
    uint32_t max_msg; /* 0: 1 GiB */
} modes[] = {
    {.name = "verbs"},
    {.name = "verbs, out of order", .shuffle = true},
    {.name = "verbs, split, out of order", .settings = {"NCCL_IB_SPLIT_DATA_ON_QPS=1"}, .shuffle = true},
    {.name = "verbs, adaptive routing, split, inline",
     .settings = {"NCCL_IB_SPLIT_DATA_ON_QPS=1", "NCCL_IB_ADAPTIVE_ROUTING=1", "NCCL_IB_USE_INLINE=1"},
     .shuffle = true},
    {.name = "verbs, short queues, small requests",
     .settings = {"NCCL_IB_ADAPTIVE_ROUTING=1", "NCCL_IB_AR_THRESHOLD=1000"},
     .shuffle = true,
     .depth = 16,
     .max_msg = 262144},
};

static int mode;

static void before(void)
{
    verbs_before();
    fake.shuffle = modes[mode].shuffle;
    if (modes[mode].depth)
        fake.device[0].max_qp_wr = modes[mode].depth;
    if (modes[mode].max_msg)
        fake.device[0].port[0].max_msg = modes[mode].max_msg;
}

/* ---- two parts ---- */

#define HEAD_MOST 400000u /* more than one write of the mode with small requests */
#define BODY_MOST 1100000u
#define PLACES 8
#define IN_TIME_MS 5000

enum shape { APART, ONE_BEHIND_THE_OTHER, PLAIN, SHAPES }; /* PLAIN: by isend, or by irecv */

/* Memory of a message. Head and body are in registrations of their own, and `both` in a third one. */
static struct place {
    _Alignas(4096) uint8_t head[HEAD_MOST];
    _Alignas(4096) uint8_t body[BODY_MOST];
    _Alignas(4096) uint8_t both[HEAD_MOST + BODY_MOST];
} from[PLACES], to[PLACES];

static struct pair p;
static struct nb_net *net;

/* Register it once with a connection, so that requests find it. */
static void parts_of(void *comm, struct place *at, enum shape shape, size_t head, size_t body,
                     struct nb_net_part part[2])
{
    if (shape == APART) {
        part[0] = (struct nb_net_part){at->head, head, mh(comm, at->head, HEAD_MOST)};
        part[1] = (struct nb_net_part){at->body, body, mh(comm, at->body, BODY_MOST)};
    } else {
        void *handle = mh(comm, at->both, sizeof(at->both));
        part[0] = (struct nb_net_part){at->both, head, handle};
        part[1] = (struct nb_net_part){at->both + head, body, handle};
    }
}

/* Return 0 and *req, which is NULL when it has to be tried again. */
static int send_as(enum shape shape, struct place *at, size_t head, size_t body, void **req)
{
    struct nb_net_part part[2];

    parts_of(p.send, at, shape, head, body, part);
    if (shape == PLAIN)
        return net->ops->isend(p.send, part[0].data, head + body, 0, part[0].mhandle, req);
    return net->ops->isend_parts(p.send, part, 0, req);
}

static int receive_as(enum shape shape, struct place *at, size_t head, size_t body, void **req)
{
    struct nb_net_part part[2];
    size_t size = head + body;
    int tag = 0;

    parts_of(p.recv, at, shape, head, body, part);
    if (shape == PLAIN)
        return net->ops->irecv(p.recv, 1, &part[0].data, &size, &tag, &part[0].mhandle, req);
    return net->ops->irecv_parts(p.recv, part, 0, req);
}

static uint8_t message[HEAD_MOST + BODY_MOST];

static void write_message(struct place *at, size_t head, size_t body, unsigned number)
{
    fill_bytes(message, head + body, number);
    memcpy(at->head, message, head);
    memcpy(at->body, message + head, body);
    memcpy(at->both, message, head + body);
}

static void wipe(struct place *at, size_t head, size_t body)
{
    memset(at->head, 0xee, head + 1);
    memset(at->body, 0xee, body + 1);
    memset(at->both, 0xee, head + body + 1);
}

/* Check a received message of `head` and `body` bytes, of which `told` were reported. */
static void check_message(struct place *at, enum shape shape, bool plain_sender, size_t head, size_t body,
                          size_t told, unsigned number)
{
    const bool parts = shape != PLAIN;

    /* A message of isend is a head alone. */
    ck_assert_uint_eq(told, !parts ? head + body : plain_sender ? 0 : body);
    fill_bytes(message, head + body, number);
    if (shape == APART) {
        ck_assert_mem_eq(at->head, message, head);
        ck_assert_mem_eq(at->body, message + head, body);
        ck_assert_int_eq(at->head[head] & at->body[body], 0xee);
    } else {
        ck_assert_mem_eq(at->both, message, head + body);
        ck_assert_int_eq(at->both[head + body], 0xee);
    }
}

/* Each shape of a sender meets each shape of a receiver. Parts are there when the receive tests done,
 * although the send may be in flight still. */
START_TEST(parts_meet)
{
    static const size_t heads[] = {0, 1, 37, 96}, bodies[] = {0, 1, 127, 4096, 300001, BODY_MOST - 1};
    unsigned number = 0;

    net = net_up(NULL, NULL);
    pair_open(&p, _i + 1);
    for (int h = 0; h < COUNT(heads); h++)
        for (int b = 0; b < COUNT(bodies); b++)
            for (int s = 0; s < SHAPES; s++)
                for (int r = 0; r < SHAPES; r++) {
                    const size_t head = heads[h], body = s == PLAIN && r != PLAIN ? 0 : bodies[b];
                    size_t told = 77;
                    void *req[2];

                    write_message(&from[0], head, body, ++number);
                    wipe(&to[0], head, body);
                    ck_assert_int_eq(receive_as((enum shape)r, &to[0], head, body, &req[0]), 0);
                    ck_assert_int_eq(send_as((enum shape)s, &from[0], head, body, &req[1]), 0);
                    ck_assert(req[0] && req[1]);
                    ck_assert_int_eq(wait_req(req[0], &told, IN_TIME_MS), 0);
                    check_message(&to[0], (enum shape)r, s == PLAIN, head, body, told, number);
                    ck_assert_int_eq(wait_req(req[1], NULL, IN_TIME_MS), 0);
                }
    pair_close(&p);
    ck_assert_msg(warnings() == 0, "%s", last_warning());
    net_down();
}
END_TEST

/* Many in flight, with heads of more than one write among them, and room in longer places. */
START_TEST(parts_flow)
{
    const int messages = getenv("NB_TEST_QUICK") ? 100 : 1000;
    struct {
        enum shape sends, receives;
        size_t head, body;
    } m[PLACES];
    void *sreq[PLACES] = {NULL}, *rreq[PLACES] = {NULL};
    int posted = 0, sent = 0, arrived = 0;
    size_t told;

    srand(4);
    net = net_up(NULL, NULL);
    pair_open(&p, _i + 1);
    for (int64_t end = patient_ms() + 60000; arrived < messages && patient_ms() < end;) {
        int at = posted % PLACES, done = 0;

        if (posted < messages && posted - arrived < PLACES && posted == sent && !sreq[at]) {
            m[at].sends = (enum shape)(rand() % 2); /* NOLINT */
            m[at].receives = (enum shape)(rand() % SHAPES);
            m[at].head = (size_t)rand() % (rand() % 8 ? 100 : HEAD_MOST);
            m[at].body = (size_t)rand() % (rand() % 8 ? 5000 : BODY_MOST);
            write_message(&from[at], m[at].head, m[at].body, (unsigned)posted);
            wipe(&to[at], m[at].head, m[at].body);
            ck_assert_int_eq(receive_as(m[at].receives, &to[at], m[at].head, m[at].body, &rreq[at]), 0);
            posted += rreq[at] != NULL;
        }
        if (sent < posted) {
            at = sent % PLACES;
            ck_assert_int_eq(send_as(m[at].sends, &from[at], m[at].head, m[at].body, &sreq[at]), 0);
            sent += sreq[at] != NULL;
        }
        at = arrived % PLACES;
        if (arrived < posted)
            ck_assert_int_eq(net->ops->test(rreq[at], &done, &told), 0);
        if (done)
            check_message(&to[at], m[at].receives, false, m[at].head, m[at].body, told, (unsigned)arrived++);
        for (int i = 0; i < PLACES; i++) {
            if (!sreq[i])
                continue;
            ck_assert_int_eq(net->ops->test(sreq[i], &done, NULL), 0);
            if (done)
                sreq[i] = NULL;
        }
    }
    ck_assert_int_eq(arrived, messages);
    ck_assert(wait_all(sreq, PLACES, IN_TIME_MS) == 0);
    pair_close(&p);
    ck_assert_msg(warnings() == 0, "%s", last_warning());
    net_down();
}
END_TEST

/* Bytes sent and received: a head, a body, or both together that do not fit. */
static const struct {
    enum shape sends, receives;
    size_t head, body, head_place, body_place;
} too_long[] = {
    {APART, APART, 65, 10, 64, 1000},
    {APART, APART, 64, 1001, 64, 1000},
    {ONE_BEHIND_THE_OTHER, APART, 65, 10, 64, 1000},
    {APART, PLAIN, 64, 1001, 64, 1000},
    {PLAIN, APART, 60, 5, 64, 1000}, /* all of it is a head */
    {APART, APART, 0, 1, 64, 0},
};

START_TEST(parts_too_long)
{
    void *r, *s;
    int rc;

    net = pair_up(&p, 2);
    ck_assert_int_eq(
        receive_as(too_long[_i].receives, &to[0], too_long[_i].head_place, too_long[_i].body_place, &r), 0);
    wipe(&to[0], 2000, 2000);
    rc = send_as(too_long[_i].sends, &from[0], too_long[_i].head, too_long[_i].body, &s);
    ck_assert_int_eq(rc ? rc : wait_req(s, NULL, IN_TIME_MS), -EMSGSIZE);
    ck_assert_int_eq(wait_req(r, NULL, IN_TIME_MS), -EMSGSIZE);
    has(logged("bytes but the peer's receive takes"), "has ");
    ck_assert_int_eq(to[0].head[0] & to[0].body[0] & to[0].both[0], 0xee);
    pair_down(&p);
}
END_TEST

/* Parts without a registration are refused where they are posted, and a message that no queue can hold. */
START_TEST(parts_unfit)
{
    struct nb_net_part part[2];
    void *req = &p;

    net = pair_up(&p, 1);
    for (int i = 0; i < 2; i++) {
        parts_of(p.send, &from[0], APART, 10, 10, part);
        part[i].mhandle = NULL;
        ck_assert_int_eq(net->ops->isend_parts(p.send, part, 0, &req), -EINVAL);
        ck_assert_ptr_null(req);
        parts_of(p.recv, &to[0], APART, 10, 10, part);
        part[i].mhandle = NULL;
        ck_assert_int_eq(net->ops->irecv_parts(p.recv, part, 0, &req), -EINVAL);
        ck_assert_ptr_null(req);
    }
    parts_of(p.send, &from[0], APART, 10, (size_t)1 << 50, part);
    ck_assert_int_eq(net->ops->isend_parts(p.send, part, 0, &req), -EMSGSIZE);
    pair_down(&p);
}
END_TEST

/* Either side closes with parts in flight, granted and ungranted. */
START_TEST(parts_closed)
{
    void *r[PLACES], *s[PLACES];
    int rc;

    net = pair_up(&p, 2);
    for (int i = 0; i < PLACES; i++) {
        ck_assert_int_eq(receive_as((enum shape)(i % SHAPES), &to[i], 96, 50000, &r[i]), 0);
        ck_assert_int_eq(send_as((enum shape)(i % 2), &from[i], 60, 50000 - i, &s[i]), 0);
    }
    for (int i = 0; i < PLACES; i++)
        ck_assert_int_eq(send_as((enum shape)(i % 2), &from[i], 60, 50000 - i, &s[i]), 0);
    if (_i) {
        net->ops->close_send(p.send);
        p.send = NULL;
        for (int i = 0; i < PLACES; i++) {
            rc = wait_req(r[i], NULL, IN_TIME_MS);
            ck_assert_msg(rc == 0 || rc == -ECONNRESET, "%d", rc);
        }
    } else {
        net->ops->leave(p.recv);
        net->ops->close_recv(p.recv);
        p.recv = NULL;
        for (int i = 0; i < PLACES; i++) {
            rc = s[i] ? wait_req(s[i], NULL, IN_TIME_MS) : 0;
            ck_assert_msg(rc == 0 || rc == -ECONNRESET, "%d", rc);
        }
    }
    ck_assert_msg(warnings() == 0, "%s", last_warning());
    pair_down(&p);
}
END_TEST

static int parts_tests(const char *name)
{
    return SUITE(name, FIXTURE(net_before, net_after), LOOP(parts_meet, 0, data_counts),
                 LOOP(parts_flow, 0, data_counts), LOOP(parts_too_long, 0, COUNT(too_long)),
                 TEST(parts_unfit), LOOP(parts_closed, 0, 2));
}

int main(void)
{
    bool quick = getenv("NB_TEST_QUICK") != NULL;
    int failed = 0;

    net_before = before;
    net_after = verbs_after;
    for (mode = 0; mode < (int)(sizeof(modes) / sizeof(modes[0])); mode++) {
        net_settings = modes[mode].settings;
        data_divisor = quick ? 40 : mode == 0 ? 1 : 4;
        data_counts = quick && mode > 0 ? 2 : 4;
        failed |= data_tests(modes[mode].name, modes[mode].depth ? DATA_FLOWS : DATA_ALL);
        failed |= parts_tests(modes[mode].name);
    }
    return failed;
}
