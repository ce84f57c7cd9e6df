/* SPDX-License-Identifier: Apache-2.0 */
/* TCP transport: exact deltas of messages that come again. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/bytes.h"
#include "base/context.h"
#include "net/tcp/internal.h"
#include "nibble/codec.h"
#include "tests/suite.h"
#include "util.h"

enum { MESSAGES = 24, MOST = 300000, FLIGHT = 8 };

static const size_t sizes[MESSAGES] = {262144, 262144, 262144, 100000, 65536, 262144, 16384, 262144,
                                       262144, 262144, 300000, 262144, 40960, 262144, 30002, 262144,
                                       262144, 262144, 262144, 262144, 99998, 262144, 65537, 4096};

static struct nb_net *net;
static struct pair p;
static uint8_t *model[MESSAGES], *got[FLIGHT];
static uint64_t state;

static uint64_t draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

/* Return a BF16 number of about the distribution of weights. */
static uint16_t weight(void)
{
    uint16_t v;
    float sum = 0;
    uint32_t bits;

    for (int i = 0; i < 4; i++)
        sum += (float)(draw() & 0xffff) / 65536 - 0.5f;
    memcpy(&bits, &sum, 4);
    v = (uint16_t)(bits >> 16);
    return v;
}

static void new_model(uint64_t seed)
{
    state = seed;
    for (int m = 0; m < MESSAGES; m++) {
        if (!model[m])
            model[m] = malloc(MOST);
        for (size_t i = 0; i + 2 <= sizes[m]; i += 2)
            nb_put16(model[m] + i, weight());
        model[m][sizes[m] - 1] = (uint8_t)draw();
    }
    for (int i = 0; i < FLIGHT; i++)
        if (!got[i])
            got[i] = malloc(MOST + 4096);
}

/* Change `percent` of the values a little, as an optimizer does. */
static void update(double percent)
{
    for (int m = 0; m < MESSAGES; m++)
        for (size_t i = 0; i + 2 <= sizes[m]; i += 2)
            if ((double)(draw() & 0xfffff) < percent / 100 * 0x100000)
                nb_put16(model[m] + i, (uint16_t)(nb_get16(model[m] + i) + 1 - 2 * (draw() & 1)));
}

static void up(const char *setting, int streams)
{
    const struct nb_net_conn_cfg cfg = {.streams = streams, .traffic_class = -1, .deltas = 1};

    net = net_up(setting, "NIBBLE_P2P_MAX_MB=256", NULL);
    pair_open_as(&p, &cfg);
}

static void down(void)
{
    pair_down(&p);
    for (int m = 0; m < MESSAGES; m++) {
        free(model[m]);
        model[m] = NULL;
    }
    for (int i = 0; i < FLIGHT; i++) {
        free(got[i]);
        got[i] = NULL;
    }
}

/* Send the model once, in batches of messages in flight, and compare the result. Post receives when all but
 * `late` messages before them have arrived. Return the bytes on the wire over the model's. */
static double push_late(int late)
{
    const uint64_t before = net->ops->wire_bytes(p.send);
    uint64_t bytes = 0;

    for (int m = 0; m < MESSAGES; m += FLIGHT) {
        void *reqs[2 * FLIGHT] = {0};
        int posted = 0, arrived = 0;

        for (int i = 0; i < FLIGHT; i++) {
            memset(got[i], 0xee, MOST + 4096);
            reqs[FLIGHT + i] = post_send(p.send, model[m + i], sizes[m + i], 0);
            bytes += sizes[m + i];
        }
        for (int left = 2 * FLIGHT; left > 0;) {
            for (; posted < FLIGHT && posted < arrived + late; posted++)
                reqs[posted] =
                    post_recv(p.recv, got[posted], sizes[m + posted] + (size_t)(posted % 2) * 4096, 0);
            for (int i = 0; i < 2 * FLIGHT; i++) {
                size_t size = 0;
                int done = 0;

                if (!reqs[i])
                    continue;
                ck_assert_msg(net->ops->test(reqs[i], &done, &size) == 0, "%s", last_warning());
                if (!done)
                    continue;
                ck_assert_uint_eq(size, sizes[m + i % FLIGHT]);
                reqs[i] = NULL;
                arrived += i < FLIGHT;
                left--;
            }
        }
        for (int i = 0; i < FLIGHT; i++) {
            ck_assert_int_eq(memcmp(got[i], model[m + i], sizes[m + i]), 0);
            ck_assert_int_eq(got[i][sizes[m + i]], 0xee);
        }
    }
    return (double)(net->ops->wire_bytes(p.send) - before) / (double)bytes;
}

static double push(void)
{
    return push_late(FLIGHT);
}

/* Deltas begin with the third round. What changed decides their size. */
START_TEST(rounds)
{
    static const double changed[] = {0, 1, 3, 10}, most[] = {0.01, 0.06, 0.1, 0.25};

    up("NIBBLE_P2P=delta", _i);
    new_model(7);
    ck_assert_double_gt(push(), 1);
    update(3);
    ck_assert_double_gt(push(), 1);
    for (int i = 0; i < 4; i++)
        for (int again = 0; again < 2; again++) {
            double ratio;

            update(changed[i]);
            ratio = push();
            ck_assert_msg(ratio < most[i], "%g %% changed: ratio %g", changed[i], ratio);
        }
    ck_assert_int_eq(times_logged("sends exact deltas"), 1);
    ck_assert_uint_eq(net_context()->p2p.messages, 8 * (MESSAGES - 1)); /* the last message is too short */
    ck_assert_uint_lt(net_context()->p2p.wire_bytes, net_context()->p2p.bytes / 10);
    down();
}
END_TEST

/* Other content than before is sent as it is and learned anew. Rounds with other messages between them are
 * found again. */
START_TEST(other_content)
{
    up("NIBBLE_P2P=delta", 1);
    new_model(7);
    push();
    push();
    ck_assert_double_lt(push(), 0.05);
    new_model(8);
    ck_assert_double_gt(push(), 0.99);
    new_model(9);
    ck_assert_double_gt(push(), 0.99);
    new_model(7);
    ck_assert_double_lt(push(), 0.2);
    ck_assert_double_lt(push(), 0.05);
    down();
}
END_TEST

static double ns_of_byte, ns_of_delta, ns_idle;

/* A time in which bytes on the wire and coding take as long as the test says. */
static uint64_t virtual_ns(void *arg)
{
    static uint64_t bytes, deltas;
    static double ns = 1e9;
    const uint64_t b = net->ops->wire_bytes(p.send), n = net_context()->p2p.messages;

    (void)arg;
    ns += (double)(b - bytes) * ns_of_byte + (double)(n - deltas) * ns_of_delta;
    bytes = b;
    deltas = n;
    return (uint64_t)(ns + ns_idle);
}

/* Connect with a judge, in virtual time, and push the same model twice. Return the judge. */
static struct nb_tcp_judge *judged(double delta_ns)
{
    up("NIBBLE_P2P=auto", 1);
    net_context()->clock.now_ns = virtual_ns;
    new_model(7);
    ns_of_byte = 8;
    ns_of_delta = delta_ns;
    push();
    push();
    return &((struct nb_tcp_send *)p.send)->deltas->judge;
}

/* By default a connection sends deltas while they take less time than plain messages. Otherwise it sends
 * plain messages, and tries deltas again after some rounds. */
START_TEST(faster)
{
    struct nb_tcp_judge *j = judged(1e6);
    double plain = 0, delta = 0;
    int probes = 0;

    for (int i = 0; i < 100; i++) { /* now and then plain messages among them cost little time */
        const double ratio = push();
        plain += ratio;
        probes += ratio > 0.1;
    }
    ck_assert_double_lt(plain / 100, 0.02);
    ck_assert_int_le(probes, 2); /* short messages do not call for more */
    ck_assert_uint_gt(j->delta.n, 0);
    ck_assert_int_eq(times_logged("rounds plain"), 0);
    for (int again = 0; again < 2; again++) {
        ns_of_delta = 1e7;
        push();
        push();
        ck_assert_double_gt(push(), 1);
        ck_assert_int_eq(times_logged("rounds plain"), again + 1);
        ck_assert_uint_eq(((struct nb_tcp_send *)p.send)->deltas->slots.bytes, 0);
        ck_assert_uint_gt(j->rest.left, 60 * (MESSAGES - 1));
        j->rest.left = 0;
        ns_of_delta = 1e5;
        push();
        push();
        push();
        delta = push();
        ck_assert_double_lt(delta, 0.02);
    }
    ns_of_byte = 0.01; /* the link has become fast: a probe shows it */
    j->left_ns = 0;
    push();
    push();
    ck_assert_double_gt(push(), 1);
    down();
}
END_TEST

/* A rest ends with its time, too. A job that sends every few minutes would wait for the rounds for hours. */
START_TEST(rare)
{
    struct nb_tcp_judge *j = judged(1e7);

    for (int again = 0; again < 6; again++) {
        const int minutes = again < 4 ? 1 << again : 16;

        for (int i = 0; i < 4 && j->rest.left == 0; i++)
            push();
        ck_assert_int_eq(times_logged("rounds plain"), again + 1);
        ns_idle += (minutes - 0.5) * 60e9;
        push();
        ck_assert_uint_gt(j->rest.left, 0);
        ns_idle += 0.5 * 60e9;
        push();
        ck_assert_uint_eq(j->rest.left, 0);
    }
    ns_of_delta = 1e5;
    for (int i = 0; i < 3; i++)
        push();
    ck_assert_double_lt(push(), 0.02);
    down();
}
END_TEST

/* A place whose content differs each time is left alone for messages, or for some time. */
START_TEST(rare_place)
{
    const struct nb_net_conn_cfg cfg = {.traffic_class = -1, .deltas = NB_DELTAS_BY_TAG};
    const struct nb_tcp_place *place;
    unsigned rest;

    net = net_up("NIBBLE_P2P=delta", NULL);
    pair_open_as(&p, &cfg);
    net_context()->clock.now_ns = virtual_ns;
    new_model(7);
    push(); /* one tag, so messages of one size have one place */
    place = &((struct nb_tcp_send *)p.send)->deltas->places.at[0];
    rest = place->rest.left;
    ck_assert_uint_gt(rest, 0);
    ns_idle += 14 * 60e9;
    push();
    ck_assert_uint_lt(place->rest.left, rest);
    rest = place->rest.left;
    ns_idle += 60e9;
    push();
    ck_assert_uint_gt(place->rest.left, rest);
    down();
}
END_TEST

/* Where tags name messages, a message follows the one of its tag and size, in any order and from the second
 * round on. */
START_TEST(by_tag)
{
    const struct nb_net_conn_cfg cfg = {.traffic_class = -1, .deltas = NB_DELTAS_BY_TAG};

    net = net_up("NIBBLE_P2P=delta", NULL);
    pair_open_as(&p, &cfg);
    new_model(7);
    for (int round = 0; round < 4; round++) {
        const uint64_t before = net->ops->wire_bytes(p.send);
        uint64_t bytes = 0;

        update(3);
        for (int i = 0; i < FLIGHT; i++) {
            const int m = round % 2 ? FLIGHT - 1 - i : i;
            void *reqs[2] = {post_recv(p.recv, got[0], sizes[m], m),
                             post_send(p.send, model[m], sizes[m], m)};

            bytes += sizes[m];
            while (reqs[0] || reqs[1])
                for (int k = 0; k < 2; k++) {
                    int done = 0;

                    if (reqs[k])
                        ck_assert_int_eq(net->ops->test(reqs[k], &done, NULL), 0);
                    if (done)
                        reqs[k] = NULL;
                }
            ck_assert_int_eq(memcmp(got[0], model[m], sizes[m]), 0);
        }
        const double ratio = (double)(net->ops->wire_bytes(p.send) - before) / (double)bytes;
        ck_assert_msg(round ? ratio < 0.1 : ratio > 1, "round %d: ratio %g", round, ratio);
    }
    ck_assert_uint_eq(net_context()->p2p.messages, 3 * FLIGHT);
    down();
}
END_TEST

/* Nothing is kept with NIBBLE_P2P=raw, on fast links, without memory, or for callers that do not ask. */
START_TEST(not_wanted)
{
    static const char *const settings[] = {"NIBBLE_P2P=raw", "NIBBLE_P2P_MAX_MB=0", "NIBBLE_LINK_MBPS=100000",
                                           NULL};
    const struct nb_net_conn_cfg cfg = {.traffic_class = -1, .deltas = settings[_i] != NULL};

    net = net_up(settings[_i], NULL);
    pair_open_as(&p, &cfg);
    new_model(7);
    for (int i = 0; i < 3; i++)
        ck_assert_double_gt(push(), 1);
    ck_assert(!((struct nb_tcp_send *)p.send)->deltas);
    ck_assert_uint_eq(((struct nb_tcp_recv *)p.recv)->slots.bytes, 0);
    down();
}
END_TEST

/* With little memory a part of the model is kept, within the limit, and the rest is sent as it is. A
 * connection gives its memory back. */
START_TEST(little_memory)
{
    const struct nb_net_conn_cfg cfg = {.traffic_class = -1, .deltas = 1};
    struct nb_tcp *tcp;
    double ratio;

    for (int i = 0; i < 3; i++) {
        net = net_up("NIBBLE_P2P=delta", "NIBBLE_P2P_MAX_MB=16", NULL);
        pair_open_as(&p, &cfg);
        tcp = ((struct nb_tcp_send *)p.send)->c.dev->tcp;
        ck_assert_uint_eq(tcp->delta_received, 2 << 20);
        new_model(7);
        push();
        push();
        ratio = push();
        ck_assert_double_gt(ratio, 0.5);
        ck_assert_double_lt(ratio, 0.75);
        ck_assert_uint_le(tcp->delta_sent, 2 << 20);
        ck_assert_uint_eq(tcp->delta_sent, ((struct nb_tcp_recv *)p.recv)->slots.bytes);
        pair_close(&p);
        ck_assert_uint_eq(tcp->delta_sent, 0);
        ck_assert_uint_eq(tcp->delta_received, 0);
        memset(&p, 0, sizeof(p));
        down();
    }
}
END_TEST

/* ---- faults ------------------------------------------------------------------------------------------ */

enum damage { RECEIVED, SENT, LOST, OTHER, DAMAGES };

/* Bring the copies of a message at both ends out of step. */
static void damage(enum damage what, unsigned n)
{
    struct nb_tcp_slot *received = &((struct nb_tcp_recv *)p.recv)->slots.at[n];
    struct nb_tcp_slot *sent = &((struct nb_tcp_send *)p.send)->deltas->slots.at[n];

    switch (what) {
    case RECEIVED: received->data[received->size / 2] ^= 0x10; break;
    case SENT: sent->data[sent->size / 3] ^= 1; break;
    case LOST:
        ((struct nb_tcp_recv *)p.recv)->slots.bytes -= received->size;
        free(received->data);
        *received = (struct nb_tcp_slot){0};
        break;
    default: received->seq++;
    }
}

/* Copies that differ cost the plain message, which arrives whole, and then agree again. Messages behind it
 * may lack a receive until it has come. After the third such message all messages of the connection are
 * plain. */
START_TEST(out_of_step)
{
    const int late = _i % 2 ? 1 : FLIGHT;

    up("NIBBLE_P2P=delta", 1 + 2 * (_i / 2 % 2));
    new_model(7);
    for (int i = 0; i < 3; i++)
        push_late(late);
    for (unsigned i = 0; i < 2; i++) {
        update(3);
        damage((enum damage)(_i / 2), 3 * i);
        ck_assert_double_lt(push_late(late), 0.2);
        ck_assert_uint_eq(((struct nb_tcp_send *)p.send)->deltas->again, i + 1);
        ck_assert_int_eq(warnings(), (int)i + 1);
        update(3);
        ck_assert_double_lt(push_late(late), 0.1);
    }
    for (unsigned i = 0; i < FLIGHT; i++)
        damage((enum damage)(_i / 2), i);
    push_late(late);
    ck_assert_int_eq(times_logged("sends no more deltas"), 1);
    ck_assert_double_gt(push_late(late), 1);
    ck_assert_ptr_null(((struct nb_tcp_send *)p.send)->waiting);
    ck_assert_ptr_null(((struct nb_tcp_recv *)p.recv)->parked);
    ck_assert_uint_eq(((struct nb_tcp_recv *)p.recv)->parked_bytes, 0);
    down();
}
END_TEST

/* A send of a delta is done when the receiver has it, so that the receiver can ask for the plain message. A
 * receiver that ends without it is an error. */
START_TEST(confirmed)
{
    void *reqs[2];
    int done;

    up("NIBBLE_P2P=delta", 1);
    new_model(7);
    for (int i = 0; i < 3; i++)
        push();
    reqs[0] = post_send(p.send, model[0], sizes[0], 0);
    for (int i = 0; i < 100; i++) {
        ck_assert_int_eq(net->ops->test(reqs[0], &done, NULL), 0);
        ck_assert_int_eq(done, 0);
    }
    if (_i == 0) {
        reqs[1] = post_recv(p.recv, got[0], MOST, 0);
        ck_assert_int_eq(wait_all(reqs, 2, 5000), 0);
    } else {
        net->ops->close_recv(p.recv);
        p.recv = NULL;
        ck_assert_int_eq(wait_req(reqs[0], NULL, 5000), -ECONNRESET);
    }
    down();
}
END_TEST

/* A new connection starts without copies, whichever of its ends has restarted. */
START_TEST(remade)
{
    const struct nb_net_conn_cfg cfg = {.traffic_class = -1, .deltas = 1};

    up("NIBBLE_P2P=delta", 1);
    new_model(7);
    for (int again = 0; again < 2; again++) {
        ck_assert_double_gt(push(), 1);
        ck_assert_double_gt(push(), 1);
        ck_assert_double_lt(push(), 0.1);
        if (!again) {
            pair_close(&p);
            memset(&p, 0, sizeof(p));
            pair_open_as(&p, &cfg);
        }
    }
    ck_assert_int_eq(warnings(), 0);
    down();
}
END_TEST

/* ---- hostile senders --------------------------------------------------------------------------------- */

/* Write a message with a word by hand. */
static void forge(uint32_t seq, uint16_t word, const void *data, uint32_t len)
{
    struct nb_tcp_send *s = p.send;
    struct nb_tcp_frame f = {.seq = seq, .size = len, .len = len, .kind = NB_TCP_DATA, .word = word};
    uint8_t b[NB_TCP_FRAME_BYTES];

    nb_tcp_frame_put(b, &f, s->c.key);
    ck_assert_int_eq(send(s->stream[0].fd, b, sizeof(b), MSG_NOSIGNAL), sizeof(b));
    ck_assert_int_eq(send(s->stream[0].fd, data, len, MSG_NOSIGNAL), (int)len);
}

/* After a delta against nothing, of another generation, of a size that does not fit, malformed, or with
 * another result than its hash says, the receiver asks for the plain message, with a reason. */
START_TEST(forged)
{
    static const char *const reasons[] = {
        "fits no kept message", "fits no kept message", "fits no kept message",  "longer than its receive",
        "malformed delta",      "another hash",         "more messages to keep", "fits no kept message"};
    static uint8_t first[20000], second[20000], coded[40000];
    const uint16_t slot = 5;
    uint8_t out[20000], b[NB_TCP_FRAME_BYTES];
    struct nb_tcp_frame f;
    ssize_t len;
    size_t cap = sizeof(out);
    void *req;
    uint32_t n;

    up("NIBBLE_P2P=delta", 1);
    new_model(1);
    memcpy(first, model[0], sizeof(first));
    memcpy(second, first, sizeof(second));
    second[777] ^= 1;
    len = nb_ulp_encode_sparse(NB_ULP_16, second, first, sizeof(first), sizeof(first),
                               coded + NB_TCP_DELTA_BYTES, sizeof(coded) - NB_TCP_DELTA_BYTES);
    ck_assert_int_gt(len, 0);
    n = NB_TCP_DELTA_BYTES + (uint32_t)len;
    nb_put64(coded, _i == 2 ? sizeof(first) - 2 : sizeof(first));
    nb_put32(coded + 8, _i == 1 ? 1 : 0);
    nb_put32(coded + 12, NB_ULP_16);
    nb_put64(coded + 16, nb_hash64(second, sizeof(second), 0x64656c7461ull) + (_i == 5));
    if (_i == 4)
        coded[NB_TCP_DELTA_BYTES] = 77;
    if (_i == 3)
        cap = 10000;
    if (_i == 6)
        ((struct nb_tcp_recv *)p.recv)->granted = 10000;
    if (_i == 7)
        n = NB_TCP_DELTA_BYTES - 1;
    req = post_recv(p.recv, out, sizeof(out), 0);
    forge(0, (uint16_t)(NB_TCP_KEEP + slot), first, sizeof(first));
    if (_i != 6) {
        ck_assert_int_eq(wait_req(req, NULL, 5000), 0);
        req = post_recv(p.recv, out, cap, 0);
        forge(1, (uint16_t)(NB_TCP_DELTA + slot + (_i == 0)), coded, n);
    }
    if (_i == 6) {
        ck_assert_int_lt(wait_req(req, NULL, 5000), 0);
        ck_assert_msg(strstr(last_warning(), reasons[_i]) != NULL, "%s", last_warning());
        down();
        return;
    }
    ck_assert_int_eq(wait_req(req, NULL, 100), -ETIME);
    ck_assert_msg(strstr(last_warning(), reasons[_i]) != NULL, "%s", last_warning());
    forge(1, (uint16_t)(NB_TCP_KEEP + slot + (_i == 0)), second, sizeof(second));
    ck_assert_int_eq(wait_req(req, NULL, 5000), _i == 3 ? -EMSGSIZE : 0);
    if (_i != 3)
        ck_assert_int_eq(memcmp(out, second, sizeof(second)), 0);
    /* The second is asked for. Neither is confirmed, since nothing waits for that: a sender may close with no
     * unread frame. */
    ck_assert_int_eq(recv(((struct nb_tcp_send *)p.send)->stream[0].fd, b, sizeof(b), MSG_WAITALL),
                     sizeof(b));
    ck_assert_int_eq(nb_tcp_frame_get(b, &f, ((struct nb_tcp_send *)p.send)->c.key), 0);
    ck_assert_int_eq(f.kind, NB_TCP_AGAIN);
    ck_assert_uint_eq(f.seq, 1);
    if (_i != 3)
        ck_assert_int_lt(recv(((struct nb_tcp_send *)p.send)->stream[0].fd, b, sizeof(b), MSG_DONTWAIT), 0);
    down();
}
END_TEST

/* A message that comes again without being asked for ends the connection. */
START_TEST(unasked)
{
    static uint8_t first[20000], out[20000];
    void *req;

    up("NIBBLE_P2P=delta", 1);
    req = post_recv(p.recv, out, sizeof(out), 0);
    forge(0, NB_TCP_KEEP, first, sizeof(first));
    ck_assert_int_eq(wait_req(req, NULL, 5000), 0);
    req = post_recv(p.recv, out, sizeof(out), 0);
    forge(0, NB_TCP_KEEP, first, sizeof(first));
    ck_assert_int_eq(wait_req(req, NULL, 5000), -EPROTO);
    down();
}
END_TEST

/* A receiver that confirms, or asks for, a message that was not sent as a delta ends the connection. */
START_TEST(false_answers)
{
    struct nb_tcp_frame f = {.seq = 1, .kind = _i ? NB_TCP_AGAIN : NB_TCP_CONFIRM};
    uint8_t b[NB_TCP_FRAME_BYTES];
    void *req;

    up("NIBBLE_P2P=delta", 1);
    new_model(7);
    nb_tcp_frame_put(b, &f, ((struct nb_tcp_recv *)p.recv)->c.key);
    ck_assert_int_eq(send(((struct nb_tcp_recv *)p.recv)->stream[0].fd, b, sizeof(b), MSG_NOSIGNAL),
                     sizeof(b));
    for (int i = 0; i < 1000; i++)
        if (net->ops->isend(p.send, model[0], 4096, 0, NULL, &req))
            break;
    ck_assert_msg(strstr(last_warning(), "which was not sent") != NULL, "%s", last_warning());
    down();
}
END_TEST

/* A message to keep that is longer than its receive is refused like any other. */
START_TEST(too_long)
{
    static uint8_t first[20000], out[20010];
    void *req;

    up("NIBBLE_P2P=delta", 1);
    memset(out, 0xee, sizeof(out));
    req = post_recv(p.recv, out, sizeof(first) - 10, 0);
    forge(0, NB_TCP_KEEP, first, sizeof(first));
    ck_assert_int_eq(wait_req(req, NULL, 5000), -EMSGSIZE);
    ck_assert_int_eq(out[sizeof(first) - 10], 0xee);
    down();
}
END_TEST

/* The same delta without a fault arrives. */
START_TEST(by_hand)
{
    static uint8_t first[20000], second[20000], coded[40000];
    uint8_t out[20000];
    size_t size;
    ssize_t len;
    void *req;

    up("NIBBLE_P2P=delta", 1);
    new_model(1);
    memcpy(first, model[0], sizeof(first));
    memcpy(second, first, sizeof(second));
    second[777] ^= 1;
    len = nb_ulp_encode_sparse(NB_ULP_16, second, first, sizeof(first), sizeof(first),
                               coded + NB_TCP_DELTA_BYTES, sizeof(coded) - NB_TCP_DELTA_BYTES);
    nb_put64(coded, sizeof(first));
    nb_put32(coded + 12, NB_ULP_16);
    nb_put64(coded + 16, nb_hash64(second, sizeof(second), 0x64656c7461ull));
    req = post_recv(p.recv, out, sizeof(out), 0);
    forge(0, NB_TCP_KEEP, first, sizeof(first));
    ck_assert_int_eq(wait_req(req, NULL, 5000), 0);
    req = post_recv(p.recv, out, sizeof(out), 0);
    forge(1, NB_TCP_DELTA, coded, NB_TCP_DELTA_BYTES + (uint32_t)len);
    ck_assert_int_eq(wait_req(req, &size, 5000), 0);
    ck_assert_uint_eq(size, sizeof(second));
    ck_assert_int_eq(memcmp(out, second, sizeof(second)), 0);
    down();
}
END_TEST

SUITE_MAIN("net/tcp_deltas", LOOP(rounds, 1, 5), TEST(other_content), TEST(faster), TEST(rare),
           TEST(rare_place), TEST(by_tag), LOOP(not_wanted, 0, 4), TEST(little_memory),
           LOOP(out_of_step, 0, 2 * DAMAGES), LOOP(confirmed, 0, 2), TEST(remade), LOOP(forged, 0, 8),
           TEST(unasked), LOOP(false_answers, 0, 2), TEST(too_long), TEST(by_hand))
