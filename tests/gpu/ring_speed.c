/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measure the resident kernel on the first GPU: descriptors through the ring in pinned memory, as the plugin
 * hands them over, in pieces of 128 KiB to 4 MiB, with the plugin's number of blocks and with other numbers.
 *
 *      ring_speed [--json] [--seconds S]     S a row, default 0.03
 *
 * Rates count the bytes of the uncoded values. `depth` descriptors are in the ring at once. With a depth of 1
 * the time is the time of one descriptor from its publication until the CPU sees it finished.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "codec/fp.h"
#include "driver.h"

#define MOST_PIECE ((size_t)4 << 20)
#define SLOTS NB_GPU_RING
#define ROOM (MOST_PIECE + MOST_PIECE / 8 + 4096)
#define SOURCES 3u
#define GIVE_UP 10.0

struct host {
    struct nb_gpu_ring ring;
    struct nb_gpu_result result[SLOTS];
};

enum place { DEVICE, WIRE, ALL }; /* in pinned memory: no data, the coded bytes, the values too */
static const char *const places[] = {"device", "coded bytes pinned", "all pinned"};

static struct host *host;
static uint64_t state, published, tickets, launches, work, work_bytes, scratch, err, scale, lists;
static uint64_t values[2], out[2], coded[2]; /* in GPU memory, pinned. SLOTS pieces each */
static struct nb_gpu_source sources[SLOTS][SOURCES];
static int json, rows;
static double least = 0.03;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Return the descriptor of piece i of BF16 values. */
static struct nb_gpu_desc piece_of(enum nb_gpu_op op, unsigned mode, unsigned nsources, size_t piece,
                                   enum place place, unsigned i)
{
    const int pinned = place == ALL, wire = place != DEVICE;
    const uint64_t at = i * (uint64_t)MOST_PIECE, coded_at = i * (uint64_t)ROOM, n = piece / 2;
    struct nb_gpu_desc d = {.op = (uint8_t)op,
                            .type = NB_BF16,
                            .codec = NB_CODEC_INT4,
                            .mode = (uint8_t)mode,
                            .n = n,
                            .first = i * n,
                            .src = values[pinned] + at,
                            .dst = out[pinned] + at,
                            .bound = 0.2f,
                            .beta = 0.9f,
                            .width = NB_ULP_16,
                            .limit = UINT64_MAX,
                            .work = work + i * work_bytes,
                            .scratch = scratch + i * (uint64_t)MOST_PIECE,
                            .result = (uintptr_t)&host->result[i]};
    switch (op) {
    case NB_GPU_COPY:
        d.n = piece;
        d.dst = wire ? coded[1] + coded_at : out[0] + at;
        break;
    case NB_GPU_HASH: d.n = piece; break;
    case NB_GPU_ENCODE:
        d.dst = coded[wire] + coded_at;
        d.err = err;
        d.scale = scale;
        break;
    case NB_GPU_ULP_ENCODE:
        d.n = piece;
        d.ref = out[0] + at;
        d.dst = coded[wire] + coded_at;
        break;
    default:
        d.nsources = nsources;
        d.sources = lists + i * sizeof(sources[0]);
        if (op == NB_GPU_ULP_DECODE) {
            d.n = piece;
            d.ref = out[0] + at;
            d.dst = values[0] + at; /* the decoded values */
        } else if (op == NB_GPU_REDUCE) {
            d.own = d.src;
        }
    }
    return d;
}

static void stuck(const char *what)
{
    printf("%s%s is stuck: %llu published, %llu launches begun, %llu ended\n", json ? "\n" : "", what,
           (unsigned long long)published, (unsigned long long)host->ring.started,
           (unsigned long long)host->ring.ended);
    fflush(stdout);
    _exit(1);
}

/* Wait for the slot's descriptor. */
static void await(unsigned slot)
{
    const struct nb_gpu_result *r = &host->result[slot];
    const uint32_t id = host->ring.desc[slot].id;
    double end = 0;
    for (unsigned i = 0; __atomic_load_n(&r->done, __ATOMIC_ACQUIRE) != id; i++)
        if (i % 4096 == 4095) {
            if (!end)
                end = now() + GIVE_UP;
            if (now() > end)
                stuck("a descriptor");
        }
    if (r->length < 0) {
        printf("the kernel failed: %lld\n", (long long)r->length);
        exit(1);
    }
}

static void publish(const struct nb_gpu_desc *planned)
{
    const unsigned slot = (unsigned)(published % SLOTS);
    struct nb_gpu_desc *d = &host->ring.desc[slot];
    *d = *planned;
    d->ticket = tickets;
    d->id = (uint32_t)published + 1;
    d->result = (uintptr_t)&host->result[slot];
    tickets += d->tickets;
    __atomic_store_n(&host->ring.published, ++published, __ATOMIC_RELEASE);
}

static void begin(unsigned blocks)
{
    struct nb_gpu_launch launch = {state, (uintptr_t)&host->ring, 0, 0};
    driver_launch(&launch, blocks);
}

static void end_launch(void)
{
    const double end = now() + GIVE_UP;
    host->ring.stop[launches % NB_GPU_STOPS] = published;
    __atomic_store_n(&host->ring.stops, ++launches, __ATOMIC_RELEASE);
    while (__atomic_load_n(&host->ring.ended, __ATOMIC_ACQUIRE) < launches)
        if (now() > end)
            stuck("the end of the kernel");
    driver_wait();
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void row(const char *what, enum place place, size_t piece, unsigned blocks, unsigned depth,
                double rate, double us)
{
    if (json)
        printf("%s\n  {\"what\": \"%s\", \"memory\": \"%s\", \"kib\": %zu, \"blocks\": %u, \"depth\": %u, "
               "\"gb_per_s\": "
               "%.2f, \"us\": %.2f}",
               rows++ ? "," : "", what, places[place], piece >> 10, blocks, depth, rate, us);
    else
        printf("%-30s %-18s %5zu KiB %3u blocks depth %2u %8.2f GB/s %9.2f us each\n", what, places[place],
               piece >> 10, blocks, depth, rate, us);
    fflush(stdout);
}

/* Measure one row: descriptors of one kind, `depth` of them in the ring. */
static void measure(const char *what, enum nb_gpu_op op, unsigned mode, unsigned nsources, size_t piece,
                    enum place place, unsigned blocks, unsigned depth)
{
    static struct nb_gpu_desc planned[SLOTS];
    static double took[4096];
    unsigned n = 0;

    for (unsigned i = 0; i < SLOTS; i++) {
        planned[i] = piece_of(op, mode, nsources, piece, place, i);
        const int64_t need = nb_gpu_plan(&planned[i]);
        if (need < 0 || (uint64_t)need > work_bytes) {
            printf("nb_gpu_plan: %lld\n", (long long)need);
            exit(1);
        }
    }
    begin(blocks);
    /* slots and pieces have the same number */
    const uint64_t warm = published + SLOTS;
    while (published < warm) {
        if (published >= depth)
            await((unsigned)((published - depth) % SLOTS));
        publish(&planned[published % SLOTS]);
    }
    for (unsigned i = 0; i < SLOTS; i++)
        await(i);
    const double begun = now();
    const uint64_t first = published;
    double end = begun;
    for (;;) {
        if (published - first >= depth)
            await((unsigned)((published - depth) % SLOTS));
        const double t = now();
        if (depth == 1 && published > first && n < sizeof(took) / sizeof(*took))
            took[n++] = t - end;
        end = t;
        if (t - begun > least && published - first >= SLOTS)
            break;
        publish(&planned[published % SLOTS]);
    }
    for (unsigned i = 0; i < SLOTS; i++)
        await(i);
    const double seconds = now() - begun;
    const double count = (double)(published - first);
    qsort(took, n, sizeof(*took), ascending);
    row(what, place, piece, blocks, depth, count * (double)piece / seconds * 1e-9,
        n ? took[n / 2] * 1e6 : seconds / count * 1e6);
    end_launch();
}

/* Make coded pieces, which serve as `sources`. */
static void code(enum nb_gpu_op op, size_t piece, enum place place)
{
    begin(34);
    const uint64_t first = published;
    for (unsigned i = 0; i < SLOTS; i++) {
        struct nb_gpu_desc d = piece_of(op, NB_EF_OFF, 0, piece, place, (unsigned)(published % SLOTS));
        if (nb_gpu_plan(&d) < 0)
            exit(1);
        publish(&d);
    }
    for (unsigned i = 0; i < SLOTS; i++)
        await((unsigned)((first + i) % SLOTS));
    for (unsigned i = 0; i < SLOTS; i++)
        for (unsigned s = 0; s < SOURCES; s++)
            sources[i][s] = (struct nb_gpu_source){coded[place != DEVICE] + i * (uint64_t)ROOM,
                                                   (uint64_t)host->result[i].length,
                                                   op == NB_GPU_ENCODE ? NB_CODEC_INT4 : NB_CODEC_ULP, 0};
    end_launch();
    driver_write(lists, sources, sizeof(sources));
}

/* Write values like gradients, and slightly different copies, from which differences are taken. Sums and
 * decoders overwrite the copies, so this comes again before differences. */
static void fill(void)
{
    const size_t bytes = SLOTS * MOST_PIECE;
    uint8_t *v = (uint8_t *)(uintptr_t)values[1], *w = (uint8_t *)(uintptr_t)out[1];
    uint64_t s = 1;
    float step = 1;

    for (size_t i = 0; i < ((size_t)8 << 20) / 2; i++) {
        float sum = 0;
        for (int k = 0; k < 4; k++) {
            s = s * 6364136223846793005u + 1442695040888963407u;
            sum += (float)(int32_t)(s >> 32) * 0x1p-31f;
        }
        if (i % 1024 == 0)
            step = nb_pow2(-(int)(s >> 61) - 8);
        nb_store_value(NB_BF16, v, i, sum * step);
        nb_store_value(NB_BF16, w, i, sum * step * (1 + (float)(int32_t)s * 0x1p-41f));
    }
    for (size_t at = (size_t)8 << 20; at < bytes; at += (size_t)8 << 20) {
        memcpy(v + at, v, (size_t)8 << 20);
        memcpy(w + at, w, (size_t)8 << 20);
    }
    driver_write(values[0], v, bytes);
    driver_write(out[0], w, bytes);
}

int main(int argc, char **argv)
{
    static const size_t pieces[] = {(size_t)128 << 10, (size_t)512 << 10, (size_t)1 << 20, (size_t)4 << 20};
    static const unsigned counts[] = {8, 16, 66, 132};
    static const struct {
        const char *name;
        enum nb_gpu_op op, coder;
        unsigned mode, nsources;
    } kinds[] = {
        {"copy", NB_GPU_COPY, NB_GPU_NONE, 0, 0},
        {"encode", NB_GPU_ENCODE, NB_GPU_NONE, NB_EF_OFF, 0},
        {"encode, feedback", NB_GPU_ENCODE, NB_GPU_NONE, NB_EF_FULL, 0},
        {"decode", NB_GPU_DECODE, NB_GPU_ENCODE, 0, 1},
        {"sum of 1 peer and own", NB_GPU_REDUCE, NB_GPU_ENCODE, 0, 1},
        {"sum of 3 peers and own", NB_GPU_REDUCE, NB_GPU_ENCODE, 0, 3},
        {"ulp encode", NB_GPU_ULP_ENCODE, NB_GPU_NONE, 0, 0},
        {"ulp decode", NB_GPU_ULP_DECODE, NB_GPU_ULP_ENCODE, 0, 1},
        {"hash", NB_GPU_HASH, NB_GPU_NONE, 0, 0},
    };
    int status;

    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--json"))
            json = 1;
        else if (!strcmp(argv[i], "--seconds") && i + 1 < argc)
            least = strtod(argv[++i], NULL);
        else if (!strcmp(argv[i], "--teams") && i + 1 < argc)
            driver_teams = (unsigned)strtoul(argv[++i], NULL, 10);
        else {
            fprintf(stderr, "usage: ring_speed [--json] [--seconds S] [--teams N]\n");
            return 2;
        }
    }
    status = driver_open();
    if (status)
        return status;
    host = driver_alloc_pinned(sizeof(*host));
    state = driver_alloc(sizeof(struct nb_gpu_state));
    work_bytes = 1024 + 64 * (MOST_PIECE / 2 / NB_TILE + 2) * 2;
    work = driver_alloc(SLOTS * work_bytes);
    scratch = driver_alloc(SLOTS * MOST_PIECE);
    err = driver_alloc(SLOTS * MOST_PIECE / 2);
    scale = driver_alloc(SLOTS * MOST_PIECE / 2 / NB_GROUP);
    lists = driver_alloc(sizeof(sources));
    values[0] = driver_alloc(SLOTS * MOST_PIECE);
    out[0] = driver_alloc(SLOTS * MOST_PIECE);
    coded[0] = driver_alloc(SLOTS * ROOM);
    values[1] = (uintptr_t)driver_alloc_pinned(SLOTS * MOST_PIECE);
    out[1] = (uintptr_t)driver_alloc_pinned(SLOTS * MOST_PIECE);
    coded[1] = (uintptr_t)driver_alloc_pinned(SLOTS * ROOM);
    const unsigned usual = (driver_multiprocessors() + 3) / 4;
    if (json)
        printf("{\"device\": \"%s\", \"multiprocessors\": %u, \"results\": [", driver_device(),
               driver_multiprocessors());
    else
        printf("%s, %u multiprocessors; bytes of BF16 values\n", driver_device(), driver_multiprocessors());
    fill();
    for (size_t k = 0; k < sizeof(kinds) / sizeof(*kinds); k++) {
        if ((kinds[k].op == NB_GPU_ULP_ENCODE || kinds[k].op == NB_GPU_ULP_DECODE) &&
            driver_major() >= NB_GPU_NO_DIFFERENCES)
            continue;
        for (enum place place = DEVICE; place <= ALL; place++) {
            if (place == ALL && kinds[k].op != NB_GPU_ENCODE && kinds[k].op != NB_GPU_REDUCE)
                continue;
            if (place != DEVICE && kinds[k].op == NB_GPU_HASH)
                continue;
            for (size_t p = 0; p < sizeof(pieces) / sizeof(*pieces); p++) {
                if (kinds[k].op == NB_GPU_ULP_ENCODE || kinds[k].op == NB_GPU_ULP_DECODE)
                    fill();
                if (kinds[k].coder)
                    code(kinds[k].coder, pieces[p], place);
                const unsigned mode = kinds[k].mode, n = kinds[k].nsources;
                measure(kinds[k].name, kinds[k].op, mode, n, pieces[p], place, usual, 1);
                measure(kinds[k].name, kinds[k].op, mode, n, pieces[p], place, usual, 48);
                for (size_t c = 0; p == 2 && place == DEVICE && c < sizeof(counts) / sizeof(*counts); c++)
                    measure(kinds[k].name, kinds[k].op, mode, n, pieces[p], place, counts[c], 48);
            }
        }
    }
    if (json)
        printf("\n]}\n");
    driver_close();
    return 0;
}
