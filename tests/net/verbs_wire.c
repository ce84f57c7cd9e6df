/* SPDX-License-Identifier: Apache-2.0 */
/* The messages with which two ends of a verbs connection introduce themselves: there and back, and every
 * impossible field refused. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "net/verbs/internal.h"
#include "tests/suite.h"
#include "util.h"

static struct nb_verbs_meta sample(void)
{
    struct nb_verbs_meta m = {.version = NB_VERBS_WIRE_VERSION,
                              .nqps = 3,
                              .link = 2,
                              .mtu = 5,
                              .sl = 9,
                              .tc = 200,
                              .lid = 0xabcd,
                              .depth = 256,
                              .rkey = 0x12345678,
                              .addr = 0x1122334455667788,
                              .device = "mlx5_0",
                              .qpn = {1, 0xffffff, 77}};

    for (int i = 0; i < 16; i++)
        m.gid[i] = (uint8_t)(i * 17);
    return m;
}

START_TEST(meta)
{
    struct nb_verbs_meta a = sample(), b;
    uint8_t bytes[NB_VERBS_META_BYTES];

    nb_verbs_meta_put(bytes, &a);
    ck_assert_int_eq(nb_verbs_meta_get(bytes, &b), 0);
    ck_assert_uint_eq(b.nqps, 3);
    ck_assert_int_eq(b.link, 2);
    ck_assert_int_eq(b.mtu, 5);
    ck_assert_int_eq(b.sl, 9);
    ck_assert_int_eq(b.tc, 200);
    ck_assert_uint_eq(b.lid, 0xabcd);
    ck_assert_uint_eq(b.depth, 256);
    ck_assert_uint_eq(b.rkey, 0x12345678);
    ck_assert_uint_eq(b.addr, 0x1122334455667788);
    ck_assert_str_eq(b.device, "mlx5_0");
    ck_assert_mem_eq(b.gid, a.gid, 16);
    ck_assert_mem_eq(b.qpn, a.qpn, sizeof(a.qpn));
    /* Little-endian, at the places that the header names. */
    ck_assert_int_eq(bytes[20], 0xcd);
    ck_assert_int_eq(bytes[28], 0x78);
    ck_assert_int_eq(bytes[192], 1);
    /* A refusal needs only its reason. */
    a = (struct nb_verbs_meta){.version = NB_VERBS_WIRE_VERSION, .error = ENOMEM, .reason = "no\nmemory"};
    nb_verbs_meta_put(bytes, &a);
    ck_assert_int_eq(nb_verbs_meta_get(bytes, &b), 0);
    ck_assert_int_eq(b.error, ENOMEM);
    ck_assert_str_eq(b.reason, "no?memory"); /* it goes into the log */
}
END_TEST

/* Byte, its value, and the reason that the parser gives. */
static const struct {
    int at, value, rc;
} bad_meta[] = {
    {0, 0, -EINVAL},     {4, 9, -EPROTO},    {8, 0xff, 0},       {11, 0x80, -EBADMSG}, {12, 0, -EBADMSG},
    {12, 129, -EBADMSG}, {15, 1, -EBADMSG},  {16, 0, -EBADMSG},  {16, 3, -EBADMSG},    {17, 0, -EBADMSG},
    {17, 6, -EBADMSG},   {195, 1, -EBADMSG}, {203, 1, -EBADMSG},
};

START_TEST(meta_field)
{
    struct nb_verbs_meta a = sample(), b;
    uint8_t bytes[NB_VERBS_META_BYTES];

    nb_verbs_meta_put(bytes, &a);
    bytes[bad_meta[_i].at] = (uint8_t)bad_meta[_i].value;
    ck_assert_int_eq(nb_verbs_meta_get(bytes, &b), bad_meta[_i].rc);
}
END_TEST

START_TEST(control)
{
    struct nb_verbs_control a = {.kind = NB_VERBS_FIN, .count = 0x8877665544332211}, b;
    uint8_t bytes[NB_VERBS_CONTROL_BYTES];

    nb_verbs_control_put(bytes, &a);
    ck_assert_int_eq(nb_verbs_control_get(bytes, &b), 0);
    ck_assert_int_eq(b.kind, NB_VERBS_FIN);
    ck_assert_uint_eq(b.count, a.count);
    bytes[8] = 1; /* a FIN with an error */
    ck_assert_int_eq(nb_verbs_control_get(bytes, &b), -EPROTO);
    a = (struct nb_verbs_control){.kind = NB_VERBS_ERROR, .error = EIO};
    memset(a.reason, 'x', sizeof(a.reason) - 1);
    nb_verbs_control_put(bytes, &a);
    ck_assert_int_eq(nb_verbs_control_get(bytes, &b), 0);
    ck_assert_int_eq(b.error, EIO);
    ck_assert_uint_eq(strlen(b.reason), sizeof(b.reason) - 1);
    bytes[8] = 0; /* an ERROR message without an error */
    ck_assert_int_eq(nb_verbs_control_get(bytes, &b), -EPROTO);
    bytes[8] = 5;
    bytes[4] = 9; /* a kind that does not exist */
    ck_assert_int_eq(nb_verbs_control_get(bytes, &b), -EPROTO);
}
END_TEST

START_TEST(grants)
{
    uint8_t grant[NB_VERBS_GRANT_BYTES];

    for (int n = 1; n <= NB_NET_MAX_RECVS; n++) {
        struct nb_verbs_cts a = {.seq = 0xfedcba98, .n = n}, b;

        for (int i = 0; i < n; i++) {
            a.entry[i].addr = 0x123456789abcdef0ull + (unsigned)i;
            a.entry[i].size = (uint64_t)i << 40;
            a.entry[i].rkey = 0x80000000u + (unsigned)i;
            a.entry[i].tag = -i;
        }
        nb_verbs_cts_put(grant, &a);
        ck_assert_int_eq(nb_verbs_cts_get(grant, &b), 0);
        ck_assert_uint_eq(b.seq, a.seq);
        ck_assert_int_eq(b.n, n);
        ck_assert_mem_eq(b.entry, a.entry, (size_t)n * sizeof(a.entry[0]));
        ck_assert(!b.parts);
        a.parts = true; /* two entries, then */
        nb_verbs_cts_put(grant, &a);
        ck_assert_int_eq(nb_verbs_cts_get(grant, &b), n == 2 ? 0 : -EPROTO);
        ck_assert(b.parts);
        grant[9] = 1;
        ck_assert_int_eq(nb_verbs_cts_get(grant, &b), -EPROTO);
        a.parts = false;
        nb_verbs_cts_put(grant, &a);
    }
    grant[4] = 0;
    ck_assert_int_eq(nb_verbs_cts_get(grant, &(struct nb_verbs_cts){0}), -EPROTO);
    grant[4] = 9;
    ck_assert_int_eq(nb_verbs_cts_get(grant, &(struct nb_verbs_cts){0}), -EPROTO);
    grant[4] = 1;
    grant[7] = 0x80;
    ck_assert_int_eq(nb_verbs_cts_get(grant, &(struct nb_verbs_cts){0}), -EPROTO);
}
END_TEST

START_TEST(immediates)
{
    for (unsigned grant = 0; grant < NB_VERBS_GRANTS; grant += 5) {
        for (unsigned pieces = 1; pieces <= NB_VERBS_MAX_QPS; pieces += 3) {
            struct nb_verbs_imm a = {.grant = grant,
                                     .entry = grant % 8,
                                     .pieces = pieces,
                                     .in_table = grant & 1,
                                     .seq = grant * 977};
            struct nb_verbs_imm b = nb_verbs_imm_get(nb_verbs_imm_put(&a));

            ck_assert_uint_eq(b.grant, a.grant);
            ck_assert_uint_eq(b.entry, a.entry);
            ck_assert_uint_eq(b.pieces, a.pieces);
            ck_assert_int_eq(b.in_table, a.in_table);
            ck_assert_uint_eq(b.seq, a.seq & NB_VERBS_DATA_SEQ_MASK);
        }
    }
}
END_TEST

/* Bytes of any origin are refused, or give fields inside their ranges. The sanitizers watch the reading. */
START_TEST(random_bytes)
{
    uint8_t *bytes = malloc(NB_VERBS_META_BYTES);
    struct nb_verbs_control k;
    struct nb_verbs_meta m;
    int taken = 0;

    srand(1);
    for (int round = 0; round < 20000; round++) {
        struct nb_verbs_meta a = sample();

        nb_verbs_meta_put(bytes, &a);
        for (int i = 0; i < 1 + round % 4; i++)
            bytes[rand() % NB_VERBS_META_BYTES] = (uint8_t)rand();
        if (nb_verbs_meta_get(bytes, &m) == 0) {
            taken++;
            ck_assert(m.error || (m.nqps >= 1 && m.nqps <= NB_VERBS_MAX_QPS && m.mtu >= 1 && m.mtu <= 5));
            ck_assert_ptr_nonnull(memchr(m.device, 0, sizeof(m.device)));
            ck_assert_ptr_nonnull(memchr(m.reason, 0, sizeof(m.reason)));
        }
        for (int i = 4; i < NB_VERBS_CONTROL_BYTES; i++)
            bytes[i] = (uint8_t)rand();
        memcpy(bytes, "NBVC", 4);
        bytes[4] = (uint8_t)(rand() % 5);
        bytes[5] = 0;
        if (nb_verbs_control_get(bytes, &k) == 0)
            ck_assert_ptr_nonnull(memchr(k.reason, 0, sizeof(k.reason)));
    }
    ck_assert_int_gt(taken, 1000);
    free(bytes);
}
END_TEST

SUITE_MAIN("net/verbs_wire", TEST(meta), LOOP(meta_field, 0, (int)(sizeof(bad_meta) / sizeof(bad_meta[0]))),
           TEST(control), TEST(grants), TEST(immediates), TEST(random_bytes))
