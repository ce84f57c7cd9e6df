/* SPDX-License-Identifier: Apache-2.0 */
/* The tuner is pure, changes few entries, and is harmless alone. The tables are linked in. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/params.h"
#include "nibble/nccl_net.h"
#include "nibble/nccl_tuner.h"
#include "policy/reckon/reckon.h"
#include "tests/suite.h"

extern const ncclTuner_v4_t ncclTunerPlugin_v4;
extern const ncclTuner_v5_t ncclTunerPlugin_v5;
extern const ncclTuner_v6_t ncclTunerPlugin_v6;
extern const ncclCollNet_v12_t ncclCollNetPlugin_v12;

enum { ALGOS = NCCL_NUM_ALGORITHMS_V5, PROTOS = NCCL_NUM_PROTOCOLS_V5 };
typedef float table_t[ALGOS][PROTOS];

static void *coll_ctx;

static void start(const char *name, const char *value)
{
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    if (name)
        setenv(name, value, 1);
    ck_assert_int_eq(ncclCollNetPlugin_v12.init(&coll_ctx, 5, NULL), ncclSuccess);
}

static void finish(void)
{
    ck_assert_int_eq(ncclCollNetPlugin_v12.finalize(coll_ctx), ncclSuccess);
}

static void *tuner(size_t nranks, size_t nnodes)
{
    void *ctx = NULL;
    ck_assert_int_eq(ncclTunerPlugin_v6.init(&ctx, 5, nranks, nnodes, NULL, NULL, NULL), ncclSuccess);
    return ctx;
}

static int ask(void *ctx, ncclFunc_t func, size_t bytes, table_t t)
{
    int channels = 77;
    ck_assert_int_eq(
        ncclTunerPlugin_v6.getCollInfo(ctx, func, bytes, 1, (float **)t, ALGOS, PROTOS, 0, &channels),
        ncclSuccess);
    ck_assert_int_eq(channels, 77);
    return 0;
}

static void fill(table_t t, float value)
{
    for (int a = 0; a < ALGOS; a++)
        for (int p = 0; p < PROTOS; p++)
            t[a][p] = value;
}

/* Fill the table for an all-gather on NVSwitch nodes, as NCCL 2.28 has it. */
static void usual(table_t t)
{
    fill(t, -1);
    t[NCCL_ALGO_RING][0] = 900, t[NCCL_ALGO_RING][1] = 300, t[NCCL_ALGO_RING][2] = 41;
    t[NCCL_ALGO_COLLNET_DIRECT][NCCL_PROTO_SIMPLE] = 49;
    t[NCCL_ALGO_NVLS][NCCL_PROTO_SIMPLE] = 60;
    t[NCCL_ALGO_PAT][NCCL_PROTO_SIMPLE] = 55;
}

/* Whether NCCL reaches CollNet with a table, as its choice shows it. */
START_TEST(reaches)
{
    table_t t;

    fill(t, -1);
    ck_assert(nb_tuning_reaches(&t[0][0], ALGOS, PROTOS)); /* left open */
    t[NCCL_ALGO_RING][1] = 30;
    ck_assert(!nb_tuning_reaches(&t[0][0], ALGOS, PROTOS));
    for (int a = 0; a < ALGOS; a++) {
        const bool way = a == NCCL_ALGO_COLLNET_DIRECT || a == NCCL_ALGO_COLLNET_CHAIN || a == NCCL_ALGO_NVLS;
        for (int p = 0; p < PROTOS; p++) {
            fill(t, -1);
            t[NCCL_ALGO_RING][1] = t[NCCL_ALGO_TREE][0] = 30;
            t[a][p] = 29;
            ck_assert_int_eq(nb_tuning_reaches(&t[0][0], ALGOS, PROTOS), way);
            t[a][p] = 30; /* NCCL takes the first of both, which depends on its version */
            ck_assert_int_eq(nb_tuning_reaches(&t[0][0], ALGOS, PROTOS), way);
            t[a][p] = 31;
            ck_assert(!nb_tuning_reaches(&t[0][0], ALGOS, PROTOS));
        }
    }
    for (int algos = 1; algos <= ALGOS; algos++) { /* tables of older versions end earlier */
        fill(t, -1);
        t[NCCL_ALGO_RING][1] = 30;
        t[ALGOS - 1][0] = 1;
        ck_assert_int_eq(nb_tuning_reaches(&t[0][0], algos, PROTOS), algos <= NCCL_ALGO_RING);
    }
}
END_TEST

/* Return the first entry that NCCL would take. */
static int chosen(table_t t)
{
    int best = -1;
    for (int i = 0; i < ALGOS * PROTOS; i++)
        if ((&t[0][0])[i] >= 0 && (best < 0 || (&t[0][0])[i] < (&t[0][0])[best]))
            best = i;
    return best < 0 ? -1 : best / PROTOS;
}

START_TEST(chooses_collnet)
{
    static const ncclFunc_t funcs[] = {ncclFuncReduceScatter, ncclFuncAllGather, ncclFuncAllReduce};
    table_t t, before;
    void *ctx;

    start(NULL, NULL);
    ctx = tuner(16, 2);
    for (int f = 0; f < 3; f++) {
        usual(t);
        memcpy(before, t, sizeof(t));
        ask(ctx, funcs[f], 64 << 20, t);
        ck_assert_int_eq(chosen(t), NCCL_ALGO_COLLNET_DIRECT);
        before[NCCL_ALGO_COLLNET_DIRECT][NCCL_PROTO_SIMPLE] = t[NCCL_ALGO_COLLNET_DIRECT][NCCL_PROTO_SIMPLE];
        ck_assert_int_eq(memcmp(before, t, sizeof(t)), 0); /* the rest is unchanged */
        ck_assert(t[NCCL_ALGO_COLLNET_DIRECT][NCCL_PROTO_SIMPLE] > 0);
    }
    /* Other functions, one node, and small sizes are left to NCCL. */
    const struct {
        ncclFunc_t func;
        size_t bytes;
    } others[] = {{ncclFuncBroadcast, 64 << 20},
                  {ncclFuncReduce, 64 << 20},
                  {ncclFuncSendRecv, 64 << 20},
                  {ncclFuncAllReduce, 65535},
                  {ncclFuncReduceScatter, 8 * 16384 - 1},
                  {ncclFuncAllGather, 8 * 262144 - 1},
                  {(ncclFunc_t)99, 64 << 20}};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        usual(t);
        memcpy(before, t, sizeof(t));
        ask(ctx, others[i].func, others[i].bytes, t);
        ck_assert_int_eq(memcmp(before, t, sizeof(t)), 0);
    }
    usual(t);
    ask(ctx, ncclFuncReduceScatter, 8 * 16384, t);
    ck_assert_int_eq(chosen(t), NCCL_ALGO_COLLNET_DIRECT);
    ncclTunerPlugin_v6.finalize(ctx);
    ctx = tuner(8, 1);
    usual(t);
    ask(ctx, ncclFuncAllGather, 64 << 20, t);
    ck_assert_int_eq(chosen(t), NCCL_ALGO_RING);
    ncclTunerPlugin_v6.finalize(ctx);
    finish();
}
END_TEST

START_TEST(nvls_only_where_it_is_the_way)
{
    table_t t;
    void *ctx;

    start(NULL, NULL);
    ctx = tuner(16, 2);
    usual(t);
    t[NCCL_ALGO_NVLS][NCCL_PROTO_SIMPLE] =
        1; /* NCCL prefers NVLS, and the tuner may still prefer CollNet-direct */
    ask(ctx, ncclFuncAllGather, 64 << 20, t);
    ck_assert(t[NCCL_ALGO_NVLS][NCCL_PROTO_SIMPLE] == 1);
    ck_assert_int_eq(chosen(t), NCCL_ALGO_COLLNET_DIRECT);
    usual(t);
    t[NCCL_ALGO_COLLNET_DIRECT][NCCL_PROTO_SIMPLE] = -1;
    ask(ctx, ncclFuncAllGather, 64 << 20, t);
    ck_assert_int_eq(chosen(t), NCCL_ALGO_NVLS);
    ck_assert(t[NCCL_ALGO_COLLNET_DIRECT][NCCL_PROTO_SIMPLE] == -1);
    ncclTunerPlugin_v6.finalize(ctx);
    finish();
}
END_TEST

static uint64_t rng(uint64_t *s)
{
    *s ^= *s << 13, *s ^= *s >> 7, *s ^= *s << 17;
    return *s;
}

/* Random tables and sizes: the same answer twice and on another context. The tuner never touches -1 and never
 * raises a cost. */
START_TEST(pure_and_modest)
{
    static const size_t shapes[][2] = {{2, 2}, {16, 2}, {64, 8}, {7, 3}, {8, 1}, {1, 1}, {4096, 512}};
    uint64_t s = 12345;

    start(NULL, NULL);
    for (int i = 0; i < 20000; i++) {
        const size_t *shape = shapes[rng(&s) % 7];
        void *a = tuner(shape[0], shape[1]), *b = tuner(shape[0], shape[1]);
        ncclFunc_t func = (ncclFunc_t)(rng(&s) % 6);
        size_t bytes = (size_t)(rng(&s) % 3 ? rng(&s) % (64 << 20) : rng(&s) % 200000);
        int channels = -5;
        table_t t, again, before;
        for (int k = 0; k < ALGOS * PROTOS; k++)
            (&t[0][0])[k] = rng(&s) % 3 ? (float)(rng(&s) % 1000) : -1;
        memcpy(before, t, sizeof(t));
        memcpy(again, t, sizeof(t));
        for (int w = 0; w < 3; w++) /* earlier questions do not matter */
            ncclTunerPlugin_v6.getCollInfo(b, (ncclFunc_t)(w + 2), 1 << 26, 1, (float **)again, ALGOS, PROTOS,
                                           1, &channels);
        memcpy(again, before, sizeof(t));
        if (ncclTunerPlugin_v6.getCollInfo(a, func, bytes, 1, (float **)t, ALGOS, PROTOS, 0, &channels) ||
            ncclTunerPlugin_v6.getCollInfo(b, func, bytes, 9, (float **)again, ALGOS, PROTOS, 1, &channels))
            ck_abort_msg("an error");
        if (memcmp(t, again, sizeof(t)) != 0 || channels != -5)
            ck_abort_msg("two contexts differ");
        for (int k = 0; k < ALGOS * PROTOS; k++) {
            float x = (&before[0][0])[k], y = (&t[0][0])[k];
            int row = k / PROTOS;
            if ((x < 0) != (y < 0) || y > x ||
                (x != y && row != NCCL_ALGO_COLLNET_DIRECT && row != NCCL_ALGO_NVLS))
                ck_abort_msg("entry %d: %g became %g", k, (double)x, (double)y);
        }
        ncclTunerPlugin_v6.finalize(a);
        ncclTunerPlugin_v6.finalize(b);
    }
    finish();
}
END_TEST

START_TEST(old_nccl)
{
    table_t t;
    void *ctx = NULL;
    int channels = 3;

    start(NULL, NULL);
    ck_assert_int_eq(ncclTunerPlugin_v4.init(16, 2, NULL, &ctx), ncclSuccess);
    usual(t);
    ncclTunerPlugin_v4.getCollInfo(ctx, ncclFuncAllReduce, 64 << 20, 1, (float **)t, ALGOS, PROTOS, 0,
                                   &channels);
    ck_assert_int_eq(chosen(t), NCCL_ALGO_RING); /* without records it would run raw */
    ncclTunerPlugin_v4.getCollInfo(ctx, ncclFuncAllGather, 64 << 20, 1, (float **)t, ALGOS, PROTOS, 0,
                                   &channels);
    ck_assert_int_eq(chosen(t), NCCL_ALGO_COLLNET_DIRECT);
    ck_assert_int_eq(ncclTunerPlugin_v4.destroy(ctx), ncclSuccess);
    /* Tables smaller than the entries that the tuner means. */
    ctx = tuner(16, 2);
    usual(t);
    for (int a = 0; a < 3; a++)
        for (int p = 0; p < 4; p++)
            if (a < 3 || p < 3)
                ncclTunerPlugin_v6.getCollInfo(ctx, ncclFuncAllGather, 64 << 20, 1, (float **)t, a, p, 0,
                                               &channels);
    ck_assert_int_eq(channels, 3);
    ncclTunerPlugin_v6.finalize(ctx);
    finish();
}
END_TEST

START_TEST(switched_off)
{
    static const char *const off[][2] = {{"NIBBLE_TUNER", "0"},
                                         {"NIBBLE_ENABLE", "0"},
                                         {"NIBBLE_AG", "off"},
                                         {"NIBBLE_MIN_BYTES", "67108865"}};
    table_t t;
    void *ctx;

    start(off[_i][0], off[_i][1]);
    ctx = tuner(16, 2);
    usual(t);
    ask(ctx, ncclFuncAllGather, 64 << 20, t);
    ck_assert_int_eq(chosen(t), NCCL_ALGO_RING);
    ncclTunerPlugin_v6.finalize(ctx);
    finish();
}
END_TEST

/* CollNet-direct's -1 gives way on request only, and with one rank a node only. */
START_TEST(forced)
{
    table_t t;
    void *ctx;

    start("NIBBLE_FORCE_COLLNET", "1");
    for (size_t ranks = 2; ranks <= 4; ranks += 2) {
        ctx = tuner(ranks, 2);
        usual(t);
        t[NCCL_ALGO_COLLNET_DIRECT][NCCL_PROTO_SIMPLE] = t[NCCL_ALGO_NVLS][NCCL_PROTO_SIMPLE] = -1;
        ask(ctx, ncclFuncAllGather, 64 << 20, t);
        ck_assert_int_eq(chosen(t), ranks == 2 ? NCCL_ALGO_COLLNET_DIRECT : NCCL_ALGO_RING);
        ck_assert(t[NCCL_ALGO_COLLNET_DIRECT][NCCL_PROTO_LL] == -1);
        ncclTunerPlugin_v6.finalize(ctx);
    }
    finish();
}
END_TEST

/* Between distant nodes a channel's eight chunks hold the operation of a head, on every rank alike. */
START_TEST(distant_chunks)
{
    static const struct {
        size_t ranks, bytes, chunk;
        int channels;
    } cases[] = {{2, 1 << 30, 16 << 20, 8}, {16, 1 << 30, 2 << 20, 8},
                 {2, 1 << 30, 8 << 20, 16}, {2, 3 << 20, 131072, 8},
                 {2, 65536, 131072, 8},     {2, (64 << 20) + 4, (1 << 20) + 65536, 8}};

    start("NIBBLE_LINK_RTT_US", "70000");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        void *ctx = tuner((int)cases[i].ranks, 2);
        size_t chunk = 131072;

        ncclTunerPlugin_v6.getChunkSize(ctx, ncclFuncAllReduce, cases[i].bytes, NCCL_ALGO_COLLNET_DIRECT,
                                        NCCL_PROTO_SIMPLE, cases[i].channels, &chunk);
        ck_assert_uint_eq(chunk, cases[i].chunk);
        chunk = 131072;
        ncclTunerPlugin_v6.getChunkSize(ctx, ncclFuncAllReduce, cases[i].bytes, NCCL_ALGO_NVLS,
                                        NCCL_PROTO_SIMPLE, cases[i].channels, &chunk);
        ck_assert_uint_eq(chunk, 131072);
        ncclTunerPlugin_v6.finalize(ctx);
    }
    finish();
}
END_TEST

START_TEST(chunks)
{
    void *ctx;
    size_t chunk = 131072;

    start(_i ? "NIBBLE_TUNER_CHUNK_BYTES" : NULL, "524288");
    ctx = tuner(16, 2);
    for (int algo = 0; algo < ALGOS; algo++) {
        for (int proto = 0; proto < PROTOS; proto++) {
            chunk = 131072;
            ck_assert_int_eq(
                ncclTunerPlugin_v6.getChunkSize(ctx, ncclFuncAllGather, 1 << 26, algo, proto, 8, &chunk), 0);
            ck_assert_uint_eq(chunk, _i && algo == NCCL_ALGO_COLLNET_DIRECT && proto == NCCL_PROTO_SIMPLE
                                         ? 524288
                                         : 131072);
        }
    }
    chunk = 1 << 20; /* never lowered */
    ncclTunerPlugin_v6.getChunkSize(ctx, ncclFuncAllGather, 1 << 26, NCCL_ALGO_COLLNET_DIRECT,
                                    NCCL_PROTO_SIMPLE, 8, &chunk);
    ck_assert_uint_eq(chunk, 1 << 20);
    ncclTunerPlugin_v6.finalize(ctx);
    finish();
}
END_TEST

/* Without this plugin's CollNet half the entries belong to another plugin. Also NULL everywhere. */
START_TEST(alone)
{
    table_t t, before;
    void *ctx = &t;
    size_t chunk = 5;

    ck_assert_int_eq(ncclTunerPlugin_v6.init(&ctx, 5, 16, 2, NULL, NULL, NULL), ncclSuccess);
    usual(t);
    memcpy(before, t, sizeof(t));
    ask(ctx, ncclFuncAllGather, 64 << 20, t);
    ck_assert_int_eq(memcmp(before, t, sizeof(t)), 0);
    ck_assert_int_eq(ncclTunerPlugin_v6.finalize(ctx), ncclSuccess);
    ck_assert_int_eq(ncclTunerPlugin_v5.init(&ctx, 5, 16, 2, NULL, NULL, NULL), ncclSuccess);
    ck_assert_int_eq(ncclTunerPlugin_v5.finalize(ctx), ncclSuccess);
    ck_assert_int_eq(ncclTunerPlugin_v4.init(16, 2, NULL, &ctx), ncclSuccess);
    ck_assert_int_eq(ncclTunerPlugin_v4.destroy(ctx), ncclSuccess);
    ck_assert_int_eq(ncclTunerPlugin_v6.init(NULL, 5, 16, 2, NULL, NULL, NULL), ncclSuccess);
    ck_assert_int_eq(
        ncclTunerPlugin_v6.getCollInfo(NULL, ncclFuncAllGather, 1, 1, (float **)t, ALGOS, PROTOS, 0, NULL),
        ncclSuccess);
    ck_assert_int_eq(ncclTunerPlugin_v6.getChunkSize(NULL, ncclFuncAllGather, 1, 2, 2, 1, &chunk),
                     ncclSuccess);
    ck_assert_uint_eq(chunk, 5);
    ck_assert_int_eq(ncclTunerPlugin_v6.finalize(NULL), ncclSuccess);
    start(NULL, NULL);
    ctx = tuner(16, 2);
    ck_assert_int_eq(
        ncclTunerPlugin_v6.getCollInfo(ctx, ncclFuncAllGather, 1 << 26, 1, NULL, ALGOS, PROTOS, 0, NULL),
        ncclSuccess);
    ck_assert_int_eq(ncclTunerPlugin_v6.getChunkSize(ctx, ncclFuncAllGather, 1, 2, 2, 1, NULL), ncclSuccess);
    /* The tuner may outlive the other tables. */
    finish();
    ck_assert_int_eq(ncclTunerPlugin_v6.finalize(ctx), ncclSuccess);
}
END_TEST

SUITE_MAIN("tuner", TEST(reaches), TEST(chooses_collnet), TEST(nvls_only_where_it_is_the_way),
           TEST(pure_and_modest), TEST(old_nccl), LOOP(switched_off, 0, 4), TEST(forced), LOOP(chunks, 0, 2),
           TEST(distant_chunks), TEST(alone))
