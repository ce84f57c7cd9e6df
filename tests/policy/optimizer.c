/* SPDX-License-Identifier: Apache-2.0 */
/* See optimizer.h. */
#include "optimizer.h"

#include <math.h>
#include <string.h>

#include "trace.h"

#define SIZE 0.02f
#define DECAY 0.1f

void shard_open(struct shard *s, enum optimizer optimizer, float rate, unsigned values, uint64_t seed)
{
    memset(s, 0, sizeof(*s));
    s->values = values;
    s->optimizer = optimizer;
    s->rate = rate;
    s->seed = seed;
    for (unsigned i = 0; i < s->values; i++) {
        s->master[i] = SIZE * rnd_normal(&s->seed);
        s->centre[i] = SIZE * rnd_normal(&s->seed);
    }
}

static uint16_t bf16(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, 4);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void shard_gradient(struct shard *s, float coherence)
{
    const float noise = SIZE * sqrtf((1.0f - coherence) / coherence);
    /* A layer's gradients differ in size from value to value, in the same way in all shards. */
    static float loud[SHARD];

    if (loud[0] == 0)
        for (unsigned i = 0; i < SHARD; i++)
            loud[i] = expf(1.5f * sinf((float)(i * 2654435761u >> 8)));
    for (unsigned i = 0; i < s->values; i++) {
        s->centre[i] += 0.05f * SIZE * rnd_normal(&s->seed);
        s->sum[i] = 1e-2f * loud[i] * (s->master[i] - s->centre[i] + noise * rnd_normal(&s->seed));
    }
}

static float sign(float x)
{
    return x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f;
}

void shard_step(struct shard *s)
{
    const float lr = s->rate * SIZE, keep = 1.0f - s->rate * SIZE * DECAY;
    const float t = (float)++s->steps;
    const float first = 1 - powf(0.9f, t), second = 1 - powf(0.95f, t); /* share of the average so far */
    float rms = 0;

    for (unsigned i = 0; i < s->values; i++)
        rms += s->sum[i] * s->sum[i];
    rms = sqrtf(rms / (float)s->values) + 1e-30f;
    for (unsigned i = 0; i < s->values; i++) {
        const float g = s->sum[i];
        float step = 0;
        switch (s->optimizer) {
        case OPT_ADAMW:
            s->first[i] = 0.9f * s->first[i] + 0.1f * g;
            s->second[i] = 0.95f * s->second[i] + 0.05f * g * g;
            step = s->first[i] / first / (sqrtf(s->second[i] / second) + 1e-12f);
            break;
        case OPT_SGD: /* with momentum */
            s->first[i] = 0.9f * s->first[i] + g / rms;
            step = 0.3f * s->first[i];
            break;
        case OPT_LION:
            step = sign(0.9f * s->first[i] + 0.1f * g);
            s->first[i] = 0.99f * s->first[i] + 0.01f * g;
            break;
        default: /* Adafactor, without momentum */
            s->second[i] = 0.95f * s->second[i] + 0.05f * g * g;
            step = g / (sqrtf(s->second[i] / second) + 1e-12f);
            break;
        }
        s->master[i] = s->master[i] * keep - lr * step;
    }
}

void shard_weights(const struct shard *s, uint32_t *raw)
{
    for (unsigned i = 0; i < s->values; i++)
        raw[i] = bf16(s->master[i]);
}

void shard_bits(const float *values, unsigned n, uint32_t *raw)
{
    memcpy(raw, values, n * sizeof(*values));
}
