/* SPDX-License-Identifier: Apache-2.0 */
/* The data model of the traces. See trace.h. */
#include <math.h>

#include "trace.h"

uint64_t rnd(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

float rnd_unit(uint64_t *state)
{
    return (float)(rnd(state) >> 40) * 0x1p-24f;
}

float rnd_normal(uint64_t *state)
{
    uint64_t a = rnd(state);
    float s = (float)(a & 0xffff) + (float)(a >> 16 & 0xffff) + (float)(a >> 32 & 0xffff) + (float)(a >> 48);
    return (s * 0x1p-16f - 2.0f) * 1.7320508f;
}

/* Return one of the fixed directions of the model. */
static uint64_t direction(uint64_t kind, uint64_t number)
{
    uint64_t s = kind * 0x10001u + number * 0x100000001u + 77;
    rnd(&s);
    return s;
}

void model_profile(uint32_t unit, uint32_t step, uint64_t noise_seed, float out[NB_PROFILE_GROUPS])
{
    uint64_t common = direction(1, 0), family = direction(2, unit / 2), from = direction(3, unit),
             to = direction(4, unit);
    uint64_t of_step = direction(5, step), noise = noise_seed, of_unit = direction(6, unit);
    float turn = (float)step / 300.0f, shared = 0.4f;
    float variance = 0.65f + 0.8f * rnd_unit(&of_unit);
    float shift = (float)(int)(rnd(&of_step) % 3) - 1.0f;
    float spike = rnd(&of_step) % 50 == 0 ? 2.0f : 1.0f;
    float loud = sqrtf(variance * (1.0f + 8.0f * expf(-(float)step / 6.0f))) * spike;

    for (unsigned i = 0; i < NB_PROFILE_GROUPS; i++) {
        float own = cosf(turn) * rnd_normal(&from) + sinf(turn) * rnd_normal(&to);
        out[i] = -12.0f + shift + 2.5f * rnd_normal(&common) + sqrtf(shared) * rnd_normal(&family) +
                 sqrtf(1.0f - shared) * own + loud * rnd_normal(&noise);
    }
}

void model_gradient(const struct event *event, uint64_t noise_seed, float out[NB_PROFILE_GROUPS])
{
    model_profile(event->truth, event->step, noise_seed, out);
    for (unsigned i = 0; i < NB_PROFILE_GROUPS; i++)
        if (event->zeros >> (i * 8 / NB_PROFILE_GROUPS) & 1)
            out[i] = ZERO_PROFILE;
}

void model_samples(const struct event *event, uint64_t noise_seed, float *out, unsigned n)
{
    uint64_t base = direction(10, event->truth), drift = direction(11, event->truth), noise = noise_seed;

    for (unsigned i = 0; i < n; i++) {
        float b = rnd_normal(&base), d = rnd_normal(&drift), x = rnd_normal(&noise);
        switch (event->content) {
        case C_WEIGHTS: out[i] = 0.02f * b + 0.00002f * (float)event->version * d; break;
        case C_STATE: out[i] = 1e-4f * b + 1e-5f * x; break;
        case C_GRADIENT:
            out[i] = event->zeros >> (i * 8 / n) & 1 ? 0.0f : 1e-3f * (0.45f * b + 0.9f * x);
            break;
        case C_STATISTIC: out[i] = b + 0.01f * x; break;
        case C_SQUARES: out[i] = 1e-6f * (0.45f * b + 0.9f * x) * (0.45f * b + 0.9f * x); break;
        case C_ACTIVATION:
        case C_SCALAR: out[i] = x; break;
        }
    }
}
