/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The codecs without the plugin: every node codes its contributions by the run's method, the owner decodes
 * and sums them, all through shared memory. Bytes are those of the coded spans alone.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "exchange.h"
#include "rivals.h"
#include "state/jump.h"
#include "values.h"

#define PIECE 65536u /* bytes of weights coded at a time */

struct coded {
    enum nb_codec codec;
    struct nb_ef *ef;        /* one a destination; NULL: no feedback */
    struct nbt_rival *rival; /* ... or somebody else's code, and two vectors for it */
    float *values, *arrives;
    uint16_t *reference; /* the weights as gathered last; nnodes * block */
    uint16_t *source;    /* the own block as it was then */
    int have_reference;
    struct nb_jump weights, gradients; /* of the own block, of the own contribution */
    unsigned char *scratch;
    size_t cap;
    struct nbt_traffic traffic;
};

/* A span in shared memory, from one node to another (all-gather: to anybody, `to` is 0; rivals: a whole
 * vector). */
struct span {
    uint64_t len;
    unsigned char data[];
};

static size_t span_bytes(const struct nbt_exchange *x)
{
    return nbt_exchange_shared_bytes(1, x->cfg.block) / 16 * 16;
}

static struct span *span(const struct nbt_exchange *x, int from, int to)
{
    const size_t n = (size_t)x->cfg.node->nnodes;
    return (struct span *)(void *)((char *)x->cfg.shared + ((size_t)from * n + (size_t)to) * span_bytes(x));
}

static int codec_close(struct nbt_exchange *x)
{
    struct coded *c = x->state;
    if (!c)
        return 0;
    for (int r = 0; c->ef && r < x->cfg.node->nnodes; r++) {
        free(c->ef[r].err);
        free(c->ef[r].scale);
    }
    free(c->ef);
    nbt_rival_free(c->rival);
    free(c->values);
    free(c->arrives);
    free(c->reference);
    free(c->source);
    free(c->scratch);
    free(c);
    x->state = NULL;
    return 0;
}

static int open_feedback(const struct nbt_exchange *x, struct coded *c)
{
    const size_t n = (size_t)x->cfg.node->nnodes, block = x->cfg.block;
    c->ef = calloc(n, sizeof *c->ef);
    for (size_t r = 0; c->ef && r < n; r++) {
        c->ef[r] = (struct nb_ef){
            .err = calloc(nb_ef_err_bytes(block), 1),
            .scale = calloc(nb_ef_scale_bytes(block), 1),
            .mode = x->cfg.method.feedback,
            .beta = 0.8f,
            .bound = 0.2f,
        };
        if (!c->ef[r].err || !c->ef[r].scale)
            return -ENOMEM;
    }
    return c->ef ? 0 : -ENOMEM;
}

static int open_rival(const struct nbt_exchange *x, struct coded *c)
{
    const size_t all = (size_t)x->cfg.node->nnodes * x->cfg.block;
    c->rival = nbt_rival_new(x->cfg.method.gradients, x->cfg.lay, all,
                             x->cfg.seed * NBT_MAX_NODES + (uint64_t)x->cfg.node->rank);
    c->values = calloc(all, sizeof *c->values);
    c->arrives = calloc(all, sizeof *c->arrives);
    return c->rival && c->values && c->arrives ? 0 : -ENOMEM;
}

static int codec_open(struct nbt_exchange *x)
{
    const struct nbt_method *m = &x->cfg.method;
    const size_t n = (size_t)x->cfg.node->nnodes, block = x->cfg.block;
    struct coded *c = x->state = calloc(1, sizeof *c);
    int rc = 0;
    if (!c)
        return -ENOMEM;
    c->codec = m->gradients == NBT_GRADIENTS_INT4 ? NB_CODEC_INT4 : NB_CODEC_RAW;
    c->cap = span_bytes(x) - sizeof(struct span);
    c->scratch = malloc(nb_ulp_bound(NB_ULP_16, PIECE) + nb_delta4_bound(NB_BF16, PIECE));
    c->reference = calloc(n * block, sizeof *c->reference);
    c->source = calloc(block, sizeof *c->source);
    if (!c->scratch || !c->reference || !c->source ||
        nb_encode_bound(c->codec, x->cfg.grad_type, block) > c->cap)
        rc = -ENOMEM;
    if (rc == 0 && m->gradients == NBT_GRADIENTS_INT4 && m->feedback != NB_EF_OFF)
        rc = open_feedback(x, c);
    if (rc == 0 && (m->gradients == NBT_GRADIENTS_LOCO || m->gradients == NBT_GRADIENTS_SDP4BIT))
        rc = open_rival(x, c);
    c->traffic.known = 1;
    if (rc == 0)
        return 0;
    codec_close(x);
    hx_fail("the codec exchange cannot be set up for blocks of %zu values", block);
    return rc;
}

/* ---- gradients ---- */

/* As the plugin does it: a non-finite value spoils the step, a spike leaves errors beyond all measure, and
 * weights that jump (a checkpoint) leave those of another time; such errors are worth nothing. */
static void drop_errors(const struct nbt_exchange *x, struct coded *c)
{
    for (int r = 0; r < x->cfg.node->nnodes; r++) {
        memset(c->ef[r].err, 0, nb_ef_err_bytes(x->cfg.block));
        memset(c->ef[r].scale, 0, nb_ef_scale_bytes(x->cfg.block));
    }
}

static int send_coded(struct nbt_exchange *x, struct coded *c, const void *send)
{
    const int n = x->cfg.node->nnodes, me = x->cfg.node->rank;
    const int shift = x->cfg.method.wrong_slot ? (int)(c->traffic.reduce_scatter.ops % (uint64_t)n) : 0;
    const size_t block = x->cfg.block, size = nb_dtype_size(x->cfg.grad_type);
    struct nb_encode_stats stats = {0};
    for (int r = 0; r < n; r++) {
        struct span *to = span(x, me, r);
        if (r == me)
            continue;
        const ssize_t len =
            nb_encode(c->codec, x->cfg.grad_type, (const char *)send + (size_t)r * block * size, block, 0,
                      c->ef ? &c->ef[(r + shift) % n] : NULL, to->data, c->cap, &stats);
        if (len < 0) {
            hx_fail("encoding failed (%s)", strerror((int)-len));
            return (int)len;
        }
        to->len = (uint64_t)len;
        c->traffic.reduce_scatter.wire += to->len;
    }
    if (c->ef && (stats.nonfinite | (uint64_t)nb_jump_gradients(&c->gradients, stats.signal2)))
        drop_errors(x, c);
    return 0;
}

static int receive_coded(struct nbt_exchange *x, struct coded *c, const void *send, void *recv)
{
    const int n = x->cfg.node->nnodes, me = x->cfg.node->rank;
    const size_t own = (size_t)me * x->cfg.block * nb_dtype_size(x->cfg.grad_type);
    struct nb_source source[NBT_MAX_NODES];
    size_t sources = 0;
    for (int r = 0; r < n; r++) {
        const struct span *from = span(x, r, me);
        if (r != me)
            source[sources++] = (struct nb_source){c->codec, from->data, from->len};
    }
    const int rc =
        nb_reduce(x->cfg.grad_type, source, sources, (const char *)send + own, x->cfg.block, 0, recv);
    if (rc)
        hx_fail("decoding failed (%s)", strerror(-rc));
    return rc;
}

/* Their programs code the own part like all others. */
static void send_rival(struct nbt_exchange *x, struct coded *c, const void *send)
{
    const size_t n = (size_t)x->cfg.node->nnodes, all = n * x->cfg.block;
    nbt_widen(x->cfg.grad_type, send, all, c->values);
    c->traffic.reduce_scatter.wire += nbt_rival_gradients(c->rival, c->values, c->arrives) * (n - 1) / n;
    memcpy(span(x, x->cfg.node->rank, 0)->data, c->arrives, all * sizeof *c->arrives);
}

static void receive_rival(struct nbt_exchange *x, struct coded *c, void *recv)
{
    const size_t block = x->cfg.block, first = (size_t)x->cfg.node->rank * block;
    memset(c->values, 0, block * sizeof *c->values);
    for (int r = 0; r < x->cfg.node->nnodes; r++) {
        const float *from = (const float *)(const void *)span(x, r, 0)->data + first;
        for (size_t i = 0; i < block; i++)
            c->values[i] += from[i];
    }
    nbt_narrow(x->cfg.grad_type, c->values, block, recv);
}

static int codec_reduce_scatter(struct nbt_exchange *x, const void *send, void *recv)
{
    struct coded *c = x->state;
    int rc = 0;
    if (c->rival)
        send_rival(x, c, send);
    else
        rc = send_coded(x, c, send);
    if (rc)
        return rc;
    c->traffic.reduce_scatter.ops++;
    c->traffic.quantized_ops += x->cfg.method.gradients != NBT_GRADIENTS_RAW;
    c->traffic.feedback_ops += c->ef != NULL;
    hx_barrier(x->cfg.node);
    if (c->rival)
        receive_rival(x, c, recv);
    else
        rc = receive_coded(x, c, send, recv);
    hx_barrier(x->cfg.node);
    return rc;
}

/* ---- weights ---- */

/* Bytes that the own block costs one receiver: differences against the last weights, raw where those are
 * longer. */
static uint64_t exact_bytes(struct coded *c, const uint16_t *now, const uint16_t *before, size_t bytes,
                            int *rc)
{
    uint64_t sum = 0;
    for (size_t at = 0; at < bytes; at += PIECE) {
        const size_t n = bytes - at < PIECE ? bytes - at : PIECE;
        const char *cur = (const char *)now + at, *ref = (const char *)before + at;
        ssize_t len = nb_ulp_encode(NB_ULP_16, cur, ref, n, n, c->scratch, nb_ulp_bound(NB_ULP_16, n));
        if (len >= 0) {
            char back[PIECE];
            if (nb_ulp_decode(NB_ULP_16, c->scratch, (size_t)len, ref, n, back) != 0 ||
                memcmp(back, cur, n) != 0)
                *rc = -EBADMSG;
        }
        sum += len >= 0 ? (uint64_t)len : n;
    }
    return sum;
}

/* The same for bounded differences, against what the others have. Who has seen these very weights gets
 * nothing. */
static uint64_t delta4_bytes(struct coded *c, const uint16_t *now, const uint16_t *before, size_t bytes,
                             uint16_t *arrives, int *rc)
{
    uint64_t sum = 0;
    if (memcmp(now, c->source, bytes) == 0) {
        memcpy(arrives, before, bytes);
        return 0;
    }
    for (size_t at = 0; at < bytes; at += PIECE) {
        const size_t n = bytes - at < PIECE ? bytes - at : PIECE;
        const char *cur = (const char *)now + at, *ref = (const char *)before + at;
        const ssize_t len =
            nb_delta4_encode(NB_BF16, cur, ref, n, n, c->scratch, nb_delta4_bound(NB_BF16, n), NULL);
        if (len >= 0 && nb_delta4_decode(NB_BF16, c->scratch, (size_t)len, ref, n, (char *)arrives + at) != 0)
            *rc = -EBADMSG;
        sum += len >= 0 ? (uint64_t)len : n;
    }
    return sum;
}

/* What the others get of the own block `now`, into `arrives`; bytes for one of them. */
static uint64_t code_weights(struct nbt_exchange *x, struct coded *c, const uint16_t *now, uint16_t *arrives,
                             int *rc)
{
    const size_t block = x->cfg.block;
    const uint16_t *before = c->reference + (size_t)x->cfg.node->rank * block;
    memcpy(arrives, now, block * sizeof *now);
    if (!c->have_reference || x->cfg.method.weights == NBT_WEIGHTS_RAW)
        return block * sizeof *now;
    if (x->cfg.method.weights == NBT_WEIGHTS_EXACT) {
        const uint64_t bytes = exact_bytes(c, now, before, block * sizeof *now, rc);
        if (memcmp(now, before, block * sizeof *now) != 0 && nb_jump_weights(&c->weights, block, 8 * bytes) &&
            c->ef)
            drop_errors(x, c);
        return bytes;
    }
    if (x->cfg.method.weights == NBT_WEIGHTS_DELTA4)
        return delta4_bytes(c, now, before, block * sizeof *now, arrives, rc);
    return nbt_rival_weights(now, before, block,
                             x->cfg.seed ^ c->traffic.all_gather.ops << 8 ^ (uint64_t)x->cfg.node->rank << 56,
                             arrives);
}

static int codec_all_gather(struct nbt_exchange *x, uint16_t *buf)
{
    struct coded *c = x->state;
    const int n = x->cfg.node->nnodes, me = x->cfg.node->rank;
    const size_t block = x->cfg.block;
    uint16_t *const arrives = (uint16_t *)(void *)span(x, me, 0)->data;
    int rc = 0;
    c->traffic.all_gather.wire +=
        (uint64_t)(n - 1) * code_weights(x, c, buf + (size_t)me * block, arrives, &rc);
    c->traffic.all_gather.ops++;
    if (rc) {
        hx_fail("differences of weights do not decode to what was coded");
        return rc;
    }
    hx_barrier(x->cfg.node);
    for (int r = 0; r < n; r++)
        memcpy(c->reference + (size_t)r * block, span(x, r, 0)->data, block * sizeof *buf);
    hx_barrier(x->cfg.node);
    memcpy(c->source, buf + (size_t)me * block, block * sizeof *buf);
    memcpy(buf, c->reference, (size_t)n * block * sizeof *buf);
    if (x->cfg.method.weights == NBT_WEIGHTS_DELTA4) /* in place: the own block stays as it was */
        memcpy(buf + (size_t)me * block, c->source, block * sizeof *buf);
    c->have_reference = 1;
    return 0;
}

static void codec_traffic(struct nbt_exchange *x, struct nbt_traffic *traffic)
{
    const struct coded *c = x->state;
    *traffic = c->traffic;
}

const struct nbt_exchange_ops nbt_exchange_codec = {
    .name = "codec",
    .open = codec_open,
    .reduce_scatter = codec_reduce_scatter,
    .all_gather = codec_all_gather,
    .traffic = codec_traffic,
    .close = codec_close,
};
