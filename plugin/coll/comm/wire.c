/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pack and parse the engine's messages. This is the only place with offsets. docs/messages.md specifies the
 * layout.
 */
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "codec/row.h"
#include "coll/comm/wire.h"
#include "nibble/nccl_types.h"

#define CHECK_SEED 0x6e6962626c65u /* "nibble": makes these hashes differ from hashes of contents */

static void put32(void *out, size_t at, uint32_t v)
{
    nb_put32((uint8_t *)out + at, v);
}
static void put64(void *out, size_t at, uint64_t v)
{
    nb_put64((uint8_t *)out + at, v);
}
static uint32_t get32(const void *in, size_t at)
{
    return nb_get32((const uint8_t *)in + at);
}
static uint64_t get64(const void *in, size_t at)
{
    return nb_get64((const uint8_t *)in + at);
}

/* Read a text field up to its terminator, which it must have. */
static int get_text(const void *in, size_t at, char *text, size_t cap)
{
    const char *s = (const char *)in + at;
    if (!memchr(s, 0, cap))
        return -EBADMSG;
    memset(text, 0, cap);
    memcpy(text, s, strlen(s));
    return 0;
}

static uint32_t check_value(const void *in, size_t bytes)
{
    uint64_t h = nb_hash64(in, bytes, CHECK_SEED);
    return (uint32_t)(h ^ (h >> 32));
}

static int bad(const char **why, const char *text)
{
    *why = text;
    return -EBADMSG;
}

/* ---- data messages ----------------------------------------------------------------------------------- */

static int has_reference(uint8_t codec, uint16_t flags)
{
    const struct nb_codec_row *row = nb_codec_row(codec);
    return (row && row->reference) || (flags & NB_MSG_KEEP);
}

size_t nb_msg_header_bytes(const struct nb_msg *msg)
{
    return has_reference(msg->codec, msg->flags) ? NB_MSG_MAX_BYTES : NB_MSG_BYTES;
}

size_t nb_msg_header_at(const void *in)
{
    const uint8_t *b = in;

    return has_reference(b[6], nb_get16(b + 10)) ? NB_MSG_MAX_BYTES : NB_MSG_BYTES;
}

size_t nb_msg_pack(const struct nb_msg *msg, void *out)
{
    uint8_t *b = out;
    size_t len = NB_MSG_BYTES;

    put32(b, 0, NB_WIRE_MAGIC);
    b[4] = NB_WIRE_VERSION;
    b[5] = msg->func;
    b[6] = msg->codec;
    b[7] = msg->type;
    b[8] = msg->op;
    b[9] = 0;
    nb_put16(b + 10, msg->flags);
    put32(b, 12, msg->token);
    put64(b, 16, msg->opno);
    put64(b, 24, msg->offset);
    put32(b, 32, msg->bytes);
    put32(b, 36, msg->coded);
    put64(b, 40, msg->flags & NB_MSG_CHECKED ? msg->check : 0);
    put32(b, 48, 0);
    if (has_reference(msg->codec, msg->flags)) {
        put32(b, NB_MSG_BYTES, msg->ref_number);
        put32(b, NB_MSG_BYTES + 4, msg->version);
        put64(b, NB_MSG_BYTES + 8, msg->ref_hash);
        put64(b, NB_MSG_BYTES + 16, msg->new_hash);
        put32(b, 48, check_value(b + NB_MSG_BYTES, NB_MSG_REF_BYTES));
        len = NB_MSG_MAX_BYTES;
    }
    put32(b, 52, check_value(b, 52));
    return len;
}

int nb_msg_parse(const void *in, size_t len, uint32_t token, size_t max_unit, struct nb_msg *msg,
                 const char **why)
{
    const uint8_t *b = in;
    size_t header = NB_MSG_BYTES;
    const struct nb_codec_row *codec;

    if (len < NB_MSG_BYTES)
        return bad(why, "shorter than a header");
    if (get32(b, 0) != NB_WIRE_MAGIC)
        return bad(why, "wrong magic");
    if (b[4] != NB_WIRE_VERSION)
        return bad(why, "wrong wire version");
    if (get32(b, 52) != check_value(b, 52))
        return bad(why, "header check value does not fit");
    memset(msg, 0, sizeof(*msg));
    msg->func = b[5];
    msg->codec = b[6];
    msg->type = b[7];
    msg->op = b[8];
    msg->flags = nb_get16(b + 10);
    msg->token = get32(b, 12);
    msg->opno = get64(b, 16);
    msg->offset = get64(b, 24);
    msg->bytes = get32(b, 32);
    msg->coded = get32(b, 36);
    msg->check = get64(b, 40);
    if (msg->func >= NB_FUNC_COUNT)
        return bad(why, "unknown function");
    codec = nb_codec_row(msg->codec);
    if (!codec)
        return bad(why, "unknown codec");
    if (msg->flags & ~(NB_MSG_KEEP | NB_MSG_ROUTE | NB_MSG_CHECKED) ||
        (msg->flags & NB_MSG_ROUTE) == NB_MSG_ROUTE)
        return bad(why, "unknown flags");
    if (b[9] != 0)
        return bad(why, "reserved byte is set");
    if (msg->flags & NB_MSG_CHECKED ? msg->coded == 0 : msg->check != 0)
        return bad(why, "check value without a payload or its flag");
    if (codec->format == NB_FORMAT_PATTERNS) {
        if (msg->type != NB_ULP_8 && msg->type != NB_ULP_16 && msg->type != NB_ULP_32)
            return bad(why, "unknown pattern width");
    } else if (msg->type >= ncclNumTypes) {
        return bad(why, "unknown data type");
    }
    if (!codec->reference && msg->codec != NB_CODEC_RAW && msg->func == NB_FUNC_ALL_GATHER)
        return bad(why, "codec that no all-gather has");
    if (msg->op >= ncclNumOps)
        return bad(why, "unknown reduction");
    if (msg->token != token)
        return bad(why, "token of another group");
    if (msg->bytes > max_unit)
        return bad(why, "range longer than a unit");
    if (msg->bytes == 0 && (msg->func != NB_FUNC_ALL_REDUCE || msg->codec != NB_CODEC_RAW))
        return bad(why, "empty range");
    if (msg->offset > (UINT64_C(1) << 62))
        return bad(why, "offset out of range");
    if (has_reference(msg->codec, msg->flags)) {
        header = NB_MSG_MAX_BYTES;
        if (msg->func != NB_FUNC_ALL_GATHER)
            return bad(why, "reference outside an all-gather");
        if (len < header)
            return bad(why, "shorter than its header");
        if (get32(b, 48) != check_value(b + NB_MSG_BYTES, NB_MSG_REF_BYTES))
            return bad(why, "reference check value does not fit");
        msg->ref_number = get32(b, NB_MSG_BYTES);
        msg->version = get32(b, NB_MSG_BYTES + 4);
        msg->ref_hash = get64(b, NB_MSG_BYTES + 8);
        msg->new_hash = get64(b, NB_MSG_BYTES + 16);
    } else if (get32(b, 48) != 0) {
        return bad(why, "reserved word is set");
    }
    if (msg->coded != len - header)
        return bad(why, "coded length does not fit the message");
    if (msg->codec == NB_CODEC_RAW && msg->coded != msg->bytes)
        return bad(why, "raw length does not fit the range");
    return (int)header;
}

/* ---- control, hello, vote ---------------------------------------------------------------------------- */

/* All three start with magic, version and kind, and end with a check value. */
enum { KIND_CTL = 1, KIND_HELLO = 2, KIND_VOTE = 3 };

static void seal(uint8_t *b, size_t bytes, uint8_t kind)
{
    put32(b, 0, NB_WIRE_MAGIC);
    b[4] = NB_WIRE_VERSION;
    b[5] = kind;
    put32(b, bytes - 4, check_value(b, bytes - 4));
}

static int open_sealed(const uint8_t *b, size_t len, size_t bytes, uint8_t kind, const char **why)
{
    if (len != bytes)
        return bad(why, "wrong length");
    if (get32(b, 0) != NB_WIRE_MAGIC)
        return bad(why, "wrong magic");
    if (b[5] != kind)
        return bad(why, "wrong kind of message");
    if (get32(b, bytes - 4) != check_value(b, bytes - 4))
        return bad(why, "check value does not fit");
    /* A hello carries the version for comparison: its own layout is the same in all versions. */
    if (kind != KIND_HELLO && b[4] != NB_WIRE_VERSION)
        return bad(why, "wrong wire version");
    return 0;
}

void nb_ctl_pack(const struct nb_ctl *ctl, void *out)
{
    uint8_t *b = out;
    memset(b, 0, NB_CTL_BYTES);
    b[6] = ctl->kind;
    put32(b, 8, ctl->token);
    put64(b, 12, ctl->a);
    put64(b, 20, ctl->b);
    put32(b, 28, ctl->c);
    put32(b, 32, ctl->from);
    put32(b, 36, ctl->to);
    if (ctl->kind == NB_CTL_COLUMN) {
        for (size_t i = 0; i < 2; i++) {
            put64(b, 40 + 8 * i, ctl->rows[i]);
            put64(b, 56 + 8 * i, ctl->lost[i]);
        }
    } else if (ctl->kind == NB_CTL_DATA) {
        put64(b, 40, ctl->check);
    } else if (ctl->kind == NB_CTL_ALIVE) {
        put32(b, 40, ctl->wait.end);
        put32(b, 44, ctl->wait.steps);
    } else {
        memcpy(b + 40, ctl->text, NB_CTL_TEXT - 1);
    }
    seal(b, NB_CTL_BYTES, KIND_CTL);
}

int nb_ctl_parse(const void *in, size_t len, uint32_t token, struct nb_ctl *ctl, const char **why)
{
    const uint8_t *b = in;
    int ret = open_sealed(b, len > NB_CTL_BYTES ? NB_CTL_BYTES : len, NB_CTL_BYTES, KIND_CTL, why);
    if (ret)
        return ret;
    ctl->kind = b[6];
    ctl->token = get32(b, 8);
    ctl->a = get64(b, 12);
    ctl->b = get64(b, 20);
    if (ctl->kind >= NB_CTL_COUNT)
        return bad(why, "unknown control message");
    if (ctl->token != token)
        return bad(why, "token of another group");
    ctl->c = get32(b, 28);
    ctl->from = get32(b, 32);
    ctl->to = get32(b, 36);
    if (len - NB_CTL_BYTES != (ctl->kind == NB_CTL_DATA ? ctl->c : 0) ||
        len - NB_CTL_BYTES > NB_CTL_DATA_BYTES)
        return bad(why, "wrong length");
    memset(ctl->rows, 0, sizeof(ctl->rows));
    memset(ctl->lost, 0, sizeof(ctl->lost));
    memset(&ctl->wait, 0, sizeof(ctl->wait));
    ctl->text[0] = 0;
    ctl->check = ctl->kind == NB_CTL_DATA ? get64(b, 40) : 0;
    if (ctl->kind == NB_CTL_DATA)
        return 0;
    if (ctl->kind == NB_CTL_ALIVE) {
        ctl->wait = (struct nb_ctl_wait){.end = get32(b, 40), .steps = get32(b, 44)};
        return 0;
    }
    if (ctl->kind == NB_CTL_COLUMN) {
        for (size_t i = 0; i < 2; i++) {
            ctl->rows[i] = get64(b, 40 + 8 * i);
            ctl->lost[i] = get64(b, 56 + 8 * i);
        }
        return 0;
    }
    if (get_text(b, 40, ctl->text, NB_CTL_TEXT))
        return bad(why, "text without end");
    return 0;
}

void nb_hello_pack(const struct nb_hello *hello, void *out)
{
    uint8_t *b = out;
    memset(b, 0, NB_HELLO_BYTES);
    put32(b, 8, hello->wire_version);
    put32(b, 12, hello->nclasses);
    put32(b, 16, hello->cls);
    put32(b, 20, hello->rank);
    put32(b, 24, hello->nnodes);
    put32(b, 28, hello->token_share);
    put64(b, 32, hello->comm_id);
    put64(b, 40, hello->settings);
    memcpy(b + 48, hello->version, sizeof(hello->version) - 1);
    memcpy(b + 80, hello->host, sizeof(hello->host) - 1);
    seal(b, NB_HELLO_BYTES, KIND_HELLO);
}

int nb_hello_parse(const void *in, size_t len, struct nb_hello *hello, const char **why)
{
    const uint8_t *b = in;
    int ret = open_sealed(b, len, NB_HELLO_BYTES, KIND_HELLO, why);
    if (ret)
        return ret;
    hello->wire_version = get32(b, 8);
    hello->nclasses = get32(b, 12);
    hello->cls = get32(b, 16);
    hello->rank = get32(b, 20);
    hello->nnodes = get32(b, 24);
    hello->token_share = get32(b, 28);
    hello->comm_id = get64(b, 32);
    hello->settings = get64(b, 40);
    if (get_text(b, 48, hello->version, sizeof(hello->version)) ||
        get_text(b, 80, hello->host, sizeof(hello->host)))
        return bad(why, "text without end");
    return 0;
}

void nb_vote_pack(const struct nb_vote *vote, void *out)
{
    uint8_t *b = out;
    memset(b, 0, NB_VOTE_BYTES);
    put32(b, 8, vote->yes);
    put32(b, 12, vote->rank);
    put32(b, 16, vote->round);
    put32(b, 20, vote->token);
    memcpy(b + 24, vote->reason, sizeof(vote->reason) - 1);
    put32(b, 204, vote->mbps);
    put32(b, 208, vote->codec);
    put32(b, 212, vote->workers);
    nb_put16(b + 216, (uint16_t)vote->buffer);
    nb_put16(b + 218, (uint16_t)vote->measured);
    seal(b, NB_VOTE_BYTES, KIND_VOTE);
}

int nb_vote_parse(const void *in, size_t len, struct nb_vote *vote, const char **why)
{
    const uint8_t *b = in;
    int ret = open_sealed(b, len, NB_VOTE_BYTES, KIND_VOTE, why);
    if (ret)
        return ret;
    vote->yes = get32(b, 8);
    vote->rank = get32(b, 12);
    vote->round = get32(b, 16);
    vote->token = get32(b, 20);
    if (vote->yes > 1)
        return bad(why, "neither yes nor no");
    if (vote->round >= NB_ROUND_COUNT + (vote->yes ? 0 : 3))
        return bad(why, "unknown round");
    if (get_text(b, 24, vote->reason, sizeof(vote->reason)))
        return bad(why, "text without end");
    vote->mbps = get32(b, 204);
    vote->codec = get32(b, 208);
    vote->workers = get32(b, 212);
    vote->buffer = nb_get16(b + 216);
    vote->measured = nb_get16(b + 218);
    return 0;
}

bool nb_vote_is_no(const void *in, size_t len, char reason[NB_CTL_TEXT])
{
    struct nb_vote vote;
    const char *why;

    if (nb_vote_parse(in, len, &vote, &why) || vote.yes)
        return false;
    memcpy(reason, vote.reason, sizeof(vote.reason));
    return true;
}
