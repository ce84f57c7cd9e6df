/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flipped bytes of payloads. Four nodes run in one process, and the network between them flips one byte of
 * one message. For each function, codec and route, every message is damaged in turn (a sample where there are
 * many). All nodes fail with an error that names both ends, or get the bytes again where that is possible.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "coll/comm/comm.h"
#include "coll/comm/grid.h"
#include "coll/report/report.h"
#include "policy/records/records.h"
#include "policy/rules/rules.h"
#include "tests/base/hear.h"
#include "tests/coll/cluster.h"
#include "tests/net/loopback.h"
#include "tests/suite.h"

#define NODES 4
#define VALUES 16384u /* values of a vector: 64 KiB, a block 16 KiB */
#define BLOCK (VALUES / NODES)
#define STEPS 16u /* NCCL's buffer: 8 slots to send, 8 to receive */
#define RUNS 9    /* most messages that are damaged in turn */

struct kind {
    const char *name;
    enum nb_func func;
    int setting; /* word of NIBBLE_RS, NIBBLE_AR or NIBBLE_AG */
    bool second; /* the second of two gathers of nearly the same values */
    bool mended; /* damaged bytes can be sent again */
    uint8_t codec;
};

static const struct kind kinds[] = {
    {"reduce-scatter raw", NB_FUNC_REDUCE_SCATTER, NB_SUM_RAW, false, false, NB_CODEC_RAW},
    {"reduce-scatter int4", NB_FUNC_REDUCE_SCATTER, NB_SUM_INT4, false, false, NB_CODEC_INT4},
    {"reduce-scatter int8", NB_FUNC_REDUCE_SCATTER, NB_SUM_INT8, false, false, NB_CODEC_INT8},
    {"all-reduce raw", NB_FUNC_ALL_REDUCE, NB_SUM_RAW, false, false, NB_CODEC_RAW},
    {"all-reduce int4", NB_FUNC_ALL_REDUCE, NB_SUM_INT4, false, false, NB_CODEC_INT4},
    {"all-reduce int8", NB_FUNC_ALL_REDUCE, NB_SUM_INT8, false, false, NB_CODEC_INT8},
    {"all-gather raw", NB_FUNC_ALL_GATHER, NB_AG_RAW, false, false, NB_CODEC_RAW},
    {"all-gather raw, kept", NB_FUNC_ALL_GATHER, NB_AG_EXACT, false, true, NB_CODEC_RAW},
    {"all-gather ulp", NB_FUNC_ALL_GATHER, NB_AG_EXACT, true, true, NB_CODEC_ULP},
    {"all-gather delta4", NB_FUNC_ALL_GATHER, NB_AG_DELTA4, true, true, NB_CODEC_DELTA4},
};
#define KINDS ((int)(sizeof(kinds) / sizeof(kinds[0])))

static int checks = -1; /* word of NIBBLE_PAYLOAD_CHECK. -1: the default */

static const enum nb_schedule_word routes[] = {NB_SCHEDULE_DIRECT, NB_SCHEDULE_TWO_HOP,
                                               NB_SCHEDULE_TWO_LEVEL};
static const char *const route_names[] = {"direct", "two-hop", "two-level"};
#define ROUTES ((int)(sizeof(routes) / sizeof(routes[0])))

static struct cluster c;
static float *buffer[NODES]; /* [STEPS][VALUES] */
static float good[NODES][VALUES];
static unsigned warnings;
static char warned[16384];

static void hear(ncclDebugLogLevel level, const char *text)
{
    const size_t at = strlen(warned);

    if (level != NCCL_LOG_WARN)
        return;
    warnings++;
    snprintf(warned + at, sizeof(warned) - at, "%s\n", text);
}

/* ---- the damage ------------------------------------------------------------------------------------- */

static struct {
    bool armed;
    uint8_t codec; /* codec of the messages that count */
    long at, seen; /* number of the message to damage (-1: none), and messages so far */
    bool data;     /* damage DATA messages instead: every one, `at` times */
    struct nb_msg damaged;
} plan;

static void flip(void *arg, uint8_t *bytes, size_t size)
{
    const uint32_t token = c.node[0].comm ? c.node[0].comm->token : 0;
    const char *why = "";
    struct nb_msg m;
    struct nb_ctl ctl;

    (void)arg;
    if (!plan.armed)
        return;
    if (plan.data) {
        if (!nb_ctl_parse(bytes, size, token, &ctl, &why) && ctl.kind == NB_CTL_DATA && plan.seen++ < plan.at)
            bytes[size - 1 - ctl.c / 3] ^= 1;
        return;
    }
    const int header = nb_msg_parse(bytes, size, token, 1u << 20, &m, &why);
    if (header < 0 || !m.coded || m.codec != plan.codec || plan.seen++ != plan.at)
        return;
    bytes[header + (int)(m.coded * 5 / 7)] ^= (uint8_t)(1 << plan.at % 8);
    plan.damaged = m;
}

/* ---- operations ------------------------------------------------------------------------------------- */

static float value(int rank, size_t i, int turn)
{
    const float v = (float)((i * 7 + (size_t)rank * 13) % 1001) - 500.5f;

    return turn && i % 3 == 0 ? v * 1.0009765625f : v;
}

static float *send_part(int r)
{
    return buffer[r];
}
static float *recv_part(int r)
{
    return buffer[r] + 8 * VALUES;
}

static void tell(int r, const struct kind *k)
{
    struct nb_record record = {.func = k->func,
                               .type = k->func == NB_FUNC_ALL_GATHER ? ncclInt8 : ncclFloat32,
                               .api_type = k->codec == NB_CODEC_DELTA4 ? ncclBfloat16 : ncclFloat32,
                               .flags = NB_RECORD_API,
                               .bytes = (k->func == NB_FUNC_ALL_REDUCE ? VALUES : BLOCK) * sizeof(float),
                               .slot = -1,
                               .chunk = VALUES * sizeof(float),
                               .heads = 1 << 1};

    ck_assert_int_eq(nb_record_push(c.node[r].comm, &record), 0);
}

static void post(int r, const struct kind *k, struct nb_coll_req **req)
{
    struct nb_coll_comm *comm = c.node[r].comm;
    float *in = send_part(r), *out = recv_part(r);
    const size_t block = BLOCK * sizeof(float);
    int ret;

    switch (k->func) {
    case NB_FUNC_ALL_REDUCE:
        ret = nb_coll_iallreduce(comm, in, out, VALUES, ncclFloat32, ncclSum, req);
        break;
    case NB_FUNC_ALL_GATHER:
        ret = nb_coll_iallgather(comm, in + (size_t)r * BLOCK, out, NODES * block, block, 0, NODES * block,
                                 req);
        break;
    default:
        ret = nb_coll_ireducescatter(comm, in, NODES * block, out, block, 0, NODES * block, ncclFloat32,
                                     ncclSum, req);
        break;
    }
    ck_assert_int_eq(ret, 0);
}

/* Run one operation on all nodes. Return the number of nodes on which it failed. */
static int operate(const struct kind *k, int turn)
{
    struct nb_coll_req *req[NODES];
    int left = NODES, failed = 0, done, ret;

    for (int r = 0; r < NODES; r++) {
        for (size_t i = 0; i < VALUES; i++) {
            float v = value(r, i, turn);
            if (k->codec == NB_CODEC_DELTA4) { /* two values of bfloat16 in each float */
                uint32_t bits;
                memcpy(&bits, &v, 4);
                bits = (bits & 0xffff0000u) + (turn ? 0x10000u : 0) + (bits >> 16);
                memcpy(&v, &bits, 4);
            }
            send_part(r)[i] = v;
            recv_part(r)[i] = -1;
        }
        tell(r, k);
        post(r, k, &req[r]);
    }
    while (left) {
        for (int r = 0; r < NODES; r++) {
            ret = req[r] ? nb_coll_test(req[r], &done, NULL) : 0;
            if (!req[r] || (!ret && !done))
                continue;
            failed += ret < 0;
            req[r] = NULL;
            left--;
        }
        ck_assert(!left || cluster_turn(&c));
    }
    return failed;
}

/* ---- one run ---------------------------------------------------------------------------------------- */

static void begin(const struct kind *k, int route)
{
    warnings = 0;
    warned[0] = 0;
    cluster_open(&c, NODES);
    for (int r = 0; r < NODES; r++) {
        struct nb_params *p = &c.node[r].params;
        p->schedule = routes[route];
        p->grad = "all";
        p->warmup_steps = 0;
        p->rs_min_bytes = p->ar_min_bytes = p->ag_min_bytes = 0;
        p->ef = NB_FEEDBACK_OFF;
        if (checks >= 0)
            p->payload_check = checks;
        if (k->func == NB_FUNC_REDUCE_SCATTER)
            p->rs = k->setting;
        else if (k->func == NB_FUNC_ALL_REDUCE)
            p->ar = k->setting;
        else
            p->ag = k->setting;
        buffer[r] = calloc((size_t)STEPS * VALUES, sizeof(float));
        ck_assert_ptr_nonnull(buffer[r]);
    }
    cluster_connect(&c);
    for (int r = 0; r < NODES; r++) {
        void *mhandle;
        ck_assert_int_eq(nb_coll_reg_mr(c.node[r].comm, buffer[r], STEPS * VALUES * sizeof(float),
                                        NCCL_PTR_HOST, &mhandle),
                         0);
    }
    memset(&plan, 0, sizeof(plan));
    plan.codec = k->codec;
    plan.at = -1;
    loopback_set_tap(flip, NULL);
}

static struct nb_coll_stats totals(void)
{
    struct nb_coll_stats sum = {0}, one;

    for (int r = 0; r < NODES; r++) {
        nb_coll_get_stats(c.node[r].comm, &one);
        sum.payload_checked += one.payload_checked;
        sum.payload_damaged += one.payload_damaged;
        sum.resends += one.resends;
    }
    return sum;
}

static void end(void)
{
    loopback_set_tap(NULL, NULL);
    cluster_disconnect(&c);
    cluster_close(&c);
    for (int r = 0; r < NODES; r++)
        free(buffer[r]);
}

/* Run the operation with message `at` damaged. Return the number of nodes on which it failed, and the number
 * of messages in *messages. */
static int run(const struct kind *k, long at, long *messages)
{
    if (k->second)
        ck_assert_int_eq(operate(k, 0), 0);
    plan.at = at;
    plan.seen = 0;
    plan.armed = true;
    const int failed = operate(k, k->second);
    plan.armed = false;
    *messages = plan.seen;
    return failed;
}

static void keep_results(void)
{
    for (int r = 0; r < NODES; r++)
        memcpy(good[r], recv_part(r), sizeof(good[r]));
}

static int differing_results(void)
{
    int n = 0;

    for (int r = 0; r < NODES; r++)
        n += memcmp(good[r], recv_part(r), sizeof(good[r])) != 0;
    return n;
}

/* ---- tests ------------------------------------------------------------------------------------------ */

/* Check that the error names the payload's maker, as far as the message itself tells. */
static void names_both_ends(const struct kind *k, const char *what)
{
    char text[96];

    snprintf(text, sizeof(text), "%s %llu, %u bytes at %llu, codec %s, from node ", nb_func_name(k->func),
             (unsigned long long)plan.damaged.opno, plan.damaged.bytes,
             (unsigned long long)plan.damaged.offset, nb_codec_name((enum nb_codec)k->codec));
    ck_assert_msg(strstr(warned, text) != NULL, "%s: no \"%s\" in: %s", what, text, warned);
    ck_assert_msg(strstr(warned, " to node ") != NULL, "%s: %s", what, warned);
    if (k->func == NB_FUNC_ALL_GATHER) {
        snprintf(text, sizeof(text), "from node %d ", (int)(plan.damaged.offset / (BLOCK * sizeof(float))));
        ck_assert_msg(strstr(warned, text) != NULL, "%s: no \"%s\" in: %s", what, text, warned);
    }
}

/* Nodes that had finished the operation learn of the failure too. */
static void all_have_failed(const char *what)
{
    for (int r = 0; r < NODES; r++)
        while (!nb_comm_failed(c.node[r].comm))
            ck_assert_msg(cluster_turn(&c), "%s: node %d has not failed", what, r);
}

START_TEST(one_byte_of_each)
{
    const struct kind *k = &kinds[_i % KINDS];
    const int route = _i / KINDS;
    long messages, none;

    begin(k, route);
    ck_assert_int_eq(run(k, -1, &messages), 0);
    ck_assert_uint_eq(warnings, 0);
    ck_assert_msg(messages > 0, "%s, %s: no message of this codec", k->name, route_names[route]);
    ck_assert_uint_gt(totals().payload_checked + (unsigned)k->mended, 0);
    ck_assert_uint_eq(totals().payload_damaged + totals().resends, 0);
    keep_results();
    end();
    for (long at = 0; at<messages; at += messages> RUNS ? (messages + RUNS - 1) / RUNS : 1) {
        char what[96];
        snprintf(what, sizeof(what), "%s, %s, message %ld of %ld", k->name, route_names[route], at, messages);
        begin(k, route);
        const int failed = run(k, at, &none);
        ck_assert_msg(k->mended ? !failed : failed, "%s: failed on %d nodes; %s", what, failed, warned);
        if (!k->mended)
            all_have_failed(what);
        ck_assert_msg(strstr(warned, "damaged payload") != NULL, "%s: %s", what, warned);
        names_both_ends(k, what);
        ck_assert_uint_gt(totals().payload_damaged, 0);
        if (k->mended) {
            ck_assert_uint_gt(totals().resends, 0);
            ck_assert_msg(differing_results() == 0, "%s: %d results differ", what, differing_results());
        }
        end();
    }
}
END_TEST

/* The switch turns the check off: the same flip is delivered. This shows that the tests above can fail, and
 * the purpose of the check. */
START_TEST(switched_off)
{
    const struct kind k = kinds[_i];
    long messages;

    checks = k.codec == NB_CODEC_RAW ? NB_PAYLOAD_CHECK_CODED : NB_PAYLOAD_CHECK_OFF;
    begin(&k, 0);
    ck_assert_int_eq(run(&k, -1, &messages), 0);
    keep_results();
    ck_assert_uint_eq(totals().payload_checked, 0);
    end();
    int noticed = 0;
    for (long at = 0; at < messages && !noticed; at++) {
        begin(&k, 0);
        /* A codec may find the bytes malformed. Some bits have no effect. */
        noticed = run(&k, at, &(long){0}) || differing_results() > 0;
        ck_assert_ptr_null(strstr(warned, "damaged payload"));
        end();
    }
    checks = -1;
    ck_assert(noticed);
}
END_TEST

/* Nodes with different settings understand each other. */
START_TEST(settings_differ)
{
    struct kind k = kinds[_i];
    long messages;

    begin(&k, 0);
    keep_results();
    ck_assert_int_eq(run(&k, -1, &messages), 0);
    keep_results();
    end();
    begin(&k, 0);
    for (int r = 0; r < NODES; r++) /* no agreement needed: read at every message */
        c.node[r].params.payload_check = r % NB_PAYLOAD_CHECK_COUNT;
    ck_assert_int_eq(run(&k, -1, &messages), 0);
    ck_assert_int_eq(differing_results(), 0);
    ck_assert_uint_eq(warnings, 0);
    end();
}
END_TEST

/* Retransmitted bytes are checked too. Damaged once or twice, they are requested again. Damaged every time,
 * they make the communicator fail. */
START_TEST(sent_again)
{
    const struct kind *k = &kinds[7]; /* raw, kept */
    long messages;

    for (int times = 1; times < 8; times += 3) {
        begin(k, _i);
        for (int r = 0; r < NODES; r++) /* asks for bytes of a reference with another hash */
            c.node[r].comm->fault_ref = 1;
        ck_assert_int_eq(operate(k, 0), 0);
        keep_results();
        plan.data = plan.armed = true;
        plan.at = times == 7 ? 1000000 : times;
        const int failed = operate(&(struct kind){k->name, k->func, k->setting, true, true, NB_CODEC_ULP}, 1);
        messages = plan.seen;
        ck_assert_msg(failed == (times == 7 ? NODES : 0), "%d of %ld damaged: failed on %d nodes: %s", times,
                      messages, failed, warned);
        ck_assert_ptr_nonnull(strstr(warned, "damaged payload"));
        for (int r = 0; !failed && r < NODES; r++)
            for (int owner = 0; owner < NODES; owner++)
                ck_assert_mem_eq(recv_part(r) + owner * BLOCK, send_part(owner) + owner * BLOCK,
                                 BLOCK * sizeof(float));
        end();
    }
}
END_TEST

int main(void)
{
    nb_log_set(hear_log);
    return SUITE("coll/payload", LOOP(one_byte_of_each, 0, KINDS * ROUTES), LOOP(switched_off, 0, 7),
                 LOOP(settings_differ, 0, KINDS), LOOP(sent_again, 0, ROUTES));
}
