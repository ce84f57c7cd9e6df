/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A codec that the test adds (identity.c), in the functions that work with any codec, in message headers, and
 * in an exchange that the test drives as NCCL drives the plugin. This program has its own table of codecs, so
 * that plugin/codec/table.c is not linked. In the table the codec has its own number and, for the exchange,
 * int8's number, which a setting selects.
 */
#include <errno.h>
#include <stdlib.h>

#include "coll/comm/wire.h"
#include "data.h"
#include "identity.h"
#include "nibble/nccl_net.h"
#include "tests/harness/lib/suite.h"

static const struct nb_codec_row in_place_of_int8 = {
    .name = "identity",
    .code = NB_CODEC_INT8,
    .format = NB_FORMAT_VALUES,
    .exact = NB_CODEC_RAW,
    .finer = NB_CODEC_INT8,
    .bound = identity_bound,
    .encode = identity_encode,
    .decode = identity_decode,
    .record = identity_record,
};

const struct nb_codec_row *const nb_codec_table[NB_CODEC_CODES] = {
    [NB_CODEC_RAW] = &nb_row_raw, [NB_CODEC_INT4] = &nb_row_int4,     [NB_CODEC_INT8] = &in_place_of_int8,
    [NB_CODEC_ULP] = &nb_row_ulp, [NB_CODEC_DELTA4] = &nb_row_delta4, [CODEC_IDENTITY] = &identity_row,
};

/* ---- functions ------------------------------------------------------------------------------------- */

#define MOST 9000u

/* Spans that begin and end anywhere decode to their own values, with and without residuals. */
static int round_trips(void)
{
    static uint8_t src[4 * MOST], coded[5 * MOST], out[4 * MOST], scale[MOST];
    static int8_t err[2 * MOST];
    struct nb_ef ef = {err, scale, NB_EF_FULL, 0, 0.2f};
    struct rng r = {31};

    for (unsigned k = 0; k < 300; k++) {
        const enum nb_dtype type = (enum nb_dtype)(k % NB_DTYPE_COUNT);
        const size_t n = rng_below(&r, k % 5 ? MOST : 70), bytes = n * nb_dtype_size(type);
        const uint64_t first = rng_below(&r, MOST);
        const size_t bound = nb_encode_bound(CODEC_IDENTITY, type, n);
        ssize_t len;

        data_fill(&r, DATA_GAUSS, type, src, n, first);
        memset(err, 1, sizeof(err));
        len = nb_encode(CODEC_IDENTITY, type, src, n, first, k & 1 ? &ef : NULL, coded, sizeof(coded), NULL);
        HX_CHECK(len >= (ssize_t)bytes && (size_t)len <= bound, "%zu values: %zd bytes of at most %zu", n,
                 len, bound);
        HX_CHECK(nb_encode(CODEC_IDENTITY, type, src, n, first, NULL, coded, bound - 1, NULL) == -ENOSPC,
                 "no room");
        HX_CHECK(nb_decode(CODEC_IDENTITY, type, coded, (size_t)len, n, first, out) == 0, "decode");
        HX_CHECK(memcmp(src, out, bytes) == 0, "%zu values differ", n);
        for (size_t i = 0; k & 1 && i < n; i++)
            HX_CHECK(err[first + i] == 0, "value %zu left a residual", i);
        if (n)
            HX_CHECK(nb_decode(CODEC_IDENTITY, type, coded, (size_t)len - 1, n, first, out) == -EBADMSG,
                     "cut");
    }
    HX_CHECK(strcmp(nb_codec_name(CODEC_IDENTITY), "identity") == 0, "its name");
    HX_CHECK(nb_codec_most(4096) >= nb_encode_bound(CODEC_IDENTITY, NB_BF16, 2048),
             "the longest span of any codec");
    return 0;
}

/* In a sum it counts like raw values, beside any other codec. */
static int sums(void)
{
    enum { N = 5000, FIRST = 77 };
    static float src[2][N], want[N], got[N];
    static uint8_t coded[2][5 * N];
    struct nb_source sources[3];
    struct rng r = {32};
    ssize_t len;

    data_fill(&r, DATA_GAUSS, NB_F32, src[0], N, FIRST);
    data_fill(&r, DATA_GAUSS, NB_F32, src[1], N, FIRST);
    len = nb_encode(NB_CODEC_INT4, NB_F32, src[0], N, FIRST, NULL, coded[0], sizeof(coded[0]), NULL);
    sources[0] = sources[1] = (struct nb_source){NB_CODEC_RAW, src[1], sizeof(src[1])};
    sources[2] = (struct nb_source){NB_CODEC_INT4, coded[0], (size_t)len};
    HX_CHECK(nb_reduce(NB_F32, sources, 3, src[0], N, FIRST, want) == 0, "raw and int4");
    len = nb_encode(CODEC_IDENTITY, NB_F32, src[1], N, FIRST, NULL, coded[1], sizeof(coded[1]), NULL);
    sources[0] = (struct nb_source){CODEC_IDENTITY, coded[1], (size_t)len};
    HX_CHECK(nb_reduce(NB_F32, sources, 3, src[0], N, FIRST, got) == 0, "with the new codec");
    HX_CHECK(memcmp(want, got, sizeof(got)) == 0, "sums differ");
    HX_CHECK(nb_reduce(NB_F32, sources, 1, NULL, N, FIRST, got) == 0 && memcmp(src[1], got, sizeof(got)) == 0,
             "alone");
    sources[0].len--;
    HX_CHECK(nb_reduce(NB_F32, sources, 3, NULL, N, FIRST, got) == -EBADMSG, "cut");
    return 0;
}

/* A message may name this codec. The parser refuses a number without a row. */
static int messages(void)
{
    struct nb_msg msg = {.func = NB_FUNC_REDUCE_SCATTER,
                         .codec = (uint8_t)CODEC_IDENTITY,
                         .type = ncclFloat32,
                         .bytes = 256,
                         .coded = 260},
                  back;
    uint8_t buf[NB_MSG_MAX_BYTES + 260];
    const char *why = "";

    HX_CHECK(nb_msg_pack(&msg, buf) == NB_MSG_BYTES, "header");
    HX_CHECK(nb_msg_parse(buf, NB_MSG_BYTES + 260, 0, 4096, &back, &why) == NB_MSG_BYTES, "%s", why);
    HX_CHECK(back.codec == CODEC_IDENTITY, "codec %u", back.codec);
    msg.codec = NB_CODEC_CODES - 1;
    HX_CHECK(!nb_codec_row(msg.codec) && !nb_codec_row(255), "rows nobody made");
    return 0;
}

/* ---- an exchange ----------------------------------------------------------------------------------- */

static int exchange_node(struct hx_node *node, void *arg)
{
    static const ncclDataType_t types[] = {ncclFloat32, ncclBfloat16, ncclFloat16};
    static const size_t counts[] = {31, 4095, 70001};
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 128 << 10};
    struct hx_lib *lib = hx_lib_static(&ncclNetPlugin_v12, &ncclCollNetPlugin_v12, 12);
    struct hx_comm *comm;
    const char *stage;

    (void)arg;
    HX_CHECK(hx_comm_open(node, lib, &cfg, &comm, &stage) == ncclSuccess, "bring-up failed in %s", stage);
    for (int n = 0; n < 9; n++) {
        const struct sx_spec spec = {.func = HX_REDUCE_SCATTER,
                                     .type = types[n % 3],
                                     .count = counts[n / 3],
                                     .fill = HX_FILL_EXACT,
                                     .in_place = n & 1,
                                     .seed = (uint64_t)n};
        const unsigned long encoded = identity_encoded, decoded = identity_decoded;

        if (sx_do(node, comm, &spec, NULL))
            return 1;
        if (n / 3 == 2)
            HX_CHECK(identity_encoded > encoded && identity_decoded > decoded, "%s was not coded",
                     sx_describe(&spec));
    }
    return sx_close(lib, comm, false);
}

static const char *const env[] = {"NIBBLE_RS=int8", "NIBBLE_MIN_BYTES=0", NULL};
static const char *const env_two_hop[] = {"NIBBLE_RS=int8", "NIBBLE_MIN_BYTES=0", "NIBBLE_SCHEDULE=two-hop",
                                          NULL};

HX_CASE(exchange, sx_job("identity, 3 nodes", 3, exchange_node, NULL, env))

/* Sums are coded a second time. */
HX_CASE(exchange_two_hop, sx_job("identity, two hops", 4, exchange_node, NULL, env_two_hop))

HX_MAIN({"round-trips", round_trips, 0}, {"sums", sums, 0}, {"messages", messages, 0},
        {"exchange", exchange, 0}, {"exchange-two-hop", exchange_two_hop, 0})
