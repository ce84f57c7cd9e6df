/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The TCP transport's bytes on the network: the handle that travels through NCCL's bootstrap, the hello that
 * opens each socket, and the frame in front of each piece of payload. All are little-endian.
 *
 * The parsers here take bytes of any origin. They read exactly the stated number of bytes, allocate no memory
 * and log no lines, so that they can be fuzzed as they are.
 */
#include "net/tcp/tcp.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#include "base/bytes.h"
#include "net/transport.h"

#define HANDLE_MAGIC 0x4c48424eu /* "NBHL" */
#define HELLO_MAGIC 0x4c45424eu  /* "NBEL" */
#define FRAME_MAGIC 0x4d52424eu  /* "NBRM" */

_Static_assert(NB_NET_HANDLE_BYTES - NB_NET_HANDLE_FREE >= 72, "the handle holds 72 bytes");

/* Multiply and fold over 4-byte words. This detects damage and misaligned streams, not malice. n % 4 == 0. */
static uint64_t fold(uint64_t h, const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i += 4) {
        h = (h ^ nb_get32(p + i)) * 0x9e3779b97f4a7c15ull;
        h ^= h >> 29;
    }
    return h;
}

static uint32_t handle_check(const uint8_t *b)
{
    uint64_t h = fold(fold(HANDLE_MAGIC, b, 24), b + 32, 28);
    return (uint32_t)(h ^ h >> 32);
}

void nb_tcp_handle_put(void *bytes, const struct nb_tcp_handle *h)
{
    uint8_t *b = bytes;

    memset(b, 0, NB_NET_HANDLE_BYTES);
    nb_put32(b, HANDLE_MAGIC);
    nb_put32(b + 4, h->version);
    memcpy(b + 8, h->token, NB_TCP_TOKEN_BYTES);
    if (h->addr.ss_family == AF_INET6) {
        struct sockaddr_in6 a;

        memcpy(&a, &h->addr, sizeof(a));
        nb_put16(b + 32, 6);
        nb_put16(b + 34, ntohs(a.sin6_port));
        nb_put32(b + 36, a.sin6_scope_id);
        memcpy(b + 40, &a.sin6_addr, 16);
    } else {
        struct sockaddr_in a;

        memcpy(&a, &h->addr, sizeof(a));
        nb_put16(b + 32, 4);
        nb_put16(b + 34, ntohs(a.sin_port));
        memcpy(b + 40, &a.sin_addr, 4);
    }
    nb_put32(b + 56, h->use);
    nb_put32(b + 24, handle_check(b));
    nb_put64(b + 64, h->state);
    nb_tcp_handle_set_granted(b, h->granted);
}

int nb_tcp_handle_get(const void *bytes, struct nb_tcp_handle *h)
{
    const uint8_t *b = bytes;

    memset(h, 0, sizeof(*h));
    if (nb_get32(b) != HANDLE_MAGIC || nb_get32(b + 24) != handle_check(b))
        return -EINVAL;
    h->version = nb_get32(b + 4);
    memcpy(h->token, b + 8, NB_TCP_TOKEN_BYTES);
    h->use = nb_get32(b + 56);
    h->state = nb_get64(b + 64);
    h->granted = nb_get32(b + 60) * NB_TCP_GRANT_UNIT;
    if (nb_get16(b + 32) == 6) {
        struct sockaddr_in6 a = {.sin6_family = AF_INET6};

        a.sin6_port = htons(nb_get16(b + 34));
        a.sin6_scope_id = nb_get32(b + 36);
        memcpy(&a.sin6_addr, b + 40, 16);
        memcpy(&h->addr, &a, sizeof(a));
    } else if (nb_get16(b + 32) == 4) {
        struct sockaddr_in a = {.sin_family = AF_INET};

        a.sin_port = htons(nb_get16(b + 34));
        memcpy(&a.sin_addr, b + 40, 4);
        memcpy(&h->addr, &a, sizeof(a));
    }
    if (h->version != NB_TCP_WIRE_VERSION)
        return -EPROTO;
    return h->addr.ss_family && nb_get16(b + 34) ? 0 : -EINVAL;
}

void nb_tcp_handle_set_state(void *bytes, uint64_t state)
{
    nb_put64((uint8_t *)bytes + 64, state);
}

void nb_tcp_handle_set_granted(void *bytes, uint64_t granted)
{
    nb_put32((uint8_t *)bytes + 60, (uint32_t)(granted / NB_TCP_GRANT_UNIT));
}

static uint32_t hello_check(const uint8_t *b)
{
    uint64_t h = fold(fold(HELLO_MAGIC, b, 24), b + 28, NB_TCP_HELLO_BYTES - 28);
    return (uint32_t)(h ^ h >> 32);
}

void nb_tcp_hello_put(uint8_t b[NB_TCP_HELLO_BYTES], const struct nb_tcp_hello *h)
{
    memset(b, 0, NB_TCP_HELLO_BYTES);
    nb_put32(b, HELLO_MAGIC);
    nb_put32(b + 4, h->version);
    memcpy(b + 8, h->token, NB_TCP_TOKEN_BYTES);
    memcpy(b + 32, h->conn_id, 16);
    nb_put16(b + 48, h->stream);
    nb_put16(b + 50, h->streams);
    nb_put32(b + 52, h->use);
    nb_put32(b + 24, hello_check(b));
}

int nb_tcp_hello_get(const uint8_t b[NB_TCP_HELLO_BYTES], struct nb_tcp_hello *h)
{
    memset(h, 0, sizeof(*h));
    if (nb_get32(b) != HELLO_MAGIC)
        return -EINVAL;
    h->version = nb_get32(b + 4);
    memcpy(h->token, b + 8, NB_TCP_TOKEN_BYTES);
    if (h->version != NB_TCP_WIRE_VERSION)
        return -EPROTO;
    if (nb_get32(b + 24) != hello_check(b))
        return -EINVAL;
    memcpy(h->conn_id, b + 32, 16);
    h->stream = nb_get16(b + 48);
    h->streams = nb_get16(b + 50);
    h->use = nb_get32(b + 52);
    if (h->streams < 1 || h->streams > NB_TCP_MAX_STREAMS || h->stream >= h->streams)
        return -EBADMSG;
    return 0;
}

const char *nb_tcp_use_name(uint32_t use)
{
    return use == NB_TCP_FOR_DATA ? "tcp" : use == NB_TCP_FOR_VERBS ? "verbs" : "another transport";
}

bool nb_tcp_token_equal(const uint8_t *a, const uint8_t *b)
{
    uint8_t d = 0;

    for (int i = 0; i < NB_TCP_TOKEN_BYTES; i++)
        d |= a[i] ^ b[i];
    return d == 0;
}

uint32_t nb_tcp_frame_key(const uint8_t conn_id[16])
{
    uint64_t h = fold(FRAME_MAGIC, conn_id, 16);
    return (uint32_t)(h ^ h >> 32);
}

static uint32_t frame_check(const uint8_t *b, uint32_t key)
{
    uint64_t h = fold(key, b + 8, NB_TCP_FRAME_BYTES - 8);
    return (uint32_t)(h ^ h >> 32);
}

void nb_tcp_frame_put(uint8_t b[NB_TCP_FRAME_BYTES], const struct nb_tcp_frame *f, uint32_t key)
{
    nb_put32(b, FRAME_MAGIC);
    nb_put32(b + 8, f->seq);
    nb_put32(b + 12, (uint32_t)f->tag);
    nb_put64(b + 16, f->size);
    nb_put64(b + 24, f->offset);
    nb_put32(b + 32, f->len);
    nb_put16(b + 36, f->kind);
    nb_put16(b + 38, f->word);
    nb_put32(b + 4, frame_check(b, key));
}

int nb_tcp_frame_get(const uint8_t b[NB_TCP_FRAME_BYTES], struct nb_tcp_frame *f, uint32_t key)
{
    if (nb_get32(b) != FRAME_MAGIC || nb_get32(b + 4) != frame_check(b, key))
        return -EPROTO;
    f->seq = nb_get32(b + 8);
    f->tag = (int32_t)nb_get32(b + 12);
    f->size = nb_get64(b + 16);
    f->offset = nb_get64(b + 24);
    f->len = nb_get32(b + 32);
    f->kind = nb_get16(b + 36);
    f->word = nb_get16(b + 38);
    if (f->kind == NB_TCP_DATA
            ? f->word >= NB_TCP_DELTA + NB_TCP_SLOTS || (f->word > NB_TCP_ECHO && f->word < NB_TCP_KEEP)
            : f->word != 0)
        return -EPROTO;
    switch (f->kind) {
    case NB_TCP_DATA:
        if (f->size > NB_TCP_MAX_MESSAGE || f->offset > f->size || f->len > f->size - f->offset)
            return -EPROTO;
        return f->len > 0 || f->size == 0 ? 0 : -EPROTO;
    case NB_TCP_FIN:
    case NB_TCP_CONFIRM:
    case NB_TCP_AGAIN: return f->len == 0 ? 0 : -EPROTO;
    case NB_TCP_ERROR: return f->len == 0 && f->tag > 0 ? 0 : -EPROTO;
    default: return -EPROTO;
    }
}
