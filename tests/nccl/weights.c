/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Broadcasts and sends of a trainer's weights to inference engines, in the orders of calls of frameworks for
 * reinforcement learning, which push them every few steps:
 *
 *     tensors  a broadcast for each tensor, each awaited (OpenRLHF)
 *     buckets  a broadcast for each tensor, those of a bucket awaited together (slime)
 *     packed   tensors are copied into one of two buffers until it is full, and its bytes broadcast on its
 *              stream, while the other one is packed or unpacked (NeMo-RL, vLLM)
 *     fixed    the same, but whole buffers are broadcast, with zeros behind the last tensor (verl)
 *     flat     one broadcast of all weights
 *     tree     sends and receives: the trainer sends once, and each receiver sends on to two others. Each
 *              rank receives a bucket's tensors in one batch and sends them in the next
 *              (batch_isend_irecv of PyTorch)
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec/fp.h"
#include "nibble/nccl_types.h"
#include "ranks.h"

#define MOST_TENSORS 4096

/* Weights in BF16. Tensor i has the bytes [at[i], at[i + 1]). */
struct model {
    size_t tensors, at[MOST_TENSORS + 1];
    size_t bucket; /* bytes */
    uint16_t *want;
    char *held;
};

struct way {
    const char *name;
    void (*push)(const struct member *, const struct model *);
};

/* ---- The orders of calls ------------------------------------------------------------------------------- */

static void broadcast(const struct member *m, void *stream, char *data, size_t bytes, int type)
{
    const size_t n = type == ncclBfloat16 ? bytes / 2 : bytes;

    check(nccl.broadcast(data, data, n, type, 0, m->comm, stream), "ncclBroadcast");
}

static void flat(const struct member *m, const struct model *w)
{
    broadcast(m, m->stream, w->held, w->at[w->tensors], ncclBfloat16);
    stream_wait(m->stream);
}

/* `bucket`: the bytes that are awaited together. */
static void each_tensor(const struct member *m, const struct model *w, size_t bucket)
{
    size_t first = 0;

    for (size_t i = 0; i < w->tensors; i++) {
        if (i > first && w->at[i + 1] - w->at[first] > bucket) {
            stream_wait(m->stream);
            first = i;
        }
        broadcast(m, m->stream, w->held + w->at[i], w->at[i + 1] - w->at[i], ncclBfloat16);
    }
    stream_wait(m->stream);
}

static void tensors(const struct member *m, const struct model *w)
{
    each_tensor(m, w, 0);
}

static void buckets(const struct member *m, const struct model *w)
{
    each_tensor(m, w, w->bucket);
}

/* Send the tensors [first, end) to `peer`, or receive them. */
static void pass(const struct member *m, const struct model *w, size_t first, size_t end, int peer, bool out)
{
    for (size_t i = first; i < end; i++) {
        char *data = w->held + w->at[i];
        const size_t n = (w->at[i + 1] - w->at[i]) / 2;
        if (out)
            check(nccl.send(data, n, ncclBfloat16, peer, m->comm, m->stream), "ncclSend");
        else
            check(nccl.recv(data, n, ncclBfloat16, peer, m->comm, m->stream), "ncclRecv");
    }
}

static void tree(const struct member *m, const struct model *w)
{
    size_t end = 0;

    for (size_t first = 0; first < w->tensors; first = end) {
        end = first + 1;
        while (end < w->tensors && w->at[end + 1] - w->at[first] <= w->bucket)
            end++;
        check(nccl.group_start(), "ncclGroupStart");
        if (m->rank > 0)
            pass(m, w, first, end, m->rank / 2, false);
        check(nccl.group_end(), "ncclGroupEnd");
        check(nccl.group_start(), "ncclGroupStart");
        for (int peer = m->rank ? 2 * m->rank : 1; peer <= 2 * m->rank + 1 && peer < m->ranks; peer++)
            pass(m, w, first, end, peer, true);
        check(nccl.group_end(), "ncclGroupEnd");
        stream_wait(m->stream);
    }
}

struct buffer {
    char *data;
    void *stream;
    size_t first, end; /* its tensors */
};

/* Await the buffer's broadcast. Receivers unpack it. */
static void unpack(const struct member *m, const struct model *w, const struct buffer *b)
{
    stream_wait(b->stream);
    if (m->rank > 0)
        memcpy(w->held + w->at[b->first], b->data, w->at[b->end] - w->at[b->first]);
}

/* Whole buffers never exceed a bucket. Others end with the tensor that exceeds it. */
static void pack(const struct member *m, const struct model *w, bool whole)
{
    struct buffer buffer[2] = {{.stream = stream_create()}, {.stream = stream_create()}};
    const size_t most = whole ? w->bucket : w->at[w->tensors];
    size_t end = 0;
    int which = 0;

    for (int i = 0; i < 2; i++) {
        buffer[i].data = device_alloc(most);
        memset(buffer[i].data, 0, most);
    }
    for (size_t first = 0; first < w->tensors; first = end, which ^= 1) {
        struct buffer *b = &buffer[which];
        unpack(m, w, b);
        end = first + 1;
        while (end < w->tensors && w->at[end + (whole ? 1 : 0)] - w->at[first] <= w->bucket)
            end++;
        b->first = first;
        b->end = end;
        const size_t bytes = w->at[end] - w->at[first];
        if (m->rank == 0)
            memcpy(b->data, w->held + w->at[first], bytes);
        broadcast(m, b->stream, b->data, whole ? w->bucket : bytes, ncclUint8);
    }
    for (int i = 0; i < 2; i++) {
        unpack(m, w, &buffer[which ^ i]);
        stream_destroy(buffer[which ^ i].stream);
        device_free(buffer[which ^ i].data);
    }
}

static void packed(const struct member *m, const struct model *w)
{
    pack(m, w, false);
}

static void fixed(const struct member *m, const struct model *w)
{
    pack(m, w, true);
}

static const struct way ways[] = {{"tensors", tensors}, {"buckets", buckets}, {"packed", packed},
                                  {"fixed", fixed},     {"flat", flat},       {"tree", tree}};
#define WAYS (sizeof(ways) / sizeof(ways[0]))

/* ---- Values -------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x *= 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    return x ^ x >> 32;
}

static void new_values(struct model *w, unsigned round)
{
    for (size_t i = 0; i < w->at[w->tensors] / 2; i++) {
        const float value = (float)(mix(i ^ (uint64_t)round << 40) & 0xffff);

        w->want[i] = nb_f32_to_bf16((value - 32767.5f) / 32768.0f);
    }
}

/* Move `percent` of the values by one place. 100: new values. */
static void change(struct model *w, double percent, unsigned round)
{
    const uint64_t limit = (uint64_t)(percent * 1e4);

    if (percent >= 100)
        new_values(w, round);
    else if (limit)
        for (size_t i = 0; i < w->at[w->tensors] / 2; i++) {
            const uint64_t x = mix(i ^ (uint64_t)round << 40);
            if ((x & 0xffffffff) * 1000000 >> 32 < limit)
                w->want[i] = (uint16_t)(x >> 63 ? w->want[i] + 1 : w->want[i] - 1);
        }
}

static void open_model(struct model *w)
{
    w->want = malloc(w->at[w->tensors]);
    w->held = device_alloc(w->at[w->tensors]);
    if (!w->want)
        die("no memory");
    new_values(w, 0);
}

static void close_model(struct model *w)
{
    free(w->want);
    device_free(w->held);
}

struct next { /* a push of the next weights */
    const struct way *way;
    const struct model *w;
};

static void push_once(const struct member *m, void *arg)
{
    const struct next *next = arg;

    next->way->push(m, next->w);
}

/* Push the next weights, and return the seconds until all ranks have them. */
static double push_next(const struct member *m, struct model *w, const struct way *way, double percent,
                        unsigned round)
{
    struct next next = {way, w};

    change(w, percent, round);
    if (m->rank == 0)
        memcpy(w->held, w->want, w->at[w->tensors]);
    else
        memset(w->held, 0xff, w->at[w->tensors]);
    const double seconds = timed(m, push_once, &next);
    if (memcmp(w->held, w->want, w->at[w->tensors]) != 0)
        die("rank %d: wrong weights (%s, %g %% changed, round %u)", m->rank, way->name, percent, round);
    return seconds;
}

/* ---- Cases --------------------------------------------------------------------------------------------- */

void weights(struct member *m)
{
    static const size_t bytes[] = {8 << 20, 3000000, 1 << 20, 400000, 200002, 65536, 1000};
    enum { ROUNDS = 5 };
    struct model w = {.tensors = sizeof(bytes) / sizeof(bytes[0]), .bucket = 8 << 20};

    for (size_t i = 0; i < w.tensors; i++)
        w.at[i + 1] = w.at[i] + bytes[i];
    open_model(&w);
    for (size_t k = 0; k < WAYS; k++) {
        open_comm(m, NULL);
        for (unsigned round = 0; round < ROUNDS; round++)
            push_next(m, &w, &ways[k], 3, round);
        close_comm(m);
    }
    close_model(&w);
}

void push(struct member *m)
{
    enum { LAYER = 9 };
    static const unsigned share[LAYER] = {200, 50, 50, 200, 540, 540, 540, 1, 1}; /* of 2122 */
    const char *text = getenv("NB_PUSH");
    double seconds[MOST_ROUNDS], percent;
    struct model w = {0};
    char name[16], what[64];
    size_t bytes, k = 0;
    int warm, rounds, used, n = 0;

    if (!text || sscanf(text, "%15s %zu %d %d%n", name, &bytes, &warm, &rounds, &used) != 4 || rounds < 1 ||
        rounds > MOST_ROUNDS)
        die("NB_PUSH: no \"WAY BYTES WARM-UP ROUNDS PERCENT...\"");
    while (k < WAYS && strcmp(ways[k].name, name) != 0)
        k++;
    if (k == WAYS)
        die("NB_PUSH: unknown way");
    const size_t layers = bytes / (64 << 20) + 1;
    for (size_t l = 0; l < layers; l++)
        for (int i = 0; i < LAYER && w.tensors < MOST_TENSORS; i++, w.tensors++)
            w.at[w.tensors + 1] = w.at[w.tensors] + bytes / layers * share[i] / 2122 / 2 * 2;
    w.at[w.tensors] = bytes;
    w.bucket = bytes / 3;
    open_model(&w);
    open_comm(m, NULL);
    for (int i = 0; i < warm; i++)
        push_next(m, &w, &ways[k], 1, (unsigned)n++);
    for (text += used; sscanf(text, "%lf%n", &percent, &used) == 1; text += used) {
        const double before = link_bytes();
        for (int i = 0; i < rounds; i++)
            seconds[i] = push_next(m, &w, &ways[k], percent, (unsigned)n++);
        snprintf(what, sizeof(what), "push %s %zu %g", name, bytes, percent);
        print_times(m, what, seconds, rounds, before);
    }
    close_comm(m);
    close_model(&w);
}
