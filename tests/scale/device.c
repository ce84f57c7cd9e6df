/* SPDX-License-Identifier: Apache-2.0 */
/* Codecs that only take time. See device.h. */
#include "tests/scale/device.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "device/host/host.h"
#include "tests/scale/memory.h"
#include "tests/scale/network.h"
#include "tests/scale/node.h"

struct idle {
    struct nb_device device;
    struct scale_node *node;
};

static struct scale_node *node_of(struct nb_device *dev)
{
    return ((struct idle *)dev)->node;
}

/* Let the node's thread work on `bytes` of values. */
static void spend(struct nb_device *dev, double bytes, double speed)
{
    if (speed > 0)
        scale_node_spends(node_of(dev), (int64_t)(bytes / speed * 1e9));
}

static const struct scale_speed *speed_of(struct nb_device *dev)
{
    return &node_of(dev)->cluster->set->speed;
}

/* ---- memory ------------------------------------------------------------------------------------------- */

void *scale_nowhere(size_t bytes)
{
    return scale_pages(bytes);
}

static void *idle_alloc(struct nb_device *dev, enum nb_place place, size_t bytes)
{
    struct scale_node *n = node_of(dev);

    if (place == NB_PLACE_STATE)
        n->state_bytes += bytes;
    else
        n->wire_bytes += bytes;
    return scale_pages(bytes);
}

static void idle_free(struct nb_device *dev, enum nb_place place, void *p, size_t bytes)
{
    struct scale_node *n = node_of(dev);

    if (!p)
        return;
    if (place == NB_PLACE_STATE)
        n->state_bytes -= bytes;
    else
        n->wire_bytes -= bytes;
    scale_pages_free(p, bytes);
}

/* ---- work --------------------------------------------------------------------------------------------- */

static int idle_copy(struct nb_device *dev, struct nb_work *work, void *dst, const void *src, size_t bytes)
{
    (void)work;
    if (dst != src)
        spend(dev, (double)bytes, speed_of(dev)->copy);
    return 0;
}

static int idle_zero(struct nb_device *dev, struct nb_work *work, void *dst, size_t bytes)
{
    (void)dev, (void)work, (void)dst, (void)bytes;
    return 0;
}

/* Make values that are about normal, sums of twelve. */
static void make_values(enum nb_dtype type, uint8_t *values, size_t n)
{
    uint64_t state = 1;

    for (size_t i = 0; i < n; i++) {
        float x = -6, y;
        uint32_t bits;

        for (int k = 0; k < 12; k++) {
            state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
            x += (float)(state >> 40) * 0x1p-24f;
        }
        y = type == NB_F16 ? x * 0x1p-112f : x; /* FP16 has its exponent in another place, and three more
                                                   bits */
        memcpy(&bits, &y, 4);
        if (type == NB_F32)
            memcpy(values + 4 * i, &bits, 4);
        else
            memcpy(values + 2 * i, &(uint16_t){(uint16_t)(bits >> (type == NB_F16 ? 13 : 16))}, 2);
    }
}

double scale_coded(enum nb_codec codec, enum nb_dtype type)
{
    enum { VALUES = 65536 };
    static double ratio[NB_CODEC_CODES][NB_DTYPE_COUNT];
    double *r = &ratio[codec][type];
    const size_t bytes = VALUES * nb_dtype_size(type);
    uint8_t *values, *coded;
    ssize_t len;
    size_t cap;

    if (*r != 0)
        return *r;
    cap = nb_codec_row(codec)->bound((unsigned)type, bytes);
    values = malloc(bytes);
    coded = malloc(cap);
    if (!values || !coded)
        abort();
    make_values(type, values, VALUES);
    len = nb_encode(codec, type, values, VALUES, 0, NULL, coded, cap, NULL);
    if (len <= 0)
        abort();
    free(values);
    free(coded);
    *r = (double)len / (double)bytes;
    return *r;
}

static ssize_t idle_encode(struct nb_device *dev, struct nb_work *work, const struct nb_encoding *e)
{
    const struct scale_speed *s = speed_of(dev);

    (void)work;
    if (e->codec->reference) {
        spend(dev, (double)e->bytes, s->ulp_encode);
        return (ssize_t)((double)e->bytes * node_of(dev)->cluster->set->gather_ratio);
    }
    spend(dev, (double)e->bytes, e->ef ? s->encode_feedback : s->encode);
    return (ssize_t)((double)e->bytes * scale_coded(e->codec->code, (enum nb_dtype)e->format));
}

static int idle_decode(struct nb_device *dev, struct nb_work *work, const struct nb_decoding *d)
{
    const struct scale_speed *s = speed_of(dev);

    (void)work;
    spend(dev, (double)d->bytes,
          d->codec->code == NB_CODEC_RAW ? s->copy
          : d->codec->reference          ? s->ulp_decode
                                         : s->decode);
    return 0;
}

static int idle_reduce(struct nb_device *dev, struct nb_work *work, enum nb_dtype type,
                       const struct nb_source *sources, size_t nsources, const void *own, size_t n,
                       uint64_t first, void *dst)
{
    const struct scale_speed *s = speed_of(dev);
    const double bytes = (double)(n * nb_dtype_size(type));

    (void)work, (void)first, (void)dst;
    for (size_t i = 0; i < nsources; i++)
        spend(dev, bytes, sources[i].codec == NB_CODEC_RAW ? s->copy / 2 : s->decode_add);
    if (own)
        spend(dev, bytes, s->copy);
    return 0;
}

static int idle_reduce_exact(struct nb_device *dev, struct nb_work *work, ncclDataType_t type, ncclRedOp_t op,
                             const void *const *sources, size_t nsources, const void *own, size_t n,
                             void *dst)
{
    (void)work, (void)type, (void)op, (void)sources, (void)own, (void)dst;
    spend(dev, 4.0 * (double)(n * nsources), speed_of(dev)->copy / 2);
    return 0;
}

/* ---- comparisons: values have changed a little, without damage ----------------------------------------- */

static int idle_compare(struct nb_device *dev, struct nb_work *work, const void *cur, const void *ref,
                        size_t bytes, struct nb_compared *out)
{
    (void)dev, (void)work, (void)cur, (void)ref, (void)bytes;
    *out = (struct nb_compared){.hash = 1, .ref_hash = 1, .width = NB_ULP_16};
    return 0;
}

static int idle_similarity(struct nb_device *dev, struct nb_work *work, const void *a, const void *b,
                           size_t bytes, unsigned samples, struct nb_similarity *out)
{
    (void)dev, (void)work, (void)a, (void)b, (void)bytes, (void)samples;
    *out = (struct nb_similarity){.near16 = 95, .samples = 100};
    return 0;
}

static int idle_sample(struct nb_device *dev, struct nb_work *work, enum nb_dtype type, const void *src,
                       size_t n, unsigned samples, float *out)
{
    (void)dev, (void)work, (void)type, (void)src;
    if (samples > n)
        samples = (unsigned)n;
    for (unsigned i = 0; i < samples; i++)
        out[i] = (i % 2 ? -1.0f : 1.0f) * (1.0f + (float)(i % 7));
    return (int)samples;
}

/* These have the profile of the sample above. */
static int idle_sums(struct nb_device *dev, struct nb_work *work, enum nb_dtype type, const void *src,
                     size_t n, unsigned groups, float *out)
{
    const int got = idle_sample(dev, work, type, src, n, groups, out);

    for (int i = 0; i < got; i++)
        out[i] = NB_PROFILE_GROUP * exp2f(2 * out[i]);
    return got;
}

static void idle_nothing(struct nb_device *dev)
{
    (void)dev;
}

static int idle_failed(struct nb_device *dev)
{
    (void)dev;
    return 0;
}

static ssize_t idle_poll(struct nb_device *dev, struct nb_work *work)
{
    (void)dev, (void)work;
    return -EINVAL;
}

#define TABLE(keeps_) \
    { \
        .name = "nothing", .keeps = keeps_, .quiesce = idle_nothing, .failed = idle_failed, .zeroes = true, \
        .close = idle_nothing, .alloc = idle_alloc, .free = idle_free, .poll = idle_poll, .copy = idle_copy, \
        .zero = idle_zero, .encode = idle_encode, .decode = idle_decode, .reduce = idle_reduce, \
        .reduce_exact = idle_reduce_exact, .compare = idle_compare, .similarity = idle_similarity, \
        .sample = idle_sample, .sums = idle_sums, \
    }
static const struct nb_device_ops ops_headers = TABLE(SCALE_KEPT), ops_whole = TABLE(0);

int scale_device_open(struct nb_context *ctx, const struct nb_device_wish *wish, struct nb_device **dev)
{
    struct scale_node *node = (struct scale_node *)ctx; /* its first member */

    (void)wish;
    node->device = calloc(1, sizeof(struct idle)); /* freed with the node */
    if (!node->device)
        return -ENOMEM;
    *node->device = (struct idle){{node->cluster->set->whole ? &ops_whole : &ops_headers}, node};
    *dev = &node->device->device;
    return 0;
}
