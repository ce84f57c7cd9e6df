/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the TCP transport writes to the network, byte by byte: the handle that travels through NCCL's
 * bootstrap, the hello that opens each socket, and the frame in front of each piece of payload. All
 * little-endian.
 *
 * The parsers here take bytes of any origin: they read exactly the stated number of bytes, allocate nothing
 * and log nothing, so they can be fuzzed as they are.
 */
#ifndef NIBBLE_NET_TCP_WIRE_H
#define NIBBLE_NET_TCP_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/* Raised when any of the three formats changes. The first 32 bytes of hello and handle never change, so that
 * two versions can still tell each other why they part. */
#define NB_TCP_WIRE_VERSION 2

#define NB_TCP_MAX_STREAMS 16 /* sockets a connection */
#define NB_TCP_TOKEN_BYTES 16
#define NB_TCP_HELLO_BYTES 64
#define NB_TCP_FRAME_BYTES 40
#define NB_TCP_MAX_MESSAGE (1ull << 40) /* bytes; what the device properties promise */
/* Messages that a frame may run ahead of the oldest one not yet seen. Streams are filled in batches of
 * bounded size, so a real sender stays far below. */
#define NB_TCP_MAX_AHEAD (1u << 20)

/*
 * Handle, NB_NET_HANDLE_BYTES:
 *   0 magic u32, 4 version u32, 8 token[16], 24 check u32 (over bytes 0..23 and 32..59), 28 zero u32,
 *   32 family u16 (4 or 6), 34 port u16, 36 scope u32, 40 address[16], 56 use u32,
 *   64 state u64: 0 as listed; connect's own mark between its calls (not covered by the check).
 */

/* What the sockets of a connection are for. Nodes that chose different transports tell by it. */
enum nb_tcp_use { NB_TCP_FOR_DATA = 0, NB_TCP_FOR_VERBS = 1 };

/* "tcp", "verbs", "another transport" */
const char *nb_tcp_use_name(uint32_t use);

struct nb_tcp_handle {
    uint32_t version;
    uint32_t use; /* enum nb_tcp_use */
    uint8_t token[NB_TCP_TOKEN_BYTES];
    struct sockaddr_storage addr;
    uint64_t state;
};

void nb_tcp_handle_put(void *bytes, const struct nb_tcp_handle *h);
/* 0; -EINVAL: not a handle of this transport, or damaged; -EPROTO: a handle of another version (version,
 * token and, as far as it can be understood, addr are filled in). */
int nb_tcp_handle_get(const void *bytes, struct nb_tcp_handle *h);
/* Only replaces the state word. */
void nb_tcp_handle_set_state(void *bytes, uint64_t state);

/*
 * Hello, first bytes on every socket, from the connecting side; nothing is answered:
 *   0 magic u32, 4 version u32, 8 token[16], 24 check u32 (over all other bytes), 28 zero u32,
 *   32 connection id[16] (random, the same on all sockets of a connection), 48 stream u16, 50 streams u16,
 *   52 use u32 (as in the handle), 56 zero u64.
 */

struct nb_tcp_hello {
    uint32_t version;
    uint8_t token[NB_TCP_TOKEN_BYTES];
    uint8_t conn_id[16];
    uint16_t stream, streams;
    uint32_t use;
};

void nb_tcp_hello_put(uint8_t bytes[NB_TCP_HELLO_BYTES], const struct nb_tcp_hello *h);
/* 0; -EINVAL: no hello at all; -EPROTO: right magic, other version (version and token filled in);
 * -EBADMSG: this version but fields that cannot be. */
int nb_tcp_hello_get(const uint8_t bytes[NB_TCP_HELLO_BYTES], struct nb_tcp_hello *h);
/* Same bytes? In time that does not depend on where they differ. */
bool nb_tcp_token_equal(const uint8_t *a, const uint8_t *b);

/*
 * Frame header:
 *   0 magic u32, 4 check u32 (over the rest, keyed by the connection id), 8 seq u32, 12 tag i32, 16 size u64,
 *   24 offset u64, 32 len u32, 36 kind u16, 38 zero u16; then `len` bytes of payload.
 * DATA: bytes [offset, offset + len) of message number `seq`, which has `size` bytes and `tag`. A message may
 *   be cut over the sockets of its connection; seq never falls on one socket.
 * BYE: the sender closes in order; seq is the number of messages it sent. Nothing follows on this socket.
 *   From the receiver, on socket 0: it closes in order; seq is the number of messages that it has begun to
 *   take.
 * ERROR: from the receiver, on socket 0: it cannot take message `seq`; tag is the errno, size that of the
 *   message, offset that of the receive.
 */
enum nb_tcp_kind { NB_TCP_DATA = 1, NB_TCP_BYE = 2, NB_TCP_ERROR = 3 };

struct nb_tcp_frame {
    uint32_t seq;
    int32_t tag;
    uint64_t size;
    uint64_t offset;
    uint32_t len;
    uint16_t kind;
};

/* Key of the frame check, from the connection id. */
uint32_t nb_tcp_frame_key(const uint8_t conn_id[16]);
void nb_tcp_frame_put(uint8_t bytes[NB_TCP_FRAME_BYTES], const struct nb_tcp_frame *f, uint32_t key);
/* 0 and a frame whose fields are consistent in themselves (offset + len <= size <= NB_TCP_MAX_MESSAGE, len >
 * 0 unless size is 0, known kind), or -EPROTO. */
int nb_tcp_frame_get(const uint8_t bytes[NB_TCP_FRAME_BYTES], struct nb_tcp_frame *f, uint32_t key);

#endif
