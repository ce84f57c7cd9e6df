/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: the parsers of the collective engine's messages. A parser must refuse an input with a reason,
 * or give fields inside their ranges, and packing these must give back the same bytes. The target includes
 * the parsers' source so that it can correct the check values, which a fuzzer does not guess.
 *
 * Input: kind u8 (0 data, 1 control, 2 hello, 3 vote, and 4 more with corrected check values), then the
 * message.
 */
#include "coll/comm/wire.c"

#include "fuzz.h"

#define TOKEN 0x4b4f5421u /* "!TOK": seeds carry it */
#define MAX_UNIT (1u << 20)

/* A parser may only read inside exactly `len` bytes, which fuzz_copy allocates. */
static void parse_data(uint8_t *b, size_t len, int fix)
{
    struct nb_msg msg;
    const char *why = NULL;
    uint8_t out[NB_MSG_MAX_BYTES];

    if (fix && len >= NB_MSG_BYTES) {
        put32(b, 12, TOKEN);
        if (len >= NB_MSG_MAX_BYTES && has_reference(b[6], b[10]))
            put32(b, 48, check_value(b + NB_MSG_BYTES, NB_MSG_REF_BYTES));
        put32(b, 52, check_value(b, 52));
    }
    int header = nb_msg_parse(b, len, TOKEN, MAX_UNIT, &msg, &why);
    if (header < 0) {
        FUZZ_CHECK(header == -EBADMSG && why && *why);
        return;
    }
    FUZZ_CHECK((size_t)header == nb_msg_header_bytes(&msg) && (size_t)header + msg.coded == len);
    FUZZ_CHECK(msg.func < NB_FUNC_COUNT && msg.codec < NB_CODEC_COUNT && msg.bytes <= MAX_UNIT);
    FUZZ_CHECK(msg.codec != NB_CODEC_RAW || msg.coded == msg.bytes);
    /* Only an all-reduce has slices without values. */
    FUZZ_CHECK(msg.bytes > 0 || (msg.func == NB_FUNC_ALL_REDUCE && msg.codec == NB_CODEC_RAW));
    FUZZ_CHECK(nb_msg_pack(&msg, out) == (size_t)header && memcmp(out, b, (size_t)header) == 0);
}

/* A control message may carry a payload: DATA, bytes of a retransmission. The check value covers the part
 * before it. */
static void parse_control(uint8_t *b, size_t len, int fix)
{
    struct nb_ctl ctl, again;
    const char *why = NULL;
    uint8_t *out;

    if (fix && len >= NB_CTL_BYTES) {
        put32(b, 8, TOKEN);
        if (b[6] == NB_CTL_DATA)
            put32(b, 28, (uint32_t)(len - NB_CTL_BYTES));
        seal(b, NB_CTL_BYTES, KIND_CTL);
    }
    if (nb_ctl_parse(b, len, TOKEN, &ctl, &why)) {
        FUZZ_CHECK(why && *why);
        return;
    }
    FUZZ_CHECK(ctl.kind < NB_CTL_COUNT && memchr(ctl.text, 0, sizeof(ctl.text)));
    FUZZ_CHECK(len == NB_CTL_BYTES + (ctl.kind == NB_CTL_DATA ? ctl.c : 0));
    /* Packed again, with the same payload behind it. */
    out = fuzz_alloc(len, 0);
    nb_ctl_pack(&ctl, out);
    memcpy(out + NB_CTL_BYTES, b + NB_CTL_BYTES, len - NB_CTL_BYTES);
    FUZZ_CHECK(nb_ctl_parse(out, len, TOKEN, &again, &why) == 0);
    FUZZ_CHECK(again.kind == ctl.kind && again.a == ctl.a && again.b == ctl.b && again.c == ctl.c);
    FUZZ_CHECK(again.check == ctl.check);
    FUZZ_CHECK(again.from == ctl.from && again.to == ctl.to);
    FUZZ_CHECK(memcmp(again.rows, ctl.rows, sizeof(ctl.rows)) == 0 &&
               memcmp(again.lost, ctl.lost, sizeof(ctl.lost)) == 0);
    FUZZ_CHECK(strcmp(again.text, ctl.text) == 0);
    free(out);
}

static void parse_hello(uint8_t *b, size_t len, int fix)
{
    struct nb_hello hello, again;
    const char *why = NULL;
    uint8_t out[NB_HELLO_BYTES];

    if (fix && len == NB_HELLO_BYTES)
        seal(b, len, KIND_HELLO);
    if (nb_hello_parse(b, len, &hello, &why)) {
        FUZZ_CHECK(why && *why);
        return;
    }
    nb_hello_pack(&hello, out);
    FUZZ_CHECK(nb_hello_parse(out, sizeof(out), &again, &why) == 0);
    FUZZ_CHECK(again.rank == hello.rank && again.nnodes == hello.nnodes && again.settings == hello.settings);
    FUZZ_CHECK(strcmp(again.host, hello.host) == 0 && strcmp(again.version, hello.version) == 0);
}

static void parse_vote(uint8_t *b, size_t len, int fix)
{
    struct nb_vote vote, again;
    const char *why = NULL;
    uint8_t out[NB_VOTE_BYTES];

    if (fix && len == NB_VOTE_BYTES)
        seal(b, len, KIND_VOTE);
    if (nb_vote_parse(b, len, &vote, &why)) {
        FUZZ_CHECK(why && *why);
        return;
    }
    nb_vote_pack(&vote, out);
    FUZZ_CHECK(nb_vote_parse(out, sizeof(out), &again, &why) == 0);
    FUZZ_CHECK(again.yes == vote.yes && again.rank == vote.rank && strcmp(again.reason, vote.reason) == 0);
    FUZZ_CHECK(again.mbps == vote.mbps && again.codec == vote.codec && again.workers == vote.workers);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const parsers[4])(uint8_t *, size_t, int) = {parse_data, parse_control, parse_hello,
                                                               parse_vote};
    struct fuzz_input in = {data, size};
    const unsigned kind = (unsigned)fuzz_take(&in, 1);
    const size_t len = in.left;
    uint8_t *b = fuzz_copy(&in, len);

    parsers[kind % 4](b, len, (kind & 4) != 0);
    free(b);
    return 0;
}
