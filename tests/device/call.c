/* SPDX-License-Identifier: Apache-2.0 */
/* See call.h. */
#include "tests/device/call.h"

ssize_t device_call_perform(const struct device_call *c)
{
    struct nb_device *h = nb_host_device();

    switch (c->kind) {
    case COPY: return h->ops->copy(h, NULL, c->dst, c->src, c->n);
    case ZERO: return h->ops->zero(h, NULL, c->dst, c->n);
    case ENCODE: return h->ops->encode(h, NULL, &c->encoding);
    case DECODE: return h->ops->decode(h, NULL, &c->decoding);
    case REDUCE:
        return h->ops->reduce(h, NULL, c->dtype, c->sources, c->nsources, c->own, c->n, c->first, c->dst);
    case REDUCE_EXACT:
        return h->ops->reduce_exact(h, NULL, c->type, c->redop, c->plain, c->nsources, c->own, c->n, c->dst);
    case PICK:
        return h->ops->pick(h, NULL, c->width, c->src, c->block, c->picks, c->first, c->n / c->width, c->out);
    case COMPARE: return h->ops->compare(h, NULL, c->src, c->own, c->n, c->compared);
    case NEARNESS: return h->ops->similarity(h, NULL, c->src, c->own, c->n, c->samples, c->near);
    case SAMPLE: return h->ops->sample(h, NULL, c->dtype, c->src, c->n, c->samples, c->sample);
    case SUMS: return h->ops->sums(h, NULL, c->dtype, c->src, c->n, c->samples, c->sample);
    }
    return 0;
}

static ssize_t ask(struct nb_device *dev, struct nb_work *work, const struct device_call *what)
{
    struct asked_device *asked = (struct asked_device *)dev;

    return asked->ask(asked, work, what);
}

int device_call_copy(struct nb_device *dev, struct nb_work *work, void *dst, const void *src, size_t bytes)
{
    return (int)ask(dev, work, &(struct device_call){.kind = COPY, .dst = dst, .src = src, .n = bytes});
}

int device_call_zero(struct nb_device *dev, struct nb_work *work, void *dst, size_t bytes)
{
    return (int)ask(dev, work, &(struct device_call){.kind = ZERO, .dst = dst, .n = bytes});
}

ssize_t device_call_encode(struct nb_device *dev, struct nb_work *work, const struct nb_encoding *e)
{
    return ask(dev, work, &(struct device_call){.kind = ENCODE, .encoding = *e});
}

int device_call_decode(struct nb_device *dev, struct nb_work *work, const struct nb_decoding *d)
{
    return (int)ask(dev, work, &(struct device_call){.kind = DECODE, .decoding = *d});
}

int device_call_reduce(struct nb_device *dev, struct nb_work *work, enum nb_dtype type,
                       const struct nb_source *sources, size_t nsources, const void *own, size_t n,
                       uint64_t first, void *dst)
{
    return (int)ask(dev, work,
                    &(struct device_call){.kind = REDUCE,
                                          .dtype = type,
                                          .sources = sources,
                                          .nsources = nsources,
                                          .own = own,
                                          .n = n,
                                          .first = first,
                                          .dst = dst});
}

int device_call_reduce_exact(struct nb_device *dev, struct nb_work *work, ncclDataType_t type, ncclRedOp_t op,
                             const void *const *sources, size_t nsources, const void *own, size_t n,
                             void *dst)
{
    return (int)ask(dev, work,
                    &(struct device_call){.kind = REDUCE_EXACT,
                                          .type = type,
                                          .redop = op,
                                          .plain = sources,
                                          .nsources = nsources,
                                          .own = own,
                                          .n = n,
                                          .dst = dst});
}

int device_call_compare(struct nb_device *dev, struct nb_work *work, const void *cur, const void *ref,
                        size_t bytes, struct nb_compared *out)
{
    return (int)ask(
        dev, work,
        &(struct device_call){.kind = COMPARE, .src = cur, .own = ref, .n = bytes, .compared = out});
}

int device_call_similarity(struct nb_device *dev, struct nb_work *work, const void *a, const void *b,
                           size_t bytes, unsigned samples, struct nb_similarity *out)
{
    return (int)ask(dev, work,
                    &(struct device_call){
                        .kind = NEARNESS, .src = a, .own = b, .n = bytes, .samples = samples, .near = out});
}

int device_call_sample(struct nb_device *dev, struct nb_work *work, enum nb_dtype type, const void *src,
                       size_t n, unsigned samples, float *out)
{
    return (int)ask(
        dev, work,
        &(struct device_call){
            .kind = SAMPLE, .dtype = type, .src = src, .n = n, .samples = samples, .sample = out});
}

int device_call_sums(struct nb_device *dev, struct nb_work *work, enum nb_dtype type, const void *src,
                     size_t n, unsigned groups, float *out)
{
    return (int)ask(dev, work,
                    &(struct device_call){
                        .kind = SUMS, .dtype = type, .src = src, .n = n, .samples = groups, .sample = out});
}

ssize_t device_call_pick(struct nb_device *dev, struct nb_work *work, size_t width, const void *src,
                         uint64_t n, unsigned picks, uint64_t first, uint64_t count, uint32_t *out)
{
    return ask(dev, work,
               &(struct device_call){.kind = PICK,
                                     .width = width,
                                     .src = src,
                                     .n = count * width,
                                     .block = n,
                                     .picks = picks,
                                     .first = first,
                                     .out = out});
}
