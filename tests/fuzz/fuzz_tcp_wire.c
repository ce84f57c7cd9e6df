/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: the TCP transport's handle, hello and frame header. Each accepted input must be consistent in
 * itself, and packing it must give bytes that parse to the same. The target includes the source so that it
 * can correct check values.
 *
 * Input: kind u8 (0 handle, 1 hello, 2 frame, and 4 more with corrected check values), then the bytes.
 */
#include "net/tcp/wire.c"

#include "fuzz.h"

static void parse_handle(struct fuzz_input *in, int fix)
{
    uint8_t *b = fuzz_copy(in, NB_NET_HANDLE_BYTES), out[NB_NET_HANDLE_BYTES];
    struct nb_tcp_handle h, again;

    if (fix) {
        nb_put32(b, HANDLE_MAGIC);
        nb_put32(b + 24, handle_check(b));
    }
    int rc = nb_tcp_handle_get(b, &h);
    FUZZ_CHECK(rc == 0 || rc == -EINVAL || rc == -EPROTO);
    if (rc == 0) {
        FUZZ_CHECK(h.version == NB_TCP_WIRE_VERSION);
        FUZZ_CHECK(h.addr.ss_family == AF_INET || h.addr.ss_family == AF_INET6);
        nb_tcp_handle_put(out, &h);
        FUZZ_CHECK(nb_tcp_handle_get(out, &again) == 0 && memcmp(&h.addr, &again.addr, sizeof(h.addr)) == 0);
        FUZZ_CHECK(nb_tcp_token_equal(h.token, again.token) && h.state == again.state);
        nb_tcp_handle_set_state(out, ~h.state);
        FUZZ_CHECK(nb_tcp_handle_get(out, &again) == 0 && again.state == ~h.state);
    }
    free(b);
}

static void parse_hello(struct fuzz_input *in, int fix)
{
    uint8_t *b = fuzz_copy(in, NB_TCP_HELLO_BYTES), out[NB_TCP_HELLO_BYTES];
    struct nb_tcp_hello h, again;

    if (fix) {
        nb_put32(b, HELLO_MAGIC);
        nb_put32(b + 24, hello_check(b));
    }
    int rc = nb_tcp_hello_get(b, &h);
    FUZZ_CHECK(rc == 0 || rc == -EINVAL || rc == -EPROTO || rc == -EBADMSG);
    if (rc == 0) {
        FUZZ_CHECK(h.streams >= 1 && h.streams <= NB_TCP_MAX_STREAMS && h.stream < h.streams);
        nb_tcp_hello_put(out, &h);
        FUZZ_CHECK(nb_tcp_hello_get(out, &again) == 0 && again.stream == h.stream &&
                   again.streams == h.streams);
        FUZZ_CHECK(memcmp(again.conn_id, h.conn_id, sizeof(h.conn_id)) == 0);
    }
    free(b);
}

static void parse_frame(struct fuzz_input *in, int fix)
{
    const uint32_t key = nb_tcp_frame_key((const uint8_t *)"0123456789abcdef");
    uint8_t *b = fuzz_copy(in, NB_TCP_FRAME_BYTES), out[NB_TCP_FRAME_BYTES];
    struct nb_tcp_frame f;

    if (fix) {
        nb_put32(b, FRAME_MAGIC);
        nb_put32(b + 4, frame_check(b, key));
    }
    int rc = nb_tcp_frame_get(b, &f, key);
    FUZZ_CHECK(rc == 0 || rc == -EPROTO);
    if (rc == 0) {
        FUZZ_CHECK(f.kind >= NB_TCP_DATA && f.kind <= NB_TCP_AGAIN);
        if (f.kind == NB_TCP_DATA)
            FUZZ_CHECK(f.size <= NB_TCP_MAX_MESSAGE && f.offset + f.len <= f.size && (f.len || !f.size));
        nb_tcp_frame_put(out, &f, key);
        FUZZ_CHECK(memcmp(out, b, sizeof(out)) == 0);
    }
    free(b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    const unsigned kind = (unsigned)fuzz_take(&in, 1);

    if (kind % 4 == 0)
        parse_handle(&in, (kind & 4) != 0);
    else if (kind % 4 == 1)
        parse_hello(&in, (kind & 4) != 0);
    else
        parse_frame(&in, (kind & 4) != 0);
    return 0;
}
