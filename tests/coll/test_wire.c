/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's messages: the parser reads back packed values, and refuses all other bytes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "coll/comm/wire.h"
#include "coll/connect/connect.h"
#include "nibble/codec.h"
#include "nibble/nccl_types.h"
#include "tests/suite.h"

#define TOKEN 0x1234abcdu
#define UNIT 131072u

static struct nb_msg sample(int with_reference)
{
    struct nb_msg m = {.func = NB_FUNC_ALL_GATHER,
                       .codec = NB_CODEC_RAW,
                       .type = ncclBfloat16,
                       .op = ncclSum,
                       .token = TOKEN,
                       .opno = UINT64_C(0x123456789a),
                       .offset = UINT64_C(0x4000000001),
                       .bytes = 1000,
                       .coded = 1000};
    if (with_reference == 3) {
        m.flags = NB_MSG_CHECKED;
        m.check = UINT64_C(0xc0ffee0123456789);
    } else if (with_reference) {
        m.codec = with_reference == 2 ? NB_CODEC_DELTA4 : NB_CODEC_ULP;
        m.type = with_reference == 2 ? (uint8_t)ncclBfloat16 : NB_ULP_16;
        m.flags = NB_MSG_KEEP;
        m.coded = 77;
        m.ref_number = 5;
        m.version = 9;
        m.ref_hash = UINT64_C(0xfeedfacecafebeef);
        m.new_hash = 3;
    }
    return m;
}

static void same(const struct nb_msg *a, const struct nb_msg *b)
{
    ck_assert_int_eq(a->func, b->func);
    ck_assert_int_eq(a->codec, b->codec);
    ck_assert_int_eq(a->type, b->type);
    ck_assert_int_eq(a->op, b->op);
    ck_assert_int_eq(a->flags, b->flags);
    ck_assert_uint_eq(a->token, b->token);
    ck_assert_uint_eq(a->opno, b->opno);
    ck_assert_uint_eq(a->offset, b->offset);
    ck_assert_uint_eq(a->bytes, b->bytes);
    ck_assert_uint_eq(a->coded, b->coded);
    ck_assert_uint_eq(a->check, b->check);
    ck_assert_uint_eq(a->ref_number, b->ref_number);
    ck_assert_uint_eq(a->version, b->version);
    ck_assert_uint_eq(a->ref_hash, b->ref_hash);
    ck_assert_uint_eq(a->new_hash, b->new_hash);
}

START_TEST(data_round_trip)
{
    uint8_t buf[NB_MSG_MAX_BYTES + 4096] = {0};
    struct nb_msg in = sample(_i), out;
    const char *why = "";
    size_t header = nb_msg_pack(&in, buf);

    ck_assert_uint_eq(header, _i % 3 ? NB_MSG_MAX_BYTES : NB_MSG_BYTES);
    ck_assert_uint_eq(header, nb_msg_header_bytes(&in));
    ck_assert_int_eq(nb_msg_parse(buf, header + in.coded, TOKEN, UNIT, &out, &why), (int)header);
    same(&in, &out);
}
END_TEST

/* Every single bit of the header matters: a flipped bit is refused. */
START_TEST(data_flipped_bits)
{
    uint8_t buf[NB_MSG_MAX_BYTES + 1000] = {0};
    struct nb_msg in = sample(_i), out;
    size_t header = nb_msg_pack(&in, buf);

    for (size_t bit = 0; bit < header * 8; bit++) {
        const char *why = "";
        buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
        ck_assert_int_eq(nb_msg_parse(buf, header + in.coded, TOKEN, UNIT, &out, &why), -EBADMSG);
        ck_assert_int_gt((int)strlen(why), 0);
        buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}
END_TEST

START_TEST(data_wrong_length)
{
    uint8_t buf[NB_MSG_MAX_BYTES + 1001] = {0};
    struct nb_msg in = sample(_i), out;
    size_t header = nb_msg_pack(&in, buf);

    for (size_t len = 0; len <= header + 1001 - 1; len++) {
        const char *why = "";
        int ret = nb_msg_parse(buf, len, TOKEN, UNIT, &out, &why);
        if (len == header + in.coded)
            ck_assert_int_eq(ret, (int)header);
        else
            ck_assert_int_eq(ret, -EBADMSG);
    }
}
END_TEST

/* Fields out of range, with a matching check value: each is refused for its own reason. */
START_TEST(data_absurd_fields)
{
    uint8_t buf[NB_MSG_MAX_BYTES + 1000] = {0};
    struct nb_msg good = sample(0), bad, out;
    const char *why = "";
    struct {
        struct nb_msg m;
        const char *text;
    } cases[10];
    int n = 0;

    bad = good, bad.func = NB_FUNC_COUNT, cases[n].text = "function", cases[n++].m = bad;
    bad = good, bad.codec = NB_CODEC_COUNT, cases[n].text = "codec", cases[n++].m = bad;
    bad = good, bad.codec = NB_CODEC_INT4, cases[n].text = "no all-gather", cases[n++].m = bad;
    bad = good, bad.type = 200, cases[n].text = "data type", cases[n++].m = bad;
    bad = good, bad.op = 77, cases[n].text = "reduction", cases[n++].m = bad;
    bad = good, bad.token = TOKEN + 1, cases[n].text = "token", cases[n++].m = bad;
    bad = good, bad.bytes = UNIT + 1, cases[n].text = "unit", cases[n++].m = bad;
    bad = good, bad.offset = UINT64_C(1) << 63, cases[n].text = "offset", cases[n++].m = bad;
    bad = good, bad.bytes = 999, cases[n].text = "raw length", cases[n++].m = bad;
    bad = good, bad.func = NB_FUNC_ALL_REDUCE, bad.flags = NB_MSG_CHECKED, bad.bytes = bad.coded = 0;
    cases[n].text = "check value without", cases[n++].m = bad;
    for (int i = 0; i < n; i++) {
        size_t header = nb_msg_pack(&cases[i].m, buf);
        ck_assert_int_eq(nb_msg_parse(buf, header + cases[i].m.coded, TOKEN, UNIT, &out, &why), -EBADMSG);
        ck_assert_msg(strstr(why, cases[i].text) != NULL, "case %d: %s", i, why);
    }
}
END_TEST

START_TEST(control_round_trip_and_flips)
{
    uint8_t buf[NB_CTL_BYTES];
    struct nb_ctl in = {.kind = NB_CTL_ABORT, .token = TOKEN, .a = 1, .b = UINT64_MAX, .c = 7}, out;
    const char *why = "";

    strcpy(in.text, "node 3 lost its way");
    nb_ctl_pack(&in, buf);
    ck_assert_int_eq(nb_ctl_parse(buf, sizeof(buf), TOKEN, &out, &why), 0);
    ck_assert_int_eq(memcmp(&in.text, &out.text, sizeof(in.text)), 0);
    ck_assert_uint_eq(out.a, in.a);
    ck_assert_uint_eq(out.b, in.b);
    ck_assert_uint_eq(out.c, in.c);
    ck_assert_int_eq(nb_ctl_parse(buf, sizeof(buf), TOKEN + 1, &out, &why), -EBADMSG);
    ck_assert_int_eq(nb_ctl_parse(buf, sizeof(buf) - 1, TOKEN, &out, &why), -EBADMSG);
    for (size_t bit = 0; bit < sizeof(buf) * 8; bit++) {
        buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
        ck_assert_int_eq(nb_ctl_parse(buf, sizeof(buf), TOKEN, &out, &why), -EBADMSG);
        buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}
END_TEST

/* A heartbeat's further data takes the place of the text. */
START_TEST(heartbeat)
{
    uint8_t buf[NB_CTL_BYTES];
    const struct nb_ctl in = {.kind = NB_CTL_ALIVE,
                              .token = TOKEN,
                              .a = 3,
                              .b = 4000,
                              .c = 4,
                              .wait = {.end = 0x01020304, .steps = 9}};
    struct nb_ctl out = {.text = "of another", .wait = {.end = 7}};
    const char *why = "";

    nb_ctl_pack(&in, buf);
    ck_assert_int_eq(buf[40], 4);
    ck_assert_int_eq(buf[44], 9);
    ck_assert_int_eq(nb_ctl_parse(buf, sizeof(buf), TOKEN, &out, &why), 0);
    ck_assert(out.a == 3 && out.b == 4000 && out.c == 4 && out.wait.end == 0x01020304 && out.wait.steps == 9);
    ck_assert_str_eq(out.text, "");
}
END_TEST

START_TEST(hello_and_vote)
{
    uint8_t hello[NB_HELLO_BYTES], vote[NB_VOTE_BYTES];
    struct nb_hello h = {.wire_version = 3,
                         .nclasses = 3,
                         .cls = 1,
                         .rank = 6,
                         .nnodes = 7,
                         .token_share = 99,
                         .comm_id = 12345678901234u,
                         .settings = 42,
                         .version = "1.2.3",
                         .host = "nodename"},
                    h2;
    struct nb_vote v = {.rank = 2,
                        .reason = "no memory",
                        .mbps = 25000,
                        .codec = 3,
                        .workers = 6,
                        .buffer = 64,
                        .measured = 701},
                   v2;
    const char *why = "";

    nb_hello_pack(&h, hello);
    ck_assert_int_eq(nb_hello_parse(hello, sizeof(hello), &h2, &why), 0);
    ck_assert_int_eq(memcmp(&h, &h2, sizeof(h)), 0);
    nb_vote_pack(&v, vote);
    ck_assert_int_eq(nb_vote_parse(vote, sizeof(vote), &v2, &why), 0);
    ck_assert_int_eq(memcmp(&v, &v2, sizeof(v)), 0);
    ck_assert_int_eq(memcmp(vote + 204, "\xa8\x61\0\0\3\0\0\0\6\0\0", 12), 0); /* docs/messages.md */
    ck_assert(nb_vote_is_no(vote, sizeof(vote), v2.reason) && !strcmp(v2.reason, "no memory"));
    ck_assert(!nb_vote_is_no(hello, sizeof(hello), v2.reason));
    for (v.yes = 0; v.yes < 2; v.yes++) { /* its round, or its subject */
        const unsigned n = v.yes ? NB_ROUND_COUNT : NB_ROUND_COUNT + 3;
        for (v.round = 0; v.round < 12; v.round++) {
            nb_vote_pack(&v, vote);
            ck_assert_int_eq(nb_vote_parse(vote, sizeof(vote), &v2, &why), v.round < n ? 0 : -EBADMSG);
        }
    }
    /* A hello is not taken for a vote, and a truncated message is refused. */
    ck_assert_int_eq(nb_vote_parse(hello, sizeof(hello), &v2, &why), -EBADMSG);
    ck_assert_int_eq(nb_hello_parse(vote, sizeof(vote), &h2, &why), -EBADMSG);
    ck_assert_int_eq(nb_hello_parse(hello, sizeof(hello) - 1, &h2, &why), -EBADMSG);
}
END_TEST

START_TEST(random_bytes)
{
    uint8_t buf[512];
    unsigned seed = 7;
    for (int i = 0; i < 200000; i++) {
        struct nb_msg m;
        struct nb_ctl c;
        const char *why = "";
        size_t len = (size_t)rand_r(&seed) % sizeof(buf);
        for (size_t k = 0; k < len; k++)
            buf[k] = (uint8_t)rand_r(&seed);
        ck_assert_int_eq(nb_msg_parse(buf, len, TOKEN, UNIT, &m, &why), -EBADMSG);
        ck_assert_int_eq(nb_ctl_parse(buf, len, TOKEN, &c, &why), -EBADMSG);
    }
}
END_TEST

SUITE_MAIN("wire", LOOP(data_round_trip, 0, 4), LOOP(data_flipped_bits, 0, 4), LOOP(data_wrong_length, 0, 4),
           TEST(data_absurd_fields), TEST(control_round_trip_and_flips), TEST(heartbeat),
           TEST(hello_and_vote), TEST(random_bytes))
