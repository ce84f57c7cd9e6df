/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cost of evidence beside the codec: steps of FSDP with large units through the whole plugin, for
 * evidence-cost.py, which counts the instructions of the last steps under callgrind. By hand:
 *
 *     tests/jobs/cost [-v] [-n VALUES] [-u UNITS] [-t bf16|fp32] STEPS COUNTED
 *
 * Values are cheap to make: a gradient of pseudo-random numbers with an own profile in each unit, and weights
 * that move against the signs of its sum. The program prints how many of the last operations were coded and
 * fed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/internal.h"
#include "lib/parallel.h"

#if defined(__has_include)
#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#endif
#endif
#ifndef CALLGRIND_START_INSTRUMENTATION
#define CALLGRIND_START_INSTRUMENTATION (void)0
#define CALLGRIND_STOP_INSTRUMENTATION (void)0
#define HEADERS 0
#else
#define HEADERS 1
#endif

#define BLOCK 4096u /* values of one size */

struct load {
    size_t n[UNITS_MOST];
    uint32_t random;
    int units, steps, counted;
    ncclDataType_t type;
    unsigned long sums, coded, fed; /* of the counted steps */
};

static uint32_t next(uint32_t *r)
{
    *r ^= *r << 13;
    *r ^= *r >> 17;
    *r ^= *r << 5;
    return *r;
}

static float uniform(uint32_t *r)
{
    return (float)(int32_t)next(r) * 0x1p-31f;
}

static void begin(void *arg, struct unit *u, int number)
{
    struct load *l = arg;

    (void)number;
    for (size_t i = 0; i < u->n; i++)
        u->w[i] = 0.02f * uniform(&l->random);
}

static void gradient(void *arg, struct unit *u, int number)
{
    struct load *l = arg;

    for (int r = 0; r < NODES; r++)
        for (size_t i = 0; i < u->n; i += BLOCK) {
            uint32_t place = (uint32_t)(i / BLOCK) * 2654435761u + (uint32_t)number * 40503u + 1;
            const float size = 1e-3f * (float)(1u << next(&place) % 8);
            for (size_t k = i; k < i + BLOCK && k < u->n; k++)
                u->g[r][k] = size * uniform(&l->random);
        }
}

static void update(void *arg, struct unit *u, int number)
{
    (void)arg, (void)number;
    for (size_t i = 0; i < u->n; i++)
        u->w[i] -= u->g[0][i] + u->g[1][i] > 0 ? 1e-4f : -1e-4f;
}

static void listen(void *arg, const struct told *told)
{
    struct load *l = arg;

    if (told->step < l->steps - l->counted)
        return;
    l->sums++;
    l->coded += (unsigned)told->quantized;
    l->fed += (unsigned)told->fed;
}

static void play(struct job *job)
{
    struct load *l = job_arg(job);
    static struct model_source source;
    struct fsdp f;

    source = (struct model_source){l->n, begin, gradient, update, l};
    f = fsdp_open(job, comm_between(job, NULL),
                  model_new(job, &(struct model_settings){.units = l->units, .source = &source}), 2);
    f.grad = l->type;
    while (job_step(job)) {
        if (job_now(job) == l->steps - l->counted)
            CALLGRIND_START_INSTRUMENTATION;
        fsdp_forward(&f);
        fsdp_backward(&f);
        fsdp_update(&f);
    }
    network_drain(job);
    CALLGRIND_STOP_INSTRUMENTATION;
}

int main(int argc, char **argv)
{
    struct load l = {.random = 1, .units = 2, .type = ncclFloat32};
    const struct job_entry entry = {"cost", play, {.listen = listen, .arg = &l}};
    struct job_entry with = entry;
    struct verdict v;
    size_t n = 6553600;
    int at = 1, loud = 0;

    for (; at < argc && argv[at][0] == '-'; at++) {
        if (strcmp(argv[at], "-v") == 0)
            loud = 1;
        else if (at + 1 < argc && strcmp(argv[at], "-n") == 0)
            n = strtoull(argv[++at], NULL, 10);
        else if (at + 1 < argc && strcmp(argv[at], "-u") == 0)
            l.units = atoi(argv[++at]);
        else if (at + 1 < argc && strcmp(argv[at], "-t") == 0)
            l.type = strcmp(argv[++at], "bf16") == 0 ? ncclBfloat16 : ncclFloat32;
    }
    if (at + 2 != argc || (l.steps = atoi(argv[at])) < 1 || (l.counted = atoi(argv[at + 1])) < 1 ||
        l.counted > l.steps || l.units < 1 || l.units > UNITS_MOST || n < 512 || n % 256) {
        fprintf(stderr, "usage: cost [-v] [-n VALUES] [-u UNITS] [-t bf16|fp32] STEPS COUNTED\n");
        return 1;
    }
    for (int i = 0; i < l.units; i++)
        l.n[i] = n;
    with.settings.steps = l.steps;
    with.settings.ref_max_mb = 4096;
    job_play(&with, 1, loud, &v);
    printf("values=%zu units=%d steps=%d sums=%lu coded=%lu fed=%lu headers=%d\n", n, l.units, l.counted,
           l.sums, l.coded, l.fed, HEADERS);
    return 0;
}
