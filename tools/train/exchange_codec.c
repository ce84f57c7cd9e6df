/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The codecs without the plugin: every node codes its contributions with the settings that the plugin reads
 * (NIBBLE_RS, NIBBLE_AG, NIBBLE_EF), the owner decodes and sums them, all through shared memory. Bytes are
 * those of the coded spans alone.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "exchange.h"

#define PIECE 65536u /* bytes of weights coded at a time */

struct coded {
    enum nb_codec codec;
    int exact_differences;
    struct nb_ef *ef;    /* one a destination; NULL: no feedback */
    uint16_t *reference; /* the weights as gathered last; nnodes * block */
    int have_reference;
    unsigned char *scratch;
    size_t cap;
    struct nbt_traffic traffic;
};

/* A span in shared memory, from one node to another (all-gather: to anybody, `to` is 0). */
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

static int is(const char *name, const char *value)
{
    const char *v = getenv(name);
    return v && strcmp(v, value) == 0;
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
    free(c->reference);
    free(c->scratch);
    free(c);
    x->state = NULL;
    return 0;
}

static int codec_open(struct nbt_exchange *x)
{
    const size_t n = (size_t)x->cfg.node->nnodes, block = x->cfg.block;
    struct coded *c = x->state = calloc(1, sizeof *c);
    if (!c)
        return -ENOMEM;
    c->codec = is("NIBBLE_RS", "raw")    ? NB_CODEC_RAW
               : is("NIBBLE_RS", "int8") ? NB_CODEC_INT8
                                         : NB_CODEC_INT4;
    c->exact_differences = !is("NIBBLE_AG", "raw");
    c->cap = span_bytes(x) - sizeof(struct span);
    c->scratch = malloc(nb_ulp_bound(NB_ULP_16, PIECE));
    c->reference = calloc(n * block, sizeof *c->reference);
    c->ef = c->codec == NB_CODEC_RAW || is("NIBBLE_EF", "off") ? NULL : calloc(n, sizeof *c->ef);
    int ok = c->scratch && c->reference && (c->ef || c->codec == NB_CODEC_RAW || is("NIBBLE_EF", "off")) &&
             nb_encode_bound(c->codec, x->cfg.grad_type, block) <= c->cap;
    for (size_t r = 0; ok && c->ef && r < n; r++) {
        c->ef[r] = (struct nb_ef){
            .err = calloc(nb_ef_err_bytes(block), 1),
            .scale = calloc(nb_ef_scale_bytes(block), 1),
            .mode = is("NIBBLE_EF", "ema") ? NB_EF_EMA : NB_EF_FULL,
            .beta = 0.8f,
            .bound = 0.2f,
        };
        ok = c->ef[r].err && c->ef[r].scale;
    }
    c->traffic.known = 1;
    if (ok)
        return 0;
    codec_close(x);
    hx_fail("the codec exchange cannot be set up for blocks of %zu values", block);
    return -ENOMEM;
}

static int codec_reduce_scatter(struct nbt_exchange *x, const void *send, void *recv)
{
    struct coded *c = x->state;
    const int n = x->cfg.node->nnodes, me = x->cfg.node->rank;
    const size_t block = x->cfg.block, size = nb_dtype_size(x->cfg.grad_type);
    struct nb_source source[HX_MAX_NODES];
    size_t sources = 0;
    for (int r = 0; r < n; r++) {
        struct span *to = span(x, me, r);
        const int shift =
            x->cfg.fault == NBT_FAULT_SLOT ? (int)(c->traffic.reduce_scatter.ops % (uint64_t)n) : 0;
        if (r == me)
            continue;
        const ssize_t len =
            nb_encode(c->codec, x->cfg.grad_type, (const char *)send + (size_t)r * block * size, block, 0,
                      c->ef ? &c->ef[(r + shift) % n] : NULL, to->data, c->cap, NULL);
        if (len < 0) {
            hx_fail("encoding failed (%s)", strerror((int)-len));
            return (int)len;
        }
        to->len = (uint64_t)len;
        c->traffic.reduce_scatter.wire += to->len;
    }
    c->traffic.reduce_scatter.ops++;
    c->traffic.quantized_ops += c->codec != NB_CODEC_RAW;
    c->traffic.feedback_ops += c->ef != NULL;
    hx_barrier(x->cfg.node);
    for (int r = 0; r < n; r++) {
        const struct span *from = span(x, r, me);
        if (r != me)
            source[sources++] = (struct nb_source){c->codec, from->data, from->len};
    }
    const int rc = nb_reduce(x->cfg.grad_type, source, sources,
                             (const char *)send + (size_t)me * block * size, block, 0, recv);
    hx_barrier(x->cfg.node);
    if (rc)
        hx_fail("decoding failed (%s)", strerror(-rc));
    return rc;
}

/* Bytes that the own block costs one receiver: differences against the last weights, raw where those are
 * longer. */
static uint64_t weight_bytes(struct coded *c, const uint16_t *now, const uint16_t *before, size_t bytes,
                             int *rc)
{
    uint64_t sum = 0;
    for (size_t at = 0; at < bytes; at += PIECE) {
        const size_t n = bytes - at < PIECE ? bytes - at : PIECE;
        const char *cur = (const char *)now + at, *ref = (const char *)before + at;
        ssize_t len = -E2BIG;
        if (c->exact_differences && c->have_reference)
            len = nb_ulp_encode(NB_ULP_16, cur, ref, n, n, c->scratch, nb_ulp_bound(NB_ULP_16, n));
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

static int codec_all_gather(struct nbt_exchange *x, uint16_t *buf)
{
    struct coded *c = x->state;
    const int n = x->cfg.node->nnodes, me = x->cfg.node->rank;
    const size_t block = x->cfg.block, mine = (size_t)me * block;
    int rc = 0;
    c->traffic.all_gather.ops++;
    c->traffic.all_gather.wire +=
        (uint64_t)(n - 1) * weight_bytes(c, buf + mine, c->reference + mine, block * sizeof *buf, &rc);
    if (rc) {
        hx_fail("differences of weights do not decode to what was coded");
        return rc;
    }
    memcpy(span(x, me, 0)->data, buf + mine, block * sizeof *buf);
    hx_barrier(x->cfg.node);
    for (int r = 0; r < n; r++)
        if (r != me)
            memcpy(buf + (size_t)r * block, span(x, r, 0)->data, block * sizeof *buf);
    hx_barrier(x->cfg.node);
    memcpy(c->reference, buf, (size_t)n * block * sizeof *buf);
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
