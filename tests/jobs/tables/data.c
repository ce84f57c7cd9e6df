/* SPDX-License-Identifier: Apache-2.0 */
/* See data.h. */
#include "data.h"

#include <math.h>
#include <string.h>

#define TABLE 4096u

/* Return normal values by table: four for each random number. */
static const float *normals(void)
{
    static float table[TABLE];
    uint64_t seed = 4711;

    if (table[0] == 0.0f)
        for (unsigned i = TABLE; i-- > 0;)
            table[i] = rnd_normal(&seed);
    return table;
}

struct stream {
    const float *table;
    uint64_t state, word;
    unsigned left;
};

static struct stream stream(uint64_t kind, uint64_t a, uint64_t b, uint64_t c)
{
    struct stream s = {normals(), kind, 0, 0};

    s.state = rnd(&s.state) ^ a * 0x9e3779b97f4a7c15u;
    s.state = rnd(&s.state) ^ b * 0xc2b2ae3d27d4eb4fu;
    s.state = rnd(&s.state) ^ c * 0x165667b19e3779f9u;
    return s;
}

static float next(struct stream *s)
{
    float x;

    if (s->left == 0) {
        s->word = rnd(&s->state);
        s->left = 4;
    }
    x = s->table[s->word % TABLE];
    s->word >>= 16;
    s->left--;
    return x;
}

/*
 * Weights of a shard walk, in one of two directions at a time: +a, +b, -a, -b and so on, so that a change is
 * unrelated to the change before. They drift meanwhile, since weights never come back exactly. A step's
 * gradients, of all nodes, lean against the change that follows them. So weights move as their sums say, as
 * far as signs go.
 */
#define STRIDE 2e-4f

static struct stream direction(const struct event *e, int owner, uint64_t version)
{
    return stream(4, e->truth, (uint64_t)owner, 1 + version % 2);
}

/* Return the direction of the change from this version to the next. */
static float heading(uint64_t version)
{
    return version % 4 < 2 ? 1.0f : -1.0f;
}

/* Reduce-scatter: make the change of all owners' shards that follows, for each value. */
static void against_weights(const struct event *e, size_t n, float *out)
{
    const size_t block = n / DATA_NODES;

    for (int owner = 0; owner < DATA_NODES; owner++) {
        struct stream change = direction(e, owner, e->version);
        for (size_t i = 0; i < block; i++)
            out[(size_t)owner * block + i] = -heading(e->version) * next(&change);
    }
}

/* Make gradients: values of one node are half like the other node's, because batches have a common part. */
static void gradient(const struct event *e, size_t index, int rank, size_t n, float *out)
{
    struct stream base = stream(1, e->truth, 0, 0), noise = stream(2, index, (uint64_t)rank, 0);
    const int followed = e->call.func == NB_FUNC_REDUCE_SCATTER && n % DATA_NODES == 0;
    const float fresh = followed ? 0.67f : 0.9f;
    float profile[NB_PROFILE_GROUPS];

    memset(out, 0, n * sizeof(*out));
    if (followed)
        against_weights(e, n, out);
    model_gradient(e, index * 2 + (uint64_t)rank, profile);
    for (size_t g = 0; g < NB_PROFILE_GROUPS; g++) {
        float scale = profile[g] <= ZERO_PROFILE ? 0.0f : exp2f(profile[g]);
        for (size_t i = g * n / NB_PROFILE_GROUPS; i < (g + 1) * n / NB_PROFILE_GROUPS; i++)
            out[i] =
                scale > 0.0f ? scale * (0.6f * out[i] + 0.45f * next(&base) + fresh * next(&noise)) : 0.0f;
    }
}

void data_make(const struct event *e, size_t index, int rank, size_t n, float *out)
{
    struct stream base = stream(3, e->truth, (uint64_t)rank, 0);
    struct stream first = direction(e, rank, 0), second = direction(e, rank, 1);
    struct stream noise = stream(5, index, (uint64_t)rank, 0), third = stream(4, e->truth, (uint64_t)rank, 3);

    const float drift = STRIDE / 8 * (float)(e->version / 4);
    const float a = e->version % 4 == 1 || e->version % 4 == 2 ? STRIDE : 0.0f;
    const float b = e->version % 4 >= 2 ? STRIDE : 0.0f;

    if (e->call.type == ncclInt32) {
        for (size_t i = 0; i < n; i++)
            out[i] = (float)(rnd(&noise.state) % 3);
        return;
    }
    switch (e->content) {
    case C_GRADIENT: gradient(e, index, rank, n, out); break;
    case C_SQUARES:
        gradient(e, index, rank, n, out);
        for (size_t i = 0; i < n; i++)
            out[i] *= out[i];
        break;
    case C_WEIGHTS:
        for (size_t i = 0; i < n; i++)
            out[i] = 0.02f * next(&base) + a * next(&first) + b * next(&second) + drift * next(&third);
        break;
    case C_STATE:
        for (size_t i = 0; i < n; i++)
            out[i] = 1e-4f * next(&base) + 1e-5f * next(&noise);
        break;
    case C_STATISTIC:
        for (size_t i = 0; i < n; i++)
            out[i] = next(&base) + 0.01f * next(&noise);
        break;
    case C_ACTIVATION:
    case C_SCALAR:
        for (size_t i = 0; i < n; i++)
            out[i] = next(&noise);
        break;
    }
}

static uint16_t to_bf16(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, 4);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float from_bf16(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float x;

    memcpy(&x, &bits, 4);
    return x;
}

void data_store(ncclDataType_t type, const float *values, size_t n, void *out)
{
    if (type == ncclFloat32)
        memcpy(out, values, n * 4);
    for (size_t i = 0; i < n && type == ncclBfloat16; i++)
        ((uint16_t *)out)[i] = to_bf16(values[i]);
    for (size_t i = 0; i < n && type == ncclInt32; i++)
        ((int32_t *)out)[i] = (int32_t)values[i];
}

void data_load(ncclDataType_t type, const void *in, size_t n, float *out)
{
    if (type == ncclFloat32)
        memcpy(out, in, n * 4);
    for (size_t i = 0; i < n && type == ncclBfloat16; i++)
        out[i] = from_bf16(((const uint16_t *)in)[i]);
    for (size_t i = 0; i < n && type == ncclInt32; i++)
        out[i] = (float)((const int32_t *)in)[i];
}

void data_round(ncclDataType_t type, float *values, size_t n)
{
    for (size_t i = 0; i < n && type == ncclBfloat16; i++)
        values[i] = from_bf16(to_bf16(values[i]));
}
