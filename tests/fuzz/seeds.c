/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the seeds of the fuzz targets: seeds DIRECTORY makes
 * DIRECTORY/{quant,ulp,wire,tcp_wire,abi,abi_threads}/NNN. The seeds are coded spans and messages made by the
 * real encoders, so that mutations start inside the formats, and sequences of calls as NCCL makes them.
 */
#include <math.h>
#include <sys/stat.h>

#include "abi_calls.h"
#include "coll/comm/wire.h"
#include "fuzz.h"
#include "net/tcp/tcp.h"
#include "net/transport.h"
#include "nibble/codec.h"
#include "nibble/nccl_types.h"

#define MOST (1u << 17)

static const char *root;
static uint8_t out[MOST];
static size_t out_size;
static uint64_t rng = 12345;

static void add(uint64_t v, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        out[out_size++] = (uint8_t)(v >> 8 * i);
}

static void add_bytes(const void *p, size_t bytes)
{
    FUZZ_CHECK(out_size + bytes <= MOST);
    memcpy(out + out_size, p, bytes);
    out_size += bytes;
}

static void save(const char *target)
{
    static unsigned number;
    char path[4096];
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", root, target);
    mkdir(path, 0755);
    snprintf(path, sizeof(path), "%s/%s/%03u", root, target, number++);
    f = fopen(path, "wb");
    if (!f || fwrite(out, 1, out_size, f) != out_size || fclose(f) != 0) {
        fprintf(stderr, "cannot write %s\n", path);
        exit(1);
    }
    out_size = 0;
}

static double normal(void)
{
    double u = ((double)(fuzz_random(&rng) >> 11) + 1) * 0x1p-53,
           v = (double)(fuzz_random(&rng) >> 11) * 0x1p-53;

    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* Make values of a kind: 0 normal, 1 sparse, 2 zeros, 3 with outliers and non-finite values. */
static void values(enum nb_dtype type, unsigned kind, size_t n, uint8_t *to)
{
    for (size_t i = 0; i < n; i++) {
        float x = kind == 2 || (kind == 1 && fuzz_random(&rng) % 50) ? 0 : (float)(0.01 * normal());
        uint32_t u;
        if (kind == 3 && fuzz_random(&rng) % 800 == 0)
            x = (float[]){INFINITY, NAN, 1e30f, -3e38f}[fuzz_random(&rng) % 4];
        memcpy(&u, &x, 4);
        uint16_t narrow = (uint16_t)(u >> 16); /* any pattern is a valid binary16 */
        if (type == NB_F32)
            memcpy(to + 4 * i, &u, 4);
        else
            memcpy(to + 2 * i, &narrow, 2);
    }
}

static void quant(void)
{
    static const enum nb_codec codecs[] = {NB_CODEC_INT4, NB_CODEC_INT8, NB_CODEC_RAW, NB_CODEC_INT6};
    static const struct {
        uint16_t n, first;
    } spans[] = {{1, 0}, {32, 0}, {40, 5}, {100, 4090}, {700, 31}, {4096, 0}, {4500, 100}};
    static uint8_t src[4 * 5000], coded[4 * 5000 + 256];

    for (unsigned c = 0; c < sizeof(codecs) / sizeof(codecs[0]); c++) {
        for (unsigned type = 0; type < NB_DTYPE_COUNT; type++) {
            for (unsigned s = 0; s < sizeof(spans) / sizeof(spans[0]); s++) {
                const size_t n = spans[s].n, bytes = n * nb_dtype_size((enum nb_dtype)type);
                ssize_t len;
                values((enum nb_dtype)type, (c + type + s) % 4, n, src);
                len = nb_encode(codecs[c], (enum nb_dtype)type, src, n, spans[s].first, NULL, coded,
                                sizeof(coded), NULL);
                FUZZ_CHECK(len >= 0);
                for (unsigned action = 0; action < 3; action++) {
                    add(action, 1);
                    add(c, 1);
                    add(type, 1);
                    add(n, 2);
                    add(spans[s].first, 2);
                    if (action == 0) {
                        add_bytes(coded, (size_t)len);
                    } else if (action == 1 && len < 20000) {
                        add(2, 1);
                        add(s, 1);
                        for (int k = 0; k < 2; k++) {
                            add(c, 1);
                            add((uint64_t)len, 2);
                        }
                        add_bytes(coded, (size_t)len);
                        add_bytes(coded, (size_t)len);
                        add_bytes(src, bytes);
                    } else {
                        add(s + c, 1);
                        add(fuzz_random(&rng), 8);
                        add_bytes(src, bytes);
                    }
                    save("quant");
                }
            }
        }
    }
}

static void ulp(void)
{
    static const enum nb_ulp_width widths[] = {NB_ULP_8, NB_ULP_16, NB_ULP_32};
    static const uint16_t sizes[] = {1, 64, 65, 500, 2047, 4096, 5999};
    static uint8_t ref[16384], cur[16384], coded[20000];

    for (unsigned w = 0; w < 3; w++) {
        for (unsigned s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
            for (unsigned kind = 0; kind < 3; kind++) {
                /* Make the same reference as the target. */
                const uint64_t seed = 77 + s;
                uint64_t r = seed | 1;
                memset(ref, (int)(r & 0xff), sizes[s]);
                for (size_t i = 0; i < sizes[s] && kind; i++)
                    ref[i] = (uint8_t)fuzz_random(&r);
                for (size_t i = 1; i < sizes[s] && kind == 1; i += 2)
                    ref[i] = (uint8_t)(0x3b + ref[i] % 3);
                memcpy(cur, ref, sizes[s]);
                for (size_t i = 0; i < sizes[s]; i += 2)
                    cur[i] ^= (uint8_t)(fuzz_random(&rng) % 5 == 0 ? fuzz_random(&rng) & 3 : 0);
                ssize_t len = nb_ulp_encode(widths[w], cur, ref, sizes[s], SIZE_MAX, coded, sizeof(coded));
                FUZZ_CHECK(len > 0);
                for (unsigned action = 0; action < 6; action++) {
                    /* Change low bits of 16-bit and of 32-bit values, and more of them where the codec drops
                     * them. */
                    const unsigned every = action == 3 && w == NB_F32 ? 4 : 2, mask = action == 3 ? 127 : 3;
                    add(action, 1);
                    add(w, 1);
                    add(sizes[s], 2);
                    add(kind, 1);
                    add(seed, 8);
                    for (unsigned i = 0; action % 2 && i < 200; i++)
                        add(i % every == every / 2 - 1 ? fuzz_random(&rng) & mask : 0, 1);
                    if (action == 2) {
                        for (size_t i = 0; i < sizes[s]; i += 2)
                            cur[i] ^= (uint8_t)(fuzz_random(&rng) & 127);
                        len = nb_delta4_encode((enum nb_dtype)w, cur, ref, sizes[s], SIZE_MAX, coded,
                                               sizeof(coded), NULL);
                        FUZZ_CHECK(len > 0);
                    }
                    if (action == 4) { /* one value in 16, and more than one unit of some */
                        memcpy(cur, ref, sizes[s]);
                        for (size_t i = 0; i < sizes[s]; i += 4)
                            cur[i] ^=
                                (uint8_t)(fuzz_random(&rng) % 16 == 0 ? 1 + (fuzz_random(&rng) & 6) : 0);
                        len = nb_ulp_encode_sparse(widths[w], cur, ref, sizes[s], SIZE_MAX, coded,
                                                   sizeof(coded));
                        FUZZ_CHECK(len > 0);
                    }
                    if (action % 2 == 0)
                        add_bytes(coded, (size_t)len);
                    save("ulp");
                }
            }
        }
    }
}

static void wire(void)
{
    uint8_t b[256];

    for (unsigned i = 0; i < 12; i++) {
        struct nb_msg msg = {.func = (uint8_t)(i < 6 ? i % 3 : NB_FUNC_ALL_GATHER),
                             .codec = (uint8_t)(i % NB_CODEC_COUNT)};
        msg.type = msg.codec == NB_CODEC_ULP ? 2 : (uint8_t)ncclBfloat16;
        msg.flags = i < 6 ? 0 : NB_MSG_KEEP;
        msg.token = 0x4b4f5421u;
        msg.opno = i;
        msg.bytes = msg.coded = 100;
        if (msg.codec == NB_CODEC_ULP || msg.codec == NB_CODEC_DELTA4)
            msg.func = NB_FUNC_ALL_GATHER;
        add(i % 2 ? 4 : 0, 1);
        add_bytes(b, nb_msg_pack(&msg, b));
        memset(b, 0x11, 100);
        add_bytes(b, 100);
        save("wire");
    }
    for (unsigned kind = 0; kind < NB_CTL_COUNT; kind++) {
        struct nb_ctl ctl = {.kind = (uint8_t)kind, .token = 0x4b4f5421u, .a = 1, .b = 2, .c = 3};
        strcpy(ctl.text, kind == NB_CTL_ABORT ? "peer is gone" : "");
        nb_ctl_pack(&ctl, b);
        add(kind % 2 ? 1 : 5, 1);
        add_bytes(b, NB_CTL_BYTES);
        save("wire");
    }
    /* With a payload: messages that are valid as they are, a message that the target corrects, and a message
     * that is too long. */
    for (unsigned i = 0; i < 4; i++) {
        const uint32_t bytes[] = {0, 100, 16, NB_CTL_DATA_BYTES + 1};
        struct nb_ctl ctl = {.kind = NB_CTL_DATA, .token = 0x4b4f5421u, .a = 7, .b = 4096, .c = bytes[i]};
        nb_ctl_pack(&ctl, b);
        add(i == 2 ? 5 : 1, 1);
        add_bytes(b, NB_CTL_BYTES);
        for (uint32_t k = 0; k < bytes[i]; k++)
            add(k * 37, 1);
        save("wire");
    }
    for (unsigned i = 0; i < 2; i++) {
        struct nb_hello hello = {
            .wire_version = NB_WIRE_VERSION, .nclasses = 3, .rank = 1, .nnodes = 4, .host = "a"};
        struct nb_vote vote = {.yes = i, .rank = 3, .reason = "no memory"};
        nb_hello_pack(&hello, b);
        add(i ? 2 : 6, 1);
        add_bytes(b, NB_HELLO_BYTES);
        save("wire");
        nb_vote_pack(&vote, b);
        add(i ? 3 : 7, 1);
        add_bytes(b, NB_VOTE_BYTES);
        save("wire");
    }
}

static void tcp_wire(void)
{
    static const uint8_t id[16] = "0123456789abcdef";
    uint8_t b[NB_NET_HANDLE_BYTES];

    for (unsigned i = 0; i < 6; i++) {
        struct nb_tcp_handle h = {.version = NB_TCP_WIRE_VERSION, .state = i};
        struct nb_tcp_hello hello = {
            .version = NB_TCP_WIRE_VERSION, .stream = (uint16_t)(i % 3), .streams = 3};
        struct nb_tcp_frame f = {
            .seq = i, .tag = 1, .size = 1000, .offset = 100, .len = 200, .kind = (uint16_t)(1 + i % 3)};
        h.addr.ss_family = i % 2 ? AF_INET6 : AF_INET;
        memset((uint8_t *)&h.addr + 2, 0x22, 2);
        nb_tcp_handle_put(b, &h);
        add(i % 2 ? 0 : 4, 1);
        add_bytes(b, NB_NET_HANDLE_BYTES);
        save("tcp_wire");
        memcpy(hello.conn_id, id, 16);
        nb_tcp_hello_put(b, &hello);
        add(i % 2 ? 1 : 5, 1);
        add_bytes(b, NB_TCP_HELLO_BYTES);
        save("tcp_wire");
        if (f.kind != NB_TCP_DATA)
            f.len = 0;
        nb_tcp_frame_put(b, &f, nb_tcp_frame_key(id));
        add(i % 2 ? 2 : 6, 1);
        add_bytes(b, NB_TCP_FRAME_BYTES);
        save("tcp_wire");
    }
}

/* Region, records, operations of all kinds one after the other, requests. Some sequences close in their
 * middle. */
static void abi(void)
{
    for (unsigned settings = 0; settings < 256; settings += 17) {
        add(settings, 1);
        for (unsigned node = 0; node < 2; node++) {
            add(9 | node << 4, 1); /* regMr of all */
            add(3, 1);
            add(11 | node << 4, 1); /* a record of an all-reduce */
            add(2 | 8 | 4 | 16 | 32, 1);
            add(1, 1);
            add(16, 1);
        }
        for (unsigned n = 0; n < 12; n++) {
            add(n % 3, 1);
            add(15 + n % 5, 1);
            add(0, 1);
            if (n % 4 == 3) {
                add(15, 1);
                add(8, 1);
            }
        }
        if (settings & 1) {
            add(14 | 0xf0, 1);
            add(12, 1);
            add(40, 1);
        }
        for (unsigned n = 0; n < 4; n++) {
            add(15, 1);
            add(7 | n << 4, 1);
            add(n, 1);
        }
        save("abi");
    }
}

/* Add a call of fuzz_abi_threads, with up to two arguments of a byte. */
static void add_call(unsigned what, unsigned a, unsigned b)
{
    add(what, 1);
    add(a, 1);
    add(b, 1);
    add(0, ABI_CALL_BYTES - 3);
}

/* Regions, operations of all kinds, each tested by both nodes. Some sequences close one node in their
 * middle. */
static void abi_threads(void)
{
    for (unsigned settings = 0; settings < 256; settings += 15) {
        add(settings, 1);
        for (unsigned node = 0; node < 2; node++)
            add_call(9 | node << 4, 3, 0);
        for (unsigned n = 0; n < 24; n++) {
            add_call(n % 3, 15 + n % 5, 0);
            add_call(7 | n << 4, n, 0);
            if (n % 4 == 3)
                add_call(n % 8 == 3 ? 8 : 15, 0, 0);
            if (n == 12 && settings & 1)
                add_call(14 | 0xf0, 0, 0);
        }
        save("abi_threads");
    }
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
        return 2;
    }
    root = argv[1];
    mkdir(root, 0755);
    quant();
    ulp();
    wire();
    tcp_wire();
    abi();
    abi_threads();
    return 0;
}
