/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measure the kernels on the first GPU, from 1 MiB to 1 GiB of values: bytes read and written a second, and
 * the fraction of the rate at which the device copies within its memory. Print a table on standard output, or
 * JSON.
 *
 *      kernel_speed [--json] [--most MIB] [--once MIB] [--blocks N] [--teams N]
 *
 * With --once each kernel runs once, on BF16 values of that size. This serves a profiler, which counts
 * launches. --blocks and --teams set the shape of a launch (default: as many blocks as fit on the
 * GPU, and as many teams as fit in a block).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec/fp.h"
#include "codec/pick.h"
#include "driver.h"
#include "nibble/nccl_types.h"

#define MOST_SOURCES 7u
#define ROUNDS 20u
#define BLOCK ((size_t)8 << 20) /* bytes of values that the host makes */

static int json, rows;
static unsigned warm = 3, rounds = ROUNDS, blocks;
static uint64_t state, list, results, work, values, own, coded[MOST_SOURCES], err, scale, sources;
static uint64_t work_bytes, most_bytes; /* bytes of values. Half of it lies between coded[i] and coded[i +
                                           1] */
static struct nb_gpu_result result;

static struct nb_gpu_desc base(enum nb_gpu_op op, enum nb_dtype type, uint64_t n)
{
    return (struct nb_gpu_desc){.op = (uint8_t)op,
                                .type = (uint8_t)type,
                                .codec = NB_CODEC_INT4,
                                .n = n,
                                .result = results,
                                .work = work,
                                .bound = 0.2f,
                                .beta = 0.9f,
                                .id = 1};
}

/* Return the seconds that the descriptor takes. */
static double run(struct nb_gpu_desc *desc)
{
    struct nb_gpu_launch launch = {state, 0, list, 1};
    int64_t bytes = nb_gpu_plan(desc);

    if (bytes < 0 || (uint64_t)bytes > work_bytes) {
        fprintf(stderr, "nb_gpu_plan: %lld\n", (long long)bytes);
        exit(1);
    }
    driver_write(list, desc, sizeof(*desc));
    for (unsigned i = 0; i < warm; i++)
        driver_launch(&launch, blocks);
    driver_wait();
    driver_start();
    for (unsigned i = 0; i < rounds; i++)
        driver_launch(&launch, blocks);
    double seconds = driver_stop() / rounds;
    driver_read(&result, results, sizeof(result));
    if (result.length < 0 || result.done != 1) {
        fprintf(stderr, "the kernel failed: %lld\n", (long long)result.length);
        exit(1);
    }
    return seconds;
}

static void report(const char *what, size_t mib, double bytes, double seconds, double copy)
{
    double rate = bytes / seconds * 1e-9;
    if (json)
        printf("%s\n  {\"kernel\": \"%s\", \"mib\": %zu, \"bytes\": %.0f, \"gb_per_s\": %.1f, \"of_copy\": "
               "%.4f}",
               rows++ ? "," : "", what, mib, bytes, rate, rate / copy);
    else
        printf("%-34s %5zu MiB %9.1f us %8.1f GB/s %6.1f %% of copying\n", what, mib, seconds * 1e6, rate,
               100 * rate / copy);
    fflush(stdout);
}

/* Write values like gradients: normal, with a scale for each 1024. */
static void fill(uint64_t to, enum nb_dtype type, size_t bytes)
{
    static uint8_t block[BLOCK];
    uint64_t s = 1;
    size_t size = nb_dtype_size(type), made = bytes < BLOCK ? bytes : BLOCK;
    float step = 1;

    for (size_t i = 0; i < made / size; i++) {
        float sum = 0;
        for (int k = 0; k < 4; k++) {
            s = s * 6364136223846793005u + 1442695040888963407u;
            sum += (float)(int32_t)(s >> 32) * 0x1p-31f;
        }
        if (i % 1024 == 0)
            step = nb_pow2(-(int)(s >> 61) - 8);
        nb_store_value(type, block, i, sum * step);
    }
    for (size_t at = 0; at < bytes; at += made)
        driver_write(to + at, block, bytes - at < made ? bytes - at : made);
}

static double measure(enum nb_dtype type, size_t mib)
{
    static const unsigned counts[] = {1, 3, MOST_SOURCES};
    const char *name = nb_dtype_name(type);
    size_t bytes = mib << 20, size = nb_dtype_size(type), n = bytes / size;
    char what[64];

    driver_copy(own, values, bytes);
    driver_wait();
    driver_start();
    for (unsigned i = 0; i < rounds; i++)
        driver_copy(own, values, bytes);
    double copy = 2.0 * (double)bytes / (driver_stop() / rounds) * 1e-9;
    report("device copy (driver)", mib, 2.0 * (double)bytes, 2.0 * (double)bytes / copy * 1e-9, copy);

    struct nb_gpu_desc d = base(NB_GPU_COPY, type, bytes);
    d.src = values;
    d.dst = own;
    report("copy", mib, 2.0 * (double)bytes, run(&d), copy);

    for (int mode = NB_EF_OFF; mode <= NB_EF_EMA; mode++) {
        static const char *const modes[] = {"", ", feedback", ", feedback (ema)"};
        d = base(NB_GPU_ENCODE, type, n);
        d.mode = (uint8_t)mode;
        d.src = values;
        d.dst = coded[0];
        d.err = err;
        d.scale = scale;
        double seconds = run(&d), moved = (double)bytes + (double)result.length;
        if (mode != NB_EF_OFF)
            moved += 2.0 * (double)n * (1 + 1.0 / NB_GROUP);
        snprintf(what, sizeof(what), "encode %s%s", name, modes[mode]);
        report(what, mib, moved, seconds, copy);
    }

    struct nb_gpu_source list_of[MOST_SOURCES];
    int64_t length = 0;
    for (unsigned s = 0; s < MOST_SOURCES; s++) {
        d = base(NB_GPU_ENCODE, type, n);
        d.src = values;
        d.dst = coded[s];
        run(&d);
        length = result.length;
        list_of[s] = (struct nb_gpu_source){coded[s], (uint64_t)length, NB_CODEC_INT4, 0};
    }
    driver_write(sources, list_of, sizeof(list_of));
    d = base(NB_GPU_DECODE, type, n);
    d.nsources = 1;
    d.sources = sources;
    d.dst = own;
    snprintf(what, sizeof(what), "decode %s", name);
    report(what, mib, (double)bytes + (double)length, run(&d), copy);
    for (unsigned i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
        d = base(NB_GPU_REDUCE, type, n);
        d.nsources = counts[i];
        d.sources = sources;
        d.own = values;
        d.dst = own;
        snprintf(what, sizeof(what), "decode and sum %s, %u peers", name, counts[i]);
        report(what, mib, 2.0 * (double)bytes + counts[i] * (double)length, run(&d), copy);
    }
    return copy;
}

/* Write weights after a step of an optimizer: values that move by a thousandth. */
static void step(uint64_t to, enum nb_dtype type, size_t bytes)
{
    static uint8_t block[BLOCK];
    uint64_t s = 2;
    size_t size = nb_dtype_size(type), made = bytes < BLOCK ? bytes : BLOCK;

    driver_read(block, values, made);
    for (size_t i = 0; i < made / size; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        const float by = (float)(int32_t)(s >> 32) * 0x1p-41f;
        nb_store_value(type, block, i, nb_load_value(type, block, i) * (1 + by));
    }
    for (size_t at = 0; at < bytes; at += made)
        driver_write(to + at, block, bytes - at < made ? bytes - at : made);
}

/* Measure codecs `ulp` and `delta4`, which encode differences of the values to `own`. The coded bytes, memory
 * for coding and the decoded values lie one after the other in it. */
static void measure_differences(enum nb_dtype type, size_t mib, double copy)
{
    const size_t bytes = mib << 20, room = most_bytes + most_bytes / 8;
    const char *name = nb_dtype_name(type);
    char what[64];

    if (driver_major() >= NB_GPU_NO_DIFFERENCES)
        return;
    step(own, type, bytes);
    for (int delta4 = 0; delta4 < 2; delta4++) {
        struct nb_gpu_desc d = base(delta4 ? NB_GPU_DELTA4_ENCODE : NB_GPU_ULP_ENCODE, type, bytes);
        d.width = (uint8_t)nb_dtype_size(type);
        d.src = values;
        d.ref = own;
        d.dst = coded[0];
        d.scratch = coded[0] + room;
        d.limit = UINT64_MAX;
        double seconds = run(&d);
        const int64_t length = result.length;
        snprintf(what, sizeof(what), "%s encode %s", delta4 ? "delta4" : "ulp", name);
        report(what, mib, 2.0 * (double)bytes + (double)length, seconds, copy);

        struct nb_gpu_source source = {coded[0], (uint64_t)length, delta4 ? NB_CODEC_DELTA4 : NB_CODEC_ULP,
                                       0};
        driver_write(sources, &source, sizeof(source));
        d = base(delta4 ? NB_GPU_DELTA4_DECODE : NB_GPU_ULP_DECODE, type, bytes);
        d.width = (uint8_t)nb_dtype_size(type);
        d.nsources = 1;
        d.sources = sources;
        d.ref = own;
        d.dst = coded[0] + 2 * room;
        snprintf(what, sizeof(what), "%s decode %s", delta4 ? "delta4" : "ulp", name);
        report(what, mib, 2.0 * (double)bytes + (double)length, run(&d), copy);
    }
}

/* Measure sums of plain values. The memory's content is arbitrary. */
static void measure_exact(enum nb_dtype type, size_t mib, double copy)
{
    static const ncclDataType_t types[] = {
        [NB_F32] = ncclFloat32, [NB_BF16] = ncclBfloat16, [NB_F16] = ncclFloat16};
    const size_t bytes = mib << 20;
    struct nb_gpu_source list_of[3];
    char what[64];

    for (unsigned s = 0; s < 3; s++) {
        driver_copy(coded[0] + s * most_bytes, values, bytes);
        list_of[s] = (struct nb_gpu_source){coded[0] + s * most_bytes, bytes, NB_CODEC_RAW, 0};
    }
    driver_write(sources, list_of, sizeof(list_of));
    struct nb_gpu_desc d = base(NB_GPU_REDUCE_EXACT, type, bytes / nb_dtype_size(type));
    d.type = (uint8_t)types[type];
    d.mode = ncclSum;
    d.nsources = 3;
    d.sources = sources;
    d.own = values;
    d.dst = own;
    snprintf(what, sizeof(what), "exact sum %s, 3 peers", nb_dtype_name(type));
    report(what, mib, 5.0 * (double)bytes, run(&d), copy);
}

/* Measure looks at few of the values, as plugin/policy asks for them. The time counts. The row's bytes are
 * the bytes that the kernel looks at. */
static void measure_looks(enum nb_dtype type, size_t mib, double copy)
{
    const size_t bytes = mib << 20, size = nb_dtype_size(type);
    const unsigned samples = 256;
    char what[64];

    struct nb_gpu_desc d = base(NB_GPU_LIKENESS, type, bytes);
    d.src = values;
    d.ref = own;
    d.nsources = samples;
    snprintf(what, sizeof(what), "likeness %s, 256 samples", nb_dtype_name(type));
    report(what, mib, 4.0 * samples, run(&d), copy);
    d = base(NB_GPU_SAMPLE, type, bytes / size);
    d.src = values;
    d.dst = coded[0];
    d.nsources = samples;
    snprintf(what, sizeof(what), "sample %s, 256 samples", nb_dtype_name(type));
    report(what, mib, (double)samples * (double)(size + 4), run(&d), copy);
    d = base(NB_GPU_PROFILE, type, bytes / size);
    d.flags = NB_GPU_SPREAD;
    d.src = values;
    d.dst = coded[0];
    d.nsources = samples;
    snprintf(what, sizeof(what), "profile %s, 256 groups", nb_dtype_name(type));
    report(what, mib, (double)samples * (double)(NB_GROUP * size + 4), run(&d), copy);
    d = base(NB_GPU_PICK, type, bytes / size);
    d.width = (uint8_t)size;
    d.limit = d.n;
    d.picks = d.nsources = nb_picks_of(d.n);
    d.src = values;
    d.dst = coded[0];
    snprintf(what, sizeof(what), "pick %s, %u values", nb_dtype_name(type), d.picks);
    report(what, mib, (double)d.picks * (double)(size + 4), run(&d), copy);
}

int main(int argc, char **argv)
{
    size_t most = 1024, once = 0;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--json"))
            json = 1;
        else if (!strcmp(argv[i], "--most") && i + 1 < argc)
            most = strtoul(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--once") && i + 1 < argc)
            once = strtoul(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--blocks") && i + 1 < argc)
            blocks = (unsigned)strtoul(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--teams") && i + 1 < argc)
            driver_teams = (unsigned)strtoul(argv[++i], NULL, 10);
        else {
            fprintf(stderr,
                    "usage: kernel_speed [--json] [--most MIB] [--once MIB] [--blocks N] [--teams N]\n");
            return 2;
        }
    }
    int status = driver_open();
    if (status)
        return status;
    if (!blocks)
        blocks = driver_multiprocessors();
    if (once) {
        most = once;
        warm = 0;
        rounds = 1;
    }
    if (most < 1 || most > 4096)
        most = 1024;
    size_t bytes = most << 20, n = bytes / 2;
    work_bytes = 1024 + 64 * (uint64_t)(n / NB_TILE + 2) * 2;
    state = driver_alloc(sizeof(struct nb_gpu_state));
    list = driver_alloc(sizeof(struct nb_gpu_desc));
    results = driver_alloc(sizeof(struct nb_gpu_result));
    work = driver_alloc(work_bytes);
    values = driver_alloc(bytes);
    own = driver_alloc(bytes);
    most_bytes = bytes;
    coded[0] = driver_alloc(MOST_SOURCES * bytes / 2); /* these values need less than 4.4 bits each */
    for (unsigned s = 1; s < MOST_SOURCES; s++)
        coded[s] = coded[0] + s * bytes / 2;
    err = driver_alloc(n);
    scale = driver_alloc(n / NB_GROUP);
    sources = driver_alloc(MOST_SOURCES * sizeof(struct nb_gpu_source));
    if (json)
        printf("{\"device\": \"%s\", \"multiprocessors\": %u, \"results\": [", driver_device(),
               driver_multiprocessors());
    else
        printf("%s, %u multiprocessors; bytes read and written\n", driver_device(), driver_multiprocessors());
    for (int type = NB_F32; type < NB_DTYPE_COUNT; type++) {
        if (once && type != NB_BF16)
            continue;
        fill(values, (enum nb_dtype)type, bytes);
        for (size_t mib = once ? once : 1; mib <= most; mib *= 4) {
            const double copy = measure((enum nb_dtype)type, mib);
            measure_differences((enum nb_dtype)type, mib, copy);
            measure_exact((enum nb_dtype)type, mib, copy);
            measure_looks((enum nb_dtype)type, mib, copy);
        }
    }
    if (json)
        printf("\n]}\n");
    driver_close();
    return 0;
}
